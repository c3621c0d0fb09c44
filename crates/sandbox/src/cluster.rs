//! A running cluster: start, faults, failover by hand, removal. Acts only on its own folder and
//! on processes started from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::binaries::Binaries;
use crate::control::Control;
use crate::guardian::Guardian;
use crate::ports;
use crate::process;
use crate::replication::{self, StatusRow};
use crate::server::Server;
use crate::spec::{ClusterSpec, Family, Role};
use crate::state::{ClusterInfo, ServerInfo, State, claim_dir};
use crate::status::{ServerStatus, replication_status};
use crate::template::Template;
use crate::tls::TlsFiles;

const STOP_LIMIT: Duration = Duration::from_secs(30);
const KILL_LIMIT: Duration = Duration::from_secs(10);
const REPLICATION_LIMIT: Duration = Duration::from_secs(20);
/// How long a promotion waits for the new primary to apply what it has, in seconds.
const PROMOTE_WAIT_S: u64 = 15;
const POLL: Duration = Duration::from_millis(15);

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
        let binaries = Binaries::find(spec.family)?;
        spec.dir = std::path::absolute(&spec.dir)?;
        let template = Template::ensure(spec.family, &binaries).await?;
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
        let binaries = Binaries::find(state.spec.family)?;
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
            template.copy_to(&server.datadir()).await?;
            self.spawn(server)?;
        }
        for server in &servers {
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

    fn spawn(&self, server: &Server) -> Result<()> {
        let spec = self.state().spec.clone();
        let child = server.spawn(&spec, &self.binaries)?;
        lock(&self.children).push(child);
        Ok(())
    }

    // --- What there is ---

    pub fn family(&self) -> Family {
        self.state().spec.family
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
        let family = self.family();
        let asked: Vec<_> = self
            .layout()
            .into_iter()
            .map(|server| tokio::spawn(async move { ServerStatus::ask(family, &server).await }))
            .collect();
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

    // --- Faults ---

    /// Ends the server at once (SIGKILL), as a crash would.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self, name: &str) -> Result<()> {
        let pid = self.running(name)?;
        process::signal(pid, Signal::KILL)?;
        self.wait_gone(name, pid, KILL_LIMIT).await
    }

    /// Stops the server in order (SIGTERM), waking it first when it is paused.
    ///
    /// # Errors
    /// When it does not run, or has not stopped after 30 seconds.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let pid = self.running(name)?;
        process::signal(pid, Signal::TERM)?;
        process::signal(pid, Signal::CONT)?;
        self.wait_gone(name, pid, STOP_LIMIT).await
    }

    async fn wait_gone(&self, name: &str, pid: u32, limit: Duration) -> Result<()> {
        let gone = process::wait_gone(pid, limit).await;
        self.reap();
        if !gone {
            bail!("{name} (process {pid}) has not ended after {limit:?}");
        }
        Ok(())
    }

    /// Starts a stopped or killed server in its present role. A former primary comes back as a
    /// replica of the present one.
    ///
    /// # Errors
    /// When it runs already or does not start.
    pub async fn start(&self, name: &str) -> Result<()> {
        let server = self.server(name)?;
        if let Some(pid) = server.pid() {
            bail!("{name} runs already (process {pid})");
        }
        self.spawn(&server)?;
        server.wait_ready().await?;
        if server.role == Role::Replica {
            self.rejoin(&server).await?;
        }
        Ok(())
    }

    /// A replica that knows its source has gone on by itself.
    async fn rejoin(&self, server: &Server) -> Result<()> {
        let Some(primary) = self.state().primary().cloned() else {
            return Ok(());
        };
        let mut control = server.control().await?;
        let now = replication_status(&mut control).await?;
        control.close().await;
        if now.and_then(|status| status.source_port) == Some(primary.port) {
            return Ok(());
        }
        self.replicate_from(server, primary.port).await
    }

    /// Holds the server (SIGSTOP): its connections stay open and nothing answers.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn pause(&self, name: &str) -> Result<()> {
        let pid = self.running(name)?;
        process::signal(pid, Signal::STOP)?;
        while process::is_alive(pid) && !process::is_paused(pid) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn resume(&self, name: &str) -> Result<()> {
        process::signal(self.running(name)?, Signal::CONT)
    }

    /// Applies each transaction this many seconds after the primary committed it; 0 ends that.
    ///
    /// # Errors
    /// The server's, also when it does not replicate.
    pub async fn delay_applier(&self, name: &str, seconds: u32) -> Result<()> {
        let server = self.replica(name)?;
        run_all(&server, &replication::delay(self.family(), seconds)).await
    }

    /// Stops applying; the replica goes on receiving.
    ///
    /// # Errors
    /// The server's, also when it does not replicate.
    pub async fn stop_applier(&self, name: &str) -> Result<()> {
        run_all(&self.replica(name)?, &[replication::STOP_APPLIER]).await
    }

    /// # Errors
    /// The server's, also when it does not replicate.
    pub async fn start_applier(&self, name: &str) -> Result<()> {
        run_all(&self.replica(name)?, &[replication::START_APPLIER]).await
    }

    // --- Positions and failover ---

    /// Waits until every replica that runs has executed all that the primary has.
    ///
    /// # Errors
    /// When the primary does not answer or a replica takes longer than `limit` (rounded up to
    /// seconds).
    pub async fn wait_replicas_caught_up(&self, limit: Duration) -> Result<()> {
        let family = self.family();
        let primary = self.server(&self.primary().name)?;
        let position = ask(&primary, replication::position(family)).await?;
        let seconds = limit.as_millis().div_ceil(1000) as u64;
        for replica in self.layout() {
            if replica.role == Role::Replica && is_up(&replica) {
                wait_executed(family, &replica, &position, seconds).await?;
            }
        }
        Ok(())
    }

    /// Makes a replica the primary, as an orchestrator does. A primary that answers is made read
    /// only first and its last writes are waited for; without one, the replica applies all that
    /// it has received. Then it may write, and the others replicate from it. A paused primary
    /// counts as dead: resumed, it still takes writes.
    ///
    /// # Errors
    /// When the replica does not run, cannot catch up within 15 seconds, or a server refuses.
    pub async fn promote(&self, name: &str) -> Result<()> {
        let family = self.family();
        let new = self.replica(name)?;
        let old = self.state().primary().cloned().filter(is_up);
        match &old {
            Some(old) => self.drain(old, &new).await?,
            None => self.apply_received(&new).await?,
        }
        run_all(&new, &replication::DETACH).await?;
        run_all(&new, replication::allow_writes(family)).await?;
        self.state().set_primary(name);
        self.state().save()?;
        for other in self.layout() {
            if other.name != name && is_up(&other) {
                self.replicate_from(&other, new.port).await?;
            }
        }
        Ok(())
    }

    /// Stops writes on a living primary and waits for them on the one to come. When that fails
    /// the old primary takes writes again.
    async fn drain(&self, old: &Server, new: &Server) -> Result<()> {
        let family = self.family();
        run_all(old, replication::forbid_writes(family)).await?;
        let waited = async {
            let position = ask(old, replication::position(family)).await?;
            self.end_delay(new).await?;
            wait_executed(family, new, &position, PROMOTE_WAIT_S).await
        };
        if let Err(error) = waited.await {
            run_all(old, replication::allow_writes(family)).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn apply_received(&self, new: &Server) -> Result<()> {
        run_all(new, &[replication::STOP_RECEIVER]).await?;
        let mut control = new.control().await?;
        let row = control.row(replication::STATUS).await?;
        control.close().await;
        let received = row
            .map(|row| StatusRow(&row).received())
            .unwrap_or_default();
        self.end_delay(new).await?;
        wait_executed(self.family(), new, &received, PROMOTE_WAIT_S).await
    }

    /// A server that is to take over applies at once. Its delay is only touched where there is
    /// one, because MariaDB throws away what it has received to change it.
    async fn end_delay(&self, server: &Server) -> Result<()> {
        let mut control = server.control().await?;
        let status = replication_status(&mut control).await?;
        control.close().await;
        match status {
            Some(status) if status.delay_s > 0 => {
                run_all(server, &replication::delay(self.family(), 0)).await
            }
            Some(status) if !status.applier => run_all(server, &[replication::START_APPLIER]).await,
            _ => Ok(()),
        }
    }

    async fn replicate_from(&self, replica: &Server, primary_port: u16) -> Result<()> {
        let family = self.family();
        run_all(replica, replication::forbid_writes(family)).await?;
        run_all(replica, &replication::attach(family, primary_port)).await
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
    fn reap(&self) {
        lock(&self.children).retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Never held across another call to `self`, nor across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn layout(&self) -> Vec<Server> {
        self.state().servers.clone()
    }

    fn server(&self, name: &str) -> Result<Server> {
        self.state().server(name).cloned()
    }

    fn running(&self, name: &str) -> Result<u32> {
        self.server(name)?
            .pid()
            .with_context(|| format!("{name} does not run"))
    }

    fn replica(&self, name: &str) -> Result<Server> {
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

/// Names, ports and folders of the servers to be.
fn lay_out(spec: &ClusterSpec) -> Result<Vec<Server>> {
    let ports = ports::choose(spec.base_port, spec.replicas + 1)?;
    let server = |(index, port): (usize, u16)| Server {
        name: format!("s{}", index + 1),
        role: if index == 0 {
            Role::Primary
        } else {
            Role::Replica
        },
        port,
        server_id: index as u32 + 1,
        dir: spec.dir.join(format!("s{}", index + 1)),
    };
    Ok(ports.into_iter().enumerate().map(server).collect())
}

/// Runs and is not paused.
fn is_up(server: &Server) -> bool {
    server.pid().is_some_and(|pid| !process::is_paused(pid))
}

async fn run_all(server: &Server, statements: &[impl AsRef<str>]) -> Result<()> {
    let mut control = server.control().await?;
    for statement in statements {
        let ran = control.run(statement.as_ref()).await;
        ran.with_context(|| format!("{} refused", server.name))?;
    }
    control.close().await;
    Ok(())
}

async fn ask(server: &Server, question: &str) -> Result<String> {
    let mut control = server.control().await?;
    let answer = control.value(question).await?;
    control.close().await;
    Ok(answer.unwrap_or_default())
}

async fn wait_executed(
    family: Family,
    server: &Server,
    position: &str,
    seconds: u64,
) -> Result<()> {
    let mut control = server.control().await?;
    let wait = replication::wait_for(family, position, seconds);
    let limit = Duration::from_secs(seconds + 5);
    let answer = control.value_within(&wait, limit).await?;
    let status = replication_status(&mut control).await?;
    control.close().await;
    if answer.as_deref() != Some("0") {
        bail!(
            "{} has not reached {position} after {seconds} s: {status:?}",
            server.name
        );
    }
    Ok(())
}

/// Waits until the receiver is connected and the applier runs.
async fn wait_replicating(replica: &Server) -> Result<()> {
    let deadline = Instant::now() + REPLICATION_LIMIT;
    let mut control = replica.control().await?;
    loop {
        let status = replication_status(&mut control).await?;
        if status
            .as_ref()
            .is_some_and(|status| status.receiver == "Yes" && status.applier)
        {
            control.close().await;
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{} does not replicate: {status:?}", replica.name);
        }
        tokio::time::sleep(POLL).await;
    }
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
