//! A connection has ended under a session: whether its server is lost, so that what ran there may run again, or the
//! server has ended this connection and goes on. What was ended on purpose (KILL, `wait_timeout`,
//! `idle_transaction_timeout`) is never run again, anywhere. The one rule for all that reruns or retries.

use std::time::Duration;

/// A read that ran for this long may have been killed for that. A shorter one is run again unasked: nobody
/// kills so fast, and a question costs it more than it has cost itself.
const LONG: Duration = Duration::from_millis(500);

/// What would be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stake {
    /// A read outside of transactions, which was begun so long ago.
    Read(Duration),
    /// The open transaction, or what else the session had on the connection.
    Session,
}

/// How the connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
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
pub enum Server {
    /// The monitor was not asked yet.
    Unknown,
    /// It has lived on, and is still what the session needs.
    LivedOn,
    /// It is down, another, demoted, out of reach, or nothing proves the contrary.
    Lost,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may be run again.
    Again,
    /// The monitor is to be asked first.
    Ask,
    /// The client is told, and its connection ends, as without Millrace.
    Tell,
}

/// The rule.
pub fn judge(stake: Stake, end: End, server: Server) -> Verdict {
    match (stake, end, server) {
        (_, End::Refused | End::Silence | End::Shutdown, _) => Verdict::Again,
        (_, End::Told, _) => Verdict::Tell,
        (Stake::Read(ran), End::Closed, _) if ran < LONG => Verdict::Again,
        (_, End::Closed, Server::Unknown) => Verdict::Ask,
        (_, End::Closed, Server::LivedOn) => Verdict::Tell,
        (_, End::Closed, Server::Lost) => Verdict::Again,
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
