//! Limits of clients and connections, and who waits.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::Launch;
use millrace_tests::wire::{Connection, Expect, Target, com};

use crate::ground::{FOLLOWED, READY, app, port_of, proxy, replica_ports, toml};

pub(crate) async fn most_clients(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[limits]\nmax_clients = 3\n").await?;
    let login = app(proxy.address());
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Connection::open(&login).await?);
    }
    let (_, reply) = Connection::try_open(&login).await?;
    let err = reply.err().context("a fourth client is in")?.clone();
    ensure!(
        err.code == 1040 && err.message.contains("max_clients"),
        "{err}"
    );
    for client in &mut clients {
        client
            .expect("SELECT 1")
            .await
            .context("the others are served")?;
    }
    clients.remove(0).quit().await;
    let deadline = Instant::now() + FOLLOWED;
    while let Err(error) = Connection::open(&login).await {
        ensure!(Instant::now() < deadline, "after one left: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

pub(crate) async fn clients_per_address(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[limits]\nclients_per_address = 2\n").await?;
    let to: SocketAddr = ([127, 0, 0, 1], proxy.port).into();
    let from = |last: u8| app(Target::TcpFrom(IpAddr::from([127, 0, 0, last]), to));
    let mut clients = Vec::new();
    for last in [1, 1, 2, 2] {
        clients.push(Connection::open(&from(last)).await?);
    }
    for last in [1, 2] {
        let (_, reply) = Connection::try_open(&from(last)).await?;
        let err = reply.err().context("a third client is in")?;
        ensure!(
            err.code == 1040 && err.message.contains("clients_per_address"),
            "{err}"
        );
    }
    clients.push(Connection::open(&from(3)).await?);
    clients.remove(0).quit().await;
    let deadline = Instant::now() + FOLLOWED;
    while let Err(error) = Connection::open(&from(1)).await {
        ensure!(Instant::now() < deadline, "after one left: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

pub(crate) const WAITING: &str =
    "CREATE TABLE IF NOT EXISTS waiting (id INT AUTO_INCREMENT PRIMARY KEY, n INT)";

/// An exhausted pool: the error names the option, and the client goes on.
/// A KILL does not wait behind what it is to end: where all places are taken, it has a connection beside them.
pub(crate) async fn kill_while_full(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 2\nwait_timeout = \"20s\"\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    holder.expect("INSERT INTO waiting (n) VALUES (1)").await?;
    let mut victim = Connection::open(&login).await?;
    let number = victim.expect("SELECT CONNECTION_ID()").await?.scalar();
    let number = number.context("no number")?;
    let mut killer = Connection::open(&login).await?;
    for sql in ["BEGIN", "UPDATE waiting SET n = n + 1"] {
        holder.expect(sql).await?;
    }
    let waiting = victim.query("UPDATE waiting SET n = n + 2");
    let killing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = Instant::now();
        killer.expect(&format!("KILL QUERY {number}")).await?;
        anyhow::Ok(begun.elapsed())
    };
    let (waited, killed) = tokio::join!(waiting, killing);
    let took = killed?;
    ensure!(took < Duration::from_secs(5), "the KILL took {took:?}");
    let code = waited.err().map(|error| error.code);
    ensure!(code == Some(1317), "{waited:?}");
    holder.expect("ROLLBACK").await?;
    victim.expect("SELECT 1").await?;
    Ok(())
}

pub(crate) async fn pool_exhausted(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"700ms\"\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    let mut second = Connection::open(&login).await?;
    for sql in ["BEGIN", "INSERT INTO waiting (n) VALUES (1)"] {
        holder.expect(sql).await?;
    }
    let started = Instant::now();
    let reply = second.query("INSERT INTO waiting (n) VALUES (2)").await;
    let err = reply.err().context("there was a connection")?;
    ensure!(
        err.message.contains("pool.max_connections") || err.message.contains("pool.wait_timeout"),
        "{err}"
    );
    ensure!(
        started.elapsed() >= Duration::from_millis(600),
        "{:?}",
        started.elapsed()
    );
    let read = port_of(&mut second).await?;
    ensure!(
        replica_ports(cluster).contains(&read),
        "reads need not wait for the primary's"
    );
    holder.expect("COMMIT").await?;
    second
        .expect("INSERT INTO waiting (n) VALUES (3)")
        .await
        .context("goes on")?;
    Ok(())
}

/// Everybody who waits in vain is told so when his own time is over, also those who come when all before
/// them are gone.
pub(crate) async fn each_in_his_time(cluster: &Cluster) -> anyhow::Result<()> {
    const LIMIT: Duration = Duration::from_millis(900);
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"900ms\"\n";
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, more).replace("workers = 2", "workers = 1");
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    for sql in ["BEGIN", "DELETE FROM waiting"] {
        holder.expect(sql).await?;
    }
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Connection::open(&login).await?);
    }
    for _ in 0..2 {
        let mut begun = Vec::new();
        for client in &mut clients {
            begun.push(Instant::now());
            let sql = "INSERT INTO waiting (n) VALUES (1)";
            client.send(com::QUERY, sql.as_bytes()).await?;
            tokio::time::sleep(LIMIT / 3).await;
        }
        for (client, begun) in clients.iter_mut().zip(begun) {
            let expect = Expect::Results { binary: false };
            let reply = client.read_reply(expect).await;
            let waited = begun.elapsed();
            let err = reply.err().context("there was a connection")?;
            ensure!(err.message.contains("pool.wait_timeout (900ms)"), "{err}");
            ensure!(waited >= LIMIT, "told after {waited:?}");
        }
    }
    holder.expect("COMMIT").await?;
    for client in &mut clients {
        client
            .expect("INSERT INTO waiting (n) VALUES (2)")
            .await
            .context("goes on")?;
    }
    Ok(())
}

/// Those who wait are served in the order in which they came.
pub(crate) async fn served_in_order(cluster: &Cluster) -> anyhow::Result<()> {
    // Who waits at one worker waits in order; workers do not wait for each other.
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"60s\"\n";
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, more).replace("workers = 2", "workers = 1");
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(Connection::open(&login).await?);
    }
    for sql in ["BEGIN", "DELETE FROM waiting"] {
        holder.expect(sql).await?;
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let sql = format!("INSERT INTO waiting (n) VALUES ({n})");
        client.send(com::QUERY, sql.as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    holder.expect("COMMIT").await?;
    for client in &mut clients {
        let expect = Expect::Results { binary: false };
        let reply = client.read_reply(expect).await;
        ensure!(reply.ok().is_some(), "{:?}", reply.render());
    }
    // Of the primary: what others wrote need not be on the replicas yet.
    let reply = holder
        .expect("SELECT GROUP_CONCAT(n ORDER BY id) FROM waiting FOR UPDATE")
        .await?;
    ensure!(
        reply.scalar().as_deref() == Some("0,1,2,3,4,5"),
        "{:?}",
        reply.scalar()
    );
    Ok(())
}

/// A connection that one worker no longer needs serves who waits at the other.
pub(crate) async fn between_workers(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"20s\"\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    // New clients go to the worker that has the fewest.
    let mut first = Connection::open(&login).await?;
    let mut second = Connection::open(&login).await?;
    first.expect(WAITING).await?;
    for n in 0..3 {
        for sql in ["BEGIN", "DELETE FROM waiting"] {
            first.expect(sql).await?;
        }
        let sql = format!("INSERT INTO waiting (n) VALUES ({n})");
        second.send(com::QUERY, sql.as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        first.expect("COMMIT").await?;
        let started = Instant::now();
        let expect = Expect::Results { binary: false };
        let reply = second.read_reply(expect).await;
        let (end, took) = (reply.render(), started.elapsed());
        ensure!(reply.ok().is_some(), "time {n}, after {took:?}: {end:?}");
        ensure!(took < Duration::from_secs(5), "time {n} took {took:?}");
        std::mem::swap(&mut first, &mut second);
    }
    Ok(())
}

/// A full queue refuses at once.
pub(crate) async fn queue_full(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"60s\"\nmax_waiting = 1\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    let (mut first, mut second) = (
        Connection::open(&login).await?,
        Connection::open(&login).await?,
    );
    for sql in ["BEGIN", "DELETE FROM waiting"] {
        holder.expect(sql).await?;
    }
    let sql = "INSERT INTO waiting (n) VALUES (1)";
    first.send(com::QUERY, sql.as_bytes()).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = Instant::now();
    let reply = second.query(sql).await;
    let err = reply.err().context("a second one waited")?;
    ensure!(err.message.contains("pool.max_waiting"), "{err}");
    ensure!(
        started.elapsed() < Duration::from_secs(30),
        "{:?}",
        started.elapsed()
    );
    holder.expect("COMMIT").await?;
    let expect = Expect::Results { binary: false };
    let reply = first.read_reply(expect).await;
    ensure!(reply.ok().is_some(), "{:?}", reply.render());
    Ok(())
}

/// A database that late replicas do not have, while the primary has no place free: its place is waited for,
/// whatever a replica says.
pub(crate) async fn late_while_full(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"20s\"\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let late = |seconds| async move {
        for replica in cluster.replicas() {
            cluster.delay_applier(&replica.name, seconds).await?;
        }
        anyhow::Ok(())
    };
    late(20).await?;
    let mut control = cluster.control(&cluster.primary().name).await?;
    for sql in [
        "CREATE DATABASE late_while_full",
        "CREATE TABLE late_while_full.t (n INT)",
        "GRANT ALL ON late_while_full.* TO 'app'@'%'",
    ] {
        control.run(sql).await?;
    }
    let mut holder = Connection::open(&login).await?;
    let mut outcome = Ok(());
    for sql in [
        "SET @me = 1, time_zone = '+01:00'",
        "SELECT @@time_zone, DATABASE()",
        "SELECT COUNT(*) FROM t",
        "SET autocommit = 0",
        "BEGIN",
        "USE late_while_full",
    ] {
        let mut client = Connection::open(&login.clone().database("late_while_full")).await?;
        for begin in ["BEGIN", "SELECT 1 FOR UPDATE"] {
            holder.expect(begin).await?;
        }
        client.send(com::QUERY, sql.as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        // A login asks the servers itself.
        let opening = Connection::try_open(&login.clone().database("late_while_full")).await;
        holder.expect("COMMIT").await?;
        let reply = client.read_reply(Expect::Results { binary: false }).await;
        if let Some(err) = reply.err() {
            outcome = Err(anyhow::anyhow!("{sql}: {err}"));
            break;
        }
        if let Some(err) = opening?.1.err() {
            outcome = Err(anyhow::anyhow!("login beside {sql}: {err}"));
            break;
        }
        client.quit().await;
    }
    late(0).await?;
    for sql in [
        "REVOKE ALL ON late_while_full.* FROM 'app'@'%'",
        "DROP DATABASE late_while_full",
    ] {
        control.run(sql).await?;
    }
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    outcome
}
