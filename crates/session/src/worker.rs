//! The worker as sessions know it.

use crate::login::verifiers::Verifiers;

/// One thread's worker, which serves its clients by sessions.
pub type Worker = millrace_worker::Worker<Verifiers>;
