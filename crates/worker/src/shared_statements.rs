//! Prepared statements that clients have in common: one identity, text and class for all that are alike.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, hash_map};
use std::rc::Rc;

use millrace_base::ById;
use millrace_engine::image::prepared::StatementUid;
use millrace_engine::image::prepared::{ClientStatement, SharedStatement, StatementKey};

/// Statements that are remembered, at most.
const STATEMENTS_MAX: usize = 10_000;

/// The statements that clients of a worker have in common.
pub struct SharedStatements {
    next: Cell<u64>,
    known: RefCell<HashMap<StatementKey, SharedStatement>>,
    /// What those that were not executed were last executed as.
    executed: RefCell<ById<StatementUid, StatementUid>>,
}

impl Default for SharedStatements {
    fn default() -> Self {
        SharedStatements {
            next: Cell::new(1),
            known: RefCell::default(),
            executed: RefCell::default(),
        }
    }
}

impl SharedStatements {
    /// The identity that all statements like this one have.
    pub fn statement_uid(&self, statement: &ClientStatement) -> StatementUid {
        self.alike(statement, |alike, _| alike.uid)
    }

    /// The same, and this one has its text and class in common with those from now on: where many
    /// clients have prepared the same, the processor has these at hand.
    pub fn share_statement(&self, statement: &mut ClientStatement) -> StatementUid {
        let (uid, text, class) = self.alike(statement, |alike, text| {
            (alike.uid, text.clone(), alike.class.clone())
        });
        statement.text = text;
        // What a text says may depend on the servers' version, and that may have changed since.
        if *class == *statement.class {
            statement.class = class;
        }
        uid
    }

    /// Looks at what all statements of this one's key have in common, their text among it.
    fn alike<T>(
        &self,
        statement: &ClientStatement,
        look: impl FnOnce(&SharedStatement, &Rc<[u8]>) -> T,
    ) -> T {
        let mut shared = self.known.borrow_mut();
        if shared.len() >= STATEMENTS_MAX {
            // Nothing is lost but that some are prepared once more: no number is given out again.
            shared.clear();
        }
        let key = statement.key();
        let (text, alike) = match shared.entry(key) {
            hash_map::Entry::Occupied(known) => (known.key().text.clone(), known.into_mut()),
            hash_map::Entry::Vacant(place) => {
                let alike = SharedStatement {
                    uid: self.next_statement_uid(),
                    class: statement.class.clone(),
                };
                (statement.text.clone(), place.insert(alike))
            }
        };
        look(alike, &text)
    }

    /// A statement that was prepared as `unused` is executed as `uid`.
    pub fn executed_as(&self, unused: StatementUid, uid: StatementUid) {
        let mut executed = self.executed.borrow_mut();
        if executed.len() >= STATEMENTS_MAX {
            executed.clear();
        }
        executed.insert(unused, uid);
    }

    /// What a statement that was prepared as `unused` was last executed as, by any session.
    pub fn last_executed_as(&self, unused: StatementUid) -> Option<StatementUid> {
        self.executed.borrow().get(&unused).copied()
    }

    /// An identity that no statement of the worker has.
    pub fn next_statement_uid(&self) -> StatementUid {
        let uid = self.next.get();
        self.next.set(uid + 1);
        uid
    }
}
