//! What `pool.concurrency` does: how many statements one server runs at once.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Expect, com};

use crate::ground::{READY, app, gauge, toml};

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS crowded (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
    "CREATE TABLE IF NOT EXISTS beside (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
];

const INSERT: Expect = Expect::Results { binary: false };

/// With one worker, so that the limit is nobody's share.
async fn proxy(cluster: &Cluster, concurrency: &str) -> anyhow::Result<Proxy> {
    let more = format!("[pool]\nconcurrency = {concurrency}\nwait_timeout = \"30s\"\n");
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, &more).replace("workers = 2", "workers = 1");
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    Ok(proxy)
}

/// Where few may run at once, many clients are served over few connections.
pub(crate) async fn few_at_once(cluster: &Cluster) -> anyhow::Result<()> {
    const CLIENTS: usize = 64;
    const EACH: usize = 20;
    let mut opened = Vec::new();
    for (concurrency, shown) in [("\"off\"", 0.0), ("2", 2.0), ("\"auto\"", 8.0)] {
        let proxy = proxy(cluster, concurrency).await?;
        let login = app(proxy.address());
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Connection::open(&login).await?);
        }
        for table in TABLES {
            clients[0].expect(table).await?;
        }
        let primary = cluster.primary().port;
        let limit = gauge(&proxy, "millrace_pool_concurrency", primary).await?;
        ensure!(limit == Some(shown), "{concurrency}: {limit:?}");
        for _ in 0..EACH {
            for client in &mut clients {
                let sql = "INSERT INTO crowded (n) VALUES (1)";
                client.send(com::QUERY, sql.as_bytes()).await?;
            }
            for client in &mut clients {
                let reply = client.read_reply(INSERT).await;
                ensure!(reply.ok().is_some(), "{concurrency}: {:?}", reply.render());
            }
        }
        let name = "millrace_pool_connections_opened_total";
        opened.push(gauge(&proxy, name, primary).await?.context(name)?);
    }
    let (all, few) = (opened[0], opened[1]);
    ensure!(few < all, "connections opened: {opened:?}");
    Ok(())
}

/// Statements that wait for a lock hold up neither others nor the one that holds it.
pub(crate) async fn locked_out(cluster: &Cluster) -> anyhow::Result<()> {
    for concurrency in ["1", "\"auto\""] {
        let proxy = proxy(cluster, concurrency).await?;
        let login = app(proxy.address());
        let mut holder = Connection::open(&login).await?;
        for table in TABLES {
            holder.expect(table).await?;
        }
        holder.expect("LOCK TABLES crowded WRITE").await?;
        let mut locked = Vec::new();
        for _ in 0..50 {
            let mut client = Connection::open(&login).await?;
            let sql = "INSERT INTO crowded (n) VALUES (2)";
            client.send(com::QUERY, sql.as_bytes()).await?;
            locked.push(client);
        }
        let mut other = Connection::open(&login).await?;
        for _ in 0..3 {
            other
                .expect("INSERT INTO beside (n) VALUES (3)")
                .await
                .with_context(|| format!("{concurrency}: another table"))?;
        }
        holder.expect("INSERT INTO crowded (n) VALUES (4)").await?;
        // All of them may be waiting at the server by now, or here.
        tokio::time::sleep(Duration::from_millis(300)).await;
        holder.expect("UNLOCK TABLES").await?;
        for client in &mut locked {
            let reply = client.read_reply(INSERT).await;
            ensure!(reply.ok().is_some(), "{concurrency}: {:?}", reply.render());
        }
    }
    Ok(())
}
