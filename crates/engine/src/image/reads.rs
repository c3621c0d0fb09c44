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

/// What was shown by another than the primary, which may show it later.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// The primary of then, where there was one.
    pub primary: Option<ServerId>,
    /// Questions to it that were begun before are too old (`Positions::mark` of the crate backend).
    pub mark: u64,
    /// The replica that has shown it; none where it was memory.
    pub by: Option<LastRead>,
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
    served_since: bool,
    /// How often it has asked how far that server is.
    pub asked: u8,
    /// In a cluster: the node that has all that the session has been shown, where that is the primary; else
    /// one that the primary may lack something of.
    pub shown_by: Option<ServerId>,
    /// What others than the primary have shown, as long as it is not known that the primary shows it too.
    pub ahead: Option<Ahead>,
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
            ahead: None,
            home: None,
            primary_position: None,
            projected: None,
        }
    }

    /// A login: where it read before says nothing of what comes.
    pub fn begin(&mut self) {
        (self.seen, self.home, self.shown_by) = (None, None, None);
        self.ahead = None;
    }

    /// A server has answered; how far it was then is not known yet.
    pub fn answered_by(&mut self, server: ServerId, mark: u64, incarnation: u32) {
        let before = self.seen.filter(|before| before.server == server);
        self.served_since = false;
        self.seen = Some(LastRead {
            server,
            mark,
            incarnation,
            reads: before.map_or(1, |before| before.reads.saturating_add(1)),
        });
    }

    /// Memory has shown what is in `seen`.
    pub fn shown_out_of_memory(&mut self, seen: &GtidSet) {
        self.served_since = true;
        self.position.union(seen);
    }

    /// It is known now how far the primary was when the session read there last.
    pub fn primary_was_at(&mut self, visible: &GtidSet) {
        if self.served_since {
            // What memory has shown since may be newer than that answer.
            self.position.union(visible);
            return;
        }
        // Whatever was required before and is not here is nowhere: a transaction of some replica's own, or one
        // that was lost with an old primary.
        self.position = visible.clone();
        // Something may have been written there since.
        self.written_seen = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> GtidSet {
        GtidSet::parse(Family::MySql, text.as_bytes()).expect("a set")
    }

    const SOURCE: &str = "11111111-1111-1111-1111-111111111111";
    const OTHER: &str = "22222222-2222-2222-2222-222222222222";

    fn reads(position: &str) -> Reads {
        let mut reads = Reads::new(Family::MySql, Consistency::Session);
        reads.position = set(position);
        reads.written_seen = 7;
        reads
    }

    #[test]
    fn what_the_primary_has_shown_replaces_what_was_required() {
        let mut reads = reads(&format!("{OTHER}:1-5"));
        reads.answered_by(ServerId(0), 1, 0);
        reads.primary_was_at(&set(&format!("{SOURCE}:1-10")));
        assert_eq!(reads.position, set(&format!("{SOURCE}:1-10")));
        assert_eq!(reads.written_seen, 0);
    }

    #[test]
    fn what_memory_has_shown_after_the_primary_stays_required() {
        let mut reads = reads("");
        reads.answered_by(ServerId(0), 1, 0);
        reads.shown_out_of_memory(&set(&format!("{SOURCE}:1-12")));
        reads.primary_was_at(&set(&format!("{SOURCE}:1-10")));
        assert_eq!(reads.position, set(&format!("{SOURCE}:1-12")));
    }

    #[test]
    fn the_primary_after_memory_shows_all_again() {
        let mut reads = reads("");
        reads.answered_by(ServerId(0), 1, 0);
        reads.shown_out_of_memory(&set(&format!("{OTHER}:1")));
        reads.answered_by(ServerId(0), 2, 0);
        assert_eq!(reads.seen.map(|seen| seen.reads), Some(2));
        reads.primary_was_at(&set(&format!("{SOURCE}:1-12")));
        assert_eq!(reads.position, set(&format!("{SOURCE}:1-12")));
    }
}
