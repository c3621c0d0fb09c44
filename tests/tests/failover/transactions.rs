//! Open transactions whose primary dies: run again where they come out the same, ended with the
//! standard error where not, and nothing half done either way.

use anyhow::ensure;
use millrace_sandbox::{Cluster, Family};
use millrace_tests::cutter::Mode;
use millrace_tests::harness::Proxy;
use millrace_tests::wire::{Connection, Param};

use crate::ground::{
    ask, both, client, cut_for_a_moment, ensure_error, fail_over, kill, metric, proxy,
    proxy_with_cutter, run, scalar, soon, table,
};

async fn all(session: &mut Connection, statements: &[&str]) -> anyhow::Result<()> {
    for sql in statements {
        session.expect(sql).await?;
    }
    Ok(())
}

async fn failures(proxy: &Proxy, reason: &str) -> anyhow::Result<f64> {
    let name = format!("millrace_replay_failures_total{{reason=\"{reason}\"}}");
    metric(proxy, &name).await
}

const ROWS: &str = "SELECT COALESCE(GROUP_CONCAT(CONCAT(id, ':', n) ORDER BY id), '') FROM app.";

pub(crate) async fn replayed(cluster: &Cluster) -> anyhow::Result<()> {
    table(
        cluster,
        "replayed (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
    )
    .await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &["INSERT INTO replayed (n) VALUES (1), (2)", "BEGIN"],
    )
    .await?;
    let sum = scalar(&mut session, "SELECT SUM(n) FROM replayed FOR UPDATE").await?;
    ensure!(sum == "3", "{sum}");
    all(
        &mut session,
        &[
            "UPDATE replayed SET n = n + 10 WHERE id = 1",
            "INSERT INTO replayed (n) VALUES (3)",
        ],
    )
    .await?;
    fail_over(cluster).await?;
    let reply = session
        .expect("UPDATE replayed SET n = n + 10 WHERE id = 2")
        .await?;
    let status = reply.status().unwrap_or(0);
    ensure!(status & 1 != 0, "still in the transaction: {status:#x}");
    let id = scalar(&mut session, "SELECT LAST_INSERT_ID()").await?;
    ensure!(id == "3", "LAST_INSERT_ID() is {id}");
    let sum = scalar(&mut session, "SELECT SUM(n) FROM replayed").await?;
    ensure!(sum == "26", "{sum}");
    let before = ask(cluster, &format!("{ROWS}replayed")).await?;
    ensure!(before == "1:1,2:2", "before the commit: {before}");
    session.expect("COMMIT").await?;
    let after = ask(cluster, &format!("{ROWS}replayed")).await?;
    ensure!(after == "1:11,2:12,3:3", "{after}");
    Ok(())
}

/// The statement that the primary dies under is part of what is run again.
pub(crate) async fn under_way(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "under_way (id INT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &["BEGIN", "INSERT INTO under_way VALUES (1, 1)"],
    )
    .await?;
    let writing = async {
        session
            .expect("INSERT INTO under_way SELECT 2, 2 + SLEEP(3)")
            .await?;
        session.expect("COMMIT").await?;
        Ok(())
    };
    let failing = async {
        soon().await;
        fail_over(cluster).await
    };
    both(writing, failing).await?;
    let rows = ask(cluster, &format!("{ROWS}under_way")).await?;
    ensure!(rows == "1:1,2:2", "{rows}");
    Ok(())
}

/// So is the first, with which the transaction has only just been begun.
pub(crate) async fn first_under_way(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "first_one (id INT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    session.expect("BEGIN").await?;
    let writing = async {
        session
            .expect("INSERT INTO first_one SELECT 1, 1 + SLEEP(3)")
            .await?;
        session.expect("COMMIT").await?;
        Ok(())
    };
    let failing = async {
        soon().await;
        fail_over(cluster).await
    };
    both(writing, failing).await?;
    let rows = ask(cluster, &format!("{ROWS}first_one")).await?;
    ensure!(rows == "1:1", "{rows}");
    Ok(())
}

/// What the client has read has changed meanwhile: it begins anew, and its session is whole.
pub(crate) async fn differs(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "differs (id INT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &[
            "SET @kept = 'yes'",
            "INSERT INTO differs VALUES (1, 1)",
            "BEGIN",
            "UPDATE differs SET n = 5 WHERE id = 1",
            "SELECT * FROM differs",
        ],
    )
    .await?;
    fail_over(cluster).await?;
    run(cluster, "INSERT INTO app.differs VALUES (2, 2)").await?;
    let reply = session.query("INSERT INTO differs VALUES (3, 3)").await;
    let message = ensure_error(&reply, 1213, "40001")?;
    ensure!(message.contains("answered differently"), "{message}");
    let rows = ask(cluster, &format!("{ROWS}differs")).await?;
    ensure!(rows == "1:1,2:2", "{rows}");
    // Nobody is left with its locks, and the session goes on outside of a transaction.
    run(cluster, "UPDATE app.differs SET n = 9 WHERE id = 1").await?;
    session.expect("INSERT INTO differs VALUES (4, 4)").await?;
    let kept = scalar(&mut session, "SELECT @kept").await?;
    ensure!(kept == "yes", "{kept}");
    let rows = ask(cluster, &format!("{ROWS}differs")).await?;
    ensure!(rows == "1:9,2:2,4:4", "{rows}");
    ensure!(failures(&proxy, "differs").await? == 1.0, "not counted");
    Ok(())
}

/// On the new primary the next number is another, because the old one gave some away that nobody
/// used. The client keeps the number that it was told.
pub(crate) async fn generated_numbers(cluster: &Cluster) -> anyhow::Result<()> {
    table(
        cluster,
        "numbers (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
    )
    .await?;
    let proxy = proxy(cluster, "").await?;
    let (mut session, mut other) = (client(&proxy).await?, client(&proxy).await?);
    all(
        &mut other,
        &["BEGIN", "INSERT INTO numbers (n) VALUES (0), (0), (0)"],
    )
    .await?;
    session.expect("BEGIN").await?;
    let reply = session
        .expect("INSERT INTO numbers (n) VALUES (1), (2)")
        .await?;
    let first = reply.ok().map_or(0, |ok| ok.insert_id);
    ensure!(first > 3, "the other has the first numbers: {first}");
    let reply = session.expect("INSERT INTO numbers (n) VALUES (3)").await?;
    let second = reply.ok().map_or(0, |ok| ok.insert_id);
    other.expect("ROLLBACK").await?;
    fail_over(cluster).await?;
    let reply = session.expect("INSERT INTO numbers (n) VALUES (4)").await?;
    let third = reply.ok().map_or(0, |ok| ok.insert_id);
    session.expect("COMMIT").await?;
    let rows = ask(cluster, &format!("{ROWS}numbers")).await?;
    let expected = format!("{first}:1,{}:2,{second}:3,{third}:4", first + 1);
    ensure!(rows == expected, "{rows} instead of {expected}");
    ensure!(third > second, "{third} after {second}");
    Ok(())
}

/// Executions of prepared statements, also of those that were closed since.
pub(crate) async fn prepared(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "in_prepared (id INT PRIMARY KEY, n VARCHAR(20))").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    let insert = session
        .prepare(b"INSERT INTO in_prepared VALUES (?, ?)")
        .await;
    let (insert, _) = insert.statement_id().expect("prepared");
    let select = session
        .prepare(b"SELECT n FROM in_prepared WHERE id = ?")
        .await;
    let (select, _) = select.statement_id().expect("prepared");
    session.expect("BEGIN").await?;
    for (n, types) in [(1, true), (2, false)] {
        let params = [Param::int(n), Param::text("x")];
        let reply = session.execute(insert, 0, &params, types).await;
        ensure!(reply.err().is_none(), "{:?}", reply.render());
    }
    let reply = session.execute(select, 0, &[Param::int(2)], true).await;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    session.send(0x19, &select.to_le_bytes()).await?;
    fail_over(cluster).await?;
    let params = [Param::int(3), Param::text("y")];
    let reply = session.execute(insert, 0, &params, false).await;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    session.expect("COMMIT").await?;
    let rows = ask(cluster, &format!("{ROWS}in_prepared")).await?;
    ensure!(rows == "1:x,2:x,3:y", "{rows}");
    Ok(())
}

/// Savepoints, errors, and settings that change in the middle.
pub(crate) async fn savepoints_and_state(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "saved (id INT PRIMARY KEY, n VARCHAR(20))").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &[
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "START TRANSACTION",
            "INSERT INTO saved VALUES (1, 'a')",
            "SAVEPOINT one",
            "INSERT INTO saved VALUES (2, 'b')",
            "ROLLBACK TO one",
            "SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT'",
        ],
    )
    .await?;
    let reply = session.query("INSERT INTO saved VALUES (1, 'again')").await;
    ensure_error(&reply, 1062, "23000")?;
    session
        .expect("INSERT INTO \"saved\" VALUES (3, 'x' || 'y')")
        .await?;
    fail_over(cluster).await?;
    session
        .expect("INSERT INTO \"saved\" VALUES (4, 'x' || 'z')")
        .await?;
    session.expect("COMMIT").await?;
    let rows = ask(cluster, &format!("{ROWS}saved")).await?;
    ensure!(rows == "1:a,3:xy,4:xz", "{rows}");
    Ok(())
}

pub(crate) async fn autocommit_off(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "implicit (id INT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &[
            "SET autocommit = 0",
            "INSERT INTO implicit VALUES (1, 1)",
            "COMMIT",
            "INSERT INTO implicit VALUES (2, 2)",
            "SELECT * FROM implicit",
        ],
    )
    .await?;
    fail_over(cluster).await?;
    all(
        &mut session,
        &["INSERT INTO implicit VALUES (3, 3)", "COMMIT"],
    )
    .await?;
    let rows = ask(cluster, &format!("{ROWS}implicit")).await?;
    ensure!(rows == "1:1,2:2,3:3", "{rows}");
    Ok(())
}

/// Transactions that have done what cannot be done again.
pub(crate) async fn not_replayable(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "once (id INT PRIMARY KEY, n INT)").await?;
    run(cluster, "DROP TABLE IF EXISTS app.flat").await?;
    run(cluster, "CREATE TABLE app.flat (n INT) ENGINE=MyISAM").await?;
    cluster
        .wait_replicas_caught_up(std::time::Duration::from_secs(20))
        .await?;
    let proxy = proxy(cluster, "").await?;
    let mut cases: Vec<&[&str]> = vec![
        &["BEGIN", "INSERT INTO once VALUES (1, 1)", "SET @a = 5"],
        &[
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            "SELECT * FROM once",
        ],
    ];
    if cluster.family() == Family::MariaDb {
        // MySQL does not let that into its binary log.
        cases.push(&[
            "BEGIN",
            "INSERT INTO once VALUES (2, 2)",
            "INSERT INTO flat VALUES (1)",
        ]);
    }
    let mut sessions = Vec::new();
    for case in &cases {
        let mut session = client(&proxy).await?;
        all(&mut session, case).await?;
        sessions.push(session);
    }
    fail_over(cluster).await?;
    for (session, case) in sessions.iter_mut().zip(&cases) {
        let reply = session.query("INSERT INTO once VALUES (9, 9)").await;
        ensure_error(&reply, 1213, "40001").map_err(|error| error.context(format!("{case:?}")))?;
        let one = scalar(session, "SELECT 1").await?;
        ensure!(one == "1", "the session goes on");
    }
    let rows = ask(cluster, &format!("{ROWS}once")).await?;
    ensure!(rows.is_empty(), "{rows}");
    let counted = failures(&proxy, "not_replayable").await?;
    ensure!(counted == cases.len() as f64, "{counted} counted");
    run(cluster, "DROP TABLE app.flat").await
}

/// A statement that was under way is not run again either where its table keeps what it did.
pub(crate) async fn flat_under_way(cluster: &Cluster) -> anyhow::Result<()> {
    run(cluster, "DROP TABLE IF EXISTS app.flat").await?;
    run(cluster, "CREATE TABLE app.flat (n INT) ENGINE=MyISAM").await?;
    cluster
        .wait_replicas_caught_up(std::time::Duration::from_secs(20))
        .await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    session.expect("SET autocommit = 0").await?;
    let writing = async { Ok(session.query("INSERT INTO flat SELECT 1 + SLEEP(6)").await) };
    let failing = async {
        soon().await;
        fail_over(cluster).await
    };
    let (reply, _) = both(writing, failing).await?;
    ensure_error(&reply, 1180, "08007")?;
    let rows = ask(cluster, "SELECT COUNT(*) FROM app.flat").await?;
    ensure!(rows == "0", "{rows}");
    run(cluster, "DROP TABLE app.flat").await
}

pub(crate) async fn bounds(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "bounds (id INT PRIMARY KEY, n INT)").await?;
    let options = "[failover]\nmax_replay_statements = 2\nmax_replay_time = \"2s\"\n";
    let proxy = proxy(cluster, options).await?;
    let (mut long, mut old) = (client(&proxy).await?, client(&proxy).await?);
    let mut fits = client(&proxy).await?;
    all(&mut old, &["BEGIN", "INSERT INTO bounds VALUES (1, 1)"]).await?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    all(
        &mut long,
        &["BEGIN", "INSERT INTO bounds VALUES (2, 2)", "DO 0", "DO 0"],
    )
    .await?;
    let next = kill(cluster).await?;
    cluster.promote(&next.name).await?;
    all(
        &mut fits,
        &["BEGIN", "INSERT INTO bounds VALUES (3, 3)", "COMMIT"],
    )
    .await?;
    for (session, why) in [
        (&mut long, "max_replay_statements"),
        (&mut old, "max_replay_time"),
    ] {
        let reply = session.query("COMMIT").await;
        let message = ensure_error(&reply, 1213, "40001")?;
        ensure!(message.contains(why), "{message}");
    }
    let rows = ask(cluster, &format!("{ROWS}bounds")).await?;
    ensure!(rows == "3:3", "{rows}");
    Ok(())
}

/// A COMMIT that finds its primary dead was not sent: the transaction is run again and committed.
pub(crate) async fn commit_before(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "committed (id INT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &["BEGIN", "INSERT INTO committed VALUES (1, 1)"],
    )
    .await?;
    let next = kill(cluster).await?;
    let committing = async { Ok(session.query("COMMIT").await) };
    let promoting = async {
        soon().await;
        cluster.promote(&next.name).await
    };
    let (reply, ()) = both(committing, promoting).await?;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    let rows = ask(cluster, &format!("{ROWS}committed")).await?;
    ensure!(rows == "1:1", "{rows}");
    Ok(())
}

/// A COMMIT whose answer does not come through was done, or not: the client is told so, and it is not
/// done again.
pub(crate) async fn commit_cut(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "commit_cut (id INT PRIMARY KEY, n INT)").await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &["BEGIN", "INSERT INTO commit_cut VALUES (1, 1)"],
    )
    .await?;
    cutter.set(Mode::CutAfter(1));
    let reply = session.query("COMMIT").await;
    cutter.set(Mode::Forward);
    ensure_error(&reply, 1180, "08007")?;
    let reply = session
        .expect("INSERT INTO commit_cut VALUES (2, 2)")
        .await?;
    let status = reply.status().unwrap_or(0);
    ensure!(status & 1 == 0, "in no transaction: {status:#x}");
    let rows = ask(cluster, &format!("{ROWS}commit_cut")).await?;
    ensure!(rows == "1:1,2:2", "{rows}");
    Ok(())
}

/// Where nothing was changed, there is nothing that could be unknown.
pub(crate) async fn commit_of_nothing_cut(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "nothing (id INT PRIMARY KEY, n INT)").await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let mut session = client(&proxy).await?;
    all(&mut session, &["BEGIN", "SELECT * FROM nothing"]).await?;
    cutter.set(Mode::CutAfter(1));
    let ending = async { Ok(session.query("COMMIT").await) };
    let (reply, ()) = both(ending, cut_for_a_moment(&cutter)).await?;
    ensure!(
        reply.err().is_none() && reply.broken().is_none(),
        "{:?}",
        reply.render()
    );
    Ok(())
}

pub(crate) async fn rollback_cut(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "rolled_back (id INT PRIMARY KEY, n INT)").await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &["BEGIN", "INSERT INTO rolled_back VALUES (1, 1)"],
    )
    .await?;
    cutter.set(Mode::CutAfter(1));
    let ending = async { Ok(session.query("ROLLBACK").await) };
    let (reply, ()) = both(ending, cut_for_a_moment(&cutter)).await?;
    ensure!(
        reply.err().is_none() && reply.broken().is_none(),
        "{:?}",
        reply.render()
    );
    session
        .expect("INSERT INTO rolled_back VALUES (1, 2)")
        .await?;
    let rows = ask(cluster, &format!("{ROWS}rolled_back")).await?;
    ensure!(rows == "1:2", "{rows}");
    Ok(())
}

/// START TRANSACTION READ ONLY runs on a replica; when that dies, on another server.
pub(crate) async fn read_only(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "only_read (id INT PRIMARY KEY, n INT)").await?;
    run(cluster, "INSERT INTO app.only_read VALUES (1, 1)").await?;
    cluster
        .wait_replicas_caught_up(std::time::Duration::from_secs(20))
        .await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    session.expect("START TRANSACTION READ ONLY").await?;
    let read = scalar(&mut session, "SELECT n FROM only_read").await?;
    ensure!(read == "1", "{read}");
    for replica in cluster.replicas() {
        cluster.kill(&replica.name).await?;
    }
    let read = scalar(&mut session, "SELECT n + 1 FROM only_read").await?;
    ensure!(read == "2", "{read}");
    let reply = session.query("INSERT INTO only_read VALUES (2, 2)").await;
    ensure_error(&reply, 1792, "25006")?;
    session.expect("COMMIT").await?;
    Ok(())
}

/// What lives on the lost connection besides a transaction cannot be had elsewhere: the session ends,
/// as it would without Millrace.
pub(crate) async fn pinned_otherwise(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "pinned (id INT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    all(
        &mut session,
        &[
            "CREATE TEMPORARY TABLE mine (n INT)",
            "INSERT INTO mine VALUES (1)",
        ],
    )
    .await?;
    fail_over(cluster).await?;
    let reply = session.query("INSERT INTO pinned VALUES (1, 1)").await;
    let ended = reply.broken().is_some()
        || reply
            .err()
            .is_some_and(|err| matches!(err.code, 1158 | 1159 | 1105));
    ensure!(ended, "{:?}", reply.render());
    let again = session.query("SELECT 1").await;
    ensure!(
        again.broken().is_some(),
        "the session goes on: {:?}",
        again.render()
    );
    let rows = ask(cluster, &format!("{ROWS}pinned")).await?;
    ensure!(rows.is_empty(), "{rows}");
    Ok(())
}
