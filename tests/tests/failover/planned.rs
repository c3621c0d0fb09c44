//! The primary changes under load: clients that write, transfer and read all the time, and a ledger of
//! what each was told.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::Proxy;
use millrace_tests::wire::{Connection, Login, Reply};

use crate::ground::{app, ask, both, client, next, proxy, proxy_with_operator, run, table};

const WRITERS: usize = 4;
const TELLERS: usize = 4;
const READERS: usize = 2;

/// What clients were told.
#[derive(Default)]
struct Ledger {
    stop: Cell<bool>,
    next: Cell<u64>,
    acknowledged: RefCell<BTreeSet<u64>>,
    /// Told that nothing was done.
    refused: RefCell<BTreeSet<u64>>,
    errors: RefCell<BTreeMap<(&'static str, u16), u32>>,
    longest: Cell<Duration>,
    reads: Cell<u64>,
}

impl Ledger {
    fn number(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    /// Takes down a reply; false where it was an error.
    fn take(
        &self,
        who: &'static str,
        n: u64,
        reply: &Reply,
        begun: Instant,
    ) -> anyhow::Result<bool> {
        self.longest.set(self.longest.get().max(begun.elapsed()));
        if let Some(why) = reply.broken() {
            anyhow::bail!("{who}'s session ended: {why}");
        }
        let Some(err) = reply.err() else {
            return Ok(true);
        };
        *self.errors.borrow_mut().entry((who, err.code)).or_default() += 1;
        if err.code != 1180 {
            self.refused.borrow_mut().insert(n);
        }
        Ok(false)
    }

    async fn write(&self, login: &Login) -> anyhow::Result<()> {
        let mut client = Connection::open(login).await?;
        while !self.stop.get() {
            let (n, begun) = (self.number(), Instant::now());
            let reply = client
                .query(format!("INSERT INTO ledger VALUES ({n})"))
                .await;
            if self.take("writer", n, &reply, begun)? {
                self.acknowledged.borrow_mut().insert(n);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Moves a unit between two accounts and notes it, in one transaction.
    async fn tell(&self, login: &Login, teller: usize) -> anyhow::Result<()> {
        let mut client = Connection::open(login).await?;
        'transfers: while !self.stop.get() {
            let n = self.number();
            let (from, to) = (2 * teller, 2 * teller + 1);
            let statements = [
                "BEGIN".to_owned(),
                format!("SELECT n FROM accounts WHERE id = {from} FOR UPDATE"),
                format!("UPDATE accounts SET n = n - 1 WHERE id = {from}"),
                format!("UPDATE accounts SET n = n + 1 WHERE id = {to}"),
                format!("INSERT INTO ledger VALUES ({n})"),
                "COMMIT".to_owned(),
            ];
            for sql in statements {
                let begun = Instant::now();
                let reply = client.query(sql).await;
                if !self.take("teller", n, &reply, begun)? {
                    client.expect("ROLLBACK").await?;
                    continue 'transfers;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.acknowledged.borrow_mut().insert(n);
        }
        Ok(())
    }

    async fn read(&self, login: &Login) -> anyhow::Result<()> {
        let mut client = Connection::open(login).await?;
        while !self.stop.get() {
            for sql in ["SELECT COUNT(*) FROM accounts", "SELECT @@server_id"] {
                let begun = Instant::now();
                let reply = client.query(sql).await;
                self.take("reader", 0, &reply, begun)?;
                self.reads.set(self.reads.get() + 1);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Runs the load while `fault` happens, and for a moment after it.
    async fn during(
        &self,
        proxy: &Proxy,
        fault: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let login = app(proxy.address());
        let writers = (0..WRITERS).map(|_| self.write(&login));
        let readers = (0..READERS).map(|_| self.read(&login));
        let tellers = (0..TELLERS).map(|teller| self.tell(&login, teller));
        let fault = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let happened = fault.await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            self.stop.set(true);
            happened
        };
        let (a, b, c, d) = tokio::join!(each(writers), each(readers), each(tellers), fault);
        a.and(b).and(c).and(d)?;
        eprintln!(
            "{} acknowledged, {} reads, longest answer {:.2?}, errors {:?}",
            self.acknowledged.borrow().len(),
            self.reads.get(),
            self.longest.get(),
            self.errors.borrow()
        );
        Ok(())
    }

    /// What the primary has must be what clients were told. `lossy`: the primary died with what its
    /// replicas had not received.
    async fn check(&self, cluster: &Cluster, lossy: bool) -> anyhow::Result<()> {
        let mut control = cluster.control(&cluster.primary().name).await?;
        let rows = control
            .value("SELECT CONCAT(COUNT(*), '/', COUNT(DISTINCT n)) FROM app.ledger")
            .await?
            .context("no count")?;
        let (all, distinct) = rows.split_once('/').context("no slash")?;
        ensure!(all == distinct, "something was done twice: {rows}");
        control
            .run("SET SESSION group_concat_max_len = 10000000")
            .await?;
        let there = control
            .value("SELECT COALESCE(GROUP_CONCAT(n), '') FROM app.ledger")
            .await?
            .unwrap_or_default();
        let there: BTreeSet<u64> = there.split(',').filter_map(|n| n.parse().ok()).collect();
        let acknowledged = self.acknowledged.borrow().clone();
        let lost: Vec<_> = acknowledged.difference(&there).collect();
        ensure!(
            lossy || lost.is_empty(),
            "acknowledged and not there: {lost:?}"
        );
        let refused = self.refused.borrow().clone();
        let ghosts: Vec<_> = refused.intersection(&there).collect();
        ensure!(ghosts.is_empty(), "refused and there: {ghosts:?}");
        let sum = control.value("SELECT SUM(n) FROM app.accounts").await?;
        ensure!(sum.as_deref() == Some("800"), "the accounts hold {sum:?}");
        Ok(())
    }

    fn ensure_errors(&self, allowed: &[(&str, u16)]) -> anyhow::Result<()> {
        let errors = self.errors.borrow();
        let others: Vec<_> = errors
            .iter()
            .filter(|(error, _)| !allowed.contains(error))
            .collect();
        ensure!(others.is_empty(), "errors beyond those allowed: {others:?}");
        Ok(())
    }
}

async fn each(
    clients: impl Iterator<Item = impl Future<Output = anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    let mut clients: Vec<_> = clients.map(Box::pin).collect();
    let mut outcome = Ok(());
    std::future::poll_fn(|cx| {
        clients.retain_mut(|client| match client.as_mut().poll(cx) {
            std::task::Poll::Ready(Err(error)) => {
                outcome = Err(error);
                false
            }
            std::task::Poll::Ready(Ok(())) => false,
            std::task::Poll::Pending => true,
        });
        match clients.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outcome
}

async fn ground(cluster: &Cluster) -> anyhow::Result<(Proxy, Ledger)> {
    table(cluster, "accounts (id INT PRIMARY KEY, n INT)").await?;
    // No key: what is done twice is to be seen.
    table(cluster, "ledger (n INT, KEY (n))").await?;
    let accounts: Vec<_> = (0..2 * TELLERS).map(|id| format!("({id}, 100)")).collect();
    run(
        cluster,
        &format!("INSERT INTO app.accounts VALUES {}", accounts.join(",")),
    )
    .await?;
    cluster
        .wait_replicas_caught_up(Duration::from_secs(20))
        .await?;
    Ok((proxy(cluster, "").await?, Ledger::default()))
}

/// An orchestrator makes the primary read only, waits, and has a replica take over.
pub(crate) async fn switchover(cluster: &Cluster) -> anyhow::Result<()> {
    let (proxy, ledger) = ground(cluster).await?;
    let next = next(cluster)?;
    ledger.during(&proxy, cluster.promote(&next.name)).await?;
    ledger.ensure_errors(&[])?;
    ledger.check(cluster, false).await
}

/// It is read only for a moment and comes back.
pub(crate) async fn flips(cluster: &Cluster) -> anyhow::Result<()> {
    let (proxy, ledger) = ground(cluster).await?;
    let flipping = async {
        run(cluster, "SET GLOBAL read_only = ON").await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        run(cluster, "SET GLOBAL read_only = OFF").await
    };
    ledger.during(&proxy, flipping).await?;
    ledger.ensure_errors(&[])?;
    ledger.check(cluster, false).await
}

/// An operator drains it, has a replica take over and lets it come back.
pub(crate) async fn drained(cluster: &Cluster) -> anyhow::Result<()> {
    let (_, ledger) = ground(cluster).await?;
    let (proxy, mut operator) = proxy_with_operator(cluster, "").await?;
    let (old, next) = (cluster.primary(), next(cluster)?);
    let moving = async {
        operator
            .expect(&format!("DRAIN SERVER '127.0.0.1:{}'", old.port))
            .await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.promote(&next.name).await?;
        operator
            .expect(&format!("RESUME SERVER '127.0.0.1:{}'", old.port))
            .await?;
        Ok(())
    };
    ledger.during(&proxy, moving).await?;
    ledger.ensure_errors(&[])?;
    ledger.check(cluster, false).await
}

/// Transactions that are open may go on for a while on a server that is drained, and then leave it.
pub(crate) async fn drained_with_transactions(cluster: &Cluster) -> anyhow::Result<()> {
    table(cluster, "drained (id INT PRIMARY KEY, n INT)").await?;
    let options = "[failover]\ndrain_time = \"2s\"\n";
    let (proxy, mut operator) = proxy_with_operator(cluster, options).await?;
    let (mut quick, mut slow) = (client(&proxy).await?, client(&proxy).await?);
    let mut other = client(&proxy).await?;
    for (session, id) in [(&mut quick, 1), (&mut slow, 2)] {
        session.expect("BEGIN").await?;
        session
            .expect(&format!("INSERT INTO drained VALUES ({id}, 0)"))
            .await?;
    }
    let (old, next) = (cluster.primary(), next(cluster)?);
    let begun = Instant::now();
    operator
        .expect(&format!("DRAIN SERVER '127.0.0.1:{}'", old.port))
        .await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    quick
        .expect("UPDATE drained SET n = 1 WHERE id = 1")
        .await?;
    quick.expect("COMMIT").await?;
    ensure!(
        begun.elapsed() < Duration::from_secs(2),
        "it waited: {:?}",
        begun.elapsed()
    );
    let writing = async { Ok(other.query("INSERT INTO drained VALUES (3, 0)").await) };
    let moving = async {
        // The one that does nothing has left.
        let open = "SELECT COUNT(*) FROM information_schema.INNODB_TRX";
        while ask(cluster, open).await? != "0" {
            ensure!(
                begun.elapsed() < Duration::from_secs(10),
                "a transaction is still open"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ensure!(
            begun.elapsed() > Duration::from_millis(1900),
            "left after {:?}",
            begun.elapsed()
        );
        cluster.promote(&next.name).await
    };
    let (reply, ()) = both(writing, moving).await?;
    ensure!(reply.err().is_none(), "{:?}", reply.render());
    slow.expect("UPDATE drained SET n = 2 WHERE id = 2").await?;
    slow.expect("COMMIT").await?;
    let rows = ask(
        cluster,
        "SELECT GROUP_CONCAT(CONCAT(id, ':', n) ORDER BY id) FROM app.drained",
    )
    .await?;
    ensure!(rows == "1:1,2:2,3:0", "{rows}");
    Ok(())
}

/// It is stopped in order, and a replica takes over.
pub(crate) async fn stopped(cluster: &Cluster) -> anyhow::Result<()> {
    let (proxy, ledger) = ground(cluster).await?;
    let old = cluster.primary();
    let stopping = async {
        cluster.stop(&old.name).await?;
        cluster.promote_best().await.map(drop)
    };
    ledger.during(&proxy, stopping).await?;
    // What was under way when it ended.
    ledger.ensure_errors(&[("writer", 1180), ("teller", 1180), ("teller", 1213)])?;
    // Replication is asynchronous here.
    ledger.check(cluster, true).await
}

/// It is killed, and a replica takes over.
pub(crate) async fn killed(cluster: &Cluster) -> anyhow::Result<()> {
    let (proxy, ledger) = ground(cluster).await?;
    let old = cluster.primary();
    let killing = async {
        cluster.kill(&old.name).await?;
        cluster.promote_best().await.map(drop)
    };
    ledger.during(&proxy, killing).await?;
    ledger.ensure_errors(&[("writer", 1180), ("teller", 1180), ("teller", 1213)])?;
    ledger.check(cluster, true).await
}
