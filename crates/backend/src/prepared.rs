//! Which prepared statements a server connection holds. The oldest used is closed first.

use std::collections::HashMap;

/// A statement's identity within a worker: text and everything it was prepared under.
pub type StatementUid = u64;

/// The statements prepared on one connection.
#[derive(Debug, Default)]
pub struct Prepared {
    held: HashMap<StatementUid, Held>,
    clock: u64,
}

#[derive(Debug)]
struct Held {
    server_id: u32,
    used: u64,
}

impl Prepared {
    /// The server's number for a statement, where the connection holds it.
    pub fn get(&mut self, uid: StatementUid) -> Option<u32> {
        self.clock += 1;
        let held = self.held.get_mut(&uid)?;
        held.used = self.clock;
        Some(held.server_id)
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
        let replaced = self.held.insert(uid, Held { server_id, used });
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
        assert_eq!(prepared.get(1), Some(11));
        assert_eq!(prepared.add(3, 13, 2), Some(12));
        assert_eq!(prepared.get(2), None);
    }

    #[test]
    fn a_renamed_one_is_held_under_its_new_name_only() {
        let mut prepared = Prepared::default();
        assert_eq!(prepared.add(1, 11, 2), None);
        assert_eq!(prepared.rename(1, 7), Some(11));
        assert_eq!((prepared.get(1), prepared.get(7)), (None, Some(11)));
        assert_eq!(prepared.rename(1, 8), None);
    }
}
