//! Whether this process itself was held up: a deadline that passed meanwhile says nothing about a
//! server. Measures only; judges nothing.

use std::cell::Cell;
use std::pin::pin;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(100);

/// A beat that comes so much too late shows that the process stood still.
const LATE: Duration = Duration::from_millis(400);

/// A clock that beats while something is waited for: at other times nobody has to wake up for it.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Cell<Instant>,
    stood_still: Cell<Option<Instant>>,
    /// So many are waiting.
    waiting: Cell<u32>,
}

impl Clock {
    pub(crate) fn new(now: Instant) -> Self {
        Clock {
            last: Cell::new(now),
            stood_still: Cell::new(None),
            waiting: Cell::new(0),
        }
    }

    /// Waits for an answer, and beats meanwhile.
    pub(crate) async fn beside<T>(&self, answer: impl Future<Output = T>) -> T {
        let _waiting = self.begin(Instant::now());
        let mut answer = pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = tokio::time::sleep(BEAT) => self.beat(Instant::now()),
            }
        }
    }

    fn begin(&self, now: Instant) -> Waiting<'_> {
        if self.waiting.get() == 0 {
            // It has not beaten since the last wait.
            self.last.set(now);
        }
        self.waiting.set(self.waiting.get() + 1);
        Waiting(self)
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

struct Waiting<'a>(&'a Clock);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
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
        let _waiting = clock.begin(start);
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

    #[test]
    fn a_time_in_which_nobody_waited_does_not_count() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let clock = Clock::new(start);
        drop(clock.begin(at(0)));
        let first = clock.begin(at(1_000));
        assert!(!clock.stood_still_since(start, at(1_100)));
        let second = clock.begin(at(1_700));
        drop((first, second));
        assert!(
            clock.stood_still_since(at(1_000), at(1_700)),
            "the second begins to wait when the first has waited for long"
        );
    }

    #[tokio::test]
    async fn it_beats_while_somebody_waits() {
        let clock = Clock::new(Instant::now());
        let beaten = async {
            let begun = clock.last.get();
            while clock.last.get() == begun {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            clock.waiting.get()
        };
        let limit = Duration::from_secs(30);
        let waiting = tokio::time::timeout(limit, clock.beside(beaten)).await;
        assert_eq!((waiting, clock.waiting.get()), (Ok(1), 0));
    }
}
