//! What a client sees of an answer out of memory, and which statements never have one.

use std::time::Duration;

use anyhow::ensure;
use millrace_sandbox::APP;
use millrace_tests::harness::{self, Proxy, ProxyOptions};
use millrace_tests::wire::{Connection, Login, Param};

use crate::ground::{Ground, addresses, options, told_by, until_serving};

const SELECTS: &[&str] = &[
    "SELECT * FROM c_plain ORDER BY id",
    "SELECT v FROM c_plain WHERE id = 1",
    "SELECT v FROM c_plain WHERE id = 4711",
    "SELECT COUNT(*), MAX(id), AVG(id) FROM c_plain",
    "SELECT a.id, b.v FROM c_plain a JOIN c_plain b ON a.id = b.id WHERE a.id < 3 ORDER BY 1",
    "SELECT id FROM c_plain UNION ALL SELECT 7 ORDER BY 1",
    "SELECT /* a comment */ UPPER(v), CONCAT(v, '-', id), LENGTH(v) FROM c_plain WHERE id IN (1, 2) ORDER BY id",
    "SELECT id, (SELECT MAX(id) FROM c_plain) FROM app.c_plain LIMIT 2",
    "SELECT DATE_FORMAT('2024-02-29', '%Y'), v FROM `c_plain` WHERE id BETWEEN 2 AND 3 ORDER BY id",
];

/// A hit is what the miss was and what a server says; and what can be asked after it is as after a miss.
pub(crate) async fn same_bytes(ground: &Ground) -> anyhow::Result<()> {
    let mut client = ground.client().await?;
    let mut direct = ground.direct().await?;
    for sql in SELECTS {
        let wanted = direct.expect(sql).await?.render();
        let hit = ground.until_hit(&mut client, sql).await?;
        ensure!(hit == wanted, "{sql}: {hit:#?}, direct {wanted:#?}");
        for about in [
            "SELECT FOUND_ROWS()",
            "SELECT ROW_COUNT()",
            "SHOW WARNINGS",
            "SELECT LAST_INSERT_ID()",
        ] {
            direct.expect(sql).await?;
            let wanted = direct.expect(about).await?.rows();
            client.expect(sql).await?;
            let told = client.expect(about).await?.rows();
            ensure!(
                told == wanted,
                "{about} after {sql}: {told:?}, direct {wanted:?}"
            );
        }
    }
    Ok(())
}

/// Prepared statements: with parameters sent and left out.
pub(crate) async fn prepared(ground: &Ground) -> anyhow::Result<()> {
    let mut client = ground.client().await?;
    let mut direct = ground.direct().await?;
    let sql = "SELECT id, v FROM c_plain WHERE id = ?";
    let statement = |reply: millrace_tests::wire::Reply| reply.statement_id();
    let Some((here, _)) = statement(client.prepare(sql.as_bytes()).await) else {
        anyhow::bail!("not prepared");
    };
    let Some((there, _)) = statement(direct.prepare(sql.as_bytes()).await) else {
        anyhow::bail!("not prepared");
    };
    let before = ground.hits().await?;
    for round in 0..30 {
        for id in 1..4 {
            let params = [Param::int(id)];
            let wanted = direct.execute(there, 0, &params, round == 0).await.render();
            let told = client.execute(here, 0, &params, round == 0).await.render();
            ensure!(
                told == wanted,
                "round {round}: {told:#?}, direct {wanted:#?}"
            );
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let hits = ground.hits().await? - before;
    ensure!(
        hits > 30,
        "only {hits} hits of 90: {:#?}",
        ground.reasons().await?
    );
    Ok(())
}

/// What is never served from memory.
pub(crate) async fn never(ground: &Ground) -> anyhow::Result<()> {
    let mut client = ground.client().await?;
    client.expect("SET @x = 1").await?;
    for sql in [
        "SELECT NOW(6) FROM c_plain",
        "SELECT CURRENT_TIMESTAMP FROM c_plain",
        "SELECT RAND() FROM c_plain",
        "SELECT UUID() FROM c_plain",
        "SELECT CONNECTION_ID() FROM c_plain",
        "SELECT CURRENT_USER() FROM c_plain",
        "SELECT SLEEP(0) FROM c_plain",
        "SELECT UNIX_TIMESTAMP() FROM c_plain",
        "SELECT @x FROM c_plain",
        "SELECT @@sql_mode FROM c_plain",
        "SELECT * FROM c_plain FOR UPDATE",
        "SELECT * FROM c_plain LOCK IN SHARE MODE",
        "SELECT c_clock() FROM c_plain",
        "SELECT * FROM c_view",
        "SELECT * FROM information_schema.tables WHERE table_name = 'c_plain'",
        "SELECT SQL_CALC_FOUND_ROWS * FROM c_plain",
        "SELECT * FROM c_memory",
        // A TIME is completed with the current date.
        "SELECT t < d FROM c_time",
        "SELECT d FROM c_time WHERE t = d",
        "SELECT TIMEDIFF(d, d) FROM c_time",
        "SELECT CAST('1:2:3' AS TIME) FROM c_plain",
    ] {
        let before = ground.hits().await?;
        for _ in 0..4 {
            client.expect(sql).await?;
            tokio::time::sleep(std::time::Duration::from_millis(15)).await;
        }
        ensure!(ground.hits().await? == before, "{sql} came out of memory");
    }
    // What has called a function may keep its connection until that is known.
    client.quit().await;
    let mut client = ground.client().await?;
    let plain = "SELECT v FROM c_plain WHERE id = 2";
    ground.until_hit(&mut client, plain).await?;
    for (begin, end) in [
        ("BEGIN", "COMMIT"),
        ("SET autocommit = 0", "SET autocommit = 1"),
        ("LOCK TABLES c_plain READ", "UNLOCK TABLES"),
        (
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        ),
        (
            "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        ),
        (
            "CREATE TEMPORARY TABLE c_plain (id INT PRIMARY KEY, v VARCHAR(20))",
            "DROP TEMPORARY TABLE c_plain",
        ),
    ] {
        client.expect(begin).await?;
        let before = ground.hits().await?;
        let mut rows = 0;
        for _ in 0..4 {
            rows += client.expect(plain).await?.rows().len();
            tokio::time::sleep(std::time::Duration::from_millis(15)).await;
        }
        ensure!(
            ground.hits().await? == before,
            "{plain} after {begin} came out of memory"
        );
        let wanted = if begin.starts_with("CREATE") { 0 } else { 4 };
        ensure!(rows == wanted, "{rows} rows after {begin}");
        client.expect(end).await?;
        if end == "SET autocommit = 1" {
            client.expect("COMMIT").await?;
        }
    }
    Ok(())
}

/// What a session has set changes what it gets.
pub(crate) async fn by_state(ground: &Ground) -> anyhow::Result<()> {
    let mut one = ground.client().await?;
    let mut other = ground.client().await?;
    let mut direct = ground.direct().await?;
    let sql = "SELECT t, v FROM c_times ORDER BY t";
    for setting in [
        "SET time_zone = '+00:00'",
        "SET time_zone = '+05:30'",
        "SET NAMES latin1",
        "SET sql_mode = 'ANSI_QUOTES'",
        "SET sql_select_limit = 1",
        "SET character_set_results = binary",
    ] {
        ground.until_hit(&mut one, sql).await?;
        other.expect(setting).await?;
        direct.expect(setting).await?;
        let wanted = direct.expect(sql).await?.render();
        for _ in 0..3 {
            let told = other.expect(sql).await?.render();
            ensure!(told == wanted, "{setting}: {told:#?}, direct {wanted:#?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// A statement that ends before a server has taken it leaves nothing in memory: the next answer is not its own.
pub(crate) async fn given_up(ground: &Ground) -> anyhow::Result<()> {
    let admin_port = harness::free_port()?;
    let narrow = ProxyOptions {
        pool_max: 1,
        pool_wait: Duration::from_millis(300),
        ..options(admin_port)
    };
    let proxy = Proxy::start(&addresses(&ground.cluster), &narrow).await?;
    until_serving(admin_port).await?;
    let login = Login::new(proxy.address(), APP.user, APP.password).database("app");
    // So that it is known of every server how far it is: a result of each could be kept.
    let mut writer = Connection::open(&login).await?;
    for value in 0..10 {
        let write = format!("UPDATE c_count SET n = {value} WHERE id = 8");
        writer.expect(&write).await?;
        writer.expect("SELECT n FROM c_count WHERE id = 8").await?;
        writer.expect("SHOW CREATE TABLE c_count").await?;
        writer.expect("SELECT n FROM c_count WHERE id = 8").await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    writer.quit().await;
    let mut holders = Vec::new();
    for begin in [
        "START TRANSACTION READ ONLY",
        "START TRANSACTION READ ONLY",
        "BEGIN",
    ] {
        let mut holder = Connection::open(&login).await?;
        holder.expect(begin).await?;
        holder.expect("SELECT COUNT(*) FROM c_plain").await?;
        holders.push(holder);
    }
    let sql = "SELECT v FROM c_plain WHERE id = 3";
    let mut client = Connection::open(&login).await?;
    let refused = client.query(sql).await;
    ensure!(
        refused.err().is_some(),
        "there was a place: {:?}",
        refused.render()
    );
    for mut holder in holders {
        holder.expect("COMMIT").await?;
        holder.quit().await;
    }
    client.expect("SHOW CREATE TABLE c_count").await?;
    let mut direct = ground.direct().await?;
    let wanted = direct.expect(sql).await?.render();
    let mut other = Connection::open(&login).await?;
    for _ in 0..30 {
        let told = other.expect(sql).await?.render();
        ensure!(told == wanted, "{sql}: {told:#?}, direct {wanted:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let hits: u64 = told_by(admin_port, "hits").await?.parse()?;
    ensure!(hits > 5, "only {hits} of 30 answers out of memory");
    Ok(())
}
