//! The `millrace` program: reads the command line and hands over.

mod admin;
mod app;
mod check;
mod check_servers;
mod coalesce;
mod cpu;
mod drain;
mod explain;
mod listen;
mod logging;
mod reload;
mod report;
mod serve;
mod threads;
mod tls;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
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
}

fn main() -> ExitCode {
    #[cfg(feature = "broken-rules")]
    break_rule();
    let cli = Cli::try_parse().unwrap_or_else(|error| tell_where_it_went(error).exit());
    match cli.command {
        Command::Serve(args) => exit(serve::run(&args)),
        Command::Check(args) => exit(check::run(&args)),
        Command::Explain(args) => exit(explain::run(&args)),
    }
}

/// Breaks the rule that `MILLRACE_BREAKS` names.
#[cfg(feature = "broken-rules")]
fn break_rule() {
    if let Ok(named) = std::env::var("MILLRACE_BREAKS") {
        let rule = millrace_cache::Rule::ALL
            .into_iter()
            .find(|rule| rule.name() == named);
        rule.unwrap_or_else(|| panic!("MILLRACE_BREAKS: no rule is called {named}"))
            .break_it();
        eprintln!("millrace: the rule {named} is broken on purpose");
    }
}

/// What starts and kills servers is a program of its own, which is not shipped. It was part of this
/// one: who asks for it here is told.
fn tell_where_it_went(mut error: clap::Error) -> clap::Error {
    let asked = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) if name == "demo" || name == "sandbox" => name.clone(),
        _ => return error,
    };
    let tip = format!("it is in another program: `millrace-lab {asked}`");
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![tip.into()]),
    );
    error
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

#[cfg(test)]
mod tests {
    use super::*;

    fn said(args: &[&str]) -> String {
        let error = Cli::try_parse_from(args).expect_err("no such subcommand");
        tell_where_it_went(error).to_string()
    }

    #[test]
    fn who_asks_for_the_demo_or_the_sandbox_is_told_where_they_went() {
        for asked in ["demo", "sandbox"] {
            let said = said(&["millrace", asked, "--for", "3"]);
            assert!(
                said.contains(&format!("unrecognized subcommand '{asked}'")),
                "{said}"
            );
            assert!(said.contains(&format!("`millrace-lab {asked}`")), "{said}");
        }
        assert!(!said(&["millrace", "sreve"]).contains("millrace-lab"));
    }
}
