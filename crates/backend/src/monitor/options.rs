//! How servers are asked, and what of clients' statements is counted meanwhile.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millrace_topology::{Family, Options, ServerId};

use crate::secret::Secret;

/// How the servers are asked.
#[derive(Debug, Clone)]
pub struct MonitorOptions {
    /// The account; it needs the privilege to see the replication's status.
    pub user: String,
    /// Its password.
    pub password: Secret,
    /// Time between two questions to a server.
    pub interval: Duration,
    /// The same while no server takes writes.
    pub urgent_interval: Duration,
    /// How long the answers to one probe may take together.
    pub timeout: Duration,
    /// How long connecting for a probe may take, login included.
    pub connect_timeout: Duration,
    /// The least time between two questions to a server how far it is.
    pub position_interval: Duration,
    /// How often the stored routines and views are read again.
    pub catalogue_interval: Duration,
    /// What reads them.
    pub catalogue_queries: CatalogueQueries,
    /// How servers are judged.
    pub topology: Options,
    /// Commits under way for longer than this keep further writes from the server; zero: never asked.
    pub commit_stall: Duration,
    /// For how long a change of accounts or global variables may go unnoticed by new logins.
    pub max_login_age: Duration,
    /// What becomes of clients' statements, where that is known.
    pub traffic: Option<Traffic>,
}

impl MonitorOptions {
    /// The defaults, with no account. `catalogue_queries` read the stored routines and views.
    pub fn new(catalogue_queries: CatalogueQueries) -> Self {
        MonitorOptions {
            user: String::new(),
            password: Secret::new(Vec::new()),
            interval: Duration::from_millis(500),
            urgent_interval: Duration::from_millis(100),
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            position_interval: Duration::from_millis(50),
            catalogue_interval: Duration::from_secs(5),
            catalogue_queries,
            topology: Options::default(),
            commit_stall: Duration::from_secs(2),
            max_login_age: Duration::from_secs(1),
            traffic: None,
        }
    }

    /// Servers are asked which others there are.
    pub(crate) fn discovers(&self) -> bool {
        self.topology.discovery.is_some()
    }
}

/// What has become of clients' statements on a server so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Statements answered. A server that answers clients is not down because a probe had no answer.
    pub answered: u64,
    /// Of these, those that read.
    pub read: u64,
    /// Connections on loan now.
    pub leased: u64,
}

/// Counts clients' statements on a server.
#[derive(Clone)]
pub struct Traffic(pub Arc<dyn Fn(ServerId) -> Counts + Send + Sync>);

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traffic")
    }
}

/// The statements that read a family's stored routines, views and triggers, in this order; and, in a cluster of Galera,
/// the tables whose rows it does not replicate.
pub type CatalogueQueries = fn(Family) -> [&'static str; 4];
