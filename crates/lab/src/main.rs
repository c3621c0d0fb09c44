//! The `millrace-lab` program: what starts, breaks and removes database servers, and the demo.
//! It is not shipped, and links nothing of the proxy: it runs `millrace` as a program of its own.

mod demo;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Private clusters of real servers for Millrace, and a demo of it.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show it: a private cluster, Millrace before it, and a workload that checks every answer.
    Demo(demo::DemoArgs),
    /// Run private clusters of real servers, to try things out.
    Sandbox(millrace_sandbox::cli::SandboxArgs),
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Sandbox(args) => sandbox(args),
    };
    match ended {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("millrace-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn sandbox(args: millrace_sandbox::cli::SandboxArgs) -> anyhow::Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(millrace_sandbox::cli::run(args))
}
