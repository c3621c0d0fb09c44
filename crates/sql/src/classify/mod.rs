//! From tokens to a [`Statement`]: the statement's first words choose a reader, one per file.
//! Reads each byte once and never looks at anything but the text and the mode.

mod ddl;
mod dispatch;
mod parser;
mod query;
mod scan;
mod session;
mod set;
mod show;
mod system;
mod system_tables;

use crate::lexer::Tok;
use crate::statement::{Access, Flags, Kind, Span};

pub(crate) use parser::Parser;

impl Parser<'_, '_> {
    /// Reads the whole text.
    pub(crate) fn run(&mut self) {
        self.out.clear();
        self.out.kind = Kind::Empty;
        self.out.access = Access::Session;
        self.out.access_if_calls_read = Access::Session;
        while self.part().is_some() {}
        self.out.flags |= self.lexer.notes;
        self.out.hint = self.lexer.hint;
        if self.lexer.notes.contains(Flags::UNTERMINATED) {
            self.unknown();
        }
    }

    /// Reads one statement up to its `;` and folds it into the answer. Gives its span, or None
    /// at the end of the text.
    pub(crate) fn part(&mut self) -> Option<Span> {
        while self.cur.tok == Tok::Semicolon {
            self.end_of_part();
            self.bump();
        }
        if self.cur.tok == Tok::End {
            return None;
        }
        let before = (
            self.out.kind,
            self.out.access,
            self.out.access_if_calls_read,
        );
        let flags_before = std::mem::take(&mut self.out.flags);
        self.calls_before = self.out.functions.len();
        let rest = self.text.get(self.part_start as usize..).unwrap_or(&[]);
        let blanks = rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
        let start = self.part_start + blanks as u32;
        self.out.kind = Kind::Unknown;
        self.statement();
        let end = self.cur.start.max(start);
        let span = Span { start, end };
        self.out.flags |= flags_before;
        self.out.parts = self.out.parts.saturating_add(1);
        if self.out.parts > 1 {
            self.join(before);
        }
        Some(span)
    }

    /// At a `;` between statements. The server reads the next one with a fresh lexer, which knows
    /// nothing of a version comment that is still open: such a text is not understood.
    fn end_of_part(&mut self) {
        self.part_start = self.cur.end;
        if self.cur.glued {
            self.lexer.notes |= Flags::UNTERMINATED;
        }
    }

    /// Makes one answer of the statements so far and the one just read.
    fn join(&mut self, (kind, access, if_calls_read): (Kind, Access, Access)) {
        let reads = |access| matches!(access, Access::Read | Access::PrimaryRead);
        let both = |a: Access, b: Access| {
            if reads(a) && reads(b) {
                a.max(b)
            } else {
                Access::Write
            }
        };
        let unknown = kind == Kind::Unknown || self.out.kind == Kind::Unknown;
        self.out.kind = if unknown { Kind::Unknown } else { Kind::Multi };
        self.out.access = both(access, self.out.access);
        self.out.access_if_calls_read = both(if_calls_read, self.out.access_if_calls_read);
    }
}
