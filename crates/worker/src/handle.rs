//! The part of a session that others on its thread may touch: they tell it to end, to stop its statement or to look
//! at something, and wake it. What it does then is the session's.

pub(crate) mod pins;
pub(crate) mod processlist;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Waker};

use millrace_backend::stream::Plain;
use millrace_engine::books::DiagnosticsStore;
use millrace_engine::state::SessionState;
use millrace_routing::Consistency;
use millrace_topology::ServerId;

use crate::handle::pins::Pins;

/// Whose session it is and what it runs on.
#[derive(Debug, Clone)]
pub struct Running {
    /// The account's name.
    pub user: Box<[u8]>,
    /// The server and the number of the connection there, while a statement runs or the session
    /// is pinned.
    pub on: Option<(ServerId, u32)>,
}

/// Commands of a client, and bytes from it and to it. Written by its own worker only.
#[derive(Debug, Default)]
struct Counts {
    commands: Cell<u64>,
    received: Cell<u64>,
    sent: Cell<u64>,
}

/// The part of a session that others may touch; they are on the same thread.
#[derive(Default)]
pub struct Handle {
    uid: u64,
    user: RefCell<Box<[u8]>>,
    connection: Cell<Option<(ServerId, u32)>>,
    /// The connection was named to a KILL: it is not to be lent to another.
    is_kill_target: Cell<bool>,
    /// The statement under way has run for longer than a rule allows.
    timed_out: Cell<bool>,
    /// The statement under way was named to a KILL: it is not to be tried elsewhere.
    interrupted: Cell<bool>,
    /// That KILL is about to end the session as well.
    ending: Cell<bool>,
    ended: Cell<bool>,
    draining: Cell<bool>,
    /// The client's socket is to be looked at: the statement has run for a while.
    check_client: Cell<bool>,
    evict: Cell<bool>,
    /// The client's socket, to look at as long as the session lives.
    socket: RefCell<Option<Plain>>,
    /// A command runs since this tick; 0: none.
    busy_since: Cell<u64>,
    /// When the client last sent something, in ticks.
    heard: Cell<u64>,
    /// Seconds after which an idle client is disconnected; 0: never.
    idle_max: Cell<u64>,
    /// The session ends because its client was idle for that long.
    idled: Cell<bool>,
    saved: Rc<DiagnosticsStore>,
    peer: Option<(IpAddr, u16)>,
    /// When it connected, in ticks.
    connected: u64,
    counts: Counts,
    pins: Pins,
    begun: Cell<bool>,
    level: Cell<Consistency>,
    /// What the client has set; none before the login is done.
    state: Cell<Option<Rc<SessionState>>>,
    waker: RefCell<Option<Waker>>,
}

/// What the session says of itself.
impl Handle {
    /// Of the session `uid`, whose client has connected from `peer` (none: a Unix socket) at `tick`.
    pub fn new(uid: u64, peer: Option<(IpAddr, u16)>, tick: u64) -> Handle {
        Handle {
            uid,
            peer,
            connected: tick,
            heard: Cell::new(tick),
            ..Handle::default()
        }
    }

    /// The session's identity.
    #[inline]
    pub fn uid(&self) -> u64 {
        self.uid
    }

    /// Where the client is; none for a Unix socket.
    pub fn peer(&self) -> Option<(IpAddr, u16)> {
        self.peer
    }

    /// Why the session keeps its connection.
    #[inline]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// What another session saved of this one's last statement.
    pub fn saved(&self) -> &Rc<DiagnosticsStore> {
        &self.saved
    }

    /// The account's name.
    pub fn set_user(&self, user: Box<[u8]>) {
        self.user.replace(user);
    }

    /// The client's socket, which is looked at while a statement runs.
    pub fn watch_socket(&self, socket: Plain) {
        self.socket.replace(Some(socket));
    }

    /// The socket is closed when the session has done so, although others may yet have the handle.
    pub(crate) fn forget_socket(&self) {
        self.socket.take();
    }

    /// A command has come.
    pub fn begin_command(&self, tick: u64) {
        self.busy_since.set(tick);
        self.counts.commands.set(self.counts.commands.get() + 1);
        self.interrupted.set(false);
        self.timed_out.set(false);
    }

    /// The command has been answered.
    pub fn end_command(&self, tick: u64) {
        self.busy_since.set(0);
        self.heard.set(tick);
    }

    /// A command is under way.
    pub fn is_busy(&self) -> bool {
        self.busy_since.get() != 0
    }

    /// The client was heard of.
    pub fn set_heard(&self, tick: u64) {
        self.heard.set(tick);
    }

    /// Bytes came from the client.
    #[inline]
    pub fn received(&self, bytes: usize) {
        self.counts
            .received
            .set(self.counts.received.get() + bytes as u64);
    }

    /// Bytes went to the client.
    #[inline]
    pub fn sent(&self, bytes: usize) {
        self.counts.sent.set(self.counts.sent.get() + bytes as u64);
    }

    /// Seconds after which an idle client is disconnected; 0: never.
    pub fn set_idle_max(&self, seconds: u64) {
        self.idle_max.set(seconds);
    }

    /// Whether the client is in a transaction that no server knows of (yet, or any more).
    pub fn set_begun(&self, begun: bool) {
        self.begun.set(begun);
    }

    /// What the session's reads are guaranteed to see.
    pub fn set_level(&self, level: Consistency) {
        self.level.set(level);
    }

    /// What the client has set.
    pub fn set_state(&self, state: Rc<SessionState>) {
        self.state.set(Some(state));
    }

    /// The server and the number of the connection there that the session has now.
    #[inline]
    pub fn set_connection(&self, connection: Option<(ServerId, u32)>) {
        self.connection.set(connection);
    }

    /// A KILL is about to name the session's connection, where it has one: that is not lent to another.
    pub fn target_for_kill(&self) -> Option<(ServerId, u32)> {
        let connection = self.connection.get();
        if connection.is_some() {
            self.is_kill_target.set(true);
        }
        connection
    }

    /// A KILL may have named the session's connection.
    #[inline]
    pub fn is_kill_target(&self) -> bool {
        self.is_kill_target.get()
    }

    /// The session has its connection no longer. True if a KILL may have named it.
    #[inline]
    pub fn leave_connection(&self) -> bool {
        self.connection.set(None);
        self.is_kill_target.take()
    }

    /// The time of the statement under way is up.
    pub fn time_out(&self) {
        self.timed_out.set(true);
    }

    /// Whether it is.
    pub fn has_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// It has begun anew, or what was to come of it has come. True if it was up.
    pub fn clear_timeout(&self) -> bool {
        self.timed_out.take()
    }

    /// The statement under way is not to be tried (again).
    pub fn interrupt(&self) {
        self.interrupted.set(true);
    }

    /// Whether it is not.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.get()
    }

    /// A KILL is about to end the session.
    pub fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// The session is to end.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// The session ends because its client was idle for too long.
    pub fn has_idled(&self) -> bool {
        self.idled.get()
    }

    /// The session is to end when it is idle and holds nothing.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// The server of the kept connection may have to be left.
    #[inline]
    pub fn is_evicted(&self) -> bool {
        self.evict.get()
    }

    /// The session has looked whether it has.
    pub fn clear_eviction(&self) {
        self.evict.set(false);
    }

    /// Remembers whom to wake; costs a comparison when nothing changed.
    pub fn register(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Whether the client is gone, where it is time to look.
    pub fn has_lost_client(&self, cx: &mut Context<'_>) -> bool {
        self.register(cx);
        if !self.check_client.take() {
            return false;
        }
        let socket = self.socket.borrow();
        socket.as_ref().is_some_and(|socket| socket.peer_closed(cx))
    }
}

/// What the worker tells the session.
impl Handle {
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// A KILL is on its way to the session's connection; `query`: it leaves the session.
    pub(crate) fn begin_kill(&self, query: bool) -> Running {
        self.is_kill_target.set(self.connection.get().is_some());
        self.ending.set(!query);
        Running {
            user: self.user.borrow().clone(),
            on: self.connection.get(),
        }
    }

    /// A KILL has named the statement under way, if there is one.
    pub(crate) fn interrupt_running(&self) {
        self.interrupted.set(self.is_busy());
        self.wake();
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        self.ended.set(true);
        self.wake();
    }

    /// Ends the session when it is idle and holds nothing.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.wake();
    }

    /// Has the session look whether it may stay on the server, if it keeps a connection there.
    pub(crate) fn evict(&self, server: ServerId) {
        if self.connection.get().is_some_and(|(on, _)| on == server) {
            self.evict.set(true);
            self.wake();
        }
    }

    /// A second has passed.
    pub(crate) fn sweep(&self, tick: u64) {
        let (busy, idle_max) = (self.busy_since.get(), self.idle_max.get());
        if busy != 0 && tick > busy + 1 {
            self.check_client.set(true);
            self.wake();
        } else if busy == 0 && idle_max != 0 && tick.saturating_sub(self.heard.get()) > idle_max {
            self.idled.set(true);
            self.end();
        }
    }
}
