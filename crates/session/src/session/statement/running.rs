//! The statement under way: where it goes, what it may end, what holds while it runs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use millrace_backend::touched::Touching;
use millrace_cache::{KeyKind, Touch};
use millrace_engine::outcome::Outcome;
use millrace_engine::state::SessionState;
use millrace_routing::rules::Directions;
use millrace_routing::{Consistency, Reason};
use millrace_sql::Access;
use millrace_topology::ServerId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use crate::error::ClientError;
use crate::session::statement::fill::Fill;
use millrace_worker::UntrackedWrite;

/// The statement under way; between two, what is left of the last.
pub(in crate::session) struct Running {
    /// What holds while a statement runs that a rule is about.
    pub(in crate::session) rule_actions: Option<Box<RuleActions>>,
    /// Where the statement goes.
    pub(in crate::session) route: Route,
    /// Holds while a write is under way that may not tell its position.
    pub(in crate::session) untracked: Option<UntrackedWrite>,
    /// The statement defines stored code.
    pub(in crate::session) touching: Option<Touching>,
    pub(in crate::session) ends: Ends,
    /// When it was begun.
    pub(in crate::session) begun: Instant,
    /// Since when it has waited for nothing but its server.
    pub(in crate::session) runs_since: Cell<Instant>,
    /// What Millrace itself answers goes out in the binary protocol.
    pub(in crate::session) answers_binary: bool,
    /// What its answer said besides rows.
    pub(in crate::session) outcome: Box<Outcome>,
    /// Its answer is for the cache as well.
    pub(in crate::session) fill: Option<Box<Fill>>,
    /// What it is about to write.
    pub(in crate::session) foreseen: Option<Box<Foreseen>>,
}

impl Running {
    /// Before a session's first.
    pub(in crate::session) fn new() -> Running {
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
            fill: None,
            foreseen: None,
        }
    }
}

impl Running {
    /// A command is over: what held for its statement is not the next one's.
    pub(in crate::session) fn end(&mut self) {
        (self.rule_actions, self.fill, self.foreseen) = (None, None, None);
    }

    /// Bytes that the client gets, for the cache where they are for it.
    #[inline]
    pub(in crate::session) fn add_to_fill(&mut self, bytes: &[u8]) {
        if let Some(fill) = &mut self.fill {
            fill.add(bytes);
        }
    }
}

/// What the statement under way may end.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::session) struct Ends {
    /// It may write, and commit that by itself.
    pub(in crate::session) writes: bool,
    /// It is of a kind that never ends a transaction.
    pub(in crate::session) stays: bool,
}

/// Where the last statement went.
#[derive(Debug, Clone, Default)]
pub(in crate::session) struct Route {
    pub(in crate::session) reason: Option<Reason>,
    pub(in crate::session) server: Option<ServerId>,
    pub(in crate::session) level: Consistency,
    pub(in crate::session) waited: bool,
    /// It was held to what touches its tables and keys, because some server was not known to have the whole position.
    pub(in crate::session) by_table: bool,
    /// Servers that were tried before.
    pub(in crate::session) refused: u8,
    /// Connections that broke while it ran.
    pub(in crate::session) lost: u8,
    /// A connection was closed before the statement was sent, or read by the server: there may be a
    /// better one to the same server.
    pub(in crate::session) unsent: bool,
    /// How often its server has refused to prepare it, as it has too many.
    pub(super) crowded: u8,
    /// A server or its connection ended while a write ran: the answer, where that cannot be undone.
    pub(in crate::session) ended: Option<ClientError>,
    /// A server has just refused the session's state.
    pub(super) state_refused: bool,
    /// The state whose database a server has just refused.
    pub(super) database_refused: Option<Rc<SessionState>>,
    /// It has just refused to prepare what the statement executes.
    pub(super) prepare_refused: bool,
    /// What went ahead of the statement was told that the transaction is rolled back.
    pub(super) rolled_back: bool,
    /// What it refuses was found out.
    pub(super) forgone: bool,
    pub(in crate::session) directions: Option<Rc<Directions>>,
    /// The primary had no place: others were looked for, once.
    pub(in crate::session) passed: bool,
    /// What the statement needs of them, while they are.
    pub(in crate::session) instead: Option<Access>,
    /// Where the last server lets nobody in, it is waited for.
    pub(super) patient: bool,
    /// A wait had no answer in time: none of the answers on that connection is waited for.
    pub(super) overdue: bool,
    /// The next wait for a place is short, as others can do.
    pub(super) brief: bool,
}

impl Route {
    /// A statement begins; unless said otherwise it runs on the connection that the session keeps.
    pub(in crate::session) fn begin(
        &mut self,
        level: Consistency,
        directions: Option<&Rc<Directions>>,
    ) {
        (self.reason, self.waited, self.by_table) = (Some(Reason::Pinned), false, false);
        (self.refused, self.lost, self.crowded) = (0, 0, 0);
        (self.passed, self.patient, self.brief) = (false, false, false);
        (self.unsent, self.rolled_back) = (false, false);
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

/// What the write under way is about to touch.
pub(in crate::session) struct Foreseen {
    pub(super) touch: Touch,
    /// Of the definitions by which that was told.
    pub(super) version: u64,
    /// Its only row's key is the number that the server gives it.
    pub(super) is_numbered: Option<KeyKind>,
}

/// What holds as long as a statement runs.
#[derive(Debug, Default)]
pub(in crate::session) struct RuleActions {
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
