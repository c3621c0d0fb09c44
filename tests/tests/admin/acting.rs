//! Draining while clients work, and KILL.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::Cluster;
use millrace_tests::wire::{Connection, Expect, com};
use tokio::task::LocalSet;

use crate::ground::{Ground, Operator, expect, is, number, value};
use crate::serving::{FOLLOWED, QUICK, app};

const SOON: Duration = Duration::from_secs(10);

async fn running(operator: &mut Operator, id: u32) -> anyhow::Result<()> {
    let sql = format!("SHOW SESSIONS WHERE id = {id}");
    operator
        .wait_for(&sql, SOON, |row| is(row, "state", "running"))
        .await?;
    Ok(())
}

pub(crate) async fn kill_query(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    let id = client.greeting.connection_id;
    client.expect("SET @kept = 7").await?;
    let begun = Instant::now();
    client
        .send(com::QUERY, b"SELECT SLEEP(60) FROM app.place")
        .await?;
    running(&mut operator, id).await?;
    operator.0.expect(&format!("KILL QUERY {id}")).await?;
    let reply = client.read_reply(Expect::Results { binary: false }).await;
    // SLEEP says by its result that it was ended; a server may also say so by an error.
    let code = reply.err().map(|error| error.code);
    ensure!(
        code == Some(1317) || reply.scalar().as_deref() == Some("1"),
        "{:?}",
        reply.render()
    );
    ensure!(begun.elapsed() < Duration::from_secs(30));
    // The session goes on, with what it has set.
    let kept = client.expect("SELECT @kept").await?;
    ensure!(kept.scalar().as_deref() == Some("7"), "{:?}", kept.render());
    // For one that is idle it does nothing.
    operator.0.expect(&format!("KILL QUERY {id}")).await?;
    client.expect(QUICK).await?;
    Ok(())
}

pub(crate) async fn kill(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 3\nwait_timeout = \"60s\"\n";
    let ground = Ground::start(cluster, "", more).await?;
    let mut operator = ground.open().await?;
    let login = app(ground.proxy.address());
    let idle = Connection::open(&login).await?;
    let mut busy = Connection::open(&login).await?;
    let ids = [idle.greeting.connection_id, busy.greeting.connection_id];
    busy.send(
        com::QUERY,
        b"SELECT SLEEP(61), 'killed' FROM app.place FOR UPDATE",
    )
    .await?;
    running(&mut operator, ids[1]).await?;
    for id in ids {
        operator.0.expect(&format!("KILL {id}")).await?;
    }
    for (what, mut client) in [("idle", idle), ("busy", busy)] {
        let begun = Instant::now();
        let reply = client.read_reply(Expect::Results { binary: false }).await;
        let ended = reply.broken().is_some() || reply.err().is_some();
        let soon = begun.elapsed() < Duration::from_secs(3);
        ensure!(ended && soon, "{what}: {:?}", reply.render());
    }
    operator
        .wait_for("SHOW STATUS", SOON, |row| {
            is(row, "Variable_name", "Threads_connected") && is(row, "Value", "0")
        })
        .await?;
    // Nothing of it runs on the server any more.
    let mut control = cluster.control(&cluster.primary().name).await?;
    let question = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE \
                    'SELECT SLEEP(61)%'";
    ensure!(
        control.value(question).await?.as_deref() == Some("0"),
        "it still runs"
    );
    for sql in [
        format!("KILL {}", ids[0]),
        "KILL 7".into(),
        "KILL 99999999999".into(),
    ] {
        ensure!(operator.refused(&sql).await? == 1094, "{sql}");
    }
    // One that waits for a connection is ended too, and so is one in a transaction.
    let mut holding = Vec::new();
    for _ in 0..3 {
        let mut one = Connection::open(&login).await?;
        one.expect("BEGIN").await?;
        let row = one
            .query("SELECT port FROM app.place LOCK IN SHARE MODE")
            .await;
        if row.err().is_some() {
            break;
        }
        holding.push(one);
    }
    let mut waiting = Connection::open(&login).await?;
    let id = waiting.greeting.connection_id;
    waiting
        .send(com::QUERY, b"DELETE FROM app.place WHERE 0")
        .await?;
    let sql = "SHOW SESSIONS WHERE state = 'waiting'";
    let row = operator.wait_for(sql, SOON, |_| true).await?;
    ensure!(number(&row, "id")? == f64::from(id), "{row:#?}");
    operator
        .0
        .expect(&format!("KILL {}", value(&row, "id")?))
        .await?;
    let begun = Instant::now();
    let reply = waiting.read_reply(Expect::Results { binary: false }).await;
    ensure!(
        reply.broken().is_some() || reply.err().is_some(),
        "{:?}",
        reply.render()
    );
    ensure!(
        begun.elapsed() < Duration::from_secs(3),
        "it waited on: {:?}",
        begun.elapsed()
    );
    // Nor does one that waits keep its statement after a KILL QUERY; its session goes on.
    let mut waiting = Connection::open(&login).await?;
    waiting
        .send(com::QUERY, b"DELETE FROM app.place WHERE 0")
        .await?;
    let row = operator.wait_for(sql, SOON, |_| true).await?;
    operator
        .0
        .expect(&format!("KILL QUERY {}", value(&row, "id")?))
        .await?;
    let reply = waiting.read_reply(Expect::Results { binary: false }).await;
    let code = reply.err().map(|error| error.code);
    ensure!(code == Some(1317), "{:?}", reply.render());
    let open = operator
        .rows("SHOW SESSIONS WHERE transaction = 'open'")
        .await?;
    ensure!(open.len() == holding.len(), "{open:#?}");
    operator
        .0
        .expect(&format!("KILL {}", value(&open[0], "id")?))
        .await?;
    operator
        .wait_for("SHOW SERVERS WHERE role = 'primary'", SOON, |row| {
            number(row, "in_use").is_ok_and(|in_use| in_use as usize == holding.len() - 1)
        })
        .await?;
    Ok(())
}

/// Clients that read and write without a pause, and what went wrong.
struct Load {
    stop: Cell<bool>,
    done: Cell<u64>,
    errors: Cell<u64>,
}

async fn work(load: Rc<Load>, login: millrace_tests::wire::Login, number: usize) {
    let Ok(mut connection) = Connection::open(&login).await else {
        load.errors.set(load.errors.get() + 1);
        return;
    };
    let mut turn = number;
    while !load.stop.get() {
        let sql = match turn % 4 {
            0 => format!("UPDATE app.load SET n = n + 1 WHERE id = {number}"),
            _ => QUICK.to_owned(),
        };
        let reply = connection.query(sql).await;
        if reply.err().is_some() || reply.broken().is_some() {
            eprintln!("client {number}: {:?}", reply.render());
            load.errors.set(load.errors.get() + 1);
            return;
        }
        load.done.set(load.done.get() + 1);
        turn += 1;
    }
}

pub(crate) async fn drain(cluster: &Cluster) -> anyhow::Result<()> {
    const CLIENTS: usize = 24;
    // A replica that falls behind under these writes must be read from all the same.
    let config = "[routing]\nslow_start = \"0s\"\nconsistency = \"eventual\"\n";
    let ground = Ground::start(cluster, "", config).await?;
    let mut operator = ground.open().await?;
    let login = app(ground.proxy.address());
    let mut setup = Connection::open(&login).await?;
    setup
        .expect("CREATE TABLE IF NOT EXISTS app.load (id INT PRIMARY KEY, n INT)")
        .await?;
    for number in 0..CLIENTS {
        setup
            .expect(&format!("REPLACE INTO app.load VALUES ({number}, 0)"))
            .await?;
    }
    let load = Rc::new(Load {
        stop: Cell::new(false),
        done: Cell::new(0),
        errors: Cell::new(0),
    });
    let local = LocalSet::new();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(local.spawn_local(work(load.clone(), login.clone(), number)));
    }
    local
        .run_until(async {
            let outcome = drain_each(cluster, &mut operator, &load).await;
            load.stop.set(true);
            for client in clients {
                client.await?;
            }
            outcome
        })
        .await?;
    ensure!(load.errors.get() == 0, "{} errors", load.errors.get());
    println!(
        "drained under load: {} statements, no error",
        load.done.get()
    );
    Ok(())
}

/// Drains each replica in turn, sees that nothing runs there, and resumes it.
async fn drain_each(cluster: &Cluster, operator: &mut Operator, load: &Load) -> anyhow::Result<()> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    for replica in cluster.replicas() {
        let address = format!("127.0.0.1:{}", replica.port);
        let ran = format!("SHOW SERVERS LIKE '{address}'");
        let before = number(&operator.row(&ran).await?, "statements")?;
        ensure!(before > 0.0, "{address} runs nothing");
        let begun = Instant::now();
        let row = operator
            .row(&format!("DRAIN SERVER '{address}' WAIT 10"))
            .await?;
        println!("{address} drained after {:?}: {row:?}", begun.elapsed());
        expect(
            &row,
            &[("server", &address), ("draining", "yes"), ("in_use", "0")],
        )?;
        let row = operator.row(&ran).await?;
        expect(
            &row,
            &[
                ("draining", "yes"),
                ("fit", "no"),
                ("state", "up"),
                ("why", "drained"),
            ],
        )?;
        let (drained, done) = (number(&row, "statements")?, load.done.get());
        // What is counted may be a moment behind what runs.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let settled = number(&operator.row(&ran).await?, "statements")?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let still = number(&operator.row(&ran).await?, "statements")?;
        ensure!(
            settled == still,
            "{address} ran {} statements more",
            still - settled
        );
        ensure!(settled - drained < 50.0, "{drained}, then {settled}");
        ensure!(load.done.get() > done + 100, "the clients stand still");
        let row = operator.row(&format!("RESUME SERVER '{address}'")).await?;
        expect(&row, &[("draining", "no")])?;
        operator
            .wait_for(&ran, FOLLOWED, |row| {
                is(row, "fit", "yes")
                    && number(row, "statements").is_ok_and(|ran| ran > still + 10.0)
            })
            .await?;
    }
    ensure!(operator.refused("DRAIN SERVER 'nobody:1'").await? == 1735);
    ensure!(operator.refused("RESUME SERVER 'nobody:1'").await? == 1735);
    Ok(())
}

/// WAIT waits for what runs there, and no longer than it says.
pub(crate) async fn drain_waits(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let mut operator = ground.open().await?;
    let mut client = Connection::open(&app(ground.proxy.address())).await?;
    client
        .send(com::QUERY, b"SELECT port, SLEEP(3) FROM app.place")
        .await?;
    let row = operator
        .wait_for("SHOW SESSIONS WHERE state = 'running'", SOON, |_| true)
        .await?;
    let server = value(&row, "server")?.to_owned();
    let begun = Instant::now();
    let row = operator.row(&format!("DRAIN SERVER '{server}'")).await?;
    expect(&row, &[("draining", "yes"), ("in_use", "1")])?;
    ensure!(begun.elapsed() < Duration::from_secs(1), "it waited");
    let row = operator
        .row(&format!("DRAIN SERVER '{server}' WAIT 1"))
        .await?;
    expect(&row, &[("in_use", "1")])?;
    ensure!(number(&row, "waited_ms")? >= 1000.0, "{row:?}");
    let row = operator
        .row(&format!("DRAIN SERVER '{server}' WAIT 30"))
        .await?;
    expect(&row, &[("in_use", "0")])?;
    ensure!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    // What ran there came to its end.
    let reply = client.read_reply(Expect::Results { binary: false }).await;
    ensure!(reply.scalar().is_some(), "{:?}", reply.render());
    operator.row(&format!("RESUME SERVER '{server}'")).await?;
    Ok(())
}
