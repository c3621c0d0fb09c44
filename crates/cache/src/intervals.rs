//! Who depends on which keys of one index: finds all intervals that have a key.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::scope::{Interval, Key};

/// Intervals of one index, each with the number of its slot.
///
/// Points are found by their value. Longer intervals stand in classes of doubling length: those of a class that
/// can have a key begin at most the class's length before it, so that few others are looked at.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    points: BTreeSet<(Key, u32)>,
    /// Class, first key and slot; the last key.
    ranges: BTreeMap<(u8, Key, u32), Key>,
    /// A bit for each class that is not empty.
    classes: u128,
    /// How many of each.
    counts: BTreeMap<u8, usize>,
}

/// Of intervals of keys that are not one integer: their length is not known.
const ANY_LENGTH: u8 = 64;

fn class(interval: &Interval) -> u8 {
    match (interval.lo.as_integer(), interval.hi.as_integer()) {
        (Some(lo), Some(hi)) => (64 - hi.saturating_sub(lo).leading_zeros()) as u8 - 1,
        _ => ANY_LENGTH,
    }
}

impl Intervals {
    pub(crate) fn insert(&mut self, interval: &Interval, slot: u32) {
        if interval.is_point() {
            self.points.insert((interval.lo.clone(), slot));
        } else if interval.lo < interval.hi {
            let class = class(interval);
            let key = (class, interval.lo.clone(), slot);
            if self.ranges.insert(key, interval.hi.clone()).is_none() {
                *self.counts.entry(class).or_default() += 1;
                self.classes |= 1 << class;
            }
        }
    }

    pub(crate) fn remove(&mut self, interval: &Interval, slot: u32) {
        if interval.is_point() {
            self.points.remove(&(interval.lo.clone(), slot));
        } else if interval.lo < interval.hi {
            let class = class(interval);
            let was_there = self.ranges.remove(&(class, interval.lo.clone(), slot));
            if was_there.is_none() {
                return;
            }
            let count = self.counts.entry(class).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&class);
                self.classes &= !(1 << class);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty()
    }

    /// Adds the slots of all intervals that have the key.
    pub(crate) fn find(&self, key: &Key, out: &mut Vec<u32>) {
        let points = self
            .points
            .range((key.clone(), 0)..=(key.clone(), u32::MAX));
        out.extend(points.map(|(_, slot)| *slot));
        let mut classes = self.classes;
        while classes != 0 {
            let class = classes.trailing_zeros() as u8;
            classes &= classes - 1;
            let from = match key.as_integer() {
                // Intervals of the class are shorter than 2^(class + 1).
                Some(value) if class < 63 => {
                    Key::new().unsigned(value.saturating_sub((2_u64 << class) - 1))
                }
                _ => Key::new(),
            };
            let begins = (
                Bound::Included((class, from, 0)),
                Bound::Included((class, key.clone(), u32::MAX)),
            );
            let has = self.ranges.range(begins).filter(|(_, hi)| *key <= **hi);
            out.extend(has.map(|((_, _, slot), _)| *slot));
        }
    }

    /// Adds all slots.
    pub(crate) fn all(&self, out: &mut Vec<u32>) {
        out.extend(self.points.iter().map(|(_, slot)| *slot));
        out.extend(self.ranges.keys().map(|(_, _, slot)| *slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(value: u64) -> Key {
        Key::new().unsigned(value)
    }

    proptest! {
        #[test]
        fn finds_what_a_plain_list_finds(
            intervals in prop::collection::vec((0..200u64, prop_oneof![0..3u64, 0..200u64, Just(u64::MAX / 2)]), 0..40),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
            asked in 0..300u64,
        ) {
            let mut index = Intervals::default();
            let mut plain: Vec<(Interval, u32)> = Vec::new();
            for (slot, (lo, len)) in intervals.iter().enumerate() {
                let interval = Interval { lo: key(*lo), hi: key(lo + len) };
                index.insert(&interval, slot as u32);
                plain.push((interval, slot as u32));
            }
            for which in gone {
                if plain.is_empty() {
                    break;
                }
                let (interval, slot) = plain.remove(which.index(plain.len()));
                index.remove(&interval, slot);
            }
            let mut found = Vec::new();
            index.find(&key(asked), &mut found);
            found.sort_unstable();
            let wanted: Vec<u32> = plain
                .iter()
                .filter(|(interval, _)| interval.has(&key(asked)))
                .map(|(_, slot)| *slot)
                .collect();
            prop_assert_eq!(found, wanted);
            let mut all = Vec::new();
            index.all(&mut all);
            prop_assert_eq!(all.len(), plain.len());
            prop_assert_eq!(index.is_empty(), plain.is_empty());
        }
    }
}
