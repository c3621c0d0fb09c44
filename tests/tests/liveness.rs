//! Connections that die without a word, are closed by their server, or end: what clients and servers
//! see of it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::{Cluster, ClusterSpec, skip_unless};
use millrace_tests::differential::script::Family;
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::netns;
use millrace_tests::wire::{Connection, Expect, Login, Target, com};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const FAMILIES: [Family; 2] = [Family::MariaDb, Family::MySql];

/// Dead connections are known after some 3 s; idle ones are asked after 1 s.
const QUICK: &str = "[tcp]\nkeepalive_idle = \"1s\"\nkeepalive_interval = \"1s\"\nuser_timeout = \"3s\"\n\
     [server_tcp]\nkeepalive_idle = \"1s\"\nkeepalive_interval = \"1s\"\nuser_timeout = \"3s\"\n";

fn app(address: &Target) -> Login {
    let mut login = Login::new(address.clone(), "app", "app-secret").database("app");
    login.timeout = Duration::from_secs(20);
    login
}

async fn admin(stage: &Stage, server: usize) -> anyhow::Result<Connection> {
    let port = stage.cluster.servers()[server].port;
    Ok(Connection::open(&harness::admin(port)).await?)
}

fn is_here(family: Family, what: &str) -> bool {
    skip_unless(family, what) && !harness::direct_only()
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// The ports from which the application's account is connected to a server.
async fn app_ports(control: &mut Connection) -> anyhow::Result<Vec<u16>> {
    let sql = "SELECT HOST FROM information_schema.PROCESSLIST WHERE USER='app'";
    let reply = control.expect(sql).await?;
    let rows = reply.rows();
    let ports = rows.iter().filter_map(|row| {
        let host = row.first()?.as_deref()?;
        host.rsplit_once(':')?.1.parse().ok()
    });
    Ok(ports.collect())
}

/// MySQL says why it closes a connection that nobody uses, and MariaDB closes it: that is never the
/// answer to anything.
async fn closed_by_wait_timeout(family: Family) -> anyhow::Result<()> {
    let options = ProxyOptions {
        workers: Some(1),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 1, &options).await?;
    for server in 0..2 {
        let mut control = admin(&stage, server).await?;
        control.expect("SET GLOBAL wait_timeout=2").await?;
    }
    let mut kept = Connection::open(&app(&stage.address)).await?;
    kept.expect("CREATE TABLE idle_t (a INT PRIMARY KEY)")
        .await?;
    for n in 0..4 {
        pause([3500, 2010, 2500, 1990][n]).await;
        let mut new = Connection::open(&app(&stage.address))
            .await
            .with_context(|| format!("login {n}"))?;
        let insert = format!("INSERT INTO idle_t VALUES ({n})");
        kept.expect(&insert).await?;
        let count = new.expect("SELECT COUNT(*) FROM idle_t").await?.scalar();
        let reads = kept.expect("SELECT COUNT(*) FROM idle_t").await?.scalar();
        ensure!(
            reads == Some(format!("{}", n + 1)),
            "{count:?} {reads:?} after {n}"
        );
        new.quit().await;
    }
    Ok(())
}

/// A server that ends a transaction because its client was idle ends its session, as without Millrace.
async fn idle_transaction(family: Family) -> anyhow::Result<()> {
    if family == Family::MariaDb {
        // It says nothing.
        return Ok(());
    }
    let stage = Stage::start(family, 0, &ProxyOptions::default()).await?;
    let mut control = admin(&stage, 0).await?;
    control.expect("CREATE TABLE app.kept (a INT)").await?;
    control.expect("SET GLOBAL wait_timeout=1").await?;
    let direct = Target::Tcp(format!("127.0.0.1:{}", stage.cluster.primary().port));
    for address in [&direct, &stage.address] {
        let mut client = Connection::open(&app(address)).await?;
        client.expect("BEGIN").await?;
        client.expect("INSERT INTO kept VALUES (1)").await?;
        pause(2500).await;
        let reply = client.query("SELECT 1").await;
        let code = reply.err().map(|error| error.code);
        ensure!(code == Some(4031), "{address:?}: {:?}", reply.render());
        let reply = client.query("SELECT 1").await;
        ensure!(
            reply.broken().is_some(),
            "{address:?}: {:?}",
            reply.render()
        );
    }
    let count = control.expect("SELECT COUNT(*) FROM app.kept").await?;
    ensure!(count.scalar().as_deref() == Some("0"), "it was committed");
    Ok(())
}

async fn aborted(control: &mut Connection) -> anyhow::Result<u64> {
    let reply = control
        .expect("SHOW GLOBAL STATUS LIKE 'Aborted_clients'")
        .await?;
    let rows = reply.rows();
    let value = rows.first().and_then(|row| row.get(1)?.clone());
    Ok(value.context("no Aborted_clients")?.parse()?)
}

fn aborted_lines(stage: &Stage, server: usize) -> Vec<String> {
    let log = std::fs::read(&stage.cluster.servers()[server].log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let lines = log.lines().filter(|it| it.contains("Aborted conn"));
    lines.map(str::to_owned).collect()
}

/// The follower's stream of the log, as the server's log names its connection when that ends. A server reads no command on
/// it: it counts the end of any replica's as an aborted connection (observed on MySQL 9.7 and MariaDB 10.11).
async fn log_stream(control: &mut Connection) -> anyhow::Result<String> {
    let asked = "SELECT ID FROM information_schema.processlist WHERE USER = 'millrace_monitor' \
                 AND COMMAND LIKE 'Binlog Dump%'";
    let reply = control.expect(asked).await?;
    let id = reply.scalar().context("no stream of the log")?;
    Ok(format!(" {id} to db: "))
}

/// Connections to servers end with COM_QUIT: idle ones, those of clients that leave in the middle of
/// something, the monitor's, and all of them at the end.
async fn takes_its_leave(family: Family, extra: &str) -> anyhow::Result<()> {
    let options = ProxyOptions {
        extra: extra.to_owned(),
        ..ProxyOptions::default()
    };
    let mut stage = Stage::start(family, 1, &options).await?;
    let mut controls = [admin(&stage, 0).await?, admin(&stage, 1).await?];
    let mut before = Vec::new();
    for control in &mut controls {
        if family == Family::MySql {
            // The log says whose connections were aborted.
            control.expect("SET GLOBAL log_error_verbosity = 3").await?;
        }
        before.push(aborted(control).await?);
    }
    let mut first = Connection::open(&app(&stage.address)).await?;
    first.expect("CREATE TABLE leave_t (a INT)").await?;
    for n in 0..6 {
        let mut client = Connection::open(&app(&stage.address)).await?;
        client.expect("SELECT * FROM leave_t").await?;
        match n % 3 {
            0 => {
                client.expect("BEGIN").await?;
                client.expect("INSERT INTO leave_t VALUES (1)").await?;
            }
            1 => {
                client.expect("CREATE TEMPORARY TABLE x (a INT)").await?;
            }
            _ => {
                client.expect("SET @x=1, time_zone='+01:00'").await?;
                client.expect("SELECT CAST('x' AS UNSIGNED)").await?;
            }
        }
        match n < 3 {
            true => client.quit().await,
            false => drop(client),
        }
    }
    // Some wait too long, and are closed.
    pause(3500).await;
    first.expect("SELECT * FROM leave_t").await?;
    first.quit().await;
    // Whatever the monitor asks the replica meanwhile has no answer when Millrace ends.
    let replica = stage.cluster.servers()[1].name.clone();
    stage.cluster.pause(&replica).await?;
    pause(700).await;
    let stream = log_stream(&mut controls[0]).await?;
    let proxy = stage.proxy.as_mut().context("no proxy")?;
    proxy.terminate(Duration::from_secs(10)).await?;
    stage.cluster.resume(&replica).await?;
    pause(500).await;
    for (at, control) in controls.iter_mut().enumerate() {
        let now = aborted(control).await?;
        let mut lines = aborted_lines(&stage, at);
        let all = lines.len();
        lines.retain(|line| at > 0 || !line.contains(&stream));
        let streams = (all - lines.len()) as u64;
        ensure!(
            now == before[at] + streams,
            "server {at}: {} connections were aborted: {lines:#?}",
            now - before[at] - streams
        );
    }
    Ok(())
}

/// A client that speaks something else gets an error that says so, and the log has a line.
async fn strangers(family: Family) -> anyhow::Result<()> {
    let stage = Stage::start(family, 0, &ProxyOptions::default()).await?;
    let Target::Tcp(address) = &stage.address else {
        bail!("not TCP");
    };
    for (first, name) in [
        (&b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"[..], "PROXY"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", "PostgreSQL"),
        (b"\xde\xad\xbe\xef\xde\xad\xbe\xef", "something else"),
    ] {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(first).await?;
        let mut said = Vec::new();
        // It is closed after the error.
        let reading = stream.read_to_end(&mut said);
        tokio::time::timeout(Duration::from_secs(5), reading).await??;
        let length = 4 + said.first().map_or(0, |byte| usize::from(*byte));
        let error = said.get(length..).unwrap_or_default();
        let is_error = error.get(3..7) == Some(&[2, 0xff, 0x13, 0x04]);
        let text = String::from_utf8_lossy(error).into_owned();
        ensure!(is_error && text.contains(name), "{name}: {text:?}");
    }
    let proxy = stage.proxy.as_ref().context("no proxy")?;
    let log = std::fs::read_to_string(proxy.log_path())?;
    let lines = log
        .lines()
        .filter(|it| it.contains("does not speak the MySQL"));
    let count = lines.count();
    ensure!(count == 1, "{count} lines in the log: {log}");
    Connection::open(&app(&stage.address)).await?.quit().await;
    Ok(())
}

/// A client that leaves while its statement is prepared, or waits for a connection, is noticed.
async fn gone_while_it_waits(family: Family) -> anyhow::Result<()> {
    let options = ProxyOptions {
        pool_max: 2,
        pool_wait: Duration::from_secs(60),
        workers: Some(1),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 0, &options).await?;
    let mut control = admin(&stage, 0).await?;
    control.expect("CREATE TABLE app.locked (a INT)").await?;
    // Prepared on one connection; executed on another it has to be prepared there.
    let mut holder = Connection::open(&app(&stage.address)).await?;
    let mut client = Connection::open(&app(&stage.address)).await?;
    let prepared = client.prepare(b"SELECT * FROM locked").await;
    let (id, _) = prepared.statement_id().context("not prepared")?;
    holder.expect("BEGIN").await?;
    holder.expect("INSERT INTO locked VALUES (1)").await?;
    let mut locker = admin(&stage, 0).await?;
    holder.expect("COMMIT").await?;
    holder.expect("BEGIN").await?;
    holder.expect("SELECT 1").await?;
    locker.expect("LOCK TABLES app.locked WRITE").await?;
    let body = client.execute_body(id, 0, &[], false);
    client.send(com::STMT_EXECUTE, &body).await?;
    let mut queued = Connection::open(&app(&stage.address)).await?;
    pause(300).await;
    queued.send(com::QUERY, b"SELECT * FROM locked").await?;
    pause(300).await;
    drop(client);
    drop(queued);
    // Both have made room, though the lock is still there.
    let mut other = Connection::open(&app(&stage.address)).await?;
    let begun = Instant::now();
    let reply = other.query("SELECT 7").await;
    let took = begun.elapsed();
    ensure!(
        reply.scalar().as_deref() == Some("7") && took < Duration::from_secs(6),
        "after {took:?}: {:?}",
        reply.render()
    );
    locker.expect("UNLOCK TABLES").await?;
    holder.expect("COMMIT").await?;
    Ok(())
}

/// A client of a Unix socket that sends no more, and waits for its answer, gets it; one that closed it is gone.
async fn half_closed(family: Family) -> anyhow::Result<()> {
    let socket = std::env::temp_dir().join(format!("millrace-half-{}", std::process::id()));
    let options = ProxyOptions {
        workers: Some(1),
        extra: format!("[[listen]]\naddress = \"{}\"\n", socket.display()),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 0, &options).await?;
    let mut control = admin(&stage, 0).await?;
    control.expect("CREATE TABLE app.half (a INT)").await?;
    let direct = Target::Unix(stage.cluster.primary().socket);
    let slow = b"SELECT IF(SLEEP(4), 0, 'slept')";
    for target in [direct, Target::Unix(socket.clone())] {
        let mut client = Connection::open(&app(&target)).await?;
        client.expect("BEGIN").await?;
        client.expect("INSERT INTO half VALUES (1)").await?;
        client.send(com::QUERY, slow).await?;
        client.send_no_more().await?;
        let reply = client.read_reply(Expect::Results { binary: false }).await;
        ensure!(
            reply.scalar().as_deref() == Some("slept"),
            "{target:?}: {:?}",
            reply.render()
        );
        // Then it is gone, and its transaction with it.
        let begun = Instant::now();
        control.expect("LOCK TABLES app.half WRITE").await?;
        let took = begun.elapsed();
        ensure!(took < Duration::from_secs(2), "locked for {took:?}");
        let reply = control.expect("SELECT COUNT(*) FROM app.half").await?;
        ensure!(reply.scalar().as_deref() == Some("0"), "not rolled back");
        control.expect("UNLOCK TABLES").await?;
    }
    let mut client = Connection::open(&app(&Target::Unix(socket))).await?;
    client.expect("BEGIN").await?;
    client.expect("INSERT INTO half VALUES (1)").await?;
    client.send(com::QUERY, slow).await?;
    drop(client);
    pause(300).await;
    let begun = Instant::now();
    let proxy = stage.proxy.as_ref().context("no proxy")?;
    while !proxy.metrics().await?.contains("millrace_clients 0\n") {
        ensure!(begun.elapsed() < Duration::from_millis(3500), "still there");
        pause(100).await;
    }
    Ok(())
}

/// A DBA finds Millrace's connections by their attributes.
async fn attributes(family: Family) -> anyhow::Result<()> {
    let mut spec = ClusterSpec::new(family);
    spec.replicas = 0;
    spec.extra_args.push("--performance-schema=ON".to_owned());
    let mut stage = Stage {
        family,
        proxy: None,
        cluster: Cluster::up(spec).await?,
        address: Target::Tcp(String::new()),
    };
    stage.start_proxy(&ProxyOptions::default()).await?;
    let mut client = Connection::open(&app(&stage.address)).await?;
    client.expect("SELECT 1").await?;
    let mut control = admin(&stage, 0).await?;
    let sql = "SELECT DISTINCT processlist_user, attr_value \
               FROM performance_schema.session_connect_attrs \
               JOIN performance_schema.threads USING (processlist_id) \
               WHERE attr_name='program_name' AND attr_value='millrace' ORDER BY 1";
    let reply = control.expect(sql).await?;
    let users: Vec<_> = reply.rows().iter().map(|row| row[0].clone()).collect();
    let expected = [Some("app".to_owned()), Some("millrace_monitor".to_owned())];
    ensure!(users == expected, "{:?}", reply.render());
    Ok(())
}

/// A server's path drops the packets of connections that stand, and new ones get through.
async fn lost_paths(family: Family) -> anyhow::Result<()> {
    let options = ProxyOptions {
        pool_max: 6,
        workers: Some(1),
        extra: QUICK.to_owned(),
        ..ProxyOptions::default()
    };
    let mut stage = Stage::start(family, 1, &options).await?;
    let log = |stage: &mut Stage| stage.proxy.as_ref().map(|proxy| proxy.log());
    let mut client = Connection::open(&app(&stage.address)).await?;
    client
        .expect("CREATE TABLE lost_t (a INT PRIMARY KEY)")
        .await?;
    client.expect("INSERT INTO lost_t VALUES (1)").await?;
    let replica = stage.cluster.servers()[1].port;
    let mut controls = [admin(&stage, 0).await?, admin(&stage, 1).await?];
    let begun = Instant::now();
    let ports = loop {
        client.expect("SELECT a FROM lost_t").await?;
        let ports = app_ports(&mut controls[1]).await?;
        if !ports.is_empty() {
            break ports;
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(15),
            "no read goes to the replica"
        );
        pause(100).await;
    };
    netns::drop_flows(replica, &ports)?;
    let begun = Instant::now();
    let reply = client.expect("SELECT a FROM lost_t").await;
    let took = begun.elapsed();
    let reply = reply.with_context(|| format!("a read on a lost path, {:?}", log(&mut stage)))?;
    ensure!(
        reply.scalar().as_deref() == Some("1"),
        "{:?}",
        reply.render()
    );
    ensure!(took < Duration::from_secs(6), "the read took {took:?}");
    eprintln!("{family}: a read on a lost path took {took:.1?}");
    // A write, right on a lost path: its outcome is unknown, and that is told in time.
    client.expect("UPDATE lost_t SET a=1").await?;
    let primary = stage.cluster.primary().port;
    netns::drop_flows(primary, &app_ports(&mut controls[0]).await?)?;
    let begun = Instant::now();
    let reply = client.query("INSERT INTO lost_t VALUES (2)").await;
    let took = begun.elapsed();
    let code = reply.err().map(|error| error.code);
    ensure!(
        code == Some(1180) && took < Duration::from_secs(6),
        "after {took:?}: {:?}",
        reply.render()
    );
    eprintln!("{family}: a write on a lost path took {took:.1?}");
    // The next has a connection that works.
    client.expect("INSERT INTO lost_t VALUES (3)").await?;
    let reply = client.expect("SELECT COUNT(*) FROM lost_t").await?;
    ensure!(
        reply.scalar().as_deref() == Some("2"),
        "{:?}",
        reply.render()
    );
    Ok(())
}

/// A connection that was idle for long is asked for a sign of life before a write is trusted to it.
async fn idle_path(family: Family) -> anyhow::Result<()> {
    // The kernel does not look by itself.
    let extra = "[server_tcp]\nkeepalive_idle = 0\nuser_timeout = \"30s\"\n";
    let options = ProxyOptions {
        pool_max: 6,
        workers: Some(1),
        extra: extra.to_owned(),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 0, &options).await?;
    let mut client = Connection::open(&app(&stage.address)).await?;
    client
        .expect("CREATE TABLE idle_p (a INT PRIMARY KEY)")
        .await?;
    client.expect("INSERT INTO idle_p VALUES (1)").await?;
    let mut control = admin(&stage, 0).await?;
    let port = stage.cluster.primary().port;
    pause(12_000).await;
    netns::drop_flows(port, &app_ports(&mut control).await?)?;
    let begun = Instant::now();
    client.expect("INSERT INTO idle_p VALUES (2)").await?;
    let took = begun.elapsed();
    ensure!(took < Duration::from_secs(6), "the write took {took:?}");
    eprintln!("{family}: a write after a long idle time took {took:.1?}");
    let reply = control.expect("SELECT COUNT(*) FROM app.idle_p").await?;
    ensure!(
        reply.scalar().as_deref() == Some("2"),
        "{:?}",
        reply.render()
    );
    Ok(())
}

/// A client whose host is gone: its transaction ends, and its locks with it.
async fn vanished_client(family: Family) -> anyhow::Result<()> {
    let options = ProxyOptions {
        pool_max: 6,
        workers: Some(1),
        extra: QUICK.to_owned(),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 0, &options).await?;
    let mut client = Connection::open(&app(&stage.address)).await?;
    client
        .expect("CREATE TABLE locks_t (a INT PRIMARY KEY)")
        .await?;
    client.expect("INSERT INTO locks_t VALUES (1)").await?;
    let Target::Tcp(address) = &stage.address else {
        bail!("not TCP");
    };
    let from = Target::TcpFrom([127, 0, 0, 9].into(), address.parse()?);
    for idle in [true, false] {
        let address = if idle { "127.0.0.9" } else { "127.0.0.8" };
        let from = match idle {
            true => from.clone(),
            false => Target::TcpFrom([127, 0, 0, 8].into(), stage_address(&stage)?),
        };
        let mut gone = Connection::open(&app(&from)).await?;
        gone.expect("BEGIN").await?;
        gone.expect("SELECT * FROM locks_t FOR UPDATE").await?;
        if !idle {
            // It vanishes while it is sent an answer.
            gone.send(com::QUERY, b"SELECT SLEEP(1), REPEAT('x', 100)")
                .await?;
            pause(200).await;
        }
        netns::drop_host(address)?;
        let begun = Instant::now();
        client.expect("UPDATE locks_t SET a=a+1").await?;
        let took = begun.elapsed();
        ensure!(
            took < Duration::from_secs(8),
            "locks were held for {took:?}"
        );
        eprintln!("{family}: a vanished client's locks were held for {took:.1?}");
        std::mem::forget(gone);
    }
    Ok(())
}

fn stage_address(stage: &Stage) -> anyhow::Result<std::net::SocketAddr> {
    match &stage.address {
        Target::Tcp(address) => Ok(address.parse()?),
        _ => bail!("not TCP"),
    }
}

macro_rules! checks {
    ($($name:ident: $check:expr;)*) => {$(
        #[tokio::test]
        async fn $name() -> anyhow::Result<()> {
            for family in FAMILIES {
                if is_here(family, stringify!($name)) {
                    $check(family).await.with_context(|| family.to_string())?;
                }
            }
            Ok(())
        }
    )*};
}

checks! {
    connections_closed_by_wait_timeout: closed_by_wait_timeout;
    transactions_ended_by_wait_timeout: idle_transaction;
    clients_that_speak_something_else: strangers;
    clients_gone_while_they_wait: gone_while_it_waits;
    clients_that_send_no_more: half_closed;
    connection_attributes: attributes;
}

/// Two of its servers close what is idle for a second.
#[tokio::test]
async fn connections_end_with_com_quit() -> anyhow::Result<()> {
    for family in FAMILIES {
        if is_here(family, "connections that end") {
            for extra in ["", "[server_tls]\nmode = \"preferred\"\n"] {
                takes_its_leave(family, extra)
                    .await
                    .with_context(|| format!("{family}, {extra:?}"))?;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn packets_dropped() -> anyhow::Result<()> {
    if !FAMILIES
        .iter()
        .any(|family| is_here(*family, "packets dropped"))
        || !netns::enter("packets_dropped")?
    {
        return Ok(());
    }
    let family = Family::MariaDb;
    lost_paths(family).await?;
    vanished_client(family).await?;
    idle_path(family).await?;
    if is_here(Family::MySql, "packets dropped") {
        lost_paths(Family::MySql).await?;
    }
    Ok(())
}
