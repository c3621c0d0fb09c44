//! A cluster, a follower of its primary, and entries in the real store that its log removes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use millrace_backend::cache::{Cache, CacheOptions, Following, Mode};
use millrace_backend::connect::{Address, Network};
use millrace_backend::follower;
use millrace_backend::monitor::{Monitor, MonitorOptions};
use millrace_backend::names::Resolver;
use millrace_backend::secret::Secret;
use millrace_backend::tcp::TcpOptions;
use millrace_backend::tls::{ServerTls, ServerTlsFiles, ServerTlsMode};
use millrace_cache::{
    Access, Begun, Finished, Interval, Key, Miss, Options, PRIMARY, Scope, Store, Subject,
};
use millrace_sandbox::{Cluster, ClusterSpec, Control, Family, MONITOR, Release};
use millrace_topology::{GtidSet, ServerSpec};

/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Lab {
    pub(crate) cluster: Cluster,
    pub(crate) cache: Arc<Cache>,
    /// `root` on the first server.
    pub(crate) sql: Control,
    pub(crate) family: Family,
    /// Entries made so far.
    made: u32,
}

fn family(of: Family) -> millrace_topology::Family {
    match of {
        Family::MySql => millrace_topology::Family::MySql,
        Family::MariaDb => millrace_topology::Family::MariaDb,
    }
}

impl Lab {
    /// Starts servers, and the follower as a task of this thread.
    pub(crate) async fn up(release: Release, replicas: usize, options: &[&str]) -> Result<Lab> {
        let lab = Self::without_rights(release, replicas, options).await?;
        lab.grant().await?;
        lab.wait_serving().await?;
        Ok(lab)
    }

    /// The same; on MariaDB the monitor's account may not follow the log.
    pub(crate) async fn without_rights(
        release: Release,
        replicas: usize,
        options: &[&str],
    ) -> Result<Lab> {
        let mut spec = ClusterSpec::new(release);
        spec.replicas = replicas;
        spec.extra_args = options.iter().map(|option| (*option).to_owned()).collect();
        let cluster = Cluster::up(spec).await?;
        let mut sql = cluster.control("s1").await?;
        sql.run("USE test").await?;
        if cluster.family() == Family::MariaDb {
            sql.run("REVOKE REPLICATION SLAVE ON *.* FROM 'millrace_monitor'@'%'")
                .await?;
        }
        let cache = Arc::new(Cache::new(CacheOptions {
            mode: Mode::Auto,
            verify: 0.0,
            store: Options {
                second_use: false,
                ..Options::default()
            },
        }));
        watch(&cluster, cache.clone())?;
        Ok(Lab {
            family: cluster.family(),
            cluster,
            cache,
            sql,
            made: 0,
        })
    }

    pub(crate) async fn grant(&self) -> Result<()> {
        let mut sql = self.cluster.control("s1").await?;
        let grant = format!("GRANT REPLICATION SLAVE ON *.* TO '{}'@'%'", MONITOR.user);
        sql.run(&grant).await
    }

    pub(crate) async fn run(&mut self, statements: &[&str]) -> Result<()> {
        for statement in statements {
            self.sql
                .run(statement)
                .await
                .with_context(|| (*statement).to_owned())?;
        }
        Ok(())
    }

    /// What the primary has executed, by its log.
    pub(crate) async fn executed(&mut self) -> Result<GtidSet> {
        let variable = match self.family {
            Family::MySql => "gtid_executed",
            Family::MariaDb => "gtid_binlog_pos",
        };
        let question = format!("SELECT @@GLOBAL.{variable}");
        let text = self.sql.value(&question).await?.unwrap_or_default();
        Ok(GtidSet::parse(family(self.family), text.as_bytes())?)
    }

    /// Waits until the follower has applied what the primary has executed, and the store serves.
    pub(crate) async fn caught_up(&mut self) -> Result<()> {
        let executed = self.executed().await?;
        let cache = self.cache.clone();
        until("the log to be applied", || {
            cache.store().applied().contains(&executed)
        })
        .await?;
        self.wait_serving().await
    }

    /// Waits until the store serves.
    pub(crate) async fn wait_serving(&self) -> Result<()> {
        let cache = self.cache.clone();
        let waited = until("the store to serve", || serves(&mut cache.store())).await;
        waited.with_context(|| format!("{:?}", self.cache.following()))
    }

    /// Waits until the follower is off for a reason with this text.
    pub(crate) async fn wait_off(&self, text: &str) -> Result<()> {
        let cache = self.cache.clone();
        let is_off = || matches!(cache.following(), Following::Off(why) if why.contains(text));
        let waited = until(text, is_off).await;
        waited.with_context(|| format!("{:?}", self.cache.following()))
    }

    /// Whether the store serves now.
    pub(crate) fn serves(&self) -> bool {
        serves(&mut self.cache.store())
    }

    /// How often everything was dropped.
    pub(crate) fn drops(&self) -> u64 {
        self.cache.followed().drops.load(Ordering::Relaxed)
    }

    /// Fills an entry for each of these names: `a` is all of test.a, `a:5` the row of key 5.
    pub(crate) async fn put(&mut self, names: &str) -> Result<Vec<(String, Vec<u8>)>> {
        self.caught_up().await?;
        let position = self.executed().await?;
        let mut store = self.cache.store();
        store.forget_known(&position);
        let now = Instant::now();
        let mut entries = Vec::new();
        for name in names.split_whitespace() {
            self.made += 1;
            let key = format!("{name} {}", self.made).into_bytes();
            let (definitions, version) = store.definitions().context("no definitions")?;
            let access = access(name, definitions)?;
            let accesses = [access, Access::whole(Subject::rights())];
            let begun = store.begin_fill(1, &key, &accesses, version, now);
            let Ok(Begun::Lead(token)) = begun else {
                bail!("{name} cannot be filled: {begun:?}");
            };
            let result = Finished {
                rows: 1,
                lower: &position,
                upper: &position,
                bytes: b"rows".as_slice().into(),
                cost: Duration::from_millis(1),
            };
            let ended = store.finish(token, result, now);
            ensure!(ended.kept.is_ok(), "{name} is not kept: {ended:?}");
            ensure!(
                look(&mut store, &key).is_ok(),
                "{name} is not there at once"
            );
            entries.push((name.to_owned(), key));
        }
        Ok(entries)
    }

    /// Which of the entries are there, once all is applied.
    pub(crate) async fn left(&mut self, entries: &[(String, Vec<u8>)]) -> Result<BTreeSet<String>> {
        self.caught_up().await?;
        let mut store = self.cache.store();
        let left = entries
            .iter()
            .filter(|(_, key)| look(&mut store, key).is_ok());
        Ok(left.map(|(name, _)| name.clone()).collect())
    }

    /// Waits until the rows of a table are told apart by key: until definitions were read while its number in the log was
    /// in use.
    async fn until_by_key(&mut self, table: &str) -> Result<()> {
        let (row, key, other) = match table {
            "two" => ("(a, b) VALUES ('zzzz', 65000)", "a = 'zzzz'", "zzzz/65001"),
            _ => ("(id) VALUES (8000001)", "id = 8000001", "8000002"),
        };
        let mut sql = self.cluster.control(&self.cluster.primary().name).await?;
        let begun = Instant::now();
        loop {
            let entries = self.put(&format!("{table}:{other}")).await?;
            for statement in [
                format!("INSERT INTO test.{table} {row}"),
                format!("DELETE FROM test.{table} WHERE {key}"),
            ] {
                let ran = sql.run(&statement).await;
                ran.with_context(|| statement.clone())?;
            }
            if !self.left(&entries).await?.is_empty() {
                sql.close().await;
                return Ok(());
            }
            ensure!(begun.elapsed() < LIMIT, "{table} is never told by key");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Statements remove the entries of the names before the bar, and leave those behind it.
    pub(crate) async fn check(&mut self, statements: &[&str], names: &str) -> Result<()> {
        let (removed, kept) = names.split_once('|').context("a bar")?;
        let by_key: BTreeSet<&str> = kept
            .split_whitespace()
            .filter_map(|name| Some(name.split_once(':')?.0))
            .collect();
        for table in by_key {
            self.until_by_key(table).await?;
        }
        let entries = self
            .put(&[removed, kept].join(" "))
            .await
            .with_context(|| format!("before {statements:?}"))?;
        self.run(statements).await?;
        let left = self
            .left(&entries)
            .await
            .with_context(|| format!("after {statements:?}"))?;
        let expected: BTreeSet<String> = kept.split_whitespace().map(str::to_owned).collect();
        ensure!(
            left == expected,
            "{} after {statements:?}: {left:?} are left, not {expected:?}",
            self.family
        );
        Ok(())
    }
}

/// Runs the monitor and the follower.
fn watch(cluster: &Cluster, cache: Arc<Cache>) -> Result<()> {
    let addresses: Vec<Address> = cluster
        .servers()
        .iter()
        .map(|server| Address::new(server.host.to_owned(), server.port))
        .collect();
    let specs = addresses
        .iter()
        .map(|address| ServerSpec::new(&address.to_string()))
        .collect();
    let network = Arc::new(Network {
        tls: ServerTls::new(ServerTlsMode::Disabled, &ServerTlsFiles::default())?,
        tcp: TcpOptions::SERVERS,
        resolver: Resolver::default(),
        questions: millrace_backend::questions::Questions::default(),
    });
    let mut options = MonitorOptions::new(|_| ["SELECT 1 FROM DUAL WHERE 1 = 0"; 4]);
    options.user = MONITOR.user.to_owned();
    options.password = Secret::new(MONITOR.password.as_bytes().to_vec());
    let options = Arc::new(options);
    let monitor = Monitor::new(&options, specs, &addresses);
    let run = monitor.clone().run(options.clone(), network.clone());
    tokio::task::spawn_local(run);
    tokio::task::spawn_local(follower::follow(cache, monitor, options, network));
    Ok(())
}

fn access(name: &str, definitions: &millrace_cache::Definitions) -> Result<Access> {
    let (table, key) = match name.split_once(':') {
        Some((table, key)) => (table, Some(key)),
        None => (name, None),
    };
    let subject = definitions
        .subject(b"test", table.as_bytes())
        .context("a name")?;
    let Some(value) = key else {
        return Ok(Access::whole(subject));
    };
    let of = definitions
        .table(&subject)
        .with_context(|| format!("{table} is not known"))?;
    let columns = of.primary_key.as_deref();
    let columns = columns.with_context(|| format!("{table} has no key"))?;
    let mut key = Key::new();
    for (column, value) in columns.iter().zip(value.split('/')) {
        key = match value.parse() {
            Ok(value) => column.kind.push_integer(key, value),
            Err(_) => column.kind.push_bytes(key, value.as_bytes()),
        }
        .with_context(|| format!("{value} is no key of {table}"))?;
    }
    Ok(Access {
        subject,
        scope: Scope::Within {
            index: PRIMARY,
            interval: Interval::point(key),
        },
    })
}

fn look(store: &mut Store, key: &[u8]) -> Result<(), Miss> {
    let nothing = GtidSet::new(store.applied().family());
    store.look(key, &[&nothing], Instant::now()).map(drop)
}

/// A fill begins only where the log is followed and tables are known.
fn serves(store: &mut Store) -> bool {
    let Some((_, version)) = store.definitions() else {
        return false;
    };
    let access = Access::whole(Subject::rights());
    match store.begin_fill(2, b"does it serve", &[access], version, Instant::now()) {
        Ok(Begun::Lead(token)) => {
            store.abandon(token);
            true
        }
        _ => false,
    }
}

pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so() {
        ensure!(begun.elapsed() < LIMIT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}
