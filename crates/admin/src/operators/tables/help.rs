//! SHOW HELP: what there is.

use super::{LISTINGS, Listing, Show, text};
use crate::operators::answer::{Answer, Trouble};

pub(crate) const LISTING: Listing = Listing {
    show: Show::Help,
    name: "HELP",
    also: &[],
    statement: "SHOW HELP",
    help: "the statements",
    columns: &[
        text(
            "statement",
            "as it is written; LIKE 'pattern', WHERE and LIMIT may follow a SHOW",
        ),
        text("meaning", "what it shows or does"),
    ],
    like: 0,
};

/// What operators can do.
pub(crate) const ACTS: [[&str; 2]; 4] = [
    [
        "DRAIN SERVER 'address' [WAIT seconds]",
        "sends the server no new statements; with WAIT, answers when nothing runs there any more",
    ],
    ["RESUME SERVER 'address'", "puts it back in use"],
    [
        "KILL [CONNECTION] id",
        "ends a client's session, and its statement on the server",
    ],
    ["KILL QUERY id", "ends a session's statement"],
];

pub(crate) async fn rows(answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let listings = LISTINGS.iter().filter(|listing| !listing.help.is_empty());
    let listings = listings.map(|listing| [listing.statement, listing.help]);
    for [statement, help] in listings.chain(ACTS) {
        answer.row(&[statement.into(), help.into()]).await?;
    }
    Ok(())
}
