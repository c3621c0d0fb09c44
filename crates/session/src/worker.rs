//! One thread's world: its sessions, what it knows of the servers, what its sessions share. Shared by the
//! sessions of that thread only; other threads reach it through messages.

pub(crate) mod cluster;
pub(crate) mod free_lists;
pub(crate) mod handle;
pub(crate) mod learnt;
pub(crate) mod pins;
pub(crate) mod pools;
pub(crate) mod processlist;
pub(crate) mod registry;
pub(crate) mod shared_statements;
pub(crate) mod written;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_backend::account::Proof;
use millrace_backend::connect::SharedNetwork;
use millrace_backend::monitor::{Monitor, World};
use millrace_backend::opener::{Logins, Successors};
use millrace_backend::pool::{ServerCount, ServerFacts, ServerPool, WakeWorkers};
use millrace_backend::states::States;
use millrace_metrics::{Metrics, PerServer, WorkerMetrics};
use millrace_routing::{Consistency, Target};
use millrace_topology::ServerId;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use crate::command::kill::Killed;
use crate::failover::wait_queue::Held;
use crate::login::accounts::Accounts;
use crate::login::verify::Verifiers;
use crate::options::{Options, ServerKey};
use crate::settings::SessionSettings;
use crate::statement::directions::Remembered;
use crate::worker::cluster::{ClusterView, drops};
use crate::worker::free_lists::FreeLists;
use crate::worker::learnt::Learnt;
use crate::worker::pools::Pools;
use crate::worker::processlist::{PoolLine, ServerLine, SessionLine};
use crate::worker::registry::Registry;
use crate::worker::shared_statements::SharedStatements;
use crate::worker::written::Written;

pub(crate) use crate::worker::handle::Handle;
pub(crate) use crate::worker::handle::Running;

/// What all workers of the process share.
#[derive(Clone)]
pub struct Shared {
    /// What the configuration said of sessions when the process started. What is in force now, a worker knows.
    pub settings: SessionSettings,
    /// Connections per server, over all workers.
    pub counts: Arc<PerServer<Arc<ServerCount>>>,
    /// Known passwords.
    pub accounts: Arc<Accounts>,
    /// All clients.
    pub registry: Arc<Registry>,
    /// The RSA key for logins.
    pub key: Arc<ServerKey>,
    /// TLS to clients.
    pub tls: Option<TlsAcceptor>,
    /// The SHA-256 fingerprint of the certificate that clients are shown.
    pub fingerprint: [u8; 32],
    /// How servers are connected to.
    pub network: SharedNetwork,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Watches the servers.
    pub monitor: Arc<Monitor>,
    /// What was written through this process.
    pub written: Arc<Written>,
    /// Statements that wait for a server.
    pub held: Arc<Held>,
    /// Every worker's mailbox.
    pub mailboxes: Arc<Vec<mpsc::UnboundedSender<Message>>>,
}

/// What a worker is told by others.
pub enum Message {
    /// A client connected.
    Client {
        /// Its socket: non-blocking, and without Nagle's delay.
        plain: std::net::TcpStream,
        /// Where it comes from; none where it has left again.
        peer: Option<std::net::SocketAddr>,
        /// Where it came in.
        entry: ListenerContext,
    },
    /// A client connected over a Unix socket.
    UnixClient {
        /// Its socket, non-blocking.
        plain: std::os::unix::net::UnixStream,
        /// Where it came in.
        entry: ListenerContext,
    },
    /// A second has passed.
    Second,
    /// What the configuration says has changed.
    Settings(SessionSettings),
    /// Another worker has sessions waiting for a server, or has made room on one.
    Room(ServerId),
    /// What does this session run, and where? It must not give its connection back meanwhile.
    Ask {
        /// The session.
        uid: u64,
        /// It is asked for a KILL QUERY, which leaves the session.
        query: bool,
        /// Takes the answer.
        reply: oneshot::Sender<Option<Running>>,
    },
    /// Describe these sessions, in their order; a few hundred at most.
    Describe {
        /// Their identities.
        uids: Vec<u64>,
        /// Takes the answer: none for one that is not logged in.
        reply: oneshot::Sender<Vec<Option<SessionLine>>>,
    },
    /// Describe the connections to each server.
    Servers(oneshot::Sender<Vec<ServerLine>>),
    /// Describe the pools.
    Pools {
        /// So many at most.
        max: usize,
        /// Takes the answer.
        reply: oneshot::Sender<Vec<PoolLine>>,
    },
    /// End this session, or its statement, for an operator who may.
    Kill {
        /// The session.
        uid: u64,
        /// Only the statement.
        query: bool,
        /// Takes what came of it.
        reply: oneshot::Sender<Killed>,
    },
    /// Close the connections of this account that nobody uses.
    DropAccount(Box<[u8]>),
    /// The statement under way was killed: it is not to be tried on another server.
    Interrupt(u64),
    /// End this session.
    End(u64),
    /// Take no new clients; end idle sessions, and the others when they become idle.
    Drain,
    /// End everything now.
    Stop,
}

/// A listener, as far as its clients' sessions depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListenerContext {
    /// Its number, in the order of the configuration.
    pub listener: u16,
    /// What it is for.
    pub target: Target,
    /// What reads are guaranteed to see, where that is its own.
    pub consistency: Option<Consistency>,
    /// Whether TLS is offered or demanded.
    pub tls: ListenerTls,
}

/// Whether a listener offers TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListenerTls {
    /// Clients may use it.
    #[default]
    Optional,
    /// Clients must use it.
    Required,
    /// Not offered.
    Off,
}

/// Whose password sessions of an account may go on with. An account that was dropped and made anew is not
/// theirs: how many were dropped since one's own proof must be known, and none.
fn successors(shared: &Shared) -> Successors {
    let (accounts, world) = (shared.accounts.clone(), shared.monitor.watch());
    Box::new(move |account| {
        let drops = drops(&world.borrow());
        let is_sure = |proof: Proof| proof.drops == drops && !proof.current.is_empty();
        if !account.proof().is_some_and(is_sure) {
            return Vec::new();
        }
        let mut known = accounts.find(&account.user);
        known.retain(|other| other.id != account.id);
        known
    })
}

/// One worker.
pub struct Worker {
    pub(crate) index: usize,
    pub(crate) shared: Shared,
    settings: RefCell<Rc<SessionSettings>>,
    pub(crate) cluster: Rc<ClusterView>,
    pub(crate) states: Rc<States>,
    pub(crate) verifiers: Verifiers,
    pub(crate) remembered: Remembered,
    /// Mirror images under way.
    pub(crate) mirrors: Rc<Cell<u32>>,
    pub(crate) learnt: Learnt,
    pub(crate) prepared: SharedStatements,
    pub(crate) lists: FreeLists,
    sessions: RefCell<HashMap<u64, Rc<Handle>>>,
    tick: Cell<u64>,
    draining: Cell<bool>,
}

impl Worker {
    /// Makes the worker with number `index` of `shared.mailboxes`.
    pub fn new(index: usize, shared: Shared) -> Rc<Worker> {
        let states = Rc::new(States::default());
        let workers = shared.mailboxes.len();
        let mailboxes = shared.mailboxes.clone();
        let wake_workers: WakeWorkers = Arc::new(move |bits: u64, server| {
            for (other, mailbox) in mailboxes.iter().enumerate() {
                if other != index && bits & 1 << (other % 64) != 0 {
                    // A closed mailbox is a worker that ends.
                    let _ = mailbox.send(Message::Room(server));
                }
            }
        });
        let opener = Rc::new(Logins {
            network: shared.network.clone(),
            timeout: shared.settings.pool.connect_timeout,
            states: states.clone(),
            buffers: Rc::default(),
            successors: successors(&shared),
        });
        let shared_pools = shared.clone();
        let make = move |facts: &Arc<ServerFacts>| {
            let shared = &shared_pools;
            let count = shared.counts.get(facts.id.index());
            let pool = ServerPool::new(
                facts.clone(),
                shared.settings.pool.clone(),
                opener.clone(),
                count.cloned().unwrap_or_default(),
                index,
                workers,
                wake_workers.clone(),
                shared.metrics.clone(),
            );
            let mailboxes = shared.mailboxes.clone();
            pool.on_limit(Box::new(move |user| {
                for mailbox in mailboxes.iter() {
                    // A closed mailbox is a worker that ends.
                    let _ = mailbox.send(Message::DropAccount(user.into()));
                }
            }));
            pool
        };
        Rc::new(Worker {
            index,
            cluster: ClusterView::new(index, shared.clone(), Pools::new(make)),
            settings: RefCell::new(Rc::new(shared.settings.clone())),
            shared,
            states,
            verifiers: Verifiers::default(),
            remembered: Remembered::default(),
            mirrors: Rc::default(),
            learnt: Learnt::default(),
            prepared: SharedStatements::default(),
            lists: FreeLists::default(),
            sessions: RefCell::default(),
            tick: Cell::new(1),
            draining: Cell::new(false),
        })
    }

    /// Serves until [`Message::Stop`], or until the drain is done.
    pub async fn run(self: Rc<Self>, mut mailbox: mpsc::UnboundedReceiver<Message>) {
        let mut world = self.shared.monitor.watch();
        self.follow(world.borrow_and_update().clone());
        loop {
            tokio::select! {
                message = mailbox.recv() => match message {
                    None | Some(Message::Stop) => return,
                    Some(message) => self.take(message),
                },
                changed = world.changed() => {
                    if changed.is_ok() {
                        let now = world.borrow_and_update().clone();
                        self.follow(now);
                    }
                }
            }
            if self.draining.get() && self.sessions.borrow().is_empty() {
                return;
            }
        }
    }

    fn take(self: &Rc<Self>, message: Message) {
        match message {
            Message::Client { plain, peer, entry } => {
                if let Ok(stream) = tokio::net::TcpStream::from_std(plain) {
                    crate::login::spawn(self.clone(), stream.into(), peer, entry);
                }
            }
            Message::UnixClient { plain, entry } => {
                if let Ok(stream) = tokio::net::UnixStream::from_std(plain) {
                    let plain = stream.into();
                    crate::login::spawn(self.clone(), plain, None, entry);
                }
            }
            Message::Second => self.sweep(),
            Message::Settings(settings) => {
                let drain_time = settings.options.failover.drain_time;
                self.cluster.set_drain_time(drain_time);
                self.settings.replace(Rc::new(settings));
            }
            Message::Room(server) => {
                // Another worker may know of it first.
                if server.index() < self.cluster.servers.len() {
                    let pool = self.cluster.servers.of(server);
                    pool.give_room();
                    pool.pump();
                    pool.trim_idle();
                }
            }
            Message::Ask { uid, query, reply } => {
                let handle = self.session(uid);
                let _ = reply.send(handle.map(|handle| {
                    let on = handle.on.get();
                    handle.tainted.set(on.is_some());
                    handle.ending.set(!query);
                    Running {
                        user: handle.user.borrow().clone(),
                        on,
                    }
                }));
            }
            // Who asked may be gone: then nobody wants the answer.
            Message::Describe { uids, reply } => drop(reply.send(self.describe(&uids))),
            Message::Servers(reply) => drop(reply.send(self.server_lines())),
            Message::Pools { max, reply } => drop(reply.send(self.pool_lines(max))),
            Message::Kill { uid, query, reply } => self.kill_for_operator(uid, query, reply),
            Message::DropAccount(user) => self.drop_account(&user),
            Message::Interrupt(uid) => {
                if let Some(handle) = self.session(uid) {
                    handle.interrupted.set(handle.busy_since.get() != 0);
                    handle.wake();
                }
            }
            Message::End(uid) => {
                if let Some(handle) = self.session(uid) {
                    handle.ended.set(true);
                    handle.wake();
                }
            }
            Message::Drain => {
                self.draining.set(true);
                for handle in self.sessions.borrow().values() {
                    handle.draining.set(true);
                    handle.wake();
                }
            }
            Message::Stop => {}
        }
    }

    fn sweep(self: &Rc<Self>) {
        self.cluster.settle_written();
        if self.cluster.lacks_primary() {
            // Some wait for a primary only for a while.
            self.shared.held.look_again();
        }
        let tick = self.tick.get() + 1;
        self.tick.set(tick);
        self.cluster.sweep(tick);
        self.cluster.servers.each(|_, server| server.sweep(tick));
        for index in 0..self.cluster.servers.len() {
            let server = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
            if self.cluster.is_drained(server) {
                self.evict(server);
            }
        }
        for handle in self.sessions.borrow().values() {
            let busy = handle.busy_since.get();
            let idle_max = handle.idle_max.get();
            if busy != 0 && tick > busy + 1 {
                handle.check_client.set(true);
                handle.wake();
            } else if busy == 0
                && idle_max != 0
                && tick.saturating_sub(handle.heard.get()) > idle_max
            {
                handle.idled.set(true);
                handle.ended.set(true);
                handle.wake();
            }
        }
    }

    /// Takes over what the monitor says of the servers.
    fn follow(&self, world: Arc<World>) {
        for lost in self.cluster.set_world(world) {
            self.evict(lost);
        }
    }

    /// Has the sessions that keep a connection to the server look whether they may.
    fn evict(&self, server: ServerId) {
        for handle in self.sessions.borrow().values() {
            if handle.on.get().is_some_and(|(on, _)| on == server) {
                handle.evict.set(true);
                handle.wake();
            }
        }
    }

    fn drop_account(&self, user: &[u8]) {
        self.verifiers.rest(user);
        self.cluster
            .servers
            .each(|_, server| server.drop_account(user));
    }

    /// An account may have no more connections than it has: those that nobody uses are closed.
    pub(crate) async fn make_room_for(&self, user: &[u8]) {
        self.drop_account(user);
        for (other, mailbox) in self.shared.mailboxes.iter().enumerate() {
            if other != self.index {
                // A closed mailbox is a worker that ends.
                let _ = mailbox.send(Message::DropAccount(user.into()));
            }
        }
        // The server counts a connection until it has noticed its end.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    pub(crate) fn metrics(&self) -> &WorkerMetrics {
        self.shared.metrics.worker(self.index)
    }

    /// What the configuration says now. A session has it for as long as a command takes.
    pub(crate) fn settings(&self) -> Rc<SessionSettings> {
        self.settings.borrow().clone()
    }

    /// Whether these are in force.
    pub(crate) fn has(&self, settings: &Rc<SessionSettings>) -> bool {
        Rc::ptr_eq(settings, &self.settings.borrow())
    }

    pub(crate) fn options(&self) -> Arc<Options> {
        self.settings.borrow().options.clone()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Seconds since the start, roughly.
    pub(crate) fn tick(&self) -> u64 {
        self.tick.get()
    }

    pub(crate) fn session(&self, uid: u64) -> Option<Rc<Handle>> {
        self.sessions.borrow().get(&uid).cloned()
    }

    pub(crate) fn enter(&self, handle: &Rc<Handle>) {
        self.sessions
            .borrow_mut()
            .insert(handle.uid, handle.clone());
    }

    pub(crate) fn leave(&self, uid: u64) {
        self.sessions.borrow_mut().remove(&uid);
        if self.draining.get() {
            // So that the loop looks whether this was the last.
            let _ = self.shared.mailboxes[self.index].send(Message::Drain);
        }
    }

    /// Whether it serves no session.
    #[cfg(test)]
    pub(crate) fn is_deserted(&self) -> bool {
        self.sessions.borrow().is_empty()
    }

    /// The most bytes that the worker's journals may keep together: its part of what all may.
    pub(crate) fn journals_max(&self) -> usize {
        let all = self
            .settings
            .borrow()
            .options
            .failover
            .max_replay_total_bytes;
        all / self.shared.mailboxes.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::admission::tests::shared;

    #[test]
    fn settings_are_replaced_whole_and_who_has_others_sees_it() {
        let worker = Worker::new(0, shared());
        let before = worker.settings();
        assert!(worker.has(&before));
        let mut options = Options::clone(&before.options);
        options.max_packet += 1;
        options.failover.drain_time = Duration::ZERO;
        let drained = ServerId(3);
        worker.cluster.note_draining(drained, true);
        assert!(!worker.cluster.is_drained(drained));
        worker.take(Message::Settings(SessionSettings {
            options: Arc::new(options),
            ..SessionSettings::clone(&before)
        }));
        assert!(!worker.has(&before));
        let after = worker.settings();
        assert_eq!(after.options.max_packet, before.options.max_packet + 1);
        assert!(Arc::ptr_eq(&after.rules, &before.rules));
        assert!(worker.cluster.is_drained(drained));
    }
}
