//! Where CPU is scarce, workers wait for a moment before they sleep; answers stay what they are.

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

pub(crate) async fn rests(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, "");
    // The workers need not be quick for many packets to be expected in so long a rest.
    let text = text.replace("workers = 2", "workers = 1\ncoalesce_limit = \"2ms\"");
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    ensure!(delay(&proxy).await? == 0.0, "rests with nothing to do");
    let login = app(proxy.address());
    let (busy, working) = (Busy::everywhere(), Arc::new(AtomicBool::new(true)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(reads(login.clone(), number, working.clone())))
        .collect();
    let rested = until(&proxy, |delay| delay > 0.0).await;
    working.store(false, Ordering::Relaxed);
    drop(busy);
    for client in clients {
        client.await?.context("a client")?;
    }
    rested.context("CPU is scarce, and no worker rests")?;
    until(&proxy, |delay| delay == 0.0)
        .await
        .context("workers rest with nothing to do")
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
