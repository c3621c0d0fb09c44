//! What the listings are made from, and how workers are asked for their part. Changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_backend::cache::Cache;
use millrace_backend::monitor::{Monitor, World};
use millrace_config::Settings;
use millrace_metrics::Metrics;
use millrace_topology::ServerId;
use millrace_worker::{Client, Held, Message, Registry, ServerLine, SessionLine};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};

use crate::operators::cell::{Cell, Refusal};

/// How long a worker may take for its part of an answer, or a server to be told of a KILL.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sessions that a worker is asked for at once: it serves nobody while it answers.
pub(crate) const SESSIONS_AT_ONCE: usize = 256;

/// Everything that operators can look at.
#[derive(Debug)]
pub struct Sources {
    /// Watches the servers; also drains and resumes them.
    pub monitor: Arc<Monitor>,
    /// Every worker's mailbox.
    pub mailboxes: Arc<Vec<UnboundedSender<Message>>>,
    /// All clients.
    pub registry: Arc<Registry>,
    /// Statements that wait for a server.
    pub held: Arc<Held>,
    /// Results in memory, where the cache is on.
    pub cache: Option<Arc<Cache>>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The configuration in force.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// When the process started.
    pub started: Instant,
}

impl Sources {
    pub(crate) fn world(&self) -> Arc<World> {
        self.monitor.watch().borrow().clone()
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    /// The address of a server.
    pub(crate) fn address(world: &World, server: ServerId) -> Cell {
        let view = world.snapshot.server(server);
        view.map_or(Cell::Null, |view| Cell::from(view.address.to_string()))
    }

    /// Asks one worker.
    pub(crate) async fn ask<T>(
        &self,
        worker: usize,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let mailbox = self.mailboxes.get(worker);
        let sent = mailbox.is_some_and(|mailbox| mailbox.send(message(reply)).is_ok());
        let silent = || Refusal::cannot(format!("Millrace: worker {worker} does not answer"));
        if !sent {
            return Err(silent());
        }
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(silent()),
        }
    }

    /// Asks all workers, one after the other; answers in their order.
    pub(crate) async fn ask_all<T>(
        &self,
        message: impl Fn(oneshot::Sender<T>) -> Message,
    ) -> Result<Vec<T>, Refusal> {
        let mut answers = Vec::with_capacity(self.mailboxes.len());
        for worker in 0..self.mailboxes.len() {
            answers.push(self.ask(worker, &message).await?);
        }
        Ok(answers)
    }

    /// The servers' connections, summed over the workers.
    pub(crate) async fn server_lines(&self) -> Result<Vec<ServerSum>, Refusal> {
        let mut sums: Vec<ServerSum> = Vec::new();
        for lines in self.ask_all(Message::Servers).await? {
            sums.resize(sums.len().max(lines.len()), ServerSum::default());
            for (sum, line) in sums.iter_mut().zip(&lines) {
                sum.add(line);
            }
        }
        Ok(sums)
    }

    /// Describes some clients, in their order; none for one that is still logging in, or gone.
    pub(crate) async fn describe(
        &self,
        clients: &[Client],
    ) -> Result<Vec<Option<SessionLine>>, Refusal> {
        let mut by_worker: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, client) in clients.iter().enumerate() {
            by_worker.entry(client.worker).or_default().push(at);
        }
        let mut lines = vec![None; clients.len()];
        for (worker, places) in by_worker {
            let uids = places.iter().map(|at| clients[*at].uid).collect();
            let described = self
                .ask(worker, |reply| Message::Describe { uids, reply })
                .await?;
            for (at, line) in places.into_iter().zip(described) {
                lines[at] = line;
            }
        }
        Ok(lines)
    }
}

/// All workers' connections to one server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerSum {
    pub(crate) open: usize,
    pub(crate) leased: u64,
    pub(crate) idle: usize,
    pub(crate) waiting: usize,
    pub(crate) opened: u64,
    /// Of the workers that have measured one: their sum and number.
    response_us: (u64, u64),
}

impl ServerSum {
    fn add(&mut self, line: &ServerLine) {
        self.open += line.open;
        self.leased += u64::from(line.leased);
        self.idle += line.idle;
        self.waiting += line.waiting;
        self.opened += line.opened;
        if line.response_us > 0 {
            self.response_us.0 += u64::from(line.response_us);
            self.response_us.1 += 1;
        }
    }

    /// A read's response time in milliseconds, where one was measured.
    pub(crate) fn response_ms(&self) -> Option<f64> {
        let (sum, count) = self.response_us;
        (count > 0).then(|| (sum / count) as f64 / 1000.0)
    }
}
