//! What rules and hints say about a statement. Where they are silent, nothing is looked up and
//! nothing allocated.

use std::rc::Rc;

use millrace_routing::Access;
use millrace_routing::rules::{Directions, Sent};
use millrace_sql::{Hint, Statement};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use millrace_worker::RememberedDirections;

impl Session {
    /// What rules and hints say about a statement; none where nobody says anything. Counted.
    pub(in crate::session) fn directions(
        &self,
        class: &Rc<Statement>,
        text: &[u8],
        access: Access,
        database: &[u8],
    ) -> Option<Rc<Directions>> {
        let said = self.said(class, text, access, database);
        if let Some(directions) = &said {
            for rule in &directions.matched {
                self.worker.metrics().rule_matched(usize::from(*rule));
            }
        }
        said
    }

    /// The same, without counting: the statement is only asked about.
    pub(in crate::session) fn said(
        &self,
        class: &Rc<Statement>,
        text: &[u8],
        access: Access,
        database: &[u8],
    ) -> Option<Rc<Directions>> {
        if self.selection.is_empty() && class.hint.is_none() {
            return None;
        }
        // One that is in no other's hands is not known by its shape.
        let known = Rc::strong_count(class) > 1;
        let remembered = &self.worker.remembered;
        let found = known
            .then(|| remembered.find(class, access, &self.selection, database))
            .flatten();
        let directions = match found {
            Some(directions) => directions,
            None => {
                let directions = Rc::new(self.settings.rules.say(
                    &self.selection,
                    &Sent {
                        text,
                        class,
                        access,
                        mode: &self.image.vars.lex,
                        database,
                    },
                ));
                if known {
                    remembered.keep(RememberedDirections {
                        class: class.clone(),
                        access,
                        selection: self.selection.clone(),
                        database: database.into(),
                        directions: directions.clone(),
                    });
                }
                directions
            }
        };
        match Hint::of(class, text) {
            Some(hint) => {
                let sets = &self.settings.sets;
                Some(Rc::new(directions.with_hint(&hint, sets)))
            }
            None if directions.matched.is_empty() => None,
            None => Some(directions),
        }
    }
}

/// A rule's refusal.
pub(in crate::session) fn refusal(directions: Option<&Directions>) -> Result<(), Abort> {
    match directions.and_then(|directions| directions.refuse.as_deref()) {
        Some(text) => Err(ClientError::client(1148, b"42000", text).into()),
        None => Ok(()),
    }
}
