//! How many questions of the monitor's account wait for their answers. A server whose client closes in the middle of
//! an answer counts an aborted connection, so what asks is ended between two questions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Those of one process. Copies count together.
#[derive(Debug, Clone, Default)]
pub struct Questions(Arc<AtomicUsize>);

impl Questions {
    /// So many were put.
    pub(crate) fn put(&self, count: usize) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// So many were answered, or given up.
    pub(crate) fn end(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// None waits for its answer at this moment.
    pub fn are_answered(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}
