//! A server's connection for probes, and how answers on it are read.

use std::sync::Arc;

use millrace_engine::state::Begins;
use millrace_protocol::Capabilities;
use millrace_protocol::handshake::Greeting;
use millrace_topology::ServerId;

use crate::conn::{Conn, Row};
use crate::connect::{Address, Login, SharedNetwork, open};
use crate::error::BackendError;
use crate::monitor::MonitorOptions;
use crate::tls::For;

/// A server's connection for probes, and what is asked once on it.
pub(crate) struct Followed {
    pub(crate) conn: Conn,
    pub(super) greeting: Greeting,
    /// The value for `session_track_system_variables`.
    pub(super) track: Arc<str>,
    /// The value that sessions begin with.
    pub(super) tracked_by_default: Arc<str>,
    /// The variables that sessions have a basis for.
    pub(super) begins: Arc<Begins>,
    /// The node's name where it is one of a Galera cluster.
    pub(super) galera: Option<Box<str>>,
    /// It is one of Amazon Aurora's: a cluster's servers have their files in common.
    pub(super) shares_storage: bool,
    /// What is asked once was asked.
    pub(super) known: bool,
    /// What asks for changes of accounts and global variables; empty before that is known.
    pub(super) looking: Vec<String>,
    /// MySQL itself keeps foreign keys, not InnoDB.
    pub(super) keeps_foreign_keys: bool,
    /// The account may not list the replicas, as the server said.
    pub(crate) blind_to_replicas: Option<String>,
}

/// Logs in as the monitor's account.
pub(crate) async fn connect(
    id: ServerId,
    address: &Address,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<(Conn, Greeting), BackendError> {
    let login = Login {
        user: options.user.as_bytes(),
        password: &options.password,
        database: None,
        collation: 45,
        capabilities: Capabilities::DEPRECATE_EOF,
        tls: false,
        whose: For::Own,
    };
    let opened = open(address, &login, network, options.connect_timeout)
        .await
        .map_err(|error| match error {
            BackendError::Timeout(_) => BackendError::Timeout("monitor.connect_timeout"),
            error => error,
        })?;
    let greeting = opened.greeting.clone();
    let mut conn = Conn::new(opened, id, greeting.family(), None);
    conn.login.at = address.at;
    conn.questions = Some(network.questions.clone());
    Ok((conn, greeting))
}

/// The rows; none where the server answers with an error.
pub(super) async fn unless_refused(
    conn: &mut Conn,
    question: &str,
) -> Result<Vec<Row>, BackendError> {
    match conn.query(question).await {
        Err(BackendError::Server(_)) => Ok(Vec::new()),
        answer => answer,
    }
}

/// A cell's text; empty for NULL.
pub(crate) fn text(cell: Option<&Option<Vec<u8>>>) -> String {
    match cell {
        Some(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

/// Whether a variable of two values is on.
pub(crate) fn is_on(value: &str) -> bool {
    !matches!(value, "" | "0" | "OFF" | "off")
}
