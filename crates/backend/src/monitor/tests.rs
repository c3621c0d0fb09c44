use std::cell::Cell;
use std::rc::Rc;

use millrace_topology::Options;
use tokio::task::LocalSet;

use super::run::keep;
use super::watcher::{Abandoned, Limit, ServerWatcher, Writes, asks_for_stall};
use super::*;
use crate::clock::Clock;
use crate::connect::Network;
use crate::error::BackendError;
use crate::names::Resolver;
use crate::questions::Questions;
use crate::secret::Secret;
use crate::tcp::TcpOptions;
use crate::tls::{ServerTls, ServerTlsFiles, ServerTlsMode};

const SECOND: Duration = Duration::from_secs(1);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

#[test]
fn what_panics_is_begun_anew() {
    let begun = Rc::new(Cell::new(0));
    let counted = begun.clone();
    let begin = move || {
        let counted = counted.clone();
        async move {
            counted.set(counted.get() + 1);
            assert_eq!(counted.get(), 2, "the first time it panics");
        }
    };
    LocalSet::new().block_on(&runtime(), keep("a test", begin));
    assert_eq!(begun.get(), 2, "and what ends is not begun again");
}

#[test]
fn a_server_that_hangs_is_asked_more_and_more_seldom() {
    let now = Instant::now();
    let mut abandoned = Abandoned::default();
    let pauses: Vec<Option<u32>> = (1..=30)
        .map(|thread| {
            abandoned.add(thread, now);
            Some(abandoned.pause(SECOND)?.as_secs() as u32)
        })
        .collect();
    assert_eq!(pauses[..4], [None, None, Some(3), Some(4)]);
    assert_eq!(pauses[18..22], [Some(19), Some(20), Some(20), Some(20)]);
}

#[test]
fn quiet_is_a_primary_in_use_that_ends_nothing_but_reads() {
    let start = Instant::now();
    let counts = |answered, read, leased| Counts {
        answered,
        read,
        leased,
    };
    let mut writes = Writes::default();
    let mut quiet = |counts, seconds| writes.quiet(true, counts, start + SECOND * seconds);
    assert_eq!(quiet(counts(10, 4, 1), 0), Duration::ZERO);
    assert_eq!(quiet(counts(20, 14, 1), 3), SECOND * 3, "reads alone");
    assert_eq!(quiet(counts(21, 14, 1), 4), Duration::ZERO);
    assert_eq!(quiet(counts(21, 14, 0), 5), Duration::ZERO, "unused");
    // Counted while a read ends: one of the two is newer.
    assert_eq!(quiet(counts(0, 1, 1), 6), Duration::ZERO);
    assert_eq!(
        writes.quiet(false, counts(0, 0, 1), start + SECOND * 9),
        Duration::ZERO
    );
}

#[test]
fn stuck_commits_are_asked_for_as_long_as_there_were_some() {
    assert!(!asks_for_stall(SECOND * 2, SECOND / 2, false));
    assert!(asks_for_stall(SECOND * 2, SECOND, false));
    assert!(asks_for_stall(SECOND * 2, Duration::ZERO, true));
    assert!(!asks_for_stall(Duration::ZERO, SECOND, true));
}

/// A watcher of a server that has answered clients `step` times more whenever somebody looks.
fn watcher(step: u64) -> ServerWatcher {
    let answered = std::sync::atomic::AtomicU64::new(0);
    let counts = move |_| Counts {
        answered: answered.fetch_add(step, std::sync::atomic::Ordering::Relaxed),
        ..Counts::default()
    };
    let limit = Duration::from_millis(20);
    let options = MonitorOptions {
        user: "monitor".into(),
        password: Secret::new(Vec::new()),
        interval: SECOND,
        urgent_interval: SECOND,
        timeout: limit,
        connect_timeout: limit,
        position_interval: SECOND,
        catalogue_interval: SECOND,
        catalogue_queries: |_| ["", "", "", ""],
        topology: Options::default(),
        commit_stall: SECOND,
        max_login_age: SECOND,
        traffic: Some(Traffic(Arc::new(counts))),
    };
    let tls = ServerTls::new(ServerTlsMode::Disabled, &ServerTlsFiles::default());
    ServerWatcher {
        monitor: Monitor::new(&options, Vec::new(), &[]),
        id: ServerId(0),
        options: Arc::new(options),
        network: Arc::new(Network {
            tls: tls.expect("no files are needed"),
            tcp: TcpOptions::default(),
            resolver: Resolver::default(),
            questions: Questions::default(),
        }),
        clock: Rc::new(Clock::new(Instant::now())),
    }
}

#[test]
fn who_answers_clients_and_not_us_is_slow_also_while_we_connect() {
    let never = std::future::pending::<Result<(), BackendError>>;
    // As connecting says it, just before our own time is up.
    let gives_up = || async {
        tokio::time::sleep(Duration::from_millis(15)).await;
        Err::<(), _>(BackendError::Timeout("monitor.connect_timeout"))
    };
    // On a clock of its own: a machine that is busy would be late.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for limit in [Limit::Connect, Limit::Answers] {
            let slow = watcher(1).within(limit, never()).await;
            assert!(matches!(slow, Err(BackendError::Limit(_))), "{slow:?}");
            let dead = watcher(0).within(limit, never()).await;
            assert!(matches!(dead, Err(BackendError::Timeout(_))), "{dead:?}");
        }
        let slow = watcher(1).within(Limit::Connect, gives_up()).await;
        assert!(matches!(slow, Err(BackendError::Limit(_))), "{slow:?}");
        let dead = watcher(0).within(Limit::Connect, gives_up()).await;
        assert!(matches!(dead, Err(BackendError::Timeout(_))), "{dead:?}");
        let fine = watcher(0).within(Limit::Connect, async { Ok(7) }).await;
        assert!(matches!(fine, Ok(7)));
    });
}

#[test]
fn certificates_of_a_names_addresses_are_for_the_name() {
    let options = MonitorOptions::clone(&watcher(0).options);
    let db = Address::new("db".to_owned(), 3306);
    let monitor = Monitor::new(&options, vec![ServerSpec::new("db:3306")], &[db]);
    let addresses = vec!["10.0.0.1:3306".into(), "[fd00::1]:3306".into()];
    monitor.fold(ServerId(0), ObservationKind::Means { addresses }, |_| {});
    let world = monitor.world.borrow().clone();
    let found: Vec<&Address> = world.facts.iter().map(|facts| &facts.address).collect();
    assert_eq!(
        (&*found[1].host, found[1].name.as_deref()),
        ("10.0.0.1", Some("db"))
    );
    assert_eq!(
        (&*found[2].host, found[2].name.as_deref()),
        ("fd00::1", Some("db"))
    );
    assert!(!found[1].is_name() && found[0].name.is_none());
}
