//! What every reader of statements uses: the tokens at hand, names, variables, and what is noted of them.

use super::system_tables;
use crate::lexer::{Lexer, Tok, Token};
use crate::mode::LexMode;
use crate::statement::{
    ABOUT_SERVER, ABOUT_SESSION, Access, Flags, Kind, NameRef, Span, Statement, TableRef, TableUse,
};
use crate::words::Kw;

/// Lists grow no longer than this; [`Flags::TRUNCATED`] says that one would have.
const LIST_MAX: usize = 4096;

/// Reads one statement after the other from a text.
pub(crate) struct Parser<'t, 'o> {
    pub(super) text: &'t [u8],
    pub(super) mode: &'t LexMode,
    pub(super) lexer: Lexer<'t>,
    /// The token before the current one.
    pub(super) prev: Token,
    pub(super) cur: Token,
    pub(super) next: Token,
    /// Where the current statement starts, with the comments before it.
    pub(super) part_start: u32,
    /// How many calls the statements before this one have listed.
    pub(super) calls_before: usize,
    pub(super) out: &'o mut Statement,
}

impl<'t, 'o> Parser<'t, 'o> {
    pub(crate) fn new(text: &'t [u8], mode: &'t LexMode, out: &'o mut Statement) -> Self {
        let mut lexer = Lexer::new(text, mode);
        let cur = lexer.next();
        let next = lexer.next();
        Parser {
            text,
            mode,
            lexer,
            prev: cur,
            cur,
            next,
            part_start: 0,
            calls_before: 0,
            out,
        }
    }

    pub(super) fn unknown(&mut self) {
        self.out.kind = Kind::Unknown;
        self.set_access(Access::Write);
    }

    pub(super) fn set_access(&mut self, access: Access) {
        self.out.access = access;
        self.out.access_if_calls_read = access;
    }

    /// Makes the access that flags ask for at least `base`, and sets it.
    pub(super) fn access_from(&mut self, base: Access) {
        self.access_from_flags(base, self.out.flags);
    }

    pub(super) fn access_from_flags(&mut self, base: Access, flags: Flags) {
        let calls = self.out.functions.len() > self.calls_before;
        let least = base.max(access_of(flags));
        self.out.access_if_calls_read = least;
        self.out.access = if calls { Access::Write } else { least };
    }

    pub(super) fn bump(&mut self) {
        self.prev = self.cur;
        self.cur = self.next;
        self.next = self.lexer.next();
    }

    /// Takes the current token where it is this keyword.
    pub(super) fn eat(&mut self, kw: Kw) -> bool {
        let found = self.cur.is(kw);
        if found {
            self.bump();
        }
        found
    }

    pub(super) fn eat_tok(&mut self, tok: Tok) -> bool {
        let found = self.cur.tok == tok;
        if found {
            self.bump();
        }
        found
    }

    pub(super) fn at_end(&self) -> bool {
        matches!(self.cur.tok, Tok::End | Tok::Semicolon | Tok::Bad)
    }

    pub(super) fn bytes(&self, token: Token) -> &'t [u8] {
        token.span().of(self.text)
    }

    pub(super) fn cur_eq(&self, word: &str) -> bool {
        self.cur.tok == Tok::Word && self.bytes(self.cur).eq_ignore_ascii_case(word.as_bytes())
    }

    pub(super) fn next_eq(&self, word: &str) -> bool {
        self.next.tok == Tok::Word && self.bytes(self.next).eq_ignore_ascii_case(word.as_bytes())
    }

    pub(super) fn flag(&mut self, flags: Flags) {
        self.out.flags |= flags;
    }

    /// `name` or `schema.name`; None, and nothing taken, where no name stands here.
    pub(super) fn name(&mut self) -> Option<NameRef> {
        if self.cur.tok == Tok::Dot && self.next.is_name() {
            self.bump();
        }
        if !self.cur.is_name() {
            return None;
        }
        let mut name = NameRef {
            schema: None,
            name: self.cur.span(),
        };
        self.bump();
        while self.cur.tok == Tok::Dot && self.next.is_name() {
            self.bump();
            name = NameRef {
                schema: Some(name.name),
                name: self.cur.span(),
            };
            self.bump();
        }
        if self.cur.tok == Tok::Dot && self.next.tok == Tok::Star {
            self.bump();
            self.bump();
        }
        Some(name)
    }

    /// Reads a table's name and lists it.
    pub(super) fn table(&mut self, usage: TableUse) -> Option<NameRef> {
        let name = self.name()?;
        self.add_table(name, usage);
        Some(name)
    }

    pub(super) fn add_table(&mut self, name: NameRef, usage: TableUse) {
        if let Some(schema) = name.schema {
            let (schema, table) = (schema.of(self.text), name.name.of(self.text));
            self.flag(system_tables::told_by(schema, table));
        }
        let table = TableRef {
            schema: name.schema,
            name: name.name,
            usage,
        };
        push(&mut self.out.tables, table, &mut self.out.flags);
    }

    /// The name of a user variable's token, without `@`.
    pub(super) fn variable_name(token: Token) -> Span {
        Span {
            start: (token.start + 1).min(token.end),
            end: token.end,
        }
    }

    pub(super) fn read_variable(&mut self, token: Token) {
        let name = Self::variable_name(token);
        push(&mut self.out.user_vars_read, name, &mut self.out.flags);
        self.flag(Flags::READS_USER_VARS);
    }

    pub(super) fn assign_variable(&mut self, token: Token) {
        let name = Self::variable_name(token);
        push(&mut self.out.user_vars_assigned, name, &mut self.out.flags);
        self.flag(Flags::ASSIGNS_USER_VARS);
    }

    /// A statement of which nothing more is to be known.
    pub(super) fn simple(&mut self, kind: Kind, access: Access) {
        self.skip_statement();
        self.out.kind = kind;
        self.set_access(access);
    }

    pub(super) fn skip_statement(&mut self) {
        while !self.at_end() {
            self.bump();
        }
    }
}

/// The least access that flags ask for.
pub(super) fn access_of(flags: Flags) -> Access {
    const WRITE: Flags = Flags::INTO_OUTFILE
        .union(Flags::LOCKING_READ)
        .union(Flags::ACQUIRES_USER_LOCK)
        .union(Flags::RELEASES_USER_LOCK)
        .union(Flags::RELEASES_ALL_USER_LOCKS)
        .union(Flags::SEQUENCE)
        .union(Flags::PROCEDURE_CLAUSE)
        .union(Flags::SET_SUBQUERY_OR_CALL)
        .union(Flags::SETS_GLOBAL)
        .union(Flags::UNTERMINATED);
    const PRIMARY: Flags = ABOUT_SESSION.union(ABOUT_SERVER);
    if flags.intersects(WRITE) {
        Access::Write
    } else if flags.intersects(PRIMARY) {
        Access::PrimaryRead
    } else {
        Access::Session
    }
}

/// Adds to a list unless it is full.
pub(super) fn push<A: smallvec::Array>(
    list: &mut smallvec::SmallVec<A>,
    item: A::Item,
    flags: &mut Flags,
) {
    if list.len() < LIST_MAX {
        list.push(item);
    } else {
        *flags |= Flags::TRUNCATED;
    }
}
