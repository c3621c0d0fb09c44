//! Tables and rights: who depends on each, and its Changes, which some server in use may not have yet.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use millrace_topology::GtidSet;

use crate::intervals::Intervals;
use crate::scope::{IndexKeys, Scope, Subject, Touched, overlaps};
use crate::slab::Slab;

/// A transaction on a subject.
#[derive(Debug)]
struct Change {
    transaction: GtidSet,
    touched: Touched,
}

impl Change {
    fn heap(&self) -> usize {
        let keys = self.touched.iter().flat_map(|touched| touched.iter());
        let of_index = |of_index: &IndexKeys| {
            let heap: usize = of_index.keys.iter().map(|key| key.heap()).sum();
            size_of::<IndexKeys>() + of_index.keys.capacity() * size_of::<crate::Key>() + heap
        };
        size_of::<Self>() + self.transaction.heap_bytes() + keys.map(of_index).sum::<usize>()
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) subject: Subject,
    /// Slots that depend on all of it.
    whole: BTreeSet<u32>,
    by_index: Vec<(u8, Intervals)>,
    /// The last ones apart, oldest first.
    changes: VecDeque<Change>,
    /// Older ones together: each of them may be on any key.
    folded: GtidSet,
}

/// All subjects that somebody depends on or that have Changes.
#[derive(Debug)]
pub(crate) struct Subjects {
    names: HashMap<Subject, u32>,
    states: Slab<State>,
    /// Those that have Changes.
    changed: HashSet<u32>,
    changes_max: usize,
    /// Bytes of all Changes, and of all names.
    changes_heap: usize,
    names_heap: usize,
    empty: GtidSet,
}

impl Subjects {
    pub(crate) fn new(changes_max: usize, empty: GtidSet) -> Self {
        Self {
            names: HashMap::new(),
            states: Slab::default(),
            changed: HashSet::new(),
            changes_max,
            changes_heap: 0,
            names_heap: 0,
            empty,
        }
    }

    /// Bytes on the heap, but for the interest of slots, which count it themselves.
    pub(crate) fn heap(&self) -> usize {
        let names = self.names.capacity() * (size_of::<(Subject, u32)>() + 1);
        names + self.names_heap + self.states.heap() + self.changes_heap
    }

    pub(crate) fn changes_heap(&self) -> usize {
        self.changes_heap
    }

    fn number(&mut self, subject: &Subject) -> u32 {
        if let Some(number) = self.names.get(subject) {
            return *number;
        }
        let number = self.states.insert(State {
            subject: subject.clone(),
            whole: BTreeSet::new(),
            by_index: Vec::new(),
            changes: VecDeque::new(),
            folded: self.empty.clone(),
        });
        self.names.insert(subject.clone(), number);
        self.names_heap += 2 * subject.heap();
        number
    }

    /// The subject of a number.
    pub(crate) fn subject(&self, number: u32) -> Option<&Subject> {
        self.states.get(number).map(|state| &state.subject)
    }

    /// Notes that a slot depends on it, and returns its number.
    pub(crate) fn watch(&mut self, subject: &Subject, scope: &Scope, slot: u32) -> u32 {
        let number = self.number(subject);
        let Some(state) = self.states.get_mut(number) else {
            return number;
        };
        match scope {
            Scope::Whole => {
                state.whole.insert(slot);
            }
            Scope::Within { index, interval } => {
                let at = state.by_index.iter().position(|(known, _)| known == index);
                let at = at.unwrap_or_else(|| {
                    state.by_index.push((*index, Intervals::default()));
                    state.by_index.len() - 1
                });
                state.by_index[at].1.insert(interval, slot);
            }
        }
        number
    }

    /// Takes a slot's dependence back.
    pub(crate) fn unwatch(&mut self, number: u32, scope: &Scope, slot: u32) {
        let Some(state) = self.states.get_mut(number) else {
            return;
        };
        match scope {
            Scope::Whole => {
                state.whole.remove(&slot);
            }
            Scope::Within { index, interval } => {
                for (known, intervals) in &mut state.by_index {
                    if known == index {
                        intervals.remove(interval, slot);
                    }
                }
                state
                    .by_index
                    .retain(|(_, intervals)| !intervals.is_empty());
            }
        }
        self.forget_if_idle(number);
    }

    fn forget_if_idle(&mut self, number: u32) {
        let is_idle = self.states.get(number).is_some_and(|state| {
            state.whole.is_empty()
                && state.by_index.is_empty()
                && state.changes.is_empty()
                && state.folded.is_empty()
        });
        if is_idle && let Some(state) = self.states.remove(number) {
            self.names.remove(&state.subject);
            self.names_heap = self.names_heap.saturating_sub(2 * state.subject.heap());
            self.changed.remove(&number);
        }
    }

    /// The slots that what was touched concerns; may have one twice.
    pub(crate) fn concerned(&self, subject: &Subject, touched: &Touched, out: &mut Vec<u32>) {
        let Some(state) = self.names.get(subject).and_then(|at| self.states.get(*at)) else {
            return;
        };
        out.extend(state.whole.iter());
        for (index, intervals) in &state.by_index {
            let named = touched
                .as_ref()
                .and_then(|touched| touched.iter().find(|of_index| of_index.index == *index));
            match named {
                Some(of_index) => of_index
                    .keys
                    .iter()
                    .for_each(|key| intervals.find(key, out)),
                None => intervals.all(out),
            }
        }
    }

    /// Keeps a transaction as one of the subject's Changes.
    pub(crate) fn change(&mut self, subject: &Subject, transaction: &GtidSet, touched: Touched) {
        let number = self.number(subject);
        let Some(state) = self.states.get_mut(number) else {
            return;
        };
        self.changed.insert(number);
        let change = Change {
            transaction: transaction.clone(),
            touched,
        };
        if change.touched.is_none() {
            // By table: no need to keep it apart.
            let before = state.folded.heap_bytes();
            state.folded.union(&change.transaction);
            self.changes_heap =
                (self.changes_heap + state.folded.heap_bytes()).saturating_sub(before);
            return;
        }
        self.changes_heap += change.heap();
        state.changes.push_back(change);
        if state.changes.len() > self.changes_max
            && let Some(oldest) = state.changes.pop_front()
        {
            let before = oldest.heap() + state.folded.heap_bytes();
            state.folded.union(&oldest.transaction);
            self.changes_heap =
                (self.changes_heap + state.folded.heap_bytes()).saturating_sub(before);
        }
    }

    /// Adds the Changes of a subject's scope to `out`, whether or not somebody depends on it.
    pub(crate) fn add_changes_of(&self, subject: &Subject, scope: &Scope, out: &mut GtidSet) {
        if let Some(number) = self.names.get(subject) {
            self.add_changes(*number, scope, out);
        }
    }

    /// Adds the Changes of a scope to `out`.
    pub(crate) fn add_changes(&self, number: u32, scope: &Scope, out: &mut GtidSet) {
        let Some(state) = self.states.get(number) else {
            return;
        };
        out.union(&state.folded);
        for change in &state.changes {
            if overlaps(scope, &change.touched) {
                out.union(&change.transaction);
            }
        }
    }

    /// Forgets Changes that all servers in use are known to have.
    pub(crate) fn forget_known(&mut self, known: &GtidSet) {
        for number in self.changed.iter().copied().collect::<Vec<_>>() {
            let Some(state) = self.states.get_mut(number) else {
                continue;
            };
            let before: usize =
                state.changes.iter().map(Change::heap).sum::<usize>() + state.folded.heap_bytes();
            state
                .changes
                .retain(|change| !known.contains(&change.transaction));
            state.folded.subtract(known);
            let after: usize =
                state.changes.iter().map(Change::heap).sum::<usize>() + state.folded.heap_bytes();
            self.changes_heap = (self.changes_heap + after).saturating_sub(before);
            if state.changes.is_empty() && state.folded.is_empty() {
                self.changed.remove(&number);
                self.forget_if_idle(number);
            }
        }
    }

    /// Gives all Changes up, into `out`.
    pub(crate) fn give_up_changes(&mut self, out: &mut GtidSet) {
        for number in std::mem::take(&mut self.changed) {
            if let Some(state) = self.states.get_mut(number) {
                out.union(&state.folded);
                state.folded = self.empty.clone();
                for change in std::mem::take(&mut state.changes) {
                    out.union(&change.transaction);
                }
            }
            self.forget_if_idle(number);
        }
        self.changes_heap = 0;
    }

    /// Each subject, how many depend on all of it and on parts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Subject, usize)> {
        self.states.iter().map(|(_, state)| {
            let mut parts = Vec::new();
            state
                .by_index
                .iter()
                .for_each(|(_, intervals)| intervals.all(&mut parts));
            (&state.subject, state.whole.len() + parts.len())
        })
    }
}
