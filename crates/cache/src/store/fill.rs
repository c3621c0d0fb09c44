//! Filling a key: who does, and whether the result is kept (rule 2).

use std::sync::Arc;
use std::time::Instant;

use millrace_topology::GtidSet;

use super::{Begun, Ended, Finished, Store};
use crate::entry::{Accesses, Filling, Slot, State, Stored, Token};
use crate::{Access, Cause, NoFill, Refused};

impl Store {
    /// Begins a fill after a miss, before the SELECT is sent. `accesses` names everything that the result depends on.
    /// [`Situation::check`](crate::Situation::check) must have allowed it (rules 1 and 5). `version`: of the
    /// definitions by which the accesses were found ([`Store::definitions`]).
    pub fn begin_fill(
        &mut self,
        digest: u64,
        key: &[u8],
        accesses: &[Access],
        version: u64,
        now: Instant,
    ) -> Result<Begun, NoFill> {
        let begun = match self.definitions() {
            Some((_, now_in_force)) if now_in_force == version => {
                self.try_begin(digest, key, accesses, now)
            }
            _ => Err(NoFill::Undefined),
        };
        if let Err(reason) = &begun {
            self.statements.not_filled(digest, *reason);
        }
        begun
    }

    fn try_begin(
        &mut self,
        digest: u64,
        key: &[u8],
        accesses: &[Access],
        now: Instant,
    ) -> Result<Begun, NoFill> {
        if self.stopped(now).is_some() {
            return Err(NoFill::Stopped);
        }
        if let Some(at) = self.by_key.get(key).copied() {
            match self.join(at, now)? {
                true => return Ok(Begun::Wait),
                false => self.give_up(at, now),
            }
        }
        if self.statements.rests(digest, now) {
            return Err(NoFill::Resting);
        }
        if self.options.second_use && !self.sights.see(key) {
            return Err(NoFill::FirstSight);
        }
        if self.fills >= self.options.fills_max {
            return Err(NoFill::TooManyFills);
        }
        Ok(Begun::Lead(self.lead(digest, key, accesses, now)))
    }

    /// Waits for the fill of this slot: true. False where it has taken too long, and another may lead. So it is
    /// with a result that the log never allows to be served, because its server has transactions of its own.
    fn join(&mut self, at: u32, now: Instant) -> Result<bool, NoFill> {
        let Some(slot) = self.slots.get_mut(at) else {
            return Ok(false);
        };
        let filling = match &mut slot.state {
            State::Filling(filling) => filling,
            State::Stored(stored) => {
                let is_pending = stored.until.is_some();
                let age = now.saturating_duration_since(stored.since);
                if is_pending && age > self.options.fill_max {
                    return Ok(false);
                }
                return Err(NoFill::Present);
            }
        };
        if now.saturating_duration_since(filling.begun) > self.options.fill_max {
            return Ok(false);
        }
        if filling.waiters >= self.options.waiters_max {
            return Err(NoFill::Crowded);
        }
        filling.waiters += 1;
        Ok(true)
    }

    /// Removes a fill or a result that stands in the way.
    fn give_up(&mut self, at: u32, now: Instant) {
        let is_fill = self
            .slots
            .get(at)
            .is_some_and(|slot| matches!(slot.state, State::Filling(_)));
        if is_fill {
            self.remove_slot(at);
        } else {
            self.remove_entry(at, Cause::Evicted, now);
        }
    }

    fn lead(&mut self, digest: u64, key: &[u8], accesses: &[Access], now: Instant) -> Token {
        let key: Arc<[u8]> = key.into();
        let at = self.slots.insert(Slot {
            key: key.clone(),
            statement: digest,
            accesses: Accesses::default(),
            state: State::Filling(Box::new(Filling {
                begun: now,
                must: GtidSet::new(self.applied.family()),
                base: self.base.clone(),
                waiters: 0,
            })),
            weight: 0,
        });
        self.by_key.insert(key, at);
        self.fills += 1;
        let mut must = GtidSet::new(self.applied.family());
        let mut watched = Vec::with_capacity(accesses.len());
        for access in accesses {
            let subject = self.subjects.watch(&access.subject, &access.scope, at);
            // Rule 2: the Changes when it begins. Those that come later are added as they come, so that none is
            // missed that settles in between.
            self.subjects.add_changes(subject, &access.scope, &mut must);
            watched.push((subject, access.scope.clone()));
        }
        if let Some(slot) = self.slots.get_mut(at) {
            slot.accesses = watched.into();
            if let State::Filling(filling) = &mut slot.state {
                filling.must = must;
            }
        }
        self.weigh_again(at);
        self.make_room(now);
        Token {
            slot: at,
            generation: self.slots.generation(at),
            statement: digest,
        }
    }

    /// Ends a fill without a result: the statement failed, or its connection. It blocks nobody: returns how many
    /// wait, and go to a server each.
    pub fn abandon(&mut self, token: Token) -> u32 {
        match self.filling(&token) {
            Some(filling) => {
                let waiters = filling.waiters;
                self.remove_slot(token.slot);
                waiters
            }
            None => 0,
        }
    }

    fn filling(&self, token: &Token) -> Option<&Filling> {
        if self.slots.generation(token.slot) != token.generation {
            return None;
        }
        match &self.slots.get(token.slot)?.state {
            State::Filling(filling) => Some(filling),
            State::Stored(_) => None,
        }
    }

    /// Ends a fill with the result that was read.
    pub fn finish(&mut self, token: Token, result: Finished<'_>, now: Instant) -> Ended {
        let (statement, slot) = (token.statement, token.slot);
        let Some(filling) = self.filling(&token) else {
            self.statements.refused(statement, Refused::Dropped);
            return Ended {
                kept: Err(Refused::Dropped),
                waiters: 0,
            };
        };
        let waiters = filling.waiters;
        let kept = self
            .check(filling, &result)
            .and_then(|()| self.keep(slot, statement, result, now));
        if let Err(reason) = kept {
            self.statements.refused(statement, reason);
            self.remove_slot(slot);
        }
        Ended { kept, waiters }
    }

    /// Rule 2: P has all Changes.
    fn check(&self, filling: &Filling, result: &Finished<'_>) -> Result<(), Refused> {
        if result.bytes.len() > self.options.entry_max {
            return Err(Refused::TooLarge);
        }
        let positions = [result.lower, result.upper];
        if positions
            .iter()
            .any(|set| !set.is_comparable(&self.applied))
        {
            return Err(Refused::Incomparable);
        }
        let has_all = result.lower.contains(&filling.base) && result.lower.contains(&filling.must);
        #[cfg(test)]
        let has_all = has_all || self.broken.keep;
        if has_all { Ok(()) } else { Err(Refused::Stale) }
    }

    fn keep(
        &mut self,
        at: u32,
        statement: u64,
        result: Finished<'_>,
        now: Instant,
    ) -> Result<(), Refused> {
        let mut ahead = result.lower.clone();
        ahead.subtract(&self.applied);
        let until = match self.applied.contains(result.upper) {
            true => None,
            false => Some(Box::new(result.upper.clone())),
        };
        let bytes = result.bytes.len();
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(Refused::Dropped);
        };
        slot.state = State::Stored(Stored {
            bytes: result.bytes,
            rows: result.rows,
            since: now,
            ahead: (!ahead.is_empty()).then(|| Box::new(ahead)),
            until,
            cost: result.cost,
            hits: 0,
            ranked_hits: 0,
            rank: 0,
        });
        self.fills = self.fills.saturating_sub(1);
        self.weigh_again(at);
        self.rank(at);
        if !self.make_room_for(at, now) {
            return Err(Refused::NotWorthIt);
        }
        self.statements.filled(statement, bytes);
        Ok(())
    }
}
