//! `millrace serve`: the command line, the configuration that comes of it, and the process's own limits.
//! What is served, [`App`] holds.

use std::path::PathBuf;

use clap::Args;
use millrace_config::{Config, Environment, Flags};
use tokio::runtime::Builder;
use tracing::warn;

use crate::app::App;
use crate::drain::Signals;
use crate::logging;
use crate::reload::{Source, hangups};

/// How to serve: a file, or flags alone.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The configuration file; takes the place of the flags for listeners and servers.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "server", "monitor_user", "monitor_password_file", "http", "admin", "admin_password_file"])]
    config: Option<PathBuf>,
    /// Where to listen: HOST:PORT, [V6]:PORT, *:PORT or the path of a Unix socket. Repeatable.
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// A server: HOST or HOST:PORT. Repeatable.
    #[arg(long, value_name = "HOST:PORT")]
    server: Vec<String>,
    /// The account that asks the servers for their roles and positions. Its password is taken
    /// from MILLRACE_MONITOR_PASSWORD or a file.
    #[arg(long, value_name = "NAME")]
    monitor_user: Option<String>,
    /// A file that holds the monitor's password.
    #[arg(long, value_name = "FILE")]
    monitor_password_file: Option<PathBuf>,
    /// Where to serve metrics and health over HTTP.
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Where operators ask and act, in the MySQL protocol, as the account `admin`. Its password is
    /// taken from MILLRACE_ADMIN_PASSWORD or a file.
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// A file that holds the operators' password.
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_password_file: Option<PathBuf>,
    /// Threads that serve clients; as many as CPUs where not given.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// End, as on SIGTERM, when the process that started this one does.
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<i32> {
    if args.end_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    let source = Source {
        file: args.config.clone(),
        workers: args.workers,
    };
    let Some(config) = configuration(args, &source)? else {
        return Ok(1);
    };
    logging::start(config.log);
    for warning in &config.warnings {
        warn!("{warning}");
    }
    prepare_process();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, source))?;
    Ok(0)
}

fn configuration(args: &ServeArgs, source: &Source) -> anyhow::Result<Option<Config>> {
    if let Some(file) = &source.file {
        return source.read(file);
    }
    let flags = Flags {
        listen: args.listen.clone(),
        server: args.server.clone(),
        monitor_user: args.monitor_user.clone(),
        monitor_password_file: args.monitor_password_file.clone(),
        http: args.http.clone(),
        admin: args.admin.clone(),
        admin_password_file: args.admin_password_file.clone(),
    };
    match Config::from_flags(&flags, &Environment::process()) {
        Ok(config) => Ok(Some(source.overridden(config))),
        Err(errors) => {
            for error in errors {
                eprintln!("millrace: {error}");
            }
            Ok(None)
        }
    }
}

/// As many open files as allowed, and no core file: it would hold passwords.
fn prepare_process() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: files.maximum,
        maximum: files.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "cannot raise the limit of open files");
    }
    let none = Rlimit {
        current: Some(0),
        maximum: getrlimit(Resource::Core).maximum,
    };
    if let Err(error) = setrlimit(Resource::Core, none) {
        warn!(%error, "cannot forbid core files, which would hold passwords");
    }
}

/// The life of the process.
async fn serve(config: Config, source: Source) -> anyhow::Result<()> {
    // From here on they no longer end the process at once.
    let (mut signals, hangups) = (Signals::new()?, hangups()?);
    let running = App::build(config)?.bind().await?.spawn(source, hangups)?;
    signals.next().await;
    running.drain(&mut signals).await;
    Ok(())
}
