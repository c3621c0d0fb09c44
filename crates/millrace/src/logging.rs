//! The log: to standard error, as text or JSON.

use millrace_config::{Log, LogFormat};
use tracing_subscriber::EnvFilter;

/// Starts logging. `RUST_LOG` overrides the configured level.
pub(crate) fn start(log: Log) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(log.level.as_str()));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().init(),
    }
}
