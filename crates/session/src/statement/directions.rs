//! What rules and hints say about a statement. Where they are silent, nothing is looked up and
//! nothing allocated.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_routing::Access;
use millrace_routing::rules::{Directions, Selection, Sent, Who};
use millrace_sql::{Hint, Statement};

use crate::error::{Abort, ClientError};
use crate::session::Session;

/// What the rules said of statements whose shape is known, by one worker: a place for each of some.
#[derive(Default)]
pub(crate) struct Remembered {
    places: RefCell<Vec<Option<Place>>>,
    selections: RefCell<Vec<Rc<Selection>>>,
}

struct Place {
    class: Rc<Statement>,
    access: Access,
    selection: Rc<Selection>,
    /// The default database, of which tables named without one are.
    database: Box<[u8]>,
    directions: Rc<Directions>,
}

/// Statements remembered at once; a power of two.
const PLACES: usize = 512;

/// Different selections shared at once.
const SELECTIONS: usize = 256;

impl Remembered {
    fn at(class: &Rc<Statement>) -> usize {
        // Statements lie apart by their size.
        (Rc::as_ptr(class).addr() >> 6) % PLACES
    }

    fn find(
        &self,
        class: &Rc<Statement>,
        access: Access,
        selection: &Rc<Selection>,
        database: &[u8],
    ) -> Option<Rc<Directions>> {
        let places = self.places.borrow();
        let place = places.get(Self::at(class))?.as_ref()?;
        let same = Rc::ptr_eq(&place.class, class)
            && Rc::ptr_eq(&place.selection, selection)
            && place.access == access
            && *place.database == *database;
        same.then(|| place.directions.clone())
    }

    /// The one that is equal to this.
    fn share(&self, selection: Selection) -> Rc<Selection> {
        let mut selections = self.selections.borrow_mut();
        if let Some(found) = selections.iter().find(|known| ***known == selection) {
            return found.clone();
        }
        if selections.len() >= SELECTIONS {
            selections.retain(|known| Rc::strong_count(known) > 1);
        }
        let selection = Rc::new(selection);
        if selections.len() < SELECTIONS {
            selections.push(selection.clone());
        }
        selection
    }

    fn keep(&self, place: Place) {
        let mut places = self.places.borrow_mut();
        places.resize_with(PLACES, || None);
        let at = Self::at(&place.class);
        places[at] = Some(place);
    }
}

impl Session {
    /// The rules that can concern the session as it is now. Sessions for which they are the same share
    /// one selection, so that what was remembered for one holds for the others.
    pub(crate) fn select_rules(&mut self) {
        let rules = &self.settings.rules;
        if rules.all().is_empty() {
            return;
        }
        let who = Who {
            account: &self.client.identity.account.user,
            database: &self.image.vars.state.database,
            address: self.handle.peer.map(|(address, _)| address),
            listener: self.client.entry.listener,
        };
        let selection = rules.select(&who);
        if selection != *self.selection {
            self.selection = self.worker.remembered.share(selection);
        }
    }

    /// What rules and hints say about a statement; none where nobody says anything. Counted.
    pub(crate) fn directions(
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
    pub(crate) fn said(
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
                    remembered.keep(Place {
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
pub(crate) fn refusal(directions: Option<&Directions>) -> Result<(), Abort> {
    match directions.and_then(|directions| directions.refuse.as_deref()) {
        Some(text) => Err(ClientError::client(1148, b"42000", text).into()),
        None => Ok(()),
    }
}
