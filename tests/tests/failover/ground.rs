//! What the checks share: a proxy for a cluster, faults by hand, and questions to servers.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, MONITOR, ServerInfo};
use millrace_tests::cutter::{Cutter, Mode};
use millrace_tests::harness::{Launch, Proxy, free_port};
use millrace_tests::wire::{Connection, Login, Reply, Target};

const READY: Duration = Duration::from_secs(30);
/// The operator's password.
const OPERATOR: &str = "operator";
const FOLLOWED: Duration = Duration::from_secs(20);

/// Brings back what the last check left down; a server may still be on its way down.
pub(crate) async fn mend(cluster: &Cluster) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = try_mend(cluster).await {
        ensure!(
            Instant::now() < deadline,
            "the cluster stays broken: {error:#}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn try_mend(cluster: &Cluster) -> anyhow::Result<()> {
    for server in cluster.servers() {
        if server.pid.is_none() {
            cluster.start(&server.name).await?;
        }
    }
    for replica in cluster.replicas() {
        cluster.start_applier(&replica.name).await?;
    }
    let caught_up = cluster.wait_replicas_caught_up(FOLLOWED).await;
    // A primary that was killed under load may have what no replica had received: no source has that. MariaDB compares
    // numbers, so such a server may seem to have caught up.
    let strays = strays(cluster).await?;
    if strays.is_empty() {
        return caught_up;
    }
    for name in strays {
        cluster.rebuild(&name).await?;
    }
    cluster.wait_replicas_caught_up(FOLLOWED).await
}

/// The replicas whose source says that their history is another.
async fn strays(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let deadline = Instant::now() + FOLLOWED;
    loop {
        let statuses = cluster.status().await;
        let replicas: Vec<_> = statuses
            .into_iter()
            .filter_map(|status| Some((status.name, status.replication?)))
            .collect();
        if Instant::now() > deadline
            || replicas
                .iter()
                .all(|(_, status)| matches!(status.receiver.as_str(), "Yes" | "No"))
        {
            let is_stray = |error: &String| error.contains("error 1236");
            return Ok(replicas
                .into_iter()
                .filter(|(_, status)| status.last_error.as_ref().is_some_and(is_stray))
                .map(|(name, _)| name)
                .collect());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A proxy for the cluster, with further lines in its configuration.
pub(crate) async fn proxy(cluster: &Cluster, more: &str) -> anyhow::Result<Proxy> {
    let servers: Vec<u16> = cluster.servers().iter().map(|server| server.port).collect();
    proxy_for(&servers, 2, more).await
}

/// The same with one worker.
pub(crate) async fn proxy_of_one(cluster: &Cluster, more: &str) -> anyhow::Result<Proxy> {
    let servers: Vec<u16> = cluster.servers().iter().map(|server| server.port).collect();
    proxy_for(&servers, 1, more).await
}

/// A proxy with an operator's connection to it.
pub(crate) async fn proxy_with_operator(
    cluster: &Cluster,
    more: &str,
) -> anyhow::Result<(Proxy, Connection)> {
    let port = free_port()?;
    let admin = format!(
        "[admin]\nlisten = \"127.0.0.1:{port}\"\npassword_env = \"MILLRACE_ADMIN_PASSWORD\"\n{more}"
    );
    let proxy = proxy(cluster, &admin).await?;
    let target = Target::Tcp(format!("127.0.0.1:{port}"));
    let operator = Connection::open(&Login::new(target, "admin", OPERATOR)).await?;
    Ok((proxy, operator))
}

async fn proxy_for(ports: &[u16], workers: u32, more: &str) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?.env("MILLRACE_ADMIN_PASSWORD", OPERATOR);
    let servers: String = ports
        .iter()
        .map(|port| format!("[[server]]\naddress = \"127.0.0.1:{port}\"\n"))
        .collect();
    let text = format!(
        "workers = {workers}\n[[listen]]\naddress = \"127.0.0.1:{}\"\n{servers}\
         [monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\
         interval = \"200ms\"\n\
         [log]\nlevel = \"debug\"\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n{more}",
        launch.port, MONITOR.user, launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    Ok(proxy)
}

/// A proxy whose way to the primary can be cut.
pub(crate) async fn proxy_with_cutter(cluster: &Cluster) -> anyhow::Result<(Proxy, Cutter)> {
    let primary = cluster.primary();
    let cutter = Cutter::start(primary.port).await?;
    let mut ports: Vec<u16> = vec![cutter.port];
    ports.extend(cluster.replicas().iter().map(|replica| replica.port));
    Ok((proxy_for(&ports, 2, "").await?, cutter))
}

pub(crate) fn app(target: Target) -> Login {
    Login::new(target, APP.user, APP.password).database("app")
}

pub(crate) async fn client(proxy: &Proxy) -> anyhow::Result<Connection> {
    Ok(Connection::open(&app(proxy.address())).await?)
}

/// A table that the check alone uses, on all servers.
pub(crate) async fn table(cluster: &Cluster, definition: &str) -> anyhow::Result<()> {
    let name = definition.split_whitespace().next().context("no name")?;
    let mut control = cluster.control(&cluster.primary().name).await?;
    control
        .run(&format!("DROP TABLE IF EXISTS app.{name}"))
        .await?;
    control
        .run(&format!("CREATE TABLE app.{definition}"))
        .await?;
    control.close().await;
    cluster.wait_replicas_caught_up(FOLLOWED).await
}

/// Kills the primary once the replicas have all that it has, and answers which replica is to take
/// over.
pub(crate) async fn kill(cluster: &Cluster) -> anyhow::Result<ServerInfo> {
    let next = next(cluster)?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let old = cluster.primary();
    cluster.kill(&old.name).await?;
    // A process is gone when its first thread is; its sockets, when its last is.
    while tokio::net::TcpStream::connect(("127.0.0.1", old.port))
        .await
        .is_ok()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(next)
}

/// The replica that takes over next.
pub(crate) fn next(cluster: &Cluster) -> anyhow::Result<ServerInfo> {
    cluster.replicas().first().cloned().context("no replica")
}

/// Kills the primary and has a replica take over.
pub(crate) async fn fail_over(cluster: &Cluster) -> anyhow::Result<ServerInfo> {
    let next = kill(cluster).await?;
    cluster.promote(&next.name).await?;
    Ok(next)
}

/// What the present primary answers, asked directly.
pub(crate) async fn ask(cluster: &Cluster, question: &str) -> anyhow::Result<String> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    let answer = control.value(question).await?;
    control.close().await;
    Ok(answer.unwrap_or_else(|| "NULL".to_owned()))
}

/// Runs a statement on the present primary, directly.
pub(crate) async fn run(cluster: &Cluster, statement: &str) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    control.run(statement).await?;
    control.close().await;
    Ok(())
}

/// The value of a metric without labels, or with these.
pub(crate) async fn metric(proxy: &Proxy, name: &str) -> anyhow::Result<f64> {
    let metrics = proxy.metrics().await?;
    let start = format!("{name} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    Ok(line.with_context(|| format!("no {name}"))?.parse()?)
}

/// Waits until so many statements wait for a server.
pub(crate) async fn wait_held(proxy: &Proxy, held: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOLLOWED;
    loop {
        let now = metric(proxy, "millrace_statements_held").await?;
        if now == held as f64 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{now} statements wait instead of {held}; {}",
            proxy.log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The error of a reply that must be one.
pub(crate) fn error_of(reply: &Reply) -> anyhow::Result<(u16, String, String)> {
    let err = reply
        .err()
        .with_context(|| format!("no error: {:?}", reply.render()))?;
    Ok((err.code, err.state.clone(), err.message.clone()))
}

/// The reply must be an error of this number and SQLSTATE.
pub(crate) fn ensure_error(reply: &Reply, code: u16, state: &str) -> anyhow::Result<String> {
    let (got, got_state, message) = error_of(reply)?;
    ensure!(
        (got, got_state.as_str()) == (code, state),
        "{got} ({got_state}) {message} instead of {code} ({state})"
    );
    Ok(message)
}

/// The one value of a reply.
pub(crate) async fn scalar(client: &mut Connection, sql: &str) -> anyhow::Result<String> {
    let reply = client.expect(sql).await?;
    Ok(reply.scalar().unwrap_or_else(|| "NULL".to_owned()))
}

/// Runs both to their end.
pub(crate) async fn both<A, B>(
    a: impl Future<Output = anyhow::Result<A>>,
    b: impl Future<Output = anyhow::Result<B>>,
) -> anyhow::Result<(A, B)> {
    tokio::try_join!(a, b)
}

/// Cuts the answers of the primary for a moment.
pub(crate) async fn cut_for_a_moment(cutter: &Cutter) -> anyhow::Result<()> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    cutter.set(Mode::Forward);
    Ok(())
}

/// Some time for a statement to get to its server.
pub(crate) async fn soon() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}
