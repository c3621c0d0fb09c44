//! SHOW HELD STATEMENTS: what waits for a server that can run it.

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::Sources;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Held,
    name: "HELD STATEMENTS",
    also: &["HELD"],
    statement: "SHOW HELD STATEMENTS",
    help: "the statements that wait because there is no server to run them, in order",
    columns: &[
        int("place", "its place in the order, from 1"),
        int("session", "the client's connection number"),
        text("account", "the account's name"),
        text("kind", "what kind of statement it is, as in the metrics"),
        text(
            "waits_for",
            "`primary`, or `reader` for any server with the data",
        ),
        int("waited_ms", "how long it has waited, in milliseconds"),
        int("bytes", "the length of its command"),
    ],
    like: 2,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    // Their number is bounded by failover.max_held.
    for (place, held) in (1u64..).zip(sources.held.list()) {
        let row = [
            place.into(),
            held.session.into(),
            Cell::bytes(&held.account),
            held.kind.into(),
            held.lane.as_str().into(),
            held.waited.as_millis().into(),
            held.bytes.into(),
        ];
        answer.row(&row).await?;
    }
    Ok(())
}
