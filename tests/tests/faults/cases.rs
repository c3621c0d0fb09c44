//! The faults: what is done to the servers while clients work, what an orchestrator does about
//! it, and how the cluster is made whole afterwards. Judges nothing.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use millrace_sandbox::{Family, Release, Topology};
use millrace_tests::cutter::Mode;
use millrace_tests::ledger::Contents;
use millrace_tests::load::Board;

use crate::ground::{Disks, Ground, Plan};
use crate::purpose;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    Switchover,
    PrimaryDrained,
    RollingRestart,
    ReplicaDrained,
    ReplicaStopped,
    ReplicaKilled,
    ReplicaPaused,
    ReplicaCutOff,
    PrimaryKilled,
    PrimaryPaused,
    PrimaryStopped,
    PrimaryRestarted,
    PrimaryUnreachable,
    PrimaryAnswersLost,
    PrimaryDeaf,
    PrimaryPartitioned,
    ReadOnlyForAMoment,
    TwoWritable,
    FullDisk,
    SlowDisk,
    SecondaryExpelled,
    PrimaryLeaves,
    NodeIsolated,
    TransactionsKilled,
    QueriesKilled,
    PtKill,
    WaitTimeout,
    IdleTransactions,
    DualPrimaries,
    StaleSource,
    InnodbReadOnly,
    NamesSwapped,
    NameMoved,
}

/// What the issue aims at for a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// No error at all, and a pause under 1 s.
    Planned,
    /// Reads and autocommit writes without errors but for unknown outcomes, 95 % of open
    /// transactions replayed, a pause of the promotion and 500 ms.
    PrimaryLost,
    /// Nobody notices much: no error at all.
    NoError,
    /// Only that nothing is wrong.
    Right,
}

use Fault as F;

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            F::Switchover => "switchover",
            F::PrimaryDrained => "primary drained by command, then a switchover",
            F::ReplicaDrained => "replica drained by command, restarted, resumed",
            F::RollingRestart => "rolling restart of all servers",
            F::ReplicaStopped => "replica stopped and started",
            F::ReplicaKilled => "replica killed (kill -9) and started",
            F::ReplicaPaused => "replica hangs (SIGSTOP) for 4 s",
            F::ReplicaCutOff => "replica cut off for 4 s",
            F::PrimaryKilled => "primary killed (kill -9)",
            F::PrimaryPaused => "primary hangs (SIGSTOP), returns after the promotion",
            F::PrimaryStopped => "primary stopped in order",
            F::PrimaryRestarted => "primary killed and started again",
            F::PrimaryUnreachable => "primary cut off from Millrace for 4 s",
            F::PrimaryAnswersLost => "primary's answers lost for 4 s (cut one way)",
            F::PrimaryDeaf => "nothing reaches the primary for 4 s (cut the other way)",
            F::PrimaryPartitioned => "primary cut off from all, returns after the promotion",
            F::ReadOnlyForAMoment => "primary read-only for 1 s",
            F::TwoWritable => "replica writable beside the primary for 2 s",
            F::FullDisk => "primary's disk full, given up after 3 s",
            F::SlowDisk => "primary's disk slow (4 writes/s) for 4 s",
            F::SecondaryExpelled => "secondary expelled and back",
            F::PrimaryLeaves => "primary leaves the group",
            F::NodeIsolated => "written-to node cut off from its group",
            F::TransactionsKilled => "open transactions killed (KILL)",
            F::QueriesKilled => "statements killed (KILL QUERY)",
            F::PtKill => "statements killed by pt-kill",
            F::WaitTimeout => "open transactions idle for longer than wait_timeout",
            F::IdleTransactions => {
                "open transactions idle for longer than idle_transaction_timeout"
            }
            F::DualPrimaries => "two primaries, each the other's source, for 3 s",
            F::StaleSource => "primary has a source that does not answer, for 4 s",
            F::InnodbReadOnly => "replica with innodb_read_only and without read_only for 4 s",
            F::NamesSwapped => "switchover, and the two servers' names are swapped",
            F::NameMoved => "a replica's name means another replica for 4 s",
        }
    }

    pub(crate) fn aim(self) -> Aim {
        match self {
            F::Switchover | F::PrimaryDrained | F::RollingRestart => Aim::Planned,
            F::ReplicaDrained | F::NamesSwapped => Aim::Planned,
            F::PrimaryKilled | F::PrimaryStopped => Aim::PrimaryLost,
            F::ReplicaStopped | F::ReplicaKilled | F::ReplicaPaused | F::ReplicaCutOff => {
                Aim::NoError
            }
            F::ReadOnlyForAMoment | F::SecondaryExpelled => Aim::NoError,
            F::TransactionsKilled | F::QueriesKilled | F::PtKill => Aim::NoError,
            F::WaitTimeout | F::IdleTransactions => Aim::NoError,
            F::StaleSource | F::InnodbReadOnly | F::NameMoved => Aim::NoError,
            _ => Aim::Right,
        }
    }
}

impl Fault {
    /// How long it may take, from a whole cluster to a whole cluster. How soon clients go on is measured apart.
    pub(crate) fn limit(self) -> Duration {
        match self {
            // Members of a group fetch and apply what is written meanwhile, one after the other. Where the CPU is scarce
            // that alone took up to 65 s for each (MySQL 9.7, two cores with a load of 17 to 24).
            F::RollingRestart => Duration::from_secs(300),
            _ => Duration::from_secs(120),
        }
    }

    /// What servers themselves say of a fault, and Millrace passes on: 1114 and 1021 where a disk is
    /// full.
    pub(crate) fn own_errors(self) -> &'static [u16] {
        match self {
            F::FullDisk => &[1114, 1021],
            _ => &[],
        }
    }
}

/// What happened, for the figures.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) struck: Instant,
    /// What was to end had ended.
    pub(crate) hit: Instant,
    /// By the wall clock, in milliseconds.
    pub(crate) struck_ms: u64,
    /// A server took writes again.
    pub(crate) restored: Option<Instant>,
    restored_us: u64,
    /// A former primary that lives, as it was when it had been back for a while.
    pub(crate) old: Option<Contents>,
    /// What clients were told that were hit on purpose.
    pub(crate) said: String,
    /// What is wrong beside what the ledger finds.
    pub(crate) wrong: Vec<String>,
    /// To be made whole.
    broken: Option<String>,
}

fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_micros() as u64)
}

pub(crate) async fn rest(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

impl Story {
    fn begin() -> Self {
        let now = Instant::now();
        Story {
            struck: now,
            hit: now,
            struck_ms: wall_us() / 1000,
            restored: None,
            restored_us: u64::MAX,
            old: None,
            said: String::new(),
            wrong: Vec::new(),
            broken: None,
        }
    }

    fn hit(&mut self) {
        self.hit = Instant::now();
    }

    fn restored(&mut self) {
        self.restored = Some(Instant::now());
        self.restored_us = wall_us();
    }

    /// Since when a new primary has taken writes, in microseconds of the wall clock.
    pub(crate) fn restored_us(&self) -> u64 {
        self.restored_us
    }
}

/// Does it, and what an orchestrator does then.
pub(crate) async fn strike(ground: &Ground, fault: Fault, board: &Board) -> anyhow::Result<Story> {
    let cluster = &ground.cluster;
    let primary = ground.writer().await?;
    let others = cluster.servers().into_iter();
    let replica = others.map(|s| s.name).find(|name| *name != primary);
    let replica = replica.context("no replica")?;
    let mut story = Story::begin();
    match fault {
        F::Switchover => {
            cluster.promote(&replica).await?;
            story.restored();
        }
        F::PrimaryDrained => {
            let address = ground.address(&primary)?;
            ground
                .operate(&format!("DRAIN SERVER '{address}' WAIT 2"))
                .await?;
            // A Galera cluster has other nodes that take writes.
            if cluster.topology() != Topology::Galera {
                cluster.promote(&replica).await?;
            }
            story.restored();
            ground
                .operate(&format!("RESUME SERVER '{address}'"))
                .await?;
        }
        F::ReplicaDrained => {
            let address = ground.address(&replica)?;
            ground
                .operate(&format!("DRAIN SERVER '{address}' WAIT 5"))
                .await?;
            cluster.stop(&replica).await?;
            catch_up(board, cluster.start(&replica)).await?;
            ground
                .operate(&format!("RESUME SERVER '{address}'"))
                .await?;
        }
        F::RollingRestart => rolling_restart(ground, board, &mut story).await?,
        F::ReplicaStopped => {
            cluster.stop(&replica).await?;
            rest(500).await;
            catch_up(board, cluster.start(&replica)).await?;
        }
        F::ReplicaKilled => {
            cluster.kill(&replica).await?;
            rest(500).await;
            catch_up(board, cluster.start(&replica)).await?;
        }
        F::ReplicaPaused => {
            cluster.pause(&replica).await?;
            rest(4_000).await;
            cluster.resume(&replica).await?;
        }
        F::ReplicaCutOff => cut_for_a_while(ground, &replica, Mode::Dark, &mut story).await?,
        F::PrimaryKilled => {
            cluster.kill(&primary).await?;
            story.hit();
            take_over(ground, &primary, &mut story).await?;
            story.broken = Some(primary);
        }
        F::PrimaryStopped => {
            let ended = end(ground, &primary);
            if cluster.topology() == Topology::Async {
                ended.await?;
                take_over(ground, &primary, &mut story).await?;
            } else {
                // The group goes on as soon as the member has left it.
                let (ended, taken) = tokio::join!(ended, take_over(ground, &primary, &mut story));
                ended.and(taken)?;
            }
            story.hit();
            story.broken = Some(primary);
        }
        F::PrimaryPaused => {
            cluster.pause(&primary).await?;
            take_over(ground, &primary, &mut story).await?;
            rest(500).await;
            cluster.resume(&primary).await?;
            fence(ground, &primary, &mut story).await?;
        }
        F::PrimaryRestarted => {
            cluster.kill(&primary).await?;
            story.hit();
            rest(500).await;
            cluster.start(&primary).await?;
            story.restored();
        }
        F::PrimaryUnreachable => cut_for_a_while(ground, &primary, Mode::Dark, &mut story).await?,
        F::PrimaryAnswersLost => cut_for_a_while(ground, &primary, Mode::Stall, &mut story).await?,
        F::PrimaryDeaf => cut_for_a_while(ground, &primary, Mode::Deaf, &mut story).await?,
        F::PrimaryPartitioned => {
            ground.cut(&primary, Mode::Dark)?;
            partition_promotion(ground, &mut story).await?;
            rest(500).await;
            ground.cut(&primary, Mode::Forward)?;
            fence(ground, &primary, &mut story).await?;
        }
        F::ReadOnlyForAMoment => {
            cluster.set_read_only(&primary, true).await?;
            rest(1_000).await;
            cluster.set_read_only(&primary, false).await?;
            story.restored();
        }
        F::TwoWritable => {
            cluster.set_read_only(&replica, false).await?;
            rest(2_000).await;
            cluster.set_read_only(&replica, true).await?;
            story.restored();
        }
        F::FullDisk => {
            cluster.fill_disk(&primary)?;
            rest(3_000).await;
            // A server that waits for room looks again after a minute: it is given up.
            cluster.kill(&primary).await?;
            cluster.promote_best().await?;
            story.restored();
            story.broken = Some(primary);
        }
        F::SlowDisk => {
            cluster.slow_disk(&primary, Some(4))?;
            rest(4_000).await;
            cluster.slow_disk(&primary, None)?;
            story.restored();
        }
        F::SecondaryExpelled => {
            cluster.expel(&replica).await?;
            catch_up(board, cluster.rejoin_group(&replica)).await?;
        }
        F::PrimaryLeaves => {
            cluster.leave_group(&primary).await?;
            story.restored();
            rest(500).await;
            catch_up(board, cluster.rejoin_group(&primary)).await?;
        }
        F::NodeIsolated => {
            cluster.isolate(&primary).await?;
            cluster.wait_members(2, &primary).await?;
            story.restored();
            rest(1_000).await;
            cluster.reconnect(&primary).await?;
        }
        F::TransactionsKilled
        | F::QueriesKilled
        | F::PtKill
        | F::WaitTimeout
        | F::IdleTransactions => {
            (story.said, story.wrong) = purpose::strike(ground, fault).await?;
        }
        F::DualPrimaries => {
            let port = port(ground, &replica)?;
            follow(ground, &primary, port).await?;
            cluster.set_read_only(&replica, false).await?;
            rest(3_000).await;
            cluster.set_read_only(&replica, true).await?;
            forget_source(ground, &primary).await?;
            story.restored();
        }
        F::StaleSource => {
            // Nobody listens there.
            follow(ground, &primary, 1).await?;
            rest(4_000).await;
            let written = ground.writes_by_another().await;
            forget_source(ground, &primary).await?;
            written?;
        }
        F::InnodbReadOnly => {
            cluster.stop(&replica).await?;
            let mut options = vec!["--innodb-read-only=ON", "--read-only=OFF"];
            options.extend(match cluster.family() {
                Family::MySql => &["--super-read-only=OFF", "--skip-replica-start"][..],
                Family::MariaDb => &["--skip-slave-start"],
            });
            cluster.start_with(&replica, &options).await?;
            rest(4_000).await;
            let written = ground.writes_by_another().await;
            cluster.stop(&replica).await?;
            cluster.start(&replica).await?;
            written?;
        }
        F::NamesSwapped => {
            cluster.promote(&replica).await?;
            ground.swap_names(&primary, &replica)?;
            story.restored();
            // They are looked up every second, and believed when they were found twice.
            rest(6_000).await;
        }
        F::NameMoved => {
            let mut others = cluster.servers().into_iter().map(|server| server.name);
            let other = others.find(|name| *name != primary && *name != replica);
            let other = other.context("no other replica")?;
            let before = ground.move_name(&replica, &other)?;
            rest(4_000).await;
            ground.restore_names(before)?;
            rest(2_000).await;
        }
    }
    Ok(story)
}

fn port(ground: &Ground, server: &str) -> anyhow::Result<u16> {
    let servers = ground.cluster.servers();
    let info = servers.iter().find(|info| info.name == server);
    Ok(info.with_context(|| format!("no server {server}"))?.port)
}

async fn follow(ground: &Ground, server: &str, source: u16) -> anyhow::Result<()> {
    let mut control = ground.cluster.control(server).await?;
    for statement in purpose::source(ground.cluster.family(), source) {
        control.run(&statement).await?;
    }
    control.close().await;
    Ok(())
}

async fn forget_source(ground: &Ground, server: &str) -> anyhow::Result<()> {
    let mut control = ground.cluster.control(server).await?;
    control.run("STOP REPLICA").await?;
    control.run("RESET REPLICA ALL").await?;
    control.close().await;
    Ok(())
}

/// Stops a server in order; one that takes longer than operators' patience is killed. MySQL's
/// shutdown can hang with Group Replication's or semi-synchronous replication's commits under way.
async fn end(ground: &Ground, server: &str) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let cluster = &ground.cluster;
    match tokio::time::timeout(PATIENCE, cluster.stop(server)).await {
        Ok(stopped) => stopped,
        Err(_) => cluster.kill(server).await,
    }
}

/// An orchestrator's part, or the wait for the group's own.
async fn take_over(ground: &Ground, dead: &str, story: &mut Story) -> anyhow::Result<()> {
    let cluster = &ground.cluster;
    match cluster.topology() {
        Topology::Async => {
            rest(1_000).await;
            cluster.promote_best().await?;
        }
        Topology::Group | Topology::Galera => elected(ground, dead).await?,
    }
    story.restored();
    Ok(())
}

async fn elected(ground: &Ground, dead: &str) -> anyhow::Result<()> {
    let cluster = &ground.cluster;
    cluster.wait_members(2, dead).await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let learnt = cluster.refresh_roles().await;
        if Instant::now() > deadline {
            learnt?;
            bail!("no new primary");
        }
        if learnt.is_err() {
            rest(20).await;
            continue;
        }
        let primary = cluster.primary().name;
        if cluster.topology() == Topology::Galera {
            return Ok(());
        }
        if primary != dead {
            let mut control = cluster.control(&primary).await?;
            let read_only = control.value("SELECT @@GLOBAL.read_only").await?;
            control.close().await;
            if read_only.as_deref() == Some("0") {
                return Ok(());
            }
        }
        rest(20).await;
    }
}

/// As `promote_best`, where the orchestrator cannot reach the primary: its server is held for the
/// moment, which to all others is the same. Replicas follow the new one through its forwarder.
async fn partition_promotion(ground: &Ground, story: &mut Story) -> anyhow::Result<()> {
    let cluster = &ground.cluster;
    let old = cluster.primary().name;
    rest(1_000).await;
    cluster.pause(&old).await?;
    let promoted = cluster.promote_best().await;
    cluster.resume(&old).await?;
    let new = promoted?;
    story.restored();
    let port = ground.cutter(&new)?.port;
    for other in cluster.replicas() {
        if other.name != old {
            cluster.replicate_via(&other.name, port).await?;
        }
    }
    Ok(())
}

/// The old primary is back and takes writes for all it knows. After a while the orchestrator
/// ends it.
async fn fence(ground: &Ground, old: &str, story: &mut Story) -> anyhow::Result<()> {
    let cluster = &ground.cluster;
    rest(1_500).await;
    if cluster.topology() == Topology::Async {
        story.old = Some(ground.contents(old).await?);
    }
    cluster.kill(old).await?;
    story.broken = Some(old.to_owned());
    Ok(())
}

async fn cut_for_a_while(
    ground: &Ground,
    server: &str,
    mode: Mode,
    story: &mut Story,
) -> anyhow::Result<()> {
    ground.cut(server, mode)?;
    rest(4_000).await;
    ground.cut(server, Mode::Forward)?;
    story.restored();
    Ok(())
}

/// A server that is to take part again. A member of a group has to apply what is written meanwhile; where the CPU is so
/// scarce that more is written than it applies, that would never end: after a while clients spare the servers.
async fn catch_up(
    board: &Board,
    joining: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(25);
    let mut joining = std::pin::pin!(joining);
    if let Ok(joined) = tokio::time::timeout(PATIENCE, &mut joining).await {
        return joined;
    }
    eprintln!("    after {PATIENCE:?} a server has not caught up: clients spare it");
    board.spare(true);
    let joined = joining.await;
    board.spare(false);
    joined
}

/// Replicas first, then the primary once another has its role.
async fn rolling_restart(ground: &Ground, board: &Board, story: &mut Story) -> anyhow::Result<()> {
    let cluster = &ground.cluster;
    let old = ground.writer().await?;
    let mut last = None;
    for server in cluster.servers() {
        if server.name != old {
            cluster.stop(&server.name).await?;
            catch_up(board, cluster.start(&server.name)).await?;
            last = Some(server.name);
        }
    }
    if cluster.topology() != Topology::Galera {
        cluster.promote(&last.context("no replica")?).await?;
    }
    cluster.stop(&old).await?;
    catch_up(board, cluster.start(&old)).await?;
    story.restored();
    Ok(())
}

/// Makes the cluster whole again, once the clients have stopped.
pub(crate) async fn heal(ground: &Ground, story: &Story) -> anyhow::Result<()> {
    let cluster = &ground.cluster;
    if let Some(broken) = &story.broken {
        if ground.plan.disks == Disks::Small {
            cluster.free_disk(broken)?;
        }
        match cluster.topology() {
            Topology::Async => cluster.rebuild(broken).await?,
            Topology::Group | Topology::Galera => cluster.start(broken).await?,
        }
        if ground.plan.forwarders {
            let port = ground.cutter(&cluster.primary().name)?.port;
            cluster.replicate_via(broken, port).await?;
        }
    }
    cluster.refresh_roles().await
}

/// What runs where names can be made to mean others.
pub(crate) fn by_names(release: Release) -> Vec<(Plan, Vec<Fault>)> {
    let plan = Plan {
        names: true,
        ..Plan::new(release, Topology::Async)
    };
    vec![(plan, vec![F::NamesSwapped, F::NameMoved])]
}

/// What runs on what: in CI, and in the long run.
pub(crate) fn series(release: Release, topology: Topology, all: bool) -> Vec<(Plan, Vec<Fault>)> {
    let plan = Plan::new(release, topology);
    let short = match topology {
        Topology::Async => vec![F::Switchover, F::PrimaryKilled, F::ReplicaPaused],
        Topology::Group => vec![F::Switchover, F::PrimaryKilled],
        Topology::Galera => vec![F::PrimaryKilled],
    };
    if !all {
        return vec![(plan, short)];
    }
    match topology {
        Topology::Async => all_asynchronous(plan),
        Topology::Group => vec![
            (
                plan,
                vec![
                    F::Switchover,
                    F::PrimaryKilled,
                    F::PrimaryPaused,
                    F::PrimaryStopped,
                    F::PrimaryLeaves,
                    F::PrimaryDrained,
                    F::ReplicaDrained,
                    F::SecondaryExpelled,
                    F::ReplicaKilled,
                    F::RollingRestart,
                ],
            ),
            (
                Plan { proxies: 2, ..plan },
                vec![F::Switchover, F::PrimaryKilled],
            ),
        ],
        Topology::Galera => vec![
            (
                plan,
                vec![
                    F::PrimaryKilled,
                    F::PrimaryPaused,
                    F::PrimaryStopped,
                    F::NodeIsolated,
                    F::PrimaryDrained,
                    F::ReplicaDrained,
                    F::ReplicaKilled,
                    F::RollingRestart,
                ],
            ),
            (Plan { proxies: 2, ..plan }, vec![F::PrimaryKilled]),
        ],
    }
}

fn all_asynchronous(plan: Plan) -> Vec<(Plan, Vec<Fault>)> {
    let mut one_server = vec![
        F::Switchover,
        F::PrimaryDrained,
        F::RollingRestart,
        F::ReplicaDrained,
        F::ReplicaStopped,
        F::ReplicaKilled,
        F::ReplicaPaused,
        F::PrimaryKilled,
        F::PrimaryPaused,
        F::PrimaryStopped,
        F::PrimaryRestarted,
        F::ReadOnlyForAMoment,
        F::TwoWritable,
        F::TransactionsKilled,
        F::QueriesKilled,
        F::PtKill,
        F::WaitTimeout,
        F::DualPrimaries,
        F::StaleSource,
        F::InnodbReadOnly,
    ];
    if plan.release.family() == Family::MariaDb {
        one_server.push(F::IdleTransactions);
    }
    let network = vec![
        F::ReplicaCutOff,
        F::PrimaryUnreachable,
        F::PrimaryAnswersLost,
        F::PrimaryDeaf,
        F::PrimaryPartitioned,
    ];
    let with = |change: fn(&mut Plan)| {
        let mut plan = plan;
        change(&mut plan);
        plan
    };
    vec![
        (plan, one_server),
        (with(|plan| plan.forwarders = true), network),
        (with(|plan| plan.disks = Disks::Small), vec![F::FullDisk]),
        (with(|plan| plan.disks = Disks::Honest), vec![F::SlowDisk]),
        (
            with(|plan| plan.proxies = 2),
            vec![F::Switchover, F::PrimaryKilled],
        ),
        (with(|plan| plan.semi_sync = false), vec![F::PrimaryKilled]),
    ]
}
