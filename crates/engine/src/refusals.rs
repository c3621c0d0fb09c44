//! What a server's error says about whether it ran the statement. A table; decides nothing.

use bitflags::bitflags;
use millrace_protocol::ServerError;

/// What an error tells of its statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// This server does not take it, and nothing of it was done. Where it was to end a transaction,
    /// the transaction was rolled back or is still open.
    NotRun,
    /// The server is ending, and ended the statement: nothing of it was done as far as tables are
    /// transactional.
    Ending,
    /// The statement's own matter.
    Own,
}

/// What `error` tells.
///
/// - 1290 with `read-only`: `@@read_only` or `@@super_read_only` is set (MySQL: "The MySQL server is
///   running with the --super-read-only option …", the same on MariaDB). Said before the statement,
///   and at COMMIT, which is then a rollback. Other options that 1290 names are the statement's own
///   matter. 1836, 1874: the engine, InnoDB is read only. (1036 says so of one table, which may be its own
///   matter, and 1792 of a session that may have said so itself: the probe tells.)
/// - 3032, and 6400 where a reason is given: `@@offline_mode`, said to logins.
/// - 1047 with `WSREP`: a Galera node without its cluster ("WSREP has not yet prepared node for
///   application use"), said before the statement; otherwise it is an unknown command.
/// - 1053: to statements under way, too. MySQL says it when it shuts down, not to one that was killed;
///   MariaDB's 1927 is for those, and whoever killed a statement does not want it to run again.
///
/// Of what groups of servers say at commit, see [`proves_nothing`]. Group Replication's 3101 is a conflict
/// that the transaction has lost, as Galera's 1213 is: the statement's own matter.
pub fn meaning(error: &ServerError) -> Meaning {
    match error.code {
        1290 if says(error, b"read-only") || says(error, b"read_only") => Meaning::NotRun,
        1836 | 1874 | 3032 | 6400 => Meaning::NotRun,
        1047 if says(error, b"WSREP") => Meaning::NotRun,
        1053 => Meaning::Ending,
        _ => Meaning::Own,
    }
}

/// Whether an error at commit leaves open whether it was done. Group Replication's 3100 is said where the
/// transaction was not sent to the group, and where the wait for the group's word failed after it was;
/// 1180 is any failure during a commit, on Galera the loss of the cluster.
pub fn proves_nothing(error: &ServerError) -> bool {
    matches!(error.code, 1180 | 3100)
}

/// Whether a server may say this for the lack of something that its primary has: an object, a privilege, a newer
/// definition, a setting. A replica's word does not count then. Errors of the data, of the session and of the
/// machine are not in the table: the primary would say the same, or would pay as much for it.
pub fn may_lack(error: &ServerError) -> bool {
    LACKING.binary_search(&error.code).is_ok()
}

/// In order of their codes.
const LACKING: &[u16] = &[
    // Files of a table that are missing or broken.
    1016, 1017, 1033, 1034, 1035, //
    // Database access denied; unknown database, table; ambiguous and unknown column.
    1044, 1049, 1051, 1052, 1054, //
    // Duplicate column name, in a derived table; syntax, which depends on the version.
    1060, 1064, //
    // Key column, unknown procedure, its parameters, unknown table of a list, unknown character set.
    1072, 1106, 1107, 1108, 1109, 1115, //
    // Loadable functions: library, symbol, not defined.
    1126, 1127, 1128, //
    // No such grant; table, column access denied; no such table; no such grant on a table.
    1141, 1142, 1143, 1146, 1147, 1149, //
    // Index that is not there; full-text index; unknown system variable; crashed tables.
    1176, 1191, 1193, 1194, 1195, //
    // UNION of tables of other widths; privilege; not supported yet; operand of other width.
    1222, 1227, 1235, 1241, //
    // Unknown collation, storage engine, time zone.
    1273, 1286, 1298, //
    // Unknown routine; its number of arguments.
    1305, 1318, //
    // View: underlying tables, wrong kind of object, width, validity. Routine access denied.
    1345, 1347, 1353, 1356, 1370, //
    // No such grant on a routine; table definition has changed; foreign servers; definer.
    1403, 1412, 1429, 1430, 1431, 1449, 1477, //
    // Partition; system table; parameters of functions; function names; locale; partition.
    1507, 1548, 1558, 1582, 1583, 1584, 1630, 1649, 1712, 1735, //
    // EXPLAIN's format; tablespace; corrupt table; table without engine; role.
    1791, 1812, 1877, 1932, 1959, //
    // MySQL: role not granted; spatial reference system.
    3530, 3548, //
    // MariaDB: unknown sequence, view, type, operator.
    4091, 4092, 4161, 4162,
];

/// Whether what a server says to a command of Millrace's own, ahead of a statement, is said of the statement: it, its
/// transaction or its connection was ended (1317: KILL QUERY; 1927, 4031: the connection; 1213: Galera tells the first
/// command after another node's write has won), or the server takes nothing now. All else is said of something that no
/// client has asked for: Galera's 1205 where a node that waits has lost its group or has waited for 30 seconds
/// (observed on 10.11 and 11.8), limits of time of the session before.
pub fn is_of_statement(error: &ServerError) -> bool {
    meaning(error) != Meaning::Own || matches!(error.code, 1213 | 1317 | 1927 | 3100 | 4031)
}

/// ER_MAX_PREPARED_STMT_COUNT_REACHED: all connections together, whosever they are, have prepared
/// `max_prepared_stmt_count` statements. Nothing was prepared.
pub const CROWDED: u16 = 1461;

/// The server allows the account, or the user, no more connections.
pub fn is_of_account(error: &ServerError) -> bool {
    matches!(error.code, 1203 | 1226)
}

/// Of what 1226 names, the connections at one time: one may come free soon.
fn is_of_connections(error: &ServerError) -> bool {
    says(error, b"max_user_connections")
}

/// The server, or the account on it, has as many connections as it may.
pub fn is_full(error: &ServerError) -> bool {
    match error.code {
        1040 | 1203 => true,
        // Not what may be done in an hour: that is no wait's length.
        1226 => is_of_connections(error),
        _ => false,
    }
}

bitflags! {
    /// Kinds of errors.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Refusals: u8 {
        /// [`Meaning::NotRun`].
        const NOT_RUN = 1 << 0;
        /// [`Meaning::Ending`].
        const ENDING = 1 << 1;
        /// 3100: a plugin does not let it go on. To a read, a member of a group that cannot wait for what
        /// the read must see. At a commit it comes before anything is written, and is a rollback where
        /// no group could have heard of it: MySQL says it so while it shuts down.
        const HOOK = 1 << 2;
        /// A prepared statement was not run and has to be prepared anew.
        const STALE = 1 << 3;
        /// The statement commits something: an error that does not say whether it did is told so.
        const UNPROVEN = 1 << 4;
        /// The server has as many prepared statements as it takes.
        const CROWDED = 1 << 5;
        /// [`may_lack`], of a replica.
        const LACKS = 1 << 6;
        /// The same of a later one of several results: none is shown before all are there, as far as they are
        /// short. It is no kind of its own.
        const LACKS_LATER = 1 << 7;
    }
}

impl Refusals {
    /// Whether an error is of these.
    pub fn has(self, error: &ServerError) -> bool {
        let kind = match meaning(error) {
            Meaning::NotRun => Refusals::NOT_RUN,
            Meaning::Ending => Refusals::ENDING,
            Meaning::Own => match error.code {
                3100 => Refusals::HOOK,
                1243 | 1615 => Refusals::STALE,
                CROWDED => Refusals::CROWDED,
                _ if may_lack(error) => Refusals::LACKS,
                _ => Refusals::empty(),
            },
        };
        self.intersects(kind)
    }
}

fn says(error: &ServerError, what: &[u8]) -> bool {
    error
        .message
        .windows(what.len())
        .any(|at| at.eq_ignore_ascii_case(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_tell_whether_the_statement_ran() {
        let cases: &[(u16, &str, Meaning)] = &[
            (
                1290,
                "The MySQL server is running with the --super-read-only option so it cannot execute this statement",
                Meaning::NotRun,
            ),
            (
                1290,
                "The MariaDB server is running with the --read-only option so it cannot execute this statement",
                Meaning::NotRun,
            ),
            (
                1290,
                "The MySQL server is running with the --secure-file-priv option so it cannot execute this statement",
                Meaning::Own,
            ),
            (1836, "Running in read-only mode", Meaning::NotRun),
            (1874, "InnoDB is in read only mode.", Meaning::NotRun),
            (1036, "Table 't' is read only", Meaning::Own),
            (
                3032,
                "The server is currently in offline mode",
                Meaning::NotRun,
            ),
            (
                1047,
                "WSREP has not yet prepared node for application use",
                Meaning::NotRun,
            ),
            (1047, "Unknown command", Meaning::Own),
            (1053, "Server shutdown in progress", Meaning::Ending),
            (1927, "Connection was killed", Meaning::Own),
            (1213, "Deadlock found when trying to get lock", Meaning::Own),
            (
                1792,
                "Cannot execute statement in a READ ONLY transaction.",
                Meaning::Own,
            ),
            (
                3100,
                "Error on observer while running replication hook 'before_commit'.",
                Meaning::Own,
            ),
            (
                3101,
                "Plugin instructed the server to rollback the current transaction.",
                Meaning::Own,
            ),
            (
                1180,
                "Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT",
                Meaning::Own,
            ),
            (1062, "Duplicate entry '1' for key 'PRIMARY'", Meaning::Own),
            (1105, "Unknown error", Meaning::Own),
        ];
        for (code, message, expected) in cases {
            let error = ServerError::new(*code, b"HY000", *message);
            assert_eq!(meaning(&error), *expected, "{code} {message}");
        }
    }

    #[test]
    fn what_a_replica_may_lack_is_in_order() {
        assert!(LACKING.is_sorted());
        let error = |code| ServerError::new(code, b"42000", "");
        for code in [1044, 1049, 1054, 1142, 1143, 1146, 1227, 1305, 1347, 1370] {
            assert!(may_lack(&error(code)), "{code}");
        }
        // Duplicate key, lock wait, deadlock, subquery of several rows, killed, time limits, division.
        for code in [1062, 1205, 1213, 1242, 1317, 1365, 1644, 1969, 3024] {
            assert!(!may_lack(&error(code)), "{code}");
        }
    }

    #[test]
    fn some_errors_at_commit_prove_nothing() {
        let error = |code| ServerError::new(code, b"HY000", "");
        assert!(proves_nothing(&error(3100)) && proves_nothing(&error(1180)));
        assert!(!proves_nothing(&error(3101)) && !proves_nothing(&error(1213)));
    }

    #[test]
    fn what_own_commands_are_told_is_seldom_of_the_statement() {
        let error = |code, message: &str| ServerError::new(code, b"HY000", message);
        for (own, expected) in [
            (error(1205, "Lock wait timeout exceeded"), false),
            (
                error(1235, "This version of MariaDB doesn't yet support …"),
                false,
            ),
            (error(1774, "Malformed GTID set specification"), false),
            (error(1969, "max_statement_time exceeded"), false),
            (
                error(3024, "maximum statement execution time exceeded"),
                false,
            ),
            (error(1105, "Unknown error"), false),
            (error(1047, "Unknown command"), false),
            (error(1047, "WSREP has not yet prepared node"), true),
            (error(1053, "Server shutdown in progress"), true),
            (error(1213, "Deadlock found"), true),
            (error(1317, "Query execution was interrupted"), true),
            (error(1927, "Connection was killed"), true),
            (error(3100, "Error on observer …"), true),
            (
                error(4031, "The client was disconnected by the server"),
                true,
            ),
        ] {
            assert_eq!(is_of_statement(&own), expected, "{own}");
        }
    }

    #[test]
    fn kinds_are_told_apart() {
        let error = |code, message: &str| ServerError::new(code, b"HY000", message);
        let table = [
            (error(1836, "Running in read-only mode"), Refusals::NOT_RUN),
            (error(1053, "Server shutdown in progress"), Refusals::ENDING),
            (error(3100, "Error on observer …"), Refusals::HOOK),
            (
                error(1615, "Prepared statement needs to be re-prepared"),
                Refusals::STALE,
            ),
            (
                error(1461, "Can't create more than max_prepared_stmt_count …"),
                Refusals::CROWDED,
            ),
            (error(1146, "Table 'a.t' doesn't exist"), Refusals::LACKS),
            (error(1213, "Deadlock found"), Refusals::empty()),
        ];
        for (error, kind) in &table {
            for (_, other) in &table {
                let expected = kind == other && !kind.is_empty();
                assert_eq!(other.has(error), expected, "{error} of {other:?}");
            }
        }
        assert!((Refusals::ENDING | Refusals::STALE).has(&table[1].0));
    }
}
