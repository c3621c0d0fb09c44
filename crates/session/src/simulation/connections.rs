//! Connections to the simulated servers: opened for the real pools, two workers' of them, and cut
//! where a server dies. What a pool may never do is checked here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_backend::account::Account;
use millrace_backend::concurrency::Limit;
use millrace_backend::conn::{Conn, Permit};
use millrace_backend::connect::{Address, Opened};
use millrace_backend::error::{BackendError, ServerError};
use millrace_backend::fresh::Fresh;
use millrace_backend::opener::{Opener, Opening};
use millrace_backend::pool::{
    Lease, Pool, PoolKey, PoolOptions, ServerCount, ServerFacts, ServerPool, WakeWorkers,
};
use millrace_backend::secret::Secret;
use millrace_backend::stream::Stream;
use millrace_engine::state::{Begins, SessionState};
use millrace_metrics::Metrics;
use millrace_protocol::handshake::Greeting;
use millrace_protocol::{Capabilities, Status};
use millrace_sql::Family;
use millrace_topology::{ServerId, Snapshot};

use super::random::Random;
use super::servers::{Reached, Servers};
use super::{TIMEOUT, WAIT};
use millrace_worker::Pools;

/// Threads of the simulated process, each with pools of its own under limits that they share.
pub(super) const WORKERS: usize = 2;
/// Most connections to one server: fewer than there are sessions; in some runs fewer than workers.
pub(super) const CONNECTIONS: usize = 4;
/// Nobody has used it for so long: it is closed.
const IDLE: Duration = Duration::from_secs(2);

/// The servers' ends of all connections, by their number.
struct Wires {
    servers: Rc<RefCell<Servers>>,
    random: RefCell<Random>,
    ends: RefCell<BTreeMap<u32, (usize, UnixStream)>>,
    made: Cell<u32>,
    /// The next connection's opening panics.
    panics: Cell<bool>,
    state: Rc<SessionState>,
}

impl Wires {
    fn connect(&self, facts: &ServerFacts, permit: Option<Permit>) -> std::io::Result<Box<Conn>> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let thread = self.made.get() + 1;
        self.made.set(thread);
        let at = facts.id.index();
        self.ends.borrow_mut().insert(thread, (at, theirs));
        let opened = Opened {
            stream: Stream::Plain(tokio::net::UnixStream::from_std(ours)?.into()),
            greeting: Greeting {
                server_version: "9.7.4".into(),
                thread_id: thread,
                nonce: [1; 20],
                capabilities: Capabilities::default(),
                collation: 255,
                status: Status::default(),
                auth_plugin: "caching_sha2_password".into(),
            },
            capabilities: Capabilities::default(),
            status: Status::default(),
            tells_variables: false,
            buffer: Vec::new(),
        };
        let mut conn = Box::new(Conn::new(opened, facts.id, facts.family, permit));
        conn.state = self.state.clone();
        Ok(conn)
    }

    /// The client's side is there no more.
    fn is_closed(end: &UnixStream) -> bool {
        use std::io::{ErrorKind, Read};
        let mut end = end;
        !matches!(end.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

impl Opener for Wires {
    fn open<'a>(
        &'a self,
        facts: &'a ServerFacts,
        _key: &'a PoolKey,
        permit: Option<Permit>,
    ) -> Opening<'a> {
        Box::pin(async move {
            assert!(!self.panics.take(), "as an opening may");
            let takes = self.random.borrow_mut().below(60);
            tokio::time::sleep(Duration::from_millis(takes)).await;
            let reached = self.servers.borrow().reach(facts.id.index());
            match reached {
                // Others use the server, too.
                Reached::Yes if self.random.borrow_mut().one_in(50) => {
                    let full = ServerError::new(1040, b"08004", "Too many connections");
                    Err(BackendError::Server(full))
                }
                Reached::Yes => Ok(self.connect(facts, permit)?),
                Reached::Refused => {
                    Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?
                }
                Reached::Silence => {
                    tokio::time::sleep(TIMEOUT).await;
                    Err(BackendError::Timeout("pool.connect_timeout"))
                }
            }
        })
    }
}

/// All pools, and what they are checked by.
pub(crate) struct Connections {
    wires: Rc<Wires>,
    workers: Vec<Pools>,
    counts: Vec<Arc<ServerCount>>,
    metrics: Arc<Metrics>,
    limit: usize,
    keys: [PoolKey; 2],
    /// Which worker is to look after which server's room.
    room: Arc<Mutex<VecDeque<(usize, ServerId)>>>,
    /// The numbers of those that are lent, and to which session.
    lent: BTreeMap<u32, usize>,
    /// The numbers of those with which something went wrong.
    spoilt: BTreeSet<u32>,
}

impl Connections {
    /// With at most `limit` connections to each server.
    pub(super) fn new(
        servers: Rc<RefCell<Servers>>,
        seed: u64,
        limit: usize,
        concurrency: Limit,
    ) -> Self {
        let count = servers.borrow().all.len();
        let wires = Rc::new(Wires {
            servers,
            random: RefCell::new(Random(!seed)),
            ends: RefCell::default(),
            made: Cell::new(0),
            panics: Cell::new(false),
            state: Rc::default(),
        });
        let facts: Vec<_> = (0..count).map(|at| Arc::new(facts(at))).collect();
        let names = facts.iter().map(|facts| facts.address.to_string());
        let metrics = Arc::new(Metrics::new(WORKERS, names.collect()));
        let counts: Vec<Arc<ServerCount>> = (0..count).map(|_| Arc::default()).collect();
        let options = Arc::new(PoolOptions {
            max_connections: limit,
            concurrency,
            idle_timeout: IDLE,
            // By the real clock.
            max_lifetime: Duration::from_secs(1 << 20),
            connect_timeout: TIMEOUT,
            wait_timeout: WAIT,
            ..PoolOptions::default()
        });
        let room: Arc<Mutex<VecDeque<_>>> = Arc::default();
        let worker = |index: usize| {
            let room = room.clone();
            let wake_workers: WakeWorkers = Arc::new(move |bits: u64, server| {
                let others = (0..WORKERS).filter(|at| *at != index && bits & 1 << at != 0);
                let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
                room.extend(others.map(|at| (at, server)));
            });
            let (wires, counts) = (wires.clone(), counts.clone());
            let (options, metrics) = (options.clone(), metrics.clone());
            let pools = Pools::new(move |facts: &Arc<ServerFacts>| {
                ServerPool::new(
                    facts.clone(),
                    options.clone(),
                    wires.clone(),
                    counts[facts.id.index()].clone(),
                    index,
                    WORKERS,
                    wake_workers.clone(),
                    metrics.clone(),
                )
            });
            pools.grow(&facts);
            pools
        };
        let workers = (0..WORKERS).map(worker).collect();
        let account = Arc::new(Account::new(1, b"app", Secret::new(Vec::new())));
        let key = |has_database| PoolKey {
            account: account.clone(),
            shape: Capabilities::default(),
            tls: false,
            has_database,
            collation: 255,
        };
        Connections {
            wires,
            workers,
            counts,
            metrics,
            limit,
            keys: [key(false), key(true)],
            room,
            lent: BTreeMap::new(),
            spoilt: BTreeSet::new(),
        }
    }

    /// Where a session looks for a connection to a server: by its number, sessions are of one worker or
    /// the other, and with or without a database.
    pub(super) fn pool(&self, session: usize, server: usize) -> Rc<Pool> {
        let pools = &self.workers[session % WORKERS];
        let key = &self.keys[session / WORKERS % 2];
        pools.of(ServerId(server as u16)).pool(key)
    }

    /// Has the next connection's opening panic.
    pub(super) fn panic_next(&self) {
        self.wires.panics.set(true);
    }

    pub(super) fn state(&self) -> Rc<SessionState> {
        self.wires.state.clone()
    }

    /// How busy the servers are for a session's worker.
    pub(super) fn outstanding(&self, session: usize) -> Vec<u32> {
        let mut outstanding = Vec::new();
        self.workers[session % WORKERS].each(|_, server| outstanding.push(server.outstanding()));
        outstanding
    }

    /// The view of the servers has changed.
    pub(super) fn follow(&self, before: &Snapshot, now: &Snapshot) {
        for pools in &self.workers {
            for server in &now.servers {
                pools.follow(server.id, before, now, false);
            }
        }
    }

    /// What is closed is closed on the servers' side, too, and what a dead server had is cut.
    pub(super) fn cut(&self) {
        let servers = self.wires.servers.borrow();
        let mut ends = self.wires.ends.borrow_mut();
        ends.retain(|_, (at, _)| servers.all[*at].up);
    }

    /// Workers hear of room that others have made, until none is left to hear of.
    pub(super) fn wake_workers(&self) {
        let next = || {
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            room.pop_front()
        };
        while let Some((worker, server)) = next() {
            let pool = self.workers[worker].of(server);
            pool.give_room();
            pool.pump();
        }
    }

    /// A second has passed.
    pub(super) fn sweep(&self, seconds: u64) {
        for pools in &self.workers {
            pools.each(|_, server| server.sweep(seconds));
        }
    }

    /// A connection was lent; `found` idle, or after a wait.
    pub(super) fn lend(&mut self, session: usize, server: usize, lease: &Lease, found: bool) {
        let thread = lease.thread_id;
        assert_eq!(lease.server.index(), server, "to the server asked for");
        let other = self.lent.insert(thread, session);
        assert_eq!(other, None, "connection {thread} is lent to one at a time");
        assert!(!self.spoilt.contains(&thread), "a broken one is not lent");
        assert!(
            !found || self.wires.ends.borrow().contains_key(&thread),
            "no connection is lent that is known to be cut"
        );
    }

    /// It is given back, or closed where something went wrong with it.
    pub(super) fn give_back(&mut self, session: usize, mut lease: Lease, whole: bool) {
        let lent_to = self.lent.remove(&lease.thread_id);
        assert_eq!(lent_to, Some(session), "who has it gives it back");
        lease.broken |= !whole || !self.wires.ends.borrow().contains_key(&lease.thread_id);
        if lease.broken {
            self.spoilt.insert(lease.thread_id);
        }
        lease.give_back();
    }

    /// What holds at any time. `told` says of how many of a worker's sessions the wait for a server's
    /// connection has ended and they have not looked yet: each may have been handed one.
    pub(super) fn check(&self, told: impl Fn(usize, usize) -> usize) {
        for (at, count) in self.counts.iter().enumerate() {
            let open = count.open();
            assert!(open <= self.limit, "server {at}: {open} connections");
            let server = ServerId(at as u16);
            let mut here = 0;
            for (worker, pools) in self.workers.iter().enumerate() {
                let server = pools.of(server);
                here += server.open_here();
                let (mut waiting, mut opening, mut leased) = (0, 0, 0);
                let mut limited = false;
                server.each_pool(|pool, wait| {
                    assert!(
                        wait == 0 || pool.idle() == 0 || server.is_full(),
                        "nobody waits beside an idle connection"
                    );
                    waiting += wait;
                    // The server has just let nobody in: it is tried again in a moment.
                    limited |= wait > 0 && pool.is_limited();
                    opening += pool.opening();
                    leased += pool.leased();
                });
                assert_eq!(waiting, server.waiting_here());
                assert_eq!(leased, u64::from(server.leased()));
                let known = opening + server.idle_here() + leased as usize;
                assert!(
                    (known..=known + told(worker, at)).contains(&server.open_here()),
                    "server {at}: each of {} is idle, lent, handed over or being opened: {known}",
                    server.open_here()
                );
                assert!(
                    waiting == 0
                        || opening > 0
                        || open == self.limit
                        || server.is_full()
                        || limited,
                    "server {at}: {waiting} of worker {worker} wait, {open} are open, and nothing is done: {}",
                    self.state_of(at)
                );
            }
            assert!(open <= here, "server {at}: {open} places for {here}");
        }
    }

    fn state_of(&self, server: usize) -> String {
        let mut text = String::new();
        for (worker, pools) in self.workers.iter().enumerate() {
            pools.of(ServerId(server as u16)).each_pool(|pool, waiting| {
                text += &format!(
                    "\nworker {worker}, database {}: {} idle, {} lent, {} being opened, {waiting} wait",
                    pool.key().has_database,
                    pool.idle(),
                    pool.leased(),
                    pool.opening(),
                );
            });
        }
        text
    }

    /// Whether a connection is being opened.
    pub(super) fn is_opening(&self) -> bool {
        let mut opening = 0;
        for pools in &self.workers {
            pools.each(|_, server| server.each_pool(|pool, _| opening += pool.opening()));
        }
        opening > 0
    }

    /// What holds when all sessions are idle and no connection is being opened.
    pub(super) fn check_rest(&self) {
        assert_eq!(self.lent.len(), 0, "nobody has a connection");
        let mut ends = self.wires.ends.borrow_mut();
        ends.retain(|_, (_, end)| !Wires::is_closed(end));
        for (at, count) in self.counts.iter().enumerate() {
            let (mut here, mut idle) = (0, 0);
            for pools in &self.workers {
                let server = pools.of(ServerId(at as u16));
                assert_eq!((server.leased(), server.waiting_here()), (0, 0));
                here += server.open_here();
                idle += server.idle_here();
            }
            let really = ends.values().filter(|(server, _)| *server == at).count();
            let open = count.open();
            assert_eq!(
                (here, idle, really),
                (open, open, open),
                "server {at}: none is lost, and none forgotten"
            );
            let told = self.metrics.connections(at);
            assert_eq!(told, open as u64, "server {at}: what the metrics say");
        }
    }
}

fn facts(at: usize) -> ServerFacts {
    ServerFacts {
        id: ServerId(at as u16),
        address: Address::new("127.0.0.1".into(), 3306 + at as u16),
        family: Family::MySql,
        track: "".into(),
        tracked_by_default: "".into(),
        begins: Arc::new(Begins::unknown()),
        in_cluster: false,
        fresh: Fresh::new(Duration::from_secs(1)),
    }
}
