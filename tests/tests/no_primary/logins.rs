//! Logins while servers come and go.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::wire::Connection;

use crate::ground::{FOLLOWED, app, proxy};

/// A login at the moment the primary dies, or while it is gone, gets in.
pub(crate) async fn primary_dies(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    // As pages do: a login each, with the connections that ask for them at hand.
    for _ in 0..6 {
        Connection::open(&login).await?.quit().await;
    }
    let old = cluster.primary();
    let pages = async {
        let (mut count, mut longest) = (0, Duration::ZERO);
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            let begun = Instant::now();
            let mut page = Connection::open(&login)
                .await
                .with_context(|| format!("login {count}"))?;
            page.expect("SELECT port FROM place").await?;
            page.quit().await;
            longest = longest.max(begun.elapsed());
            count += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok((count, longest))
    };
    let dying = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.kill(&old.name).await
    };
    let (pages, died) = tokio::join!(pages, dying);
    died?;
    let (count, longest) = pages?;
    println!("{count} logins, the longest {longest:?}");
    ensure!(longest < Duration::from_secs(4), "a login took {longest:?}");
    Ok(())
}

/// While no server answers at all, a login waits as a statement does, however short the time that its
/// client has for its own part; and says why in the end.
pub(crate) async fn nobody_answers(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(
        cluster,
        "[failover]\nhold_time = \"4s\"\n[limits]\nlogin_timeout = \"1s\"\n",
    )
    .await?;
    let login = app(proxy.address());
    Connection::open(&login).await?.quit().await;
    for server in cluster.servers() {
        if server.pid.is_some() {
            cluster.kill(&server.name).await?;
        }
    }
    let begun = Instant::now();
    let (connection, reply) = Connection::try_open(&login).await?;
    let took = begun.elapsed();
    let error = reply.err().with_context(|| {
        format!(
            "no error after {took:?}: {:?} broken {:?} in {}",
            reply.render(),
            reply.broken(),
            connection.is_some()
        )
    })?;
    ensure!(connection.is_none());
    ensure!(took > Duration::from_secs(3), "{took:?}: {error:?}");
    ensure!(
        error.message.contains("Millrace: ") && error.message.contains("failover.hold_time"),
        "{error:?}"
    );
    // One that waits gets in when a server is back.
    let replica = cluster.replicas()[0].clone();
    let (entered, started) = tokio::join!(Connection::open(&login), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.start(&replica.name).await
    });
    started?;
    let mut entered = entered.context("it did not get in")?;
    let _ = FOLLOWED;
    entered.expect("SET NAMES utf8mb4").await?;
    Ok(())
}

/// The primary hangs while many log in at once, each name for the first time: each has its answer in a time that does
/// not grow with their number, and sessions that need another server go on.
pub(crate) async fn primary_hangs(cluster: &Cluster) -> anyhow::Result<()> {
    const LOGINS: usize = 30;
    let proxy = proxy(cluster, "[failover]\nhold_time = \"4s\"\n").await?;
    let login = app(proxy.address());
    let mut reader = Connection::open(&login).await?;
    reader.expect("SELECT port FROM place").await?;
    let old = cluster.primary();
    cluster.pause(&old.name).await?;
    let tried = async {
        let begun = Instant::now();
        let waiting: Vec<_> = (0..LOGINS)
            .map(|at| {
                // Names that nobody has asked for: their rows are read for each.
                let mut login = app(proxy.address());
                login.user = format!("stranger{at}");
                tokio::spawn(async move {
                    let answered = Connection::try_open(&login).await;
                    (
                        answered.map(|(_, reply)| reply.err().cloned()),
                        begun.elapsed(),
                    )
                })
            })
            .collect();
        let (mut longest, mut reads) = (Duration::ZERO, Duration::ZERO);
        while begun.elapsed() < Duration::from_secs(3) {
            let asked = Instant::now();
            reader.expect("SELECT port FROM place").await?;
            reads = reads.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for waiting in waiting {
            let (answered, took) = waiting.await?;
            let error = answered?.context("a stranger got in")?;
            ensure!(error.code != 0, "{error:?}");
            longest = longest.max(took);
        }
        anyhow::Ok((longest, reads))
    }
    .await;
    cluster.resume(&old.name).await?;
    let (longest, reads) = tried?;
    println!("{LOGINS} logins, the longest {longest:?}; the longest read {reads:?}");
    ensure!(
        longest < Duration::from_secs(15),
        "a login took {longest:?}"
    );
    ensure!(reads < Duration::from_secs(4), "a read took {reads:?}");
    // Nothing is left of them.
    Connection::open(&login).await?.quit().await;
    Ok(())
}
