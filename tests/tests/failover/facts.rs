//! What the servers do that Millrace relies on, seen without Millrace.

use std::collections::BTreeMap;

use anyhow::ensure;
use millrace_sandbox::{Cluster, Family};
use millrace_tests::wire::{Connection, Target};

use crate::ground::{app, ask, scalar, table};

/// What statements are answered while their server is stopped, and whether they were done. An answer
/// that says that they were not must be true.
pub(crate) async fn shutdown(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "ending (n INT)").await?;
    let primary = cluster.primary();
    let login = app(Target::Tcp(format!("127.0.0.1:{}", primary.port)));
    let mut tasks = Vec::new();
    for client in 0..24u64 {
        let mut connection = Connection::open(&login).await?;
        tasks.push(tokio::spawn(async move {
            for round in 0.. {
                let n = client * 1_000_000 + round;
                // Every third in a transaction of its own, every third long enough to be met.
                let statements = match client % 3 {
                    0 => vec![format!("INSERT INTO ending VALUES ({n})")],
                    1 => vec![
                        "BEGIN".to_owned(),
                        format!("INSERT INTO ending VALUES ({n})"),
                        "COMMIT".to_owned(),
                    ],
                    _ => vec![format!("INSERT INTO ending SELECT {n} + SLEEP(0.05)")],
                };
                for sql in statements {
                    let reply = connection.query(&sql).await;
                    let word = sql.split(' ').next().unwrap_or_default().to_owned();
                    if let Some(err) = reply.err() {
                        return (n, format!("{word}: {}", err.code));
                    }
                    if reply.broken().is_some() {
                        return (n, format!("{word}: lost"));
                    }
                }
            }
            (0, String::new())
        }));
    }
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    cluster.stop(&primary.name).await?;
    let mut ends = Vec::new();
    for task in tasks {
        ends.push(task.await?);
    }
    cluster.start(&primary.name).await?;
    let mut seen: BTreeMap<String, [u32; 2]> = BTreeMap::new();
    for (n, end) in ends {
        let there = ask(
            cluster,
            &format!("SELECT COUNT(*) FROM app.ending WHERE n = {n}"),
        )
        .await?;
        seen.entry(end).or_default()[usize::from(there != "0")] += 1;
    }
    eprintln!("{}: answer: [not done, done]: {seen:?}", cluster.family());
    for (end, [_, done]) in &seen {
        let refused = !end.ends_with("lost");
        ensure!(!refused || *done == 0, "{end}, and done {done} times");
    }
    Ok(())
}

/// Any account may say which number the next INSERT generates, for that INSERT only.
pub(crate) async fn insert_id(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "told (id INT AUTO_INCREMENT PRIMARY KEY, n INT)").await?;
    let login = app(Target::Tcp(format!("127.0.0.1:{}", cluster.primary().port)));
    let mut client = Connection::open(&login).await?;
    client.expect("SET @@session.insert_id=7").await?;
    client
        .expect("INSERT INTO told (n) VALUES (1), (2)")
        .await?;
    client.expect("INSERT INTO told (n) VALUES (3)").await?;
    let rows = scalar(
        &mut client,
        "SELECT GROUP_CONCAT(CONCAT(id, ':', n) ORDER BY id) FROM told",
    )
    .await?;
    ensure!(rows == "7:1,8:2,9:3", "{rows}");
    if cluster.family() == Family::MySql {
        let left = scalar(&mut client, "SELECT @@session.insert_id").await?;
        ensure!(left == "0", "{left}");
    }
    Ok(())
}
