//! Answers out of memory that are read again: no difference while servers are written to, and one where rows change that the
//! binary log does not tell of.

use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::{APP, Family};
use millrace_tests::harness::{self, Proxy};
use millrace_tests::wire::{Connection, Login};

use crate::ground::{Ground, addresses, options, told_by, until_serving};

const READS: &[&str] = &[
    "SELECT id, n FROM c_count",
    "SELECT n FROM c_count WHERE id = 6",
    "SELECT a.id FROM c_plain a JOIN c_count b ON a.id = b.id WHERE b.n >= 0",
];

/// Until it is known what the last read has shown, the next one is none of the cache's. Where nothing is written, servers
/// are asked less often.
const PAUSE: Duration = Duration::from_millis(30);

pub(crate) async fn differences(ground: &Ground) -> anyhow::Result<()> {
    let admin_port = harness::free_port()?;
    let mut options = options(admin_port);
    options.extra.push_str("verify = 1.0\n");
    let proxy = Proxy::start(&addresses(&ground.cluster), &options).await?;
    until_serving(admin_port).await?;
    let told = async |name: &str| anyhow::Ok(told_by(admin_port, name).await?.parse::<u64>()?);
    let login = Login::new(proxy.address(), APP.user, APP.password).database("app");
    let mut client = Connection::open(&login).await?;
    let mut direct = ground.direct().await?;
    let begun = Instant::now();
    let mut value = 0;
    while told("compared").await? < 10 {
        ensure!(
            begun.elapsed() < Duration::from_secs(20),
            "only {} answers were compared",
            told("compared").await?
        );
        value += 1;
        let write = format!("UPDATE c_count SET n = {value} WHERE id = 6");
        match value % 2 {
            0 => client.expect(&write).await?,
            _ => direct.expect(&write).await?,
        };
        for _ in 0..8 {
            for read in READS {
                client.expect(read).await?;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    // So that all of them are in memory.
    let enough = told("compared").await? + 10;
    while told("compared").await? < enough {
        ensure!(
            begun.elapsed() < Duration::from_secs(20),
            "nothing is compared any more"
        );
        for read in READS {
            client.expect(read).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    let (compared, differences) = (told("compared").await?, told("differences").await?);
    ensure!(differences == 0, "{differences} of {compared} differ");
    // A change that no log has.
    for server in ground.cluster.servers() {
        let login = harness::admin(server.port).database("app");
        let mut beside = Connection::open(&login).await?;
        let is_locked = ground.release.family() == Family::MySql
            && server.port != ground.cluster.primary().port;
        if is_locked {
            beside.expect("SET GLOBAL super_read_only = 0").await?;
        }
        for sql in [
            "SET sql_log_bin = 0",
            "UPDATE c_count SET n = n + 1000000 WHERE id = 6",
        ] {
            beside.expect(sql).await?;
        }
        if is_locked {
            beside.expect("SET GLOBAL super_read_only = 1").await?;
        }
        beside.quit().await;
    }
    let begun = Instant::now();
    while told("differences").await? == 0 {
        ensure!(
            begun.elapsed() < Duration::from_secs(5),
            "a wrong result was not found, of {} compared",
            told("compared").await?
        );
        for read in READS {
            client.expect(read).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    ensure!(
        told("removed: a result was not what a server answered (cache.verify)").await? > 0,
        "nothing was removed"
    );
    let seen = client.expect(READS[1]).await?.scalar();
    let wanted = direct.expect(READS[1]).await?.scalar();
    ensure!(seen == wanted, "{seen:?} instead of {wanted:?}");
    Ok(())
}
