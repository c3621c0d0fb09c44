//! SHOW RULES: the rules for query routing, and how often each matched.

use crate::operators::answer::Answer;
use crate::operators::cell::Trouble;
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::Sources;
use crate::operators::tables::metrics::Collected;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Rules,
    name: "RULES",
    also: &["RULE"],
    statement: "SHOW RULES",
    help: "the rules for query routing, in order, and how many statements each matched",
    columns: &[
        int("number", "its place in the order, from 1"),
        text("name", "as configured"),
        text(
            "conditions",
            "what it looks at; empty: it matches every statement",
        ),
        text("effects", "what it does"),
        int("hits", "statements that it matched since the start"),
    ],
    like: 1,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let metrics = Collected::of(&sources.metrics);
    for (number, rule) in (1u64..).zip(&sources.settings().rules) {
        let hits = metrics.sum("millrace_rule_matches", "rule", &rule.name);
        let row = [
            number.into(),
            rule.name.clone().into(),
            rule.when.clone().into(),
            rule.then.clone().into(),
            (hits as u64).into(),
        ];
        answer.row(&row).await?;
    }
    Ok(())
}
