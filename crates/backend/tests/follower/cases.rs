//! Statements, and the entries that they remove: before the bar those that must be gone, behind it those that
//! must stay.

use anyhow::Result;
use millrace_sandbox::Family;

use crate::lab::Lab;

pub(crate) const TABLES: &[&str] = &[
    "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE b (id INT PRIMARY KEY, v INT)",
    "INSERT INTO a VALUES (-1, 0), (1, 0), (2, 0), (3, 0), (4, 0)",
    "INSERT INTO b VALUES (1, 0), (2, 0)",
    "CREATE TABLE p (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, \
     FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE g (id INT PRIMARY KEY, c INT, \
     FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL)",
    "INSERT INTO p VALUES (1, 0), (2, 0), (3, 0)",
    "INSERT INTO c VALUES (1, 1), (2, 2), (3, 3)",
    "INSERT INTO g VALUES (1, 1), (2, 2), (3, 3)",
];

pub(crate) async fn rows(lab: &mut Lab) -> Result<()> {
    lab.check(&["INSERT INTO a VALUES (5, 0)"], "a a:5 | a:1 b")
        .await?;
    lab.check(&["UPDATE a SET v = 9 WHERE id = 1"], "a a:1 | a:2 a:-1 b")
        .await?;
    lab.check(&["UPDATE a SET v = 9 WHERE id = -1"], "a a:-1 | a:1 b")
        .await?;
    lab.check(&["UPDATE a SET id = 77 WHERE id = 2"], "a a:2 a:77 | a:1")
        .await?;
    lab.check(&["DELETE FROM a WHERE id = 77"], "a a:77 | a:1")
        .await?;
    lab.check(&["REPLACE INTO a VALUES (1, 5), (2, 5)"], "a a:1 a:2 | a:3")
        .await?;
    let upsert = "INSERT INTO a VALUES (3, 1) ON DUPLICATE KEY UPDATE v = v + 1";
    lab.check(&[upsert], "a a:3 | a:1").await?;
    let both = [
        "BEGIN",
        "UPDATE a SET v = 3 WHERE id = 1",
        "UPDATE b SET v = 3 WHERE id = 2",
        "COMMIT",
    ];
    lab.check(&both, "a a:1 b b:2 | a:2 b:1").await?;
    lab.check(
        &["BEGIN", "UPDATE a SET v = 4 WHERE id = 1", "ROLLBACK"],
        "| a a:1 b",
    )
    .await?;
    let to_savepoint = [
        "BEGIN",
        "UPDATE a SET v = 4 WHERE id = 1",
        "SAVEPOINT s",
        "UPDATE b SET v = 4 WHERE id = 1",
        "ROLLBACK TO s",
        "COMMIT",
    ];
    lab.check(&to_savepoint, "a a:1 | a:2 b:2").await?;
    // Of MariaDB, tables with virtual columns and with columns of type TIME are not for the cache.
    let (generated, time) = match lab.family {
        Family::MySql => ("VIRTUAL", "TIME(2)"),
        Family::MariaDb => ("STORED", "VARCHAR(20)"),
    };
    let gen_table = format!(
        "CREATE TABLE gen (a INT, g INT AS (a + 1) {generated}, id INT UNSIGNED PRIMARY KEY, h INT AS (a + 2) STORED)"
    );
    let kinds = format!(
        "CREATE TABLE kinds (d DECIMAL(20, 5), j JSON, dt DATETIME(3), ts TIMESTAMP(6) NULL, t {time}, \
         e ENUM('a', 'b'), s SET('a', 'b'), bl BLOB, bi BIT(9), y YEAR, f FLOAT, id MEDIUMINT PRIMARY KEY)"
    );
    lab.run(&[
        &gen_table,
        &kinds,
        "CREATE TABLE u (x VARCHAR(9), id BIGINT UNSIGNED PRIMARY KEY)",
        "CREATE TABLE two (b SMALLINT UNSIGNED, t TEXT, a BINARY(4), v INT, PRIMARY KEY (a, b))",
        "CREATE TABLE none (a INT)",
        "CREATE TABLE text_key (id VARCHAR(9) PRIMARY KEY)",
        "CREATE TABLE tr (id INT PRIMARY KEY)",
        "CREATE TABLE by_trigger (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
        "CREATE TRIGGER t AFTER INSERT ON tr FOR EACH ROW INSERT INTO by_trigger (v) VALUES (NEW.id)",
    ])
    .await?;
    let most = "INSERT INTO u VALUES ('x', 18446744073709551615), ('y', 7)";
    lab.check(&[most], "u u:18446744073709551615 u:7 | u:8")
        .await?;
    let two = "INSERT INTO two VALUES (60000, 'text', 'abcd', 1), (5, NULL, 'x', 2)";
    lab.check(
        &[two],
        "two two:abcd/60000 two:x/5 | two:abcd/5 two:x/60000",
    )
    .await?;
    let generated = "INSERT INTO gen (a, id) VALUES (1000, 4000000000)";
    lab.check(
        &[generated],
        "gen gen:4000000000 | gen:1000 gen:1001 gen:1002",
    )
    .await?;
    lab.check(
        &["UPDATE gen SET a = 7"],
        "gen gen:4000000000 | gen:7 gen:8",
    )
    .await?;
    let kinds = "INSERT INTO kinds VALUES (-12345.678, '{\"a\": [1, 2]}', NOW(3), NOW(6), '12:13:14.56', 'b', \
         'a,b', 'blob', b'100000001', 2024, 1.5, -77)";
    lab.check(&[kinds], "kinds kinds:-77 | kinds:77").await?;
    lab.check(
        &["UPDATE kinds SET bl = NULL"],
        "kinds kinds:-77 | kinds:77",
    )
    .await?;
    lab.check(&["INSERT INTO none VALUES (1)"], "none | a:1")
        .await?;
    lab.check(&["INSERT INTO text_key VALUES ('x')"], "text_key | a:1")
        .await?;
    lab.check(
        &["INSERT INTO tr VALUES (1)"],
        "tr tr:1 by_trigger | tr:2 a:1",
    )
    .await?;
    let many: Vec<String> = (0..1200)
        .map(|id| format!("({}, 0)", 10_000 + id))
        .collect();
    let many = format!("INSERT INTO a VALUES {}", many.join(", "));
    lab.check(&[&many], "a a:1 | b").await?;
    lab.check(
        &["DELETE FROM a WHERE id >= 10500"],
        "a a:10500 | a:10000 a:1 b",
    )
    .await?;
    lab.check(&["DELETE FROM a WHERE id >= 10000"], "a a:10000 | a:1 b")
        .await
}

pub(crate) async fn images(lab: &mut Lab) -> Result<()> {
    lab.run(&["CREATE TABLE def (id INT DEFAULT 7 PRIMARY KEY, v INT, t TEXT)"])
        .await?;
    for image in ["MINIMAL", "NOBLOB"] {
        lab.run(&[&format!("SET SESSION binlog_row_image = {image}")])
            .await?;
        lab.check(&["UPDATE a SET v = v + 1 WHERE id = 1"], "a a:1 | a:2 b")
            .await?;
        lab.check(&["INSERT INTO a VALUES (20, 0)"], "a a:20 | a:2 b")
            .await?;
        lab.check(
            &["UPDATE a SET id = 21 WHERE id = 20"],
            "a a:20 a:21 | a:2 b",
        )
        .await?;
        lab.check(&["DELETE FROM a WHERE id = 21"], "a a:21 | a:2 b")
            .await?;
        lab.check(
            &["UPDATE two SET v = v + 1 WHERE a = 'abcd' AND b = 60000"],
            "two:abcd/60000 | two:abcd/5",
        )
        .await?;
        lab.check(
            &["UPDATE two SET b = 60001 WHERE a = 'abcd'"],
            "two:abcd/60000 two:abcd/60001 | two:abcd/5",
        )
        .await?;
        lab.check(
            &["UPDATE two SET b = 60000 WHERE a = 'abcd'"],
            "two:abcd/60000 two:abcd/60001 | two:abcd/5",
        )
        .await?;
        lab.check(&["INSERT INTO def (v) VALUES (1)"], "def:7 | a")
            .await?;
        lab.check(&["DELETE FROM def"], "def:7 | a").await?;
    }
    lab.run(&["SET SESSION binlog_row_image = FULL"]).await
}

pub(crate) async fn cascades(lab: &mut Lab) -> Result<()> {
    lab.check(&["INSERT INTO p VALUES (50, 0)"], "p p:50 | p:1 c c:1 g a")
        .await?;
    lab.check(&["DELETE FROM p WHERE id = 1"], "p p:1 c c:1 g g:1 | p:2 a")
        .await?;
    lab.check(
        &["UPDATE p SET id = 20 WHERE id = 2"],
        "p p:2 p:20 c c:2 | p:3 a",
    )
    .await?;
    lab.check(&["DELETE FROM c WHERE id = 2"], "c c:2 g | c:3 p a")
        .await?;
    // A foreign key that has come since.
    lab.run(&[
        "CREATE TABLE c2 (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE)",
        "INSERT INTO a VALUES (300, 0)",
        "INSERT INTO c2 VALUES (1, 300)",
    ])
    .await?;
    lab.check(&["DELETE FROM a WHERE id = 300"], "a a:300 c2 c2:1 | a:1 b")
        .await?;
    // And its rows are changed before it is known.
    lab.run(&["INSERT INTO a VALUES (301, 0)"]).await?;
    let at_once = [
        "CREATE TABLE c3 (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE)",
        "INSERT INTO c3 VALUES (1, 301)",
        "DELETE FROM a WHERE id = 301",
    ];
    // A table with a new foreign key to it has a new number in the log.
    lab.check(&at_once, "a a:301 | b").await?;
    lab.run(&["DROP TABLE c2", "DROP TABLE c3"]).await
}

pub(crate) async fn statements(lab: &mut Lab) -> Result<()> {
    for format in ["STATEMENT", "MIXED"] {
        lab.run(&[
            &format!("SET SESSION binlog_format = {format}"),
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        ])
        .await?;
        lab.check(&["UPDATE a SET v = v + 1 WHERE id = 1"], "a a:1 a:2 | b")
            .await?;
        lab.check(
            &["INSERT INTO b SELECT id + 1000, v FROM a WHERE id = 1"],
            "b b:1 | p",
        )
        .await?;
        lab.check(&["DELETE FROM b WHERE id > 1000"], "b b:1 | p a")
            .await?;
        lab.check(&["DELETE FROM p WHERE id = 999"], "p c g | a b")
            .await?;
        // What a trigger does is not in the text.
        lab.check(
            &[&format!("INSERT INTO tr VALUES ({})", 10 + format.len())],
            "tr by_trigger |",
        )
        .await?;
        // Not safe as a statement: rows under MIXED.
        if format == "MIXED" {
            lab.check(
                &["UPDATE a SET v = v + 1 + UUID_SHORT() % 1000 WHERE id = 1"],
                "a a:1 | a:2 b",
            )
            .await?;
        }
    }
    lab.run(&["SET SESSION binlog_format = ROW"]).await?;
    lab.check(
        &[
            "CREATE TEMPORARY TABLE a (x INT)",
            "INSERT INTO a VALUES (1)",
            "DROP TEMPORARY TABLE a",
        ],
        "| a a:1 b",
    )
    .await?;
    let folder = lab.sql.value("SELECT @@secure_file_priv").await?;
    let folder = folder.filter(|folder| !folder.is_empty());
    let folder = folder.unwrap_or_else(|| lab.cluster.primary().datadir.display().to_string());
    let file = format!("{folder}/follower.txt");
    lab.run(&[&format!("SELECT 500, 1 INTO OUTFILE '{file}'")])
        .await?;
    lab.check(
        &[&format!("LOAD DATA INFILE '{file}' INTO TABLE a")],
        "a a:500 | a:1 b",
    )
    .await?;
    lab.run(&[
        "DELETE FROM a WHERE id = 500",
        "SET SESSION binlog_format = STATEMENT",
    ])
    .await?;
    lab.check(
        &[&format!("LOAD DATA INFILE '{file}' INTO TABLE a")],
        "a a:500 a:1 | b",
    )
    .await?;
    lab.run(&["SET SESSION binlog_format = ROW"]).await
}

pub(crate) async fn prepared(lab: &mut Lab) -> Result<()> {
    let prepare = |id: u32| {
        ["START", "", "END", "PREPARE"].map(|verb| match verb {
            "" => format!("UPDATE a SET v = v + 1 WHERE id = {id}"),
            verb => format!("XA {verb} 'x{id}', 'b', 3"),
        })
    };
    for (id, commits) in [(1, true), (2, false)] {
        let statements = prepare(id);
        let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
        lab.check(&statements, "| a a:1 a:2 b").await?;
        let end = match commits {
            true => format!("XA COMMIT 'x{id}', 'b', 3"),
            false => format!("XA ROLLBACK 'x{id}', 'b', 3"),
        };
        let names = match commits {
            true => "a a:1 | a:2 b",
            false => "| a a:1 a:2 b",
        };
        lab.check(&[&end], names).await?;
    }
    let one_phase = [
        "XA START 'one'",
        "UPDATE a SET v = v + 1 WHERE id = 1",
        "XA END 'one'",
        "XA COMMIT 'one' ONE PHASE",
    ];
    lab.check(&one_phase, "a a:1 | a:2 b").await
}

pub(crate) async fn mysql(lab: &mut Lab) -> Result<()> {
    lab.run(&["SET SESSION binlog_transaction_compression = ON"])
        .await?;
    lab.check(
        &["UPDATE a SET v = v + 1 WHERE id IN (1, 2)"],
        "a a:1 a:2 | a:3 b",
    )
    .await?;
    lab.check(&["DELETE FROM p WHERE id = 998"], "| p c a")
        .await?;
    lab.run(&[
        "SET SESSION binlog_transaction_compression = OFF",
        "SET gtid_next = 'AUTOMATIC:tagged'",
    ])
    .await?;
    lab.check(&["UPDATE a SET v = v + 1 WHERE id = 1"], "a a:1 | a:2 b")
        .await?;
    lab.check(&["TRUNCATE b"], "b b:1 | a a:1").await?;
    lab.run(&[
        "SET gtid_next = AUTOMATIC",
        "SET binlog_row_value_options = PARTIAL_JSON",
    ])
    .await?;
    lab.check(
        &["UPDATE kinds SET j = JSON_SET(j, '$.a[0]', 9)"],
        "kinds kinds:-77 | kinds:77",
    )
    .await?;
    lab.run(&["SET binlog_row_value_options = ''"]).await
}

pub(crate) async fn mariadb(lab: &mut Lab) -> Result<()> {
    let text: String = "x".repeat(5000);
    lab.run(&[
        "SET GLOBAL log_bin_compress = ON",
        "SET GLOBAL log_bin_compress_min_len = 10",
    ])
    .await?;
    let compressed = format!("INSERT INTO two VALUES (9, '{text}', 'zip', 1)");
    lab.check(&[&compressed], "two two:zip/9 | two:abcd/5 a")
        .await?;
    let statement = format!(
        "SET STATEMENT binlog_format='STATEMENT' FOR UPDATE two SET t = '{text}' WHERE b = 9"
    );
    lab.check(&[&statement], "two two:abcd/5 | a").await?;
    lab.run(&["SET GLOBAL log_bin_compress = OFF"]).await?;
    lab.run(&["SET SESSION gtid_domain_id = 5"]).await?;
    lab.check(&["UPDATE a SET v = v + 1 WHERE id = 1"], "a a:1 | a:2 b")
        .await?;
    lab.run(&[
        "SET SESSION gtid_domain_id = 0",
        "SET SESSION binlog_alter_two_phase = 1",
    ])
    .await?;
    lab.check(&["ALTER TABLE b ADD x2 INT"], "b b:1 | a a:1")
        .await?;
    lab.run(&["SET SESSION binlog_alter_two_phase = 0"]).await?;
    lab.check(
        &["CREATE OR REPLACE TABLE b (id INT PRIMARY KEY, v INT) SELECT id, v FROM a"],
        "b b:1 | a a:1",
    )
    .await
}

pub(crate) async fn definitions(lab: &mut Lab) -> Result<()> {
    lab.check(&["TRUNCATE TABLE b"], "b b:1 | a a:1").await?;
    lab.run(&["INSERT INTO b (id) VALUES (1), (2)"]).await?;
    lab.check(&["ALTER TABLE a ADD w INT FIRST"], "a a:1 | b b:1")
        .await?;
    lab.check(&["UPDATE a SET w = 1 WHERE id = 1"], "a a:1 | a:2 b")
        .await?;
    lab.run(&["DELETE FROM a WHERE id < 0"]).await?;
    lab.check(&["ALTER TABLE a MODIFY id BIGINT UNSIGNED"], "a a:1 | b")
        .await?;
    // The reading that an ALTER calls for has what it did: else keys would not be known afterwards.
    for _ in 0..3 {
        lab.run(&["ALTER TABLE b ADD w INT FIRST"]).await?;
        lab.check(&["UPDATE b SET w = 1 WHERE id = 1"], "b b:1 | b:2 a")
            .await?;
        lab.run(&["ALTER TABLE b DROP w"]).await?;
        lab.check(
            &["UPDATE b SET v = COALESCE(v, 0) + 1 WHERE id = 1"],
            "b b:1 | b:2 a",
        )
        .await?;
    }
    lab.check(&["UPDATE a SET w = 2 WHERE id = 1"], "a a:1 | a:2 b")
        .await?;
    lab.check(
        &["ALTER TABLE a DROP w", "INSERT INTO a VALUES (600, 1)"],
        "a a:1 a:600 | b",
    )
    .await?;
    lab.check(
        &["RENAME TABLE a TO x, b TO a, x TO b"],
        "a b a:1 b:1 | u:7",
    )
    .await?;
    lab.check(
        &["UPDATE b SET v = v + 1 WHERE id = 1"],
        "b b:1 | a a:1 b:2",
    )
    .await?;
    lab.check(
        &["RENAME TABLE a TO x, b TO a, x TO b"],
        "a b a:1 b:1 | u:7",
    )
    .await?;
    lab.check(&["CREATE INDEX i ON a (v)"], "a a:1 | b").await?;
    lab.check(&["DROP INDEX i ON a"], "a a:1 | b").await?;
    lab.check(&["CREATE TABLE ct AS SELECT * FROM a"], "| a a:1 b")
        .await?;
    lab.check(&["INSERT INTO ct SELECT * FROM a"], "ct | a a:1 b")
        .await?;
    lab.check(&["DROP TABLE ct"], "ct | a a:1 b").await?;
    lab.check(
        &["CREATE TABLE l LIKE a", "INSERT INTO l SELECT * FROM a"],
        "| b",
    )
    .await?;
    lab.run(&[
        "CREATE TABLE part (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9), \
         PARTITION p1 VALUES LESS THAN (99))",
        "CREATE TABLE one (id INT PRIMARY KEY)",
        "INSERT INTO one VALUES (1)",
    ])
    .await?;
    lab.check(
        &["ALTER TABLE part EXCHANGE PARTITION p0 WITH TABLE one"],
        "part one part:1 one:1 |",
    )
    .await?;
    lab.check(
        &["ALTER TABLE part TRUNCATE PARTITION p0"],
        "part part:1 | a",
    )
    .await?;
    lab.check(
        &["CREATE OR REPLACE VIEW v AS SELECT * FROM a"],
        "a b a:1 |",
    )
    .await?;
    lab.check(&["CREATE PROCEDURE pr() SELECT 1"], "a |")
        .await?;
    lab.check(&["CREATE TRIGGER t2 AFTER INSERT ON a FOR EACH ROW REPLACE INTO l (id) VALUES (NEW.id + 5000)"], "a |")
        .await?;
    lab.check(
        &["INSERT INTO a VALUES (700, 1)"],
        "a a:700 l l:5700 | a:1 l:1",
    )
    .await?;
    // Many in a row.
    let adds: Vec<String> = (0..30)
        .map(|n| format!("ALTER TABLE l ADD n{n} INT"))
        .collect();
    let adds: Vec<&str> = adds.iter().map(String::as_str).collect();
    lab.check(&adds, "l l:1 | a a:1 b").await?;
    lab.check(&["CREATE DATABASE other", "DROP DATABASE other"], "a |")
        .await?;
    lab.check(&["ANALYZE TABLE a", "OPTIMIZE TABLE b"], "| a b")
        .await
}

pub(crate) async fn rights(lab: &mut Lab) -> Result<()> {
    lab.check(&["CREATE USER x IDENTIFIED BY 'y'"], "a a:1 |")
        .await?;
    lab.check(&["GRANT SELECT ON test.* TO x"], "a a:1 |")
        .await?;
    lab.check(&["CREATE ROLE r"], "a |").await?;
    lab.check(&["GRANT r TO x"], "a |").await?;
    lab.check(&["SET DEFAULT ROLE r TO x"], "a |")
        .await
        .or_else(|error| match lab.family {
            // MariaDB says FOR.
            Family::MariaDb => Ok(()),
            Family::MySql => Err(error),
        })?;
    lab.check(&["REVOKE SELECT ON test.* FROM x"], "a |")
        .await?;
    lab.check(&["DROP USER x"], "a |").await?;
    lab.check(&["FLUSH PRIVILEGES"], "a |").await?;
    lab.check(&["FLUSH TABLES"], "| a").await
}
