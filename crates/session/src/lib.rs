//! The client's side: login, the command loop, the relay of answers, and what a session has set.
//! [`command`] reads and dispatches commands; `statement` is the way of one statement. What a session has, and what it
//! decides, is plain data in the crate `engine`.

mod error;
mod login;
mod options;
mod session;
mod settings;
#[cfg(test)]
mod simulation;
mod worker;

pub use login::accounts::Accounts;
pub use login::credentials::random_nonce;
pub use millrace_engine::options::FailoverOptions;
pub use millrace_protocol::auth::fingerprint;
pub use options::{Hosts, Options, ServerKey};
pub use settings::SessionSettings;
pub use worker::Worker;
pub use worker::processlist::{Doing, PoolLine, ServerLine, SessionLine};
pub use worker::registry::{Client, Registry};
pub use worker::shared::{Killed, ListenerContext, ListenerTls, Message, Shared};
pub use worker::wait_queue::{Held, HeldStatement, Lane};
pub use worker::written::Written;
