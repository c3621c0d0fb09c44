//! Whether CPU is scarce: on the machine, or within what its control group lets the process have. Where
//! the system does not tell, it is not.

use std::fs;
use std::time::{Duration, Instant};

/// CPU is scarce on a machine where less than this percentage of it is free,
const FREE_PERCENT: u64 = 5;

/// or less than this part of one CPU: tasks that wait for each other leave some free on the busiest machine.
const FREE_PART: u64 = 3;

/// Milliseconds in a tick of /proc/stat: USER_HZ, which Linux fixes at 100 (proc(5)).
const TICK_MS: u64 = 10;

/// What was longer ago says nothing about now.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Compares what the system has counted with what it had at the last look.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    last: Option<(Instant, Counts)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// Ticks of all CPUs together, and those of them that anybody could have had.
    all: u64,
    free: u64,
    /// How often the process's group had used up what it may have.
    throttled: u64,
}

/// Whether there was CPU for all that wanted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Supply {
    Enough,
    /// Others on the machine want the same CPUs.
    Busy,
    /// The process's control group had used up what it may have, and stood still until it was given more.
    Throttled,
}

impl Cpu {
    /// How it was since the last look, a second ago at most.
    pub(crate) fn supply(&mut self) -> Supply {
        let now = (Instant::now(), look());
        match self.last.replace(now) {
            Some((then, before)) if now.0 - then <= LOOK_MAX => {
                now.1.supply_since(before, now.0 - then)
            }
            _ => Supply::Enough,
        }
    }
}

impl Counts {
    fn supply_since(self, before: Counts, elapsed: Duration) -> Supply {
        if self.throttled > before.throttled {
            return Supply::Throttled;
        }
        let all = self.all.saturating_sub(before.all);
        let free = self.free.saturating_sub(before.free);
        let of_one = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX) / TICK_MS;
        let busy = free * 100 < all * FREE_PERCENT || free * FREE_PART < of_one;
        match all > 0 && busy {
            true => Supply::Busy,
            false => Supply::Enough,
        }
    }
}

fn look() -> Counts {
    let (all, free) = fs::read_to_string("/proc/stat")
        .ok()
        .and_then(|text| machine(&text))
        .unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut stats = groups.lines().flat_map(stat_files);
    let throttled = stats.find_map(|file| throttled(&fs::read_to_string(file).ok()?));
    Counts {
        all,
        free,
        throttled: throttled.unwrap_or(0),
    }
}

/// The first line of /proc/stat (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal. What
/// runs with a lower priority than usual leaves its CPU to whoever wants it.
fn machine(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .take(8)
        .map_while(|ticks| ticks.parse().ok())
        .collect();
    let [_, nice, _, idle, ..] = ticks[..] else {
        return None;
    };
    let waiting_for_disks = ticks.get(4).copied().unwrap_or(0);
    Some((ticks.iter().sum(), nice + idle + waiting_for_disks))
}

/// Where a line of /proc/self/cgroup (cgroups(7)), `number:controllers:path`, says that CPU is counted.
/// Within a container the path may be the machine's, and the group's own files lie at the root.
fn stat_files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let roots = match controllers {
        "" => vec!["/sys/fs/cgroup".to_owned()],
        names if names.split(',').any(|name| name == "cpu") => vec![
            format!("/sys/fs/cgroup/{names}"),
            "/sys/fs/cgroup/cpu".to_owned(),
        ],
        _ => return Vec::new(),
    };
    let path = path.trim_end_matches('/');
    let in_root = |within: &str| -> Vec<String> {
        let files = roots.iter().map(|root| format!("{root}{within}/cpu.stat"));
        files.collect()
    };
    [in_root(path), in_root("")].concat()
}

/// In cpu.stat, the periods in which the group had to wait for the next; missing where nothing limits it.
fn throttled(stat: &str) -> Option<u64> {
    let count = stat
        .lines()
        .find_map(|line| line.strip_prefix("nr_throttled "))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_could_have_had_is_free() {
        let stat = "cpu  100 20 50 700 30 1 2 3 0 0\ncpu0 1 2 3 4\nintr 5\n";
        assert_eq!(machine(stat), Some((906, 750)));
        assert_eq!(machine("cpu  1 2 3 4\n"), Some((10, 6)));
        for wrong in ["", "cpu0 1 2 3 4\n", "cpu  1 2\n"] {
            assert_eq!(machine(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn cpu_is_scarce_where_the_machine_is_busy_or_the_group_throttled() {
        let before = Counts {
            all: 1000,
            free: 400,
            throttled: 7,
        };
        let then = |all, free, throttled| Counts {
            all,
            free,
            throttled,
        };
        let quarter = Duration::from_millis(250);
        let table = [
            // Two CPUs: less than a third of one.
            (then(1050, 408, 7), Supply::Busy),
            (then(1050, 409, 7), Supply::Enough),
            // Forty: less than a twentieth of all.
            (then(2000, 449, 7), Supply::Busy),
            (then(2000, 450, 7), Supply::Enough),
            (then(1050, 440, 8), Supply::Throttled),
            (then(1050, 408, 8), Supply::Throttled),
            // Counters that stand still or run backwards say nothing.
            (then(1000, 400, 7), Supply::Enough),
            (then(900, 300, 6), Supply::Enough),
        ];
        for (now, supply) in table {
            assert_eq!(now.supply_since(before, quarter), supply, "{now:?}");
        }
    }

    #[test]
    fn a_group_s_files_are_found_in_both_versions() {
        assert_eq!(
            stat_files("0::/system.slice/millrace.service"),
            [
                "/sys/fs/cgroup/system.slice/millrace.service/cpu.stat",
                "/sys/fs/cgroup/cpu.stat"
            ]
        );
        assert_eq!(
            stat_files("4:cpu,cpuacct:/pod:7/"),
            [
                "/sys/fs/cgroup/cpu,cpuacct/pod:7/cpu.stat",
                "/sys/fs/cgroup/cpu/pod:7/cpu.stat",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.stat",
                "/sys/fs/cgroup/cpu/cpu.stat"
            ]
        );
        assert!(stat_files("3:cpuset:/pod").is_empty());
        assert!(stat_files("nonsense").is_empty());
    }

    #[test]
    fn throttling_is_read_where_it_is_counted() {
        let stat = "usage_usec 9\nnr_periods 4\nnr_throttled 3\nthrottled_usec 8\n";
        assert_eq!(throttled(stat), Some(3));
        assert_eq!(throttled("usage_usec 9\n"), None);
    }
}
