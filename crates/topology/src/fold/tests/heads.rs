//! Which server is the primary where the writable one is set to replicate, where read only has other names,
//! and where the configuration names one.

use super::*;
use crate::{DiscoveryOptions, Peer, Relation};

/// A server as it answers: who it is, whether it is writable, and what it follows, with the state of its
/// receiver.
#[derive(Clone, Copy)]
struct Says {
    writable: bool,
    follows: Option<(&'static str, Receiver)>,
}

const fn says(writable: bool, follows: Option<(&'static str, Receiver)>) -> Option<Says> {
    Some(Says { writable, follows })
}

use Receiver::{Connecting, Running, Stopped};
const DOWN: Option<Says> = None;

fn report(says: Says, id: u16) -> ProbeReport {
    let replication = says.follows.map(|(source, receiver)| ReplicationStatus {
        source_host: source.into(),
        receiver,
        source_uuid: match source.strip_prefix('s') {
            Some(number) => format!("uuid-{number}").into(),
            None => "".into(),
        },
        ..replication()
    });
    let peers = says.follows.map(|(source, _)| Peer {
        address: format!("{source}:3306").into(),
        uuid: "".into(),
        server_id: 0,
        relation: Relation::Source,
    });
    ProbeReport {
        server_uuid: format!("uuid-{id}").into(),
        read_only: !says.writable,
        replication,
        peers: peers.into_iter().collect(),
        ..writable()
    }
}

fn tell(world: &mut World, servers: &[Option<Says>]) {
    for (id, said) in (0..).zip(servers) {
        match said {
            Some(said) => world.report(ServerId(id), report(*said, id)),
            None => world.fail(ServerId(id), Cause::Refused),
        };
    }
}

/// What the servers answer, round after round; none: a server is down.
type Rounds<'a> = &'a [&'a [Option<Says>]];

/// Expected: the primary, or why there is none.
type Expected = Result<ServerId, NoPrimary>;

fn judged(world: &World) -> Expected {
    let snapshot = world.topology.snapshot();
    match (snapshot.primary, snapshot.without) {
        (Some(primary), _) => Ok(primary),
        (None, why) => Err(why.unwrap()),
    }
}

#[test]
fn one_writable_server_that_is_set_to_replicate() {
    const LEFTOVER: Option<Says> = says(true, Some(("elsewhere", Connecting)));
    let table: &[(&str, Rounds<'_>, Expected)] = &[
        (
            "a leftover source",
            &[&[LEFTOVER, says(false, Some(("s0", Running)))]],
            Ok(A),
        ),
        (
            "a source that answers it, and is none of ours",
            &[&[
                says(true, Some(("elsewhere", Running))),
                says(false, Some(("s0", Running))),
            ]],
            Err(NoPrimary::Replicates(A)),
        ),
        (
            "a leftover that others follow as well may be the primary, lost",
            &[&[LEFTOVER, says(false, Some(("elsewhere", Connecting)))]],
            Err(NoPrimary::Replicates(A)),
        ),
        (
            "a listed server has never answered: it may be the source, by another name",
            &[&[LEFTOVER, DOWN]],
            Err(NoPrimary::Replicates(A)),
        ),
        (
            "active and passive",
            &[&[
                says(true, Some(("s1", Running))),
                says(false, Some(("s0", Running))),
            ]],
            Ok(A),
        ),
        (
            "active and passive, the active one cannot log in to the passive one",
            &[&[
                says(true, Some(("s1", Connecting))),
                says(false, Some(("s0", Running))),
            ]],
            Ok(A),
        ),
        (
            "active and passive, with a replica of each",
            &[&[
                says(true, Some(("s1", Running))),
                says(false, Some(("s0", Running))),
                says(false, Some(("s1", Running))),
            ]],
            Ok(A),
        ),
        (
            "a circle of three",
            &[&[
                says(true, Some(("s1", Running))),
                says(false, Some(("s2", Running))),
                says(false, Some(("s0", Running))),
            ]],
            Ok(A),
        ),
        (
            "both of a pair writable",
            &[&[
                says(true, Some(("s1", Running))),
                says(true, Some(("s0", Running))),
            ]],
            Err(NoPrimary::Conflict),
        ),
        (
            "the passive one goes",
            &[
                &[
                    says(true, Some(("s1", Running))),
                    says(false, Some(("s0", Running))),
                ],
                &[says(true, Some(("s1", Connecting))), DOWN],
            ],
            Ok(A),
        ),
        (
            "the active one goes: the other is to be promoted",
            &[
                &[
                    says(true, Some(("s1", Running))),
                    says(false, Some(("s0", Running))),
                ],
                &[DOWN, says(false, Some(("s0", Connecting)))],
            ],
            Err(NoPrimary::Lost(A)),
        ),
        (
            "a pair is switched over",
            &[
                &[
                    says(true, Some(("s1", Running))),
                    says(false, Some(("s0", Running))),
                ],
                &[
                    says(false, Some(("s1", Running))),
                    says(true, Some(("s0", Running))),
                ],
            ],
            Ok(B),
        ),
        (
            "the passive one is made writable before the active one steps back",
            &[
                &[
                    says(true, Some(("s1", Running))),
                    says(false, Some(("s0", Running))),
                ],
                &[
                    says(true, Some(("s1", Running))),
                    says(true, Some(("s0", Stopped))),
                ],
            ],
            Err(NoPrimary::Conflict),
        ),
        (
            "a replica without read_only does not take a lost primary's place",
            &[
                &[says(true, None), says(true, Some(("s0", Running)))],
                &[DOWN, says(true, Some(("s0", Connecting)))],
            ],
            Err(NoPrimary::Lost(A)),
        ),
        (
            "nor by another name of that primary",
            &[
                &[says(true, None), says(true, Some(("elsewhere", Running)))],
                &[DOWN, says(true, Some(("elsewhere", Connecting)))],
            ],
            Err(NoPrimary::Lost(A)),
        ),
        (
            "nor while the primary is read only for a moment",
            &[
                &[says(true, None), says(true, Some(("s0", Running)))],
                &[says(false, None), says(true, Some(("s0", Running)))],
            ],
            Err(NoPrimary::Demoted(A)),
        ),
        (
            "of a read-only source and its one writable replica, the replica",
            &[&[says(false, None), says(true, Some(("s0", Running)))]],
            Ok(B),
        ),
        (
            "but not where the source has other replicas",
            &[&[
                says(false, None),
                says(true, Some(("s0", Running))),
                says(false, Some(("s0", Running))),
            ]],
            Err(NoPrimary::Replicates(B)),
        ),
        (
            "a writable one that receives from nobody comes first",
            &[&[LEFTOVER, says(true, None)]],
            Ok(B),
        ),
        (
            "two with leftovers",
            &[&[LEFTOVER, says(true, Some(("nowhere", Connecting)))]],
            Err(NoPrimary::Conflict),
        ),
    ];
    for (what, rounds, expected) in table {
        let servers = u16::try_from(rounds[0].len()).unwrap();
        let mut world = world(servers);
        for round in *rounds {
            tell(&mut world, round);
            tell(&mut world, round);
        }
        assert_eq!(judged(&world), *expected, "{what}");
    }
}

#[test]
fn a_primary_with_a_leftover_stays_when_the_source_comes_back() {
    let mut world = world(2);
    let replica = says(false, Some(("s0", Running)));
    tell(&mut world, &[says(true, Some(("x", Connecting))), replica]);
    assert_eq!(judged(&world), Ok(A));
    assert_eq!(world.role(A), Role::Primary);
    assert_eq!((world.unfit(A), world.unfit(B)), (None, None));
    tell(&mut world, &[says(true, Some(("x", Running))), replica]);
    assert_eq!(judged(&world), Ok(A), "it has taken writes");
}

fn found(seeds: &[&str]) -> World {
    let options = Options {
        discovery: Some(DiscoveryOptions::default()),
        ..Options::default()
    };
    let specs = seeds.iter().map(|seed| ServerSpec::new(seed)).collect();
    World {
        topology: Topology::new(options, specs),
        now: Millis(1_000),
    }
}

#[test]
fn what_others_name_and_nobody_reaches_harms_nothing() {
    // One seed; its replica, and its source, have names of another network.
    for receiver in [Running, Connecting] {
        let mut world = found(&["s0:3306"]);
        let mut said = report(says(true, Some(("db-1", receiver))).unwrap(), 0);
        said.peers.push(Peer {
            address: "db-2:3306".into(),
            uuid: "uuid-2".into(),
            server_id: 0,
            relation: Relation::Replica,
        });
        world.report(A, said.clone());
        assert_eq!(world.primary(), None, "they may answer");
        world.fail(B, Cause::Resolve);
        world.fail(C, Cause::TimedOut);
        assert_eq!(judged(&world), Ok(A));
        assert_eq!(world.unfit(B), Some(Unfit::Down(Cause::Resolve)));
        world.report(A, said);
        assert_eq!(judged(&world), Ok(A));
        // The only server is used, whatever is known of it.
        world.fail(A, Cause::Refused);
        assert_eq!(world.primary(), Some(A));
        assert_eq!(world.unfit(A), None);
    }
}

#[test]
fn a_listed_primary_needs_no_answer_of_what_it_names() {
    let mut world = found(&["s0:3306", "s1:3306"]);
    let leftover = says(true, Some(("db-1", Connecting)));
    let replica = says(false, Some(("s0", Running)));
    tell(&mut world, &[leftover, replica]);
    world.fail(C, Cause::Resolve);
    assert_eq!(judged(&world), Ok(A));
    let away = says(true, Some(("db-1", Running)));
    let mut world = found(&["s0:3306", "s1:3306"]);
    tell(&mut world, &[away, replica]);
    world.fail(C, Cause::Resolve);
    assert_eq!(judged(&world), Err(NoPrimary::Replicates(A)));
}

#[test]
fn every_way_of_being_read_only_counts() {
    type Set = fn(&mut ProbeReport);
    let ways: &[(&str, Set)] = &[
        ("read_only", |report| report.read_only = true),
        ("super_read_only", |report| report.super_read_only = true),
        ("offline_mode", |report| report.offline_mode = true),
        ("innodb_read_only", |report| report.innodb_read_only = true),
        ("transaction_read_only", |report| {
            report.begins_read_only = true;
        }),
    ];
    for (way, set) in ways {
        let mut world = world(2);
        let mut reader = writable();
        set(&mut reader);
        world.report(A, reader.clone());
        world.report(B, writable());
        assert_eq!(judged(&world), Ok(B), "{way}");
    }
    // The only writable one is the primary, however its sessions begin.
    let mut world = world(2);
    let begins_read_only = ProbeReport {
        begins_read_only: true,
        ..writable()
    };
    world.report(A, begins_read_only);
    world.report(B, read_only());
    assert_eq!(judged(&world), Ok(A));
}

#[test]
fn a_reader_of_shared_storage_takes_reads() {
    let reader = |shares_storage| ProbeReport {
        innodb_read_only: true,
        shares_storage,
        ..writable()
    };
    for (role, shares_storage, unfit) in [
        (ConfiguredRole::Auto, true, None),
        (ConfiguredRole::Replica, false, None),
        // A frozen copy, for all that is known.
        (ConfiguredRole::Auto, false, Some(Unfit::NotReplicating)),
    ] {
        let mut specs = vec![ServerSpec::new("a:1"), ServerSpec::new("b:1")];
        specs[1].role = role;
        let mut world = with(specs);
        world.report(A, writable());
        world.report(B, reader(shares_storage));
        assert_eq!(judged(&world), Ok(A));
        assert_eq!(world.unfit(B), unfit);
        assert_eq!(world.role(B), Role::Replica);
    }
}

fn with_fixed() -> World {
    let mut specs = vec![ServerSpec::new("s0:3306"), ServerSpec::new("s1:3306")];
    specs[0].role = ConfiguredRole::Primary;
    with(specs)
}

#[test]
fn a_configured_primary_yields_after_a_switchover() {
    let mut world = with_fixed();
    let (head, replica) = (says(true, None), says(false, Some(("s0", Running))));
    tell(&mut world, &[head, replica]);
    assert_eq!(judged(&world), Ok(A));
    // Read only for a moment is not enough.
    tell(&mut world, &[says(false, None), replica]);
    assert_eq!(judged(&world), Ok(A));
    let events = world.report(B, report(head.unwrap(), 1));
    assert_eq!(judged(&world), Ok(B));
    assert!(events.contains(&ChangeEvent::Overruled {
        configured: A,
        by: B
    }));
    assert_eq!(world.topology.snapshot().overruled, Some(A));
    assert_eq!(world.role(A), Role::Replica);
    tell(&mut world, &[says(false, Some(("s1", Running))), head]);
    assert_eq!(judged(&world), Ok(B));
    // Back again.
    tell(&mut world, &[head, replica]);
    assert_eq!(judged(&world), Ok(A));
    assert_eq!(world.topology.snapshot().overruled, None);
}

#[test]
fn a_switchover_that_nobody_saw_shows_in_what_the_configured_primary_follows() {
    let mut world = with_fixed();
    tell(
        &mut world,
        &[says(false, Some(("s1", Running))), says(true, None)],
    );
    world.report(A, report(says(false, Some(("s1", Running))).unwrap(), 0));
    assert_eq!(judged(&world), Ok(B));
}

#[test]
fn a_configured_primary_does_not_yield_to_a_stranger_or_when_it_is_down() {
    let mut world = with_fixed();
    let head = says(true, None);
    tell(&mut world, &[head, head]);
    assert_eq!(judged(&world), Ok(A), "that is what it was configured for");
    tell(&mut world, &[says(false, None), head]);
    assert_eq!(judged(&world), Ok(A));
    tell(&mut world, &[DOWN, head]);
    assert_eq!(judged(&world), Err(NoPrimary::Fixed(A)));
}
