//! A replica that has accounts of its own: nobody gets there what the primary does not give.

use anyhow::ensure;
use millrace_sandbox::Family;
use millrace_tests::wire::{Connection, Login};

use crate::{Ground, PASSWORD, tcp};

const TWIN: &str = "fl_twin";

/// Says something to the replica alone.
async fn alone(ground: &Ground, statements: &[String]) -> anyhow::Result<()> {
    let mut control = ground.cluster.control("s2").await?;
    let lock = |on: &str| match ground.cluster.family() {
        Family::MySql => format!("SET GLOBAL super_read_only = {on}"),
        Family::MariaDb => "DO 0".to_owned(),
    };
    control.run(&lock("OFF")).await?;
    control.run("SET sql_log_bin = 0").await?;
    for sql in statements {
        control.run(sql).await?;
    }
    control.run(&lock("ON")).await?;
    control.close().await;
    Ok(())
}

pub(crate) async fn of_a_replica(ground: &Ground) -> anyhow::Result<()> {
    for sql in [
        format!("CREATE USER '{TWIN}'@'%' IDENTIFIED BY '{PASSWORD}'"),
        format!("GRANT SELECT ON fl.* TO '{TWIN}'@'%'"),
    ] {
        ground.control(&sql).await?;
    }
    let twin = format!("'{TWIN}'@'127.0.0.1'");
    let create = format!("CREATE USER {twin} IDENTIFIED BY '{PASSWORD}'");
    let grant = format!("GRANT SELECT ON fl2.* TO {twin}");
    alone(ground, &[create, grant]).await?;
    let outcome = denied(ground).await;
    alone(ground, &[format!("DROP USER {twin}")]).await?;
    outcome?;
    // The replica is used again.
    let login = Login::new(tcp(ground.proxy.port), TWIN, PASSWORD);
    let replica = ground.cluster.replicas()[0].port.to_string();
    let begun = std::time::Instant::now();
    loop {
        let mut client = Connection::open(&login).await?;
        client.expect("SELECT COUNT(*) FROM fl.t").await?;
        let route = client.expect("SHOW ROUTE").await?;
        client.quit().await;
        let place = route.rows().first().and_then(|row| row[1].clone());
        if place.is_some_and(|place| place.ends_with(&replica)) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < crate::READY,
            "the replica is not used again"
        );
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn denied(ground: &Ground) -> anyhow::Result<()> {
    for port in [ground.cluster.primary().port, ground.proxy.port] {
        let login = Login::new(tcp(port), TWIN, PASSWORD);
        for _ in 0..8 {
            let mut client = Connection::open(&login).await?;
            client.expect("SELECT COUNT(*) FROM fl.t").await?;
            let reply = client.query("SELECT COUNT(*) FROM fl2.t").await;
            let found = reply.err().map(|error| error.code);
            ensure!(found == Some(1142), "{port}: {found:?}");
            let who = client.expect("SELECT CURRENT_USER()").await?.scalar();
            ensure!(who == Some(format!("{TWIN}@%")), "{port}: {who:?}");
            client.quit().await;
        }
    }
    Ok(())
}
