use std::cell::Cell;
use std::rc::Rc;

use tokio::task::LocalSet;

use super::eye::{Abandoned, Writes};
use super::*;

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
