//! Which server a statement may run on, as a pure decision. Never performs I/O, reads a clock or
//! keeps state: the world, the session, the load and the rotation are passed in.
//!
//! [`decide`] is called once per statement; [`Catalogue`] says what stored functions, views and
//! procedures make of a statement that looks harmless by its text.

mod catalogue;
mod decide;
pub mod explain;
mod model;
pub mod rules;

pub use catalogue::{Catalogue, Row, TriggerEffects};
pub use decide::{decide, is_for_primary};
pub use millrace_sql::Access;
pub use model::{
    AllLag, Balance, CANDIDATES_MAX, Candidate, Candidates, Consistency, Decision, Freshness, Load,
    NoServer, Options, Reads, Reason, ServerSet, SessionView, Target, Transaction, Wanted,
};
