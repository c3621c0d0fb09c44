//! The rows of an INSERT or REPLACE.

use smallvec::SmallVec;

use crate::lexer::Tok;
use crate::reads::Constant;
use crate::reads::walk::Walk;
use crate::words::Kw;

/// Values of one statement. What has more is not worth the memory.
const VALUES_MAX: usize = 4096;

/// Rows of values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Inserts {
    pub(super) rows: usize,
    /// How many values a row has.
    width: usize,
    values: SmallVec<[Option<Constant>; 8]>,
}

impl Inserts {
    pub(super) fn row(&self, at: usize) -> &[Option<Constant>] {
        if at >= self.rows {
            return &[];
        }
        let from = at * self.width;
        self.values.get(from..from + self.width).unwrap_or(&[])
    }

    /// Forgets them and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.rows = 0;
        self.width = 0;
        self.values.clear();
    }

    /// Adds a row's next value. False: there are too many.
    pub(super) fn push(&mut self, value: Option<Constant>) -> bool {
        let has_room = self.values.len() < VALUES_MAX;
        if has_room {
            self.values.push(value);
        }
        has_room
    }

    /// The values since the row before are a row. False: they are not as many as there.
    pub(super) fn end_row(&mut self) -> bool {
        let width = self.values.len() - self.rows * self.width;
        if self.rows == 0 {
            self.width = width;
        }
        self.rows += 1;
        width == self.width && self.rows <= VALUES_MAX
    }

    /// Each row has a value for each of so many columns; for none of them where it names none.
    pub(super) fn fit(&self, columns: usize) -> bool {
        columns == 0 || columns == self.width
    }
}

impl Walk<'_, '_> {
    /// The rows behind VALUES. None: the text is not understood. False: it is, but not all of its rows can be told.
    pub(super) fn rows(&mut self, inserts: &mut Inserts) -> Option<bool> {
        let mut is_told = true;
        loop {
            if self.next.tok == Tok::Open && self.bytes(self.cur).eq_ignore_ascii_case(b"ROW") {
                self.bump();
            }
            if self.cur.tok != Tok::Open {
                return None;
            }
            self.bump();
            if self.cur.tok != Tok::Close {
                is_told &= self.values(inserts, is_told)?;
            }
            self.bump();
            is_told = is_told && inserts.end_row();
            if self.cur.tok != Tok::Comma {
                return Some(is_told);
            }
            self.bump();
        }
    }

    /// A row's values, up to what closes it.
    fn values(&mut self, inserts: &mut Inserts, mut is_told: bool) -> Option<bool> {
        loop {
            let value = self.value();
            is_told = is_told && inserts.push(value);
            match self.cur.tok {
                Tok::Comma => self.bump(),
                Tok::Close => return Some(is_told),
                _ => return None,
            }
        }
    }

    /// An expression, up to what ends it. A constant is told where it is the whole.
    pub(super) fn value(&mut self) -> Option<Constant> {
        let value = self.constant();
        let is_whole = self.at_value_end();
        while !self.at_value_end() {
            match self.cur.tok {
                Tok::Open => self.skip_group(),
                _ => self.bump(),
            }
        }
        value.filter(|_| is_whole)
    }

    /// Behind a value of a row, or behind one that is assigned. No expression has these words outside of parentheses;
    /// some lead to clauses that are not understood.
    fn at_value_end(&self) -> bool {
        self.at_end()
            || matches!(self.cur.tok, Tok::Comma | Tok::Close)
            || matches!(
                self.cur.kw(),
                Kw::Where
                    | Kw::Order
                    | Kw::Limit
                    | Kw::On
                    | Kw::As
                    | Kw::For
                    | Kw::From
                    | Kw::Join
                    | Kw::Select
                    | Kw::Union
                    | Kw::Using
            )
            || self.at_returning()
    }
}
