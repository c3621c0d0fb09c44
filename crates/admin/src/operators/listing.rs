//! What there is to know of a listing: its name, columns and help. Makes no row.

use crate::operators::cell::{Column, Kind};

/// A listing's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    Servers,
    Topology,
    Sessions,
    Pools,
    Pins,
    Held,
    Failovers,
    Rules,
    CacheTables,
    CacheStatements,
    Cache,
    Metrics,
    Config,
    Variables,
    Status,
    Help,
}

/// What there is to know of a listing.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) show: Show,
    /// What stands behind SHOW.
    pub(crate) name: &'static str,
    /// Other words for it.
    pub(crate) also: &'static [&'static str],
    /// The whole statement, for SHOW HELP.
    pub(crate) statement: &'static str,
    /// What it shows; empty for what only clients ask for.
    pub(crate) help: &'static str,
    pub(crate) columns: &'static [Column],
    /// The column that LIKE is about.
    pub(crate) like: usize,
}

const fn column(name: &'static str, kind: Kind, help: &'static str) -> Column {
    Column { name, kind, help }
}

/// A text.
pub(crate) const fn text(name: &'static str, help: &'static str) -> Column {
    column(name, Kind::Text, help)
}

/// A whole number.
pub(crate) const fn int(name: &'static str, help: &'static str) -> Column {
    column(name, Kind::Int, help)
}

/// A number with a fraction.
pub(crate) const fn real(name: &'static str, help: &'static str) -> Column {
    column(name, Kind::Real, help)
}
