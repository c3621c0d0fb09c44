//! Reads keep what their level promises while replicas are late, stopped, restarted, paused and
//! promoted: many clients write and read counters, and every history is checked.
//!
//! `MILLRACE_CONSISTENCY_SECONDS` says how long (default 30), `MILLRACE_CONSISTENCY_SEED` which
//! faults come when.

#[path = "consistency/by_table.rs"]
mod by_table;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::{APP, Cluster, ClusterSpec, Topology, skip_unless, skip_unless_topology};
use millrace_tests::differential::script::Family;
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::histories::{History, Level, Read, Violation};
use millrace_tests::wire::{Connection, Login, Param, Target};
use tokio::task::LocalSet;

const LEVELS: [Level; 4] = [
    Level::Eventual,
    Level::Session,
    Level::Instance,
    Level::Global,
];
/// Writers through the proxy, and as many that go to the primary by themselves.
const WRITERS: usize = 3;
/// Of each level and protocol.
const READERS: usize = 3;
const KEYS: usize = 2 * WRITERS + LEVELS.len() * 2 * READERS;

/// What is known of all keys at this moment. One thread: nothing happens between two looks.
struct Board {
    /// The highest value that was sent.
    sent: Vec<Cell<u64>>,
    /// The highest that was acknowledged through the proxy.
    here: Vec<Cell<u64>>,
    /// The highest that was acknowledged anywhere.
    anywhere: Vec<Cell<u64>>,
    stop: Cell<bool>,
    /// Where the primary listens.
    primary: Cell<u16>,
    errors: Cell<u64>,
}

impl Board {
    fn new(primary: u16) -> Self {
        let zeros = || (0..KEYS).map(|_| Cell::new(0)).collect();
        Board {
            sent: zeros(),
            here: zeros(),
            anywhere: zeros(),
            stop: Cell::new(false),
            primary: Cell::new(primary),
            errors: Cell::new(0),
        }
    }

    fn all(list: &[Cell<u64>]) -> Vec<u64> {
        list.iter().map(Cell::get).collect()
    }
}

fn raise(cell: &Cell<u64>, to: u64) {
    cell.set(cell.get().max(to));
}

/// Writes the next value of a key. False where the connection is of no more use.
async fn write(board: &Board, connection: &mut Connection, key: usize, through: bool) -> bool {
    let value = board.sent[key].get() + 1;
    board.sent[key].set(value);
    let sql = format!("UPDATE app.register SET v={value} WHERE k={key}");
    match connection.expect(&sql).await {
        Ok(_) => {
            raise(&board.anywhere[key], value);
            if through {
                raise(&board.here[key], value);
            }
            true
        }
        // What became of it is not known: the next value is higher in any case.
        Err(error) => {
            if board.errors.get() < 10 {
                eprintln!("a write, through the proxy: {through}: {error:#}");
            }
            false
        }
    }
}

async fn writer(board: Rc<Board>, login: Option<Login>, key: usize) {
    while !board.stop.get() {
        let through = login.is_some();
        let login = login.clone().unwrap_or_else(|| {
            let address = format!("127.0.0.1:{}", board.primary.get());
            Login::new(Target::Tcp(address), APP.user, APP.password)
        });
        if let Ok(mut connection) = Connection::open(&login).await {
            while !board.stop.get() && write(&board, &mut connection, key, through).await {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The same counters: written, by a trigger, by a foreign key's cascade. Whole, and by key.
const READS: [&str; 6] = [
    "SELECT k, v FROM app.register WHERE k >= ?",
    "SELECT k, v FROM app.register WHERE k = ?",
    "SELECT k, v FROM app.echo WHERE k = ?",
    "SELECT k, v FROM app.follows WHERE k = ?",
    "SELECT k, v FROM app.echo WHERE k >= ? AND v >= 0",
    "SELECT k, v FROM app.follows WHERE k >= ? AND v >= 0",
];

/// The tables of [`READS`].
const TABLES: [&str; 4] = [
    "CREATE TABLE app.register (k INT PRIMARY KEY, v BIGINT, UNIQUE KEY kv (k, v))",
    "CREATE TABLE app.echo (k INT PRIMARY KEY, v BIGINT)",
    "CREATE TABLE app.follows (k INT PRIMARY KEY, r INT, v BIGINT, \
     FOREIGN KEY (r, v) REFERENCES app.register (k, v) ON UPDATE CASCADE)",
    "CREATE TRIGGER app.echoes AFTER UPDATE ON app.register FOR EACH ROW \
     UPDATE app.echo SET v = NEW.v WHERE k = NEW.k",
];

async fn reader(
    board: Rc<Board>,
    login: Login,
    level: Level,
    prepared: bool,
    key: usize,
) -> History {
    let mut all = History::default();
    while !board.stop.get() {
        let mut history = History::default();
        if let Err(error) = session(&board, &login, level, prepared, key, &mut history).await {
            board.errors.set(board.errors.get() + 1);
            if board.errors.get() <= 10 {
                eprintln!("{level:?}: {error:#}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        all.merge(history);
    }
    all
}

async fn session(
    board: &Board,
    login: &Login,
    level: Level,
    prepared: bool,
    key: usize,
    history: &mut History,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(login).await?;
    let set = format!("SET @@millrace_consistency = '{}'", level.name());
    connection.expect(&set).await?;
    let mut ids = Vec::new();
    for read in READS {
        let statement = connection.prepare(read.as_bytes()).await.statement_id();
        ids.push((statement.context("not prepared")?.0, true));
    }
    let mut own = vec![0; KEYS];
    let mut turn = key as u64;
    while !board.stop.get() {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if (turn >> 33).is_multiple_of(8) {
            ensure!(
                write(board, &mut connection, key, true).await,
                "a write failed"
            );
            own[key] = board.anywhere[key].get();
        }
        let mut read = Read {
            values: vec![None; KEYS],
            acknowledged_here: Board::all(&board.here),
            acknowledged: Board::all(&board.anywhere),
            own: own.clone(),
        };
        let which = (turn >> 45) as usize % READS.len();
        let is_whole = READS[which].contains(">= ?");
        let wanted = match is_whole {
            true => 0,
            false => (turn >> 50) as usize % KEYS,
        };
        let reply = match prepared {
            true => {
                let (id, first) = &mut ids[which];
                let first = std::mem::take(first);
                connection
                    .execute(*id, 0, &[Param::int(wanted as i64)], first)
                    .await
            }
            false => {
                let text = READS[which].replacen('?', &wanted.to_string(), 1);
                connection.query(text).await
            }
        };
        if let Some(error) = reply.err() {
            bail!("a read failed: {}", error.message);
        }
        if let Some(why) = reply.broken() {
            bail!("a read broke off: {why}");
        }
        let rows = reply.rows();
        let expected = if is_whole { KEYS } else { 1 };
        ensure!(rows.len() == expected, "{} rows", rows.len());
        for row in rows {
            let numbers = row.into_iter().map(|value| {
                let value = value.context("no value")?;
                Ok(value.parse::<u64>()?)
            });
            let numbers = numbers.collect::<anyhow::Result<Vec<u64>>>()?;
            let [key, value] = numbers[..] else {
                bail!("{} columns", numbers.len());
            };
            read.values[usize::try_from(key)?] = Some(value);
        }
        history.check_future(&Board::all(&board.sent), &read.values);
        history.add(&read);
        // Some hurry, some take their time.
        if key.is_multiple_of(3) {
            tokio::time::sleep(Duration::from_millis((turn >> 40) % 40)).await;
        }
    }
    connection.quit().await;
    Ok(())
}

/// One fault after the other, on one replica or the other.
async fn faults(cluster: &Cluster, board: &Board, until: Instant, seed: u64) -> anyhow::Result<()> {
    match cluster.topology() {
        Topology::Galera => galera_faults(cluster, until, seed).await,
        _ => replica_faults(cluster, board, until, seed).await,
    }
}

/// Nodes that take no writes fall behind (the others are told not to wait for them), leave and come back.
async fn galera_faults(cluster: &Cluster, until: Instant, seed: u64) -> anyhow::Result<()> {
    let rest = |ms| tokio::time::sleep(Duration::from_millis(ms));
    let mut turn = seed as usize;
    while Instant::now() < until {
        turn += 1;
        let nodes = cluster.replicas();
        let node = &nodes[turn % nodes.len()].name;
        if turn.is_multiple_of(5) {
            cluster.stop(node).await?;
            rest(500).await;
            cluster.start(node).await?;
        } else {
            let mut control = cluster.control(node).await?;
            control.run("SET GLOBAL wsrep_desync = ON").await?;
            control.run("FLUSH TABLES WITH READ LOCK").await?;
            rest(50 + 150 * (turn as u64 % 5)).await;
            control.run("UNLOCK TABLES").await?;
            control.run("SET GLOBAL wsrep_desync = OFF").await?;
            control.close().await;
        }
        rest(500).await;
    }
    Ok(())
}

async fn replica_faults(
    cluster: &Cluster,
    board: &Board,
    until: Instant,
    seed: u64,
) -> anyhow::Result<()> {
    // Without GTIDs the primary stays where it is.
    let faults = if cluster.has_gtids() { 6 } else { 5 };
    let mut dice = seed | 1;
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    let rest = |ms| tokio::time::sleep(Duration::from_millis(ms));
    while Instant::now() < until {
        let replicas = cluster.replicas();
        let replica = &replicas[roll(replicas.len() as u64) as usize].name;
        match roll(faults) {
            0 => {
                cluster.delay_applier(replica, 1).await?;
                rest(2_000).await;
                cluster.delay_applier(replica, 0).await?;
            }
            1 => {
                cluster.stop_applier(replica).await?;
                rest(500 + roll(1_500)).await;
                cluster.start_applier(replica).await?;
            }
            2 => {
                cluster.stop(replica).await?;
                cluster.start(replica).await?;
            }
            3 => {
                cluster.kill(replica).await?;
                rest(300).await;
                cluster.start(replica).await?;
            }
            4 => {
                cluster.pause(replica).await?;
                rest(500 + roll(1_500)).await;
                cluster.resume(replica).await?;
            }
            _ => {
                cluster.promote(replica).await?;
                board.primary.set(cluster.primary().port);
            }
        }
        rest(500 + roll(1_500)).await;
    }
    Ok(())
}

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn run(spec: ClusterSpec) -> anyhow::Result<()> {
    let family = spec.family();
    let seconds = number("MILLRACE_CONSISTENCY_SECONDS", 30);
    let seed = number("MILLRACE_CONSISTENCY_SEED", 0x5eed);
    let options = ProxyOptions {
        log: "info",
        pool_max: 8,
        ..ProxyOptions::default()
    };
    let mut stage = Stage {
        family,
        proxy: None,
        cluster: Cluster::up(spec).await?,
        address: Target::Tcp(String::new()),
    };
    stage.start_proxy(&options).await?;
    let cluster = &stage.cluster;
    let mut control = cluster.control(&cluster.primary().name).await?;
    for table in TABLES {
        control.run(table).await?;
    }
    for key in 0..KEYS {
        for (table, values) in [
            ("register", format!("{key}, 0")),
            ("echo", format!("{key}, 0")),
            ("follows", format!("{key}, {key}, 0")),
        ] {
            let sql = format!("INSERT INTO app.{table} VALUES ({values})");
            control.run(&sql).await?;
        }
    }
    control.close().await;
    cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    let board = Rc::new(Board::new(cluster.primary().port));
    let login = Login::new(stage.address.clone(), APP.user, APP.password);
    let until = Instant::now() + Duration::from_secs(seconds);
    let local = LocalSet::new();
    for key in 0..2 * WRITERS {
        let through = (key < WRITERS).then(|| login.clone());
        local.spawn_local(writer(board.clone(), through, key));
    }
    let mut readers = Vec::new();
    let mut key = 2 * WRITERS;
    for level in LEVELS {
        for prepared in [false, true] {
            for _ in 0..READERS {
                let reading = reader(board.clone(), login.clone(), level, prepared, key);
                readers.push((level, local.spawn_local(reading)));
                key += 1;
            }
        }
    }
    let histories = local
        .run_until(async {
            let outcome = faults(cluster, &board, until, seed).await;
            board.stop.set(true);
            let mut histories: BTreeMap<Level, History> = BTreeMap::new();
            for (level, reader) in readers {
                let history = tokio::time::timeout(Duration::from_secs(30), reader)
                    .await
                    .with_context(|| format!("a reader of level {level:?} stands still"))??;
                histories.entry(level).or_default().merge(history);
            }
            outcome.map(|()| histories)
        })
        .await?;
    println!("{family:?}, seed {seed:#x}: {} errors", board.errors.get());
    let reads: u64 = histories.values().map(|history| history.reads).sum();
    ensure!(
        board.errors.get() < reads / 20,
        "{} errors beside {reads} reads",
        board.errors.get()
    );
    if harness::is_cached() {
        let proxy = stage.proxy.as_ref().context("no proxy")?;
        let metrics = proxy.metrics().await?;
        let hits = metrics
            .lines()
            .find_map(|line| line.strip_prefix("millrace_cache_hits_total "));
        let hits: u64 = hits.context("no hits are counted")?.trim().parse()?;
        println!("  {hits} answers out of memory");
    }
    let mut wrong = Vec::new();
    for (level, history) in &histories {
        println!("  {level:?}: {} reads, {:?}", history.reads, history.broken);
        ensure!(history.reads > 20 * seconds, "{level:?} hardly reads");
        for violation in history.violations(*level) {
            wrong.push(format!("{level:?}: {violation}"));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    // With no promise there is something to see: the others would be caught if they broke theirs.
    let eventual = &histories[&Level::Eventual];
    for what in [
        Violation::OwnWriteLost,
        Violation::WentBack,
        Violation::StaleHere,
        Violation::Stale,
    ] {
        ensure!(
            eventual.broken.contains_key(&what),
            "no {what:?} without a promise: the faults were too mild to prove anything"
        );
    }
    Ok(())
}

async fn test(family: Family) -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(family, "consistency") {
        return Ok(());
    }
    run(ClusterSpec::new(family)).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    test(Family::MySql).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    test(Family::MariaDb).await
}

#[tokio::test]
async fn galera() -> anyhow::Result<()> {
    let family = Family::MariaDb;
    if harness::direct_only() || !skip_unless_topology(family, Topology::Galera, "consistency") {
        return Ok(());
    }
    let mut spec = ClusterSpec::new(family);
    spec.topology = Topology::Galera;
    run(spec).await
}

#[tokio::test]
async fn without_gtids() -> anyhow::Result<()> {
    let family = Family::MySql;
    if harness::direct_only() || !skip_unless(family, "consistency without GTIDs") {
        return Ok(());
    }
    let mut spec = ClusterSpec::new(family);
    spec.gtid = false;
    run(spec).await
}

async fn by_table(family: Family) -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(family, "by table") {
        return Ok(());
    }
    by_table::run(family, by_table::Log::AtOnce).await?;
    by_table::run(family, by_table::Log::Late).await
}

#[tokio::test]
async fn by_table_mysql() -> anyhow::Result<()> {
    by_table(Family::MySql).await
}

#[tokio::test]
async fn by_table_mariadb() -> anyhow::Result<()> {
    by_table(Family::MariaDb).await
}
