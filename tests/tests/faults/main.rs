//! Clients are kept whole while servers die, hang, fill up, are cut off and move, in all topologies.
//!
//! 64 clients read, write and run transactions through Millrace, check every answer and keep a
//! ledger, while one fault after the other meets the servers. Afterwards the servers are asked
//! directly: nothing acknowledged may be lost, nothing done twice or by half, nothing written to
//! two primaries, and every error that a client saw must be a documented one. What the aims say of errors
//! and of transactions run again must be so as well; how long clients paused is reported beside the
//! aims, and judged by no assertion: that depends on the machine.
//!
//! A short selection runs by default; `MILLRACE_FAULTS=all` runs every fault, and
//! `MILLRACE_TESTS_ONLY=word` those whose name has the word. `MILLRACE_FAULTS_OUT=folder` is where
//! the report goes.

mod cases;
mod documented;
mod ground;
mod purpose;
mod report;
mod timeline;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use millrace_sandbox::{Release, Topology, skip_unless_topology};
use millrace_tests::checks::Checks;
use millrace_tests::harness;
use millrace_tests::ledger::{self, Found, Wrong};
use millrace_tests::load::{Board, Load};
use millrace_tests::witness::Witness;
use tokio::task::LocalSet;

use crate::cases::{Aim, Fault, Story};
use crate::ground::{Disks, Ground, Plan};
use crate::report::Figures;

/// Every client has had answers before something happens.
const WARM_LIMIT: Duration = Duration::from_secs(30);
/// Every client must have an answer so soon after servers are ready.
const RECOVERY_LIMIT: Duration = Duration::from_secs(30);
/// To say why a fault does not end.
const PICTURE_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn mysql() {
    test(Release::MySql, Topology::Async);
}

#[test]
fn mariadb() {
    test(Release::MariaDb, Topology::Async);
}

#[test]
fn group_replication() {
    test(Release::MySql, Topology::Group);
}

#[test]
fn galera() {
    test(Release::MariaDb, Topology::Galera);
}

#[test]
fn galera_11_8() {
    test(Release::MariaDb11_8, Topology::Galera);
}

#[test]
fn names_mysql() {
    test_names(Release::MySql, "names_mysql");
}

#[test]
fn names_mariadb() {
    test_names(Release::MariaDb, "names_mariadb");
}

/// In a namespace of its own, where names mean what the test says.
fn test_names(release: Release, test: &str) {
    if harness::direct_only() || !skip_unless_topology(release, Topology::Async, "faults") {
        return;
    }
    if !all() {
        return;
    }
    match millrace_tests::netns::enter(test) {
        Ok(true) => play(run(
            format!("faults of names on {release}"),
            cases::by_names(release),
        )),
        Ok(false) => {}
        Err(error) => panic!("{error:#}"),
    }
}

fn test(release: Release, topology: Topology) {
    if harness::direct_only() || !skip_unless_topology(release, topology, "faults") {
        return;
    }
    let name = match topology {
        Topology::Async => format!("faults on {release}"),
        Topology::Galera if release != Release::MariaDb => {
            format!("faults on {topology} of {release}")
        }
        _ => format!("faults on {topology}"),
    };
    play(run(name, cases::series(release, topology, all())));
}

fn all() -> bool {
    std::env::var("MILLRACE_FAULTS").is_ok_and(|which| which == "all")
}

fn play(series: impl Future<Output = anyhow::Result<()>>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    if let Err(error) = runtime.block_on(series) {
        panic!("{error:#}");
    }
}

async fn run(name: String, series: Vec<(Plan, Vec<Fault>)>) -> anyhow::Result<()> {
    let mut checks = Checks::new(&name);
    let mut lines = Vec::new();
    for (plan, faults) in series {
        run_series(plan, &faults, &mut checks, &mut lines).await?;
    }
    report::publish(&name.replace(' ', "-"), &lines)?;
    checks.finish()
}

async fn run_series(
    plan: Plan,
    faults: &[Fault],
    checks: &mut Checks,
    lines: &mut Vec<Figures>,
) -> anyhow::Result<()> {
    if !possible(plan) {
        return Ok(());
    }
    let mut ground = None;
    for fault in faults {
        let check = format!("{}: {}", plan.name(), fault.name());
        if !checks.wants(&check) || !has_tools(*fault) {
            continue;
        }
        let mut whole = match ground.take() {
            Some(ground) => ground,
            None => Ground::start(plan).await?,
        };
        let mut healed = false;
        checks
            .run_within(fault.limit() + PICTURE_LIMIT, &check, async {
                let ended = tokio::time::timeout(fault.limit(), one(&mut whole, *fault)).await;
                let figures = match ended {
                    Ok(figures) => figures,
                    Err(_) => {
                        eprintln!("{}", whole.picture().await);
                        Err(anyhow!("no end after {:?}", fault.limit()))
                    }
                };
                if figures
                    .as_ref()
                    .map_or(true, |figures| !figures.wrong.is_empty())
                {
                    show_logs(&whole);
                }
                let mut figures = figures?;
                healed = true;
                let wrong = std::mem::take(&mut figures.wrong);
                figures.wrong.clone_from(&wrong);
                lines.push(figures);
                ensure!(wrong.is_empty(), "{}", wrong.join("\n  "));
                Ok(())
            })
            .await;
        // What a fault has left half broken would be blamed on the next.
        ground = healed.then_some(whole);
    }
    Ok(())
}

/// What each Millrace has said last.
fn show_logs(ground: &Ground) {
    for proxy in &ground.proxies {
        let log = proxy.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(60)..].join("\n");
        eprintln!("--- Millrace's log ends:\n{last}\n---");
    }
}

/// pt-kill is Percona's, in Debian's percona-toolkit.
fn has_tools(fault: Fault) -> bool {
    use std::io::Write;
    let probe = || {
        std::process::Command::new("pt-kill")
            .arg("--version")
            .output()
    };
    if fault != Fault::PtKill || probe().is_ok_and(|output| output.status.success()) {
        return true;
    }
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED: {}: pt-kill not found: run scripts/install-deps.sh faults",
        fault.name()
    );
    false
}

/// Full and slow disks need root and a kernel that lets us.
fn possible(plan: Plan) -> bool {
    use std::io::Write;
    let missing = match plan.disks {
        Disks::Plain => None,
        Disks::Small | Disks::Honest if !rustix::process::geteuid().is_root() => Some("root"),
        Disks::Honest if !std::path::Path::new("/sys/fs/cgroup/blkio/cgroup.procs").exists() => {
            Some("cgroup v1's blkio controller")
        }
        Disks::Small | Disks::Honest => None,
    };
    if let Some(missing) = missing {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: faults of disks on {}: they need {missing}",
            plan.name()
        );
    }
    missing.is_none()
}

/// One fault, from a whole cluster to a whole cluster.
async fn one(ground: &mut Ground, fault: Fault) -> anyhow::Result<Figures> {
    ground.clear().await?;
    let local = LocalSet::new();
    let (board, story, servers, late) = local
        .run_until(async {
            let load = Load::start(&ground.logins());
            // Elsewhere it could write where nobody may.
            let mut witness = match fault.aim() {
                Aim::Planned => Some(Witness::start(ground.direct())),
                _ => None,
            };
            warm(&load).await?;
            let story = cases::strike(ground, fault, &load.board).await;
            let over = Instant::now();
            let silent = recovered(&load.board, over).await;
            if !silent.is_empty() {
                eprintln!("{}", ground.picture().await);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (board, stuck) = load.stop(Duration::from_secs(60)).await;
            if let Some(witness) = &mut witness {
                witness.stop(Duration::from_secs(5)).await;
            }
            let mut late = Vec::new();
            if !silent.is_empty() {
                late.push(format!(
                    "no answer within {RECOVERY_LIMIT:?} of servers being ready: {silent:?}"
                ));
            }
            if stuck > 0 {
                late.push(format!("{stuck} clients do not end"));
            }
            let story = story?;
            let servers = witness.map(|witness| witness.pause(story.struck));
            anyhow::Ok((board, story, servers, late))
        })
        .await?;
    if let Some(dead) = ground
        .proxies
        .iter_mut()
        .find_map(|p| (!p.alive()).then(|| p.log()))
    {
        bail!("Millrace has ended:\n{dead}");
    }
    let judged = timeline::judged(ground, &story).await?;
    let mut figures = Figures::new(ground.plan.name(), fault, &story, judged, &board);
    figures.servers = servers;
    figures.wrong = late;
    figures.said.clone_from(&story.said);
    figures.wrong.extend(story.wrong.iter().cloned());
    figures.wrong.extend(undocumented(fault, &board));
    figures
        .wrong
        .extend(first_few("wrong answers", &board.wrong.borrow()));
    cases::heal(ground, &story).await.context("healing")?;
    ground.caught_up().await.context("after healing")?;
    figures.wrong.extend(timeline::agree(ground).await?);
    let found = judge(ground, &story, &board).await?;
    take_findings(ground.plan, found, &mut figures);
    figures.wrong.extend(figures.missed());
    Ok(figures)
}

async fn warm(load: &Load) -> anyhow::Result<()> {
    let deadline = Instant::now() + WARM_LIMIT;
    while load.board.answered() < load.clients() {
        ensure!(
            Instant::now() < deadline,
            "only {} clients have answers: {:?}",
            load.board.answered(),
            load.board.errors.borrow().first()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// Waits until every client has had an answer since `then`; gives those that have not.
async fn recovered(board: &Board, then: Instant) -> Vec<String> {
    let deadline = Instant::now() + RECOVERY_LIMIT;
    loop {
        let silent = board.silent_since(then);
        if silent.is_empty() || Instant::now() > deadline {
            let name = |(number, kind): &(u32, millrace_tests::load::Kind)| {
                format!("client {number} ({})", kind.as_str())
            };
            return silent.iter().map(name).collect();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn undocumented(fault: Fault, board: &Board) -> Vec<String> {
    let mut kinds: BTreeMap<String, (u64, String)> = BTreeMap::new();
    for seen in board.errors.borrow().iter() {
        let code = seen.error.as_ref().map(|error| error.code);
        let own = code.is_some_and(|code| fault.own_errors().contains(&code));
        if !own && !documented::is_documented(seen) {
            let name = format!("{} ({})", seen.name(), seen.kind.as_str());
            let entry = kinds.entry(name).or_insert((0, seen.text.clone()));
            entry.0 += 1;
        }
    }
    kinds
        .into_iter()
        .map(|(name, (count, text))| format!("{count} × undocumented {name}: {text}"))
        .collect()
}

fn first_few(what: &str, all: &[String]) -> Vec<String> {
    match all {
        [] => Vec::new(),
        _ => vec![format!(
            "{} {what}: {}",
            all.len(),
            all[..all.len().min(3)].join("; ")
        )],
    }
}

/// Asks every server.
async fn judge(ground: &Ground, story: &Story, board: &Board) -> anyhow::Result<Found> {
    let name = ground.cluster.primary().name;
    let primary = ground.contents(&name).await?;
    let mut found = Vec::new();
    for server in ground.cluster.servers() {
        if server.name != name {
            let copy = ground.contents(&server.name).await?;
            found.extend(ledger::judge_copy(&server.name, &copy, &primary));
        }
    }
    let ledger = board.ledger.borrow();
    let may_finish = ground.plan.topology == Topology::Galera;
    found.extend(ledger::judge(&ledger, &primary, may_finish));
    if let Some(old) = &story.old {
        let (of_old, only_old) = ledger::judge_old(&ledger, old, &primary, story.restored_us());
        found.extend(of_old);
        eprintln!("    {only_old} writes are only on the former primary");
    }
    Ok(found)
}

/// What asynchronous replication may lose is counted and no more.
fn take_findings(plan: Plan, found: Found, figures: &mut Figures) {
    let may_lose = plan.topology == Topology::Async && !plan.semi_sync;
    let mut kinds: BTreeMap<Wrong, Vec<String>> = BTreeMap::new();
    for (wrong, text) in found {
        if wrong == Wrong::Lost && may_lose {
            figures.lost += 1;
        } else {
            kinds.entry(wrong).or_default().push(text);
        }
    }
    for (wrong, texts) in kinds {
        figures
            .wrong
            .extend(first_few(&format!("{wrong:?}"), &texts));
    }
}
