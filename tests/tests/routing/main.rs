//! Query routing on real servers: levels, rules, hints, and what EXPLAIN ROUTE says of them.

mod about;
mod examples;
mod galera;
#[path = "../serving/ground.rs"]
#[allow(dead_code, reason = "the suite needs but some of it")]
mod ground;
mod kinds;
mod levels;
mod pools;
mod rules;
mod shown;

use millrace_sandbox::{
    Cluster, ClusterSpec, Family, Release, Topology, skip_unless, skip_unless_topology,
};
use millrace_tests::checks::Checks;

use crate::ground::mark;

async fn routing(family: Family) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(family)).await?;
    let cluster = &cluster;
    mark(cluster).await?;
    let mut checks = Checks::new(format!("routing, {family}"));
    checks
        .run("level's variable", levels::variable(cluster))
        .await;
    checks
        .run(
            "levels of accounts and listeners",
            levels::configured(cluster),
        )
        .await;
    checks
        .run("an application's pool", pools::written_and_read(cluster))
        .await;
    checks
        .run("sequential reads spread", levels::spread(cluster))
        .await;
    checks
        .run("who is asked how far he is", levels::asked(cluster))
        .await;
    checks
        .run("one replica late", levels::one_late(cluster))
        .await;
    checks
        .run("both appliers stopped", levels::both_stopped(cluster))
        .await;
    checks
        .run("prepared variable", levels::prepared_variable(cluster))
        .await;
    checks
        .run(
            "read-only transaction",
            levels::read_only_transaction(cluster),
        )
        .await;
    checks
        .run("hidden writes", levels::hidden_writes(cluster))
        .await;
    checks
        .run("about the server", about::the_server(cluster))
        .await;
    if family == Family::MariaDb {
        checks
            .run("progress reports", about::progress(cluster))
            .await;
    }
    checks.run("explain route", rules::explained(cluster)).await;
    checks.run("hints", rules::hints(cluster)).await;
    checks.run("where rules send", rules::sent(cluster)).await;
    checks.run("refused", rules::refused(cluster)).await;
    checks.run("by database", rules::by_database(cluster)).await;
    checks.run("time limit", rules::time_limit(cluster)).await;
    checks
        .run("limited in number", rules::limited(cluster))
        .await;
    checks.run("mirrored", rules::mirrored(cluster)).await;
    checks.run("written anew", rules::rewritten(cluster)).await;
    checks
        .run(
            "examples of the documents",
            examples::statements_run(cluster),
        )
        .await;
    checks.finish()
}

#[test]
fn by_command() -> anyhow::Result<()> {
    rules::explained_by_command()?;
    examples::commands_run()
}

async fn test(family: Family) -> anyhow::Result<()> {
    if !skip_unless(family, "routing") {
        return Ok(());
    }
    routing(family).await?;
    shown::later_on_the_primary(family.into()).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    test(Family::MySql).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    test(Family::MariaDb).await
}

#[tokio::test]
async fn mariadb_11_8() -> anyhow::Result<()> {
    if !skip_unless(Release::MariaDb11_8, "routing") {
        return Ok(());
    }
    shown::later_on_the_primary(Release::MariaDb11_8).await
}

#[tokio::test]
async fn galera() -> anyhow::Result<()> {
    if !skip_unless_topology(Family::MariaDb, Topology::Galera, "routing") {
        return Ok(());
    }
    kinds::on_galera().await
}

#[tokio::test]
async fn without_gtids() -> anyhow::Result<()> {
    if !skip_unless(Family::MySql, "routing without GTIDs") {
        return Ok(());
    }
    kinds::without_gtids().await
}
