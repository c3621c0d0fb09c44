//! What ends a statement or a session early, and whose fault it is.

use std::io;
use std::ops::Deref;

use millrace_backend::error::{BackendError, ServerError};
use millrace_metrics::{ErrorClass, Side};
use millrace_routing::NoServer;

/// Why a statement got no answer from a server, or a session must end.
#[derive(Debug)]
#[allow(dead_code, reason = "the cause is for a debugger")]
pub(crate) enum Failure {
    /// The client is gone, or broke the protocol: the session ends silently.
    Client(io::Error),
    /// The session was killed or the process drains: it ends.
    Ended,
    /// An error for the client; the session goes on.
    Answer(Answer),
    /// An error for the client, after which the session ends.
    Fatal(Answer),
}

/// An error that the client is shown. In a box, because results that carry none are handed up and
/// down with every statement.
#[derive(Debug, Clone)]
pub(crate) struct Answer(Box<Told>);

/// What an [`Answer`] says.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) error: ServerError,
    pub(crate) side: Side,
    pub(crate) class: ErrorClass,
}

impl Answer {
    fn new(error: ServerError, side: Side, class: ErrorClass) -> Self {
        Answer(Box::new(Told { error, side, class }))
    }

    /// The server's own error, passed on.
    pub(crate) fn server(error: ServerError) -> Self {
        let class = ErrorClass::from_sqlstate(&error.state);
        Self::new(error, Side::Server, class)
    }

    /// An error about what the client sent.
    pub(crate) fn client(code: u16, state: &[u8; 5], message: impl Into<Vec<u8>>) -> Self {
        let class = ErrorClass::from_sqlstate(state);
        Self::new(ServerError::new(code, state, message), Side::Client, class)
    }

    /// An error of Millrace's own.
    pub(crate) fn proxy(
        class: ErrorClass,
        code: u16,
        state: &[u8; 5],
        message: impl Into<Vec<u8>>,
    ) -> Self {
        Self::new(ServerError::new(code, state, message), Side::Proxy, class)
    }

    /// No server can run the statement now. 1105 has no meaning of its own; the text says what
    /// to do.
    pub(crate) fn no_server(why: NoServer) -> Self {
        let advice = match why {
            NoServer::NoPrimary => "wait for the failover, or look at read_only on the servers",
            NoServer::Conflict => "set read_only on all but the one that is to take writes",
            NoServer::NoReplica => "look at the replicas' replication status",
        };
        Self::proxy(
            ErrorClass::NoServer,
            1105,
            b"HY000",
            format!("Millrace: {why}; {advice}"),
        )
    }

    /// A server could not be used.
    pub(crate) fn backend(error: BackendError) -> Self {
        match error {
            BackendError::Server(error) => Self::server(error),
            BackendError::Limit(what) => Self::proxy(
                ErrorClass::Limit,
                1040,
                b"08004",
                format!("Millrace: {what}"),
            ),
            BackendError::Timeout(what) => Self::proxy(
                ErrorClass::Connection,
                1159,
                b"08S01",
                format!(
                    "Got timeout reading communication packets (Millrace: no answer within {what})"
                ),
            ),
            other => Self::proxy(
                ErrorClass::Connection,
                1158,
                b"08S01",
                format!("Got an error reading communication packets (Millrace: {other})"),
            ),
        }
    }
}

impl Deref for Answer {
    type Target = Told;

    fn deref(&self) -> &Told {
        &self.0
    }
}

impl From<Answer> for Failure {
    fn from(answer: Answer) -> Self {
        Failure::Answer(answer)
    }
}
