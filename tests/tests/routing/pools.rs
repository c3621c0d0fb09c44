//! Applications with connection pools: what one connection has written, another reads a moment later.

use std::time::Duration;

use anyhow::ensure;
use millrace_sandbox::Cluster;
use millrace_tests::wire::Connection;

use crate::ground::{app, proxy};

/// Connections of the application's pool.
const POOL: usize = 6;
const TURNS: u32 = 300;

/// Writes over one connection of a pool and reads over another a millisecond later, as a request that is
/// redirected does. Answers how many reads missed what was written.
async fn stale_reads(pool: &mut [Connection]) -> anyhow::Result<u32> {
    let mut stale = 0;
    for turn in 1..=TURNS {
        let at = turn as usize;
        let writer = at % POOL;
        // Any but the writer.
        let reader = (writer + 1 + at / POOL % (POOL - 1)) % POOL;
        let write = format!("REPLACE INTO app.orders VALUES ({turn}, {turn})");
        pool[writer].expect(&write).await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let read = format!("SELECT v FROM app.orders WHERE k = {turn}");
        let seen = pool[reader].expect(&read).await?.scalar();
        stale += u32::from(seen != Some(turn.to_string()));
    }
    Ok(stale)
}

/// With nothing configured, one Millrace behaves as one server also for an application with a pool.
pub(crate) async fn written_and_read(cluster: &Cluster) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    control
        .run("CREATE TABLE IF NOT EXISTS app.orders (k INT PRIMARY KEY, v INT)")
        .await?;
    control.close().await;
    let proxy = proxy(cluster, "").await?;
    let mut pool = Vec::new();
    for _ in 0..POOL {
        pool.push(Connection::open(&app(proxy.address())).await?);
    }
    let stale = stale_reads(&mut pool).await?;
    for connection in &mut pool {
        let less = "SET @@millrace_consistency = 'session'";
        connection.expect(less).await?;
        connection.expect("DELETE FROM app.orders").await?;
    }
    let at_session = stale_reads(&mut pool).await?;
    println!("  of {TURNS} reads {stale} were stale; {at_session} at level session");
    ensure!(stale == 0, "{stale} of {TURNS} reads were stale");
    Ok(())
}
