//! What can be set about failover.

use std::time::Duration;

/// What becomes of statements when a server is lost or moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailoverOptions {
    /// How long a statement waits for a server that can run it; 0: not at all.
    pub hold_time: Duration,
    /// Most statements that wait at once, over all workers.
    pub max_held: usize,
    /// Most bytes of their commands together.
    pub max_held_bytes: usize,
    /// How often a read is sent again whose connection broke while it ran: one that ends its
    /// server is not to end them all.
    pub retries: u32,
    /// Most statements of a transaction that is run again on another server; 0: none is.
    pub max_replay_statements: usize,
    /// Most bytes of its commands together.
    pub max_replay_bytes: usize,
    /// Most bytes that are kept for that of all open transactions together, over all workers.
    pub max_replay_total_bytes: usize,
    /// How old a transaction may be, from its first answer, to be run again.
    pub max_replay_time: Duration,
    /// How long transactions may go on on a server that is drained.
    pub drain_time: Duration,
}

impl Default for FailoverOptions {
    fn default() -> Self {
        FailoverOptions {
            hold_time: Duration::from_secs(30),
            max_held: 10_000,
            max_held_bytes: 64 << 20,
            retries: 2,
            max_replay_statements: 1000,
            max_replay_bytes: 1 << 20,
            max_replay_total_bytes: 256 << 20,
            max_replay_time: Duration::from_secs(60),
            drain_time: Duration::from_secs(10),
        }
    }
}
