//! Group Replication and Galera: which members take part, and which of them takes writes. Judges
//! from the members' own views; remembers nothing.

use crate::state::State;
use crate::{
    ConfiguredRole, GaleraNode, GaleraState, GroupView, Member, MemberState, ServerId, Unfit,
};

impl GroupView {
    /// The member with this server_uuid.
    fn member(&self, uuid: &str) -> Option<&Member> {
        self.members.iter().find(|member| &*member.uuid == uuid)
    }

    /// More than half of the view's members are heard of. Without that the group decides nothing.
    pub(crate) fn has_majority(&self) -> bool {
        let heard = self
            .members
            .iter()
            .filter(|member| matches!(member.state, MemberState::Online | MemberState::Recovering))
            .count();
        heard * 2 > self.members.len()
    }
}

/// A server's own entry in its own view.
fn own(state: &State) -> Option<(&GroupView, &Member)> {
    let report = state.current()?;
    let view = report.group.as_ref()?;
    Some((view, view.member(&report.server_uuid)?))
}

/// It is online, in a part of the group with a majority.
fn takes_part(state: &State) -> bool {
    own(state).is_some_and(|(view, me)| me.state == MemberState::Online && view.has_majority())
}

/// Some server in play is, or was when it last answered, a member of a group.
pub(crate) fn is_group(states: &[State]) -> bool {
    states
        .iter()
        .any(|state| state.in_play() && is_member(state))
}

/// It has said so when it last answered.
pub(crate) fn is_member(state: &State) -> bool {
    state
        .report
        .as_ref()
        .is_some_and(|report| report.group.is_some())
}

/// A member says that it is the group's primary, and no later view says otherwise.
pub(crate) fn claims_writes(state: &State, states: &[State]) -> bool {
    let Some((view, me)) = own(state).filter(|_| takes_part(state)) else {
        return false;
    };
    me.primary && !states.iter().any(|other| deposes(other, view, &me.uuid))
}

/// `other` has a later view of the same group, in which `uuid` is no longer the primary.
fn deposes(other: &State, view: &GroupView, uuid: &str) -> bool {
    let Some((theirs, _)) = own(other).filter(|_| takes_part(other)) else {
        return false;
    };
    let still = |member: &Member| member.primary && member.state == MemberState::Online;
    theirs.made == view.made
        && theirs.number > view.number
        && !theirs.member(uuid).is_some_and(still)
}

/// Of a group in which every member takes writes, one is chosen, and by every Millrace the same: the
/// one with the lowest server_uuid. None where the claimants are no such group.
pub(crate) fn choose_of_many(states: &[State], claimants: &[ServerId]) -> Option<ServerId> {
    let views: Vec<(&GroupView, &Member)> = claimants
        .iter()
        .map(|id| own(&states[id.index()]))
        .collect::<Option<_>>()?;
    let agreed = views.iter().all(|(view, _)| {
        views
            .iter()
            .all(|(_, member)| view.member(&member.uuid).is_some_and(|found| found.primary))
    });
    let lowest = claimants
        .iter()
        .zip(&views)
        .min_by_key(|(id, (_, me))| (states[id.index()].draining, &me.uuid));
    lowest.filter(|_| agreed).map(|(id, _)| *id)
}

/// Every member of the group that was asked since misses this one.
pub(crate) fn misses(other: &State, uuid: &str) -> Option<bool> {
    let (view, _) = own(other).filter(|_| takes_part(other))?;
    let heard = |member: &Member| member.state == MemberState::Online;
    Some(!view.member(uuid).is_some_and(heard))
}

fn galera(state: &State) -> Option<&GaleraNode> {
    state.current()?.galera.as_ref()
}

/// The servers are nodes of a Galera cluster.
pub(crate) fn is_galera(states: &[State]) -> bool {
    states.iter().filter(|state| state.in_play()).any(|state| {
        state
            .report
            .as_ref()
            .is_some_and(|report| report.galera.is_some())
    })
}

/// The node that takes writes: every node could, and all Millraces choose the same. The first by
/// name of the synced ones; where none is synced, of the donors.
pub(crate) fn galera_writer(states: &[State]) -> Option<ServerId> {
    let may = |state: &State| {
        state.in_play()
            && state.spec.role == ConfiguredRole::Auto
            && !state.draining
            && state.unconfirmed.is_none()
            && state.health.is_usable()
            && state.refused_write.is_none()
            && state
                .current()
                .is_some_and(|report| !report.refuses_writes())
    };
    let nodes = (0..).map(ServerId).zip(states);
    let candidates = nodes
        .filter(|(_, state)| may(state))
        .filter_map(|(id, state)| Some((id, galera(state)?, state)))
        .filter(|(_, node, _)| is_in_use(node));
    candidates
        .min_by_key(|(_, node, state)| {
            let donor = node.state != GaleraState::Synced;
            (donor, node.name.clone(), state.spec.address.clone())
        })
        .map(|(id, _, _)| id)
}

/// The nodes that say to be in the primary component, where that are two or more components: somebody
/// has bootstrapped another. A node that joins makes the sizes that others said before too small, but
/// says the right one itself, and one that leaves makes them too large: so in one component there are
/// never more nodes than the largest size that one of them says.
pub(crate) fn split(states: &[State]) -> Vec<ServerId> {
    let nodes = components(states);
    let largest = nodes.iter().map(|(_, node)| node.size).max();
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let many = largest.is_some_and(|size| count > size);
    let mut clusters = nodes.iter().map(|(_, node)| &node.cluster);
    let first = clusters.find(|cluster| !cluster.is_empty());
    let two = clusters.any(|cluster| !cluster.is_empty() && Some(cluster) != first);
    match many || two {
        true => nodes.iter().map(|(id, _)| *id).collect(),
        false => Vec::new(),
    }
}

/// Of the nodes of a split cluster those that go on taking reads: those of one component only, which is
/// the last writer's, or else the largest.
pub(crate) fn spared(states: &[State], last: Option<ServerId>) -> Vec<ServerId> {
    let nodes = components(states);
    let lasting = nodes.iter().find(|(id, _)| Some(*id) == last);
    let Some((chosen, of)) = lasting.or_else(|| nodes.iter().max_by_key(|(_, node)| node.size))
    else {
        return Vec::new();
    };
    let along = nodes
        .iter()
        .filter(|(_, node)| node.cluster == of.cluster && node.size == of.size)
        .map(|(id, _)| *id);
    let along: Vec<ServerId> = along.collect();
    // Two components of one size cannot be told apart.
    match u32::try_from(along.len()).is_ok_and(|count| count <= of.size) {
        true => along,
        false => vec![*chosen],
    }
}

/// The nodes that say to be in the primary component, but for those that an operator has set aside.
fn components(states: &[State]) -> Vec<(ServerId, &GaleraNode)> {
    (0..)
        .map(ServerId)
        .zip(states)
        .filter(|(_, state)| state.in_play() && !state.draining && state.health.is_usable())
        .filter_map(|(id, state)| Some((id, galera(state)?)))
        .filter(|(_, node)| node.primary_component)
        .collect()
}

fn is_in_use(node: &GaleraNode) -> bool {
    node.ready
        && node.primary_component
        && matches!(node.state, GaleraState::Synced | GaleraState::Donor)
}

/// Some answering server has a view without a majority.
pub(crate) fn lacks_quorum(states: &[State]) -> bool {
    states
        .iter()
        .filter(|state| state.in_play() && state.health.is_usable())
        .any(|state| {
            let outvoted = own(state)
                .is_some_and(|(view, me)| me.state == MemberState::Online && !view.has_majority());
            outvoted || galera(state).is_some_and(|node| !node.primary_component)
        })
}

/// Why a member takes no reads; `None` where it is no member. `alone`: no node is better than a donor.
pub(crate) fn unfit(state: &State, alone: bool) -> Option<Option<Unfit>> {
    let report = state.current()?;
    if let Some(node) = &report.galera {
        let well = node.state == GaleraState::Synced || (alone && is_in_use(node));
        return Some(match (node.primary_component, node.ready && well) {
            (false, _) => Some(Unfit::NoQuorum),
            (true, false) => Some(Unfit::NotSynced(node.state)),
            (true, true) => None,
        });
    }
    let view = report.group.as_ref()?;
    let own_state = view
        .member(&report.server_uuid)
        .map_or(MemberState::Offline, |me| me.state);
    Some(match own_state {
        MemberState::Online if view.has_majority() => None,
        MemberState::Online => Some(Unfit::NoQuorum),
        other => Some(Unfit::NotInGroup(other)),
    })
}

/// No node of the cluster is synced: a donor is as good as it gets.
pub(crate) fn none_synced(states: &[State]) -> bool {
    !states.iter().any(|state| {
        state.in_play()
            && state.health.is_usable()
            && galera(state).is_some_and(|node| {
                node.state == GaleraState::Synced && node.ready && node.primary_component
            })
    })
}
