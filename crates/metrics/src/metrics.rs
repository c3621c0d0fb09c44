//! All workers' counters together, and the few values that are set from outside. Bumps nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::HistogramSum;
use crate::collect::{Visitor, World};
use crate::labels::StatementKind;
use crate::state::{CacheState, PrimaryState, ServerState};
use crate::worker::{Sum, WorkerMetrics};

/// The process's metrics.
#[derive(Debug)]
pub struct Metrics {
    workers: Box<[WorkerMetrics]>,
    names: Vec<String>,
    rules: Vec<String>,
    states: Mutex<Vec<ServerState>>,
    primary: Mutex<PrimaryState>,
    cache: Mutex<CacheState>,
    coalescing_ns: AtomicU64,
}

impl Metrics {
    /// For so many workers, and servers with these addresses in the order of their indexes; those
    /// that are found later come with [`Metrics::set_servers`].
    pub fn new(workers: usize, servers: Vec<String>) -> Self {
        Metrics::with_rules(workers, servers, Vec::new())
    }

    /// The same with rules of these names.
    pub fn with_rules(workers: usize, servers: Vec<String>, rules: Vec<String>) -> Self {
        Metrics {
            workers: (0..workers.max(1))
                .map(|_| WorkerMetrics::new(servers.len(), rules.len()))
                .collect(),
            names: servers,
            rules,
            states: Mutex::default(),
            primary: Mutex::default(),
            cache: Mutex::default(),
            coalescing_ns: AtomicU64::new(0),
        }
    }

    /// One worker's counters; the first's for a number beyond theirs.
    pub fn worker(&self, index: usize) -> &WorkerMetrics {
        self.workers.get(index).unwrap_or(&self.workers[0])
    }

    /// Statements of one kind that a server has answered so far, over all workers.
    pub fn answered(&self, server: usize, kind: StatementKind) -> u64 {
        let sum = Sum(&self.workers);
        sum.histogram_of(server, |server| &server.statements[kind.index()])
            .count()
    }

    /// A server's connections now, over all workers.
    pub fn connections(&self, server: usize) -> u64 {
        Sum(&self.workers).gauge_of(server, |server| &server.connections)
    }

    /// A server's connections on loan now, over all workers.
    pub fn leased(&self, server: usize) -> u64 {
        Sum(&self.workers).gauge_of(server, |server| &server.leases)
    }

    /// How many statements a server runs at once before others wait, over all workers; 0: no limit.
    pub fn concurrency(&self, server: usize) -> u64 {
        Sum(&self.workers).counter_of(server, |server| &server.concurrency)
    }

    /// All statements that one worker has ended so far.
    pub fn statements_of(&self, worker: usize) -> HistogramSum {
        self.worker(worker).statements()
    }

    /// Workers wait for so long now for more to do, before they sleep.
    pub fn set_coalescing(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.coalescing_ns.store(nanos, Relaxed);
    }

    /// Takes over what the cache has done.
    pub fn set_cache(&self, state: CacheState) {
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Takes over what is known of the primary, and of how it has changed.
    pub fn set_primary(&self, state: PrimaryState) {
        *self.primary.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Takes over what is known of the servers now.
    pub fn set_servers(&self, states: Vec<ServerState>) {
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// Clients connected now, over all workers.
    pub fn clients(&self) -> u64 {
        Sum(&self.workers).gauge(|worker| &worker.clients)
    }

    /// Clients connected now to one worker.
    pub fn clients_of(&self, worker: usize) -> u64 {
        Sum(std::slice::from_ref(self.worker(worker))).gauge(|worker| &worker.clients)
    }

    /// The servers to be shown, with their indexes.
    fn names<'a>(&'a self, states: &'a [ServerState]) -> Vec<(usize, &'a str)> {
        if states.is_empty() {
            return self.names.iter().map(String::as_str).enumerate().collect();
        }
        let named = states.iter().enumerate().filter(|(_, state)| !state.gone);
        named.map(|(at, state)| (at, &*state.name)).collect()
    }

    /// Shows every metric's samples to a visitor.
    pub fn collect<V: Visitor>(&self, visitor: &mut V) -> Result<(), V::Error> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let states = states.clone();
        let primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        let primary = primary.clone();
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = cache.clone();
        let world = World {
            sum: Sum(&self.workers),
            names: self.names(&states),
            rules: &self.rules,
            states: &states,
            primary: &primary,
            cache: &cache,
            coalescing: Duration::from_nanos(self.coalescing_ns.load(Relaxed)),
        };
        world.visit(visitor)
    }
}

#[cfg(test)]
mod tests;
