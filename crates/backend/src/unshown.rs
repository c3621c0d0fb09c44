//! What a primary has logged and does not show yet. A transaction goes to the replicas as soon as it is in the
//! log, and so do the events that the cache follows; the primary itself shows it a moment later, or much later,
//! where it waits for replicas to acknowledge it first (semi-synchronous replication, `AFTER_SYNC`).

use std::sync::Arc;

use millrace_topology::GtidSet;

use crate::positions::Answer;

/// A primary's answer.
#[derive(Debug, Clone)]
pub struct Unshown {
    /// The number of the question.
    pub number: u64,
    /// The server's incarnation then.
    pub incarnation: u32,
    /// What it said.
    pub told: Arc<Told>,
}

/// What a primary says of its commits.
#[derive(Debug)]
pub enum Told {
    /// MySQL: a transaction owns its GTID from before it is logged until it is visible.
    Gtids {
        /// `@@gtid_owned`; empty of a group's member.
        owned: GtidSet,
        /// `@@gtid_executed` of a group's member; else empty.
        executed: GtidSet,
    },
    /// MariaDB: coordinates of the binary log.
    Log {
        /// The end of the log, asked first.
        logged: GtidSet,
        /// The end of the last transaction that is visible.
        shown: GtidSet,
    },
    /// The server does not tell, or not to this account.
    Nothing,
}

/// What a session waits for on a primary, lest that one shows it less than a replica did.
#[derive(Debug)]
pub enum Awaited {
    /// These are over once nobody owns them any more.
    Owned(GtidSet),
    /// These must be executed.
    Executed(GtidSet),
    /// The log must be visible up to here.
    Log(GtidSet),
    /// Nothing can be waited for.
    Nothing,
}

impl Answer for Unshown {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Awaited {
    /// All that was logged when the primary was asked.
    pub fn all(told: &Told) -> Awaited {
        match told {
            Told::Gtids { owned, .. } => Awaited::Owned(owned.clone()),
            Told::Log { logged, .. } => Awaited::Log(logged.clone()),
            Told::Nothing => Awaited::Nothing,
        }
    }

    /// The same, but of transactions with a GTID only those of `seen`: a GTID may be owned by a session that
    /// commits nothing for long, or ever.
    pub fn only(&mut self, seen: &GtidSet) {
        if let Awaited::Owned(owned) = self {
            owned.intersect(seen);
        }
    }

    /// Takes a later answer into account. True when there is nothing left to wait for.
    pub fn is_over(&mut self, told: &Told) -> bool {
        match (&mut *self, told) {
            (Awaited::Owned(awaited), Told::Gtids { owned, .. }) => {
                awaited.intersect(owned);
                awaited.is_empty()
            }
            (Awaited::Executed(awaited), Told::Gtids { executed, .. }) => {
                executed.contains(awaited)
            }
            (Awaited::Log(awaited), Told::Log { shown, .. }) => shown.contains(awaited),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_topology::Family;

    use super::*;

    const SOURCE: &str = "11111111-1111-1111-1111-111111111111";

    fn set(numbers: &str) -> GtidSet {
        if numbers.is_empty() {
            return GtidSet::new(Family::MySql);
        }
        let text = format!("{SOURCE}:{numbers}");
        GtidSet::parse(Family::MySql, text.as_bytes()).expect("a set")
    }

    fn gtids(owned: &str, executed: &str) -> Told {
        Told::Gtids {
            owned: set(owned),
            executed: set(executed),
        }
    }

    fn log(logged: (&str, u64), shown: (&str, u64)) -> Told {
        let at = |(file, offset)| GtidSet::log("x", file, offset).expect("coordinates");
        Told::Log {
            logged: at(logged),
            shown: at(shown),
        }
    }

    #[test]
    fn what_is_owned_is_waited_for_until_nobody_owns_it() {
        let first = gtids("11-12", "1-10");
        let mut awaited = Awaited::all(&first);
        assert!(!awaited.is_over(&first));
        assert!(!awaited.is_over(&gtids("12-20", "1-11")));
        // Others that come later are not waited for; one that was rolled back never comes.
        assert!(awaited.is_over(&gtids("13-20", "1-11")));
        assert!(Awaited::all(&gtids("", "1-10")).is_over(&gtids("", "1-10")));
    }

    #[test]
    fn of_what_is_owned_only_what_was_seen_counts() {
        let told = gtids("11:99", "1-10");
        let mut awaited = Awaited::all(&told);
        awaited.only(&set("1-11"));
        assert!(!awaited.is_over(&told));
        assert!(awaited.is_over(&gtids("12:99", "1-11")));
    }

    #[test]
    fn a_log_is_waited_for_up_to_its_end_of_then() {
        let first = log(("binlog.000009", 700), ("binlog.000009", 500));
        let mut awaited = Awaited::all(&first);
        assert!(!awaited.is_over(&first));
        assert!(!awaited.is_over(&log(("binlog.000009", 900), ("binlog.000009", 600))));
        assert!(awaited.is_over(&log(("binlog.000010", 900), ("binlog.000009", 700))));
        let mut awaited = Awaited::all(&first);
        assert!(awaited.is_over(&log(("binlog.000010", 400), ("binlog.000010", 300))));
    }

    #[test]
    fn members_of_a_group_are_waited_for_by_what_was_seen() {
        let mut awaited = Awaited::Executed(set("1-12"));
        awaited.only(&set("1"));
        assert!(!awaited.is_over(&gtids("", "1-11")));
        assert!(awaited.is_over(&gtids("", "1-12")));
    }

    #[test]
    fn nobody_waits_for_a_server_that_does_not_tell() {
        assert!(Awaited::all(&Told::Nothing).is_over(&Told::Nothing));
        assert!(Awaited::all(&gtids("11", "1-10")).is_over(&Told::Nothing));
    }
}
