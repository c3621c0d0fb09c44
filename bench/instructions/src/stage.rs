//! A runtime like a worker's, and the others for it: scripted servers and a client. All on one
//! thread: the others have their turn when the runtime has nothing left to do, just before it waits
//! for its sockets. So every run takes the same steps, Millrace waits as often as on a worker with
//! one client, and what the others do is not counted.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use millrace_backend::connect::{Address, Network, SharedNetwork};
use millrace_backend::monitor::{Monitor, MonitorOptions};
use millrace_backend::secret::Secret;
use millrace_backend::tcp::TcpOptions;
use millrace_backend::tls::{ServerTls, ServerTlsFiles, ServerTlsMode};
use millrace_routing::Catalogue;
use millrace_topology::{Options, ServerId, ServerSpec};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::Notify;

use crate::client::{Client, Script};
use crate::counted::{counted, uncounted};
use crate::server::Server;

/// More turns than anything uncounted takes, so that what hangs is seen.
const TURNS_MAX: u32 = 100_000;

/// So often may the runtime wait without anybody having anything to say; a worker wakes up once a
/// second for itself.
const IDLE_MAX: u32 = 20;

/// So many commands, or clients, come ahead of those that are counted.
pub(crate) const WARM_UP: u32 = 20;

/// The runtime and the others.
pub(crate) struct Stage {
    pub(crate) runtime: LocalRuntime,
    others: Arc<Mutex<Others>>,
    finished: Arc<Notify>,
    /// What the runtime does is being counted.
    counts: Arc<AtomicBool>,
    _folder: Folder,
}

/// Everybody but Millrace.
struct Others {
    /// A primary and two replicas.
    servers: Vec<Server>,
    client: Option<Client>,
    /// The client's statements are being counted: it goes on by itself.
    plays: bool,
    idle: u32,
    outcome: anyhow::Result<()>,
}

/// A folder of our own, for the sockets.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left in the machine's folder for such things harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lock(others: &Mutex<Others>) -> MutexGuard<'_, Others> {
    others.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    pub(crate) fn new() -> anyhow::Result<Stage> {
        let name = format!("millrace-instructions-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir(&folder.0)
            .with_context(|| format!("cannot make {}", folder.0.display()))?;
        let servers = (0..3)
            .map(|at| Server::new(folder.0.join(at.to_string()), at == 0))
            .collect::<anyhow::Result<_>>()?;
        let others = Arc::new(Mutex::new(Others {
            servers,
            client: None,
            plays: false,
            idle: 0,
            outcome: Ok(()),
        }));
        let finished = Arc::new(Notify::new());
        let counts = Arc::new(AtomicBool::new(false));
        let (theirs, ends, counting) = (others.clone(), finished.clone(), counts.clone());
        let before_waiting = move || {
            let mut play = || {
                if !lock(&theirs).play() {
                    ends.notify_one();
                }
            };
            if counting.load(Ordering::Relaxed) {
                uncounted(&mut play);
            } else {
                play();
            }
        };
        Ok(Stage {
            runtime: Builder::new_current_thread()
                .enable_all()
                .on_thread_park(before_waiting)
                .build_local(LocalOptions::default())?,
            others,
            finished,
            counts,
            _folder: folder,
        })
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        let others = lock(&self.others);
        let paths = others.servers.iter().map(Server::path);
        paths
            .map(|path| Address::new(path.display().to_string(), 0))
            .collect()
    }

    /// Uncounted turns for the runtime and the servers until `is_done`.
    pub(crate) fn until(&mut self, mut is_done: impl FnMut() -> bool) -> anyhow::Result<()> {
        for _ in 0..TURNS_MAX {
            if is_done() {
                return Ok(());
            }
            self.turn()?;
        }
        bail!("nothing comes of it in {TURNS_MAX} turns")
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        // The first comes back when the sockets have been looked at, the second when what they had
        // was worked on.
        self.runtime.block_on(async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        });
        lock(&self.others).answer().map(drop)
    }

    /// Runs a future on the runtime to its end, uncounted.
    pub(crate) fn finish<T: 'static>(
        &mut self,
        future: impl Future<Output = T> + 'static,
    ) -> anyhow::Result<T> {
        let task = self.runtime.spawn_local(future);
        self.until(|| task.is_finished())?;
        Ok(self.runtime.block_on(task)?)
    }

    /// Logs a client in over `socket`, uncounted.
    pub(crate) fn log_in(&mut self, socket: UnixStream) -> anyhow::Result<()> {
        let mut client = Client::new(socket)?;
        for _ in 0..TURNS_MAX {
            if client.log_in()? {
                lock(&self.others).client = Some(client);
                return Ok(());
            }
            self.turn()?;
        }
        bail!("the client was not let in")
    }

    /// Has a new client of `socket` log in, send a script's command `at`, and leave when it has the answer.
    pub(crate) fn visit(
        &mut self,
        socket: UnixStream,
        script: Box<Script>,
        at: u32,
        counts: bool,
    ) -> anyhow::Result<Box<Script>> {
        lock(&self.others).client = Some(Client::new(socket)?);
        let script = self.play_commands(script, at, 1, counts)?;
        let client = lock(&self.others).client.take();
        client.context("no client")?.quit()?;
        Ok(script)
    }

    /// Has the client send `count` of a script's commands, one when the last is answered. A few
    /// ahead of them are not counted: by then both replicas have a connection, and buffers have
    /// their size.
    pub(crate) fn play(&mut self, mut script: Box<Script>, count: u32) -> anyhow::Result<()> {
        script = self.play_commands(script, 0, WARM_UP, false)?;
        self.play_commands(script, WARM_UP, count, true).map(drop)
    }

    fn play_commands(
        &mut self,
        script: Box<Script>,
        first: u32,
        count: u32,
        counts: bool,
    ) -> anyhow::Result<Box<Script>> {
        {
            let mut others = lock(&self.others);
            let client = others.client.as_mut().context("no client")?;
            client.begin(script, first, count)?;
            others.plays = true;
            others.outcome = Ok(());
        }
        let mut waiting = || self.runtime.block_on(self.finished.notified());
        if counts {
            self.counts.store(true, Ordering::Relaxed);
            counted(&mut waiting);
            self.counts.store(false, Ordering::Relaxed);
        } else {
            waiting();
        }
        let mut others = lock(&self.others);
        others.plays = false;
        std::mem::replace(&mut others.outcome, Ok(()))?;
        let client = others.client.as_mut().context("no client")?;
        client.end().context("the client has no script")
    }

    /// A monitor that has asked the servers and asks no more: nothing periodic is counted.
    pub(crate) fn monitor(&mut self) -> anyhow::Result<Arc<Monitor>> {
        let addresses = self.addresses();
        let specs = addresses
            .iter()
            .map(|address| ServerSpec::new(&address.host))
            .collect();
        let options = MonitorOptions {
            position_interval: Duration::from_millis(50),
            user: "monitor".to_owned(),
            password: Secret::new(Vec::new()),
            interval: Duration::from_millis(10),
            urgent_interval: Duration::from_millis(10),
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(60),
            commit_stall: Duration::ZERO,
            traffic: None,
            max_login_age: Duration::from_secs(3600),
            catalogue_interval: Duration::from_secs(60),
            catalogue_queries: Catalogue::queries,
            topology: Options::default(),
        };
        let monitor = Monitor::new(&options, specs, &addresses);
        // It ends with its runtime.
        let own = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?;
        let workers = std::mem::replace(&mut self.runtime, own);
        let watching = monitor.clone().run(Arc::new(options), plain_network()?);
        self.runtime.spawn_local(watching);
        let world = monitor.watch();
        self.until(|| {
            let world = world.borrow();
            world.catalogue.family.is_some() && world.snapshot.fit_replicas().count() == 2
        })?;
        self.runtime = workers;
        let primary = world.borrow().snapshot.primary;
        ensure!(primary == Some(ServerId(0)), "the primary is {primary:?}");
        Ok(monitor)
    }
}

impl Others {
    /// The servers answer everything that has come in; false where there was nothing.
    fn answer(&mut self) -> anyhow::Result<bool> {
        let mut any = false;
        for server in &mut self.servers {
            any |= server.answer()?;
        }
        Ok(any)
    }

    /// What happens while Millrace waits; false when it is over.
    fn play(&mut self) -> bool {
        if !self.plays {
            return true;
        }
        let goes_on = self.try_play();
        self.outcome = goes_on
            .as_ref()
            .map(drop)
            .map_err(|error| anyhow::anyhow!("{error:#}"));
        self.plays = matches!(goes_on, Ok(true));
        self.plays
    }

    fn try_play(&mut self) -> anyhow::Result<bool> {
        let mut any = self.answer()?;
        let client = self.client.as_mut().context("no client")?;
        any |= client.go_on()?;
        self.idle = if any { 0 } else { self.idle + 1 };
        ensure!(self.idle < IDLE_MAX, "a statement is not answered");
        Ok(!client.is_done())
    }
}

pub(crate) fn plain_network() -> anyhow::Result<SharedNetwork> {
    let tls = ServerTls::new(ServerTlsMode::Disabled, &ServerTlsFiles::default());
    Ok(Arc::new(Network {
        tls: tls.context("no TLS")?,
        tcp: TcpOptions::default(),
        resolver: millrace_backend::names::Resolver::default(),
        questions: millrace_backend::questions::Questions::default(),
    }))
}
