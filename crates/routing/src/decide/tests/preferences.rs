use super::*;

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
