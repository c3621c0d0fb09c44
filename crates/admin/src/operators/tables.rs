//! What operators can look at: every listing with its columns, and which module makes its rows.
//! The documentation is checked against what stands here.

pub(crate) mod config;
pub(crate) mod failovers;
pub(crate) mod held;
pub(crate) mod help;
pub(crate) mod metrics;
pub(crate) mod pins;
pub(crate) mod pools;
pub(crate) mod rules;
pub(crate) mod servers;
pub(crate) mod sessions;
pub(crate) mod topology;

use crate::operators::answer::{Answer, Column, Kind, Trouble};
use crate::operators::sources::Sources;

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
const fn text(name: &'static str, help: &'static str) -> Column {
    column(name, Kind::Text, help)
}

/// A whole number.
const fn int(name: &'static str, help: &'static str) -> Column {
    column(name, Kind::Int, help)
}

/// A number with a fraction.
const fn real(name: &'static str, help: &'static str) -> Column {
    column(name, Kind::Real, help)
}

/// All listings, in the order of SHOW HELP.
pub(crate) const LISTINGS: &[Listing] = &[
    servers::LISTING,
    topology::LISTING,
    sessions::LISTING,
    pins::LISTING,
    pools::LISTING,
    held::LISTING,
    failovers::LISTING,
    rules::LISTING,
    metrics::LISTING,
    config::LISTING,
    config::VARIABLES,
    config::STATUS,
    help::LISTING,
];

impl Show {
    pub(crate) fn listing(self) -> &'static Listing {
        let found = LISTINGS.iter().find(|listing| listing.show == self);
        // Every value stands in the list; a test sees to it.
        found.unwrap_or(&LISTINGS[0])
    }

    /// Makes the rows.
    pub(crate) async fn rows(
        self,
        sources: &Sources,
        answer: &mut Answer<'_>,
    ) -> Result<(), Trouble> {
        match self {
            Show::Servers => servers::rows(sources, answer).await,
            Show::Topology => topology::rows(sources, answer).await,
            Show::Sessions => sessions::rows(sources, answer).await,
            Show::Pools => pools::rows(sources, answer).await,
            Show::Pins => pins::rows(sources, answer).await,
            Show::Held => held::rows(sources, answer).await,
            Show::Failovers => failovers::rows(sources, answer).await,
            Show::Rules => rules::rows(sources, answer).await,
            Show::Metrics => metrics::rows(sources, answer).await,
            Show::Config => config::rows(sources, answer).await,
            Show::Variables => config::variables(sources, answer).await,
            Show::Status => config::status(sources, answer).await,
            Show::Help => help::rows(answer).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn every_listing_is_in_the_list_once() {
        for listing in LISTINGS {
            assert_eq!(listing.show.listing().name, listing.name);
            assert!(listing.like < listing.columns.len(), "{}", listing.name);
            assert!(
                listing.statement.ends_with(listing.name),
                "{}",
                listing.name
            );
        }
        assert_eq!(LISTINGS.len(), Show::Help as usize + 1);
    }

    /// The columns of a listing as docs/admin.md shows them.
    fn markdown(listing: &Listing) -> String {
        let mut text = String::from("| column | type | meaning |\n|---|---|---|\n");
        for column in listing.columns {
            let kind = match column.kind {
                Kind::Text => "text",
                Kind::Int => "integer",
                Kind::Real => "number",
            };
            writeln!(text, "| `{}` | {kind} | {} |", column.name, column.help).unwrap();
        }
        text
    }

    #[test]
    fn the_documentation_lists_exactly_these() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin.md");
        let page = std::fs::read_to_string(path).unwrap();
        for listing in LISTINGS.iter().filter(|listing| !listing.help.is_empty()) {
            let heading = format!("### {}\n", listing.statement);
            let expected = markdown(listing);
            let (_, behind) = page
                .split_once(&heading)
                .unwrap_or_else(|| panic!("docs/admin.md lacks {heading}"));
            let section = behind.split("\n### ").next().unwrap_or_default();
            assert!(
                section.contains(&expected),
                "{heading} in docs/admin.md lacks:\n{expected}"
            );
        }
    }
}
