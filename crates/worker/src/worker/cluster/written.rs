//! What was written through this process, as positions: what reads at level instance, and sessions
//! that are new, must see. Each worker notes its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_topology::GtidSet;

/// So many intervals are told apart for each source.
pub const INTERVALS_MAX: usize = 8;

/// Bounds a set, with what is known of the primary's.
pub(super) type Bound<'a> = &'a dyn Fn(&mut GtidSet);

/// Shared by all workers.
#[derive(Debug)]
pub struct Written {
    workers: Vec<Worker>,
    /// How many times something was added: a session that has seen this number has seen it all.
    count: AtomicU64,
    /// Where nodes of a cluster are counted for: what was counted up to here was written on another node
    /// than the one that is the primary now.
    moved: AtomicU64,
    /// How many writes there were whose position the server did not tell.
    untracked: AtomicU64,
    /// How many are under way that may turn out to be such.
    under_way: AtomicU64,
}

/// A write that may not tell its position is under way, from before it is sent until it is known
/// whether it has told.
#[derive(Debug)]
pub struct UntrackedWrite {
    written: Arc<Written>,
    told: bool,
}

impl UntrackedWrite {
    /// It has told, or changed nothing.
    pub fn told(mut self) {
        self.told = true;
    }
}

impl Drop for UntrackedWrite {
    fn drop(&mut self) {
        if !self.told {
            self.written.count_untracked();
        }
        self.written.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What one worker has noted. Only that worker changes it.
#[derive(Debug, Default)]
struct Worker {
    positions: Mutex<Positions>,
    /// The count with its last addition; `u64::MAX` while it is adding.
    added_at: AtomicU64,
}

#[derive(Debug, Default)]
struct Positions {
    /// Since the primary is the primary.
    confirmed: Option<GtidSet>,
    /// On the one before it, which may have taken the last of it to its grave.
    unconfirmed: Option<GtidSet>,
}

impl Written {
    /// For so many workers.
    pub fn new(workers: usize) -> Self {
        Written {
            workers: (0..workers).map(|_| Worker::default()).collect(),
            count: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            untracked: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
        }
    }

    /// Something was written at `position`, through the worker.
    pub(super) fn note(&self, worker: usize, position: &GtidSet, bound: Bound<'_>) {
        if let Some(mut positions) = self.positions(worker) {
            add(&mut positions.confirmed, position, bound);
        }
        if let Some(worker) = self.workers.get(worker) {
            // Whoever sees the new count finds either what was added, or that something is being added.
            worker.added_at.store(u64::MAX, Ordering::SeqCst);
            let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
            worker.added_at.store(count, Ordering::SeqCst);
        }
    }

    /// Something was written where servers tell no position: answers its number in this process's count,
    /// under which it is noted.
    pub(super) fn count(&self, worker: usize) -> u64 {
        let Some(worker) = self.workers.get(worker) else {
            return self.reserve();
        };
        // Held until it is noted: whoever sees the count waits for it.
        let mut positions = worker.positions.lock();
        let positions = positions.as_deref_mut();
        worker.added_at.store(u64::MAX, Ordering::SeqCst);
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if let Ok(positions) = positions {
            add(&mut positions.confirmed, &GtidSet::Cluster(count), &|_| {});
        }
        worker.added_at.store(count, Ordering::SeqCst);
        count
    }

    /// A number for what anybody has done until now: higher than all before.
    pub fn reserve(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The highest number so far.
    pub fn counted(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// What has been counted until now was not written on the primary, which has become it just now.
    pub fn has_moved(&self) {
        self.moved.fetch_max(self.counted(), Ordering::SeqCst);
    }

    /// The highest number of what was written on another node than the primary; 0 where nothing was.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::SeqCst)
    }

    /// Adds everything that was written since the count was `since`, and brings that up to date. Where
    /// nothing was, the count is all that is looked at.
    pub fn add_to(&self, into: &mut GtidSet, since: &mut u64, bound: Bound<'_>) {
        let count = self.count.load(Ordering::SeqCst);
        let before = std::mem::replace(since, count);
        if before == count {
            return;
        }
        for worker in &self.workers {
            if worker.added_at.load(Ordering::SeqCst) <= before {
                continue;
            }
            let positions = worker.positions.lock();
            let positions = positions.unwrap_or_else(PoisonError::into_inner);
            for written in [&positions.confirmed, &positions.unconfirmed]
                .into_iter()
                .flatten()
            {
                if written.family() == into.family() {
                    into.union(written);
                }
            }
        }
        if into.is_wide(INTERVALS_MAX) {
            bound(into);
        }
    }

    /// Another server is the primary: what was written until now may not have come to it. False where
    /// there is nothing to confirm.
    pub(super) fn unconfirm(&self, worker: usize) -> bool {
        let Some(mut positions) = self.positions(worker) else {
            return false;
        };
        if let Some(confirmed) = positions.confirmed.take() {
            add(&mut positions.unconfirmed, &confirmed, &|_| {});
        }
        positions.unconfirmed.is_some()
    }

    /// The new primary was asked after that, and had `visible`: what is not in it is lost, and not to
    /// be waited for.
    pub(super) fn confirm(&self, worker: usize, visible: &GtidSet) {
        let Some(mut positions) = self.positions(worker) else {
            return;
        };
        if let Some(mut kept) = positions.unconfirmed.take()
            && kept.family() == visible.family()
        {
            match kept.is_comparable(visible) {
                true => kept.intersect(visible),
                // Another server's log: what of it is there cannot be told from the rest.
                false => kept = visible.clone(),
            }
            add(&mut positions.confirmed, &kept, &|_| {});
        }
    }

    /// Something was written, nobody knows where.
    pub fn count_untracked(&self) {
        self.untracked.fetch_add(1, Ordering::SeqCst);
    }

    /// A write begins that may not tell its position.
    pub fn begin_untracked(self: &Arc<Self>) -> UntrackedWrite {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UntrackedWrite {
            written: self.clone(),
            told: false,
        }
    }

    /// How often something was written nobody knows where; none while it may be happening.
    pub fn untracked(&self) -> Option<u64> {
        // In this order: a write that is no longer under way was counted as untracked before.
        let under_way = self.under_way.load(Ordering::SeqCst);
        (under_way == 0).then(|| self.untracked.load(Ordering::SeqCst))
    }

    fn positions(&self, worker: usize) -> Option<MutexGuard<'_, Positions>> {
        let positions = self.workers.get(worker)?.positions.lock();
        Some(positions.unwrap_or_else(PoisonError::into_inner))
    }
}

fn add(to: &mut Option<GtidSet>, position: &GtidSet, bound: Bound<'_>) {
    match to {
        Some(to) if to.is_comparable(position) => {
            to.union(position);
            if to.is_wide(INTERVALS_MAX) {
                bound(to);
            }
        }
        other => *other = Some(position.clone()),
    }
}

#[cfg(test)]
mod tests {
    use millrace_topology::Family;

    use super::*;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const B: &str = "4e11fa47-71ca-11e1-9e33-c80aa9429562";

    fn set(text: &str) -> GtidSet {
        GtidSet::parse_mysql(text.as_bytes()).unwrap()
    }

    fn all(written: &Written) -> GtidSet {
        let mut all = GtidSet::new(Family::MySql);
        written.add_to(&mut all, &mut 0, &|_| {});
        all
    }

    #[test]
    fn a_write_that_may_not_tell_counts_until_it_has() {
        let written = Arc::new(Written::new(1));
        assert_eq!(written.untracked(), Some(0));
        let (first, second) = (written.begin_untracked(), written.begin_untracked());
        first.told();
        assert_eq!(written.untracked(), None, "one is under way");
        drop(second);
        assert_eq!(written.untracked(), Some(1), "and has not told");
    }

    #[test]
    fn what_no_server_tells_is_counted() {
        let written = Written::new(2);
        let (mut position, mut since) = (GtidSet::new(Family::MariaDb), 0);
        assert_eq!(written.count(1), 1);
        written.add_to(&mut position, &mut since, &|_| {});
        assert_eq!((&position, since), (&GtidSet::Cluster(1), 1));
        assert_eq!(written.reserve(), 2, "higher than what was written before");
        written.add_to(&mut position, &mut since, &|_| {});
        assert_eq!(
            (&position, since),
            (&GtidSet::Cluster(1), 2),
            "and no write"
        );
        assert_eq!(written.count(0), 3);
        written.add_to(&mut position, &mut since, &|_| {});
        assert_eq!((position, written.counted()), (GtidSet::Cluster(3), 3));
    }

    #[test]
    fn a_new_primary_did_not_write_what_was_counted_before() {
        let written = Written::new(1);
        written.has_moved();
        assert_eq!(written.moved(), 0, "nothing was written");
        written.count(0);
        written.has_moved();
        written.count(0);
        assert_eq!(written.moved(), 1);
    }

    #[test]
    fn another_servers_log_replaces_what_cannot_be_compared() {
        let log = |server, offset| GtidSet::log(server, "binlog.000003", offset).unwrap();
        let written = Written::new(1);
        written.note(0, &log("a", 4), &|_| {});
        written.note(0, &log("a", 90), &|_| {});
        assert_eq!(all(&written), log("a", 90));
        assert!(written.unconfirm(0));
        written.confirm(0, &log("b", 7));
        assert_eq!(all(&written), log("b", 7), "all that the new primary has");
    }

    #[test]
    fn only_what_is_new_is_added() {
        let written = Written::new(2);
        let (mut position, mut since) = (GtidSet::new(Family::MySql), 0);
        written.add_to(&mut position, &mut since, &|_| {});
        assert_eq!(
            (position.is_empty(), since),
            (true, 0),
            "nothing was written"
        );
        written.note(0, &set(&format!("{A}:1-7")), &|_| {});
        written.note(1, &set(&format!("{B}:1")), &|_| {});
        written.add_to(&mut position, &mut since, &|_| {});
        assert_eq!(since, 2);
        assert_eq!(position, set(&format!("{A}:1-7,{B}:1")));
        let mut other = GtidSet::new(Family::MySql);
        written.note(1, &set(&format!("{B}:2")), &|_| {});
        written.add_to(&mut other, &mut since, &|_| {});
        assert_eq!(other, set(&format!("{B}:1-2")), "only that worker's");
        let mut none = GtidSet::new(Family::MySql);
        written.add_to(&mut none, &mut since, &|_| {});
        assert!(none.is_empty());
    }

    #[test]
    fn what_an_old_primary_took_along_is_forgotten() {
        let written = Written::new(2);
        assert!(!written.unconfirm(0), "nothing was written");
        written.note(0, &set(&format!("{A}:1-7")), &|_| {});
        written.note(1, &set(&format!("{A}:8-9")), &|_| {});
        assert_eq!(all(&written), set(&format!("{A}:1-9")));
        assert!(written.unconfirm(0) && written.unconfirm(1));
        assert_eq!(all(&written), set(&format!("{A}:1-9")), "until it is known");
        written.note(0, &set(&format!("{B}:1")), &|_| {});
        for worker in [0, 1] {
            written.confirm(worker, &set(&format!("{A}:1-8")));
        }
        assert_eq!(all(&written), set(&format!("{A}:1-8,{B}:1")));
    }
}
