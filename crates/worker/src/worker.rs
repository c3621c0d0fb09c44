//! One thread's world: its clients, what it knows of the servers, what its sessions share. Shared by the
//! sessions of that thread only; other threads reach it through messages.

pub(crate) mod cluster;
mod serve;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_backend::account::Proof;
use millrace_backend::opener::{Logins, Successors};
use millrace_backend::pool::{ServerFacts, ServerPool, WakeWorkers};
use millrace_backend::states::States;
use millrace_backend::stream::Plain;
use millrace_metrics::WorkerMetrics;

use crate::cached::CacheView;
use crate::free_lists::FreeLists;
use crate::handle::Handle;
use crate::learnt::Learnt;
use crate::options::{Hosts, Options};
use crate::remembered::Remembered;
use crate::settings::SessionSettings;
use crate::shared::{ListenerContext, Message, Shared};
use crate::shared_statements::SharedStatements;
use crate::worker::cluster::pools::Pools;
use crate::worker::cluster::{ClusterView, drops};

/// A client that has just connected.
#[derive(Debug)]
pub struct NewClient {
    /// Its socket.
    pub stream: Plain,
    /// Where it comes from; none for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// Where it came in.
    pub entry: ListenerContext,
}

/// What serves the clients of a worker. The worker owns one and knows nothing else of sessions but their [`Handle`]s.
pub trait ClientService: Default + 'static {
    /// Begins to serve a client. It must not wait: it runs in the worker's loop.
    fn begin(worker: &Rc<Worker<Self>>, client: NewClient);

    /// The account has as many connections as it may have: closes its own that nobody uses.
    fn close_unused(&self, user: &[u8]);
}

/// Whose password sessions of an account may go on with. An account that was dropped and made anew is not
/// theirs: how many were dropped since one's own proof must be known, and none.
fn successors(shared: &Shared) -> Successors {
    let (accounts, world) = (shared.accounts.clone(), shared.monitor.watch());
    Box::new(move |account| {
        let drops = drops(&world.borrow());
        let is_sure = |proof: Proof| proof.drops == drops && !proof.current.is_empty();
        if !account.proof().is_some_and(is_sure) {
            return Vec::new();
        }
        let mut known = accounts.find(&account.user);
        known.retain(|other| other.id != account.id);
        known
    })
}

/// One worker.
pub struct Worker<S> {
    /// Its number among the workers.
    pub index: usize,
    /// What all workers share.
    pub shared: Shared,
    settings: RefCell<Rc<SessionSettings>>,
    /// The cluster, as it knows it.
    pub cluster: Rc<ClusterView>,
    /// The states of sessions and connections, each once.
    pub states: Rc<States>,
    /// What serves its clients.
    pub service: S,
    /// What rules said of statements.
    pub remembered: Remembered,
    /// Mirror images under way.
    pub mirrors: Rc<Cell<u32>>,
    /// What servers have told.
    pub learnt: Learnt,
    /// Prepared statements that clients have in common.
    pub prepared: SharedStatements,
    /// Memory that sessions hand on.
    pub lists: FreeLists,
    /// Results in memory.
    pub cached: CacheView,
    sessions: RefCell<HashMap<u64, Rc<Handle>>>,
    tick: Cell<u64>,
    draining: Cell<bool>,
}

impl<S: ClientService> Worker<S> {
    /// Makes the worker with number `index` of `shared.mailboxes`.
    pub fn new(index: usize, shared: Shared) -> Rc<Worker<S>> {
        let states = Rc::new(States::default());
        let workers = shared.mailboxes.len();
        let mailboxes = shared.mailboxes.clone();
        let wake_workers: WakeWorkers = Arc::new(move |bits: u64, server| {
            for (other, mailbox) in mailboxes.iter().enumerate() {
                if other != index && bits & 1 << (other % 64) != 0 {
                    // A closed mailbox is a worker that ends.
                    let _ = mailbox.send(Message::Room(server));
                }
            }
        });
        let opener = Rc::new(Logins {
            network: shared.network.clone(),
            timeout: shared.settings.pool.connect_timeout,
            states: states.clone(),
            buffers: Rc::default(),
            hosts_count: shared.settings.options.hosts == Hosts::Check,
            successors: successors(&shared),
        });
        let shared_pools = shared.clone();
        let make = move |facts: &Arc<ServerFacts>| {
            let shared = &shared_pools;
            let count = shared.counts.get(facts.id.index());
            let pool = ServerPool::new(
                facts.clone(),
                shared.settings.pool.clone(),
                opener.clone(),
                count.cloned().unwrap_or_default(),
                index,
                workers,
                wake_workers.clone(),
                shared.metrics.clone(),
            );
            let mailboxes = shared.mailboxes.clone();
            pool.on_limit(Box::new(move |user| {
                for mailbox in mailboxes.iter() {
                    // A closed mailbox is a worker that ends.
                    let _ = mailbox.send(Message::DropAccount(user.into()));
                }
            }));
            pool
        };
        Rc::new(Worker {
            index,
            cluster: ClusterView::new(index, shared.clone(), Pools::new(make)),
            settings: RefCell::new(Rc::new(shared.settings.clone())),
            cached: CacheView::new(shared.cache.clone()),
            shared,
            states,
            service: S::default(),
            remembered: Remembered::default(),
            mirrors: Rc::default(),
            learnt: Learnt::default(),
            prepared: SharedStatements::default(),
            lists: FreeLists::default(),
            sessions: RefCell::default(),
            tick: Cell::new(1),
            draining: Cell::new(false),
        })
    }

    fn drop_account(&self, user: &[u8]) {
        self.service.close_unused(user);
        self.cluster
            .servers
            .each(|_, server| server.drop_account(user));
    }

    /// An account may have no more connections than it has: those that nobody uses are closed.
    pub async fn make_room_for(&self, user: &[u8]) {
        self.drop_account(user);
        for (other, mailbox) in self.shared.mailboxes.iter().enumerate() {
            if other != self.index {
                // A closed mailbox is a worker that ends.
                let _ = mailbox.send(Message::DropAccount(user.into()));
            }
        }
        // The server counts a connection until it has noticed its end.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Its counters.
    pub fn metrics(&self) -> &WorkerMetrics {
        self.shared.metrics.worker(self.index)
    }

    /// What the configuration says now. A session has it for as long as a command takes.
    pub fn settings(&self) -> Rc<SessionSettings> {
        self.settings.borrow().clone()
    }

    /// Whether these are in force.
    pub fn has(&self, settings: &Rc<SessionSettings>) -> bool {
        Rc::ptr_eq(settings, &self.settings.borrow())
    }

    /// Limits and behaviour that are in force.
    pub fn options(&self) -> Arc<Options> {
        self.settings.borrow().options.clone()
    }

    /// Whether it takes no new clients, because the process ends.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Seconds since the start, roughly.
    pub fn tick(&self) -> u64 {
        self.tick.get()
    }

    /// The session with this identity, if the worker serves it.
    pub fn session(&self, uid: u64) -> Option<Rc<Handle>> {
        self.sessions.borrow().get(&uid).cloned()
    }

    /// A session is logged in.
    pub(crate) fn enter(&self, handle: &Rc<Handle>) {
        self.sessions
            .borrow_mut()
            .insert(handle.uid(), handle.clone());
    }

    /// A session that was logged in has ended.
    pub(crate) fn leave(&self, uid: u64) {
        self.sessions.borrow_mut().remove(&uid);
        if self.draining.get() {
            // So that the loop looks whether this was the last.
            let _ = self.shared.mailboxes[self.index].send(Message::Drain);
        }
    }

    /// Whether it serves no session.
    pub fn is_deserted(&self) -> bool {
        self.sessions.borrow().is_empty()
    }

    /// The most bytes that the worker's journals may keep together: its part of what all may.
    pub fn journals_max(&self) -> usize {
        let all = self
            .settings
            .borrow()
            .options
            .failover
            .max_replay_total_bytes;
        all / self.shared.mailboxes.len().max(1)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use millrace_topology::ServerId;

    use super::*;
    use crate::shared::tests::shared;

    /// Turns every client away.
    #[derive(Default)]
    pub(crate) struct NoService;

    impl ClientService for NoService {
        fn begin(_: &Rc<Worker<Self>>, _: NewClient) {}

        fn close_unused(&self, _: &[u8]) {}
    }

    #[test]
    fn settings_are_replaced_whole_and_who_has_others_sees_it() {
        let worker = Worker::<NoService>::new(0, shared());
        let before = worker.settings();
        assert!(worker.has(&before));
        let mut options = Options::clone(&before.options);
        options.max_packet += 1;
        options.failover.drain_time = Duration::ZERO;
        let drained = ServerId(3);
        worker.cluster.note_draining(drained, true);
        assert!(!worker.cluster.is_drained(drained));
        worker.take(Message::Settings(SessionSettings {
            options: Arc::new(options),
            ..SessionSettings::clone(&before)
        }));
        assert!(!worker.has(&before));
        let after = worker.settings();
        assert_eq!(after.options.max_packet, before.options.max_packet + 1);
        assert!(Arc::ptr_eq(&after.rules, &before.rules));
        assert!(worker.cluster.is_drained(drained));
    }
}
