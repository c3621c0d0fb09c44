//! Metrics and health over HTTP: `/metrics`, `/healthz`, `/readyz`. Counts nothing itself and
//! changes nothing: every path only reads.

mod exposition;
mod http;
mod process;

pub use exposition::{CONTENT_TYPE, exposition};
pub use http::{HttpListener, Readiness, serve};
pub use millrace_metrics::{Metrics, WorkerMetrics};
