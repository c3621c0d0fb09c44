//! The world as routing sees it: one value per change, shared by all workers. Decides nothing.

use std::fmt;
use std::sync::Arc;

use crate::{
    Cause, Family, GaleraState, GtidSet, MemberState, Millis, ProbeReport, ServerId, Waits,
};

/// What a server is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that takes writes.
    Primary,
    /// Read only, or replicating.
    Replica,
    /// Not known (yet), or one of several that claim to be the primary.
    Unknown,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Replica => "replica",
            Role::Unknown => "unknown",
        })
    }
}

/// The role that the configuration gives a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ConfiguredRole {
    /// Found by asking the server.
    #[default]
    Auto,
    /// Always the primary (as long as it is up).
    Primary,
    /// Never the primary.
    Replica,
}

/// Whether a server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// Not asked yet.
    Unknown,
    /// Answers.
    Up,
    /// Did not answer lately, too few times to be called down.
    Suspect {
        /// Since when.
        since: Millis,
    },
    /// Does not answer.
    Down {
        /// Since when.
        since: Millis,
        /// The last failure.
        cause: Cause,
    },
}

impl Health {
    /// Up or merely suspect.
    pub fn is_usable(self) -> bool {
        matches!(self, Health::Up | Health::Suspect { .. })
    }
}

/// Why no server takes writes: statements that need the primary wait until this ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoPrimary {
    /// Not every server has been asked yet.
    NotAsked,
    /// Every server is read only or replicates, and nothing tells which was the primary.
    Nobody,
    /// The last primary does not answer.
    Lost(ServerId),
    /// The last primary answers, and is read only or replicates now.
    Demoted(ServerId),
    /// The primary is drained.
    Draining(ServerId),
    /// The primary answers, and its commits do not end: its disk is full, say.
    Stalled(ServerId),
    /// Several servers claim to be the primary.
    Conflict,
    /// The last primary cannot be reached, and replicas still receive from it: it is alive.
    Unreachable(ServerId),
    /// A server claims to be the primary that lacks what the last primary had executed, and was not
    /// known as its replica: another server at the same address, restored data, or a stranger. An
    /// operator may vouch for it (RESUME SERVER).
    Doubtful(ServerId),
    /// The servers that answer are in a part of their group without a majority.
    NoQuorum,
    /// This server is writable, and set to receive from another that may be the primary.
    Replicates(ServerId),
    /// The server that is configured as the primary does not answer; no other takes its place.
    Fixed(ServerId),
}

impl NoPrimary {
    /// The labels of all reasons, for metrics.
    pub const LABELS: [&'static str; 12] = [
        "not_asked",
        "nobody",
        "lost",
        "demoted",
        "draining",
        "stalled",
        "conflict",
        "unreachable",
        "doubtful",
        "no_quorum",
        "replicates",
        "fixed",
    ];

    /// The reason in a word, for metrics and columns.
    pub fn label(self) -> &'static str {
        match self {
            NoPrimary::NotAsked => "not_asked",
            NoPrimary::Nobody => "nobody",
            NoPrimary::Lost(_) => "lost",
            NoPrimary::Demoted(_) => "demoted",
            NoPrimary::Draining(_) => "draining",
            NoPrimary::Stalled(_) => "stalled",
            NoPrimary::Conflict => "conflict",
            NoPrimary::Unreachable(_) => "unreachable",
            NoPrimary::Doubtful(_) => "doubtful",
            NoPrimary::NoQuorum => "no_quorum",
            NoPrimary::Replicates(_) => "replicates",
            NoPrimary::Fixed(_) => "fixed",
        }
    }

    /// The server that the reason is about, where it is about one.
    pub fn server(self) -> Option<ServerId> {
        match self {
            NoPrimary::Lost(id)
            | NoPrimary::Demoted(id)
            | NoPrimary::Draining(id)
            | NoPrimary::Stalled(id)
            | NoPrimary::Unreachable(id)
            | NoPrimary::Doubtful(id)
            | NoPrimary::Replicates(id)
            | NoPrimary::Fixed(id) => Some(id),
            NoPrimary::NotAsked | NoPrimary::Nobody | NoPrimary::Conflict | NoPrimary::NoQuorum => {
                None
            }
        }
    }
}

impl NoPrimary {
    /// What an operator, or an orchestrator, can do.
    pub fn advice(self) -> &'static str {
        match self {
            NoPrimary::NotAsked => "wait until the servers have been asked",
            NoPrimary::Nobody => {
                "make one server writable (read_only, super_read_only and offline_mode OFF, and not \
                 innodb_read_only)"
            }
            NoPrimary::Lost(_) | NoPrimary::Unreachable(_) => {
                "start it, or promote another: stop replication there and set read_only = OFF"
            }
            NoPrimary::Demoted(_) => {
                "promote another: stop replication there and set read_only = OFF"
            }
            NoPrimary::Draining(_) => "promote another, or RESUME SERVER",
            NoPrimary::Stalled(_) => "free its disk, or promote another",
            NoPrimary::Conflict => "set read_only on all but the one that is to take writes",
            NoPrimary::Doubtful(_) => "look at its data; RESUME SERVER vouches for it",
            NoPrimary::NoQuorum => "start the other members, or force the group's membership",
            NoPrimary::Replicates(_) => {
                "if it is the primary, remove the leftover there (RESET REPLICA ALL), make what it \
                 follows read only, or give it role = \"primary\""
            }
            NoPrimary::Fixed(_) => {
                "start it, or take role = \"primary\" from it, so that another may take its place"
            }
        }
    }
}

impl fmt::Display for NoPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoPrimary::NotAsked => "not every server has been asked yet",
            NoPrimary::Nobody => "every server is read only or replicates",
            NoPrimary::Lost(_) => "the primary does not answer",
            NoPrimary::Demoted(_) => "the primary is read only or replicates now",
            NoPrimary::Draining(_) => "the primary is drained",
            NoPrimary::Stalled(_) => "the primary's commits do not end",
            NoPrimary::Conflict => "several servers claim to be the primary",
            NoPrimary::Unreachable(_) => {
                "the primary cannot be reached, but replicas still receive from it"
            }
            NoPrimary::Doubtful(_) => {
                "the server that claims to be the primary lacks what the last primary had"
            }
            NoPrimary::NoQuorum => "no majority of the group answers",
            NoPrimary::Replicates(_) => {
                "the writable server is set to replicate from one that may be the primary"
            }
            NoPrimary::Fixed(_) => "the server that is configured as the primary does not answer",
        })
    }
}

/// Why a server takes no reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unfit {
    /// Not asked yet.
    NotProbed,
    /// Down.
    Down(Cause),
    /// In offline mode.
    Offline,
    /// Alive, but the monitor cannot ask it, for so long that it may be too far behind.
    NotObservable(Cause),
    /// The applier is stopped.
    ApplierStopped,
    /// The applier is stopped by an error.
    ApplierError,
    /// The receiver is stopped.
    ReceiverStopped,
    /// The receiver has no connection although the primary is up.
    ReceiverDisconnected,
    /// Behind by more than `max_lag`.
    Lagging {
        /// By how much, in seconds.
        seconds: u64,
    },
    /// Runs more statements at once than it should.
    Overloaded {
        /// So many.
        running: u32,
    },
    /// Read only, replicating from nobody, while another server is the primary.
    NotReplicating,
    /// Writable and not replicating beside another such server.
    Conflict,
    /// Writable and not replicating, and another is the primary: an old primary that came back, say. Or
    /// the primary is not known yet.
    Writable,
    /// Another family than the rest.
    OtherFamily,
    /// Its configured weight is 0.
    ZeroWeight,
    /// Taken out of use by an operator.
    Draining,
    /// It is no longer part of the topology.
    Gone,
    /// Another name of a server that is known already.
    SameServer(ServerId),
    /// A member of a group that does not take part now.
    NotInGroup(MemberState),
    /// A Galera node that is not up to date.
    NotSynced(GaleraState),
    /// It is in a part of its group or cluster that has no majority.
    NoQuorum,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::NotProbed => f.write_str("not asked yet"),
            Unfit::Down(cause) => write!(f, "down: {}", cause.as_str()),
            Unfit::Offline => f.write_str("in offline mode"),
            Unfit::NotObservable(cause) => write!(f, "lag not known: {}", cause.as_str()),
            Unfit::ApplierStopped => f.write_str("applier stopped"),
            Unfit::ApplierError => f.write_str("applier stopped by an error"),
            Unfit::ReceiverStopped => f.write_str("receiver stopped"),
            Unfit::ReceiverDisconnected => f.write_str("receiver not connected to its source"),
            Unfit::Lagging { seconds } => write!(f, "{seconds} s behind"),
            Unfit::Overloaded { running } => write!(f, "{running} statements running"),
            Unfit::NotReplicating => f.write_str("read only and not replicating"),
            Unfit::Writable => f.write_str("writable, and not known as the primary"),
            Unfit::Conflict => f.write_str("one of several writable servers"),
            Unfit::OtherFamily => f.write_str("not of the other servers' family"),
            Unfit::ZeroWeight => f.write_str("weight 0"),
            Unfit::Draining => f.write_str("drained"),
            Unfit::Gone => f.write_str("no longer part of the topology"),
            Unfit::SameServer(of) => write!(f, "another name of server {of}"),
            Unfit::NotInGroup(state) => write!(f, "in its group it is {}", state.as_str()),
            Unfit::NotSynced(state) => write!(f, "not synced: {}", state.as_str()),
            Unfit::NoQuorum => f.write_str("in a part of its group without a majority"),
        }
    }
}

/// One server in a [`Snapshot`].
#[derive(Debug, Clone)]
pub struct ServerView {
    /// Its index.
    pub id: ServerId,
    /// Its address as configured: `host:port` or the path of a socket.
    pub address: Arc<str>,
    /// Its zone as configured; empty where none is.
    pub zone: Arc<str>,
    /// Its share of reads as configured, relative to the others'.
    pub weight: u32,
    /// Its share of reads now: a hundred times the weight, less while it starts slowly.
    pub share: u32,
    /// What it is for.
    pub role: Role,
    /// Whether it answers.
    pub health: Health,
    /// Why it takes no reads; none where it does.
    pub unfit: Option<Unfit>,
    /// Its last known lag in whole seconds. None for a primary and where it is not known.
    pub lag_seconds: Option<u64>,
    /// What it can be asked to wait for.
    pub waits: Waits,
    /// What it had executed when last asked.
    pub executed: GtidSet,
    /// What it last said of itself; none before the first good probe.
    pub report: Option<Arc<ProbeReport>>,
    /// When it last answered a probe.
    pub probed_at: Option<Millis>,
    /// Changes whenever positions learnt before must be forgotten: another identity answers at
    /// the address, or what it has executed went backwards.
    pub incarnation: u32,
    /// An operator took it out of use: it takes no new statements.
    pub draining: bool,
    /// It is no longer part of the topology, and takes nothing. It keeps its index, and comes back to
    /// it if it is ever found again. Not to be listed.
    pub gone: bool,
    /// The configuration names it; else other servers do.
    pub listed: bool,
    /// The listed name that it is one of the addresses of, where that stands for several servers.
    pub address_of: Option<ServerId>,
}

impl ServerView {
    /// Others name it, and it has never answered at the address that they say.
    pub fn is_hearsay(&self) -> bool {
        !self.listed && self.report.is_none() && matches!(self.health, Health::Down { .. })
    }

    /// Its entry in the list of servers, or its own index.
    pub fn entry(&self) -> ServerId {
        self.address_of.unwrap_or(self.id)
    }

    /// Takes reads.
    pub fn is_fit(&self) -> bool {
        self.unfit.is_none()
    }
}

/// The world at one moment. Immutable; a newer one has a higher generation.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Counts every change, positions included.
    pub generation: u64,
    /// Counts changes of the primary.
    pub epoch: u64,
    /// All servers; a [`ServerId`] is an index here.
    pub servers: Vec<ServerView>,
    /// The server that takes writes, where there is exactly one.
    pub primary: Option<ServerId>,
    /// Why no server takes writes; none where one does.
    pub without: Option<NoPrimary>,
    /// The servers that claim to be the primary, where there are several; else empty.
    pub conflict: Vec<ServerId>,
    /// The server that the configuration names as the primary, where it is read only and another is
    /// the primary by what the servers show.
    pub overruled: Option<ServerId>,
    /// The servers' family; none until one has answered.
    pub family: Option<Family>,
    /// The primary's version number, else the first known, else 0.
    pub version_number: u32,
    /// What the primary has and no replica will ever get, because they were set up without it: of no
    /// use to wait for.
    pub unreplicated: Option<Arc<GtidSet>>,
}

impl Snapshot {
    /// The view of one server.
    pub fn server(&self, id: ServerId) -> Option<&ServerView> {
        self.servers.get(id.index())
    }

    /// Whether it is a member of a group, as far as it has told.
    pub fn is_in_group(&self, id: ServerId) -> bool {
        let view = self.server(id);
        let report = view.and_then(|view| view.report.as_ref());
        report.is_some_and(|report| report.group.is_some())
    }

    /// The primary's view.
    pub fn primary_view(&self) -> Option<&ServerView> {
        self.primary.and_then(|id| self.server(id))
    }

    /// The servers that may say what holds for an account and what a new session has, the best first:
    /// the primary, those that take reads, and any other that answers.
    pub fn judges(&self) -> impl Iterator<Item = ServerId> {
        let fit = self.fit_replicas().map(|view| view.id);
        let others = self.servers.iter().filter(|view| {
            !view.is_fit()
                && view.health.is_usable()
                && !view.gone
                && Some(view.id) != self.primary
                && !matches!(view.unfit, Some(Unfit::OtherFamily | Unfit::SameServer(_)))
        });
        let others = others.map(|view| view.id);
        self.primary.into_iter().chain(fit).chain(others)
    }

    /// Servers that take reads, the primary left out.
    pub fn fit_replicas(&self) -> impl Iterator<Item = &ServerView> {
        let primary = self.primary;
        self.servers
            .iter()
            .filter(move |view| Some(view.id) != primary && view.is_fit())
    }
}
