//! What goes ahead of a statement, in the same write: what the session before may still ask about
//! is saved, then the connection is given the session's state, variables and transaction.

use std::rc::Rc;

use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::image::user_variables::{self, Named};
use millrace_engine::request::{Request, Task};
use millrace_engine::state::SessionState;
use millrace_metrics::{PinReason, Side};
use millrace_protocol::command::COM_SET_OPTION;
use millrace_protocol::packet;
use millrace_protocol::response::Expect;
use millrace_sql::{Access, Flags, Kind, Statement, Traits};
use millrace_topology::{GtidSet, Waits};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::steps::{CLEAR_DIAGNOSTICS, Setup, Step};

/// So long a group's new primary has to apply what it has received; seconds.
const APPLIED_WITHIN: f64 = 30.0;

/// A causal wait, of a cluster's node. Without WSREP_SYNC_WAIT_UPTO_GTID: with a binary log it answers
/// before what it waits for is visible (observed on 10.11, in 11 of 11,116 reads), and it takes whole seconds
/// only. With dirty reads, which the session before may have asked for, there would be no wait.
const CAUSAL_WAIT: &str =
    "SET STATEMENT wsrep_sync_wait=1,wsrep_dirty_reads=0 FOR SELECT 0 LIMIT 1";

impl Session {
    /// Everything that must be said to the connection before the statement.
    pub(in crate::session) async fn setup(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<Setup, BackendError> {
        let mut setup = Setup::default();
        let uid = self.handle.uid();
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
            setup.steps.push(Step::Own(Expect::SetOption));
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
            setup.own_query(lease, CLEAR_DIAGNOSTICS.as_bytes());
        }
        // After what clears messages, which counts too.
        let counts = Flags::USES_FOUND_ROWS | Flags::USES_ROW_COUNT;
        if request.class.flags.intersects(counts) {
            let asked = clears || (held_insert_id && self.image.last.insert_id.at.is_none());
            self.restore_counts(lease, request.class, asked, &mut setup);
        }
        if !request.prepares() {
            self.open_transaction(lease, request.class, &mut setup);
        } else if request.access >= Access::PrimaryRead {
            // What may not be run is refused when it is prepared.
            self.say_next(lease, &mut setup);
        }
        Ok(setup)
    }

    /// The wait for the position that the session's reads must see.
    pub(in crate::session) fn wait_for_position(&self, lease: &Lease, setup: &mut Setup) {
        // Before it is sent: what is counted later may be committed later.
        let counted = (self.worker.cluster.waits_of(lease.server) == Waits::Cluster)
            .then(|| self.worker.shared.written.counted());
        // A write must not follow a wait that was in vain.
        let on_primary = self.worker.cluster.is_primary(lease.server);
        setup.doubtful |= counted.is_some() || on_primary;
        let text = match counted {
            Some(_) => CAUSAL_WAIT.to_owned(),
            None => self.wait_statement(on_primary),
        };
        lease.frame_query(&mut setup.bytes, text.as_bytes());
        setup.steps.push(Step::Wait(counted));
    }

    /// A statement that answers 0 when the server has what the session's reads must see.
    fn wait_statement(&self, on_primary: bool) -> String {
        let seconds = match on_primary {
            // A group's new one. There is nobody else to turn to.
            true => APPLIED_WITHIN,
            false => f64::from(self.settings.options.routing.wait_limit_ms) / 1000.0,
        };
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

    /// Whether user variables and SQL-level prepared statements matter to the statement: it
    /// names some, or may run stored code that does.
    pub(super) fn needs_private(&self, request: &Request<'_>) -> bool {
        let names = Flags::READS_USER_VARS | Flags::ASSIGNS_USER_VARS;
        let class = request.class;
        class.flags.intersects(names)
            || self.may_keep(class)
            || !class.functions.is_empty()
            || class.is(Traits::USES_PRIVATE)
            // DROP of the session's own database keeps the connection, see `fold_variables`.
            || (class.kind == Kind::Ddl && class.tables.is_empty())
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
    pub(in crate::session) fn restore_private(
        &mut self,
        lease: &mut Lease,
        named: Option<(&[u8], bool)>,
        setup: &mut Setup,
    ) {
        let uid = self.handle.uid();
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
            } else if !is_named && (self.is_gone(&context) || self.chooses_database(&context)) {
                // In another database it would mean other tables, and there is no way back to none. It is told to
                // whoever executes it.
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
    pub(in crate::session) fn apply_context(
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
        if self.handle.pins().has(PinReason::Transaction) {
            // Some of them cannot be set in a transaction (1766).
            return;
        }
        if wanted && self.image.vars.owns_gtid {
            // Refused (3138), and the connection with what was set on it would be lost.
            return;
        }
        let is_own = lease.books.tracks_for(self.handle.uid());
        if wanted && is_own {
            return;
        }
        // In a transaction they could not be set back before the COMMIT, which is to say what was written.
        if !wanted || self.image.tx.is_deferred() {
            return self.track_again(lease, setup);
        }
        let text = self.image.vars.tracks.statement(lease.family);
        setup.query(lease, text.as_bytes());
        lease.books.set_tracks_for(self.handle.uid());
    }

    /// Has a connection tell what Millrace needs to know, where a client set that otherwise.
    pub(in crate::session) fn track_again(&self, lease: &mut Lease, setup: &mut Setup) {
        if lease.books.tracks_for_a_session() {
            let facts = lease.server_facts();
            let text = millrace_backend::conn::Conn::tracking_statement(lease.family, &facts.track);
            setup.own_query(lease, text.as_bytes());
            lease.books.set_tracks_for_millrace();
        }
    }

    /// The deferred BEGIN and SET TRANSACTION. They stay with the session until the statement
    /// has been answered, for it may have to be tried elsewhere.
    fn open_transaction(&self, lease: &mut Lease, class: &Statement, setup: &mut Setup) {
        if self.takes_next(class) {
            self.say_next(lease, setup);
        }
        if let Some(begin) = self.image.tx.deferred() {
            setup.begins = true;
            setup.query(lease, &begin.text);
        }
    }

    /// What SET TRANSACTION said.
    fn say_next(&self, lease: &mut Lease, setup: &mut Setup) {
        for text in self.image.tx.next() {
            lease.one_shot = true;
            setup.query(lease, text);
        }
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
}

/// A PREPARE of a statement of that name that always compiles.
fn anything_named(name: &[u8]) -> Vec<u8> {
    let mut text = b"PREPARE `".to_vec();
    for byte in name {
        text.extend(std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'`')));
    }
    text.extend_from_slice(b"` FROM 'DO 1'");
    text
}
