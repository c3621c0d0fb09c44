//! Servers known by names that come to mean other machines, while clients work: what was judged of one machine is
//! never applied to another, and a moved name is followed.

mod dns;
mod ground;
mod hosts;
mod several;

use anyhow::Context;
use millrace_sandbox::{Cluster, ClusterSpec, Family, skip_unless};
use millrace_tests::netns;
use tokio::task::LocalSet;

async fn run(
    family: Family,
    test: &str,
    all: impl AsyncFnOnce(&Cluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if !skip_unless(family, test) || !netns::enter(test)? {
        return Ok(());
    }
    let up = async {
        let cluster = Cluster::up(ClusterSpec::new(family)).await?;
        all(&cluster).await
    };
    LocalSet::new().run_until(up).await.context("names")
}

async fn run_with_dns(
    family: Family,
    test: &str,
    all: impl AsyncFnOnce(&Cluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match millrace_tests::dns::skip_unless_there(test)? {
        true => run(family, test, all).await,
        false => Ok(()),
    }
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    run(Family::MariaDb, "mariadb", hosts::all).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    run(Family::MySql, "mysql", hosts::all).await
}

#[tokio::test]
async fn dns_mariadb() -> anyhow::Result<()> {
    run_with_dns(Family::MariaDb, "dns_mariadb", dns::all).await
}

#[tokio::test]
async fn dns_mysql() -> anyhow::Result<()> {
    run_with_dns(Family::MySql, "dns_mysql", dns::all).await
}

#[tokio::test]
async fn several_mariadb() -> anyhow::Result<()> {
    run_with_dns(Family::MariaDb, "several_mariadb", several::all).await
}

#[tokio::test]
async fn several_mysql() -> anyhow::Result<()> {
    run_with_dns(Family::MySql, "several_mysql", several::all).await
}
