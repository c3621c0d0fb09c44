//! What a decision costs: `cargo run --release -p millrace-routing --example cost`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a measurement, not part of the pure crate"
)]

use std::hint::black_box;
use std::time::Instant;

use millrace_routing::{Access, Load, Options, SessionView, decide};
use millrace_topology::{
    Family, GtidSet, Millis, Observation, ObservationKind, ProbeReport, Receiver,
    ReplicationStatus, ServerId, ServerSpec, Topology,
};

fn report(replica: bool, executed: &GtidSet) -> ProbeReport {
    let mut report = ProbeReport::new(Family::MySql);
    report.read_only = replica;
    report.executed = executed.clone();
    report.replication = replica.then(|| ReplicationStatus {
        source_host: "a".into(),
        source_port: 3306,
        source_uuid: "".into(),
        source_server_id: 0,
        receiver: Receiver::Running,
        applier_running: true,
        lag_seconds: Some(0),
        last_error: "".into(),
    });
    report
}

fn main() {
    const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    let set = |text: &str| {
        GtidSet::parse_mysql(format!("{UUID}:{text}").as_bytes())
            .unwrap_or_else(|_| unreachable!("a constant set"))
    };
    let specs = ["a:3306", "b:3306", "c:3306"].map(ServerSpec::new);
    let mut topology = Topology::new(Default::default(), specs.into());
    for id in 0..3 {
        topology.fold(Observation {
            server: ServerId(id),
            at: Millis(0),
            kind: ObservationKind::ProbeOk(Box::new(report(id > 0, &set("1-100000")))),
        });
    }
    let (world, options) = (topology.snapshot(), Options::default());
    for (name, required) in [
        ("nothing required", GtidSet::new(Family::MySql)),
        ("a position reached", set("99000")),
        ("a position not reached", set("100001")),
    ] {
        let session = SessionView::new(&required);
        let rounds = 5_000_000_u32;
        let start = Instant::now();
        for rotation in 0..rounds {
            let load = Load {
                outstanding: &[1, 2, 3],
                response_us: &[],
                known: &[],
                behind: 0,
                rotation,
            };
            black_box(decide(&world, &options, &session, Access::Read, &load));
        }
        println!("{name}: {:?} a decision", start.elapsed() / rounds);
    }
}
