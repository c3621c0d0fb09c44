//! Random sessions: statements that nobody wrote down, in turns of several clients, direct and through.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::skip_unless;
use millrace_tests::differential::random::Sessions;
use millrace_tests::differential::script::Family;
use millrace_tests::differential::{suite, words};
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::wire::{Connection, Target};

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A question that a client is asked after a step, at which the run then ends:
/// `MILLRACE_RANDOM_ASK="2025 1 SELECT LAST_INSERT_ID()"` (step, client, SQL). It finds the step
/// at which a difference began that a later one shows.
fn question() -> Option<(u64, usize, String)> {
    let text = std::env::var("MILLRACE_RANDOM_ASK").ok()?;
    let mut parts = text.splitn(3, ' ');
    let step = parts.next()?.parse().ok()?;
    let client = parts.next()?.parse().ok()?;
    Some((step, client, parts.next()?.to_owned()))
}

/// Differences after which a run ends.
const ENOUGH: u64 = 10;

/// They still find what docs/open.md lists, so that they run only where they are asked for.
fn is_asked_for() -> anyhow::Result<bool> {
    if std::env::var_os("MILLRACE_RANDOM_STEPS").is_some() {
        return Ok(true);
    }
    let why = "SKIPPED: random sessions: they find what docs/open.md lists; \
               MILLRACE_RANDOM_STEPS=4000 runs them\n";
    std::io::Write::write_all(&mut std::io::stderr(), why.as_bytes())?;
    Ok(false)
}

async fn random(family: Family) -> anyhow::Result<()> {
    if !is_asked_for()? {
        return Ok(());
    }
    let (seed, steps) = (
        number("MILLRACE_RANDOM_SEED", 1),
        number("MILLRACE_RANDOM_STEPS", 4_000),
    );
    let direct = harness::cluster(family, 0).await?;
    let options = ProxyOptions {
        pool_max: 6,
        workers: Some(1),
        log: "warn",
        wait_limit: Duration::from_secs(2),
        ..ProxyOptions::default()
    };
    let mut stage = Stage::start(family, 1, &options).await?;
    for port in [direct.primary().port, stage.cluster.primary().port] {
        let admin = harness::admin(port);
        suite::prepare(&admin, family, &[]).await?;
        let mut admin = Connection::open(&admin).await?;
        words::set_up(&mut admin, family).await?;
        admin.quit().await;
    }
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(30))
        .await?;
    // The servers' routines are known to the proxy then.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let direct_at = Target::Tcp(format!("127.0.0.1:{}", direct.primary().port));
    let mut sessions = Sessions::begin(family, &direct_at, &stage.address, seed).await?;
    let (began, mut differences) = (Instant::now(), Vec::new());
    let question = question();
    for step in 1..=steps {
        if let Some(difference) = sessions.step().await? {
            eprintln!("{family}, seed {seed}: {difference}");
            differences.push(difference.at);
            if differences.len() as u64 >= number("MILLRACE_RANDOM_ENOUGH", ENOUGH) {
                break;
            }
        }
        if let Some((_, client, sql)) = question.as_ref().filter(|asked| asked.0 == step) {
            eprintln!("{family}, after step {step}: {sql}");
            let [direct, through] = sessions.ask(*client, sql).await?;
            eprintln!("direct  {direct:#?}\nthrough {through:#?}");
            break;
        }
    }
    eprintln!(
        "{family}, seed {seed}: {steps} steps in {:.0?}",
        began.elapsed()
    );
    if let Some(proxy) = stage.proxy.as_mut() {
        ensure!(proxy.alive(), "millrace died; its log:\n{}", proxy.log());
        ensure!(!proxy.log().contains("panicked"), "{}", proxy.log());
    }
    ensure!(
        differences.is_empty(),
        "seed {seed}: {} answers differ, at steps {differences:?}",
        differences.len()
    );
    Ok(())
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    match skip_unless(Family::MariaDb, "random sessions") {
        true => random(Family::MariaDb).await.context("MariaDB"),
        false => Ok(()),
    }
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    match skip_unless(Family::MySql, "random sessions") {
        true => random(Family::MySql).await.context("MySQL"),
        false => Ok(()),
    }
}
