//! One thread's world: its sessions, what it knows of the servers, what its sessions share. Shared by the
//! sessions of that thread only; other threads reach it through messages.

pub(crate) mod cluster;
pub(crate) mod free_lists;
pub(crate) mod handle;
pub(crate) mod learnt;
pub(crate) mod pins;
pub(crate) mod pools;
pub(crate) mod processlist;
pub(crate) mod registry;
pub(crate) mod remembered;
mod serve;
pub(crate) mod shared;
pub(crate) mod shared_statements;
pub(crate) mod wait_queue;
pub(crate) mod written;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_backend::account::Proof;
use millrace_backend::opener::{Logins, Successors};
use millrace_backend::pool::{ServerFacts, ServerPool, WakeWorkers};
use millrace_backend::states::States;
use millrace_metrics::WorkerMetrics;

use crate::login::verifiers::Verifiers;
use crate::options::Options;
use crate::settings::SessionSettings;
use crate::worker::cluster::{ClusterView, drops};
use crate::worker::free_lists::FreeLists;
use crate::worker::learnt::Learnt;
use crate::worker::pools::Pools;
use crate::worker::remembered::Remembered;
use crate::worker::shared_statements::SharedStatements;

pub(crate) use crate::worker::shared::{ListenerContext, ListenerTls, Message, Shared};

pub(crate) use crate::worker::handle::Handle;

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
pub struct Worker {
    pub(crate) index: usize,
    pub(crate) shared: Shared,
    settings: RefCell<Rc<SessionSettings>>,
    pub(crate) cluster: Rc<ClusterView>,
    pub(crate) states: Rc<States>,
    pub(crate) verifiers: Verifiers,
    pub(crate) remembered: Remembered,
    /// Mirror images under way.
    pub(crate) mirrors: Rc<Cell<u32>>,
    pub(crate) learnt: Learnt,
    pub(crate) prepared: SharedStatements,
    pub(crate) lists: FreeLists,
    sessions: RefCell<HashMap<u64, Rc<Handle>>>,
    tick: Cell<u64>,
    draining: Cell<bool>,
}

impl Worker {
    /// Makes the worker with number `index` of `shared.mailboxes`.
    pub fn new(index: usize, shared: Shared) -> Rc<Worker> {
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
            shared,
            states,
            verifiers: Verifiers::default(),
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
        self.verifiers.rest(user);
        self.cluster
            .servers
            .each(|_, server| server.drop_account(user));
    }

    /// An account may have no more connections than it has: those that nobody uses are closed.
    pub(crate) async fn make_room_for(&self, user: &[u8]) {
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

    pub(crate) fn metrics(&self) -> &WorkerMetrics {
        self.shared.metrics.worker(self.index)
    }

    /// What the configuration says now. A session has it for as long as a command takes.
    pub(crate) fn settings(&self) -> Rc<SessionSettings> {
        self.settings.borrow().clone()
    }

    /// Whether these are in force.
    pub(crate) fn has(&self, settings: &Rc<SessionSettings>) -> bool {
        Rc::ptr_eq(settings, &self.settings.borrow())
    }

    pub(crate) fn options(&self) -> Arc<Options> {
        self.settings.borrow().options.clone()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Seconds since the start, roughly.
    pub(crate) fn tick(&self) -> u64 {
        self.tick.get()
    }

    pub(crate) fn session(&self, uid: u64) -> Option<Rc<Handle>> {
        self.sessions.borrow().get(&uid).cloned()
    }

    pub(crate) fn enter(&self, handle: &Rc<Handle>) {
        self.sessions
            .borrow_mut()
            .insert(handle.uid, handle.clone());
    }

    pub(crate) fn leave(&self, uid: u64) {
        self.sessions.borrow_mut().remove(&uid);
        if self.draining.get() {
            // So that the loop looks whether this was the last.
            let _ = self.shared.mailboxes[self.index].send(Message::Drain);
        }
    }

    /// Whether it serves no session.
    #[cfg(test)]
    pub(crate) fn is_deserted(&self) -> bool {
        self.sessions.borrow().is_empty()
    }

    /// The most bytes that the worker's journals may keep together: its part of what all may.
    pub(crate) fn journals_max(&self) -> usize {
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
mod tests {
    use millrace_topology::ServerId;

    use super::*;
    use crate::login::admission::tests::shared;

    #[test]
    fn settings_are_replaced_whole_and_who_has_others_sees_it() {
        let worker = Worker::new(0, shared());
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
