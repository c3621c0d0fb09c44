//! How many statements a worker has one server run at once. A server that is given many more of them than
//! it has processors for gets less done, not more: its threads get into each other's way, and each
//! finds the caches cold. So where there is a crowd, what is beyond a limit waits here, in order, until others
//! have ended; the limit is found by trying ([`finder`]). What takes long, for a lock, a disk or a slow
//! reader, soon counts no more, so that it holds up nobody; and where next to nothing ends any more, as all
//! wait for the same lock, the limit is lifted step by step until something does.
//!
//! All workers have the same limit and change it together. Were one to try twice as many alone, it would
//! take the others' part of the server's processors, and take that for a gain.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use self::finder::Finder;

mod finder;
mod wanted;

/// `pool.concurrency`: how many statements one server runs at once, over all workers. Statements of
/// sessions that keep their connection always run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    /// As many as get the most done.
    #[default]
    Auto,
    /// No more than this, of those that do not take long; at least one for each worker.
    At(u32),
    /// As many as there are connections.
    Off,
}

/// The limit that `auto` begins with, over all workers; and that of each, where there are many of them.
const FIRST: u32 = 8;
const FIRST_LEAST: u32 = 4;

/// Where so many want to run in all, it is a crowd; and at one of many workers.
const CROWD: u32 = 32;
const CROWD_LEAST: u32 = 8;

/// A turn is as long as so many statements take one after the other,
const TURN_STATEMENTS: u32 = 6;
/// within these bounds; at first it is the least.
const TURN_LEAST: Duration = Duration::from_millis(20);
const TURN_MOST: Duration = Duration::from_millis(200);

/// When fewer have ended for so long than may run at once, twice as many may; after the next turn, four
/// times. It is longer than a server stands still that has used up its share of the processors, which
/// by Linux's defaults is given every 100 ms.
const STALL: Duration = Duration::from_millis(250);

/// What `auto` has found for one server.
#[derive(Debug)]
pub(crate) struct Found {
    /// Each worker's limit.
    limit: AtomicU32,
    finder: Mutex<Finder>,
}

impl Found {
    /// `most` connections to the server are allowed.
    pub(crate) fn new(workers: usize, most: usize) -> Found {
        let most = count(most);
        let first = share(FIRST, workers).max(FIRST_LEAST).min(most);
        Found {
            limit: AtomicU32::new(first),
            finder: Mutex::new(Finder::new(first..=most, wanted::wanted)),
        }
    }

    fn finder(&self) -> MutexGuard<'_, Finder> {
        self.finder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX).max(1)
}

fn share(number: u32, workers: usize) -> u32 {
    number.div_ceil(count(workers)).max(1)
}

/// One worker's statements on one server.
#[derive(Debug)]
pub(crate) struct Concurrency {
    worker: usize,
    found: Option<Arc<Found>>,
    /// Where it is not found.
    fixed: u32,
    /// As long as fewer than these run and wait, all may run.
    crowd: u32,
    /// Those that count: begun in this turn, and in the one before.
    running: [Counts; 2],
    turn: Cell<u32>,
    /// So many have ended in this turn, but for those on kept connections.
    ended: Cell<u32>,
    length: Cell<Duration>,
    /// For so long next to nothing has ended.
    stalled: Cell<Duration>,
    /// So many times the limit may run meanwhile.
    relief: Cell<u32>,
    /// A trial of this worker's is under way.
    is_trying: Cell<bool>,
}

#[derive(Debug, Default)]
struct Counts {
    free: Cell<u32>,
    /// On connections that sessions keep.
    kept: Cell<u32>,
}

impl Counts {
    fn of(&self, statement: Running) -> &Cell<u32> {
        match statement.kept {
            true => &self.kept,
            false => &self.free,
        }
    }
}

/// A statement that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Running {
    /// In which it began.
    turn: u32,
    /// Its session has kept the connection.
    kept: bool,
}

impl Concurrency {
    /// For one of so many workers. With `found`, the limit is what that says.
    pub(crate) fn new(
        limit: Limit,
        worker: usize,
        workers: usize,
        found: impl FnOnce() -> Arc<Found>,
    ) -> Concurrency {
        let (fixed, crowd) = match limit {
            Limit::Auto => (1, share(CROWD, workers).max(CROWD_LEAST)),
            Limit::At(limit) => (share(limit, workers), 0),
            Limit::Off => (u32::MAX, 0),
        };
        Concurrency {
            worker,
            found: (limit == Limit::Auto).then(found),
            fixed,
            crowd,
            running: Default::default(),
            turn: Cell::new(0),
            ended: Cell::new(0),
            length: Cell::new(TURN_LEAST),
            stalled: Cell::new(Duration::ZERO),
            relief: Cell::new(1),
            is_trying: Cell::new(false),
        }
    }

    fn limit_now(&self) -> u32 {
        match &self.found {
            Some(found) => found.limit.load(Relaxed),
            None => self.fixed,
        }
    }

    /// The limit as it is now; none: all may run.
    pub(crate) fn limit(&self) -> Option<u32> {
        Some(self.limit_now()).filter(|limit| *limit < u32::MAX)
    }

    /// Whether one more has to wait, beside so many that do.
    pub(crate) fn is_full(&self, wait: usize) -> bool {
        let allowed = self.allowed();
        self.counting(allowed) >= allowed && self.present() + wait >= self.crowd as usize
    }

    /// Whether a connection may be opened for one of so many that `wait`, beside those that are being
    /// opened.
    pub(crate) fn has_room_for(&self, wait: usize, opening: usize) -> bool {
        let allowed = self.allowed();
        let most = match self.present() + wait <= self.crowd as usize {
            true => allowed.max(self.crowd),
            false => allowed,
        };
        self.counting(most) as usize + opening < most as usize
    }

    fn allowed(&self) -> u32 {
        self.limit_now().saturating_mul(self.relief.get())
    }

    /// Those that count. Kept connections' statements run in any case: where these are many, the
    /// others have half the room all the same.
    fn counting(&self, allowed: u32) -> u32 {
        let [one, other] = &self.running;
        let kept = one.kept.get() + other.kept.get();
        one.free.get() + other.free.get() + kept.min(allowed / 2)
    }

    fn present(&self) -> usize {
        let each = |counts: &Counts| (counts.free.get() + counts.kept.get()) as usize;
        self.running.iter().map(each).sum()
    }

    /// A statement begins, whether there was room or not.
    pub(crate) fn begin(&self) -> Running {
        self.note_begin(false)
    }

    /// The same on a connection that its session has kept.
    pub(crate) fn begin_kept(&self) -> Running {
        self.note_begin(true)
    }

    fn note_begin(&self, kept: bool) -> Running {
        let turn = self.turn.get();
        let statement = Running { turn, kept };
        let counter = self.running[turn as usize % 2].of(statement);
        counter.set(counter.get() + 1);
        statement
    }

    /// It has ended.
    pub(crate) fn end(&self, statement: Running) {
        // One that began longer ago counts no more.
        if self.turn.get().wrapping_sub(statement.turn) < 2 {
            let counter = self.running[statement.turn as usize % 2].of(statement);
            counter.set(counter.get() - 1);
        }
        if statement.kept {
            return;
        }
        if self.is_trying.get() {
            self.tell_finder();
        }
        self.ended.set(self.ended.get().saturating_add(1));
    }

    #[cold]
    fn tell_finder(&self) {
        let Some(found) = &self.found else { return };
        let mut finder = found.finder();
        if let Some(limit) = finder.ended(self.worker, Instant::now()) {
            found.limit.store(limit, Relaxed);
        }
        self.is_trying.set(finder.is_trying(self.worker));
    }

    /// A statement has to wait for others to end.
    pub(crate) fn waits(&self, now: Instant) {
        let Some(found) = &self.found else { return };
        // Another worker has it: its wait does as well.
        let Ok(mut finder) = found.finder.try_lock() else {
            return;
        };
        let limit = finder.waits(self.worker, now, found.limit.load(Relaxed));
        found.limit.store(limit, Relaxed);
        self.is_trying.set(finder.is_trying(self.worker));
    }

    /// How long a turn is now: the next is to begin after this, as long as somebody waits. None where
    /// nobody waits for others to end.
    pub(crate) fn turn_length(&self) -> Option<Duration> {
        self.limit().map(|_| self.length.get())
    }

    /// A turn is over, while so many `wait`, and the next begins: what began before the last one
    /// counts no more.
    pub(crate) fn next_turn(&self, wait: usize) {
        let (ended, limit, length) = (self.ended.get(), self.limit_now(), self.length.get());
        self.skip_turn();
        self.note_stall(wait > 0 && ended < limit, length);
        let length = match ended < limit {
            // Too few to tell.
            true => length * 5 / 4,
            false => (length + length * TURN_STATEMENTS * limit / ended) / 2,
        };
        self.length.set(length.clamp(TURN_LEAST, TURN_MOST));
    }

    /// The next turn begins, and how long this one was says nothing.
    pub(crate) fn skip_turn(&self) {
        let next = &self.running[(self.turn.get() as usize + 1) % 2];
        next.free.set(0);
        next.kept.set(0);
        self.turn.set(self.turn.get().wrapping_add(1));
        self.ended.set(0);
    }

    fn note_stall(&self, is_stalled: bool, length: Duration) {
        let stalled = match is_stalled {
            true => self.stalled.get() + length,
            false => Duration::ZERO,
        };
        self.stalled.set(stalled);
        self.relief.set(match stalled < STALL {
            true => 1,
            false => self.relief.get().saturating_mul(2),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limit: Limit, workers: usize, most: usize) -> Concurrency {
        Concurrency::new(limit, 0, workers, || Arc::new(Found::new(workers, most)))
    }

    #[test]
    fn workers_share_the_limit() {
        let table = [
            (Limit::Auto, 1, 100, Some(8)),
            (Limit::Auto, 2, 100, Some(4)),
            (Limit::Auto, 16, 100, Some(4)),
            (Limit::Auto, 1, 3, Some(3)),
            (Limit::At(10), 1, 100, Some(10)),
            (Limit::At(10), 4, 100, Some(3)),
            (Limit::At(1), 4, 100, Some(1)),
            (Limit::Off, 1, 100, None),
        ];
        for (limit, workers, most, each) in table {
            assert_eq!(
                of(limit, workers, most).limit(),
                each,
                "{limit:?} {workers} {most}"
            );
        }
    }

    #[test]
    fn what_ends_makes_room() {
        let two = of(Limit::At(2), 1, 100);
        let (first, _second) = (two.begin(), two.begin());
        assert!(two.is_full(0) && !two.has_room_for(1, 0));
        two.end(first);
        assert!(!two.is_full(0) && two.has_room_for(1, 0) && !two.has_room_for(1, 1));
    }

    #[test]
    fn without_a_crowd_all_may_run() {
        let auto = of(Limit::Auto, 1, 100);
        let running: Vec<_> = (0..20).map(|_| auto.begin()).collect();
        assert!(!auto.is_full(0) && !auto.is_full(11) && auto.has_room_for(12, 11));
        assert!(auto.is_full(12) && !auto.has_room_for(13, 0));
        // With a crowd, only so many as the limit says.
        for statement in &running[..12] {
            auto.end(*statement);
        }
        assert!(auto.is_full(30));
        auto.end(running[12]);
        assert!(!auto.is_full(30) && auto.has_room_for(30, 0) && !auto.has_room_for(30, 1));
    }

    #[test]
    fn what_takes_long_counts_no_more() {
        let two = of(Limit::At(2), 1, 100);
        let old = [two.begin(), two.begin()];
        two.next_turn(0);
        assert!(two.is_full(0), "they have had less than a turn, maybe");
        two.next_turn(0);
        assert!(!two.is_full(0));
        let young = [two.begin(), two.begin()];
        assert!(two.is_full(0));
        for statement in old {
            two.end(statement);
        }
        assert!(two.is_full(0), "they did not count");
        two.next_turn(0);
        for statement in young {
            two.end(statement);
        }
        assert_eq!(two.present(), 0);
        // Also when turns are counted from the beginning again.
        two.turn.set(u32::MAX);
        let last = two.begin();
        two.next_turn(0);
        two.end(last);
        assert_eq!(two.present(), 0);
    }

    #[test]
    fn where_nothing_ends_more_and_more_may_run_until_something_does() {
        let four = of(Limit::At(4), 1, 100);
        let mut stuck = Vec::new();
        let mut begin_all = || {
            let before = stuck.len();
            while !four.is_full(50) {
                stuck.push(four.begin());
            }
            stuck.len() - before
        };
        let mut turn = || {
            four.next_turn(50);
            begin_all()
        };
        let mut time = Duration::ZERO;
        while time < STALL {
            time += four.turn_length().unwrap();
            assert!(turn() <= 8);
        }
        // Those of the turn before count still.
        let began: Vec<usize> = (0..4).map(|_| turn()).collect();
        assert!(began.is_sorted() && began[3] > 20, "{began:?}");
        for _ in 0..4 {
            four.end(four.begin());
        }
        four.next_turn(50);
        assert!(four.is_full(50));
        four.next_turn(50);
        assert_eq!(four.allowed(), 4);
        for _ in 0..50 {
            four.next_turn(0);
        }
        assert_eq!(four.allowed(), 4, "nobody waits");
    }

    #[test]
    fn who_keeps_connections_leaves_the_others_half() {
        let four = of(Limit::At(4), 1, 100);
        let kept: Vec<_> = (0..9).map(|_| four.begin_kept()).collect();
        let free = [(); 2].map(|()| {
            assert!(!four.is_full(9) && four.has_room_for(9, 0));
            four.begin()
        });
        assert!(four.is_full(9) && !four.has_room_for(9, 0));
        for statement in kept.into_iter().chain(free) {
            four.end(statement);
        }
        assert_eq!((four.present(), four.ended.get()), (0, 2));
    }

    #[test]
    fn all_workers_change_together_and_one_tries_at_a_time() {
        let found = Arc::new(Found::new(2, 100));
        let worker = |number| Concurrency::new(Limit::Auto, number, 2, || found.clone());
        let (one, other) = (worker(0), worker(1));
        let now = Instant::now();
        for after in [0, 200] {
            one.waits(now + Duration::from_millis(after));
            other.waits(now + Duration::from_millis(after));
        }
        assert!(one.is_trying.get() && !other.is_trying.get());
        found.limit.store(9, Relaxed);
        assert_eq!((one.limit(), other.limit()), (Some(9), Some(9)));
        // The one has nothing to do any more, so that the other drops its trial and begins its own.
        for after in [2_000, 2_001] {
            other.waits(now + Duration::from_millis(after));
        }
        assert_eq!(one.limit(), Some(4));
        assert!(other.is_trying.get());
        one.end(one.begin());
        assert!(!one.is_trying.get() && other.is_trying.get());
    }

    #[test]
    fn more_than_fit_may_run() {
        let one = of(Limit::At(1), 1, 100);
        let both = [one.begin(), one.begin()];
        one.end(both[0]);
        assert!(one.is_full(0));
        one.end(both[1]);
        assert!(!one.is_full(0));
    }

    #[test]
    fn turns_are_as_long_as_some_statements_take() {
        let eight = of(Limit::At(8), 1, 100);
        let length = |ended_each_ms: f64| {
            for _ in 0..100 {
                let length = eight.turn_length().unwrap();
                for _ in 0..(length.as_secs_f64() * 1000.0 * ended_each_ms) as usize {
                    eight.end(eight.begin());
                }
                eight.next_turn(0);
            }
            eight.turn_length().unwrap().as_millis()
        };
        // Each takes 10 ms where eight run at once and one ends every 1.25 ms.
        assert!((55..=65).contains(&length(0.8)), "{}", length(0.8));
        assert_eq!(length(80.0), TURN_LEAST.as_millis());
        assert_eq!(length(0.01), TURN_MOST.as_millis());
    }
}
