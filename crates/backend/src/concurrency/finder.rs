//! Finds out whether a server would get more done if it ran more statements at once, by trying.
//!
//! Where processors are what is scarce, more at once get no more done. Where a statement waits for
//! a disk, for replicas or for the network, twice as many get up to twice as much done. That is a difference
//! which shows through all that a load's own ups and downs do: so a limit is doubled where that clearly
//! helps, and halved again where that does no harm.
//!
//! What is compared is how many statements end in a time, while others wait. (Not how long they take,
//! their wait included: where it is this process that lacks CPU, they wait in sockets that it has not read,
//! and nobody can say how long.) Both limits have their windows of time in turns, so that a load that
//! changes meanwhile meets both alike.
//!
//! Where the worker itself wants a processor nearly all the time, none of its servers may be what it waits
//! for: one that may run more statements takes them from the others, and seems to get more done. There
//! nothing but a great gain is believed.
//!
//! Where statements take so long that a trial would, nothing is compared: what many at once cost a server
//! is little beside what each of those does, and what it waits for may be anything. There the limit goes
//! up at once.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

/// A window lasts for so long, which is how often a server that may use part of a processor is given
/// it, and until so many times as many statements as may run at once have ended in it, within these bounds;
const WINDOW: Duration = Duration::from_millis(100);
const ENDED_EACH: u64 = 4;
const ENDED: RangeInclusive<u64> = 40..=100;
/// but no longer than this, which is slow.
const WINDOW_MOST: Duration = Duration::from_millis(400);

/// Twice as many at once are taken if from one end to the next it takes less than this part of the time
/// then; and half as many, less than this.
const MORE: f64 = 0.9;
const FEWER: f64 = 1.08;

/// A gain so great leaves no doubt after fewer pairs, and is followed by a greater step.
const MUCH: f64 = 0.65;
const PAIRS_OF_MUCH: usize = 4;
const STEP: u32 = 2;
const STEP_AFTER_MUCH: u32 = 4;

/// Pairs of windows that a trial takes at least; after which it ends if it shows no promise; and at most.
const PAIRS: usize = 6;
const PAIRS_ENOUGH: usize = 8;
const PAIRS_MOST: usize = 40;

/// How long to wait before the first trial, and after one that came to nothing: twice as long each time.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(5);

/// A window that is still open after this is its worker's that has had nothing to do meanwhile.
const STALE: Duration = Duration::from_millis(800);

/// When nobody has had to wait for this long, whatever is known is old.
const CALM: Duration = Duration::from_secs(5);

/// A worker that wants a processor for this part of the time, rests not counted, could do little more
/// whatever its servers did.
const BUSY: f64 = 0.65;

/// For how long the thread has wanted a processor.
type Wanted = fn() -> Option<Duration>;

/// Says when to change the limit, and to what.
#[derive(Debug)]
pub(super) struct Finder {
    bounds: RangeInclusive<u32>,
    /// Whether the next trial is of more, and how many times as many.
    more: bool,
    step: u32,
    pause: Duration,
    /// When it may begin.
    next: Instant,
    last_wait: Option<Instant>,
    trial: Option<Trial>,
    wanted: Wanted,
}

/// A trial of another limit.
#[derive(Debug)]
struct Trial {
    /// Who measures.
    worker: usize,
    limit: u32,
    other: u32,
    more: bool,
    began: Instant,
    wanted_before: Option<Duration>,
    /// The time from one end to the next in the first window of a pair.
    first: Option<f64>,
    /// Of each pair, the logarithm of the other limit's time by the first one's: how many, their sum, and
    /// that of their squares.
    pairs: usize,
    sum: f64,
    squares: f64,
    /// The least of the gains.
    worst: f64,
    window: Window,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    ended: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Taken,
    Left,
    Open,
    Slow,
}

impl Finder {
    /// Begins with the lower bound.
    pub(super) fn new(bounds: RangeInclusive<u32>, wanted: Wanted) -> Finder {
        Finder {
            bounds,
            more: true,
            step: STEP,
            pause: PAUSE,
            next: Instant::now(),
            last_wait: None,
            trial: None,
            wanted,
        }
    }

    /// Whether this worker measures.
    pub(super) fn is_trying(&self, worker: usize) -> bool {
        let trial = self.trial.as_ref();
        trial.is_some_and(|trial| trial.worker == worker)
    }

    /// One of a worker's statements has to wait, under this limit. Begins a trial when it is time. The
    /// limit from now on.
    pub(super) fn waits(&mut self, worker: usize, now: Instant, limit: u32) -> u32 {
        let last = self.last_wait.replace(now);
        if let Some(trial) = &self.trial {
            if now - trial.window.began < STALE {
                return limit;
            }
            let before = trial.limit;
            self.trial = None;
            return before;
        }
        if last.is_none_or(|last| now - last > CALM) {
            self.pause = PAUSE;
            self.next = now + PAUSE;
        }
        if now >= self.next {
            self.begin(worker, now, limit);
        }
        limit
    }

    fn times(&self, limit: u32, step: u32) -> u32 {
        limit.saturating_mul(step).min(*self.bounds.end())
    }

    fn begin(&mut self, worker: usize, now: Instant, limit: u32) {
        let more = self.times(limit, self.step);
        let fewer = (limit / STEP).max(*self.bounds.start());
        let is_bound = |other: u32| other == limit;
        self.more = (self.more && !is_bound(more)) || is_bound(fewer);
        let other = if self.more { more } else { fewer };
        if other != limit {
            self.trial = Some(Trial {
                worker,
                limit,
                other,
                more: self.more,
                began: now,
                wanted_before: (self.wanted)(),
                first: None,
                pairs: 0,
                sum: 0.0,
                squares: 0.0,
                worst: f64::NEG_INFINITY,
                window: Window::new(now),
            });
        }
    }

    /// One of a worker's statements has ended. The limit for the next window, or for good.
    pub(super) fn ended(&mut self, worker: usize, now: Instant) -> Option<u32> {
        let trial = self.trial.as_mut();
        let trial = trial.filter(|trial| trial.worker == worker)?;
        trial.window.ended += 1;
        let elapsed = now - trial.window.began;
        let demanded = ENDED_EACH * u64::from(trial.limit_now());
        let is_enough = trial.window.ended >= demanded.clamp(*ENDED.start(), *ENDED.end());
        let do_wait = self.last_wait.is_some_and(|last| now - last < WINDOW_MOST);
        let verdict = match (elapsed < WINDOW_MOST, do_wait) {
            (true, _) if elapsed < WINDOW || !is_enough => return None,
            (true, _) => trial.note(now, elapsed),
            (false, true) if elapsed < STALE => Verdict::Slow,
            // Those who waited have gone meanwhile.
            (false, _) => Verdict::Left,
        };
        let much = trial.pairs > 0 && trial.worst < MUCH.ln();
        let in_doubt = verdict == Verdict::Taken && trial.more && !much;
        let verdict = match in_doubt && trial.is_busy(now, self.wanted) {
            true => Verdict::Left,
            false => verdict,
        };
        let (limit, other) = (trial.limit, trial.other);
        if verdict == Verdict::Open {
            return Some(trial.limit_now());
        }
        debug!(
            limit,
            other,
            ?verdict,
            pairs = trial.pairs,
            "tried another concurrency"
        );
        self.trial = None;
        self.step = match verdict == Verdict::Taken && much {
            true => STEP_AFTER_MUCH,
            false => STEP,
        };
        match verdict {
            Verdict::Left => {
                self.more = !self.more;
                self.next = now + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MOST);
                return Some(limit);
            }
            _ => {
                self.pause = PAUSE;
                self.next = now;
            }
        }
        Some(match verdict {
            Verdict::Slow => self.times(limit.max(other), STEP_AFTER_MUCH),
            _ => other,
        })
    }
}

impl Trial {
    /// Every second pair begins with the other limit: so a load that grows or falls evenly favours neither.
    fn limit_now(&self) -> u32 {
        match (self.first.is_some(), self.pairs.is_multiple_of(2)) {
            (false, true) | (true, false) => self.limit,
            _ => self.other,
        }
    }

    /// Whether the worker has wanted a processor nearly all the time.
    fn is_busy(&self, now: Instant, wanted: Wanted) -> bool {
        let wanted = self.wanted_before.zip(wanted());
        let wanted = wanted.map(|(before, after)| after.saturating_sub(before));
        wanted.is_some_and(|wanted| wanted > (now - self.began).mul_f64(BUSY))
    }

    fn note(&mut self, now: Instant, elapsed: Duration) -> Verdict {
        let time = elapsed.as_secs_f64() / self.window.ended as f64;
        self.window = Window::new(now);
        let Some(first) = self.first.take() else {
            self.first = Some(time);
            return Verdict::Open;
        };
        let (limit, other) = match self.pairs.is_multiple_of(2) {
            true => (first, time),
            false => (time, first),
        };
        let ratio = (other / limit).ln();
        self.pairs += 1;
        self.sum += ratio;
        self.squares += ratio * ratio;
        self.worst = self.worst.max(ratio);
        self.verdict(if self.more { MORE } else { FEWER }.ln())
    }

    /// Whether the mean is below what is demanded, with two standard errors to spare.
    fn verdict(&self, demanded: f64) -> Verdict {
        let pairs = self.pairs as f64;
        let mean = self.sum / pairs;
        let error = ((self.squares / pairs - mean * mean).max(0.0) / (pairs - 1.0)).sqrt();
        let promise = demanded + demanded.abs() / 2.0;
        match self.pairs {
            PAIRS_OF_MUCH.. if self.worst < MUCH.ln() => Verdict::Taken,
            ..PAIRS => Verdict::Open,
            PAIRS_MOST.. if mean < demanded => Verdict::Taken,
            PAIRS_MOST.. => Verdict::Left,
            _ if mean + 2.0 * error < demanded => Verdict::Taken,
            _ if mean - 2.0 * error > demanded => Verdict::Left,
            PAIRS_ENOUGH.. if mean > promise => Verdict::Left,
            _ => Verdict::Open,
        }
    }
}

impl Window {
    fn new(began: Instant) -> Window {
        Window { began, ended: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static WANTED: Cell<Option<Duration>> = const { Cell::new(None) };
    }

    fn wanted() -> Option<Duration> {
        WANTED.get()
    }

    /// A server, and clients that send it one statement after the other.
    struct Model {
        finder: Finder,
        limit: u32,
        began: Instant,
        now: Instant,
        /// Numbers that look like chance, the same every time.
        seed: u64,
        /// What statements cost at the moment.
        cost: f64,
        taken: Vec<u32>,
    }

    impl Model {
        fn new(seed: u64) -> Model {
            Model {
                finder: Finder::new(8..=100, wanted),
                limit: 8,
                began: Instant::now(),
                now: Instant::now(),
                seed,
                cost: 1.0,
                taken: vec![8],
            }
        }

        fn chance(&mut self) -> f64 {
            self.seed = self
                .seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.seed >> 33) as f64 / (1u64 << 31) as f64
        }

        /// `rate` says how many statements a second the server ends when it runs so many at once, were all
        /// of them alike. They are not: for some hundred at a time they cost up to `unlike` times as much,
        /// as where clients go through the same steps together.
        fn run(&mut self, clients: u32, seconds: u64, unlike: f64, rate: impl Fn(f64) -> f64) {
            self.run_until(
                clients,
                self.now + Duration::from_secs(seconds),
                unlike,
                rate,
            );
        }

        fn run_until(
            &mut self,
            clients: u32,
            end: Instant,
            unlike: f64,
            rate: impl Fn(f64) -> f64,
        ) {
            while self.now < end {
                if self.chance() < 0.005 {
                    self.cost = unlike.powf(self.chance());
                }
                let running = clients.min(self.limit);
                self.now += Duration::from_secs_f64(self.cost / rate(f64::from(running)));
                if self.finder.is_trying(0)
                    && let Some(limit) = self.finder.ended(0, self.now)
                {
                    self.limit = limit;
                    if !self.finder.is_trying(0) && self.taken.last() != Some(&limit) {
                        self.taken.push(limit);
                    }
                }
                if clients > self.limit {
                    self.limit = self.finder.waits(0, self.now, self.limit);
                }
            }
        }

        fn taken(&self) -> u32 {
            self.taken.last().copied().unwrap_or(0)
        }
    }

    /// Eight processors that get somewhat less done the more there is to do.
    fn eight_processors(running: f64) -> f64 {
        let busy = running.min(8.0);
        200.0 * busy / (1.0 + 0.002 * (running - busy))
    }

    fn forty_processors(running: f64) -> f64 {
        200.0 * running.min(40.0)
    }

    /// A disk, or a server that is far away: what takes time is not work.
    fn far_away(running: f64) -> f64 {
        200.0 * running
    }

    #[test]
    fn more_are_taken_where_that_helps_and_soon() {
        for seed in 0..50 {
            let mut model = Model::new(seed);
            model.run(300, 12, 1.5, far_away);
            assert_eq!(model.taken(), 100, "{seed}: {:?}", model.taken);
        }
    }

    #[test]
    fn as_many_are_taken_as_there_are_processors_for() {
        for seed in 0..50 {
            let mut model = Model::new(seed);
            model.run(300, 60, 1.5, forty_processors);
            assert!(
                (32..=64).contains(&model.taken()),
                "{seed}: {:?}",
                model.taken
            );
        }
    }

    #[test]
    fn no_more_are_taken_where_that_does_not_help_whatever_the_load_does() {
        let mut wrong = 0;
        for seed in 0..50 {
            let mut model = Model::new(seed);
            model.run(300, 120, 6.0, eight_processors);
            wrong += model.taken.len() - 1;
        }
        // In a hundred minutes, and half of them are the way back.
        assert!(wrong <= 40, "{wrong}");
    }

    #[test]
    fn a_load_that_becomes_another_is_followed() {
        for seed in 0..50 {
            let mut model = Model::new(seed);
            model.run(300, 12, 1.5, far_away);
            model.run(300, 120, 1.5, eight_processors);
            assert_eq!(model.taken(), 8, "{seed}: {:?}", model.taken);
            model.run(300, 60, 1.5, far_away);
            assert_eq!(model.taken(), 100, "{seed}: {:?}", model.taken);
        }
    }

    #[test]
    fn without_waits_nothing_is_tried() {
        let mut model = Model::new(1);
        model.run(8, 5, 1.5, far_away);
        assert!(!model.finder.is_trying(0));
        assert_eq!(model.taken, [8]);
    }

    #[test]
    fn what_is_slow_is_not_held_up() {
        // Each takes 200 ms, whatever runs beside it.
        for seed in 0..50 {
            let mut model = Model::new(seed);
            model.run(300, 5, 1.0, |running| 5.0 * running);
            assert_eq!(model.taken(), 100, "{seed}: {:?}", model.taken);
        }
    }

    #[test]
    fn a_load_that_ends_in_the_middle_of_a_trial_is_not_slow() {
        let mut model = Model::new(1);
        while !model.finder.is_trying(0) {
            model.run(300, 1, 6.0, eight_processors);
        }
        model.now += Duration::from_secs(60);
        assert_eq!(model.finder.ended(0, model.now), Some(8));
    }

    #[test]
    fn a_worker_that_is_busy_blames_no_server() {
        // Of two servers that wait for the worker, the one with twice as many has two of three.
        let beside_eight = |running: f64| 4_000.0 * running / (running + 8.0);
        for (rate, busy, taken) in [
            (&beside_eight as &dyn Fn(f64) -> f64, 1, 8..=8),
            (&beside_eight, 0, 16..=100),
            (&far_away, 1, 64..=100),
        ] {
            let mut model = Model::new(1);
            for _ in 0..12_000 {
                WANTED.set(Some((model.now - model.began) * busy));
                model.run_until(300, model.now + Duration::from_millis(1), 1.2, rate);
            }
            assert!(taken.contains(&model.taken()), "{busy}: {:?}", model.taken);
        }
        WANTED.set(None);
    }

    #[test]
    fn servers_that_are_far_away_are_soon_given_all() {
        // 30 ms.
        for seed in 0..50 {
            let mut model = Model::new(seed);
            model.run(300, 4, 1.3, |running| 33.0 * running);
            assert_eq!(model.taken(), 100, "{seed}: {:?}", model.taken);
        }
    }
}
