//! SHOW SERVERS: what is known of each server, and what is done with it.

use millrace_topology::{Health, ServerView, Snapshot};

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, int, real, text};
use crate::operators::sources::{ServerSum, Sources};
use crate::operators::tables::metrics::Collected;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Servers,
    name: "SERVERS",
    also: &["SERVER"],
    statement: "SHOW SERVERS",
    help: "each server: its role, whether it takes reads and why not, lag, position, connections",
    columns: &[
        int(
            "id",
            "its number, from 0, in the order in which servers became known",
        ),
        text("address", "as it is connected to"),
        text("role", "`primary`, `replica` or `unknown`"),
        text(
            "state",
            "`up`, `suspect`, `down`, or `unknown` while it was not asked",
        ),
        text("draining", "`yes` where an operator took it out of use"),
        text("fit", "`yes` where it takes reads"),
        text("why", "why it does not, or why no server takes writes"),
        int(
            "lag_s",
            "how far it is behind, in seconds; NULL where that is not known",
        ),
        text("position", "what it had executed when it was last asked"),
        text("zone", "where it stands, as configured"),
        int("weight", "its share of reads as configured"),
        int(
            "share",
            "its share now, in hundredths of a weight: less while it starts slowly",
        ),
        int(
            "in_use",
            "connections on loan: statements under way, pinned sessions and replication streams",
        ),
        int("idle", "connections in no use"),
        int("waiting", "sessions that wait for a connection"),
        int("opened", "connections opened since the start"),
        real(
            "response_ms",
            "how long a read takes, a moving average; NULL where none was measured",
        ),
        int("statements", "statements that it ran since the start"),
        text("version", "as it reports it"),
    ],
    like: 1,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let world = sources.world();
    let sums = sources.server_lines().await?;
    let metrics = Collected::of(&sources.metrics);
    for view in world.snapshot.servers.iter().filter(|view| !view.gone) {
        let sum = sums.get(view.id.index()).copied().unwrap_or_default();
        let statements = metrics.sum("millrace_statements", "server", &view.address);
        answer
            .row(&row(&world.snapshot, view, &sum, statements))
            .await?;
    }
    Ok(())
}

fn row(snapshot: &Snapshot, view: &ServerView, sum: &ServerSum, statements: f64) -> Vec<Cell> {
    let report = view.report.as_ref();
    vec![
        view.id.0.into(),
        view.address.to_string().into(),
        view.role.to_string().into(),
        state(view.health).into(),
        view.draining.into(),
        view.is_fit().into(),
        why(snapshot, view).into(),
        view.lag_seconds.into(),
        view.executed.to_string().into(),
        view.zone.to_string().into(),
        view.weight.into(),
        view.share.into(),
        sum.leased.into(),
        sum.idle.into(),
        sum.waiting.into(),
        sum.opened.into(),
        sum.response_ms().into(),
        (statements as u64).into(),
        report.map(|report| report.version.to_string()).into(),
    ]
}

pub(crate) fn state(health: Health) -> &'static str {
    match health {
        Health::Unknown => "unknown",
        Health::Up => "up",
        Health::Suspect { .. } => "suspect",
        Health::Down { .. } => "down",
    }
}

/// Why it takes no reads, and why nobody takes writes.
fn why(snapshot: &Snapshot, view: &ServerView) -> String {
    let unfit = view.unfit.map(|unfit| unfit.to_string());
    // Where it is about one server, or some, it stands with these; else with all.
    let without = snapshot.without.filter(|without| match without.server() {
        Some(id) => id == view.id,
        None => snapshot.conflict.is_empty() || snapshot.conflict.contains(&view.id),
    });
    let without =
        without.map(|without| format!("no server takes writes: {without}; {}", without.advice()));
    let overruled = (snapshot.overruled == Some(view.id))
        .then(|| "role = \"primary\", but read only, and another is the primary".to_owned());
    let hearsay = view.is_hearsay().then(|| {
        "never reached at this address, which another server names: see discovery.translate"
            .to_owned()
    });
    let all = unfit
        .into_iter()
        .chain(hearsay)
        .chain(overruled)
        .chain(without);
    let both: Vec<String> = all.collect();
    both.join("; ")
}
