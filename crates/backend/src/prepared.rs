//! Which prepared statements a server connection holds, and how many it may. The oldest used is closed
//! first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_base::ById;
use millrace_engine::image::prepared::StatementUid;

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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Notes a new one. Answers the server's number of the one whose place it took: it is to be closed.
    pub fn add(&mut self, uid: StatementUid, server_id: u32) -> Option<u32> {
        self.clock += 1;
        let used = self.clock;
        let new = Held {
            server_id,
            used,
            types: 0,
        };
        self.held.insert(uid, new).map(|old| old.server_id)
    }

    /// Where there are more than `most`: forgets the one used longest ago of those that may go, and
    /// answers the server's number for it. To be called until there is none.
    pub fn pop_beyond(
        &mut self,
        most: usize,
        may_go: impl Fn(StatementUid) -> bool,
    ) -> Option<u32> {
        if self.held.len() <= most {
            return None;
        }
        let those = self.held.iter().filter(|(uid, _)| may_go(**uid));
        let oldest = *those.min_by_key(|(_, held)| held.used)?.0;
        self.remove(oldest)
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

/// How many statements one connection to a server may hold, over all workers: as many as the option
/// says, until the server refuses one more (1461): `max_prepared_stmt_count` is for all connections
/// together, other programs' too.
#[derive(Debug)]
pub struct Allowance {
    /// The highest number until something is refused.
    most: AtomicUsize,
    /// The most that any connection held since it was last changed.
    fullest: AtomicUsize,
    changed: Mutex<Option<Instant>>,
}

/// Many hear at once that a server refuses: it takes so long until it shows what the last step has
/// brought.
const STEP: Duration = Duration::from_millis(10);

/// After so long without a refusal connections may hold more again.
const PEACE: Duration = Duration::from_secs(600);

impl Default for Allowance {
    fn default() -> Self {
        Allowance {
            most: AtomicUsize::new(usize::MAX),
            fullest: AtomicUsize::default(),
            changed: Mutex::default(),
        }
    }
}

impl Allowance {
    /// How many, where the option says `option`.
    pub fn most(&self, option: usize) -> usize {
        self.most.load(Ordering::Relaxed).min(option)
    }

    /// Whether a connection that was within the option holds more than since a refusal it may.
    pub fn is_beyond(&self, held: usize) -> bool {
        held > self.most.load(Ordering::Relaxed)
    }

    /// A connection has come to hold so many.
    pub fn note(&self, held: usize) {
        self.fullest.fetch_max(held, Ordering::Relaxed);
    }

    /// The server has refused a statement: three quarters of what the fullest connection holds are
    /// enough. Answers how many that is; none where no connection ever held one, so that nothing can be
    /// given up.
    pub fn reduce(&self, option: usize, now: Instant) -> Option<usize> {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let fullest = self.fullest.load(Ordering::Relaxed);
        if fullest == 0 {
            return None;
        }
        let before = self.most(option);
        if changed.is_some_and(|changed| now < changed + STEP) {
            return Some(before);
        }
        let most = (fullest.min(before) * 3 / 4).max(1);
        self.most.store(most, Ordering::Relaxed);
        self.fullest.store(most, Ordering::Relaxed);
        *changed = Some(now);
        Some(most)
    }

    /// Time goes by. True where connections may hold more again.
    pub fn grow(&self, option: usize, now: Instant) -> bool {
        let most = self.most(option);
        if most >= option {
            return false;
        }
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let grows = changed.is_none_or(|changed| now >= changed + PEACE);
        if grows {
            self.most.store(most + most.div_ceil(3), Ordering::Relaxed);
            *changed = Some(now);
        }
        grows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_closed() {
        let mut prepared = Prepared::default();
        for uid in 1..=4 {
            assert_eq!(prepared.add(uid, 10 + uid as u32), None);
        }
        assert_eq!(prepared.get(1), Some((11, 0)));
        assert_eq!(prepared.pop_beyond(4, |_| true), None);
        assert_eq!(prepared.pop_beyond(2, |uid| uid != 2), Some(13));
        assert_eq!(prepared.pop_beyond(2, |uid| uid != 2), Some(14));
        assert_eq!(prepared.pop_beyond(2, |_| true), None);
        assert_eq!(prepared.pop_beyond(1, |_| false), None, "none may go");
        assert_eq!(prepared.pop_beyond(1, |_| true), Some(12));
    }

    #[test]
    fn a_refusal_leaves_three_quarters_and_peace_brings_them_back() {
        const OPTION: usize = 200;
        let allowance = Allowance::default();
        let start = Instant::now();
        assert_eq!(allowance.reduce(OPTION, start), None, "nothing is held");
        allowance.note(100);
        assert_eq!(allowance.most(OPTION), 200);
        assert_eq!(allowance.reduce(OPTION, start), Some(75));
        assert_eq!(allowance.reduce(OPTION, start), Some(75), "at once again");
        let later = start + STEP;
        assert_eq!(allowance.reduce(OPTION, later), Some(56));
        assert!(!allowance.grow(OPTION, later + PEACE / 2));
        assert!(allowance.grow(OPTION, later + PEACE));
        assert_eq!(allowance.most(OPTION), 75);
        assert!(!allowance.grow(OPTION, later + PEACE), "once in a while");
        for n in 2..9 {
            allowance.grow(OPTION, later + n * PEACE);
        }
        assert_eq!(allowance.most(OPTION), 200);
        assert!(!allowance.grow(OPTION, later + 9 * PEACE));
        for n in 0..30 {
            allowance.reduce(OPTION, later + 9 * PEACE + n * STEP);
        }
        assert_eq!(allowance.most(OPTION), 1);
    }

    #[test]
    fn what_types_were_told_is_forgotten_with_the_statement() {
        let mut prepared = Prepared::default();
        prepared.note_types(1, 5);
        assert_eq!(prepared.get(1), None, "it is not there");
        prepared.add(1, 11);
        prepared.note_types(1, 5);
        assert_eq!(prepared.get(1), Some((11, 5)));
        assert_eq!(prepared.add(1, 12), Some(11));
        assert_eq!(prepared.get(1), Some((12, 0)), "another of the server's");
    }

    #[test]
    fn a_renamed_one_is_held_under_its_new_name_only() {
        let mut prepared = Prepared::default();
        assert_eq!(prepared.add(1, 11), None);
        assert_eq!(prepared.rename(1, 7), Some(11));
        assert_eq!((prepared.get(1), prepared.get(7)), (None, Some((11, 0))));
        assert_eq!(prepared.rename(1, 8), None);
    }
}
