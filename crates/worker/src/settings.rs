//! What the configuration says of sessions at one moment. Decides nothing.

use std::collections::HashMap;
use std::sync::Arc;

use millrace_backend::pool::PoolOptions;
use millrace_routing::ServerSet;
use millrace_routing::rules::Rules;
use tokio::sync::Semaphore;

use crate::options::Options;

/// Never changed: others replace it whole. A session takes them over between two commands, so that each
/// statement runs under the old ones or the new ones.
#[derive(Debug, Clone, Default)]
pub struct SessionSettings {
    /// Limits and behaviour.
    pub options: Arc<Options>,
    /// The pools' limits.
    pub pool: Arc<PoolOptions>,
    /// Rules for query routing.
    pub rules: Arc<Rules>,
    /// How many statements may yet begin, for each rule that limits them.
    pub limits: Arc<Vec<Option<Arc<Semaphore>>>>,
    /// Named sets of servers.
    pub sets: Arc<HashMap<String, ServerSet>>,
}
