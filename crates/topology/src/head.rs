//! Judges the one writable server that is set to receive from another: whether what it follows may be the
//! primary. It may not where it cannot be reached and nobody else follows it (a leftover), or where it is
//! read only itself and follows the server in turn (an active and a passive one). Remembers nothing.

use crate::source::{follows, is_about};
use crate::state::State;
use crate::verdict::Memory;
use crate::{
    DiscoveryOptions, Health, ProbeReport, Receiver, Relation, ReplicationStatus, ServerId,
};

/// Whether a writable server that receives, or is set to, is the primary all the same. Never where the last
/// primary may still be one: a replica without read_only would take its place by itself.
pub(crate) fn is_head(
    states: &[State],
    id: ServerId,
    memory: &Memory,
    discovery: Option<&DiscoveryOptions>,
) -> bool {
    succeeds(states, id, memory) && follows_no_primary(states, id, memory, discovery)
}

/// There was no other primary before, or that one is read only now and follows this one.
fn succeeds(states: &[State], id: ServerId, memory: &Memory) -> bool {
    let Some(last) = memory.last.filter(|last| *last != id) else {
        return true;
    };
    let old = &states[last.index()];
    old.current().is_some_and(ProbeReport::refuses_writes) && follows(old, &states[id.index()])
}

/// Goes from source to source until it is clear.
fn follows_no_primary(
    states: &[State],
    id: ServerId,
    memory: &Memory,
    discovery: Option<&DiscoveryOptions>,
) -> bool {
    let mut passed = vec![id];
    let mut at = id;
    loop {
        // Of several sources only one status is known.
        let Some(report) = states[at.index()].current().filter(|r| sources(r) <= 1) else {
            return false;
        };
        let Some(status) = &report.replication else {
            return is_end(states, at, &passed, memory);
        };
        let source = source(states, status, discovery);
        if source == Some(id) {
            return true;
        }
        if status.receiver == Receiver::Stopped {
            return is_end(states, at, &passed, memory);
        }
        let stays = memory.incumbent == Some(id) && memory.receives;
        let is_away =
            (status.receiver != Receiver::Running || stays) && !is_shared(states, status, &passed);
        let Some(next) = source else {
            // Where a listed server has never answered, it may be that one, by another name.
            return is_away && !states.iter().any(never_answered_although_listed);
        };
        let state = &states[next.index()];
        match (state.current(), state.report.as_deref()) {
            (Some(_), _) if passed.contains(&next) => return false,
            (Some(report), _) if report.refuses_writes() => {
                passed.push(next);
                at = next;
            }
            (Some(_), _) => return false,
            // The passive one has gone.
            (None, Some(last)) => {
                let passive = last.refuses_writes()
                    && last
                        .replication
                        .as_ref()
                        .is_some_and(|status| is_about(status, &states[id.index()]));
                return passive;
            }
            (None, None) => {
                let unreachable = matches!(state.health, Health::Down { .. });
                return is_away && unreachable && !state.is_listed();
            }
        }
    }
}

/// A read-only server that receives from nobody is no primary. Where it was the last one, it may be one
/// again; and where others follow it as well, nobody can tell.
fn is_end(states: &[State], at: ServerId, passed: &[ServerId], memory: &Memory) -> bool {
    let followed_by_others = (0..).map(ServerId).zip(states).any(|(id, state)| {
        !passed.contains(&id) && state.in_play() && follows(state, &states[at.index()])
    });
    passed.first() != Some(&at) && memory.last != Some(at) && !followed_by_others
}

fn sources(report: &ProbeReport) -> usize {
    let sources = report.peers.iter();
    sources
        .filter(|peer| peer.relation == Relation::Source)
        .count()
}

/// The server that a status is about, also one that has never answered.
fn source(
    states: &[State],
    status: &ReplicationStatus,
    discovery: Option<&DiscoveryOptions>,
) -> Option<ServerId> {
    let named = named(status);
    let reachable = discovery.map_or(&*named, |options| options.reachable(&named));
    let in_play = || (0..).map(ServerId).zip(states).filter(|(_, s)| s.in_play());
    let known = in_play().find(|(_, state)| is_about(status, state));
    known
        .or_else(|| in_play().find(|(_, state)| *state.spec.address == *reachable))
        .map(|(id, _)| id)
}

fn named(status: &ReplicationStatus) -> String {
    let host = match status.source_host.contains(':') {
        true => format!("[{}]", status.source_host),
        false => status.source_host.to_string(),
    };
    format!("{host}:{}", status.source_port)
}

/// Another server follows the same source: then it is more than a leftover.
fn is_shared(states: &[State], status: &ReplicationStatus, passed: &[ServerId]) -> bool {
    let same = |other: &ReplicationStatus| {
        let uuid = !status.source_uuid.is_empty() && other.source_uuid == status.source_uuid;
        uuid || named(other) == named(status)
    };
    (0..).map(ServerId).zip(states).any(|(id, state)| {
        let other = state.report.as_deref().and_then(|r| r.replication.as_ref());
        !passed.contains(&id) && state.in_play() && other.is_some_and(same)
    })
}

fn never_answered_although_listed(state: &State) -> bool {
    state.in_play() && state.is_listed() && state.report.is_none()
}

/// Of writable servers that all receive, those that follow another of them: nobody can tell which of them is
/// to take writes.
pub(crate) fn circle(states: &[State], writable: &[ServerId]) -> Vec<ServerId> {
    let follows =
        |one: &ServerId, other: &ServerId| follows(&states[one.index()], &states[other.index()]);
    let in_circle = |id: &ServerId| {
        writable
            .iter()
            .any(|other| other != id && follows(id, other) && follows(other, id))
    };
    writable.iter().copied().filter(in_circle).collect()
}
