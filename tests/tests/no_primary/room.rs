//! The primary's places are taken, or an account has as many connections as it may.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::Proxy;
use millrace_tests::wire::{Connection, Expect, Login, com};

use crate::ground::{FOLLOWED, app, gauge, proxy, tcp};

/// What finds a place elsewhere may take this long, on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(1500);
/// A question about the server waits for the primary for a second first.
const BRIEFLY: Duration = Duration::from_millis(2800);

/// Opens transactions that hold so many connections to the primary.
async fn take_places(login: &Login, count: usize) -> anyhow::Result<Vec<Connection>> {
    let mut holding = Vec::new();
    for number in 0..count {
        let mut connection = Connection::open(login).await?;
        connection.expect("BEGIN").await?;
        let sql = format!("INSERT INTO room VALUES ({number})");
        connection.expect(&sql).await?;
        holding.push(connection);
    }
    Ok(holding)
}

async fn table(cluster: &Cluster) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    control
        .run("CREATE TABLE IF NOT EXISTS app.room (a INT)")
        .await?;
    control.close().await;
    cluster.wait_replicas_caught_up(FOLLOWED).await
}

/// An account with limits, known to all servers.
async fn account(cluster: &Cluster, name: &str, limits: &str) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    for sql in [
        format!("DROP USER IF EXISTS {name}"),
        format!("CREATE USER {name} IDENTIFIED BY 'secret' WITH {limits}"),
        format!("GRANT ALL ON app.* TO {name}"),
    ] {
        control.run(&sql).await?;
    }
    control.close().await;
    cluster.wait_replicas_caught_up(FOLLOWED).await
}

fn limited(proxy: &Proxy, name: &str) -> Login {
    Login::new(proxy.address(), name, "secret").database("app")
}

/// Replicas' places serve logins and reads while the primary's are taken.
pub(crate) async fn places_taken(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster).await?;
    let proxy = proxy(
        cluster,
        "[pool]\nmax_connections = 3\nwait_timeout = \"20s\"\n",
    )
    .await?;
    let login = app(proxy.address());
    let holding = take_places(&login, 3).await?;
    let mut connection = Connection::open(&login).await?;
    for (sql, limit) in [
        ("SET NAMES utf8mb4", AT_ONCE),
        ("SET autocommit=1", AT_ONCE),
        ("SET time_zone='+05:00'", AT_ONCE),
        ("SELECT port FROM place", AT_ONCE),
        ("SELECT @@version", BRIEFLY),
        ("SHOW VARIABLES LIKE 'version'", BRIEFLY),
        ("USE app", AT_ONCE),
        ("PREPARE s FROM 'SELECT port FROM place'", AT_ONCE),
        ("EXECUTE s", AT_ONCE),
        ("SHOW WARNINGS", AT_ONCE),
    ] {
        let begun = Instant::now();
        connection.expect(sql).await?;
        let took = begun.elapsed();
        ensure!(took < limit, "{sql} took {took:?}");
    }
    let begun = Instant::now();
    for (command, body) in [(com::INIT_DB, &b"app"[..]), (com::RESET_CONNECTION, b"")] {
        let reply = connection.command(command, body, Expect::Single).await;
        ensure!(reply.err().is_none(), "{command}: {:?}", reply.render());
    }
    let mut second = Connection::open(&login).await?;
    second.expect("SELECT port FROM place").await?;
    ensure!(begun.elapsed() < AT_ONCE * 2, "{:?}", begun.elapsed());
    // What needs the primary waits for a place there, and has it when one comes free.
    connection
        .send(com::QUERY, b"INSERT INTO room VALUES (77)")
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for mut connection in holding {
        connection.expect("ROLLBACK").await?;
    }
    let reply = connection
        .read_reply(Expect::Results { binary: false })
        .await;
    ensure!(reply.ok().is_some(), "{:?}", reply.render());
    Ok(())
}

/// MAX_USER_CONNECTIONS is met as a pool that is full.
pub(crate) async fn account_full(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster).await?;
    account(cluster, "few", "MAX_USER_CONNECTIONS 2").await?;
    let proxy = proxy(cluster, "[pool]\nwait_timeout = \"20s\"\n").await?;
    let login = limited(&proxy, "few");
    let mut holding = take_places(&login, 2).await?;
    // Logins and reads have places elsewhere, and who needs the primary waits, in order.
    let mut waiting = Vec::new();
    for number in 10..13 {
        let begun = Instant::now();
        let mut connection = Connection::open(&login).await?;
        connection.expect("SELECT port FROM place").await?;
        ensure!(begun.elapsed() < BRIEFLY, "{:?}", begun.elapsed());
        let sql = format!("INSERT INTO room VALUES ({number})");
        connection.send(com::QUERY, sql.as_bytes()).await?;
        waiting.push(connection);
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut first = holding.remove(0);
    first.expect("COMMIT").await?;
    for mut connection in waiting {
        let begun = Instant::now();
        let reply = connection
            .read_reply(Expect::Results { binary: false })
            .await;
        ensure!(reply.ok().is_some(), "{:?}", reply.render());
        ensure!(begun.elapsed() < BRIEFLY, "{:?}", begun.elapsed());
    }
    Ok(())
}

/// And after pool.wait_timeout the client has the server's own error.
pub(crate) async fn account_full_for_long(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster).await?;
    account(cluster, "fewer", "MAX_USER_CONNECTIONS 1").await?;
    let proxy = proxy(cluster, "[pool]\nwait_timeout = \"1s\"\n").await?;
    let login = limited(&proxy, "fewer");
    let _holding = take_places(&login, 1).await?;
    let mut connection = Connection::open(&login).await?;
    let begun = Instant::now();
    let reply = connection.query("INSERT INTO room VALUES (5)").await;
    let error = reply.err().context("it was let in")?;
    ensure!(
        error.code == 1226 && error.message.contains("max_user_connections"),
        "{error:?}"
    );
    let took = begun.elapsed();
    ensure!(
        took >= Duration::from_millis(900) && took < BRIEFLY,
        "{took:?}"
    );
    connection.expect("SELECT port FROM place").await?;
    Ok(())
}

/// The server itself lets no more connections in.
pub(crate) async fn server_full(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster).await?;
    let primary = cluster.primary();
    let proxy = proxy(cluster, "[pool]\nwait_timeout = \"20s\"\n").await?;
    let login = app(proxy.address());
    let mut control = cluster.control(&primary.name).await?;
    let most: Option<String> = control.value("SELECT @@GLOBAL.max_connections").await?;
    let most = most.context("no limit")?;
    control.run("SET GLOBAL max_connections = 20").await?;
    let mut others = Vec::new();
    let direct = app(tcp(primary.port));
    while let Ok(other) = Connection::open(&direct).await {
        others.push(other);
        ensure!(others.len() < 40, "the limit does not hold");
    }
    let checked = async {
        let begun = Instant::now();
        let mut connection = Connection::open(&login).await?;
        connection.expect("SELECT port FROM place").await?;
        connection.expect("SET NAMES utf8mb4").await?;
        ensure!(begun.elapsed() < BRIEFLY, "{:?}", begun.elapsed());
        connection
            .send(com::QUERY, b"INSERT INTO room VALUES (6)")
            .await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        for _ in 0..2 {
            if let Some(other) = others.pop() {
                other.quit().await;
            }
        }
        let reply = connection
            .read_reply(Expect::Results { binary: false })
            .await;
        ensure!(reply.ok().is_some(), "{:?}", reply.render());
        Ok(())
    }
    .await;
    control
        .run(&format!("SET GLOBAL max_connections = {most}"))
        .await?;
    control.close().await;
    checked
}

/// A login costs one of MAX_CONNECTIONS_PER_HOUR, as it does directly, and the pools' connections are
/// few beside that.
pub(crate) async fn per_hour(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster).await?;
    account(cluster, "hourly", "MAX_CONNECTIONS_PER_HOUR 20").await?;
    let proxy = proxy(cluster, "").await?;
    let login = limited(&proxy, "hourly");
    let mut logins = 0;
    let error = loop {
        let (connection, reply) = Connection::try_open(&login).await?;
        let Some(mut connection) = connection else {
            break reply.err().cloned().context("no error")?;
        };
        logins += 1;
        ensure!(logins <= 20, "more than directly");
        let reply = connection.query("INSERT INTO room VALUES (8)").await;
        ensure!(
            reply.err().is_none(),
            "after {logins} logins: {:?}",
            reply.render()
        );
        connection.quit().await;
    };
    println!("{logins} logins of 20");
    ensure!(error.code == 1226, "{error:?}");
    ensure!(logins >= 14, "{logins} logins of 20");
    let _ = gauge(&proxy, "millrace_server_fit", cluster.primary().port).await?;
    Ok(())
}
