//! Statements that wait for a primary: their order, their limits, and those that give up.

use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::Cluster;
use millrace_tests::harness::free_port;
use millrace_tests::wire::{Connection, Target};

use crate::ground::{
    app, ask, both, client, ensure_error, kill, proxy, proxy_of_one, scalar, table, wait_held,
};

/// They go out in the order in which they came.
pub(crate) async fn in_order(cluster: &Cluster) -> anyhow::Result<()> {
    const SESSIONS: usize = 12;
    table(
        cluster,
        "in_order (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
    )
    .await?;
    // One connection, so that the order in which they go out is that in which they are run.
    let proxy = proxy_of_one(cluster, "[pool]\nmax_connections = 1\n").await?;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(client(&proxy).await?);
    }
    let next = kill(cluster).await?;
    let (done, mut finished) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for (n, mut session) in sessions.into_iter().enumerate() {
        let done = done.clone();
        tasks.push(tokio::spawn(async move {
            let reply = session
                .query(format!("INSERT INTO in_order (n) VALUES ({n})"))
                .await;
            let _ = done.send(n);
            reply
        }));
        wait_held(&proxy, n + 1).await?;
    }
    cluster.promote(&next.name).await?;
    for task in tasks {
        let reply = task.await?;
        ensure!(reply.err().is_none(), "{:?}", reply.render());
    }
    let mut order = Vec::new();
    while let Ok(n) = finished.try_recv() {
        order.push(n);
    }
    let rows = ask(
        cluster,
        "SELECT GROUP_CONCAT(n ORDER BY id) FROM app.in_order",
    )
    .await?;
    let expected: Vec<_> = (0..SESSIONS).map(|n| n.to_string()).collect();
    ensure!(
        rows == expected.join(","),
        "run as {rows}; answered as {order:?}"
    );
    wait_held(&proxy, 0).await
}

/// Time, number and bytes; reads go on meanwhile.
pub(crate) async fn limits(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "limits (n INT, t LONGTEXT)").await?;
    let options = "[failover]\nhold_time = \"2s\"\nmax_held = 2\nmax_held_bytes = \"2KiB\"\n";
    let proxy = proxy(cluster, options).await?;
    let (mut a, mut b) = (client(&proxy).await?, client(&proxy).await?);
    let (mut c, mut d) = (client(&proxy).await?, client(&proxy).await?);
    let next = kill(cluster).await?;
    let begun = Instant::now();
    let waiting = async { Ok(a.query("INSERT INTO limits VALUES (1, '')").await) };
    let others = async {
        wait_held(&proxy, 1).await?;
        let long = "x".repeat(3000);
        let reply = d
            .query(format!("INSERT INTO limits VALUES (2, '{long}')"))
            .await;
        let message = ensure_error(&reply, 1105, "HY000")?;
        ensure!(message.contains("failover.max_held_bytes"), "{message}");
        let second = async { Ok(b.query("INSERT INTO limits VALUES (3, '')").await) };
        let third = async {
            wait_held(&proxy, 2).await?;
            let reply = c.query("INSERT INTO limits VALUES (4, '')").await;
            let message = ensure_error(&reply, 1105, "HY000")?;
            ensure!(message.contains("failover.max_held (2)"), "{message}");
            let one = scalar(&mut c, "SELECT COUNT(*) FROM limits").await?;
            ensure!(one == "0", "reads go on: {one}");
            Ok(())
        };
        both(second, third).await
    };
    let (first, (second, ())) = both(waiting, others).await?;
    let took = begun.elapsed();
    ensure!(
        took > Duration::from_millis(1900) && took < Duration::from_secs(6),
        "after {took:?}"
    );
    for reply in [first, second] {
        let (code, _, message) = crate::ground::error_of(&reply)?;
        ensure!(matches!(code, 1105 | 1158 | 1159), "{code} {message}");
        ensure!(message.contains("failover.hold_time"), "{message}");
    }
    cluster.promote(&next.name).await?;
    a.expect("INSERT INTO limits VALUES (5, '')").await?;
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n) FROM app.limits").await?;
    ensure!(rows == "5", "{rows}");
    Ok(())
}

/// A client that goes away takes its statement with it.
pub(crate) async fn client_leaves(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "leaves (n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let (mut goes, mut stays) = (client(&proxy).await?, client(&proxy).await?);
    let next = kill(cluster).await?;
    goes.send(3, b"INSERT INTO leaves VALUES (1)").await?;
    wait_held(&proxy, 1).await?;
    drop(goes);
    wait_held(&proxy, 0).await?;
    let writing = async { Ok(stays.query("INSERT INTO leaves VALUES (2)").await) };
    let (reply, ()) = both(writing, async { cluster.promote(&next.name).await }).await?;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n) FROM app.leaves").await?;
    ensure!(rows == "2", "{rows}");
    Ok(())
}

/// KILL QUERY ends the wait.
pub(crate) async fn killed_while_held(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "interrupted (n INT)").await?;
    let proxy = proxy(cluster, "").await?;
    let (mut held, mut killer) = (client(&proxy).await?, client(&proxy).await?);
    let id = scalar(&mut held, "SELECT CONNECTION_ID()").await?;
    // CONNECTION_ID() keeps the connection.
    let mut held_too = client(&proxy).await?;
    let id_too = held_too.greeting.connection_id;
    drop((held, id));
    let next = kill(cluster).await?;
    let writing = async { Ok(held_too.query("INSERT INTO interrupted VALUES (1)").await) };
    let killing = async {
        wait_held(&proxy, 1).await?;
        let reply = killer.query(format!("KILL QUERY {id_too}")).await;
        ensure!(reply.err().is_none(), "{:?}", reply.render());
        Ok(())
    };
    let (reply, ()) = both(writing, killing).await?;
    ensure_error(&reply, 1317, "70100")?;
    wait_held(&proxy, 0).await?;
    cluster.promote(&next.name).await?;
    Ok(())
}

/// COM_RESET_CONNECTION, with which clients' pools begin, waits as well.
pub(crate) async fn reset_while_held(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    session.expect("SET @gone = 1").await?;
    let next = kill(cluster).await?;
    let resetting = async {
        let reply = session
            .command(0x1f, b"", millrace_tests::wire::Expect::Single)
            .await;
        ensure!(reply.err().is_none(), "{:?}", reply.render());
        let gone = scalar(&mut session, "SELECT COALESCE(@gone, 'gone')").await?;
        ensure!(gone == "gone", "{gone}");
        Ok(())
    };
    let promoting = async {
        crate::ground::soon().await;
        cluster.promote(&next.name).await
    };
    both(resetting, promoting).await?;
    Ok(())
}

/// On a listener for replicas nobody takes a write: it is told so at once, and nothing comes to be judged
/// from that.
pub(crate) async fn write_for_replicas(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "for_replicas (n INT)").await?;
    let port = free_port()?;
    let listen = format!("[[listen]]\naddress = \"127.0.0.1:{port}\"\ntarget = \"replicas\"\n");
    let proxy = proxy(cluster, &listen).await?;
    let target = Target::Tcp(format!("127.0.0.1:{port}"));
    let mut reader = Connection::open(&app(target)).await?;
    let begun = Instant::now();
    for begin in ["DO 1", "BEGIN"] {
        reader.expect(begin).await?;
        let reply = reader.query("INSERT INTO for_replicas VALUES (1)").await;
        ensure_error(&reply, 1290, "HY000")?;
        reader.expect("ROLLBACK").await?;
    }
    // It would have waited for as long as statements are held.
    ensure!(begun.elapsed() < Duration::from_secs(3));
    let mut writer = client(&proxy).await?;
    writer.expect("INSERT INTO for_replicas VALUES (2)").await?;
    let rows = ask(cluster, "SELECT GROUP_CONCAT(n) FROM app.for_replicas").await?;
    ensure!(rows == "2", "{rows}");
    Ok(())
}
