//! What a session may ask about the statements it has run: LAST_INSERT_ID(), FOUND_ROWS(), ROW_COUNT(), warnings
//! and errors. Each is either known here, or on a connection that is named here.

use std::rc::Rc;

use millrace_sql::{Family, Flags, Kind, Statement};
use millrace_topology::ServerId;

use crate::books::{BLANK_ID, DiagnosticsStore, Message, SessionUid, StatementAt};
use crate::image::found_rows::first_found_rows;

/// What a session may ask about its last statements.
#[derive(Debug)]
pub struct LastStatement {
    /// The session, as connections know it.
    pub(super) uid: SessionUid,
    /// What other sessions saved of its statements, before they used its connections.
    pub(super) store: Rc<DiagnosticsStore>,
    /// Counts the session's statements.
    pub(super) seq: u64,
    /// The server of the last statement; none where Millrace answered by itself.
    pub(super) server: Option<ServerId>,
    /// ROW_COUNT() after it.
    pub(super) row_count: i64,
    /// LAST_INSERT_ID().
    pub insert_id: InsertId,
    /// FOUND_ROWS().
    pub found_rows: FoundRows,
    /// Warnings and errors.
    pub messages: Messages,
    /// The statement that may have drawn from a sequence last.
    pub(super) drew_at: Option<StatementAt>,
}

/// LAST_INSERT_ID().
#[derive(Debug)]
pub struct InsertId {
    /// The connection that holds it: its server, and the last statement that the session ran on it.
    pub at: Option<StatementAt>,
    /// What that statement's OK said; LAST_INSERT_ID() is this or what it was before, because an
    /// explicit value for the column is reported and does not count.
    pub seen: u64,
    /// What the connection had before that statement.
    pub before: IdBefore,
    /// Its value, where no connection holds it.
    pub value: u64,
}

/// FOUND_ROWS().
#[derive(Debug)]
pub struct FoundRows {
    /// The number, where it is known.
    pub count: u64,
    /// It is; otherwise (after SQL_CALC_FOUND_ROWS) only the connection below has it.
    pub known: bool,
    /// The connection that has it: only statements with rows change it.
    pub at: Option<StatementAt>,
}

/// Warnings and errors.
#[derive(Debug, Default)]
pub struct Messages {
    /// Where they can be asked for: the server, and the statement that has them.
    pub at: Option<StatementAt>,
    /// How many there were then, shown or not.
    pub count: u64,
    /// The last error's code and SQLSTATE, which a saved message does not tell.
    pub last_error: Option<(u16, [u8; 5])>,
    /// How many the next OK counts that leaves them, where not all that there are.
    pub ok_count: Option<u16>,
    /// Those that the error about to be told is added to.
    pub kept: Vec<Message>,
    /// The command under way adds to them instead of clearing them.
    pub keeps: bool,
    /// How many the OK under way is to count, where its server does not know.
    pub ok_warnings: Option<u16>,
}

/// What a connection's LAST_INSERT_ID() was before the statement that may have changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdBefore {
    /// The session's own, or the statement set it for certain: what is there now is the session's.
    Own,
    /// A number that no table generates: where it is still there, the session's is what it was.
    Blank(u64),
    /// Anything.
    Unknown,
}

/// The statement asks about the one before it. A view asks each time it is used, and must be stored as it was
/// written.
#[inline]
pub fn is_about_last(class: &Statement) -> bool {
    let counts = Flags::USES_ROW_COUNT | Flags::USES_FOUND_ROWS | Flags::USES_WARNING_COUNT;
    let asks = class.flags.intersects(counts) && !class.flags.contains(Flags::STORED_CODE);
    class.kind == Kind::Diagnostics || asks
}

impl IdBefore {
    /// What a connection says where nothing of the session's is to be told from it.
    pub fn blank(held: Option<u64>) -> IdBefore {
        match held {
            Some(id @ (0 | BLANK_ID)) => IdBefore::Blank(id),
            _ => IdBefore::Unknown,
        }
    }
}

/// Where messages are that no connection has, whichever server this names.
const NO_CONNECTION: ServerId = ServerId(0);

impl LastStatement {
    /// Before a session's first statement.
    pub(super) fn new(
        family: Family,
        uid: SessionUid,
        store: Rc<DiagnosticsStore>,
    ) -> LastStatement {
        LastStatement {
            uid,
            store,
            seq: 0,
            server: None,
            row_count: 0,
            insert_id: InsertId {
                at: None,
                seen: 0,
                before: IdBefore::Unknown,
                value: 0,
            },
            found_rows: FoundRows {
                count: first_found_rows(family),
                known: true,
                at: None,
            },
            messages: Messages::default(),
            drew_at: None,
        }
    }

    /// As after COM_RESET_CONNECTION: FOUND_ROWS() stays what it was (observed), as far as it is known.
    pub(super) fn reset(&mut self) {
        self.seq += 1;
        self.server = None;
        self.row_count = 0;
        (self.insert_id.at, self.insert_id.value) = (None, 0);
        self.found_rows.at = None;
        self.messages.at = None;
        self.drew_at = None;
    }

    /// The number of the last statement among the session's.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The server of the last statement; none where Millrace answered by itself.
    #[inline]
    pub fn server(&self) -> Option<ServerId> {
        self.server
    }

    /// ROW_COUNT().
    #[inline]
    pub fn row_count(&self) -> i64 {
        self.row_count
    }

    /// The statement that may have drawn from a sequence last.
    #[inline]
    pub fn drew_at(&self) -> Option<StatementAt> {
        self.drew_at
    }

    /// A statement that no server has run takes its place among the session's; answers its number.
    pub fn count_own(&mut self) -> u64 {
        self.seq += 1;
        self.server = None;
        self.seq
    }

    /// These are the messages that the session may ask for, wherever they came from; the next OK that leaves them
    /// counts `count`.
    pub fn put_messages(&mut self, messages: Vec<Message>, count: u16) {
        let seq = self.count_own();
        self.messages.ok_count = Some(count);
        self.messages.at = Some((NO_CONNECTION, seq));
        self.messages.count = self.messages.count.max(messages.len() as u64);
        self.store.keep(seq).warnings = Some(messages);
    }

    /// A warning of an answer of Millrace's own, to the last statement.
    pub fn note_message(&mut self, message: Message) {
        self.store.keep(self.seq).warnings = Some(vec![message]);
        self.messages.at = Some((NO_CONNECTION, self.seq));
        self.messages.count = 1;
    }

    /// One more message beside those that were saved of the last statement.
    pub fn add_message(&mut self, message: Message) {
        let Some((_, seq)) = self.messages.at else {
            // Under a number of its own: a connection may be found by that of the statement before.
            self.count_own();
            return self.note_message(message);
        };
        let mut saved = self.store.keep(seq);
        saved.warnings.get_or_insert_default().push(message);
        self.messages.count += 1;
    }

    /// The last statement, where it ran on a server.
    pub fn last_at(&self) -> Option<StatementAt> {
        self.server.map(|server| (server, self.seq))
    }

    /// What another session saved of this one's last statements, taken over as far as it still
    /// counts.
    pub fn collect_saved(&mut self) {
        let saved = |at: Option<StatementAt>| at.and_then(|(_, seq)| self.store.find(seq));
        let id = saved(self.insert_id.at).and_then(|saved| saved.last_insert_id);
        let rows = saved(self.found_rows.at).and_then(|saved| saved.found_rows);
        if let Some(id) = id {
            self.insert_id.note_read(id);
        }
        if let Some(rows) = rows {
            self.found_rows.set(rows);
        }
    }

    /// @@warning_count and @@error_count, where another session saved the messages.
    pub fn saved_message_counts(&self) -> Option<(u64, u64)> {
        let warnings = self.saved_warnings()?;
        let errors = warnings.iter().filter(|[level, ..]| **level == *b"Error");
        let shown = warnings.len() as u64;
        Some((shown.max(self.messages.count), errors.count() as u64))
    }

    /// The warnings that can be asked for, where another session saved them.
    pub fn saved_warnings(&self) -> Option<Vec<Message>> {
        let (_, seq) = self.messages.at?;
        self.store.find(seq)?.warnings.clone()
    }

    /// Messages can be asked for, and no connection needs to be asked.
    pub fn has_saved_messages(&self) -> bool {
        self.messages
            .at
            .and_then(|(_, seq)| self.store.find(seq))
            .is_some_and(|saved| saved.warnings.is_some())
    }

    /// A statement that Millrace has answered by itself counts as one: what could be asked about the one before is gone.
    pub fn note_local_answer(&mut self, family: Family) {
        self.count_own();
        self.messages.ok_count = None;
        if family == Family::MySql {
            self.messages.at = None;
        }
        self.answered_here(0);
        // The connection that holds LAST_INSERT_ID() is still found by its own number.
    }

    /// A command that Millrace has answered by itself: ROW_COUNT() is this, and no server is asked about it.
    pub fn answered_here(&mut self, row_count: i64) {
        (self.row_count, self.server) = (row_count, None);
    }

    /// What was on the connection of one statement is now found under another, and so is the last statement's server.
    pub fn moved(&mut self, from: StatementAt, to: StatementAt) {
        let held = [
            &mut self.insert_id.at,
            &mut self.found_rows.at,
            &mut self.messages.at,
        ];
        for at in held {
            if *at == Some(from) {
                *at = Some(to);
            }
        }
        if self.server == Some(from.0) {
            self.server = Some(to.0);
        }
    }
}

impl FoundRows {
    /// It is this number, which no connection needs to be asked for.
    pub fn set(&mut self, count: u64) {
        (self.count, self.known, self.at) = (count, true, None);
    }
}

impl InsertId {
    /// It was read from the connection that holds it.
    pub fn note_read(&mut self, read: u64) {
        let changed = match self.before {
            IdBefore::Own => true,
            IdBefore::Blank(blank) => read != blank,
            IdBefore::Unknown => read == self.seen,
        };
        if changed {
            self.value = read;
        }
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: StatementAt = (ServerId(0), 3);
    const THERE: StatementAt = (ServerId(1), 4);

    fn last(family: Family) -> LastStatement {
        LastStatement::new(family, 7, Rc::default())
    }

    fn read(before: IdBefore, seen: u64, read: u64) -> u64 {
        let mut id = last(Family::MySql).insert_id;
        (id.at, id.before, id.seen, id.value) = (Some(HERE), before, seen, 5);
        id.note_read(read);
        assert_eq!(id.at, None);
        id.value
    }

    #[test]
    fn an_insert_id_counts_only_where_it_changed() {
        assert_eq!(read(IdBefore::Own, 0, 9), 9);
        assert_eq!(
            read(IdBefore::Blank(0), 9, 0),
            5,
            "an explicit value was reported"
        );
        assert_eq!(read(IdBefore::Blank(0), 9, 9), 9);
        assert_eq!(read(IdBefore::Unknown, 9, 9), 9);
        assert_eq!(read(IdBefore::Unknown, 9, 8), 5, "another session's");
    }

    #[test]
    fn what_a_connection_says_of_nobody_is_blank() {
        assert_eq!(IdBefore::blank(Some(0)), IdBefore::Blank(0));
        assert_eq!(IdBefore::blank(Some(BLANK_ID)), IdBefore::Blank(BLANK_ID));
        assert_eq!(IdBefore::blank(Some(1)), IdBefore::Unknown);
        assert_eq!(IdBefore::blank(None), IdBefore::Unknown);
    }

    #[test]
    fn what_moves_is_what_was_there() {
        let mut last = last(Family::MariaDb);
        (last.insert_id.at, last.messages.at) = (Some(HERE), Some(THERE));
        last.moved(HERE, THERE);
        assert_eq!(last.insert_id.at, Some(THERE));
        assert_eq!(last.found_rows.at, None);
        last.moved(HERE, (ServerId(2), 1));
        assert_eq!(last.messages.at, Some(THERE));
    }

    #[test]
    fn a_reset_leaves_no_connection_to_ask() {
        let mut last = last(Family::MySql);
        last.insert_id.at = Some(HERE);
        last.found_rows.at = Some(HERE);
        last.messages.at = Some(HERE);
        last.drew_at = Some(HERE);
        (last.insert_id.value, last.found_rows.count, last.server) = (9, 7, Some(HERE.0));
        last.reset();
        let all = [
            last.insert_id.at,
            last.found_rows.at,
            last.messages.at,
            last.drew_at,
        ];
        assert_eq!(all, [None; 4]);
        assert_eq!((last.insert_id.value, last.server), (0, None));
        assert_eq!((last.found_rows.count, last.seq), (7, 1));
    }

    #[test]
    fn messages_of_millraces_own_are_found_under_a_number_of_their_own() {
        let mut last = last(Family::MySql);
        let message = |text: &str| ["Warning", "1287", text].map(|it| it.as_bytes().into());
        (last.seq, last.server) = (4, Some(HERE.0));
        last.add_message(message("a"));
        assert_eq!((last.seq(), last.server()), (5, None));
        last.add_message(message("b"));
        assert_eq!((last.seq(), last.saved_message_counts()), (5, Some((2, 0))));
        last.put_messages(vec![message("c")], 1);
        assert_eq!((last.seq(), last.messages.ok_count), (6, Some(1)));
        assert_eq!(last.saved_warnings().map(|saved| saved.len()), Some(1));
    }
}
