//! `millrace check --connect`: asks the servers what `serve` would ask them, and says what stands in the way. Serves
//! nobody and writes nothing.

use std::sync::Arc;
use std::time::Duration;

use millrace_backend::connect::{Address, Network, SharedNetwork, can_log_in};
use millrace_backend::error::BackendError;
use millrace_backend::monitor::{Monitor, MonitorOptions, Sounding, sound};
use millrace_backend::names::Resolver;
use millrace_backend::questions::Questions;
use millrace_config::{Account, Config};
use millrace_topology::{Health, ServerView, Snapshot};
use serde::Serialize;
use tokio::runtime::{Builder, LocalOptions};

use crate::tls;

/// All that was found.
#[derive(Debug, Serialize)]
struct Report {
    /// Nothing stands in the way.
    good: bool,
    /// The server that takes writes.
    primary: Option<String>,
    /// What stands in the way, of no server alone.
    problems: Vec<String>,
    servers: Vec<Server>,
}

#[derive(Debug, Serialize)]
struct Server {
    address: String,
    version: Option<String>,
    role: String,
    /// It takes reads.
    fit: bool,
    lag_seconds: Option<u64>,
    /// What stands in the way.
    problems: Vec<String>,
    /// What works less well than it could, and why.
    notes: Vec<String>,
}

/// Answers the exit code.
pub(crate) fn run(config: &Config, json: bool) -> anyhow::Result<i32> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    let report = runtime.block_on(report(config))?;
    match json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => print(&report),
    }
    Ok(i32::from(!report.good))
}

fn print(report: &Report) {
    for server in &report.servers {
        let version = server.version.as_deref().unwrap_or("version not known");
        let reads = if server.fit { ", takes reads" } else { "" };
        let lag = match server.lag_seconds {
            Some(lag) => format!(", {lag} s behind"),
            None => String::new(),
        };
        println!("{}: {}{reads}{lag}, {version}", server.address, server.role);
        for note in &server.notes {
            println!("  note: {note}");
        }
        for problem in &server.problems {
            println!("  problem: {problem}");
        }
    }
    for problem in &report.problems {
        println!("problem: {problem}");
    }
}

async fn report(config: &Config) -> anyhow::Result<Report> {
    let network: SharedNetwork = Arc::new(Network {
        tls: tls::towards_servers(&config.server_tls)?,
        tcp: config.server_tcp,
        resolver: Resolver::default(),
        questions: Questions::default(),
    });
    let options = Arc::new(config.monitor.clone());
    let specs = config.server_specs();
    let listed = config.servers.iter();
    let listed: Vec<Address> = listed
        .map(|server| Address::from(&server.address))
        .collect();
    let monitor = Monitor::new(&options, specs, &listed);
    let asked: Vec<_> = listed
        .iter()
        .map(|address| {
            let asked = ask(
                address.clone(),
                config.accounts.clone(),
                options.clone(),
                network.clone(),
                config.pool.connect_timeout,
                config.follows_log(),
            );
            (address.to_string(), tokio::task::spawn_local(asked))
        })
        .collect();
    let snapshot = judged(&monitor, &options, &network).await;
    let mut servers: Vec<Server> = snapshot
        .servers
        .iter()
        .filter(|view| !view.gone)
        .map(|view| seen(&snapshot, view))
        .collect();
    let mut problems = Vec::new();
    for (address, asked) in asked {
        let told = asked.await?;
        match servers.iter_mut().find(|server| server.address == address) {
            Some(server) => {
                server.version = server.version.take().or(told.version);
                server.problems.extend(told.problems);
                server.notes.extend(told.notes);
            }
            // A name of several servers is none itself.
            None => problems.extend(
                told.problems
                    .iter()
                    .map(|what| format!("{address}: {what}")),
            ),
        }
    }
    if let Some(without) = snapshot.without {
        problems.push(format!(
            "no server takes writes: {without}; {}",
            without.advice()
        ));
    }
    let primary = snapshot.primary_view();
    Ok(Report {
        good: problems.is_empty() && servers.iter().all(|server| server.problems.is_empty()),
        primary: primary.map(|view| view.address.to_string()),
        problems,
        servers,
    })
}

/// What one listed server said.
#[derive(Debug, Default)]
struct Told {
    version: Option<String>,
    problems: Vec<String>,
    notes: Vec<String>,
}

async fn ask(
    address: Address,
    accounts: Vec<Account>,
    options: Arc<MonitorOptions>,
    network: SharedNetwork,
    timeout: Duration,
    follows: bool,
) -> Told {
    let mut told = Told::default();
    if options.user.is_empty() {
        let note = "no [monitor] account: roles and lag are not asked for";
        told.notes.push(note.to_owned());
    } else {
        let sounding = sound(&address, &options, &network).await;
        told.take(sounding, &options.user, follows);
    }
    for account in accounts {
        let Some(password) = &account.password else {
            continue;
        };
        let name = &account.name;
        let trying = can_log_in(&address, name, password, &network, timeout);
        if let Err(error) = trying.await {
            told.problems.push(format!("[[account]] {name}: {error}"));
        }
    }
    told
}

impl Told {
    fn take(&mut self, sounding: Result<Sounding, BackendError>, user: &str, follows: bool) {
        let sounding = match sounding {
            Ok(sounding) => sounding,
            Err(error) => {
                self.problems.push(format!("[monitor] {user}: {error}"));
                return;
            }
        };
        if !sounding.reads_accounts {
            self.notes.push(format!(
                "{user} may not read the table of accounts: hosts and REQUIRE are judged by Millrace's own connection \
                 (GRANT SELECT ON mysql.user, MariaDB: mysql.global_priv)"
            ));
        }
        if !sounding.sees_changes {
            self.notes.push(format!(
                "{user} does not see all changes of accounts: connections log in anew every second \
                 (MariaDB: GRANT SELECT ON mysql.global_priv)"
            ));
        }
        if follows && !sounding.may_follow {
            self.notes.push(format!(
                "{user} may not follow the binary log: reads wait for all writes, whatever those touch, and the cache \
                 keeps nothing (GRANT REPLICATION SLAVE ON *.*)"
            ));
        }
        if let Some(error) = sounding.blind_to_replicas {
            self.notes.push(format!("replicas are not listed: {error}"));
        }
        self.version = Some(sounding.version);
    }
}

/// How the servers are judged, as soon as each has been asked.
async fn judged(
    monitor: &Arc<Monitor>,
    options: &Arc<MonitorOptions>,
    network: &SharedNetwork,
) -> Arc<Snapshot> {
    let mut world = monitor.watch();
    let watching = monitor.clone().run(options.clone(), network.clone());
    let watching = tokio::task::spawn_local(watching);
    let asked = world.wait_for(|world| {
        let mut there = world.snapshot.servers.iter().filter(|view| !view.gone);
        there.all(|view| matches!(view.health, Health::Up | Health::Down { .. }))
    });
    // A server is called down after several failures.
    let limit = (options.connect_timeout + options.timeout + options.interval) * 4;
    let _ = tokio::time::timeout(limit, asked).await;
    watching.abort();
    world.borrow().snapshot.clone()
}

fn seen(snapshot: &Snapshot, view: &ServerView) -> Server {
    let mut server = Server {
        address: view.address.to_string(),
        version: view
            .report
            .as_ref()
            .map(|report| report.version.to_string()),
        role: view.role.to_string(),
        fit: view.is_fit(),
        lag_seconds: view.lag_seconds,
        problems: Vec::new(),
        notes: Vec::new(),
    };
    let Some(unfit) = view.unfit.filter(|_| snapshot.primary != Some(view.id)) else {
        return server;
    };
    let why = format!("takes no reads: {unfit}");
    match view.health {
        // Of those that others name, nothing depends.
        Health::Up | Health::Suspect { .. } => server.notes.push(why),
        _ if view.listed => server.problems.push(why),
        _ => server.notes.push(why),
    }
    server
}
