//! What the follower says: where it begins, each transaction, gaps; and what the monitor knows of the servers.

use std::sync::Arc;
use std::time::Instant;

use millrace_topology::GtidSet;

use super::announce::Announced;
use super::{Applied, Log, Resumed, Store, XaId};
use crate::scope::sorted;
use crate::{Cause, Definitions, Subject, Touch};

impl Store {
    /// A follower begins at `from`, in the history of the server `incarnation`: everything is dropped.
    pub fn follow(&mut self, from: GtidSet, incarnation: &[u8], now: Instant) {
        self.drop_all(Cause::Gap, now);
        let empty = GtidSet::new(from.family());
        self.subjects = crate::subjects::Subjects::new(self.options.changes_by_key_max, empty);
        // What F begins with was not seen: any of it may be on any table, and missing on any server.
        self.base = Arc::new(from.clone());
        self.base_is_settled = false;
        self.settled = None;
        self.announced = Announced::new(from.clone());
        self.applied = from;
        self.incarnation = incarnation.into();
        self.prepared.clear();
        self.prepared_heap = 0;
        self.log = Log::Followed { heard: now };
    }

    /// The log is no longer read, or something of it was missed (rule 6).
    pub fn gap(&mut self) {
        self.log = Log::Stopped;
        // The primary may have taken some of them to its grave: the log would never tell of those.
        self.announced = Announced::new(self.applied.clone());
    }

    /// A follower is connected again, to a server that has executed `executed`, in this incarnation. It
    /// goes on only where that has all of F, in the same history (rule 6); else everything is dropped.
    pub fn resume(&mut self, executed: &GtidSet, incarnation: &[u8], now: Instant) -> Resumed {
        let goes_on = *self.incarnation == *incarnation
            && executed.is_comparable(&self.applied)
            && executed.contains(&self.applied);
        if !goes_on {
            self.drop_all(Cause::Gap, now);
            self.log = Log::Stopped;
            return Resumed::Dropped;
        }
        self.log = Log::Followed { heard: now };
        Resumed::Kept
    }

    /// Something was heard of the log, if only a heartbeat.
    pub fn heard(&mut self, now: Instant) {
        if let Log::Followed { heard } = &mut self.log {
            *heard = now.max(*heard);
        }
    }

    /// A transaction that is committed: all that it touched is invalidated, and then it is in F.
    pub fn apply(&mut self, transaction: &GtidSet, touches: &[Touch], now: Instant) -> Applied {
        let mut removed = 0;
        for touch in touches {
            removed += self.touch(transaction, touch, now);
        }
        self.take_in(transaction, now);
        Applied { removed }
    }

    /// A transaction of which is not known what it touched: everything is dropped.
    pub fn apply_unknown(&mut self, transaction: &GtidSet, now: Instant) -> Applied {
        let removed = self.drop_all(Cause::NotUnderstood, now);
        let base = Arc::make_mut(&mut self.base);
        base.union(transaction);
        self.base_is_settled = false;
        self.settled = None;
        self.take_in(transaction, now);
        Applied { removed }
    }

    /// A transaction that ends in XA PREPARE: what it touched becomes visible when it is committed.
    pub fn prepare(&mut self, transaction: &GtidSet, xa: XaId, touches: Vec<Touch>, now: Instant) {
        self.prepared_heap += prepared_heap(&xa, &touches);
        self.prepared.insert(xa, touches);
        if self.prepared.len() > self.options.prepared_max {
            // Whichever is committed later is not known, and drops everything.
            self.prepared.clear();
            self.prepared_heap = 0;
        }
        self.take_in(transaction, now);
    }

    /// XA COMMIT or XA ROLLBACK of what was prepared. What is not known drops everything, if it is committed.
    pub fn complete(
        &mut self,
        transaction: &GtidSet,
        xa: &XaId,
        is_committed: bool,
        now: Instant,
    ) -> Applied {
        let touches = self.prepared.remove(xa);
        if let Some(touches) = &touches {
            let heap = prepared_heap(xa, touches);
            self.prepared_heap = self.prepared_heap.saturating_sub(heap);
        }
        match touches {
            Some(touches) if is_committed => self.apply(transaction, &touches, now),
            None if is_committed => self.apply_unknown(transaction, now),
            _ => self.apply(transaction, &[], now),
        }
    }

    /// All servers in use are known to have `known`. A server comes into use only once it has [`Store::base`].
    pub fn forget_known(&mut self, known: &GtidSet) {
        if !known.is_comparable(&self.applied) {
            return;
        }
        // Only what F has: a change that F has not seen yet is still to be one of the Changes.
        let mut known = known.clone();
        known.intersect(&self.applied);
        // A server that is away keeps it where it is: nothing is looked through for that.
        if self.settled.as_ref() == Some(&known) {
            return;
        }
        self.settled = Some(known.clone());
        self.base_is_settled = known.contains(&self.base);
        self.subjects.forget_known(&known);
        if !self.base.contains(&known) {
            Arc::make_mut(&mut self.base).union(&known);
        }
    }

    /// A table is no longer what it was, or all of them: to be said before the transaction that did it is applied. What
    /// was filled, or is being filled, under the old definition goes, whatever P it has, and nothing is filled until
    /// [`Store::define`].
    pub fn redefine(&mut self, subject: Option<&Subject>, now: Instant) -> usize {
        self.definitions_version += 1;
        self.are_defined = false;
        // They were announced by definitions that no longer hold.
        self.announced = Announced::new(self.applied.clone());
        match subject {
            None => self.drop_all(Cause::Table, now),
            Some(subject) => {
                self.abandon_concerned(subject);
                self.remove_concerned(subject, &None, None, Cause::Table, now)
            }
        }
    }

    /// What tables are now.
    pub fn define(&mut self, definitions: Arc<Definitions>) {
        self.definitions = definitions;
        self.definitions_version += 1;
        self.are_defined = true;
        self.doubtful.clear();
    }

    /// The log has a sign that a table may be another than is known, though it tells of no change: no write of it can be
    /// announced by its text, until [`Store::define`] or [`Store::confirm`].
    pub fn doubt(&mut self, subject: &Subject) {
        self.doubtful.insert(subject.clone());
    }

    /// Tables were read again, and are what they were.
    pub fn confirm(&mut self) {
        self.doubtful.clear();
    }

    /// What tables are, with its version, which a fill names; none where some table has changed since they were read.
    pub fn definitions(&self) -> Option<(&Arc<Definitions>, u64)> {
        self.are_defined
            .then_some((&self.definitions, self.definitions_version))
    }

    fn take_in(&mut self, transaction: &GtidSet, now: Instant) {
        self.applied.union(transaction);
        self.announced.take_in(transaction, &self.applied);
        self.heard(now);
        self.compare(now);
        self.make_room(now);
    }

    fn touch(&mut self, transaction: &GtidSet, touch: &Touch, now: Instant) -> usize {
        let touched = sorted(&touch.keys);
        let cause = match (&touched, touch.subject.is_table()) {
            (_, false) => Cause::Rights,
            (Some(_), true) => Cause::Key,
            (None, true) => Cause::Table,
        };
        let mut removed =
            self.remove_concerned(&touch.subject, &touched, Some(transaction), cause, now);
        if cause == Cause::Rights {
            removed += self.drop_timed(cause, now);
        }
        self.subjects.change(&touch.subject, transaction, touched);
        removed
    }
}

fn prepared_heap(xa: &XaId, touches: &[Touch]) -> usize {
    let keys = touches.iter().flat_map(|touch| touch.keys.iter().flatten());
    let keys: usize = keys.map(|of_index| 32 * of_index.keys.len()).sum();
    64 + xa.0.len() + touches.len() * (size_of::<Touch>() + 64) + keys
}
