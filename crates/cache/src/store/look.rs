//! Looking a key up: rule 4, and what of rule 2 is left for then.

use std::time::{Duration, Instant};

use millrace_topology::GtidSet;

use super::{Hit, Store, Wanted};
use crate::entry::{State, Waiting};
use crate::{Miss, NoFill, Rule};

impl Store {
    /// The result of a key, if a session may be served it that must see all of `required`: R, what it has seen
    /// included. A session of which that is not known must not ask. [`Situation::check`](crate::Situation::check) must
    /// have allowed it.
    ///
    /// A miss is counted where [`Store::wants`] is asked, which needs the digest.
    pub fn look(&mut self, key: &[u8], required: &[&GtidSet], now: Instant) -> Result<Hit, Miss> {
        let at = self.servable(key, required, now)?;
        let slot = self.slots.get_mut(at).ok_or(Miss::Absent)?;
        let State::Stored(stored) = &mut slot.state else {
            return Err(Miss::Filling);
        };
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

    /// The place of a result that such a session may be served.
    pub(super) fn servable(
        &mut self,
        key: &[u8],
        required: &[&GtidSet],
        now: Instant,
    ) -> Result<u32, Miss> {
        let at = *self.by_key.get(key).ok_or(Miss::Absent)?;
        if let Some(reason) = self.stopped(now) {
            return Err(reason);
        }
        let serves_early = self.breaks(Rule::Serve);
        let slot = self.slots.get_mut(at).ok_or(Miss::Absent)?;
        if slot.ttl.is_some() {
            return Err(Miss::Absent);
        }
        let State::Stored(stored) = &mut slot.state else {
            return Err(Miss::Filling);
        };
        // Rule 2: only once F has Q.
        if let Some(until) = &stored.until {
            if !self.applied.contains(until) && !serves_early {
                return Err(Miss::NotYet);
            }
            stored.until = None;
        }
        // Rule 4: only where F has R, or lacks nothing of it on what the result depends on.
        let lacks = |known: &GtidSet| required.iter().any(|set| !known.contains(set));
        if !lacks(&self.applied) || self.breaks(Rule::Hit) {
            return Ok(at);
        }
        if lacks(self.announced.reached()) {
            return Err(Miss::Behind);
        }
        match self.is_written(at) && !self.breaks(Rule::Announced) {
            true => Err(Miss::Written),
            false => Ok(at),
        }
    }

    /// Whether a write was announced on something that a slot depends on. Not only those of R: what a session must see may
    /// rest on others before.
    fn is_written(&self, at: u32) -> bool {
        let accesses = self.slots.get(at).map(|slot| &slot.accesses);
        let mut accesses = accesses.into_iter().flatten();
        accesses.any(|(number, scope)| {
            let subject = self.subjects.subject(*number);
            subject.is_none_or(|subject| self.announced.has(subject, scope))
        })
    }

    /// What a server spent on the result of a key, which some session may be served now or in a moment. None where there is
    /// no such result.
    pub fn cost(&self, key: &[u8]) -> Option<Duration> {
        let slot = self.by_key.get(key).and_then(|at| self.slots.get(*at))?;
        match &slot.state {
            State::Stored(stored) => Some(stored.cost),
            State::Filling(_) => None,
        }
    }

    /// Whether a key that was not served is worth a fill, as far as that is known without its tables, or a wait for
    /// the one under way. Counts the miss; none where it was counted before the wait.
    pub fn wants(
        &mut self,
        digest: u64,
        key: &[u8],
        missed: Option<Miss>,
        now: Instant,
    ) -> Result<Wanted, NoFill> {
        if let Some(missed) = missed {
            self.statements.missed(digest, missed);
        }
        let wanted = match missed {
            Some(Miss::Filling) => self.may_wait(digest, key, now),
            _ => Ok(None),
        };
        let wanted = match wanted {
            Ok(Some(waiting)) => Ok(Wanted::Wait(waiting)),
            Ok(None) => self.is_wanted(digest, key, now).map(|()| Wanted::Fill),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = &wanted {
            self.statements.not_filled(digest, *reason);
        }
        wanted
    }

    pub(super) fn may_wait(
        &mut self,
        digest: u64,
        key: &[u8],
        now: Instant,
    ) -> Result<Option<Waiting>, NoFill> {
        match self.by_key.get(key).copied() {
            Some(at) => self.join(at, digest, now),
            None => Ok(None),
        }
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
        if self.breaks(Rule::Seen) {
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
