//! A running cluster: start, faults, failover by hand, removal. Acts only on its own folder and
//! on processes started from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, geteuid};

use crate::binaries::{Binaries, galera_needs};
use crate::control::Control;
use crate::disk;
use crate::failover::wait_replicating;
use crate::group::extra_ports;
use crate::guardian::Guardian;
use crate::ports;
use crate::process;
use crate::server::{Run, Server};
use crate::spec::{ClusterSpec, Family, Release, Role, Topology};
use crate::state::{ClusterInfo, ServerInfo, State, claim_dir};
use crate::status::ServerStatus;
use crate::template::Template;
use crate::tls::TlsFiles;

/// What SIGKILL ends, it ends at once; a busy disk may hold it up.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A primary and its replicas. Dropped, it kills the servers and removes the folder, unless it
/// was told to keep them or was only attached to. Methods take `&self` and can be called from
/// several tasks; servers are named `s1` (the first primary), `s2`, ….
#[derive(Debug)]
pub struct Cluster {
    state: Mutex<State>,
    binaries: Binaries,
    /// Servers started by this process: they must be waited for, or stay zombies.
    children: Mutex<Vec<Child>>,
    guardian: Mutex<Option<Guardian>>,
    /// Whether dropping leaves everything as it is.
    keep: bool,
}

impl Cluster {
    /// Starts a cluster and waits until every replica replicates. About 1 s for MariaDB, 2 to 3 s
    /// for MySQL, once the first has made the data folder.
    ///
    /// # Errors
    /// [`crate::NotInstalled`] in the chain when the family is not on this machine; otherwise
    /// what went wrong, with the end of the server's log. Nothing is left behind.
    pub async fn up(mut spec: ClusterSpec) -> Result<Cluster> {
        let binaries = Binaries::find(spec.release)?;
        possible(&spec)?;
        spec.dir = std::path::absolute(&spec.dir)?;
        let template = Template::ensure(spec.family(), &binaries).await?;
        let servers = lay_out(&spec)?;
        claim_dir(&spec.dir)?;
        let state = State {
            spec,
            version: template.version.clone(),
            servers,
        };
        let cluster = Cluster::watched(state, binaries)?;
        match cluster.start_all(&template).await {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.kill_all();
                Err(error)
            }
        }
    }

    /// From here on the value's drop, or its guardian, removes the folder.
    fn watched(state: State, binaries: Binaries) -> Result<Cluster> {
        let keep = state.spec.keep;
        let cluster = Cluster {
            state: Mutex::new(state),
            binaries,
            children: Mutex::default(),
            guardian: Mutex::default(),
            keep,
        };
        cluster.state().save()?;
        if !keep {
            *lock(&cluster.guardian) = Some(Guardian::start(&cluster.dir())?);
        }
        Ok(cluster)
    }

    /// Takes hold of the cluster in `dir`, which another process started. Dropping this value
    /// leaves it running.
    ///
    /// # Errors
    /// When there is none.
    pub fn attach(dir: &Path) -> Result<Cluster> {
        let state = State::load(&std::path::absolute(dir)?)?;
        let binaries = Binaries::find(state.spec.release)?;
        Ok(Cluster {
            state: Mutex::new(state),
            binaries,
            children: Mutex::default(),
            guardian: Mutex::default(),
            keep: true,
        })
    }

    /// Leaves the servers running and the folder in place when this process ends.
    pub fn detach(mut self) {
        self.keep = true;
        self.release_guardian();
    }

    async fn start_all(&self, template: &Template) -> Result<()> {
        let State { spec, servers, .. } = self.state().clone();
        if spec.tls {
            TlsFiles::in_cluster(&spec.dir).make().await?;
        }
        for server in &servers {
            fs::create_dir(&server.dir)?;
            fs::create_dir(server.disk())?;
            if let Some(mib) = spec.disk_mib {
                disk::mount(&server.disk(), mib)?;
            }
            template.copy_to(&server.datadir()).await?;
        }
        match spec.topology {
            Topology::Async => self.start_replication(&servers).await,
            Topology::Group => self.start_group(&servers).await,
            Topology::Galera => self.start_galera(&servers).await,
        }
    }

    async fn start_replication(&self, servers: &[Server]) -> Result<()> {
        for server in servers {
            self.spawn(server)?;
        }
        for server in servers {
            server.wait_ready().await?;
        }
        let replicas = || servers.iter().filter(|server| server.role == Role::Replica);
        for replica in replicas() {
            self.replicate_from(replica, servers[0].port).await?;
        }
        for replica in replicas() {
            wait_replicating(replica).await?;
        }
        Ok(())
    }

    pub(crate) fn spawn(&self, server: &Server) -> Result<()> {
        self.spawn_as(server, false)
    }

    /// `new_cluster` for a Galera node that is to be the first.
    pub(crate) fn spawn_as(&self, server: &Server, new_cluster: bool) -> Result<()> {
        self.spawn_with(server, new_cluster, &[])
    }

    pub(crate) fn spawn_with(
        &self,
        server: &Server,
        new_cluster: bool,
        options: &[&str],
    ) -> Result<()> {
        let State {
            mut spec, servers, ..
        } = self.state().clone();
        let options = options.iter().map(|option| (*option).to_owned());
        spec.extra_args.extend(options);
        let child = server.spawn(&Run {
            spec: &spec,
            binaries: &self.binaries,
            members: &servers,
            new_cluster,
        })?;
        lock(&self.children).push(child);
        Ok(())
    }

    pub(crate) fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    // --- What there is ---

    /// The servers' release.
    pub fn release(&self) -> Release {
        self.state().spec.release
    }

    /// The servers' family.
    pub fn family(&self) -> Family {
        self.state().spec.family()
    }

    /// How the servers are connected.
    pub fn topology(&self) -> Topology {
        self.state().spec.topology
    }

    /// Whether its transactions have GTIDs.
    pub fn has_gtids(&self) -> bool {
        self.state().spec.gtid
    }

    pub(crate) fn semi_sync(&self) -> bool {
        self.state().spec.semi_sync
    }

    /// The cluster's folder.
    pub fn dir(&self) -> PathBuf {
        self.state().spec.dir.clone()
    }

    /// The CA certificate that signed the servers', with `tls` only.
    pub fn tls_ca(&self) -> Option<PathBuf> {
        let state = self.state();
        state
            .spec
            .tls
            .then(|| TlsFiles::in_cluster(&state.spec.dir).ca)
    }

    /// All that a client or a script needs to know.
    pub fn info(&self) -> ClusterInfo {
        let tls_ca = self.tls_ca();
        ClusterInfo::new(&self.state(), tls_ca)
    }

    /// The servers as they are now, `s1` first.
    pub fn servers(&self) -> Vec<ServerInfo> {
        self.state().servers.iter().map(Server::info).collect()
    }

    /// The server that the last `up` or `promote` made the primary, alive or not.
    pub fn primary(&self) -> ServerInfo {
        let servers = self.servers();
        let primary = servers
            .iter()
            .position(|server| server.role == Role::Primary);
        servers[primary.unwrap_or(0)].clone()
    }

    /// The servers that are not the primary, alive or not.
    pub fn replicas(&self) -> Vec<ServerInfo> {
        self.servers()
            .into_iter()
            .filter(|server| server.role == Role::Replica)
            .collect()
    }

    /// Asks every server, all at once.
    pub async fn status(&self) -> Vec<ServerStatus> {
        self.reap();
        let (family, topology) = (self.family(), self.topology());
        let ask = |server: Server| {
            let members = self.layout();
            tokio::spawn(
                async move { ServerStatus::ask(family, topology, &server, &members).await },
            )
        };
        let asked: Vec<_> = self.layout().into_iter().map(ask).collect();
        let mut statuses = Vec::new();
        for task in asked {
            statuses.extend(task.await);
        }
        statuses
    }

    /// A connection to the server as its `root`, for what has no method here.
    ///
    /// # Errors
    /// When there is no such server or it does not answer.
    pub async fn control(&self, name: &str) -> Result<Control> {
        self.server(name)?.control().await
    }

    // --- The end ---

    /// Kills all servers and removes the folder. The same as dropping, but it says what failed,
    /// and it works on an attached cluster as well.
    ///
    /// # Errors
    /// When a server does not die or the folder cannot be removed.
    pub async fn down(mut self) -> Result<()> {
        self.keep = true;
        self.remove()
    }

    fn remove(&self) -> Result<()> {
        self.kill_all();
        for server in self.layout() {
            disk::unmount(&server.disk());
            disk::forget_throttle(&server);
        }
        remove_dir(&self.dir())?;
        self.release_guardian();
        Ok(())
    }

    fn kill_all(&self) {
        let pids: Vec<u32> = self.layout().iter().filter_map(Server::pid).collect();
        for pid in &pids {
            // What cannot be killed shows when the folder cannot be removed.
            let _ = process::signal(*pid, Signal::KILL);
        }
        for pid in pids {
            process::wait_gone_blocking(pid, KILL_LIMIT);
        }
        self.reap();
    }

    fn release_guardian(&self) {
        let guardian = lock(&self.guardian).take();
        if let Some(guardian) = guardian {
            guardian.release();
        }
    }

    /// Waits for children that have ended.
    pub(crate) fn reap(&self) {
        lock(&self.children).retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Never held across another call to `self`, nor across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn layout(&self) -> Vec<Server> {
        self.state().servers.clone()
    }

    pub(crate) fn server(&self, name: &str) -> Result<Server> {
        self.state().server(name).cloned()
    }

    pub(crate) fn running(&self, name: &str) -> Result<u32> {
        self.server(name)?
            .pid()
            .with_context(|| format!("{name} does not run"))
    }

    pub(crate) fn replica(&self, name: &str) -> Result<Server> {
        let server = self.server(name)?;
        if server.role == Role::Primary {
            bail!("{name} is the primary: name a replica");
        }
        Ok(server)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = self.remove() {
            eprintln!("sandbox: {error:#}");
        }
    }
}

/// What the machine cannot run is said before anything is made.
fn possible(spec: &ClusterSpec) -> Result<()> {
    let ClusterSpec { topology, .. } = spec;
    let family = spec.family();
    if !topology.fits(family) {
        bail!("{topology} is not for {family}: group is MySQL's, galera MariaDB's");
    }
    if spec.semi_sync && *topology != Topology::Async {
        bail!("semi-synchronous replication is for the asynchronous topology only");
    }
    if !spec.gtid && (family != Family::MySql || *topology != Topology::Async) {
        bail!("only asynchronous MySQL replicates without GTIDs");
    }
    if *topology == Topology::Galera {
        galera_needs()?;
    }
    if spec.disk_mib.is_some() && !geteuid().is_root() {
        bail!("only root can put servers on a disk of limited size");
    }
    Ok(())
}

/// Names, ports and folders of the servers to be. The group's ports follow the clients'.
fn lay_out(spec: &ClusterSpec) -> Result<Vec<Server>> {
    let count = spec.replicas + 1;
    let extra = extra_ports(spec.topology);
    let mut ports = ports::choose(spec.base_port, count * (1 + extra))?;
    let group_ports = ports.split_off(count);
    let server = |(index, port): (usize, u16)| Server {
        name: format!("s{}", index + 1),
        role: if index == 0 {
            Role::Primary
        } else {
            Role::Replica
        },
        port,
        server_id: index as u32 + 1,
        group_ports: group_ports[index * extra..(index + 1) * extra].to_vec(),
        dir: spec.dir.join(format!("s{}", index + 1)),
    };
    Ok(ports.into_iter().enumerate().map(server).collect())
}

/// A program that was killed a moment ago may still have made a file meanwhile.
fn remove_dir(dir: &Path) -> Result<()> {
    let mut tries_left = 20;
    loop {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) if tries_left > 0 => tries_left -= 1,
            result => return result.with_context(|| format!("cannot remove {}", dir.display())),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
