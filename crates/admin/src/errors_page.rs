//! docs/errors.md has the errors that Millrace itself gives, and none that it does not.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use millrace_topology::{NoPrimary, ServerId};

use crate::page::has_table;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// All string literals of the crates that make errors, tests and log lines left out.
fn literals() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["session", "worker", "backend", "routing"] {
        read_folder(
            Path::new(&format!("{ROOT}/crates/{folder}/src")),
            &mut found,
        );
    }
    found
}

fn read_folder(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            read_folder(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            read_literals(&fs::read_to_string(&path).unwrap(), found);
        }
    }
}

fn read_literals(source: &str, found: &mut Vec<String>) {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let lines: Vec<&str> = source.lines().filter(is_code).collect();
    let source = lines.join("\n");
    let mut rest = &*source;
    while let Some((before, behind)) = rest.split_once('"') {
        if before.ends_with('\'') && behind.starts_with('\'') {
            // The character.
            rest = behind;
            continue;
        }
        let mut text = String::new();
        let mut chars = behind.char_indices();
        let mut end = behind.len();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, '\n')) => {
                        let left = chars.as_str();
                        let blanks = left.len() - left.trim_start().len();
                        chars.by_ref().take(blanks).for_each(|_| ());
                    }
                    Some((_, escaped)) => text.push(escaped),
                    None => {}
                },
                other => text.push(other),
            }
        }
        let begun = before.trim_end();
        let is_logged = ["error!(", "warn!(", "info!(", "debug!("]
            .iter()
            .any(|log| begun.rsplit(';').next().unwrap_or("").contains(log));
        if !is_logged {
            found.push(text);
        }
        rest = &behind[end..];
    }
}

/// What stands between the values of a text, the longest first.
fn fixed(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut inside = false;
    for char in text.chars() {
        match char {
            '{' | '…' => {
                inside = char == '{';
                parts.push(String::new());
            }
            '}' => inside = false,
            other if !inside => parts.last_mut().unwrap().push(other),
            _ => {}
        }
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    parts
}

#[test]
fn every_error_is_on_the_page() {
    let page = fs::read_to_string(format!("{ROOT}/docs/errors.md")).unwrap();
    let lacking: Vec<String> = literals()
        .into_iter()
        .filter(|text| text.contains("Millrace:") || text.starts_with("Millrace "))
        .filter(|text| !page.contains(fixed(text)[0].trim_matches('`')))
        .collect();
    assert!(lacking.is_empty(), "docs/errors.md lacks {lacking:#?}");
}

#[test]
fn every_error_of_the_page_is_given() {
    let page = fs::read_to_string(format!("{ROOT}/docs/errors.md")).unwrap();
    let literals = literals();
    let mut rows = 0;
    for line in page.lines().filter(|line| line.starts_with("| 1")) {
        let text = line.split('`').nth(1).unwrap_or_default();
        let part = &fixed(text)[0];
        rows += 1;
        assert!(
            literals.iter().any(|literal| literal.contains(&**part)),
            "nothing says {part:?}: {line}"
        );
    }
    assert!(rows > 30);
}

#[test]
fn every_reason_for_no_primary_is_on_the_page() {
    let server = ServerId(0);
    let reasons = [
        NoPrimary::NotAsked,
        NoPrimary::Nobody,
        NoPrimary::Lost(server),
        NoPrimary::Unreachable(server),
        NoPrimary::Demoted(server),
        NoPrimary::Draining(server),
        NoPrimary::Stalled(server),
        NoPrimary::Conflict,
        NoPrimary::Doubtful(server),
        NoPrimary::NoQuorum,
        NoPrimary::Replicates(server),
        NoPrimary::Fixed(server),
    ];
    assert_eq!(reasons.len(), NoPrimary::LABELS.len());
    let mut table = String::from("| text | what to do |\n|---|---|\n");
    for reason in reasons {
        let mut advice = reason.advice().to_owned();
        advice[..1].make_ascii_uppercase();
        let _ = writeln!(table, "| {reason} | {advice}. |");
    }
    has_table("docs/errors.md", "### Why no server takes writes\n", &table);
}
