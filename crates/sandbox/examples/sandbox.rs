//! The sandbox's command line by itself: `cargo run -p millrace-sandbox --example sandbox -- up`.

use clap::Parser;
use millrace_sandbox::cli::{SandboxArgs, run};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    sandbox: SandboxArgs,
}

#[tokio::main]
async fn main() {
    let status = run(Cli::parse().sandbox).await.unwrap_or_else(|error| {
        eprintln!("sandbox: {error:#}");
        1
    });
    std::process::exit(status)
}
