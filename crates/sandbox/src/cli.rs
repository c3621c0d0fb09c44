//! `millrace-lab sandbox …`: the command line over [`crate::Cluster`]. Parses, calls, prints; the
//! binary mounts it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::Cluster;
use crate::spec::{ClusterSpec, Family, Release, Topology};
use crate::state::ClusterInfo;
use crate::status::{ProcessState, ServerStatus};

/// Runs private clusters of real servers on 127.0.0.1.
#[derive(Args, Debug)]
pub struct SandboxArgs {
    #[command(subcommand)]
    command: SandboxCommand,
}

#[derive(Subcommand, Debug)]
enum SandboxCommand {
    /// Start a cluster; Ctrl-C stops and removes it, unless --detach.
    Up(UpArgs),
    /// Stop a cluster and remove its folder.
    Down(At),
    /// Show each server's role, process and replication.
    Status(At),
    /// Kill a server, as a crash would (SIGKILL).
    Kill(ServerArgs),
    /// Stop a server in order (SIGTERM).
    Stop(ServerArgs),
    /// Start a stopped or killed server; a former primary comes back as a replica.
    Start(ServerArgs),
    /// Hold a server: its connections stay open and nothing answers (SIGSTOP).
    Pause(ServerArgs),
    /// Let a paused server go on.
    Resume(ServerArgs),
    /// Make a replica the primary and let the others replicate from it; a group hands over.
    Promote(ServerArgs),
    /// Make a former primary a replica of the present one.
    Demote(ServerArgs),
    /// Throw a replica's data away and let it fetch everything anew.
    Rebuild(ServerArgs),
    /// Make a server read-only, as an operator would.
    ReadOnly(ServerArgs),
    /// Let a server take writes, whatever the others do.
    Writable(ServerArgs),
    /// Hold a member until its group has expelled it (group).
    Expel(ServerArgs),
    /// Bring a member that has left or was expelled back (group).
    Rejoin(ServerArgs),
    /// Cut a node off from the others (galera).
    Isolate(ServerArgs),
    /// Connect a node with the others again (galera).
    Reconnect(ServerArgs),
    /// Fill a server's disk (with --disk-mib).
    FillDisk(ServerArgs),
    /// Make the room again.
    FreeDisk(ServerArgs),
    /// Let a replica apply each transaction some seconds after the primary.
    DelayApplier(DelayArgs),
    /// Stop applying on a replica; it goes on receiving.
    StopApplier(ServerArgs),
    /// Start applying again.
    StartApplier(ServerArgs),
}

#[derive(Args, Debug)]
struct At {
    /// The cluster's folder.
    #[arg(long, value_name = "DIR", default_value_os_t = default_dir())]
    dir: PathBuf,
    /// Answer with one line of JSON.
    #[arg(long)]
    json: bool,
}

fn default_dir() -> PathBuf {
    std::env::temp_dir().join("millrace-sandbox")
}

#[derive(Args, Debug)]
struct UpArgs {
    /// Which servers to run.
    #[arg(long, value_enum, default_value_t = Family::MariaDb)]
    family: Family,
    /// Another release than the family's usual one: 11.8 (mariadb).
    #[arg(long, value_name = "NUMBER")]
    release: Option<String>,
    /// How they keep the same data: async (both families), group (mysql), galera (mariadb).
    #[arg(long, value_enum, default_value_t = Topology::Async)]
    topology: Topology,
    /// Acknowledge a commit only once a replica has it (with --topology async).
    #[arg(long)]
    semi_sync: bool,
    /// No GTIDs: replicas follow by file and offset (with --family mysql).
    #[arg(long)]
    no_gtid: bool,
    /// Replicas beside the primary, or members beside the first.
    #[arg(long, value_name = "N", default_value_t = 2)]
    replicas: usize,
    #[command(flatten)]
    at: At,
    /// Port of the first server, the others follow; 0 takes any free ones.
    #[arg(long, value_name = "P", default_value_t = 13306)]
    base_port: u16,
    /// Return when the cluster is up and leave it running; `sandbox down` ends it.
    #[arg(long)]
    detach: bool,
    /// Leave servers and folder also after Ctrl-C, and the folder with its logs after a failure.
    #[arg(long)]
    keep: bool,
    /// Give the servers a certificate for 127.0.0.1, signed by the cluster's own CA.
    #[arg(long)]
    tls: bool,
    /// Run with the performance schema.
    #[arg(long)]
    performance_schema: bool,
    /// Connections that each server takes.
    #[arg(long, value_name = "N", default_value_t = 500)]
    max_connections: u32,
    /// Put each server's data on a disk of so many MiB, a tmpfs, which only root can mount.
    #[arg(long, value_name = "MIB")]
    disk_mib: Option<u32>,
    /// InnoDB's buffer pool in MiB, for each server.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    buffer_pool_mib: u32,
    /// A further option for the servers, such as --server-arg=--sql-mode=ANSI (repeatable).
    #[arg(long = "server-arg", value_name = "OPTION", allow_hyphen_values = true)]
    server_args: Vec<String>,
}

impl UpArgs {
    fn spec(&self) -> Result<ClusterSpec> {
        Ok(ClusterSpec {
            release: Release::named(self.family, self.release.as_deref())?,
            topology: self.topology,
            semi_sync: self.semi_sync,
            gtid: !self.no_gtid,
            replicas: self.replicas,
            dir: self.at.dir.clone(),
            base_port: self.base_port,
            keep: self.keep,
            tls: self.tls,
            extra_args: self.server_args.clone(),
            performance_schema: self.performance_schema,
            buffer_pool_mib: self.buffer_pool_mib,
            disk_mib: self.disk_mib,
            max_connections: self.max_connections,
        })
    }
}

#[derive(Args, Debug)]
struct ServerArgs {
    /// The server, s1, s2, …
    server: String,
    #[command(flatten)]
    at: At,
}

#[derive(Args, Debug)]
struct DelayArgs {
    #[command(flatten)]
    on: ServerArgs,
    /// The delay in whole seconds; 0 ends it.
    seconds: u32,
}

/// Runs a command and gives the process's exit status.
///
/// # Errors
/// What went wrong and what to do, for the user.
pub async fn run(args: SandboxArgs) -> Result<i32> {
    use SandboxCommand as C;
    match args.command {
        C::Up(args) => return up(args).await,
        C::Down(at) => at.cluster()?.down().await?,
        C::Status(at) => status(at).await?,
        C::Kill(on) => on.done(on.cluster()?.kill(&on.server).await)?,
        C::Stop(on) => on.done(on.cluster()?.stop(&on.server).await)?,
        C::Start(on) => on.done(on.cluster()?.start(&on.server).await)?,
        C::Pause(on) => on.done(on.cluster()?.pause(&on.server).await)?,
        C::Resume(on) => on.done(on.cluster()?.resume(&on.server).await)?,
        C::Promote(on) => on.done(on.cluster()?.promote(&on.server).await)?,
        C::Demote(on) => on.done(on.cluster()?.demote(&on.server).await)?,
        C::Rebuild(on) => on.done(on.cluster()?.rebuild(&on.server).await)?,
        C::ReadOnly(on) => on.done(on.cluster()?.set_read_only(&on.server, true).await)?,
        C::Writable(on) => on.done(on.cluster()?.set_read_only(&on.server, false).await)?,
        C::Expel(on) => on.done(on.cluster()?.expel(&on.server).await)?,
        C::Rejoin(on) => on.done(on.cluster()?.rejoin_group(&on.server).await)?,
        C::Isolate(on) => on.done(on.cluster()?.isolate(&on.server).await)?,
        C::Reconnect(on) => on.done(on.cluster()?.reconnect(&on.server).await)?,
        C::FillDisk(on) => on.done(on.cluster()?.fill_disk(&on.server))?,
        C::FreeDisk(on) => on.done(on.cluster()?.free_disk(&on.server))?,
        C::StopApplier(on) => on.done(on.cluster()?.stop_applier(&on.server).await)?,
        C::StartApplier(on) => on.done(on.cluster()?.start_applier(&on.server).await)?,
        C::DelayApplier(DelayArgs { on, seconds }) => {
            on.done(on.cluster()?.delay_applier(&on.server, seconds).await)?;
        }
    }
    Ok(0)
}

impl At {
    fn cluster(&self) -> Result<Cluster> {
        Cluster::attach(&self.dir)
    }
}

impl ServerArgs {
    fn cluster(&self) -> Result<Cluster> {
        self.at.cluster()
    }

    /// With --json a script learns at once what the cluster has become.
    fn done(&self, outcome: Result<()>) -> Result<()> {
        outcome?;
        if self.at.json {
            println!("{}", serde_json::to_string(&self.cluster()?.info())?);
        }
        Ok(())
    }
}

/// Signals are listened to before the first process starts, so that none is left by a Ctrl-C
/// while starting.
async fn up(args: UpArgs) -> Result<i32> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let asked_to_end = async {
        tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
            _ = hang_up.recv() => 129,
        }
    };
    tokio::pin!(asked_to_end);
    let spec = args.spec()?;
    if !args.at.json {
        eprintln!(
            "starting {} ({}) with {} replicas …",
            spec.release, args.topology, args.replicas
        );
    }
    let cluster = tokio::select! {
        cluster = Cluster::up(spec) => cluster?,
        status = &mut asked_to_end => return Ok(status),
    };
    let left = || format!("Left running: `{}` ends it.", down_command(&cluster.dir()));
    if args.detach {
        announce(&args, &cluster, &left())?;
        cluster.detach();
        return Ok(0);
    }
    announce(
        &args,
        &cluster,
        if args.keep {
            "Ctrl-C leaves the servers running."
        } else {
            "Ctrl-C stops the servers and removes the folder."
        },
    )?;
    asked_to_end.await;
    if args.keep {
        eprintln!("{}", left());
        cluster.detach();
    } else {
        cluster.down().await?;
    }
    Ok(0)
}

fn down_command(dir: &Path) -> String {
    format!("millrace-lab sandbox down --dir {}", dir.display())
}

/// What there is, in one line for scripts; for people also what comes next.
fn announce(args: &UpArgs, cluster: &Cluster, next: &str) -> Result<()> {
    if args.at.json {
        println!("{}", serde_json::to_string(&cluster.info())?);
    } else {
        println!("{}\n{next}", describe(&cluster.info()));
    }
    Ok(())
}

fn describe(info: &ClusterInfo) -> String {
    let mut lines = vec![format!(
        "{} {} ({}) in {}",
        info.family,
        info.version,
        info.topology,
        info.dir.display()
    )];
    for server in &info.servers {
        let pid = server
            .pid
            .map_or("not running".into(), |pid| format!("pid {pid}"));
        lines.push(format!(
            "  {}  {:<8} {}  {pid}",
            server.name,
            server.role.to_string(),
            server.addr()
        ));
    }
    lines.push("accounts:".into());
    for account in &info.accounts {
        lines.push(format!(
            "  {:<16} {:<15} {}",
            account.user, account.password, account.purpose
        ));
    }
    if let Some(ca) = &info.tls_ca {
        lines.push(format!("CA certificate: {}", ca.display()));
    }
    lines.join("\n") + "\n"
}

async fn status(at: At) -> Result<()> {
    let statuses = at.cluster()?.status().await;
    if at.json {
        println!("{}", serde_json::to_string(&statuses)?);
    } else {
        for status in &statuses {
            println!("{}", status_line(status));
        }
    }
    Ok(())
}

fn status_line(status: &ServerStatus) -> String {
    let process = match status.process {
        ProcessState::Running => "running",
        ProcessState::Paused => "paused",
        ProcessState::Stopped => "stopped",
    };
    let mut line = format!(
        "{}  {:<8} {}:{}  {process:<7}",
        status.name,
        status.role.to_string(),
        status.host,
        status.port
    );
    if let Some(read_only) = status.read_only {
        line += if read_only {
            "  read-only"
        } else {
            "  writable "
        };
    }
    if let Some(position) = &status.position {
        line += &format!("  at {position:?}");
    }
    if let Some(r) = &status.replication {
        line += &format!(
            "  receiver {}, applier {}",
            r.receiver,
            if r.applier { "Yes" } else { "No" }
        );
        line += &r
            .lag_s
            .map_or(String::new(), |lag| format!(", lag {lag} s"));
        if r.delay_s > 0 {
            line += &format!(", delay {} s", r.delay_s);
        }
    }
    if let Some(group) = &status.group {
        line += &format!("  {}, {} members", group.state, group.members);
    }
    let errors = [
        &status.error,
        &status
            .replication
            .as_ref()
            .and_then(|r| r.last_error.clone()),
    ];
    for error in errors.into_iter().flatten() {
        line += &format!("\n      {error}");
    }
    line
}
