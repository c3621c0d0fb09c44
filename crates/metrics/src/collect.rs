//! Reads all workers' counters as samples, metric by metric. Formats nothing.

use std::time::Duration;

use crate::HistogramSum;
use crate::labels::{
    ErrorClass, LoginOutcome, PinReason, PoolWait, PositionWait, ReplayFailure, RetryKind, Side,
    StatementKind,
};
use crate::state::{CacheState, PrimaryState, ServerState};
use crate::table::{self, Definition};
use crate::worker::{ServerMetrics, Sum};

/// A sample's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A number with a fraction.
    Number(f64),
    /// A histogram.
    Histogram(Box<HistogramSum>),
}

/// One value of a metric under one set of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// The labels' values, in the order of [`Definition::labels`].
    pub labels: Vec<&'a str>,
    /// The value.
    pub value: Value,
}

/// Takes the samples of one metric after the other, each metric once.
pub trait Visitor {
    /// Why it stops.
    type Error;

    /// Takes all samples of a metric.
    fn metric(
        &mut self,
        definition: &'static Definition,
        samples: &[Sample<'_>],
    ) -> Result<(), Self::Error>;
}

/// Everything that samples are made from.
pub(crate) struct World<'a> {
    pub(crate) sum: Sum<'a>,
    /// Servers to be shown, by index.
    pub(crate) names: Vec<(usize, &'a str)>,
    pub(crate) rules: &'a [String],
    pub(crate) states: &'a [ServerState],
    pub(crate) primary: &'a PrimaryState,
    pub(crate) cache: &'a CacheState,
    pub(crate) coalescing: Duration,
}

fn sample<'a>(labels: &[&'a str], value: Value) -> Sample<'a> {
    Sample {
        labels: labels.to_vec(),
        value,
    }
}

fn count<'a>(labels: &[&'a str], value: u64) -> Sample<'a> {
    sample(labels, Value::Count(value))
}

impl<'a> World<'a> {
    pub(crate) fn visit<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        self.clients(to)?;
        self.statements(to)?;
        self.sessions(to)?;
        self.pools(to)?;
        self.servers(to)?;
        self.failovers(to)?;
        self.cached(to)
    }

    fn cached<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        let state = self.cache;
        let one = |value| [count(&[], value)];
        let labelled = |counts: &'a [(String, u64)]| -> Vec<Sample<'a>> {
            let counts = counts.iter();
            counts
                .map(|(label, value)| count(&[label.as_str()], *value))
                .collect()
        };
        to.metric(table::CACHE_HITS, &one(state.hits))?;
        to.metric(table::CACHE_MISSES, &labelled(&state.misses))?;
        to.metric(table::CACHE_FILLS, &one(state.fills))?;
        to.metric(table::CACHE_VERIFIED, &one(state.verified))?;
        to.metric(table::CACHE_DIFFERENCES, &one(state.differences))?;
        let sent = state.waits.saturating_sub(state.waits_served);
        let waits = [
            count(&["served"], state.waits_served),
            count(&["sent"], sent),
        ];
        to.metric(table::CACHE_WAITS, &waits)?;
        to.metric(table::CACHE_INVALIDATIONS, &labelled(&state.invalidations))?;
        to.metric(table::CACHE_RESULTS, &one(state.results))?;
        to.metric(table::CACHE_BYTES, &one(state.bytes))?;
        let silence = state
            .silence
            .map(|seconds| sample(&[], Value::Number(seconds)));
        let silence: Vec<_> = silence.into_iter().collect();
        to.metric(table::CACHE_SILENCE, &silence)?;
        let follower = &state.follower;
        let lag: Vec<_> = follower
            .lag
            .map(|seconds| count(&[], seconds))
            .into_iter()
            .collect();
        to.metric(table::FOLLOWER_LAG, &lag)?;
        to.metric(table::FOLLOWER_TRANSACTIONS, &one(follower.transactions))?;
        to.metric(table::FOLLOWER_BYTES, &one(follower.bytes))?;
        to.metric(table::FOLLOWER_STREAMS, &one(follower.streams))?;
        to.metric(table::FOLLOWER_DROPS, &one(follower.drops))?;
        to.metric(table::FOLLOWER_DEFINITIONS, &one(follower.definitions))
    }

    fn clients<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        let sum = &self.sum;
        let one = |value| [count(&[], value)];
        to.metric(table::CLIENTS, &one(sum.gauge(|w| &w.clients)))?;
        let begun = sum.counter(|w| &w.clients.begun);
        to.metric(table::CLIENT_CONNECTIONS, &one(begun))?;
        let logins: Vec<_> = LoginOutcome::ALL
            .iter()
            .map(|o| count(&[o.as_str()], sum.counter(|w| &w.logins[o.index()])))
            .collect();
        to.metric(table::LOGINS, &logins)?;
        to.metric(table::RECEIVED, &one(sum.counter(|w| &w.bytes_received)))?;
        to.metric(table::SENT, &one(sum.counter(|w| &w.bytes_sent)))
    }

    fn statements<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        let (mut counts, mut durations) = (Vec::new(), Vec::new());
        let mut add = |server, kind: StatementKind, histogram: HistogramSum| {
            // A series appears with its first statement: most pairs never have one.
            if histogram.count() > 0 {
                let labels = [server, kind.as_str()];
                counts.push(count(&labels, histogram.count()));
                durations.push(sample(&labels, Value::Histogram(Box::new(histogram))));
            }
        };
        for kind in StatementKind::ALL {
            add(
                "local",
                *kind,
                self.sum.histogram(|w| &w.local[kind.index()]),
            );
            for (at, name) in &self.names {
                let histogram = self
                    .sum
                    .histogram_of(*at, |server| &server.statements[kind.index()]);
                add(name, *kind, histogram);
            }
        }
        to.metric(table::STATEMENTS, &counts)?;
        to.metric(table::DURATION, &durations)
    }

    fn sessions<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        let sum = &self.sum;
        let mut errors = Vec::new();
        for side in Side::ALL {
            for class in ErrorClass::ALL {
                let value = sum.counter(|w| &w.errors[side.index()][class.index()]);
                errors.push(count(&[side.as_str(), class.as_str()], value));
            }
        }
        to.metric(table::ERRORS, &errors)?;
        let retries: Vec<_> = RetryKind::ALL
            .iter()
            .map(|k| count(&[k.as_str()], sum.counter(|w| &w.retries[k.index()])))
            .collect();
        to.metric(table::RETRIES, &retries)?;
        to.metric(table::HELD, &[count(&[], sum.gauge(|w| &w.held))])?;
        let failures: Vec<_> = ReplayFailure::ALL
            .iter()
            .map(|why| {
                let value = sum.counter(|w| &w.replay_failures[why.index()]);
                count(&[why.as_str()], value)
            })
            .collect();
        to.metric(table::REPLAY_FAILURES, &failures)?;
        let coalescing = Value::Number(self.coalescing.as_secs_f64());
        to.metric(table::COALESCING, &[sample(&[], coalescing)])?;
        let pins: Vec<_> = PinReason::ALL
            .iter()
            .map(|r| count(&[r.as_str()], sum.gauge(|w| &w.pins[r.index()])))
            .collect();
        to.metric(table::PINS, &pins)?;
        let begun: Vec<_> = PinReason::ALL
            .iter()
            .map(|r| count(&[r.as_str()], sum.counter(|w| &w.pins[r.index()].begun)))
            .collect();
        to.metric(table::PINS_BEGUN, &begun)
    }

    fn pools<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        let sum = &self.sum;
        let connections: Vec<_> = self
            .names
            .iter()
            .flat_map(|(at, name)| {
                let open = sum.gauge_of(*at, |server| &server.connections);
                let leased = sum.gauge_of(*at, |server| &server.leases).min(open);
                [
                    count(&[name, "idle"], open - leased),
                    count(&[name, "leased"], leased),
                ]
            })
            .collect();
        to.metric(table::POOL_CONNECTIONS, &connections)?;
        to.metric(table::POOL_OPENED, &self.each(|s| &s.connections.begun))?;
        to.metric(table::POOL_CLOSED, &self.each(|s| &s.connections.ended))?;
        to.metric(table::POOL_FAILED, &self.each(|s| &s.connect_failures))?;
        to.metric(table::POOL_CONCURRENCY, &self.each(|s| &s.concurrency))?;
        let mut waits = Vec::new();
        let mut positions = Vec::new();
        for (at, name) in &self.names {
            for outcome in PoolWait::ALL {
                let value = sum.counter_of(*at, |server| &server.pool_waits[outcome.index()]);
                waits.push(count(&[name, outcome.as_str()], value));
            }
            for outcome in PositionWait::ALL {
                let value = sum.counter_of(*at, |server| &server.position_waits[outcome.index()]);
                positions.push(count(&[name, outcome.as_str()], value));
            }
        }
        to.metric(table::POOL_WAITS, &waits)?;
        let seconds: Vec<_> = self
            .names
            .iter()
            .map(|(at, name)| {
                let us = sum.counter_of(*at, |server| &server.pool_wait_us);
                sample(&[name], Value::Number(us as f64 / 1e6))
            })
            .collect();
        to.metric(table::POOL_WAIT_SECONDS, &seconds)?;
        let by_table = sum.counter(|worker| &worker.reads_by_table);
        to.metric(table::READS_BY_TABLE, &[count(&[], by_table)])?;
        to.metric(table::POSITION_WAITS, &positions)?;
        let rules: Vec<_> = self
            .rules
            .iter()
            .enumerate()
            .map(|(at, name)| count(&[name], sum.counter(|w| &w.rules[at])))
            .collect();
        to.metric(table::RULE_MATCHES, &rules)
    }

    fn each(
        &self,
        of: impl Fn(&ServerMetrics) -> &std::sync::atomic::AtomicU64,
    ) -> Vec<Sample<'_>> {
        self.names
            .iter()
            .map(|(at, name)| count(&[name], self.sum.counter_of(*at, &of)))
            .collect()
    }

    fn failovers<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        let state = self.primary;
        let labelled = |values: &[(&'static str, u64)]| -> Vec<Sample<'static>> {
            values
                .iter()
                .map(|(label, value)| count(&[label], *value))
                .collect()
        };
        to.metric(table::WITHOUT_PRIMARY, &labelled(&state.without))?;
        to.metric(table::PRIMARY_CHANGES, &[count(&[], state.changes)])?;
        to.metric(table::FAILOVERS, &labelled(&state.failovers))?;
        to.metric(table::FAILOVER_STATEMENTS, &labelled(&state.statements))?;
        let pause: Vec<_> = state
            .last_pause_ms
            .iter()
            .map(|ms| sample(&[], Value::Number(*ms as f64 / 1000.0)))
            .collect();
        to.metric(table::LAST_PAUSE, &pause)
    }

    fn servers<V: Visitor>(&self, to: &mut V) -> Result<(), V::Error> {
        let flag = |of: fn(&ServerState) -> bool| -> Vec<Sample<'_>> {
            self.states
                .iter()
                .filter(|state| !state.gone)
                .map(|state| count(&[&state.name], u64::from(of(state))))
                .collect()
        };
        to.metric(table::SERVER_UP, &flag(|state| state.up))?;
        to.metric(table::SERVER_FIT, &flag(|state| state.fit))?;
        to.metric(table::SERVER_PRIMARY, &flag(|state| state.primary))?;
        to.metric(table::SERVER_DRAINING, &flag(|state| state.draining))?;
        let lags: Vec<_> = self
            .states
            .iter()
            .filter(|state| !state.gone)
            .filter_map(|state| Some(count(&[&state.name], state.lag_seconds?)))
            .collect();
        to.metric(table::SERVER_LAG, &lags)
    }
}
