//! A statement that its server refused, or whose connection broke: what the client is told, and whether another server
//! may have it.

use std::time::{Duration, Instant};

use millrace_backend::error::{BackendError, ServerError};
use millrace_backend::failovers::FailoverCount;
use millrace_backend::pool::Lease;
use millrace_engine::ended::Stake;
use millrace_engine::journal::commits;
use millrace_engine::refusals::{Meaning, meaning};
use millrace_engine::request::{Main, Request, is_plain_execution};
use millrace_engine::rerun::{AfterBreak, Answering, Broken, after_break};
use millrace_metrics::{PinReason, RetryKind};
use millrace_routing::{NoServer, Target};
use millrace_sql::{Access, Flags, Kind, Traits};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::prepared::PAUSES;
use crate::session::statement::relay::{Plan, RelayOutcome};
use crate::session::statement::rule_actions::tell_server;

/// How long the answer of a read that was sent for nothing may take.
const DISCARD: Duration = Duration::from_millis(20);

/// Whether a statement may run a second time as far as its own effects go: it only reads, or changes
/// the session only, what its connection has lost with itself.
fn may_repeat(request: &Request<'_>) -> bool {
    request.access <= Access::PrimaryRead || request.prepares()
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

/// Whether a server that refuses the request may have committed the open transaction before: DDL and its like
/// commit first, wait, and are refused then where the server has become read only meanwhile. What is no more than
/// a commit is refused with it.
fn refused_after_commit(request: &Request<'_>) -> bool {
    let only_commits = matches!(
        request.runs().kind,
        Kind::Commit | Kind::Begin | Kind::Set | Kind::LockTables | Kind::UnlockTables
    );
    !only_commits && commits(request)
}

/// A request on its connection, as [`errors_to_hold`](millrace_engine::rerun::errors_to_hold) looks at it.
pub(super) struct Unanswered<'a, 'r> {
    pub(super) session: &'a Session,
    pub(super) lease: &'a Lease,
    pub(super) request: &'a Request<'r>,
    pub(super) read_only: bool,
    /// It is the first attempt on this connection.
    pub(super) first: bool,
    pub(super) on_replica: bool,
}

impl Answering for Unanswered<'_, '_> {
    fn first_execution(&self) -> bool {
        self.first && matches!(self.request.main, Main::Execute { .. })
    }

    fn may_pause(&self) -> bool {
        let pauses = usize::from(self.session.running.route.crowded) < PAUSES.len();
        matches!(self.request.main, Main::Packet(_)) && self.request.prepares() && pauses
    }

    fn is_kept(&self) -> bool {
        self.session.lease_is_kept()
    }

    fn keeps_transaction_only(&self) -> bool {
        self.session.handle.pins().has_only(PinReason::Transaction)
            && (self.read_only || !refused_after_commit(self.request))
    }

    fn writes_in_vain(&self) -> bool {
        self.session.client.target == Target::ReplicasOnly && self.request.access == Access::Write
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn may_repeat(&self) -> bool {
        may_repeat(self.request)
    }

    fn may_ask_primary(&self) -> bool {
        self.on_replica && self.session.client.target == Target::Auto
    }

    fn has_several_results(&self) -> bool {
        matches!(self.request.class.kind, Kind::Multi | Kind::Call)
    }

    fn may_retry(&self) -> bool {
        may_retry(self.request)
    }

    fn may_be_half_done(&self) -> bool {
        self.session.may_be_half_done(self.request)
    }

    fn is_undone(&self) -> bool {
        is_change(self.request) || self.session.is_undone_with_connection(self.request)
    }

    fn hook_undoes(&self) -> bool {
        self.session.hook_undoes(self.lease, self.request)
    }

    fn commits(&self) -> bool {
        let kind = self.request.class.kind;
        kind == Kind::Commit || (self.request.access == Access::Write && !self.is_kept())
    }
}

/// What came of a statement on one server.
pub(in crate::session) enum AttemptOutcome {
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
    /// Whether a server that refuses the request may have run a part of it for good: MariaDB's bulk
    /// executions are many statements, each with a commit of its own where no transaction is open.
    fn may_be_half_done(&self, request: &Request<'_>) -> bool {
        let Main::Execute { packet, .. } = request.main else {
            return false;
        };
        !is_plain_execution(packet) && !self.is_undone_with_connection(request)
    }

    /// Whether what a plugin stops at its commit is certainly undone: no other server has heard of it.
    fn hook_undoes(&self, lease: &Lease, request: &Request<'_>) -> bool {
        if request.access != Access::Write && request.class.kind != Kind::Commit {
            return false;
        }
        let in_group = self.worker.cluster.with_world(|world| {
            let view = world.snapshot.server(lease.server);
            let report = view.and_then(|view| view.report.as_ref());
            report.is_none_or(|report| report.group.is_some())
        });
        !in_group
    }

    /// The statement was not sent: its server is not the primary any more.
    pub(super) fn left_behind(&self) -> AttemptOutcome {
        let why = ClientError::no_server(NoServer::NoPrimary);
        match self.lease_is_kept() {
            true => AttemptOutcome::Gone { why, sent: false },
            false => AttemptOutcome::Elsewhere(why),
        }
    }

    /// The server did not run the statement, and said so.
    pub(super) fn held_back(
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

    pub(super) fn count_retry(&self, kind: RetryKind) {
        self.worker.metrics().retry(kind);
        let monitor = &self.worker.shared.monitor;
        let server = self.running.route.server;
        monitor.failovers().count(FailoverCount::Retried, server);
    }

    /// What went ahead of the statement failed, and the statement had been sent with it.
    pub(super) async fn refused(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        answer: ClientError,
        begins: bool,
    ) -> Result<AttemptOutcome, Abort> {
        // Of this attempt alone.
        let prepare_refused = std::mem::take(&mut self.running.route.prepare_refused);
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
        if prepare_refused {
            // What was to be executed was not there.
            lease.effects_noted();
            return Ok(AttemptOutcome::Elsewhere(answer));
        }
        if std::mem::take(&mut self.running.route.rolled_back) && !lease.broken {
            // As the statement would have been told. It has only asked something since: before a write, what goes ahead
            // is waited for.
            if let Some(journal) = &mut self.image.tx.journal {
                journal.note_rolled_back();
            }
            lease.effects_noted();
            return Err(Abort::Error(answer));
        }
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
                return Err(Abort::Error(match answer.passing {
                    // That says that nothing was done.
                    true => ClientError::unknown_after(&answer.error),
                    false => answer,
                }));
            }
            // What it changed of the session goes with the connection.
            lease.broken = true;
        }
        Ok(AttemptOutcome::Elsewhere(answer))
    }

    /// The connection broke with the statement under way and nothing shown to the client; `sent`:
    /// all of the statement had gone out.
    pub(super) async fn broken(
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
        let stake = match after_break(Broken {
            kept: self.lease_is_kept(),
            sent,
            may_repeat: may_repeat(request),
            undone: self.is_undone_with_connection(request),
            lost: self.running.route.lost.into(),
            retries: self.settings.options.failover.retries,
        }) {
            AfterBreak::Leave => return Ok(AttemptOutcome::Gone { why, sent }),
            AfterBreak::Unsent => {
                self.count_retry(RetryKind::Unsent);
                return Ok(AttemptOutcome::Elsewhere(why));
            }
            AfterBreak::Unknown => return Err(self.unknown_outcome()),
            AfterBreak::TooOften => {
                self.count_failed(Some(lease.server));
                return Err(Abort::Error(why));
            }
            AfterBreak::UnlessEndedSession => Stake::Session,
            AfterBreak::UnlessEndedRead => Stake::Read(self.running.runs_since.get().elapsed()),
        };
        let alive = self.running.runs_since.get();
        let ended = self.was_ended(lease, request.access == Access::Write, stake, &why, alive);
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

    /// Ends what runs on a connection that is about to be closed, by another one of the same account:
    /// a server does not look whether anybody still waits for a long read, and until its end the
    /// read would hold up the applier's DDL, and all reads behind that.
    fn stop_on_server(&mut self, lease: &Lease) {
        let (pool, state) = (self.pool(lease.server), self.image.vars.state.clone());
        let kill = format!("KILL CONNECTION {}", lease.thread_id);
        tokio::task::spawn_local(tell_server(pool, self.handle.uid(), state, kill));
    }

    /// Reads the answer of a statement that was sent for nothing.
    async fn discard(&mut self, lease: &mut Lease, request: &Request<'_>) {
        let plan = Plan {
            discard: true,
            cursor: request.opens_cursor(),
            ..Plan::default()
        };
        match self.relay(lease, request.task.expect(), &plan).await {
            Ok(RelayOutcome::Whole) => {
                if let Some((id, ..)) = self.running.outcome.prepared {
                    lease.close_statement(id).await;
                }
                if request.access <= Access::Read || request.prepares() {
                    // It has changed nothing that anybody would have to know of.
                    lease.effects_noted();
                }
            }
            _ => lease.broken = true,
        }
    }

    /// The server had closed the connection before it read the statement.
    pub(super) fn unread(&mut self, lease: &mut Lease, said: ClientError) -> AttemptOutcome {
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
}

#[cfg(test)]
mod tests {
    use millrace_engine::request::Task;
    use millrace_sql::{Family, LexMode, Statement, classify};

    use super::*;

    #[test]
    fn only_what_goes_on_after_its_commit_may_be_refused_after_it() {
        for (text, expected) in [
            ("CREATE TABLE IF NOT EXISTS t (a INT)", true),
            ("TRUNCATE t", true),
            ("RENAME TABLE a TO b", true),
            ("GRANT SELECT ON t TO u", true),
            ("CREATE USER u", true),
            ("CALL p()", true),
            ("COMMIT", false),
            ("BEGIN", false),
            ("SET autocommit=1", false),
            ("LOCK TABLES t WRITE", false),
            ("INSERT INTO t VALUES (1)", false),
            ("UPDATE t SET a=1", false),
            ("SELECT a FROM t FOR UPDATE", false),
            ("SAVEPOINT a", false),
        ] {
            let mut class = Statement::default();
            classify(
                text.as_bytes(),
                &LexMode::new(Family::MySql, 90_700),
                &mut class,
            );
            let request = Request::packet(Task::Query, text.as_bytes(), &class, Access::Write);
            assert_eq!(refused_after_commit(&request), expected, "{text}");
        }
    }
}
