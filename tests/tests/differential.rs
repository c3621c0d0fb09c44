//! What a client sees through Millrace is what it sees on one server: several hundred cases on both families.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_sandbox::{Cluster, Release, skip_unless};
use millrace_tests::checks::is_selection;
use millrace_tests::differential::known::Known;
use millrace_tests::differential::player::Profile;
use millrace_tests::differential::script::{self, Family};
use millrace_tests::differential::suite::{self, Case, Sides};
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::wire::{Target, cap};

fn profile(family: Family, capabilities: u64) -> Profile {
    Profile {
        user: "t_app".to_owned(),
        password: "app-secret".to_owned(),
        capabilities,
        tls: false,
        charset: script::client_charset(family),
        timeout: Duration::from_secs(20),
    }
}

fn cases(family: Family) -> anyhow::Result<Vec<Case>> {
    let all = suite::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cases"))?;
    let filters: Vec<String> = std::env::var("MILLRACE_CASES")
        .map(|list| list.split(',').map(str::to_owned).collect())
        .unwrap_or_default();
    suite::select(all, family, &filters)
}

/// Both clusters, set up alike; the second one's replicas are late from here on.
async fn stages(release: Release, cases: &[Case]) -> anyhow::Result<(Cluster, Stage)> {
    let family = release.family();
    let direct = harness::cluster(release, 0).await?;
    let options = ProxyOptions {
        // The replicas are a second late: a longer wait would be as vain.
        wait_limit: Duration::from_millis(20),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(release, 2, &options).await?;
    for port in [direct.primary().port, stage.cluster.primary().port] {
        suite::prepare(&harness::admin(port), family, cases).await?;
    }
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(60))
        .await?;
    stage.delay_replicas(1).await?;
    Ok((direct, stage))
}

/// `clients`: how many others disturb after each step.
async fn compare(
    sides: &Sides,
    cases: &[Case],
    name: &str,
    known: &mut Known,
    clients: u64,
) -> Vec<String> {
    let started = Instant::now();
    let clients = std::env::var("MILLRACE_NOISE")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(clients);
    let noise = suite::start_noise(sides, clients);
    let (mut failed, mut steps, mut excused) = (Vec::new(), 0, 0);
    for case in cases {
        let mut outcome = suite::run(sides, case, Some(&noise)).await;
        steps += outcome.steps;
        excused += known.excuse(&mut outcome);
        if !outcome.passed() {
            let report = format!("{name}: {}", outcome.report());
            eprintln!("{report}");
            failed.push(report);
        }
    }
    eprintln!(
        "{name}: {} cases, {steps} steps, {} cases failed, {excused} steps differ as known, {} turns of noise, {:.0?}",
        cases.len(),
        failed.len(),
        noise.turns(),
        started.elapsed()
    );
    failed
}

async fn run(release: Release) -> anyhow::Result<()> {
    if !skip_unless(release, "the differential suite") {
        return Ok(());
    }
    let family = release.family();
    let cases = cases(family)?;
    let (direct, stage) = stages(release, &cases)
        .await
        .context("cannot set the stage")?;
    let mut sides = Sides {
        family,
        direct: Target::Tcp(format!("127.0.0.1:{}", direct.primary().port)),
        through: stage.address.clone(),
        profile: profile(family, cap::MODERN),
    };
    let mut known = Known::parse(include_str!("../known-differences.txt"))?;
    let mut failed = compare(&sides, &cases, &format!("{release} modern"), &mut known, 4).await;
    if is_selection(release) {
        // Old clients are served alike on both of MariaDB's: `make long` has them here too.
        return finish(release, &cases, &known, &stage, &failed).await;
    }
    let small: Vec<Case> = cases
        .iter()
        .filter(|c| !c.file.contains("big"))
        // Servers lose all but the first of several commands in one compressed packet, and end a
        // connection with two kinds of compression.
        .filter(|c| !c.name.contains("pipelined") && !c.name.contains("compress"))
        .cloned()
        .collect();

    // The cases change their databases: a second pass needs them new.
    stage.delay_replicas(0).await?;
    for port in [direct.primary().port, stage.cluster.primary().port] {
        suite::prepare(&harness::admin(port), family, &cases).await?;
    }
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(60))
        .await?;
    sides.profile = profile(family, cap::LEGACY | cap::COMPRESS);
    failed.extend(
        compare(
            &sides,
            &small,
            &format!("{release} legacy, compressed"),
            &mut known,
            2,
        )
        .await,
    );
    finish(release, &cases, &known, &stage, &failed).await
}

/// What is said and must be true at the end.
async fn finish(
    release: Release,
    cases: &[Case],
    known: &Known,
    stage: &Stage,
    failed: &[String],
) -> anyhow::Result<()> {
    let ran: HashSet<String> = cases.iter().map(|c| c.name.clone()).collect();
    for entry in known.unused(&ran) {
        eprintln!(
            "{release}: listed as known, but not seen: {} | {}",
            entry.case, entry.step
        );
    }

    let errant = stage.errant_writes().await?;
    if let Some(proxy) = stage.proxy.as_ref().filter(|_| !failed.is_empty()) {
        eprintln!("the end of the proxy's log:\n{}", proxy.log());
    }
    assert!(errant.is_empty(), "writes on replicas: {errant:?}");
    // Said once more, for a record that keeps the end of the output only.
    assert!(
        failed.is_empty(),
        "{} cases differ:\n{}",
        failed.len(),
        failed.join("\n")
    );
    Ok(())
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    run(Release::MariaDb).await
}

#[tokio::test]
async fn mariadb_11_8() -> anyhow::Result<()> {
    run(Release::MariaDb11_8).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    run(Release::MySql).await
}
