//! Which keys were asked for before: a key is filled at its second sight, so that what is asked for once does not
//! drive out what is asked for often.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Remembers about the last keys, by a hash each. Two keys of one hash only fill one of them too early.
#[derive(Debug, Default)]
pub(crate) struct Sights {
    newer: HashSet<u64>,
    older: HashSet<u64>,
    /// Most keys of each generation.
    max: usize,
}

impl Sights {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            ..Self::default()
        }
    }

    /// Whether the key was seen lately. It has been now.
    pub(crate) fn see(&mut self, key: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        if self.newer.contains(&hash) {
            return true;
        }
        let was_seen = self.older.contains(&hash);
        if self.newer.len() >= self.max {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(hash);
        was_seen
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        (self.newer.capacity() + self.older.capacity()) * (size_of::<u64>() + 1)
    }
}
