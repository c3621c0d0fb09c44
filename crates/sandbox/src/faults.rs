//! Breaking a cluster and mending it: the methods that end, hold, start and delay single servers.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::Signal;

use crate::Cluster;
use crate::cluster::KILL_LIMIT;
use crate::failover::run_all;
use crate::process;
use crate::replication;
use crate::server::Server;
use crate::spec::{Role, Topology};
use crate::status::replication_status;
use crate::template::Template;

const STOP_LIMIT: Duration = Duration::from_secs(30);

impl Cluster {
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
        if self.topology() != Topology::Async {
            return self.start_member(&server).await;
        }
        self.spawn(&server)?;
        server.wait_ready().await?;
        if server.role == Role::Replica {
            self.rejoin(&server).await?;
        }
        Ok(())
    }

    /// Starts a stopped server with further options, such as `--innodb-read-only=ON`, and leaves its
    /// replication as it is. The next start is without them.
    ///
    /// # Errors
    /// When it runs already or does not start.
    pub async fn start_with(&self, name: &str, options: &[&str]) -> Result<()> {
        let server = self.server(name)?;
        if let Some(pid) = server.pid() {
            bail!("{name} runs already (process {pid})");
        }
        self.spawn_with(&server, false, options)?;
        server.wait_ready().await
    }

    /// Throws a server's data away and lets it begin anew as a replica, which fetches all there
    /// ever was; as a group's member it fetches it from the group. So a former primary comes back
    /// that has what nobody else has. It has another identity then, also another server id: a
    /// server ignores what its binary log's stream has of its own id.
    ///
    /// # Errors
    /// When it is the primary, or does not start or catch up.
    pub async fn rebuild(&self, name: &str) -> Result<()> {
        let server = self.replica(name)?;
        if !self.has_gtids() {
            bail!("without GTIDs a replica cannot find where to begin");
        }
        if server.pid().is_some() {
            self.kill(name).await?;
        }
        fs::remove_dir_all(server.datadir())?;
        let template = Template::ensure(self.family(), self.binaries()).await?;
        template.copy_to(&server.datadir()).await?;
        self.state().renumber(name);
        self.state().save()?;
        self.start(name).await
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
}
