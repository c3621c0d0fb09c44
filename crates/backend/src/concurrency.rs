//! How many statements a worker has one server run at once. A server that is given many more of them than
//! it has processors for gets less done, not more: its threads get into each other's way, and each
//! finds the caches cold. So where there is a crowd, what is beyond a limit waits here, in order, until others
//! have ended; the limit is found by trying ([`finder`]). What takes long, for a lock, a disk or a slow
//! reader, soon counts no more, so that it holds up nobody; and where next to nothing ends any more, as all
//! wait for the same lock, the limit is lifted step by step until something does.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::Instant;

use self::finder::Finder;

mod finder;

/// `pool.concurrency`: how many statements one server runs at once, over all workers. Statements of
/// sessions that keep their connection always run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    /// As many as get the most done.
    #[default]
    Auto,
    /// No more than this.
    At(u32),
    /// As many as there are connections.
    Off,
}

/// The limit that `auto` begins with, over all workers; and that of each, where there are many of them.
const FIRST: u32 = 8;
const FIRST_LEAST: u32 = 4;

/// Where so many want to run in all, it is a crowd.
const CROWD: u32 = 32;

/// A turn is as long as so many statements take one after the other,
const TURN_STATEMENTS: u32 = 6;
/// within these bounds; at first it is the least.
const TURN_LEAST: Duration = Duration::from_millis(20);
const TURN_MOST: Duration = Duration::from_millis(200);

/// When fewer have ended for so long than may run at once, twice as many may; after the next turn, four
/// times. It is longer than a server stands still that has used up its share of the processors, which
/// by Linux's defaults is given every 100 ms.
const STALL: Duration = Duration::from_millis(250);

/// One worker's statements on one server.
#[derive(Debug)]
pub(crate) struct Concurrency {
    limit: Cell<u32>,
    /// As long as fewer than these run and wait, all may run.
    crowd: u32,
    /// Those that count: begun in this turn, and in the one before.
    running: [Cell<u32>; 2],
    /// All of them.
    all: Cell<u32>,
    turn: Cell<u32>,
    /// So many have ended in this turn.
    ended: Cell<u32>,
    length: Cell<Duration>,
    /// For so long next to nothing has ended.
    stalled: Cell<Duration>,
    /// So many times the limit may run meanwhile.
    relief: Cell<u32>,
    /// The limit with that.
    allowed: Cell<u32>,
    /// The finder wants to know what ends.
    is_trying: Cell<bool>,
    finder: Option<RefCell<Finder>>,
}

/// A statement that runs, by the turn in which it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Running(u32);

impl Concurrency {
    /// For one of so many workers; `most` connections to the server are allowed.
    pub(crate) fn new(limit: Limit, workers: usize, most: usize) -> Concurrency {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).max(1);
        let (workers, most) = (count(workers), count(most));
        let share = |number: u32| number.div_ceil(workers).max(1);
        let (limit, crowd, finder) = match limit {
            Limit::Auto => {
                let first = share(FIRST).max(FIRST_LEAST).min(most);
                (first, share(CROWD), Some(Finder::new(first..=most)))
            }
            Limit::At(limit) => (share(limit), 0, None),
            Limit::Off => (u32::MAX, 0, None),
        };
        Concurrency {
            limit: Cell::new(limit),
            crowd,
            running: Default::default(),
            all: Cell::new(0),
            turn: Cell::new(0),
            ended: Cell::new(0),
            length: Cell::new(TURN_LEAST),
            stalled: Cell::new(Duration::ZERO),
            relief: Cell::new(1),
            allowed: Cell::new(limit),
            is_trying: Cell::new(false),
            finder: finder.map(RefCell::new),
        }
    }

    /// The limit as it is now; none: all may run.
    pub(crate) fn limit(&self) -> Option<u32> {
        Some(self.limit.get()).filter(|limit| *limit < u32::MAX)
    }

    /// Whether one more has to wait, beside so many that do.
    pub(crate) fn is_full(&self, wait: usize) -> bool {
        let running = self.counting();
        running >= self.allowed.get() && running as usize + wait >= self.crowd as usize
    }

    /// Whether a connection may be opened for one of so many that `wait`, beside those that are being
    /// opened.
    pub(crate) fn has_room_for(&self, wait: usize, opening: usize) -> bool {
        let running = self.counting() as usize;
        let most = match running + wait <= self.crowd as usize {
            true => self.allowed.get().max(self.crowd),
            false => self.allowed.get(),
        };
        running + opening < most as usize
    }

    fn set(&self, limit: u32, relief: u32) {
        self.limit.set(limit);
        self.relief.set(relief);
        self.allowed.set(limit.saturating_mul(relief));
    }

    fn counting(&self) -> u32 {
        self.running[0].get() + self.running[1].get()
    }

    /// A statement begins, whether there was room or not.
    pub(crate) fn begin(&self) -> Running {
        let now = self.turn.get();
        let counter = &self.running[now as usize % 2];
        counter.set(counter.get() + 1);
        self.all.set(self.all.get() + 1);
        Running(now)
    }

    /// It has ended; so many `wait`.
    pub(crate) fn end(&self, statement: Running, wait: usize) {
        // One that began longer ago counts no more.
        if self.turn.get().wrapping_sub(statement.0) < 2 {
            let counter = &self.running[statement.0 as usize % 2];
            counter.set(counter.get() - 1);
        }
        if self.is_trying.get() {
            self.tell_finder(wait);
        }
        self.all.set(self.all.get() - 1);
        self.ended.set(self.ended.get().saturating_add(1));
    }

    #[cold]
    fn tell_finder(&self, wait: usize) {
        let Some(finder) = &self.finder else { return };
        let mut finder = finder.borrow_mut();
        let there = wait as u64 + u64::from(self.all.get());
        if let Some(limit) = finder.ended(Instant::now(), there) {
            self.set(limit, self.relief.get());
        }
        self.is_trying.set(finder.is_trying());
    }

    /// A statement has to wait.
    pub(crate) fn waits(&self, now: Instant) {
        if let Some(finder) = &self.finder {
            let mut finder = finder.borrow_mut();
            finder.waits(now, self.limit.get());
            self.is_trying.set(finder.is_trying());
        }
    }

    /// How long a turn is now: the next is to begin after this, as long as somebody waits. None where
    /// nobody waits for others to end.
    pub(crate) fn turn_length(&self) -> Option<Duration> {
        self.limit().map(|_| self.length.get())
    }

    /// The next turn begins, while so many `wait`: what began before the last one counts no more.
    pub(crate) fn next_turn(&self, wait: usize) {
        self.running[(self.turn.get() as usize + 1) % 2].set(0);
        self.turn.set(self.turn.get().wrapping_add(1));
        let (ended, limit, length) = (self.ended.replace(0), self.limit.get(), self.length.get());
        self.note_stall(wait > 0 && ended < limit, length);
        let length = match ended < limit {
            // Too few to tell.
            true => length * 5 / 4,
            false => (length + length * TURN_STATEMENTS * limit / ended) / 2,
        };
        self.length.set(length.clamp(TURN_LEAST, TURN_MOST));
    }

    fn note_stall(&self, is_stalled: bool, length: Duration) {
        let stalled = match is_stalled {
            true => self.stalled.get() + length,
            false => Duration::ZERO,
        };
        self.stalled.set(stalled);
        let relief = match stalled < STALL {
            true => 1,
            false => self.relief.get().saturating_mul(2),
        };
        self.set(self.limit.get(), relief);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limit: Limit, workers: usize, most: usize) -> Concurrency {
        Concurrency::new(limit, workers, most)
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
        two.end(first, 0);
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
            auto.end(*statement, 30);
        }
        assert!(auto.is_full(30));
        auto.end(running[12], 30);
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
            two.end(statement, 0);
        }
        assert!(two.is_full(0), "they did not count");
        two.next_turn(0);
        for statement in young {
            two.end(statement, 0);
        }
        assert_eq!(two.counting(), 0);
        // Also when turns are counted from the beginning again.
        two.turn.set(u32::MAX);
        let last = two.begin();
        two.next_turn(0);
        two.end(last, 0);
        assert_eq!(two.counting(), 0);
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
            four.end(four.begin(), 50);
        }
        four.next_turn(50);
        assert!(four.is_full(50));
        four.next_turn(50);
        assert_eq!(four.allowed.get(), 4);
        for _ in 0..50 {
            four.next_turn(0);
        }
        assert_eq!(four.allowed.get(), 4, "nobody waits");
    }

    #[test]
    fn more_than_fit_may_run() {
        let one = of(Limit::At(1), 1, 100);
        let both = [one.begin(), one.begin()];
        one.end(both[0], 0);
        assert!(one.is_full(0));
        one.end(both[1], 0);
        assert!(!one.is_full(0));
    }

    #[test]
    fn turns_are_as_long_as_some_statements_take() {
        let eight = of(Limit::At(8), 1, 100);
        let length = |ended_each_ms: f64| {
            for _ in 0..100 {
                let length = eight.turn_length().unwrap();
                for _ in 0..(length.as_secs_f64() * 1000.0 * ended_each_ms) as usize {
                    eight.end(eight.begin(), 0);
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
