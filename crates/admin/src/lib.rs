//! What operators see: metrics and health over HTTP (`/metrics`, `/healthz`, `/readyz`), and an
//! admin listener in the MySQL protocol. Counts nothing itself, and changes nothing but what an
//! operator tells it to: draining and resuming a server, ending a session.

#[cfg(test)]
mod errors_page;
mod exposition;
mod http;
mod listener;
mod operators;
#[cfg(test)]
mod page;
mod process;

pub use exposition::{CONTENT_TYPE, exposition};
pub use http::{Readiness, serve};
pub use listener::Listener;
pub use millrace_metrics::{Metrics, WorkerMetrics};
pub use operators::{OperatorsOptions, Sources, serve_operators};
