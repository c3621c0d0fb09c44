//! mysql_async: `query` is the text protocol, `exec` the binary one.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use mysql_async::prelude::*;
use mysql_async::{
    Compression, Conn, Error, IsolationLevel, Opts, OptsBuilder, Params, Pool, PoolConstraints,
    PoolOpts, SslOpts, TxOpts, Value,
};

use crate::check::{Report, Settings, Skip, eventually};
use crate::equal;

pub async fn run(s: &Settings, report: &mut Report) {
    report
        .group("mysql_async: connect and identify", connect_and_identify(s))
        .await;
    report
        .group("mysql_async: wrong logins", wrong_logins(s))
        .await;
    report.group("mysql_async: schema", schema(s)).await;
    report
        .group("mysql_async: own writes at once", own_writes(s))
        .await;
    report
        .group("mysql_async: transactions", transactions(s))
        .await;
    report
        .group("mysql_async: fifty tasks on a pool of twenty", crowd(s))
        .await;
    report
        .group("mysql_async: prepared statements and DDL", prepared(s))
        .await;
    report.group("mysql_async: types", types(s)).await;
    report
        .group("mysql_async: results and procedures", results(s))
        .await;
    report
        .group("mysql_async: load data local", load_data(s))
        .await;
    report.group("mysql_async: big blobs", blobs(s)).await;
    report
        .group("mysql_async: reset and change user", reset(s))
        .await;
    report.group("mysql_async: streaming", streaming(s)).await;
    report.group("mysql_async: kill", kill(s)).await;
    report
        .group("mysql_async: compression", compression(s))
        .await;
    report.group("mysql_async: clean up", clean_up(s)).await;
}

fn opts(s: &Settings) -> OptsBuilder {
    let o = OptsBuilder::default()
        .ip_or_hostname(s.host.clone())
        .tcp_port(s.port)
        .user(Some(s.user.clone()))
        .pass(Some(s.password.clone()))
        .db_name(Some(s.db.clone()))
        .socket(s.socket.clone())
        // Otherwise the driver moves over to a socket the server names.
        .prefer_socket(false);
    let tls = SslOpts::default()
        .with_danger_accept_invalid_certs(true)
        .with_danger_skip_domain_validation(true);
    if s.tls { o.ssl_opts(tls) } else { o }
}

async fn connect(o: OptsBuilder) -> Result<Conn, Error> {
    Conn::new(Opts::from(o)).await
}

/// The server's error number, 0 for any other outcome.
fn code<T>(outcome: Result<T, Error>) -> u16 {
    match outcome {
        Err(Error::Server(e)) => e.code,
        _ => 0,
    }
}

async fn one<T: FromRow + Send + 'static>(c: &mut Conn, sql: impl AsRef<str>) -> Result<T> {
    let sql = sql.as_ref();
    c.query_first(sql)
        .await
        .context(sql.to_owned())?
        .context("no row")
}

async fn one_exec<T: FromRow + Send + 'static>(
    c: &mut Conn,
    sql: &str,
    params: impl Into<Params> + Send,
) -> Result<T> {
    c.exec_first(sql, params.into())
        .await
        .context(sql.to_owned())?
        .context("no row")
}

async fn connect_and_identify(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s).db_name(None::<String>)).await?;
    let version: String = one(&mut c, "SELECT VERSION()").await?;
    equal!(version.contains("MariaDB"), !s.mysql);
    let id: u32 = one(&mut c, "SELECT CONNECTION_ID()").await?;
    equal!(id, c.id());
    let (v, db): (u32, Option<String>) = one_exec(&mut c, "SELECT ?, DATABASE()", (42,)).await?;
    equal!((v, db), (42, None));
    c.ping().await?;
    c.disconnect().await?;
    Ok(())
}

async fn wrong_logins(s: &Settings) -> Result<()> {
    let bare = || opts(s).db_name(None::<String>);
    equal!(code(connect(bare().pass(Some("wrong"))).await), 1045);
    // For a user that does not exist MySQL feigns any of its plugins; the driver has not all of them.
    let nobody = connect(bare().user(Some("nobody_of_this_name"))).await;
    ensure!(nobody.is_err(), "a user that does not exist");
    equal!(
        code(connect(bare().db_name(Some("no_such_database_here"))).await),
        1049
    );
    Ok(())
}

async fn schema(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s).db_name(None::<String>)).await?;
    c.query_drop(format!("DROP DATABASE IF EXISTS {}", s.db))
        .await?;
    c.query_drop(format!("CREATE DATABASE {} CHARACTER SET utf8mb4", s.db))
        .await?;
    c.query_drop(format!("USE {}", s.db)).await?;
    c.query_drop("CREATE TABLE users (id INT AUTO_INCREMENT PRIMARY KEY, email VARCHAR(80) UNIQUE, name VARCHAR(50))").await?;
    c.query_drop("CREATE TABLE nums (n INT PRIMARY KEY)")
        .await?;
    c.exec_batch("INSERT INTO nums VALUES (?)", (0..1000).map(|n| (n,)))
        .await?;
    equal!(one::<u64>(&mut c, "SELECT COUNT(*) FROM nums").await?, 1000);
    let tables: Vec<String> = c.query("SHOW TABLES").await?;
    equal!(tables, ["nums", "users"]);
    c.disconnect().await?;
    let mut c = connect(opts(s)).await?;
    equal!(one::<String>(&mut c, "SELECT DATABASE()").await?, s.db);
    Ok(())
}

async fn own_writes(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    c.query_drop("CREATE TABLE own (id INT AUTO_INCREMENT PRIMARY KEY, v INT)")
        .await?;
    for i in 0..60i32 {
        c.exec_drop("INSERT INTO own (v) VALUES (?)", (i,)).await?;
        let id = c.last_insert_id().context("no generated id")?;
        equal!(
            one_exec::<i32>(&mut c, "SELECT v FROM own WHERE id = ?", (id,)).await?,
            i
        );
        equal!(one::<u64>(&mut c, "SELECT LAST_INSERT_ID()").await?, id);
        c.query_drop(format!("UPDATE own SET v = v + 100 WHERE id = {id}"))
            .await?;
        equal!(c.affected_rows(), 1);
        equal!(
            one::<i32>(&mut c, format!("SELECT v FROM own WHERE id = {id}")).await?,
            i + 100
        );
    }
    c.exec_drop("DELETE FROM own WHERE id <= ?", (20,)).await?;
    equal!(one::<u64>(&mut c, "SELECT COUNT(*) FROM own").await?, 40);
    Ok(())
}

async fn transactions(s: &Settings) -> Result<()> {
    let (mut c, mut other) = (connect(opts(s)).await?, connect(opts(s)).await?);
    c.query_drop("CREATE TABLE tx (id INT PRIMARY KEY, v INT)")
        .await?;
    let mut tx = c.start_transaction(TxOpts::default()).await?;
    tx.query_drop("INSERT INTO tx VALUES (1, 10)").await?;
    equal!(
        tx.query_first::<i32, _>("SELECT v FROM tx").await?,
        Some(10)
    );
    tx.rollback().await?;
    equal!(one::<u32>(&mut c, "SELECT COUNT(*) FROM tx").await?, 0);
    let mut tx = c.start_transaction(TxOpts::default()).await?;
    tx.exec_drop("INSERT INTO tx VALUES (?, ?), (?, ?)", (1, 10, 2, 20))
        .await?;
    equal!(
        one::<u32>(&mut other, "SELECT COUNT(*) FROM tx FOR UPDATE SKIP LOCKED").await?,
        0
    );
    tx.commit().await?;
    equal!(
        one::<u32>(&mut other, "SELECT COUNT(*) FROM tx FOR UPDATE").await?,
        2
    );
    let mut read = TxOpts::default();
    read.with_readonly(Some(true))
        .with_isolation_level(Some(IsolationLevel::ReadCommitted));
    let mut tx = c.start_transaction(read).await?;
    equal!(
        tx.query_first::<u32, _>("SELECT COUNT(*) FROM tx").await?,
        Some(2)
    );
    equal!(
        code(tx.query_drop("INSERT INTO tx VALUES (3, 3)").await),
        1792
    );
    tx.rollback().await?;
    // Dropped without an end: the pool or the driver must roll it back.
    let pool = Pool::new(opts(s));
    let mut tx = pool.start_transaction(TxOpts::default()).await?;
    tx.query_drop("INSERT INTO tx VALUES (7, 7)").await?;
    drop(tx);
    let mut c = pool.get_conn().await?;
    equal!(
        one::<u32>(&mut c, "SELECT COUNT(*) FROM tx WHERE id = 7 FOR UPDATE").await?,
        0
    );
    drop(c);
    pool.disconnect().await?;
    Ok(())
}

async fn crowd(s: &Settings) -> Result<()> {
    let limits = PoolConstraints::new(5, 20).context("limits")?;
    let pool = Pool::new(opts(s).pool_opts(PoolOpts::default().with_constraints(limits)));
    let mut c = pool.get_conn().await?;
    c.query_drop("CREATE TABLE crowd (id INT AUTO_INCREMENT PRIMARY KEY, who INT, n INT)")
        .await?;
    c.query_drop("CREATE TABLE tally (id INT PRIMARY KEY, total INT)")
        .await?;
    c.query_drop("INSERT INTO tally VALUES (1, 0)").await?;
    drop(c);
    let mut tasks = tokio::task::JoinSet::new();
    for who in 0..50u32 {
        let pool = pool.clone();
        tasks.spawn(async move { one_of_a_crowd(&pool, who).await });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let mut c = pool.get_conn().await?;
    equal!(
        one::<u32>(&mut c, "SELECT total FROM tally FOR UPDATE").await?,
        200
    );
    equal!(
        one::<u32>(&mut c, "SELECT COUNT(*) FROM crowd FOR UPDATE").await?,
        600
    );
    drop(c);
    pool.disconnect().await?;
    Ok(())
}

async fn one_of_a_crowd(pool: &Pool, who: u32) -> Result<()> {
    for n in 0..12u32 {
        let mut c = pool.get_conn().await?;
        // The pool resets a connection that comes back.
        equal!(one::<Option<String>>(&mut c, "SELECT @mark").await?, None);
        let mark = format!("{who}-{n}");
        c.exec_drop("SET @mark = ?", (&mark,)).await?;
        c.exec_drop("INSERT INTO crowd (who, n) VALUES (?, ?)", (who, n))
            .await?;
        let id = c.last_insert_id().context("no generated id")?;
        let row: (u32, u32) =
            one_exec(&mut c, "SELECT who, n FROM crowd WHERE id = ?", (id,)).await?;
        equal!(row, (who, n));
        let state: (u64, String) = one(&mut c, "SELECT LAST_INSERT_ID(), @mark").await?;
        equal!(state, (id, mark));
        if n % 3 == 0 {
            let mut tx = c.start_transaction(TxOpts::default()).await?;
            tx.query_drop("UPDATE tally SET total = total + 1").await?;
            tx.commit().await?;
        }
    }
    Ok(())
}

async fn prepared(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s).stmt_cache_size(40)).await?;
    c.query_drop("CREATE TABLE prep (id INT PRIMARY KEY, v VARCHAR(20))")
        .await?;
    let put = c.prep("INSERT INTO prep (id, v) VALUES (?, ?)").await?;
    let get = c.prep("SELECT * FROM prep WHERE id = :id").await?;
    for i in 0..40 {
        c.exec_drop(&put, (i, format!("v{i}"))).await?;
        let row: Option<(i32, String)> = c.exec_first(&get, params! { "id" => i }).await?;
        equal!(row, Some((i, format!("v{i}"))));
    }
    c.query_drop("ALTER TABLE prep ADD COLUMN w INT DEFAULT 7")
        .await?;
    let row: Option<(i32, String, i32)> = c.exec_first(&get, params! { "id" => 3 }).await?;
    equal!(row, Some((3, "v3".into(), 7)));
    c.exec_drop(&put, (100, "late")).await?;
    c.query_drop("ALTER TABLE prep DROP COLUMN w").await?;
    let row: Option<(i32, String)> = c.exec_first(&get, params! { "id" => 100 }).await?;
    equal!(row, Some((100, "late".into())));
    c.query_drop("DROP TABLE prep").await?;
    equal!(code(c.exec_drop(&get, params! { "id" => 3 }).await), 1146);
    c.close(get).await?;
    // More texts than the driver keeps: it closes the oldest.
    for i in 0..120u32 {
        equal!(
            one_exec::<u32>(&mut c, &format!("SELECT CAST(? AS UNSIGNED) + {i}"), (1,)).await?,
            1 + i
        );
    }
    equal!(
        code(c.prep("SELECT * FROM nowhere WHERE x = ?").await),
        1146
    );
    equal!(code(c.prep("SELEC ?").await), 1064);
    // A handle (the driver keeps one for each text) stays with the database it was prepared in;
    // a new text is prepared in the new one.
    let count = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?";
    equal!(one_exec::<u32>(&mut c, count, ("nums",)).await?, 1);
    let nums = "SELECT n FROM nums WHERE n = ?";
    equal!(one_exec::<u32>(&mut c, nums, (7,)).await?, 7);
    c.query_drop("USE information_schema").await?;
    equal!(one_exec::<u32>(&mut c, count, ("nums",)).await?, 1);
    equal!(one_exec::<u32>(&mut c, nums, (8,)).await?, 8);
    equal!(
        one_exec::<u32>(&mut c, &format!("{count} "), ("nums",)).await?,
        0
    );
    ensure!(
        code(c.exec_drop(format!("{nums} "), (8,)).await) != 0,
        "no such table there"
    );
    Ok(())
}

async fn types(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    c.query_drop(
        "CREATE TABLE types (id INT PRIMARY KEY, bi BIGINT, ub BIGINT UNSIGNED, f FLOAT, d DOUBLE, dc DECIMAL(40,10), dt DATE,
         dtm DATETIME(6), tm TIME(6), y YEAR, b BIT(10), bin VARBINARY(300), j JSON, t VARCHAR(100))",
    )
    .await?;
    let every: Vec<u8> = (0..=255).collect();
    let values = vec![
        Value::Int(1),
        Value::Int(i64::MIN),
        Value::UInt(u64::MAX),
        Value::Float(1.5),
        Value::Double(1e300),
        Value::from("-123456789012345678901234567890.0123456789"),
        Value::Date(1000, 1, 1, 0, 0, 0, 0),
        Value::Date(2024, 2, 29, 23, 59, 59, 123_456),
        Value::Time(true, 30, 22, 59, 58, 500_000),
        Value::Int(2155),
        Value::from(vec![3u8, 255]),
        Value::from(every.clone()),
        Value::from(r#"{"a": [1, null, "é"]}"#),
        Value::from("naïve 日本語 😀 \\ ' \" \0"),
    ];
    let marks = vec!["?"; values.len()].join(",");
    c.exec_drop(
        format!("INSERT INTO types VALUES ({marks})"),
        Params::Positional(values.clone()),
    )
    .await?;
    let row: mysql_async::Row = one_exec(&mut c, "SELECT * FROM types WHERE id = ?", (1,)).await?;
    let got = row.unwrap();
    for (column, (got, sent)) in got.iter().zip(&values).enumerate() {
        if column == 12 {
            let Value::Bytes(json) = got else {
                anyhow::bail!("JSON came as {got:?}")
            };
            let wanted: serde_json::Value = serde_json::from_str(r#"{"a": [1, null, "é"]}"#)?;
            equal!(serde_json::from_slice::<serde_json::Value>(json)?, wanted);
        } else if column == 9 {
            ensure!(
                matches!(got, Value::Int(2155) | Value::UInt(2155)),
                "YEAR {got:?}"
            );
        } else {
            equal!(got, sent, column);
        }
    }
    c.exec_drop("INSERT INTO types (id) VALUES (?)", (2,))
        .await?;
    let row: mysql_async::Row = one_exec(&mut c, "SELECT * FROM types WHERE id = ?", (2,)).await?;
    equal!(row.unwrap()[1..].iter().all(|v| *v == Value::NULL), true);
    Ok(())
}

async fn results(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    let mut sets = c.query_iter("SELECT 1; SET @z = 9, time_zone = '+07:00'; SELECT 2 UNION ALL SELECT 3; SELECT 4 FROM DUAL WHERE 0").await?;
    equal!(sets.collect::<u32>().await?, [1]);
    equal!(sets.collect::<u32>().await?.len(), 0);
    equal!(sets.collect::<u32>().await?, [2, 3]);
    equal!(sets.collect::<u32>().await?.len(), 0);
    equal!(sets.is_empty(), true);
    drop(sets);
    let state: (u32, String) = one(&mut c, "SELECT @z, @@time_zone").await?;
    equal!(state, (9, "+07:00".into()));
    let failing = c
        .query_iter("SELECT 1; SELECT * FROM nowhere; SELECT 2")
        .await?;
    equal!(code(failing.drop_result().await), 1146);
    equal!(one::<u32>(&mut c, "SELECT 5").await?, 5);
    c.query_drop(
        "CREATE PROCEDURE p(IN a INT, OUT o INT, INOUT io INT)
         BEGIN SET o = a * 2; SET io = io + a; SELECT a; SELECT n FROM nums WHERE n < 2 ORDER BY n; END",
    )
    .await?;
    c.query_drop("SET @o = 0, @io = 100").await?;
    let mut sets = c.exec_iter("CALL p(?, @o, @io)", (21,)).await?;
    equal!(sets.collect::<u32>().await?, [21]);
    equal!(sets.collect::<u32>().await?, [0, 1]);
    sets.drop_result().await?;
    let out: (u32, u32) = one(&mut c, "SELECT @o, @io").await?;
    equal!(out, (42, 121));
    equal!(
        code(c.exec_drop("INSERT INTO nums VALUES (?)", (1,)).await),
        1062
    );
    equal!(code(c.query_drop("SELEC 1").await), 1064);
    Ok(())
}

async fn load_data(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    if one::<u32>(&mut c, "SELECT @@local_infile").await? == 0 {
        return Err(Skip("the server has local_infile off".into()).into());
    }
    c.query_drop("CREATE TABLE loaded (id INT PRIMARY KEY, name VARCHAR(60), pad VARCHAR(200))")
        .await?;
    c.set_infile_handler(async move {
        let lines =
            (0..20_000).map(|i| Ok(Bytes::from(format!("{i}\tnäme {i}\t{}\n", "p".repeat(100)))));
        Ok(stream::iter(lines).boxed())
    });
    c.query_drop("LOAD DATA LOCAL INFILE 'whatever' INTO TABLE loaded CHARACTER SET utf8mb4")
        .await?;
    equal!(c.affected_rows(), 20_000);
    let got: (u32, String) = one(&mut c, "SELECT COUNT(*), MAX(name) FROM loaded").await?;
    equal!(got, (20_000, "näme 9999".into()));
    Ok(())
}

async fn blobs(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    let limit: usize = one(&mut c, "SELECT @@max_allowed_packet").await?;
    let size = (20 << 20).min(limit - (1 << 20));
    c.query_drop("CREATE TABLE blobs (id INT PRIMARY KEY, b LONGBLOB)")
        .await?;
    // Some lengths put the end of a packet right at 2^24 - 1 bytes.
    for (id, n) in [size, (1 << 24) - 1, 1 << 24, 65_536, 0]
        .into_iter()
        .filter(|n| *n <= size)
        .enumerate()
    {
        let blob: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
        c.exec_drop("INSERT INTO blobs VALUES (?, ?)", (id, &blob))
            .await?;
        let got: Vec<u8> = one_exec(&mut c, "SELECT b FROM blobs WHERE id = ?", (id,)).await?;
        ensure!(
            got == blob,
            "{n} bytes came back changed, {} of them",
            got.len()
        );
    }
    if size < 20 << 20 {
        return Err(Skip(format!(
            "blobs up to {size} bytes only: max_allowed_packet is {limit}"
        ))
        .into());
    }
    Ok(())
}

async fn reset(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    for by_reset in [true, false] {
        c.query_drop("SET @kept = 1, time_zone = '+04:00'").await?;
        c.query_drop("CREATE TEMPORARY TABLE gone (x INT)").await?;
        c.query_drop("BEGIN").await?;
        c.query_drop("INSERT INTO tx VALUES (200, 1)").await?;
        if by_reset {
            c.reset().await?;
        } else {
            c.change_user(Default::default()).await?;
        }
        let state: (Option<u32>, u32, Option<String>) =
            one(&mut c, "SELECT @kept, @@time_zone = '+04:00', DATABASE()").await?;
        equal!(state, (None, 0, Some(s.db.clone())));
        equal!(code(c.query_drop("SELECT * FROM gone").await), 1146);
        equal!(
            one::<u32>(&mut c, "SELECT COUNT(*) FROM tx WHERE id = 200").await?,
            0
        );
        equal!(one_exec::<u32>(&mut c, "SELECT ?", (5,)).await?, 5);
    }
    Ok(())
}

async fn streaming(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    let sql = "SELECT a.n * 1000 + b.n, REPEAT('y', 50) FROM nums a, nums b WHERE a.n < 100";
    let rows = c.query_stream::<(u64, String), _>(sql).await?;
    let (count, sum) = rows
        .try_fold((0u64, 0u64), |(n, sum), (v, _)| async move {
            Ok((n + 1, sum + v))
        })
        .await?;
    equal!((count, sum), (100_000, 100_000 * 99_999 / 2));
    let rows = c.exec_stream::<(u64, String), _, _>(sql, ()).await?;
    let few: Vec<_> = rows.take(3).try_collect().await?;
    equal!(few.len(), 3);
    // The driver reads the rest away before the next command.
    equal!(one::<u32>(&mut c, "SELECT 5").await?, 5);
    Ok(())
}

async fn kill(s: &Settings) -> Result<()> {
    let (mut c, mut killer) = (connect(opts(s)).await?, connect(opts(s)).await?);
    let id = c.id();
    let crossing = "SELECT COUNT(*) FROM nums a, nums b, nums c WHERE a.n + b.n + c.n > ?";
    let begun = Instant::now();
    let ended = Cell::new(false);
    let running = async {
        let outcome = code(c.exec_drop(crossing, (5,)).await);
        ended.set(true);
        outcome
    };
    // Again and again: a KILL QUERY that comes before the query has begun does nothing.
    let killing = async {
        while !ended.get() {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if !ended.get() {
                killer.query_drop(format!("KILL QUERY {id}")).await?;
            }
        }
        Ok::<(), Error>(())
    };
    let (outcome, killed) = tokio::join!(running, killing);
    killed?;
    equal!(outcome, 1317);
    ensure!(
        begun.elapsed() < Duration::from_secs(15),
        "it took {:?}",
        begun.elapsed()
    );
    equal!(one::<u32>(&mut c, "SELECT 1").await?, 1);
    equal!(code(killer.query_drop("KILL 4294967290").await), 1094);
    // A future dropped in flight gives the connection up; the pool copes.
    let pool = Pool::new(opts(s));
    let mut p = pool.get_conn().await?;
    let gave_up =
        tokio::time::timeout(Duration::from_millis(200), p.query_drop("SELECT SLEEP(2)")).await;
    equal!(gave_up.is_err(), true);
    drop(p);
    eventually("the pool serves again", || async {
        let mut p = pool.get_conn().await?;
        Ok(one::<u32>(&mut p, "SELECT 1").await? == 1)
    })
    .await?;
    pool.disconnect().await?;
    Ok(())
}

async fn compression(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s).compression(Some(Compression::default()))).await?;
    let text = "compress me ".repeat(50_000);
    ensure!(
        one_exec::<String>(&mut c, "SELECT ?", (&text,)).await? == text,
        "600 kB both ways"
    );
    equal!(
        one::<String>(&mut c, "SELECT REPEAT('x', 17000000)")
            .await?
            .len(),
        17_000_000
    );
    equal!(c.query::<u32, _>("SELECT n FROM nums").await?.len(), 1000);
    Ok(())
}

async fn clean_up(s: &Settings) -> Result<()> {
    let mut c = connect(opts(s)).await?;
    c.query_drop(format!("DROP DATABASE {}", s.db)).await?;
    Ok(())
}
