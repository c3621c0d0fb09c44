//! Commands of Millrace's own ahead of a statement: how they are put together, sent, and their answers used.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use millrace_backend::conn::{SAVE_NUMBERS, number, warnings};
use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::books::BLANK_ID;
use millrace_engine::state::{self, SessionState};
use millrace_metrics::{PinReason, PositionWait};
use millrace_protocol::response::Expect;
use millrace_protocol::resultset::first_value;
use millrace_topology::GtidSet;

use crate::error::ClientError;
use crate::session::Session;
use millrace_worker::Handle;

/// A command of Millrace's own ahead of the statement, by how its answer is used.
pub(in crate::session) enum Step {
    /// What the session has asked for, such as its BEGIN. An answer without interest.
    Plain(Expect),
    /// What nobody has asked for. An answer without interest.
    Own(Expect),
    /// A part of the session's state is set.
    State(Expect),
    /// The database of a state is chosen.
    Database(Rc<SessionState>),
    /// A PREPARE of the session's, which may compile no more: that is told to whoever executes it.
    Named(Box<[u8]>),
    /// The PREPARE of the statement that the request executes. Where it compiles no more, that is the request's error,
    /// and the connection is as it was.
    Executed(Box<[u8]>),
    /// SHOW WARNINGS for the session that used the connection before.
    SaveWarnings(Rc<Handle>, u64),
    /// LAST_INSERT_ID() and FOUND_ROWS() for that session.
    SaveNumbers(Rc<Handle>, u64),
    /// The wait for a position. In a cluster for all that this process had counted then.
    Wait(Option<u64>),
}

/// Commands ahead of the statement.
#[derive(Default)]
pub(in crate::session) struct Setup {
    pub(in crate::session) bytes: Vec<u8>,
    pub(in crate::session) steps: Vec<Step>,
    /// One of them can fail, and then a statement that writes must not follow.
    pub(in crate::session) doubtful: bool,
    /// A transaction is begun.
    pub(in crate::session) begins: bool,
    /// What is proven not to fail on the server once the steps have succeeded.
    pub(in crate::session) proofs: Vec<u64>,
}

impl Setup {
    pub(in crate::session) fn query(&mut self, lease: &Lease, text: &[u8]) {
        lease.frame_query(&mut self.bytes, text);
        self.steps.push(Step::Plain(Expect::Query));
    }

    /// The same for what no session has asked for.
    pub(in crate::session) fn own_query(&mut self, lease: &Lease, text: &[u8]) {
        lease.frame_query(&mut self.bytes, text);
        self.steps.push(Step::Own(Expect::Query));
    }
}

impl Session {
    /// Brings the connection to `target`, unless it is there.
    pub(in crate::session) fn apply_state(
        &self,
        lease: &mut Lease,
        target: &Rc<SessionState>,
        setup: &mut Setup,
    ) {
        if Rc::ptr_eq(&lease.state, target) {
            return;
        }
        let mut steps = Vec::new();
        let before = setup.bytes.len();
        let attributes = lease.has_attributes();
        state::difference(
            &lease.state,
            target,
            attributes,
            &mut setup.bytes,
            &mut steps,
        );
        for step in steps {
            setup.doubtful |= match step {
                state::Step::Set => {
                    let proof = hash(lease, &setup.bytes[before..]);
                    setup.proofs.push(proof);
                    !self.worker.learnt.is_proven(proof)
                }
                // The database may be gone.
                state::Step::Database => true,
                state::Step::Option => false,
            };
            setup.steps.push(match step {
                state::Step::Set => Step::State(Expect::Query),
                state::Step::Database => Step::Database(target.clone()),
                state::Step::Option => Step::Own(Expect::SetOption),
            });
        }
        let mut reached = SessionState::clone(target);
        if target.database.is_empty() {
            reached.database = lease.state.database.clone();
        }
        lease.state = if reached == **target {
            target.clone()
        } else {
            self.worker.states.share(reached)
        };
    }

    /// Asks what the session before may still want to know, and keeps it for that session.
    pub(in crate::session) fn save_unread(&self, lease: &mut Lease, setup: &mut Setup) {
        if let Some(owner) = self.worker.session(lease.books.last_user()) {
            // First the warnings: any other statement clears them.
            if lease.books.unread().diagnostics {
                lease.frame_query(&mut setup.bytes, b"SHOW WARNINGS");
                setup
                    .steps
                    .push(Step::SaveWarnings(owner.clone(), lease.books.last_seq()));
            }
            lease.frame_query(&mut setup.bytes, SAVE_NUMBERS.as_bytes());
            lease.books.set_insert_id(BLANK_ID);
            let seq = lease.books.last_seq();
            setup.steps.push(Step::SaveNumbers(owner, seq));
        }
        if lease.books.unread().diagnostics {
            setup.own_query(lease, CLEAR_DIAGNOSTICS.as_bytes());
        }
        if setup.steps.is_empty() {
            // Its last user is gone: nobody waits for this.
            lease.books.saved();
        }
        lease.books.handed_over();
    }

    /// Saves what the session before may still want to know, before the connection is reset.
    pub(in crate::session) async fn save_for_last_user(&mut self, lease: &mut Lease) {
        if !lease.books.is_missed_by_other(self.handle.uid()) {
            return;
        }
        let mut setup = Setup::default();
        self.save_unread(lease, &mut setup);
        lease.broken |= self.run_steps(lease, &mut setup).await.is_err();
    }

    pub(in crate::session) async fn run_steps(
        &mut self,
        lease: &mut Lease,
        setup: &mut Setup,
    ) -> Result<(), BackendError> {
        lease.send(&setup.bytes, setup.steps.len()).await?;
        setup.bytes.clear();
        setup.doubtful = false;
        let mut refused = None;
        for step in std::mem::take(&mut setup.steps) {
            let is_executed = matches!(step, Step::Executed(_));
            match self.read_step(lease, step).await {
                Ok(()) => {}
                Err(error @ BackendError::Server(_)) if is_executed => refused = Some(error),
                Err(error) => {
                    // That one counts: answers are unread, or the state is not what its record says.
                    self.running.route.prepare_refused = false;
                    return Err(error);
                }
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        self.worker.learnt.prove(std::mem::take(&mut setup.proofs));
        Ok(())
    }

    pub(in crate::session) async fn read_step_of_setup(
        &mut self,
        lease: &mut Lease,
        step: Step,
    ) -> Result<(), ClientError> {
        let leaves_state = matches!(step, Step::Wait(_) | Step::Executed(_));
        let is_plain = matches!(step, Step::Plain(_) | Step::Own(_));
        self.read_step(lease, step).await.map_err(|error| {
            if is_plain && self.is_rolled_back(&error) {
                self.running.route.rolled_back = true;
                // What was set ahead is said again.
                lease.books.doubt_variables();
                lease.books.set_tracks_for(self.handle.uid());
            } else if !leaves_state {
                // The connection's state is not what its record says.
                lease.broken = true;
            }
            ClientError::backend(error)
        })
    }

    /// Whether the server says that it has rolled back the open transaction, for another's sake: Galera tells the first
    /// command after a node's write has won (observed), whatever that is.
    fn is_rolled_back(&self, error: &BackendError) -> bool {
        let is_deadlock = matches!(error, BackendError::Server(error) if error.code == 1213);
        is_deadlock && self.lease_is_kept() && self.handle.pins().has(PinReason::Transaction)
    }

    /// Reads the answer of a step. What a server says to one that no session has asked for is nobody's answer.
    pub(super) async fn read_step(
        &mut self,
        lease: &mut Lease,
        step: Step,
    ) -> Result<(), BackendError> {
        match step {
            Step::Plain(expect) => {
                lease.read_answer(expect).await?;
            }
            Step::Own(expect) => {
                lease
                    .read_answer(expect)
                    .await
                    .map_err(BackendError::ahead)?;
            }
            Step::State(expect) => {
                let answer = lease.read_answer(expect).await;
                self.running.route.state_refused |= matches!(answer, Err(BackendError::Server(_)));
                answer?;
            }
            Step::Database(state) => {
                let answer = lease.read_answer(Expect::Simple).await;
                if let Err(BackendError::Server(_)) = answer {
                    self.running.route.database_refused = Some(state);
                }
                answer?;
            }
            Step::Named(name) => match lease.read_answer(Expect::Query).await {
                // Whoever executes it is told.
                Err(BackendError::Server(_)) => {
                    self.image.vars.private.note_refused(&name, true);
                }
                answer => drop(answer?),
            },
            Step::Executed(name) => {
                let answer = lease.read_answer(Expect::Query).await;
                let is_refused = matches!(answer, Err(BackendError::Server(_)));
                if self.image.vars.private.note_refused(&name, is_refused) && answer.is_ok() {
                    // Connections that were left without it are to get it.
                    let version = self.image.vars.private.version;
                    lease.books.set_variables(self.handle.uid(), Some(version));
                }
                self.running.route.prepare_refused |= is_refused;
                answer?;
            }
            Step::SaveWarnings(owner, seq) => {
                let rows = Box::pin(lease.read_rows()).await;
                let rows = rows.map_err(BackendError::ahead)?;
                owner.saved().keep(seq).warnings = Some(warnings(rows));
            }
            Step::SaveNumbers(owner, seq) => {
                let rows = Box::pin(lease.read_rows()).await;
                let rows = rows.map_err(BackendError::ahead)?;
                let mut saved = owner.saved().keep(seq);
                saved.last_insert_id = number(&rows, 0);
                saved.found_rows = number(&rows, 1);
                lease.books.saved();
            }
            Step::Wait(counted) => Box::pin(self.read_wait(lease, counted)).await?,
        }
        Ok(())
    }

    /// The answer to a wait. A cluster's node has a limit of its own, of 30 seconds; it says 1205 then, and so it does
    /// to all that wait when it loses its group, and from then on at once (observed on 10.11 and 11.8).
    async fn read_wait(
        &mut self,
        lease: &mut Lease,
        counted: Option<u64>,
    ) -> Result<(), BackendError> {
        const LEAST_MS: u64 = 10;
        let primary = self.worker.cluster.primary();
        let on_primary = primary == Some(lease.server);
        let reading = lease.read_answer(Expect::Query);
        let Some(counted) = counted else {
            let answer = reading.await;
            self.note_wait(lease, answer)?;
            self.worker.cluster.reached_on(lease, self.required());
            return Ok(());
        };
        let limit = match self.settings.options.routing.wait_limit_ms {
            // There is nobody else to turn to: its own limit holds.
            _ if on_primary => u64::from(u32::MAX),
            limit => LEAST_MS.max(limit.into()),
        };
        let limit = Duration::from_millis(limit);
        let answer = tokio::time::timeout(limit, reading).await;
        self.running.route.overdue = answer.is_err();
        let late = || Err(BackendError::Timeout("routing.wait_limit"));
        let answer = answer.unwrap_or_else(|_| late());
        self.note_wait(lease, answer)?;
        let reached = GtidSet::Cluster(counted);
        self.worker.cluster.reached_on(lease, &reached);
        self.image.reads.shown_by = Some(lease.server);
        Ok(())
    }

    /// Whether a wait has ended with what was waited for.
    fn note_wait(
        &self,
        lease: &Lease,
        answer: Result<Vec<u8>, BackendError>,
    ) -> Result<(), BackendError> {
        let server = lease.server;
        let metrics = self.worker.metrics();
        let reached = match answer {
            Ok(answer) => first_value(&answer, lease.capabilities) == Some(b"0"),
            Err(BackendError::Timeout(_)) => false,
            Err(error) => {
                metrics.position_wait(server.index(), PositionWait::Failed);
                if self.worker.cluster.primary() != Some(server) {
                    self.worker.cluster.set_behind(server);
                }
                return Err(error.ahead());
            }
        };
        if !reached {
            metrics.position_wait(server.index(), PositionWait::TimedOut);
            self.worker.cluster.set_behind(server);
            return Err(BackendError::Timeout("routing.wait_limit"));
        }
        metrics.position_wait(server.index(), PositionWait::Reached);
        Ok(())
    }
}

/// Leaves nothing for SHOW WARNINGS on either family: MariaDB keeps the old messages over
/// statements that read no table (observed).
pub(super) const CLEAR_DIAGNOSTICS: &str = "DO (SELECT 1 FROM (SELECT 1) x)";

/// Of what was set on a connection, as far as it proves that it can be set on another.
fn hash(lease: &Lease, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    // A privilege may have been taken away since an older one.
    (lease.server, lease.login.version).hash(&mut hasher);
    bytes.hash(&mut hasher);
    hasher.finish()
}
