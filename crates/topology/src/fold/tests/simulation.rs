//! Random observations from a seed, and what must hold after each. A seed that fails replays.

use super::*;

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn cause(&mut self) -> Cause {
        use Cause::*;
        let all = [
            Refused,
            TimedOut,
            Lost,
            Resolve,
            Denied,
            Busy,
            ShuttingDown,
            Protocol,
        ];
        all[self.below(8) as usize]
    }

    fn report(&mut self) -> ProbeReport {
        let mut report = match self.below(4) {
            0 => writable(),
            1 => read_only(),
            _ => replica(),
        };
        if self.one_in(4) {
            report.read_only = !report.read_only;
            report.super_read_only = false;
        }
        report.offline_mode = self.one_in(10);
        if let Some(status) = &mut report.replication {
            status.source_host = format!("s{}", self.below(4)).into();
            status.applier_running = !self.one_in(6);
            status.lag_seconds = Some(self.below(40));
            status.receiver = match self.below(6) {
                0 => Receiver::Stopped,
                1 => Receiver::Connecting,
                _ => Receiver::Running,
            };
        }
        let last = 1 + self.below(50);
        executed(&format!("1-{last}"), report)
    }

    fn kind(&mut self) -> ObservationKind {
        let by = "ops".into();
        match self.below(40) {
            38 => return ObservationKind::Drain { by },
            39 => return ObservationKind::Resume { by },
            _ => {}
        }
        match self.below(10) {
            0 | 1 => ObservationKind::LiveError(self.cause()),
            2 => ObservationKind::RefusedWrite,
            3 | 4 => ObservationKind::ProbeFailed {
                cause: self.cause(),
                text: "".into(),
            },
            _ => ObservationKind::ProbeOk(Box::new(self.report())),
        }
    }
}

/// What each server last said that can still be believed, kept apart from the code under test.
#[derive(Clone, Default)]
struct Believed {
    report: Option<ProbeReport>,
    refused_write: bool,
    drained: bool,
    /// The step of the last probe, well or not.
    asked: u64,
    /// The step at which it answered again after it was down, until all others were asked.
    unconfirmed: Option<u64>,
    has_risen: bool,
}

fn believe(
    believed: &mut Believed,
    kind: &ObservationKind,
    (before, after): (Health, Health),
    step: u64,
) {
    let down = |health| matches!(health, Health::Down { .. });
    match kind {
        ObservationKind::ProbeOk(report) => {
            believed.report = Some((**report).clone());
            believed.refused_write = false;
            believed.asked = step;
        }
        ObservationKind::ProbeFailed { .. } => believed.asked = step,
        ObservationKind::RefusedWrite => believed.refused_write = true,
        ObservationKind::Drain { .. } => believed.drained = true,
        ObservationKind::Resume { .. } => believed.drained = false,
        _ => {}
    }
    if down(after) {
        believed.report = None;
        believed.unconfirmed = None;
    } else if down(before) {
        believed.unconfirmed = Some(step);
        believed.has_risen = true;
    }
}

/// Servers that came back count once all others that answer were asked since.
fn confirm(believed: &mut [Believed], snapshot: &Snapshot) {
    for index in 0..believed.len() {
        let Some(since) = believed[index].unconfirmed else {
            continue;
        };
        let mut others = (0..believed.len()).filter(|other| *other != index);
        let all = others.all(|other| match snapshot.servers[other].health {
            Health::Down { .. } => true,
            Health::Unknown => false,
            _ => believed[other].asked >= since,
        });
        if all {
            believed[index].unconfirmed = None;
        }
    }
}

fn is_writable(believed: &Believed) -> bool {
    let report = believed.report.as_ref();
    let takes = report.is_some_and(|report| !report.refuses_writes());
    takes && !believed.refused_write && believed.unconfirmed.is_none()
}

fn receives(believed: &Believed) -> Option<&ReplicationStatus> {
    let status = believed.report.as_ref()?.replication.as_ref();
    status.filter(|status| status.receiver != Receiver::Stopped)
}

fn writes_there(believed: &Believed) -> bool {
    is_writable(believed) && receives(believed).is_none()
}

/// What a primary is set to receive from takes no writes, and nobody else claims to be the primary.
fn check_head(primary: ServerId, believed: &[Believed]) {
    let Some(status) = receives(&believed[primary.index()]) else {
        return;
    };
    assert!(!believed.iter().any(writes_there), "a better one");
    let source = status.source_host.trim_start_matches('s').parse::<usize>();
    let source = source.ok().filter(|at| *at != primary.index());
    let source = source.and_then(|at| believed.get(at));
    assert!(!source.is_some_and(is_writable), "its source is writable");
}

fn check(snapshot: &Snapshot, believed: &[Believed], before: &Snapshot) {
    if let Some(primary) = snapshot.primary {
        let view = &snapshot.servers[primary.index()];
        assert!(view.health.is_usable(), "the primary answers");
        assert!(!view.draining, "and is not drained");
        assert_eq!(snapshot.without, None);
        assert!(is_writable(&believed[primary.index()]), "and takes writes");
        check_head(primary, believed);
        assert_eq!(view.role, Role::Primary);
        let rivals = believed
            .iter()
            .zip(&snapshot.servers)
            .filter(|(b, view)| writes_there(b) && view.id != primary);
        for (rival, _) in rivals {
            let follows = rival
                .report
                .as_ref()
                .is_some_and(|r| r.replication.is_some());
            // An old primary that came back and has nothing that the primary lacks.
            let executed = |b: &Believed| b.report.as_ref().map(|r| r.executed.clone());
            let left_over = rival.has_risen
                && executed(&believed[primary.index()])
                    .zip(executed(rival))
                    .is_some_and(|(ours, theirs)| ours.contains(&theirs));
            assert!(
                (follows || left_over) && before.primary == Some(primary),
                "no rival but a follower"
            );
        }
    }
    assert!(snapshot.conflict.is_empty() || snapshot.primary.is_none());
    for view in &snapshot.servers {
        let drained = snapshot.without == Some(NoPrimary::Draining(view.id)) && view.draining;
        if view.role == Role::Primary {
            assert!(snapshot.primary == Some(view.id) || drained);
        } else {
            assert_ne!(snapshot.primary, Some(view.id));
        }
        if view.is_fit() {
            let report = believed[view.id.index()].report.as_ref();
            let report = report.expect("a fit server was asked since it came up");
            assert!(view.health.is_usable() && !report.offline_mode);
            if let (Some(status), true) = (&report.replication, view.role == Role::Replica) {
                assert!(status.applier_running);
                assert!(view.lag_seconds.is_none_or(|lag| lag <= 30));
            }
        }
    }
    assert!(snapshot.generation >= before.generation);
    let incarnation = |of: &Snapshot| {
        let primary = of.primary.and_then(|primary| before.server(primary));
        primary.map(|view| view.incarnation)
    };
    let now = snapshot
        .primary
        .and_then(|primary| snapshot.server(primary));
    let reborn =
        snapshot.primary.is_some() && incarnation(snapshot) != now.map(|view| view.incarnation);
    let moved = u64::from(snapshot.primary != before.primary || reborn);
    assert_eq!(snapshot.epoch, before.epoch + moved);
}

fn run(seed: u64, steps: u32) {
    let mut random = Random(seed);
    let servers = 2 + random.below(3) as u16;
    let mut world = world(servers);
    let mut believed = vec![Believed::default(); usize::from(servers)];
    for step in 1..=u64::from(steps) {
        let server = ServerId(random.below(u64::from(servers)) as u16);
        let kind = random.kind();
        let before = world.topology.snapshot();
        let events = world.see(server, kind.clone());
        let after = world.topology.snapshot();
        believe(
            &mut believed[server.index()],
            &kind,
            (
                before.servers[server.index()].health,
                after.servers[server.index()].health,
            ),
            step,
        );
        // What others say of it can make a suspect server down.
        for (believed, view) in believed.iter_mut().zip(&after.servers) {
            if matches!(view.health, Health::Down { .. }) {
                believed.report = None;
                believed.unconfirmed = None;
            }
        }
        confirm(&mut believed, &after);
        check(&after, &believed, &before);
        let told = events
            .iter()
            .any(|event| matches!(event, ChangeEvent::Primary { .. }));
        assert_eq!(told, before.primary != after.primary, "every move is told");
    }
}

#[test]
fn whatever_is_seen_the_judgement_holds() {
    for seed in 0..300 {
        run(seed, 200);
    }
}

#[test]
fn the_same_observations_give_the_same_judgement() {
    let mut worlds = [world(3), world(3)];
    let mut random = Random(7);
    for _ in 0..500 {
        let server = ServerId(random.below(3) as u16);
        let kind = random.kind();
        let [one, two] = &mut worlds;
        assert_eq!(one.see(server, kind.clone()), two.see(server, kind));
    }
}
