//! One statement on one server connection: sends it with what must go ahead, relays the answer, and
//! says whether another server may be tried.

use std::num::NonZeroU32;

use millrace_backend::error::{BackendError, ServerError};
use millrace_backend::pool::Lease;
use millrace_engine::refusals::{Meaning, Refusals, meaning};
use millrace_engine::request::{Main, Request, Task, Types};
use millrace_engine::rerun::errors_to_hold;
use millrace_metrics::RetryKind;
use millrace_protocol::{Status, packet};
use millrace_sql::{Access, Family, Flags, Kind, Statement, Traits};
use millrace_topology::Waits;

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::defect::{Point, panic_at};
use crate::session::statement::refused::{AttemptOutcome, Unanswered};
use crate::session::statement::relay::{Plan, RelayOutcome};
use crate::session::statement::running::Ends;
use crate::session::statement::steps::Setup;

/// What counts after an answer that was not for the client.
struct AfterRelay {
    /// A wait for a position went ahead.
    wait: bool,
    /// A transaction was begun for the request.
    begins: bool,
    /// The transaction is read only, on another server than the primary.
    read_only: bool,
}

impl Session {
    /// Runs the request on the leased connection. A prepared statement that the server did not run
    /// because it is too old for its tables is prepared anew, once.
    pub(in crate::session) fn attempt(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> impl Future<Output = Result<AttemptOutcome, Abort>> {
        self.attempt_once(lease, request, wait, true)
    }

    /// Sends the setup alone, as [`Session::confirm`] does.
    async fn confirmed(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        setup: &mut Setup,
    ) -> Result<Result<(), ClientError>, Abort> {
        match self.confirm(lease, setup).await {
            Ok(Err(answer)) => Ok(Err(self.without_database(request, answer))),
            Err(Abort::Error(answer)) => Err(Abort::Error(self.without_database(request, answer))),
            confirmed => confirmed,
        }
    }

    /// What the client is told where its session's database may be chosen no more (1044): nobody asked for
    /// that. Whoever is in a database without any right there has none on its tables (1142).
    fn without_database(&self, request: &Request<'_>, answer: ClientError) -> ClientError {
        if answer.error.code != 1044 {
            return answer;
        }
        let text = match request.inner {
            Some((_, text)) => Some(text.into()),
            None => self.text_of(request),
        };
        let Some(text) = text else {
            return answer;
        };
        // Of what is prepared, the request does not have it.
        let class = self.worker.lists.classify(&text, &self.image.vars.lex);
        let denied = self.denied(&answer, &class, &text);
        self.worker.lists.put_class(class);
        denied.unwrap_or(answer)
    }

    fn denied(&self, answer: &ClientError, class: &Statement, text: &[u8]) -> Option<ClientError> {
        let verb = match class.kind {
            Kind::Select => "SELECT",
            Kind::Insert => "INSERT",
            Kind::Replace => "INSERT, DELETE",
            Kind::Update => "UPDATE",
            Kind::Delete => "DELETE",
            _ => return None,
        };
        let said = String::from_utf8_lossy(&answer.error.message);
        let (_, who) = said.split_once("for user ")?;
        let (who, _) = who.split_once(" to database")?;
        let mut tables = class.tables.iter();
        let table = tables.find(|table| table.schema.is_none())?;
        let table = millrace_sql::ident::unquote_ident(table.name.of(text));
        let table = String::from_utf8_lossy(&table);
        let named = match self.image.family {
            Family::MySql => format!("'{table}'"),
            Family::MariaDb => {
                let database = String::from_utf8_lossy(&self.image.vars.state.database);
                format!("`{database}`.`{table}`")
            }
        };
        let text = format!("{verb} command denied to user {who} for table {named}");
        Some(ClientError::server(ServerError::new(1142, b"42000", text)))
    }

    /// Preparing leaves what a session may ask about its last statement, but what goes ahead of it does
    /// not.
    async fn keep_over_preparing(&mut self, lease: &mut Lease) {
        if lease.books.is_of(self.handle.uid()) && self.handle.pins().is_empty() {
            self.save_own_diagnostics(lease).await;
        }
    }

    /// The second attempt of a prepared statement.
    async fn attempt_anew(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<AttemptOutcome, Abort> {
        self.worker.metrics().retry(RetryKind::Reprepare);
        if let Main::Execute { id, .. } = request.main
            && let Some(statement) = self.image.statements.get(id)
        {
            // 1243 says that the server has it no more, 1615 does not; closing it has no answer.
            for uid in [Some(statement.uid), statement.unused]
                .into_iter()
                .flatten()
            {
                if let Some(old) = lease.prepared.remove(uid) {
                    lease.close_statement(old).await;
                }
            }
        }
        self.attempt_once(lease, request, wait, false).await
    }

    /// The next attempt to prepare a client's statement, where the server had too many.
    async fn attempt_crowded(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<AttemptOutcome, Abort> {
        let refused = self.running.route.crowded;
        self.running.route.crowded = match self.give_up_statements(lease, refused.into()).await {
            true => refused + 1,
            // What it says next is for the client.
            false => u8::MAX,
        };
        self.attempt_once(lease, request, wait, true).await
    }

    async fn attempt_once(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
        first: bool,
    ) -> Result<AttemptOutcome, Abort> {
        if lease.books.is_of(self.handle.uid()) {
            lease.books.saved();
        }
        // What is rare is in boxes here, so that what every statement needs is small.
        let unready = self.image.tx.replay.is_some()
            || self.running.route.ended.is_some()
            || self.is_doubtful(lease, request)
            || self.may_be_ahead(lease, request)
            || self.sees_foreign(lease, request)
            || self.sees_foreign_draws(lease, request)
            || self.needs_reset(lease);
        if unready && let Err(answer) = Box::pin(self.make_ready(lease, request, wait)).await? {
            return Ok(AttemptOutcome::Elsewhere(answer));
        }
        if self.lease_is_kept() {
            self.ensure_no_database(lease, request)?;
            if !self.image.vars.gone_databases.is_empty() {
                Box::pin(self.enter_database(lease, request)).await?;
            }
        }
        let (mut statement_id, mut types_told) = (0, 0);
        let other = self.may_mean_other(lease, request);
        if other {
            Box::pin(self.forget(lease, request)).await;
        }
        if let Main::Execute { id, .. } = request.main {
            (statement_id, types_told) = match self.held_prepared(lease, id) {
                Some(held) => held,
                None => match Box::pin(self.prepare_anew(lease, id)).await? {
                    Ok(server_id) => (server_id, 0),
                    Err(answer) => return Ok(AttemptOutcome::Elsewhere(answer)),
                },
            };
        }
        let mut setup = match self.setup(lease, request, wait).await {
            Ok(setup) => setup,
            Err(error) => {
                lease.broken = true;
                return Ok(AttemptOutcome::Elsewhere(ClientError::backend(error)));
            }
        };
        if request.prepares() && !setup.bytes.is_empty() {
            Box::pin(self.keep_over_preparing(lease)).await;
        }
        let recorded = self.is_recorded(request);
        let writes = request.access >= Access::PrimaryRead;
        // In a cluster another node's write may have ended the transaction, which the next command is told, whatever it
        // is; a write behind it would be none of that transaction.
        let may_be_lost = request.access == Access::Write
            && self.lease_is_kept()
            && !setup.steps.is_empty()
            && self.worker.cluster.waits_of(lease.server) == Waits::Cluster;
        if (setup.doubtful || may_be_lost)
            && writes
            && let Err(answer) = Box::pin(self.confirmed(lease, request, &mut setup)).await?
        {
            return Ok(AttemptOutcome::Elsewhere(answer));
        }
        if writes && !request.prepares() {
            // Much may have been waited for since the server was chosen.
            let gone = self.has_lost_role(lease.server, self.needs_primary_kept(request));
            if gone {
                lease.broken |= !setup.steps.is_empty();
                return Ok(self.left_behind());
            }
        }
        if request.access == Access::Write {
            self.begin_write(request);
        } else if self.running.fill.is_some() {
            self.read_for_cache(lease, wait);
        }
        if other {
            // Nobody else finds it from here on, however this ends.
            self.disown_prepared(lease, request);
        }
        let answers = setup.steps.len() + 1;
        let bytes = self.bytes_to_send(request, &mut setup, statement_id, types_told);
        let sent = match lease.send_statement_now(bytes, answers) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            // Boxed: the socket takes nearly all statements at once.
            Ok(sent) => Box::pin(lease.send_rest(&bytes[sent..])).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            // Its last byte did not go out.
            if let Some(refused) = Box::pin(lease.refused_length()).await {
                lease.broken = true;
                // As without Millrace: the error, and the end.
                return Err(Abort::Fatal(ClientError::server(refused)));
            }
            let breaking = self.broken(request, lease, BackendError::Io(error), false);
            return Box::pin(breaking).await;
        }
        panic_at(Point::Sent, bytes);
        // Every command was sent, so every answer must be read, whatever one of them says.
        let mut refusal = None;
        self.running.route.overdue = false;
        for step in std::mem::take(&mut setup.steps) {
            if let Err(answer) = self.read_step_of_setup(lease, step).await {
                refusal.get_or_insert(answer);
                if self.running.route.overdue {
                    break;
                }
            }
        }
        if let Some(answer) = refusal {
            let answer = self.without_database(request, answer);
            let begins = setup.begins;
            drop(setup);
            return Box::pin(self.refused(lease, request, answer, begins)).await;
        }
        self.worker.learnt.prove(std::mem::take(&mut setup.proofs));
        let begins = setup.begins;
        drop(setup);
        let (plan, read_only) = self.plan_for(lease, request, first, recorded);
        self.running.ends = Ends {
            writes: request.access == Access::Write && !request.prepares(),
            stays: stays_in_transaction(request.class),
        };
        let relayed = self.relay(lease, request.task.expect(), &plan).await?;
        if other {
            Box::pin(lease.close_statement(statement_id)).await;
        }
        match relayed {
            RelayOutcome::Whole => {
                self.note_types(lease, request, types_told);
                if recorded {
                    self.record(lease, request);
                }
                Ok(AttemptOutcome::Done)
            }
            unanswered => {
                let context = AfterRelay {
                    wait,
                    begins,
                    read_only,
                };
                Box::pin(self.after_relay(lease, request, unanswered, context)).await
            }
        }
    }

    /// The request's packet, behind what goes ahead of it in the same write. An execution is sent under the number that
    /// the statement has on the connection, with its parameters' types where the server does not know them.
    fn bytes_to_send<'a>(
        &self,
        request: &Request<'a>,
        setup: &'a mut Setup,
        statement_id: u32,
        types_told: u32,
    ) -> &'a [u8] {
        match request.main {
            Main::Packet(packet) if setup.bytes.is_empty() => packet,
            Main::Packet(packet) => {
                setup.bytes.extend_from_slice(packet);
                &setup.bytes
            }
            Main::Execute { packet, id, types } => {
                self.append_long_data(id, statement_id, &mut setup.bytes);
                let at = setup.bytes.len() + packet::HEADER + 1;
                if types != Types::LeftOut
                    || types_told == self.types_version(id)
                    || !self.append_with_types(id, packet, &mut setup.bytes)
                {
                    setup.bytes.extend_from_slice(packet);
                }
                setup.bytes[at..at + 4].copy_from_slice(&statement_id.to_le_bytes());
                &setup.bytes
            }
        }
    }

    /// How the answer is relayed; and whether the transaction is read only, on another server than the primary.
    fn plan_for(
        &self,
        lease: &Lease,
        request: &Request<'_>,
        first: bool,
        recorded: bool,
    ) -> (Plan, bool) {
        let primary = self.worker.cluster.primary();
        let read_only =
            self.image.status.contains(Status::IN_TRANS_READONLY) && primary != Some(lease.server);
        let on_replica = primary.is_some_and(|primary| primary != lease.server);
        let plan = Plan {
            hold: errors_to_hold(&Unanswered {
                session: self,
                lease,
                request,
                read_only,
                first,
                on_replica,
            }),
            statement: match request.task {
                Task::Prepare(id) => NonZeroU32::new(id),
                _ => None,
            },
            discard: false,
            sums: recorded,
            cursor: request.opens_cursor(),
            warnings: self.image.last.messages.ok_warnings,
        };
        (plan, read_only)
    }

    /// The client has no answer: another attempt here, another server, or its error.
    async fn after_relay(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        relayed: RelayOutcome,
        context: AfterRelay,
    ) -> Result<AttemptOutcome, Abort> {
        let AfterRelay {
            wait,
            begins,
            read_only,
        } = context;
        match relayed {
            RelayOutcome::Whole => Ok(AttemptOutcome::Done),
            RelayOutcome::Held(error) if Refusals::STALE.has(&error) => {
                self.attempt_anew(lease, request, wait).await
            }
            RelayOutcome::Held(error) if Refusals::CROWDED.has(&error) => {
                self.attempt_crowded(lease, request, wait).await
            }
            // A replica refuses the write before it looks at the transaction.
            RelayOutcome::Held(error) if read_only && meaning(&error) == Meaning::NotRun => {
                let text = "Cannot execute statement in a READ ONLY transaction.";
                let text = text.trim_end_matches(if lease.family == Family::MariaDb {
                    "."
                } else {
                    ""
                });
                Err(Abort::Error(ClientError::client(1792, b"25006", text)))
            }
            RelayOutcome::Held(error) if Refusals::LACKS.has(&error) => {
                // Of several statements the first may have run.
                lease.broken |= begins || request.class.kind == Kind::Multi;
                self.count_retry(RetryKind::Read);
                Ok(AttemptOutcome::Lacks(ClientError::server(*error)))
            }
            RelayOutcome::Held(error) => {
                lease.broken |= begins;
                Ok(self.held_back(lease, request, *error))
            }
            RelayOutcome::Unasked(error) => Ok(self.unread(lease, ClientError::server(*error))),
            RelayOutcome::Lost => {
                lease.broken = true;
                if self.is_killed().await {
                    return Err(Abort::Ended);
                }
                let error = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
                self.broken(request, lease, BackendError::Io(error), true)
                    .await
            }
        }
    }

    /// Whether a write goes to a connection that was idle for so long that it may be dead without anybody
    /// having heard of it.
    fn is_doubtful(&self, lease: &Lease, request: &Request<'_>) -> bool {
        if request.access != Access::Write && request.class.kind != Kind::Commit {
            return false;
        }
        let limit = lease.server().check_after();
        // A COM_PING would change what these ask about.
        let about_last = Flags::USES_ROW_COUNT | Flags::USES_FOUND_ROWS | Flags::USES_WARNING_COUNT;
        limit != 0
            && self.worker.tick().saturating_sub(lease.used) > limit
            && !request.class.flags.intersects(about_last)
    }

    /// Asks a connection for a sign of life before a write is trusted to it: should the write's answer
    /// not come, nobody could tell whether it was done.
    async fn prove(&mut self, lease: &mut Lease) -> Result<(), ClientError> {
        let limit = self.settings.pool.connect_timeout;
        let error = match tokio::time::timeout(limit, lease.ping()).await {
            Ok(Ok(())) => {
                lease.used = self.worker.tick();
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => {
                lease.path_lost = true;
                BackendError::Timeout("pool.connect_timeout")
            }
        };
        lease.broken = true;
        self.running.route.unsent = true;
        Err(ClientError::backend(error))
    }

    /// Does what must be done on a connection before anything is put together for it; the inner error
    /// says that this one does not do.
    async fn make_ready(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<Result<(), ClientError>, Abort> {
        if self.may_be_ahead(lease, request) {
            self.await_shown(lease.server).await?;
        }
        if self.is_doubtful(lease, request)
            && let Err(answer) = self.prove(lease).await
        {
            return Ok(Err(answer));
        }
        if (self.image.tx.replay.is_some() || self.running.route.ended.is_some())
            && let Err(answer) = self.take_over(lease, request, wait).await?
        {
            return Ok(Err(answer));
        }
        let foreign = self.sees_foreign(lease, request) || self.sees_foreign_draws(lease, request);
        if (foreign || self.needs_reset(lease))
            && let Err(error) = self.clear_foreign(lease).await
        {
            lease.broken = true;
            return Ok(Err(ClientError::backend(error)));
        }
        Ok(Ok(()))
    }

    /// Makes the connection the session's own without sending a statement.
    pub(in crate::session) async fn prepare_connection(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
    ) -> Result<(), Abort> {
        let prepared = match self.setup(lease, request, false).await {
            Ok(mut setup) => self.run_steps(lease, &mut setup).await,
            Err(error) => Err(error),
        };
        prepared.map_err(|error| {
            lease.broken = true;
            Abort::Error(ClientError::backend(error))
        })
    }
}

/// Whether the statement's kind ends no transaction.
fn stays_in_transaction(class: &Statement) -> bool {
    class.is(Traits::STAYS_IN_TRANSACTION)
}
