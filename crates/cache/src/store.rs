//! The store: what is kept, what may be served, and what the log does to it.

mod announce;
mod fill;
mod follow;
mod look;
mod memory;
mod project;
mod remove;
mod verify;
mod within;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_topology::GtidSet;

use crate::admission::Sights;
pub(crate) use verify::Check;
pub use verify::Verified;
use verify::Verify;

use crate::entry::{Slot, State, Token, Waiting};
use crate::slab::Slab;
use crate::statements::{Statement, Statements, Totals};
use crate::subjects::Subjects;
use crate::{Cause, Definitions, Miss, Never, Options, Refused, Rule, Subject, Touch};

/// A hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The answer's packets, as they were stored.
    pub bytes: Arc<[u8]>,
    /// How many rows they have.
    pub rows: u64,
    /// What the session has seen with it: add it to what its reads must see (rule 4).
    pub seen: GtidSet,
}

/// A fill that may begin.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun {
    /// The caller reads it from a server, and gives the token back.
    Lead(Token),
    /// Somebody reads it: wait for that, and look again.
    Wait(Waiting),
}

/// What to do about a miss.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Find out what the result depends on, and begin a fill.
    Fill,
    /// Somebody reads it: wait for that, and look again.
    Wait(Waiting),
}

/// A result that a fill has read.
#[derive(Clone, Debug)]
pub struct Finished<'a> {
    /// P: a position of the server that was known before the SELECT was sent.
    pub lower: &'a GtidSet,
    /// Q: a position of the server that was learnt after the result had ended.
    pub upper: &'a GtidSet,
    /// The answer's packets.
    pub bytes: Arc<[u8]>,
    /// How many rows they have.
    pub rows: u64,
    /// What the server has spent on it.
    pub cost: Duration,
}

/// How a fill has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether the result was kept.
    pub kept: Result<(), Refused>,
    /// How many wait, and look again now.
    pub waiters: u32,
}

/// What a transaction has done to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Entries that it has removed.
    pub removed: usize,
}

/// Whether a follower goes on where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// Entries were kept.
    Kept,
    /// It must begin anew: call [`Store::follow`].
    Dropped,
}

/// An XA transaction: format, gtrid and bqual in one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XaId(Box<[u8]>);

impl XaId {
    /// From its parts.
    pub fn new(format: u32, gtrid: &[u8], bqual: &[u8]) -> Self {
        let head = [&format.to_le_bytes()[..], &[gtrid.len() as u8]].concat();
        Self([&head, gtrid, bqual].concat().into())
    }
}

/// The state of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    Stopped,
    /// When something was last heard of it.
    Followed {
        heard: Instant,
    },
}

/// Results, and what of the log decides on them.
#[derive(Debug)]
pub struct Store {
    options: Options,
    log: Log,
    /// F.
    applied: GtidSet,
    /// Writes that the log has not told of.
    announced: announce::Announced,
    /// What P must have whatever its tables: what all servers in use are known to have, and Changes that are
    /// not kept apart. What F began with is among these.
    base: Arc<GtidSet>,
    /// Whether all servers in use are known to have the base.
    base_is_settled: bool,
    /// What all servers in use were known to have when that was looked at last; none where the base has grown since.
    settled: Option<GtidSet>,
    /// Which server's history F is part of.
    incarnation: Box<[u8]>,
    subjects: Subjects,
    slots: Slab<Slot>,
    by_key: HashMap<Arc<[u8]>, u32>,
    /// Results by rank, the least worth first.
    ranks: BTreeSet<(u64, u32)>,
    /// The rank of what was last evicted.
    clock: u64,
    fills: usize,
    /// How many slots are served for a time.
    timed: usize,
    /// Bytes of all slots.
    slots_weight: usize,
    sights: Sights,
    statements: Statements,
    /// Prepared transactions, with what they touched.
    prepared: HashMap<XaId, Vec<Touch>>,
    prepared_heap: usize,
    verify: Verify,
    /// What tables are.
    definitions: Arc<Definitions>,
    /// Counts up with each change of them.
    definitions_version: u64,
    /// The definitions are those of that version.
    are_defined: bool,
    /// Tables whose definitions may have changed without a word in the log.
    doubtful: HashSet<Subject>,
    /// What a test has this store break.
    #[cfg(test)]
    pub(crate) broken: Option<Rule>,
}

/// About how many keys a first sight is remembered of, for each byte of memory.
const SIGHT_BYTES: usize = 1024;

impl Store {
    /// A store that serves nothing until a follower begins.
    pub fn new(options: Options) -> Self {
        let empty = GtidSet::new(millrace_topology::Family::MySql);
        let sights = (options.memory / SIGHT_BYTES).clamp(64, 1 << 20);
        Self {
            log: Log::Stopped,
            applied: empty.clone(),
            announced: announce::Announced::new(empty.clone()),
            base: Arc::new(empty.clone()),
            base_is_settled: false,
            settled: None,
            incarnation: Box::default(),
            subjects: Subjects::new(options.changes_by_key_max, empty),
            slots: Slab::default(),
            by_key: HashMap::new(),
            ranks: BTreeSet::new(),
            clock: 0,
            fills: 0,
            timed: 0,
            slots_weight: 0,
            sights: Sights::new(sights),
            statements: Statements::new(options.statements_max),
            prepared: HashMap::new(),
            prepared_heap: 0,
            verify: Verify::default(),
            definitions: Arc::default(),
            definitions_version: 0,
            are_defined: false,
            doubtful: HashSet::new(),
            options,
            #[cfg(test)]
            broken: None,
        }
    }

    /// Whether a rule is broken on purpose.
    fn breaks(&self, rule: Rule) -> bool {
        #[cfg(test)]
        let in_test = self.broken == Some(rule);
        #[cfg(not(test))]
        let in_test = false;
        in_test || rule.is_broken()
    }

    /// F.
    pub fn applied(&self) -> &GtidSet {
        &self.applied
    }

    /// What a server must have before it comes into use: sessions have seen it without knowing.
    pub fn base(&self) -> &GtidSet {
        &self.base
    }

    #[cfg(test)]
    pub(crate) fn timed_slots(&self) -> usize {
        self.timed
    }

    /// How many results there are.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Figures of all statements together.
    pub fn totals(&self) -> &Totals {
        self.statements.totals()
    }

    /// Figures of one statement, if it has come and there was place for it.
    pub fn statement(&self, digest: u64) -> Option<&Statement> {
        self.statements.get(digest)
    }

    /// Figures of each statement.
    pub fn statements(&self) -> impl Iterator<Item = (u64, &Statement)> {
        self.statements.iter()
    }

    /// Tables and rights, and how many results depend on each.
    pub fn subjects(&self) -> impl Iterator<Item = (&Subject, usize)> {
        self.subjects.iter()
    }

    /// Notes that a statement could not be cached as it was.
    pub fn note_never(&mut self, digest: u64, reason: Never) {
        self.statements.never(digest, reason);
    }

    /// For how long nothing was heard of the log; none where it is not followed.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        match self.log {
            Log::Stopped => None,
            Log::Followed { heard } => Some(now.saturating_duration_since(heard)),
        }
    }

    /// Why nothing is served now.
    pub fn not_serving(&self, now: Instant) -> Option<Miss> {
        self.stopped(now)
    }

    fn stopped(&self, now: Instant) -> Option<Miss> {
        match self.log {
            Log::Stopped => Some(Miss::Stopped),
            Log::Followed { heard } => {
                let silence = now.saturating_duration_since(heard);
                (silence > self.options.max_silence).then_some(Miss::Silent)
            }
        }
    }

    /// Removes a slot and its interest.
    fn remove_slot(&mut self, at: u32) -> Option<Slot> {
        let slot = self.slots.remove(at)?;
        self.by_key.remove(&slot.key);
        for (subject, scope) in &slot.accesses {
            self.subjects.unwatch(*subject, scope, at);
        }
        self.slots_weight = self.slots_weight.saturating_sub(slot.weight);
        self.timed -= usize::from(slot.ttl.is_some());
        match &slot.state {
            State::Filling(_) => self.fills = self.fills.saturating_sub(1),
            State::Stored(stored) => {
                self.ranks.remove(&(stored.rank, at));
            }
        }
        Some(slot)
    }

    /// Removes a result, with its figures.
    fn remove_entry(&mut self, at: u32, cause: Cause, now: Instant) {
        if let Some(slot) = self.remove_slot(at)
            && let State::Stored(stored) = &slot.state
        {
            let bytes = stored.bytes.len();
            self.statements
                .removed(slot.statement, cause, bytes, stored.hits, now);
        }
    }

    /// Weighs a slot again, after its state has changed.
    fn weigh_again(&mut self, at: u32) {
        if let Some(slot) = self.slots.get_mut(at) {
            let weight = slot.weigh();
            self.slots_weight = (self.slots_weight + weight).saturating_sub(slot.weight);
            slot.weight = weight;
        }
    }
}
