//! What a person sees: the live table, the lines where there is no terminal, the summary, how to
//! connect. Makes text; decides nothing.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use millrace_sandbox::{APP, ClusterInfo};

use super::observer::{Look, ServerWork};
use super::ports::Ports;
use super::proxy::ADMIN_PASSWORD;
use super::tally::Totals;

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(3);
/// Columns of the bar for the share of reads.
const BAR: usize = 20;

/// The live view: redrawn in place on a terminal, else a line now and then.
pub(super) struct View {
    terminal: bool,
    began: Instant,
    last: Option<Look>,
    drawn_lines: usize,
    line_due: Instant,
}

impl View {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        View {
            terminal: std::io::stdout().is_terminal(),
            began: now,
            last: None,
            drawn_lines: 0,
            line_due: now + LINE_EVERY,
        }
    }

    /// `totals`: what the workload has counted; none while there is none.
    pub(super) fn show(&mut self, look: &Look, totals: Option<&Totals>) {
        let Some(last) = self.last.as_ref() else {
            self.last = Some(look.clone());
            return;
        };
        let seconds = self.began.elapsed().as_secs();
        if self.terminal {
            let text = table(last, look, totals, seconds);
            self.redraw(&text);
        } else if look.at >= self.line_due {
            say(&line(last, look, totals, seconds));
            self.line_due = look.at + LINE_EVERY;
        } else {
            return;
        }
        self.last = Some(look.clone());
    }

    /// Goes back up over what was drawn last, and clears each line before it is written again.
    /// Lines are not wrapped meanwhile, or there would be more of them than counted.
    fn redraw(&mut self, text: &str) {
        let mut out = "\x1b[?7l".to_owned();
        if self.drawn_lines > 0 {
            let _ = write!(out, "\x1b[{}A", self.drawn_lines);
        }
        for line in text.lines() {
            let _ = writeln!(out, "\x1b[2K{line}");
        }
        out += "\x1b[J\x1b[?7h";
        self.drawn_lines = text.lines().count();
        print!("{out}");
        // A closed terminal leaves nobody to tell.
        let _ = std::io::stdout().flush();
    }
}

/// Prints a line; a reader that has gone away is no reason to stop.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// With a workload the rates of the last moment; without one, each statement counts.
fn table(last: &Look, look: &Look, totals: Option<&Totals>, seconds: u64) -> String {
    let (clients, connections) = (look.clients, look.connections());
    let mut text =
        format!("{seconds:>4} s   {clients} clients on {connections} server connections\n\n");
    let unit = if totals.is_some() { "/s" } else { "" };
    let head = |what: &str| format!("{what}{unit}");
    let _ = writeln!(
        text,
        "  server                role     {:>8} {:>9} {:>8}  share of reads",
        head("reads"),
        head("writes"),
        head("other")
    );
    let reads = look.reads();
    for (before, now) in last.servers.iter().zip(&look.servers) {
        let show = |before, now| match totals {
            Some(_) => per_second(before, now, last, look),
            None => now,
        };
        let share = share(now.reads, reads);
        let _ = writeln!(
            text,
            "  {:<3} {:<17} {:<8} {:>8} {:>9} {:>8}  {} {:>3.0} %",
            now.name,
            now.address,
            now.role,
            show(before.reads, now.reads),
            show(before.writes, now.writes),
            show(before.other, now.other),
            bar(share),
            share * 100.0
        );
    }
    if let Some(totals) = totals {
        let _ = write!(text, "\n  {}", counts(totals));
    }
    text
}

fn line(last: &Look, look: &Look, totals: Option<&Totals>, seconds: u64) -> String {
    let mut text = format!("{seconds:>4} s");
    for (before, now) in last.servers.iter().zip(&look.servers) {
        let rate = |before, now| per_second(before, now, last, look);
        let _ = write!(
            text,
            " | {} {}: {} reads/s, {} writes/s",
            now.name,
            now.role,
            rate(before.reads, now.reads),
            rate(before.writes, now.writes)
        );
    }
    let (clients, connections) = (look.clients, look.connections());
    let _ = write!(text, " | {clients} clients on {connections} connections");
    if let Some(totals) = totals {
        let _ = write!(text, " | {} wrong, {} errors", totals.wrong, totals.errors);
    }
    text
}

fn per_second(before: u64, now: u64, last: &Look, look: &Look) -> u64 {
    let seconds = (look.at - last.at).as_secs_f64();
    (now.saturating_sub(before) as f64 / seconds.max(0.001)).round() as u64
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn bar(share: f64) -> String {
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    "█".repeat(full) + &"·".repeat(BAR - full)
}

fn counts(totals: &Totals) -> String {
    format!(
        "{} statements, {} of them prepared; {} answers checked: {} wrong, {} errors",
        totals.statements, totals.prepared, totals.answers_checked, totals.wrong, totals.errors
    )
}

/// What ran where, over the whole time.
pub(super) fn summary(
    look: &Look,
    connections_max: u64,
    clients: u64,
    totals: &Totals,
    seconds: f64,
) -> String {
    let mut text = format!(
        "\nIn {seconds:.0} s, {clients} clients ran {} statements ({:.0} a second) on at most \
         {connections_max} server connections.\n\n",
        totals.statements,
        totals.statements as f64 / seconds.max(0.001)
    );
    text += "  server                role         reads    writes     other  share of reads   SELECTs by its own count\n";
    let reads = look.reads();
    for server in &look.servers {
        text += &summary_row(server, reads);
    }
    text += "\n  The primary's reads are those in transactions that write, and those of own writes \
             that no\n  replica had in time.\n";
    let _ = write!(text, "\n  {}\n", counts(totals));
    for example in &totals.examples {
        let _ = writeln!(text, "  ! {example}");
    }
    text += if totals.all_right() {
        "  Every statement came out right."
    } else {
        "  NOT every statement came out right."
    };
    text
}

fn summary_row(server: &ServerWork, reads: u64) -> String {
    format!(
        "  {:<3} {:<17} {:<8} {:>9} {:>9} {:>9}  {:>12.0} % {:>26}\n",
        server.name,
        server.address,
        server.role,
        server.reads,
        server.writes,
        server.other,
        share(server.reads, reads) * 100.0,
        server.own_selects
    )
}

/// How to try it by hand.
pub(super) fn how_to_connect(info: &ClusterInfo, ports: Ports) -> String {
    let client = match info.family {
        millrace_sandbox::Family::MariaDb => "mariadb",
        millrace_sandbox::Family::MySql => "mysql",
    };
    let command = |port| {
        format!(
            "{client} -h127.0.0.1 -P{port} -u{} -p{} app",
            APP.user, APP.password
        )
    };
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "millrace".to_owned());
    format!(
        "Connect with any client:\n\n  \
         {}    reads to replicas, writes to the primary\n  \
         {}    everything to the primary\n  \
         {}    everything to replicas\n\n\
         Metrics: http://127.0.0.1:{}/metrics\n\
         Operate: {client} -h127.0.0.1 -P{} -uadmin -p{ADMIN_PASSWORD}    (SHOW HELP)\n\
         Break it: {program} sandbox kill s2 --dir {dir}\n\
         Mend it:  {program} sandbox start s2 --dir {dir}",
        command(ports.auto),
        command(ports.primary),
        command(ports.replicas),
        ports.http,
        ports.admin,
        dir = info.dir.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: Instant, reads: u64) -> Look {
        let server = |name: &str, role, reads| ServerWork {
            name: name.to_owned(),
            address: "127.0.0.1:1".to_owned(),
            role,
            reads,
            ..ServerWork::default()
        };
        Look {
            at,
            clients: 7,
            servers: vec![
                server("s1", "primary", reads),
                server("s2", "replica", 3 * reads),
            ],
        }
    }

    #[test]
    fn rates_and_shares_are_of_the_time_between_two_looks() {
        let begin = Instant::now();
        let (last, now) = (look(begin, 100), look(begin + Duration::from_secs(2), 300));
        let text = table(&last, &now, Some(&Totals::default()), 2);
        let row = text.lines().find(|line| line.contains("s2")).unwrap();
        assert!(row.contains(" 300 ") && row.ends_with(" 75 %"), "{row}");
        let text = table(&last, &now, None, 2);
        assert!(
            text.lines()
                .any(|line| line.contains("s2") && line.contains(" 900 ")),
            "{text}"
        );
        let text = line(&last, &now, None, 2);
        assert!(text.contains("s1 primary: 100 reads/s"), "{text}");
    }

    #[test]
    fn a_bar_has_always_the_same_width() {
        for share in [0.0, 0.3, 1.0] {
            assert_eq!(bar(share).chars().count(), BAR);
        }
    }
}
