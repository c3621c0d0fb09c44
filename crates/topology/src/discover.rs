//! Which servers there are: those that answering servers name are added, those that nobody names any
//! more are forgotten, and two names of one server are told. Asks nobody.

use crate::event::ChangeEvent;
use crate::source;
use crate::state::State;
use crate::{
    ConfiguredRole, DiscoveryOptions, Family, GtidSet, Health, Millis, Peer, ProbeReport, Relation,
    SERVERS_EVER, ServerId, ServerSpec,
};

/// After a report of `by`: adds the servers that it names and that are not known.
pub(crate) fn follow(
    states: &mut Vec<State>,
    by: ServerId,
    report: &ProbeReport,
    at: Millis,
    options: &DiscoveryOptions,
    too_many_told: &mut bool,
    events: &mut Vec<ChangeEvent>,
) {
    for peer in &report.peers {
        let address = options.reachable(&peer.address);
        match known_as(states, by, report, peer, address) {
            Some(id) => {
                let state = &mut states[id.index()];
                state.mentioned_at = at;
                // A name of several servers is none itself.
                if state.gone && state.means.is_empty() {
                    state.revive(at);
                    events.push(ChangeEvent::Found { server: id, by });
                }
                // Who names a known server is part of the topology as well.
                states[by.index()].mentioned_at = at;
            }
            None if has_room(states, options.servers_max) => {
                let id = ServerId(u16::try_from(states.len()).unwrap_or(u16::MAX));
                states.push(State::new(ServerSpec::new(address), false, at));
                events.push(ChangeEvent::Found { server: id, by });
            }
            None if !std::mem::replace(too_many_told, true) => {
                let address = address.into();
                events.push(ChangeEvent::TooMany { by, address });
            }
            None => {}
        }
    }
}

fn has_room(states: &[State], servers_max: usize) -> bool {
    let live = states.iter().filter(|state| state.in_play()).count();
    live < servers_max && states.len() < SERVERS_EVER
}

/// The name of a listed server stands for these addresses: each that is not known is a server from now on, with what is
/// configured for the name. One that the name has left is none any more, unless a server names it.
pub(crate) fn mean(
    states: &mut Vec<State>,
    name: ServerId,
    addresses: Vec<Box<str>>,
    at: Millis,
    servers_max: usize,
    events: &mut Vec<ChangeEvent>,
) {
    let spec = states[name.index()].spec.clone();
    let draining = states[name.index()].draining;
    for address in &addresses {
        let spec = ServerSpec {
            address: (**address).into(),
            // Which of them is the primary, the servers show.
            role: match spec.role {
                ConfiguredRole::Primary => ConfiguredRole::Auto,
                role => role,
            },
            ..spec.clone()
        };
        let known = states
            .iter()
            .position(|state| *state.spec.address == **address);
        let id = match known {
            Some(known) if states[known].configured => continue,
            Some(known) => known,
            None if has_room(states, servers_max) => {
                states.push(State::new(spec.clone(), false, at));
                states.len() - 1
            }
            None => {
                let (by, address) = (name, address.clone());
                events.push(ChangeEvent::TooMany { by, address });
                continue;
            }
        };
        let server = ServerId(u16::try_from(id).unwrap_or(u16::MAX));
        let state = &mut states[id];
        if state.gone {
            state.revive(at);
        }
        if known.is_none() || state.address_of.is_none() {
            events.push(ChangeEvent::Found { server, by: name });
            state.draining |= draining;
            state.spec = spec;
        }
        state.address_of.get_or_insert(name);
        state.mentioned_at = at;
    }
    states[name.index()].means = addresses;
    leave(states, name, at, events);
}

/// Servers whose address the name has left.
fn leave(states: &mut [State], name: ServerId, at: Millis, events: &mut Vec<ChangeEvent>) {
    for index in 0..states.len() {
        let address = states[index].spec.address.clone();
        let has = |state: &State| state.means.iter().any(|one| **one == *address);
        if states[index].address_of != Some(name) || has(&states[name.index()]) {
            continue;
        }
        let server = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
        let mut others = (0..).map(ServerId).zip(&*states);
        let other = others.find(|(_, state)| has(state)).map(|(id, _)| id);
        states[index].address_of = other;
        states[index].mentioned_at = at;
        if other.is_none() && !is_named(states, server) {
            states[index].forget();
            events.push(ChangeEvent::Forgotten { server });
        }
    }
}

/// A server that answers names it.
fn is_named(states: &[State], server: ServerId) -> bool {
    let state = &states[server.index()];
    let Some(known) = state.report.as_deref() else {
        return false;
    };
    (0..).map(ServerId).zip(states).any(|(id, other)| {
        id != server
            && other.in_play()
            && other.current().is_some_and(|report| {
                let mut peers = report.peers.iter();
                peers.any(|peer| is_meant(peer, known, report.family))
            })
    })
}

/// A name of several servers is no server beside them, once these have been asked; but the primary keeps the name that
/// it has.
pub(crate) fn step_back(
    states: &mut [State],
    primary: Option<ServerId>,
    events: &mut Vec<ChangeEvent>,
) {
    for index in 0..states.len() {
        let server = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
        let name = &states[index];
        // One that has never answered is a primary by the configuration alone.
        let is_primary = primary == Some(server) && name.report.is_some();
        if name.means.is_empty() || name.gone || is_primary {
            continue;
        }
        let is_meant = |state: &&State| name.means.iter().any(|one| **one == *state.spec.address);
        let mut meant = states.iter().filter(is_meant);
        if name.report.is_none() || meant.all(|state| state.health != Health::Unknown) {
            states[index].forget();
            events.push(ChangeEvent::Several { server });
        }
    }
}

/// The server that is meant, by its identity or else by its address.
fn known_as(
    states: &[State],
    by: ServerId,
    report: &ProbeReport,
    peer: &Peer,
    address: &str,
) -> Option<ServerId> {
    let find = |test: &dyn Fn(&State) -> bool| {
        let found = (0..).map(ServerId).zip(states);
        found
            .filter(|(id, _)| *id != by)
            .find(|(_, state)| test(state))
            .map(|(id, _)| id)
    };
    let same = |state: &State| {
        // One that is down may have moved to the address.
        let there = state.in_play() && !matches!(state.health, Health::Down { .. });
        let known = state.report.as_deref().filter(|_| there);
        known.is_some_and(|known| is_meant(peer, known, report.family))
    };
    find(&same)
        .or_else(|| find(&|state| !state.gone && *state.spec.address == *address))
        .or_else(|| find(&|state| *state.spec.address == *address))
        // It names itself, under whatever address.
        .or_else(|| (*states[by.index()].spec.address == *address).then_some(by))
        .or_else(|| is_meant(peer, report, report.family).then_some(by))
}

/// MySQL's servers are told apart by their server_uuid; MariaDB's in one replication topology have
/// different server_ids. Galera's nodes may share theirs.
fn is_meant(peer: &Peer, known: &ProbeReport, family: Family) -> bool {
    if !peer.uuid.is_empty() {
        return known.server_uuid == peer.uuid;
    }
    family == Family::MariaDb
        && known.family == family
        && peer.relation != Relation::Member
        && peer.server_id != 0
        && known.server_id == peer.server_id
        && known.galera.is_none()
}

/// Forgets what was found, and has for a while neither answered nor been named by anybody. Called when another server has
/// answered: who is cut off from all forgets nobody.
pub(crate) fn forget(
    states: &mut [State],
    primary: Option<ServerId>,
    at: Millis,
    options: &DiscoveryOptions,
    events: &mut Vec<ChangeEvent>,
) {
    for (id, state) in (0..).map(ServerId).zip(states) {
        let down = matches!(state.health, Health::Down { since, .. }
            if at.since(since) > options.forget_after_ms);
        let unnamed = at.since(state.mentioned_at) > options.forget_after_ms;
        if !state.is_listed() && !state.gone && down && unnamed && primary != Some(id) {
            state.forget();
            events.push(ChangeEvent::Forgotten { server: id });
        }
    }
}

/// Finds the names of servers that are known under another: the one that takes writes keeps its name,
/// else the first that answers. What the name of a server was told long ago counts no more once it
/// stands in for another: names are asked seldom. `answered` has been asked just now.
pub(crate) fn tell_names_apart(
    states: &mut [State],
    primary: Option<ServerId>,
    answered: Option<ServerId>,
    events: &mut Vec<ChangeEvent>,
) {
    for index in 0..states.len() {
        let id = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
        let known_as = other_name(states, id, primary);
        if let Some(known_as) = known_as
            && states[index].same_as != Some(known_as)
        {
            let server = id;
            events.push(ChangeEvent::SameServer { server, known_as });
            // It is the server that was drained, by whatever name.
            let draining = states[index].draining || states[known_as.index()].draining;
            states[index].draining = draining;
            states[known_as.index()].draining = draining;
        }
        let stands_in = states[index].same_as.is_some() && known_as.is_none();
        if stands_in && answered != Some(id) {
            states[index].fresh = false;
        }
        states[index].same_as = known_as;
    }
}

/// All names of the server with this one, as far as they have ever answered; this one at least.
pub(crate) fn names(states: &[State], id: ServerId) -> Vec<ServerId> {
    let mine = states[id.index()].report.as_deref();
    (0..)
        .map(ServerId)
        .zip(states)
        .filter(|(other, state)| {
            let theirs = state.report.as_deref().filter(|_| !state.gone);
            let both = mine.zip(theirs);
            *other == id || both.is_some_and(|(mine, theirs)| is_one_server(mine, theirs))
        })
        .map(|(other, _)| other)
        .collect()
}

/// Two answers are of one server. MariaDB's servers in containers may have everything in common but
/// their server_id.
fn is_one_server(one: &ProbeReport, other: &ProbeReport) -> bool {
    !one.identity.is_empty()
        && one.identity == other.identity
        && one.server_uuid == other.server_uuid
        && one.server_id == other.server_id
}

/// Whether a machine has to do with the servers that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kin {
    /// It is one of them, is named by one, names one, or has all that the last primary had.
    Yes,
    /// Nothing says so.
    No,
    /// It replicates from this server by its server_id alone, which a server of another cluster may have too. So it
    /// does, if this one's binary log has what it has read.
    IfItFollows(ServerId),
    /// This server replicates from it, by its server_id alone. So it does, if that one's binary log has what this one
    /// has read.
    IfFollowedBy(ServerId),
}

/// MariaDB's servers number their transactions alike in every cluster, so theirs tell nothing.
pub(crate) fn kin(
    states: &[State],
    at: ServerId,
    report: &ProbeReport,
    history: Option<&GtidSet>,
) -> Kin {
    let has_history = |history: &GtidSet| {
        !report.server_uuid.is_empty() && !history.is_empty() && report.executed.contains(history)
    };
    let is_of = |known: &ProbeReport| {
        let same_uuid = !known.server_uuid.is_empty() && known.server_uuid == report.server_uuid;
        let same_cluster = match (&known.galera, &report.galera) {
            (Some(one), Some(other)) => one.cluster == other.cluster,
            _ => false,
        };
        same_uuid || same_cluster || is_one_server(known, report)
    };
    let follows = |one: &ProbeReport, address: &str, other: &ProbeReport| {
        let status = one.replication.as_ref();
        let mut peers = one.peers.iter();
        status.is_some_and(|status| source::is_about_report(status, other, address))
            || peers.any(|peer| is_meant(peer, other, one.family))
    };
    let known: Vec<(ServerId, &State, &ProbeReport)> = (0..)
        .map(ServerId)
        .zip(states.iter())
        .filter(|(_, state)| !state.gone)
        .filter_map(|(id, state)| Some((id, state, state.report.as_deref()?)))
        .collect();
    if history.is_some_and(has_history) || known.iter().any(|(_, _, one)| is_of(one)) {
        return Kin::Yes;
    }
    // The numbers that it follows may mean one that is known.
    let follows_known = |one: &ProbeReport| {
        known.iter().any(|(_, state, other)| {
            state.health.is_usable() && follows(one, &state.spec.address, other)
        })
    };
    let address = &states[at.index()].spec.address;
    let followed = known
        .iter()
        .find(|(_, state, one)| follows(report, &state.spec.address, one));
    let follower = || {
        let mut known = known.iter();
        known.find(|(_, _, one)| follows(one, address, report) && !follows_known(one))
    };
    match (followed, report.family) {
        (Some(_), Family::MySql) => Kin::Yes,
        (Some((id, ..)), Family::MariaDb) => Kin::IfItFollows(*id),
        (None, family) => match (follower(), family) {
            (None, _) => Kin::No,
            (Some(_), Family::MySql) => Kin::Yes,
            (Some((id, ..)), Family::MariaDb) => Kin::IfFollowedBy(*id),
        },
    }
}

fn other_name(states: &[State], id: ServerId, primary: Option<ServerId>) -> Option<ServerId> {
    if primary == Some(id) {
        return None;
    }
    let me = states[id.index()].report.as_deref()?;
    if states[id.index()].gone {
        return None;
    }
    (0..)
        .map(ServerId)
        .zip(states)
        .filter(|(other, state)| {
            *other != id
                && !state.gone
                && (*other < id || primary == Some(*other))
                && !matches!(state.health, Health::Down { .. })
        })
        .find(|(_, state)| {
            let theirs = state.current();
            theirs.is_some_and(|theirs| is_one_server(theirs, me))
        })
        .map(|(other, _)| other)
}
