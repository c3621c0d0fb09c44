//! What a worker's sessions and pools look like from outside, for operators.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use millrace_backend::account::Account;
use millrace_metrics::PinReason;
use millrace_routing::Consistency;
use millrace_topology::ServerId;

use crate::handle::Handle;

/// What a session does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It waits for its client.
    Idle,
    /// A command is under way, and a server connection is leased to it.
    Running,
    /// A command is under way that has no server connection (yet).
    Waiting,
    /// The client has a server connection of its own, whose traffic nobody looks at.
    Relayed,
    /// It was told to end.
    Ending,
}

impl Doing {
    /// Its name for operators.
    pub fn as_str(self) -> &'static str {
        match self {
            Doing::Idle => "idle",
            Doing::Running => "running",
            Doing::Waiting => "waiting",
            Doing::Relayed => "relayed",
            Doing::Ending => "ending",
        }
    }
}

/// One logged-in session.
#[derive(Debug, Clone)]
pub struct SessionLine {
    /// The account's name.
    pub user: Box<[u8]>,
    /// Where its client is; none for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// The default database; empty where there is none.
    pub database: Box<[u8]>,
    /// What it does.
    pub doing: Doing,
    /// For how long, in seconds.
    pub seconds: u64,
    /// The server connection that it has, and its number there.
    pub on: Option<(ServerId, u32)>,
    /// It is in a transaction that no server knows of (yet, or any more).
    pub begun: bool,
    /// Why it keeps its connection, with the time since when.
    pub pins: Vec<(PinReason, Instant)>,
    /// What its reads are guaranteed to see.
    pub level: Consistency,
    /// Since its login, in seconds.
    pub connected_seconds: u64,
    /// Commands since its login.
    pub commands: u64,
    /// Bytes from its client since the login.
    pub received: u64,
    /// Bytes to its client since the login.
    pub sent: u64,
}

/// One worker's connections to one server.
#[derive(Debug, Clone, Copy)]
pub struct ServerLine {
    /// Open, used or not.
    pub open: usize,
    /// On loan.
    pub leased: u32,
    /// In no use.
    pub idle: usize,
    /// Sessions that wait for one.
    pub waiting: usize,
    /// Opened since the start.
    pub opened: u64,
    /// How long a read takes, in microseconds; 0 where none was measured.
    pub response_us: u32,
}

/// One worker's connections of one account to one server.
#[derive(Debug, Clone)]
pub struct PoolLine {
    /// The server.
    pub server: ServerId,
    /// The account.
    pub account: Arc<Account>,
    /// On loan.
    pub leased: u64,
    /// In no use.
    pub idle: usize,
    /// Being opened.
    pub opening: usize,
    /// Sessions that wait for one.
    pub waiting: usize,
    /// Opened so far.
    pub opened: u64,
    /// Lent so far.
    pub lent: u64,
}

impl Handle {
    /// The session as it is now.
    pub(crate) fn line(&self, tick: u64) -> SessionLine {
        let busy = self.busy_since.get();
        let on = self.connection.get();
        let pins = self.pins.list();
        let (doing, since) = if self.ended.get() {
            (Doing::Ending, self.heard.get())
        } else if pins
            .iter()
            .any(|(reason, _)| *reason == PinReason::RelayedLogin)
        {
            (Doing::Relayed, self.connected)
        } else if busy == 0 {
            (Doing::Idle, self.heard.get())
        } else if on.is_some() {
            (Doing::Running, busy)
        } else {
            (Doing::Waiting, busy)
        };
        let state = self.state.take();
        let database = match &state {
            Some(state) => (*state.database).into(),
            None => Box::default(),
        };
        self.state.set(state);
        SessionLine {
            user: self.user.borrow().clone(),
            peer: self.peer.map(SocketAddr::from),
            database,
            doing,
            seconds: tick.saturating_sub(since),
            on,
            begun: self.begun.get(),
            pins,
            level: self.level.get(),
            connected_seconds: tick.saturating_sub(self.connected),
            commands: self.counts.commands.get(),
            received: self.counts.received.get(),
            sent: self.counts.sent.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_costs_little_for_being_listed() {
        // Of these a hundred or so are for this alone.
        assert!(size_of::<Handle>() <= 232, "{}", size_of::<Handle>());
    }

    #[test]
    fn a_session_is_shown_as_what_it_does() {
        let handle = Handle::new(1, None, 3);
        handle.set_heard(5);
        assert_eq!(handle.line(9).doing, Doing::Idle);
        assert_eq!(handle.line(9).seconds, 4);
        assert_eq!(handle.line(9).connected_seconds, 6);
        handle.begin_command(8);
        assert_eq!(handle.line(9).doing, Doing::Waiting);
        handle.set_connection(Some((ServerId(0), 7)));
        assert_eq!(
            (handle.line(9).doing, handle.line(9).seconds),
            (Doing::Running, 1)
        );
        handle.pins.add(PinReason::RelayedLogin);
        assert_eq!(
            (handle.line(9).doing, handle.line(9).seconds),
            (Doing::Relayed, 6)
        );
        handle.end();
        assert_eq!(handle.line(9).doing, Doing::Ending);
    }
}
