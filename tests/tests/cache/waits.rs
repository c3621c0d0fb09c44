//! Sessions that ask for what another one is reading: they wait for it where that saves a server much, and get what it
//! would have answered.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_tests::wire::Connection;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::ground::{Ground, told_by};

/// It takes a server tens of milliseconds.
const SLOW: &str = "SELECT SUM(a.n + b.n * c.n + d.n) FROM c_count a, c_count b, c_count c, c_count d, c_count e, \
                    c_count f WHERE f.id <= 4 AND a.n + b.n + c.n + d.n + e.n >= 0";

/// How many ask at once.
const CLIENTS: usize = 4;

/// A statement takes no longer than this, whatever it waits for.
const LIMIT: Duration = Duration::from_secs(10);

/// Somebody is served after a wait within this, on whatever machine: a busy one answers some sooner by a server, and some not
/// before their wait has ended.
const SERVED_WITHIN: Duration = Duration::from_secs(60);

async fn served(ground: &Ground) -> anyhow::Result<u64> {
    let served = told_by(ground.admin_port, "waits_served").await?;
    Ok(served.parse()?)
}

type Asked = JoinHandle<(Connection, Vec<String>)>;

fn ask(mut client: Connection) -> Asked {
    tokio::spawn(async move {
        let told = client.query(SLOW).await.render();
        (client, told)
    })
}

/// One reads, the others wait and are served; one whose reader has gone away is answered all the same.
pub(crate) async fn for_a_fill(ground: &Ground) -> anyhow::Result<()> {
    let mut writer = ground.client().await?;
    let mut direct = ground.direct().await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(ground.client().await?);
    }
    let before = served(ground).await?;
    let begun = Instant::now();
    let mut value = 0;
    while served(ground).await? == before {
        ensure!(
            begun.elapsed() < SERVED_WITHIN,
            "nobody was served after a wait: {:#?}",
            ground.reasons().await?
        );
        value += 1;
        // So that it is known how long it takes.
        ground.until_hit(&mut writer, SLOW).await?;
        let write = format!("UPDATE c_count SET n = {value} WHERE id = 3");
        writer.expect(&write).await?;
        let wanted = direct.expect(SLOW).await?.render();
        // Nobody reads it for others before the log has told of the write: sooner or later, as fast as the machine is.
        tokio::time::sleep(Duration::from_millis(value % 20)).await;
        let asked: Vec<Asked> = clients.drain(..).map(ask).collect();
        for one in asked {
            let (client, told) = timeout(LIMIT, one).await.context("no answer")??;
            ensure!(told == wanted, "{told:#?}, direct {wanted:#?}");
            clients.push(client);
        }
    }
    for _ in 0..2 {
        value += 1;
        let write = format!("UPDATE c_count SET n = {value} WHERE id = 3");
        writer.expect(&write).await?;
        let wanted = direct.expect(SLOW).await?.render();
        let reader = ask(ground.client().await?);
        tokio::time::sleep(Duration::from_millis(5)).await;
        let asked: Vec<Asked> = clients.drain(..).map(ask).collect();
        // Its connection is closed.
        reader.abort();
        for one in asked {
            let (client, told) = timeout(LIMIT, one).await.context("no answer")??;
            ensure!(
                told == wanted,
                "a reader is gone: {told:#?}, direct {wanted:#?}"
            );
            clients.push(client);
        }
    }
    Ok(())
}
