//! What rules and hints say about a statement. Where they are silent, nothing is looked up and
//! nothing allocated.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_routing::rules::{Directions, Facts, Selection, TableName, Who};
use millrace_routing::{Access, Wanted};
use millrace_sql::{Hint, Statement, TableRef, digest, tags};

use crate::consistency;
use crate::failure::{Answer, Failure};
use crate::session::Session;

/// What the rules said of statements whose shape is known, by one worker: a place for each of some.
#[derive(Default)]
pub(crate) struct Remembered {
    places: RefCell<Vec<Option<Place>>>,
}

struct Place {
    class: Rc<Statement>,
    access: Access,
    selection: Rc<Selection>,
    directions: Rc<Directions>,
}

/// Statements remembered at once; a power of two.
const PLACES: usize = 512;

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
    ) -> Option<Rc<Directions>> {
        let places = self.places.borrow();
        let place = places.get(Self::at(class))?.as_ref()?;
        let same = Rc::ptr_eq(&place.class, class)
            && Rc::ptr_eq(&place.selection, selection)
            && place.access == access;
        same.then(|| place.directions.clone())
    }

    fn keep(&self, place: Place) {
        let mut places = self.places.borrow_mut();
        places.resize_with(PLACES, || None);
        let at = Self::at(&place.class);
        places[at] = Some(place);
    }
}

impl Session {
    /// The rules that can concern the session as it is now.
    pub(crate) fn select_rules(&mut self) {
        let rules = &self.worker.shared.rules;
        if rules.all().is_empty() {
            return;
        }
        let who = Who {
            account: &self.identity.account.user,
            database: &self.state.database,
            address: self.address,
            listener: self.entry.listener,
        };
        let selection = rules.select(&who);
        if selection != *self.selection {
            self.selection = Rc::new(selection);
        }
    }

    /// What rules and hints say about a statement; none where nobody says anything.
    pub(crate) fn directions(
        &self,
        class: &Rc<Statement>,
        text: &[u8],
        access: Access,
    ) -> Option<Rc<Directions>> {
        if self.selection.is_empty() && class.hint.is_none() {
            return None;
        }
        // One that is in no other's hands is not known by its shape.
        let known = Rc::strong_count(class) > 1;
        let remembered = &self.worker.remembered;
        let found = known
            .then(|| remembered.find(class, access, &self.selection))
            .flatten();
        let directions = match found {
            Some(directions) => directions,
            None => {
                let directions = Rc::new(self.ask_rules(class, text, access));
                if known {
                    remembered.keep(Place {
                        class: class.clone(),
                        access,
                        selection: self.selection.clone(),
                        directions: directions.clone(),
                    });
                }
                directions
            }
        };
        for rule in &directions.matched {
            self.worker.metrics().rule_matched(usize::from(*rule));
        }
        match Hint::of(class, text) {
            Some(hint) => Some(Rc::new(self.with_hint(&directions, &hint))),
            None if directions.matched.is_empty() => None,
            None => Some(directions),
        }
    }

    fn ask_rules(&self, class: &Statement, text: &[u8], access: Access) -> Directions {
        if self.selection.is_empty() {
            return Directions::default();
        }
        let mut normalised = Vec::new();
        let digest = match self.selection.needs_text {
            true => digest(text, &self.lex, &mut normalised),
            false => 0,
        };
        let tables: Vec<TableName> = class
            .tables
            .iter()
            .map(|table| table_name(table, text))
            .collect();
        let tags = tags(class, text, &self.lex);
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        let database = self.state.database.to_ascii_lowercase();
        let facts = Facts {
            kind: class.kind,
            access,
            tables: &tables,
            database: &database,
            digest,
            normalised: &normalised,
            tags: &tags,
        };
        self.worker.shared.rules.directions(&self.selection, &facts)
    }

    /// The client's own word counts more than a rule's about the same thing.
    fn with_hint(&self, directions: &Directions, hint: &Hint<'_>) -> Directions {
        let mut directions = directions.clone();
        let set = hint
            .servers
            .and_then(|name| self.worker.shared.sets.get(name).copied());
        let wanted = match (set, hint.primary) {
            (Some(bits), _) => Some(Wanted::Servers(bits)),
            (None, Some(true)) => Some(Wanted::Primary),
            (None, Some(false)) => Some(Wanted::Replica),
            (None, None) => None,
        };
        directions.wanted = wanted.or(directions.wanted);
        let level = hint
            .consistency
            .and_then(|name| consistency::level(name.as_bytes()));
        directions.consistency = level.or(directions.consistency);
        directions
    }
}

/// A rule's refusal.
pub(crate) fn refusal(directions: Option<&Directions>) -> Result<(), Failure> {
    match directions.and_then(|directions| directions.refuse.as_deref()) {
        Some(text) => Err(Answer::client(1148, b"42000", text).into()),
        None => Ok(()),
    }
}

fn table_name(table: &TableRef, text: &[u8]) -> TableName {
    let lower = |span: millrace_sql::Span| {
        let name = String::from_utf8_lossy(span.of(text)).to_lowercase();
        let quotes = ['`', '"'];
        name.trim_matches(quotes.as_slice()).as_bytes().into()
    };
    TableName {
        schema: table.schema.map(lower),
        name: lower(table.name),
    }
}
