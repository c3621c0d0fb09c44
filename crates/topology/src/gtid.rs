//! Positions: sets of global transaction identifiers of both families, and what stands for them where
//! servers have none. Parse, add, compare, print. Knows no server and no session.

mod log;
mod mariadb;
mod mysql;

use std::fmt;

pub use log::LogPosition;
pub use mariadb::MariaDbSet;
pub use mysql::MySqlSet;

use crate::Family;

/// A text that is no GTID or GTID set of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a {family} GTID set")]
pub struct GtidError {
    /// The family whose syntax was expected.
    pub family: Family,
}

/// A set of transactions: what a server has executed, or what a session must see.
///
/// A set that holds one source or domain with one interval, the usual one of a session, takes no
/// heap memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GtidSet {
    /// MySQL: intervals of transaction numbers per source (and tag).
    MySql(MySqlSet),
    /// MariaDB: the last sequence number per domain.
    MariaDb(MariaDbSet),
    /// MySQL without GTIDs: how far the log of one server is.
    Log(LogPosition),
    /// A Galera cluster: what this process has had it write, by this process's own count. Its nodes tell
    /// no position, but wait for all that was written anywhere before they were asked.
    Cluster(u64),
}

impl GtidSet {
    /// The empty set.
    pub fn new(family: Family) -> Self {
        match family {
            Family::MySql => GtidSet::MySql(MySqlSet::default()),
            Family::MariaDb => GtidSet::MariaDb(MariaDbSet::default()),
        }
    }

    /// Reads a set in the family's syntax.
    pub fn parse(family: Family, text: &[u8]) -> Result<Self, GtidError> {
        match family {
            Family::MySql => Self::parse_mysql(text),
            Family::MariaDb => Self::parse_mariadb(text),
        }
    }

    /// Reads what `@@gtid_executed` and session tracking report: `uuid:1-5:9:tag:1-3,uuid:7`.
    pub fn parse_mysql(text: &[u8]) -> Result<Self, GtidError> {
        MySqlSet::parse(text).map(GtidSet::MySql)
    }

    /// Reads what `@@gtid_current_pos` and `@@last_gtid` report: `0-1-42,1-2-7`.
    pub fn parse_mariadb(text: &[u8]) -> Result<Self, GtidError> {
        MariaDbSet::parse(text).map(GtidSet::MariaDb)
    }

    /// Binary-log coordinates as a server writes them: whose log it is by its server_uuid, `binlog.000123`,
    /// the offset. None where they are not understood.
    pub fn log(server: &str, file: &str, offset: u64) -> Option<Self> {
        LogPosition::new(server, file, offset).map(GtidSet::Log)
    }

    /// The family whose identifiers it holds.
    pub fn family(&self) -> Family {
        match self {
            GtidSet::MySql(_) | GtidSet::Log(_) => Family::MySql,
            GtidSet::MariaDb(_) | GtidSet::Cluster(_) => Family::MariaDb,
        }
    }

    /// Whether two positions are of one kind and, where they are coordinates, in one log.
    pub fn is_comparable(&self, other: &GtidSet) -> bool {
        match (self, other) {
            (GtidSet::Log(own), GtidSet::Log(other)) => own.is_comparable(other),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Adds what a session tracker reports. The set is unchanged where the text is wrong.
    pub fn insert_text(&mut self, text: &[u8]) -> Result<(), GtidError> {
        match self {
            GtidSet::MySql(set) => set.union(&MySqlSet::parse(text)?),
            GtidSet::MariaDb(set) => set.union(&MariaDbSet::parse(text)?),
            GtidSet::Log(_) | GtidSet::Cluster(_) => {
                return Err(GtidError {
                    family: self.family(),
                });
            }
        }
        Ok(())
    }

    /// Adds another set of the same family. A set of the other family replaces an empty one and
    /// is otherwise left out. Positions of one family that cannot be compared become one that no server
    /// has: a change of `gtid_mode`, or coordinates in the logs of two servers.
    pub fn union(&mut self, other: &GtidSet) {
        match (&mut *self, other) {
            (GtidSet::Log(own), GtidSet::Log(other)) => own.union(other),
            (GtidSet::Cluster(own), GtidSet::Cluster(other)) => *own = (*own).max(*other),
            (_, other) if other.is_empty() => {}
            (GtidSet::MySql(set), GtidSet::MySql(other)) => set.union(other),
            (GtidSet::MariaDb(set), GtidSet::MariaDb(other)) => set.union(other),
            (empty, other) if empty.is_empty() => *empty = other.clone(),
            (GtidSet::MySql(_), GtidSet::Log(_)) | (GtidSet::Log(_), GtidSet::MySql(_)) => {
                *self = GtidSet::Log(LogPosition::nowhere());
            }
            // A server that has joined a cluster or left it.
            (own, other) if own.family() == other.family() => *own = other.clone(),
            _ => {}
        }
    }

    /// Whether `next` is one transaction, and has the number that its source, or its domain, gives out next after some that
    /// are here: so that no other one can have been committed in between under that source.
    pub fn is_followed_by(&self, next: &GtidSet) -> bool {
        match (self, next) {
            (GtidSet::MySql(set), GtidSet::MySql(next)) => set.is_followed_by(next),
            (GtidSet::MariaDb(set), GtidSet::MariaDb(next)) => set.is_followed_by(next),
            _ => false,
        }
    }

    /// Leaves what `other` has too: nothing where the families differ.
    pub fn intersect(&mut self, other: &GtidSet) {
        match (&mut *self, other) {
            (GtidSet::MySql(set), GtidSet::MySql(other)) => set.intersect(other),
            (GtidSet::MariaDb(set), GtidSet::MariaDb(other)) => set.intersect(other),
            (GtidSet::Cluster(own), GtidSet::Cluster(other)) => *own = (*own).min(*other),
            (GtidSet::Log(own), GtidSet::Log(other)) if own.is_comparable(other) => {
                own.intersect(other);
            }
            _ => self.clear(),
        }
    }

    /// Of a MySQL set, leaves only sources that `other` has something of; any other set stays as it is.
    pub fn keep_sources_of(&mut self, other: &GtidSet) {
        if let (GtidSet::MySql(set), GtidSet::MySql(other)) = (self, other) {
            set.keep_sources_of(other);
        }
    }

    /// Leaves what `other` has not: of a MariaDB set the domains in which it is not as far.
    pub fn subtract(&mut self, other: &GtidSet) {
        match (&mut *self, other) {
            (GtidSet::MySql(set), GtidSet::MySql(other)) => set.subtract(other),
            (GtidSet::MariaDb(set), GtidSet::MariaDb(other)) => set.subtract(other),
            (own @ (GtidSet::Log(_) | GtidSet::Cluster(_)), other) if other.contains(own) => {
                own.clear();
            }
            _ => {}
        }
    }

    /// Leaves what `other` has not, of a MariaDB set only the domains of which it has nothing.
    pub(crate) fn leave_out_known(&mut self, other: &GtidSet) {
        match (&mut *self, other) {
            (GtidSet::MariaDb(set), GtidSet::MariaDb(other)) => set.leave_out_known(other),
            (set, other) => set.subtract(other),
        }
    }

    /// As [`GtidSet::contains`], but a MariaDB server may leave out domains of which it has nothing:
    /// they are filtered out, or older than its data.
    pub(crate) fn reaches(&self, other: &GtidSet) -> bool {
        match (self, other) {
            (GtidSet::MariaDb(set), GtidSet::MariaDb(other)) => set.reaches(other),
            _ => self.contains(other),
        }
    }

    /// Whether every transaction of `other` is here too. True for an empty `other`; false where
    /// the families differ.
    pub fn contains(&self, other: &GtidSet) -> bool {
        match (self, other) {
            (GtidSet::MySql(set), GtidSet::MySql(other)) => set.contains(other),
            (GtidSet::MariaDb(set), GtidSet::MariaDb(other)) => set.contains(other),
            (GtidSet::Log(own), GtidSet::Log(other)) => own.contains(other),
            (GtidSet::Cluster(own), GtidSet::Cluster(other)) => own >= other,
            _ => other.is_empty(),
        }
    }

    /// How many transactions of `other` are not here, `u64::MAX` where that cannot be counted
    /// (an unknown source or domain, another family). 0 exactly where `contains` is true.
    pub fn lacks(&self, other: &GtidSet) -> u64 {
        match (self, other) {
            (GtidSet::MySql(set), GtidSet::MySql(other)) => set.lacks(other),
            (GtidSet::MariaDb(set), GtidSet::MariaDb(other)) => set.lacks(other),
            (GtidSet::Log(own), GtidSet::Log(other)) => own.lacks(other),
            // A node has it within moments, whatever it is known to have.
            (own, other @ GtidSet::Cluster(_)) => u64::from(!own.contains(other)),
            _ if other.is_empty() => 0,
            _ => u64::MAX,
        }
    }

    /// Bounds a session's set to `intervals_max` intervals for each source, by closing gaps: those that
    /// `known`, what the primary was last seen to have, holds; and beyond its end, where nobody knows yet which
    /// transactions there will be, the smallest of too many. A gap that `known` has as well stays: those
    /// transactions never existed, and a wait for them would be in vain. The set only grows, so whoever has
    /// reached the result has reached the original. A MariaDB set is bounded by nature.
    pub fn coalesce(&mut self, intervals_max: usize, known: Option<&GtidSet>) {
        if let GtidSet::MySql(set) = self {
            let known = match known {
                Some(GtidSet::MySql(known)) => Some(known),
                _ => None,
            };
            set.coalesce(intervals_max, known);
        }
    }

    /// Whether it has more intervals of one source than that.
    pub fn is_wide(&self, intervals_max: usize) -> bool {
        match self {
            GtidSet::MySql(set) => set.is_wide(intervals_max),
            _ => false,
        }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            GtidSet::MySql(set) => set.is_empty(),
            GtidSet::MariaDb(set) => set.is_empty(),
            GtidSet::Log(_) => false,
            GtidSet::Cluster(count) => *count == 0,
        }
    }

    /// Removes everything and gives the memory back.
    pub fn clear(&mut self) {
        *self = GtidSet::new(self.family());
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            GtidSet::MySql(set) => set.heap_bytes(),
            GtidSet::MariaDb(set) => set.heap_bytes(),
            // Names that all positions of one answer share.
            GtidSet::Log(_) | GtidSet::Cluster(_) => 0,
        }
    }
}

/// In the server's own syntax.
impl fmt::Display for GtidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GtidSet::MySql(set) => set.fmt(f),
            GtidSet::MariaDb(set) => set.fmt(f),
            GtidSet::Log(position) => position.fmt(f),
            GtidSet::Cluster(count) => write!(f, "write {count} through this process"),
        }
    }
}

/// A decimal number without sign; none where it is empty, has other bytes or does not fit.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}
