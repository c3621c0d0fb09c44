//! What all checks of the cache stand on: servers, a proxy whose cache is on, and how one sees what it does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, Release};
use millrace_tests::harness::{self, Proxy, ProxyOptions};
use millrace_tests::late_log::LateLog;
use millrace_tests::wire::{Connection, Login, Target};

/// A write that nobody of Millrace's clients made is seen within this.
pub(crate) const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// Servers and a proxy before them.
pub(crate) struct Ground {
    pub(crate) release: Release,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) proxy: Proxy,
    pub(crate) admin_port: u16,
}

/// The configuration of a proxy that caches whatever it can, at first sight.
pub(crate) fn options(admin_port: u16) -> ProxyOptions {
    ProxyOptions {
        extra: format!(
            "[admin]\nlisten = \"127.0.0.1:{admin_port}\"\n\
             password_env = \"MILLRACE_ADMIN_PASSWORD\"\n\
             [cache]\nmode = \"auto\"\nsecond_use = false\n"
        ),
        ..ProxyOptions::default()
    }
}

/// Where the servers are.
pub(crate) fn addresses(cluster: &Cluster) -> Vec<String> {
    let servers = cluster.servers();
    let addresses = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port));
    addresses.collect()
}

/// A value of SHOW CACHE.
pub(crate) async fn told_by(admin_port: u16, name: &str) -> anyhow::Result<String> {
    let target = Target::Tcp(format!("127.0.0.1:{admin_port}"));
    let login = Login::new(target, "admin", harness::ADMIN_PASSWORD);
    let mut operator = Connection::open(&login).await?;
    let reply = operator.expect("SHOW CACHE").await?;
    let rows = reply.rows();
    let row = rows.iter().find(|row| row[0].as_deref() == Some(name));
    let value = row.and_then(|row| row[1].clone());
    operator.quit().await;
    value.with_context(|| format!("SHOW CACHE has no {name}: {rows:?}"))
}

/// Waits until a proxy's results can be served.
pub(crate) async fn until_serving(admin_port: u16) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let state = told_by(admin_port, "state").await?;
        if state == "serving" {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(15),
            "the cache is {state}: {}",
            told_by(admin_port, "reason").await?
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Ground {
    pub(crate) async fn start(release: Release, replicas: usize) -> anyhow::Result<Ground> {
        let cluster = harness::cluster(release, replicas).await?;
        let addresses = addresses(&cluster);
        Self::of(release, Arc::new(cluster), &addresses, "").await
    }

    async fn of(
        release: Release,
        cluster: Arc<Cluster>,
        addresses: &[String],
        more: &str,
    ) -> anyhow::Result<Ground> {
        let admin_port = harness::free_port()?;
        let mut options = options(admin_port);
        options.extra.push_str(more);
        let proxy = Proxy::start(addresses, &options).await?;
        let ground = Ground {
            release,
            cluster,
            proxy,
            admin_port,
        };
        until_serving(admin_port).await?;
        Ok(ground)
    }

    /// Another proxy before the same servers, to which the log comes late.
    pub(crate) async fn with_late_log(&self, delay: Duration) -> anyhow::Result<(Ground, LateLog)> {
        let late = LateLog::start(self.cluster.primary().port, delay).await?;
        let mut addresses = addresses(&self.cluster);
        let primary = format!(":{}", self.cluster.primary().port);
        for address in &mut addresses {
            if address.ends_with(&primary) {
                *address = format!("127.0.0.1:{}", late.port);
            }
        }
        // The forwarder reads what is said to the primary.
        let more = "[server_tls]\nmode = \"disabled\"\n";
        let ground = Self::of(self.release, self.cluster.clone(), &addresses, more).await?;
        Ok((ground, late))
    }

    /// A client of Millrace.
    pub(crate) async fn client(&self) -> anyhow::Result<Connection> {
        self.client_as(APP.user, APP.password).await
    }

    pub(crate) async fn client_as(&self, user: &str, password: &str) -> anyhow::Result<Connection> {
        let login = Login::new(self.proxy.address(), user, password).database("app");
        Ok(Connection::open(&login).await?)
    }

    /// A client of the primary.
    pub(crate) async fn direct(&self) -> anyhow::Result<Connection> {
        let login = harness::admin(self.cluster.primary().port).database("app");
        Ok(Connection::open(&login).await?)
    }

    pub(crate) async fn hits(&self) -> anyhow::Result<u64> {
        Ok(told_by(self.admin_port, "hits").await?.parse()?)
    }

    /// Runs a SELECT until its answer comes out of memory, and returns that answer. An error where it never does.
    pub(crate) async fn until_hit(
        &self,
        client: &mut Connection,
        sql: &str,
    ) -> anyhow::Result<Vec<String>> {
        let begun = Instant::now();
        loop {
            let before = self.hits().await?;
            let reply = client.expect(sql).await.with_context(|| sql.to_owned())?;
            if self.hits().await? > before {
                return Ok(reply.render());
            }
            ensure!(
                begun.elapsed() < Duration::from_secs(5),
                "{sql}: never out of memory; {:?}",
                self.reasons().await?
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs a statement at each server, the primary last, without a word in the log.
    pub(crate) async fn unlogged(&self, sql: &str) -> anyhow::Result<()> {
        let mut servers = self.cluster.servers();
        servers.reverse();
        for server in servers {
            let is_replica = server.name != self.cluster.primary().name;
            let mut control = self.cluster.control(&server.name).await?;
            if is_replica {
                self.cluster.set_read_only(&server.name, false).await?;
            }
            for sql in ["SET sql_log_bin = 0", "USE app", sql] {
                let ran = control.run(sql).await;
                ran.with_context(|| format!("{}: {sql}", server.name))?;
            }
            if is_replica {
                self.cluster.set_read_only(&server.name, true).await?;
            }
            control.close().await;
        }
        Ok(())
    }

    /// Waits until the log's rows of a table with `id` and `v` are told apart by key: what is written of another row leaves
    /// what is read of this one.
    pub(crate) async fn until_by_key(
        &self,
        table: &str,
        id: u32,
        log_comes: Duration,
    ) -> anyhow::Result<()> {
        let (mut direct, mut reader) = (self.direct().await?, self.client().await?);
        let read = format!("SELECT v FROM {table} WHERE id = {id}");
        let write = format!("UPDATE {table} SET v = v + 1 WHERE id = {}", id - 1);
        let begun = Instant::now();
        loop {
            self.until_hit(&mut reader, &read).await?;
            direct.expect(&write).await?;
            tokio::time::sleep(log_comes + Duration::from_millis(100)).await;
            let before = self.hits().await?;
            reader.expect(&read).await?;
            if self.hits().await? > before {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < Duration::from_secs(20),
                "{table}: never by key; {:?}",
                self.reasons().await?
            );
        }
    }

    /// All that SHOW CACHE counts, for whoever wonders.
    pub(crate) async fn reasons(&self) -> anyhow::Result<Vec<String>> {
        let target = Target::Tcp(format!("127.0.0.1:{}", self.admin_port));
        let login = Login::new(target, "admin", harness::ADMIN_PASSWORD);
        let mut operator = Connection::open(&login).await?;
        let rows = operator.expect("SHOW CACHE").await?.rows();
        let told = rows.into_iter().map(|row| {
            let mut row = row.into_iter().map(Option::unwrap_or_default);
            (
                row.next().unwrap_or_default(),
                row.next().unwrap_or_default(),
            )
        });
        let told = told.filter(|(_, value)| value != "0");
        Ok(told
            .map(|(name, value)| format!("{name} = {value}"))
            .collect())
    }
}
