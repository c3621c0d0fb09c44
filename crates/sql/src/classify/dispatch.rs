//! Which reader reads a statement, by its first words; and the statements that hold another one.

use millrace_base::Family;

use super::parser::{Parser, access_of};
use super::scan::Place;
use crate::lexer::Tok;
use crate::statement::{Access, Explained, Flags, Kind, TableUse};
use crate::words::Kw;

impl Parser<'_, '_> {
    /// Reads a statement, up to `;` or the end.
    pub(super) fn statement(&mut self) {
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
            Kw::Set => {
                if self.set() {
                    self.set_statement();
                }
            }
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
            Kw::Analyze => self.analyze(),
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

    /// SET STATEMENT a = 1, b = 2 FOR statement.
    fn set_statement(&mut self) {
        self.bump();
        let nested = self.out.flags.contains(Flags::SET_STATEMENT);
        let understood = !nested && self.assignments(|p, depth| depth == 0 && p.cur.is(Kw::For));
        self.flag(Flags::SET_STATEMENT);
        if !understood || !self.eat(Kw::For) || self.at_end() {
            return self.scan_unknown();
        }
        let values_need = self.out.flags;
        self.statement();
        let least = access_of(values_need);
        self.out.access = self.out.access.max(least);
        self.out.access_if_calls_read = self.out.access_if_calls_read.max(least);
    }

    /// EXPLAIN, DESCRIBE, DESC of a statement, a connection or a table.
    fn explain(&mut self) {
        self.bump();
        let mut analyze = false;
        let mut stored = false;
        loop {
            match self.cur.kw() {
                Kw::Analyze => {
                    analyze = true;
                    self.bump();
                }
                Kw::Extended | Kw::Partitions if self.next.tok == Tok::Word => self.bump(),
                Kw::Format if self.next.tok == Tok::Equal => {
                    self.bump();
                    self.bump();
                    self.bump();
                }
                Kw::Into if self.next.tok == Tok::UserVar => {
                    self.bump();
                    self.flag(Flags::INTO_VARIABLE);
                    self.assign_variable(self.cur);
                    self.bump();
                    stored = true;
                }
                Kw::For if matches!(self.next.kw(), Kw::Schema | Kw::Database) => {
                    self.bump();
                    self.bump();
                    self.bump();
                }
                _ => break,
            }
        }
        self.explained(analyze);
        if stored && self.out.access < Access::PrimaryRead {
            self.set_access(Access::PrimaryRead);
        }
    }

    /// What follows EXPLAIN and its options.
    fn explained(&mut self, analyze: bool) {
        if self.cur.is(Kw::For) && self.next.is(Kw::Connection) {
            self.flag(Flags::SERVER_LOCAL);
            self.simple(
                Kind::Explain {
                    analyze,
                    of: Explained::Connection,
                },
                Access::PrimaryRead,
            );
            return;
        }
        let is_statement = self.cur.tok == Tok::Open
            || matches!(
                self.cur.kw(),
                Kw::Select
                    | Kw::With
                    | Kw::Values
                    | Kw::Table
                    | Kw::Insert
                    | Kw::Replace
                    | Kw::Update
                    | Kw::Delete
            );
        if !is_statement {
            return self.describe_table(analyze);
        }
        self.statement();
        let kind = Kind::Explain {
            analyze,
            of: Explained::Statement,
        };
        match self.out.kind {
            Kind::Select | Kind::Diagnostics => {}
            Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete => {
                // The plan is asked of the server that would run it.
                let access = if analyze {
                    Access::Write
                } else {
                    Access::PrimaryRead
                };
                self.set_access(access);
            }
            _ => return self.unknown(),
        }
        self.out.kind = kind;
    }

    /// DESCRIBE t [column].
    fn describe_table(&mut self, analyze: bool) {
        let known = !analyze && self.table(TableUse::Read).is_some();
        self.scan(Place::expression());
        if !known {
            return self.unknown();
        }
        self.out.kind = Kind::Explain {
            analyze: false,
            of: Explained::Table,
        };
        self.access_from(Access::Read);
    }

    /// MariaDB's ANALYZE [FORMAT=JSON] statement; ANALYZE TABLE is administration.
    fn analyze(&mut self) {
        let statement = self.next.tok == Tok::Open
            || matches!(
                self.next.kw(),
                Kw::Select
                    | Kw::With
                    | Kw::Values
                    | Kw::Insert
                    | Kw::Replace
                    | Kw::Update
                    | Kw::Delete
                    | Kw::Format
            );
        if self.mode.family != Family::MariaDb || !statement {
            self.flag(Flags::IMPLICIT_COMMIT);
            return self.simple(Kind::Admin, Access::Write);
        }
        self.bump();
        if self.eat(Kw::Format) {
            self.eat_tok(Tok::Equal);
            self.bump();
        }
        self.explained(true);
    }
}
