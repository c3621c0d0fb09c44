//! A connection has ended under a session: whether its server is lost, so that what ran there may run again, or
//! the server has ended this connection and goes on. What was ended on purpose (KILL, `wait_timeout`,
//! `idle_transaction_timeout`) is never run again, anywhere. The one rule for all that reruns or retries.

use std::time::{Duration, Instant};

use millrace_backend::pool::Lease;
use millrace_metrics::Side;

use crate::error::{Abort, ClientError};
use crate::session::Session;

/// A read that ran for this long may have been killed for that. A shorter one is run again unasked: nobody
/// kills so fast, and a question costs it more than it has cost itself.
const LONG: Duration = Duration::from_millis(500);

/// What would be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stake {
    /// A read outside of transactions, which was begun so long ago.
    Read(Duration),
    /// The open transaction, or what else the session had on the connection.
    Session,
}

/// How the connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It did not: the server refuses the statement, or is no longer what the session needs.
    Refused,
    /// Nothing was heard of the server: the path to it is lost, or it hangs.
    Silence,
    /// The server said that it shuts down (1053).
    Shutdown,
    /// The server said why it ends this connection: it was idle for too long (4031), or killed (1927).
    Told,
    /// It was closed without a word. MySQL and MariaDB do so when a connection is killed or, MariaDB, idle for
    /// too long, and the kernel when their process ends (observed on 9.7 and 10.11).
    Closed,
}

/// What is known of the server since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// The monitor was not asked yet.
    Unknown,
    /// It has lived on, and is still what the session needs.
    LivedOn,
    /// It is down, another, demoted, out of reach, or nothing proves the contrary.
    Lost,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may be run again.
    Again,
    /// The monitor is to be asked first.
    Ask,
    /// The client is told, and its connection ends, as without Millrace.
    Tell,
}

/// The rule.
pub(crate) fn judge(stake: Stake, end: End, server: Server) -> Verdict {
    match (stake, end, server) {
        (_, End::Refused | End::Silence | End::Shutdown, _) => Verdict::Again,
        (_, End::Told, _) => Verdict::Tell,
        (Stake::Read(ran), End::Closed, _) if ran < LONG => Verdict::Again,
        (_, End::Closed, Server::Unknown) => Verdict::Ask,
        (_, End::Closed, Server::LivedOn) => Verdict::Tell,
        (_, End::Closed, Server::Lost) => Verdict::Again,
    }
}

impl End {
    /// `why`: what was made of it.
    fn of(why: &ClientError, lease: &Lease) -> End {
        match (why.side, why.error.code) {
            (Side::Proxy, 1158 | 1159) if lease.path_lost || lease.down.get() => End::Silence,
            (Side::Proxy, 1159) => End::Silence,
            (Side::Proxy, 1158) => End::Closed,
            (Side::Server, 1053) => End::Shutdown,
            _ if why.is_told_end() => End::Told,
            _ if lease.closed_before => End::Closed,
            _ => End::Refused,
        }
    }
}

impl Session {
    /// Whether the connection was ended on purpose: then the answer is what the client is told before its own
    /// connection ends. `writes`: the session needs a server that takes writes. `alive`: when the server was there
    /// for certain.
    pub(crate) async fn was_ended(
        &mut self,
        lease: &Lease,
        writes: bool,
        stake: Stake,
        why: &ClientError,
        alive: Instant,
    ) -> Option<ClientError> {
        let end = End::of(why, lease);
        let mut verdict = judge(stake, end, Server::Unknown);
        if verdict == Verdict::Ask {
            verdict = judge(stake, end, self.server_since(lease, writes, alive).await);
        }
        match (verdict, end) {
            (Verdict::Tell, End::Told) => Some(why.clone()),
            (Verdict::Tell, _) => Some(ClientError::ended()),
            _ => None,
        }
    }

    /// Before a command that lets go of all that the session has on a server: where that was ended on purpose, the
    /// client's connection ends, as directly.
    ///
    /// # Errors
    /// What the client is told then.
    pub(crate) async fn end_if_kept_was_ended(&mut self) -> Result<(), Abort> {
        let Some(mut lease) = self.lease.take() else {
            return Ok(());
        };
        let ended = match self.reason_it_ended(&mut lease) {
            Some(why) => {
                let alive = self.last_alive(&lease);
                let ended = self.was_ended(&lease, false, Stake::Session, &why, alive);
                ended.await
            }
            None => None,
        };
        match ended {
            Some(told) => {
                lease.broken = true;
                self.put_back(lease);
                Err(Abort::Fatal(told))
            }
            None => {
                self.lease = Some(lease);
                Ok(())
            }
        }
    }

    /// Has the monitor ask the server of a connection that has ended.
    async fn server_since(&self, lease: &Lease, writes: bool, alive: Instant) -> Server {
        let monitor = &self.worker.shared.monitor;
        let lived_on = monitor.lived_on(lease.server, alive).await;
        let snapshot = monitor.watch().borrow().snapshot.clone();
        match lived_on && !self.has_lost_ground_in(&snapshot, lease.server, writes) {
            true => Server::LivedOn,
            false => Server::Lost,
        }
    }

    /// When the server of a connection that the session keeps was there for certain: the session's last
    /// statement on it had ended by then.
    pub(crate) fn last_alive(&self, lease: &Lease) -> Instant {
        let seconds = self.worker.tick().saturating_sub(lease.used) + 1;
        let now = Instant::now();
        let coarse = now.checked_sub(Duration::from_secs(seconds));
        let begun = self.image.tx.journal.as_ref().map(|journal| journal.since);
        coarse.into_iter().chain(begun).max().unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ended_on_purpose_is_not_run_again() {
        use End::*;
        use Server::*;
        use Verdict::*;
        let long = Stake::Read(LONG);
        let short = Stake::Read(LONG - Duration::from_millis(1));
        let cases = [
            // The servers' ways to be lost.
            (Stake::Session, Refused, Unknown, Again),
            (Stake::Session, Silence, Unknown, Again),
            (Stake::Session, Shutdown, Unknown, Again),
            (Stake::Session, Closed, Lost, Again),
            (long, Refused, Unknown, Again),
            (long, Silence, Unknown, Again),
            (long, Shutdown, Unknown, Again),
            (long, Closed, Lost, Again),
            // A server that lives on.
            (Stake::Session, Closed, LivedOn, Tell),
            (long, Closed, LivedOn, Tell),
            // Its own word, whatever becomes of it afterwards.
            (Stake::Session, Told, Unknown, Tell),
            (Stake::Session, Told, Lost, Tell),
            (long, Told, Unknown, Tell),
            // Not known yet.
            (Stake::Session, Closed, Unknown, Ask),
            (long, Closed, Unknown, Ask),
            // A short read is not worth a question.
            (short, Closed, Unknown, Again),
            (short, Closed, LivedOn, Again),
            // A server that says so and is there: it shuts down in a moment.
            (Stake::Session, Shutdown, LivedOn, Again),
        ];
        for (stake, end, server, verdict) in cases {
            assert_eq!(
                judge(stake, end, server),
                verdict,
                "{stake:?} {end:?} {server:?}"
            );
        }
    }
}
