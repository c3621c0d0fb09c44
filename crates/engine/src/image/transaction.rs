//! The transaction that a session is in, or is about to begin.

use std::rc::Rc;

use crate::journal::Journal;
use crate::replay::Replay;

/// A session's transaction, and what SET TRANSACTION said of the next.
#[derive(Default)]
pub struct TransactionImage {
    /// BEGIN was answered, and is sent together with the next statement. None: the session is in no transaction, or in one
    /// that the leased connection is in.
    deferred: Option<Deferred>,
    /// What the open transaction has done so far.
    pub journal: Option<Box<Journal>>,
    /// The open transaction has lost its server: it is to be run again before anything else is.
    pub replay: Option<Box<Replay>>,
    /// SET TRANSACTION statements for the next transaction.
    next: Vec<Box<[u8]>>,
    next_waits: bool,
    savepoint_waits: bool,
    /// Whether they say READ ONLY or READ WRITE.
    next_read_only: Option<bool>,
}

/// A BEGIN that no server knows of.
#[derive(Debug)]
pub struct Deferred {
    /// The client's statement.
    pub text: Rc<[u8]>,
    /// READ ONLY: may run on a replica.
    pub read_only: bool,
}

impl TransactionImage {
    /// There is none, and none is prepared.
    pub fn reset(&mut self) {
        self.deferred = None;
        (self.journal, self.replay) = (None, None);
        self.use_up_next();
        (self.next_waits, self.savepoint_waits) = (false, false);
    }

    /// BEGIN was answered, and no server knows of it yet.
    #[inline]
    pub fn is_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    /// The BEGIN that no server knows of yet.
    #[inline]
    pub fn deferred(&self) -> Option<&Deferred> {
        self.deferred.as_ref()
    }

    /// BEGIN was answered.
    pub fn defer(&mut self, text: &[u8], read_only: bool) {
        self.deferred = Some(Deferred {
            text: text.into(),
            read_only,
        });
    }

    /// A server knows of it, or it is over.
    #[inline]
    pub fn undefer(&mut self) {
        self.deferred = None;
    }

    /// SET TRANSACTION statements for the next transaction.
    #[inline]
    pub fn next(&self) -> &[Box<[u8]>] {
        &self.next
    }

    /// Whether they say READ ONLY or READ WRITE.
    pub fn next_read_only(&self) -> Option<bool> {
        self.next_read_only
    }

    /// Keeps a SET TRANSACTION for the next transaction.
    pub fn add_next(&mut self, text: &[u8], read_only: Option<bool>) {
        self.next.push(text.into());
        self.next_read_only = read_only.or(self.next_read_only);
    }

    /// What SET TRANSACTION said for the next transaction is used up, or of no more use.
    pub fn use_up_next(&mut self) {
        self.next.clear();
        self.next_read_only = None;
    }

    /// A SET TRANSACTION has run on the leased connection and is not used up.
    #[inline]
    pub fn next_waits(&self) -> bool {
        self.next_waits
    }

    /// Whether one is there.
    #[inline]
    pub fn set_next_waits(&mut self, waits: bool) {
        self.next_waits = waits;
    }

    /// With autocommit off a savepoint opens no transaction, and is there when one is: only the leased connection has it.
    #[inline]
    pub fn savepoint_waits(&self) -> bool {
        self.savepoint_waits
    }

    /// Whether there is one.
    #[inline]
    pub fn set_savepoint_waits(&mut self, waits: bool) {
        self.savepoint_waits = waits;
    }
}
