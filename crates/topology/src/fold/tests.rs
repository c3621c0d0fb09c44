use super::*;
use crate::{ConfiguredRole, Family, GtidSet, ProbeReport, Receiver, ReplicationStatus, Role};

const A: ServerId = ServerId(0);
const B: ServerId = ServerId(1);
const C: ServerId = ServerId(2);

/// A topology with a clock of its own.
struct World {
    topology: Topology,
    now: Millis,
}

fn world(servers: u16) -> World {
    let specs = (0..servers).map(|id| ServerSpec::new(&format!("s{id}:3306")));
    with(specs.collect())
}

fn with(specs: Vec<ServerSpec>) -> World {
    World {
        topology: Topology::new(Options::default(), specs),
        now: Millis(1_000),
    }
}

impl World {
    fn see(&mut self, server: ServerId, kind: ObservationKind) -> Vec<ChangeEvent> {
        self.now.0 += 10;
        self.topology.fold(Observation {
            server,
            at: self.now,
            kind,
        })
    }

    fn report(&mut self, server: ServerId, report: ProbeReport) -> Vec<ChangeEvent> {
        self.see(server, ObservationKind::ProbeOk(Box::new(report)))
    }

    fn fail(&mut self, server: ServerId, cause: Cause) -> Vec<ChangeEvent> {
        let text = "".into();
        self.see(server, ObservationKind::ProbeFailed { cause, text })
    }

    fn primary(&self) -> Option<ServerId> {
        self.topology.snapshot().primary
    }

    fn unfit(&self, server: ServerId) -> Option<Unfit> {
        self.topology.snapshot().servers[server.index()].unfit
    }

    fn role(&self, server: ServerId) -> Role {
        self.topology.snapshot().servers[server.index()].role
    }

    fn health(&self, server: ServerId) -> Health {
        self.topology.snapshot().servers[server.index()].health
    }
}

/// A primary and two replicas of it, all seen once.
fn cluster() -> World {
    let mut world = world(3);
    world.report(A, writable());
    world.report(B, replica());
    world.report(C, replica());
    assert_eq!(world.primary(), Some(A));
    world
}

fn writable() -> ProbeReport {
    ProbeReport::new(Family::MySql)
}

fn replication() -> ReplicationStatus {
    ReplicationStatus {
        source_host: "s0".into(),
        source_port: 3306,
        source_uuid: "".into(),
        source_server_id: 0,
        receiver: Receiver::Running,
        applier_running: true,
        lag_seconds: Some(0),
        last_error: "".into(),
    }
}

fn replica_with(change: impl FnOnce(&mut ReplicationStatus)) -> ProbeReport {
    let mut status = replication();
    change(&mut status);
    ProbeReport {
        read_only: true,
        super_read_only: true,
        replication: Some(status),
        ..writable()
    }
}

fn replica() -> ProbeReport {
    replica_with(|_| {})
}

fn read_only() -> ProbeReport {
    ProbeReport {
        read_only: true,
        ..writable()
    }
}

fn executed(text: &str, report: ProbeReport) -> ProbeReport {
    let uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    ProbeReport {
        executed: GtidSet::parse_mysql(format!("{uuid}:{text}").as_bytes()).unwrap(),
        ..report
    }
}

#[test]
fn roles_are_found_once_every_server_was_asked() {
    let mut world = world(3);
    world.report(A, writable());
    assert_eq!(world.primary(), None, "the others may be writable as well");
    world.report(B, replica());
    let events = world.fail(C, Cause::TimedOut);
    assert_eq!(world.primary(), Some(A));
    assert!(events.contains(&ChangeEvent::Primary {
        from: None,
        to: Some(A)
    }));
    assert_eq!(world.role(B), Role::Replica);
    assert_eq!(world.unfit(A), None);
    assert_eq!(world.unfit(B), None);
    assert_eq!(world.unfit(C), Some(Unfit::Down(Cause::TimedOut)));
    assert_eq!(world.topology.snapshot().fit_replicas().count(), 1);
}

#[test]
fn a_replica_without_read_only_is_still_a_replica() {
    let mut world = world(2);
    world.report(A, writable());
    let report = ProbeReport {
        read_only: false,
        super_read_only: false,
        ..replica()
    };
    world.report(B, report);
    assert_eq!((world.primary(), world.role(B)), (Some(A), Role::Replica));
}

#[test]
fn two_writable_servers_are_a_conflict() {
    let mut world = cluster();
    let events = world.report(B, writable());
    assert_eq!(world.primary(), None);
    assert_eq!(world.topology.snapshot().conflict, [A, B]);
    assert!(events.contains(&ChangeEvent::Conflict {
        servers: vec![A, B]
    }));
    assert_eq!(world.unfit(A), Some(Unfit::Conflict));
    assert_eq!(world.unfit(C), None, "reads go on");
    // It ends when one of them steps back; the new one is believed.
    world.report(A, read_only());
    assert_eq!(world.primary(), Some(B));
    assert!(world.topology.snapshot().conflict.is_empty());
    assert_eq!(world.unfit(A), Some(Unfit::NotReplicating));
}

#[test]
fn an_old_primary_that_comes_back_writable_gets_no_writes() {
    let mut world = cluster();
    world.fail(A, Cause::Refused);
    assert_eq!(world.primary(), None);
    world.report(B, writable());
    assert_eq!(world.primary(), Some(B));
    world.report(A, writable());
    assert_eq!(world.primary(), Some(B), "the others are asked first");
    world.report(B, writable());
    world.report(C, replica());
    assert_eq!(world.primary(), None);
    assert_eq!(world.topology.snapshot().conflict, [A, B]);
}

#[test]
fn a_stopped_receiver_alone_makes_no_rival() {
    let writable_replica = |receiver| ProbeReport {
        read_only: false,
        super_read_only: false,
        ..replica_with(|status| status.receiver = receiver)
    };
    let mut world = world(2);
    world.report(A, writable());
    world.report(B, writable_replica(Receiver::Running));
    assert_eq!(world.primary(), Some(A));
    world.report(B, writable_replica(Receiver::Stopped));
    assert_eq!(world.primary(), Some(A), "it is still set to follow A");
    assert_eq!(world.unfit(B), Some(Unfit::ReceiverStopped));
    // Once A was away, nobody knows any more.
    world.fail(A, Cause::Refused);
    assert_eq!(world.primary(), Some(B));
    world.report(A, writable());
    world.report(B, writable_replica(Receiver::Stopped));
    assert_eq!(world.primary(), None);
}

#[test]
fn fitness_follows_the_replication_status() {
    type Change = fn(&mut ReplicationStatus);
    let table: &[(Change, Option<Unfit>)] = &[
        (|_| {}, None),
        (|s| s.lag_seconds = Some(30), None),
        (
            |s| s.lag_seconds = Some(31),
            Some(Unfit::Lagging { seconds: 31 }),
        ),
        (|s| s.lag_seconds = None, None),
        (|s| s.applier_running = false, Some(Unfit::ApplierStopped)),
        (
            |s| {
                s.applier_running = false;
                s.last_error = "duplicate key".into();
            },
            Some(Unfit::ApplierError),
        ),
        (
            |s| s.receiver = Receiver::Stopped,
            Some(Unfit::ReceiverStopped),
        ),
        (
            |s| s.receiver = Receiver::Connecting,
            Some(Unfit::ReceiverDisconnected),
        ),
    ];
    for (change, expected) in table {
        let mut world = cluster();
        world.report(B, replica_with(*change));
        assert_eq!(world.unfit(B), *expected);
        // It comes back by itself.
        world.report(B, replica());
        assert_eq!(world.unfit(B), None);
    }
}

#[test]
fn replicas_keep_serving_reads_while_there_is_no_primary() {
    let mut world = cluster();
    world.fail(A, Cause::Refused);
    let cut = |status: &mut ReplicationStatus| {
        status.receiver = Receiver::Connecting;
        status.lag_seconds = None;
    };
    world.report(B, replica_with(cut));
    world.report(
        C,
        replica_with(|status| status.receiver = Receiver::Stopped),
    );
    assert_eq!((world.unfit(B), world.unfit(C)), (None, None));
    // In a planned move, the old primary is only read only.
    world.report(A, read_only());
    assert_eq!((world.primary(), world.unfit(A)), (None, None));
}

#[test]
fn a_lag_that_only_grows_is_reported_once() {
    let mut world = cluster();
    let lagging = |seconds| replica_with(|status| status.lag_seconds = Some(seconds));
    assert_eq!(world.report(B, lagging(40)).len(), 1);
    assert_eq!(world.report(B, lagging(41)), []);
    assert_eq!(world.unfit(B), Some(Unfit::Lagging { seconds: 41 }));
}

#[test]
fn lag_is_the_age_of_the_oldest_position_that_a_replica_lacks() {
    let mut world = cluster();
    let lag = |world: &World| world.topology.snapshot().servers[B.index()].lag_seconds;
    world.report(A, executed("1-10", writable()));
    world.report(B, executed("1-10", replica()));
    assert_eq!(lag(&world), Some(0));
    world.report(A, executed("1-20", writable()));
    world.now.0 += 5_000;
    world.report(A, executed("1-30", writable()));
    world.now.0 += 2_000;
    world.report(B, executed("1-10", replica()));
    assert_eq!(lag(&world), Some(7), "since 11 to 20 were there");
    world.report(B, executed("1-25", replica()));
    assert_eq!(lag(&world), Some(2), "since 26 to 30 were there");
    world.report(B, executed("1-30", replica()));
    assert_eq!(lag(&world), Some(0));
    // An idle primary does not age.
    world.now.0 += 60_000;
    world.report(A, executed("1-30", writable()));
    world.now.0 += 60_000;
    world.report(B, executed("1-30", replica()));
    assert_eq!((lag(&world), world.unfit(B)), (Some(0), None));
    // What the replica says of a transaction's clock does not count, a transaction of its own neither.
    let odd = replica_with(|status| status.lag_seconds = Some(1_000_000));
    world.report(B, executed("1-30:99", odd));
    assert_eq!((lag(&world), world.unfit(B)), (Some(0), None));
    world.report(A, executed("1-31", writable()));
    world.now.0 += 31_000;
    world.report(B, executed("1-30", replica()));
    assert_eq!(world.unfit(B), Some(Unfit::Lagging { seconds: 31 }));
}

#[test]
fn the_lag_of_a_long_sleeper_is_still_known_roughly() {
    let mut world = cluster();
    for second in 1..=1_000 {
        world.now.0 += 990;
        world.report(A, executed(&format!("1-{}", second * 10), writable()));
    }
    world.report(B, executed("1-10", replica()));
    let lag = world.topology.snapshot().servers[B.index()].lag_seconds;
    assert!(
        lag.is_some_and(|lag| (100..=1_000).contains(&lag)),
        "{lag:?}"
    );
}

#[test]
fn who_was_behind_before_anybody_looked_says_by_how_much() {
    let mut world = cluster();
    world.report(A, executed("1-100", writable()));
    let behind = |seconds| replica_with(|status| status.lag_seconds = Some(seconds));
    world.report(B, executed("1-10", behind(3_600)));
    assert_eq!(world.unfit(B), Some(Unfit::Lagging { seconds: 3_600 }));
    world.report(B, executed("1-100", behind(0)));
    assert_eq!(world.unfit(B), None);
}

#[test]
fn what_no_replica_will_ever_have_is_not_to_be_waited_for() {
    let mut world = cluster();
    let never = |world: &World| {
        let snapshot = world.topology.snapshot();
        snapshot.unreplicated.as_ref().map(|set| set.to_string())
    };
    world.report(A, executed("1-20", writable()));
    // Both were set up from a copy without 1 to 10, and are not late for it.
    for (last, seconds) in [(20, 0), (21, 61), (22, 1)] {
        world.now.0 += seconds * 1_000;
        for replica in [B, C] {
            world.report(replica, executed(&format!("11-{last}"), replica_now()));
        }
        world.report(A, executed(&format!("1-{last}"), writable()));
        assert_eq!(world.unfit(B), None);
    }
    for replica in [B, C] {
        world.report(replica, executed("11-22", replica_now()));
    }
    world.report(A, executed("1-22", writable()));
    assert!(
        never(&world).is_some_and(|set| set.ends_with(":1-10")),
        "{:?}",
        never(&world)
    );
    // As long as one may yet get it, it is waited for.
    world.now.0 += 2_000;
    world.report(A, executed("1-30", writable()));
    world.now.0 += 2_000;
    world.report(A, executed("1-31", writable()));
    assert_eq!(never(&world), None, "both are late");
}

fn replica_now() -> ProbeReport {
    replica_with(|status| status.lag_seconds = Some(0))
}

#[test]
fn a_server_that_comes_back_starts_slowly() {
    let share = |world: &World| world.topology.snapshot().servers[B.index()].share;
    let mut world = cluster();
    assert_eq!(share(&world), 100, "from the start it is there in full");
    world.fail(B, Cause::Refused);
    world.now.0 += 3_000;
    world.report(B, replica());
    assert_eq!(share(&world), 10);
    world.now.0 += 4_990;
    world.report(B, replica());
    assert_eq!(share(&world), 55);
    world.now.0 += 5_000;
    world.report(C, replica());
    assert_eq!(share(&world), 100, "also by the time of others' answers");
}

#[test]
fn one_lost_answer_is_a_suspicion_two_are_a_verdict() {
    let mut world = cluster();
    world.fail(A, Cause::TimedOut);
    let since = world.now;
    assert_eq!(world.health(A), Health::Suspect { since });
    assert_eq!(world.primary(), Some(A));
    world.fail(A, Cause::TimedOut);
    let cause = Cause::TimedOut;
    assert_eq!(world.health(A), Health::Down { since, cause });
    assert_eq!(world.primary(), None);
    world.report(A, writable());
    assert_eq!((world.health(A), world.primary()), (Health::Up, None));
    world.report(B, replica());
    assert_eq!(world.primary(), None, "the others are asked first");
    world.report(C, replica());
    assert_eq!(world.primary(), Some(A));
    world.fail(A, Cause::TimedOut);
    assert_eq!(world.primary(), Some(A), "the count starts anew");
}

#[test]
fn a_refused_connection_is_a_verdict_at_once() {
    let mut world = cluster();
    world.see(A, ObservationKind::LiveError(Cause::Refused));
    assert_eq!(world.primary(), None);
}

#[test]
fn live_errors_ask_for_a_probe_and_judge_nothing() {
    let mut world = cluster();
    for _ in 0..100 {
        let events = world.see(A, ObservationKind::LiveError(Cause::Lost));
        assert!(events.contains(&ChangeEvent::Suspected { server: A }));
    }
    assert_eq!(world.primary(), Some(A));
    world.report(A, writable());
    assert_eq!(world.health(A), Health::Up);
    assert_eq!(world.see(A, ObservationKind::LiveError(Cause::Busy)), []);
}

#[test]
fn a_refused_write_takes_the_primary_away_until_it_is_asked_again() {
    let mut world = cluster();
    let events = world.see(A, ObservationKind::RefusedWrite);
    assert!(events.contains(&ChangeEvent::Suspected { server: A }));
    assert_eq!(world.primary(), None);
    world.report(A, writable());
    assert_eq!(world.primary(), Some(A));
}

#[test]
fn a_server_that_cannot_be_asked_is_no_primary_and_takes_no_reads() {
    let mut world = world(2);
    world.report(A, writable());
    world.fail(B, Cause::Denied);
    assert_eq!(world.primary(), Some(A));
    assert_eq!(world.health(B), Health::Up);
    assert_eq!(world.unfit(B), Some(Unfit::NotObservable(Cause::Denied)));
    // A primary that is merely full stays the primary.
    for _ in 0..5 {
        world.fail(A, Cause::Busy);
    }
    assert_eq!((world.primary(), world.unfit(A)), (Some(A), None));
    // A replica that was well is believed once, then no longer.
    world.report(B, replica());
    world.fail(B, Cause::Denied);
    assert_eq!(world.unfit(B), None);
    world.fail(B, Cause::Denied);
    assert_eq!(world.unfit(B), Some(Unfit::NotObservable(Cause::Denied)));
}

/// It falls behind by no more than a second in each.
#[test]
fn a_busy_replica_is_believed_until_it_may_be_too_far_behind() {
    for cause in [Cause::Busy, Cause::Slow] {
        let mut world = cluster();
        world.now.0 += 60_000;
        world.fail(B, cause);
        assert_eq!(world.unfit(B), None, "once");
        world.report(B, replica());
        for _ in 0..5 {
            world.now.0 += 5_900;
            world.fail(B, cause);
            assert_eq!((world.health(B), world.unfit(B)), (Health::Up, None));
        }
        world.now.0 += 5_900;
        world.fail(B, cause);
        assert_eq!(world.unfit(B), Some(Unfit::NotObservable(cause)));
        world.report(B, replica());
        assert_eq!(world.unfit(B), None);
        // One that came back since was not asked yet.
        world.fail(B, Cause::Refused);
        world.fail(B, cause);
        assert_eq!(world.unfit(B), Some(Unfit::NotObservable(cause)));
    }
}

#[test]
fn a_single_server_is_used_whatever_is_known_of_it() {
    let mut world = world(1);
    assert_eq!((world.primary(), world.unfit(A)), (Some(A), None));
    world.fail(A, Cause::Denied);
    assert_eq!((world.primary(), world.unfit(A)), (Some(A), None));
    world.report(A, replica_with(|status| status.applier_running = false));
    assert_eq!((world.primary(), world.role(A)), (None, Role::Replica));
    assert_eq!(world.unfit(A), None, "reads only");
    let report = ProbeReport {
        replication: Some(replication()),
        ..writable()
    };
    world.report(A, report);
    assert_eq!(world.primary(), Some(A), "replicating, but writable");
    world.fail(A, Cause::Refused);
    assert_eq!((world.primary(), world.unfit(A)), (Some(A), None));
}

#[test]
fn fixed_roles_are_not_asked_for() {
    let mut specs: Vec<_> = ["a:1", "b:2", "c:3"].map(ServerSpec::new).into();
    specs[1].role = ConfiguredRole::Primary;
    specs[2].role = ConfiguredRole::Replica;
    let mut world = with(specs);
    assert_eq!(world.primary(), Some(B));
    world.report(A, writable());
    world.report(B, writable());
    world.report(C, writable());
    assert_eq!(world.primary(), Some(B));
    assert_eq!(world.role(C), Role::Replica);
    world.fail(B, Cause::Refused);
    assert_eq!(world.primary(), None, "and nobody takes its place");
}

#[test]
fn a_configured_replica_is_never_elected() {
    let mut specs: Vec<_> = ["a:1", "b:2"].map(ServerSpec::new).into();
    specs[1].role = ConfiguredRole::Replica;
    let mut world = with(specs);
    world.report(A, writable());
    world.report(B, writable());
    assert_eq!(world.primary(), Some(A));
    world.fail(A, Cause::Refused);
    assert_eq!(world.primary(), None);
}

#[test]
fn other_reasons_to_take_no_reads() {
    let mut world = cluster();
    let offline = ProbeReport {
        offline_mode: true,
        ..replica()
    };
    world.report(B, offline);
    assert_eq!(world.unfit(B), Some(Unfit::Offline));
    let family = Family::MariaDb;
    let stranger = ProbeReport {
        family,
        executed: GtidSet::new(family),
        ..replica()
    };
    world.report(C, stranger);
    assert_eq!(world.unfit(C), Some(Unfit::OtherFamily));
    let mut specs: Vec<_> = ["a:1", "b:2"].map(ServerSpec::new).into();
    specs[1].weight = 0;
    let mut world = with(specs);
    world.report(A, writable());
    world.report(B, replica());
    assert_eq!(world.unfit(B), Some(Unfit::ZeroWeight));
}

#[test]
fn another_identity_or_older_data_is_another_incarnation() {
    let mut world = cluster();
    let incarnation = |world: &World| world.topology.snapshot().servers[B.index()].incarnation;
    world.report(B, executed("1-10", replica()));
    world.report(B, executed("1-20", replica()));
    assert_eq!(incarnation(&world), 0);
    let events = world.report(B, executed("1-5", replica()));
    assert!(events.contains(&ChangeEvent::Identity { server: B }));
    assert_eq!(incarnation(&world), 1);
    let renamed = ProbeReport {
        server_uuid: "other".into(),
        ..executed("1-5", replica())
    };
    world.report(B, renamed);
    assert_eq!(incarnation(&world), 2);
}

#[test]
fn generation_and_epoch_count_what_they_say() {
    let mut world = cluster();
    let before = world.topology.snapshot();
    world.see(B, ObservationKind::Resume { by: "ops".into() });
    assert_eq!(world.topology.snapshot().generation, before.generation);
    world.report(B, executed("1-10", replica()));
    let after = world.topology.snapshot();
    assert!(after.generation > before.generation);
    assert_eq!(after.epoch, before.epoch);
    world.fail(A, Cause::Refused);
    assert_eq!(world.topology.snapshot().epoch, before.epoch + 1);
    assert_eq!(world.topology.snapshot().version_number, 90700);
    assert_eq!(world.topology.snapshot().family, Some(Family::MySql));
}

#[test]
fn a_drained_primary_stays_the_primary_and_takes_no_statements() {
    let mut world = cluster();
    let drain = ObservationKind::Drain { by: "ops".into() };
    let events = world.see(A, drain.clone());
    let by = "ops".into();
    assert_eq!(events[0], ChangeEvent::Draining { server: A, by });
    let snapshot = world.topology.snapshot();
    assert_eq!(snapshot.primary, None);
    assert_eq!(snapshot.without, Some(NoPrimary::Draining(A)));
    assert_eq!(world.role(A), Role::Primary);
    assert_eq!(world.unfit(A), Some(Unfit::Draining));
    assert_eq!(world.see(A, drain), [], "said once");
    assert_eq!(world.unfit(B), None, "reads go on");
    // Another becomes the primary: it takes over. The drained one comes back as a replica.
    world.report(A, read_only());
    world.report(B, writable());
    assert_eq!(world.primary(), Some(B));
    world.report(A, replica());
    assert_eq!(world.unfit(A), Some(Unfit::Draining));
    world.see(A, ObservationKind::Resume { by: "ops".into() });
    assert_eq!(world.unfit(A), None);
}

#[test]
fn a_resumed_primary_takes_statements_again() {
    let mut world = cluster();
    world.see(A, ObservationKind::Drain { by: "ops".into() });
    world.report(A, writable());
    assert_eq!(world.primary(), None, "an answer changes nothing");
    world.see(A, ObservationKind::Resume { by: "ops".into() });
    assert_eq!((world.primary(), world.unfit(A)), (Some(A), None));
    assert_eq!(world.topology.snapshot().without, None);
}

#[test]
fn why_nobody_takes_writes_is_said() {
    let without = |world: &World| world.topology.snapshot().without;
    assert_eq!(without(&world(2)), Some(NoPrimary::NotAsked));
    let mut world = cluster();
    assert_eq!(without(&world), None);
    world.report(A, read_only());
    assert_eq!(without(&world), Some(NoPrimary::Demoted(A)));
    world.fail(A, Cause::Refused);
    assert_eq!(without(&world), Some(NoPrimary::Lost(A)));
    world.report(B, replica());
    assert_eq!(without(&world), Some(NoPrimary::Unreachable(A)));
    world.report(A, writable());
    world.report(C, replica());
    world.report(B, writable());
    assert_eq!(without(&world), Some(NoPrimary::Conflict));
}

#[test]
fn servers_that_are_not_in_the_list_are_ignored() {
    let mut world = cluster();
    assert_eq!(world.report(ServerId(9), writable()), []);
}

mod discovery;
mod groups;
mod heads;
mod names;
mod returns;
mod simulation;
