//! The client's side: login, the command loop, the relay of answers, and what a session has set.
//! [`run`] tells the story of a command and alone calls sideways; every other module answers
//! one question for it.

mod accounts;
mod commands;
mod consistency;
mod directions;
mod effects;
mod epilogue;
mod failure;
mod kill;
mod lease;
mod local;
mod login;
mod obey;
mod options;
mod own;
mod pins;
mod prelude;
mod prepared;
mod questions;
mod registry;
mod relay;
mod relayed;
mod route;
mod run;
mod session;
mod variables;
mod verify;
mod worker;
mod written;

pub use accounts::Accounts;
pub use options::{Options, ServerKey};
pub use registry::Registry;
pub use worker::{Entry, ListenerTls, Message, Shared, Worker};
pub use written::Written;
