use super::*;

#[test]
fn queries() {
    let table = [
        ("SELECT 1", K::Select, Read, NONE),
        ("select a from t", K::Select, Read, NONE),
        ("  \t\n/* c */ -- x\n# y\n SELECT 1", K::Select, Read, NONE),
        ("(SELECT 1)", K::Select, Read, NONE),
        (
            "((SELECT 1) UNION (SELECT 2)) LIMIT 1",
            K::Select,
            Read,
            F::COMPOUND_QUERY,
        ),
        (
            "WITH a AS (SELECT 1) SELECT * FROM a",
            K::Select,
            Read,
            F::COMPOUND_QUERY,
        ),
        (
            "WITH a AS (SELECT 1) (SELECT * FROM a)",
            K::Select,
            Read,
            F::COMPOUND_QUERY,
        ),
        (
            "SELECT * FROM t FOR UPDATE",
            K::Select,
            Write,
            F::LOCKING_READ,
        ),
        (
            "SELECT * FROM t FOR SHARE SKIP LOCKED",
            K::Select,
            Write,
            F::LOCKING_READ,
        ),
        (
            "SELECT * FROM t FOR/**/UPDATE OF t NOWAIT",
            K::Select,
            Write,
            F::LOCKING_READ,
        ),
        (
            "SELECT * FROM t LOCK IN SHARE MODE",
            K::Select,
            Write,
            F::LOCKING_READ,
        ),
        (
            "SELECT (SELECT a FROM t FOR UPDATE)",
            K::Select,
            Write,
            F::LOCKING_READ.union(F::COMPOUND_QUERY),
        ),
        (
            "SELECT * FROM t INTO OUTFILE '/tmp/x'",
            K::Select,
            Write,
            F::INTO_OUTFILE,
        ),
        (
            "SELECT * INTO DUMPFILE '/tmp/x' FROM t",
            K::Select,
            Write,
            F::INTO_OUTFILE,
        ),
        (
            "SELECT 1 INTO @a",
            K::Select,
            PrimaryRead,
            F::INTO_VARIABLE.union(F::ASSIGNS_USER_VARS),
        ),
        (
            "SELECT 1, 2 INTO @a, @b FROM t WHERE x = @c",
            K::Select,
            PrimaryRead,
            F::INTO_VARIABLE
                .union(F::ASSIGNS_USER_VARS)
                .union(F::READS_USER_VARS),
        ),
        (
            "SELECT @a := 1",
            K::Select,
            PrimaryRead,
            F::ASSIGNS_USER_VARS,
        ),
        (
            "SELECT @a := @a + 1",
            K::Select,
            PrimaryRead,
            F::ASSIGNS_USER_VARS.union(F::READS_USER_VARS),
        ),
        ("SELECT @a", K::Select, Read, F::READS_USER_VARS),
        (
            "SELECT @'a b', @`c`, @\"d\"",
            K::Select,
            Read,
            F::READS_USER_VARS,
        ),
        ("SELECT@a", K::Select, Read, F::READS_USER_VARS),
        (
            "SELECT @@sql_mode",
            K::Select,
            PrimaryRead,
            F::READS_SYSVARS,
        ),
        (
            "SELECT @@global.read_only, @@session . sql_mode",
            K::Select,
            PrimaryRead,
            F::READS_SYSVARS,
        ),
        (
            "SELECT @@warning_count",
            K::Diagnostics,
            PrimaryRead,
            F::READS_SYSVARS.union(F::USES_WARNING_COUNT),
        ),
        (
            "SELECT @@`error_count`",
            K::Diagnostics,
            PrimaryRead,
            F::READS_SYSVARS.union(F::USES_WARNING_COUNT),
        ),
        (
            "SELECT @@warning_count FROM t",
            K::Select,
            PrimaryRead,
            F::READS_SYSVARS.union(F::USES_WARNING_COUNT),
        ),
        (
            "SELECT @@last_insert_id",
            K::Select,
            PrimaryRead,
            F::READS_SYSVARS.union(F::USES_LAST_INSERT_ID),
        ),
        (
            "SELECT @@IDENTITY",
            K::Select,
            PrimaryRead,
            F::READS_SYSVARS.union(F::USES_LAST_INSERT_ID),
        ),
        (
            "SELECT LAST_INSERT_ID()",
            K::Select,
            Read,
            F::USES_LAST_INSERT_ID.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT LAST_INSERT_ID( )",
            K::Select,
            Read,
            F::USES_LAST_INSERT_ID.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT LAST_INSERT_ID(7)",
            K::Select,
            PrimaryRead,
            F::SETS_LAST_INSERT_ID.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT SQL_CALC_FOUND_ROWS * FROM t LIMIT 1",
            K::Select,
            Read,
            F::CALC_FOUND_ROWS,
        ),
        (
            "SELECT FOUND_ROWS()",
            K::Select,
            PrimaryRead,
            F::USES_FOUND_ROWS.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT ROW_COUNT()",
            K::Select,
            PrimaryRead,
            F::USES_ROW_COUNT.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT CONNECTION_ID()",
            K::Select,
            PrimaryRead,
            F::USES_CONNECTION_ID.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT GET_LOCK('a', 1)",
            K::Select,
            Write,
            F::ACQUIRES_USER_LOCK.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT get_lock ('a', 1)",
            K::Select,
            Write,
            F::ACQUIRES_USER_LOCK.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT `GET_LOCK`('a', 1)",
            K::Select,
            Write,
            F::ACQUIRES_USER_LOCK.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT release_lock('a')",
            K::Select,
            Write,
            F::RELEASES_USER_LOCK.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT release_all_locks()",
            K::Select,
            Write,
            F::RELEASES_ALL_USER_LOCKS.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT IS_FREE_LOCK('a')",
            K::Select,
            PrimaryRead,
            F::USES_USER_LOCK_STATE.union(F::NONDETERMINISTIC),
        ),
        (
            "SELECT LOAD_FILE('/x')",
            K::Select,
            PrimaryRead,
            F::LOAD_FILE.union(F::NONDETERMINISTIC),
        ),
        ("SELECT NOW()", K::Select, Read, F::NONDETERMINISTIC),
        (
            "SELECT CURRENT_TIMESTAMP",
            K::Select,
            Read,
            F::NONDETERMINISTIC,
        ),
        ("SELECT SLEEP(1)", K::Select, Read, F::NONDETERMINISTIC),
        (
            "SELECT UUID_SHORT()",
            K::Select,
            PrimaryRead,
            F::UUID_SHORT
                .union(F::NONDETERMINISTIC)
                .union(F::SERVER_LOCAL),
        ),
        ("SELECT VERSION()", K::Select, PrimaryRead, F::SERVER_LOCAL),
        (
            "SELECT MASTER_POS_WAIT('f', 4)",
            K::Select,
            PrimaryRead,
            F::WAITS,
        ),
        ("SELECT ?", K::Select, Read, F::PARAMETERS),
        (
            "SELECT * FROM performance_schema.threads",
            K::Select,
            PrimaryRead,
            F::SYSTEM_SCHEMA.union(F::SERVER_LOCAL),
        ),
        (
            "SELECT * FROM `Performance_Schema` . session_variables",
            K::Select,
            PrimaryRead,
            F::SYSTEM_SCHEMA
                .union(F::SERVER_LOCAL)
                .union(F::SHOWS_VARIABLES),
        ),
        (
            "SELECT * FROM information_schema.columns",
            K::Select,
            Read,
            F::SYSTEM_SCHEMA,
        ),
        (
            "SELECT event_name FROM information_schema.events",
            K::Select,
            PrimaryRead,
            F::SYSTEM_SCHEMA.union(F::SERVER_LOCAL),
        ),
        (
            "SELECT * FROM INFORMATION_SCHEMA.PROCESSLIST",
            K::Select,
            PrimaryRead,
            F::SYSTEM_SCHEMA.union(F::SERVER_LOCAL),
        ),
        (
            "SELECT 'FOR UPDATE', \"into outfile 'x'\", `for update` FROM t",
            K::Select,
            Read,
            NONE,
        ),
        ("SELECT a.for, b.update FROM a, b", K::Select, Read, NONE),
        ("SELECT 1; ", K::Select, Read, NONE),
        ("SELECT 1;;; -- done", K::Select, Read, NONE),
        ("SELECT \"a;b\", ';', `;` FROM t", K::Select, Read, NONE),
        (
            "SELECT EXTRACT(DAY FROM d), TRIM(LEADING 'x' FROM s) FROM t",
            K::Select,
            Read,
            NONE,
        ),
        ("SELECT f.a FROM f", K::Select, Read, NONE),
        (
            "SELECT 'session_track_gtids'",
            K::Select,
            Read,
            F::MENTIONS_SESSION_TRACK,
        ),
        ("DO 1", K::Do, Read, NONE),
        (
            "DO GET_LOCK('a', 1)",
            K::Do,
            Write,
            F::ACQUIRES_USER_LOCK.union(F::NONDETERMINISTIC),
        ),
        ("HELP 'select'", K::Help, Read, NONE),
    ];
    check(&mysql(), &table);
    check(&mariadb(), &table);
}

#[test]
fn queries_of_mysql() {
    check(
        &mysql(),
        &[
            ("TABLE t", K::Select, Read, NONE),
            (
                "TABLE t INTO OUTFILE '/x'",
                K::Select,
                Write,
                F::INTO_OUTFILE,
            ),
            ("VALUES ROW(1), ROW(2)", K::Select, Read, NONE),
            (
                "SELECT /*+ SET_VAR(sort_buffer_size=1M) */ 1",
                K::Select,
                Read,
                F::HINT_SET_VAR,
            ),
            ("SELECT $$a;b$$", K::Select, Read, NONE),
            (
                "SELECT WAIT_FOR_EXECUTED_GTID_SET('x')",
                K::Select,
                PrimaryRead,
                F::WAITS,
            ),
            ("SELECT nextval", K::Select, Read, NONE),
            (
                "WITH a AS (SELECT 1) UPDATE t, a SET t.x = 1",
                K::Update,
                Write,
                NONE,
            ),
            ("WITH a AS (SELECT 1) DELETE FROM t", K::Delete, Write, NONE),
            (
                "EXPLAIN ANALYZE SELECT 1",
                K::Explain {
                    analyze: true,
                    of: Explained::Statement,
                },
                Read,
                NONE,
            ),
            (
                "EXPLAIN FORMAT=JSON INTO @x SELECT 1",
                K::Explain {
                    analyze: false,
                    of: Explained::Statement,
                },
                PrimaryRead,
                F::INTO_VARIABLE.union(F::ASSIGNS_USER_VARS),
            ),
            (
                "EXPLAIN FOR CONNECTION 5",
                K::Explain {
                    analyze: false,
                    of: Explained::Connection,
                },
                PrimaryRead,
                F::SERVER_LOCAL,
            ),
            (
                "BEGIN NOT ATOMIC SELECT 1; END",
                K::Unknown,
                Write,
                F::IMPLICIT_COMMIT,
            ),
            (
                "SHOW REPLICA STATUS",
                K::Show(Show::Replica),
                PrimaryRead,
                F::SERVER_LOCAL,
            ),
            (
                "SHOW BINARY LOG STATUS",
                K::Show(Show::Binlog),
                PrimaryRead,
                F::SERVER_LOCAL,
            ),
            ("SET PERSIST x = 1", K::Set, Write, F::SETS_GLOBAL),
            ("SET RESOURCE GROUP rg", K::SetResourceGroup, Write, NONE),
            ("LOCK INSTANCE FOR BACKUP", K::LockTables, Write, NONE),
            ("CLONE LOCAL DATA DIRECTORY = '/x'", K::Admin, Write, NONE),
            ("START GROUP_REPLICATION", K::Admin, Write, NONE),
            ("SELECT md5 ('a')", K::Select, Write, NONE),
        ],
    );
}

#[test]
fn queries_of_mariadb() {
    check(
        &mariadb(),
        &[
            ("VALUES (1), (2)", K::Select, Read, NONE),
            (
                "SELECT NEXTVAL(s)",
                K::Select,
                Write,
                F::SEQUENCE.union(F::NONDETERMINISTIC),
            ),
            ("SELECT NEXT VALUE FOR s", K::Select, Write, F::SEQUENCE),
            (
                "SELECT PREVIOUS VALUE FOR s",
                K::Select,
                Write,
                F::SEQUENCE.union(F::ASKS_DRAWN),
            ),
            (
                "SELECT SETVAL(s, 10)",
                K::Select,
                Write,
                F::SEQUENCE.union(F::NONDETERMINISTIC),
            ),
            ("SELECT next FROM t", K::Select, Read, NONE),
            (
                "SELECT * FROM t PROCEDURE ANALYSE()",
                K::Select,
                Write,
                F::PROCEDURE_CLAUSE,
            ),
            (
                "SELECT MASTER_GTID_WAIT('0-1-2', 1)",
                K::Select,
                PrimaryRead,
                F::WAITS,
            ),
            (
                "INSERT INTO t VALUES (1) RETURNING id",
                K::Insert,
                Write,
                F::RETURNING,
            ),
            ("DELETE FROM t RETURNING *", K::Delete, Write, F::RETURNING),
            (
                "ANALYZE SELECT 1",
                K::Explain {
                    analyze: true,
                    of: Explained::Statement,
                },
                Read,
                NONE,
            ),
            (
                "ANALYZE FORMAT=JSON UPDATE t SET a = 1",
                K::Explain {
                    analyze: true,
                    of: Explained::Statement,
                },
                Write,
                NONE,
            ),
            (
                "ANALYZE TABLE t PERSISTENT FOR ALL",
                K::Admin,
                Write,
                COMMITS,
            ),
            (
                "BEGIN NOT ATOMIC SELECT 1; SELECT 2; END",
                K::Unknown,
                Write,
                NONE,
            ),
            ("IF 1 THEN SELECT 1; END IF", K::Unknown, Write, NONE),
            ("l: LOOP LEAVE l; END LOOP", K::Unknown, Write, NONE),
            (
                "FOR i IN 1..3 DO SELECT i; END FOR",
                K::Unknown,
                Write,
                NONE,
            ),
            (
                "SET STATEMENT max_statement_time=1 FOR SELECT 1",
                K::Select,
                Read,
                F::SET_STATEMENT,
            ),
            (
                "SET STATEMENT a=1, b='x' FOR UPDATE t SET a = 2",
                K::Update,
                Write,
                F::SET_STATEMENT,
            ),
            (
                "SET STATEMENT a=(SELECT f(1)) FOR SELECT 1",
                K::Select,
                Write,
                F::SET_STATEMENT.union(F::SET_SUBQUERY_OR_CALL),
            ),
            (
                "EXECUTE IMMEDIATE 'SELECT 1'",
                K::Execute { immediate: true },
                Write,
                NONE,
            ),
            (
                "SHOW SLAVE HOSTS",
                K::Show(Show::Replica),
                PrimaryRead,
                F::SERVER_LOCAL,
            ),
            (
                "SHOW ALL SLAVES STATUS",
                K::Show(Show::Replica),
                PrimaryRead,
                F::SERVER_LOCAL,
            ),
            (
                "SHOW MASTER STATUS",
                K::Show(Show::Binlog),
                PrimaryRead,
                F::SERVER_LOCAL,
            ),
            ("BACKUP STAGE START", K::LockTables, Write, NONE),
            ("BACKUP UNLOCK", K::UnlockTables, Write, NONE),
            ("SELECT \\N", K::Select, Read, NONE),
            ("CREATE SEQUENCE s", K::Ddl, Write, COMMITS),
            ("SELECT $$a", K::Select, Read, NONE),
            (
                "SELECT * FROM t FOR SYSTEM_TIME AS OF TIMESTAMP '2020-01-01', u",
                K::Select,
                Read,
                NONE,
            ),
        ],
    );
}
