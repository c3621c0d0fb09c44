//! What a torture test may contain besides the crowd's own turns, each by a name, so that one can
//! be left out. It does nothing itself.

use std::collections::BTreeSet;

/// One kind of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ingredient {
    /// Clients that end, are reset or fall silent in the middle of anything.
    Vanish,
    /// KILL and KILL QUERY by an administrator, idle, in a statement and in a transaction.
    Kill,
    /// Tables, views and functions that change.
    Ddl,
    /// Rights that are given and taken away.
    Grants,
    /// Default roles that change.
    Roles,
    /// Global variables that change.
    Globals,
    /// Procedures with cursors and result sets of their own.
    Cursors,
    /// SET NAMES back and forth.
    Charsets,
}

const NAMES: [(&str, Ingredient); 8] = [
    ("vanish", Ingredient::Vanish),
    ("kill", Ingredient::Kill),
    ("ddl", Ingredient::Ddl),
    ("grants", Ingredient::Grants),
    ("roles", Ingredient::Roles),
    ("globals", Ingredient::Globals),
    ("cursors", Ingredient::Cursors),
    ("charsets", Ingredient::Charsets),
];

/// All of them.
pub fn all() -> BTreeSet<Ingredient> {
    NAMES.iter().map(|(_, ingredient)| *ingredient).collect()
}

/// Ingredients by their names, separated by commas.
///
/// # Errors
/// A name that is none, with those that there are.
pub fn named(text: &str) -> Result<BTreeSet<Ingredient>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let found = NAMES.iter().find(|(known, _)| *known == name);
            found.map(|(_, ingredient)| *ingredient).ok_or_else(|| {
                let known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
                format!("no ingredient '{name}'; there are: {}", known.join(", "))
            })
        })
        .collect()
}
