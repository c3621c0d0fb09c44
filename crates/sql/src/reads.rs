//! What the result cache must know of a SELECT: whether its answer depends on nothing but rows, session and parameters,
//! and which of a table's rows it can depend on. Knows no table's definition and evaluates nothing.
//!
//! Whoever takes an answer for a function of the text must know more than a text can tell:
//! - Servers complete a value of type TIME with the current date where they need a date. What makes such a value in
//!   the text is found here ([`Why::TimeOfDay`]). A table's column of type TIME, and a parameter that
//!   the client sends with a type of date or time, are not: ask [`Reads::computes`] about the first.
//! - MariaDB's virtual generated columns may call any function, NOW() and RAND() among them: each read of such a table
//!   may differ (observed on 10.11 and 11.8).
//! - Names may be views, temporary tables or tables of other engines.

mod from;
mod terms;
pub(crate) mod walk;

use std::fmt;

use smallvec::SmallVec;

use crate::mode::LexMode;
use crate::statement::{Span, Statement};

/// Why the answer of a statement may differ although rows, session and parameters are the same, or why that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// No query, or several statements.
    NotOneSelect,
    /// Version comments, `{…}`, MariaDB's ORACLE mode, lists that were cut.
    NotUnderstood,
    /// A function, or a word like CURRENT_DATE, that is not known to be stable.
    Function,
    /// MATCH … AGAINST: the full-text index and its statistics are no rows.
    FullText,
    /// Something that makes a value of type TIME, which servers complete with the current date.
    TimeOfDay,
    /// A user variable or a system variable, or an assignment.
    Variable,
    /// NEXT VALUE FOR, NEXTVAL and their like.
    Sequence,
    /// INTO.
    Into,
    /// FOR UPDATE, FOR SHARE, LOCK IN SHARE MODE.
    Locks,
    /// PROCEDURE.
    Procedure,
    /// A table of information_schema, performance_schema, sys or mysql.
    SystemSchema,
    /// SQL_NO_CACHE.
    NoCache,
    /// SQL_CALC_FOUND_ROWS.
    FoundRows,
    /// The optimizer hints SET_VAR and MAX_EXECUTION_TIME, SET STATEMENT, LIMIT ROWS EXAMINED.
    Limits,
    /// TABLESAMPLE.
    Sample,
    /// FOR SYSTEM_TIME.
    PastRows,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::NotOneSelect => "it is not one SELECT",
            Why::NotUnderstood => "it was not understood",
            Why::Function => "it calls a function that is not known to be stable",
            Why::FullText => "it searches a full-text index",
            Why::TimeOfDay => "it makes a TIME, which may be completed with the current date",
            Why::Variable => "it reads or sets a variable",
            Why::Sequence => "it uses a sequence",
            Why::Into => "it has INTO",
            Why::Locks => "it has FOR UPDATE, FOR SHARE or LOCK IN SHARE MODE",
            Why::Procedure => "it has PROCEDURE",
            Why::SystemSchema => "it reads a system table",
            Why::NoCache => "it has SQL_NO_CACHE",
            Why::FoundRows => "it has SQL_CALC_FOUND_ROWS",
            Why::Limits => "it sets a variable or limits its own run",
            Why::Sample => "it has TABLESAMPLE",
            Why::PastRows => "it reads rows of the past",
        })
    }
}

/// The first thing in a text that keeps its answer from being a function of rows, session and parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unstable {
    /// What it is.
    pub why: Why,
    /// Where it stands: the function's name, the variable, the word. The whole text where no place is known.
    pub at: Span,
}

/// A column's name without its quotes, ASCII letters in lower case.
pub type ColumnName = SmallVec<[u8; 16]>;

/// A number or string of the text, with whose value nothing said of the text changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Literal {
    /// Where it stands, quotes included.
    pub span: Span,
    /// How many numbers and strings stand before it: its place in other texts of the same shape.
    pub place: u16,
}

/// What a column is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Constant {
    /// `?`: how many of them stand before it.
    Parameter(u16),
    /// Decimal digits, after a sign or not.
    Integer {
        /// The sign is `-`.
        negative: bool,
        /// The digits.
        digits: Literal,
    },
    /// A string in quotes, without prefix or introducer.
    Text(Literal),
    /// `0x…` or `x'…'`.
    Hex(Literal),
}

impl Constant {
    /// Where its literal stands; none for a parameter.
    pub fn literal(&self) -> Option<Literal> {
        match *self {
            Constant::Parameter(_) => None,
            Constant::Integer { digits, .. } => Some(digits),
            Constant::Text(literal) | Constant::Hex(literal) => Some(literal),
        }
    }

    /// The value of an integer whose digits are `written`; none for what is none, or has over 38 digits.
    pub fn integer(&self, written: &[u8]) -> Option<i128> {
        const DIGITS_MAX: usize = 38;
        let Constant::Integer { negative, .. } = *self else {
            return None;
        };
        let is_plain = !written.is_empty() && written.iter().all(u8::is_ascii_digit);
        if !is_plain || written.len() > DIGITS_MAX {
            return None;
        }
        let add = |sum: i128, digit: &u8| sum * 10 + i128::from(digit - b'0');
        let value = written.iter().fold(0, add);
        Some(if negative { -value } else { value })
    }

    /// The bytes of a string or hexadecimal literal that is `written` so. None for what is neither, and for strings
    /// with backslashes or bytes beyond ASCII: character sets may change those.
    pub fn bytes(&self, written: &[u8]) -> Option<SmallVec<[u8; 16]>> {
        match self {
            Constant::Text(_) => text_bytes(written),
            Constant::Hex(_) => hex_bytes(written),
            _ => None,
        }
    }
}

fn text_bytes(written: &[u8]) -> Option<SmallVec<[u8; 16]>> {
    let (quote, inner) = match written {
        [quote @ (b'\'' | b'"'), inner @ .., last] if last == quote => (*quote, inner),
        _ => return None,
    };
    let mut value = SmallVec::new();
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        let is_plain = byte.is_ascii() && byte != b'\\' && byte != 0;
        if !is_plain || (byte == quote && bytes.next() != Some(&quote)) {
            return None;
        }
        value.push(byte);
    }
    Some(value)
}

fn hex_bytes(written: &[u8]) -> Option<SmallVec<[u8; 16]>> {
    let digits = match written {
        [b'0', b'x', digits @ ..] => digits,
        [b'x' | b'X', b'\'', digits @ .., b'\''] if digits.len() % 2 == 0 => digits,
        _ => return None,
    };
    let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    let (first, pairs) = digits.split_at(digits.len() % 2);
    let mut bytes: SmallVec<[u8; 16]> = SmallVec::new();
    for digit in first {
        bytes.push(value(*digit)?);
    }
    for pair in pairs.chunks_exact(2) {
        bytes.push(value(pair[0])? << 4 | value(pair[1])?);
    }
    Some(bytes)
}

/// How a column is compared, the column on the left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<=>`. The one that is true of NULL, where its constant is a parameter that is NULL.
    NullSafeEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// BETWEEN the first constant AND the second, both included.
    Between,
    /// IN any of the constants.
    In,
}

/// What all rows of a table have in common that the statement's answer can depend on, or that it changes, as far as this
/// naming of the table is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which of [`Statement::tables`].
    pub table: u16,
    /// Which of its columns.
    pub column: ColumnName,
    /// How it is compared.
    pub comparison: Comparison,
    /// Where its constants begin in [`Conditions`], and how many there are.
    constants: (u16, u16),
}

/// Conditions and what they compare with. All of those on one table hold of its rows together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    list: SmallVec<[Condition; 4]>,
    constants: SmallVec<[Constant; 4]>,
}

impl Conditions {
    /// What the condition's column is compared with: one constant, two for BETWEEN, any number for IN.
    pub fn constants(&self, condition: &Condition) -> &[Constant] {
        let (from, len) = condition.constants;
        let from = usize::from(from);
        self.constants
            .get(from..from + usize::from(len))
            .unwrap_or(&[])
    }

    /// The conditions on one of [`Statement::tables`].
    pub fn on(&self, table: usize) -> impl Iterator<Item = &Condition> {
        let is_of = move |condition: &&Condition| usize::from(condition.table) == table;
        self.list.iter().filter(is_of)
    }

    /// Forgets them and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.constants.clear();
    }
}

impl std::ops::Deref for Conditions {
    type Target = [Condition];

    fn deref(&self) -> &[Condition] {
        &self.list
    }
}

impl<'a> IntoIterator for &'a Conditions {
    type Item = &'a Condition;
    type IntoIter = std::slice::Iter<'a, Condition>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

/// The answer of [`reads`]. Meant to be reused: it keeps its memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reads {
    /// Why the answer is no function of rows, session and parameters. None: it is one. Where there is a reason nothing
    /// else is told.
    pub unstable: Option<Unstable>,
    /// What holds of all rows that matter. Of each table in [`Statement::tables`] that is named here all rows
    /// matter for which all its conditions hold; of one that is not named, all of its rows. A table that a statement
    /// names twice has two places in that list.
    pub conditions: Conditions,
    /// How many `?` the text has.
    pub parameters: u16,
    /// The text may convert a column's value by its type: it has operators, functions or set operations beside its
    /// conditions and COUNT, MIN and MAX. Without, MySQL completes no column of type TIME with the
    /// current date, as numbers and strings never make it do that. MariaDB does for `=` and IN of one string (observed).
    pub computes: bool,
}

impl Reads {
    /// See [`Conditions::constants`].
    pub fn constants(&self, condition: &Condition) -> &[Constant] {
        self.conditions.constants(condition)
    }

    /// See [`Conditions::on`].
    pub fn conditions_on(&self, table: usize) -> impl Iterator<Item = &Condition> {
        self.conditions.on(table)
    }

    fn clear(&mut self) {
        self.unstable = None;
        self.conditions.clear();
        self.parameters = 0;
        self.computes = false;
    }
}

/// Reads `text`, which [`classify`](crate::classify) has read as `statement` in the same `mode`, and stores the answer
/// in `out`. Never panics, whatever the bytes.
///
/// Another text of the same shape has the same answer, but for the spans.
pub fn reads(text: &[u8], mode: &LexMode, statement: &Statement, out: &mut Reads) {
    out.clear();
    let told = walk::Walk::new(text, mode, statement, &mut out.conditions).judge();
    out.unstable = told.unstable;
    out.parameters = told.parameters;
    out.computes = told.computes;
}

#[cfg(test)]
mod tests;
