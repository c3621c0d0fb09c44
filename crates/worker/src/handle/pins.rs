//! Why a session keeps its server connection. Counts what must end before the pin does.

use std::cell::RefCell;
use std::time::Instant;

use millrace_metrics::PinReason;

/// The reasons in force, each with the time since when. Shared with who lists sessions.
#[derive(Debug, Default)]
pub struct Pins {
    held: RefCell<Vec<(PinReason, Instant)>>,
}

impl Pins {
    /// Adds a reason. True if it was not in force before.
    pub fn add(&self, reason: PinReason) -> bool {
        let new = !self.has(reason);
        if new {
            self.held.borrow_mut().push((reason, Instant::now()));
        }
        new
    }

    /// Ends a reason. True if it was in force.
    pub fn remove(&self, reason: PinReason) -> bool {
        let mut held = self.held.borrow_mut();
        let before = held.len();
        held.retain(|(held, _)| *held != reason);
        held.len() != before
    }

    /// Whether the reason is in force.
    pub fn has(&self, reason: PinReason) -> bool {
        self.held.borrow().iter().any(|(held, _)| *held == reason)
    }

    /// Whether it is the only one in force.
    pub fn has_only(&self, reason: PinReason) -> bool {
        matches!(self.held.borrow()[..], [(only, _)] if only == reason)
    }

    /// Whether none is in force.
    pub fn is_empty(&self) -> bool {
        self.held.borrow().is_empty()
    }

    /// The reasons with their age, for who asks.
    pub fn names(&self) -> Vec<String> {
        let held = self.held.borrow();
        held.iter()
            .map(|(reason, since)| format!("{} for {:?}", reason.as_str(), since.elapsed()))
            .collect()
    }

    /// The reasons with the time since when, the oldest first.
    pub fn list(&self) -> Vec<(PinReason, Instant)> {
        self.held.borrow().clone()
    }

    /// Ends all of them; answers what they were.
    pub fn clear(&self) -> Vec<PinReason> {
        let held = self.held.take();
        held.into_iter().map(|(reason, _)| reason).collect()
    }
}
