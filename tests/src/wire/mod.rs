//! A raw MySQL-protocol client: every packet of every reply is kept and can be printed.
//!
//! It owns no policy: it sends what it is told and reports what came back. It shares no code with
//! the proxy's own protocol crate, so a mistake there is not repeated here.

mod auth;
mod binary;
mod codec;
mod connection;
mod consts;
mod entrant;
mod frame;
mod greeting;
mod params;
mod reply;
mod tls;

pub use binary::decode_row;
pub use connection::{Certificate, Connection, Expect, Login, Target};
pub use consts::{ProtocolNames, cap, com};
pub use entrant::{Attempt, Claim, Outcome, Proof, Step};
pub use frame::{Frames, Packet};
pub use greeting::Greeting;
pub use params::{Param, ParamError};
pub use reply::{Column, ErrPacket, Event, Item, OkPacket, Reply, printable};
