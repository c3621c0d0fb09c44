//! Rules and hints: where statements run for them, and what else comes of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::Proxy;
use millrace_tests::wire::{Connection, Param};

use crate::ground::{QUICK, app, proxy, replica_ports};

async fn ports(
    connection: &mut Connection,
    sql: &str,
    times: usize,
) -> anyhow::Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for _ in 0..times {
        let reply = connection.expect(sql).await?;
        ports.insert(reply.scalar().context("no port")?.parse()?);
    }
    Ok(ports)
}

/// The lines of an answer about a route, as `about: route`.
async fn lines(connection: &mut Connection, sql: &str) -> anyhow::Result<String> {
    let rows = connection.expect(sql).await?.rows();
    let text = rows.into_iter().map(|row| {
        let cell = |at: usize| row[at].clone().unwrap_or_default();
        format!("{}: {}\n", cell(0), cell(1))
    });
    Ok(text.collect())
}

fn set_of(port: u16) -> String {
    format!("[[server_set]]\nname = \"chosen\"\nservers = \"127.0.0.1:{port}\"\n")
}

pub(crate) async fn explained(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[[rule]]\nname = \"places\"\ntable = \"place\"\nto = \"primary\"\n";
    let proxy = proxy(cluster, more).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let primary = cluster.primary().port;
    let text = lines(&mut connection, "EXPLAIN ROUTE SELECT port FROM app.place").await?;
    for expected in [
        "needs: a server with the data: it only reads\n",
        "tables: app.place\n",
        "rule: places\n",
        "level: instance\n",
        &format!("goes to: 127.0.0.1:{primary}\n"),
        "because: wanted\n",
    ] {
        ensure!(
            text.contains(expected),
            "no `{}` in\n{text}",
            expected.trim()
        );
    }
    let text = lines(&mut connection, "explain route DELETE FROM app.place;").await?;
    ensure!(
        text.contains("needs: the primary: it may change something\n"),
        "{text}"
    );
    // It was not run.
    connection
        .expect(QUICK)
        .await?
        .scalar()
        .context("no row left")?;
    let text = lines(&mut connection, "SHOW ROUTE").await?;
    ensure!(
        text.contains(&format!("went to: 127.0.0.1:{primary}\n")),
        "{text}"
    );
    ensure!(text.contains("rule: places\n"), "{text}");
    connection.quit().await;
    Ok(())
}

pub(crate) async fn hints(cluster: &Cluster) -> anyhow::Result<()> {
    let chosen = cluster.replicas()[1].port;
    let proxy = proxy(cluster, &set_of(chosen)).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let primary = BTreeSet::from([cluster.primary().port]);
    for sql in [
        "/* millrace: primary */ SELECT port FROM app.place",
        "SELECT port FROM app.place /*!999999 millrace: primary */",
        "SELECT port -- millrace: primary\nFROM app.place",
    ] {
        ensure!(ports(&mut connection, sql, 4).await? == primary, "{sql}");
    }
    // The reads above bind the session to the primary for a moment.
    tokio::time::sleep(Duration::from_millis(300)).await;
    connection.expect("SELECT port FROM app.place").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let sql = "SELECT /* millrace: servers=chosen, consistency=eventual */ port FROM app.place";
    ensure!(ports(&mut connection, sql, 8).await? == BTreeSet::from([chosen]));
    let sql = "SELECT /* millrace: replica consistency=eventual */ port FROM app.place";
    ensure!(ports(&mut connection, sql, 8).await? == replica_ports(cluster));
    // A hint sends no write where it must not go.
    connection
        .expect("/* millrace: replica */ CREATE TABLE IF NOT EXISTS app.hinted (a INT)")
        .await?;
    let text = lines(
        &mut connection,
        "EXPLAIN ROUTE SELECT /* millrace: servers=gone */ 1 FROM app.place",
    )
    .await?;
    ensure!(
        text.contains("hint: `gone` is not known and does nothing\n"),
        "{text}"
    );
    connection.quit().await;
    Ok(())
}

pub(crate) async fn sent(cluster: &Cluster) -> anyhow::Result<()> {
    let chosen = cluster.replicas()[0].port;
    let more = format!(
        "{}[[rule]]\nname = \"counted\"\nkind = \"read\"\ncontinue = true\n\
         [[rule]]\nname = \"set\"\nmatch = \"FROM `app` \\\\. `place`\"\ntag = \"set\"\nservers = \"chosen\"\nconsistency = \"eventual\"\n\
         [[rule]]\nname = \"account\"\naccount = \"nobody\"\nto = \"primary\"\n\
         [[rule]]\nname = \"database\"\ndatabase = \"test\"\nto = \"primary\"\n",
        set_of(chosen)
    );
    let proxy = proxy(cluster, &more).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let tagged = "SELECT port FROM app.place /* set */";
    ensure!(ports(&mut connection, tagged, 8).await? == BTreeSet::from([chosen]));
    ensure!(
        !ports(&mut connection, QUICK, 8)
            .await?
            .contains(&cluster.primary().port)
    );
    connection.expect("USE test").await?;
    let primary = BTreeSet::from([cluster.primary().port]);
    ensure!(
        ports(&mut connection, QUICK, 8).await? == primary,
        "after USE"
    );
    let reply = connection.prepare(QUICK.as_bytes()).await;
    let (id, _) = reply.statement_id().context("not prepared")?;
    let reply = connection.execute(id, 0, &[], false).await;
    ensure!(
        reply.scalar() == Some(cluster.primary().port.to_string()),
        "prepared"
    );
    ensure!(matches(&proxy, "counted").await? >= 25.0);
    ensure!(matches(&proxy, "set").await? == 8.0);
    ensure!(matches(&proxy, "account").await? == 0.0);
    connection.quit().await;
    Ok(())
}

async fn matches(proxy: &Proxy, rule: &str) -> anyhow::Result<f64> {
    let metrics = proxy.metrics().await?;
    let start = format!("millrace_rule_matches_total{{rule=\"{rule}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    Ok(line.context("no such metric")?.parse()?)
}

pub(crate) async fn refused(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[[rule]]\nmatch = \"^SELECT \\\\*\"\nrefuse = \"name the columns\"\n";
    let proxy = proxy(cluster, more).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let reply = connection.query("SELECT * FROM app.place").await;
    let error = reply.err().context("not refused")?;
    ensure!((error.code, &error.message[..]) == (1148, "name the columns"));
    connection.expect(QUICK).await?;
    connection.quit().await;
    Ok(())
}

pub(crate) async fn time_limit(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[[rule]]\ntable = \"place\"\ntime_limit = \"300ms\"\n";
    let proxy = proxy(cluster, more).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    for sql in [
        "SELECT port, SLEEP(20) FROM app.place",
        "SELECT port, SLEEP(20) FROM app.place FOR UPDATE",
    ] {
        let begun = Instant::now();
        let reply = connection.query(sql).await;
        ensure!(
            begun.elapsed() < Duration::from_secs(10),
            "{sql}: {:?}",
            begun.elapsed()
        );
        // A sleep that is killed may also end by itself, with 1.
        let code = reply.err().map(|error| error.code);
        ensure!(code == Some(3024) || code.is_none(), "{sql}: {code:?}");
    }
    let heavy = "SELECT COUNT(*) FROM app.place, information_schema.columns a, \
                 information_schema.columns b, information_schema.columns c";
    let code = connection.query(heavy).await.err().map(|error| error.code);
    ensure!(code == Some(3024), "{code:?}");
    // The next statement is not met by a late KILL.
    for _ in 0..20 {
        connection.expect(QUICK).await?;
    }
    connection.quit().await;
    Ok(())
}

pub(crate) async fn limited(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[[rule]]\ntag = \"few\"\nmax_concurrent = 2\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    let begun = Instant::now();
    let one = async || {
        let mut connection = Connection::open(&login).await?;
        connection
            .expect("SELECT SLEEP(0.4) FROM app.place /* few */")
            .await?;
        connection.quit().await;
        anyhow::Ok(())
    };
    tokio::try_join!(one(), one(), one(), one(), one(), one())?;
    let took = begun.elapsed();
    ensure!(
        took >= Duration::from_millis(1_200),
        "six by two took {took:?}"
    );
    Ok(())
}

pub(crate) async fn mirrored(cluster: &Cluster) -> anyhow::Result<()> {
    let mirror = cluster.replicas()[1].clone();
    let more = format!(
        "{}[[rule]]\ntag = \"twice\"\nto = \"primary\"\nmirror = \"chosen\"\n",
        set_of(mirror.port)
    );
    let proxy = proxy(cluster, &more).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let mut control = cluster.control(&mirror.name).await?;
    let before = selects(&mut control).await?;
    let primary = BTreeSet::from([cluster.primary().port]);
    let sql = "SELECT port FROM app.place /* twice */";
    ensure!(ports(&mut connection, sql, 100).await? == primary);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = selects(&mut control).await?;
    ensure!(
        after - before >= 100,
        "{} of 100 reads were mirrored",
        after - before
    );
    control.close().await;
    connection.quit().await;
    Ok(())
}

/// The error that the statement ends with.
async fn code(connection: &mut Connection, sql: &str) -> Option<u16> {
    let reply = connection.query(sql).await;
    reply.err().map(|error| error.code)
}

/// A rule about a table is about the one in its database, also where statements look alike; what it
/// refuses can still be explained; and SQL's EXECUTE is no way around it.
pub(crate) async fn by_database(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[[rule]]\nname = \"closed\"\ntable = \"app.place\"\nrefuse = \"closed\"\n";
    let proxy = proxy(cluster, more).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    for _ in 0..3 {
        connection.expect("USE app").await?;
        let told = code(&mut connection, "SELECT port FROM place").await;
        ensure!(told == Some(1148), "{told:?} in `app`");
        connection.expect("USE information_schema").await?;
        let told = code(&mut connection, "SELECT port FROM place").await;
        ensure!(told != Some(1148), "refused in another database");
    }
    connection.expect("USE app").await?;
    connection
        .expect("PREPARE p FROM 'SELECT port FROM place'")
        .await?;
    let told = code(&mut connection, "EXECUTE p").await;
    ensure!(told == Some(1148), "{told:?} by EXECUTE");
    let text = lines(&mut connection, "EXPLAIN ROUTE SELECT port FROM place").await?;
    ensure!(text.contains("rule: closed\n"), "{text}");
    connection.quit().await;
    Ok(())
}

/// How many SELECTs the server has run.
async fn selects(control: &mut millrace_sandbox::Control) -> anyhow::Result<u64> {
    let row = control.row("SHOW GLOBAL STATUS LIKE 'Com_select'").await?;
    let row = row.context("no such status")?;
    Ok(row.get("Value").context("no value")?.parse()?)
}

pub(crate) async fn rewritten(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[[rule]]\nrewrite = \"/\\\\* n=(\\\\d+) \\\\*/\"\nrewrite_to = \"+ $1\"\n";
    let proxy = proxy(cluster, more).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let reply = connection.expect("SELECT 1 /* n=41 */").await?;
    ensure!(reply.scalar().as_deref() == Some("42"));
    let reply = connection.expect("SELECT 1").await?;
    ensure!(reply.scalar().as_deref() == Some("1"));
    let reply = connection.prepare(b"SELECT CONCAT(1 /* n=41 */), ?").await;
    let (id, params) = reply.statement_id().context("not prepared")?;
    ensure!(params == 1);
    for _ in 0..2 {
        let value = [Param::text("x")];
        let reply = connection.execute(id, 0, &value, true).await;
        ensure!(
            reply.scalar().as_deref() == Some("42"),
            "a prepared statement that a rule rewrites: {reply:?}"
        );
    }
    connection.quit().await;
    Ok(())
}

const CONFIG: &str = r#"
[[listen]]
address = "127.0.0.1:6033"
[[server]]
address = "db1:3306"
[[server]]
address = "db2:3306"
tags = ["olap"]
[[server]]
address = "db3:3306"
[monitor]
user = "m"
password_env = "MILLRACE_MONITOR_PASSWORD"
[[server_set]]
name = "olap"
tag = "olap"
[[rule]]
name = "reports"
account = "bi"
servers = "olap"
consistency = "eventual"
"#;

const WORLD: &str = r#"
[[server]]
address = "db1:3306"
position = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9"
[[server]]
address = "db2:3306"
position = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
[[server]]
address = "db3:3306"
applier_stopped = true
[session]
position = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7"
"#;

/// `millrace explain` needs no server.
pub(crate) fn explained_by_command() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("millrace-explain-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (config, world) = (folder.join("m.toml"), folder.join("world.toml"));
    std::fs::write(&config, CONFIG)?;
    std::fs::write(&world, WORLD)?;
    let explain = |more: &[&str]| -> anyhow::Result<String> {
        let mut command = std::process::Command::new(millrace_tests::harness::program()?);
        command.args(["explain", "--sql", "SELECT * FROM shop.orders"]);
        command.arg("--config").arg(&config).args(more);
        command.env("MILLRACE_MONITOR_PASSWORD", "x");
        let ran = command.output()?;
        ensure!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        Ok(String::from_utf8(ran.stdout)?)
    };
    let plain = explain(&[])?;
    ensure!(
        plain.contains("goes to          db2:3306, then db3:3306, then db1:3306\n"),
        "{plain}"
    );
    let world = world.display().to_string();
    let described = explain(&["--world", &world])?;
    for expected in [
        "goes to          db2:3306 (asked to wait), then db1:3306\n",
        "takes no reads (applier stopped)",
        "because          read_after_wait\n",
    ] {
        ensure!(
            described.contains(expected),
            "no `{}` in\n{described}",
            expected.trim()
        );
    }
    let ruled = explain(&["--world", &world, "--account", "bi"])?;
    ensure!(ruled.contains("rule             reports\n"), "{ruled}");
    ensure!(
        ruled.contains("goes to          db2:3306, then db1:3306\n"),
        "{ruled}"
    );
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
