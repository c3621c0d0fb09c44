//! One server: its files, its options, its start. It asks no other server anything.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::control::Control;
use crate::group;
use crate::membership::tools;
use crate::process;
use crate::spec::{ClusterSpec, Family, Role, Topology};
use crate::state::ServerInfo;
use crate::template::MARIADB_REDO_MIB;
use crate::tls::TlsFiles;

/// A start takes a second; recovery after a kill under load takes longer.
const START_LIMIT: Duration = Duration::from_secs(60);
const READY_POLL: Duration = Duration::from_millis(15);

/// What one start of a server goes by.
pub(crate) struct Run<'a> {
    pub(crate) spec: &'a ClusterSpec,
    pub(crate) binaries: &'a Binaries,
    /// All servers of the cluster.
    pub(crate) members: &'a [Server],
    /// The server is the first of its Galera cluster.
    pub(crate) new_cluster: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) port: u16,
    pub(crate) server_id: u32,
    /// For the group's traffic ([`crate::group::extra_ports`]).
    pub(crate) group_ports: Vec<u16>,
    /// The server's own folder in the cluster's.
    pub(crate) dir: PathBuf,
}

impl Server {
    /// In a folder of its own, so that a disk can be put there.
    pub(crate) fn datadir(&self) -> PathBuf {
        self.disk().join("data")
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Where the group's members reach this one.
    pub(crate) fn group_address(&self) -> String {
        let port = self.group_ports.first().copied().unwrap_or(0);
        format!("127.0.0.1:{port}")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("error.log")
    }

    fn config(&self) -> PathBuf {
        self.dir.join("my.cnf")
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.join("pid")
    }

    /// Says which process is this server: no other has this argument.
    fn defaults_argument(&self) -> String {
        format!("--defaults-file={}", self.config().display())
    }

    /// The server's process, when it runs (or is paused).
    pub(crate) fn pid(&self) -> Option<u32> {
        process::pid_from_file(&self.pid_file(), &self.defaults_argument())
    }

    pub(crate) fn info(&self) -> ServerInfo {
        ServerInfo {
            name: self.name.clone(),
            role: self.role,
            host: "127.0.0.1",
            port: self.port,
            socket: self.socket(),
            pid: self.pid(),
            datadir: self.datadir(),
            log: self.log(),
        }
    }

    pub(crate) async fn control(&self) -> Result<Control> {
        let connected = Control::connect(&self.socket()).await;
        connected.with_context(|| format!("cannot control {}", self.name))
    }

    /// Starts the server's process, in a process group of its own so that Ctrl-C in a terminal
    /// leaves it to us to stop it.
    ///
    /// # Errors
    /// When its files cannot be written or the program does not start.
    pub(crate) fn spawn(&self, run: &Run<'_>) -> Result<Child> {
        let Run { spec, binaries, .. } = run;
        for folder in ["tmp", "files"] {
            fs::create_dir_all(self.dir.join(folder))?;
        }
        fs::write(self.config(), self.options(run))?;
        self.forget_last_run();
        let log = self.open_log()?;
        let child = Command::new(&binaries.server)
            .env("PATH", path(spec))
            .arg(self.defaults_argument())
            .args(run.new_cluster.then_some("--wsrep-new-cluster"))
            .args(&spec.extra_args)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", binaries.server.display()))?;
        fs::write(self.pid_file(), child.id().to_string())?;
        Ok(child)
    }

    /// What a killed server leaves would keep MySQL from starting while its zombie is there.
    fn forget_last_run(&self) {
        for left in ["sock", "sock.lock", "server.pid"] {
            // Mostly there is none.
            let _ = fs::remove_file(self.dir.join(left));
        }
    }

    fn open_log(&self) -> Result<File> {
        let log = self.log();
        let opened = OpenOptions::new().create(true).append(true).open(&log);
        opened.with_context(|| format!("cannot write {}", log.display()))
    }

    /// Waits until the server answers statements.
    ///
    /// # Errors
    /// When it ends instead, or takes over a minute; the end of its log is in the text.
    pub(crate) async fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Ok(control) = Control::connect(&self.socket()).await {
                control.close().await;
                return Ok(());
            }
            if self.pid().is_none() {
                bail!(
                    "{} (port {}) did not start:\n{}",
                    self.name,
                    self.port,
                    self.log_tail()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "{} is not ready after {START_LIMIT:?}:\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    fn log_tail(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// The option file. Durability is given up: a cluster does not outlive the machine.
    fn options(&self, run: &Run<'_>) -> String {
        let Run { spec, binaries, .. } = run;
        let mut file = String::from("[mysqld]\n");
        let mut set = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a String cannot fail.
            let _ = writeln!(file, "{name}={value}");
        };
        let folder = |name: &str| self.dir.join(name).display().to_string();
        set("datadir", &self.datadir().display());
        set("socket", &folder("sock"));
        set("pid-file", &folder("server.pid"));
        set("tmpdir", &folder("tmp"));
        set("secure-file-priv", &folder("files"));
        set("port", &self.port);
        set("bind-address", &"127.0.0.1");
        set("server-id", &self.server_id);
        set("report-host", &"127.0.0.1");
        set("report-port", &self.port);
        set("max-connections", &spec.max_connections);
        set(
            "innodb-buffer-pool-size",
            &format!("{}M", spec.buffer_pool_mib),
        );
        set(
            "performance-schema",
            &on_off(spec.performance_schema || spec.topology == Topology::Group),
        );
        for (name, value) in COMMON_OPTIONS.iter().chain(family_options(spec.family())) {
            set(name, value);
        }
        if geteuid().is_root() {
            set("user", &"root");
        }
        if spec.family() == Family::MariaDb {
            set("innodb-log-file-size", &format!("{MARIADB_REDO_MIB}M"));
        }
        if let Some(dir) = &binaries.messages_dir {
            set("lc-messages-dir", &dir.display());
        }
        if spec.topology == Topology::Async && self.role == Role::Replica {
            set(read_only_option(spec.family()), &"ON");
        }
        if !spec.gtid {
            for (name, value) in WITHOUT_GTIDS {
                set(name, &value);
            }
        }
        if spec.semi_sync {
            for (name, value) in semi_sync_options(spec.family()) {
                set(name, value);
            }
            set(
                semi_sync_source(spec.family()),
                &on_off(self.role == Role::Primary),
            );
        }
        for (name, value) in group::options(spec, self, run.members) {
            set(name, &value);
        }
        if spec.tls {
            set_tls(&spec.dir, &mut set);
        }
        file
    }
}

/// The cluster's own tools come first, where it has any.
fn path(spec: &ClusterSpec) -> OsString {
    let mut path = tools(&spec.dir).into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

fn set_tls(cluster: &Path, set: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    let files = TlsFiles::in_cluster(cluster);
    set("ssl-ca", &files.ca.display());
    set("ssl-cert", &files.cert.display());
    set("ssl-key", &files.key.display());
}

fn on_off(on: bool) -> &'static str {
    if on { "ON" } else { "OFF" }
}

/// A replica that were to wait for replicas of its own would wait for ever, so only the primary
/// is told to.
pub(crate) fn semi_sync_source(family: Family) -> &'static str {
    match family {
        Family::MySql => "rpl_semi_sync_source_enabled",
        Family::MariaDb => "rpl_semi_sync_master_enabled",
    }
}

/// No commit is ever acknowledged that no replica has: the time after which a primary would go
/// on alone is a day, in milliseconds. The acknowledgement comes before others can see it.
fn semi_sync_options(family: Family) -> &'static [(&'static str, &'static str)] {
    match family {
        Family::MySql => &[
            ("plugin-load-add", "semisync_source.so"),
            ("plugin-load-add", "semisync_replica.so"),
            ("rpl-semi-sync-replica-enabled", "ON"),
            ("rpl-semi-sync-source-timeout", "86400000"),
        ],
        Family::MariaDb => &[
            ("rpl-semi-sync-slave-enabled", "ON"),
            ("rpl-semi-sync-master-timeout", "86400000"),
            ("rpl-semi-sync-master-wait-point", "AFTER_SYNC"),
        ],
    }
}

fn read_only_option(family: Family) -> &'static str {
    match family {
        Family::MySql => "super-read-only",
        Family::MariaDb => "read-only",
    }
}

const COMMON_OPTIONS: [(&str, &str); 13] = [
    ("skip-name-resolve", "ON"),
    ("local-infile", "ON"),
    ("max-allowed-packet", "64M"),
    ("log-bin", "binlog"),
    ("relay-log", "relay"),
    ("binlog-format", "ROW"),
    // Without it only accounts with SUPER may make functions where there is a binary log.
    ("log-bin-trust-function-creators", "ON"),
    ("sync-binlog", "0"),
    ("innodb-flush-log-at-trx-commit", "2"),
    ("innodb-doublewrite", "OFF"),
    // The kernel's asynchronous I/O contexts are few and shared by the whole machine.
    ("innodb-use-native-aio", "OFF"),
    ("table-open-cache", "400"),
    ("table-definition-cache", "400"),
];

const WITHOUT_GTIDS: [(&str, &str); 3] = [
    ("gtid-mode", "OFF"),
    ("enforce-gtid-consistency", "OFF"),
    // Milliseconds: how far appliers that work in parallel are is counted so often.
    ("replica-checkpoint-period", "1"),
];

fn family_options(family: Family) -> &'static [(&'static str, &'static str)] {
    match family {
        Family::MySql => &[
            ("mysqlx", "OFF"),
            ("gtid-mode", "ON"),
            ("enforce-gtid-consistency", "ON"),
            ("log-replica-updates", "ON"),
            // A primary that stands still is noticed in seconds, not in a minute.
            ("replica-net-timeout", "5"),
        ],
        Family::MariaDb => &[
            ("gtid-strict-mode", "ON"),
            ("log-slave-updates", "ON"),
            ("slave-net-timeout", "5"),
            ("plugin-load-add", "auth_ed25519"),
        ],
    }
}
