//! From tokens to a [`Statement`]: the statement's first words choose a reader, one per file.
//! Reads each byte once and never looks at anything but the text and the mode.

mod ddl;
mod query;
mod scan;
mod session;
mod set;
mod show;
mod system;

use crate::Family;
use crate::lexer::{Lexer, Tok, Token};
use crate::mode::LexMode;
use crate::statement::{Access, Flags, Kind, NameRef, Span, Statement, TableRef, TableUse};
use crate::words::Kw;

/// Lists grow no longer than this; [`Flags::TRUNCATED`] says that one would have.
const LIST_MAX: usize = 4096;

/// Reads one statement after the other from a text.
pub(crate) struct Parser<'t, 'o> {
    text: &'t [u8],
    mode: &'t LexMode,
    lexer: Lexer<'t>,
    /// The token before the current one.
    prev: Token,
    cur: Token,
    next: Token,
    /// Where the current statement starts, with the comments before it.
    part_start: u32,
    /// How many calls the statements before this one have listed.
    calls_before: usize,
    out: &'o mut Statement,
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

    fn unknown(&mut self) {
        self.out.kind = Kind::Unknown;
        self.set_access(Access::Write);
    }

    fn set_access(&mut self, access: Access) {
        self.out.access = access;
        self.out.access_if_calls_read = access;
    }

    /// Makes the access that flags ask for at least `base`, and sets it.
    fn access_from(&mut self, base: Access) {
        self.access_from_flags(base, self.out.flags);
    }

    fn access_from_flags(&mut self, base: Access, flags: Flags) {
        let calls = self.out.functions.len() > self.calls_before;
        let least = base.max(access_of(flags));
        self.out.access_if_calls_read = least;
        self.out.access = if calls { Access::Write } else { least };
    }

    fn bump(&mut self) {
        self.prev = self.cur;
        self.cur = self.next;
        self.next = self.lexer.next();
    }

    /// Takes the current token where it is this keyword.
    fn eat(&mut self, kw: Kw) -> bool {
        let found = self.cur.is(kw);
        if found {
            self.bump();
        }
        found
    }

    fn eat_tok(&mut self, tok: Tok) -> bool {
        let found = self.cur.tok == tok;
        if found {
            self.bump();
        }
        found
    }

    fn at_end(&self) -> bool {
        matches!(self.cur.tok, Tok::End | Tok::Semicolon | Tok::Bad)
    }

    /// The statement must end here; where it does not it is not understood.
    fn expect_end(&mut self) {
        if !self.at_end() {
            self.scan_unknown();
        }
    }

    fn bytes(&self, token: Token) -> &'t [u8] {
        token.span().of(self.text)
    }

    fn cur_eq(&self, word: &str) -> bool {
        self.cur.tok == Tok::Word && self.bytes(self.cur).eq_ignore_ascii_case(word.as_bytes())
    }

    fn next_eq(&self, word: &str) -> bool {
        self.next.tok == Tok::Word && self.bytes(self.next).eq_ignore_ascii_case(word.as_bytes())
    }

    fn flag(&mut self, flags: Flags) {
        self.out.flags |= flags;
    }

    /// `name` or `schema.name`; None, and nothing taken, where no name stands here.
    fn name(&mut self) -> Option<NameRef> {
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
    fn table(&mut self, usage: TableUse) -> Option<NameRef> {
        let name = self.name()?;
        self.add_table(name, usage);
        Some(name)
    }

    fn add_table(&mut self, name: NameRef, usage: TableUse) {
        self.note_system_table(name);
        let table = TableRef {
            schema: name.schema,
            name: name.name,
            usage,
        };
        push(&mut self.out.tables, table, &mut self.out.flags);
    }

    /// The name of a user variable's token, without `@`.
    fn variable_name(token: Token) -> Span {
        Span {
            start: (token.start + 1).min(token.end),
            end: token.end,
        }
    }

    fn read_variable(&mut self, token: Token) {
        let name = Self::variable_name(token);
        push(&mut self.out.user_vars_read, name, &mut self.out.flags);
        self.flag(Flags::READS_USER_VARS);
    }

    fn assign_variable(&mut self, token: Token) {
        let name = Self::variable_name(token);
        push(&mut self.out.user_vars_assigned, name, &mut self.out.flags);
        self.flag(Flags::ASSIGNS_USER_VARS);
    }

    /// Reads a statement, up to `;` or the end.
    fn statement(&mut self) {
        match self.cur.tok {
            Tok::Open => self.query(),
            Tok::Word => self.by_keyword(),
            _ => self.scan_unknown(),
        }
        if self.cur.tok == Tok::Bad {
            self.unknown();
            self.bump();
        }
        debug_assert!(matches!(self.cur.tok, Tok::End | Tok::Semicolon));
    }

    fn by_keyword(&mut self) {
        if self.compound() {
            return self.compound_statement();
        }
        match self.cur.kw() {
            Kw::Select | Kw::With | Kw::Values | Kw::Table => self.query(),
            Kw::Insert => self.insert(Kind::Insert),
            Kw::Replace => self.insert(Kind::Replace),
            Kw::Update => self.update(),
            Kw::Delete => self.delete(),
            Kw::Load => self.load(),
            Kw::Call => self.call(),
            Kw::Do => self.do_expressions(),
            Kw::Set => self.set(),
            Kw::Show => self.show(),
            Kw::Explain | Kw::Describe | Kw::Desc => self.explain(),
            Kw::Use => self.use_database(),
            Kw::Begin => self.begin(),
            Kw::Start => self.start(),
            Kw::Commit => self.commit(Kind::Commit),
            Kw::Rollback => self.commit(Kind::Rollback),
            Kw::Savepoint => self.savepoint(Kind::Savepoint),
            Kw::Release => self.release_savepoint(),
            Kw::Lock => self.lock(),
            Kw::Unlock => self.simple(Kind::UnlockTables, Access::Write),
            Kw::Prepare => self.prepare(),
            Kw::Execute => self.execute(),
            Kw::Deallocate => self.deallocate(),
            Kw::Handler => self.handler(),
            Kw::Xa => self.xa(),
            Kw::Get => self.get_diagnostics(),
            Kw::Signal | Kw::Resignal => self.signal(),
            Kw::Kill => self.kill(),
            Kw::Help => self.simple(Kind::Help, Access::Read),
            Kw::Create | Kw::Alter | Kw::Drop | Kw::Rename | Kw::Truncate => self.ddl(),
            Kw::Grant | Kw::Revoke => self.account(),
            _ => self.administration(),
        }
    }

    /// MariaDB runs blocks and control statements outside of routines; they hold `;` themselves.
    fn compound(&self) -> bool {
        if self.mode.family != Family::MariaDb {
            return false;
        }
        let labelled =
            !self.cur.is(Kw::Select) && self.next.tok == Tok::Op && self.bytes(self.next) == b":"
                || self.bytes(self.cur).starts_with(b"<<");
        labelled
            || match self.cur.kw() {
                Kw::Begin => self.next.is(Kw::Not) || (self.mode.oracle_mode && !self.begins_tx()),
                Kw::If | Kw::Case | Kw::Loop | Kw::Repeat | Kw::While | Kw::For | Kw::Declare => {
                    true
                }
                _ => false,
            }
    }

    fn begins_tx(&self) -> bool {
        matches!(self.next.tok, Tok::End | Tok::Semicolon) || self.next.is(Kw::Work)
    }

    /// Takes all that is left as one statement that is not understood.
    fn compound_statement(&mut self) {
        while !matches!(self.cur.tok, Tok::End | Tok::Bad) {
            self.bump();
        }
        self.unknown();
    }

    /// A statement of which nothing more is to be known.
    fn simple(&mut self, kind: Kind, access: Access) {
        self.skip_statement();
        self.out.kind = kind;
        self.set_access(access);
    }

    fn skip_statement(&mut self) {
        while !self.at_end() {
            self.bump();
        }
    }

    /// A statement that is not understood: its flags are gathered all the same.
    fn scan_unknown(&mut self) {
        self.scan(scan::Place::expression());
        self.unknown();
    }
}

/// What only the session's own connection, or one like it at the primary, can tell.
const ABOUT_SESSION: Flags = Flags::INTO_VARIABLE
    .union(Flags::ASSIGNS_USER_VARS)
    .union(Flags::USES_FOUND_ROWS)
    .union(Flags::USES_ROW_COUNT)
    .union(Flags::USES_WARNING_COUNT)
    .union(Flags::SETS_LAST_INSERT_ID)
    .union(Flags::USES_CONNECTION_ID)
    .union(Flags::USES_USER_LOCK_STATE)
    .union(Flags::WAITS)
    .union(Flags::TRUNCATED);

/// What asks about *the* server: to clients that is the primary.
const ABOUT_SERVER: Flags = Flags::READS_SYSVARS
    .union(Flags::SHOWS_VARIABLES)
    .union(Flags::SERVER_LOCAL)
    .union(Flags::LOAD_FILE);

/// Whether the statement is for the primary for no other reason than that it asks about the server.
pub(crate) fn asks_about_server(class: &Statement) -> bool {
    matches!(
        class.kind,
        Kind::Select | Kind::Show(_) | Kind::Explain { .. }
    ) && class.access == Access::PrimaryRead
        && class.flags.intersects(ABOUT_SERVER)
        && !class.flags.intersects(ABOUT_SESSION)
}

/// The least access that flags ask for.
fn access_of(flags: Flags) -> Access {
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
fn push<A: smallvec::Array>(list: &mut smallvec::SmallVec<A>, item: A::Item, flags: &mut Flags) {
    if list.len() < LIST_MAX {
        list.push(item);
    } else {
        *flags |= Flags::TRUNCATED;
    }
}
