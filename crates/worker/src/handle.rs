//! The part of a session that others on its thread may touch.

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

/// What a client has sent and been sent so far. Written by its own worker only.
#[derive(Debug, Default)]
pub struct Counts {
    pub(super) commands: Cell<u64>,
    pub(super) received: Cell<u64>,
    pub(super) sent: Cell<u64>,
}

impl Counts {
    /// A command came.
    pub fn command(&self) {
        self.commands.set(self.commands.get() + 1);
    }

    /// Bytes came from the client.
    pub fn received(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
    }

    /// Bytes went to the client.
    pub fn sent(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }
}

/// The part of a session that others may touch; they are on the same thread.
#[derive(Default)]
pub struct Handle {
    /// The session's identity.
    pub uid: u64,
    /// The account's name.
    pub user: RefCell<Box<[u8]>>,
    /// Where the session's lease is.
    pub on: Cell<Option<(ServerId, u32)>>,
    /// The connection on loan was named to a KILL: it is not to be lent to another.
    pub tainted: Cell<bool>,
    /// The statement under way has run for longer than a rule allows.
    pub timed_out: Cell<bool>,
    /// The statement under way was named to a KILL: it is not to be tried elsewhere.
    pub interrupted: Cell<bool>,
    /// That KILL is about to end the session as well.
    pub ending: Cell<bool>,
    /// The session is to end.
    pub ended: Cell<bool>,
    /// The session is to end when it is idle and holds nothing.
    pub draining: Cell<bool>,
    /// The client's socket is to be looked at: the statement has run for a while.
    pub check_client: Cell<bool>,
    /// The server of the kept connection may have to be left.
    pub evict: Cell<bool>,
    /// The client's socket, to look at as long as the session lives.
    pub socket: RefCell<Option<Plain>>,
    /// A statement runs since this tick; 0: none.
    pub busy_since: Cell<u64>,
    /// When the client last sent something, in ticks.
    pub heard: Cell<u64>,
    /// Seconds after which an idle client is disconnected; 0: never.
    pub idle_max: Cell<u64>,
    /// The session ends because its client was idle for that long.
    pub idled: Cell<bool>,
    /// What another session saved of this one's last statement.
    pub saved: Rc<DiagnosticsStore>,
    /// Where the client is; none for a Unix socket.
    pub peer: Option<(IpAddr, u16)>,
    /// When it connected, in ticks.
    pub connected: Cell<u64>,
    /// What the client has sent and been sent.
    pub counts: Counts,
    /// Why the session keeps its connection.
    pub pins: Pins,
    /// The client is in a transaction that no server knows of (yet, or any more).
    pub begun: Cell<bool>,
    /// What its reads are guaranteed to see.
    pub level: Cell<Consistency>,
    /// What the client has set; none before the login is done.
    pub state: Cell<Option<Rc<SessionState>>>,
    /// What to wake when one of these changes.
    pub waker: RefCell<Option<Waker>>,
}

impl Handle {
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

    /// Has the session look at what changed.
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}
