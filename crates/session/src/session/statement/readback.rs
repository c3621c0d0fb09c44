//! What a statement changed and no answer tells is asked for on the same connection before anybody
//! else has it: user variables, tracking, positions, locks. The client has its answer by then.

use millrace_backend::conn::{number, reported_variables, warnings};
use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::image::pinned::Cause;
use millrace_engine::image::user_variables;
use millrace_engine::outcome::Outcome;
use millrace_engine::state::{SWITCHES, SessionState, Value};
use millrace_metrics::PinReason;
use millrace_protocol::ok::OkPacket;
use millrace_protocol::packet::HEADER;
use millrace_protocol::response::Expect;
use millrace_protocol::resultset::ColumnDef;
use millrace_sql::{Family, Flags, HandlerOp, Kind, Statement, Target, ValueKind};
use millrace_topology::{GtidSet, Waits};

use crate::session::Session;
use crate::session::statement::fold_variables::{KEEPS_CONNECTION, name_collation};
use crate::session::statement::steps::CLEAR_DIAGNOSTICS;
use millrace_worker::CollationKey;

impl Session {
    /// Whatever could be asked would be measured as the session's own: what is not known then lives on
    /// the connection, which is kept.
    fn leave_unasked(&mut self, lease: &mut Lease, class: &Statement, text: &[u8]) {
        let assigns = class.flags.contains(Flags::ASSIGNS_USER_VARS);
        let left = !std::mem::take(&mut self.image.vars.left).is_empty();
        if left || (assigns && !self.keep_numbers(lease, class, text)) {
            self.pin(PinReason::UserVariable);
        }
        let untold = std::mem::take(&mut self.image.vars.untold);
        if !std::mem::take(&mut self.image.vars.unreported).is_empty() || untold {
            self.pin(PinReason::SessionState);
        }
    }

    pub(super) fn needs_readback(&self, class: &Statement, lease: &Lease) -> bool {
        class.flags.contains(Flags::ASSIGNS_USER_VARS)
            || !self.image.vars.unreported.is_empty()
            || !self.image.vars.left.is_empty()
            || self.image.vars.untold
            || self.locks_to_check(class)
            || self.has_role_to_check(class)
            || (class.flags.contains(Flags::MENTIONS_SESSION_TRACK)
                && !class.assignments.is_empty())
            || self.position_to_read(class, lease)
    }

    /// The position is behind what the session wrote, and can be asked for here without being in
    /// the way of a question about the statement before.
    fn position_to_read(&self, class: &Statement, lease: &Lease) -> bool {
        self.image.reads.stale
            && !matches!(class.kind, Kind::Diagnostics | Kind::Ping)
            // MariaDB closes a HANDLER for whose table another waits as soon as its session runs anything else (observed).
            && !matches!(class.kind, Kind::Handler(HandlerOp::Open | HandlerOp::Read))
            && self.image.last.messages.at != Some((lease.server, self.image.last.seq()))
            && !self.handle.pins().has(PinReason::Transaction)
            && self.worker.cluster.is_primary(lease.server)
            && self.worker.cluster.waits_of(lease.server) == Waits::Gtids
    }

    /// The role may be the login's again.
    fn has_role_to_check(&self, class: &Statement) -> bool {
        class.kind == Kind::SetRole && self.image.held.has_other_role()
    }

    /// Whether a connection of the session's has the role that its login has.
    pub(super) fn may_ask_role(&self) -> bool {
        !self.image.held.has_other_role()
            && !self.is_measured()
            && !self.handle.pins().has(PinReason::SessionState)
    }

    /// Asks which role the connection has before a first SET ROLE: only the server knows what a login's is.
    pub(super) async fn ask_role(&mut self, lease: &mut Lease) -> Result<(), BackendError> {
        match lease.books.is_of(self.handle.uid()) {
            true => self.save_own_diagnostics(lease).await,
            false => self.save_for_last_user(lease).await,
        }
        let role = current_role(lease).await.map_err(BackendError::ahead)?;
        self.image.held.leave_role(role);
        Ok(())
    }

    async fn check_role(&mut self, lease: &mut Lease) {
        let Ok(role) = current_role(lease).await else {
            lease.broken = true;
            return;
        };
        if self.image.held.note_role(&role) {
            self.end_cause(Cause::Role);
        }
    }

    /// Locks may have been taken or released, and can be asked for by their names.
    fn locks_to_check(&self, class: &Statement) -> bool {
        let touches = Flags::ACQUIRES_USER_LOCK | Flags::RELEASES_USER_LOCK;
        let may_touch = class.flags.intersects(touches)
            || class.kind == Kind::Call
            || !class.functions.is_empty();
        let nameable = self.image.held.nameable_locks().is_some();
        may_touch && nameable && self.handle.pins().has(PinReason::UserLock)
    }

    /// Reads back what the statement may have changed and the server does not report.
    pub(super) async fn read_back(&mut self, lease: &mut Lease, class: &Statement, text: &[u8]) {
        if self.is_measured() {
            return self.leave_unasked(lease, class, text);
        }
        if std::mem::take(&mut self.image.vars.untold) {
            self.save_own_diagnostics(lease).await;
            if !self.hear_variables(lease).await {
                self.pin(PinReason::SessionState);
            }
        }
        let left = std::mem::take(&mut self.image.vars.left);
        let assigns = (class.flags.contains(Flags::ASSIGNS_USER_VARS) || !left.is_empty())
            && !self.handle.pins().has(PinReason::UserVariable);
        if assigns && !(left.is_empty() && self.keep_numbers(lease, class, text)) {
            let names = self.variables_to_read(class, text, left);
            let read = match &names {
                Some(names) => {
                    self.save_own_diagnostics(lease).await;
                    self.read_user_variables(lease, names).await
                }
                None => false,
            };
            if !read {
                self.pin(PinReason::UserVariable);
            }
        }
        if class.flags.contains(Flags::MENTIONS_SESSION_TRACK) && !class.assignments.is_empty() {
            self.read_tracking(lease).await;
        }
        if !self.image.vars.unreported.is_empty() {
            self.save_own_diagnostics(lease).await;
            self.read_unreported(lease, class).await;
        }
        if self.locks_to_check(class) {
            self.save_own_diagnostics(lease).await;
            self.check_locks(lease).await;
        }
        if self.has_role_to_check(class) {
            self.save_own_diagnostics(lease).await;
            self.check_role(lease).await;
        }
        if self.position_to_read(class, lease) {
            self.save_own_diagnostics(lease).await;
            self.read_position(lease).await;
        }
    }

    /// Has the server tell what stored code has set: MySQL does with the next OK. False where it
    /// cannot be heard.
    async fn hear_variables(&mut self, lease: &mut Lease) -> bool {
        let mut query = Vec::new();
        lease.frame_query(&mut query, b"DO 0");
        if lease.send(&query, 1).await.is_err() {
            return false;
        }
        let Ok(answer) = lease.read_answer(Expect::Query).await else {
            return false;
        };
        let payload = answer.get(HEADER..).unwrap_or_default();
        let Ok(ok) = OkPacket::parse(payload, lease.capabilities) else {
            return false;
        };
        let (uid, mut outcome) = (self.handle.uid(), Outcome::default());
        reported_variables(&ok, |name, value| {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            if name.starts_with("session_track_") {
                lease.books.set_tracks_for(uid);
            }
            outcome.variables.push((name.into(), value.into()));
        });
        if !outcome.variables.is_empty() {
            self.fold_state(lease, &outcome, &Statement::default(), b"");
        }
        true
    }

    /// `SET @a = 1` and the like need not be read back.
    fn keep_numbers(&mut self, lease: &mut Lease, class: &Statement, text: &[u8]) -> bool {
        let plain = class.kind == Kind::Set
            && class.assignments.iter().all(|assignment| {
                matches!(assignment.target, Target::UserVar(name) if name.of(text).is_ascii())
                    && assignment.kind == ValueKind::Number
            });
        if !plain {
            return false;
        }
        let holds = self.holds_private(lease);
        for assignment in &class.assignments {
            if let Target::UserVar(name) = assignment.target {
                let name = user_variables::variable_name(name.of(text));
                self.image
                    .vars
                    .private
                    .set(&name, assignment.value.of(text).into());
            }
        }
        self.note_private(lease, holds);
        true
    }

    pub(in crate::session) fn holds_private(&self, lease: &Lease) -> bool {
        let (uid, version) = (self.handle.uid(), self.image.vars.private.version);
        lease.books.holds_variables(uid, version)
            || (lease.books.is_without_variables() && self.image.vars.private.is_empty())
    }

    pub(in crate::session) fn note_private(&self, lease: &mut Lease, holds: bool) {
        let version = holds.then_some(self.image.vars.private.version);
        lease.books.set_variables(self.handle.uid(), version);
    }

    /// Warnings would be cleared by what follows: they are saved as another session would.
    pub(in crate::session) async fn save_own_diagnostics(&mut self, lease: &mut Lease) {
        let seq = lease.books.last_seq();
        let unread = lease.books.unread();
        if self.image.last.messages.at == Some((lease.server, seq))
            && self.image.last.saved_warnings().is_none()
            && let Ok(rows) = lease.query("SHOW WARNINGS").await
        {
            self.handle.saved().keep(seq).warnings = Some(warnings(rows));
        }
        if unread.found_rows
            && self.image.last.found_rows.at == Some((lease.server, seq))
            && let Ok(rows) = lease.query("SELECT FOUND_ROWS() LIMIT 1").await
        {
            let found_rows = &mut self.image.last.found_rows;
            found_rows.set(number(&rows, 0).unwrap_or(found_rows.count));
            lease.books.has_found_rows(false);
        }
        if unread.diagnostics && lease.family == Family::MariaDb {
            // What follows may leave them for somebody else to see.
            lease.broken |= lease.query(CLEAR_DIAGNOSTICS).await.is_err();
        }
        // What the connection says about its last statement is no longer the session's, but for
        // LAST_INSERT_ID(), which is found by a number of its own.
        lease.books.has_messages(false);
        let own = self.image.last.count_own();
        lease.books.renumber(own);
        if self.image.last.insert_id.at == Some((lease.server, seq)) {
            self.image.last.insert_id.at = Some((lease.server, own));
        }
    }

    /// The user variables that the statement may have set; none where that cannot be told.
    fn variables_to_read(
        &self,
        class: &Statement,
        text: &[u8],
        left: Vec<Box<[u8]>>,
    ) -> Option<Vec<Box<[u8]>>> {
        let unnamed =
            class.flags.contains(Flags::ASSIGNS_USER_VARS) && class.user_vars_assigned.is_empty();
        if unnamed
            || class.flags.contains(Flags::TRUNCATED)
            || matches!(class.kind, Kind::Unknown | Kind::Multi)
        {
            return None;
        }
        let mut names = left;
        for span in &class.user_vars_assigned {
            names.push(user_variables::variable_name(span.of(text)));
        }
        names.sort_unstable();
        names.dedup();
        // What names are in another character set depends on the connection's.
        let readable = self.speaks_utf8() || names.iter().all(|name| name.is_ascii());
        readable.then_some(names)
    }

    /// False where a value cannot be learnt.
    async fn read_user_variables(&mut self, lease: &mut Lease, names: &[Box<[u8]>]) -> bool {
        let mut query = b"SELECT ".to_vec();
        for (at, name) in names.iter().enumerate() {
            if at > 0 {
                query.push(b',');
            }
            let mut variable = Vec::new();
            user_variables::write_variable(&mut variable, name);
            query.extend_from_slice(&variable);
            for function in ["HEX", "CHARSET", "COLLATION"] {
                query.extend_from_slice(b",");
                query.extend_from_slice(function.as_bytes());
                query.push(b'(');
                query.extend_from_slice(&variable);
                query.push(b')');
            }
        }
        query.extend_from_slice(b" LIMIT 1");
        let Ok(query) = String::from_utf8(query) else {
            return false;
        };
        let Ok(Some(rows)) = lease.ask(&query).await else {
            return false;
        };
        let Some(row) = rows.rows.first() else {
            return false;
        };
        let holds = self.holds_private(lease);
        for (at, name) in names.iter().enumerate() {
            let (Some(column), Some([value, hex, charset, collation])) =
                (rows.columns.get(4 * at), row.get(4 * at..4 * at + 4))
            else {
                return false;
            };
            if value.is_none() && is_undefined(column) {
                continue;
            }
            let Some(literal) = user_value(column, value, hex, charset, collation) else {
                return false;
            };
            self.image.vars.private.set(name, literal);
        }
        self.note_private(lease, holds);
        true
    }

    /// The client has changed what it wants to be told: notes it; the connection is given
    /// Millrace's settings again before its next use.
    async fn read_tracking(&mut self, lease: &mut Lease) {
        lease.books.set_tracks_for(self.handle.uid());
        let query = match lease.family {
            Family::MySql => {
                "SELECT @@session_track_schema,@@session_track_state_change,\
                 @@session_track_system_variables,@@session_track_gtids LIMIT 1"
            }
            Family::MariaDb => {
                "SELECT @@session_track_schema,@@session_track_state_change,\
                 @@session_track_system_variables,'OFF' LIMIT 1"
            }
        };
        let Ok(Some(rows)) = lease.ask(query).await else {
            self.pin(PinReason::SessionState);
            return;
        };
        let mut cells = rows
            .rows
            .into_iter()
            .next()
            .unwrap_or_default()
            .into_iter()
            .flatten();
        let mut next = || cells.next().unwrap_or_default();
        self.image.vars.tracks.schema = next() == b"1";
        self.image.vars.tracks.state_change = next() == b"1";
        self.image.vars.tracks.variables =
            String::from_utf8_lossy(&next()).to_ascii_lowercase().into();
        self.image.vars.tracks.gtids_value = next().into();
        self.image.vars.tracks.gtids = !self
            .image
            .vars
            .tracks
            .gtids_value
            .eq_ignore_ascii_case(b"OFF");
        self.image.vars.tracks.changed = true;
    }

    async fn read_position(&mut self, lease: &mut Lease) {
        let query = match lease.family {
            Family::MySql => "SELECT @@GLOBAL.gtid_executed LIMIT 1",
            Family::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos LIMIT 1",
        };
        let rows = lease.ask(query).await.ok().flatten();
        let position = rows.and_then(|rows| rows.rows.into_iter().next()?.into_iter().next()?);
        let known = position.is_some_and(|mut text| {
            text.retain(|byte| !byte.is_ascii_whitespace());
            GtidSet::parse(self.image.reads.position.family(), &text).is_ok_and(|position| {
                self.image.reads.position.union(&position);
                self.worker.cluster.wrote(&position);
                true
            })
        });
        self.image.reads.unknown |= !known;
        self.image.reads.stale = false;
    }

    /// A switch of MariaDB's that sessions have no basis for: what it is by default, the global value says.
    fn is_known_by_default(&self, name: &str) -> bool {
        SWITCHES.contains(&name)
            && !KEEPS_CONNECTION.contains(&name)
            && !name.starts_with("skip_")
            && self.image.vars.state.basis.get(name).is_none()
    }

    /// Reads variables back whose new values the server has not told: a statement that also
    /// changes what is tracked is reported by the new rule.
    async fn read_unreported(&mut self, lease: &mut Lease, class: &Statement) {
        let names = std::mem::take(&mut self.image.vars.unreported);
        let columns: Vec<_> = names
            .iter()
            .map(|name| match self.is_known_by_default(name) {
                // What a new connection has need not be said to one.
                true => format!("NULLIF(@@session.{name},@@global.{name})"),
                false => format!("@@session.{name}"),
            })
            .collect();
        let rows = lease
            .ask(&format!("SELECT {} LIMIT 1", columns.join(",")))
            .await;
        let rows = rows.ok().flatten();
        let told = names
            .iter()
            .position(|name| &**name == "collation_connection");
        let column = rows.as_ref().zip(told);
        let column = column.and_then(|(rows, at)| rows.columns.get(at));
        let number = column.map_or(0, |column| column.collation);
        let Some(row) = rows.and_then(|rows| rows.rows.into_iter().next()) else {
            self.pin(PinReason::SessionState);
            return;
        };
        let mut state = SessionState::clone(&self.image.vars.state);
        for (name, value) in names.iter().zip(row) {
            if let ("collation_connection", Some(value)) = (&**name, &value)
                && state.variable("collation_connection").is_none()
                && let Some(key) = CollationKey::new(lease, &state, class)
            {
                if class.assignments.len() == 1 {
                    self.worker.learnt.learn_collation(key, value);
                }
                name_collation(&mut state, class, value);
                continue;
            }
            if KEEPS_CONNECTION.contains(&&**name) || name.starts_with("skip_") {
                if value.is_some_and(|value| value != b"0") {
                    self.pin(PinReason::SessionState);
                }
                continue;
            }
            if value.is_none() && self.is_known_by_default(name) {
                state.unset(name);
                continue;
            }
            state.set(
                name,
                match value {
                    Some(value) => Value::Reported(value.into()),
                    None => Value::Null,
                },
            );
        }
        self.worker.learnt.learn_collation_number(&state, number);
        let state = self.worker.states.share(state);
        self.note_reached(lease, &state, false);
        self.set_state(state);
    }

    /// Asks which of the locks that were asked for are held; with the last the pin ends.
    async fn check_locks(&mut self, lease: &mut Lease) {
        let mut query = "SELECT ".to_owned();
        let locks = self.image.held.nameable_locks().unwrap_or_default();
        for (at, name) in locks.iter().enumerate() {
            if at > 0 {
                query.push(',');
            }
            query.push_str(&format!("IS_USED_LOCK({name})<=>CONNECTION_ID()"));
        }
        query.push_str(" LIMIT 1");
        let Ok(Some(rows)) = lease.ask(&query).await else {
            return;
        };
        let held = rows.rows.into_iter().next().unwrap_or_default();
        let held = held.iter().map(|cell| cell.as_deref() == Some(b"1"));
        if self.image.held.keep_locks(held) {
            self.unpin(PinReason::UserLock);
        }
    }
}

fn user_value(
    column: &ColumnDef,
    value: &Option<Vec<u8>>,
    hex: &Option<Vec<u8>>,
    charset: &Option<Vec<u8>>,
    collation: &Option<Vec<u8>>,
) -> Option<Box<[u8]>> {
    use millrace_protocol::types::column_type as kind;
    let numeric = [
        kind::LONGLONG,
        kind::LONG,
        kind::NEWDECIMAL,
        kind::DOUBLE,
        kind::FLOAT,
    ];
    if numeric.contains(&column.kind) {
        return Some(user_variables::literal(column, value.as_deref()));
    }
    let charset = String::from_utf8(charset.clone()?).ok()?;
    let collation = String::from_utf8(collation.clone()?).ok()?;
    if value.is_none() {
        return Some(match charset == "binary" {
            true => user_variables::literal(column, None),
            false => user_variables::null_string(&charset, &collation),
        });
    }
    let bytes = unhex(hex.as_deref()?)?;
    if column.kind == kind::GEOMETRY {
        return user_variables::geometry(&bytes);
    }
    user_variables::string_literal(&charset, &collation, &bytes)
}

/// A variable that was never assigned has metadata of its own (observed on both families).
fn is_undefined(column: &ColumnDef) -> bool {
    matches!(column.length, 16_777_216 | 65_532)
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.chunks(2)
        .map(|pair| match pair {
            [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
            _ => None,
        })
        .collect()
}

async fn current_role(lease: &mut Lease) -> Result<Option<Vec<u8>>, BackendError> {
    let rows = lease.query("SELECT CURRENT_ROLE() LIMIT 1").await?;
    Ok(rows.into_iter().flatten().next().flatten())
}
