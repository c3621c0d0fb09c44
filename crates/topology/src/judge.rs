//! Judges roles and fitness from what is known of all servers at one moment. Remembers nothing
//! itself: the primary so far is passed in.

use crate::fold::State;
use crate::{
    ConfiguredRole, Family, Health, Options, ProbeReport, Receiver, ReplicationStatus, Role,
    ServerId, Unfit,
};

/// Who is the primary.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) primary: Option<ServerId>,
    pub(crate) conflict: Vec<ServerId>,
    pub(crate) family: Option<Family>,
    /// The only server there is: it is used whatever is known of it.
    alone: bool,
}

/// Finds the primary. `incumbent` is the one so far.
pub(crate) fn verdict(states: &[State], incumbent: Option<ServerId>) -> Verdict {
    let mut verdict = Verdict {
        primary: None,
        conflict: Vec::new(),
        family: states
            .iter()
            .find_map(|state| Some(state.report.as_ref()?.family)),
        alone: states.len() == 1,
    };
    if let Some(fixed) = position(states, |s| s.spec.role == ConfiguredRole::Primary) {
        let down = matches!(states[fixed.index()].health, Health::Down { .. });
        verdict.primary = (verdict.alone || !down).then_some(fixed);
    } else if verdict.alone {
        verdict.primary = position(states, |state| {
            state.spec.role == ConfiguredRole::Auto && !refuses_writes(state)
        });
    } else if states.iter().all(|state| state.health != Health::Unknown) {
        // Before every server has been asked, a second writable one may yet turn up.
        elect(states, incumbent, &mut verdict);
    }
    verdict
}

fn elect(states: &[State], incumbent: Option<ServerId>, verdict: &mut Verdict) {
    let claimants: Vec<ServerId> = (0..)
        .map(ServerId)
        .zip(states)
        .filter(|(_, state)| claims_writes(state))
        .map(|(id, _)| id)
        .collect();
    match claimants[..] {
        [] => {}
        [only] => verdict.primary = Some(only),
        _ => match incumbent.filter(|id| claimants.contains(id)) {
            // A writable replica whose receiver was stopped is no rival of the primary that it
            // is still set to follow, as long as that one has served without a break.
            Some(id) if only_followers(states, id, &claimants) => verdict.primary = Some(id),
            _ => verdict.conflict = claimants,
        },
    }
}

fn only_followers(states: &[State], primary: ServerId, claimants: &[ServerId]) -> bool {
    claimants
        .iter()
        .filter(|id| **id != primary)
        .all(|id| follows(&states[id.index()], &states[primary.index()]))
}

fn follows(replica: &State, primary: &State) -> bool {
    let (Some(status), Some(report)) = (replication(replica), primary.current()) else {
        return false;
    };
    if !report.server_uuid.is_empty() && !status.source_uuid.is_empty() {
        return status.source_uuid == report.server_uuid;
    }
    let host_and_port = format!("{}:{}", status.source_host, status.source_port);
    *host_and_port == *primary.spec.address
}

fn position(states: &[State], test: impl Fn(&State) -> bool) -> Option<ServerId> {
    let index = states.iter().position(test)?;
    u16::try_from(index).ok().map(ServerId)
}

fn refuses_writes(state: &State) -> bool {
    state.refused_write || state.current().is_some_and(ProbeReport::refuses_writes)
}

fn replication(state: &State) -> Option<&ReplicationStatus> {
    state.current()?.replication.as_ref()
}

fn receives(state: &State) -> bool {
    replication(state).is_some_and(|status| status.receiver != Receiver::Stopped)
}

/// Up, writable, and not receiving anybody's changes.
fn claims_writes(state: &State) -> bool {
    state.spec.role == ConfiguredRole::Auto
        && state.health.is_usable()
        && state.current().is_some()
        && !refuses_writes(state)
        && !receives(state)
}

/// What a server is for.
pub(crate) fn role(state: &State, id: ServerId, verdict: &Verdict) -> Role {
    if verdict.primary == Some(id) {
        return Role::Primary;
    }
    if verdict.conflict.contains(&id) {
        return Role::Unknown;
    }
    // A server that is down keeps being called a replica if it was one.
    let replica = state.spec.role == ConfiguredRole::Replica
        || state.refused_write
        || state
            .report
            .as_deref()
            .is_some_and(|report| report.refuses_writes() || report.replication.is_some());
    if replica {
        Role::Replica
    } else {
        Role::Unknown
    }
}

/// Why a server takes no reads.
pub(crate) fn unfit(
    state: &State,
    id: ServerId,
    verdict: &Verdict,
    options: &Options,
) -> Option<Unfit> {
    let primary = verdict.primary == Some(id);
    if verdict.alone {
        return None;
    }
    match state.health {
        Health::Unknown if primary => return None,
        Health::Unknown => return Some(Unfit::NotProbed),
        Health::Down { cause, .. } => return Some(Unfit::Down(cause)),
        Health::Up | Health::Suspect { .. } => {}
    }
    if state.current().is_some_and(|report| report.offline_mode) {
        return Some(Unfit::Offline);
    }
    if primary {
        return None;
    }
    unfit_beside(state, id, verdict, options)
}

/// Why an answering server that is not the primary takes no reads.
fn unfit_beside(
    state: &State,
    id: ServerId,
    verdict: &Verdict,
    options: &Options,
) -> Option<Unfit> {
    if let Some((times, cause)) = state.blind
        && (!state.fresh || times >= options.fail_after)
    {
        return Some(Unfit::NotObservable(cause));
    }
    let Some(report) = state.current() else {
        return Some(Unfit::NotProbed);
    };
    if verdict.conflict.contains(&id) {
        return Some(Unfit::Conflict);
    }
    if verdict.family != Some(report.family) {
        return Some(Unfit::OtherFamily);
    }
    if options.running_max > 0 && report.threads_running > options.running_max {
        let running = report.threads_running;
        return Some(Unfit::Overloaded { running });
    }
    if state.spec.weight == 0 {
        return Some(Unfit::ZeroWeight);
    }
    match &report.replication {
        Some(status) => unfit_replica(state, status, verdict.primary.is_some(), options),
        // Nobody is ahead of it for certain while there is no primary.
        None => {
            (verdict.primary.is_some() || !report.refuses_writes()).then_some(Unfit::NotReplicating)
        }
    }
}

fn unfit_replica(
    state: &State,
    status: &ReplicationStatus,
    has_primary: bool,
    options: &Options,
) -> Option<Unfit> {
    if !status.applier_running {
        return Some(if status.last_error.is_empty() {
            Unfit::ApplierStopped
        } else {
            Unfit::ApplierError
        });
    }
    match status.receiver {
        Receiver::Stopped if has_primary => return Some(Unfit::ReceiverStopped),
        Receiver::Connecting if has_primary => return Some(Unfit::ReceiverDisconnected),
        _ => {}
    }
    match state.lag_seconds {
        Some(seconds) if seconds > options.lag_seconds_max => Some(Unfit::Lagging { seconds }),
        _ => None,
    }
}
