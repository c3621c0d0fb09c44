//! One thread's world: its pools, its sessions, what it knows of the servers. Shared by the
//! sessions of that thread only; other threads reach it through messages.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, hash_map};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use millrace_backend::account::{Account, Proof};
use millrace_backend::books::DiagnosticsStore;
use millrace_backend::conn::Conn;
use millrace_backend::connect::SharedNetwork;
use millrace_backend::error::BackendError;
use millrace_backend::fresh::Version;
use millrace_backend::monitor::{Monitor, World};
use millrace_backend::opener::{Logins, Successors};
use millrace_backend::pool::{Lease, Nudge, PoolOptions, ServerCount, ServerFacts, ServerPool};
use millrace_backend::prepared::{ById, StatementUid};
use millrace_backend::rooms::Rooms;
use millrace_backend::state::{self, SessionState, States, Value};
use millrace_backend::stream::Plain;
use millrace_backend::user_rows::{Name, UserRows};
use millrace_metrics::{Metrics, PerServer, WorkerMetrics};
use millrace_routing::rules::Rules;
use millrace_routing::{Catalogue, Consistency, ServerSet, Target};
use millrace_sql::{Family, LexMode, Shapes, Statement};
use millrace_topology::{GtidSet, ObservationKind, ServerId, Waits};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use crate::accounts::Accounts;
use crate::directions::Remembered;
use crate::held::Held;
use crate::journal::{Begun, Journal, Kept};
use crate::kill::Killed;
use crate::options::{Options, ServerKey};
use crate::pins::Pins;
use crate::pools::Pools;
use crate::prepared::{Alike, ClientStatement, Likeness};
use crate::registry::Registry;
use crate::relay::Outcome;
use crate::roster::{Counts, PoolLine, ServerLine, SessionLine};
use crate::verify::Verifiers;
use crate::written::{INTERVALS_MAX, Written};

/// What all workers of the process share.
#[derive(Clone)]
pub struct Shared {
    /// Limits and behaviour.
    pub options: Arc<Options>,
    /// The pools' limits.
    pub pool: Arc<PoolOptions>,
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
    /// Rules for query routing.
    pub rules: Arc<Rules>,
    /// How many statements may yet begin, for each rule that limits them.
    pub limits: Arc<Vec<Option<Arc<Semaphore>>>>,
    /// Named sets of servers.
    pub sets: Arc<HashMap<String, ServerSet>>,
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
        entry: Entry,
    },
    /// A client connected over a Unix socket.
    UnixClient {
        /// Its socket, non-blocking.
        plain: std::os::unix::net::UnixStream,
        /// Where it came in.
        entry: Entry,
    },
    /// A second has passed.
    Second,
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
pub struct Entry {
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

/// Whose session it is and what it runs on.
#[derive(Debug, Clone)]
pub struct Running {
    /// The account's name.
    pub user: Box<[u8]>,
    /// The server and the number of the connection there, while a statement runs or the session
    /// is pinned.
    pub on: Option<(ServerId, u32)>,
}

/// The part of a session that others may touch; they are on the same thread.
#[derive(Default)]
pub(crate) struct Handle {
    pub(crate) uid: u64,
    pub(crate) user: RefCell<Box<[u8]>>,
    /// Where the session's lease is.
    pub(crate) on: Cell<Option<(ServerId, u32)>>,
    /// The connection on loan was named to a KILL: it is not to be lent to another.
    pub(crate) tainted: Cell<bool>,
    /// The statement under way has run for longer than a rule allows.
    pub(crate) timed_out: Cell<bool>,
    /// The statement under way was named to a KILL: it is not to be tried elsewhere.
    pub(crate) interrupted: Cell<bool>,
    /// That KILL is about to end the session as well.
    pub(crate) ending: Cell<bool>,
    /// The session is to end.
    pub(crate) ended: Cell<bool>,
    /// The session is to end when it is idle and holds nothing.
    pub(crate) draining: Cell<bool>,
    /// The client's socket is to be looked at: the statement has run for a while.
    pub(crate) check_client: Cell<bool>,
    /// The server of the kept connection may have to be left.
    pub(crate) uproot: Cell<bool>,
    /// The client's socket, to look at as long as the session lives.
    pub(crate) socket: RefCell<Option<Plain>>,
    /// A statement runs since this tick; 0: none.
    pub(crate) busy_since: Cell<u64>,
    /// When the client last sent something, in ticks.
    pub(crate) heard: Cell<u64>,
    /// Seconds after which an idle client is disconnected; 0: never.
    pub(crate) idle_max: Cell<u64>,
    /// The session ends because its client was idle for that long.
    pub(crate) idled: Cell<bool>,
    /// What another session saved of this one's last statement.
    pub(crate) saved: Rc<DiagnosticsStore>,
    /// Where the client is; none for a Unix socket.
    pub(crate) peer: Option<(IpAddr, u16)>,
    /// When it connected, in ticks.
    pub(crate) connected: Cell<u64>,
    pub(crate) counts: Counts,
    pub(crate) pins: Pins,
    /// The client is in a transaction that no server knows of (yet, or any more).
    pub(crate) begun: Cell<bool>,
    pub(crate) level: Cell<Consistency>,
    /// What the client has set; none before the login is done.
    pub(crate) state: Cell<Option<Rc<SessionState>>>,
    pub(crate) waker: RefCell<Option<Waker>>,
}

impl Handle {
    /// Remembers whom to wake; costs a comparison when nothing changed.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Whether the client is gone, where it is time to look.
    pub(crate) fn has_lost_client(&self, cx: &mut Context<'_>) -> bool {
        self.register(cx);
        if !self.check_client.take() {
            return false;
        }
        let socket = self.socket.borrow();
        socket.as_ref().is_some_and(|socket| socket.peer_closed(cx))
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// A worker's sessions ask for the sake of balance once in this time at most: the least, and the most
/// where it was in vain.
const ASK_INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

/// A name at a server, and the collation of its clients where that matters.
type NameOn = (ServerId, Box<[u8]>, u8);

/// Who reads a server's account rows; when the last one had no answer, and why.
type Reading = tokio::sync::Mutex<Option<(Instant, BackendError)>>;

/// The account rows of a name, where they can be read, and when they were.
type RowsOfName = (Option<UserRows>, Instant);

/// What a new connection starts with, and how new the connection was that told so.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub(crate) state: Rc<SessionState>,
    pub(crate) server: ServerId,
    pub(crate) version: Version,
    /// The server tells clients the tracked variables at the login.
    pub(crate) tells_variables: bool,
}

/// The variables that say which collation a character set has.
pub(crate) const COLLATION_DEFAULTS: [&str; 2] =
    ["default_collation_for_utf8mb4", "character_set_collations"];

/// What decides about the collation that a character set has where none is named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CollationKey {
    server: ServerId,
    version: Version,
    charset: Box<[u8]>,
    /// What a session has set about it.
    set: Option<Value>,
}

impl CollationKey {
    /// For the character set of a connection that SET NAMES chose; none where it was chosen otherwise,
    /// which has other defaults (observed on MySQL), or is not told.
    pub(crate) fn new(
        conn: &Conn,
        state: &SessionState,
        class: &Statement,
    ) -> Option<CollationKey> {
        let by_names = |assignment: &millrace_sql::Assignment| {
            matches!(assignment.target, millrace_sql::Target::Names { .. })
        };
        let character_set = |assignment: &millrace_sql::Assignment| {
            matches!(assignment.target, millrace_sql::Target::CharacterSet)
        };
        if !class.assignments.iter().any(by_names) || class.assignments.iter().any(character_set) {
            return None;
        }
        Some(CollationKey {
            server: conn.server,
            version: conn.version,
            charset: state.reported("character_set_connection")?.into(),
            set: COLLATION_DEFAULTS
                .iter()
                .find_map(|name| state.variable(name))
                .cloned(),
        })
    }
}

/// So many collations are kept, at most.
const COLLATIONS_MAX: usize = 1_000;

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

/// How many accounts have been dropped on any server, as far as the monitor has seen.
fn drops(world: &World) -> u64 {
    world.facts.iter().map(|facts| facts.fresh.drops()).sum()
}

/// For so many accounts and collations.
const BASES_MAX: usize = 10_000;

/// How long sessions do not ask a server how far it is after one has not answered.
const DEAF: Duration = Duration::from_secs(1);

/// One worker.
pub struct Worker {
    pub(crate) index: usize,
    pub(crate) shared: Shared,
    pub(crate) servers: Pools,
    pub(crate) states: Rc<States>,
    pub(crate) verifiers: Verifiers,
    pub(crate) remembered: Remembered,
    /// Mirror images under way.
    pub(crate) mirrors: Rc<Cell<u32>>,
    world: RefCell<Arc<World>>,
    catalogue: RefCell<Rc<Catalogue>>,
    catalogue_read: Cell<bool>,
    /// See [`World::catalogue_read`].
    catalogue_mark: Cell<u64>,
    known: RefCell<Vec<GtidSet>>,
    /// The numbers of the answers that were taken over from `positions`, by server.
    taken: RefCell<Vec<u64>>,
    /// Since when servers have been drained, by index.
    drained: RefCell<Vec<Option<Instant>>>,
    /// So many answers had been given then.
    answers: Cell<u64>,
    /// So many of the hidden writes are in what this worker has written down.
    found: Cell<u64>,
    /// The change of primary up to which it is settled what was lost.
    epoch: Cell<u64>,
    /// What the primary of then could be asked to wait for.
    waits: Cell<Waits>,
    /// See [`Worker::may_ask`].
    asked: Cell<Instant>,
    ask_interval: Cell<Duration>,
    deaf_until: Cell<Instant>,
    late_until: Cell<[u64; SERVERS]>,
    /// A bit for each server that `late_until` says is late now.
    late: Cell<u64>,
    rotation: Cell<u32>,
    sessions: RefCell<HashMap<u64, Rc<Handle>>>,
    bases: RefCell<HashMap<(u64, u8, bool), Base>>,
    /// The servers' account rows by name, and when they were read.
    user_rows: RefCell<HashMap<NameOn, RowsOfName>>,
    /// Who holds it reads them.
    reading_rows: RefCell<HashMap<ServerId, Rc<Reading>>>,
    /// What the last login began with, and the base that came of: the next is likely the same.
    begun: RefCell<Option<[Rc<SessionState>; 2]>>,
    #[expect(clippy::vec_box, reason = "they are handed out in their boxes")]
    statements: RefCell<Vec<Box<Statement>>>,
    shapes: RefCell<Shapes>,
    /// At most one, for the next statement to conclude.
    outcome: Cell<Option<Box<Outcome>>>,
    /// What clients' commands are read into.
    buffers: Rooms,
    /// What those that are short are copied to while they are under way.
    small_buffers: Rooms,
    #[expect(clippy::vec_box, reason = "they are handed out in their boxes")]
    journals: RefCell<Vec<Box<Journal>>>,
    journals_kept: Kept,
    next_statement: Cell<u64>,
    shared_statements: RefCell<HashMap<Likeness, Alike>>,
    /// What those that were not executed were last executed as.
    executed: RefCell<ById<StatementUid, StatementUid>>,
    proven: RefCell<HashSet<u64>>,
    collations: RefCell<HashMap<CollationKey, Box<[u8]>>>,
    /// The numbers by which servers name collations to clients: some that are beyond 255 have the number of
    /// another (observed on MariaDB 11.8).
    collation_numbers: RefCell<HashMap<Box<[u8]>, u16>>,
    tick: Cell<u64>,
    draining: Cell<bool>,
    /// Since when there is no primary.
    without_since: Cell<Option<Instant>>,
}

/// Servers beyond this many are routed to without regard to their load.
pub(crate) const SERVERS: usize = 16;

/// Prepared statements that clients share, at most.
const SHARED_STATEMENTS_MAX: usize = 10_000;

/// The size of the buffers that sessions borrow; bytes.
const BUFFER: usize = 16 * 1024;

/// Commands up to this length are copied out of them; bytes.
const SMALL: usize = 512;

/// How many buffers of either size are kept for the next: a MiB, and half a one of a worker that had as
/// many short commands under way.
const BUFFERS_KEPT: usize = 64;
const SMALL_KEPT: usize = 1024;

impl Worker {
    /// Makes the worker with number `index` of `shared.mailboxes`.
    pub fn new(index: usize, shared: Shared) -> Rc<Worker> {
        let world = shared.monitor.watch().borrow().clone();
        let states = Rc::new(States::default());
        let workers = shared.mailboxes.len();
        let mailboxes = shared.mailboxes.clone();
        let nudge: Nudge = Arc::new(move |bits: u64, server| {
            for (other, mailbox) in mailboxes.iter().enumerate() {
                if other != index && bits & 1 << (other % 64) != 0 {
                    // A closed mailbox is a worker that ends.
                    let _ = mailbox.send(Message::Room(server));
                }
            }
        });
        let opener = Rc::new(Logins {
            network: shared.network.clone(),
            timeout: shared.pool.connect_timeout,
            states: states.clone(),
            rooms: Rc::default(),
            successors: successors(&shared),
        });
        let shared_pools = shared.clone();
        let make = move |facts: &Arc<ServerFacts>| {
            let shared = &shared_pools;
            let count = shared.counts.get(facts.id.index());
            let pool = ServerPool::new(
                facts.clone(),
                shared.pool.clone(),
                opener.clone(),
                count.cloned().unwrap_or_default(),
                index,
                workers,
                nudge.clone(),
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
        let servers = Pools::new(make);
        servers.grow(&world.facts);
        Rc::new(Worker {
            index,
            shared,
            servers,
            states,
            verifiers: Verifiers::default(),
            found: Cell::new(0),
            epoch: Cell::new(0),
            waits: Cell::default(),
            asked: Cell::new(Instant::now()),
            ask_interval: Cell::new(ASK_INTERVALS.0),
            deaf_until: Cell::new(Instant::now()),
            remembered: Remembered::default(),
            mirrors: Rc::default(),
            world: RefCell::new(world),
            catalogue: RefCell::default(),
            catalogue_read: Cell::new(false),
            catalogue_mark: Cell::new(0),
            known: RefCell::default(),
            taken: RefCell::default(),
            drained: RefCell::default(),
            answers: Cell::new(0),
            late_until: Cell::new([0; SERVERS]),
            late: Cell::new(0),
            rotation: Cell::new(0),
            sessions: RefCell::default(),
            bases: RefCell::default(),
            user_rows: RefCell::default(),
            reading_rows: RefCell::default(),
            begun: RefCell::default(),
            statements: RefCell::default(),
            shapes: RefCell::default(),
            outcome: Cell::default(),
            buffers: Rooms::new(BUFFER, BUFFERS_KEPT),
            small_buffers: Rooms::new(SMALL, SMALL_KEPT),
            journals: RefCell::default(),
            journals_kept: Kept::default(),
            next_statement: Cell::new(1),
            shared_statements: RefCell::default(),
            executed: RefCell::default(),
            proven: RefCell::default(),
            collations: RefCell::default(),
            collation_numbers: RefCell::default(),
            tick: Cell::new(1),
            draining: Cell::new(false),
            without_since: Cell::default(),
        })
    }

    /// Serves until [`Message::Stop`], or until the drain is done.
    pub async fn run(self: Rc<Self>, mut mailbox: mpsc::UnboundedReceiver<Message>) {
        let mut world = self.shared.monitor.watch();
        self.set_world(world.borrow_and_update().clone());
        loop {
            tokio::select! {
                message = mailbox.recv() => match message {
                    None | Some(Message::Stop) => return,
                    Some(message) => self.take(message),
                },
                changed = world.changed() => {
                    if changed.is_ok() {
                        let now = world.borrow_and_update().clone();
                        self.set_world(now);
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
            Message::Room(server) => {
                // Another worker may know of it first.
                if server.index() < self.servers.len() {
                    let pool = self.servers.of(server);
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
        self.settle_written();
        if self.lacks_primary() {
            // Some wait for a primary only for a while.
            self.shared.held.look_again();
        }
        let tick = self.tick.get() + 1;
        self.tick.set(tick);
        let late = self.late_until.get();
        let late = late.iter().enumerate().filter(|(_, until)| **until > tick);
        self.late.set(late.fold(0, |bits, (at, _)| bits | 1 << at));
        self.servers.each(|_, server| server.sweep(tick));
        for index in 0..self.servers.len() {
            let server = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
            if self.is_drained(server) {
                self.uproot(server);
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

    /// After a change of the primary, finds out what of all that was written has come to it.
    fn settle_written(self: &Rc<Self>) {
        let (epoch, primary, waits) = self.with_world(|world| {
            let snapshot = &world.snapshot;
            let waits = snapshot.primary_view().map(|view| view.waits);
            (snapshot.epoch, snapshot.primary, waits)
        });
        let Some((primary, waits)) = primary.zip(waits) else {
            return;
        };
        let other = self.epoch.replace(epoch) != epoch;
        // With other positions, those from before cannot be compared.
        let other = self.waits.replace(waits) != waits || other;
        // What a cluster has committed it has on all its nodes.
        if !other || waits == Waits::Cluster || !self.shared.written.doubt(self.index) {
            return;
        }
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            let positions = worker.shared.monitor.positions();
            let mark = positions.mark(primary);
            let found = positions.ask(primary, mark, Duration::from_secs(10)).await;
            let unchanged = worker.with_world(|world| world.snapshot.epoch) == epoch;
            match found.filter(|_| unchanged) {
                Some(found) => worker.shared.written.settle(worker.index, &found.visible),
                // Asked again in a second.
                None => worker.epoch.set(u64::MAX),
            }
        });
    }

    fn set_world(&self, world: Arc<World>) {
        // Before anybody can choose among them.
        self.servers.grow(&world.facts);
        let old = self.world.replace(world.clone());
        let since = self.without_since.get().unwrap_or_else(Instant::now);
        let lacks = world.snapshot.primary.is_none();
        self.without_since.set(lacks.then_some(since));
        for (facts, view) in world.facts.iter().zip(&world.snapshot.servers) {
            let moved = self.servers.of(view.id).set_facts(facts.clone());
            let turn = self
                .servers
                .follow(view.id, &old.snapshot, &world.snapshot, moved);
            let before = old.snapshot.server(view.id).map(|view| view.waits);
            if (turn.fell || turn.other || before != Some(view.waits))
                && let Some(known) = self.known.borrow_mut().get_mut(view.id.index())
            {
                known.clear();
            }
            if turn.fell || turn.demoted || turn.moved {
                self.uproot(view.id);
            }
            self.note_draining(view.id, view.draining);
        }
        let primary = world.snapshot.primary_view();
        let in_cluster = primary.is_some_and(|view| view.waits == Waits::Cluster);
        if old.snapshot.epoch != world.snapshot.epoch && in_cluster {
            self.shared.written.has_moved();
        }
        self.shared.held.look_again();
        if !Arc::ptr_eq(&old.catalogue, &world.catalogue) || !self.catalogue_read.replace(true) {
            let rows = &world.catalogue;
            if let Some(family) = rows.family {
                let version = world.snapshot.version_number;
                let catalogue = Catalogue::from_rows(family, version, &rows.rows);
                *self.catalogue.borrow_mut() = Rc::new(catalogue);
            }
        }
        self.catalogue_mark.set(world.catalogue_read);
    }

    /// Whether DDL has touched stored code since it was read.
    pub(crate) fn is_catalogue_stale(&self) -> bool {
        let read = self.catalogue_mark.get();
        self.shared.monitor.touched().is_beyond(read)
    }

    /// Whether the statement names stored code that DDL has touched since it was read.
    pub(crate) fn names_touched(&self, class: &Statement, text: &[u8], database: &[u8]) -> bool {
        let (read, touched) = (self.catalogue_mark.get(), self.shared.monitor.touched());
        let catalogue = self.catalogue();
        catalogue.names_any(class, text, database, &|name| {
            touched.any(read, |other| *other == *name)
        })
    }

    /// Waits until what DDL has touched of the statement's names was read again, as long as that is worth it:
    /// what cannot be told keeps the session's connection for good.
    pub(crate) async fn wait_for_catalogue(&self, class: &Statement, text: &[u8], database: &[u8]) {
        const LIMIT: Duration = Duration::from_secs(3);
        let begun = Instant::now();
        let touched = self.shared.monitor.touched();
        // Not for other sessions' DDL, which may go on for long.
        while self.is_catalogue_stale()
            && self.names_touched(class, text, database)
            && touched.is_readable()
            && begun.elapsed() < LIMIT
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Has the sessions that keep a connection to the server look whether they may.
    fn uproot(&self, server: ServerId) {
        for handle in self.sessions.borrow().values() {
            if handle.on.get().is_some_and(|(on, _)| on == server) {
                handle.uproot.set(true);
                handle.wake();
            }
        }
    }

    fn note_draining(&self, server: ServerId, draining: bool) {
        let mut drained = self.drained.borrow_mut();
        if drained.len() <= server.index() {
            drained.resize(server.index() + 1, None);
        }
        let since = &mut drained[server.index()];
        *since = draining.then(|| since.unwrap_or_else(Instant::now));
    }

    /// Whether the server has been drained for longer than transactions may go on there.
    pub(crate) fn is_drained(&self, server: ServerId) -> bool {
        let limit = self.options().failover.drain_time_max;
        let since = self.drained.borrow().get(server.index()).copied().flatten();
        since.is_some_and(|since| since.elapsed() >= limit)
    }

    /// There is no primary.
    pub(crate) fn lacks_primary(&self) -> bool {
        self.without_since.get().is_some()
    }

    /// There is none, and until lately there was.
    pub(crate) fn has_just_lost_primary(&self, lately: Duration) -> bool {
        let since = self.without_since.get();
        since.is_some_and(|since| since.elapsed() < lately)
    }

    /// The servers as known now.
    pub(crate) fn world(&self) -> Arc<World> {
        self.world.borrow().clone()
    }

    /// Runs `look` on the servers as known now, without taking a reference.
    pub(crate) fn with_world<T>(&self, look: impl FnOnce(&World) -> T) -> T {
        look(&self.world.borrow())
    }

    /// Stored routines and views as known now.
    pub(crate) fn catalogue(&self) -> Rc<Catalogue> {
        self.catalogue.borrow().clone()
    }

    /// Positions that servers were seen to have reached since the last probe.
    pub(crate) fn with_known<T>(&self, look: impl FnOnce(&[GtidSet]) -> T) -> T {
        look(&self.known.borrow())
    }

    /// Takes over what servers have said since about how far they are.
    pub(crate) fn take_positions(&self) {
        let positions = self.shared.monitor.positions();
        let answers = positions.answers();
        if self.answers.replace(answers) == answers {
            return;
        }
        let mut taken = self.taken.borrow_mut();
        taken.resize(self.servers.len(), 0);
        for (index, number) in taken.iter_mut().enumerate() {
            let server = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
            let Some(found) = positions.newer(server, *number) else {
                continue;
            };
            *number = found.number;
            let incarnation = self.with_world(|world| {
                let view = world.snapshot.server(server);
                view.map(|view| view.incarnation)
            });
            if incarnation == Some(found.incarnation) {
                self.told(server, &found.executed);
            }
        }
    }

    /// Somebody will choose among the replicas by how far they are.
    pub(crate) fn want_positions(&self) {
        let positions = self.shared.monitor.positions();
        self.with_world(|world| {
            let primary = world.snapshot.primary;
            let views = world.snapshot.servers.iter();
            let replicas = views.filter(|view| primary != Some(view.id));
            replicas.for_each(|view| positions.want(view.id));
        });
    }

    /// A server has said how far it is.
    fn told(&self, server: ServerId, position: &GtidSet) {
        if let (GtidSet::Log(_), Some(known)) =
            (position, self.known.borrow_mut().get_mut(server.index()))
        {
            // A log that was begun anew is shorter than it was.
            known.clear();
        }
        self.reached(server, position);
    }

    /// The server of a connection was seen to have reached `position`.
    pub(crate) fn reached_on(&self, lease: &Lease, position: &GtidSet) {
        if lease.is_there() {
            self.reached(lease.server, position);
        }
    }

    /// Something was seen of a connection's server that the monitor should look at.
    pub(crate) fn observe(&self, lease: &Lease, kind: ObservationKind) {
        if lease.is_there() {
            self.shared.monitor.observe(lease.server, kind);
        }
    }

    /// A server was seen to have reached `position`.
    fn reached(&self, server: ServerId, position: &GtidSet) {
        let mut known = self.known.borrow_mut();
        while known.len() <= server.index() {
            known.push(GtidSet::new(position.family()));
        }
        let known = &mut known[server.index()];
        if !known.is_comparable(position) {
            *known = GtidSet::new(position.family());
        }
        // Never coalesced: it would claim what the server has not.
        known.union(position);
    }

    fn drop_account(&self, user: &[u8]) {
        self.verifiers.rest(user);
        self.servers.each(|_, server| server.drop_account(user));
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

    /// Bounds what somebody must see: no transaction is added that the primary was not seen to have.
    pub(crate) fn bound(&self, set: &mut GtidSet, intervals_max: usize) {
        if set.is_wide(intervals_max) {
            self.with_world(|world| {
                let primary = world.snapshot.primary_view();
                set.coalesce(intervals_max, primary.map(|view| &view.executed));
            });
        }
    }

    /// Something was written at `position`.
    pub(crate) fn wrote(&self, position: &GtidSet) {
        let bound = |set: &mut GtidSet| self.bound(set, INTERVALS_MAX);
        self.shared.written.note(self.index, position, &bound);
        self.shared.monitor.positions().stir();
    }

    /// Something was written in a cluster: its number in this process's count.
    pub(crate) fn count_write(&self) -> u64 {
        self.shared.written.count(self.index)
    }

    /// What the server can be asked to wait for.
    pub(crate) fn waits_of(&self, server: ServerId) -> Waits {
        self.with_world(|world| {
            let view = world.snapshot.server(server);
            view.map_or(Waits::Nothing, |view| view.waits)
        })
    }

    /// The same of the primary.
    pub(crate) fn waits_of_primary(&self) -> Waits {
        self.with_world(|world| {
            let view = world.snapshot.primary_view();
            view.map_or(Waits::Nothing, |view| view.waits)
        })
    }

    /// Whether something was written, nobody knows where, since the primary was asked last how far it
    /// is.
    pub(crate) fn has_hidden(&self) -> bool {
        self.shared.written.hidden() != Some(self.found.get())
    }

    /// The primary was asked when `hidden` writes were hidden, and answered `frontier`.
    pub(crate) fn found(&self, hidden: u64, frontier: &GtidSet) {
        if self.found.get() != hidden {
            self.wrote(frontier);
            self.found.set(hidden);
        }
    }

    /// A wait for a position failed on the server.
    pub(crate) fn set_behind(&self, server: ServerId) {
        let mut late = self.late_until.get();
        if let Some(until) = late.get_mut(server.index()) {
            *until = self.tick.get() + 2;
        } else {
            return;
        }
        self.late_until.set(late);
        self.late.set(self.late.get() | 1 << server.index());
    }

    /// What was just done takes replicas long: for a moment nobody waits for them.
    pub(crate) fn set_replicas_behind(&self) {
        let world = self.world();
        let views = world.snapshot.servers.iter();
        let replicas = views.filter(|view| world.snapshot.primary != Some(view.id));
        replicas.for_each(|view| self.set_behind(view.id));
    }

    /// The servers on which a wait failed in the last second or two, or DDL is on its way: a bit for each.
    pub(crate) fn behind(&self) -> u64 {
        self.late.get()
    }

    /// A server has not said in time how far it is: sessions do not ask again for a while.
    pub(crate) fn set_deaf(&self) {
        self.deaf_until.set(Instant::now() + DEAF);
    }

    /// Whether that was lately.
    pub(crate) fn is_deaf(&self) -> bool {
        Instant::now() < self.deaf_until.get()
    }

    /// Whether a session may ask, for the sake of balance, how far servers are: once in a while one
    /// may, after `least` at the soonest.
    pub(crate) fn may_ask(&self, least: Duration) -> bool {
        let now = Instant::now();
        let interval = self.ask_interval.get().max(least);
        let may = now.duration_since(self.asked.get()) >= interval;
        if may {
            self.asked.set(now);
        }
        may
    }

    /// A session has asked; `gained`: it could move. The longer nobody can, as replicas are far behind,
    /// the less often it is tried.
    pub(crate) fn note_asking(&self, gained: bool) {
        let (least, most) = ASK_INTERVALS;
        self.ask_interval.set(match gained {
            true => least,
            false => most.min(self.ask_interval.get() * 2),
        });
    }

    /// An empty one.
    pub(crate) fn take_outcome(&self) -> Box<Outcome> {
        self.outcome.take().unwrap_or_default()
    }

    /// For others to use.
    pub(crate) fn put_outcome(&self, mut outcome: Box<Outcome>) {
        outcome.clear();
        self.outcome.set(Some(outcome));
    }

    pub(crate) fn rotation(&self) -> u32 {
        self.rotation.get()
    }

    pub(crate) fn rotate(&self) {
        self.rotation.set(self.rotation.get().wrapping_add(1));
    }

    pub(crate) fn metrics(&self) -> &WorkerMetrics {
        self.shared.metrics.worker(self.index)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
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

    /// [`Fresh::drops`](millrace_backend::fresh::Fresh::drops), of all servers together.
    pub(crate) fn drops(&self) -> u64 {
        self.with_world(drops)
    }

    /// The servers' family.
    pub(crate) fn family(&self) -> Family {
        self.with_world(|world| match world.snapshot.family {
            Some(millrace_topology::Family::MariaDb) => Family::MariaDb,
            _ => Family::MySql,
        })
    }

    /// They are read anew when they are next asked for.
    pub(crate) fn forget_user_rows(&self, server: ServerId, user: &[u8]) {
        let mut known = self.user_rows.borrow_mut();
        known.retain(|(of, name, _), _| *of != server || **name != *user);
    }

    /// The rows of a server's account table for a name, as they were a moment ago. None where they
    /// cannot be read. Read by one at a time: logins that come at once have one connection for it, and where the
    /// server does not answer one of them, none of those that wait meanwhile.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) async fn user_rows(
        &self,
        facts: &ServerFacts,
        name: Name<'_>,
    ) -> Result<Option<UserRows>, BackendError> {
        const MOMENT: Duration = Duration::from_secs(1);
        const REMEMBERED_MAX: usize = 1000;
        let collation = if name.user.is_ascii() {
            0
        } else {
            name.collation
        };
        let key = (facts.id, Box::from(name.user), collation);
        let known = || {
            let known = self.user_rows.borrow();
            let (rows, since) = known.get(&key)?;
            (since.elapsed() < MOMENT).then(|| rows.clone())
        };
        if let Some(rows) = known() {
            return Ok(rows);
        }
        let reading = {
            let mut servers = self.reading_rows.borrow_mut();
            servers.entry(facts.id).or_default().clone()
        };
        let came = Instant::now();
        let mut failed = reading.lock().await;
        if let Some(rows) = known() {
            return Ok(rows);
        }
        if let Some((at, error)) = &*failed
            && *at >= came
        {
            return Err(error.shared());
        }
        let network = &self.shared.network;
        let rows = match self.shared.monitor.user_rows(facts, name, network).await {
            Ok(rows) => rows,
            Err(error) => {
                *failed = Some((Instant::now(), error.shared()));
                return Err(error);
            }
        };
        *failed = None;
        let mut remembered = self.user_rows.borrow_mut();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(key, (rows.clone(), Instant::now()));
        Ok(rows)
    }

    /// What a new connection of this account starts with, by the handshake's collation and its flag
    /// for IGNORE_SPACE, where that is known.
    pub(crate) fn base(
        &self,
        account: &Account,
        collation: u8,
        ignore_space: bool,
    ) -> Option<Base> {
        let key = (account.id, collation, ignore_space);
        self.bases.borrow().get(&key).cloned()
    }

    /// The same account was learnt by another login first: what was found for one holds for both.
    pub(crate) fn share_base(
        &self,
        tried: &Account,
        kept: &Account,
        collation: u8,
        ignore_space: bool,
    ) {
        if tried.id != kept.id
            && self.base(kept, collation, ignore_space).is_none()
            && let Some(base) = self.base(tried, collation, ignore_space)
        {
            self.set_base(kept, collation, ignore_space, base);
        }
    }

    pub(crate) fn set_base(
        &self,
        account: &Account,
        collation: u8,
        ignore_space: bool,
        base: Base,
    ) {
        let mut bases = self.bases.borrow_mut();
        if bases.len() >= BASES_MAX {
            // They are learnt again with the next logins.
            bases.clear();
        }
        bases.insert((account.id, collation, ignore_space), base);
    }

    /// `base` with a database and the client's wish for several statements in one command.
    pub(crate) fn begun(
        &self,
        base: &Rc<SessionState>,
        database: &[u8],
        multi_statements: bool,
    ) -> Rc<SessionState> {
        let mut last = self.begun.borrow_mut();
        if let Some([from, state]) = &*last
            && Rc::ptr_eq(from, base)
            && *state.database == *database
            && state.multi_statements == multi_statements
        {
            return state.clone();
        }
        let state = self.states.share(SessionState {
            database: database.into(),
            multi_statements,
            ..SessionState::clone(base)
        });
        *last = Some([base.clone(), state.clone()]);
        state
    }

    /// The identity that all statements like this one have.
    pub(crate) fn statement_uid(&self, statement: &ClientStatement) -> StatementUid {
        self.alike(statement, |alike, _| alike.uid)
    }

    /// The same, and this one has its text and class in common with those from now on: where many
    /// clients have prepared the same, the processor has these at hand.
    pub(crate) fn share_statement(&self, statement: &mut ClientStatement) -> StatementUid {
        let (uid, text, class) = self.alike(statement, |alike, text| {
            (alike.uid, text.clone(), alike.class.clone())
        });
        statement.text = text;
        // What a text says may depend on the servers' version, and that may have changed since.
        if *class == *statement.class {
            statement.class = class;
        }
        uid
    }

    /// Looks at what all statements of this one's likeness have in common, their text among it.
    fn alike<T>(
        &self,
        statement: &ClientStatement,
        look: impl FnOnce(&Alike, &Rc<[u8]>) -> T,
    ) -> T {
        let mut shared = self.shared_statements.borrow_mut();
        if shared.len() >= SHARED_STATEMENTS_MAX {
            // Nothing is lost but that some are prepared once more: no number is given out again.
            shared.clear();
        }
        let likeness = statement.likeness();
        let (text, alike) = match shared.entry(likeness) {
            hash_map::Entry::Occupied(known) => (known.key().text.clone(), known.into_mut()),
            hash_map::Entry::Vacant(place) => {
                let alike = Alike {
                    uid: self.next_statement_uid(),
                    class: statement.class.clone(),
                };
                (statement.text.clone(), place.insert(alike))
            }
        };
        look(alike, &text)
    }

    /// A statement that was prepared as `unused` is executed as `uid`.
    pub(crate) fn executed_as(&self, unused: StatementUid, uid: StatementUid) {
        let mut executed = self.executed.borrow_mut();
        if executed.len() >= SHARED_STATEMENTS_MAX {
            executed.clear();
        }
        executed.insert(unused, uid);
    }

    /// What a statement that was prepared as `unused` was last executed as, by any session.
    pub(crate) fn last_executed_as(&self, unused: StatementUid) -> Option<StatementUid> {
        self.executed.borrow().get(&unused).copied()
    }

    pub(crate) fn next_statement_uid(&self) -> StatementUid {
        let uid = self.next_statement.get();
        self.next_statement.set(uid + 1);
        uid
    }

    /// Whether this state, by its hash, was once set on its server without an error.
    pub(crate) fn is_proven(&self, proof: u64) -> bool {
        self.proven.borrow().contains(&proof)
    }

    /// These states were set without an error.
    pub(crate) fn prove(&self, proofs: Vec<u64>) {
        if proofs.is_empty() {
            return;
        }
        let mut proven = self.proven.borrow_mut();
        if proven.len() > 10_000 {
            proven.clear();
        }
        proven.extend(proofs);
    }

    /// The collation that a character set has where none is named, if that was asked for.
    pub(crate) fn collation(&self, key: &CollationKey) -> Option<Box<[u8]>> {
        self.collations.borrow().get(key).cloned()
    }

    /// By which number clients know a collation, if that was seen.
    pub(crate) fn collation_number(&self, collation: &[u8]) -> Option<u16> {
        self.collation_numbers.borrow().get(collation).copied()
    }

    /// Takes in which number the results of a session in this state have.
    pub(crate) fn learn_collation_number(&self, state: &SessionState, number: u16) {
        let Some(collation) = state::results_by_names(state).filter(|_| number != 0) else {
            return;
        };
        let mut numbers = self.collation_numbers.borrow_mut();
        if numbers.len() >= COLLATIONS_MAX {
            numbers.clear();
        }
        numbers.insert(collation.into(), number);
    }

    pub(crate) fn learn_collation(&self, key: CollationKey, collation: &[u8]) {
        let mut collations = self.collations.borrow_mut();
        if collations.len() >= COLLATIONS_MAX {
            collations.clear();
        }
        collations.insert(key, collation.into());
    }

    /// A classifier's output to fill; give it back with [`Worker::put_statement`].
    pub(crate) fn take_statement(&self) -> Box<Statement> {
        self.statements.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn put_statement(&self, statement: Box<Statement>) {
        let mut statements = self.statements.borrow_mut();
        if statements.len() < 64 {
            statements.push(statement);
        }
    }

    /// Classifies a client's statement; give the answer back with [`Worker::put_class`].
    pub(crate) fn classify(&self, text: &[u8], mode: &LexMode) -> Rc<Statement> {
        self.shapes.borrow_mut().classify(text, mode)
    }

    pub(crate) fn put_class(&self, class: Rc<Statement>) {
        self.shapes.borrow_mut().recycle(class);
    }

    /// The journal of a transaction that begins now; give it back with [`Worker::put_journal`].
    pub(crate) fn take_journal(&self, begun: Begun) -> Box<Journal> {
        let now = Instant::now();
        match self.journals.borrow_mut().pop() {
            Some(mut journal) => {
                journal.renew(begun, now);
                journal
            }
            None => Box::new(Journal::new(begun, now, self.journals_kept.clone())),
        }
    }

    /// The most bytes that the worker's journals may keep together: its part of what all may.
    pub(crate) fn journals_max(&self) -> usize {
        let all = self.options().failover.replay_total_bytes_max;
        all / self.shared.mailboxes.len().max(1)
    }

    pub(crate) fn put_journal(&self, mut journal: Box<Journal>) {
        let mut journals = self.journals.borrow_mut();
        if journals.len() < 16 {
            journal.rest();
            journals.push(journal);
        }
    }

    /// An empty buffer; give it back with [`Worker::put_buffer`].
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.buffers.take()
    }

    /// A copy of a short command; give it back with [`Worker::put_buffer`]. None of a longer one.
    pub(crate) fn copy_of(&self, command: &[u8]) -> Option<Vec<u8>> {
        if command.len() > SMALL {
            return None;
        }
        let mut small = self.small_buffers.take();
        small.extend_from_slice(command);
        Some(small)
    }

    /// Takes back a buffer of either kind, or frees what is neither.
    pub(crate) fn put_buffer(&self, buffer: Vec<u8>) {
        if buffer.capacity() < BUFFER {
            self.small_buffers.give(buffer);
        } else {
            self.buffers.give(buffer);
        }
    }
}
