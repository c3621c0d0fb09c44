//! Statements with the kind, access and flags they must get, for both families.

mod common;
#[path = "kinds/queries.rs"]
mod queries;

use common::{check, mariadb, mysql};
use millrace_sql::Access::{PrimaryRead, Read, Session, Write};
use millrace_sql::{Explained, Flags as F, HandlerOp, Kind as K, Show, XaOp};

const NONE: F = F::empty();
const COMMITS: F = F::IMPLICIT_COMMIT;

#[test]
fn writes() {
    let temp = F::CREATES_TEMP_TABLE;
    let table = [
        ("INSERT INTO t VALUES (1)", K::Insert, Write, NONE),
        (
            "INSERT LOW_PRIORITY IGNORE t (a, b) VALUES (1, 2), (3, 4)",
            K::Insert,
            Write,
            NONE,
        ),
        (
            "INSERT INTO t SET a = 1 ON DUPLICATE KEY UPDATE a = VALUES(a)",
            K::Insert,
            Write,
            NONE,
        ),
        ("INSERT INTO t SELECT * FROM u", K::Insert, Write, NONE),
        ("REPLACE INTO t VALUES (1)", K::Replace, Write, NONE),
        ("UPDATE t SET a = 1", K::Update, Write, NONE),
        (
            "UPDATE t SET a = LAST_INSERT_ID(a + 1)",
            K::Update,
            Write,
            F::SETS_LAST_INSERT_ID.union(F::NONDETERMINISTIC),
        ),
        ("DELETE FROM t", K::Delete, Write, NONE),
        ("CALL p()", K::Call, Write, NONE),
        (
            "CALL db.p(1, @a)",
            K::Call,
            Write,
            F::ASSIGNS_USER_VARS.union(F::READS_USER_VARS),
        ),
        (
            "LOAD DATA INFILE 'x' INTO TABLE t",
            K::LoadData { local: false },
            Write,
            NONE,
        ),
        (
            "LOAD DATA LOW_PRIORITY LOCAL INFILE 'x' REPLACE INTO TABLE t (a, @b) SET c = @b",
            K::LoadData { local: true },
            Write,
            F::ASSIGNS_USER_VARS.union(F::READS_USER_VARS),
        ),
        (
            "LOAD XML LOCAL INFILE 'x' INTO TABLE t",
            K::LoadData { local: true },
            Write,
            NONE,
        ),
        ("LOAD INDEX INTO CACHE t", K::Admin, Write, COMMITS),
        ("CREATE TABLE t (a INT, KEY k (a))", K::Ddl, Write, COMMITS),
        ("CREATE TEMPORARY TABLE t (a INT)", K::Ddl, Write, temp),
        (
            "CREATE TEMPORARY TABLE IF NOT EXISTS t SELECT 1",
            K::Ddl,
            Write,
            temp,
        ),
        ("DROP TEMPORARY TABLE t", K::Ddl, Write, F::DROPS_TEMP_TABLE),
        (
            "DROP TABLE IF EXISTS t, u",
            K::Ddl,
            Write,
            COMMITS.union(F::DROPS_TABLE),
        ),
        (
            "CREATE VIEW v AS SELECT 1",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        (
            "CREATE OR REPLACE DEFINER=`a`@`b` SQL SECURITY INVOKER VIEW v AS SELECT 1",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        ("ALTER TABLE t ADD COLUMN b INT", K::Ddl, Write, COMMITS),
        ("ALTER TABLE t RENAME COLUMN a TO b", K::Ddl, Write, COMMITS),
        ("ALTER TABLE t RENAME INDEX a TO b", K::Ddl, Write, COMMITS),
        (
            "ALTER TABLE t ADD COLUMN b INT, RENAME AS u, ADD KEY (b)",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        (
            "RENAME TABLE a TO b, c TO d",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        ("TRUNCATE TABLE t", K::Ddl, Write, COMMITS),
        ("TRUNCATE `t`", K::Ddl, Write, COMMITS),
        ("CREATE UNIQUE INDEX i ON t (a)", K::Ddl, Write, COMMITS),
        ("CREATE DATABASE d", K::Ddl, Write, COMMITS),
        ("DROP DATABASE d", K::Ddl, Write, COMMITS),
        (
            "CREATE PROCEDURE p() BEGIN SELECT 1; SELECT 2; END",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        (
            "CREATE DEFINER=root@localhost TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 1",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE).union(F::DEFINES_TRIGGER),
        ),
        (
            "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW IF (NEW.a > 1) THEN SET NEW.a = 1; END IF",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE).union(F::DEFINES_TRIGGER),
        ),
        (
            "CREATE FUNCTION f() RETURNS INT RETURN CASE WHEN 1 THEN 2 ELSE 3 END",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        (
            "CREATE PROCEDURE IF NOT EXISTS p() l: BEGIN IF 1 THEN SELECT 1; END IF; CASE 1 WHEN 1 THEN SELECT 1; END CASE; END l;",
            K::Ddl,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        (
            "CREATE PROCEDURE p() SELECT 1; SELECT GET_LOCK('a', 1)",
            K::Multi,
            Write,
            COMMITS
                .union(F::STORED_CODE)
                .union(F::ACQUIRES_USER_LOCK)
                .union(F::NONDETERMINISTIC),
        ),
        (
            "CREATE PROCEDURE p() BEGIN SELECT 1; SELECT 2",
            K::Unknown,
            Write,
            COMMITS.union(F::STORED_CODE),
        ),
        (
            "CREATE USER u@'%' IDENTIFIED BY 'x'",
            K::Account,
            Write,
            COMMITS,
        ),
        (
            "CREATE USER IF NOT EXISTS 'u'@'h'",
            K::Account,
            Write,
            COMMITS,
        ),
        ("DROP ROLE r", K::Account, Write, COMMITS),
        ("RENAME USER a TO b", K::Account, Write, COMMITS),
        ("GRANT ALL ON *.* TO u", K::Account, Write, COMMITS),
        ("REVOKE ALL ON *.* FROM u", K::Account, Write, COMMITS),
        ("OPTIMIZE TABLE t", K::Admin, Write, COMMITS),
        ("CHECKSUM TABLE t", K::Admin, Write, NONE),
        ("SHUTDOWN", K::Admin, Write, NONE),
        (
            "FLUSH TABLES",
            K::Flush { read_lock: false },
            Write,
            COMMITS,
        ),
        (
            "FLUSH TABLES WITH READ LOCK",
            K::Flush { read_lock: true },
            Write,
            COMMITS,
        ),
        (
            "FLUSH TABLES t FOR EXPORT",
            K::Flush { read_lock: true },
            Write,
            COMMITS,
        ),
        ("XYZ", K::Unknown, Write, NONE),
        ("1", K::Unknown, Write, NONE),
        ("(UPDATE t SET a = 1)", K::Unknown, Write, NONE),
    ];
    check(&mysql(), &table);
    check(&mariadb(), &table);
}

#[test]
fn session_statements() {
    let table = [
        ("", K::Empty, Session, NONE),
        (" ;; /* nothing */ # at all", K::Empty, Session, NONE),
        ("BEGIN", K::Begin, Session, COMMITS),
        ("BEGIN WORK;", K::Begin, Session, COMMITS),
        ("START TRANSACTION", K::Begin, Session, COMMITS),
        (
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
            K::Begin,
            Session,
            COMMITS.union(F::CONSISTENT_SNAPSHOT).union(F::TX_READ_ONLY),
        ),
        (
            "START TRANSACTION READ WRITE",
            K::Begin,
            Session,
            COMMITS.union(F::TX_READ_WRITE),
        ),
        ("START SLAVE", K::Admin, Write, NONE),
        ("COMMIT", K::Commit, Session, NONE),
        (
            "COMMIT WORK AND CHAIN NO RELEASE",
            K::Commit,
            Session,
            F::CHAIN.union(F::NO_RELEASE),
        ),
        (
            "COMMIT AND NO CHAIN RELEASE",
            K::Commit,
            Session,
            F::NO_CHAIN.union(F::RELEASE),
        ),
        ("ROLLBACK", K::Rollback, Session, NONE),
        ("ROLLBACK TO SAVEPOINT a", K::RollbackTo, Session, NONE),
        ("ROLLBACK WORK TO a", K::RollbackTo, Session, NONE),
        ("SAVEPOINT a", K::Savepoint, Session, NONE),
        ("RELEASE SAVEPOINT a", K::ReleaseSavepoint, Session, NONE),
        ("USE db", K::Use, Session, NONE),
        ("USE `d b`;", K::Use, Session, NONE),
        ("SET NAMES utf8mb4", K::Set, Session, NONE),
        (
            "SET NAMES 'utf8mb4' COLLATE utf8mb4_bin, autocommit = 0",
            K::Set,
            Session,
            NONE,
        ),
        ("SET CHARACTER SET latin1", K::Set, Session, NONE),
        (
            "SET @a = 1, @b := 'x'",
            K::Set,
            Session,
            F::ASSIGNS_USER_VARS,
        ),
        (
            "SET @a = @b",
            K::Set,
            Session,
            F::ASSIGNS_USER_VARS.union(F::READS_USER_VARS),
        ),
        (
            "SET @a = (SELECT 1)",
            K::Set,
            Write,
            F::ASSIGNS_USER_VARS.union(F::SET_SUBQUERY_OR_CALL),
        ),
        (
            "SET @a = f(1)",
            K::Set,
            Write,
            F::ASSIGNS_USER_VARS.union(F::SET_SUBQUERY_OR_CALL),
        ),
        (
            "SET @a = GET_LOCK('x', 1)",
            K::Set,
            Write,
            F::ASSIGNS_USER_VARS
                .union(F::ACQUIRES_USER_LOCK)
                .union(F::NONDETERMINISTIC),
        ),
        (
            "SET sql_mode = CONCAT(@@sql_mode, ',ANSI')",
            K::Set,
            PrimaryRead,
            F::READS_SYSVARS,
        ),
        (
            "SET @@session.sql_mode = 'ANSI', @@local.x = 1, @@y = 2, LOCAL z = 3",
            K::Set,
            Session,
            NONE,
        ),
        ("SET GLOBAL x = 1", K::Set, Write, F::SETS_GLOBAL),
        ("SET @@global.x = 1", K::Set, Write, F::SETS_GLOBAL),
        (
            "SET session_track_gtids = OWN_GTID",
            K::Set,
            Session,
            F::MENTIONS_SESSION_TRACK,
        ),
        (
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            K::SetTransaction,
            Session,
            F::TX_ONE_SHOT,
        ),
        (
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
            K::SetTransaction,
            Session,
            F::TX_READ_ONLY,
        ),
        (
            "SET GLOBAL TRANSACTION READ WRITE",
            K::SetTransaction,
            Write,
            F::SETS_GLOBAL.union(F::TX_READ_WRITE),
        ),
        (
            "SET @@transaction_isolation = 'SERIALIZABLE'",
            K::Set,
            Session,
            F::TX_ONE_SHOT,
        ),
        (
            "SET transaction_isolation = 'SERIALIZABLE'",
            K::Set,
            Session,
            F::SETS_TX_MODES,
        ),
        ("SET PASSWORD = 'x'", K::SetPassword, Write, COMMITS),
        ("SET PASSWORD FOR u@h = 'x'", K::SetPassword, Write, COMMITS),
        ("SET ROLE r", K::SetRole, Session, NONE),
        ("SET DEFAULT ROLE r TO u", K::SetDefaultRole, Write, COMMITS),
        ("SET x", K::Unknown, Write, NONE),
        ("SET", K::Unknown, Write, NONE),
        (
            "LOCK TABLES t READ, u AS v WRITE",
            K::LockTables,
            Write,
            COMMITS,
        ),
        ("UNLOCK TABLES", K::UnlockTables, Write, NONE),
        ("PREPARE s FROM 'SELECT 1'", K::Prepare, Session, NONE),
        ("PREPARE s FROM @a", K::Prepare, Session, F::READS_USER_VARS),
        (
            "EXECUTE s USING @a, @b",
            K::Execute { immediate: false },
            Write,
            F::READS_USER_VARS,
        ),
        ("DEALLOCATE PREPARE s", K::Deallocate, Session, NONE),
        ("DROP PREPARE s", K::Deallocate, Session, NONE),
        (
            "HANDLER t OPEN AS h",
            K::Handler(HandlerOp::Open),
            Write,
            NONE,
        ),
        (
            "HANDLER h READ FIRST",
            K::Handler(HandlerOp::Read),
            Write,
            NONE,
        ),
        ("HANDLER h CLOSE", K::Handler(HandlerOp::Close), Write, NONE),
        ("XA START 'x'", K::Xa(XaOp::Start), Write, NONE),
        ("XA BEGIN 'x'", K::Xa(XaOp::Start), Write, NONE),
        (
            "XA COMMIT 'x' ONE PHASE",
            K::Xa(XaOp::Commit { one_phase: true }),
            Write,
            NONE,
        ),
        ("XA RECOVER", K::Xa(XaOp::Recover), Write, NONE),
        (
            "GET DIAGNOSTICS @n = NUMBER",
            K::Diagnostics,
            PrimaryRead,
            F::ASSIGNS_USER_VARS,
        ),
        (
            "GET CURRENT DIAGNOSTICS CONDITION @c @m = MESSAGE_TEXT",
            K::Diagnostics,
            PrimaryRead,
            F::ASSIGNS_USER_VARS.union(F::READS_USER_VARS),
        ),
        ("SIGNAL SQLSTATE '45000'", K::Signal, Session, NONE),
        ("KILL 5", K::Kill, Write, NONE),
    ];
    check(&mysql(), &table);
    check(&mariadb(), &table);
}

#[test]
fn shows_and_explains() {
    let plain = K::Explain {
        analyze: false,
        of: Explained::Statement,
    };
    let columns = K::Explain {
        analyze: false,
        of: Explained::Table,
    };
    let table = [
        ("SHOW TABLES", K::Show(Show::Metadata), Read, NONE),
        (
            "SHOW FULL COLUMNS FROM t FROM d LIKE 'a%'",
            K::Show(Show::Metadata),
            Read,
            NONE,
        ),
        ("SHOW PROCEDURE STATUS", K::Show(Show::Metadata), Read, NONE),
        (
            "SHOW CREATE PROCEDURE p",
            K::Show(Show::Create),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW CREATE TABLE t",
            K::Show(Show::Create),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW EVENTS FROM d",
            K::Show(Show::Other),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW TABLE STATUS LIKE 't'",
            K::Show(Show::Other),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW INDEX FROM t",
            K::Show(Show::Other),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW CREATE USER u@h",
            K::Show(Show::Grants),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW GRANTS FOR u@h",
            K::Show(Show::Grants),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW VARIABLES LIKE 'x'",
            K::Show(Show::Variables),
            PrimaryRead,
            F::SHOWS_VARIABLES,
        ),
        (
            "SHOW SESSION VARIABLES LIKE 'session_track_x'",
            K::Show(Show::Variables),
            PrimaryRead,
            F::SHOWS_VARIABLES.union(F::MENTIONS_SESSION_TRACK),
        ),
        (
            "SHOW GLOBAL STATUS",
            K::Show(Show::Status),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW FULL PROCESSLIST",
            K::Show(Show::Processlist),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW ENGINE INNODB STATUS",
            K::Show(Show::Engine),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        (
            "SHOW ENGINES",
            K::Show(Show::Other),
            PrimaryRead,
            F::SERVER_LOCAL,
        ),
        ("SHOW WARNINGS LIMIT 1", K::Diagnostics, PrimaryRead, NONE),
        ("SHOW ERRORS", K::Diagnostics, PrimaryRead, NONE),
        ("SHOW COUNT(*) WARNINGS", K::Diagnostics, PrimaryRead, NONE),
        ("EXPLAIN SELECT 1", plain, Read, NONE),
        ("EXPLAIN FORMAT=JSON SELECT 1", plain, Read, NONE),
        ("DESC t", columns, Read, NONE),
        ("DESCRIBE d.t a", columns, Read, NONE),
        ("EXPLAIN UPDATE t SET a = 1", plain, PrimaryRead, NONE),
        (
            "EXPLAIN SELECT * FROM t FOR UPDATE",
            plain,
            Write,
            F::LOCKING_READ,
        ),
    ];
    check(&mysql(), &table);
    check(&mariadb(), &table);
}

#[test]
fn several_statements() {
    let table = [
        ("SELECT 1; SELECT 2", K::Multi, Read, NONE),
        (
            "SELECT 1; SELECT @@x",
            K::Multi,
            PrimaryRead,
            F::READS_SYSVARS,
        ),
        ("SELECT 1; UPDATE t SET a = 1", K::Multi, Write, NONE),
        (
            "SET @a = 1; SELECT @a",
            K::Multi,
            Write,
            F::ASSIGNS_USER_VARS.union(F::READS_USER_VARS),
        ),
        ("SELECT 1; what", K::Unknown, Write, NONE),
        (
            "INSERT INTO t VALUES (1); SELECT LAST_INSERT_ID();",
            K::Multi,
            Write,
            F::USES_LAST_INSERT_ID.union(F::NONDETERMINISTIC),
        ),
    ];
    check(&mysql(), &table);
    check(&mariadb(), &table);
}

#[test]
fn questions_about_the_server_are_told_from_those_about_the_session() {
    let asks = |text: &str| common::read(text, &mysql()).asks_about_server();
    for text in [
        "SHOW CREATE TABLE t",
        "SHOW GLOBAL STATUS",
        "SHOW BINARY LOGS",
        "SELECT @@server_id, @@hostname",
        "SELECT VERSION()",
        "SELECT * FROM performance_schema.threads",
        "SELECT * FROM sys.version",
        "SELECT * FROM information_schema.processlist",
        "EXPLAIN FOR CONNECTION 5",
    ] {
        assert!(asks(text), "{text}");
    }
    for text in [
        "SELECT 1",
        "SHOW TABLES",
        "SELECT CONNECTION_ID(), @@server_id",
        "SELECT @@server_id INTO @a",
        "SELECT FOUND_ROWS(), VERSION()",
        "SELECT @@read_only FOR UPDATE",
        "SET @@sql_mode=''",
        "SHOW WARNINGS",
    ] {
        assert!(!asks(text), "{text}");
    }
}
