//! The differential suite: scripts of commands run direct and through the proxy, and everything
//! that a client can see compared. The server is the specification.
//!
//! It owns the script language ([`script`]), its execution ([`player`]), what is left out of the
//! comparison and why ([`normalise`]), and the clients that disturb ([`noise`]). It starts no
//! server and no proxy.

pub mod known;
pub mod noise;
pub mod normalise;
pub mod player;
pub mod random;
pub mod script;
pub mod suite;
pub mod words;
