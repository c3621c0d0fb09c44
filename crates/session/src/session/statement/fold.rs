//! After a statement: takes in what it changed, as far as the server said so and the statement's
//! text lets expect, and gives the connection back or keeps it, with the reason.

use millrace_backend::pool::Lease;
use millrace_engine::image::Ran;
use millrace_engine::image::pinned::Cause;
use millrace_engine::image::user_variables::{self, Named};
use millrace_engine::outcome::Outcome;
use millrace_engine::refusals::{Meaning, meaning};
use millrace_engine::request::Request;
use millrace_metrics::PinReason;
use millrace_protocol::{Capabilities, ServerError, Status};
use millrace_sql::ident::unquote_ident;
use millrace_sql::{
    Access, Family, Flags, HandlerOp, Kind, Statement, TableUse, TextSource, Traits, XaOp,
    classify, parts,
};
use millrace_topology::{GtidSet, ServerId, Waits};
use millrace_worker::INTERVALS_MAX;

use crate::Worker;
use crate::error::Abort;
use crate::session::Session;
use crate::session::defect::{Point, panic_at};
use crate::session::statement::next_transaction::leaves_next;

/// Whether the server says of a CALL that there is no such procedure: nothing was run.
fn called_nobody(class: &Statement, text: &[u8], database: &[u8], error: &ServerError) -> bool {
    let Some(name) = class.name.filter(|_| class.kind == Kind::Call) else {
        return false;
    };
    if error.code != 1305 || !class.functions.is_empty() {
        return false;
    }
    let unquoted = |span: millrace_sql::Span| unquote_ident(span.of(text)).into_owned();
    let schema = name.schema.map_or_else(|| database.to_vec(), unquoted);
    let (schema, name) = (schema, unquoted(name.name));
    let said = [b"PROCEDURE ", &*schema, b".", &*name, b" does not exist"].concat();
    error.message.eq_ignore_ascii_case(&said)
}

impl Session {
    /// Takes in an answered statement and parts with its connection, or keeps it.
    pub(in crate::session) async fn conclude(
        &mut self,
        mut lease: Lease,
        request: &Request<'_>,
        text: &[u8],
    ) -> Result<(), Abort> {
        panic_at(Point::Answered, text);
        let class = request.class;
        let outcome =
            std::mem::replace(&mut self.running.outcome, self.worker.lists.take_outcome());
        self.running.touching = None;
        if self.running.fill.is_some() {
            self.end_fill(&outcome);
        }
        if self.worker.cluster.is_catalogue_stale() {
            let (class, text) = request.inner.unwrap_or((class, text));
            if self.names_touched(class, text) {
                // What it left on the connection is told by what was defined.
                self.flush().await?;
                let database = &self.image.vars.state.database;
                Box::pin(
                    self.worker
                        .cluster
                        .wait_for_catalogue(class, text, database),
                )
                .await;
            }
        }
        let failed = outcome.error.is_some();
        let mut began = self.image.tx.is_deferred();
        if request.prepares() {
            began = false;
            if request.access >= Access::PrimaryRead && !self.image.tx.next().is_empty() {
                // It was said to the server, and waits there.
                self.image.tx.use_up_next();
                self.image.tx.set_next_waits(true);
            }
        } else {
            self.note_next_transaction(&mut lease, class, failed);
            if outcome.has_status && outcome.status.contains(Status::IN_TRANS) {
                lease.one_shot = false;
            }
            self.image.tx.undefer();
            if began {
                self.handle.set_begun(false);
            }
        }
        if !request.prepares() || failed {
            let ran = Ran::of(self.image.family, request, text);
            self.image.last.fold(&mut lease.books, &outcome, &ran);
        }
        self.note_transaction(&outcome, request, began);
        if self.image.tx.journal.is_some() {
            self.keep_journal(&outcome, request);
        }
        // Whoever did that, in whatever statement: the next user needs to be told again.
        let is_tracking = |name: &str| name.starts_with("session_track_");
        let tracks = outcome
            .variables
            .iter()
            .any(|(name, _)| is_tracking(name) && &**name != "session_track_transaction_info");
        if tracks {
            lease.books.set_tracks_for(self.handle.uid());
        }
        if !outcome.variables.is_empty()
            || outcome.schema.is_some()
            || !class.assignments.is_empty()
        {
            self.fold_state(&mut lease, &outcome, class, text);
        }
        let for_once = Flags::SET_STATEMENT | Flags::HINT_SET_VAR;
        if class.flags.intersects(for_once) {
            self.note_set_for_once(text);
        }
        if failed {
            // Locks that were taken before the error stay.
            let (class, text) = request.inner.unwrap_or((class, text));
            self.note_locks(class, text);
        }
        if !failed || class.kind == Kind::Multi {
            self.note_effects(&mut lease, class, text);
            match request.inner {
                Some((inner, body)) => {
                    self.note_next(&mut lease, inner);
                    self.note_effects(&mut lease, inner, body);
                    self.note_out_parameters(class, inner, text);
                }
                None => self.note_untold_text(class),
            }
        } else if request.access == Access::Write {
            // What stored code did before the error stands.
            let (class, text) = request.inner.unwrap_or((class, text));
            let database = &self.image.vars.state.database;
            let error = outcome.error.as_deref();
            if !error.is_some_and(|error| called_nobody(class, text, database, error)) {
                self.note_leaves(class, text);
            }
        }
        if failed && class.kind == Kind::Prepare {
            self.note_failed_prepare(class, text);
        }
        // From here on what ran counts, not the EXECUTE that ran it.
        let (class, text) = request.inner.unwrap_or((class, text));
        self.note_surprises(&outcome, class);
        self.note_untold_variables(&lease, &outcome, class);
        if changes_logins(class) {
            self.worker.shared.monitor.accounts_changed(lease.server);
        }
        if request.access == Access::Write {
            self.note_unlogged(class);
        }
        self.note_position(&outcome, request);
        self.note_seen(&lease, request, class, &outcome);
        let is_untracked = self.leaves_untracked(&outcome, request)
            || (lease.books.tracks_for_a_session()
                && !outcome.positioned
                && request.access == Access::Write);
        if is_untracked {
            self.note_untracked(lease.server);
        }
        match self.running.untracked.take() {
            Some(untracked) if !is_untracked && !self.image.reads.unknown => untracked.told(),
            Some(_) => {}
            None if is_untracked && !failed => self.worker.shared.written.count_untracked(),
            None => {}
        }
        // GET DIAGNOSTICS that finds no condition assigns nothing: the variables there are as somebody left them.
        let assigned = class.kind != Kind::Diagnostics
            || !(failed || outcome.warnings > 0)
            || self.holds_private(&lease);
        if assigned && self.needs_readback(class, &lease) {
            // The client need not wait for what is only for our records.
            self.flush().await?;
            Box::pin(self.read_back(&mut lease, class, text)).await;
        }
        let runs_code = class.kind == Kind::Call || !class.functions.is_empty();
        if runs_code && self.image.family == Family::MariaDb && !self.handle.pins().is_empty() {
            // Stored code may have drawn from a sequence; the connection is kept for what it left.
            lease.books.drew(self.handle.uid());
        }
        let releases = !failed && self.releases(class);
        lease.broken |= releases;
        lease.effects_noted();
        self.part(lease);
        if releases {
            self.flush().await?;
            return Err(Abort::Ended);
        }
        if let Some(error) = &outcome.error {
            let class = millrace_metrics::ErrorClass::from_sqlstate(&error.state);
            self.worker
                .metrics()
                .error(millrace_metrics::Side::Server, class);
            if meaning(error) == Meaning::Ending {
                // It may have been done, and the client is to look.
                self.count_unknown();
            }
        }
        self.worker.lists.put_outcome(outcome);
        Ok(())
    }

    /// What SET TRANSACTION said for the next transaction is used up by a statement that opened one
    /// and succeeded; otherwise it may still wait on the connection, which nobody else may have then.
    fn note_next_transaction(&mut self, lease: &mut Lease, class: &Statement, failed: bool) {
        let opened = self.takes_next(class);
        let sent = opened && !self.image.tx.next().is_empty();
        let is_primary = |worker: &Worker| worker.cluster.is_primary(lease.server);
        if sent && failed && !is_primary(&self.worker) {
            // It is said again elsewhere; a replica cannot take what follows.
            lease.broken = true;
            return;
        }
        if sent {
            self.image.tx.use_up_next();
        }
        let sets = class.kind == Kind::SetTransaction && class.flags.contains(Flags::TX_ONE_SHOT);
        lease.one_shot |= class.flags.contains(Flags::TX_ONE_SHOT);
        if sets && !failed {
            self.image.tx.set_next_waits(true);
        } else if sent || self.image.tx.next_waits() {
            let waits = failed || !opened || leaves_next(class);
            self.image.tx.set_next_waits(waits);
        }
    }

    /// COMMIT RELEASE and its like: the server closes the connection after its OK.
    fn releases(&self, class: &Statement) -> bool {
        if !matches!(class.kind, Kind::Commit | Kind::Rollback) {
            return false;
        }
        let by_default = self
            .image
            .vars
            .state
            .effective("completion_type")
            .is_some_and(|value| value.eq_ignore_ascii_case(b"RELEASE") || value == b"2");
        class.flags.contains(Flags::RELEASE)
            || (by_default && !class.flags.contains(Flags::NO_RELEASE))
    }

    /// Gives the connection back, or keeps it where something lives on it.
    pub(in crate::session) fn part(&mut self, mut lease: Lease) {
        // Whatever went wrong in our books, nobody else gets an open transaction.
        lease.broken |= self.handle.pins().is_empty() && lease.in_transaction();
        if !lease.is_clean() && self.handle.pins().is_empty() {
            self.put_back(lease);
        } else if self.handle.pins().is_empty() {
            if self.handle.is_kill_target() {
                self.put_back(lease);
            } else {
                self.handle.set_connection(None);
                lease.give_back();
            }
        } else {
            self.keep(lease);
        }
    }

    /// Whether a transaction is open now. Where the answer does not say, the connection is kept
    /// until one does.
    fn note_transaction(&mut self, outcome: &Outcome, request: &Request<'_>, began: bool) {
        let class = request.class;
        if outcome.error.is_none() && outcome.has_status {
            self.note_savepoint(request.runs(), outcome.status);
            self.take_status(outcome.status);
            return;
        }
        if self.image.tx.next_waits() {
            self.pin(PinReason::Transaction);
        }
        // An error may have ended the transaction (a deadlock, a failed statement that commits
        // first), or left one open that the statement began. Several statements that only read did
        // not, and the server that they ran on may be a replica.
        let may_have_begun = match class.kind {
            Kind::Begin => true,
            Kind::Call | Kind::Multi | Kind::Unknown | Kind::Execute { .. } => {
                request.access > Access::Read
            }
            // MySQL's CREATE TABLE … START TRANSACTION that cannot be has begun it all the same (observed on 9.7).
            _ => outcome
                .error
                .as_ref()
                .is_some_and(|error| error.code == 3979),
        };
        let may_have_changed = began
            || self.handle.pins().has(PinReason::Transaction)
            || self.image.autocommit_off()
            || may_have_begun;
        if began || (outcome.error.is_some() && may_have_changed) {
            self.pin(PinReason::Transaction);
        }
    }

    /// Whether there is a savepoint that no open transaction has.
    fn note_savepoint(&mut self, class: &Statement, status: Status) {
        let tx = &mut self.image.tx;
        if class.kind == Kind::Savepoint {
            tx.set_savepoint_waits(!status.contains(Status::AUTOCOMMIT));
        } else if tx.savepoint_waits() {
            // What else ends it, unseen in a routine or by a commit of its own, leaves the connection kept until then.
            let ends = matches!(
                class.kind,
                Kind::Commit | Kind::Rollback | Kind::Begin | Kind::Ddl
            );
            if ends || status.contains(Status::AUTOCOMMIT) {
                tx.set_savepoint_waits(false);
            }
        }
    }

    fn take_status(&mut self, status: Status) {
        self.image.status = status;
        if status.contains(Status::IN_TRANS) {
            // With the transaction's end it is used up.
            self.image.tx.set_next_waits(false);
        }
        let tx = &self.image.tx;
        if status.contains(Status::IN_TRANS) || tx.next_waits() || tx.savepoint_waits() {
            self.pin(PinReason::Transaction);
        } else {
            self.unpin(PinReason::Transaction);
        }
    }

    fn note_locks(&mut self, class: &Statement, text: &[u8]) {
        if class.flags.contains(Flags::ACQUIRES_USER_LOCK) {
            self.pin(PinReason::UserLock);
            self.image.held.add_locks_of(text);
        }
    }

    /// What the statement's kind says about the session.
    fn note_effects(&mut self, lease: &mut Lease, class: &Statement, text: &[u8]) {
        if class.kind == Kind::Multi {
            let mut part = self.worker.lists.take_statement();
            let mode = self.image.vars.lex;
            for span in parts(text, &mode) {
                let text = span.of(text);
                classify(text, &self.image.vars.lex, &mut part);
                if changes_logins(&part) {
                    self.worker.shared.monitor.accounts_changed(lease.server);
                }
                self.note_next(lease, &part);
                self.note_savepoint(&part, self.image.status);
                self.note_effects(lease, &part, text);
                self.note_executed(lease, &part, text);
            }
            self.worker.lists.put_statement(part);
            if self.image.tx.savepoint_waits() {
                self.pin(PinReason::Transaction);
            }
            return;
        }
        match class.kind {
            Kind::Unknown if !text.is_empty() => self.pin(PinReason::NotUnderstood),
            Kind::LockTables => self.pin(PinReason::LockTables),
            Kind::Flush { read_lock: true } => self.pin(PinReason::LockTables),
            Kind::UnlockTables => self.unpin(PinReason::LockTables),
            Kind::Handler(HandlerOp::Open) => {
                self.image.held.open_handler();
                self.pin(PinReason::Handler);
            }
            Kind::Handler(HandlerOp::Close) => {
                self.image.held.close_handler();
                if !self.image.held.has_handlers() {
                    self.unpin(PinReason::Handler);
                }
            }
            Kind::Xa(XaOp::Start) => self.pin(PinReason::Xa),
            Kind::Xa(XaOp::Commit { .. } | XaOp::Rollback) => self.unpin(PinReason::Xa),
            // Until it is seen to be the login's again.
            Kind::SetRole => self.pin_for(Cause::Role),
            Kind::SetResourceGroup => self.pin(PinReason::SessionState),
            Kind::Prepare => self.note_prepare(lease, class, text),
            Kind::Deallocate => {
                if let Some(name) = class.name {
                    let uid = self.handle.uid();
                    let holds = lease
                        .books
                        .holds_variables(uid, self.image.vars.private.version);
                    self.image
                        .vars
                        .private
                        .deallocate(&user_variables::variable_name(name.name.of(text)));
                    if holds {
                        lease
                            .books
                            .set_variables(uid, Some(self.image.vars.private.version));
                    }
                }
            }
            _ => {}
        }
        self.note_measured(class, text);
        self.note_tables(class, text);
        self.note_leaves(class, text);
        self.note_locks(class, text);
        if !class.flags.contains(Flags::ACQUIRES_USER_LOCK)
            && class.flags.contains(Flags::RELEASES_ALL_USER_LOCKS)
        {
            self.unpin(PinReason::UserLock);
            self.image.held.release_locks();
        }
        let temporary = Flags::CREATES_TEMP_TABLE | Flags::DROPS_TEMP_TABLE;
        if class.kind == Kind::Ddl && !class.flags.intersects(temporary) {
            // It takes them as long as it took here.
            self.worker.cluster.set_replicas_behind();
        }
        if class.flags.contains(Flags::SET_STATEMENT) {
            // What it sets is told like what goes back with its end. Stored code's part is noted below.
            let sets_nothing = class.is(Traits::SETS_NOTHING);
            if !sets_nothing {
                self.pin(PinReason::SessionState);
            }
        }
        if class.flags.contains(Flags::SEQUENCE) {
            // LASTVAL() is the connection's.
            self.pin(PinReason::SessionState);
        }
        if class.flags.contains(Flags::USES_CONNECTION_ID) {
            // The client has seen the connection's number and may use it.
            self.pin(PinReason::SessionState);
        }
    }

    /// SET TRANSACTION that is executed, or stands among several statements: whether what follows in the text has
    /// used it up, only the connection knows.
    fn note_next(&mut self, lease: &mut Lease, class: &Statement) {
        let open = self.image.status.contains(Status::IN_TRANS);
        if class.flags.contains(Flags::TX_ONE_SHOT) && !open {
            lease.one_shot = true;
            self.image.tx.set_next_waits(true);
            self.pin(PinReason::Transaction);
        }
    }

    /// What an EXECUTE among several statements has run counts as if it stood there itself.
    fn note_executed(&mut self, lease: &mut Lease, class: &Statement, text: &[u8]) {
        let Some(body) = self.executed_text(class, text) else {
            return self.note_untold_text(class);
        };
        let inner = self.worker.lists.classify(&body, &self.image.vars.lex);
        self.note_next(lease, &inner);
        self.note_effects(lease, &inner, &body);
        self.note_out_parameters(class, &inner, text);
        self.worker.lists.put_class(inner);
    }

    /// EXECUTE IMMEDIATE of what only the server knows may have done anything. An EXECUTE of a name that is
    /// not known here has failed.
    fn note_untold_text(&mut self, class: &Statement) {
        if class.kind == (Kind::Execute { immediate: true }) {
            self.pin(PinReason::NotUnderstood);
        }
    }

    /// The text that an EXECUTE runs; none where it is not known here.
    pub(in crate::session) fn executed_text(
        &self,
        class: &Statement,
        text: &[u8],
    ) -> Option<Box<[u8]>> {
        match (class.kind, class.source) {
            (Kind::Execute { immediate: true }, Some(TextSource::Literal(source))) => {
                let backslash = !self.image.vars.lex.no_backslash_escapes;
                let body = millrace_sql::ident::unquote_string(source.of(text), backslash);
                Some(body.as_ref().into())
            }
            (Kind::Execute { immediate: false }, _) => {
                let name = user_variables::variable_name(class.name?.name.of(text));
                let named = self.image.vars.private.statement(&name)?;
                Some(named.body.clone())
            }
            _ => None,
        }
    }

    /// EXECUTE … USING of a CALL: its variables take OUT parameters.
    fn note_out_parameters(&mut self, execute: &Statement, inner: &Statement, text: &[u8]) {
        if inner.kind == Kind::Call && inner.flags.contains(Flags::PARAMETERS) {
            let names = execute.user_vars_read.iter();
            let names = names.map(|name| user_variables::variable_name(name.of(text)));
            self.image.vars.left.extend(names);
        }
    }

    /// What routines and triggers may have left on the connection.
    fn note_leaves(&mut self, class: &Statement, text: &[u8]) {
        if class.functions.is_empty() && class.tables.is_empty() && class.kind != Kind::Call {
            return;
        }
        if self.worker.cluster.is_catalogue_stale() && self.names_touched(class, text) {
            self.pin(PinReason::UserVariable);
            self.pin(PinReason::UserLock);
            self.image.held.add_unknown_lock();
            return;
        }
        let catalogue = self.worker.cluster.catalogue();
        let leaves = catalogue.leaves(class, text, &self.image.vars.state.database);
        if leaves.user_variables {
            self.pin(PinReason::UserVariable);
        }
        self.image.vars.left.extend(leaves.variables);
        self.image.vars.untold |= leaves.session_variables;
        if leaves.unknown_locks || !leaves.locks.is_empty() {
            self.pin(PinReason::UserLock);
            if leaves.unknown_locks {
                self.image.held.add_unknown_lock();
            }
            for lock in leaves.locks {
                self.image.held.add_lock(lock);
            }
        }
    }

    fn note_tables(&mut self, class: &Statement, text: &[u8]) {
        let drops = Flags::DROPS_TEMP_TABLE | Flags::DROPS_TABLE;
        if class.flags.contains(Flags::CREATES_TEMP_TABLE) {
            for table in class
                .tables
                .iter()
                .filter(|table| table.usage == TableUse::Define)
            {
                let name = user_variables::variable_name(table.name.of(text));
                self.image.held.add_temporary_table(name);
            }
            self.pin(PinReason::TemporaryTable);
        } else if class.flags.intersects(drops) && self.image.held.has_temporary_tables() {
            for table in &class.tables {
                let name = user_variables::variable_name(table.name.of(text));
                self.image.held.drop_table(&name);
            }
            if !self.image.held.has_temporary_tables() {
                self.unpin(PinReason::TemporaryTable);
            }
        }
    }

    fn note_prepare(&mut self, lease: &mut Lease, class: &Statement, text: &[u8]) {
        let (Some(name), Some(TextSource::Literal(source))) = (class.name, class.source) else {
            self.pin(PinReason::SessionState);
            return;
        };
        let body = millrace_sql::ident::unquote_string(
            source.of(text),
            !self.image.vars.lex.no_backslash_escapes,
        );
        let uid = self.handle.uid();
        let holds = !lease
            .books
            .has_foreign_variables(uid, self.image.vars.private.version);
        self.image.vars.private.prepare(Named {
            name: user_variables::variable_name(name.name.of(text)),
            text: text.into(),
            context: self.image.vars.state.clone(),
            body: body.as_ref().into(),
            is_refused: false,
        });
        if holds {
            lease
                .books
                .set_variables(uid, Some(self.image.vars.private.version));
        }
    }

    /// A PREPARE that fails has dropped the statement of that name. One that is no valid PREPARE itself has not.
    fn note_failed_prepare(&mut self, class: &Statement, text: &[u8]) {
        let Some(name) = class.name else { return };
        if let Some(TextSource::Expression(_)) = class.source {
            match self.image.family {
                Family::MySql => return,
                // Whether the expression failed or what it gave, only the connection knows.
                Family::MariaDb => self.pin(PinReason::SessionState),
            }
        }
        let name = user_variables::variable_name(name.name.of(text));
        self.image.vars.private.deallocate(&name);
    }

    /// The server says that state changed, and nothing in the text explains it.
    fn note_surprises(&mut self, outcome: &Outcome, class: &Statement) {
        if !outcome.state_changed || !outcome.variables.is_empty() || outcome.schema.is_some() {
            return;
        }
        let temporary = Flags::CREATES_TEMP_TABLE | Flags::DROPS_TEMP_TABLE | Flags::DROPS_TABLE;
        let explained = class.is(Traits::CHANGES_STATE)
            || class.flags.intersects(temporary | Flags::ASSIGNS_USER_VARS)
            || !self.image.vars.left.is_empty();
        if !explained {
            self.pin(PinReason::SessionState);
        }
    }

    /// Servers tell what stored code has set in an OK packet only. After rows that end without one,
    /// or an error, MySQL tells it in the next OK on the connection, whoever gets that; MariaDB never
    /// does, but marks the end of rows (observed).
    fn note_untold_variables(&mut self, lease: &Lease, outcome: &Outcome, class: &Statement) {
        if !std::mem::take(&mut self.image.vars.untold) {
            return;
        }
        if lease.books.tracks_for_a_session() {
            return self.pin(PinReason::SessionState);
        }
        let with_rows = self
            .client
            .capabilities
            .contains(Capabilities::DEPRECATE_EOF);
        let failed = outcome.error.is_some();
        match self.image.family {
            // What is asked about the error would be told.
            Family::MySql if failed && with_rows => self.pin(PinReason::SessionState),
            Family::MySql => self.image.vars.untold = failed || !(outcome.ended_ok || with_rows),
            Family::MariaDb => {
                if failed
                    || (outcome.end_marked && !with_rows)
                    || class.flags.contains(Flags::SET_STATEMENT)
                {
                    self.pin(PinReason::SessionState);
                }
            }
        }
    }

    /// Whether reads can still be held to what the session has written.
    fn note_position(&mut self, outcome: &Outcome, request: &Request<'_>) {
        if outcome.positioned {
            self.worker
                .cluster
                .bound(&mut self.image.reads.position, INTERVALS_MAX);
        }
        if request.access != Access::Write || outcome.positioned {
            return;
        }
        let tracked = self.worker.cluster.with_world(|world| {
            let primary = world.snapshot.primary_view();
            primary.is_none_or(|view| view.waits != Waits::Nothing)
        });
        if !tracked {
            self.image.reads.unknown = true;
        }
    }

    /// Something may have been committed whose position the answer did not tell.
    fn note_untracked(&mut self, server: ServerId) {
        if self.worker.cluster.waits_of(server) == Waits::Cluster {
            let count = self.worker.cluster.count_write();
            self.image.reads.position.union(&GtidSet::Cluster(count));
            return;
        }
        self.image.reads.stale = true;
        self.worker.shared.monitor.positions().stir();
    }

    /// A write may have committed without saying where: its answer ended with rows, or with an
    /// error after parts of it were done.
    fn leaves_untracked(&self, outcome: &Outcome, request: &Request<'_>) -> bool {
        if self.image.reads.unknown {
            return false;
        }
        if outcome.error.is_some() {
            return outcome.committed_untold;
        }
        if outcome.positioned {
            return false;
        }
        if request.access != Access::Write || self.handle.pins().has(PinReason::Transaction) {
            return false;
        }
        !outcome.ended_ok
            && outcome.result_sets > 0
            && !self
                .client
                .capabilities
                .contains(Capabilities::DEPRECATE_EOF)
    }
}

/// Whether the statement may have changed what a new login has: accounts, their privileges and roles,
/// global variables.
fn changes_logins(class: &Statement) -> bool {
    let by_kind = class.is(Traits::CHANGES_LOGINS);
    by_kind || class.flags.contains(Flags::SETS_GLOBAL)
}
