//! What a worker knows of a cluster: the servers as the monitor sees them, their pools, how far each was seen to
//! be, and how often sessions may ask. Never looks at a session.

pub(crate) mod pools;
pub(crate) mod written;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_backend::monitor::World;
use millrace_backend::pool::Lease;
use millrace_routing::Catalogue;
use millrace_sql::{Family, Statement};
use millrace_topology::{GtidSet, ObservationKind, ServerId, Waits};

use crate::shared::Shared;
use crate::worker::cluster::pools::Pools;
use crate::worker::cluster::written::INTERVALS_MAX;

/// A worker's sessions ask for the sake of balance once in this time at most: the least, and the most
/// where it was in vain.
const ASK_INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

/// How long sessions do not ask a server how far it is after one has not answered.
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// Servers beyond this many are routed to without regard to their load.
pub const SERVERS: usize = 16;

/// A cluster, as one worker knows it.
pub struct ClusterView {
    /// The worker's.
    index: usize,
    shared: Shared,
    /// A pool for each server.
    pub servers: Pools,
    world: RefCell<Arc<World>>,
    catalogue: RefCell<Rc<Catalogue>>,
    catalogue_read: Cell<bool>,
    /// See [`World::catalogue_read`].
    catalogue_mark: Cell<u64>,
    known: RefCell<Vec<GtidSet>>,
    /// The numbers of the answers that were taken over from `positions`, by server.
    taken: RefCell<Vec<u64>>,
    /// Since when servers have been drained, by index.
    drained: RefCell<Vec<Option<Instant>>>,
    /// How long transactions may go on on a server that is drained.
    drain_time: Cell<Duration>,
    /// So many answers had been given then.
    answers: Cell<u64>,
    /// So many of the untracked writes are in what this worker has written down.
    found: Cell<u64>,
    /// The change of primary up to which it is settled what was lost.
    epoch: Cell<u64>,
    /// What the primary of then could be asked to wait for.
    waits: Cell<Waits>,
    /// See [`ClusterView::is_applying`].
    applying: Cell<bool>,
    /// See [`ClusterView::may_ask`].
    asked: Cell<Instant>,
    ask_interval: Cell<Duration>,
    ask_paused_until: Cell<Instant>,
    late_until: Cell<[u64; SERVERS]>,
    /// A bit for each server that `late_until` says is late now.
    late: Cell<u64>,
    /// Seconds since the start, roughly.
    tick: Cell<u64>,
    rotation: Cell<u32>,
    /// Since when there is no primary.
    without_since: Cell<Option<Instant>>,
}

impl ClusterView {
    /// A number that grows with every change of what a login may give, on whatever server: accounts, rights and global
    /// variables, as soon as they are known to have changed.
    pub fn login_number(&self) -> u64 {
        self.with_world(|world| {
            let servers = world.facts.iter();
            servers.map(|facts| facts.fresh.for_login()).sum()
        })
    }

    /// As the monitor sees it now; `servers` has a pool for each server.
    pub(super) fn new(index: usize, shared: Shared, servers: Pools) -> Rc<ClusterView> {
        let world = shared.monitor.watch().borrow().clone();
        servers.grow(&world.facts);
        let drain_time = shared.settings.options.failover.drain_time;
        Rc::new(ClusterView {
            index,
            shared,
            servers,
            world: RefCell::new(world),
            catalogue: RefCell::default(),
            catalogue_read: Cell::new(false),
            catalogue_mark: Cell::new(0),
            known: RefCell::default(),
            taken: RefCell::default(),
            drained: RefCell::default(),
            drain_time: Cell::new(drain_time),
            answers: Cell::new(0),
            found: Cell::new(0),
            epoch: Cell::new(0),
            waits: Cell::default(),
            applying: Cell::new(false),
            asked: Cell::new(Instant::now()),
            ask_interval: Cell::new(ASK_INTERVALS.0),
            ask_paused_until: Cell::new(Instant::now()),
            late_until: Cell::new([0; SERVERS]),
            late: Cell::new(0),
            tick: Cell::new(1),
            rotation: Cell::new(0),
            without_since: Cell::default(),
        })
    }

    /// After a change of the primary, finds out what of all that was written has come to it.
    pub(super) fn confirm_written(self: &Rc<Self>) {
        let (epoch, primary, waits) = self.with_world(|world| {
            let snapshot = &world.snapshot;
            let waits = snapshot.primary_view().map(|view| view.waits);
            (snapshot.epoch, snapshot.primary, waits)
        });
        let Some((primary, waits)) = primary.zip(waits) else {
            return;
        };
        let other = self.epoch.replace(epoch) != epoch;
        // With other positions, those from before cannot be compared.
        let other = self.waits.replace(waits) != waits || other;
        // What a cluster has committed it has on all its nodes.
        if !other || waits == Waits::Cluster {
            return;
        }
        let cluster = self.clone();
        if self.applying.get() {
            tokio::task::spawn_local(async move { cluster.see_applied(primary, epoch).await });
            return;
        }
        if !self.shared.written.unconfirm(self.index) {
            return;
        }
        tokio::task::spawn_local(async move {
            let positions = cluster.shared.monitor.positions();
            let mark = positions.mark(primary);
            let found = positions.ask(primary, mark, Duration::from_secs(10)).await;
            let unchanged = cluster.with_world(|world| world.snapshot.epoch) == epoch;
            match found.filter(|_| unchanged) {
                Some(found) => cluster
                    .shared
                    .written
                    .confirm(cluster.index, &found.visible),
                // Asked again in a second.
                None => cluster.epoch.set(u64::MAX),
            }
        });
    }

    /// The primary is a group's, and has become it just now: it may have yet to apply what was acknowledged before
    /// (`group_replication_consistency=EVENTUAL`, and any group of several writing members).
    pub fn is_applying(&self) -> bool {
        self.applying.get()
    }

    /// Asks a group's new primary until it has applied all that was written through this process. What a group has
    /// committed comes to all its members, unless its operator has rebuilt it from fewer: then the rest is lost.
    async fn see_applied(self: Rc<Self>, primary: ServerId, epoch: u64) {
        const LIMIT: Duration = Duration::from_secs(30);
        const PAUSE: Duration = Duration::from_millis(10);
        let (written, positions) = (&self.shared.written, self.shared.monitor.positions());
        let begun = Instant::now();
        loop {
            let mut all = GtidSet::new(self.family());
            written.add_to(&mut all, &mut 0, &|_| {});
            let mark = positions.mark(primary);
            let found = positions.ask(primary, mark, Duration::from_secs(10)).await;
            if self.with_world(|world| world.snapshot.epoch) != epoch {
                return;
            }
            let Some(found) = found else {
                // Asked again in a second.
                self.epoch.set(u64::MAX);
                return;
            };
            // Not by what may be visible: a transaction that is being applied counts there from its beginning.
            let has_all = found.executed.contains(&all);
            if !has_all && begun.elapsed() < LIMIT {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            if !has_all {
                written.unconfirm(self.index);
                written.confirm(self.index, &found.visible);
            }
            self.applying.set(false);
            return;
        }
    }

    /// Takes over what the monitor says now. Answers the servers whose sessions have to look whether they may
    /// stay.
    pub(super) fn set_world(&self, world: Arc<World>) -> Vec<ServerId> {
        let mut lost = Vec::new();
        // Before anybody can choose among them.
        self.servers.grow(&world.facts);
        let old = self.world.replace(world.clone());
        let since = self.without_since.get().unwrap_or_else(Instant::now);
        let lacks = world.snapshot.primary.is_none();
        self.without_since.set(lacks.then_some(since));
        for (facts, view) in world.facts.iter().zip(&world.snapshot.servers) {
            let moved = self.servers.of(view.id).set_facts(facts.clone());
            let transition = self
                .servers
                .follow(view.id, &old.snapshot, &world.snapshot, moved);
            let before = old.snapshot.server(view.id).map(|view| view.waits);
            if (transition.fell || transition.other || before != Some(view.waits))
                && let Some(known) = self.known.borrow_mut().get_mut(view.id.index())
            {
                known.clear();
            }
            if transition.fell || transition.demoted || transition.moved {
                lost.push(view.id);
            }
            self.note_draining(view.id, view.draining);
        }
        let primary = world.snapshot.primary_view();
        let in_cluster = primary.is_some_and(|view| view.waits == Waits::Cluster);
        if old.snapshot.epoch != world.snapshot.epoch && in_cluster {
            self.shared.written.has_moved();
        }
        if old.snapshot.epoch != world.snapshot.epoch {
            let in_group = primary.is_some_and(|view| {
                let report = view.report.as_ref();
                view.waits == Waits::Gtids && report.is_some_and(|report| report.group.is_some())
            });
            let has_written = self.shared.written.counted() != 0;
            self.applying.set(in_group && has_written);
        }
        self.shared.held.look_again();
        if !Arc::ptr_eq(&old.catalogue, &world.catalogue) || !self.catalogue_read.replace(true) {
            let rows = &world.catalogue;
            if let Some(family) = rows.family {
                let version = world.snapshot.version_number;
                let catalogue = Catalogue::from_rows(family, version, &rows.rows);
                *self.catalogue.borrow_mut() = Rc::new(catalogue);
            }
        }
        self.catalogue_mark.set(world.catalogue_read);
        lost
    }

    /// Whether DDL has touched stored code since it was read.
    pub fn is_catalogue_stale(&self) -> bool {
        let read = self.catalogue_mark.get();
        self.shared.monitor.touched().is_beyond(read)
    }

    /// Whether the statement names stored code that DDL has touched since it was read.
    pub fn names_touched(&self, class: &Statement, text: &[u8], database: &[u8]) -> bool {
        let (read, touched) = (self.catalogue_mark.get(), self.shared.monitor.touched());
        let catalogue = self.catalogue();
        catalogue.names_any(class, text, database, &|name| {
            touched.any(read, |other| *other == *name)
        })
    }

    /// Waits until what DDL has touched of the statement's names was read again, as long as that is worth it:
    /// what cannot be told keeps the session's connection for good.
    pub async fn wait_for_catalogue(&self, class: &Statement, text: &[u8], database: &[u8]) {
        const LIMIT: Duration = Duration::from_secs(3);
        let begun = Instant::now();
        let touched = self.shared.monitor.touched();
        // Not for other sessions' DDL, which may go on for long.
        while self.is_catalogue_stale()
            && self.names_touched(class, text, database)
            && touched.is_readable()
            && begun.elapsed() < LIMIT
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(super) fn note_draining(&self, server: ServerId, draining: bool) {
        let mut drained = self.drained.borrow_mut();
        if drained.len() <= server.index() {
            drained.resize(server.index() + 1, None);
        }
        let since = &mut drained[server.index()];
        *since = draining.then(|| since.unwrap_or_else(Instant::now));
    }

    pub(super) fn set_drain_time(&self, limit: Duration) {
        self.drain_time.set(limit);
    }

    /// Whether the server has been drained for longer than transactions may go on there.
    pub fn is_drained(&self, server: ServerId) -> bool {
        let limit = self.drain_time.get();
        let since = self.drained.borrow().get(server.index()).copied().flatten();
        since.is_some_and(|since| since.elapsed() >= limit)
    }

    /// There is no primary.
    pub fn lacks_primary(&self) -> bool {
        self.without_since.get().is_some()
    }

    /// There is none, and until lately there was.
    pub fn has_just_lost_primary(&self, lately: Duration) -> bool {
        let since = self.without_since.get();
        since.is_some_and(|since| since.elapsed() < lately)
    }

    /// A second has passed: no wait is thought of that failed long ago.
    pub(super) fn sweep(&self, tick: u64) {
        self.tick.set(tick);
        let late = self.late_until.get();
        let late = late.iter().enumerate().filter(|(_, until)| **until > tick);
        self.late.set(late.fold(0, |bits, (at, _)| bits | 1 << at));
    }

    /// Whether the server is the primary.
    pub fn is_primary(&self, server: ServerId) -> bool {
        self.primary() == Some(server)
    }

    /// The primary, where there is one.
    pub fn primary(&self) -> Option<ServerId> {
        self.with_world(|world| world.snapshot.primary)
    }

    /// The servers as known now.
    pub fn world(&self) -> Arc<World> {
        self.world.borrow().clone()
    }

    /// Runs `look` on the servers as known now, without taking a reference.
    pub fn with_world<T>(&self, look: impl FnOnce(&World) -> T) -> T {
        look(&self.world.borrow())
    }

    /// Stored routines and views as known now.
    pub fn catalogue(&self) -> Rc<Catalogue> {
        self.catalogue.borrow().clone()
    }

    /// Positions that servers were seen to have reached since the last probe.
    pub fn with_known<T>(&self, look: impl FnOnce(&[GtidSet]) -> T) -> T {
        look(&self.known.borrow())
    }

    /// Takes over what servers have said since about how far they are.
    pub fn take_positions(&self) {
        let positions = self.shared.monitor.positions();
        let answers = positions.answers();
        if self.answers.replace(answers) == answers {
            return;
        }
        let mut taken = self.taken.borrow_mut();
        taken.resize(self.servers.len(), 0);
        for (index, number) in taken.iter_mut().enumerate() {
            let server = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
            let Some(found) = positions.newer(server, *number) else {
                continue;
            };
            *number = found.number;
            let incarnation = self.with_world(|world| {
                let view = world.snapshot.server(server);
                view.map(|view| view.incarnation)
            });
            if incarnation == Some(found.incarnation) {
                self.told(server, &found.executed);
            }
        }
    }

    /// Somebody will choose among the replicas by how far they are.
    pub fn want_positions(&self) {
        let positions = self.shared.monitor.positions();
        self.with_world(|world| {
            let primary = world.snapshot.primary;
            let views = world.snapshot.servers.iter();
            let replicas = views.filter(|view| primary != Some(view.id));
            replicas.for_each(|view| positions.want(view.id));
        });
    }

    /// A server has said how far it is.
    fn told(&self, server: ServerId, position: &GtidSet) {
        if let (GtidSet::Log(_), Some(known)) =
            (position, self.known.borrow_mut().get_mut(server.index()))
        {
            // A log that was begun anew is shorter than it was.
            known.clear();
        }
        self.reached(server, position);
    }

    /// The server of a connection was seen to have reached `position`.
    pub fn reached_on(&self, lease: &Lease, position: &GtidSet) {
        if lease.is_there() {
            self.reached(lease.server, position);
        }
    }

    /// Something was seen of a connection's server that the monitor should look at.
    pub fn observe(&self, lease: &Lease, kind: ObservationKind) {
        if lease.is_there() {
            self.shared.monitor.observe(lease.server, kind);
        }
    }

    /// A server was seen to have reached `position`.
    fn reached(&self, server: ServerId, position: &GtidSet) {
        let mut known = self.known.borrow_mut();
        while known.len() <= server.index() {
            known.push(GtidSet::new(position.family()));
        }
        let known = &mut known[server.index()];
        if !known.is_comparable(position) {
            *known = GtidSet::new(position.family());
        }
        // Never coalesced: it would claim what the server has not.
        known.union(position);
    }

    /// Bounds what somebody must see: no transaction is added that the primary was not seen to have.
    pub fn bound(&self, set: &mut GtidSet, intervals_max: usize) {
        if set.is_wide(intervals_max) {
            self.with_world(|world| {
                let primary = world.snapshot.primary_view();
                set.coalesce(intervals_max, primary.map(|view| &view.executed));
            });
        }
    }

    /// Something was written at `position`.
    pub fn wrote(&self, position: &GtidSet) {
        let bound = |set: &mut GtidSet| self.bound(set, INTERVALS_MAX);
        self.shared.written.note(self.index, position, &bound);
        self.shared.monitor.positions().stir();
    }

    /// Something was written in a cluster: its number in this process's count.
    pub fn count_write(&self) -> u64 {
        self.shared.written.count(self.index)
    }

    /// What the server can be asked to wait for.
    pub fn waits_of(&self, server: ServerId) -> Waits {
        self.with_world(|world| {
            let view = world.snapshot.server(server);
            view.map_or(Waits::Nothing, |view| view.waits)
        })
    }

    /// The same of the primary.
    pub fn waits_of_primary(&self) -> Waits {
        self.with_world(|world| {
            let view = world.snapshot.primary_view();
            view.map_or(Waits::Nothing, |view| view.waits)
        })
    }

    /// Whether something was written, nobody knows where, since the primary was asked last how far it
    /// is.
    pub fn has_untracked(&self) -> bool {
        self.shared.written.untracked() != Some(self.found.get())
    }

    /// The primary was asked when `untracked` writes had not told their position, and answered `primary_position`.
    pub fn found(&self, untracked: u64, primary_position: &GtidSet) {
        if self.found.get() != untracked {
            self.wrote(primary_position);
            self.found.set(untracked);
        }
    }

    /// A wait for a position failed on the server.
    pub fn set_behind(&self, server: ServerId) {
        let mut late = self.late_until.get();
        if let Some(until) = late.get_mut(server.index()) {
            *until = self.tick.get() + 2;
        } else {
            return;
        }
        self.late_until.set(late);
        self.late.set(self.late.get() | 1 << server.index());
    }

    /// What was just done takes replicas long: for a moment nobody waits for them.
    pub fn set_replicas_behind(&self) {
        let world = self.world();
        let views = world.snapshot.servers.iter();
        let replicas = views.filter(|view| world.snapshot.primary != Some(view.id));
        replicas.for_each(|view| self.set_behind(view.id));
    }

    /// The servers on which a wait failed in the last second or two, or DDL is on its way: a bit for each.
    pub fn behind(&self) -> u64 {
        self.late.get()
    }

    /// A server has not said in time how far it is: sessions do not ask again for a while.
    pub fn pause_asking(&self) {
        self.ask_paused_until.set(Instant::now() + ASK_PAUSE);
    }

    /// Whether that was lately.
    pub fn is_asking_paused(&self) -> bool {
        Instant::now() < self.ask_paused_until.get()
    }

    /// Whether a session may ask, for the sake of balance, how far servers are: once in a while one
    /// may, after `least` at the soonest.
    pub fn may_ask(&self, least: Duration) -> bool {
        let now = Instant::now();
        let interval = self.ask_interval.get().max(least);
        let may = now.duration_since(self.asked.get()) >= interval;
        if may {
            self.asked.set(now);
        }
        may
    }

    /// A session has asked; `gained`: it could move. The longer nobody can, as replicas are far behind,
    /// the less often it is tried.
    pub fn note_asking(&self, gained: bool) {
        let (least, most) = ASK_INTERVALS;
        self.ask_interval.set(match gained {
            true => least,
            false => most.min(self.ask_interval.get() * 2),
        });
    }

    /// A number by which servers that are alike take turns.
    pub fn rotation(&self) -> u32 {
        self.rotation.get()
    }

    /// The next statement goes to the next of them.
    pub fn rotate(&self) {
        self.rotation.set(self.rotation.get().wrapping_add(1));
    }

    /// [`Fresh::drops`](millrace_backend::fresh::Fresh::drops), of all servers together.
    pub fn drops(&self) -> u64 {
        self.with_world(drops)
    }

    /// The primary's global `sql_mode`, as a probe saw it last; empty where that is not known.
    pub fn sql_mode(&self) -> Box<str> {
        self.with_world(|world| {
            let primary = world.snapshot.primary_view();
            let report = primary.and_then(|view| view.report.as_ref());
            report
                .map(|report| report.sql_mode.clone())
                .unwrap_or_default()
        })
    }

    /// The servers' family.
    pub fn family(&self) -> Family {
        self.with_world(|world| world.snapshot.family.unwrap_or(Family::MySql))
    }
}

/// How many accounts have been dropped on any server, as far as the monitor has seen.
pub(super) fn drops(world: &World) -> u64 {
    world.facts.iter().map(|facts| facts.fresh.drops()).sum()
}
