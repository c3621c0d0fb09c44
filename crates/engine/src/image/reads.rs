//! What a session's reads must see, and where it has read.

use std::sync::Arc;

use millrace_routing::Consistency;
use millrace_sql::Family;
use millrace_topology::{GtidSet, ServerId};

/// Where a session has read last, as long as nobody knows how far the server was then.
#[derive(Debug, Clone, Copy)]
pub struct LastRead {
    /// The server.
    pub server: ServerId,
    /// See `Positions::mark` in the crate backend.
    pub mark: u64,
    /// Of the server, as far as it is known.
    pub incarnation: u32,
    /// Reads there one after the other.
    pub reads: u32,
}

/// The level, the position, and what was read where.
pub struct Reads {
    /// What reads are guaranteed to see.
    pub level: Consistency,
    /// What the session began with.
    pub level_given: Consistency,
    /// What a read must have seen.
    pub position: GtidSet,
    /// How much of what was written through this process is in it, by `Written`'s count.
    pub written_seen: u64,
    /// Something was written whose position will not be known.
    pub unknown: bool,
    /// Something was written whose position was not told: it is asked for at the next chance.
    pub stale: bool,
    /// Where it has read last, until it is known how far that server was.
    pub seen: Option<LastRead>,
    /// Since then it was served out of memory: the position may have more than that server had shown.
    pub served_since: bool,
    /// How often it has asked how far that server is.
    pub asked: u8,
    /// In a cluster: the node that has all that the session has been shown, where that is the primary; else
    /// one that the primary may lack something of.
    pub shown_by: Option<ServerId>,
    /// The server of its last read.
    pub home: Option<ServerId>,
    /// How far the primary was when the statement under way began, where that was asked.
    pub primary_position: Option<Arc<GtidSet>>,
    /// What of the position the statement under way needs, by its tables and keys, where that is less.
    pub projected: Option<Box<GtidSet>>,
}

impl Reads {
    /// Of a session that has seen nothing.
    pub(super) fn new(family: Family, level: Consistency) -> Reads {
        Reads {
            level: Consistency::default(),
            level_given: level,
            position: GtidSet::new(family),
            written_seen: 0,
            unknown: false,
            stale: false,
            seen: None,
            served_since: false,
            asked: 0,
            shown_by: None,
            home: None,
            primary_position: None,
            projected: None,
        }
    }

    /// A login: where it read before says nothing of what comes.
    pub fn begin(&mut self) {
        (self.seen, self.home, self.shown_by) = (None, None, None);
    }
}
