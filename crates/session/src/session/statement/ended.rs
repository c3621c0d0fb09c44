//! A connection has ended under a session: whether its server is lost, so that what ran there may run again, or
//! the server has ended this connection and goes on. What was ended on purpose (KILL, `wait_timeout`,
//! `idle_transaction_timeout`) is never run again, anywhere. The one rule for all that reruns or retries.

use std::time::{Duration, Instant};

use millrace_backend::pool::Lease;
use millrace_engine::ended::{End, Server, Stake, Verdict, judge};
use millrace_metrics::Side;
use millrace_topology::ServerId;

use crate::error::{Abort, ClientError};
use crate::session::Session;

/// How long a server is asked whether it has lived on.
const LIMIT: Duration = Duration::from_secs(5);

/// How a connection ended. `why`: what was made of it.
fn end_of(why: &ClientError, lease: &Lease) -> End {
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

impl Session {
    /// Whether the connection was ended on purpose: then the answer is what the client is told before its own
    /// connection ends. `writes`: the session needs a server that takes writes. `alive`: when the server was there
    /// for certain.
    pub(in crate::session) async fn was_ended(
        &mut self,
        lease: &Lease,
        writes: bool,
        stake: Stake,
        why: &ClientError,
        alive: Instant,
    ) -> Option<ClientError> {
        let end = end_of(why, lease);
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
    pub(in crate::session) async fn end_if_kept_was_ended(&mut self) -> Result<(), Abort> {
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

    /// Has the monitor ask the server of a connection that has ended; where it has no account, the session's is good for
    /// the question.
    async fn server_since(&self, lease: &Lease, writes: bool, alive: Instant) -> Server {
        let monitor = &self.worker.shared.monitor;
        let lived_on = match monitor.has_account() {
            true => monitor.lived_on(lease.server, alive).await,
            false => {
                let asking = self.has_run_since(lease.server, alive);
                tokio::time::timeout(LIMIT, asking).await == Ok(Some(true))
            }
        };
        let snapshot = monitor.watch().borrow().snapshot.clone();
        match lived_on && !self.has_lost_ground_in(&snapshot, lease.server, writes) {
            true => Server::LivedOn,
            false => Server::Lost,
        }
    }

    /// Whether the server that runs now has run since before `alive`; none where it does not answer.
    async fn has_run_since(&self, server: ServerId, alive: Instant) -> Option<bool> {
        // The pool's last place may be that of the connection that has ended.
        let answer = self.ask_beside(server, "SHOW GLOBAL STATUS LIKE 'Uptime'");
        let rows = answer.await.ok()?;
        let uptime = rows.first()?.get(1)?.as_deref()?;
        let uptime = std::str::from_utf8(uptime).ok()?.parse().ok()?;
        // Whole seconds, rounded down: it began at this moment at the latest.
        let began = Instant::now().checked_sub(Duration::from_secs(uptime));
        Some(began.is_none_or(|began| began < alive))
    }

    /// When the server of a connection that the session keeps was there for certain: the session's last
    /// statement on it had ended by then.
    pub(in crate::session) fn last_alive(&self, lease: &Lease) -> Instant {
        let seconds = self.worker.tick().saturating_sub(lease.used) + 1;
        let now = Instant::now();
        let coarse = now.checked_sub(Duration::from_secs(seconds));
        let begun = self
            .image
            .tx
            .journal
            .as_ref()
            .map(|journal| journal.since());
        coarse.into_iter().chain(begun).max().unwrap_or(now)
    }
}
