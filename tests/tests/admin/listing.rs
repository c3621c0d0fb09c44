//! What listings say, compared with what is.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, Family, Topology};
use millrace_tests::wire::{Connection, Expect, Login, com};

use crate::ground::{Ground, PASSWORD, expect, is, number, value};
use crate::serving::{FOLLOWED, QUICK, app};

const SOON: Duration = Duration::from_secs(10);

pub(crate) async fn servers(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let rows = operator.rows("SHOW SERVERS").await?;
    ensure!(rows.len() == 3, "{rows:#?}");
    let primary = format!("127.0.0.1:{}", cluster.primary().port);
    for server in cluster.servers() {
        let address = format!("127.0.0.1:{}", server.port);
        let is_primary = address == primary;
        let sql = format!("SHOW SERVERS LIKE '{address}'");
        let row = operator.row(&sql).await?;
        let role = if is_primary { "primary" } else { "replica" };
        expect(
            &row,
            &[
                ("role", role),
                ("state", "up"),
                ("fit", "yes"),
                ("draining", "no"),
                ("why", ""),
            ],
        )?;
        let mut control = cluster.control(&server.name).await?;
        let version = control.value("SELECT @@version").await?;
        ensure!(row["version"] == version, "{row:#?}");
        let sql = format!("SHOW TOPOLOGY WHERE server = '{address}'");
        let edge = operator.row(&sql).await?;
        let id = control.value("SELECT @@server_id").await?;
        ensure!(edge["server_id"] == id, "{edge:#?}");
        if is_primary {
            expect(
                &edge,
                &[("role", "primary"), ("read_only", "no"), ("conflict", "no")],
            )?;
            ensure!(
                edge["source"].is_none() && row["lag_s"].is_none(),
                "{edge:#?}"
            );
        } else {
            expect(
                &edge,
                &[
                    ("source_server", &primary),
                    ("receiver", "running"),
                    ("applier", "running"),
                    ("read_only", "yes"),
                    ("last_error", ""),
                ],
            )?;
            ensure!(number(&row, "lag_s")? < 30.0, "{row:#?}");
        }
        control.close().await;
    }
    // Positions are the servers' own.
    let question = match cluster.family() {
        Family::MySql => "SELECT @@GLOBAL.gtid_executed",
        Family::MariaDb => "SELECT @@GLOBAL.gtid_current_pos",
    };
    let mut control = cluster.control(&cluster.primary().name).await?;
    let position = control.value(question).await?.context("no position")?;
    let position = position.replace(['\n', ' '], "");
    let sql = format!("SHOW SERVERS LIKE '{primary}'");
    operator
        .wait_for(&sql, FOLLOWED, |row| is(row, "position", &position))
        .await?;
    // A stopped applier is said, and why it takes no reads.
    let replica = &cluster.replicas()[0];
    cluster.stop_applier(&replica.name).await?;
    let sql = format!("SHOW SERVERS LIKE '127.0.0.1:{}'", replica.port);
    let stopped = operator
        .wait_for(&sql, FOLLOWED, |row| is(row, "fit", "no"))
        .await;
    let edge = operator
        .row(&format!("SHOW TOPOLOGY LIKE '127.0.0.1:{}'", replica.port))
        .await;
    cluster.start_applier(&replica.name).await?;
    expect(&stopped?, &[("why", "applier stopped"), ("state", "up")])?;
    expect(&edge?, &[("applier", "stopped")])?;
    operator
        .wait_for(&sql, FOLLOWED, |row| is(row, "fit", "yes"))
        .await?;
    Ok(())
}

const SET: &str = "SET @@millrace_consistency = 'global'";

pub(crate) async fn sessions(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 4\nwait_timeout = \"30s\"\n";
    let ground = Ground::start(cluster, "", more).await?;
    let mut operator = ground.open().await?;
    let login = app(ground.proxy.address());
    ensure!(operator.rows("SHOW SESSIONS").await?.is_empty());

    let mut idle = Connection::open(&Login {
        database: None,
        ..login.clone()
    })
    .await?;
    let idle_id = idle.greeting.connection_id;
    idle.expect(SET).await?;
    let sql = format!("SHOW SESSIONS WHERE id = {idle_id}");
    let row = operator.row(&sql).await?;
    expect(
        &row,
        &[
            ("account", APP.user),
            ("state", "idle"),
            ("transaction", "none"),
            ("pins", ""),
            ("level", "global"),
            ("commands", "1"),
        ],
    )?;
    ensure!(
        row["database"].is_none() && row["server"].is_none(),
        "{row:#?}"
    );
    ensure!(value(&row, "client")?.starts_with("127.0.0.1:"), "{row:#?}");
    // The statement and its OK, each with its four bytes of header; nothing else was counted.
    let received = (4 + 1 + SET.len()) as f64;
    ensure!(number(&row, "received_bytes")? == received, "{row:#?}");
    ensure!(number(&row, "sent_bytes")? == 11.0, "{row:#?}");

    // A transaction that is only begun, then open; a temporary table; another database.
    let mut writing = Connection::open(&login).await?;
    let id = writing.greeting.connection_id;
    let sql = format!("SHOW SESSIONS WHERE id = {id}");
    writing.expect("BEGIN").await?;
    let row = operator.row(&sql).await?;
    expect(
        &row,
        &[("transaction", "begun"), ("pins", ""), ("database", "app")],
    )?;
    writing
        .expect("CREATE TABLE IF NOT EXISTS listed (x INT)")
        .await?;
    expect(&operator.row(&sql).await?, &[("transaction", "none")])?;
    writing.expect("BEGIN").await?;
    writing.expect("INSERT INTO listed VALUES (1)").await?;
    let row = operator.row(&sql).await?;
    let primary = format!("127.0.0.1:{}", cluster.primary().port);
    expect(
        &row,
        &[
            ("transaction", "open"),
            ("pins", "transaction"),
            ("state", "idle"),
            ("server", &primary),
        ],
    )?;
    // The server knows the connection by that number.
    let thread = value(&row, "server_connection")?;
    let mut control = cluster.control(&cluster.primary().name).await?;
    let question = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE id = {thread} AND user = 'app'"
    );
    ensure!(
        control.value(&question).await?.as_deref() == Some("1"),
        "{row:#?}"
    );
    writing.expect("COMMIT").await?;
    writing.expect("USE test").await?;
    writing
        .expect("CREATE TEMPORARY TABLE listed_too (x INT)")
        .await?;
    let row = operator.row(&sql).await?;
    expect(
        &row,
        &[
            ("transaction", "none"),
            ("pins", "temporary_table"),
            ("database", "test"),
        ],
    )?;
    writing.quit().await;
    operator
        .wait_for("SHOW STATUS", SOON, |row| {
            is(row, "Variable_name", "Threads_connected") && is(row, "Value", "1")
        })
        .await?;

    // Running, and waiting for a connection behind those that run.
    let mut running = Vec::new();
    for _ in 0..5 {
        let mut one = Connection::open(&login).await?;
        one.send(com::QUERY, b"SELECT SLEEP(1) FROM listed FOR UPDATE")
            .await?;
        running.push(one);
    }
    operator
        .wait_for("SHOW SESSIONS WHERE state = 'waiting'", SOON, |_| true)
        .await?;
    let rows = operator
        .rows("SHOW SESSIONS WHERE state = 'running'")
        .await?;
    ensure!(!rows.is_empty() && rows.len() <= 4, "{rows:#?}");
    for row in &rows {
        expect(row, &[("server", &primary)])?;
    }
    for mut one in running {
        let expect = Expect::Results { binary: false };
        let reply = one.read_reply(expect).await;
        ensure!(
            reply.err().is_none() && reply.broken().is_none(),
            "{:?}",
            reply.render()
        );
    }
    Ok(())
}

/// More sessions than a worker is asked for at once.
pub(crate) async fn many_sessions(cluster: &Cluster) -> anyhow::Result<()> {
    const CLIENTS: usize = 700;
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let login = app(ground.proxy.address());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Connection::open(&login).await?);
    }
    let rows = operator.rows("SHOW SESSIONS").await?;
    ensure!(rows.len() == CLIENTS, "{} rows", rows.len());
    let mut ids: Vec<u64> = Vec::new();
    for row in &rows {
        expect(row, &[("account", APP.user), ("state", "idle")])?;
        ids.push(value(row, "id")?.parse()?);
    }
    ensure!(ids.is_sorted_by(|a, b| a < b), "not in order");
    let workers = rows.iter().filter(|row| is(row, "worker", "1")).count();
    ensure!(workers > CLIENTS / 4, "{workers} on the second worker");
    ensure!(operator.rows("SHOW SESSIONS LIMIT 5").await?.len() == 5);
    let last = ids.last().context("none")?;
    let sql = format!("SHOW SESSIONS WHERE id >= {last}");
    ensure!(operator.rows(&sql).await?.len() == 1);
    ensure!(operator.rows("SHOW SESSIONS LIKE 'ap_'").await?.len() == CLIENTS);
    ensure!(
        operator
            .rows("SHOW SESSIONS LIKE 'nobody'")
            .await?
            .is_empty()
    );
    // Those that leave while it is listed are no error.
    let leaving = async {
        for client in clients {
            client.quit().await;
        }
        anyhow::Ok(())
    };
    let listing = async {
        for _ in 0..20 {
            operator.rows("SHOW SESSIONS").await?;
        }
        anyhow::Ok(())
    };
    let (left, listed) = tokio::join!(leaving, listing);
    left?;
    listed?;
    Ok(())
}

pub(crate) async fn pins(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let login = app(ground.proxy.address());
    let mut other = Connection::open(&login).await?;
    let mut pinned = Connection::open(&login).await?;
    ensure!(operator.rows("SHOW PINS").await?.is_empty());
    let primary = format!("127.0.0.1:{}", cluster.primary().port);
    let id = pinned.greeting.connection_id;
    pinned.expect("SELECT GET_LOCK('listed', 1)").await?;
    pinned.expect("BEGIN").await?;
    pinned.expect(&QUICK.replace("FROM", "+ 0 FROM")).await?;
    other.expect(QUICK).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let rows = operator.rows("SHOW PINS").await?;
    let reasons: Vec<_> = rows
        .iter()
        .map(|row| row["reason"].clone().unwrap_or_default())
        .collect();
    ensure!(reasons == ["user_lock", "transaction"], "{rows:#?}");
    for row in &rows {
        expect(
            row,
            &[
                ("session", &id.to_string()),
                ("account", APP.user),
                ("server", &primary),
            ],
        )?;
        let age = number(row, "age_ms")?;
        ensure!((300.0..30_000.0).contains(&age), "{row:#?}");
    }
    let metrics = operator
        .rows("SHOW METRICS WHERE labels = 'reason=user_lock'")
        .await?;
    let gauge = metrics.iter().find(|row| is(row, "name", "millrace_pins"));
    ensure!(
        gauge.is_some_and(|row| is(row, "value", "1")),
        "{metrics:#?}"
    );
    pinned.expect("COMMIT").await?;
    let row = operator.row("SHOW PINS").await?;
    expect(&row, &[("reason", "user_lock")])?;
    pinned.expect("SELECT RELEASE_LOCK('listed')").await?;
    // What is asked of the server about its locks comes after the answer.
    operator.wait_until_none("SHOW PINS", SOON).await?;
    Ok(())
}

pub(crate) async fn pools(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "[pool]\nmax_connections = 7\n").await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    client
        .expect("CREATE TABLE IF NOT EXISTS listed (x INT)")
        .await?;
    for _ in 0..9 {
        client.expect("DELETE FROM listed").await?;
    }
    client.expect("BEGIN").await?;
    client.expect("INSERT INTO listed VALUES (1)").await?;
    let primary = format!("127.0.0.1:{}", cluster.primary().port);
    let sql = format!(
        "SHOW POOLS WHERE server = '{primary}' AND account = '{}'",
        APP.user
    );
    let row = operator.row(&sql).await?;
    expect(
        &row,
        &[("in_use", "1"), ("waiting", "0"), ("server_max", "7")],
    )?;
    let (opened, lent) = (number(&row, "opened")?, number(&row, "lent")?);
    ensure!(lent >= 11.0 && (1.0..5.0).contains(&opened), "{row:#?}");
    ensure!(number(&row, "reused")? == lent - opened, "{row:#?}");
    let open = number(&row, "idle")? + number(&row, "in_use")?;
    ensure!(
        open == opened && number(&row, "server_open")? == open,
        "{row:#?}"
    );
    let server = operator
        .row(&format!("SHOW SERVERS LIKE '{primary}'"))
        .await?;
    expect(&server, &[("in_use", "1")])?;
    ensure!(
        number(&server, "idle")? == number(&row, "idle")?,
        "{server:#?}"
    );
    ensure!(number(&server, "statements")? >= 11.0, "{server:#?}");
    client.expect("COMMIT").await?;
    expect(&operator.row(&sql).await?, &[("in_use", "0")])?;
    Ok(())
}

pub(crate) async fn counted(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[[rule]]\nname = \"places\"\ntable = \"app.place\"\nkind = \"read\"\nto = \
                \"primary\"\n[[rule]]\nname = \"all\"\ncontinue = true\n";
    let ground = Ground::start(cluster, "", more).await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    for _ in 0..3 {
        client.expect(QUICK).await?;
    }
    client.expect("SELECT 7 FROM DUAL").await?;
    let rows = operator.rows("SHOW RULES").await?;
    ensure!(rows.len() == 2, "{rows:#?}");
    expect(
        &rows[0],
        &[
            ("number", "1"),
            ("name", "places"),
            ("conditions", "kind = read, table = app.place"),
            ("effects", "to = primary"),
            ("hits", "3"),
        ],
    )?;
    expect(
        &rows[1],
        &[("name", "all"), ("conditions", ""), ("hits", "1")],
    )?;
    // The metrics are those of /metrics.
    let shown = operator
        .row("SHOW METRICS LIKE 'millrace\\_clients'")
        .await?;
    expect(&shown, &[("value", "1"), ("type", "gauge"), ("labels", "")])?;
    let metrics = ground.proxy.metrics().await?;
    let names: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let rows = operator.rows("SHOW METRICS").await?;
    for row in &rows {
        let name = value(row, "name")?;
        let known = names.iter().any(|known| name.starts_with(known));
        ensure!(known, "{name} is not in /metrics");
    }
    ensure!(
        names.len() > 20 && rows.len() > names.len(),
        "{}",
        names.len()
    );
    // Secrets are not shown, whatever is asked.
    let row = operator
        .row("SHOW CONFIG WHERE name = 'admin.password'")
        .await?;
    expect(&row, &[("value", "(set)"), ("default", "no")])?;
    let row = operator
        .row("SHOW VARIABLES LIKE 'pool.max_connections'")
        .await?;
    expect(&row, &[("Value", "100")])?;
    for sql in ["SHOW CONFIG", "SHOW VARIABLES", "SHOW METRICS", "SHOW HELP"] {
        let reply = operator.0.expect(sql).await?;
        let text = format!("{:?}", reply.rows());
        for secret in [PASSWORD, millrace_sandbox::MONITOR.password] {
            ensure!(!text.contains(secret), "{sql} shows {secret}");
        }
    }
    Ok(())
}

/// A group or cluster, and each server's state in it.
pub(crate) async fn members(cluster: &Cluster, topology: Topology) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let rows = operator.rows("SHOW TOPOLOGY").await?;
    ensure!(rows.len() == 3, "{rows:#?}");
    let name = value(&rows[0], "cluster")?.to_owned();
    let (kind, own) = match topology {
        Topology::Galera => ("galera ", "synced"),
        _ => ("group ", "online"),
    };
    ensure!(name.starts_with(kind), "{rows:#?}");
    for row in &rows {
        expect(row, &[("cluster", &name), ("state", "up")])?;
        let state = value(row, "member_state")?;
        let wanted = match (topology, value(row, "role")?) {
            (Topology::Group, "primary") => "online, primary",
            _ => own,
        };
        ensure!(state == wanted, "{row:#?}");
    }
    let primary = operator.row("SHOW SERVERS WHERE role = 'primary'").await?;
    if topology == Topology::Group {
        let address = format!("127.0.0.1:{}", cluster.primary().port);
        expect(&primary, &[("address", &address)])?;
    }
    // A member that is stopped is told from one that takes part.
    let gone = cluster.replicas()[0].clone();
    let address = format!("127.0.0.1:{}", gone.port);
    if value(&primary, "address")? != address {
        cluster.stop(&gone.name).await?;
        let sql = format!("SHOW SERVERS LIKE '{address}'");
        let row = operator
            .wait_for(&sql, FOLLOWED, |row| is(row, "fit", "no"))
            .await?;
        ensure!(!value(&row, "why")?.is_empty(), "{row:#?}");
        let others = operator.rows("SHOW SERVERS WHERE fit = 'yes'").await?;
        ensure!(others.len() == 2, "{others:#?}");
    }
    Ok(())
}
