//! Processes by their number: signals, liveness, waiting. Never by name, and never without first
//! checking that the number still belongs to the server it was given to.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

const POLL: Duration = Duration::from_millis(5);
/// How often, a millisecond apart, a process without the argument is looked at.
const EXEC_POLLS: u32 = 20;

/// A process's state letter in `/proc/PID/stat` (proc(5)); none when there is no such process.
fn state_letter(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold anything, also ")".
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// True while the process runs or is stopped by a signal. A zombie has ended, although `kill -0`
/// finds it.
pub(crate) fn is_alive(pid: u32) -> bool {
    !matches!(state_letter(pid), None | Some('Z' | 'X'))
}

/// True when SIGSTOP holds the process.
pub(crate) fn is_paused(pid: u32) -> bool {
    matches!(state_letter(pid), Some('T'))
}

/// The number in a pid file, if that process is alive and was started with `marker` among its
/// arguments: numbers are given out again.
pub(crate) fn pid_from_file(file: &Path, marker: &str) -> Option<u32> {
    let pid = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (is_alive(pid) && has_argument(pid, marker)).then_some(pid)
}

/// In the middle of an execve, as between a wrapper script and its program, a process shows no
/// arguments or half of them for a moment: only a lasting no is one.
fn has_argument(pid: u32, marker: &str) -> bool {
    for _ in 0..EXEC_POLLS {
        if shows_argument(pid, marker) {
            return true;
        }
        if !is_alive(pid) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn shows_argument(pid: u32, marker: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
        line.split(|byte| *byte == 0)
            .any(|arg| arg == marker.as_bytes())
    })
}

/// Sends a signal. A process that is gone already is not an error.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let raw = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .context("not a process number")?;
    match kill_process(raw, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot signal process {pid}")),
    }
}

/// Waits until the process has ended, at most `limit`; true when it has.
pub(crate) async fn wait_gone(pid: u32, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while is_alive(pid) {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
    true
}

/// The same for places that cannot await.
pub(crate) fn wait_gone_blocking(pid: u32, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while is_alive(pid) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(wait_gone_blocking(pid, Duration::from_secs(5)));
        assert_eq!(state_letter(pid), Some('Z'), "not waited for yet");
        child.wait().unwrap();
        assert_eq!(state_letter(pid), None);
    }

    #[test]
    fn paused_and_resumed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        signal(pid, Signal::STOP).unwrap();
        while !is_paused(pid) {
            std::thread::yield_now();
        }
        assert!(is_alive(pid));
        signal(pid, Signal::CONT).unwrap();
        signal(pid, Signal::KILL).unwrap();
        assert!(wait_gone_blocking(pid, Duration::from_secs(5)));
        child.wait().unwrap();
        signal(pid, Signal::KILL).unwrap();
    }

    #[test]
    fn a_process_that_is_just_executing_another_program_is_known() {
        let again = r#"[ "$1" = 0 ] || exec sh -c "$2" --marker $(($1 - 1)) "$2""#;
        let mut child = Command::new("sh")
            .args(["-c", again, "--marker", "100000", again])
            .spawn()
            .unwrap();
        let known = (0..2000)
            .filter(|_| has_argument(child.id(), "--marker"))
            .count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(known, 2000);
    }

    #[test]
    fn a_pid_file_counts_only_for_the_process_it_was_written_for() {
        let file = std::env::temp_dir().join(format!("millrace-pid-test-{}", std::process::id()));
        fs::write(&file, std::process::id().to_string()).unwrap();
        let own = std::env::args().next().unwrap();
        assert_eq!(pid_from_file(&file, &own), Some(std::process::id()));
        assert_eq!(pid_from_file(&file, "--not-ours"), None);
        fs::remove_file(&file).unwrap();
        assert_eq!(pid_from_file(&file, &own), None);
    }
}
