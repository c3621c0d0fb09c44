//! Statements about the session: transactions, locks, prepared statements, XA, diagnostics.

use super::parser::Parser;
use super::scan::Place;
use crate::lexer::Tok;
use crate::statement::{
    Access, Flags, HandlerOp, Kill, KillTarget, Kind, NameRef, Span, TableUse, TextSource, XaOp,
};
use crate::words::Kw;
use millrace_base::Family;

impl Parser<'_, '_> {
    fn session_kind(&mut self, kind: Kind) {
        self.out.kind = kind;
        self.set_access(Access::Session);
    }

    pub(super) fn use_database(&mut self) {
        self.bump();
        self.out.name = self.name();
        match self.out.name {
            Some(_) => self.session_kind(Kind::Use),
            None => self.unknown(),
        }
        self.expect_end();
    }

    pub(super) fn begin(&mut self) {
        self.bump();
        self.eat(Kw::Work);
        self.session_kind(Kind::Begin);
        self.flag(Flags::IMPLICIT_COMMIT);
        self.expect_end();
    }

    /// START TRANSACTION; START REPLICA and its like are administration.
    pub(super) fn start(&mut self) {
        if !self.next.is(Kw::Transaction) {
            return self.simple(Kind::Admin, Access::Write);
        }
        self.bump();
        self.bump();
        self.session_kind(Kind::Begin);
        self.flag(Flags::IMPLICIT_COMMIT);
        loop {
            match (self.cur.kw(), self.next.kw()) {
                (Kw::With, Kw::Consistent) => {
                    self.bump();
                    self.flag(Flags::CONSISTENT_SNAPSHOT);
                }
                (Kw::Read, Kw::Only) => self.flag(Flags::TX_READ_ONLY),
                (Kw::Read, Kw::Write) => self.flag(Flags::TX_READ_WRITE),
                _ => break,
            }
            self.bump();
            self.bump();
            if !self.eat_tok(Tok::Comma) {
                break;
            }
        }
        self.expect_end();
    }

    pub(super) fn commit(&mut self, kind: Kind) {
        self.bump();
        self.eat(Kw::Work);
        if kind == Kind::Rollback && self.eat(Kw::To) {
            self.eat(Kw::Savepoint);
            return self.savepoint_name(Kind::RollbackTo);
        }
        self.session_kind(kind);
        if self.eat(Kw::And) {
            let no = self.eat(Kw::No);
            if self.eat(Kw::Chain) {
                self.flag(if no { Flags::NO_CHAIN } else { Flags::CHAIN });
            }
        }
        let no = self.cur.is(Kw::No) && self.next.is(Kw::Release);
        if no {
            self.bump();
        }
        if self.eat(Kw::Release) {
            self.flag(if no {
                Flags::NO_RELEASE
            } else {
                Flags::RELEASE
            });
        }
        self.expect_end();
    }

    pub(super) fn savepoint(&mut self, kind: Kind) {
        self.bump();
        self.savepoint_name(kind);
    }

    pub(super) fn release_savepoint(&mut self) {
        self.bump();
        self.eat(Kw::Savepoint);
        self.savepoint_name(Kind::ReleaseSavepoint);
    }

    fn savepoint_name(&mut self, kind: Kind) {
        self.out.name = self.name();
        match self.out.name {
            Some(_) => self.session_kind(kind),
            None => self.unknown(),
        }
        self.expect_end();
    }

    /// LOCK TABLES and LOCK INSTANCE.
    pub(super) fn lock(&mut self) {
        self.bump();
        let tables = self.eat(Kw::Tables) || self.eat(Kw::Table);
        while tables && !self.at_end() {
            self.table(TableUse::Lock);
            while !self.at_end() && self.cur.tok != Tok::Comma {
                self.bump();
            }
            self.eat_tok(Tok::Comma);
        }
        if tables {
            self.flag(Flags::IMPLICIT_COMMIT);
        }
        self.simple(Kind::LockTables, Access::Write);
    }

    pub(super) fn prepare(&mut self) {
        self.bump();
        self.out.name = self.name();
        if self.out.name.is_none() || !self.eat(Kw::From) {
            return self.scan_unknown();
        }
        self.text_source();
        self.scan(Place::expression());
        self.out.kind = Kind::Prepare;
        self.access_from(Access::Session);
    }

    /// The text of PREPARE and EXECUTE IMMEDIATE: one literal, one variable, or an expression.
    fn text_source(&mut self) {
        let alone = matches!(self.next.tok, Tok::End | Tok::Semicolon) || self.next.is(Kw::Using);
        let span = self.cur.span();
        let source = match self.cur.tok {
            Tok::Str if alone => TextSource::Literal(span),
            Tok::UserVar if alone => TextSource::UserVar(Self::variable_name(self.cur)),
            _ => TextSource::Expression(self.expression_span(|kw| kw == Kw::Using)),
        };
        self.out.source = Some(source);
    }

    /// Where the expression that starts here ends, without reading on.
    fn expression_span(&self, ends: impl Fn(Kw) -> bool) -> Span {
        let mut lexer = self.lexer;
        let (mut token, mut next) = (self.cur, self.next);
        let mut span = self.cur.span();
        while !matches!(token.tok, Tok::End | Tok::Semicolon | Tok::Bad) && !ends(token.kw()) {
            span.end = token.end;
            token = next;
            next = lexer.next();
        }
        span
    }

    pub(super) fn execute(&mut self) {
        self.bump();
        let immediate = self.cur.is(Kw::Immediate)
            && self.mode.family == Family::MariaDb
            && !matches!(self.next.tok, Tok::End | Tok::Semicolon);
        if immediate {
            self.bump();
            self.text_source();
        } else {
            self.out.name = self.name();
        }
        let known = immediate || self.out.name.is_some();
        self.scan(Place::expression());
        match known {
            true => self.wrote(Kind::Execute { immediate }),
            false => self.unknown(),
        }
    }

    /// DEALLOCATE PREPARE, and DROP PREPARE with the position at DROP.
    pub(super) fn deallocate(&mut self) {
        self.bump();
        self.eat(Kw::Prepare);
        self.out.name = self.name();
        match self.out.name {
            Some(_) => self.session_kind(Kind::Deallocate),
            None => self.unknown(),
        }
        self.expect_end();
    }

    pub(super) fn handler(&mut self) {
        self.bump();
        self.out.name = self.table(TableUse::Read);
        let op = match self.cur.kw() {
            Kw::Open => HandlerOp::Open,
            Kw::Read => HandlerOp::Read,
            Kw::Close => HandlerOp::Close,
            _ => return self.scan_unknown(),
        };
        self.bump();
        if self.cur.is(Kw::As) {
            self.bump();
        }
        if op == HandlerOp::Open && self.cur.is_name() {
            self.out.name = Some(NameRef {
                schema: None,
                name: self.cur.span(),
            });
        }
        self.scan(Place::expression());
        self.wrote(Kind::Handler(op));
    }

    pub(super) fn xa(&mut self) {
        self.bump();
        let mut op = match self.cur.kw() {
            Kw::Start | Kw::Begin => XaOp::Start,
            Kw::End => XaOp::End,
            Kw::Prepare => XaOp::Prepare,
            Kw::Commit => XaOp::Commit { one_phase: false },
            Kw::Rollback => XaOp::Rollback,
            Kw::Recover => XaOp::Recover,
            _ => return self.scan_unknown(),
        };
        while !self.at_end() {
            if self.cur.is(Kw::One) && self.next.is(Kw::Phase) {
                op = XaOp::Commit { one_phase: true };
            }
            self.bump();
        }
        self.wrote(Kind::Xa(op));
    }

    /// GET [CURRENT | STACKED] DIAGNOSTICS @a = …, CONDITION n @b = …
    pub(super) fn get_diagnostics(&mut self) {
        self.bump();
        if matches!(self.cur.kw(), Kw::Current | Kw::Stacked) {
            self.bump();
        }
        if !self.eat(Kw::Diagnostics) {
            return self.scan_unknown();
        }
        while !self.at_end() {
            if self.cur.tok == Tok::UserVar {
                match self.next.tok {
                    Tok::Equal => self.assign_variable(self.cur),
                    _ => self.read_variable(self.cur),
                }
            }
            self.bump();
        }
        self.out.kind = Kind::Diagnostics;
        self.set_access(Access::PrimaryRead);
    }

    pub(super) fn signal(&mut self) {
        self.bump();
        self.scan(Place::expression());
        self.out.kind = Kind::Signal;
        self.access_from(Access::Session);
    }

    /// KILL [HARD | SOFT] [CONNECTION | QUERY [ID]] { n | expression | USER name }.
    pub(super) fn kill(&mut self) {
        self.bump();
        let maria = self.mode.family == Family::MariaDb;
        let mut soft = false;
        if maria && matches!(self.cur.kw(), Kw::Hard | Kw::Soft) {
            soft = self.cur.is(Kw::Soft);
            self.bump();
        }
        let query = self.cur.is(Kw::Query);
        if query || self.cur.is(Kw::Connection) {
            self.bump();
        }
        let by_id = maria && query && self.eat(Kw::Id);
        let by_user = maria && self.eat(Kw::User);
        let value = self.expression_span(|_| false);
        let number = self.lone_number();
        let target = match number {
            _ if self.at_end() => None,
            _ if by_user => Some(KillTarget::User { name: value, query }),
            Some(id) if by_id => Some(KillTarget::QueryId(id)),
            Some(id) if query => Some(KillTarget::Query(id)),
            Some(id) => Some(KillTarget::Connection(id)),
            None if by_id => None,
            None => Some(KillTarget::Expression { value, query }),
        };
        match by_user {
            true => self.skip_statement(),
            false => self.scan(Place::expression()),
        }
        self.out.kill = target.map(|target| Kill { target, soft });
        self.wrote(Kind::Kill);
    }

    /// The number that is all there is left.
    fn lone_number(&self) -> Option<u64> {
        if self.cur.tok != Tok::Number || !matches!(self.next.tok, Tok::End | Tok::Semicolon) {
            return None;
        }
        std::str::from_utf8(self.bytes(self.cur)).ok()?.parse().ok()
    }
}
