//! Figures of each statement, by its digest, and of all together. Decides when a statement whose results change
//! before they are used is not filled for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::{Cause, Miss, Never, NoFill, Refused};

/// So many results in a row that were removed before their first hit make a statement rest.
const WASTED_MAX: u32 = 8;

/// The first rest; it doubles with each further wasted result.
const REST_FIRST: Duration = Duration::from_secs(1);

/// Longest rest, as doublings of the first.
const DOUBLINGS_MAX: u32 = 6;

/// Figures of one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// Look-ups that were served.
    pub hits: u64,
    /// Results that were kept.
    pub fills: u64,
    /// Bytes of its results that are kept now.
    pub bytes: u64,
    /// What the servers would have spent on what was served.
    pub saved: Duration,
    misses: [u64; Miss::ALL.len()],
    not_filled: [u64; NoFill::ALL.len()],
    refused: [u64; Refused::ALL.len()],
    removed: [u64; Cause::ALL.len()],
    never: [u64; Never::ALL.len()],
    last_never: Option<Never>,
    /// What its server spent on the last result, where that was kept.
    last_cost: Option<Duration>,
    /// Waits for a fill, and those of them that were served then.
    waits: u64,
    waits_served: u64,
    wasted: u32,
    rests_until: Option<Instant>,
}

impl Statement {
    /// Look-ups that gave nothing, of all reasons.
    pub fn misses(&self) -> u64 {
        self.misses.iter().sum()
    }

    /// Look-ups that gave nothing for this reason.
    pub fn missed(&self, reason: Miss) -> u64 {
        self.misses[reason as usize]
    }

    /// Misses that did not fill for this reason.
    pub fn not_filled(&self, reason: NoFill) -> u64 {
        self.not_filled[reason as usize]
    }

    /// Results that were not kept for this reason.
    pub fn refused(&self, reason: Refused) -> u64 {
        self.refused[reason as usize]
    }

    /// Entries that this has removed.
    pub fn removed(&self, cause: Cause) -> u64 {
        self.removed[cause as usize]
    }

    /// How often it could not be cached as it was.
    pub fn never(&self, reason: Never) -> u64 {
        self.never[reason as usize]
    }

    /// Why it could not be cached when it last came so.
    pub fn last_never(&self) -> Option<Never> {
        self.last_never
    }

    /// How often somebody waited for a fill.
    pub fn waits(&self) -> u64 {
        self.waits
    }

    /// How often such a wait ended with the result.
    pub fn waits_served(&self) -> u64 {
        self.waits_served
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    fn removed_one(&mut self, cause: Cause, bytes: u64, hits: u64, now: Instant) {
        self.removed[cause as usize] += 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        if hits > 0 || !matches!(cause, Cause::Key | Cause::Table) {
            return;
        }
        self.wasted = self.wasted.saturating_add(1);
        if let Some(over) = self.wasted.checked_sub(WASTED_MAX) {
            self.rests_until = Some(now + REST_FIRST * (1 << over.min(DOUBLINGS_MAX)));
        }
    }
}

/// Figures of all statements together: the same ones.
pub type Totals = Statement;

/// All statements.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    all: HashMap<u64, Statement>,
    totals: Totals,
    max: usize,
}

impl Statements {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            ..Self::default()
        }
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(crate) fn get(&self, digest: u64) -> Option<&Statement> {
        self.all.get(&digest)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Statement)> {
        self.all
            .iter()
            .map(|(digest, statement)| (*digest, statement))
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.all.capacity() * (size_of::<(u64, Statement)>() + 1)
    }

    /// Of the statement, where there is place for it, and of all.
    fn both(&mut self, digest: u64, mut change: impl FnMut(&mut Statement)) {
        change(&mut self.totals);
        if self.all.len() < self.max || self.all.contains_key(&digest) {
            change(self.all.entry(digest).or_default());
        }
    }

    pub(crate) fn hit(&mut self, digest: u64, saved: Duration) {
        self.both(digest, |statement| {
            statement.hits += 1;
            statement.saved += saved;
            statement.wasted = 0;
            statement.rests_until = None;
        });
    }

    pub(crate) fn missed(&mut self, digest: u64, reason: Miss) {
        self.both(digest, |statement| statement.misses[reason as usize] += 1);
    }

    /// A result that could have been served is read again.
    pub(crate) fn checked(&mut self, digest: u64) {
        self.both(digest, |statement| {
            statement.misses[Miss::Checked as usize] += 1;
            statement.wasted = 0;
            statement.rests_until = None;
        });
    }

    pub(crate) fn not_filled(&mut self, digest: u64, reason: NoFill) {
        self.both(digest, |statement| {
            statement.not_filled[reason as usize] += 1;
        });
    }

    pub(crate) fn refused(&mut self, digest: u64, reason: Refused) {
        self.both(digest, |statement| {
            statement.refused[reason as usize] += 1;
            statement.last_cost = None;
        });
    }

    pub(crate) fn never(&mut self, digest: u64, reason: Never) {
        self.both(digest, |statement| {
            statement.never[reason as usize] += 1;
            statement.last_never = Some(reason);
        });
    }

    /// What a server spent on the statement the last time; none where that result was not kept.
    pub(crate) fn last_cost(&self, digest: u64) -> Option<Duration> {
        self.all.get(&digest)?.last_cost
    }

    /// A wait for a fill has ended.
    pub(crate) fn waited(&mut self, digest: u64, is_served: bool) {
        self.both(digest, |statement| {
            statement.waits += 1;
            statement.waits_served += u64::from(is_served);
        });
    }

    pub(crate) fn filled(&mut self, digest: u64, bytes: usize, cost: Duration) {
        self.both(digest, |statement| {
            statement.fills += 1;
            statement.last_cost = Some(cost);
            statement.bytes += bytes as u64;
        });
    }

    pub(crate) fn removed(
        &mut self,
        digest: u64,
        cause: Cause,
        bytes: usize,
        hits: u64,
        now: Instant,
    ) {
        self.both(digest, |statement| {
            statement.removed_one(cause, bytes as u64, hits, now);
        });
    }

    /// Whether the statement is not to be filled now.
    pub(crate) fn rests(&self, digest: u64, now: Instant) -> bool {
        self.all
            .get(&digest)
            .is_some_and(|statement| statement.rests(now))
    }
}
