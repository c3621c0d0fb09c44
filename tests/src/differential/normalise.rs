//! What is left out of the comparison, each rule with its reason. Nothing else may differ.

use std::sync::LazyLock;

use regex::Regex;

use super::script::{Mask, View};
use crate::wire::cap;

/// Rules for every reply.
static ALWAYS: LazyLock<Vec<Mask>> = LazyLock::new(|| {
    [
        (
            r"track\[gtids:[^\]]*\]",
            "track[gtids:...]",
            "a transaction's GTID names its server and its number in that server's history",
        ),
        (
            r"track\[variable:last_gtid=[^\],]+",
            "track[variable:last_gtid=...",
            "as above, MariaDB's way",
        ),
        (
            r"track\[variable:statement_id=\d+",
            "track[variable:statement_id=N",
            "MySQL counts the statements of the whole server",
        ),
        (
            r#"info="A?\\+x01[0-9A-F]{64}""#,
            "info=\"\"",
            "MariaDB 11.8 vouches for its certificate at every login, Millrace to clients with TLS",
        ),
        (
            r"((?:statement|handler) \()\d+\)",
            "${1}N)",
            "MariaDB numbers statements over the whole server, and the number is only a handle",
        ),
    ]
    .into_iter()
    .filter_map(|(regex, text, reason)| {
        let regex = Regex::new(regex).ok()?;
        Some(Mask {
            regex,
            text: text.to_owned(),
            reason: reason.to_owned(),
        })
    })
    .collect()
});

/// What says nothing to a client with these capabilities.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meaningless {
    /// MariaDB numbers packets anew after each result of several where they are compressed, and
    /// then only the compressed packets' own numbers count.
    numbers: bool,
    /// The flag for session tracking, for a client that did not ask for it: servers set it in some
    /// packets and not in others.
    state_flag: bool,
    /// Whether an index was used, in answers from MySQL's data dictionary: how its tables are joined
    /// hangs on statistics that each server gathers in its own time.
    index_flags: bool,
}

impl Meaningless {
    /// To a client with these capabilities, in the answer to `step`.
    pub(crate) fn to(capabilities: u64, step: &str) -> Self {
        let step = step.trim_start().to_ascii_lowercase();
        Self {
            index_flags: ["show", "desc"].iter().any(|word| step.starts_with(word))
                || step.contains("information_schema"),
            numbers: capabilities & (cap::COMPRESS | cap::ZSTD) != 0,
            state_flag: capabilities & cap::SESSION_TRACK == 0,
        }
    }

    fn drop_from(self, mut line: String) -> String {
        if self.state_flag {
            line = line.replace("|STATE_CHANGED", "");
        }
        if self.index_flags {
            line = line.replace("|NO_INDEX", "").replace("|NO_GOOD_INDEX", "");
        }
        let is_packet = line.get(3..4) == Some(" ") && line[..3].trim().parse::<u8>().is_ok();
        if self.numbers && is_packet {
            line.replace_range(..3, "  .");
        }
        line
    }
}

/// Applies a step's view and the rules to the printed lines of its reply.
pub(crate) fn apply(
    lines: Vec<String>,
    view: &View,
    masks: &[Mask],
    ids: &[(u32, u32)],
    meaningless: Meaningless,
) -> Vec<String> {
    if view.ignore {
        return vec!["(not compared)".to_owned()];
    }
    let mut out: Vec<String> = lines
        .into_iter()
        .map(|line| meaningless.drop_from(one(line, view, masks, ids)))
        .collect();
    if view.shape {
        out.retain(|line| line != "row");
    }
    if view.sort {
        sort_rows(&mut out);
    }
    out
}

fn is_row(line: &str) -> bool {
    line.get(4..)
        .is_some_and(|l| l.starts_with("row |") || l.starts_with("binary row |"))
}

fn one(mut line: String, view: &View, masks: &[Mask], ids: &[(u32, u32)]) -> String {
    if is_row(&line) {
        if view.shape {
            return "row".to_owned();
        }
        if view.connection_ids {
            line = replace_ids(&line, ids);
        }
        if !view.columns.is_empty() {
            line = drop_columns(&line, &view.columns);
        }
    }
    if line.contains(" ERROR ") {
        line = replace_ids_in_error(&line, ids);
    }
    if view.shape {
        line = shape_of(&line);
    }
    line = sort_variables(line);
    for mask in ALWAYS.iter().chain(masks) {
        if mask.regex.is_match(&line) {
            line = mask
                .regex
                .replace_all(&line, mask.text.as_str())
                .into_owned();
        }
    }
    line
}

/// Tracked variables in the order of their names: the servers report them in the order of a hash
/// table whose keys are addresses, so it differs from one server process to the next.
fn sort_variables(line: String) -> String {
    const MARK: &str = " track[variable:";
    let Some(start) = line.find(MARK) else {
        return line;
    };
    let (head, tail) = line.split_at(start);
    let mut entries: Vec<&str> = tail.split_inclusive(']').collect();
    let variables = entries.iter().take_while(|e| e.starts_with(MARK)).count();
    entries[..variables].sort_unstable();
    format!("{head}{}", entries.concat())
}

/// Without what depends on the rows: the number of the packet, the length of a column.
fn shape_of(line: &str) -> String {
    let body = line.get(4..).unwrap_or(line);
    match body.strip_prefix("column ") {
        Some(column) => {
            let words: Vec<&str> = column
                .split(' ')
                .filter(|w| !w.starts_with("length="))
                .collect();
            format!("column {}", words.join(" "))
        }
        None => body.to_owned(),
    }
}

fn cells(line: &str) -> (&str, Vec<String>) {
    let bar = line.find('|').unwrap_or(line.len());
    let (head, body) = line.split_at(bar);
    let body = body.trim_start_matches('|');
    let body = body.strip_suffix('|').unwrap_or(body);
    (head, body.split('|').map(str::to_owned).collect())
}

fn replace_ids(line: &str, ids: &[(u32, u32)]) -> String {
    let (head, mut cells) = cells(line);
    for cell in &mut cells {
        if let Some((session, _)) = ids.iter().find(|(_, id)| *cell == id.to_string()) {
            *cell = format!("<connection id of {session}>");
        }
    }
    format!("{head}|{}|", cells.join("|"))
}

/// "Unknown thread id: 17" names a connection: it must be the one that the client knows.
fn replace_ids_in_error(line: &str, ids: &[(u32, u32)]) -> String {
    let named = |word: &str| {
        let (session, _) = ids.iter().find(|(_, id)| word == id.to_string())?;
        Some(format!("<connection id of {session}>"))
    };
    // The error's own number is none.
    let mut before = "";
    let words: Vec<String> = line
        .split(' ')
        .map(|word| {
            let is_code = std::mem::replace(&mut before, word) == "ERROR";
            let name = named(word).filter(|_| !is_code);
            name.unwrap_or_else(|| word.to_owned())
        })
        .collect();
    words.join(" ")
}

fn drop_columns(line: &str, columns: &[usize]) -> String {
    let (head, mut cells) = cells(line);
    for column in columns {
        if let Some(cell) = cells.get_mut(column - 1) {
            "...".clone_into(cell);
        }
    }
    format!("{head}|{}|", cells.join("|"))
}

/// Sorts each run of rows, leaving the packets' numbers where they are.
fn sort_rows(lines: &mut [String]) {
    let mut i = 0;
    while i < lines.len() {
        let run = lines[i..].iter().take_while(|l| is_row(l)).count();
        let mut rows: Vec<String> = lines[i..i + run]
            .iter()
            .map(|l| l[4..].to_owned())
            .collect();
        rows.sort();
        for (line, row) in lines[i..i + run].iter_mut().zip(rows) {
            *line = format!("{}{row}", &line[..4]);
        }
        i += run.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modern() -> Meaningless {
        Meaningless::to(cap::MODERN, "SELECT 1")
    }

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn rows_sort_and_numbers_stay() {
        let view = View {
            sort: true,
            ..View::default()
        };
        let out = apply(
            lines(&["  1 columns 1", "  3 row |b|", "  4 row |a|", "  5 end"]),
            &view,
            &[],
            &[],
            modern(),
        );
        assert_eq!(
            out,
            ["  1 columns 1", "  3 row |a|", "  4 row |b|", "  5 end"]
        );
    }

    #[test]
    fn ids_and_columns() {
        let view = View {
            connection_ids: true,
            columns: vec![2],
            ..View::default()
        };
        let out = apply(
            lines(&["  3 row |17|x|170|"]),
            &view,
            &[],
            &[(1, 17)],
            modern(),
        );
        assert_eq!(out, ["  3 row |<connection id of 1>|...|170|"]);
    }

    #[test]
    fn tracked_variables_are_sorted() {
        let line =
            "  1 OK track[variable:b=1] track[variable:a=2] track[schema:x] track[variable:0=1]";
        let out = apply(lines(&[line]), &View::default(), &[], &[], modern());
        assert_eq!(
            out,
            ["  1 OK track[variable:a=2] track[variable:b=1] track[schema:x] track[variable:0=1]"]
        );
    }

    #[test]
    fn gtids_are_masked() {
        let out = apply(
            lines(&["  1 OK track[gtids:aa:1] track[state:1]"]),
            &View::default(),
            &[],
            &[],
            modern(),
        );
        assert_eq!(out, ["  1 OK track[gtids:...] track[state:1]"]);
    }
}
