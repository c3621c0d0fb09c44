//! The server's own limits: it, or the account on it, has as many connections as it may. Who waits is
//! met as where the pool is full.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{BackendError, ServerError};
use crate::pool::{OnLimit, Pool, ServerPool};

/// How long no other connection is opened after the server has refused one: the first time, so that it
/// notices those that were closed for it, and then. A login that is refused so counts for no limit
/// (observed on both families).
pub(super) const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];

/// How long afterwards it is still the reason why somebody got none.
pub(super) const REASON: Duration = Duration::from_secs(2);

/// What a limit is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// All connections to the server (1040).
    Server,
    /// Those that the account has at one time (1203, 1226).
    Account,
    /// Those that it may open in an hour (1226): none is opened for a long time.
    PerHour,
}

impl Limit {
    pub(super) fn of(error: &ServerError) -> Option<Limit> {
        let says = |what: &[u8]| error.message.windows(what.len()).any(|at| at == what);
        match error.code {
            1040 => Some(Limit::Server),
            1203 => Some(Limit::Account),
            1226 if says(b"max_user_connections") => Some(Limit::Account),
            1226 if says(b"max_connections_per_hour") => Some(Limit::PerHour),
            _ => None,
        }
    }
}

impl ServerPool {
    /// Whom to tell when an account may have no more connections.
    pub fn on_limit(&self, tell: OnLimit) {
        *self.on_limit.borrow_mut() = Some(tell);
    }

    /// Who can go elsewhere is told so.
    pub(super) fn send_elsewhere(&self, pool: &Rc<Pool>, error: &ServerError) {
        let mut leaving = Vec::new();
        self.waiters.borrow_mut().retain(|waiter| {
            let leaves = Rc::ptr_eq(&waiter.pool, pool) && !waiter.patient;
            if leaves {
                leaving.push(waiter.clone());
            }
            !leaves
        });
        for waiter in leaving {
            waiter.finish(Err(BackendError::Server(error.clone())));
        }
    }
}

impl Pool {
    /// The server has just allowed no more connections of this kind.
    pub fn is_limited(&self) -> bool {
        let limited = self.limited.borrow();
        let until = limited.as_ref().map(|(until, _)| *until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// What the server said of that, where it is why somebody waits in vain.
    pub(super) fn limit_met(&self) -> Option<ServerError> {
        let limited = self.limited.borrow();
        let (until, error) = limited.as_ref()?;
        (Instant::now() < *until + REASON).then(|| error.clone())
    }

    /// A connection of this kind was let in.
    pub(super) fn forget_limit(&self) {
        self.limited.borrow_mut().take();
    }

    /// Whether no connection can be had at once: all are in use, and there may be no more.
    pub fn is_full(&self) -> bool {
        if self.idle() > 0 {
            return false;
        }
        let Some(server) = self.server.upgrade() else {
            return false;
        };
        let most = server.options.max_connections;
        self.limit_met().is_some()
            || (server.count.open.load(Ordering::Relaxed) >= most && server.idle_here() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_apart() {
        let of = |code, message: &str| Limit::of(&ServerError::new(code, b"HY000", message));
        assert_eq!(of(1040, "Too many connections"), Some(Limit::Server));
        let many = "User app already has more than 'max_user_connections' active connections";
        assert_eq!(of(1203, many), Some(Limit::Account));
        let text =
            |what| format!("User 'app' has exceeded the '{what}' resource (current value: 2)");
        let account = of(1226, &text("max_user_connections"));
        assert_eq!(account, Some(Limit::Account));
        let hour = of(1226, &text("max_connections_per_hour"));
        assert_eq!(hour, Some(Limit::PerHour));
        assert_eq!(of(1226, &text("max_questions")), None);
        assert_eq!(of(1045, "Access denied"), None);
    }
}
