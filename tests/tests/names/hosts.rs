//! Names in a hosts file: each move is seen at the next look-up.

use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::Cluster;
use millrace_tests::checks::Checks;
use millrace_tests::netns::Hosts;
use millrace_tests::wire::Connection;

use crate::ground::{Load, MACHINES, Machines, app, mark, missed, proxy, reads_from, written};

/// The replicas' name comes to mean a machine that applies nothing: no session misses what it wrote.
async fn replica_moves(cluster: &Cluster, hosts: &Hosts) -> anyhow::Result<()> {
    let names = |replica: usize| {
        [
            ("db-w", MACHINES[0].to_string()),
            ("db-r", MACHINES[replica].to_string()),
        ]
    };
    set(hosts, &names(1))?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let late = cluster.servers()[2].name.clone();
    cluster.stop_applier(&late).await?;
    let mut client = Connection::open(&app(&proxy)).await?;
    let before = missed(&mut client, 20).await?;
    set(hosts, &names(2))?;
    let begun = Instant::now();
    let mut during = 0;
    while begun.elapsed() < Duration::from_secs(6) {
        during += missed(&mut client, 10).await?;
    }
    let log = proxy.log();
    cluster.start_applier(&late).await?;
    ensure!(
        before + during == 0,
        "{before} and {during} own writes were missed"
    );
    ensure!(
        log.contains("its name no longer means this machine"),
        "the move was not seen: {log}"
    );
    reads_from(&proxy, cluster, 2).await
}

fn set(hosts: &Hosts, names: &[(&str, String)]) -> anyhow::Result<()> {
    let names: Vec<_> = names
        .iter()
        .map(|(name, address)| (*name, &**address))
        .collect();
    hosts.set(&names)
}

/// A managed service's switchover: the roles change, and the two names are swapped.
async fn names_are_swapped(cluster: &Cluster, hosts: &Hosts) -> anyhow::Result<()> {
    let places = |writer: usize, reader: usize| {
        [
            ("db-w", MACHINES[writer].to_string()),
            ("db-r", MACHINES[reader].to_string()),
        ]
    };
    set(hosts, &places(0, 1))?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = written(cluster, &cluster.primary().name).await?;
    let load = Load::start(&proxy);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let new = cluster.servers()[1].clone();
    cluster.promote(&new.name).await?;
    set(hosts, &places(1, 0))?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let seen = load.end().await?;
    seen.is_well(Duration::from_secs(5))?;
    let there = written(cluster, &new.name).await? - before;
    ensure!(
        there == seen.done,
        "{} were acknowledged, {there} are there",
        seen.done
    );
    // A name goes on meaning the primary: what is written now is at the new one, by a new session as well.
    let mut client = Connection::open(&app(&proxy)).await?;
    client.expect("BEGIN").await?;
    client
        .expect("INSERT INTO app.acknowledged (n) VALUES (2)")
        .await?;
    let place = client.expect("SELECT port FROM app.place").await?.scalar();
    client.expect("ROLLBACK").await?;
    ensure!(
        place == Some(new.port.to_string()),
        "writes go to {place:?}"
    );
    ensure!(
        proxy
            .log()
            .contains("its name no longer means this machine"),
        "the move was not seen"
    );
    Ok(())
}

pub(crate) async fn all(cluster: &Cluster) -> anyhow::Result<()> {
    let hosts = Hosts::new(&[])?;
    mark(cluster).await?;
    let _machines = Machines::of(cluster).await?;
    let mut checks = Checks::new(format!("names, {}", cluster.family()));
    checks
        .run("a replica's name moves", replica_moves(cluster, &hosts))
        .await;
    checks
        .run("names are swapped", names_are_swapped(cluster, &hosts))
        .await;
    checks.finish()
}
