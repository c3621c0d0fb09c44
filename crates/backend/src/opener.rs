//! How pools come by new connections. Does not decide when, nor for whom.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::Capabilities;
use millrace_sql::Family;
use tracing::warn;

use crate::account::Account;
use crate::buffers::BufferPool;
use crate::conn::{Conn, Permit};
use crate::connect::{Login, Opened, SharedNetwork, open};
use crate::error::{BackendError, ServerError};
use crate::facts::ServerFacts;
use crate::fresh::Fresh;
use crate::probe::accounts::ask_drops;
use crate::states::States;
use crate::tls::For;
use crate::user_rows::{WHO, Who, by_which_row, user_of};

/// Connections that are interchangeable but for their session state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// The account logged in with.
    pub account: Arc<Account>,
    /// The flags that shape what the server sends; as the client's.
    pub shape: Capabilities,
    /// TLS to the server.
    pub tls: bool,
    /// For sessions with a default database. Apart, because a connection cannot lose its
    /// database again.
    pub has_database: bool,
    /// The handshake's collation where it cannot be set afterwards.
    pub collation: u8,
}

/// A connection under way.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Box<Conn>, BackendError>> + 'a>>;

/// Opens connections for a pool: [`Logins`], or what a simulation puts in its place.
pub trait Opener {
    /// Opens one of the kind that `key` names, ready for a session's statement, and ends by itself
    /// where the server does not answer. The permit goes with the connection, or is dropped.
    fn open<'a>(
        &'a self,
        facts: &'a ServerFacts,
        key: &'a PoolKey,
        permit: Option<Permit>,
    ) -> Opening<'a>;

    /// Has an idle connection of that kind log in anew, so that it is as one that is opened now. An
    /// error where it is not; the connection is closed then.
    fn renew<'a>(
        &'a self,
        _facts: &'a ServerFacts,
        _key: &'a PoolKey,
        _conn: Box<Conn>,
    ) -> Opening<'a> {
        Box::pin(async { Err(BackendError::Protocol("connections are not renewed")) })
    }
}

/// The same account with the passwords that other clients have logged in with since: none where it may be
/// another account of the same name by now.
pub type Successors = Box<dyn Fn(&Account) -> Vec<Arc<Account>>>;

/// Connects to the server and logs in as the key's account.
pub struct Logins {
    /// How the servers are connected to.
    pub network: SharedNetwork,
    /// How long it may take to be let in, and after that until the session's tracking is set.
    pub timeout: Duration,
    /// The states that the worker's connections share.
    pub states: Rc<States>,
    /// The room that they read into.
    pub buffers: Rc<BufferPool>,
    /// Accounts' hosts count: a server that lets the account in by another row than the primary has another account.
    pub hosts_count: bool,
    /// For sessions whose account has got another password since they logged in: directly they go on.
    pub successors: Successors,
}

/// ER_ACCESS_DENIED_ERROR.
const DENIED: u16 = 1045;

impl Logins {
    /// Refuses a server that has let the account in by another row than the one that its clients were judged by: a replica
    /// may have accounts of its own. Where nobody can tell, the server's word counts.
    async fn is_by_the_same_row(
        &self,
        facts: &ServerFacts,
        account: &Account,
        conn: &mut Conn,
    ) -> Result<(), BackendError> {
        let proof = account.proof().filter(|_| self.hosts_count);
        let Some(proof) = proof.filter(|proof| !proof.current.is_empty()) else {
            return Ok(());
        };
        let version = facts.fresh.version();
        let found = by_which_row(conn).await?.row;
        if found.is_empty() || found == proof.current {
            return Ok(());
        }
        let [found, judged] = [found, proof.current].map(|row| written(&row));
        warn!(
            server = %facts.address,
            "lets clients in as {found} that were judged as {judged}: it is not used for them"
        );
        let text = format!(
            "Access denied: Millrace: this server lets the account in as {found}, and its clients were judged as {judged}; \
             make the accounts of all servers the same, or see [auth] hosts"
        );
        let error = ServerError::new(DENIED, b"28000", text);
        account.refuse(facts.id, version, &facts.fresh, &error);
        Err(BackendError::Server(error))
    }

    /// Logs in with the password of `account`, unless the server has just refused it.
    async fn log_in(
        &self,
        facts: &ServerFacts,
        key: &PoolKey,
        account: &Account,
    ) -> Result<Opened, BackendError> {
        let version = facts.fresh.version();
        if let Some(error) = account.refusal(facts.id, version) {
            return Err(BackendError::Server(error));
        }
        let login = Login {
            user: &account.user,
            password: &account.password,
            database: None,
            collation: key.collation,
            capabilities: key.shape,
            tls: key.tls,
            whose: For::Client,
        };
        let opened = open(&facts.address, &login, &self.network, self.timeout).await;
        if let Err(BackendError::Server(error)) = &opened
            && error.code == DENIED
        {
            account.refuse(facts.id, version, &facts.fresh, error);
        }
        opened
    }

    /// Logs in as the key's account with what its password is now, where another client has shown it. None:
    /// nobody has, or it is not certain that it is the same account.
    #[cold]
    async fn succeed(
        &self,
        facts: &ServerFacts,
        key: &PoolKey,
    ) -> Result<Option<Opened>, BackendError> {
        for successor in (self.successors)(&key.account) {
            let opened = match self.log_in(facts, key, &successor).await {
                Err(BackendError::Server(error)) if error.code == DENIED => continue,
                opened => opened?,
            };
            let Some(proof) = key.account.proof() else {
                return Ok(None);
            };
            let asking = is_same_account(opened, facts, &proof.current);
            let asked = tokio::time::timeout(self.timeout, asking).await;
            return asked.map_err(|_| BackendError::Timeout("pool.connect_timeout"))?;
        }
        Ok(None)
    }
}

/// `'user'@'host'`.
fn written(row: &[u8]) -> String {
    let user = String::from_utf8_lossy(user_of(row));
    let host = row.get(user_of(row).len() + 1..).unwrap_or_default();
    format!("'{user}'@'{}'", String::from_utf8_lossy(host))
}

/// The connection, where it is the account's that sessions of `current` are of: the same row, and no account
/// of the server was dropped since anybody looked.
async fn is_same_account(
    opened: Opened,
    facts: &ServerFacts,
    current: &[u8],
) -> Result<Option<Opened>, BackendError> {
    let (greeting, capabilities, status) =
        (opened.greeting.clone(), opened.capabilities, opened.status);
    let mut conn = Conn::new(opened, facts.id, facts.family, None);
    let is_current = *Who::read(conn.query(WHO).await?).row == *current;
    let fresh: &Fresh = &facts.fresh;
    if !is_current || !fresh.knows_drops(ask_drops(&mut conn).await?) {
        return Ok(None);
    }
    let buffer = std::mem::take(&mut conn.buffer);
    let tells_variables = conn.login.tells_variables;
    Ok(Some(Opened {
        stream: conn.into_stream(),
        greeting,
        capabilities,
        status,
        tells_variables,
        buffer,
    }))
}

impl Opener for Logins {
    fn open<'a>(
        &'a self,
        facts: &'a ServerFacts,
        key: &'a PoolKey,
        permit: Option<Permit>,
    ) -> Opening<'a> {
        Box::pin(async move {
            let opened = match self.log_in(facts, key, &key.account).await {
                Err(BackendError::Server(error)) if error.code == DENIED => {
                    let succeeding = Box::pin(self.succeed(facts, key)).await?;
                    succeeding.ok_or(BackendError::Server(error))?
                }
                opened => opened?,
            };
            let mut conn = Box::new(Conn::new(opened, facts.id, facts.family, permit));
            conn.buffers = self.buffers.clone();
            conn.login.at = facts.address.at;
            let setting_up = async {
                let state = conn.set_up(facts).await?;
                self.is_by_the_same_row(facts, &key.account, &mut conn)
                    .await?;
                Ok::<_, BackendError>(state)
            };
            let state = tokio::time::timeout(self.timeout, setting_up)
                .await
                .map_err(|_| BackendError::Timeout("pool.connect_timeout"))??;
            conn.state = self.states.share(state);
            Ok(conn)
        })
    }

    fn renew<'a>(
        &'a self,
        facts: &'a ServerFacts,
        key: &'a PoolKey,
        mut conn: Box<Conn>,
    ) -> Opening<'a> {
        Box::pin(async move {
            let renewing = async {
                let Account { user, password, .. } = &*key.account;
                if conn.family == Family::MariaDb {
                    // Without a default role COM_CHANGE_USER leaves the one that was (observed).
                    conn.query("SET ROLE NONE").await?;
                }
                conn.change_user(user, password, b"", key.collation).await?;
                let state = conn.set_up(facts).await?;
                self.is_by_the_same_row(facts, &key.account, &mut conn)
                    .await?;
                Ok::<_, BackendError>(state)
            };
            let state = tokio::time::timeout(self.timeout, renewing)
                .await
                .map_err(|_| BackendError::Timeout("pool.connect_timeout"))??;
            conn.state = self.states.share(state);
            Ok(conn)
        })
    }
}
