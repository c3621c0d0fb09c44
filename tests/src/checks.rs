//! Runs a suite's checks one after the other and tells at the end which failed. It knows nothing
//! of what they check.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::bail;

/// The longest that one check may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A suite under way. `MILLRACE_TESTS_ONLY=word` runs only the checks whose name contains it.
#[derive(Debug)]
pub struct Checks {
    suite: String,
    only: Option<String>,
    passed: usize,
    failed: Vec<String>,
}

impl Checks {
    pub fn new(suite: impl ToString) -> Self {
        Self {
            suite: suite.to_string(),
            only: std::env::var("MILLRACE_TESTS_ONLY").ok(),
            passed: 0,
            failed: Vec::new(),
        }
    }

    /// Whether a check of this name runs.
    pub fn wants(&self, name: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|word| name.contains(word.as_str()))
    }

    /// Runs one check. A failure is kept for [`Checks::finish`]; the others still run.
    pub async fn run(&mut self, name: &str, check: impl Future<Output = anyhow::Result<()>>) {
        if !self.wants(name) {
            return;
        }
        let started = Instant::now();
        let outcome = match tokio::time::timeout(LIMIT, check).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow::anyhow!("no end after {LIMIT:?}")),
        };
        let took = started.elapsed();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                eprintln!("{}: {name}: passed ({took:.1?})", self.suite);
            }
            Err(error) => {
                let line = format!("{}: {name}: FAILED ({took:.1?}): {error:#}", self.suite);
                eprintln!("{line}");
                self.failed.push(line);
            }
        }
    }

    /// # Errors
    /// When a check failed, or none ran.
    pub fn finish(self) -> anyhow::Result<()> {
        if !self.failed.is_empty() {
            bail!(
                "{} passed, {} failed:\n{}",
                self.passed,
                self.failed.len(),
                self.failed.join("\n")
            );
        }
        if self.passed == 0 && self.only.is_none() {
            bail!("{}: no check ran", self.suite);
        }
        Ok(())
    }
}
