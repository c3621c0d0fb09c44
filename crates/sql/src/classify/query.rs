//! Statements about rows: queries, INSERT, REPLACE, UPDATE, DELETE, LOAD, CALL, DO.

use super::parser::{Parser, push};
use super::scan::Place;
use crate::lexer::Tok;
use crate::statement::{Access, Flags, Kind, TableUse};
use crate::words::Kw;

impl Parser<'_, '_> {
    /// SELECT, WITH, VALUES, TABLE, in parentheses or not. WITH may lead to UPDATE and DELETE.
    pub(super) fn query(&mut self) {
        let mut parens = 0;
        if self.cur.tok == Tok::Open {
            parens = 1;
        }
        let first = self.cur;
        let verb = self.scan_query();
        match verb {
            Some(Kw::Update) => self.wrote(Kind::Update),
            Some(Kw::Delete) => self.wrote(Kind::Delete),
            _ if parens == 1 && !self.parenthesised_query(first.start) => self.unknown(),
            _ => self.read_query(),
        }
    }

    /// Behind parentheses must stand a query's first word.
    fn parenthesised_query(&self, start: u32) -> bool {
        let mut lexer = crate::lexer::Lexer::new(&self.text[start as usize..], self.mode);
        let mut token = lexer.next();
        while token.tok == Tok::Open {
            token = lexer.next();
        }
        matches!(token.kw(), Kw::Select | Kw::With | Kw::Values | Kw::Table)
    }

    fn read_query(&mut self) {
        self.out.kind = Kind::Select;
        self.access_from(Access::Read);
        if self.only_about_warnings() {
            self.out.kind = Kind::Diagnostics;
        }
    }

    /// `SELECT @@warning_count`: nothing but that.
    fn only_about_warnings(&self) -> bool {
        let allowed = Flags::READS_SYSVARS
            | Flags::USES_WARNING_COUNT
            | Flags::VERSION_COMMENT
            | Flags::COMMENT;
        self.out.flags.contains(Flags::USES_WARNING_COUNT)
            && allowed.contains(self.out.flags)
            && self.out.tables.is_empty()
            && self.out.functions.is_empty()
            && self.out.sysvars_read.iter().all(|var| {
                let name = var.name.of(self.text);
                ["warning_count", "error_count"]
                    .iter()
                    .any(|w| crate::ident::ident_eq(name, w))
            })
    }

    pub(super) fn wrote(&mut self, kind: Kind) {
        self.out.kind = kind;
        self.set_access(Access::Write);
    }

    pub(super) fn insert(&mut self, kind: Kind) {
        self.bump();
        self.skip_modifiers();
        self.eat(Kw::Into);
        self.table(TableUse::Write);
        // A list of columns, or of partitions, is no call: the scan starts behind the name.
        self.scan(Place::expression());
        self.wrote(kind);
    }

    pub(super) fn update(&mut self) {
        self.bump();
        self.skip_modifiers();
        self.scan(Place::update());
        self.wrote(Kind::Update);
    }

    pub(super) fn delete(&mut self) {
        self.bump();
        self.skip_modifiers();
        self.scan(Place::delete());
        self.wrote(Kind::Delete);
    }

    /// LOAD DATA, LOAD XML; LOAD INDEX INTO CACHE is administration.
    pub(super) fn load(&mut self) {
        if !matches!(self.next.kw(), Kw::Data | Kw::Xml) {
            self.flag(Flags::IMPLICIT_COMMIT);
            return self.simple(Kind::Admin, Access::Write);
        }
        let mut local = false;
        let mut table_read = false;
        while !self.at_end() {
            local |= self.cur.is(Kw::Local) && !table_read;
            match self.cur.tok {
                Tok::Word if self.cur.is(Kw::Table) && !table_read => {
                    self.bump();
                    self.table(TableUse::Write);
                    table_read = true;
                }
                Tok::UserVar => {
                    // In the list of columns it is assigned, behind SET it is read.
                    self.read_variable(self.cur);
                    self.assign_variable(self.cur);
                    self.bump();
                }
                Tok::Word if self.cur.is(Kw::Set) => self.scan(Place::expression()),
                _ => self.bump(),
            }
        }
        self.wrote(Kind::LoadData { local });
    }

    /// Variables among the arguments may be OUT parameters.
    pub(super) fn call(&mut self) {
        self.bump();
        self.out.name = self.name();
        let known = self.out.user_vars_read.len();
        self.scan(Place::expression());
        for i in known..self.out.user_vars_read.len() {
            let name = self.out.user_vars_read[i];
            push(&mut self.out.user_vars_assigned, name, &mut self.out.flags);
            self.flag(Flags::ASSIGNS_USER_VARS);
        }
        match self.out.name {
            Some(_) => self.wrote(Kind::Call),
            None => self.unknown(),
        }
    }

    pub(super) fn do_expressions(&mut self) {
        self.bump();
        self.scan(Place::expression());
        self.out.kind = Kind::Do;
        self.access_from(Access::Read);
    }
}
