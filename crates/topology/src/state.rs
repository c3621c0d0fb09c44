//! One server's state, as probes and live traffic change it. Knows of no other server.

use std::sync::Arc;

use crate::{
    Cause, Family, GtidSet, Health, Millis, Options, ProbeReport, Role, ServerId, ServerSpec,
    ServerView, Unfit, Waits,
};

/// What is known of one server.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) spec: ServerSpec,
    pub(crate) health: Health,
    /// Failed probes in a row.
    pub(crate) failures: u32,
    /// Alive, but the monitor could not ask it lately.
    pub(crate) blind: Option<Blind>,
    pub(crate) report: Option<Arc<ProbeReport>>,
    /// The report was made since the server last came up.
    pub(crate) fresh: bool,
    /// When it refused a client's write, where no report was asked for since.
    pub(crate) refused_write: Option<Millis>,
    pub(crate) probed_at: Option<Millis>,
    /// When the last probe that has ended began, well or not.
    pub(crate) asked_at: Option<Millis>,
    /// The first sign that something is wrong, since it last answered well.
    pub(crate) suspicion: Option<(Millis, Box<str>)>,
    /// When it answered again after it was down, until all others were asked since: it may be an old
    /// primary that does not know of the new one.
    pub(crate) unconfirmed: Option<Millis>,
    /// When it last answered again after it was down.
    pub(crate) risen_at: Option<Millis>,
    /// It was seen to replicate, or as a member of a group, under its present identity.
    pub(crate) followed: bool,
    /// An operator said that it may be the primary, whatever it lacks.
    pub(crate) vouched: bool,
    /// Named in the configuration: never forgotten.
    pub(crate) configured: bool,
    /// The addresses that its name stands for, where these are several servers, or have been.
    pub(crate) means: Vec<Box<str>>,
    /// The listed name that it is an address of.
    pub(crate) address_of: Option<ServerId>,
    /// When it was last named by another server, or named one itself.
    pub(crate) mentioned_at: Millis,
    /// It is no longer part of the topology.
    pub(crate) gone: bool,
    /// It is another name of this server.
    pub(crate) same_as: Option<ServerId>,
    incarnation: u32,
    /// How far behind the primary it was at the last probe, in whole seconds.
    pub(crate) lag_seconds: Option<u64>,
    /// It was asked and took no reads.
    was_unfit: bool,
    /// Since when it takes reads again.
    back_since: Option<Millis>,
    /// Taken out of use by an operator.
    pub(crate) draining: bool,
}

/// Of a server that answers clients, and not the monitor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blind {
    /// How often in a row it was asked in vain.
    pub(crate) times: u32,
    pub(crate) cause: Cause,
    /// How old its last report was the last time, rounded up.
    pub(crate) seconds: u64,
}

impl State {
    pub(crate) fn new(spec: ServerSpec, configured: bool, at: Millis) -> Self {
        State {
            spec,
            health: Health::Unknown,
            failures: 0,
            blind: None,
            report: None,
            fresh: false,
            refused_write: None,
            probed_at: None,
            asked_at: None,
            suspicion: None,
            unconfirmed: None,
            risen_at: None,
            followed: false,
            vouched: false,
            configured,
            means: Vec::new(),
            address_of: None,
            mentioned_at: at,
            gone: false,
            same_as: None,
            incarnation: 0,
            lag_seconds: None,
            was_unfit: false,
            back_since: None,
            draining: false,
        }
    }

    /// It is part of the topology, and no other name of a server that is.
    pub(crate) fn in_play(&self) -> bool {
        !self.gone && self.same_as.is_none()
    }

    /// It is listed, or has ever answered. What others name and nobody here can reach is shown, and that
    /// is all.
    pub(crate) fn counts(&self) -> bool {
        self.is_listed() || self.report.is_some() || self.health == Health::Unknown
    }

    /// The configuration has it, or has a name that stands for it.
    pub(crate) fn is_listed(&self) -> bool {
        self.configured || self.address_of.is_some()
    }

    /// The report, where it can still be believed.
    pub(crate) fn current(&self) -> Option<&ProbeReport> {
        self.report.as_deref().filter(|_| self.fresh)
    }

    /// What it had executed when it was last asked; none before.
    pub(crate) fn executed(&self) -> Option<&GtidSet> {
        Some(&self.report.as_deref()?.executed)
    }

    /// Found again after it was gone: what was known of it counts no more.
    pub(crate) fn revive(&mut self, at: Millis) {
        let old = std::mem::replace(self, State::new(self.spec.clone(), self.configured, at));
        self.incarnation = old.incarnation + 1;
        self.draining = old.draining;
    }

    pub(crate) fn forget(&mut self) {
        self.gone = true;
        self.fresh = false;
    }

    /// Takes a report; true where another server or older data answers than before.
    pub(crate) fn accept(&mut self, report: ProbeReport, at: Millis) -> bool {
        let (mut stranger, mut changed) = (false, false);
        if let Some(old) = self.report.as_deref() {
            stranger = is_stranger(old, &report);
            changed = stranger || !report.executed.contains(&old.executed);
        }
        self.incarnation += u32::from(changed);
        if stranger {
            self.followed = false;
            self.vouched = false;
        }
        let asked = Millis(at.0.saturating_sub(u64::from(report.round_trip_us).div_ceil(1000)));
        self.asked_at = Some(asked);
        self.followed |= report.replication.is_some() || report.group.is_some();
        self.report = Some(Arc::new(report));
        self.probed_at = Some(at);
        self.fresh = true;
        self.refused_write = self.refused_write.filter(|refused| *refused > asked);
        self.blind = None;
        self.failures = 0;
        self.suspicion = None;
        self.rise(at);
        changed
    }

    /// It answers.
    fn rise(&mut self, at: Millis) {
        if matches!(self.health, Health::Down { .. }) {
            self.risen_at = Some(at);
            self.unconfirmed = Some(at);
        }
        self.health = Health::Up;
    }

    pub(crate) fn probe_failed(&mut self, cause: Cause, text: &str, at: Millis, fail_after: u32) {
        self.asked_at = Some(at);
        if cause.is_alive() {
            let times = self.blind.map_or(0, |blind| blind.times);
            let reported = self.probed_at.unwrap_or(at);
            self.blind = Some(Blind {
                times: times.saturating_add(1),
                cause,
                seconds: at.0.saturating_sub(reported.0).div_ceil(1000),
            });
            self.failures = 0;
            self.rise(at);
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let what = || format!("a probe failed: {}: {text}", cause.as_str());
        let never_answered = matches!(self.health, Health::Unknown);
        if never_answered || cause == Cause::Refused || self.failures >= fail_after {
            self.fall(cause, at, what);
        } else {
            self.suspect(at, what);
        }
    }

    pub(crate) fn live_error(&mut self, cause: Cause, at: Millis) {
        let what = || format!("a client's connection failed: {}", cause.as_str());
        match cause {
            Cause::Refused => self.fall(cause, at, what),
            _ if cause.is_alive() => {}
            _ => self.suspect(at, what),
        }
    }

    pub(crate) fn fall(&mut self, cause: Cause, at: Millis, what: impl FnOnce() -> String) {
        let since = match self.health {
            Health::Down { since, .. } | Health::Suspect { since } => since,
            Health::Unknown | Health::Up => at,
        };
        self.suspicion.get_or_insert_with(|| (at, what().into()));
        self.health = Health::Down { since, cause };
        self.fresh = false;
        self.blind = None;
        self.unconfirmed = None;
    }

    fn suspect(&mut self, at: Millis, what: impl FnOnce() -> String) {
        if self.health == Health::Up {
            self.health = Health::Suspect { since: at };
            self.suspicion.get_or_insert_with(|| (at, what().into()));
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
                FIRST + (FULL - FIRST) * (at.since(since)) / options.slow_start_ms
            }
            _ => FULL,
        };
        let share = u64::from(self.spec.weight) * percent;
        u32::try_from(share).unwrap_or(u32::MAX)
    }

    pub(crate) fn view(
        &mut self,
        id: ServerId,
        (role, unfit): (Role, Option<Unfit>),
        family: Option<Family>,
        at: Millis,
        options: &Options,
    ) -> ServerView {
        let share = self.share(unfit, at, options);
        let report = self.report.as_deref();
        ServerView {
            id,
            address: self.spec.address.clone(),
            zone: self.spec.zone.clone(),
            weight: self.spec.weight,
            share,
            role,
            health: self.health,
            unfit,
            lag_seconds: self.current().and(self.lag_seconds),
            waits: report.map_or(Waits::Nothing, ProbeReport::waits),
            executed: report.map_or_else(
                || GtidSet::new(family.unwrap_or(Family::MySql)),
                |report| report.executed.clone(),
            ),
            report: self.report.clone(),
            probed_at: self.probed_at,
            incarnation: self.incarnation,
            draining: self.draining,
            gone: self.gone,
            listed: self.is_listed(),
            address_of: self.address_of,
        }
    }
}

/// Another server answers than before.
fn is_stranger(old: &ProbeReport, new: &ProbeReport) -> bool {
    old.family != new.family
        || old.server_uuid != new.server_uuid
        || old.server_id != new.server_id
        || (!old.identity.is_empty()
            && !new.identity.is_empty()
            && old.identity != new.identity
            // MySQL's own identity stays the same where a server moves to another machine.
            && new.server_uuid.is_empty())
}
