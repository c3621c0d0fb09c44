//! Whether the server of a kept connection is still what the session needs.

use std::io;

use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::request::Request;
use millrace_metrics::PinReason;
use millrace_protocol::Status;
use millrace_routing::{NoServer, Target};
use millrace_sql::{Access, Traits};
use millrace_topology::{NoPrimary, ServerId, Snapshot};

use crate::error::ClientError;
use crate::session::Session;

impl Session {
    /// Why the kept connection is not to be used for the request: it is dead, or its server is not the
    /// primary any more and it would have to be, or is drained.
    pub(super) fn reason_to_leave(
        &self,
        lease: &mut Lease,
        request: &Request<'_>,
    ) -> Option<ClientError> {
        if let Some(ended) = self.reason_it_ended(lease) {
            return Some(ended);
        }
        self.has_lost_role(lease.server, self.needs_primary_kept(request))
            .then(|| ClientError::no_server(NoServer::NoPrimary))
    }

    /// Whether the kept connection must be to the primary for this request. In a transaction that only reads a change
    /// is refused anywhere, and the transaction goes on.
    pub(super) fn needs_primary_kept(&self, request: &Request<'_>) -> bool {
        let is_refused = self.image.status.contains(Status::IN_TRANS_READONLY)
            && request.runs().is(Traits::CHANGES_ROWS);
        request.access == Access::Write && !is_refused
    }

    /// What is made of a connection that has ended, by its server's own word where there is one.
    pub(in crate::session) fn reason_it_ended(&self, lease: &mut Lease) -> Option<ClientError> {
        if lease.is_quiet() {
            return None;
        }
        let said = lease.farewell().map(ClientError::server);
        said.filter(ClientError::is_told_end).or_else(|| {
            let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
            Some(self.unavailable(lease.server, BackendError::Io(gone)))
        })
    }

    /// Whether the server of the kept connection is no more what the session needs. `writes`: it is about
    /// to write outside of a transaction.
    pub(in crate::session) fn has_lost_role(&self, server: ServerId, writes: bool) -> bool {
        self.worker
            .cluster
            .with_world(|world| self.has_lost_ground_in(&world.snapshot, server, writes))
    }

    /// The same, by this snapshot.
    pub(super) fn has_lost_ground_in(
        &self,
        snapshot: &Snapshot,
        server: ServerId,
        writes: bool,
    ) -> bool {
        let in_transaction = self.handle.pins().has(PinReason::Transaction);
        // What it wrote can only be committed on the primary, whatever the server was when it began.
        let began_there = self.image.tx.journal.as_ref().is_none_or(|journal| {
            !journal.begun().read_only && (journal.begun().on_primary || journal.wrote())
        });
        let for_primary = match self.client.target {
            Target::ReplicasOnly => false,
            _ => writes || (in_transaction && began_there),
        };
        // A primary that is drained is still the primary to those that are there.
        let demoted = snapshot.primary != Some(server)
            && snapshot.without != Some(NoPrimary::Draining(server));
        (for_primary && demoted) || (in_transaction && self.worker.cluster.is_drained(server))
    }
}
