//! What the log says of clients that speak another protocol than MySQL's. Keeps it from being flooded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tracing::warn;

/// The log has one line about such clients in this time at most.
const QUIET: Duration = Duration::from_secs(10);

/// When the log last had a line about such a client, and what it has left out since.
#[derive(Debug)]
pub struct Strangers {
    origin: Instant,
    /// Milliseconds after `origin` before which there is no further line.
    quiet_until: AtomicU64,
    left_out: AtomicU64,
}

impl Default for Strangers {
    fn default() -> Self {
        Strangers {
            origin: Instant::now(),
            quiet_until: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }
}

impl Strangers {
    /// Whether a line may be written now, and how many were left out before it.
    fn turn(&self, now: Instant) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let at = millis(now.saturating_duration_since(self.origin));
        let until = self.quiet_until.load(Relaxed);
        let next = at.saturating_add(millis(QUIET));
        let is_mine = at >= until
            && (self.quiet_until)
                .compare_exchange(until, next, Relaxed, Relaxed)
                .is_ok();
        match is_mine {
            true => Some(self.left_out.swap(0, Relaxed)),
            false => {
                self.left_out.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// Logs a client that does not speak the protocol.
    pub fn log(&self, address: &str, spoken: &str) {
        if let Some(left_out) = self.turn(Instant::now()) {
            warn!(
                client = address,
                left_out, "a client does not speak the MySQL protocol, but {spoken}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_a_line_now_and_then() {
        let strangers = Strangers::default();
        let at = |seconds| strangers.origin + Duration::from_secs(seconds);
        assert_eq!(strangers.turn(at(0)), Some(0));
        assert_eq!(strangers.turn(at(1)), None);
        assert_eq!(strangers.turn(at(9)), None);
        assert_eq!(strangers.turn(at(10)), Some(2));
    }
}
