//! Histories of reads and writes, and whether they keep what a consistency level promises. Runs
//! nothing itself: the suite fills it from its clients.
//!
//! Each key is a counter that one writer raises by one at a time, so a key's value says exactly which
//! writes a read has seen.

use std::collections::BTreeMap;

/// What a read promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Eventual,
    /// A session's own writes, and that its reads never go back.
    Session,
    /// All writes acknowledged through the same proxy before the read began.
    Instance,
    /// All writes acknowledged anywhere before the read began.
    Global,
}

impl Level {
    /// Its name for `SET @@millrace_consistency`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Eventual => "eventual",
            Level::Session => "session",
            Level::Instance => "instance",
            Level::Global => "global",
        }
    }
}

/// One answered read: keys' values at one moment.
#[derive(Debug, Clone)]
pub struct Read {
    /// The values, by key; none for keys that were not read.
    pub values: Vec<Option<u64>>,
    /// What had been acknowledged through the proxy when the read began, by key.
    pub acknowledged_here: Vec<u64>,
    /// What had been acknowledged anywhere when it began.
    pub acknowledged: Vec<u64>,
    /// What the session itself had been acknowledged then.
    pub own: Vec<u64>,
}

/// A promise that was not kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// A session did not see its own write.
    OwnWriteLost,
    /// A session saw less than before.
    WentBack,
    /// A write acknowledged through the proxy was not seen.
    StaleHere,
    /// A write acknowledged anywhere was not seen.
    Stale,
    /// A value that nobody can have written yet.
    FromTheFuture,
}

/// One session's reads, in order, and what was wrong with them.
#[derive(Debug, Default)]
pub struct History {
    seen: Vec<u64>,
    /// Reads taken in.
    pub reads: u64,
    /// How often each promise was broken, whether the level makes it or not.
    pub broken: BTreeMap<Violation, u64>,
    /// The first of each in words.
    pub first: BTreeMap<Violation, String>,
}

impl History {
    /// Takes in a read.
    pub fn add(&mut self, read: &Read) {
        self.reads += 1;
        self.seen.resize(read.values.len(), 0);
        let seen = std::mem::take(&mut self.seen);
        self.compare(Violation::OwnWriteLost, &read.own, &read.values);
        self.compare(Violation::WentBack, &seen, &read.values);
        self.compare(Violation::StaleHere, &read.acknowledged_here, &read.values);
        self.compare(Violation::Stale, &read.acknowledged, &read.values);
        let later = |(old, new): (u64, &Option<u64>)| new.map_or(old, |new| new.max(old));
        self.seen = seen.into_iter().zip(&read.values).map(later).collect();
    }

    /// A read that saw more than had been sent by its end.
    pub fn check_future(&mut self, sent: &[u64], values: &[Option<u64>]) {
        let values: Vec<u64> = values.iter().map(|value| value.unwrap_or(0)).collect();
        let sent: Vec<Option<u64>> = sent.iter().copied().map(Some).collect();
        self.compare(Violation::FromTheFuture, &values, &sent);
    }

    fn compare(&mut self, what: Violation, least: &[u64], found: &[Option<u64>]) {
        for (key, (least, found)) in least.iter().zip(found).enumerate() {
            let Some(found) = found else {
                continue;
            };
            if found < least {
                *self.broken.entry(what.clone()).or_default() += 1;
                let read = self.reads;
                self.first.entry(what.clone()).or_insert_with(|| {
                    format!("read {read}: key {key} is {found} where it must be {least} at least")
                });
                return;
            }
        }
    }

    /// The promises of a level that were broken.
    pub fn violations(&self, level: Level) -> Vec<String> {
        self.broken
            .iter()
            .filter(|(what, _)| promises(level, what))
            .map(|(what, times)| format!("{what:?} {times} times, first {}", self.first[what]))
            .collect()
    }

    /// Adds another session's counts.
    pub fn merge(&mut self, other: History) {
        self.reads += other.reads;
        for (what, times) in other.broken {
            *self.broken.entry(what).or_default() += times;
        }
        for (what, text) in other.first {
            self.first.entry(what).or_insert(text);
        }
    }
}

fn promises(level: Level, what: &Violation) -> bool {
    match what {
        Violation::FromTheFuture => true,
        Violation::OwnWriteLost | Violation::WentBack => level >= Level::Session,
        Violation::StaleHere => level >= Level::Instance,
        Violation::Stale => level == Level::Global,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: [u64; 2], own: [u64; 2], here: [u64; 2], anywhere: [u64; 2]) -> Read {
        Read {
            values: values.map(Some).into(),
            acknowledged_here: here.into(),
            acknowledged: anywhere.into(),
            own: own.into(),
        }
    }

    #[test]
    fn each_promise_is_told_from_the_others() {
        let mut history = History::default();
        history.add(&read([5, 1], [5, 0], [5, 1], [5, 1]));
        assert!(history.violations(Level::Global).is_empty());
        history.add(&read([5, 1], [5, 0], [5, 1], [5, 2]));
        assert_eq!(history.violations(Level::Global).len(), 1, "stale");
        assert!(history.violations(Level::Instance).is_empty());
        history.add(&read([5, 2], [5, 0], [6, 2], [6, 2]));
        assert_eq!(history.violations(Level::Instance).len(), 1, "stale here");
        assert!(history.violations(Level::Session).is_empty());
        history.add(&read([5, 1], [5, 0], [0, 0], [0, 0]));
        assert_eq!(history.broken.get(&Violation::WentBack), Some(&1));
        assert_eq!(history.violations(Level::Session).len(), 1);
        // What was seen before the step back still counts.
        history.add(&read([5, 1], [5, 0], [0, 0], [0, 0]));
        assert_eq!(history.broken.get(&Violation::WentBack), Some(&2));
        history.add(&read([4, 2], [5, 0], [0, 0], [0, 0]));
        assert_eq!(history.broken.get(&Violation::OwnWriteLost), Some(&1));
        assert!(history.violations(Level::Eventual).is_empty());
        history.check_future(&[3, 9], &[Some(4), Some(2)]);
        assert_eq!(history.violations(Level::Eventual).len(), 1);
    }
}
