//! Clusters whose servers tell no GTIDs: Galera, and MySQL by file and offset. Levels hold there as well,
//! and sessions that have written go on reading from all servers.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{Cluster, ClusterSpec, Family, Topology};
use millrace_tests::checks::Checks;
use millrace_tests::wire::{Connection, Expect, Login};

use crate::ground::{app, mark, port_of, proxy, replica_ports};
use crate::{galera, levels, pools};

pub(crate) async fn on_galera() -> anyhow::Result<()> {
    let mut spec = ClusterSpec::new(Family::MariaDb);
    spec.topology = Topology::Galera;
    let cluster = Cluster::up(spec).await?;
    mark_nodes(&cluster).await?;
    run("routing, galera", &cluster).await
}

pub(crate) async fn without_gtids() -> anyhow::Result<()> {
    let mut spec = ClusterSpec::new(Family::MySql);
    spec.gtid = false;
    let cluster = Cluster::up(spec).await?;
    mark(&cluster).await?;
    run("routing, without GTIDs", &cluster).await
}

async fn run(name: &str, cluster: &Cluster) -> anyhow::Result<()> {
    let mut checks = Checks::new(name);
    checks
        .run("an application's pool", pools::written_and_read(cluster))
        .await;
    checks
        .run("reads after writes", reads_after_writes(cluster))
        .await;
    checks.run("one late", one_late(cluster)).await;
    checks
        .run("sequential reads spread", levels::spread(cluster))
        .await;
    if cluster.topology() == Topology::Galera {
        let late = writing_node_late(cluster);
        checks.run("the writing node is late", late).await;
        galera::all(&mut checks, cluster).await;
    }
    if cluster.topology() == Topology::Async {
        checks
            .run(
                "read-only transaction",
                levels::read_only_transaction(cluster),
            )
            .await;
        checks
            .run("both appliers stopped", levels::both_stopped(cluster))
            .await;
        checks
            .run("hidden writes", levels::hidden_writes(cluster))
            .await;
    }
    checks.finish()
}

/// What [`mark`] does, on nodes that would replicate it.
async fn mark_nodes(cluster: &Cluster) -> anyhow::Result<()> {
    for node in cluster.servers() {
        let mut control = cluster.control(&node.name).await?;
        for sql in [
            "SET SESSION wsrep_on = OFF",
            "SET SESSION sql_log_bin = OFF",
            "CREATE TABLE app.place (port INT)",
            "INSERT INTO app.place VALUES (@@port)",
        ] {
            control.run(sql).await?;
        }
        control.close().await;
    }
    Ok(())
}

/// Where reads ran, and how many of them showed less than had been written.
#[derive(Debug, Default)]
struct Seen {
    ports: BTreeMap<u16, u32>,
    stale: u32,
}

impl Seen {
    fn share(&self, port: u16) -> f64 {
        let all: u32 = self.ports.values().sum();
        f64::from(self.ports.get(&port).copied().unwrap_or(0)) / f64::from(all)
    }
}

/// A write and five reads, again and again: by autocommit, in a transaction, in a procedure.
async fn write_and_read(login: &Login, level: &str, turns: u32) -> anyhow::Result<Seen> {
    let mut connection = Connection::open(login).await?;
    let set = format!("SET @@millrace_consistency = '{level}'");
    connection.expect(&set).await?;
    let mut seen = Seen::default();
    for turn in 1..=turns {
        let write = format!("REPLACE INTO app.kinds VALUES (1, {turn})");
        match turn % 3 {
            0 => {
                for sql in ["BEGIN", &write, "COMMIT"] {
                    connection.expect(sql).await?;
                }
            }
            1 => {
                let call = format!("CALL app.put_kind({turn})");
                connection.expect(&call).await?;
            }
            _ => {
                connection.expect(&write).await?;
            }
        }
        for _ in 0..5 {
            let sql = "SELECT v, port FROM app.kinds, app.place WHERE k = 1";
            let rows = connection.expect(sql).await?.rows();
            let row = rows.first().context("no row")?;
            let value: u32 = row[0].as_deref().context("NULL")?.parse()?;
            seen.stale += u32::from(value < turn);
            let port = row[1].as_deref().context("NULL")?.parse()?;
            *seen.ports.entry(port).or_default() += 1;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    connection.quit().await;
    Ok(seen)
}

pub(crate) async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    for sql in [
        "CREATE TABLE IF NOT EXISTS app.kinds (k INT PRIMARY KEY, v INT)",
        "DROP PROCEDURE IF EXISTS app.put_kind",
        "CREATE PROCEDURE app.put_kind(n INT) REPLACE INTO app.kinds VALUES (1, n)",
        "DROP PROCEDURE IF EXISTS app.get_kind",
        "CREATE PROCEDURE app.get_kind() SELECT v FROM app.kinds WHERE k = 1",
    ] {
        control.run(sql).await?;
    }
    control.close().await;
    cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await
}

/// At both levels sessions that write go on reading from all servers, and miss nothing of their own. So do
/// several at a time.
async fn reads_after_writes(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    // A session that calls what is not known yet keeps its connection.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for level in ["session", "instance"] {
        let mut all = Seen::default();
        for _ in 0..4 {
            let seen = write_and_read(&app(proxy.address()), level, 60).await?;
            all.stale += seen.stale;
            for (port, reads) in seen.ports {
                *all.ports.entry(port).or_default() += reads;
            }
        }
        println!("  {level}: {all:?}");
        ensure!(all.stale == 0, "{level}: {} stale reads", all.stale);
        let ports = replica_ports(cluster);
        let shares: Vec<f64> = ports.into_iter().map(|port| all.share(port)).collect();
        ensure!(
            shares.iter().sum::<f64>() > 0.5 && shares.iter().all(|share| *share > 0.1),
            "{level}: the replicas do not share the reads: {:?}",
            all.ports
        );
    }
    Ok(())
}

/// Another node of a cluster has shown a write that the writing node has not applied yet: what the session
/// reads there next, in whatever form, shows it too.
async fn writing_node_late(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    // A session that calls what is not known yet keeps its connection.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (writing, other) = (cluster.primary().clone(), cluster.replicas()[0].clone());
    let mut elsewhere = cluster.control(&other.name).await?;
    let mut late = cluster.control(&writing.name).await?;
    let mut number = 1000;
    for level in ["session", "instance", "global"] {
        for reads in [
            &["SELECT /* millrace: primary */ v FROM app.kinds WHERE k = 1"][..],
            &["BEGIN", "SELECT v FROM app.kinds WHERE k = 1"],
            &["CALL app.get_kind()"],
        ] {
            let mut connection = Connection::open(&app(proxy.address())).await?;
            // A server connection that was reset does not wait (observed).
            for _ in 0..3 {
                let reset = connection.command(0x1f, b"", Expect::Single).await;
                ensure!(reset.err().is_none());
            }
            connection.expect("USE app").await?;
            let set = format!("SET @@millrace_consistency = '{level}'");
            connection.expect(&set).await?;
            let at_primary = async {
                // Another node was the primary as long as this one was out of step.
                let sql = "SELECT /* millrace: primary */ port FROM app.place";
                while value(&mut connection, sql).await? != writing.port.to_string() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                anyhow::Ok(())
            };
            let at_primary = tokio::time::timeout(Duration::from_secs(20), at_primary).await;
            at_primary.context("the node is not the primary again")??;
            late.run("SET GLOBAL wsrep_desync = ON").await?;
            late.run("FLUSH TABLES WITH READ LOCK").await?;
            number += 1;
            let written = number.to_string();
            let write = format!("REPLACE INTO app.kinds VALUES (1, {written})");
            elsewhere.run(&write).await?;
            let shown = async {
                // At level global all nodes are asked to wait.
                let sql = "SELECT v FROM app.kinds WHERE k = 1";
                while value(&mut connection, sql).await? != written {}
                anyhow::Ok(())
            };
            let shown = tokio::time::timeout(Duration::from_secs(5), shown).await;
            let reading = async {
                let mut reply = None;
                for sql in reads {
                    reply = Some(connection.expect(sql).await?);
                }
                anyhow::Ok(reply.and_then(|reply| reply.scalar()))
            };
            let going = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                late.run("UNLOCK TABLES").await?;
                late.run("SET GLOBAL wsrep_desync = OFF").await
            };
            let (read, gone) = tokio::join!(reading, going);
            gone?;
            shown.context("no other node shows the write")??;
            let read = read?;
            ensure!(
                read.as_deref() == Some(&*written),
                "{level}, {reads:?}: {read:?} after {written}"
            );
            connection.quit().await;
        }
    }
    late.close().await;
    elsewhere.close().await;
    Ok(())
}

pub(crate) async fn value(connection: &mut Connection, sql: &str) -> anyhow::Result<String> {
    let reply = connection.expect(sql).await?;
    reply.scalar().with_context(|| format!("{sql}: no value"))
}

/// A server that falls behind is not waited for longer than it may be, and shows nothing old.
async fn one_late(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    // A session that calls what is not known yet keeps its connection.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let late = cluster.replicas()[0].clone();
    let mut control = cluster.control(&late.name).await?;
    let (hold, go): (&[&str], &[&str]) = match cluster.topology() {
        Topology::Galera => (
            &[
                "SET GLOBAL wsrep_desync = ON",
                "FLUSH TABLES WITH READ LOCK",
            ],
            &["UNLOCK TABLES", "SET GLOBAL wsrep_desync = OFF"],
        ),
        _ => (&["STOP REPLICA SQL_THREAD"], &["START REPLICA SQL_THREAD"]),
    };
    for sql in hold {
        control.run(sql).await?;
    }
    let mut done = Ok(());
    for level in ["session", "instance"] {
        let seen = write_and_read(&app(proxy.address()), level, 40).await;
        done = seen.and_then(|seen| {
            println!("  {level}, one late: {seen:?}");
            ensure!(seen.stale == 0, "{level}: {} stale reads", seen.stale);
            ensure!(seen.share(late.port) < 0.1, "{level}: {:?}", seen.ports);
            Ok(())
        });
        if done.is_err() {
            break;
        }
    }
    for sql in go {
        control.run(sql).await?;
    }
    control.close().await;
    done?;
    // It takes its part again.
    let mut connection = Connection::open(&app(proxy.address())).await?;
    port_of(&mut connection).await?;
    connection.quit().await;
    Ok(())
}
