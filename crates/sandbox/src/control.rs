//! A connection to one server as its `root`, over its Unix socket. For control and inspection of
//! sandbox servers only; it knows nothing of replication.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Row, Value};

/// No control statement should take longer, but for those that are told how long to wait.
const STATEMENT_LIMIT: Duration = Duration::from_secs(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A logged-in connection. Values come as text, NULL as none.
#[derive(Debug)]
pub struct Control {
    conn: Conn,
}

impl Control {
    /// # Errors
    /// When the server does not answer within 5 seconds or refuses.
    pub(crate) async fn connect(socket: &Path) -> Result<Control> {
        let opts = OptsBuilder::default()
            .socket(Some(socket.to_string_lossy()))
            .user(Some("root"))
            // Known values spare the driver a question at the start.
            .max_allowed_packet(Some(16 << 20))
            .wait_timeout(Some(28_800));
        let conn = tokio::time::timeout(CONNECT_LIMIT, Conn::new(opts))
            .await
            .context("the server accepts no login (paused?)")??;
        Ok(Control { conn })
    }

    /// Runs a statement and throws its result away.
    ///
    /// # Errors
    /// The server's, or none after 20 seconds.
    pub async fn run(&mut self, sql: &str) -> Result<()> {
        self.first(sql, STATEMENT_LIMIT).await.map(drop)
    }

    /// The first column of a statement's first row.
    ///
    /// # Errors
    /// As for [`Control::run`].
    pub async fn value(&mut self, sql: &str) -> Result<Option<String>> {
        self.value_within(sql, STATEMENT_LIMIT).await
    }

    pub(crate) async fn value_within(
        &mut self,
        sql: &str,
        limit: Duration,
    ) -> Result<Option<String>> {
        let row = self.first(sql, limit).await?;
        Ok(row.and_then(|row| row.as_ref(0).and_then(text)))
    }

    /// A statement's first row by column name; NULL is left out.
    ///
    /// # Errors
    /// As for [`Control::run`].
    pub async fn row(&mut self, sql: &str) -> Result<Option<BTreeMap<String, String>>> {
        Ok(self
            .first(sql, STATEMENT_LIMIT)
            .await?
            .map(|row| by_name(&row)))
    }

    /// Says good-bye, so that the server logs no aborted connection.
    pub async fn close(self) {
        // The server may be gone, and then there is nothing to close.
        let _ = self.conn.disconnect().await;
    }

    async fn first(&mut self, sql: &str, limit: Duration) -> Result<Option<Row>> {
        match tokio::time::timeout(limit, self.conn.query_first::<Row, _>(sql)).await {
            Ok(result) => result.with_context(|| format!("in: {sql}")),
            Err(_) => bail!("no answer within {} s to: {sql}", limit.as_secs()),
        }
    }
}

fn by_name(row: &Row) -> BTreeMap<String, String> {
    let columns = row.columns_ref().iter().enumerate();
    columns
        .filter_map(|(i, column)| {
            Some((
                column.name_str().into_owned(),
                row.as_ref(i).and_then(text)?,
            ))
        })
        .collect()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        other => Some(other.as_sql(true)),
    }
}
