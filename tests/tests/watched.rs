//! Being watched: what /metrics, /healthz, /readyz and the log say while clients work.

#[path = "watched/exposition.rs"]
mod exposition;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use exposition::{Exposition, format};
use millrace_sandbox::{APP, Cluster, ClusterSpec, Family, MONITOR, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::harness::{self, Launch, Proxy};
use millrace_tests::wire::{Connection, Login, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const READY: Duration = Duration::from_secs(30);
const FOLLOWED: Duration = Duration::from_secs(20);

async fn proxy(cluster: &Cluster, more: &str) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let servers: String = cluster
        .servers()
        .iter()
        .map(|s| format!("[[server]]\naddress = \"127.0.0.1:{}\"\n", s.port))
        .collect();
    let text = format!(
        "workers = 2\n[[listen]]\naddress = \"127.0.0.1:{}\"\n{servers}\
         [monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n{more}",
        launch.port, MONITOR.user, launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    let deadline = Instant::now() + FOLLOWED;
    for server in cluster.servers().iter().filter(|s| s.pid.is_some()) {
        let series = format!(
            "millrace_server_fit{{server=\"127.0.0.1:{}\"}}",
            server.port
        );
        while Exposition::of(&proxy).await?.value(&series) != 1.0 {
            ensure!(Instant::now() < deadline, "{series}; log: {}", proxy.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(proxy)
}

fn app(proxy: &Proxy) -> Login {
    Login::new(proxy.address(), APP.user, APP.password).database("app")
}

// --- The format ---

// --- What moves ---

/// By how much series moved while something happened.
struct Moved {
    before: Exposition,
    after: Exposition,
}

impl Moved {
    fn by(&self, name: &str, labels: &[&str]) -> f64 {
        self.after.sum(name, labels) - self.before.sum(name, labels)
    }

    fn exactly(&self, name: &str, labels: &[&str], expected: f64) -> anyhow::Result<()> {
        let moved = self.by(name, labels);
        ensure!(
            moved == expected,
            "{name}{labels:?} moved by {moved}, not {expected}"
        );
        Ok(())
    }

    fn at_least(&self, name: &str, labels: &[&str], least: f64) -> anyhow::Result<()> {
        let moved = self.by(name, labels);
        ensure!(
            moved >= least,
            "{name}{labels:?} moved by {moved}, not {least} or more"
        );
        Ok(())
    }
}

async fn moves(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let primary = format!("server=\"127.0.0.1:{}\"", cluster.primary().port);
    let login = app(&proxy);
    let before = Exposition::of(&proxy).await?;
    ensure!(
        before.value("millrace_clients") == 0.0,
        "clients before any came"
    );
    let mut connection = Connection::open(&login).await?;
    let big = "x".repeat(50_000);
    for _ in 0..7 {
        connection.expect("SELECT * FROM app.seen LIMIT 1").await?;
    }
    for _ in 0..3 {
        connection.expect("INSERT INTO app.seen VALUES (5)").await?;
    }
    connection.expect(&format!("SELECT '{big}'")).await?;
    connection.query("SELECT * FROM app.not_there").await;
    connection.query("SELEC 1").await;
    connection
        .query("INSERT INTO app.seen VALUES ('no number')")
        .await;
    let reply = connection.query("SELECT CONNECTION_ID()").await;
    ensure!(reply.scalar().is_some(), "{:?}", reply.render());
    // A statement counts once its answer is out, which the client may see first.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let moved = Moved {
        before,
        after: Exposition::of(&proxy).await?,
    };
    let read = ["kind=\"read\""];
    // 7 reads, the long one, the one of no table, and CONNECTION_ID.
    moved.exactly("millrace_statements_total", &read, 10.0)?;
    moved.exactly(
        "millrace_statements_total",
        &["kind=\"write\"", &primary],
        4.0,
    )?;
    moved.exactly("millrace_client_connections_total", &[], 1.0)?;
    moved.exactly("millrace_clients", &[], 1.0)?;
    moved.exactly("millrace_logins_total", &["outcome=\"denied\""], 0.0)?;
    moved.exactly("millrace_logins_total", &[], 1.0)?;
    moved.exactly(
        "millrace_errors_total",
        &["side=\"server\"", "class=\"syntax\""],
        2.0,
    )?;
    moved.exactly("millrace_errors_total", &[], 3.0)?;
    moved.at_least("millrace_client_received_bytes_total", &[], 50_000.0)?;
    moved.at_least("millrace_client_sent_bytes_total", &[], 50_000.0)?;
    moved.at_least("millrace_pool_connections_opened_total", &[&primary], 1.0)?;
    let before = moved.after;
    connection.quit().await;
    settled(&proxy, "millrace_clients", 0.0).await?;
    let mut wrong = login.clone();
    wrong.password = "not it".to_owned();
    for _ in 0..2 {
        let (connection, _) = Connection::try_open(&wrong).await?;
        ensure!(connection.is_none(), "a wrong password is let in");
    }
    let moved = Moved {
        before,
        after: Exposition::of(&proxy).await?,
    };
    moved.exactly("millrace_logins_total", &["outcome=\"denied\""], 2.0)?;
    moved.exactly("millrace_errors_total", &["class=\"access\""], 2.0)?;
    moved.exactly("millrace_statements_total", &[], 0.0)
}

/// Waits until a series has this value: what a client no longer sees may end a moment later.
async fn settled(proxy: &Proxy, series: &str, expected: f64) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOLLOWED;
    loop {
        let value = Exposition::of(proxy).await?.value(series);
        if value == expected {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{series} is {value}, not {expected}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What begins a pin and what ends it.
const PINS: [(&str, &[&str], &[&str]); 6] = [
    (
        "transaction",
        &["BEGIN", "INSERT INTO app.seen VALUES (1)"],
        &["COMMIT"],
    ),
    (
        "temporary_table",
        &["CREATE TEMPORARY TABLE tt (x INT)"],
        &["DROP TEMPORARY TABLE tt"],
    ),
    (
        "lock_tables",
        &["LOCK TABLES app.seen READ"],
        &["UNLOCK TABLES"],
    ),
    (
        "user_lock",
        &["SELECT GET_LOCK('watched', 1)"],
        &["SELECT RELEASE_LOCK('watched')"],
    ),
    (
        "handler",
        &["HANDLER app.seen OPEN"],
        &["HANDLER seen CLOSE"],
    ),
    (
        "xa",
        &["XA START 'watched'", "INSERT INTO app.seen VALUES (1)"],
        &["XA END 'watched'", "XA COMMIT 'watched' ONE PHASE"],
    ),
];

async fn pin(proxy: &Proxy, reason: &str, begin: &[&str], end: &[&str]) -> anyhow::Result<()> {
    let mut connection = Connection::open(&app(proxy)).await?;
    let leased = |exposition: &Exposition| {
        exposition.sum("millrace_pool_connections", &["state=\"leased\""])
    };
    let before = Exposition::of(proxy).await?;
    for sql in begin {
        connection.expect(sql).await?;
    }
    let gauge = format!("millrace_pins{{reason=\"{reason}\"}}");
    settled(proxy, &gauge, 1.0).await?;
    let kept = leased(&Exposition::of(proxy).await?);
    ensure!(kept >= 1.0, "{kept} leased");
    for sql in end {
        connection.expect(sql).await?;
    }
    settled(proxy, &gauge, 0.0).await?;
    let deadline = Instant::now() + FOLLOWED;
    while leased(&Exposition::of(proxy).await?) != 0.0 {
        ensure!(Instant::now() < deadline, "a connection stays leased");
        // What only the next statement can see ends with that.
        connection.expect("DO 0").await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let moved = Moved {
        before,
        after: Exposition::of(proxy).await?,
    };
    let label = format!("reason=\"{reason}\"");
    moved.exactly("millrace_pins_begun_total", &[&label], 1.0)?;
    // A client that leaves in the middle leaves no pin behind.
    for sql in begin {
        connection.expect(sql).await?;
    }
    drop(connection);
    settled(proxy, &gauge, 0.0).await
}

async fn pins(checks: &mut Checks, cluster: &Cluster) {
    for (reason, begin, end) in PINS {
        let check = async {
            let proxy = proxy(cluster, "").await?;
            pin(&proxy, reason, begin, end).await
        };
        checks.run(&format!("pin: {reason}"), check).await;
    }
}

/// What many drivers ask of every connection; nobody may have to keep one for it.
async fn unpinned(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut connection = Connection::open(&app(&proxy)).await?;
    for sql in [
        "SELECT CONNECTION_ID()",
        "SELECT CONNECTION_ID() AS id, DATABASE(), @@version_comment",
        "SET @own = CONNECTION_ID()",
        "SELECT LAST_INSERT_ID()",
        "SELECT FOUND_ROWS(), ROW_COUNT()",
        "SET NAMES utf8mb4",
        "SET time_zone = '+01:00', wait_timeout = 100",
        "SHOW WARNINGS",
    ] {
        connection.expect(sql).await?;
        unleased(&proxy).await.context(sql)?;
    }
    let prepared = connection.prepare(b"SELECT CONNECTION_ID()").await;
    let (id, _) = prepared.statement_id().context("not prepared")?;
    let reply = connection.execute(id, 0, &[], true).await;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    unleased(&proxy).await.context("prepared")?;
    let pins = Exposition::of(&proxy)
        .await?
        .sum("millrace_pins_begun_total", &[]);
    ensure!(pins == 0.0, "{pins} pins begun");
    Ok(())
}

/// Waits until no session has a connection.
async fn unleased(proxy: &Proxy) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOLLOWED;
    let leased = ["state=\"leased\""];
    while Exposition::of(proxy)
        .await?
        .sum("millrace_pool_connections", &leased)
        != 0.0
    {
        ensure!(Instant::now() < deadline, "a connection stays leased");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn waits(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(
        cluster,
        "[pool]\nmax_connections = 1\nwait_timeout = \"500ms\"\n",
    )
    .await?;
    let label = format!("server=\"127.0.0.1:{}\"", cluster.primary().port);
    let mut holder = Connection::open(&app(&proxy)).await?;
    let mut waiter = Connection::open(&app(&proxy)).await?;
    for sql in ["BEGIN", "INSERT INTO app.seen VALUES (1)"] {
        holder.expect(sql).await?;
    }
    let before = Exposition::of(&proxy).await?;
    let reply = waiter.query("INSERT INTO app.seen VALUES (2)").await;
    ensure!(reply.err().is_some(), "{:?}", reply.render());
    holder.expect("COMMIT").await?;
    let moved = Moved {
        before,
        after: Exposition::of(&proxy).await?,
    };
    moved.exactly(
        "millrace_pool_waits_total",
        &[&label, "outcome=\"timed_out\""],
        1.0,
    )?;
    moved.at_least("millrace_pool_wait_seconds_total", &[&label], 0.4)?;
    moved.exactly(
        "millrace_errors_total",
        &["side=\"proxy\"", "class=\"limit\""],
        1.0,
    )
}

/// On the primary's one connection: what only the connection knew of one session's statement is read before
/// another session uses it, also where something else of the first has run there since.
async fn asked_after_others(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[pool]\nmax_connections = 1\n").await?;
    let mut one = Connection::open(&app(&proxy)).await?;
    let mut other = Connection::open(&app(&proxy)).await?;
    let target = Target::Tcp(format!("127.0.0.1:{}", cluster.primary().port));
    let direct = Login::new(target, APP.user, APP.password).database("app");
    let mut direct = Connection::open(&direct).await?;
    let counted =
        "INSERT INTO app.seen SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 FROM app.seen";
    for left in [
        "INSERT INTO app.seen VALUES (41)",
        "CREATE TABLE app.seen_y (x INT)",
    ] {
        for client in [&mut one, &mut direct] {
            client.expect("DELETE FROM app.seen").await?;
            client.expect(counted).await?;
            client.expect(left).await?;
            other.expect("INSERT INTO app.seen VALUES (43)").await?;
            other.expect("DROP TABLE IF EXISTS app.seen_y").await?;
        }
        let found = one.expect("SELECT FOUND_ROWS()").await?.scalar();
        let expected = direct.expect("SELECT FOUND_ROWS()").await?.scalar();
        ensure!(found == expected, "{left}: {found:?}, direct {expected:?}");
    }
    Ok(())
}

/// MariaDB: a column's default draws from a sequence, on the primary's one connection. Nobody is told what another has
/// drawn.
async fn drawn_by_defaults(cluster: &Cluster) -> anyhow::Result<()> {
    if cluster.family() == Family::MySql {
        return Ok(());
    }
    let proxy = proxy(cluster, "[pool]\nmax_connections = 1\n").await?;
    let mut one = Connection::open(&app(&proxy)).await?;
    let mut other = Connection::open(&app(&proxy)).await?;
    let mut control = cluster.control(&cluster.primary().name).await?;
    for sql in [
        "CREATE SEQUENCE app.drawn START WITH 100",
        "CREATE TABLE app.drawing (id INT DEFAULT NEXTVAL(app.drawn), v INT)",
    ] {
        control.run(sql).await?;
    }
    control.close().await;
    let (draws, asks) = (
        "INSERT INTO app.drawing (v) VALUES (1)",
        "SELECT LASTVAL(app.drawn)",
    );
    other.expect(draws).await?;
    // Whoever has drawn nothing is told nothing of what others drew.
    let mut new = Connection::open(&app(&proxy)).await?;
    let nothing = new.expect(asks).await?.scalar();
    ensure!(nothing.is_none(), "a new session: {nothing:?}");
    new.quit().await;
    one.expect(draws).await?;
    one.expect("SELECT v FROM app.drawing WHERE id = 0 FOR UPDATE")
        .await?;
    let own = one.expect(asks).await?.scalar();
    ensure!(own.as_deref() == Some("101"), "its own: {own:?}");
    // It keeps the connection: it may ask again.
    one.quit().await;
    // One that had drawn before others used its connection: it is told so.
    let lost = other.query(asks).await;
    let lost = lost.err().map(|error| error.code);
    ensure!(lost == Some(1105), "what others drew since: {lost:?}");
    for sql in ["BEGIN", draws] {
        other.expect(sql).await?;
    }
    let own = other.expect(asks).await?.scalar();
    ensure!(own.as_deref() == Some("102"), "its own: {own:?}");
    Ok(())
}

/// Session tracking that one session has set on a server's one connection is not another's, in a transaction either. Of
/// these four sessions some are of one worker, and share its connection.
async fn tracking_of_others(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[pool]\nmax_connections = 1\n").await?;
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        ones.push(Connection::open(&app(&proxy)).await?);
    }
    for _ in 0..2 {
        let mut other = Connection::open(&app(&proxy)).await?;
        other.expect("SET session_track_schema=OFF").await?;
        others.push(other);
    }
    let asks = "SELECT @@session_track_schema";
    for one in &mut ones {
        for other in &mut others {
            for in_transaction in [false, true, false] {
                let set = other.expect(asks).await?.scalar();
                ensure!(set.as_deref() == Some("0"), "what it set: {set:?}");
                if in_transaction {
                    one.expect("BEGIN").await?;
                }
                let own = one.expect(asks).await?.scalar();
                ensure!(
                    own.as_deref() == Some("1"),
                    "another's, in a transaction {in_transaction}: {own:?}"
                );
                if in_transaction {
                    one.expect("COMMIT").await?;
                }
            }
        }
    }
    Ok(())
}

/// A trigger is being made, and waits for a connection: whoever has one neither waits for it nor keeps it.
async fn code_that_waits(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[pool]\nmax_connections = 1\n").await?;
    let mut holder = Connection::open(&app(&proxy)).await?;
    let admin = Login {
        target: proxy.address(),
        ..harness::admin(0)
    };
    let mut maker = Connection::open(&admin.database("app")).await?;
    for sql in ["BEGIN", "INSERT INTO app.seen VALUES (1)"] {
        holder.expect(sql).await?;
    }
    let before = Exposition::of(&proxy).await?;
    let sql = "CREATE TRIGGER app.seen_x BEFORE INSERT ON app.seen FOR EACH ROW SET @seen_x = 1";
    let waiting = maker.expect(sql);
    let holding = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        holder.expect("INSERT INTO app.seen VALUES (2)").await?;
        holder.expect("COMMIT").await
    };
    let (made, held) = tokio::join!(waiting, holding);
    made?;
    held?;
    let moved = Moved {
        before,
        after: Exposition::of(&proxy).await?,
    };
    maker.expect("DROP TRIGGER app.seen_x").await?;
    moved.exactly(
        "millrace_pins_begun_total",
        &["reason=\"user_variable\""],
        0.0,
    )
}

/// The servers' state, as servers come and go; ready as long as one serves.
async fn servers(cluster: &Cluster) -> anyhow::Result<()> {
    // A login waits for servers, and clients here do not wait for long.
    let mut proxy = proxy(cluster, "[failover]\nhold_time = \"5s\"\n").await?;
    let series = |name: &str, port: u16| format!("{name}{{server=\"127.0.0.1:{port}\"}}");
    let exposition = Exposition::of(&proxy).await?;
    for server in cluster.servers() {
        let primary = server.port == cluster.primary().port;
        ensure!(
            exposition.value(&series("millrace_server_up", server.port)) == 1.0,
            "{server:?}"
        );
        let is_primary = exposition.value(&series("millrace_server_primary", server.port));
        ensure!(
            is_primary == f64::from(u8::from(primary)),
            "{server:?}: {is_primary}"
        );
        let lag = exposition
            .series
            .get(&series("millrace_server_lag_seconds", server.port));
        ensure!(
            primary || lag.is_some_and(|lag| *lag < 30.0),
            "{server:?}: lag {lag:?}"
        );
    }
    let replica = cluster.replicas()[0].clone();
    cluster.kill(&replica.name).await?;
    settled(&proxy, &series("millrace_server_up", replica.port), 0.0).await?;
    settled(&proxy, &series("millrace_server_fit", replica.port), 0.0).await?;
    expect_status(&proxy, "/readyz", 200).await?;
    for server in cluster.servers().iter().filter(|s| s.name != replica.name) {
        cluster.kill(&server.name).await?;
    }
    expect_status(&proxy, "/readyz", 503).await?;
    expect_status(&proxy, "/healthz", 200).await?;
    for server in cluster.servers() {
        settled(&proxy, &series("millrace_server_up", server.port), 0.0).await?;
    }
    let (connection, reply) = Connection::try_open(&app(&proxy)).await?;
    ensure!(
        connection.is_none() && reply.err().is_some(),
        "{:?}",
        reply.render()
    );
    let log = proxy.log();
    for server in cluster.servers() {
        let address = format!("127.0.0.1:{}", server.port);
        let said = log
            .lines()
            .any(|l| l.contains(&address) && l.contains("down"));
        ensure!(said, "the log does not say that {address} is down: {log}");
    }
    for server in cluster.servers() {
        cluster.start(&server.name).await?;
    }
    expect_status(&proxy, "/readyz", 200).await?;
    ensure!(proxy.alive(), "it has ended");
    let deadline = Instant::now() + FOLLOWED;
    while let Err(error) = Connection::open(&app(&proxy)).await {
        ensure!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Waits until the path answers so.
async fn expect_status(proxy: &Proxy, path: &str, status: u16) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOLLOWED;
    loop {
        let answer = proxy.http(path).await?;
        if answer.starts_with(&format!("HTTP/1.1 {status} ")) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{path} instead of {status}: {answer}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn http(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    // One that says nothing, and one that stops in the middle, hold nobody up.
    let silent = TcpStream::connect(("127.0.0.1", proxy.http_port)).await?;
    let mut half = TcpStream::connect(("127.0.0.1", proxy.http_port)).await?;
    half.write_all(b"GET /metr").await?;
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/nothing", 404),
        ("/", 404),
    ] {
        let answer = proxy.http(path).await?;
        let right = answer.starts_with(&format!("HTTP/1.1 {status} "));
        ensure!(
            right || (path == "/" && answer.starts_with("HTTP/1.1 200")),
            "{path}: {answer}"
        );
    }
    // What is no HTTP at all ends that connection only.
    let mut noise = TcpStream::connect(("127.0.0.1", proxy.http_port)).await?;
    noise.write_all(&[0xff; 4000]).await?;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), noise.read_to_end(&mut answer)).await;
    ensure!(read.is_ok(), "noise is kept");
    expect_status(&proxy, "/healthz", 200).await?;
    drop((silent, half));
    Ok(())
}

// --- The log ---

/// Everything that makes it say something.
async fn stir(cluster: &Cluster, proxy: &Proxy) -> anyhow::Result<()> {
    let mut connection = Connection::open(&app(proxy)).await?;
    for sql in [
        "SELECT 1",
        "SELEC \"quo\\ted\"",
        "BEGIN",
        "INSERT INTO app.seen VALUES (1)",
    ] {
        connection.query(sql).await;
    }
    let wrong = Login::new(proxy.address(), "nobody \"\n\\ at all", "not it");
    let _ = Connection::try_open(&wrong).await?;
    let mut noise = TcpStream::connect(("127.0.0.1", proxy.port)).await?;
    noise
        .write_all(b"\xff\xff\xff\xffGET / HTTP/1.1\r\n\r\n\"\\\n")
        .await?;
    drop(noise);
    let replica = cluster.replicas()[0].clone();
    let series = format!(
        "millrace_server_fit{{server=\"127.0.0.1:{}\"}}",
        replica.port
    );
    cluster.kill(&replica.name).await?;
    settled(proxy, &series, 0.0).await?;
    cluster.start(&replica.name).await?;
    settled(proxy, &series, 1.0).await
}

async fn json_log(cluster: &Cluster) -> anyhow::Result<()> {
    let mut proxy = proxy(cluster, "[log]\nlevel = \"trace\"\nformat = \"json\"\n").await?;
    stir(cluster, &proxy).await?;
    proxy.terminate(READY).await?;
    let text = std::fs::read_to_string(proxy.log_path())?;
    let mut levels = BTreeSet::new();
    for line in text.lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        for key in ["timestamp", "level", "target"] {
            ensure!(value[key].is_string(), "no {key}: {line}");
        }
        ensure!(value["fields"]["message"].is_string(), "no message: {line}");
        levels.insert(value["level"].as_str().unwrap_or_default().to_owned());
    }
    ensure!(levels.contains("INFO"), "{levels:?}");
    ensure!(text.contains("draining") && text.contains("down"), "{text}");
    Ok(())
}

/// Lines for people: a time, a level, no colours, no line breaks from outside.
async fn text_log(cluster: &Cluster) -> anyhow::Result<()> {
    let mut proxy = proxy(cluster, "[log]\nlevel = \"trace\"\n").await?;
    stir(cluster, &proxy).await?;
    proxy.terminate(READY).await?;
    let text = std::fs::read_to_string(proxy.log_path())?;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let time = words.next().unwrap_or_default();
        let level = words.next().unwrap_or_default();
        let timed = time.len() > 20 && time.starts_with("20") && time.ends_with('Z');
        let known = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level);
        ensure!(timed && known && !line.contains('\u{1b}'), "{line:?}");
    }
    Ok(())
}

/// A failed login is something that an operator can find.
async fn refusals_logged(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[log]\nlevel = \"debug\"\n").await?;
    let wrong = Login::new(proxy.address(), "looked_for", "not it");
    let _ = Connection::try_open(&wrong).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let log = proxy.log();
    let line = log.lines().find(|l| l.contains("looked_for"));
    let line = line.with_context(|| format!("nothing of it: {log}"))?;
    ensure!(line.contains("127.0.0.1"), "no address: {line}");
    Ok(())
}

// --- The suites ---

async fn watched(family: Family) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(family)).await?;
    let cluster = &cluster;
    let target = Target::Tcp(format!("127.0.0.1:{}", cluster.primary().port));
    let mut direct = Connection::open(&Login::new(target, APP.user, APP.password)).await?;
    direct.expect("CREATE TABLE app.seen (x INT)").await?;
    direct.quit().await;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let mut checks = Checks::new(format!("watched, {family}"));
    checks.run("format", format(cluster)).await;
    checks.run("moves", moves(cluster)).await;
    pins(&mut checks, cluster).await;
    checks.run("no pin", unpinned(cluster)).await;
    checks.run("waits", waits(cluster)).await;
    let asked = asked_after_others(cluster);
    checks.run("asked after others", asked).await;
    let drawn = drawn_by_defaults(cluster);
    checks.run("drawn by defaults", drawn).await;
    let tracking = tracking_of_others(cluster);
    checks.run("tracking of others", tracking).await;
    let waiting = code_that_waits(cluster);
    checks.run("stored code that waits", waiting).await;
    checks.run("http", http(cluster)).await;
    checks
        .run("refusals are logged", refusals_logged(cluster))
        .await;
    checks.run("JSON log", json_log(cluster)).await;
    checks.run("text log", text_log(cluster)).await;
    checks.run("servers", servers(cluster)).await;
    checks.finish()
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MariaDb, "watched") {
        return Ok(());
    }
    watched(Family::MariaDb).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MySql, "watched") {
        return Ok(());
    }
    watched(Family::MySql).await
}
