//! The admin listener: operators ask and act in the MySQL protocol, with any client. It has an
//! account of its own and never runs a statement on a server for them.
//!
//! Who is connected here can slow nobody else down: all of it runs on a thread of its own, what
//! workers are asked for is bounded, and so are clients, their packets and what is kept of an
//! answer that they do not read.

mod acts;
mod answer;
mod cell;
mod chatter;
mod conversation;
mod filter;
mod listing;
mod login;
mod parser;
mod shared;
mod sources;
mod statement;
mod tables;
mod token;
mod variables;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millrace_backend::stream::{Plain, Stream};
use millrace_worker::Accounts;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::Listener;
use cell::Refusal;
use conversation::Conversation;
use shared::Operators;
pub use shared::OperatorsOptions;
pub use sources::Sources;

/// Serves until the runtime ends. To be called on a current-thread runtime of its own that allows
/// local tasks.
pub async fn serve_operators(listener: Listener, options: OperatorsOptions, sources: Sources) {
    let free = Arc::new(Semaphore::new(options.connections_max));
    let operators = Rc::new(Operators {
        options,
        failures: Accounts::default(),
        sources,
        next_id: AtomicU32::new(1),
    });
    loop {
        let (plain, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept an operator's client");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let operators = operators.clone();
        match free.clone().try_acquire_owned() {
            Ok(permit) => {
                tokio::task::spawn_local(async move {
                    converse(&operators, plain, peer).await;
                    drop(permit);
                });
            }
            Err(_) => turn_away(plain, operators.options.connections_max),
        }
    }
}

async fn converse(operators: &Operators, plain: Plain, peer: Option<SocketAddr>) {
    let id = operators.next_id.fetch_add(1, Ordering::Relaxed);
    let login = login::log_in(operators, plain, peer, id);
    let entered = tokio::time::timeout(operators.options.login_timeout, login).await;
    if let Ok(Some(entered)) = entered {
        Conversation::new(&operators.sources, entered).run().await;
    }
}

/// Tells a client that there are too many, as far as its socket takes that at once.
fn turn_away(plain: Plain, limit: usize) {
    let text = format!("Too many connections (Millrace: admin.max_connections is {limit})");
    let mut out = Vec::new();
    let refusal = Refusal::new(1040, b"08004", text);
    refusal.packet().encode_before_greeting(&mut out);
    let mut stream = Stream::Plain(plain);
    tokio::task::spawn_local(async move {
        let _ = tokio::time::timeout(Duration::from_secs(1), stream.send(&out)).await;
    });
}
