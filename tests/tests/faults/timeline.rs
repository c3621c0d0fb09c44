//! What Millrace judged and when, by its own SHOW FAILOVERS and SHOW SERVERS.

use std::time::{Duration, Instant};

use millrace_sandbox::Topology;

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

/// Waits until every Millrace names the same primary, and where there is one the right one. Gives
/// what they name otherwise.
pub(crate) async fn agree(ground: &Ground) -> anyhow::Result<Option<String>> {
    const LIMIT: Duration = Duration::from_secs(10);
    let primary = ground.address(&ground.cluster.primary().name)?;
    let begun = Instant::now();
    loop {
        let answers = ground
            .operate("SHOW SERVERS WHERE role = 'primary'")
            .await?;
        let named: Vec<Vec<String>> = answers
            .iter()
            .map(|rows| rows.iter().map(address).collect())
            .collect();
        let same = named.windows(2).all(|two| two[0] == two[1]);
        let right = |names: &Vec<String>| match ground.plan.topology {
            Topology::Galera => names.len() == 1,
            Topology::Async | Topology::Group => *names == [primary.clone()],
        };
        if same && named.iter().all(right) {
            return Ok(None);
        }
        if begun.elapsed() > LIMIT {
            return Ok(Some(format!(
                "Millraces take these for the primary: {named:?}; it is {primary}"
            )));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn address(row: &AdminRow) -> String {
    let address = row.get("address").cloned().flatten();
    address.unwrap_or_default()
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
