//! Servers, their roles and replication positions, judged by folding observations: pure values.
//! Never performs I/O, reads a clock or a random source: the time comes with each observation.
//!
//! [`Topology::fold`] takes what a probe or live traffic saw of one server and answers with what
//! changed; [`Topology::snapshot`] is the world as routing sees it.

mod discover;
mod event;
mod family;
mod fold;
mod group;
mod gtid;
mod head;
mod judge;
mod marks;
mod observation;
mod options;
mod snapshot;
mod source;
mod state;
mod verdict;

pub use discover::Kin;
pub use event::ChangeEvent;
pub use family::{Millis, SERVERS_EVER, ServerId};
pub use fold::{Evidence, Topology};
pub use gtid::{GtidError, GtidSet, LogPosition, MariaDbSet, MySqlSet};
pub use millrace_base::Family;
pub use observation::{
    Cause, GaleraNode, GaleraState, GroupView, Member, MemberState, Observation, ObservationKind,
    Peer, ProbeReport, Receiver, Relation, ReplicationStatus, Waits,
};
pub use options::{DiscoveryOptions, Options, ServerSpec};
pub use snapshot::{ConfiguredRole, Health, NoPrimary, Role, ServerView, Snapshot, Unfit};
