//! The follower of the binary log on real servers: which entries of the store each kind of statement removes, and what
//! becomes of them where the log is cut, purged, reset, or that of another server.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "follower/cases.rs"]
mod cases;
#[path = "follower/lab.rs"]
mod lab;

use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_sandbox::{Family, MONITOR, Release, skip_unless};
use tokio::task::LocalSet;

use lab::{Lab, until};

const RELEASES: [Release; 3] = [Release::MySql, Release::MariaDb, Release::MariaDb11_8];

/// Runs a test on each release, one after the other.
async fn on_each(
    what: &str,
    releases: &[Release],
    test: impl AsyncFn(Release) -> Result<()>,
) -> Result<()> {
    for release in releases {
        if skip_unless(*release, what) {
            LocalSet::new().run_until(test(*release)).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn statements_remove_what_they_change() -> Result<()> {
    on_each("what statements remove", &RELEASES, async |release| {
        let mut lab = Lab::up(release, 0, &[]).await?;
        lab.run(cases::TABLES).await?;
        cases::rows(&mut lab).await?;
        cases::images(&mut lab).await?;
        cases::cascades(&mut lab).await?;
        cases::statements(&mut lab).await?;
        cases::prepared(&mut lab).await?;
        match release.family() {
            Family::MySql => cases::mysql(&mut lab).await?,
            Family::MariaDb => cases::mariadb(&mut lab).await?,
        }
        cases::definitions(&mut lab).await?;
        cases::rights(&mut lab).await?;
        ensure!(lab.drops() == 1, "the log was lost");
        Ok(())
    })
    .await
}

/// InnoDB does cascades itself then, and they are not in the log.
#[tokio::test]
async fn cascades_that_the_log_does_not_tell() -> Result<()> {
    let test = async |release| {
        let mut lab = Lab::up(release, 0, &["--innodb-native-foreign-keys=ON"]).await?;
        lab.run(cases::TABLES).await?;
        cases::cascades(&mut lab).await?;
        // A foreign key of which no log tells, either: what it has changed goes once it is known.
        lab.run(&[
            "CREATE TABLE q (id INT PRIMARY KEY)",
            "CREATE TABLE r (id INT PRIMARY KEY, q INT, KEY (q))",
            "INSERT INTO q VALUES (1), (2)",
            "INSERT INTO r VALUES (1, 1), (2, 2)",
        ])
        .await?;
        let entries = lab.put("q r b").await?;
        lab.run(&[
            "SET sql_log_bin = 0",
            "ALTER TABLE r ADD FOREIGN KEY (q) REFERENCES q (id) ON DELETE CASCADE",
            "SET sql_log_bin = 1",
            "DELETE FROM q WHERE id = 1",
            "CREATE TABLE sign (id INT)",
        ])
        .await?;
        let left = lab.left(&entries).await?;
        ensure!(left.iter().eq(["b"]), "{left:?} are left");
        Ok(())
    };
    on_each("cascades of InnoDB", &[Release::MySql], test).await
}

#[tokio::test]
async fn without_the_right_it_says_so() -> Result<()> {
    let releases = [Release::MariaDb, Release::MariaDb11_8];
    on_each("a missing right", &releases, async |release| {
        let lab = Lab::without_rights(release, 0, &[]).await?;
        lab.wait_off("GRANT REPLICATION SLAVE").await?;
        lab.grant().await?;
        lab.wait_serving().await
    })
    .await
}

#[tokio::test]
async fn a_log_that_does_not_tell_all_is_not_followed() -> Result<()> {
    on_each("unfit logs", &RELEASES, async |release| {
        let without_log: &[&str] = match release.family() {
            Family::MySql => &["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"],
            Family::MariaDb => &["--skip-log-bin"],
        };
        let lab = Lab::without_rights(release, 0, without_log).await?;
        lab.wait_off(match release.family() {
            Family::MySql => "gtid_mode",
            Family::MariaDb => "log_bin",
        })
        .await?;
        lab.cluster.down().await?;
        for filter in ["--binlog-do-db=other", "--binlog-ignore-db=other"] {
            let lab = Lab::without_rights(release, 0, &[filter]).await?;
            lab.grant().await?;
            lab.wait_off(&filter[2..filter.len() - 6].replace('-', "_"))
                .await?;
            lab.cluster.down().await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_stream_that_is_cut_goes_on() -> Result<()> {
    on_each("a cut stream", &RELEASES, async |release| {
        let mut lab = Lab::up(release, 0, &[]).await?;
        lab.run(cases::TABLES).await?;
        let entries = lab.put("a a:1 a:2 b").await?;
        cut(&mut lab).await?;
        lab.run(&["UPDATE a SET v = v + 1 WHERE id = 1"]).await?;
        let left = lab.left(&entries).await?;
        // The server may be another process, which numbers its tables anew: of these nothing is known by key yet.
        ensure!(left.iter().eq(["b"]), "{left:?} are left");
        ensure!(lab.drops() == 1, "everything was dropped");
        let listed = match release.family() {
            Family::MySql => "SHOW REPLICAS",
            Family::MariaDb => "SHOW SLAVE HOSTS",
        };
        let listed = lab.sql.row(listed).await?.unwrap_or_default();
        let has = |value: &str| listed.values().any(|of| of == value);
        ensure!(has("millrace-cache") && has("0"), "{listed:?}");
        lab.check(&["UPDATE a SET v = 7 WHERE id = 1"], "a a:1 | a:2 b")
            .await
    })
    .await
}

/// Definitions that change without a word in the log: no key is taken for another, and soon keys count again.
#[tokio::test]
async fn definitions_that_the_log_does_not_tell() -> Result<()> {
    on_each("unlogged definitions", &RELEASES, async |release| {
        let mut lab = Lab::up(release, 0, &[]).await?;
        lab.run(&[
            "CREATE TABLE a (id INT PRIMARY KEY, o INT NOT NULL DEFAULT 0, v INT)",
            "INSERT INTO a VALUES (1, 101, 0), (2, 102, 0), (101, 1, 0)",
        ])
        .await?;
        let write = "UPDATE a SET v = v + 1 WHERE id = 1";
        for alter in [
            "MODIFY id INT NOT NULL AFTER o",
            "MODIFY id INT NOT NULL FIRST, ALGORITHM = COPY",
            "ADD COLUMN w INT FIRST",
            "DROP COLUMN w",
            "DROP PRIMARY KEY, ADD PRIMARY KEY (o)",
        ] {
            lab.check(&[write], "a a:1 | a:2 a:101").await?;
            let entries = lab.put("a a:1 a:101").await?;
            lab.run(&[
                "SET sql_log_bin = 0",
                &format!("ALTER TABLE a {alter}"),
                "SET sql_log_bin = 1",
                write,
            ])
            .await?;
            let left = lab.left(&entries).await?;
            ensure!(left.is_empty(), "{alter}: {left:?} are left");
            if alter.contains("(o)") {
                lab.check(&[write], "a a:101 | a:1 a:2").await?;
                lab.check(&["UPDATE a SET v = 9 WHERE o = 1"], "a a:1 | a:101")
                    .await?;
                // Its key is another column.
                lab.run(&[
                    "SET sql_log_bin = 0",
                    "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
                    "SET sql_log_bin = 1",
                ])
                .await?;
            }
        }
        // What only its columns' types tell.
        lab.run(&["CREATE TABLE b (id INT PRIMARY KEY)"]).await?;
        let entries = lab.put("a a:2 b").await?;
        lab.run(&[
            "SET sql_log_bin = 0",
            "ALTER TABLE a MODIFY v BIGINT",
            "SET sql_log_bin = 1",
            "CREATE TABLE sign (id INT)",
        ])
        .await?;
        let left = lab.left(&entries).await?;
        ensure!(left.iter().eq(["b"]), "{left:?} are left");
        ensure!(lab.drops() == 1, "everything was dropped");
        Ok(())
    })
    .await
}

/// Ends the follower's connections.
async fn cut(lab: &mut Lab) -> Result<()> {
    let streams = |lab: &Lab| {
        let followed = lab.cache.followed();
        followed.streams.load(std::sync::atomic::Ordering::Relaxed)
    };
    let before = streams(lab);
    kill(lab).await?;
    until("another stream", || streams(lab) > before).await
}

async fn kill(lab: &mut Lab) -> Result<()> {
    let question = format!(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{}' AND COMMAND LIKE 'Binlog Dump%'",
        MONITOR.user
    );
    let id = lab.sql.value(&question).await?;
    ensure!(id.is_some(), "the follower is not listed");
    lab.run(&[&format!("KILL {}", id.unwrap())]).await
}

/// Keeps the follower from the server while `statements` run. What locks the account is not logged.
async fn while_shut_out(lab: &mut Lab, statements: &[&str]) -> Result<()> {
    let alter = |how: &str| format!("ALTER USER '{}'@'%' ACCOUNT {how}", MONITOR.user);
    lab.run(&["SET sql_log_bin = 0", &alter("LOCK"), "SET sql_log_bin = 1"])
        .await?;
    kill(lab).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    lab.run(statements).await?;
    lab.run(&[
        "SET sql_log_bin = 0",
        &alter("UNLOCK"),
        "SET sql_log_bin = 1",
    ])
    .await
}

#[tokio::test]
async fn what_was_purged_drops_everything() -> Result<()> {
    on_each("purged logs", &RELEASES, async |release| {
        let mut lab = Lab::up(release, 0, &[]).await?;
        lab.run(cases::TABLES).await?;
        let entries = lab.put("a a:1 b").await?;
        let missed = [
            "INSERT INTO a VALUES (100, 1)",
            "FLUSH BINARY LOGS",
            "INSERT INTO a VALUES (101, 1)",
            "FLUSH BINARY LOGS",
            "DO SLEEP(1.5)",
            "PURGE BINARY LOGS BEFORE NOW()",
        ];
        while_shut_out(&mut lab, &missed).await?;
        let left = lab.left(&entries).await?;
        ensure!(left.is_empty() && lab.drops() == 2, "{left:?} are left");
        lab.check(&["UPDATE a SET v = 7 WHERE id = 100"], "a a:100 | a:1 b")
            .await
    })
    .await
}

#[tokio::test]
async fn a_reset_drops_everything() -> Result<()> {
    on_each("a reset", &RELEASES, async |release| {
        let mut lab = Lab::up(release, 0, &[]).await?;
        lab.run(cases::TABLES).await?;
        lab.run(&["FLUSH BINARY LOGS"]).await?;
        let entries = lab.put("a a:1 b").await?;
        let reset = match release.family() {
            Family::MySql => "RESET BINARY LOGS AND GTIDS",
            Family::MariaDb => "RESET MASTER",
        };
        let before = lab.drops();
        lab.run(&[reset, "UPDATE a SET v = 8 WHERE id = 1"]).await?;
        // Where the machine is slow, more than once.
        until("everything to be dropped", || lab.drops() > before).await?;
        let left = lab.left(&entries).await?;
        ensure!(left.is_empty(), "{left:?} are left");
        lab.check(&["UPDATE a SET v = 7 WHERE id = 1"], "a a:1 | a:2 b")
            .await?;
        // The same again, with as many transactions meanwhile as there were before.
        let entries = lab.put("a a:1 b").await?;
        let update = "UPDATE a SET v = v + 1";
        lab.run(&["FLUSH BINARY LOGS"]).await?;
        let before = lab.drops();
        while_shut_out(&mut lab, &[reset, update, update, update, update, update]).await?;
        let left = lab.left(&entries).await?;
        let drops = lab.drops();
        ensure!(
            left.is_empty() && drops > before,
            "{left:?} are left, {drops} drops after {before}"
        );
        Ok(())
    })
    .await
}

/// A MySQL server that has all of the history goes on with it. MariaDB's positions do not prove that.
#[tokio::test]
async fn another_primary() -> Result<()> {
    on_each("another primary", &RELEASES, async |release| {
        let mut lab = Lab::up(release, 1, &[]).await?;
        lab.run(cases::TABLES).await?;
        let entries = lab.put("a a:1 a:2 b").await?;
        lab.cluster
            .wait_replicas_caught_up(Duration::from_secs(10))
            .await?;
        lab.cluster.promote("s2").await?;
        lab.sql = lab.cluster.control("s2").await?;
        lab.run(&["USE test"]).await?;
        until("the other server's log", || {
            let followed = lab.cache.followed();
            followed.streams.load(std::sync::atomic::Ordering::Relaxed) > 1
        })
        .await?;
        lab.run(&["UPDATE a SET v = v + 1 WHERE id = 1"]).await?;
        let left = lab.left(&entries).await?;
        let expected: &[&str] = match release.family() {
            Family::MySql => &["b"],
            Family::MariaDb => &[],
        };
        ensure!(left.iter().eq(expected), "{left:?} are left");
        lab.check(&["UPDATE a SET v = 7 WHERE id = 1"], "a a:1 | a:2 b")
            .await
    })
    .await
}

/// A server that stands still is not heard of, and nothing is served then.
#[tokio::test]
async fn silence_ends_the_stream() -> Result<()> {
    on_each("silence", &RELEASES[..2], async |release| {
        let mut lab = Lab::up(release, 0, &[]).await?;
        lab.run(cases::TABLES).await?;
        let entries = lab.put("a b").await?;
        // Heartbeats keep it alive.
        tokio::time::sleep(Duration::from_secs(3)).await;
        ensure!(lab.serves(), "it does not serve in spite of heartbeats");
        lab.cluster.pause("s1").await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        ensure!(!lab.serves(), "it serves in spite of the silence");
        lab.cluster.resume("s1").await?;
        let left = lab.left(&entries).await?;
        ensure!(left.iter().eq(["a", "b"]), "{left:?} are left");
        Ok(())
    })
    .await
}
