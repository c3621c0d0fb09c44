//! What of a position a read needs: a read shows nothing but its own tables, and of these often but a few keys.

use millrace_topology::GtidSet;

use super::Store;
use crate::Access;

impl Store {
    /// Of `position`, what a server must have that answers a read of nothing but `accesses`. None where the
    /// position is not one of the log that is followed.
    ///
    /// Let a server have what is answered, and whatever was committed before anything it has. What else the position
    /// has is in F or announced, and touches nothing of the accesses; neither does what was committed before that, as all
    /// of it is so as well, and would be among the Changes. So the server shows these tables as they were at the position, or
    /// as they were later. It needs no log that is followed at this moment: what F lacks is required whole.
    pub fn project(&self, position: &GtidSet, accesses: &[Access]) -> Option<GtidSet> {
        if !position.is_comparable(&self.applied) {
            return None;
        }
        let mut required = position.clone();
        required.subtract(self.announced.reached());
        match self.base_is_settled {
            // All servers in use have it; one that has come back with less has not.
            true => {
                let mut settled = position.clone();
                settled.intersect(&self.base);
                required.union(&settled);
            }
            // What was committed before the log was followed may have touched anything.
            false => required.union(&self.base),
        }
        for access in accesses {
            self.subjects
                .add_changes_of(&access.subject, &access.scope, &mut required);
            self.announced.add_to(access, &mut required);
        }
        Some(required)
    }

    /// Whether F and the writes that were announced have all of `position`: what they have not counts for every table.
    pub fn knows(&self, position: &GtidSet) -> bool {
        self.announced.reached().contains(position)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use millrace_topology::{GtidSet, MySqlSet};
    use proptest::prelude::*;

    use crate::model::epoch;
    use crate::{Access, IndexKeys, Interval, Key, Options, Scope, Store, Subject, Touch};

    const UUID: [u8; 16] = [0x11; 16];
    const TABLES: u8 = 3;
    const KEYS: i64 = 4;

    /// Transactions from `first` to `last`.
    fn set(first: u64, last: u64) -> GtidSet {
        let mut set = MySqlSet::default();
        if first <= last {
            set.insert(UUID, first, last);
        }
        GtidSet::MySql(set)
    }

    fn subject(table: u8) -> Subject {
        Subject::table(b"d", &[b'a' + table])
    }

    /// What one transaction touches: a table, one key of it or all.
    #[derive(Clone, Copy, Debug)]
    struct Written {
        table: u8,
        key: Option<i64>,
    }

    impl Written {
        fn touch(self) -> Touch {
            let keys = self.key.map(|key| {
                vec![IndexKeys {
                    index: 0,
                    keys: vec![Key::new().signed(key)],
                }]
            });
            Touch {
                subject: subject(self.table),
                keys,
            }
        }

        fn concerns(self, read: Written) -> bool {
            let same_key = || read.key.is_none() || self.key.is_none() || self.key == read.key;
            self.table == read.table && same_key()
        }

        fn access(self) -> Access {
            let scope = match self.key {
                None => Scope::Whole,
                Some(key) => Scope::Within {
                    index: 0,
                    interval: Interval::point(Key::new().signed(key)),
                },
            };
            Access {
                subject: subject(self.table),
                scope,
            }
        }
    }

    fn written() -> impl Strategy<Value = Written> {
        (0..TABLES, proptest::option::of(0..KEYS)).prop_map(|(table, key)| Written { table, key })
    }

    /// A store that was begun at `from` and has the log up to `to`; all servers are known to have up to `settled`.
    fn followed(log: &[Written], from: usize, to: usize, settled: usize, now: Instant) -> Store {
        let mut store = Store::new(Options {
            changes_by_key_max: 3,
            ..Options::default()
        });
        store.follow(set(1, from as u64), b"one", now);
        for (at, written) in log.iter().enumerate().take(to).skip(from) {
            let at = at as u64 + 1;
            store.apply(&set(at, at), &[written.touch()], now);
        }
        store.forget_known(&set(1, settled as u64));
        store
    }

    proptest! {
        /// A server that has what is required shows the read no less than one that has the whole position; and where all
        /// is followed, what touches other tables alone is required of nobody.
        #[test]
        fn what_is_required_is_enough(
            log in prop::collection::vec(written(), 1..24),
            read in written(),
            places in (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            position in prop::collection::vec(any::<bool>(), 24),
            has in any::<prop::sample::Index>(),
            announced in prop::collection::vec((any::<bool>(), any::<u16>()), 24),
        ) {
            let len = log.len();
            let from = places.0.index(len + 1);
            let to = from + places.1.index(len - from + 1);
            let has = has.index(len + 1);
            // The server is one of those that are known to have what is settled.
            let settled = places.2.index(has + 1).min(to);
            let mut store = followed(&log, from, to, settled, epoch());
            // Some of what the log has not told yet is announced, in any order.
            store.define(std::sync::Arc::default());
            let version = store.definitions().map_or(0, |(_, version)| version);
            let mut writes: Vec<usize> = (to..len).filter(|at| announced[*at].0).collect();
            writes.sort_by_key(|at| announced[*at].1);
            for at in writes {
                store.announce(&set(at as u64 + 1, at as u64 + 1), &log[at].touch(), version);
            }
            let mut wanted = set(1, 0);
            let in_position = |at: &usize| position[*at];
            (0..len).filter(in_position).for_each(|at| wanted.union(&set(at as u64 + 1, at as u64 + 1)));
            let required = store.project(&wanted, &[read.access()]).unwrap();
            let server = set(1, has as u64);
            let last_wanted = (0..len).rev().find(in_position).map_or(0, |at| at + 1);
            let missed = (has..last_wanted).find(|at| log[*at].concerns(read));
            if server.contains(&required) {
                prop_assert_eq!(missed, None, "of {:?} to {}", read, last_wanted);
            } else if from <= has && last_wanted <= to && missed.is_none() {
                // Something else is asked for only where it is not kept apart by key, or is newer than the position.
                let asked = (has..len).any(|at| log[at].table == read.table);
                prop_assert!(asked, "{} is asked for in vain", required);
            }
        }
    }

    #[test]
    fn announced_writes_count_once_they_follow_on() {
        let now = epoch();
        let mut store = followed(&[], 0, 0, 0, now);
        store.apply(&set(1, 1), &[], now);
        store.forget_known(&set(1, 1));
        store.define(std::sync::Arc::default());
        let version = store.definitions().map_or(0, |(_, version)| version);
        let write = Written {
            table: 0,
            key: Some(1),
        };
        let other = Written {
            table: 0,
            key: Some(2),
        }
        .access();
        let required = |store: &Store, access: &Access| {
            store
                .project(&set(1, 3), std::slice::from_ref(access))
                .unwrap()
        };
        store.announce(&set(3, 3), &write.touch(), version);
        assert_eq!(
            required(&store, &other),
            set(1, 3),
            "what was before it may be anything"
        );
        store.announce(&set(2, 2), &write.touch(), version + 1);
        assert_eq!(
            required(&store, &other),
            set(1, 3),
            "by definitions of another time"
        );
        store.announce(&set(2, 2), &write.touch(), version);
        assert_eq!(required(&store, &other), set(1, 1));
        assert_eq!(required(&store, &write.access()), set(1, 3));
        store.apply(&set(2, 2), &[write.touch()], now);
        assert_eq!(required(&store, &other), set(1, 1), "told by the log");
        assert_eq!(required(&store, &write.access()), set(1, 3));
        store.redefine(None, now);
        assert!(
            required(&store, &other).contains(&set(3, 3)),
            "a table may be another now"
        );
    }

    #[test]
    fn what_the_log_has_not_told_is_required_whole() {
        let log = [Written {
            table: 0,
            key: Some(1),
        }; 4];
        let store = followed(&log, 1, 3, 1, epoch());
        let other = Written {
            table: 1,
            key: None,
        }
        .access();
        let required = store
            .project(&set(2, 3), std::slice::from_ref(&other))
            .unwrap();
        assert!(required.is_empty() && store.knows(&set(2, 3)));
        let required = store.project(&set(2, 4), &[other]).unwrap();
        assert_eq!(required, set(4, 4));
        assert!(!store.knows(&set(2, 4)));
        let foreign = GtidSet::parse_mariadb(b"0-1-5").unwrap();
        assert_eq!(store.project(&foreign, &[]), None);
    }

    #[test]
    fn what_was_announced_is_unknown_once_the_log_is_lost() {
        let log = [Written {
            table: 0,
            key: Some(1),
        }; 2];
        let mut store = followed(&log, 0, 2, 2, epoch());
        store.define(std::sync::Arc::default());
        let version = store.definitions().map_or(0, |(_, version)| version);
        store.announce(&set(3, 3), &log[0].touch(), version);
        assert!(store.knows(&set(1, 3)));
        // A primary that has died may have taken it along: no server is asked for it for ever.
        store.gap();
        assert!(!store.knows(&set(1, 3)));
        let required = store.project(&set(1, 2), &[log[0].access()]).unwrap();
        assert_eq!(required, set(1, 2));
    }
}
