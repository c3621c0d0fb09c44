//! What a decision is made from and what it says: plain values.

use std::fmt;
use std::sync::Arc;

use millrace_sql::Access;
use millrace_topology::{GtidSet, ServerId};
use smallvec::SmallVec;

/// What a session's reads are guaranteed to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Consistency {
    /// Whatever the replica has.
    Eventual,
    /// The session's own writes, and never less than it has seen already.
    Session,
    /// All writes acknowledged through this process, so that it behaves as one server. The caller puts
    /// them into [`SessionView::required`].
    #[default]
    Instance,
    /// All writes acknowledged anywhere before the read began. The caller puts the primary's
    /// position into [`SessionView::required`].
    Global,
}

impl Consistency {
    /// All levels, the weakest first.
    pub const ALL: [Consistency; 4] = [
        Consistency::Eventual,
        Consistency::Session,
        Consistency::Instance,
        Consistency::Global,
    ];

    /// Its name, in configurations, hints and variables.
    pub fn name(self) -> &'static str {
        match self {
            Consistency::Eventual => "eventual",
            Consistency::Session => "session",
            Consistency::Instance => "instance",
            Consistency::Global => "global",
        }
    }

    /// The level of a name, in whatever case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|level| level.name().eq_ignore_ascii_case(name))
    }
}

/// What a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Target {
    /// Split reads from writes.
    #[default]
    Auto,
    /// Everything to the primary.
    PrimaryOnly,
    /// Everything to replicas, which refuse writes themselves.
    ReplicasOnly,
}

/// Which servers share the reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reads {
    /// Replicas; the primary where none is fit.
    #[default]
    Replicas,
    /// Replicas and the primary alike.
    All,
}

/// How a read's server is chosen among those that may take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Balance {
    /// The one with the fewest statements under way for its weight; equals take turns.
    #[default]
    LeastOutstanding,
    /// Of two, the one whose statements are expected to be answered sooner: by their measured
    /// response time and what is under way there. One of the two is next in turn, the other any.
    Latency,
    /// In turn, as often as its weight says.
    Weighted,
    /// In turn.
    RoundRobin,
}

/// Where reads go while every replica is further behind than `max_lag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AllLag {
    /// To the primary.
    #[default]
    Primary,
    /// To the replicas all the same. Where the consistency asks for more than they have, they
    /// are waited for, and the primary serves what they cannot.
    Replicas,
}

/// What of all that a read must see it is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Freshness {
    /// All of it.
    Position,
    /// What touches the tables and keys that it reads, as far as the primary's binary log tells.
    #[default]
    Table,
}

/// Options of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which servers share the reads. Default: replicas.
    pub reads: Reads,
    /// How the server of a read is chosen. Default: least outstanding.
    pub balance: Balance,
    /// Where Millrace runs: servers of this zone come before all others. Empty: no zone does.
    pub zone: Arc<str>,
    /// A session stays with the server of its last read for as long as that one is fit for it.
    /// Default: no.
    pub sticky: bool,
    /// What happens while all replicas lag. Default: the primary reads.
    pub all_lag: AllLag,
    /// What reads are held to. Default: tables.
    pub freshness: Freshness,
    /// How long a replica may be waited for, in milliseconds; 0: never, the primary at once.
    /// (In a server's own wait functions 0 can mean for ever: it must not be passed on.)
    /// Default 100.
    pub wait_limit_ms: u32,
    /// How many replicas that lack the position are asked with a wait, one after the other,
    /// before the primary. Default 1.
    pub waits_max: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            reads: Reads::Replicas,
            balance: Balance::LeastOutstanding,
            zone: "".into(),
            sticky: false,
            freshness: Freshness::default(),
            all_lag: AllLag::Primary,
            wait_limit_ms: 100,
            waits_max: 1,
        }
    }
}

/// The transaction that a session is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Transaction {
    /// None.
    #[default]
    None,
    /// START TRANSACTION READ ONLY, not yet begun on a server: its first read chooses one.
    ReadOnly,
    /// Any other, begun on a server or still deferred.
    ReadWrite,
}

/// What a rule or a hint says about a statement's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// The primary.
    Primary,
    /// A replica, where the statement may run on one.
    Replica,
    /// One of these servers, where the statement may run there.
    Servers(ServerSet),
}

/// A named set of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ServerSet {
    /// A bit for each server by index.
    pub bits: u64,
    /// How its servers share reads, where that differs from what holds for all.
    pub balance: Option<Balance>,
}

impl From<u64> for ServerSet {
    fn from(bits: u64) -> Self {
        ServerSet {
            bits,
            balance: None,
        }
    }
}

impl ServerSet {
    /// Whether the server is one of them.
    pub fn holds(self, server: ServerId) -> bool {
        self.bits.checked_shr(u32::from(server.0)).unwrap_or(0) & 1 != 0
    }
}

impl Wanted {
    /// Whether it leaves a server out.
    pub fn leaves_out(self, server: ServerId, is_primary: bool) -> bool {
        match self {
            Wanted::Primary => !is_primary,
            Wanted::Replica => is_primary,
            Wanted::Servers(set) => !set.holds(server),
        }
    }
}

/// What the decision needs to know of a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionView<'a> {
    /// What the listener is for.
    pub target: Target,
    /// The guarantee the session asks for.
    pub consistency: Consistency,
    /// The server whose connection the session holds and may not leave.
    pub pinned_to: Option<ServerId>,
    /// The transaction it is in.
    pub transaction: Transaction,
    /// What a read must see. Ignored under [`Consistency::Eventual`].
    pub required: &'a GtidSet,
    /// The server of the session's last read, as long as nobody knows how far that one was then: of
    /// the replicas, none but itself is known to show no less. Ignored under
    /// [`Consistency::Eventual`].
    pub seen: Option<ServerId>,
    /// The primary may show less than the session has seen elsewhere, and is asked to wait like any other:
    /// in a cluster, whose other nodes may show a write before the node that wrote it does.
    pub primary_lags: bool,
    /// The server of the session's last read: it stays there where [`Options::sticky`] says so.
    pub home: Option<ServerId>,
    /// What a rule or a hint asks for.
    pub wanted: Option<Wanted>,
    /// The statement is for the primary only as it asks about *the* server: who asks for other servers is
    /// told of those.
    pub about_server: bool,
    /// The session has written something whose position is not known: reads go to the primary.
    pub position_unknown: bool,
    /// Isolation is SERIALIZABLE: every read locks.
    pub serializable: bool,
    /// Autocommit is off: every statement opens a transaction.
    pub autocommit_off: bool,
    /// The primary cannot be had now, and a statement that is for it may run elsewhere: what it needs
    /// there, [`Access::Session`] or [`Access::Read`]. None: nothing but the primary will do.
    pub without_primary: Option<Access>,
}

impl<'a> SessionView<'a> {
    /// A session on the automatic listener with default settings.
    pub fn new(required: &'a GtidSet) -> Self {
        SessionView {
            target: Target::Auto,
            consistency: Consistency::default(),
            pinned_to: None,
            transaction: Transaction::None,
            required,
            seen: None,
            primary_lags: false,
            home: None,
            wanted: None,
            about_server: false,
            position_unknown: false,
            serializable: false,
            autocommit_off: false,
            without_primary: None,
        }
    }
}

/// What is known of the servers beyond the snapshot, by the worker that decides.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Statements under way per server, by index; missing ones count as 0.
    pub outstanding: &'a [u32],
    /// Measured response times per server in microseconds, by index; missing ones and 0 are not
    /// known, and taken for the best.
    pub response_us: &'a [u32],
    /// Positions learnt since the snapshot per server, by index; may be shorter.
    pub known: &'a [GtidSet],
    /// Servers on which a wait has failed lately, or to which DDL is on its way: a bit for each, by index, of
    /// the first 64. As long as they lack the position they are not waited for where there is a primary.
    pub behind: u64,
    /// Rotates among equals. To be increased by one after every decision whose reason
    /// [is balanced](Reason::is_balanced), so that equals share evenly.
    pub rotation: u32,
}

/// As many candidates as a decision holds: the best of them where there are more servers.
pub const CANDIDATES_MAX: usize = 6;

/// Candidates in the order in which they are to be tried.
pub type Candidates = SmallVec<[Candidate; CANDIDATES_MAX]>;

/// A server that may run the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Which server.
    pub server: ServerId,
    /// It is not known to have reached the position: ask it to wait, in the same write.
    pub wait: bool,
}

/// Where a statement goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// To the first of these that can take it.
    Send {
        /// In order; never empty.
        candidates: Candidates,
        /// Why.
        reason: Reason,
    },
    /// Nowhere, at present.
    NoServer(NoServer),
}

/// Why there is no server for a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoServer {
    /// It needs the primary and there is none.
    NoPrimary,
    /// It needs the primary and several servers claim to be it.
    Conflict,
    /// It needs a replica and none is fit.
    NoReplica,
}

impl fmt::Display for NoServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoServer::NoPrimary => "no primary is available",
            NoServer::Conflict => "several servers claim to be the primary",
            NoServer::NoReplica => "no replica is available",
        })
    }
}

/// Why a statement goes where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The session is pinned to a connection.
    Pinned,
    /// The listener is bound to the primary.
    PrimaryListener,
    /// The listener is bound to replicas.
    ReplicaListener,
    /// It writes, or may.
    Write,
    /// It reads what only the primary can tell.
    PrimaryRead,
    /// It is in a transaction that may write.
    Transaction,
    /// The isolation level is SERIALIZABLE.
    Serializable,
    /// Autocommit is off.
    AutocommitOff,
    /// The position of the session's last write is not known.
    PositionUnknown,
    /// A read, and a server has what it must see.
    Read,
    /// A read, and no replica is known to have what it must see yet: one is waited for.
    ReadAfterWait,
    /// A read, and no replica is fit.
    NoFitReplica,
    /// A read, no replica has what it must see, and waiting is off.
    ReplicasBehind,
    /// It concerns the session only: any server will do.
    AnyServer,
    /// A rule or a hint asks for the primary.
    Wanted,
    /// It is for the primary, which cannot be had, and another server can answer it.
    WithoutPrimary,
    /// A read that a replica refused for the lack of something that the primary may have.
    ReplicaLacks,
    /// Its answer was in memory.
    Cached,
}

impl Reason {
    /// The first candidate was chosen among several that would do.
    pub fn is_balanced(self) -> bool {
        matches!(
            self,
            Reason::Read
                | Reason::ReadAfterWait
                | Reason::AnyServer
                | Reason::ReplicaListener
                | Reason::WithoutPrimary
        )
    }

    /// A short stable name, for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Pinned => "pinned",
            Reason::PrimaryListener => "primary_listener",
            Reason::ReplicaListener => "replica_listener",
            Reason::Write => "write",
            Reason::PrimaryRead => "primary_read",
            Reason::Transaction => "transaction",
            Reason::Serializable => "serializable",
            Reason::AutocommitOff => "autocommit_off",
            Reason::PositionUnknown => "position_unknown",
            Reason::Read => "read",
            Reason::ReadAfterWait => "read_after_wait",
            Reason::NoFitReplica => "no_fit_replica",
            Reason::ReplicasBehind => "replicas_behind",
            Reason::AnyServer => "any_server",
            Reason::Wanted => "wanted",
            Reason::WithoutPrimary => "without_primary",
            Reason::ReplicaLacks => "replica_lacks",
            Reason::Cached => "cached",
        }
    }
}
