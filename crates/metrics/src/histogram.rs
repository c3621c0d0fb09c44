//! A latency histogram with power-of-two buckets: one addition to bump. Knows no labels.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::counter::bump;

/// Buckets with an upper bound; one more holds what is above them all.
pub const BUCKETS: usize = 22;

/// The first bucket's upper bound is 2 to this power, in microseconds.
const FIRST_POWER: u32 = 4;

/// The upper bound of a bucket in seconds: 16 µs, 32 µs, … 33.554432 s.
pub fn bucket_bound_seconds(bucket: usize) -> f64 {
    (1_u64 << (bucket + FIRST_POWER as usize)) as f64 / 1e6
}

/// Bumped by one worker.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, elapsed: Duration) {
        let us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        bump(&self.counts[bucket(us)], 1);
        bump(&self.sum_us, us);
    }
}

/// The first bucket whose bound is not below `us`.
fn bucket(us: u64) -> usize {
    let power = us
        .saturating_sub(1)
        .checked_ilog2()
        .map_or(0, |log| log + 1);
    (power.saturating_sub(FIRST_POWER) as usize).min(BUCKETS)
}

/// Several histograms' sum.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HistogramSum {
    /// Observations per bucket (not cumulated), the last above all bounds.
    pub counts: [u64; BUCKETS + 1],
    /// The sum of all observations, in microseconds.
    pub sum_us: u64,
}

impl HistogramSum {
    pub(crate) fn add(&mut self, other: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count.load(Relaxed);
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us.load(Relaxed));
    }

    /// How many observations there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was observed after `before`, an earlier sum of the same histograms.
    #[must_use]
    pub fn since(&self, before: &HistogramSum) -> HistogramSum {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&before.counts) {
            *count = count.saturating_sub(*before);
        }
        since.sum_us = self.sum_us.wrapping_sub(before.sum_us);
        since
    }

    /// A percentile in microseconds, as if observations were spread evenly within their bucket; 0
    /// where there are none.
    pub fn percentile_us(&self, percent: u64) -> u64 {
        let mut below = self.count() * percent / 100;
        for (bucket, count) in (0_u32..).zip(self.counts) {
            if below < count {
                let bound = 1 << (bucket + FIRST_POWER);
                let floor = if bucket == 0 { 0 } else { bound / 2 };
                return floor + (bound - floor) * below / count;
            }
            below -= count;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_falls_into_the_bucket_that_bounds_it() {
        let table = [
            (0, 0),
            (16, 0),
            (17, 1),
            (32, 1),
            (33, 2),
            (1_000, 6),
            (1_024, 6),
            (1_025, 7),
            (33_554_432, 21),
            (33_554_433, 22),
            (u64::MAX, 22),
        ];
        for (us, expected) in table {
            assert_eq!(bucket(us), expected, "{us} µs");
        }
        assert_eq!(bucket_bound_seconds(0), 0.000_016);
        assert_eq!(bucket_bound_seconds(21), 33.554_432);
    }

    #[test]
    fn sums_over_workers() {
        let (a, b) = (Histogram::default(), Histogram::default());
        a.observe(Duration::from_micros(10));
        b.observe(Duration::from_micros(20));
        b.observe(Duration::from_secs(60));
        let mut sum = HistogramSum::default();
        sum.add(&a);
        sum.add(&b);
        assert_eq!(sum.count(), 3);
        assert_eq!(sum.sum_us, 60_000_030);
        assert_eq!(
            (sum.counts[0], sum.counts[1], sum.counts[BUCKETS]),
            (1, 1, 1)
        );
    }

    #[test]
    fn percentiles_lie_within_their_bucket() {
        let histogram = Histogram::default();
        let sum = || {
            let mut sum = HistogramSum::default();
            sum.add(&histogram);
            sum
        };
        assert_eq!(sum().percentile_us(25), 0);
        for us in [10, 100, 1000, 1000] {
            histogram.observe(Duration::from_micros(us));
        }
        let before = sum();
        let found = [0, 24, 25, 50, 99].map(|percent| before.percentile_us(percent));
        assert_eq!(found, [0, 0, 64, 512, 768]);
        histogram.observe(Duration::from_micros(5000));
        let since = sum().since(&before);
        assert_eq!((since.count(), since.sum_us), (1, 5000));
        assert_eq!(since.percentile_us(25), 4096);
    }
}
