//! Servers that are found, known under two names, moved and forgotten.

use super::*;
use crate::{DiscoveryOptions, Peer, Relation};

fn finding(seeds: &[&str], change: impl FnOnce(&mut DiscoveryOptions)) -> World {
    let mut discovery = DiscoveryOptions::default();
    change(&mut discovery);
    let options = Options {
        discovery: Some(discovery),
        ..Options::default()
    };
    let specs = seeds.iter().map(|seed| ServerSpec::new(seed)).collect();
    World {
        topology: Topology::new(options, specs),
        now: Millis(1_000),
    }
}

fn peer(address: &str, uuid: &str, relation: Relation) -> Peer {
    Peer {
        address: address.into(),
        uuid: uuid.into(),
        server_id: 0,
        relation,
    }
}

fn naming(uuid: &str, report: ProbeReport, peers: Vec<Peer>) -> ProbeReport {
    ProbeReport {
        server_uuid: uuid.into(),
        identity: format!("host-of-{uuid}").into(),
        peers,
        ..report
    }
}

fn addresses(world: &World) -> Vec<String> {
    let snapshot = world.topology.snapshot();
    let views = snapshot.servers.iter().filter(|view| !view.gone);
    views.map(|view| view.address.to_string()).collect()
}

#[test]
fn from_a_replica_of_a_replica_everything_is_found() {
    let mut world = finding(&["c:1"], |_| {});
    let source = |address, uuid| vec![peer(address, uuid, Relation::Source)];
    let events = world.report(A, naming("c", replica(), source("b:1", "b")));
    assert!(events.contains(&ChangeEvent::Found { server: B, by: A }));
    assert_eq!(world.primary(), None);
    assert_eq!(world.unfit(B), Some(Unfit::NotProbed));
    world.report(B, naming("b", replica(), source("a:1", "a")));
    assert_eq!(world.primary(), None, "there may be more");
    let replicas = vec![
        peer("b:1", "b", Relation::Replica),
        peer("d:1", "d", Relation::Replica),
    ];
    world.report(C, naming("a", writable(), replicas));
    assert_eq!(addresses(&world), ["c:1", "b:1", "a:1", "d:1"]);
    assert_eq!(world.primary(), None);
    world.report(ServerId(3), naming("d", replica(), source("a:1", "a")));
    assert_eq!(world.primary(), Some(C));
}

#[test]
fn a_server_that_is_found_later_takes_nothing_from_the_primary() {
    let mut world = finding(&["a:1"], |_| {});
    world.report(A, naming("a", writable(), vec![]));
    assert_eq!(world.primary(), Some(A));
    let new = vec![peer("b:1", "b", Relation::Replica)];
    world.report(A, naming("a", writable(), new));
    assert_eq!(world.primary(), Some(A));
}

#[test]
fn a_seed_that_is_down_is_no_obstacle() {
    let mut world = finding(&["a:1", "b:1"], |_| {});
    world.fail(A, Cause::Refused);
    assert_eq!(world.primary(), None);
    world.report(B, naming("b", writable(), vec![]));
    assert_eq!(world.primary(), Some(B));
}

#[test]
fn a_seed_that_may_name_others_is_not_taken_for_the_only_server() {
    let world = finding(&["a:1"], |_| {});
    assert_eq!(world.primary(), None);
}

#[test]
fn addresses_are_translated() {
    let mut world = finding(&["a:1"], |options| {
        let there = ("10.0.0.2:3306".into(), "localhost:13306".into());
        options.translate = [there].into();
    });
    let named = vec![peer("10.0.0.2:3306", "b", Relation::Replica)];
    world.report(A, naming("a", writable(), named));
    assert_eq!(addresses(&world), ["a:1", "localhost:13306"]);
}

#[test]
fn who_is_known_by_its_identity_is_not_found_again() {
    let mut world = finding(&["a:1", "b:1"], |_| {});
    world.report(A, naming("a", writable(), vec![]));
    world.report(B, naming("b", replica(), vec![]));
    // By its own name for it, and its own.
    let named = vec![
        peer("10.0.0.2:3306", "b", Relation::Replica),
        peer("10.0.0.1:3306", "a", Relation::Member),
    ];
    world.report(A, naming("a", writable(), named));
    assert_eq!(addresses(&world), ["a:1", "b:1"]);
    // MariaDB says no more than the server_id.
    let mariadb = |id, report: ProbeReport, peers| ProbeReport {
        family: Family::MariaDb,
        executed: GtidSet::new(Family::MariaDb),
        server_id: id,
        peers,
        ..report
    };
    let mut world = finding(&["a:1", "b:1"], |_| {});
    world.report(B, mariadb(2, replica(), vec![]));
    let named = Peer {
        server_id: 2,
        ..peer("10.0.0.2:3306", "", Relation::Replica)
    };
    world.report(A, mariadb(1, writable(), vec![named]));
    assert_eq!(addresses(&world), ["a:1", "b:1"]);
}

#[test]
fn two_names_of_one_server_are_one_server() {
    let mut world = finding(&["db1:3306", "10.0.0.1:3306"], |_| {});
    world.report(A, naming("a", writable(), vec![]));
    let events = world.report(B, naming("a", writable(), vec![]));
    let (server, known_as) = (B, A);
    assert!(events.contains(&ChangeEvent::SameServer { server, known_as }));
    assert_eq!(world.primary(), Some(A), "and no rival");
    assert_eq!(world.unfit(B), Some(Unfit::SameServer(A)));
    let again = world.report(B, naming("a", writable(), vec![]));
    assert_eq!(again, [], "said once");
    // One name fails: the other stands in.
    world.fail(A, Cause::Resolve);
    world.fail(A, Cause::Resolve);
    world.report(B, naming("a", writable(), vec![]));
    assert_eq!((world.primary(), world.unfit(B)), (Some(B), None));
    // The first name answers again, and is the other name now: nothing moves.
    world.report(A, naming("a", writable(), vec![]));
    world.report(B, naming("a", writable(), vec![]));
    assert_eq!(world.primary(), Some(B));
    assert_eq!(world.unfit(A), Some(Unfit::SameServer(B)));
}

#[test]
fn copies_of_one_server_are_two_servers() {
    // A clone keeps the server_uuid until it is restarted without it.
    let mut world = finding(&["a:1", "b:1"], |_| {});
    world.report(A, naming("a", writable(), vec![]));
    let clone = ProbeReport {
        identity: "another host".into(),
        ..naming("a", writable(), vec![])
    };
    world.report(B, clone);
    assert_eq!(world.topology.snapshot().conflict, [A, B]);
}

#[test]
fn a_server_that_moved_is_found_at_its_new_address() {
    let mut world = finding(&["a:1"], |_| {});
    let at = |address| vec![peer(address, "b", Relation::Replica)];
    world.report(A, naming("a", writable(), at("10.0.0.2:3306")));
    world.report(B, naming("b", replica(), vec![]));
    world.fail(B, Cause::Refused);
    world.report(A, naming("a", writable(), at("10.0.0.9:3306")));
    assert_eq!(addresses(&world), ["a:1", "10.0.0.2:3306", "10.0.0.9:3306"]);
}

#[test]
fn who_is_down_and_named_by_nobody_is_forgotten_and_found_again() {
    let mut world = finding(&["a:1"], |options| options.forget_after_ms = 60_000);
    let named = || vec![peer("b:1", "b", Relation::Replica)];
    world.report(A, naming("a", writable(), named()));
    world.report(B, naming("b", replica(), vec![]));
    world.fail(B, Cause::Refused);
    world.now.0 += 50_000;
    world.report(A, naming("a", writable(), named()));
    world.now.0 += 50_000;
    world.report(A, naming("a", writable(), vec![]));
    assert_eq!(addresses(&world), ["a:1", "b:1"]);
    world.now.0 += 20_000;
    let events = world.report(A, naming("a", writable(), vec![]));
    assert!(events.contains(&ChangeEvent::Forgotten { server: B }));
    assert_eq!(addresses(&world), ["a:1"]);
    assert_eq!(world.unfit(B), Some(Unfit::Gone));
    assert_eq!(world.report(B, replica()), [], "an answer that was late");
    let before = world.topology.snapshot().servers[B.index()].incarnation;
    let events = world.report(A, naming("a", writable(), named()));
    assert!(events.contains(&ChangeEvent::Found { server: B, by: A }));
    let view = &world.topology.snapshot().servers[B.index()];
    assert!(!view.gone && view.incarnation > before);
    assert_eq!(view.health, Health::Unknown);
}

#[test]
fn a_configured_server_is_never_forgotten() {
    let mut world = finding(&["a:1", "b:1"], |options| options.forget_after_ms = 0);
    world.fail(B, Cause::Refused);
    world.now.0 += 1_000_000;
    world.report(A, naming("a", writable(), vec![]));
    assert_eq!(addresses(&world), ["a:1", "b:1"]);
}

#[test]
fn there_is_a_limit_and_it_is_said_once() {
    let mut world = finding(&["a:1"], |options| options.servers_max = 2);
    let named = |uuid: &str| peer(&format!("{uuid}:1"), uuid, Relation::Replica);
    let peers = || ["b", "c", "d"].map(named).to_vec();
    let events = world.report(A, naming("a", writable(), peers()));
    let told = |events: &[ChangeEvent]| {
        let many = |event: &&ChangeEvent| matches!(event, ChangeEvent::TooMany { .. });
        events.iter().filter(many).count()
    };
    assert_eq!(told(&events), 1);
    assert_eq!(addresses(&world), ["a:1", "b:1"]);
    assert_eq!(told(&world.report(A, naming("a", writable(), peers()))), 0);
}

#[test]
fn mariadb_servers_in_containers_differ_by_their_server_id_only() {
    let mut world = finding(&["a:1", "b:1"], |_| {});
    let container = |server_id, report| ProbeReport {
        family: Family::MariaDb,
        executed: GtidSet::new(Family::MariaDb),
        server_id,
        identity: "db 3306 /var/lib/mysql/".into(),
        ..report
    };
    world.report(A, container(1, writable()));
    world.report(B, container(2, replica()));
    assert_eq!((world.primary(), world.unfit(B)), (Some(A), None));
    let events = world.report(B, container(1, writable()));
    let (server, known_as) = (B, A);
    assert!(events.contains(&ChangeEvent::SameServer { server, known_as }));
}

#[test]
fn a_server_is_drained_and_resumed_by_all_its_names() {
    let drain = || ObservationKind::Drain { by: "ops".into() };
    let resume = || ObservationKind::Resume { by: "ops".into() };
    let draining = |world: &World| {
        let snapshot = world.topology.snapshot();
        [A, B].map(|id| snapshot.servers[id.index()].draining)
    };
    for name in [A, B] {
        for other in [A, B] {
            let mut world = finding(&["db1:3306", "10.0.0.1:3306"], |_| {});
            world.report(A, naming("a", writable(), vec![]));
            world.report(B, naming("a", writable(), vec![]));
            world.see(name, drain());
            assert_eq!(draining(&world), [true, true]);
            assert_eq!(world.primary(), None);
            // The other name takes over: it is the same server.
            world.fail(A, Cause::Resolve);
            world.fail(A, Cause::Resolve);
            world.report(B, naming("a", writable(), vec![]));
            let without = world.topology.snapshot().without;
            assert_eq!(without, Some(NoPrimary::Draining(B)));
            world.see(other, resume());
            assert_eq!(draining(&world), [false, false]);
            assert_eq!(world.primary(), Some(B));
            world.report(A, naming("a", writable(), vec![]));
            assert_eq!(draining(&world), [false, false]);
        }
    }
    // A name that is found later, and one that was drained before it was known for one.
    for drained in [A, B] {
        let mut world = finding(&["db1:3306", "10.0.0.1:3306"], |_| {});
        world.report(A, naming("a", writable(), vec![]));
        world.see(drained, drain());
        world.report(B, naming("a", writable(), vec![]));
        assert_eq!(draining(&world), [true, true]);
    }
}

#[test]
fn what_a_name_said_long_ago_counts_no_more_when_it_stands_in() {
    let mut world = finding(&["db1:3306", "10.0.0.1:3306", "c:1"], |_| {});
    world.report(A, naming("a", writable(), vec![]));
    world.report(B, naming("a", writable(), vec![]));
    world.report(C, naming("c", replica(), vec![]));
    world.fail(A, Cause::Refused);
    assert_eq!(world.unfit(B), Some(Unfit::NotProbed));
    assert_eq!(world.primary(), None, "it may have ended as well");
    world.report(B, naming("a", writable(), vec![]));
    assert_eq!(world.primary(), Some(B));
    // Another server answers at the name: that is news.
    world.report(A, naming("a", writable(), vec![]));
    assert_eq!(world.unfit(A), Some(Unfit::SameServer(B)));
    world.report(A, naming("d", replica(), vec![]));
    assert_eq!(world.unfit(A), None);
}

#[test]
fn who_was_not_named_for_long_is_forgotten_only_when_it_has_been_down_for_as_long() {
    let mut world = finding(&["a:1"], |options| options.forget_after_ms = 60_000);
    let named = vec![peer("b:1", "b", Relation::Replica)];
    world.report(A, naming("a", writable(), named));
    world.report(B, naming("b", replica(), vec![]));
    world.now.0 += 100_000;
    world.report(B, naming("b", replica(), vec![]));
    world.fail(B, Cause::Refused);
    world.report(A, naming("a", writable(), vec![]));
    assert_eq!(addresses(&world), ["a:1", "b:1"]);
    world.now.0 += 61_000;
    world.report(A, naming("a", writable(), vec![]));
    assert_eq!(addresses(&world), ["a:1"]);
}
