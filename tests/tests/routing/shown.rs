//! A primary shows a transaction later than its replicas do: who has seen it there does not find it gone here.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{Cluster, ClusterSpec, Family, Release};
use millrace_tests::checks::Checks;
use millrace_tests::wire::Connection;

use crate::ground::{app, proxy, tcp};

const REPLICA: &str = "SELECT /* millrace: replica */ v FROM shown WHERE id = 1";
/// Out of memory, where that is on; else on a replica.
const KEPT: &str = "SELECT v FROM shown WHERE id = 1";
const CACHE: &str = "[cache]\nmode = \"auto\"\nsecond_use = false\n";
const PRIMARY: &str = "SELECT /* millrace: primary */ v FROM shown WHERE id = 1";

/// How long the primary keeps the transaction from its readers.
const WINDOW: Duration = Duration::from_secs(2);

/// What a session does on the primary after it has read on a replica; the last one's answer counts.
const WAYS: [&[&str]; 7] = [
    &[PRIMARY],
    &["BEGIN", "SELECT v FROM shown WHERE id = 1"],
    &[
        "START TRANSACTION READ WRITE, WITH CONSISTENT SNAPSHOT",
        PRIMARY,
    ],
    &["CALL shown_by_routine()"],
    &["HANDLER shown OPEN", "HANDLER shown READ `PRIMARY` = (1)"],
    &[
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "CREATE TEMPORARY TABLE shown_here AS SELECT v FROM shown WHERE id = 1",
        "SELECT v FROM shown_here",
    ],
    // Written by what is read without locks: an answer of its own, from another table.
    &[
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "INSERT INTO shown_copy SELECT CONNECTION_ID(), v FROM shown WHERE id = 1",
        "SELECT /* millrace: primary */ MAX(v) FROM shown_copy",
    ],
];

/// A cluster whose primary waits for one replica's acknowledgement, and sends what it waits for to another.
async fn cluster(release: Release) -> anyhow::Result<Cluster> {
    let mut spec = ClusterSpec::new(release);
    spec.semi_sync = true;
    let cluster = Cluster::up(spec).await?;
    let mut first = cluster.control(&cluster.replicas()[0].name).await?;
    let restart: &[&str] = match cluster.family() {
        Family::MySql => &[
            "SET GLOBAL rpl_semi_sync_replica_enabled = OFF",
            "STOP REPLICA IO_THREAD",
            "START REPLICA IO_THREAD",
        ],
        Family::MariaDb => &[
            "SET GLOBAL rpl_semi_sync_slave_enabled = OFF",
            "STOP SLAVE IO_THREAD",
            "START SLAVE IO_THREAD",
        ],
    };
    for sql in restart {
        first.run(sql).await?;
    }
    first.close().await;
    let mut direct = Connection::open(&app(tcp(cluster.primary().port))).await?;
    for sql in [
        "CREATE TABLE shown (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE shown_copy (id BIGINT, v INT)",
        "CREATE TABLE shown_other (id INT PRIMARY KEY, v INT)",
        "CREATE PROCEDURE shown_by_routine() READS SQL DATA SELECT v FROM shown WHERE id = 1",
        "INSERT INTO shown VALUES (1, 0)",
        "INSERT INTO shown_other VALUES (1, 0)",
    ] {
        direct.expect(sql).await?;
    }
    direct.quit().await;
    let caught_up = cluster.wait_replicas_caught_up(Duration::from_secs(20));
    caught_up.await?;
    Ok(cluster)
}

/// Until the transaction is acknowledged: a session that has seen it on a replica is not answered without it.
async fn waited_for(cluster: &Cluster, level: &str, memory: bool) -> anyhow::Result<()> {
    let proxy = proxy(cluster, if memory { CACHE } else { "" }).await?;
    let mut sessions = Vec::new();
    for _ in WAYS {
        let mut session = Connection::open(&app(proxy.address())).await?;
        let set = format!("SET @@millrace_consistency = '{level}'");
        session.expect(&set).await?;
        session.expect(REPLICA).await?;
        sessions.push(session);
    }
    let primary = tcp(cluster.primary().port);
    let mut direct = Connection::open(&app(primary.clone())).await?;
    let before = direct.expect(PRIMARY).await?.scalar().context("no row")?;
    let after = (before.parse::<u32>()? + 1).to_string();
    let silent = &cluster.replicas()[1].name;
    cluster.pause(silent).await?;
    // Two, as the second commit keeps more of the primary's locks.
    let writes = ["shown", "shown_other"].map(|table| {
        let primary = primary.clone();
        tokio::spawn(async move {
            let mut writer = Connection::open(&app(primary)).await?;
            let sql = format!("UPDATE {table} SET v = v + 1");
            writer.expect(&sql).await.map(|_| writer)
        })
    });
    let looked = look(&mut direct, sessions, memory, &before, &after);
    let window = async {
        tokio::time::sleep(WINDOW).await;
        cluster.resume(silent).await
    };
    let (looked, resumed) = tokio::join!(looked, window);
    resumed?;
    for write in writes {
        write.await??.quit().await;
    }
    looked
}

async fn look(
    direct: &mut Connection,
    sessions: Vec<Connection>,
    memory: bool,
    before: &str,
    after: &str,
) -> anyhow::Result<()> {
    let mut ways = tokio::task::JoinSet::new();
    for (mut session, way) in sessions.into_iter().zip(WAYS) {
        let (before, after) = (before.to_owned(), after.to_owned());
        ways.spawn(async move {
            seen_elsewhere(&mut session, memory, &before, &after).await?;
            seen_here(session, way, &after).await
        });
    }
    // The primary itself does not show it: otherwise nothing is said by what the sessions see.
    tokio::time::sleep(WINDOW / 2).await;
    let hidden = direct.expect(PRIMARY).await?.scalar();
    while let Some(way) = ways.join_next().await {
        way??;
    }
    ensure!(
        hidden.as_deref() == Some(before),
        "shown at once: {hidden:?}"
    );
    Ok(())
}

/// The replica that has shown it answers nobody any more, so that nobody can ask what it had.
async fn replica_lost(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut session = Connection::open(&app(proxy.address())).await?;
    let before = session.expect(REPLICA).await?.scalar().context("no row")?;
    let after = (before.parse::<u32>()? + 1).to_string();
    let [showing, silent] = [0, 1].map(|at| cluster.replicas()[at].name.clone());
    cluster.pause(&silent).await?;
    let primary = tcp(cluster.primary().port);
    let write = tokio::spawn(async move {
        let mut writer = Connection::open(&app(primary)).await?;
        writer
            .expect("UPDATE shown SET v = v + 1")
            .await
            .map(|_| writer)
    });
    seen_elsewhere(&mut session, false, &before, &after).await?;
    cluster.pause(&showing).await?;
    let window = async {
        tokio::time::sleep(WINDOW).await;
        cluster.resume(&silent).await
    };
    let (seen, resumed) = tokio::join!(session.expect(PRIMARY), window);
    cluster.resume(&showing).await?;
    resumed?;
    write.await??.quit().await;
    let seen = seen?.scalar();
    ensure!(
        seen.as_ref() == Some(&after),
        "{seen:?}, after {after} was seen"
    );
    let caught_up = cluster.wait_replicas_caught_up(Duration::from_secs(20));
    caught_up.await
}

async fn seen_elsewhere(
    session: &mut Connection,
    memory: bool,
    before: &str,
    after: &str,
) -> anyhow::Result<()> {
    let sql = if memory { KEPT } else { REPLICA };
    loop {
        let shown = session.expect(sql).await?.scalar();
        if shown.as_deref() == Some(after) {
            if !memory || is_out_of_memory(session).await? {
                return Ok(());
            }
        } else {
            ensure!(shown.as_deref() == Some(before), "{shown:?} from {sql}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn is_out_of_memory(session: &mut Connection) -> anyhow::Result<bool> {
    let reply = session.expect("SHOW ROUTE").await?;
    let first = reply.rows().first().and_then(|row| row[1].clone());
    Ok(first.is_some_and(|place| place.starts_with("memory")))
}

async fn seen_here(mut session: Connection, way: &[&str], after: &str) -> anyhow::Result<()> {
    let mut last = None;
    for sql in way {
        let rows = session.expect(sql).await?.rows();
        last = rows.first().and_then(|row| row.last().cloned().flatten());
    }
    let went_back = last.as_deref() != Some(after);
    ensure!(!went_back, "{last:?} from {way:?}, after {after} was seen");
    session.quit().await;
    Ok(())
}

pub(crate) async fn later_on_the_primary(release: Release) -> anyhow::Result<()> {
    let cluster = cluster(release).await?;
    let mut checks = Checks::new(format!("routing, shown later, {release}"));
    for (level, memory) in [
        ("session", false),
        ("instance", false),
        ("global", false),
        ("session", true),
        ("instance", true),
    ] {
        let name = format!(
            "shown later by the primary, {level}{}",
            if memory { ", out of memory" } else { "" }
        );
        let waited_for = waited_for(&cluster, level, memory);
        checks.run(&name, waited_for).await;
    }
    checks
        .run("shown later, the replica lost", replica_lost(&cluster))
        .await;
    checks.finish()
}
