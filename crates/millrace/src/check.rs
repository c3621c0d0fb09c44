//! `millrace check`: says what is wrong with a configuration file, or what it means.

use std::path::PathBuf;

use clap::Args;
use millrace_config::{Config, Environment};
use millrace_routing::rules::Rules;

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

/// Reads a file; prints what is wrong with it and answers none.
pub(crate) fn load(file: &PathBuf) -> anyhow::Result<Option<Config>> {
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
