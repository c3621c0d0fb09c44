//! What is removed: everything, a table's results, or those that a transaction concerns.

use std::time::Instant;

use millrace_topology::GtidSet;

use super::Store;
use crate::entry::State;
use crate::scope::Touched;
use crate::{Cause, Rule, Subject};

impl Store {
    /// Removes all results, or those of one table. Of which tables a result is that is served for a time is not known:
    /// those go in any case.
    pub fn flush(&mut self, subject: Option<&Subject>, now: Instant) -> usize {
        let timed = self.drop_timed(Cause::Flush, now);
        let exact = match subject {
            Some(subject) => self.remove_concerned(subject, &None, None, Cause::Flush, now),
            None => self.drop_all(Cause::Flush, now),
        };
        timed + exact
    }

    /// Rows were written that the log may not tell of: removes all that must be exact.
    pub fn distrust(&mut self, now: Instant) -> usize {
        self.drop_all(Cause::Unlogged, now)
    }

    /// Removes everything that must be exact, fills included.
    pub(super) fn drop_all(&mut self, cause: Cause, now: Instant) -> usize {
        let slots = self.slots.iter();
        let exact = slots.filter(|(_, slot)| slot.ttl.is_none());
        let exact: Vec<u32> = exact.map(|(at, _)| at).collect();
        let before = self.ranks.len();
        for at in exact {
            self.remove_entry(at, cause, now);
        }
        before - self.ranks.len()
    }

    /// Ends the fills that depend on a subject: their results are not kept.
    pub(super) fn abandon_concerned(&mut self, subject: &Subject) {
        let mut concerned = Vec::new();
        self.subjects.concerned(subject, &None, &mut concerned);
        for at in concerned {
            let slot = self.slots.get(at);
            if slot.is_some_and(|slot| matches!(slot.state, State::Filling(_))) {
                self.remove_slot(at);
            }
        }
    }

    /// Rule 3: removes the results that are concerned, but for those whose P has the transaction. Fills that are
    /// concerned must have it (rule 2).
    pub(super) fn remove_concerned(
        &mut self,
        subject: &Subject,
        touched: &Touched,
        transaction: Option<&GtidSet>,
        cause: Cause,
        now: Instant,
    ) -> usize {
        let keeps = self.breaks(Rule::Remove);
        let mut concerned = Vec::new();
        self.subjects.concerned(subject, touched, &mut concerned);
        let mut removed = 0;
        for at in concerned {
            let Some(slot) = self.slots.get_mut(at) else {
                continue;
            };
            match (&mut slot.state, transaction) {
                (State::Filling(filling), Some(transaction)) => filling.must.union(transaction),
                (State::Filling(_), None) => {}
                (State::Stored(stored), _) => {
                    let shows = |ahead: &GtidSet| transaction.is_some_and(|t| ahead.contains(t));
                    let is_shown = stored.ahead.as_deref().is_some_and(shows);
                    if !is_shown && !keeps {
                        self.remove_entry(at, cause, now);
                        removed += 1;
                    }
                }
            }
        }
        removed
    }
}
