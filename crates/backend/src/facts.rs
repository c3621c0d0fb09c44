//! What is known of a server by those who connect to it. Asks nothing.

use std::sync::Arc;

use millrace_engine::state::Begins;
use millrace_sql::Family;
use millrace_topology::ServerId;

use crate::connect::Address;
use crate::fresh::Fresh;

/// What is to be known of a server to open connections to it.
#[derive(Debug, Clone)]
pub struct ServerFacts {
    /// Its place in the list.
    pub id: ServerId,
    /// Where it listens.
    pub address: Address,
    /// Its family.
    pub family: Family,
    /// The value for `session_track_system_variables`.
    pub track: Arc<str>,
    /// The value that sessions begin with; empty where it is not known.
    pub tracked_by_default: Arc<str>,
    /// The variables that sessions have a basis for.
    pub begins: Arc<Begins>,
    /// It is a node of a cluster: see [`Conn::ignores_sync_wait`](crate::conn::Conn::ignores_sync_wait).
    pub in_cluster: bool,
    /// Since when its accounts and global variables are what they are.
    pub fresh: Arc<Fresh>,
}

impl ServerFacts {
    /// Whether the server tells changes of several variables by the name of one: see
    /// [`millrace_engine::state::SWITCHES`].
    pub fn tells_by_first_name(&self) -> bool {
        &*self.track == millrace_engine::state::TRACKED_BY_FIRST_NAME
    }
}
