//! Results that a rule wants to be served for a time, whatever is written; also where no log is followed.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, MONITOR};
use millrace_tests::harness::{self, Proxy};
use millrace_tests::wire::{Connection, Login, Target};

use crate::ground::{Ground, addresses, options, told_by};

/// For how long results are served here.
const TTL: Duration = Duration::from_secs(2);

/// A change of rights is known by then to every new login (monitor.max_login_age).
const SETTLES: Duration = Duration::from_millis(1500);

const RULE: &str = "[[rule]]\nname = \"old\"\ntag = \"old\"\ncache = \"ttl\"\nttl = \"2s\"\n";

const READ: &str = "SELECT /* old */ n, NOW(6) FROM c_count WHERE id = 7";

async fn answer(client: &mut Connection, sql: &str) -> anyhow::Result<Vec<Option<String>>> {
    let rows = client.expect(sql).await?.rows();
    rows.into_iter().next().context("no row")
}

async fn flush(admin_port: u16) -> anyhow::Result<()> {
    let target = Target::Tcp(format!("127.0.0.1:{admin_port}"));
    let login = Login::new(target, "admin", harness::ADMIN_PASSWORD);
    let mut operator = Connection::open(&login).await?;
    operator.expect("FLUSH CACHE").await?;
    operator.quit().await;
    Ok(())
}

/// Waits until the cache says that it follows no log.
async fn until_off(admin_port: u16) -> anyhow::Result<()> {
    let begun = Instant::now();
    while told_by(admin_port, "state").await? != "off" {
        ensure!(
            begun.elapsed() < Duration::from_secs(15),
            "the log is followed without the right to"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

pub(crate) async fn whatever_is_written(ground: &Ground) -> anyhow::Result<()> {
    let mut direct = ground.direct().await?;
    let right = |verb: &str, link: &str| {
        format!(
            "{verb} REPLICATION SLAVE ON *.* {link} '{}'@'%'",
            MONITOR.user
        )
    };
    direct.expect(&right("REVOKE", "FROM")).await?;
    let served = served(ground).await;
    direct.expect(&right("GRANT", "TO")).await?;
    served
}

async fn served(ground: &Ground) -> anyhow::Result<()> {
    let admin_port = harness::free_port()?;
    let mut options = options(admin_port);
    options.extra = options.extra.replace("\"auto\"", "\"rules\"");
    options.extra.push_str(RULE);
    let proxy = Proxy::start(&addresses(&ground.cluster), &options).await?;
    until_off(admin_port).await?;
    // That the right was revoked may count for later logins: results are found by those that are alike.
    tokio::time::sleep(SETTLES).await;
    let login = Login::new(proxy.address(), APP.user, APP.password).database("app");
    let mut one = Connection::open(&login).await?;
    let mut other = Connection::open(&login).await?;
    let said = one.expect(&format!("EXPLAIN ROUTE {READ}")).await?.rows();
    ensure!(
        said.iter()
            .flatten()
            .flatten()
            .any(|it| it.contains("served again for 2s")),
        "{said:?}"
    );
    one.expect("UPDATE c_count SET n = 1 WHERE id = 7").await?;
    let first = answer(&mut one, READ).await?;
    let begun = Instant::now();
    one.expect("UPDATE c_count SET n = 2 WHERE id = 7").await?;
    for client in [&mut one, &mut other] {
        let again = answer(client, READ).await?;
        ensure!(
            again == first || begun.elapsed() >= TTL,
            "{again:?} after {first:?}"
        );
    }
    // Not in a transaction, nor what asks about the session.
    other.expect("BEGIN").await?;
    let inside = answer(&mut other, READ).await?;
    ensure!(inside[0].as_deref() == Some("2"), "{inside:?}");
    other.expect("COMMIT").await?;
    let about = "SELECT /* old */ CONNECTION_ID() FROM c_count WHERE id = 7";
    let numbers = (
        answer(&mut one, about).await?,
        answer(&mut other, about).await?,
    );
    ensure!(numbers.0 != numbers.1, "{numbers:?}");
    // A view, once it is known what it does.
    let view = "SELECT /* old */ COUNT(*), NOW(6) FROM c_view";
    let asked = Instant::now();
    while answer(&mut one, view).await? != answer(&mut other, view).await? {
        ensure!(asked.elapsed() < TTL, "a view is not kept");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Until it is flushed, or its time is over.
    let now = answer(&mut one, READ).await?;
    ensure!(now == first || begun.elapsed() >= TTL, "{now:?}");
    flush(admin_port).await?;
    let flushed = answer(&mut one, READ).await?;
    ensure!(flushed[0].as_deref() == Some("2"), "{flushed:?}");
    let begun = Instant::now();
    one.expect("UPDATE c_count SET n = 3 WHERE id = 7").await?;
    while answer(&mut other, READ).await? == flushed {
        ensure!(begun.elapsed() < TTL * 2, "{flushed:?} is served for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(
        begun.elapsed() > TTL / 2,
        "it was served for {:?} only",
        begun.elapsed()
    );
    let hits: u64 = told_by(admin_port, "hits").await?.parse()?;
    ensure!(hits > 10, "only {hits} answers out of memory");
    Ok(())
}
