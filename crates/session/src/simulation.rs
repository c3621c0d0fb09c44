//! Failover in simulation: random faults of servers from a seed, what is seen of them folded by the
//! real topology, statements placed by the real decision, tried, tried again and held by the real loop
//! (the crate `engine`), run on connections that the real pools of two workers lend, and those that must
//! wait kept by the real queue. After each step the invariants hold; a seed that fails replays exactly.
//!
//! It stands here because the queue is this crate's, and the others are below it. The clients,
//! the servers, their end of the connections and the time are models.
//!
//! `MILLRACE_SIMULATION_STEPS=n` runs so many steps (default: a second of them),
//! `MILLRACE_SIMULATION_SEED=n` one seed.

mod connections;
mod random;
mod run;
mod servers;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_backend::concurrency::Limit;
use millrace_backend::pool::CheckoutRequest;
use millrace_engine::books::DiagnosticsStore;

use connections::{CONNECTIONS, Connections};
use run::Run;
use servers::Servers;

/// Steps with one seed.
const STEPS: u64 = 2_000;
/// A server that answers nothing is given up after this.
const TIMEOUT: Duration = Duration::from_secs(1);
/// So long a statement waits for a connection.
const WAIT: Duration = Duration::from_millis(1_500);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let digits = text.trim_start_matches("0x");
    let radix = if digits.len() < text.len() { 16 } else { 10 };
    Some(u64::from_str_radix(digits, radix).expect("a number"))
}

fn run(seed: u64) -> run::Counts {
    // Shown where an invariant breaks: the panic alone does not tell the seed.
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("again: MILLRACE_SIMULATION_SEED={}", self.0);
            }
        }
    }
    let tell = Tell(seed);
    let counts = in_simulated_time(async { Run::new(seed).steps(STEPS).await });
    drop(tell);
    counts
}

/// Time passes only where nothing else is left to do, or as it is told to.
fn in_simulated_time<T>(what: impl Future<Output = T>) -> T {
    let clock = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&clock, what)
}

#[test]
fn whatever_fails_writes_go_to_the_primary_and_all_that_wait_leave_in_order() {
    if let Some(seed) = number("MILLRACE_SIMULATION_SEED") {
        println!("seed {seed}: {:?}", run(seed));
        return;
    }
    let wanted = number("MILLRACE_SIMULATION_STEPS");
    let begun = Instant::now();
    let mut all = run::Counts::default();
    for seed in 0.. {
        let enough = match wanted {
            Some(steps) => all.steps >= steps,
            None => begun.elapsed() >= Duration::from_secs(1),
        };
        if enough {
            break;
        }
        all += run(seed);
    }
    println!("{all:?} in {:?}", begun.elapsed());
    // It must have met what it is about.
    let met = [
        all.moves,
        all.held,
        all.retried,
        all.drained,
        all.lost_transactions,
        all.conflicts,
        all.overtaken,
        all.given_up,
        all.no_room,
        all.served,
        all.unserved,
        all.left,
    ];
    assert!(met.iter().all(|count| *count > 0), "{all:?}");
}

/// A worker whose sessions wait is given the place of what another does not use: at once what was
/// idle when the wait began, and what falls idle later once it was for a whole second.
#[test]
fn a_worker_that_waits_is_given_what_another_does_not_use() {
    for idle_before in [true, false] {
        in_simulated_time(async {
            let servers = Rc::new(RefCell::new(Servers::new(1)));
            let connections = Connections::new(servers, 1, CONNECTIONS, Limit::Auto);
            // Sessions with odd numbers are the second worker's.
            let take = |session: usize| {
                let pool = connections.pool(session, 0);
                let state = connections.state();
                async move { pool.take(session as u64 + 1, &state, 0).await }
            };
            let mut leases = Vec::new();
            for session in [0, 1, 5, 9] {
                leases.push(take(session).await.expect("a connection"));
            }
            let other = leases.swap_remove(0);
            let mut other = Some(other);
            if idle_before {
                other.take().expect("a lease").give_back();
            }
            let waits = tokio::task::spawn_local(take(13));
            tokio::task::yield_now().await;
            assert_eq!(connections.outstanding(13), [4], "who waits counts");
            connections.wake_workers();
            if let Some(other) = other {
                other.give_back();
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert!(!waits.is_finished(), "the other worker keeps its own");
                for second in [1, 2] {
                    connections.sweep(second);
                    connections.wake_workers();
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(waits.is_finished(), "it has been given up");
            assert!(waits.await.expect("it ran").is_ok());
            connections.check(|_, _| 0);
        });
    }
}

/// A connection whose opening panics keeps nobody waiting, and its place is free again.
#[test]
fn an_opening_that_panics_has_failed() {
    in_simulated_time(async {
        let servers = Rc::new(RefCell::new(Servers::new(1)));
        let connections = Connections::new(servers, 1, CONNECTIONS, Limit::Auto);
        let (pool, state) = (connections.pool(0, 0), connections.state());
        connections.panic_next();
        let before = tokio::time::Instant::now();
        assert!(pool.take(1, &state, 0).await.is_err());
        assert_eq!((before.elapsed(), pool.opening()), (Duration::ZERO, 0));
        connections.check_rest();
        let lease = pool.take(1, &state, 0).await;
        lease.expect("a connection").give_back();
        connections.check_rest();
    });
}

/// A connection that logs in anew keeps its place. It is free again where that fails, or its session gives up meanwhile.
#[test]
fn who_logs_in_anew_keeps_the_place() {
    in_simulated_time(async {
        let servers = Rc::new(RefCell::new(Servers::new(1)));
        let connections = Connections::new(servers, 1, CONNECTIONS, Limit::Auto);
        let (pool, state) = (connections.pool(0, 0), connections.state());
        let mut lease = pool.take(1, &state, 0).await.expect("a connection");
        let before = lease.thread_id;
        lease.open_anew().await.expect("another connection");
        assert_ne!(lease.thread_id, before);
        lease.give_back();
        connections.check_rest();
        let mut lease = pool.take(1, &state, 0).await.expect("a connection");
        connections.panic_next();
        assert!(lease.open_anew().await.is_err());
        drop(lease);
        connections.check_rest();
        let mut lease = pool.take(1, &state, 0).await.expect("a connection");
        let given_up = tokio::time::timeout(Duration::ZERO, lease.open_anew()).await;
        assert!(given_up.is_err(), "an opening takes a moment");
        drop(lease);
        connections.check_rest();
        let mut leases = Vec::new();
        for session in 0..CONNECTIONS as u64 {
            leases.push(pool.take(session + 1, &state, 0).await.expect("all places"));
        }
    });
}

/// A connection that another session took and gave back as it was: who may still ask about it does not wait for that.
#[test]
fn what_is_given_back_unsaved_is_not_waited_for() {
    in_simulated_time(async {
        let servers = Rc::new(RefCell::new(Servers::new(1)));
        let connections = Connections::new(servers, 1, CONNECTIONS, Limit::Auto);
        let (pool, state) = (connections.pool(0, 0), connections.state());
        let store = Rc::new(DiagnosticsStore::default());
        let mut lease = pool.take(1, &state, 0).await.expect("a connection");
        lease.books.ran(1, 1, &store, false);
        lease.books.has_messages(true);
        lease.give_back();
        let lease = pool.take(2, &state, 0).await.expect("the same");
        assert!(store.is_saving());
        lease.give_back();
        assert!(!store.is_saving());
    });
}

/// A KILL is for what others wait for: it does not wait for the server to have fewer statements.
#[test]
fn a_kill_takes_what_is_idle_although_the_server_has_enough_to_do() {
    in_simulated_time(async {
        let servers = Rc::new(RefCell::new(Servers::new(1)));
        let connections = Connections::new(servers, 1, CONNECTIONS, Limit::At(1));
        let (pool, state) = (connections.pool(0, 0), connections.state());
        let first = pool.take(1, &state, 0).await.expect("a connection");
        // After two turns the first counts no more.
        let second = pool.take(2, &state, 0).await.expect("a connection");
        first.give_back();
        assert_eq!(pool.idle(), 1);
        let third = pool.try_take(&CheckoutRequest::new(3, &state, 0));
        assert!(third.is_none(), "one runs");
        let before = tokio::time::Instant::now();
        let kill = pool.take_to_kill(4, &state).await.expect("a connection");
        assert_eq!((before.elapsed(), pool.idle()), (Duration::ZERO, 0));
        drop((second, kill));
    });
}

/// A worker that has less than its share is given of what comes free in another, although sessions wait
/// there too.
#[test]
fn an_overloaded_worker_keeps_nobody_out() {
    in_simulated_time(async {
        let servers = Rc::new(RefCell::new(Servers::new(1)));
        let connections = Connections::new(servers, 1, CONNECTIONS, Limit::Auto);
        let take = |session: usize| {
            let pool = connections.pool(session, 0);
            let state = connections.state();
            async move { pool.take(session as u64 + 1, &state, 0).await }
        };
        let mut leases = Vec::new();
        for session in [1, 5, 9, 13] {
            leases.push(take(session).await.expect("a connection"));
        }
        let others: Vec<_> = (17..60)
            .step_by(4)
            .map(|session| tokio::task::spawn_local(take(session)))
            .collect();
        let waits = tokio::task::spawn_local(take(0));
        tokio::task::yield_now().await;
        connections.wake_workers();
        assert!(!waits.is_finished(), "all are taken");
        leases.pop().expect("a lease").give_back();
        connections.wake_workers();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(waits.is_finished(), "its share is its own");
        let lease = waits.await.expect("it ran").expect("a connection");
        // Within the other's share all goes on as ever.
        leases.pop().expect("a lease").give_back();
        leases.pop().expect("a lease").give_back();
        connections.wake_workers();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(others.iter().any(|other| other.is_finished()));
        connections.check(|_, _| 4);
        drop(lease);
    });
}

/// One connection, sessions of both workers that want it all the time: it goes round.
#[test]
fn fewer_connections_than_workers_go_round() {
    in_simulated_time(async {
        let servers = Rc::new(RefCell::new(Servers::new(1)));
        let connections = Rc::new(Connections::new(servers, 1, 1, Limit::Auto));
        let served: Rc<[Cell<u32>; 4]> = Rc::default();
        for session in 0..4 {
            let (connections, served) = (connections.clone(), served.clone());
            tokio::task::spawn_local(async move {
                let pool = connections.pool(session, 0);
                let state = connections.state();
                loop {
                    let lease = pool.take(session as u64 + 1, &state, 0).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    // The model's servers are full now and then.
                    if let Ok(lease) = lease {
                        served[session].set(served[session].get() + 1);
                        lease.give_back();
                    }
                }
            });
        }
        for _ in 0..10_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            connections.wake_workers();
        }
        assert!(served.iter().all(|times| times.get() > 10), "{served:?}");
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(42), run(42));
    assert_ne!(run(42), run(43));
}
