//! Two Millraces in front of the same servers, knowing nothing of each other: they come to the same
//! judgement of every change of primary, and `global` holds for a client that uses both in turn.

#[path = "admin/ground.rs"]
#[allow(dead_code, reason = "the suite needs but some of it")]
mod ground;
#[path = "serving/ground.rs"]
#[allow(dead_code, reason = "the suite needs but some of it")]
mod serving;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::{APP, Cluster, ClusterSpec, Family, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::wire::{Connection, Login};
use tokio::task::LocalSet;

use crate::ground::{Ground, Operator, Row, is, number, value};
use crate::serving::app;

/// How long both may take to come to the same judgement.
const AGREED: Duration = Duration::from_secs(20);

async fn two(cluster: &Cluster) -> anyhow::Result<[Ground; 2]> {
    let more = "[routing]\nslow_start = \"0s\"\n[monitor]\n";
    let more = more.replace("[monitor]\n", "");
    Ok([
        Ground::start(cluster, "", &more).await?,
        Ground::start(cluster, "", &more).await?,
    ])
}

/// What both must say alike of the servers and their edges.
async fn judgement(operator: &mut Operator) -> anyhow::Result<Vec<Vec<Option<String>>>> {
    let mut all = Vec::new();
    for (sql, columns) in [
        (
            "SHOW SERVERS",
            &["address", "role", "state", "fit", "why", "draining"][..],
        ),
        (
            "SHOW TOPOLOGY",
            &[
                "server",
                "source_server",
                "receiver",
                "applier",
                "read_only",
                "conflict",
            ][..],
        ),
    ] {
        let pick = |row: &Row| {
            columns
                .iter()
                .map(|name| row.get(*name).cloned().flatten())
                .collect()
        };
        all.extend(operator.rows(sql).await?.iter().map(pick));
    }
    Ok(all)
}

/// Waits until both say the same, with this server as the primary.
async fn agreed(operators: &mut [Operator; 2], primary: u16) -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{primary}");
    let deadline = Instant::now() + AGREED;
    loop {
        let [first, second] = operators;
        let (first, second) = (judgement(first).await?, judgement(second).await?);
        let role = |row: &Vec<Option<String>>| {
            row[0].as_deref() == Some(&*address) && row[1].as_deref() == Some("primary")
        };
        if first == second && first.iter().any(role) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "they do not agree on {address}: {first:#?}\n{second:#?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The last change of primary, as each tells it.
async fn last_change(operators: &mut [Operator; 2]) -> anyhow::Result<[Row; 2]> {
    let [first, second] = operators;
    Ok([
        first.row("SHOW FAILOVERS LIMIT 1").await?,
        second.row("SHOW FAILOVERS LIMIT 1").await?,
    ])
}

async fn same_judgement(cluster: &Cluster) -> anyhow::Result<()> {
    let grounds = two(cluster).await?;
    let mut operators = [grounds[0].open().await?, grounds[1].open().await?];
    agreed(&mut operators, cluster.primary().port).await?;
    for kind in ["planned", "lost"] {
        let old = cluster.primary();
        let new = cluster.replicas()[0].clone();
        let begun = Instant::now();
        if kind == "lost" {
            cluster.kill(&old.name).await?;
            for operator in &mut operators {
                let sql = format!("SHOW SERVERS LIKE '127.0.0.1:{}'", old.port);
                operator
                    .wait_for(&sql, AGREED, |row| is(row, "state", "down"))
                    .await?;
                let without = operator.rows("SHOW SERVERS WHERE role = 'primary'").await?;
                ensure!(
                    without.is_empty() || is(&without[0], "state", "down"),
                    "a primary that nobody promoted: {without:#?}"
                );
            }
        }
        cluster.promote(&new.name).await?;
        agreed(&mut operators, new.port).await?;
        let changes = last_change(&mut operators).await?;
        for change in &changes {
            // Whose probe comes first may see both writable for a moment, or neither.
            let alike =
                is(change, "kind", kind) || (kind == "planned" && is(change, "kind", "conflict"));
            ensure!(
                alike
                    && is(change, "old_primary", &format!("127.0.0.1:{}", old.port))
                    && is(change, "new_primary", &format!("127.0.0.1:{}", new.port)),
                "not as it was ({kind}): {changes:#?}"
            );
            number(change, "judged_ms")?;
            number(change, "known_ms")?;
        }
        let numbers: Vec<_> = changes
            .iter()
            .map(|change| change["number"].clone())
            .collect();
        ensure!(numbers[0] == numbers[1], "{changes:#?}");
        for change in &changes {
            println!(
                "{kind}: {:?} after the begin: judged {} ms and known {} ms after the last good answer",
                begun.elapsed(),
                value(change, "judged_ms")?,
                value(change, "known_ms")?
            );
        }
        if kind == "lost" {
            cluster.start(&old.name).await?;
            agreed(&mut operators, new.port).await?;
        }
    }
    // What an operator tells one, the other does not know of.
    let replica = cluster.replicas()[0].port;
    let sql = format!("DRAIN SERVER '127.0.0.1:{replica}'");
    operators[0].row(&sql).await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let sql = format!("SHOW SERVERS LIKE '127.0.0.1:{replica}'");
    let said = [operators[0].row(&sql).await?, operators[1].row(&sql).await?];
    ensure!(
        is(&said[0], "draining", "yes") && is(&said[1], "draining", "no"),
        "{said:#?}"
    );
    Ok(())
}

/// What the alternating clients share.
#[derive(Default)]
struct Watch {
    stop: Cell<bool>,
    rounds: Cell<u64>,
    errors: Cell<u64>,
    stale: Cell<u64>,
    slowest: Cell<Duration>,
}

fn more(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Writes through one and reads through the other, in turn. Only an acknowledged write counts.
async fn alternate(
    watch: Rc<Watch>,
    logins: [Login; 2],
    level: &'static str,
    key: usize,
) -> anyhow::Result<()> {
    let mut connections = [None, None];
    let mut acknowledged = 0_u64;
    let mut round = key as u64;
    let mut written = 0_u64;
    while !watch.stop.get() {
        round += 1;
        let writes_at = (round % 2) as usize;
        written += 1;
        let begun = Instant::now();
        let sql = format!("UPDATE app.alternate SET v = {written} WHERE k = {key}");
        if run(
            &watch,
            &mut connections[writes_at],
            &logins[writes_at],
            level,
            &sql,
        )
        .await
        .is_some()
        {
            acknowledged = written;
        }
        watch.slowest.set(watch.slowest.get().max(begun.elapsed()));
        let reads_at = 1 - writes_at;
        let sql = format!("SELECT v FROM app.alternate WHERE k = {key}");
        if let Some(Some(seen)) = run(
            &watch,
            &mut connections[reads_at],
            &logins[reads_at],
            level,
            &sql,
        )
        .await
        {
            let seen: u64 = seen.parse()?;
            if seen < acknowledged {
                more(&watch.stale);
            }
            ensure!(seen <= written, "{seen} was never written");
            more(&watch.rounds);
        }
    }
    Ok(())
}

/// Runs a statement on a connection that is opened again if need be: its first value, if it
/// succeeded.
async fn run(
    watch: &Watch,
    slot: &mut Option<Connection>,
    login: &Login,
    level: &str,
    sql: &str,
) -> Option<Option<String>> {
    if slot.is_none() {
        let opened = async {
            let mut connection = Connection::open(login).await?;
            let set = format!("SET @@millrace_consistency = '{level}'");
            connection.expect(&set).await?;
            anyhow::Ok(connection)
        };
        *slot = match opened.await {
            Ok(connection) => Some(connection),
            Err(error) => {
                eprintln!("connecting: {error:#}");
                more(&watch.errors);
                tokio::time::sleep(Duration::from_millis(50)).await;
                return None;
            }
        };
    }
    let reply = slot.as_mut()?.query(sql).await;
    if let Some(error) = reply.err() {
        eprintln!("{sql}: {} {}", error.code, error.message);
        more(&watch.errors);
        return None;
    }
    if reply.broken().is_some() {
        more(&watch.errors);
        *slot = None;
        return None;
    }
    Some(reply.scalar())
}

async fn never_stale(cluster: &Cluster) -> anyhow::Result<()> {
    const CLIENTS: usize = 8;
    const LESS_STRICT: usize = 3;
    let grounds = two(cluster).await?;
    let mut operators = [grounds[0].open().await?, grounds[1].open().await?];
    let logins = [
        app(grounds[0].proxy.address()),
        app(grounds[1].proxy.address()),
    ];
    let mut setup = Connection::open(&logins[0]).await?;
    setup
        .expect("CREATE TABLE IF NOT EXISTS app.alternate (k INT PRIMARY KEY, v BIGINT)")
        .await?;
    for key in 0..CLIENTS + LESS_STRICT {
        setup
            .expect(&format!("REPLACE INTO app.alternate VALUES ({key}, 0)"))
            .await?;
    }
    setup.quit().await;
    let (watch, less_strict) = (Rc::new(Watch::default()), Rc::new(Watch::default()));
    let local = LocalSet::new();
    let clients: Vec<_> = (0..CLIENTS + LESS_STRICT)
        .map(|key| {
            let (watch, level) = match key < CLIENTS {
                true => (watch.clone(), "global"),
                false => (less_strict.clone(), "session"),
            };
            local.spawn_local(alternate(watch, logins.clone(), level, key))
        })
        .collect();
    let outcome = local
        .run_until(async {
            let outcome = changes(cluster, &watch).await;
            watch.stop.set(true);
            less_strict.stop.set(true);
            for client in clients {
                client.await??;
            }
            outcome
        })
        .await;
    outcome?;
    println!(
        "global: {} rounds, {} stale, {} errors, the slowest write took {:?}; session: {} rounds, {} stale",
        watch.rounds.get(),
        watch.stale.get(),
        watch.errors.get(),
        watch.slowest.get(),
        less_strict.rounds.get(),
        less_strict.stale.get(),
    );
    ensure!(watch.stale.get() == 0, "{} stale reads", watch.stale.get());
    let errors = watch.errors.get() + less_strict.errors.get();
    ensure!(errors == 0, "{errors} errors in planned changes of primary");
    // `session` promises nothing across processes: so there is something to see, and `global` would be
    // caught.
    ensure!(
        less_strict.stale.get() > 0,
        "nothing was stale without the promise: this proves nothing"
    );
    // They were not all reads of the primary.
    for operator in &mut operators {
        let rows = operator.rows("SHOW SERVERS WHERE role = 'replica'").await?;
        let ran: f64 = rows
            .iter()
            .filter_map(|row| number(row, "statements").ok())
            .sum();
        ensure!(ran > 100.0, "the replicas ran {ran}: {rows:#?}");
    }
    Ok(())
}

/// A late replica, and two planned changes of primary.
async fn changes(cluster: &Cluster, watch: &Watch) -> anyhow::Result<()> {
    let rest = |ms| tokio::time::sleep(Duration::from_millis(ms));
    rest(1500).await;
    let late = cluster.replicas()[1].name.clone();
    cluster.delay_applier(&late, 1).await?;
    rest(1500).await;
    for _ in 0..2 {
        let next = cluster.replicas()[0].name.clone();
        let before = watch.rounds.get();
        cluster.promote(&next).await?;
        rest(2500).await;
        ensure!(watch.rounds.get() > before + 20, "the clients stand still");
    }
    for replica in cluster.replicas() {
        cluster.delay_applier(&replica.name, 0).await?;
    }
    rest(1000).await;
    Ok(())
}

async fn side_by_side(family: Family) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(family)).await?;
    let cluster = &cluster;
    let ports: BTreeSet<u16> = cluster.servers().iter().map(|server| server.port).collect();
    ensure!(ports.len() == 3 && !APP.user.is_empty());
    let mut checks = Checks::new(format!("side by side, {family}"));
    checks.run("never stale", never_stale(cluster)).await;
    checks
        .run("the same judgement", same_judgement(cluster))
        .await;
    checks.finish()
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if !skip_unless(Family::MySql, "side by side") {
        return Ok(());
    }
    side_by_side(Family::MySql).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if !skip_unless(Family::MariaDb, "side by side") {
        return Ok(());
    }
    side_by_side(Family::MariaDb).await
}
