mod preferences;

use millrace_topology::{Cause, Family, Health, Role, ServerView, Unfit, Waits};

use super::*;
use crate::ServerSet;

const P: ServerId = ServerId(0);
const R1: ServerId = ServerId(1);
const R2: ServerId = ServerId(2);

fn set(text: &str) -> GtidSet {
    GtidSet::parse_mariadb(text.as_bytes()).unwrap()
}

fn server(id: ServerId, role: Role, executed: &str) -> ServerView {
    ServerView {
        id,
        address: format!("s{}:3306", id.0).into(),
        zone: "".into(),
        weight: 1,
        share: 100,
        role,
        health: Health::Up,
        unfit: None,
        lag_seconds: None,
        waits: Waits::Gtids,
        executed: set(executed),
        report: None,
        probed_at: None,
        incarnation: 0,
        draining: false,
        gone: false,
        listed: true,
        address_of: None,
    }
}

/// A primary at 0-1-10, and replicas at 0-1-10 and 0-1-8.
fn world() -> Snapshot {
    Snapshot {
        unreplicated: None,
        overruled: None,
        generation: 1,
        epoch: 1,
        servers: vec![
            server(P, Role::Primary, "0-1-10"),
            server(R1, Role::Replica, "0-1-10"),
            server(R2, Role::Replica, "0-1-8"),
        ],
        primary: Some(P),
        without: None,
        conflict: Vec::new(),
        family: Some(Family::MariaDb),
        version_number: 101100,
    }
}

const IDLE: Load<'_> = Load {
    outstanding: &[],
    response_us: &[],
    known: &[],
    behind: 0,
    rotation: 0,
};

/// `primary`, `1` or `2`, each with `?` where a wait is asked for; then the reason.
fn show(decision: &Decision) -> String {
    match decision {
        Decision::NoServer(why) => format!("none: {why}"),
        Decision::Send { candidates, reason } => {
            let names: Vec<String> = candidates
                .iter()
                .map(|c| {
                    let name = ["primary", "1", "2", "3"][c.server.index()];
                    format!("{name}{}", if c.wait { "?" } else { "" })
                })
                .collect();
            format!("{}: {}", names.join(" "), reason.as_str())
        }
    }
}

struct Case {
    world: Snapshot,
    options: Options,
    required: GtidSet,
    load: Load<'static>,
    session: fn(&mut SessionView<'_>),
    access: Access,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            world: world(),
            options: Options::default(),
            required: set(""),
            load: IDLE,
            session: |_| {},
            access: Access::Read,
        }
    }
}

impl Case {
    fn decide(&self) -> String {
        let mut session = SessionView::new(&self.required);
        (self.session)(&mut session);
        show(&decide(
            &self.world,
            &self.options,
            &session,
            self.access,
            &self.load,
        ))
    }
}

fn with(change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::default();
    change(&mut case);
    case
}

#[test]
fn the_kind_of_statement_and_the_session_decide() {
    type Session = fn(&mut SessionView<'_>);
    let table: &[(&str, Session, Access, &str)] = &[
        ("read", |_| {}, Access::Read, "1 2 primary: read"),
        ("write", |_| {}, Access::Write, "primary: write"),
        (
            "primary read",
            |_| {},
            Access::PrimaryRead,
            "primary: primary_read",
        ),
        (
            "session",
            |_| {},
            Access::Session,
            "1 2 primary: any_server",
        ),
        (
            "pinned",
            |s| s.pinned_to = Some(R2),
            Access::Write,
            "2: pinned",
        ),
        (
            "transaction",
            |s| s.transaction = Transaction::ReadWrite,
            Access::Read,
            "primary: transaction",
        ),
        (
            "read-only transaction",
            |s| s.transaction = Transaction::ReadOnly,
            Access::Read,
            "1 2 primary: read",
        ),
        (
            "serializable",
            |s| s.serializable = true,
            Access::Read,
            "primary: serializable",
        ),
        (
            "autocommit off",
            |s| s.autocommit_off = true,
            Access::Read,
            "primary: autocommit_off",
        ),
        (
            "position unknown",
            |s| s.position_unknown = true,
            Access::Read,
            "primary: position_unknown",
        ),
        (
            "position unknown, but eventual",
            |s| {
                s.position_unknown = true;
                s.consistency = Consistency::Eventual;
            },
            Access::Read,
            "1 2 primary: read",
        ),
        (
            "position unknown, but no read",
            |s| s.position_unknown = true,
            Access::Session,
            "1 2 primary: any_server",
        ),
        (
            "primary listener",
            |s| s.target = Target::PrimaryOnly,
            Access::Read,
            "primary: primary_listener",
        ),
        (
            "replica listener",
            |s| s.target = Target::ReplicasOnly,
            Access::Write,
            "1 2: replica_listener",
        ),
    ];
    for (name, session, access, expected) in table {
        let case = with(|case| {
            case.session = *session;
            case.access = *access;
        });
        assert_eq!(case.decide(), *expected, "{name}");
    }
}

#[test]
fn a_read_goes_where_its_position_is() {
    type Change = fn(&mut Case);
    let table: &[(&str, Change, &str)] = &[
        (
            "all have it",
            |c| c.required = set("0-1-8"),
            "1 2 primary: read",
        ),
        (
            "one has it",
            |c| c.required = set("0-1-10"),
            "1 2? primary: read",
        ),
        (
            "none: the closest waits",
            |c| c.required = set("0-1-11"),
            "1? primary: read_after_wait",
        ),
        (
            "several may wait",
            |c| {
                c.required = set("0-1-11");
                c.options.waits_max = 5;
            },
            "1? 2? primary: read_after_wait",
        ),
        (
            "waiting is off",
            |c| {
                c.required = set("0-1-11");
                c.options.wait_limit_ms = 0;
            },
            "primary: replicas_behind",
        ),
        (
            "eventual does not care",
            |c| {
                c.required = set("0-1-11");
                c.session = |s| s.consistency = Consistency::Eventual;
            },
            "1 2 primary: read",
        ),
        (
            "an unknown domain",
            |c| c.required = set("7-1-1"),
            "primary: replicas_behind",
        ),
        (
            "a cluster's nodes are asked to wait, whatever they are known to have",
            |c| {
                c.required = GtidSet::Cluster(7);
                for server in &mut c.world.servers {
                    server.waits = Waits::Cluster;
                }
            },
            "1? primary: read_after_wait",
        ),
        (
            "without positions nobody can wait",
            |c| {
                c.required = set("0-1-11");
                c.world.servers[1].waits = Waits::Nothing;
            },
            "2? primary: read_after_wait",
        ),
        (
            "no primary: every replica waits",
            |c| {
                c.required = set("0-1-11");
                c.world.primary = None;
                c.world.servers.remove(0);
            },
            "1? 2?: read_after_wait",
        ),
        (
            "replica listener",
            |c| {
                c.required = set("0-1-10");
                c.session = |s| s.target = Target::ReplicasOnly;
            },
            "1 2?: replica_listener",
        ),
    ];
    for (name, change, expected) in table {
        assert_eq!(with(*change).decide(), *expected, "{name}");
    }
}

#[test]
fn a_position_learnt_since_the_snapshot_counts() {
    let known = [set(""), set(""), set("0-1-12")];
    let required = set("0-1-11");
    let load = Load {
        known: &known,
        ..IDLE
    };
    let decision = decide(
        &world(),
        &Options::default(),
        &SessionView::new(&required),
        Access::Read,
        &load,
    );
    // Who has it comes first, whoever's turn it is.
    assert_eq!(show(&decision), "2 1? primary: read");
    let load = Load {
        behind: 0b10,
        ..load
    };
    let decision = decide(
        &world(),
        &Options::default(),
        &SessionView::new(&required),
        Access::Read,
        &load,
    );
    // A wait was in vain there a moment ago: the primary has the answer at once.
    assert_eq!(show(&decision), "2 primary: read");
    // Without GTIDs neither.
    let mut world = world();
    world.servers[R1.index()].waits = Waits::Log;
    let decision = decide(
        &world,
        &Options::default(),
        &SessionView::new(&required),
        Access::Read,
        &load,
    );
    assert_eq!(show(&decision), "2 primary: read");
    // But where there is nobody else to turn to.
    let mut session = SessionView::new(&required);
    session.target = Target::ReplicasOnly;
    let options = Options::default();
    let decision = decide(&world, &options, &session, Access::Read, &load);
    assert_eq!(show(&decision), "2 1?: replica_listener");
}

#[test]
fn fitness_and_the_share_of_the_primary() {
    type Change = fn(&mut Case);
    let table: &[(&str, Change, &str)] = &[
        (
            "one unfit",
            |c| c.world.servers[1].unfit = Some(Unfit::Lagging { seconds: 99 }),
            "2 primary: read",
        ),
        (
            "none fit",
            |c| {
                c.world.servers[1].unfit = Some(Unfit::ApplierStopped);
                c.world.servers[2].unfit = Some(Unfit::Down(Cause::Refused));
            },
            "primary: no_fit_replica",
        ),
        (
            "none fit, replica listener",
            |c| {
                c.world.servers[1].unfit = Some(Unfit::ApplierStopped);
                c.world.servers[2].unfit = Some(Unfit::ApplierStopped);
                c.session = |s| s.target = Target::ReplicasOnly;
            },
            "none: no replica is available",
        ),
        (
            "the primary reads too",
            |c| c.options.reads = Reads::All,
            "primary 1 2: read",
        ),
        (
            "the primary reads too, and is busy",
            |c| {
                c.options.reads = Reads::All;
                c.load.outstanding = &[3, 2, 1];
            },
            "2 1 primary: read",
        ),
        (
            "the primary reads too, and has what the others lack",
            |c| {
                c.options.reads = Reads::All;
                c.required = set("0-1-11");
            },
            "primary 1?: read",
        ),
        (
            "no primary",
            |c| {
                c.world.primary = None;
                c.world.servers[0].unfit = Some(Unfit::Down(Cause::Refused));
            },
            "1 2: read",
        ),
        (
            "no primary, a write",
            |c| {
                c.world.primary = None;
                c.access = Access::Write;
            },
            "none: no primary is available",
        ),
        (
            "two primaries, a write",
            |c| {
                c.world.primary = None;
                c.world.conflict = vec![P, R1];
                c.access = Access::Write;
            },
            "none: several servers claim to be the primary",
        ),
        (
            "nobody at all",
            |c| {
                c.world.primary = None;
                c.world.servers.clear();
            },
            "none: no primary is available",
        ),
    ];
    for (name, change, expected) in table {
        assert_eq!(with(*change).decide(), *expected, "{name}");
    }
}

#[test]
fn the_least_busy_for_its_weight_is_first() {
    let table: &[(&'static [u32], [u32; 2], &str)] = &[
        (&[0, 2, 1], [1, 1], "2 1 primary: read"),
        (&[0, 1, 1], [1, 1], "1 2 primary: read"),
        (&[0, 4, 3], [2, 1], "1 2 primary: read"),
        (&[0, 7, 3], [2, 1], "2 1 primary: read"),
    ];
    for (outstanding, weights, expected) in table {
        let case = with(|case| {
            case.load.outstanding = outstanding;
            case.world.servers[1].share = weights[0] * 100;
            case.world.servers[2].share = weights[1] * 100;
        });
        assert_eq!(case.decide(), *expected, "{outstanding:?} {weights:?}");
    }
}

/// How often each server is first in so many decisions of one idle client.
fn firsts(world: &Snapshot, options: &Options, rounds: u32) -> Vec<u32> {
    let required = set("");
    let session = SessionView::new(&required);
    let mut counts = vec![0; world.servers.len()];
    for rotation in 0..rounds {
        let load = Load { rotation, ..IDLE };
        match decide(world, options, &session, Access::Read, &load) {
            Decision::Send { candidates, reason } => {
                assert!(reason.is_balanced());
                counts[candidates[0].server.index()] += 1;
            }
            Decision::NoServer(why) => panic!("{why}"),
        }
    }
    counts
}

#[test]
fn equals_take_turns_by_weight() {
    let options = Options::default();
    assert_eq!(firsts(&world(), &options, 100), [0, 50, 50]);
    let all = Options {
        reads: Reads::All,
        ..options.clone()
    };
    assert_eq!(firsts(&world(), &all, 99), [33, 33, 33]);
    let mut heavy = world();
    heavy.servers[2].share = 300;
    let counts = firsts(&heavy, &options, 100);
    assert!(counts[1].abs_diff(25) <= 3, "{counts:?}");
}

#[test]
fn many_servers_never_crowd_out_the_primary() {
    let mut world = world();
    for id in 3..40 {
        world
            .servers
            .push(server(ServerId(id), Role::Replica, "0-1-10"));
    }
    let required = set("");
    let session = SessionView::new(&required);
    let decision = decide(&world, &Options::default(), &session, Access::Read, &IDLE);
    let Decision::Send { candidates, .. } = decision else {
        panic!("no server");
    };
    assert_eq!(candidates.len(), CANDIDATES_MAX);
    assert!(!candidates.spilled());
    assert_eq!(candidates.last().map(|c| c.server), Some(P));
}

/// Every way a session can be, for every kind of statement: whatever comes out obeys the rules.
#[test]
fn no_write_ever_goes_to_a_replica_and_no_read_to_one_that_lacks_it() {
    let required = set("0-1-9");
    for bits in 0..256_u32 {
        let bit = |n: u32| bits & (1 << n) != 0;
        let mut world = world();
        if bit(0) {
            world.servers[1].unfit = Some(Unfit::ApplierError);
        }
        if bit(1) {
            world.primary = None;
            world.servers[0].unfit = Some(Unfit::Down(Cause::Lost));
        }
        let mut session = SessionView::new(&required);
        session.position_unknown = bit(2);
        session.serializable = bit(3);
        session.autocommit_off = bit(4);
        if bit(5) {
            session.transaction = Transaction::ReadWrite;
        }
        let options = Options {
            reads: if bit(6) { Reads::All } else { Reads::Replicas },
            wait_limit_ms: if bit(7) { 0 } else { 100 },
            ..Options::default()
        };
        for access in [
            Access::Session,
            Access::Read,
            Access::PrimaryRead,
            Access::Write,
        ] {
            let Decision::Send { candidates, .. } =
                decide(&world, &options, &session, access, &IDLE)
            else {
                assert!(world.primary.is_none());
                continue;
            };
            let stays = session.serializable
                || session.autocommit_off
                || session.transaction == Transaction::ReadWrite
                || access >= Access::PrimaryRead
                || (access == Access::Read && session.position_unknown);
            for candidate in &candidates {
                let is_primary = Some(candidate.server) == world.primary;
                assert!(is_primary || !stays, "{bits:b} {access:?}");
                let view = &world.servers[candidate.server.index()];
                let has = is_primary || view.executed.contains(&required);
                assert!(has || candidate.wait || access == Access::Session);
                assert!(view.is_fit());
            }
        }
    }
}

/// The world with four equal replicas and no requirement.
fn many() -> Snapshot {
    let mut many = world();
    for id in 3..5 {
        many.servers
            .push(server(ServerId(id), Role::Replica, "0-1-10"));
    }
    many.servers[R2.index()].executed = set("0-1-10");
    many
}

fn first(world: &Snapshot, options: &Options, session: &SessionView<'_>, load: &Load<'_>) -> usize {
    match decide(world, options, session, Access::Read, load) {
        Decision::Send { candidates, .. } => candidates[0].server.index(),
        Decision::NoServer(why) => panic!("{why}"),
    }
}
