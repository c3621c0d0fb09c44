//! What a server says of itself at this moment. Asks only; changes nothing.

use serde::Serialize;

use crate::Control;
use crate::group::GroupStatus;
use crate::membership::group_status;
use crate::process;
use crate::replication::{self, StatusRow};
use crate::server::Server;
use crate::spec::{Family, Role, Topology};

/// What a server's process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It runs.
    Running,
    /// Held by SIGSTOP.
    Paused,
    /// There is no process.
    Stopped,
}

/// A server as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Its name, such as `s1`.
    pub name: String,
    /// What the cluster's last `up` or `promote` made of it, or what its group says.
    pub role: Role,
    /// Always 127.0.0.1.
    pub host: &'static str,
    /// Its TCP port.
    pub port: u16,
    /// None while it does not run.
    pub pid: Option<u32>,
    /// What its process does.
    pub process: ProcessState,
    /// None when it could not be asked, as all that follows.
    pub read_only: Option<bool>,
    /// The GTIDs that it has executed, as the server writes them.
    pub position: Option<String>,
    /// None also when it does not replicate.
    pub replication: Option<ReplicationStatus>,
    /// None also when it is in no group.
    pub group: Option<GroupStatus>,
    /// Why a running server could not be asked.
    pub error: Option<String>,
}

/// The gist of SHOW REPLICA STATUS.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicationStatus {
    /// The port that it replicates from; none for what is no local address.
    pub source_port: Option<u16>,
    /// `Yes`, `No` or `Connecting`.
    pub receiver: String,
    /// Whether the applier runs.
    pub applier: bool,
    /// The delay that was asked for, in seconds.
    pub delay_s: u32,
    /// As the server reckons it, in seconds; none while it cannot.
    pub lag_s: Option<u64>,
    /// What stopped it, in the server's words.
    pub last_error: Option<String>,
}

impl ServerStatus {
    pub(crate) async fn ask(
        family: Family,
        topology: Topology,
        server: &Server,
        members: &[Server],
    ) -> ServerStatus {
        let mut status = ServerStatus::unasked(server);
        if status.process == ProcessState::Running
            && let Err(error) = status.fill(family, topology, server, members).await
        {
            status.error = Some(format!("{error:#}"));
        }
        status
    }

    fn unasked(server: &Server) -> ServerStatus {
        let pid = server.pid();
        let process = match pid {
            None => ProcessState::Stopped,
            Some(pid) if process::is_paused(pid) => ProcessState::Paused,
            Some(_) => ProcessState::Running,
        };
        ServerStatus {
            name: server.name.clone(),
            role: server.role,
            host: "127.0.0.1",
            port: server.port,
            pid,
            process,
            read_only: None,
            position: None,
            replication: None,
            group: None,
            error: None,
        }
    }

    /// The group comes first: a node without a quorum answers little else.
    async fn fill(
        &mut self,
        family: Family,
        topology: Topology,
        server: &Server,
        members: &[Server],
    ) -> anyhow::Result<()> {
        let mut control = server.control().await?;
        if topology != Topology::Async {
            let group = group_status(topology, &mut control, members).await?;
            if let Some(primary) = &group.primary {
                self.role = match *primary == server.name {
                    true => Role::Primary,
                    false => Role::Replica,
                };
            }
            self.group = Some(group);
        }
        let read_only = control.value("SELECT @@GLOBAL.read_only").await?;
        self.read_only = read_only.map(|value| value != "0");
        self.position = control.value(replication::position(family)).await?;
        if topology == Topology::Async {
            self.replication = replication_status(&mut control).await?;
        }
        control.close().await;
        Ok(())
    }
}

pub(crate) async fn replication_status(
    control: &mut Control,
) -> anyhow::Result<Option<ReplicationStatus>> {
    let row = control.row(replication::STATUS).await?;
    Ok(row.as_ref().map(|row| {
        let row = StatusRow(row);
        ReplicationStatus {
            source_port: row.source_port(),
            receiver: row.receiver().to_owned(),
            applier: row.applier_runs(),
            delay_s: row.delay_s(),
            lag_s: row.lag_s(),
            last_error: row.last_error(),
        }
    }))
}
