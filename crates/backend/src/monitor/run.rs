//! The tasks that watch: one for each server, one for its position, and one for stored code. Judges nothing.

use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_topology::{ServerId, Snapshot, Waits};
use tracing::{error, warn};

use super::watcher::ServerWatcher;
use super::{Monitor, MonitorOptions};
use crate::clock::Clock;
use crate::connect::SharedNetwork;
use crate::positions::Position;
use crate::probe;
use crate::probe::positions::{Asked, Commits, ask_position, ask_unshown};
use crate::unshown::Unshown;

/// A server on which nothing is written is asked how far it is after twice as long each time, up to
/// so many times, until something is written through Millrace; whoever waits for the answer has it at once all the same.
const QUIET_DOUBLINGS: u32 = 4;

/// Changes of stored code that come one after the other are read together.
const GATHERED: Duration = Duration::from_millis(20);

/// What watches has panicked: it is begun anew after this.
const BEGUN_ANEW: Duration = Duration::from_secs(1);

impl Monitor {
    /// Watches until the process ends: two tasks per server, and one for the catalogue. To be called
    /// on a current-thread runtime that allows local tasks.
    pub async fn run(self: Arc<Self>, options: Arc<MonitorOptions>, network: SharedNetwork) {
        let clock = Rc::new(Clock::new(Instant::now()));
        let (reader, how, with) = (self.clone(), options.clone(), network.clone());
        let read = move || reader.clone().watch_catalogue(how.clone(), with.clone());
        tokio::task::spawn_local(keep("stored routines and views", read));
        let mut world = self.watch();
        let mut watched = HashMap::new();
        loop {
            let known = world.borrow_and_update().facts.len();
            for id in (0..known).filter_map(|at| u16::try_from(at).ok().map(ServerId)) {
                watched.entry(id).or_insert_with(|| {
                    let watcher = ServerWatcher {
                        monitor: self.clone(),
                        id,
                        options: options.clone(),
                        network: network.clone(),
                        clock: clock.clone(),
                    };
                    let watching = keep("the watch of a server", move || watcher.clone().watch());
                    tokio::task::spawn_local(watching);
                    if !options.user.is_empty() {
                        let with = || (self.clone(), options.clone(), network.clone());
                        let (monitor, how, network) = with();
                        let follow = move || {
                            let monitor = monitor.clone();
                            monitor.follow_position(id, how.clone(), network.clone())
                        };
                        tokio::task::spawn_local(keep("a server's position", follow));
                        let (monitor, how, network) = with();
                        let follow = move || {
                            let monitor = monitor.clone();
                            monitor.follow_unshown(id, how.clone(), network.clone())
                        };
                        tokio::task::spawn_local(keep("a primary's commits", follow));
                    }
                });
            }
            if world.changed().await.is_err() {
                return;
            }
        }
    }

    /// Asks the server how far it is whenever somebody needs to know, on a connection of its own:
    /// a probe may take longer.
    async fn follow_position(
        self: Arc<Self>,
        id: ServerId,
        options: Arc<MonitorOptions>,
        network: SharedNetwork,
    ) {
        let mut conn = None;
        let mut last = None;
        let mut unchanged = 0;
        loop {
            self.positions.called(id).await;
            let (facts, asked) = {
                let world = self.world.borrow();
                let asked = how_to_ask(&world.snapshot, id);
                (world.facts[id.index()].clone(), asked)
            };
            if let Some((asked, incarnation)) = asked {
                let number = self.positions.begin(id);
                let asking = ask_position(&mut conn, &facts, asked, &options, &network);
                match tokio::time::timeout(options.timeout, asking).await {
                    Ok(Ok(told)) => {
                        let visible = Arc::new(told.visible);
                        unchanged = match last.replace(visible.clone()) == Some(visible.clone()) {
                            true => (unchanged + 1).min(QUIET_DOUBLINGS),
                            false => 0,
                        };
                        let position = Position {
                            number,
                            executed: Arc::new(told.executed),
                            visible,
                            read_only: told.read_only,
                            incarnation,
                        };
                        self.positions.answer(id, position);
                    }
                    // What is wrong with the server, the probe finds out and says.
                    _ => conn = None,
                }
            }
            let least = options.position_interval;
            let next = tokio::time::Instant::now() + least;
            let stirred = async {
                self.positions.stirred(id).await;
                // A server that makes no progress is not asked for every write.
                tokio::time::sleep_until(next).await;
            };
            tokio::select! {
                () = tokio::time::sleep(least.saturating_mul(1 << unchanged)) => {}
                () = self.positions.urged(id) => {}
                () = stirred, if unchanged > 0 => unchanged = 0,
            }
        }
    }

    /// Asks the server what it has logged and may not show yet, whenever a session needs to know. On a connection of
    /// its own, as the answer comes late where commits wait for replicas.
    async fn follow_unshown(
        self: Arc<Self>,
        id: ServerId,
        options: Arc<MonitorOptions>,
        network: SharedNetwork,
    ) {
        let mut commits = Commits::default();
        loop {
            self.unshown.called(id).await;
            let (facts, incarnation, group) = {
                let world = self.world.borrow();
                let incarnation = how_to_ask(&world.snapshot, id).map(|(_, number)| number);
                let facts = world.facts[id.index()].clone();
                (facts, incarnation, world.snapshot.is_in_group(id))
            };
            let Some(incarnation) = incarnation else {
                tokio::time::sleep(options.position_interval).await;
                continue;
            };
            let number = self.unshown.begin(id);
            let is_there = || {
                let world = self.world.borrow();
                let at = &world.facts[id.index()].address.at;
                let now = how_to_ask(&world.snapshot, id).map(|(_, number)| number);
                now == Some(incarnation) && *at == facts.address.at
            };
            let mut told = None;
            // One that was closed meanwhile is no word of the server's.
            for _ in 0..2 {
                let mut asking = pin!(ask_unshown(&mut commits, &facts, group, &options, &network));
                // A server that goes on is waited for: whoever gave up on a connection would leave its question there, and
                // ask another one.
                let answer = loop {
                    match tokio::time::timeout(options.timeout, &mut asking).await {
                        Ok(answer) => break Some(answer),
                        Err(_) if is_there() => {}
                        Err(_) => break None,
                    }
                };
                match answer {
                    Some(Ok(answer)) => {
                        told = Some(answer);
                        break;
                    }
                    Some(Err(_)) => {}
                    None => break,
                }
            }
            match told {
                Some(told) => self.unshown.answer(
                    id,
                    Unshown {
                        number,
                        incarnation,
                        told: Arc::new(told),
                    },
                ),
                // What is wrong with the server, the probe finds out and says.
                None => {
                    commits = Commits::default();
                    tokio::time::sleep(options.position_interval).await;
                }
            }
        }
    }

    async fn watch_catalogue(
        self: Arc<Self>,
        options: Arc<MonitorOptions>,
        network: SharedNetwork,
    ) {
        let mut conn = None;
        let mut complained = false;
        // Until the first try has told.
        self.touched.set_readable(!options.user.is_empty());
        loop {
            let world = self.world.borrow().clone();
            let mut pause = options.catalogue_interval;
            if let Some(primary) = world.snapshot.primary.filter(|_| !options.user.is_empty()) {
                let facts = world.facts[primary.index()].clone();
                let mark = self.touched.mark();
                let view = world.snapshot.server(primary);
                let report = view.and_then(|view| view.report.as_ref());
                let in_galera = report.is_some_and(|report| report.galera.is_some());
                let reading =
                    probe::read_catalogue(&mut conn, &facts, in_galera, &options, &network);
                match tokio::time::timeout(options.timeout.max(Duration::from_secs(5)), reading)
                    .await
                {
                    Ok(Ok(catalogue)) => {
                        complained = false;
                        self.touched.set_readable(true);
                        self.publish_catalogue(catalogue, mark);
                    }
                    failed => {
                        conn = None;
                        self.touched.set_readable(false);
                        let error = match failed {
                            Ok(Err(error)) => error.to_string(),
                            _ => "no answer in time".to_owned(),
                        };
                        if !std::mem::replace(&mut complained, true) {
                            warn!(%error, "stored routines and views cannot be read: calls of stored functions go to the primary");
                        }
                    }
                }
            } else {
                pause = options.interval;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.touched.changed() => {
                    tokio::time::sleep(GATHERED).await;
                }
            }
        }
    }
}

/// Runs a task until it ends; where it panics, it is begun anew, and said.
pub(crate) async fn keep<F: Future<Output = ()> + 'static>(what: &str, begin: impl Fn() -> F) {
    loop {
        match tokio::task::spawn_local(begin()).await {
            Err(failed) if failed.is_panic() => {
                error!("{what} has panicked, which is a defect of Millrace; it begins anew");
            }
            _ => return,
        }
        tokio::time::sleep(BEGUN_ANEW).await;
    }
}

/// How a server can be asked how far it is, and its incarnation; none where it cannot.
fn how_to_ask(snapshot: &Snapshot, id: ServerId) -> Option<(Asked, u32)> {
    let view = snapshot.server(id).filter(|view| view.health.is_usable())?;
    let version = view
        .report
        .as_ref()
        .map_or(0, |report| report.version_number);
    let asked = match view.waits {
        Waits::Gtids => Asked::Gtids,
        Waits::Log if snapshot.primary == Some(id) => Asked::OwnLog(version),
        Waits::Log => Asked::SourcesLog(version),
        // A cluster's node is not asked: it waits for all that there is.
        Waits::Cluster | Waits::Nothing => return None,
    };
    Some((asked, view.incarnation))
}
