//! When the store may serve: once the log has reached what the server had when it was asked, and what tables are is
//! known as of there. A pure state: whoever reads definitions tells what was read.

use std::sync::Arc;

use millrace_topology::GtidSet;

use super::catalogue::Catalogue;

/// What was read of tables.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) catalogue: Arc<Catalogue>,
    /// Every change of definitions in here was made before the reading began.
    pub(super) lower: GtidSet,
    /// Every change of definitions that the reading has seen is in here.
    pub(super) upper: GtidSet,
}

/// Whether the store may serve, and what is missing.
#[derive(Debug)]
pub(super) struct Gate {
    state: State,
    /// Transactions that have changed definitions since those were read that are in force.
    changes: GtidSet,
    /// What the server had executed when the stream began: before that nothing is served.
    goal: GtidSet,
    is_open: bool,
    /// What is known of tables is to be read again, though nothing says that it has changed.
    must_confirm: bool,
}

#[derive(Debug)]
enum State {
    /// What is known of tables is what they are.
    Current,
    Wanted,
    Reading,
    Read(Box<Reading>),
}

/// What is to be done now.
#[derive(Debug)]
pub(super) enum Opens {
    /// Nothing.
    Not,
    /// What is known of tables has become known; still nothing is served.
    Knows(Arc<Catalogue>),
    /// The store may serve; where tables have become known, after that was said.
    Serves(Option<Arc<Catalogue>>),
}

impl Gate {
    /// Of a log that is followed from `executed` on, with nothing known of tables.
    pub(super) fn new(executed: GtidSet) -> Self {
        Self {
            state: State::Wanted,
            changes: GtidSet::new(executed.family()),
            goal: executed,
            is_open: false,
            must_confirm: false,
        }
    }

    /// The log is followed again, from where it was left, on a server that has executed so much. Another server's tables
    /// may be others, without a word in the log.
    pub(super) fn again(&mut self, executed: GtidSet, is_same_server: bool) {
        self.goal = executed;
        self.is_open = false;
        self.must_confirm = true;
        if !is_same_server || !matches!(self.state, State::Current) {
            self.state = State::Wanted;
        }
    }

    /// Tables may have changed without a word in the log: they are read again, and meanwhile it is served as before.
    pub(super) fn confirm(&mut self) {
        self.must_confirm = true;
    }

    /// A transaction has changed definitions.
    pub(super) fn changed(&mut self, transaction: &GtidSet) {
        self.changes.union(transaction);
        self.is_open = false;
        if matches!(self.state, State::Current) {
            self.state = State::Wanted;
        }
    }

    /// Begins a reading, if one is needed: what a server must have executed before it is begun. Several changes in a row
    /// come to one reading, if it begins after the last of them.
    pub(super) fn begin_reading(&mut self) -> Option<GtidSet> {
        let is_due = match self.state {
            State::Wanted => true,
            State::Current => self.must_confirm,
            State::Reading | State::Read(_) => false,
        };
        if !is_due {
            return None;
        }
        self.state = State::Reading;
        self.must_confirm = false;
        let mut needed = self.goal.clone();
        needed.union(&self.changes);
        Some(needed)
    }

    /// What was read; none where that failed.
    pub(super) fn read(&mut self, reading: Option<Reading>) {
        self.state = match reading {
            Some(reading) => State::Read(Box::new(reading)),
            None => State::Wanted,
        };
    }

    /// The log has come so far.
    pub(super) fn reached(&mut self, applied: &GtidSet) -> Opens {
        let mut known = None;
        if let State::Read(reading) = &self.state {
            if !reading.lower.contains(&self.changes) {
                // A change has come that the reading may have missed.
                self.state = State::Wanted;
            } else if applied.contains(&reading.upper) {
                // All changes up to here were made before the reading began, and none that it has seen is still to
                // come: it is what tables are at this place of the log.
                known = Some(reading.catalogue.clone());
                self.state = State::Current;
                self.changes.clear();
            }
        }
        let may = matches!(self.state, State::Current) && !self.is_open;
        match known {
            known if may && applied.contains(&self.goal) => {
                self.is_open = true;
                Opens::Serves(known)
            }
            Some(known) => Opens::Knows(known),
            None => Opens::Not,
        }
    }

    /// The upper bound of a reading was not reached in time: it may name a transaction that never comes, because who owned
    /// its GTID has rolled it back. It is read again.
    pub(super) fn give_up(&mut self) {
        if matches!(self.state, State::Read(_)) {
            self.state = State::Wanted;
        }
    }

    /// Whether a reading waits for the log to reach it.
    pub(super) fn waits(&self) -> bool {
        matches!(self.state, State::Read(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> GtidSet {
        let uuid = "11111111-1111-1111-1111-111111111111";
        GtidSet::parse_mysql(format!("{uuid}:{text}").as_bytes()).unwrap()
    }

    fn reading(lower: &str, upper: &str) -> Option<Reading> {
        Some(Reading {
            catalogue: Arc::default(),
            lower: set(lower),
            upper: set(upper),
        })
    }

    fn open() -> Gate {
        let mut gate = Gate::new(set("1-10"));
        assert_eq!(gate.begin_reading(), Some(set("1-10")));
        gate.read(reading("1-10", "1-10"));
        assert!(matches!(gate.reached(&set("1-10")), Opens::Serves(Some(_))));
        gate
    }

    #[test]
    fn it_opens_where_the_log_has_reached_the_reading() {
        let mut gate = Gate::new(set("1-10"));
        gate.begin_reading();
        assert!(gate.begin_reading().is_none());
        gate.read(reading("1-10", "1-12"));
        assert!(matches!(gate.reached(&set("1-11")), Opens::Not));
        assert!(matches!(gate.reached(&set("1-12")), Opens::Serves(Some(_))));
        assert!(matches!(gate.reached(&set("1-13")), Opens::Not));
    }

    #[test]
    fn a_change_that_the_reading_may_have_missed_has_it_read_again() {
        let mut gate = open();
        gate.changed(&set("11"));
        assert_eq!(gate.begin_reading(), Some(set("1-11")));
        // This one was made before the reading began, and this one was not.
        gate.changed(&set("12"));
        gate.changed(&set("14"));
        gate.read(reading("1-13", "1-14"));
        assert!(matches!(gate.reached(&set("1-14")), Opens::Not));
        assert_eq!(gate.begin_reading(), Some(set("1-12:14")));
        gate.read(reading("1-14", "1-14"));
        assert!(matches!(gate.reached(&set("1-14")), Opens::Serves(Some(_))));
    }

    #[test]
    fn changes_in_a_row_are_read_once() {
        let mut gate = open();
        gate.changed(&set("11"));
        gate.begin_reading();
        gate.changed(&set("12"));
        gate.read(reading("1-20", "1-21"));
        assert!(matches!(gate.reached(&set("1-12")), Opens::Not));
        gate.changed(&set("13"));
        assert!(matches!(gate.reached(&set("1-21")), Opens::Serves(Some(_))));
    }

    #[test]
    fn a_log_that_is_followed_again_serves_once_it_has_caught_up() {
        let mut gate = open();
        gate.again(set("1-20"), true);
        assert!(matches!(gate.reached(&set("1-19")), Opens::Not));
        assert!(matches!(gate.reached(&set("1-20")), Opens::Serves(None)));
        gate.changed(&set("21"));
        gate.begin_reading();
        gate.again(set("1-22"), true);
        assert_eq!(gate.begin_reading(), Some(set("1-22")));
    }

    #[test]
    fn another_server_is_asked_what_its_tables_are() {
        let mut gate = open();
        gate.again(set("1-20"), false);
        assert!(matches!(gate.reached(&set("1-20")), Opens::Not));
        assert_eq!(gate.begin_reading(), Some(set("1-20")));
        gate.read(reading("1-20", "1-20"));
        assert!(matches!(gate.reached(&set("1-20")), Opens::Serves(Some(_))));
    }

    #[test]
    fn tables_are_read_again_while_it_is_served() {
        let mut gate = open();
        assert!(gate.begin_reading().is_none());
        gate.confirm();
        assert_eq!(gate.begin_reading(), Some(set("1-10")));
        assert!(gate.begin_reading().is_none());
        gate.read(reading("1-12", "1-12"));
        assert!(matches!(gate.reached(&set("1-11")), Opens::Not));
        assert!(matches!(gate.reached(&set("1-12")), Opens::Knows(_)));
        // A change beside it closes as ever.
        gate.confirm();
        gate.begin_reading();
        gate.changed(&set("13"));
        gate.read(reading("1-12", "1-13"));
        assert!(matches!(gate.reached(&set("1-13")), Opens::Not));
        gate.begin_reading();
        gate.read(reading("1-13", "1-13"));
        assert!(matches!(gate.reached(&set("1-13")), Opens::Serves(Some(_))));
    }

    #[test]
    fn definitions_may_be_known_before_the_log_has_caught_up() {
        let mut gate = Gate::new(set("1-10"));
        gate.begin_reading();
        gate.read(reading("1-10", "1-10"));
        gate.again(set("1-20"), true);
        gate.begin_reading();
        gate.read(reading("1-12", "1-12"));
        assert!(matches!(gate.reached(&set("1-12")), Opens::Knows(_)));
        assert!(matches!(gate.reached(&set("1-20")), Opens::Serves(None)));
    }
}
