//! Tells what changed: lines for the log, timelines for the record of failovers. Changes nothing.

use millrace_topology::{
    ChangeEvent, Evidence, Millis, NoPrimary, ObservationKind, ServerId, ServerView, Snapshot,
    Topology, Unfit,
};
use tracing::{debug, info, warn};

use crate::failovers::{Failovers, Loss, MoveKind, Named};

/// What an observation says, for the record of what was judged from it.
pub(crate) fn reason(kind: &ObservationKind) -> Box<str> {
    match kind {
        ObservationKind::ProbeOk(report) if report.stuck_commits > 0 => {
            let stuck = report.stuck_commits;
            format!("its answer to a probe: {stuck} commits do not end").into()
        }
        ObservationKind::ProbeOk(_) => "its answer to a probe".into(),
        ObservationKind::ProbeFailed { cause, text } => {
            format!("a probe failed: {}: {text}", cause.as_str()).into()
        }
        ObservationKind::LiveError(cause) => {
            format!("a client's connection failed: {}", cause.as_str()).into()
        }
        ObservationKind::RefusedWrite => "it refused a client's write".into(),
        ObservationKind::Means { .. } => "its name means other machines".into(),
        ObservationKind::Drain { by } => format!("drained by {by}").into(),
        ObservationKind::Resume { by } => format!("resumed by {by}").into(),
    }
}

/// A server by its address.
pub(crate) fn name(snapshot: &Snapshot, id: ServerId) -> String {
    let view = snapshot.server(id);
    view.map_or_else(|| id.to_string(), |view| view.address.to_string())
}

/// What the log says about a change of primary.
pub(crate) fn sentence(evidence: &Evidence, at: u64, reason: &str) -> String {
    let mut text = reason.to_owned();
    if let Some((since, what)) = &evidence.suspicion
        && **what != *reason
    {
        let ago = at.saturating_sub(since.0);
        text = format!("{what}, {ago} ms ago; then {reason}");
    }
    if !evidence.beside.is_empty() {
        text.push_str("; ");
        text.push_str(&evidence.beside);
    }
    if let Some(last) = evidence.last_good {
        let ago = at.saturating_sub(last.0);
        text.push_str(&format!("; its last good answer was {ago} ms ago"));
    }
    text
}

/// Keeps the record of changes of the primary; logs what they were judged from.
pub(crate) fn note(
    failovers: &Failovers,
    before: &Snapshot,
    topology: &Topology,
    server: ServerId,
    at: u64,
    reason: &str,
) {
    let now = &*topology.snapshot();
    if before.primary == now.primary {
        if let Some((old, since)) = failovers.provisional()
            && is_conflict_without_doubt(now, old, since)
        {
            failovers.confirm_kind(MoveKind::Conflict);
        }
        let kind = |snapshot: &Snapshot| snapshot.without.map(move_kind);
        if let (Some(from), Some(to)) = (kind(before), kind(now))
            && from != to
        {
            failovers.rejudged(to, &format!("{}: {reason}", name(now, server)));
        }
        return;
    }
    let named = |id: ServerId| Named {
        id,
        address: name(now, id).into(),
    };
    if let Some(old) = before.primary {
        let evidence = topology.evidence(old);
        let reason = format!("{}: {reason}", name(now, server));
        let sentence = sentence(&evidence, at, &reason);
        let kind = match now.without {
            Some(why) => move_kind(why),
            None => succession(now, old),
        };
        warn!(
            server = %name(now, old), kind = %kind, evidence = %sentence,
            "the primary takes no writes any more"
        );
        failovers.lost(Loss {
            kind,
            // The other may have been promoted after the old one answered last.
            provisional: now.without == Some(NoPrimary::Conflict)
                && server != old
                && now.conflict.contains(&old),
            old: Some(named(old)),
            last_good: evidence.last_good,
            suspected: evidence.suspicion,
            evidence: sentence.into(),
        });
    }
    if let Some(new) = now.primary {
        let lacks = topology.lacks(new);
        if lacks > 0 && before.primary != Some(new) {
            warn!(
                server = %name(now, new), transactions = lacks,
                "the new primary lacks transactions that the old one had executed"
            );
        }
        if let Some((old, _)) = failovers.provisional() {
            let kind = match old == new {
                true => MoveKind::Conflict,
                false => succession(now, old),
            };
            info!(kind = %kind, "what looked like a conflict is over");
            failovers.confirm_kind(kind);
        }
        failovers.found(named(new));
    }
}

/// What began as a conflict with the old primary is one: it has claimed its role again when it was asked
/// since, or others claim it without it.
fn is_conflict_without_doubt(now: &Snapshot, old: ServerId, since: Millis) -> bool {
    match now.without {
        Some(NoPrimary::Conflict) => {
            !now.conflict.contains(&old) || was_asked_since(now, old, since)
        }
        Some(NoPrimary::Doubtful(_)) => true,
        _ => false,
    }
}

/// Its last answer is to a question that was asked at this time or later.
fn was_asked_since(now: &Snapshot, server: ServerId, since: Millis) -> bool {
    let asked = |view: &ServerView| {
        let took = u64::from(view.report.as_ref()?.round_trip_us).div_ceil(1000);
        Some(view.probed_at?.0.saturating_sub(took))
    };
    let asked = now.server(server).and_then(asked);
    asked.is_some_and(|asked| asked >= since.0)
}

/// One primary followed the other without a break between them.
fn succession(now: &Snapshot, old: ServerId) -> MoveKind {
    match now.server(old) {
        Some(view) if view.draining => MoveKind::Drained,
        Some(view) if view.health.is_usable() => MoveKind::Planned,
        _ => MoveKind::Lost,
    }
}

fn move_kind(without: NoPrimary) -> MoveKind {
    match without {
        NoPrimary::NotAsked
        | NoPrimary::Nobody
        | NoPrimary::Lost(_)
        | NoPrimary::NoQuorum
        | NoPrimary::Stalled(_)
        | NoPrimary::Replicates(_)
        | NoPrimary::Fixed(_)
        | NoPrimary::Unreachable(_) => MoveKind::Lost,
        NoPrimary::Demoted(_) => MoveKind::Planned,
        NoPrimary::Draining(_) => MoveKind::Drained,
        NoPrimary::Conflict | NoPrimary::Doubtful(_) => MoveKind::Conflict,
    }
}

/// Writes a change to the log.
pub(crate) fn log(event: &ChangeEvent, snapshot: &Snapshot) {
    let name = |id: ServerId| name(snapshot, id);
    match event {
        ChangeEvent::Fitness {
            server,
            unfit: Some(Unfit::Writable),
        } if snapshot.primary.is_some() => warn!(server = %name(*server), "{event}"),
        ChangeEvent::Health { server, .. }
        | ChangeEvent::Role { server, .. }
        | ChangeEvent::Fitness { server, .. }
        | ChangeEvent::Draining { server, .. }
        | ChangeEvent::Resumed { server, .. }
        | ChangeEvent::Several { server }
        | ChangeEvent::Forgotten { server } => info!(server = %name(*server), "{event}"),
        ChangeEvent::Identity { server } => warn!(server = %name(*server), "{event}"),
        ChangeEvent::Found { server, by } => {
            info!(server = %name(*server), by = %name(*by), "{event}");
        }
        ChangeEvent::SameServer { server, known_as } => {
            info!(server = %name(*server), known_as = %name(*known_as), "{event}");
        }
        ChangeEvent::TooMany { by, address } => {
            warn!(server = %address, by = %name(*by), "{event}; see discovery.max_servers");
        }
        ChangeEvent::Suspected { server } => debug!(server = %name(*server), "{event}"),
        ChangeEvent::Primary { to: Some(to), .. } => info!(server = %name(*to), "{event}"),
        ChangeEvent::Primary { to: None, .. } => {
            let why = snapshot.without.map(|why| why.to_string());
            let advice = snapshot.without.map(NoPrimary::advice);
            warn!(why, advice, "{event}");
        }
        ChangeEvent::Without { why } => {
            let server = why.server().map(name);
            warn!(server, advice = why.advice(), "{event}");
        }
        ChangeEvent::Overruled { configured, by } => {
            warn!(server = %name(*configured), by = %name(*by), "{event}");
        }
        ChangeEvent::Conflict { servers } => {
            let names: Vec<_> = servers.iter().map(|id| name(*id)).collect();
            warn!(servers = names.join(", "), "{event}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_topology::{Cause, Family, Observation, Options, ProbeReport, ServerSpec};

    const A: ServerId = ServerId(0);
    const B: ServerId = ServerId(1);
    const C: ServerId = ServerId(2);
    /// After whatever the test takes: milliseconds since the process started.
    const LATER: u64 = 1_000_000;

    fn report(read_only: bool, round_trip_us: u32) -> ObservationKind {
        ObservationKind::ProbeOk(Box::new(ProbeReport {
            read_only,
            round_trip_us,
            ..ProbeReport::new(Family::MySql)
        }))
    }

    fn refused() -> ObservationKind {
        ObservationKind::ProbeFailed {
            cause: Cause::Refused,
            text: "refused".into(),
        }
    }

    /// A is the primary, B and C are read only, and then B is found writable before A is asked again.
    struct Story(Topology, Failovers);

    impl Story {
        fn new() -> Story {
            let servers = ["a:3306", "b:3306", "c:3306"].map(ServerSpec::new).into();
            let origin = std::time::Instant::now() - std::time::Duration::from_secs(1);
            let failovers = Failovers::new(origin);
            let mut story = Story(Topology::new(Options::default(), servers), failovers);
            story.see(A, 0, report(false, 0));
            story.see(B, 0, report(true, 0));
            story.see(C, 0, report(true, 0));
            story.see(B, 0, report(false, 0));
            assert_eq!(story.0.snapshot().without, Some(NoPrimary::Conflict));
            assert_eq!(story.made(), [0; 4], "not before A was asked");
            story
        }

        fn see(&mut self, server: ServerId, at: u64, kind: ObservationKind) {
            let before = self.0.snapshot();
            self.0.fold(Observation {
                server,
                at: Millis(at),
                kind,
            });
            note(&self.1, &before, &self.0, server, at, "its answer");
        }

        fn made(&self) -> [u64; 4] {
            MoveKind::ALL.map(|kind| self.1.made(kind))
        }
    }

    #[test]
    fn a_switchover_whose_second_half_is_seen_first_is_planned() {
        let mut story = Story::new();
        story.see(A, LATER, report(true, 0));
        assert_eq!(story.0.snapshot().primary, Some(B));
        assert_eq!(story.made(), [0, 1, 0, 0]);
        assert_eq!(story.1.list()[0].kind, MoveKind::Planned);
    }

    #[test]
    fn a_second_writable_server_is_a_conflict_when_the_first_says_that_it_is_writable_still() {
        let mut story = Story::new();
        let asked_before = u32::try_from(LATER * 1000).unwrap();
        story.see(A, LATER, report(false, asked_before));
        assert_eq!(story.made(), [0; 4]);
        story.see(A, LATER, report(false, 0));
        assert_eq!(story.made(), [0, 0, 0, 1]);
        story.see(A, LATER + 1, report(true, 0));
        assert_eq!(story.0.snapshot().primary, Some(B));
        assert_eq!(story.made(), [0, 0, 0, 1], "it ends as what it was");
    }

    #[test]
    fn a_primary_that_does_not_answer_beside_a_new_one_is_lost() {
        let mut story = Story::new();
        story.see(A, LATER, refused());
        assert_eq!(story.0.snapshot().primary, Some(B));
        assert_eq!(story.made(), [1, 0, 0, 0]);
    }

    #[test]
    fn two_others_beside_a_primary_that_is_gone_are_a_conflict() {
        let mut story = Story::new();
        story.see(C, LATER, report(false, 0));
        assert_eq!(story.made(), [0; 4]);
        story.see(A, LATER, refused());
        assert_eq!(story.0.snapshot().without, Some(NoPrimary::Conflict));
        assert_eq!(story.made(), [0, 0, 0, 1]);
    }

    #[test]
    fn a_second_writable_server_that_is_none_any_more_was_a_conflict() {
        let mut story = Story::new();
        story.see(B, LATER, report(true, 0));
        assert_eq!(story.0.snapshot().primary, Some(A));
        assert_eq!(story.made(), [0, 0, 0, 1]);
    }
}
