//! The cache: is what comes out of memory what the servers would answer, and does it come out of memory at all?

#[path = "cache/answers.rs"]
mod answers;
#[path = "cache/changes.rs"]
mod changes;
#[path = "cache/ground.rs"]
mod ground;
#[path = "cache/order.rs"]
mod order;
#[path = "cache/registers.rs"]
mod registers;
#[path = "cache/rules.rs"]
mod rules;
#[path = "cache/timed.rs"]
mod timed;
#[path = "cache/verify.rs"]
mod verify;
#[path = "cache/waits.rs"]
mod waits;

use millrace_sandbox::{Family, Release, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::harness;

use crate::ground::Ground;

const TABLES: &[&str] = &[
    "CREATE TABLE c_plain (id INT PRIMARY KEY, v VARCHAR(20))",
    "INSERT INTO c_plain VALUES (1, 'one'), (2, 'two'), (3, 'three')",
    "CREATE TABLE c_count (id INT PRIMARY KEY, n BIGINT NOT NULL)",
    "INSERT INTO c_count VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0)",
    "CREATE TABLE c_times (t TIMESTAMP(3) PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4)",
    "INSERT INTO c_times VALUES ('2024-05-06 07:08:09.123', 'grün'), ('2024-05-07 00:00:00', 'blau')",
    "CREATE TABLE c_time (id INT PRIMARY KEY, t TIME, d DATETIME)",
    "INSERT INTO c_time VALUES (1, '10:00:00', '2024-01-01 00:00:00')",
    "CREATE TABLE c_binary (id BINARY(4) PRIMARY KEY, v INT)",
    "INSERT INTO c_binary VALUES (0x00300031, 0), ('01', 0)",
    "CREATE TABLE c_memory (id INT) ENGINE = MEMORY",
    "CREATE VIEW c_view AS SELECT v FROM c_plain",
    "CREATE FUNCTION c_clock() RETURNS DATETIME(6) READS SQL DATA RETURN NOW(6)",
];

async fn cache(release: Release) -> anyhow::Result<()> {
    let ground = Ground::start(release, 2).await?;
    let mut direct = ground.direct().await?;
    for sql in TABLES {
        direct.expect(sql).await?;
    }
    direct.quit().await;
    ground
        .cluster
        .wait_replicas_caught_up(std::time::Duration::from_secs(20))
        .await?;
    let ground = &ground;
    let mut checks = Checks::new(format!("cache, {release}"));
    checks.run("same bytes", answers::same_bytes(ground)).await;
    checks.run("prepared", answers::prepared(ground)).await;
    checks.run("never", answers::never(ground)).await;
    checks.run("given up", answers::given_up(ground)).await;
    checks
        .run("waits for a fill", waits::for_a_fill(ground))
        .await;
    checks.run("rules and hints", rules::obeyed(ground)).await;
    checks.run("verify", verify::differences(ground)).await;
    checks
        .run("served for a time", timed::whatever_is_written(ground))
        .await;
    checks.run("by state", answers::by_state(ground)).await;
    checks
        .run("written through", changes::through(ground))
        .await;
    checks.run("written beside", changes::beside(ground)).await;
    checks
        .run("each kind of change", changes::each_kind(ground))
        .await;
    checks
        .run(
            "unlogged definitions",
            changes::unlogged_definitions(ground),
        )
        .await;
    checks
        .run("before the log", changes::before_the_log(ground))
        .await;
    checks.run("rights", changes::rights(ground)).await;
    checks
        .run("default roles", changes::default_roles(ground))
        .await;
    checks
        .run("wide strings", changes::wide_strings(ground))
        .await;
    checks
        .run("order: a hit is seen", order::a_hit_is_seen(ground))
        .await;
    checks
        .run("order: the log", order::nothing_before_the_log(ground))
        .await;
    checks.run("registers", registers::hold(ground)).await;
    checks.finish()
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MariaDb, "cache") {
        return Ok(());
    }
    cache(Release::from(Family::MariaDb)).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MySql, "cache") {
        return Ok(());
    }
    cache(Release::from(Family::MySql)).await
}

#[tokio::test]
async fn mariadb_11_8() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Release::MariaDb11_8, "cache") {
        return Ok(());
    }
    cache(Release::MariaDb11_8).await
}
