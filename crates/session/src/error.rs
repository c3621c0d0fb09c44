//! What ends a statement or a session early, and whose fault it is.

use std::io;
use std::ops::Deref;
use std::time::Duration;

use millrace_backend::error::{BackendError, ServerError};
use millrace_engine::journal::Unreplayable;
use millrace_engine::refusals::{Meaning, is_full, meaning};
use millrace_metrics::{ErrorClass, Side};
use millrace_protocol::ok::ErrPacket;
use millrace_routing::NoServer;
use millrace_topology::{Cause, NoPrimary, ObservationKind, ServerId, Snapshot};

use millrace_worker::Full;

/// Why a statement got no answer from a server, or a session must end.
#[derive(Debug)]
#[allow(dead_code, reason = "the cause is for a debugger")]
pub(crate) enum Abort {
    /// The client is gone, or broke the protocol: the session ends silently.
    Client(io::Error),
    /// The session was killed or the process drains: it ends.
    Ended,
    /// The server that the idle session keeps a connection to is left.
    Evicted,
    /// An error for the client; the session goes on.
    Error(ClientError),
    /// An error for the client, after which the session ends.
    Fatal(ClientError),
}

/// An error that the client is shown. In a box, because results that carry none are handed up and
/// down with every statement.
#[derive(Debug, Clone)]
pub(crate) struct ClientError(Box<ErrorBody>);

/// What a [`ClientError`] says.
#[derive(Debug, Clone)]
pub(crate) struct ErrorBody {
    pub(crate) error: ServerError,
    pub(crate) side: Side,
    pub(crate) class: ErrorClass,
    /// It may be otherwise in a moment, or on another server: worth a wait.
    pub(crate) passing: bool,
}

impl ClientError {
    fn new(error: ServerError, side: Side, class: ErrorClass) -> Self {
        ClientError(Box::new(ErrorBody {
            error,
            side,
            class,
            passing: false,
        }))
    }

    /// The server, or the account on it, has as many connections as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.side == Side::Server && is_full(&self.error)
    }

    /// The connection to the server broke.
    pub(crate) fn is_lost(&self) -> bool {
        self.side == Side::Proxy && matches!(self.error.code, 1158 | 1159)
    }

    /// The server says why it has ended the connection: it was idle for too long (MySQL's
    /// ER_CLIENT_INTERACTION_TIMEOUT), or was killed (MariaDB's ER_CONNECTION_KILLED).
    pub(crate) fn is_told_end(&self) -> bool {
        self.side == Side::Server && matches!(self.error.code, 1927 | 4031)
    }

    fn passing(mut self) -> Self {
        self.0.passing = true;
        self
    }

    /// The server's own error, passed on.
    pub(crate) fn server(error: ServerError) -> Self {
        let class = ErrorClass::from_sqlstate(&error.state);
        // 3100: a plugin stops it.
        let passing = meaning(&error) != Meaning::Own || error.code == 3100;
        let answer = Self::new(error, Side::Server, class);
        if passing { answer.passing() } else { answer }
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
        .passing()
    }

    /// No server takes writes: why, and what an operator can do about it.
    pub(crate) fn no_primary(world: &Snapshot) -> Self {
        let (none, several) = (NoServer::NoPrimary, NoServer::Conflict);
        let Some(why) = world.without else {
            return Self::no_server(none);
        };
        let address = |id: &ServerId| world.server(*id).map(|view| &*view.address);
        let addresses: Vec<&str> = match why {
            NoPrimary::Conflict => world.conflict.iter().filter_map(address).collect(),
            why => why.server().iter().filter_map(address).collect(),
        };
        let which = match addresses.is_empty() {
            true => String::new(),
            false => format!(" ({})", addresses.join(", ")),
        };
        let advice = why.advice();
        let text = match why {
            NoPrimary::Conflict => format!("Millrace: {several}{which}; {advice}"),
            why => format!("Millrace: {none}: {why}{which}; {advice}"),
        };
        Self::proxy(ErrorClass::NoServer, 1105, b"HY000", text).passing()
    }

    /// No server answers that could say whether a client may come in.
    pub(crate) fn nobody_answers() -> Self {
        let text = "Millrace: no server answers; look at the servers, and at Millrace's log";
        Self::proxy(ErrorClass::NoServer, 1105, b"HY000", text).passing()
    }

    /// The same after a wait that was in vain.
    pub(crate) fn waited(mut self, time: Duration) -> Self {
        let waited = format!(" (waited {time:?}: failover.hold_time)");
        self.0.error.message.extend_from_slice(waited.as_bytes());
        self
    }

    /// There is no room among the statements that wait.
    pub(crate) fn no_room(self, full: &Full) -> Self {
        let mut message = self.0.error.message.clone();
        message.extend_from_slice(format!("; {full}").as_bytes());
        Self::proxy(ErrorClass::Limit, 1105, b"HY000", message)
    }

    /// The connection broke while a write was under way. 1180 is the servers' error for a commit that
    /// went wrong; 08007 is the SQL standard's "transaction resolution unknown".
    pub(crate) fn unknown_outcome() -> Self {
        Self::proxy(
            ErrorClass::Connection,
            1180,
            b"08007",
            "Millrace: the connection to the server broke while the statement was under way; \
             whether it was committed is not known; look before you run it again",
        )
    }

    /// The server's own error at commit leaves open whether it was done.
    pub(crate) fn unknown_after(error: &ServerError) -> Self {
        Self::proxy(
            ErrorClass::Connection,
            1180,
            b"08007",
            format!(
                "Millrace: whether the statement was committed is not known, for the server answered \
                 {error}; look before you run it again"
            ),
        )
    }

    /// The open transaction was lost with its server and could not be run again on another. Nothing of
    /// it was done: as after a deadlock, the client may begin it anew.
    pub(crate) fn transaction_lost(why: Unreplayable) -> Self {
        Self::proxy(
            ErrorClass::Transaction,
            1213,
            b"40001",
            format!(
                "Deadlock found when trying to get lock; try restarting transaction (Millrace: the \
                 transaction was lost with its server and not run again on another, because {})",
                why.as_str()
            ),
        )
    }

    /// The server has ended the connection on purpose: it was killed, or idle for too long. Clients have no such
    /// error from a server, which just closes the connection; 1158 is what they take for that.
    pub(crate) fn ended() -> Self {
        Self::proxy(
            ErrorClass::Connection,
            1158,
            b"08S01",
            "Got an error reading communication packets (Millrace: the server has ended the connection, \
             by KILL or a timeout, and goes on; nothing was run again; connect again)",
        )
    }

    /// COM_CHANGE_USER where only a server can judge the login.
    pub(crate) fn no_other_user() -> Self {
        let text = "Millrace: the password cannot be learnt in COM_CHANGE_USER; connect anew";
        Self::client(1045, b"28000", text)
    }

    /// GET DIAGNOSTICS in a form that only the connection could answer that others have used since.
    pub(crate) fn lost_diagnostics() -> Self {
        let text = "Millrace: the connection that GET DIAGNOSTICS asks about has been used by others, and this form of \
                    it cannot be answered without; ask with SHOW WARNINGS";
        Self::client(1105, b"HY000", text)
    }

    /// The session has panicked.
    pub(crate) fn defect() -> Self {
        let text = "Millrace: the session has failed, by a defect of Millrace, which its log shows; whether the \
                    statement was done is not known; look before you run it again, and connect again";
        Self::proxy(ErrorClass::Other, 1105, b"HY000", text)
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
            BackendError::AheadRefused(error) => Self::proxy(
                ErrorClass::NoServer,
                1105,
                b"HY000",
                format!(
                    "Millrace: what has to go ahead of the statement was refused with {error}; look at the \
                     servers"
                ),
            )
            .passing(),
            BackendError::MonitorRefused(_) => Self::proxy(
                ErrorClass::NoServer,
                1105,
                b"HY000",
                "Millrace: the servers refuse the account of [monitor], by which logins are judged; see \
                 Millrace's log",
            ),
            BackendError::Timeout(what) => {
                let text = format!(
                    "Got timeout reading communication packets (Millrace: no answer within {what})"
                );
                Self::proxy(ErrorClass::Connection, 1159, b"08S01", text).passing()
            }
            other => {
                let passing = matches!(other, BackendError::Io(_));
                let text =
                    format!("Got an error reading communication packets (Millrace: {other})");
                let answer = Self::proxy(ErrorClass::Connection, 1158, b"08S01", text);
                if passing { answer.passing() } else { answer }
            }
        }
    }
}

impl Deref for ClientError {
    type Target = ErrorBody;

    fn deref(&self) -> &ErrorBody {
        &self.0
    }
}

impl From<ClientError> for Abort {
    fn from(answer: ClientError) -> Self {
        Abort::Error(answer)
    }
}

/// What the failure to have a connection says about the server.
pub(crate) fn observed(error: &BackendError) -> Option<ObservationKind> {
    match error {
        BackendError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Some(ObservationKind::LiveError(Cause::Refused))
        }
        BackendError::Io(_) => Some(ObservationKind::LiveError(Cause::Lost)),
        // offline_mode is a fence: it lets nobody in.
        BackendError::Server(error) if matches!(error.code, 3032 | 6400) => {
            Some(ObservationKind::RefusedWrite)
        }
        _ => None,
    }
}

/// As a packet.
pub(crate) fn error_packet(answer: &ClientError) -> ErrPacket<'_> {
    ErrPacket {
        code: answer.error.code,
        state: answer.error.state,
        message: &answer.error.message,
    }
}

impl From<std::io::Error> for Abort {
    fn from(error: std::io::Error) -> Self {
        Abort::Client(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_own_commands_are_told_is_no_clients_answer() {
        let told = |code, message: &str| {
            let error = ServerError::new(code, b"HY000", message);
            ClientError::backend(BackendError::Server(error).ahead())
        };
        for code in [1205, 1235, 1774, 1969, 3024] {
            let answer = told(code, "refused");
            assert_eq!(
                (answer.error.code, answer.side),
                (1105, Side::Proxy),
                "{code}"
            );
            assert!(answer.passing && !answer.is_lost(), "{code}");
        }
        // Somebody has ended the statement, or the server takes nothing.
        for (code, passing) in [(1317, false), (1213, false), (1053, true), (3100, true)] {
            let answer = told(code, "ended");
            assert_eq!((answer.error.code, answer.side), (code, Side::Server));
            assert_eq!(answer.passing, passing, "{code}");
        }
    }
}
