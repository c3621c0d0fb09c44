//! The errors that a client of Millrace may see while servers fail and move, all of them, as
//! docs/failover.md lists them. Whatever else a client sees makes the suite fail.

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
    (1040, "08004", "a limit was reached: nothing was done"),
    (
        2013,
        "HY000",
        "the server was lost when part of the result was with the client already",
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
