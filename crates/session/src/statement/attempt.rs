//! One statement on one server connection: sends it with what must go ahead, relays the answer, and
//! says whether another server may be tried.

use crate::statement::request::Main;
use crate::statement::request::Request;
use crate::statement::request::Task;
use crate::statement::request::Types;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use millrace_backend::error::{BackendError, ServerError};
use millrace_backend::failovers::FailoverCount;
use millrace_backend::pool::Lease;
use millrace_backend::prepared::StatementUid;
use millrace_metrics::{PinReason, RetryKind};
use millrace_protocol::command::{
    COM_STMT_EXECUTE, COM_STMT_PREPARE, COM_STMT_SEND_LONG_DATA, Command, execute_with_types,
};
use millrace_protocol::response::Expect;
use millrace_protocol::{Status, packet};
use millrace_routing::{NoServer, Target};
use millrace_sql::{Access, Family, Flags, Kind, Statement, Traits};

use crate::error::{Abort, ClientError};
use crate::failover::replay::commits;
use crate::image::prepared::ClientStatement;
use crate::session::{Ends, Session};
use crate::statement::ended::Stake;
use crate::statement::gone_database::depends_on_database;
use crate::statement::refusals::{CROWDED, Meaning, Refusals, meaning};
use crate::statement::relay::{Plan, RelayOutcome};
use crate::statement::rule_actions::tell_server;
use crate::statement::setup::Setup;

/// What came of a statement on one server.
pub(crate) enum AttemptOutcome {
    /// Answered, and the answer is with the client; what it said is in the session's `outcome`.
    Done,
    /// Nothing was run or shown; another server may be tried. The error is for the case that
    /// there is none.
    Elsewhere(ClientError),
    /// Nothing was shown, and the server is a replica that may lack what the primary has: its answer, for
    /// the case that the primary cannot be asked.
    Lacks(ClientError),
    /// Nothing was shown, and the connection, on which the session has something, is gone or of no
    /// more use.
    Gone {
        /// For the case that nothing else can be done.
        why: ClientError,
        /// The statement may have been run.
        sent: bool,
    },
}

impl Session {
    /// Runs the request on the leased connection. A prepared statement that the server did not run
    /// because it is too old for its tables is prepared anew, once.
    pub(crate) fn attempt(
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
        if lease.books.is_of(self.handle.uid) && self.handle.pins.is_empty() {
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
        if lease.books.is_of(self.handle.uid) {
            lease.books.saved();
        }
        // What is rare is in boxes here, so that what every statement needs is small.
        let unready = self.image.tx.replay.is_some()
            || self.running.route.ended.is_some()
            || self.is_doubtful(lease, request)
            || self.sees_foreign(lease, request)
            || self.sees_foreign_draws(lease, request)
            || self.needs_reset(lease);
        if unready && let Err(answer) = Box::pin(self.make_ready(lease, request, wait)).await? {
            return Ok(AttemptOutcome::Elsewhere(answer));
        }
        if !self.image.vars.gone_databases.is_empty() && self.lease_is_kept() {
            Box::pin(self.enter_database(lease, request)).await?;
        }
        let (mut statement_id, mut types_told) = (0, 0);
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
        if setup.doubtful
            && writes
            && let Err(answer) = Box::pin(self.confirmed(lease, request, &mut setup)).await?
        {
            return Ok(AttemptOutcome::Elsewhere(answer));
        }
        if writes && !request.prepares() {
            // Much may have been waited for since the server was chosen.
            let gone = self.has_lost_role(lease.server, request.access == Access::Write);
            if gone {
                lease.broken |= !setup.steps.is_empty();
                return Ok(self.left_behind());
            }
        }
        if request.access == Access::Write {
            self.begin_write(request);
        }
        let answers = setup.steps.len() + 1;
        let bytes = match request.main {
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
        };
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
        // Every command was sent, so every answer must be read, whatever one of them says.
        let mut refusal = None;
        self.running.route.overdue = false;
        for step in std::mem::take(&mut setup.steps) {
            if let Err(answer) = self.settle(lease, step).await {
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
        let primary = self.worker.cluster.primary();
        let read_only =
            self.image.status.contains(Status::IN_TRANS_READONLY) && primary != Some(lease.server);
        let on_replica = primary.is_some_and(|primary| primary != lease.server);
        let plan = Plan {
            hold: self.errors_to_hold(lease, request, read_only, first, on_replica),
            statement: match request.task {
                Task::Prepare(id) => NonZeroU32::new(id),
                _ => None,
            },
            discard: false,
            sums: recorded,
            cursor: opens_cursor(request),
            warnings: self.image.last.messages.ok_warnings,
        };
        self.running.ends = Ends {
            writes: request.access == Access::Write && !request.prepares(),
            stays: stays_in_transaction(request.class),
        };
        match self.relay(lease, request.task.expect(), &plan).await? {
            RelayOutcome::Whole => {
                self.note_types(lease, request, types_told);
                if recorded {
                    self.record(lease, request);
                }
                Ok(AttemptOutcome::Done)
            }
            RelayOutcome::Held(error) if Refusals::STALE.has(&error) => {
                Box::pin(self.attempt_anew(lease, request, wait)).await
            }
            RelayOutcome::Held(error) if Refusals::CROWDED.has(&error) => {
                Box::pin(self.attempt_crowded(lease, request, wait)).await
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
                let breaking = self.broken(request, lease, BackendError::Io(error), true);
                Box::pin(breaking).await
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
        let limit = self.worker.shared.pool.connect_timeout;
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

    /// The server had closed the connection before it read the statement.
    fn unread(&mut self, lease: &mut Lease, said: ClientError) -> AttemptOutcome {
        lease.broken = true;
        if self.lease_is_kept() {
            return AttemptOutcome::Gone {
                why: said,
                sent: false,
            };
        }
        let gone = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
        let why = ClientError::backend(BackendError::Io(gone));
        self.running.route.unsent = true;
        self.count_retry(RetryKind::Unsent);
        AttemptOutcome::Elsewhere(why)
    }

    /// Does what must be done on a connection before anything is put together for it; the inner error
    /// says that this one does not do.
    async fn make_ready(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<Result<(), ClientError>, Abort> {
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

    /// The errors that are not for the client, because the statement can run all the same.
    fn errors_to_hold(
        &self,
        lease: &Lease,
        request: &Request<'_>,
        read_only: bool,
        first: bool,
        on_replica: bool,
    ) -> Refusals {
        let stale = match request.main {
            Main::Execute { .. } if first => Refusals::STALE,
            Main::Packet(_)
                if request.prepares() && usize::from(self.running.route.crowded) < PAUSES.len() =>
            {
                Refusals::CROWDED
            }
            _ => Refusals::empty(),
        };
        let kept = self.lease_is_kept();
        // On a listener for replicas no server would take a write: their refusal is the answer.
        let in_vain = self.client.target == Target::ReplicasOnly && request.access == Access::Write;
        let refused = match in_vain && !read_only {
            true => Refusals::ENDING,
            false => Refusals::NOT_RUN | Refusals::ENDING,
        };
        let moves = if kept && self.handle.pins.has_only(PinReason::Transaction) {
            refused | self.hook_that_undoes(lease, request)
        } else if !kept && may_repeat(request) && on_replica && self.client.target == Target::Auto {
            let later = match request.class.kind {
                Kind::Multi | Kind::Call => Refusals::LACKS_LATER,
                _ => Refusals::empty(),
            };
            refused | Refusals::HOOK | Refusals::LACKS | later
        } else if read_only || (!kept && may_repeat(request)) {
            refused | Refusals::HOOK
        } else if kept || !may_retry(request) || self.may_be_half_done(request) {
            Refusals::empty()
        } else if is_change(request) || self.is_undone_with_connection(request) {
            refused | self.hook_that_undoes(lease, request)
        } else {
            refused & Refusals::NOT_RUN
        };
        let commits =
            request.class.kind == Kind::Commit || (request.access == Access::Write && !kept);
        let unproven = match commits {
            true => Refusals::UNPROVEN,
            false => Refusals::empty(),
        };
        moves | stale | unproven
    }

    /// Whether a server that refuses the request may have run a part of it for good: MariaDB's bulk
    /// executions are many statements, each with a commit of its own where no transaction is open.
    fn may_be_half_done(&self, request: &Request<'_>) -> bool {
        let Main::Execute { packet, .. } = request.main else {
            return false;
        };
        !is_plain_execution(packet) && !self.is_undone_with_connection(request)
    }

    /// Whether what a plugin stops at its commit is certainly undone: no other server has heard of it.
    fn hook_that_undoes(&self, lease: &Lease, request: &Request<'_>) -> Refusals {
        if request.access != Access::Write && request.class.kind != Kind::Commit {
            return Refusals::empty();
        }
        let in_group = self.worker.cluster.with_world(|world| {
            let view = world.snapshot.server(lease.server);
            let report = view.and_then(|view| view.report.as_ref());
            report.is_none_or(|report| report.group.is_some())
        });
        match in_group {
            true => Refusals::empty(),
            false => Refusals::HOOK,
        }
    }

    /// The statement was not sent: its server is not the primary any more.
    fn left_behind(&self) -> AttemptOutcome {
        let why = ClientError::no_server(NoServer::NoPrimary);
        match self.lease_is_kept() {
            true => AttemptOutcome::Gone { why, sent: false },
            false => AttemptOutcome::Elsewhere(why),
        }
    }

    /// The server did not run the statement, and said so.
    fn held_back(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        error: ServerError,
    ) -> AttemptOutcome {
        use millrace_topology::ObservationKind;
        let meaning = meaning(&error);
        if meaning == Meaning::NotRun && request.access > Access::Read {
            self.worker
                .cluster
                .observe(lease, ObservationKind::RefusedWrite);
        }
        let why = ClientError::server(error);
        if self.lease_is_kept() {
            // A COMMIT that a server did not get to while it was ending may yet have been done.
            let sent = meaning == Meaning::Ending;
            return AttemptOutcome::Gone { why, sent };
        }
        // A server that is ending closes the connection soon.
        lease.broken |= meaning != Meaning::NotRun;
        if meaning != Meaning::NotRun && !may_repeat(request) {
            self.running.route.ended = Some(why.clone());
        }
        self.count_retry(match request.access {
            Access::Write => RetryKind::Write,
            _ => RetryKind::Read,
        });
        AttemptOutcome::Elsewhere(why)
    }

    pub(crate) fn count_retry(&self, kind: RetryKind) {
        self.worker.metrics().retry(kind);
        let monitor = &self.worker.shared.monitor;
        let server = self.running.route.server;
        monitor.failovers().count(FailoverCount::Retried, server);
    }

    /// What went ahead of the statement failed, and the statement had been sent with it.
    async fn refused(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        answer: ClientError,
        begins: bool,
    ) -> Result<AttemptOutcome, Abort> {
        if std::mem::take(&mut self.running.route.overdue) {
            // Only reads wait.
            lease.broken = true;
            self.stop_on_server(lease);
            return Ok(AttemptOutcome::Elsewhere(answer));
        }
        if lease.closed_before {
            return Ok(self.unread(lease, answer));
        }
        let lost = lease.broken && answer.is_lost();
        if lost {
            if self.is_killed().await {
                return Err(Abort::Ended);
            }
            let error = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
            return self
                .broken(request, lease, BackendError::Io(error), true)
                .await;
        }
        let discarding = Box::pin(self.discard(lease, request));
        let reads = request.access <= Access::Read;
        if reads {
            // Its answer is worth no wait: a long read's connection is closed instead.
            let discarded = tokio::time::timeout(DISCARD, discarding).await;
            if discarded.is_err() {
                lease.broken = true;
                self.stop_on_server(lease);
            }
        } else {
            discarding.await;
        }
        // A transaction that was begun for it must not come to anybody else.
        lease.broken |= begins;
        if self.lease_is_kept() {
            // The connection is not what its record says.
            return match answer.passing {
                true => Ok(AttemptOutcome::Gone {
                    why: answer,
                    sent: true,
                }),
                false => Err(Abort::Fatal(answer)),
            };
        }
        if !reads
            && self.running.outcome.error.is_none()
            && !self.is_undone_with_connection(request)
        {
            // It ran, without what should have been there before it.
            if !may_repeat(request) {
                return Err(Abort::Error(answer));
            }
            // What it changed of the session goes with the connection.
            lease.broken = true;
        }
        Ok(AttemptOutcome::Elsewhere(answer))
    }

    /// Ends what runs on a connection that is about to be closed, by another one of the same account:
    /// a server does not look whether anybody still waits for a long read, and until its end the
    /// read would hold up the applier's DDL, and all reads behind that.
    fn stop_on_server(&mut self, lease: &Lease) {
        let (pool, state) = (self.pool(lease.server), self.image.vars.state.clone());
        let kill = format!("KILL CONNECTION {}", lease.thread_id);
        tokio::task::spawn_local(tell_server(pool, self.handle.uid, state, kill));
    }

    /// A KILL is about to end the session: waits for that.
    pub(crate) async fn is_killed(&self) -> bool {
        const STEP: Duration = Duration::from_millis(10);
        for _ in 0..50 {
            if self.handle.ended.get() || !self.handle.ending.get() {
                break;
            }
            tokio::time::sleep(STEP).await;
        }
        self.handle.ended.get()
    }

    /// Makes the connection the session's own without sending a statement.
    pub(crate) async fn prepare_connection(
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

    /// The connection broke with the statement under way and nothing shown to the client; `sent`:
    /// all of the statement had gone out.
    async fn broken(
        &mut self,
        request: &Request<'_>,
        lease: &mut Lease,
        error: BackendError,
        sent: bool,
    ) -> Result<AttemptOutcome, Abort> {
        let kind = millrace_topology::ObservationKind::LiveError(millrace_topology::Cause::Lost);
        self.worker.cluster.observe(lease, kind);
        lease.broken = true;
        let why = ClientError::backend(error);
        if self.lease_is_kept() {
            return Ok(AttemptOutcome::Gone { why, sent });
        }
        if !sent {
            self.count_retry(RetryKind::Unsent);
            return Ok(AttemptOutcome::Elsewhere(why));
        }
        if !may_repeat(request) && !self.is_undone_with_connection(request) {
            return Err(self.unknown_outcome());
        }
        if u32::from(self.running.route.lost) >= self.worker.options().failover.retries_max {
            return Err(Abort::Error(why));
        }
        let stake = match self.is_undone_with_connection(request) {
            true => Stake::Session,
            false => Stake::Read(self.running.runs_since.get().elapsed()),
        };
        let alive = self.running.runs_since.get();
        let ended = self.was_ended(lease, request, stake, &why, alive);
        if let Some(told) = ended.await {
            // As without Millrace.
            return Err(Abort::Fatal(told));
        }
        self.running.route.lost += 1;
        // The next attempt is a run of its own.
        self.running.runs_since.set(Instant::now());
        // Who only prepares a write has written nothing.
        let writes = request.access == Access::Write && !request.prepares();
        if writes {
            self.running.route.ended = Some(ClientError::unknown_outcome());
        }
        self.count_retry(match writes {
            true => RetryKind::Write,
            false => RetryKind::Read,
        });
        Ok(AttemptOutcome::Elsewhere(why))
    }

    /// Whether the statement opens a transaction and leaves it open: with its connection, all that it
    /// did is gone.
    fn is_undone_with_connection(&self, request: &Request<'_>) -> bool {
        let opens = self.image.tx.is_deferred() || self.image.autocommit_off();
        opens && !commits(request)
    }

    /// The connection was kept from an earlier statement.
    pub(crate) fn lease_is_kept(&self) -> bool {
        !self.handle.pins.is_empty()
    }

    /// Reads the answer of a statement that was sent for nothing.
    async fn discard(&mut self, lease: &mut Lease, request: &Request<'_>) {
        let plan = Plan {
            discard: true,
            cursor: opens_cursor(request),
            ..Plan::default()
        };
        match self.relay(lease, request.task.expect(), &plan).await {
            Ok(RelayOutcome::Whole) => {
                if let Some((id, ..)) = self.running.outcome.prepared {
                    lease.close_statement(id).await;
                }
                if request.access <= Access::Read || request.prepares() {
                    // It has changed nothing that anybody would have to know of.
                    lease.settle();
                }
            }
            _ => lease.broken = true,
        }
    }

    /// The connection's number for a prepared statement that it holds.
    /// And the version of the parameter types that it was told.
    pub(crate) fn held_prepared(&self, lease: &mut Lease, id: u32) -> Option<(u32, u32)> {
        let statement = self.image.statements.get(id)?;
        if let Some(held) = lease.prepared.get(statement.uid) {
            return Some(held);
        }
        // Whoever prepared it: those that were not executed are alike.
        let server_id = lease.prepared.rename(statement.unused?, statement.uid)?;
        Some((server_id, 0))
    }

    fn types_version(&self, id: u32) -> u32 {
        let statement = self.image.statements.get(id);
        statement.map_or(0, ClientStatement::types_version)
    }

    /// Appends an execution with the types that its packet leaves out; false where it cannot be read.
    pub(crate) fn append_with_types(&self, id: u32, packet: &[u8], out: &mut Vec<u8>) -> bool {
        let payload = packet::payload(packet);
        let (Some(statement), Ok(Command::StmtExecute(execute))) = (
            self.image.statements.get(id),
            Command::parse(&payload, self.client.capabilities),
        ) else {
            return false;
        };
        let count = usize::from(statement.params);
        let Ok(params) = execute.params(count, self.client.capabilities) else {
            return false;
        };
        let types = &statement.types;
        execute_with_types(out, id, &execute, &params, types, self.client.capabilities);
        true
    }

    /// Notes which types the connection's statement has after an execution.
    fn note_types(&self, lease: &mut Lease, request: &Request<'_>, told: u32) {
        let Main::Execute { id, types, .. } = request.main else {
            return;
        };
        let Some(statement) = self.image.statements.get(id) else {
            return;
        };
        let version = match types {
            // A bulk execution may have told others.
            Types::None if request.task.expect() == Expect::Execute => 0,
            Types::None => return,
            // Whether they were taken from a packet that was refused is not known.
            _ if self.running.outcome.error.is_some() => 0,
            Types::Sent | Types::LeftOut => statement.types_version(),
        };
        if version != told {
            lease.prepared.note_types(statement.uid, version);
        }
    }

    /// Prepares a statement on the connection; answers its number there. The inner error is the
    /// server's refusal.
    pub(crate) async fn prepare_anew(
        &mut self,
        lease: &mut Lease,
        id: u32,
    ) -> Result<Result<u32, ClientError>, Abort> {
        let Some(statement) = self.image.statements.get(id) else {
            return Err(Abort::Error(ClientError::client(
                1243,
                b"HY000",
                "Unknown prepared statement handler",
            )));
        };
        let uid = statement.uid;
        let (text, context) = (statement.text.clone(), statement.context.clone());
        let reads_private = statement.class.flags.contains(Flags::READS_USER_VARS);
        let mut setup = Setup::default();
        if lease.books.is_missed_by_other(self.handle.uid) {
            self.save_unread(lease, &mut setup);
        }
        if reads_private {
            // Their types decide the metadata.
            self.restore_private(lease, None, &mut setup);
        }
        let context = self.placed(lease, &context, |session| {
            let statement = session.image.statements.get(id);
            statement.is_none_or(|it| depends_on_database(&it.class, &it.text))
        });
        self.apply_state(lease, &context, &mut setup);
        let prepared = self.prepare_now(lease, &mut setup, &text).await;
        match prepared {
            Ok(server_id) => {
                self.hold_prepared(lease, uid, server_id).await;
                Ok(Ok(server_id))
            }
            Err(BackendError::Server(error)) => Ok(Err(ClientError::server(error))),
            Err(error) => {
                lease.broken = true;
                Ok(Err(ClientError::backend(error)))
            }
        }
    }

    /// Prepares a text after what must go ahead of it; answers the connection's number.
    pub(crate) async fn prepare_now(
        &mut self,
        lease: &mut Lease,
        setup: &mut Setup,
        text: &[u8],
    ) -> Result<u32, BackendError> {
        let payload = [&[COM_STMT_PREPARE], text].concat();
        packet::frame(&mut setup.bytes, 0, &payload);
        let answers = setup.steps.len() + 1;
        lease.send(&setup.bytes, answers).await?;
        let mut failed = None;
        for step in std::mem::take(&mut setup.steps) {
            if let Err(error) = self.settle_step(lease, step).await {
                lease.broken = true;
                failed = Some(error);
                break;
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut refused = 0;
        let answer = loop {
            match lease.read_answer(Expect::Prepare).await {
                Err(BackendError::Server(error))
                    if error.code == CROWDED && self.give_up_statements(lease, refused).await =>
                {
                    refused += 1;
                    setup.bytes.clear();
                    packet::frame(&mut setup.bytes, 0, &payload);
                    lease.send(&setup.bytes, 1).await?;
                }
                answer => break answer?,
            }
        };
        let id = answer.get(packet::HEADER + 1..packet::HEADER + 5);
        let id: [u8; 4] = id
            .and_then(|id| id.try_into().ok())
            .ok_or(BackendError::Protocol("malformed answer to a prepare"))?;
        Ok(u32::from_le_bytes(id))
    }

    /// Notes a statement that a client has just prepared, or closes it: the connection may have one
    /// that does as well.
    pub(crate) async fn hold_new(
        &mut self,
        lease: &mut Lease,
        statement: &ClientStatement,
        server_id: u32,
    ) {
        let Some(unused) = statement.unused else {
            return self.hold_prepared(lease, statement.uid, server_id).await;
        };
        let executed = self.worker.prepared.last_executed_as(unused);
        let mut alike = [executed, Some(unused)].into_iter().flatten();
        // The other one may have been executed, which is more than this one was.
        if alike.any(|uid| lease.prepared.get(uid).is_some()) {
            return lease.close_statement(server_id).await;
        }
        self.hold_prepared(lease, unused, server_id).await;
    }

    /// Notes a statement that the connection now holds and closes what it has too many.
    pub(crate) async fn hold_prepared(&mut self, lease: &mut Lease, uid: u64, server_id: u32) {
        if let Some(old) = lease.prepared.add(uid, server_id) {
            lease.close_statement(old).await;
        }
        let most = lease.server().statements_max();
        self.close_beyond(lease, most, Some(uid)).await;
        lease.server().note_statements(lease.prepared.len());
    }

    /// Closes the statements that the connection holds beyond `most`, but not `new`, and none that has
    /// an open cursor.
    async fn close_beyond(&self, lease: &mut Lease, most: usize, new: Option<StatementUid>) {
        let open: Vec<StatementUid> = match self.handle.pins.has(PinReason::Cursor) {
            true => self.image.statements.with_cursor().collect(),
            false => Vec::new(),
        };
        let may_go = |uid| Some(uid) != new && !open.contains(&uid);
        while let Some(old) = lease.prepared.pop_beyond(most, may_go) {
            lease.close_statement(old).await;
        }
    }

    /// The server takes no more prepared statements: connections give up some, this one at least
    /// one, and it is given a moment. False where that was done `refused` times in vain, or there is none
    /// to give up.
    async fn give_up_statements(&self, lease: &mut Lease, refused: usize) -> bool {
        let server = lease.server().clone();
        let Some(pause) = PAUSES.get(refused) else {
            return false;
        };
        if !server.hold_fewer_statements() {
            return false;
        }
        let most = lease.prepared.len().saturating_sub(1);
        self.close_beyond(lease, most.min(server.statements_max()), None)
            .await;
        if !pause.is_zero() {
            tokio::time::sleep(*pause).await;
        }
        true
    }

    pub(crate) fn append_long_data(&self, id: u32, server_id: u32, out: &mut Vec<u8>) {
        let Some(statement) = self.image.statements.get(id) else {
            return;
        };
        for (param, data) in &statement.long_data {
            let mut payload = vec![COM_STMT_SEND_LONG_DATA];
            payload.extend_from_slice(&server_id.to_le_bytes());
            payload.extend_from_slice(&param.to_le_bytes());
            payload.extend_from_slice(data);
            packet::frame(out, 0, &payload);
        }
    }
}

/// How long a server that takes no more prepared statements is given to close some, each time that it
/// says so, until the client is told.
const PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// How long the answer of a read that was sent for nothing may take.
const DISCARD: Duration = Duration::from_millis(20);

/// Whether a statement may run a second time as far as its own effects go: it only reads, or changes
/// the session only, what its connection has lost with itself.
fn may_repeat(request: &Request<'_>) -> bool {
    request.access <= Access::PrimaryRead || request.prepares()
}

/// Whether the statement's kind ends no transaction.
fn stays_in_transaction(class: &Statement) -> bool {
    class.is(Traits::STAYS_IN_TRANSACTION)
}

/// Whether a write that its server refused may be sent to another: one plain statement.
fn may_retry(request: &Request<'_>) -> bool {
    let class = request.runs();
    let locks = Flags::ACQUIRES_USER_LOCK
        | Flags::RELEASES_USER_LOCK
        | Flags::RELEASES_ALL_USER_LOCKS
        | Flags::INTO_OUTFILE;
    class.is(Traits::RETRYABLE) && !class.flags.intersects(locks)
}

/// Whether the statement changes rows and runs no code of others': what it did is undone with it, where
/// its tables have transactions.
fn is_change(request: &Request<'_>) -> bool {
    let class = request.runs();
    let changes = class.is(Traits::CHANGES_ROWS);
    changes && class.functions.is_empty() && request.inner.is_none()
}

/// Whether the request is an execution that opens a cursor if it has rows: one that asks for that, of
/// anything but a routine, whose results are sent whole.
fn opens_cursor(request: &Request<'_>) -> bool {
    let Main::Execute { packet, .. } = request.main else {
        return false;
    };
    // The lowest bits of the flags behind the statement's number ask for a cursor.
    let asked = packet
        .get(packet::HEADER + 5)
        .is_some_and(|flags| flags & 7 != 0);
    asked && is_plain_execution(packet) && request.class.kind != Kind::Call
}

/// Whether an execution's packet is COM_STMT_EXECUTE.
pub(crate) fn is_plain_execution(packet: &[u8]) -> bool {
    packet.get(packet::HEADER) == Some(&COM_STMT_EXECUTE)
}
