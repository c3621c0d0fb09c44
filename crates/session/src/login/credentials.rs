//! Who a client says it is, and what a login under way needs beside that.

use std::cell::Cell;
use std::pin::Pin;
use std::time::{Duration, Instant};

use millrace_backend::user_rows::Name;
use millrace_metrics::LoginOutcome;
use millrace_protocol::auth::Plugin;

use crate::worker::Worker;

/// Who a client says it is, and its first proof.
pub(crate) struct Credentials {
    pub(crate) user: Vec<u8>,
    pub(crate) database: Vec<u8>,
    pub(crate) response: Vec<u8>,
    /// The response is to a nonce that was answered before: another is asked for.
    pub(crate) used_up: bool,
    pub(crate) collation: u8,
    pub(crate) plugin: Plugin,
}

impl Credentials {
    pub(super) fn name(&self) -> Name<'_> {
        Name {
            user: &self.user,
            collation: self.collation,
        }
    }
}

/// For how long a login has waited for servers, which is not its client's doing.
#[derive(Debug, Default)]
pub(super) struct Waits {
    since: Cell<Option<Instant>>,
    before: Cell<Duration>,
}

impl Waits {
    pub(super) fn begin(&self) {
        self.since.set(Some(Instant::now()));
    }

    pub(super) fn end(&self) {
        self.before.set(self.total());
        self.since.set(None);
    }

    pub(super) fn total(&self) -> Duration {
        let now = self.since.get().map(|since| since.elapsed());
        self.before.get() + now.unwrap_or_default()
    }
}

/// Gives the client `limits.login_timeout`, in which its waits for servers do not count.
pub(super) async fn within<T>(
    worker: &Worker,
    mut login: Pin<Box<impl Future<Output = Option<T>>>>,
    waits: &Waits,
) -> Option<T> {
    let begun = Instant::now();
    let mut limit = worker.options().login_timeout;
    loop {
        let rest = limit.saturating_sub(begun.elapsed());
        if let Ok(entered) = tokio::time::timeout(rest, &mut login).await {
            return entered;
        }
        let extended = worker.options().login_timeout + waits.total();
        if begun.elapsed() >= extended {
            worker.metrics().login(LoginOutcome::TimedOut);
            return None;
        }
        limit = extended;
    }
}
