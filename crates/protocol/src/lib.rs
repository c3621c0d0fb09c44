//! The MySQL and MariaDB wire protocol: bytes in, values out, and back. Owns no
//! socket, clock or random source; nonces and keys are passed in.
//!
//! The parts, in the order in which a connection meets them:
//!
//! - [`packet`]: frames of at most 16 MiB, and cursors to read and write payloads.
//! - [`capability`] and [`status`]: the flags that both sides exchange.
//! - [`handshake`]: greeting, response, authentication packets, change of user.
//! - [`auth`]: scrambles and signatures of the authentication plugins.
//! - [`command`]: what a client asks for.
//! - [`response`]: [`Tracker`](response::Tracker), which follows a server's answer
//!   without owning or copying it.
//! - [`ok`] and [`resultset`]: OK, EOF and ERR packets, session tracking, and small
//!   results made or read by Millrace itself.
//! - [`error`]: what an error packet says.
//! - [`compress`]: the framing of the compressed protocol.
//! - [`binlog`]: binary-log events, as a replica gets them.
//!
//! Sources are named beside each fact as "MySQL manual" (the client/server protocol
//! chapters of MySQL's source documentation), "MariaDB manual" (the clientserver
//! protocol pages of its knowledge base), or "observed", which means seen on the wire
//! of a MySQL 9.7 or MariaDB 10.11 server and kept as a test vector.

#![allow(
    missing_docs,
    reason = "fields and constants have the names of the protocol, which is documented elsewhere"
)]

pub mod auth;
pub mod binlog;
pub mod capability;
pub mod command;
pub mod compress;
pub mod error;
pub mod handshake;
pub mod ok;
pub mod packet;
pub mod response;
pub mod resultset;
pub mod status;
pub mod types;

pub use capability::Capabilities;
pub use error::ServerError;
pub use packet::Malformed;
pub use status::Status;
