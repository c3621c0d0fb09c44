//! The checked configuration. Options are those of the crates that use them, with their defaults. What
//! stands here is the binary's own, and what needs more than an option. Parses nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use millrace_backend::cache::{CacheOptions, Mode};
use millrace_backend::monitor::MonitorOptions;
use millrace_backend::pool::PoolOptions;
use millrace_backend::tcp::TcpOptions;
use millrace_backend::tls::ServerTlsMode;
use millrace_routing::rules::Rule;
use millrace_routing::{Catalogue, Consistency, Freshness, ServerSet, Target};
use millrace_topology::{ConfiguredRole, ServerSpec};
use millrace_worker::{ListenerTls, Options as SessionOptions};

use crate::{Address, Discovery, Secret};

/// Everything that can be configured.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[[listen]]`: where clients connect. At least one.
    pub listeners: Vec<Listener>,
    /// `[[server]]`: the servers, or some of them. At least one; a `ServerId` is an index here.
    pub servers: Vec<Server>,
    /// `[monitor]`: how servers are asked for their state; and how they are judged, which is partly
    /// `[routing]`'s.
    pub monitor: MonitorOptions,
    /// `[discovery]`: which servers there are beside those listed.
    pub discovery: Discovery,
    /// `[tls]`: the side of the clients.
    pub tls: ClientTls,
    /// `[server_tls]`: the side of the servers.
    pub server_tls: ServerTls,
    /// `[tcp]`: when a client's connection of which nothing is heard is given up.
    pub tcp: TcpOptions,
    /// `[server_tcp]`: the same for connections to servers, the monitor's included.
    pub server_tcp: TcpOptions,
    /// `[pool]`: server connections.
    pub pool: PoolOptions,
    /// `[cache]`: results in memory.
    pub cache: CacheOptions,
    /// `[limits]`, `[failover]`, `[auth]`, and most of `[routing]`.
    pub sessions: SessionOptions,
    /// `[[account]]`: what is said of single accounts.
    pub accounts: Vec<Account>,
    /// `[[server_set]]`: sets of servers by name.
    pub sets: HashMap<String, ServerSet>,
    /// `[[rule]]`: rules for query routing, in order.
    pub rules: Vec<Rule>,
    /// `[http] listen`: metrics and health. None: not served.
    pub http: Option<Address>,
    /// `[admin]`: the listener for operators. None: there is none.
    pub admin: Option<Admin>,
    /// `[log]`.
    pub log: Log,
    /// `[drain] timeout`: how long running statements and transactions may take to end after
    /// SIGTERM. Default 30 s.
    pub drain_timeout: Duration,
    /// `workers`: threads that serve clients. None (`"auto"`, the default): as many as the CPUs
    /// that the process may use, and no more than [`PoolOptions::max_connections`].
    pub workers: Option<usize>,
    /// `coalesce_limit`: the longest that a worker waits for more to do before it sleeps, where CPU is
    /// scarce on the machine; four times as long where the process's control group is throttled.
    /// Default 250 µs; 0: never.
    pub coalesce_limit: Duration,
    /// What is allowed but probably not meant, for the log.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listeners: Vec::new(),
            servers: Vec::new(),
            monitor: MonitorOptions::new(Catalogue::queries),
            discovery: Discovery::default(),
            tls: ClientTls::default(),
            server_tls: ServerTls::default(),
            tcp: TcpOptions::CLIENTS,
            server_tcp: TcpOptions::SERVERS,
            pool: PoolOptions::default(),
            cache: CacheOptions::default(),
            sessions: SessionOptions::default(),
            accounts: Vec::new(),
            sets: HashMap::new(),
            rules: Vec::new(),
            http: None,
            admin: None,
            log: Log::default(),
            drain_timeout: Duration::from_secs(30),
            workers: None,
            coalesce_limit: Duration::from_micros(250),
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// The servers that are listed, as `topology` takes them.
    pub fn server_specs(&self) -> Vec<ServerSpec> {
        self.servers.iter().map(Server::spec).collect()
    }

    /// Whether the primary's binary log is to be followed: for results in memory, or for what reads must see.
    pub fn follows_log(&self) -> bool {
        self.cache.mode != Mode::Off || self.sessions.routing.freshness == Freshness::Table
    }

    /// Fills the options that follow from several keys.
    pub(crate) fn derive(&mut self) {
        let asks = !self.monitor.user.is_empty();
        self.monitor.topology.discovery = self.discovery.in_force(asks);
        self.sessions.levels = self
            .accounts
            .iter()
            .filter_map(|account| Some((account.name.as_bytes().into(), account.consistency?)))
            .collect();
    }
}

/// One `[[listen]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// `address`: `host:port`, `[v6]:port`, `*:port` for every interface, or the absolute path of
    /// a Unix socket.
    pub address: Address,
    /// `target`: `"auto"` (default), `"primary"` or `"replicas"`.
    pub target: Target,
    /// `tls`: `"optional"` (default), `"required"` or `"off"`. A Unix socket counts as secure.
    pub tls: ListenerTls,
    /// `consistency` of its clients, where it is not `[routing]`'s.
    pub consistency: Option<Consistency>,
}

/// One `[[server]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// `address`: `host:port`, `host` (port 3306), or the absolute path of a Unix socket.
    pub address: Address,
    /// `role`: `"auto"` (default: the server is asked), `"primary"` or `"replica"`.
    pub role: ConfiguredRole,
    /// `weight`: its share of reads relative to the others'; 0: none. Default 1, at most 1000.
    pub weight: u32,
    /// `zone`: where it stands; empty (default) where that does not matter.
    pub zone: String,
    /// `tags`: words by which sets choose it.
    pub tags: Vec<String>,
    /// `draining`: it is out of use, as by `DRAIN SERVER`. Read again on SIGHUP. Default false.
    pub draining: bool,
}

/// Stands where an address is not read yet.
pub(crate) fn no_address() -> Address {
    Address::Unix(PathBuf::new())
}

impl Listener {
    /// A listener as it is by default.
    pub(crate) fn at(address: Address) -> Self {
        Listener {
            address,
            target: Target::Auto,
            tls: ListenerTls::default(),
            consistency: None,
        }
    }
}

impl Server {
    /// A server as it is by default.
    pub(crate) fn at(address: Address) -> Self {
        Server {
            address,
            role: ConfiguredRole::Auto,
            weight: 1,
            zone: String::new(),
            tags: Vec::new(),
            draining: false,
        }
    }

    fn spec(&self) -> ServerSpec {
        ServerSpec {
            address: self.address.to_string().into(),
            role: self.role,
            weight: self.weight,
            zone: self.zone.as_str().into(),
        }
    }
}

/// `[tls]`, towards clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientTls {
    /// `cert`: the chain, PEM. None: a certificate is made at start.
    pub cert: Option<PathBuf>,
    /// `key`: the private key, PEM. Given exactly where `cert` is.
    pub key: Option<PathBuf>,
    /// `keep`: where the certificate that is made at start is kept with its key, PEM, so that the next start has
    /// the same. Not beside `cert`.
    pub keep: Option<PathBuf>,
    /// `ca`: clients must show a certificate that one of these authorities signed.
    pub ca: Option<PathBuf>,
    /// `client_certificates`: with `ca`, whether every client that uses TLS must show one (`"required"`),
    /// or only one whose account asks for it (`"optional"`). None: every client. Not `"required"` without `ca`.
    pub client_certificates: Option<ClientCertificates>,
    /// `rsa_key`: the servers' private RSA key (`private_key.pem`), PEM, for clients that were given the
    /// public one. None: a key is made at start.
    pub rsa_key: Option<PathBuf>,
    /// `required`: the `tls` of every `[[listen]]` that does not say otherwise. It is in [`Listener::tls`] already. Default false.
    pub required: bool,
}

/// Which clients must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// All that use TLS.
    Required,
    /// Those whose account asks for it.
    Optional,
}

/// `[server_tls]`, towards servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerTls {
    /// `mode`: `"as_client"` (default), or as in MySQL's clients.
    pub mode: ServerTlsMode,
    /// `ca`: the authorities, PEM; needed for the verify modes.
    pub ca: Option<PathBuf>,
    /// `cert`: a client certificate, PEM.
    pub cert: Option<PathBuf>,
    /// `key`: its key, PEM.
    pub key: Option<PathBuf>,
}

/// One `[[account]]`.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// `name` of the account on the servers, without a host.
    pub name: String,
    /// From `password_file` or `password_env`; none: it is learnt at the account's first login.
    pub password: Option<Secret>,
    /// `consistency` of its sessions, where it is not the listener's or `[routing]`'s.
    pub consistency: Option<Consistency>,
}

/// `[admin]`: where operators ask and act, in the MySQL protocol.
#[derive(Debug, Clone)]
pub struct Admin {
    /// `listen`: as a `[[listen]]`'s address. Default `127.0.0.1:6032`.
    pub address: Address,
    /// `user`: its one account. Default `admin`.
    pub user: String,
    /// `password_file` or `password_env`. Never empty.
    pub password: Secret,
    /// `tls`: as a `[[listen]]`'s.
    pub tls: ListenerTls,
    /// `max_connections` at once, those that are logging in included. Default 16.
    pub max_connections: u32,
}

impl Admin {
    /// With this password, and everything else by default.
    pub fn new(password: Secret) -> Self {
        Admin {
            address: Address::Tcp {
                host: "127.0.0.1".into(),
                port: 6032,
            },
            user: "admin".into(),
            password,
            tls: ListenerTls::default(),
            max_connections: 16,
        }
    }
}

/// `[log]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Log {
    /// `level`: `"error"`, `"warn"`, `"info"` (default), `"debug"` or `"trace"`.
    pub level: LogLevel,
    /// `format`: `"text"` (default) or `"json"`.
    pub format: LogFormat,
}

/// The least important lines that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LogLevel {
    /// Errors only.
    Error,
    /// Warnings and worse.
    Warn,
    /// What an operator wants to know.
    #[default]
    Info,
    /// What a developer wants to know.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// As a filter directive.
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
