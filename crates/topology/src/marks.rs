//! How far the primary was at which time, and how late that makes a replica. Asks nobody.

use std::collections::VecDeque;

use crate::{GtidSet, Millis, ProbeReport, ServerId};

/// Where the primary was at which time. A replica is as late as the oldest of these that it has not
/// reached. What servers say of their lag themselves is measured by the clock in the transaction
/// that they apply (wrong after SET timestamp), and is 0 where the receiver hangs.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    of: Option<ServerId>,
    marks: VecDeque<(Millis, GtidSet)>,
}

impl Marks {
    const MAX: usize = 128;

    pub(crate) fn note(&mut self, primary: ServerId, at: Millis, report: &ProbeReport) {
        let usable = report.gtid && !report.executed.is_empty();
        if self.of != Some(primary) || !usable {
            self.marks.clear();
            self.of = Some(primary);
        }
        if !usable
            || self
                .marks
                .back()
                .is_some_and(|(_, last)| *last == report.executed)
        {
            return;
        }
        if self.marks.len() == Self::MAX {
            // Every second of the older half: what is far behind need not be known to the second.
            let mut at = 0;
            self.marks.retain(|_| {
                at += 1;
                at > Self::MAX / 2 || at % 2 == 0
            });
        }
        self.marks.push_back((at, report.executed.clone()));
    }

    pub(crate) fn lag_seconds(&self, at: Millis, report: &ProbeReport) -> Option<u64> {
        if !report.gtid || report.executed.is_empty() || self.marks.is_empty() {
            return None;
        }
        let reached = self
            .marks
            .partition_point(|(_, mark)| report.executed.contains(mark));
        let lag = self
            .marks
            .get(reached)
            .map_or(0, |(since, _)| at.0.saturating_sub(since.0));
        Some(lag / 1000)
    }
}
