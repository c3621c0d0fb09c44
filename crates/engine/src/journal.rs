//! The statements of the open transaction as they were sent, with a checksum of each answer: enough to
//! run it again on another server and to see whether it comes out the same. Sends nothing.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use millrace_protocol::ServerError;
use millrace_protocol::response::Expect;
use millrace_sql::{Flags, Kind, Statement, Traits};

use crate::options::FailoverOptions;
use crate::outcome::Outcome;
use crate::request::{Main, Request};
use crate::state::SessionState;

/// Why a transaction cannot be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreplayable {
    /// More statements or bytes than failover.max_replay_statements and max_replay_bytes allow.
    TooLarge,
    /// Others had taken all of failover.max_replay_total_bytes.
    NoRoom,
    /// It has been open for longer than failover.max_replay_time.
    TooOld,
    /// It is about one moment (WITH CONSISTENT SNAPSHOT), or how it began is not known.
    Begin,
    /// It has done what cannot be done again, or not with the same effect.
    Statement,
    /// It has written to a table without transactions.
    NonTransactional,
    /// Run again, a statement was answered differently.
    Differs,
    /// No server could be had for it in time.
    NoServer,
}

impl Unreplayable {
    /// For people.
    pub fn as_str(self) -> &'static str {
        match self {
            Unreplayable::TooLarge => {
                "it is longer than failover.max_replay_statements or max_replay_bytes allow"
            }
            Unreplayable::NoRoom => "failover.max_replay_total_bytes left no room for it",
            Unreplayable::TooOld => "it has been open for longer than failover.max_replay_time",
            Unreplayable::Begin => "it depends on the moment of its begin",
            Unreplayable::Statement => "it contains a statement that cannot be run again",
            Unreplayable::NonTransactional => "it writes to a table without transactions",
            Unreplayable::Differs => "its statements are answered differently there",
            Unreplayable::NoServer => "no server could run it in time",
        }
    }
}

/// A prepared statement as it was when it was executed.
#[derive(Debug, Clone)]
pub struct Executed {
    /// The client's number.
    pub id: u32,
    /// As the client sent it.
    pub text: Rc<[u8]>,
    /// What was set when it was prepared.
    pub context: Rc<SessionState>,
}

/// One statement.
#[derive(Debug)]
pub struct Entry {
    /// Where its packets end in the journal's bytes; they begin where the one before ends.
    end: usize,
    /// What kind of answer it has.
    pub expect: Expect,
    /// For executions, whose packets have a statement's number to be replaced.
    pub executed: Option<Executed>,
    /// What was set on the session before it.
    pub state: Rc<SessionState>,
    /// What it was answered.
    pub answer: Answered,
    /// What it had from those before it.
    pub about: StatementContext,
}

/// What a statement had from those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatementContext {
    /// LAST_INSERT_ID() before it, where that is known and the statement may look at it.
    pub last_insert_id: Option<u64>,
    /// LAST_INSERT_ID() may be part of what it does.
    pub uses_insert_id: bool,
    /// It asks about the statement before it: nothing may come between the two.
    pub last: bool,
}

/// What a statement was answered, as far as it must come out the same. Left out are positions, what
/// else session tracking says, status flags, and the texts of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answered {
    /// Definitions and rows, how many of them, affected rows and warnings.
    pub sum: u64,
    /// The first number that an INSERT generated, or was given.
    pub insert_id: u64,
    /// The error's number; 0: none.
    pub error: u16,
}

impl Answered {
    /// What the outcome of a relay with sums says.
    pub fn of(outcome: &Outcome) -> Self {
        let mut sum = outcome.sum;
        sum.add_number(outcome.rows);
        sum.add_number(u64::from(outcome.result_sets));
        sum.add_number(outcome.affected_rows);
        sum.add_number(u64::from(outcome.warnings));
        Answered {
            sum: sum.value(),
            insert_id: outcome.insert_id,
            error: outcome.error.as_ref().map_or(0, |error| error.code),
        }
    }

    /// Whether nothing differs but the number that an INSERT generated.
    pub fn differs_in_number_only(self, other: Answered) -> bool {
        self.insert_id != 0
            && other.insert_id != 0
            && self.insert_id != other.insert_id
            && (self.sum, self.error) == (other.sum, other.error)
    }
}

/// How a transaction began.
#[derive(Debug, Clone)]
pub struct TransactionStart {
    /// The client's statement; none where autocommit is off, or it is the first entry.
    pub text: Option<Rc<[u8]>>,
    /// READ ONLY.
    pub read_only: bool,
    /// On the primary: it cannot go on anywhere else.
    pub on_primary: bool,
    /// SET TRANSACTION statements ahead of it.
    pub one_shot: Vec<Box<[u8]>>,
    /// What was set on the session.
    pub state: Rc<SessionState>,
    /// LAST_INSERT_ID(), where it was known.
    pub last_insert_id: Option<u64>,
    /// Otherwise what the last OK packet with a number said: an explicit value is reported as well,
    /// and does not count.
    pub insert_id_seen: u64,
    /// The version of the session's user variables.
    pub private_version: u64,
}

/// The bytes that a journal keeps room for between two transactions.
const REST_MAX: usize = 16 * 1024;

/// An open transaction's statements.
#[derive(Debug)]
pub struct Journal {
    begun: TransactionStart,
    since: Instant,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    spoilt: Option<Unreplayable>,
    wrote: bool,
    uncertain: bool,
    committed: bool,
    room: Room,
}

/// What the journals of a worker keep together, in bytes.
pub type Kept = Rc<Cell<usize>>;

/// A journal's part of that, until it is dropped.
#[derive(Debug, Default)]
struct Room {
    all: Kept,
    bytes: usize,
}

impl Room {
    fn set(&mut self, bytes: usize) {
        self.all.set(self.all.get() + bytes - self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Journal {
    /// Of a transaction that begins now; `kept` is what its worker's journals keep.
    pub fn new(begun: TransactionStart, now: Instant, kept: Kept) -> Self {
        Journal {
            begun,
            since: now,
            bytes: Vec::new(),
            entries: Vec::new(),
            spoilt: None,
            wrote: false,
            uncertain: false,
            committed: false,
            room: Room {
                all: kept,
                bytes: 0,
            },
        }
    }

    /// The same for another transaction, with the room that it has.
    pub fn renew(&mut self, begun: TransactionStart, now: Instant) {
        let (mut bytes, mut entries) = (
            std::mem::take(&mut self.bytes),
            std::mem::take(&mut self.entries),
        );
        bytes.clear();
        entries.clear();
        *self = Journal {
            bytes,
            entries,
            ..Journal::new(begun, now, self.room.all.clone())
        };
    }

    /// Frees what is large or belongs to others.
    pub fn rest(&mut self) {
        self.room.set(0);
        self.entries.clear();
        if self.bytes.capacity() > REST_MAX {
            self.bytes = Vec::new();
        }
        if self.entries.capacity() > 64 {
            self.entries = Vec::new();
        }
    }

    /// How it began.
    pub fn begun(&self) -> &TransactionStart {
        &self.begun
    }

    /// When it began.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Its statements, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// It may have written something.
    pub fn wrote(&self) -> bool {
        self.wrote
    }

    /// An error may have ended it.
    pub fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// A statement that failed may have committed what was before it.
    pub fn may_be_committed(&self) -> bool {
        self.committed
    }

    /// It began in one command with other statements, or in a procedure: what it did is not written down. `is_open`:
    /// an answer said that it is; otherwise an error may have ended it.
    pub fn begin_unseen(&mut self, is_open: bool) {
        self.wrote = true;
        (self.uncertain, self.committed) = (!is_open, !is_open);
    }

    /// A statement was answered, and the transaction goes on. `writes`: it may. `implicit`: without autocommit it may be
    /// another transaction that is open now.
    pub fn note_answer(
        &mut self,
        outcome: &Outcome,
        request: &Request<'_>,
        writes: bool,
        implicit: bool,
    ) {
        self.wrote |= writes;
        match &outcome.error {
            Some(error) => {
                // Most of what commits does so before it looks whether it can be done.
                let commits = commits(request);
                if commits || may_end_transaction(error) {
                    self.uncertain = true;
                    self.committed |= commits;
                    self.spoil(Unreplayable::Statement);
                }
            }
            None if !outcome.has_status => {}
            None => {
                self.uncertain = false;
                self.committed &= implicit;
                if matches!(request.runs().kind, Kind::Commit | Kind::Rollback) {
                    // AND CHAIN: the next has begun.
                    (self.wrote, self.committed) = (false, false);
                    self.spoil(Unreplayable::Begin);
                }
            }
        }
    }

    /// The server has said that it has rolled the transaction back, for the sake of another.
    pub fn note_rolled_back(&mut self) {
        self.uncertain = true;
        self.spoil(Unreplayable::Statement);
    }

    /// Whether more is to be written down.
    pub fn is_whole(&self) -> bool {
        self.spoilt.is_none()
    }

    /// It cannot be run again: what was kept for that goes.
    pub fn spoil(&mut self, why: Unreplayable) {
        self.spoilt.get_or_insert(why);
        self.bytes = Vec::new();
        self.entries = Vec::new();
        self.room.set(0);
    }

    /// Looks whether another statement with a command of `bytes` is to be written down, and gives up
    /// where it is not. `all_max`: the most that all journals of the worker keep.
    pub fn has_room(
        &mut self,
        bytes: usize,
        now: Instant,
        options: &FailoverOptions,
        all_max: usize,
    ) -> bool {
        let entry = bytes + size_of::<Entry>();
        let too_large = self.entries.len() >= options.max_replay_statements
            || self.bytes.len() + bytes > options.max_replay_bytes;
        match self.spoilt(now, options) {
            Some(why) => self.spoil(why),
            None if too_large => self.spoil(Unreplayable::TooLarge),
            None if self.room.all.get() + entry > all_max => self.spoil(Unreplayable::NoRoom),
            None => {}
        }
        self.is_whole()
    }

    /// Whether a COMMIT would do nothing.
    pub fn has_nothing_to_commit(&self) -> bool {
        !self.wrote && !self.uncertain && !self.committed
    }

    /// The last statement that something may be done ahead of: those after it only ask about it.
    pub fn last_change(&self) -> Option<usize> {
        self.entries.iter().rposition(|entry| !entry.about.last)
    }

    /// Why it cannot be run again; none where it can.
    pub fn spoilt(&self, now: Instant, options: &FailoverOptions) -> Option<Unreplayable> {
        let age = now.saturating_duration_since(self.since);
        self.spoilt
            .or((age > options.max_replay_time).then_some(Unreplayable::TooOld))
    }

    /// Where the next entry's packets are to be written; [`Journal::add`] must follow.
    pub fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Adds an entry whose packets have been written.
    pub fn add(
        &mut self,
        expect: Expect,
        executed: Option<Executed>,
        state: Rc<SessionState>,
        answer: Answered,
        about: StatementContext,
        options: &FailoverOptions,
    ) {
        self.entries.push(Entry {
            end: self.bytes.len(),
            expect,
            executed,
            state,
            answer,
            about,
        });
        // Long data of an execution is not in its command.
        if self.bytes.len() > options.max_replay_bytes {
            self.spoil(Unreplayable::TooLarge);
        } else {
            let entries = self.entries.len() * size_of::<Entry>();
            self.room.set(self.bytes.len() + entries);
        }
    }

    /// The packets of an entry.
    pub fn packets(&self, at: usize) -> &[u8] {
        let start = at
            .checked_sub(1)
            .map_or(0, |before| self.entries[before].end);
        &self.bytes[start..self.entries[at].end]
    }

    /// Bytes kept.
    pub fn bytes_kept(&self) -> usize {
        self.bytes.len()
    }
}

/// Whether a statement of a transaction may be run again with it. What it does besides changing rows
/// of tables, on its connection or outside of the server, may not.
pub fn is_replayable(class: &Statement) -> bool {
    // A BEGIN commits what was open before it; that is no part of the transaction.
    let commits = match class.kind {
        Kind::Begin => Flags::empty(),
        _ => Flags::IMPLICIT_COMMIT,
    };
    let effects = Flags::ACQUIRES_USER_LOCK
        | Flags::RELEASES_USER_LOCK
        | Flags::RELEASES_ALL_USER_LOCKS
        | Flags::SEQUENCE
        | Flags::CREATES_TEMP_TABLE
        | Flags::DROPS_TEMP_TABLE
        | Flags::DROPS_TABLE
        | Flags::ASSIGNS_USER_VARS
        | Flags::INTO_VARIABLE
        | Flags::INTO_OUTFILE
        | Flags::CONSISTENT_SNAPSHOT
        | commits
        | Flags::SETS_GLOBAL
        | Flags::USES_CONNECTION_ID
        | Flags::WAITS;
    class.is(Traits::REPLAYABLE) && !class.flags.intersects(effects)
}

/// Whether the request may commit the transaction that is open.
pub fn commits(request: &Request<'_>) -> bool {
    let (class, text) = match (request.inner, &request.main) {
        (Some((inner, body)), _) => (inner, Some(body)),
        (None, Main::Packet(packet)) => (request.class, Some(*packet)),
        (None, Main::Execute { .. }) => (request.class, None),
    };
    !request.prepares() && may_commit(class, text)
}

/// Whether a statement in a transaction may end it with a commit, so that nobody can tell what was
/// done where its answer is lost. `text`: its own, or the command that has it; none where the command
/// has not.
fn may_commit(class: &Statement, text: Option<&[u8]>) -> bool {
    if class.flags.contains(Flags::IMPLICIT_COMMIT) {
        return true;
    }
    match class.kind {
        Kind::Select
        | Kind::Insert
        | Kind::Replace
        | Kind::Update
        | Kind::Delete
        | Kind::Do
        | Kind::Show(_)
        | Kind::Explain { .. }
        | Kind::Use
        | Kind::Savepoint
        | Kind::ReleaseSavepoint
        | Kind::RollbackTo
        | Kind::Rollback
        | Kind::Help
        | Kind::Command
        | Kind::Ping
        | Kind::Diagnostics
        | Kind::Prepare
        | Kind::Deallocate
        | Kind::SetTransaction => false,
        // SET autocommit = 1 is a COMMIT.
        Kind::Set => {
            let word = b"autocommit";
            text.is_none_or(|text| {
                text.windows(word.len())
                    .any(|at| at.eq_ignore_ascii_case(word))
            })
        }
        _ => true,
    }
}

/// Whether a transaction may be over after its statement failed so: deadlocks and other rollbacks, lock
/// waits (`innodb_rollback_on_timeout`), a full lock table, a record that has changed since it was
/// read (MariaDB's `innodb_snapshot_isolation`), commits that went wrong, connections that end.
fn may_end_transaction(error: &ServerError) -> bool {
    error.state.starts_with(b"40")
        || matches!(
            error.code,
            1020 | 1053 | 1180 | 1205 | 1206 | 1927 | 3100 | 3101
        )
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::time::Duration;

    use millrace_sql::{Family, LexMode, classify};

    use super::*;

    fn begun() -> TransactionStart {
        TransactionStart {
            text: Some(b"BEGIN".as_slice().into()),
            read_only: false,
            on_primary: true,
            one_shot: Vec::new(),
            state: Rc::default(),
            last_insert_id: None,
            insert_id_seen: 0,
            private_version: 0,
        }
    }

    fn add(journal: &mut Journal, packet: &[u8], options: &FailoverOptions) {
        if journal.has_room(packet.len(), journal.since, options, 1 << 20) {
            journal.room().extend_from_slice(packet);
            let answer = Answered::default();
            let about = StatementContext::default();
            journal.add(Expect::Query, None, Rc::default(), answer, about, options);
        }
    }

    fn new(now: Instant) -> Journal {
        Journal::new(begun(), now, Kept::default())
    }

    #[test]
    fn packets_come_back_as_they_were_written() {
        let options = FailoverOptions::default();
        let mut journal = new(Instant::now());
        add(&mut journal, b"first", &options);
        add(&mut journal, b"", &options);
        add(&mut journal, b"third", &options);
        assert_eq!(journal.packets(0), b"first");
        assert_eq!(journal.packets(1), b"");
        assert_eq!(journal.packets(2), b"third");
    }

    #[test]
    fn bounds_end_it_and_free_what_it_kept() {
        let options = FailoverOptions {
            max_replay_statements: 2,
            max_replay_bytes: 10,
            max_replay_time: Duration::from_secs(5),
            ..FailoverOptions::default()
        };
        let now = Instant::now();
        let mut journal = new(now);
        add(&mut journal, b"1234", &options);
        add(&mut journal, b"5678", &options);
        assert_eq!(journal.spoilt(now, &options), None);
        let late = now + Duration::from_secs(6);
        assert_eq!(journal.spoilt(late, &options), Some(Unreplayable::TooOld));
        add(&mut journal, b"", &options);
        assert_eq!(journal.spoilt(now, &options), Some(Unreplayable::TooLarge));
        assert_eq!((journal.bytes_kept(), journal.entries.len()), (0, 0));
        let mut journal = new(now);
        add(&mut journal, b"12345678901", &options);
        assert_eq!(journal.spoilt(now, &options), Some(Unreplayable::TooLarge));
    }

    #[test]
    fn all_journals_share_one_bound() {
        let options = FailoverOptions::default();
        let now = Instant::now();
        let kept = Kept::default();
        let one = size_of::<Entry>() + 10;
        let mut first = Journal::new(begun(), now, kept.clone());
        let mut second = Journal::new(begun(), now, kept.clone());
        let write = |journal: &mut Journal| {
            let has_room = journal.has_room(10, now, &options, 2 * one);
            if has_room {
                journal.room().extend_from_slice(&[0; 10]);
                let answer = Answered::default();
                let about = StatementContext::default();
                journal.add(Expect::Query, None, Rc::default(), answer, about, &options);
            }
            has_room
        };
        assert!(write(&mut first) && write(&mut second));
        assert_eq!(kept.get(), 2 * one);
        assert!(!write(&mut second), "the bound is reached");
        assert_eq!(second.spoilt(now, &options), Some(Unreplayable::NoRoom));
        assert_eq!(kept.get(), one, "what it kept is free");
        let mut third = Journal::new(begun(), now, kept.clone());
        assert!(write(&mut third));
        third.renew(begun(), now);
        assert_eq!(kept.get(), one);
        drop(first);
        assert_eq!(kept.get(), 0);
    }

    #[test]
    fn an_execution_whose_text_is_elsewhere_may_set_autocommit() {
        let class = class("SET autocommit = 1", Family::MySql);
        assert!(may_commit(&class, None));
        assert!(!may_commit(&class, Some(b"SET sql_mode = ''")));
    }

    #[test]
    fn what_was_generated_is_told_from_other_differences() {
        let answer = |sum, insert_id| Answered {
            sum,
            insert_id,
            error: 0,
        };
        assert!(answer(1, 5).differs_in_number_only(answer(1, 6)));
        assert!(!answer(1, 5).differs_in_number_only(answer(2, 6)));
        assert!(!answer(1, 5).differs_in_number_only(answer(1, 5)));
        assert!(!answer(1, 0).differs_in_number_only(answer(1, 6)));
    }

    fn class(text: &str, family: Family) -> Statement {
        let mut class = Statement::default();
        classify(text.as_bytes(), &LexMode::new(family, 90_700), &mut class);
        class
    }

    #[test]
    fn statements_are_sorted() {
        // Statement, replayable, may commit.
        let cases = [
            ("SELECT * FROM t FOR UPDATE", true, false),
            ("INSERT INTO t VALUES (NOW())", true, false),
            ("UPDATE t SET a = 1", true, false),
            ("SAVEPOINT a", true, false),
            ("ROLLBACK TO a", true, false),
            ("SET sql_mode = ''", true, false),
            ("SET autocommit = 1", true, true),
            ("SET @@session.AutoCommit = ON", true, true),
            ("SET @a = 1", false, false),
            ("SELECT 1 INTO @a", false, false),
            ("SELECT GET_LOCK('a', 1)", false, false),
            ("SELECT 1 INTO OUTFILE '/tmp/x'", false, false),
            ("CREATE TEMPORARY TABLE x (a INT)", false, true),
            ("CREATE TABLE x (a INT)", false, true),
            ("TRUNCATE t", false, true),
            ("COMMIT", false, true),
            ("ROLLBACK", false, false),
            ("CALL p()", false, true),
            ("INSERT INTO t VALUES (1); COMMIT", false, true),
            ("START TRANSACTION WITH CONSISTENT SNAPSHOT", false, true),
            ("BEGIN", true, true),
            ("LOAD DATA INFILE 'x' INTO TABLE t", false, true),
            ("LOCK TABLES t READ", false, true),
            ("GRANT SELECT ON t TO x", false, true),
            ("WHATEVER THIS IS", false, true),
        ];
        for (text, replayable, commits) in cases {
            for family in [Family::MySql, Family::MariaDb] {
                let class = class(text, family);
                assert_eq!(is_replayable(&class), replayable, "{text} on {family:?}");
                let command = text.as_bytes();
                let commit = may_commit(&class, Some(command));
                assert_eq!(commit, commits, "{text} on {family:?}");
            }
        }
    }

    #[test]
    fn errors_that_may_have_ended_the_transaction_are_known() {
        let error = |code, state: &[u8; 5]| ServerError::new(code, state, "");
        assert!(may_end_transaction(&error(1213, b"40001")));
        assert!(may_end_transaction(&error(1205, b"HY000")));
        assert!(!may_end_transaction(&error(1062, b"23000")));
    }
}
