//! SHOW PINS: the sessions that keep a server connection, and why.

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::{SESSIONS_AT_ONCE, Sources};

pub(crate) const LISTING: Listing = Listing {
    show: Show::Pins,
    name: "PINS",
    also: &[],
    statement: "SHOW PINS",
    help: "each reason for which a session keeps a server connection, and its age",
    columns: &[
        int("session", "the client's connection number"),
        text("account", "the account's name"),
        text("reason", "one of the reasons of `millrace_pins`"),
        int("age_ms", "how long it has been in force, in milliseconds"),
        text("server", "the server of the connection"),
        int(
            "server_connection",
            "that connection's number on the server",
        ),
        text("client", "the client's address; NULL for a Unix socket"),
    ],
    like: 2,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let world = sources.world();
    for clients in sources.registry.list().chunks(SESSIONS_AT_ONCE) {
        let lines = sources.describe(clients).await?;
        for (client, line) in clients.iter().zip(lines) {
            let Some(line) = line else { continue };
            for (reason, since) in &line.pins {
                let server = line.on.map(|(server, _)| Sources::address(&world, server));
                let row = [
                    client.id.into(),
                    Cell::bytes(&line.user),
                    reason.as_str().into(),
                    since.elapsed().as_millis().into(),
                    server.into(),
                    line.on.map(|(_, thread)| thread).into(),
                    line.peer.map(|peer| peer.to_string()).into(),
                ];
                answer.row(&row).await?;
            }
        }
        if answer.is_full() {
            break;
        }
    }
    Ok(())
}
