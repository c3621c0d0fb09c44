//! sqlx: statements with arguments are prepared and cached, `raw_sql` is the text protocol.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt;
use sqlx::mysql::{
    MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions, MySqlSslMode,
};
use sqlx::types::chrono::{NaiveDate, NaiveDateTime};
use sqlx::types::{Decimal, Json};
use sqlx::{Acquire, ConnectOptions, Connection, Executor, Row};

use crate::check::{Report, Settings};
use crate::equal;

pub async fn run(s: &Settings, report: &mut Report) {
    report.group("sqlx: connect", connect(s)).await;
    report.group("sqlx: migrations", migrations(s)).await;
    report
        .group("sqlx: own writes at once", own_writes(s))
        .await;
    report
        .group(
            "sqlx: transfers by thirty tasks on a pool of ten",
            transfers(s),
        )
        .await;
    report.group("sqlx: transactions", transactions(s)).await;
    report.group("sqlx: types", types(s)).await;
    report
        .group("sqlx: statements and DDL", statements(s))
        .await;
    report.group("sqlx: text protocol", text(s)).await;
    report.group("sqlx: streaming", streaming(s)).await;
    report.group("sqlx: errors", errors(s)).await;
    report.group("sqlx: clean up", clean_up(s)).await;
}

fn options(s: &Settings) -> MySqlConnectOptions {
    let o = MySqlConnectOptions::new()
        .host(&s.host)
        .port(s.port)
        .username(&s.user)
        .password(&s.password)
        .ssl_mode(if s.tls {
            MySqlSslMode::Required
        } else {
            MySqlSslMode::Disabled
        })
        .statement_cache_capacity(30);
    match &s.socket {
        Some(path) => o.socket(path),
        None => o,
    }
}

async fn session(s: &Settings) -> Result<MySqlConnection> {
    Ok(options(s).database(&s.db).connect().await?)
}

async fn pool(s: &Settings, size: u32) -> Result<MySqlPool> {
    let pool = MySqlPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(Duration::from_secs(30))
        .test_before_acquire(true);
    Ok(pool.connect_with(options(s).database(&s.db)).await?)
}

fn code(error: sqlx::Error) -> u16 {
    match error
        .as_database_error()
        .and_then(|e| e.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>())
    {
        Some(e) => e.number(),
        None => 0,
    }
}

async fn connect(s: &Settings) -> Result<()> {
    let mut c = options(s).connect().await?;
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&mut c)
        .await?;
    equal!(version.contains("MariaDB"), !s.mysql);
    // What the driver itself sets at login.
    let (zone, mode): (String, String) = sqlx::query_as("SELECT @@time_zone, @@sql_mode")
        .fetch_one(&mut c)
        .await?;
    equal!(zone, "+00:00");
    ensure!(mode.contains("PIPES_AS_CONCAT"), "sql_mode {mode}");
    c.ping().await?;
    c.execute(format!("DROP DATABASE IF EXISTS {}", s.db).as_str())
        .await?;
    c.execute(format!("CREATE DATABASE {} CHARACTER SET utf8mb4", s.db).as_str())
        .await?;
    c.close().await?;
    let wrong = options(s).password("wrong").connect().await;
    equal!(wrong.err().map(code), Some(1045));
    let nowhere = options(s).database("no_such_database_here").connect().await;
    equal!(nowhere.err().map(code), Some(1049));
    Ok(())
}

async fn migrations(s: &Settings) -> Result<()> {
    let migrator = sqlx::migrate!("./migrations");
    let pool = pool(s, 4).await?;
    if s.mysql {
        // Two at once, as when two copies of an application start: an advisory lock keeps them
        // apart. (MariaDB refuses the negative timeout that the driver asks for.)
        let (one, two) = tokio::join!(migrator.run(&pool), migrator.run(&pool));
        one?;
        two?;
    }
    migrator.run(&pool).await?;
    pool.close().await;
    let mut c = session(s).await?;
    let applied: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM _sqlx_migrations WHERE success FOR UPDATE")
            .fetch_one(&mut c)
            .await?;
    equal!(applied, 2);
    let accounts: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM accounts FOR UPDATE")
        .fetch_one(&mut c)
        .await?;
    equal!(accounts, 2);
    Ok(())
}

async fn own_writes(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    for i in 0..60i64 {
        let done = sqlx::query("INSERT INTO accounts (owner, cents) VALUES (?, ?)")
            .bind(format!("owner {i}"))
            .bind(i)
            .execute(&mut c)
            .await?;
        let id = done.last_insert_id();
        let (owner, cents): (String, i64) =
            sqlx::query_as("SELECT owner, cents FROM accounts WHERE id = ?")
                .bind(id)
                .fetch_one(&mut c)
                .await?;
        equal!((owner, cents), (format!("owner {i}"), i));
        sqlx::query("UPDATE accounts SET cents = cents + 1 WHERE id = ?")
            .bind(id)
            .execute(&mut c)
            .await?;
        let now: i64 = sqlx::query_scalar("SELECT cents FROM accounts WHERE id = ?")
            .bind(id)
            .fetch_one(&mut c)
            .await?;
        equal!(now, i + 1);
    }
    let gone = sqlx::query("DELETE FROM accounts WHERE owner LIKE 'owner %'")
        .execute(&mut c)
        .await?;
    equal!(gone.rows_affected(), 60);
    let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM accounts")
        .fetch_one(&mut c)
        .await?;
    equal!(left, 2);
    Ok(())
}

async fn transfers(s: &Settings) -> Result<()> {
    let pool = pool(s, 10).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..30u32 {
        let pool = pool.clone();
        tasks.spawn(async move { some_transfers(&pool, n).await });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let mut tx = pool.begin().await?;
    let (sum, count): (Decimal, i64) = sqlx::query_as(
        "SELECT (SELECT SUM(cents) FROM accounts), (SELECT COUNT(*) FROM transfers) FOR UPDATE",
    )
    .fetch_one(&mut *tx)
    .await?;
    equal!((sum, count), (Decimal::from(2000), 30 * 4));
    tx.commit().await?;
    pool.close().await;
    Ok(())
}

async fn some_transfers(pool: &MySqlPool, n: u32) -> Result<()> {
    for round in 0..5u32 {
        let mut tx = pool.begin().await?;
        // Locked in one order, so that no deadlock comes of it.
        let ids: Vec<i64> = sqlx::query_scalar("SELECT id FROM accounts ORDER BY id FOR UPDATE")
            .fetch_all(&mut *tx)
            .await?;
        let (from, to) = if n % 2 == 0 {
            (ids[0], ids[1])
        } else {
            (ids[1], ids[0])
        };
        let insert = "INSERT INTO transfers (source, target, cents) VALUES (?, ?, 3)";
        let id = sqlx::query(insert)
            .bind(from)
            .bind(to)
            .execute(&mut *tx)
            .await?
            .last_insert_id();
        sqlx::query("UPDATE accounts SET cents = cents - 3 WHERE id = ?")
            .bind(from)
            .execute(&mut *tx)
            .await?;
        sqlx::query("UPDATE accounts SET cents = cents + 3 WHERE id = ?")
            .bind(to)
            .execute(&mut *tx)
            .await?;
        let seen: i64 = sqlx::query_scalar("SELECT source FROM transfers WHERE id = ?")
            .bind(id)
            .fetch_one(&mut *tx)
            .await?;
        equal!(seen, from);
        if round == 4 {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
        }
    }
    Ok(())
}

async fn transactions(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    let mut outer = Connection::begin(&mut c).await?;
    sqlx::query("INSERT INTO accounts (owner) VALUES ('kept')")
        .execute(&mut *outer)
        .await?;
    let mut inner = Acquire::begin(&mut outer).await?; // a savepoint
    sqlx::query("INSERT INTO accounts (owner) VALUES ('dropped')")
        .execute(&mut *inner)
        .await?;
    inner.rollback().await?;
    outer.commit().await?;
    let owners: Vec<String> =
        sqlx::query_scalar("SELECT owner FROM accounts WHERE owner IN ('kept', 'dropped')")
            .fetch_all(&mut c)
            .await?;
    equal!(owners, ["kept"]);
    {
        let mut forgotten = Connection::begin(&mut c).await?;
        sqlx::query("DELETE FROM accounts")
            .execute(&mut *forgotten)
            .await?;
    } // rolled back before the next statement
    let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM accounts")
        .fetch_one(&mut c)
        .await?;
    equal!(left, 3);
    Ok(())
}

async fn types(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    sqlx::query("CREATE TABLE types (id INT PRIMARY KEY, ub BIGINT UNSIGNED, d DOUBLE, dc DECIMAL(20,4), at DATETIME(6), day DATE, b BOOLEAN, bin BLOB, j JSON, t TEXT)")
        .execute(&mut c)
        .await?;
    let at: NaiveDateTime = NaiveDate::from_ymd_opt(2024, 2, 29)
        .and_then(|d| d.and_hms_micro_opt(23, 59, 59, 123_456))
        .context("a date")?;
    let json = serde_json::json!({"a": [1, null, "é"]});
    sqlx::query("INSERT INTO types VALUES (?,?,?,?,?,?,?,?,?,?)")
        .bind(1)
        .bind(u64::MAX)
        .bind(1.5e-200)
        .bind(Decimal::new(-1_234_567, 4))
        .bind(at)
        .bind(at.date())
        .bind(true)
        .bind((0u8..=255).collect::<Vec<u8>>())
        .bind(Json(&json))
        .bind("naïve 日本語 😀")
        .execute(&mut c)
        .await?;
    let row = sqlx::query("SELECT * FROM types WHERE id = ?")
        .bind(1)
        .fetch_one(&mut c)
        .await?;
    equal!(row.try_get::<u64, _>("ub")?, u64::MAX);
    equal!(row.try_get::<f64, _>("d")?, 1.5e-200);
    equal!(
        row.try_get::<Decimal, _>("dc")?,
        Decimal::new(-1_234_567, 4)
    );
    equal!(row.try_get::<NaiveDateTime, _>("at")?, at);
    equal!(row.try_get::<NaiveDate, _>("day")?, at.date());
    equal!(row.try_get::<bool, _>("b")?, true);
    equal!(row.try_get::<Vec<u8>, _>("bin")?.len(), 256);
    equal!(
        row.try_get_unchecked::<Json<serde_json::Value>, _>("j")?.0,
        json
    );
    equal!(row.try_get::<String, _>("t")?, "naïve 日本語 😀");
    sqlx::query("INSERT INTO types (id, t) VALUES (?, ?)")
        .bind(2)
        .bind(None::<String>)
        .execute(&mut c)
        .await?;
    let none: Option<String> = sqlx::query_scalar("SELECT t FROM types WHERE id = ?")
        .bind(2)
        .fetch_one(&mut c)
        .await?;
    equal!(none, None);
    Ok(())
}

async fn statements(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    sqlx::query("CREATE TABLE prep (id INT PRIMARY KEY, v VARCHAR(20))")
        .execute(&mut c)
        .await?;
    for i in 0..20 {
        sqlx::query("INSERT INTO prep (id, v) VALUES (?, ?)")
            .bind(i)
            .bind(format!("v{i}"))
            .execute(&mut c)
            .await?;
    }
    let get = "SELECT v FROM prep WHERE id = ?";
    equal!(
        sqlx::query_scalar::<_, String>(get)
            .bind(3)
            .fetch_one(&mut c)
            .await?,
        "v3"
    );
    sqlx::query("ALTER TABLE prep ADD COLUMN w INT FIRST")
        .execute(&mut c)
        .await?;
    equal!(
        sqlx::query_scalar::<_, String>(get)
            .bind(3)
            .fetch_one(&mut c)
            .await?,
        "v3"
    );
    sqlx::query("ALTER TABLE prep MODIFY v VARCHAR(200) CHARACTER SET latin1")
        .execute(&mut c)
        .await?;
    equal!(
        sqlx::query_scalar::<_, String>(get)
            .bind(4)
            .fetch_one(&mut c)
            .await?,
        "v4"
    );
    // More texts than the cache holds.
    for i in 0..80i64 {
        let sql = format!("SELECT CAST(? AS SIGNED) + {i}");
        equal!(
            sqlx::query_scalar::<_, i64>(&sql)
                .bind(1)
                .fetch_one(&mut c)
                .await?,
            i + 1
        );
    }
    c.clear_cached_statements().await?;
    equal!(
        sqlx::query_scalar::<_, String>(get)
            .bind(5)
            .fetch_one(&mut c)
            .await?,
        "v5"
    );
    Ok(())
}

async fn text(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    let rows = sqlx::raw_sql("SET @z = 5; SELECT 1 AS a; INSERT INTO prep (id) VALUES (500); SELECT 2 AS a UNION ALL SELECT @z")
        .fetch_all(&mut c)
        .await?;
    equal!(rows.len(), 3);
    let seen: Option<String> = sqlx::query_scalar("SELECT v FROM prep WHERE id = 500")
        .fetch_one(&mut c)
        .await?;
    equal!(seen, None);
    let z: i64 = sqlx::query_scalar("SELECT @z").fetch_one(&mut c).await?;
    equal!(z, 5);
    Ok(())
}

async fn streaming(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    sqlx::query("CREATE TABLE nums (n INT PRIMARY KEY)")
        .execute(&mut c)
        .await?;
    let values: Vec<String> = (0..300).map(|n| format!("({n})")).collect();
    sqlx::query(&format!("INSERT INTO nums VALUES {}", values.join(",")))
        .execute(&mut c)
        .await?;
    let sql = "SELECT CAST(a.n AS SIGNED), REPEAT('y', 60) FROM nums a, nums b WHERE a.n >= ?";
    let mut count = 0;
    {
        let mut rows = sqlx::query_as::<_, (i64, String)>(sql)
            .bind(0)
            .fetch(&mut c);
        while rows.try_next().await?.is_some() {
            count += 1;
        }
    }
    equal!(count, 90_000);
    {
        let mut rows = sqlx::query_as::<_, (i64, String)>(sql)
            .bind(0)
            .fetch(&mut c);
        rows.try_next().await?;
    } // given up after a row
    equal!(
        sqlx::query_scalar::<_, i64>("SELECT 5")
            .fetch_one(&mut c)
            .await?,
        5
    );
    Ok(())
}

async fn errors(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    let duplicate = sqlx::query("INSERT INTO accounts (owner) VALUES (?)")
        .bind("first")
        .execute(&mut c)
        .await
        .err()
        .context("no error")?;
    ensure!(
        duplicate
            .as_database_error()
            .is_some_and(|e| e.is_unique_violation()),
        "{duplicate}"
    );
    equal!(code(duplicate), 1062);
    equal!(
        sqlx::query("SELEC 1").execute(&mut c).await.err().map(code),
        Some(1064)
    );
    equal!(
        sqlx::query("SELECT * FROM missing WHERE x = ?")
            .bind(1)
            .execute(&mut c)
            .await
            .err()
            .map(code),
        Some(1146)
    );
    c.ping().await?;
    Ok(())
}

async fn clean_up(s: &Settings) -> Result<()> {
    let mut c = session(s).await?;
    c.execute(format!("DROP DATABASE {}", s.db).as_str())
        .await?;
    Ok(())
}
