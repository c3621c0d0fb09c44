//! Serving: how it is started, where clients may connect, which server runs what, what limits
//! say, how it follows its servers and how it ends.

mod check;
mod crowd;
mod ending;
mod faults;
mod ground;
mod limits;
mod placing;
mod resting;
mod start;
mod statements;

use millrace_sandbox::{Cluster, ClusterSpec, Release, skip_unless};
use millrace_tests::checks::Checks;

use crate::crowd::{few_at_once, locked_out};
use crate::ending::{drain_ends, drain_of_nobody, drains};
use crate::faults::{
    all_replicas_go, applier_stops, down_at_start, given_up_reads_end, mend, nothing_at_start,
    promoted, replica_goes,
};
use crate::ground::{QUICK, SLOW, mark};
use crate::limits::{
    between_workers, clients_per_address, each_in_his_time, kill_while_full, late_while_full,
    most_clients, pool_exhausted, queue_full, served_in_order,
};
use crate::placing::{listener_tls, reads_on_all, targets, writes_nothing};
use crate::resting::{rests, rests_throttled};
use crate::start::{
    by_flags, cannot_listen, monitor_is_missing, monitor_password_file, socket_left_behind,
    without_monitor, without_monitor_or_room,
};
use crate::statements::{at_the_servers_limit, below_the_servers_limit, no_orphans};

/// What runs in CI on a second release of a family.
const SELECTED: &[&str] = &[
    "writes nothing",
    "without monitor",
    "without monitor or room",
    "targets",
    "listener's TLS",
    "pool exhausted",
    "statements",
    "given-up reads end",
    "applier stops",
    "replica killed",
    "promoted",
];

async fn serving(release: Release) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(release)).await?;
    let cluster = &cluster;
    mark(cluster).await?;
    let mut checks = Checks::selected("serving", release, SELECTED);
    checks.run("writes nothing", writes_nothing(cluster)).await;
    checks.run("by flags", by_flags(cluster)).await;
    checks
        .run("check --connect", check::asks_the_servers(cluster))
        .await;
    checks
        .run(
            "monitor's password from a file",
            monitor_password_file(cluster),
        )
        .await;
    checks
        .run("without monitor", without_monitor(cluster))
        .await;
    let alone = without_monitor_or_room(cluster);
    checks.run("without monitor or room", alone).await;
    checks
        .run("monitor is missing", monitor_is_missing(cluster))
        .await;
    checks.run("cannot listen", cannot_listen(cluster)).await;
    checks
        .run("socket left behind", socket_left_behind(cluster))
        .await;
    checks.run("targets", targets(cluster)).await;
    checks.run("reads on all", reads_on_all(cluster)).await;
    checks.run("listener's TLS", listener_tls(cluster)).await;
    checks
        .run("rests where CPU is scarce", rests(cluster))
        .await;
    checks
        .run("longer rests where throttled", rests_throttled(cluster))
        .await;
    checks.run("max_clients", most_clients(cluster)).await;
    checks
        .run("clients_per_address", clients_per_address(cluster))
        .await;
    checks.run("pool exhausted", pool_exhausted(cluster)).await;
    checks
        .run("KILL while full", kill_while_full(cluster))
        .await;
    checks
        .run("each in his time", each_in_his_time(cluster))
        .await;
    checks
        .run("served in order", served_in_order(cluster))
        .await;
    checks
        .run("between workers", between_workers(cluster))
        .await;
    checks
        .run("late while full", late_while_full(cluster))
        .await;
    checks.run("queue full", queue_full(cluster)).await;
    checks.run("few at once", few_at_once(cluster)).await;
    checks.run("locked out", locked_out(cluster)).await;
    checks
        .run("statements: no orphans", no_orphans(cluster))
        .await;
    checks
        .run(
            "statements: below the server's limit",
            below_the_servers_limit(cluster),
        )
        .await;
    checks
        .run(
            "statements: at the server's limit",
            at_the_servers_limit(cluster),
        )
        .await;
    checks.run("drains", drains(cluster)).await;
    checks.run("drain ends", drain_ends(cluster)).await;
    checks
        .run("drain of nobody", drain_of_nobody(cluster))
        .await;
    checks
        .run("given-up reads end", given_up_reads_end(cluster))
        .await;
    mend(cluster).await?;
    checks.run("applier stops", applier_stops(cluster)).await;
    mend(cluster).await?;
    checks
        .run("replica stopped", replica_goes(cluster, QUICK, false))
        .await;
    mend(cluster).await?;
    checks
        .run("replica killed", replica_goes(cluster, QUICK, true))
        .await;
    mend(cluster).await?;
    checks
        .run(
            "replica stopped, reads under way",
            replica_goes(cluster, SLOW, false),
        )
        .await;
    mend(cluster).await?;
    checks
        .run(
            "replica killed, reads under way",
            replica_goes(cluster, SLOW, true),
        )
        .await;
    mend(cluster).await?;
    checks
        .run("all replicas go", all_replicas_go(cluster))
        .await;
    mend(cluster).await?;
    checks.run("down at start", down_at_start(cluster)).await;
    mend(cluster).await?;
    checks
        .run("nothing at start", nothing_at_start(cluster))
        .await;
    mend(cluster).await?;
    checks.run("promoted", promoted(cluster)).await;
    checks.finish()
}

async fn test(release: Release) -> anyhow::Result<()> {
    if millrace_tests::harness::direct_only() || !skip_unless(release, "serving") {
        return Ok(());
    }
    serving(release).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    test(Release::MariaDb).await
}

#[tokio::test]
async fn mariadb_11_8() -> anyhow::Result<()> {
    test(Release::MariaDb11_8).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    test(Release::MySql).await
}
