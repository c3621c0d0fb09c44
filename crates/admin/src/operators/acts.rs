//! What operators can do: drain and resume servers, end sessions and statements. Each act is
//! logged with who did it.

use std::time::{Duration, Instant};

use millrace_topology::{ServerId, Snapshot, Unfit};
use millrace_worker::{Killed, Message};
use tracing::info;

use crate::operators::answer::Answer;
use crate::operators::cell::{Kind, Refusal, Trouble};
use crate::operators::filter::Filter;
use crate::operators::sources::Sources;

/// The columns of what DRAIN SERVER and RESUME SERVER answer.
pub(crate) const MOVED: [(&str, Kind); 4] = [
    ("server", Kind::Text),
    ("draining", Kind::Text),
    ("in_use", Kind::Int),
    ("waited_ms", Kind::Int),
];

/// How often DRAIN … WAIT looks whether anything still runs there.
const LOOK: Duration = Duration::from_millis(50);

/// A server's number by its address, or by its number as a text.
fn find(sources: &Sources, name: &str) -> Result<ServerId, Refusal> {
    let world = sources.world();
    let mut servers = world.snapshot.servers.iter().filter(|view| !view.gone);
    let number: Option<u16> = name.parse().ok();
    let found = servers.find(|view| *view.address == *name || Some(view.id.0) == number);
    found.map(|view| view.id).ok_or_else(|| {
        let message = format!("Millrace: there is no server '{name}'; SHOW SERVERS lists them");
        Refusal::new(1735, b"HY000", message)
    })
}

async fn in_use(sources: &Sources, server: ServerId) -> Result<u64, Refusal> {
    let lines = sources.server_lines().await?;
    let world = sources.world();
    let names = names(&world.snapshot, server);
    let lines = names.iter().filter_map(|name| lines.get(name.index()));
    Ok(lines.map(|line| line.leased).sum())
}

/// A server by all its names: it is drained by all of them.
fn names(snapshot: &Snapshot, server: ServerId) -> Vec<ServerId> {
    let known_as = |id| match snapshot.server(id).and_then(|view| view.unfit) {
        Some(Unfit::SameServer(known_as)) => known_as,
        _ => id,
    };
    let meant = known_as(server);
    let all = snapshot.servers.iter().map(|view| view.id);
    all.filter(|id| known_as(*id) == meant).collect()
}

/// DRAIN SERVER: with a wait, answers when nothing runs there any more, or when the time is up.
pub(crate) async fn drain(
    sources: &Sources,
    answer: Answer<'_>,
    by: &str,
    name: &str,
    wait_s: u64,
) -> Result<(), Trouble> {
    let server = find(sources, name)?;
    info!(server = name, by, "an operator drains a server");
    if !sources.monitor.drain(server, by) {
        return Err(find_again(name).into());
    }
    moved(sources, answer, server, Duration::from_secs(wait_s)).await
}

/// RESUME SERVER.
pub(crate) async fn resume(
    sources: &Sources,
    answer: Answer<'_>,
    by: &str,
    name: &str,
) -> Result<(), Trouble> {
    let server = find(sources, name)?;
    info!(server = name, by, "an operator resumes a server");
    if !sources.monitor.resume(server, by) {
        return Err(find_again(name).into());
    }
    moved(sources, answer, server, Duration::ZERO).await
}

fn find_again(name: &str) -> Refusal {
    Refusal::cannot(format!("Millrace: '{name}' has just left the topology"))
}

async fn moved(
    sources: &Sources,
    mut answer: Answer<'_>,
    server: ServerId,
    wait: Duration,
) -> Result<(), Trouble> {
    let begun = Instant::now();
    let mut left = in_use(sources, server).await?;
    while left > 0 && begun.elapsed() < wait && !answer.client_left().await {
        tokio::time::sleep(LOOK).await;
        left = in_use(sources, server).await?;
    }
    let world = sources.world();
    let draining = world.snapshot.server(server).map(|view| view.draining);
    answer.begin(&MOVED, Filter::default());
    let row = [
        Sources::address(&world, server),
        draining.into(),
        left.into(),
        begun.elapsed().as_millis().into(),
    ];
    answer.row(&row).await?;
    answer.end().await
}

/// KILL.
pub(crate) async fn kill(sources: &Sources, by: &str, id: u64, query: bool) -> Result<(), Refusal> {
    let unknown = || Refusal::new(1094, b"HY000", format!("Unknown thread id: {id}"));
    let number = u32::try_from(id).map_err(|_| unknown())?;
    // A client that has just logged in may not be in its worker's list yet.
    for _ in 0..5 {
        let client = sources.registry.client(number).ok_or_else(unknown)?;
        let killed = sources
            .ask(client.worker, |reply| Message::Kill {
                uid: client.uid,
                query,
                reply,
            })
            .await?;
        match killed {
            Killed::Done => {
                info!(session = id, query, by, "an operator killed");
                return Ok(());
            }
            Killed::NotTold(why) => {
                let what = if query {
                    "its statement"
                } else {
                    "the session has ended, but its statement"
                };
                return Err(Refusal::cannot(format!(
                    "Millrace: {what} may still run on the server, which could not be told: {why}"
                )));
            }
            Killed::Gone => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    Err(unknown())
}

#[cfg(test)]
mod tests {
    use millrace_topology::{
        Family, Millis, Observation, ObservationKind, Options, ProbeReport, ServerSpec, Topology,
    };

    use super::*;

    #[test]
    fn what_runs_by_another_name_runs_on_the_server() {
        let specs = ["db1:3306", "10.0.0.1:3306", "db2:3306"].map(ServerSpec::new);
        let mut topology = Topology::new(Options::default(), specs.into());
        for (at, identity) in [(0, "one"), (1, "one"), (2, "two")] {
            let mut report = ProbeReport::new(Family::MySql);
            report.identity = identity.into();
            topology.fold(Observation {
                server: ServerId(at),
                at: Millis(10),
                kind: ObservationKind::ProbeOk(Box::new(report)),
            });
        }
        let snapshot = topology.snapshot();
        let of = |server| names(&snapshot, ServerId(server));
        assert_eq!(of(0), [ServerId(0), ServerId(1)]);
        assert_eq!(of(1), [ServerId(0), ServerId(1)]);
        assert_eq!(of(2), [ServerId(2)]);
    }
}
