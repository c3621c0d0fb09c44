//! What is ended on purpose while the server goes on: by an administrator, by pt-kill, by time limits. Clients of
//! its own wait to be hit, some through Millrace and some at the server itself: both must be told the
//! same, and nothing of theirs may ever be done.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use millrace_sandbox::{ADMIN, Cluster, Family};
use millrace_tests::wire::{Connection, Login, Reply};
use tokio::process::Command;

use crate::cases::{Fault, rest};
use crate::ground::Ground;

/// A row for each victim.
pub(crate) const SCHEMA: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS app.struck (id INT PRIMARY KEY, n INT NOT NULL)",
    "REPLACE INTO app.struck VALUES (0,0),(1,0),(2,0),(3,0),(4,0),(5,0),(6,0),(7,0),(8,0),(9,0)",
];

/// A connection that ends is lost to a client, with a word or without.
const ENDED: &str = "connection ended";

/// At the server itself; all others go through Millrace.
const DIRECT: usize = 2;
const VICTIMS: usize = 10;

/// What a victim does until it is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// It has changed its row in a transaction, and says nothing.
    Idle,
    /// Its statement runs.
    Busy,
}

/// Has the victims hit. Gives what clients were told, and what is wrong about it.
pub(crate) async fn strike(ground: &Ground, fault: Fault) -> anyhow::Result<(String, Vec<String>)> {
    let primary = ground.cluster.primary().name;
    let limit = match fault {
        Fault::WaitTimeout => Some("wait_timeout"),
        Fault::IdleTransactions => Some("idle_transaction_timeout"),
        _ => None,
    };
    if let Some(limit) = limit {
        run(
            &ground.cluster,
            &primary,
            &format!("SET GLOBAL {limit} = 1"),
        )
        .await?;
        // The monitor looks once a second whether global variables have changed.
        rest(2_500).await;
    }
    let struck = hit(ground, &primary, fault).await;
    if let Some(limit) = limit {
        let default = match limit {
            "wait_timeout" => 28_800,
            _ => 0,
        };
        let back = format!("SET GLOBAL {limit} = {default}");
        run(&ground.cluster, &primary, &back).await?;
    }
    struck
}

async fn hit(
    ground: &Ground,
    primary: &str,
    fault: Fault,
) -> anyhow::Result<(String, Vec<String>)> {
    let through = ground.logins();
    let servers = ground.cluster.servers();
    let at = servers.iter().position(|server| server.name == primary);
    let direct = ground.direct().swap_remove(at.context("no primary")?);
    let waits = match fault {
        Fault::QueriesKilled | Fault::PtKill => Waits::Busy,
        _ => Waits::Idle,
    };
    let mut victims = Vec::new();
    for id in 0..VICTIMS {
        let login = match id < DIRECT {
            true => direct.clone(),
            false => through[id % through.len()].clone(),
        };
        victims.push(tokio::task::spawn_local(victim(login, id, waits)));
    }
    rest(1_500).await;
    match fault {
        Fault::TransactionsKilled => kill_idle(&ground.cluster, primary).await?,
        Fault::QueriesKilled => kill_queries(&ground.cluster, primary).await?,
        Fault::PtKill => pt_kill(ground, primary).await?,
        _ => {}
    }
    let mut told: [BTreeMap<String, usize>; 2] = Default::default();
    for (id, victim) in victims.into_iter().enumerate() {
        let name = victim.await??;
        *told[usize::from(id >= DIRECT)].entry(name).or_default() += 1;
    }
    let wrong = judge(ground, primary, &told, waits).await?;
    let words = |told: &BTreeMap<String, usize>| {
        let words = told.iter().map(|(name, count)| format!("{count} × {name}"));
        words.collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        "those hit: {}; directly: {}",
        words(&told[1]),
        words(&told[0])
    );
    Ok((text, wrong))
}

/// Gives how it was told, and whether its connection goes on.
async fn victim(login: Login, id: usize, waits: Waits) -> anyhow::Result<String> {
    let mut session = Connection::open(&login).await?;
    let update = format!("UPDATE app.struck SET n = n + 1 WHERE id = {id}");
    let reply = match waits {
        Waits::Idle => {
            session.expect("BEGIN").await?;
            session.expect(&update).await?;
            rest(4_000).await;
            session.query("COMMIT").await
        }
        Waits::Busy => {
            let update = format!("{update} AND SLEEP(20) = 0");
            session.query(&update).await
        }
    };
    let after = session.query("SELECT 1").await;
    Ok(name_of(&reply, after.broken().is_none()))
}

fn name_of(reply: &Reply, goes_on: bool) -> String {
    match (reply.err(), goes_on) {
        (Some(error), true) => format!("{}/{}", error.code, error.state),
        (None, true) => "OK".to_owned(),
        (_, false) => ENDED.to_owned(),
    }
}

async fn judge(
    ground: &Ground,
    primary: &str,
    told: &[BTreeMap<String, usize>; 2],
    waits: Waits,
) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let [direct, through] = told;
    let names = |told: &BTreeMap<String, usize>| told.keys().cloned().collect::<Vec<_>>();
    // A write whose connection ends without an answer: who is told so goes on.
    let unknown = names(direct) == [ENDED] && names(through) == ["1180/08007"];
    if names(direct) != names(through) && !unknown {
        wrong.push(format!("told {through:?} and directly {direct:?}"));
    }
    if direct.contains_key("OK") {
        wrong.push(format!("nothing was hit: {direct:?}"));
    }
    let mut control = ground.cluster.control(primary).await?;
    if waits == Waits::Busy {
        // A statement that is run again shows up at once.
        rest(500).await;
        let running = "SELECT COUNT(*) FROM information_schema.processlist \
                       WHERE info LIKE 'UPDATE app.struck%' AND command <> 'Killed'";
        let running = control.value(running).await?;
        if running.as_deref() != Some("0") {
            wrong.push(format!("{running:?} statements run again"));
        }
    }
    let done = control.value("SELECT SUM(n) FROM app.struck").await?;
    if done.as_deref() != Some("0") {
        wrong.push(format!("what was ended was done: {done:?}"));
    }
    control.close().await;
    Ok(wrong)
}

async fn run(cluster: &Cluster, server: &str, sql: &str) -> anyhow::Result<()> {
    let mut control = cluster.control(server).await?;
    control.run(sql).await?;
    control.close().await;
    Ok(())
}

/// The victims' threads, which a question gives as one text with commas, once all are there.
async fn threads(cluster: &Cluster, server: &str, question: &str) -> anyhow::Result<Vec<String>> {
    let mut control = cluster.control(server).await?;
    let mut list = String::new();
    for _ in 0..20 {
        list = control.value(question).await?.unwrap_or_default();
        let ids: Vec<String> = list.split(',').map(str::to_owned).collect();
        if ids.len() == VICTIMS {
            control.close().await;
            return Ok(ids);
        }
        rest(100).await;
    }
    bail!("the victims are {list:?}");
}

/// As an administrator does it. The load's own transactions write to two tables.
async fn kill_idle(cluster: &Cluster, server: &str) -> anyhow::Result<()> {
    let open = "SELECT GROUP_CONCAT(trx_mysql_thread_id) FROM information_schema.innodb_trx \
                WHERE trx_rows_modified > 0 AND trx_tables_locked = 1";
    for id in threads(cluster, server, open).await? {
        run(cluster, server, &format!("KILL {id}")).await?;
    }
    Ok(())
}

async fn kill_queries(cluster: &Cluster, server: &str) -> anyhow::Result<()> {
    let running = "SELECT GROUP_CONCAT(id) FROM information_schema.processlist \
                   WHERE info LIKE 'UPDATE app.struck%'";
    for id in threads(cluster, server, running).await? {
        run(cluster, server, &format!("KILL QUERY {id}")).await?;
    }
    Ok(())
}

/// As operators have it run all day.
async fn pt_kill(ground: &Ground, server: &str) -> anyhow::Result<()> {
    let servers = ground.cluster.servers();
    let info = servers.iter().find(|info| info.name == server);
    let port = info.context("no such server")?.port;
    let mut command = Command::new("pt-kill");
    command.args(["--no-version-check", "--host=127.0.0.1", "--interval=1"]);
    command.args(["--busy-time=1", "--match-info=app.struck", "--victims=all"]);
    command.args(["--kill", "--print", "--run-time=4"]);
    command.args([
        format!("--port={port}"),
        format!("--user={}", ADMIN.user),
        format!("--password={}", ADMIN.password),
    ]);
    let output = command
        .kill_on_drop(true)
        .output()
        .await
        .context("pt-kill")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let killed = said.lines().filter(|line| line.contains("KILL ")).count();
    ensure!(killed >= VICTIMS, "pt-kill killed {killed}: {said}");
    Ok(())
}

/// What a server is told to replicate from, whatever it has.
pub(crate) fn source(family: Family, port: u16) -> [String; 2] {
    match family {
        Family::MySql => [
            format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, \
                 SOURCE_USER='replicator', SOURCE_PASSWORD='replicator-secret', \
                 SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1"
            ),
            "START REPLICA".to_owned(),
        ],
        Family::MariaDb => [
            format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, \
                 MASTER_USER='replicator', MASTER_PASSWORD='replicator-secret', \
                 MASTER_USE_GTID=current_pos, MASTER_CONNECT_RETRY=1"
            ),
            "START SLAVE".to_owned(),
        ],
    }
}
