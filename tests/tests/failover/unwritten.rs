//! Transactions of which more was done than is written down, or of which an error has left nobody
//! knows what: no COMMIT is answered OK without them, and nothing is called undone that was done.

use anyhow::ensure;
use millrace_sandbox::{Cluster, Family};
use millrace_tests::cutter::{Cutter, Mode};
use millrace_tests::wire::{Connection, Expect, Reply};

use crate::ground::{
    ask, both, client, cut_for_a_moment, ensure_error, fail_over, proxy, proxy_with_cutter, run,
    scalar, soon, table,
};

const FOLLOWED: std::time::Duration = std::time::Duration::from_secs(20);

async fn rows(cluster: &Cluster, table: &str) -> anyhow::Result<String> {
    let list = "COALESCE(GROUP_CONCAT(CONCAT(id, ':', n) ORDER BY id), '')";
    ask(cluster, &format!("SELECT {list} FROM app.{table}")).await
}

/// The reply of a statement whose answer is cut; connections can be made again a moment later.
async fn cut(session: &mut Connection, cutter: &Cutter, sql: &str) -> anyhow::Result<Reply> {
    cutter.set(Mode::CutAfter(1));
    let running = async { Ok(session.query(sql).await) };
    let (reply, ()) = both(running, cut_for_a_moment(cutter)).await?;
    Ok(reply)
}

/// A transaction that was begun in one command with its first statement, or in a procedure.
pub(crate) async fn begun_unseen(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "unseen (id INT PRIMARY KEY, n INT)").await?;
    run(cluster, "DROP PROCEDURE IF EXISTS app.begins").await?;
    run(
        cluster,
        "CREATE PROCEDURE app.begins(id INT) \
         BEGIN START TRANSACTION; INSERT INTO app.unseen VALUES (id, id); END",
    )
    .await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let proxy = proxy(cluster, "").await?;
    let cases: [&[&str]; 4] = [
        &["BEGIN; INSERT INTO unseen VALUES (1, 1)"],
        &["BEGIN; INSERT INTO unseen VALUES (2, 2)", "SELECT 1"],
        &["CALL begins(3)"],
        &["CALL begins(4)", "SELECT n FROM unseen WHERE id = 4"],
    ];
    let mut sessions = Vec::new();
    for case in cases {
        let mut session = client(&proxy).await?;
        for sql in case {
            session.expect(sql).await?;
        }
        sessions.push(session);
    }
    let mut undone = client(&proxy).await?;
    undone
        .expect("BEGIN; INSERT INTO unseen VALUES (5, 5)")
        .await?;
    fail_over(cluster).await?;
    for (session, case) in sessions.iter_mut().zip(cases) {
        let reply = session.query("COMMIT").await;
        if case[0].starts_with("CALL") && reply.err().is_some_and(|error| error.code == 1158) {
            // What else it has left on its connection is not known.
            continue;
        }
        ensure_error(&reply, 1213, "40001").map_err(|error| error.context(format!("{case:?}")))?;
        let one = scalar(session, "SELECT 1").await?;
        ensure!(one == "1", "the session goes on");
    }
    undone.expect("ROLLBACK").await?;
    let rows = rows(cluster, "unseen").await?;
    ensure!(rows.is_empty(), "{rows}");
    Ok(())
}

/// The same, and its COMMIT is under way.
pub(crate) async fn begun_unseen_and_cut(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "unseen_cut (id INT PRIMARY KEY, n INT)").await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let cases: [&[&str]; 2] = [
        &["BEGIN; INSERT INTO unseen_cut VALUES (1, 1)"],
        &["BEGIN; INSERT INTO unseen_cut VALUES (2, 2)", "SELECT 1"],
    ];
    for case in cases {
        let mut session = client(&proxy).await?;
        for sql in case {
            session.expect(sql).await?;
        }
        let reply = cut(&mut session, &cutter, "COMMIT").await?;
        ensure_error(&reply, 1180, "08007").map_err(|error| error.context(format!("{case:?}")))?;
    }
    let rows = rows(cluster, "unseen_cut").await?;
    ensure!(rows == "1:1,2:2", "{rows}");
    Ok(())
}

/// LAST_INSERT_ID() in a transaction that is run again is what it was, or the transaction is over.
pub(crate) async fn last_insert_id(cluster: &Cluster) -> anyhow::Result<()> {
    table(
        cluster,
        "parents (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
    )
    .await?;
    table(cluster, "children (id INT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut sessions = Vec::new();
    let cases: [&[&str]; 5] = [
        // From before the transaction, on the connection that the transaction then has.
        &["BEGIN", "INSERT INTO children VALUES (1, LAST_INSERT_ID())"],
        &[
            "BEGIN",
            "INSERT INTO parents (n) VALUES (2)",
            "INSERT INTO children VALUES (2, LAST_INSERT_ID())",
        ],
        &[
            "BEGIN",
            "SELECT 1",
            "SET @@session.sql_mode = ''",
            "INSERT INTO children VALUES (3, LAST_INSERT_ID())",
        ],
        // Only then used.
        &["BEGIN", "SELECT n FROM parents WHERE id = 1 FOR UPDATE"],
        &["BEGIN", "INSERT INTO parents (n) VALUES (5)"],
    ];
    let mut expected = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let mut session = client(&proxy).await?;
        let reply = session
            .expect("INSERT INTO parents (n) VALUES (0), (0)")
            .await?;
        let mut id = reply.ok().map_or(0, |ok| ok.insert_id);
        for sql in *case {
            let reply = session.expect(sql).await?;
            if sql.starts_with("INSERT INTO parents") {
                id = reply.ok().map_or(0, |ok| ok.insert_id);
            }
        }
        expected.push(format!("{}:{id}", at + 1));
        sessions.push(session);
    }
    fail_over(cluster).await?;
    let mut again = 0;
    for (at, session) in sessions.iter_mut().enumerate() {
        let reply = session.query("SELECT LAST_INSERT_ID()").await;
        if reply.err().is_some() {
            ensure_error(&reply, 1213, "40001")?;
            expected[at].clear();
            continue;
        }
        let id = reply.scalar().unwrap_or_default();
        let told = expected[at].split(':').next_back().unwrap_or_default();
        ensure!(id == told, "{id} instead of {told} after {:?}", cases[at]);
        if at > 2 {
            let insert = format!("INSERT INTO children VALUES ({}, LAST_INSERT_ID())", at + 1);
            session.expect(&insert).await?;
        }
        session.expect("COMMIT").await?;
        again += 1;
    }
    // All but those that used what was not known.
    ensure!(again >= 3, "{again} run again: {expected:?}");
    expected.retain(|row| !row.is_empty());
    let rows = rows(cluster, "children").await?;
    ensure!(rows == expected.join(","), "{rows} instead of {expected:?}");
    Ok(())
}

/// A prepared SET autocommit = 1 is a COMMIT.
pub(crate) async fn prepared_commit_cut(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "by_setting (id INT PRIMARY KEY, n INT)").await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let mut session = client(&proxy).await?;
    let prepared = session.prepare(b"SET autocommit = 1").await;
    let (id, _) = prepared.statement_id().expect("prepared");
    session.expect("SET autocommit = 0").await?;
    session
        .expect("INSERT INTO by_setting VALUES (1, 1)")
        .await?;
    cutter.set(Mode::CutAfter(1));
    let reply = session.execute(id, 0, &[], true).await;
    cutter.set(Mode::Forward);
    ensure_error(&reply, 1180, "08007")?;
    let mut session = client(&proxy).await?;
    session
        .expect("PREPARE s FROM 'SET autocommit = 1'")
        .await?;
    session.expect("SET autocommit = 0").await?;
    session
        .expect("INSERT INTO by_setting VALUES (2, 2)")
        .await?;
    let reply = cut(&mut session, &cutter, "EXECUTE s").await?;
    ensure_error(&reply, 1180, "08007")?;
    let rows = rows(cluster, "by_setting").await?;
    ensure!(rows == "1:1,2:2", "{rows}");
    Ok(())
}

/// DDL commits what was before it, also where it fails.
pub(crate) async fn failed_ddl(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "ddl (id INT PRIMARY KEY, n INT)").await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let (mut session, mut idle) = (client(&proxy).await?, client(&proxy).await?);
    let create = "CREATE TABLE ddl (id INT)";
    for (session, id) in [(&mut session, 1), (&mut idle, 2)] {
        session.expect("BEGIN").await?;
        let insert = format!("INSERT INTO ddl VALUES ({id}, {id})");
        session.expect(&insert).await?;
        let reply = session.query(create).await;
        ensure_error(&reply, 1050, "42S01")?;
    }
    let reply = cut(&mut session, &cutter, "INSERT INTO ddl VALUES (3, 3)").await?;
    ensure_error(&reply, 1180, "08007")?;
    cutter.set(Mode::Refuse);
    soon().await;
    cutter.set(Mode::Forward);
    let reply = idle.query("COMMIT").await;
    ensure_error(&reply, 1180, "08007")?;
    let rows = rows(cluster, "ddl").await?;
    ensure!(rows == "1:1,2:2,3:3", "{rows}");
    Ok(())
}

/// A statement that runs a prepared one, or a function, that writes to a table without transactions
/// is not sent again.
pub(crate) async fn flat_behind(cluster: &Cluster) -> anyhow::Result<()> {
    if cluster.family() == Family::MySql {
        // It does not let that into its binary log.
        return Ok(());
    }
    table(cluster, "behind (id INT PRIMARY KEY, n INT)").await?;
    run(cluster, "DROP TABLE IF EXISTS app.flat").await?;
    run(cluster, "CREATE TABLE app.flat (n INT) ENGINE=MyISAM").await?;
    run(cluster, "DROP FUNCTION IF EXISTS app.keeps").await?;
    run(
        cluster,
        "CREATE FUNCTION app.keeps() RETURNS INT MODIFIES SQL DATA \
         BEGIN INSERT INTO app.flat VALUES (2); RETURN 1; END",
    )
    .await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let mut session = client(&proxy).await?;
    for sql in [
        "PREPARE s FROM 'INSERT INTO flat VALUES (1)'",
        "BEGIN",
        "SELECT 1",
    ] {
        session.expect(sql).await?;
    }
    let reply = cut(&mut session, &cutter, "EXECUTE s").await?;
    ensure_error(&reply, 1180, "08007")?;
    let mut session = client(&proxy).await?;
    for sql in ["BEGIN", "SELECT 1"] {
        session.expect(sql).await?;
    }
    let insert = "INSERT INTO behind VALUES (1, keeps())";
    let reply = cut(&mut session, &cutter, insert).await?;
    ensure_error(&reply, 1180, "08007")?;
    let kept = "SELECT GROUP_CONCAT(n ORDER BY n) FROM app.flat";
    let kept = ask(cluster, kept).await?;
    ensure!(kept == "1,2", "{kept}");
    run(cluster, "DROP FUNCTION app.keeps").await?;
    run(cluster, "DROP TABLE app.flat").await
}

/// COM_PING changes nothing; a transaction that there was no room for cannot be run again.
pub(crate) async fn pings_and_room(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "pinged (id INT PRIMARY KEY, n VARCHAR(9000))").await?;
    let proxy = proxy(cluster, "[failover]\nmax_replay_total_bytes = \"8KiB\"\n").await?;
    let (mut session, mut large) = (client(&proxy).await?, client(&proxy).await?);
    session.expect("BEGIN").await?;
    session.expect("INSERT INTO pinged VALUES (1, 'a')").await?;
    let reply = session.command(0x0e, b"", Expect::Single).await;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    large.expect("BEGIN").await?;
    let insert = format!("INSERT INTO pinged VALUES (2, '{}')", "x".repeat(5000));
    large.expect(&insert).await?;
    fail_over(cluster).await?;
    session.expect("COMMIT").await?;
    let reply = large.query("COMMIT").await;
    let message = ensure_error(&reply, 1213, "40001")?;
    ensure!(message.contains("max_replay_total_bytes"), "{message}");
    let rows = rows(cluster, "pinged").await?;
    ensure!(rows == "1:a", "{rows}");
    Ok(())
}
