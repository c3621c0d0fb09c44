//! Memory: what counts, and who goes when it is needed.
//!
//! Results are ranked by the time that they save for each byte (GreedyDual-Size-Frequency): hits times the server's time,
//! by their weight, on top of the rank of what was evicted last. So old hits lose their worth, and a scan of
//! results that are used once does not drive out others.

use std::time::Instant;

use super::Store;
use crate::Cause;
use crate::entry::State;

impl Store {
    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.slots_weight + self.bookkeeping()
    }

    fn bookkeeping(&self) -> usize {
        let places = self.slots.heap()
            + self.by_key.capacity() * (size_of::<(std::sync::Arc<[u8]>, u32)>() + 1);
        places
            + self.subjects.heap()
            + self.statements.heap()
            + self.sights.heap()
            + self.prepared_heap
            + self.verify.heap()
    }

    /// Ranks a result anew. Nothing where there is none.
    pub(super) fn rank(&mut self, at: u32) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        let State::Stored(stored) = &mut slot.state else {
            return;
        };
        self.ranks.remove(&(stored.rank, at));
        let worth = u128::from(stored.hits + 1) * stored.cost.as_nanos().max(1) * 1024
            / slot.weight.max(1) as u128;
        let worth = u64::try_from(worth).unwrap_or(u64::MAX);
        stored.rank = self.clock.saturating_add(worth);
        stored.ranked_hits = stored.hits;
        self.ranks.insert((stored.rank, at));
    }

    /// Evicts until the limit is kept.
    pub(super) fn make_room(&mut self, now: Instant) {
        self.fold_changes();
        while self.bytes() > self.options.memory && self.evict_one(None, now) {}
    }

    /// The same for a new result. False where it is worth the least itself.
    pub(super) fn make_room_for(&mut self, new: u32, now: Instant) -> bool {
        self.fold_changes();
        while self.bytes() > self.options.memory {
            if !self.evict_one(Some(new), now) {
                return false;
            }
        }
        true
    }

    /// Removes what is worth the least. False where that is `new`, and where there is nothing.
    fn evict_one(&mut self, new: Option<u32>, now: Instant) -> bool {
        loop {
            let Some((rank, at)) = self.ranks.first().copied() else {
                return false;
            };
            if self.was_hit_since_ranked(at) {
                self.rank(at);
                continue;
            }
            self.clock = self.clock.max(rank);
            if new == Some(at) {
                return false;
            }
            self.remove_entry(at, Cause::Evicted, now);
            return true;
        }
    }

    fn was_hit_since_ranked(&self, at: u32) -> bool {
        match self.slots.get(at).map(|slot| &slot.state) {
            Some(State::Stored(stored)) => stored.hits != stored.ranked_hits,
            _ => false,
        }
    }

    /// Gives Changes of tables up, where they take more than their share: P must have all of them then.
    fn fold_changes(&mut self) {
        const SHARE: usize = 8;
        if self.subjects.changes_heap() <= self.options.memory / SHARE
            && self.subjects.heap() <= self.options.memory / 4
        {
            return;
        }
        let mut base = (*self.base).clone();
        self.subjects.give_up_changes(&mut base);
        if base != *self.base {
            self.base = base.into();
            self.base_is_settled = false;
            self.settled = None;
        }
    }
}
