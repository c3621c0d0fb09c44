//! Which texts have answers that can be kept, and what keeps others from it.

use super::*;

#[test]
fn stable_texts() {
    let table = [
        "SELECT 1",
        "SELECT * FROM t",
        "SELECT count(*), sum(a), max(b) FROM t GROUP BY c HAVING (count(*) > 1) ORDER BY (d) LIMIT 5",
        "SELECT DISTINCT(a) FROM t WHERE a IN (1, 2) AND NOT(b) AND EXISTS(SELECT 1 FROM u)",
        "SELECT a FROM t WHERE a = ANY(SELECT b FROM u) OR a > ALL (SELECT 1) OR a < SOME(SELECT 2)",
        "SELECT CAST(a AS CHAR(10)), CAST(b AS DECIMAL (10, 2)), CONVERT(c USING utf8mb4) FROM t",
        "SELECT CAST(a AS DATETIME(6)), CAST(a AS SIGNED), CAST(a AS BINARY(16)) FROM t",
        "SELECT CASE WHEN (a) THEN (b) ELSE (c) END FROM t",
        "SELECT a FROM t USE INDEX (i) JOIN u FORCE INDEX FOR JOIN (k) USING (id)",
        "SELECT a FROM t IGNORE KEY (i, j) WHERE a LIKE('x') AND b REGEXP('y') AND c BETWEEN (1) AND (2)",
        "SELECT a FROM t PARTITION (p0, p1)",
        "SELECT row_number() OVER (PARTITION BY a ORDER BY b) FROM t",
        "SELECT rank() OVER w FROM t WINDOW w AS (ORDER BY a)",
        "SELECT j->'$.a', j->>'$.b' FROM t",
        "SELECT a FROM t WHERE b SOUNDS LIKE 'x'",
        "SELECT a FROM t WHERE d > '2024-01-01' AND e < DATE '2024-01-01' + INTERVAL 1 DAY",
        "SELECT extract(year FROM d), date_add(d, INTERVAL (1) DAY), interval(3, 1, 5) FROM t",
        "SELECT substring(a FROM (1) FOR (2)), trim(BOTH ('x') FROM (a)) FROM t",
        "SELECT group_concat(DISTINCT a ORDER BY b SEPARATOR ',') FROM t",
        "SELECT _utf8mb4'x', N'y', x'00', 0x1f, b'1', 1.5, 1e3, 'a' 'b', NULL, TRUE",
        "SELECT char(65 USING utf8mb4), left(a, 1), right(b, 2), replace(c, 'a', 'b'), insert(a, 1, 2, 'x') FROM t",
        "SELECT d.* FROM (SELECT 1 AS a UNION SELECT 2) d",
        "SELECT d.* FROM (SELECT 1 AS a) AS d",
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 5) SELECT * FROM c",
        "WITH RECURSIVE c (n) AS (SELECT 1), d (a, `b`) AS (SELECT 1, 2) SELECT * FROM c, d",
        "(SELECT a FROM t) UNION (SELECT b FROM u) ORDER BY 1 LIMIT 3",
        "SELECT a FROM t UNION SELECT b FROM u",
        "SELECT database(), schema(), unix_timestamp(d), unix_timestamp('2020-01-01') FROM t",
        "SELECT `time`, t.time, time FROM t WHERE time > '10:00' ORDER BY time",
        "SELECT t.now, t.rand, t.uuid, t.current_date, now, rand FROM t",
        "SELECT `current_date`, `current_user` FROM t",
        "SELECT a AS time FROM t",
        "SELECT count(*) FROM user",
        "SELECT a FROM t; ",
        "SELECT a -- now()\nFROM t /* rand() */ # uuid()",
        "SELECT 'now()', \"rand()\" FROM t",
        "SELECT JSON_EXTRACT(j, '$.a') FROM t WHERE JSON_CONTAINS(j, '1')",
        "SELECT * FROM t, JSON_TABLE(t.j, '$[*]' COLUMNS(a INT PATH '$.a', b VARCHAR(10) PATH '$.b', \
         NESTED PATH '$.c[*]' COLUMNS (d DECIMAL(10,2) PATH '$'))) AS jt",
        "SELECT a FROM t WHERE (a, b) IN ((1, 2), (3, 4))",
        "SELECT a FROM t LEFT JOIN (u CROSS JOIN v) ON (t.a = u.a) WHERE a XOR (b) AND c DIV (2)",
        "SELECT SQL_BIG_RESULT (a) FROM t",
        "SELECT ?, a FROM t WHERE b = ? LIMIT ?",
    ];
    for mode in both() {
        for text in table {
            assert_eq!(read(text, &mode).1.unstable, None, "{mode:?} {text}");
        }
    }
    let of_mysql = [
        "SELECT a FROM t WHERE 1 MEMBER OF (j)",
        "SELECT a FROM t WHERE 1 MEMBER OF(j->'$.a')",
        "SELECT /*+ NO_MERGE(d) BKA(t) */ a FROM t",
        "SELECT d.x FROM t, LATERAL (SELECT 1) AS d (x)",
        "SELECT d.x FROM (SELECT 1) d (x)",
        "SELECT json_value(j, '$.a') FROM t",
        "SELECT rownum, sysdate FROM t",
        "SELECT a FROM t GROUP BY a WITH ROLLUP",
        "SELECT regexp_like(a, 'x'), bin_to_uuid(b), uuid_to_bin('x') FROM t",
        "VALUES ROW(1, 2), ROW(3, 4)",
        "TABLE t",
    ];
    for text in of_mysql {
        assert_eq!(read(text, &mysql()).1.unstable, None, "{text}");
    }
    let of_mariadb = [
        "SELECT md5(a), sha1(b), json_value(j, '$.a') FROM t",
        "SELECT median(a) OVER (PARTITION BY b) FROM t",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) OVER (PARTITION BY b) FROM t",
        "SELECT SQL_CACHE a FROM t",
        "VALUES (1, 2), (3, 4)",
        "SELECT column_get(a, 'b' AS INT) FROM t",
    ];
    for text in of_mariadb {
        assert_eq!(read(text, &mariadb()).1.unstable, None, "{text}");
    }
}

/// Each text, why, and where.
#[test]
fn unstable_texts() {
    let table = [
        ("SELECT now()", Why::Function, "now"),
        (
            "SELECT a FROM t WHERE d > NOW() - INTERVAL 1 DAY",
            Why::Function,
            "NOW",
        ),
        ("SELECT curdate()", Why::Function, "curdate"),
        ("SELECT CURRENT_DATE", Why::Function, "CURRENT_DATE"),
        ("SELECT CURRENT_DATE()", Why::Function, "CURRENT_DATE"),
        (
            "SELECT a FROM t WHERE d < CURRENT_TIMESTAMP",
            Why::Function,
            "CURRENT_TIMESTAMP",
        ),
        (
            "SELECT CURRENT_TIMESTAMP(6)",
            Why::Function,
            "CURRENT_TIMESTAMP",
        ),
        ("SELECT LOCALTIME", Why::Function, "LOCALTIME"),
        ("SELECT LOCALTIMESTAMP", Why::Function, "LOCALTIMESTAMP"),
        ("SELECT UTC_DATE, 1", Why::Function, "UTC_DATE"),
        (
            "SELECT utc_time, utc_timestamp()",
            Why::Function,
            "utc_time",
        ),
        ("SELECT sysdate()", Why::Function, "sysdate"),
        ("SELECT unix_timestamp()", Why::Function, "unix_timestamp"),
        (
            "SELECT unix_timestamp( /* */ )",
            Why::Function,
            "unix_timestamp",
        ),
        ("SELECT rand()", Why::Function, "rand"),
        ("SELECT a FROM t ORDER BY rand(5)", Why::Function, "rand"),
        ("SELECT uuid()", Why::Function, "uuid"),
        ("SELECT uuid_short()", Why::Function, "uuid_short"),
        ("SELECT random_bytes(5)", Why::Function, "random_bytes"),
        ("SELECT connection_id()", Why::Function, "connection_id"),
        ("SELECT user()", Why::Function, "user"),
        ("SELECT CURRENT_USER", Why::Function, "CURRENT_USER"),
        ("SELECT current_user()", Why::Function, "current_user"),
        ("SELECT session_user()", Why::Function, "session_user"),
        ("SELECT system_user()", Why::Function, "system_user"),
        ("SELECT current_role()", Why::Function, "current_role"),
        ("SELECT version()", Why::Function, "version"),
        ("SELECT last_insert_id()", Why::Function, "last_insert_id"),
        ("SELECT last_insert_id(5)", Why::Function, "last_insert_id"),
        ("SELECT found_rows()", Why::Function, "found_rows"),
        ("SELECT row_count()", Why::Function, "row_count"),
        ("SELECT get_lock('a', 1)", Why::Function, "get_lock"),
        ("SELECT is_free_lock('a')", Why::Function, "is_free_lock"),
        (
            "SELECT release_all_locks()",
            Why::Function,
            "release_all_locks",
        ),
        ("SELECT sleep(1)", Why::Function, "sleep"),
        ("SELECT benchmark(1, 1)", Why::Function, "benchmark"),
        (
            "SELECT load_file('/etc/passwd')",
            Why::Function,
            "load_file",
        ),
        (
            "SELECT master_pos_wait('a', 1)",
            Why::Function,
            "master_pos_wait",
        ),
        (
            "SELECT convert_tz(d, 'UTC', 'Europe/Berlin') FROM t",
            Why::Function,
            "convert_tz",
        ),
        ("SELECT default(a) FROM t", Why::Function, "default"),
        ("SELECT f(1)", Why::Function, "f"),
        ("SELECT db.f(1)", Why::Function, "f"),
        ("SELECT db.count(1)", Why::Function, "count"),
        ("SELECT `f` (1)", Why::Function, "`f`"),
        ("SELECT `count`(a) FROM t", Why::Function, "`count`"),
        ("SELECT `left`(a, 1) FROM t", Why::Function, "`left`"),
        ("SELECT count (a) FROM t", Why::Function, "count"),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.d < now())",
            Why::Function,
            "now",
        ),
        (
            "WITH c AS (SELECT uuid() AS u) SELECT * FROM c",
            Why::Function,
            "uuid",
        ),
        ("SELECT 1 UNION SELECT now()", Why::Function, "now"),
        ("SELECT max(f(a)) FROM t", Why::Function, "f"),
        (
            "SELECT a FROM t JOIN u ON t.a = f (u.a)",
            Why::Function,
            "f",
        ),
        (
            "SELECT * FROM t LIMIT 1 OFFSET 0 FOR UPDATE",
            Why::Locks,
            "FOR",
        ),
        ("SELECT * FROM t LOCK IN SHARE MODE", Why::Locks, "LOCK"),
        (
            "SELECT * FROM (SELECT 1 FROM t FOR SHARE) d",
            Why::Locks,
            "FOR",
        ),
        ("SELECT a INTO @x FROM t", Why::Into, "INTO"),
        ("SELECT a FROM t INTO OUTFILE '/tmp/x'", Why::Into, "INTO"),
        ("SELECT @x", Why::Variable, "@x"),
        ("SELECT @x := 5", Why::Variable, "@x"),
        ("SELECT @@sql_mode, 1", Why::Variable, "@@"),
        (
            "SELECT a FROM t PROCEDURE ANALYSE()",
            Why::Procedure,
            "PROCEDURE",
        ),
        ("SELECT SQL_NO_CACHE a FROM t", Why::NoCache, "SQL_NO_CACHE"),
        (
            "SELECT SQL_CALC_FOUND_ROWS a FROM t",
            Why::FoundRows,
            "SQL_CALC_FOUND_ROWS",
        ),
        (
            "SELECT a FROM t WHERE MATCH(b) AGAINST('x')",
            Why::FullText,
            "MATCH",
        ),
        (
            "SELECT MATCH b AGAINST ('x') FROM t",
            Why::FullText,
            "MATCH",
        ),
        ("SELECT TIME '10:00:00'", Why::TimeOfDay, "TIME"),
        ("SELECT time(d) FROM t", Why::TimeOfDay, "time"),
        ("SELECT CAST(a AS TIME) FROM t", Why::TimeOfDay, "TIME"),
        ("SELECT CAST(a AS TIME(3)) FROM t", Why::TimeOfDay, "TIME"),
        ("SELECT CONVERT(a, TIME) FROM t", Why::TimeOfDay, "TIME"),
        (
            "SELECT * FROM JSON_TABLE('[]', '$[*]' COLUMNS(a TIME PATH '$')) j",
            Why::TimeOfDay,
            "TIME",
        ),
        ("SELECT timediff(a, b) FROM t", Why::Function, "timediff"),
        ("SELECT sec_to_time(a) FROM t", Why::Function, "sec_to_time"),
        ("SELECT maketime(1, 2, 3)", Why::Function, "maketime"),
        (
            "SELECT str_to_date(a, '%H') FROM t",
            Why::Function,
            "str_to_date",
        ),
        ("SELECT {d '2024-01-01'}", Why::NotUnderstood, "{"),
        ("SELECT {fn now()}", Why::NotUnderstood, "{"),
    ];
    for mode in both() {
        for (text, why, at) in table {
            let found = read(text, &mode)
                .1
                .unstable
                .unwrap_or_else(|| panic!("{text}"));
            assert_eq!((found.why, of(found.at, text)), (why, at), "{text}");
        }
    }
    let whole = [
        ("SELECT /*!50000 1 */", Why::NotUnderstood),
        ("SELECT * FROM mysql.user", Why::SystemSchema),
        (
            "SELECT * FROM t JOIN information_schema.tables",
            Why::SystemSchema,
        ),
        ("SELECT 1; SELECT 2", Why::NotOneSelect),
        ("INSERT INTO t VALUES (1)", Why::NotOneSelect),
        ("UPDATE t SET a = 1", Why::NotOneSelect),
        ("SHOW TABLES", Why::NotOneSelect),
        ("SELECT 'open", Why::NotOneSelect),
        ("", Why::NotOneSelect),
    ];
    for mode in both() {
        for (text, why) in whole {
            let found = read(text, &mode)
                .1
                .unstable
                .unwrap_or_else(|| panic!("{text}"));
            assert_eq!((found.why, of(found.at, text)), (why, text), "{text}");
        }
    }
}

#[test]
fn unstable_texts_of_one_family() {
    let of_mysql = [
        ("SELECT /*+ SET_VAR(sql_mode='') */ 1", Why::Limits),
        ("SELECT /*+ MAX_EXECUTION_TIME(5) */ a FROM t", Why::Limits),
        (
            "SELECT /*+ BKA(t) max_execution_time(5) */ a FROM t",
            Why::Limits,
        ),
        ("SELECT a FROM t TABLESAMPLE BERNOULLI (5)", Why::Sample),
        ("SELECT md5(a) FROM t", Why::Function),
        ("SELECT ps_thread_id(1)", Why::Function),
        ("SELECT json_storage_free(j) FROM t", Why::Function),
        ("SELECT wait_for_executed_gtid_set('a')", Why::Function),
        (
            "SELECT JSON_VALUE(j, '$.a' RETURNING TIME) FROM t",
            Why::TimeOfDay,
        ),
    ];
    for (text, why) in of_mysql {
        let found = read(text, &mysql()).1.unstable;
        assert_eq!(found.map(|found| found.why), Some(why), "{text}");
    }
    let of_mariadb = [
        (
            "SET STATEMENT max_statement_time=1 FOR SELECT 1",
            Why::Limits,
        ),
        ("SELECT a FROM t LIMIT ROWS EXAMINED 5", Why::Limits),
        ("SELECT NEXT VALUE FOR s", Why::Sequence),
        ("SELECT PREVIOUS VALUE FOR s", Why::Sequence),
        ("SELECT nextval(s)", Why::Function),
        ("SELECT lastval(s)", Why::Function),
        ("SELECT setval(s, 5)", Why::Function),
        ("SELECT * FROM t FOR SYSTEM_TIME ALL", Why::PastRows),
        (
            "SELECT * FROM t FOR SYSTEM_TIME AS OF '2020-01-01'",
            Why::PastRows,
        ),
        ("SELECT rownum() FROM t", Why::Function),
        ("SELECT CURRENT_ROLE", Why::Function),
        ("SELECT sys_guid()", Why::Function),
        ("SELECT encrypt('a')", Why::Function),
        ("SELECT value(a) FROM t", Why::Function),
        ("SELECT columns(1)", Why::Function),
        ("SELECT any_value(a) FROM t", Why::Function),
    ];
    for (text, why) in of_mariadb {
        let found = read(text, &mariadb()).1.unstable;
        assert_eq!(found.map(|found| found.why), Some(why), "{text}");
    }
    let mut oracle = mariadb();
    oracle.set_sql_mode(b"ORACLE");
    for text in [
        "SELECT SYSDATE",
        "SELECT s.nextval FROM dual",
        "SELECT a FROM t",
    ] {
        let found = read(text, &oracle).1.unstable;
        assert_eq!(
            found.map(|found| found.why),
            Some(Why::NotUnderstood),
            "{text}"
        );
    }
    let mut spaced = mysql();
    spaced.set_sql_mode(b"IGNORE_SPACE");
    assert_eq!(read("SELECT count (a) FROM t", &spaced).1.unstable, None);
    assert!(read("SELECT now ()", &spaced).1.unstable.is_some());
    let mut ansi = mysql();
    ansi.set_sql_mode(b"ANSI_QUOTES");
    assert!(read("SELECT \"f\"(1)", &ansi).1.unstable.is_some());
}

/// What may complete a column of type TIME with the current date.
#[test]
fn what_computes() {
    let table = [
        ("SELECT * FROM t", false),
        (
            "SELECT a, t.b AS c FROM t AS x USE INDEX (i) WHERE id = 5 AND k BETWEEN 1 AND 2",
            false,
        ),
        (
            "SELECT DISTINCT a FROM t WHERE id IN (1, ?) AND k = 'x' ORDER BY a DESC LIMIT 5",
            false,
        ),
        (
            "SELECT count(*), min(a), MAX(b) FROM t WHERE id >= -5 GROUP BY c",
            false,
        ),
        (
            "SELECT interval_start, date, year, left_at FROM t WHERE NOT (id = 5)",
            true,
        ),
        ("SELECT date, year FROM t", false),
        ("SELECT a + 1 FROM t", true),
        ("SELECT a FROM t WHERE a < b", true),
        ("SELECT a FROM t WHERE a = 5 + 1", true),
        ("SELECT a FROM t WHERE a < DATE '2024-01-01'", true),
        ("SELECT date(a) FROM t", true),
        ("SELECT `ceil`(a) FROM t", true),
        ("SELECT coalesce(a, b) FROM t", true),
        ("SELECT a FROM t UNION SELECT b FROM t", true),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM t)", true),
        ("SELECT a FROM t WHERE a BETWEEN b AND 5", true),
        ("SELECT a FROM t WHERE a LIKE 'x'", true),
        ("SELECT CASE a WHEN 1 THEN b ELSE c END FROM t", true),
        ("SELECT a FROM t JOIN u USING (a)", true),
        ("SELECT a FROM t JOIN u ON t.a = u.a", true),
        ("SELECT a FROM t NATURAL JOIN u", true),
        ("SELECT a FROM t ORDER BY a + INTERVAL 1 DAY", true),
        (
            "SELECT sum(a) OVER (ORDER BY b RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW) FROM t",
            true,
        ),
    ];
    for mode in both() {
        for (text, computes) in table {
            let (_, out) = read(text, &mode);
            assert_eq!((out.unstable, out.computes), (None, computes), "{text}");
        }
    }
}
