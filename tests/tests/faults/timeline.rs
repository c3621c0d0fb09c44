//! When Millrace judged what had happened, by its own SHOW FAILOVERS.

use std::time::Duration;

use crate::cases::Story;
use crate::ground::{AdminRow, Ground};

/// From the fault to the judgement, of the Millrace that took longest; none where no primary was
/// taken out of use.
pub(crate) async fn judged(ground: &Ground, story: &Story) -> anyhow::Result<Option<Duration>> {
    let answers = ground.operate("SHOW FAILOVERS").await?;
    let each = answers.iter().filter_map(|rows| {
        // The first after the fault: later ones are the fault's end.
        let after = rows.iter().filter_map(judged_ms);
        after.filter(|at| *at >= story.struck_ms).min()
    });
    let latest = each.max();
    Ok(latest.map(|at| Duration::from_millis(at - story.struck_ms)))
}

/// The judgement by the wall clock, in milliseconds.
fn judged_ms(row: &AdminRow) -> Option<u64> {
    let text = |name: &str| row.get(name)?.as_deref();
    let began = wall_ms(text("began")?)?;
    Some(began + text("judged_ms")?.parse::<u64>().ok()?)
}

/// `2026-11-22 15:04:05.678`, UTC, in milliseconds since 1970.
fn wall_ms(text: &str) -> Option<u64> {
    let numbers: Option<Vec<u64>> = text
        .split(['-', ' ', ':', '.'])
        .map(|part| part.parse().ok())
        .collect();
    let [year, month, day, hour, minute, second, ms] = numbers?[..] else {
        return None;
    };
    // Days of the civil calendar, years beginning in March: leap days come last.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let in_year = (153 * month + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + in_year;
    let since_1970 = days - 719_468;
    Some((((since_1970 * 24 + hour) * 60 + minute) * 60 + second) * 1000 + ms)
}

#[test]
fn wall_clock_times_are_read() {
    assert_eq!(wall_ms("1970-01-01 00:00:00.000"), Some(0));
    assert_eq!(wall_ms("2024-02-29 12:00:01.500"), Some(1_709_208_001_500));
    assert_eq!(wall_ms("never"), None);
}
