//! One statement, from the choice of servers to its answer: on the connection that the session keeps, on the one that
//! the statement asks about, or on the first server that takes it; and again where none did.

use std::time::{Duration, Instant};

use millrace_backend::pool::Lease;
use millrace_engine::attempts::{Attempts, Next, Refusal, Situation};
use millrace_engine::image::last::IdBefore;
use millrace_engine::image::sequences::asks_drawn;
use millrace_engine::journal::Unreplayable;
use millrace_engine::request::Request;
use millrace_routing::{Candidate, Reason, Target};
use millrace_sql::{Access, Flags, Kind};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::failover::waiting::Waiting;
use crate::session::statement::access::metric_kind;
use crate::session::statement::refused::AttemptOutcome;
use crate::session::statement::rule_actions::demands;

/// What came of trying one server.
enum Tried {
    /// It has answered.
    Answered(Lease),
    /// What is to be done next.
    Next(Next<ClientError>),
}

impl Refusal for ClientError {
    fn is_passing(&self) -> bool {
        self.passing
    }
}

impl Situation for Session {
    fn has_replay(&self) -> bool {
        self.image.tx.replay.is_some()
    }

    fn may_ask_primary(&self) -> bool {
        self.client.target == Target::Auto
    }

    fn take_unsent(&mut self) -> bool {
        std::mem::take(&mut self.running.route.unsent)
    }

    fn age(&self) -> Duration {
        self.running.begun.elapsed()
    }

    fn wait_max(&self) -> Duration {
        self.hold_time()
    }
}

impl Session {
    /// Runs a statement where it belongs and takes in what it changed.
    pub(in crate::session) async fn statement(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
    ) -> Result<(), Abort> {
        // Not in the future, which is to be small.
        self.running.begun = Instant::now();
        self.running.runs_since.set(self.running.begun);
        if let Some(found) = self.cached(request, text)
            && Box::pin(self.answer_found(request, text, found)).await?
        {
            return Ok(());
        }
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
    pub(in crate::session) async fn run_somewhere(
        &mut self,
        request: &Request<'_>,
    ) -> Result<Lease, Abort> {
        self.running
            .route
            .begin(self.level_for(request), request.directions.as_ref());
        self.forget_projected();
        self.foresee(request);
        if let Some(directions) = request.directions.as_deref().filter(|it| demands(it)) {
            Box::pin(self.apply_rule_actions(request, directions)).await?;
        }
        if asks_drawn(request.runs())
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
        } else if let Some(reason) = self.wants_to_move(request) {
            Box::pin(self.ask_position_to_move(reason)).await;
        }
        if self.awaits_log(request) {
            Box::pin(self.await_log()).await;
        }
        self.try_servers(request).await
    }

    /// Tries the servers that may run the request until one has answered: does what [`Attempts`] decides.
    async fn try_servers(&mut self, request: &Request<'_>) -> Result<Lease, Abort> {
        let mut attempts = Attempts::default();
        let mut next = attempts.begin(self.must_queue(request), self);
        if matches!(next, Next::Decide) {
            let mut decided = self.candidates(request);
            if let Some(primary) = self.primary_to_await(&decided, request) {
                Box::pin(self.await_shown(primary)).await?;
                decided = self.candidates(request);
            }
            next = attempts.decided(decided, self);
        }
        // An idle connection to the first server answers nearly all; what else may come is in a box.
        if let Next::Try(candidate) = next
            && let Some(mut lease) = self.first_idle(candidate, request)
        {
            let ran = self.attempt(&mut lease, request, candidate.wait).await;
            if let Ok(AttemptOutcome::Done) = ran {
                return Ok(lease);
            }
            let after = self.after_attempt(request, &mut attempts, lease, ran);
            next = Box::pin(after).await?;
        }
        Box::pin(self.try_on(request, attempts, next)).await
    }

    /// An idle connection that will do as it is, on which the request runs from now on.
    fn first_idle(&mut self, candidate: Candidate, request: &Request<'_>) -> Option<Lease> {
        let pool = self.pool_for(candidate.server, request.class);
        let lease = self.take_idle(candidate.server, &pool, &self.image.vars.state, request)?;
        if self.is_unfit(&lease, request, candidate.wait) || self.handle.is_interrupted() {
            lease.give_back();
            return None;
        }
        self.runs_on(&lease, candidate.wait);
        Some(lease)
    }

    /// The request is about to be sent on this connection. `wait`: a wait for a position goes ahead.
    fn runs_on(&mut self, lease: &Lease, wait: bool) {
        self.note_version(lease);
        self.handle
            .set_connection(Some((lease.server, lease.thread_id)));
        (self.running.route.server, self.running.route.waited) = (Some(lease.server), wait);
    }

    /// The same from `next` on: other servers, the primary, waits.
    async fn try_on(
        &mut self,
        request: &Request<'_>,
        mut attempts: Attempts<ClientError>,
        mut next: Next<ClientError>,
    ) -> Result<Lease, Abort> {
        let mut waiting: Option<Box<Waiting>> = None;
        loop {
            let tried = match next {
                Next::Decide => {
                    let decided = self.candidates(request);
                    Tried::Next(attempts.decided(decided, self))
                }
                Next::Try(candidate) => {
                    let place = waiting.as_deref();
                    self.try_server(request, &mut attempts, candidate, place)
                        .await?
                }
                Next::TryPrimary(answer) => {
                    self.try_primary(request, &mut attempts, answer).await?
                }
                Next::ForgoDatabase(why) => {
                    let forgone = self.does_without_database(request, &why);
                    Tried::Next(attempts.forgone(forgone, why, self))
                }
                Next::Wait { why, rest } => {
                    let limit = attempts.rest(self);
                    self.wait_in_turn(request, &mut waiting, why, rest, limit)
                        .await?;
                    Tried::Next(attempts.in_turn())
                }
                Next::GiveUp(why) => return Err(self.give_up(&why)),
                Next::LoseTransaction => {
                    return Err(self.lose_transaction(Unreplayable::NoServer));
                }
                Next::Fail(why) => return Err(why.into()),
                Next::End => return Err(Abort::Ended),
            };
            next = match tried {
                Tried::Answered(lease) => {
                    if waiting.is_some() {
                        self.worker.shared.monitor.failovers().served(lease.server);
                    }
                    return Ok(lease);
                }
                Tried::Next(next) => next,
            };
        }
    }

    /// Runs the request on one of the servers that may run it. `waiting`: its own place among the statements that
    /// wait.
    async fn try_server(
        &mut self,
        request: &Request<'_>,
        attempts: &mut Attempts<ClientError>,
        candidate: Candidate,
        waiting: Option<&Waiting>,
    ) -> Result<Tried, Abort> {
        let server = candidate.server;
        let pool = self.pool_for(server, request.class);
        let state = self.image.vars.state.clone();
        // In one expression: what has a name of its own takes room until the statement ends.
        let mut lease = match self.take_idle(server, &pool, &state, request) {
            Some(lease) => lease,
            None if attempts.rearrange(|all, at| self.is_passed_by(request, &pool, all, at)) => {
                return Ok(Tried::Next(attempts.again(self)));
            }
            None => match self
                .take_lease(server, &pool, &state, request, attempts.is_last())
                .await
            {
                Ok(lease) => lease,
                // A server's word on the account's limit; who has waited for a place has waited.
                Err(Abort::Error(why))
                    if why.side == millrace_metrics::Side::Server
                        && attempts
                            .rearrange(|all, at| self.looks_further(request, &pool, all, at)) =>
                {
                    return Ok(Tried::Next(attempts.again(self)));
                }
                Err(Abort::Error(why)) if !self.was_killed() => {
                    let late = self.may_be_late(server, &why);
                    return Ok(Tried::Next(attempts.refused(why, late, self)));
                }
                Err(failure) => return Err(failure),
            },
        };
        if self.is_unfit(&lease, request, candidate.wait) {
            lease = match Box::pin(self.open_anew(lease)).await {
                Ok(lease) => lease,
                Err(why) => {
                    let late = self.may_be_late(server, &why);
                    return Ok(Tried::Next(attempts.refused(why, late, self)));
                }
            };
        }
        if let Some(waiting) = waiting {
            waiting.place.connected();
        }
        self.runs_on(&lease, candidate.wait);
        if self.handle.is_interrupted() {
            self.put_back(lease);
            return Err(self.interrupted().await);
        }
        match self.attempt(&mut lease, request, candidate.wait).await {
            Ok(AttemptOutcome::Done) => Ok(Tried::Answered(lease)),
            ran => {
                let next = self.after_attempt(request, attempts, lease, ran).await?;
                Ok(Tried::Next(next))
            }
        }
    }

    /// What is done after an attempt that has not answered.
    async fn after_attempt(
        &mut self,
        request: &Request<'_>,
        attempts: &mut Attempts<ClientError>,
        lease: Lease,
        ran: Result<AttemptOutcome, Abort>,
    ) -> Result<Next<ClientError>, Abort> {
        let server = lease.server;
        match ran {
            // It was the session's own by then: its transaction had been run again there.
            Ok(AttemptOutcome::Gone { why, sent }) => {
                let why = self.leave(lease, request, why, sent).await?;
                Ok(attempts.left(why, self))
            }
            Ok(AttemptOutcome::Lacks(answer)) => {
                self.put_back(lease);
                Ok(attempts.lacking(answer, self))
            }
            Ok(AttemptOutcome::Elsewhere(answer)) => {
                // The server has taken a KILL for what went ahead of the statement.
                let killed = self.handle.is_kill_target() && answer.error.code == 1317;
                self.running.route.refused = self.running.route.refused.saturating_add(1);
                let late = self.may_be_late(server, &answer);
                self.put_back(lease);
                if killed || self.handle.is_interrupted() {
                    return Err(self.interrupted().await);
                }
                if std::mem::take(&mut self.running.route.state_refused)
                    && self.forgo_state(server).await
                {
                    return Ok(attempts.without_state());
                }
                Ok(attempts.refused(answer, late, self))
            }
            // The caller has the answer, and keeps the connection.
            Ok(AttemptOutcome::Done) => Ok(Next::End),
            Err(failure) => {
                self.part_after(lease);
                Err(failure)
            }
        }
    }

    /// A replica may lack what the statement names: the primary's answer is the one that counts, also where it
    /// has to be waited for. Where there is no primary, the replica's is all there is.
    async fn try_primary(
        &mut self,
        request: &Request<'_>,
        attempts: &mut Attempts<ClientError>,
        answer: ClientError,
    ) -> Result<Tried, Abort> {
        self.running.route.refused = self.running.route.refused.saturating_add(1);
        let Some(primary) = self.worker.cluster.primary() else {
            return Ok(Tried::Next(attempts.without_primary(answer)));
        };
        let pool = self.pool_for(primary, request.class);
        let state = self.image.vars.state.clone();
        // The replica may have shown the session more than the primary has.
        let wait = self.may_primary_lag(request);
        let mut taken = match self.take_idle(primary, &pool, &state, request) {
            Some(lease) => Ok(lease),
            None => {
                let taking = self.take_lease(primary, &pool, &state, request, true);
                taking.await
            }
        };
        if let Ok(lease) = taken {
            taken = match self.is_unfit(&lease, request, wait) {
                true => Box::pin(self.open_anew(lease)).await.map_err(Abort::Error),
                false => Ok(lease),
            };
        }
        let mut lease = match taken {
            Ok(lease) => lease,
            Err(Abort::Error(why)) if why.passing && !self.was_killed() => {
                return Ok(Tried::Next(attempts.refused(why, false, self)));
            }
            Err(failure) => return Err(failure),
        };
        self.runs_on(&lease, wait);
        self.running.route.reason = Some(Reason::ReplicaLacks);
        if self.handle.is_interrupted() {
            self.put_back(lease);
            return Err(self.interrupted().await);
        }
        match self.attempt(&mut lease, request, wait).await {
            Ok(AttemptOutcome::Done) => Ok(Tried::Answered(lease)),
            Ok(AttemptOutcome::Gone { why, sent }) => {
                let why = self.leave(lease, request, why, sent).await?;
                Ok(Tried::Next(attempts.left(why, self)))
            }
            // An error that the primary gave before the statement, while it was being prepared, counts.
            Ok(AttemptOutcome::Elsewhere(told) | AttemptOutcome::Lacks(told)) => {
                self.put_back(lease);
                Ok(Tried::Next(attempts.refused(told, false, self)))
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
                    if answer.passing {
                        self.count_failed(Some(lease.server));
                    }
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
            self.image.last.last_at()?
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
        self.pool(server).try_take_own(self.handle.uid(), seq)
    }

    /// None where the connection is gone and the statement was not run: another will have to do.
    async fn run_on_own(
        &mut self,
        mut lease: Lease,
        request: &Request<'_>,
    ) -> Result<Option<Lease>, Abort> {
        self.handle
            .set_connection(Some((lease.server, lease.thread_id)));
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
}
