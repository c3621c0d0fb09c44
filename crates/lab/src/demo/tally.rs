//! What the workload's clients have counted: statements, answers checked, what was wrong. Only
//! sums; it judges nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// So many faults of a kind are told in words; further ones are only counted.
const EXAMPLES_PER_KIND: usize = 2;

/// Counters shared by all clients.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    /// START TRANSACTION, COMMIT, ROLLBACK.
    pub(super) transaction_ends: AtomicU64,
    /// SET and the like.
    pub(super) session: AtomicU64,
    /// How many of all statements were executions of prepared ones.
    pub(super) prepared: AtomicU64,
    /// Transfers committed; that many rows must be in the log of transfers.
    pub(super) transfers: AtomicU64,
    answers: AtomicU64,
    wrong: AtomicU64,
    errors: AtomicU64,
    examples: Mutex<BTreeMap<String, Vec<String>>>,
}

/// Adds one.
pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    /// Compares an answer with what it must be.
    pub(super) fn check<T: PartialEq + Debug>(&self, what: &str, got: &T, expected: &T) {
        if got == expected {
            bump(&self.answers);
        } else {
            self.wrong(what, format!("got {got:?}, expected {expected:?}"));
        }
    }

    /// An answer that is not what it must be.
    pub(super) fn wrong(&self, what: &str, how: String) {
        bump(&self.answers);
        bump(&self.wrong);
        self.example(what, how);
    }

    /// A statement or login that failed: none of them should.
    pub(super) fn error(&self, what: &str, error: &dyn std::error::Error) {
        bump(&self.errors);
        self.example(what, error.to_string());
    }

    fn example(&self, what: &str, text: String) {
        let mut examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = examples.entry(what.to_owned()).or_default();
        if of_kind.len() < EXAMPLES_PER_KIND {
            of_kind.push(format!("{what}: {text}"));
        }
    }

    /// How things stand now.
    pub(super) fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (reads, writes) = (get(&self.reads), get(&self.writes));
        let (transaction_ends, session) = (get(&self.transaction_ends), get(&self.session));
        let examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
        Totals {
            statements: reads + writes + transaction_ends + session,
            reads,
            writes,
            transaction_ends,
            session,
            prepared: get(&self.prepared),
            transfers: get(&self.transfers),
            answers_checked: get(&self.answers),
            wrong: get(&self.wrong),
            errors: get(&self.errors),
            examples: examples.values().flatten().cloned().collect(),
        }
    }
}

/// The counters at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Totals {
    pub(super) statements: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) transaction_ends: u64,
    pub(super) session: u64,
    pub(super) prepared: u64,
    pub(super) transfers: u64,
    pub(super) answers_checked: u64,
    pub(super) wrong: u64,
    pub(super) errors: u64,
    /// The first faults of each kind in words.
    pub(super) examples: Vec<String>,
}

impl Totals {
    /// Something ran, and everything that ran came out right.
    pub(super) fn all_right(&self) -> bool {
        self.answers_checked > 0 && self.wrong == 0 && self.errors == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_right_answers_are_all_right() {
        let tally = Tally::default();
        assert!(!tally.totals().all_right(), "nothing was checked");
        tally.check("sum", &3, &3);
        assert!(tally.totals().all_right());
        tally.check("sum", &4, &3);
        let totals = tally.totals();
        assert!(!totals.all_right());
        assert_eq!((totals.answers_checked, totals.wrong), (2, 1));
        assert_eq!(totals.examples, ["sum: got 4, expected 3"]);
    }

    #[test]
    fn an_error_is_never_all_right() {
        let tally = Tally::default();
        tally.check("sum", &3, &3);
        tally.error("login", &std::io::Error::other("refused"));
        assert!(!tally.totals().all_right());
    }
}
