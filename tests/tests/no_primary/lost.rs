//! There is no primary: every server is read only, or it does not answer.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::{APP, Cluster, Family};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Expect, Param, com};

use crate::ground::{FOLLOWED, READY, app, gauge, proxy, toml, wait_fit};

/// What is served without a primary may take this long, on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(1500);
/// What keeps a connection waits for the primary for three seconds after its loss.
const PATIENCE: Duration = Duration::from_millis(3200);

/// Every server takes writes or reads as at the beginning.
pub(crate) async fn mend(cluster: &Cluster) -> anyhow::Result<()> {
    for server in cluster.servers() {
        if server.pid.is_none() {
            cluster.start(&server.name).await?;
        }
    }
    let primary = cluster.primary();
    cluster.set_read_only(&primary.name, false).await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await
}

/// The primary becomes read only, and the proxy has seen it.
async fn forbid_writes(cluster: &Cluster, proxy: &Proxy) -> anyhow::Result<()> {
    let primary = cluster.primary();
    cluster.set_read_only(&primary.name, true).await?;
    without_primary(proxy, primary.port).await
}

async fn without_primary(proxy: &Proxy, port: u16) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOLLOWED;
    while gauge(proxy, "millrace_server_primary", port).await? == Some(1.0) {
        ensure!(Instant::now() < deadline, "it is still the primary");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn at_once(connection: &mut Connection, sql: &str) -> anyhow::Result<Option<String>> {
    let begun = Instant::now();
    let reply = connection.query(sql).await;
    let took = begun.elapsed();
    if let Some(error) = reply.err() {
        bail!("{sql}: {error:?}");
    }
    ensure!(reply.broken().is_none(), "{sql}: {:?}", reply.render());
    ensure!(took < AT_ONCE, "{sql} took {took:?}");
    Ok(reply.scalar())
}

pub(crate) async fn all_read_only(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut old = Connection::open(&app(proxy.address())).await?;
    old.expect("CREATE TABLE IF NOT EXISTS kept (a INT)")
        .await?;
    old.expect("INSERT INTO kept VALUES (1)").await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    forbid_writes(cluster, &proxy).await?;
    let begun = Instant::now();
    let mut new = Connection::open(&app(proxy.address())).await?;
    ensure!(
        begun.elapsed() < AT_ONCE,
        "a login took {:?}",
        begun.elapsed()
    );
    for connection in [&mut old, &mut new] {
        without_one(cluster, connection).await?;
    }
    // What was set meanwhile holds where the session writes.
    cluster
        .set_read_only(&cluster.primary().name, false)
        .await?;
    for connection in [&mut old, &mut new] {
        connection
            .expect("INSERT INTO kept VALUES (@@auto_increment_increment)")
            .await?;
        for (sql, expected) in [
            ("SELECT @@time_zone FROM kept LIMIT 1", "+03:00"),
            ("SELECT @mine", "17"),
            ("SELECT @@group_concat_max_len", "4242"),
            ("SELECT @@autocommit", "1"),
            ("SELECT DATABASE()", "app"),
        ] {
            let reply = connection.expect(sql).await?;
            ensure!(
                reply.scalar().as_deref() == Some(expected),
                "{sql}: {:?}",
                reply.render()
            );
        }
    }
    Ok(())
}

/// The same where the primary does not answer, and no other has taken its place.
pub(crate) async fn killed(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut old = Connection::open(&app(proxy.address())).await?;
    for sql in [
        "CREATE TABLE IF NOT EXISTS kept (a INT)",
        "INSERT INTO kept VALUES (1)",
    ] {
        old.expect(sql).await?;
    }
    // Its login has to be one that a replica has as well.
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let primary = cluster.primary();
    cluster.kill(&primary.name).await?;
    without_primary(&proxy, primary.port).await?;
    let begun = Instant::now();
    let mut new = Connection::open(&app(proxy.address())).await?;
    let took = begun.elapsed();
    ensure!(took < AT_ONCE, "a login took {took:?}");
    for connection in [&mut old, &mut new] {
        without_one(cluster, connection).await?;
    }
    Ok(())
}

async fn without_one(cluster: &Cluster, connection: &mut Connection) -> anyhow::Result<()> {
    let version = at_once(connection, "SELECT @@version").await?;
    ensure!(version.is_some(), "no version");
    for sql in [
        "SET NAMES utf8mb4",
        "SET NAMES latin1 COLLATE latin1_german1_ci",
        "SET NAMES utf8mb4",
        "SET autocommit=1",
        "SET time_zone='+03:00'",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET group_concat_max_len=4242",
        "SET sql_mode=CONCAT(@@sql_mode,',NO_AUTO_VALUE_ON_ZERO')",
        "SET @mine = 17",
        "SELECT 18 INTO @other",
        "USE app",
        "SHOW VARIABLES LIKE 'character_set_client'",
        "SHOW SESSION STATUS LIKE 'Threads_connected'",
        "SHOW WARNINGS",
        "SHOW TABLES",
        "SHOW CREATE TABLE kept",
        "SELECT DATABASE(), USER(), CONNECTION_ID()",
        "PREPARE s FROM 'SELECT a + ? FROM kept'",
        "EXECUTE s USING @mine",
        "DEALLOCATE PREPARE s",
        "SELECT a FROM kept LIMIT 1",
        "SELECT * FROM information_schema.schemata",
        "START TRANSACTION READ ONLY",
        "SELECT COUNT(*) FROM kept",
        "COMMIT",
    ] {
        at_once(connection, sql).await?;
    }
    let zone = at_once(connection, "SELECT @@time_zone").await?;
    ensure!(zone.as_deref() == Some("+03:00"), "{zone:?}");
    let begun = Instant::now();
    let reply = connection
        .command(com::INIT_DB, b"app", Expect::Single)
        .await;
    ensure!(reply.err().is_none(), "COM_INIT_DB: {:?}", reply.render());
    let reply = connection
        .prepare(b"SELECT a, @@time_zone FROM kept WHERE a > ?")
        .await;
    let (id, _) = reply.statement_id().context("no statement")?;
    let reply = connection.execute(id, 0, &[Param::int(0)], true).await;
    ensure!(!reply.rows().is_empty(), "{:?}", reply.render());
    ensure!(begun.elapsed() < AT_ONCE * 2, "{:?}", begun.elapsed());

    // A transaction that only reads, begun as one that could write.
    let begun = Instant::now();
    for sql in ["BEGIN", "SELECT a FROM kept LIMIT 1"] {
        connection.expect(sql).await?;
    }
    let took = begun.elapsed();
    ensure!(took < PATIENCE + AT_ONCE, "BEGIN; SELECT took {took:?}");
    at_once(connection, "COMMIT").await?;
    connection.expect("SET autocommit=0").await?;
    at_once(connection, "SELECT a FROM kept LIMIT 1").await?;
    at_once(connection, "COMMIT").await?;
    at_once(connection, "SET autocommit=1").await?;

    let begun = Instant::now();
    let reply = connection
        .command(com::RESET_CONNECTION, b"", Expect::Single)
        .await;
    ensure!(reply.err().is_none(), "reset: {:?}", reply.render());
    let zone = at_once(connection, "SELECT @@time_zone").await?;
    ensure!(zone.as_deref() == Some("SYSTEM"), "after a reset: {zone:?}");
    let reply = connection
        .change_user(APP.user, APP.password, "app", 45)
        .await;
    ensure!(reply.err().is_none(), "change user: {:?}", reply.render());
    ensure!(begun.elapsed() < AT_ONCE * 2, "{:?}", begun.elapsed());
    for sql in ["SET time_zone='+03:00', @mine = 17, group_concat_max_len=4242"] {
        at_once(connection, sql).await?;
    }
    let _ = cluster;
    Ok(())
}

/// A transaction that has begun on a replica is run again on the primary before it writes, and tells
/// the client if that has other rows now.
pub(crate) async fn transactions_move(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // So that they begin elsewhere: a primary that has become read only would take reads.
    let primary = format!("127.0.0.1:{}\"\n", cluster.primary().port);
    let text = toml(&launch, cluster, "").replace(&primary, &format!("{primary}weight = 0\n"));
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    wait_fit(&proxy, cluster, cluster.replicas().len()).await?;
    let login = app(proxy.address());
    let [mut same, mut other, mut off] = [
        Connection::open(&login).await?,
        Connection::open(&login).await?,
        Connection::open(&login).await?,
    ];
    for sql in [
        "CREATE TABLE IF NOT EXISTS moved (id INT PRIMARY KEY, v INT)",
        "REPLACE INTO moved VALUES (1, 10), (2, 20), (3, 30)",
    ] {
        same.expect(sql).await?;
    }
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    forbid_writes(cluster, &proxy).await?;
    for (row, connection, begin) in [
        (1, &mut same, "BEGIN"),
        (2, &mut other, "START TRANSACTION"),
        (3, &mut off, "SET autocommit=0"),
    ] {
        connection.expect(begin).await?;
        let sql = format!("SELECT v FROM moved WHERE id={row}");
        let reply = connection.expect(&sql).await?;
        let expected = (row * 10).to_string();
        ensure!(reply.scalar() == Some(expected), "{:?}", reply.render());
    }
    // Somebody changes one of the rows before the transactions write.
    let mut control = cluster.control(&cluster.primary().name).await?;
    cluster
        .set_read_only(&cluster.primary().name, false)
        .await?;
    control.run("UPDATE app.moved SET v=21 WHERE id=2").await?;
    control.close().await;
    for (row, connection) in [(1, &mut same), (3, &mut off)] {
        let sql = format!("UPDATE moved SET v = v + 1 WHERE id={row}");
        connection.expect(&sql).await?;
        connection.expect("COMMIT").await?;
    }
    let reply = other.query("UPDATE moved SET v = v + 1 WHERE id=2").await;
    let error = reply
        .err()
        .context("it went on with a row that has changed")?;
    ensure!(error.code == 1213, "{error:?}");
    let reply = other
        .expect("SELECT GROUP_CONCAT(v ORDER BY id) FROM moved")
        .await?;
    ensure!(
        reply.scalar().as_deref() == Some("11,21,31"),
        "{:?}",
        reply.render()
    );
    Ok(())
}

/// What would keep a connection to a server that takes no writes waits for the primary.
pub(crate) async fn kept_waits(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[failover]\nhold_time = \"1s\"\n").await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    connection.expect("SELECT 1").await?;
    forbid_writes(cluster, &proxy).await?;
    for sql in [
        "SET rand_seed1=5",
        "SET @@transaction_isolation='SERIALIZABLE'",
        "SELECT GET_LOCK('a', 0)",
        "SELECT IS_FREE_LOCK('a')",
        "CREATE TEMPORARY TABLE t (a INT)",
        "INSERT INTO kept VALUES (5)",
        "SELECT * FROM kept FOR UPDATE",
    ] {
        let sql = match (cluster.family(), sql) {
            (Family::MariaDb, "SET @@transaction_isolation='SERIALIZABLE'") => {
                "SET @@tx_isolation='SERIALIZABLE'"
            }
            _ => sql,
        };
        let reply = connection.query(sql).await;
        let error = reply.err().context(format!("{sql} was not refused"))?;
        ensure!(
            error.code == 1105
                && error.message.contains("no primary is available")
                && error.message.contains("failover.hold_time"),
            "{sql}: {error:?}"
        );
        // The session goes on.
        at_once(&mut connection, "SELECT 1").await?;
    }
    Ok(())
}

/// Real drivers: each logs in as it does, reads, and sets what it likes to set.
pub(crate) async fn drivers_log_in(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    forbid_writes(cluster, &proxy).await?;
    let root = std::env::var("MILLRACE_CACHE").map_or_else(
        |_| PathBuf::from(std::env::var("HOME").unwrap_or_default()).join(".cache/millrace"),
        PathBuf::from,
    );
    let clients = root.join("clients");
    let python = clients.join("venv/bin/python");
    let modules = clients.join("node/node_modules");
    let scripts: [(&str, PathBuf, [&str; 2]); 3] = [
        ("pymysql", python.clone(), ["-c", PYMYSQL]),
        ("mysqlclient", python, ["-c", MYSQLCLIENT]),
        ("mysql2", PathBuf::from("/usr/bin/node"), ["-e", MYSQL2]),
    ];
    for (name, program, arguments) in scripts {
        if !program.exists() || (name == "mysql2" && !modules.exists()) {
            // Past the test runner's capture.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: {name} without a primary: it is not installed"
            );
            continue;
        }
        let begun = Instant::now();
        let ran = tokio::process::Command::new(&program)
            .args(arguments)
            .env("PORT", proxy.port.to_string())
            .env("DBUSER", APP.user)
            .env("DBPASSWORD", APP.password)
            .env("NODE_PATH", &modules)
            .output()
            .await?;
        ensure!(
            ran.status.success(),
            "{name}: {}{}",
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr)
        );
        println!("{name}: {:?}", begun.elapsed());
    }
    Ok(())
}

const PYMYSQL: &str = r"
import os, pymysql
for kw in ({}, {'autocommit': True}, {'init_command': 'SET SESSION sql_mode=ANSI_QUOTES'}):
    c = pymysql.connect(host='127.0.0.1', port=int(os.environ['PORT']), user=os.environ['DBUSER'],
        password=os.environ['DBPASSWORD'], database='app', connect_timeout=8, read_timeout=8, **kw)
    cur = c.cursor()
    cur.execute('SELECT port FROM place')
    assert cur.fetchone()[0] > 0
    c.commit(); c.ping(); c.select_db('app'); c.close()
";

const MYSQLCLIENT: &str = r#"
import os, MySQLdb
for kw in ({}, {'init_command': "SET SESSION time_zone='+00:00'", 'charset': 'utf8mb4'}):
    c = MySQLdb.connect(host='127.0.0.1', port=int(os.environ['PORT']), user=os.environ['DBUSER'],
        password=os.environ['DBPASSWORD'], database='app', connect_timeout=8, read_timeout=8, **kw)
    c.autocommit(True); c.autocommit(False)
    cur = c.cursor()
    cur.execute('SELECT port FROM place')
    assert cur.fetchone()[0] > 0
    c.rollback(); c.ping(); c.close()
"#;

const MYSQL2: &str = r"
const mysql = require('mysql2/promise');
(async () => {
  const c = await mysql.createConnection({host: '127.0.0.1', port: +process.env.PORT,
    user: process.env.DBUSER, password: process.env.DBPASSWORD, database: 'app', connectTimeout: 8000});
  await c.query('SET NAMES utf8mb4');
  await c.beginTransaction();
  const [rows] = await c.execute('SELECT port FROM place WHERE port > ?', [0]);
  if (!rows.length) throw new Error('no row');
  await c.commit(); await c.ping();
  await c.changeUser({user: process.env.DBUSER, password: process.env.DBPASSWORD, database: 'app'});
  await c.query('SELECT @@version, @@max_allowed_packet');
  await c.end();
})().catch(e => { console.error(e); process.exit(1); });
";
