//! What a statement makes of FOUND_ROWS(), as the servers count (observed on MySQL 9.7 and MariaDB
//! 10.11). Values only.

use millrace_sql::{Explained, Family, Flags, Kind, Show, Statement, TableUse};

use crate::outcome::Outcome;

/// FOUND_ROWS() after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// This number.
    Rows(u64),
    /// The number from before.
    Kept,
    /// A number that only the connection knows.
    Unknown,
    /// Stored code may have counted, or not: a connection that had the number has it.
    Perhaps,
}

/// FOUND_ROWS() before a session's first result (observed).
pub fn first_found_rows(family: Family) -> u64 {
    match family {
        Family::MySql => 0,
        Family::MariaDb => 1,
    }
}

/// FOUND_ROWS() after a statement with this outcome.
pub(super) fn found_rows(family: Family, class: &Statement, outcome: &Outcome) -> Found {
    let failed = outcome.error.is_some();
    let has_result = outcome.result_sets > 0;
    let reads = class
        .tables
        .iter()
        .any(|table| table.usage == TableUse::Read);
    let several = class.tables.len() > 1;
    let runs_queries = reads || !class.functions.is_empty();
    match class.kind {
        Kind::Call | Kind::Multi | Kind::Unknown | Kind::Execute { .. } => match has_result {
            true => Found::Unknown,
            false => Found::Perhaps,
        },
        // MariaDB also counts what a failed SELECT … INTO found.
        Kind::Select if failed && !has_result => match family {
            Family::MariaDb if class.flags.contains(Flags::ASSIGNS_USER_VARS) => Found::Perhaps,
            _ => Found::Kept,
        },
        Kind::Select if failed || class.flags.contains(Flags::CALC_FOUND_ROWS) => Found::Unknown,
        Kind::Select if has_result => Found::Rows(outcome.rows),
        // SELECT … INTO. MariaDB counts none for one without a table.
        Kind::Select => match family {
            Family::MySql => Found::Rows(outcome.affected_rows),
            Family::MariaDb => Found::Unknown,
        },
        Kind::Show(Show::Variables | Show::Status | Show::Metadata | Show::Other) if has_result => {
            Found::Rows(outcome.rows)
        }
        Kind::Explain {
            of: Explained::Table,
            ..
        } if has_result => Found::Rows(outcome.rows),
        // MariaDB counts what ANALYZE runs, and none where no table is explained.
        Kind::Explain { analyze, .. } if has_result => match family {
            Family::MariaDb if analyze || class.tables.is_empty() => Found::Unknown,
            _ => Found::Kept,
        },
        // Of several tables.
        Kind::Delete if several && !failed => Found::Unknown,
        Kind::Update if several && !failed && family == Family::MariaDb => Found::Unknown,
        Kind::Update if family == Family::MySql && !failed => {
            Found::Rows(outcome.matched.unwrap_or(outcome.affected_rows))
        }
        Kind::Do if family == Family::MySql && !failed && !runs_queries => Found::Rows(1),
        Kind::Insert | Kind::Replace | Kind::Ddl if reads => match failed {
            true => Found::Perhaps,
            false => Found::Unknown,
        },
        Kind::Delete if reads && family == Family::MySql => Found::Unknown,
        Kind::Do | Kind::Set | Kind::Update if runs_queries => Found::Perhaps,
        Kind::Insert | Kind::Replace | Kind::Delete if runs_queries => Found::Perhaps,
        _ => Found::Kept,
    }
}

#[cfg(test)]
mod tests {
    use millrace_sql::{LexMode, classify};

    use super::*;

    #[test]
    fn as_the_servers_count() {
        use Found::{Kept, Perhaps, Rows, Unknown};
        let cases = [
            ("SELECT 1", 1, Rows(3), Rows(3)),
            ("SELECT SQL_CALC_FOUND_ROWS a FROM t", 1, Unknown, Unknown),
            ("SELECT 1 INTO @a", 0, Rows(5), Unknown),
            ("SHOW TABLES", 1, Rows(3), Rows(3)),
            ("SHOW CREATE TABLE t", 1, Kept, Kept),
            ("EXPLAIN SELECT 1", 1, Kept, Unknown),
            ("EXPLAIN SELECT * FROM t", 1, Kept, Kept),
            ("DESCRIBE t", 1, Rows(3), Rows(3)),
            ("ANALYZE SELECT * FROM t", 1, Kept, Unknown),
            ("CHECKSUM TABLE t", 1, Kept, Kept),
            ("HANDLER t READ FIRST", 1, Kept, Kept),
            ("UPDATE t SET a=1", 0, Rows(5), Kept),
            ("INSERT INTO t VALUES (1)", 0, Kept, Kept),
            ("INSERT INTO t SELECT 1 FROM u", 0, Unknown, Unknown),
            ("UPDATE t, u SET t.a=1 WHERE t.b=u.b", 0, Rows(5), Unknown),
            ("DELETE FROM t WHERE a=1", 0, Kept, Kept),
            ("DELETE t FROM t JOIN u", 0, Unknown, Unknown),
            ("DELETE t FROM t", 0, Unknown, Unknown),
            ("DELETE FROM t USING t", 0, Unknown, Unknown),
            ("DO 1", 0, Rows(1), Kept),
            ("SET @a=1", 0, Kept, Kept),
            ("SET @a=(SELECT a FROM t)", 0, Perhaps, Perhaps),
            ("CALL p()", 1, Unknown, Unknown),
            ("CALL p()", 0, Perhaps, Perhaps),
        ];
        for (text, result_sets, mysql, mariadb) in cases {
            for (family, version, expected) in [
                (Family::MySql, 90_704, mysql),
                (Family::MariaDb, 101_119, mariadb),
            ] {
                let mut class = Statement::default();
                classify(text.as_bytes(), &LexMode::new(family, version), &mut class);
                let outcome = Outcome {
                    result_sets,
                    rows: 3,
                    affected_rows: 5,
                    ended_ok: result_sets == 0,
                    ..Outcome::default()
                };
                assert_eq!(found_rows(family, &class, &outcome), expected, "{text}");
            }
        }
    }
}
