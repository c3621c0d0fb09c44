//! Folds observations into what is known of each server, and publishes a snapshot after each.
//! Judging roles and fitness is `judge`'s; asking servers is nobody's here.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::judge::{self, Verdict};
use crate::{
    Cause, ConfiguredRole, GtidSet, Health, Millis, Observation, ObservationKind, ProbeReport,
    Role, ServerId, ServerView, Snapshot, Unfit,
};

/// How servers are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// A replica further behind than this takes no reads, in seconds. Default 30.
    pub lag_seconds_max: u64,
    /// A replica that runs more statements than this at once takes no reads until it runs fewer; 0: no
    /// number is too many. Default 0.
    pub running_max: u32,
    /// A server that takes reads again gets its full share of them only after this time, and a tenth
    /// to begin with, in milliseconds; 0: at once. Default 10,000.
    pub slow_start_ms: u64,
    /// So many failed probes in a row make a server down; a refused connection, or a server that
    /// never answered, needs one. Default 2.
    pub fail_after: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lag_seconds_max: 30,
            running_max: 0,
            slow_start_ms: 10_000,
            fail_after: 2,
        }
    }
}

/// A server as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpec {
    /// `host:port`, or the path of a socket.
    pub address: Arc<str>,
    /// The role it is given.
    pub role: ConfiguredRole,
    /// Its share of reads, relative to the others'; 0: none unless it is the primary.
    pub weight: u32,
    /// Its zone; empty where none is given.
    pub zone: Arc<str>,
}

impl ServerSpec {
    /// A server whose role is found by asking it.
    pub fn new(address: &str) -> Self {
        ServerSpec {
            address: address.into(),
            role: ConfiguredRole::Auto,
            weight: 1,
            zone: "".into(),
        }
    }
}

/// Something that changed, worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeEvent {
    /// Started or stopped answering.
    Health {
        /// Which server.
        server: ServerId,
        /// Before.
        from: Health,
        /// Now.
        to: Health,
    },
    /// Something looks wrong: the server should be probed at once.
    Suspected {
        /// Which server.
        server: ServerId,
    },
    /// Another role.
    Role {
        /// Which server.
        server: ServerId,
        /// Before.
        from: Role,
        /// Now.
        to: Role,
    },
    /// Takes reads again, or no longer. Not repeated while only the lag's number changes.
    Fitness {
        /// Which server.
        server: ServerId,
        /// Why not; none where it takes reads.
        unfit: Option<Unfit>,
    },
    /// Writes go elsewhere, or nowhere.
    Primary {
        /// Before.
        from: Option<ServerId>,
        /// Now.
        to: Option<ServerId>,
    },
    /// These servers all claim to be the primary: none of them gets writes.
    Conflict {
        /// Which servers.
        servers: Vec<ServerId>,
    },
    /// Another server (or another copy of the data) answers at the address: what was known of its
    /// positions is forgotten.
    Identity {
        /// Which server.
        server: ServerId,
    },
}

impl fmt::Display for ChangeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeEvent::Health { server, to, .. } => match to {
                Health::Down { cause, .. } => {
                    write!(f, "server {server} is down: {}", cause.as_str())
                }
                Health::Suspect { .. } => write!(f, "server {server} may be down"),
                Health::Up | Health::Unknown => write!(f, "server {server} is up"),
            },
            ChangeEvent::Suspected { server } => write!(f, "server {server} is to be probed"),
            ChangeEvent::Role { server, to, .. } => write!(f, "server {server} is now {to}"),
            ChangeEvent::Fitness { server, unfit } => match unfit {
                Some(why) => write!(f, "server {server} takes no reads: {why}"),
                None => write!(f, "server {server} takes reads"),
            },
            ChangeEvent::Primary { to: Some(to), .. } => write!(f, "server {to} takes writes"),
            ChangeEvent::Primary { to: None, .. } => f.write_str("no server takes writes"),
            ChangeEvent::Conflict { servers } => {
                f.write_str("several servers claim to be the primary:")?;
                servers.iter().try_for_each(|server| write!(f, " {server}"))
            }
            ChangeEvent::Identity { server } => {
                write!(f, "another server or older data answers as {server}")
            }
        }
    }
}

/// What is known of one server.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) spec: ServerSpec,
    pub(crate) health: Health,
    /// Failed probes in a row.
    failures: u32,
    /// Alive, but how often in a row and why the monitor could not ask it.
    pub(crate) blind: Option<(u32, Cause)>,
    pub(crate) report: Option<Arc<ProbeReport>>,
    /// The report was made since the server last came up.
    pub(crate) fresh: bool,
    /// It refused a client's write since the report.
    pub(crate) refused_write: bool,
    probed_at: Option<Millis>,
    incarnation: u32,
    /// How far behind the primary it was at the last probe, in whole seconds.
    pub(crate) lag_seconds: Option<u64>,
    /// It was asked and took no reads.
    was_unfit: bool,
    /// Since when it takes reads again.
    back_since: Option<Millis>,
}

impl State {
    fn new(spec: ServerSpec) -> Self {
        State {
            spec,
            health: Health::Unknown,
            failures: 0,
            blind: None,
            report: None,
            fresh: false,
            refused_write: false,
            probed_at: None,
            incarnation: 0,
            lag_seconds: None,
            was_unfit: false,
            back_since: None,
        }
    }

    /// The report, where it can still be believed.
    pub(crate) fn current(&self) -> Option<&ProbeReport> {
        self.report.as_deref().filter(|_| self.fresh)
    }

    /// Takes a report; true where another server or older data answers than before.
    fn accept(&mut self, report: ProbeReport, at: Millis) -> bool {
        let changed = self
            .report
            .as_deref()
            .is_some_and(|old| is_another(old, &report));
        self.incarnation += u32::from(changed);
        self.report = Some(Arc::new(report));
        self.probed_at = Some(at);
        self.fresh = true;
        self.refused_write = false;
        self.blind = None;
        self.failures = 0;
        self.health = Health::Up;
        changed
    }

    fn probe_failed(&mut self, cause: Cause, at: Millis, fail_after: u32) {
        if cause.is_alive() {
            let times = self.blind.map_or(0, |(times, _)| times);
            self.blind = Some((times.saturating_add(1), cause));
            self.failures = 0;
            self.health = Health::Up;
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let never_answered = matches!(self.health, Health::Unknown);
        if never_answered || cause == Cause::Refused || self.failures >= fail_after {
            self.fall(cause, at);
        } else {
            self.suspect(at);
        }
    }

    fn live_error(&mut self, cause: Cause, at: Millis) {
        match cause {
            Cause::Refused => self.fall(cause, at),
            _ if cause.is_alive() => {}
            _ => self.suspect(at),
        }
    }

    fn fall(&mut self, cause: Cause, at: Millis) {
        let since = match self.health {
            Health::Down { since, .. } | Health::Suspect { since } => since,
            Health::Unknown | Health::Up => at,
        };
        self.health = Health::Down { since, cause };
        self.fresh = false;
        self.blind = None;
    }

    fn suspect(&mut self, at: Millis) {
        if self.health == Health::Up {
            self.health = Health::Suspect { since: at };
        }
    }

    /// Notes whether it takes reads; answers its share of them.
    fn share(&mut self, unfit: Option<Unfit>, at: Millis, options: &Options) -> u32 {
        const FULL: u64 = 100;
        const FIRST: u64 = 10;
        match unfit {
            Some(Unfit::NotProbed) => {}
            Some(_) => {
                self.was_unfit = true;
                self.back_since = None;
            }
            None if std::mem::take(&mut self.was_unfit) => self.back_since = Some(at),
            None => {}
        }
        let percent = match self.back_since {
            Some(since) if at.0 < since.0.saturating_add(options.slow_start_ms) => {
                FIRST + (FULL - FIRST) * (at.0 - since.0) / options.slow_start_ms
            }
            _ => FULL,
        };
        let share = u64::from(self.spec.weight) * percent;
        u32::try_from(share).unwrap_or(u32::MAX)
    }

    fn view(
        &mut self,
        id: ServerId,
        verdict: &Verdict,
        at: Millis,
        options: &Options,
    ) -> ServerView {
        let unfit = judge::unfit(self, id, verdict, options);
        let share = self.share(unfit, at, options);
        let report = self.report.as_deref();
        ServerView {
            id,
            address: self.spec.address.clone(),
            zone: self.spec.zone.clone(),
            weight: self.spec.weight,
            share,
            role: judge::role(self, id, verdict),
            health: self.health,
            unfit,
            lag_seconds: self.current().and(self.lag_seconds),
            gtid: report.is_some_and(|report| report.gtid),
            executed: report.map_or_else(
                || crate::GtidSet::new(verdict.family.unwrap_or(crate::Family::MySql)),
                |report| report.executed.clone(),
            ),
            report: self.report.clone(),
            probed_at: self.probed_at,
            incarnation: self.incarnation,
        }
    }
}

fn is_another(old: &ProbeReport, new: &ProbeReport) -> bool {
    old.family != new.family
        || old.server_uuid != new.server_uuid
        || old.server_id != new.server_id
        || !new.executed.contains(&old.executed)
}

/// Where the primary was at which time. A replica is as late as the oldest of these that it has not
/// reached. What servers say of their lag themselves is measured by the clock in the transaction
/// that they apply (wrong after SET timestamp), and is 0 where the receiver hangs.
#[derive(Debug, Default)]
struct Marks {
    of: Option<ServerId>,
    /// Where it was at first. What a replica lacks of that, it may lack for ever: it was set up
    /// without it.
    first: Option<(Millis, GtidSet)>,
    /// What came to it until later times.
    since: VecDeque<(Millis, GtidSet)>,
}

impl Marks {
    const MAX: usize = 128;
    /// What a replica lacks that has all that came so much later, it never gets.
    const NEVER_MS: u64 = 60_000;

    fn note(&mut self, primary: ServerId, at: Millis, report: &ProbeReport) {
        let usable = report.gtid && !report.executed.is_empty();
        if self.of != Some(primary) || !usable {
            *self = Marks {
                of: Some(primary),
                ..Marks::default()
            };
        }
        if !usable {
            return;
        }
        let Some((_, first)) = &self.first else {
            self.first = Some((at, report.executed.clone()));
            return;
        };
        let mut advanced = report.executed.clone();
        advanced.subtract(first);
        let unchanged = match self.since.back() {
            Some((_, last)) => *last == advanced,
            None => advanced.is_empty(),
        };
        if unchanged {
            return;
        }
        if self.since.len() == Self::MAX {
            // Every second of the older half: what is far behind need not be known to the second.
            let mut at = 0;
            self.since.retain(|_| {
                at += 1;
                at > Self::MAX / 2 || at % 2 == 0
            });
        }
        self.since.push_back((at, advanced));
    }

    fn lag_seconds(&self, at: Millis, report: &ProbeReport) -> Option<u64> {
        if !report.gtid || report.executed.is_empty() {
            return None;
        }
        let (_, first) = self.first.as_ref()?;
        let reached = self
            .since
            .partition_point(|(_, mark)| report.executed.reaches(mark));
        let lag = self.since.get(reached);
        let lag = lag.map_or(0, |(since, _)| at.0.saturating_sub(since.0) / 1000);
        if report.executed.contains(first) {
            return Some(lag);
        }
        // It was behind before anybody looked. By how much, only it knows.
        let said = report.replication.as_ref();
        let said = said.and_then(|status| status.lag_seconds);
        Some(lag.max(said.unwrap_or(0)))
    }

    /// What the primary has had for long and none of these, which have all that came since, has.
    fn unreplicated<'a>(
        &self,
        at: Millis,
        replicas: impl Iterator<Item = &'a ProbeReport>,
    ) -> Option<GtidSet> {
        let (since, first) = self.first.as_ref()?;
        let (last, _) = self.since.back()?;
        if last.0 < since.0.saturating_add(Self::NEVER_MS) {
            return None;
        }
        let mut never = first.clone();
        let mut any = false;
        for replica in replicas {
            if self.lag_seconds(at, replica) != Some(0) {
                return None;
            }
            never.leave_out_known(&replica.executed);
            any = true;
        }
        (any && !never.is_empty()).then_some(never)
    }
}

/// All servers, judged from what was seen of them.
#[derive(Debug)]
pub struct Topology {
    options: Options,
    states: Vec<State>,
    /// The primary, for as long as it has been up, writable and the same without a break.
    incumbent: Option<ServerId>,
    marks: Marks,
    unreplicated: Option<Arc<GtidSet>>,
    snapshot: Arc<Snapshot>,
}

impl Topology {
    /// Nothing is known of the servers yet.
    pub fn new(options: Options, servers: Vec<ServerSpec>) -> Self {
        let mut topology = Topology {
            options,
            states: servers.into_iter().map(State::new).collect(),
            incumbent: None,
            marks: Marks::default(),
            unreplicated: None,
            snapshot: Arc::new(Snapshot {
                generation: 0,
                epoch: 0,
                servers: Vec::new(),
                primary: None,
                conflict: Vec::new(),
                family: None,
                version_number: 0,
                unreplicated: None,
            }),
        };
        topology.publish(Millis(0));
        topology
    }

    /// The world as it is known now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.clone()
    }

    /// Takes in one observation and says what changed by it. Observations of servers that are not
    /// in the list are ignored.
    pub fn fold(&mut self, seen: Observation) -> Vec<ChangeEvent> {
        let mut events = Vec::new();
        let Some(state) = self.states.get_mut(seen.server.index()) else {
            return events;
        };
        let server = seen.server;
        let before = state.health;
        match seen.kind {
            ObservationKind::ProbeOk(report) => {
                if state.accept(*report, seen.at) {
                    events.push(ChangeEvent::Identity { server });
                    if self.incumbent == Some(server) {
                        self.incumbent = None;
                    }
                }
            }
            ObservationKind::ProbeFailed { cause, .. } => {
                state.probe_failed(cause, seen.at, self.options.fail_after);
            }
            ObservationKind::LiveError(cause) => {
                state.live_error(cause, seen.at);
                if !cause.is_alive() {
                    events.push(ChangeEvent::Suspected { server });
                }
            }
            ObservationKind::LiveOk => {
                if !matches!(state.health, Health::Suspect { .. }) {
                    return events;
                }
                state.health = Health::Up;
                state.failures = 0;
            }
            ObservationKind::RefusedWrite => {
                state.refused_write = true;
                events.push(ChangeEvent::Suspected { server });
            }
        }
        if changed(before, state.health) {
            events.push(ChangeEvent::Health {
                server,
                from: before,
                to: state.health,
            });
        }
        let old = self.snapshot.clone();
        self.measure_lag(server, seen.at);
        self.publish(seen.at);
        differences(&old, &self.snapshot, &mut events);
        events
    }

    /// After a probe: notes where the primary is, or how far behind it a replica is.
    fn measure_lag(&mut self, server: ServerId, at: Millis) {
        let state = &mut self.states[server.index()];
        let Some(report) = state.report.clone().filter(|_| state.probed_at == Some(at)) else {
            return;
        };
        if self.incumbent == Some(server) {
            self.marks.note(server, at, &report);
            state.lag_seconds = None;
            let replicas = self.states.iter();
            let replicas = replicas.filter_map(|state| state.current());
            let replicas = replicas.filter(|report| report.replication.is_some());
            self.unreplicated = self.marks.unreplicated(at, replicas).map(Arc::new);
            return;
        }
        let said = report.replication.as_ref();
        state.lag_seconds = match self.marks.lag_seconds(at, &report) {
            Some(seconds) if said.is_some() => Some(seconds),
            _ => said.and_then(|status| status.lag_seconds),
        };
    }

    fn publish(&mut self, at: Millis) {
        let verdict = judge::verdict(&self.states, self.incumbent);
        self.incumbent = verdict.primary;
        let servers = (0..)
            .map(ServerId)
            .zip(&mut self.states)
            .map(|(id, state)| state.view(id, &verdict, at, &self.options))
            .collect();
        let old = &self.snapshot;
        self.snapshot = Arc::new(Snapshot {
            generation: old.generation + 1,
            epoch: old.epoch + u64::from(old.primary != verdict.primary),
            servers,
            primary: verdict.primary,
            version_number: self.version_number(&verdict),
            family: verdict.family,
            conflict: verdict.conflict,
            unreplicated: self.unreplicated.clone(),
        });
    }

    fn version_number(&self, verdict: &Verdict) -> u32 {
        let primary = verdict.primary.map(|id| &self.states[id.index()]);
        primary
            .into_iter()
            .chain(&self.states)
            .find_map(|state| state.report.as_deref())
            .map_or(0, |report| report.version_number)
    }
}

/// Whether the kind of health changed; a new cause of an old failure does not count.
fn changed(from: Health, to: Health) -> bool {
    std::mem::discriminant(&from) != std::mem::discriminant(&to)
}

fn differences(old: &Snapshot, new: &Snapshot, events: &mut Vec<ChangeEvent>) {
    for (from, to) in old.servers.iter().zip(&new.servers) {
        let server = to.id;
        if from.role != to.role {
            events.push(ChangeEvent::Role {
                server,
                from: from.role,
                to: to.role,
            });
        }
        let kind = |unfit: Option<Unfit>| unfit.map(|why| std::mem::discriminant(&why));
        if kind(from.unfit) != kind(to.unfit) {
            events.push(ChangeEvent::Fitness {
                server,
                unfit: to.unfit,
            });
        }
    }
    if old.conflict != new.conflict && !new.conflict.is_empty() {
        events.push(ChangeEvent::Conflict {
            servers: new.conflict.clone(),
        });
    }
    if old.primary != new.primary {
        events.push(ChangeEvent::Primary {
            from: old.primary,
            to: new.primary,
        });
    }
}

#[cfg(test)]
mod tests;
