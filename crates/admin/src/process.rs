//! The process's own figures from /proc, under the names that Prometheus's clients share. Where
//! /proc does not tell, a metric has no sample.

use std::fs;

use millrace_metrics::{Definition, Kind, Sample, Value, Visitor, define};

macro_rules! table {
    ($($ident:ident = $kind:ident $name:literal $help:literal;)+) => {
        $(const $ident: &Definition = &define($name, Kind::$kind, &[], $help);)+
        /// Every metric of this module.
        #[cfg(test)]
        pub(crate) const TABLE: &[&Definition] = &[$($ident),+];
    };
}

table! {
    CPU = Counter "process_cpu_seconds" "CPU time used, user and system";
    MEMORY = Gauge "process_resident_memory_bytes" "Memory in RAM";
    FILES = Gauge "process_open_fds" "Open files and sockets";
    THREADS = Gauge "process_threads" "Threads";
}

/// Clock ticks a second in /proc/self/stat: USER_HZ, which Linux fixes at 100 (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) fn collect<V: Visitor>(visitor: &mut V) -> Result<(), V::Error> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = field(&status, "VmRSS:").map(|kib| kib * 1024);
    let files = fs::read_dir("/proc/self/fd").ok();
    // The folder being read is open itself.
    let files = files.map(|files| files.count().saturating_sub(1) as u64);
    show(visitor, CPU, cpu_seconds().map(Value::Number))?;
    show(visitor, MEMORY, resident.map(Value::Count))?;
    show(visitor, FILES, files.map(Value::Count))?;
    show(
        visitor,
        THREADS,
        field(&status, "Threads:").map(Value::Count),
    )
}

fn show<V: Visitor>(
    visitor: &mut V,
    definition: &'static Definition,
    value: Option<Value>,
) -> Result<(), V::Error> {
    let samples: Vec<Sample<'_>> = value
        .into_iter()
        .map(|value| Sample {
            labels: Vec::new(),
            value,
        })
        .collect();
    visitor.metric(definition, &samples)
}

/// The number behind a name in /proc/self/status.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Fields 14 and 15 of /proc/self/stat (proc(5)); field 2, in parentheses, may hold blanks.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    struct Names(Vec<(&'static str, usize)>);

    impl Visitor for Names {
        type Error = Infallible;

        fn metric(
            &mut self,
            definition: &'static Definition,
            samples: &[Sample<'_>],
        ) -> Result<(), Infallible> {
            self.0.push((definition.name, samples.len()));
            Ok(())
        }
    }

    #[test]
    fn every_figure_is_found_here() {
        let mut names = Names(Vec::new());
        let Ok(()) = collect(&mut names);
        let expected: Vec<_> = TABLE.iter().map(|metric| (metric.name, 1)).collect();
        assert_eq!(names.0, expected);
    }
}
