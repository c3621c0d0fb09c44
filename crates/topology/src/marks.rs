//! How far the primary was at which time, and how late that makes a replica. Asks nobody.

use std::collections::VecDeque;

use crate::{GtidSet, Millis, ProbeReport, ServerId};

/// Where the primary was at which time. A replica is as late as the oldest of these that it has not
/// reached. What servers say of their lag themselves is measured by the clock in the transaction
/// that they apply (wrong after SET timestamp), and is 0 where the receiver hangs.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    of: Option<ServerId>,
    /// Where it was at first. What a replica lacks of that, it may lack for ever: it was set up
    /// without it.
    first: Option<(Millis, GtidSet)>,
    /// What came to it until later times.
    since: VecDeque<(Millis, GtidSet)>,
}

impl Marks {
    const MAX: usize = 128;
    /// What a replica lacks that has all that came so much later, it never gets.
    const NEVER_MS: u64 = 60_000;

    pub(crate) fn note(&mut self, primary: ServerId, at: Millis, report: &ProbeReport) {
        let usable = report.gtid && !report.executed.is_empty();
        // RESET BINARY LOGS AND GTIDS, or other data: what it had before will never come to a replica.
        let went_back = usable && self.has_beyond(report);
        if self.of != Some(primary) || !usable || went_back {
            *self = Marks {
                of: Some(primary),
                ..Marks::default()
            };
        }
        if !usable {
            return;
        }
        let Some((_, first)) = &self.first else {
            self.first = Some((at, report.executed.clone()));
            return;
        };
        let mut advanced = report.executed.clone();
        advanced.subtract(first);
        let unchanged = match self.since.back() {
            Some((_, last)) => *last == advanced,
            None => advanced.is_empty(),
        };
        if unchanged {
            return;
        }
        if self.since.len() == Self::MAX {
            // Every second of the older half: what is far behind need not be known to the second.
            let mut at = 0;
            self.since.retain(|_| {
                at += 1;
                at > Self::MAX / 2 || at % 2 == 0
            });
        }
        self.since.push_back((at, advanced));
    }

    /// Whether the primary has had what it has no more.
    fn has_beyond(&self, report: &ProbeReport) -> bool {
        let first = self.first.iter();
        let last = self.since.back();
        let mut marks = first.chain(last);
        marks.any(|(_, mark)| !report.executed.contains(mark))
    }

    pub(crate) fn lag_seconds(&self, at: Millis, report: &ProbeReport) -> Option<u64> {
        if !report.gtid || report.executed.is_empty() {
            return None;
        }
        let (_, first) = self.first.as_ref()?;
        let reached = self
            .since
            .partition_point(|(_, mark)| report.executed.reaches(mark));
        let lag = self.since.get(reached);
        let lag = lag.map_or(0, |(since, _)| at.0.saturating_sub(since.0) / 1000);
        if report.executed.contains(first) {
            return Some(lag);
        }
        // It was behind before anybody looked. By how much, only it knows.
        let said = report.replication.as_ref();
        let said = said.and_then(|status| status.lag_seconds);
        Some(lag.max(said.unwrap_or(0)))
    }

    /// What the primary has had for long and none of these, which have all that came since, has.
    pub(crate) fn unreplicated<'a>(
        &self,
        at: Millis,
        replicas: impl Iterator<Item = &'a ProbeReport>,
    ) -> Option<GtidSet> {
        let (since, first) = self.first.as_ref()?;
        let (last, _) = self.since.back()?;
        if last.0 < since.0.saturating_add(Self::NEVER_MS) {
            return None;
        }
        let mut never = first.clone();
        let mut any = false;
        for replica in replicas {
            if self.lag_seconds(at, replica) != Some(0) {
                return None;
            }
            never.leave_out_known(&replica.executed);
            any = true;
        }
        (any && !never.is_empty()).then_some(never)
    }
}
