//! How pools come by new connections. Does not decide when, nor for whom.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use millrace_sql::Family;

use crate::account::Account;
use crate::conn::{Conn, Permit};
use crate::connect::{Login, SharedNetwork, open};
use crate::error::BackendError;
use crate::pool::{PoolKey, ServerFacts};
use crate::rooms::Rooms;
use crate::state::States;
use crate::tls::For;

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

/// Connects to the server and logs in as the key's account.
#[derive(Debug)]
pub struct Logins {
    /// How the servers are connected to.
    pub network: SharedNetwork,
    /// How long it may take to be let in, and after that until the session's tracking is set.
    pub timeout: Duration,
    /// The states that the worker's connections share.
    pub states: Rc<States>,
    /// The room that they read into.
    pub rooms: Rc<Rooms>,
}

impl Opener for Logins {
    fn open<'a>(
        &'a self,
        facts: &'a ServerFacts,
        key: &'a PoolKey,
        permit: Option<Permit>,
    ) -> Opening<'a> {
        Box::pin(async move {
            let login = Login {
                user: &key.account.user,
                password: &key.account.password,
                database: None,
                collation: key.collation,
                capabilities: key.shape,
                tls: key.tls,
                whose: For::Client,
            };
            let opened = open(&facts.address, &login, &self.network, self.timeout).await?;
            let mut conn = Box::new(Conn::new(opened, facts.id, facts.family, permit));
            conn.rooms = self.rooms.clone();
            conn.at = facts.address.at;
            let state = tokio::time::timeout(self.timeout, conn.set_up(facts))
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
                conn.set_up(facts).await
            };
            let state = tokio::time::timeout(self.timeout, renewing)
                .await
                .map_err(|_| BackendError::Timeout("pool.connect_timeout"))??;
            conn.state = self.states.share(state);
            Ok(conn)
        })
    }
}
