//! Prepared statements on the servers: how many clients' statements come to, and what happens where a
//! server takes no more.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::wire::{Connection, Param, Target, com};
use tokio::task::JoinSet;

use crate::ground::{FOLLOWED, app, proxy, tcp};

/// A statement on a row of its own. Those with even numbers are reads.
fn text(n: usize) -> String {
    match n % 2 {
        0 => format!("SELECT n, ? FROM app.counted WHERE id = {n}"),
        _ => format!("UPDATE app.counted SET n = n + ? WHERE id = {n}"),
    }
}

/// The table that the statements are about, with rows 0 up to `rows`.
async fn make_table(target: Target, rows: usize) -> anyhow::Result<()> {
    let mut client = Connection::open(&app(target)).await?;
    client
        .expect("CREATE TABLE IF NOT EXISTS counted (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
        .await?;
    let rows: Vec<String> = (0..rows).map(|row| format!("({row}, 0)")).collect();
    let sql = format!("REPLACE INTO counted VALUES {}", rows.join(","));
    client.expect(&sql).await?;
    client.quit().await;
    Ok(())
}

/// How many prepared statements each server has, of all connections.
async fn counts(cluster: &Cluster) -> anyhow::Result<Vec<usize>> {
    let mut counts = Vec::new();
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        let row = control
            .row("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'")
            .await?;
        let value = row.as_ref().and_then(|row| row.get("Value"));
        counts.push(value.context("no count")?.parse()?);
        control.close().await;
    }
    Ok(counts)
}

async fn set_limit(cluster: &Cluster, limit: &str) -> anyhow::Result<()> {
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        let sql = format!("SET GLOBAL max_prepared_stmt_count = {limit}");
        control.run(&sql).await?;
        control.close().await;
    }
    Ok(())
}

async fn prepare(client: &mut Connection, n: usize) -> anyhow::Result<u32> {
    let reply = client.prepare(text(n).as_bytes()).await;
    let (id, _) = reply
        .statement_id()
        .with_context(|| format!("statement {n} is not prepared: {:?}", reply.render()))?;
    Ok(id)
}

async fn execute(client: &mut Connection, id: u32, first: bool) -> anyhow::Result<()> {
    let reply = client.execute(id, 0, &[Param::int(1)], first).await;
    ensure!(
        reply.err().is_none() && reply.broken().is_none(),
        "an execution: {:?}",
        reply.render()
    );
    Ok(())
}

/// Sessions that prepare the same and execute it leave no more on a connection than there are statements.
pub(crate) async fn no_orphans(cluster: &Cluster) -> anyhow::Result<()> {
    const CONNECTIONS: usize = 3;
    const SESSIONS: usize = 24;
    const STATEMENTS: usize = 12;
    let before = counts(cluster).await?;
    let proxy = proxy(cluster, "[pool]\nmax_connections = 3\n").await?;
    make_table(proxy.address(), STATEMENTS).await?;
    let mut sessions = JoinSet::new();
    for _ in 0..SESSIONS {
        let login = app(proxy.address());
        sessions.spawn(async move {
            let mut client = Connection::open(&login).await?;
            let mut ids = Vec::new();
            for n in 0..STATEMENTS {
                ids.push(prepare(&mut client, n).await?);
            }
            for round in 0..3 {
                for id in &ids {
                    execute(&mut client, *id, round == 0).await?;
                }
            }
            anyhow::Ok(client)
        });
    }
    let sessions: Vec<_> = sessions.join_all().await;
    let sessions = sessions.into_iter().collect::<Result<Vec<_>, _>>()?;
    // Those that were closed are counted for a moment.
    let deadline = Instant::now() + FOLLOWED;
    loop {
        let now = counts(cluster).await?;
        let mine = now.iter().zip(&before);
        let mine: Vec<usize> = mine.map(|(now, before)| now - before.min(now)).collect();
        if mine.iter().all(|count| *count <= CONNECTIONS * STATEMENTS) {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{SESSIONS} sessions with the same {STATEMENTS} statements on {CONNECTIONS} connections \
             left {mine:?} on the servers"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(sessions);
    Ok(())
}

/// What clients have prepared is below the server's limit by itself: nobody hears that it was reached,
/// whatever connections hold for several of them.
pub(crate) async fn below_the_servers_limit(cluster: &Cluster) -> anyhow::Result<()> {
    const SESSIONS: usize = 24;
    const EACH: usize = 6;
    const LIMIT: usize = 160;
    set_limit(cluster, &LIMIT.to_string()).await?;
    let served = async {
        let proxy = proxy(cluster, "[pool]\nmax_connections = 12\n").await?;
        make_table(proxy.address(), SESSIONS * EACH).await?;
        let mut sessions = JoinSet::new();
        for session in 0..SESSIONS {
            let login = app(proxy.address());
            sessions.spawn(async move {
                let mut client = Connection::open(&login).await?;
                let mut ids = Vec::new();
                for n in 0..EACH {
                    ids.push(prepare(&mut client, session * EACH + n).await?);
                }
                for round in 0..40 {
                    // Some on kept connections.
                    let in_transaction = round % 4 == session % 4;
                    if in_transaction {
                        client.expect("BEGIN").await?;
                    }
                    for id in &ids {
                        execute(&mut client, *id, round == 0).await?;
                    }
                    if in_transaction {
                        client.expect("COMMIT").await?;
                    }
                    if round % 10 == 9 {
                        let again = ids.remove(0);
                        client.send(com::STMT_CLOSE, &again.to_le_bytes()).await?;
                        ids.push(prepare(&mut client, session * EACH + round / 10).await?);
                        execute(&mut client, ids[EACH - 1], true).await?;
                    }
                }
                anyhow::Ok(())
            });
        }
        let ended: Vec<_> = sessions.join_all().await;
        ended.into_iter().collect::<Result<Vec<_>, _>>()?;
        anyhow::Ok(())
    };
    let served = served.await;
    set_limit(cluster, "DEFAULT").await?;
    served
}

/// Where others have taken all that a server allows, the client has the server's error. With a place for
/// one statement it can go on with several.
pub(crate) async fn at_the_servers_limit(cluster: &Cluster) -> anyhow::Result<()> {
    const LIMIT: usize = 40;
    set_limit(cluster, &LIMIT.to_string()).await?;
    let told = async {
        let proxy = proxy(cluster, "").await?;
        make_table(proxy.address(), LIMIT).await?;
        let mut other = Connection::open(&app(tcp(cluster.primary().port))).await?;
        let mut others = Vec::new();
        let refused = loop {
            let reply = other.prepare(text(1).as_bytes()).await;
            match reply.statement_id() {
                Some((id, _)) => others.push(id),
                None => break reply.err().cloned().context("no answer")?,
            }
        };
        let mut client = Connection::open(&app(proxy.address())).await?;
        let reply = client.prepare(text(1).as_bytes()).await;
        let told = reply.err().context("there was room for one more")?;
        ensure!(
            (told.code, &told.message) == (1461, &refused.message),
            "{told} instead of {refused}"
        );
        let place = others.pop().context("the limit is of no effect")?;
        other.send(com::STMT_CLOSE, &place.to_le_bytes()).await?;
        other.expect("DO 1").await?;
        let ids = [
            prepare(&mut client, 1).await?,
            prepare(&mut client, 3).await?,
            prepare(&mut client, 5).await?,
        ];
        for (round, sql) in ["DO 1", "BEGIN", "COMMIT"].into_iter().enumerate() {
            client.expect(sql).await?;
            for id in ids {
                execute(&mut client, id, round == 0).await?;
            }
        }
        // One more place, for one that must stay as it is: it has a cursor.
        let place = others.pop().context("no place")?;
        other.send(com::STMT_CLOSE, &place.to_le_bytes()).await?;
        other.expect("DO 1").await?;
        let sql = b"SELECT id FROM app.counted WHERE id < ? ORDER BY id";
        let reply = client.prepare(sql).await;
        let (reading, _) = reply.statement_id().context("no place for it")?;
        let opened = client.execute(reading, 1, &[Param::int(20)], true).await;
        ensure!(opened.err().is_none(), "{:?}", opened.render());
        for id in ids {
            execute(&mut client, id, false).await?;
        }
        let fetched = client.fetch(reading, 20).await;
        ensure!(fetched.rows().len() == 20, "{:?}", fetched.render());
        anyhow::Ok(())
    };
    let told = told.await;
    set_limit(cluster, "DEFAULT").await?;
    told
}
