//! One thread that serves clients: what it knows of the cluster and its pools, what its sessions have learnt and hand
//! on, and what all threads of the process share.
//!
//! Sessions use a [`Worker`]; a worker cannot reach into a session. It has of each a [`Handle`], and begins new ones
//! through [`ClientService`].

mod accounts;
mod admission;
mod cached;
mod free_lists;
mod handle;
mod kill;
mod learnt;
mod options;
mod registry;
mod remembered;
mod server_key;
mod settings;
mod shared;
mod shared_statements;
mod strangers;
mod wait_queue;
mod worker;

pub use accounts::{Accounts, Asked};
pub use admission::Admission;
pub use cached::CacheView;
pub use free_lists::FreeLists;
pub use handle::pins::Pins;
pub use handle::processlist::{Doing, PoolLine, ServerLine, SessionLine};
pub use handle::{Handle, Running};
pub use kill::{kill_aside, run_kill};
pub use learnt::{Base, COLLATION_DEFAULTS, CollationKey, Learnt};
pub use millrace_engine::options::FailoverOptions;
pub use millrace_protocol::auth::fingerprint;
pub use options::{Hosts, Options};
pub use registry::{Client, FIRST_ID, Registry};
pub use remembered::{Remembered, RememberedDirections};
pub use server_key::ServerKey;
pub use settings::SessionSettings;
pub use shared::{Killed, ListenerContext, ListenerTls, Message, Shared, Shown};
pub use shared_statements::SharedStatements;
pub use strangers::Strangers;
pub use wait_queue::{Full, Held, HeldStatement, Lane, Place};
pub use worker::cluster::pools::{Pools, Transition};
pub use worker::cluster::written::{INTERVALS_MAX, UntrackedWrite, Written};
pub use worker::cluster::{ClusterView, SERVERS};
pub use worker::{ClientService, NewClient, Worker};
