//! The admin listener on real servers: who gets in, what each listing says compared with what is,
//! draining under load, KILL, limits, and the examples of docs/admin.md.

mod acting;
mod documented;
mod entering;
mod ground;
mod listing;
mod moving;
#[path = "../serving/ground.rs"]
#[allow(dead_code, reason = "the suite needs but some of it")]
mod serving;

use millrace_sandbox::{Cluster, ClusterSpec, Family, Topology, skip_unless, skip_unless_topology};
use millrace_tests::checks::Checks;

async fn admin(family: Family) -> anyhow::Result<()> {
    let mut spec = ClusterSpec::new(family);
    spec.max_connections = 500;
    let cluster = Cluster::up(spec).await?;
    let cluster = &cluster;
    serving::mark(cluster).await?;
    let mut checks = Checks::new(format!("admin, {family}"));
    checks.run("logins", entering::logins(cluster)).await;
    checks.run("slowed down", entering::slowed(cluster)).await;
    checks.run("tls demanded", entering::tls(cluster)).await;
    checks.run("off", entering::off(cluster)).await;
    checks.run("limits", entering::limits(cluster)).await;
    checks.run("nonsense", entering::nonsense(cluster)).await;
    checks
        .run("command line clients", entering::command_line(cluster))
        .await;
    checks.run("a driver", entering::driver(cluster)).await;
    checks.run("servers", listing::servers(cluster)).await;
    checks.run("sessions", listing::sessions(cluster)).await;
    checks
        .run("many sessions", listing::many_sessions(cluster))
        .await;
    checks.run("pins", listing::pins(cluster)).await;
    checks.run("pools", listing::pools(cluster)).await;
    checks
        .run("rules, metrics, configuration", listing::counted(cluster))
        .await;
    checks.run("kill query", acting::kill_query(cluster)).await;
    checks.run("kill", acting::kill(cluster)).await;
    checks.run("drain under load", acting::drain(cluster)).await;
    checks
        .run("drain waits", acting::drain_waits(cluster))
        .await;
    checks
        .run("documented", documented::examples(cluster))
        .await;
    checks.run("a planned move", moving::planned(cluster)).await;
    checks
        .run("a drained primary", moving::drained(cluster))
        .await;
    checks
        .run(
            "drained by the configuration",
            moving::drained_by_configuration(cluster),
        )
        .await;
    checks.run("a lost primary", moving::lost(cluster)).await;
    checks.finish()
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if !skip_unless(Family::MySql, "admin") {
        return Ok(());
    }
    admin(Family::MySql).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if !skip_unless(Family::MariaDb, "admin") {
        return Ok(());
    }
    admin(Family::MariaDb).await
}

async fn members(family: Family, topology: Topology) -> anyhow::Result<()> {
    if !skip_unless_topology(family, topology, "admin") {
        return Ok(());
    }
    let mut spec = ClusterSpec::new(family);
    spec.topology = topology;
    let cluster = Cluster::up(spec).await?;
    let mut checks = Checks::new(format!("admin, {topology:?}"));
    checks
        .run("members", listing::members(&cluster, topology))
        .await;
    checks.finish()
}

#[tokio::test]
async fn group() -> anyhow::Result<()> {
    members(Family::MySql, Topology::Group).await
}

#[tokio::test]
async fn galera() -> anyhow::Result<()> {
    members(Family::MariaDb, Topology::Galera).await
}
