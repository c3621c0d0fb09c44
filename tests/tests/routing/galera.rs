//! What is Galera's own: tables that it does not replicate, sessions that ask for no wait, a writer that has yet to
//! apply what was acknowledged elsewhere, transactions that another node's write has ended, waits on a node that has
//! lost its group.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::{ADMIN, Cluster};
use millrace_tests::checks::Checks;
use millrace_tests::harness::Launch;
use millrace_tests::wire::{Connection, Login, cap};

use crate::ground::{app, proxy, toml};
use crate::kinds::{prepare, value};

/// The monitor reads the functions every five seconds.
const CATALOGUE_READ: Duration = Duration::from_secs(7);

/// Of a table without a key.
const ROWS: u32 = 4000;

/// Where writes go. It reads no table, which would be a wait.
const WRITER: &str = "SELECT /* millrace: primary */ @@port";

pub(crate) async fn all(checks: &mut Checks, cluster: &Cluster) {
    checks.run("other engines", other_engines(cluster)).await;
    checks.run("dirty reads", dirty_reads(cluster)).await;
    checks.run("stored code", stored_code(cluster)).await;
    checks
        .run("a transaction that lost", transaction_lost(cluster))
        .await;
    checks
        .run("a node that rejects", node_rejects(cluster))
        .await;
    checks
        .run("a new writer's backlog", new_writer(cluster))
        .await;
    checks
        .run("waits of a node that loses its group", group_lost(cluster))
        .await;
}

/// Their rows are on the node that took the write alone; also behind a view.
async fn other_engines(cluster: &Cluster) -> anyhow::Result<()> {
    // A write that is not replicated has a GTID all the same, which the next DDL would have again.
    for node in cluster.servers() {
        let mut control = cluster.control(&node.name).await?;
        control.run("SET GLOBAL gtid_strict_mode = OFF").await?;
        control.close().await;
    }
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    for engine in ["MyISAM", "MEMORY", "Aria"] {
        let mut client = Connection::open(&login).await?;
        for sql in [
            "DROP VIEW IF EXISTS app.apart_seen",
            "DROP TABLE IF EXISTS app.apart",
            &format!("CREATE TABLE app.apart (k INT PRIMARY KEY) ENGINE={engine}"),
            "CREATE VIEW app.apart_seen AS SELECT k FROM app.apart",
            "INSERT INTO app.apart VALUES (7)",
        ] {
            client.expect(sql).await?;
        }
        let mut other = Connection::open(&login).await?;
        let seen = ["SELECT k FROM app.apart", "SELECT k FROM app.apart_seen"];
        all_see(&mut [&mut client, &mut other], engine, &seen).await?;
        for sql in [
            "DROP TABLE IF EXISTS app.apart_like, app.apart_named",
            "CREATE TABLE app.apart_like LIKE app.apart",
            "INSERT INTO app.apart_like VALUES (7)",
        ] {
            client.expect(sql).await?;
        }
        let seen = ["SELECT k FROM app.apart_like"];
        all_see(&mut [&mut client, &mut other], engine, &seen).await?;
        for sql in [
            "RENAME TABLE app.apart_like TO app.apart_named",
            "REPLACE INTO app.apart_named VALUES (7)",
        ] {
            client.expect(sql).await?;
        }
        let seen = ["SELECT k FROM app.apart_named"];
        all_see(&mut [&mut client, &mut other], engine, &seen).await?;
    }
    Ok(())
}

/// Each of these has one row, whoever asks.
async fn all_see(
    readers: &mut [&mut Connection],
    engine: &str,
    statements: &[&str],
) -> anyhow::Result<()> {
    for turn in 0..20 {
        for reader in &mut *readers {
            for sql in statements {
                let rows = reader.expect(sql).await?.rows();
                ensure!(rows.len() == 1, "{engine}, turn {turn}, {sql}: {rows:?}");
            }
        }
    }
    Ok(())
}

/// Holds what the other nodes have to apply, from the next write to `app.held` on.
async fn hold(cluster: &Cluster) -> anyhow::Result<Vec<millrace_sandbox::Control>> {
    let mut held = Vec::new();
    for node in cluster.replicas() {
        let mut control = cluster.control(&node.name).await?;
        for sql in [
            "SET SESSION wsrep_sync_wait = 1",
            "SELECT COUNT(*) FROM app.held",
            "SET SESSION wsrep_sync_wait = 0",
            "LOCK TABLES app.held READ",
        ] {
            control.run(sql).await?;
        }
        held.push(control);
    }
    Ok(held)
}

async fn release(held: Vec<millrace_sandbox::Control>) -> anyhow::Result<()> {
    for mut control in held {
        control.run("UNLOCK TABLES").await?;
        control.close().await;
    }
    Ok(())
}

async fn make_held(client: &mut Connection) -> anyhow::Result<()> {
    for sql in [
        "CREATE TABLE IF NOT EXISTS app.held (k INT PRIMARY KEY, v INT)",
        "REPLACE INTO app.held VALUES (1, 0)",
    ] {
        client.expect(sql).await?;
    }
    Ok(())
}

/// Who reads dirty does so alone: the connections that such sessions leave wait for others.
async fn dirty_reads(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let proxy = proxy(cluster, "[pool]\nmax_connections = 4\n").await?;
    let login = app(proxy.address());
    let mut writer = Connection::open(&login).await?;
    make_held(&mut writer).await?;
    writer
        .expect("REPLACE INTO app.kinds VALUES (1, 0)")
        .await?;
    let held = hold(cluster).await?;
    let mut dirty = Vec::new();
    for _ in 0..6 {
        let mut client = Connection::open(&login).await?;
        client.expect("SET SESSION wsrep_dirty_reads = 1").await?;
        for _ in 0..10 {
            client.expect("SELECT v FROM app.kinds WHERE k = 1").await?;
        }
        dirty.push(client);
    }
    let reading = async {
        writer.expect("UPDATE app.held SET v = 1").await?;
        writer.expect("UPDATE app.kinds SET v = 1").await?;
        for client in &mut dirty {
            for _ in 0..5 {
                client.expect("SELECT v FROM app.kinds WHERE k = 1").await?;
            }
        }
        let mut stale = 0;
        for _ in 0..5 {
            let mut client = Connection::open(&login).await?;
            for reader in [&mut client, &mut writer] {
                for _ in 0..5 {
                    let seen = value(reader, "SELECT v FROM app.kinds WHERE k = 1").await?;
                    stale += u32::from(seen != "1");
                }
            }
        }
        ensure!(stale == 0, "{stale} of 50 reads are stale");
        anyhow::Ok(())
    };
    let read = reading.await;
    release(held).await?;
    read
}

/// What stored code sets of Galera's own variables stays with its session: no packet tells of it.
async fn stored_code(cluster: &Cluster) -> anyhow::Result<()> {
    let mut control = cluster.control("s1").await?;
    for sql in [
        "CREATE OR REPLACE FUNCTION app.alone() RETURNS INT BEGIN SET @@wsrep_on = 0; RETURN 1; END",
        "CREATE OR REPLACE FUNCTION app.dirty() RETURNS INT \
         BEGIN SET SESSION wsrep_dirty_reads = 1; RETURN 1; END",
        "CREATE OR REPLACE FUNCTION app.through() RETURNS INT RETURN app.dirty()",
        "CREATE OR REPLACE VIEW app.behind AS SELECT app.alone() AS a",
    ] {
        control.run(sql).await?;
    }
    control.close().await;
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, "[pool]\nmax_connections = 2\n");
    let text = text.replace("workers = 2", "workers = 1");
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(Duration::from_secs(30)).await?;
    // Until then any function keeps its connection.
    tokio::time::sleep(CATALOGUE_READ).await;
    let login = Login::new(proxy.address(), ADMIN.user, ADMIN.password);
    let mut old = login.clone();
    old.capabilities &= !cap::DEPRECATE_EOF;
    for (asks, asked) in [
        "SELECT app.alone()",
        "DO app.dirty()",
        "SELECT app.through()",
        "SELECT a FROM app.behind",
        "SET @a = app.alone()",
    ]
    .into_iter()
    .flat_map(|asked| [(&login, asked), (&old, asked)])
    {
        let mut client = Connection::open(asks).await?;
        client.expect(asked).await?;
        for _ in 0..4 {
            let mut other = Connection::open(&login).await?;
            let asked_of_other =
                "SELECT /* millrace: primary */ @@wsrep_on + 2 * @@wsrep_dirty_reads";
            let seen = value(&mut other, asked_of_other).await?;
            ensure!(seen == "1", "after {asked}, another session has {seen}");
            other.quit().await;
        }
        client.quit().await;
    }
    Ok(())
}

/// The first command after another node's write has won gets the deadlock, whatever it is; the session goes on.
async fn transaction_lost(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    let mut client = Connection::open(&app(proxy.address())).await?;
    client
        .expect("REPLACE INTO app.kinds VALUES (1, 0)")
        .await?;
    let mut other = cluster.control(&cluster.replicas()[0].name).await?;
    other.run("SET SESSION wsrep_sync_wait = 7").await?;
    for first in [
        "SHOW WARNINGS",
        "SELECT FOUND_ROWS()",
        "SELECT ROW_COUNT()",
        "SELECT LAST_INSERT_ID()",
        "SELECT 1",
        "UPDATE app.kinds SET v = v + ROW_COUNT()",
        "COMMIT",
    ] {
        client.expect("BEGIN").await?;
        client.expect("UPDATE app.kinds SET v = v + 1").await?;
        other.run("UPDATE app.kinds SET v = v + 1000").await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let reply = client.query(first).await;
        let code = reply.err().map(|error| error.code);
        ensure!(code == Some(1213), "{first}: {reply:?}");
        client.expect("SELECT 2").await.context(first)?;
        client.expect("ROLLBACK").await.context(first)?;
    }
    let seen = value(&mut client, "SELECT v FROM app.kinds").await?;
    ensure!(seen == "7000", "{seen}");
    other.close().await;
    Ok(())
}

/// `wsrep_reject_queries` refuses clients, and not the monitor: the node takes nothing until it is over.
async fn node_rejects(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    let mut client = Connection::open(&app(proxy.address())).await?;
    let before = value(&mut client, WRITER).await?;
    let nodes = cluster.servers();
    let node = (nodes.iter())
        .find(|node| node.port.to_string() == before)
        .context("no such node")?;
    let mut control = cluster.control(&node.name).await?;
    control.run("SET GLOBAL wsrep_reject_queries = ALL").await?;
    let writing = async {
        let mut writers = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            client
                .expect("REPLACE INTO app.kinds VALUES (1, 5)")
                .await?;
            writers.push(value(&mut client, WRITER).await?);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        writers.dedup();
        ensure!(
            writers.len() <= 2 && writers.last() != Some(&before),
            "the writers were {writers:?}, {before} before"
        );
        anyhow::Ok(())
    };
    let wrote = writing.await;
    control
        .run("SET GLOBAL wsrep_reject_queries = NONE")
        .await?;
    control.close().await;
    wrote
}

/// The writer is another, which has yet to apply what the one before acknowledged: a write finds the rows all the same.
async fn new_writer(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let mut client = Connection::open(&login).await?;
    let mut other = Connection::open(&login).await?;
    let mut at = Connection::open(&login).await?;
    let before = value(&mut at, WRITER).await?;
    let nodes = cluster.servers();
    let node = (nodes.iter())
        .find(|node| node.port.to_string() == before)
        .context("no such node")?;
    ensure!(
        node.name == cluster.primary().name,
        "{before} is the writer"
    );
    // Rows without a key are looked for one by one: others apply for seconds what takes this one a moment.
    let rows: Vec<String> = (0..ROWS).map(|row| format!("({row}, 'x')")).collect();
    for sql in [
        "DELETE FROM app.kinds",
        "DROP TABLE IF EXISTS app.keyless",
        "CREATE TABLE app.keyless (a INT, b VARCHAR(300))",
        &format!("INSERT INTO app.keyless VALUES {}", rows.join(",")),
    ] {
        client.expect(sql).await?;
    }
    cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    client
        .expect("UPDATE app.keyless SET b = CONCAT('y', RAND())")
        .await?;
    client
        .expect("INSERT INTO app.kinds VALUES (5, 1), (6, 1), (7, 1)")
        .await?;
    let mut control = cluster.control(&node.name).await?;
    control.run("SET GLOBAL wsrep_desync = ON").await?;
    let moving = async {
        while at
            .query(WRITER)
            .await
            .scalar()
            .is_none_or(|port| port == before)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let moved = tokio::time::timeout(Duration::from_secs(20), moving).await;
    let mut affected = Vec::new();
    for (own, sql) in [
        (true, "UPDATE app.kinds SET v = 2 WHERE k = 5"),
        (false, "UPDATE app.kinds SET v = 2 WHERE k = 6"),
        (true, "DELETE FROM app.kinds WHERE k = 7"),
    ] {
        let writer = if own { &mut client } else { &mut other };
        let reply = writer.query(sql).await;
        affected.push(reply.ok().map(|ok| ok.affected));
    }
    control.run("SET GLOBAL wsrep_desync = OFF").await?;
    control.close().await;
    moved.context("the writer stays")?;
    ensure!(affected == [Some(1); 3], "rows changed: {affected:?}");
    Ok(())
}

/// Cuts a node off: a write there does not end, nor does any wait meanwhile, until the node has lost its group after five
/// seconds. One that joined a few seconds ago finds its way back (observed).
async fn cut_off(cluster: &Cluster, node: &str) -> anyhow::Result<()> {
    for _ in 0..10 {
        cluster.isolate(node).await?;
        let mut control = cluster.control(node).await?;
        let writing = control.run("REPLACE INTO app.kinds VALUES (9, 9)");
        let wrote = tokio::time::timeout(Duration::from_millis(1_200), writing).await;
        if wrote.is_err() {
            return Ok(());
        }
        control.close().await;
        cluster.reconnect(node).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    bail!("{node} takes writes all the same");
}

/// The writing node loses its group while clients wait there for what other nodes have shown them, and says 1205 to all
/// that wait: to a client's own wait that is the answer, and to Millrace's nobody's.
async fn group_lost(cluster: &Cluster) -> anyhow::Result<()> {
    prepare(cluster).await?;
    let mut control = cluster.control("s1").await?;
    control
        .run("CREATE OR REPLACE PROCEDURE app.seen() SELECT v FROM app.kinds WHERE k = 1")
        .await?;
    control.close().await;
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let mut client = Connection::open(&login).await?;
    client
        .expect("REPLACE INTO app.kinds VALUES (1, 7)")
        .await?;
    let before = value(&mut client, WRITER).await?;
    let nodes = cluster.servers();
    let node = (nodes.iter())
        .find(|node| node.port.to_string() == before)
        .context("no such node")?;
    let elsewhere = "SELECT /* millrace: replica */ v FROM app.kinds WHERE k = 1";
    let here = "SELECT /* millrace: primary */ v FROM app.kinds WHERE k = 1";
    let open = async |first: &str| {
        let mut client = Connection::open(&login).await?;
        client.expect(first).await?;
        anyhow::Ok(client)
    };
    let mut read = open(elsewhere).await?;
    let mut transaction = open(elsewhere).await?;
    transaction.expect("BEGIN").await?;
    let mut call = open(elsewhere).await?;
    let mut own = open("SET SESSION wsrep_sync_wait = 1").await?;
    cut_off(cluster, &node.name).await?;
    let replies = tokio::join!(
        read.query(here),
        transaction.query(here),
        call.query("CALL app.seen()"),
        own.query(here),
    );
    cluster.reconnect(&node.name).await?;
    let (read, transaction, call, own) = replies;
    let mut wrong = Vec::new();
    for (what, reply) in [
        ("a read", read),
        ("a transaction", transaction),
        ("a CALL", call),
    ] {
        if reply.scalar().as_deref() != Some("7") {
            wrong.push(format!("{what}: {reply:?}"));
        }
    }
    if own.err().map(|error| error.code) != Some(1205) {
        wrong.push(format!("a client's own wait: {own:?}"));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n  "));
    Ok(())
}
