//! No primary, no room: what needs neither is served elsewhere, and the rest waits, logins as well.

#[path = "serving/ground.rs"]
#[allow(dead_code, reason = "the suite needs but some of it")]
mod ground;
#[path = "no_primary/logins.rs"]
mod logins;
#[path = "no_primary/lost.rs"]
mod lost;
#[path = "no_primary/room.rs"]
mod room;

use millrace_sandbox::{Cluster, ClusterSpec, Family, skip_unless};
use millrace_tests::checks::Checks;

use crate::ground::mark;

async fn no_primary(family: Family) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(family)).await?;
    let cluster = &cluster;
    mark(cluster).await?;
    let mut checks = Checks::new(format!("no primary, {family}"));
    macro_rules! check {
        ($name:literal, $check:expr) => {
            checks.run($name, $check(cluster)).await;
            lost::mend(cluster).await?;
        };
    }
    check!("all read only", lost::all_read_only);
    check!("primary killed", lost::killed);
    check!("transactions move", lost::transactions_move);
    check!("drivers log in", lost::drivers_log_in);
    check!("what keeps its connection waits", lost::kept_waits);
    check!("places taken", room::places_taken);
    check!("account full", room::account_full);
    check!("account full for long", room::account_full_for_long);
    check!("server full", room::server_full);
    check!("logins per hour", room::per_hour);
    check!("primary dies", logins::primary_dies);
    check!("primary hangs", logins::primary_hangs);
    check!("nobody answers", logins::nobody_answers);
    checks.finish()
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if millrace_tests::harness::direct_only() || !skip_unless(Family::MariaDb, "no primary") {
        return Ok(());
    }
    no_primary(Family::MariaDb).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if millrace_tests::harness::direct_only() || !skip_unless(Family::MySql, "no primary") {
        return Ok(());
    }
    no_primary(Family::MySql).await
}
