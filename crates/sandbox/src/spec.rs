//! What a cluster is to look like. Holds values only; starts nothing.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

/// Which servers to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// MariaDB.
    #[value(name = "mariadb")]
    MariaDb,
    /// MySQL.
    #[value(name = "mysql")]
    MySql,
}

impl Family {
    /// Both families, for tests that run on each.
    pub const ALL: [Family; 2] = [Family::MariaDb, Family::MySql];

    /// The name as on the command line and in `cluster.json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Family::MariaDb => "mariadb",
            Family::MySql => "mysql",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which release of a family's servers: the usual one, or one that is unpacked beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Release {
    /// MariaDB as it is installed on this machine.
    #[serde(rename = "mariadb")]
    MariaDb,
    /// MariaDB 11.8, from Debian trixie.
    #[serde(rename = "mariadb 11.8")]
    MariaDb11_8,
    /// MySQL, from Debian sid.
    #[serde(rename = "mysql")]
    MySql,
}

impl Release {
    /// The release that a command line names; without a number the family's usual one.
    ///
    /// # Errors
    /// When there is no such release of the family.
    pub fn named(family: Family, number: Option<&str>) -> anyhow::Result<Release> {
        match (family, number) {
            (_, None) => Ok(family.into()),
            (Family::MariaDb, Some("11.8")) => Ok(Release::MariaDb11_8),
            (_, Some(number)) => {
                anyhow::bail!("no release {number} of {family}: there is 11.8 of mariadb")
            }
        }
    }

    /// The family that the release is of.
    pub fn family(self) -> Family {
        match self {
            Release::MariaDb | Release::MariaDb11_8 => Family::MariaDb,
            Release::MySql => Family::MySql,
        }
    }

    /// The name as in `cluster.json` and in what tests say.
    pub fn as_str(self) -> &'static str {
        match self {
            Release::MariaDb => "mariadb",
            Release::MariaDb11_8 => "mariadb 11.8",
            Release::MySql => "mysql",
        }
    }
}

impl From<Family> for Release {
    fn from(family: Family) -> Release {
        match family {
            Family::MariaDb => Release::MariaDb,
            Family::MySql => Release::MySql,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the servers of a cluster keep the same data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// A primary whose binary log its replicas follow.
    #[value(name = "async")]
    Async,
    /// MySQL's Group Replication with a single primary, which the group elects.
    #[value(name = "group")]
    Group,
    /// MariaDB with Galera: every node takes writes, all nodes certify them.
    #[value(name = "galera")]
    Galera,
}

impl Topology {
    /// The name as on the command line and in `cluster.json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Topology::Async => "async",
            Topology::Group => "group",
            Topology::Galera => "galera",
        }
    }

    /// Whether servers of this family can be in it.
    pub fn fits(self, family: Family) -> bool {
        match self {
            Topology::Async => true,
            Topology::Group => family == Family::MySql,
            Topology::Galera => family == Family::MariaDb,
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a server is meant to be. The server itself is asked by [`crate::Cluster::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Takes writes.
    Primary,
    /// Follows another server.
    Replica,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Replica => "replica",
        })
    }
}

/// A cluster to start: one primary and its replicas. Made by [`ClusterSpec::new`], then changed
/// field by field.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// What the servers run.
    pub release: Release,
    /// [`Topology::Group`] turns the performance schema on, which it needs.
    pub topology: Topology,
    /// With [`Topology::Async`]: the primary acknowledges a commit once a replica has it, however
    /// long that takes.
    pub semi_sync: bool,
    /// Transactions have GTIDs. Without them (MySQL, [`Topology::Async`]) replicas follow the primary's binary
    /// log by file and offset, and the primary cannot be moved.
    #[serde(default = "yes")]
    pub gtid: bool,
    /// Servers beside the first; 0 is a primary alone.
    pub replicas: usize,
    /// The cluster's folder. It must not exist, or be empty; it is removed with the cluster.
    /// Short: a Unix socket's path inside it has at most 107 bytes.
    pub dir: PathBuf,
    /// The first server's port, the others follow it; 0 takes any free ports.
    pub base_port: u16,
    /// Leave servers and folder behind when the [`crate::Cluster`] is dropped, and the folder
    /// (for its logs) when starting fails.
    pub keep: bool,
    /// Give the servers a certificate for 127.0.0.1 and localhost, signed by a CA of the
    /// cluster's own ([`crate::Cluster::tls_ca`]). Without it MySQL has the certificate that it
    /// makes itself, which names no host, and MariaDB has no TLS.
    pub tls: bool,
    /// Further server options as on the command line, for example `--max-allowed-packet=64M`.
    pub extra_args: Vec<String>,
    /// Run with the performance schema, at some 300 MiB more for a MySQL server.
    pub performance_schema: bool,
    /// InnoDB's buffer pool, in MiB for each server.
    pub buffer_pool_mib: u32,
    /// `max_connections` of each server.
    pub max_connections: u32,
    /// Put each server's data on a disk of this many MiB ([`crate::Cluster::fill_disk`]). It is a
    /// tmpfs, which only root can mount.
    pub disk_mib: Option<u32>,
}

fn yes() -> bool {
    true
}

impl ClusterSpec {
    /// A primary with two replicas on free ports, in a folder of its own under the system's
    /// folder for temporary files.
    pub fn new(which: impl Into<Release>) -> ClusterSpec {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("millrace-sandbox-{}-{count}", std::process::id()));
        ClusterSpec {
            release: which.into(),
            topology: Topology::Async,
            semi_sync: false,
            gtid: true,
            replicas: 2,
            dir,
            base_port: 0,
            keep: false,
            tls: false,
            extra_args: Vec::new(),
            performance_schema: false,
            buffer_pool_mib: 64,
            max_connections: 500,
            disk_mib: None,
        }
    }

    /// The family of the release.
    pub fn family(&self) -> Family {
        self.release.family()
    }
}
