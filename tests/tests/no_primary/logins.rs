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
    let error = reply.err().context("no error")?;
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
