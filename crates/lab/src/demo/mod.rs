//! `millrace-lab demo`: a private cluster, Millrace before it, a workload whose clients check every
//! answer, and a view of where statements run. Everything it starts ends with it.

mod cached;
mod client;
mod failover;
mod http;
mod observer;
mod ports;
mod proxy;
mod random;
mod readers;
mod schema;
mod steady;
mod tally;
mod view;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use millrace_sandbox::{APP, Binaries, Cluster, ClusterSpec, Family};
use mysql_async::{Opts, OptsBuilder};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep_until, timeout};

use crate::signals::Signals;
use observer::{Look, Observer, ServerWork};
use ports::Ports;
use proxy::Proxy;
use tally::{Tally, Totals};
use view::{View, say};

/// As shells report an end by Ctrl-C.
const INTERRUPTED: i32 = 130;
/// Clients finish the step that they are in; no statement may take longer.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// What to show, and for how long.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Which servers to run: MySQL where it is installed, else MariaDB.
    #[arg(long, value_enum)]
    family: Option<Family>,
    /// Replicas beside the primary.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=20))]
    replicas: u16,
    /// Clients that put load on it; 0 to try it by hand only.
    #[arg(long, value_name = "N", default_value_t = 100)]
    clients: u64,
    /// How long the workload runs; without it, until Ctrl-C.
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Kill the primary under load, promote a replica as an orchestrator would, and show what
    /// Millrace saw and what clients noticed.
    #[arg(long, conflicts_with_all = ["seconds", "stay"])]
    failover: bool,
    /// Run the same load with the cache off and then on, while somebody writes past Millrace, and
    /// show what the cache saved.
    #[arg(long, conflicts_with_all = ["seconds", "stay", "failover"])]
    cached: bool,
    /// After the summary leave everything up until Ctrl-C, if there is a terminal to press it.
    #[arg(long, requires = "seconds", conflicts_with = "json")]
    stay: bool,
    /// Print nothing but one line of JSON, at the end.
    #[arg(long)]
    json: bool,
    /// Millrace's first port; the others and the servers' follow. Without it, 6033 or any free.
    #[arg(long, value_name = "P")]
    port: Option<u16>,
    /// The cluster's folder, which must not exist; it is removed in the end.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &DemoArgs) -> Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Listened to before the first process starts, so that none is left by a Ctrl-C.
        let mut signals = Signals::new()?;
        let started = tokio::select! {
            stage = Stage::set(args) => stage,
            () = signals.next() => return Ok(INTERRUPTED),
        };
        let mut stage = started?;
        let outcome = stage.play(args, &mut signals).await;
        let ended = stage.clear().await;
        let status = outcome?;
        ended?;
        Ok(status)
    })
}

/// What runs. Fields are dropped in this order, when there is no time for [`Stage::clear`].
struct Stage {
    proxy: Proxy,
    cluster: Cluster,
}

impl Stage {
    async fn set(args: &DemoArgs) -> Result<Self> {
        let spec = spec(args)?;
        let ports = Ports::choose(args.port, args.replicas + 1)?;
        let replicas = args.replicas;
        tell(
            args,
            &format!(
                "Starting {} with {replicas} replicas and Millrace before it …",
                spec.release
            ),
        );
        let spec = ClusterSpec {
            base_port: ports.servers,
            ..spec
        };
        let cluster = Cluster::up(spec).await?;
        let proxy = Proxy::start(&cluster, ports, pool_size(args)).await?;
        Ok(Stage { proxy, cluster })
    }

    async fn clear(self) -> Result<()> {
        let stopped = self.proxy.stop().await;
        self.cluster.down().await?;
        stopped
    }

    /// The exit status: 0 when every statement came out right.
    async fn play(&mut self, args: &DemoArgs, signals: &mut Signals) -> Result<i32> {
        let opts = self.client_opts();
        let prepared = async {
            schema::create(opts.clone()).await?;
            self.cluster.wait_replicas_caught_up(CATCH_UP_LIMIT).await
        };
        tokio::select! {
            done = prepared => done?,
            () = signals.next() => return Ok(INTERRUPTED),
        }
        let ports = self.proxy.ports();
        if args.failover {
            return self.fail_over(args, &opts, signals).await;
        }
        if args.cached {
            return tokio::select! {
                right = self.with_and_without_cache(args, &opts) => Ok(i32::from(!right?)),
                () = signals.next() => Ok(INTERRUPTED),
            };
        }
        if !args.json {
            say(&format!(
                "\n{}\n",
                view::how_to_connect(&self.cluster.info(), ports)
            ));
            say(&format!(
                "{} clients are at work{}.\n",
                args.clients,
                match args.seconds {
                    Some(seconds) => format!(" for {seconds} s"),
                    None => "; Ctrl-C ends them and removes everything".to_owned(),
                }
            ));
        }
        let mut observer = Observer::new(ports.http, self.cluster.servers()).await?;
        let workload = Workload::start(args.clients, &opts);
        let interrupted = self.watch(args, &workload, &mut observer, signals).await?;
        let result = tokio::select! {
            result = self.finish(args, workload, &mut observer) => result?,
            () = signals.next() => return Ok(INTERRUPTED),
        };
        self.report(args, &result)?;
        if args.stay && !interrupted && std::io::stdin().is_terminal() {
            self.stay(&mut observer, signals).await?;
        }
        Ok(
            match (result.right, interrupted && args.seconds.is_some()) {
                (false, _) => 1,
                (true, true) => INTERRUPTED,
                (true, false) => 0,
            },
        )
    }

    async fn fail_over(
        &mut self,
        args: &DemoArgs,
        opts: &Opts,
        signals: &mut Signals,
    ) -> Result<i32> {
        let ports = self.proxy.ports();
        tokio::select! {
            right = failover::play(&self.cluster, ports, opts, args.clients, args.json) => {
                Ok(i32::from(!right?))
            }
            () = signals.next() => Ok(INTERRUPTED),
            error = self.proxy.ended() => Err(error),
        }
    }

    /// Whether every answer was right.
    async fn with_and_without_cache(&mut self, args: &DemoArgs, opts: &Opts) -> Result<bool> {
        let (clients, ports) = (args.clients, self.proxy.ports());
        let book = cached::prepare(&self.cluster).await?;
        let seconds = cached::LOAD.as_secs();
        tell(
            args,
            &format!(
                "{clients} clients read and now and then write for {seconds} s, and check every answer. Another \
                 writes past Millrace."
            ),
        );
        let off = tokio::select! {
            part = cached::load(&self.cluster, ports, opts, clients, &book) => part?,
            error = self.proxy.ended() => return Err(error),
        };
        tell(
            args,
            &format!(
                "Millrace is started anew with its cache on, and they do the same for {seconds} s."
            ),
        );
        self.proxy.restart_cached(&self.cluster).await?;
        let serve = async {
            cached::until_serving(ports).await?;
            cached::load(&self.cluster, ports, opts, clients, &book).await
        };
        let on = tokio::select! {
            part = serve => part?,
            error = self.proxy.ended() => return Err(error),
        };
        let wrong = cached::compare(&self.cluster, &book).await?;
        cached::report(&off, &on, &wrong, args.json);
        Ok(cached::is_right(&off, &on, &wrong))
    }

    fn client_opts(&self) -> Opts {
        OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.proxy.ports().auto)
            .user(Some(APP.user))
            .pass(Some(APP.password))
            .db_name(Some("app"))
            // Else the driver asks for the server's Unix socket, and goes past Millrace.
            .prefer_socket(false)
            .into()
    }

    /// Until the time is over, or a signal comes: then true.
    async fn watch(
        &mut self,
        args: &DemoArgs,
        workload: &Workload,
        observer: &mut Observer,
        signals: &mut Signals,
    ) -> Result<bool> {
        let mut view = View::new();
        let mut ticks = interval(Duration::from_secs(1));
        let far = Duration::from_secs(100 * 365 * 86_400);
        let end = workload.began + args.seconds.map_or(far, Duration::from_secs);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let look = observer.look().await?;
                    if !args.json {
                        view.show(&look, Some(&workload.tally.totals()));
                    }
                }
                () = sleep_until(end.into()) => return Ok(false),
                () = signals.next() => return Ok(true),
                error = self.proxy.ended() => return Err(error),
            }
        }
    }

    /// Ends the workload, and judges.
    async fn finish(
        &self,
        args: &DemoArgs,
        workload: Workload,
        observer: &mut Observer,
    ) -> Result<Outcome> {
        let seconds = workload.began.elapsed().as_secs_f64();
        let last = observer.look().await?;
        let tally = workload.stop().await?;
        let look = Look {
            clients: last.clients,
            ..observer.look().await?
        };
        if args.clients > 0
            && let Err(error) = self.compare(&tally).await
        {
            tally.error("comparing the servers", error.as_ref());
        }
        let totals = tally.totals();
        let info = self.cluster.info();
        Ok(Outcome {
            right: totals.all_right() || args.clients == 0,
            family: info.family,
            version: info.version,
            seconds,
            clients: args.clients,
            server_connections_max: observer.connections_max,
            servers: look.servers.clone(),
            look,
            totals,
        })
    }

    /// What every server holds in the end must be what the clients did.
    async fn compare(&self, tally: &Tally) -> Result<()> {
        self.cluster.wait_replicas_caught_up(CATCH_UP_LIMIT).await?;
        schema::check_everywhere(&self.cluster, tally).await
    }

    fn report(&self, args: &DemoArgs, outcome: &Outcome) -> Result<()> {
        if args.json {
            say(&serde_json::to_string(outcome)?);
        } else {
            let Outcome { look, totals, .. } = outcome;
            let most = outcome.server_connections_max;
            say(&view::summary(
                look,
                most,
                outcome.clients,
                totals,
                outcome.seconds,
            ));
        }
        Ok(())
    }

    /// The cluster is the user's now; the view shows where their statements run.
    async fn stay(&mut self, observer: &mut Observer, signals: &mut Signals) -> Result<()> {
        let info = self.cluster.info();
        say(&format!(
            "\n{}\n",
            view::how_to_connect(&info, self.proxy.ports())
        ));
        say("Everything stays up until Ctrl-C, which removes it. Where your statements run:\n");
        observer.restart().await?;
        let mut view = View::new();
        let mut ticks = interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let look = observer.look().await?;
                    view.show(&look, None);
                }
                () = signals.next() => return Ok(()),
                error = self.proxy.ended() => return Err(error),
            }
        }
    }
}

fn spec(args: &DemoArgs) -> Result<ClusterSpec> {
    let mut spec = ClusterSpec::new(match args.family {
        Some(family) => family,
        None => installed_family()?,
    });
    spec.replicas = usize::from(args.replicas);
    if args.failover {
        // Of the two that are left, one acknowledges the other's writes.
        ensure!(
            args.replicas >= 2 && args.clients > 0,
            "--failover takes two replicas at least, and clients"
        );
        spec.semi_sync = true;
    }
    if args.cached {
        ensure!(args.clients > 0, "--cached takes clients");
    }
    if let Some(dir) = &args.dir {
        spec.dir.clone_from(dir);
    }
    Ok(spec)
}

fn installed_family() -> Result<Family> {
    if Binaries::find(Family::MySql).is_ok() {
        return Ok(Family::MySql);
    }
    Binaries::find(Family::MariaDb).context("neither MySQL nor MariaDB is installed")?;
    Ok(Family::MariaDb)
}

/// Server connections for each server: far fewer than clients, to show that they suffice. Not so
/// where the primary is killed: that is to show what it costs, and not how long a queue is.
fn pool_size(args: &DemoArgs) -> u64 {
    let clients_for_each = if args.failover { 1 } else { 5 };
    (args.clients / clients_for_each).clamp(4, 100)
}

/// Progress; beside the answer when that is for a script.
fn tell(args: &DemoArgs, text: &str) {
    if args.json {
        eprintln!("{text}");
    } else {
        say(text);
    }
}

/// The clients at work.
struct Workload {
    began: Instant,
    tally: Arc<Tally>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
}

impl Workload {
    fn start(count: u64, opts: &Opts) -> Self {
        let (stop, stopped) = watch::channel(false);
        let tally = Arc::new(Tally::default());
        let mut clients = JoinSet::new();
        for number in 1..=count {
            clients.spawn(client::live(
                number,
                opts.clone(),
                tally.clone(),
                stopped.clone(),
            ));
        }
        Workload {
            began: Instant::now(),
            tally,
            stop,
            clients,
        }
    }

    /// Every client finishes what it is at.
    async fn stop(mut self) -> Result<Arc<Tally>> {
        self.stop.send_replace(true);
        let all = async {
            while let Some(ended) = self.clients.join_next().await {
                ended.context("a client of the workload failed")?;
            }
            anyhow::Ok(())
        };
        match timeout(STOP_LIMIT, all).await {
            Ok(ended) => ended?,
            Err(elapsed) => {
                for _ in 0..self.clients.len() {
                    self.tally.error("no answer for 30 s", &elapsed);
                }
            }
        }
        Ok(self.tally)
    }
}

/// What came of it, for scripts.
#[derive(Serialize)]
struct Outcome {
    /// Every statement came out right.
    right: bool,
    family: Family,
    version: String,
    seconds: f64,
    clients: u64,
    /// The most that were seen open at a time, over all servers.
    server_connections_max: u64,
    #[serde(flatten)]
    totals: Totals,
    servers: Vec<ServerWork>,
    #[serde(skip)]
    look: Look,
}
