//! SHOW HELP: what there is.

use crate::operators::answer::Answer;
use crate::operators::cell::Trouble;
use crate::operators::listing::{Listing, Show, text};

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

/// `listings`: all there are.
pub(crate) async fn rows(
    listings: &'static [Listing],
    answer: &mut Answer<'_>,
) -> Result<(), Trouble> {
    let listings = listings.iter().filter(|listing| !listing.help.is_empty());
    let listings = listings.map(|listing| [listing.statement, listing.help]);
    for [statement, help] in listings.chain(ACTS) {
        answer.row(&[statement.into(), help.into()]).await?;
    }
    Ok(())
}
