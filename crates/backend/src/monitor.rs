//! Has each server asked what it is and where it stands, twice a second by default, and publishes
//! what follows from the answers. Writes nothing to the servers and never blocks a worker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_engine::state::Begins;
use millrace_metrics::PerServer;
use millrace_protocol::Capabilities;
use millrace_topology::{
    ChangeEvent, Family, Health, Kin, Millis, Observation, ObservationKind, ProbeReport, ServerId,
    ServerSpec, Snapshot, Topology, Unfit, Waits,
};
use tokio::sync::{Notify, watch};

use crate::connect::{Address, Login, SharedNetwork};
use crate::error::BackendError;
use crate::facts::ServerFacts;
use crate::failovers::Failovers;
use crate::fresh::Fresh;
use crate::positions::Positions;
use crate::probe::accounts::user_rows;
use crate::probe::{self, Probed};
use crate::secret::Secret;
use crate::tls::For;
use crate::topology_log;
use crate::touched::Touched;
use crate::unshown::Unshown;
use crate::user_rows::{Name, UserRows};

pub use crate::probe::Sounding;
pub use options::{CatalogueQueries, Counts, MonitorOptions, Traffic};
pub use world::{CatalogueRows, World};

mod options;
pub(crate) mod run;
mod sight;
#[cfg(test)]
mod tests;
mod watcher;
mod world;

use sight::{Sight, Word};

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

/// The monitor's side that others hold.
#[derive(Debug)]
pub struct Monitor {
    topology: Mutex<Topology>,
    world: watch::Sender<Arc<World>>,
    nudges: PerServer<Notify>,
    sights: PerServer<Sight>,
    touched: Arc<Touched>,
    positions: Arc<Positions>,
    unshown: Arc<Positions<Unshown>>,
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

/// A server that shuts down closes its connections one after the other: this long after the first of them the
/// monitor's has its turn as well.
const SETTLED: Duration = Duration::from_millis(50);

/// How long the monitor's word is waited for. Its own time limits end before that.
const LIMIT: Duration = Duration::from_secs(5);

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
            unshown: Arc::new(Positions::new(addresses.len())),
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

    /// What the primary has logged and may not show yet, for sessions that have been shown something by others.
    pub fn unshown(&self) -> &Arc<Positions<Unshown>> {
        &self.unshown
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

    /// Whether the server, which was alive at `alive`, has lived on until now: the monitor's connection from
    /// before that has not ended, and a question that is put to it from now on is answered. False also where
    /// the monitor cannot tell.
    pub async fn lived_on(&self, server: ServerId, alive: Instant) -> bool {
        let after = Instant::now() + SETTLED;
        let Some(sight) = self.sights.get(server.index()) else {
            return false;
        };
        let mut world = self.watch();
        let looking = async {
            let mut called = false;
            loop {
                world.borrow_and_update();
                match sight.word(alive, after) {
                    Word::LivedOn => return true,
                    Word::Unproven => return false,
                    Word::NotYet => {}
                }
                tokio::select! {
                    changed = world.changed() => if changed.is_err() {
                        return false;
                    },
                    () = tokio::time::sleep_until(after.into()), if !called => {
                        called = true;
                        self.wake_workers(server);
                    }
                }
            }
        };
        tokio::time::timeout(LIMIT, looking).await.unwrap_or(false)
    }

    /// Whether there is an account to ask servers with (`[monitor] user`).
    pub fn has_account(&self) -> bool {
        !self.reader.user.is_empty()
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
    fn kin(&self, server: ServerId, report: &ProbeReport) -> Kin {
        let topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner);
        topology.kin(server, report)
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

    /// Waits until somebody wants the server to be asked at once.
    async fn nudged(&self, server: ServerId) {
        match self.nudges.get(server.index()) {
            Some(wake_workers) => wake_workers.notified().await,
            None => std::future::pending().await,
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
