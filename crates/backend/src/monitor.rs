//! Has each server asked what it is and where it stands, twice a second by default, and publishes
//! what follows from the answers. Writes nothing to the servers and never blocks a worker.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_metrics::PerServer;
use millrace_protocol::Capabilities;
use millrace_protocol::handshake::Greeting;
use millrace_topology::{
    ChangeEvent, Family, Health, Millis, Observation, ObservationKind, Options, ProbeReport,
    ServerId, ServerSpec, Snapshot, Topology, Unfit, Waits,
};
use tokio::sync::{Notify, watch};
use tracing::{error, warn};

use crate::clock::Clock;
use crate::conn::Row;
use crate::connect::{Address, Login, SharedNetwork};
use crate::error::BackendError;
use crate::failovers::Failovers;
use crate::fresh::Fresh;
use crate::pool::ServerFacts;
use crate::positions::{Position, Positions};
use crate::probe::accounts::user_rows;
use crate::probe::positions::{Asked, ask_position};
use crate::probe::{self, Probed};
use crate::secret::Secret;
use crate::state::Begins;
use crate::tls::For;
use crate::topology_log;
use crate::touched::Touched;
use crate::user_rows::{Name, UserRows};

pub use crate::probe::Sounding;

/// How the servers are asked.
#[derive(Debug, Clone)]
pub struct MonitorOptions {
    /// The account; it needs the privilege to see the replication's status.
    pub user: String,
    /// Its password.
    pub password: Secret,
    /// Time between two questions to a server.
    pub interval: Duration,
    /// The same while no server takes writes.
    pub urgent_interval: Duration,
    /// How long the answers to one probe may take together.
    pub timeout: Duration,
    /// How long connecting for a probe may take, login included.
    pub connect_timeout: Duration,
    /// The least time between two questions to a server how far it is.
    pub position_interval: Duration,
    /// How often the stored routines and views are read again.
    pub catalogue_interval: Duration,
    /// What reads them.
    pub catalogue_queries: CatalogueQueries,
    /// How servers are judged.
    pub topology: Options,
    /// Commits under way for longer than this keep further writes from the server; zero: never asked.
    pub commit_stall: Duration,
    /// For how long a change of accounts or global variables may go unnoticed by new logins.
    pub max_login_age: Duration,
    /// What becomes of clients' statements, where that is known.
    pub traffic: Option<Traffic>,
}

impl MonitorOptions {
    /// The defaults, with no account. `catalogue_queries` read the stored routines and views.
    pub fn new(catalogue_queries: CatalogueQueries) -> Self {
        MonitorOptions {
            user: String::new(),
            password: Secret::new(Vec::new()),
            interval: Duration::from_millis(500),
            urgent_interval: Duration::from_millis(100),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            position_interval: Duration::from_millis(50),
            catalogue_interval: Duration::from_secs(5),
            catalogue_queries,
            topology: Options::default(),
            commit_stall: Duration::from_secs(2),
            max_login_age: Duration::from_secs(1),
            traffic: None,
        }
    }

    /// Servers are asked which others there are.
    pub(crate) fn discovers(&self) -> bool {
        self.topology.discovery.is_some()
    }
}

/// Asks a server, once, all that the monitor asks: for a check before anything is served.
///
/// # Errors
/// When it cannot be reached, refuses the account, or refuses what every probe asks.
pub async fn sound(
    address: &Address,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<Sounding, BackendError> {
    probe::sound(address, options, network).await
}

/// What has become of clients' statements on a server so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Statements answered. A server that answers clients is not down because a probe had no answer.
    pub answered: u64,
    /// Of these, those that read.
    pub read: u64,
    /// Connections on loan now.
    pub leased: u64,
}

/// Counts clients' statements on a server.
#[derive(Clone)]
pub struct Traffic(pub Arc<dyn Fn(ServerId) -> Counts + Send + Sync>);

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traffic")
    }
}

/// The statements that read a family's stored routines, views and triggers, in this order.
pub type CatalogueQueries = fn(Family) -> [&'static str; 3];

/// The rows of the three [`CatalogueQueries`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CatalogueRows {
    /// Whose they are; none before they were read.
    pub family: Option<Family>,
    /// In the order of the queries.
    pub rows: [Vec<Row>; 3],
}

/// Everything known of the servers at one moment.
#[derive(Debug, Clone)]
pub struct World {
    /// Roles, health, positions.
    pub snapshot: Arc<Snapshot>,
    /// What is needed to connect, per server; the family is a guess before the first answer.
    pub facts: Vec<Arc<ServerFacts>>,
    /// What clients are to be greeted with; the primary's own greeting.
    pub greeting: Option<Arc<Greeting>>,
    /// Stored routines and views.
    pub catalogue: Arc<CatalogueRows>,
    /// Up to which change of stored code they were read, see [`Touched`].
    pub catalogue_read: u64,
}

impl World {
    /// What sessions begin with in `session_track_system_variables`; empty where it is not known.
    pub fn tracked_by_default(&self) -> Arc<str> {
        let of = |id: ServerId| self.facts.get(id.index());
        let judges = self.snapshot.judges();
        let facts = self.snapshot.primary.into_iter().chain(judges).find_map(of);
        facts.map_or_else(|| "".into(), |facts| facts.tracked_by_default.clone())
    }
}

/// The monitor's side that others hold.
#[derive(Debug)]
pub struct Monitor {
    topology: Mutex<Topology>,
    world: watch::Sender<Arc<World>>,
    nudges: PerServer<Notify>,
    sights: PerServer<sight::Sight>,
    touched: Arc<Touched>,
    positions: Arc<Positions>,
    failovers: Failovers,
    max_login_age: Duration,
    /// Who may read the servers' account tables, and within what time.
    reader: Reader,
    origin: Instant,
}

#[derive(Debug)]
struct Reader {
    user: String,
    password: Secret,
    timeout: Duration,
}

/// A server on which nothing is written is asked how far it is after twice as long each time, up to
/// so many times, until something is written through Millrace; whoever waits for the answer has it at once all the same.
const QUIET_DOUBLINGS: u32 = 4;

/// Changes of stored code that come one after the other are read together.
const GATHERED: Duration = Duration::from_millis(20);

/// What watches has panicked: it is begun anew after this.
const BEGUN_ANEW: Duration = Duration::from_secs(1);

impl Monitor {
    /// Prepares to watch `servers`; asks nothing yet.
    pub fn new(
        options: &MonitorOptions,
        servers: Vec<ServerSpec>,
        addresses: &[Address],
    ) -> Arc<Monitor> {
        let topology = Topology::new(options.topology.clone(), servers);
        let facts = (0..)
            .map(ServerId)
            .zip(addresses)
            .map(|(id, address)| unknown_facts(id, address.clone(), options.max_login_age))
            .collect();
        let origin = Instant::now();
        let world = World {
            snapshot: topology.snapshot(),
            facts,
            greeting: None,
            catalogue: Arc::default(),
            catalogue_read: 0,
        };
        Arc::new(Monitor {
            topology: Mutex::new(topology),
            world: watch::channel(Arc::new(world)).0,
            nudges: PerServer::new(addresses.len()),
            sights: PerServer::new(addresses.len()),
            touched: Arc::default(),
            positions: Arc::new(Positions::new(addresses.len())),
            failovers: Failovers::new(origin),
            max_login_age: options.max_login_age,
            reader: Reader {
                user: options.user.clone(),
                password: options.password.clone(),
                timeout: options.connect_timeout,
            },
            origin,
        })
    }

    /// The world now and whenever it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<World>> {
        self.world.subscribe()
    }

    /// How far the servers are, for those who need to know it more often than servers are probed.
    pub fn positions(&self) -> &Arc<Positions> {
        &self.positions
    }

    /// A session met an error on a server: it is taken into account, and the server is asked at
    /// once.
    pub fn observe(&self, server: ServerId, kind: ObservationKind) {
        self.fold(server, kind, |_| {});
        self.wake_workers(server);
    }

    /// Has the server asked at once.
    fn wake_workers(&self, server: ServerId) {
        if let Some(wake_workers) = self.nudges.get(server.index()) {
            wake_workers.notify_one();
        }
    }

    /// The last changes of the primary.
    pub fn failovers(&self) -> &Failovers {
        &self.failovers
    }

    /// Takes a server out of use: it takes no new statements, and what runs there may end. `by` is who
    /// says so. False where there is no such server.
    pub fn drain(&self, server: ServerId, by: &str) -> bool {
        let known = self.knows(server);
        if known {
            self.fold(server, ObservationKind::Drain { by: by.into() }, |_| {});
        }
        known
    }

    /// Puts a drained server back in use. False where there is no such server.
    pub fn resume(&self, server: ServerId, by: &str) -> bool {
        let known = self.knows(server);
        if known {
            self.fold(server, ObservationKind::Resume { by: by.into() }, |_| {});
        }
        known
    }

    fn knows(&self, server: ServerId) -> bool {
        let world = self.world.borrow();
        let mut servers = world.snapshot.servers.iter();
        servers.any(|view| !view.gone && (view.id == server || view.address_of == Some(server)))
    }

    /// Whether an answer is of a machine that has to do with the servers that are known.
    fn is_kin(&self, server: ServerId, report: &ProbeReport) -> bool {
        let topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner);
        topology.is_kin(server, report)
    }

    /// Stored code that was touched since it was read.
    pub fn touched(&self) -> &Arc<Touched> {
        &self.touched
    }

    /// Accounts or global variables were changed on this server: the others may follow, and new
    /// logins get no connection from before.
    pub fn accounts_changed(&self, server: ServerId) {
        let world = self.world.borrow().clone();
        for facts in &world.facts {
            match facts.id == server {
                true => facts.fresh.changed(),
                false => facts.fresh.unsettle(),
            }
        }
    }

    /// The rows by which a name may log in to a server, read now. None where the monitor's account may not
    /// read them, or there is none.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn user_rows(
        &self,
        server: &ServerFacts,
        name: Name<'_>,
        network: &SharedNetwork,
    ) -> Result<Option<UserRows>, BackendError> {
        if self.reader.user.is_empty() {
            return Ok(None);
        }
        let login = Login {
            user: self.reader.user.as_bytes(),
            password: &self.reader.password,
            database: None,
            collation: 45,
            capabilities: Capabilities::DEPRECATE_EOF,
            tls: false,
            whose: For::Own,
        };
        let rows = user_rows(server, &login, network, self.reader.timeout, name).await?;
        network.tls.know_accounts(rows.is_some());
        Ok(rows)
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn fold(&self, server: ServerId, kind: ObservationKind, with: impl FnOnce(&mut World)) {
        let at = self.now();
        let mut topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner);
        let before = topology.snapshot();
        let reason = topology_log::reason(&kind);
        let events = topology.fold(Observation { server, at, kind });
        let snapshot = topology.snapshot();
        // First: who waits for a new primary is served, and noted, as soon as it is published.
        topology_log::note(&self.failovers, &before, &topology, server, at.0, &reason);
        // Published under the lock, so that the newest snapshot is published last.
        self.world.send_modify(|world| {
            let mut next = World::clone(world);
            add_facts(&mut next.facts, &snapshot, self.max_login_age);
            next.snapshot = snapshot.clone();
            with(&mut next);
            *world = Arc::new(next);
        });
        drop(topology);
        for event in &events {
            topology_log::log(event, &snapshot);
            if calls_for_all(event, &before) {
                self.nudge_others(server, &snapshot);
            }
            if let Some(name) = stands_in(event, &before) {
                self.wake_workers(name);
            }
        }
    }

    /// What one server did makes it urgent to know how the others are.
    fn nudge_others(&self, server: ServerId, snapshot: &Snapshot) {
        let others = snapshot.servers.iter();
        for other in others.filter(|other| other.id != server && !other.gone) {
            self.wake_workers(other.id);
        }
    }

    /// Watches until the process ends: two tasks per server, and one for the catalogue. To be called
    /// on a current-thread runtime that allows local tasks.
    pub async fn run(self: Arc<Self>, options: Arc<MonitorOptions>, network: SharedNetwork) {
        let clock = std::rc::Rc::new(Clock::new(Instant::now()));
        let (reader, how, with) = (self.clone(), options.clone(), network.clone());
        let read = move || reader.clone().watch_catalogue(how.clone(), with.clone());
        tokio::task::spawn_local(keep("stored routines and views", read));
        let mut world = self.watch();
        let mut watched = HashMap::new();
        loop {
            let known = world.borrow_and_update().facts.len();
            for id in (0..known).filter_map(|at| u16::try_from(at).ok().map(ServerId)) {
                watched.entry(id).or_insert_with(|| {
                    let watcher = watcher::ServerWatcher {
                        monitor: self.clone(),
                        id,
                        options: options.clone(),
                        network: network.clone(),
                        clock: clock.clone(),
                    };
                    let watching = keep("the watch of a server", move || watcher.clone().watch());
                    tokio::task::spawn_local(watching);
                    if !options.user.is_empty() {
                        let monitor = self.clone();
                        let (options, network) = (options.clone(), network.clone());
                        let follow = move || {
                            monitor
                                .clone()
                                .follow_position(id, options.clone(), network.clone())
                        };
                        tokio::task::spawn_local(keep("a server's position", follow));
                    }
                });
            }
            if world.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until somebody wants the server to be asked at once.
    async fn nudged(&self, server: ServerId) {
        match self.nudges.get(server.index()) {
            Some(wake_workers) => wake_workers.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Asks the server how far it is whenever somebody needs to know, on a connection of its own:
    /// a probe may take longer.
    async fn follow_position(
        self: Arc<Self>,
        id: ServerId,
        options: Arc<MonitorOptions>,
        network: SharedNetwork,
    ) {
        let mut conn = None;
        let mut last = None;
        let mut unchanged = 0;
        loop {
            self.positions.called(id).await;
            let (facts, asked) = {
                let world = self.world.borrow();
                let asked = how_to_ask(&world.snapshot, id);
                (world.facts[id.index()].clone(), asked)
            };
            if let Some((asked, incarnation)) = asked {
                let number = self.positions.begin(id);
                let asking = ask_position(&mut conn, &facts, asked, &options, &network);
                match tokio::time::timeout(options.timeout, asking).await {
                    Ok(Ok(told)) => {
                        let visible = Arc::new(told.visible);
                        unchanged = match last.replace(visible.clone()) == Some(visible.clone()) {
                            true => (unchanged + 1).min(QUIET_DOUBLINGS),
                            false => 0,
                        };
                        let position = Position {
                            number,
                            executed: Arc::new(told.executed),
                            visible,
                            read_only: told.read_only,
                            incarnation,
                        };
                        self.positions.answer(id, position);
                    }
                    // What is wrong with the server, the probe finds out and says.
                    _ => conn = None,
                }
            }
            let least = options.position_interval;
            let next = tokio::time::Instant::now() + least;
            let stirred = async {
                self.positions.stirred(id).await;
                // A server that makes no progress is not asked for every write.
                tokio::time::sleep_until(next).await;
            };
            tokio::select! {
                () = tokio::time::sleep(least.saturating_mul(1 << unchanged)) => {}
                () = self.positions.urged(id) => {}
                () = stirred, if unchanged > 0 => unchanged = 0,
            }
        }
    }

    fn accept(&self, id: ServerId, probed: Probed) {
        let family = probed.report.family;
        let (track, begins) = (probed.track, probed.begins);
        let tracked_by_default = probed.tracked_by_default;
        let in_cluster = probed.report.waits() == Waits::Cluster;
        let (greeting, at) = (probed.greeting, probed.at);
        self.fold(
            id,
            ObservationKind::ProbeOk(Box::new(probed.report)),
            move |world| {
                let old = &world.facts[id.index()];
                let address = old.address.at(at);
                let is_same = old.family == family
                    && old.address == address
                    && old.track == track
                    && old.tracked_by_default == tracked_by_default
                    && old.begins == begins
                    && old.in_cluster == in_cluster;
                if !is_same {
                    world.facts[id.index()] = Arc::new(ServerFacts {
                        id,
                        address,
                        family,
                        track,
                        tracked_by_default,
                        begins,
                        in_cluster,
                        fresh: old.fresh.clone(),
                    });
                }
                let first = world.greeting.is_none();
                if first || world.snapshot.primary == Some(id) {
                    world.greeting = Some(Arc::new(greeting));
                }
            },
        );
    }

    async fn watch_catalogue(
        self: Arc<Self>,
        options: Arc<MonitorOptions>,
        network: SharedNetwork,
    ) {
        let mut conn = None;
        let mut complained = false;
        // Until the first try has told.
        self.touched.set_readable(!options.user.is_empty());
        loop {
            let world = self.world.borrow().clone();
            let mut pause = options.catalogue_interval;
            if let Some(primary) = world.snapshot.primary.filter(|_| !options.user.is_empty()) {
                let facts = world.facts[primary.index()].clone();
                let mark = self.touched.mark();
                let reading = probe::read_catalogue(&mut conn, &facts, &options, &network);
                match tokio::time::timeout(options.timeout.max(Duration::from_secs(5)), reading)
                    .await
                {
                    Ok(Ok(catalogue)) => {
                        complained = false;
                        self.touched.set_readable(true);
                        self.publish_catalogue(catalogue, mark);
                    }
                    failed => {
                        conn = None;
                        self.touched.set_readable(false);
                        let error = match failed {
                            Ok(Err(error)) => error.to_string(),
                            _ => "no answer in time".to_owned(),
                        };
                        if !std::mem::replace(&mut complained, true) {
                            warn!(%error, "stored routines and views cannot be read: calls of stored functions go to the primary");
                        }
                    }
                }
            } else {
                pause = options.interval;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.touched.changed() => {
                    tokio::time::sleep(GATHERED).await;
                }
            }
        }
    }

    fn publish_catalogue(&self, catalogue: CatalogueRows, mark: u64) {
        let _topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner);
        self.world.send_if_modified(|world| {
            let same = *world.catalogue == catalogue;
            if same && world.catalogue_read == mark {
                return false;
            }
            let mut next = World::clone(world);
            next.catalogue_read = mark;
            if !same {
                next.catalogue = Arc::new(catalogue);
            }
            *world = Arc::new(next);
            true
        });
    }
}

/// Runs a task until it ends; where it panics, it is begun anew, and said.
async fn keep<F: Future<Output = ()> + 'static>(what: &str, begin: impl Fn() -> F) {
    loop {
        match tokio::task::spawn_local(begin()).await {
            Err(failed) if failed.is_panic() => {
                error!("{what} has panicked, which is a defect of Millrace; it begins anew");
            }
            _ => return,
        }
        tokio::time::sleep(BEGUN_ANEW).await;
    }
}

/// How a server can be asked how far it is, and its incarnation; none where it cannot.
fn how_to_ask(snapshot: &Snapshot, id: ServerId) -> Option<(Asked, u32)> {
    let view = snapshot.server(id).filter(|view| view.health.is_usable())?;
    let version = view
        .report
        .as_ref()
        .map_or(0, |report| report.version_number);
    let asked = match view.waits {
        Waits::Gtids => Asked::Gtids,
        Waits::Log if snapshot.primary == Some(id) => Asked::OwnLog(version),
        Waits::Log => Asked::SourcesLog(version),
        // A cluster's node is not asked: it waits for all that there is.
        Waits::Cluster | Waits::Nothing => return None,
    };
    Some((asked, view.incarnation))
}

fn unknown_facts(id: ServerId, address: Address, max_login_age: Duration) -> Arc<ServerFacts> {
    Arc::new(ServerFacts {
        id,
        address,
        family: Family::MySql,
        track: "*".into(),
        tracked_by_default: "".into(),
        begins: Arc::new(Begins::unknown()),
        in_cluster: false,
        fresh: Fresh::new(max_login_age),
    })
}

/// Servers that were found have facts as well; their family is taken for the others'.
fn add_facts(facts: &mut Vec<Arc<ServerFacts>>, snapshot: &Snapshot, max_login_age: Duration) {
    for view in snapshot.servers.iter().skip(facts.len()) {
        let address = Address::parse(&view.address)
            .unwrap_or_else(|| Address::new(view.address.to_string(), 0));
        let mut found = unknown_facts(view.id, address, max_login_age);
        if let (Some(family), Some(found)) = (snapshot.family, Arc::get_mut(&mut found)) {
            found.family = family;
        }
        facts.push(found);
    }
    // Its certificate is for the name by which it is listed.
    for view in &snapshot.servers {
        let listed = view.address_of.and_then(|by| facts.get(by.index()));
        let name: Option<Box<str>> = listed.map(|listed| (*listed.address.host).into());
        let known = &mut facts[view.id.index()];
        if known.address.name != name {
            let mut address = known.address.clone();
            address.name = name;
            *known = Arc::new(ServerFacts {
                address,
                ..ServerFacts::clone(known)
            });
        }
    }
}

/// A primary that may be lost, a server that comes back, a second one that is writable: what the others
/// see is needed now.
fn calls_for_all(event: &ChangeEvent, before: &Snapshot) -> bool {
    let ChangeEvent::Health { server, from, to } = event else {
        // The first may have been made read only since it was asked: a switchover.
        return matches!(event, ChangeEvent::Conflict { .. });
    };
    match to {
        Health::Up => matches!(from, Health::Down { .. }),
        Health::Suspect { .. } | Health::Down { .. } => before.primary == Some(*server),
        Health::Unknown => false,
    }
}

/// Another name of a server that stands in from now on: it was asked seldom.
fn stands_in(event: &ChangeEvent, before: &Snapshot) -> Option<ServerId> {
    let ChangeEvent::Fitness { server, .. } = event else {
        return None;
    };
    let unfit = before.server(*server)?.unfit;
    matches!(unfit, Some(Unfit::SameServer(_))).then_some(*server)
}

mod sight;
#[cfg(test)]
mod tests;
mod watcher;
