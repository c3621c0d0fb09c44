//! What the rules said of statements, by one worker.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_routing::Access;
use millrace_routing::rules::{Directions, Selection};
use millrace_sql::Statement;

/// What the rules said of statements whose shape is known, by one worker: a place for each of some.
#[derive(Default)]
pub struct Remembered {
    places: RefCell<Vec<Option<RememberedDirections>>>,
    selections: RefCell<Vec<Rc<Selection>>>,
}

/// A statement, and what was said of it.
pub struct RememberedDirections {
    /// The statement.
    pub class: Rc<Statement>,
    /// What it does to data.
    pub access: Access,
    /// The rules that can concern its session.
    pub selection: Rc<Selection>,
    /// The default database, of which tables named without one are.
    pub database: Box<[u8]>,
    /// What the rules said.
    pub directions: Rc<Directions>,
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

    /// What was said of this statement.
    pub fn find(
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
    pub fn share(&self, selection: Selection) -> Rc<Selection> {
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

    /// In the place of what was there.
    pub fn keep(&self, place: RememberedDirections) {
        let mut places = self.places.borrow_mut();
        places.resize_with(PLACES, || None);
        let at = Self::at(&place.class);
        places[at] = Some(place);
    }
}
