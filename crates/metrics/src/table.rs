//! Every metric's name, type, labels and meaning: what is collected and what docs/metrics.md
//! lists. Holds no values.

use std::fmt::Write;

/// A metric's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations in buckets, in seconds.
    Histogram,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// Its name. A counter is exported with `_total` behind it.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its labels' names.
    pub labels: &'static [&'static str],
    /// What it says, without a full stop.
    pub help: &'static str,
}

/// Makes a definition.
pub const fn define(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        labels,
        help,
    }
}

macro_rules! table {
    ($($ident:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(crate) const $ident: &Definition =
            &define($name, Kind::$kind, &[$($label),*], $help);)+
        /// Every metric, in the order of export.
        pub const TABLE: &[&Definition] = &[$($ident),+];
    };
}

table! {
    CLIENTS = Gauge "millrace_clients" [] "Clients connected";
    CLIENT_CONNECTIONS = Counter "millrace_client_connections" []
        "Client connections accepted";
    LOGINS = Counter "millrace_logins" ["outcome"] "Logins by how they ended";
    RECEIVED = Counter "millrace_client_received_bytes" [] "Bytes read from clients";
    SENT = Counter "millrace_client_sent_bytes" [] "Bytes written to clients";
    STATEMENTS = Counter "millrace_statements" ["server", "kind"]
        "Statements ended, by the server that ran them (local: Millrace itself)";
    DURATION = Histogram "millrace_statement_duration_seconds" ["server", "kind"]
        "From a statement's last byte read to its answer's last byte written";
    ERRORS = Counter "millrace_errors" ["side", "class"]
        "Errors sent to clients, by whose fault and which kind";
    RETRIES = Counter "millrace_retries" ["kind"] "Statements tried again without the client's notice";
    HELD = Gauge "millrace_statements_held" []
        "Statements that wait for a server that can run them";
    REPLAY_FAILURES = Counter "millrace_replay_failures" ["reason"]
        "Transactions that lost their server and were not run again on another";
    COALESCING = Gauge "millrace_coalesce_delay_seconds" []
        "How long workers wait for more to do before they sleep: 0 where CPU is not scarce";
    PINS = Gauge "millrace_pins" ["reason"] "Sessions that keep a server connection";
    PINS_BEGUN = Counter "millrace_pins_begun" ["reason"] "Pins begun";
    POOL_CONNECTIONS = Gauge "millrace_pool_connections" ["server", "state"]
        "Server connections open, idle or leased to a session";
    POOL_OPENED = Counter "millrace_pool_connections_opened" ["server"]
        "Server connections opened";
    POOL_CLOSED = Counter "millrace_pool_connections_closed" ["server"]
        "Server connections closed";
    POOL_FAILED = Counter "millrace_pool_connect_failures" ["server"]
        "Server connections that could not be opened";
    POOL_CONCURRENCY = Gauge "millrace_pool_concurrency" ["server"]
        "Statements that the server runs at once before others wait, 0 for no limit";
    POOL_WAITS = Counter "millrace_pool_waits" ["server", "outcome"]
        "Waits for a server connection, by how they ended";
    POOL_WAIT_SECONDS = Counter "millrace_pool_wait_seconds" ["server"]
        "Time spent in waits for a server connection";
    READS_BY_TABLE = Counter "millrace_reads_by_table" []
        "Reads that were held to what touches their tables and keys, as not all servers had the rest";
    POSITION_WAITS = Counter "millrace_position_waits" ["server", "outcome"]
        "Waits for a replica to reach a session's position, by how they ended";
    RULE_MATCHES = Counter "millrace_rule_matches" ["rule"]
        "Statements that a rule for query routing matched";
    SERVER_UP = Gauge "millrace_server_up" ["server"] "1 where the server answers, else 0";
    SERVER_FIT = Gauge "millrace_server_fit" ["server"] "1 where the server takes reads, else 0";
    SERVER_PRIMARY = Gauge "millrace_server_primary" ["server"]
        "1 where the server takes writes, else 0";
    SERVER_DRAINING = Gauge "millrace_server_draining" ["server"]
        "1 where an operator took the server out of use, else 0";
    SERVER_LAG = Gauge "millrace_server_lag_seconds" ["server"]
        "A replica's lag as last reported; missing while it is not known";
    WITHOUT_PRIMARY = Gauge "millrace_without_primary" ["reason"]
        "1 for the reason why no server takes writes now; 0 for all of them where one does";
    PRIMARY_CHANGES = Counter "millrace_primary_changes" []
        "Changes of the server that takes writes, to none and from none included";
    FAILOVERS = Counter "millrace_failovers" ["kind"]
        "Losses of the primary: lost, planned (it was made read only), drained, or conflict";
    FAILOVER_STATEMENTS = Counter "millrace_failover_statements" ["outcome"]
        "Statements and open transactions that met a change of primary, by what became of them";
    LAST_PAUSE = Gauge "millrace_failover_last_pause_seconds" []
        "How long no server took writes the last time; missing before the first time";
    CACHE_HITS = Counter "millrace_cache_hits" [] "Answers out of memory";
    CACHE_MISSES = Counter "millrace_cache_misses" ["reason"]
        "Look-ups of the cache without an answer";
    CACHE_FILLS = Counter "millrace_cache_fills" [] "Results that were kept in memory";
    CACHE_VERIFIED = Counter "millrace_cache_verified" []
        "Answers out of memory that were read from a server too, and compared (cache.verify)";
    CACHE_DIFFERENCES = Counter "millrace_cache_verify_differences" []
        "Those of them that were not what the server answered; must stay 0";
    CACHE_WAITS = Counter "millrace_cache_waits" ["outcome"]
        "Statements that waited for a result that another session read: served with it, or sent to a server";
    CACHE_INVALIDATIONS = Counter "millrace_cache_invalidations" ["cause"]
        "Results that were removed from memory";
    CACHE_RESULTS = Gauge "millrace_cache_results" [] "Results in memory";
    CACHE_BYTES = Gauge "millrace_cache_bytes" [] "Memory of the cache in use";
    CACHE_SILENCE = Gauge "millrace_cache_follower_silence_seconds" []
        "Since the last word of the primary's binary log; missing while it is not followed";
    FOLLOWER_LAG = Gauge "millrace_cache_follower_lag_seconds" []
        "How old the last transaction of the log was when it was taken in; 0 where all is; missing while it is not followed";
    FOLLOWER_TRANSACTIONS = Counter "millrace_cache_follower_transactions" []
        "Transactions of the log that were taken in";
    FOLLOWER_BYTES = Counter "millrace_cache_follower_received_bytes" [] "What the primary has sent of its log";
    FOLLOWER_STREAMS = Counter "millrace_cache_follower_streams" []
        "Times that a server was asked for its log";
    FOLLOWER_DROPS = Counter "millrace_cache_follower_drops" []
        "Times that all exact results were dropped, because the log could not be followed on";
    FOLLOWER_DEFINITIONS = Counter "millrace_cache_definitions_read" []
        "Times that the definitions of tables were read";
}

/// A table as docs/metrics.md shows it.
pub fn markdown(table: &[&Definition]) -> String {
    let mut text = String::from("| name | type | labels | meaning |\n|---|---|---|---|\n");
    for metric in table {
        let suffix = if metric.kind == Kind::Counter {
            "_total"
        } else {
            ""
        };
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}{suffix}` | {} | {} | {} |",
            metric.name,
            metric.kind.as_str(),
            labels.join(", "),
            metric.help
        );
    }
    text
}
