//! The process as one value, from its configuration to its end: [`App`] is built, [`Bound`] listens,
//! [`Running`] serves. Each stage is made from the one before, and has only what exists by then.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use millrace_admin::Listener;
use millrace_backend::cache::Cache;
use millrace_backend::connect::{Address, Network, SharedNetwork};
use millrace_backend::monitor::{Monitor, MonitorOptions};
use millrace_backend::names::Resolver;
use millrace_backend::questions::Questions;
use millrace_config::{Account, Config, Settings};
use millrace_metrics::{Metrics, PerServer};
use millrace_routing::rules::{Rule, Rules};
use millrace_worker::{Accounts, Held, Message, Registry, SessionSettings, Shared, Written};
use tokio::signal::unix::Signal;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tracing::info;

use crate::admin::AdminThread;
use crate::coalesce::Coalescer;
use crate::drain::{Signals, drain};
use crate::reload::{Drained, Reload, Source};
use crate::threads::{WatchThread, start_cache, start_monitor, start_workers, tell_time};
use crate::{listen, report, tls};

/// What all threads share, and the configuration that it is made from. No socket is bound yet, and no thread
/// runs.
pub(crate) struct App {
    settings: watch::Sender<Arc<Settings>>,
    shared: Shared,
    monitoring: Arc<MonitorOptions>,
    drained: Drained,
    /// The workers' ends of their mailboxes.
    receivers: Vec<mpsc::UnboundedReceiver<Message>>,
}

impl App {
    /// Makes everything that needs no socket and no thread. Reads the files of TLS.
    ///
    /// # Errors
    /// A file of TLS that cannot be used, or a rule's pattern.
    pub(crate) fn build(config: Config) -> anyhow::Result<App> {
        let workers = workers(&config);
        let servers = config.servers.iter();
        let addresses: Vec<Address> = servers.map(|one| Address::from(&one.address)).collect();
        let names = addresses.iter().map(ToString::to_string).collect();
        let rules = config.rules.iter().map(|rule| rule.name.to_string());
        let metrics = Arc::new(Metrics::with_rules(workers, names, rules.collect()));
        let network: SharedNetwork = Arc::new(Network {
            tls: tls::towards_servers(&config.server_tls)?,
            tcp: config.server_tcp,
            resolver: Resolver::default(),
            questions: Questions::default(),
        });
        let monitoring = Arc::new(MonitorOptions {
            traffic: Some(report::traffic(&metrics)),
            ..config.monitor.clone()
        });
        let monitor = Monitor::new(&monitoring, config.server_specs(), &addresses);
        let mut drained = Drained::default();
        drained.follow(&config, &monitor);
        let (senders, receivers) = (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
        let (acceptor, certificate) = tls::acceptor(&config.tls)?;
        let shared = Shared {
            held: Arc::new(Held::new(&config.sessions.failover)),
            settings: session_settings(&config)?,
            counts: Arc::new(PerServer::new(addresses.len())),
            accounts: Arc::new(known(&config.accounts)),
            registry: Arc::default(),
            key: Arc::new(tls::server_key(&config.tls)?),
            tls: Some(acceptor),
            certificate,
            network,
            metrics,
            monitor,
            written: Arc::new(Written::new(workers)),
            cache: cache(&config),
            mailboxes: Arc::new(senders),
        };
        Ok(App {
            settings: watch::Sender::new(Arc::new(Settings::new(config))),
            shared,
            monitoring,
            drained,
            receivers,
        })
    }

    /// Listens everywhere: clients, operators and HTTP wait until they are served.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub(crate) async fn bind(self) -> anyhow::Result<Bound> {
        let settings = self.settings.borrow().clone();
        let config = &settings.config;
        let mut listeners = Vec::new();
        for (number, listener) in (0..).zip(&config.listeners) {
            listeners.push(listen::bind(number, listener, &config.tcp).await?);
        }
        let operators = match &config.admin {
            Some(admin) => {
                let settings = self.settings.subscribe();
                Some(AdminThread::bind(admin, settings, &self.shared).await?)
            }
            None => None,
        };
        let http = match &config.http {
            Some(address) => {
                let listener = Listener::bind(&address.to_string()).await;
                Some(listener.with_context(|| format!("cannot listen on {address} for HTTP"))?)
            }
            None => None,
        };
        Ok(Bound {
            app: self,
            listeners,
            operators,
            http,
        })
    }
}

/// As many threads as are configured, else as CPUs. More than a server may have connections would be idle.
fn workers(config: &Config) -> usize {
    config.workers.unwrap_or_else(|| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        cpus.min(config.pool.max_connections)
    })
}

/// The accounts whose passwords the configuration gives.
fn known(configured: &[Account]) -> Accounts {
    let accounts = Accounts::default();
    for account in configured {
        if let Some(password) = &account.password {
            accounts.learn(account.name.as_bytes(), password.clone());
        }
    }
    accounts
}

/// The cache, where it is on, or its log is followed for what reads must see.
fn cache(config: &Config) -> Option<Arc<Cache>> {
    config
        .follows_log()
        .then(|| Arc::new(Cache::new(config.cache.clone())))
}

/// What sessions start with.
fn session_settings(config: &Config) -> anyhow::Result<SessionSettings> {
    Ok(SessionSettings {
        options: Arc::new(config.sessions.clone()),
        pool: Arc::new(config.pool.clone()),
        rules: Arc::new(Rules::new(config.rules.clone()).context("the rules' patterns")?),
        limits: Arc::new(config.rules.iter().map(limit).collect()),
        sets: Arc::new(config.sets.clone()),
    })
}

/// How many statements of a rule may run at once, where it limits them.
fn limit(rule: &Rule) -> Option<Arc<Semaphore>> {
    Some(Arc::new(Semaphore::new(rule.then.concurrency? as usize)))
}

/// Every socket listens, and nobody is served yet.
pub(crate) struct Bound {
    app: App,
    listeners: Vec<listen::Bound>,
    operators: Option<AdminThread>,
    http: Option<Listener>,
}

impl Bound {
    /// Starts all threads and tasks. The file is read again at each of `hangups`.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub(crate) fn spawn(self, source: Source, hangups: Signal) -> anyhow::Result<Running> {
        let App {
            settings,
            shared,
            monitoring,
            drained,
            receivers,
        } = self.app;
        if let Some(operators) = self.operators {
            operators.serve();
        }
        let (monitor, metrics) = (shared.monitor.clone(), shared.metrics.clone());
        let watching = start_monitor(&monitor, monitoring.clone(), shared.network.clone())?;
        let following = match &shared.cache {
            Some(cache) => Some(start_cache(
                cache,
                &monitor,
                monitoring,
                shared.network.clone(),
            )?),
            None => None,
        };
        let (stop, stopping) = oneshot::channel();
        let (accepting, stopped) = oneshot::channel();
        let accept = {
            let (listeners, mailboxes) = (self.listeners, shared.mailboxes.clone());
            let metrics = metrics.clone();
            async move || {
                listen::accept(listeners, mailboxes, metrics, stopping).await;
                drop(accepting);
            }
        };
        let in_force = settings.subscribe();
        let config = &in_force.borrow().clone().config;
        let coalescer = Coalescer::new(config.coalesce_limit, receivers.len(), metrics.clone());
        let rests = coalescer.rests().collect();
        let workers = start_workers(&shared, receivers, rests, accept)?;
        tokio::spawn(tell_time(shared.mailboxes.clone(), coalescer));
        let reload = Reload {
            source,
            settings,
            sessions: shared.settings,
            drained,
            monitor: monitor.clone(),
            mailboxes: shared.mailboxes.clone(),
        };
        tokio::spawn(reload.follow(hangups));
        tokio::spawn(report::publish_servers(monitor.clone(), metrics.clone()));
        if let Some(cache) = &shared.cache {
            tokio::spawn(report::publish_cache(cache.clone(), metrics.clone()));
        }
        if let Some((listener, address)) = self.http.zip(config.http.as_ref()) {
            info!(%address, "serving metrics and health");
            let world = monitor.watch();
            let ready = move || report::readiness(&world.borrow());
            let never = std::future::pending();
            tokio::spawn(millrace_admin::serve(listener, metrics, ready, never));
        }
        Ok(Running {
            mailboxes: shared.mailboxes,
            registry: shared.registry,
            settings: in_force,
            stop,
            stopped,
            workers,
            watching,
            following,
        })
    }
}

/// Clients are served. What is kept is what ends it.
pub(crate) struct Running {
    mailboxes: Arc<Vec<mpsc::UnboundedSender<Message>>>,
    registry: Arc<Registry>,
    settings: watch::Receiver<Arc<Settings>>,
    /// Dropped where no client is to come any more.
    stop: oneshot::Sender<()>,
    /// Ends in an error when none comes any more.
    stopped: oneshot::Receiver<()>,
    workers: Vec<JoinHandle<()>>,
    watching: WatchThread,
    /// The cache's, where it is on.
    following: Option<WatchThread>,
}

impl Running {
    /// Takes no new clients, lets those that are here end, and ends every thread.
    pub(crate) async fn drain(self, signals: &mut Signals) {
        drop(self.stop);
        let _ = self.stopped.await;
        let timeout = self.settings.borrow().config.drain_timeout;
        drain(self.mailboxes, self.registry, timeout, signals).await;
        for worker in self.workers {
            let _ = tokio::task::spawn_blocking(move || worker.join()).await;
        }
        if let Some(following) = self.following {
            following.end().await;
        }
        self.watching.end().await;
        info!("stopped");
    }
}
