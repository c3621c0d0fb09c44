//! What the checks share: a proxy for a cluster, and how to see which server ran a read.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, Family, MONITOR};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login, Target};

pub(crate) const READY: Duration = Duration::from_secs(30);
/// The longest that following the servers may take: probes come once a second, and the machine
/// that this runs on may be slow.
pub(crate) const FOLLOWED: Duration = Duration::from_secs(20);

/// A read that tells which server ran it, see [`mark`].
pub(crate) const QUICK: &str = "SELECT port FROM app.place";
/// The same, long enough to be under way when its server goes.
pub(crate) const SLOW: &str = "SELECT port, SLEEP(0.1) FROM app.place";

/// Gives every server a row of its own. What a server says of itself (`@@port`) will not do: the
/// primary is asked for that.
pub(crate) async fn mark(cluster: &Cluster) -> anyhow::Result<()> {
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        let mysql = cluster.family() == Family::MySql;
        let locked = mysql && server.port != cluster.primary().port;
        if locked {
            control.run("SET GLOBAL super_read_only=OFF").await?;
        }
        for sql in [
            "SET sql_log_bin=0",
            "CREATE TABLE app.place (port INT)",
            "INSERT INTO app.place VALUES (@@port)",
        ] {
            control.run(sql).await?;
        }
        if locked {
            control.run("SET GLOBAL super_read_only=ON").await?;
        }
        control.close().await;
    }
    Ok(())
}

/// A configuration for the whole cluster with further lines.
pub(crate) fn toml(launch: &Launch, cluster: &Cluster, more: &str) -> String {
    let servers: String = cluster
        .servers()
        .iter()
        .map(|s| format!("[[server]]\naddress = \"127.0.0.1:{}\"\n", s.port))
        .collect();
    format!(
        "workers = 2\n[[listen]]\naddress = \"127.0.0.1:{}\"\n{servers}\
         [monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n{more}",
        launch.port, MONITOR.user, launch.http_port
    )
}

pub(crate) async fn proxy(cluster: &Cluster, more: &str) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, more);
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    wait_fit(&proxy, cluster, running_replicas(cluster)).await?;
    Ok(proxy)
}

pub(crate) fn running_replicas(cluster: &Cluster) -> usize {
    let replicas = cluster.replicas();
    replicas.iter().filter(|r| r.pid.is_some()).count()
}

pub(crate) fn app(target: Target) -> Login {
    Login::new(target, APP.user, APP.password).database("app")
}

pub(crate) fn tcp(port: u16) -> Target {
    Target::Tcp(format!("127.0.0.1:{port}"))
}

/// The server that runs this statement, by its port.
pub(crate) async fn port_of(connection: &mut Connection) -> anyhow::Result<u16> {
    let reply = connection.expect(QUICK).await?;
    Ok(reply.scalar().context("no port")?.parse()?)
}

/// The servers that run so many reads of a client.
pub(crate) async fn ports_of(
    connection: &mut Connection,
    times: usize,
) -> anyhow::Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for _ in 0..times {
        ports.insert(port_of(connection).await?);
        // A session moves on when it has become known how far the servers are.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(ports)
}

pub(crate) fn replica_ports(cluster: &Cluster) -> BTreeSet<u16> {
    cluster.replicas().iter().map(|r| r.port).collect()
}

pub(crate) async fn gauge(proxy: &Proxy, name: &str, port: u16) -> anyhow::Result<Option<f64>> {
    let metrics = proxy.metrics().await?;
    let start = format!("{name}{{server=\"127.0.0.1:{port}\"}} ");
    let line = metrics.lines().find_map(|l| l.strip_prefix(&start));
    Ok(line.map(str::parse).transpose()?)
}

/// Waits until so many replicas take reads.
pub(crate) async fn wait_fit(
    proxy: &Proxy,
    cluster: &Cluster,
    replicas: usize,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOLLOWED;
    loop {
        let mut fit = 0;
        for port in replica_ports(cluster) {
            fit += usize::from(gauge(proxy, "millrace_server_fit", port).await? == Some(1.0));
        }
        if fit == replicas {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{fit} replicas take reads instead of {replicas}; log: {}",
            proxy.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
