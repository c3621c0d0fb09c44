//! A small process beside each cluster that removes it when this process ends without doing so,
//! be it by SIGKILL. It sees that by the end of a pipe, and acts on this cluster's folder only.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Reads until told to go or until the pipe ends. Then kills what the pid files name, if it
/// still is what was started from this folder, and removes the folder once it has seen none
/// three times: in the middle of an execve a process shows no arguments. Ctrl-C reaches it with
/// its own process group only, so it outlives the process that it watches.
const SCRIPT: &str = r#"
dir=$1
trap '' INT TERM HUP
read -r word
[ "$word" = release ] && exit 0
servers_left() {
    left=no
    for file in "$dir"/*/pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF -e "--defaults-file=${file%/pid}/my.cnf" || continue
        kill -KILL "$pid" 2>/dev/null && left=yes
    done
    [ $left = yes ]
}
unmount() {
    for disk in "$dir"/*/disk; do
        grep -qF " $disk " /proc/mounts 2>/dev/null && umount -l "$disk" 2>/dev/null
    done
}
tries=0
quiet=0
while [ $tries -lt 200 ]; do
    tries=$((tries + 1))
    if servers_left; then
        quiet=0
    else
        quiet=$((quiet + 1))
    fi
    [ $quiet -ge 3 ] && unmount
    [ $quiet -ge 3 ] && rm -rf "$dir" 2>/dev/null && break
    sleep 0.05
done
"#;

/// The running guardian. Dropped without [`Guardian::release`] it does its work.
#[derive(Debug)]
pub(crate) struct Guardian {
    child: Child,
}

impl Guardian {
    /// Starts watching over `dir`.
    ///
    /// # Errors
    /// When no shell can be started.
    pub(crate) fn start(dir: &Path) -> Result<Guardian> {
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "millrace-sandbox-guardian"])
            .arg(dir)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start sh, which watches over the cluster")?;
        Ok(Guardian { child })
    }

    /// Sends the guardian home: the cluster is gone, or is meant to stay.
    pub(crate) fn release(mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            // It fails only when the guardian is gone, which is what is wanted.
            let _ = pipe.write_all(b"release\n");
        }
        let _ = self.child.wait();
    }
}
