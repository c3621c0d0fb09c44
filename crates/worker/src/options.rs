//! What can be set about sessions.

use std::collections::HashMap;
use std::time::Duration;

use millrace_engine::options::FailoverOptions;
use millrace_routing::{Consistency, Options as RoutingOptions};

/// Limits and behaviour of sessions.
#[derive(Debug, Clone)]
pub struct Options {
    /// Most clients at once, over all workers.
    pub max_clients: usize,
    /// Most clients of one address at once; 0: no limit.
    pub clients_per_address: usize,
    /// The longest command, in bytes.
    pub max_packet: usize,
    /// From connect to the end of the login.
    pub login_timeout: Duration,
    /// Bytes of long data kept for a session's prepared statements.
    pub max_long_data: usize,
    /// Prepared statements open per session.
    pub max_prepared_statements: usize,
    /// What reads are guaranteed to see.
    pub consistency: Consistency,
    /// The same for some accounts, by name.
    pub levels: HashMap<Box<[u8]>, Consistency>,
    /// How a server is chosen.
    pub routing: RoutingOptions,
    /// How long an address's first slowed-down failure is held back.
    pub failure_delay: Duration,
    /// The longest that a failure is held back.
    pub failure_delay_max: Duration,
    /// Failures of an address that are answered at once.
    pub failures_free: u32,
    /// After this an address's failures are forgotten.
    pub failure_memory: Duration,
    /// Whether accounts' hosts are compared with clients' addresses.
    pub hosts: Hosts,
    /// What becomes of statements when a server is lost or moves.
    pub failover: FailoverOptions,
}

/// What the host of an account (`'app'@'10.0.%'`) says of clients. Servers see Millrace's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hosts {
    /// The account has to be the one for the client's address, where the accounts can be read.
    #[default]
    Check,
    /// Nothing.
    Ignore,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_clients: 10_000,
            clients_per_address: 0,
            max_packet: 64 << 20,
            login_timeout: Duration::from_secs(10),
            max_long_data: 64 << 20,
            max_prepared_statements: 16_382,
            consistency: Consistency::default(),
            levels: HashMap::new(),
            routing: RoutingOptions::default(),
            failure_delay: Duration::from_millis(100),
            failure_delay_max: Duration::from_secs(5),
            failures_free: 3,
            failure_memory: Duration::from_secs(60),
            hosts: Hosts::default(),
            failover: FailoverOptions::default(),
        }
    }
}
