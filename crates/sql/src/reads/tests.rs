//! Texts with what must be said of them, and properties over random ones.

mod conditions;
mod expression;
mod random;
mod stable;

use super::*;
use crate::{Family, classify};

fn mysql() -> LexMode {
    LexMode::new(Family::MySql, 90_704)
}

fn mariadb() -> LexMode {
    LexMode::new(Family::MariaDb, 101_119)
}

fn both() -> [LexMode; 2] {
    [mysql(), mariadb()]
}

fn read(text: &str, mode: &LexMode) -> (Statement, Reads) {
    let mut statement = Statement::default();
    classify(text.as_bytes(), mode, &mut statement);
    let mut out = Reads::default();
    reads(text.as_bytes(), mode, &statement, &mut out);
    (statement, out)
}

fn of(span: Span, text: &str) -> &str {
    &text[span.start as usize..span.end as usize]
}

/// Conditions in words: `table.column = 5`.
fn told(text: &str, mode: &LexMode) -> Vec<String> {
    let (statement, out) = read(text, mode);
    assert_eq!(out.unstable, None, "{text}");
    out.conditions
        .iter()
        .map(|condition| in_words(condition, &statement, &out, text))
        .collect()
}

fn in_words(condition: &Condition, statement: &Statement, out: &Reads, text: &str) -> String {
    let table = &statement.tables[usize::from(condition.table)];
    let comparison = match condition.comparison {
        Comparison::Equal => "=",
        Comparison::NullSafeEqual => "<=>",
        Comparison::Less => "<",
        Comparison::LessOrEqual => "<=",
        Comparison::Greater => ">",
        Comparison::GreaterOrEqual => ">=",
        Comparison::Between => "between",
        Comparison::In => "in",
    };
    let constants: Vec<String> = out
        .constants(condition)
        .iter()
        .map(|constant| match constant {
            Constant::Parameter(place) => format!("?{place}"),
            Constant::Integer { digits, .. } => constant
                .integer(digits.span.of(text.as_bytes()))
                .unwrap()
                .to_string(),
            Constant::Text(literal) | Constant::Hex(literal) => of(literal.span, text).to_owned(),
        })
        .collect();
    format!(
        "{}.{} {comparison} {}",
        of(table.name, text),
        String::from_utf8_lossy(&condition.column),
        constants.join(",")
    )
}
