//! What all operators' connections share. Does nothing.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use millrace_backend::account::Account;
use millrace_worker::{Accounts, ListenerTls, Options as SlowingOptions};
use tokio_rustls::TlsAcceptor;

use crate::operators::sources::Sources;

/// Who may come in, and how.
pub struct OperatorsOptions {
    /// The one account.
    pub account: Account,
    /// Whether TLS is offered or demanded; a Unix socket counts as secure.
    pub tls: ListenerTls,
    /// What accepts TLS.
    pub acceptor: Option<TlsAcceptor>,
    /// Clients at once, those that are logging in included.
    pub connections_max: usize,
    /// From connect to the end of the login.
    pub login_timeout: Duration,
    /// How failed logins are slowed down: as for clients.
    pub slowing: Arc<SlowingOptions>,
}

/// What all operators' connections share.
pub(crate) struct Operators {
    pub(crate) options: OperatorsOptions,
    pub(crate) failures: Accounts,
    pub(crate) sources: Sources,
    pub(crate) next_id: AtomicU32,
}

/// An address for the log; a client on a Unix socket has none.
pub(crate) fn shown<T: Display>(address: Option<T>) -> String {
    address.map_or_else(|| "localhost".to_owned(), |address| address.to_string())
}
