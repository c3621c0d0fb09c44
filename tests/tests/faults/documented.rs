//! The errors that the suite's clients may see while servers fail and move: those of
//! docs/failover.md that autocommit statements and transactions on transactional tables can meet
//! within `failover.hold_time`. Whatever else a client sees makes the suite fail.

use millrace_tests::load::Seen;

/// Code, SQLSTATE, and what it means for the client.
pub(crate) const DOCUMENTED: [(u16, &str, &str); 5] = [
    (
        1213,
        "40001",
        "the transaction is gone and nothing of it was done: run it again",
    ),
    (
        1180,
        "08007",
        "nobody knows whether it was done: look before running it again",
    ),
    (
        1105,
        "HY000",
        "no server could run it within failover.hold_time, or too many wait: nothing was done",
    ),
    (
        1158,
        "08S01",
        "no server that may run it could be reached: nothing was done",
    ),
    (
        1159,
        "08S01",
        "no server that may run it answered in time: nothing was done",
    ),
];

pub(crate) fn is_documented(seen: &Seen) -> bool {
    let Some(error) = &seen.error else {
        return false;
    };
    DOCUMENTED
        .iter()
        .any(|(code, state, _)| *code == error.code && *state == error.state)
}

/// The outcome of what was under way is not known.
pub(crate) fn is_unknown_outcome(seen: &Seen) -> bool {
    seen.error.as_ref().is_some_and(|error| error.code == 1180)
}

#[test]
fn the_documentation_lists_them() {
    let page = include_str!("../../../docs/failover.md");
    for (code, state, meaning) in DOCUMENTED {
        let listed = page.lines().any(|line| {
            let mut cells = line.split(" | ");
            let errors = cells.next().filter(|errors| errors.starts_with("| "));
            let named = errors.is_some_and(|errors| errors.contains(&code.to_string()));
            named && cells.next() == Some(state)
        });
        assert!(
            listed,
            "docs/failover.md does not list {code}/{state}: {meaning}"
        );
    }
}
