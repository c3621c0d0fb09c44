//! Figures of one fault, and the report of all: Markdown for people, JSON for programs. Judges
//! only whether aims were met.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use millrace_tests::load::{Board, Kind, Transaction};
use serde_json::{Value, json};

use crate::cases::{Aim, Fault, Story};
use crate::documented::is_unknown_outcome;

/// Of some clients: the longest time without an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pause {
    p50: Duration,
    max: Duration,
}

impl Pause {
    fn of(sorted: &[Duration]) -> Self {
        Pause {
            p50: sorted.get(sorted.len() / 2).copied().unwrap_or_default(),
            max: sorted.last().copied().unwrap_or_default(),
        }
    }

    fn text(self) -> String {
        format!("{} / {}", self.p50.as_millis(), self.max.as_millis())
    }
}

/// Something that is aimed at.
#[derive(Debug)]
struct Goal {
    text: String,
    met: bool,
    /// Missing it is a failure. A time is none: it depends on the machine.
    binding: bool,
}

impl Goal {
    fn binding(text: &str, met: bool) -> Self {
        Goal {
            text: text.to_owned(),
            met,
            binding: true,
        }
    }

    fn time(text: String, met: bool) -> Self {
        Goal {
            text,
            met,
            binding: false,
        }
    }
}

/// A line of the report.
#[derive(Debug)]
pub(crate) struct Figures {
    topology: String,
    fault: Fault,
    statements: u64,
    /// By kind of client, and by code and SQLSTATE.
    errors: BTreeMap<(Kind, String), u64>,
    unknown: u64,
    /// Reads, and what needs a primary.
    reads: Pause,
    writes: Pause,
    /// Until a server took writes again.
    takeover: Option<Duration>,
    /// Until Millrace said that the primary is lost.
    judged: Option<Duration>,
    /// For how long the servers together took no writes: no client can pause for less.
    pub(crate) servers: Option<Duration>,
    /// Transactions that were open when it happened, and those of them that committed.
    open: usize,
    replayed: usize,
    /// Of those whose COMMIT was under way: all, and those that were told that they committed.
    commits: usize,
    settled: usize,
    /// Acknowledged and lost, where replication may lose.
    pub(crate) lost: usize,
    pub(crate) wrong: Vec<String>,
    /// What clients were told that were hit on purpose.
    pub(crate) said: String,
}

impl Figures {
    pub(crate) fn new(
        topology: String,
        fault: Fault,
        story: &Story,
        judged: Option<Duration>,
        board: &Board,
    ) -> Self {
        let mut errors = BTreeMap::new();
        let mut unknown = 0;
        for seen in board.errors.borrow().iter() {
            *errors.entry((seen.kind, seen.name())).or_default() += 1;
            unknown += u64::from(is_unknown_outcome(seen));
        }
        let open = board.transactions.borrow();
        let met = open
            .iter()
            .filter(|t| t.begun < story.struck && t.ended > story.struck);
        // What was sent before the judgement was sent to the server that was lost.
        let lost = story.hit.max(story.struck + judged.unwrap_or_default());
        let (commits, open): (Vec<&Transaction>, Vec<&Transaction>) =
            met.partition(|t| t.commit_sent.is_some_and(|sent| sent < lost));
        let pause = |kinds: &[Kind]| Pause::of(&board.pauses(kinds, story.struck));
        Figures {
            topology,
            fault,
            statements: board.statements.get(),
            errors,
            unknown,
            reads: pause(&[Kind::Reads]),
            writes: pause(&[Kind::Writes, Kind::Transactions]),
            takeover: story.restored.map(|at| at - story.struck),
            judged,
            servers: None,
            open: open.len(),
            replayed: open.iter().filter(|t| t.committed).count(),
            commits: commits.len(),
            settled: commits.iter().filter(|t| t.committed).count(),
            lost: 0,
            wrong: Vec::new(),
            said: String::new(),
        }
    }

    /// Nothing was seen.
    #[cfg(test)]
    fn blank(fault: Fault) -> Self {
        Figures {
            topology: String::new(),
            fault,
            statements: 0,
            errors: BTreeMap::new(),
            unknown: 0,
            reads: Pause::default(),
            writes: Pause::default(),
            takeover: None,
            judged: None,
            servers: None,
            open: 0,
            replayed: 0,
            commits: 0,
            settled: 0,
            lost: 0,
            wrong: Vec::new(),
            said: String::new(),
        }
    }

    fn errors_of(&self, kind: Kind) -> u64 {
        let of = self.errors.iter().filter(|((of, _), _)| *of == kind);
        of.map(|(_, count)| count).sum()
    }

    fn error_text(&self) -> String {
        let parts: Vec<String> = self
            .errors
            .iter()
            .map(|((kind, name), count)| format!("{count} × {name} ({})", kind.as_str()))
            .collect();
        let all = match parts.is_empty() {
            true => "none".to_owned(),
            false => parts.join(", "),
        };
        match self.said.is_empty() {
            true => all,
            false => format!("{all}; {}", self.said),
        }
    }

    /// The aims, and whether they were met.
    fn aims(&self) -> Vec<Goal> {
        let all: u64 = self.errors.values().sum();
        let no_errors = Goal::binding("no error", all == 0);
        match self.fault.aim() {
            Aim::Right => Vec::new(),
            Aim::NoError => vec![no_errors],
            Aim::Planned => {
                let longest = self.writes.max.max(self.reads.max);
                let servers = self.servers.unwrap_or_default();
                let limit = servers + Duration::from_millis(500);
                let second = Duration::from_secs(1);
                let pause = match longest >= second && limit > second {
                    false => Goal::time("pause < 1 s".to_owned(), longest < second),
                    true => Goal::time(
                        format!(
                            "pause ≤ {} ms (the servers themselves took no writes for {} ms)",
                            limit.as_millis(),
                            servers.as_millis()
                        ),
                        longest <= limit,
                    ),
                };
                vec![no_errors, pause]
            }
            Aim::PrimaryLost => {
                let unknown = self
                    .errors
                    .iter()
                    .filter(|((kind, name), _)| *kind == Kind::Writes && name.starts_with("1180/"));
                let unknown: u64 = unknown.map(|(_, count)| count).sum();
                let limit = self.takeover.unwrap_or_default() + Duration::from_millis(500);
                let pause = format!("pause ≤ {} ms", limit.as_millis());
                vec![
                    Goal::binding("reads: no error", self.errors_of(Kind::Reads) == 0),
                    Goal::binding(
                        "writes: only unknown outcomes",
                        self.errors_of(Kind::Writes) == unknown,
                    ),
                    Goal::binding("95 % replayed", self.replayed * 100 >= self.open * 95),
                    Goal::time(pause, self.writes.max <= limit),
                ]
            }
        }
    }

    /// Aims whose missing is a failure.
    pub(crate) fn missed(&self) -> Vec<String> {
        let aims = self.aims().into_iter();
        aims.filter(|aim| aim.binding && !aim.met)
            .map(|aim| {
                format!(
                    "aim missed: {}; errors: {}; {} of {} open transactions committed",
                    aim.text,
                    self.error_text(),
                    self.replayed,
                    self.open
                )
            })
            .collect()
    }

    fn aim_text(&self) -> String {
        let parts: Vec<String> = self
            .aims()
            .into_iter()
            .map(|aim| match aim.met {
                true => format!("{}: met", aim.text),
                false => format!("**{}: missed**", aim.text),
            })
            .collect();
        parts.join("; ")
    }

    fn line(&self) -> String {
        let ms = |time: Option<Duration>| {
            time.map_or_else(|| "–".to_owned(), |time| time.as_millis().to_string())
        };
        let wrong = match (self.wrong.is_empty(), self.lost) {
            (true, 0) => "nothing".to_owned(),
            (true, lost) => {
                format!("{lost} acknowledged writes lost, as asynchronous replication may")
            }
            (false, _) => format!("**{} findings**", self.wrong.len()),
        };
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} of {} | {} of {} | {wrong} | {} |",
            self.topology,
            self.fault.name(),
            self.statements,
            self.error_text(),
            self.reads.text(),
            self.writes.text(),
            ms(self.takeover),
            ms(self.judged),
            ms(self.servers),
            self.replayed,
            self.open,
            self.settled,
            self.commits,
            self.aim_text(),
        )
    }

    fn json(&self) -> Value {
        let errors: Vec<Value> = self
            .errors
            .iter()
            .map(|((kind, name), count)| json!({"clients": kind.as_str(), "error": name, "count": count}))
            .collect();
        let ms = |time: Duration| time.as_millis() as u64;
        let pause = |pause: Pause| json!({"p50_ms": ms(pause.p50), "max_ms": ms(pause.max)});
        let aims: Vec<Value> = self
            .aims()
            .into_iter()
            .map(|aim| json!({"aim": aim.text, "met": aim.met, "binding": aim.binding}))
            .collect();
        json!({
            "topology": self.topology,
            "fault": self.fault.name(),
            "statements": self.statements,
            "errors": errors,
            "unknown_outcomes": self.unknown,
            "reads": pause(self.reads),
            "writes": pause(self.writes),
            "takeover_ms": self.takeover.map(ms),
            "judged_ms": self.judged.map(ms),
            "servers_pause_ms": self.servers.map(ms),
            "open_transactions": self.open,
            "replayed": self.replayed,
            "commits_under_way": self.commits,
            "commits_settled": self.settled,
            "lost": self.lost,
            "wrong": self.wrong,
            "hit_on_purpose": self.said,
            "aims": aims,
        })
    }
}

const HEAD: &str = "\
| servers | fault | statements | errors seen by clients | reads' pause, p50 / max ms | writes' pause, p50 / max ms \
| servers ready after ms | judged after ms | servers took no writes for ms | open transactions that committed | COMMITs under way that were told so | wrong | aims |\n\
|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

/// All lines so far as one table.
pub(crate) fn markdown(all: &[Figures]) -> String {
    let mut text = HEAD.to_owned();
    for figures in all {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", figures.line());
    }
    text
}

/// Writes the series' report into `MILLRACE_FAULTS_OUT`, where that is set, and shows it.
pub(crate) fn publish(series: &str, all: &[Figures]) -> anyhow::Result<()> {
    let table = markdown(all);
    eprintln!("\n{table}");
    let Some(folder) = std::env::var_os("MILLRACE_FAULTS_OUT").map(PathBuf::from) else {
        return Ok(());
    };
    std::fs::create_dir_all(&folder)?;
    let rows: Vec<Value> = all.iter().map(Figures::json).collect();
    std::fs::write(folder.join(format!("{series}.md")), table)?;
    let json = serde_json::to_vec_pretty(&rows)?;
    std::fs::write(folder.join(format!("{series}.json")), json)?;
    Ok(())
}

#[test]
fn aims_of_errors_and_replays_fail_a_run_and_aims_of_time_do_not() {
    let figures = |fault: Fault, errors: &[(Kind, &str)], replayed: usize| {
        let mut story = Figures::blank(fault);
        story.errors = errors
            .iter()
            .map(|(kind, name)| ((*kind, (*name).to_owned()), 1))
            .collect();
        story.open = 20;
        story.replayed = replayed;
        story.writes.max = Duration::from_secs(60);
        story
    };
    let missed = |fault, errors: &[(Kind, &str)], replayed| {
        let missed = figures(fault, errors, replayed).missed();
        missed.len()
    };
    let unknown = (Kind::Writes, "1180/08007");
    let lost = (Kind::Transactions, "1213/40001");
    assert_eq!(missed(Fault::Switchover, &[], 0), 0);
    assert_eq!(missed(Fault::Switchover, &[lost], 20), 1);
    assert_eq!(missed(Fault::ReplicaKilled, &[unknown], 20), 1);
    assert_eq!(missed(Fault::PrimaryKilled, &[unknown, lost], 19), 0);
    assert_eq!(missed(Fault::PrimaryKilled, &[unknown], 18), 1);
    assert_eq!(
        missed(Fault::PrimaryKilled, &[(Kind::Reads, "1158/08S01")], 20),
        1
    );
    assert_eq!(
        missed(Fault::PrimaryKilled, &[(Kind::Writes, "1105/HY000")], 20),
        1
    );
    assert_eq!(missed(Fault::TwoWritable, &[lost], 0), 0);
    let text = figures(Fault::Switchover, &[], 0).aim_text();
    assert_eq!(text, "no error: met; **pause < 1 s: missed**");
}
