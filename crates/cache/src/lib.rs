//! Results kept in memory that are exactly what the servers would answer, as pure state: events of the binary log,
//! fills and look-ups go in, decisions come out. Owns no clock, no lock and no socket, and reads no SQL.
//!
//! # Terms
//!
//! - *F* ([`Store::applied`]): the transactions that have been taken in from the primary's binary log. One is in F only when
//!   everything that it touched has been invalidated.
//! - *Changes* of a table or of a key: the transactions of F on it that are not yet known to be on all servers in
//!   use ([`Store::settle`] tells).
//! - *P*, a lower bound of what a result shows: all of P was visible at the server before the SELECT began.
//! - *Q*, an upper bound: everything that the result can show is in Q.
//! - *R*: what the reading session must see, and what it has seen.
//!
//! # Rules
//!
//! 1. What may fill, and be served: [`Situation::check`].
//! 2. A fill is kept only if P has all Changes of each of its tables (keys) when it ends, and all that came
//!    since it began. It is served only once F has Q: from then on it is exactly the state of its tables at F.
//! 3. A transaction on a table (key) removes the entry, unless it is in the entry's P.
//! 4. A hit is allowed where F has R. What F has not of it may all have been announced ([`Store::announce`]) and touch none of the
//!    tables (keys). A hit counts as having seen the Changes of its tables (keys).
//! 5. No hit and no fill in a transaction, with autocommit off, or under SERIALIZABLE: the same check.
//! 6. After a gap in the log nothing is served until the follower has resumed ([`Store::resume`]); where it
//!    cannot, everything is dropped ([`Store::follow`]).
//!
//! Each is said where it is done, by its number.
//!
//! Beside these are results that somebody wants to be served for a time whatever changes (`store/within.rs`). They have keys
//! of their own, and no rule but their time.

mod admission;
mod broken;
mod definitions;
mod entry;
mod intervals;
mod key;
mod options;
mod reason;
mod scope;
mod situation;
mod slab;
mod statements;
mod store;
mod subjects;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use broken::Rule;
pub use definitions::{Definitions, KeyColumn, KeyKind, PRIMARY, Table};
pub use entry::{Token, Waiting};
pub use key::KeyBuilder;
pub use options::Options;
pub use reason::{Cause, Miss, Never, NoFill, Refused};
pub use scope::{Access, IndexKeys, Interval, Key, Scope, Subject, Touch};
pub use situation::{Isolation, Situation};
pub use statements::{Statement, Totals};
pub use store::{Applied, Begun, Ended, Finished, Hit, Resumed, Store, Verified, Wanted, XaId};
