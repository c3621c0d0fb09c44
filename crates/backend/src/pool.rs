//! One worker's idle server connections, lent to sessions a statement at a time. Limits hold
//! over all workers; sessions that must wait do so in order. Never looks at a statement.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millrace_metrics::{Metrics, PoolWait, WorkerMetrics};
use millrace_protocol::Capabilities;
use millrace_sql::Family;
use millrace_topology::ServerId;
use tokio::time::Instant;
use tracing::info;

use crate::account::Account;
use crate::conn::{Conn, Permit, SessionUid};
use crate::connect::Address;
use crate::error::BackendError;
pub use crate::idle::Wish;
use crate::idle::{Found, Idle};
use crate::opener::Opener;
use crate::prepared::Allowance;
use crate::state::SessionState;

/// The limits of the pools, per server and for all workers together.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Most connections to one server.
    pub max_connections: usize,
    /// How long a connection may be idle before it is closed.
    pub idle_timeout: Duration,
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
            idle_timeout: Duration::from_secs(300),
            max_lifetime: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(10),
            wait_timeout: Duration::from_secs(30),
            max_waiting: 100_000,
            max_prepared_statements: 200,
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
}

impl ServerCount {
    /// Connections open now, over all workers.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// What is to be known of a server to open connections to it.
#[derive(Debug, Clone)]
pub struct ServerFacts {
    /// Its place in the list.
    pub id: ServerId,
    /// Where it listens.
    pub address: Address,
    /// Its family.
    pub family: Family,
    /// The value for `session_track_system_variables`.
    pub track: Arc<str>,
}

/// How long a connection that is to be closed may take to say what its last user might ask about.
const SAVING: Duration = Duration::from_secs(10);

/// Seconds for which no connection is opened that nobody waits for, after the server refused one.
const SPARE_AFTER: u64 = 60;

/// As good as for ever, and no time that a clock cannot tell.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Connections that are interchangeable but for their session state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// The account logged in with.
    pub account: Arc<Account>,
    /// The flags that shape what the server sends; as the client's.
    pub shape: Capabilities,
    /// TLS to the server.
    pub tls: bool,
    /// For sessions with a default database. Apart, because a connection cannot lose its
    /// database again.
    pub has_database: bool,
    /// The handshake's collation where it cannot be set afterwards.
    pub collation: u8,
}

/// Tells other workers that a server has room: `(worker bits, server)`.
pub type Nudge = Arc<dyn Fn(u64, ServerId) + Send + Sync>;

/// One worker's connections to one server.
pub struct ServerPool {
    facts: RefCell<Arc<ServerFacts>>,
    options: Arc<PoolOptions>,
    opener: Rc<dyn Opener>,
    count: Arc<ServerCount>,
    worker: usize,
    workers: usize,
    nudge: Nudge,
    metrics: Arc<Metrics>,
    pools: RefCell<HashMap<PoolKey, Rc<Pool>>>,
    /// In the order in which their time runs out.
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
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
}

/// The idle connections of one key.
pub struct Pool {
    key: PoolKey,
    idle: RefCell<Idle>,
    /// Connections of this kind that are being opened.
    opening: Cell<usize>,
    /// Opened so far.
    opened: Cell<u64>,
    /// Lent so far, and taken back.
    lent: Cell<u64>,
    returned: Cell<u64>,
    /// Which of its server's it is, in the order in which they were made.
    serial: u64,
    server: Weak<ServerPool>,
}

struct Waiter {
    pool: Rc<Pool>,
    begun: Instant,
    /// When it has waited for too long.
    deadline: Instant,
    /// It is in the queue.
    queued: Cell<bool>,
    outcome: RefCell<Option<Result<Box<Conn>, BackendError>>>,
    waker: RefCell<Option<Waker>>,
}

/// A connection on loan. Dropping it closes the connection; [`Lease::give_back`] keeps it.
pub struct Lease {
    conn: Option<Box<Conn>>,
    pool: Rc<Pool>,
    server: Rc<ServerPool>,
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
        nudge: Nudge,
        metrics: Arc<Metrics>,
    ) -> Rc<ServerPool> {
        Rc::new_cyclic(|me| ServerPool {
            facts: RefCell::new(facts),
            options,
            opener,
            count,
            worker,
            workers,
            nudge,
            metrics,
            pools: RefCell::default(),
            waiters: RefCell::default(),
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
        })
    }

    fn metrics(&self) -> (&WorkerMetrics, usize) {
        (
            self.metrics.worker(self.worker),
            self.facts.borrow().id.index(),
        )
    }

    /// Takes over what a probe learnt about the server.
    pub fn set_facts(&self, facts: Arc<ServerFacts>) {
        *self.facts.borrow_mut() = facts;
    }

    /// The server's facts.
    pub fn facts(&self) -> Arc<ServerFacts> {
        self.facts.borrow().clone()
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
            opening: Cell::new(0),
            opened: Cell::new(0),
            lent: Cell::new(0),
            returned: Cell::new(0),
            serial: self.made.replace(self.made.get() + 1),
            server: self.me.clone(),
        });
        self.pools.borrow_mut().insert(key.clone(), pool.clone());
        pool
    }

    /// Closes what has been idle or alive for too long; to be called about once a second with
    /// a growing count of seconds.
    pub fn sweep(&self, tick: u64) {
        self.tick.set(tick);
        // Who is never asked because he was slow once is asked again some time.
        let response = self.response_us.get();
        self.response_us.set(response - response.div_ceil(16));
        let idle_max = self.options.idle_timeout.as_secs().max(1);
        let (mut lost, mut old) = (0, Vec::new());
        self.pools.borrow_mut().retain(|_, pool| {
            let mut idle = pool.idle.borrow_mut();
            let aged = |conn: &Conn| {
                tick.saturating_sub(conn.used) >= idle_max
                    || conn.opened.elapsed() >= self.options.max_lifetime
            };
            for mut conn in idle.take_all() {
                if aged(&conn) {
                    old.push(conn);
                } else if conn.stream.is_quiet() {
                    idle.push(conn);
                } else {
                    lost += 1;
                }
            }
            idle.len() > 0 || Rc::strong_count(pool) > 1
        });
        self.closed(lost);
        old.into_iter().for_each(|conn| self.retire(conn));
        let option = self.options.max_prepared_statements;
        self.count
            .statements
            .grow(option, std::time::Instant::now());
        self.trim_idle();
        // Within its share a worker keeps what it does not use for the moment, but not for long while
        // another's sessions wait.
        if tick.saturating_sub(self.oldest().unwrap_or(tick)) > 1 {
            self.give_room();
        }
        // Whoever freed a place may not have seen yet that somebody waits here.
        self.yielded.set(false);
        if !self.waiters.borrow().is_empty() {
            self.pump();
        }
    }

    /// How many prepared statements one connection may hold.
    pub fn statements_max(&self) -> usize {
        let option = self.options.max_prepared_statements;
        self.count.statements.most(option)
    }

    /// A connection has come to hold so many prepared statements.
    pub fn note_statements(&self, held: usize) {
        self.count.statements.note(held);
    }

    /// The server takes no more prepared statements (1461): connections are to hold fewer from now on.
    /// Idle ones give up the rest at once, others when they come back. False where no connection holds
    /// any.
    pub fn hold_fewer_statements(&self) -> bool {
        let (before, option) = (self.statements_max(), self.options.max_prepared_statements);
        let now = std::time::Instant::now();
        let Some(most) = self.count.statements.reduce(option, now) else {
            return false;
        };
        if most != before {
            let server = &self.facts.borrow().address;
            info!(%server, most, "the server takes no more prepared statements: connections hold fewer");
            // Other workers look after their own.
            (self.nudge)(!(1 << (self.worker % 64)), self.facts.borrow().id);
        }
        self.trim_idle();
        true
    }

    /// Has idle connections close the prepared statements that they have too many.
    pub fn trim_idle(&self) {
        let most = self.statements_max();
        if most >= self.options.max_prepared_statements {
            return;
        }
        for pool in self.pools.borrow().values() {
            for conn in pool.idle.borrow_mut().iter_mut() {
                conn.hold_at_most(most);
            }
        }
    }

    /// Closes all idle connections: the server went down or changed its role.
    pub fn drop_idle(&self) {
        self.retire_those(|_| true);
    }

    /// The server is taken for dead, or no more. Who waits for one of its connections to say something
    /// is told so when its task is woken.
    pub fn set_down(&self, down: bool) {
        self.down.set(down);
    }

    /// Who waits for a connection is told that the server is lost, in order: it was taken for dead, or
    /// is not what it was.
    pub fn send_away(&self) {
        let waiting = std::mem::take(&mut *self.waiters.borrow_mut());
        for waiter in waiting {
            let lost = std::io::ErrorKind::ConnectionAborted;
            waiter.finish(Err(BackendError::Io(lost.into())));
        }
        self.mark_starving(false);
    }

    /// Closes an account's idle connections: it is allowed no more than it has.
    pub fn drop_account(&self, user: &[u8]) {
        self.retire_those(|key| *key.account.user == *user);
    }

    /// A server that was given up may still answer what a session asks about its last statement.
    fn retire_those(&self, chosen: impl Fn(&PoolKey) -> bool) {
        let mut gone = Vec::new();
        for pool in self.pools.borrow().values() {
            if chosen(&pool.key) {
                gone.append(&mut pool.idle.borrow_mut().take_all());
            }
        }
        gone.into_iter().for_each(|conn| self.retire(conn));
    }

    /// Opens connections for those who wait, as far as the limit allows. Also called when
    /// another worker has made room.
    pub fn pump(&self) {
        loop {
            let Some(pool) = self.uncovered() else {
                self.futile.set(false);
                self.mark_starving(false);
                return;
            };
            let Some(permit) = self.permit() else {
                self.futile.set(self.idle_here() == 0);
                self.mark_starving(true);
                return;
            };
            pool.opening.set(pool.opening.get() + 1);
            self.spawn_open(pool, permit);
        }
    }

    /// Sees to it that nobody waits for longer than `wait_timeout`. One timer for all of them, set anew
    /// when it has run out: most who wait are served soon, and a timer for each costs more than the rest.
    fn watch(&self) {
        if self.watched.replace(true) {
            return;
        }
        let me = self.me.clone();
        tokio::task::spawn_local(async move {
            while let Some(next) = me.upgrade().and_then(|server| server.expire()) {
                tokio::time::sleep_until(next).await;
            }
        });
    }

    /// Sends away those who have waited for too long. When the next will have; none: nobody waits.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let first = self.waiters.borrow().front().cloned();
            let Some(first) = first else {
                self.watched.set(false);
                return None;
            };
            if first.deadline > now {
                return Some(first.deadline);
            }
            self.waiters.borrow_mut().pop_front();
            let waited = self.options.wait_timeout;
            let (metrics, index) = self.metrics();
            metrics.pool_wait(index, PoolWait::TimedOut, waited);
            first.finish(Err(BackendError::Limit(format!(
                "no connection to {} came free within pool.wait_timeout ({waited:?}); \
                 pool.max_connections is {}",
                self.facts.borrow().address,
                self.options.max_connections
            ))));
        }
    }

    /// The kind of connection that the first waits for, for whom none is being opened.
    fn uncovered(&self) -> Option<Rc<Pool>> {
        let waiters = self.waiters.borrow();
        let first = waiters.front()?;
        if first.pool.opening.get() == 0 {
            return Some(first.pool.clone());
        }
        let mut seen: Vec<(*const Pool, usize)> = Vec::new();
        for waiter in waiters.iter() {
            let kind = Rc::as_ptr(&waiter.pool);
            let at = seen.iter().position(|(other, _)| *other == kind);
            let at = at.unwrap_or_else(|| {
                seen.push((kind, 0));
                seen.len() - 1
            });
            seen[at].1 += 1;
            if seen[at].1 > waiter.pool.opening.get() {
                return Some(waiter.pool.clone());
            }
        }
        None
    }

    /// There is room, or another worker is starving: gives it the place of a connection that nobody
    /// here uses. [`ServerPool::pump`] is to follow.
    pub fn give_room(&self) {
        self.yielded.set(false);
        if self.starving_elsewhere() == 0 || !self.waiters.borrow().is_empty() {
            return;
        }
        if self.count.open() < self.options.max_connections || self.evict() {
            self.nudge_starving();
        }
    }

    /// A worker keeps no more than this while others starve. Where there are fewer connections than
    /// workers, that is none: they go round.
    fn share(&self) -> usize {
        let (limit, workers) = (self.options.max_connections, self.workers);
        if limit < workers {
            0
        } else {
            limit.div_ceil(workers)
        }
    }

    /// When the idle connection unused for longest was used, in ticks.
    fn oldest(&self) -> Option<u64> {
        let pools = self.pools.borrow();
        let firsts = pools
            .values()
            .filter_map(|pool| pool.idle.borrow().oldest());
        firsts.min()
    }

    fn permit(&self) -> Option<Permit> {
        let limit = self.options.max_connections;
        let has_enough = self.yielded.get() || self.open_here.get() >= self.share().max(1);
        let enough = has_enough && self.starving_elsewhere() != 0;
        let free = match enough {
            true => None,
            false => Permit::take(&self.count.open, limit),
        };
        free.or_else(|| {
            self.evict()
                .then(|| Permit::take(&self.count.open, limit))
                .flatten()
        })
    }

    /// Closes one idle connection, the one unused for longest. True if there was one.
    fn evict(&self) -> bool {
        let victim = {
            let pools = self.pools.borrow();
            let mut oldest: Option<((u64, u64), Rc<Pool>)> = None;
            for pool in pools.values() {
                // Of those equally old, the same whatever the map's order.
                if let Some(age) = pool.idle.borrow().oldest().map(|used| (used, pool.serial))
                    && oldest.as_ref().is_none_or(|(oldest, _)| age < *oldest)
                {
                    oldest = Some((age, pool.clone()));
                }
            }
            oldest
        };
        let victim = victim.and_then(|(_, pool)| pool.idle.borrow_mut().take_oldest());
        let Some(conn) = victim else {
            return false;
        };
        if !conn.residue.is_empty() {
            self.retire(conn);
            return false;
        }
        drop(conn);
        let (metrics, server) = self.metrics();
        metrics.connection_closed(server);
        self.open_here.set(self.open_here.get() - 1);
        true
    }

    fn mark_starving(&self, starving: bool) {
        let bit = 1u64 << (self.worker % 64);
        let before = self.count.starving.load(Ordering::Relaxed);
        if (before & bit != 0) == starving {
            return;
        }
        if starving {
            self.count.starving.fetch_or(bit, Ordering::AcqRel);
            // Others may sit on idle connections and never look at the bit.
            (self.nudge)(!bit, self.facts.borrow().id);
        } else {
            self.count.starving.fetch_and(!bit, Ordering::AcqRel);
            // What others left to this worker, because it starved, is theirs now.
            if self.count.open() < self.options.max_connections {
                self.nudge_starving();
            }
        }
    }

    #[cold]
    fn too_many_wait(&self) -> BackendError {
        let (metrics, index) = self.metrics();
        metrics.pool_wait(index, PoolWait::Refused, Duration::ZERO);
        BackendError::Limit(format!(
            "pool.max_waiting ({}) statements already wait for a connection to {}",
            self.options.max_waiting,
            self.facts.borrow().address
        ))
    }

    fn starving_elsewhere(&self) -> u64 {
        let bit = 1u64 << (self.worker % 64);
        self.count.starving.load(Ordering::Relaxed) & !bit
    }

    fn nudge_starving(&self) {
        let starving = self.starving_elsewhere();
        if starving != 0 {
            (self.nudge)(starving, self.facts.borrow().id);
        }
    }

    /// `count` of this worker's connections are gone; their places are free.
    fn closed(&self, count: usize) {
        if count > 0 {
            self.gone(count);
            self.fill();
        }
    }

    fn gone(&self, count: usize) {
        let (metrics, server) = self.metrics();
        (0..count).for_each(|_| metrics.connection_closed(server));
        self.open_here
            .set(self.open_here.get().saturating_sub(count));
    }

    /// Places are free: they are for those who wait here, and what these leave for others.
    fn fill(&self) {
        self.pump();
        if self.count.open() < self.options.max_connections {
            self.nudge_starving();
        }
    }

    fn spawn_open(&self, pool: Rc<Pool>, permit: Permit) {
        self.open_here.set(self.open_here.get() + 1);
        self.connects.set(self.connects.get() + 1);
        let Some(me) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move {
            let opened = me.open_one(&pool, Some(permit)).await;
            pool.opening.set(pool.opening.get() - 1);
            match opened {
                Ok(conn) => {
                    let (metrics, server) = me.metrics();
                    metrics.connection_opened(server);
                    pool.opened.set(pool.opened.get() + 1);
                    me.deliver(conn, &pool);
                }
                Err(error) => me.failed(&pool, error),
            }
        });
    }

    /// A session has to do with a connection that another has left something on, and was here with a
    /// moment ago: both will be back, so that each is to have its own if there is room for one more.
    fn spare(&self, conn: &Conn, pool: &Rc<Pool>) {
        let tick = self.tick.get();
        let has_room = pool.opening.get() == 0
            && self.open_here.get() < self.share()
            && self.waiters.borrow().is_empty()
            && self.starving_elsewhere() == 0
            && tick >= self.spare_from.get();
        if !has_room || tick.saturating_sub(conn.used) > 1 {
            return;
        }
        if let Some(permit) = Permit::take(&self.count.open, self.options.max_connections) {
            pool.opening.set(pool.opening.get() + 1);
            self.spawn_open(pool.clone(), permit);
        }
    }

    async fn open_one(
        &self,
        pool: &Pool,
        permit: Option<Permit>,
    ) -> Result<Box<Conn>, BackendError> {
        let facts = self.facts();
        let mut conn = self.opener.open(&facts, &pool.key, permit).await?;
        conn.down = self.down.clone();
        Ok(conn)
    }

    /// An open failed: the first who waits for one like it is told.
    fn failed(&self, pool: &Rc<Pool>, error: BackendError) {
        let (metrics, server) = self.metrics();
        metrics.connection_failed(server);
        self.open_here.set(self.open_here.get().saturating_sub(1));
        self.spare_from.set(self.tick.get() + SPARE_AFTER);
        // A server that is too busy to let one more in may serve those who are in: as long as one of
        // these will come free, nobody is told.
        let slow = matches!(error, BackendError::Timeout(_)) && self.leased.get() > 0;
        let waiter = {
            let mut waiters = self.waiters.borrow_mut();
            let at = waiters
                .iter()
                .position(|waiter| Rc::ptr_eq(&waiter.pool, pool));
            at.filter(|_| !slow).and_then(|at| waiters.remove(at))
        };
        if let Some(waiter) = waiter {
            waiter.finish(Err(error));
        }
        self.fill();
    }

    /// A connection has been used: it is another worker's turn, or for those here.
    fn take_back(&self, conn: Box<Conn>, pool: &Rc<Pool>) {
        match self.has_too_many() {
            true => self.surrender(conn),
            false => self.hand_on(conn, pool),
        }
    }

    /// A connection is new, or was meant for somebody who no longer waits.
    fn deliver(&self, conn: Box<Conn>, pool: &Rc<Pool>) {
        if self.waiters.borrow().is_empty() && self.has_too_many() {
            self.surrender(conn);
        } else {
            self.hand_on(conn, pool);
        }
    }

    /// More than this worker's share, while others starve. Those who wait here have the rest.
    fn has_too_many(&self) -> bool {
        self.starving_elsewhere() != 0 && self.open_here.get() > self.share()
    }

    /// Leaves the place of a connection to another worker.
    #[cold]
    fn surrender(&self, conn: Box<Conn>) {
        self.yielded.set(self.share() == 0);
        self.close(conn, |server| {
            server.gone(1);
            server.nudge_starving();
        });
    }

    /// A connection is free: to the first who waits, else into the idle list.
    fn hand_on(&self, mut conn: Box<Conn>, pool: &Rc<Pool>) {
        if self.waiters.borrow().is_empty() {
            conn.used = self.tick.get();
            pool.idle.borrow_mut().push(conn);
            return;
        }
        let taker = {
            let mut waiters = self.waiters.borrow_mut();
            let other_first = waiters.front().is_some_and(|first| {
                !Rc::ptr_eq(&first.pool, pool) && first.pool.opening.get() == 0
            });
            let like_it = waiters
                .iter()
                .position(|waiter| Rc::ptr_eq(&waiter.pool, pool));
            match like_it {
                // Somebody who needs another kind of connection has waited longer.
                _ if other_first => None,
                Some(at) => waiters.remove(at),
                None => None,
            }
        };
        match taker {
            Some(waiter) => {
                conn.leave_owner();
                waiter.finish(Ok(conn));
                // Before it has looked: others leave places to this worker as long as it starves.
                if self.waiters.borrow().is_empty() {
                    self.mark_starving(false);
                }
            }
            None if self.uncovered().is_none() => {
                conn.used = self.tick.get();
                pool.idle.borrow_mut().push(conn);
                // Whoever comes next may have the place of this one.
                self.futile.set(false);
            }
            None => self.retire(conn),
        }
    }

    /// Closes a connection that is in nobody's way; its place is free then.
    fn retire(&self, conn: Box<Conn>) {
        self.close(conn, |server| server.closed(1));
    }

    /// Closes a connection, after what its last user may still ask about has been read.
    fn close(&self, mut conn: Box<Conn>, then: fn(&ServerPool)) {
        conn.leave_owner();
        let Some(me) = self.me.upgrade().filter(|_| !conn.residue.is_empty()) else {
            drop(conn);
            then(self);
            return;
        };
        tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(SAVING, conn.save_residue()).await;
            drop(conn);
            then(&me);
        });
    }
}

impl Waiter {
    /// It is out of the queue, with what it waited for or an error.
    fn finish(&self, outcome: Result<Box<Conn>, BackendError>) {
        self.queued.set(false);
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
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

    /// An idle connection, at once: the one that can run the session's statement with the least
    /// ahead of it.
    pub fn try_take(self: &Rc<Self>, wish: &Wish<'_>) -> Option<Lease> {
        let server = self.server.upgrade()?;
        loop {
            let Found {
                mut conn,
                was_bound,
            } = self.idle.borrow_mut().take(wish)?;
            if conn.stream.is_quiet() {
                if was_bound {
                    conn.leave_owner();
                    server.spare(&conn, self);
                }
                return Some(server.lease(conn, self));
            }
            drop(conn);
            server.closed(1);
        }
    }

    /// Whether [`Pool::try_take_own`] would find one. Taking it and giving it back is no way to ask:
    /// it would go to whoever waits.
    pub fn has_own(&self, uid: SessionUid, seq: u64) -> bool {
        self.idle
            .borrow_mut()
            .iter_mut()
            .any(|conn| conn.last_user == uid && conn.last_seq == seq && conn.stream.is_quiet())
    }

    /// The idle connection that ran statement `seq` of `uid`, if nothing was run on it since.
    pub fn try_take_own(self: &Rc<Self>, uid: SessionUid, seq: u64) -> Option<Lease> {
        let server = self.server.upgrade()?;
        let mut conn = self.idle.borrow_mut().take_own(uid, seq)?;
        if conn.stream.is_quiet() {
            return Some(server.lease(conn, self));
        }
        drop(conn);
        server.closed(1);
        None
    }

    /// A connection beyond the limits, for a KILL where all others are taken. It never comes to the
    /// pool.
    ///
    /// # Errors
    /// As for connecting.
    pub async fn open_aside(&self) -> Result<Box<Conn>, BackendError> {
        let Some(server) = self.server.upgrade() else {
            return Err(BackendError::Protocol("the server was removed"));
        };
        server.open_one(self, None).await
    }

    /// A connection: an idle one, a new one, or the next that comes free, in order, within
    /// `wait_timeout`.
    ///
    /// # Errors
    /// As for connecting; [`BackendError::Limit`] where too many wait already, or for too long.
    pub async fn take(
        self: &Rc<Self>,
        uid: SessionUid,
        state: &Rc<SessionState>,
    ) -> Result<Lease, BackendError> {
        let Some(server) = self.server.upgrade() else {
            return Err(BackendError::Protocol("the server was removed"));
        };
        if server.waiters.borrow().is_empty()
            && let Some(lease) = self.try_take(&Wish::new(uid, state))
        {
            return Ok(lease);
        }
        self.queue()?.await
    }

    /// A place among those who wait for a connection, for who has found none idle. A small future, to be
    /// held where a statement waits.
    ///
    /// # Errors
    /// [`BackendError::Limit`] where too many wait already.
    pub fn queue(self: &Rc<Self>) -> Result<Waiting, BackendError> {
        let Some(server) = self.server.upgrade() else {
            return Err(BackendError::Protocol("the server was removed"));
        };
        let begun = Instant::now();
        if server.count.waiting.fetch_add(1, Ordering::AcqRel) >= server.options.max_waiting {
            server.count.waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(server.too_many_wait());
        }
        let waiter = Rc::new(Waiter {
            pool: self.clone(),
            begun,
            deadline: begun + server.options.wait_timeout.min(NEVER),
            queued: Cell::new(true),
            outcome: RefCell::new(None),
            waker: RefCell::new(None),
        });
        let is_first = server.waiters.borrow().is_empty();
        server.waiters.borrow_mut().push_back(waiter.clone());
        if is_first || !server.futile.get() {
            server.pump();
        }
        server.watch();
        Ok(Waiting { server, waiter })
    }
}

/// Waits for a connection, in order. Dropping it gives the place up, for whatever reason, and hands on
/// what may have been given to it at the last moment.
pub struct Waiting {
    server: Rc<ServerPool>,
    waiter: Rc<Waiter>,
}

impl Future for Waiting {
    type Output = Result<Lease, BackendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waiter = &*self.waiter;
        let outcome = waiter.outcome.borrow_mut().take();
        match outcome {
            Some(Ok(conn)) => {
                let (metrics, index) = self.server.metrics();
                metrics.pool_wait(index, PoolWait::Served, waiter.begun.elapsed());
                Poll::Ready(Ok(self.server.lease(conn, &waiter.pool)))
            }
            Some(Err(error)) => Poll::Ready(Err(error)),
            None => {
                let mut waker = waiter.waker.borrow_mut();
                match &mut *waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.server.count.waiting.fetch_sub(1, Ordering::AcqRel);
        let mut waiters = self.server.waiters.borrow_mut();
        if self.waiter.queued.get() {
            waiters.retain(|waiter| !Rc::ptr_eq(waiter, &self.waiter));
        }
        let empty = waiters.is_empty();
        drop(waiters);
        if empty {
            self.server.mark_starving(false);
        }
        if let Some(Ok(conn)) = self.waiter.outcome.borrow_mut().take() {
            self.server.deliver(conn, &self.waiter.pool);
        }
    }
}

impl ServerPool {
    fn lease(self: &Rc<Self>, conn: Box<Conn>, pool: &Rc<Pool>) -> Lease {
        self.leased.set(self.leased.get() + 1);
        pool.lent.set(pool.lent.get() + 1);
        let (metrics, server) = self.metrics();
        metrics.leased(server);
        Lease {
            conn: Some(conn),
            pool: pool.clone(),
            server: self.clone(),
        }
    }
}

impl Lease {
    /// Puts the connection back for others; a broken one is closed.
    pub fn give_back(mut self) {
        let Some(mut conn) = self.conn.take() else {
            return;
        };
        let server = self.server.clone();
        if server.count.statements.is_beyond(conn.prepared.len()) && !conn.broken {
            conn.hold_at_most(server.statements_max());
        }
        if conn.broken {
            drop(conn);
            server.closed(1);
        } else {
            conn.leave_room();
            let has_database = !conn.state.database.is_empty();
            if has_database == self.pool.key.has_database || !has_database {
                server.take_back(conn, &self.pool);
            } else {
                // The session chose its first database: the connection is of the other kind now.
                let key = PoolKey {
                    has_database,
                    ..self.pool.key.clone()
                };
                server.take_back(conn, &server.pool(&key));
            }
        }
    }

    /// The pool it came from.
    pub fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    /// The facts of its server.
    pub fn server_facts(&self) -> Arc<ServerFacts> {
        self.server.facts()
    }

    /// The pools of its server.
    pub fn server(&self) -> &Rc<ServerPool> {
        &self.server
    }

    /// Removes the connection from the pools and their limits for good.
    pub fn detach(mut self) -> Option<Box<Conn>> {
        let mut conn = self.conn.take();
        if let Some(conn) = &mut conn {
            conn.release_permit();
        }
        self.server.closed(1);
        conn
    }
}

impl Deref for Lease {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.conn
            .as_ref()
            .expect("a lease holds its connection until it is given back")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Conn {
        self.conn
            .as_mut()
            .expect("a lease holds its connection until it is given back")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.leased.set(self.server.leased.get() - 1);
        self.pool.returned.set(self.pool.returned.get() + 1);
        let (metrics, server) = self.server.metrics();
        metrics.lease_ended(server);
        if self.conn.take().is_some() {
            self.server.closed(1);
        }
    }
}
