//! Which prepared statements a server connection holds. The oldest used is closed first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A statement's identity within a worker: text and everything it was prepared under.
pub type StatementUid = u64;

/// A map whose keys are numbers that Millrace gives out itself, so that nobody can choose them to
/// collide: they need no costly hash.
pub type ById<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Spreads numbers over a map's buckets.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 by the golden ratio: neighbours differ in the high bits, which maps look at too.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

/// The statements prepared on one connection.
#[derive(Debug, Default)]
pub struct Prepared {
    held: ById<StatementUid, Held>,
    clock: u64,
}

#[derive(Debug)]
struct Held {
    server_id: u32,
    used: u64,
    types: u32,
}

impl Prepared {
    /// The server's number for a statement and the version of the parameter types that it was
    /// told there last (0: none), where the connection holds it.
    pub fn get(&mut self, uid: StatementUid) -> Option<(u32, u32)> {
        self.clock += 1;
        let held = self.held.get_mut(&uid)?;
        held.used = self.clock;
        Some((held.server_id, held.types))
    }

    /// Notes which parameter types the server was told for a statement; 0: it may have any.
    pub fn note_types(&mut self, uid: StatementUid, version: u32) {
        if let Some(held) = self.held.get_mut(&uid) {
            held.types = version;
        }
    }

    /// Whether the connection holds it; does not count as use.
    pub fn has(&self, uid: StatementUid) -> bool {
        self.held.contains_key(&uid)
    }

    /// Notes a new one. Answers the server's number of one to close when there are more than
    /// `limit`.
    pub fn add(&mut self, uid: StatementUid, server_id: u32, limit: usize) -> Option<u32> {
        self.clock += 1;
        let used = self.clock;
        let new = Held {
            server_id,
            used,
            types: 0,
        };
        let replaced = self.held.insert(uid, new);
        if let Some(old) = replaced {
            return Some(old.server_id);
        }
        if self.held.len() <= limit {
            return None;
        }
        let oldest = *self.held.iter().min_by_key(|(_, held)| held.used)?.0;
        self.held.remove(&oldest).map(|held| held.server_id)
    }

    /// Gives one another identity, one that the connection does not hold; answers the server's
    /// number for it.
    pub fn rename(&mut self, from: StatementUid, to: StatementUid) -> Option<u32> {
        let held = self.held.remove(&from)?;
        let server_id = held.server_id;
        self.held.insert(to, held);
        Some(server_id)
    }

    /// Forgets one; answers the server's number for it.
    pub fn remove(&mut self, uid: StatementUid) -> Option<u32> {
        self.held.remove(&uid).map(|held| held.server_id)
    }

    /// Forgets all: the connection was reset.
    pub fn clear(&mut self) {
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_closed() {
        let mut prepared = Prepared::default();
        assert_eq!(prepared.add(1, 11, 2), None);
        assert_eq!(prepared.add(2, 12, 2), None);
        assert_eq!(prepared.get(1), Some((11, 0)));
        assert_eq!(prepared.add(3, 13, 2), Some(12));
        assert_eq!(prepared.get(2), None);
    }

    #[test]
    fn what_types_were_told_is_forgotten_with_the_statement() {
        let mut prepared = Prepared::default();
        prepared.note_types(1, 5);
        assert_eq!(prepared.get(1), None, "it is not there");
        prepared.add(1, 11, 2);
        prepared.note_types(1, 5);
        assert_eq!(prepared.get(1), Some((11, 5)));
        prepared.add(1, 12, 2);
        assert_eq!(prepared.get(1), Some((12, 0)), "another of the server's");
    }

    #[test]
    fn a_renamed_one_is_held_under_its_new_name_only() {
        let mut prepared = Prepared::default();
        assert_eq!(prepared.add(1, 11, 2), None);
        assert_eq!(prepared.rename(1, 7), Some(11));
        assert_eq!((prepared.get(1), prepared.get(7)), (None, Some((11, 0))));
        assert_eq!(prepared.rename(1, 8), None);
    }
}
