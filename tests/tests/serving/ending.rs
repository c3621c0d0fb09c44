//! SIGTERM and the drain.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::wire::{Connection, Expect, com};
use rustix::process::Signal;

use crate::ground::{FOLLOWED, app, proxy, tcp};

pub(crate) async fn drains(cluster: &Cluster) -> anyhow::Result<()> {
    let mut proxy = proxy(cluster, "[drain]\ntimeout = \"40s\"\n").await?;
    let login = app(proxy.address());
    let mut idle = Connection::open(&login).await?;
    let mut pinned = Connection::open(&login).await?;
    let mut running = Connection::open(&login).await?;
    let mut writing = Connection::open(&login).await?;
    idle.expect("CREATE TABLE IF NOT EXISTS drained (x INT)")
        .await?;
    idle.expect("DELETE FROM drained").await?;
    pinned.expect("CREATE TEMPORARY TABLE t (x INT)").await?;
    for sql in ["BEGIN", "INSERT INTO drained VALUES (1)"] {
        writing.expect(sql).await?;
    }
    running
        .send(com::QUERY, b"SELECT 'slept', SLEEP(3)")
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.signal(Signal::TERM);
    let started = Instant::now();

    // New ones are refused; in the first moment maybe still let in and shown out.
    tokio::time::sleep(Duration::from_millis(500)).await;
    if let Ok((Some(_), _)) = Connection::try_open(&login).await {
        bail!("a new client was let in");
    }
    for (what, connection) in [("idle", &mut idle), ("with a temporary table", &mut pinned)] {
        connection.login.timeout = Duration::from_secs(20);
        let reply = connection.read_reply(Expect::Single).await;
        let closed =
            reply.broken().is_some_and(|why| why.contains("closed")) || reply.err().is_some();
        ensure!(closed, "{what}: {:?}", reply.render());
    }
    ensure!(
        proxy.alive(),
        "it ended before its clients had: {}",
        proxy.log()
    );
    let expect = Expect::Results { binary: false };
    let reply = running.read_reply(expect).await;
    ensure!(
        reply.scalar().as_deref() == Some("slept"),
        "running: {:?}",
        reply.render()
    );
    for sql in [
        "INSERT INTO drained VALUES (2)",
        "SELECT COUNT(*) FROM drained",
        "COMMIT",
    ] {
        writing.expect(sql).await.context("the open transaction")?;
    }
    let status = proxy.ended(Duration::from_secs(30)).await?;
    ensure!(status.success(), "{status}; {}", proxy.log());
    ensure!(
        started.elapsed() < Duration::from_secs(40),
        "{:?}",
        started.elapsed()
    );
    let mut direct = Connection::open(&app(tcp(cluster.primary().port))).await?;
    let rows = direct.expect("SELECT COUNT(*) FROM drained").await?;
    ensure!(rows.scalar().as_deref() == Some("2"), "{:?}", rows.render());
    Ok(())
}

/// A transaction that does not end is ended, and rolled back by its server.
pub(crate) async fn drain_ends(cluster: &Cluster) -> anyhow::Result<()> {
    for (timeout, twice) in [("1s", false), ("300s", true)] {
        let mut proxy = proxy(cluster, &format!("[drain]\ntimeout = \"{timeout}\"\n")).await?;
        let mut writing = Connection::open(&app(proxy.address())).await?;
        writing
            .expect("CREATE TABLE IF NOT EXISTS undrained (x INT)")
            .await?;
        for sql in [
            "DELETE FROM undrained",
            "BEGIN",
            "INSERT INTO undrained VALUES (1)",
        ] {
            writing.expect(sql).await?;
        }
        proxy.signal(Signal::TERM);
        if twice {
            tokio::time::sleep(Duration::from_millis(500)).await;
            ensure!(proxy.alive(), "ended although a transaction was open");
            proxy.signal(Signal::TERM);
        }
        proxy
            .ended(Duration::from_secs(20))
            .await
            .context(timeout)?;
        let mut direct = Connection::open(&app(tcp(cluster.primary().port))).await?;
        let deadline = Instant::now() + FOLLOWED;
        loop {
            // A lock would hold it up until the transaction is gone.
            direct
                .expect("SET SESSION innodb_lock_wait_timeout=5")
                .await?;
            let rows = direct
                .expect("SELECT COUNT(*) FROM undrained FOR UPDATE")
                .await?;
            if rows.scalar().as_deref() == Some("0") {
                break;
            }
            ensure!(Instant::now() < deadline, "committed: {:?}", rows.render());
        }
    }
    Ok(())
}

/// No client, no wait.
pub(crate) async fn drain_of_nobody(cluster: &Cluster) -> anyhow::Result<()> {
    let mut proxy = proxy(cluster, "[drain]\ntimeout = \"300s\"\n").await?;
    Connection::open(&app(proxy.address())).await?.quit().await;
    let (status, took) = proxy.terminate(Duration::from_secs(20)).await?;
    ensure!(status.success(), "{status} after {took:?}");
    Ok(())
}
