//! What a session decides about a statement, as values: which server is tried next, whether it may be sent twice,
//! when it waits and when it is given up. No socket, no clock: events and times are passed in. The crate `session` does
//! what is decided here, and its simulation runs the same decisions against models of servers.

pub mod attempts;
pub mod ended;
pub mod refusals;
pub mod rerun;
