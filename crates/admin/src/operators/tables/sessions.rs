//! SHOW SESSIONS: the clients and what they do. Shown as they are found, a few hundred at a time,
//! so that neither Millrace's memory nor its workers feel how many there are.

use std::collections::HashSet;

use millrace_backend::monitor::World;
use millrace_metrics::PinReason;
use millrace_worker::{Client, SessionLine};

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::{SESSIONS_AT_ONCE, Sources};

pub(crate) const LISTING: Listing = Listing {
    show: Show::Sessions,
    name: "SESSIONS",
    also: &["PROCESSLIST", "SESSION"],
    statement: "SHOW SESSIONS",
    help: "each client: who and where it is, what it does and since when, on which server",
    columns: &[
        int(
            "id",
            "its connection number, as it knows it itself and as KILL takes it",
        ),
        text(
            "account",
            "the account's name; NULL before the login is done",
        ),
        text("client", "its address; NULL for a Unix socket"),
        text("database", "its default database; NULL where it has none"),
        text(
            "state",
            "`login`, `idle`, `running`, `waiting` (for a connection), `held` (for a server), \
             `relayed` (it has a server connection of its own) or `ending`",
        ),
        int("seconds", "for how long"),
        text("server", "whose connection it has now"),
        int(
            "server_connection",
            "that connection's number on the server",
        ),
        text(
            "transaction",
            "`none`, `begun` (no server has it, yet or any more) or `open`",
        ),
        text(
            "pins",
            "why it keeps its connection; empty where it does not",
        ),
        text("level", "what its reads are guaranteed to see"),
        int("commands", "commands that it has sent"),
        int("received_bytes", "bytes from the client since its login"),
        int("sent_bytes", "bytes to the client since its login"),
        int("connected_s", "seconds since it connected"),
        int("worker", "the worker that serves it"),
    ],
    like: 1,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let world = sources.world();
    let held: HashSet<u32> = match sources.held.count() {
        0 => HashSet::new(),
        _ => sources.held.list().iter().map(|one| one.session).collect(),
    };
    for clients in sources.registry.list().chunks(SESSIONS_AT_ONCE) {
        let lines = sources.describe(clients).await?;
        for (client, line) in clients.iter().zip(lines) {
            let row = match line {
                Some(line) => row(&world, client, &line, held.contains(&client.id)),
                // It may have left in between: then it is not here to be seen.
                None if sources.registry.client(client.id).is_none() => continue,
                None => logging_in(client),
            };
            answer.row(&row).await?;
        }
        if answer.is_full() {
            break;
        }
    }
    Ok(())
}

fn row(world: &World, client: &Client, line: &SessionLine, held: bool) -> Vec<Cell> {
    let state = if held { "held" } else { line.doing.as_str() };
    let database = (!line.database.is_empty()).then(|| Cell::bytes(&line.database));
    let reasons: Vec<&str> = line
        .pins
        .iter()
        .map(|(reason, _)| reason.as_str())
        .collect();
    let is_open = line
        .pins
        .iter()
        .any(|(reason, _)| matches!(reason, PinReason::Transaction | PinReason::Xa));
    let transaction = match (is_open, line.begun) {
        (true, _) => "open",
        (false, true) => "begun",
        (false, false) => "none",
    };
    vec![
        client.id.into(),
        Cell::bytes(&line.user),
        line.peer.map(|peer| peer.to_string()).into(),
        database.into(),
        state.into(),
        line.seconds.into(),
        line.on
            .map_or(Cell::Null, |(server, _)| Sources::address(world, server)),
        line.on.map(|(_, thread)| thread).into(),
        transaction.into(),
        reasons.join(",").into(),
        line.level.name().into(),
        line.commands.into(),
        line.received.into(),
        line.sent.into(),
        line.connected_seconds.into(),
        client.worker.into(),
    ]
}

fn logging_in(client: &Client) -> Vec<Cell> {
    let mut row = vec![Cell::Null; LISTING.columns.len()];
    row[0] = client.id.into();
    row[4] = "login".into();
    row[15] = client.worker.into();
    row
}
