//! Watches one server: asks it again and again, leaves it alone where it hangs, and tells the monitor
//! what it said. Judges nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_topology::{
    Cause, Health, Kin, ObservationKind, ProbeReport, Role, ServerId, ServerView, Unfit,
};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::sight::Sight;
use super::{Counts, Monitor, MonitorOptions, World};
use crate::clock::Clock;
use crate::connect::{Address, SharedNetwork};
use crate::error::BackendError;
use crate::fresh::Look;
use crate::names::{self, Name};
use crate::probe::{self, Followed, Probed};
use crate::probe::{accounts, replication};
use crate::topology_log;

/// What is said of a server that answers clients and not the monitor.
const SLOW: &str = "no answer to a probe in time, but clients have answers";

/// A failed probe is repeated after this, before anything is judged from it.
const SECOND_LOOK: Duration = Duration::from_millis(50);

/// So many probes in a row are not counted because this process stood still meanwhile.
const EXCUSES: u32 = 3;

/// Another name of a known server is asked so many times more seldom, and so is an address that others name
/// and that has never answered.
const SELDOM: u32 = 10;

/// So many machines of other clusters are remembered for a name.
const STRANGERS: usize = 16;

/// What watches one server.
#[derive(Clone)]
pub(super) struct ServerWatcher {
    pub(super) monitor: Arc<Monitor>,
    pub(super) id: ServerId,
    pub(super) options: Arc<MonitorOptions>,
    pub(super) network: SharedNetwork,
    pub(super) clock: std::rc::Rc<Clock>,
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// A connection, login included.
    Connect,
    /// All answers to a probe.
    Answers,
}

/// What is carried from one probe of a server to the next.
#[derive(Default)]
struct Track {
    conn: Option<Followed>,
    /// What the server's name means, and the machine that answered last.
    name: Name,
    at: Option<IpAddr>,
    /// The machine of the last answer that was taken.
    judged: Option<IpAddr>,
    /// What is under way where the name has moved, and when it was last begun.
    moving: Option<JoinHandle<Result<Moved, BackendError>>>,
    tried: Option<Instant>,
    /// What the topology was told of that, where these are several servers.
    means: Vec<IpAddr>,
    /// Machines of others that the name has meant while its own was at work: not to be used in its place.
    strangers: Vec<IpAddr>,
    /// The last failure, so that it is logged once.
    complaint: Option<String>,
    /// Probes in a row that were not counted.
    excused: u32,
    writes: Writes,
    /// The connection has said something unasked, which did not mean its end.
    talkative: bool,
    abandoned: Abandoned,
    /// What the server last said of its accounts and global variables, and when it was asked.
    looked: Option<(Look, Instant)>,
}

/// The machine that a server's name has moved to.
struct Moved {
    at: IpAddr,
    followed: Followed,
    /// It has to do with the servers that are known.
    is_kin: bool,
}

/// Statements answered that did more than read, and when that number last changed.
#[derive(Debug, Default)]
pub(super) struct Writes {
    number: u64,
    changed_at: Option<Instant>,
}

impl Writes {
    /// For how long the primary has had connections in use and has ended nothing but reads: then it is
    /// asked for commits that do not end. A transaction that does nothing looks the same from here.
    pub(super) fn quiet(&mut self, is_primary: bool, counts: Counts, now: Instant) -> Duration {
        // The two are counted one after the other.
        let number = counts.answered.saturating_sub(counts.read);
        if !is_primary || counts.leased == 0 || number != self.number {
            self.number = number;
            self.changed_at = Some(now);
        }
        self.changed_at.map_or(Duration::ZERO, |at| now - at)
    }
}

/// Clients that give up end their statements, not the commits that are stuck.
pub(super) fn asks_for_stall(stall: Duration, quiet: Duration, was_stalled: bool) -> bool {
    !stall.is_zero() && (was_stalled || quiet >= stall / 2)
}

/// Connections that were given up in the middle of a question: the server may still be at it.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    /// How many in a row.
    count: u32,
    /// The last of them, by the server's numbers, and when they were given up.
    threads: Vec<(u32, Instant)>,
}

impl Abandoned {
    /// From so many on a server is asked more seldom.
    const MANY: u32 = 3;
    /// At most by this factor; and so many are remembered.
    const MOST: u32 = 20;

    pub(super) fn add(&mut self, thread: u32, at: Instant) {
        self.count = self.count.saturating_add(1).min(Self::MOST);
        if self.threads.len() == Self::MOST as usize {
            self.threads.remove(0);
        }
        self.threads.push((thread, at));
    }

    /// How long the server is left alone at least.
    pub(super) fn pause(&self, interval: Duration) -> Option<Duration> {
        (self.count >= Self::MANY).then(|| interval * self.count)
    }
}

impl ServerWatcher {
    pub(super) async fn watch(self) {
        let mut track = Track::default();
        loop {
            self.until_known(&mut track).await;
            self.begin_with_name(&mut track).await;
            let started = Instant::now();
            let outcome = self.clock.beside(self.ask(&mut track)).await;
            let second_look = match outcome {
                Ok(probed) => {
                    self.answered(&mut track, probed, started);
                    false
                }
                Err(error) => self.failed(&mut track, &error, started),
            };
            if let Some(pause) = track.abandoned.pause(self.options.interval) {
                // Who is in a hurry would only add to what the server is at.
                tokio::time::sleep(pause).await;
                continue;
            }
            let pause = if second_look {
                SECOND_LOOK
            } else {
                self.interval().saturating_sub(started.elapsed())
            };
            self.rest(&mut track, pause).await;
        }
    }

    /// Waits while the server is no part of the topology. A listed name of several servers is none itself, and is
    /// followed for these.
    async fn until_known(&self, track: &mut Track) {
        let gone = |world: &Arc<World>| {
            let view = world.snapshot.server(self.id);
            view.is_some_and(|view| view.gone)
        };
        let mut world = self.monitor.watch();
        while gone(&self.monitor.world.borrow()) {
            track.conn = None;
            let known = world.wait_for(|world| !gone(world));
            let ended = match track.means.is_empty() {
                true => known.await.is_err(),
                false => match tokio::time::timeout(names::PAUSE, known).await {
                    Ok(known) => known.is_err(),
                    Err(_) => {
                        let (address, now) = (self.address(), Instant::now());
                        let resolver = &self.network.resolver;
                        track.name.follow(&address.host, resolver, now);
                        self.tell_what_it_means(track, &address);
                        false
                    }
                },
            };
            // The process ends.
            if ended {
                return;
            }
        }
    }

    /// Before the first connection: whether the name stands for one server or for several.
    async fn begin_with_name(&self, track: &mut Track) {
        let address = self.address();
        if !address.is_name() || track.at.is_some() || self.options.user.is_empty() {
            return;
        }
        let (resolver, timeout) = (&self.network.resolver, self.options.connect_timeout);
        let found = resolver.look_up(&address.host, timeout).await;
        track.name.take(&found, Instant::now());
        self.tell_what_it_means(track, &address);
        self.until_known(track).await;
    }

    /// Of a listed name that stands for several machines: which these are.
    fn tell_what_it_means(&self, track: &mut Track, address: &Address) {
        let is_listed = {
            let world = self.monitor.world.borrow();
            let view = world.snapshot.server(self.id);
            view.is_some_and(|view| view.listed && view.address_of.is_none())
        };
        let several = track.name.several().filter(|_| is_listed);
        let Some(several) = several.filter(|several| *several != track.means) else {
            return;
        };
        let address_at = |at: &IpAddr| Address::new(at.to_string(), address.port);
        let kind = ObservationKind::Means {
            addresses: several
                .iter()
                .map(|at| address_at(at).to_string().into())
                .collect(),
        };
        track.means = several;
        self.monitor.fold(self.id, kind, |_| {});
    }

    fn interval(&self) -> Duration {
        let world = self.monitor.world.borrow();
        let snapshot = &world.snapshot;
        let view = snapshot.server(self.id);
        let unfit = view.and_then(|view| view.unfit);
        let held = snapshot.primary.is_none() && snapshot.epoch > 0;
        match unfit {
            _ if view.is_some_and(ServerView::is_hearsay) => self.options.interval * SELDOM,
            Some(Unfit::SameServer(_)) => self.options.interval * SELDOM,
            _ if held => self.options.urgent_interval.min(self.options.interval),
            _ => self.options.interval,
        }
    }

    async fn ask(&self, track: &mut Track) -> Result<Probed, BackendError> {
        let address = self.address();
        let options = &self.options;
        if options.user.is_empty() {
            return self
                .reach(&address, track, |address| async move {
                    probe::greet(&address, options, &self.network).await
                })
                .await;
        }
        self.follow_name(track, &address).await;
        if track.conn.is_none() {
            let followed = self
                .reach(&address, track, |address| async move {
                    probe::follow(self.id, &address, options, &self.network).await
                })
                .await?;
            track.conn = Some(followed);
        }
        let asks_for_stall = self.may_be_stalled(track);
        let Track {
            conn,
            abandoned,
            looked,
            ..
        } = track;
        let followed = conn
            .as_mut()
            .ok_or(BackendError::Protocol("no connection"))?;
        let asking = async {
            probe::end(followed, &mut abandoned.threads).await?;
            let mut probed = probe::probe(followed, options).await?;
            self.look(followed, looked).await?;
            if asks_for_stall {
                let stall = options.commit_stall;
                probed.report.stuck_commits = probe::stuck_commits(followed, stall).await?;
            }
            Ok(probed)
        };
        let probed = self.within(Limit::Answers, asking).await?;
        self.refuse_stranger(track, &probed).await?;
        Ok(probed)
    }

    /// Where the name no longer means the machine that is asked: asks the one that it means now beside that, and
    /// goes over to it once it has answered.
    async fn follow_name(&self, track: &mut Track, address: &Address) {
        let (true, Some(before)) = (address.is_name(), track.at) else {
            return;
        };
        let now = Instant::now();
        track
            .name
            .follow(&address.host, &self.network.resolver, now);
        self.tell_what_it_means(track, address);
        if let Some(moving) = track.moving.take_if(|moving| moving.is_finished()) {
            if let Ok(Ok(moved)) = moving.await {
                self.move_over(track, before, moved);
            }
            return;
        }
        let due = track.tried.is_none_or(|tried| now >= tried + names::PAUSE);
        if track.moving.is_some() || !due || !track.name.has_left(before) {
            return;
        }
        if track.name.may_return(before, now) && track.conn.is_some() && self.is_at_work() {
            return;
        }
        track.tried = Some(now);
        let (watcher, machines) = (self.clone(), track.name.machines().collect());
        let address = address.clone();
        let moving = async move { watcher.ask_first_of(machines, &address).await };
        track.moving = Some(tokio::task::spawn_local(moving));
    }

    /// Asks these machines one after the other, until one has answered everything.
    async fn ask_first_of(
        &self,
        machines: Vec<IpAddr>,
        address: &Address,
    ) -> Result<Moved, BackendError> {
        let mut failed = BackendError::Protocol("no machine");
        for at in machines {
            let address = address.at(Some(at));
            let options = &self.options;
            let asking = async {
                let mut followed = probe::follow(self.id, &address, options, &self.network).await?;
                let probed = probe::probe(&mut followed, options).await?;
                Ok((followed, probed))
            };
            let limit = options.connect_timeout + options.timeout;
            match tokio::time::timeout(limit, asking).await {
                Ok(Ok((mut followed, probed))) => {
                    let is_kin = self.is_kin(&mut followed, &probed.report).await;
                    return Ok(Moved {
                        at,
                        followed,
                        is_kin,
                    });
                }
                Ok(Err(error)) => failed = error,
                Err(_) => failed = BackendError::Timeout("monitor.timeout"),
            }
        }
        Err(failed)
    }

    /// From now on the machine that the name means is the server; but not where that is one of another cluster, and
    /// the one before answers, as long as there is a primary.
    fn move_over(&self, track: &mut Track, before: IpAddr, moved: Moved) {
        if !track.name.has_left(before) {
            return;
        }
        let stays = track.conn.is_some() && self.primary().is_some();
        if stays && !moved.is_kin {
            self.is_strange(track, moved.at);
            return;
        }
        (track.at, track.conn) = (Some(moved.at), Some(moved.followed));
    }

    /// An answer of another machine than before, which came when that one did not answer: it is not taken where it is
    /// of another cluster, and another server is the primary.
    async fn refuse_stranger(
        &self,
        track: &mut Track,
        probed: &Probed,
    ) -> Result<(), BackendError> {
        let (Some(before), Some(at), Some(followed)) = (track.judged, track.at, &mut track.conn)
        else {
            return Ok(());
        };
        let other = self.primary().is_some_and(|primary| primary != self.id);
        if before == at || !other || self.is_kin(followed, &probed.report).await {
            return Ok(());
        }
        self.is_strange(track, at);
        (track.at, track.conn) = (Some(before), None);
        Err(BackendError::Protocol(
            "its name means a machine of another cluster",
        ))
    }

    /// Whether a machine that has reported this has to do with the servers that are known. Where only a server_id says
    /// so, binary logs are asked, and the source where the replica says that it is; where logs do not answer, it has not.
    async fn is_kin(&self, followed: &mut Followed, report: &ProbeReport) -> bool {
        let (known, it_follows) = match self.monitor.kin(self.id, report) {
            Kin::Yes => return true,
            Kin::No => return false,
            Kin::IfItFollows(source) => (source, true),
            Kin::IfFollowedBy(replica) => (replica, false),
        };
        let (address, of_known) = {
            let world = self.monitor.world.borrow();
            let view = world.snapshot.server(known);
            let report = view.and_then(|view| view.report.clone());
            (world.facts[known.index()].address.clone(), report)
        };
        let Some(of_known) = of_known else {
            return false;
        };
        let (replica, source) = match it_follows {
            true => (report, &*of_known),
            false => (&*of_known, report),
        };
        let options = &self.options;
        let reading = async {
            let mut known = probe::follow(known, &address, options, &self.network).await?;
            match it_follows {
                true => replication::reads_from(followed, &mut known).await,
                false => replication::reads_from(&mut known, followed).await,
            }
        };
        let limit = options.connect_timeout + options.timeout;
        matches!(tokio::time::timeout(limit, reading).await, Ok(Ok(true)))
            && !self.follows_another(replica, source).await
    }

    /// Whether another server than this one is found where the replica says that its source is.
    async fn follows_another(&self, replica: &ProbeReport, source: &ProbeReport) -> bool {
        let Some(status) = &replica.replication else {
            return false;
        };
        let address = Address::new(status.source_host.to_string(), status.source_port);
        let options = &self.options;
        let asking = async {
            let mut there = probe::follow(self.id, &address, options, &self.network).await?;
            probe::probe(&mut there, options).await
        };
        let limit = options.connect_timeout + options.timeout;
        match tokio::time::timeout(limit, asking).await {
            Ok(Ok(there)) => there.report.identity != source.identity,
            _ => false,
        }
    }

    fn is_strange(&self, track: &mut Track, at: IpAddr) {
        if !track.strangers.contains(&at) {
            warn!(
                server = %self.name(), %at,
                "its name means a machine of another cluster now, which is not used in its place"
            );
            if track.strangers.len() == STRANGERS {
                track.strangers.remove(0);
            }
            track.strangers.push(at);
        }
    }

    fn primary(&self) -> Option<ServerId> {
        self.monitor.world.borrow().snapshot.primary
    }

    /// It takes writes, or reads beside the one that does.
    fn is_at_work(&self) -> bool {
        let world = self.monitor.world.borrow();
        let snapshot = &world.snapshot;
        let view = snapshot.server(self.id);
        snapshot.primary == Some(self.id)
            || (snapshot.primary.is_some() && view.is_some_and(ServerView::is_fit))
    }

    /// Connects to the machine that the server's name means: to the one before, as long as that is among them, or
    /// where no other answers.
    async fn reach<T, F>(
        &self,
        address: &Address,
        track: &mut Track,
        connect: impl Fn(Address) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let before = track.at;
        let mut machines = Vec::new();
        if address.is_name() {
            let names = &self.network.resolver;
            machines = names
                .look_up(&address.host, self.options.connect_timeout)
                .await;
            track.name.take(&machines, Instant::now());
        }
        let is_own = |at: &IpAddr| Some(*at) == before;
        if !machines.iter().any(is_own) {
            machines.extend(before);
        }
        machines.sort_by_key(|at| match () {
            () if is_own(at) && !track.name.has_left(*at) => 0,
            () if track.strangers.contains(at) => 3,
            () if is_own(at) => 2,
            () => 1,
        });
        let mut tries: Vec<Option<IpAddr>> = machines.into_iter().map(Some).collect();
        if tries.is_empty() {
            // It is no name, or it means nothing, which is found out anew.
            tries.push(None);
        }
        let mut failed = BackendError::Protocol("no machine");
        for at in tries {
            let connecting = self.within(Limit::Connect, connect(address.at(at)));
            match connecting.await {
                Ok(reached) => {
                    track.at = at;
                    return Ok(reached);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Asks whether accounts or global variables have changed, where that is due.
    async fn look(
        &self,
        followed: &mut Followed,
        last: &mut Option<(Look, Instant)>,
    ) -> Result<(), BackendError> {
        let began = Instant::now();
        let due = self.options.max_login_age / 4;
        if last.as_ref().is_some_and(|(_, at)| began - *at < due) {
            return Ok(());
        }
        let look = accounts::look(followed).await?;
        let fresh = self.monitor.world.borrow().facts[self.id.index()]
            .fresh
            .clone();
        fresh.looked(&look, last.as_ref().map(|(look, _)| look), began);
        *last = Some((look, began));
        Ok(())
    }

    /// A server that has not answered in time, but clients in the second half of that, is slow.
    pub(super) async fn within<T>(
        &self,
        limit: Limit,
        asking: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let (time, name) = match limit {
            Limit::Connect => (self.options.connect_timeout, "monitor.connect_timeout"),
            Limit::Answers => (self.options.timeout, "monitor.timeout"),
        };
        let mut asking = std::pin::pin!(asking);
        if let Ok(outcome) = tokio::time::timeout(time / 2, &mut asking).await {
            return outcome;
        }
        // What is answered from here on was not on its way when the server stopped.
        let before = self.counts().answered;
        match tokio::time::timeout(time / 2, asking).await {
            // Connecting minds the time by itself as well.
            Err(_) | Ok(Err(BackendError::Timeout(_))) => {}
            Ok(outcome) => return outcome,
        }
        Err(if self.counts().answered > before {
            BackendError::Limit(SLOW.to_owned())
        } else {
            BackendError::Timeout(name)
        })
    }

    fn counts(&self) -> Counts {
        let traffic = self.options.traffic.as_ref();
        traffic.map_or_else(Counts::default, |traffic| (traffic.0)(self.id))
    }

    fn may_be_stalled(&self, track: &mut Track) -> bool {
        let world = self.monitor.world.borrow();
        let view = world.snapshot.server(self.id);
        let is_primary = view.is_some_and(|view| view.role == Role::Primary);
        let report = view.and_then(|view| view.report.as_deref());
        let was_stalled = report.is_some_and(|report| report.stuck_commits > 0);
        let stall = self.options.commit_stall;
        let quiet = track
            .writes
            .quiet(is_primary, self.counts(), Instant::now());
        is_primary && asks_for_stall(stall, quiet, was_stalled)
    }

    fn answered(&self, track: &mut Track, mut probed: Probed, started: Instant) {
        let elapsed = started.elapsed().as_micros();
        probed.report.round_trip_us = u32::try_from(elapsed).unwrap_or(u32::MAX);
        let blind = track
            .conn
            .as_ref()
            .and_then(|conn| conn.blind_to_replicas.clone())
            // A group names its members.
            .filter(|_| probed.report.group.is_none());
        if blind.is_some() && track.complaint != blind {
            let name = self.name();
            let error = blind.as_deref();
            info!(server = %name, error, "the monitor's account may not list its replicas: those that no other server names are not found");
        }
        track.complaint = blind;
        let before = std::mem::replace(&mut track.judged, track.at);
        if let (Some(before), Some(now)) = (before, track.at)
            && before != now
        {
            warn!(server = %self.name(), at = %before, %now, "its name no longer means this machine");
            track.strangers.clear();
        }
        track.excused = 0;
        track.abandoned.count = 0;
        // Before it is published, which is what is waited for.
        if let (Some(sight), Some(followed)) = (self.sight(), &track.conn) {
            sight.answered(followed.conn.login.opened, started);
        }
        self.monitor.accept(self.id, probed);
    }

    /// Takes a failure into account. True where the server is to be asked once more before anything is
    /// judged.
    fn failed(&self, track: &mut Track, error: &BackendError, started: Instant) -> bool {
        let conn = track.conn.take();
        if let Some(sight) = self.sight() {
            sight.lost();
        }
        let unanswered = matches!(error, BackendError::Timeout(_) | BackendError::Limit(_));
        if let (true, Some(followed)) = (unanswered, conn) {
            let thread = followed.conn.thread_id;
            track.abandoned.add(thread, Instant::now());
        }
        track.talkative = false;
        let text = error.to_string();
        let complained = track.complaint.as_ref() == Some(&text);
        let in_time = !matches!(error, BackendError::Timeout(_));
        let held_up = !in_time && self.clock.stood_still_since(started, Instant::now());
        if (held_up || probe::is_own_fault(error)) && track.excused < EXCUSES {
            track.excused += 1;
            if !complained && !held_up {
                warn!(server = %self.name(), error = %text, "cannot be asked for lack of something on this machine");
                track.complaint = Some(text);
            }
            return held_up;
        }
        track.excused = 0;
        if !complained {
            warn!(server = %self.name(), error = %text, "cannot be asked");
            track.complaint = Some(text.clone());
        }
        let cause = match error {
            BackendError::Limit(_) => Cause::Slow,
            error => probe::cause(error),
        };
        let kind = ObservationKind::ProbeFailed {
            cause,
            text: text.into(),
        };
        self.monitor.fold(self.id, kind, |_| {});
        let world = self.monitor.world.borrow();
        let view = world.snapshot.server(self.id);
        view.is_some_and(|view| matches!(view.health, Health::Suspect { .. }))
    }

    fn sight(&self) -> Option<&Sight> {
        self.monitor.sights.get(self.id.index())
    }

    fn name(&self) -> String {
        topology_log::name(&self.monitor.world.borrow().snapshot, self.id)
    }

    /// Waits until the server is to be asked again: when its time has come, when somebody wants it, when its name
    /// means another machine, or when its connection is cut.
    async fn rest(&self, track: &mut Track, pause: Duration) {
        let until = Instant::now() + pause;
        loop {
            let pause = until.saturating_duration_since(Instant::now());
            let cut = async {
                match &track.conn {
                    Some(followed) if !track.talkative => followed.conn.stream.disturbed().await,
                    _ => std::future::pending().await,
                }
            };
            let cut = tokio::select! {
                () = tokio::time::sleep(pause.min(names::PAUSE)) => false,
                () = self.monitor.nudged(self.id) => {
                    // A burst of errors is one reason to ask, not many.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return;
                }
                () = cut => true,
            };
            track.talkative |= cut;
            if cut || pause <= names::PAUSE {
                return;
            }
            let before = track.at;
            let address = self.address();
            self.follow_name(track, &address).await;
            if track.at != before {
                return;
            }
        }
    }

    fn address(&self) -> Address {
        let world = self.monitor.world.borrow();
        world.facts[self.id.index()].address.clone()
    }
}
