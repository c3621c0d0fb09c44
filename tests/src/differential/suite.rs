//! Runs cases on both sides, step by step, and reports what differs.

use std::path::Path;

use anyhow::{Context, bail};

use super::noise::{self, Noise};
use super::normalise::{self, Meaningless};
use super::player::{Player, Profile};
pub use super::script::Case;
use super::script::{self, Family};
use crate::wire::{Connection, Login, Target};

/// The tables and accounts that every case may use, on both primaries.
const SHARED_SETUP: &str = include_str!("../../cases/setup.sql");

/// What differs in one step.
#[derive(Debug, Clone)]
pub struct Difference {
    pub line: usize,
    pub step: String,
    pub direct: Vec<String>,
    pub through: Vec<String>,
}

/// The outcome of one case.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    pub file: String,
    pub steps: usize,
    pub differences: Vec<Difference>,
    /// The case itself is broken.
    pub error: Option<String>,
}

/// Both sides.
#[derive(Debug, Clone)]
pub struct Sides {
    pub family: Family,
    pub direct: Target,
    pub through: Target,
    pub profile: Profile,
}

impl Outcome {
    pub fn passed(&self) -> bool {
        self.differences.is_empty() && self.error.is_none()
    }

    /// The differences as text: `-` lines are direct, `+` lines through.
    pub fn report(&self) -> String {
        let mut out = format!("case {} ({})\n", self.name, self.file);
        if let Some(error) = &self.error {
            out += &format!("  broken case: {error}\n");
        }
        for d in &self.differences {
            out += &format!("  line {}: {}\n", d.line, d.step);
            for line in diff(&d.direct, &d.through) {
                out += &format!("    {line}\n");
            }
        }
        out
    }
}

/// A plain line diff: common head and tail are left out.
fn diff(left: &[String], right: &[String]) -> Vec<String> {
    let head = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    let (l, r) = (&left[head..], &right[head..]);
    let tail = l
        .iter()
        .rev()
        .zip(r.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let mut out = Vec::new();
    if head > 0 {
        out.push(format!("  ({head} equal lines)"));
    }
    out.extend(
        l[..l.len() - tail]
            .iter()
            .take(12)
            .map(|s| format!("- {s}")),
    );
    out.extend(
        r[..r.len() - tail]
            .iter()
            .take(12)
            .map(|s| format!("+ {s}")),
    );
    out
}

/// Reads every `*.case` file of a folder, in the order of their names.
pub fn load(folder: &Path) -> anyhow::Result<Vec<Case>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "case"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let name = path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let text = std::fs::read_to_string(&path)?;
        cases.extend(script::parse(&name, &text)?);
    }
    Ok(cases)
}

/// Makes accounts, shared tables and the cases' databases. `admin` is a primary, with a login
/// that may do everything.
pub async fn prepare(admin: &Login, family: Family, cases: &[Case]) -> anyhow::Result<()> {
    let mut connection = Connection::open(admin)
        .await
        .context("cannot log in for the set-up")?;
    let tag = format!("--{family}: ");
    for line in SHARED_SETUP.lines() {
        let sql = line.strip_prefix(&tag).unwrap_or(line);
        if !sql.is_empty() && !sql.starts_with("--") {
            connection.expect(sql).await?;
        }
    }
    for case in cases.iter().filter(|c| c.applies_to(family)) {
        let database = case.database();
        connection
            .expect(&format!("DROP DATABASE IF EXISTS {database}"))
            .await?;
        connection
            .expect(&format!("CREATE DATABASE {database} CHARACTER SET utf8mb4"))
            .await?;
        connection.expect(&format!("USE {database}")).await?;
        for sql in &case.setup {
            let sql = sql.replace("{db}", &database);
            connection
                .expect(&sql)
                .await
                .with_context(|| format!("set-up of case {}", case.name))?;
        }
    }
    connection.quit().await;
    Ok(())
}

/// The logins of the noise: mostly the cases' own account, so that connections are shared.
pub fn noise_logins(sides: &Sides) -> Vec<Login> {
    let login = |user: &str, password: &str| {
        let mut login = Login::new(sides.through.clone(), user, password);
        login.capabilities = sides.profile.capabilities;
        login.tls = sides.profile.tls;
        login.charset = sides.profile.charset;
        login
    };
    let own = login(&sides.profile.user, &sides.profile.password);
    vec![
        own.clone(),
        own.clone(),
        own,
        login("t_other", "other-secret"),
    ]
}

/// Starts the noise on the side of the proxy.
pub fn start_noise(sides: &Sides, clients: u64) -> Noise {
    let _ = noise::DATABASE;
    Noise::start(&noise_logins(sides), clients, sides.family)
}

/// Runs one case on both sides.
pub async fn run(sides: &Sides, case: &Case, noise: Option<&Noise>) -> Outcome {
    let mut outcome = Outcome {
        name: case.name.clone(),
        file: case.file.clone(),
        steps: case.steps.len(),
        differences: Vec::new(),
        error: None,
    };
    let direct = play(case, sides.direct.clone(), &sides.profile, None).await;
    let through = play(case, sides.through.clone(), &sides.profile, noise).await;
    let (direct, through) = match (direct, through) {
        (Ok(direct), Ok(through)) => (direct, through),
        (Err(e), _) => {
            outcome.error = Some(format!("direct: {e:#}"));
            return outcome;
        }
        (_, Err(e)) => {
            outcome.error = Some(format!("through: {e:#}"));
            return outcome;
        }
    };
    for (i, (direct, through)) in direct.into_iter().zip(through).enumerate() {
        if direct != through {
            let (line, step) = case
                .steps
                .get(i)
                .map_or((0, "(end)".to_owned()), |s| (s.line, shorten(&s.text)));
            outcome.differences.push(Difference {
                line,
                step,
                direct,
                through,
            });
        }
    }
    outcome
}

fn shorten(text: &str) -> String {
    text.chars().take(160).collect()
}

/// The printed and normalised reply of each step, and of the end.
async fn play(
    case: &Case,
    target: Target,
    profile: &Profile,
    noise: Option<&Noise>,
) -> anyhow::Result<Vec<Vec<String>>> {
    let mut player = Player::new(case, target, profile.clone());
    let mut out = Vec::with_capacity(case.steps.len() + 1);
    for step in &case.steps {
        let lines = player.step(step).await?;
        let ids = player.connection_ids();
        let meaningless = Meaningless::to(profile.capabilities, &step.text);
        out.push(normalise::apply(
            lines,
            &step.view,
            &case.masks,
            &ids,
            meaningless,
        ));
        if let Some(noise) = noise {
            noise.round().await;
        }
    }
    out.push(player.finish().await);
    Ok(out)
}

/// Prints one side's transcript of a case.
pub async fn transcript(sides: &Sides, case: &Case) -> anyhow::Result<String> {
    let lines = play(case, sides.direct.clone(), &sides.profile, None).await?;
    let mut out = format!("== {}\n", case.name);
    for (i, reply) in lines.iter().enumerate() {
        let step = case.steps.get(i).map_or_else(
            || "(end)".to_owned(),
            |s| format!("{}> {}", s.session, shorten(&s.text)),
        );
        out += &format!("{step}\n");
        for line in reply {
            out += &format!("    {line}\n");
        }
    }
    Ok(out)
}

/// Chooses cases by substrings of `file/name`; none chooses all.
pub fn select(cases: Vec<Case>, family: Family, filters: &[String]) -> anyhow::Result<Vec<Case>> {
    let chosen: Vec<Case> = cases
        .into_iter()
        .filter(|c| c.applies_to(family))
        .filter(|c| {
            filters.is_empty()
                || filters
                    .iter()
                    .any(|f| format!("{}/{}", c.file, c.name).contains(f.as_str()))
        })
        .collect();
    if chosen.is_empty() {
        bail!("no case matches");
    }
    Ok(chosen)
}
