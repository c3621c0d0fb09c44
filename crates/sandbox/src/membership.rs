//! Starting a group and its members, and what happens to members: leaving, being expelled or cut
//! off, coming back. Group Replication and Galera only; who replicates from whom is in
//! `failover`.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::Cluster;
use crate::control::Control;
use crate::failover::{is_up, run_all};
use crate::group::{self, GALERA_STATUS, GROUP_STATUS, GroupStatus};
use crate::server::Server;
use crate::spec::{Role, Topology};

/// A member that has much to fetch takes its time.
const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// One that goes on applying has more.
const JOIN_MAX: Duration = Duration::from_secs(240);
/// A group suspects a silent member after 5 seconds and expels it at its next look.
const EXPEL_LIMIT: Duration = Duration::from_secs(40);
/// What the scripts that copy a member's data read options with.
const PRINTER: &str = "my_print_defaults";
const POLL: Duration = Duration::from_millis(25);

impl Cluster {
    pub(crate) async fn start_group(&self, servers: &[Server]) -> Result<()> {
        for server in servers {
            self.spawn(server)?;
        }
        for server in servers {
            server.wait_ready().await?;
        }
        for (index, server) in servers.iter().enumerate() {
            self.join_group(server, index == 0).await?;
        }
        self.refresh_roles().await
    }

    /// One after the other: each copies the data of one that is there.
    pub(crate) async fn start_galera(&self, servers: &[Server]) -> Result<()> {
        self.write_tools()?;
        for (index, server) in servers.iter().enumerate() {
            self.spawn_as(server, index == 0)?;
            server.wait_ready().await?;
            wait_online(self.topology(), server, servers).await?;
        }
        Ok(())
    }

    /// See [`group::SST`].
    fn write_tools(&self) -> Result<()> {
        let folder = tools(&self.dir());
        fs::create_dir(&folder)?;
        for (name, text) in [group::SST, group::RSYNC] {
            let tool = folder.join(name);
            fs::write(&tool, text)?;
            fs::set_permissions(&tool, Permissions::from_mode(0o755))?;
        }
        // Of an unpacked release only wrappers run, and the scripts take what lies beside them.
        let server = &self.binaries().server;
        let scripts = server.with_file_name("../root/usr/bin");
        if scripts.is_dir() {
            symlink(server.with_file_name(PRINTER), folder.join(PRINTER))?;
            for script in ["wsrep_sst_rsync", "wsrep_sst_common"] {
                symlink(scripts.join(script), folder.join(script))?;
            }
        }
        Ok(())
    }

    async fn join_group(&self, server: &Server, first: bool) -> Result<()> {
        run_all(server, &[group::recovery_account()]).await?;
        match first {
            true => run_all(server, &group::BOOTSTRAP).await?,
            false => run_all(server, &[group::JOIN]).await?,
        }
        wait_online(self.topology(), server, &self.layout()).await
    }

    /// Starts a member that was stopped or killed. The first one of a group that has stopped as a
    /// whole makes it anew.
    pub(crate) async fn start_member(&self, server: &Server) -> Result<()> {
        let alone = !self.has_online_member(&server.name).await;
        match self.topology() {
            Topology::Galera => {
                if alone {
                    allow_bootstrap(server);
                }
                self.spawn_as(server, alone)?;
                server.wait_ready().await?;
                wait_online(Topology::Galera, server, &self.layout()).await?;
            }
            _ => {
                self.spawn(server)?;
                server.wait_ready().await?;
                self.join_group(server, alone).await?;
            }
        }
        self.refresh_roles().await
    }

    async fn has_online_member(&self, but: &str) -> bool {
        for member in self.layout() {
            let asked = member.name != but && is_up(&member);
            if asked
                && let Ok(status) = self.member_status(&member).await
                && status.is_online()
            {
                return true;
            }
        }
        false
    }

    async fn member_status(&self, member: &Server) -> Result<GroupStatus> {
        ask_status(self.topology(), member, &self.layout()).await
    }

    /// Learns from the group who its primary is now, so that [`Cluster::primary`] and
    /// [`Cluster::replicas`] say so. Galera has no primary: there the first node that is online
    /// keeps or takes the name.
    ///
    /// # Errors
    /// When no member is online.
    pub async fn refresh_roles(&self) -> Result<()> {
        if self.topology() == Topology::Async {
            return Ok(());
        }
        let mut members = self.layout();
        members.sort_by_key(|member| member.role != Role::Primary);
        for member in members.iter().filter(|member| is_up(member)) {
            let Ok(status) = self.member_status(member).await else {
                continue;
            };
            if !status.is_online() {
                continue;
            }
            let primary = match self.topology() {
                Topology::Galera => Some(member.name.clone()),
                _ => status.primary,
            };
            if let Some(primary) = primary {
                self.state().set_primary(&primary);
                return self.state().save();
            }
        }
        bail!("no member of the group is online")
    }

    /// Group Replication: the group hands the primary's role over once running transactions have
    /// ended.
    pub(crate) async fn set_as_primary(&self, name: &str) -> Result<()> {
        let new = self.server(name)?;
        let mut control = new.control().await?;
        let uuid = control.value("SELECT @@server_uuid").await?;
        let uuid = uuid.context("a server without a uuid")?;
        control
            .run(&format!(
                "SELECT group_replication_set_as_primary('{uuid}')"
            ))
            .await?;
        control.close().await;
        self.refresh_roles().await
    }

    /// Group Replication: holds the member until the others have expelled it, and lets it go on
    /// then: it finds itself outside.
    ///
    /// # Errors
    /// When the others do not expel it within 40 seconds.
    pub async fn expel(&self, name: &str) -> Result<()> {
        self.only_in(Topology::Group)?;
        self.pause(name).await?;
        let expelled = self
            .wait_members(self.layout().len() as u32 - 1, name)
            .await;
        self.resume(name).await?;
        expelled?;
        self.refresh_roles().await
    }

    /// Waits until the members other than `but` see a group of `count`, and so many of them as can be are
    /// online in it (Galera: synced, in the primary component).
    ///
    /// # Errors
    /// When they do not within 40 seconds.
    pub async fn wait_members(&self, count: u32, but: &str) -> Result<()> {
        let deadline = Instant::now() + EXPEL_LIMIT;
        let others = (self.layout().len() - 1).min(count as usize);
        loop {
            let mut seen = Vec::new();
            for member in self.layout() {
                if member.name != but && is_up(&member) {
                    seen.push(self.member_status(&member).await.ok());
                }
            }
            let well = |status: &Option<GroupStatus>| {
                let status = status.as_ref().filter(|status| status.is_online());
                status.is_some_and(|status| status.members == count)
            };
            if seen.len() >= others && seen.iter().all(well) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("not a group of {count} whose members are online: {seen:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Takes a member out of its group; its server runs on and takes no writes.
    ///
    /// # Errors
    /// The server's.
    pub async fn leave_group(&self, name: &str) -> Result<()> {
        self.only_in(Topology::Group)?;
        run_all(&self.server(name)?, &[group::LEAVE]).await?;
        self.refresh_roles().await
    }

    /// Brings a member that has left or was expelled back into its group.
    ///
    /// # Errors
    /// When it is not online within a minute, and does not go on applying either.
    pub async fn rejoin_group(&self, name: &str) -> Result<()> {
        self.only_in(Topology::Group)?;
        let server = self.server(name)?;
        run_all(&server, &[group::LEAVE, "SET GLOBAL offline_mode = OFF"]).await?;
        self.join_group(&server, false).await?;
        self.refresh_roles().await
    }

    /// Galera: cuts the node off from the others, as a broken network does. It has no quorum and
    /// refuses statements.
    ///
    /// # Errors
    /// The server's.
    pub async fn isolate(&self, name: &str) -> Result<()> {
        self.only_in(Topology::Galera)?;
        run_all(&self.server(name)?, &[group::isolate(true)]).await
    }

    /// Ends [`Cluster::isolate`] and waits until the node is one of the group again.
    ///
    /// # Errors
    /// When it is not within a minute.
    pub async fn reconnect(&self, name: &str) -> Result<()> {
        self.only_in(Topology::Galera)?;
        let server = self.server(name)?;
        run_all(&server, &[group::isolate(false)]).await?;
        wait_online(Topology::Galera, &server, &self.layout()).await
    }

    fn only_in(&self, topology: Topology) -> Result<()> {
        if self.topology() != topology {
            bail!(
                "only for {topology} clusters: this one is {}",
                self.topology()
            );
        }
        Ok(())
    }
}

/// Programs of the cluster's own, before those of the machine on its servers' path.
pub(crate) fn tools(cluster: &Path) -> PathBuf {
    cluster.join("tools")
}

/// Galera bootstraps only from the node that was the last to stop; a sandbox is told which.
fn allow_bootstrap(server: &Server) {
    let file = server.datadir().join("grastate.dat");
    if let Ok(text) = fs::read_to_string(&file) {
        let text = text.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1");
        // A node that must not bootstrap says so in its log.
        let _ = fs::write(&file, text);
    }
}

/// A node that copies another's data may close connections that it has taken before. A member of Group Replication has
/// to apply what is written meanwhile as well, and has more time as long as that goes on.
async fn wait_online(topology: Topology, server: &Server, members: &[Server]) -> Result<()> {
    let begun = Instant::now();
    let mut deadline = begun + JOIN_LIMIT;
    let mut before = None;
    loop {
        let status = ask_status(topology, server, members).await;
        if status.as_ref().is_ok_and(GroupStatus::is_online) {
            return Ok(());
        }
        if topology == Topology::Group {
            let executed = ask_executed(server).await.ok();
            if executed.is_some() && executed != before {
                deadline = (Instant::now() + JOIN_LIMIT).min(begun + JOIN_MAX);
                before = executed;
            }
        }
        if server.pid().is_none() || Instant::now() > deadline {
            bail!("{} is not online in its group: {status:?}", server.name);
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn ask_executed(server: &Server) -> Result<Option<String>> {
    let mut control = server.control().await?;
    let executed = control.value("SELECT @@GLOBAL.gtid_executed").await;
    control.close().await;
    executed
}

async fn ask_status(
    topology: Topology,
    server: &Server,
    members: &[Server],
) -> Result<GroupStatus> {
    let mut control = server.control().await?;
    let status = group_status(topology, &mut control, members).await;
    control.close().await;
    status
}

/// How a member sees itself and its group.
pub(crate) async fn group_status(
    topology: Topology,
    control: &mut Control,
    members: &[Server],
) -> Result<GroupStatus> {
    if topology == Topology::Galera {
        return galera_status(control).await;
    }
    let row = control.row(GROUP_STATUS).await?.unwrap_or_default();
    let number = |row: &BTreeMap<String, String>, name| row.get(name)?.parse::<u32>().ok();
    let port = number(&row, "primary_port");
    let primary = members.iter().find(|m| Some(u32::from(m.port)) == port);
    Ok(GroupStatus {
        state: row
            .get("state")
            .cloned()
            .unwrap_or_else(|| "OFFLINE".into()),
        primary: primary.map(|server| server.name.clone()),
        members: number(&row, "members").unwrap_or(0),
    })
}

async fn galera_status(control: &mut Control) -> Result<GroupStatus> {
    let mut values = Vec::new();
    for question in GALERA_STATUS {
        let row = control.row(question).await?.unwrap_or_default();
        values.push(row.get("Value").cloned().unwrap_or_default());
    }
    let mut state = values[0].clone();
    if values[1] != "Primary" {
        state += ", non-Primary";
    }
    Ok(GroupStatus {
        state,
        primary: None,
        members: values[2].parse().unwrap_or(0),
    })
}
