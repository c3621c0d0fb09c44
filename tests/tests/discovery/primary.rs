//! Which server takes writes where the servers' own settings leave doubt: a source that is a leftover, a
//! pair that follows each other, sessions that begin read only, a configured primary after a switchover.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{ADMIN, APP, Cluster, Family};
use millrace_tests::checks::Checks;
use millrace_tests::harness::{Launch, Proxy, ProxyOptions, free_port};
use millrace_tests::wire::{Connection, Login};

use crate::view::{Eye, FOUND, View, address, port, ports, server};

/// A write that a server takes at once is answered within this.
const SOON: Duration = Duration::from_secs(3);

pub(crate) async fn run(checks: &mut Checks, cluster: &Cluster) {
    checks.run("one seed, by default", one_seed(cluster)).await;
    checks.run("a leftover source", leftover(cluster)).await;
    checks.run("active and passive", pair(cluster)).await;
    checks.run("why is said", said(cluster)).await;
    checks
        .run("sessions begin read only", begin_read_only(cluster))
        .await;
    checks
        .run("a configured primary yields", yields(cluster))
        .await;
}

async fn millrace(seeds: &[String], more: &str) -> anyhow::Result<Eye> {
    let options = ProxyOptions {
        log: "info",
        extra: more.to_owned(),
        ..ProxyOptions::default()
    };
    Ok(Eye(Proxy::start(seeds, &options).await?))
}

/// All servers are listed, and no others are looked for.
async fn listed(cluster: &Cluster, more: &str) -> anyhow::Result<Eye> {
    let seeds: Vec<String> = ports(cluster).into_iter().map(address).collect();
    millrace(&seeds, &format!("[discovery]\nmode = \"off\"\n{more}")).await
}

async fn client(eye: &Eye) -> anyhow::Result<Connection> {
    let login = Login::new(eye.0.address(), APP.user, APP.password);
    Ok(Connection::open(&login).await?)
}

/// A write ends soon, and is on the server at this port; a read sees it.
async fn writes_go_to(eye: &Eye, there: u16) -> anyhow::Result<()> {
    let mut client = client(eye).await?;
    let begun = Instant::now();
    client
        .expect("CREATE TABLE IF NOT EXISTS app.judged (id INT AUTO_INCREMENT PRIMARY KEY, at INT)")
        .await?;
    client
        .expect("INSERT INTO app.judged (at) VALUES (@@port)")
        .await?;
    ensure!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let read = client
        .expect("SELECT at FROM app.judged ORDER BY id DESC LIMIT 1")
        .await?;
    let text = format!("{:?}", read.render());
    ensure!(text.contains(&there.to_string()), "{text}");
    Ok(())
}

async fn run_at(cluster: &Cluster, name: &str, statements: &[String]) -> anyhow::Result<()> {
    let mut control = cluster.control(name).await?;
    for statement in statements {
        let ran = control.run(statement).await;
        ran.with_context(|| format!("{name}: {statement}"))?;
    }
    control.close().await;
    Ok(())
}

/// Has a server replicate from a port of this machine; nobody need be there.
async fn follow(cluster: &Cluster, name: &str, port: u16) -> anyhow::Result<()> {
    let (user, password) = (ADMIN.user, ADMIN.password);
    let statements = match cluster.family() {
        Family::MySql => vec![
            format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, \
                 SOURCE_USER='{user}', SOURCE_PASSWORD='{password}', SOURCE_AUTO_POSITION=1, \
                 GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1"
            ),
            "START REPLICA".to_owned(),
        ],
        Family::MariaDb => vec![
            "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos".to_owned(),
            format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, \
                 MASTER_USER='{user}', MASTER_PASSWORD='{password}', MASTER_USE_GTID=slave_pos, \
                 MASTER_CONNECT_RETRY=1"
            ),
            "START SLAVE".to_owned(),
        ],
    };
    run_at(cluster, name, &statements).await
}

async fn detach(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let statements = match cluster.family() {
        Family::MySql => ["STOP REPLICA", "RESET REPLICA ALL"],
        Family::MariaDb => ["STOP SLAVE", "RESET SLAVE ALL"],
    };
    run_at(cluster, name, &statements.map(str::to_owned)).await
}

/// Given one address and nothing else, by file or by flags: the others are found, and are there when the
/// one is gone.
async fn one_seed(cluster: &Cluster) -> anyhow::Result<()> {
    let seed = server(cluster, "s2")?;
    let eye = millrace(&[address(seed.port)], "[discovery]\n").await?;
    eye.whole(cluster, "s1").await?;
    let launch = Launch::new()?;
    let (listen, http) = (address(launch.port), address(launch.http_port));
    let mut by_flags = launch
        .args(&["--listen", &listen, "--server", &address(seed.port)])
        .args(&["--http", &http, "--monitor-user", "millrace_monitor"])
        .spawn()?;
    by_flags.wait_ready(FOUND).await?;
    let by_flags = Eye(by_flags);
    by_flags.whole(cluster, "s1").await?;
    cluster.kill("s2").await?;
    for eye in [&eye, &by_flags] {
        writes_go_to(eye, port(cluster, "s1")?).await?;
    }
    cluster.start("s2").await?;
    eye.whole(cluster, "s1").await?;
    Ok(())
}

/// The primary is set to replicate from an address where nobody is.
async fn leftover(cluster: &Cluster) -> anyhow::Result<()> {
    let (nobody, there) = (free_port()?, port(cluster, "s1")?);
    follow(cluster, "s1", nobody).await?;
    let checked = async {
        let eye = listed(cluster, "").await?;
        eye.whole(cluster, "s1").await?;
        writes_go_to(&eye, there).await?;
        // The source is named, not reached, and in nobody's way; nor is it in the log all the time.
        for seed in ["s1", "s3"] {
            let eye = millrace(&[address(port(cluster, seed)?)], "[discovery]\n").await?;
            let whole = |view: &View| view.primary == Some(there) && view.fit() == ports(cluster);
            let (view, took) = eye.until("whole", FOUND, whole).await?;
            println!("  from {seed}: whole after {took:?}");
            ensure!(view.down == [nobody], "{view:?}");
            writes_go_to(&eye, there).await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            ensure!(eye.lines("cannot be asked")? == 1, "{}", eye.0.log());
        }
        Ok(())
    };
    let checked: anyhow::Result<()> = checked.await;
    detach(cluster, "s1").await?;
    checked
}

/// Each follows the other, and one is read only: the other takes writes. They are switched over.
async fn pair(cluster: &Cluster) -> anyhow::Result<()> {
    let (one, two) = (port(cluster, "s1")?, port(cluster, "s2")?);
    follow(cluster, "s1", two).await?;
    let checked = async {
        let eye = listed(cluster, "").await?;
        eye.whole(cluster, "s1").await?;
        writes_go_to(&eye, one).await?;
        cluster.set_read_only("s1", true).await?;
        cluster
            .wait_replicas_caught_up(Duration::from_secs(20))
            .await?;
        cluster.set_read_only("s2", false).await?;
        let moved = |view: &View| view.primary == Some(two);
        eye.until("switched over", SOON, moved).await?;
        writes_go_to(&eye, two).await?;
        // Who comes later sees the same.
        let late = listed(cluster, "").await?;
        late.until("seen late", SOON, moved).await?;
        cluster.set_read_only("s2", true).await?;
        cluster.set_read_only("s1", false).await?;
        let back = |view: &View| view.primary == Some(one);
        eye.until("switched back", SOON, back).await?;
        // The passive one goes: the active one is what it was.
        cluster.kill("s2").await?;
        let down = |view: &View| view.down == [two];
        eye.until("down", SOON, down).await?;
        writes_go_to(&eye, one).await?;
        cluster.start("s2").await?;
        eye.whole(cluster, "s1").await?;
        Ok(())
    };
    let checked: anyhow::Result<()> = checked.await;
    cluster.set_read_only("s2", true).await?;
    cluster.set_read_only("s1", false).await?;
    detach(cluster, "s1").await?;
    checked
}

async fn refused(eye: &Eye) -> anyhow::Result<String> {
    let reply = client(eye)
        .await?
        .query("CREATE TABLE app.never (a INT)")
        .await;
    let error = reply.err().context("it was run")?;
    ensure!(error.code == 1105, "{error:?}");
    Ok(error.message.clone())
}

/// Where writes wait in vain, the error says why, of which servers, and what helps.
async fn said(cluster: &Cluster) -> anyhow::Result<()> {
    const BRIEF: &str = "[failover]\nhold_time = \"500ms\"\n";
    let (one, two) = (port(cluster, "s1")?, port(cluster, "s2")?);
    let seeds = [address(two), address(port(cluster, "s3")?)];
    let off = format!("[discovery]\nmode = \"off\"\n{BRIEF}");
    cluster.set_read_only("s2", false).await?;
    let checked = async {
        // Writable, and it receives from one that Millrace does not know.
        let eye = millrace(&seeds, &off).await?;
        let why = |what: &'static str| move |view: &View| view.without == what;
        eye.until("seen", FOUND, why("replicates")).await?;
        let text = refused(&eye).await?;
        for part in [
            &*address(two),
            "set to replicate",
            "role = \"primary\"",
            "failover.hold_time",
        ] {
            ensure!(text.contains(part), "{part}: {text}");
        }
        ensure!(eye.lines("RESET REPLICA ALL")? >= 1, "{}", eye.0.log());
        follow(cluster, "s1", two).await?;
        let eye = listed(cluster, BRIEF).await?;
        eye.until("seen", FOUND, why("conflict")).await?;
        let text = refused(&eye).await?;
        for part in [&*address(one), &*address(two), "set read_only on all but"] {
            ensure!(text.contains(part), "{part}: {text}");
        }
        Ok(())
    };
    let checked: anyhow::Result<()> = checked.await;
    cluster.set_read_only("s2", true).await?;
    detach(cluster, "s1").await?;
    checked
}

/// A second server is writable, and its sessions begin read only: no conflict.
async fn begin_read_only(cluster: &Cluster) -> anyhow::Result<()> {
    let name = match cluster.family() {
        Family::MySql => "transaction_read_only",
        Family::MariaDb => "tx_read_only",
    };
    let set = |value| [format!("SET GLOBAL {name} = {value}")];
    let one = port(cluster, "s1")?;
    let checked = async {
        run_at(cluster, "s2", &set("ON")).await?;
        detach(cluster, "s2").await?;
        cluster.set_read_only("s2", false).await?;
        let eye = listed(cluster, "").await?;
        let there = |view: &View| view.primary == Some(one);
        eye.until("the primary", FOUND, there).await?;
        writes_go_to(&eye, one).await?;
        ensure!(eye.lines("claim to be the primary")? == 0);
        Ok(())
    };
    let checked: anyhow::Result<()> = checked.await;
    cluster.set_read_only("s2", true).await?;
    run_at(cluster, "s2", &set("OFF")).await?;
    cluster.demote("s2").await?;
    checked
}

/// `role = "primary"`, and then a switchover: writes follow it, and the log says so.
async fn yields(cluster: &Cluster) -> anyhow::Result<()> {
    let (one, two) = (port(cluster, "s1")?, port(cluster, "s2")?);
    let others = [address(two), address(port(cluster, "s3")?)];
    let first = format!(
        "[discovery]\nmode = \"off\"\n[[server]]\naddress = \"{}\"\nrole = \"primary\"\n",
        address(one)
    );
    let eye = millrace(&others, &first).await?;
    eye.whole(cluster, "s1").await?;
    writes_go_to(&eye, one).await?;
    cluster.promote("s2").await?;
    eye.whole(cluster, "s2").await?;
    writes_go_to(&eye, two).await?;
    ensure!(
        eye.lines("is configured as the primary")? == 1,
        "{}",
        eye.0.log()
    );
    // So does a Millrace that did not see it.
    let late = millrace(&others, &first).await?;
    late.whole(cluster, "s2").await?;
    writes_go_to(&late, two).await?;
    cluster.promote("s1").await?;
    for eye in [&eye, &late] {
        eye.whole(cluster, "s1").await?;
        writes_go_to(eye, one).await?;
    }
    Ok(())
}
