//! Where CPU is scarce, workers wait for a moment before they sleep; answers stay what they are.

use std::fs;
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login};

use crate::ground::{READY, app, toml};

const CLIENTS: usize = 48;

/// The longest until workers have noticed that CPU is scarce, or no more.
const NOTICED: Duration = Duration::from_secs(30);

/// Keeps every CPU busy until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn everywhere() -> Busy {
        let busy = Arc::new(AtomicBool::new(true));
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let busy = busy.clone();
            std::thread::spawn(move || {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Busy(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A control group that is given a twentieth of a CPU, until it is dropped: in turns so short that most
/// statements last for longer than one.
struct Throttle(PathBuf);

impl Throttle {
    const PERIOD_US: u32 = 20_000;
    const QUOTA_US: u32 = 1_000;

    fn new(name: &str, process: u32) -> std::io::Result<Throttle> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let mut trees = mounts.lines().filter_map(tree_of_cpu);
        let missing = || Error::new(ErrorKind::NotFound, "no control groups for CPU are mounted");
        let (version, tree) = trees.next().ok_or_else(missing)?;
        if version == 2 {
            fs::write(tree.join("cgroup.subtree_control"), "+cpu")?;
        }
        let group = tree.join(name);
        fs::create_dir(&group)?;
        let throttle = Throttle(group);
        let (period, quota) = (Self::PERIOD_US, Self::QUOTA_US);
        if version == 2 {
            throttle.set("cpu.max", &format!("{quota} {period}"))?;
        } else {
            throttle.set("cpu.cfs_period_us", &period.to_string())?;
            throttle.set("cpu.cfs_quota_us", &quota.to_string())?;
        }
        throttle.set("cgroup.procs", &process.to_string())?;
        Ok(throttle)
    }

    fn set(&self, file: &str, value: &str) -> std::io::Result<()> {
        fs::write(self.0.join(file), value)
    }
}

impl Drop for Throttle {
    /// The system needs a moment to see that the group's process has ended.
    fn drop(&mut self) {
        for _ in 0..100 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
                _ => return,
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The version of control groups, and where CPU is shared out, from a line of /proc/mounts.
fn tree_of_cpu(line: &str) -> Option<(u32, PathBuf)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, mount, kind, options, ..] = fields[..] else {
        return None;
    };
    let mount = Path::new(mount);
    let has_cpu = |names: &str| names.split([' ', ',', '\n']).any(|name| name == "cpu");
    let version = match kind {
        "cgroup" if has_cpu(options) => 1,
        "cgroup2" => {
            has_cpu(&fs::read_to_string(mount.join("cgroup.controllers")).ok()?).then_some(2)?
        }
        _ => return None,
    };
    Some((version, mount.to_owned()))
}

pub(crate) async fn rests(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = resting(cluster).await?;
    let busy = Busy::everywhere();
    rests_under_load(&proxy, |delay| delay > 0.0)
        .await
        .context("CPU is scarce")?;
    drop(busy);
    until(&proxy, |delay| delay == 0.0)
        .await
        .context("workers rest with nothing to do")
}

/// Throttled, workers rest for longer than they may otherwise.
pub(crate) async fn rests_throttled(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = resting(cluster).await?;
    let name = format!("millrace-tests-{}-{}", std::process::id(), cluster.family());
    let throttle = match Throttle::new(&name, proxy.pid()) {
        Ok(throttle) => throttle,
        Err(error) => {
            let mut stderr = std::io::stderr();
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(stderr, "SKIPPED: rests of who is throttled: {error}");
            return Ok(());
        }
    };
    let rested = rests_under_load(&proxy, |delay| delay > LIMIT.as_secs_f64()).await;
    // A group can be removed when nothing is in it.
    drop(proxy);
    drop(throttle);
    rested.context("the control group is throttled")
}

/// The workers need not be quick for many packets to be expected in so long a rest.
const LIMIT: Duration = Duration::from_millis(2);

async fn resting(cluster: &Cluster) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, "");
    let limit = format!("workers = 1\ncoalesce_limit = \"{}ms\"", LIMIT.as_millis());
    let mut proxy = launch
        .config(&text.replace("workers = 2", &limit))
        .spawn()?;
    proxy.wait_ready(READY).await?;
    ensure!(delay(&proxy).await? == 0.0, "rests with nothing to do");
    Ok(proxy)
}

/// While clients read, the delay comes to be as it should.
async fn rests_under_load(proxy: &Proxy, reached: impl Fn(f64) -> bool) -> anyhow::Result<()> {
    let login = app(proxy.address());
    let working = Arc::new(AtomicBool::new(true));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(reads(login.clone(), number, working.clone())))
        .collect();
    let rested = until(proxy, reached).await;
    working.store(false, Ordering::Relaxed);
    for client in clients {
        client.await?.context("a client")?;
    }
    rested
}

/// One read after the other, each with an answer of its own.
async fn reads(login: Login, number: usize, working: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut connection = Connection::open(&login).await?;
    for count in 0.. {
        if !working.load(Ordering::Relaxed) {
            break;
        }
        let sql = format!("SELECT '{number}-{count}' FROM app.place");
        let reply = connection.expect(&sql).await?;
        let expected = format!("{number}-{count}");
        ensure!(reply.scalar() == Some(expected.clone()), "not {expected}");
    }
    Ok(())
}

async fn until(proxy: &Proxy, reached: impl Fn(f64) -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let delay = delay(proxy).await?;
        if reached(delay) {
            return Ok(());
        }
        ensure!(begun.elapsed() < NOTICED, "the delay is {delay} s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How long workers wait before they sleep, in seconds.
async fn delay(proxy: &Proxy) -> anyhow::Result<f64> {
    let metrics = proxy.metrics().await?;
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix("millrace_coalesce_delay_seconds "));
    Ok(value.context("no such metric")?.parse()?)
}
