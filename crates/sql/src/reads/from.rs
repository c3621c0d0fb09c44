//! The outermost query block: its FROM, and where the terms of its joins and of WHERE begin. Gives conditions up where it
//! does not know the way.
//!
//! A term that is not true of NULL holds of all rows of its table that can influence the result, also where the
//! table stands on the side of an outer join that is completed with NULL. Other rows of it join to rows that the
//! term removes. Where they would have kept a row from being completed, the term removes the completed row too.
//! That is true of terms in WHERE, and of those in ON of an inner join for the tables that it joins. Terms in ON of
//! outer joins are left out.

use super::walk::{Item, Walk};
use crate::lexer::Tok;
use crate::statement::Span;
use crate::words::{Kw, Part};

/// Whose rows stay without a partner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    Inner,
    Outer,
}

impl Walk<'_, '_> {
    /// Reads the outermost block, as far as there is one.
    pub(super) fn outermost_query(&mut self) {
        if !self.skip_to_select() {
            self.gave_up = true;
            return;
        }
        self.bump();
        self.skip_to_from();
        if self.cur.is(Kw::From) {
            self.bump();
            if !self.tables() {
                self.gave_up = true;
            }
        }
    }

    /// Over WITH and its definitions.
    fn skip_to_select(&mut self) -> bool {
        if !matches!(self.cur.kw(), Kw::Select | Kw::With) {
            return false;
        }
        while !self.at_end() && !self.gave_up {
            match self.cur.tok {
                Tok::Open => self.skip_group(),
                Tok::Word if self.cur.is(Kw::Select) => return true,
                Tok::Word if matches!(self.cur.kw(), Kw::Values | Kw::Table) => return false,
                _ => self.bump(),
            }
        }
        false
    }

    fn skip_to_from(&mut self) {
        while !self.at_end() && !self.cur.is(Kw::From) {
            match self.cur.tok {
                Tok::Open => self.skip_group(),
                _ => self.bump(),
            }
        }
    }

    /// FROM's tables and joins, and WHERE. False: not understood.
    fn tables(&mut self) -> bool {
        let mut join = Join::Inner;
        let mut is_item_due = true;
        loop {
            if self.gave_up {
                return true;
            }
            if std::mem::take(&mut is_item_due) {
                if !self.item() {
                    return false;
                }
                continue;
            }
            match self.cur.kw() {
                Kw::On if join == Join::Outer => {
                    join = Join::Inner;
                    self.bump();
                    self.conjunction(false);
                    continue;
                }
                Kw::On => {
                    self.bump();
                    self.conjunction(true);
                    continue;
                }
                Kw::Using if self.next.tok == Tok::Open => {
                    join = Join::Inner;
                    self.bump();
                    self.skip_group();
                    continue;
                }
                _ => {}
            }
            // An outer join's ON must follow its table: else it is not clear whose the next ON is.
            if join == Join::Outer {
                return false;
            }
            match self.joiner() {
                Some(found) => join = found,
                None => break,
            }
            self.has_outer_join |= join == Join::Outer;
            is_item_due = true;
        }
        if self.cur.is(Kw::Where) {
            self.bump();
            self.conjunction(true);
        }
        self.at_clause()
    }

    /// A comma, or a JOIN with the words before it.
    fn joiner(&mut self) -> Option<Join> {
        if self.cur.tok == Tok::Comma || self.cur.is(Kw::StraightJoin) {
            self.bump();
            return Some(Join::Inner);
        }
        let join = match self.cur.id.part() {
            Part::Left | Part::Right => Join::Outer,
            _ => Join::Inner,
        };
        let is_joiner = |walk: &Self| {
            matches!(
                walk.cur.id.part(),
                Part::Inner | Part::Cross | Part::Left | Part::Right
            )
        };
        if self.cur.tok == Tok::Word && is_joiner(self) {
            self.bump();
            if join == Join::Outer && self.cur.id.part() == Part::Outer {
                self.bump();
            }
        }
        if !self.cur.is(Kw::Join) {
            return None;
        }
        self.bump();
        Some(join)
    }

    /// A table, a query in parentheses or a table function, with its alias.
    fn item(&mut self) -> bool {
        if self.cur.is(Kw::Lateral) && self.next.tok == Tok::Open {
            self.bump();
        }
        let mut item = Item {
            visible: None,
            schema: None,
            table: None,
        };
        if self.cur.tok == Tok::Open {
            let is_query = matches!(
                self.next.kw(),
                Kw::Select | Kw::With | Kw::Values | Kw::Table
            );
            if !is_query {
                return false;
            }
            self.skip_group();
        } else if self.cur.is_name() && self.next.tok == Tok::Open {
            self.bump();
            self.skip_group();
        } else if !self.table_name(&mut item) {
            return false;
        }
        self.behind_table(item)
    }

    /// `name` or `schema.name`.
    pub(crate) fn table_name(&mut self, item: &mut Item) -> bool {
        if !self.cur.is_name() || self.cur.is(Kw::Dual) {
            return false;
        }
        let mut name = self.cur.span();
        self.bump();
        if self.cur.tok == Tok::Dot {
            self.bump();
            if !self.cur.is_name() {
                return false;
            }
            item.schema = Some(name);
            name = self.cur.span();
            self.bump();
        }
        item.visible = Some(name);
        item.table = self.table_at(name);
        self.cur.tok != Tok::Dot
    }

    /// Partitions, the alias with its columns, index hints.
    pub(crate) fn behind_table(&mut self, mut item: Item) -> bool {
        if self.cur.id.part() == Part::Partition && self.next.tok == Tok::Open {
            self.bump();
            self.skip_group();
        }
        let has_as = self.cur.is(Kw::As);
        if has_as {
            self.bump();
        }
        if self.cur.is_name() && (has_as || !self.goes_on()) {
            item.visible = Some(self.cur.span());
            item.schema = None;
            self.bump();
            if self.cur.tok == Tok::Open && item.table.is_none() {
                self.skip_group();
            }
        } else if has_as {
            return false;
        }
        self.items.push(item);
        while self.at_index_hint() {
            while !self.at_end() && self.cur.tok != Tok::Open {
                self.bump();
            }
            self.skip_group();
        }
        true
    }

    /// The word is no alias: it begins what may follow a table.
    fn goes_on(&self) -> bool {
        let word = self.cur;
        word.tok == Tok::Word
            && (self.at_clause_word()
                || matches!(
                    word.kw(),
                    Kw::On
                        | Kw::Using
                        | Kw::Use
                        | Kw::Ignore
                        | Kw::Join
                        | Kw::StraightJoin
                        | Kw::Where
                        | Kw::Full
                        | Kw::Set
                )
                || self.at_returning()
                || matches!(
                    word.id.part(),
                    Part::Force
                        | Part::Inner
                        | Part::Cross
                        | Part::Left
                        | Part::Right
                        | Part::Natural
                        | Part::Partition
                ))
    }

    /// RETURNING of a statement that writes. MySQL has none, and columns may have that name.
    pub(crate) fn at_returning(&self) -> bool {
        self.cur.is(Kw::Returning) && self.is_mariadb()
    }

    fn at_index_hint(&self) -> bool {
        let verb = matches!(self.cur.kw(), Kw::Use | Kw::Ignore)
            || (self.cur.tok == Tok::Word && self.cur.id.part() == Part::Force);
        verb && matches!(self.next.kw(), Kw::Index | Kw::Key)
    }

    /// The block's FROM and WHERE end here.
    fn at_clause(&self) -> bool {
        self.at_end() || self.at_clause_word()
    }

    fn at_clause_word(&self) -> bool {
        matches!(
            self.cur.kw(),
            Kw::Group
                | Kw::Having
                | Kw::Order
                | Kw::Limit
                | Kw::Window
                | Kw::Qualify
                | Kw::Union
                | Kw::Except
                | Kw::Intersect
                | Kw::For
                | Kw::Lock
        )
    }

    /// A word behind a whole term: a further clause, or a further table.
    pub(super) fn at_end_of_terms(&self) -> bool {
        let word = self.cur;
        self.at_clause()
            || self.at_returning()
            || matches!(
                word.kw(),
                Kw::Where | Kw::Join | Kw::StraightJoin | Kw::On | Kw::Using
            )
            || (word.tok == Tok::Word
                && match word.id.part() {
                    Part::Inner | Part::Cross | Part::Natural => true,
                    // LEFT and RIGHT are functions too.
                    Part::Left | Part::Right => self.next.tok == Tok::Word,
                    _ => false,
                })
    }

    /// The table that a qualified column is of: the only one with that name. Names are compared without regard to case,
    /// so that where a server tells two apart there is none.
    pub(super) fn table_of(&self, schema: Option<Span>, table: Span) -> Option<u16> {
        let same = |a: Span, b: Span| crate::ident::same(a.of(self.text), b.of(self.text));
        let mut found = None;
        for item in &self.items {
            if !item.visible.is_some_and(|visible| same(visible, table)) {
                continue;
            }
            let other_schema = matches!((schema, item.schema), (Some(a), Some(b)) if !same(a, b));
            if other_schema {
                continue;
            }
            if found.is_some() {
                return None;
            }
            found = Some(item);
        }
        found?.table
    }

    /// The table that a column without qualifier is of.
    pub(super) fn only_table(&self) -> Option<u16> {
        match self.items.as_slice() {
            [only] => only.table,
            _ => None,
        }
    }
}
