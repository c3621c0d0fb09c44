//! SHOW TOPOLOGY: who replicates from whom, and how that goes.

use millrace_topology::{
    MemberState, ProbeReport, Receiver, ReplicationStatus, ServerView, Snapshot,
};

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::Sources;
use crate::operators::tables::servers::state;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Topology,
    name: "TOPOLOGY",
    also: &[],
    statement: "SHOW TOPOLOGY",
    help: "the replication edges: each server's source, receiver and applier; groups, clusters, conflicts",
    columns: &[
        text("server", "its address"),
        text("role", "`primary`, `replica` or `unknown`"),
        text("state", "`up`, `suspect`, `down` or `unknown`"),
        text(
            "source",
            "whom it replicates from, as it says itself; NULL for nobody",
        ),
        text(
            "source_server",
            "which of the servers that is; NULL where it is none of them",
        ),
        text("receiver", "`running`, `connecting` or `stopped`"),
        text("applier", "`running` or `stopped`"),
        int(
            "lag_s",
            "how far it is behind, in seconds; NULL where that is not known",
        ),
        text(
            "last_error",
            "replication's last error; empty where there is none",
        ),
        text("read_only", "`yes` where it refuses writes"),
        text(
            "cluster",
            "`group` or `galera` with its identity; NULL where it is in neither",
        ),
        text("member_state", "its state there, as it says itself"),
        text(
            "conflict",
            "`yes` for one of several servers that claim to be the primary",
        ),
        int("server_id", "its `@@server_id`"),
        text("server_uuid", "MySQL's `@@server_uuid`"),
    ],
    like: 0,
};

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let world = sources.world();
    let snapshot = &world.snapshot;
    for view in snapshot.servers.iter().filter(|view| !view.gone) {
        answer.row(&row(snapshot, view)).await?;
    }
    Ok(())
}

fn row(snapshot: &Snapshot, view: &ServerView) -> Vec<Cell> {
    let report = view.report.as_deref();
    let edge = report.and_then(|report| report.replication.as_ref());
    let source = edge.map(|edge| format!("{}:{}", edge.source_host, edge.source_port));
    let known = edge.and_then(|edge| source_of(snapshot, edge));
    let receiver = edge.map(|edge| match edge.receiver {
        Receiver::Stopped => "stopped",
        Receiver::Connecting => "connecting",
        Receiver::Running => "running",
    });
    let applier = edge.map(|edge| match edge.applier_running {
        true => "running",
        false => "stopped",
    });
    let (cluster, member_state) = report.map(membership).unwrap_or_default();
    vec![
        view.address.to_string().into(),
        view.role.to_string().into(),
        state(view.health).into(),
        source.into(),
        known.map(|view| view.address.to_string()).into(),
        receiver.into(),
        applier.into(),
        view.lag_seconds.into(),
        edge.map(|edge| edge.last_error.to_string()).into(),
        report.map(|report| report.refuses_writes()).into(),
        cluster.into(),
        member_state.into(),
        snapshot.conflict.contains(&view.id).into(),
        report.map(|report| report.server_id).into(),
        report.map(|report| report.server_uuid.to_string()).into(),
    ]
}

/// The group or cluster that a server is in, and its state there.
fn membership(report: &ProbeReport) -> (Option<String>, Option<&'static str>) {
    if let Some(group) = &report.group {
        let mut members = group.members.iter();
        let own = members.find(|member| member.uuid == report.server_uuid);
        let state = own.map(|member| match (member.primary, member.state) {
            (true, MemberState::Online) => "online, primary",
            (_, state) => state.as_str(),
        });
        return (Some(format!("group {}", group.made)), state);
    }
    match &report.galera {
        Some(node) if node.primary_component => (
            Some(format!("galera {}", node.cluster)),
            Some(node.state.as_str()),
        ),
        Some(node) => (
            Some(format!("galera {}", node.cluster)),
            Some("in a part without a majority"),
        ),
        None => (None, None),
    }
}

/// The server that an edge leads to: by its identity, else by its address.
fn source_of<'a>(snapshot: &'a Snapshot, edge: &ReplicationStatus) -> Option<&'a ServerView> {
    let by_uuid = snapshot.servers.iter().find(|view| {
        let report = view.report.as_ref();
        !edge.source_uuid.is_empty()
            && report.is_some_and(|report| report.server_uuid == edge.source_uuid)
    });
    let address = format!("{}:{}", edge.source_host, edge.source_port);
    by_uuid.or_else(|| {
        let mut servers = snapshot.servers.iter();
        servers.find(|view| *view.address == *address)
    })
}
