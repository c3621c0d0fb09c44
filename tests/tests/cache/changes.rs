//! Writes of every kind, by whom ever: an answer out of memory never shows what was before.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Family;
use millrace_tests::wire::Connection;

use crate::ground::{Ground, SEEN_WITHIN, told_by};

/// What is written through Millrace is seen by every session at once, whoever wrote it.
pub(crate) async fn through(ground: &Ground) -> anyhow::Result<()> {
    let mut writer = ground.client().await?;
    let mut reader = ground.client().await?;
    let sql = "SELECT n FROM c_count WHERE id = 1";
    ground.until_hit(&mut reader, sql).await?;
    let mut now: u64 = reader
        .expect(sql)
        .await?
        .scalar()
        .context("no row")?
        .parse()?;
    let before = ground.hits().await?;
    for round in 0..300_u32 {
        writer
            .expect("UPDATE c_count SET n = n + 1 WHERE id = 1")
            .await?;
        now += 1;
        for reads in 0..3 {
            let client = if round % 3 == 0 {
                &mut writer
            } else {
                &mut reader
            };
            let told = client.expect(sql).await?.scalar();
            ensure!(
                told == Some(now.to_string()),
                "round {round}, read {reads}: {told:?} instead of {now}"
            );
            if round % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let hits = ground.hits().await? - before;
    eprintln!("reads after writes through Millrace: 900, {hits} out of memory");
    ensure!(hits > 0, "nothing came out of memory");
    Ok(())
}

/// What is written directly is seen soon.
pub(crate) async fn beside(ground: &Ground) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    let mut reader = ground.client().await?;
    let sql = "SELECT n FROM c_count WHERE id = 2";
    let mut longest = Duration::ZERO;
    for round in 0..60 {
        if round % 4 == 0 {
            ground.until_hit(&mut reader, sql).await?;
        }
        direct
            .expect("UPDATE c_count SET n = n + 1 WHERE id = 2")
            .await?;
        let now = direct.expect(sql).await?.scalar();
        let begun = Instant::now();
        while reader.expect(sql).await?.scalar() != now {
            ensure!(
                begun.elapsed() < SEEN_WITHIN,
                "round {round}: {now:?} is not seen"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        longest = longest.max(begun.elapsed());
    }
    eprintln!("a write beside Millrace was seen after {longest:?} at most");
    Ok(())
}

/// A change, and what of it is read.
struct Change {
    /// Made before the result is in memory, and after each run.
    before: &'static [&'static str],
    select: &'static str,
    change: &'static [&'static str],
    only: Option<Family>,
}

const fn change(
    before: &'static [&'static str],
    select: &'static str,
    change: &'static [&'static str],
) -> Change {
    Change {
        before,
        select,
        change,
        only: None,
    }
}

const fn mysql(change: Change) -> Change {
    Change {
        only: Some(Family::MySql),
        ..change
    }
}

const fn mariadb(change: Change) -> Change {
    Change {
        only: Some(Family::MariaDb),
        ..change
    }
}

const FRESH: &[&str] = &[
    "DROP TABLE IF EXISTS x_grandchild, x_child",
    "DROP TABLE IF EXISTS x_a, x_b, x_part, x_new, x_parent",
    "CREATE TABLE x_a (id INT PRIMARY KEY, v VARCHAR(20), big TEXT)",
    "CREATE TABLE x_b (id INT PRIMARY KEY, v VARCHAR(20), big TEXT)",
    "INSERT INTO x_a VALUES (1, 'one', 'x'), (2, 'two', 'x'), (3, 'three', 'x')",
    "INSERT INTO x_b VALUES (1, 'eins', 'x'), (2, 'zwei', 'x')",
];

const FAMILY: &[&str] = &[
    "DROP TABLE IF EXISTS x_grandchild, x_child",
    "DROP TABLE IF EXISTS x_parent",
    "CREATE TABLE x_parent (id INT PRIMARY KEY, k INT UNIQUE)",
    "CREATE TABLE x_child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES x_parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE x_grandchild (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES x_child (id) ON DELETE SET NULL)",
    "INSERT INTO x_parent VALUES (1, 1), (2, 2)",
    "INSERT INTO x_child VALUES (1, 1), (2, 2)",
    "INSERT INTO x_grandchild VALUES (1, 1), (2, 2)",
];

const ALL: &str = "SELECT * FROM x_a ORDER BY id";
const ONE: &str = "SELECT v FROM x_a WHERE id = 1";
const RANGE: &str = "SELECT v FROM x_a WHERE id BETWEEN 2 AND 9 ORDER BY id";

const CHANGES: &[Change] = &[
    change(FRESH, ONE, &["UPDATE x_a SET v = 'uno' WHERE id = 1"]),
    change(FRESH, ONE, &["DELETE FROM x_a WHERE id = 1"]),
    change(FRESH, ONE, &["UPDATE x_a SET id = 9 WHERE id = 1"]),
    change(FRESH, ONE, &["REPLACE INTO x_a VALUES (1, 'uno', 'y')"]),
    change(
        FRESH,
        ONE,
        &["INSERT INTO x_a VALUES (1, 'x', 'y') ON DUPLICATE KEY UPDATE v = 'dup'"],
    ),
    change(FRESH, RANGE, &["INSERT INTO x_a VALUES (5, 'five', 'y')"]),
    change(FRESH, RANGE, &["UPDATE x_a SET id = 8 WHERE id = 1"]),
    change(FRESH, RANGE, &["DELETE FROM x_a"]),
    change(
        FRESH,
        ALL,
        &["INSERT INTO x_a SELECT id + 10, v, big FROM x_b"],
    ),
    change(
        FRESH,
        ALL,
        &[
            "BEGIN",
            "INSERT INTO x_a VALUES (20, 'a', 'b')",
            "UPDATE x_a SET v = 'z'",
            "COMMIT",
        ],
    ),
    change(
        FRESH,
        ALL,
        &["UPDATE x_a JOIN x_b ON x_a.id = x_b.id SET x_a.v = x_b.v"],
    ),
    change(FRESH, ALL, &["TRUNCATE TABLE x_a"]),
    change(FRESH, ALL, &["ALTER TABLE x_a ADD COLUMN w INT DEFAULT 7"]),
    change(FRESH, ALL, &["ALTER TABLE x_a DROP COLUMN v"]),
    change(
        FRESH,
        ALL,
        &["ALTER TABLE x_a MODIFY v VARCHAR(30) CHARACTER SET latin1"],
    ),
    change(
        FRESH,
        ALL,
        &[
            "DROP TABLE x_a",
            "CREATE TABLE x_a (id INT, v VARCHAR(20)) AS SELECT 1 AS id, 'again' AS v",
        ],
    ),
    change(
        FRESH,
        ALL,
        &["RENAME TABLE x_a TO x_new, x_b TO x_a, x_new TO x_b"],
    ),
    change(
        FRESH,
        ONE,
        &[
            "RENAME TABLE x_a TO x_new, x_b TO x_a",
            "UPDATE x_a SET v = 'after' WHERE id = 1",
        ],
    ),
    change(
        FRESH,
        ALL,
        &[
            "DROP TABLE x_a",
            "CREATE VIEW x_a AS SELECT * FROM x_b",
            "UPDATE x_b SET v = 'seen'",
            "SELECT 1",
        ],
    ),
    change(&["DROP VIEW IF EXISTS x_a"], "SELECT 1 FROM c_plain", &[]),
    change(
        FRESH,
        ALL,
        &[
            "CREATE TRIGGER x_trigger AFTER INSERT ON x_b FOR EACH ROW UPDATE x_a SET v = 'by trigger'",
            "INSERT INTO x_b VALUES (77, 'a', 'b')",
        ],
    ),
    change(
        FRESH,
        ONE,
        &[
            "SET SESSION binlog_row_image = 'MINIMAL'",
            "UPDATE x_a SET v = 'minimal' WHERE id = 1",
            "SET SESSION binlog_row_image = 'FULL'",
        ],
    ),
    change(
        FRESH,
        ONE,
        &[
            "SET SESSION binlog_row_image = 'MINIMAL'",
            "UPDATE x_a SET id = 11 WHERE id = 1",
            "SET SESSION binlog_row_image = 'FULL'",
        ],
    ),
    change(
        FRESH,
        ONE,
        &[
            "SET SESSION binlog_row_image = 'NOBLOB'",
            "DELETE FROM x_a WHERE id = 1",
            "SET SESSION binlog_row_image = 'FULL'",
        ],
    ),
    change(
        FRESH,
        ONE,
        &[
            "SET SESSION binlog_format = 'STATEMENT'",
            "UPDATE x_a SET v = 'statement' WHERE id = 1",
            "SET SESSION binlog_format = 'ROW'",
        ],
    ),
    change(
        FRESH,
        ALL,
        &[
            "SET SESSION binlog_format = 'MIXED'",
            "UPDATE x_a SET v = LEFT(UUID(), 8) WHERE id = 1",
            "UPDATE x_a SET v = 'mixed' WHERE id = 2",
            "SET SESSION binlog_format = 'ROW'",
        ],
    ),
    mysql(change(
        FRESH,
        ONE,
        &[
            "SET SESSION binlog_transaction_compression = 1",
            "UPDATE x_a SET v = 'packed' WHERE id = 1",
            "SET SESSION binlog_transaction_compression = 0",
        ],
    )),
    mysql(change(
        FRESH,
        ONE,
        &[
            "SET gtid_next = 'AUTOMATIC:tagged'",
            "UPDATE x_a SET v = 'tagged' WHERE id = 1",
            "SET gtid_next = 'AUTOMATIC'",
        ],
    )),
    change(
        FRESH,
        ONE,
        &[
            "XA START 'x'",
            "UPDATE x_a SET v = 'xa' WHERE id = 1",
            "XA END 'x'",
            "XA PREPARE 'x'",
            "XA COMMIT 'x'",
        ],
    ),
    change(
        FRESH,
        ONE,
        &[
            "XA START 'y'",
            "UPDATE x_a SET v = 'xa' WHERE id = 1",
            "XA END 'y'",
            "XA COMMIT 'y' ONE PHASE",
        ],
    ),
    change(
        FAMILY,
        "SELECT * FROM x_child ORDER BY id",
        &["DELETE FROM x_parent WHERE id = 1"],
    ),
    change(
        FAMILY,
        "SELECT p FROM x_child WHERE id = 2",
        &["UPDATE x_parent SET id = 22 WHERE id = 2"],
    ),
    change(
        FAMILY,
        "SELECT c FROM x_grandchild WHERE id = 1",
        &["DELETE FROM x_parent WHERE id = 1"],
    ),
    mysql(change(
        &[
            "DROP TABLE IF EXISTS x_part, x_b",
            "CREATE TABLE x_b (id INT PRIMARY KEY, v INT)",
            "CREATE TABLE x_part (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
            "INSERT INTO x_part VALUES (1, 1), (11, 11)",
            "INSERT INTO x_b VALUES (2, 2)",
        ],
        "SELECT * FROM x_part ORDER BY id",
        &["ALTER TABLE x_part EXCHANGE PARTITION p0 WITH TABLE x_b"],
    )),
    mariadb(change(
        FRESH,
        ALL,
        &[
            "SET STATEMENT binlog_format = 'STATEMENT' FOR INSERT INTO x_a VALUES (31, 'set', 'statement')",
        ],
    )),
];

/// Each kind of change, made directly: what was in memory is not shown for longer than a moment, and what comes into
/// memory afterwards is what the servers have.
pub(crate) async fn each_kind(ground: &Ground) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    let mut reader = ground.client().await?;
    let mut slow = Duration::ZERO;
    for case in CHANGES {
        if case
            .only
            .is_some_and(|family| family != ground.release.family())
        {
            continue;
        }
        for sql in case.before {
            direct.expect(sql).await.with_context(|| sql.to_string())?;
        }
        ground.until_hit(&mut reader, case.select).await?;
        for sql in case.change {
            direct.expect(sql).await.with_context(|| sql.to_string())?;
        }
        let took = follows(&mut reader, &mut direct, case.select).await;
        let took = took.with_context(|| format!("{:?}, {}", case.change, case.select))?;
        slow = slow.max(took);
        // And it stays right, out of memory or not.
        let wanted = direct.query(case.select).await.render();
        for _ in 0..5 {
            let told = reader.query(case.select).await.render();
            ensure!(
                told == wanted,
                "{:?}: {told:#?}, direct {wanted:#?}",
                case.change
            );
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }
    eprintln!(
        "{} kinds of changes, each seen within {slow:?}",
        CHANGES.len()
    );
    Ok(())
}

/// Waits until Millrace answers as the primary does.
async fn follows(
    reader: &mut Connection,
    direct: &mut Connection,
    sql: &str,
) -> anyhow::Result<Duration> {
    let wanted = direct.query(sql).await.render();
    let begun = Instant::now();
    loop {
        let told = reader.query(sql).await.render();
        if told == wanted {
            return Ok(begun.elapsed());
        }
        ensure!(
            begun.elapsed() < SEEN_WITHIN,
            "after a second it still says {told:#?}, direct {wanted:#?}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Rights: what one account may see another does not get, and what is taken away is gone.
pub(crate) async fn rights(ground: &Ground) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    for sql in [
        "DROP USER IF EXISTS c_reader, c_other",
        "CREATE USER c_reader IDENTIFIED BY 'pw'",
        "CREATE USER c_other IDENTIFIED BY 'pw'",
        "GRANT SELECT ON app.c_plain TO c_reader",
        "GRANT SELECT ON app.c_count TO c_other",
    ] {
        direct.expect(sql).await?;
    }
    let sql = "SELECT v FROM c_plain WHERE id = 1";
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let mut reader = ground.client_as("c_reader", "pw").await?;
    let mut other = ground.client_as("c_other", "pw").await?;
    ground.until_hit(&mut reader, sql).await?;
    let told = other.query(sql).await;
    ensure!(
        told.err().is_some_and(|error| error.code == 1142),
        "{:?}",
        told.render()
    );
    direct
        .expect("REVOKE SELECT ON app.c_plain FROM c_reader")
        .await?;
    let begun = Instant::now();
    loop {
        let told = reader.query(sql).await;
        if told
            .err()
            .is_some_and(|error| error.code == 1142 || error.code == 1044)
        {
            break;
        }
        ensure!(begun.elapsed() < SEEN_WITHIN, "{:?}", told.render());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    direct.expect("DROP USER c_reader, c_other").await?;
    Ok(())
}

/// A session may keep a role that its account has no longer by default. What it reads is not for those that log in later.
pub(crate) async fn default_roles(ground: &Ground) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    let role = match ground.release.family() {
        Family::MySql => "SET DEFAULT ROLE c_role TO c_roled",
        Family::MariaDb => "SET DEFAULT ROLE c_role FOR c_roled",
    };
    for sql in [
        "DROP USER IF EXISTS c_roled",
        "DROP ROLE IF EXISTS c_role",
        "CREATE ROLE c_role",
        "GRANT SELECT ON app.c_plain TO c_role",
        "CREATE USER c_roled IDENTIFIED BY 'pw'",
        "GRANT SELECT ON app.c_count TO c_roled",
        "GRANT c_role TO c_roled",
        role,
    ] {
        direct.expect(sql).await.with_context(|| sql.to_owned())?;
    }
    let sql = "SELECT v FROM c_plain WHERE id = 3";
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut old = ground.client_as("c_roled", "pw").await?;
    ground.until_hit(&mut old, sql).await?;
    let none = match ground.release.family() {
        Family::MySql => "SET DEFAULT ROLE NONE TO c_roled",
        Family::MariaDb => "SET DEFAULT ROLE NONE FOR c_roled",
    };
    direct.expect(none).await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for _ in 0..10 {
        // What it is told depends on the connections that are left; what matters is who else is told.
        old.query(sql).await;
        let mut new = ground.client_as("c_roled", "pw").await?;
        let told = new.query(sql).await;
        ensure!(
            told.err()
                .is_some_and(|error| error.code == 1142 || error.code == 1143),
            "a new session is told {:?}",
            told.render()
        );
        new.quit().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    direct.expect("DROP USER c_roled").await?;
    direct.expect("DROP ROLE c_role").await?;
    Ok(())
}

/// Strings in a character set in which they have other bytes than their text.
pub(crate) async fn wide_strings(ground: &Ground) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    let mut reader = ground.client().await?;
    for set in ["SET character_set_connection = utf16", "SET NAMES utf8mb4"] {
        reader.expect(set).await?;
        direct.expect(set).await?;
        for sql in [
            "SELECT v FROM c_binary WHERE id = '01'",
            "SELECT v FROM c_binary WHERE id = x'00300031'",
        ] {
            let before = ground.until_hit(&mut reader, sql).await?;
            ensure!(
                set.contains("utf8") || before.len() > 3,
                "{set}: {sql}: {before:?}"
            );
            for key in ["x'00300031'", "x'30310000'"] {
                let change = format!("UPDATE c_binary SET v = v + 1 WHERE id = {key}");
                direct.expect(&change).await?;
                follows(&mut reader, &mut direct, sql)
                    .await
                    .with_context(|| format!("{set}: {sql} after {change}"))?;
            }
        }
    }
    Ok(())
}

/// What a table is changes at each server, the primary last, and no log tells: as a rolling change of a schema does it.
pub(crate) async fn unlogged_definitions(ground: &Ground) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    let mut reader = ground.client().await?;
    for sql in [
        "CREATE TABLE c_moved (id INT PRIMARY KEY, a INT, v INT)",
        "INSERT INTO c_moved VALUES (1, 101, 0), (2, 102, 0), (3, 103, 0), (101, 1, 0)",
    ] {
        direct.expect(sql).await?;
    }
    let sql = "SELECT * FROM c_moved WHERE id = 1";
    let mut slow = Duration::ZERO;
    // By key, by then.
    ground.until_by_key("c_moved", 3, Duration::ZERO).await?;
    for (round, change) in [
        "MODIFY id INT NOT NULL AFTER a",
        "MODIFY id INT NOT NULL AFTER v",
        "MODIFY id INT NOT NULL FIRST",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (a)",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
    ]
    .into_iter()
    .enumerate()
    {
        ground.until_hit(&mut reader, sql).await?;
        ground
            .unlogged(&format!("ALTER TABLE c_moved {change}"))
            .await?;
        for wait in [0, 700] {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            for by in ["id = 1", "a = 101"] {
                let write = format!("UPDATE c_moved SET v = v + 1 WHERE {by}");
                direct.expect(&write).await?;
                let took = follows(&mut reader, &mut direct, sql).await;
                let took =
                    took.with_context(|| format!("{change}, {wait} ms, {write}, round {round}"))?;
                slow = slow.max(took);
                ground.until_hit(&mut reader, sql).await?;
            }
        }
    }
    eprintln!("after definitions that no log tells of: seen within {slow:?}");
    // Without a write nothing tells. A change that the log does tell of has them read again.
    ground
        .unlogged("ALTER TABLE c_moved ADD COLUMN w INT NOT NULL DEFAULT 7")
        .await?;
    direct.expect("CREATE TABLE c_sign (id INT)").await?;
    follows(&mut reader, &mut direct, sql).await?;
    for name in ["log_transactions", "definitions_read"] {
        let told: u64 = told_by(ground.admin_port, name).await?.parse()?;
        ensure!(told > 10, "{name} is {told}");
    }
    Ok(())
}

/// Writes tell by themselves what they touch, before the log does: what they do not touch is served meanwhile, and what they
/// touch is not.
pub(crate) async fn before_the_log(ground: &Ground) -> anyhow::Result<()> {
    const LATE: Duration = Duration::from_millis(300);
    let mut direct = ground.direct().await?;
    for sql in [
        "CREATE TABLE c_late (id INT PRIMARY KEY, v INT)",
        "INSERT INTO c_late VALUES (1, 0), (2, 0), (3, 0), (4, 0)",
    ] {
        direct.expect(sql).await?;
    }
    let (late, _forwarder) = ground.with_late_log(LATE).await?;
    late.until_by_key("c_late", 4, LATE).await?;
    let (mut writer, mut reader) = (late.client().await?, late.client().await?);
    let read = |id: u32| format!("SELECT v FROM c_late WHERE id = {id}");
    let (mut wanted, mut hits) = ([0_u32; 2], 0);
    for round in 1..=12_u32 {
        late.until_hit(&mut reader, &read(2)).await?;
        let before = late.hits().await?;
        // Now the one that is in memory, now the other.
        let (id, write) = match round % 4 {
            0 => (2, format!("UPDATE c_late SET v = {round} WHERE id = 2")),
            _ => (1, format!("UPDATE c_late SET v = {round} WHERE id = 1")),
        };
        writer.expect(&write).await?;
        wanted[id - 1] = round;
        for client in [&mut reader, &mut writer] {
            for id in [2, 1, 2] {
                let told = client.expect(&read(id)).await?.scalar();
                let is = wanted[id as usize - 1].to_string();
                ensure!(
                    told.as_deref() == Some(is.as_str()),
                    "round {round}, row {id}: {told:?} instead of {is}"
                );
            }
        }
        if id == 1 {
            hits += late.hits().await? - before;
        }
    }
    // All four each time, but for what a slow machine leaves to the servers. By the log alone it is none.
    ensure!(
        hits >= 12,
        "{hits} of 36 out of memory; {:?}",
        late.reasons().await?
    );
    // Values without names are of columns whose order may be another by now.
    late.until_hit(&mut reader, &read(8)).await?;
    ground
        .unlogged("ALTER TABLE c_late MODIFY id INT NOT NULL AFTER v")
        .await?;
    writer.expect("INSERT INTO c_late VALUES (70, 8)").await?;
    for client in [&mut reader, &mut writer] {
        let told = client.expect(&read(8)).await?.scalar();
        ensure!(told.as_deref() == Some("70"), "{told:?} instead of 70");
    }
    Ok(())
}
