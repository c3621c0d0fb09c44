//! CREATE, ALTER, DROP, RENAME, TRUNCATE. The body of a stored routine belongs to its statement,
//! `;` and all.

use super::parser::Parser;
use super::scan::Place;
use crate::lexer::Tok;
use crate::statement::{Access, Flags, Kind, TableUse};
use crate::words::{Kw, WordId};

impl Parser<'_, '_> {
    pub(super) fn ddl(&mut self) {
        let verb = self.cur.kw();
        if verb == Kw::Drop && self.next.is(Kw::Prepare) {
            self.bump();
            return self.deallocate();
        }
        self.bump();
        self.flag(Flags::IMPLICIT_COMMIT);
        self.out.kind = Kind::Ddl;
        if verb == Kw::Truncate {
            self.eat(Kw::Table);
            self.table(TableUse::Define);
            self.skip_statement();
            return self.set_access(Access::Write);
        }
        let temporary = self.skip_to_object();
        match self.cur.kw() {
            Kw::User | Kw::Role => return self.account(),
            Kw::Table | Kw::Tables | Kw::Sequence | Kw::View => {
                self.ddl_of_tables(verb, temporary);
            }
            Kw::Procedure | Kw::Function | Kw::Trigger | Kw::Event | Kw::Package | Kw::Library
                if matches!(verb, Kw::Create | Kw::Alter) =>
            {
                self.stored_code();
            }
            _ => self.index_or_other(verb),
        }
        self.set_access(Access::Write);
    }

    /// Skips OR REPLACE, TEMPORARY, DEFINER=…, ALGORITHM=…, UNIQUE and the like, up to the word
    /// that says what kind of object it is about. Gives whether TEMPORARY was there.
    fn skip_to_object(&mut self) -> bool {
        let mut temporary = false;
        while !self.at_end() {
            match self.cur.kw() {
                Kw::Table
                | Kw::Tables
                | Kw::Sequence
                | Kw::View
                | Kw::User
                | Kw::Role
                | Kw::Procedure
                | Kw::Function
                | Kw::Trigger
                | Kw::Event
                | Kw::Package
                | Kw::Library
                | Kw::Index
                | Kw::Database
                | Kw::Schema
                | Kw::Instance => break,
                Kw::Temporary => temporary = true,
                _ => {}
            }
            // `CREATE SERVER s …`: a plain name or anything else ends the search.
            let option = self.cur.tok == Tok::Word && self.cur.id != WordId::NONE;
            let value = matches!(
                self.cur.tok,
                Tok::Equal | Tok::UserVar | Tok::Quoted | Tok::Str | Tok::Open | Tok::Close
            );
            let after_equal = self.prev.tok == Tok::Equal;
            if !(option || value || after_equal) {
                break;
            }
            self.bump();
        }
        temporary
    }

    fn ddl_of_tables(&mut self, verb: Kw, temporary: bool) {
        let view = self.cur.is(Kw::View);
        let sequence = self.cur.is(Kw::Sequence);
        self.bump();
        self.if_exists();
        if (view && verb != Kw::Drop) || verb == Kw::Rename {
            // A view may be renamed like a table.
            self.flag(Flags::STORED_CODE);
        }
        match verb {
            Kw::Create if temporary => {
                self.flag(Flags::CREATES_TEMP_TABLE);
                self.out.flags.remove(Flags::IMPLICIT_COMMIT);
            }
            Kw::Drop if temporary => {
                self.flag(Flags::DROPS_TEMP_TABLE);
                self.out.flags.remove(Flags::IMPLICIT_COMMIT);
            }
            Kw::Drop if !view => self.flag(Flags::DROPS_TABLE),
            _ => {}
        }
        self.table(TableUse::Define);
        if matches!(verb, Kw::Drop | Kw::Rename) {
            while self.eat_tok(Tok::Comma) || self.eat(Kw::To) {
                self.table(TableUse::Define);
            }
        }
        if sequence {
            return self.skip_statement();
        }
        if self.cur.tok == Tok::Open && self.next_eq("like") {
            self.bump();
        }
        if verb == Kw::Create && self.cur_eq("like") {
            self.bump();
            self.table(TableUse::Read);
        }
        if verb == Kw::Alter && !view {
            self.new_names();
        }
        self.scan_definition();
    }

    /// ALTER TABLE … RENAME: the table takes its triggers along.
    fn new_names(&mut self) {
        loop {
            let is_rename = |parser: &Self, _: usize| parser.cur.is(Kw::Rename);
            self.scan_until(Place::expression(), false, is_rename);
            if self.at_end() {
                return;
            }
            self.bump();
            if self.cur_eq("column") || matches!(self.cur.kw(), Kw::Index | Kw::Key) {
                continue;
            }
            self.flag(Flags::STORED_CODE);
            if !(self.eat(Kw::To) || self.eat(Kw::As)) {
                self.eat_tok(Tok::Equal);
            }
            self.table(TableUse::Define);
        }
    }

    fn if_exists(&mut self) {
        if self.cur.is(Kw::If) && matches!(self.next.kw(), Kw::Not | Kw::Exists) {
            self.bump();
            self.eat(Kw::Not);
            self.eat(Kw::Exists);
        }
    }

    /// CREATE INDEX i ON t, DROP INDEX i ON t, databases, servers, tablespaces, …
    fn index_or_other(&mut self, verb: Kw) {
        let index = self.cur.is(Kw::Index);
        while !self.at_end() {
            if index && matches!(verb, Kw::Create | Kw::Drop) && self.cur.is(Kw::On) {
                self.bump();
                self.table(TableUse::Define);
                break;
            }
            self.bump();
        }
        self.skip_statement();
    }

    /// A routine, trigger or event: its body may hold `;` within BEGIN … END and CASE … END.
    ///
    /// Control statements without a block around them hold `;` too; then all that is left counts
    /// as the body, and must end as such a statement does. So it does for whatever has `;`
    /// elsewhere (Oracle's declarations, packages), which is not understood.
    fn stored_code(&mut self) {
        self.flag(Flags::STORED_CODE);
        if self.cur.is(Kw::Trigger) {
            self.flag(Flags::DEFINES_TRIGGER);
        }
        let oracle = self.mode.oracle_mode || self.cur.is(Kw::Package);
        self.bump();
        self.if_exists();
        self.out.name = self.name();
        let mut body = Body::default();
        while !matches!(self.cur.tok, Tok::End | Tok::Bad) {
            if self.cur.tok == Tok::Semicolon && body.depth == 0 && !body.control && !oracle {
                break;
            }
            self.body_token(&mut body);
            self.bump();
        }
        let open = body.depth != 0 || (body.control && !body.ended);
        if open || (oracle && body.semicolons) {
            self.out.kind = Kind::Unknown;
        }
    }

    fn body_token(&mut self, body: &mut Body) {
        match self.cur.kw() {
            Kw::Begin | Kw::Case => body.depth += 1,
            Kw::End => self.end_of_block(body),
            Kw::Loop | Kw::Repeat | Kw::While if body.depth == 0 => {
                body.control |= self.next.tok != Tok::Open || self.cur.is(Kw::While);
            }
            // `CASE … THEN` is within its CASE: this is an IF.
            _ if body.depth == 0 && self.cur_eq("then") => body.control = true,
            _ => {}
        }
        if self.cur.tok == Tok::Semicolon {
            body.semicolons = true;
        } else {
            body.ended = self.prev.is(Kw::End);
        }
    }

    /// END closes a block or a CASE; END IF, END LOOP, … close what was not counted.
    fn end_of_block(&mut self, body: &mut Body) {
        let uncounted = matches!(
            self.next.kw(),
            Kw::If | Kw::Loop | Kw::Repeat | Kw::While | Kw::For
        );
        if uncounted {
            return;
        }
        body.depth = body.depth.saturating_sub(1);
        if self.next.is(Kw::Case) {
            self.bump();
        }
    }
}

/// What was seen of a stored routine's body.
#[derive(Default)]
struct Body {
    /// Open BEGIN and CASE.
    depth: u32,
    /// A control statement stands outside of any block.
    control: bool,
    semicolons: bool,
    /// The last token but `;` stood behind END.
    ended: bool,
}
