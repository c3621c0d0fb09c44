//! `millrace serve`: builds everything from the configuration, starts the threads, and ends them
//! in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use millrace_admin::{Listener, Readiness};
use millrace_backend::connect::{Address, Network, SharedNetwork};
use millrace_backend::failovers::{FailoverCount, MoveKind, Timeline};
use millrace_backend::monitor::{Counts, Monitor, MonitorOptions, Traffic, World};
use millrace_backend::names::Resolver;
use millrace_config::{Config, Environment, Flags};
use millrace_metrics::{Metrics, PerServer, PrimaryState, ServerState, StatementKind};
use millrace_routing::rules::Rules;
use millrace_session::{Accounts, Held, Message, Registry, Shared, Worker, Written};
use millrace_topology::{Health, NoPrimary, ServerId};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::{info, warn};

use crate::coalesce::{Coalescer, Rest};
use crate::drain::{Signals, drain};
use crate::reload::{Drained, hangups};
use crate::{admin, check, listen, logging, tls};

/// How to serve: a file, or flags alone.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The configuration file; takes the place of the flags for listeners and servers.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "server", "monitor_user", "monitor_password_file", "http", "admin", "admin_password_file"])]
    config: Option<PathBuf>,
    /// Where to listen: HOST:PORT, [V6]:PORT, *:PORT or the path of a Unix socket. Repeatable.
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// A server: HOST or HOST:PORT. Repeatable.
    #[arg(long, value_name = "HOST:PORT")]
    server: Vec<String>,
    /// The account that asks the servers for their roles and positions. Its password is taken
    /// from MILLRACE_MONITOR_PASSWORD or a file.
    #[arg(long, value_name = "NAME")]
    monitor_user: Option<String>,
    /// A file that holds the monitor's password.
    #[arg(long, value_name = "FILE")]
    monitor_password_file: Option<PathBuf>,
    /// Where to serve metrics and health over HTTP.
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Where operators ask and act, in the MySQL protocol, as the account `admin`. Its password is
    /// taken from MILLRACE_ADMIN_PASSWORD or a file.
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// A file that holds the operators' password.
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_password_file: Option<PathBuf>,
    /// Threads that serve clients; as many as CPUs where not given.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// End, as on SIGTERM, when the process that started this one does.
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<i32> {
    if args.end_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    let Some(config) = configuration(args)? else {
        return Ok(1);
    };
    logging::start(config.log);
    for warning in &config.warnings {
        warn!("{warning}");
    }
    prepare_process();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, args.config.clone()))?;
    Ok(0)
}

fn configuration(args: &ServeArgs) -> anyhow::Result<Option<Config>> {
    let mut config = match &args.config {
        Some(file) => match check::load(file)? {
            Some(config) => config,
            None => return Ok(None),
        },
        None => {
            let flags = Flags {
                listen: args.listen.clone(),
                server: args.server.clone(),
                monitor_user: args.monitor_user.clone(),
                monitor_password_file: args.monitor_password_file.clone(),
                http: args.http.clone(),
                admin: args.admin.clone(),
                admin_password_file: args.admin_password_file.clone(),
            };
            match Config::from_flags(&flags, &Environment::process()) {
                Ok(config) => config,
                Err(errors) => {
                    for error in errors {
                        eprintln!("millrace: {error}");
                    }
                    return Ok(None);
                }
            }
        }
    };
    if args.workers.is_some() {
        config.workers = args.workers;
    }
    Ok(Some(config))
}

/// As many open files as allowed, and no core file: it would hold passwords.
fn prepare_process() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: files.maximum,
        maximum: files.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "cannot raise the limit of open files");
    }
    let none = Rlimit {
        current: Some(0),
        maximum: getrlimit(Resource::Core).maximum,
    };
    if let Err(error) = setrlimit(Resource::Core, none) {
        warn!(%error, "cannot forbid core files, which would hold passwords");
    }
}

/// `file`: where the configuration is from, if from a file.
async fn serve(config: Config, file: Option<PathBuf>) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let hangups = hangups()?;
    let workers = config.workers.unwrap_or_else(|| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        cpus.min(config.pool.max_connections)
    });
    let addresses: Vec<Address> = config
        .servers
        .iter()
        .map(|server| Address::from(&server.address))
        .collect();
    let names = addresses.iter().map(ToString::to_string).collect();
    let rules = config.rules.iter().map(|rule| rule.name.to_string());
    let metrics = Arc::new(Metrics::with_rules(workers, names, rules.collect()));
    let network: SharedNetwork = Arc::new(Network {
        tls: tls::towards_servers(&config.server_tls)?,
        tcp: config.server_tcp,
        resolver: Resolver::default(),
    });
    let monitor_options = Arc::new(MonitorOptions {
        traffic: Some(traffic(&metrics)),
        ..config.monitor.clone()
    });
    let specs = config.server_specs();
    let monitor = Monitor::new(&monitor_options, specs, &addresses);
    let mut drained = Drained::default();
    drained.follow(&config, &monitor);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
    let mailboxes = Arc::new(senders);
    let registry = Arc::new(Registry::default());
    let accounts = Arc::new(Accounts::default());
    for account in &config.accounts {
        if let Some(password) = &account.password {
            accounts.learn(account.name.as_bytes(), password.clone());
        }
    }
    let options = Arc::new(config.sessions.clone());
    let (acceptor, fingerprint) = tls::acceptor(&config.tls)?;
    let shared = Shared {
        held: Arc::new(Held::new(&options.failover)),
        options,
        pool: Arc::new(config.pool.clone()),
        counts: Arc::new(PerServer::new(addresses.len())),
        accounts,
        registry: registry.clone(),
        key: Arc::new(tls::server_key(&config.tls)?),
        tls: Some(acceptor),
        fingerprint,
        network: network.clone(),
        metrics: metrics.clone(),
        monitor: monitor.clone(),
        rules: Arc::new(Rules::new(config.rules.clone()).context("the rules' patterns")?),
        limits: Arc::new(
            config
                .rules
                .iter()
                .map(|rule| Some(Arc::new(Semaphore::new(rule.then.concurrency? as usize))))
                .collect(),
        ),
        sets: Arc::new(config.sets.clone()),
        written: Arc::new(Written::new(workers)),
        mailboxes: mailboxes.clone(),
    };
    let mut listeners = Vec::new();
    for (number, listener) in (0..).zip(&config.listeners) {
        let bound = listen::bind(number, listener, &config.tcp).await?;
        listeners.push(bound);
    }
    admin::start(&config, &shared).await?;
    let watching = start_monitor(&monitor, monitor_options, network)?;
    let (stop, stopping) = oneshot::channel();
    let (accepting, stopped) = oneshot::channel::<()>();
    let accept = {
        let (mailboxes, metrics) = (mailboxes.clone(), metrics.clone());
        async move || {
            listen::accept(listeners, mailboxes, metrics, stopping).await;
            drop(accepting);
        }
    };
    let coalescer = Coalescer::new(config.coalesce_limit, workers, metrics.clone());
    let threads = start_workers(&shared, receivers, coalescer.rests().collect(), accept)?;
    tokio::spawn(tell_time(mailboxes.clone(), coalescer));
    tokio::spawn(drained.follow_file(file, hangups, monitor.clone()));
    tokio::spawn(publish_servers(monitor.clone(), metrics.clone()));
    if let Some(http) = &config.http {
        let listener = Listener::bind(&http.to_string())
            .await
            .with_context(|| format!("cannot listen on {http} for HTTP"))?;
        info!(address = %http, "serving metrics and health");
        let world = monitor.watch();
        let ready = move || readiness(&world.borrow());
        tokio::spawn(millrace_admin::serve(
            listener,
            metrics.clone(),
            ready,
            std::future::pending(),
        ));
    }
    signals.next().await;
    drop(stop);
    // Ends in an error when it has stopped.
    let _ = stopped.await;
    drain(mailboxes, registry, config.drain_timeout, &mut signals).await;
    for thread in threads {
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
    watching.end().await;
    info!("stopped");
    Ok(())
}

/// Tells the workers that a second has passed, and four times in it how long to rest. A timer of their
/// own would be set and cancelled by the system each time they sleep, which is for every statement where
/// clients are few.
async fn tell_time(mailboxes: Arc<Vec<mpsc::UnboundedSender<Message>>>, mut coalescer: Coalescer) {
    let mut quarter = tokio::time::interval(Duration::from_millis(250));
    quarter.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0_u64.. {
        quarter.tick().await;
        coalescer.adjust();
        if !number.is_multiple_of(4) {
            continue;
        }
        for mailbox in mailboxes.iter() {
            // A closed mailbox is a worker that ends.
            let _ = mailbox.send(Message::Second);
        }
    }
}

/// The monitor's thread.
struct Watching {
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Watching {
    /// Has it end, so that its connections take their leave of the servers.
    async fn end(self) {
        drop(self.stop);
        let joining = tokio::task::spawn_blocking(move || self.thread.join());
        // A name that is being looked up would hold it up.
        let _ = tokio::time::timeout(Duration::from_secs(1), joining).await;
    }
}

fn start_monitor(
    monitor: &Arc<Monitor>,
    options: Arc<MonitorOptions>,
    network: SharedNetwork,
) -> anyhow::Result<Watching> {
    let monitor = monitor.clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new()
        .name("monitor".to_owned())
        .spawn(move || {
            if let Ok(runtime) = Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default())
            {
                runtime.block_on(async {
                    tokio::select! {
                        () = monitor.run(options, network) => {}
                        _ = stopped => {}
                    }
                });
            }
        })
        .context("cannot start the monitor's thread")?;
    Ok(Watching { thread, stop })
}

fn start_workers(
    shared: &Shared,
    receivers: Vec<mpsc::UnboundedReceiver<Message>>,
    rests: Vec<Arc<Rest>>,
    accept: impl AsyncFnOnce() + Send + 'static,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    // On the first worker's thread.
    let mut accept = Some(accept);
    receivers
        .into_iter()
        .zip(rests)
        .enumerate()
        .map(|(index, (mailbox, rest))| {
            let shared = shared.clone();
            let accept = accept.take();
            std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    rest.prepare_thread();
                    let runtime = Builder::new_current_thread()
                        .enable_all()
                        .on_thread_park(move || rest.take())
                        .build_local(LocalOptions::default());
                    match runtime {
                        Ok(runtime) => {
                            runtime.block_on(async {
                                if let Some(accept) = accept {
                                    tokio::task::spawn_local(async move { accept().await });
                                }
                                Worker::new(index, shared).run(mailbox).await;
                            });
                        }
                        Err(error) => warn!(%error, "a worker cannot start"),
                    }
                })
                .context("cannot start a worker's thread")
        })
        .collect()
}

/// Keeps what the metrics say of the servers up to date.
async fn publish_servers(monitor: Arc<Monitor>, metrics: Arc<Metrics>) {
    let mut world = monitor.watch();
    loop {
        let states = {
            let world = world.borrow_and_update();
            let snapshot = &world.snapshot;
            let views = snapshot.servers.iter();
            views
                .map(|view| ServerState {
                    name: view.address.to_string(),
                    up: view.health.is_usable(),
                    fit: view.is_fit(),
                    primary: snapshot.primary == Some(view.id),
                    draining: view.draining,
                    gone: view.gone,
                    lag_seconds: view.lag_seconds,
                })
                .collect()
        };
        metrics.set_servers(states);
        metrics.set_primary(primary_state(&monitor));
        if world.changed().await.is_err() {
            return;
        }
    }
}

/// Whom a monitor asks what becomes of clients' statements on a server.
fn traffic(metrics: &Arc<Metrics>) -> Traffic {
    let metrics = metrics.clone();
    Traffic(Arc::new(move |server: ServerId| {
        let answered = |kind: &StatementKind| metrics.answered(server.index(), *kind);
        Counts {
            answered: StatementKind::ALL.iter().map(answered).sum(),
            read: answered(&StatementKind::Read),
            leased: metrics.leased(server.index()),
        }
    }))
}

fn primary_state(monitor: &Monitor) -> PrimaryState {
    let snapshot = monitor.watch().borrow().snapshot.clone();
    let failovers = monitor.failovers();
    let now = snapshot.without.map(NoPrimary::label);
    let kinds = MoveKind::ALL.into_iter();
    let outcomes = FailoverCount::ALL.iter().zip(failovers.totals());
    PrimaryState {
        without: NoPrimary::LABELS
            .iter()
            .map(|label| (*label, u64::from(now == Some(*label))))
            .collect(),
        failovers: kinds
            .map(|kind| (kind.as_str(), failovers.made(kind)))
            .collect(),
        statements: outcomes
            .map(|(outcome, count)| (outcome.as_str(), count))
            .collect(),
        changes: snapshot.epoch,
        last_pause_ms: failovers.list().iter().find_map(Timeline::pause_ms),
    }
}

/// Ready: somebody can take writes, or at least reads.
fn readiness(world: &World) -> Readiness {
    let snapshot = &world.snapshot;
    let primary = snapshot.primary_view();
    let replicas = snapshot.fit_replicas().count();
    let detail = match primary {
        Some(view) => format!("primary {}, {replicas} replicas take reads", view.address),
        None => format!("no primary, {replicas} replicas take reads"),
    };
    let all_asked = snapshot
        .servers
        .iter()
        .all(|view| view.gone || view.health != Health::Unknown);
    Readiness {
        ready: world.greeting.is_some() && (primary.is_some() || (all_asked && replicas > 0)),
        detail,
    }
}
