//! A session without I/O: what it has ([`image`], [`state`]), what a connection remembers of it ([`books`]), and what
//! is decided about its statements: which server is tried next, whether it may be sent twice, when it waits and when it
//! is given up. No socket, no clock: events and times are passed in. The crate `session` does what is decided here, and
//! its simulation runs the same decisions against models of servers.

pub mod attempts;
pub mod books;
pub mod checksum;
pub mod ended;
pub mod image;
pub mod journal;
pub mod options;
pub mod outcome;
pub mod refusals;
pub mod replay;
pub mod request;
pub mod rerun;
pub mod state;
mod words;

pub use words::{expression, words};
