//! What is seen of a server, by a probe or by live traffic. Judges nothing.

use crate::{Family, GtidSet, Millis, ServerId};

/// Something seen of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Of which server.
    pub server: ServerId,
    /// When it was seen (for a probe: when it ended).
    pub at: Millis,
    /// What was seen.
    pub kind: ObservationKind,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq)]
pub enum ObservationKind {
    /// A probe got all its answers.
    ProbeOk(Box<ProbeReport>),
    /// A probe did not.
    ProbeFailed {
        /// In which way.
        cause: Cause,
        /// For the operator: the error's text, without secrets.
        text: Box<str>,
    },
    /// A connection for a client could not be made, or was lost while in use.
    LiveError(Cause),
    /// The server refused a client's write because it is read only (errors 1290, 1836) or in
    /// offline mode (3032).
    RefusedWrite,
    /// The server's name stands for several machines, each with an address: from now on these are the servers.
    Means {
        /// `host:port`, all of them.
        addresses: Vec<Box<str>>,
    },
    /// An operator takes the server out of use: it is to take no new statements.
    Drain {
        /// Who said so.
        by: Box<str>,
    },
    /// An operator puts the server back in use.
    Resume {
        /// Who said so.
        by: Box<str>,
    },
}

/// In which way a server could not be reached or asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Nobody listens: connection refused, or no such socket file. Conclusive.
    Refused,
    /// No answer within the deadline.
    TimedOut,
    /// The connection was cut, or could not be made for another reason (network unreachable).
    Lost,
    /// The name could not be resolved.
    Resolve,
    /// The server answers, but the monitor's account cannot log in or lacks a privilege.
    Denied,
    /// The server answers that it has too many connections (1040).
    Busy,
    /// The server is shutting down (1053), starting, without its cluster, or in offline mode.
    ShuttingDown,
    /// The server answers something that is not understood, or TLS failed.
    Protocol,
    /// A probe had no answer in time, while the server answered clients: it is alive, and slow.
    Slow,
}

impl Cause {
    /// The server is alive but could not be asked.
    pub fn is_alive(self) -> bool {
        matches!(self, Cause::Denied | Cause::Busy | Cause::Slow)
    }

    /// A short description for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Refused => "connection refused",
            Cause::TimedOut => "no answer in time",
            Cause::Lost => "connection lost",
            Cause::Resolve => "name does not resolve",
            Cause::Denied => "monitor account denied",
            Cause::Busy => "too many connections",
            Cause::ShuttingDown => "shutting down",
            Cause::Protocol => "unexpected answer",
            Cause::Slow => "too slow for the monitor",
        }
    }
}

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReport {
    /// Its family.
    pub family: Family,
    /// `@@version`, as reported: `9.7.4`, `10.11.19-MariaDB-log`.
    pub version: Box<str>,
    /// `major * 10000 + minor * 100 + patch`: 90704, 101119.
    pub version_number: u32,
    /// MySQL's `@@server_uuid`; MariaDB has none (10.11) and leaves it empty.
    pub server_uuid: Box<str>,
    /// `@@server_id`.
    pub server_id: u32,
    /// `@@read_only` (MariaDB 12's several values: anything but OFF).
    pub read_only: bool,
    /// MySQL's `@@super_read_only`.
    pub super_read_only: bool,
    /// MySQL's `@@offline_mode`.
    pub offline_mode: bool,
    /// `@@innodb_read_only`: its tables cannot be written at all. So are Aurora's readers, with `read_only`
    /// OFF and without replication.
    pub innodb_read_only: bool,
    /// It reads files that another server writes: Amazon Aurora (`@@aurora_version` is there).
    pub shares_storage: bool,
    /// New sessions begin read only: `@@GLOBAL.transaction_read_only`, or `init_connect` sets it. A session
    /// may say otherwise.
    pub begins_read_only: bool,
    /// What tells this server's process from any other: host name, port and data folder. Empty where
    /// that was not asked. Servers that are cloned share a server_uuid until they are restarted
    /// without it, and MariaDB (10.11) has none.
    pub identity: Box<str>,
    /// The servers that it names: its sources, its replicas, the members of its group.
    pub peers: Vec<Peer>,
    /// Group Replication as it sees it; none where it is no member of a group.
    pub group: Option<GroupView>,
    /// Galera as it sees it; none where it is no node of a cluster.
    pub galera: Option<GaleraNode>,
    /// Clients' commits that have been under way for too long, where that was asked: a full disk, say.
    pub stuck_commits: u32,
    /// SHOW REPLICA STATUS; none where the server replicates from nobody. With several channels,
    /// the worst of them.
    pub replication: Option<ReplicationStatus>,
    /// Positions are usable: MySQL's `@@gtid_mode` is ON; always so on MariaDB with a binary log.
    pub gtid: bool,
    /// Where that is not so: binary-log coordinates are, its own and its source's.
    pub log: bool,
    /// `@@gtid_executed`; MariaDB's `@@gtid_current_pos` and `@@gtid_binlog_pos` (see the probe for what is asked).
    pub executed: GtidSet,
    /// `@@GLOBAL.sql_mode`, what new sessions start with.
    pub sql_mode: Box<str>,
    /// How long the probe's question took, in microseconds.
    pub round_trip_us: u32,
    /// `Threads_running`: statements that it runs at this moment, the probe's included.
    pub threads_running: u32,
}

impl ProbeReport {
    /// A writable server without replication, with the family's usual settings. For tests and
    /// as a start to fill in.
    pub fn new(family: Family) -> Self {
        let (version, version_number) = match family {
            Family::MySql => ("9.7.0", 90700),
            Family::MariaDb => ("10.11.0-MariaDB", 101100),
        };
        ProbeReport {
            family,
            version: version.into(),
            version_number,
            server_uuid: "".into(),
            server_id: 0,
            read_only: false,
            super_read_only: false,
            offline_mode: false,
            innodb_read_only: false,
            shares_storage: false,
            begins_read_only: false,
            identity: "".into(),
            peers: Vec::new(),
            stuck_commits: 0,
            group: None,
            galera: None,
            replication: None,
            gtid: true,
            log: false,
            executed: GtidSet::new(family),
            sql_mode: "".into(),
            round_trip_us: 0,
            threads_running: 0,
        }
    }

    /// What it can be asked to wait for.
    pub fn waits(&self) -> Waits {
        if self.galera.is_some() {
            Waits::Cluster
        } else if self.gtid {
            Waits::Gtids
        } else if self.log {
            Waits::Log
        } else {
            Waits::Nothing
        }
    }

    /// The server refuses ordinary clients' writes.
    pub fn refuses_writes(&self) -> bool {
        self.read_only || self.super_read_only || self.offline_mode || self.innodb_read_only
    }
}

/// What a server can be asked to wait for, so that a read there sees what was written elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Waits {
    /// Nothing: nobody knows how far it is.
    #[default]
    Nothing,
    /// Transactions by their GTIDs.
    Gtids,
    /// A place in the binary log of the server that it replicates from.
    Log,
    /// All that its Galera cluster has written until it is asked.
    Cluster,
}

/// A replica's receiver (I/O) thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Receiver {
    /// Not running.
    Stopped,
    /// Running, but without a connection to its source.
    Connecting,
    /// Running and connected.
    Running,
}

/// What a replica says about its replication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationStatus {
    /// `Source_Host`.
    pub source_host: Box<str>,
    /// `Source_Port`.
    pub source_port: u16,
    /// `Source_UUID`; empty on MariaDB.
    pub source_uuid: Box<str>,
    /// `Source_Server_Id`; 0 where it is not known (yet).
    pub source_server_id: u32,
    /// `Replica_IO_Running`.
    pub receiver: Receiver,
    /// `Replica_SQL_Running`.
    pub applier_running: bool,
    /// `Seconds_Behind_Source`; none while it is not known (NULL).
    pub lag_seconds: Option<u64>,
    /// `Last_SQL_Error`, or `Last_IO_Error` where that is empty; empty where there is none.
    pub last_error: Box<str>,
}

/// Another server, as a server names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// `host:port`, as the server names it.
    pub address: Box<str>,
    /// Its server_uuid, where the server says it.
    pub uuid: Box<str>,
    /// Its server_id, where the server says it; else 0.
    pub server_id: u32,
    /// What it is to the server.
    pub relation: Relation,
}

/// What a server is to one that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// It is replicated from.
    Source,
    /// It replicates from the server.
    Replica,
    /// It is in the same group or cluster.
    Member,
}

/// A server's view of the group that it is in (performance_schema.replication_group_members).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupView {
    /// The view's identity, the part of `VIEW_ID` before the colon: made when the group is.
    pub made: u64,
    /// The view's number, the part behind the colon: grows with each member that joins or leaves.
    pub number: u64,
    /// The members, itself included.
    pub members: Vec<Member>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// `MEMBER_ID`: its server_uuid.
    pub uuid: Box<str>,
    /// `MEMBER_STATE`.
    pub state: MemberState,
    /// `MEMBER_ROLE` is PRIMARY.
    pub primary: bool,
}

/// `MEMBER_STATE` in Group Replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// Takes part.
    Online,
    /// Fetches what it lacks.
    Recovering,
    /// Not heard of by the member that says so.
    Unreachable,
    /// Expelled, or stopped by an error.
    Error,
    /// The plugin is there and not started, or the member has left.
    Offline,
}

impl MemberState {
    /// As the server writes it, in small letters.
    pub fn as_str(self) -> &'static str {
        match self {
            MemberState::Online => "online",
            MemberState::Recovering => "recovering",
            MemberState::Unreachable => "unreachable",
            MemberState::Error => "error",
            MemberState::Offline => "offline",
        }
    }
}

/// A node's view of its Galera cluster (its `wsrep_` status).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GaleraNode {
    /// `wsrep_cluster_state_uuid`.
    pub cluster: Box<str>,
    /// `wsrep_node_name`: the first by this among the synced nodes takes the writes.
    pub name: Box<str>,
    /// `wsrep_cluster_status` is Primary: it is in the part of the cluster that goes on.
    pub primary_component: bool,
    /// `wsrep_ready`.
    pub ready: bool,
    /// `wsrep_local_state`.
    pub state: GaleraState,
    /// `wsrep_cluster_size`.
    pub size: u32,
}

/// `wsrep_local_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GaleraState {
    /// 1: fetches what it lacks. Also what is not known.
    Joining,
    /// 2: gives its data to another node, or was desynchronised by hand: it may fall behind.
    Donor,
    /// 3: has the data, and catches up.
    Joined,
    /// 4: up to date.
    Synced,
}

impl GaleraState {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            GaleraState::Joining => "joining",
            GaleraState::Donor => "donor or desynchronised",
            GaleraState::Joined => "catching up",
            GaleraState::Synced => "synced",
        }
    }
}
