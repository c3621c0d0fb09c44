//! Runs a suite's checks one after the other and tells at the end which failed. It knows nothing
//! of what they check.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::bail;
use millrace_sandbox::Release;

/// The longest that one check may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Whether a suite runs a selection only on this release: a second one of a family does, unless
/// `MILLRACE_WHOLE` is set.
pub fn is_selection(release: Release) -> bool {
    release == Release::MariaDb11_8 && std::env::var_os("MILLRACE_WHOLE").is_none()
}

/// A suite under way. `MILLRACE_TESTS_ONLY=word` runs only the checks whose name contains it.
#[derive(Debug)]
pub struct Checks {
    suite: String,
    only: Option<String>,
    /// The words of the checks that run; empty for all.
    selected: &'static [&'static str],
    passed: usize,
    failed: Vec<String>,
}

impl Checks {
    pub fn new(suite: impl ToString) -> Self {
        Self {
            suite: suite.to_string(),
            only: std::env::var("MILLRACE_TESTS_ONLY").ok(),
            selected: &[],
            passed: 0,
            failed: Vec::new(),
        }
    }

    /// As [`Checks::new`]. Where the whole would take CI too long ([`is_selection`]), only the checks run
    /// whose name has one of these words.
    pub fn selected(suite: &str, release: Release, words: &'static [&'static str]) -> Self {
        let mut checks = Checks::new(format!("{suite}, {release}"));
        if is_selection(release) {
            checks.selected = words;
        }
        checks
    }

    /// Whether a check of this name runs.
    pub fn wants(&self, name: &str) -> bool {
        if self.only.is_none() && !self.selected.is_empty() {
            return self.selected.iter().any(|word| name.contains(word));
        }
        self.only
            .as_ref()
            .is_none_or(|word| name.contains(word.as_str()))
    }

    /// Runs one check. A failure is kept for [`Checks::finish`]; the others still run.
    pub async fn run(&mut self, name: &str, check: impl Future<Output = anyhow::Result<()>>) {
        // In a box: a check is large, and would be in here twice.
        self.run_within(LIMIT, name, Box::pin(check)).await;
    }

    /// The same for one that may take longer, or less.
    pub async fn run_within(
        &mut self,
        limit: Duration,
        name: &str,
        check: impl Future<Output = anyhow::Result<()>>,
    ) {
        if !self.wants(name) {
            return;
        }
        let started = Instant::now();
        let outcome = match tokio::time::timeout(limit, check).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow::anyhow!("no end after {limit:?}")),
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
