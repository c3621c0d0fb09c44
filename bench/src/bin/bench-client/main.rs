//! The measuring clients that sysbench has no equal of: many idle ones, ones that log in for
//! each query, one that times single queries against several systems in turn, ones that check what
//! they read, and one that waits for writes beside the system. They never judge a result; they print
//! what they saw as one line of JSON.

mod registers;
mod seen;

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Variable with the password of the account, so that it is on no command line.
const PASSWORD_VARIABLE: &str = "MILLRACE_BENCH_PASSWORD";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    account: Account,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Clone)]
struct Account {
    /// Account; its password is in MILLRACE_BENCH_PASSWORD.
    #[arg(long, default_value = "root")]
    user: String,
    /// Database with sysbench's tables; empty for none.
    #[arg(long, default_value = "sbtest")]
    database: String,
    /// Rows in sbtest1.
    #[arg(long, default_value_t = 10_000)]
    rows: u32,
}

#[derive(Subcommand)]
enum Command {
    /// Connects clients, runs one query on each, says so, and keeps them idle until
    /// standard input ends.
    Idle {
        #[arg(long)]
        server: SocketAddr,
        #[arg(long)]
        clients: usize,
        /// How many log in at the same time.
        #[arg(long, default_value_t = 32)]
        at_once: usize,
    },
    /// Connects, logs in, runs one query and closes, over and over.
    Connect {
        /// A server; clients are dealt among them in turn. Repeatable.
        #[arg(long, required = true)]
        server: Vec<SocketAddr>,
        /// How many clients do so at the same time.
        #[arg(long, default_value_t = 32)]
        at_once: usize,
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Runs statements; prints the first value of the last one's result, as a string.
    Sql {
        #[arg(long)]
        server: SocketAddr,
        #[arg(required = true)]
        statement: Vec<String>,
    },
    /// Times point selects on one connection to each system, in short bursts that
    /// take turns, so that the machine's moods meet all systems alike.
    Latency {
        /// NAME=ADDRESS of a system; repeatable.
        #[arg(long, required = true, value_parser = parse_target)]
        target: Vec<Target>,
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Queries to one system before it is the next one's turn.
        #[arg(long, default_value_t = 50)]
        burst: u32,
    },
    /// Reads rows that others write, through the system and beside it, and counts what is stale.
    Registers(registers::Registers),
    /// Times how long it takes until a write that bypasses the system is seen through it.
    Seen(seen::Seen),
}

#[derive(Clone)]
struct Target {
    name: String,
    address: SocketAddr,
}

#[derive(Serialize)]
struct IdleReport {
    connected: usize,
    failed: usize,
    first_error: Option<String>,
    seconds: f64,
}

#[derive(Serialize)]
struct ConnectReport {
    connections: usize,
    failed: usize,
    first_error: Option<String>,
    seconds: f64,
    #[serde(flatten)]
    times: Percentiles,
}

#[derive(Serialize)]
struct LatencyReport {
    name: String,
    queries: usize,
    #[serde(flatten)]
    times: Percentiles,
}

/// Of the times that something took, in microseconds.
#[derive(Serialize)]
struct Percentiles {
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    match cli.command {
        Command::Idle {
            server,
            clients,
            at_once,
        } => idle(&cli.account, server, clients, at_once).await,
        Command::Connect {
            server,
            at_once,
            seconds,
        } => connect(&cli.account, &server, at_once, Duration::from_secs(seconds)).await,
        Command::Sql { server, statement } => sql(&cli.account, server, statement).await,
        Command::Latency {
            target,
            seconds,
            burst,
        } => latency(&cli.account, target, Duration::from_secs(seconds), burst).await,
        Command::Registers(how) => registers::check(&cli.account, &how).await,
        Command::Seen(how) => seen::wait(&cli.account, &how).await,
    }
}

fn parse_target(text: &str) -> Result<Target> {
    let (name, address) = text.split_once('=').context("expected NAME=ADDRESS")?;
    Ok(Target {
        name: name.to_owned(),
        address: address.parse()?,
    })
}

impl Account {
    /// Options with the driver's own questions at connect answered beforehand: what
    /// is measured is the queries that this program sends.
    fn options(&self, server: SocketAddr) -> Opts {
        OptsBuilder::default()
            .ip_or_hostname(server.ip().to_string())
            .tcp_port(server.port())
            .user(Some(&self.user))
            .pass(std::env::var(PASSWORD_VARIABLE).ok())
            .db_name((!self.database.is_empty()).then_some(&self.database))
            .prefer_socket(Some(false))
            .max_allowed_packet(Some(16 * 1024 * 1024))
            .wait_timeout(Some(28_800))
            .stmt_cache_size(0)
            .into()
    }

    fn point_select(&self, seed: u32) -> String {
        // Spreads over the table without a random source: 7919 is prime.
        let id = seed.wrapping_mul(7919) % self.rows + 1;
        format!("SELECT c FROM sbtest1 WHERE id={id}")
    }
}

async fn sql(account: &Account, server: SocketAddr, statements: Vec<String>) -> Result<()> {
    let mut connection = Conn::new(account.options(server)).await?;
    let mut value: Option<Option<String>> = None;
    for statement in statements {
        value = connection
            .query_first(&statement)
            .await
            .with_context(|| statement.clone())?;
    }
    print_json(&value.flatten())
}

async fn idle(account: &Account, server: SocketAddr, clients: usize, at_once: usize) -> Result<()> {
    let began = Instant::now();
    let (kept, errors) = connect_all(account, server, clients, at_once).await;
    print_json(&IdleReport {
        connected: kept.len(),
        failed: errors.len(),
        first_error: errors.first().map(ToString::to_string),
        seconds: began.elapsed().as_secs_f64(),
    })?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    drop(kept);
    Ok(())
}

async fn connect_all(
    account: &Account,
    server: SocketAddr,
    clients: usize,
    at_once: usize,
) -> (Vec<Conn>, Vec<anyhow::Error>) {
    let gate = Arc::new(Semaphore::new(at_once));
    let mut logins = JoinSet::new();
    for number in 0..clients {
        let options = account.options(server);
        let query = account.point_select(u32::try_from(number).unwrap_or_default());
        let gate = Arc::clone(&gate);
        logins.spawn(async move {
            let _turn = gate.acquire_owned().await?;
            let mut connection = Conn::new(options).await?;
            let _: Option<String> = connection.query_first(query).await?;
            anyhow::Ok(connection)
        });
    }
    let (mut kept, mut errors) = (Vec::with_capacity(clients), Vec::new());
    while let Some(login) = logins.join_next().await {
        match login.map_err(Into::into).and_then(|result| result) {
            Ok(connection) => kept.push(connection),
            Err(error) => errors.push(error),
        }
    }
    (kept, errors)
}

/// What one client of `connect` saw.
#[derive(Default)]
struct Visits {
    times: Vec<Duration>,
    errors: Vec<anyhow::Error>,
}

async fn connect(
    account: &Account,
    servers: &[SocketAddr],
    at_once: usize,
    time: Duration,
) -> Result<()> {
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for (number, server) in (0..at_once).zip(servers.iter().copied().cycle()) {
        let (account, options) = (account.clone(), account.options(server));
        let seed = u32::try_from(number).unwrap_or_default();
        clients.spawn(async move {
            let mut visits = Visits::default();
            while began.elapsed() < time {
                let query = account.point_select(seed + visits.times.len() as u32);
                let called = Instant::now();
                match visit(options.clone(), query).await {
                    Ok(()) => visits.times.push(called.elapsed()),
                    Err(error) => {
                        visits.errors.push(error);
                        // Who is refused at once would do nothing but be refused.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
            visits
        });
    }
    let mut all = Visits::default();
    while let Some(visits) = clients.join_next().await {
        let visits = visits?;
        all.times.extend(visits.times);
        all.errors.extend(visits.errors);
    }
    print_json(&ConnectReport {
        connections: all.times.len(),
        failed: all.errors.len(),
        first_error: all.errors.first().map(ToString::to_string),
        seconds: began.elapsed().as_secs_f64(),
        times: percentiles(all.times),
    })
}

async fn visit(options: Opts, query: String) -> Result<()> {
    let mut connection = Conn::new(options).await?;
    let row: Option<String> = connection.query_first(query).await?;
    connection.disconnect().await?;
    row.map(drop).context("no row returned")
}

async fn latency(
    account: &Account,
    targets: Vec<Target>,
    time: Duration,
    burst: u32,
) -> Result<()> {
    let mut lanes = Vec::new();
    for target in targets {
        let connection = Conn::new(account.options(target.address))
            .await
            .with_context(|| format!("connecting to {}", target.name))?;
        lanes.push((target.name, connection, Vec::<Duration>::new()));
    }
    let began = Instant::now();
    let mut seed = 0;
    while began.elapsed() < time {
        for (name, connection, samples) in &mut lanes {
            for number in 0..burst {
                seed += 1;
                let query = account.point_select(seed);
                let sent = Instant::now();
                let row: Option<String> = connection.query_first(query).await?;
                let taken = sent.elapsed();
                if row.is_none() {
                    bail!("{name} returned no row");
                }
                // The first of a burst finds caches and cores cold from another system.
                if number > 0 {
                    samples.push(taken);
                }
            }
        }
    }
    let reports: Vec<_> = lanes
        .into_iter()
        .map(|(name, _, samples)| LatencyReport {
            name,
            queries: samples.len(),
            times: percentiles(samples),
        })
        .collect();
    print_json(&reports)
}

fn percentiles(mut samples: Vec<Duration>) -> Percentiles {
    samples.sort_unstable();
    let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
    let at = |percent: usize| {
        let last = samples.len().saturating_sub(1);
        samples
            .get(last * percent / 100)
            .copied()
            .map_or(0.0, micros)
    };
    let total: Duration = samples.iter().sum();
    Percentiles {
        mean_us: micros(total) / samples.len().max(1) as f64,
        p50_us: at(50),
        p95_us: at(95),
        p99_us: at(99),
    }
}

fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}
