//! What a client has in its session, as plain data: no socket, no connection, no clock. Each group owns its
//! fields, what they are at the login, and what COM_RESET_CONNECTION and COM_CHANGE_USER leave of them.

pub mod fold;
pub mod found_rows;
pub mod last;
pub mod measuring;
pub mod pinned;
pub mod prepared;
pub mod reads;
pub mod sequences;
pub mod transaction;
pub mod user_variables;
pub mod vars;

use std::rc::Rc;
use std::sync::Arc;

use millrace_protocol::Status;
use millrace_routing::Consistency;
use millrace_sql::{Family, LexMode};

use crate::books::{DiagnosticsStore, SessionUid};
use crate::image::last::LastStatement;
use crate::image::pinned::Pinned;
use crate::image::prepared::Statements;
use crate::image::reads::Reads;
use crate::image::transaction::TransactionImage;
use crate::image::vars::Vars;
use crate::state::SessionState;

pub use crate::image::fold::Ran;

/// A session, without what it runs on.
pub struct SessionImage {
    /// The servers'.
    pub family: Family,
    /// What it has set.
    pub vars: Vars,
    /// The transaction that it is in.
    pub tx: TransactionImage,
    /// What lives on the connection that it keeps.
    pub held: Pinned,
    /// What it may ask about its last statement.
    pub last: LastStatement,
    /// What its reads must see.
    pub reads: Reads,
    /// What it has prepared in the binary protocol.
    pub statements: Statements,
    /// Status flags of the last answer.
    pub status: Status,
}

impl SessionImage {
    /// A session that logs in. `uid`, `store`: see [`LastStatement`]. `version`: the servers', as a number. `tracked`: the
    /// variables that they track by default, empty where that is not known. `level`: the listener's.
    pub fn new(
        (uid, store): (SessionUid, Rc<DiagnosticsStore>),
        (family, version): (Family, u32),
        tracked: &Arc<str>,
        base: Rc<SessionState>,
        level: Consistency,
    ) -> SessionImage {
        SessionImage {
            family,
            vars: Vars::new(family, version, tracked, base),
            tx: TransactionImage::default(),
            held: Pinned::default(),
            last: LastStatement::new(family, uid, store),
            reads: Reads::new(family, level),
            statements: Statements::new(family == Family::MariaDb),
            status: Status::AUTOCOMMIT,
        }
    }

    /// Ends all that COM_RESET_CONNECTION and COM_CHANGE_USER end; what the session is to have instead is set
    /// by a new login's state.
    pub fn reset(&mut self, tracked: &Arc<str>) {
        self.statements.clear();
        self.vars.reset(self.family, tracked);
        self.tx.reset();
        self.held.reset();
        self.last.reset();
        self.status = Status::AUTOCOMMIT;
    }

    /// The status flags before the first statement.
    pub fn first_status(&self) -> Status {
        switched_on(self.family, &self.vars.state) | escapes(self.family, &self.vars.lex)
    }

    /// A variable is in force with a value that makes every statement open a transaction.
    pub fn autocommit_off(&self) -> bool {
        self.vars.switches.autocommit_off || !self.status.contains(Status::AUTOCOMMIT)
    }
}

/// The status flags of a session that begins with this state. MySQL's are the same whatever the global
/// `autocommit` is (observed on 9.7). Clients escape what they put into statements by what these say of `sql_mode`.
/// `by_server`: the server's, where the state has none.
pub fn first_status(
    family: Family,
    state: &SessionState,
    by_server: impl FnOnce() -> Box<str>,
) -> Status {
    let mut lex = LexMode::new(family, 0);
    match state.effective("sql_mode") {
        Some(mode) => lex.set_sql_mode(mode),
        None => lex.set_sql_mode(by_server().as_bytes()),
    }
    switched_on(family, state) | escapes(family, &lex)
}

fn switched_on(family: Family, state: &SessionState) -> Status {
    match family == Family::MariaDb && state.is_off("autocommit") {
        true => Status::empty(),
        false => Status::AUTOCOMMIT,
    }
}

fn escapes(family: Family, lex: &LexMode) -> Status {
    let mut status = Status::empty();
    status.set(Status::NO_BACKSLASH_ESCAPES, lex.no_backslash_escapes);
    let tells_quotes = family == Family::MariaDb;
    status.set(Status::ANSI_QUOTES, tells_quotes && lex.ansi_quotes);
    status
}
