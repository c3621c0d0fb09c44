//! `millrace check`: says what is wrong with a configuration file, or what it means.

use std::path::PathBuf;

use clap::Args;
use millrace_config::{Config, Environment};
use millrace_routing::rules::Rules;

use crate::tls;

/// What to check.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file.
    file: PathBuf,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<i32> {
    let Some(config) = load(&args.file)? else {
        return Ok(1);
    };
    for warning in &config.warnings {
        println!("warning: {warning}");
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
    println!(
        "{}: good ({} listeners, {} servers)",
        args.file.display(),
        config.listeners.len(),
        config.servers.len()
    );
    Ok(0)
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
