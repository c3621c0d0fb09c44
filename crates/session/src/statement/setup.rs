//! What goes ahead of a statement, in the same write: what the session before may still ask about
//! is saved, then the connection is given the session's state, variables and transaction.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use millrace_backend::conn::{SAVE_NUMBERS, number, warnings};
use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::books::BLANK_ID;
use millrace_engine::image::transaction::Transaction;
use millrace_engine::image::user_variables::{self, Named};
use millrace_engine::request::{Request, Task};
use millrace_engine::state::{self, SessionState};
use millrace_metrics::{PinReason, PositionWait, Side};
use millrace_protocol::command::COM_SET_OPTION;
use millrace_protocol::packet;
use millrace_protocol::response::Expect;
use millrace_protocol::resultset::first_value;
use millrace_sql::{Access, Flags, Kind, Statement, Traits};
use millrace_topology::{GtidSet, Waits};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::worker::Handle;

/// A command of Millrace's own ahead of the statement, by how its answer is used.
pub(crate) enum Step {
    /// An answer without interest.
    Plain(Expect),
    /// A part of the session's state is set.
    State(Expect),
    /// The database of a state is chosen.
    Database(Rc<SessionState>),
    /// A PREPARE of the session's, which may compile no more: that is told to whoever executes it.
    Named(Box<[u8]>),
    /// The PREPARE of the statement that the request executes. Where it compiles no more, that is the request's error,
    /// and the connection is as it was.
    Executed(Box<[u8]>),
    /// SHOW WARNINGS for the session that used the connection before.
    SaveWarnings(Rc<Handle>, u64),
    /// LAST_INSERT_ID() and FOUND_ROWS() for that session.
    SaveNumbers(Rc<Handle>, u64),
    /// The wait for a position. In a cluster for all that this process had counted then.
    Wait(Option<u64>),
}

/// Commands ahead of the statement.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) bytes: Vec<u8>,
    pub(crate) steps: Vec<Step>,
    /// One of them can fail, and then a statement that writes must not follow.
    pub(crate) doubtful: bool,
    /// A transaction is begun.
    pub(crate) begins: bool,
    /// What is proven not to fail on the server once the steps have succeeded.
    pub(crate) proofs: Vec<u64>,
}

/// A causal wait, of a cluster's node. Without WSREP_SYNC_WAIT_UPTO_GTID: with a binary log it answers
/// before what it waits for is visible (observed on 10.11, in 11 of 11,116 reads), and it takes whole seconds
/// only.
const CAUSAL_WAIT: &str = "SET STATEMENT wsrep_sync_wait=1 FOR SELECT 0 LIMIT 1";

impl Session {
    /// Everything that must be said to the connection before the statement.
    pub(crate) async fn setup(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<Setup, BackendError> {
        let mut setup = Setup::default();
        let uid = self.handle.uid;
        let own = lease
            .books
            .holds(uid, self.image.last.diagnosed(request.class));
        if own && matches!(request.class.kind, Kind::Diagnostics | Kind::Ping) {
            // Anything before it would be what it tells about, but for a BEGIN that is put off: on
            // MariaDB it leaves messages, and on MySQL there are none after it (observed).
            self.open_transaction(lease, request.class, &mut setup);
            return Ok(setup);
        }
        if request.class.kind == Kind::SetRole && self.may_ask_role() {
            Box::pin(self.ask_role(lease)).await?;
        }
        if lease.books.is_missed_by_other(uid) {
            self.save_unread(lease, &mut setup);
        }
        if self.needs_private(request) {
            let named = self.executed(request);
            let closes = request.class.kind == Kind::Deallocate;
            let named = named.as_deref().map(|name| (name, closes));
            self.restore_private(lease, named, &mut setup);
        }
        self.adjust_tracking(lease, request.class, &mut setup);
        if wait {
            self.wait_for_position(lease, &mut setup);
        }
        let mut target = self.image.vars.state.clone();
        if request.class.kind == Kind::Use && target.database != lease.state.database {
            // The one that the session leaves may be gone.
            let mut other = SessionState::clone(&target);
            other.database = lease.state.database.clone();
            target = self.worker.states.share(other);
        }
        if !self.image.vars.gone_databases.is_empty() {
            target = self.placed(lease, &target, |session| session.needs_database(request));
        }
        self.apply_state(lease, &target, &mut setup);
        if request.class.kind == Kind::Multi && !target.multi_statements {
            // Who did not ask for several statements is protected from them, whatever the connection is
            // taken for.
            packet::frame(&mut setup.bytes, 0, &[COM_SET_OPTION, 1, 0]);
            setup.steps.push(Step::Plain(Expect::SetOption));
        }
        let held_insert_id = self.image.last.insert_id.at.is_some();
        if self.needs_insert_id(request) && !self.keeps_insert_id(lease, request) {
            let uses_found_rows = request.class.flags.contains(Flags::USES_FOUND_ROWS);
            if uses_found_rows && held_insert_id && !self.image.last.found_rows.known {
                // To read the one changes the other.
                Box::pin(self.save_own_diagnostics(lease)).await;
            }
            Box::pin(self.restore_insert_id(lease, &mut setup)).await?;
        }
        let clears = self.sees_old_messages(lease, request);
        if clears {
            if lease.books.is_of(uid) && lease.books.unread().found_rows {
                // What clears them counts a row.
                Box::pin(self.save_own_diagnostics(lease)).await;
            }
            setup.query(lease, CLEAR_DIAGNOSTICS.as_bytes());
        }
        // After what clears messages, which counts too.
        let counts = Flags::USES_FOUND_ROWS | Flags::USES_ROW_COUNT;
        if request.class.flags.intersects(counts) {
            let asked = clears || (held_insert_id && self.image.last.insert_id.at.is_none());
            self.restore_counts(lease, request.class, asked, &mut setup);
        }
        if !request.prepares() {
            self.open_transaction(lease, request.class, &mut setup);
        }
        Ok(setup)
    }

    /// The wait for the position that the session's reads must see.
    pub(crate) fn wait_for_position(&self, lease: &Lease, setup: &mut Setup) {
        // Before it is sent: what is counted later may be committed later.
        let counted = (self.worker.cluster.waits_of(lease.server) == Waits::Cluster)
            .then(|| self.worker.shared.written.counted());
        // A write must not follow a wait that was in vain.
        setup.doubtful |= counted.is_some();
        let text = match counted {
            Some(_) => CAUSAL_WAIT.to_owned(),
            None => self.wait_statement(),
        };
        lease.frame_query(&mut setup.bytes, text.as_bytes());
        setup.steps.push(Step::Wait(counted));
    }

    /// A statement that answers 0 when the server has what the session's reads must see.
    fn wait_statement(&self) -> String {
        let seconds = f64::from(self.settings.options.routing.wait_limit_ms) / 1000.0;
        // The connection's collation may still be another session's: with utf16 a bare literal
        // would be an empty set, which every server has.
        match self.required() {
            GtidSet::MySql(set) => {
                format!("SELECT WAIT_FOR_EXECUTED_GTID_SET(_utf8mb4'{set}',{seconds}) LIMIT 1")
            }
            GtidSet::MariaDb(set) => {
                format!("SELECT MASTER_GTID_WAIT(_utf8mb4'{set}',{seconds}) LIMIT 1")
            }
            GtidSet::Log(position) => {
                let (file, offset) = position.coordinates().unwrap_or_default();
                // 8.0.26 renamed the function.
                let version = self
                    .worker
                    .cluster
                    .with_world(|world| world.snapshot.version_number);
                let function = match version >= 80_026 {
                    true => "SOURCE_POS_WAIT",
                    false => "MASTER_POS_WAIT",
                };
                let file = file.replace(['\'', '\\'], "");
                format!("SELECT IF({function}(_utf8mb4'{file}',{offset},{seconds})>=0,0,1) LIMIT 1")
            }
            GtidSet::Cluster(_) => CAUSAL_WAIT.to_owned(),
        }
    }

    /// The answer to a wait. A cluster's node has a limit of its own, of 30 seconds.
    async fn settle_wait(
        &mut self,
        lease: &mut Lease,
        counted: Option<u64>,
    ) -> Result<(), BackendError> {
        const LEAST_MS: u64 = 10;
        let primary = self.worker.cluster.primary();
        let on_primary = primary == Some(lease.server);
        let reading = lease.read_answer(Expect::Query);
        let Some(counted) = counted else {
            let answer = reading.await;
            self.note_wait(lease, answer)?;
            self.worker.cluster.reached_on(lease, self.required());
            return Ok(());
        };
        let limit = match self.settings.options.routing.wait_limit_ms {
            // There is nobody else to turn to: its own limit holds.
            _ if on_primary => u64::from(u32::MAX),
            limit => LEAST_MS.max(limit.into()),
        };
        let limit = Duration::from_millis(limit);
        let answer = tokio::time::timeout(limit, reading).await;
        self.running.route.overdue = answer.is_err();
        let late = || Err(BackendError::Timeout("routing.wait_limit"));
        let answer = answer.unwrap_or_else(|_| late());
        self.note_wait(lease, answer)?;
        let reached = GtidSet::Cluster(counted);
        self.worker.cluster.reached_on(lease, &reached);
        self.image.reads.shown_by = Some(lease.server);
        Ok(())
    }

    /// Whether a wait has ended with what was waited for.
    fn note_wait(
        &self,
        lease: &Lease,
        answer: Result<Vec<u8>, BackendError>,
    ) -> Result<(), BackendError> {
        let server = lease.server;
        let metrics = self.worker.metrics();
        let reached = match answer {
            Ok(answer) => first_value(&answer, lease.capabilities) == Some(b"0"),
            Err(BackendError::Timeout(_)) => false,
            Err(error) => {
                metrics.position_wait(server.index(), PositionWait::Failed);
                return Err(error);
            }
        };
        if !reached {
            metrics.position_wait(server.index(), PositionWait::TimedOut);
            self.worker.cluster.set_behind(server);
            return Err(BackendError::Timeout("routing.wait_limit"));
        }
        metrics.position_wait(server.index(), PositionWait::Reached);
        Ok(())
    }

    /// Brings the connection to `target`, unless it is there.
    pub(crate) fn apply_state(
        &self,
        lease: &mut Lease,
        target: &Rc<SessionState>,
        setup: &mut Setup,
    ) {
        if Rc::ptr_eq(&lease.state, target) {
            return;
        }
        let mut steps = Vec::new();
        let before = setup.bytes.len();
        let attributes = lease.has_attributes();
        state::difference(
            &lease.state,
            target,
            attributes,
            &mut setup.bytes,
            &mut steps,
        );
        for step in steps {
            setup.doubtful |= match step {
                state::Step::Set => {
                    let proof = hash(lease, &setup.bytes[before..]);
                    setup.proofs.push(proof);
                    !self.worker.learnt.is_proven(proof)
                }
                // The database may be gone.
                state::Step::Database => true,
                state::Step::Option => false,
            };
            setup.steps.push(match step {
                state::Step::Set => Step::State(Expect::Query),
                state::Step::Database => Step::Database(target.clone()),
                state::Step::Option => Step::Plain(Expect::SetOption),
            });
        }
        let mut reached = SessionState::clone(target);
        if target.database.is_empty() {
            reached.database = lease.state.database.clone();
        }
        lease.state = if reached == **target {
            target.clone()
        } else {
            self.worker.states.share(reached)
        };
    }

    /// Asks what the session before may still want to know, and keeps it for that session.
    pub(crate) fn save_unread(&self, lease: &mut Lease, setup: &mut Setup) {
        if let Some(owner) = self.worker.session(lease.books.last_user()) {
            // First the warnings: any other statement clears them.
            if lease.books.unread().diagnostics {
                lease.frame_query(&mut setup.bytes, b"SHOW WARNINGS");
                setup
                    .steps
                    .push(Step::SaveWarnings(owner.clone(), lease.books.last_seq()));
            }
            lease.frame_query(&mut setup.bytes, SAVE_NUMBERS.as_bytes());
            lease.books.set_insert_id(BLANK_ID);
            let seq = lease.books.last_seq();
            setup.steps.push(Step::SaveNumbers(owner, seq));
        }
        if lease.books.unread().diagnostics {
            setup.query(lease, CLEAR_DIAGNOSTICS.as_bytes());
        }
        if setup.steps.is_empty() {
            // Its last user is gone: nobody waits for this.
            lease.books.saved();
        }
        lease.books.handed_over();
    }

    /// Saves what the session before may still want to know, before the connection is reset.
    pub(crate) async fn save_for_last_user(&mut self, lease: &mut Lease) {
        if !lease.books.is_missed_by_other(self.handle.uid) {
            return;
        }
        let mut setup = Setup::default();
        self.save_unread(lease, &mut setup);
        lease.broken |= self.run_steps(lease, &mut setup).await.is_err();
    }

    /// Whether user variables and SQL-level prepared statements matter to the statement: it
    /// names some, or may run stored code that does.
    pub(super) fn needs_private(&self, request: &Request<'_>) -> bool {
        let names = Flags::READS_USER_VARS | Flags::ASSIGNS_USER_VARS;
        let class = request.class;
        class.flags.intersects(names)
            || self.may_keep(class)
            || !class.functions.is_empty()
            || class.is(Traits::USES_PRIVATE)
            // Settings that a replica made (@source_binlog_checksum and its kin) must be there.
            || request.task == Task::Replicate
            || (request.access == Access::Write
                && self.worker.cluster.catalogue().triggers().user_variables)
    }

    /// Whether the connection may come to be kept after the statement, and must then be right for
    /// whatever follows.
    fn may_keep(&self, class: &Statement) -> bool {
        let keeps = Flags::ACQUIRES_USER_LOCK | Flags::CREATES_TEMP_TABLE | Flags::SEQUENCE;
        self.image.tx.is_deferred()
            || self.image.autocommit_off()
            || class.flags.intersects(keeps)
            || !class.is(Traits::LEAVES_NOTHING)
    }

    /// The SQL-level prepared statement that the request executes or closes, by name.
    fn executed(&self, request: &Request<'_>) -> Option<Box<[u8]>> {
        if !matches!(request.class.kind, Kind::Execute { .. } | Kind::Deallocate) {
            return None;
        }
        let (name, text) = (request.class.name?, self.text_of(request)?);
        Some(user_variables::variable_name(name.name.of(&text)))
    }

    /// Gives the connection the session's user variables and SQL-level prepared statements. `named`: the one that
    /// is executed, or closed (true); what has become of the others is told when they are.
    pub(crate) fn restore_private(
        &mut self,
        lease: &mut Lease,
        named: Option<(&[u8], bool)>,
        setup: &mut Setup,
    ) {
        let uid = self.handle.uid;
        let private = &self.image.vars.private;
        let current = lease.books.holds_variables(uid, private.version);
        let lacks_named = named.is_some_and(|(name, _)| private.lacks(name));
        if private.is_empty() || (current && !lacks_named) {
            return;
        }
        // EXECUTE … needs the variables as well, so they come first.
        if !current && let Some(text) = private.assignment() {
            // Their names and values were read in the session's own character set.
            let target = self.placed(lease, &self.image.vars.state.clone(), |_| false);
            self.apply_state(lease, &target, setup);
            setup.query(lease, &text);
        }
        let private = &self.image.vars.private;
        let is_named = |other: &[u8]| named.is_some_and(|(name, _)| *name == *other);
        let wanted = |statement: &&Named| match is_named(&statement.name) {
            true => true,
            false => !current && !statement.is_refused,
        };
        let closes = named.is_some_and(|(_, closes)| closes);
        let prepared = |statement: &Named| {
            let is_named = is_named(&statement.name);
            let text = match is_named && closes {
                // It may compile no more, and only its name is needed.
                true => anything_named(&statement.name).into(),
                false => statement.text.clone(),
            };
            let name = statement.name.clone();
            (text, name, statement.context.clone(), is_named)
        };
        let all: Vec<_> = private
            .statements
            .iter()
            .filter(wanted)
            .map(prepared)
            .collect();
        for (text, name, mut context, is_named) in all {
            if is_named && closes {
                // Only its name is needed, wherever the connection is.
                context = self.placed(lease, &context, |_| false);
            } else if !is_named && self.is_gone(&context) {
                // In another database it would mean other tables. It is told to whoever executes it.
                self.image.vars.private.note_refused(&name, true);
                continue;
            }
            self.apply_context(lease, &context, setup);
            lease.frame_query(&mut setup.bytes, &text);
            setup.steps.push(match is_named {
                true => Step::Executed(name),
                false => Step::Named(name),
            });
        }
        let version = self.image.vars.private.version;
        lease.books.set_variables(uid, Some(version));
    }

    /// Sets what a statement is to be prepared under, which was prepared under `context`.
    pub(crate) fn apply_context(
        &self,
        lease: &mut Lease,
        context: &Rc<SessionState>,
        setup: &mut Setup,
    ) {
        match context.to_prepare_in(&self.image.vars.state) {
            Some(context) => {
                let context = self.worker.states.share(context);
                self.apply_state(lease, &context, setup);
            }
            None => self.apply_state(lease, context, setup),
        }
    }

    /// Statements that show session variables see the client's own tracking settings, all
    /// others run with Millrace's.
    fn adjust_tracking(&self, lease: &mut Lease, class: &Statement, setup: &mut Setup) {
        let shows = Flags::MENTIONS_SESSION_TRACK | Flags::SHOWS_VARIABLES;
        let wanted = class.flags.intersects(shows);
        if self.handle.pins.has(PinReason::Transaction) {
            // Some of them cannot be set in a transaction (1766).
            return;
        }
        if wanted && self.image.vars.owns_gtid {
            // Refused (3138), and the connection with what was set on it would be lost.
            return;
        }
        let is_own = lease.books.tracks_for(self.handle.uid);
        if wanted && is_own {
            return;
        }
        // In a transaction they could not be set back before the COMMIT, which is to say what was written.
        if !wanted || self.image.tx.is_deferred() {
            return self.track_again(lease, setup);
        }
        let text = self.image.vars.tracks.statement(lease.family);
        setup.query(lease, text.as_bytes());
        lease.books.set_tracks_for(self.handle.uid);
    }

    /// Has a connection tell what Millrace needs to know, where a client set that otherwise.
    pub(crate) fn track_again(&self, lease: &mut Lease, setup: &mut Setup) {
        if lease.books.tracks_for_a_session() {
            let facts = lease.server_facts();
            let text = millrace_backend::conn::Conn::tracking_statement(lease.family, &facts.track);
            setup.query(lease, text.as_bytes());
            lease.books.set_tracks_for_millrace();
        }
    }

    /// The deferred BEGIN and SET TRANSACTION. They stay with the session until the statement
    /// has been answered, for it may have to be tried elsewhere.
    fn open_transaction(&self, lease: &mut Lease, class: &Statement, setup: &mut Setup) {
        if self.opens_transaction(class) {
            for text in &self.image.tx.next {
                lease.one_shot = true;
                setup.query(lease, text);
            }
        }
        if let Transaction::Deferred { text, .. } = &self.image.tx.state {
            setup.begins = true;
            setup.query(lease, text);
        }
    }

    /// SET TRANSACTION is for the next transaction; a statement that reads no table and writes
    /// nothing begins none.
    pub(super) fn opens_transaction(&self, class: &Statement) -> bool {
        self.image.tx.is_deferred()
            || !class.tables.is_empty()
            || class.is(Traits::OPENS_TRANSACTION)
    }

    /// Sends the setup alone and waits until the server has agreed.
    pub(super) async fn confirm(
        &mut self,
        lease: &mut Lease,
        setup: &mut Setup,
    ) -> Result<Result<(), ClientError>, Abort> {
        match self.run_steps(lease, setup).await {
            Ok(()) => Ok(Ok(())),
            Err(error) => {
                let is_own = std::mem::take(&mut self.running.route.prepare_refused);
                // Else the connection's state is not what its record says.
                lease.broken |= !is_own;
                let answer = ClientError::backend(error);
                match answer.side {
                    _ if is_own => Ok(Err(answer)),
                    _ if answer.passing => Ok(Err(answer)),
                    _ if self.lease_is_kept() => Err(Abort::Fatal(answer)),
                    // Another connection may do, or the session is without it from now on.
                    _ if self.running.route.state_refused => Ok(Err(answer)),
                    _ if self.running.route.database_refused.is_some() => Ok(Err(answer)),
                    // The primary's word may be another.
                    _ if self.may_be_late(lease.server, &answer) => Ok(Err(answer)),
                    // No other server would take a write: the client gets the server's word.
                    Side::Server => Err(Abort::Error(answer)),
                    _ => Ok(Err(answer)),
                }
            }
        }
    }

    pub(crate) async fn run_steps(
        &mut self,
        lease: &mut Lease,
        setup: &mut Setup,
    ) -> Result<(), BackendError> {
        lease.send(&setup.bytes, setup.steps.len()).await?;
        setup.bytes.clear();
        setup.doubtful = false;
        let mut refused = None;
        for step in std::mem::take(&mut setup.steps) {
            let is_executed = matches!(step, Step::Executed(_));
            match self.settle_step(lease, step).await {
                Ok(()) => {}
                Err(error @ BackendError::Server(_)) if is_executed => refused = Some(error),
                Err(error) => {
                    // That one counts: answers are unread, or the state is not what its record says.
                    self.running.route.prepare_refused = false;
                    return Err(error);
                }
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        self.worker.learnt.prove(std::mem::take(&mut setup.proofs));
        Ok(())
    }

    pub(crate) async fn settle(
        &mut self,
        lease: &mut Lease,
        step: Step,
    ) -> Result<(), ClientError> {
        let leaves_state = matches!(step, Step::Wait(_) | Step::Executed(_));
        self.settle_step(lease, step).await.map_err(|error| {
            if !leaves_state {
                // The connection's state is not what its record says.
                lease.broken = true;
            }
            ClientError::backend(error)
        })
    }

    pub(super) async fn settle_step(
        &mut self,
        lease: &mut Lease,
        step: Step,
    ) -> Result<(), BackendError> {
        match step {
            Step::Plain(expect) => {
                lease.read_answer(expect).await?;
            }
            Step::State(expect) => {
                let answer = lease.read_answer(expect).await;
                self.running.route.state_refused |= matches!(answer, Err(BackendError::Server(_)));
                answer?;
            }
            Step::Database(state) => {
                let answer = lease.read_answer(Expect::Simple).await;
                if let Err(BackendError::Server(_)) = answer {
                    self.running.route.database_refused = Some(state);
                }
                answer?;
            }
            Step::Named(name) => match lease.read_answer(Expect::Query).await {
                // Whoever executes it is told.
                Err(BackendError::Server(_)) => {
                    self.image.vars.private.note_refused(&name, true);
                }
                answer => drop(answer?),
            },
            Step::Executed(name) => {
                let answer = lease.read_answer(Expect::Query).await;
                let is_refused = matches!(answer, Err(BackendError::Server(_)));
                if self.image.vars.private.note_refused(&name, is_refused) && answer.is_ok() {
                    // Connections that were left without it are to get it.
                    let version = self.image.vars.private.version;
                    lease.books.set_variables(self.handle.uid, Some(version));
                }
                self.running.route.prepare_refused |= is_refused;
                answer?;
            }
            Step::SaveWarnings(owner, seq) => {
                let rows = Box::pin(lease.read_rows()).await?;
                owner.saved.keep(seq).warnings = Some(warnings(rows));
            }
            Step::SaveNumbers(owner, seq) => {
                let rows = Box::pin(lease.read_rows()).await?;
                let mut saved = owner.saved.keep(seq);
                saved.last_insert_id = number(&rows, 0);
                saved.found_rows = number(&rows, 1);
                lease.books.saved();
            }
            Step::Wait(counted) => Box::pin(self.settle_wait(lease, counted)).await?,
        }
        Ok(())
    }
}

/// Leaves nothing for SHOW WARNINGS on either family: MariaDB keeps the old messages over
/// statements that read no table (observed).
pub(super) const CLEAR_DIAGNOSTICS: &str = "DO (SELECT 1 FROM (SELECT 1) x)";

/// A PREPARE of a statement of that name that always compiles.
fn anything_named(name: &[u8]) -> Vec<u8> {
    let mut text = b"PREPARE `".to_vec();
    for byte in name {
        text.extend(std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'`')));
    }
    text.extend_from_slice(b"` FROM 'DO 1'");
    text
}

/// Of what was set on a connection, as far as it proves that it can be set on another.
fn hash(lease: &Lease, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    // A privilege may have been taken away since an older one.
    (lease.server, lease.login.version).hash(&mut hasher);
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Setup {
    pub(crate) fn query(&mut self, lease: &Lease, text: &[u8]) {
        lease.frame_query(&mut self.bytes, text);
        self.steps.push(Step::Plain(Expect::Query));
    }
}
