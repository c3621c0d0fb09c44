//! Disks that fill up and disks that are slow: a tmpfs of a chosen size under a server's data, a
//! throttle on its writes. Both need root and act on the cluster's own folders and processes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{major, minor, stat};

use crate::Cluster;
use crate::server::Server;

/// cgroup v1's controller of block I/O, where a machine has it.
const BLKIO: &str = "/sys/fs/cgroup/blkio";
const FILLER: &str = "filler";

/// Mounts a disk of so many MiB on the folder.
pub(crate) fn mount(folder: &Path, mib: u32) -> Result<()> {
    let status = Command::new("mount")
        .args(["-t", "tmpfs", "-o"])
        .arg(format!("size={mib}m,mode=700"))
        .arg("millrace-sandbox")
        .arg(folder)
        .status()
        .context("cannot run mount")?;
    if !status.success() {
        bail!("cannot mount a disk of {mib} MiB on {}", folder.display());
    }
    Ok(())
}

/// Takes a disk away again; where none was mounted, nothing happens.
pub(crate) fn unmount(folder: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let is_mounted = mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == folder.to_str());
    if is_mounted {
        // What stays mounted shows when the folder cannot be removed.
        let _ = Command::new("umount").arg("-l").arg(folder).status();
    }
}

fn throttle_group(server: &Server) -> PathBuf {
    let cluster = server.dir.parent().and_then(Path::file_name);
    let cluster = cluster.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Path::new(BLKIO).join(format!("{cluster}-{}", server.name))
}

/// Removes what [`Cluster::slow_disk`] has made. The kernel keeps a group a moment longer than the
/// process in it.
pub(crate) fn forget_throttle(server: &Server) {
    let group = throttle_group(server);
    for _ in 0..40 {
        if !group.exists() || fs::remove_dir(&group).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
}

impl Cluster {
    /// Fills the server's disk to the last byte. Needs [`crate::ClusterSpec::disk_mib`].
    ///
    /// # Errors
    /// When the server has no disk of its own.
    pub fn fill_disk(&self, name: &str) -> Result<()> {
        let server = self.server(name)?;
        if self.state().spec.disk_mib.is_none() {
            bail!("{name} has no disk of its own: start the cluster with disk_mib");
        }
        let mut file = fs::File::create(server.disk().join(FILLER))?;
        let mut piece = vec![0_u8; 1 << 20];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
        Ok(())
    }

    /// Makes the room again that [`Cluster::fill_disk`] took.
    ///
    /// # Errors
    /// When it has not.
    pub fn free_disk(&self, name: &str) -> Result<()> {
        let filler = self.server(name)?.disk().join(FILLER);
        fs::remove_file(&filler).with_context(|| format!("cannot remove {}", filler.display()))
    }

    /// Lets the server's process write to its disk only so many times a second; `None` ends that.
    /// Only what the process itself hands to the disk counts: give the servers `--sync-binlog=1`
    /// and `--innodb-flush-log-at-trx-commit=1`.
    ///
    /// # Errors
    /// When the machine has no cgroup v1 controller for block I/O that we may write to.
    pub fn slow_disk(&self, name: &str, writes_per_s: Option<u32>) -> Result<()> {
        let server = self.server(name)?;
        let pid = self.running(name)?;
        let group = throttle_group(&server);
        fs::create_dir_all(&group)
            .with_context(|| format!("cannot throttle a disk here: {}", group.display()))?;
        let device = stat(server.datadir())?.st_dev;
        let rate = writes_per_s.unwrap_or(0);
        let rule = format!("{}:{} {rate}", major(device), minor(device));
        fs::write(group.join("blkio.throttle.write_iops_device"), rule)
            .context("cannot throttle this disk")?;
        fs::write(group.join("cgroup.procs"), pid.to_string()).context("cannot throttle a process")
    }
}
