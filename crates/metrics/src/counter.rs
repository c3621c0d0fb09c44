//! A counter that one thread changes and others read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Adds to a counter that nobody else writes: each worker has its own. So that needs no locked
/// instruction, of which a statement would take ten.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}
