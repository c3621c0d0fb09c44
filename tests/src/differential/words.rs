//! The words of random sessions: what is drawn, and what may differ in its answers and why.

use super::random::Step;
use super::script::Family;
use crate::numbers::Numbers;
use crate::wire::Connection;

/// Draws steps.
#[derive(Debug)]
pub struct Words {
    family: Family,
    numbers: Numbers,
}

/// What a SET may say.
const SETS: &[&str] = &[
    "sql_mode=''",
    "sql_mode='ANSI'",
    "sql_mode='STRICT_ALL_TABLES'",
    "sql_mode='NO_BACKSLASH_ESCAPES'",
    "sql_mode='PIPES_AS_CONCAT,ONLY_FULL_GROUP_BY'",
    "sql_mode=DEFAULT",
    "sql_mode=CONCAT(@@sql_mode,',ANSI_QUOTES')",
    "time_zone='+03:00'",
    "time_zone='SYSTEM'",
    "time_zone=DEFAULT",
    "time_zone='-11:30'",
    "NAMES latin1",
    "NAMES utf8mb4",
    "NAMES utf8mb4 COLLATE utf8mb4_bin",
    "NAMES 'utf8mb3'",
    "NAMES gbk",
    "CHARACTER SET latin2",
    "CHARACTER SET DEFAULT",
    "NAMES DEFAULT",
    "character_set_results=NULL",
    "character_set_results=utf8mb4",
    "collation_connection=latin1_german1_ci",
    "character_set_client=latin1",
    "character_set_connection=ascii",
    "autocommit=0",
    "autocommit=1",
    "autocommit=ON",
    "autocommit=DEFAULT",
    "group_concat_max_len=7",
    "group_concat_max_len=DEFAULT",
    "sql_select_limit=2",
    "sql_select_limit=DEFAULT",
    "sql_select_limit=0",
    "div_precision_increment=9",
    "div_precision_increment=DEFAULT",
    "lc_time_names=de_DE",
    "lc_time_names=DEFAULT",
    "lc_time_names='fr_FR'",
    "max_sort_length=5",
    "max_sort_length=DEFAULT",
    "SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "TRANSACTION READ ONLY",
    "SESSION TRANSACTION READ ONLY",
    "SESSION TRANSACTION READ WRITE",
    "sql_safe_updates=1",
    "sql_safe_updates=0",
    "default_week_format=3",
    "default_week_format=DEFAULT",
    "sql_auto_is_null=1",
    "sql_auto_is_null=0",
    "foreign_key_checks=0",
    "foreign_key_checks=1",
    "unique_checks=0",
    "unique_checks=DEFAULT",
    "sql_warnings=1",
    "sql_notes=0",
    "sql_notes=1",
    "max_error_count=1",
    "max_error_count=DEFAULT",
    "max_error_count=0",
    "auto_increment_increment=3",
    "auto_increment_increment=DEFAULT",
    "insert_id=7000",
    "last_insert_id=55",
    "timestamp=1000000000",
    "timestamp=DEFAULT",
    "sql_quote_show_create=0",
    "sql_quote_show_create=1",
    "sql_big_selects=0",
    "sql_big_selects=1",
    "big_tables=1",
    "max_join_size=DEFAULT",
    "updatable_views_with_limit=NO",
    "wait_timeout=27000",
    "net_write_timeout=99",
    "sort_buffer_size=40000",
    "tmp_table_size=DEFAULT",
    "completion_type=1",
    "completion_type=0",
    "low_priority_updates=1",
    "profiling=0",
    "default_storage_engine=DEFAULT",
    "nosuch=1",
    "sql_mode='NOSUCH'",
    "@@local.time_zone='+01:00'",
    "@@session.group_concat_max_len:=11",
    "SESSION sql_mode=(SELECT 'ANSI')",
    "@x=1, sql_mode='ANSI', @y='a'",
    "time_zone='+02:00', @z=@@time_zone",
    "group_concat_max_len=@x",
    "GLOBAL nosuch=3",
    "@@sql_mode='', NAMES latin1",
    "NAMES latin1, sql_mode='ANSI'",
];

const SETS_MYSQL: &[&str] = &[
    "default_storage_engine=MyISAM",
    "default_collation_for_utf8mb4=utf8mb4_general_ci",
    "windowing_use_high_precision=0",
    "explain_format='JSON'",
    "cte_max_recursion_depth=3",
    "information_schema_stats_expiry=0",
    "print_identified_with_as_hex=1",
    "show_create_table_verbosity=1",
    "sql_generate_invisible_primary_key=0",
    "transaction_isolation='READ-COMMITTED'",
    "transaction_read_only=0",
    "optimizer_switch='index_merge=off'",
    "use_secondary_engine=OFF",
    "xa_detach_on_prepare=1",
];

const SETS_MARIADB: &[&str] = &[
    "storage_engine=MyISAM",
    "tx_isolation='READ-COMMITTED'",
    "tx_read_only=0",
    "sql_if_exists=1",
    "old_mode=''",
    "max_statement_time=0",
    "max_recursive_iterations=4",
    "optimizer_switch='index_merge=off'",
    "check_constraint_checks=0",
    "system_versioning_alter_history=KEEP",
    "in_predicate_conversion_threshold=9",
    "STATEMENT max_statement_time=5 FOR SELECT 1",
    "STATEMENT sql_mode='ANSI' FOR SELECT 'a'||'b'",
    "ROLE NONE",
    "character_set_collations='utf8mb4=utf8mb4_bin'",
];

/// Variables that are asked for.
const VARIABLES: &[&str] = &[
    "sql_mode",
    "time_zone",
    "character_set_client",
    "character_set_results",
    "character_set_connection",
    "collation_connection",
    "autocommit",
    "group_concat_max_len",
    "sql_select_limit",
    "div_precision_increment",
    "lc_time_names",
    "sql_safe_updates",
    "default_week_format",
    "sql_auto_is_null",
    "foreign_key_checks",
    "unique_checks",
    "sql_notes",
    "max_error_count",
    "auto_increment_increment",
    "last_insert_id",
    "identity",
    "insert_id",
    "sql_big_selects",
    "default_storage_engine",
    "completion_type",
    "warning_count",
    "error_count",
    "max_sort_length",
    "character_set_database",
    "collation_database",
    "profiling",
    "storage_engine",
    "tx_isolation",
    "transaction_isolation",
    "wait_timeout",
    "in_transaction",
    "default_collation_for_utf8mb4",
    "nosuch",
    "sort_buffer_size",
];

const USER_VARIABLES: &[&str] = &["@a", "@b", "@`ä`", "@'x y'", "@x", "@N"];

const EXPRESSIONS: &[&str] = &[
    "1",
    "'str'",
    "NULL",
    "1.5",
    "1e3",
    "x'41'",
    "b'101'",
    "'ä'",
    "_latin1'e'",
    "CAST(5 AS UNSIGNED)",
    "DATE'2020-01-02'",
    "TIME'10:11:12'",
    "1/3",
    "'it''s'",
    "\"dq\"",
    "JSON_ARRAY(1,'a')",
    "REPEAT('k',30)",
    "@@sql_mode",
    "@@session.time_zone",
    "LAST_INSERT_ID()",
    "ROW_COUNT()",
    "FOUND_ROWS()",
    "@@warning_count",
    "DATABASE()",
    "USER()",
    "CURRENT_USER()",
    "CHARSET('a')",
    "COLLATION('a')",
    "COLLATION(@a)",
    "'a'='A'",
    "'ß'='ss'",
    "FROM_UNIXTIME(0)",
    "DATE_FORMAT('2020-03-04','%M %a')",
    "WEEK('2008-02-20')",
    "-18446744073709551615",
    "CAST('abc' AS BINARY)",
    "1||0",
    "'a'||'b'",
    "\"id\"",
    "'\\\\'",
];

const TABLES: &[&str] = &["t", "t", "t", "u", "rnd2.w", "v1", "nosuch", "tmp1", "tmp1"];

const READS: &[&str] = &[
    "SELECT * FROM {t} ORDER BY 1 LIMIT 5",
    "SELECT COUNT(*) FROM {t}",
    "SELECT GROUP_CONCAT(s ORDER BY id) FROM {t}",
    "SELECT SQL_CALC_FOUND_ROWS id FROM {t} ORDER BY id LIMIT 1",
    "SELECT id FROM {t} WHERE id IS NULL",
    "SELECT MAX(id) FROM {t} FOR UPDATE",
    "SELECT id FROM {t} WHERE id>1000000",
    "SELECT s='A' FROM {t} ORDER BY id LIMIT 3",
    "SELECT 1 FROM {t} LIMIT 1",
    "SELECT id,s INTO {v},{v} FROM t ORDER BY id LIMIT 0",
    "SELECT id,s INTO {v},{v} FROM t ORDER BY id LIMIT 1",
    "SELECT id,s INTO {v},{v} FROM t ORDER BY id LIMIT 2",
];

const WRITES: &[&str] = &[
    "INSERT INTO {t} (s) VALUES ('a')",
    "INSERT INTO {t} (s) VALUES ('b'),('c')",
    "INSERT INTO {t} (id,s) VALUES (3,'dup')",
    "INSERT IGNORE INTO {t} (id,s) VALUES (1,'d'),(2,REPEAT('l',99))",
    "UPDATE {t} SET s=CONCAT(LEFT(s,3),'u') WHERE id<4",
    "UPDATE {t} SET s='z'",
    "DELETE FROM {t} WHERE id=2",
    "REPLACE INTO {t} (id,s) VALUES (2,'r')",
    "INSERT INTO {t} (s) SELECT 'sel' FROM t LIMIT 2",
    "INSERT INTO {t} (id,s) VALUES (1,'x') ON DUPLICATE KEY UPDATE s=CONCAT(LEFT(s,3),'y'), id=LAST_INSERT_ID(id)",
    "INSERT INTO {t} (s) VALUES (@a)",
    "UPDATE {t} SET s=@b WHERE id=LAST_INSERT_ID()",
    "DELETE FROM {t} WHERE id>50",
    "INSERT INTO {t} (n) VALUES ('notnum')",
    "UPDATE {t} SET id=LAST_INSERT_ID(id+0) WHERE id=1",
];

const ABOUT_THE_LAST: &[&str] = &[
    "SELECT LAST_INSERT_ID()",
    "SELECT ROW_COUNT()",
    "SELECT FOUND_ROWS()",
    "SHOW WARNINGS",
    "SHOW ERRORS",
    "SHOW COUNT(*) WARNINGS",
    "SELECT @@warning_count, @@error_count",
    "SHOW WARNINGS LIMIT 1",
    "SELECT LAST_INSERT_ID(99)",
    "SELECT ROW_COUNT(), FOUND_ROWS(), LAST_INSERT_ID()",
    "SHOW COUNT(*) ERRORS",
    "DO LAST_INSERT_ID(7)",
    "GET DIAGNOSTICS @n=NUMBER, @r=ROW_COUNT",
    "GET DIAGNOSTICS CONDITION 1 @s=RETURNED_SQLSTATE, @m=MESSAGE_TEXT",
    "SELECT @n,@r,@s,@m",
    "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT='sig'",
    "SIGNAL SQLSTATE '01000' SET MESSAGE_TEXT='warn'",
    "RESIGNAL",
];

const TRANSACTIONS: &[&str] = &[
    "BEGIN",
    "START TRANSACTION",
    "START TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "COMMIT",
    "COMMIT",
    "COMMIT",
    "ROLLBACK",
    "ROLLBACK",
    "SAVEPOINT a",
    "ROLLBACK TO a",
    "RELEASE SAVEPOINT a",
    "COMMIT AND CHAIN",
    "ROLLBACK AND NO CHAIN NO RELEASE",
    "/*!40101 BEGIN */",
    "/* x */ COMMIT -- y",
];

const TEMPORARY: &[&str] = &[
    "CREATE TEMPORARY TABLE tmp1 (id INT AUTO_INCREMENT PRIMARY KEY, s VARCHAR(50), n INT)",
    "DROP TEMPORARY TABLE tmp1",
    "DROP TABLE tmp1",
    "CREATE TEMPORARY TABLE IF NOT EXISTS tmp1 LIKE t",
    "DROP TEMPORARY TABLE IF EXISTS tmp1",
    "CREATE TEMPORARY TABLE tmp1 AS SELECT id,s,n FROM t",
    "TRUNCATE tmp1",
];

const NAMED: &[&str] = &[
    "PREPARE {p} FROM 'SELECT id,s FROM t WHERE id<? ORDER BY id LIMIT 2'",
    "PREPARE {p} FROM 'SELECT @a, @@sql_mode, ''a''||''b'''",
    "PREPARE {p} FROM @b",
    "PREPARE {p} FROM 'INSERT INTO t (s) VALUES (?)'",
    "PREPARE {p} FROM 'SELEC'",
    "EXECUTE {p}",
    "EXECUTE {p} USING @a",
    "EXECUTE {p} USING @x",
    "DEALLOCATE PREPARE {p}",
    "DROP PREPARE {p}",
];

const PLACES: &[&str] = &[
    "USE rnd1",
    "USE rnd2",
    "USE nosuch",
    "USE `rnd1`",
    "SELECT DATABASE()",
];

const LOCKS: &[&str] = &[
    "SELECT GET_LOCK('l0',0)",
    "SELECT GET_LOCK('l1',0)",
    "SELECT RELEASE_LOCK('l0')",
    "SELECT RELEASE_LOCK('l1')",
    "SELECT IS_FREE_LOCK('l0')",
    "SELECT IS_USED_LOCK('l0') IS NULL",
    "DO RELEASE_ALL_LOCKS()",
    "SELECT RELEASE_ALL_LOCKS()",
    "LOCK TABLES t READ, u READ",
    "UNLOCK TABLES",
    "UNLOCK TABLES",
    "HANDLER t OPEN",
    "HANDLER t READ FIRST",
    "HANDLER t READ NEXT",
    "HANDLER t CLOSE",
    "HANDLER t READ `PRIMARY` = (1)",
    "XA START 'x0'",
    "XA END 'x0'",
    "XA ROLLBACK 'x0'",
    "XA COMMIT 'x0' ONE PHASE",
];

const ROUTINES: &[&str] = &[
    "CALL p_out(5,@a)",
    "CALL p_out(@x,@b)",
    "CALL p_rows(2)",
    "CALL p_err()",
    "SELECT f_read(1)",
    "SELECT f_write('fw')",
    "DO f_read(2)",
    "CALL p_cur()",
    "CALL p_setvar()",
    "SELECT * FROM v1 ORDER BY 1 LIMIT 2",
    "CALL p_warn()",
    "CALL p_ins(@a)",
    "SELECT f_setvar(3)",
];

const ODDITIES: &[&str] = &[
    "SELEC 1",
    "",
    "SELECT",
    "SELECT nosuch",
    "SELECT 1/0",
    "SELECT CAST('x' AS SIGNED)",
    "SELECT * FROM t WHERE",
    "/* only */",
    "# c",
    "SELECT 1 FROM dual WHERE 1=0",
    "SELECT BINARY 'a'",
    "SELECT 'a' REGEXP '('",
    "CREATE TABLE t (a INT)",
    "DROP TABLE IF EXISTS nosuch1",
    "ALTER TABLE nosuch ADD a INT",
    "SELECT 1;",
    "SELECT 1 ; ; SELECT 2",
    "SHOW TABLES",
    "SHOW COLUMNS FROM t",
    "DESC u",
    "SHOW CREATE VIEW v1",
    "EXPLAIN SELECT 1",
    "SHOW DATABASES LIKE 'rnd%'",
    "CHECKSUM TABLE u",
    "CREATE OR REPLACE VIEW v1 AS SELECT id,s,n FROM t",
    "ALTER TABLE u COMMENT 'c'",
    "TRUNCATE TABLE u",
    "CREATE TABLE IF NOT EXISTS u2 (a INT)",
    "DROP TABLE IF EXISTS u2",
    "FLUSH TABLES u",
    "OPTIMIZE TABLE u",
];

impl Words {
    pub(crate) fn new(family: Family, seed: u64) -> Self {
        Self {
            family,
            numbers: Numbers::new(seed),
        }
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.numbers.next() % end as u64).unwrap_or(0)
    }

    fn of(&mut self, words: &[&'static str]) -> &'static str {
        let at = self.below(words.len());
        words[at]
    }

    fn expression(&mut self) -> &'static str {
        match self.below(4) {
            0 => self.of(USER_VARIABLES),
            _ => self.of(EXPRESSIONS),
        }
    }

    /// The next step.
    pub(crate) fn step(&mut self) -> Step {
        match self.below(1000) {
            0..20 => {
                let database = [Some("rnd1"), Some("rnd2"), None];
                let at = self.below(database.len());
                Step::Login(self.below(2), database[at])
            }
            20..30 => Step::InitDb(self.of(&["rnd1", "rnd2", "nosuch"])),
            30..38 => Step::Ping,
            38..48 => Step::Reset,
            48..54 => Step::ChangeUser(self.below(2), self.of(&["rnd1", "rnd2", ""])),
            54..94 => Step::Prepare(self.preparable()),
            94..150 => {
                let value = [None, Some("1"), Some("ä"), Some("x")];
                let at = self.below(value.len());
                Step::Execute(value[at], self.below(8) == 0)
            }
            150..155 => Step::Close,
            _ => Step::Query(self.statement(0)),
        }
    }

    fn preparable(&mut self) -> String {
        match self.below(4) {
            0 => "SELECT id, s, ? FROM t WHERE id<5 ORDER BY id".to_owned(),
            1 => format!("SELECT ?, {}", self.expression()),
            _ => self.statement(1),
        }
    }

    /// A statement, or several where `depth` allows.
    fn statement(&mut self, depth: usize) -> String {
        let words: &[&str] = match self.below(100) {
            0..13 => {
                let own = match self.family {
                    Family::MySql => SETS_MYSQL,
                    Family::MariaDb => SETS_MARIADB,
                };
                let set = match self.below(8) {
                    0 => self.of(own),
                    _ => self.of(SETS),
                };
                return format!("SET {set}");
            }
            13..17 => return format!("SET {}={}", self.of(USER_VARIABLES), self.expression()),
            17..19 => return format!("SELECT {}:={}", self.of(USER_VARIABLES), self.expression()),
            19..21 => {
                return format!(
                    "SELECT {} INTO {}",
                    self.expression(),
                    self.of(USER_VARIABLES)
                );
            }
            21..28 => {
                let count = 1 + self.below(3);
                let list: Vec<&str> = (0..count).map(|_| self.expression()).collect();
                return format!("SELECT {}", list.join(", "));
            }
            28..32 => {
                let scope = self.of(&["", "session.", "local.", "SESSION."]);
                return format!("SELECT @@{scope}{}", self.of(VARIABLES));
            }
            32..33 => return format!("SHOW SESSION VARIABLES LIKE '{}'", self.of(VARIABLES)),
            33..40 => READS,
            40..48 => WRITES,
            48..57 => ABOUT_THE_LAST,
            57..65 => TRANSACTIONS,
            65..70 => TEMPORARY,
            70..75 => NAMED,
            75..78 => PLACES,
            78..83 => LOCKS,
            83..89 => ROUTINES,
            89..92 if depth == 0 => {
                let count = 2 + self.below(2);
                let parts: Vec<String> = (0..count).map(|_| self.statement(1)).collect();
                return parts.join("; ");
            }
            _ => ODDITIES,
        };
        let mut text = self.of(words).to_owned();
        while text.contains("{v}") {
            text = text.replacen("{v}", self.of(USER_VARIABLES), 1);
        }
        let (table, named) = (self.of(TABLES), self.of(&["p", "q"]));
        text.replace("{t}", table).replace("{p}", named)
    }

    /// Without what differs by nature.
    pub(crate) fn masked(&self, step: &Step, mut lines: Vec<String>) -> Vec<String> {
        if let Step::ChangeUser(..) = step {
            // How many packets a proof takes depends on what the server has cached.
            for line in &mut lines {
                line.replace_range(..line.len().min(3), "  .");
            }
            lines.retain(|line| line.contains(" OK ") || line.contains(" ERROR "));
        }
        lines
    }

    /// Whether answers may differ, for a reason that is no fault.
    pub(crate) fn may_differ(&self, _step: &Step, _direct: &[String], _through: &[String]) -> bool {
        false
    }
}

/// The tables and routines of random sessions, made anew on a primary by who may make them.
///
/// # Errors
/// What the server says.
pub async fn set_up(admin: &mut Connection, family: Family) -> std::io::Result<()> {
    let _ = family;
    for sql in [
        "SET GLOBAL log_bin_trust_function_creators=1",
        "DROP DATABASE IF EXISTS rnd1",
        "DROP DATABASE IF EXISTS rnd2",
        "CREATE DATABASE rnd1 CHARACTER SET utf8mb4",
        "CREATE DATABASE rnd2 CHARACTER SET latin1",
        "USE rnd1",
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, s VARCHAR(50), n INT)",
        "CREATE TABLE u (id INT AUTO_INCREMENT PRIMARY KEY, s VARCHAR(50), n INT)",
        "CREATE TABLE rnd2.w (id INT AUTO_INCREMENT PRIMARY KEY, s VARCHAR(50), n INT)",
        "CREATE TABLE rnd2.t (id INT AUTO_INCREMENT PRIMARY KEY, s VARCHAR(5), n INT)",
        "INSERT INTO t (s,n) VALUES ('A',1),('bb',2),('ä',3)",
        "INSERT INTO rnd2.t (s) VALUES ('w')",
        "CREATE VIEW v1 AS SELECT id,s,n FROM t",
        "CREATE PROCEDURE p_out(IN a INT, OUT b INT) SET b=a*2",
        "CREATE PROCEDURE p_rows(IN a INT) BEGIN SELECT id FROM t ORDER BY id LIMIT a; SELECT 'two'; END",
        "CREATE PROCEDURE p_err() BEGIN SELECT 1; SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT='perr'; END",
        "CREATE FUNCTION f_read(a INT) RETURNS INT READS SQL DATA RETURN (SELECT COUNT(*)*0+a FROM t)",
        "CREATE FUNCTION f_write(a VARCHAR(20)) RETURNS INT MODIFIES SQL DATA \
         BEGIN INSERT INTO u (s) VALUES (a); RETURN LAST_INSERT_ID()*0+1; END",
        "CREATE PROCEDURE p_cur() BEGIN DECLARE x INT; DECLARE c CURSOR FOR SELECT 1; OPEN c; FETCH c INTO x; \
         SELECT 5; CLOSE c; SELECT 6; END",
        "CREATE PROCEDURE p_setvar() SET @a=@a+1, @newvar=5, SESSION sql_mode='ANSI'",
        "CREATE PROCEDURE p_warn() BEGIN SELECT CAST('x' AS SIGNED); END",
        "CREATE PROCEDURE p_ins(INOUT a INT) BEGIN INSERT INTO t (s) VALUES ('pi'); SET a=LAST_INSERT_ID()*0+4; END",
        "CREATE FUNCTION f_setvar(a INT) RETURNS INT NO SQL BEGIN SET @a=a; RETURN a; END",
        "GRANT ALL ON rnd1.* TO t_other",
        "GRANT ALL ON rnd2.* TO t_other",
    ] {
        admin.expect(sql).await?;
    }
    Ok(())
}
