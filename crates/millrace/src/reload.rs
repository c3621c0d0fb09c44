//! What of the configuration may change while Millrace runs: which servers are out of use. On SIGHUP
//! the file is read again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_backend::monitor::Monitor;
use millrace_config::Config;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use crate::check;

/// Who drains and resumes, for logs and timelines.
const BY: &str = "the configuration";

/// The signal that has the file read again.
pub(crate) fn hangups() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// The servers that the configuration keeps out of use, by address.
#[derive(Debug, Default)]
pub(crate) struct Drained(BTreeSet<String>);

impl Drained {
    /// Drains what the configuration says now and did not before, and resumes what it does no more say.
    /// What an operator has drained or resumed meanwhile stays so where the configuration does not
    /// change. How many servers it moved.
    pub(crate) fn follow(&mut self, config: &Config, monitor: &Monitor) -> usize {
        let servers = config.servers.iter().filter(|server| server.draining);
        let wanted: BTreeSet<String> = servers.map(|server| server.address.to_string()).collect();
        let world = monitor.watch().borrow().clone();
        let mut moved = 0;
        for view in &world.snapshot.servers {
            let (before, now) = (
                self.0.contains(&*view.address),
                wanted.contains(&*view.address),
            );
            moved += usize::from(match (before, now) {
                (false, true) => monitor.drain(view.id, BY),
                (true, false) => monitor.resume(view.id, BY),
                _ => false,
            });
        }
        self.0 = wanted;
        moved
    }

    /// Reads the file again at each of these signals, until the process ends.
    pub(crate) async fn follow_file(
        mut self,
        file: Option<PathBuf>,
        mut hangups: Signal,
        monitor: Arc<Monitor>,
    ) {
        while hangups.recv().await.is_some() {
            let Some(file) = &file else {
                warn!("SIGHUP: there is no configuration file to read again");
                continue;
            };
            match check::load(file) {
                Ok(Some(config)) => {
                    let moved = self.follow(&config, &monitor);
                    info!(
                        file = %file.display(), moved,
                        "SIGHUP: the configuration was read again; which servers are draining \
                         is as it says, everything else takes a restart"
                    );
                }
                // The errors were shown.
                Ok(None) => error!("SIGHUP: the configuration is not valid: nothing was changed"),
                Err(error) => error!(%error, "SIGHUP: nothing was changed"),
            }
        }
    }
}
