//! What writes have touched that were acknowledged, before the log tells: announced by whoever has seen the statement and its
//! transaction's number.
//!
//! A text tells what its statement touches only by definitions that are current: a trigger or a foreign key may have been
//! made a moment ago, and the log has not told yet. So a write counts only where its number follows on F, and on
//! others that were announced, without a gap: then nothing else was committed in between, and F's definitions are those
//! that it was run with. What does not follow on waits until it does; the log comes after it in any case.

use std::collections::VecDeque;

use millrace_topology::GtidSet;

use super::Store;
use crate::scope::{Touched, overlaps, sorted};
use crate::{Access, Scope, Subject, Touch};

/// More writes than this are not kept apart: the log is far behind then.
const WRITES_MAX: usize = 1024;

/// More are not looked through for a result in memory.
const LOOKED_THROUGH_MAX: usize = 256;

/// A write that the log has not told of.
#[derive(Debug)]
struct Write {
    transaction: GtidSet,
    subject: Subject,
    touched: Touched,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Announced {
    /// F, and the writes that follow on it.
    reached: GtidSet,
    /// Those.
    following: VecDeque<Write>,
    /// Others, which may come to follow on it.
    apart: VecDeque<Write>,
}

impl Announced {
    pub(super) fn new(applied: GtidSet) -> Self {
        Self {
            reached: applied,
            following: VecDeque::new(),
            apart: VecDeque::new(),
        }
    }

    /// F, and what follows on it.
    pub(super) fn reached(&self) -> &GtidSet {
        &self.reached
    }

    /// The log has told of a transaction.
    pub(super) fn take_in(&mut self, transaction: &GtidSet, applied: &GtidSet) {
        self.reached.union(transaction);
        let is_told = |write: &Write| applied.contains(&write.transaction);
        // As a rule the log tells of them in their order.
        while self.following.front().is_some_and(is_told) {
            self.following.pop_front();
        }
        if !self.apart.is_empty() {
            self.following.retain(|write| !is_told(write));
            self.apart.retain(|write| !is_told(write));
            self.follow_on();
        }
    }

    fn add(&mut self, write: Write) {
        if self.following.len() + self.apart.len() >= WRITES_MAX {
            return;
        }
        self.apart.push_back(write);
        self.follow_on();
    }

    /// Moves what follows on by now.
    fn follow_on(&mut self) {
        loop {
            let next = |write: &Write| self.reached.is_followed_by(&write.transaction);
            let Some(at) = self.apart.iter().position(next) else {
                return;
            };
            if let Some(write) = self.apart.remove(at) {
                self.reached.union(&write.transaction);
                self.following.push_back(write);
            }
        }
    }

    /// Whether one of them touches a part of a subject; where there are too many to look through, it is taken to.
    pub(super) fn has(&self, subject: &Subject, scope: &Scope) -> bool {
        let touches = |write: &Write| write.subject == *subject && overlaps(scope, &write.touched);
        self.following.len() > LOOKED_THROUGH_MAX || self.following.iter().any(touches)
    }

    /// Adds those of an access to `out`.
    pub(super) fn add_to(&self, access: &Access, out: &mut GtidSet) {
        for write in &self.following {
            if write.subject == access.subject && overlaps(&access.scope, &write.touched) {
                out.union(&write.transaction);
            }
        }
    }
}

impl Store {
    /// A write was acknowledged that touches nothing but `touch`, by definitions of this version
    /// ([`Store::definitions`]), and is the only one of its transaction. Best said before anybody is told of the write.
    pub fn announce(&mut self, transaction: &GtidSet, touch: &Touch, version: u64) {
        let is_current = self
            .definitions()
            .is_some_and(|(_, current)| current == version);
        if !is_current
            || self.doubtful.contains(&touch.subject)
            || !transaction.is_comparable(&self.applied)
            || self.applied.contains(transaction)
        {
            return;
        }
        self.announced.add(Write {
            transaction: transaction.clone(),
            subject: touch.subject.clone(),
            touched: sorted(&touch.keys),
        });
    }
}
