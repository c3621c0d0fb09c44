//! What a session is: the client's stream, what it has set, what it holds. No behaviour beyond
//! keeping these consistent; [`command`] uses them.

mod answers;
mod client;
mod command;
mod defect;
mod failover;
pub(crate) mod statement;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use millrace_backend::account::Account;
use millrace_backend::failovers::FailoverCount;
use millrace_backend::fresh::Version;
use millrace_backend::pool::{Lease, Pool, PoolKey};
use millrace_backend::stream::Stream;
use millrace_engine::image::SessionImage;
use millrace_engine::image::pinned::Cause;
use millrace_engine::state::SessionState;
use millrace_metrics::PinReason;
use millrace_protocol::Capabilities;
use millrace_routing::rules::{Selection, Who};
use millrace_routing::{Consistency, Target};
use millrace_sql::{Family, Kind, Statement};
use millrace_topology::{GtidSet, ServerId, Waits};
use smallvec::SmallVec;

use crate::error::ClientError;
use crate::error::error_packet;
use crate::login::caller::Caller;
use crate::session::statement::running::Running;
use crate::worker::Worker;
use millrace_worker::INTERVALS_MAX;
use millrace_worker::SessionSettings;
use millrace_worker::{Handle, ListenerContext};

/// The flags that shape what a server sends; a pooled connection must have the client's.
const SHAPE: Capabilities = Capabilities::FOUND_ROWS
    .union(Capabilities::LONG_FLAG)
    .union(Capabilities::NO_SCHEMA)
    .union(Capabilities::ODBC)
    .union(Capabilities::LOCAL_FILES)
    .union(Capabilities::IGNORE_SPACE)
    .union(Capabilities::INTERACTIVE)
    .union(Capabilities::MULTI_RESULTS)
    .union(Capabilities::PS_MULTI_RESULTS)
    .union(Capabilities::DEPRECATE_EOF)
    .union(Capabilities::QUERY_ATTRIBUTES)
    .union(Capabilities::STMT_BULK_OPERATIONS)
    .union(Capabilities::PROGRESS)
    .union(Capabilities::EXTENDED_METADATA);

/// Who the client is, as far as server connections depend on it.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// What the client's last proof was made for.
    pub(crate) nonce: [u8; 20],
    pub(crate) account: Arc<Account>,
    /// The handshake's collation.
    pub(crate) collation: u8,
    /// The client came over TLS.
    pub(crate) tls: bool,
    /// What else accounts ask of a client's connection.
    pub(crate) caller: Rc<Caller>,
}

/// Where a session finds its connections to a server.
#[derive(Default)]
struct Place {
    /// Without and with a default database.
    pools: [Option<Rc<Pool>>; 2],
    /// A connection that is older may have what the session's login no longer gave. Grows when the
    /// session gets a newer one: what it has lost it does not have again.
    version: Version,
}

/// The client's side of a session.
struct Client {
    stream: Stream,
    /// Bytes from the client, not yet consumed.
    inbuf: Vec<u8>,
    /// Bytes for the client that its socket did not take at once.
    pending: Vec<u8>,
    capabilities: Capabilities,
    entry: ListenerContext,
    target: Target,
    identity: Identity,
    /// COM_CHANGE_USERs that were refused.
    refused_changes: u8,
}

/// One client's session: what it has ([`SessionImage`]), and what it runs on.
pub(crate) struct Session {
    worker: Rc<Worker>,
    /// In force for the command under way.
    settings: Rc<SessionSettings>,
    handle: Rc<Handle>,
    /// The client's connection number.
    id: u32,
    client: Client,
    image: SessionImage,
    /// By server. A primary and two replicas are most common.
    pools: SmallVec<[Place; 3]>,
    /// The connection that the session keeps between statements.
    lease: Option<Lease>,
    /// The rules that can concern it.
    selection: Rc<Selection>,
    running: Running,
    /// What its login gave is what every login gave that has the same number.
    logged_in_at: u64,
}

impl Session {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        worker: Rc<Worker>,
        handle: Rc<Handle>,
        id: u32,
        stream: Stream,
        inbuf: Vec<u8>,
        capabilities: Capabilities,
        entry: ListenerContext,
        identity: Identity,
        base: Rc<SessionState>,
        database: Vec<u8>,
    ) -> Session {
        let (family, version, by_default) = worker.cluster.with_world(|world| {
            let family = world.snapshot.family.unwrap_or(Family::MySql);
            let version = world.snapshot.version_number;
            (family, version, world.tracked_by_default())
        });
        let level = entry.consistency.unwrap_or_default();
        let me = (handle.uid(), handle.saved().clone());
        let mut session = Session {
            settings: worker.settings(),
            handle,
            id,
            client: Client {
                stream,
                inbuf,
                pending: Vec::new(),
                capabilities,
                entry,
                target: entry.target,
                identity,
                refused_changes: 0,
            },
            image: SessionImage::new(me, (family, version), &by_default, base, level),
            pools: SmallVec::new(),
            lease: None,
            selection: Rc::default(),
            running: Running::new(),
            logged_in_at: 0,
            worker,
        };
        session.begin(&database);
        session
    }

    /// The state of a session that has just logged in with `database`.
    fn begin(&mut self, database: &[u8]) {
        let multi_statements = self
            .client
            .capabilities
            .contains(Capabilities::MULTI_STATEMENTS);
        self.forget_pools();
        self.logged_in_at = match self.worker.cached.get() {
            Some(_) => self.worker.cluster.login_number(),
            None => 0,
        };
        self.image.vars.base = self.worker.learnt.begun(
            &self.worker.states,
            &self.image.vars.base,
            database,
            multi_statements,
        );
        self.set_state(self.image.vars.base.clone());
        self.image.status = self.image.first_status();
        self.image.vars.was_reset = false;
        self.handle.set_heard(self.worker.tick());
        self.select_rules();
        self.image.reads.level_given = self.level_of_account();
        self.set_level(self.image.reads.level_given);
        self.image.reads.begin();
        // An application that connects anew still sees what it wrote before.
        self.note_all_written();
        self.image.reads.stale = self.worker.cluster.waits_of_primary() == Waits::Log
            && self.worker.cluster.has_untracked();
    }

    /// The rules that can concern the session as it is now. Sessions for which they are the same share
    /// one selection, so that what was remembered for one holds for the others.
    fn select_rules(&mut self) {
        let rules = &self.settings.rules;
        if rules.all().is_empty() {
            return;
        }
        let who = Who {
            account: &self.client.identity.account.user,
            database: &self.image.vars.state.database,
            address: self.handle.peer().map(|(address, _)| address),
            listener: self.client.entry.listener,
        };
        let selection = rules.select(&who);
        if selection != *self.selection {
            self.selection = self.worker.remembered.share(selection);
        }
    }

    /// Its reads must see all that was written through this process until now.
    pub(in crate::session) fn note_all_written(&mut self) {
        let worker = &self.worker;
        let bound = |set: &mut GtidSet| worker.cluster.bound(set, INTERVALS_MAX);
        let written = &worker.shared.written;
        written.add_to(
            &mut self.image.reads.position,
            &mut self.image.reads.written_seen,
            &bound,
        );
    }

    /// Its reads are guaranteed to see this from now on.
    fn set_level(&mut self, level: Consistency) {
        self.image.reads.level = level;
        self.handle.set_level(level);
    }

    /// Goes on under the settings that the worker has now.
    #[cold]
    fn take_settings(&mut self) {
        self.settings = self.worker.settings();
        self.select_rules();
    }

    /// What the configuration gives the account, else the listener, else everybody.
    fn level_of_account(&self) -> Consistency {
        let options = &self.settings.options;
        let of_account = options
            .levels
            .get(&*self.client.identity.account.user)
            .copied();
        of_account
            .or(self.client.entry.consistency)
            .unwrap_or(options.consistency)
    }

    /// Takes over a new state and what follows from it for reading statements.
    fn set_state(&mut self, state: Rc<SessionState>) {
        let moves = self.image.vars.state.database != state.database;
        self.handle.set_state(state.clone());
        let worker = &self.worker;
        let sql_mode = || worker.cluster.sql_mode();
        let ignore_space = self
            .client
            .capabilities
            .contains(Capabilities::IGNORE_SPACE);
        let read_last = &worker.learnt.read_last;
        self.image
            .vars
            .set(state, sql_mode, ignore_space, read_last);
        if moves {
            self.select_rules();
        }
        self.handle
            .set_idle_max(self.image.vars.idle_max().unwrap_or(0));
    }

    /// Changes the state by a function of it.
    fn change_state(&mut self, change: impl FnOnce(&mut SessionState)) {
        let mut state = SessionState::clone(&self.image.vars.state);
        change(&mut state);
        let state = self.worker.states.share(state);
        self.set_state(state);
    }

    /// The pool that serves this session on a server.
    fn pool(&mut self, server: ServerId) -> Rc<Pool> {
        self.pool_of(server, !self.image.vars.state.database.is_empty())
    }

    /// The pool that serves a statement of this session on a server. A session's first database is chosen on
    /// a connection that has one: on another, which cannot lose it again, the next login without a database
    /// would find nothing.
    fn pool_for(&mut self, server: ServerId, class: &Statement) -> Rc<Pool> {
        let has_database = !self.image.vars.state.database.is_empty() || class.kind == Kind::Use;
        self.pool_of(server, has_database)
    }

    fn pool_of(&mut self, server: ServerId, has_database: bool) -> Rc<Pool> {
        self.find_place(server);
        if let Some(pool) = &self.pools[server.index()].pools[usize::from(has_database)] {
            return pool.clone();
        }
        let key = PoolKey {
            has_database,
            ..self.pool_key()
        };
        let slot = &mut self.pools[server.index()].pools[usize::from(has_database)];
        let pool = self.worker.cluster.servers.of(server).pool(&key);
        *slot = Some(pool.clone());
        pool
    }

    fn find_place(&mut self, server: ServerId) {
        // Some are found after the session began.
        for at in self.pools.len()..=server.index() {
            let server = ServerId(u16::try_from(at).unwrap_or(u16::MAX));
            let facts = self.worker.cluster.servers.of(server).facts();
            self.pools.push(Place {
                version: facts.fresh.for_login(),
                ..Place::default()
            });
        }
    }

    /// The least version of the connections to a server that the session may use.
    fn version_on(&self, server: ServerId) -> Version {
        self.pools
            .get(server.index())
            .map_or(Version::MAX, |place| place.version)
    }

    /// The session has got this connection: an older one will not do from now on.
    fn note_version(&mut self, lease: &Lease) {
        if let Some(place) = self.pools.get_mut(lease.server.index())
            && place.version < lease.login.version
        {
            place.version = lease.login.version;
        }
    }

    /// What a server connection for this session must be like.
    fn pool_key(&self) -> PoolKey {
        PoolKey {
            account: self.client.identity.account.clone(),
            shape: self.client.capabilities & SHAPE,
            tls: self.client.identity.tls,
            has_database: !self.image.vars.state.database.is_empty(),
            collation: self.client.identity.collation,
        }
    }

    /// The session has just logged in: its pools are the account's, and its connections have what a
    /// login has now.
    fn forget_pools(&mut self) {
        self.pools.clear();
        let known = self.worker.cluster.servers.len();
        if let Some(last) = known.checked_sub(1) {
            self.find_place(ServerId(u16::try_from(last).unwrap_or(u16::MAX)));
        }
    }

    /// For the metrics: the client is told that its statement was not done; `server`: which was lost, if one was.
    fn count_failed(&self, server: Option<ServerId>) {
        let failovers = self.worker.shared.monitor.failovers();
        failovers.count(FailoverCount::Failed, server);
    }

    /// For the metrics: nobody can tell whether the statement under way was committed.
    fn count_unknown(&self) {
        let failovers = self.worker.shared.monitor.failovers();
        failovers.count(FailoverCount::UnknownOutcome, self.running.route.server);
    }

    fn pin(&mut self, reason: PinReason) {
        if reason == PinReason::SessionState {
            self.image.held.kept_for().hold_forever();
        }
        self.add_pin(reason);
    }

    /// Its state keeps the session's connection until the cause has ended.
    fn pin_for(&mut self, cause: Cause) {
        self.image.held.kept_for().hold(cause);
        self.add_pin(PinReason::SessionState);
    }

    /// The cause has ended, if it was in force.
    fn end_cause(&mut self, cause: Cause) {
        if self.image.held.kept_for().end(cause) {
            self.unpin(PinReason::SessionState);
        }
    }

    fn add_pin(&mut self, reason: PinReason) {
        if self.handle.pins().add(reason) {
            self.worker.metrics().pinned(reason);
        }
    }

    fn unpin(&mut self, reason: PinReason) {
        if self.handle.pins().remove(reason) {
            self.worker.metrics().unpinned(reason);
        }
    }

    fn unpin_all(&mut self) {
        for reason in self.handle.pins().clear() {
            self.worker.metrics().unpinned(reason);
        }
        self.image.held.reset();
    }
}

impl Session {
    /// The session has panicked under a command: its client is told, where nothing of an answer has gone to it.
    /// Does not wait; what the socket does not take at once is left out.
    fn tell_defect(&mut self) {
        let is_asked = self.handle.is_busy();
        if !is_asked || self.running.outcome.forwarded || !self.client.pending.is_empty() {
            return;
        }
        let answer = ClientError::defect();
        self.worker.metrics().error(answer.side, answer.class);
        let mut out = Vec::new();
        error_packet(&answer).encode(&mut out, 1);
        let sending = pin!(tokio::task::unconstrained(self.client.stream.send(&out)));
        let _ = sending.poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.unpin_all();
        if std::thread::panicking() {
            // Nothing is certain about a session that has panicked, and a second panic would end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| self.tell_defect()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::IpAddr;
    use std::os::unix::net::UnixStream;

    use millrace_backend::connect::Network;
    use millrace_backend::monitor::{Monitor, MonitorOptions};
    use millrace_backend::names::Resolver;
    use millrace_backend::questions::Questions;
    use millrace_backend::secret::Secret;
    use millrace_backend::stream::Plain;
    use millrace_backend::tcp::TcpOptions;
    use millrace_backend::tls::{ServerTls, ServerTlsFiles, ServerTlsMode};
    use millrace_metrics::{Metrics, PerServer};
    use millrace_worker::{Admission, Held, ServerKey, Shared, Shown, Written};
    use tokio::sync::mpsc;

    use super::*;

    /// What workers share that have no server.
    fn shared() -> Shared {
        let second = std::time::Duration::from_secs(1);
        let asked = MonitorOptions {
            user: String::new(),
            password: Secret::new(Vec::new()),
            interval: second,
            urgent_interval: second,
            timeout: second,
            connect_timeout: second,
            position_interval: second,
            catalogue_interval: second,
            catalogue_queries: |_| ["", "", "", ""],
            topology: millrace_topology::Options::default(),
            commit_stall: second,
            max_login_age: second,
            traffic: None,
        };
        let tls = ServerTls::new(ServerTlsMode::Disabled, &ServerTlsFiles::default());
        let network = Network {
            tls: tls.unwrap(),
            tcp: TcpOptions::default(),
            resolver: Resolver::default(),
            questions: Questions::default(),
        };
        let monitor = Monitor::new(&asked, Vec::new(), &[]);
        let (mailbox, _) = mpsc::unbounded_channel();
        let settings = SessionSettings::default();
        Shared {
            held: Arc::new(Held::new(&settings.options.failover)),
            settings,
            counts: Arc::new(PerServer::new(0)),
            accounts: Arc::default(),
            registry: Arc::default(),
            key: Arc::new(ServerKey::generate().unwrap()),
            tls: None,
            certificate: Shown::default(),
            network: Arc::new(network),
            metrics: Arc::new(Metrics::new(1, Vec::new())),
            monitor,
            written: Arc::new(Written::new(1)),
            cache: None,
            mailboxes: Arc::new(vec![mailbox]),
        }
    }

    /// A session under a command, with this stream to its client.
    fn session(worker: Rc<Worker>, handle: Rc<Handle>, client: Plain) -> Session {
        let identity = Identity {
            account: Arc::new(Account::new(1, b"app", Secret::new(Vec::new()))),
            collation: 45,
            tls: false,
            caller: Rc::new(Caller::new(&client, None)),
            nonce: [1; 20],
        };
        handle.begin_command(worker.tick());
        let capabilities = Capabilities::PROTOCOL_41;
        let (client, base) = (Stream::Plain(client), Rc::default());
        let (entry, inbuf, database) = (ListenerContext::default(), Vec::new(), Vec::new());
        Session::new(
            worker,
            handle,
            7,
            client,
            inbuf,
            capabilities,
            entry,
            identity,
            base,
            database,
        )
    }

    /// What the client of a session that panics reads, where it has seen something of its answer or not.
    fn told(forwarded: bool) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        let worker = Worker::new(0, shared());
        let (mut client, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        local.block_on(&runtime, async {
            let socket = tokio::net::UnixStream::from_std(socket).unwrap();
            socket.writable().await.unwrap();
            let serving = worker.clone();
            let ended = tokio::task::spawn_local(async move {
                let address = Some(IpAddr::from([127, 0, 0, 1]));
                let mut admission = Admission::new(serving.clone(), address);
                let handle = Rc::new(Handle::default());
                let mut session = session(serving.clone(), handle.clone(), socket.into());
                admission.enter(&handle);
                session.pin(PinReason::Transaction);
                session.running.outcome.forwarded = forwarded;
                panic!("as a session may");
            });
            assert!(ended.await.is_err_and(|error| error.is_panic()));
        });
        assert!(worker.is_deserted());
        assert_eq!(worker.shared.metrics.clients_of(0), 0);
        let mut read = Vec::new();
        client.read_to_end(&mut read).unwrap();
        read
    }

    #[test]
    fn the_client_of_a_session_that_panics_is_told() {
        let read = told(false);
        assert_eq!(read[4..7], [0xff, 0x51, 0x04], "1105");
        assert!(read.windows(6).any(|at| at == b"defect"));
        assert_eq!(told(true), b"");
    }
}
