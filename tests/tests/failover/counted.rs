//! What operators are told of a change of primary is what clients saw of it.

use anyhow::ensure;
use millrace_sandbox::Cluster;
use millrace_tests::wire::{Connection, Expect, Reply, com};

use crate::ground::{
    both, client, ensure_error, kill, metric, proxy_with_operator, soon, table, wait_held,
};

/// How many clients meet the loss in each way.
const OPEN: usize = 3;
const SPOILT: usize = 2;
const WRITING: usize = 4;
const PINNED: usize = 2;
const STREAMING: usize = 1;
const WAITING: usize = 5;

async fn clients(
    proxy: &millrace_tests::harness::Proxy,
    count: usize,
    statements: &[&str],
) -> anyhow::Result<Vec<Connection>> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        let mut session = client(proxy).await?;
        for sql in statements {
            session.expect(sql).await?;
        }
        sessions.push(session);
    }
    Ok(sessions)
}

/// Has them all say the same, side by side.
fn all_say(sessions: Vec<Connection>, sql: &str) -> Vec<tokio::task::JoinHandle<Reply>> {
    let say = |mut session: Connection| {
        let sql = sql.to_owned();
        tokio::spawn(async move { session.query(sql).await })
    };
    sessions.into_iter().map(say).collect()
}

async fn replies(tasks: Vec<tokio::task::JoinHandle<Reply>>) -> anyhow::Result<Vec<Reply>> {
    let mut replies = Vec::new();
    for task in tasks {
        replies.push(task.await?);
    }
    Ok(replies)
}

fn are_ok(what: &str, replies: &[Reply]) -> anyhow::Result<()> {
    for reply in replies {
        let good = reply.err().is_none() && reply.broken().is_none();
        ensure!(good, "{what}: {:?}", reply.render());
    }
    Ok(())
}

/// Metrics follow what is counted within a moment.
async fn metric_becomes(
    proxy: &millrace_tests::harness::Proxy,
    name: &str,
    wanted: f64,
) -> anyhow::Result<()> {
    for _ in 0..50 {
        if metric(proxy, name).await? == wanted {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let counted = metric(proxy, name).await?;
    ensure!(counted == wanted, "{name} is {counted}, not {wanted}");
    Ok(())
}

/// Each client meets the loss of the primary in a way of its own; `SHOW FAILOVERS` and the metrics count them.
pub(crate) async fn as_clients_saw_it(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "counted (n INT)").await?;
    table(cluster, "many (n INT)").await?;
    let (proxy, mut operator) = proxy_with_operator(cluster, "").await?;
    let rows = vec!["(1)"; 100].join(",");
    client(&proxy)
        .await?
        .expect(&format!("INSERT INTO many VALUES {rows}"))
        .await?;
    let begun = ["BEGIN", "INSERT INTO counted (n) VALUES (1)"];
    let open = clients(&proxy, OPEN, &begun).await?;
    let spoilt = clients(&proxy, SPOILT, &[begun[0], begun[1], "SET @a = 5"]).await?;
    let pinned = [
        "CREATE TEMPORARY TABLE mine (n INT)",
        "INSERT INTO mine VALUES (1)",
    ];
    let pinned = clients(&proxy, PINNED, &pinned).await?;
    let waiting = clients(&proxy, WAITING, &[]).await?;
    let writing = clients(&proxy, WRITING, &[]).await?;
    let mut streaming = clients(&proxy, STREAMING, &[]).await?;
    for session in &mut streaming {
        let long = "SELECT @@server_id, REPEAT('x', 20000) FROM many a, many b";
        session.send(com::QUERY, long.as_bytes()).await?;
    }
    let writing = all_say(
        writing,
        "INSERT INTO counted (n) SELECT 2 FROM DUAL WHERE SLEEP(20) = 0",
    );
    soon().await;
    let next = kill(cluster).await?;
    let unknown = replies(writing).await?;
    for reply in &unknown {
        ensure_error(reply, 1180, "08007")?;
    }
    // With the monitor's word of it, and none of them as the one that finds out.
    soon().await;
    let waiting = all_say(waiting, "INSERT INTO counted (n) VALUES (3)");
    let promoted = async {
        wait_held(&proxy, WAITING).await?;
        cluster.promote(&next.name).await
    };
    let (waited, ()) = both(replies(waiting), promoted).await?;
    are_ok("waiting", &waited)?;
    are_ok("open", &replies(all_say(open, "COMMIT")).await?)?;
    for reply in replies(all_say(spoilt, "SELECT COUNT(*) FROM counted")).await? {
        ensure_error(&reply, 1213, "40001")?;
    }
    for reply in replies(all_say(pinned, "INSERT INTO mine VALUES (2)")).await? {
        ensure_error(&reply, 1158, "08S01")?;
    }
    for mut session in streaming {
        let reply = session.read_reply(Expect::Results { binary: false }).await;
        ensure!(reply.broken().is_some(), "a result that broke off is whole");
    }
    let row = operator.query("SHOW FAILOVERS LIMIT 1").await;
    let columns = row.columns().into_iter();
    let names = columns.map(|column| String::from_utf8_lossy(&column.name).into_owned());
    let names: Vec<String> = names.collect();
    let cells = row.rows().into_iter().next().unwrap_or_default();
    for (outcome, seen) in [
        ("held", WAITING),
        ("replayed", OPEN),
        ("failed", SPOILT + PINNED + STREAMING),
        ("unknown_outcome", WRITING),
    ] {
        let at = names.iter().position(|name| name == outcome);
        let shown = at.and_then(|at| cells.get(at).cloned().flatten());
        ensure!(
            shown == Some(seen.to_string()),
            "SHOW FAILOVERS: {outcome} is {shown:?}, clients saw {seen}: {cells:?}"
        );
        let name = format!("millrace_failover_statements_total{{outcome=\"{outcome}\"}}");
        metric_becomes(&proxy, &name, seen as f64).await?;
    }
    Ok(())
}
