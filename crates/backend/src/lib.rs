//! Server connections: opening and logging in, the pools that lend them out, the session state
//! that is set on them again, and the probes that watch the servers. Never looks at a client.

pub mod account;
pub mod buffers;
pub mod cache;
mod clock;
pub mod compressed;
pub mod concurrency;
pub mod conn;
pub mod connect;
pub mod error;
mod exchange;
mod facts;
pub mod failovers;
pub mod follower;
pub mod fresh;
mod idle;
pub mod monitor;
pub mod names;
pub mod nonce;
pub mod opener;
pub mod packet_io;
pub mod pool;
pub mod positions;
pub mod prepared;
mod probe;
pub mod questions;
pub mod secret;
pub mod states;
pub mod stream;
pub mod tcp;
pub mod tls;
mod topology_log;
pub mod touched;
pub mod unshown;
pub mod user_rows;
