//! What the result cache must know of an INSERT, REPLACE, UPDATE or DELETE: which table it writes, and which of its
//! rows. Knows no table's definition and evaluates nothing. Where the text leaves a doubt less is told.
//!
//! Whoever makes keys of what is told must know more than a text can tell:
//! - Triggers, and foreign keys that cascade, write other rows and other tables. A trigger may give a row another key than
//!   its text has. Names may be views.
//! - A server may store another value than is written: 0 of an AUTO_INCREMENT column becomes the next number (without
//!   NO_AUTO_VALUE_ON_ZERO), what does not fit becomes the nearest that does (without strict mode). A column may be
//!   generated, and one ON UPDATE CURRENT_TIMESTAMP changes although it is not assigned.
//! - An INSERT that names no columns means those that are visible.
//! - A `?` may be bound to DEFAULT, and to many values by one command (COM_STMT_BULK_EXECUTE).

mod rows;
mod walk;

use smallvec::SmallVec;

use crate::mode::LexMode;
use crate::reads::walk::Walk;
use crate::reads::{ColumnName, Condition, Conditions, Constant};
use crate::statement::Statement;

/// The answer of [`writes`]. Meant to be reused: it keeps its memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writes {
    /// Which of [`Statement::tables`] it writes, the only one. None: not understood, and nothing else is told. All others
    /// are read.
    pub table: Option<u16>,
    /// Conditions that all rows meet which UPDATE changes and DELETE deletes, as they are before. Those of an UPDATE may
    /// not meet them behind it, where their columns are in `assigned`.
    pub conditions: Conditions,
    /// The columns that UPDATE assigns, or ON DUPLICATE KEY UPDATE; all of them, each as often as it is written.
    pub assigned: SmallVec<[ColumnName; 8]>,
    /// The columns that the rows of an INSERT or REPLACE are of, in order. Empty where the text names none: those of the
    /// table. Told only with rows.
    pub columns: SmallVec<[ColumnName; 8]>,
    /// It may change or delete rows beside those that it inserts: REPLACE, ON DUPLICATE KEY UPDATE.
    pub replaces: bool,
    inserts: rows::Inserts,
}

impl Writes {
    /// How many rows an INSERT or REPLACE has in its text. 0: they come from a query, or cannot be told.
    pub fn rows(&self) -> usize {
        self.inserts.rows
    }

    /// The values of one of these rows, one for each of the columns. None: anything but a constant standing alone; also
    /// DEFAULT and NULL. A row is empty where all columns have their defaults.
    pub fn row(&self, at: usize) -> &[Option<Constant>] {
        self.inserts.row(at)
    }

    /// See [`Conditions::constants`].
    pub fn constants(&self, condition: &Condition) -> &[Constant] {
        self.conditions.constants(condition)
    }

    /// See [`Conditions::on`].
    pub fn conditions_on(&self, table: usize) -> impl Iterator<Item = &Condition> {
        self.conditions.on(table)
    }

    fn clear(&mut self) {
        self.table = None;
        self.conditions.clear();
        self.assigned.clear();
        self.columns.clear();
        self.replaces = false;
        self.inserts.clear();
    }
}

/// Reads `text`, which [`classify`](crate::classify) has read as `statement` in the same `mode`, and stores the answer
/// in `out`. Never panics, whatever the bytes.
///
/// Another text of the same shape has the same answer, but for the spans.
pub fn writes(text: &[u8], mode: &LexMode, statement: &Statement, out: &mut Writes) {
    out.clear();
    if !walk::is_readable(mode, statement) {
        return;
    }
    let Writes {
        conditions,
        assigned,
        columns,
        replaces,
        inserts,
        ..
    } = out;
    let walk = Walk::new(text, mode, statement, conditions);
    let mut lists = walk::Lists {
        assigned,
        columns,
        replaces,
        inserts,
    };
    match walk.written(&mut lists) {
        Some(table) => out.table = Some(table),
        None => out.clear(),
    }
}

#[cfg(test)]
mod tests;
