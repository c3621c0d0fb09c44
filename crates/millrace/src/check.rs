//! `millrace check`: says what is wrong with a configuration file, or what it means.

use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use millrace_config::{Address, Config, Environment};
use millrace_routing::rules::Rules;
use rustix::fs::{Access, access};

use crate::{check_servers, tls};

/// What to check.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file.
    file: PathBuf,
    /// Ask the servers as well: whether they are there, let the accounts of the file in, and what they are.
    #[arg(long)]
    connect: bool,
    /// Say what the servers answered as JSON.
    #[arg(long, requires = "connect")]
    json: bool,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<i32> {
    let Some(config) = load(&args.file)? else {
        return Ok(1);
    };
    for warning in &config.warnings {
        match args.json {
            true => eprintln!("warning: {warning}"),
            false => println!("warning: {warning}"),
        }
    }
    let mut errors = tls::check(&config);
    errors.extend(places(&config));
    let rules = Rules::new(config.rules.clone()).err();
    errors.extend(rules.map(|error| anyhow::Error::from(error).context("the rules' patterns")));
    if !errors.is_empty() {
        for error in errors {
            eprintln!("millrace: {}: {error:#}", args.file.display());
        }
        return Ok(1);
    }
    if args.json {
        return check_servers::run(&config, true);
    }
    println!(
        "{}: good ({} listeners, {} servers)",
        args.file.display(),
        config.listeners.len(),
        config.servers.len()
    );
    match args.connect {
        true => check_servers::run(&config, false),
        false => Ok(0),
    }
}

/// What stands in the way of the files that serving makes (sockets, and the certificate that is kept), and of the
/// addresses that it listens on. Whether a port is free is not asked: while Millrace serves, it has them itself.
fn places(config: &Config) -> Vec<anyhow::Error> {
    let listeners = config.listeners.iter().map(|listener| &listener.address);
    let admin = config.admin.as_ref().map(|admin| &admin.address);
    let listened = listeners.chain(admin).chain(&config.http);
    let sockets = listened.filter_map(|address| {
        let placed = match address {
            Address::Unix(path) => socket_place(path),
            Address::Tcp { host, .. } => is_here(host),
        };
        let why = placed.err()?;
        Some(why.context(format!("cannot listen on {address}")))
    });
    let kept = config.tls.keep.as_deref().filter(|file| !file.exists());
    let kept = kept.and_then(|file| {
        let why = anyhow::Error::from(folder_of(file).err()?);
        Some(why.context(format!("[tls] keep {}", file.display())))
    });
    sockets.chain(kept).collect()
}

/// An address is one of this machine's, by whatever port.
fn is_here(host: &str) -> anyhow::Result<()> {
    if host != "*" {
        TcpListener::bind((host, 0))?;
    }
    Ok(())
}

fn socket_place(path: &Path) -> anyhow::Result<()> {
    SocketAddr::from_pathname(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => anyhow::bail!("there is something else"),
        _ => Ok(folder_of(path)?),
    }
}

/// A file can be made in its folder.
fn folder_of(file: &Path) -> std::io::Result<()> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let allowed = Access::WRITE_OK | Access::EXEC_OK;
    Ok(access(folder.unwrap_or(Path::new(".")), allowed)?)
}

/// Reads a file; prints what is wrong with it and answers none.
pub(crate) fn load(file: &Path) -> anyhow::Result<Option<Config>> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| anyhow::anyhow!("cannot read {}: {error}", file.display()))?;
    match Config::from_toml(&file.display().to_string(), &text, &Environment::process()) {
        Ok(config) => Ok(Some(config)),
        Err(errors) => {
            for error in errors {
                eprintln!("millrace: {error}");
            }
            Ok(None)
        }
    }
}
