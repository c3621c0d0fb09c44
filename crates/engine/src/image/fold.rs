//! What an answered statement leaves for its session to ask about. Values in, values out: the same for a server's
//! answer and for what Millrace answers by itself.

use millrace_sql::{Family, Flags, Kind, Show, Statement, Target, Traits};

use crate::books::{Books, StatementAt};
use crate::image::found_rows::{Found, found_rows};
use crate::image::last::{IdBefore, LastStatement};
use crate::image::sequences::may_draw;
use crate::outcome::Outcome;
use crate::request::{Request, Task};
use crate::words::words;

/// The statement that was answered.
#[derive(Clone, Copy)]
pub struct Ran<'a> {
    family: Family,
    task: Task,
    class: &'a Statement,
    /// What counts rows: of an EXECUTE, the statement that it runs.
    counted: &'a Statement,
    text: &'a [u8],
}

impl<'a> Ran<'a> {
    /// The statement of `request`, whose text is `text`.
    pub fn of(family: Family, request: &Request<'a>, text: &'a [u8]) -> Ran<'a> {
        Ran {
            family,
            task: request.task,
            class: request.class,
            counted: request.runs(),
            text,
        }
    }
}

/// What a statement without messages does to those of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Cleared,
    Kept,
    /// Only the connection knows.
    Unknown,
    /// Only the connection knows, and there may be new ones.
    Own,
}

impl LastStatement {
    /// Takes in a statement's answer. `books`: of the connection that it ran on.
    pub fn fold(&mut self, books: &mut Books, outcome: &Outcome, ran: &Ran<'_>) {
        let held_draws = books.holds(self.uid, self.drew_at);
        if ran.task == Task::Ping && outcome.error.is_none() {
            // It asks nothing.
            self.row_count = 0;
        } else if ran.class.kind == Kind::Diagnostics && outcome.error.is_none() {
            self.fold_diagnostics(books, outcome, ran);
        } else {
            self.fold_statement(books, outcome, ran);
        }
        let draws = ran.family == Family::MariaDb && may_draw(ran.class);
        if draws {
            books.drew(self.uid);
        }
        if draws || held_draws {
            self.drew_at = Some((books.server(), self.seq));
        }
    }

    /// SHOW WARNINGS and its kin: what was asked for can be asked for again.
    fn fold_diagnostics(&mut self, books: &mut Books, outcome: &Outcome, ran: &Ran<'_>) {
        self.messages.ok_count = Some(0);
        let own = books.holds(self.uid, self.diagnosed(ran.class));
        if !own && books.is_of(self.uid) && books.last_seq() != 0 {
            // It may hold LAST_INSERT_ID(), but what went ahead may have counted rows.
            books.has_messages(false);
            if self.found_rows.at == Some(books.last_statement()) {
                self.found_rows.at = None;
            }
        } else if !own {
            books.release();
        }
        if own && outcome.result_sets == 0 && outcome.warnings > 0 {
            // GET DIAGNOSTICS has added what was wrong with it, also where there was nothing.
            books.has_messages(true);
            self.messages.at = Some(books.last_statement());
            self.messages.count = self.messages.count.max(u64::from(outcome.warnings));
        }
        if outcome.result_sets > 0 && counts_messages(ran.class, ran.text) {
            self.found_rows.set(outcome.rows);
        }
        // GET DIAGNOSTICS leaves the count as it was, unless something is wrong with it (observed).
        if outcome.result_sets > 0 || outcome.warnings > 0 {
            self.row_count = -1;
        }
    }

    fn fold_statement(&mut self, books: &mut Books, outcome: &Outcome, ran: &Ran<'_>) {
        let failed = outcome.error.is_some();
        let held_id = books.holds(self.uid, self.insert_id.at);
        let held_rows = books.holds(self.uid, self.found_rows.at);
        let held_messages = books.holds(self.uid, self.messages.at);
        let unread_rows = held_rows && books.unread().found_rows;
        self.collect_saved();
        self.seq += 1;
        books.ran(self.uid, self.seq, &self.store, held_id);
        self.server = Some(books.server());
        self.fold_insert_id(books, outcome, ran, held_id);
        self.fold_messages(books, outcome, ran, held_messages);
        self.row_count = match outcome.ended_ok && !failed {
            true => i64::try_from(outcome.affected_rows).unwrap_or(i64::MAX),
            false => -1,
        };
        self.fold_found_rows(books, outcome, ran, (held_rows, unread_rows));
        let asked = [self.messages.at, self.insert_id.at, self.found_rows.at];
        self.store
            .retain(|seq| asked.iter().flatten().any(|at| at.1 == seq));
    }

    /// `held`: the connection had it before the statement.
    fn fold_insert_id(&mut self, books: &mut Books, outcome: &Outcome, ran: &Ran<'_>, held: bool) {
        let here = Some((books.server(), self.seq));
        if held {
            self.insert_id.at = here;
        }
        let class = ran.class;
        // The rows before the one that failed have set it (observed).
        let failed_insert =
            outcome.error.is_some() && matches!(class.kind, Kind::Insert | Kind::Replace);
        let sets = sets_insert_id(class, ran.text);
        let may_set = outcome.insert_id != 0
            || failed_insert
            || sets
            || class
                .flags
                .intersects(Flags::SETS_LAST_INSERT_ID | Flags::RETURNING)
            || !class.functions.is_empty()
            || class.is(Traits::SETS_ID_UNTOLD);
        if !may_set {
            return;
        }
        let before = books.generates_insert_id();
        if sets || before == Some(self.insert_id.value) {
            self.insert_id.before = IdBefore::Own;
        } else if !held || before.is_some() {
            self.insert_id.before = IdBefore::blank(before);
        }
        self.insert_id.at = here;
        self.insert_id.seen = match failed_insert {
            true => self.insert_id.value,
            false => outcome.insert_id,
        };
    }

    /// `held`: the connection had the messages of the statement before.
    fn fold_messages(&mut self, books: &mut Books, outcome: &Outcome, ran: &Ran<'_>, held: bool) {
        let here = Some((books.server(), self.seq));
        let failed = outcome.error.is_some();
        self.messages.ok_count = match ran.class.kind {
            // RESIGNAL adds to the messages there are.
            Kind::Signal if failed => Some(1),
            _ => None,
        };
        if failed || outcome.warnings > 0 {
            books.has_messages(true);
            self.messages.at = here;
            self.messages.count = u64::from(outcome.warnings);
            if let Some(error) = &outcome.error {
                self.messages.last_error = Some((error.code, error.state));
            }
            return;
        }
        let (stay, own) = match before(ran.family, ran.class, ran.text) {
            Before::Cleared => (false, false),
            Before::Kept => (true, false),
            Before::Unknown => (held, false),
            // One of several may have left some: the connection is asked.
            Before::Own => (true, true),
        };
        if !stay {
            books.has_messages(false);
            self.messages.at = None;
        } else if held || own {
            books.has_messages(true);
            self.messages.at = here;
        }
    }

    /// `held`: the connection had the number before the statement; and it alone did.
    fn fold_found_rows(
        &mut self,
        books: &mut Books,
        outcome: &Outcome,
        ran: &Ran<'_>,
        (held, unread): (bool, bool),
    ) {
        let found = found_rows(ran.family, ran.counted, outcome);
        match found {
            Found::Rows(rows) => (self.found_rows.count, self.found_rows.known) = (rows, true),
            Found::Unknown => self.found_rows.known = false,
            // Should the connection be lost, the number from before is as good as any.
            Found::Perhaps | Found::Kept => {}
        }
        // Whoever takes the connection reads it first, whatever has run on it since.
        books.has_found_rows(match found {
            Found::Rows(_) => false,
            Found::Unknown => true,
            Found::Perhaps => held,
            Found::Kept => unread,
        });
        if held || matches!(found, Found::Rows(_) | Found::Unknown) {
            self.found_rows.at = Some((books.server(), self.seq));
        }
    }

    /// What COM_STMT_PREPARE leaves, where it succeeds: it runs nothing, so that what the session may
    /// ask about its last statement stays as it was, but for the messages. They are now the ones of
    /// preparing; where there are none, MySQL's are gone, and MariaDB's where `class` reads a table
    /// (observed).
    pub fn fold_prepared(
        &mut self,
        books: &mut Books,
        warnings: u16,
        family: Family,
        class: &Statement,
    ) {
        let own = books.is_of(self.uid) && books.last_seq() != 0;
        if !own {
            self.seq += 1;
            // What is asked of the last statement is answered from what is known of it.
            self.server = None;
            books.ran(self.uid, self.seq, &self.store, false);
        }
        if warnings > 0 {
            books.has_messages(true);
            self.messages.at = Some(books.last_statement());
            self.messages.count = u64::from(warnings);
        } else if family == Family::MySql || !class.tables.is_empty() {
            if own {
                books.has_messages(false);
            }
            self.messages.at = None;
        }
    }

    /// The statement that a statement about messages asks about. GET DIAGNOSTICS, which assigns
    /// variables, also tells the number of rows of one without messages.
    pub fn diagnosed(&self, class: &Statement) -> Option<StatementAt> {
        let also_rows = class.flags.contains(Flags::ASSIGNS_USER_VARS);
        self.messages
            .at
            .or_else(|| self.last_at().filter(|_| also_rows))
    }
}

/// What becomes of the messages of the statement before, where this one has none. On MariaDB
/// (observed) a statement that reads no table leaves them.
fn before(family: Family, class: &Statement, text: &[u8]) -> Before {
    if family == Family::MySql {
        return Before::Cleared;
    }
    match class.kind {
        Kind::Multi => Before::Own,
        _ if !class.tables.is_empty() || class.flags.contains(Flags::COMPOUND_QUERY) => {
            Before::Cleared
        }
        Kind::Select
        | Kind::Set
        | Kind::SetTransaction
        | Kind::SetRole
        | Kind::Do
        | Kind::Use
        | Kind::Begin
        | Kind::Commit
        | Kind::Rollback
        | Kind::Savepoint
        | Kind::ReleaseSavepoint
        | Kind::RollbackTo
        | Kind::UnlockTables
        | Kind::Deallocate
        | Kind::Xa(_)
            if class.functions.is_empty() =>
        {
            Before::Kept
        }
        // What they run may read tables.
        Kind::Select | Kind::Set | Kind::Do | Kind::Call | Kind::Prepare | Kind::Execute { .. } => {
            Before::Unknown
        }
        Kind::Ddl | Kind::Account | Kind::Flush { .. } if opens_unseen(text) => Before::Cleared,
        Kind::Flush { .. }
        | Kind::Help
        | Kind::Command
        | Kind::Explain { .. }
        | Kind::SetPassword
        | Kind::Show(Show::Grants | Show::Create) => Before::Kept,
        Kind::Ddl | Kind::Account => Before::Kept,
        _ => Before::Cleared,
    }
}

/// SHOW COUNT(*) or SELECT @@warning_count, whose one row counts; SHOW WARNINGS counts none.
fn counts_messages(class: &Statement, text: &[u8]) -> bool {
    let mut words = text.split(|byte| byte.is_ascii_whitespace() || *byte == b'(');
    let is_count = |word: &[u8]| word.eq_ignore_ascii_case(b"count");
    class.flags.contains(Flags::READS_SYSVARS) || words.nth(1).is_some_and(is_count)
}

/// SET last_insert_id = …
fn sets_insert_id(class: &Statement, text: &[u8]) -> bool {
    class
        .assignments
        .iter()
        .any(|assignment| match assignment.target {
            Target::System { name, .. } => {
                let name = name.of(text);
                ["last_insert_id", "identity"]
                    .iter()
                    .any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
            }
            _ => false,
        })
}

/// GRANT, REVOKE, CREATE and ALTER EVENT and TRIGGER, and FLUSH TABLES with names: of what names no table that is looked
/// at, these open some (observed).
fn opens_unseen(text: &[u8]) -> bool {
    // A definer may stand before the word.
    const HEAD: usize = 128;
    let words = words(&text[..text.len().min(HEAD)]);
    let (first, rest) = words.split_once(' ').unwrap_or_default();
    match first {
        "grant" | "revoke" => true,
        "flush" => {
            let mut rest = rest.split(' ');
            matches!(rest.next(), Some("table" | "tables"))
                && rest.next().is_some_and(|it| it != "with")
        }
        "create" | "alter" => rest
            .split(' ')
            .any(|word| matches!(word, "event" | "trigger")),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use millrace_protocol::ServerError;
    use millrace_sql::{LexMode, classify};
    use millrace_topology::ServerId;

    use super::*;

    const ME: u64 = 7;
    const OTHER: u64 = 8;

    /// One session, and the connections that it is lent.
    struct Stage {
        family: Family,
        last: LastStatement,
    }

    /// An OK without rows.
    fn ok() -> Outcome {
        Outcome {
            ended_ok: true,
            ..Outcome::default()
        }
    }

    fn rows(rows: u64) -> Outcome {
        Outcome {
            result_sets: 1,
            rows,
            ..Outcome::default()
        }
    }

    fn error(code: u16) -> Outcome {
        Outcome {
            error: Some(Box::new(ServerError::new(code, b"42000", "no"))),
            ..Outcome::default()
        }
    }

    impl Stage {
        fn new(family: Family) -> Stage {
            Stage {
                family,
                last: LastStatement::new(family, ME, Rc::default()),
            }
        }

        /// A statement of the session runs on a connection.
        fn run(&mut self, books: &mut Books, text: &str, outcome: &Outcome) {
            let mode = LexMode::new(self.family, 101_100);
            let mut class = Statement::default();
            classify(text.as_bytes(), &mode, &mut class);
            let ran = Ran {
                family: self.family,
                task: Task::Query,
                class: &class,
                counted: &class,
                text: text.as_bytes(),
            };
            self.last.fold(books, outcome, &ran);
        }
    }

    fn connection(server: u16) -> Books {
        Books::new(ServerId(server))
    }

    #[test]
    fn an_insert_leaves_its_number_where_it_ran() {
        let (mut stage, mut here, mut there) =
            (Stage::new(Family::MySql), connection(0), connection(1));
        let inserted = Outcome {
            insert_id: 12,
            affected_rows: 1,
            ..ok()
        };
        stage.run(&mut here, "INSERT INTO t VALUES (NULL)", &inserted);
        assert_eq!(stage.last.row_count, 1);
        assert!(here.holds(ME, stage.last.insert_id.at));
        assert!(
            here.is_missed_by_other(OTHER),
            "another session has to save it"
        );
        stage.run(&mut there, "SELECT * FROM t", &rows(3));
        assert!(here.holds(ME, stage.last.insert_id.at), "it is still there");
        assert!(!there.is_missed_by_other(OTHER));
        assert_eq!((stage.last.found_rows.count, stage.last.row_count), (3, -1));
        // A statement on the connection that has it takes it along.
        stage.run(&mut here, "SELECT 1", &rows(1));
        assert!(here.holds(ME, stage.last.insert_id.at));
    }

    #[test]
    fn an_insert_that_failed_may_have_set_its_number() {
        let (mut stage, mut here) = (Stage::new(Family::MySql), connection(0));
        stage.last.insert_id.value = 5;
        stage.run(&mut here, "INSERT INTO t VALUES (NULL),(1)", &error(1062));
        assert!(here.holds(ME, stage.last.insert_id.at));
        assert_eq!(
            stage.last.insert_id.seen, 5,
            "until it is read, it is what it was"
        );
        assert_eq!(stage.last.messages.last_error, Some((1062, *b"42000")));
        assert!(here.unread().diagnostics);
    }

    #[test]
    fn messages_last_until_a_statement_clears_them() {
        for (family, text, stay) in [
            (Family::MySql, "SELECT 1", false),
            (Family::MySql, "SET @a=1", false),
            (Family::MariaDb, "SELECT 1", true),
            (Family::MariaDb, "SET @a=1", true),
            (Family::MariaDb, "SELECT a FROM t", false),
            (Family::MariaDb, "SAVEPOINT a", true),
            (Family::MariaDb, "DROP VIEW v", false),
        ] {
            let (mut stage, mut here) = (Stage::new(family), connection(0));
            stage.run(
                &mut here,
                "SELECT 1/0",
                &Outcome {
                    warnings: 1,
                    ..rows(1)
                },
            );
            assert!(here.holds(ME, stage.last.messages.at));
            let answer = if text.starts_with("SELECT") {
                rows(1)
            } else {
                ok()
            };
            stage.run(&mut here, text, &answer);
            assert_eq!(stage.last.messages.at.is_some(), stay, "{family:?} {text}");
            assert_eq!(here.unread().diagnostics, stay, "{family:?} {text}");
        }
    }

    #[test]
    fn asking_for_messages_leaves_them() {
        let (mut stage, mut here) = (Stage::new(Family::MySql), connection(0));
        stage.run(&mut here, "SELEC 1", &error(1064));
        let at = stage.last.messages.at;
        stage.run(&mut here, "SHOW WARNINGS", &rows(1));
        assert_eq!(stage.last.messages.at, at);
        assert!(here.holds(ME, at));
        assert_eq!(stage.last.row_count, -1);
        // On another connection it is nobody's afterwards.
        let mut there = connection(1);
        stage.run(&mut there, "SHOW WARNINGS", &rows(1));
        assert!(!there.is_of(ME));
    }

    #[test]
    fn a_number_of_rows_that_only_the_server_knows_stays_to_be_read() {
        let (mut stage, mut here) = (Stage::new(Family::MySql), connection(0));
        stage.run(
            &mut here,
            "SELECT SQL_CALC_FOUND_ROWS a FROM t LIMIT 1",
            &rows(1),
        );
        assert!(!stage.last.found_rows.known && here.unread().found_rows);
        // INSERT leaves the number, wherever it runs.
        stage.run(&mut here, "INSERT INTO t VALUES (1)", &ok());
        assert!(!stage.last.found_rows.known && here.unread().found_rows);
        assert!(here.holds(ME, stage.last.found_rows.at));
        stage.run(&mut here, "SELECT a FROM t", &rows(4));
        assert!(stage.last.found_rows.known && !here.unread().found_rows);
        assert_eq!(stage.last.found_rows.count, 4);
    }

    #[test]
    fn a_sign_of_life_asks_nothing() {
        let (mut stage, mut here) = (Stage::new(Family::MySql), connection(0));
        stage.run(&mut here, "SELEC 1", &error(1064));
        let before = (stage.last.seq, stage.last.messages.at);
        let class = Statement {
            kind: Kind::Ping,
            ..Statement::default()
        };
        let ran = Ran {
            family: Family::MySql,
            task: Task::Ping,
            class: &class,
            counted: &class,
            text: b"",
        };
        stage.last.fold(&mut here, &ok(), &ran);
        assert_eq!((stage.last.seq, stage.last.messages.at), before);
        assert_eq!(stage.last.row_count, 0);
    }

    #[test]
    fn mariadb_writes_may_draw_from_sequences() {
        let (mut stage, mut here) = (Stage::new(Family::MariaDb), connection(0));
        stage.run(&mut here, "INSERT INTO t VALUES (1)", &ok());
        assert!(here.holds(ME, stage.last.drew_at) && here.drew_for_other(OTHER));
        stage.run(&mut here, "SELECT 1", &rows(1));
        assert!(here.holds(ME, stage.last.drew_at), "it went along");
        let (mut stage, mut here) = (Stage::new(Family::MySql), connection(0));
        stage.run(&mut here, "INSERT INTO t VALUES (1)", &ok());
        assert_eq!(stage.last.drew_at, None);
    }
}
