//! One worker's counters, in cache lines of their own. Reads nothing back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::counter::bump;
use crate::labels::{
    ErrorClass, LoginOutcome, PinReason, PoolWait, PositionWait, ReplayFailure, RetryKind, Side,
    StatementKind,
};
use crate::{Histogram, HistogramSum, PerServer};

/// What a worker counts. Bumped by that worker's thread only: what others add at the same time may be
/// lost. A gauge is a pair of counters, so that something taken by one worker may be given back by
/// another.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    pub(crate) clients: Pair,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) reads_by_table: AtomicU64,
    pub(crate) pins: [Pair; PinReason::COUNT],
    pub(crate) retries: [AtomicU64; RetryKind::COUNT],
    pub(crate) held: Pair,
    pub(crate) replay_failures: [AtomicU64; ReplayFailure::COUNT],
    pub(crate) errors: [[AtomicU64; ErrorClass::COUNT]; Side::COUNT],
    pub(crate) logins: [AtomicU64; LoginOutcome::COUNT],
    /// Statements that Millrace answers itself.
    pub(crate) local: [Histogram; StatementKind::COUNT],
    pub(crate) servers: PerServer<ServerMetrics>,
    pub(crate) rules: Box<[AtomicU64]>,
}

/// What a worker counts of one server.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ServerMetrics {
    pub(crate) statements: [Histogram; StatementKind::COUNT],
    pub(crate) connections: Pair,
    pub(crate) leases: Pair,
    pub(crate) connect_failures: AtomicU64,
    pub(crate) pool_waits: [AtomicU64; PoolWait::COUNT],
    pub(crate) pool_wait_us: AtomicU64,
    pub(crate) position_waits: [AtomicU64; PositionWait::COUNT],
    pub(crate) concurrency: AtomicU64,
}

/// Something that begins and ends.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
}

impl Pair {
    fn begin(&self) {
        bump(&self.begun, 1);
    }

    fn end(&self) {
        bump(&self.ended, 1);
    }
}

impl WorkerMetrics {
    pub(crate) fn new(servers: usize, rules: usize) -> Self {
        WorkerMetrics {
            clients: Pair::default(),
            bytes_received: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            reads_by_table: AtomicU64::new(0),
            pins: Default::default(),
            retries: Default::default(),
            held: Pair::default(),
            replay_failures: Default::default(),
            errors: Default::default(),
            logins: Default::default(),
            local: Default::default(),
            servers: PerServer::new(servers),
            rules: (0..rules).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// A client connected.
    pub fn client_opened(&self) {
        self.clients.begin();
    }

    /// A client left.
    pub fn client_closed(&self) {
        self.clients.end();
    }

    /// Bytes read from clients.
    pub fn received(&self, bytes: u64) {
        bump(&self.bytes_received, bytes);
    }

    /// Bytes written to clients.
    pub fn sent(&self, bytes: u64) {
        bump(&self.bytes_sent, bytes);
    }

    /// A read is held to what touches its tables and keys.
    pub fn read_by_table(&self) {
        bump(&self.reads_by_table, 1);
    }

    /// A statement ended: on a server, or answered by Millrace itself (`None`). `elapsed` runs
    /// from its last byte read to its answer's last byte written.
    pub fn statement(&self, server: Option<usize>, kind: StatementKind, elapsed: Duration) {
        let list = match server {
            None => &self.local,
            Some(server) => match self.servers.get(server) {
                Some(server) => &server.statements,
                None => return,
            },
        };
        list[kind.index()].observe(elapsed);
    }

    /// All statements so far.
    pub(crate) fn statements(&self) -> HistogramSum {
        let mut sum = HistogramSum::default();
        self.local.iter().for_each(|one| sum.add(one));
        for server in self.servers.each() {
            server.statements.iter().for_each(|one| sum.add(one));
        }
        sum
    }

    /// A login ended.
    pub fn login(&self, outcome: LoginOutcome) {
        bump(&self.logins[outcome.index()], 1);
    }

    /// An error was sent to a client.
    pub fn error(&self, side: Side, class: ErrorClass) {
        bump(&self.errors[side.index()][class.index()], 1);
    }

    /// A rule for query routing matched a statement.
    pub fn rule_matched(&self, rule: usize) {
        if let Some(counter) = self.rules.get(rule) {
            bump(counter, 1);
        }
    }

    /// Something was tried again.
    pub fn retry(&self, kind: RetryKind) {
        bump(&self.retries[kind.index()], 1);
    }

    /// A statement begins to wait for a server that can run it.
    pub fn held(&self) {
        self.held.begin();
    }

    /// It waits no more.
    pub fn hold_ended(&self) {
        self.held.end();
    }

    /// A transaction that lost its server was not run again on another.
    pub fn replay_failed(&self, why: ReplayFailure) {
        bump(&self.replay_failures[why.index()], 1);
    }

    /// A session was pinned.
    pub fn pinned(&self, reason: PinReason) {
        self.pins[reason.index()].begin();
    }

    /// A pin ended.
    pub fn unpinned(&self, reason: PinReason) {
        self.pins[reason.index()].end();
    }

    /// A server connection was opened for the pool.
    pub fn connection_opened(&self, server: usize) {
        self.of(server, |server| server.connections.begin());
    }

    /// A server connection was closed.
    pub fn connection_closed(&self, server: usize) {
        self.of(server, |server| server.connections.end());
    }

    /// A server connection could not be opened.
    pub fn connection_failed(&self, server: usize) {
        self.of(server, |server| bump(&server.connect_failures, 1));
    }

    /// A server runs so many of this worker's statements at once before others wait; 0: no limit.
    pub fn set_concurrency(&self, server: usize, limit: u64) {
        if let Some(server) = self.servers.get(server) {
            server.concurrency.store(limit, Relaxed);
        }
    }

    /// A server connection was leased to a session.
    pub fn leased(&self, server: usize) {
        self.of(server, |server| server.leases.begin());
    }

    /// A lease ended, whether the connection went back to the pool or was closed.
    pub fn lease_ended(&self, server: usize) {
        self.of(server, |server| server.leases.end());
    }

    /// A session waited for a connection.
    pub fn pool_wait(&self, server: usize, outcome: PoolWait, elapsed: Duration) {
        self.of(server, |server| {
            bump(&server.pool_waits[outcome.index()], 1);
            let us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
            bump(&server.pool_wait_us, us);
        });
    }

    /// A replica was asked to wait for a position.
    pub fn position_wait(&self, server: usize, outcome: PositionWait) {
        self.of(server, |server| {
            bump(&server.position_waits[outcome.index()], 1);
        });
    }

    fn of(&self, server: usize, bump: impl FnOnce(&ServerMetrics)) {
        if let Some(server) = self.servers.get(server) {
            bump(server);
        }
    }
}

/// Sums over workers.
pub(crate) struct Sum<'a>(pub(crate) &'a [WorkerMetrics]);

impl Sum<'_> {
    pub(crate) fn counter(&self, of: impl Fn(&WorkerMetrics) -> &AtomicU64) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, worker| sum.wrapping_add(of(worker).load(Relaxed)))
    }

    /// How many have begun and not ended. Read in the order that never shows fewer than none.
    pub(crate) fn gauge(&self, of: impl Fn(&WorkerMetrics) -> &Pair) -> u64 {
        let ended = self.counter(|worker| &of(worker).ended);
        self.counter(|worker| &of(worker).begun)
            .saturating_sub(ended)
    }

    pub(crate) fn counter_of(
        &self,
        server: usize,
        of: impl Fn(&ServerMetrics) -> &AtomicU64,
    ) -> u64 {
        self.of(server)
            .fold(0, |sum, server| sum.wrapping_add(of(server).load(Relaxed)))
    }

    /// As [`Sum::gauge`].
    pub(crate) fn gauge_of(&self, server: usize, of: impl Fn(&ServerMetrics) -> &Pair) -> u64 {
        let ended = self.counter_of(server, |server| &of(server).ended);
        self.counter_of(server, |server| &of(server).begun)
            .saturating_sub(ended)
    }

    pub(crate) fn histogram_of(
        &self,
        server: usize,
        of: impl Fn(&ServerMetrics) -> &Histogram,
    ) -> HistogramSum {
        let mut sum = HistogramSum::default();
        self.of(server).for_each(|server| sum.add(of(server)));
        sum
    }

    /// What the workers have counted of one server.
    fn of(&self, server: usize) -> impl Iterator<Item = &ServerMetrics> {
        self.0
            .iter()
            .filter_map(move |worker| worker.servers.peek(server))
    }

    pub(crate) fn histogram(&self, of: impl Fn(&WorkerMetrics) -> &Histogram) -> HistogramSum {
        let mut sum = HistogramSum::default();
        for worker in self.0 {
            sum.add(of(worker));
        }
        sum
    }
}
