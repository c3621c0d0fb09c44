//! The story of a session: reads a command, decides where it runs, has it run there, takes in
//! what changed, and so on until the client leaves. The only module that calls sideways.

pub(crate) mod kill;
pub(crate) mod prepared_statements;

use crate::statement::request::Task;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Instant;

use std::rc::Rc;

use millrace_backend::pool::Lease;
use millrace_metrics::{PinReason, StatementKind};
use millrace_protocol::Status;
use millrace_protocol::command::{Command, Query};
use millrace_protocol::ok::{OkFields, encode_end, encode_ok};
use millrace_protocol::packet;
use millrace_routing::rules::Directions;
use millrace_routing::{Catalogue, Reason, Target};
use millrace_sql::{Access, Family, Flags, HandlerOp, Kind, Statement, Traits, classify, parts};
use millrace_topology::ServerId;

use crate::answers::messages::error_row;
use crate::answers::session_functions::{asks_connection, asks_own_number, with_connection_id};
use crate::error::{Abort, ClientError};
use crate::failover::journal::Unreplayable;
use crate::failover::wait_queue::Place;
use crate::image::last::IdBefore;
use crate::image::sequences::asks_drawn;
use crate::image::user_variables::variable_name;
use crate::login::error_packet;
use crate::session::Session;
use crate::statement::attempt::AttemptOutcome;
use crate::statement::directions::refusal;
use crate::statement::refusals::is_full;
use crate::statement::request::{Main, Request};
use crate::statement::route;
use crate::statement::rule_actions::{demands, too_slow};

impl Session {
    /// Serves the client until it leaves or must.
    pub(crate) async fn run(mut self: Box<Self>) {
        let handle = self.handle.clone();
        loop {
            let length = match self.next_command().await {
                Ok(Some(length)) => length,
                Ok(None) => break,
                Err(failure) => {
                    Box::pin(self.tell(failure)).await;
                    break;
                }
            };
            let command = self.take_command(length);
            self.handle.busy_since.set(self.worker.tick());
            self.handle.counts.command();
            self.handle.interrupted.set(false);
            self.handle.timed_out.set(false);
            self.running.outcome.forwarded = false;
            // Boxed, so that a session that waits for its client is small; and made in the box,
            // where `Box::pin` would copy all the room it takes.
            let running = Box::write(Box::new_uninit(), self.command(&command));
            let mut running = Box::into_pin(running);
            // Whatever a command waits for, it is dropped, and its server connection closed, when the
            // client is gone.
            let ended = poll_fn(|cx| match running.as_mut().poll(cx) {
                Poll::Pending if handle.has_lost_client(cx) => {
                    Poll::Ready(Err(Abort::Client(io::ErrorKind::ConnectionReset.into())))
                }
                polled => polled,
            });
            let ended = ended.await;
            drop(running);
            let ended = match ended {
                Ok(()) if self.client.pending.is_empty() => Ok(()),
                Ok(()) => Box::pin(self.flush()).await,
                failed => failed,
            };
            self.running.rule_actions = None;
            self.handle.busy_since.set(0);
            self.handle.heard.set(self.worker.tick());
            self.worker.lists.put_buffer(command);
            if let Err(failure) = ended {
                let goes_on = matches!(failure, Abort::Error(_));
                Box::pin(self.tell(failure)).await;
                if !goes_on {
                    break;
                }
            }
        }
        if self.handle.idled.get() {
            Box::pin(self.tell_idle()).await;
        }
        Box::pin(self.client.stream.close()).await;
    }

    /// Tells an idle client that its time is up, as MySQL does; MariaDB closes the connection without a
    /// word.
    async fn tell_idle(&mut self) {
        if self.image.family == Family::MySql {
            let text = "The client was disconnected by the server because of inactivity. See \
                        wait_timeout and interactive_timeout for configuring this behavior.";
            let answer = ClientError::client(4031, b"HY000", text);
            let mut out = Vec::new();
            error_packet(&answer).encode(&mut out, 0);
            let _ = self.send(&out).await;
        }
    }

    /// Shows a failure to the client, as far as it is one for the client to see.
    async fn tell(&mut self, failure: Abort) {
        let (Abort::Error(answer) | Abort::Fatal(answer)) = failure else {
            return;
        };
        self.worker.metrics().error(answer.side, answer.class);
        let mut out = Vec::new();
        error_packet(&answer).encode(&mut out, 1);
        (self.running.touching, self.running.untracked) = (None, None);
        self.note_told(&answer);
        let _ = self.send(&out).await;
        self.raise_on_kept(&answer.error).await;
    }

    /// An error that no connection knows of can be asked for like one that a server has sent.
    fn note_told(&mut self, answer: &ClientError) {
        self.image.last.answered_here(-1);
        let error = &answer.error;
        self.image.last.messages.last_error = Some((error.code, error.state));
        self.image.last.messages.at = self.worker.cluster.with_world(|world| {
            let any = world.snapshot.servers.first().map(|view| view.id);
            Some((world.snapshot.primary.or(any)?, self.image.last.seq + 1))
        });
        let Some((_, seq)) = self.image.last.messages.at else {
            return;
        };
        self.image.last.seq = seq;
        let mut messages = std::mem::take(&mut self.image.last.messages.kept);
        messages.push(error_row(error.code, &error.message));
        self.image.last.messages.ok_count = Some(1);
        self.image.last.messages.count = messages.len() as u64;
        self.handle.saved.keep(seq).warnings = Some(messages);
    }

    /// Waits for a whole command; answers its length in the buffer. None where the client left.
    async fn next_command(&mut self) -> Result<Option<usize>, Abort> {
        loop {
            if let Some(length) = packet::whole(&self.client.inbuf) {
                return Ok(Some(length));
            }
            let limit = self.worker.options().packet_max;
            let announced =
                packet::header(&self.client.inbuf).map_or(0, |header| header.len as usize);
            if self.client.inbuf.len().max(announced) > limit {
                let text = format!(
                    "Got a packet bigger than 'max_allowed_packet' bytes (Millrace: limits.max_packet is {limit})"
                );
                let answer = ClientError::client(1153, b"08S01", text);
                Box::pin(self.refuse_long(&answer)).await;
                return Ok(None);
            }
            match self.read_client().await {
                Ok(0) | Err(Abort::Client(_) | Abort::Ended) => return Ok(None),
                Ok(_) => {}
                Err(Abort::Evicted) => self.check_role_of_kept(),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// The command that is at hand, out of the buffer that it was read into. Most are short and come
    /// alone: those are copied, so that the buffer, which the processor has at hand, is the next
    /// client's, and such a statement holds little while it waits.
    fn take_command(&mut self, length: usize) -> Vec<u8> {
        if length == self.client.inbuf.len()
            && let Some(command) = self.worker.lists.copy_of(&self.client.inbuf)
        {
            self.worker
                .lists
                .put_buffer(std::mem::take(&mut self.client.inbuf));
            return command;
        }
        let rest = self.client.inbuf.split_off(length);
        std::mem::replace(&mut self.client.inbuf, rest)
    }

    /// Answers a command that is too long. The client reads only when it has sent all of it, so
    /// the rest is read as well, for a moment.
    async fn refuse_long(&mut self, answer: &ClientError) {
        self.worker.metrics().error(answer.side, answer.class);
        let mut sequence = 0;
        let mut at = 0;
        while let Some(header) = self.client.inbuf.get(at..).and_then(packet::header) {
            sequence = header.seq;
            at += packet::HEADER + header.len as usize;
        }
        let mut out = Vec::new();
        error_packet(answer).encode(&mut out, sequence.wrapping_add(1));
        let refusing = async {
            let _ = self.send(&out).await;
            loop {
                self.client.inbuf.clear();
                if !matches!(self.read_client().await, Ok(read) if read > 0) {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(std::time::Duration::from_secs(1), refusing).await;
    }

    /// Reads what the client has sent; 0 at its end. While there is nothing to read the session
    /// holds no buffer.
    pub(crate) async fn read_client(&mut self) -> Result<usize, Abort> {
        poll_fn(|cx| {
            self.handle.register(cx);
            let working =
                self.handle.pins.has(PinReason::Transaction) || self.handle.pins.has(PinReason::Xa);
            let working = working || self.image.tx.replay.is_some();
            let idle = !working && !self.image.tx.is_deferred();
            if self.handle.evict.get() && self.lease.is_some() && self.client.inbuf.is_empty() {
                return Poll::Ready(Err(Abort::Evicted));
            }
            if self.handle.ended.get()
                || (self.handle.draining.get() && idle && self.client.inbuf.is_empty())
            {
                return Poll::Ready(Err(Abort::Ended));
            }
            let worker = &self.worker;
            let make_room = |inbuf: &mut Vec<u8>| {
                if inbuf.capacity() == 0 {
                    *inbuf = worker.lists.take_buffer();
                } else if inbuf.capacity() - inbuf.len() < 4096 {
                    let wanted = packet::header(inbuf).map_or(0, |header| header.len as usize);
                    inbuf.reserve((wanted + 8).clamp(16 * 1024, 1 << 20));
                }
            };
            let read = (self.client.stream).poll_read_into(cx, &mut self.client.inbuf, make_room);
            if read.is_pending()
                && self.client.inbuf.is_empty()
                && self.client.inbuf.capacity() != 0
            {
                self.worker
                    .lists
                    .put_buffer(std::mem::take(&mut self.client.inbuf));
            }
            if let Poll::Ready(Ok(read)) = read {
                self.worker.metrics().received(read as u64);
                self.handle.counts.received(read);
            }
            read.map_err(Abort::Client)
        })
        .await
    }

    /// One command.
    async fn command(&mut self, packet: &[u8]) -> Result<(), Abort> {
        if self.handle.saved.is_saving() {
            Box::pin(self.wait_until_saved()).await;
        }
        let payload = packet::payload(packet);
        let Ok(command) = Command::parse(&payload, self.client.capabilities) else {
            let dot = if self.image.family == Family::MySql {
                "."
            } else {
                ""
            };
            let text = format!("Malformed communication packet{dot}");
            return Err(ClientError::client(1835, b"HY000", text).into());
        };
        match command {
            Command::Query(query) => {
                let class = self.worker.lists.classify(query.text, &self.image.vars.lex);
                let access = self.access(&class, query.text);
                // What is asked of Millrace itself is no matter of rules.
                let directions = match self.selection.is_empty() || !route::is_own(query.text) {
                    true => {
                        self.directions(&class, query.text, access, &self.image.vars.state.database)
                    }
                    false => None,
                };
                refusal(directions.as_deref())?;
                if let Some(text) = self.rewritten(directions.as_deref(), query.text) {
                    self.worker.lists.put_class(class);
                    return Box::pin(self.rewritten_query(query.attributes, &text)).await;
                }
                let request =
                    Request::packet(Task::Query, packet, &class, access).directed(directions);
                let ran = if is_simple(&class) {
                    self.statement(&request, query.text).await
                } else {
                    Box::pin(self.odd_query(&request, query)).await
                };
                self.worker.lists.put_class(class);
                ran
            }
            Command::StmtExecute(execute) => self.execute(packet, &payload, execute).await,
            Command::StmtPrepare(text) => Box::pin(self.prepare(packet, text)).await,
            Command::Quit => Err(Abort::Ended),
            // On a kept connection: its OK has the status that an error before it did not tell.
            Command::Ping if self.lease.is_some() => Box::pin(self.ping_kept(packet)).await,
            Command::Ping => Box::pin(self.answer_ok()).await,
            Command::StmtClose(id) => Box::pin(self.close_statement(id)).await,
            Command::StmtSendLongData { id, param, data } => self.keep_long_data(id, param, data),
            Command::StmtReset(id) => Box::pin(self.reset_statement(packet, id)).await,
            Command::StmtFetch { id, .. } => Box::pin(self.fetch(packet, id)).await,
            Command::StmtBulkExecute { id, flags, .. } => {
                Box::pin(self.bulk_execute(packet, id, flags)).await
            }
            Command::InitDb(name) => Box::pin(self.init_db(packet, name)).await,
            Command::FieldList(_) => {
                Box::pin(self.forward(Task::FieldList, packet, Access::PrimaryRead)).await
            }
            Command::SetOption(option) => self.set_option(option).await,
            Command::ResetConnection => Box::pin(self.reset_connection(packet)).await,
            Command::ChangeUser(body) => Box::pin(self.change_user(body)).await,
            Command::ProcessKill(id) => Box::pin(self.kill_connection(packet, u64::from(id))).await,
            Command::Replication(_) => Box::pin(self.replicate(packet)).await,
            Command::Statistics => {
                Box::pin(self.forward(Task::Statistics, packet, Access::PrimaryRead)).await
            }
            Command::ProcessInfo => {
                Box::pin(self.forward(Task::ProcessInfo, packet, Access::PrimaryRead)).await
            }
            Command::CreateDb(_)
            | Command::DropDb(_)
            | Command::Refresh(_)
            | Command::Shutdown
            | Command::Debug => {
                Box::pin(self.forward(Task::Administer, packet, Access::Write)).await
            }
            Command::Other(_) => Err(ClientError::client(1047, b"08S01", "Unknown command").into()),
        }
    }

    /// A query that a rule has written anew. What rules say of the new text holds, but it is not
    /// rewritten again.
    async fn rewritten_query(&mut self, attributes: &[u8], text: &[u8]) -> Result<(), Abort> {
        let class = self.worker.lists.classify(text, &self.image.vars.lex);
        let access = self.access(&class, text);
        let directions = self.said(&class, text, access, &self.image.vars.state.database);
        self.worker.lists.put_class(class);
        refusal(directions.as_deref())?;
        self.substituted_query(attributes, text, directions, false)
            .await
    }

    /// A query in which answers took the place of questions. `numbered`: the client's own number did.
    async fn substituted_query(
        &mut self,
        attributes: &[u8],
        text: &[u8],
        directions: Option<Rc<Directions>>,
        numbered: bool,
    ) -> Result<(), Abort> {
        let mut payload = vec![millrace_protocol::command::COM_QUERY];
        payload.extend_from_slice(attributes);
        payload.extend_from_slice(text);
        let mut packet = Vec::new();
        packet::frame(&mut packet, 0, &payload);
        let mut class = self.worker.lists.take_statement();
        classify(text, &self.image.vars.lex, &mut class);
        if numbered && !asks_connection(text, &self.image.vars.lex) {
            class.flags.remove(Flags::USES_CONNECTION_ID);
        }
        let access = self.access(&class, text);
        let request = Request::packet(Task::Query, &packet, &class, access).directed(directions);
        let ran = if is_simple(&class) {
            self.statement(&request, text).await
        } else {
            Box::pin(self.special(&request, text, None)).await
        };
        if class.kind == Kind::Diagnostics && self.image.family == Family::MySql {
            // Unlike a SHOW, a SELECT clears the messages (observed).
            self.image.last.messages.at = None;
        }
        self.worker.lists.put_statement(class);
        ran
    }

    /// A query that may need more than a server.
    async fn odd_query(&mut self, request: &Request<'_>, query: Query<'_>) -> Result<(), Abort> {
        if asks_own_number(request.class)
            && let Some(text) = with_connection_id(query.text, self.id)
        {
            let directions = request.directions.clone();
            return self
                .substituted_query(query.attributes, &text, directions, true)
                .await;
        }
        self.special(request, query.text, Some(query.attributes))
            .await
    }

    /// Waits while another session saves what this one may ask about its last statements.
    pub(crate) async fn wait_until_saved(&self) {
        let saved = poll_fn(|cx| self.handle.saved.poll_saved(cx));
        // A connection that does not answer must not keep its last user from going on.
        let _ = tokio::time::timeout(SAVING, saved).await;
    }

    /// Statements that are answered here, put off, or about the statement before. `attributes`:
    /// those of a query in which nothing was replaced yet.
    async fn special(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
        attributes: Option<&[u8]>,
    ) -> Result<(), Abort> {
        if self.has_left_messages(request.class) {
            self.gather_answers().await;
        }
        if self.answer_locally(request, text).await? {
            return Ok(());
        }
        self.fetch_answers(request).await;
        if let Some(attributes) = attributes
            && let Some(text) = self.with_known_answers(request, text)?
        {
            let directions = request.directions.clone();
            let answering = self.substituted_query(attributes, &text, directions, false);
            return Box::pin(answering).await;
        }
        match request.class.kind {
            Kind::Diagnostics if self.has_lost_diagnostics(request.class) => {
                if self.get_saved_diagnostics(text).await? {
                    return Ok(());
                }
                Err(ClientError::client(
                    1105,
                    b"HY000",
                    "Millrace: the connection that GET DIAGNOSTICS asks about has been used by others, and \
                     this form of it cannot be answered without; ask with SHOW WARNINGS",
                )
                .into())
            }
            Kind::Kill => self.kill(request, text).await,
            Kind::Execute { immediate: false } => self.execute_named(request, text).await,
            _ => self.statement(request, text).await,
        }
    }

    /// EXECUTE: runs where the prepared statement's own text belongs.
    async fn execute_named(&mut self, request: &Request<'_>, text: &[u8]) -> Result<(), Abort> {
        let name = request
            .class
            .name
            .map(|name| variable_name(name.name.of(text)));
        let named = name.and_then(|name| self.image.vars.private.statement(&name));
        let Some(body) = named.map(|named| named.body.clone()) else {
            return self.statement(request, text).await;
        };
        let inner = self.worker.lists.classify(&body, &self.image.vars.lex);
        let access = self.access(&inner, &body);
        let directions = self.directions(&inner, &body, access, &self.image.vars.state.database);
        refusal(directions.as_deref())?;
        let (Main::Packet(packet) | Main::Execute { packet, .. }) = request.main;
        let request = Request {
            inner: Some((&inner, &body)),
            directions,
            ..Request::packet(Task::Query, packet, request.class, access)
        };
        let ran = self.statement(&request, text).await;
        self.worker.lists.put_class(inner);
        ran
    }

    /// What a statement needs, with stored routines and views looked at.
    pub(crate) fn access(&self, class: &Statement, text: &[u8]) -> Access {
        if class.functions.is_empty() && class.access == Access::Write {
            return Access::Write;
        }
        if self.worker.cluster.is_catalogue_stale() && self.names_touched(class, text) {
            return Access::Write;
        }
        let catalogue = self.worker.cluster.catalogue();
        let access = catalogue.effective_access(class, text, &self.image.vars.state.database);
        // What sets session state may come to keep its connection, and a kept one must be able
        // to take whatever comes next.
        let keeps = access == Access::Session || class.flags.contains(Flags::USES_CONNECTION_ID);
        // `id IS NULL` then finds the row last inserted, which only the primary knows.
        let finds_last = class.kind == Kind::Select && self.image.vars.switches.finds_last_row;
        if keeps || finds_last {
            access.max(Access::PrimaryRead)
        } else {
            access
        }
    }

    /// Whether the statement names stored code that DDL has touched since it was read.
    pub(crate) fn names_touched(&self, class: &Statement, text: &[u8]) -> bool {
        let database = &self.image.vars.state.database;
        self.worker.cluster.names_touched(class, text, database)
    }

    /// A write is about to be sent: from now on until its outcome is known, others' reads and writes may have to
    /// reckon with it. Not while it waits for its place.
    pub(crate) fn begin_write(&mut self, request: &Request<'_>) {
        if self.running.untracked.is_none() && self.may_be_untracked(request) {
            self.running.untracked = Some(self.worker.shared.written.conceal());
        }
        if self.running.touching.is_none() && defines_code(request) {
            self.touch(request);
        }
    }

    /// Notes which stored code the request is about to define: what it means is not known until it was read.
    fn touch(&mut self, request: &Request<'_>) {
        let mut names = Vec::new();
        match (request.inner, &request.main) {
            (Some((inner, body)), _) => self.add_touched(inner, body, &mut names),
            (None, Main::Execute { id, .. }) => {
                if let Some(statement) = self.image.statements.get(*id) {
                    self.add_touched(&statement.class, &statement.text, &mut names);
                }
            }
            (None, Main::Packet(packet)) => {
                let payload = packet::payload(packet);
                if let Ok(Command::Query(query)) =
                    Command::parse(&payload, self.client.capabilities)
                {
                    self.add_touched(request.class, query.text, &mut names);
                }
            }
        }
        let touched = self.worker.shared.monitor.touched();
        self.running.touching = Some(touched.begin(names));
    }

    fn add_touched(&self, class: &Statement, text: &[u8], names: &mut Vec<Box<[u8]>>) {
        let database = &self.image.vars.state.database;
        if class.kind != Kind::Multi {
            names.extend(Catalogue::touched(class, text, database));
            return;
        }
        let mut part = self.worker.lists.take_statement();
        for span in parts(text, &self.image.vars.lex) {
            let text = span.of(text);
            classify(text, &self.image.vars.lex, &mut part);
            if part.flags.contains(Flags::STORED_CODE) {
                names.extend(Catalogue::touched(&part, text, database));
            }
        }
        self.worker.lists.put_statement(part);
    }

    /// Runs a statement where it belongs and takes in what it changed.
    pub(crate) async fn statement(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
    ) -> Result<(), Abort> {
        // Not in the future, which is to be small.
        self.running.begun = Instant::now();
        self.running.runs_since.set(self.running.begun);
        let lease = self.run_somewhere(request).await?;
        let server = lease.server;
        self.conclude(lease, request, text).await?;
        let kind = metric_kind(request.class.kind);
        let elapsed = self.running.begun.elapsed();
        self.worker
            .metrics()
            .statement(Some(server.index()), kind, elapsed);
        if request.access == Access::Read {
            self.worker.cluster.servers.of(server).responded(elapsed);
        }
        Ok(())
    }

    /// Tries the servers that may run the request, in order, until one has answered.
    pub(crate) async fn run_somewhere(&mut self, request: &Request<'_>) -> Result<Lease, Abort> {
        self.running
            .route
            .begin(self.level_for(request), request.directions.as_ref());
        if let Some(directions) = request.directions.as_deref().filter(|it| demands(it)) {
            Box::pin(self.obey(request, directions)).await?;
        }
        if asks_drawn(request)
            && let Some(lease) = self.drawing_connection()?
        {
            self.running.route.server = Some(lease.server);
            if let Some(lease) = Box::pin(self.run_on_own(lease, request)).await? {
                return Ok(lease);
            }
        }
        if let Some(mut lease) = self.lease.take() {
            lease.begin();
            self.running.route.server = Some(lease.server);
            if let Some(lease) = Box::pin(self.run_on_kept(lease, request)).await? {
                return Ok(lease);
            }
        } else if self.image.tx.replay.is_some() {
            self.resume(request)?;
        } else if let Some(lease) = self.own_connection(request) {
            self.running.route.server = Some(lease.server);
            if let Some(lease) = Box::pin(self.run_on_own(lease, request)).await? {
                return Ok(lease);
            }
        }
        self.image.reads.primary_position = None;
        if self.needs_primary_position(request) {
            Box::pin(self.ask_frontier()).await;
        } else if let Some(stuck) = self.is_stuck(request) {
            Box::pin(self.come_loose(stuck)).await;
        }
        if self.must_queue(request) {
            return Box::pin(self.hold(request, None)).await;
        }
        loop {
            match self.try_servers(request, None).await? {
                RouteOutcome::Answered(lease) => return Ok(lease),
                RouteOutcome::NotYet(_) if self.running.route.is_tried_anew() => {}
                RouteOutcome::NotYet(why) => return Box::pin(self.hold(request, Some(why))).await,
            }
        }
    }

    /// Tries the servers that may run the request now, in order, until one has answered. `place`: its
    /// own among the statements that wait.
    pub(crate) async fn try_servers(
        &mut self,
        request: &Request<'_>,
        place: Option<&Place>,
    ) -> Result<RouteOutcome, Abort> {
        let mut candidates = match self.candidates(request) {
            Ok(candidates) => candidates,
            Err(why) => return Ok(RouteOutcome::NotYet(why)),
        };
        let mut refusal = None;
        let mut by_replica = false;
        let mut at = 0;
        while let Some(candidate) = candidates.get(at).copied() {
            let pool = self.pool_for(candidate.server, request.class);
            let state = self.image.vars.state.clone();
            // In one expression: what has a name of its own takes room until the statement ends.
            let mut lease = match self.take_idle(candidate.server, &pool, &state, request) {
                Some(lease) => lease,
                None if self.is_passed_by(request, &pool, &mut candidates, at) => continue,
                None => match self
                    .take_lease(
                        candidate.server,
                        &pool,
                        &state,
                        request,
                        at + 1 == candidates.len(),
                    )
                    .await
                {
                    Ok(lease) => lease,
                    // A server's word on the account's limit; who has waited for a place has waited.
                    Err(Abort::Error(why))
                        if why.side == millrace_metrics::Side::Server
                            && self.looks_further(request, &pool, &mut candidates, at) =>
                    {
                        continue;
                    }
                    Err(Abort::Error(why)) if !self.was_killed() => {
                        by_replica = self.may_be_late(candidate.server, &why);
                        refusal = Some(why);
                        at += 1;
                        continue;
                    }
                    Err(failure) => return Err(failure),
                },
            };
            if candidate.wait && self.is_deaf(&lease, request) {
                // Another of the same server's, or a new one.
                Box::pin(self.part_with_deaf(lease)).await;
                continue;
            }
            at += 1;
            if let Some(place) = place {
                place.connected();
            }
            self.note_version(&lease);
            self.handle.on.set(Some((lease.server, lease.thread_id)));
            (self.running.route.server, self.running.route.waited) =
                (Some(lease.server), candidate.wait);
            if self.handle.interrupted.get() {
                self.put_back(lease);
                return Err(self.interrupted().await);
            }
            match self.attempt(&mut lease, request, candidate.wait).await {
                Ok(AttemptOutcome::Done) => return Ok(RouteOutcome::Answered(lease)),
                // It was the session's own by then: its transaction had been run again there.
                Ok(AttemptOutcome::Gone { why, sent }) => {
                    let leaving = self.leave(lease, request, why, sent);
                    return Ok(RouteOutcome::NotYet(Box::pin(leaving).await?));
                }
                Ok(AttemptOutcome::Lacks(answer)) => {
                    self.put_back(lease);
                    return Box::pin(self.ask_primary(request, answer)).await;
                }
                Ok(AttemptOutcome::Elsewhere(answer)) => {
                    // The server has taken a KILL for what went ahead of the statement.
                    let killed = self.handle.tainted.get() && answer.error.code == 1317;
                    self.running.route.refused = self.running.route.refused.saturating_add(1);
                    by_replica = self.may_be_late(candidate.server, &answer);
                    refusal = Some(answer);
                    self.put_back(lease);
                    if killed || self.handle.interrupted.get() {
                        return Err(self.interrupted().await);
                    }
                    if std::mem::take(&mut self.running.route.state_refused)
                        && Box::pin(self.forgo_state(candidate.server)).await
                    {
                        return Box::pin(self.try_servers(request, place)).await;
                    }
                }
                Err(failure) => {
                    self.part_after(lease);
                    return Err(failure);
                }
            }
        }
        match refusal {
            Some(why) if why.passing => Ok(RouteOutcome::NotYet(why)),
            Some(why) if !by_replica && self.does_without_database(request, &why) => {
                Box::pin(self.try_servers(request, place)).await
            }
            Some(why)
                if by_replica
                    && self.image.tx.replay.is_none()
                    && self.client.target == Target::Auto =>
            {
                Box::pin(self.ask_primary(request, why)).await
            }
            Some(_) if self.image.tx.replay.is_some() => {
                Err(self.lose_transaction(Unreplayable::NoServer))
            }
            Some(why) => Err(why.into()),
            None => Err(Abort::Ended),
        }
    }

    /// Whether a refusal is the word of a replica, which may lack the session's database, its account or a
    /// setting of it because it is late.
    pub(crate) fn may_be_late(&self, server: ServerId, why: &ClientError) -> bool {
        let primary = self.worker.cluster.primary();
        why.side == millrace_metrics::Side::Server
            && !is_full(why)
            && primary.is_some_and(|primary| primary != server)
    }

    /// A replica may lack what the statement names: the primary's answer is the one that counts, also where it
    /// has to be waited for. Where there is no primary, the replica's is all there is.
    async fn ask_primary(
        &mut self,
        request: &Request<'_>,
        answer: ClientError,
    ) -> Result<RouteOutcome, Abort> {
        self.running.route.refused = self.running.route.refused.saturating_add(1);
        let Some(primary) = self.worker.cluster.primary() else {
            return Err(answer.into());
        };
        let pool = self.pool_for(primary, request.class);
        let state = self.image.vars.state.clone();
        // The replica may have shown the session more than the primary has.
        let wait = self.may_primary_lag(request);
        let mut lease = loop {
            let taken = match self.take_idle(primary, &pool, &state, request) {
                Some(lease) => Ok(lease),
                None => {
                    let taking = self.take_lease(primary, &pool, &state, request, true);
                    taking.await
                }
            };
            match taken {
                Ok(lease) if wait && self.is_deaf(&lease, request) => {
                    self.part_with_deaf(lease).await;
                }
                Ok(lease) => break lease,
                Err(Abort::Error(why)) if why.passing && !self.was_killed() => {
                    return Ok(RouteOutcome::NotYet(why));
                }
                Err(failure) => return Err(failure),
            }
        };
        self.note_version(&lease);
        self.handle.on.set(Some((lease.server, lease.thread_id)));
        (self.running.route.server, self.running.route.waited) = (Some(lease.server), wait);
        self.running.route.reason = Some(Reason::ReplicaLacks);
        if self.handle.interrupted.get() {
            self.put_back(lease);
            return Err(self.interrupted().await);
        }
        match self.attempt(&mut lease, request, wait).await {
            Ok(AttemptOutcome::Done) => Ok(RouteOutcome::Answered(lease)),
            Ok(AttemptOutcome::Gone { why, sent }) => {
                let leaving = self.leave(lease, request, why, sent);
                Ok(RouteOutcome::NotYet(leaving.await?))
            }
            Ok(AttemptOutcome::Elsewhere(told) | AttemptOutcome::Lacks(told)) => {
                self.put_back(lease);
                match told.passing {
                    true => Ok(RouteOutcome::NotYet(told)),
                    false if self.does_without_database(request, &told) => {
                        Box::pin(self.try_servers(request, None)).await
                    }
                    // An error that the primary gave before the statement, while it was being prepared, counts.
                    false => Err(told.into()),
                }
            }
            Err(failure) => {
                self.part_after(lease);
                Err(failure)
            }
        }
    }

    /// Parts with a connection on which a statement failed before it was run. A transaction that had
    /// just been run again there stays with it.
    fn part_after(&mut self, lease: Lease) {
        if self.lease_is_kept() && lease.is_clean() {
            self.keep(lease);
            return;
        }
        if self.lease_is_kept() {
            self.end_transaction();
        }
        self.put_back(lease);
    }

    /// Runs the request on the connection that the session keeps; none where that has to be left and
    /// another will do.
    async fn run_on_kept(
        &mut self,
        mut lease: Lease,
        request: &Request<'_>,
    ) -> Result<Option<Lease>, Abort> {
        let (why, sent) = match self.reason_to_leave(&mut lease, request) {
            Some(why) => (why, false),
            None => match self.attempt(&mut lease, request, false).await {
                Ok(AttemptOutcome::Done) => return Ok(Some(lease)),
                Ok(AttemptOutcome::Gone { why, sent }) => (why, sent),
                // Refused, and the connection is as it was.
                Ok(AttemptOutcome::Elsewhere(answer) | AttemptOutcome::Lacks(answer))
                    if lease.is_clean() =>
                {
                    self.keep(lease);
                    return Err(Abort::Error(answer));
                }
                // It broke before the statement was sent.
                Ok(AttemptOutcome::Elsewhere(answer)) if answer.passing => (answer, false),
                Ok(AttemptOutcome::Elsewhere(answer) | AttemptOutcome::Lacks(answer)) => {
                    return Err(Abort::Fatal(answer));
                }
                Err(failure) => {
                    if lease.is_clean() {
                        self.keep(lease);
                    }
                    return Err(failure);
                }
            },
        };
        self.leave(lease, request, why, sent).await?;
        Ok(None)
    }

    /// A statement about the session's last one runs on the connection of the last one, if
    /// nobody else has used that since.
    fn own_connection(&mut self, request: &Request<'_>) -> Option<Lease> {
        let class = request.class;
        let about_messages =
            class.kind == Kind::Diagnostics || class.flags.contains(Flags::USES_WARNING_COUNT);
        let (server, seq) = if about_messages {
            self.image.last.diagnosed(class)?
        } else if class.flags.contains(Flags::USES_ROW_COUNT) {
            (self.image.last.server?, self.image.last.seq)
        } else if class.flags.contains(Flags::USES_FOUND_ROWS) {
            self.image.last.found_rows.at?
        } else if class.flags.contains(Flags::USES_LAST_INSERT_ID)
            && self.image.last.insert_id.before != IdBefore::Unknown
        {
            self.image.last.insert_id.at?
        } else {
            return None;
        };
        if !self.suits(server, class, request.access) {
            return None;
        }
        self.pool(server).try_take_own(self.handle.uid, seq)
    }

    /// What becomes of a statement that was killed before a server ran it.
    pub(crate) async fn interrupted(&self) -> Abort {
        if self.is_killed().await {
            return Abort::Ended;
        }
        if self.handle.timed_out.take() {
            return too_slow().into();
        }
        ClientError::client(1317, b"70100", "Query execution was interrupted").into()
    }

    /// None where the connection is gone and the statement was not run: another will have to do.
    async fn run_on_own(
        &mut self,
        mut lease: Lease,
        request: &Request<'_>,
    ) -> Result<Option<Lease>, Abort> {
        self.handle.on.set(Some((lease.server, lease.thread_id)));
        match self.attempt(&mut lease, request, false).await {
            Ok(AttemptOutcome::Done) => Ok(Some(lease)),
            Ok(AttemptOutcome::Lacks(_)) => {
                self.put_back(lease);
                Ok(None)
            }
            Ok(AttemptOutcome::Elsewhere(answer) | AttemptOutcome::Gone { why: answer, .. }) => {
                self.put_back(lease);
                if answer.passing {
                    Ok(None)
                } else {
                    Err(Abort::Error(answer))
                }
            }
            Err(failure) => {
                self.put_back(lease);
                Err(failure)
            }
        }
    }

    /// An OK of Millrace's own.
    pub(crate) async fn ok(&mut self, fields: OkFields<'_>) -> Result<(), Abort> {
        let mut out = Vec::new();
        let fields = OkFields {
            status: fields.status | self.idle_status(),
            ..fields
        };
        encode_ok(&mut out, 1, self.client.capabilities, &fields);
        self.send(&out).await
    }

    /// A command that Millrace has answered with an OK by itself leaves ROW_COUNT() as an OK without
    /// rows does, and nothing else changed.
    pub(crate) fn answered_ok(&mut self) {
        self.image.last.answered_here(0);
    }

    /// Such a command, as MySQL answers it: it counts the messages of the statement before.
    pub(crate) async fn answer_ok(&mut self) -> Result<(), Abort> {
        let warnings = self.count_messages().await;
        self.answered_ok();
        self.ok(OkFields {
            warnings,
            ..OkFields::default()
        })
        .await
    }

    async fn ping_kept(&mut self, packet: &[u8]) -> Result<(), Abort> {
        if self.image.last.messages.at.is_none() || self.image.last.has_saved_messages() {
            // Whatever its server counts was Millrace's own.
            self.image.last.messages.ok_warnings = Some(self.count_messages().await);
        }
        let pinging = self.forward(Task::Ping, packet, Access::Read);
        let pinged = pinging.await;
        self.image.last.messages.ok_warnings = None;
        pinged
    }

    /// The status flags that hold between statements.
    pub(crate) fn idle_status(&self) -> Status {
        // 0x8000 is MariaDB's ANSI_QUOTES.
        let kept = Status::AUTOCOMMIT
            | Status::from_bits_retain(0x8000)
            | Status::NO_BACKSLASH_ESCAPES
            | Status::IN_TRANS
            | Status::IN_TRANS_READONLY;
        self.image.status & kept
    }

    /// COM_SET_OPTION: multi-statements on or off.
    async fn set_option(&mut self, option: u16) -> Result<(), Abort> {
        let on = match option {
            0 => true,
            1 => false,
            _ => return Err(ClientError::client(1047, b"08S01", "Unknown command").into()),
        };
        self.change_state(|state| state.multi_statements = on);
        // Its EOF counts as a result (observed).
        self.image.last.answered_here(-1);
        let mut out = Vec::new();
        let fields = OkFields {
            status: self.idle_status(),
            ..OkFields::default()
        };
        encode_end(&mut out, 1, self.client.capabilities, &fields);
        self.send(&out).await
    }

    /// A command that is passed on as it is.
    async fn forward(&mut self, task: Task, packet: &[u8], access: Access) -> Result<(), Abort> {
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = task.kind();
        let request = Request::packet(task, packet, &class, access);
        let ran = self.statement(&request, b"").await;
        self.worker.lists.put_statement(class);
        ran
    }

    /// COM_INIT_DB.
    async fn init_db(&mut self, packet: &[u8], name: &[u8]) -> Result<(), Abort> {
        // On MySQL it leaves the messages of the statement before, and adds its own (observed).
        let count = self.count_messages().await;
        if self.image.family == Family::MariaDb || self.image.last.messages.at.is_none() {
            return self.choose_database(packet, name).await;
        }
        self.image.last.messages.kept = self.image.last.saved_warnings().unwrap_or_default();
        self.image.last.messages.ok_warnings = Some(count);
        let before = self.image.last.messages.kept.len();
        self.image.last.messages.keeps = true;
        let chosen = self.choose_database(packet, name).await;
        (
            self.image.last.messages.ok_warnings,
            self.image.last.messages.keeps,
        ) = (None, false);
        if chosen.is_ok() {
            let messages = std::mem::take(&mut self.image.last.messages.kept);
            let added = u16::from(messages.len() > before);
            self.put_messages(messages, count + added);
        }
        chosen
    }

    async fn choose_database(&mut self, packet: &[u8], name: &[u8]) -> Result<(), Abort> {
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = Kind::Use;
        let request = Request::packet(Task::Use, packet, &class, Access::PrimaryRead);
        let ran = match self.run_somewhere(&request).await {
            Ok(lease) => {
                if self.running.outcome.error.is_none() {
                    // In the session's own character set, which the reported name is not.
                    self.running.outcome.schema = Some(name.into());
                }
                if let Some(error) = self
                    .running
                    .outcome
                    .error
                    .as_deref()
                    .filter(|_| self.image.last.messages.keeps)
                {
                    let row = error_row(error.code, &error.message);
                    self.image.last.messages.kept.push(row);
                }
                self.conclude(lease, &request, b"").await
            }
            Err(failure) => Err(failure),
        };
        self.worker.lists.put_statement(class);
        ran
    }
}

/// What came of trying the servers that there are.
pub(crate) enum RouteOutcome {
    /// One has answered.
    Answered(Lease),
    /// None did, but may in a moment.
    NotYet(ClientError),
}

/// A statement that needs nothing but a server: by far the most are.
fn is_simple(class: &Statement) -> bool {
    let odd = Flags::USES_FOUND_ROWS
        | Flags::USES_ROW_COUNT
        | Flags::USES_LAST_INSERT_ID
        | Flags::USES_WARNING_COUNT
        | Flags::USES_CONNECTION_ID
        | Flags::MILLRACE_VARIABLE;
    (class.is(Traits::ROWS) && class.kind != Kind::Replace) && !class.flags.intersects(odd)
}

/// Whether the request creates or changes stored code.
fn defines_code(request: &Request<'_>) -> bool {
    let class = request.runs();
    class.flags.contains(Flags::STORED_CODE) && !request.prepares()
}

/// How long a session waits for another to save what it may ask about its last statement.
const SAVING: std::time::Duration = std::time::Duration::from_secs(10);

/// What a statement is counted as.
pub(crate) fn metric_kind(kind: Kind) -> StatementKind {
    match kind {
        Kind::Select
        | Kind::Show(_)
        | Kind::Explain { .. }
        | Kind::Help
        | Kind::Command
        | Kind::Diagnostics
        | Kind::Handler(HandlerOp::Read) => StatementKind::Read,
        Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete | Kind::LoadData { .. } => {
            StatementKind::Write
        }
        Kind::Ddl => StatementKind::Ddl,
        Kind::Call => StatementKind::Call,
        Kind::Begin
        | Kind::Commit
        | Kind::Rollback
        | Kind::Savepoint
        | Kind::ReleaseSavepoint
        | Kind::RollbackTo
        | Kind::Xa(_)
        | Kind::SetTransaction => StatementKind::Transaction,
        Kind::Set
        | Kind::Use
        | Kind::Prepare
        | Kind::Execute { .. }
        | Kind::Deallocate
        | Kind::SetRole => StatementKind::Session,
        _ => StatementKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<'a, F: Future>(_: impl FnOnce(&'a mut Session, &'a [u8]) -> F) -> usize {
        std::mem::size_of::<F>()
    }

    /// 1,032 bytes, the most that glibc's allocator takes from a thread's own cache, in a release
    /// build; what is not optimised takes 8 more.
    #[test]
    fn a_statements_future_is_small() {
        let size = size_of_future(Session::command);
        assert!(size <= 1040, "{size} bytes");
    }
}
