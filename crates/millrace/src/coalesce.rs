//! Fewer wake-ups where CPU is scarce. A worker that has nothing to do sleeps, and is woken for nearly
//! each packet alone, which costs more than handling it does. Where somebody waits for that CPU, workers
//! rest for a moment before they sleep, so that they are woken once for all that came meanwhile. Network
//! cards do the same to their processors, and call it interrupt coalescing. Whether CPU is scarce,
//! [`Cpu`] says; this says for how long to rest.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use millrace_metrics::{HistogramSum, Metrics};
use tracing::warn;

use crate::cpu::{Cpu, Supply};

/// A statement meets two rests at most: a packet of the client's and one of the server's. Each is
/// no more than this part of what half of the statements take at least.
const PART: u64 = 8;

/// A shorter rest gains nothing.
const LEAST: Duration = Duration::from_micros(20);

/// Where the process's group is throttled, a rest may be so many times as long as the limit. What it
/// rests is not charged to it, and it stands still for longer than that whenever it has used up its share:
/// by Linux's defaults until the next 100 ms begin.
const THROTTLED: u32 = 4;

/// So many packets have to be expected in a rest.
const PACKETS: u128 = 2;

/// How long a worker rests before it sleeps; shared with that worker.
#[derive(Debug, Default)]
pub(crate) struct Rest(AtomicU64);

impl Rest {
    /// To be called on the worker's thread first: by default the system lets each rest last up to
    /// 50 µs longer than asked for (prctl(2), PR_SET_TIMERSLACK).
    pub(crate) fn prepare_thread(&self) {
        let slack = NonZeroU64::new(1_000);
        if let Err(error) = rustix::thread::set_current_timer_slack(slack) {
            warn!(%error, "rests of workers last longer than they should");
        }
    }

    /// To be called by the worker when it has nothing to do, before it sleeps.
    pub(crate) fn take(&self) {
        let nanos = self.0.load(Relaxed);
        if nanos > 0 {
            thread::sleep(Duration::from_nanos(nanos));
        }
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }

    fn set(&self, rest: Duration) {
        let nanos = u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanos, Relaxed);
    }
}

/// Says how long each worker rests.
#[derive(Debug)]
pub(crate) struct Coalescer {
    /// The longest rest where CPU is scarce but the process is not throttled.
    limit: Duration,
    metrics: Arc<Metrics>,
    workers: Vec<(Arc<Rest>, HistogramSum)>,
    cpu: Cpu,
    last: Instant,
}

impl Coalescer {
    /// For so many workers; `limit` is the longest rest, zero for none.
    pub(crate) fn new(limit: Duration, workers: usize, metrics: Arc<Metrics>) -> Self {
        Coalescer {
            limit,
            metrics,
            workers: (0..workers).map(|_| Default::default()).collect(),
            cpu: Cpu::default(),
            last: Instant::now(),
        }
    }

    /// What each worker is to take before it sleeps.
    pub(crate) fn rests(&self) -> impl Iterator<Item = Arc<Rest>> {
        self.workers.iter().map(|(rest, _)| rest.clone())
    }

    /// Looks at what the workers have done since the last time; to be called some times a second.
    pub(crate) fn adjust(&mut self) {
        if self.limit.is_zero() {
            return;
        }
        let elapsed = self.last.elapsed();
        self.last = Instant::now();
        let metrics = &self.metrics;
        let ended: Vec<HistogramSum> = (0..)
            .zip(&mut self.workers)
            .map(|(index, (_, before))| {
                let now = metrics.statements_of(index);
                let ended = now.since(before);
                *before = now;
                ended
            })
            .collect();
        let throttled = longest(self.limit, Supply::Throttled);
        let has_much = |ended| !worth(ended, elapsed, throttled).is_zero();
        // Where there is not much to do, nobody looks at the CPU either.
        let supply = match ended.iter().any(has_much) {
            true => self.cpu.supply(),
            false => Supply::Enough,
        };
        let limit = longest(self.limit, supply);
        let mut most = Duration::ZERO;
        for ((rest, _), ended) in self.workers.iter().zip(&ended) {
            let wanted = worth(ended, elapsed, limit);
            rest.set(next(rest.get(), wanted, supply != Supply::Enough));
            most = most.max(rest.get());
        }
        self.metrics.set_coalescing(most);
    }
}

/// The longest rest by what there is of CPU.
fn longest(limit: Duration, supply: Supply) -> Duration {
    match supply {
        Supply::Throttled => limit * THROTTLED,
        Supply::Busy | Supply::Enough => limit,
    }
}

/// The longest rest that a worker's statements bear, as they were in the time `elapsed`; zero where it
/// would bring nothing together.
fn worth(ended: &HistogramSum, elapsed: Duration, limit: Duration) -> Duration {
    let rest = Duration::from_micros(ended.percentile_us(50) / PART).min(limit);
    let packets = 2 * u128::from(ended.count());
    let enough = packets * rest.as_nanos() >= PACKETS * elapsed.as_nanos();
    match rest >= LEAST && enough {
        true => rest,
        false => Duration::ZERO,
    }
}

/// Half the way to what is wanted, or away from it, so that a rest ends up where it frees just
/// what others need, and a moment without statements does not end it.
fn next(now: Duration, wanted: Duration, scarce: bool) -> Duration {
    if scarce && !wanted.is_zero() {
        (now.min(wanted) + wanted) / 2
    } else if now / 2 < LEAST {
        Duration::ZERO
    } else {
        now / 2
    }
}

#[cfg(test)]
mod tests {
    use millrace_metrics::StatementKind;

    use super::*;

    const LIMIT: Duration = Duration::from_micros(250);
    const QUARTER: Duration = Duration::from_millis(250);

    fn micros(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn ended(statements: &[(u64, u64)]) -> HistogramSum {
        let metrics = Metrics::new(1, vec!["a:1".to_owned()]);
        for (count, us) in statements {
            for _ in 0..*count {
                let worker = metrics.worker(0);
                worker.statement(Some(0), StatementKind::ALL[0], micros(*us));
            }
        }
        metrics.statements_of(0)
    }

    #[test]
    fn a_rest_is_short_beside_what_statements_take() {
        let table: [(&[(u64, u64)], u64); 8] = [
            // Many clients: 16,000 statements a second of 4 ms.
            (&[(4000, 3900)], 250),
            (&[(4000, 900)], 96),
            // Slow ones change little for the others.
            (&[(4000, 900), (500, 2_000_000)], 100),
            (&[(4000, 100), (3000, 9_000)], 0),
            // One client: it would be alone in every rest.
            (&[(1200, 120)], 0),
            // Few statements, however slow.
            (&[(500, 60_000)], 0),
            (&[(1000, 60_000)], 250),
            (&[], 0),
        ];
        for (statements, us) in table {
            let rest = worth(&ended(statements), QUARTER, LIMIT);
            assert_eq!(rest, micros(us), "{statements:?}");
        }
        assert_eq!(
            worth(&ended(&[(4000, 3900)]), QUARTER, micros(70)),
            micros(70)
        );
        assert_eq!(worth(&ended(&[(10, 3900)]), Duration::ZERO, LIMIT), LIMIT);
    }

    #[test]
    fn it_grows_while_cpu_is_scarce_and_goes_when_it_is_not() {
        let wanted = micros(200);
        let mut rest = Duration::ZERO;
        let mut seen = Vec::new();
        for scarce in [true, true, true, false, false, false, false] {
            rest = next(rest, wanted, scarce);
            seen.push(rest.as_micros());
        }
        assert_eq!(seen, [100, 150, 175, 87, 43, 21, 0]);
        assert_eq!(next(micros(200), micros(40), true), micros(40));
        assert_eq!(next(micros(200), Duration::ZERO, true), micros(100));
    }

    #[test]
    fn who_is_throttled_may_rest_for_longer() {
        let table = [
            (Supply::Enough, LIMIT),
            (Supply::Busy, LIMIT),
            (Supply::Throttled, Duration::from_millis(1)),
        ];
        for (supply, most) in table {
            assert_eq!(longest(LIMIT, supply), most, "{supply:?}");
        }
        assert_eq!(longest(Duration::ZERO, Supply::Throttled), Duration::ZERO);
    }

    #[test]
    fn without_a_limit_workers_never_rest() {
        let metrics = Arc::new(Metrics::new(2, Vec::new()));
        let mut coalescer = Coalescer::new(Duration::ZERO, 2, metrics);
        coalescer.adjust();
        let rests: Vec<Duration> = coalescer.rests().map(|rest| rest.get()).collect();
        assert_eq!(rests, [Duration::ZERO; 2]);
    }
}
