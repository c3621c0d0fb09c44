//! What rules and hints say of a classified statement.

use std::collections::HashMap;

use millrace_sql::{Hint, LexMode, Span, Statement, TableRef, digest, tags};

use super::{Caching, Directions, Facts, Rules, Selection, TableName};
use crate::{Access, Consistency, ServerSet, Wanted};

/// A statement as a session sends it.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// Its text.
    pub text: &'a [u8],
    /// What it is.
    pub class: &'a Statement,
    /// What it needs, stored routines and views looked at.
    pub access: Access,
    /// How the session's server reads it.
    pub mode: &'a LexMode,
    /// The default database; empty for none.
    pub database: &'a [u8],
}

impl Rules {
    /// What the rules of a session's selection say.
    pub fn say(&self, selection: &Selection, sent: &Sent<'_>) -> Directions {
        if selection.is_empty() {
            return Directions::default();
        }
        let (text, class) = (sent.text, sent.class);
        let mut normalised = Vec::new();
        let digest = match selection.needs_text {
            true => digest(text, sent.mode, &mut normalised),
            false => 0,
        };
        let tables: Vec<TableName> = class
            .tables
            .iter()
            .map(|table| table_name(table, text))
            .collect();
        let tags = tags(class, text, sent.mode);
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        let database = sent.database.to_ascii_lowercase();
        let facts = Facts {
            kind: class.kind,
            access: sent.access,
            tables: &tables,
            database: &database,
            digest,
            normalised: &normalised,
            tags: &tags,
        };
        self.directions(selection, &facts)
    }
}

impl Directions {
    /// With what the client asks for itself, which counts more than what a rule says about the same
    /// thing. `sets`: the named sets of servers, a bit for each.
    pub fn with_hint(&self, hint: &Hint<'_>, sets: &HashMap<String, ServerSet>) -> Directions {
        let mut directions = self.clone();
        let set = hint.servers.and_then(|name| sets.get(name).copied());
        let wanted = match (set, hint.primary) {
            (Some(set), _) => Some(Wanted::Servers(set)),
            (None, Some(true)) => Some(Wanted::Primary),
            (None, Some(false)) => Some(Wanted::Replica),
            (None, None) => None,
        };
        // Who names a server wants that one's answer, whatever a rule says about memory.
        if hint.no_cache || wanted.is_some() {
            directions.cache = Some(Caching::Never);
        }
        directions.wanted = wanted.or(directions.wanted);
        let level = hint.consistency.and_then(Consistency::from_name);
        directions.consistency = level.or(directions.consistency);
        directions
    }
}

/// What of a hint does nothing: an item that is not known, a set or level that there is not.
pub fn idle_item<'t>(hint: &Hint<'t>, sets: &HashMap<String, ServerSet>) -> Option<&'t str> {
    let set = hint.servers.filter(|name| !sets.contains_key(*name));
    let level = hint
        .consistency
        .filter(|name| Consistency::from_name(name).is_none());
    hint.unknown.or(set).or(level)
}

fn table_name(table: &TableRef, text: &[u8]) -> TableName {
    let lower = |span: Span| {
        let name = String::from_utf8_lossy(span.of(text)).to_lowercase();
        name.trim_matches(['`', '"']).as_bytes().into()
    };
    TableName {
        schema: table.schema.map(lower),
        name: lower(table.name),
    }
}
