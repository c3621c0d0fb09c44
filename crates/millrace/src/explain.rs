//! `millrace explain`: where a statement would go, by a configuration and a described world. Asks no
//! server.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use millrace_config::Config;
use millrace_routing::explain::{Question, explain};
use millrace_routing::rules::{Rules, Sent, Who, idle_item};
use millrace_routing::{Consistency, Load, SessionView, Transaction};
use millrace_sql::{Hint, LexMode, Statement, classify};
use millrace_topology::{
    Cause, Family, GtidSet, Health, NoPrimary, Role, ServerId, ServerView, Snapshot, Unfit, Waits,
};
use serde::Deserialize;

/// What to explain.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The configuration file.
    #[arg(long)]
    config: PathBuf,
    /// The statement.
    #[arg(long)]
    sql: String,
    /// A file that describes the servers and the session; without it the first server is the primary,
    /// the others have all that it has, and the session has written nothing.
    #[arg(long)]
    world: Option<PathBuf>,
    /// The account that sends it.
    #[arg(long, default_value = "")]
    account: String,
    /// Its default database.
    #[arg(long, default_value = "")]
    database: String,
    /// The client's address.
    #[arg(long)]
    client: Option<IpAddr>,
    /// The listener that it came in by, as the configuration has it; the first without this.
    #[arg(long)]
    listener: Option<String>,
}

/// A described world.
#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct World {
    /// `mysql` (default) or `mariadb`.
    family: Option<String>,
    /// In the order of the configuration; those left out are as without a description.
    server: Vec<Described>,
    session: DescribedSession,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Described {
    address: String,
    /// `primary` or `replica`.
    role: Option<String>,
    /// What it has executed, as GTIDs.
    position: String,
    /// Seconds behind; more than `max_lag` and it takes no reads.
    lag: u64,
    down: bool,
    applier_stopped: bool,
    /// Statements under way.
    running: u32,
    /// Response time in milliseconds.
    response_ms: u32,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct DescribedSession {
    /// What it must see, as GTIDs.
    position: String,
    consistency: Option<String>,
    /// In a transaction that may write.
    transaction: bool,
    /// In a read-only transaction.
    read_only: bool,
    /// The server that it has read from last, by its address.
    seen: Option<String>,
}

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<i32> {
    let Some(config) = crate::check::load(&args.config)? else {
        return Ok(1);
    };
    let world: World = match &args.world {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            toml::from_str(&text).with_context(|| format!("{}", file.display()))?
        }
        None => World::default(),
    };
    for (about, what) in explained(args, &config, &world)? {
        println!("{about:<16} {what}");
    }
    Ok(0)
}

fn explained(
    args: &ExplainArgs,
    config: &Config,
    world: &World,
) -> anyhow::Result<Vec<(String, String)>> {
    let family = world.family()?;
    let snapshot = snapshot(config, world, family)?;
    let mode = LexMode::new(family, version(family));
    let text = args.sql.as_bytes();
    let mut class = Statement::default();
    classify(text, &mode, &mut class);
    let rules = Rules::new(config.rules.clone()).context("the rules' patterns")?;
    let listener = listener(args, config)?;
    let who = Who {
        account: args.account.as_bytes(),
        database: args.database.as_bytes(),
        address: args.client,
        listener: u16::try_from(listener).unwrap_or(u16::MAX),
    };
    let sent = Sent {
        text,
        class: &class,
        access: class.access,
        mode: &mode,
        database: args.database.as_bytes(),
    };
    let hint = Hint::of(&class, text);
    let mut directions = rules.say(&rules.select(&who), &sent);
    if let Some(hint) = &hint {
        directions = directions.with_hint(hint, &config.sets);
    }
    let required = position(family, &world.session.position)?;
    let level = level(args, config, world, listener)?;
    let session = SessionView {
        target: config
            .listeners
            .get(listener)
            .map_or_else(Default::default, |listener| listener.target),
        consistency: directions.consistency.unwrap_or(level),
        transaction: world.session.in_transaction(),
        seen: seen(world, &snapshot)?,
        wanted: directions.wanted,
        ..SessionView::new(&required)
    };
    let outstanding = world.of_each(&snapshot, |one| one.running);
    let response_us = world.of_each(&snapshot, |one| one.response_ms.saturating_mul(1000));
    Ok(explain(&Question {
        text,
        class: &class,
        access: class.access,
        directions: Some(&directions),
        unknown_hint: hint.as_ref().and_then(|hint| idle_item(hint, &config.sets)),
        rules: &rules,
        pins: &[],
        session,
        world: &snapshot,
        options: &config.sessions.routing,
        load: Load {
            outstanding: &outstanding,
            response_us: &response_us,
            known: &[],
            behind: 0,
            rotation: 0,
        },
    }))
}

impl World {
    fn family(&self) -> anyhow::Result<Family> {
        match self.family.as_deref() {
            None | Some("mysql") => Ok(Family::MySql),
            Some("mariadb") => Ok(Family::MariaDb),
            Some(other) => bail!("the family is mysql or mariadb, not `{other}`"),
        }
    }

    /// What is described of each server, in the snapshot's order; 0 where it is not described.
    fn of_each(&self, snapshot: &Snapshot, what: impl Fn(&Described) -> u32) -> Vec<u32> {
        let described = |view: &ServerView| {
            let mut described = self.server.iter();
            described.find(|one| one.address == *view.address)
        };
        let servers = snapshot.servers.iter();
        servers
            .map(|view| described(view).map_or(0, &what))
            .collect()
    }
}

impl DescribedSession {
    fn in_transaction(&self) -> Transaction {
        match (self.transaction, self.read_only) {
            (true, _) => Transaction::ReadWrite,
            (false, true) => Transaction::ReadOnly,
            (false, false) => Transaction::None,
        }
    }
}

/// A version that servers of the family have.
fn version(family: Family) -> u32 {
    match family {
        Family::MySql => 90_700,
        Family::MariaDb => 101_100,
    }
}

/// The listener's place in the configuration.
fn listener(args: &ExplainArgs, config: &Config) -> anyhow::Result<usize> {
    let Some(address) = &args.listener else {
        return Ok(0);
    };
    let mut listeners = config.listeners.iter();
    listeners
        .position(|listener| listener.address.to_string() == *address)
        .with_context(|| format!("there is no listener {address}"))
}

/// What the session's reads must see, where no rule and no hint says otherwise.
fn level(
    args: &ExplainArgs,
    config: &Config,
    world: &World,
    listener: usize,
) -> anyhow::Result<Consistency> {
    if let Some(name) = &world.session.consistency {
        return Consistency::from_name(name)
            .with_context(|| format!("there is no consistency `{name}`"));
    }
    let mut accounts = config.accounts.iter();
    let of_account = accounts.find(|account| account.name == args.account);
    let of_listener = config.listeners.get(listener);
    Ok(of_account
        .and_then(|account| account.consistency)
        .or(of_listener.and_then(|listener| listener.consistency))
        .unwrap_or(config.sessions.consistency))
}

/// The server that the session has read from last.
fn seen(world: &World, snapshot: &Snapshot) -> anyhow::Result<Option<ServerId>> {
    let Some(address) = &world.session.seen else {
        return Ok(None);
    };
    let mut servers = snapshot.servers.iter();
    let view = servers
        .find(|view| *view.address == **address)
        .with_context(|| format!("there is no server {address}"))?;
    Ok(Some(view.id))
}

fn position(family: Family, text: &str) -> anyhow::Result<GtidSet> {
    GtidSet::parse(family, text.as_bytes()).with_context(|| format!("`{text}`"))
}

fn snapshot(config: &Config, world: &World, family: Family) -> anyhow::Result<Snapshot> {
    let described = |address: &str| world.server.iter().find(|one| one.address == address);
    for one in &world.server {
        let known = config
            .servers
            .iter()
            .any(|server| server.address.to_string() == one.address);
        anyhow::ensure!(
            known,
            "there is no server {} in the configuration",
            one.address
        );
    }
    let names: Vec<String> = config
        .servers
        .iter()
        .map(|server| server.address.to_string())
        .collect();
    let says = |name: &String, role: &str| {
        described(name).is_some_and(|one| one.role.as_deref() == Some(role))
    };
    let primary = names
        .iter()
        .position(|name| says(name, "primary"))
        .or_else(|| names.iter().position(|name| !says(name, "replica")));
    let of_primary = primary
        .and_then(|at| described(&names[at]))
        .map_or("", |one| &one.position);
    let max_lag = config.monitor.topology.lag_seconds_max;
    let mut servers = Vec::new();
    for (index, (server, name)) in config.servers.iter().zip(&names).enumerate() {
        let one = described(name);
        let is_primary = primary == Some(index);
        let lag = one.map_or(0, |one| one.lag);
        let unfit = match one {
            Some(one) if one.down => Some(Unfit::Down(Cause::Refused)),
            Some(one) if one.applier_stopped => Some(Unfit::ApplierStopped),
            _ if !is_primary && server.weight == 0 => Some(Unfit::ZeroWeight),
            _ if lag > max_lag => Some(Unfit::Lagging { seconds: lag }),
            _ => None,
        };
        let executed = match one {
            Some(one) if !one.position.is_empty() => &one.position,
            _ => of_primary,
        };
        servers.push(ServerView {
            id: ServerId(u16::try_from(index).unwrap_or(u16::MAX)),
            address: Arc::from(name.as_str()),
            zone: server.zone.as_str().into(),
            weight: server.weight,
            share: server.weight.saturating_mul(100),
            role: if is_primary {
                Role::Primary
            } else {
                Role::Replica
            },
            health: Health::Up,
            unfit,
            lag_seconds: (!is_primary).then_some(lag),
            waits: Waits::Gtids,
            executed: position(family, executed)?,
            report: None,
            probed_at: None,
            incarnation: 0,
            draining: false,
            gone: false,
            listed: true,
            address_of: None,
        });
    }
    let down = primary.filter(|at| servers[*at].unfit.is_some());
    Ok(Snapshot {
        unreplicated: None,
        overruled: None,
        generation: 1,
        epoch: 1,
        primary: primary
            .filter(|_| down.is_none())
            .map(|at| ServerId(u16::try_from(at).unwrap_or(u16::MAX))),
        servers,
        without: down.map(|at| NoPrimary::Lost(ServerId(u16::try_from(at).unwrap_or(u16::MAX)))),
        conflict: Vec::new(),
        family: Some(family),
        version_number: 0,
    })
}
