//! How soon a lost primary is known as lost, that a living one is not, and that no server is taken for
//! the primary that may not be it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::{ADMIN, APP, Cluster, Family};
use millrace_tests::checks::Checks;
use millrace_tests::cutter::{Cutter, Mode};
use millrace_tests::harness::{Proxy, ProxyOptions};
use millrace_tests::wire::{Connection, Login};
use rustix::process::Signal;

use crate::view::{Eye, FOUND, View, address, port, ports, server};

/// A killed primary is known as lost within this.
const KILLED: Duration = Duration::from_secs(1);
/// One that hangs, within this.
const HUNG: Duration = Duration::from_secs(3);
/// A server that says that it takes writes now is believed within this.
const ELECTED: Duration = Duration::from_millis(500);

pub(crate) async fn run(checks: &mut Checks, cluster: &Cluster) {
    checks.run("killed", killed(cluster)).await;
    checks.run("hung", hung(cluster)).await;
    checks.run("unreachable", unreachable(cluster)).await;
    checks.run("no flapping", no_flapping(cluster)).await;
    checks.run("switchover", switchover(cluster)).await;
    checks.run("two writable", two_writable(cluster)).await;
    checks
        .run("another server_id", another_server_id(cluster))
        .await;
}

fn lost(view: &View) -> bool {
    view.primary.is_none() && view.without == "lost"
}

/// Killed, promoted, and the old primary comes back as a replica.
async fn killed(cluster: &Cluster) -> anyhow::Result<()> {
    let (old, new) = names(cluster);
    let eye = Eye::at(&server(cluster, &new)?).await?;
    eye.whole(cluster, &old).await?;
    cluster.kill(&old).await?;
    let (_, took) = eye.until("lost", KILLED, lost).await?;
    println!("  killed: known as lost after {took:?}");
    cluster.promote(&new).await?;
    let there = port(cluster, &new)?;
    let followed = |view: &View| view.primary == Some(there);
    let (_, took) = eye.until("promoted", ELECTED, followed).await?;
    println!("  promoted: known {took:?} after the promotion was done");
    cluster.start(&old).await?;
    eye.whole(cluster, &new).await?;
    ensure!(
        eye.lines("millrace_backend::topology_log: the primary takes no writes any more")? == 1
    );
    Ok(())
}

/// Paused: nothing answers, and its connections stay open. Nobody is promoted; it wakes up.
async fn hung(cluster: &Cluster) -> anyhow::Result<()> {
    let (old, other) = names(cluster);
    let eye = Eye::at(&server(cluster, &other)?).await?;
    eye.whole(cluster, &old).await?;
    cluster.pause(&old).await?;
    let gone = |view: &View| view.primary.is_none();
    let judged = eye.until("lost", HUNG, gone).await;
    cluster.resume(&old).await?;
    println!("  hung: known as lost after {:?}", judged?.1);
    let back = port(cluster, &old)?;
    let (_, took) = eye
        .until("back", FOUND, |view| view.primary == Some(back))
        .await?;
    println!("  it takes writes again {took:?} after it woke up");
    Ok(())
}

/// Millrace alone does not reach the primary: its replicas do. That is said, and nobody is elected.
async fn unreachable(cluster: &Cluster) -> anyhow::Result<()> {
    let (old, other) = names(cluster);
    let primary = port(cluster, &old)?;
    let cutter = Cutter::start(primary).await?;
    let table = format!(
        "[discovery.translate]\n\"{}\" = \"{}\"\n",
        address(primary),
        address(cutter.port)
    );
    let eye = Eye::open(&[address(port(cluster, &other)?)], &table).await?;
    let there = |view: &View| view.primary == Some(cutter.port) && view.fit().len() == 3;
    eye.until("whole", FOUND, there).await?;
    cutter.set(Mode::Stall);
    let gone = |view: &View| view.without == "unreachable";
    let (_, took) = eye.until("unreachable", HUNG, gone).await?;
    println!("  cut off: known after {took:?}");
    ensure!(eye.view().await?.fit().len() == 2, "reads go on");
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(eye.view().await?.primary.is_none());
    cutter.set(Mode::Forward);
    eye.until("back", FOUND, there).await?;
    Ok(())
}

/// What is no failure: connections that are cut once, a moment of silence, and a Millrace that was
/// paused itself.
async fn no_flapping(cluster: &Cluster) -> anyhow::Result<()> {
    let (old, other) = names(cluster);
    let primary = port(cluster, &old)?;
    let cutter = Cutter::start(primary).await?;
    let table = format!(
        "[discovery.translate]\n\"{}\" = \"{}\"\n",
        address(primary),
        address(cutter.port)
    );
    let eye = Eye::open(&[address(port(cluster, &other)?)], &table).await?;
    let there = |view: &View| view.primary == Some(cutter.port) && view.fit().len() == 3;
    let (before, _) = eye.until("whole", FOUND, there).await?;
    for _ in 0..5 {
        // As long as a lost packet costs: it is sent again after 200 ms, or the double.
        cutter.set(Mode::Stall);
        tokio::time::sleep(Duration::from_millis(600)).await;
        cutter.set(Mode::Forward);
        tokio::time::sleep(Duration::from_millis(700)).await;
        cutter.set(Mode::CutAfter(0));
        cutter.set(Mode::Forward);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    for _ in 0..2 {
        eye.0.signal(Signal::STOP);
        tokio::time::sleep(Duration::from_secs(5)).await;
        eye.0.signal(Signal::CONT);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let after = eye.view().await?;
    ensure!(
        after.changes == before.changes,
        "{after:?}\n{}",
        eye.0.log()
    );
    ensure!(there(&after));
    Ok(())
}

/// Planned: the old primary is made read only first. No server is called lost.
async fn switchover(cluster: &Cluster) -> anyhow::Result<()> {
    let (old, new) = names(cluster);
    let eye = Eye::at(&server(cluster, &old)?).await?;
    eye.whole(cluster, &old).await?;
    cluster.promote(&new).await?;
    let there = port(cluster, &new)?;
    let (_, took) = eye
        .until("moved", ELECTED, |view| view.primary == Some(there))
        .await?;
    println!("  switched over: known {took:?} after it was done");
    eye.whole(cluster, &new).await?;
    let metrics = eye.0.metrics().await?;
    ensure!(
        metrics.contains("millrace_failovers_total{kind=\"planned\"} 1"),
        "{metrics}"
    );
    ensure!(metrics.contains("millrace_failovers_total{kind=\"lost\"} 0"));
    Ok(())
}

/// A second server is made writable: writes go to neither, reads go on, and it ends with its cause.
async fn two_writable(cluster: &Cluster) -> anyhow::Result<()> {
    let (old, other) = names(cluster);
    let eye = Eye::at(&server(cluster, &old)?).await?;
    eye.whole(cluster, &old).await?;
    let detach: &[&str] = match cluster.family() {
        Family::MySql => &["STOP REPLICA", "SET GLOBAL super_read_only = OFF"],
        Family::MariaDb => &["STOP SLAVE"],
    };
    let reset = match cluster.family() {
        Family::MySql => "RESET REPLICA ALL",
        Family::MariaDb => "RESET SLAVE ALL",
    };
    let mut control = cluster.control(&other).await?;
    for statement in detach.iter().chain(&[reset, "SET GLOBAL read_only = OFF"]) {
        control.run(statement).await?;
    }
    let both = |view: &View| view.without == "conflict" && view.primary.is_none();
    let (view, took) = eye
        .until("a conflict", Duration::from_secs(1), both)
        .await?;
    println!("  two writable servers: known after {took:?}");
    let third = ports(cluster).into_iter().find(|at| {
        ![
            port(cluster, &old).unwrap_or(0),
            port(cluster, &other).unwrap_or(0),
        ]
        .contains(at)
    });
    ensure!(
        view.fit() == third.into_iter().collect::<Vec<_>>(),
        "{view:?}"
    );
    let mut client = Connection::open(&Login::new(eye.0.address(), APP.user, APP.password)).await?;
    let begun = Instant::now();
    client
        .expect("SELECT COUNT(*) FROM information_schema.SCHEMATA")
        .await?;
    ensure!(begun.elapsed() < Duration::from_secs(1), "reads go on");
    ensure!(
        eye.lines("claim to be the primary")? >= 1,
        "{}",
        eye.0.log()
    );
    // It is attached again.
    control.run("SET GLOBAL read_only = ON").await?;
    control.close().await;
    cluster.demote(&other).await?;
    eye.whole(cluster, &old).await?;
    Ok(())
}

/// What a session writes under another `server_id`, as a replayed log does, is the primary's all the same.
async fn another_server_id(cluster: &Cluster) -> anyhow::Result<()> {
    if cluster.family() == Family::MySql {
        return Ok(());
    }
    // Nothing that is found out vouches for it.
    let options = ProxyOptions {
        log: "info",
        extra: "[discovery]\nmode = \"off\"\n".to_owned(),
        ..ProxyOptions::default()
    };
    let all: Vec<String> = ports(cluster).into_iter().map(address).collect();
    let proxy = Proxy::start(&all, &options).await?;
    let login = Login::new(proxy.address(), ADMIN.user, ADMIN.password);
    let mut client = Connection::open(&login).await?;
    client
        .expect("CREATE TABLE app.replayed (id INT PRIMARY KEY)")
        .await?;
    // A probe has seen that.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for sql in [
        // A domain that goes on as it was.
        "SET SESSION gtid_domain_id = 5",
        "INSERT INTO app.replayed VALUES (0)",
        "SET SESSION gtid_domain_id = 0, server_id = 99",
        "INSERT INTO app.replayed VALUES (1)",
        "INSERT INTO app.replayed VALUES (2)",
    ] {
        client.expect(sql).await?;
    }
    client.quit().await;
    // As long as nothing else is written, some probes see that.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut client = Connection::open(&login).await?;
    let begun = Instant::now();
    client.expect("INSERT INTO app.replayed VALUES (3)").await?;
    ensure!(begun.elapsed() < Duration::from_secs(2), "writes go on");
    let seen = client.expect("SELECT COUNT(*) FROM app.replayed").await?;
    ensure!(seen.scalar().as_deref() == Some("4"), "{seen:?}");
    client.expect("DROP TABLE app.replayed").await?;
    Ok(())
}

/// Commits hang, and all else is answered: further writes wait, and reads go on.
pub(crate) async fn full_disk(cluster: &Cluster) -> anyhow::Result<()> {
    let eye = Eye::at(&server(cluster, "s1")?).await?;
    eye.whole(cluster, "s1").await?;
    let login = Login::new(eye.0.address(), APP.user, APP.password);
    let mut writer = Connection::open(&login).await?;
    writer
        .expect("CREATE TABLE app.fills (id INT AUTO_INCREMENT PRIMARY KEY, t VARCHAR(200))")
        .await?;
    cluster.fill_disk("s1")?;
    let rows = vec!["(REPEAT('x', 200))"; 20].join(",");
    let insert = format!("INSERT INTO app.fills (t) VALUES {rows}");
    let mut last = Instant::now();
    for _ in 0..1_000 {
        let running = writer.query(&insert);
        match tokio::time::timeout(Duration::from_millis(500), running).await {
            Ok(reply) => ensure!(reply.ok().is_some(), "{reply:?}"),
            Err(_) => break,
        }
        last = Instant::now();
    }
    ensure!(
        last.elapsed() > Duration::from_millis(450),
        "no commit hangs"
    );
    let stalled = |view: &View| view.without == "stalled";
    eye.until("stalled", HUNG, stalled).await?;
    let took = last.elapsed();
    println!("  full disk: known {took:?} after the last commit");
    // The server says how long a commit has taken in whole seconds.
    ensure!(took < HUNG + Duration::from_secs(1), "{took:?}");
    let mut reader = Connection::open(&login).await?;
    reader.expect("SELECT COUNT(*) FROM app.fills").await?;
    let mut late = Connection::open(&login).await?;
    let waits = tokio::time::timeout(Duration::from_secs(1), late.query(&insert)).await;
    ensure!(waits.is_err(), "a further write waits: {waits:?}");
    ensure!(eye.lines("commits do not end")? >= 1, "{}", eye.0.log());
    cluster.kill("s1").await
}

/// The primary now, and a replica.
fn names(cluster: &Cluster) -> (String, String) {
    let replica = cluster.replicas().into_iter().next();
    (
        cluster.primary().name,
        replica.map(|server| server.name).unwrap_or_default(),
    )
}
