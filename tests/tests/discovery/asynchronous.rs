//! Finding sources, replicas and chains of them from one address, whatever it is called.

use std::time::Duration;

use anyhow::ensure;
use millrace_sandbox::{Cluster, Family};
use millrace_tests::checks::Checks;
use millrace_tests::cutter::Cutter;

use crate::view::{Eye, FOUND, address, port, ports, server};

pub(crate) async fn run(checks: &mut Checks, cluster: &Cluster) {
    checks
        .run("from one replica", from_one_replica(cluster))
        .await;
    checks.run("a chain", chain(cluster)).await;
    checks.run("a seed is down", seed_down(cluster)).await;
    checks.run("two names", two_names(cluster)).await;
    checks.run("translated", translated(cluster)).await;
    checks.run("limit", limit(cluster)).await;
    checks.run("a server comes", comes_and_goes(cluster)).await;
}

/// A replica names its source, which names its replicas.
async fn from_one_replica(cluster: &Cluster) -> anyhow::Result<()> {
    for name in ["s1", "s2", "s3"] {
        let eye = Eye::at(&server(cluster, name)?).await?;
        eye.whole(cluster, "s1").await?;
        ensure!(eye.lines("is named by")? == 2, "each is found once");
    }
    Ok(())
}

async fn follow(cluster: &Cluster, replica: &str, source: u16) -> anyhow::Result<()> {
    let mut control = cluster.control(replica).await?;
    let statements = match cluster.family() {
        Family::MySql => [
            "STOP REPLICA".to_owned(),
            format!("CHANGE REPLICATION SOURCE TO SOURCE_PORT = {source}"),
            "START REPLICA".to_owned(),
        ],
        Family::MariaDb => [
            "STOP SLAVE".to_owned(),
            format!("CHANGE MASTER TO MASTER_PORT = {source}"),
            "START SLAVE".to_owned(),
        ],
    };
    for statement in statements {
        control.run(&statement).await?;
    }
    control.close().await;
    Ok(())
}

/// s3 replicates from s2, which replicates from s1. From any of them all are found, and all take reads.
async fn chain(cluster: &Cluster) -> anyhow::Result<()> {
    follow(cluster, "s3", port(cluster, "s2")?).await?;
    for name in ["s3", "s1"] {
        let eye = Eye::at(&server(cluster, name)?).await?;
        eye.whole(cluster, "s1").await?;
    }
    follow(cluster, "s3", port(cluster, "s1")?).await
}

/// One of two seeds is down from the start: said once, and no obstacle.
async fn seed_down(cluster: &Cluster) -> anyhow::Result<()> {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let seeds = [address(nobody), address(port(cluster, "s2")?)];
    let eye = Eye::open(&seeds, "").await?;
    eye.whole(cluster, "s1").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(eye.lines("cannot be asked")? == 1, "{}", eye.0.log());
    Ok(())
}

/// `localhost` and `127.0.0.1` are one server, and no two primaries.
async fn two_names(cluster: &Cluster) -> anyhow::Result<()> {
    let primary = port(cluster, "s1")?;
    let seeds = [format!("localhost:{primary}"), address(primary)];
    let eye = Eye::open(&seeds, "").await?;
    let all = ports(cluster);
    let known = |view: &crate::view::View| view.primary == Some(primary) && view.fit() == all;
    eye.until("whole", FOUND, known).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(eye.lines("is another name of")? == 1, "{}", eye.0.log());
    ensure!(eye.lines("claim to be the primary")? == 0);
    let metrics = eye.0.metrics().await?;
    let fit = metrics.lines().filter(|line| {
        line.starts_with("millrace_server_fit")
            && line.contains(&format!(":{primary}\""))
            && line.ends_with(" 1")
    });
    ensure!(fit.count() == 1, "one of the names takes reads");
    Ok(())
}

/// The address that the replica names for its source is not the one to connect to.
async fn translated(cluster: &Cluster) -> anyhow::Result<()> {
    let primary = port(cluster, "s1")?;
    let cutter = Cutter::start(primary).await?;
    let table = format!(
        "[discovery.translate]\n\"{}\" = \"{}\"\n",
        address(primary),
        address(cutter.port)
    );
    let eye = Eye::open(&[address(port(cluster, "s2")?)], &table).await?;
    let there = |view: &crate::view::View| view.primary == Some(cutter.port);
    let (view, _) = eye.until("translated", FOUND, there).await?;
    ensure!(!view.up.contains_key(&primary), "{view:?}");
    ensure!(cutter.accepted() > 0);
    Ok(())
}

async fn limit(cluster: &Cluster) -> anyhow::Result<()> {
    let eye = Eye::open(&[address(port(cluster, "s1")?)], "max_servers = 2\n").await?;
    let two = |view: &crate::view::View| view.fit().len() == 2;
    eye.until("two of three", FOUND, two).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(eye.view().await?.up.len() == 2);
    ensure!(eye.lines("discovery.max_servers")? == 1);
    Ok(())
}

/// A replica that starts later is found, one that leaves is forgotten.
async fn comes_and_goes(cluster: &Cluster) -> anyhow::Result<()> {
    let (all, s3) = (ports(cluster), port(cluster, "s3")?);
    cluster.stop("s3").await?;
    let eye = Eye::open(&[address(port(cluster, "s1")?)], "forget_after = \"3s\"\n").await?;
    let gone = |view: &crate::view::View| view.up.len() == 2 && !view.down.contains(&s3);
    eye.until("without s3", Duration::from_secs(30), gone)
        .await?;
    cluster.start("s3").await?;
    let back = |view: &crate::view::View| view.fit() == all;
    let (_, took) = eye.until("s3 is back", FOUND, back).await?;
    println!("  a new replica takes reads after {took:?}");
    cluster.stop("s3").await?;
    eye.until("s3 is forgotten", Duration::from_secs(40), gone)
        .await?;
    ensure!(eye.lines("is no longer part of the topology")? >= 1);
    cluster.start("s3").await?;
    eye.until("s3 is back", FOUND, back).await?;
    Ok(())
}
