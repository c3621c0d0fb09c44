//! Out of memory and from servers by turns: what is older never comes after what is newer.

use std::time::Duration;

use anyhow::ensure;

use crate::ground::Ground;

/// A session that was shown a change out of memory is not shown by a server that lacks it what was before.
pub(crate) async fn a_hit_is_seen(ground: &Ground) -> anyhow::Result<()> {
    const KEPT: &str = "SELECT v FROM c_seen WHERE id = 1";
    // RAND() keeps it out of memory.
    const ASKED: &str = "SELECT v FROM c_seen WHERE id = 1 AND RAND() >= 0";
    let mut direct = ground.direct().await?;
    for sql in [
        "CREATE TABLE c_seen (id INT PRIMARY KEY, v INT)",
        "INSERT INTO c_seen VALUES (1, 0)",
    ] {
        direct.expect(sql).await?;
    }
    let caught_up = ground
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(20));
    caught_up.await?;
    // One replica applies no more, and looks as if it would at any moment.
    let mut late = ground
        .cluster
        .control(&ground.cluster.replicas()[1].name)
        .await?;
    late.run("LOCK TABLES app.c_seen READ").await?;
    let mut outcome = Ok(());
    for value in 1..=3 {
        let sql = format!("UPDATE c_seen SET v = {value}");
        direct.expect(&sql).await?;
        outcome = seen(ground, KEPT, ASKED, &value.to_string()).await;
        if outcome.is_err() {
            break;
        }
    }
    late.close().await;
    outcome
}

async fn seen(ground: &Ground, kept: &str, asked: &str, value: &str) -> anyhow::Result<()> {
    let mut filling = ground.client().await?;
    while !ground
        .until_hit(&mut filling, kept)
        .await?
        .join(" ")
        .contains(value)
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut served = 0;
    for _ in 0..8 {
        let mut client = ground.client().await?;
        let hits = ground.hits().await?;
        let first = client.expect(kept).await?.scalar();
        // A server may answer as well, with what it has.
        if ground.hits().await? > hits {
            served += 1;
            ensure!(first.as_deref() == Some(value), "{first:?} out of memory");
        }
        for _ in 0..3 {
            let then = client.expect(asked).await?.scalar();
            let is_older = first.as_deref() == Some(value) && then != first;
            ensure!(
                !is_older,
                "{then:?} from a server, after {first:?} was seen, {served} times out of memory"
            );
        }
        client.quit().await;
    }
    ensure!(served > 0, "nothing came out of memory");
    Ok(())
}

/// What a server showed before the log told of it is not served before what the log takes away is gone.
pub(crate) async fn nothing_before_the_log(ground: &Ground) -> anyhow::Result<()> {
    const LATE: Duration = Duration::from_millis(300);
    const OLD: &str = "SELECT v FROM c_order WHERE id = 1";
    let mut direct = ground.direct().await?;
    for sql in [
        "CREATE TABLE c_order (id INT PRIMARY KEY, v INT)",
        "INSERT INTO c_order VALUES (1, 0)",
    ] {
        direct.expect(sql).await?;
    }
    let (late, _forwarder) = ground.with_late_log(LATE).await?;
    let mut client = late.client().await?;
    for value in 1..=10_u32 {
        late.until_hit(&mut client, OLD).await?;
        let before = client.expect(OLD).await?.scalar();
        direct
            .expect(&format!("UPDATE c_order SET v = {value}"))
            .await?;
        let caught_up = ground
            .cluster
            .wait_replicas_caught_up(Duration::from_secs(20));
        caught_up.await?;
        // Another key of memory, filled by what servers show now.
        let new = format!("SELECT v FROM c_order WHERE id = 1 AND {value} > 0");
        let mut filling = late.client().await?;
        filling.expect(&new).await?;
        for _ in 0..3 {
            let mut reader = late.client().await?;
            let first = reader.expect(&new).await?.scalar();
            let then = reader.expect(OLD).await?.scalar();
            ensure!(
                first == before || then == first,
                "{then:?} after {first:?}, written beside Millrace"
            );
            reader.quit().await;
        }
        filling.quit().await;
    }
    Ok(())
}
