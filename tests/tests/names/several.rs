//! Names of several addresses: a headless service's, whose machines come and go, and those of machines with IPv4 and
//! IPv6.

use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::Cluster;
use millrace_tests::checks::Checks;
use millrace_tests::dns::{Dns, Record};
use millrace_tests::harness::Proxy;
use millrace_tests::netns;

use crate::ground::{Load, MACHINES, Machines, mark, proxy, reads_from, written};

/// Within this time a change is seen, and a write goes on.
const SEEN: Duration = Duration::from_secs(6);

const ONE: &str = "127.0.0.11";
const TWO: &str = "127.0.0.12";
const THREE: &str = "127.0.0.13";

fn set(dns: &mut Dns, addresses: &[&str]) -> anyhow::Result<()> {
    dns.set(&[("db", Record::Addresses(addresses))])
}

/// The servers that metrics name.
async fn servers(proxy: &Proxy) -> anyhow::Result<Vec<String>> {
    let metrics = proxy.metrics().await?;
    let lines = metrics.lines();
    let up = lines.filter_map(|line| line.strip_prefix("millrace_server_up{server=\""));
    let mut names: Vec<String> = up
        .filter_map(|line| Some(line.split_once(":3306\"")?.0.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// Waits until these are the servers.
async fn are(proxy: &Proxy, expected: &[&str]) -> anyhow::Result<()> {
    let deadline = Instant::now() + SEEN;
    loop {
        let seen = servers(proxy).await?;
        if seen == expected {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{seen:?} are the servers, not {expected:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Three machines of one name; one goes, another comes, also the primary.
async fn headless(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    set(dns, &[ONE, TWO])?;
    let proxy = proxy(&["db"], "weight = 2\n").await?;
    are(&proxy, &[ONE, TWO]).await?;
    reads_from(&proxy, cluster, 1).await?;
    let before = written(cluster, &cluster.primary().name).await?;
    let load = Load::start(&proxy);
    set(dns, &[ONE, TWO, THREE])?;
    are(&proxy, &[ONE, TWO, THREE]).await?;
    reads_from(&proxy, cluster, 2).await?;
    set(dns, &[ONE, THREE])?;
    are(&proxy, &[ONE, THREE]).await?;
    reads_from(&proxy, cluster, 2).await?;
    cluster.promote(&cluster.servers()[2].name).await?;
    set(dns, &[TWO, THREE])?;
    are(&proxy, &[TWO, THREE]).await?;
    reads_from(&proxy, cluster, 1).await?;
    // All at once, as a cluster that is moved to other machines.
    cluster.promote(&cluster.servers()[0].name).await?;
    set(dns, &[ONE])?;
    are(&proxy, &[ONE]).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seen = load.end().await?;
    seen.is_well(SEEN)?;
    let there = written(cluster, &cluster.primary().name).await? - before;
    ensure!(
        there == seen.done,
        "{} were acknowledged, {there} are there",
        seen.done
    );
    Ok(())
}

/// A name of one machine comes to stand for several: nobody is disturbed.
async fn grows(cluster: &Cluster, dns: &mut Dns) -> anyhow::Result<()> {
    set(dns, &[ONE])?;
    let proxy = proxy(&["db"], "").await?;
    are(&proxy, &["db"]).await?;
    let load = Load::start(&proxy);
    set(dns, &[ONE, TWO])?;
    reads_from(&proxy, cluster, 1).await?;
    are(&proxy, &[ONE, TWO, "db"]).await?;
    cluster.promote(&cluster.servers()[1].name).await?;
    are(&proxy, &[ONE, TWO]).await?;
    reads_from(&proxy, cluster, 0).await?;
    cluster.promote(&cluster.servers()[0].name).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    load.end().await?.is_well(SEEN)
}

/// A machine with an address of each family is one server, by its name alone or among others.
async fn both_families(
    cluster: &Cluster,
    dns: &mut Dns,
    machines: &mut Machines,
) -> anyhow::Result<()> {
    machines
        .add(
            std::net::Ipv6Addr::LOCALHOST.into(),
            cluster.servers()[0].port,
        )
        .await?;
    set(dns, &[ONE, "::1"])?;
    let alone = proxy(&["db"], "").await?;
    let load = Load::start(&alone);
    tokio::time::sleep(Duration::from_secs(3)).await;
    are(&alone, &["db"]).await?;
    load.end().await?.is_well(SEEN)?;
    drop(alone);
    set(dns, &[ONE, TWO, "::1"])?;
    let among = proxy(&["db"], "").await?;
    are(&among, &[ONE, TWO, "[::1]"]).await?;
    let load = Load::start(&among);
    reads_from(&among, cluster, 1).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    load.end().await?.is_well(SEEN)?;
    let metrics = among.metrics().await?;
    let is_primary =
        |line: &&str| line.starts_with("millrace_server_primary{") && line.ends_with(" 1");
    let primaries: Vec<&str> = metrics.lines().filter(is_primary).collect();
    ensure!(primaries.len() == 1, "{primaries:?}");
    Ok(())
}

/// The resolver prefers IPv6, where nobody listens, or no packet goes.
async fn ipv6_leads_nowhere(dns: &mut Dns) -> anyhow::Result<()> {
    netns::swallow_ipv6("fd00::98")?;
    for nowhere in ["fd00::98", "fd00::99", "::ffff:127.0.0.98"] {
        set(dns, &[ONE, nowhere])?;
        let begun = Instant::now();
        let proxy = proxy(&["db"], "").await?;
        ensure!(
            begun.elapsed() < SEEN,
            "ready after {:.1?}",
            begun.elapsed()
        );
        let load = Load::start(&proxy);
        tokio::time::sleep(Duration::from_secs(2)).await;
        load.end().await?.is_well(Duration::from_secs(2))?;
    }
    Ok(())
}

pub(crate) async fn all(cluster: &Cluster) -> anyhow::Result<()> {
    let mut dns = Dns::start()?;
    mark(cluster).await?;
    let mut machines = Machines::of(cluster).await?;
    ensure!(MACHINES[0].to_string() == ONE, "the primary's address");
    let mut checks = Checks::new(format!("names of several, {}", cluster.family()));
    checks
        .run("a headless service", headless(cluster, &mut dns))
        .await;
    checks.run("a name grows", grows(cluster, &mut dns)).await;
    checks
        .run(
            "both families",
            both_families(cluster, &mut dns, &mut machines),
        )
        .await;
    checks
        .run("IPv6 leads nowhere", ipv6_leads_nowhere(&mut dns))
        .await;
    checks.finish()
}
