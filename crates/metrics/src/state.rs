//! What is known of the servers, as the metrics show it.

/// What is known of a server, for the metrics about servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    /// Its address.
    pub name: String,
    /// It answers.
    pub up: bool,
    /// It takes reads.
    pub fit: bool,
    /// It takes writes.
    pub primary: bool,
    /// An operator took it out of use.
    pub draining: bool,
    /// It is no longer part of the topology, and is shown no more.
    pub gone: bool,
    /// Its lag, where it is known.
    pub lag_seconds: Option<u64>,
}

/// What is known of the primary, and of how it has changed since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrimaryState {
    /// Why no server takes writes, 1 for the reason that holds now; all 0 where one does.
    pub without: Vec<(&'static str, u64)>,
    /// Losses of the primary, by kind.
    pub failovers: Vec<(&'static str, u64)>,
    /// Statements that met one, by what became of them.
    pub statements: Vec<(&'static str, u64)>,
    /// How often the server that takes writes has changed; also to none, and from none.
    pub changes: u64,
    /// How long no server took writes the last time, in milliseconds.
    pub last_pause_ms: Option<u64>,
}

/// What the cache has done since the start. All 0 where it is off.
#[derive(Debug, Clone, Default)]
pub struct CacheState {
    /// Answers out of memory.
    pub hits: u64,
    /// Look-ups without one, by reason.
    pub misses: Vec<(String, u64)>,
    /// Results that were kept.
    pub fills: u64,
    /// Answers that were read again, and compared.
    pub verified: u64,
    /// Those of them that differed. Must be 0.
    pub differences: u64,
    /// Waits for another session's fill.
    pub waits: u64,
    /// Those of them that were served with its result.
    pub waits_served: u64,
    /// Results that were removed, by cause.
    pub invalidations: Vec<(String, u64)>,
    /// Results there are.
    pub results: u64,
    /// Memory in use.
    pub bytes: u64,
    /// Seconds since the last word of the log; none where it is not followed.
    pub silence: Option<f64>,
    /// What its follower does.
    pub follower: FollowerState,
}

/// The follower of the primary's binary log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FollowerState {
    /// By how many seconds the last transaction was old when it was taken in; none where no log is followed.
    pub lag: Option<u64>,
    /// Transactions that were taken in.
    pub transactions: u64,
    /// Bytes of the log.
    pub bytes: u64,
    /// Streams that were begun.
    pub streams: u64,
    /// Times that all exact results were dropped.
    pub drops: u64,
    /// Times that definitions of tables were read.
    pub definitions: u64,
}
