//! A primary that is killed while a session does nothing, reads or writes, outside of a transaction.

use anyhow::ensure;
use millrace_sandbox::Cluster;
use millrace_tests::cutter::Mode;
use millrace_tests::wire::{Item, Param, Reply};

use crate::ground::{
    ask, both, client, ensure_error, error_of, fail_over, kill, mend, metric, next, proxy,
    proxy_with_cutter, run, scalar, soon, table,
};

/// Everything that a session has outlives its server.
pub(crate) async fn idle_session(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "idle (id INT AUTO_INCREMENT PRIMARY KEY, n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    for sql in [
        "SET @mine = 'kept', sql_mode = 'ANSI', time_zone = '+03:00'",
        "PREPARE named FROM 'SELECT ? + 1'",
        "INSERT INTO idle (n) VALUES (7)",
    ] {
        session.expect(sql).await?;
    }
    let settings = "SELECT CONCAT(@mine, '/', @@session.time_zone, '/', @@session.sql_mode LIKE '%ANSI_QUOTES%', '/', DATABASE())";
    let before = scalar(&mut session, settings).await?;
    fail_over(cluster).await?;
    let id = scalar(&mut session, "SELECT LAST_INSERT_ID()").await?;
    ensure!(id == "1", "LAST_INSERT_ID() is {id}");
    session.expect("INSERT INTO idle (n) VALUES (8)").await?;
    let after = scalar(&mut session, settings).await?;
    ensure!(before == after, "{before} became {after}");
    session.expect("SET @n = 41").await?;
    let named = scalar(&mut session, "EXECUTE named USING @n").await?;
    ensure!(named == "42", "the named statement says {named}");
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n ORDER BY id) FROM app.idle").await?;
    ensure!(rows == "7,8", "{rows}");
    Ok(())
}

/// Statements that a client has prepared go on under the same numbers.
pub(crate) async fn prepared_statements(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "prepared (n INT, t VARCHAR(20))").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    let insert = session.prepare(b"INSERT INTO prepared VALUES (?, ?)").await;
    let (insert, _) = insert.statement_id().expect("prepared");
    let select = session
        .prepare(b"SELECT COUNT(*) FROM prepared WHERE n > ? FOR UPDATE")
        .await;
    let (select, _) = select.statement_id().expect("prepared");
    let first = [Param::int(1), Param::text("a")];
    let reply = session.execute(insert, 0, &first, true).await;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    fail_over(cluster).await?;
    // Without the types, which the new server has never been told.
    let second = [Param::int(2), Param::text("b")];
    let reply = session.execute(insert, 0, &second, false).await;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    let reply = session.execute(select, 0, &[Param::int(0)], true).await;
    let rows = reply
        .events
        .iter()
        .filter(|event| matches!(event.item, Item::BinaryRow(_)));
    ensure!(rows.count() == 1, "{:?}", reply.render());
    let rows = ask(
        cluster,
        "SELECT GROUP_CONCAT(t ORDER BY n) FROM app.prepared",
    )
    .await?;
    ensure!(rows == "a,b", "{rows}");
    Ok(())
}

/// A read on the primary whose server dies is answered by the next.
pub(crate) async fn read_under_way(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    // What a server says of itself is asked of the primary.
    let reading = async {
        let reply = session.query("SELECT @@server_id, SLEEP(3)").await;
        ensure!(reply.err().is_none(), "{:?}", reply.render());
        Ok(reply.rows())
    };
    let failing = async {
        soon().await;
        fail_over(cluster).await
    };
    // The primary's answer is the best, but a question does not wait for one: whoever takes reads has it.
    let lost = ask(cluster, "SELECT @@server_id").await?;
    let (rows, _) = both(reading, failing).await?;
    let another = rows[0][0].clone().is_some_and(|id| id != lost);
    ensure!(another, "{rows:?} of {lost}");
    ensure!(rows[0][1].as_deref() == Some("0"), "{rows:?}");
    Ok(())
}

/// So is the execution of a prepared statement, with a cursor or without.
pub(crate) async fn prepared_read_under_way(cluster: &Cluster) -> anyhow::Result<()> {
    for flags in [0, 1] {
        mend(cluster).await?;
        let proxy = proxy(cluster, "").await?;
        let mut session = client(&proxy).await?;
        let prepared = session.prepare(b"SELECT @@server_id, SLEEP(?)").await;
        let (id, _) = prepared.statement_id().expect("prepared");
        let reading = async {
            let reply = session.execute(id, flags, &[Param::int(1)], true).await;
            ensure!(
                reply.err().is_none() && reply.broken().is_none(),
                "{:?}",
                reply.render()
            );
            if flags != 0 {
                let rows = session.fetch(id, 10).await;
                ensure!(rows.err().is_none(), "{:?}", rows.render());
            }
            Ok(())
        };
        let failing = async {
            soon().await;
            fail_over(cluster).await
        };
        both(reading, failing).await?;
    }
    Ok(())
}

/// A client that comes while there is no primary is let in, reads, and its write waits.
pub(crate) async fn client_comes(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "comes (n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    drop(client(&proxy).await?);
    let next = kill(cluster).await?;
    soon().await;
    let mut session = client(&proxy).await?;
    let count = scalar(&mut session, "SELECT COUNT(*) FROM comes").await?;
    ensure!(count == "0", "{count}");
    let writing = async { Ok(session.query("INSERT INTO comes VALUES (1)").await) };
    let promoting = async {
        soon().await;
        cluster.promote(&next.name).await
    };
    let (reply, ()) = both(writing, promoting).await?;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    Ok(())
}

/// A read that breaks every connection it runs on is not tried for ever. What ends it comes soon enough not to
/// be taken for a DBA's KILL, but on a busy machine: then it is told at once.
pub(crate) async fn read_that_ends_servers(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[failover]\nretries = 1\n").await?;
    let mut session = client(&proxy).await?;
    let reading = async { Ok(session.query("SELECT @@server_id, SLEEP(30)").await) };
    let ending = async {
        loop {
            let id = ask(
                cluster,
                "SELECT MIN(id) FROM information_schema.processlist WHERE info LIKE 'SELECT @@server_id, SLEEP(30)%'",
            )
            .await?;
            if id != "NULL" {
                // It may have ended by itself.
                let _ = run(cluster, &format!("KILL {id}")).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let reply: anyhow::Result<Reply> = tokio::select! {
        reply = reading => reply,
        failed = ending => failed,
    };
    let (code, ..) = error_of(&reply?)?;
    ensure!(matches!(code, 1158 | 1053 | 1927), "{code}");
    Ok(())
}

/// Writes that come while there is no primary wait for the next, and are done once.
pub(crate) async fn write_before(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "early (n INT PRIMARY KEY)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    session.expect("INSERT INTO early VALUES (1)").await?;
    let next = kill(cluster).await?;
    // At once, before anybody can know, and while nobody is the primary.
    let writing = async {
        for n in 2..5 {
            let reply = session
                .query(format!("INSERT INTO early VALUES ({n})"))
                .await;
            ensure!(reply.err().is_none(), "{:?}", reply.render());
        }
        Ok(())
    };
    let promoting = async {
        soon().await;
        soon().await;
        cluster.promote(&next.name).await
    };
    both(writing, promoting).await?;
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n ORDER BY n) FROM app.early").await?;
    ensure!(rows == "1,2,3,4", "{rows}");
    Ok(())
}

/// A write whose server dies under it: nobody can know, and that is what the client is told.
pub(crate) async fn write_under_way(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "late (n INT PRIMARY KEY)").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    let writing = async { Ok(session.query("INSERT INTO late SELECT 1 + SLEEP(6)").await) };
    let failing = async {
        soon().await;
        fail_over(cluster).await
    };
    let (reply, _) = both(writing, failing).await?;
    let message = ensure_error(&reply, 1180, "08007")?;
    ensure!(message.contains("not known"), "{message}");
    session.expect("INSERT INTO late VALUES (2)").await?;
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n ORDER BY n) FROM app.late").await?;
    ensure!(rows == "2", "{rows}");
    Ok(())
}

/// A write that was done, and whose answer does not come through, is not done again.
pub(crate) async fn write_cut(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "cut (n INT)").await?;
    let (proxy, cutter) = proxy_with_cutter(cluster).await?;
    let mut session = client(&proxy).await?;
    session.expect("INSERT INTO cut VALUES (1)").await?;
    cutter.set(Mode::CutAfter(1));
    let reply = session.query("INSERT INTO cut VALUES (2)").await;
    cutter.set(Mode::Forward);
    ensure_error(&reply, 1180, "08007")?;
    session.expect("INSERT INTO cut VALUES (3)").await?;
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n ORDER BY n) FROM app.cut").await?;
    ensure!(rows == "1,2,3", "{rows}");
    Ok(())
}

/// A primary that says nothing more: what runs there is broken off when that is judged.
pub(crate) async fn hung_primary(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "hung (n INT PRIMARY KEY)").await?;
    let proxy = proxy(cluster, "").await?;
    let (mut reader, mut writer) = (client(&proxy).await?, client(&proxy).await?);
    let mut teller = client(&proxy).await?;
    // So that there is a connection for each.
    let warm = "SELECT @@server_id, SLEEP(0.3)";
    tokio::try_join!(
        reader.expect(warm),
        writer.expect(warm),
        teller.expect(warm)
    )?;
    for sql in ["BEGIN", "INSERT INTO hung VALUES (1)"] {
        teller.expect(sql).await?;
    }
    let (old, new) = (cluster.primary(), next(cluster)?);
    cluster
        .wait_replicas_caught_up(std::time::Duration::from_secs(20))
        .await?;
    cluster.pause(&old.name).await?;
    let reading = async { Ok(reader.query("SELECT @@server_id").await) };
    let writing = async { Ok(writer.query("INSERT INTO hung VALUES (2)").await) };
    let telling = async { Ok(teller.query("INSERT INTO hung VALUES (3)").await) };
    let promoting = async {
        soon().await;
        cluster.promote(&new.name).await
    };
    let all = async { tokio::try_join!(reading, writing, telling, promoting) };
    let (read, wrote, told, ()) = all.await?;
    let commit = teller.query("COMMIT").await;
    cluster.kill(&old.name).await?;
    ensure!(read.err().is_none(), "{:?}", read.render());
    ensure_error(&wrote, 1180, "08007")?;
    ensure!(told.err().is_none(), "{:?}", told.render());
    ensure!(commit.err().is_none(), "{:?}", commit.render());
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n ORDER BY n) FROM app.hung").await?;
    ensure!(rows == "1,3", "{rows}");
    let held = metric(&proxy, "millrace_statements_held").await?;
    ensure!(held == 0.0, "{held} are still held");
    Ok(())
}
