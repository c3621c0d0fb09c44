//! A Millrace that begins with some seeds, and what its metrics and its log say of the servers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millrace_sandbox::{Cluster, ServerInfo};
use millrace_tests::harness::{Proxy, ProxyOptions};

/// How long finding servers may take.
pub(crate) const FOUND: Duration = Duration::from_secs(10);

/// What is known of the servers at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Those that answer, by port, and whether they take reads.
    pub(crate) up: BTreeMap<u16, bool>,
    pub(crate) down: Vec<u16>,
    pub(crate) primary: Option<u16>,
    /// Why no server takes writes; empty where one does.
    pub(crate) without: String,
    pub(crate) changes: u64,
}

impl View {
    /// Servers that take reads, by port.
    pub(crate) fn fit(&self) -> Vec<u16> {
        let fit = self.up.iter().filter(|(_, fit)| **fit);
        fit.map(|(port, _)| *port).collect()
    }

    fn parse(metrics: &str) -> anyhow::Result<View> {
        let mut view = View::default();
        let mut fit: BTreeMap<u16, bool> = BTreeMap::new();
        for line in metrics.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let label = name.split('"').nth(1).unwrap_or_default();
            let port = label.rsplit(':').next().and_then(|port| port.parse().ok());
            let is_one = value == "1";
            match (name.split('{').next().unwrap_or_default(), port) {
                ("millrace_server_up", Some(port)) if is_one => {
                    view.up.insert(port, false);
                }
                ("millrace_server_up", Some(port)) => view.down.push(port),
                ("millrace_server_fit", Some(port)) => {
                    // Two names of one server have one port here.
                    *fit.entry(port).or_default() |= is_one;
                }
                ("millrace_server_primary", Some(port)) if is_one => view.primary = Some(port),
                ("millrace_without_primary", _) if is_one => view.without = label.to_owned(),
                ("millrace_primary_changes_total", _) => view.changes = value.parse()?,
                _ => {}
            }
        }
        for (port, up) in &mut view.up {
            *up = *fit.get(port).context("a server without fitness")?;
        }
        Ok(view)
    }
}

/// A Millrace of its own, before whatever it finds.
pub(crate) struct Eye(pub(crate) Proxy);

impl Eye {
    /// Begins with these addresses.
    pub(crate) async fn open(seeds: &[String], more: &str) -> anyhow::Result<Eye> {
        let options = ProxyOptions {
            log: "info",
            extra: format!("[discovery]\nmode = \"auto\"\n{more}"),
            ..ProxyOptions::default()
        };
        Ok(Eye(Proxy::start(seeds, &options).await?))
    }

    /// Begins with one server.
    pub(crate) async fn at(server: &ServerInfo) -> anyhow::Result<Eye> {
        Eye::open(&[address(server.port)], "").await
    }

    pub(crate) async fn view(&self) -> anyhow::Result<View> {
        View::parse(&self.0.metrics().await?)
    }

    /// Waits for something to be seen; says how long it took.
    pub(crate) async fn until(
        &self,
        what: &str,
        limit: Duration,
        seen: impl Fn(&View) -> bool,
    ) -> anyhow::Result<(View, Duration)> {
        let begun = Instant::now();
        loop {
            let view = self.view().await?;
            if seen(&view) {
                return Ok((view, begun.elapsed()));
            }
            if begun.elapsed() > limit {
                bail!("not {what} after {limit:?}, but {view:?}\n{}", self.0.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until all servers of the cluster take reads, and `primary` takes writes.
    pub(crate) async fn whole(&self, cluster: &Cluster, primary: &str) -> anyhow::Result<View> {
        let all = ports(cluster);
        let primary = port(cluster, primary)?;
        let whole = |view: &View| view.fit() == all && view.primary == Some(primary);
        let (view, _) = self.until("whole", FOUND, whole).await?;
        Ok(view)
    }

    /// How many lines of the log have these words.
    pub(crate) fn lines(&self, words: &str) -> anyhow::Result<usize> {
        let log = std::fs::read_to_string(self.0.log_path())?;
        Ok(log.lines().filter(|line| line.contains(words)).count())
    }
}

pub(crate) fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Of all servers, in order.
pub(crate) fn ports(cluster: &Cluster) -> Vec<u16> {
    let mut ports: Vec<u16> = cluster.servers().iter().map(|server| server.port).collect();
    ports.sort_unstable();
    ports
}

pub(crate) fn server(cluster: &Cluster, name: &str) -> anyhow::Result<ServerInfo> {
    let mut servers = cluster.servers().into_iter();
    servers
        .find(|server| server.name == name)
        .with_context(|| format!("no server {name}"))
}

pub(crate) fn port(cluster: &Cluster, name: &str) -> anyhow::Result<u16> {
    Ok(server(cluster, name)?.port)
}
