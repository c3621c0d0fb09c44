//! The frame of the Rust suites: groups of checks, their report and their exit status.
//! It knows the environment and opens no connection.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Where to connect, from the environment that run.sh sets.
#[derive(Clone)]
pub struct Settings {
    pub host: String,
    pub port: u16,
    pub user: String,
    pub password: String,
    pub db: String,
    pub mysql: bool,
    pub tls: bool,
    pub socket: Option<String>,
}

impl Settings {
    pub fn from_env() -> Result<Self> {
        let var = |name: &str| std::env::var(format!("MILLRACE_TEST_{name}"));
        Ok(Self {
            host: var("HOST").unwrap_or_else(|_| "127.0.0.1".into()),
            port: var("PORT")?.parse()?,
            user: var("USER")?,
            password: var("PASSWORD").unwrap_or_default(),
            db: var("DB")?,
            mysql: var("FAMILY")? == "mysql",
            tls: var("TLS").is_ok_and(|v| v == "1"),
            socket: var("SOCKET").ok().filter(|s| !s.is_empty()),
        })
    }
}

/// A group that cannot run here; counted apart from passes and failures.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Counts what the groups came to and prints a line for each.
#[derive(Default)]
pub struct Report {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Report {
    pub async fn group(&mut self, name: &str, run: impl Future<Output = Result<()>>) {
        if std::env::var("MILLRACE_TEST_ONLY").is_ok_and(|only| !name.contains(&only)) {
            return;
        }
        let begun = Instant::now();
        match run.await {
            Ok(()) => {
                self.passed += 1;
                println!("ok   {name} ({:.2} s)", begun.elapsed().as_secs_f64());
            }
            Err(error) if error.is::<Skip>() => {
                self.skipped += 1;
                println!("skip {name}: {error}");
            }
            Err(error) => {
                self.failed += 1;
                println!(
                    "FAIL {name}: {:.500}",
                    format!("{error:#}").replace('\n', " ")
                );
            }
        }
    }

    /// Prints the last line; true if everything that ran was right.
    pub fn finish(self) -> bool {
        let skipped = if self.skipped > 0 {
            format!(", {} skipped", self.skipped)
        } else {
            String::new()
        };
        println!("{} passed, {} failed{skipped}", self.passed, self.failed);
        self.failed == 0 && self.passed > 0
    }
}

/// Fails the group with the line and both values.
#[macro_export]
macro_rules! equal {
    ($got:expr, $wanted:expr $(, $what:expr)?) => {{
        let (got, wanted) = (&$got, &$wanted);
        if got != wanted {
            anyhow::bail!(
                "{}:{}: {:.80}{}: got {:.250}, wanted {:.250}",
                file!(), line!(), stringify!($got), String::new() $(+ &format!(" ({})", $what))?,
                format!("{got:?}"), format!("{wanted:?}")
            );
        }
    }};
}

/// For reads on another session than the one that wrote: it may lag, but not for ever.
pub async fn eventually<F: Future<Output = Result<bool>>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if condition().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{what}: not within 10 s")
}
