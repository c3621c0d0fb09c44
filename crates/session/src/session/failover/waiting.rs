//! How a statement waits for a server that can run it. What becomes of it then is for
//! [`crate::session::command`] to say.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use millrace_backend::failovers::FailoverCount;
use millrace_backend::monitor::World;
use millrace_backend::pool::Lease;
use millrace_engine::attempts::{Attempts, Next};
use millrace_engine::journal::Unreplayable;
use millrace_engine::request::{Main, Request};
use millrace_metrics::ErrorClass;
use millrace_routing::{Candidate, Candidates, NoServer, Target, is_for_primary};
use millrace_sql::Kind;
use millrace_topology::ServerId;

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::access::metric_kind;
use crate::worker::Worker;
use millrace_worker::{HeldStatement, Lane, Place};

/// The longest that a statement of a listener for replicas waits for one.
const REPLICA_WAIT_MAX: Duration = Duration::from_secs(3);

/// Why a wait ended.
enum Turn {
    /// It is this statement's.
    Ours,
    /// It was killed.
    Interrupted,
    /// So was the session, or the process ends.
    Ended,
}

/// A statement among those that wait for a server.
pub(in crate::session) struct Waiting {
    pub(in crate::session) place: Place,
    _counted: Counted,
}

/// Counts a statement that waits, for as long as it lives.
struct Counted(Rc<Worker>);

impl Counted {
    fn new(worker: &Rc<Worker>) -> Self {
        worker.metrics().held();
        Counted(worker.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics().hold_ended();
    }
}

impl Session {
    /// Whether a request has to wait because others do, who came before.
    pub(in crate::session) fn must_queue(&self, request: &Request<'_>) -> bool {
        self.worker.shared.held.count() > 0 && self.needs_primary(request)
    }

    /// Whether nothing but the primary will do.
    fn needs_primary(&self, request: &Request<'_>) -> bool {
        self.weigh(request, None, |_, _, session, _| {
            is_for_primary(session, request.access)
        })
    }

    /// Waits among the statements that wait for a server until one can run the request. `why` it does not run now;
    /// none where others wait. `rest`: how long to rest first, by who has a place already. `limit`: how long it may
    /// still wait.
    pub(in crate::session) async fn wait_in_turn(
        &mut self,
        request: &Request<'_>,
        waiting: &mut Option<Box<Waiting>>,
        why: Option<ClientError>,
        rest: Option<Duration>,
        limit: Duration,
    ) -> Result<(), Abort> {
        let why = why.unwrap_or_else(|| ClientError::no_server(NoServer::NoPrimary));
        let begun = Instant::now();
        let mut kept = waiting.take();
        if let Some(waiting) = &mut kept {
            waiting.place.back();
            tokio::time::sleep(rest.unwrap_or_default()).await;
        }
        self.wrote_nothing_yet();
        let waiting = waiting.insert(match kept {
            Some(waiting) => waiting,
            None => {
                let lane = match self.needs_primary(request) {
                    true if self.may_do_without(request) => Lane::Either,
                    true => Lane::Primary,
                    false => Lane::Reader,
                };
                let (kind, bytes) = (request.runs().kind, self.bytes_of(request));
                Box::new(self.enter(metric_kind(kind).as_str(), lane, bytes, &why)?)
            }
        });
        let ready = |session: &mut Session| session.candidates(request).is_ok();
        let left = limit.saturating_sub(begun.elapsed());
        self.turn(&waiting.place, left, &why, ready).await?;
        waiting.place.go();
        self.running.runs_since.set(Instant::now());
        Ok(())
    }

    /// The statement has waited for as long as it may.
    pub(in crate::session) fn give_up(&mut self, why: &ClientError) -> Abort {
        self.wrote_nothing_yet();
        self.in_vain(self.told(why).waited(self.hold_time()))
    }

    /// No server has the statement, or the one that had has done nothing of it: nobody's reads wait for
    /// what it writes.
    fn wrote_nothing_yet(&mut self) {
        self.running.touching = None;
        if self.running.route.ended.is_none()
            && self.running.route.lost == 0
            && let Some(untracked) = self.running.untracked.take()
        {
            untracked.told();
        }
    }

    /// A connection to the primary, as soon as there is one.
    pub(in crate::session) async fn primary_lease(&mut self) -> Result<Lease, Abort> {
        self.lease_of(|world| world.snapshot.primary).await
    }

    /// A connection to the primary, or for lack of one to any server that takes reads.
    pub(in crate::session) async fn any_lease(&mut self) -> Result<Lease, Abort> {
        let world = self.worker.cluster.world();
        let mut judges = world.snapshot.judges();
        if let Some(free) = judges.find(|judge| !self.pool(*judge).is_full()) {
            let state = self.image.vars.state.clone();
            match self
                .pool(free)
                .take(self.handle.uid(), &state, self.version_on(free))
                .await
            {
                Ok(lease) => return Ok(lease),
                Err(error) => drop(self.unavailable(free, error)),
            }
        }
        self.lease_of(|world| world.snapshot.judges().next()).await
    }

    /// A connection to the server that is chosen, as soon as there is one.
    async fn lease_of(
        &mut self,
        choose: impl Fn(&World) -> Option<ServerId>,
    ) -> Result<Lease, Abort> {
        let mut waiting: Option<Waiting> = None;
        let mut attempts = Attempts::default();
        let mut next = attempts.begin(false, self);
        loop {
            next = match next {
                Next::Decide => {
                    let decided = match self.worker.cluster.with_world(&choose) {
                        Some(server) => Ok(Candidates::from_slice(&[Candidate {
                            server,
                            wait: false,
                        }])),
                        None => Err(ClientError::no_server(NoServer::NoPrimary)),
                    };
                    attempts.decided(decided, self)
                }
                Next::Try(Candidate { server, .. }) => {
                    let state = self.image.vars.state.clone();
                    let (pool, uid) = (self.pool(server), self.handle.uid());
                    let version = self.version_on(server);
                    match pool.take(uid, &state, version).await {
                        Ok(lease) => {
                            self.note_version(&lease);
                            return Ok(lease);
                        }
                        Err(error) => {
                            let why = self.unavailable(server, error);
                            attempts.refused(why, false, self)
                        }
                    }
                }
                Next::Wait { why, rest } => {
                    let why = why.unwrap_or_else(|| ClientError::no_server(NoServer::NoPrimary));
                    let held = match waiting.take() {
                        Some(held) => {
                            held.place.back();
                            tokio::time::sleep(rest.unwrap_or_default()).await;
                            held
                        }
                        None => {
                            self.enter(metric_kind(Kind::Set).as_str(), Lane::Primary, 0, &why)?
                        }
                    };
                    let ready = |session: &mut Session| {
                        session.worker.cluster.with_world(&choose).is_some()
                    };
                    self.turn(&held.place, attempts.rest(self), &why, ready)
                        .await?;
                    held.place.go();
                    waiting = Some(held);
                    attempts.in_turn()
                }
                Next::GiveUp(why) => {
                    return Err(self.in_vain(self.told(&why).waited(self.hold_time())));
                }
                Next::TryPrimary(why) | Next::ForgoDatabase(why) | Next::Fail(why) => {
                    return Err(why.into());
                }
                Next::LoseTransaction | Next::End => return Err(Abort::Ended),
            }
        }
    }

    pub(in crate::session) fn hold_time(&self) -> Duration {
        let limit = self.settings.options.failover.hold_time;
        match self.client.target {
            Target::ReplicasOnly => limit.min(REPLICA_WAIT_MAX),
            _ => limit,
        }
    }

    fn bytes_of(&self, request: &Request<'_>) -> usize {
        let (Main::Packet(packet) | Main::Execute { packet, .. }) = request.main;
        let journal = self
            .image
            .tx
            .replay
            .as_ref()
            .map_or(0, |replay| replay.journal().bytes_kept());
        packet.len() + journal
    }

    fn enter(
        &mut self,
        kind: &'static str,
        lane: Lane,
        bytes: usize,
        why: &ClientError,
    ) -> Result<Waiting, Abort> {
        let statement = HeldStatement {
            session: self.id,
            account: self.client.identity.account.user.clone(),
            waited: Duration::ZERO,
            bytes,
            kind,
            lane,
        };
        match self.worker.shared.held.enter(statement) {
            Ok(place) => {
                let monitor = &self.worker.shared.monitor;
                monitor.failovers().count(FailoverCount::Held, None);
                Ok(Waiting {
                    place,
                    _counted: Counted::new(&self.worker),
                })
            }
            Err(full) => Err(self.in_vain(self.told(why).no_room(&full))),
        }
    }

    /// Waits until it is the place's turn and `ready` says yes, at most for so long.
    async fn turn(
        &mut self,
        place: &Place,
        limit: Duration,
        why: &ClientError,
        mut ready: impl FnMut(&mut Session) -> bool,
    ) -> Result<(), Abort> {
        let waiting = poll_fn(|cx| self.poll_turn(cx, place, &mut ready));
        let Ok(turn) = tokio::time::timeout(limit, waiting).await else {
            return Err(self.in_vain(self.told(why).waited(self.hold_time())));
        };
        match turn {
            Turn::Ours => Ok(()),
            Turn::Ended => Err(Abort::Ended),
            Turn::Interrupted => Err(self.interrupted().await),
        }
    }

    fn poll_turn(
        &mut self,
        cx: &Context<'_>,
        place: &Place,
        ready: &mut impl FnMut(&mut Session) -> bool,
    ) -> Poll<Turn> {
        self.handle.register(cx);
        if self.handle.has_ended() {
            return Poll::Ready(Turn::Ended);
        }
        if self.handle.is_interrupted() {
            return Poll::Ready(Turn::Interrupted);
        }
        match place.poll_turn(cx) {
            Poll::Ready(()) if ready(self) => Poll::Ready(Turn::Ours),
            _ => Poll::Pending,
        }
    }

    /// Why a statement was not run, as it is now: there may be another reason than when it came.
    fn told(&self, why: &ClientError) -> ClientError {
        let of_primary =
            why.class == ErrorClass::NoServer && self.client.target != Target::ReplicasOnly;
        self.worker
            .cluster
            .with_world(|world| match world.snapshot.primary {
                None if of_primary => ClientError::no_primary(&world.snapshot),
                _ => why.clone(),
            })
    }

    /// What a statement is told that waited in vain, or found no room to.
    fn in_vain(&mut self, answer: ClientError) -> Abort {
        if self.image.tx.replay.is_some() {
            return self.lose_transaction(Unreplayable::NoServer);
        }
        self.count_failed(None);
        answer.into()
    }
}
