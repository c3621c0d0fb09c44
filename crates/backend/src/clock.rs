//! Whether this process itself was held up: a deadline that passed meanwhile says nothing about a
//! server. Measures only; judges nothing.

use std::cell::Cell;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(100);

/// A beat that comes so much too late shows that the process stood still.
const LATE: Duration = Duration::from_millis(400);

/// A clock that beats on the monitor's thread.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Cell<Instant>,
    stood_still: Cell<Option<Instant>>,
}

impl Clock {
    pub(crate) fn new(now: Instant) -> Self {
        Clock {
            last: Cell::new(now),
            stood_still: Cell::new(None),
        }
    }

    /// Beats until the process ends.
    pub(crate) async fn run(&self) {
        loop {
            tokio::time::sleep(BEAT).await;
            self.beat(Instant::now());
        }
    }

    fn beat(&self, now: Instant) {
        if now.saturating_duration_since(self.last.get()) > BEAT + LATE {
            self.stood_still.set(Some(now));
        }
        self.last.set(now);
    }

    /// Whether the process stood still at some time after `since`.
    pub(crate) fn stood_still_since(&self, since: Instant, now: Instant) -> bool {
        // Others may be woken before the beat.
        self.beat(now);
        self.stood_still.get().is_some_and(|when| when >= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_beat_that_is_much_too_late_counts() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let clock = Clock::new(start);
        for ms in (100..1_000).step_by(100) {
            clock.beat(at(ms));
        }
        assert!(!clock.stood_still_since(start, at(1_300)), "a busy moment");
        assert!(
            clock.stood_still_since(at(1_200), at(11_300)),
            "ten seconds"
        );
        clock.beat(at(11_400));
        assert!(clock.stood_still_since(at(1_200), at(11_450)));
        assert!(
            !clock.stood_still_since(at(11_350), at(11_450)),
            "before that"
        );
    }
}
