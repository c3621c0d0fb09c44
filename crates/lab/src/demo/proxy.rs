//! Millrace itself, as a process of its own before the demo's cluster: `millrace serve` with a
//! configuration file in the cluster's folder. It ends with the demo, however the demo ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use millrace_sandbox::{Cluster, MONITOR, ServerInfo};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::http;
use super::ports::Ports;

const READY_LIMIT: Duration = Duration::from_secs(30);
/// The demo's own clients are gone by then; this is for the user's.
const DRAIN_S: u64 = 2;

/// Of the demo's admin listener.
pub(super) const ADMIN_PASSWORD: &str = "operator-secret";

/// More of the configuration, for [`Proxy::restart_cached`].
const CACHE_ON: &str = "\n[cache]\nmode = \"auto\"\n";

pub(super) struct Proxy {
    child: Child,
    log: PathBuf,
    ports: Ports,
    connections_max: u64,
}

impl Proxy {
    /// Starts it and waits until it serves clients and every replica takes reads.
    ///
    /// # Errors
    /// With the end of its log, when it ends or is not ready within 30 seconds.
    pub(super) async fn start(
        cluster: &Cluster,
        ports: Ports,
        connections_max: u64,
    ) -> Result<Self> {
        let (config, log) = (
            cluster.dir().join("millrace.toml"),
            cluster.dir().join("millrace.log"),
        );
        std::fs::write(
            &config,
            configuration(&cluster.servers(), ports, connections_max),
        )?;
        let mut proxy = Proxy {
            child: spawn(&config, &log)?,
            log,
            ports,
            connections_max,
        };
        proxy.wait_ready(cluster).await?;
        Ok(proxy)
    }

    /// Ends it and starts it anew, with its cache on.
    ///
    /// # Errors
    /// As [`Proxy::start`], and when it does not end.
    pub(super) async fn restart_cached(&mut self, cluster: &Cluster) -> Result<()> {
        self.end().await?;
        let config = cluster.dir().join("millrace.toml");
        let text = configuration(&cluster.servers(), self.ports, self.connections_max);
        std::fs::write(&config, text + CACHE_ON)?;
        self.child = spawn(&config, &self.log)?;
        self.wait_ready(cluster).await
    }

    async fn wait_ready(&mut self, cluster: &Cluster) -> Result<()> {
        let replicas = cluster.replicas().len();
        let ended = tokio::select! {
            ready = timeout(READY_LIMIT, ready(self.ports.http, replicas)) => ready.map_err(|_| None),
            status = self.child.wait() => Err(Some(status)),
        };
        match ended {
            Ok(()) => Ok(()),
            Err(None) => bail!(
                "Millrace is not ready after 30 s; its log ends:\n{}",
                self.log_end()
            ),
            Err(Some(status)) => Err(self.gone(status)),
        }
    }

    /// Where it listens.
    pub(super) fn ports(&self) -> Ports {
        self.ports
    }

    /// Waits for it to end, which it should not.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        let status = self.child.wait().await;
        self.gone(status)
    }

    /// Ends it in order, with SIGTERM; otherwise dropping kills it.
    ///
    /// # Errors
    /// When it does not end, or not well.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.end().await
    }

    async fn end(&mut self) -> Result<()> {
        if let Some(pid) = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
        {
            kill_process(pid, Signal::TERM)?;
        }
        match timeout(Duration::from_secs(DRAIN_S + 8), self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(status) => Err(self.gone(status)),
            Err(_) => {
                self.child.kill().await?;
                bail!(
                    "Millrace did not end on SIGTERM; its log ends:\n{}",
                    self.log_end()
                )
            }
        }
    }

    fn gone(&self, status: std::io::Result<std::process::ExitStatus>) -> anyhow::Error {
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        anyhow!(
            "Millrace ended ({status}); its log ends:\n{}",
            self.log_end()
        )
    }

    fn log_end(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

/// In a process group of its own: Ctrl-C is for the demo, which ends it once the workload has.
fn spawn(config: &Path, log: &Path) -> Result<Child> {
    let log = std::fs::File::create(log)?;
    Command::new(program()?)
        .args(["serve", "--end-with-parent", "--config"])
        .arg(config)
        .env("MILLRACE_MONITOR_PASSWORD", MONITOR.password)
        .env("MILLRACE_ADMIN_PASSWORD", ADMIN_PASSWORD)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start Millrace")
}

/// `MILLRACE_BIN`, or else the `millrace` beside this program.
fn program() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("MILLRACE_BIN") {
        return Ok(named.into());
    }
    let beside = std::env::current_exe()?.with_file_name("millrace");
    ensure!(
        beside.exists(),
        "there is no {}: build it (cargo build -p millrace), or set MILLRACE_BIN",
        beside.display()
    );
    Ok(beside)
}

fn configuration(servers: &[ServerInfo], ports: Ports, connections_max: u64) -> String {
    let listeners = [
        (ports.auto, "auto"),
        (ports.primary, "primary"),
        (ports.replicas, "replicas"),
    ];
    let mut text: String = listeners
        .iter()
        .map(|(port, target)| {
            format!("[[listen]]\naddress = \"127.0.0.1:{port}\"\ntarget = \"{target}\"\n\n")
        })
        .collect();
    for server in servers {
        text += &format!("[[server]]\naddress = \"{}\"\n\n", server.addr());
    }
    text + &format!(
        "[monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\n\
         [pool]\nmax_connections = {connections_max}\n\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n\n\
         [admin]\nlisten = \"127.0.0.1:{}\"\npassword_env = \"MILLRACE_ADMIN_PASSWORD\"\n\n\
         [log]\nlevel = \"warn\"\n\n\
         [drain]\ntimeout = \"{DRAIN_S}s\"\n",
        MONITOR.user, ports.http, ports.admin
    )
}

async fn ready(port: u16, replicas: usize) {
    loop {
        let status = http::get(port, "/readyz").await;
        if status.is_ok() && fit(port).await > replicas {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Servers that take part, the primary among them.
async fn fit(port: u16) -> usize {
    let Ok(text) = http::get(port, "/metrics").await else {
        return 0;
    };
    let up = |name: &str| {
        http::samples(&text, name)
            .filter(|sample| sample.value > 0.0)
            .count()
    };
    up("millrace_server_fit").min(up("millrace_server_up"))
        * usize::from(up("millrace_server_primary") == 1)
}

#[cfg(test)]
mod tests {
    use millrace_config::{Config, Environment};

    use super::*;

    #[test]
    fn the_configuration_is_valid() {
        let ports = Ports {
            auto: 1,
            primary: 2,
            replicas: 3,
            http: 4,
            admin: 7,
            servers: 5,
        };
        let servers = [server(5), server(6)];
        let text = configuration(&servers, ports, 20);
        let config = Config::from_toml("demo.toml", &text, &environment()).expect("valid");
        assert_eq!((config.listeners.len(), config.servers.len()), (3, 2));
        assert_eq!(config.pool.max_connections, 20);
        let text = text + CACHE_ON;
        Config::from_toml("demo.toml", &text, &environment()).expect("valid with the cache on");
    }

    fn environment() -> Environment {
        Environment {
            variable: Box::new(|name| {
                (name == "MILLRACE_MONITOR_PASSWORD" || name == "MILLRACE_ADMIN_PASSWORD")
                    .then(|| "secret".into())
            }),
            ..Environment::process()
        }
    }

    fn server(port: u16) -> ServerInfo {
        ServerInfo {
            name: format!("s{port}"),
            role: millrace_sandbox::Role::Primary,
            host: "127.0.0.1",
            port,
            socket: PathBuf::new(),
            pid: None,
            datadir: PathBuf::new(),
            log: PathBuf::new(),
        }
    }
}
