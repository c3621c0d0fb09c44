//! Starts clusters and the proxy for a suite and takes them down again. It judges nothing.
//!
//! The proxy's program is `MILLRACE_BIN`, or else `millrace` in the target folder that the test
//! was built in. With `MILLRACE_TESTS_DIRECT=1` there is no proxy: clients go to the second
//! cluster's primary, which shows what a suite itself gets wrong.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millrace_sandbox::{ADMIN, Cluster, ClusterSpec, MONITOR, Release};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::differential::script::Family;
use crate::wire::{Login, Target};

/// Runs the proxy beside a shell that ends it when this process is gone, however it went: the
/// shell's standard input is a pipe whose other end is here.
const WATCHED: &str = r#"exec 3<&0; "$0" "$@" </dev/null & pid=$!; echo "pid $pid"; (read -r _ <&3; kill -TERM "$pid") & wait "$pid""#;

/// For an `[admin]` listener, in `MILLRACE_ADMIN_PASSWORD` of every proxy.
pub const ADMIN_PASSWORD: &str = "operators-secret";

/// What a suite wants of its proxy.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// Connections per server.
    pub pool_max: u32,
    /// How long a statement waits for a connection.
    pub pool_wait: Duration,
    /// How long a replica may take to catch up with a session's own writes.
    pub wait_limit: Duration,
    pub clients_max: u32,
    pub login_timeout: Duration,
    /// Longest command, in MiB.
    pub packet_max_mib: u64,
    /// `None` leaves it to the program.
    pub workers: Option<u32>,
    /// The log's level.
    pub log: &'static str,
    /// Further lines for `[routing]`.
    pub routing: String,
    /// Further lines for the end of the file.
    pub extra: String,
    /// Another program than [`program`].
    pub program: Option<PathBuf>,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            pool_max: 3,
            pool_wait: Duration::from_secs(10),
            wait_limit: Duration::from_millis(100),
            clients_max: 10_000,
            login_timeout: Duration::from_secs(10),
            packet_max_mib: 256,
            workers: None,
            log: "debug",
            routing: String::new(),
            extra: String::new(),
            program: None,
        }
    }
}

/// The one place that knows the configuration's keys.
fn config_toml(options: &ProxyOptions, port: u16, http_port: u16, servers: &[String]) -> String {
    let ms = |d: Duration| format!("\"{}ms\"", d.as_millis());
    let workers = options
        .workers
        .map_or_else(String::new, |n| format!("workers = {n}\n"));
    let servers: String = servers
        .iter()
        .map(|address| format!("[[server]]\naddress = \"{address}\"\n"))
        .collect();
    format!(
        "{workers}\
         [[listen]]\naddress = \"127.0.0.1:{port}\"\n\
         {servers}\
         [monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\
         [http]\nlisten = \"127.0.0.1:{http_port}\"\n\
         [pool]\nmax_connections = {}\nwait_timeout = {}\n\
         [limits]\nmax_clients = {}\nlogin_timeout = {}\nmax_packet = \"{}MiB\"\n\
         [routing]\nwait_limit = {}\n{}\
         [auth]\nfailure_delay = \"0s\"\n\
         [log]\nlevel = \"{}\"\n\
         {}",
        MONITOR.user,
        options.pool_max,
        ms(options.pool_wait),
        options.clients_max,
        ms(options.login_timeout),
        options.packet_max_mib,
        ms(options.wait_limit),
        match options.routing.contains("freshness") {
            true => options.routing.clone(),
            false => freshness() + &options.routing,
        },
        options.log,
        options.extra,
    ) + &cached(&options.extra)
}

/// With `MILLRACE_TESTS_FRESHNESS` every proxy has that value.
fn freshness() -> String {
    let value = std::env::var("MILLRACE_TESTS_FRESHNESS");
    value.map_or_else(
        |_| String::new(),
        |value| format!("freshness = \"{value}\"\n"),
    )
}

/// Whether every proxy has its cache on.
pub fn is_cached() -> bool {
    std::env::var_os("MILLRACE_TESTS_CACHE").is_some()
}

/// With `MILLRACE_TESTS_CACHE=1` every proxy has its cache on, at first sight.
fn cached(extra: &str) -> String {
    match is_cached() && !extra.contains("[cache]") {
        true => "\n[cache]\nmode = \"auto\"\nsecond_use = false\n".to_owned(),
        false => String::new(),
    }
}

/// A command line for the proxy, for suites that write it themselves.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Another than [`program`].
    program: Option<PathBuf>,
    /// What stands behind `serve`.
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// Made in the proxy's folder before it starts.
    files: Vec<(String, String)>,
    /// A free port for clients.
    pub port: u16,
    /// A free port for HTTP.
    pub http_port: u16,
}

impl Launch {
    /// No arguments yet, and the monitor's password in the environment.
    pub fn new() -> anyhow::Result<Self> {
        let (port, http_port) = (free_port()?, free_port()?);
        let password = MONITOR.password.to_owned();
        Ok(Self {
            program: None,
            args: Vec::new(),
            env: vec![
                ("MILLRACE_MONITOR_PASSWORD".to_owned(), password),
                (
                    "MILLRACE_ADMIN_PASSWORD".to_owned(),
                    ADMIN_PASSWORD.to_owned(),
                ),
            ],
            files: Vec::new(),
            port,
            http_port,
        })
    }

    /// The folder of the proxy to be: its files, its log, sockets if the suite likes.
    pub fn dir(&self) -> PathBuf {
        let name = format!("millrace-tests-{}-{}", std::process::id(), self.port);
        std::env::temp_dir().join(name)
    }

    #[must_use]
    pub fn args<S: ToString>(mut self, args: &[S]) -> Self {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A file in [`Launch::dir`].
    #[must_use]
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// A configuration file, passed with `--config`.
    #[must_use]
    pub fn config(self, text: &str) -> Self {
        // Suites put forwarders between Millrace and servers: the servers' own names would lead around them.
        let text = &match text.contains("[discovery") {
            true => text.to_owned(),
            false => format!("{text}\n[discovery]\nmode = \"off\"\n"),
        };
        let path = self.dir().join("millrace.toml").display().to_string();
        self.file("millrace.toml", text).args(&["--config", &path])
    }

    /// Starts the program; it is not ready yet.
    pub fn spawn(&self) -> anyhow::Result<Proxy> {
        let program = self.program.clone().map_or_else(program, Ok)?;
        let dir = self.dir();
        std::fs::create_dir_all(&dir)?;
        for (name, text) in &self.files {
            std::fs::write(dir.join(name), text)?;
        }
        let log = File::create(dir.join("log"))?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(WATCHED).arg(&program).arg("serve");
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?);
        let mut shell = command.spawn().context("cannot start sh")?;
        let leash = shell.stdin.take();
        let pid = copy_output(&mut shell, log)?;
        Ok(Proxy {
            shell,
            leash,
            pid,
            dir,
            port: self.port,
            http_port: self.http_port,
        })
    }
}

/// A running proxy. Dropping it ends the process.
#[derive(Debug)]
pub struct Proxy {
    shell: Child,
    /// Held open for the shell, see [`WATCHED`].
    leash: Option<ChildStdin>,
    pid: u32,
    dir: PathBuf,
    pub port: u16,
    pub http_port: u16,
}

impl Proxy {
    /// Starts the proxy in front of these servers and waits until it says that it is ready.
    pub async fn start(servers: &[String], options: &ProxyOptions) -> anyhow::Result<Self> {
        let mut launch = Launch::new()?;
        launch.program.clone_from(&options.program);
        let text = config_toml(options, launch.port, launch.http_port, servers);
        let mut proxy = launch.config(&text).spawn()?;
        proxy.wait_ready(Duration::from_secs(20)).await?;
        Ok(proxy)
    }

    /// Waits until `/readyz` says yes.
    pub async fn wait_ready(&mut self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Ok(answer) = http_get(self.http_port, "/readyz").await
                && answer.starts_with("HTTP/1.1 200")
            {
                return Ok(());
            }
            if !self.alive() || Instant::now() > deadline {
                bail!("millrace is not ready; its log:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether the process still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.shell.try_wait(), Ok(None))
    }

    pub fn address(&self) -> Target {
        Target::Tcp(format!("127.0.0.1:{}", self.port))
    }

    /// The last lines of what the proxy wrote: few, so that they do not push out what failed.
    pub fn log(&self) -> String {
        let text = std::fs::read(self.dir.join("log")).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(4_000)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    /// The whole log, for searching.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Resident memory in KiB, from /proc.
    pub fn resident_kib(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status
            .lines()
            .find(|l| l.starts_with("VmRSS:"))
            .context("no VmRSS")?;
        Ok(line
            .split_whitespace()
            .nth(1)
            .context("no number")?
            .parse()?)
    }

    /// An HTTP answer, head and body.
    pub async fn http(&self, path: &str) -> anyhow::Result<String> {
        http_get(self.http_port, path).await
    }

    /// The process itself.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the process has ended by itself.
    pub async fn ended(&mut self, limit: Duration) -> anyhow::Result<std::process::ExitStatus> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.shell.try_wait()? {
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!(
            "millrace has not ended within {limit:?}; its log:\n{}",
            self.log()
        )
    }

    /// `/metrics` as text.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        http_get(self.http_port, "/metrics").await
    }

    /// Sends the process a signal; one that is gone gets none.
    pub fn signal(&self, signal: rustix::process::Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid as i32) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Ends the proxy with SIGTERM and returns its exit status and how long it took.
    pub async fn terminate(
        &mut self,
        limit: Duration,
    ) -> anyhow::Result<(std::process::ExitStatus, Duration)> {
        let started = Instant::now();
        self.signal(rustix::process::Signal::TERM);
        while started.elapsed() < limit {
            if let Some(status) = self.shell.try_wait()? {
                return Ok((status, started.elapsed()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!(
            "millrace did not end within {limit:?}; its log:\n{}",
            self.log()
        )
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if matches!(self.shell.try_wait(), Ok(None)) {
            self.signal(rustix::process::Signal::KILL);
            self.leash.take();
            let _ = self.shell.wait();
        }
        if std::env::var_os("MILLRACE_TESTS_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.dir);
        } else {
            eprintln!("kept: {}", self.dir.display());
        }
    }
}

/// Reads the shell's first line for the proxy's pid; the rest goes to the log.
fn copy_output(shell: &mut Child, mut log: File) -> anyhow::Result<u32> {
    let stdout = shell.stdout.take().context("no standard output")?;
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next().context("the shell said nothing")??;
    let pid = first.strip_prefix("pid ").context("no pid")?.parse()?;
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = writeln!(log, "{line}");
        }
    });
    Ok(pid)
}

/// The proxy's program.
pub fn program() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("MILLRACE_BIN") {
        let path = PathBuf::from(path);
        if path.exists() {
            return Ok(path.canonicalize()?);
        }
        bail!("MILLRACE_BIN names no file: {}", path.display());
    }
    let this = std::env::current_exe()?;
    let beside = this
        .parent()
        .and_then(Path::parent)
        .map(|dir| dir.join("millrace"));
    match beside {
        Some(path) if path.exists() => Ok(path),
        _ => bail!("no millrace program: build it (cargo build -p millrace) or set MILLRACE_BIN"),
    }
}

/// Whether the suites run without a proxy, against a second cluster's primary.
pub fn direct_only() -> bool {
    std::env::var_os("MILLRACE_TESTS_DIRECT").is_some()
}

/// A port that nobody listens at now, and that this process has not been given before: the system
/// may name one twice while nobody listens there yet.
pub fn free_port() -> anyhow::Result<u16> {
    millrace_sandbox::free_port()
}

async fn http_get(port: u16, path: &str) -> anyhow::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(5), exchange).await?
}

/// Starts a cluster with the limits that the cases need.
pub async fn cluster(which: impl Into<Release>, replicas: usize) -> anyhow::Result<Cluster> {
    let mut spec = ClusterSpec::new(which);
    spec.replicas = replicas;
    spec.max_connections = 400;
    spec.extra_args.push("--max-allowed-packet=1G".to_owned());
    Cluster::up(spec).await
}

/// The administrator's login at a server.
pub fn admin(port: u16) -> Login {
    Login::new(
        Target::Tcp(format!("127.0.0.1:{port}")),
        ADMIN.user,
        ADMIN.password,
    )
}

/// A cluster with a proxy in front, or without one, see [`direct_only`].
#[derive(Debug)]
pub struct Stage {
    pub family: Family,
    /// Before the cluster: dropped first.
    pub proxy: Option<Proxy>,
    pub cluster: Cluster,
    /// Where clients connect.
    pub address: Target,
}

impl Stage {
    /// Starts a cluster of a primary and `replicas`, and the proxy.
    pub async fn start(
        which: impl Into<Release>,
        replicas: usize,
        options: &ProxyOptions,
    ) -> anyhow::Result<Self> {
        let cluster = cluster(which, replicas).await?;
        let mut stage = Self {
            family: cluster.family(),
            proxy: None,
            address: Target::Tcp(String::new()),
            cluster,
        };
        stage.start_proxy(options).await?;
        Ok(stage)
    }

    /// Starts the proxy, again if need be.
    pub async fn start_proxy(&mut self, options: &ProxyOptions) -> anyhow::Result<()> {
        self.proxy = None;
        if direct_only() {
            self.address = Target::Tcp(format!("127.0.0.1:{}", self.cluster.primary().port));
            return Ok(());
        }
        let servers: Vec<String> = self
            .cluster
            .servers()
            .iter()
            .map(|s| format!("127.0.0.1:{}", s.port))
            .collect();
        let proxy = Proxy::start(&servers, options).await?;
        self.address = proxy.address();
        self.proxy = Some(proxy);
        Ok(())
    }

    /// Makes every replica apply `seconds` late; 0 ends that.
    pub async fn delay_replicas(&self, seconds: u32) -> anyhow::Result<()> {
        for replica in self.cluster.replicas() {
            self.cluster.delay_applier(&replica.name, seconds).await?;
        }
        Ok(())
    }

    /// Replicas that have executed what their primary never did: proof of a misrouted write.
    pub async fn errant_writes(&self) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for replica in self.cluster.replicas() {
            let mut control = self.cluster.control(&replica.name).await?;
            let own = match self.family {
                Family::MySql => control
                    .value("SELECT IF(LOCATE(@@server_uuid, @@gtid_executed), @@gtid_executed, NULL)")
                    .await?,
                Family::MariaDb => control
                    .value("SELECT IF(CONCAT(',', @@gtid_binlog_state) LIKE CONCAT('%,%-', @@server_id, '-%'), @@gtid_binlog_state, NULL)")
                    .await?,
            };
            if let Some(own) = own {
                found.push(format!("{}: {own}", replica.name));
            }
        }
        Ok(found)
    }
}
