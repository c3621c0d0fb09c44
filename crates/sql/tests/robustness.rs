//! Whatever the bytes: no panic, spans within the text, parts that agree with the whole.

mod common;

use millrace_sql::{
    Access, Charset, Family, Flags, Kind, LexMode, Reads, Span, Statement, TableUse, Target,
    TextSource, Writes, classify, digest, ident, parts, reads, writes,
};
use proptest::prelude::*;

fn modes() -> impl Strategy<Value = LexMode> {
    let charsets = prop_oneof![
        Just(Charset::AsciiSafe),
        Just(Charset::Latin1),
        Just(Charset::SingleByte),
        Just(Charset::Gbk),
        Just(Charset::Sjis),
        Just(Charset::Big5),
        Just(Charset::Gb18030),
    ];
    (any::<[bool; 5]>(), charsets).prop_map(|(bits, charset)| {
        let (family, version) = if bits[0] {
            (Family::MySql, 90704)
        } else {
            (Family::MariaDb, 101119)
        };
        let mut mode = LexMode::new(family, version);
        mode.charset = charset;
        mode.ansi_quotes = bits[1];
        mode.no_backslash_escapes = bits[2];
        mode.ignore_space = bits[3];
        mode.oracle_mode = bits[4] && family == Family::MariaDb;
        mode
    })
}

/// Pieces that mean something to the lexer or the grammar.
const PIECES: &[&str] = &[
    "SELECT",
    "FROM",
    "WHERE",
    "WITH",
    "RECURSIVE",
    "AS",
    "(",
    ")",
    ",",
    ".",
    ";",
    "@",
    "@@",
    ":=",
    "=",
    "*",
    "'",
    "\"",
    "`",
    "\\",
    "/*",
    "*/",
    "/*!",
    "/*!50000",
    "/*M!",
    "/*+",
    "--",
    "-- ",
    "#",
    "\n",
    "$",
    "$$",
    "$a$",
    "{",
    "}",
    "?",
    "1",
    "1.5",
    "0x",
    "x'",
    "N'",
    "_utf8",
    "a",
    "t",
    "f",
    "INSERT",
    "INTO",
    "VALUES",
    "UPDATE",
    "SET",
    "DELETE",
    "USING",
    "GLOBAL",
    "NAMES",
    "SESSION",
    "TRANSACTION",
    "READ",
    "ONLY",
    "FOR",
    "SHARE",
    "LOCK",
    "IN",
    "CREATE",
    "PROCEDURE",
    "BEGIN",
    "END",
    "IF",
    "CASE",
    "LOOP",
    "THEN",
    "KILL",
    "QUERY",
    "USER",
    "SHOW",
    "EXPLAIN",
    "ANALYZE",
    "EXECUTE",
    "IMMEDIATE",
    "PREPARE",
    "CALL",
    "LOAD",
    "DATA",
    "TABLE",
    "DROP",
    "STATEMENT",
    "JSON_TABLE",
    "LAST_INSERT_ID",
    "GET_LOCK",
    "millrace:",
    "\0",
    "é",
    "STRAIGHT_JOIN",
    "JOIN",
    "LATERAL",
    "UNION",
    "XA",
    "HANDLER",
    "OPEN",
    "GET",
    "DIAGNOSTICS",
    "-",
    "+",
    "->",
    "<",
];

fn soup() -> impl Strategy<Value = Vec<u8>> {
    let piece = (0..PIECES.len(), 0..3_u8);
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| {
        let mut text = Vec::new();
        for (index, blanks) in pieces {
            text.extend_from_slice(PIECES[index].as_bytes());
            text.resize(text.len() + usize::from(blanks.min(1)), b' ');
        }
        text
    })
}

/// Pieces of what stands behind WHERE.
const TERMS: &[&str] = &[
    "id",
    "= 5",
    "AND",
    "AND",
    "(",
    ")",
    "t",
    ".",
    "OR",
    "BETWEEN",
    "1",
    "?",
    "-",
    "IN (1, 2)",
    "'x'",
    "JOIN u ON",
    "LEFT JOIN v ON",
    "WHERE",
    ",",
    "CASE",
    "END",
    "=",
    "<",
    ">",
    "GROUP BY",
    "UNION",
    "SELECT",
    "FROM t",
    "NOW",
    "count(",
    "TIME",
    "AS",
    "x",
    "&&",
    "||",
    "XOR",
    "NOT",
    "USING (id)",
    "JSON_TABLE(",
    "COLUMNS(",
    "WITH",
    "WINDOW",
    "5 = sql_no_cache",
    "RETURNING",
    "@a := ",
    "{",
    "LIMIT 5",
    "unix_timestamp(",
    "\n",
    "/* */",
];

/// What they may stand behind.
const BEGINNINGS: &[&str] = &[
    "SELECT * FROM t WHERE id = 5 AND ",
    "UPDATE t SET v = 1 WHERE id = 5 AND ",
    "UPDATE t SET ",
    "DELETE FROM t WHERE ",
    "INSERT INTO t (id, v) VALUES (1, 'x'), ",
    "REPLACE t VALUES (",
    "INSERT t SET id = 5, v",
    "INSERT t () VALUES () ON DUPLICATE KEY UPDATE v = ",
];

fn query_soup() -> impl Strategy<Value = Vec<u8>> {
    let pieces = proptest::collection::vec(0..TERMS.len(), 0..20);
    (0..BEGINNINGS.len(), pieces).prop_map(|(beginning, pieces)| {
        let mut text = BEGINNINGS[beginning].as_bytes().to_vec();
        for piece in pieces {
            text.extend_from_slice(TERMS[piece].as_bytes());
            text.push(b' ');
        }
        text
    })
}

fn spans(out: &Statement) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for table in &out.tables {
        spans.extend(table.schema);
        spans.push(table.name);
    }
    for name in out.functions.iter().chain(&out.name) {
        spans.extend(name.schema);
        spans.push(name.name);
    }
    spans.extend(&out.user_vars_read);
    spans.extend(&out.user_vars_assigned);
    spans.extend(out.sysvars_read.iter().map(|var| var.name));
    for item in &out.assignments {
        spans.push(item.value);
        match item.target {
            Target::UserVar(name) | Target::System { name, .. } => spans.push(name),
            Target::Names { collation } => spans.extend(collation),
            _ => {}
        }
    }
    match out.source {
        Some(TextSource::Literal(s) | TextSource::UserVar(s) | TextSource::Expression(s)) => {
            spans.push(s);
        }
        None => {}
    }
    spans.extend(out.hint);
    spans
}

/// What is told for the result cache: it fits the text and what the classifier says, and repeats.
fn check_reads(text: &[u8], mode: &LexMode, statement: &Statement) {
    let mut out = Reads::default();
    reads(text, mode, statement, &mut out);
    let mut again = out.clone();
    reads(text, mode, statement, &mut again);
    assert_eq!(again, out, "reusing the answer changes it");
    if let Some(unstable) = out.unstable {
        assert!(unstable.at.start <= unstable.at.end && unstable.at.end as usize <= text.len());
        assert!(out.conditions.is_empty());
        return;
    }
    assert_eq!(statement.kind, Kind::Select);
    assert_eq!(statement.access, Access::Read, "{statement:?}");
    assert!(statement.functions.is_empty());
    assert_eq!(
        out.parameters > 0,
        statement.flags.contains(Flags::PARAMETERS)
    );
    for condition in &out.conditions {
        assert!(usize::from(condition.table) < statement.tables.len());
        assert!(!out.constants(condition).is_empty());
        for literal in out
            .constants(condition)
            .iter()
            .filter_map(|constant| constant.literal())
        {
            assert!(!literal.span.of(text).is_empty());
        }
    }
}

/// What is told of a statement that writes: the same.
fn check_writes(text: &[u8], mode: &LexMode, statement: &Statement) {
    let mut out = Writes::default();
    writes(text, mode, statement, &mut out);
    let mut again = out.clone();
    writes(text, mode, statement, &mut again);
    assert_eq!(again, out, "reusing the answer changes it");
    let Some(table) = out.table else {
        assert_eq!(out, Writes::default());
        return;
    };
    let is_written = |table: u16| statement.tables[usize::from(table)].usage == TableUse::Write;
    assert!(is_written(table));
    assert!(statement.parts == 1 && statement.access == Access::Write);
    let of_conditions = out.conditions.iter().flat_map(|condition| {
        assert_eq!(condition.table, table);
        assert!(!out.constants(condition).is_empty());
        out.constants(condition)
    });
    let of_rows = (0..out.rows()).flat_map(|at| {
        let row = out.row(at);
        assert!(out.columns.is_empty() || out.columns.len() == row.len());
        row.iter().flatten()
    });
    for literal in of_conditions
        .chain(of_rows)
        .filter_map(|constant| constant.literal())
    {
        assert!(!literal.span.of(text).is_empty());
    }
    assert!(out.row(out.rows()).is_empty());
}

fn check(text: &[u8], mode: &LexMode) {
    let mut out = Statement::default();
    classify(text, mode, &mut out);
    for span in spans(&out) {
        assert!(
            span.start <= span.end && span.end as usize <= text.len(),
            "{span:?} {out:?}"
        );
        ident::user_var_key(span.of(text));
        ident::unquote_string(span.of(text), true);
    }
    assert!(out.access_if_calls_read <= out.access, "{out:?}");
    if out.kind == Kind::Unknown {
        assert_eq!(out.access, Access::Write, "{out:?}");
    }
    let again = {
        let mut again = out.clone();
        classify(text, mode, &mut again);
        again
    };
    assert_eq!(again, out, "reusing the answer changes it");

    check_reads(text, mode, &out);
    check_writes(text, mode, &out);

    let all: Vec<Span> = parts(text, mode).collect();
    assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(all.len() >= usize::from(out.parts).min(1));
    let mut highest = Access::Session;
    for part in &all {
        assert!(part.start <= part.end && part.end as usize <= text.len());
        let mut one = Statement::default();
        classify(part.of(text), mode, &mut one);
        highest = highest.max(one.access);
    }
    assert!(
        out.access >= highest || out.parts == 0,
        "{out:?} {highest:?}"
    );

    let mut normal = Vec::new();
    let hash = digest(text, mode, &mut normal);
    assert_eq!(hash, digest(text, mode, &mut Vec::new()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn random_bytes(text in proptest::collection::vec(any::<u8>(), 0..200), mode in modes()) {
        check(&text, &mode);
    }

    #[test]
    fn token_soup(text in soup(), mode in modes()) {
        check(&text, &mode);
    }

    /// Queries that the result cache may take, and nearly.
    #[test]
    fn soup_of_terms(text in query_soup(), mode in modes()) {
        check(&text, &mode);
    }
}

#[test]
fn every_prefix_of_a_statement() {
    let text = "/*!50000 SELECT */ /* millrace: x */ @a := f('b''c', \"d\\\"\", `e``f`, $t$ g $t$), \
                @@session.h FROM i.j, (WITH k AS (SELECT 1.5e3) SELECT * FROM k) l FOR UPDATE; \
                SET @x = 1, GLOBAL y = -2; CREATE PROCEDURE p() BEGIN IF 1 THEN SELECT 1; END IF; \
                END; KILL QUERY 5; PREPARE s FROM 'x' -- end";
    for mode in [common::mysql(), common::mariadb()] {
        for end in 0..=text.len() {
            check(&text.as_bytes()[..end], &mode);
        }
    }
}

#[test]
fn deep_and_long_texts() {
    let mode = common::mysql();
    let deep = format!(
        "SELECT {}1{} FOR UPDATE",
        "(".repeat(100_000),
        ")".repeat(100_000)
    );
    check(deep.as_bytes(), &mode);
    assert_eq!(common::read(&deep, &mode).access, Access::Write);
    let long = format!("SELECT * FROM t WHERE a IN ({}1)", "@x,".repeat(20_000));
    let out = common::read(&long, &mode);
    assert!(out.flags.contains(millrace_sql::Flags::TRUNCATED));
    let many = "EXPLAIN ".repeat(50_000);
    check(many.as_bytes(), &mode);
    let nested = "SET STATEMENT a=1 FOR ".repeat(20_000);
    check(nested.as_bytes(), &common::mariadb());
}
