//! Many clients at once, some beside Millrace: nobody reads what was before what it must see, or goes back in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::ground::Ground;

const REGISTERS: usize = 8;

/// What is known to be written, by register.
#[derive(Default)]
struct Known {
    acknowledged: [AtomicU64; REGISTERS],
    reads: AtomicU64,
    ends: AtomicBool,
}

/// For some seconds: writers through Millrace count up, each its registers; one beside Millrace writes others; readers
/// look.
pub(crate) async fn hold(ground: &Ground) -> anyhow::Result<()> {
    let seconds = std::env::var("MILLRACE_CACHE_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(10);
    let known = Arc::new(Known::default());
    let before = ground.hits().await?;
    let mut direct = ground.direct().await?;
    direct.expect("UPDATE c_count SET n = 0").await?;
    ground
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let writers = (0..2).map(|which| write(ground, &known, which));
    let readers = (0..6).map(|_| read(ground, &known));
    let ending = async {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        known.ends.store(true, Ordering::SeqCst);
        anyhow::Ok(())
    };
    let beside = write_beside(ground, &known);
    let all = async {
        let (writers, readers, beside, ending) =
            tokio::join!(futures_all(writers), futures_all(readers), beside, ending);
        writers?;
        readers?;
        beside?;
        ending
    };
    all.await?;
    let reads = known.reads.load(Ordering::SeqCst);
    let hits = ground.hits().await? - before;
    eprintln!("{reads} reads of registers, {hits} answers out of memory, none stale");
    ensure!(
        hits * 100 > reads,
        "only {hits} answers of {reads} out of memory"
    );
    Ok(())
}

async fn futures_all(
    all: impl Iterator<Item = impl Future<Output = anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    let mut running: Vec<_> = all.map(Box::pin).collect();
    // Polled together, so that nobody waits for another.
    std::future::poll_fn(|cx| {
        let mut at = 0;
        while at < running.len() {
            match running[at].as_mut().poll(cx) {
                std::task::Poll::Ready(Ok(())) => drop(running.swap_remove(at)),
                std::task::Poll::Ready(failed) => return std::task::Poll::Ready(failed),
                std::task::Poll::Pending => at += 1,
            }
        }
        match running.is_empty() {
            true => std::task::Poll::Ready(Ok(())),
            false => std::task::Poll::Pending,
        }
    })
    .await
}

async fn write(ground: &Ground, known: &Known, which: usize) -> anyhow::Result<()> {
    let mut client = ground.client().await?;
    let mut value = 0;
    while !known.ends.load(Ordering::SeqCst) {
        value += 1;
        for register in [2 * which, 2 * which + 1] {
            let sql = format!("UPDATE c_count SET n = {value} WHERE id = {}", register + 1);
            client.expect(&sql).await?;
            known.acknowledged[register].store(value, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(value % 40)).await;
    }
    Ok(())
}

/// The last two registers: nobody is promised what is written there, but that it does not go back.
async fn write_beside(ground: &Ground, known: &Known) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    let mut value = 0;
    while !known.ends.load(Ordering::SeqCst) {
        value += 1;
        let sql = format!("UPDATE c_count SET n = {value} WHERE id IN (7, 8)");
        direct.expect(&sql).await?;
        tokio::time::sleep(Duration::from_millis(value % 30)).await;
    }
    Ok(())
}

async fn read(ground: &Ground, known: &Known) -> anyhow::Result<()> {
    let mut client = ground.client().await?;
    let mut seen = [0; REGISTERS];
    let mut turn = 0_usize;
    while !known.ends.load(Ordering::SeqCst) {
        turn += 1;
        let sum = turn.is_multiple_of(5);
        let register = turn % REGISTERS;
        let must = known.acknowledged[register].load(Ordering::SeqCst);
        let sql = match sum {
            true => "SELECT n FROM c_count ORDER BY id".to_owned(),
            false => format!("SELECT n FROM c_count WHERE id = {}", register + 1),
        };
        let rows = client.expect(&sql).await?.rows();
        let values: Result<Vec<u64>, _> = rows
            .iter()
            .map(|row| row[0].as_deref().unwrap_or_default().parse::<u64>())
            .collect();
        let values = values?;
        let told: Vec<(usize, u64)> = match sum {
            true => values.into_iter().enumerate().collect(),
            false => vec![(register, *values.first().context("no row")?)],
        };
        for (at, value) in told {
            if at == register && value < must {
                bail!("register {at} has {value}, although {must} was acknowledged before");
            }
            if value < seen[at] {
                bail!("register {at} has {value}, after {} was seen", seen[at]);
            }
            seen[at] = value;
        }
        known.reads.fetch_add(1, Ordering::SeqCst);
        if turn.is_multiple_of(50) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}
