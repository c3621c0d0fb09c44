//! Folds observations into what is known of each server, and publishes a snapshot after each.
//! Judging roles and fitness is `judge`'s; asking servers is nobody's here.

use std::sync::Arc;

use crate::discover::{self, Kin};
use crate::event::ChangeEvent;
use crate::judge;
use crate::marks::Marks;
use crate::source;
use crate::state::State;
use crate::verdict::{Memory, Verdict};
use crate::{
    Cause, GtidSet, Health, Millis, NoPrimary, Observation, ObservationKind, Options, ProbeReport,
    Role, ServerId, ServerSpec, ServerView, Snapshot, Unfit,
};

/// What a change of primary was judged from, for those who must understand it afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// The server's last good answer to a probe.
    pub last_good: Option<Millis>,
    /// The first sign that something is wrong with it, and what it was.
    pub suspicion: Option<(Millis, Box<str>)>,
    /// What is known beside: what its replicas say, what a new primary lacks.
    pub beside: String,
}

/// All servers, judged from what was seen of them.
#[derive(Debug)]
pub struct Topology {
    options: Options,
    states: Vec<State>,
    memory: Memory,
    marks: Marks,
    unreplicated: Option<Arc<GtidSet>>,
    too_many_told: bool,
    snapshot: Arc<Snapshot>,
}

impl Topology {
    /// Nothing is known of the servers yet.
    pub fn new(options: Options, servers: Vec<ServerSpec>) -> Self {
        let states = servers.into_iter();
        let mut topology = Topology {
            options,
            states: states
                .map(|spec| State::new(spec, true, Millis(0)))
                .collect(),
            memory: Memory::default(),
            marks: Marks::default(),
            unreplicated: None,
            too_many_told: false,
            snapshot: Arc::new(Snapshot {
                generation: 0,
                epoch: 0,
                servers: Vec::new(),
                primary: None,
                without: Some(NoPrimary::NotAsked),
                conflict: Vec::new(),
                overruled: None,
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

    /// What is known of a server that is, or was, the primary.
    pub fn evidence(&self, server: ServerId) -> Evidence {
        let Some(state) = self.states.get(server.index()) else {
            return Evidence::default();
        };
        let beside = match judge::receivers(&self.states, server) {
            Some((on, all)) => format!("{on} of {all} replicas that answer receive from it"),
            None => String::new(),
        };
        Evidence {
            last_good: state.probed_at,
            suspicion: state.suspicion.clone(),
            beside,
        }
    }

    /// How many transactions that the last primary had executed this server lacks, as far as is known:
    /// acknowledged writes that a failover has lost.
    pub fn lacks(&self, server: ServerId) -> u64 {
        if self.memory.last == Some(server) {
            return self.memory.missing;
        }
        let state = self.states.get(server.index());
        match (&self.memory.history, state.and_then(State::executed)) {
            (Some(history), Some(executed)) => executed.lacks(history),
            _ => 0,
        }
    }

    /// Whether a report, of a machine that `server`'s name means now, is of one that has to do with the servers that
    /// are known: by their word, its own, or its transactions.
    pub fn kin(&self, server: ServerId, report: &ProbeReport) -> Kin {
        let history = self.memory.history.as_ref();
        discover::kin(&self.states, server, report, history)
    }

    /// Takes in one observation and says what changed by it. Observations of servers that are not
    /// in the list are ignored.
    pub fn fold(&mut self, seen: Observation) -> Vec<ChangeEvent> {
        let mut events = Vec::new();
        let server = seen.server;
        // A name of several servers is none itself, and is heard all the same.
        let known = self.states.get(server.index());
        let Some(state) = known
            .filter(|state| !state.gone || !state.means.is_empty() && !is_of_a_server(&seen.kind))
        else {
            return events;
        };
        let before = state.health;
        let old = self.snapshot.clone();
        if !self.take(seen.server, seen.at, seen.kind, &mut events) {
            return events;
        }
        self.look_around(server, seen.at, &mut events);
        let health = self.states[server.index()].health;
        if changed(before, health) {
            events.push(ChangeEvent::Health {
                server,
                from: before,
                to: health,
            });
        }
        self.measure_lag(server, seen.at);
        self.publish(seen.at);
        differences(&old, &self.snapshot, &mut events);
        events
    }

    /// Notes what was seen of one server. False where nothing follows from it.
    fn take(
        &mut self,
        server: ServerId,
        at: Millis,
        kind: ObservationKind,
        events: &mut Vec<ChangeEvent>,
    ) -> bool {
        let state = &mut self.states[server.index()];
        match kind {
            ObservationKind::ProbeOk(report) => {
                if state.accept(*report, at) {
                    events.push(ChangeEvent::Identity { server });
                    if self.memory.incumbent == Some(server) {
                        self.memory.incumbent = None;
                    }
                }
            }
            ObservationKind::ProbeFailed { cause, text } => {
                state.probe_failed(cause, &text, at, self.options.fail_after);
                if matches!(state.health, Health::Suspect { .. }) {
                    events.push(ChangeEvent::Suspected { server });
                }
            }
            ObservationKind::LiveError(cause) => {
                state.live_error(cause, at);
                if !cause.is_alive() {
                    events.push(ChangeEvent::Suspected { server });
                }
            }
            ObservationKind::RefusedWrite => {
                state.refused_write = Some(at);
                events.push(ChangeEvent::Suspected { server });
            }
            ObservationKind::Means { addresses } => {
                let discovery = self.options.discovery.clone().unwrap_or_default();
                let servers_max = discovery.servers_max;
                discover::mean(&mut self.states, server, addresses, at, servers_max, events);
            }
            ObservationKind::Drain { by } => {
                if !self.set_draining(server, true) {
                    return false;
                }
                events.push(ChangeEvent::Draining { server, by });
            }
            ObservationKind::Resume { by } => {
                let was_drained = self.set_draining(server, false);
                let doubted = self.vouch_for(server);
                if !was_drained && !doubted {
                    return false;
                }
                events.push(ChangeEvent::Resumed { server, by });
            }
        }
        true
    }

    /// Drains or resumes a server, by all its names. False where nothing changes by that.
    fn set_draining(&mut self, server: ServerId, draining: bool) -> bool {
        let mut changed = false;
        let mut names = discover::names(&self.states, server);
        let states = (0..).map(ServerId).zip(&self.states);
        let addresses = states.filter(|(_, state)| state.address_of == Some(server));
        names.extend(addresses.map(|(id, _)| id));
        for name in names {
            let state = &mut self.states[name.index()];
            changed |= std::mem::replace(&mut state.draining, draining) != draining;
        }
        changed
    }

    /// An operator wants the server to be used, by whatever name: where it is doubted, that counts.
    fn vouch_for(&mut self, server: ServerId) -> bool {
        let Some(NoPrimary::Doubtful(doubted)) = self.snapshot.without else {
            return false;
        };
        let meant = discover::names(&self.states, server).contains(&doubted);
        self.states[doubted.index()].vouched |= meant;
        meant
    }

    /// What one server's answer says about others.
    fn look_around(&mut self, server: ServerId, at: Millis, events: &mut Vec<ChangeEvent>) {
        let answered = self.states[server.index()].probed_at == Some(at);
        let report = self.states[server.index()].report.clone();
        if let (true, Some(report), Some(options)) = (answered, report, &self.options.discovery) {
            discover::follow(
                &mut self.states,
                server,
                &report,
                at,
                options,
                &mut self.too_many_told,
                events,
            );
            discover::forget(&mut self.states, self.memory.incumbent, at, options, events);
        }
        let asked = answered.then_some(server);
        discover::tell_names_apart(&mut self.states, self.memory.incumbent, asked, events);
        discover::step_back(&mut self.states, self.memory.incumbent, events);
        self.confirm();
        if let Some(primary) = self.memory.incumbent {
            self.abandon(primary, at, events);
        }
    }

    /// Servers that had come back, and since which all others were asked.
    fn confirm(&mut self) {
        for index in 0..self.states.len() {
            let id = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
            if let Some(since) = self.states[index].unconfirmed
                && judge::is_confirmed(&self.states, id, since)
            {
                self.states[index].unconfirmed = None;
            }
        }
    }

    /// A primary that a probe has missed once, and that its replicas have lost as well, is lost.
    fn abandon(&mut self, primary: ServerId, at: Millis, events: &mut Vec<ChangeEvent>) {
        let state = &self.states[primary.index()];
        let suspect = matches!(state.health, Health::Suspect { .. }) && state.failures > 0;
        if !suspect || !judge::is_abandoned(&self.states, primary) {
            return;
        }
        let state = &mut self.states[primary.index()];
        let from = state.health;
        state.fall(Cause::Lost, at, String::new);
        events.push(ChangeEvent::Health {
            server: primary,
            from,
            to: state.health,
        });
    }

    /// After a probe: notes where the primary is, or how far behind it a replica is.
    fn measure_lag(&mut self, server: ServerId, at: Millis) {
        let state = &mut self.states[server.index()];
        let Some(report) = state.report.clone().filter(|_| state.probed_at == Some(at)) else {
            return;
        };
        if self.memory.incumbent == Some(server) {
            self.marks.note(server, at, &report);
            state.lag_seconds = None;
            let states = (0..).map(ServerId).zip(&self.states);
            let others = states.filter(|(id, state)| *id != server && state.in_play());
            let replicas = others.filter_map(|(_, state)| state.current());
            let replicas =
                replicas.filter(|report| report.replication.is_some() || report.group.is_some());
            self.unreplicated = self.marks.unreplicated(at, replicas).map(Arc::new);
            return;
        }
        let said = report.replication.as_ref();
        let follows = said.is_some() || report.group.is_some();
        state.lag_seconds = match self.marks.lag_seconds(at, &report) {
            Some(seconds) if follows => Some(seconds),
            _ => said.and_then(|status| status.lag_seconds),
        };
    }

    fn publish(&mut self, at: Millis) {
        let discovery = self.options.discovery.as_ref();
        let verdict = judge::verdict(&self.states, &self.memory, discovery);
        self.remember(&verdict, at);
        let without = judge::without(&self.states, &verdict, &self.memory);
        let judged: Vec<(Role, Option<Unfit>)> = (0..)
            .map(ServerId)
            .zip(&self.states)
            .map(|(id, state)| {
                let role = judge::role(state, id, &verdict);
                (role, judge::unfit(state, id, &verdict, &self.options))
            })
            .collect();
        let family = verdict.family;
        let servers: Vec<ServerView> = (0..)
            .map(ServerId)
            .zip(self.states.iter_mut().zip(judged))
            .map(|(id, (state, judged))| state.view(id, judged, family, at, &self.options))
            .collect();
        let old = &self.snapshot;
        // With other data it is as good as another server: what was written before may not be there.
        let reborn = verdict.primary.is_some_and(|primary| {
            let now = servers.get(primary.index()).map(|view| view.incarnation);
            old.server(primary).map(|view| view.incarnation) != now
        });
        self.snapshot = Arc::new(Snapshot {
            generation: old.generation + 1,
            epoch: old.epoch + u64::from(old.primary != verdict.primary || reborn),
            servers,
            primary: verdict.primary,
            without,
            version_number: self.version_number(&verdict),
            family: verdict.family,
            conflict: verdict.conflict,
            overruled: verdict.overruled,
            unreplicated: self.unreplicated.clone(),
        });
    }

    fn remember(&mut self, verdict: &Verdict, at: Millis) {
        let memory = &mut self.memory;
        if let Some(leader) = verdict.leader {
            let is_other = memory.last != Some(leader);
            if is_other || memory.incumbent.is_none() {
                memory.since = at;
            }
            memory.last = Some(leader);
            if self.states[leader.index()].current().is_some() {
                memory.receives = source::receives(&self.states[leader.index()]);
            }
            let report = self.states[leader.index()].current();
            if let Some(report) = report.filter(|report| report.gtid) {
                if is_other {
                    let lacks = |history| report.executed.lacks(history);
                    memory.missing = memory.history.as_ref().map_or(0, lacks);
                }
                memory.history = Some(report.executed.clone());
            }
        }
        memory.incumbent = verdict.leader;
    }

    fn version_number(&self, verdict: &Verdict) -> u32 {
        let primary = verdict.leader.map(|id| &self.states[id.index()]);
        primary
            .into_iter()
            .chain(&self.states)
            .find_map(|state| state.report.as_deref())
            .map_or(0, |report| report.version_number)
    }
}

/// Something that only a server can have done.
fn is_of_a_server(kind: &ObservationKind) -> bool {
    !matches!(
        kind,
        ObservationKind::Means { .. }
            | ObservationKind::Drain { .. }
            | ObservationKind::Resume { .. }
    )
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
    if let (Some(_), Some(why)) = (old.without, new.without)
        && old.without != new.without
    {
        events.push(ChangeEvent::Without { why });
    }
    if old.conflict != new.conflict && !new.conflict.is_empty() {
        events.push(ChangeEvent::Conflict {
            servers: new.conflict.clone(),
        });
    }
    if old.overruled != new.overruled
        && let (Some(configured), Some(by)) = (new.overruled, new.primary)
    {
        events.push(ChangeEvent::Overruled { configured, by });
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
