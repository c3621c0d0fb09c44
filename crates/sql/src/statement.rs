//! The answer of the classifier: plain data about one statement. Holds spans into the
//! statement's text, never copies of it.

use bitflags::bitflags;
use smallvec::SmallVec;

/// A range of bytes in the statement's text: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes of `text` that the span covers; empty where it does not fit `text`.
    pub fn of<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        text.get(self.start as usize..self.end as usize)
            .unwrap_or(&[])
    }
}

/// What an EXPLAIN is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Explained {
    /// A statement.
    Statement,
    /// A table: its columns, as SHOW COLUMNS lists them.
    Table,
    /// What another connection runs (FOR CONNECTION).
    Connection,
}

/// Where a statement may run. Ordered: a multi-statement needs the highest of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Access {
    /// Concerns nothing but the session: SET of session or user variables to values that need no
    /// table, USE, BEGIN, COMMIT, SAVEPOINT, … and the empty statement.
    Session,
    /// Only reads, and any server with the data may answer.
    Read,
    /// Only reads, but answers must come from the primary: server-local information, locking
    /// functions' state, …
    PrimaryRead,
    /// May change something, or is not understood: the primary only.
    #[default]
    Write,
}

/// What a statement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// Not understood: primary, on a connection of its own.
    #[default]
    Unknown,
    /// No token at all: nothing, blanks or comments only.
    Empty,
    /// Several statements; see [`Statement::parts`] and [`parts`](crate::parts).
    Multi,
    /// SELECT, WITH … SELECT, VALUES, TABLE, parenthesised or not.
    Select,
    /// SHOW, but for warnings and errors, which are [`Kind::Diagnostics`].
    Show(Show),
    /// EXPLAIN, DESCRIBE, DESC of a statement, a table or FOR CONNECTION.
    /// `analyze`: the statement runs (EXPLAIN ANALYZE, MariaDB's ANALYZE statement).
    Explain {
        /// The explained statement is executed.
        analyze: bool,
        /// What is explained.
        of: Explained,
    },
    /// INSERT.
    Insert,
    /// REPLACE.
    Replace,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// LOAD DATA or LOAD XML.
    LoadData {
        /// LOCAL: the client sends the file.
        local: bool,
    },
    /// CALL; [`Statement::name`] is the procedure.
    Call,
    /// DO.
    Do,
    /// SET of variables, NAMES, CHARACTER SET; see [`Statement::assignments`].
    Set,
    /// SET [GLOBAL | SESSION] TRANSACTION.
    SetTransaction,
    /// SET PASSWORD.
    SetPassword,
    /// SET ROLE.
    SetRole,
    /// SET DEFAULT ROLE.
    SetDefaultRole,
    /// SET RESOURCE GROUP.
    SetResourceGroup,
    /// USE; [`Statement::name`] is the database.
    Use,
    /// BEGIN or START TRANSACTION.
    Begin,
    /// COMMIT.
    Commit,
    /// ROLLBACK, but not to a savepoint.
    Rollback,
    /// SAVEPOINT; [`Statement::name`].
    Savepoint,
    /// RELEASE SAVEPOINT; [`Statement::name`].
    ReleaseSavepoint,
    /// ROLLBACK TO SAVEPOINT; [`Statement::name`].
    RollbackTo,
    /// CREATE, ALTER, DROP, RENAME, TRUNCATE of anything but accounts.
    Ddl,
    /// LOCK TABLES, LOCK INSTANCE FOR BACKUP, MariaDB's BACKUP LOCK and BACKUP STAGE.
    LockTables,
    /// UNLOCK TABLES, UNLOCK INSTANCE, BACKUP UNLOCK.
    UnlockTables,
    /// FLUSH. `read_lock`: WITH READ LOCK or FOR EXPORT.
    Flush {
        /// Leaves locks behind that only the session can release.
        read_lock: bool,
    },
    /// PREPARE; [`Statement::name`], [`Statement::source`].
    Prepare,
    /// EXECUTE; [`Statement::name`], or EXECUTE IMMEDIATE with [`Statement::source`].
    Execute {
        /// EXECUTE IMMEDIATE.
        immediate: bool,
    },
    /// DEALLOCATE PREPARE or DROP PREPARE; [`Statement::name`].
    Deallocate,
    /// KILL; see [`Statement::kill`].
    Kill,
    /// HANDLER; [`Statement::name`] is the table or alias.
    Handler(HandlerOp),
    /// XA.
    Xa(XaOp),
    /// SHOW WARNINGS, SHOW ERRORS, GET DIAGNOSTICS, and a SELECT that reads no table and whose
    /// only matter is @@warning_count or @@error_count: about the statement before.
    Diagnostics,
    /// SIGNAL or RESIGNAL.
    Signal,
    /// Accounts and privileges: GRANT, REVOKE, CREATE/ALTER/DROP/RENAME USER or ROLE.
    Account,
    /// Administration: ANALYZE/OPTIMIZE/CHECK/REPAIR/CHECKSUM TABLE, RESET, PURGE, replication
    /// control, INSTALL, CLONE, SHUTDOWN, …
    Admin,
    /// HELP.
    Help,
    /// No statement, but a command of the protocol that none says the same as; never what a text is.
    Command,
    /// COM_PING; never what a text is.
    Ping,
}

/// Which SHOW.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Show {
    /// SHOW [GLOBAL | SESSION] VARIABLES.
    Variables,
    /// SHOW [GLOBAL | SESSION] STATUS and MariaDB's statistics tables.
    Status,
    /// SHOW PROCESSLIST.
    Processlist,
    /// SHOW REPLICA/SLAVE STATUS, REPLICAS, RELAYLOG EVENTS.
    Replica,
    /// SHOW MASTER STATUS, BINARY LOGS, BINLOG EVENTS.
    Binlog,
    /// SHOW ENGINE … STATUS/MUTEX/LOGS.
    Engine,
    /// SHOW PROFILE(S): about earlier statements of the same connection.
    Profile,
    /// SHOW CREATE …
    Create,
    /// SHOW GRANTS.
    Grants,
    /// SHOW DATABASES, TABLES, COLUMNS, TRIGGERS, … : the data dictionary, as replicas share it.
    Metadata,
    /// Other server-local lists: PLUGINS, OPEN TABLES, PRIVILEGES, EVENTS, INDEX, TABLE STATUS, …
    Other,
}

/// Which HANDLER statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandlerOp {
    /// HANDLER t OPEN.
    Open,
    /// HANDLER t READ.
    Read,
    /// HANDLER t CLOSE.
    Close,
}

/// Which XA statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XaOp {
    /// XA START or XA BEGIN.
    Start,
    /// XA END.
    End,
    /// XA PREPARE.
    Prepare,
    /// XA COMMIT.
    Commit {
        /// ONE PHASE.
        one_phase: bool,
    },
    /// XA ROLLBACK.
    Rollback,
    /// XA RECOVER.
    Recover,
}

bitflags! {
    /// What else is to be known about a statement. For several statements, the union.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u64 {
        /// FOR UPDATE, FOR SHARE, LOCK IN SHARE MODE.
        const LOCKING_READ = 1 << 0;
        /// INTO OUTFILE or INTO DUMPFILE.
        const INTO_OUTFILE = 1 << 1;
        /// SELECT … INTO @v (or a routine's variable).
        const INTO_VARIABLE = 1 << 2;
        /// SQL_CALC_FOUND_ROWS.
        const CALC_FOUND_ROWS = 1 << 3;
        /// FOUND_ROWS().
        const USES_FOUND_ROWS = 1 << 4;
        /// ROW_COUNT().
        const USES_ROW_COUNT = 1 << 5;
        /// LAST_INSERT_ID() without argument, @@last_insert_id, @@identity.
        const USES_LAST_INSERT_ID = 1 << 6;
        /// LAST_INSERT_ID(expr): sets it.
        const SETS_LAST_INSERT_ID = 1 << 7;
        /// CONNECTION_ID(), @@pseudo_thread_id.
        const USES_CONNECTION_ID = 1 << 8;
        /// Reads a user variable (`@x`).
        const READS_USER_VARS = 1 << 9;
        /// Assigns a user variable: `:=`, INTO @x, SET @x, and anything that may.
        const ASSIGNS_USER_VARS = 1 << 10;
        /// GET_LOCK.
        const ACQUIRES_USER_LOCK = 1 << 11;
        /// RELEASE_LOCK.
        const RELEASES_USER_LOCK = 1 << 12;
        /// RELEASE_ALL_LOCKS.
        const RELEASES_ALL_USER_LOCKS = 1 << 13;
        /// IS_USED_LOCK, IS_FREE_LOCK.
        const USES_USER_LOCK_STATE = 1 << 14;
        /// NEXTVAL, NEXT VALUE FOR, LASTVAL, PREVIOUS VALUE FOR, SETVAL, `seq.nextval`.
        const SEQUENCE = 1 << 15;
        /// The result may differ from one execution to the next on the same data: NOW, RAND,
        /// UUID, USER, …
        const NONDETERMINISTIC = 1 << 16;
        /// Reads a system variable (`@@x`).
        const READS_SYSVARS = 1 << 17;
        /// Some identifier or string starts with `session_track`.
        const MENTIONS_SESSION_TRACK = 1 << 18;
        /// Shows session variables: SHOW VARIABLES, performance_schema.session_variables, …
        const SHOWS_VARIABLES = 1 << 19;
        /// Server-local information: status, process list, engines, replication, @@server_id, …
        const SERVER_LOCAL = 1 << 20;
        /// A wait for replication: WAIT_FOR_EXECUTED_GTID_SET, MASTER_GTID_WAIT, …
        const WAITS = 1 << 21;
        /// CREATE TEMPORARY TABLE.
        const CREATES_TEMP_TABLE = 1 << 22;
        /// DROP TEMPORARY TABLE.
        const DROPS_TEMP_TABLE = 1 << 23;
        /// DROP TABLE without TEMPORARY, which drops temporary tables as well.
        const DROPS_TABLE = 1 << 24;
        /// START TRANSACTION WITH CONSISTENT SNAPSHOT.
        const CONSISTENT_SNAPSHOT = 1 << 25;
        /// START TRANSACTION or SET TRANSACTION … READ ONLY.
        const TX_READ_ONLY = 1 << 26;
        /// START TRANSACTION or SET TRANSACTION … READ WRITE.
        const TX_READ_WRITE = 1 << 27;
        /// COMMIT/ROLLBACK AND CHAIN.
        const CHAIN = 1 << 28;
        /// COMMIT/ROLLBACK AND NO CHAIN.
        const NO_CHAIN = 1 << 29;
        /// COMMIT/ROLLBACK RELEASE.
        const RELEASE = 1 << 30;
        /// COMMIT/ROLLBACK NO RELEASE.
        const NO_RELEASE = 1 << 31;
        /// SET TRANSACTION without scope (or `SET @@transaction_isolation`): the next one only.
        const TX_ONE_SHOT = 1 << 32;
        /// Commits an open transaction before (or after) it runs.
        const IMPLICIT_COMMIT = 1 << 33;
        /// SET GLOBAL, PERSIST, PERSIST_ONLY.
        const SETS_GLOBAL = 1 << 34;
        /// A SET value holds a subquery or calls a function that is no built-in.
        const SET_SUBQUERY_OR_CALL = 1 << 35;
        /// INSERT/REPLACE/DELETE … RETURNING.
        const RETURNING = 1 << 36;
        /// PROCEDURE ANALYSE and its like.
        const PROCEDURE_CLAUSE = 1 << 37;
        /// Part of the text stands in an executed `/*! … */`.
        const VERSION_COMMENT = 1 << 38;
        /// An optimizer hint SET_VAR: for this statement only.
        const HINT_SET_VAR = 1 << 39;
        /// MariaDB's SET STATEMENT … FOR.
        const SET_STATEMENT = 1 << 40;
        /// LOAD_FILE().
        const LOAD_FILE = 1 << 41;
        /// An unclosed string, identifier or comment: the server will refuse it.
        const UNTERMINATED = 1 << 42;
        /// Has a `?` parameter marker.
        const PARAMETERS = 1 << 43;
        /// CREATE/ALTER of a stored routine, trigger, event or view; a table or view gets another name.
        const STORED_CODE = 1 << 44;
        /// A subquery, CTE or UNION: more than one query block.
        const COMPOUND_QUERY = 1 << 45;
        /// UUID_SHORT(): values come from the server that runs it.
        const UUID_SHORT = 1 << 46;
        /// @@warning_count or @@error_count, read by a statement that also reads something else.
        const USES_WARNING_COUNT = 1 << 47;
        /// Reads a table of performance_schema, information_schema, sys or mysql.
        const SYSTEM_SCHEMA = 1 << 48;
        /// A partial list: more than can be counted was in the statement (tables, variables, …).
        const TRUNCATED = 1 << 49;
        /// Reads or sets a system variable whose name begins with `millrace_`: one of Millrace's own.
        const MILLRACE_VARIABLE = 1 << 50;
        /// Has a comment that the server skips.
        const COMMENT = 1 << 51;
        /// FLUSH STATUS, SET of `profiling` or `optimizer_trace`: the connection measures what follows.
        const MEASURES = 1 << 52;
        /// CREATE of a trigger.
        const DEFINES_TRIGGER = 1 << 53;
        /// LASTVAL, PREVIOUS VALUE FOR, `seq.currval`: what the connection drew last.
        const ASKS_DRAWN = 1 << 54;
        /// SET of the session's `transaction_isolation` or `transaction_read_only`.
        const SETS_TX_MODES = 1 << 55;
    }
}

/// What a statement does with a table it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableUse {
    /// Reads it (also: may read it).
    Read,
    /// Changes its rows, or may.
    Write,
    /// Creates, alters or drops it.
    Define,
    /// LOCK TABLES.
    Lock,
}

/// A table, view or CTE named in the statement. Quotes are part of the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableRef {
    /// The database, where given.
    pub schema: Option<Span>,
    /// The table.
    pub name: Span,
    /// What is done with it.
    pub usage: TableUse,
}

/// A possibly qualified name. Quotes are part of the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameRef {
    /// The database (or package), where given.
    pub schema: Option<Span>,
    /// The name.
    pub name: Span,
}

/// A system variable that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SysVarRef {
    /// The scope written, Session where none is.
    pub scope: Scope,
    /// The name, with its component's prefix where there is one.
    pub name: Span,
}

/// The scope of a system variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// SESSION, LOCAL or none.
    Session,
    /// GLOBAL.
    Global,
    /// PERSIST.
    Persist,
    /// PERSIST_ONLY.
    PersistOnly,
    /// `SET @@transaction_isolation`, `SET @@transaction_read_only` without scope, SET
    /// TRANSACTION without scope: the next transaction only.
    NextTransaction,
}

/// An isolation level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// READ UNCOMMITTED.
    ReadUncommitted,
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE.
    Serializable,
}

/// What one item of a SET assigns to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// `@name`; the span has no `@` but may have quotes.
    UserVar(Span),
    /// A system variable.
    System {
        /// The scope it is set in.
        scope: Scope,
        /// The name, with its component's prefix where there is one.
        name: Span,
    },
    /// NAMES, with or without COLLATE; the charset is the value (DEFAULT possible).
    Names {
        /// The collation, where given.
        collation: Option<Span>,
    },
    /// CHARACTER SET or CHARSET; the value is the charset (DEFAULT possible).
    CharacterSet,
    /// TRANSACTION characteristics.
    Transaction {
        /// The scope.
        scope: Scope,
        /// ISOLATION LEVEL, where given.
        isolation: Option<Isolation>,
        /// READ ONLY (true) or READ WRITE (false), where given.
        read_only: Option<bool>,
    },
}

/// What is assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// DEFAULT.
    Default,
    /// A number, possibly with a sign.
    Number,
    /// A quoted string without introducer or prefix.
    String,
    /// A bare word: ON, OFF, TRUE, utf8mb4, NULL, …
    Word,
    /// `?`.
    Parameter,
    /// `@name` alone.
    UserVar,
    /// Anything else.
    Expression,
}

bitflags! {
    /// What an assigned expression contains.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ExprFlags: u8 {
        /// A subquery.
        const SUBQUERY = 1 << 0;
        /// A call of a function that is no built-in.
        const CALL = 1 << 1;
        /// User variables.
        const USER_VARS = 1 << 2;
        /// System variables.
        const SYSVARS = 1 << 3;
        /// Built-in functions.
        const BUILTIN = 1 << 4;
        /// Built-ins whose value differs from one execution to the next (NOW, RAND, …).
        const NONDETERMINISTIC = 1 << 5;
        /// `:=` inside.
        const ASSIGNS = 1 << 6;
    }
}

/// One item of a SET.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// What is set.
    pub target: Target,
    /// The value's text (for SET TRANSACTION: the characteristics).
    pub value: Span,
    /// What the value is.
    pub kind: ValueKind,
    /// What it contains.
    pub expr: ExprFlags,
}

/// What KILL ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KillTarget {
    /// A connection, by its number.
    Connection(u64),
    /// A connection's current statement, by the connection's number.
    Query(u64),
    /// MariaDB: KILL QUERY ID n, a statement by its own number.
    QueryId(u64),
    /// MariaDB: KILL [CONNECTION | QUERY] USER name.
    User {
        /// The account's name as written, host included.
        name: Span,
        /// QUERY: only the statements.
        query: bool,
    },
    /// A connection or statement whose number is an expression (`KILL @x`, `KILL ?`).
    Expression {
        /// The expression.
        value: Span,
        /// QUERY.
        query: bool,
    },
}

/// KILL's operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kill {
    /// What is to be ended.
    pub target: KillTarget,
    /// MariaDB's SOFT.
    pub soft: bool,
}

/// Where PREPARE and EXECUTE IMMEDIATE take their text from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextSource {
    /// A string literal, quotes included.
    Literal(Span),
    /// `@name`, without the `@`.
    UserVar(Span),
    /// MariaDB: any expression.
    Expression(Span),
}

/// Everything the classifier says about a statement. Meant to be reused: [`Statement::clear`]
/// keeps the lists' capacity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Statement {
    /// What it is.
    pub kind: Kind,
    /// Where it may run.
    pub access: Access,
    /// Where it may run if every function in `functions` only reads: `access` is
    /// [`Access::Write`] as long as that is not known.
    pub access_if_calls_read: Access,
    /// What else is to be known.
    pub flags: Flags,
    /// How many statements the text holds. Empty ones do not count: `SELECT 1;` is one, a text of
    /// comments none.
    pub parts: u16,
    /// Tables named, in order of appearance; CTE names may be among them.
    pub tables: SmallVec<[TableRef; 4]>,
    /// Calls of functions that are no built-ins: stored functions and loadable ones.
    pub functions: SmallVec<[NameRef; 2]>,
    /// User variables read, without the `@`, quotes included.
    pub user_vars_read: SmallVec<[Span; 4]>,
    /// User variables assigned, without the `@`, quotes included.
    pub user_vars_assigned: SmallVec<[Span; 4]>,
    /// System variables read.
    pub sysvars_read: SmallVec<[SysVarRef; 2]>,
    /// What SET (or SET STATEMENT) assigns, in order.
    pub assignments: SmallVec<[Assignment; 4]>,
    /// KILL's operands; none where they are not understood.
    pub kill: Option<Kill>,
    /// The one name a statement is about, see [`Kind`].
    pub name: Option<NameRef>,
    /// The text of PREPARE and EXECUTE IMMEDIATE.
    pub source: Option<TextSource>,
    /// The body of the first comment that starts with `millrace:`, after that word.
    pub hint: Option<Span>,
}

/// What only the session's own connection, or one like it at the primary, can tell.
pub(crate) const ABOUT_SESSION: Flags = Flags::INTO_VARIABLE
    .union(Flags::ASSIGNS_USER_VARS)
    .union(Flags::USES_FOUND_ROWS)
    .union(Flags::USES_ROW_COUNT)
    .union(Flags::USES_WARNING_COUNT)
    .union(Flags::SETS_LAST_INSERT_ID)
    .union(Flags::USES_CONNECTION_ID)
    .union(Flags::USES_USER_LOCK_STATE)
    .union(Flags::WAITS)
    .union(Flags::TRUNCATED);

/// What asks about *the* server: to clients that is the primary.
pub(crate) const ABOUT_SERVER: Flags = Flags::READS_SYSVARS
    .union(Flags::SHOWS_VARIABLES)
    .union(Flags::SERVER_LOCAL)
    .union(Flags::LOAD_FILE);

impl Statement {
    /// Whether it is for the primary for no other reason than that it asks about *the* server. A session
    /// that asks for replicas is told of those.
    pub fn asks_about_server(&self) -> bool {
        matches!(
            self.kind,
            Kind::Select | Kind::Show(_) | Kind::Explain { .. }
        ) && self.access == Access::PrimaryRead
            && self.flags.intersects(ABOUT_SERVER)
            && !self.flags.intersects(ABOUT_SESSION)
    }

    /// Whether it asks about *the* server, whatever else it asks.
    pub fn names_server(&self) -> bool {
        let only_counts = self.flags.contains(Flags::USES_WARNING_COUNT);
        self.flags
            .intersects(Flags::SERVER_LOCAL | Flags::SHOWS_VARIABLES)
            || (self.flags.contains(Flags::READS_SYSVARS) && !only_counts)
    }

    /// A SET that sets user variables and nothing else.
    pub fn sets_user_variables_only(&self) -> bool {
        let is_user = |set: &Assignment| matches!(set.target, Target::UserVar(_));
        !self.assignments.is_empty() && self.assignments.iter().all(is_user)
    }

    /// Forgets the statement and keeps the memory.
    pub fn clear(&mut self) {
        self.kind = Kind::Unknown;
        self.access = Access::Write;
        self.access_if_calls_read = Access::Write;
        self.flags = Flags::empty();
        self.parts = 0;
        self.tables.clear();
        self.functions.clear();
        self.user_vars_read.clear();
        self.user_vars_assigned.clear();
        self.sysvars_read.clear();
        self.assignments.clear();
        self.kill = None;
        self.name = None;
        self.source = None;
        self.hint = None;
    }
}
