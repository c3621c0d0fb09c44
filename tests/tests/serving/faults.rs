//! Servers that stop, crash, come back or change their roles.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::Launch;
use millrace_tests::wire::{Connection, Login};

use crate::ground::{
    FOLLOWED, QUICK, app, proxy, replica_ports, running_replicas, tcp, toml, wait_fit,
};

/// Four clients read all the time; none may see an error. What they saw last is the answer.
pub(crate) struct Readers<'a> {
    pub(crate) login: &'a Login,
    pub(crate) sql: &'static str,
    pub(crate) stop: Cell<bool>,
    pub(crate) reads: Cell<u64>,
    pub(crate) recent: RefCell<Vec<u16>>,
}

impl<'a> Readers<'a> {
    pub(crate) fn new(login: &'a Login, sql: &'static str) -> Self {
        Self {
            login,
            sql,
            stop: Cell::new(false),
            reads: Cell::new(0),
            recent: RefCell::default(),
        }
    }

    pub(crate) async fn read(&self) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.login).await?;
        while !self.stop.get() {
            let reply = connection.expect(self.sql).await;
            let reply = reply.with_context(|| format!("after {} reads", self.reads.get()))?;
            let port = reply.scalar().context("no port")?.parse()?;
            self.reads.set(self.reads.get() + 1);
            self.recent.borrow_mut().push(port);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Where the reads from now on run.
    pub(crate) async fn next(&self, reads: usize) -> BTreeSet<u16> {
        self.recent.borrow_mut().clear();
        while self.recent.borrow().len() < reads {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.recent.borrow().iter().copied().collect()
    }

    /// Waits until reads run on just these servers.
    pub(crate) async fn until(&self, expected: &BTreeSet<u16>) -> anyhow::Result<()> {
        let deadline = Instant::now() + FOLLOWED;
        loop {
            let seen = self.next(60).await;
            if seen == *expected {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "reads run on {seen:?} instead of {expected:?}"
            );
        }
    }

    /// Reads while `faults` happen.
    pub(crate) async fn during(
        &self,
        faults: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let all = async {
            let faults = async {
                let outcome = faults.await;
                self.stop.set(true);
                outcome
            };
            tokio::try_join!(self.read(), self.read(), self.read(), self.read(), faults)
        };
        all.await.map(drop)
    }
}

pub(crate) async fn replica_goes(
    cluster: &Cluster,
    sql: &'static str,
    kill: bool,
) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let all = replica_ports(cluster);
    let gone = cluster.replicas()[0].clone();
    let others = BTreeSet::from_iter(all.iter().copied().filter(|p| *p != gone.port));
    let readers = Readers::new(&login, sql);
    readers
        .during(async {
            readers.until(&all).await?;
            if kill {
                cluster.kill(&gone.name).await?;
            } else {
                cluster.stop(&gone.name).await?;
            }
            readers.until(&others).await?;
            cluster.start(&gone.name).await?;
            readers.until(&all).await
        })
        .await
}

pub(crate) async fn applier_stops(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let all = replica_ports(cluster);
    let gone = cluster.replicas()[0].clone();
    let others = BTreeSet::from_iter(all.iter().copied().filter(|p| *p != gone.port));
    let readers = Readers::new(&login, QUICK);
    readers
        .during(async {
            readers.until(&all).await?;
            cluster.stop_applier(&gone.name).await?;
            readers.until(&others).await?;
            cluster.start_applier(&gone.name).await?;
            readers.until(&all).await
        })
        .await
}

/// A read that late replicas could not take runs on the primary, and on the primary alone.
pub(crate) async fn given_up_reads_end(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut client = Connection::open(&app(proxy.address())).await?;
    client
        .expect("CREATE TABLE IF NOT EXISTS given_up (n INT)")
        .await?;
    let values: Vec<String> = (0..800).map(|n| format!("({n})")).collect();
    let insert = format!("INSERT INTO given_up VALUES {}", values.join(","));
    client.expect(&insert).await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let late = |seconds| async move {
        for replica in cluster.replicas() {
            cluster.delay_applier(&replica.name, seconds).await?;
        }
        anyhow::Ok(())
    };
    late(20).await?;
    client.expect("INSERT INTO given_up VALUES (0)").await?;
    let watched = async {
        let mut controls = Vec::new();
        for server in cluster.servers() {
            controls.push((server.name.clone(), cluster.control(&server.name).await?));
        }
        let primary = cluster.primary().name.clone();
        let running = "SELECT COUNT(*) FROM information_schema.processlist \
            WHERE info LIKE 'SELECT COUNT(*) FROM given_up%'";
        let deadline = Instant::now() + Duration::from_secs(4);
        loop {
            let mut on = Vec::new();
            for (name, control) in &mut controls {
                if control.value(running).await?.as_deref() == Some("1") {
                    on.push(name.clone());
                }
            }
            if on == [primary.clone()] {
                return anyhow::Ok(());
            }
            ensure!(Instant::now() < deadline, "it runs on {on:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    // Far longer than the check takes; the client leaves in the middle of it.
    let reading = client
        .query("SELECT COUNT(*) FROM given_up a, given_up b, given_up c WHERE a.n + b.n + c.n > 5");
    let watched = tokio::select! {
        watched = watched => watched,
        reply = reading => Err(anyhow::anyhow!("answered: {reply:?}")),
    };
    // Nor is the primary to be busy with it in the next check.
    let mut control = cluster.control(&cluster.primary().name).await?;
    let running = "SELECT id FROM information_schema.processlist \
        WHERE info LIKE 'SELECT COUNT(*) FROM given_up%'";
    if let Some(id) = control.value(running).await? {
        let _ = control.value(&format!("KILL {id}")).await;
    }
    late(0).await?;
    watched
}

/// With all replicas gone the primary serves, and the listener for replicas says why it cannot.
pub(crate) async fn all_replicas_go(cluster: &Cluster) -> anyhow::Result<()> {
    let for_replicas = Launch::new()?.port;
    let more =
        format!("[[listen]]\naddress = \"127.0.0.1:{for_replicas}\"\ntarget = \"replicas\"\n");
    let proxy = proxy(cluster, &more).await?;
    let login = app(proxy.address());
    let all = replica_ports(cluster);
    let primary = BTreeSet::from([cluster.primary().port]);
    let mut only = Connection::open(&app(tcp(for_replicas))).await?;
    let readers = Readers::new(&login, QUICK);
    readers
        .during(async {
            readers.until(&all).await?;
            for replica in cluster.replicas() {
                cluster.kill(&replica.name).await?;
            }
            readers.until(&primary).await?;
            let reply = only.query("SELECT 1").await;
            ensure!(reply.err().is_some(), "replicas only: {:?}", reply.render());
            let ready = proxy.http("/readyz").await?;
            ensure!(ready.starts_with("HTTP/1.1 200"), "{ready}");
            let mut writer = Connection::open(&login).await?;
            writer
                .expect("CREATE TABLE IF NOT EXISTS without_replicas (x INT)")
                .await?;
            writer
                .expect("INSERT INTO without_replicas VALUES (1)")
                .await?;
            writer.expect("SELECT * FROM without_replicas").await?;
            for replica in cluster.replicas() {
                cluster.start(&replica.name).await?;
            }
            readers.until(&all).await?;
            only.expect("SELECT 1").await?;
            Ok(())
        })
        .await
}

/// A server that is down when the proxy starts takes part once it is up.
pub(crate) async fn down_at_start(cluster: &Cluster) -> anyhow::Result<()> {
    let all = replica_ports(cluster);
    let gone = cluster.replicas()[1].clone();
    let others = BTreeSet::from_iter(all.iter().copied().filter(|p| *p != gone.port));
    cluster.stop(&gone.name).await?;
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let readers = Readers::new(&login, QUICK);
    readers
        .during(async {
            readers.until(&others).await?;
            cluster.start(&gone.name).await?;
            readers.until(&all).await
        })
        .await
}

/// Nothing is up when it starts: it waits, and serves once something is.
pub(crate) async fn nothing_at_start(cluster: &Cluster) -> anyhow::Result<()> {
    let names: Vec<String> = cluster.servers().into_iter().map(|s| s.name).collect();
    for name in &names {
        cluster.stop(name).await?;
    }
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, "");
    let mut proxy = launch.config(&text).spawn()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(proxy.alive(), "it gave up: {}", proxy.log());
    // A key that is made at start takes seconds where the machine is busy.
    let answered = async {
        loop {
            match proxy.http("/readyz").await {
                Ok(ready) => break ready,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let ready = tokio::time::timeout(FOLLOWED, answered).await?;
    ensure!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    let (connection, reply) = Connection::try_open(&app(proxy.address())).await?;
    ensure!(
        connection.is_none() && reply.err().is_some(),
        "{:?}",
        reply.render()
    );
    for name in &names {
        cluster.start(name).await?;
    }
    proxy.wait_ready(FOLLOWED).await?;
    wait_fit(&proxy, cluster, running_replicas(cluster)).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    connection
        .expect("CREATE TABLE IF NOT EXISTS at_last (x INT)")
        .await?;
    connection.expect("INSERT INTO at_last VALUES (1)").await?;
    Ok(())
}

/// A promotion by hand: writes follow, in the same session; the old primary becomes a replica.
pub(crate) async fn promoted(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let mut session = Connection::open(&login).await?;
    let old = cluster.primary();
    session
        .expect("CREATE TABLE IF NOT EXISTS promoted (n INT, port INT)")
        .await?;
    session.expect("DELETE FROM promoted").await?;
    session.expect("SET @mine='still here'").await?;
    session
        .expect("INSERT INTO promoted VALUES (0, @@port)")
        .await?;
    let new = cluster.replicas()[0].clone();
    cluster.promote(&new.name).await?;
    let started = Instant::now();
    let mut errors = BTreeSet::new();
    loop {
        let reply = session
            .query("INSERT INTO promoted VALUES (1, @@port)")
            .await;
        match (reply.err(), reply.broken()) {
            (None, None) => break,
            (Some(err), _) => drop(errors.insert(err.to_string())),
            (None, Some(why)) => bail!("the session ended: {why}"),
        }
        ensure!(
            started.elapsed() < FOLLOWED,
            "no write after {FOLLOWED:?}: {errors:?}; {}",
            proxy.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!(
        "writes followed after {:.1?}, errors meanwhile: {errors:?}",
        started.elapsed()
    );
    let reply = session
        .expect("SELECT @mine, COUNT(*), MAX(port) FROM promoted")
        .await?;
    let expected = [Some("still here".to_owned()), Some("2".to_owned())];
    ensure!(reply.rows()[0][..2] == expected, "{:?}", reply.render());
    let mut control = cluster.control(&new.name).await?;
    let there = control.value("SELECT COUNT(*) FROM app.promoted").await?;
    ensure!(
        there.as_deref() == Some("2"),
        "on the new primary: {there:?}"
    );
    let readers = Readers::new(&login, QUICK);
    let replicas = replica_ports(cluster);
    ensure!(
        replicas.contains(&old.port),
        "the old primary is a replica now"
    );
    readers.during(readers.until(&replicas)).await
}

/// Brings back what a failed check left down; a server may still be on its way down.
pub(crate) async fn mend(cluster: &Cluster) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = try_mend(cluster).await {
        ensure!(
            Instant::now() < deadline,
            "the cluster stays broken: {error:#}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

pub(crate) async fn try_mend(cluster: &Cluster) -> anyhow::Result<()> {
    for server in cluster.servers() {
        if server.pid.is_none() {
            cluster.start(&server.name).await?;
        }
    }
    for replica in cluster.replicas() {
        cluster.start_applier(&replica.name).await?;
    }
    cluster.wait_replicas_caught_up(FOLLOWED).await
}
