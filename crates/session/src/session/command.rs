//! The story of a session: reads a command, decides where it runs, has it run there, takes in
//! what changed, and so on until the client leaves.

pub(super) mod kill;
mod plain;
pub(super) mod prepared_statements;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use millrace_engine::request::{Main, Request, Task};
use millrace_protocol::command::{Command, Query};
use millrace_protocol::packet;
use millrace_routing::rules::Directions;
use millrace_sql::{Access, Family, Flags, Kind, Statement, Traits, classify};

use crate::error::error_packet;
use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::answers::messages::error_row;
use crate::session::answers::session_functions::{
    asks_connection, asks_own_number, with_connection_id,
};
use crate::session::defect::{Point, panic_at};
use crate::session::statement::directions::refusal;
use crate::session::statement::route;

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
            if !self.worker.has(&self.settings) {
                self.take_settings();
            }
            self.handle.begin_command(self.worker.tick());
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
            // What has not ended by now is over, however the command ended: the next answer is another's.
            self.running.end();
            self.handle.end_command(self.worker.tick());
            self.worker.lists.put_buffer(command);
            if let Err(failure) = ended {
                let goes_on = matches!(failure, Abort::Error(_));
                Box::pin(self.tell(failure)).await;
                if !goes_on {
                    break;
                }
            }
        }
        if self.handle.has_idled() {
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
        let server = self.worker.cluster.with_world(|world| {
            let any = world.snapshot.servers.first().map(|view| view.id);
            world.snapshot.primary.or(any)
        });
        let Some(server) = server else {
            self.image.last.messages.at = None;
            return;
        };
        let seq = self.image.last.count_own();
        self.image.last.messages.at = Some((server, seq));
        let mut messages = std::mem::take(&mut self.image.last.messages.kept);
        messages.push(error_row(error.code, &error.message));
        self.image.last.messages.ok_count = Some(1);
        self.image.last.messages.count = messages.len() as u64;
        self.handle.saved().keep(seq).warnings = Some(messages);
    }

    /// Waits for a whole command; answers its length in the buffer. None where the client left.
    async fn next_command(&mut self) -> Result<Option<usize>, Abort> {
        loop {
            let limit = self.settings.options.max_packet;
            // As servers judge it: by its payload alone, however its bytes came.
            if packet::announced(&self.client.inbuf) >= limit {
                let text = format!(
                    "Got a packet bigger than 'max_allowed_packet' bytes (Millrace: limits.max_packet is {limit})"
                );
                let answer = ClientError::client(1153, b"08S01", text);
                Box::pin(self.refuse_long(&answer)).await;
                return Ok(None);
            }
            if let Some(length) = packet::whole(&self.client.inbuf) {
                if self.client.stream.is_compressed() {
                    // Within compressed packets servers do not mind how others are counted: some clients number a long
                    // command's frames by the compressed packets that they are in.
                    packet::count_anew(&mut self.client.inbuf[..length]);
                } else if self.client.inbuf.get(3) != Some(&0) {
                    Box::pin(self.refuse_disorder()).await;
                    return Ok(None);
                }
                return Ok(Some(length));
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

    /// Answers a command that does not begin to count its packets anew. A server would close its connection over it.
    async fn refuse_disorder(&mut self) {
        let answer = ClientError::client(1156, b"08S01", "Got packets out of order");
        self.worker.metrics().error(answer.side, answer.class);
        let mut out = Vec::new();
        error_packet(&answer).encode(&mut out, 0);
        // The connection ends anyhow.
        let _ = self.send(&out).await;
    }

    /// Answers a command that is too long. The client reads only when it has sent all of it, and expects the answer to
    /// be counted after that: so the rest is read first.
    async fn refuse_long(&mut self, answer: &ClientError) {
        self.worker.metrics().error(answer.side, answer.class);
        let Some(sequence) = self.skip_command().await else {
            return;
        };
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

    /// Reads the command that is under way to its end, and keeps nothing of it; the number of its last frame. None
    /// where the client is gone, or has sent nothing for long.
    async fn skip_command(&mut self) -> Option<u8> {
        const SILENT_FOR: std::time::Duration = std::time::Duration::from_secs(10);
        let mut left = 0;
        let mut last = None;
        loop {
            let skipped = left.min(self.client.inbuf.len());
            self.client.inbuf.drain(..skipped);
            left -= skipped;
            if left == 0 {
                if last.is_some() {
                    return last;
                }
                if let Some(header) = packet::header(&self.client.inbuf) {
                    left = packet::HEADER + header.len as usize;
                    last = (header.len as usize != packet::MAX_PAYLOAD).then_some(header.seq);
                    continue;
                }
            }
            match tokio::time::timeout(SILENT_FOR, self.read_client()).await {
                Ok(Ok(1..)) => {}
                Ok(Err(Abort::Evicted)) => self.check_role_of_kept(),
                _ => return None,
            }
        }
    }

    /// One command.
    async fn command(&mut self, packet: &[u8]) -> Result<(), Abort> {
        if self.handle.saved().is_saving() {
            Box::pin(self.wait_until_saved()).await;
        }
        let payload = packet::payload(packet);
        let Ok(command) = Command::parse(&payload, self.client.capabilities) else {
            match (payload.first(), self.image.family) {
                (None, _) => {
                    return Err(ClientError::client(1047, b"08S01", "Unknown command").into());
                }
                // To COM_STMT_SEND_LONG_DATA it never says anything (observed).
                (Some(0x18), Family::MariaDb) => return Ok(()),
                _ => {}
            }
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
                panic_at(Point::Begun, query.text);
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
            && let Some(text) = with_connection_id(self.image.family, query.text, self.id)
        {
            let directions = request.directions.clone();
            return self
                .substituted_query(query.attributes, &text, directions, true)
                .await;
        }
        self.special(request, query.text, Some(query.attributes))
            .await
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
            Kind::Diagnostics if !self.is_refused_diagnostics(text) => {
                let lost = self.has_lost_diagnostics(request.class);
                if (lost || self.is_known_diagnostics(request.class))
                    && self.get_saved_diagnostics(text).await?
                {
                    return Ok(());
                }
                if !lost {
                    return self.statement(request, text).await;
                }
                Err(ClientError::lost_diagnostics().into())
            }
            Kind::Kill => self.kill(request, text).await,
            Kind::Execute { .. } => self.execute_text(request, text).await,
            _ => self.statement(request, text).await,
        }
    }

    /// EXECUTE: runs where the text that it executes belongs.
    async fn execute_text(&mut self, request: &Request<'_>, text: &[u8]) -> Result<(), Abort> {
        let Some(body) = self.executed_text(request.class, text) else {
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
