//! The workload's tables, and what must hold for them in the end on every server.

use anyhow::{Context, Result};
use millrace_sandbox::Cluster;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

use super::tally::Tally;

/// Accounts that transfers go between.
pub(super) const ACCOUNTS: u64 = 200;
/// What every account starts with.
const OPENING_BALANCE: u64 = 1000;
/// What all accounts hold together, at any moment.
pub(super) const TOTAL_BALANCE: u64 = ACCOUNTS * OPENING_BALANCE;
/// Rows that are only read.
pub(super) const ITEMS: u64 = 1000;

/// The price of an item, by which a client knows that it got the right row.
pub(super) fn price(item: u64) -> u64 {
    item * 7 + 1
}

const TABLES: [&str; 4] = [
    "CREATE TABLE demo_item (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL, price INT NOT NULL)",
    "CREATE TABLE demo_account (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
    "CREATE TABLE demo_transfer (id BIGINT PRIMARY KEY AUTO_INCREMENT, source INT NOT NULL, \
     target INT NOT NULL, amount INT NOT NULL, KEY (source), KEY (target))",
    "CREATE TABLE demo_note (id BIGINT PRIMARY KEY AUTO_INCREMENT, client INT NOT NULL, \
     body VARCHAR(100) NOT NULL, edits INT NOT NULL, KEY (client))",
];

/// Makes and fills the tables, through Millrace like everything else.
pub(super) async fn create(opts: Opts) -> Result<()> {
    let mut conn = Conn::new(opts)
        .await
        .context("cannot log in through Millrace")?;
    for table in TABLES {
        conn.query_drop(table).await?;
    }
    let items = (1..=ITEMS).map(|id| format!("({id}, 'item {id}', {})", price(id)));
    let accounts = (1..=ACCOUNTS).map(|id| format!("({id}, {OPENING_BALANCE})"));
    insert(&mut conn, "demo_item", items).await?;
    insert(&mut conn, "demo_account", accounts).await?;
    conn.disconnect().await?;
    Ok(())
}

async fn insert(conn: &mut Conn, table: &str, rows: impl Iterator<Item = String>) -> Result<()> {
    let rows: Vec<String> = rows.collect();
    let sql = format!("INSERT INTO {table} VALUES {}", rows.join(", "));
    Ok(conn.query_drop(sql).await?)
}

/// Accounts whose balance is not what the log of transfers says.
const UNBALANCED: &str = "SELECT COUNT(*) FROM app.demo_account a WHERE balance <> 1000 \
     + (SELECT COALESCE(SUM(amount), 0) FROM app.demo_transfer WHERE target = a.id) \
     - (SELECT COALESCE(SUM(amount), 0) FROM app.demo_transfer WHERE source = a.id)";

/// Asks every server that runs, directly, past Millrace.
pub(super) async fn check_everywhere(cluster: &Cluster, tally: &Tally) -> Result<()> {
    let transfers = tally.totals().transfers;
    let running = cluster
        .servers()
        .into_iter()
        .filter(|server| server.pid.is_some());
    for server in running {
        let mut control = cluster.control(&server.name).await?;
        for (what, sql, expected) in [
            (
                "balances in all",
                "SELECT SUM(balance) FROM app.demo_account",
                TOTAL_BALANCE,
            ),
            (
                "transfers",
                "SELECT COUNT(*) FROM app.demo_transfer",
                transfers,
            ),
            ("unbalanced accounts", UNBALANCED, 0),
        ] {
            let got = control.value(sql).await?.unwrap_or_default();
            tally.check(
                &format!("{what} on {}", server.name),
                &got,
                &expected.to_string(),
            );
        }
        control.close().await;
    }
    Ok(())
}
