//! What of the configuration changes while Millrace runs: the keys that are declared to be followed. On SIGHUP
//! the file is read again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_backend::monitor::Monitor;
use millrace_config::{Config, Settings};
use millrace_worker::{Message, SessionSettings};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
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
}

/// Where the configuration is from.
pub(crate) struct Source {
    /// The file; none where the command line says everything.
    pub(crate) file: Option<PathBuf>,
    /// `--workers`, which counts more than the file.
    pub(crate) workers: Option<usize>,
}

impl Source {
    /// What the file says now, as far as the command line leaves it; none where it is not valid, which was said.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(&self, file: &Path) -> anyhow::Result<Option<Config>> {
        let config = check::load(file)?;
        Ok(config.map(|config| self.overridden(config)))
    }

    /// With what the command line says as well.
    pub(crate) fn overridden(&self, mut config: Config) -> Config {
        if self.workers.is_some() {
            config.workers = self.workers;
        }
        config
    }
}

/// Replaces what is configured, whole.
pub(crate) struct Reload {
    pub(crate) source: Source,
    /// What is in force, for whoever looks.
    pub(crate) settings: watch::Sender<Arc<Settings>>,
    /// What the workers have.
    pub(crate) sessions: SessionSettings,
    pub(crate) drained: Drained,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) mailboxes: Arc<Vec<mpsc::UnboundedSender<Message>>>,
}

impl Reload {
    /// Reads the file again at each of these signals, until the process ends.
    pub(crate) async fn follow(mut self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            let Some(file) = self.source.file.clone() else {
                warn!("SIGHUP: there is no configuration file to read again");
                continue;
            };
            match self.source.read(&file) {
                Ok(Some(config)) => self.apply(&file, &config),
                // The errors were shown.
                Ok(None) => error!("SIGHUP: the configuration is not valid: nothing was changed"),
                Err(error) => error!(%error, "SIGHUP: nothing was changed"),
            }
        }
    }

    fn apply(&mut self, file: &Path, read: &Config) {
        let settings = Arc::new(self.settings.borrow().reloaded(read));
        let moved = self.drained.follow(read, &self.monitor);
        // No rule is followed: they stay, with what counts their statements.
        self.sessions = SessionSettings {
            options: Arc::new(settings.config.sessions.clone()),
            pool: Arc::new(settings.config.pool.clone()),
            ..self.sessions.clone()
        };
        for mailbox in self.mailboxes.iter() {
            // A closed mailbox is a worker that ends.
            let _ = mailbox.send(Message::Settings(self.sessions.clone()));
        }
        let rest = settings.config.differences(read);
        self.settings.send_replace(settings);
        info!(
            file = %file.display(), moved,
            "SIGHUP: the configuration was read again; which servers are draining is as it says"
        );
        if !rest.is_empty() {
            let keys = rest.join(", ");
            warn!(%keys, "SIGHUP: these keys have changed as well, and take a restart");
        }
    }
}
