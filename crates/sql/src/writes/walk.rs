//! The clauses of a statement that writes one table. What is not exactly known is not understood: texts that no server
//! accepts may be taken for others, as they write nothing.

use smallvec::SmallVec;

use super::rows::Inserts;
use crate::lexer::{Tok, Token};
use crate::mode::LexMode;
use crate::reads::ColumnName;
use crate::reads::walk::{Item, Walk};
use crate::statement::{Flags, Kind, Statement, TableUse};
use crate::words::{Kw, Part};

/// What is found, but for the conditions.
pub(super) struct Lists<'o> {
    pub(super) assigned: &'o mut SmallVec<[ColumnName; 8]>,
    pub(super) columns: &'o mut SmallVec<[ColumnName; 8]>,
    pub(super) replaces: &'o mut bool,
    pub(super) inserts: &'o mut Inserts,
}

/// Whether a statement may be told: it writes one table, and nothing of it changes how its text is read or run.
pub(super) fn is_readable(mode: &LexMode, statement: &Statement) -> bool {
    // These read, or concern the session. Of all others it is not known what they change.
    let harmless = Flags::PARAMETERS
        | Flags::COMPOUND_QUERY
        | Flags::COMMENT
        | Flags::MENTIONS_SESSION_TRACK
        | Flags::NONDETERMINISTIC
        | Flags::READS_USER_VARS
        | Flags::READS_SYSVARS
        | Flags::SERVER_LOCAL
        | Flags::LOCKING_READ
        | Flags::LOAD_FILE
        | Flags::RETURNING
        | Flags::SETS_LAST_INSERT_ID
        | Flags::USES_CONNECTION_ID
        | Flags::USES_FOUND_ROWS
        | Flags::USES_LAST_INSERT_ID
        | Flags::USES_ROW_COUNT
        | Flags::USES_WARNING_COUNT
        | Flags::UUID_SHORT;
    let writes_once = || {
        let mut written = statement.tables.iter().filter(|table| {
            // Names of other uses are no reads either.
            table.usage != TableUse::Read
        });
        written
            .next()
            .is_some_and(|table| table.usage == TableUse::Write)
            && written.next().is_none()
    };
    matches!(
        statement.kind,
        Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete
    ) && statement.parts == 1
        && !mode.oracle_mode
        && harmless.contains(statement.flags)
        && statement.functions.is_empty()
        && writes_once()
}

impl Walk<'_, '_> {
    /// Reads the text. None: not understood. Else which of the statement's tables it writes.
    pub(super) fn written(mut self, lists: &mut Lists<'_>) -> Option<u16> {
        let verb = self.cur.kw();
        self.bump();
        let table = match (verb, self.statement.kind) {
            (Kw::Insert, Kind::Insert) => self.insert(lists, false),
            (Kw::Replace, Kind::Replace) => self.insert(lists, true),
            (Kw::Update, Kind::Update) => self.update(lists),
            (Kw::Delete, Kind::Delete) => self.delete(),
            _ => None,
        }?;
        while !self.at_end() {
            self.bump();
        }
        let is_whole = !self.gave_up && self.depth() == 0 && self.cur.tok != Tok::Bad;
        let is_written = self
            .statement
            .tables
            .get(usize::from(table))
            .is_some_and(|table| table.usage == TableUse::Write);
        (is_whole && is_written).then_some(table)
    }

    /// `UPDATE t SET v = 1 WHERE id = 5`
    fn update(&mut self, lists: &mut Lists<'_>) -> Option<u16> {
        self.skip_words(&[Kw::LowPriority, Kw::Ignore]);
        let table = self.target()?;
        if !self.cur.is(Kw::Set) {
            return None;
        }
        self.bump();
        self.assignments(lists.assigned)?;
        self.filter()?;
        Some(table)
    }

    /// `DELETE FROM t WHERE id = 5`
    fn delete(&mut self) -> Option<u16> {
        self.skip_words(&[Kw::LowPriority, Kw::Quick, Kw::Ignore]);
        if !self.cur.is(Kw::From) {
            return None;
        }
        self.bump();
        let table = self.target()?;
        self.filter()?;
        Some(table)
    }

    fn skip_words(&mut self, words: &[Kw]) {
        while words.iter().any(|word| self.cur.is(*word)) {
            self.bump();
        }
    }

    /// The one table of UPDATE or DELETE, with its alias and its index hints.
    fn target(&mut self) -> Option<u16> {
        let item = self.named_table()?;
        let table = item.table?;
        if self.at_partition() || !self.behind_table(item) {
            return None;
        }
        Some(table)
    }

    fn named_table(&mut self) -> Option<Item> {
        let mut item = Item {
            visible: None,
            schema: None,
            table: None,
        };
        self.table_name(&mut item).then_some(item)
    }

    /// Which rows are deleted where a partition is named is for the table's definition to tell.
    fn at_partition(&self) -> bool {
        self.cur.tok == Tok::Word && self.cur.id.part() == Part::Partition
    }

    /// WHERE, and what may follow it.
    fn filter(&mut self) -> Option<()> {
        if self.cur.is(Kw::Where) {
            self.bump();
            self.conjunction(true);
        }
        let is_followed = matches!(self.cur.kw(), Kw::Order | Kw::Limit) || self.at_returning();
        (is_followed || self.at_end()).then_some(())
    }

    /// `a = 1, t.b = 2`
    fn assignments(&mut self, assigned: &mut SmallVec<[ColumnName; 8]>) -> Option<()> {
        loop {
            assigned.push(self.assigned_column()?);
            self.value();
            if self.cur.tok != Tok::Comma {
                return Some(());
            }
            self.bump();
        }
    }

    /// The column before `=`, and that.
    fn assigned_column(&mut self) -> Option<ColumnName> {
        let name = self.qualified()?;
        let name = self.column_name(name)?;
        if self.cur.tok != Tok::Equal {
            return None;
        }
        self.bump();
        Some(name)
    }

    /// A column's name with what qualifies it. That can be nothing but the one table.
    fn qualified(&mut self) -> Option<Token> {
        let mut name = self.cur;
        if !name.is_name() {
            return None;
        }
        self.bump();
        while self.cur.tok == Tok::Dot {
            self.bump();
            name = self.cur;
            if !name.is_name() {
                return None;
            }
            self.bump();
        }
        Some(name)
    }

    /// `INSERT INTO t (a, b) VALUES (1, 2)`, and REPLACE.
    fn insert(&mut self, lists: &mut Lists<'_>, replaces: bool) -> Option<u16> {
        self.skip_words(&[Kw::LowPriority, Kw::HighPriority, Kw::Delayed, Kw::Ignore]);
        if self.cur.is(Kw::Into) {
            self.bump();
        }
        let table = self.named_table()?.table?;
        if self.at_partition() {
            return None;
        }
        *lists.replaces = replaces;
        let mut is_told = true;
        if self.cur.tok == Tok::Open && !self.opens_query() {
            is_told = self.column_list(lists.columns)?;
        }
        is_told &= match self.cur.kw() {
            Kw::Values | Kw::Value => {
                self.bump();
                self.rows(lists.inserts)? && lists.inserts.fit(lists.columns.len())
            }
            Kw::Set if lists.columns.is_empty() => {
                self.bump();
                self.set_row(lists)?
            }
            Kw::Select | Kw::With | Kw::Table => {
                self.query()?;
                false
            }
            _ if self.cur.tok == Tok::Open => {
                self.query()?;
                false
            }
            _ => return None,
        };
        if !is_told {
            lists.columns.clear();
            lists.inserts.clear();
        }
        self.behind_rows(lists)?;
        Some(table)
    }

    /// Parentheses that hold a query, or further ones.
    fn opens_query(&self) -> bool {
        let is_query = matches!(
            self.next.kw(),
            Kw::Select | Kw::With | Kw::Values | Kw::Table
        );
        is_query || self.next.tok == Tok::Open
    }

    /// The columns in parentheses. False: they are not to be told.
    fn column_list(&mut self, columns: &mut SmallVec<[ColumnName; 8]>) -> Option<bool> {
        self.bump();
        let mut is_told = true;
        if self.cur.tok == Tok::Close {
            self.bump();
            return Some(true);
        }
        loop {
            let name = self.qualified()?;
            match self.column_name(name) {
                Some(name) => columns.push(name),
                None => is_told = false,
            }
            match self.cur.tok {
                Tok::Comma => self.bump(),
                Tok::Close => break,
                _ => return None,
            }
        }
        self.bump();
        Some(is_told)
    }

    /// INSERT … SET: one row. False: its columns are not to be told.
    fn set_row(&mut self, lists: &mut Lists<'_>) -> Option<bool> {
        let mut is_told = true;
        loop {
            lists.columns.push(self.assigned_column()?);
            let value = self.value();
            is_told = is_told && lists.inserts.push(value);
            if self.cur.tok != Tok::Comma {
                break;
            }
            self.bump();
        }
        Some(is_told && lists.inserts.end_row())
    }

    /// The query that rows come from, up to the end. Where its ON is, and where that of DUPLICATE, is not told apart.
    fn query(&mut self) -> Option<()> {
        while !self.at_end() {
            if self.cur.is(Kw::On) && self.at_duplicate() {
                return None;
            }
            match self.cur.tok {
                Tok::Open => self.skip_group(),
                _ => self.bump(),
            }
        }
        Some(())
    }

    fn at_duplicate(&self) -> bool {
        self.next.tok == Tok::Word && self.bytes(self.next).eq_ignore_ascii_case(b"DUPLICATE")
    }

    /// `AS new (a, b) ON DUPLICATE KEY UPDATE c = 1 RETURNING d`
    fn behind_rows(&mut self, lists: &mut Lists<'_>) -> Option<()> {
        if self.cur.is(Kw::As) {
            self.bump();
            if !self.cur.is_name() {
                return None;
            }
            self.bump();
            if self.cur.tok == Tok::Open {
                self.skip_group();
            }
        }
        if self.cur.is(Kw::On) {
            if !self.at_duplicate() {
                return None;
            }
            self.bump();
            self.bump();
            for word in [Kw::Key, Kw::Update] {
                if !self.cur.is(word) {
                    return None;
                }
                self.bump();
            }
            *lists.replaces = true;
            self.assignments(lists.assigned)?;
        }
        (self.at_end() || self.at_returning()).then_some(())
    }
}
