//! One run: clients that send statements, probes that come back late, faults, and the checks.

mod queue;
mod state;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::AddAssign;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use millrace_backend::concurrency::Limit;
use millrace_backend::error::BackendError;
use millrace_backend::pool::{CheckoutRequest, Lease};
use millrace_engine::attempts::{Attempts, Next, Refusal, Situation};
use millrace_engine::options::FailoverOptions;
use millrace_engine::rerun::{AfterBreak, Broken, after_break};
use millrace_routing::{
    self as routing, Access, Candidates, Decision, Load, SessionView, Transaction, decide,
    is_for_primary,
};
use millrace_topology::{
    Cause, ChangeEvent, Family, GtidSet, Millis, NoPrimary, Observation, ObservationKind, Options,
    ServerId, ServerSpec, Snapshot, Topology,
};

use super::TIMEOUT;
use super::connections::{CONNECTIONS, Connections, WORKERS};
use super::random::Random;
use super::servers::{Reached, Servers};
use crate::error::observed;
use millrace_worker::{Held, HeldStatement, Lane, Place};
pub(in crate::simulation) use state::Counts;
use state::{At, Late, NotRun, Pinned, Session, Statement, Taking, Waiting};

const SESSIONS: usize = 12;
const TIMEOUT_MS: u64 = TIMEOUT.as_millis() as u64;
/// A statement waits so long at most.
const HOLD: Duration = Duration::from_millis(2_000);
/// So many may wait at once.
const HELD_MAX: usize = 9;
/// So many rounds, each of them 50 ms, must do for all that waits once everything works.
const CALM_ROUNDS: u64 = 600;

pub(crate) struct Run {
    random: Random,
    now: u64,
    servers: Rc<RefCell<Servers>>,
    connections: Connections,
    topology: Topology,
    world: Arc<Snapshot>,
    /// Of each server, in the order in which they were sent.
    late: Vec<VecDeque<Late>>,
    held: Arc<Held>,
    sessions: Vec<Session>,
    /// By number: its lane, and whether it tries.
    queue: BTreeMap<u64, (Lane, bool)>,
    next: u64,
    rotation: u32,
    counts: Counts,
}

impl Run {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 2 + random.index(3);
        let address = |at: usize| ServerSpec::new(&format!("127.0.0.1:{}", 3306 + at));
        let topology = Topology::new(Options::default(), (0..count).map(address).collect());
        let servers = Rc::new(RefCell::new(Servers::new(count)));
        let limit = 1 + random.index(CONNECTIONS);
        let concurrency = match random.index(4) {
            0 => Limit::Auto,
            few => Limit::At(few as u32),
        };
        let session = |_| Session {
            access: Access::Read,
            attempts: Attempts::default(),
            begun: 0,
            lost: 0,
            at: At::Idle,
            pinned: None,
            required: GtidSet::new(Family::MySql),
            woken: Arc::default(),
        };
        Run {
            random,
            now: 1_000,
            connections: Connections::new(servers.clone(), seed, limit, concurrency),
            servers,
            world: topology.snapshot(),
            topology,
            late: (0..count).map(|_| VecDeque::new()).collect(),
            held: Arc::new(Held::new(&FailoverOptions {
                max_held: HELD_MAX,
                ..FailoverOptions::default()
            })),
            sessions: (0..SESSIONS).map(session).collect(),
            queue: BTreeMap::new(),
            next: 0,
            rotation: 0,
            counts: Counts::default(),
        }
    }

    /// So many steps in storms, after each of which there is a calm.
    pub(super) async fn steps(mut self, steps: u64) -> Counts {
        while self.counts.steps < steps {
            let storm = 50 + self.random.below(300);
            for _ in 0..storm {
                self.step().await;
            }
            self.calm().await;
        }
        self.counts
    }

    async fn step(&mut self) {
        self.counts.steps += 1;
        let passes = self.random.below(40);
        self.pass(passes).await;
        match self.random.below(20) {
            0 => self.servers.borrow_mut().fault(&mut self.random),
            1 => self.operate(),
            2..=6 => self.probe(),
            7 => self.servers.borrow_mut().replicate(),
            _ => {
                let session = self.random.index(SESSIONS);
                self.act(session, true);
            }
        }
        self.deliver();
        self.connections.cut();
    }

    /// So many milliseconds pass: what was due meanwhile happens, to connections too.
    async fn pass(&mut self, passes: u64) {
        let before = self.now;
        self.now += passes;
        tokio::time::advance(Duration::from_millis(passes)).await;
        tokio::task::yield_now().await;
        if before / 1_000 != self.now / 1_000 {
            self.connections.sweep(self.now / 1_000);
        }
        self.connections.wake_workers();
        self.connections.check(|worker, server| {
            let told = |at: &usize| match self.sessions[*at].at {
                At::Connecting { server: theirs, .. } => {
                    theirs == server && self.sessions[*at].woken.0.load(Ordering::Relaxed)
                }
                _ => false,
            };
            (worker..SESSIONS).step_by(WORKERS).filter(told).count()
        });
    }

    /// All works from now on: what waits must end, within bounds, by being woken alone.
    async fn calm(&mut self) {
        let primary = self.servers.borrow_mut().calm();
        for at in 0..self.world.servers.len() {
            self.see(
                at,
                ObservationKind::Resume {
                    by: "operator".into(),
                },
            );
        }
        for round in 0.. {
            self.counts.steps += 1;
            self.pass(50).await;
            self.servers.borrow_mut().replicate();
            // Once all is known nothing more is seen: who waits is woken by others who leave.
            if !self.is_known(primary) {
                for at in 0..self.world.servers.len() {
                    if self.late[at].is_empty() {
                        self.ask(at);
                    }
                }
                self.deliver();
            }
            for session in 0..SESSIONS {
                self.act(session, false);
            }
            let is_idle = |s: &Session| matches!(s.at, At::Idle) && s.pinned.is_none();
            let idle = self.sessions.iter().all(is_idle);
            if idle && self.is_known(primary) && !self.connections.is_opening() {
                break;
            }
            assert!(
                round < CALM_ROUNDS,
                "it does not calm down: primary {:?}, not {primary}; conflict {:?}; {:#?}; {:#?}",
                self.world.primary,
                self.world.conflict,
                self.world.servers,
                self.sessions
            );
        }
        assert_eq!(self.held.count(), 0, "nobody waits");
        assert!(self.queue.is_empty());
        self.connections.sweep(self.now / 1_000);
        self.connections.check_rest();
        self.counts.drained += 1;
    }

    /// Whether all servers are known to be what they are.
    fn is_known(&self, primary: usize) -> bool {
        self.world.primary == Some(ServerId(primary as u16))
            && self.world.servers.iter().all(|server| server.is_fit())
    }

    fn operate(&mut self) {
        let at = self.random.index(self.world.servers.len());
        let by = "operator".into();
        let kind = match self.random.one_in(3) {
            true => ObservationKind::Drain { by },
            false => ObservationKind::Resume { by },
        };
        self.see(at, kind);
    }

    /// A probe begins: no server has more than a few under way.
    fn probe(&mut self) {
        let at = self.random.index(self.world.servers.len());
        if self.late[at].len() < 2 {
            self.ask(at);
        }
    }

    fn ask(&mut self, at: usize) {
        let seen = match self.servers.borrow().probe(at, &mut self.random) {
            Ok(report) => ObservationKind::ProbeOk(Box::new(report)),
            Err(cause) => ObservationKind::ProbeFailed {
                cause,
                text: "".into(),
            },
        };
        let takes = match &seen {
            ObservationKind::ProbeFailed {
                cause: Cause::TimedOut,
                ..
            } => TIMEOUT_MS,
            _ => 1 + self.random.below(60),
        };
        let at_ms = self.now + takes;
        self.late[at].push_back(Late { at: at_ms, seen });
    }

    fn deliver(&mut self) {
        for at in 0..self.late.len() {
            while self.late[at]
                .front()
                .is_some_and(|late| late.at <= self.now)
            {
                if let Some(late) = self.late[at].pop_front() {
                    self.see(at, late.seen);
                }
            }
        }
    }

    /// Folds it, and lets those that wait look again where the world has changed, as a worker does.
    fn see(&mut self, at: usize, kind: ObservationKind) {
        let events = self.topology.fold(Observation {
            server: ServerId(at as u16),
            at: Millis(self.now),
            kind,
        });
        let moved = |event: &&ChangeEvent| matches!(event, ChangeEvent::Primary { .. });
        self.counts.moves += events.iter().filter(moved).count() as u64;
        let before = std::mem::replace(&mut self.world, self.topology.snapshot());
        self.counts.conflicts +=
            u64::from(before.conflict.is_empty() && !self.world.conflict.is_empty());
        if before.generation != self.world.generation {
            self.connections.follow(&before, &self.world);
            self.held.look_again();
        }
        self.leave(&before);
    }

    /// What is pinned to a server that is lost or demoted is told so: it never moves by itself.
    fn leave(&mut self, before: &Snapshot) {
        for index in 0..SESSIONS {
            let session = &self.sessions[index];
            let Some(pinned) = &session.pinned else {
                continue;
            };
            let id = ServerId(pinned.server as u16);
            let usable = |world: &Snapshot| world.server(id).is_some_and(|s| s.health.is_usable());
            let fell = usable(before) && !usable(&self.world);
            let demoted = before.primary == Some(id) && self.world.primary.is_some_and(|p| p != id);
            if (fell || demoted) && matches!(session.at, At::Idle) {
                self.lose(index);
            }
        }
    }

    /// Its transaction is run again elsewhere, or the client is told that it is over.
    fn lose(&mut self, index: usize) {
        if let Some(pinned) = self.sessions[index].pinned.take() {
            self.connections.give_back(index, pinned.lease, false);
            self.counts.lost_transactions += 1;
        }
    }

    /// The client ends its transaction.
    fn finish(&mut self, index: usize) {
        if let Some(pinned) = self.sessions[index].pinned.take() {
            self.connections.give_back(index, pinned.lease, true);
        }
    }

    fn act(&mut self, index: usize, storm: bool) {
        match std::mem::replace(&mut self.sessions[index].at, At::Idle) {
            At::Idle => self.idle(index, storm),
            At::Connecting {
                server,
                taking,
                number,
                waiting,
            } => {
                let woken = &self.sessions[index].woken;
                if storm && self.random.one_in(100) {
                    // Its client is gone.
                    self.counts.left += 1;
                    self.unqueue(waiting.as_ref());
                } else if woken.0.swap(false, Ordering::Relaxed) {
                    self.connecting(index, server, taking, number, waiting);
                } else {
                    self.sessions[index].at = At::Connecting {
                        server,
                        taking,
                        number,
                        waiting,
                    };
                }
            }
            At::Server {
                server,
                until,
                lease,
                waiting,
            } => self.on_server(index, server, until, lease, waiting),
            At::Queue(waiting) => self.in_queue(index, waiting),
            At::Pause(waiting, until) if until <= self.now => {
                // Its own loop looks again, woken or not.
                self.sessions[index].woken.0.store(true, Ordering::Relaxed);
                self.in_queue(index, waiting);
            }
            paused @ At::Pause(..) => self.sessions[index].at = paused,
        }
    }

    fn idle(&mut self, index: usize, storm: bool) {
        if !storm {
            self.finish(index);
            return;
        }
        let session = &mut self.sessions[index];
        session.access = match self.random.below(3) {
            0 => Access::Write,
            _ => Access::Read,
        };
        if session.pinned.is_some() && self.random.one_in(4) {
            self.finish(index);
            return;
        }
        self.counts.statements += 1;
        let held = self.held.count();
        let session = &mut self.sessions[index];
        let queues =
            held > 0 && session.pinned.is_none() && is_for_primary(&session.view(), session.access);
        session.attempts = Attempts::default();
        (session.begun, session.lost) = (self.now, 0);
        let next = self.tell(index, |attempts, statement| {
            attempts.begin(queues, statement)
        });
        self.follow(index, next, None);
    }

    /// Tells a session's loop something, and asks what to do next.
    fn tell(
        &mut self,
        index: usize,
        tell: impl FnOnce(&mut Attempts<NotRun>, &mut Statement) -> Next<NotRun>,
    ) -> Next<NotRun> {
        let unsent = self.random.one_in(4);
        let session = &mut self.sessions[index];
        let mut statement = Statement {
            age: Duration::from_millis(self.now - session.begun),
            unsent,
        };
        tell(&mut session.attempts, &mut statement)
    }

    /// Does what the loop says.
    fn follow(&mut self, index: usize, mut next: Next<NotRun>, waiting: Option<Waiting>) {
        loop {
            next = match next {
                Next::Decide => {
                    let decided = self.decided(index).ok_or(NotRun);
                    self.tell(index, |attempts, statement| {
                        attempts.decided(decided, statement)
                    })
                }
                Next::Try(candidate) => {
                    let server = candidate.server.index();
                    return match self.sessions[index].pinned {
                        Some(_) => self.send(index, server, None, waiting),
                        None => self.connect(index, server, waiting),
                    };
                }
                Next::Wait { rest, .. } => {
                    return match waiting {
                        Some(waiting) => self.back(index, waiting, rest.unwrap_or_default()),
                        None => self.enter(index),
                    };
                }
                Next::GiveUp(NotRun) => {
                    self.counts.given_up += 1;
                    return self.unqueue(waiting.as_ref());
                }
                Next::TryPrimary(_)
                | Next::ForgoDatabase(_)
                | Next::LoseTransaction
                | Next::Fail(_)
                | Next::End => panic!("{next:?} comes of nothing that this model says"),
            }
        }
    }

    /// The server tried last has not run it.
    fn refused(&mut self, index: usize, lease: Option<Lease>, waiting: Option<Waiting>) {
        if let Some(lease) = lease {
            self.connections.give_back(index, lease, false);
        }
        if self.sessions[index].pinned.is_some() {
            self.lose(index);
            return self.unqueue(waiting.as_ref());
        }
        self.counts.retried += 1;
        let next = self.tell(index, |attempts, statement| {
            attempts.refused(NotRun, false, statement)
        });
        self.follow(index, next, waiting);
    }

    /// As in `has_lost_role`: a primary that is drained still is one to those that are there.
    fn takes_writes(&self, server: usize) -> bool {
        let id = ServerId(server as u16);
        self.world.primary == Some(id) || self.world.without == Some(NoPrimary::Draining(id))
    }

    /// An idle connection, or the wait for one.
    fn connect(&mut self, index: usize, server: usize, waiting: Option<Waiting>) {
        let (pool, state) = (
            self.connections.pool(index, server),
            self.connections.state(),
        );
        let uid = index as u64 + 1;
        let wanted = CheckoutRequest {
            uid,
            state: &state,
            version: 0,
            own: false,
            prepared: None,
            unused: None,
            changes: true,
        };
        if let Some(lease) = pool.try_take(&wanted) {
            self.connections.lend(index, server, &lease, true);
            self.connected(index, server, lease, waiting);
            return;
        }
        let taking: Taking = Box::pin(async move { pool.take(uid, &state, 0).await });
        let number = self.next;
        self.next += 1;
        self.connecting(index, server, taking, number, waiting);
    }

    fn connecting(
        &mut self,
        index: usize,
        server: usize,
        mut taking: Taking,
        number: u64,
        waiting: Option<Waiting>,
    ) {
        let waker = Waker::from(self.sessions[index].woken.clone());
        match taking.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                self.sessions[index].at = At::Connecting {
                    server,
                    taking,
                    number,
                    waiting,
                };
            }
            Poll::Ready(Ok(lease)) => {
                self.in_turn(index, server, number);
                self.counts.served += 1;
                self.connections.lend(index, server, &lease, false);
                self.connected(index, server, lease, waiting);
            }
            Poll::Ready(Err(error)) => {
                self.counts.unserved += 1;
                if let Some(kind) = observed(&error) {
                    self.see(server, kind);
                }
                self.refused(index, None, waiting);
            }
        }
    }

    /// All that have waited longer for such a connection have been told something.
    fn in_turn(&self, index: usize, server: usize, number: u64) {
        let kind = |session: usize| (session % WORKERS, session / WORKERS % 2);
        for (other, session) in self.sessions.iter().enumerate() {
            let At::Connecting {
                server: theirs,
                number: earlier,
                ..
            } = session.at
            else {
                continue;
            };
            assert!(
                kind(other) != kind(index)
                    || theirs != server
                    || earlier > number
                    || session.woken.0.load(Ordering::Relaxed),
                "session {index} has a connection before session {other}"
            );
        }
    }

    /// With a connection the statement is sent, if the server is still the one.
    fn connected(&mut self, index: usize, server: usize, lease: Lease, waiting: Option<Waiting>) {
        if let Some(waiting) = &waiting {
            waiting.place.connected();
            self.queue.remove(&waiting.number);
        }
        let writes = self.sessions[index].access == Access::Write;
        if writes && !self.takes_writes(server) {
            self.counts.overtaken += 1;
            self.connections.give_back(index, lease, true);
            self.refused(index, None, waiting);
        } else {
            self.send(index, server, Some(lease), waiting);
        }
    }

    fn send(
        &mut self,
        index: usize,
        server: usize,
        lease: Option<Lease>,
        waiting: Option<Waiting>,
    ) {
        let session = &self.sessions[index];
        assert!(
            session.access != Access::Write || self.takes_writes(server),
            "no write is sent to a server that is not known as the primary: {server}, {:?}",
            self.world
        );
        let pinned = session.pinned.as_ref();
        assert_eq!(pinned.is_some(), lease.is_none(), "on one connection");
        assert!(
            pinned.is_none_or(
                |pinned| pinned.lease.thread_id == pinned.thread && pinned.server == server
            ),
            "a transaction stays on its connection"
        );
        let until = self.now + self.random.below(30);
        self.sessions[index].at = At::Server {
            server,
            until,
            lease,
            waiting,
        };
    }

    /// Asks the real decision, and checks it.
    fn decided(&mut self, index: usize) -> Option<Candidates> {
        let pinned = self.sessions[index].pinned.as_ref();
        if pinned.is_some_and(|pinned| !self.takes_writes(pinned.server)) {
            self.lose(index);
        }
        let session = &self.sessions[index];
        let view = session.view();
        let options = routing::Options::default();
        let outstanding = self.connections.outstanding(index);
        let load = Load {
            outstanding: &outstanding,
            response_us: &[],
            known: &[],
            behind: 0,
            rotation: self.rotation,
        };
        let decision = decide(&self.world, &options, &view, session.access, &load);
        let Decision::Send { candidates, reason } = decision else {
            return None;
        };
        self.rotation = self.rotation.wrapping_add(u32::from(reason.is_balanced()));
        let chosen = candidates[0].server;
        if let Some(pinned) = &session.pinned {
            assert_eq!(
                (chosen.index(), candidates.len()),
                (pinned.server, 1),
                "a pinned session stays"
            );
            return Some(candidates);
        }
        if is_for_primary(&view, session.access) {
            assert_eq!(self.world.primary, Some(chosen), "writes go to the primary");
            assert_eq!(candidates.len(), 1, "and nowhere else");
            assert!(
                self.world.conflict.is_empty(),
                "and not while there are two"
            );
            let server = &self.world.servers[chosen.index()];
            assert!(server.health.is_usable(), "it answers: {server:?}");
            let report = server.report.as_ref();
            let refuses = report.is_some_and(|report| report.refuses_writes());
            assert!(!refuses, "it takes writes: {server:?}");
        } else {
            for candidate in &candidates {
                let server = &self.world.servers[candidate.server.index()];
                let serves = server.is_fit() || self.world.primary == Some(candidate.server);
                assert!(serves, "reads go to what is fit: {server:?}");
            }
        }
        Some(candidates)
    }

    fn on_server(
        &mut self,
        index: usize,
        server: usize,
        until: u64,
        lease: Option<Lease>,
        waiting: Option<Waiting>,
    ) {
        let reached = self.servers.borrow().reach(server);
        let over = match reached {
            Reached::Silence => self.now >= until + TIMEOUT_MS,
            Reached::Yes | Reached::Refused => self.now >= until,
        };
        if !over {
            self.sessions[index].at = At::Server {
                server,
                until,
                lease,
                waiting,
            };
            return;
        }
        let writes = self.sessions[index].access == Access::Write;
        let read_only = self.servers.borrow().all[server].read_only;
        match reached {
            Reached::Yes if writes && read_only => {
                self.see(server, ObservationKind::RefusedWrite);
                self.refused(index, lease, waiting);
            }
            Reached::Yes => self.done(index, server, lease, waiting),
            Reached::Refused => {
                self.see(server, ObservationKind::LiveError(Cause::Refused));
                self.broken(index, lease, waiting, false);
            }
            Reached::Silence => {
                self.see(server, ObservationKind::LiveError(Cause::TimedOut));
                let sent = !self.random.one_in(2);
                self.broken(index, lease, waiting, sent);
            }
        }
    }

    /// Its connection broke under it; `sent`: the server may have run it.
    fn broken(&mut self, index: usize, lease: Option<Lease>, waiting: Option<Waiting>, sent: bool) {
        let session = &mut self.sessions[index];
        let follows = after_break(Broken {
            kept: session.pinned.is_some(),
            sent,
            may_repeat: session.access != Access::Write,
            undone: false,
            lost: session.lost,
            retries: FailoverOptions::default().retries,
        });
        session.lost += u32::from(sent);
        let unknown = match follows {
            // What is pinned is lost there.
            AfterBreak::Leave | AfterBreak::Unsent | AfterBreak::UnlessEndedRead => {
                return self.refused(index, lease, waiting);
            }
            AfterBreak::Unknown => 1,
            AfterBreak::TooOften => 0,
            AfterBreak::UnlessEndedSession => panic!("nothing here is undone with its connection"),
        };
        self.counts.unknown += unknown;
        if let Some(lease) = lease {
            self.connections.give_back(index, lease, false);
        }
        self.unqueue(waiting.as_ref());
    }

    fn done(
        &mut self,
        index: usize,
        server: usize,
        lease: Option<Lease>,
        waiting: Option<Waiting>,
    ) {
        let writes = self.sessions[index].access == Access::Write;
        if writes {
            let position = self.servers.borrow_mut().write(server);
            self.sessions[index].required.union(&position);
        }
        if let Some(lease) = lease {
            // Some writes are in a transaction that stays open.
            if writes && self.random.one_in(3) {
                self.sessions[index].pinned = Some(Pinned {
                    server,
                    thread: lease.thread_id,
                    lease,
                });
            } else {
                self.connections.give_back(index, lease, true);
            }
        }
        drop(waiting);
    }
}
