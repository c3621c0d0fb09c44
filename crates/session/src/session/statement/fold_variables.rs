//! Session variables and the default database after a statement: what the server reported, and what the text lets
//! expect of those that it does not report.

use std::rc::Rc;

use millrace_backend::pool::Lease;
use millrace_engine::image::pinned::Cause;
use millrace_engine::image::user_variables::{self};
use millrace_engine::outcome::Outcome;
use millrace_engine::state::{self, SETS_ANOTHER, SessionState, Value};
use millrace_metrics::PinReason;
use millrace_sql::{Family, Flags, Scope, Statement, Target, ValueKind};

use crate::session::Session;
use millrace_worker::{COLLATION_DEFAULTS, CollationKey};

/// Takes the collation of the connection's character set into a state.
pub(super) fn name_collation(state: &mut SessionState, class: &Statement, collation: &[u8]) {
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

/// Variables of which servers report NULL as nothing (observed); to set them to an empty text is an error.
const MAY_BE_NULL: [&str; 3] = [
    "character_set_results",
    "default_tmp_storage_engine",
    "enforce_storage_engine",
];

/// `character_set_results` was set otherwise than by SET NAMES: see [`state::results_by_names`].
fn set_results_apart(state: &mut SessionState) {
    if let Some(charset) = state.reported("character_set_results") {
        let charset = charset.into();
        state.set("character_set_results", Value::Literal(charset));
    }
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
pub(super) const KEEPS_CONNECTION: &[&str] = &[
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
    // What is written without is on that node alone, and no wait has an effect there.
    "wsrep_on",
];

impl Session {
    /// Whether the session has statements that were prepared in a database.
    fn has_prepared_in_database(&self) -> bool {
        let mut named = self.image.vars.private.statements.iter();
        named.any(|statement| !statement.context.database.is_empty())
            || !self.image.statements.is_empty()
    }

    /// Session variables and the default database.
    pub(super) fn fold_state(
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
            let value = if value.is_empty() && MAY_BE_NULL.contains(&&**name) {
                Value::Null
            } else {
                Value::Reported(value.clone())
            };
            state.set(name, value);
        }
        let [setting, also_set] = SETS_ANOTHER;
        if lasting && outcome.variables.iter().any(|(name, _)| &**name == setting) {
            self.image.vars.unreported.push(also_set.into());
        }
        if let Some(schema) = &outcome.schema {
            // A trigger or routine of a database is run in it: whoever has none is told so again (observed on both families).
            let leaves = schema.is_empty() && !state.database.is_empty();
            state.database = schema.clone();
            if leaves && self.has_prepared_in_database() {
                // To prepare them again elsewhere puts that connection in their database, and none is left again.
                self.pin(PinReason::SessionState);
            }
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
        self.note_reached(lease, &state, outcome.schema.is_some());
        self.set_state(state);
        if !self.speaks_utf8() && !self.image.vars.private.only_ascii() {
            // They could not be named as they were.
            self.pin(PinReason::UserVariable);
        }
    }

    /// A statement has set variables for itself alone, and the server has set them back. To set one back may set another
    /// for good (observed on both families).
    #[cold]
    pub(super) fn note_set_for_once(&mut self, text: &[u8]) {
        let [setting, also_set] = SETS_ANOTHER;
        let mut parts = text.windows(setting.len());
        if parts.any(|part| part.eq_ignore_ascii_case(setting.as_bytes())) {
            self.image.vars.unreported.push(also_set.into());
        }
    }

    /// The connection has the session's variables now. It is in the session's database only if it was before, or was
    /// moved there: where that one is gone, or the session is in none, statements run wherever the connection is.
    pub(in crate::session) fn note_reached(
        &self,
        lease: &mut Lease,
        state: &Rc<SessionState>,
        moved: bool,
    ) {
        if moved || lease.state.database == state.database {
            lease.state = state.clone();
            return;
        }
        let mut reached = SessionState::clone(state);
        reached.database = lease.state.database.clone();
        lease.state = self.worker.states.share(reached);
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
        if !is_reported && name == SETS_ANOTHER[0] {
            self.image.vars.unreported.push(SETS_ANOTHER[1].into());
        }
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

    /// Whether names in the session's statements are in UTF-8.
    pub(super) fn speaks_utf8(&self) -> bool {
        let charset = self.image.vars.state.reported("character_set_client");
        charset.is_some_and(|charset| matches!(charset, b"utf8mb4" | b"utf8mb3" | b"utf8"))
    }
}
