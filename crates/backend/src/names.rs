//! Names of servers, looked up again and again: a name may come to mean another machine.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two look-ups of a name.
const PAUSE: Duration = Duration::from_secs(1);

/// A look-up that takes longer tells nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// In so many answers in a row a machine must be missing before it counts as left: resolvers that have not
/// heard of a change yet take turns with those that have.
const ANSWERS: u32 = 2;

/// Follows what one name means.
#[derive(Debug, Default)]
pub(crate) struct Name {
    begun: Option<Instant>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    under_way: bool,
    /// The last look-up's, not looked at yet. Empty where it failed: then nothing is known.
    answer: Vec<IpAddr>,
    /// How many answers in a row did not have the machine.
    without: u32,
}

impl Name {
    /// Whether the name no longer means the machine at `at`. Waits for nothing: an answer counts when it is
    /// there.
    pub(crate) fn has_left(&mut self, host: &str, at: IpAddr, now: Instant) -> bool {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = std::mem::take(&mut shared.answer);
        if !answer.is_empty() {
            shared.without = match answer.contains(&at) {
                true => 0,
                false => shared.without + 1,
            };
        }
        if shared.without >= ANSWERS {
            shared.without = 0;
            return true;
        }
        let due = self.begun.is_none_or(|begun| now >= begun + PAUSE);
        if due && !shared.under_way {
            shared.under_way = true;
            self.begun = Some(now);
            let (host, shared) = (host.to_owned(), self.shared.clone());
            tokio::spawn(async move {
                let answer = look_up(&host, TIMEOUT).await;
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                shared.under_way = false;
                shared.answer = answer;
            });
        }
        false
    }
}

/// The machines that a name means now; none where it does not resolve in time.
pub(crate) async fn look_up(host: &str, timeout: Duration) -> Vec<IpAddr> {
    let looking = tokio::net::lookup_host((host, 0));
    match tokio::time::timeout(timeout, looking).await {
        Ok(Ok(found)) => found.map(|found| found.ip()).collect(),
        _ => Vec::new(),
    }
}
