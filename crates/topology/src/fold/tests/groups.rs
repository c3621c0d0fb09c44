//! Group Replication and Galera: whose word counts, and who takes part.

use super::*;
use crate::{GaleraNode, GaleraState, GroupView, Member, MemberState};

const ONLINE: MemberState = MemberState::Online;

/// What the server with this letter says of a group: members' letters, states, and the primary.
fn member(of: &str, number: u64, members: &[(&str, MemberState)], primary: &str) -> ProbeReport {
    let view = GroupView {
        made: 17,
        number,
        members: members
            .iter()
            .map(|(uuid, state)| Member {
                uuid: (*uuid).into(),
                state: *state,
                primary: *uuid == primary,
            })
            .collect(),
    };
    ProbeReport {
        server_uuid: of.into(),
        read_only: of != primary,
        super_read_only: of != primary,
        group: Some(view),
        ..writable()
    }
}

fn all(state_of_a: MemberState) -> [(&'static str, MemberState); 3] {
    [("a", state_of_a), ("b", ONLINE), ("c", ONLINE)]
}

fn group() -> World {
    let mut world = world(3);
    for (id, uuid) in [(A, "a"), (B, "b"), (C, "c")] {
        world.report(id, member(uuid, 3, &all(ONLINE), "a"));
    }
    world
}

#[test]
fn the_groups_primary_takes_writes() {
    let world = group();
    assert_eq!((world.primary(), world.role(B)), (Some(A), Role::Replica));
    assert_eq!((world.unfit(B), world.unfit(C)), (None, None));
}

#[test]
fn a_member_that_does_not_take_part_takes_nothing() {
    use MemberState::{Error, Offline, Recovering};
    for state in [Recovering, Error, Offline] {
        let mut world = group();
        let members = [("a", ONLINE), ("b", state), ("c", ONLINE)];
        world.report(B, member("b", 3, &members, "a"));
        assert_eq!(world.unfit(B), Some(Unfit::NotInGroup(state)));
        // The same of the primary: writes wait for another.
        let mut world = group();
        let mut expelled = member("a", 3, &[("a", state)], "");
        expelled.read_only = false;
        expelled.super_read_only = false;
        world.report(A, expelled);
        assert_eq!(world.primary(), None, "{state:?}, writable or not");
        assert_eq!(world.unfit(A), Some(Unfit::NotInGroup(state)));
    }
}

#[test]
fn a_part_without_a_majority_takes_nothing() {
    let mut world = group();
    let alone = [
        ("a", ONLINE),
        ("b", MemberState::Unreachable),
        ("c", MemberState::Unreachable),
    ];
    world.report(A, member("a", 3, &alone, "a"));
    assert_eq!(world.primary(), None);
    assert_eq!(world.unfit(A), Some(Unfit::NoQuorum));
    assert_eq!(world.topology.snapshot().without, Some(NoPrimary::NoQuorum));
    // The others elect.
    let rest = [("b", ONLINE), ("c", ONLINE)];
    world.report(C, member("c", 4, &rest, "b"));
    assert_eq!(world.primary(), None);
    world.report(B, member("b", 4, &rest, "b"));
    assert_eq!(world.primary(), Some(B));
}

#[test]
fn a_new_primary_counts_once_it_takes_writes() {
    let mut world = group();
    world.fail(A, Cause::Refused);
    let rest = [("b", ONLINE), ("c", ONLINE)];
    let mut elected = member("b", 4, &rest, "b");
    elected.super_read_only = true;
    world.report(B, elected);
    assert_eq!(world.primary(), None, "it still applies what it has");
    world.report(B, member("b", 4, &rest, "b"));
    assert_eq!(world.primary(), Some(B));
}

#[test]
fn a_later_view_deposes_a_primary_that_does_not_know_it_yet() {
    let mut world = group();
    let rest = [("b", ONLINE), ("c", ONLINE)];
    world.report(B, member("b", 4, &rest, "b"));
    assert_eq!(world.primary(), Some(B), "its view is later than a's");
    // It wakes up, and says what it knew.
    world.report(A, member("a", 3, &all(ONLINE), "a"));
    assert_eq!(world.primary(), Some(B));
    assert!(world.topology.snapshot().conflict.is_empty());
    // A member that joins makes a later view as well, and deposes nobody.
    let mut world = group();
    let four = [("a", ONLINE), ("b", ONLINE), ("c", ONLINE), ("d", ONLINE)];
    world.report(C, member("c", 4, &four, "a"));
    assert_eq!(world.primary(), Some(A));
}

#[test]
fn two_groups_of_one_name_are_a_conflict() {
    let mut world = group();
    let mut other = member("b", 1, &[("b", ONLINE)], "b");
    if let Some(view) = &mut other.group {
        view.made = 18;
    }
    world.report(B, other);
    assert_eq!(world.primary(), None);
    assert_eq!(world.topology.snapshot().conflict, [A, B]);
}

#[test]
fn where_every_member_takes_writes_all_choose_the_same() {
    for first in [A, B, C] {
        let mut world = world(3);
        let mut order = vec![(A, "c"), (B, "a"), (C, "b")];
        order.rotate_left(first.index());
        for (id, uuid) in order {
            let mut report = member(uuid, 3, &all(ONLINE), "");
            report.read_only = false;
            report.super_read_only = false;
            if let Some(view) = &mut report.group {
                view.members.iter_mut().for_each(|m| m.primary = true);
            }
            world.report(id, report);
        }
        assert_eq!(world.primary(), Some(B), "the lowest server_uuid");
    }
}

#[test]
fn a_suspect_primary_that_the_group_misses_is_lost_at_once() {
    let mut world = group();
    world.fail(A, Cause::TimedOut);
    assert_eq!(world.primary(), Some(A));
    let missed = all(MemberState::Unreachable);
    world.report(B, member("b", 3, &missed, "a"));
    assert_eq!(world.primary(), Some(A), "one was not asked since");
    world.report(C, member("c", 3, &missed, "a"));
    assert_eq!(world.primary(), None);
    assert!(matches!(world.health(A), Health::Down { .. }));
}

/// What a Galera node says.
fn node(name: &str, change: impl FnOnce(&mut GaleraNode)) -> ProbeReport {
    let mut node = GaleraNode {
        cluster: "7b67".into(),
        name: name.into(),
        primary_component: true,
        ready: true,
        state: GaleraState::Synced,
        size: 3,
    };
    change(&mut node);
    ProbeReport {
        gtid: false,
        galera: Some(node),
        ..ProbeReport::new(Family::MariaDb)
    }
}

fn galera() -> World {
    let mut world = world(3);
    for (id, name) in [(A, "n2"), (B, "n1"), (C, "n3")] {
        world.report(id, node(name, |_| {}));
    }
    world
}

#[test]
fn one_galera_node_takes_writes_the_same_for_all() {
    let world = galera();
    assert_eq!(world.primary(), Some(B), "the first by its name");
    assert_eq!(world.role(A), Role::Replica);
    assert_eq!((world.unfit(A), world.unfit(C)), (None, None));
}

#[test]
fn a_galera_node_that_is_not_synced_takes_nothing() {
    use GaleraState::{Donor, Joined, Joining};
    for state in [Joining, Donor, Joined] {
        let mut world = galera();
        world.report(B, node("n1", |node| node.state = state));
        assert_eq!(world.primary(), Some(A), "the next takes over");
        assert_eq!(world.unfit(B), Some(Unfit::NotSynced(state)));
        world.report(B, node("n1", |_| {}));
        assert_eq!(world.primary(), Some(B));
    }
    let mut world = galera();
    world.report(B, node("n1", |node| node.ready = false));
    assert_eq!(world.primary(), Some(A));
}

#[test]
fn the_last_galera_nodes_may_be_donors_but_not_without_a_majority() {
    let mut world = galera();
    world.fail(A, Cause::Refused);
    world.fail(C, Cause::Refused);
    world.report(B, node("n1", |node| node.state = GaleraState::Donor));
    assert_eq!((world.primary(), world.unfit(B)), (Some(B), None));
    world.report(B, node("n1", |node| node.primary_component = false));
    assert_eq!(world.primary(), None);
    assert_eq!(world.unfit(B), Some(Unfit::NoQuorum));
    assert_eq!(world.topology.snapshot().without, Some(NoPrimary::NoQuorum));
}

#[test]
fn a_drained_galera_node_hands_over_at_once() {
    let mut world = galera();
    world.see(B, ObservationKind::Drain { by: "ops".into() });
    assert_eq!(world.primary(), Some(A));
    world.see(B, ObservationKind::Resume { by: "ops".into() });
    assert_eq!(world.primary(), Some(B));
}

#[test]
fn a_member_that_was_started_outside_its_group_is_no_primary() {
    let outside = || ProbeReport {
        server_uuid: "a".into(),
        ..writable()
    };
    let mut world = group();
    world.fail(A, Cause::Refused);
    for id in [A, B, C] {
        world.report(id, outside_of(id, outside()));
    }
    assert_eq!(world.primary(), None, "the others have none yet");
    assert_eq!(world.unfit(A), Some(Unfit::Writable));
    // Nor where the others are gone.
    let mut world = group();
    for id in [A, B, C] {
        world.fail(id, Cause::Refused);
    }
    world.report(A, outside());
    assert_eq!(world.primary(), None);
    // Nor beside the primary that the group elects.
    let rest = [("b", ONLINE), ("c", ONLINE)];
    world.report(B, member("b", 4, &rest, "b"));
    world.report(C, member("c", 4, &rest, "b"));
    world.report(A, outside());
    world.report(C, member("c", 4, &rest, "b"));
    assert_eq!(world.primary(), Some(B));
    assert!(world.topology.snapshot().conflict.is_empty());
}

/// A's report, and members that have no primary.
fn outside_of(id: ServerId, a: ProbeReport) -> ProbeReport {
    let rest = [("b", ONLINE), ("c", ONLINE)];
    match id {
        A => a,
        B => member("b", 4, &rest, ""),
        _ => member("c", 4, &rest, ""),
    }
}

#[test]
fn a_group_may_be_fed_from_outside() {
    let mut world = world(3);
    let pair = [("b", ONLINE), ("c", ONLINE)];
    let source = || ProbeReport {
        server_uuid: "a".into(),
        ..writable()
    };
    let fed = |receiver| {
        let mut report = member("b", 2, &pair, "b");
        report.replication = Some(ReplicationStatus {
            source_uuid: "a".into(),
            receiver,
            ..replication()
        });
        report
    };
    world.report(A, source());
    world.report(B, fed(Receiver::Running));
    world.report(C, member("c", 2, &pair, "b"));
    assert_eq!(world.primary(), Some(A));
    world.report(B, fed(Receiver::Stopped));
    assert_eq!(world.primary(), Some(A), "it is set to follow");
    world.fail(B, Cause::Refused);
    assert_eq!(world.primary(), Some(A), "and was when it was last seen");
    world.report(B, member("b", 2, &pair, "b"));
    world.report(A, source());
    world.report(C, member("c", 2, &pair, "b"));
    assert_eq!(world.primary(), Some(B), "it follows no more");
}

/// What a member says of a group whose members all take writes.
fn one_of_many(of: &str) -> ProbeReport {
    let mut report = member(of, 3, &all(ONLINE), of);
    if let Some(view) = &mut report.group {
        view.members.iter_mut().for_each(|it| it.primary = true);
    }
    report
}

#[test]
fn of_many_writing_members_another_takes_over_from_one_that_is_drained() {
    let mut world = world(3);
    for (id, uuid) in [(A, "a"), (B, "b"), (C, "c")] {
        world.report(id, one_of_many(uuid));
    }
    assert_eq!(world.primary(), Some(A));
    world.see(A, ObservationKind::Drain { by: "ops".into() });
    assert_eq!(world.primary(), Some(B));
    world.report(A, one_of_many("a"));
    assert_eq!(world.primary(), Some(B), "it stays drained");
    world.see(A, ObservationKind::Resume { by: "ops".into() });
    assert!(world.primary().is_some());
}

fn sized(name: &str, size: u32) -> ProbeReport {
    node(name, |node| node.size = size)
}

#[test]
fn two_components_of_one_cluster_are_a_conflict() {
    let mut world = galera();
    // C was cut off, and somebody has bootstrapped it.
    world.report(A, sized("n2", 2));
    world.report(B, sized("n1", 2));
    assert_eq!(world.primary(), Some(B));
    world.report(C, sized("n3", 1));
    let snapshot = world.topology.snapshot();
    assert_eq!(snapshot.primary, None);
    assert_eq!(snapshot.conflict, [A, B, C]);
    assert_eq!(snapshot.without, Some(NoPrimary::Conflict));
    assert_eq!(
        [A, B, C].map(|id| world.unfit(id)),
        [None, None, Some(Unfit::Conflict)],
        "reads go on where the writes were"
    );
    // The operator sets the wrong one aside, or it joins again.
    world.see(C, ObservationKind::Drain { by: "ops".into() });
    assert_eq!(world.primary(), Some(B));
    world.see(C, ObservationKind::Resume { by: "ops".into() });
    assert_eq!(world.primary(), None);
    world.report(C, sized("n3", 3));
    assert_eq!(world.primary(), Some(B));
}

#[test]
fn two_components_of_one_size_are_a_conflict_and_one_node_goes_on_reading() {
    let mut world = galera();
    world.fail(C, Cause::Refused);
    world.report(A, sized("n2", 1));
    world.report(B, sized("n1", 1));
    assert_eq!(world.topology.snapshot().conflict, [A, B]);
    assert_eq!(world.unfit(A), Some(Unfit::Conflict));
    assert_eq!(world.unfit(B), None);
}

#[test]
fn two_galera_clusters_are_a_conflict() {
    let mut world = galera();
    let other = |node: &mut GaleraNode| {
        node.cluster = "9c01".into();
        node.size = 1;
    };
    world.report(B, node("n1", other));
    assert_eq!(world.topology.snapshot().conflict, [A, B, C]);
    // Also where sizes are large enough.
    let mut world = galera();
    world.fail(A, Cause::Refused);
    world.report(B, node("n1", |node| node.cluster = "9c01".into()));
    assert_eq!(world.topology.snapshot().conflict, [B, C]);
}

#[test]
fn nodes_that_join_leave_and_restart_are_no_conflict() {
    let calm = |world: &World| {
        let snapshot = world.topology.snapshot();
        assert_eq!(snapshot.conflict, []);
        assert!(snapshot.primary.is_some());
    };
    // C joins a cluster of two, in any order of answers.
    for order in [[A, B, C], [B, C, A], [C, A, B], [C, B, A]] {
        let mut world = world(3);
        let names = ["n2", "n1", "n3"];
        world.report(A, sized("n2", 2));
        world.report(B, sized("n1", 2));
        let outside = |node: &mut GaleraNode| {
            node.primary_component = false;
            node.size = 0;
        };
        world.report(C, node("n3", outside));
        calm(&world);
        for id in order {
            world.report(id, sized(names[id.index()], 3));
            calm(&world);
        }
        // A leaves in order, then is started again.
        world.report(C, sized("n3", 2));
        calm(&world);
        world.fail(A, Cause::ShuttingDown);
        calm(&world);
        world.report(B, sized("n1", 2));
        world.fail(A, Cause::Refused);
        calm(&world);
        let joining = |node: &mut GaleraNode| node.state = GaleraState::Joining;
        world.report(A, node("n2", joining));
        calm(&world);
        for id in order {
            world.report(id, sized(names[id.index()], 3));
            calm(&world);
        }
    }
}
