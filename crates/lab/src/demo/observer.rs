//! Sees where statements run: by Millrace's metrics, and by each server's own counters, asked
//! directly. It only looks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_sandbox::{MONITOR, ServerInfo};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use serde::Serialize;
use tokio::time::timeout;

use super::http;

const LIMIT: Duration = Duration::from_secs(2);

/// What one server has done since the observer began.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct ServerWork {
    pub(super) name: String,
    pub(super) address: String,
    /// What Millrace holds it for: primary, replica, or down.
    pub(super) role: &'static str,
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// Transactions' ends, SET and all the rest.
    pub(super) other: u64,
    /// Server connections open now.
    pub(super) connections: u64,
    /// SELECTs by the server's own count, Millrace's own questions and waits among them.
    pub(super) own_selects: u64,
}

/// Everything at one moment.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) clients: u64,
    pub(super) servers: Vec<ServerWork>,
}

impl Look {
    /// Server connections open, over all servers.
    pub(super) fn connections(&self) -> u64 {
        self.servers.iter().map(|server| server.connections).sum()
    }

    pub(super) fn reads(&self) -> u64 {
        self.servers.iter().map(|server| server.reads).sum()
    }
}

pub(super) struct Observer {
    http_port: u16,
    servers: Vec<Watched>,
    /// What the metrics showed at the beginning.
    base: HashMap<String, [u64; 3]>,
    /// The most server connections seen open at a time.
    pub(super) connections_max: u64,
}

struct Watched {
    info: ServerInfo,
    conn: Option<Conn>,
    last: Option<u64>,
    own_selects: u64,
}

impl Observer {
    /// Counts from now on.
    pub(super) async fn new(http_port: u16, servers: Vec<ServerInfo>) -> Result<Self> {
        let mut observer = Observer {
            http_port,
            servers: servers.into_iter().map(Watched::new).collect(),
            base: HashMap::new(),
            connections_max: 0,
        };
        observer.restart().await?;
        Ok(observer)
    }

    /// Counts from now on again.
    pub(super) async fn restart(&mut self) -> Result<()> {
        let text = http::get(self.http_port, "/metrics").await?;
        self.connections_max = 0;
        for server in &mut self.servers {
            server.count().await;
            server.own_selects = 0;
            let address = server.info.addr();
            self.base
                .insert(address.clone(), statements(&text, &address));
        }
        Ok(())
    }

    /// # Errors
    /// When Millrace does not answer. A server that does not is shown as down.
    pub(super) async fn look(&mut self) -> Result<Look> {
        let text = http::get(self.http_port, "/metrics").await?;
        let mut works = Vec::new();
        for server in &mut self.servers {
            server.count().await;
            works.push(server.work(&text, &self.base));
        }
        let look = Look {
            at: Instant::now(),
            clients: http::samples(&text, "millrace_clients")
                .map(|sample| sample.value as u64)
                .sum(),
            servers: works,
        };
        self.connections_max = self.connections_max.max(look.connections());
        Ok(look)
    }
}

impl Watched {
    fn new(info: ServerInfo) -> Self {
        Watched {
            info,
            conn: None,
            last: None,
            own_selects: 0,
        }
    }

    fn work(&self, text: &str, base: &HashMap<String, [u64; 3]>) -> ServerWork {
        let address = self.info.addr();
        let now = statements(text, &address);
        let begin = base.get(&address).copied().unwrap_or_default();
        let since = |index: usize| now[index].saturating_sub(begin[index]);
        ServerWork {
            role: role(text, &address),
            reads: since(0),
            writes: since(1),
            other: since(2),
            connections: of(text, "millrace_pool_connections", &address) as u64,
            own_selects: self.own_selects,
            name: self.info.name.clone(),
            address,
        }
    }

    /// Adds what the server has done since it was last asked; from zero when it was restarted.
    async fn count(&mut self) {
        match timeout(LIMIT, self.ask()).await {
            Ok(Ok(now)) => {
                if let Some(last) = self.last {
                    self.own_selects += now.checked_sub(last).unwrap_or(now);
                }
                self.last = Some(now);
            }
            // A server that is away is asked again next time.
            Ok(Err(_)) | Err(_) => self.conn = None,
        }
    }

    async fn ask(&mut self) -> mysql_async::Result<u64> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => Conn::new(self.opts()).await?,
        };
        let sql = "SHOW GLOBAL STATUS WHERE Variable_name = 'Com_select'";
        let row: Option<(String, u64)> = conn.query_first(sql).await?;
        self.conn = Some(conn);
        Ok(row.map_or(0, |(_, count)| count))
    }

    /// Known values spare the driver a SELECT, which would be counted.
    fn opts(&self) -> OptsBuilder {
        OptsBuilder::default()
            .ip_or_hostname(self.info.host)
            .tcp_port(self.info.port)
            .user(Some(MONITOR.user))
            .pass(Some(MONITOR.password))
            .prefer_socket(false)
            .max_allowed_packet(Some(16 << 20))
            .wait_timeout(Some(28_800))
    }
}

/// Reads, writes and others that a server ran for clients.
fn statements(text: &str, address: &str) -> [u64; 3] {
    let mut counts = [0; 3];
    let all = http::samples(text, "millrace_statements_total");
    for sample in all.filter(|sample| sample.has("server", address)) {
        let index = if sample.has("kind", "read") {
            0
        } else if sample.has("kind", "write") {
            1
        } else {
            2
        };
        counts[index] += sample.value as u64;
    }
    counts
}

/// A metric's sum over one server.
fn of(text: &str, name: &str, address: &str) -> f64 {
    http::samples(text, name)
        .filter(|sample| sample.has("server", address))
        .map(|sample| sample.value)
        .sum()
}

fn role(text: &str, address: &str) -> &'static str {
    let is = |name| of(text, name, address) > 0.0;
    if !is("millrace_server_up") {
        "down"
    } else if is("millrace_server_primary") {
        "primary"
    } else {
        "replica"
    }
}
