//! SHOW FAILOVERS: the last changes of the primary, each as a timeline.

use std::time::{SystemTime, UNIX_EPOCH};

use millrace_backend::failovers::{FailoverCount, Moment, Timeline};

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::Sources;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Failovers,
    name: "FAILOVERS",
    also: &["FAILOVER"],
    statement: "SHOW FAILOVERS",
    help: "the last changes of the primary as timelines in milliseconds, and what came of statements",
    columns: &[
        int("number", "counts them since the start, the latest first"),
        text("kind", "`lost`, `planned`, `drained` or `conflict`"),
        text("old_primary", "the primary before"),
        text("new_primary", "the primary after; NULL while there is none"),
        text(
            "began",
            "the old primary's last good answer, UTC: the timeline's zero",
        ),
        int(
            "suspected_ms",
            "the first sign that something is wrong; NULL where there was none",
        ),
        int("judged_ms", "the primary was taken out of use"),
        int(
            "known_ms",
            "the new primary was known; NULL while it is not",
        ),
        int(
            "served_ms",
            "the first statement that had waited was answered; NULL while none was",
        ),
        int(
            "pause_ms",
            "how long no server took writes: from `judged_ms` to `known_ms`",
        ),
        int("held", "statements that waited for a primary"),
        int("retried", "statements that were sent again elsewhere"),
        int(
            "replayed",
            "transactions that were run again on the new primary",
        ),
        int(
            "failed",
            "statements that ended with an error and had no effect, and results that broke off",
        ),
        int(
            "unknown_outcome",
            "statements that ended with an error that says their outcome is not known",
        ),
        text("suspicion", "what the first sign was"),
        text("evidence", "what it was judged from"),
    ],
    like: 1,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    for timeline in sources.monitor.failovers().list() {
        answer.row(&row(&timeline)).await?;
    }
    Ok(())
}

fn row(timeline: &Timeline) -> Vec<Cell> {
    let zero = timeline.last_good.unwrap_or(timeline.judged);
    let after = |moment: Moment| moment.at.since(zero.at);
    let name = |server: &Option<millrace_backend::failovers::Named>| {
        server.as_ref().map(|named| named.address.to_string())
    };
    let mut row: Vec<Cell> = vec![
        timeline.number.into(),
        timeline.kind.as_str().into(),
        name(&timeline.old).into(),
        name(&timeline.new).into(),
        utc(zero.wall).into(),
        timeline.suspected.map(after).into(),
        after(timeline.judged).into(),
        timeline.known.map(after).into(),
        timeline.served.map(after).into(),
        timeline.pause_ms().into(),
    ];
    row.extend(FailoverCount::ALL.map(|what| Cell::from(timeline.count(what))));
    row.push(timeline.suspicion.to_string().into());
    row.push(timeline.evidence.to_string().into());
    row
}

/// `2026-11-22 15:04:05.678`, as a server shows DATETIME(3).
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Howard Hinnant's civil_from_days: years begin in March, so that the leap day is the last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_399, "2000-02-28 23:59:59.000"),
            (951_782_400, "2000-02-29 00:00:00.000"),
            (951_868_800, "2000-03-01 00:00:00.000"),
            (1_767_225_599, "2025-12-31 23:59:59.000"),
            (4_107_542_400, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
