//! The small names that everything else here uses. Knows no rule.

use std::fmt;

/// So many servers a process knows in its life, those that are gone included: an index is never used
/// again. A limit, so that a list of servers that changes all the time cannot grow without one.
pub const SERVERS_EVER: usize = 1024;

/// A server, as its index in the list of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u16);

impl ServerId {
    /// The index into `Snapshot::servers` and every other list kept per server.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A point in time: milliseconds since an origin that the caller chooses and keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub u64);

impl Millis {
    /// Milliseconds from `earlier` to here, 0 where `earlier` is later.
    pub fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
