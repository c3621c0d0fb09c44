//! Who replicates from whom, and how far: what an orchestrator does, by hand.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::Cluster;
use crate::process;
use crate::replication::{self, StatusRow};
use crate::server::{Server, semi_sync_source};
use crate::spec::{Family, Role, Topology};
use crate::status::replication_status;

/// How long a promotion waits for the new primary to apply what it has, in seconds.
const PROMOTE_WAIT_S: u64 = 15;
const REPLICATION_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(15);

impl Cluster {
    /// Waits until every replica that runs has executed all that the primary has.
    ///
    /// # Errors
    /// When the primary does not answer or a replica takes longer than `limit` (rounded up to
    /// seconds).
    pub async fn wait_replicas_caught_up(&self, limit: Duration) -> Result<()> {
        if self.topology() == Topology::Galera {
            return self.wait_applied_everywhere(limit).await;
        }
        let family = self.family();
        let primary = self.server(&self.primary().name)?;
        if !self.has_gtids() {
            return self.wait_log_applied(&primary, limit).await;
        }
        let position = ask(&primary, replication::position(family)).await?;
        let seconds = limit.as_millis().div_ceil(1000) as u64;
        for replica in self.layout() {
            if replica.role == Role::Replica && is_up(&replica) {
                wait_executed(family, &replica, &position, seconds).await?;
            }
        }
        Ok(())
    }

    async fn wait_log_applied(&self, primary: &Server, limit: Duration) -> Result<()> {
        let (file, offset) = log_end(primary).await?;
        let seconds = limit.as_millis().div_ceil(1000) as u64;
        let wait = replication::wait_for_log(&file, &offset, seconds);
        for replica in self.layout() {
            if replica.role == Role::Replica && is_up(&replica) {
                let mut control = replica.control().await?;
                let answer = control.value_within(&wait, limit + POLL).await?;
                control.close().await;
                if answer.as_deref() != Some("0") {
                    bail!("{} has not reached {file}:{offset}", replica.name);
                }
            }
        }
        Ok(())
    }

    /// A causal wait on every node (`wsrep_sync_wait`).
    async fn wait_applied_everywhere(&self, limit: Duration) -> Result<()> {
        for node in self.layout() {
            if !is_up(&node) {
                continue;
            }
            let mut control = node.control().await?;
            control.run("SET SESSION wsrep_sync_wait = 1").await?;
            control.value_within("SELECT 1", limit).await?;
            control.close().await;
        }
        Ok(())
    }

    /// Makes a replica the primary, as an orchestrator does. A primary that answers is made read
    /// only first and its last writes are waited for; without one, the replica applies all that
    /// it has received. Then it may write, and the others replicate from it. A paused primary
    /// counts as dead: resumed, it still takes writes ([`Cluster::demote`]). A group is told to
    /// hand the role over.
    ///
    /// # Errors
    /// When the replica does not run, cannot catch up within 15 seconds, or a server refuses; in
    /// Galera, where every node is a primary.
    pub async fn promote(&self, name: &str) -> Result<()> {
        match self.topology() {
            Topology::Async if !self.has_gtids() => {
                bail!("without GTIDs the primary stays where it is")
            }
            Topology::Async => {}
            Topology::Group => return self.set_as_primary(name).await,
            Topology::Galera => bail!("every node of a Galera cluster takes writes"),
        }
        let family = self.family();
        let new = self.replica(name)?;
        let old = self.state().primary().cloned().filter(is_up);
        match &old {
            Some(old) => self.drain(old, &new).await?,
            None => self.apply_received(&new).await?,
        }
        run_all(&new, &replication::DETACH).await?;
        if self.semi_sync() {
            run_all(&new, &[wait_for_replicas(family, true)]).await?;
        }
        run_all(&new, replication::allow_writes(family)).await?;
        self.state().set_primary(name);
        self.state().save()?;
        // The old primary last: what waits for a replica's acknowledgement need not wait for it.
        let mut others = self.layout();
        others.sort_by_key(|other| Some(&other.name) == old.as_ref().map(|old| &old.name));
        for other in others {
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

    /// Promotes the replica that has received the most, as an orchestrator does when the primary
    /// is gone: with semi-synchronous replication it has every acknowledged transaction. Gives its
    /// name.
    ///
    /// # Errors
    /// As for [`Cluster::promote`]; when no replica runs.
    pub async fn promote_best(&self) -> Result<String> {
        let best = self.most_advanced().await?;
        self.promote(&best).await?;
        Ok(best)
    }

    async fn most_advanced(&self) -> Result<String> {
        let family = self.family();
        let mut best: Option<(String, String)> = None;
        for replica in self.layout() {
            if replica.role == Role::Primary || !is_up(&replica) {
                continue;
            }
            run_all(&replica, &[replication::STOP_RECEIVER]).await?;
            let mut control = replica.control().await?;
            let row = control.row(replication::STATUS).await?.unwrap_or_default();
            let executed = control.value(replication::position(family)).await?;
            control.close().await;
            let has = StatusRow(&row).received() + "," + &executed.unwrap_or_default();
            let ahead = match &best {
                None => true,
                Some((_, other)) => !covers(family, &replica, other, &has).await?,
            };
            if ahead {
                best = Some((replica.name, has));
            }
        }
        best.map(|(name, _)| name).context("no replica runs")
    }

    /// Makes a server that was a primary once a replica of the present one.
    ///
    /// # Errors
    /// When one of them does not run or refuses.
    pub async fn demote(&self, name: &str) -> Result<()> {
        let primary = self.primary();
        if primary.name == name {
            bail!("{name} is the primary: promote another first");
        }
        let server = self.server(name)?;
        self.replicate_from(&server, primary.port).await?;
        wait_replicating(&server).await
    }

    /// Lets a replica fetch from its source at another port of this machine: a forwarder's.
    ///
    /// # Errors
    /// The server's.
    pub async fn replicate_via(&self, name: &str, port: u16) -> Result<()> {
        self.replicate_from(&self.replica(name)?, port).await
    }

    /// Flips `read_only` (MySQL: `super_read_only` too), as an operator does.
    ///
    /// # Errors
    /// The server's.
    pub async fn set_read_only(&self, name: &str, on: bool) -> Result<()> {
        let statements = match on {
            true => replication::forbid_writes(self.family()),
            false => replication::allow_writes(self.family()),
        };
        run_all(&self.server(name)?, statements).await
    }

    pub(crate) async fn replicate_from(&self, replica: &Server, primary_port: u16) -> Result<()> {
        let family = self.family();
        run_all(replica, replication::forbid_writes(family)).await?;
        if !self.has_gtids() {
            let primary = self.server(&self.primary().name)?;
            let (file, offset) = log_end(&primary).await?;
            let attach = replication::attach_at(primary_port, &file, &offset);
            return run_all(replica, &attach).await;
        }
        run_all(replica, &replication::attach(family, primary_port)).await?;
        if self.semi_sync() {
            // MySQL takes a second for it, in which the replica works already.
            run_all(replica, &[wait_for_replicas(family, false)]).await?;
        }
        Ok(())
    }
}

/// Whether `one` has all that `other` has. MariaDB's positions of servers that follow one primary
/// differ in their sequence numbers only.
async fn covers(family: Family, ask_at: &Server, one: &str, other: &str) -> Result<bool> {
    if family == Family::MySql {
        let question = format!("SELECT GTID_SUBSET('{other}', '{one}')");
        return Ok(ask(ask_at, &question).await? == "1");
    }
    let last = |text: &str| {
        let numbers = text.split([',', '\n']).filter_map(|gtid| {
            let (_, sequence) = gtid.trim().rsplit_once('-')?;
            sequence.parse::<u64>().ok()
        });
        numbers.max()
    };
    Ok(last(other) <= last(one))
}

fn wait_for_replicas(family: Family, on: bool) -> String {
    format!("SET GLOBAL {} = {on}", semi_sync_source(family))
}

/// Runs and is not paused.
pub(crate) fn is_up(server: &Server) -> bool {
    server.pid().is_some_and(|pid| !process::is_paused(pid))
}

pub(crate) async fn run_all(server: &Server, statements: &[impl AsRef<str>]) -> Result<()> {
    let mut control = server.control().await?;
    for statement in statements {
        let ran = control.run(statement.as_ref()).await;
        ran.with_context(|| format!("{} refused", server.name))?;
    }
    control.close().await;
    Ok(())
}

/// Where a server's binary log ends: file and offset.
async fn log_end(server: &Server) -> Result<(String, String)> {
    let mut control = server.control().await?;
    let row = control.row(replication::LOG_STATUS).await?;
    control.close().await;
    let row = row.context("no binary log")?;
    let at = |name| row.get(name).cloned().context("no coordinates");
    Ok((at("File")?, at("Position")?))
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
pub(crate) async fn wait_replicating(replica: &Server) -> Result<()> {
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
