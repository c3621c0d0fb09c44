//! What Millrace finds out about the servers by itself, from one of them, and how soon and how rightly
//! it judges what becomes of them: asynchronous clusters of both families, Group Replication, Galera.

mod asynchronous;
mod groups;
mod judgement;
mod primary;
mod view;

use millrace_sandbox::{Cluster, ClusterSpec, Family, Release, Topology, skip_unless_topology};
use millrace_tests::checks::Checks;
use millrace_tests::harness::direct_only;

/// A cluster of three.
async fn cluster(which: impl Into<Release>, topology: Topology) -> anyhow::Result<Cluster> {
    let mut spec = ClusterSpec::new(which);
    spec.topology = topology;
    Cluster::up(spec).await
}

fn wanted(which: impl Into<Release>, topology: Topology) -> bool {
    !direct_only() && skip_unless_topology(which, topology, "discovery")
}

async fn asynchronous(family: Family) -> anyhow::Result<()> {
    if !wanted(family, Topology::Async) {
        return Ok(());
    }
    let mut checks = Checks::new(format!("discovery, {family}"));
    let cluster = cluster(family, Topology::Async).await?;
    asynchronous::run(&mut checks, &cluster).await;
    primary::run(&mut checks, &cluster).await;
    judgement::run(&mut checks, &cluster).await;
    checks.finish()
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    asynchronous(Family::MySql).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    asynchronous(Family::MariaDb).await
}

/// Its own cluster: the disks are small ones, which only root can make.
#[tokio::test]
async fn mysql_full_disk() -> anyhow::Result<()> {
    if !wanted(Family::MySql, Topology::Async) {
        return Ok(());
    }
    let mut spec = ClusterSpec::new(Family::MySql);
    spec.replicas = 1;
    spec.disk_mib = Some(420);
    spec.performance_schema = true;
    let cluster = match Cluster::up(spec).await {
        Ok(cluster) => cluster,
        Err(why) if !rustix::process::geteuid().is_root() => {
            let told = format!("SKIPPED: discovery with a full disk: {why:#}\n");
            std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes())?;
            return Ok(());
        }
        Err(why) => return Err(why),
    };
    let mut checks = Checks::new("discovery, mysql");
    checks
        .run("full disk", judgement::full_disk(&cluster))
        .await;
    checks.finish()
}

#[tokio::test]
async fn mysql_group() -> anyhow::Result<()> {
    if !wanted(Family::MySql, Topology::Group) {
        return Ok(());
    }
    let mut checks = Checks::new("discovery, mysql group");
    let cluster = cluster(Family::MySql, Topology::Group).await?;
    groups::group(&mut checks, &cluster).await;
    checks.finish()
}

async fn galera(release: Release) -> anyhow::Result<()> {
    if !wanted(release, Topology::Galera) {
        return Ok(());
    }
    let mut checks = Checks::new(format!("discovery, {release} galera"));
    let cluster = cluster(release, Topology::Galera).await?;
    groups::galera(&mut checks, &cluster).await;
    checks.finish()
}

#[tokio::test]
async fn mariadb_galera() -> anyhow::Result<()> {
    galera(Release::MariaDb).await
}

#[tokio::test]
async fn mariadb_11_8_galera() -> anyhow::Result<()> {
    galera(Release::MariaDb11_8).await
}
