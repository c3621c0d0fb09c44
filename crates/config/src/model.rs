//! The checked configuration, section by section, with every default. Parses nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use millrace_routing::rules::Rule;
use millrace_routing::{Consistency, Options as RoutingOptions, ServerSet, Target};
use millrace_topology::{ConfiguredRole, Options as TopologyOptions, ServerSpec};

use crate::{Address, Discovery, Secret};

/// Everything that can be configured.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[[listen]]`: where clients connect. At least one.
    pub listeners: Vec<Listener>,
    /// `[[server]]`: the servers, or some of them. At least one; a `ServerId` is an index here.
    pub servers: Vec<Server>,
    /// `[monitor]`: how servers are asked for their state.
    pub monitor: Monitor,
    /// `[discovery]`: which servers there are beside those listed.
    pub discovery: Discovery,
    /// `[tls]`: the side of the clients.
    pub tls: ClientTls,
    /// `[server_tls]`: the side of the servers.
    pub server_tls: ServerTls,
    /// `[tcp]`: when a client's connection of which nothing is heard is given up.
    pub tcp: Tcp,
    /// `[server_tcp]`: the same for connections to servers, the monitor's included.
    pub server_tcp: Tcp,
    /// `[pool]`: server connections.
    pub pool: Pool,
    /// `[limits]`: what clients may take.
    pub limits: Limits,
    /// `[routing]`: which server runs what.
    pub routing: Routing,
    /// `[failover]`: what becomes of statements when a server is lost or moves.
    pub failover: Failover,
    /// `[auth]`: how failed logins are slowed down.
    pub auth: Auth,
    /// `[[account]]`: accounts whose password is given here instead of being learnt.
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
    /// that the process may use, and no more than [`Pool::max_connections`].
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
            monitor: Monitor::default(),
            discovery: Discovery::default(),
            tls: ClientTls::default(),
            server_tls: ServerTls::default(),
            tcp: Tcp::CLIENTS,
            server_tcp: Tcp::SERVERS,
            pool: Pool::default(),
            limits: Limits::default(),
            routing: Routing::default(),
            failover: Failover::default(),
            auth: Auth::default(),
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
    /// What `topology` needs: its options and the servers.
    pub fn topology(&self) -> (TopologyOptions, Vec<ServerSpec>) {
        let options = TopologyOptions {
            lag_seconds_max: self.routing.max_lag.as_secs(),
            running_max: self.routing.max_running,
            slow_start_ms: u64::try_from(self.routing.slow_start.as_millis()).unwrap_or(u64::MAX),
            fail_after: self.monitor.fail_after,
            discovery: self.discovery.options(self.monitor.user.is_some()),
        };
        let specs = self.servers.iter().map(Server::spec).collect();
        (options, specs)
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

/// Whether a listener offers TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ListenerTls {
    /// Clients may use it.
    #[default]
    Optional,
    /// Clients must use it.
    Required,
    /// Not offered.
    Off,
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

impl Server {
    fn spec(&self) -> ServerSpec {
        ServerSpec {
            address: self.address.to_string().into(),
            role: self.role,
            weight: self.weight,
            zone: self.zone.as_str().into(),
        }
    }
}

/// `[monitor]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    /// `user`: the account that asks for roles and replication status; none: a single server, or
    /// fixed roles, and nothing is known of lag.
    pub user: Option<String>,
    /// `password_file` or `password_env`. Empty where neither is given.
    pub password: Secret,
    /// `interval` between two probes of a server. Default 500 ms.
    pub interval: Duration,
    /// `urgent_interval`: the same while no server takes writes. Default 100 ms.
    pub urgent_interval: Duration,
    /// `timeout` of one probe's questions. Default 1 s.
    pub timeout: Duration,
    /// `connect_timeout` of the probe's connection, login included. Default 1 s.
    pub connect_timeout: Duration,
    /// `position_interval`: the least time between two questions to a server how far it is, while
    /// sessions need to know; up to sixteen times as long until something is written
    /// through Millrace. Default 50 ms.
    pub position_interval: Duration,
    /// `commit_stall`: commits that take longer keep further writes from the primary until they end.
    /// Whole seconds, default 2 s; 0: never.
    pub commit_stall: Duration,
    /// `max_login_age`: a change of accounts or global variables counts for every new login after this
    /// time at the latest. Default 1 s.
    pub max_login_age: Duration,
    /// `fail_after`: so many failed probes in a row make a server down. Default 2.
    pub fail_after: u32,
}

impl Default for Monitor {
    fn default() -> Self {
        Monitor {
            user: None,
            password: Secret::default(),
            interval: Duration::from_millis(500),
            urgent_interval: Duration::from_millis(100),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            position_interval: Duration::from_millis(50),
            commit_stall: Duration::from_secs(2),
            max_login_age: Duration::from_secs(1),
            fail_after: 2,
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
    /// `client_certificates`: with `ca`, whether every client that uses TLS must show one (`"required"`,
    /// the default), or only one whose account asks for it (`"optional"`).
    pub client_certificates: ClientCertificates,
    /// `rsa_key`: the servers' private RSA key (`private_key.pem`), PEM, for clients that were given the
    /// public one. None: a key is made at start.
    pub rsa_key: Option<PathBuf>,
    /// `required`: on every listener that does not say otherwise. Default false.
    pub required: bool,
}

/// Which clients must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// All that use TLS.
    #[default]
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

/// How server connections are encrypted and servers verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ServerTlsMode {
    /// Never.
    Disabled,
    /// Where the client's own connection is encrypted and the server offers it: the way to the
    /// server is as private as without Millrace. Not verified.
    #[default]
    AsClient,
    /// Where the server offers it; not verified.
    Preferred,
    /// Always; not verified.
    Required,
    /// Always; the certificate's authority is verified.
    VerifyCa,
    /// Always; the certificate's authority and host name are verified.
    VerifyIdentity,
}

/// `[tcp]`, towards clients, and `[server_tcp]`, towards servers: Linux's socket options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tcp {
    /// `keepalive_idle`: a silent connection is probed after this; whole seconds, 0: never. Default
    /// 30 s towards clients, 10 s towards servers.
    pub keepalive_idle: Duration,
    /// `keepalive_interval` between two probes; whole seconds. Default 10 s and 5 s.
    pub keepalive_interval: Duration,
    /// `keepalive_count`: that many probes without an answer end the connection, where `user_timeout`
    /// is 0. Default 3.
    pub keepalive_count: u32,
    /// `user_timeout`: the connection ends when bytes or probes are not acknowledged for this long, and
    /// when the peer takes no bytes for this long; 0: the kernel's limit, some 15 minutes. Default 1 min
    /// towards clients (a server's own `net_write_timeout`), 20 s towards servers.
    pub user_timeout: Duration,
}

impl Tcp {
    /// The defaults towards clients.
    pub const CLIENTS: Tcp = Tcp {
        keepalive_idle: Duration::from_secs(30),
        keepalive_interval: Duration::from_secs(10),
        keepalive_count: 3,
        user_timeout: Duration::from_secs(60),
    };
    /// The defaults towards servers.
    pub const SERVERS: Tcp = Tcp {
        keepalive_idle: Duration::from_secs(10),
        keepalive_interval: Duration::from_secs(5),
        keepalive_count: 3,
        user_timeout: Duration::from_secs(20),
    };
}

/// `[pool]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// `max_connections` per server, over all workers. Default 100.
    pub max_connections: u32,
    /// `concurrency`: how many statements one server runs at once, over all workers; others wait.
    /// `"auto"` (default): as many as get the most done; a number, for those that do not take long and
    /// with at least one for each worker; or `"off"`: as many as there are connections.
    pub concurrency: Concurrency,
    /// `idle_timeout`: an unused connection is closed after this. Default 5 min.
    pub idle_timeout: Duration,
    /// `check_after`: a connection that was idle for longer is asked for a sign of life (COM_PING) before
    /// a write goes to it, within `connect_timeout`. Whole seconds, default 10 s; 0: never.
    pub check_after: Duration,
    /// `connect_timeout`, login included. Default 3 s.
    pub connect_timeout: Duration,
    /// `wait_timeout`: how long a statement waits for a connection. Default 10 s.
    pub wait_timeout: Duration,
    /// `max_waiting`: statements that wait for one server's connections. Default 10000.
    pub max_waiting: u32,
    /// `max_prepared_statements` per server connection; the least used is closed. Connections hold fewer
    /// for a while where the server's own `max_prepared_stmt_count`, over all connections, is reached.
    /// Default 256.
    pub max_prepared_statements: u32,
    /// `max_lifetime` of a server connection, checked when it is given back; 0: no limit.
    /// Default 1 h.
    pub max_lifetime: Duration,
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            max_connections: 100,
            concurrency: Concurrency::Auto,
            idle_timeout: Duration::from_secs(300),
            check_after: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            wait_timeout: Duration::from_secs(10),
            max_waiting: 10_000,
            max_prepared_statements: 256,
            max_lifetime: Duration::from_secs(3600),
        }
    }
}

/// How many statements one server runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrency {
    /// As many as get the most done.
    #[default]
    Auto,
    /// So many of those that do not take long, over all workers; at least one for each.
    At(u32),
    /// As many as there are connections.
    Off,
}

/// `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `max_clients` connected at once. Default 10000.
    pub max_clients: u32,
    /// `max_packet`: the longest command, in bytes; at most 1 GiB. Default 64 MiB.
    pub max_packet: u64,
    /// `login_timeout`: from connect to the end of the login. Default 10 s.
    pub login_timeout: Duration,
    /// `max_long_data`: bytes of COM_STMT_SEND_LONG_DATA held per session. Default 64 MiB.
    pub max_long_data: u64,
    /// `max_prepared_statements` open per session. Default 16382, as a server's own limit.
    pub max_prepared_statements: u32,
    /// `clients_per_address` connected at once; 0 (default): no limit.
    pub clients_per_address: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_clients: 10_000,
            max_packet: 64 << 20,
            login_timeout: Duration::from_secs(10),
            max_long_data: 64 << 20,
            max_prepared_statements: 16_382,
            clients_per_address: 0,
        }
    }
}

/// `[routing]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// `reads` (`"replicas"`, the default, or `"all"`) and `wait_limit` (default 100 ms, 0: never
    /// wait).
    pub options: RoutingOptions,
    /// `consistency`: `"eventual"`, `"session"`, `"instance"` (default) or `"global"`.
    pub consistency: Consistency,
    /// `max_lag`: a replica further behind takes no reads. Whole seconds, default 30 s.
    pub max_lag: Duration,
    /// `max_running`: a replica that runs more statements at once takes no reads until it runs fewer; 0:
    /// no limit. Default 0.
    pub max_running: u32,
    /// `slow_start`: a server that takes reads again has its full share of them after this. Default
    /// 10 s, 0: at once.
    pub slow_start: Duration,
}

impl Default for Routing {
    fn default() -> Self {
        Routing {
            options: RoutingOptions::default(),
            consistency: Consistency::default(),
            max_lag: Duration::from_secs(30),
            max_running: 0,
            slow_start: Duration::from_secs(10),
        }
    }
}

/// `[failover]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failover {
    /// `hold_time`: how long a statement waits for a server that can run it. Default 30 s, more than
    /// a group of servers takes by its own defaults to elect another primary (21.5 s); 0: not at
    /// all.
    pub hold_time: Duration,
    /// `max_held`: statements that wait at once. Default 10000.
    pub max_held: u32,
    /// `max_held_bytes`: the length of their commands together. Default 64 MiB.
    pub max_held_bytes: u64,
    /// `retries`: how often a read is sent again whose connection broke while it ran. Default 2.
    pub retries: u32,
    /// `max_replay_statements`: the longest transaction that is run again on a new primary. Default
    /// 1000; 0: none is.
    pub max_replay_statements: u32,
    /// `max_replay_bytes`: the length of its commands together. Default 1 MiB.
    pub max_replay_bytes: u64,
    /// `max_replay_total_bytes`: what is kept of all open transactions together. Default 256 MiB.
    pub max_replay_total_bytes: u64,
    /// `max_replay_time`: how old a transaction may be, from its first answer, to be run again.
    /// Default 1 min.
    pub max_replay_time: Duration,
    /// `drain_time`: how long transactions may go on on a server that is drained. Default 10 s.
    pub drain_time: Duration,
}

impl Default for Failover {
    fn default() -> Self {
        Failover {
            hold_time: Duration::from_secs(30),
            max_held: 10_000,
            max_held_bytes: 64 << 20,
            retries: 2,
            max_replay_statements: 1000,
            max_replay_bytes: 1 << 20,
            max_replay_total_bytes: 256 << 20,
            max_replay_time: Duration::from_secs(60),
            drain_time: Duration::from_secs(10),
        }
    }
}

/// `[auth]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// `failure_delay`: how long the answer to an address's failed login is held back; doubled
    /// with each further failure. 0: never. Default 100 ms.
    pub failure_delay: Duration,
    /// `failure_delay_max`: but never longer than this. Default 5 s.
    pub failure_delay_max: Duration,
    /// `failures_free`: so many failures of an address are answered at once. Default 3.
    pub failures_free: u32,
    /// `failure_memory`: an address's failures are forgotten after this. Default 1 min.
    pub failure_memory: Duration,
    /// `hosts`: `"check"` (default): where the accounts can be read, a client gets in only by the account
    /// whose host is for its own address; `"ignore"`: servers' accounts are for Millrace's address.
    pub hosts: Hosts,
}

/// What the hosts of the servers' accounts say of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hosts {
    /// The account has to be the one for the client's address.
    #[default]
    Check,
    /// Nothing.
    Ignore,
}

impl Default for Auth {
    fn default() -> Self {
        Auth {
            failure_delay: Duration::from_millis(100),
            failure_delay_max: Duration::from_secs(5),
            failures_free: 3,
            failure_memory: Duration::from_secs(60),
            hosts: Hosts::default(),
        }
    }
}

/// One `[[account]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// `name` of the account on the servers, without a host.
    pub name: String,
    /// From `password_file` or `password_env`; none: it is learnt at the account's first login.
    pub password: Option<Secret>,
    /// `consistency` of its sessions, where it is not the listener's or `[routing]`'s.
    pub consistency: Option<Consistency>,
}

/// `[admin]`: where operators ask and act, in the MySQL protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
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
