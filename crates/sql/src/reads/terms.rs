//! Terms that stand for themselves in a WHERE or ON: a column, a comparison and constants, between ANDs. What is
//! not exactly that is passed over, and where it could change what a term beside it means that term is dropped.

use smallvec::{SmallVec, smallvec};

use super::walk::Walk;
use super::{ColumnName, Comparison, Condition, Conditions, Constant, Literal};
use crate::lexer::{Tok, Token};
use crate::words::{Kw, Part};

/// Deeper groups are passed over.
const LEVELS_MAX: usize = 16;
/// Conditions of one statement.
const CONDITIONS_MAX: usize = 64;
/// Constants of one IN.
const LIST_MAX: usize = 256;

/// A group of terms: the clause, or what is in parentheses that are a term of the group around them.
struct Level {
    /// How many conditions there were before it.
    kept: usize,
    /// Further terms can be told.
    is_open: bool,
    /// BETWEENs whose AND is still to come.
    betweens: u32,
}

/// A column as it is written.
struct Column {
    table: Option<u16>,
    name: Token,
}

impl Walk<'_, '_> {
    fn level(&self, is_open: bool) -> Level {
        Level {
            kept: self.conditions.list.len(),
            is_open,
            betweens: 0,
        }
    }

    /// Reads a WHERE or ON up to what follows it. `tells`: its terms are conditions.
    pub(crate) fn conjunction(&mut self, tells: bool) {
        let mut outer: SmallVec<[Level; 4]> = smallvec![];
        let mut level = self.level(tells);
        let mut starts = true;
        while !self.at_end() {
            if std::mem::take(&mut starts) && level.is_open {
                if self.begins_group() && outer.len() < LEVELS_MAX {
                    self.bump();
                    let inner = self.level(true);
                    outer.push(std::mem::replace(&mut level, inner));
                    starts = true;
                    continue;
                }
                self.term(&mut level, outer.is_empty());
                continue;
            }
            match self.cur.tok {
                Tok::Open => self.skip_group(),
                Tok::Close => {
                    let Some(around) = outer.pop() else {
                        break;
                    };
                    self.bump();
                    // `(a = 1) = 0`
                    if !self.is_bounded(outer.is_empty()) {
                        self.drop_conditions(level.kept);
                    }
                    level = around;
                }
                Tok::Comma if outer.is_empty() => break,
                Tok::Comma => {
                    self.close(&mut level);
                    self.bump();
                }
                Tok::Word if outer.is_empty() && self.at_end_of_terms() => {
                    // Where these are not reserved they may be columns, and what follows still part of the term.
                    self.gave_up |= matches!(self.cur.kw(), Kw::Window | Kw::Qualify);
                    break;
                }
                Tok::Word => starts = self.word_between_terms(&mut level),
                Tok::Op if self.at_pair(b'&', b'&') => {
                    if level.betweens > 0 {
                        self.close(&mut level);
                    }
                    self.bump();
                    self.bump();
                    starts = true;
                }
                Tok::Op if self.at_pair(b'|', b'|') => {
                    self.close(&mut level);
                    self.bump();
                    self.bump();
                }
                _ => self.bump(),
            }
        }
        if !outer.is_empty() {
            self.gave_up = true;
        }
    }

    /// Nothing of a group can be told: its terms are not joined by AND alone.
    fn close(&mut self, level: &mut Level) {
        level.is_open = false;
        self.drop_conditions(level.kept);
    }

    fn drop_conditions(&mut self, kept: usize) {
        self.conditions.list.truncate(kept);
    }

    /// Parentheses that hold terms, not a query.
    fn begins_group(&self) -> bool {
        self.cur.tok == Tok::Open
            && !matches!(
                self.next.kw(),
                Kw::Select | Kw::With | Kw::Values | Kw::Table
            )
    }

    /// A word that is no part of a term that was told. True: a term begins behind it.
    fn word_between_terms(&mut self, level: &mut Level) -> bool {
        let word = self.cur;
        self.bump();
        match word.kw() {
            Kw::And if level.betweens > 0 => level.betweens -= 1,
            Kw::And => return true,
            Kw::Or => self.close(level),
            // The ANDs up to its END join no terms of this group.
            Kw::Case => level.is_open = false,
            _ => match word.id.part() {
                Part::Between => level.betweens += 1,
                Part::Xor => self.close(level),
                _ => {}
            },
        }
        false
    }

    /// Whether a term may end here. `is_clause`: not in parentheses.
    fn is_bounded(&self, is_clause: bool) -> bool {
        match self.cur.tok {
            Tok::End | Tok::Semicolon => true,
            Tok::Close => true,
            Tok::Comma => is_clause,
            Tok::Op => self.at_pair(b'&', b'&'),
            Tok::Word => self.cur.is(Kw::And) || (is_clause && self.at_end_of_terms()),
            _ => false,
        }
    }

    /// A term begins here. Takes what it understands of it.
    fn term(&mut self, level: &mut Level, is_clause: bool) {
        let first = self.conditions.constants.len();
        let computed = self.computes;
        let told = match self.constant() {
            Some(constant) => self.constant_first(constant),
            None => self.column_first(level),
        };
        let told = told.filter(|_| self.is_bounded(is_clause));
        let is_kept = told.is_some_and(|(column, comparison)| self.keep(column, comparison, first));
        if is_kept {
            // A column and constants, whatever becomes of the condition.
            self.computes = computed;
        } else {
            self.conditions.constants.truncate(first);
        }
    }

    /// Adds a condition; its constants are the last ones.
    fn keep(&mut self, column: Column, comparison: Comparison, first: usize) -> bool {
        let (Some(table), Some(name)) = (column.table, self.column_name(column.name)) else {
            return false;
        };
        let len = self.conditions.constants.len() - first;
        let (Ok(first), Ok(len)) = (u16::try_from(first), u16::try_from(len)) else {
            return false;
        };
        if self.conditions.list.len() >= CONDITIONS_MAX {
            return false;
        }
        self.conditions.list.push(Condition {
            table,
            column: name,
            comparison,
            constants: (first, len),
        });
        true
    }

    /// Names beyond ASCII are compared by rules of the server's own.
    pub(crate) fn column_name(&self, name: Token) -> Option<ColumnName> {
        let name = crate::ident::unquote_ident(self.bytes(name));
        let lower = name.iter().map(u8::to_ascii_lowercase).collect();
        name.is_ascii().then_some(lower)
    }

    /// `5 = column`
    fn constant_first(&mut self, constant: Constant) -> Option<(Column, Comparison)> {
        let comparison = match self.comparison()? {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            same => same,
        };
        let column = self.column()?;
        self.conditions.constants.push(constant);
        Some((column, comparison))
    }

    /// `column = 5`, `column BETWEEN 1 AND 2`, `column IN (1, 2)`
    fn column_first(&mut self, level: &mut Level) -> Option<(Column, Comparison)> {
        let column = self.column()?;
        if self.cur.is(Kw::In) {
            self.bump();
            return self.list().then_some((column, Comparison::In));
        }
        if self.cur.tok == Tok::Word && self.cur.id.part() == Part::Between {
            self.bump();
            level.betweens += 1;
            let low = self.constant()?;
            if !self.cur.is(Kw::And) {
                return None;
            }
            self.bump();
            level.betweens -= 1;
            let high = self.constant()?;
            self.conditions.constants.extend([low, high]);
            return Some((column, Comparison::Between));
        }
        let comparison = self.comparison()?;
        let constant = self.constant()?;
        self.conditions.constants.push(constant);
        Some((column, comparison))
    }

    /// The constants of an IN. Takes the parentheses whatever is in them.
    fn list(&mut self) -> bool {
        if self.cur.tok != Tok::Open {
            return false;
        }
        let outside = self.depth();
        self.bump();
        for _ in 0..LIST_MAX {
            let Some(constant) = self.constant() else {
                break;
            };
            self.conditions.constants.push(constant);
            match self.cur.tok {
                Tok::Comma => self.bump(),
                Tok::Close => {
                    self.bump();
                    return true;
                }
                _ => break,
            }
        }
        self.leave_group(outside);
        false
    }

    /// `=`, `<=>`, `<`, `<=`, `>`, `>=`. Takes nothing else, but may have taken the beginning of `<>` and `<<`.
    fn comparison(&mut self) -> Option<Comparison> {
        if self.cur.tok == Tok::Equal {
            self.bump();
            return Some(Comparison::Equal);
        }
        let is_less = match self.bytes(self.cur) {
            b"<" => true,
            b">" => false,
            _ => return None,
        };
        let has_equal = self.at_pair(if is_less { b'<' } else { b'>' }, b'=');
        self.bump();
        if !has_equal {
            return Some(match is_less {
                true => Comparison::Less,
                false => Comparison::Greater,
            });
        }
        let is_null_safe = is_less && self.at_pair(b'=', b'>');
        self.bump();
        if is_null_safe {
            self.bump();
            return Some(Comparison::NullSafeEqual);
        }
        Some(match is_less {
            true => Comparison::LessOrEqual,
            false => Comparison::GreaterOrEqual,
        })
    }

    /// A column, with its table or without. Takes nothing that opens a group or joins terms.
    fn column(&mut self) -> Option<Column> {
        let joins = matches!(
            self.cur.kw(),
            Kw::Case | Kw::And | Kw::Or | Kw::True | Kw::False | Kw::Null
        );
        let joins = joins
            || (self.cur.tok == Tok::Word
                && matches!(self.cur.id.part(), Part::Between | Part::Xor));
        if !self.cur.is_name() || joins || self.next.tok == Tok::Open || self.is_of_the_moment() {
            return None;
        }
        let mut names: SmallVec<[Token; 3]> = smallvec![self.cur];
        self.bump();
        while self.cur.tok == Tok::Dot && self.next.is_name() && names.len() < 3 {
            self.bump();
            if self.next.tok == Tok::Open {
                return None;
            }
            names.push(self.cur);
            self.bump();
        }
        if self.cur.tok == Tok::Dot {
            return None;
        }
        let (table, name) = match *names.as_slice() {
            [name] => (self.only_table(), name),
            [table, name] => (self.table_of(None, table.span()), name),
            [schema, table, name] => (self.table_of(Some(schema.span()), table.span()), name),
            _ => return None,
        };
        Some(Column { table, name })
    }

    /// A constant; nothing is taken where there is none.
    pub(crate) fn constant(&mut self) -> Option<Constant> {
        let sign = match self.bytes(self.cur) {
            b"-" => Some(true),
            b"+" => Some(false),
            _ => None,
        };
        let token = if sign.is_some() { self.next } else { self.cur };
        let written = self.bytes(token);
        let is_integer = token.tok == Tok::Number && written.iter().all(u8::is_ascii_digit);
        if sign.is_some() && !is_integer {
            return None;
        }
        let literal = || {
            let place = u16::try_from(self.literals).ok()?;
            Some(Literal {
                span: token.span(),
                place,
            })
        };
        let constant = match token.tok {
            Tok::Number if is_integer => Constant::Integer {
                negative: sign == Some(true),
                digits: literal()?,
            },
            Tok::Number if matches!(written, [b'0', b'x', ..] | [b'x' | b'X', b'\'', ..]) => {
                Constant::Hex(literal()?)
            }
            Tok::Str if !matches!(written, [b'n' | b'N', ..]) => Constant::Text(literal()?),
            Tok::Param => Constant::Parameter(u16::try_from(self.parameters()).ok()?),
            _ => return None,
        };
        if sign.is_some() {
            self.bump();
        }
        self.bump();
        Some(constant)
    }

    /// Drops what may be true of a row that an outer join has completed with NULL.
    pub(super) fn drop_what_null_fulfils(&mut self) {
        let Conditions { list, constants } = &mut *self.conditions;
        list.retain(|condition| {
            let first = constants.get(usize::from(condition.constants.0));
            condition.comparison != Comparison::NullSafeEqual
                || !matches!(first, Some(Constant::Parameter(_)))
        });
    }
}
