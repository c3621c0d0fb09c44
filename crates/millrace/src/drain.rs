//! The end: no new clients, idle ones let go, the others within a named time.

use std::sync::Arc;
use std::time::Duration;

use millrace_worker::{Message, Registry};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedSender;
use tracing::{info, warn};

/// The signals that end the process.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Lets the clients finish; a second signal, or the end of `timeout`, ends them.
pub(crate) async fn drain(
    mailboxes: Arc<Vec<UnboundedSender<Message>>>,
    registry: Arc<Registry>,
    timeout: Duration,
    signals: &mut Signals,
) {
    info!(clients = registry.clients(), ?timeout, "draining");
    tell(&mailboxes, || Message::Drain);
    let emptied = async {
        while registry.clients() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = emptied => info!("drained"),
        () = tokio::time::sleep(timeout) => {
            warn!(clients = registry.clients(), "drain.timeout has passed: ending the rest");
        }
        () = signals.next() => warn!(clients = registry.clients(), "second signal: ending the rest"),
    }
    tell(&mailboxes, || Message::Stop);
}

fn tell(mailboxes: &[UnboundedSender<Message>], message: impl Fn() -> Message) {
    for mailbox in mailboxes {
        // A closed mailbox is a worker that has ended already.
        let _ = mailbox.send(message());
    }
}
