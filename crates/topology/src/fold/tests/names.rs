//! Names that come to mean other machines.

use super::*;
use crate::{DiscoveryOptions, Kin};

fn of(family: Family, uuid: &str, server_id: u32, report: ProbeReport) -> ProbeReport {
    ProbeReport {
        family,
        server_uuid: uuid.into(),
        server_id,
        identity: format!("host:{uuid}:{server_id}").into(),
        ..report
    }
}

fn follows(uuid: &str, server_id: u32) -> ProbeReport {
    replica_with(|status| {
        status.source_uuid = uuid.into();
        status.source_server_id = server_id;
    })
}

#[test]
fn a_machine_of_another_cluster_is_told_on_mysql() {
    let my = |uuid, report| of(Family::MySql, uuid, 1, report);
    let mut world = world(2);
    world.report(A, executed("1-9", my("a", writable())));
    world.report(B, executed("1-9", my("b", follows("a", 1))));
    let is_kin = |report| world.topology.kin(A, &report) == Kin::Yes;
    assert!(
        is_kin(my("b", follows("a", 1))),
        "it is known by another name"
    );
    assert!(is_kin(my("c", follows("a", 1))), "it follows one");
    let restored = executed("1-9", my("c", writable()));
    assert!(is_kin(restored), "it has all that was written");
    let older = executed("1-5", my("c", writable()));
    assert!(!is_kin(older), "it lacks something");
    assert!(!is_kin(my("x", writable())));
    assert!(!is_kin(my("y", follows("x", 1))), "another's replica");
}

#[test]
fn a_machine_of_another_cluster_is_told_on_mariadb() {
    let maria = |host: u32, server_id, report: ProbeReport| {
        let mut report = of(Family::MariaDb, "", server_id, report);
        report.identity = format!("host{host}:3306").into();
        report
    };
    let mut world = world(2);
    world.report(A, maria(1, 1, writable()));
    world.report(B, maria(2, 2, follows("", 1)));
    let kin = |report| world.topology.kin(A, &report);
    assert_eq!(kin(maria(2, 2, follows("", 1))), Kin::Yes, "it is known");
    let followed = Kin::IfItFollows(A);
    assert_eq!(kin(maria(3, 3, follows("", 1))), followed, "a number");
    assert_eq!(kin(maria(3, 3, follows("", 7))), Kin::No);
    assert_eq!(kin(maria(9, 1, writable())), Kin::No, "another's first");
    world.fail(A, Cause::Refused);
    let kin = |report| world.topology.kin(A, &report);
    let source = kin(maria(3, 1, writable()));
    assert_eq!(
        source,
        Kin::IfFollowedBy(B),
        "it may have come up elsewhere"
    );
}

impl World {
    fn means(&mut self, name: ServerId, addresses: &[&str]) -> Vec<ChangeEvent> {
        let addresses = addresses.iter().map(|one| (*one).into()).collect();
        self.see(name, ObservationKind::Means { addresses })
    }

    /// The servers that are listed to operators.
    fn shown(&self) -> Vec<String> {
        let snapshot = self.topology.snapshot();
        let views = snapshot.servers.iter().filter(|view| !view.gone);
        views.map(|view| view.address.to_string()).collect()
    }
}

fn number(id: u16, report: ProbeReport) -> ProbeReport {
    of(Family::MySql, &format!("u{id}"), u32::from(id), report)
}

#[test]
fn a_name_of_several_addresses_is_several_servers() {
    let mut spec = ServerSpec::new("db:3306");
    (spec.weight, spec.zone, spec.role) = (7, "a".into(), ConfiguredRole::Primary);
    let mut world = with(vec![spec]);
    let events = world.means(A, &["1:3306", "2:3306", "3:3306"]);
    assert!(events.contains(&ChangeEvent::Found { server: B, by: A }));
    assert!(events.contains(&ChangeEvent::Several { server: A }));
    assert_eq!(world.shown(), ["1:3306", "2:3306", "3:3306"]);
    let (one, two, three) = (ServerId(1), ServerId(2), ServerId(3));
    world.report(one, number(1, replica()));
    world.report(two, number(2, writable()));
    world.report(three, number(3, replica()));
    assert_eq!(world.primary(), Some(two), "the servers show it");
    let snapshot = world.topology.snapshot();
    let view = snapshot.server(three).expect("it is there");
    assert_eq!((view.weight, &*view.zone, view.entry()), (7, "a", A));
    assert!(view.listed && !view.is_hearsay());
    // One goes, another comes, and one comes back.
    world.means(A, &["2:3306", "3:3306", "4:3306"]);
    assert_eq!(world.shown(), ["2:3306", "3:3306", "4:3306"]);
    assert_eq!(world.unfit(one), Some(Unfit::Gone));
    assert_eq!(world.primary(), Some(two));
    world.means(A, &["1:3306", "2:3306"]);
    assert_eq!(world.shown(), ["1:3306", "2:3306"]);
    assert_eq!(world.unfit(one), Some(Unfit::NotProbed), "it is asked anew");
    // The primary goes with its address, as a machine does that a name has left.
    world.means(A, &["1:3306", "4:3306"]);
    assert_eq!(world.primary(), None);
    world.means(A, &["9:3306"]);
    assert_eq!(world.shown(), ["9:3306"]);
}

#[test]
fn a_primary_keeps_the_name_that_it_has() {
    let mut world = world(1);
    world.report(A, number(1, writable()));
    assert_eq!(world.primary(), Some(A));
    world.means(A, &["1:3306", "2:3306"]);
    world.report(B, number(1, writable()));
    world.report(C, number(2, replica()));
    assert_eq!(world.primary(), Some(A));
    assert_eq!(world.unfit(B), Some(Unfit::SameServer(A)));
    assert_eq!(world.unfit(C), None);
    world.report(A, number(1, replica()));
    world.report(C, number(2, writable()));
    world.report(B, number(1, replica()));
    assert_eq!(world.primary(), Some(C));
    assert_eq!(world.shown(), ["1:3306", "2:3306"]);
    assert_eq!(world.unfit(B), None);
}

#[test]
fn a_server_that_others_name_is_known_without_its_address() {
    let options = Options {
        discovery: Some(DiscoveryOptions::default()),
        ..Options::default()
    };
    let mut world = World {
        topology: Topology::new(options, vec![ServerSpec::new("db:3306")]),
        now: Millis(1_000),
    };
    world.means(A, &["1:3306", "2:3306"]);
    let mut first = number(1, writable());
    first.peers.push(crate::Peer {
        address: "pod-2:3306".into(),
        uuid: "u2".into(),
        server_id: 2,
        relation: crate::Relation::Replica,
    });
    world.report(C, number(2, replica()));
    world.report(B, first);
    world.means(A, &["1:3306"]);
    assert!(
        world.shown().contains(&"2:3306".to_owned()),
        "{:?}",
        world.shown()
    );
    assert_eq!(world.unfit(C), None);
}
