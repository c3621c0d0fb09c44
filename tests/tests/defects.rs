//! A session that panics, by a defect of Millrace's own: its client is told, and nobody else notices.
//!
//! The program is `MILLRACE_BROKEN_BIN`, built with `--features millrace/broken-rules`: statements of its clients say
//! where their session is to panic. `scripts/broken-rules.sh --build` builds it.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, skip_unless};
use millrace_tests::differential::script::Family;
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::wire::{Connection, Login};

/// Not many more than the sessions that are open at once.
const CLIENTS_MAX: u32 = 8;

const POOL_MAX: u32 = 2;

/// What a session does before the statement that fails.
const BEFORE: [&[&str]; 4] = [
    &[],
    &["BEGIN", "UPDATE kept SET v = v + 1 WHERE id = 1"],
    &[
        "SET @secret = 'of another'",
        "CREATE TEMPORARY TABLE secret (a INT)",
    ],
    &["SELECT GET_LOCK('taken', 10)", "LOCK TABLES kept WRITE"],
];

fn program() -> Option<PathBuf> {
    let named = std::env::var_os("MILLRACE_BROKEN_BIN").map(PathBuf::from);
    if named.is_none() {
        let told = "SKIPPED: defects: MILLRACE_BROKEN_BIN names no program whose sessions can be told to panic\n";
        // A closed stderr leaves nobody to tell.
        let _ = std::io::stderr().write_all(told.as_bytes());
    }
    named
}

/// The sum of a metric over its labels.
fn sum(metrics: &str, name: &str, labels: &str) -> f64 {
    let of = metrics.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
    });
    of.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Its client is told, or cut off where the answer has begun.
async fn fails(login: &Login, before: &[&str], point: &str) -> anyhow::Result<()> {
    let mut client = Connection::open(login).await?;
    for sql in before {
        client.expect(sql).await?;
    }
    let sql = format!("SELECT id, 'of another' FROM kept /* panics: {point} */");
    let reply = client.query(&sql).await;
    match point {
        "answered" => {
            let whole = reply.rows().len() == 3 || reply.broken().is_some();
            ensure!(whole, "{:?}", reply.render());
        }
        _ => {
            let error = reply.err().context("no error")?;
            ensure!(error.code == 1105, "{}", error.message);
            ensure!(error.message.contains("by a defect"), "{}", error.message);
        }
    }
    let after = client.query("SELECT 1").await;
    ensure!(after.broken().is_some(), "goes on: {:?}", after.render());
    Ok(())
}

async fn sessions_that_panic(family: Family) -> anyhow::Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let options = ProxyOptions {
        pool_max: POOL_MAX,
        clients_max: CLIENTS_MAX,
        log: "error",
        program: Some(program),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 1, &options).await?;
    let login = Login::new(stage.address.clone(), APP.user, APP.password).database("app");
    let mut beside = Connection::open(&login).await?;
    beside
        .expect("CREATE TABLE kept (id INT PRIMARY KEY, v INT)")
        .await?;
    beside
        .expect("INSERT INTO kept VALUES (1, 0), (2, 0), (3, 0)")
        .await?;
    beside.expect("SET @mine = 'mine'").await?;
    let mut written = 0;
    for round in 0..2 * CLIENTS_MAX {
        for point in ["begun", "sent", "answered"] {
            for before in BEFORE {
                let context = || format!("round {round}, {point} after {before:?}");
                fails(&login, before, point).await.with_context(context)?;
                written += 1;
                let sql = format!("UPDATE kept SET v = {written} WHERE id = 2");
                beside.expect(&sql).await.with_context(context)?;
                let sql = "SELECT v, @mine, @secret FROM kept ORDER BY id";
                let rows = beside.expect(sql).await.with_context(context)?.rows();
                let mine = || Some("mine".to_owned());
                let row = |v: u32| vec![Some(v.to_string()), mine(), None];
                // What was open when its session failed is undone.
                ensure!(
                    rows == [row(0), row(written), row(0)],
                    "{} {rows:?}",
                    context()
                );
            }
        }
        if round > 0 {
            // Each panic is in the log; a few rounds tell all.
            let mut fresh = Connection::open(&login).await?;
            let seen = fresh
                .expect("SELECT @secret, IS_FREE_LOCK('taken')")
                .await?;
            let free = [vec![None, Some("1".to_owned())]];
            ensure!(seen.rows() == free, "{:?}", seen.render());
            fresh.quit().await;
        }
        if round == 3 {
            break;
        }
    }
    let proxy = stage.proxy.as_ref().context("no proxy")?;
    let begun = Instant::now();
    loop {
        let metrics = proxy.metrics().await?;
        let clients = sum(&metrics, "millrace_clients", "");
        let used = sum(&metrics, "millrace_pool_connections", "state=\"leased\"");
        if clients == 1.0 && used == 0.0 {
            break;
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(10),
            "{clients} clients and {used} connections in use are counted"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // All places are there.
    let mut all = Vec::new();
    for _ in 1..CLIENTS_MAX {
        all.push(Connection::open(&login).await?);
    }
    for client in &mut all {
        client.expect("SELECT v FROM kept WHERE id = 1").await?;
    }
    Ok(())
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    match skip_unless(Family::MariaDb, "defects") && !harness::direct_only() {
        true => sessions_that_panic(Family::MariaDb).await,
        false => Ok(()),
    }
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    match skip_unless(Family::MySql, "defects") && !harness::direct_only() {
        true => sessions_that_panic(Family::MySql).await,
        false => Ok(()),
    }
}
