//! What the checks share: a proxy with an admin listener, and listings as tables.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::Cluster;
use millrace_tests::harness::{Launch, Proxy, free_port};
use millrace_tests::wire::{Connection, Login, Target};

use crate::serving::{READY, running_replicas, toml, wait_fit};

pub(crate) const PASSWORD: &str = "operators' own";

/// A proxy whose admin listener is on.
pub(crate) struct Ground {
    pub(crate) proxy: Proxy,
    pub(crate) port: u16,
}

/// One row of a listing, by its columns.
pub(crate) type Row = BTreeMap<String, Option<String>>;

impl Ground {
    /// In front of the cluster; `section` are further lines of `[admin]`, `more` further sections.
    pub(crate) async fn start(
        cluster: &Cluster,
        section: &str,
        more: &str,
    ) -> anyhow::Result<Ground> {
        let launch = Launch::new()?.env("MILLRACE_ADMIN_PASSWORD", PASSWORD);
        let port = free_port()?;
        let admin = format!(
            "[admin]\nlisten = \"127.0.0.1:{port}\"\npassword_env = \
             \"MILLRACE_ADMIN_PASSWORD\"\n{section}\n{more}"
        );
        let text = toml(&launch, cluster, &admin);
        let mut proxy = launch.config(&text).spawn()?;
        proxy.wait_ready(READY).await?;
        wait_fit(&proxy, cluster, running_replicas(cluster)).await?;
        Ok(Ground { proxy, port })
    }

    pub(crate) fn login(&self) -> Login {
        login(self.port)
    }

    pub(crate) async fn open(&self) -> anyhow::Result<Operator> {
        Ok(Operator(Connection::open(&self.login()).await?))
    }
}

pub(crate) fn login(port: u16) -> Login {
    Login::new(Target::Tcp(format!("127.0.0.1:{port}")), "admin", PASSWORD)
}

/// An operator's connection.
pub(crate) struct Operator(pub(crate) Connection);

impl Operator {
    pub(crate) async fn rows(&mut self, sql: &str) -> anyhow::Result<Vec<Row>> {
        let reply = self.0.expect(sql).await.context(sql.to_owned())?;
        let names: Vec<String> = reply
            .columns()
            .iter()
            .map(|c| String::from_utf8_lossy(&c.name).into_owned())
            .collect();
        let rows = reply.rows().into_iter();
        Ok(rows
            .map(|row| names.iter().cloned().zip(row).collect())
            .collect())
    }

    /// The only row.
    pub(crate) async fn row(&mut self, sql: &str) -> anyhow::Result<Row> {
        let mut rows = self.rows(sql).await?;
        ensure!(rows.len() == 1, "{sql}: {rows:#?}");
        rows.pop().context("no row")
    }

    /// The error's code.
    pub(crate) async fn refused(&mut self, sql: &str) -> anyhow::Result<u16> {
        let reply = self.0.query(sql).await;
        let error = reply
            .err()
            .with_context(|| format!("{sql}: {:?}", reply.render()))?;
        Ok(error.code)
    }

    /// Waits until the listing is empty.
    pub(crate) async fn wait_until_none(
        &mut self,
        sql: &str,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let rows = self.rows(sql).await?;
            if rows.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{sql}: {rows:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the listing has such a row, and answers it.
    pub(crate) async fn wait_for(
        &mut self,
        sql: &str,
        limit: Duration,
        wanted: impl Fn(&Row) -> bool,
    ) -> anyhow::Result<Row> {
        let deadline = Instant::now() + limit;
        loop {
            let rows = self.rows(sql).await?;
            if let Some(found) = rows.iter().find(|row| wanted(row)) {
                return Ok(found.clone());
            }
            ensure!(Instant::now() < deadline, "{sql}: never so: {rows:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A value that is not NULL.
pub(crate) fn value<'a>(row: &'a Row, column: &str) -> anyhow::Result<&'a str> {
    let value = row
        .get(column)
        .with_context(|| format!("no {column} in {row:?}"))?;
    value
        .as_deref()
        .with_context(|| format!("{column} is NULL in {row:?}"))
}

pub(crate) fn number(row: &Row, column: &str) -> anyhow::Result<f64> {
    let text = value(row, column)?;
    text.parse().with_context(|| format!("{column}: {text}"))
}

/// Says what is not as expected of a row.
pub(crate) fn expect(row: &Row, expected: &[(&str, &str)]) -> anyhow::Result<()> {
    for (column, wanted) in expected {
        let found = value(row, column)?;
        ensure!(
            found == *wanted,
            "{column} is `{found}`, not `{wanted}`, in {row:#?}"
        );
    }
    Ok(())
}

pub(crate) fn is(row: &Row, column: &str, wanted: &str) -> bool {
    row.get(column)
        .is_some_and(|value| value.as_deref() == Some(wanted))
}
