//! What a statement in the log does, as far as the cache asks. What is not understood may have done anything.

use millrace_cache::{Subject, XaId};
use millrace_protocol::binlog::query::{Query, Settings};
use millrace_sql::ident::unquote_ident;
use millrace_sql::{
    Charset, Family, Flags, Kind, LexMode, Statement, TableRef, TableUse, XaOp, classify,
};

use super::catalogue::Catalogue;

/// What a statement does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing that results depend on.
    Nothing,
    /// A transaction begins, if none has.
    Begin,
    /// The transaction is over, and what it did stays: also with ROLLBACK, which is in the log only where something
    /// cannot be taken back.
    End,
    /// What was prepared is committed or rolled back.
    Complete(XaId, bool),
    /// It changes rows of these tables.
    Rows(Vec<Subject>),
    /// It changes what accounts may do.
    Rights,
    /// These tables are no longer what they were; none: any may not be.
    Redefines(Option<Vec<Subject>>),
    /// It may have changed anything.
    Unknown,
}

/// Reads statements. Keeps the memory that this takes.
#[derive(Debug)]
pub(super) struct Reader {
    /// The server that wrote the log.
    family: Family,
    version: u32,
    statement: Statement,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            family: Family::MySql,
            version: 0,
            statement: Statement::default(),
        }
    }
}

impl Reader {
    /// As FORMAT_DESCRIPTION names the server that wrote what follows.
    pub(super) fn of_server(&mut self, version: &[u8], is_mariadb: bool) {
        self.family = match is_mariadb {
            true => Family::MariaDb,
            false => Family::MySql,
        };
        let mut parts = version
            .split(|byte| !byte.is_ascii_digit())
            .map(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
        let mut next = || parts.next().flatten().unwrap_or(0).min(99);
        self.version = next() * 10_000 + next() * 100 + next();
    }

    /// What the statement does. `text`: the query's, made plain.
    pub(super) fn read(&mut self, query: &Query<'_>, text: &[u8], known: &Catalogue) -> Meaning {
        match text {
            b"BEGIN" => return Meaning::Begin,
            b"COMMIT" => return Meaning::End,
            _ => {}
        }
        let Some(mode) = self.mode(&query.settings, text) else {
            return Meaning::Unknown;
        };
        classify(text, &mode, &mut self.statement);
        let statement = &self.statement;
        const PARTIAL: Flags = Flags::TRUNCATED.union(Flags::UNTERMINATED);
        if statement.parts > 1 || statement.flags.intersects(PARTIAL) {
            return Meaning::Unknown;
        }
        let named = Named {
            text,
            database: query.database,
            known,
        };
        match statement.kind {
            Kind::Empty | Kind::Savepoint | Kind::ReleaseSavepoint | Kind::RollbackTo => {
                Meaning::Nothing
            }
            Kind::Begin => Meaning::Begin,
            Kind::Commit | Kind::Rollback => Meaning::End,
            Kind::Xa(op) => xa(op, text),
            Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete | Kind::LoadData { .. } => {
                named.rows(statement)
            }
            Kind::Account | Kind::SetPassword | Kind::SetDefaultRole => Meaning::Rights,
            Kind::Ddl => named.definition(statement),
            Kind::Admin if is_upkeep(text) => Meaning::Nothing,
            Kind::Flush { .. } => match has_word(text, b"privileges") {
                true => Meaning::Rights,
                false => Meaning::Nothing,
            },
            _ => Meaning::Unknown,
        }
    }

    /// How the text is to be read; none where the log does not tell.
    fn mode(&self, settings: &Settings, text: &[u8]) -> Option<LexMode> {
        // MySQL, sql/system_variables.h and MariaDB, sql/sql_class.h, `MODE_…`: the same numbers, of which MySQL
        // has given up the older.
        const ANSI_QUOTES: u64 = 1 << 2;
        const IGNORE_SPACE: u64 = 1 << 3;
        const ORACLE: u64 = 1 << 9;
        const MSSQL: u64 = 1 << 10;
        const NO_BACKSLASH_ESCAPES: u64 = 1 << 20;
        if !settings.are_complete {
            return None;
        }
        let has = |bit: u64| settings.sql_mode.map(|mode| mode & bit != 0);
        let is_mariadb = self.family == Family::MariaDb;
        let mut mode = LexMode::new(self.family, self.version);
        mode.ansi_quotes = has(ANSI_QUOTES)?;
        mode.ignore_space = has(IGNORE_SPACE)?;
        mode.no_backslash_escapes = has(NO_BACKSLASH_ESCAPES)?;
        mode.oracle_mode = has(ORACLE)? && is_mariadb;
        mode.bracket_quotes = has(MSSQL)? && is_mariadb;
        // In all character sets that clients may have, ASCII is ASCII.
        if !text.is_ascii() {
            mode.charset = Charset::from_collation_id(settings.collations?[0]);
        }
        Some(mode)
    }
}

/// A statement's tables, and what is known of tables.
struct Named<'a> {
    text: &'a [u8],
    database: &'a [u8],
    known: &'a Catalogue,
}

impl Named<'_> {
    /// All tables that the statement names; none where one cannot be told: its name may be that of one that is known
    /// (K as the Kelvin sign, where names are lowered).
    fn tables(&self, statement: &Statement) -> Option<Vec<Subject>> {
        let subject = |table: &TableRef| {
            let schema = table
                .schema
                .map(|schema| unquote_ident(schema.of(self.text)));
            let database = schema.as_deref().unwrap_or(self.database);
            let name = unquote_ident(table.name.of(self.text));
            self.known.definitions.subject(database, &name)
        };
        statement.tables.iter().map(subject).collect()
    }

    /// Of a statement that changes rows, its text says which tables only where no trigger, view or routine is in the way.
    fn rows(&self, statement: &Statement) -> Meaning {
        let tables = self.tables(statement).unwrap_or_default();
        let is_plain = |subject| self.known.is_plain(subject);
        let are_plain = !tables.is_empty() && tables.iter().all(is_plain);
        match are_plain && statement.functions.is_empty() {
            true => Meaning::Rows(tables),
            false => Meaning::Unknown,
        }
    }

    fn definition(&self, statement: &Statement) -> Meaning {
        const TEMPORARY: Flags = Flags::CREATES_TEMP_TABLE.union(Flags::DROPS_TEMP_TABLE);
        // Views, and what the classifier reads over: EXCHANGE PARTITION names a second table.
        const FAR: [&[u8]; 3] = [b"view", b"exchange", b"trigger"];
        if !statement.functions.is_empty() {
            return Meaning::Unknown;
        }
        if statement.flags.intersects(TEMPORARY) {
            return Meaning::Nothing;
        }
        let defines = |table: &TableRef| table.usage == TableUse::Define;
        let is_near = statement.name.is_none()
            && statement.tables.iter().any(defines)
            && !FAR.iter().any(|word| has_word(self.text, word));
        Meaning::Redefines(self.tables(statement).filter(|_| is_near))
    }
}

/// Whether the word stands anywhere in the text; letters in any case.
fn has_word(text: &[u8], word: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    text.split(|byte| !is_letter(byte))
        .any(|found| found.eq_ignore_ascii_case(word))
}

/// ANALYZE TABLE and the like: they change no row, and what they find out changes no result but its order.
fn is_upkeep(text: &[u8]) -> bool {
    const VERBS: [&[u8]; 5] = [b"analyze", b"optimize", b"repair", b"check", b"checksum"];
    let verb = text.split(|byte| !byte.is_ascii_alphabetic()).next();
    verb.is_some_and(|verb| VERBS.iter().any(|known| known.eq_ignore_ascii_case(verb)))
}

fn xa(op: XaOp, text: &[u8]) -> Meaning {
    let is_committed = match op {
        XaOp::Start => return Meaning::Begin,
        XaOp::End | XaOp::Prepare | XaOp::Recover => return Meaning::Nothing,
        XaOp::Commit { one_phase: true } => return Meaning::End,
        XaOp::Commit { one_phase: false } => true,
        XaOp::Rollback => false,
    };
    match xa_id(text) {
        Some(id) => Meaning::Complete(id, is_committed),
        None => Meaning::Unknown,
    }
}

/// The identifier as servers write it into the log: `XA COMMIT X'3161',X'',1` (observed on MySQL 9.7 and MariaDB
/// 10.11).
fn xa_id(text: &[u8]) -> Option<XaId> {
    let at = text.iter().position(|byte| matches!(byte, b'X' | b'x'))?;
    let from = text[at + 1..].windows(2).position(|two| two == b"X'")?;
    let mut parts = text[at + 1 + from..].split(|byte| *byte == b',');
    let (gtrid, bqual) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let format = std::str::from_utf8(parts.next()?.trim_ascii()).ok()?;
    let is_over = parts.next().is_none();
    is_over.then_some(XaId::new(format.parse().ok()?, &gtrid, &bqual))
}

/// `X'3161'`.
fn hex(literal: &[u8]) -> Option<Vec<u8>> {
    let digits = literal.trim_ascii().strip_prefix(b"X'")?;
    let digits = digits.strip_suffix(b"'")?;
    let value = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some((value(*high)? * 16 + value(*low)?) as u8),
        _ => None,
    };
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::SchemaRows;
    use super::*;
    use millrace_protocol::binlog::payload::Packed;

    fn catalogue() -> Catalogue {
        let row = |name: &str| vec![Some(b"d".to_vec()), Some(name.as_bytes().to_vec())];
        Catalogue::new(&SchemaRows {
            tables: ["a", "b", "with_trigger"].map(row).to_vec(),
            triggers: Some(vec![row("with_trigger")]),
            ..SchemaRows::default()
        })
    }

    fn read(family: Family, text: &str) -> Meaning {
        let mut reader = Reader::default();
        match family {
            Family::MySql => reader.of_server(b"9.7.4", false),
            Family::MariaDb => reader.of_server(b"10.11.19-MariaDB-log", true),
        }
        let query = Query {
            thread_id: 1,
            error: 0,
            database: b"d",
            settings: Settings {
                options: None,
                sql_mode: Some(0),
                collations: Some([255, 255, 255]),
                are_complete: true,
            },
            text: Packed::Plain(text.as_bytes()),
            loads_data: false,
        };
        reader.read(&query, text.as_bytes(), &catalogue())
    }

    fn of(names: &str) -> Vec<Subject> {
        let subject = |name: &str| match name.split_once('.') {
            Some((database, name)) => Subject::table(database.as_bytes(), name.as_bytes()),
            None => Subject::table(b"d", name.as_bytes()),
        };
        names.split_whitespace().map(subject).collect()
    }

    #[test]
    fn statements_of_the_log() {
        let redefines = |names| Meaning::Redefines(Some(of(names)));
        let xa = |committed| Meaning::Complete(XaId::new(1, b"1a", b""), committed);
        for (text, expected) in [
            ("BEGIN", Meaning::Begin),
            ("COMMIT", Meaning::End),
            ("ROLLBACK", Meaning::End),
            ("SAVEPOINT `x`", Meaning::Nothing),
            ("ROLLBACK TO `x`", Meaning::Nothing),
            ("# Dummy event", Meaning::Nothing),
            ("XA START X'3161',X'',1", Meaning::Begin),
            ("XA END X'3161',X'',1", Meaning::Nothing),
            ("XA COMMIT X'3161',X'',1", xa(true)),
            ("XA ROLLBACK X'3161',X'',1", xa(false)),
            ("XA COMMIT '1a'", Meaning::Unknown),
            ("insert into a values (1)", Meaning::Rows(of("a"))),
            ("replace a select * from d.b", Meaning::Rows(of("a d.b"))),
            ("update a, b set a.x=1", Meaning::Rows(of("a b"))),
            ("delete from a where x=now()", Meaning::Rows(of("a"))),
            ("insert into a values (f(1))", Meaning::Unknown),
            ("insert into with_trigger values (1)", Meaning::Unknown),
            ("insert into v values (1)", Meaning::Unknown),
            ("insert into `ä` values (1)", Meaning::Unknown),
            ("select f(1)", Meaning::Unknown),
            ("do f(1)", Meaning::Unknown),
            ("grant select on a to x@y", Meaning::Rights),
            ("drop role r", Meaning::Rights),
            ("set password for x@y='z'", Meaning::Rights),
            ("set default role r to x", Meaning::Rights),
            ("create user x identified by 'z'", Meaning::Rights),
            ("flush privileges", Meaning::Rights),
            ("flush tables", Meaning::Nothing),
            ("analyze table a", Meaning::Nothing),
            ("OPTIMIZE NO_WRITE_TO_BINLOG TABLE a", Meaning::Nothing),
            ("install plugin p soname 'p.so'", Meaning::Unknown),
            ("truncate a", redefines("a")),
            ("alter table e.a add y int", redefines("e.a")),
            ("alter table a rename to c", redefines("a c")),
            (
                "rename table a to x, b to a, x to b",
                redefines("a x b a x b"),
            ),
            (
                "DROP TABLE `a`,`b` /* generated by server */",
                redefines("a b"),
            ),
            ("create index i on a (x)", redefines("a")),
            ("drop index i on a", redefines("a")),
            ("create table c like a", redefines("c a")),
            (
                "CREATE TABLE `c` (\n  `a` int\n) START TRANSACTION",
                redefines("c"),
            ),
            ("drop temporary table if exists a", Meaning::Nothing),
            (
                "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `a`",
                Meaning::Nothing,
            ),
            ("create temporary table a (x int)", Meaning::Nothing),
            (
                "alter table a exchange partition p with table b",
                Meaning::Redefines(None),
            ),
            (
                "create or replace view v as select 1 from a",
                Meaning::Redefines(None),
            ),
            ("drop view v", Meaning::Redefines(None)),
            (
                "create trigger t after insert on a for each row set @x=1",
                Meaning::Redefines(None),
            ),
            ("drop trigger t", Meaning::Redefines(None)),
            ("create procedure p() select 1", Meaning::Redefines(None)),
            ("drop database d", Meaning::Redefines(None)),
            ("alter table `ä` add y int", Meaning::Redefines(None)),
            ("truncate a; truncate b", Meaning::Unknown),
            ("frobnicate a", Meaning::Unknown),
        ] {
            for family in [Family::MySql, Family::MariaDb] {
                assert_eq!(read(family, text), expected, "{family:?}: {text}");
            }
        }
        assert_eq!(
            read(
                Family::MariaDb,
                "SET STATEMENT binlog_format='STATEMENT' FOR insert into a values (1)"
            ),
            Meaning::Rows(of("a"))
        );
    }

    #[test]
    fn settings_that_are_not_known_are_not_guessed() {
        let query = |settings| Query {
            thread_id: 1,
            error: 0,
            database: b"d",
            settings,
            text: Packed::Plain(b""),
            loads_data: false,
        };
        let mut reader = Reader::default();
        let settings = Settings {
            are_complete: true,
            ..Settings::default()
        };
        let text = b"insert into a values (1)";
        assert_eq!(
            reader.read(&query(settings), text, &catalogue()),
            Meaning::Unknown
        );
        let settings = Settings {
            sql_mode: Some(4),
            ..settings
        };
        let quoted = b"insert into \"a\" values (1)";
        assert_eq!(
            reader.read(&query(settings), quoted, &catalogue()),
            Meaning::Rows(of("a"))
        );
    }
}
