//! A cluster, forwarders before its servers where a network is to be cut, Millrace before them,
//! and what the servers have. It breaks nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, ClusterSpec, Release, Topology};
use millrace_tests::cutter::{Cutter, Mode};
use millrace_tests::harness::{self, Proxy, ProxyOptions};
use millrace_tests::ledger::{Contents, Row};
use millrace_tests::load;
use millrace_tests::netns::Hosts;
use millrace_tests::wire::{Connection, Login, Target};
use millrace_tests::witness;

use crate::purpose;

/// A row that an operator is answered with.
pub(crate) type AdminRow = BTreeMap<String, Option<String>>;

/// What a series of faults runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) release: Release,
    pub(crate) topology: Topology,
    /// Asynchronous clusters: no acknowledged write is only on the primary.
    pub(crate) semi_sync: bool,
    /// Forwarders stand before the servers.
    pub(crate) forwarders: bool,
    /// Disks can be filled and slowed down.
    pub(crate) disks: Disks,
    /// Millraces side by side; clients are spread over them.
    pub(crate) proxies: usize,
    /// Millrace knows the servers by names, which may come to mean others.
    pub(crate) names: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disks {
    Plain,
    /// So small that they can be filled.
    Small,
    /// Every commit waits for the disk.
    Honest,
}

impl Plan {
    pub(crate) fn new(release: Release, topology: Topology) -> Self {
        Plan {
            release,
            topology,
            semi_sync: topology == Topology::Async,
            forwarders: false,
            disks: Disks::Plain,
            proxies: 1,
            names: false,
        }
    }

    pub(crate) fn name(&self) -> String {
        let mut name = match (self.topology, self.semi_sync) {
            (Topology::Async, true) => format!("{}, semi-synchronous", self.release),
            (Topology::Async, false) => format!("{}, asynchronous", self.release),
            (Topology::Group, _) => "Group Replication".to_owned(),
            (Topology::Galera, _) if self.release == Release::MariaDb => "Galera".to_owned(),
            (Topology::Galera, _) => format!("Galera of {}", self.release),
        };
        if self.names {
            name += ", by names";
        }
        if self.proxies > 1 {
            name += &format!(", {} Millraces", self.proxies);
        }
        name
    }
}

/// Servers and Millrace, running.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) plan: Plan,
    /// Before the cluster: dropped first.
    pub(crate) proxies: Vec<Proxy>,
    /// Where each of them answers operators.
    admin_ports: Vec<u16>,
    /// In the servers' order.
    pub(crate) cutters: Vec<Cutter>,
    pub(crate) cluster: Cluster,
    names: Option<Names>,
}

/// Where each server listens that has a name, and what the names mean: each its number of a server.
#[derive(Debug)]
struct Names {
    hosts: Hosts,
    meanings: RefCell<Vec<usize>>,
}

const PORT: u16 = 3306;

fn machine(at: usize) -> IpAddr {
    IpAddr::from([127, 0, 0, 11 + u8::try_from(at).unwrap_or(0)])
}

impl Names {
    /// Has names mean servers; all at once.
    fn set(&self, meanings: Vec<usize>) -> anyhow::Result<()> {
        let lines: Vec<(String, String)> = meanings
            .iter()
            .enumerate()
            .map(|(name, server)| (format!("db-{name}"), machine(*server).to_string()))
            .collect();
        let lines: Vec<(&str, &str)> = lines.iter().map(|(a, b)| (&**a, &**b)).collect();
        self.meanings.replace(meanings);
        self.hosts.set(&lines)
    }
}

impl Ground {
    pub(crate) async fn start(plan: Plan) -> anyhow::Result<Self> {
        let mut spec = ClusterSpec::new(plan.release);
        spec.topology = plan.topology;
        spec.semi_sync = plan.semi_sync;
        match plan.disks {
            Disks::Plain => {}
            Disks::Small => spec.disk_mib = Some(700),
            Disks::Honest => {
                let options = ["--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1"];
                spec.extra_args.extend(options.map(String::from));
            }
        }
        let cluster = Cluster::up(spec).await?;
        let mut ground = Ground {
            plan,
            proxies: Vec::new(),
            admin_ports: Vec::new(),
            cutters: Vec::new(),
            cluster,
            names: None,
        };
        ground.start_forwarders().await?;
        ground.name_servers().await?;
        ground.clear().await?;
        ground.start_proxies().await?;
        Ok(ground)
    }

    /// Replicas fetch through them too: a server that is cut off is cut off from all.
    async fn start_forwarders(&mut self) -> anyhow::Result<()> {
        if !self.plan.forwarders {
            return Ok(());
        }
        for server in self.cluster.servers() {
            self.cutters.push(Cutter::start(server.port).await?);
        }
        let primary = self.cluster.primary().name;
        let port = self.cutter(&primary)?.port;
        for replica in self.cluster.replicas() {
            self.cluster.replicate_via(&replica.name, port).await?;
        }
        Ok(())
    }

    async fn name_servers(&mut self) -> anyhow::Result<()> {
        if !self.plan.names {
            return Ok(());
        }
        let servers = self.cluster.servers();
        for (at, server) in servers.iter().enumerate() {
            let address = SocketAddr::new(machine(at), PORT);
            self.cutters
                .push(Cutter::start_at(address, server.port).await?);
        }
        let names = Names {
            hosts: Hosts::new(&[])?,
            meanings: RefCell::default(),
        };
        names.set((0..servers.len()).collect())?;
        self.names = Some(names);
        Ok(())
    }

    /// Has the names of two servers mean each other.
    pub(crate) fn swap_names(&self, one: &str, other: &str) -> anyhow::Result<()> {
        let names = self.names.as_ref().context("no names")?;
        let mut meanings = names.meanings.borrow().clone();
        let (one, other) = (self.named(one)?, self.named(other)?);
        meanings.swap(one, other);
        names.set(meanings)
    }

    /// Has the name of a server mean another as well; gives how all names were before.
    pub(crate) fn move_name(&self, of: &str, to: &str) -> anyhow::Result<Vec<usize>> {
        let names = self.names.as_ref().context("no names")?;
        let before = names.meanings.borrow().clone();
        let mut meanings = before.clone();
        meanings[self.named(of)?] = self.number(to)?;
        names.set(meanings)?;
        Ok(before)
    }

    /// Has names mean what they meant before.
    pub(crate) fn restore_names(&self, before: Vec<usize>) -> anyhow::Result<()> {
        self.names.as_ref().context("no names")?.set(before)
    }

    fn number(&self, server: &str) -> anyhow::Result<usize> {
        let servers = self.cluster.servers();
        let at = servers.iter().position(|info| info.name == server);
        at.with_context(|| format!("no server {server}"))
    }

    /// The name that means a server.
    fn named(&self, server: &str) -> anyhow::Result<usize> {
        let names = self.names.as_ref().context("no names")?;
        let number = self.number(server)?;
        let meanings = names.meanings.borrow();
        let name = meanings.iter().position(|meaning| *meaning == number);
        name.with_context(|| format!("no name means {server}"))
    }

    async fn start_proxies(&mut self) -> anyhow::Result<()> {
        let direct = self.cluster.servers().into_iter().map(|s| s.port);
        let through = self.cutters.iter().map(|cutter| cutter.port);
        let ports: Vec<u16> = match self.plan.forwarders {
            true => through.collect(),
            false => direct.collect(),
        };
        let addresses: Vec<String> = match &self.names {
            Some(names) => {
                let count = names.meanings.borrow().len();
                (0..count).map(|name| format!("db-{name}:{PORT}")).collect()
            }
            None => ports.iter().map(|p| format!("127.0.0.1:{p}")).collect(),
        };
        for _ in 0..self.plan.proxies {
            let port = harness::free_port()?;
            let options = ProxyOptions {
                pool_max: 100,
                log: "info",
                extra: format!(
                    "[admin]\nlisten = \"127.0.0.1:{port}\"\n\
                     password_env = \"MILLRACE_ADMIN_PASSWORD\"\n"
                ),
                ..ProxyOptions::default()
            };
            self.proxies.push(Proxy::start(&addresses, &options).await?);
            self.admin_ports.push(port);
        }
        Ok(())
    }

    pub(crate) fn cutter(&self, server: &str) -> anyhow::Result<&Cutter> {
        let servers = self.cluster.servers();
        let at = servers.iter().position(|s| s.name == server);
        at.and_then(|at| self.cutters.get(at))
            .with_context(|| format!("no forwarder before {server}"))
    }

    pub(crate) fn cut(&self, server: &str, mode: Mode) -> anyhow::Result<()> {
        self.cutter(server)?.set(mode);
        Ok(())
    }

    pub(crate) fn logins(&self) -> Vec<Login> {
        let login = |proxy: &Proxy| {
            let mut login = Login::new(proxy.address(), APP.user, APP.password);
            login.timeout = Duration::from_secs(60);
            login
        };
        self.proxies.iter().map(login).collect()
    }

    /// The clients' account on every server itself.
    pub(crate) fn direct(&self) -> Vec<Login> {
        let servers = self.cluster.servers().into_iter();
        let login = |port| {
            let mut login = Login::new(
                Target::Tcp(format!("127.0.0.1:{port}")),
                APP.user,
                APP.password,
            );
            login.timeout = Duration::from_secs(60);
            login
        };
        servers.map(|server| login(server.port)).collect()
    }

    /// Has every Millrace run an operator's statement; gives the answers' rows by column.
    pub(crate) async fn operate(&self, statement: &str) -> anyhow::Result<Vec<Vec<AdminRow>>> {
        let mut answers = Vec::new();
        for port in &self.admin_ports {
            let target = Target::Tcp(format!("127.0.0.1:{port}"));
            let mut login = Login::new(target, "admin", harness::ADMIN_PASSWORD);
            login.timeout = Duration::from_secs(60);
            let mut connection = Connection::open(&login).await?;
            let reply = connection.expect(statement).await?;
            connection.quit().await;
            let columns = reply.columns();
            let names: Vec<String> = columns
                .iter()
                .map(|column| String::from_utf8_lossy(&column.name).into_owned())
                .collect();
            let rows = reply.rows().into_iter();
            answers.push(
                rows.map(|row| names.iter().cloned().zip(row).collect())
                    .collect(),
            );
        }
        Ok(answers)
    }

    /// The server that takes writes: of a Galera cluster the one that Millrace has chosen.
    pub(crate) async fn writer(&self) -> anyhow::Result<String> {
        if self.plan.topology != Topology::Galera {
            return Ok(self.cluster.primary().name);
        }
        let answers = self.operate("SHOW SERVERS WHERE role = 'primary'").await?;
        let row = answers.first().and_then(|rows| rows.first());
        let address = row.and_then(|row| row.get("address")?.clone());
        let address = address.context("Millrace has no primary")?;
        let servers = self.cluster.servers();
        let server = servers.into_iter().find(|s| s.addr() == address);
        Ok(server.context("Millrace's primary is none of ours")?.name)
    }

    /// A Millrace that starts now, and has seen nothing of before, takes a write.
    pub(crate) async fn writes_by_another(&self) -> anyhow::Result<()> {
        let servers = self.cluster.servers().into_iter();
        let addresses: Vec<String> = servers.map(|server| server.addr()).collect();
        let proxy = Proxy::start(&addresses, &ProxyOptions::default()).await?;
        let mut login = Login::new(proxy.address(), APP.user, APP.password);
        login.timeout = Duration::from_secs(5);
        let mut connection = Connection::open(&login).await?;
        let sql = "UPDATE app.struck SET n = n + 1 WHERE id = 0";
        connection.expect(sql).await?;
        let back = "UPDATE app.struck SET n = n - 1 WHERE id = 0";
        connection.expect(back).await.context("written once")?;
        Ok(())
    }

    /// How Millrace knows a server.
    pub(crate) fn address(&self, server: &str) -> anyhow::Result<String> {
        if self.plan.forwarders {
            return Ok(format!("127.0.0.1:{}", self.cutter(server)?.port));
        }
        if self.plan.names {
            return Ok(format!("db-{}:{PORT}", self.named(server)?));
        }
        let servers = self.cluster.servers();
        let info = servers.iter().find(|s| s.name == server);
        Ok(info.with_context(|| format!("no server {server}"))?.addr())
    }

    /// How Millrace sees the servers, and how they see themselves: for those who must understand why
    /// clients wait.
    pub(crate) async fn picture(&self) -> String {
        let mut text = String::new();
        match self.operate("SHOW SERVERS").await {
            Ok(answers) => {
                for row in answers.iter().flatten() {
                    let cells = row.iter().filter_map(|(name, value)| {
                        let value = value.as_ref().filter(|value| value.len() < 60)?;
                        Some(format!("{name}={value}"))
                    });
                    text += &format!("--- Millrace: {}\n", cells.collect::<Vec<_>>().join(" "));
                }
            }
            Err(error) => text += &format!("--- Millrace does not say: {error:#}\n"),
        }
        for server in self.cluster.servers() {
            let asked = tokio::time::timeout(Duration::from_secs(2), self.standing(&server.name));
            let said = match asked.await {
                Ok(Ok(said)) => said,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "no answer".to_owned(),
            };
            text += &format!("--- {} ({}): {said}\n", server.name, server.addr());
        }
        text
    }

    /// What a server says of itself, asked directly.
    async fn standing(&self, server: &str) -> anyhow::Result<String> {
        let questions: &[&str] = match self.plan.topology {
            Topology::Galera => &[
                "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_status'",
                "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_local_state_comment'",
                "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_size'",
                "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_ready'",
            ],
            Topology::Group => &[
                "SELECT GROUP_CONCAT(MEMBER_PORT, ' ', MEMBER_STATE, ' ', MEMBER_ROLE) AS members \
                 FROM performance_schema.replication_group_members",
                "SELECT @@GLOBAL.super_read_only",
            ],
            Topology::Async => &["SELECT @@GLOBAL.read_only"],
        };
        let mut control = self.cluster.control(server).await?;
        let mut said = Vec::new();
        for question in questions {
            let row = control.row(question).await?.unwrap_or_default();
            let cells = row
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"));
            said.push(cells.collect::<Vec<_>>().join(" "));
        }
        control.close().await;
        Ok(said.join(", "))
    }

    /// Empty tables, everywhere.
    pub(crate) async fn clear(&self) -> anyhow::Result<()> {
        let mut control = self.cluster.control(&self.cluster.primary().name).await?;
        for statement in load::schema() {
            control.run(&statement).await?;
        }
        control.run(witness::SCHEMA).await?;
        for statement in purpose::SCHEMA {
            control.run(statement).await?;
        }
        control.close().await;
        self.caught_up().await
    }

    pub(crate) async fn caught_up(&self) -> anyhow::Result<()> {
        let limit = Duration::from_secs(20);
        self.cluster.wait_replicas_caught_up(limit).await
    }

    /// What a server has, asked directly.
    pub(crate) async fn contents(&self, server: &str) -> anyhow::Result<Contents> {
        let servers = self.cluster.servers();
        let info = servers.iter().find(|s| s.name == server);
        let port = info.with_context(|| format!("no server {server}"))?.port;
        let mut connection = Connection::open(&harness::admin(port)).await?;
        let sql = "SELECT client, seq, origin, CAST(UNIX_TIMESTAMP(at) * 1000000 AS UNSIGNED) \
                   FROM app.ledger";
        let rows = numbers(&mut connection, sql).await?;
        let counters = numbers(&mut connection, "SELECT client, n FROM app.counters").await?;
        connection.quit().await;
        let row = |row: &Vec<u64>| {
            let key = (row[0] as u32, row[1] as u32);
            let origin = row[2] as u32;
            (
                key,
                Row {
                    origin,
                    at_us: row[3],
                },
            )
        };
        Ok(Contents {
            rows: rows.iter().map(row).collect(),
            counters: counters
                .iter()
                .map(|c| (c[0] as u32, c[1]))
                .collect::<BTreeMap<_, _>>(),
        })
    }
}

async fn numbers(connection: &mut Connection, sql: &str) -> anyhow::Result<Vec<Vec<u64>>> {
    let reply = connection.expect(sql).await?;
    let mut all = Vec::new();
    for row in reply.rows() {
        let row: Result<Vec<u64>, _> = row
            .into_iter()
            .map(|value| value.unwrap_or_default().parse())
            .collect();
        all.push(row?);
    }
    ensure!(!sql.contains("counters") || !all.is_empty(), "no counters");
    Ok(all)
}
