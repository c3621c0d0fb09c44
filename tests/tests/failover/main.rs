//! Failover as clients see it: what they keep and what they are told when the primary dies, is
//! changed or drained, in the middle of whatever they do.

mod counted;
mod ended;
mod facts;
mod ground;
mod held;
mod killed;
mod planned;
mod transactions;
mod unwritten;

use millrace_sandbox::{Cluster, ClusterSpec, Release, skip_unless};
use millrace_tests::checks::Checks;

use crate::ground::mend;

/// What runs in CI on a second release of a family.
const SELECTED: &[&str] = &[
    "idle session",
    "write under way",
    "transaction",
    "generated numbers",
    "LAST_INSERT_ID",
    "commit",
    "killed under way",
    "idle for too long",
    "switchover",
];

async fn failover(release: Release) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(release)).await?;
    let cluster = &cluster;
    let mut checks = Checks::selected("failover", release, SELECTED);
    macro_rules! check {
        ($name:literal, $check:expr) => {
            mend(cluster).await?;
            checks.run($name, $check(cluster)).await;
        };
    }
    check!("idle session", killed::idle_session);
    check!("prepared statements", killed::prepared_statements);
    check!("read under way", killed::read_under_way);
    check!("prepared read under way", killed::prepared_read_under_way);
    check!("client comes", killed::client_comes);
    check!("read that ends servers", killed::read_that_ends_servers);
    check!("write before", killed::write_before);
    check!("write under way", killed::write_under_way);
    check!("write whose answer is cut", killed::write_cut);
    check!("hung primary", killed::hung_primary);
    check!("transaction replayed", transactions::replayed);
    check!("transaction under way", transactions::under_way);
    check!("first statement under way", transactions::first_under_way);
    check!("transaction differs", transactions::differs);
    check!("generated numbers", transactions::generated_numbers);
    check!("prepared in transaction", transactions::prepared);
    check!("savepoints and state", transactions::savepoints_and_state);
    check!("autocommit off", transactions::autocommit_off);
    check!("not replayable", transactions::not_replayable);
    check!("flat under way", transactions::flat_under_way);
    check!("bounds", transactions::bounds);
    check!("commit before", transactions::commit_before);
    check!("commit cut", transactions::commit_cut);
    check!("commit of nothing cut", transactions::commit_of_nothing_cut);
    check!("rollback cut", transactions::rollback_cut);
    check!("read-only transaction", transactions::read_only);
    check!("pinned otherwise", transactions::pinned_otherwise);
    check!("begun unseen", unwritten::begun_unseen);
    check!("begun unseen and cut", unwritten::begun_unseen_and_cut);
    check!("LAST_INSERT_ID()", unwritten::last_insert_id);
    check!("prepared commit cut", unwritten::prepared_commit_cut);
    check!("failed DDL", unwritten::failed_ddl);
    check!("flat behind", unwritten::flat_behind);
    check!("pings and room", unwritten::pings_and_room);
    check!("killed while idle", ended::killed_while_idle);
    check!("killed and reset", ended::killed_and_reset);
    check!("query killed while idle", ended::query_killed_while_idle);
    check!("killed under way", ended::killed_under_way);
    check!("query killed under way", ended::query_killed_under_way);
    check!("read killed", ended::read_killed);
    check!("killed after a wait", ended::killed_after_a_wait);
    check!("write killed", ended::write_killed);
    check!("idle for too long", ended::idle_for_too_long);
    check!("lost after all", ended::lost_after_all);
    check!("restarted", ended::restarted);
    check!("killed in a switchover", ended::killed_in_a_switchover);
    check!("counted", counted::as_clients_saw_it);
    check!("in order", held::in_order);
    check!("limits", held::limits);
    check!("client leaves", held::client_leaves);
    check!("write for replicas", held::write_for_replicas);
    check!("killed while held", held::killed_while_held);
    check!("reset while held", held::reset_while_held);
    check!("switchover under load", planned::switchover);
    check!("read_only flips under load", planned::flips);
    check!("drained under load", planned::drained);
    check!(
        "drained with transactions",
        planned::drained_with_transactions
    );
    check!("primary stopped under load", planned::stopped);
    check!("primary killed under load", planned::killed);
    mend(cluster).await?;
    checks.run("fact: shutdown", facts::shutdown(cluster)).await;
    mend(cluster).await?;
    checks
        .run("fact: insert_id", facts::insert_id(cluster))
        .await;
    checks.finish()
}

async fn test(release: Release) -> anyhow::Result<()> {
    if millrace_tests::harness::direct_only() || !skip_unless(release, "failover") {
        return Ok(());
    }
    failover(release).await
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
