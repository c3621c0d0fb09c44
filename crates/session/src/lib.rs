//! The client's side: login, the command loop, the relay of answers, and what a session has set.
//! [`run`] tells the story of a command and alone calls sideways; every other module answers
//! one question for it.

mod accounts;
mod admission;
mod borrow;
mod caller;
mod charsets;
mod choose;
mod columns;
mod commands;
mod consistency;
mod diagnostics;
mod directions;
mod effects;
mod ended;
mod epilogue;
mod failure;
mod found_rows;
mod ground;
mod held;
mod hold;
mod journal;
mod kill;
mod lease;
mod local;
mod login;
mod measuring;
mod messages;
mod obey;
mod old_clients;
mod options;
mod otherwise;
mod own;
mod pins;
mod pools;
mod prelude;
mod prepared;
mod questions;
mod recording;
mod refusals;
mod registry;
mod relay;
mod relayed;
mod rerun;
mod roster;
mod route;
mod run;
mod sequences;
mod session;
#[cfg(test)]
mod simulation;
mod strangers;
mod sum;
mod variables;
mod verify;
mod worker;
mod written;

pub use accounts::Accounts;
pub use held::{Held, HeldStatement, Lane};
pub use kill::Killed;
pub use login::random_nonce;
pub use options::{FailoverOptions, Hosts, Options, ServerKey};
pub use registry::{Client, Registry};
pub use roster::{Doing, PoolLine, ServerLine, SessionLine};
pub use worker::{Entry, ListenerTls, Message, Shared, Worker};
pub use written::Written;
