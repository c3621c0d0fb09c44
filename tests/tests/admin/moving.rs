//! What operators see while the primary changes: what is held, and the timeline afterwards.

use std::time::Duration;

use anyhow::ensure;
use millrace_sandbox::{APP, Cluster, Family};
use millrace_tests::wire::{Connection, Expect, com};

use crate::documented;
use crate::ground::{Ground, expect, is, number, value};
use crate::serving::{FOLLOWED, app};

const SOON: Duration = Duration::from_secs(10);

/// An orchestrator makes the primary read only, and a moment later another server the primary.
pub(crate) async fn planned(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let names = documented::names(cluster);
    let login = app(ground.proxy.address());
    let mut writing = Connection::open(&login).await?;
    writing
        .expect("CREATE TABLE IF NOT EXISTS app.moved (id INT PRIMARY KEY)")
        .await?;
    writing.expect("DELETE FROM app.moved").await?;
    ensure!(operator.rows("SHOW FAILOVERS").await?.is_empty());
    ensure!(operator.rows("SHOW HELD STATEMENTS").await?.is_empty());
    let old = cluster.primary();
    let mut control = cluster.control(&old.name).await?;
    control
        .run(match cluster.family() {
            Family::MySql => "SET GLOBAL super_read_only = ON",
            Family::MariaDb => "SET GLOBAL read_only = ON",
        })
        .await?;
    control.close().await;
    let sql = b"INSERT INTO app.moved VALUES (1)";
    writing.send(com::QUERY, sql).await?;
    let held = operator
        .wait_for("SHOW HELD STATEMENTS", SOON, |_| true)
        .await?;
    let id = writing.greeting.connection_id.to_string();
    expect(
        &held,
        &[
            ("place", "1"),
            ("session", &id),
            ("account", APP.user),
            ("kind", "write"),
            ("waits_for", "primary"),
        ],
    )?;
    ensure!(number(&held, "bytes")? >= sql.len() as f64, "{held:#?}");
    let session = operator
        .row(&format!("SHOW SESSIONS WHERE id = {id}"))
        .await?;
    expect(&session, &[("state", "held"), ("pins", "")])?;
    documented::check(&mut operator, &names, |sql| {
        sql.starts_with("SHOW HELD STATEMENTS")
    })
    .await?;
    // It says so, wherever one looks.
    let why = operator
        .row(&format!("SHOW SERVERS LIKE '127.0.0.1:{}'", old.port))
        .await?;
    ensure!(
        value(&why, "why")?.contains("no server takes writes"),
        "{why:#?}"
    );
    // One that is killed while it is held is gone from there.
    let mut killed = Connection::open(&login).await?;
    killed
        .send(com::QUERY, b"INSERT INTO app.moved VALUES (2)")
        .await?;
    let id = killed.greeting.connection_id;
    let sql = format!("SHOW HELD STATEMENTS WHERE session = {id}");
    operator.wait_for(&sql, SOON, |_| true).await?;
    operator.0.expect(&format!("KILL QUERY {id}")).await?;
    let reply = killed.read_reply(Expect::Single).await;
    ensure!(
        reply.err().map(|error| error.code) == Some(1317),
        "{:?}",
        reply.render()
    );
    operator.wait_until_none(&sql, SOON).await?;

    let new = names
        .get("db2:3306")
        .and_then(|address| address.strip_prefix("127.0.0.1:"))
        .and_then(|port| port.parse().ok())
        .unwrap_or(0);
    let replicas = cluster.replicas();
    let new = replicas.iter().find(|replica| replica.port == new);
    let new = new.unwrap_or(&replicas[0]).clone();
    cluster.promote(&new.name).await?;
    let reply = writing.read_reply(Expect::Single).await;
    ensure!(reply.ok().is_some(), "{:?}", reply.render());
    operator
        .wait_until_none("SHOW HELD STATEMENTS", SOON)
        .await?;
    // The client has its answer a moment before that is written down.
    let change = operator
        .wait_for("SHOW FAILOVERS", SOON, |row| row["served_ms"].is_some())
        .await?;
    println!("planned: {change:?}");
    expect(
        &change,
        &[
            ("number", "1"),
            ("kind", "planned"),
            ("old_primary", &format!("127.0.0.1:{}", old.port)),
            ("new_primary", &format!("127.0.0.1:{}", new.port)),
            ("held", "2"),
            ("replayed", "0"),
            ("unknown_outcome", "0"),
        ],
    )?;
    let at = |column| number(&change, column);
    ensure!(
        at("judged_ms")? <= at("known_ms")? && at("known_ms")? <= at("served_ms")?,
        "not in order: {change:#?}"
    );
    ensure!(
        at("pause_ms")? == at("known_ms")? - at("judged_ms")?,
        "{change:#?}"
    );
    documented::check(&mut operator, &names, |sql| {
        sql.starts_with("SHOW FAILOVERS")
    })
    .await?;
    // What was acknowledged is there, once; what was killed is not.
    let reply = writing
        .expect("SELECT COUNT(*), MAX(id) FROM app.moved")
        .await?;
    ensure!(
        reply.rows() == [[Some("1".to_owned()), Some("1".to_owned())]],
        "{:?}",
        reply.render()
    );
    Ok(())
}

/// A primary that is killed: the reads go on, and the timeline tells it.
pub(crate) async fn lost(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    client.expect("SELECT 1 FROM app.place").await?;
    let old = cluster.primary();
    cluster.kill(&old.name).await?;
    let sql = format!("SHOW SERVERS LIKE '127.0.0.1:{}'", old.port);
    let down = operator
        .wait_for(&sql, FOLLOWED, |row| is(row, "state", "down"))
        .await?;
    expect(&down, &[("fit", "no")])?;
    let change = operator.row("SHOW FAILOVERS").await?;
    expect(&change, &[("kind", "lost")])?;
    ensure!(
        change["new_primary"].is_none() && change["known_ms"].is_none(),
        "{change:#?}"
    );
    client.expect("SELECT 1 FROM app.place").await?;
    let new = cluster.replicas()[0].clone();
    cluster.promote(&new.name).await?;
    let change = operator
        .wait_for("SHOW FAILOVERS", FOLLOWED, |row| {
            row["new_primary"].is_some()
        })
        .await?;
    println!("lost: {change:?}");
    expect(
        &change,
        &[
            ("old_primary", &format!("127.0.0.1:{}", old.port)),
            ("new_primary", &format!("127.0.0.1:{}", new.port)),
        ],
    )?;
    cluster.start(&old.name).await?;
    operator
        .wait_for(&sql, FOLLOWED, |row| {
            is(row, "state", "up") && is(row, "role", "replica")
        })
        .await?;
    Ok(())
}

/// A primary that an operator drains: writes wait, and go on where it is resumed.
pub(crate) async fn drained(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    client
        .expect("CREATE TABLE IF NOT EXISTS app.kept (id INT)")
        .await?;
    client.expect("DELETE FROM app.kept").await?;
    let primary = format!("127.0.0.1:{}", cluster.primary().port);
    let row = operator
        .row(&format!("DRAIN SERVER '{primary}' WAIT 5"))
        .await?;
    expect(&row, &[("draining", "yes"), ("in_use", "0")])?;
    client
        .send(com::QUERY, b"INSERT INTO app.kept VALUES (1)")
        .await?;
    operator
        .wait_for("SHOW HELD STATEMENTS", SOON, |row| {
            is(row, "waits_for", "primary")
        })
        .await?;
    // Reads go on.
    let mut reading = Connection::open(&app(ground.proxy.address())).await?;
    reading.expect("SELECT port FROM app.place").await?;
    let change = operator.row("SHOW FAILOVERS").await?;
    expect(&change, &[("kind", "drained"), ("old_primary", &primary)])?;
    ensure!(
        value(&change, "evidence")?.contains("admin@127.0.0.1"),
        "nobody did it: {change:#?}"
    );
    operator.row(&format!("RESUME SERVER '{primary}'")).await?;
    let reply = client.read_reply(Expect::Single).await;
    ensure!(reply.ok().is_some(), "{:?}", reply.render());
    let change = operator
        .wait_for("SHOW FAILOVERS", SOON, |row| row["served_ms"].is_some())
        .await?;
    expect(&change, &[("kind", "drained"), ("new_primary", &primary)])?;
    Ok(())
}

/// The configuration says which servers are out of use, and is read again on SIGHUP.
pub(crate) async fn drained_by_configuration(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    client
        .expect("CREATE TABLE IF NOT EXISTS app.kept (id INT)")
        .await?;
    let file = ground.proxy.log_path().with_file_name("millrace.toml");
    let whole = std::fs::read_to_string(&file)?;
    let primary = format!("127.0.0.1:{}", cluster.primary().port);
    let line = format!("address = \"{primary}\"\n");
    let drained = whole.replace(&line, &format!("{line}draining = true\n"));
    ensure!(drained != whole, "no {line} in {whole}");
    let again = async |text: &str| {
        std::fs::write(&file, text)?;
        ground.proxy.signal(rustix::process::Signal::HUP);
        anyhow::Ok(())
    };
    let server = format!("SHOW SERVERS WHERE address = '{primary}'");
    again(&drained).await?;
    operator
        .wait_for(&server, SOON, |row| is(row, "draining", "yes"))
        .await?;
    let shown = "SHOW CONFIG WHERE name LIKE 'server%.draining' AND value = 'true'";
    operator.wait_for(shown, SOON, |_| true).await?;
    client
        .send(com::QUERY, b"INSERT INTO app.kept VALUES (2)")
        .await?;
    operator
        .wait_for("SHOW HELD STATEMENTS", SOON, |_| true)
        .await?;
    let change = operator.row("SHOW FAILOVERS").await?;
    ensure!(
        value(&change, "evidence")?.contains("the configuration"),
        "{change:#?}"
    );
    // What is not valid changes nothing.
    again(&format!("{whole}\nnonsense = 1\n")).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    expect(&operator.row(&server).await?, &[("draining", "yes")])?;
    again(&whole).await?;
    let reply = client.read_reply(Expect::Single).await;
    ensure!(reply.ok().is_some(), "{:?}", reply.render());
    expect(&operator.row(&server).await?, &[("draining", "no")])?;
    ensure!(operator.rows(shown).await?.is_empty());
    // What takes a restart is said, and what was in force stays.
    again(&format!("coalesce_limit = \"1ms\"\n{whole}")).await?;
    let said = async {
        while !std::fs::read_to_string(ground.proxy.log_path())?.contains("keys=coalesce_limit") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON, said).await??;
    let limit = operator
        .row("SHOW CONFIG WHERE name = 'coalesce_limit'")
        .await?;
    ensure!(value(&limit, "value")? != "1ms", "{limit:#?}");
    Ok(())
}
