//! Failover in simulation: random faults of servers from a seed, what is seen of them folded by the
//! real topology, statements placed by the real decision, and those that must wait kept by the real
//! queue. After each step the invariants hold; a seed that fails replays exactly.
//!
//! It stands here because the queue is this crate's, and the two others are below it. The clients,
//! the servers and the time are models.
//!
//! `MILLRACE_SIMULATION_STEPS=n` runs so many steps (default: a second of them),
//! `MILLRACE_SIMULATION_SEED=n` one seed.

mod random;
mod run;
mod servers;

use std::time::{Duration, Instant};

use run::Run;

/// Steps with one seed.
const STEPS: u64 = 2_000;

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
    let counts = Run::new(seed).steps(STEPS);
    drop(tell);
    counts
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
    ];
    assert!(met.iter().all(|count| *count > 0), "{all:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(42), run(42));
    assert_ne!(run(42), run(43));
}
