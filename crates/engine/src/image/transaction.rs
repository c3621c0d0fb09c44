//! The transaction that a session is in, or is about to begin.

use std::rc::Rc;

use crate::journal::Journal;
use crate::replay::Replay;

/// A session's transaction, and what SET TRANSACTION said of the next.
#[derive(Default)]
pub struct TransactionImage {
    /// As far as no server knows of it.
    pub state: Transaction,
    /// What the open transaction has done so far.
    pub journal: Option<Box<Journal>>,
    /// The open transaction has lost its server: it is to be run again before anything else is.
    pub replay: Option<Box<Replay>>,
    /// SET TRANSACTION statements for the next transaction.
    pub next: Vec<Box<[u8]>>,
    /// Such a statement has run on the leased connection and is not used up.
    pub next_waits: bool,
    /// Whether they say READ ONLY or READ WRITE.
    pub next_read_only: Option<bool>,
}

/// The transaction a session is in, as far as no server knows of it.
#[derive(Debug, Default)]
pub enum Transaction {
    /// None, or one that the leased connection is in.
    #[default]
    None,
    /// BEGIN was answered and is sent together with the next statement.
    Deferred {
        /// The client's statement.
        text: Rc<[u8]>,
        /// READ ONLY: may run on a replica.
        read_only: bool,
    },
}

impl TransactionImage {
    /// There is none, and none is prepared.
    pub fn reset(&mut self) {
        self.state = Transaction::None;
        (self.journal, self.replay) = (None, None);
        self.forget_next();
    }

    /// What SET TRANSACTION said for the next transaction is used up, or of no more use.
    pub(super) fn forget_next(&mut self) {
        self.next.clear();
        (self.next_waits, self.next_read_only) = (false, None);
    }

    /// BEGIN was answered, and no server knows of it yet.
    pub fn is_deferred(&self) -> bool {
        !matches!(self.state, Transaction::None)
    }
}
