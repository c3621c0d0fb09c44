//! Shared by the tables of statements.
#![allow(dead_code)]

use millrace_sql::{Access, Family, Flags, Kind, LexMode, Statement, classify};

pub(crate) fn mysql() -> LexMode {
    LexMode::new(Family::MySql, 90704)
}

pub(crate) fn mariadb() -> LexMode {
    LexMode::new(Family::MariaDb, 101119)
}

pub(crate) fn read(text: impl AsRef<[u8]>, mode: &LexMode) -> Statement {
    let mut out = Statement::default();
    classify(text.as_ref(), mode, &mut out);
    out
}

/// The names of the tables, as they are written.
pub(crate) fn tables(text: &str, mode: &LexMode) -> Vec<String> {
    let out = read(text, mode);
    out.tables
        .iter()
        .map(|table| {
            let name = spanned(text, table.name);
            match table.schema {
                Some(schema) => format!("{}.{name}", spanned(text, schema)),
                None => name,
            }
        })
        .collect()
}

/// The names of the functions that are no built-ins.
pub(crate) fn functions(text: &str, mode: &LexMode) -> Vec<String> {
    let out = read(text, mode);
    out.functions
        .iter()
        .map(|function| {
            let name = spanned(text, function.name);
            match function.schema {
                Some(schema) => format!("{}.{name}", spanned(text, schema)),
                None => name,
            }
        })
        .collect()
}

pub(crate) fn spanned(text: &str, span: millrace_sql::Span) -> String {
    String::from_utf8_lossy(span.of(text.as_bytes())).into_owned()
}

/// Checks a table of statements; all failures are shown at once.
pub(crate) fn check(mode: &LexMode, table: &[(&str, Kind, Access, Flags)]) {
    let wrong: Vec<String> = table
        .iter()
        .filter_map(|(text, kind, access, flags)| {
            let out = read(text, mode);
            // That there is a comment is said of many, and tested by itself.
            let found = out.flags - Flags::COMMENT;
            let fine =
                out.kind == *kind && out.access == *access && found == *flags - Flags::COMMENT;
            (!fine).then(|| {
                format!(
                    "{text}\n   got {:?} {:?} {:?}\n  want {kind:?} {access:?} {flags:?}",
                    out.kind, out.access, out.flags
                )
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
