//! Filling a key: who does, and whether the result is kept (rule 2).

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use millrace_topology::GtidSet;

use super::{Begun, Ended, Finished, Store};
use crate::entry::{Accesses, Filling, Slot, State, Stored, Token, Waiters, Waiting};
use crate::{Access, Cause, NoFill, Refused, Rule};

/// About how long after its end a result can be served: its server is asked for its position, for several results together,
/// and the log must reach that. Measured on both families: 4 to 5 ms as a rule, 8 ms at most.
const PLACED: Duration = Duration::from_millis(5);

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
            match self.join(at, digest, now)? {
                Some(waiting) => return Ok(Begun::Wait(waiting)),
                None => self.give_up(at, now),
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
        Ok(Begun::Lead(self.lead(digest, key, accesses, None, now)))
    }

    /// Joins those that wait for the fill of this slot. None where it has taken too long, and another may lead. So it
    /// is with a result that the log never allows to be served, because its server has transactions of its own.
    pub(super) fn join(
        &mut self,
        at: u32,
        digest: u64,
        now: Instant,
    ) -> Result<Option<Waiting>, NoFill> {
        let Some(slot) = self.slots.get_mut(at) else {
            return Ok(None);
        };
        let filling = match &mut slot.state {
            State::Filling(filling) => filling,
            State::Stored(stored) => {
                let is_pending = stored.until.is_some();
                let age = now.saturating_duration_since(stored.since);
                if is_pending && age > self.options.fill_max {
                    return Ok(None);
                }
                return Err(NoFill::Present);
            }
        };
        if now.saturating_duration_since(filling.begun) > self.options.fill_max {
            return Ok(None);
        }
        if filling.waiters.len() >= self.options.waiters_max {
            return Err(NoFill::Crowded);
        }
        // A wait takes up to PLACED longer than to ask a server: so only what takes long itself is waited for, and
        // only where the last result was kept.
        let cost = self.statements.last_cost(digest);
        let cost = cost.filter(|cost| *cost >= self.options.wait_cost_min);
        let expected = cost.map(|cost| filling.begun + cost + cost / 2 + PLACED);
        let until = expected.map(|end| end.min(now + self.options.wait_max));
        let until = until.filter(|until| *until > now);
        let until = until.ok_or(NoFill::QuickerAsked)?;
        let place = filling.waiters.join();
        self.weigh_again(at);
        Ok(Some(Waiting {
            slot: at,
            generation: self.slots.generation(at),
            place,
            statement: digest,
            until,
        }))
    }

    /// Whether the fill has ended, well or not. Where it has not, `waker` is woken when it does.
    pub fn wait_for_fill(&mut self, waiting: &Waiting, waker: &Waker) -> bool {
        if self.slots.generation(waiting.slot) != waiting.generation {
            return true;
        }
        match self.slots.get_mut(waiting.slot).map(|slot| &mut slot.state) {
            Some(State::Filling(filling)) => {
                filling.waiters.register(waiting.place, waker);
                false
            }
            _ => true,
        }
    }

    /// Counts a wait that has ended. `is_served`: with the result.
    pub fn note_waited(&mut self, waiting: &Waiting, is_served: bool) {
        self.statements.waited(waiting.statement, is_served);
    }

    /// Removes a fill or a result that stands in the way.
    pub(super) fn give_up(&mut self, at: u32, now: Instant) {
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

    pub(super) fn lead(
        &mut self,
        digest: u64,
        key: &[u8],
        accesses: &[Access],
        ttl: Option<Duration>,
        now: Instant,
    ) -> Token {
        let key: Arc<[u8]> = key.into();
        let at = self.slots.insert(Slot {
            key: key.clone(),
            statement: digest,
            accesses: Accesses::default(),
            ttl,
            state: State::Filling(Box::new(Filling {
                begun: now,
                must: GtidSet::new(self.applied.family()),
                base: self.base.clone(),
                waiters: Waiters::default(),
            })),
            weight: 0,
        });
        self.by_key.insert(key, at);
        self.fills += 1;
        self.timed += usize::from(ttl.is_some());
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
            check: None,
        }
    }

    /// Ends a fill without a result: the statement failed, or its connection. It blocks nobody: wakes all that
    /// wait, and returns how many they are.
    pub fn abandon(&mut self, token: Token) -> u32 {
        match self.filling(&token) {
            Some(filling) => {
                let waiters = filling.waiters.len();
                self.remove_slot(token.slot);
                waiters
            }
            None => 0,
        }
    }

    pub(super) fn filling(&self, token: &Token) -> Option<&Filling> {
        if self.slots.generation(token.slot) != token.generation {
            return None;
        }
        match &self.slots.get(token.slot)?.state {
            State::Filling(filling) => Some(filling),
            State::Stored(_) => None,
        }
    }

    /// Ends a fill with the result that was read. One that was read to be compared is not kept.
    pub fn finish(&mut self, token: Token, result: Finished<'_>, now: Instant) -> Ended {
        if let Some(check) = &token.check {
            self.end_check(&token, check, result, now);
            return Ended {
                kept: Err(Refused::Compared),
                waiters: 0,
            };
        }
        let (statement, slot) = (token.statement, token.slot);
        let Some(filling) = self.filling(&token) else {
            self.statements.refused(statement, Refused::Dropped);
            return Ended {
                kept: Err(Refused::Dropped),
                waiters: 0,
            };
        };
        let waiters = filling.waiters.len();
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
        if has_all || self.breaks(Rule::Keep) {
            Ok(())
        } else {
            Err(Refused::Stale)
        }
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
        let stored = Stored {
            bytes: result.bytes,
            rows: result.rows,
            since: now,
            ahead: (!ahead.is_empty()).then(|| Box::new(ahead)),
            until,
            cost: result.cost,
            hits: 0,
            ranked_hits: 0,
            rank: 0,
        };
        self.put(at, statement, stored, now)
    }

    /// Puts a result in the place of its fill.
    pub(super) fn put(
        &mut self,
        at: u32,
        statement: u64,
        stored: Stored,
        now: Instant,
    ) -> Result<(), Refused> {
        let (bytes, cost) = (stored.bytes.len(), stored.cost);
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(Refused::Dropped);
        };
        slot.state = State::Stored(stored);
        self.fills = self.fills.saturating_sub(1);
        self.weigh_again(at);
        self.rank(at);
        if !self.make_room_for(at, now) {
            return Err(Refused::NotWorthIt);
        }
        self.statements.filled(statement, bytes, cost);
        Ok(())
    }
}
