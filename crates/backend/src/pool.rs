//! One worker's idle server connections, lent to sessions a statement at a time. Limits hold
//! over all workers; sessions that must wait do so in order. Never looks at a statement.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use millrace_engine::books::SessionUid;
use millrace_engine::image::prepared::StatementUid;
use millrace_engine::state::SessionState;
use millrace_metrics::{Metrics, WorkerMetrics};
use millrace_topology::ServerId;
use tokio::time::Instant;

use crate::concurrency::{Concurrency, Found, Limit, Running};
use crate::conn::Conn;
use crate::error::{BackendError, ServerError};
use crate::fresh::Version;
use crate::idle::Idle;
use crate::opener::Opener;
use crate::prepared::Allowance;

pub use crate::facts::ServerFacts;
pub use crate::idle::CheckoutRequest;
pub use crate::opener::PoolKey;

mod lending;
mod limits;
mod places;
mod queue;
mod serving;
mod sweeping;

pub use lending::Lease;
pub use queue::Waiting;

/// The limits of the pools, per server and for all workers together.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Most connections to one server.
    pub max_connections: usize,
    /// How many statements one server runs at once.
    pub concurrency: Limit,
    /// How long a connection may be idle before it is closed.
    pub idle_timeout: Duration,
    /// One that was idle for longer is asked for a sign of life before a write goes to it; whole
    /// seconds. Zero: never.
    pub check_after: Duration,
    /// How old a connection may get before it is closed when idle.
    pub max_lifetime: Duration,
    /// How long opening one may take, login included.
    pub connect_timeout: Duration,
    /// How long a statement waits for a connection.
    pub wait_timeout: Duration,
    /// Most statements that wait for one server's connections.
    pub max_waiting: usize,
    /// Most prepared statements held on one connection; fewer where the server has refused one.
    pub max_prepared_statements: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            max_connections: 100,
            concurrency: Limit::Auto,
            idle_timeout: Duration::from_secs(300),
            check_after: Duration::from_secs(10),
            max_lifetime: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(3),
            wait_timeout: Duration::from_secs(10),
            max_waiting: 10_000,
            max_prepared_statements: 256,
        }
    }
}

/// What all workers share about one server's limit.
#[derive(Debug, Default)]
pub struct ServerCount {
    open: Arc<AtomicUsize>,
    /// Statements that wait for one of them, over all workers.
    waiting: AtomicUsize,
    /// A bit for each worker that has sessions waiting and cannot open a connection.
    starving: AtomicU64,
    /// How many prepared statements each may hold.
    statements: Allowance,
    /// How many statements it runs at once, where that is to be found.
    found: OnceLock<Arc<Found>>,
}

impl ServerCount {
    /// Connections open now, over all workers.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// Tells other workers that a server has room: `(worker bits, server)`.
pub type WakeWorkers = Arc<dyn Fn(u64, ServerId) + Send + Sync>;

/// One worker's connections to one server.
pub struct ServerPool {
    facts: RefCell<Arc<ServerFacts>>,
    /// Counts the machines that its name has meant.
    place: Cell<u32>,
    options: Arc<PoolOptions>,
    opener: Rc<dyn Opener>,
    count: Arc<ServerCount>,
    worker: usize,
    workers: usize,
    wake_workers: WakeWorkers,
    metrics: Arc<Metrics>,
    pools: RefCell<HashMap<PoolKey, Rc<Pool>>>,
    /// In the order in which their time runs out.
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
    concurrency: Concurrency,
    /// A task watches over their deadlines.
    watched: Cell<bool>,
    open_here: Cell<usize>,
    leased: Cell<u32>,
    response_us: Cell<u32>,
    tick: Cell<u64>,
    me: Weak<ServerPool>,
    /// Those who wait found neither room for a connection nor one to close for it, and are told when there
    /// is: who comes after them need not look.
    futile: Cell<bool>,
    /// Places go round, it has left one to another worker, and has not been told of one since.
    yielded: Cell<bool>,
    /// Pools made so far.
    made: Cell<u64>,
    connects: Cell<u64>,
    /// No connection is opened that nobody waits for before this tick: the server refused one.
    spare_from: Cell<u64>,
    /// Shared with its connections.
    down: Rc<Cell<bool>>,
    /// Has all workers close what an account has idle.
    on_limit: RefCell<Option<OnLimit>>,
}

/// An account may have no more connections than it has.
pub type OnLimit = Box<dyn Fn(&[u8])>;

/// The idle connections of one key.
pub struct Pool {
    key: PoolKey,
    idle: RefCell<Idle>,
    /// What a reset gives, and in which version of the server's globals.
    after_reset: RefCell<Option<(Version, Rc<SessionState>)>>,
    /// Connections of this kind that are being opened.
    opening: Cell<usize>,
    /// Opened so far.
    opened: Cell<u64>,
    /// Lent so far, and taken back.
    lent: Cell<u64>,
    returned: Cell<u64>,
    /// Which of its server's it is, in the order in which they were made.
    serial: u64,
    /// The server last allowed no more connections of this kind: until when none is opened, and what
    /// it said.
    limited: RefCell<Option<(Instant, ServerError)>>,
    server: Weak<ServerPool>,
}

/// Somebody who waits for a connection.
struct Waiter {
    pool: Rc<Pool>,
    /// It waits also while the server lets no more connections in.
    patient: bool,
    wanted: Wanted,
    begun: Instant,
    /// When it has waited for too long.
    deadline: Instant,
    /// It is in the queue.
    queued: Cell<bool>,
    outcome: RefCell<Option<Result<Served, BackendError>>>,
    waker: RefCell<Option<Waker>>,
}

/// A connection, and the statement that is going to run on it, which counts already.
type Served = (Box<Conn>, Running);

/// A [`CheckoutRequest`] that is kept.
struct Wanted {
    uid: SessionUid,
    state: Rc<SessionState>,
    version: Version,
    own: bool,
    prepared: Option<StatementUid>,
    unused: Option<StatementUid>,
    changes: bool,
}

impl Wanted {
    fn new(wanted: &CheckoutRequest<'_>) -> Wanted {
        Wanted {
            uid: wanted.uid,
            state: wanted.state.clone(),
            version: wanted.version,
            own: wanted.own,
            prepared: wanted.prepared,
            unused: wanted.unused,
            changes: wanted.changes,
        }
    }

    fn wanted(&self) -> CheckoutRequest<'_> {
        CheckoutRequest {
            uid: self.uid,
            state: &self.state,
            version: self.version,
            own: self.own,
            prepared: self.prepared,
            unused: self.unused,
            changes: self.changes,
        }
    }
}

impl Waiter {
    /// There is an idle connection that will do for it.
    fn is_likely(&self) -> bool {
        let idle = self.pool.idle.borrow();
        idle.len() > 0 && (idle.len() == idle.usable() || idle.has(self.wanted.version))
    }

    /// It is out of the queue, with what it waited for or an error.
    fn finish(&self, outcome: Result<Served, BackendError>) {
        self.queued.set(false);
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl ServerPool {
    /// An empty pool for one worker (`worker` of `workers`).
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        facts: Arc<ServerFacts>,
        options: Arc<PoolOptions>,
        opener: Rc<dyn Opener>,
        count: Arc<ServerCount>,
        worker: usize,
        workers: usize,
        wake_workers: WakeWorkers,
        metrics: Arc<Metrics>,
    ) -> Rc<ServerPool> {
        let most = options.max_connections;
        let found = || {
            count
                .found
                .get_or_init(|| Arc::new(Found::new(workers, most)))
        };
        let concurrency =
            Concurrency::new(options.concurrency, worker, workers, || found().clone());
        let pool = Rc::new_cyclic(|me| ServerPool {
            facts: RefCell::new(facts),
            place: Cell::new(0),
            options,
            opener,
            count,
            worker,
            workers,
            wake_workers,
            metrics,
            pools: RefCell::default(),
            waiters: RefCell::default(),
            concurrency,
            watched: Cell::new(false),
            open_here: Cell::new(0),
            leased: Cell::new(0),
            response_us: Cell::new(0),
            tick: Cell::new(0),
            me: me.clone(),
            futile: Cell::new(false),
            yielded: Cell::new(false),
            made: Cell::new(0),
            connects: Cell::new(0),
            spare_from: Cell::new(0),
            down: Rc::default(),
            on_limit: RefCell::default(),
        });
        pool.tell_concurrency();
        pool
    }

    /// Has the metrics say how many statements of this worker the server runs at once.
    fn tell_concurrency(&self) {
        let (metrics, server) = self.metrics();
        metrics.set_concurrency(server, self.concurrency.limit().map_or(0, u64::from));
    }

    fn metrics(&self) -> (&WorkerMetrics, usize) {
        (
            self.metrics.worker(self.worker),
            self.facts.borrow().id.index(),
        )
    }

    /// Takes over what a probe learnt about the server. True where its name means another machine now: what is
    /// known of it is known of that one.
    pub fn set_facts(&self, facts: Arc<ServerFacts>) -> bool {
        let at = facts.address.at;
        let before = self.facts.replace(facts).address.at;
        self.place.set(self.place.get() + u32::from(before != at));
        before.is_some() && before != at
    }

    /// The connection was opened to the machine that the server is now.
    pub(crate) fn is_there(&self, conn: &Conn) -> bool {
        conn.login.place == self.place.get()
    }

    /// The server's facts.
    pub fn facts(&self) -> Arc<ServerFacts> {
        self.facts.borrow().clone()
    }

    /// After how many idle seconds a connection is asked for a sign of life before a write; 0: never.
    pub fn check_after(&self) -> u64 {
        self.options.check_after.as_secs()
    }

    /// Connections on loan from this worker.
    pub fn leased(&self) -> u32 {
        self.leased.get()
    }

    /// Statements of this worker that run there or wait for a connection. Those that wait count: a
    /// server that is slow to let connections in is not less busy for that.
    pub fn outstanding(&self) -> u32 {
        self.leased.get() + u32::try_from(self.waiters.borrow().len()).unwrap_or(u32::MAX / 2)
    }

    /// How long a read takes here, from its last byte read to its answer's last byte written: a
    /// moving average in microseconds; 0 where none has been measured.
    pub fn response_us(&self) -> u32 {
        self.response_us.get()
    }

    /// A read took so long. Each counts a sixteenth: the average follows within some thirty reads.
    pub fn responded(&self, elapsed: Duration) {
        let new = u32::try_from(elapsed.as_micros())
            .unwrap_or(u32::MAX)
            .max(1);
        let old = self.response_us.get();
        let average = match old {
            0 => new,
            old => old - old / 16 + new / 16,
        };
        self.response_us.set(average.max(1));
    }

    /// This worker's open connections.
    pub fn open_here(&self) -> usize {
        self.open_here.get()
    }

    /// Idle connections of this worker.
    pub fn idle_here(&self) -> usize {
        let pools = self.pools.borrow();
        pools.values().map(|pool| pool.idle.borrow().len()).sum()
    }

    /// Sessions of this worker that wait for a connection.
    pub fn waiting_here(&self) -> usize {
        self.waiters.borrow().len()
    }

    /// Whether those who wait do so for others to end, not for a connection.
    pub fn is_full(&self) -> bool {
        let waiting = self.waiters.borrow().len();
        self.concurrency.is_full(waiting.saturating_sub(1))
    }

    /// Connections opened since the start.
    pub fn connects(&self) -> u64 {
        self.connects.get()
    }

    /// Shows every pool, and how many sessions wait for a connection of its kind.
    pub fn each_pool(&self, mut see: impl FnMut(&Pool, usize)) {
        let mut waiting: HashMap<*const Pool, usize> = HashMap::new();
        for waiter in self.waiters.borrow().iter() {
            *waiting.entry(Rc::as_ptr(&waiter.pool)).or_default() += 1;
        }
        for pool in self.pools.borrow().values() {
            see(pool, waiting.remove(&Rc::as_ptr(pool)).unwrap_or(0));
        }
    }

    /// Some pool of an account.
    pub fn pool_of(&self, user: &[u8]) -> Option<Rc<Pool>> {
        let pools = self.pools.borrow();
        let found = pools.values().find(|pool| *pool.key.account.user == *user);
        found.cloned()
    }

    /// The pool for a key; kept by sessions so that it is looked up once.
    pub fn pool(&self, key: &PoolKey) -> Rc<Pool> {
        if let Some(pool) = self.pools.borrow().get(key) {
            return pool.clone();
        }
        let pool = Rc::new(Pool {
            key: key.clone(),
            idle: RefCell::default(),
            after_reset: RefCell::default(),
            opening: Cell::new(0),
            opened: Cell::new(0),
            lent: Cell::new(0),
            returned: Cell::new(0),
            serial: self.made.replace(self.made.get() + 1),
            limited: RefCell::default(),
            server: self.me.clone(),
        });
        self.pools.borrow_mut().insert(key.clone(), pool.clone());
        pool
    }
}

impl Pool {
    /// The key.
    pub fn key(&self) -> &PoolKey {
        &self.key
    }

    /// Connections in no use.
    pub fn idle(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Connections that are being opened.
    pub fn opening(&self) -> usize {
        self.opening.get()
    }

    /// Connections on loan.
    pub fn leased(&self) -> u64 {
        self.lent.get() - self.returned.get()
    }

    /// Connections opened since the pool was made. One that nobody uses is dropped with its
    /// counts.
    pub fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// Connections lent since then.
    pub fn lent(&self) -> u64 {
        self.lent.get()
    }
}
