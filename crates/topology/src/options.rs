//! How servers are found and judged, and which there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ConfiguredRole;

/// How servers are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// A replica further behind than this takes no reads, in seconds. Default 30.
    pub lag_seconds_max: u64,
    /// A replica that runs more statements than this at once takes no reads until it runs fewer; 0: no
    /// number is too many. Default 0.
    pub running_max: u32,
    /// A server that takes reads again gets its full share of them only after this time, and a tenth
    /// to begin with, in milliseconds; 0: at once. Default 10,000.
    pub slow_start_ms: u64,
    /// So many failed probes in a row make a server down; a refused connection, or a server that
    /// never answered, needs one. Default 2.
    pub fail_after: u32,
    /// How servers are found; none: those that are configured are all there are.
    pub discovery: Option<DiscoveryOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lag_seconds_max: 30,
            running_max: 0,
            slow_start_ms: 10_000,
            fail_after: 2,
            discovery: None,
        }
    }
}

/// How servers are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryOptions {
    /// Most servers at a time; those beyond are left out. Default 32.
    pub servers_max: usize,
    /// A found server that does not answer and that nobody names is forgotten after this, in
    /// milliseconds. Default 10 minutes.
    pub forget_after_ms: u64,
    /// Addresses that servers name, and the addresses to connect to instead, both `host:port`.
    pub translate: BTreeMap<Box<str>, Box<str>>,
}

impl Default for DiscoveryOptions {
    fn default() -> Self {
        DiscoveryOptions {
            servers_max: 32,
            forget_after_ms: 600_000,
            translate: BTreeMap::new(),
        }
    }
}

impl DiscoveryOptions {
    /// Where to connect for an address that a server names.
    pub(crate) fn reachable<'a>(&'a self, named: &'a str) -> &'a str {
        self.translate.get(named).map_or(named, |there| there)
    }
}

/// A server as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpec {
    /// `host:port`, or the path of a socket.
    pub address: Arc<str>,
    /// The role it is given.
    pub role: ConfiguredRole,
    /// Its share of reads, relative to the others'; 0: none unless it is the primary.
    pub weight: u32,
    /// Its zone; empty where none is given.
    pub zone: Arc<str>,
}

impl ServerSpec {
    /// A server whose role is found by asking it.
    pub fn new(address: &str) -> Self {
        ServerSpec {
            address: address.into(),
            role: ConfiguredRole::Auto,
            weight: 1,
            zone: "".into(),
        }
    }
}
