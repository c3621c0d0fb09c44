//! The commands around statements: prepared statements, COM_RESET_CONNECTION, COM_CHANGE_USER.

use std::rc::Rc;

use millrace_backend::pool::Lease;
use millrace_engine::image::found_rows::first_found_rows;
use millrace_engine::image::last::is_about_last;
use millrace_engine::image::pinned::Cause;
use millrace_engine::image::prepared::{ClientStatement, TEMPORARY};
use millrace_engine::request::{Request, Task, Types};
use millrace_engine::state::SessionState;
use millrace_metrics::PinReason;
use millrace_protocol::auth::Plugin;
use millrace_protocol::command::{COM_STMT_PREPARE, StmtExecute};
use millrace_protocol::handshake::{ChangeUser, HandshakeResponse};
use millrace_protocol::ok::OkFields;
use millrace_protocol::packet;
use millrace_protocol::{Capabilities, Status};
use millrace_sql::{Access, Family, Flags, Kind, Statement, Traits, classify};

use crate::error::{Abort, ClientError};
use crate::login::credentials::Credentials;
use crate::login::exchange::LoginExchange;
use crate::login::packets::any_collation;
use crate::login::proof::Proof;
use crate::session::Session;
use crate::session::answers::session_functions::{
    asks_connection, asks_own_number, with_connection_id,
};
use crate::session::command::kill;
use crate::session::statement::access::metric_kind;
use crate::session::statement::directions::refusal;
use crate::session::statement::next_transaction::is_checked_when_prepared;
use crate::session::statement::route;

/// After so many COM_CHANGE_USERs that were refused, MariaDB knows the command no more (observed).
const GUESSES: u8 = 3;

/// Whether clients may share the statement on a server connection: it is nothing but its text, under
/// what is set.
fn is_shareable(class: &Statement) -> bool {
    let private = Flags::READS_USER_VARS | Flags::ASSIGNS_USER_VARS;
    class.is(Traits::ROWS)
        && class.functions.is_empty()
        && !class.flags.intersects(private)
        && !is_about_last(class)
}

impl Session {
    /// The error of a command that names a statement which the client does not have.
    async fn unknown_statement(&mut self, id: u32, command: &str) -> Abort {
        // MySQL 9 names the function that looks first (observed).
        let command = match self.image.family {
            Family::MySql => "mysql_stmt_precheck",
            Family::MariaDb => command,
        };
        let text = format!("Unknown prepared statement handler ({id}) given to {command}");
        let answer = ClientError::client(1243, b"HY000", text);
        self.add_to_messages(answer).await.into()
    }

    /// COM_STMT_PREPARE.
    pub(super) async fn prepare(&mut self, packet: &[u8], text: &[u8]) -> Result<(), Abort> {
        let limit = self.settings.options.max_prepared_statements;
        if self.image.statements.len() >= limit {
            let text = format!(
                "Can't create more than max_prepared_stmt_count statements \
                 (current value: {limit}; Millrace: limits.max_prepared_statements)"
            );
            return Err(ClientError::client(1461, b"42000", text).into());
        }
        let rewritten = self.rewritten_for_good(text);
        let text = rewritten.as_deref().unwrap_or(text);
        let mut class = self.worker.lists.take_statement();
        classify(text, &self.image.vars.lex, &mut class);
        if class.flags.contains(Flags::MILLRACE_VARIABLE) || route::is_own(text) {
            let prepared = self.prepare_own(text, &class).await;
            self.worker.lists.put_statement(class);
            return prepared;
        }
        let own_number = asks_own_number(&class)
            .then(|| with_connection_id(self.image.family, text, self.id))
            .flatten();
        let mut framed = Vec::new();
        let (packet, text) = match own_number.as_ref().or(rewritten.as_ref()) {
            Some(text) => {
                classify(text, &self.image.vars.lex, &mut class);
                if own_number.is_some() && !asks_connection(text, &self.image.vars.lex) {
                    class.flags.remove(Flags::USES_CONNECTION_ID);
                }
                let payload = [&[COM_STMT_PREPARE][..], text].concat();
                packet::frame(&mut framed, 0, &payload);
                (&*framed, &**text)
            }
            None => (packet, text),
        };
        let id = self.image.statements.next_id();
        // Preparing runs nothing, so that nothing follows for the session: it is only sent
        // where the statement will run.
        let mut preparing = self.worker.lists.take_statement();
        preparing.clear();
        let task = Task::Prepare(id);
        preparing.kind = Kind::Command;
        preparing.access = class.access;
        // Their types decide the metadata.
        preparing.flags = class.flags & Flags::READS_USER_VARS;
        let mut access = self.access(&class, text);
        let is_checked = !self.image.tx.next().is_empty() && is_checked_when_prepared(&class);
        if is_about_last(&class) || is_checked {
            access = access.max(Access::PrimaryRead);
        }
        let request = Request::packet(task, packet, &preparing, access);
        let ran = self.run_somewhere(&request).await;
        let ended = match ran {
            Ok(mut lease) => {
                if let Some((server_id, _, params)) = self.running.outcome.prepared {
                    let (family, warnings) = (self.image.family, self.running.outcome.warnings);
                    let last = &mut self.image.last;
                    last.fold_prepared(&mut lease.books, warnings, family, &class);
                    let shared = !self.image.held.has_temporary_tables() && is_shareable(&class);
                    let mut statement = ClientStatement {
                        uid: self.worker.prepared.next_statement_uid(),
                        shared,
                        unused: None,
                        text: text.into(),
                        class: Rc::new((*class).clone()),
                        context: self.image.vars.state.clone(),
                        params,
                        types: Box::default(),
                        types_changed: 0,
                        long_data: Vec::new(),
                        bad_long_data: false,
                        cursor: false,
                        answered: false,
                    };
                    if shared {
                        let unused = self.worker.prepared.share_statement(&mut statement);
                        statement.unused = Some(unused);
                        if params == 0 {
                            // No types will make it another.
                            statement.uid = unused;
                        }
                    }
                    self.hold_new(&mut lease, &statement, server_id).await;
                    self.image.statements.add(id, statement);
                }
                self.conclude(lease, &request, b"").await
            }
            Err(failure) => Err(failure),
        };
        self.worker.lists.put_statement(preparing);
        self.worker.lists.put_statement(class);
        ended
    }

    /// The text that a rule puts in the place of one that is to be prepared. Its executions run what
    /// was prepared; of them the rules are asked again, but for this.
    fn rewritten_for_good(&self, text: &[u8]) -> Option<Vec<u8>> {
        if !self.settings.rules.rewrites() {
            return None;
        }
        let class = self.worker.lists.classify(text, &self.image.vars.lex);
        let access = self.access(&class, text);
        let directions = self.said(&class, text, access, &self.image.vars.state.database);
        self.worker.lists.put_class(class);
        self.rewritten(directions.as_deref(), text)
    }

    /// COM_STMT_EXECUTE.
    pub(super) async fn execute(
        &mut self,
        packet: &[u8],
        payload: &[u8],
        execute: StmtExecute<'_>,
    ) -> Result<(), Abort> {
        let (capabilities, family) = (self.client.capabilities, self.image.family);
        let id = self.image.statements.real(execute.id);
        let Some(statement) = self.image.statements.get_mut(id) else {
            let unknown = self.unknown_statement(execute.id, "mysqld_stmt_execute");
            return Err(Box::pin(unknown).await);
        };
        if std::mem::take(&mut statement.bad_long_data) {
            let command = match family {
                Family::MySql => "mysql_stmt_precheck",
                Family::MariaDb => "mysqld_stmt_send_long_data",
            };
            self.image.statements.clear_long_data(id);
            let text = format!("Incorrect arguments to {command}");
            return Err(ClientError::client(1210, b"HY000", text).into());
        }
        let class = statement.class.clone();
        if class.flags.contains(Flags::MILLRACE_VARIABLE) {
            return Box::pin(self.execute_own(id)).await;
        }
        let text = statement.text.clone();
        let context = statement.context.clone();
        let mut types = Types::None;
        let mut first_number = None;
        if statement.params > 0
            || capabilities.contains(millrace_protocol::Capabilities::QUERY_ATTRIBUTES)
        {
            let params = execute.params(usize::from(statement.params), capabilities);
            let Ok(params) = params else {
                return Err(ClientError::client(
                    1210,
                    b"HY000",
                    "Incorrect arguments to mysqld_stmt_execute",
                )
                .into());
            };
            if class.kind == Kind::Kill {
                first_number = kill::number_in(&params);
            }
            if params.new_params_bound {
                types = Types::Sent;
                if *statement.types != *params.types {
                    statement.types = params.types.into();
                    statement.types_changed = statement.types_changed.wrapping_add(1);
                    if statement.shared {
                        statement.uid = self.worker.prepared.statement_uid(statement);
                        if let Some(unused) = statement.unused {
                            self.worker.prepared.executed_as(unused, statement.uid);
                        }
                    }
                }
            } else if params.count > 0 && !statement.types.is_empty() {
                types = Types::LeftOut;
            }
        }
        let wants_cursor = execute.wants_cursor() && class.kind != Kind::Call;
        let anew = std::mem::take(&mut statement.answered);
        if anew || (wants_cursor && std::mem::take(&mut statement.shared)) {
            // A statement has one cursor only.
            statement.uid = self.worker.prepared.next_statement_uid();
        }
        if statement.cursor {
            statement.cursor = false;
            self.unpin_cursor();
        }
        let _ = payload;
        if class.kind == Kind::Kill
            && let Some(killed) = self.kill_prepared(&class, &text, first_number).await
        {
            return killed;
        }
        if is_about_last(&class) && self.image.tx.replay.is_none() && !self.kept_counts(&class) {
            let executing = self.execute_about_last((packet, id, types), wants_cursor);
            return Box::pin(executing).await;
        }
        // A cursor keeps its connection, which must then take whatever comes next. So may a user variable's value.
        let may_keep = wants_cursor || class.flags.contains(Flags::ASSIGNS_USER_VARS);
        let access = match self.access(&class, &text) {
            access if may_keep => access.max(Access::PrimaryRead),
            access => access,
        };
        let directions = self.directions(&class, &text, access, &context.database);
        refusal(directions.as_deref())?;
        let request = Request::prepared(Task::Execute, (packet, id, types), &class, access)
            .directed(directions);
        let begun = std::time::Instant::now();
        if let Some(found) = self.cached(&request, &text) {
            self.running.begun = begun;
            if Box::pin(self.answer_found(&request, &text, found)).await? {
                return Ok(());
            }
        }
        // Made in its box, where `Box::pin` would copy it.
        let running = Box::write(Box::new_uninit(), self.run_somewhere(&request));
        let ran = Box::into_pin(running).await;
        self.image.statements.clear_long_data(id);
        let lease = ran?;
        if wants_cursor
            && self.running.outcome.status.contains(Status::CURSOR_EXISTS)
            && let Some(statement) = self.image.statements.get_mut(id)
        {
            statement.cursor = true;
            self.pin(PinReason::Cursor);
        }
        let server = lease.server;
        self.conclude(lease, &request, &text).await?;
        let kind = metric_kind(class.kind);
        let metrics = self.worker.metrics();
        let elapsed = begun.elapsed();
        metrics.statement(Some(server.index()), kind, elapsed);
        if access == Access::Read {
            self.worker.cluster.servers.of(server).responded(elapsed);
        }
        Ok(())
    }

    /// COM_STMT_EXECUTE of a statement about the one before, where no connection is kept that counts. Which one it
    /// would find there nobody knows once it has been prepared anew: so what it asks is gathered first,
    /// and it is prepared with the answers in place of the questions.
    async fn execute_about_last(
        &mut self,
        (packet, id, types): (&[u8], u32, Types),
        wants_cursor: bool,
    ) -> Result<(), Abort> {
        let Some(asking) = self.image.statements.get(id) else {
            return Err(Abort::Ended);
        };
        let (class, text) = (asking.class.clone(), asking.text.clone());
        self.gather_answers().await;
        if class.kind == Kind::Diagnostics {
            self.running.answers_binary = true;
            let answered = self.show_saved_warnings(&text).await;
            self.running.answers_binary = false;
            if answered? {
                return Ok(());
            }
            let is_get = class.flags.contains(Flags::ASSIGNS_USER_VARS);
            if is_get && !self.is_refused_diagnostics(&text) {
                // What it finds on another connection is nobody's.
                return match self.get_saved_diagnostics(&text).await? {
                    true => Ok(()),
                    false => Err(ClientError::lost_diagnostics().into()),
                };
            }
        }
        let may_keep = wants_cursor || class.flags.contains(Flags::ASSIGNS_USER_VARS);
        let access = match self.access(&class, &text) {
            access if may_keep => access.max(Access::PrimaryRead),
            access => access,
        };
        let asked = Request::prepared(Task::Execute, (packet, id, types), &class, access);
        let answered = self.with_known_answers(&asked, &text)?;
        let text: Rc<[u8]> = answered.map_or(text, Into::into);
        let class = Rc::new(self.worker.lists.classify(&text, &self.image.vars.lex));
        let database = self.image.vars.state.database.clone();
        let directions = self.directions(&class, &text, access, &database);
        refusal(directions.as_deref())?;
        let uid = self.worker.prepared.next_statement_uid();
        self.image.statements.add_temporary(id, uid, &text, &class);
        let what = (packet, TEMPORARY, types);
        let asked = Request::prepared(Task::Execute, what, &class, access).directed(directions);
        let begun = std::time::Instant::now();
        let ran = self.run_somewhere(&asked).await;
        self.image.statements.remove(TEMPORARY);
        let mut lease = ran?;
        let opened = wants_cursor && self.running.outcome.status.contains(Status::CURSOR_EXISTS);
        if opened && let Some(statement) = self.image.statements.get_mut(id) {
            // The client fetches from the one that has the answers.
            statement.uid = uid;
            (statement.shared, statement.unused) = (false, None);
            (statement.cursor, statement.answered) = (true, true);
            self.pin(PinReason::Cursor);
        } else if let Some(held) = lease.prepared.remove(uid) {
            lease.close_statement(held).await;
        }
        let server = lease.server;
        self.conclude(lease, &asked, &text).await?;
        let kind = metric_kind(class.kind);
        let metrics = self.worker.metrics();
        metrics.statement(Some(server.index()), kind, begun.elapsed());
        Ok(())
    }

    /// A cursor was closed: the pin ends with the last one.
    fn unpin_cursor(&mut self) {
        if !self.image.statements.has_cursor() {
            self.unpin(PinReason::Cursor);
        }
    }

    /// COM_STMT_BULK_EXECUTE of MariaDB.
    pub(super) async fn bulk_execute(
        &mut self,
        packet: &[u8],
        id: u32,
        flags: u16,
    ) -> Result<(), Abort> {
        let id = self.image.statements.real(id);
        let Some(statement) = self.image.statements.get(id) else {
            return Err(self.unknown_statement(id, "mysqld_stmt_bulk_execute").await);
        };
        let _ = flags;
        let (class, text) = (statement.class.clone(), statement.text.clone());
        let context = statement.context.clone();
        let access = self.access(&class, &text);
        let directions = self.directions(&class, &text, access, &context.database);
        refusal(directions.as_deref())?;
        let request = Request::prepared(Task::Execute, (packet, id, Types::None), &class, access)
            .directed(directions);
        let lease = self.run_somewhere(&request).await?;
        self.conclude(lease, &request, &text).await
    }

    /// COM_STMT_SEND_LONG_DATA: kept until the execution; there is no answer.
    pub(super) fn keep_long_data(&mut self, id: u32, param: u16, data: &[u8]) -> Result<(), Abort> {
        let limit = self.settings.options.max_long_data;
        if self.image.statements.long_data + data.len() > limit {
            let text = format!(
                "Parameter of prepared statement which is set through mysql_send_long_data() is longer \
                 than 'max_long_data_size' bytes (Millrace: limits.max_long_data is {limit})"
            );
            return Err(Abort::Fatal(ClientError::client(1153, b"08S01", text)));
        }
        if let Some(statement) = self.image.statements.get_mut(id) {
            statement.bad_long_data |= param >= statement.params;
            match statement.long_data.last_mut() {
                Some((last, bytes))
                    if *last == param && bytes.len() + data.len() < packet::MAX_PAYLOAD - 16 =>
                {
                    bytes.extend_from_slice(data);
                }
                _ => statement.long_data.push((param, data.to_vec())),
            }
            self.image.statements.long_data += data.len();
        }
        Ok(())
    }

    /// COM_STMT_CLOSE: no answer. The server's statement goes when its connection has too many.
    pub(super) async fn close_statement(&mut self, id: u32) -> Result<(), Abort> {
        let Some(statement) = self.image.statements.remove(id) else {
            return Ok(());
        };
        if let Some(lease) = &mut self.lease
            && !statement.shared
            && let Some(server_id) = lease.prepared.remove(statement.uid)
        {
            lease.close_statement(server_id).await;
        }
        if statement.cursor {
            self.unpin_cursor();
            self.let_go();
        }
        Ok(())
    }

    /// Gives the kept connection back where nothing keeps it any more.
    fn let_go(&mut self) {
        if self.handle.pins().is_empty()
            && let Some(lease) = self.lease.take()
        {
            self.part(lease);
        }
    }

    /// COM_STMT_RESET: forgets long data and closes the cursor.
    pub(super) async fn reset_statement(&mut self, packet: &[u8], id: u32) -> Result<(), Abort> {
        let id = self.image.statements.real(id);
        self.image.statements.clear_long_data(id);
        let Some(statement) = self.image.statements.get_mut(id) else {
            return Err(self.unknown_statement(id, "mysqld_stmt_reset").await);
        };
        if !std::mem::take(&mut statement.cursor) {
            self.answered_ok();
            return self.ok(OkFields::default()).await;
        }
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = Kind::Command;
        let what = (packet, id, Types::None);
        let request = Request::prepared(Task::CloseCursor, what, &class, Access::Read);
        let ran = self.run_somewhere(&request).await;
        self.unpin_cursor();
        let ended = match ran {
            Ok(lease) => self.conclude(lease, &request, b"").await,
            Err(failure) => Err(failure),
        };
        self.worker.lists.put_statement(class);
        ended
    }

    /// COM_STMT_FETCH.
    pub(super) async fn fetch(&mut self, packet: &[u8], id: u32) -> Result<(), Abort> {
        let id = self.image.statements.real(id);
        let Some(statement) = self.image.statements.get(id) else {
            return Err(self.unknown_statement(id, "mysqld_stmt_fetch").await);
        };
        if !statement.cursor {
            let dot = if self.image.family == Family::MySql {
                "."
            } else {
                ""
            };
            let text = format!("The statement ({id}) has no open cursor{dot}");
            return Err(ClientError::client(1421, b"HY000", text).into());
        }
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = Kind::Command;
        let what = (packet, id, Types::None);
        let request = Request::prepared(Task::Fetch, what, &class, Access::Read);
        let ended = match self.run_somewhere(&request).await {
            Ok(lease) => {
                let done = self.running.outcome.error.is_some()
                    || self.running.outcome.status.contains(Status::LAST_ROW_SENT);
                if done {
                    if let Some(statement) = self.image.statements.get_mut(id) {
                        statement.cursor = false;
                    }
                    self.unpin_cursor();
                }
                self.conclude(lease, &request, b"").await
            }
            Err(failure) => Err(failure),
        };
        self.worker.lists.put_statement(class);
        ended
    }

    /// COM_RESET_CONNECTION: the session is as after the login, but for the character set, which
    /// becomes the server's default, the database, and the role, which stay (observed on both families).
    pub(super) async fn reset_connection(&mut self, packet: &[u8]) -> Result<(), Abort> {
        let _ = packet;
        Box::pin(self.end_if_kept_was_ended()).await?;
        self.read_found_rows().await;
        let has_role = self.image.held.kept_for().holds(Cause::Role);
        let of_login = self.image.held.take_role();
        let kept = self.lease.take_if(|_| has_role);
        self.release_everything();
        let database = self.image.vars.state.database.clone();
        let new = match kept {
            Some(lease) => self.reset_kept(lease, of_login).await?,
            None => self.state_of_new().await?,
        };
        self.begin_anew(new, database);
        self.ok(OkFields::default()).await
    }

    /// Resets the connection that the session keeps for the role that it has there. `of_login`: that of its login, where
    /// it is known.
    async fn reset_kept(
        &mut self,
        mut lease: Lease,
        of_login: Option<Option<Vec<u8>>>,
    ) -> Result<SessionState, Abort> {
        let facts = lease.server_facts();
        match lease.reset(&facts).await {
            Ok(state) => {
                lease.state = self.worker.states.share(state.clone());
                lease.one_shot = false;
                if let Some(role) = of_login {
                    self.image.held.leave_role(role);
                }
                self.pin_for(Cause::Role);
                self.keep(lease);
                Ok(state)
            }
            Err(error) => {
                lease.broken = true;
                self.put_back(lease);
                Err(Abort::Fatal(ClientError::backend(error)))
            }
        }
    }

    /// All that the session has set is as it is on a connection that was just reset, which has `new`.
    fn begin_anew(&mut self, new: SessionState, database: Box<[u8]>) {
        let state = SessionState {
            database,
            multi_statements: self.image.vars.state.multi_statements,
            ..new
        };
        self.set_level(self.image.reads.level_given);
        self.leave_ignore_space();
        let state = self.worker.states.share(state);
        self.set_state(state);
        self.image.status = self.image.first_status();
        self.image.vars.was_reset = true;
    }

    /// What a connection has that was just reset.
    async fn state_of_new(&mut self) -> Result<SessionState, Abort> {
        let judge = self
            .worker
            .cluster
            .with_world(|world| world.snapshot.judges().next());
        if let Some(judge) = judge {
            let facts = self.worker.cluster.servers.of(judge).facts();
            let version = facts.fresh.for_login();
            if let Some(state) = self.pool(judge).state_after_reset(version) {
                return Ok(SessionState::clone(&state));
            }
        }
        let mut lost = 0;
        loop {
            let mut lease = self.any_lease().await?;
            self.save_for_last_user(&mut lease).await;
            let facts = lease.server_facts();
            let version = facts.fresh.for_login();
            match lease.reset(&facts).await {
                Ok(state) => {
                    self.worker
                        .learnt
                        .learn_collation_number(&state, lease.login.results_number);
                    lease.state = self.worker.states.share(state.clone());
                    lease
                        .pool()
                        .note_state_after_reset(version, lease.state.clone());
                    lease.books.disown();
                    lease.give_back();
                    return Ok(state);
                }
                Err(error) => {
                    lease.broken = true;
                    let answer = self.unavailable(lease.server, error);
                    lease.give_back();
                    if !answer.passing || lost >= self.settings.options.failover.retries {
                        return Err(answer.into());
                    }
                    lost += 1;
                }
            }
        }
    }

    /// FOUND_ROWS() outlives a reset and another login (observed on both families).
    async fn read_found_rows(&mut self) {
        if self.image.last.found_rows.known {
            return;
        }
        match self.lease.take() {
            Some(mut lease) => {
                lease.begin();
                self.save_own_diagnostics(&mut lease).await;
                self.keep(lease);
            }
            None => self.gather_answers().await,
        }
        self.image.last.collect_saved();
        if !self.image.last.found_rows.known {
            self.image.last.found_rows.count = first_found_rows(self.image.family);
            self.image.last.found_rows.known = true;
        }
    }

    /// Ends all that the session has on servers, except its account.
    fn release_everything(&mut self) {
        if let Some(mut lease) = self.lease.take() {
            // Whatever lived on it ends with it.
            lease.broken = true;
            self.put_back(lease);
        }
        self.unpin_all();
        self.handle.set_connection(None);
        self.handle.set_begun(false);
        let tracked = self
            .worker
            .cluster
            .with_world(|world| world.tracked_by_default());
        self.image.reset(&tracked);
    }

    /// The login's flag puts IGNORE_SPACE into `sql_mode`. What resets a session does so again on MySQL; on
    /// MariaDB the flag is forgotten (observed on 9.7, 10.11 and 11.8).
    fn leave_ignore_space(&mut self) {
        if self.image.family == Family::MariaDb {
            self.client.capabilities.remove(Capabilities::IGNORE_SPACE);
        }
    }

    /// COM_CHANGE_USER: a login on the same connection.
    pub(super) async fn change_user(&mut self, body: &[u8]) -> Result<(), Abort> {
        let parsed = ChangeUser::parse(body, self.client.capabilities, self.image.family);
        let old_database = self.image.vars.state.database.clone();
        // What COM_SET_OPTION said outlives a change of user (observed on both families).
        let multi_statements = self.image.vars.state.multi_statements;
        Box::pin(self.end_if_kept_was_ended()).await?;
        self.read_found_rows().await;
        self.release_everything();
        let Ok(change) = parsed else {
            let answer = ClientError::client(1047, b"08S01", "Unknown command");
            return self.stays_who_it_is(&answer, 1, old_database).await;
        };
        if self.image.family == Family::MariaDb && self.client.refused_changes >= GUESSES {
            let answer = ClientError::client(1047, b"08S01", "Unknown command");
            return self.stays_who_it_is(&answer, 1, old_database).await;
        }
        self.leave_ignore_space();
        let collation = any_collation(change.collation, self.image.family);
        // MySQL cannot ask clients anew that know of no plugins: theirs is the greeting's nonce. MariaDB asks them for
        // mysql_native_password, whatever they name (observed on 10.11).
        let is_asked_anew = self.image.family == Family::MariaDb
            || self.client.capabilities.contains(Capabilities::PLUGIN_AUTH);
        let named = change.plugin.as_deref().unwrap_or_default();
        let credentials = Credentials {
            user: change.user.clone(),
            database: change.database.clone(),
            // An empty proof as well: servers ask for one (observed on both families).
            used_up: is_asked_anew,
            plugin: match named {
                [] => Plugin::NativePassword,
                name => Plugin::from_name(&String::from_utf8_lossy(name)),
            },
            response: change.auth_response,
            collation,
        };
        let worker = self.worker.clone();
        let client = std::mem::replace(
            &mut self.client.stream,
            millrace_backend::stream::Stream::Gone,
        );
        let caller = self.client.identity.caller.clone();
        let address = caller.address;
        let hello = HandshakeResponse {
            attributes: change.attributes,
            plugin: change.plugin,
            ..HandshakeResponse::default()
        };
        let mut exchange = LoginExchange::anew(
            &worker,
            (client, std::mem::take(&mut self.client.inbuf)),
            self.client.identity.nonce,
            caller,
            hello,
            self.client.capabilities,
        );
        let proof = match exchange.prove(&credentials).await {
            // A server asks whoever it does not know as well, and refuses.
            Ok(Proof::Relay) if exchange.is_nobody(&credentials).await => {
                Ok(Proof::Denied(exchange.denied(&credentials)))
            }
            proof => proof,
        };
        let sequence = exchange.sequence();
        let info = match &proof {
            Ok(Proof::Account(account)) => exchange.vouch(account),
            _ => Vec::new(),
        };
        let mut out;
        (self.client.stream, self.client.inbuf, out) = exchange.into_stream();
        match proof? {
            Proof::Account(account) => {
                self.handle.set_user(account.user.clone());
                let ignore_space = self
                    .client
                    .capabilities
                    .contains(Capabilities::IGNORE_SPACE);
                let learnt = &self.worker.learnt;
                if let Some(base) = learnt.base(&account, collation, ignore_space) {
                    self.image.vars.base = base.state;
                }
                self.client.identity.account = account;
                self.client.identity.collation = collation;
                self.begin(&credentials.database);
                if self.image.vars.state.multi_statements != multi_statements {
                    self.change_state(|state| state.multi_statements = multi_statements);
                }
                // Of variables servers tell nothing here (observed on MariaDB 11.8).
                let session = crate::login::packets::tracked_schema(&credentials.database);
                let fields = OkFields {
                    status: self.image.status,
                    session: &session,
                    info: &info,
                    ..OkFields::default()
                };
                millrace_protocol::ok::encode_ok(
                    &mut out,
                    sequence,
                    self.client.capabilities,
                    &fields,
                );
                self.send(&out).await
            }
            Proof::Denied(answer) => {
                if answer.error.code == 1045 {
                    // Passwords are no faster to guess on a session than by logins.
                    let accounts = &worker.shared.accounts;
                    accounts.hold_back(address, &worker.options()).await;
                }
                let refused = &mut self.client.refused_changes;
                *refused = refused.saturating_add(1);
                self.stays_who_it_is(&answer, sequence, old_database).await
            }
            Proof::Relay | Proof::Own(_) => {
                let answer = ClientError::no_other_user();
                worker.metrics().error(answer.side, answer.class);
                out.clear();
                crate::error::error_packet(&answer).encode(&mut out, sequence);
                self.send(&out).await?;
                Err(Abort::Ended)
            }
        }
    }

    /// The collation of a COM_CHANGE_USER. One that a handshake cannot name is at least of the right character set.
    /// Tells the client that it was not let in as another. MariaDB's session goes on as after COM_RESET_CONNECTION;
    /// MySQL closes the connection (observed).
    async fn stays_who_it_is(
        &mut self,
        answer: &ClientError,
        sequence: u8,
        database: Box<[u8]>,
    ) -> Result<(), Abort> {
        let mut out = Vec::new();
        crate::error::error_packet(answer).encode(&mut out, sequence);
        if self.image.family == Family::MySql {
            self.send(&out).await?;
            return Err(Abort::Ended);
        }
        match self.state_of_new().await {
            Ok(new) => self.begin_anew(new, database),
            Err(_) => self.begin(&database),
        }
        self.send(&out).await
    }
}
