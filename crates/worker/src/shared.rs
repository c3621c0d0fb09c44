//! What the workers of a process share, and what they tell each other.

use std::sync::Arc;

use millrace_backend::cache::Cache;
use millrace_backend::connect::SharedNetwork;
use millrace_backend::monitor::Monitor;
use millrace_backend::pool::ServerCount;
use millrace_metrics::{Metrics, PerServer};
use millrace_routing::{Consistency, Target};
use millrace_topology::ServerId;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use crate::accounts::Accounts;
use crate::handle::Running;
use crate::handle::processlist::{PoolLine, ServerLine, SessionLine};
use crate::registry::Registry;
use crate::server_key::ServerKey;
use crate::settings::SessionSettings;
use crate::wait_queue::Held;
use crate::worker::cluster::written::Written;

/// The certificate that clients are shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    /// SHA-256.
    pub fingerprint: [u8; 32],
    /// Nobody has signed it whom a client knows.
    pub is_self_made: bool,
}

/// What all workers of the process share.
#[derive(Clone)]
pub struct Shared {
    /// What the configuration said of sessions when the process started. What is in force now, a worker knows.
    pub settings: SessionSettings,
    /// Connections per server, over all workers.
    pub counts: Arc<PerServer<Arc<ServerCount>>>,
    /// Known passwords.
    pub accounts: Arc<Accounts>,
    /// All clients.
    pub registry: Arc<Registry>,
    /// The RSA key for logins.
    pub key: Arc<ServerKey>,
    /// TLS to clients.
    pub tls: Option<TlsAcceptor>,
    /// The certificate that clients are shown.
    pub certificate: Shown,
    /// How servers are connected to.
    pub network: SharedNetwork,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Watches the servers.
    pub monitor: Arc<Monitor>,
    /// What was written through this process.
    pub written: Arc<Written>,
    /// Results in memory, where the cache is on.
    pub cache: Option<Arc<Cache>>,
    /// Statements that wait for a server.
    pub held: Arc<Held>,
    /// Every worker's mailbox.
    pub mailboxes: Arc<Vec<mpsc::UnboundedSender<Message>>>,
}

/// What a worker is told by others.
pub enum Message {
    /// A client connected.
    Client {
        /// Its socket: non-blocking, and without Nagle's delay.
        plain: std::net::TcpStream,
        /// Where it comes from; none where it has left again.
        peer: Option<std::net::SocketAddr>,
        /// Where it came in.
        entry: ListenerContext,
    },
    /// A client connected over a Unix socket.
    UnixClient {
        /// Its socket, non-blocking.
        plain: std::os::unix::net::UnixStream,
        /// Where it came in.
        entry: ListenerContext,
    },
    /// A second has passed.
    Second,
    /// What the configuration says has changed.
    Settings(SessionSettings),
    /// Another worker has sessions waiting for a server, or has made room on one.
    Room(ServerId),
    /// What does this session run, and where? It must not give its connection back meanwhile.
    Ask {
        /// The session.
        uid: u64,
        /// It is asked for a KILL QUERY, which leaves the session.
        query: bool,
        /// Takes the answer.
        reply: oneshot::Sender<Option<Running>>,
    },
    /// Describe these sessions, in their order; a few hundred at most.
    Describe {
        /// Their identities.
        uids: Vec<u64>,
        /// Takes the answer: none for one that is not logged in.
        reply: oneshot::Sender<Vec<Option<SessionLine>>>,
    },
    /// Describe the connections to each server.
    Servers(oneshot::Sender<Vec<ServerLine>>),
    /// Describe the pools.
    Pools {
        /// So many at most.
        max: usize,
        /// Takes the answer.
        reply: oneshot::Sender<Vec<PoolLine>>,
    },
    /// End this session, or its statement, for an operator who may.
    Kill {
        /// The session.
        uid: u64,
        /// Only the statement.
        query: bool,
        /// Takes what came of it.
        reply: oneshot::Sender<Killed>,
    },
    /// Close the connections of this account that nobody uses.
    DropAccount(Box<[u8]>),
    /// The statement under way was killed: it is not to be tried on another server.
    Interrupt(u64),
    /// End this session.
    End(u64),
    /// Take no new clients; end idle sessions, and the others when they become idle.
    Drain,
    /// End everything now.
    Stop,
}

/// A listener, as far as its clients' sessions depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListenerContext {
    /// Its number, in the order of the configuration.
    pub listener: u16,
    /// What it is for.
    pub target: Target,
    /// What reads are guaranteed to see, where that is its own.
    pub consistency: Option<Consistency>,
    /// Whether TLS is offered or demanded.
    pub tls: ListenerTls,
}

/// Whether a listener offers TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListenerTls {
    /// Clients may use it.
    #[default]
    Optional,
    /// Clients must use it.
    Required,
    /// Not offered.
    Off,
}

/// What came of an operator's KILL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Killed {
    /// It is done.
    Done,
    /// There is no such session.
    Gone,
    /// Its statement still runs: the server could not be told, and why not.
    NotTold(String),
}

#[cfg(test)]
pub(crate) mod tests {
    use millrace_backend::connect::Network;
    use millrace_backend::monitor::{Monitor, MonitorOptions};
    use millrace_backend::names::Resolver;
    use millrace_backend::questions::Questions;
    use millrace_backend::secret::Secret;
    use millrace_backend::tcp::TcpOptions;
    use millrace_backend::tls::{ServerTls, ServerTlsFiles, ServerTlsMode};

    use super::*;
    use crate::options::Options;

    /// What workers share that have no server.
    pub(crate) fn shared() -> Shared {
        let second = std::time::Duration::from_secs(1);
        let asked = MonitorOptions {
            user: String::new(),
            password: Secret::new(Vec::new()),
            interval: second,
            urgent_interval: second,
            timeout: second,
            connect_timeout: second,
            position_interval: second,
            catalogue_interval: second,
            catalogue_queries: |_| ["", "", "", ""],
            topology: millrace_topology::Options::default(),
            commit_stall: second,
            max_login_age: second,
            traffic: None,
        };
        let tls = ServerTls::new(ServerTlsMode::Disabled, &ServerTlsFiles::default());
        let network = Network {
            tls: tls.unwrap(),
            tcp: TcpOptions::default(),
            resolver: Resolver::default(),
            questions: Questions::default(),
        };
        let monitor = Monitor::new(&asked, Vec::new(), &[]);
        let options = Options {
            clients_per_address: 1,
            ..Options::default()
        };
        let (mailbox, _) = mpsc::unbounded_channel();
        Shared {
            held: Arc::new(Held::new(&options.failover)),
            settings: SessionSettings {
                options: Arc::new(options),
                ..SessionSettings::default()
            },
            counts: Arc::new(PerServer::new(0)),
            accounts: Arc::default(),
            registry: Arc::default(),
            key: Arc::new(ServerKey::generate().unwrap()),
            tls: None,
            certificate: Shown::default(),
            network: Arc::new(network),
            metrics: Arc::new(Metrics::new(1, Vec::new())),
            monitor,
            written: Arc::new(Written::new(1)),
            cache: None,
            mailboxes: Arc::new(vec![mailbox]),
        }
    }
}
