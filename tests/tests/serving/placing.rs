//! Which server runs what, and that nothing is written to them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use millrace_sandbox::{Cluster, Family};
use millrace_tests::harness::Launch;
use millrace_tests::wire::{Connection, cap};

use crate::ground::{FOLLOWED, READY, app, port_of, ports_of, proxy, replica_ports, tcp};

pub(crate) async fn targets(cluster: &Cluster) -> anyhow::Result<()> {
    let (for_primary, for_replicas) = (Launch::new()?.port, Launch::new()?.port);
    let more = format!(
        "[[listen]]\naddress = \"127.0.0.1:{for_primary}\"\ntarget = \"primary\"\n\
         [[listen]]\naddress = \"127.0.0.1:{for_replicas}\"\ntarget = \"replicas\"\n"
    );
    let proxy = proxy(cluster, &more).await?;
    let primary = BTreeSet::from([cluster.primary().port]);
    let replicas = replica_ports(cluster);

    let mut auto = Connection::open(&app(proxy.address())).await?;
    auto.expect("CREATE TABLE IF NOT EXISTS targets (x INT)")
        .await?;
    auto.expect("INSERT INTO targets VALUES (1)").await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    // Behind DDL, reads go to the primary until it is known that the replicas have it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let seen = ports_of(&mut auto, 100).await?;
    ensure!(
        seen.is_subset(&replicas),
        "reads of one that has written ran on {seen:?}"
    );
    let mut reader = Connection::open(&app(proxy.address())).await?;
    let seen = ports_of(&mut reader, 100).await?;
    ensure!(
        seen == replicas,
        "reads of the automatic listener ran on {seen:?}"
    );

    let mut connection = Connection::open(&app(tcp(for_primary))).await?;
    let seen = ports_of(&mut connection, 100).await?;
    ensure!(
        seen == primary,
        "reads of the primary's listener ran on {seen:?}"
    );
    connection.expect("INSERT INTO targets VALUES (2)").await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;

    let mut connection = Connection::open(&app(tcp(for_replicas))).await?;
    let seen = ports_of(&mut connection, 100).await?;
    ensure!(
        seen == replicas,
        "reads of the replicas' listener ran on {seen:?}"
    );
    let replica = &cluster.replicas()[0];
    let mut direct = Connection::open(&app(tcp(replica.port))).await?;
    for sql in [
        "INSERT INTO targets VALUES (3)",
        "CREATE TABLE targets_b (x INT)",
        "BEGIN",
        "UPDATE targets SET x=9",
        "SELECT * FROM targets ORDER BY x",
        "ROLLBACK",
        "SELECT * FROM targets WHERE x=1 FOR SHARE",
    ] {
        let (there, here) = (direct.query(sql).await, connection.query(sql).await);
        let (there, here) = (there.render(), here.render());
        ensure!(there == here, "{sql}: direct {there:?}, through {here:?}");
    }
    ensure!(
        replicas.contains(&port_of(&mut connection).await?),
        "after a refused write"
    );
    Ok(())
}

/// `reads = "all"`: the primary takes its share.
pub(crate) async fn reads_on_all(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[routing]\nreads = \"all\"\n").await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let all: BTreeSet<u16> = cluster.servers().iter().map(|s| s.port).collect();
    // Where all servers are idle, a session that reads alone moves now and then only.
    let mut seen = BTreeSet::new();
    for _ in 0..50 {
        seen.extend(ports_of(&mut connection, 20).await?);
        if seen == all {
            break;
        }
    }
    ensure!(seen == all, "{seen:?}");
    Ok(())
}

pub(crate) async fn listener_tls(cluster: &Cluster) -> anyhow::Result<()> {
    let (required, off) = (Launch::new()?.port, Launch::new()?.port);
    let more = format!(
        "[[listen]]\naddress = \"127.0.0.1:{required}\"\ntls = \"required\"\n\
         [[listen]]\naddress = \"127.0.0.1:{off}\"\ntls = \"off\"\n"
    );
    let proxy = proxy(cluster, &more).await?;
    for (port, tls, good) in [
        (proxy.port, false, true),
        (proxy.port, true, true),
        (required, false, false),
        (required, true, true),
        (off, false, true),
    ] {
        let mut login = app(tcp(port));
        login.tls = tls;
        let (connection, reply) = Connection::try_open(&login).await?;
        ensure!(
            connection.is_some() == good,
            "{port} {tls}: {:?}",
            reply.render()
        );
        if let Some(err) = reply.err() {
            ensure!(err.code == 3159, "{err}");
        }
    }
    let connection = Connection::open(&app(tcp(off))).await?;
    ensure!(
        connection.greeting.capabilities & cap::SSL == 0,
        "TLS is offered"
    );
    // What [tls] requires, a listener may waive.
    let (plain, required) = (Launch::new()?.port, Launch::new()?.port);
    let more = format!(
        "[tls]\nrequired = true\n\
         [[listen]]\naddress = \"127.0.0.1:{plain}\"\ntls = \"optional\"\n\
         [[listen]]\naddress = \"127.0.0.1:{required}\"\n"
    );
    let _proxy = self::proxy(cluster, &more).await?;
    for (port, tls, good) in [
        (plain, false, true),
        (required, false, false),
        (required, true, true),
    ] {
        let mut login = app(tcp(port));
        login.tls = tls;
        let (connection, _) = Connection::try_open(&login).await?;
        ensure!(connection.is_some() == good, "[tls] required: {port} {tls}");
    }
    Ok(())
}

/// What every server has executed.
pub(crate) async fn positions(cluster: &Cluster) -> anyhow::Result<Vec<Option<String>>> {
    let sql = match cluster.family() {
        Family::MySql => "SELECT @@gtid_executed",
        Family::MariaDb => "SELECT CONCAT_WS(' ', @@gtid_binlog_state, @@gtid_current_pos)",
    };
    let mut all = Vec::new();
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        all.push(control.value(sql).await?);
        control.close().await;
    }
    Ok(all)
}

pub(crate) async fn writes_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let before = positions(cluster).await?;
    let mut proxy = proxy(cluster, "").await?;
    for tls in [false, true] {
        let mut login = app(proxy.address());
        login.tls = tls;
        let mut connection = Connection::open(&login).await?;
        for sql in [
            "SELECT 1",
            "SET @x=1",
            "BEGIN",
            "SELECT @x",
            "COMMIT",
            "SET time_zone='+02:00'",
        ] {
            connection.expect(sql).await?;
            ports_of(&mut connection, 4).await?;
        }
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.terminate(READY).await?;
    let after = positions(cluster).await?;
    ensure!(before == after, "before {before:?}, after {after:?}");
    Ok(())
}
