//! Whose log is to be followed, by what the monitor knows. Asks nothing.

use std::net::IpAddr;
use std::sync::Arc;

use millrace_topology::{Family, ServerId, Waits};

use crate::facts::ServerFacts;
use crate::monitor::World;

/// The server whose log is to be followed.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) id: ServerId,
    pub(super) facts: Arc<ServerFacts>,
    /// Its version, as the monitor counts.
    pub(super) version: u32,
    /// It has a source of its own.
    pub(super) replicates: bool,
    incarnation: u32,
}

impl Target {
    /// The primary; else why there is none to be followed, which says what to do.
    pub(super) fn of(world: &World) -> Result<Self, String> {
        let snapshot = &world.snapshot;
        let view = snapshot
            .primary_view()
            .ok_or_else(|| match snapshot.without {
                Some(why) => format!("no server takes writes: {why}; {}", why.advice()),
                None => "no server takes writes".to_owned(),
            })?;
        let report = view.report.as_ref();
        let is_mysql = snapshot.family != Some(Family::MariaDb);
        match view.waits {
            Waits::Gtids => {}
            Waits::Log => return Err("the primary has no GTIDs: set gtid_mode = ON".into()),
            Waits::Cluster => {
                return Err(
                    "the logs of a Galera cluster are not followed: only rules with cache = \"ttl\" keep results"
                        .into(),
                );
            }
            Waits::Nothing if report.is_none_or(|report| report.version.is_empty()) => {
                return Err("the primary has not been asked yet".into());
            }
            Waits::Nothing if is_mysql => {
                return Err("the primary has no GTIDs: set log_bin and gtid_mode = ON".into());
            }
            Waits::Nothing => return Err("the primary writes no binary log: set log_bin".into()),
        }
        let facts = world.facts.get(view.id.index());
        Ok(Self {
            id: view.id,
            facts: facts.ok_or("the primary is not known yet")?.clone(),
            version: report.map_or(0, |report| report.version_number),
            replicates: report.is_some_and(|report| report.replication.is_some()),
            incarnation: view.incarnation,
        })
    }

    /// Whether it is still the same server, on the same machine, with the same data.
    pub(super) fn is_same(&self, other: &Target) -> bool {
        self.key() == other.key()
    }

    fn key(&self) -> (ServerId, u32, Option<IpAddr>) {
        (self.id, self.incarnation, self.facts.address.at)
    }
}
