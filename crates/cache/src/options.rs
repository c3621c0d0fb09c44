//! What can be set.

use std::time::Duration;

/// Limits of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of entries, keys, interest and bookkeeping together.
    pub memory: usize,
    /// Most bytes of one result.
    pub entry_max: usize,
    /// For how long nothing may be heard of the log before nothing is served.
    pub max_silence: Duration,
    /// Most statements that wait for one fill.
    pub waiters_max: u32,
    /// A statement is waited for only if a server has spent at least this on it. A wait takes about 5 ms more than a
    /// server does (`PLACED` in `store/fill.rs`): so a quarter more at most.
    pub wait_cost_min: Duration,
    /// The longest wait for a fill.
    pub wait_max: Duration,
    /// After this a fill that has not ended no longer keeps others from filling.
    pub fill_max: Duration,
    /// Most fills at once.
    pub fills_max: usize,
    /// Changes that are kept by key for each table; older ones count for the whole table.
    pub changes_by_key_max: usize,
    /// Most digests of statements of which figures are kept.
    pub statements_max: usize,
    /// Most prepared XA transactions whose changes are kept until they are committed.
    pub prepared_max: usize,
    /// A key is filled only when it was asked for before.
    pub second_use: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            entry_max: 1 << 20,
            max_silence: Duration::from_secs(1),
            waiters_max: 64,
            wait_cost_min: Duration::from_millis(20),
            wait_max: Duration::from_millis(500),
            fill_max: Duration::from_secs(10),
            fills_max: 256,
            changes_by_key_max: 256,
            statements_max: 1000,
            prepared_max: 100,
            second_use: true,
        }
    }
}
