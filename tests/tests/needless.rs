//! What need not be: connections that are opened, sessions that keep theirs, reads that wait. Counted on real
//! servers.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::differential::script::Family;
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::wire::{Connection, Login, Target};

fn app(stage: &Stage) -> Login {
    Login::new(stage.address.clone(), APP.user, APP.password)
}

async fn direct(stage: &Stage) -> anyhow::Result<Connection> {
    let target = Target::Tcp(format!("127.0.0.1:{}", stage.cluster.primary().port));
    let admin = harness::admin(stage.cluster.primary().port);
    Ok(Connection::open(&Login { target, ..admin }).await?)
}

/// The first value of an answer's first row.
async fn value(client: &mut Connection, sql: &str) -> anyhow::Result<String> {
    let reply = client.expect(sql).await.with_context(|| sql.to_owned())?;
    reply.scalar().with_context(|| format!("{sql}: no value"))
}

/// A family of the proxy's metrics, summed over the series that contain `label`.
async fn metric(stage: &Stage, name: &str, label: &str) -> anyhow::Result<f64> {
    let proxy = stage.proxy.as_ref().context("no proxy")?;
    let text = proxy.metrics().await?;
    let lines = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
    });
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(values.sum())
}

/// How many sessions keep their connection. What they keep is counted a moment after the client has its answer.
async fn pins(stage: &Stage, expected: f64) -> anyhow::Result<f64> {
    for _ in 0..40 {
        let pins = metric(stage, "millrace_pins", "").await?;
        if pins == expected {
            return Ok(pins);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    metric(stage, "millrace_pins", "").await
}

/// Logins without a database, each of which chooses one, as WordPress does for every page.
async fn logins_without_database(stage: &Stage) -> anyhow::Result<()> {
    let connects = "millrace_pool_connections_opened_total";
    let page = async || -> anyhow::Result<()> {
        let mut client = Connection::open(&app(stage)).await?;
        client.expect("SET NAMES utf8mb4").await?;
        client.expect("SELECT @@sql_mode").await?;
        let database = client.expect("SELECT DATABASE()").await?;
        ensure!(database.rows()[0][0].is_none(), "none was chosen yet");
        client.expect("USE app").await?;
        ensure!(value(&mut client, "SELECT DATABASE()").await? == "app");
        client.expect("SELECT 1").await?;
        client.quit().await;
        Ok(())
    };
    for _ in 0..3 {
        page().await?;
    }
    let before = metric(stage, connects, "").await?;
    for _ in 0..60 {
        page().await?;
    }
    let opened = metric(stage, connects, "").await? - before;
    eprintln!("60 logins without a database: {opened} connections opened");
    ensure!(
        opened <= 3.0,
        "{opened} connections were opened for 60 logins"
    );
    Ok(())
}

/// Sessions whose user variables are known keep no connection.
async fn variables_known(stage: &Stage) -> anyhow::Result<()> {
    for round in 0..5 {
        let mut client = Connection::open(&app(stage).database("app")).await?;
        for sql in [
            "DROP PROCEDURE IF EXISTS n_out",
            "DROP PROCEDURE IF EXISTS n_sets",
            "CREATE PROCEDURE n_out(IN a INT, OUT b INT) SET b=a*2",
            "CREATE PROCEDURE n_sets() SET @one=1, @two=2",
        ] {
            client.expect(sql).await?;
        }
        for (sql, question, answer) in [
            ("CALL n_out(1,@x)", "SELECT @x", "2"),
            ("CALL n_sets()", "SELECT @two", "2"),
            ("SELECT 3 INTO @`ä`", "SELECT @`ä`", "3"),
            ("SET @`Ä`='4'", "SELECT @`ä`", "4"),
        ] {
            client.expect(sql).await?;
            let got = value(&mut client, question).await?;
            ensure!(got == answer, "{sql}: {got}");
            let pinned = metric(stage, "millrace_pins", "").await?;
            ensure!(
                pinned == 0.0,
                "round {round}, {sql}: {pinned} sessions keep a connection"
            );
        }
        // What is not there has left nothing.
        for sql in ["CALL n_nobody()", "CALL `app` . `n_Nobody`"] {
            let reply = client.query(sql).await;
            ensure!(reply.err().is_some_and(|err| err.code == 1305), "{sql}");
            client.expect("SELECT 1").await?;
            let pinned = pins(stage, 0.0).await?;
            ensure!(pinned == 0.0, "{sql}: {pinned} sessions keep a connection");
        }
        client.quit().await;
    }
    Ok(())
}

/// What keeps a session's connection ends before the session does: so does the pin.
async fn causes_that_end(stage: &Stage) -> anyhow::Result<()> {
    let mut admin = direct(stage).await?;
    for sql in [
        "DROP ROLE IF EXISTS n_one, n_two",
        "CREATE ROLE n_one, n_two",
        "GRANT n_one TO app",
        "GRANT n_two TO app",
    ] {
        admin.expect(sql).await?;
    }
    admin.quit().await;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    let roles: &[(&[&str], &[&str])] = match stage.family {
        Family::MySql => &[
            (&["SET ROLE n_one"], &["SET ROLE NONE"]),
            (&["SET ROLE n_one", "SET ROLE n_two"], &["SET ROLE DEFAULT"]),
            (&["SET ROLE ALL"], &["SET ROLE n_one", "SET ROLE NONE"]),
        ],
        Family::MariaDb => &[
            (&["SET ROLE n_one"], &["SET ROLE NONE"]),
            (
                &["SET ROLE n_one", "SET ROLE n_two"],
                &["SET ROLE n_one", "SET ROLE NONE"],
            ),
        ],
    };
    let measuring: &[(&[&str], &[&str])] = match stage.family {
        Family::MySql => &[
            (
                &["SET profiling=1", "SELECT 2", "SHOW PROFILES"],
                &["SET profiling=0"],
            ),
            (
                &["SET optimizer_trace='enabled=on'", "SELECT 2"],
                &["SET optimizer_trace='enabled=off'"],
            ),
        ],
        Family::MariaDb => &[(
            &["SET profiling=1", "SELECT 2", "SHOW PROFILES"],
            &["SET profiling=0"],
        )],
    };
    let mut client = Connection::open(&app(stage).database("app")).await?;
    held_and_free(stage, &mut client, roles).await?;
    held_and_free(stage, &mut client, measuring).await?;
    client.quit().await;
    if stage.family == Family::MySql {
        let target = stage.address.clone();
        let login = Login {
            target,
            ..harness::admin(0)
        };
        let mut client = Connection::open(&login.database("app")).await?;
        let uuid = "22222222-2222-3333-4444-555555555555";
        let first = format!("SET gtid_next='{uuid}:1'");
        let second = format!("SET SESSION gtid_next='{uuid}:2'");
        let cases: &[(&[&str], &[&str])] = &[
            (&[&first, "BEGIN", "COMMIT"], &["SET gtid_next='AUTOMATIC'"]),
            (
                &[&second, "BEGIN", "COMMIT"],
                &["SET @@session.gtid_next=automatic"],
            ),
        ];
        held_and_free(stage, &mut client, cases).await?;
        client.quit().await;
    }
    Ok(())
}

/// The first statements of each case keep the session's connection, and the last of the others frees it.
async fn held_and_free(
    stage: &Stage,
    client: &mut Connection,
    cases: &[(&[&str], &[&str])],
) -> anyhow::Result<()> {
    for (holds, frees) in cases {
        for sql in *holds {
            client
                .expect(sql)
                .await
                .with_context(|| (*sql).to_owned())?;
        }
        let pinned = pins(stage, 1.0).await?;
        ensure!(pinned == 1.0, "{holds:?}: {pinned} sessions keep theirs");
        for sql in *frees {
            client
                .expect(sql)
                .await
                .with_context(|| (*sql).to_owned())?;
        }
        client.expect("SELECT 1").await?;
        let pinned = pins(stage, 0.0).await?;
        ensure!(pinned == 0.0, "{holds:?}, {frees:?}: it is kept still");
    }
    Ok(())
}

/// Stored code of a database, run by a session that has none: it has none afterwards either, and keeps nothing, prepared
/// statements or not.
async fn code_of_another_database(stage: &Stage) -> anyhow::Result<()> {
    let account = harness::admin(0);
    // Through the proxy, which reads again at once what stored code there is.
    let mut admin = Connection::open(&Login {
        target: stage.address.clone(),
        ..account
    })
    .await?;
    for sql in [
        "CREATE TABLE app.n_code (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE app.n_echo (id INT PRIMARY KEY, v INT)",
        "INSERT INTO app.n_code VALUES (1, 0)",
        "INSERT INTO app.n_echo VALUES (1, 0)",
        "CREATE TRIGGER app.n_echoes AFTER UPDATE ON app.n_code FOR EACH ROW \
         UPDATE app.n_echo SET v = NEW.v WHERE id = NEW.id",
        "CREATE PROCEDURE app.n_routine() UPDATE app.n_echo SET v = v + 1",
    ] {
        admin.expect(sql).await?;
    }
    admin.quit().await;
    for sql in [
        "UPDATE app.n_code SET v = v + 1 WHERE id = 1",
        "CALL app.n_routine()",
    ] {
        let mut client = Connection::open(&app(stage)).await?;
        let reply = client.prepare(b"SELECT v FROM app.n_code").await;
        ensure!(reply.statement_id().is_some(), "not prepared");
        client.expect(sql).await?;
        client.expect(sql).await?;
        let database = client.expect("SELECT DATABASE()").await?;
        ensure!(database.scalar().is_none(), "{sql}: it has a database");
        let pinned = pins(stage, 0.0).await?;
        let route = client.expect("SHOW ROUTE").await?.rows();
        ensure!(pinned == 0.0, "{sql}: it keeps its connection: {route:?}");
        client.quit().await;
    }
    Ok(())
}

/// Replicas take DDL for as long as it took on the primary: nobody waits for that, the primary answers.
async fn behind_ddl(stage: &Stage) -> anyhow::Result<()> {
    let mut client = Connection::open(&app(stage).database("app")).await?;
    for sql in [
        "CREATE TABLE n_ddl (id INT PRIMARY KEY)",
        "CREATE TABLE n_beside (id INT PRIMARY KEY)",
    ] {
        client.expect(sql).await?;
    }
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    for server in stage.cluster.replicas() {
        stage.cluster.delay_applier(&server.name, 2).await?;
    }
    // Until the monitor has seen that they apply.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    client.expect("ALTER TABLE n_ddl ADD COLUMN v INT").await?;
    // What the DDL is about goes there for that reason alone.
    client.expect("SELECT id FROM n_beside").await?;
    let route = client.expect("SHOW ROUTE").await?.rows();
    client.quit().await;
    for server in stage.cluster.replicas() {
        stage.cluster.delay_applier(&server.name, 0).await?;
    }
    let primary = stage.cluster.primary().port.to_string();
    for (about, expected) in [
        ("went to", primary.as_str()),
        ("waited for its position", "no"),
        ("servers tried before", "0"),
    ] {
        let row = route.iter().find(|row| row[0].as_deref() == Some(about));
        let told = row.and_then(|row| row[1].as_deref()).unwrap_or_default();
        ensure!(told.ends_with(expected), "{about}: {told}");
    }
    Ok(())
}

/// Transactions whose numbers leave gaps: what never existed is not waited for.
async fn gaps(stage: &Stage) -> anyhow::Result<()> {
    if stage.family == Family::MariaDb {
        return Ok(());
    }
    let mut login = app(stage).database("app");
    login.user = harness::admin(0).user;
    login.password = harness::admin(0).password;
    let mut client = Connection::open(&login).await?;
    let before = metric(stage, "millrace_position_waits_total", "timed_out").await?;
    let uuid = "11111111-2222-3333-4444-555555555555";
    for at in 0..11 {
        client
            .expect(&format!("SET gtid_next='{uuid}:{}'", 5 + at * 1000))
            .await?;
        client.expect("BEGIN").await?;
        client.expect("COMMIT").await?;
    }
    client.expect("SET gtid_next='AUTOMATIC'").await?;
    client.quit().await;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut other = Connection::open(&login).await?;
    for _ in 0..5 {
        other.expect("SELECT 1 FROM n_gaps").await?;
    }
    other.quit().await;
    let waits = metric(stage, "millrace_position_waits_total", "timed_out").await?;
    eprintln!("reads behind eleven gaps: {waits} waits in vain");
    ensure!(waits == before, "{} waits were in vain", waits - before);
    Ok(())
}

/// Numbers that begin anew everywhere, which an operator vouches for: no replica is behind what was before, and
/// nobody waits for it.
async fn numbers_begin_anew(stage: &Stage, admin_port: u16) -> anyhow::Result<()> {
    if stage.family == Family::MariaDb {
        return Ok(());
    }
    let mut client = Connection::open(&app(stage).database("app")).await?;
    client.expect("INSERT INTO n_gaps VALUES (100)").await?;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    for replica in stage.cluster.replicas() {
        let mut control = Connection::open(&harness::admin(replica.port)).await?;
        control.expect("STOP REPLICA").await?;
    }
    let mut admin = direct(stage).await?;
    admin.expect("RESET BINARY LOGS AND GTIDS").await?;
    for replica in stage.cluster.replicas() {
        let mut control = Connection::open(&harness::admin(replica.port)).await?;
        for sql in [
            "RESET REPLICA",
            "RESET BINARY LOGS AND GTIDS",
            "START REPLICA",
        ] {
            control.expect(sql).await?;
        }
    }
    let target = Target::Tcp(format!("127.0.0.1:{admin_port}"));
    let login = Login::new(target, "admin", harness::ADMIN_PASSWORD);
    let mut operator = Connection::open(&login).await?;
    let resume = format!("RESUME SERVER '127.0.0.1:{}'", stage.cluster.primary().port);
    let begun = Instant::now();
    // Where the server is not doubted yet, there is nothing to vouch for.
    let writing = client.query("INSERT INTO n_gaps VALUES (101)");
    let resuming = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            operator.expect(&resume).await?;
            let claims = operator.expect("SHOW SERVERS").await?.render().join("\n");
            if claims.contains("primary") && begun.elapsed() > Duration::from_secs(2) {
                return anyhow::Ok(());
            }
        }
    };
    let (written, resumed) = tokio::join!(writing, resuming);
    resumed?;
    ensure!(written.err().is_none(), "a write: {:?}", written.err());
    client.expect("INSERT INTO n_gaps VALUES (102)").await?;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let lag = metric(stage, "millrace_server_lag_seconds", "").await?;
    let primary = format!("127.0.0.1:{}", stage.cluster.primary().port);
    let at_primary = async |session: &mut Connection| -> anyhow::Result<bool> {
        let rows = value(session, "SELECT COUNT(*) FROM n_gaps").await?;
        ensure!(rows == "4", "{rows} rows");
        let route = session.expect("SHOW ROUTE").await?.render().join("\n");
        Ok(route.contains(&primary))
    };
    // What a session has written before counts until it has read what the primary has now.
    let begun = Instant::now();
    while at_primary(&mut client).await? {
        ensure!(
            begun.elapsed() < Duration::from_secs(10),
            "a session from before still reads from the primary"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let before = metric(stage, "millrace_position_waits_total", "timed_out").await?;
    let mut fresh = Connection::open(&app(stage).database("app")).await?;
    for _ in 0..4 {
        ensure!(
            !at_primary(&mut fresh).await?,
            "a new session reads from the primary"
        );
    }
    let waits = metric(stage, "millrace_position_waits_total", "timed_out").await?;
    eprintln!(
        "numbers begin anew: {lag} s behind, {} waits in vain",
        waits - before
    );
    ensure!(
        lag <= 1.0 && waits == before,
        "{lag} s behind, {} waits in vain",
        waits - before
    );
    Ok(())
}

async fn needless(family: Family) -> anyhow::Result<()> {
    let admin_port = harness::free_port()?;
    let options = ProxyOptions {
        workers: Some(1),
        extra: format!(
            "[admin]\nlisten = \"127.0.0.1:{admin_port}\"\n\
             password_env = \"MILLRACE_ADMIN_PASSWORD\"\n"
        ),
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 2, &options).await?;
    let mut admin = direct(&stage).await?;
    admin
        .expect("CREATE TABLE app.n_gaps (id INT PRIMARY KEY)")
        .await?;
    admin.expect("INSERT INTO app.n_gaps VALUES (1)").await?;
    admin.quit().await;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    let mut checks = Checks::new(format!("needless, {family}"));
    checks
        .run("logins without a database", logins_without_database(&stage))
        .await;
    checks.run("known variables", variables_known(&stage)).await;
    checks.run("causes that end", causes_that_end(&stage)).await;
    let code = code_of_another_database(&stage);
    checks.run("code of another database", code).await;
    checks.run("gaps", gaps(&stage)).await;
    checks.run("behind DDL", behind_ddl(&stage)).await;
    let anew = numbers_begin_anew(&stage, admin_port);
    checks.run("numbers begin anew", anew).await;
    checks.finish()
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MariaDb, "needless") {
        return Ok(());
    }
    needless(Family::MariaDb).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MySql, "needless") {
        return Ok(());
    }
    needless(Family::MySql).await
}
