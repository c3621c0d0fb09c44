//! Questions about *the* server are the primary's to answer, unless the session asks for replicas; and what a
//! server says of a long statement's progress.

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::wire::{Connection, Item, Login, cap};

use crate::ground::{app, proxy};

/// What tells servers apart, by text and prepared.
pub(crate) async fn the_server(cluster: &Cluster) -> anyhow::Result<()> {
    let primary = cluster.primary().port;
    let proxy = proxy(cluster, "").await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let prepared = connection.prepare(b"SELECT @@port").await.statement_id();
    let (statement, _) = prepared.context("not prepared")?;
    for _ in 0..8 {
        for question in [
            "SELECT @@port",
            "SHOW VARIABLES LIKE 'port'",
            "SELECT VARIABLE_VALUE FROM information_schema.global_variables WHERE VARIABLE_NAME='port'",
        ] {
            let reply = connection.query(question).await;
            if reply.err().is_some() {
                // MySQL has it in performance_schema only.
                continue;
            }
            let rows = reply.rows();
            let port = rows.first().and_then(|row| row.last().cloned().flatten());
            ensure!(port == Some(primary.to_string()), "{question}: {port:?}");
        }
        let reply = connection.execute(statement, 0, &[], true).await;
        let binary = reply.rows();
        let port = binary.first().and_then(|row| row.last().cloned().flatten());
        ensure!(port == Some(primary.to_string()), "prepared: {port:?}");
        // Who asks for replicas is told of those, and of none where the session itself is asked about.
        let asked = "SELECT /* millrace: replica */ @@port";
        let port = connection.expect(asked).await?.scalar();
        ensure!(
            port.is_some() && port != Some(primary.to_string()),
            "{asked}: {port:?}"
        );
        let asked = "SELECT /* millrace: replica */ @@port, ROW_COUNT()";
        let port = connection.expect(asked).await?.scalar();
        ensure!(port == Some(primary.to_string()), "{asked}: {port:?}");
    }
    Ok(())
}

/// MariaDB's progress reports reach the client that asked for them, and no other.
pub(crate) async fn progress(cluster: &Cluster) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    for sql in [
        "CREATE TABLE app.long_one (a INT, b VARCHAR(200)) ENGINE=Aria",
        "INSERT INTO app.long_one SELECT seq, REPEAT('x', 200) FROM app.seq_1_to_300000",
    ] {
        control.run(sql).await?;
    }
    control.close().await;
    let proxy = proxy(cluster, "").await?;
    let reports = async |login: Login| -> anyhow::Result<usize> {
        let mut connection = Connection::open(&login).await?;
        connection.expect("SET progress_report_time = 1").await?;
        let alter =
            "ALTER TABLE app.long_one DROP KEY IF EXISTS k, ADD KEY k (b, a), ALGORITHM=COPY";
        let reply = connection.expect(alter).await?;
        let reports = reply
            .events
            .iter()
            .filter(|event| event.item == Item::Progress);
        let reports = reports.count();
        connection.expect("SELECT 1").await?;
        Ok(reports)
    };
    let mut login = app(proxy.address());
    let without = reports(login.clone()).await?;
    login.capabilities |= cap::MARIADB_PROGRESS;
    let with = reports(login).await?;
    println!("  {with} reports");
    ensure!(
        with > 0 && without == 0,
        "{with} reports, {without} unasked"
    );
    Ok(())
}
