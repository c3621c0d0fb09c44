//! What tables are, as far as results depend on it: which of them the log tells of, what their primary keys are made of,
//! and what changes with them without a word of its own in the log. A pure value, made of rows of the information
//! schema by whoever reads them.

use std::collections::HashMap;

use crate::{Key, Subject};

/// A column of a primary key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// Its name in lower case: servers compare names of columns so.
    pub name: Box<[u8]>,
    /// Its place among the table's columns, from 0.
    pub position: u16,
    /// What it holds.
    pub kind: KeyKind,
    /// The server gives it a number where a statement gives none (AUTO_INCREMENT).
    pub is_auto: bool,
}

/// Kinds of columns whose values are compared byte by byte, so that a literal names the row that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A signed integer, of so many bytes (1, 2, 3, 4 or 8).
    Signed(u8),
    /// An unsigned integer, of so many bytes.
    Unsigned(u8),
    /// BINARY of so many bytes.
    Binary(u16),
}

/// A base table whose changes the log tells.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Table {
    /// How many columns it has.
    pub columns: u16,
    /// A hash of what its columns are: another one means another definition.
    pub shape: u64,
    /// Its primary key; none where it has none, or one of other kinds of columns.
    pub primary_key: Option<Box<[KeyColumn]>>,
    /// It has a column of type TIME, which servers complete with the current date where they need a date.
    pub has_time: bool,
    /// Tables whose rows may change with its own through foreign keys, theirs among them, where the log does not tell.
    pub cascades: Box<[Subject]>,
    /// It has no trigger: a statement that writes it writes nothing else, but for foreign keys.
    pub is_plain: bool,
}

/// All tables.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Definitions {
    tables: HashMap<Subject, Table>,
    /// Names are compared in lower case (lower_case_table_names is not 0).
    lower: bool,
}

/// The number by which scopes and touches name the primary key ([`Scope::Within`](crate::Scope::Within)).
pub const PRIMARY: u8 = 0;

impl Definitions {
    /// Of tables by database and name, as the information schema spells them.
    pub fn new(lower: bool, tables: impl IntoIterator<Item = (Subject, Table)>) -> Self {
        Self {
            tables: tables.into_iter().collect(),
            lower,
        }
    }

    /// The subject that a table's name stands for. None where it cannot be told: servers lower letters beyond ASCII
    /// by rules of their own, and a statement may spell them in another character set.
    pub fn subject(&self, database: &[u8], table: &[u8]) -> Option<Subject> {
        if !database.is_ascii() || !table.is_ascii() {
            return None;
        }
        Some(match self.lower {
            true => Subject::table(&database.to_ascii_lowercase(), &table.to_ascii_lowercase()),
            false => Subject::table(database, table),
        })
    }

    /// What is known of a table; none where it is no base table, or one whose changes the log does not tell.
    pub fn table(&self, subject: &Subject) -> Option<&Table> {
        self.tables.get(subject)
    }

    /// The tables that are not what they were in `before`, new and gone ones among them, and those that may have changed with
    /// one of these in between. None where that may be any: there is a new trigger, or names are compared otherwise.
    pub fn changed_with<'a>(&'a self, before: &'a Definitions) -> Option<Vec<&'a Subject>> {
        let mut changed = Vec::new();
        for (subject, table) in &self.tables {
            let known = before.table(subject);
            if known == Some(table) {
                continue;
            }
            if known.is_some_and(|known| known.is_plain && !table.is_plain) {
                return None;
            }
            changed.push(subject);
            changed.extend(&table.cascades);
        }
        let gone = before.tables.keys();
        changed.extend(gone.filter(|subject| !self.tables.contains_key(*subject)));
        (self.lower == before.lower).then_some(changed)
    }

    /// How many tables there are.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

impl KeyKind {
    /// Adds an integer to a key; none where the column cannot hold it.
    pub fn push_integer(self, key: Key, value: i128) -> Option<Key> {
        match self {
            Self::Signed(_) => i64::try_from(value).ok().map(|value| key.signed(value)),
            Self::Unsigned(_) => u64::try_from(value).ok().map(|value| key.unsigned(value)),
            Self::Binary(_) => None,
        }
    }

    /// Adds bytes to a key; none where the column is an integer, or they are more than it holds.
    pub fn push_bytes(self, key: Key, value: &[u8]) -> Option<Key> {
        match self {
            Self::Binary(len) if value.len() <= usize::from(len) => {
                Some(key.bytes(value, usize::from(len)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Subject {
        Subject::table(b"d", name.as_bytes())
    }

    /// Tables without triggers, by name, shape and whom they change.
    fn definitions(tables: &[(&str, u64, &[&str])]) -> Definitions {
        let table = |(name, shape, cascades): &(&str, u64, &[&str])| {
            let table = Table {
                shape: *shape,
                cascades: cascades.iter().map(|name| of(name)).collect(),
                is_plain: true,
                ..Table::default()
            };
            (of(name), table)
        };
        Definitions::new(false, tables.iter().map(table))
    }

    #[test]
    fn what_has_changed_and_what_may_have_changed_with_it() {
        let before = definitions(&[
            ("a", 1, &[]),
            ("b", 1, &[]),
            ("c", 1, &[]),
            ("gone", 1, &[]),
        ]);
        let after = definitions(&[
            ("a", 1, &["c"]),
            ("b", 2, &[]),
            ("c", 1, &[]),
            ("new", 1, &[]),
        ]);
        let mut changed = after.changed_with(&before).expect("they are known");
        changed.sort_unstable();
        assert_eq!(
            changed,
            [&of("a"), &of("b"), &of("c"), &of("gone"), &of("new")]
        );
        assert_eq!(before.changed_with(&before), Some(Vec::new()));
        // A trigger may have written anything.
        let mut triggered = before.clone();
        let table = triggered.tables.get_mut(&of("a")).expect("it is there");
        table.is_plain = false;
        assert_eq!(triggered.changed_with(&before), None);
        assert!(before.changed_with(&triggered).is_some());
    }
}
