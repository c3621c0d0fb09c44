//! Runs the differential suite by hand against servers and a proxy that are up already.
//!
//! The cases change databases named `d_*` and `base`, accounts named `t_*` and a few global
//! variables: use it on private servers only.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use millrace_tests::differential::known::Known;
use millrace_tests::differential::player::Profile;
use millrace_tests::differential::script::{self, Family};
use millrace_tests::differential::suite::{self, Sides};
use millrace_tests::wire::{Login, Target, cap};

#[derive(Debug, Parser)]
#[command(about = "Compares a proxy with a direct connection, case by case")]
struct Args {
    /// mysql or mariadb.
    #[arg(long)]
    family: Family,
    /// The server to compare with.
    #[arg(long)]
    direct: String,
    /// The proxy, or another server.
    #[arg(long)]
    through: String,
    /// The primary behind the proxy; where it is left out, only the direct side is set up.
    #[arg(long)]
    primary: Option<String>,
    /// Seconds to wait after the set-up, for replicas.
    #[arg(long, default_value_t = 1.0)]
    settle: f64,
    /// Skip the set-up.
    #[arg(long)]
    no_setup: bool,
    /// An account that may do everything.
    #[arg(long, default_value = "admin")]
    admin: String,
    #[arg(long, default_value = "admin-secret")]
    admin_password: String,
    /// Log in as a client library of the 5.5 era: no DEPRECATE_EOF, no SESSION_TRACK.
    #[arg(long)]
    legacy: bool,
    /// Compress: zlib or zstd.
    #[arg(long)]
    compress: Option<String>,
    #[arg(long)]
    tls: bool,
    /// Collation id of the handshake; the family's usual one where it is left out.
    #[arg(long)]
    charset: Option<u8>,
    /// How many disturbing clients.
    #[arg(long, default_value_t = 4)]
    noise: u64,
    /// Longest silence in a reply, in seconds.
    #[arg(long, default_value_t = 20.0)]
    timeout: f64,
    /// Report the differences that are listed as known, too.
    #[arg(long)]
    strict: bool,
    /// Print the direct transcript instead of comparing.
    #[arg(long)]
    transcript: bool,
    /// Print the names of passed cases too.
    #[arg(short, long)]
    verbose: bool,
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/cases"))]
    cases: PathBuf,
    /// Substrings of `file/name`.
    filters: Vec<String>,
}

impl Args {
    fn profile(&self) -> anyhow::Result<Profile> {
        let mut capabilities = if self.legacy {
            cap::LEGACY
        } else {
            cap::MODERN
        };
        match self.compress.as_deref() {
            None => {}
            Some("zlib") => capabilities |= cap::COMPRESS,
            Some("zstd") => capabilities |= cap::ZSTD,
            Some(other) => anyhow::bail!("unknown compression {other}"),
        }
        Ok(Profile {
            user: "t_app".to_owned(),
            password: "app-secret".to_owned(),
            capabilities,
            tls: self.tls,
            charset: self.charset.unwrap_or(script::client_charset(self.family)),
            timeout: Duration::from_secs_f64(self.timeout),
        })
    }

    async fn set_up(&self, cases: &[suite::Case]) -> anyhow::Result<()> {
        let mut addresses = vec![self.direct.clone()];
        addresses.extend(self.primary.clone().filter(|p| *p != self.direct));
        for address in addresses {
            let login = Login::new(
                Target::Tcp(address.clone()),
                &self.admin,
                &self.admin_password,
            );
            suite::prepare(&login, self.family, cases)
                .await
                .with_context(|| address)?;
        }
        tokio::time::sleep(Duration::from_secs_f64(self.settle)).await;
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let cases = suite::select(suite::load(&args.cases)?, args.family, &args.filters)?;
    if !args.no_setup {
        args.set_up(&cases).await?;
    }
    let sides = Sides {
        family: args.family,
        direct: Target::Tcp(args.direct.clone()),
        through: Target::Tcp(args.through.clone()),
        profile: args.profile()?,
    };
    if args.transcript {
        for case in &cases {
            match suite::transcript(&sides, case).await {
                Ok(text) => println!("{text}"),
                Err(e) => println!("== {}: broken case: {e:#}", case.name),
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let noise = (args.noise > 0).then(|| suite::start_noise(&sides, args.noise));
    let (mut failed, mut steps, mut excused) = (Vec::new(), 0, 0);
    let mut known = if args.strict {
        Known::default()
    } else {
        Known::parse(include_str!("../../known-differences.txt"))?
    };
    for case in &cases {
        let started = std::time::Instant::now();
        let mut outcome = suite::run(&sides, case, noise.as_ref()).await;
        steps += outcome.steps;
        excused += known.excuse(&mut outcome);
        if outcome.passed() {
            if args.verbose {
                println!(
                    "ok {} ({} steps, {:.1?})",
                    outcome.name,
                    outcome.steps,
                    started.elapsed()
                );
            }
        } else {
            println!("{}", outcome.report());
            failed.push(outcome.name);
        }
    }
    println!(
        "{} cases, {steps} steps, {excused} steps differ as known, {} cases failed: {}",
        cases.len(),
        failed.len(),
        failed.join(" ")
    );
    if let Some(noise) = &noise {
        println!("{} turns of noise", noise.turns());
    }
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
