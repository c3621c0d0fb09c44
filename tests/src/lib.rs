//! End-to-end suites on real servers.
//!
//! The crate owns a small raw client ([`wire`]) that shares no code with the proxy, so that it
//! can judge it. It never reaches into the proxy's crates: everything is seen from a socket.

#![allow(missing_docs, reason = "a crate for the suites beside it only")]

pub mod checks;
pub mod cutter;
pub mod differential;
pub mod dns;
pub mod harness;
pub mod histories;
pub mod late_log;
pub mod ledger;
pub mod load;
pub mod netns;
pub mod numbers;
pub mod torture;
pub mod vanish;
pub mod wire;
pub mod witness;
