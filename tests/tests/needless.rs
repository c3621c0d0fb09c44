//! What need not be: connections that are opened, sessions that keep theirs, reads that wait. Counted on real
//! servers.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::differential::script::Family;
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::wire::{Connection, Login, Target};

fn app(stage: &Stage) -> Login {
    Login::new(stage.address.clone(), APP.user, APP.password)
}

async fn direct(stage: &Stage) -> anyhow::Result<Connection> {
    let target = Target::Tcp(format!("127.0.0.1:{}", stage.cluster.primary().port));
    let admin = harness::admin(stage.cluster.primary().port);
    Ok(Connection::open(&Login { target, ..admin }).await?)
}

/// The first value of an answer's first row.
async fn value(client: &mut Connection, sql: &str) -> anyhow::Result<String> {
    let reply = client.expect(sql).await.with_context(|| sql.to_owned())?;
    reply.scalar().with_context(|| format!("{sql}: no value"))
}

/// A family of the proxy's metrics, summed over the series that contain `label`.
async fn metric(stage: &Stage, name: &str, label: &str) -> anyhow::Result<f64> {
    let proxy = stage.proxy.as_ref().context("no proxy")?;
    let text = proxy.metrics().await?;
    let lines = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
    });
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(values.sum())
}

/// Logins without a database, each of which chooses one, as WordPress does for every page.
async fn logins_without_database(stage: &Stage) -> anyhow::Result<()> {
    let connects = "millrace_pool_connections_opened_total";
    let page = async || -> anyhow::Result<()> {
        let mut client = Connection::open(&app(stage)).await?;
        client.expect("SET NAMES utf8mb4").await?;
        client.expect("SELECT @@sql_mode").await?;
        let database = client.expect("SELECT DATABASE()").await?;
        ensure!(database.rows()[0][0].is_none(), "none was chosen yet");
        client.expect("USE app").await?;
        ensure!(value(&mut client, "SELECT DATABASE()").await? == "app");
        client.expect("SELECT 1").await?;
        client.quit().await;
        Ok(())
    };
    for _ in 0..3 {
        page().await?;
    }
    let before = metric(stage, connects, "").await?;
    for _ in 0..60 {
        page().await?;
    }
    let opened = metric(stage, connects, "").await? - before;
    eprintln!("60 logins without a database: {opened} connections opened");
    ensure!(
        opened <= 3.0,
        "{opened} connections were opened for 60 logins"
    );
    Ok(())
}

/// Sessions whose user variables are known keep no connection.
async fn variables_known(stage: &Stage) -> anyhow::Result<()> {
    let mut client = Connection::open(&app(stage).database("app")).await?;
    for sql in [
        "DROP PROCEDURE IF EXISTS n_out",
        "DROP PROCEDURE IF EXISTS n_sets",
        "CREATE PROCEDURE n_out(IN a INT, OUT b INT) SET b=a*2",
        "CREATE PROCEDURE n_sets() SET @one=1, @two=2",
    ] {
        client.expect(sql).await?;
    }
    // Until the catalogue was read again: docs/open.md.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (sql, question, answer) in [
        ("CALL n_out(1,@x)", "SELECT @x", "2"),
        ("CALL n_sets()", "SELECT @two", "2"),
        ("SELECT 3 INTO @`ä`", "SELECT @`ä`", "3"),
        ("SET @`Ä`='4'", "SELECT @`ä`", "4"),
    ] {
        client.expect(sql).await?;
        let got = value(&mut client, question).await?;
        ensure!(got == answer, "{sql}: {got}");
        let pinned = metric(stage, "millrace_pins", "").await?;
        ensure!(pinned == 0.0, "{sql}: {pinned} sessions keep a connection");
    }
    client.quit().await;
    Ok(())
}

/// Transactions whose numbers leave gaps: what never existed is not waited for.
async fn gaps(stage: &Stage) -> anyhow::Result<()> {
    if stage.family == Family::MariaDb {
        return Ok(());
    }
    let mut login = app(stage).database("app");
    login.user = harness::admin(0).user;
    login.password = harness::admin(0).password;
    let mut client = Connection::open(&login).await?;
    let before = metric(stage, "millrace_position_waits_total", "timed_out").await?;
    let uuid = "11111111-2222-3333-4444-555555555555";
    for at in 0..11 {
        client
            .expect(&format!("SET gtid_next='{uuid}:{}'", 5 + at * 1000))
            .await?;
        client.expect("BEGIN").await?;
        client.expect("COMMIT").await?;
    }
    client.expect("SET gtid_next='AUTOMATIC'").await?;
    client.quit().await;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut other = Connection::open(&login).await?;
    for _ in 0..5 {
        other.expect("SELECT 1 FROM n_gaps").await?;
    }
    other.quit().await;
    let waits = metric(stage, "millrace_position_waits_total", "timed_out").await?;
    eprintln!("reads behind eleven gaps: {waits} waits in vain");
    ensure!(waits == before, "{} waits were in vain", waits - before);
    Ok(())
}

async fn needless(family: Family) -> anyhow::Result<()> {
    let options = ProxyOptions {
        workers: Some(1),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 2, &options).await?;
    let mut admin = direct(&stage).await?;
    admin
        .expect("CREATE TABLE app.n_gaps (id INT PRIMARY KEY)")
        .await?;
    admin.expect("INSERT INTO app.n_gaps VALUES (1)").await?;
    admin.quit().await;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    let mut checks = Checks::new(format!("needless, {family}"));
    checks
        .run("logins without a database", logins_without_database(&stage))
        .await;
    checks.run("known variables", variables_known(&stage)).await;
    checks.run("gaps", gaps(&stage)).await;
    checks.finish()
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MariaDb.into(), "needless") {
        return Ok(());
    }
    needless(Family::MariaDb).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MySql.into(), "needless") {
        return Ok(());
    }
    needless(Family::MySql).await
}
