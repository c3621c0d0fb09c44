//! After a statement: takes in what it changed, as far as the server said so and the statement's
//! text lets expect, and gives the connection back or keeps it, with the reason.

use crate::Worker;
use crate::image::Ran;
use millrace_backend::pool::Lease;
use millrace_backend::state::{self, SessionState, Value};
use millrace_metrics::PinReason;
use millrace_protocol::{Capabilities, Status};
use millrace_sql::{
    Access, Family, Flags, HandlerOp, Kind, Scope, Statement, TableUse, Target, TextSource, Traits,
    ValueKind, XaOp, classify, lock_names, parts,
};

use millrace_topology::{GtidSet, ServerId, Waits};

use crate::error::Abort;
use crate::image::pins::Cause;
use crate::image::transaction::Transaction;
use crate::image::user_variables::{self, Named};
use crate::session::Session;
use crate::statement::outcome::Outcome;
use crate::statement::request::Request;
use crate::worker::learnt::{COLLATION_DEFAULTS, CollationKey};
use crate::worker::written::INTERVALS_MAX;

/// Variables that are no state to restore: positions, what follows from others, and what has a
/// place of its own.
const NOT_STATE: &[&str] = &[
    "last_gtid",
    "statement_id",
    "warning_count",
    "error_count",
    "last_insert_id",
    "identity",
    "character_set_database",
    "collation_database",
    "in_transaction",
    "rand_seed1",
    "rand_seed2",
    "insert_id",
    "gtid_next",
    "gtid_seq_no",
    "pseudo_thread_id",
    "pseudo_slave_mode",
    "pseudo_replica_mode",
    "session_track_gtids",
    "session_track_schema",
    "session_track_state_change",
    "session_track_system_variables",
];

/// Variables that are used up by a later statement or mean something on one connection only.
pub(crate) const KEEPS_CONNECTION: &[&str] = &[
    "character_set_database",
    "collation_database",
    "rand_seed1",
    "rand_seed2",
    "insert_id",
    "gtid_next",
    "gtid_seq_no",
    "pseudo_thread_id",
    "pseudo_slave_mode",
    "pseudo_replica_mode",
    "debug",
    "debug_sync",
    "profiling",
];

impl Session {
    /// Takes in an answered statement and parts with its connection, or keeps it.
    pub(crate) async fn conclude(
        &mut self,
        mut lease: Lease,
        request: &Request<'_>,
        text: &[u8],
    ) -> Result<(), Abort> {
        let class = request.class;
        let outcome =
            std::mem::replace(&mut self.running.outcome, self.worker.lists.take_outcome());
        self.running.touching = None;
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
        } else {
            self.note_one_shot(&mut lease, class, failed);
            if outcome.has_status && outcome.status.contains(Status::IN_TRANS) {
                lease.one_shot = false;
            }
            self.image.tx.state = Transaction::None;
            if began {
                self.handle.begun.set(false);
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
        lease.tracking_foreign |= outcome
            .variables
            .iter()
            .any(|(name, _)| is_tracking(name) && &**name != "session_track_transaction_info");
        if !outcome.variables.is_empty()
            || outcome.schema.is_some()
            || !class.assignments.is_empty()
        {
            self.fold_state(&mut lease, &outcome, class, text);
        }
        if !failed || class.kind == Kind::Multi {
            self.note_effects(&mut lease, class, text);
            if let Some((inner, body)) = request.inner {
                self.note_effects(&mut lease, inner, body);
                self.note_out_parameters(class, inner, text);
            }
        } else if request.access == Access::Write {
            // What stored code did before the error stands.
            let (class, text) = request.inner.unwrap_or((class, text));
            self.note_leaves(class, text);
        }
        if failed
            && class.kind == Kind::Prepare
            && let Some(name) = class.name
        {
            // A PREPARE that fails has dropped the statement of that name.
            let name = user_variables::variable_name(name.name.of(text));
            self.image.vars.private.deallocate(&name);
        }
        // From here on what ran counts, not the EXECUTE that ran it.
        let (class, text) = request.inner.unwrap_or((class, text));
        self.note_surprises(&outcome, class);
        self.note_untold_variables(&lease, &outcome, class);
        if changes_logins(class) {
            self.worker.shared.monitor.accounts_changed(lease.server);
        }
        self.note_position(&outcome, request);
        self.note_seen(&lease, request, class, &outcome);
        let hidden = self.leaves_untracked(&outcome, request)
            || (lease.tracking_foreign && !outcome.positioned && request.access == Access::Write);
        if hidden {
            self.note_untracked(lease.server);
        }
        match self.running.untracked.take() {
            Some(untracked) if !hidden && !self.image.reads.unknown => untracked.told(),
            Some(_) => {}
            None if hidden => self.worker.shared.written.hide(),
            None => {}
        }
        if self.needs_readback(class, &lease) {
            // The client need not wait for what is only for our records.
            self.flush().await?;
            Box::pin(self.read_back(&mut lease, class, text)).await;
        }
        let releases = !failed && self.releases(class);
        lease.broken |= releases;
        lease.settle();
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
        }
        self.worker.lists.put_outcome(outcome);
        Ok(())
    }

    /// What SET TRANSACTION said for the next transaction is used up by a statement that opened one
    /// and succeeded; otherwise it may still wait on the connection, which nobody else may have then.
    fn note_one_shot(&mut self, lease: &mut Lease, class: &Statement, failed: bool) {
        let opened = self.opens_transaction(class);
        let sent = opened && !self.image.tx.next.is_empty();
        let is_primary = |worker: &Worker| worker.cluster.is_primary(lease.server);
        if sent && failed && !is_primary(&self.worker) {
            // It is said again elsewhere; a replica cannot take what follows.
            lease.broken = true;
            return;
        }
        if sent {
            self.image.tx.next.clear();
            self.image.tx.next_read_only = None;
        }
        let sets = class.kind == Kind::SetTransaction && class.flags.contains(Flags::TX_ONE_SHOT);
        lease.one_shot |= class.flags.contains(Flags::TX_ONE_SHOT);
        if sets && !failed {
            self.image.tx.next_waits = true;
        } else if sent || self.image.tx.next_waits {
            self.image.tx.next_waits = failed || !opened;
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
    pub(crate) fn part(&mut self, mut lease: Lease) {
        // Whatever went wrong in our books, nobody else gets an open transaction.
        lease.broken |= self.handle.pins.is_empty() && lease.in_transaction();
        if !lease.is_clean() && self.handle.pins.is_empty() {
            self.put_back(lease);
        } else if self.handle.pins.is_empty() {
            if self.handle.tainted.get() {
                self.put_back(lease);
            } else {
                self.handle.on.set(None);
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
            self.take_status(outcome.status);
            if class.kind == Kind::Savepoint {
                // With autocommit off it opens no transaction, and must be there when one is.
                self.pin(PinReason::Transaction);
            }
            return;
        }
        if self.image.tx.next_waits {
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
            _ => false,
        };
        let may_have_changed = began
            || self.handle.pins.has(PinReason::Transaction)
            || self.image.autocommit_off()
            || may_have_begun;
        if began || (outcome.error.is_some() && may_have_changed) {
            self.pin(PinReason::Transaction);
        }
    }

    fn take_status(&mut self, status: Status) {
        self.image.status = status;
        if status.contains(Status::IN_TRANS) {
            // With the transaction's end it is used up.
            self.image.tx.next_waits = false;
        }
        if status.contains(Status::IN_TRANS) || self.image.tx.next_waits {
            self.pin(PinReason::Transaction);
        } else {
            self.unpin(PinReason::Transaction);
        }
    }

    /// Session variables and the default database.
    pub(crate) fn fold_state(
        &mut self,
        lease: &mut Lease,
        outcome: &Outcome,
        class: &Statement,
        text: &[u8],
    ) {
        let mut state = SessionState::clone(&self.image.vars.state);
        // MariaDB reports what SET STATEMENT sets for the one statement.
        let lasting = !class.flags.contains(Flags::SET_STATEMENT);
        // The collation last: the character set, reported before or after it, would undo it.
        let is_collation = |entry: &&(Box<str>, Box<[u8]>)| &*entry.0 == "collation_connection";
        let others = outcome
            .variables
            .iter()
            .filter(|entry| !is_collation(entry));
        let ordered = others.chain(outcome.variables.iter().filter(is_collation));
        for (name, value) in ordered.filter(|_| lasting) {
            if class.assignments.is_empty()
                && KEEPS_CONNECTION.contains(&&**name)
                && !name.ends_with("_database")
            {
                // Stored code has set it.
                self.pin(PinReason::SessionState);
            }
            if NOT_STATE.contains(&&**name) {
                continue;
            }
            if &**name == "character_set_connection" {
                // Unless told otherwise below, with the character set's default collation.
                state.unset("collation_connection");
            }
            let value = if &**name == "character_set_results" && value.is_empty() {
                Value::Null
            } else {
                Value::Reported(value.clone())
            };
            state.set(name, value);
        }
        if let Some(schema) = &outcome.schema {
            state.database = schema.clone();
        }
        if lasting && self.switches_may_differ(lease, outcome, class) {
            let switches = state::SWITCHES.iter().copied();
            self.image.vars.unreported.extend(switches.map(Box::from));
        }
        // MariaDB's SET STATEMENT changes nothing for later.
        if outcome.error.is_none() && !class.flags.contains(Flags::SET_STATEMENT) {
            for assignment in &class.assignments {
                self.fold_assignment(&mut state, outcome, assignment, text);
            }
        }
        self.fold_collation(lease, &mut state, outcome, class);
        let state = self.worker.states.share(state);
        lease.state = state.clone();
        self.set_state(state);
        if !self.speaks_utf8() && !self.image.vars.private.only_ascii() {
            // They could not be named as they were.
            self.pin(PinReason::UserVariable);
        }
    }

    /// Whether stored code, or a statement by another's name, may have set another switch than the one
    /// that the server names. What the text sets is known from the text.
    fn switches_may_differ(&self, lease: &Lease, outcome: &Outcome, class: &Statement) -> bool {
        let is_named = |(name, _): &(Box<str>, Box<[u8]>)| &**name == "autocommit";
        self.image.family == Family::MariaDb
            && outcome.variables.iter().any(is_named)
            && (class.assignments.is_empty() || !class.functions.is_empty())
            && self
                .worker
                .cluster
                .with_world(|world| world.facts[lease.server.index()].tells_by_first_name())
    }

    /// A character set without a collation has the server's default for it, which depends on its
    /// version and on variables: the state names the collation.
    fn fold_collation(
        &mut self,
        lease: &Lease,
        state: &mut SessionState,
        outcome: &Outcome,
        class: &Statement,
    ) {
        let is_set = |(name, _): &(Box<str>, Box<[u8]>)| &**name == "character_set_connection";
        if !outcome.variables.iter().any(is_set) || state.variable("collation_connection").is_some()
        {
            return;
        }
        // In one SET with it, the default may be what it was before (observed on MySQL).
        let is_default = |(name, _): &(Box<str>, Box<[u8]>)| COLLATION_DEFAULTS.contains(&&**name);
        let is_plain = !class.assignments.is_empty() && !outcome.variables.iter().any(is_default);
        let key = CollationKey::new(lease, state, class).filter(|_| is_plain);
        match key
            .as_ref()
            .and_then(|key| self.worker.learnt.collation(key))
        {
            Some(collation) => name_collation(state, class, &collation),
            None => self
                .image
                .vars
                .unreported
                .push("collation_connection".into()),
        }
    }

    fn fold_assignment(
        &mut self,
        state: &mut SessionState,
        outcome: &Outcome,
        assignment: &millrace_sql::Assignment,
        text: &[u8],
    ) {
        let names = matches!(
            assignment.target,
            Target::Names { .. } | Target::CharacterSet
        );
        if names {
            self.note_names(state, outcome, assignment, text);
        }
        if matches!(assignment.target, Target::CharacterSet) {
            set_results_apart(state);
        }
        if names
            && !outcome
                .variables
                .iter()
                .any(|(name, _)| **name == *"character_set_client")
        {
            let of = [
                "character_set_client",
                "character_set_results",
                "collation_connection",
            ];
            state.unset("character_set_connection");
            self.image.vars.unreported.extend(of.map(Box::from));
            return;
        }
        if let Target::Names {
            collation: Some(collation),
        } = assignment.target
        {
            let collation = user_variables::variable_name(collation.of(text));
            if self.worker.learnt.collation_number(&collation).is_none() {
                // Its number comes with the answer.
                self.image
                    .vars
                    .unreported
                    .push("collation_connection".into());
            }
            state.set("collation_connection", Value::Reported(collation));
            return;
        }
        if matches!(
            assignment.target,
            Target::System {
                scope: Scope::NextTransaction,
                ..
            }
        ) {
            self.pin(PinReason::SessionState);
        }
        let Target::System {
            scope: Scope::Session,
            name,
        } = assignment.target
        else {
            return;
        };
        let name =
            String::from_utf8_lossy(&user_variables::variable_name(name.of(text))).into_owned();
        let value = assignment.value.of(text);
        self.note_measuring(&name, assignment.kind, value);
        if name == "profiling" {
            return;
        }
        if name == "gtid_next" {
            let word = user_variables::variable_name(value);
            let literal = matches!(assignment.kind, ValueKind::String | ValueKind::Word);
            self.image.vars.owns_gtid =
                !(assignment.kind == ValueKind::Default || (literal && is_automatic(&word)));
            match self.image.vars.owns_gtid {
                false => self.end_cause(Cause::GtidNext),
                true => self.pin_for(Cause::GtidNext),
            }
            return;
        }
        if KEEPS_CONNECTION.contains(&&*name) {
            self.pin(PinReason::SessionState);
            return;
        }
        if name == "sql_log_bin" {
            self.image.reads.unknown = true;
        }
        if NOT_STATE.contains(&&*name) {
            return;
        }
        let is_reported = outcome
            .variables
            .iter()
            .any(|(reported, _)| **reported == *name);
        // What DEFAULT makes of these is not what a new connection has.
        let own_default = name.starts_with("character_set_")
            || [
                "collation_connection",
                "foreign_key_checks",
                "unique_checks",
            ]
            .contains(&&*name)
            || state.basis.get(&name).is_some();
        if is_reported && name == "character_set_results" {
            return set_results_apart(state);
        }
        if is_reported && own_default {
            return;
        }
        if assignment.kind == ValueKind::Default && own_default {
            self.image.vars.unreported.push(name.into());
            return;
        }
        if assignment.kind == ValueKind::Default || (name == "timestamp" && value == b"0") {
            state.unset(&name);
            return;
        }
        if is_reported {
            return;
        }
        match assignment.kind {
            ValueKind::Number | ValueKind::String | ValueKind::Word => {
                state.set(&name, Value::Literal(value.into()));
            }
            _ => self.image.vars.unreported.push(name.into()),
        }
    }

    /// SET NAMES and SET CHARACTER SET, to be said again elsewhere.
    fn note_names(
        &self,
        state: &mut SessionState,
        outcome: &Outcome,
        assignment: &millrace_sql::Assignment,
        text: &[u8],
    ) {
        let plain = |name: &[u8]| {
            name.iter()
                .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        };
        let mut names = user_variables::variable_name(assignment.value.of(text)).into_vec();
        if assignment.kind == ValueKind::Default || !plain(&names) {
            state.unset(state::NAMES);
            return;
        }
        // The server's own word for it: utf8 is utf8mb3.
        let mut told = outcome.variables.iter();
        if let Some((_, told)) = told.find(|(name, _)| &**name == "character_set_client") {
            names = told.to_vec();
        }
        if let Target::Names {
            collation: Some(collation),
        } = assignment.target
        {
            let collation = user_variables::variable_name(collation.of(text));
            if plain(&collation) && *collation != *b"default" {
                names.extend_from_slice(b" COLLATE ");
                names.extend_from_slice(&collation);
            }
        }
        state.set(state::NAMES, Value::Literal(names.into()));
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
                self.note_effects(lease, &part, text);
            }
            self.worker.lists.put_statement(part);
            return;
        }
        match class.kind {
            Kind::Unknown if !text.is_empty() => self.pin(PinReason::NotUnderstood),
            Kind::LockTables => self.pin(PinReason::LockTables),
            Kind::Flush { read_lock: true } => self.pin(PinReason::LockTables),
            Kind::UnlockTables => self.unpin(PinReason::LockTables),
            Kind::Handler(HandlerOp::Open) => {
                self.image.held.handlers += 1;
                self.pin(PinReason::Handler);
            }
            Kind::Handler(HandlerOp::Close) => {
                self.image.held.handlers = self.image.held.handlers.saturating_sub(1);
                if self.image.held.handlers == 0 {
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
                    let uid = self.handle.uid;
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
        if class.flags.contains(Flags::ACQUIRES_USER_LOCK) {
            self.pin(PinReason::UserLock);
            if !lock_names(text, &mut self.image.held.locks) {
                self.image.held.locks_unknown = true;
            }
        } else if class.flags.contains(Flags::RELEASES_ALL_USER_LOCKS) {
            self.unpin(PinReason::UserLock);
            self.image.held.locks.clear();
            self.image.held.locks_unknown = false;
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
            self.image.held.locks_unknown = true;
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
            self.image.held.locks_unknown |= leaves.unknown_locks;
            for lock in leaves.locks {
                if !self.image.held.locks.contains(&lock) {
                    self.image.held.locks.push(lock);
                }
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
                if !self.image.held.temporary_tables.contains(&name) {
                    self.image.held.temporary_tables.push(name);
                }
            }
            self.pin(PinReason::TemporaryTable);
        } else if class.flags.intersects(drops) && !self.image.held.temporary_tables.is_empty() {
            for table in &class.tables {
                let name = user_variables::variable_name(table.name.of(text));
                self.image
                    .held
                    .temporary_tables
                    .retain(|other| *other != name);
            }
            if self.image.held.temporary_tables.is_empty() {
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
        let uid = self.handle.uid;
        let holds = !lease
            .books
            .has_foreign_variables(uid, self.image.vars.private.version);
        self.image.vars.private.prepare(Named {
            name: user_variables::variable_name(name.name.of(text)),
            text: text.into(),
            context: self.image.vars.state.clone(),
            body: body.as_ref().into(),
        });
        if holds {
            lease
                .books
                .set_variables(uid, Some(self.image.vars.private.version));
        }
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
        if lease.tracking_foreign {
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
        if request.access != Access::Write || outcome.positioned || self.image.reads.unknown {
            return false;
        }
        if self.handle.pins.has(PinReason::Transaction) && outcome.error.is_none() {
            return false;
        }
        if outcome.error.is_some() {
            return (request.class.is(Traits::RUNS_OTHERS) || request.class.kind == Kind::Ddl)
                || self.image.autocommit_off();
        }
        !outcome.ended_ok
            && outcome.result_sets > 0
            && !self
                .client
                .capabilities
                .contains(Capabilities::DEPRECATE_EOF)
    }
}

/// Takes the collation of the connection's character set into a state.
pub(crate) fn name_collation(state: &mut SessionState, class: &Statement, collation: &[u8]) {
    state.set("collation_connection", Value::Reported(collation.into()));
    let names = |assignment: &millrace_sql::Assignment| {
        matches!(assignment.target, Target::Names { collation: None })
    };
    let client = state.reported("character_set_client");
    if class.assignments.iter().any(names)
        && let Some(charset) = client.filter(|charset| collation.starts_with(charset))
        && state.reported("character_set_results") == client
    {
        let named = [charset, b" COLLATE ", collation].concat();
        state.set(state::NAMES, Value::Literal(named.into()));
    }
}

/// `character_set_results` was set otherwise than by SET NAMES: see [`state::results_by_names`].
fn set_results_apart(state: &mut SessionState) {
    if let Some(charset) = state.reported("character_set_results") {
        let charset = charset.into();
        state.set("character_set_results", Value::Literal(charset));
    }
}

/// Whether the statement may have changed what a new login has: accounts, their privileges and roles,
/// global variables.
fn changes_logins(class: &Statement) -> bool {
    let by_kind = class.is(Traits::CHANGES_LOGINS);
    by_kind || class.flags.contains(Flags::SETS_GLOBAL)
}

/// The value of `gtid_next` that a login finds, in quotes or without.
fn is_automatic(value: &[u8]) -> bool {
    let quotes = |byte: &u8| matches!(byte, b'\'' | b'"');
    let first = value.iter().position(|byte| !quotes(byte)).unwrap_or(0);
    let last = value.iter().rposition(|byte| !quotes(byte)).unwrap_or(0);
    value
        .get(first..=last)
        .is_some_and(|value| value.eq_ignore_ascii_case(b"AUTOMATIC"))
}
