//! Judges roles and fitness from what is known of all servers at one moment. Remembers nothing
//! itself: what was before is passed in.

use crate::group;
use crate::head;
use crate::source::{follows, follows_known, is_about, receives, replication};
use crate::state::{Blind, State};
use crate::verdict::{Memory, Verdict};
use crate::{
    Cause, ConfiguredRole, DiscoveryOptions, Health, Millis, NoPrimary, Options, ProbeReport,
    Receiver, ReplicationStatus, Role, ServerId, Unfit,
};

/// Finds the primary. `discovery`: servers that answer may name others.
pub(crate) fn verdict(
    states: &[State],
    memory: &Memory,
    discovery: Option<&DiscoveryOptions>,
) -> Verdict {
    let in_play = || states.iter().filter(|state| state.in_play());
    let counted = || in_play().filter(|state| state.counts());
    let unknown = || in_play().any(|state| state.health == Health::Unknown);
    let mut verdict = Verdict {
        leader: None,
        primary: None,
        conflict: Vec::new(),
        spared: Vec::new(),
        doubtful: None,
        overruled: None,
        family: in_play().find_map(|state| Some(state.report.as_ref()?.family)),
        // One that may name others is not known to be alone before it was asked.
        alone: counted().count() == 1 && (discovery.is_none() || !unknown()),
        well: false,
        none_synced: group::none_synced(states),
    };
    if let Some(fixed) = fixed(states) {
        let down = matches!(states[fixed.index()].health, Health::Down { .. });
        verdict.leader = (verdict.alone || !down).then_some(fixed);
        if !verdict.alone && !unknown() {
            overrule(states, memory, discovery, fixed, &mut verdict);
        }
    } else if verdict.alone {
        verdict.leader = position(states, |state| {
            state.in_play()
                && state.counts()
                && state.spec.role == ConfiguredRole::Auto
                && !refuses_writes(state)
        });
    } else if memory.incumbent.is_some() || !unknown() {
        // Before every server has been asked, a second writable one may yet turn up.
        elect(states, memory, discovery, &mut verdict);
    }
    verdict.well = verdict
        .leader
        .is_some_and(|id| states[id.index()].health == Health::Up);
    verdict.primary = verdict
        .leader
        .filter(|id| !states[id.index()].draining && !is_stalled(&states[id.index()]));
    verdict
}

/// The server that the configuration names as the primary.
fn fixed(states: &[State]) -> Option<ServerId> {
    position(states, |state| {
        !state.gone && state.spec.role == ConfiguredRole::Primary
    })
}

/// The server that is configured as the primary is read only, and one that has replicated, or that it
/// follows now, is the primary by all that the servers show: they were switched over.
fn overrule(
    states: &[State],
    memory: &Memory,
    discovery: Option<&DiscoveryOptions>,
    fixed: ServerId,
    verdict: &mut Verdict,
) {
    let old = &states[fixed.index()];
    if !old.current().is_some_and(ProbeReport::refuses_writes) {
        return;
    }
    let mut shown = Verdict {
        leader: None,
        primary: None,
        conflict: Vec::new(),
        spared: Vec::new(),
        doubtful: None,
        overruled: None,
        ..*verdict
    };
    elect(states, memory, discovery, &mut shown);
    let successor = shown.leader.filter(|id| {
        let state = &states[id.index()];
        state.followed || follows(old, state)
    });
    if successor.is_some() {
        verdict.leader = successor;
        verdict.overruled = Some(fixed);
    }
}

/// Why nobody takes writes.
pub(crate) fn without(states: &[State], verdict: &Verdict, memory: &Memory) -> Option<NoPrimary> {
    if verdict.primary.is_some() {
        return None;
    }
    if let Some(leader) = verdict.leader {
        let drained = states[leader.index()].draining;
        return Some(match drained {
            true => NoPrimary::Draining(leader),
            false => NoPrimary::Stalled(leader),
        });
    }
    if let Some(fixed) = fixed(states) {
        return Some(NoPrimary::Fixed(fixed));
    }
    if !verdict.conflict.is_empty() {
        return Some(NoPrimary::Conflict);
    }
    if let Some(doubtful) = verdict.doubtful {
        return Some(NoPrimary::Doubtful(doubtful));
    }
    if group::lacks_quorum(states) {
        return Some(NoPrimary::NoQuorum);
    }
    let Some(last) = memory.last else {
        let unknown = states
            .iter()
            .any(|state| !state.gone && state.health == Health::Unknown);
        let replicates = position(states, |state| is_writable(state, states));
        return Some(match replicates {
            _ if unknown => NoPrimary::NotAsked,
            Some(id) => NoPrimary::Replicates(id),
            None => NoPrimary::Nobody,
        });
    };
    let state = &states[last.index()];
    Some(if state.draining {
        NoPrimary::Draining(last)
    } else if state.health.is_usable() && state.unconfirmed.is_none() {
        NoPrimary::Demoted(last)
    } else if !state.health.is_usable() && is_heard(states, last) {
        NoPrimary::Unreachable(last)
    } else {
        NoPrimary::Lost(last)
    })
}

fn elect(
    states: &[State],
    memory: &Memory,
    discovery: Option<&DiscoveryOptions>,
    verdict: &mut Verdict,
) {
    if group::is_galera(states) {
        verdict.conflict = group::split(states);
        if verdict.conflict.is_empty() {
            verdict.leader = group::galera_writer(states);
        } else {
            verdict.spared = group::spared(states, memory.last);
        }
        return;
    }
    let mut claimants: Vec<ServerId> = writable(states)
        .filter(|id| !receives(&states[id.index()]))
        .collect();
    if claimants.is_empty() {
        let receiving: Vec<ServerId> = writable(states).collect();
        let heads = receiving.iter().copied();
        claimants = heads
            .filter(|id| head::is_head(states, *id, memory, discovery))
            .collect();
        if claimants.is_empty() {
            verdict.conflict = head::circle(states, &receiving);
        }
        if claimants.len() > 1 {
            verdict.spared.clone_from(&claimants);
        }
        verdict.spared.extend(&verdict.conflict);
    } else if let Some(old) = memory.last.filter(|_| memory.receives)
        && !claimants.contains(&old)
        && is_writable(&states[old.index()], states)
    {
        // It took writes although it receives, and has not stepped back.
        claimants.push(old);
        claimants.sort_unstable();
        verdict.conflict = claimants;
        return;
    }
    let claimants = prefer_read_write(states, claimants);
    let incumbent = memory.incumbent.filter(|id| claimants.contains(id));
    match claimants[..] {
        [] => {}
        [only] if incumbent.is_none() && is_doubtful(states, only, memory) => {
            verdict.doubtful = Some(only);
        }
        [only] => verdict.leader = Some(only),
        _ => {
            verdict.leader = incumbent
                .filter(|id| has_no_rival(states, *id, &claimants, memory))
                .or_else(|| group::choose_of_many(states, &claimants));
            if verdict.leader.is_none() {
                verdict.conflict = claimants;
            }
        }
    }
}

/// Servers whose sessions begin read only are no rivals of one whose sessions do not.
fn prefer_read_write(states: &[State], claimants: Vec<ServerId>) -> Vec<ServerId> {
    let begins_read_only = |id: &ServerId| {
        let report = states[id.index()].current();
        report.is_some_and(|report| report.begins_read_only)
    };
    match claimants.iter().all(begins_read_only) {
        true => claimants,
        false => claimants
            .into_iter()
            .filter(|id| !begins_read_only(id))
            .collect(),
    }
}

/// A server that lacks what the last primary had executed, and was not seen as its replica, is no
/// successor of it: another server at the address, restored data, or a stranger.
fn is_doubtful(states: &[State], id: ServerId, memory: &Memory) -> bool {
    let state = &states[id.index()];
    let (Some(history), Some(executed)) = (&memory.history, state.executed()) else {
        return false;
    };
    let was_replica = state.followed && memory.last != Some(id);
    !state.vouched && !was_replica && !executed.contains(history)
}

/// The claimants beside the primary are no rivals: each is set to follow it, or is an old primary that
/// has come back, has nothing that the primary lacks, and is followed by nobody.
fn has_no_rival(
    states: &[State],
    primary: ServerId,
    claimants: &[ServerId],
    memory: &Memory,
) -> bool {
    let leader = &states[primary.index()];
    let others = claimants.iter().filter(|id| **id != primary);
    others.into_iter().all(|id| {
        // A writable replica whose receiver was stopped.
        let other = &states[id.index()];
        follows(other, leader) || is_left_over(states, *id, leader, memory)
    })
}

fn is_left_over(states: &[State], old: ServerId, leader: &State, memory: &Memory) -> bool {
    let state = &states[old.index()];
    let (Some(theirs), Some(ours)) = (state.current(), leader.current()) else {
        return false;
    };
    state.risen_at.is_some_and(|risen| risen > memory.since)
        && theirs.gtid
        && ours.gtid
        && !ours.executed.is_empty()
        && ours.executed.contains(&theirs.executed)
        && receivers(states, old).is_none_or(|(on, _)| on == 0)
}

/// How many of the servers that are set to follow this one receive from it, of how many that answer.
/// None where no server is.
pub(crate) fn receivers(states: &[State], source: ServerId) -> Option<(usize, usize)> {
    let source = &states[source.index()];
    let statuses: Vec<_> = states
        .iter()
        .filter(|state| state.in_play() && state.health.is_usable() && follows_known(state, source))
        .filter_map(replication)
        .collect();
    let on = statuses
        .iter()
        .filter(|status| status.receiver == Receiver::Running)
        .count();
    (!statuses.is_empty()).then_some((on, statuses.len()))
}

/// A replica that was asked since the server became suspect receives from it.
fn is_heard(states: &[State], source: ServerId) -> bool {
    let source = &states[source.index()];
    let since = source.suspicion.as_ref().map(|(at, _)| *at);
    states.iter().any(|state| {
        state.in_play()
            && state.health.is_usable()
            && state.asked_at >= since
            && follows_known(state, source)
            && replication(state).is_some_and(|status| status.receiver == Receiver::Running)
    })
}

/// Since the primary became suspect, everybody who follows it, or is in a group with it, was asked and
/// has lost it as well.
pub(crate) fn is_abandoned(states: &[State], id: ServerId) -> bool {
    let state = &states[id.index()];
    let (Some((since, _)), Some(report)) = (&state.suspicion, state.report.as_deref()) else {
        return false;
    };
    let mut witnesses = 0;
    for (other_id, other) in (0..).map(ServerId).zip(states) {
        if other_id == id || !other.in_play() || !other.health.is_usable() {
            continue;
        }
        let lost = match group::misses(other, &report.server_uuid) {
            Some(missed) => missed,
            None if follows_known(other, state) => {
                replication(other).is_some_and(|status| status.receiver != Receiver::Running)
            }
            None => continue,
        };
        if !lost || other.asked_at.is_none_or(|asked| asked < *since) {
            return false;
        }
        witnesses += 1;
    }
    witnesses > 0
}

fn position(states: &[State], test: impl Fn(&State) -> bool) -> Option<ServerId> {
    let index = states.iter().position(test)?;
    u16::try_from(index).ok().map(ServerId)
}

fn refuses_writes(state: &State) -> bool {
    state.refused_write.is_some() || state.current().is_some_and(ProbeReport::refuses_writes)
}

/// It answers, and its commits do not end.
fn is_stalled(state: &State) -> bool {
    state
        .current()
        .is_some_and(|report| report.stuck_commits > 0)
}

/// The servers that could take writes, whether or not they receive from another.
fn writable(states: &[State]) -> impl Iterator<Item = ServerId> {
    let found = (0..).map(ServerId).zip(states);
    found
        .filter(|(_, state)| is_writable(state, states))
        .map(|(id, _)| id)
}

/// Up and writable; where there is a group, its primary. A server that should be a member and was started
/// without its group looks like an asynchronous primary.
pub(crate) fn is_writable(state: &State, states: &[State]) -> bool {
    let leads = || match group::is_group(states) {
        true => group::claims_writes(state, states) || feeds_group(state, states),
        false => true,
    };
    state.in_play()
        && state.spec.role == ConfiguredRole::Auto
        && state.health.is_usable()
        && state.unconfirmed.is_none()
        && state.current().is_some()
        && !refuses_writes(state)
        && leads()
}

/// It is no member itself, and a group is set to replicate from it, or was when its members last
/// answered.
fn feeds_group(state: &State, states: &[State]) -> bool {
    !group::is_member(state)
        && states.iter().any(|member| {
            let status = member.report.as_ref().and_then(|r| r.replication.as_ref());
            member.in_play()
                && group::is_member(member)
                && status.is_some_and(|status| is_about(status, state))
        })
}

/// Whether every other server was asked since this one came back.
pub(crate) fn is_confirmed(states: &[State], id: ServerId, since: Millis) -> bool {
    (0..).map(ServerId).zip(states).all(|(other_id, other)| {
        other_id == id
            || !other.in_play()
            || match other.health {
                Health::Down { .. } => true,
                Health::Unknown => false,
                Health::Up | Health::Suspect { .. } => {
                    other.asked_at.is_some_and(|asked| asked >= since)
                }
            }
    })
}

/// What a server is for.
pub(crate) fn role(state: &State, id: ServerId, verdict: &Verdict) -> Role {
    if verdict.leader == Some(id) {
        return Role::Primary;
    }
    if verdict.conflict.contains(&id) || verdict.doubtful == Some(id) {
        return Role::Unknown;
    }
    // A server that is down keeps being called a replica if it was one.
    let replica = state.spec.role == ConfiguredRole::Replica
        || state.refused_write.is_some()
        || state.report.as_deref().is_some_and(|report| {
            report.refuses_writes()
                || report.replication.is_some()
                || report.group.is_some()
                || report.galera.is_some()
        });
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
    let primary = verdict.leader == Some(id);
    if state.gone {
        return Some(Unfit::Gone);
    }
    if let Some(known_as) = state.same_as {
        return Some(Unfit::SameServer(known_as));
    }
    if state.draining {
        return Some(Unfit::Draining);
    }
    if verdict.alone && state.counts() {
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
    if let Some(blind) = state.blind
        && !is_believed(state, &blind, options)
    {
        return Some(Unfit::NotObservable(blind.cause));
    }
    let Some(report) = state.current() else {
        return Some(Unfit::NotProbed);
    };
    let conflict = verdict.conflict.contains(&id) && !verdict.spared.contains(&id);
    if conflict || verdict.doubtful == Some(id) {
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
    if let Some(in_group) = group::unfit(state, verdict.none_synced) {
        return in_group.or_else(|| lagging(state, options));
    }
    match &report.replication {
        Some(status) => unfit_replica(state, status, verdict.well, options),
        None if !report.refuses_writes() => Some(Unfit::Writable),
        // It reads the primary's own files (Aurora), or an operator says that it is of use.
        None if report.innodb_read_only
            && (report.shares_storage || state.spec.role == ConfiguredRole::Replica) =>
        {
            None
        }
        // Nobody is ahead of it for certain while there is no primary.
        None => verdict.leader.is_some().then_some(Unfit::NotReplicating),
    }
}

/// Whether what is known of a server that cannot be asked still tells that it is not too far behind. Who
/// is merely busy loses at most a second in each: to send its readers to others, who are likely as
/// busy, would bring these down in turn.
fn is_believed(state: &State, blind: &Blind, options: &Options) -> bool {
    if !state.fresh || blind.times < options.fail_after {
        return state.fresh;
    }
    let lag = state.lag_seconds.unwrap_or_default();
    let most = options.lag_seconds_max;
    // How much it runs is not known, where that counts. Who lags is told to lag.
    matches!(blind.cause, Cause::Slow | Cause::Busy)
        && options.running_max == 0
        && (lag > most || lag.saturating_add(blind.seconds) <= most)
}

fn unfit_replica(
    state: &State,
    status: &ReplicationStatus,
    primary_is_well: bool,
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
        // While the primary may be lost, its replicas are as good as it gets.
        Receiver::Stopped if primary_is_well => return Some(Unfit::ReceiverStopped),
        Receiver::Connecting if primary_is_well => return Some(Unfit::ReceiverDisconnected),
        _ => {}
    }
    lagging(state, options)
}

fn lagging(state: &State, options: &Options) -> Option<Unfit> {
    match state.lag_seconds {
        Some(seconds) if seconds > options.lag_seconds_max => Some(Unfit::Lagging { seconds }),
        _ => None,
    }
}
