//! The client's side: login, the command loop, the relay of answers, and what a session has set.
//! [`command`] reads and dispatches commands; `statement` is the way of one statement. What a session has, and what it
//! decides, is plain data in the crate `engine`. What all sessions of a thread share is in the crate `worker`.

mod error;
mod login;
mod session;
#[cfg(test)]
mod simulation;
mod worker;

pub use worker::Worker;
