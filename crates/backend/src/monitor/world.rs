//! What is known of the servers at one moment, as the monitor publishes it.

use std::sync::Arc;

use millrace_protocol::handshake::Greeting;
use millrace_topology::{Family, ServerId, Snapshot};

use crate::conn::Row;
use crate::facts::ServerFacts;

/// The rows of the [`CatalogueQueries`](super::CatalogueQueries).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CatalogueRows {
    /// Whose they are; none before they were read.
    pub family: Option<Family>,
    /// In the order of the queries; of the last none but in a cluster of Galera.
    pub rows: [Vec<Row>; 4],
}

/// Everything known of the servers at one moment.
#[derive(Debug, Clone)]
pub struct World {
    /// Roles, health, positions.
    pub snapshot: Arc<Snapshot>,
    /// What is needed to connect, per server; the family is a guess before the first answer.
    pub facts: Vec<Arc<ServerFacts>>,
    /// What clients are to be greeted with; the primary's own greeting.
    pub greeting: Option<Arc<Greeting>>,
    /// Stored routines and views.
    pub catalogue: Arc<CatalogueRows>,
    /// Up to which change of stored code they were read, see [`Touched`](crate::touched::Touched).
    pub catalogue_read: u64,
}

impl World {
    /// What sessions begin with in `session_track_system_variables`; empty where it is not known.
    pub fn tracked_by_default(&self) -> Arc<str> {
        let of = |id: ServerId| self.facts.get(id.index());
        let judges = self.snapshot.judges();
        let facts = self.snapshot.primary.into_iter().chain(judges).find_map(of);
        facts.map_or_else(|| "".into(), |facts| facts.tracked_by_default.clone())
    }
}
