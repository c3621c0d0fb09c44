//! Splits a text into the statements that `;` separates. Says nothing about what they are.

use crate::classify::Parser;
use crate::mode::LexMode;
use crate::statement::{Span, Statement};

/// Iterates over the statements of a text; see [`parts`].
pub struct Parts<'t> {
    text: &'t [u8],
    mode: &'t LexMode,
    at: usize,
    scratch: Statement,
}

/// The statements in `text` that `;` separates, without their `;`, leaving out empty ones.
/// Comments before a statement belong to it. The body of a stored routine is not taken apart. Each span can be
/// classified by itself, as the servers do.
pub fn parts<'t>(text: &'t [u8], mode: &'t LexMode) -> Parts<'t> {
    Parts {
        text,
        mode,
        at: 0,
        scratch: Statement::default(),
    }
}

impl Iterator for Parts<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let rest = self.text.get(self.at..)?;
        u32::try_from(self.text.len()).ok()?;
        self.scratch.clear();
        let part = Parser::new(rest, self.mode, &mut self.scratch).part()?;
        let base = self.at as u32;
        self.at += part.end as usize;
        Some(Span {
            start: base + part.start,
            end: base + part.end,
        })
    }
}
