//! The default file and the reference page, from what is declared of each key. Reads and writes no file.

use std::collections::HashMap;
use std::fmt::Write;

use crate::key::{Key, Row, Sample};
use crate::keys;
use crate::model::no_address;
use crate::rules::{self, Names, RuleDraft, SetDraft};
use crate::value::show_text;
use crate::{Account, Admin, Config, Listener, Secret, Server};

/// Comments in the default file are not wider, in characters.
const WIDTH: usize = 100;

/// A table as documents show it.
struct Part {
    /// `[pool]`; empty for the keys before all tables.
    header: String,
    doc: &'static str,
    rows: Vec<Row>,
    /// The default file has it in force.
    is_given: bool,
    /// What follows it in the default file.
    more: &'static str,
}

impl Part {
    fn new<T>(header: &str, doc: &'static str, keys: &[Key<'_, T>], default: &T) -> Part {
        Part {
            header: header.to_owned(),
            doc,
            rows: keys.iter().flat_map(|key| key.rows(default)).collect(),
            is_given: true,
            more: "",
        }
    }

    /// Commented out in the default file.
    fn left_out(self) -> Part {
        Part {
            is_given: false,
            ..self
        }
    }
}

/// Every table, in the order of the default file.
fn parts() -> Vec<Part> {
    let config = Config::default();
    let listener = Listener::at(no_address());
    let server = Server::at(no_address());
    let mut parts = vec![
        Part::new("", "", &keys::root(), &config),
        Part::new("[[listen]]", keys::LISTEN, &keys::listen(), &listener),
        Part {
            more: "[[server]]\naddress = \"127.0.0.1:3307\"\n\n[[server]]\naddress = \"127.0.0.1:3308\"\n\n",
            ..Part::new("[[server]]", keys::SERVER, &keys::server(), &server)
        },
    ];
    for table in keys::tables() {
        let header = format!("[{}]", table.name);
        parts.push(Part::new(&header, table.doc, &table.keys, &config));
        if table.name == "discovery" {
            let translate = Part::new::<()>("[discovery.translate]", keys::TRANSLATE, &[], &());
            parts.push(Part {
                more: "#\"10.0.0.1:3306\" = \"127.0.0.1:13306\"\n\n",
                ..translate.left_out()
            });
        }
    }
    let admin = Admin::new(Secret::new(Vec::new()));
    parts.push(Part::new("[admin]", keys::ADMIN, &keys::admin(), &admin).left_out());
    let account = Account::default();
    parts.push(Part::new("[[account]]", keys::ACCOUNT, &keys::account(), &account).left_out());
    let set = rules::set_keys(&[]);
    let part = Part::new(
        "[[server_set]]",
        rules::SERVER_SET,
        &set,
        &SetDraft::default(),
    );
    parts.push(part.left_out());
    let sets = HashMap::new();
    let names = Names {
        sets: &sets,
        listeners: &[],
    };
    let mut rule = vec![rules::name_key()];
    rule.extend(rules::when_keys(names));
    rule.extend(rules::then_keys(names));
    rule.push(rules::continue_key());
    parts.push(Part::new("[[rule]]", rules::RULE, &rule, &RuleDraft::none()).left_out());
    parts
}

impl Config {
    /// `deploy/millrace.toml`: every key, commented out where it shows its default.
    pub fn default_file() -> String {
        let mut out = comment(
            "Millrace's configuration, with every key. What is commented out shows the default, or an example where \
             there is none. Only [[listen]], [[server]] and, with several servers, [monitor] are needed. \
             docs/configuration.md has the same as a page.\n\
             Durations are written \"250us\", \"500ms\", \"10s\", \"5m\", \"1h\"; sizes \"512KiB\", \"64MiB\", \"1GiB\". \
             Relative paths are relative to this file's folder. Check a file with `millrace check FILE`.",
        );
        out.push('\n');
        for part in parts() {
            write_part(&mut out, &part);
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }

    /// `docs/configuration.md`: the same as tables.
    pub fn reference() -> String {
        let mut out = String::from(HEAD);
        for part in parts() {
            let _ = match &*part.header {
                "" => write!(out, "\n## Before all tables\n\n"),
                header => write!(out, "\n## `{header}`\n\n{}", paragraphs(part.doc)),
            };
            if part.rows.is_empty() {
                out.pop();
                continue;
            }
            out.push_str("| key | takes | default | meaning |\n|---|---|---|---|\n");
            for row in &part.rows {
                let default = match (&*row.default, row.is_required) {
                    (_, true) => "required".to_owned(),
                    ("", false) => String::new(),
                    (default, false) => format!("`{}`", quoted(row, default)),
                };
                let followed = match row.is_followed {
                    true => " Read again on SIGHUP.",
                    false => "",
                };
                let (takes, doc) = (in_cell(&row.takes), in_cell(&linked(row.doc)));
                let name = row.name;
                let _ = writeln!(out, "| `{name}` | {takes} | {default} | {doc}{followed} |");
            }
        }
        out
    }
}

const HEAD: &str = "# Configuration

Made from what `crates/config` declares of each key, like [deploy/millrace.toml](../deploy/millrace.toml), which has \
the same in the form of a file.

- Only `[[listen]]`, `[[server]]` and, with several servers, `[monitor]` are needed.
- An unknown key or a bad value is an error. `millrace check FILE` names all of them at once, with their lines.
- Durations are written `\"250us\"`, `\"500ms\"`, `\"10s\"`, `\"5m\"`, `\"1h\"`; sizes `\"512KiB\"`, `\"64MiB\"`, `\"1GiB\"`.
- Addresses are `\"host:port\"`, `\"[v6]:port\"`, or the absolute path of a Unix socket.
- Relative paths are relative to the file's folder.
- Passwords never stand in the file: it names a file or an environment variable.
- A change takes a restart, unless it says here that it is read again on SIGHUP. The log then names the keys that \
have changed and take a restart.
- `SHOW CONFIG` of the [admin listener](admin.md) lists the values in force.
";

fn write_part(out: &mut String, part: &Part) {
    if !part.doc.is_empty() {
        out.push_str(&comment(part.doc));
    }
    let off = if part.is_given { "" } else { "#" };
    if !part.header.is_empty() {
        let _ = writeln!(out, "{off}{}", part.header);
    }
    for (number, row) in part.rows.iter().enumerate() {
        let takes = bounds(&row.takes);
        let blank = if number == 0 { "" } else { "\n" };
        let _ = write!(out, "{blank}{}", comment(&format!("{}{takes}", row.doc)));
        let (off, value) = match row.sample {
            Sample::Given(value) => (off, value.to_owned()),
            Sample::Example(value) => ("#", value.to_owned()),
            Sample::Default => ("#", row.default.clone()),
        };
        let _ = writeln!(out, "{off}{} = {}", row.name, quoted(row, &value));
    }
    if !part.rows.is_empty() {
        out.push('\n');
    }
    out.push_str(part.more);
}

/// What a key takes, as a sentence behind its own; nothing where that goes without saying.
fn bounds(takes: &str) -> String {
    let is_said = takes.contains('"') || takes.contains(|c: char| c.is_ascii_digit());
    let mut chars = takes.chars();
    match chars.next().filter(|_| is_said) {
        Some('"') => format!(" Takes {takes}."),
        Some(first) => format!(" {}{}.", first.to_uppercase(), chars.as_str()),
        None => String::new(),
    }
}

fn quoted(row: &Row, value: &str) -> String {
    if row.is_bare {
        value.to_owned()
    } else {
        show_text(value)
    }
}

/// As comment lines. Lines of the text stay apart; those that are too long are broken between words.
fn comment(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut width = 0;
        for word in line.split_inclusive(' ') {
            let is_over = width + word.trim_end().chars().count() > WIDTH && !is_kept(line);
            if width == 0 || is_over {
                out.truncate(out.trim_end().len());
                out.push_str(if out.is_empty() { "# " } else { "\n# " });
                width = 2;
            }
            out.push_str(word);
            width += word.chars().count();
        }
        out.push('\n');
    }
    out
}

/// A line that is shown as it is: what is to be run somewhere.
fn is_kept(line: &str) -> bool {
    line.contains("GRANT ")
}

/// The lines of a table's text as paragraphs, and as code what is to be run.
fn paragraphs(doc: &str) -> String {
    let mut out = String::new();
    let mut lines = doc.lines().peekable();
    while let Some(line) = lines.next() {
        if is_kept(line) {
            let _ = writeln!(out, "    {line}");
        } else {
            let _ = writeln!(out, "{}", linked(line));
        }
        if lines
            .peek()
            .is_none_or(|next| is_kept(next) != is_kept(line))
        {
            out.push('\n');
        }
    }
    out
}

/// `docs/routing.md` as a link from a page beside it.
fn linked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("docs/") {
        let Some((name, after)) = behind.split_once(".md") else {
            break;
        };
        let _ = write!(out, "{before}[{name}.md]({name}.md)");
        rest = after;
    }
    out + rest
}

fn in_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file as the program would write it. With `UPDATE=1` it is written.
    fn is_up_to_date(path: &str, right: &str) {
        let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, right).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == right,
            "{path} is not what the declared keys make of it: run this test with UPDATE=1"
        );
    }

    #[test]
    fn the_default_file_has_every_key() {
        is_up_to_date("deploy/millrace.toml", &Config::default_file());
    }

    #[test]
    fn the_reference_has_every_key() {
        is_up_to_date("docs/configuration.md", &Config::reference());
    }

    #[test]
    fn comments_are_broken_between_words() {
        let text = "word ".repeat(30);
        let broken = comment(text.trim_end());
        assert_eq!(broken.lines().count(), 2);
        assert!(
            broken
                .lines()
                .all(|line| line.starts_with("# word") && line.len() <= WIDTH)
        );
        assert_eq!(
            linked("see docs/a.md, docs/b.md."),
            "see [a.md](a.md), [b.md](b.md)."
        );
    }
}
