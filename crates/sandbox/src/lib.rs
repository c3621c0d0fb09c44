//! Private clusters of real servers, for the demo, tests and benches. Starts, breaks and removes
//! them; never touches a server, a process or a folder that it did not make itself.
//!
//! A cluster lives in one folder: a sub-folder per server (`s1`, `s2`, …) and `cluster.json`,
//! which lets later command-line calls act on it. [`Cluster::up`] makes one, dropping the value
//! removes it; where the process has no chance to (Ctrl-C, SIGKILL), a small guardian process
//! does.

pub mod cli;

mod accounts;
mod binaries;
mod cluster;
mod control;
mod disk;
mod failover;
mod faults;
mod group;
mod guardian;
mod membership;
mod ports;
mod process;
mod replication;
mod server;
mod spec;
mod state;
mod status;
mod template;
mod tls;

pub use accounts::{ACCOUNTS, ADMIN, APP, Account, MONITOR};
pub use binaries::{Binaries, NotInstalled, skip_unless, skip_unless_topology};
pub use cluster::Cluster;
pub use control::Control;
pub use group::GroupStatus;
pub use ports::free_port;
pub use spec::{ClusterSpec, Family, Release, Role, Topology};
pub use state::{ClusterInfo, ServerInfo};
pub use status::{ProcessState, ReplicationStatus, ServerStatus};
