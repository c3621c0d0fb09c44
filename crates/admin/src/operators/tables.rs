//! What operators can look at: every listing with its columns, and which module makes its rows.
//! The documentation is checked against what stands here.

pub(crate) mod cache;
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

use crate::operators::answer::Answer;
use crate::operators::cell::Trouble;
use crate::operators::listing::{Listing, Show};
use crate::operators::sources::Sources;

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
    cache::TABLES,
    cache::STATEMENTS,
    cache::LISTING,
    metrics::LISTING,
    config::LISTING,
    config::VARIABLES,
    config::STATUS,
    help::LISTING,
];

/// A listing by its name.
pub(crate) fn listing(show: Show) -> &'static Listing {
    let found = LISTINGS.iter().find(|listing| listing.show == show);
    // Every value stands in the list; a test sees to it.
    found.unwrap_or(&LISTINGS[0])
}

/// Makes the rows of a listing.
pub(crate) async fn rows(
    show: Show,
    sources: &Sources,
    answer: &mut Answer<'_>,
) -> Result<(), Trouble> {
    match show {
        Show::Servers => servers::rows(sources, answer).await,
        Show::Topology => topology::rows(sources, answer).await,
        Show::Sessions => sessions::rows(sources, answer).await,
        Show::Pools => pools::rows(sources, answer).await,
        Show::Pins => pins::rows(sources, answer).await,
        Show::Held => held::rows(sources, answer).await,
        Show::Failovers => failovers::rows(sources, answer).await,
        Show::Rules => rules::rows(sources, answer).await,
        Show::CacheTables => cache::tables(sources, answer).await,
        Show::CacheStatements => cache::statements(sources, answer).await,
        Show::Cache => cache::rows(sources, answer).await,
        Show::Metrics => metrics::rows(sources, answer).await,
        Show::Config => config::rows(sources, answer).await,
        Show::Variables => config::variables(sources, answer).await,
        Show::Status => config::status(sources, answer).await,
        Show::Help => help::rows(LISTINGS, answer).await,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::operators::cell::Kind;
    use crate::page::has_table;

    #[test]
    fn every_listing_is_in_the_list_once() {
        for listing in LISTINGS {
            assert_eq!(super::listing(listing.show).name, listing.name);
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
        for listing in LISTINGS.iter().filter(|listing| !listing.help.is_empty()) {
            let heading = format!("### {}\n", listing.statement);
            has_table("docs/admin.md", &heading, &markdown(listing));
        }
    }
}
