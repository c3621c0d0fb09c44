//! What makes servers a group: the options, statements and questions of Group Replication and
//! Galera. Only texts and their meaning; nothing is sent from here.

use std::path::PathBuf;

use serde::Serialize;

use crate::accounts::REPLICATION;
use crate::server::Server;
use crate::spec::{ClusterSpec, Release, Topology};

/// Ports that a member needs beside its clients' one: for the group's own traffic, and in Galera
/// for incremental and for whole state transfers.
pub(crate) fn extra_ports(topology: Topology) -> usize {
    match topology {
        Topology::Async => 0,
        Topology::Group => 1,
        Topology::Galera => 3,
    }
}

/// Where Debian's `galera-4` puts the provider, and where others do.
const PROVIDERS: [&str; 4] = [
    "/usr/lib/galera/libgalera_smm.so",
    "/usr/lib64/galera-4/libgalera_smm.so",
    "/usr/lib64/galera/libgalera_smm.so",
    "/usr/local/lib/galera/libgalera_smm.so",
];

/// The Galera library: what `MILLRACE_GALERA` names, else where packages put it.
pub(crate) fn galera_provider() -> Option<PathBuf> {
    match std::env::var_os("MILLRACE_GALERA") {
        Some(named) => Some(PathBuf::from(named)).filter(|path| path.is_file()),
        None => PROVIDERS
            .iter()
            .map(PathBuf::from)
            .find(|path| path.is_file()),
    }
}

/// The options of a server that come of its cluster's topology.
pub(crate) fn options(
    spec: &ClusterSpec,
    server: &Server,
    members: &[Server],
) -> Vec<(&'static str, String)> {
    match spec.topology {
        Topology::Async => Vec::new(),
        Topology::Group => group_options(server, members),
        Topology::Galera => galera_options(spec, server, members),
    }
}

fn addresses(members: &[Server]) -> String {
    let all: Vec<String> = members.iter().map(Server::group_address).collect();
    all.join(",")
}

/// A member that is not in its group takes no writes: what has been restarted must not be taken
/// for a primary. Suspected members are expelled at once, after the five seconds until a suspicion
/// (`group_replication_member_expel_timeout`, MySQL manual).
fn group_options(server: &Server, members: &[Server]) -> Vec<(&'static str, String)> {
    let first = members.first().map_or(0, |member| member.port);
    vec![
        ("plugin-load-add", "group_replication.so".into()),
        (
            "group-replication-group-name",
            format!("6d696c6c-7261-4365-8000-{first:012x}"),
        ),
        ("group-replication-start-on-boot", "OFF".into()),
        ("group-replication-local-address", server.group_address()),
        ("group-replication-group-seeds", addresses(members)),
        ("group-replication-recovery-get-public-key", "ON".into()),
        ("group-replication-member-expel-timeout", "0".into()),
        // A donor that was just restarted is not waited for for a minute.
        ("group-replication-recovery-reconnect-interval", "1".into()),
        ("super-read-only", "ON".into()),
    ]
}

fn galera_options(
    spec: &ClusterSpec,
    server: &Server,
    members: &[Server],
) -> Vec<(&'static str, String)> {
    let provider = galera_provider().unwrap_or_else(|| PathBuf::from(PROVIDERS[0]));
    let port = |index: usize| server.group_ports.get(index).copied().unwrap_or(0);
    let first = members.first().map_or(0, |member| member.port);
    let mut options = vec![
        ("wsrep-on", "ON".into()),
        ("wsrep-provider", provider.display().to_string()),
        ("wsrep-cluster-name", format!("millrace-{first}")),
        (
            "wsrep-cluster-address",
            format!("gcomm://{}", addresses(members)),
        ),
        ("wsrep-node-name", server.name.clone()),
        ("wsrep-node-address", server.group_address()),
        (
            "wsrep-node-incoming-address",
            format!("127.0.0.1:{}", server.port),
        ),
        (
            "wsrep-provider-options",
            format!(
                "\"base_host=127.0.0.1;base_port={0};gmcast.listen_addr=tcp://127.0.0.1:{0};\
                 ist.recv_addr=127.0.0.1:{1};ist.recv_bind=127.0.0.1;gcache.size=32M;\
                 gcache.page_size=16M\"",
                port(0),
                port(1)
            ),
        ),
        ("wsrep-sst-method", "sandbox".into()),
        (
            "wsrep-sst-receive-address",
            format!("127.0.0.1:{}", port(2)),
        ),
        ("wsrep-gtid-mode", "ON".into()),
        ("wsrep-gtid-domain-id", "0".into()),
        ("innodb-autoinc-lock-mode", "2".into()),
        ("wsrep-slave-threads", "2".into()),
    ];
    if spec.release == Release::MariaDb11_8 {
        // With it the provider's options cannot be changed under way, as `isolate` does.
        options.push(("plugin-wsrep-provider", "OFF".into()));
    }
    options
}

/// The server puts its own folder before our path, so a copying method of our own is what brings
/// [`RSYNC`] into play; it is the server's `wsrep_sst_rsync` otherwise.
pub(crate) const SST: (&str, &str) = (
    "wsrep_sst_sandbox",
    r#"#!/bin/sh
script=$(dirname "$0")/wsrep_sst_rsync
[ -x "$script" ] || script=$(command -v wsrep_sst_rsync) || exit 127
PATH=$(dirname "$0"):$PATH exec "$script" "$@"
"#,
);

/// An rsync that keeps its user: as a daemon of root's it becomes nobody, who may not write into
/// our folders, and the script by which Galera copies data does not tell it otherwise.
pub(crate) const RSYNC: (&str, &str) = (
    "rsync",
    r#"#!/bin/sh
here=$(dirname "$0")
others=$(echo "$PATH" | tr : '\n' | grep -vxF "$here" | paste -sd : -)
real=$(PATH=$others command -v rsync) || exit 127
for word in "$@"; do
    [ "$before" != --config ] || config=$word
    before=$word
done
if [ -n "$config" ] && [ "$(id -u)" -eq 0 ]; then
    sed -i '1i uid = root\ngid = root' "$config"
fi
exec "$real" "$@"
"#,
);

/// What a member's recovery logs in to its donor with.
pub(crate) fn recovery_account() -> String {
    format!(
        "CHANGE REPLICATION SOURCE TO SOURCE_USER='{}', SOURCE_PASSWORD='{}' \
         FOR CHANNEL 'group_replication_recovery'",
        REPLICATION.user, REPLICATION.password
    )
}

/// Begins the group. Only ever on one member, and only when no other is in it.
pub(crate) const BOOTSTRAP: [&str; 3] = [
    "SET GLOBAL group_replication_bootstrap_group=ON",
    "START GROUP_REPLICATION",
    "SET GLOBAL group_replication_bootstrap_group=OFF",
];
pub(crate) const JOIN: &str = "START GROUP_REPLICATION";
pub(crate) const LEAVE: &str = "STOP GROUP_REPLICATION";

/// Cuts a Galera node off from the others, as a broken network does, and mends it
/// (`gmcast.isolate`, Galera's documentation of provider options).
pub(crate) fn isolate(isolated: bool) -> String {
    format!(
        "SET GLOBAL wsrep_provider_options='gmcast.isolate={}'",
        u8::from(isolated)
    )
}

/// A member of a group, as it sees itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// Group Replication: `ONLINE`, `RECOVERING`, `ERROR`, `OFFLINE`, `UNREACHABLE`. Galera:
    /// `Synced`, `Donor/Desynced`, `Joined`, `Joining` …, with `, non-Primary` without a quorum.
    pub state: String,
    /// Group Replication only: `s2` and the like; what the member takes for the primary.
    pub primary: Option<String>,
    /// Members that it sees, itself included.
    pub members: u32,
}

impl GroupStatus {
    /// Whether the member takes part in full.
    pub fn is_online(&self) -> bool {
        self.state == "ONLINE" || self.state == "Synced"
    }
}

/// Port of the primary, own state, and number of members. One that is only suspected counts.
pub(crate) const GROUP_STATUS: &str = "SELECT \
    MAX(IF(MEMBER_ID = @@server_uuid, MEMBER_STATE, NULL)) AS state, \
    MAX(IF(MEMBER_ROLE = 'PRIMARY', MEMBER_PORT, NULL)) AS primary_port, \
    SUM(MEMBER_STATE NOT IN ('OFFLINE', 'ERROR')) AS members \
    FROM performance_schema.replication_group_members";

/// SHOW is allowed on a node that refuses all else.
pub(crate) const GALERA_STATUS: [&str; 3] = [
    "SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'",
    "SHOW GLOBAL STATUS LIKE 'wsrep_cluster_status'",
    "SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'",
];
