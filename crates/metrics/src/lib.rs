//! Counters that workers bump without a lock or a shared cache line, summed when they are read.
//! Knows no HTTP, no exposition format and no server: a server is an index.
//!
//! Each worker owns one [`WorkerMetrics`] and bumps it; [`Metrics::collect`] reads all of them.
//! Sums are exact once the workers are quiet; while they run, a sum is a moment's mixture.

mod collect;
mod counter;
mod histogram;
mod labels;
mod metrics;
mod per_server;
mod state;
mod table;
mod worker;

pub use collect::{Sample, Value, Visitor};
pub use histogram::{BUCKETS, Histogram, HistogramSum, bucket_bound_seconds};
pub use labels::{
    ErrorClass, LoginOutcome, PinReason, PoolWait, PositionWait, ReplayFailure, RetryKind, Side,
    StatementKind,
};
pub use metrics::Metrics;
pub use per_server::PerServer;
pub use state::{CacheState, FollowerState, PrimaryState, ServerState};
pub use table::{Definition, Kind, TABLE, define, markdown};
pub use worker::WorkerMetrics;
