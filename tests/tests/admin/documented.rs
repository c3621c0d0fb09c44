//! The examples of docs/admin.md, run in its order on a cluster in the state that it tells of.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::wire::Connection;

use crate::ground::{Ground, Operator};
use crate::serving::app;

/// An example: a statement, and its rows as columns with values.
#[derive(Debug)]
struct Example {
    sql: String,
    rows: Vec<Vec<(String, String)>>,
}

/// Texts that differ from one machine, server or moment to the next.
const VOLATILE: [&str; 8] = [
    "position",
    "version",
    "server_uuid",
    "client",
    "began",
    "evidence",
    "suspicion",
    "id",
];

fn read(page: &str) -> anyhow::Result<Vec<Example>> {
    let mut examples: Vec<Example> = Vec::new();
    // In a block, and in one without a language: an example.
    let (mut inside, mut example) = (false, false);
    let mut header: Option<Vec<String>> = None;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = !inside;
            example = inside && line == "```";
            continue;
        }
        if !example {
            continue;
        }
        if let Some(sql) = line.strip_prefix("admin> ") {
            let sql = sql.trim_end_matches("\\G").trim_end_matches(';');
            examples.push(Example {
                sql: sql.to_owned(),
                rows: Vec::new(),
            });
            header = None;
            continue;
        }
        let last = examples
            .last_mut()
            .context("an answer without a statement")?;
        if line.starts_with("*****") {
            last.rows.push(Vec::new());
        } else if line.starts_with('|') {
            let cells = line.trim_matches('|').split('|');
            let cells: Vec<String> = cells.map(|cell| cell.trim().to_owned()).collect();
            match &header {
                None => header = Some(cells),
                Some(names) => last.rows.push(names.iter().cloned().zip(cells).collect()),
            }
        } else if let Some((name, value)) = line.split_once(':').filter(|_| !line.starts_with('+'))
        {
            let row = last.rows.last_mut().context("a value without a row")?;
            row.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    Ok(examples)
}

fn is_number(text: &str) -> bool {
    text == "NULL" || text.parse::<f64>().is_ok()
}

fn compare(
    shown: &[(String, String)],
    found: &[(String, String)],
    names: &BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let columns = |row: &[(String, String)]| -> Vec<String> {
        row.iter().map(|(name, _)| name.clone()).collect()
    };
    ensure!(
        columns(shown) == columns(found),
        "{:?} and {:?}",
        columns(shown),
        columns(found)
    );
    for ((column, shown), (_, found)) in shown.iter().zip(found) {
        if VOLATILE.contains(&column.as_str()) {
            // MariaDB has none; whether there was a first sign depends on the moment.
            let none = matches!(column.as_str(), "server_uuid" | "suspicion" | "evidence");
            ensure!(
                none || shown.is_empty() == found.is_empty(),
                "{column}: {shown:?} and {found:?}"
            );
            continue;
        }
        let mut shown = shown.clone();
        for (name, address) in names {
            shown = shown.replace(name, address);
        }
        let alike = shown == *found || (is_number(&shown) && is_number(found));
        ensure!(alike, "{column} is `{found}`, and the page says `{shown}`");
    }
    Ok(())
}

/// The page's names for the servers, and their addresses here.
pub(crate) fn names(cluster: &Cluster) -> BTreeMap<String, String> {
    let primary = cluster.primary().port;
    let mut replicas = 2..;
    let named = cluster.servers().into_iter().map(|server| {
        let place = if server.port == primary {
            1
        } else {
            replicas.next().unwrap_or(0)
        };
        let address = format!("127.0.0.1:{}", server.port);
        (format!("db{place}:3306"), address)
    });
    named.collect()
}

/// Runs the page's examples whose statement begins so, and compares.
pub(crate) async fn check(
    operator: &mut Operator,
    names: &BTreeMap<String, String>,
    chosen: impl Fn(&str) -> bool,
) -> anyhow::Result<usize> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/admin.md"))?;
    let examples = read(&page)?;
    let mut checked = 0;
    for example in examples.iter().filter(|example| chosen(&example.sql)) {
        let mut sql = example.sql.clone();
        for (name, address) in names {
            sql = sql.replace(name, address);
        }
        let reply = operator.0.expect(&sql).await.context(sql.clone())?;
        let columns: Vec<String> = reply
            .columns()
            .iter()
            .map(|c| String::from_utf8_lossy(&c.name).into_owned())
            .collect();
        let found: Vec<Vec<(String, String)>> = reply
            .rows()
            .into_iter()
            .map(|row| {
                let values = row.into_iter().map(|value| value.unwrap_or("NULL".into()));
                columns.iter().cloned().zip(values).collect()
            })
            .collect();
        ensure!(
            found.len() == example.rows.len(),
            "{sql}: {} rows, and the page shows {}: {found:#?}",
            found.len(),
            example.rows.len()
        );
        for (shown, found) in example.rows.iter().zip(&found) {
            compare(shown, found, names).with_context(|| sql.clone())?;
        }
        ensure!(!example.rows.is_empty(), "{sql} has no answer on the page");
        checked += 1;
    }
    Ok(checked)
}

/// Those that need a change of primary to show anything are checked where there is one.
const OF_MOVES: [&str; 2] = ["SHOW HELD STATEMENTS", "SHOW FAILOVERS"];

pub(crate) fn is_of_moves(sql: &str) -> bool {
    OF_MOVES.iter().any(|start| sql.starts_with(start))
}

pub(crate) async fn examples(cluster: &Cluster) -> anyhow::Result<()> {
    let rule = "[[rule]]\nname = \"reports\"\nkind = \"read\"\ntable = \"app.orders\"\nto = \
                \"primary\"\n";
    let ground = Ground::start(cluster, "", rule).await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    client
        .expect("CREATE TABLE IF NOT EXISTS app.orders (id INT)")
        .await?;
    cluster
        .wait_replicas_caught_up(std::time::Duration::from_secs(20))
        .await?;
    client.expect("SELECT id FROM app.orders").await?;
    client.expect("BEGIN").await?;
    client.expect("INSERT INTO app.orders VALUES (1)").await?;
    let checked = check(&mut operator, &names(cluster), |sql| !is_of_moves(sql)).await?;
    ensure!(checked >= 10, "{checked} examples");
    client.expect("ROLLBACK").await?;
    Ok(())
}
