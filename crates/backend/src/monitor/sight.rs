//! For how long the monitor has had a server in sight without a break: whether a server has lived on while a
//! session's connection to it ended. Judges nothing.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The monitor's connection to one server; none while it has none.
#[derive(Debug, Default)]
pub(super) struct Sight(Mutex<Option<Seen>>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// When the connection was opened.
    connected: Instant,
    /// When the last question was put that was answered on it.
    asked: Instant,
}

/// What can be said of a server since a moment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    LivedOn,
    /// The monitor's connection has ended as well, or is younger.
    Unproven,
    NotYet,
}

impl Sight {
    /// A question that was put at `asked` was answered, on the connection that was opened at `connected`.
    pub(super) fn answered(&self, connected: Instant, asked: Instant) {
        self.set(Some(Seen { connected, asked }));
    }

    /// The monitor's connection is gone.
    pub(super) fn lost(&self) {
        self.set(None);
    }

    fn set(&self, seen: Option<Seen>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// `alive`: when the server was there for certain; `after`: when a question must have been put.
    pub(super) fn word(&self, alive: Instant, after: Instant) -> Word {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Word::Unproven,
            Some(seen) if seen.connected > alive => Word::Unproven,
            Some(seen) if seen.asked >= after => Word::LivedOn,
            Some(_) => Word::NotYet,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_connection_from_before_proves_that_a_server_lived_on() {
        let sight = Sight::default();
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        let (opened, alive, after) = (at(0), at(1000), at(2000));
        assert_eq!(sight.word(alive, after), Word::Unproven);
        sight.answered(opened, at(1900));
        assert_eq!(sight.word(alive, after), Word::NotYet);
        sight.answered(opened, after);
        assert_eq!(sight.word(alive, after), Word::LivedOn);
        sight.lost();
        assert_eq!(sight.word(alive, after), Word::Unproven);
        sight.answered(at(1500), at(3000));
        assert_eq!(sight.word(alive, after), Word::Unproven);
    }
}
