//! One key's place: a fill under way, and then the result.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use millrace_topology::GtidSet;

use crate::scope::Scope;
use crate::store::Check;

/// A fill that was begun. It must be given back: by [`Store::finish`](crate::Store::finish) or
/// [`Store::abandon`](crate::Store::abandon).
#[derive(Debug, PartialEq, Eq)]
pub struct Token {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) statement: u64,
    /// The result is not to be kept, but to be compared with the entry of the slot.
    pub(crate) check: Option<Box<Check>>,
}

/// A place among those that wait for a fill: [`Store::wait_for_fill`](crate::Store::wait_for_fill).
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) place: usize,
    /// The statement, by its digest.
    pub statement: u64,
    /// It waits no longer than this.
    pub until: Instant,
}

/// What a key's result depends on: subjects by their numbers.
pub(crate) type Accesses = Box<[(u32, Scope)]>;

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) key: Arc<[u8]>,
    pub(crate) statement: u64,
    pub(crate) accesses: Accesses,
    /// It is served for so long, whatever changes; none where it must be exact.
    pub(crate) ttl: Option<Duration>,
    pub(crate) state: State,
    /// Bytes that it is counted with.
    pub(crate) weight: usize,
}

#[derive(Debug)]
pub(crate) enum State {
    Filling(Box<Filling>),
    Stored(Stored),
}

/// A fill under way.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) begun: Instant,
    /// What P must have: Changes when it began, and what came since (rule 2).
    pub(crate) must: GtidSet,
    /// And this, of which no change is kept apart.
    pub(crate) base: Arc<GtidSet>,
    pub(crate) waiters: Waiters,
}

/// All that wait for a fill. They are woken when it ends, however it ends.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Option<Waker>>);

impl Waiters {
    /// Those that have come; one that has left counts until the fill ends.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// One more: its place.
    pub(crate) fn join(&mut self) -> usize {
        self.0.push(None);
        self.0.len() - 1
    }

    /// Whom to wake at a place.
    pub(crate) fn register(&mut self, place: usize, waker: &Waker) {
        if let Some(waiter) = self.0.get_mut(place) {
            *waiter = Some(waker.clone());
        }
    }

    fn heap(&self) -> usize {
        self.0.capacity() * size_of::<Option<Waker>>()
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        for waker in self.0.drain(..).flatten() {
            waker.wake();
        }
    }
}

/// A result.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) rows: u64,
    pub(crate) since: Instant,
    /// Of P, what F did not have when it was stored (rule 3).
    pub(crate) ahead: Option<Box<GtidSet>>,
    /// Q, until F has it (rule 2).
    pub(crate) until: Option<Box<GtidSet>>,
    /// What its server spent on it.
    pub(crate) cost: Duration,
    pub(crate) hits: u64,
    /// Its hits when it was last ranked, and its rank.
    pub(crate) ranked_hits: u64,
    pub(crate) rank: u64,
}

/// Bytes of a slot's place in the order of ranks, with what its nodes keep free.
const RANK: usize = 32;

/// Bytes of one access's interest, with what its nodes keep free.
const INTEREST: usize = 80;

/// Bytes beside what is shared: two counts.
const SHARED: usize = 16;

impl Slot {
    /// Bytes that it takes with its result, beside its places in the slab and in the index of keys.
    pub(crate) fn weigh(&self) -> usize {
        let interest: usize = self
            .accesses
            .iter()
            .map(|(_, scope)| size_of::<(u32, Scope)>() + INTEREST + scope_heap(scope))
            .sum();
        let state = match &self.state {
            State::Filling(filling) => {
                size_of::<Filling>() + filling.must.heap_bytes() + filling.waiters.heap()
            }
            State::Stored(stored) => {
                let positions = [&stored.ahead, &stored.until].into_iter().flatten();
                let heap = |set: &GtidSet| size_of::<GtidSet>() + set.heap_bytes();
                stored.bytes.len() + SHARED + positions.map(|set| heap(set)).sum::<usize>()
            }
        };
        RANK + self.key.len() + SHARED + interest + state
    }
}

/// Twice: the interest has its keys as well.
fn scope_heap(scope: &Scope) -> usize {
    match scope {
        Scope::Whole => 0,
        Scope::Within { interval, .. } => 2 * (interval.lo.heap() + interval.hi.heap()),
    }
}
