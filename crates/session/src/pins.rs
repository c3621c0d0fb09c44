//! Why a session keeps its server connection. Counts what must end before the pin does.

use std::time::Instant;

use millrace_metrics::PinReason;

/// The reasons in force, each with the time since when.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    held: Vec<(PinReason, Instant)>,
}

impl Pins {
    /// Adds a reason. True if it was not in force before.
    pub(crate) fn add(&mut self, reason: PinReason) -> bool {
        let new = !self.has(reason);
        if new {
            self.held.push((reason, Instant::now()));
        }
        new
    }

    /// Ends a reason. True if it was in force.
    pub(crate) fn remove(&mut self, reason: PinReason) -> bool {
        let before = self.held.len();
        self.held.retain(|(held, _)| *held != reason);
        self.held.len() != before
    }

    pub(crate) fn has(&self, reason: PinReason) -> bool {
        self.held.iter().any(|(held, _)| *held == reason)
    }

    /// Whether it is the only one in force.
    pub(crate) fn has_only(&self, reason: PinReason) -> bool {
        matches!(&self.held[..], [(only, _)] if *only == reason)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The reasons with their age, for who asks.
    pub(crate) fn names(&self) -> Vec<String> {
        self.held
            .iter()
            .map(|(reason, since)| format!("{} for {:?}", reason.as_str(), since.elapsed()))
            .collect()
    }

    /// Ends all of them; answers what they were.
    pub(crate) fn clear(&mut self) -> Vec<PinReason> {
        self.held.drain(..).map(|(reason, _)| reason).collect()
    }
}
