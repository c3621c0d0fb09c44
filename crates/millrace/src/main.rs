//! The `millrace` program: reads the command line and hands over.

mod admin;
mod check;
mod coalesce;
mod cpu;
mod demo;
mod drain;
mod explain;
mod listen;
mod logging;
mod reload;
mod serve;
mod tls;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A proxy for MySQL and MariaDB: splits reads from writes without stale reads, pools
/// connections, and keeps clients connected.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve clients.
    Serve(serve::ServeArgs),
    /// Check a configuration file.
    Check(check::CheckArgs),
    /// Say where a statement would go, and why.
    Explain(explain::ExplainArgs),
    /// Show it: a private cluster, Millrace before it, and a workload that checks every answer.
    Demo(demo::DemoArgs),
    /// Run private clusters of real servers, to try things out.
    Sandbox(millrace_sandbox::cli::SandboxArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => exit(serve::run(&args)),
        Command::Check(args) => exit(check::run(&args)),
        Command::Explain(args) => exit(explain::run(&args)),
        Command::Demo(args) => exit(demo::run(&args)),
        Command::Sandbox(args) => exit(sandbox(args)),
    }
}

fn sandbox(args: millrace_sandbox::cli::SandboxArgs) -> anyhow::Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(millrace_sandbox::cli::run(args))
}

fn exit(ended: anyhow::Result<i32>) -> ExitCode {
    match ended {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("millrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}
