//! Results that are served for a time, whatever changes: somebody has said that they may be old. Neither the log nor any
//! position counts for them. They go when their time is over, with the rights of accounts, and by FLUSH CACHE.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_topology::GtidSet;

use super::{Begun, Ended, Hit, Store};
use crate::entry::{State, Stored, Token};
use crate::{Cause, Miss, NoFill, Refused};

impl Store {
    /// The result of a key, if its time is not over. The key must say for how long, so that no other one is found.
    pub fn look_within(&mut self, key: &[u8], now: Instant) -> Result<Hit, Miss> {
        let at = *self.by_key.get(key).ok_or(Miss::Absent)?;
        let slot = self.slots.get_mut(at).ok_or(Miss::Absent)?;
        let ttl = slot.ttl.ok_or(Miss::Absent)?;
        let State::Stored(stored) = &mut slot.state else {
            return Err(Miss::Filling);
        };
        if now.saturating_duration_since(stored.since) >= ttl {
            self.remove_entry(at, Cause::Expired, now);
            return Err(Miss::Absent);
        }
        stored.hits += 1;
        let (bytes, rows, cost) = (stored.bytes.clone(), stored.rows, stored.cost);
        self.statements.hit(slot.statement, cost);
        Ok(Hit {
            bytes,
            rows,
            seen: GtidSet::new(self.applied.family()),
        })
    }

    /// Begins a fill after a miss, before the SELECT is sent. Counts the miss; none where it was counted before a
    /// wait. `ttl`: for how long the result is served.
    pub fn begin_within(
        &mut self,
        digest: u64,
        key: &[u8],
        ttl: Duration,
        missed: Option<Miss>,
        now: Instant,
    ) -> Result<Begun, NoFill> {
        if let Some(missed) = missed {
            self.statements.missed(digest, missed);
        }
        let begun = self.try_within(digest, key, ttl, now);
        if let Err(reason) = &begun {
            self.statements.not_filled(digest, *reason);
        }
        begun
    }

    fn try_within(
        &mut self,
        digest: u64,
        key: &[u8],
        ttl: Duration,
        now: Instant,
    ) -> Result<Begun, NoFill> {
        if let Some(waiting) = self.may_wait(digest, key, now)? {
            return Ok(Begun::Wait(waiting));
        }
        if let Some(at) = self.by_key.get(key).copied() {
            self.give_up(at, now);
        }
        if self.options.second_use && !self.sights.see(key) {
            return Err(NoFill::FirstSight);
        }
        if self.fills >= self.options.fills_max {
            return Err(NoFill::TooManyFills);
        }
        Ok(Begun::Lead(self.lead(digest, key, &[], Some(ttl), now)))
    }

    /// Ends such a fill with the result that was read. Its time begins when it ends.
    pub fn finish_within(
        &mut self,
        token: Token,
        (bytes, rows): (Arc<[u8]>, u64),
        cost: Duration,
        now: Instant,
    ) -> Ended {
        let (statement, slot) = (token.statement, token.slot);
        let waiters = self.filling(&token).map(|filling| filling.waiters.len());
        let is_timed = self.slots.get(slot).is_some_and(|slot| slot.ttl.is_some());
        let kept = if waiters.is_none() || !is_timed {
            Err(Refused::Dropped)
        } else if bytes.len() > self.options.entry_max {
            Err(Refused::TooLarge)
        } else {
            let stored = Stored {
                bytes,
                rows,
                since: now,
                ahead: None,
                until: None,
                cost,
                hits: 0,
                ranked_hits: 0,
                rank: 0,
            };
            self.put(slot, statement, stored, now)
        };
        if let Err(reason) = kept {
            self.statements.refused(statement, reason);
            if waiters.is_some() {
                self.remove_slot(slot);
            }
        }
        Ended {
            kept,
            waiters: waiters.unwrap_or(0),
        }
    }

    /// Removes all of them.
    pub(super) fn drop_timed(&mut self, cause: Cause, now: Instant) -> usize {
        if self.timed == 0 {
            return 0;
        }
        let slots = self.slots.iter();
        let timed = slots.filter(|(_, slot)| slot.ttl.is_some());
        let timed: Vec<(u32, bool)> = timed
            .map(|(at, slot)| (at, matches!(slot.state, State::Stored(_))))
            .collect();
        for (at, _) in &timed {
            self.remove_entry(*at, cause, now);
        }
        timed.iter().filter(|(_, is_stored)| *is_stored).count()
    }
}
