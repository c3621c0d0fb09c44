//! Names in DNS, as a cloud has them: they move by a CNAME, to machines that are known already, and the server
//! that is asked for them is gone, hangs, is slow, or lies.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{Cluster, ClusterSpec};
use millrace_tests::checks::Checks;
use millrace_tests::dns::{Answers, Dns, Record};
use millrace_tests::harness::Proxy;
use millrace_tests::wire::Connection;

use tokio::net::TcpListener;
use tokio::task::spawn_local;

use crate::ground::{Load, MACHINES, Machines, PORT, Seen, app, mark, proxy, reads_from, written};

/// The longest that a write may take where a primary is replaced and a name moves, the promotion included.
const MOVED: Duration = Duration::from_secs(5);
/// The same where nothing happens but that names cannot be looked up.
const UNMOVED: Duration = Duration::from_secs(2);
/// How long a resolver is out of order.
const OUTAGE: Duration = Duration::from_secs(10);

/// The names of the machines themselves, and beside them names that stand for one of these.
fn set(dns: &mut Dns, names: &[(&str, Record<'_>)]) -> anyhow::Result<()> {
    let addresses = MACHINES.map(|machine| machine.to_string());
    let [one, two, three] = addresses.each_ref().map(|address| [&**address]);
    let mut all = vec![
        ("m0", Record::Addresses(&one)),
        ("m1", Record::Addresses(&two)),
        ("m2", Record::Addresses(&three)),
    ];
    all.extend_from_slice(names);
    dns.without_relay()?;
    dns.set(&all)
}

fn place(at: usize) -> Record<'static> {
    Record::Cname(["m0", "m1", "m2"][at])
}

/// Where the cluster's primary is among the machines.
fn writer(cluster: &Cluster) -> anyhow::Result<usize> {
    let primary = cluster.primary().port;
    let servers = cluster.servers();
    let found = servers.iter().position(|server| server.port == primary);
    found.context("no primary")
}

/// Every acknowledged write is at the primary, and it alone was written to.
async fn all_there(cluster: &Cluster, before: u32, seen: &Seen) -> anyhow::Result<()> {
    let there = written(cluster, &cluster.primary().name).await? - before;
    ensure!(
        there == seen.done,
        "{} were acknowledged, {there} are there",
        seen.done
    );
    Ok(())
}

async fn count(cluster: &Cluster) -> anyhow::Result<u32> {
    written(cluster, &cluster.primary().name).await
}

/// A managed service's switchover: the names are CNAMEs, which are swapped after the roles were.
async fn switchover(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = count(cluster).await?;
    let load = Load::start(&proxy);
    for new in [1, 0] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.promote(&cluster.servers()[new].name).await?;
        set(dns, &[("db-w", place(new)), ("db-r", place(1 - new))])?;
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    let seen = load.end().await?;
    seen.is_well(MOVED)?;
    all_there(cluster, before, &seen).await
}

/// A selector in Kubernetes: the writer's name moves to a machine that has a name already, and back.
async fn selector(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = count(cluster).await?;
    let load = Load::start(&proxy);
    for new in [1, 0] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.promote(&cluster.servers()[new].name).await?;
        set(dns, &[("db-w", place(new)), ("db-r", place(1))])?;
        tokio::time::sleep(Duration::from_secs(8)).await;
    }
    let seen = load.end().await?;
    seen.is_well(MOVED)?;
    all_there(cluster, before, &seen).await
}

fn threads(proxy: &Proxy) -> anyhow::Result<usize> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", proxy.pid()))?;
    Ok(tasks.count())
}

/// The resolver's server is gone, and then hangs: nothing is disturbed by it, not even a switchover.
async fn resolver_down(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
    let mut proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = count(cluster).await?;
    let load = Load::start(&proxy);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let threads_before = threads(&proxy)?;
    dns.stop();
    tokio::time::sleep(OUTAGE).await;
    dns.run()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    dns.hang()?;
    let hung = Instant::now();
    let mut most = 0;
    while hung.elapsed() < OUTAGE {
        // A new session, and statements that need new connections.
        let mut client = Connection::open(&app(&proxy)).await?;
        let begun = Instant::now();
        client.expect("BEGIN").await?;
        let write = "INSERT INTO app.moved VALUES (2, 1) ON DUPLICATE KEY UPDATE n = n + 1";
        client.expect(write).await?;
        client.expect("COMMIT").await?;
        ensure!(
            begun.elapsed() < UNMOVED,
            "a transaction took {:.1?}",
            begun.elapsed()
        );
        client.quit().await;
        most = most.max(threads(&proxy)?);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    cluster.promote(&cluster.servers()[1].name).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let other = cluster.servers()[0].name.clone();
    cluster.kill(&other).await?;
    cluster.start(&other).await?;
    reads_from(&proxy, cluster, 0).await?;
    cluster.promote(&other).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    most = most.max(threads(&proxy)?);
    let seen = load.end().await?;
    seen.is_well(MOVED)?;
    all_there(cluster, before, &seen).await?;
    println!("  {threads_before} threads before, {most} at most");
    ensure!(
        most <= threads_before + 12,
        "{most} threads, {threads_before} before"
    );
    let (_, took) = proxy.terminate(Duration::from_secs(30)).await?;
    dns.go_on()?;
    ensure!(
        took < Duration::from_secs(3),
        "it took {took:.1?} to end while a name was looked up"
    );
    Ok(())
}

/// The resolver is slow, knows of no names for a while, or says that it cannot tell.
async fn resolver_errs(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
    let relay = dns.relay().await?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = count(cluster).await?;
    let load = Load::start(&proxy);
    for answers in [
        Answers::After(Duration::from_secs(3)),
        Answers::Nothing(3),
        Answers::Nothing(2),
        Answers::Nothing(0),
    ] {
        relay.answers(answers);
        tokio::time::sleep(Duration::from_secs(4)).await;
        relay.answers(Answers::After(Duration::ZERO));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    relay.answers(Answers::Nothing(3));
    reads_from(&proxy, cluster, 1).await?;
    let seen = load.end().await?;
    seen.is_well(UNMOVED)?;
    all_there(cluster, before, &seen).await
}

/// Names mean for a while where nobody listens: the machines before are the servers until somebody does.
async fn nobody_there(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    let nobody = Record::Addresses(&["127.0.0.99"]);
    set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = count(cluster).await?;
    let load = Load::start(&proxy);
    set(dns, &[("db-w", nobody), ("db-r", place(1))])?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    set(dns, &[("db-w", nobody), ("db-r", nobody)])?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Somebody is there who speaks another protocol: a search domain has a record for every name.
    let other = TcpListener::bind(("127.0.0.98", PORT)).await?;
    let silent = spawn_local(async move {
        let mut clients = Vec::new();
        while let Ok((client, _)) = other.accept().await {
            clients.push(client);
        }
    });
    let another = Record::Addresses(&["127.0.0.98"]);
    set(dns, &[("db-w", another), ("db-r", another)])?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    silent.abort();
    reads_from(&proxy, cluster, 1).await?;
    let seen = load.end().await?;
    seen.is_well(UNMOVED)?;
    all_there(cluster, before, &seen).await
}

/// A name means one machine of two in turn, as a reader's endpoint of Amazon Aurora does.
async fn takes_turns(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let load = Load::start(&proxy);
    for at in [2, 1, 2, 1, 2, 1] {
        set(dns, &[("db-w", place(0)), ("db-r", place(at))])?;
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    let log = std::fs::read_to_string(proxy.log_path())?;
    let moved = log.matches("its name no longer means this machine").count();
    ensure!(moved <= 2, "the server has moved {moved} times");
    load.end().await?.is_well(UNMOVED)
}

/// Names mean for a while machines of another cluster, which would take every write or read. Its servers have the
/// numbers of this one's.
async fn of_another_cluster(
    cluster: &Cluster,
    dns: &mut Dns,
    machines: &mut Machines,
) -> anyhow::Result<()> {
    let mut spec = ClusterSpec::new(cluster.family());
    spec.replicas = 1;
    let other = Cluster::up(spec).await?;
    mark(&other).await?;
    let stranger = other.primary();
    let mut controls = Vec::new();
    for (server, last) in other.servers().iter().zip([21, 22]) {
        machines.add([127, 0, 0, last].into(), server.port).await?;
        let mut control = other.control(&server.name).await?;
        control.run("SET GLOBAL log_output='TABLE'").await?;
        control.run("SET GLOBAL general_log=ON").await?;
        controls.push(control);
    }
    let there = Record::Addresses(&["127.0.0.21"]);
    let its_replica = Record::Addresses(&["127.0.0.22"]);
    set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
    let proxy = proxy(&["db-w", "db-r"], "").await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = count(cluster).await?;
    let load = Load::start(&proxy);
    let moves = [
        (place(0), there),
        (there, place(1)),
        (there, there),
        (place(0), its_replica),
    ];
    for (w, r) in moves {
        set(dns, &[("db-w", w), ("db-r", r)])?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        set(dns, &[("db-w", place(0)), ("db-r", place(1))])?;
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    // The replica is down while its name means the other.
    let replica = cluster.servers()[1].name.clone();
    for stranger in [there, its_replica] {
        set(dns, &[("db-w", place(0)), ("db-r", stranger)])?;
        cluster.kill(&replica).await?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        cluster.start(&replica).await?;
        reads_from(&proxy, cluster, 1).await?;
    }
    let seen = load.end().await?;
    let sent = "SELECT COUNT(*) FROM mysql.general_log WHERE user_host LIKE '%app%'";
    for mut control in controls {
        let sent = control.value(sent).await?;
        control.close().await;
        ensure!(sent.as_deref() == Some("0"), "{sent:?} were sent there");
    }
    let strange = written(&other, &stranger.name).await?;
    ensure!(
        strange == 0,
        "{strange} writes are at a machine of another cluster"
    );
    seen.is_well(UNMOVED)?;
    all_there(cluster, before, &seen).await?;
    reads_from(&proxy, cluster, 1).await
}

pub(crate) async fn all(cluster: &Cluster) -> anyhow::Result<()> {
    let mut dns = Dns::start()?;
    mark(cluster).await?;
    let mut machines = Machines::of(cluster).await?;
    ensure!(writer(cluster)? == 0, "the first machine is the primary");
    let mut checks = Checks::new(format!("names in DNS, {}", cluster.family()));
    checks
        .run(
            "a managed service's switchover",
            switchover(cluster, &mut dns),
        )
        .await;
    checks.run("a selector", selector(cluster, &mut dns)).await;
    checks
        .run("the resolver is down", resolver_down(cluster, &mut dns))
        .await;
    checks
        .run("the resolver errs", resolver_errs(cluster, &mut dns))
        .await;
    checks
        .run("a name takes turns", takes_turns(cluster, &mut dns))
        .await;
    checks
        .run("nobody is there", nobody_there(cluster, &mut dns))
        .await;
    checks
        .run(
            "a machine of another cluster",
            of_another_cluster(cluster, &mut dns, &mut machines),
        )
        .await;
    checks.finish()
}
