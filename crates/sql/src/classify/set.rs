//! SET in all its forms: what is assigned, in which scope, and whether the value is known.

use super::parser::{Parser, push};
use super::scan::Place;

use crate::ident::ident_eq;
use crate::lexer::Tok;
use crate::statement::{
    Access, Assignment, ExprFlags, Flags, Isolation, Kind, Scope, Span, Target, ValueKind,
};
use crate::words::Kw;
use millrace_base::Family;

impl Parser<'_, '_> {
    /// SET. True at SET STATEMENT, of which no more than SET is taken then.
    pub(super) fn set(&mut self) -> bool {
        self.bump();
        let is_for_statement = self.mode.family == Family::MariaDb
            && self.cur.is(Kw::Statement)
            && !self.assigns_next();
        if !is_for_statement {
            self.set_items();
        }
        is_for_statement
    }

    fn set_items(&mut self) {
        if self.cur.is(Kw::Password) {
            return self.set_password();
        }
        if !self.assigns_next() {
            match self.cur.kw() {
                Kw::Role => return self.simple(Kind::SetRole, Access::Session),
                Kw::Default if self.next.is(Kw::Role) => {
                    self.flag(Flags::IMPLICIT_COMMIT);
                    return self.simple(Kind::SetDefaultRole, Access::Write);
                }
                Kw::Resource => return self.simple(Kind::SetResourceGroup, Access::Write),
                Kw::Transaction => return self.set_transaction(Scope::NextTransaction),
                Kw::Global | Kw::Session | Kw::Local if self.next.is(Kw::Transaction) => {
                    let scope = match self.cur.kw() {
                        Kw::Global => Scope::Global,
                        _ => Scope::Session,
                    };
                    self.bump();
                    return self.set_transaction(scope);
                }
                _ => {}
            }
        }
        let understood = self.assignments(|_, _| false);
        self.finish_set(understood);
    }

    /// A name and `=` or `:=`: the word is a variable's name whatever it is.
    fn assigns_next(&self) -> bool {
        matches!(self.next.tok, Tok::Equal | Tok::Assign)
    }

    fn finish_set(&mut self, understood: bool) {
        self.out.kind = Kind::Set;
        // That it assigns variables is what SET is for.
        self.access_from_flags(Access::Session, self.out.flags - Flags::ASSIGNS_USER_VARS);
        if !understood || self.out.assignments.is_empty() {
            self.scan_unknown();
        }
    }

    /// SET PASSWORD [FOR account] = …: the account is no variable.
    fn set_password(&mut self) {
        self.flag(Flags::IMPLICIT_COMMIT);
        self.simple(Kind::SetPassword, Access::Write);
    }

    /// Reads items up to the statement's end or `stop`; false where one is not understood.
    ///
    /// GLOBAL, SESSION and their like hold for the following items without a scope of their own;
    /// `@@` always stands for itself (observed on both servers).
    pub(super) fn assignments(&mut self, stop: impl Fn(&Self, usize) -> bool + Copy) -> bool {
        let mut scope = Scope::Session;
        loop {
            if !self.assignment(&mut scope, stop) {
                return false;
            }
            if !self.eat_tok(Tok::Comma) {
                return self.at_end() || stop(self, 0);
            }
        }
    }

    fn assignment(
        &mut self,
        scope: &mut Scope,
        stop: impl Fn(&Self, usize) -> bool + Copy,
    ) -> bool {
        let target = match self.cur.tok {
            Tok::UserVar => self.user_variable_target(),
            Tok::SysVar => self.at_target(),
            Tok::Word if !self.assigns_next() => match self.cur.kw() {
                Kw::Names => return self.set_names(),
                Kw::Charset | Kw::Character | Kw::Char => return self.set_character_set(),
                _ => self.scoped_target(scope),
            },
            _ => self.scoped_target(scope),
        };
        let Some(target) = target else { return false };
        if !self.eat_tok(Tok::Equal) && !self.eat_tok(Tok::Assign) {
            return false;
        }
        self.note_scope(target);
        self.value(target, stop);
        true
    }

    fn note_scope(&mut self, target: Target) {
        let Target::System { scope, name } = target else {
            return;
        };
        self.note_own_variable(name);
        match scope {
            Scope::Global | Scope::Persist | Scope::PersistOnly => self.flag(Flags::SETS_GLOBAL),
            Scope::NextTransaction => self.flag(Flags::TX_ONE_SHOT),
            Scope::Session => {
                let name = name.of(self.text);
                let is = |known: &&str| crate::ident::ident_eq(name, known);
                if ["profiling", "optimizer_trace"].iter().any(is) {
                    self.flag(Flags::MEASURES);
                }
                let modes = [
                    "transaction_isolation",
                    "transaction_read_only",
                    "tx_isolation",
                    "tx_read_only",
                ];
                if modes.iter().any(is) {
                    self.flag(Flags::SETS_TX_MODES);
                }
            }
        }
    }

    fn user_variable_target(&mut self) -> Option<Target> {
        let token = self.cur;
        self.assign_variable(token);
        self.bump();
        Some(Target::UserVar(Self::variable_name(token)))
    }

    /// `@@name`, `@@scope.name`.
    fn at_target(&mut self) -> Option<Target> {
        self.bump();
        let scope = match self.next.tok {
            Tok::Dot => self.scope_word(),
            _ => None,
        };
        if scope.is_some() {
            self.bump();
            self.bump();
        }
        let name = self.variable_span()?;
        let scope = scope.unwrap_or_else(|| self.bare_scope(name));
        Some(Target::System { scope, name })
    }

    /// `@@transaction_isolation` without a scope is about the next transaction only.
    fn bare_scope(&self, name: Span) -> Scope {
        let text = name.of(self.text);
        let characteristics = [
            "transaction_isolation",
            "tx_isolation",
            "transaction_read_only",
            "tx_read_only",
        ];
        match characteristics.iter().any(|known| ident_eq(text, known)) {
            true => Scope::NextTransaction,
            false => Scope::Session,
        }
    }

    fn scope_word(&self) -> Option<Scope> {
        let scopes = [
            ("global", Scope::Global),
            ("session", Scope::Session),
            ("local", Scope::Session),
            ("persist", Scope::Persist),
            ("persist_only", Scope::PersistOnly),
        ];
        let found = scopes.iter().find(|(word, _)| self.cur_eq(word))?;
        Some(found.1)
    }

    fn scoped_target(&mut self, scope: &mut Scope) -> Option<Target> {
        if !self.assigns_next() && self.next.tok != Tok::Dot {
            *scope = self.scope_word()?;
            self.bump();
        }
        let name = self.variable_span()?;
        Some(Target::System {
            scope: *scope,
            name,
        })
    }

    /// A variable's name, with the prefix of its component or key cache.
    fn variable_span(&mut self) -> Option<Span> {
        let name = self.name()?;
        let start = name.schema.unwrap_or(name.name).start;
        Some(Span {
            start,
            end: name.name.end,
        })
    }

    /// NAMES charset [COLLATE collation], NAMES DEFAULT.
    fn set_names(&mut self) -> bool {
        self.bump();
        let (value, kind) = (self.cur.span(), self.lone_value());
        if self.at_end() || !(self.cur.is_name() || matches!(self.cur.tok, Tok::Str | Tok::Param)) {
            return false;
        }
        self.bump();
        let mut collation = None;
        if self.eat(Kw::Collate) {
            collation = Some(self.cur.span());
            self.bump();
        }
        self.add_assignment(Target::Names { collation }, value, kind, ExprFlags::empty());
        true
    }

    /// CHARACTER SET charset, CHARSET charset.
    fn set_character_set(&mut self) -> bool {
        let one_word = self.cur.is(Kw::Charset);
        self.bump();
        if !one_word && !self.eat(Kw::Set) {
            return false;
        }
        let (value, kind) = (self.cur.span(), self.lone_value());
        if !(self.cur.is_name() || self.cur.tok == Tok::Str) {
            return false;
        }
        self.bump();
        self.add_assignment(Target::CharacterSet, value, kind, ExprFlags::empty());
        true
    }

    /// What the current token is as a value of its own.
    fn lone_value(&self) -> ValueKind {
        match self.cur.tok {
            Tok::Word if self.cur.is(Kw::Default) => ValueKind::Default,
            Tok::Word => ValueKind::Word,
            Tok::Number => ValueKind::Number,
            Tok::Str if self.text[self.cur.start as usize].is_ascii_alphabetic() => {
                ValueKind::Expression
            }
            Tok::Str => ValueKind::String,
            Tok::Param => ValueKind::Parameter,
            Tok::UserVar => ValueKind::UserVar,
            _ => ValueKind::Expression,
        }
    }

    /// Reads a value up to the next item.
    fn value(&mut self, target: Target, stop: impl Fn(&Self, usize) -> bool + Copy) {
        let start = self.cur.start;
        let signed = self.cur.tok == Tok::Op
            && matches!(self.bytes(self.cur), b"-" | b"+")
            && self.next.tok == Tok::Number;
        let mut kind = if signed {
            ValueKind::Number
        } else {
            self.lone_value()
        };
        let mut tokens_left = if signed { 2 } else { 1 };
        let before = Contents::of(self);
        let flags_before = std::mem::take(&mut self.out.flags);
        let mut end = start;
        let queries = {
            let first_end = if signed { self.next.end } else { self.cur.end };
            let queries = self.scan_until(Place::expression(), true, |p, depth| {
                (depth == 0 && p.cur.tok == Tok::Comma) || stop(p, depth)
            });
            if self.prev.end > start {
                end = self.prev.end;
            }
            if end != first_end {
                tokens_left = 0;
            }
            queries
        };
        if tokens_left == 0 {
            kind = ValueKind::Expression;
        }
        let inside = self.out.flags;
        self.out.flags |= flags_before;
        let expr = self.expression_flags(&before, inside, queries, kind);
        if expr.intersects(ExprFlags::SUBQUERY | ExprFlags::CALL) {
            self.flag(Flags::SET_SUBQUERY_OR_CALL);
        }
        self.add_assignment(target, Span { start, end }, kind, expr);
    }

    fn expression_flags(
        &self,
        before: &Contents,
        inside: Flags,
        queries: u32,
        kind: ValueKind,
    ) -> ExprFlags {
        let now = Contents::of(self);
        let mut expr = ExprFlags::empty();
        expr.set(ExprFlags::SUBQUERY, queries > 0);
        expr.set(ExprFlags::CALL, now.calls > before.calls);
        expr.set(ExprFlags::USER_VARS, now.user_vars > before.user_vars);
        expr.set(ExprFlags::SYSVARS, now.sysvars > before.sysvars);
        expr.set(
            ExprFlags::NONDETERMINISTIC,
            inside.contains(Flags::NONDETERMINISTIC),
        );
        expr.set(ExprFlags::ASSIGNS, now.assigned > before.assigned);
        expr.set(ExprFlags::BUILTIN, kind == ValueKind::Expression);
        expr
    }

    fn add_assignment(&mut self, target: Target, value: Span, kind: ValueKind, expr: ExprFlags) {
        let item = Assignment {
            target,
            value,
            kind,
            expr,
        };
        push(&mut self.out.assignments, item, &mut self.out.flags);
    }

    /// SET [scope] TRANSACTION characteristic [, characteristic]; at TRANSACTION.
    fn set_transaction(&mut self, scope: Scope) {
        self.bump();
        let start = self.cur.start;
        let (mut isolation, mut read_only) = (None, None);
        loop {
            match (self.cur.kw(), self.next.kw()) {
                (Kw::Isolation, Kw::Level) => {
                    self.bump();
                    self.bump();
                    isolation = self.isolation_level();
                    if isolation.is_none() {
                        return self.scan_unknown();
                    }
                }
                (Kw::Read, Kw::Only) => read_only = Some(true),
                (Kw::Read, Kw::Write) => read_only = Some(false),
                _ => return self.scan_unknown(),
            }
            if matches!(self.cur.kw(), Kw::Read) {
                self.bump();
                self.bump();
            }
            if !self.eat_tok(Tok::Comma) {
                break;
            }
        }
        if !self.at_end() {
            return self.scan_unknown();
        }
        let value = Span {
            start,
            end: self.prev.end,
        };
        let target = Target::Transaction {
            scope,
            isolation,
            read_only,
        };
        self.add_assignment(target, value, ValueKind::Word, ExprFlags::empty());
        self.note_characteristics(scope, read_only);
        self.out.kind = Kind::SetTransaction;
        self.access_from(Access::Session);
    }

    fn note_characteristics(&mut self, scope: Scope, read_only: Option<bool>) {
        match scope {
            Scope::Global => self.flag(Flags::SETS_GLOBAL),
            Scope::NextTransaction => self.flag(Flags::TX_ONE_SHOT),
            _ => {}
        }
        match read_only {
            Some(true) => self.flag(Flags::TX_READ_ONLY),
            Some(false) => self.flag(Flags::TX_READ_WRITE),
            None => {}
        }
    }

    fn isolation_level(&mut self) -> Option<Isolation> {
        let level = match (self.cur.kw(), self.next.kw()) {
            (Kw::Serializable, _) => {
                self.bump();
                return Some(Isolation::Serializable);
            }
            (Kw::Repeatable, Kw::Read) => Isolation::RepeatableRead,
            (Kw::Read, Kw::Committed) => Isolation::ReadCommitted,
            (Kw::Read, Kw::Uncommitted) => Isolation::ReadUncommitted,
            _ => return None,
        };
        self.bump();
        self.bump();
        Some(level)
    }
}

/// How much the lists hold, to tell what one value added.
struct Contents {
    calls: usize,
    user_vars: usize,
    sysvars: usize,
    assigned: usize,
}

impl Contents {
    fn of(parser: &Parser<'_, '_>) -> Self {
        let out = &parser.out;
        Contents {
            calls: out.functions.len(),
            user_vars: out.user_vars_read.len(),
            sysvars: out.sysvars_read.len(),
            assigned: out.user_vars_assigned.len(),
        }
    }
}
