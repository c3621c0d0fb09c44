//! What SET TRANSACTION said for the next transaction: which statements it goes to a server with, and whether it may
//! still wait there after them. Where that is not certain, the server has it and the connection is kept.

use millrace_sql::{Access, Flags, Kind, Show, Statement, Traits};

use crate::session::Session;

impl Session {
    /// SET TRANSACTION is for the next transaction; a statement that reads no table and writes
    /// nothing begins none.
    pub(super) fn opens_transaction(&self, class: &Statement) -> bool {
        self.image.tx.is_deferred()
            || !class.tables.is_empty()
            || class.is(Traits::OPENS_TRANSACTION)
    }

    /// Whether what SET TRANSACTION said goes to the server before the statement.
    pub(super) fn takes_next(&self, class: &Statement) -> bool {
        self.opens_transaction(class) || !ignores_next(class)
    }

    /// Whether what SET TRANSACTION said may still wait on the connection after the statement. It is for the primary
    /// then, for what comes next may write.
    pub(super) fn may_leave_next(&self, class: &Statement) -> bool {
        !self.image.tx.next().is_empty()
            && !self.image.tx.is_deferred()
            && leaves_next(class)
            && self.takes_next(class)
    }
}

/// Whether the statement, where it reads no table, neither uses nor changes what SET TRANSACTION said. Functions may
/// read and write; PREPARE refuses what may not be run (1792).
fn ignores_next(class: &Statement) -> bool {
    if !class.functions.is_empty() || class.flags.contains(Flags::SEQUENCE) {
        return false;
    }
    match class.kind {
        Kind::SetTransaction => class.flags.contains(Flags::TX_ONE_SHOT),
        Kind::Set => !class.flags.contains(Flags::SETS_TX_MODES),
        // MySQL reads some of the others from tables (observed: SHOW FUNCTION STATUS).
        Kind::Show(show) => matches!(show, Show::Variables | Show::Status | Show::Processlist),
        Kind::Select
        | Kind::Do
        | Kind::Use
        | Kind::Diagnostics
        | Kind::Ping
        | Kind::Explain { .. }
        | Kind::Help
        | Kind::Command
        | Kind::Savepoint
        | Kind::ReleaseSavepoint
        | Kind::RollbackTo
        | Kind::Deallocate
        | Kind::SetRole
        | Kind::Signal
        | Kind::Kill
        | Kind::Empty => true,
        _ => false,
    }
}

/// Whether the server may keep what SET TRANSACTION said for later: what opens no transaction does not use it up
/// (observed: a CALL or a function that reads no table, SHOW CREATE TABLE, COM_FIELD_LIST). Read and written rows do,
/// and the end of a transaction, also where there was none.
pub(super) fn leaves_next(class: &Statement) -> bool {
    match class.kind {
        Kind::Begin | Kind::Commit | Kind::Rollback | Kind::LoadData { .. } => false,
        Kind::Select if class.tables.is_empty() => true,
        _ => !class.is(Traits::ROWS) || class.flags.contains(Flags::SYSTEM_SCHEMA),
    }
}

/// Whether to prepare the statement is refused in a transaction that is read only.
pub(in crate::session) fn is_checked_when_prepared(class: &Statement) -> bool {
    class.access == Access::Write || !ignores_next(class)
}

#[cfg(test)]
mod tests {
    use millrace_sql::{Family, LexMode, classify};

    use super::*;

    fn class(text: &str) -> Statement {
        let mut class = Statement::default();
        let lex = LexMode::new(Family::MariaDb, 101_100);
        classify(text.as_bytes(), &lex, &mut class);
        class
    }

    #[test]
    fn what_only_asks_ignores_it() {
        for text in [
            "SELECT 1",
            "SET @a = 1",
            "SET SESSION sql_mode = ''",
            "SET TRANSACTION READ ONLY",
            "SHOW STATUS",
            "DO SLEEP(0)",
            "SELECT BENCHMARK(2, 1 + 1)",
            "SAVEPOINT s",
            "USE a",
        ] {
            assert!(ignores_next(&class(text)), "{text}");
        }
        for text in [
            "COMMIT",
            "ROLLBACK",
            "SET SESSION TRANSACTION READ WRITE",
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "SET transaction_read_only = OFF",
            "SET @a = 1, SESSION tx_isolation = 'SERIALIZABLE'",
            "FLUSH STATUS",
            "ANALYZE TABLE t",
            "CREATE TABLE t (id INT)",
            "LOCK TABLES t READ",
            "CALL p()",
            "SELECT f()",
            "DO a.f(1)",
            "SET @a = f()",
            "EXPLAIN SELECT f()",
            "SELECT NEXTVAL(s)",
            "SELECT LASTVAL(s)",
            "PREPARE q FROM 'SELECT f()'",
            "SHOW FUNCTION STATUS",
            "SHOW TABLES",
            "SELECT 1; SELECT 2",
            "not understood",
        ] {
            assert!(!ignores_next(&class(text)), "{text}");
        }
    }

    #[test]
    fn rows_and_ends_use_it_up() {
        for text in [
            "SELECT * FROM t",
            "INSERT INTO t VALUES (1)",
            "DELETE FROM t",
            "BEGIN",
            "COMMIT",
            "ROLLBACK",
        ] {
            assert!(!leaves_next(&class(text)), "{text}");
        }
        for text in [
            "CALL p()",
            "SELECT f()",
            "DO f()",
            "PREPARE q FROM 'SELECT f()'",
            "SELECT 1; SELECT 2",
            "SHOW CREATE TABLE t",
            "SET SESSION TRANSACTION READ WRITE",
            "FLUSH STATUS",
            "ANALYZE TABLE t",
            "CREATE TEMPORARY TABLE t (id INT)",
            "SELECT * FROM information_schema.tables",
            "not understood",
        ] {
            assert!(leaves_next(&class(text)), "{text}");
        }
    }
}
