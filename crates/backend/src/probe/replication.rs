//! Where a server stands among others: its sources and replicas, its group, its Galera cluster.

use millrace_protocol::resultset::Rows;
use millrace_topology::{
    Family, GaleraNode, GaleraState, GroupView, GtidSet, Member, MemberState, Peer, ProbeReport,
    Receiver, Relation, ReplicationStatus,
};

use crate::conn::{Conn, Row};
use crate::connect::Address;
use crate::error::BackendError;
use crate::probe::followed::Followed;
use crate::probe::followed::is_on;
use crate::probe::followed::text;
use crate::probe::followed::unless_refused;

/// The node's name where the server is one of a Galera cluster. From then on it answers the monitor
/// also while it has no majority, and at once.
pub(super) async fn galera_name(conn: &mut Conn) -> Result<Option<Box<str>>, BackendError> {
    if conn.family == Family::MySql {
        return Ok(None);
    }
    let rows = conn
        .query("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_node_name')")
        .await?;
    let value = |name: &str| {
        let row = rows.iter().find(|row| text(row.first()) == name);
        text(row.and_then(|row| row.get(1)))
    };
    if !is_on(&value("wsrep_on")) {
        return Ok(None);
    }
    conn.query("SET SESSION wsrep_dirty_reads = ON, SESSION wsrep_sync_wait = 0")
        .await?;
    Ok(Some(value("wsrep_node_name").into()))
}

/// Whether a MariaDB server replicates from this one: whether that one's binary log has an event that ends where the
/// replica stands, and the transactions up to there are those that the replica has. Two logs have that in common only
/// if their clusters have run statements of the same lengths all along.
pub(crate) async fn reads_from(
    replica: &mut Followed,
    source: &mut Followed,
) -> Result<bool, BackendError> {
    let Some(channels) = replica.conn.query_named("SHOW ALL SLAVES STATUS").await? else {
        return Ok(false);
    };
    let columns = Columns(&channels);
    for row in &channels.rows {
        let at = |name: &str| text(columns.find([name, name]).and_then(|at| row.get(at)));
        let (file, place) = (at("Relay_Master_Log_File"), at("Exec_Master_Log_Pos"));
        let (Ok(place), false) = (place.parse::<u64>(), file.is_empty()) else {
            continue;
        };
        let hex = file
            .bytes()
            .fold(String::new(), |hex, byte| hex + &format!("{byte:02X}"));
        // NULL where there is no such file, or no event that ends there.
        let question = format!("SELECT BINLOG_GTID_POS(CONVERT(x'{hex}' USING utf8mb4),{place})");
        let rows = source.conn.query(&question).await?;
        let Some(there) = rows.first().and_then(|row| row.first()?.as_deref()) else {
            continue;
        };
        let has = GtidSet::parse_mariadb(at("Gtid_Slave_Pos").as_bytes());
        let ran = GtidSet::parse_mariadb(there);
        if matches!((has, ran), (Ok(has), Ok(ran)) if has.contains(&ran)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the server sees of its group, where it is in one.
pub(super) async fn group(conn: &mut Conn, report: &mut ProbeReport) -> Result<(), BackendError> {
    const MEMBERS: &str = "SELECT MEMBER_ID, MEMBER_HOST, MEMBER_PORT, MEMBER_STATE, \
         MEMBER_ROLE, (SELECT VIEW_ID FROM performance_schema.replication_group_member_stats \
         WHERE MEMBER_ID = @@server_uuid LIMIT 1) \
         FROM performance_schema.replication_group_members WHERE MEMBER_ID <> ''";
    if report.version_number < 80_002 {
        return Ok(());
    }
    let rows = match conn.query(MEMBERS).await {
        Ok(rows) => rows,
        // Without the privilege, or where the performance schema was left out. A member that is taken
        // for an asynchronous server would be judged wrongly.
        Err(BackendError::Server(error)) => {
            const PLUGIN: &str = "SELECT PLUGIN_STATUS FROM information_schema.PLUGINS \
                 WHERE PLUGIN_NAME = 'group_replication'";
            let rows = unless_refused(conn, PLUGIN).await?;
            let status = text(rows.first().and_then(|row| row.first()));
            return match status.as_str() {
                "ACTIVE" => Err(BackendError::Server(error)),
                _ => Ok(()),
            };
        }
        Err(error) => return Err(error),
    };
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let (made, number) = view_id(&text(first.get(5)));
    let mut view = GroupView {
        made,
        number,
        members: Vec::new(),
    };
    for row in &rows {
        let at = |index: usize| text(row.get(index));
        let uuid: Box<str> = at(0).into();
        view.members.push(Member {
            uuid: uuid.clone(),
            state: member_state(&at(3)),
            primary: at(4) == "PRIMARY",
        });
        let port = at(2).parse().unwrap_or(0);
        if uuid != report.server_uuid
            && let Some(address) = named_address(&at(1), port)
        {
            report.peers.push(Peer {
                address,
                uuid,
                server_id: 0,
                relation: Relation::Member,
            });
        }
    }
    report.group = Some(view);
    Ok(())
}

/// `VIEW_ID`: made:number.
pub(super) fn view_id(text: &str) -> (u64, u64) {
    let (made, number) = text.split_once(':').unwrap_or((text, ""));
    (made.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

pub(super) fn member_state(text: &str) -> MemberState {
    match text {
        "ONLINE" => MemberState::Online,
        "RECOVERING" => MemberState::Recovering,
        "UNREACHABLE" => MemberState::Unreachable,
        "ERROR" => MemberState::Error,
        _ => MemberState::Offline,
    }
}

/// What a Galera node sees of its cluster. Its positions are not used: a node counts a transaction as
/// executed before it shows it (gtid_binlog_pos), or not at all (gtid_current_pos, observed on
/// 10.11), and no wait for a position works there.
pub(super) async fn galera(
    conn: &mut Conn,
    report: &mut ProbeReport,
    name: Box<str>,
) -> Result<(), BackendError> {
    const STATUS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_state_uuid', \
         'wsrep_cluster_status', 'wsrep_ready', 'wsrep_local_state', 'wsrep_cluster_size', \
         'wsrep_incoming_addresses', 'wsrep_local_index')";
    let rows = conn.query(STATUS).await?;
    // With it clients are refused (1047), and the monitor's questions are not.
    let rejecting = conn.query("SELECT @@GLOBAL.wsrep_reject_queries").await?;
    let rejecting = text(rejecting.first().and_then(|row| row.first()));
    let value = |name: &str| {
        let row = rows.iter().find(|row| text(row.first()) == name);
        text(row.and_then(|row| row.get(1)))
    };
    let state = match value("wsrep_local_state").as_str() {
        "4" => GaleraState::Synced,
        "3" => GaleraState::Joined,
        "2" => GaleraState::Donor,
        _ => GaleraState::Joining,
    };
    let own: usize = value("wsrep_local_index").parse().unwrap_or(usize::MAX);
    let incoming = value("wsrep_incoming_addresses");
    let named = incoming.split(',').enumerate();
    let others = named.filter(|(at, address)| *at != own && is_address(address));
    report.peers.extend(others.map(|(_, address)| Peer {
        address: address.trim().into(),
        uuid: "".into(),
        server_id: 0,
        relation: Relation::Member,
    }));
    report.galera = Some(GaleraNode {
        cluster: value("wsrep_cluster_state_uuid").into(),
        name,
        primary_component: value("wsrep_cluster_status") == "Primary",
        ready: is_on(&value("wsrep_ready")) && rejecting == "NONE",
        state,
        size: value("wsrep_cluster_size").parse().unwrap_or(0),
    });
    report.gtid = false;
    report.executed = GtidSet::new(Family::MariaDb);
    Ok(())
}

/// A node may name none: empty, `AUTO`, or port 0.
pub(super) fn is_address(text: &str) -> bool {
    let port = text.trim().rsplit_once(':').map(|(_, port)| port.parse());
    matches!(port, Some(Ok(1..=u16::MAX)))
}

/// `host:port`; none where the server does not say both.
pub(super) fn named_address(host: &str, port: u16) -> Option<Box<str>> {
    if host.is_empty() || port == 0 {
        return None;
    }
    let host = host.to_owned();
    Some(Address::new(host, port).to_string().into())
}

/// The servers that it replicates from.
pub(super) fn sources(channels: Option<&Rows>) -> Vec<Peer> {
    let Some(rows) = channels else {
        return Vec::new();
    };
    let columns = Columns(rows);
    let peers = rows.rows.iter().filter_map(|row| {
        let at = |names: [&str; 2]| text(columns.find(names).and_then(|at| row.get(at)));
        if is_groups_own(&at(["Channel_Name", "Channel_Name"])) {
            return None;
        }
        let port = at(["Source_Port", "Master_Port"]).parse().unwrap_or(0);
        Some(Peer {
            address: named_address(&at(["Source_Host", "Master_Host"]), port)?,
            uuid: at(["Source_UUID", "Master_UUID"]).into(),
            server_id: at(["Source_Server_Id", "Master_Server_Id"])
                .parse()
                .unwrap_or(0),
            relation: Relation::Source,
        })
    });
    peers.collect()
}

/// Group Replication's own channels say nothing about asynchronous replication.
pub(super) fn is_groups_own(channel: &str) -> bool {
    channel.starts_with("group_replication_")
}

/// The servers that replicate from it. An account that may not ask for them is told of once.
pub(super) async fn replicas(
    followed: &mut Followed,
    report: &mut ProbeReport,
    statement: &str,
) -> Result<(), BackendError> {
    if followed.blind_to_replicas.is_some() {
        return Ok(());
    }
    let rows = match followed.conn.query_named(statement).await {
        Ok(rows) => rows,
        Err(BackendError::Server(error)) => {
            followed.blind_to_replicas = Some(error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Some(rows) = rows else {
        return Ok(());
    };
    let columns = Columns(&rows);
    let hosts = hosts(followed, &rows).await?;
    for row in &rows.rows {
        let at = |names: [&str; 2]| text(columns.find(names).and_then(|at| row.get(at)));
        let uuid = at(["Replica_UUID", "Slave_UUID"]);
        let mut host = at(["Host", "Host"]);
        if host.is_empty() {
            let known = hosts.iter().find(|(of, _)| *of == uuid);
            host = known.map(|(_, host)| host.clone()).unwrap_or_default();
        }
        let port = at(["Port", "Port"]).parse().unwrap_or(0);
        if let Some(address) = named_address(&host, port) {
            report.peers.push(Peer {
                address,
                uuid: uuid.into(),
                server_id: at(["Server_Id", "Server_id"]).parse().unwrap_or(0),
                relation: Relation::Replica,
            });
        }
    }
    Ok(())
}

/// Where MySQL's replicas without report_host connect from, by their server_uuid: the threads that
/// send them the binary log know both.
async fn hosts(
    followed: &mut Followed,
    replicas: &Rows,
) -> Result<Vec<(String, String)>, BackendError> {
    const THREADS: &str = "SELECT v.VARIABLE_VALUE, t.PROCESSLIST_HOST \
         FROM performance_schema.user_variables_by_thread v \
         JOIN performance_schema.threads t USING (THREAD_ID) \
         WHERE v.VARIABLE_NAME IN ('replica_uuid', 'slave_uuid')";
    let columns = Columns(replicas);
    let host = columns.find(["Host", "Host"]);
    let nameless = |row: &Row| text(host.and_then(|at| row.get(at))).is_empty();
    let mysql = followed.conn.family == Family::MySql;
    if !mysql || !replicas.rows.iter().any(nameless) {
        return Ok(Vec::new());
    }
    match followed.conn.query(THREADS).await {
        Ok(rows) => Ok(rows
            .iter()
            .map(|row| (text(row.first()), text(row.get(1))))
            .collect()),
        Err(BackendError::Server(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Columns by either family's name.
pub(super) struct Columns<'a>(pub(super) &'a Rows);

/// The worst of a server's channels; none where it has none.
pub(super) fn replication(rows: Option<Rows>) -> Option<ReplicationStatus> {
    let rows = rows?;
    let columns = Columns(&rows);
    let column = |names| columns.find(names);
    let host = column(["Source_Host", "Master_Host"]);
    let port = column(["Source_Port", "Master_Port"]);
    let uuid = column(["Source_UUID", "Master_UUID"]);
    let source_id = column(["Source_Server_Id", "Master_Server_Id"]);
    let channel = column(["Channel_Name", "Channel_Name"]);
    let receiver = column(["Replica_IO_Running", "Slave_IO_Running"]);
    let applier = column(["Replica_SQL_Running", "Slave_SQL_Running"]);
    let lag = column(["Seconds_Behind_Source", "Seconds_Behind_Master"]);
    let sql_error = column(["Last_SQL_Error", "Last_SQL_Error"]);
    let io_error = column(["Last_IO_Error", "Last_IO_Error"]);
    rows.rows
        .iter()
        .filter(|row| !is_groups_own(&text(channel.and_then(|at| row.get(at)))))
        .map(|row| {
            let at = |index: Option<usize>| text(index.and_then(|index| row.get(index)));
            let mut last_error = at(sql_error);
            if last_error.is_empty() {
                last_error = at(io_error);
            }
            ReplicationStatus {
                source_host: at(host).into(),
                source_port: at(port).parse().unwrap_or(0),
                source_uuid: at(uuid).into(),
                source_server_id: at(source_id).parse().unwrap_or(0),
                receiver: match at(receiver).as_str() {
                    "Yes" => Receiver::Running,
                    "Connecting" | "Preparing" => Receiver::Connecting,
                    _ => Receiver::Stopped,
                },
                applier_running: at(applier) == "Yes",
                lag_seconds: at(lag).parse().ok(),
                last_error: last_error.into(),
            }
        })
        .max_by_key(|status| {
            (
                !status.applier_running,
                status.receiver == Receiver::Stopped,
                status.receiver == Receiver::Connecting,
                status.lag_seconds.unwrap_or(0),
            )
        })
}

impl Columns<'_> {
    pub(super) fn find(&self, names: [&str; 2]) -> Option<usize> {
        self.0.columns.iter().position(|column| {
            names
                .iter()
                .any(|name| column.name.eq_ignore_ascii_case(name.as_bytes()))
        })
    }
}
