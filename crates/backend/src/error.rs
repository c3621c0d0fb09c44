//! What can go wrong on the way to a server, sorted by what the caller must do about it.

use std::fmt;
use std::io;

use millrace_engine::refusals::is_of_statement;
pub use millrace_protocol::ServerError;

/// Why a server could not be used.
#[derive(Debug)]
pub enum BackendError {
    /// The server answered with an error packet.
    Server(ServerError),
    /// The connection could not be made or broke.
    Io(io::Error),
    /// The server said something that is no answer to what was asked.
    Protocol(&'static str),
    /// TLS was asked for and could not be had.
    Tls(String),
    /// No answer in time. The text names the limit.
    Timeout(&'static str),
    /// A pool's limit. The text names the option.
    Limit(String),
    /// The server refused a command of Millrace's own, ahead of a statement: that is no client's answer.
    AheadRefused(ServerError),
    /// The server refuses the monitor's account, by which others are judged.
    MonitorRefused(ServerError),
}

impl BackendError {
    /// The same, of a command of Millrace's own ahead of a statement.
    #[must_use]
    pub fn ahead(self) -> BackendError {
        match self {
            BackendError::Server(error) if !is_of_statement(&error) => {
                BackendError::AheadRefused(error)
            }
            other => other,
        }
    }

    /// The same for another who waited for the same answer.
    pub fn shared(&self) -> BackendError {
        match self {
            BackendError::Server(error) => BackendError::Server(error.clone()),
            BackendError::Io(error) => {
                BackendError::Io(io::Error::new(error.kind(), error.to_string()))
            }
            BackendError::Protocol(what) => BackendError::Protocol(what),
            BackendError::Tls(what) => BackendError::Tls(what.clone()),
            BackendError::Timeout(what) => BackendError::Timeout(what),
            BackendError::Limit(what) => BackendError::Limit(what.clone()),
            BackendError::AheadRefused(error) => BackendError::AheadRefused(error.clone()),
            BackendError::MonitorRefused(error) => BackendError::MonitorRefused(error.clone()),
        }
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendError::Server(error) => write!(f, "the server answered {error}"),
            BackendError::Io(error) => write!(f, "{error}"),
            BackendError::Protocol(what) => write!(f, "protocol error: {what}"),
            BackendError::Tls(what) => write!(f, "TLS: {what}"),
            BackendError::Timeout(what) => write!(f, "no answer within {what}"),
            BackendError::Limit(what) => f.write_str(what),
            BackendError::AheadRefused(error) => {
                write!(f, "what has to go ahead was refused with {error}")
            }
            BackendError::MonitorRefused(error) => {
                write!(f, "the server refuses the monitor's account: {error}")
            }
        }
    }
}

impl std::error::Error for BackendError {}

impl From<io::Error> for BackendError {
    fn from(error: io::Error) -> Self {
        BackendError::Io(error)
    }
}

impl From<millrace_protocol::Malformed> for BackendError {
    fn from(_: millrace_protocol::Malformed) -> Self {
        BackendError::Protocol("malformed packet")
    }
}

/// What has become of a connection on which the server said something unasked.
pub(crate) fn closed(error: &ServerError) -> BackendError {
    let text = format!("the server had closed the connection: {error}");
    BackendError::Io(io::Error::new(io::ErrorKind::ConnectionAborted, text))
}
