//! The statement under way: where it goes, what it may end, what holds while it runs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use millrace_backend::touched::Touching;
use millrace_engine::outcome::Outcome;
use millrace_engine::state::SessionState;
use millrace_routing::rules::Directions;
use millrace_routing::{Consistency, Reason};
use millrace_sql::Access;
use millrace_topology::ServerId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use crate::error::ClientError;
use crate::worker::written::UntrackedWrite;

/// The statement under way; between two, what is left of the last.
pub(crate) struct Running {
    /// What holds while a statement runs that a rule is about.
    pub(crate) rule_actions: Option<Box<RuleActions>>,
    /// Where the statement goes.
    pub(crate) route: Route,
    /// Holds while a write is under way that may not tell its position.
    pub(crate) untracked: Option<UntrackedWrite>,
    /// The statement defines stored code.
    pub(crate) touching: Option<Touching>,
    pub(crate) ends: Ends,
    /// When it was begun.
    pub(crate) begun: Instant,
    /// Since when it has waited for nothing but its server.
    pub(crate) runs_since: Cell<Instant>,
    /// What Millrace itself answers goes out in the binary protocol.
    pub(crate) answers_binary: bool,
    /// What its answer said besides rows.
    pub(crate) outcome: Box<Outcome>,
}

impl Running {
    /// Before a session's first.
    pub(crate) fn new() -> Running {
        Running {
            rule_actions: None,
            route: Route::default(),
            untracked: None,
            touching: None,
            ends: Ends::default(),
            begun: Instant::now(),
            runs_since: Cell::new(Instant::now()),
            answers_binary: false,
            outcome: Box::default(),
        }
    }
}

/// What the statement under way may end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ends {
    /// It may write, and commit that by itself.
    pub(crate) writes: bool,
    /// It is of a kind that never ends a transaction.
    pub(crate) stays: bool,
}

/// Where the last statement went.
#[derive(Debug, Clone, Default)]
pub(crate) struct Route {
    pub(crate) reason: Option<Reason>,
    pub(crate) server: Option<ServerId>,
    pub(crate) level: Consistency,
    pub(crate) waited: bool,
    /// Servers that were tried before.
    pub(crate) refused: u8,
    /// Connections that broke while it ran.
    pub(crate) lost: u8,
    /// A connection was closed before the statement was sent, or read by the server: there may be a
    /// better one to the same server.
    pub(crate) unsent: bool,
    /// How often its server has refused to prepare it, as it has too many.
    pub(super) crowded: u8,
    /// A server or its connection ended while a write ran: the answer, where that cannot be undone.
    pub(crate) ended: Option<ClientError>,
    /// A server has just refused the session's state.
    pub(super) state_refused: bool,
    /// The state whose database a server has just refused.
    pub(super) database_refused: Option<Rc<SessionState>>,
    /// It has just refused to prepare what the statement executes.
    pub(super) prepare_refused: bool,
    /// What it refuses was found out.
    pub(super) forgone: bool,
    pub(crate) directions: Option<Rc<Directions>>,
    /// The primary had no place: others were looked for, once.
    pub(crate) passed: bool,
    /// What the statement needs of them, while they are.
    pub(crate) instead: Option<Access>,
    /// Where the last server lets nobody in, it is waited for.
    pub(super) patient: bool,
    /// A wait had no answer in time: none of the answers on that connection is waited for.
    pub(super) overdue: bool,
    /// The next wait for a place is short, as others can do.
    pub(super) brief: bool,
}

impl Route {
    /// A statement begins; unless said otherwise it runs on the connection that the session keeps.
    pub(crate) fn begin(&mut self, level: Consistency, directions: Option<&Rc<Directions>>) {
        (self.reason, self.waited) = (Some(Reason::Pinned), false);
        (self.refused, self.lost, self.crowded) = (0, 0, 0);
        (self.passed, self.patient, self.brief) = (false, false, false);
        self.unsent = false;
        (self.state_refused, self.forgone, self.prepare_refused) = (false, false, false);
        if self.ended.is_some() {
            self.ended = None;
        }
        if self.database_refused.is_some() {
            self.database_refused = None;
        }
        self.level = level;
        if self.directions.is_some() || directions.is_some() {
            self.directions = directions.cloned();
        }
    }
}

/// What holds as long as a statement runs.
#[derive(Debug, Default)]
pub(crate) struct RuleActions {
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) deadline: Option<AbortHandle>,
}

impl Drop for RuleActions {
    fn drop(&mut self) {
        if let Some(deadline) = &self.deadline {
            deadline.abort();
        }
    }
}
