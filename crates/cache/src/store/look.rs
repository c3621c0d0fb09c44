//! Looking a key up: rule 4, and what of rule 2 is left for then.

use std::time::Instant;

use millrace_topology::GtidSet;

use super::{Hit, Store};
use crate::entry::State;
use crate::{Miss, NoFill};

impl Store {
    /// The result of a key, if a session may be served it that must see `required`: R, what it has seen
    /// included. A session of which that is not known must not ask. [`Situation::check`](crate::Situation::check) must
    /// have allowed it.
    ///
    /// A miss is counted where [`Store::wants`] is asked, which needs the digest.
    pub fn look(&mut self, key: &[u8], required: &GtidSet, now: Instant) -> Result<Hit, Miss> {
        let at = *self.by_key.get(key).ok_or(Miss::Absent)?;
        if let Some(reason) = self.stopped(now) {
            return Err(reason);
        }
        let slot = self.slots.get_mut(at).ok_or(Miss::Absent)?;
        let State::Stored(stored) = &mut slot.state else {
            return Err(Miss::Filling);
        };
        // Rule 2: only once F has Q.
        #[cfg(test)]
        if self.broken.serve {
            stored.until = None;
        }
        if let Some(until) = &stored.until {
            if !self.applied.contains(until) {
                return Err(Miss::NotYet);
            }
            stored.until = None;
        }
        // Rule 4: only where F has R.
        let must_wait = !self.applied.contains(required);
        #[cfg(test)]
        let must_wait = must_wait && !self.broken.hit;
        if must_wait {
            return Err(Miss::Behind);
        }
        stored.hits += 1;
        let (bytes, rows, cost) = (stored.bytes.clone(), stored.rows, stored.cost);
        self.statements.hit(slot.statement, cost);
        let hit = Hit {
            bytes,
            rows,
            seen: self.seen(at),
        };
        Ok(hit)
    }

    /// Whether a key that was not served is worth a fill, as far as that is known without its tables. Counts the miss.
    pub fn wants(
        &mut self,
        digest: u64,
        key: &[u8],
        missed: Miss,
        now: Instant,
    ) -> Result<(), NoFill> {
        self.statements.missed(digest, missed);
        let wanted = self.is_wanted(digest, key, now);
        if let Err(reason) = &wanted {
            self.statements.not_filled(digest, *reason);
        }
        wanted
    }

    fn is_wanted(&mut self, digest: u64, key: &[u8], now: Instant) -> Result<(), NoFill> {
        if self.stopped(now).is_some() {
            return Err(NoFill::Stopped);
        }
        if self.statements.rests(digest, now) {
            return Err(NoFill::Resting);
        }
        if self.options.second_use && !self.sights.see(key) {
            return Err(NoFill::FirstSight);
        }
        Ok(())
    }

    /// The Changes of all that a slot depends on: a session that was served it has seen them.
    fn seen(&self, at: u32) -> GtidSet {
        let mut seen = GtidSet::new(self.applied.family());
        #[cfg(test)]
        if self.broken.seen {
            return seen;
        }
        if !self.base_is_settled {
            seen.union(&self.base);
        }
        if let Some(slot) = self.slots.get(at) {
            for (subject, scope) in &slot.accesses {
                self.subjects.add_changes(*subject, scope, &mut seen);
            }
        }
        seen
    }
}
