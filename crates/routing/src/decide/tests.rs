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

#[test]
fn reads_do_not_go_back_in_time() {
    let required = set("0-1-8");
    let session = |seen, consistency| SessionView {
        seen: Some(ServerId(seen)),
        consistency,
        ..SessionView::new(&required)
    };
    let show = |seen, consistency, reads| {
        let options = Options {
            reads,
            ..Options::default()
        };
        show(&decide(
            &world(),
            &options,
            &session(seen, consistency),
            Access::Read,
            &IDLE,
        ))
    };
    assert_eq!(
        show(2, Consistency::Session, Reads::Replicas),
        "2 primary: read"
    );
    assert_eq!(
        show(1, Consistency::Instance, Reads::Replicas),
        "1 primary: read"
    );
    assert_eq!(
        show(0, Consistency::Session, Reads::Replicas),
        "primary: no_fit_replica"
    );
    assert_eq!(show(0, Consistency::Session, Reads::All), "primary: read");
    assert_eq!(
        show(9, Consistency::Session, Reads::Replicas),
        "primary: no_fit_replica"
    );
    assert_eq!(
        show(2, Consistency::Eventual, Reads::Replicas),
        "1 2 primary: read"
    );
}

/// The primary takes reads too, and is idle: who went there would have to stay there.
#[test]
fn nobody_goes_to_the_primary_for_balance_who_could_not_leave_it() {
    let required = set("0-1-8");
    let options = Options {
        reads: Reads::All,
        ..Options::default()
    };
    let load = Load {
        outstanding: &[0, 0, 70],
        ..IDLE
    };
    let mut world = world();
    let mut session = SessionView::new(&required);
    let at = |world: &Snapshot, session: &SessionView<'_>| {
        show(&decide(world, &options, session, Access::Read, &load))
    };
    assert_eq!(
        at(&world, &session),
        "primary 1 2: read",
        "it may read anywhere"
    );
    session.seen = Some(R2);
    assert_eq!(at(&world, &session), "2 primary: read");
    world.servers[R2.index()].waits = Waits::Nothing;
    assert_eq!(
        at(&world, &session),
        "primary 2: read",
        "it could not leave that either"
    );
    world.servers[R2.index()].waits = Waits::Gtids;
    // Where it would have to wait the primary is better.
    world.servers[R2.index()].executed = set("0-1-2");
    assert_eq!(at(&world, &session), "primary 2?: read");
}

#[test]
fn who_has_the_position_comes_before_who_must_be_waited_for() {
    let required = set("0-1-10");
    let mut world = world();
    // However busy it is.
    let load = Load {
        outstanding: &[0, 50, 0],
        ..IDLE
    };
    let session = SessionView::new(&required);
    let options = Options::default();
    let at = |world: &Snapshot| show(&decide(world, &options, &session, Access::Read, &load));
    assert_eq!(at(&world), "1 2? primary: read");
    world.servers[R1.index()].executed = set("0-1-2");
    assert_eq!(
        at(&world),
        "2? primary: read_after_wait",
        "that one is nearer"
    );
    world.servers[R2.index()].executed = set("");
    assert_eq!(at(&world), "1? primary: read_after_wait");
}

#[test]
fn while_all_lag_the_primary_reads_or_they_do() {
    let mut world = world();
    for server in &mut world.servers[1..] {
        server.unfit = Some(Unfit::Lagging { seconds: 99 });
    }
    let required = set("");
    let session = SessionView::new(&required);
    let at = |all_lag| {
        let options = Options {
            all_lag,
            ..Options::default()
        };
        show(&decide(&world, &options, &session, Access::Read, &IDLE))
    };
    assert_eq!(at(AllLag::Primary), "primary: no_fit_replica");
    assert_eq!(at(AllLag::Replicas), "1 2 primary: read");
}

#[test]
fn a_zone_and_a_home_come_first_as_long_as_they_are_fit() {
    let mut world = world();
    world.servers[R2.index()].zone = "b".into();
    world.servers[R1.index()].zone = "a".into();
    let required = set("");
    let mut session = SessionView::new(&required);
    let local = Options {
        zone: "b".into(),
        ..Options::default()
    };
    let load = Load {
        outstanding: &[0, 0, 9],
        ..IDLE
    };
    let at = |world: &Snapshot, options: &Options, session: &SessionView<'_>| {
        show(&decide(world, options, session, Access::Read, &load))
    };
    assert_eq!(at(&world, &local, &session), "2 1 primary: read");
    session.home = Some(R2);
    let sticky = Options {
        sticky: true,
        ..Options::default()
    };
    assert_eq!(
        at(&world, &Options::default(), &session),
        "1 2 primary: read"
    );
    assert_eq!(at(&world, &sticky, &session), "2 1 primary: read");
    world.servers[R2.index()].unfit = Some(Unfit::ApplierStopped);
    assert_eq!(at(&world, &local, &session), "1 primary: read");
    assert_eq!(at(&world, &sticky, &session), "1 primary: read");
}

#[test]
fn what_is_wanted_narrows_the_choice() {
    let required = set("");
    let at = |wanted, access| {
        let session = SessionView {
            wanted: Some(wanted),
            ..SessionView::new(&required)
        };
        show(&decide(
            &world(),
            &Options::default(),
            &session,
            access,
            &IDLE,
        ))
    };
    assert_eq!(at(Wanted::Primary, Access::Read), "primary: wanted");
    assert_eq!(at(Wanted::Replica, Access::Read), "1 2 primary: read");
    assert_eq!(
        at(Wanted::Servers(ServerSet::from(0b100)), Access::Read),
        "2 primary: read"
    );
    assert_eq!(
        at(Wanted::Servers(ServerSet::from(0b101)), Access::Read),
        "primary 2: read"
    );
    assert_eq!(
        at(Wanted::Servers(ServerSet::from(0)), Access::Read),
        "primary: no_fit_replica"
    );
    // A write runs where writes run.
    assert_eq!(
        at(Wanted::Servers(ServerSet::from(0b100)), Access::Write),
        "primary: write"
    );
}

#[test]
fn of_two_the_one_that_answers_sooner() {
    let required = set("");
    let session = SessionView::new(&required);
    let options = Options {
        balance: Balance::Latency,
        ..Options::default()
    };
    let load = |rotation| Load {
        outstanding: &[0, 0, 0, 0, 0],
        response_us: &[0, 100, 900, 200, 300],
        rotation,
        ..IDLE
    };
    let mut counts = [0; 5];
    for rotation in 0..4_000 {
        counts[first(&many(), &options, &session, &load(rotation))] += 1;
    }
    assert_eq!(counts[P.index()], 0);
    assert_eq!(counts[R2.index()], 0, "always the slower of two");
    assert!(
        counts[1] > counts[3] && counts[3] > counts[4] && counts[4] > 200,
        "{counts:?}"
    );
    // What is under way there counts as well.
    let busy = Load {
        outstanding: &[0, 3, 0],
        response_us: &[0, 100, 300],
        ..IDLE
    };
    assert_eq!(first(&world(), &options, &session, &busy), 2);
}

#[test]
fn weights_are_kept_without_runs() {
    let required = set("");
    let session = SessionView::new(&required);
    let options = Options {
        balance: Balance::Weighted,
        ..Options::default()
    };
    let mut world = many();
    for (id, share) in [(1, 500), (2, 300), (3, 100), (4, 100)] {
        world.servers[id].share = share;
        world.servers[id].weight = share / 100;
    }
    let (mut counts, mut run, mut longest, mut last) = ([0_u32; 5], 0, 0, 0);
    for rotation in 0..10_000 {
        let load = Load { rotation, ..IDLE };
        let at = first(&world, &options, &session, &load);
        run = if at == last { run + 1 } else { 1 };
        longest = longest.max(run);
        last = at;
        counts[at] += 1;
    }
    for (id, share) in [(1, 5_000), (2, 3_000), (3, 1_000), (4, 1_000)] {
        assert!(counts[id].abs_diff(share) < 100, "{counts:?}");
    }
    assert!(longest <= 3, "{longest} in a row");
    let turns = Options {
        balance: Balance::RoundRobin,
        ..Options::default()
    };
    let order: Vec<usize> = (0..8)
        .map(|rotation| first(&world, &turns, &session, &Load { rotation, ..IDLE }))
        .collect();
    assert_eq!(order, [1, 2, 3, 4, 1, 2, 3, 4]);
    // One that has just come back is not yet the equal of the others.
    world.servers[3].share /= 10;
    let turns = (0..1_000)
        .map(|rotation| first(&world, &turns, &session, &Load { rotation, ..IDLE }))
        .filter(|at| *at == 3)
        .count();
    assert!((20..50).contains(&turns), "{turns} turns of 1,000");
}

#[test]
fn what_needs_no_primary_goes_elsewhere_where_there_is_none() {
    type Change = fn(&mut SessionView<'_>);
    let table: &[(&str, Change, Access, &str)] = &[
        (
            "nothing but the primary will do",
            |_| {},
            Access::PrimaryRead,
            "none: no primary is available",
        ),
        (
            "the session only",
            |s| s.without_primary = Some(Access::Session),
            Access::PrimaryRead,
            "1 2: without_primary",
        ),
        (
            "data that must be there",
            |s| s.without_primary = Some(Access::Read),
            Access::PrimaryRead,
            "1 2?: without_primary",
        ),
        (
            "a transaction that may come to write",
            |s| {
                s.transaction = Transaction::ReadWrite;
                s.without_primary = Some(Access::Read);
            },
            Access::Read,
            "1 2?: without_primary",
        ),
        (
            "autocommit off",
            |s| {
                s.autocommit_off = true;
                s.without_primary = Some(Access::Read);
            },
            Access::Read,
            "1 2?: without_primary",
        ),
        (
            "data, and it is not known what must be there",
            |s| {
                s.position_unknown = true;
                s.without_primary = Some(Access::Read);
            },
            Access::PrimaryRead,
            "none: no primary is available",
        ),
        (
            "no data, and it is not known what must be there",
            |s| {
                s.position_unknown = true;
                s.without_primary = Some(Access::Session);
            },
            Access::PrimaryRead,
            "1 2: without_primary",
        ),
        (
            "data, and a rule that wants the primary",
            |s| {
                s.wanted = Some(Wanted::Primary);
                s.without_primary = Some(Access::Read);
            },
            Access::PrimaryRead,
            "none: no primary is available",
        ),
        (
            "no data, and a rule that wants the primary",
            |s| {
                s.wanted = Some(Wanted::Primary);
                s.without_primary = Some(Access::Session);
            },
            Access::PrimaryRead,
            "1 2: without_primary",
        ),
        (
            "data, on a listener for the primary",
            |s| {
                s.target = Target::PrimaryOnly;
                s.without_primary = Some(Access::Read);
            },
            Access::Read,
            "none: no primary is available",
        ),
        (
            "no data, on a listener for the primary",
            |s| {
                s.target = Target::PrimaryOnly;
                s.without_primary = Some(Access::Session);
            },
            Access::PrimaryRead,
            "1 2: without_primary",
        ),
    ];
    for (name, session, access, expected) in table {
        let case = with(|case| {
            case.world.primary = None;
            case.world.servers[0].unfit = Some(Unfit::Down(Cause::Refused));
            case.required = set("0-1-10");
            case.session = *session;
            case.access = *access;
        });
        assert_eq!(case.decide(), *expected, "{name}");
    }
}

#[test]
fn a_primary_without_a_place_comes_last() {
    let case = with(|case| {
        case.access = Access::PrimaryRead;
        case.session = |s| s.without_primary = Some(Access::Session);
    });
    assert_eq!(case.decide(), "1 2 primary: without_primary");
}

#[test]
fn who_asks_for_replicas_is_told_of_those() {
    let world = world();
    let required = set("");
    for (about_server, wanted, expected) in [
        (true, None, 0),
        (true, Some(Wanted::Primary), 0),
        (true, Some(Wanted::Replica), 1),
        (true, Some(Wanted::Servers(0b100.into())), 2),
        (false, Some(Wanted::Replica), 0),
    ] {
        let session = SessionView {
            about_server,
            wanted,
            ..SessionView::new(&required)
        };
        let decision = decide(
            &world,
            &Options::default(),
            &session,
            Access::PrimaryRead,
            &IDLE,
        );
        let Decision::Send { candidates, .. } = decision else {
            panic!("no server");
        };
        assert_eq!(candidates[0].server.index(), expected, "{wanted:?}");
    }
}

#[test]
fn a_primary_that_lags_is_asked_to_wait() {
    let world = world();
    let required = set("");
    let session = |primary_lags, wanted| SessionView {
        primary_lags,
        wanted,
        ..SessionView::new(&required)
    };
    let all = Options {
        reads: Reads::All,
        ..Options::default()
    };
    let waits = |options: &Options, session: &SessionView<'_>, access| {
        let decision = decide(&world, options, session, access, &IDLE);
        let Decision::Send { candidates, .. } = decision else {
            panic!("no server");
        };
        let mut waiting = candidates.iter().filter(|candidate| candidate.wait);
        let waiting = waiting.by_ref().map(|candidate| candidate.server.index());
        waiting.collect::<Vec<_>>()
    };
    let none = Vec::<usize>::new();
    for options in [&Options::default(), &all] {
        for (wanted, access) in [
            (None, Access::Read),
            (Some(Wanted::Primary), Access::Read),
            (None, Access::PrimaryRead),
            (None, Access::Write),
        ] {
            assert_eq!(waits(options, &session(true, wanted), access), [0]);
            assert_eq!(waits(options, &session(false, wanted), access), none);
        }
    }
}
