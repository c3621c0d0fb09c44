//! Memory that sessions of a worker hand on to each other: what one has just used, the processor has at hand.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use millrace_backend::buffers::BufferPool;
use millrace_engine::journal::{Journal, Kept, TransactionStart};
use millrace_engine::outcome::Outcome;
use millrace_sql::{LexMode, Shapes, Statement};

/// The size of the buffers that sessions borrow; bytes.
const BUFFER: usize = 16 * 1024;

/// Commands up to this length are copied out of them; bytes.
const SMALL: usize = 512;

/// How many buffers of either size are kept for the next: a MiB, and half a one of a worker that had as
/// many short commands under way.
const BUFFERS_KEPT: usize = 64;
const SMALL_KEPT: usize = 1024;

/// What is free at the moment.
pub struct FreeLists {
    #[expect(clippy::vec_box, reason = "they are handed out in their boxes")]
    statements: RefCell<Vec<Box<Statement>>>,
    shapes: RefCell<Shapes>,
    /// At most one, for the next statement to conclude.
    outcome: Cell<Option<Box<Outcome>>>,
    /// What clients' commands are read into.
    buffers: BufferPool,
    /// What those that are short are copied to while they are under way.
    small_buffers: BufferPool,
    #[expect(clippy::vec_box, reason = "they are handed out in their boxes")]
    journals: RefCell<Vec<Box<Journal>>>,
    journals_kept: Kept,
}

impl Default for FreeLists {
    fn default() -> Self {
        FreeLists {
            statements: RefCell::default(),
            shapes: RefCell::default(),
            outcome: Cell::default(),
            buffers: BufferPool::new(BUFFER, BUFFERS_KEPT),
            small_buffers: BufferPool::new(SMALL, SMALL_KEPT),
            journals: RefCell::default(),
            journals_kept: Kept::default(),
        }
    }
}

impl FreeLists {
    /// An empty one.
    pub fn take_outcome(&self) -> Box<Outcome> {
        self.outcome.take().unwrap_or_default()
    }

    /// For others to use.
    pub fn put_outcome(&self, mut outcome: Box<Outcome>) {
        outcome.clear();
        self.outcome.set(Some(outcome));
    }

    /// A classifier's output to fill; give it back with [`FreeLists::put_statement`].
    pub fn take_statement(&self) -> Box<Statement> {
        self.statements.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes back what [`FreeLists::take_statement`] gave.
    pub fn put_statement(&self, statement: Box<Statement>) {
        let mut statements = self.statements.borrow_mut();
        if statements.len() < 64 {
            statements.push(statement);
        }
    }

    /// Classifies a client's statement; give the answer back with [`FreeLists::put_class`].
    pub fn classify(&self, text: &[u8], mode: &LexMode) -> Rc<Statement> {
        self.shapes.borrow_mut().classify(text, mode)
    }

    /// Takes back what [`FreeLists::classify`] gave.
    pub fn put_class(&self, class: Rc<Statement>) {
        self.shapes.borrow_mut().recycle(class);
    }

    /// The journal of a transaction that begins now; give it back with [`FreeLists::put_journal`].
    pub fn take_journal(&self, begun: TransactionStart) -> Box<Journal> {
        let now = Instant::now();
        match self.journals.borrow_mut().pop() {
            Some(mut journal) => {
                journal.renew(begun, now);
                journal
            }
            None => Box::new(Journal::new(begun, now, self.journals_kept.clone())),
        }
    }

    /// Takes back what [`FreeLists::take_journal`] gave.
    pub fn put_journal(&self, mut journal: Box<Journal>) {
        let mut journals = self.journals.borrow_mut();
        if journals.len() < 16 {
            journal.rest();
            journals.push(journal);
        }
    }

    /// An empty buffer; give it back with [`FreeLists::put_buffer`].
    pub fn take_buffer(&self) -> Vec<u8> {
        self.buffers.take()
    }

    /// A copy of a short command; give it back with [`FreeLists::put_buffer`]. None of a longer one.
    pub fn copy_of(&self, command: &[u8]) -> Option<Vec<u8>> {
        if command.len() > SMALL {
            return None;
        }
        let mut small = self.small_buffers.take();
        small.extend_from_slice(command);
        Some(small)
    }

    /// Takes back a buffer of either kind, or frees what is neither.
    pub fn put_buffer(&self, buffer: Vec<u8>) {
        if buffer.capacity() < BUFFER {
            self.small_buffers.give(buffer);
        } else {
            self.buffers.give(buffer);
        }
    }
}
