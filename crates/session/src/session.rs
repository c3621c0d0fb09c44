//! What a session is: the client's stream, what it has set, what it holds. No behaviour beyond
//! keeping these consistent; [`crate::run`] uses them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use millrace_backend::account::Account;
use millrace_backend::fresh::Version;
use millrace_backend::pool::{Lease, Pool, PoolKey};
use millrace_backend::state::SessionState;
use millrace_backend::stream::Stream;
use millrace_backend::touched::Touching;
use millrace_metrics::PinReason;
use millrace_protocol::{Capabilities, Status};
use millrace_routing::rules::Selection;
use millrace_routing::{Consistency, Target};
use millrace_sql::{Charset, Family, Kind, LexMode, Statement};
use millrace_topology::{GtidSet, ServerId, Waits};
use smallvec::SmallVec;

use crate::caller::Caller;
use crate::consistency::Seen;
use crate::failure::Answer;
use crate::found_rows::first_found_rows;
use crate::journal::Journal;
use crate::login::error_packet;
use crate::measuring::Measuring;
use crate::messages::Message;
use crate::obey::Obeying;
use crate::pins::{Cause, KeptFor};
use crate::prelude::IdBefore;
use crate::prepared::Statements;
use crate::relay::Outcome;
use crate::rerun::Rerun;
use crate::route::Route;
use crate::variables::Private;
use crate::worker::{Entry, Handle, Worker};
use crate::written::{Concealing, INTERVALS_MAX};

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

/// The transaction a session is in, as far as no server knows of it.
#[derive(Debug, Default)]
pub(crate) enum Transaction {
    /// None, or one that the leased connection is in.
    #[default]
    None,
    /// BEGIN was answered and is sent together with the next statement.
    Deferred {
        /// The client's statement.
        text: Rc<[u8]>,
        /// READ ONLY: may run on a replica.
        read_only: bool,
    },
}

/// What the client asked session tracking for. The servers are asked for what Millrace needs;
/// the answers are cut down to this.
#[derive(Debug, Clone)]
pub(crate) struct Tracks {
    pub(crate) schema: bool,
    pub(crate) state_change: bool,
    pub(crate) gtids: bool,
    pub(crate) gtids_value: Box<[u8]>,
    /// Lower-case names; `*` for all.
    pub(crate) variables: Box<str>,
    /// The client has set one of them.
    pub(crate) changed: bool,
}

impl Tracks {
    /// As a login's: `by_default` is the server's list, empty where it is not known.
    pub(crate) fn new(family: Family, by_default: &str) -> Self {
        Tracks {
            schema: true,
            state_change: false,
            gtids: false,
            gtids_value: b"OFF".as_slice().into(),
            // Both families' default (observed); MariaDB adds nothing to it but an order.
            variables: match family {
                _ if !by_default.is_empty() => by_default,
                Family::MySql => {
                    "time_zone,autocommit,character_set_client,character_set_results,character_set_connection"
                }
                Family::MariaDb => {
                    "autocommit,character_set_client,character_set_connection,character_set_results,time_zone"
                }
            }
            .into(),
            changed: false,
        }
    }

    /// Whether the client wants to hear of a variable.
    pub(crate) fn wants(&self, name: &[u8]) -> bool {
        self.variables.split(',').any(|wanted| {
            let wanted = wanted.trim();
            wanted == "*" || wanted.as_bytes().eq_ignore_ascii_case(name)
        })
    }

    /// The SET that gives a server connection the client's own settings.
    pub(crate) fn statement(&self, family: Family) -> String {
        let on = |flag: bool| if flag { "ON" } else { "OFF" };
        let mut text = format!(
            "SET SESSION session_track_schema={},session_track_state_change={},\
             session_track_system_variables=_utf8mb4'{}'",
            on(self.schema),
            on(self.state_change),
            self.variables
        );
        if family == Family::MySql {
            text.push_str(",session_track_gtids=");
            text.push_str(&String::from_utf8_lossy(&self.gtids_value));
        }
        text
    }
}

/// Variables that decide about every statement, read once when the state changes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    /// Isolation is SERIALIZABLE: reads lock.
    pub(crate) serializable: bool,
    /// `sql_auto_is_null` is set, to whatever.
    pub(crate) names_last_row: bool,
    /// It is on: `id IS NULL` finds the row last inserted.
    pub(crate) finds_last_row: bool,
    /// Every statement opens a transaction. MySQL's flag does not say so where the global variable is
    /// off (observed on 9.7).
    pub(crate) autocommit_off: bool,
}

impl Settings {
    fn of(state: &SessionState) -> Self {
        let is_set = state.variable("sql_auto_is_null").is_some();
        let finds_last =
            state.effective("sql_auto_is_null").is_some() && !state.is_off("sql_auto_is_null");
        let isolation = ["transaction_isolation", "tx_isolation"];
        Settings {
            serializable: isolation
                .iter()
                .any(|name| state.effective(name) == Some(b"SERIALIZABLE")),
            names_last_row: is_set || finds_last,
            finds_last_row: finds_last,
            autocommit_off: state.is_off("autocommit"),
        }
    }
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

/// One client's session.
pub(crate) struct Session {
    pub(crate) worker: Rc<Worker>,
    pub(crate) handle: Rc<Handle>,
    /// The client's connection number.
    pub(crate) id: u32,
    pub(crate) client: Stream,
    /// Bytes from the client, not yet consumed.
    pub(crate) inbuf: Vec<u8>,
    /// Bytes for the client that its socket did not take at once.
    pub(crate) pending: Vec<u8>,
    pub(crate) capabilities: Capabilities,
    pub(crate) family: Family,
    pub(crate) entry: Entry,
    pub(crate) target: Target,
    pub(crate) identity: Identity,
    /// By server. A primary and two replicas are most common.
    pools: SmallVec<[Place; 3]>,
    /// What a new session with the same handshake has.
    pub(crate) base: Rc<SessionState>,
    pub(crate) state: Rc<SessionState>,
    /// What the state says that is asked for with every statement.
    pub(crate) settings: Settings,
    pub(crate) lex: LexMode,
    pub(crate) tracks: Tracks,
    pub(crate) private: Private,
    pub(crate) transaction: Transaction,
    /// What the open transaction has done so far.
    pub(crate) journal: Option<Box<Journal>>,
    /// The open transaction has lost its server: it is to be run again before anything else is.
    pub(crate) rerun: Option<Box<Rerun>>,
    /// SET TRANSACTION statements for the next transaction.
    pub(crate) one_shot: Vec<Box<[u8]>>,
    /// Such a statement has run on the leased connection and is not used up.
    pub(crate) one_shot_waits: bool,
    /// Whether they say READ ONLY or READ WRITE.
    pub(crate) one_shot_read_only: Option<bool>,
    /// The connection that the session keeps between statements.
    pub(crate) lease: Option<Lease>,
    /// Temporary tables that exist on the leased connection, as named when created.
    pub(crate) temporary_tables: Vec<Box<[u8]>>,
    /// HANDLERs that are open.
    pub(crate) handlers: u32,
    /// Counts the session's statements.
    pub(crate) seq: u64,
    /// The server of the last statement.
    pub(crate) last_server: Option<ServerId>,
    /// The connection that holds LAST_INSERT_ID(): its server, and the last statement that the
    /// session ran on it.
    pub(crate) insert_id_at: Option<(ServerId, u64)>,
    /// What that statement's OK said; LAST_INSERT_ID() is this or what it was before, because an
    /// explicit value for the column is reported and does not count.
    pub(crate) insert_id_seen: u64,
    /// What the connection had before that statement.
    pub(crate) insert_id_before: IdBefore,
    /// LAST_INSERT_ID(), where no connection holds it.
    pub(crate) last_insert_id: u64,
    /// ROW_COUNT() after the last statement.
    pub(crate) row_count: i64,
    /// FOUND_ROWS(), where it is known.
    pub(crate) found_rows: u64,
    /// It is; otherwise (after SQL_CALC_FOUND_ROWS) only the connection below has it.
    pub(crate) found_rows_known: bool,
    /// The connection that has it: only statements with rows change it.
    pub(crate) found_rows_at: Option<(ServerId, u64)>,
    /// Databases that others have dropped while the session was in them, or where it may do nothing any more.
    pub(crate) gone_databases: Vec<Box<[u8]>>,
    /// The statement that may have drawn from a sequence last.
    pub(crate) drew_at: Option<(ServerId, u64)>,
    /// Where warnings or an error can be asked for: the server, and the statement that has them.
    pub(crate) diagnostics_at: Option<(ServerId, u64)>,
    /// How many messages there were then, shown or not.
    pub(crate) warning_count: u64,
    /// The last error's code and SQLSTATE, which a saved message does not tell.
    pub(crate) last_error: Option<(u16, [u8; 5])>,
    /// What its reads are guaranteed to see, and what it began with.
    pub(crate) level: Consistency,
    pub(crate) level_given: Consistency,
    /// What a read must have seen.
    pub(crate) position: GtidSet,
    /// How much of what was written through this process is in it, by `Written`'s count.
    pub(crate) written_seen: u64,
    /// What holds while a statement runs that a rule is about.
    pub(crate) obeying: Option<Box<Obeying>>,
    /// Where the last statement went.
    pub(crate) route: Route,
    /// The rules that can concern it.
    pub(crate) selection: Rc<Selection>,
    /// Where it has read last, until it is known how far that server was.
    pub(crate) seen: Option<Seen>,
    /// In a cluster: the node that has all that the session has been shown, where that is the primary; else
    /// one that the primary may lack something of.
    pub(crate) shown_by: Option<ServerId>,
    /// How many messages the next OK counts that leaves them, where not all that there are.
    pub(crate) ok_count: Option<u16>,
    /// COM_RESET_CONNECTION has given results the server's own collation.
    pub(crate) was_reset: bool,
    /// The messages that the error about to be told is added to.
    pub(crate) kept_messages: Vec<Message>,
    /// The command under way adds to messages instead of clearing them.
    pub(crate) keeps_messages: bool,
    /// How many messages the OK under way is to count, where its server does not know.
    pub(crate) ok_warnings: Option<u16>,
    /// Why its state keeps its connection.
    pub(crate) kept_for: KeptFor,
    /// CURRENT_ROLE() before the first SET ROLE, where that was asked.
    pub(crate) login_role: Option<Option<Vec<u8>>>,
    /// What Millrace itself answers goes out in the binary protocol.
    pub(crate) answers_binary: bool,
    /// Holds while a write is under way that may not tell its position.
    pub(crate) concealing: Option<Concealing>,
    /// The statement under way defines stored code.
    pub(crate) touching: Option<Touching>,
    /// How often it has asked how far that server is.
    pub(crate) asked: u8,
    /// The server of its last read.
    pub(crate) home: Option<ServerId>,
    /// How far the primary was when the statement under way began, where that was asked.
    pub(crate) frontier: Option<Arc<GtidSet>>,
    pub(crate) position_unknown: bool,
    /// Something was written whose position was not told: it is asked for at the next chance.
    pub(crate) position_stale: bool,
    pub(crate) ends: Ends,
    /// When the statement under way was begun.
    pub(crate) statement_begun: Instant,
    /// Since when the statement has waited for nothing but its server.
    pub(crate) runs_since: Cell<Instant>,
    /// Variables that the last statement set to something that the server did not report.
    pub(crate) unreported: Vec<Box<str>>,
    /// User variables that stored code may have set in the statement under way.
    pub(crate) left_variables: Vec<Box<[u8]>>,
    /// The session has set `gtid_next` to a GTID: until its transaction ends, MySQL refuses to change what
    /// is tracked.
    pub(crate) owns_gtid: bool,
    /// Stored code may have set session variables, and the server has not told which.
    pub(crate) variables_untold: bool,
    /// The locks asked for by GET_LOCK, as SQL literals.
    pub(crate) locks: Vec<Box<str>>,
    /// Some lock's name is not known.
    pub(crate) locks_unknown: bool,
    /// What its connection measures.
    pub(crate) measuring: Measuring,
    pub(crate) statements: Statements,
    /// Status flags of the last answer.
    pub(crate) status: Status,
    /// What the last answer said besides its rows.
    pub(crate) outcome: Box<Outcome>,
}

/// What the statement under way may end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ends {
    /// It may write, and commit that by itself.
    pub(crate) writes: bool,
    /// It is of a kind that never ends a transaction.
    pub(crate) stays: bool,
}

impl Session {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        worker: Rc<Worker>,
        handle: Rc<Handle>,
        id: u32,
        client: Stream,
        inbuf: Vec<u8>,
        capabilities: Capabilities,
        entry: Entry,
        identity: Identity,
        base: Rc<SessionState>,
        database: Vec<u8>,
    ) -> Session {
        let (family, version, by_default) = worker.with_world(|world| {
            let family = match world.snapshot.family {
                Some(millrace_topology::Family::MariaDb) => Family::MariaDb,
                _ => Family::MySql,
            };
            let version = world.snapshot.version_number;
            (family, version, world.tracked_by_default())
        });
        let topology_family = match family {
            Family::MySql => millrace_topology::Family::MySql,
            Family::MariaDb => millrace_topology::Family::MariaDb,
        };
        let mut session = Session {
            settings: Settings::default(),
            state: base.clone(),
            handle,
            id,
            client,
            inbuf,
            pending: Vec::new(),
            capabilities,
            family,
            entry,
            target: entry.target,
            identity,
            pools: SmallVec::new(),
            base,
            lex: LexMode::new(family, version),
            tracks: Tracks::new(family, &by_default),
            private: Private::default(),
            transaction: Transaction::None,
            journal: None,
            rerun: None,
            one_shot: Vec::new(),
            one_shot_waits: false,
            one_shot_read_only: None,
            lease: None,
            temporary_tables: Vec::new(),
            handlers: 0,
            seq: 0,
            last_server: None,
            insert_id_at: None,
            insert_id_seen: 0,
            insert_id_before: IdBefore::Unknown,
            last_insert_id: 0,
            row_count: 0,
            found_rows: first_found_rows(family),
            gone_databases: Vec::new(),
            found_rows_known: true,
            found_rows_at: None,
            drew_at: None,
            diagnostics_at: None,
            warning_count: 0,
            last_error: None,
            level: Consistency::default(),
            level_given: entry.consistency.unwrap_or_default(),
            obeying: None,
            route: Route::default(),
            selection: Rc::default(),
            position: GtidSet::new(topology_family),
            written_seen: 0,
            seen: None,
            shown_by: None,
            kept_for: KeptFor::default(),
            login_role: None,
            asked: 0,
            concealing: None,
            touching: None,
            ok_count: None,
            was_reset: false,
            kept_messages: Vec::new(),
            keeps_messages: false,
            ok_warnings: None,
            answers_binary: false,
            home: None,
            frontier: None,
            position_unknown: false,
            position_stale: false,
            ends: Ends::default(),
            statement_begun: Instant::now(),
            runs_since: Cell::new(Instant::now()),
            unreported: Vec::new(),
            left_variables: Vec::new(),
            owns_gtid: false,
            variables_untold: false,
            locks: Vec::new(),
            locks_unknown: false,
            measuring: Measuring::default(),
            statements: Statements::new(family == Family::MariaDb),
            status: Status::AUTOCOMMIT,
            outcome: Box::default(),
            worker,
        };
        session.begin(&database);
        session
    }

    /// The state of a session that has just logged in with `database`.
    pub(crate) fn begin(&mut self, database: &[u8]) {
        let multi_statements = self.capabilities.contains(Capabilities::MULTI_STATEMENTS);
        self.forget_pools();
        self.base = self.worker.begun(&self.base, database, multi_statements);
        self.set_state(self.base.clone());
        self.status = self.first_status();
        self.was_reset = false;
        self.handle.heard.set(self.worker.tick());
        self.select_rules();
        self.level_given = self.level_of_account();
        self.set_level(self.level_given);
        (self.seen, self.home) = (None, None);
        self.shown_by = None;
        // An application that connects anew still sees what it wrote before.
        self.note_all_written();
        self.position_stale =
            self.worker.waits_of_primary() == Waits::Log && self.worker.has_hidden();
    }

    /// Its reads must see all that was written through this process until now.
    pub(crate) fn note_all_written(&mut self) {
        let worker = &self.worker;
        let bound = |set: &mut GtidSet| worker.bound(set, INTERVALS_MAX);
        let written = &worker.shared.written;
        written.add_to(&mut self.position, &mut self.written_seen, &bound);
    }

    /// The status flags before the first statement.
    pub(crate) fn first_status(&self) -> Status {
        first_status(self.family, &self.state)
    }

    /// Its reads are guaranteed to see this from now on.
    pub(crate) fn set_level(&mut self, level: Consistency) {
        self.level = level;
        self.handle.level.set(level);
    }

    /// What the configuration gives the account, else the listener, else everybody.
    fn level_of_account(&self) -> Consistency {
        let options = self.worker.options();
        let of_account = options.levels.get(&*self.identity.account.user).copied();
        of_account
            .or(self.entry.consistency)
            .unwrap_or(options.consistency)
    }

    /// Takes over a new state and what follows from it for reading statements.
    pub(crate) fn set_state(&mut self, state: Rc<SessionState>) {
        let moves = self.state.database != state.database;
        self.handle.state.set(Some(state.clone()));
        self.state = state;
        if moves {
            self.select_rules();
        }
        let state = self.state.clone();
        self.settings = Settings::of(&state);
        let charset = state.reported("character_set_client").unwrap_or(b"utf8mb4");
        self.lex.charset = Charset::from_name(charset);
        match state.effective("sql_mode") {
            Some(mode) => self.lex.set_sql_mode(mode),
            None => {
                let mode = self.worker.with_world(|world| {
                    let primary = world.snapshot.primary_view();
                    let report = primary.and_then(|view| view.report.as_ref());
                    report.map(|report| report.sql_mode.clone())
                });
                self.lex.set_sql_mode(mode.unwrap_or_default().as_bytes());
            }
        }
        self.lex.ignore_space |= self.capabilities.contains(Capabilities::IGNORE_SPACE);
        let idle_max = state
            .reported("wait_timeout")
            .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        self.handle.idle_max.set(idle_max.unwrap_or(0));
    }

    /// Changes the state by a function of it.
    pub(crate) fn change_state(&mut self, change: impl FnOnce(&mut SessionState)) {
        let mut state = SessionState::clone(&self.state);
        change(&mut state);
        let state = self.worker.states.share(state);
        self.set_state(state);
    }

    /// The pool that serves this session on a server.
    pub(crate) fn pool(&mut self, server: ServerId) -> Rc<Pool> {
        self.pool_of(server, !self.state.database.is_empty())
    }

    /// The pool that serves a statement of this session on a server. A session's first database is chosen on
    /// a connection that has one: on another, which cannot lose it again, the next login without a database
    /// would find nothing.
    pub(crate) fn pool_for(&mut self, server: ServerId, class: &Statement) -> Rc<Pool> {
        let has_database = !self.state.database.is_empty() || class.kind == Kind::Use;
        self.pool_of(server, has_database)
    }

    pub(crate) fn pool_of(&mut self, server: ServerId, has_database: bool) -> Rc<Pool> {
        self.find_place(server);
        if let Some(pool) = &self.pools[server.index()].pools[usize::from(has_database)] {
            return pool.clone();
        }
        let key = PoolKey {
            has_database,
            ..self.pool_key()
        };
        let slot = &mut self.pools[server.index()].pools[usize::from(has_database)];
        let pool = self.worker.servers.of(server).pool(&key);
        *slot = Some(pool.clone());
        pool
    }

    fn find_place(&mut self, server: ServerId) {
        // Some are found after the session began.
        for at in self.pools.len()..=server.index() {
            let server = ServerId(u16::try_from(at).unwrap_or(u16::MAX));
            let facts = self.worker.servers.of(server).facts();
            self.pools.push(Place {
                version: facts.fresh.for_login(),
                ..Place::default()
            });
        }
    }

    /// The least version of the connections to a server that the session may use.
    pub(crate) fn version_on(&self, server: ServerId) -> Version {
        self.pools
            .get(server.index())
            .map_or(Version::MAX, |place| place.version)
    }

    /// The session has got this connection: an older one will not do from now on.
    pub(crate) fn note_version(&mut self, lease: &Lease) {
        if let Some(place) = self.pools.get_mut(lease.server.index())
            && place.version < lease.version
        {
            place.version = lease.version;
        }
    }

    /// What a server connection for this session must be like.
    pub(crate) fn pool_key(&self) -> PoolKey {
        PoolKey {
            account: self.identity.account.clone(),
            shape: self.capabilities & SHAPE,
            tls: self.identity.tls,
            has_database: !self.state.database.is_empty(),
            collation: self.identity.collation,
        }
    }

    /// The session has just logged in: its pools are the account's, and its connections have what a
    /// login has now.
    fn forget_pools(&mut self) {
        self.pools.clear();
        let known = self.worker.servers.len();
        if let Some(last) = known.checked_sub(1) {
            self.find_place(ServerId(u16::try_from(last).unwrap_or(u16::MAX)));
        }
    }

    pub(crate) fn pin(&mut self, reason: PinReason) {
        if reason == PinReason::SessionState {
            self.kept_for.forever = true;
        }
        self.add_pin(reason);
    }

    /// Its state keeps the session's connection until the cause has ended.
    pub(crate) fn pin_for(&mut self, cause: Cause) {
        *self.kept_for.of(cause) = true;
        self.add_pin(PinReason::SessionState);
    }

    /// The cause has ended, if it was in force.
    pub(crate) fn end_cause(&mut self, cause: Cause) {
        let held = std::mem::take(self.kept_for.of(cause));
        if held && self.kept_for == KeptFor::default() {
            self.unpin(PinReason::SessionState);
        }
    }

    fn add_pin(&mut self, reason: PinReason) {
        if self.handle.pins.add(reason) {
            self.worker.metrics().pinned(reason);
        }
    }

    pub(crate) fn unpin(&mut self, reason: PinReason) {
        if self.handle.pins.remove(reason) {
            self.worker.metrics().unpinned(reason);
        }
    }

    pub(crate) fn unpin_all(&mut self) {
        for reason in self.handle.pins.clear() {
            self.worker.metrics().unpinned(reason);
        }
        self.temporary_tables.clear();
        self.handlers = 0;
        self.kept_for = KeptFor::default();
        self.login_role = None;
        self.locks.clear();
        self.locks_unknown = false;
        self.measuring = Measuring::default();
    }

    /// A variable is in force with a value that makes every statement open a transaction.
    pub(crate) fn autocommit_off(&self) -> bool {
        self.settings.autocommit_off || !self.status.contains(Status::AUTOCOMMIT)
    }

    /// What another session saved of this one's last statements, taken over as far as it still
    /// counts.
    pub(crate) fn collect_saved(&mut self) {
        let saved = &self.handle.saved;
        let at = |at: Option<(ServerId, u64)>| at.and_then(|(_, seq)| saved.find(seq));
        let id = at(self.insert_id_at).and_then(|saved| saved.last_insert_id);
        let rows = at(self.found_rows_at).and_then(|saved| saved.found_rows);
        if let Some(id) = id {
            self.settle_insert_id(id);
        }
        if let Some(rows) = rows {
            self.found_rows = rows;
            self.found_rows_known = true;
            self.found_rows_at = None;
        }
    }

    /// LAST_INSERT_ID() as read from the connection that holds it.
    pub(crate) fn settle_insert_id(&mut self, read: u64) {
        let changed = match self.insert_id_before {
            IdBefore::Own => true,
            IdBefore::Blank(blank) => read != blank,
            IdBefore::Unknown => read == self.insert_id_seen,
        };
        if changed {
            self.last_insert_id = read;
        }
        self.insert_id_at = None;
    }

    /// @@warning_count and @@error_count, where another session saved the messages.
    pub(crate) fn saved_message_counts(&self) -> Option<(u64, u64)> {
        let warnings = self.saved_warnings()?;
        let errors = warnings.iter().filter(|[level, ..]| **level == *b"Error");
        let shown = warnings.len() as u64;
        Some((shown.max(self.warning_count), errors.count() as u64))
    }

    /// The warnings that can be asked for, where another session saved them.
    pub(crate) fn saved_warnings(&self) -> Option<Vec<[Box<[u8]>; 3]>> {
        let (_, seq) = self.diagnostics_at?;
        self.handle.saved.find(seq)?.warnings.clone()
    }
}

/// The status flags of a session that begins with this state. MySQL's are the same whatever the global
/// `autocommit` is (observed on 9.7).
pub(crate) fn first_status(family: Family, state: &SessionState) -> Status {
    match family == Family::MariaDb && state.is_off("autocommit") {
        true => Status::empty(),
        false => Status::AUTOCOMMIT,
    }
}

impl Session {
    /// The session has panicked under a command: its client is told, where nothing of an answer has gone to it.
    /// Does not wait; what the socket does not take at once is left out.
    fn tell_defect(&mut self) {
        let is_asked = self.handle.busy_since.get() != 0;
        if !is_asked || self.outcome.forwarded || !self.pending.is_empty() {
            return;
        }
        let answer = Answer::defect();
        self.worker.metrics().error(answer.side, answer.class);
        let mut out = Vec::new();
        error_packet(&answer).encode(&mut out, 1);
        let sending = pin!(tokio::task::unconstrained(self.client.send(&out)));
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

    use millrace_backend::secret::Secret;
    use millrace_backend::stream::Plain;

    use super::*;
    use crate::admission::{Admission, tests::shared};

    /// A session under a command, with this stream to its client.
    fn session(worker: Rc<Worker>, handle: Rc<Handle>, client: Plain) -> Session {
        let identity = Identity {
            account: Arc::new(Account::new(1, b"app", Secret::new(Vec::new()))),
            collation: 45,
            tls: false,
            caller: Rc::new(Caller::new(&client, None)),
            nonce: [1; 20],
        };
        handle.busy_since.set(worker.tick());
        let capabilities = Capabilities::PROTOCOL_41;
        let (client, base) = (Stream::Plain(client), Rc::default());
        let (entry, inbuf, database) = (Entry::default(), Vec::new(), Vec::new());
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
                session.outcome.forwarded = forwarded;
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
