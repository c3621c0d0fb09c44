//! The questions under way whether accounts may log in, and what a server says. Asks nothing itself.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use millrace_backend::connect::Address;
use millrace_backend::user_rows::{Name, Requires, UserRows};
use millrace_protocol::auth::Plugin;
use tokio::sync::{Notify, oneshot};

use crate::error::ClientError;

/// What a server says of a login that it lets in.
#[derive(Debug)]
pub(super) struct LetIn {
    /// Where it listens.
    pub(super) server: Address,
    /// The row by which it let Millrace in, `user@host`. Empty where that cannot be asked.
    pub(super) current: Box<[u8]>,
    /// The rows that it may have been; none where they cannot be read.
    pub(super) rows: Option<UserRows>,
    /// Of a proxy user, what the account asks for by which the server judges it: MariaDB by its own, MySQL by the one
    /// whose privileges it has. None within where that is not known.
    pub(super) required: Option<Option<Requires>>,
    /// It lets Millrace in with a wrong password as well. Tried only where the rows cannot be read.
    pub(super) unproven: bool,
}

impl LetIn {
    /// What the account keeps of its password for a plugin.
    pub(super) fn kept(&self, plugin: &Plugin) -> Option<&[u8]> {
        let row = self.rows.as_ref()?.named(&self.current)?;
        let kept = row.kept.iter().find(|kept| kept.plugin() == *plugin)?;
        Some(kept.bytes())
    }
}

/// One worker's questions under way.
#[derive(Default)]
pub struct Verifiers {
    pub(super) lines: RefCell<HashMap<Key, Rc<Line>>>,
}

impl Verifiers {
    /// Closes the connections that ask for an account: it is allowed too few.
    pub(super) fn close_unused(&self, user: &[u8]) {
        for (key, line) in self.lines.borrow().iter() {
            if *key.user == *user {
                line.rests.set(true);
                line.called.notify_one();
            }
        }
    }
}

/// Logins that one question answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) account: u64,
    pub(super) user: Box<[u8]>,
    pub(super) database: Box<[u8]>,
    pub(super) collation: u8,
    /// The client's flag, which is in the session's `sql_mode`.
    pub(super) ignore_space: bool,
    pub(super) tls: bool,
}

impl Key {
    /// The account's name.
    pub(super) fn name(&self) -> Name<'_> {
        Name {
            user: &self.user,
            collation: self.collation,
        }
    }
}

/// Who waits for the answer to one question.
#[derive(Default)]
pub(super) struct Line {
    /// The connection is to be closed at once.
    pub(super) rests: Cell<bool>,
    pub(super) waiting: RefCell<Vec<Waiting>>,
    pub(super) called: Notify,
}

/// A login that waits for an answer.
pub(super) struct Waiting {
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<Result<Rc<LetIn>, ClientError>>,
}
