//! What metrics and health say of the servers, from what the monitor knows. Decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_admin::Readiness;
use millrace_backend::cache::Cache;
use millrace_backend::failovers::{FailoverCount, MoveKind, Timeline};
use millrace_backend::monitor::{Counts, Monitor, Traffic, World};
use millrace_cache::{Cause, Miss};
use millrace_metrics::{
    CacheState, FollowerState, Metrics, PrimaryState, ServerState, StatementKind,
};
use millrace_topology::{Health, NoPrimary, ServerId};

/// How often the cache is looked at.
const CACHE_EVERY: Duration = Duration::from_secs(1);

/// Keeps what the metrics say of the servers up to date.
pub(crate) async fn publish_servers(monitor: Arc<Monitor>, metrics: Arc<Metrics>) {
    let mut world = monitor.watch();
    loop {
        let states = {
            let world = world.borrow_and_update();
            let snapshot = &world.snapshot;
            let views = snapshot.servers.iter();
            views
                .map(|view| ServerState {
                    name: view.address.to_string(),
                    up: view.health.is_usable(),
                    fit: view.is_fit(),
                    primary: snapshot.primary == Some(view.id),
                    draining: view.draining,
                    gone: view.gone,
                    lag_seconds: view.lag_seconds,
                })
                .collect()
        };
        metrics.set_servers(states);
        metrics.set_primary(primary_state(&monitor));
        if world.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps what the metrics say of the cache up to date.
pub(crate) async fn publish_cache(cache: Arc<Cache>, metrics: Arc<Metrics>) {
    loop {
        metrics.set_cache(cache_state(&cache));
        tokio::time::sleep(CACHE_EVERY).await;
    }
}

fn cache_state(cache: &Cache) -> CacheState {
    let store = cache.store();
    let totals = store.totals();
    let misses = Miss::ALL.iter();
    let causes = Cause::ALL.iter();
    CacheState {
        hits: totals.hits,
        misses: misses
            .map(|reason| (label(reason.name()), totals.missed(*reason)))
            .collect(),
        fills: totals.fills,
        verified: store.verified().compared,
        differences: store.verified().differences,
        waits: totals.waits(),
        waits_served: totals.waits_served(),
        invalidations: causes
            .map(|cause| (label(cause.name()), totals.removed(*cause)))
            .collect(),
        results: store.len() as u64,
        bytes: store.bytes() as u64,
        silence: store
            .silence(Instant::now())
            .map(|silence| silence.as_secs_f64()),
        follower: follower_state(cache, store.silence(Instant::now()).is_some()),
    }
}

fn follower_state(cache: &Cache, is_followed: bool) -> FollowerState {
    let followed = cache.followed();
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    FollowerState {
        lag: is_followed.then(|| of(&followed.behind_seconds)),
        transactions: of(&followed.transactions),
        bytes: of(&followed.bytes),
        streams: of(&followed.streams),
        drops: of(&followed.drops),
        definitions: of(&followed.readings),
    }
}

/// `NotYet` as metrics spell it: `not_yet`.
fn label(name: &str) -> String {
    let mut label = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !label.is_empty() {
            label.push('_');
        }
        label.push(letter.to_ascii_lowercase());
    }
    label
}

/// Whom a monitor asks what becomes of clients' statements on a server.
pub(crate) fn traffic(metrics: &Arc<Metrics>) -> Traffic {
    let metrics = metrics.clone();
    Traffic(Arc::new(move |server: ServerId| {
        let answered = |kind: &StatementKind| metrics.answered(server.index(), *kind);
        Counts {
            answered: StatementKind::ALL.iter().map(answered).sum(),
            read: answered(&StatementKind::Read),
            leased: metrics.leased(server.index()),
        }
    }))
}

fn primary_state(monitor: &Monitor) -> PrimaryState {
    let snapshot = monitor.watch().borrow().snapshot.clone();
    let failovers = monitor.failovers();
    let now = snapshot.without.map(NoPrimary::label);
    let kinds = MoveKind::ALL.into_iter();
    let outcomes = FailoverCount::ALL.iter().zip(failovers.totals());
    PrimaryState {
        without: NoPrimary::LABELS
            .iter()
            .map(|label| (*label, u64::from(now == Some(*label))))
            .collect(),
        failovers: kinds
            .map(|kind| (kind.as_str(), failovers.made(kind)))
            .collect(),
        statements: outcomes
            .map(|(outcome, count)| (outcome.as_str(), count))
            .collect(),
        changes: snapshot.epoch,
        last_pause_ms: failovers.list().iter().find_map(Timeline::pause_ms),
    }
}

/// Ready: somebody can take writes, or at least reads.
pub(crate) fn readiness(world: &World) -> Readiness {
    let snapshot = &world.snapshot;
    let primary = snapshot.primary_view();
    let replicas = snapshot.fit_replicas().count();
    let detail = match primary {
        Some(view) => format!("primary {}, {replicas} replicas take reads", view.address),
        None => format!("no primary, {replicas} replicas take reads"),
    };
    let all_asked = snapshot
        .servers
        .iter()
        .all(|view| view.gone || view.health != Health::Unknown);
    Readiness {
        ready: world.greeting.is_some() && (primary.is_some() || (all_asked && replicas > 0)),
        detail,
    }
}
