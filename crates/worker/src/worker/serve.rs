//! What a worker does: takes clients in, follows the monitor, and answers who asks about its sessions. It reads a bounded
//! part at a time then: a worker serves nobody while it answers.

use std::rc::Rc;
use std::sync::Arc;

use millrace_backend::error::BackendError;
use millrace_backend::monitor::World;
use millrace_topology::ServerId;
use tokio::sync::{mpsc, oneshot};

use crate::handle::Running;
use crate::handle::processlist::{PoolLine, ServerLine, SessionLine};
use crate::kill::kill_aside;
use crate::shared::{Killed, Message};
use crate::worker::{ClientService, NewClient, Worker};

/// How long an operator's KILL may take to reach the server, login included.
const TELLING: std::time::Duration = std::time::Duration::from_secs(5);

impl<S: ClientService> Worker<S> {
    /// Serves until [`Message::Stop`], or until the drain is done.
    pub async fn run(self: Rc<Self>, mut mailbox: mpsc::UnboundedReceiver<Message>) {
        let mut world = self.shared.monitor.watch();
        self.follow(world.borrow_and_update().clone());
        loop {
            tokio::select! {
                message = mailbox.recv() => match message {
                    None | Some(Message::Stop) => return,
                    Some(message) => self.take(message),
                },
                changed = world.changed() => {
                    if changed.is_ok() {
                        let now = world.borrow_and_update().clone();
                        self.follow(now);
                    }
                }
            }
            if self.draining.get() && self.is_deserted() {
                return;
            }
        }
    }

    pub(super) fn take(self: &Rc<Self>, message: Message) {
        match message {
            Message::Client { plain, peer, entry } => {
                if let Ok(stream) = tokio::net::TcpStream::from_std(plain) {
                    S::begin(
                        self,
                        NewClient {
                            stream: stream.into(),
                            peer,
                            entry,
                        },
                    );
                }
            }
            Message::UnixClient { plain, entry } => {
                if let Ok(stream) = tokio::net::UnixStream::from_std(plain) {
                    let (stream, peer) = (stream.into(), None);
                    S::begin(
                        self,
                        NewClient {
                            stream,
                            peer,
                            entry,
                        },
                    );
                }
            }
            Message::Second => self.sweep(),
            Message::Settings(settings) => {
                let drain_time = settings.options.failover.drain_time;
                self.cluster.set_drain_time(drain_time);
                self.settings.replace(Rc::new(settings));
            }
            Message::Room(server) => {
                // Another worker may know of it first.
                if server.index() < self.cluster.servers.len() {
                    let pool = self.cluster.servers.of(server);
                    pool.give_room();
                    pool.pump();
                    pool.trim_idle();
                }
            }
            Message::Ask { uid, query, reply } => {
                let handle = self.session(uid);
                let _ = reply.send(handle.map(|handle| handle.begin_kill(query)));
            }
            // Who asked may be gone: then nobody wants the answer.
            Message::Describe { uids, reply } => drop(reply.send(self.describe(&uids))),
            Message::Servers(reply) => drop(reply.send(self.server_lines())),
            Message::Pools { max, reply } => drop(reply.send(self.pool_lines(max))),
            Message::Kill { uid, query, reply } => self.kill_for_operator(uid, query, reply),
            Message::DropAccount(user) => self.drop_account(&user),
            Message::Interrupt(uid) => {
                if let Some(handle) = self.session(uid) {
                    handle.interrupt_running();
                }
            }
            Message::End(uid) => {
                if let Some(handle) = self.session(uid) {
                    handle.end();
                }
            }
            Message::Drain => {
                self.draining.set(true);
                for handle in self.sessions.borrow().values() {
                    handle.drain();
                }
            }
            Message::Stop => {}
        }
    }

    fn sweep(self: &Rc<Self>) {
        self.cluster.confirm_written();
        if self.cluster.lacks_primary() {
            // Some wait for a primary only for a while.
            self.shared.held.look_again();
        }
        let tick = self.tick.get() + 1;
        self.tick.set(tick);
        self.cluster.sweep(tick);
        self.cluster.servers.each(|_, server| server.sweep(tick));
        for index in 0..self.cluster.servers.len() {
            let server = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
            if self.cluster.is_drained(server) {
                self.evict(server);
            }
        }
        for handle in self.sessions.borrow().values() {
            handle.sweep(tick);
        }
    }

    /// Takes over what the monitor says of the servers.
    fn follow(&self, world: Arc<World>) {
        for lost in self.cluster.set_world(world) {
            self.evict(lost);
        }
    }

    /// Has the sessions that keep a connection to the server look whether they may.
    fn evict(&self, server: ServerId) {
        for handle in self.sessions.borrow().values() {
            handle.evict(server);
        }
    }

    /// The sessions with these identities, in their order; none where one is not logged in (any
    /// more).
    fn describe(&self, uids: &[u64]) -> Vec<Option<SessionLine>> {
        let line = |uid: &u64| Some(self.session(*uid)?.line(self.tick()));
        uids.iter().map(line).collect()
    }

    /// The servers' connections, in the order of the servers.
    fn server_lines(&self) -> Vec<ServerLine> {
        let mut lines = Vec::with_capacity(self.cluster.servers.len());
        self.cluster.servers.each(|_, server| {
            lines.push(ServerLine {
                open: server.open_here(),
                leased: server.leased(),
                idle: server.idle_here(),
                waiting: server.waiting_here(),
                opened: server.connects(),
                response_us: server.response_us(),
            });
        });
        lines
    }

    /// The pools, `max` at most.
    fn pool_lines(&self, max: usize) -> Vec<PoolLine> {
        let mut lines = Vec::new();
        self.cluster.servers.each(|_, server| {
            let id = server.facts().id;
            server.each_pool(|pool, waiting| {
                if lines.len() < max {
                    lines.push(PoolLine {
                        server: id,
                        account: pool.key().account.clone(),
                        leased: pool.leased(),
                        idle: pool.idle(),
                        opening: pool.opening(),
                        waiting,
                        opened: pool.opened(),
                        lent: pool.lent(),
                    });
                }
            });
        });
        lines
    }

    /// Ends a session, or its statement. The server is told first, by another connection of the
    /// session's own account, as by a client's KILL.
    fn kill_for_operator(self: &Rc<Self>, uid: u64, query: bool, reply: oneshot::Sender<Killed>) {
        let Some(handle) = self.session(uid) else {
            let _ = reply.send(Killed::Gone);
            return;
        };
        let Running { user, on } = handle.begin_kill(query);
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            let told = match on {
                Some((server, thread)) => {
                    let telling = worker.tell(&user, server, thread, query);
                    let told = tokio::time::timeout(TELLING, telling).await;
                    told.unwrap_or(Err(BackendError::Timeout("the KILL's own limit")))
                }
                None => Ok(()),
            };
            if query {
                handle.interrupt_running();
            } else {
                handle.end();
            }
            let _ = reply.send(match told {
                Ok(()) => Killed::Done,
                Err(error) => Killed::NotTold(error.to_string()),
            });
        });
    }

    async fn tell(
        &self,
        user: &[u8],
        server: ServerId,
        thread: u32,
        query: bool,
    ) -> Result<(), BackendError> {
        let pool = self.cluster.servers.of(server).pool_of(user);
        let pool = pool.ok_or(BackendError::Protocol("its account has no pool"))?;
        let what = if query { "QUERY" } else { "CONNECTION" };
        // On a connection that counts with no limit: where sessions wait for others to end, none of
        // the pool's would be free.
        kill_aside(&pool, &format!("KILL {what} {thread}")).await
    }
}
