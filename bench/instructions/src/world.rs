//! The servers that the parts are about: a primary and two replicas of MySQL 9.7.

use std::sync::Arc;

use millrace_topology::{
    Family, GtidSet, Millis, Observation, ObservationKind, Options, ProbeReport, Receiver,
    ReplicationStatus, ServerId, ServerSpec, Snapshot, Topology,
};

/// The primary's `@@server_uuid`, whose transactions all positions here are.
pub(crate) const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

/// All transactions up to this one are on all servers. Later numbers have as many digits, so that
/// a text's length does not depend on how many there were.
pub(crate) const EXECUTED: u64 = 1_000_000;

/// What servers of this version run with by default.
pub(crate) const SQL_MODE: &str = "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,\
     NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION";

/// The set of all transactions up to `last`.
pub(crate) fn up_to(last: u64) -> anyhow::Result<GtidSet> {
    Ok(GtidSet::parse_mysql(format!("{UUID}:1-{last}").as_bytes())?)
}

/// The three servers as the monitor would know them.
pub(crate) fn snapshot() -> anyhow::Result<Arc<Snapshot>> {
    let names = ["db1:3306", "db2:3306", "db3:3306"];
    let specs = names.map(ServerSpec::new).into();
    let mut topology = Topology::new(Options::default(), specs);
    for (at, server) in (0..3).map(ServerId).enumerate() {
        let mut report = ProbeReport::new(Family::MySql);
        report.server_id = u32::from(server.0) + 1;
        report.server_uuid = if at == 0 {
            UUID.into()
        } else {
            format!("r{at}").into()
        };
        report.sql_mode = SQL_MODE.into();
        report.executed = up_to(EXECUTED)?;
        report.read_only = at > 0;
        report.super_read_only = at > 0;
        report.replication = (at > 0).then(|| ReplicationStatus {
            source_host: "db1".into(),
            source_port: 3306,
            source_uuid: UUID.into(),
            source_server_id: 1,
            receiver: Receiver::Running,
            applier_running: true,
            lag_seconds: Some(0),
            last_error: "".into(),
        });
        topology.fold(Observation {
            server,
            at: Millis(1_000),
            kind: ObservationKind::ProbeOk(Box::new(report)),
        });
    }
    let snapshot = topology.snapshot();
    anyhow::ensure!(
        snapshot.primary == Some(ServerId(0)) && snapshot.fit_replicas().count() == 2,
        "the servers are not a primary and two replicas"
    );
    Ok(snapshot)
}
