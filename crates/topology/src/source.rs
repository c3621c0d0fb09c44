//! Which server a replica follows, by what both report. Judges nothing.

use crate::state::State;
use crate::{Family, ProbeReport, Receiver, ReplicationStatus};

/// A replica is set to receive from this source.
pub(crate) fn follows(replica: &State, source: &State) -> bool {
    source.current().is_some() && follows_known(replica, source)
}

/// The same where the source's report may be old.
pub(crate) fn follows_known(replica: &State, source: &State) -> bool {
    replication(replica).is_some_and(|status| is_about(status, source))
}

/// A replica's status is about this source.
pub(crate) fn is_about(status: &ReplicationStatus, source: &State) -> bool {
    let report = source.report.as_deref();
    report.is_some_and(|report| is_about_report(status, report, &source.spec.address))
}

/// The same, of a source that has reported this, at this address.
pub(crate) fn is_about_report(
    status: &ReplicationStatus,
    report: &ProbeReport,
    address: &str,
) -> bool {
    if !report.server_uuid.is_empty() && !status.source_uuid.is_empty() {
        return status.source_uuid == report.server_uuid;
    }
    if report.family == Family::MariaDb && status.source_server_id != 0 {
        return status.source_server_id == report.server_id;
    }
    let host_and_port = format!("{}:{}", status.source_host, status.source_port);
    *host_and_port == *address
}

/// What a server that answers reports of its replication.
pub(crate) fn replication(state: &State) -> Option<&ReplicationStatus> {
    state.current()?.replication.as_ref()
}

/// It is set to receive from another, and tries to.
pub(crate) fn receives(state: &State) -> bool {
    replication(state).is_some_and(|status| status.receiver != Receiver::Stopped)
}
