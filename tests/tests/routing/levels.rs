//! What reads are promised, and where they run for it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login};

use crate::ground::{READY, app, gauge, port_of, proxy, replica_ports, tcp, toml, wait_fit};

async fn level(connection: &mut Connection) -> anyhow::Result<String> {
    let reply = connection.expect("SELECT @@millrace_consistency").await?;
    reply.scalar().context("no level")
}

pub(crate) async fn variable(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    ensure!(level(&mut connection).await? == "instance");
    for (set, now) in [
        ("SET @@millrace_consistency = 'global'", "global"),
        (
            "SET @@SESSION.Millrace_Consistency = \"SESSION\"",
            "session",
        ),
        ("SET millrace_consistency = eventual", "eventual"),
        ("SET SESSION millrace_consistency = DEFAULT", "instance"),
    ] {
        connection.expect(set).await?;
        ensure!(level(&mut connection).await? == now, "{set}");
    }
    for (wrong, code) in [
        ("SET @@millrace_consistency = 'strong'", 1231),
        ("SET GLOBAL millrace_consistency = 'global'", 1228),
        ("SET @@millrace_consistence = 'global'", 1193),
        ("SET sql_mode='', @@millrace_consistency = 'global'", 1235),
        ("SELECT @@millrace_consistency, 1", 1235),
        ("SELECT @@millrace_x", 1193),
    ] {
        let reply = connection.query(wrong).await;
        let found = reply.err().map(|error| error.code);
        ensure!(found == Some(code), "{wrong}: {found:?}");
    }
    ensure!(
        level(&mut connection).await? == "instance",
        "an error changed it"
    );
    connection
        .expect("SET @@millrace_consistency = 'global'")
        .await?;
    let reset = connection
        .command(0x1f, b"", millrace_tests::wire::Expect::Single)
        .await;
    ensure!(reset.err().is_none());
    ensure!(level(&mut connection).await? == "instance", "after a reset");
    // The column is named as the servers name theirs.
    let reply = connection
        .expect("SELECT @@millrace_consistency AS level;")
        .await;
    ensure!(reply.is_err() || !reply?.rows().is_empty());
    connection.quit().await;
    Ok(())
}

pub(crate) async fn configured(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let other = Launch::new()?;
    let text = toml(&launch, cluster, "");
    let text = format!(
        "{text}[[listen]]\naddress = \"127.0.0.1:{}\"\nconsistency = \"instance\"\n\
         [routing]\nconsistency = \"eventual\"\n",
        other.port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    let mut plain = Connection::open(&app(proxy.address())).await?;
    ensure!(level(&mut plain).await? == "eventual");
    let mut listener = Connection::open(&app(tcp(other.port))).await?;
    ensure!(level(&mut listener).await? == "instance");
    let launch = Launch::new()?;
    let more = format!(
        "[[account]]\nname = \"{}\"\nconsistency = \"global\"\n",
        APP.user
    );
    let text = toml(&launch, cluster, &more);
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    let mut account = Connection::open(&app(proxy.address())).await?;
    ensure!(level(&mut account).await? == "global");
    Ok(())
}

/// One client, one read after the other, at every level: both replicas have their share. Of time, as
/// such a session moves once in a while: a busy machine makes some reads longer than others.
pub(crate) async fn spread(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    for level in ["eventual", "session", "instance", "global"] {
        let mut connection = Connection::open(&app(proxy.address())).await?;
        let set = format!("SET @@millrace_consistency = '{level}'");
        connection.expect(&set).await?;
        let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            *counts.entry(port_of(&mut connection).await?).or_default() += 1;
        }
        let all: u32 = counts.values().sum();
        for port in replica_ports(cluster) {
            let share = counts.get(&port).copied().unwrap_or(0) as f64 / f64::from(all);
            ensure!(
                (0.25..=0.75).contains(&share),
                "{level}: {share:.2} of {all} reads on one of two replicas: {counts:?}"
            );
        }
        connection.quit().await;
    }
    Ok(())
}

/// How long reads took, and where they ran.
#[derive(Default)]
struct Seen {
    micros: Vec<u128>,
    ports: BTreeMap<u16, u32>,
}

async fn write_and_read(login: &Login, turns: u32) -> anyhow::Result<Seen> {
    let mut connection = Connection::open(login).await?;
    let mut seen = Seen::default();
    for turn in 1..=turns {
        let write = format!("REPLACE INTO app.turns VALUES (1, {turn})");
        connection.expect(&write).await?;
        let begun = Instant::now();
        let sql = "SELECT v, port FROM app.turns, app.place WHERE k = 1";
        let rows = connection.expect(sql).await?.rows();
        seen.micros.push(begun.elapsed().as_micros());
        let row = rows.first().context("no row")?;
        let value: u32 = row[0].as_deref().context("NULL")?.parse()?;
        ensure!(
            value == turn,
            "a stale row: {value} after {turn} was written"
        );
        let port = row[1].as_deref().context("NULL")?.parse()?;
        *seen.ports.entry(port).or_default() += 1;
        // A while without writes, so that a replica that is on time has caught up.
        if turn % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            for _ in 0..4 {
                *seen
                    .ports
                    .entry(port_of(&mut connection).await?)
                    .or_default() += 1;
            }
        }
    }
    connection.quit().await;
    Ok(seen)
}

async fn turns_table(cluster: &Cluster) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    control
        .run("CREATE TABLE IF NOT EXISTS app.turns (k INT PRIMARY KEY, v INT)")
        .await?;
    control.close().await;
    cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    Ok(())
}

async fn late_reads(proxy: &Proxy, cluster: &Cluster) -> anyhow::Result<Seen> {
    let login = app(proxy.address());
    let seen = write_and_read(&login, 200).await?;
    let all: u32 = seen.ports.values().sum();
    let primary = cluster.primary().port;
    let there = seen.ports.get(&primary).copied().unwrap_or(0);
    let mut micros = seen.micros.clone();
    micros.sort_unstable();
    println!(
        "{:.0} % of the reads kept off the primary; after a write p50 {} µs, p99 {} µs",
        100.0 - 100.0 * f64::from(there) / f64::from(all),
        micros[micros.len() / 2],
        micros[micros.len() * 99 / 100]
    );
    Ok(seen)
}

/// How often a server was asked so far how far it is, by what it has logged; turns its log on.
async fn questions_to(cluster: &Cluster, server: &str) -> anyhow::Result<u64> {
    let mut control = cluster.control(server).await?;
    control.run("SET GLOBAL log_output = 'TABLE'").await?;
    control.run("SET GLOBAL general_log = ON").await?;
    let sql = "SELECT COUNT(*) AS n FROM mysql.general_log \
               WHERE argument LIKE 'SELECT @@GLOBAL.gtid_executed, @@GLOBAL.read_only' \
               OR argument LIKE 'SELECT @@GLOBAL.gtid_current_pos, @@GLOBAL.gtid_binlog_pos%'";
    let row = control.row(sql).await?.context("no row")?;
    let asked = row.get("n").context("no number")?.parse()?;
    control.close().await;
    Ok(asked)
}

async fn questions(cluster: &Cluster) -> anyhow::Result<u64> {
    let mut asked = 0;
    for server in cluster.servers() {
        asked += questions_to(cluster, &server.name).await?;
    }
    Ok(asked)
}

async fn log_no_more(cluster: &Cluster) -> anyhow::Result<()> {
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        control.run("SET GLOBAL general_log = OFF").await?;
        control.close().await;
    }
    Ok(())
}

/// Where a session reads from the primary alone, no server is asked how far it is; where it may
/// read from replicas, they are.
pub(crate) async fn asked(cluster: &Cluster) -> anyhow::Result<()> {
    turns_table(cluster).await?;
    let only = Launch::new()?;
    let more = format!(
        "[[listen]]\naddress = \"127.0.0.1:{}\"\ntarget = \"primary\"\n",
        only.port
    );
    let proxy = proxy(cluster, &more).await?;
    // A worker that has written before its first second is over asks the primary once.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut times = Vec::new();
    for target in [tcp(only.port), proxy.address()] {
        let before = questions(cluster).await?;
        write_and_read(&app(target), 100).await?;
        times.push(questions(cluster).await? - before);
    }
    log_no_more(cluster).await?;
    ensure!(
        times[0] == 0 && times[1] > 0,
        "asked {} times for reads from the primary alone, {} times for others",
        times[0],
        times[1]
    );
    Ok(())
}

/// No stale row, no error, and the replica that is on time keeps serving.
pub(crate) async fn one_late(cluster: &Cluster) -> anyhow::Result<()> {
    turns_table(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    let late = cluster.replicas()[0].clone();
    let on_time = cluster.replicas()[1].port;
    cluster.delay_applier(&late.name, 5).await?;
    let seen = late_reads(&proxy, cluster).await;
    cluster.delay_applier(&late.name, 0).await?;
    let seen = seen?;
    let all: u32 = seen.ports.values().sum();
    let share = f64::from(seen.ports.get(&on_time).copied().unwrap_or(0)) / f64::from(all);
    ensure!(
        share > 0.3,
        "but {share:.2} of the reads on the replica that is on time"
    );
    Ok(())
}

/// Everything is answered, by the primary.
pub(crate) async fn both_stopped(cluster: &Cluster) -> anyhow::Result<()> {
    turns_table(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    for replica in cluster.replicas() {
        cluster.stop_applier(&replica.name).await?;
    }
    let seen = late_reads(&proxy, cluster).await;
    for replica in cluster.replicas() {
        cluster.start_applier(&replica.name).await?;
    }
    let seen = seen?;
    let primary = cluster.primary().port;
    ensure!(seen.ports.contains_key(&primary), "{:?}", seen.ports);
    wait_fit(&proxy, cluster, 2).await?;
    let port = cluster.replicas()[0].port;
    ensure!(gauge(&proxy, "millrace_server_fit", port).await? == Some(1.0));
    Ok(())
}

/// In which late replicas catch up.
const LATE: Duration = Duration::from_secs(20);

/// Writes whose position a client's protocol has no room for, or an error hides, are seen by others at level instance.
pub(crate) async fn hidden_writes(cluster: &Cluster) -> anyhow::Result<()> {
    turns_table(cluster).await?;
    let mut control = cluster.control(&cluster.primary().name).await?;
    control.run("DROP FUNCTION IF EXISTS app.put").await?;
    control.run("DROP TABLE IF EXISTS app.plain").await?;
    control
        .run("CREATE TABLE app.plain (id INT PRIMARY KEY) ENGINE=MyISAM")
        .await?;
    control
        .run(
            "CREATE FUNCTION app.put(n INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA \
             BEGIN REPLACE INTO app.turns VALUES (2, n); RETURN n; END",
        )
        .await?;
    control.close().await;
    cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    let proxy = proxy(cluster, "").await?;
    for replica in cluster.replicas() {
        cluster.delay_applier(&replica.name, 2).await?;
    }
    let reading = async {
        let mut login = app(proxy.address());
        let mut reader = Connection::open(&login).await?;
        reader
            .expect("SET @@millrace_consistency = 'instance'")
            .await?;
        login.capabilities = millrace_tests::wire::cap::LEGACY;
        let mut writer = Connection::open(&login).await?;
        for turn in 1..=20 {
            writer.expect(&format!("SELECT app.put({turn})")).await?;
            let sql = "SELECT v FROM app.turns WHERE k = 2";
            let seen = reader.expect(sql).await?.scalar();
            ensure!(
                seen == Some(turn.to_string()),
                "{seen:?} after {turn} was written by another session"
            );
        }
        // What fails tells no position: it has committed the open transaction all the same, or left rows of a
        // table without transactions. Replicas have all that is known before, so that they may be read from.
        for (turn, failing) in [
            "RENAME TABLE app.nosuch TO app.nowhere",
            "LOCK TABLES app.nosuch READ",
            "ALTER USER nosuch_account ACCOUNT LOCK",
            "INSERT INTO app.plain VALUES (1), (1)",
        ]
        .into_iter()
        .enumerate()
        {
            cluster.wait_replicas_caught_up(LATE).await?;
            let both = "SELECT CONCAT(v, '-', (SELECT COUNT(*) FROM app.plain)) FROM app.turns WHERE k = 2";
            for _ in 0..4 {
                reader.expect(both).await?;
            }
            if !failing.starts_with("INSERT") {
                writer.expect("BEGIN").await?;
                let write = format!("REPLACE INTO app.turns VALUES (2, {})", 100 + turn);
                writer.expect(&write).await?;
            }
            let failed = writer.query(failing).await;
            ensure!(failed.err().is_some(), "{failing}: {failed:?}");
            let there = value_there(cluster, both).await?;
            for _ in 0..6 {
                let seen = reader.expect(both).await?.scalar();
                ensure!(
                    seen == there,
                    "{failing}: {seen:?}, the primary has {there:?}"
                );
            }
            writer.expect("ROLLBACK").await?;
        }
        writer.quit().await;
        reader.quit().await;
        anyhow::Ok(())
    };
    let done = reading.await;
    for replica in cluster.replicas() {
        cluster.delay_applier(&replica.name, 0).await?;
    }
    done
}

/// What the primary answers.
async fn value_there(cluster: &Cluster, sql: &str) -> anyhow::Result<Option<String>> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    let value = control.value(sql).await;
    control.close().await;
    value
}

/// Prepared, in the binary protocol.
pub(crate) async fn prepared_variable(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    for (sql, answer) in [
        ("SET @@millrace_consistency = 'global'", None),
        ("SELECT @@millrace_consistency", Some("global")),
        (
            "EXPLAIN ROUTE SELECT port FROM app.place",
            Some("statement"),
        ),
        ("SHOW ROUTE", Some("went to")),
    ] {
        if sql == "SHOW ROUTE" {
            port_of(&mut connection).await?;
        }
        let prepared = connection.prepare(sql.as_bytes()).await;
        let (id, _) = prepared.statement_id().context("not prepared")?;
        for _ in 0..2 {
            let reply = connection.execute(id, 0, &[], true).await;
            ensure!(
                reply.scalar().as_deref() == answer && reply.err().is_none(),
                "`{sql}`, prepared, answers {reply:?}"
            );
        }
    }
    ensure!(level(&mut connection).await? == "global");
    connection.quit().await;
    Ok(())
}

/// A read-only transaction sees the session's own writes, whatever its first statement asks for.
pub(crate) async fn read_only_transaction(cluster: &Cluster) -> anyhow::Result<()> {
    turns_table(cluster).await?;
    let proxy = proxy(cluster, "").await?;
    for replica in cluster.replicas() {
        cluster.delay_applier(&replica.name, 2).await?;
    }
    let reading = async {
        let mut connection = Connection::open(&app(proxy.address())).await?;
        for turn in 1..=10 {
            let write = format!("REPLACE INTO app.turns VALUES (3, {turn})");
            connection.expect(&write).await?;
            connection.expect("START TRANSACTION READ ONLY").await?;
            let lax = "SELECT /* millrace: consistency=eventual */ COUNT(*) FROM app.turns";
            connection.expect(lax).await?;
            let sql = "SELECT v FROM app.turns WHERE k = 3";
            let seen = connection.expect(sql).await?.scalar();
            ensure!(seen == Some(turn.to_string()), "{seen:?} after {turn}");
            connection.expect("COMMIT").await?;
        }
        connection.quit().await;
        anyhow::Ok(())
    };
    let done = reading.await;
    for replica in cluster.replicas() {
        cluster.delay_applier(&replica.name, 0).await?;
    }
    done
}
