//! Statements that are anything: the classifier must not panic, must name no byte that is not
//! there, and must say the same each time; an answer that is not understood must be a write. What the
//! result cache may take must be a read, what is told of a write must be of the table that it writes.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use millrace_sql::{
    Access, Charset, Family, Kind, LexMode, Reads, Shapes, Span, Statement, TableUse, Writes,
    classify, digest, parts, reads, writes,
};

const CHARSETS: [Charset; 7] = [
    Charset::AsciiSafe,
    Charset::Latin1,
    Charset::SingleByte,
    Charset::Gbk,
    Charset::Sjis,
    Charset::Big5,
    Charset::Gb18030,
];

fn mode(flags: u8, charset: u8) -> LexMode {
    let mut mode = if flags & 1 != 0 {
        LexMode::new(Family::MariaDb, 101119)
    } else {
        LexMode::new(Family::MySql, 90704)
    };
    mode.ansi_quotes = flags & 2 != 0;
    mode.no_backslash_escapes = flags & 4 != 0;
    mode.ignore_space = flags & 8 != 0;
    mode.oracle_mode = flags & 17 == 17;
    mode.bracket_quotes = flags & 33 == 33;
    mode.charset = CHARSETS[usize::from(charset) % CHARSETS.len()];
    mode
}

fn within(text: &[u8], spans: impl IntoIterator<Item = Span>) {
    for span in spans {
        assert!(span.start <= span.end && span.end as usize <= text.len());
    }
}

thread_local! {
    static SHAPES: RefCell<Shapes> = RefCell::default();
}

// The first bytes choose the mode.
fuzz_target!(|data: &[u8]| {
    let [flags, charset, text @ ..] = data else {
        return;
    };
    let mode = mode(*flags, *charset);
    let mut out = Statement::default();
    classify(text, &mode, &mut out);
    let mut again = out.clone();
    classify(text, &mode, &mut again);
    assert_eq!(out, again);
    // Of all that went before, nothing changes what is said of this one.
    SHAPES.with_borrow_mut(|shapes| {
        let class = shapes.classify(text, &mode);
        assert_eq!(*class, out);
        shapes.recycle(class);
    });

    within(
        text,
        out.tables
            .iter()
            .flat_map(|t| [t.schema.unwrap_or(t.name), t.name]),
    );
    within(text, out.functions.iter().chain(&out.name).map(|n| n.name));
    within(
        text,
        out.user_vars_read
            .iter()
            .chain(&out.user_vars_assigned)
            .copied(),
    );
    within(text, out.assignments.iter().map(|item| item.value));
    within(text, out.hint);
    assert!(out.access_if_calls_read <= out.access);
    assert!(out.kind != Kind::Unknown || out.access == Access::Write);

    let mut read = Reads::default();
    reads(text, &mode, &out, &mut read);
    within(text, read.unstable.map(|unstable| unstable.at));
    assert!(read.unstable.is_some() || (out.access == Access::Read && out.functions.is_empty()));
    for condition in &read.conditions {
        assert!(read.unstable.is_none() && usize::from(condition.table) < out.tables.len());
        let constants = read.constants(condition).iter();
        within(
            text,
            constants
                .filter_map(|constant| constant.literal())
                .map(|literal| literal.span),
        );
    }

    let mut written = Writes::default();
    writes(text, &mode, &out, &mut written);
    if let Some(table) = written.table {
        assert!(out.tables[usize::from(table)].usage == TableUse::Write);
    } else {
        assert_eq!(written, Writes::default());
    }
    let of_conditions = (written.conditions.iter()).flat_map(|one| written.constants(one));
    let of_rows = (0..written.rows()).flat_map(|at| written.row(at).iter().flatten());
    within(
        text,
        of_conditions
            .chain(of_rows)
            .filter_map(|constant| constant.literal())
            .map(|literal| literal.span),
    );

    let mut end = 0;
    for part in parts(text, &mode) {
        assert!(part.start >= end && part.end as usize <= text.len());
        end = part.end;
        classify(part.of(text), &mode, &mut again);
        assert!(again.access <= out.access);
    }
    let mut normal = Vec::new();
    assert_eq!(
        digest(text, &mode, &mut normal),
        digest(text, &mode, &mut Vec::new())
    );
});
