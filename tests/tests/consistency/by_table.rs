//! Reads that are held to their tables and keys: replicas that have nothing of what was written serve what it has not
//! touched, and nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, ClusterSpec};
use millrace_tests::checks::Checks;
use millrace_tests::differential::script::Family;
use millrace_tests::harness::{self, Proxy, ProxyOptions};
use millrace_tests::late_log::LateLog;
use millrace_tests::wire::{Connection, Login, Param};

/// A write, and what is read after it by another session.
struct Case {
    name: &'static str,
    /// Statements of one session through the proxy; those that begin with `!` are run on the primary directly.
    writes: &'static [&'static str],
    /// What is read, the value, and whether a replica may serve it that has nothing of this.
    reads: &'static [(&'static str, &'static str, bool)],
}

const SCHEMA: &[&str] = &[
    "CREATE TABLE app.f_a (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE app.f_b (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE app.f_free (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE app.f_parent (id INT PRIMARY KEY, n INT UNIQUE)",
    "CREATE TABLE app.f_child (id INT PRIMARY KEY, n INT, FOREIGN KEY (n) REFERENCES app.f_parent (n) \
     ON UPDATE CASCADE ON DELETE CASCADE)",
    "CREATE TABLE app.f_trig (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE app.f_echo (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE app.f_later (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE app.f_one (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE app.f_two (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE app.f_moved (id INT PRIMARY KEY, a INT, v INT)",
    "CREATE TRIGGER app.f_echoes AFTER UPDATE ON app.f_trig FOR EACH ROW \
     UPDATE app.f_echo SET v = NEW.v WHERE id = NEW.id",
    "CREATE VIEW app.f_view AS SELECT id, v FROM app.f_a",
    "CREATE FUNCTION app.f_of(wanted INT) RETURNS INT READS SQL DATA \
     RETURN (SELECT v FROM app.f_a WHERE id = wanted)",
    "CREATE PROCEDURE app.f_raise() UPDATE app.f_b SET v = v + 1 WHERE id = 9",
    "INSERT INTO app.f_a VALUES (1, 0), (2, 0), (3, 0), (4, 0)",
    "INSERT INTO app.f_b VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (9, 0)",
    "INSERT INTO app.f_free VALUES (1, 7)",
    "INSERT INTO app.f_parent VALUES (1, 10), (2, 20)",
    "INSERT INTO app.f_child VALUES (1, 10), (2, 20)",
    "INSERT INTO app.f_trig VALUES (1, 0)",
    "INSERT INTO app.f_echo VALUES (1, 0)",
    "INSERT INTO app.f_later VALUES (1, 0)",
    "INSERT INTO app.f_one VALUES (1, 1)",
    "INSERT INTO app.f_two VALUES (1, 2)",
    "INSERT INTO app.f_moved VALUES (1, 101, 0), (2, 102, 0)",
];

/// All tables of these have a key `id`.
const TABLES: [&str; 10] = [
    "f_a", "f_b", "f_free", "f_parent", "f_child", "f_trig", "f_echo", "f_later", "f_one",
    "f_moved",
];

const CASES: &[Case] = &[
    Case {
        name: "one key",
        writes: &["UPDATE f_a SET v = 1 WHERE id = 1"],
        reads: &[
            ("SELECT v FROM f_a WHERE id = 1", "1", false),
            ("SELECT v FROM f_a WHERE id = 2", "0", true),
            (
                "SELECT v FROM f_a WHERE id BETWEEN 2 AND 4 LIMIT 1",
                "0",
                true,
            ),
            ("SELECT SUM(v) FROM f_a", "1", false),
            ("SELECT v FROM f_free", "7", true),
            (
                "SELECT v FROM f_free WHERE id = 1 AND NOW() > '2000-01-01'",
                "7",
                true,
            ),
            ("SELECT v FROM f_view WHERE id = 1", "1", false),
            ("SELECT f_of(1)", "1", false),
            (
                "SELECT f_free.v FROM f_free JOIN f_a ON f_a.id = f_free.id WHERE f_a.v = 1",
                "7",
                false,
            ),
            (
                "SELECT v FROM f_free WHERE id = (SELECT v FROM f_a WHERE id = 1)",
                "7",
                false,
            ),
        ],
    },
    Case {
        name: "a numbered row",
        writes: &["INSERT INTO f_a (v) VALUES (5)"],
        reads: &[
            ("SELECT v FROM f_a WHERE id = 5", "5", false),
            ("SELECT MAX(id) FROM f_a WHERE id > 4", "5", false),
            ("SELECT v FROM f_a WHERE id = 3", "0", true),
        ],
    },
    Case {
        name: "a key that moves",
        writes: &["UPDATE f_b SET id = 100 WHERE id = 5"],
        reads: &[
            ("SELECT COUNT(*) FROM f_b WHERE id = 100", "1", false),
            ("SELECT COUNT(*) FROM f_b WHERE id = 5", "0", false),
        ],
    },
    Case {
        name: "a transaction",
        writes: &[
            "BEGIN",
            "UPDATE f_a SET v = 3 WHERE id = 3",
            "UPDATE f_b SET v = 3 WHERE id = 3",
            "COMMIT",
        ],
        reads: &[
            ("SELECT v FROM f_b WHERE id = 3", "3", false),
            ("SELECT v FROM f_a WHERE id = 3", "3", false),
            ("SELECT v FROM f_a WHERE id = 4", "0", true),
        ],
    },
    Case {
        name: "two tables at once",
        writes: &[
            "UPDATE f_a JOIN f_b ON f_a.id = f_b.id SET f_a.v = 4, f_b.v = 4 WHERE f_a.id = 4",
        ],
        reads: &[
            ("SELECT v FROM f_b WHERE id = 4", "4", false),
            ("SELECT v FROM f_a WHERE id = 4", "4", false),
        ],
    },
    Case {
        name: "a trigger",
        writes: &["UPDATE f_trig SET v = 8 WHERE id = 1"],
        reads: &[
            ("SELECT v FROM f_echo WHERE id = 1", "8", false),
            ("SELECT v FROM f_free", "7", true),
        ],
    },
    Case {
        name: "a cascade of an update",
        writes: &["UPDATE f_parent SET n = 11 WHERE id = 1"],
        reads: &[("SELECT n FROM f_child WHERE id = 1", "11", false)],
    },
    Case {
        name: "a cascade of a delete",
        writes: &["DELETE FROM f_parent WHERE id = 2"],
        reads: &[("SELECT COUNT(*) FROM f_child WHERE id = 2", "0", false)],
    },
    Case {
        name: "a routine",
        writes: &["CALL f_raise()"],
        reads: &[("SELECT v FROM f_b WHERE id = 9", "1", false)],
    },
    Case {
        name: "XA",
        writes: &[
            "XA START 'f'",
            "UPDATE f_b SET v = 6 WHERE id = 2",
            "XA END 'f'",
            "XA PREPARE 'f'",
            "XA COMMIT 'f'",
        ],
        reads: &[("SELECT v FROM f_b WHERE id = 2", "6", false)],
    },
    Case {
        name: "a column that moved without a word in the log",
        writes: &[
            "!SET sql_log_bin = 0",
            "!ALTER TABLE app.f_moved MODIFY id INT NOT NULL AFTER a",
            "!SET sql_log_bin = 1",
            "UPDATE f_moved SET v = 1 WHERE id = 1",
        ],
        reads: &[
            ("SELECT v FROM f_moved WHERE id = 1", "1", false),
            ("SELECT v FROM f_free", "7", true),
        ],
    },
    Case {
        name: "a trigger that was made past the proxy a moment ago",
        writes: &[
            "!CREATE TRIGGER app.f_just AFTER UPDATE ON app.f_later FOR EACH ROW \
             UPDATE app.f_echo SET v = NEW.v WHERE id = NEW.id",
            "UPDATE f_later SET v = 30 WHERE id = 1",
        ],
        reads: &[("SELECT v FROM f_echo WHERE id = 1", "30", false)],
    },
    Case {
        name: "RENAME swaps tables",
        writes: &[
            "!RENAME TABLE app.f_one TO app.f_x, app.f_two TO app.f_one, app.f_x TO app.f_two",
            "UPDATE f_one SET v = v WHERE id = 77",
        ],
        reads: &[("SELECT v FROM f_one WHERE id = 1", "2", false)],
    },
    Case {
        name: "DDL",
        writes: &["ALTER TABLE f_two ADD COLUMN w INT DEFAULT 12"],
        reads: &[("SELECT w FROM f_two WHERE id = 1", "12", false)],
    },
    Case {
        name: "TRUNCATE",
        writes: &["TRUNCATE TABLE f_two"],
        reads: &[("SELECT COUNT(*) FROM f_two WHERE id = 1", "0", false)],
    },
];

/// When the log comes, as a rule at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Log {
    AtOnce,
    /// Until then what was written is known from the writes themselves, if at all.
    Late,
}

/// How much later.
const LATE: Duration = Duration::from_millis(250);

/// Cases whose writes tell by themselves what they touch.
const TOLD_BY_TEXT: [&str; 2] = ["one key", "a numbered row"];

/// A proxy before servers of which none applies anything, and the primary's address as the proxy knows it.
struct Ground {
    cluster: Cluster,
    proxy: Proxy,
    primary: String,
    log: Log,
    _late: LateLog,
}

/// All cases, on replicas that apply nothing.
pub(crate) async fn run(family: Family, log: Log) -> anyhow::Result<()> {
    let options = ProxyOptions {
        log: "info",
        wait_limit: Duration::from_millis(20),
        routing: "freshness = \"table\"\nmax_lag = \"10h\"\n".to_owned(),
        // The forwarder reads what is said to the primary.
        extra: "[server_tls]\nmode = \"disabled\"\n".to_owned(),
        ..ProxyOptions::default()
    };
    let cluster = Cluster::up(ClusterSpec::new(family)).await?;
    let mut control = cluster.control(&cluster.primary().name).await?;
    for sql in SCHEMA {
        control.run(sql).await.with_context(|| (*sql).to_owned())?;
    }
    cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    control.close().await;
    let delay = if log == Log::Late {
        LATE
    } else {
        Duration::ZERO
    };
    let late = LateLog::start(cluster.primary().port, delay).await?;
    let primary = format!("127.0.0.1:{}", late.port);
    let replicas = cluster.replicas().into_iter();
    let mut addresses: Vec<String> = replicas
        .map(|server| format!("127.0.0.1:{}", server.port))
        .collect();
    addresses.insert(0, primary.clone());
    let proxy = Proxy::start(&addresses, &options).await?;
    let ground = Ground {
        cluster,
        proxy,
        primary,
        log,
        _late: late,
    };
    let login = Login::new(ground.proxy.address(), APP.user, APP.password).database("app");
    // Until the log is followed, and it is known what all servers have.
    let mut first = Connection::open(&login).await?;
    for _ in 0..20 {
        first.expect("SELECT v FROM f_free").await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    first.quit().await;
    ground.name_tables().await?;
    for server in ground.cluster.replicas() {
        let cluster = &ground.cluster;
        cluster.delay_applier(&server.name, 36_000).await?;
    }
    let mut checks = Checks::new(format!("by table, {family}, the log comes {log:?}"));
    let (first, others) = CASES.split_at(TOLD_BY_TEXT.len());
    for case in first {
        checks.run(case.name, check(&ground, &login, case)).await;
    }
    let after = failed_before(&ground, &login);
    checks.run("a write after one that failed", after).await;
    for case in others {
        checks.run(case.name, check(&ground, &login, case)).await;
    }
    checks.finish()
}

impl Ground {
    /// Has the log name each table, and waits until its rows are told apart by key: until definitions were read after that.
    async fn name_tables(&self) -> anyhow::Result<()> {
        let before = self.definitions_read().await?;
        let mut control = self.cluster.control(&self.cluster.primary().name).await?;
        for table in TABLES {
            control
                .run(&format!("INSERT INTO app.{table} (id) VALUES (-1)"))
                .await?;
            control
                .run(&format!("DELETE FROM app.{table} WHERE id = -1"))
                .await?;
        }
        control.close().await;
        self.cluster
            .wait_replicas_caught_up(Duration::from_secs(20))
            .await?;
        tokio::time::sleep(2 * LATE).await;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.definitions_read().await? <= before {
            ensure!(Instant::now() < deadline, "definitions are not read again");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(2 * LATE).await;
        Ok(())
    }

    async fn definitions_read(&self) -> anyhow::Result<u64> {
        let metrics = self.proxy.metrics().await?;
        let name = "millrace_cache_definitions_read_total ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        Ok(value.context("not told")?.trim().parse()?)
    }
}

/// What a write would have touched that has changed nothing says nothing of the next one: text, then prepared.
async fn failed_before(ground: &Ground, login: &Login) -> anyhow::Result<()> {
    tokio::time::sleep(2 * LATE).await;
    let mut writer = Connection::open(login).await?;
    let prepared = writer
        .prepare(b"UPDATE f_b SET v = ? WHERE id = 1")
        .await
        .statement_id();
    let (id, _) = prepared.context("not prepared")?;
    for (turn, vain) in [
        "UPDATE f_a SET v = 9 WHERE id = 1 AND v = 77",
        "INSERT INTO f_a (id, v) VALUES (1, 9)",
    ]
    .into_iter()
    .enumerate()
    {
        // It finds no row, or one that is in its way.
        let _ = writer.query(vain).await;
        let value = turn as i64 + 51;
        let reply = writer.execute(id, 0, &[Param::int(value)], turn == 0).await;
        ensure!(reply.err().is_none(), "{reply:?}");
        let sql = "SELECT v FROM f_b WHERE id = 1";
        let mut reader = Connection::open(login).await?;
        read(ground, &mut reader, sql, &value.to_string(), None).await?;
        reader.quit().await;
        // And what it does touch is known as well; after an error the primary is asked.
        let mut reader = Connection::open(login).await?;
        let sql = "SELECT v FROM f_b WHERE id = 2";
        read(ground, &mut reader, sql, "0", (turn == 0).then_some(true)).await?;
        reader.quit().await;
    }
    writer.expect("UPDATE f_b SET v = 0 WHERE id = 1").await?;
    writer.quit().await;
    Ok(())
}

async fn check(ground: &Ground, login: &Login, case: &Case) -> anyhow::Result<()> {
    let is_told = ground.log == Log::AtOnce || TOLD_BY_TEXT.contains(&case.name);
    if ground.log == Log::Late {
        // What was before is told.
        tokio::time::sleep(2 * LATE).await;
    }
    let primary = ground.cluster.primary().port;
    let mut admin = Connection::open(&harness::admin(primary)).await?;
    let mut writer = Connection::open(login).await?;
    for sql in case.writes {
        match sql.strip_prefix('!') {
            Some(sql) => admin.expect(sql).await?,
            None => writer.expect(sql).await?,
        };
    }
    let mut reader = Connection::open(login).await?;
    // At once, and when the log has told: both times what is read is what was written.
    for (sql, wanted, may_be_replica) in case.reads {
        read(ground, &mut reader, sql, wanted, None).await?;
        tokio::time::sleep(Duration::from_millis(30)).await;
        // The session that has written sees no less than the others.
        read(ground, &mut writer, sql, wanted, None).await?;
        let mut other = Connection::open(login).await?;
        read(
            ground,
            &mut other,
            sql,
            wanted,
            is_told.then_some(*may_be_replica),
        )
        .await?;
        other.quit().await;
    }
    reader.quit().await;
    writer.quit().await;
    admin.quit().await;
    Ok(())
}

/// Reads, and looks where that was done, if it matters.
async fn read(
    ground: &Ground,
    client: &mut Connection,
    sql: &str,
    wanted: &str,
    by_replica: Option<bool>,
) -> anyhow::Result<()> {
    let found = client.expect(sql).await?.scalar();
    ensure!(
        found.as_deref() == Some(wanted),
        "{sql}: {found:?} where it must be {wanted}"
    );
    let Some(by_replica) = by_replica else {
        return Ok(());
    };
    let route = client.expect("SHOW ROUTE").await?.rows();
    let went = route.first().and_then(|row| row.get(1).cloned().flatten());
    // With the cache on.
    if went
        .as_deref()
        .is_some_and(|went| went.starts_with("memory"))
    {
        return Ok(());
    }
    let is_replica = went.as_deref() != Some(ground.primary.as_str());
    ensure!(
        is_replica == by_replica,
        "{sql}: it was to be read at a replica: {by_replica}; {route:?}"
    );
    Ok(())
}
