//! Servers that come back, old primaries, and servers that are not what they were.

use super::*;

fn without(world: &World) -> Option<NoPrimary> {
    world.topology.snapshot().without
}

fn follower_of_b() -> ProbeReport {
    executed(
        "1-20",
        replica_with(|status| status.source_host = "s1".into()),
    )
}

/// A is lost and B promoted; C follows B.
fn failed_over() -> World {
    let mut world = world(3);
    world.report(A, executed("1-10", writable()));
    world.report(B, executed("1-10", replica()));
    world.report(C, executed("1-10", replica()));
    world.fail(A, Cause::Refused);
    world.report(B, executed("1-20", writable()));
    world.report(C, follower_of_b());
    assert_eq!(world.primary(), Some(B));
    world
}

#[test]
fn an_old_primary_that_has_nothing_new_is_no_rival() {
    let mut world = failed_over();
    world.report(A, executed("1-10", writable()));
    world.report(B, executed("1-20", writable()));
    world.report(C, follower_of_b());
    assert_eq!((world.primary(), without(&world)), (Some(B), None));
    assert_eq!(world.unfit(A), Some(Unfit::Writable));
    assert_eq!(world.role(A), Role::Unknown);
    // A replica follows it as well.
    world.report(C, executed("1-10", replica()));
    assert_eq!(without(&world), Some(NoPrimary::Conflict));
    world.report(A, executed("1-10", read_only()));
    world.report(C, follower_of_b());
    world.report(A, executed("1-10", writable()));
    assert_eq!(without(&world), Some(NoPrimary::Conflict), "risen before");
    // Somebody writes to it.
    world.report(A, executed("1-10:99", writable()));
    assert_eq!(without(&world), Some(NoPrimary::Conflict));
    world.report(A, executed("1-10:99", read_only()));
    assert_eq!(world.primary(), Some(B));
}

#[test]
fn an_old_primary_with_transactions_of_its_own_is_a_conflict() {
    let mut world = failed_over();
    world.report(A, executed("1-10:99", writable()));
    assert_eq!(world.primary(), Some(B), "until the others are asked");
    world.report(B, executed("1-20", writable()));
    world.report(C, follower_of_b());
    assert_eq!(without(&world), Some(NoPrimary::Conflict));
    assert_eq!(world.unfit(C), None, "reads go on");
}

#[test]
fn who_watched_from_the_start_and_who_did_not_hold_writes_alike() {
    // Who did not see A fall cannot tell it from a server that is being promoted.
    let mut world = world(3);
    world.report(A, executed("1-10", writable()));
    world.report(B, executed("1-20", writable()));
    world.report(C, executed("1-20", replica()));
    assert_eq!(without(&world), Some(NoPrimary::Conflict));
}

#[test]
fn a_lost_primary_that_wakes_up_waits_for_the_others_word() {
    let mut world = world(3);
    world.report(A, executed("1-10", writable()));
    world.report(B, executed("1-10", replica()));
    world.report(C, executed("1-10", replica()));
    world.fail(A, Cause::TimedOut);
    world.fail(A, Cause::TimedOut);
    assert_eq!(world.primary(), None);
    // Promoted while A was paused; nobody has asked B since.
    world.report(A, executed("1-10", writable()));
    assert_eq!(world.primary(), None);
    world.report(C, executed("1-10", replica()));
    assert_eq!(world.primary(), None);
    world.report(B, executed("1-15", writable()));
    assert_eq!(world.primary(), None, "two are writable now");
    assert_eq!(without(&world), Some(NoPrimary::Conflict));
}

#[test]
fn a_primary_whose_data_went_back_waits_for_an_operator() {
    let mut world = cluster();
    world.report(A, executed("1-10", writable()));
    world.report(A, executed("1-5", writable()));
    assert_eq!(world.primary(), None);
    assert_eq!(without(&world), Some(NoPrimary::Doubtful(A)));
    assert_eq!(world.unfit(B), None, "reads go on");
    world.see(A, ObservationKind::Resume { by: "ops".into() });
    assert_eq!((world.primary(), without(&world)), (Some(A), None));
}

#[test]
fn a_stranger_at_the_primarys_address_waits_for_an_operator() {
    let mut world = cluster();
    world.report(A, executed("1-10", writable()));
    let stranger = ProbeReport {
        server_uuid: "stranger".into(),
        ..writable()
    };
    let events = world.report(A, stranger);
    assert!(events.contains(&ChangeEvent::Identity { server: A }));
    assert_eq!(without(&world), Some(NoPrimary::Doubtful(A)));
    // A replica that is promoted is no stranger, whatever it lacks.
    world.fail(A, Cause::Refused);
    world.report(B, executed("1-9", writable()));
    assert_eq!(world.primary(), Some(B));
    assert_eq!(world.topology.lacks(B), 1);
}

#[test]
fn what_a_promoted_replica_lacks_is_counted() {
    let mut world = cluster();
    world.report(A, executed("1-10", writable()));
    world.report(B, executed("1-7", replica()));
    assert_eq!(world.topology.lacks(B), 3);
}

#[test]
fn a_suspect_primary_that_its_replicas_have_lost_is_lost_at_once() {
    let cut = || replica_with(|status| status.receiver = Receiver::Connecting);
    let mut world = cluster();
    world.fail(A, Cause::TimedOut);
    world.report(B, cut());
    assert_eq!(world.primary(), Some(A), "one was not asked since");
    assert_eq!(world.unfit(B), None, "it is as good as it gets");
    world.report(C, cut());
    assert_eq!(world.primary(), None);
    // One that still receives speaks for it.
    let mut world = cluster();
    world.fail(A, Cause::TimedOut);
    world.report(B, cut());
    world.report(C, replica());
    assert_eq!(world.primary(), Some(A));
    // Without a probe of our own that failed it is their trouble.
    let mut world = cluster();
    world.see(A, ObservationKind::LiveError(Cause::Lost));
    world.report(B, cut());
    world.report(C, cut());
    assert_eq!(world.primary(), Some(A));
}

#[test]
fn a_primary_whose_commits_do_not_end_takes_no_further_writes() {
    let mut world = cluster();
    let stuck = ProbeReport {
        stuck_commits: 3,
        ..writable()
    };
    world.report(A, stuck);
    assert_eq!(world.primary(), None);
    assert_eq!(without(&world), Some(NoPrimary::Stalled(A)));
    assert_eq!(world.role(A), Role::Primary);
    assert_eq!(world.unfit(A), None, "reads go on");
    world.report(A, writable());
    assert_eq!(world.primary(), Some(A));
}

#[test]
fn a_slow_answer_is_no_silence() {
    let mut world = cluster();
    for _ in 0..10 {
        world.fail(A, Cause::Slow);
    }
    assert_eq!((world.primary(), world.health(A)), (Some(A), Health::Up));
}

#[test]
fn a_write_refused_after_the_probe_began_counts_beyond_its_answer() {
    let mut world = cluster();
    world.see(A, ObservationKind::RefusedWrite);
    let late = ProbeReport {
        round_trip_us: 30_000,
        ..writable()
    };
    world.report(A, late);
    assert_eq!(world.primary(), None, "it was asked before");
    world.report(A, writable());
    assert_eq!(world.primary(), Some(A));
}
