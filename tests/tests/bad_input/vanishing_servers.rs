//! Servers that vanish.

use super::*;

/// A proxy whose servers are behind forwarders.
struct CutStage {
    /// Dropped before the servers.
    proxy: Proxy,
    address: Target,
    cutters: Vec<Cutter>,
    cluster: millrace_sandbox::Cluster,
}

async fn cut_stage(family: Family) -> anyhow::Result<CutStage> {
    let cluster = harness::cluster(family, 2).await?;
    suite::prepare(&harness::admin(cluster.primary().port), family, &[]).await?;
    cluster
        .wait_replicas_caught_up(Duration::from_secs(30))
        .await?;
    let mut cutters = Vec::new();
    for server in cluster.servers() {
        cutters.push(Cutter::start(server.port).await?);
    }
    let servers: Vec<String> = cutters
        .iter()
        .map(|c| format!("127.0.0.1:{}", c.port))
        .collect();
    // Statements that no server can run are to be answered soon.
    let options = ProxyOptions {
        extra: "[failover]\nhold_time = \"500ms\"\n".to_owned(),
        ..ProxyOptions::default()
    };
    let proxy = Proxy::start(&servers, &options).await?;
    Ok(CutStage {
        address: proxy.address(),
        proxy,
        cutters,
        cluster,
    })
}

/// An answer that is not right must be an error packet or an end, never wrong rows.
fn honest(reply: &Reply, rows: usize) -> Result<bool, String> {
    if let Some(err) = reply.err() {
        if (1000..6000).contains(&err.code) && err.state.len() == 5 && !err.message.is_empty() {
            return Ok(false);
        }
        return Err(format!("an odd error: {err}"));
    }
    if let Some(why) = reply.broken() {
        return if why.contains("timeout") {
            Err(why)
        } else {
            Ok(false)
        };
    }
    let whole = matches!(
        reply.events.last().map(|e| &e.item),
        Some(Item::Ok(_) | Item::Eof { .. })
    );
    if whole && reply.rows().len() == rows {
        return Ok(true);
    }
    Err(format!(
        "{} rows instead of {rows}, whole: {whole}",
        reply.rows().len()
    ))
}

async fn back_to_normal(stage: &CutStage) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        match served(&stage.address).await {
            Ok(()) => return Ok(()),
            Err(e) if Instant::now() > deadline => return Err(e.context("never back to normal")),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn cut_everywhere(family: Family) -> anyhow::Result<()> {
    let mut stage = cut_stage(family).await?;
    let mut outcomes = (0, 0);
    // Every early byte, where the login and the state's replay are, then coarser.
    let cuts = (1..60)
        .chain((60..200).step_by(7))
        .chain((200..4000).step_by(397));
    for cut in cuts {
        for sql in [
            "SELECT id, name FROM small ORDER BY id",
            "INSERT INTO d_noise.n (v) VALUES (1)",
        ] {
            let mut client = match Connection::try_open(&login(&stage.address)).await {
                Ok((Some(client), _)) => client,
                Ok((None, reply)) => {
                    honest(&reply, 0).map_err(|e| anyhow::anyhow!("login: {e}"))?;
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::TimedOut => {
                    anyhow::bail!("a login hangs after cut {cut}");
                }
                Err(_) => continue,
            };
            client.query("SET @a=1, time_zone='+01:00'").await;
            for cutter in &stage.cutters {
                cutter.set(Mode::CutAfter(cut));
            }
            let rows = if sql.starts_with("SELECT") { 5 } else { 0 };
            let reply = client.query(sql).await;
            match honest(&reply, rows) {
                Ok(true) => outcomes.0 += 1,
                Ok(false) => outcomes.1 += 1,
                Err(what) => {
                    anyhow::bail!("{sql} cut after {cut} bytes: {what}; {:?}", reply.render())
                }
            }
            for cutter in &stage.cutters {
                cutter.set(Mode::Forward);
            }
        }
    }
    eprintln!(
        "{family}: {} statements came through, {} ended in an error",
        outcomes.0, outcomes.1
    );
    back_to_normal(&stage).await?;
    ensure!(
        stage.proxy.alive(),
        "millrace died; its log:\n{}",
        stage.proxy.log()
    );
    ensure!(
        !stage.proxy.log().contains("panicked"),
        "{}",
        stage.proxy.log()
    );
    Ok(())
}

#[tokio::test]
async fn servers_cut_at_every_byte() -> anyhow::Result<()> {
    if harness::direct_only() {
        return Ok(());
    }
    for family in [Family::MariaDb, Family::MySql] {
        if skip_unless(family, "servers cut at every byte") {
            cut_everywhere(family).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn replicas_that_hang_or_die() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "replicas that hang or die") || harness::direct_only() {
        return Ok(());
    }
    let mut stage = cut_stage(FAMILY).await?;
    back_to_normal(&stage).await?;
    // Both replicas refuse: the primary serves reads.
    for cutter in &stage.cutters[1..] {
        cutter.set(Mode::Refuse);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    back_to_normal(&stage).await?;
    for _ in 0..20 {
        served(&stage.address).await?;
    }
    for cutter in &stage.cutters[1..] {
        cutter.set(Mode::Forward);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    served(&stage.address).await?;

    // One replica hangs: it goes out of rotation, and others are served meanwhile.
    stage.cutters[1].set(Mode::Stall);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for _ in 0..10 {
        served(&stage.address).await?;
    }
    stage.cutters[1].set(Mode::Forward);
    back_to_normal(&stage).await?;

    // A replica is killed and comes back.
    let name = stage.cluster.replicas()[0].name.clone();
    stage.cluster.kill(&name).await?;
    for _ in 0..20 {
        let mut client = Connection::open(&login(&stage.address)).await?;
        let reply = client.query("SELECT COUNT(*) FROM small").await;
        honest(&reply, 1).map_err(anyhow::Error::msg)?;
    }
    stage.cluster.start(&name).await?;
    back_to_normal(&stage).await?;
    ensure!(
        stage.proxy.alive(),
        "millrace died; its log:\n{}",
        stage.proxy.log()
    );
    Ok(())
}

#[tokio::test]
async fn primary_gone_and_back() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "the primary gone and back") || harness::direct_only() {
        return Ok(());
    }
    let mut stage = cut_stage(FAMILY).await?;
    back_to_normal(&stage).await?;
    let mut reader = Connection::open(&login(&stage.address)).await?;
    let mut writer = Connection::open(&login(&stage.address)).await?;
    let mut pinned = Connection::open(&login(&stage.address)).await?;
    pinned.expect("BEGIN").await?;
    pinned
        .expect("INSERT INTO d_noise.n (v) VALUES (5)")
        .await?;

    stage.cutters[0].set(Mode::Refuse);
    // An open transaction on it is lost: an error or an end, never an OK.
    let reply = pinned.query("COMMIT").await;
    ensure!(
        honest(&reply, 0) == Ok(false),
        "COMMIT on a dead primary: {:?}",
        reply.render()
    );
    // A write gets an error that names what is wrong, within the limits.
    let started = Instant::now();
    let reply = writer.query("INSERT INTO d_noise.n (v) VALUES (6)").await;
    ensure!(
        honest(&reply, 0) == Ok(false),
        "a write without a primary: {:?}",
        reply.render()
    );
    ensure!(
        started.elapsed() < Duration::from_secs(15),
        "after {:?}",
        started.elapsed()
    );
    // Reads go on.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let reply = reader.query("SELECT COUNT(*) FROM small").await;
    ensure!(
        honest(&reply, 1) == Ok(true),
        "a read without a primary: {:?}",
        reply.render()
    );

    stage.cutters[0].set(Mode::Forward);
    back_to_normal(&stage).await?;
    let count = stage
        .cluster
        .control("s1")
        .await?
        .value("SELECT COUNT(*) FROM d_noise.n WHERE v=5")
        .await?;
    ensure!(
        count.as_deref() == Some("0"),
        "a lost transaction left {count:?}"
    );
    ensure!(
        stage.proxy.alive(),
        "millrace died; its log:\n{}",
        stage.proxy.log()
    );
    Ok(())
}

#[tokio::test]
async fn drain_on_sigterm() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "draining") || harness::direct_only() {
        return Ok(());
    }
    let mut stage = stage(&ProxyOptions::default()).await?;
    let mut idle = Connection::open(&login(&stage.address)).await?;
    idle.expect("SELECT 1").await?;
    let mut busy = Connection::open(&login(&stage.address)).await?;
    busy.send(com::QUERY, b"SELECT SLEEP(1.5), 'done'").await?;
    let mut open = Connection::open(&login(&stage.address)).await?;
    open.expect("BEGIN").await?;
    open.expect("INSERT INTO d_noise.n (v) VALUES (77)").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;

    let mut proxy = stage.proxy.take().context("no proxy")?;
    let ending = tokio::spawn(async move { proxy.terminate(Duration::from_secs(20)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(
        Connection::open(&login(&stage.address)).await.is_err(),
        "a new client was let in"
    );
    let reply = busy.read_reply(Expect::Results { binary: false }).await;
    let row = reply.rows().pop().and_then(|mut r| r.pop()).flatten();
    ensure!(
        row.as_deref() == Some("done"),
        "a running statement: {:?}",
        reply.render()
    );
    open.expect("INSERT INTO d_noise.n (v) VALUES (78)")
        .await
        .context("an open transaction")?;
    open.expect("COMMIT").await.context("its commit")?;
    let (status, took) = ending.await??;
    ensure!(status.success(), "ended with {status}");
    ensure!(took < Duration::from_secs(10), "took {took:?}");
    let mut control = stage.cluster.control("s1").await?;
    let count = control
        .value("SELECT COUNT(*) FROM d_noise.n WHERE v IN (77, 78)")
        .await?;
    ensure!(
        count.as_deref() == Some("2"),
        "the transaction left {count:?}"
    );
    drop(idle);
    Ok(())
}
