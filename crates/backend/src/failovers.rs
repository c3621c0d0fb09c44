//! The last changes of the primary as timelines: what was seen when, and what became of the
//! statements that they met. Judges nothing, and keeps no more than the last few.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use millrace_topology::{Millis, ServerId};

/// A timeline's evidence gets no further lines once it is so long; bytes.
const EVIDENCE_MAX: usize = 1000;

/// A statement's end belongs to a change of primary that is noticed later if it was so much before the
/// first sign of that at most; milliseconds.
const BEFORE_MS: u64 = 2000;

/// And to one that is over for so long at most: a statement may have waited for its connection to time
/// out; milliseconds.
const AFTER_MS: u64 = 60_000;

/// Ends that belong to no change so far; the oldest is forgotten.
const EARLY_MAX: usize = 10_000;

/// Timelines kept.
pub const TIMELINES_MAX: usize = 32;

/// What became of a statement, or of an open transaction, that met a change of primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailoverCount {
    /// It waits, or waited, for a primary. Counted when it begins to wait.
    Held,
    /// It was sent again, to another server or on another connection.
    Retried,
    /// Its transaction was replayed on the new primary.
    Replayed,
    /// It ended with an error, and had no effect; or its result broke off.
    Failed,
    /// It ended with an error that says that its outcome is not known.
    UnknownOutcome,
}

impl FailoverCount {
    /// All of them.
    pub const ALL: [FailoverCount; 5] = [
        FailoverCount::Held,
        FailoverCount::Retried,
        FailoverCount::Replayed,
        FailoverCount::Failed,
        FailoverCount::UnknownOutcome,
    ];

    /// As a label of metrics and a column's name.
    pub fn as_str(self) -> &'static str {
        match self {
            FailoverCount::Held => "held",
            FailoverCount::Retried => "retried",
            FailoverCount::Replayed => "replayed",
            FailoverCount::Failed => "failed",
            FailoverCount::UnknownOutcome => "unknown_outcome",
        }
    }
}

/// Why the primary changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoveKind {
    /// The old primary was lost: it does not answer, or its group has expelled it.
    Lost,
    /// The old primary answers and takes no writes any more: a switchover.
    Planned,
    /// An operator drained the old primary.
    Drained,
    /// Several servers claim to be the primary, or it cannot be told from an old one.
    Conflict,
}

impl MoveKind {
    /// All of them.
    pub const ALL: [MoveKind; 4] = [
        MoveKind::Lost,
        MoveKind::Planned,
        MoveKind::Drained,
        MoveKind::Conflict,
    ];

    /// As a label of metrics and a column's value.
    pub fn as_str(self) -> &'static str {
        match self {
            MoveKind::Lost => "lost",
            MoveKind::Planned => "planned",
            MoveKind::Drained => "drained",
            MoveKind::Conflict => "conflict",
        }
    }
}

impl fmt::Display for MoveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A moment, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since the process started.
    pub at: Millis,
    /// The wall clock's time.
    pub wall: SystemTime,
}

/// A server as it was called when the timeline was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Its index.
    pub id: ServerId,
    /// Its address.
    pub address: Arc<str>,
}

/// One change of the primary. What has not happened (yet) is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// Counts the changes since the process started, from 1.
    pub number: u64,
    /// Why.
    pub kind: MoveKind,
    /// The primary before.
    pub old: Option<Named>,
    /// The primary after; the old one again where it came back.
    pub new: Option<Named>,
    /// The old primary's last good answer to a probe.
    pub last_good: Option<Moment>,
    /// The first sign that something is wrong. None where there was none before the judgement.
    pub suspected: Option<Moment>,
    /// What that was; empty where there was none.
    pub suspicion: Box<str>,
    /// The primary was taken out of use.
    pub judged: Moment,
    /// What that was judged from.
    pub evidence: Box<str>,
    /// The new primary was known.
    pub known: Option<Moment>,
    /// The first statement that had waited was served by the new primary.
    pub served: Option<Moment>,
    /// What became of statements, in the order of [`FailoverCount::ALL`].
    pub counts: [u64; FailoverCount::ALL.len()],
}

impl Timeline {
    /// How many statements came to this.
    pub fn count(&self, what: FailoverCount) -> u64 {
        self.counts[what as usize]
    }

    /// How long no server took writes, in milliseconds; none while none does.
    pub fn pause_ms(&self) -> Option<u64> {
        Some(self.known?.at.since(self.judged.at))
    }
}

/// What the monitor tells when the primary is gone.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    pub(crate) kind: MoveKind,
    /// The kind is not certain: what was judged from may be old, and is asked for again.
    pub(crate) provisional: bool,
    pub(crate) old: Option<Named>,
    pub(crate) last_good: Option<Millis>,
    pub(crate) suspected: Option<(Millis, Box<str>)>,
    pub(crate) evidence: Box<str>,
}

/// The last changes of the primary, for all threads. Sessions call it only when something is wrong.
#[derive(Debug, Default)]
pub struct Failovers {
    kept: Mutex<Kept>,
    totals: [AtomicU64; FailoverCount::ALL.len()],
    /// The server, and one, whose first statement is waited for; 0: none.
    awaited: AtomicU32,
}

/// What came of a statement before the change that it belongs to was known: clients meet the loss of
/// a primary before it is judged.
#[derive(Debug)]
struct Early {
    at: Millis,
    /// Whose connection it was on.
    server: Option<ServerId>,
    what: FailoverCount,
}

#[derive(Debug, Default)]
struct Kept {
    /// What belongs to no change so far. Most belongs to none: a connection that was killed, say.
    early: VecDeque<Early>,
    timelines: VecDeque<Timeline>,
    made: u64,
    /// The time now by both clocks, as the monitor last saw it.
    origin: Option<std::time::Instant>,
    by_kind: [u64; 4],
    /// The last timeline's kind is provisional, and not counted yet.
    provisional: bool,
}

impl Failovers {
    pub(crate) fn new(origin: std::time::Instant) -> Self {
        let kept = Kept {
            origin: Some(origin),
            ..Kept::default()
        };
        Failovers {
            kept: Mutex::new(kept),
            ..Failovers::default()
        }
    }

    /// Something came of a statement that met a change of primary, or the loss of a connection to
    /// `server`. It is counted with the change that it belongs to, which may not be known yet.
    pub fn count(&self, what: FailoverCount, server: Option<ServerId>) {
        self.totals[what as usize].fetch_add(1, Relaxed);
        let mut kept = self.lock();
        let at = kept.now().at;
        match kept.belongs_to(server, at) {
            Some(timeline) => timeline.counts[what as usize] += 1,
            None => {
                if kept.early.len() == EARLY_MAX {
                    kept.early.pop_front();
                }
                kept.early.push_back(Early { at, server, what });
            }
        }
    }

    /// A statement that had waited for a primary was answered by this server. Cheap where nobody
    /// waits to hear it.
    pub fn served(&self, server: ServerId) {
        if self.awaited.load(Relaxed) != u32::from(server.0) + 1 {
            return;
        }
        let mut kept = self.lock();
        let now = kept.now();
        if let Some(last) = kept.timelines.back_mut()
            && last.new.as_ref().is_some_and(|new| new.id == server)
            && last.served.is_none()
        {
            last.served = Some(now);
        }
        self.awaited.store(0, Relaxed);
    }

    /// The timelines, the latest first.
    pub fn list(&self) -> Vec<Timeline> {
        self.lock().timelines.iter().rev().cloned().collect()
    }

    /// What became of statements since the start, in the order of [`FailoverCount::ALL`].
    pub fn totals(&self) -> [u64; FailoverCount::ALL.len()] {
        std::array::from_fn(|at| self.totals[at].load(Relaxed))
    }

    /// Changes of primary since the start, by kind.
    pub fn made(&self, kind: MoveKind) -> u64 {
        self.lock().by_kind[kind as usize]
    }

    /// The primary is gone: a timeline begins.
    pub(crate) fn lost(&self, loss: Loss) {
        let mut kept = self.lock();
        let now = kept.now();
        let moment = |at: Millis| Moment {
            at,
            wall: now.wall - Duration::from_millis(now.at.since(at)),
        };
        kept.confirm_kind(None);
        kept.made += 1;
        let (suspected, suspicion) = match loss.suspected {
            Some((at, why)) => (Some(moment(at)), why),
            None => (None, "".into()),
        };
        let since = [loss.last_good, suspected.map(|moment: Moment| moment.at)];
        let since = since.into_iter().flatten().map(|at| at.0).min();
        let since = since.unwrap_or(now.at.0).saturating_sub(BEFORE_MS);
        let old = loss.old.as_ref().map(|old| old.id);
        let mut counts = [0; FailoverCount::ALL.len()];
        for early in kept.early.drain(..) {
            if early.at.0 >= since && (early.server.is_none() || early.server == old) {
                counts[early.what as usize] += 1;
            }
        }
        let timeline = Timeline {
            number: kept.made,
            kind: loss.kind,
            old: loss.old,
            new: None,
            last_good: loss.last_good.map(moment),
            suspected,
            suspicion,
            judged: now,
            evidence: loss.evidence,
            known: None,
            served: None,
            counts,
        };
        if kept.timelines.len() == TIMELINES_MAX {
            kept.timelines.pop_front();
        }
        kept.timelines.push_back(timeline);
        kept.provisional = true;
        if !loss.provisional {
            kept.confirm_kind(None);
        }
    }

    /// The old primary, and since when the kind of its loss is provisional; none where that is certain.
    pub(crate) fn provisional(&self) -> Option<(ServerId, Millis)> {
        let kept = self.lock();
        let last = kept.timelines.back().filter(|_| kept.provisional)?;
        Some((last.old.as_ref()?.id, last.judged.at))
    }

    /// The kind of the last change is certain now, where it was not.
    pub(crate) fn confirm_kind(&self, kind: MoveKind) {
        self.lock().confirm_kind(Some(kind));
    }

    /// More is known while there is no primary. A kind that is certain stays (a server that was demoted may
    /// be stopped then), unless several servers claim to be the primary.
    pub(crate) fn rejudged(&self, kind: MoveKind, evidence: &str) {
        let mut kept = self.lock();
        kept.confirm_kind(Some(kind));
        let Some(last) = kept.timelines.back_mut().filter(|last| last.new.is_none()) else {
            return;
        };
        if kind == MoveKind::Conflict {
            last.kind = kind;
        }
        if last.evidence.len() < EVIDENCE_MAX {
            last.evidence = format!("{}; then {evidence}", last.evidence).into();
        }
    }

    /// There is a primary.
    pub(crate) fn found(&self, new: Named) {
        let mut kept = self.lock();
        let now = kept.now();
        let Some(last) = kept.timelines.back_mut().filter(|last| last.new.is_none()) else {
            return;
        };
        self.awaited.store(u32::from(new.id.0) + 1, Relaxed);
        last.new = Some(new);
        last.known = Some(now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Counts the last timeline, once, by this kind or the one it has.
    fn confirm_kind(&mut self, kind: Option<MoveKind>) {
        if !std::mem::take(&mut self.provisional) {
            return;
        }
        if let Some(last) = self.timelines.back_mut() {
            last.kind = kind.unwrap_or(last.kind);
            self.by_kind[last.kind as usize] += 1;
        }
    }

    /// The change that something belongs to: the one under way, or one by which `server` ceased to be the
    /// primary a while ago.
    fn belongs_to(&mut self, server: Option<ServerId>, at: Millis) -> Option<&mut Timeline> {
        let last = self.timelines.back()?;
        let is = |named: &Option<Named>| named.as_ref().map(|named| named.id) == server;
        if last.new.is_none() {
            return self.timelines.back_mut();
        }
        if server.is_none() || is(&last.new) {
            return None;
        }
        self.timelines.iter_mut().rev().find(|timeline| {
            let known = timeline.known.map_or(at, |known| known.at);
            is(&timeline.old) && at.since(known) <= AFTER_MS
        })
    }

    fn now(&self) -> Moment {
        let elapsed = self
            .origin
            .map_or(Duration::ZERO, |origin| origin.elapsed());
        Moment {
            at: Millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
            wall: SystemTime::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: u16) -> Named {
        Named {
            id: ServerId(id),
            address: format!("s{id}:3306").into(),
        }
    }

    fn loss(kind: MoveKind) -> Loss {
        Loss {
            kind,
            provisional: false,
            old: Some(named(0)),
            last_good: Some(Millis(0)),
            suspected: Some((Millis(0), "no answer".into())),
            evidence: "refused".into(),
        }
    }

    #[test]
    fn a_timeline_is_told_from_the_loss_to_the_first_statement() {
        let failovers = Failovers::new(std::time::Instant::now());
        failovers.served(ServerId(1));
        failovers.lost(loss(MoveKind::Lost));
        failovers.count(FailoverCount::Held, None);
        failovers.count(FailoverCount::Held, None);
        failovers.served(ServerId(1));
        assert_eq!(failovers.list()[0].served, None, "nobody is known yet");
        failovers.found(named(1));
        failovers.served(ServerId(2));
        assert_eq!(failovers.list()[0].served, None, "another server");
        failovers.served(ServerId(1));
        let timeline = &failovers.list()[0];
        assert!(timeline.served.is_some() && timeline.pause_ms().is_some());
        assert_eq!(timeline.count(FailoverCount::Held), 2);
        assert_eq!(failovers.made(MoveKind::Lost), 1);
        assert_eq!(failovers.totals(), [2, 0, 0, 0, 0]);
    }

    #[test]
    fn what_clients_met_is_counted_with_the_change_that_it_belongs_to() {
        let failovers = Failovers::new(std::time::Instant::now());
        let unknown =
            |server| failovers.count(FailoverCount::UnknownOutcome, Some(ServerId(server)));
        let counts = || {
            let list = failovers.list();
            let counts = list
                .iter()
                .map(|it| it.count(FailoverCount::UnknownOutcome));
            counts.collect::<Vec<_>>()
        };
        // A planned change, from 0 to 1.
        failovers.lost(loss(MoveKind::Planned));
        failovers.found(named(1));
        // The new primary crashes: clients know it before the monitor does.
        unknown(1);
        unknown(1);
        // A replica's connections have nothing to do with that.
        unknown(2);
        assert_eq!(counts(), [0]);
        failovers.lost(Loss {
            old: Some(named(1)),
            ..loss(MoveKind::Lost)
        });
        assert_eq!(counts(), [2, 0]);
        unknown(1);
        failovers.found(named(2));
        // One had to wait for its connection to time out.
        unknown(1);
        assert_eq!(counts(), [4, 0]);
        assert_eq!(failovers.totals(), [0, 0, 0, 0, 5]);
    }

    #[test]
    fn only_the_last_are_kept_the_latest_first() {
        let failovers = Failovers::new(std::time::Instant::now());
        for _ in 0..TIMELINES_MAX + 3 {
            failovers.lost(loss(MoveKind::Planned));
            failovers.found(named(1));
        }
        let list = failovers.list();
        assert_eq!(list.len(), TIMELINES_MAX);
        assert_eq!(list[0].number, TIMELINES_MAX as u64 + 3);
    }

    #[test]
    fn what_looked_planned_may_turn_out_a_conflict() {
        let failovers = Failovers::new(std::time::Instant::now());
        failovers.lost(loss(MoveKind::Planned));
        failovers.rejudged(MoveKind::Lost, "connection refused");
        assert_eq!(failovers.list()[0].kind, MoveKind::Planned);
        assert_eq!(
            &*failovers.list()[0].evidence,
            "refused; then connection refused"
        );
        failovers.rejudged(MoveKind::Conflict, "two are writable");
        assert_eq!(failovers.list()[0].kind, MoveKind::Conflict);
    }

    #[test]
    fn a_change_is_counted_once_when_its_kind_is_certain() {
        let failovers = Failovers::new(std::time::Instant::now());
        let made = || MoveKind::ALL.map(|kind| failovers.made(kind));
        let provisional = || {
            failovers.lost(Loss {
                provisional: true,
                ..loss(MoveKind::Conflict)
            });
        };
        provisional();
        assert!(failovers.provisional().is_some());
        assert_eq!(made(), [0; 4]);
        failovers.confirm_kind(MoveKind::Planned);
        failovers.confirm_kind(MoveKind::Lost);
        assert_eq!(failovers.list()[0].kind, MoveKind::Planned);
        assert_eq!((made(), failovers.provisional()), ([0, 1, 0, 0], None));
        provisional();
        failovers.rejudged(MoveKind::Lost, "refused");
        assert_eq!(made(), [1, 1, 0, 0]);
        // Another follows before anything is certain.
        provisional();
        failovers.lost(loss(MoveKind::Drained));
        assert_eq!(made(), [1, 1, 1, 1]);
    }
}
