//! How much of a processor a thread wants. Linux only, like all of Millrace.

use std::fs;
use std::time::Duration;

/// For how long this thread has run or waited for a processor, since it began; none where the system does
/// not count that (`CONFIG_SCHED_INFO`).
pub(super) fn wanted() -> Option<Duration> {
    parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// Nanoseconds on a processor, nanoseconds on a run queue, and how often it has run (the kernel's
/// documentation, scheduler/sched-stats).
fn parse(text: &str) -> Option<Duration> {
    let mut numbers = text.split_ascii_whitespace();
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let (ran, waited) = (next()?, next()?);
    (ran > 0).then(|| Duration::from_nanos(ran.saturating_add(waited)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let table = [
            ("1200 300 7\n", Some(1_500)),
            // It does not count.
            ("0 0 0\n", None),
            ("12", None),
            ("", None),
        ];
        for (text, nanos) in table {
            assert_eq!(parse(text), nanos.map(Duration::from_nanos), "{text:?}");
        }
    }
}
