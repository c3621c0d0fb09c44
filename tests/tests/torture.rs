//! A thousand clients on twenty server connections, replicas late: not one wrong answer.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use millrace_sandbox::{ADMIN, skip_unless};
use millrace_tests::differential::script::Family;
use millrace_tests::differential::suite;
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::torture::ingredients::{self, Ingredient};
use millrace_tests::torture::{self, Plan};
use millrace_tests::wire::{Connection, Login};

/// Connections per server: three servers make eighteen, and the two of the workers that ask
/// whether the account may log in make twenty.
const POOL_MAX: u32 = 6;

/// What a thousand clients may take of all servers together.
const ALL_MAX: u64 = 20;

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name)
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

/// What the test contains: all, or those that MILLRACE_TORTURE_WITH names, and never those that
/// MILLRACE_TORTURE_WITHOUT names.
fn ingredients() -> anyhow::Result<BTreeSet<Ingredient>> {
    let named = |variable| match std::env::var(variable) {
        Ok(text) => ingredients::named(&text).map(Some),
        Err(_) => Ok(None),
    };
    let with = named("MILLRACE_TORTURE_WITH").map_err(anyhow::Error::msg)?;
    let without = named("MILLRACE_TORTURE_WITHOUT").map_err(anyhow::Error::msg)?;
    let mut all = with.unwrap_or_else(ingredients::all);
    all.retain(|ingredient| !without.iter().flatten().any(|other| other == ingredient));
    Ok(all)
}

/// Looks at every server now and then; the most connections of the application's account on
/// any one of them, and on all together. Together they count when seen for a second: a server
/// shows a closed connection until it has noticed, which takes a while on a busy machine, and one
/// may be opened in its place meanwhile.
async fn watch(stage: &Stage, most: &Cell<(u64, u64)>) -> anyhow::Result<()> {
    let mut controls = Vec::new();
    for server in stage.cluster.servers() {
        controls.push(stage.cluster.control(&server.name).await?);
    }
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE user='t_app'";
    let mut lately = [0; 4];
    loop {
        let mut all = 0;
        for control in &mut controls {
            let n: u64 = control.value(sql).await?.unwrap_or_default().parse()?;
            all += n;
            most.set((most.get().0.max(n), most.get().1));
        }
        lately.rotate_left(1);
        lately[3] = all;
        let lasting = lately.into_iter().min().unwrap_or_default();
        most.set((most.get().0, most.get().1.max(lasting)));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Replicas are a second late, and for a while one applies nothing at all.
async fn disturb(stage: &Stage, duration: Duration) -> anyhow::Result<()> {
    stage.delay_replicas(1).await?;
    let replica = stage
        .cluster
        .replicas()
        .first()
        .context("no replica")?
        .name
        .clone();
    tokio::time::sleep(duration / 3).await;
    stage.cluster.stop_applier(&replica).await?;
    tokio::time::sleep(duration / 4).await;
    stage.cluster.start_applier(&replica).await?;
    std::future::pending().await
}

async fn run(family: Family) -> anyhow::Result<()> {
    let clients = number("MILLRACE_TORTURE_CLIENTS", 1000);
    let duration = Duration::from_secs(number("MILLRACE_TORTURE_SECONDS", 60).into());
    let options = ProxyOptions {
        pool_max: POOL_MAX,
        pool_wait: Duration::from_secs(120),
        log: "info",
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 2, &options).await?;
    let admin = harness::admin(stage.cluster.primary().port);
    suite::prepare(&admin, family, &[]).await?;
    let mut connection = Connection::open(&admin).await?;
    for sql in torture::setup(clients) {
        connection.expect(&sql).await?;
    }
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(60))
        .await?;

    let mut login = Login::new(stage.address.clone(), "t_app", "app-secret");
    login.timeout = Duration::from_secs(150);
    let mut administrator = Login::new(stage.address.clone(), ADMIN.user, ADMIN.password);
    administrator.timeout = login.timeout;
    let plan = Plan {
        clients,
        duration,
        pause_max: Duration::from_millis(200),
        login,
        administrator,
        control: admin,
        servers: stage
            .cluster
            .servers()
            .iter()
            .map(|server| harness::admin(server.port))
            .collect(),
        mariadb: family == Family::MariaDb,
        ingredients: ingredients()?,
    };
    let most = Cell::new((0, 0));
    let report = tokio::select! {
        report = torture::run(&plan) => report,
        outcome = watch(&stage, &most) => anyhow::bail!("cannot watch the servers: {outcome:?}"),
        outcome = disturb(&stage, duration) => anyhow::bail!("cannot disturb: {outcome:?}"),
    };

    let (one, all) = most.get();
    eprintln!(
        "{family}: {} clients, {} statements, slowest {:.1?}, at most {one} connections on a server, {all} on all; turns {:?}",
        report.clients, report.statements, report.slowest, report.turns
    );
    if !report.wrong.is_empty() {
        eprintln!("wrong answers by kind: {:?}", report.wrong_kinds);
    }
    for line in report.wrong.iter().take(20) {
        eprintln!("WRONG {line}");
    }
    for line in report.failed.iter().take(20) {
        eprintln!("FAILED {line}");
    }
    let errant = stage.errant_writes().await?;
    assert!(
        report.wrong.is_empty(),
        "{} wrong answers",
        report.wrong.len()
    );
    assert!(report.failed.is_empty(), "{} failures", report.failed.len());
    assert!(errant.is_empty(), "writes on replicas: {errant:?}");
    assert_eq!(report.clients, clients, "every client got its turn");
    if !harness::direct_only() {
        // Besides the pool's, each worker has one that asks whether the account may log in.
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        // A server shows a closed connection until it has noticed.
        let most = u64::from(POOL_MAX) + 2 * workers;
        assert!(one <= most, "{one} connections on one server");
        assert!(all <= ALL_MAX, "{all} connections on all servers");
    }
    Ok(())
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if !skip_unless(Family::MariaDb, "the torture test") {
        return Ok(());
    }
    run(Family::MariaDb).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if !skip_unless(Family::MySql, "the torture test") {
        return Ok(());
    }
    run(Family::MySql).await
}
