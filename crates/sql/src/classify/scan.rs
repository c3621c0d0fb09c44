//! The pass over what follows a statement's first words: finds tables, calls, variables and
//! clauses that matter, by a stack of parentheses. Accepts more than the grammar does; what it
//! says of a statement that no server accepts does not matter.

use smallvec::SmallVec;

use super::parser::{Parser, push};
use crate::lexer::{Tok, Token};
use crate::statement::{Flags, NameRef, Scope, Span, SysVarRef, TableUse};
use crate::words::{Callee, Kw, WordId};
use millrace_base::Family;

/// What is known about the place between a pair of parentheses, or outside of any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u8);

impl Place {
    /// SELECT was seen: FROM names tables.
    const QUERY: u8 = 1;
    /// In a list of tables: a comma or JOIN leads to a further one.
    const TABLES: u8 = 2;
    /// A table's name comes next.
    const TABLE_NEXT: u8 = 4;
    /// Tables here are written to.
    const WRITES: u8 = 8;
    /// In the list of a WITH.
    const WITH: u8 = 16;
    /// The name of a common table expression comes next.
    const WITH_NEXT: u8 = 32;
    /// FROM names tables although there is no SELECT (DELETE).
    const FROM_TABLES: u8 = 64;
    /// Variables here are assigned (SELECT … INTO @a, @b).
    const INTO: u8 = 128;

    pub(super) const fn expression() -> Place {
        Place(0)
    }

    /// The tables of an UPDATE come next.
    pub(super) const fn update() -> Place {
        Place(Self::TABLES | Self::TABLE_NEXT | Self::WRITES)
    }

    /// After DELETE and its modifiers.
    pub(super) const fn delete() -> Place {
        Place(Self::TABLES | Self::TABLE_NEXT | Self::WRITES | Self::FROM_TABLES)
    }

    fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    fn add(&mut self, bits: u8) {
        self.0 |= bits;
    }

    fn remove(&mut self, bits: u8) {
        self.0 &= !bits;
    }

    fn usage(self) -> TableUse {
        if self.has(Self::WRITES) {
            TableUse::Write
        } else {
            TableUse::Read
        }
    }
}

/// The name of a common table expression, and from when it hides a table.
#[derive(Clone, Copy)]
struct Cte {
    name: Span,
    depth: usize,
    /// AS was seen: the next parentheses hold the definition.
    defined: bool,
    visible: bool,
}

/// The state of a scan.
pub(super) struct Scan {
    place: Place,
    outer: SmallVec<[Place; 32]>,
    ctes: SmallVec<[Cte; 4]>,
    recursive: bool,
    queries: u32,
    /// Calls of functions are listed.
    calls: bool,
    /// The statement began with WITH, so that its verb is still to come.
    verb: Option<Kw>,
    wants_verb: bool,
}

impl Scan {
    fn depth(&self) -> usize {
        self.outer.len()
    }
}

impl Parser<'_, '_> {
    /// A statement that is not understood: its flags are gathered all the same.
    pub(super) fn scan_unknown(&mut self) {
        self.scan(Place::expression());
        self.unknown();
    }

    /// The statement must end here; where it does not it is not understood.
    pub(super) fn expect_end(&mut self) {
        if !self.at_end() {
            self.scan_unknown();
        }
    }

    /// Reads on to the statement's end.
    pub(super) fn scan(&mut self, place: Place) {
        self.scan_until(place, true, |_, _| false);
    }

    /// The same for definitions: calls are listed only once a SELECT was seen.
    pub(super) fn scan_definition(&mut self) {
        self.scan_until(Place::expression(), false, |_, _| false);
    }

    /// Reads a query and gives the verb behind its WITH, where it has one.
    pub(super) fn scan_query(&mut self) -> Option<Kw> {
        let mut scan = self.new_scan(Place::expression(), true);
        scan.wants_verb = true;
        self.run_scan(&mut scan, |_, _| false);
        scan.verb
    }

    /// Reads on until `stop` says so (asked at each token, with the depth of parentheses) or to
    /// the statement's end.
    pub(super) fn scan_until(
        &mut self,
        place: Place,
        calls: bool,
        stop: impl Fn(&Self, usize) -> bool,
    ) -> u32 {
        let mut scan = self.new_scan(place, calls);
        self.run_scan(&mut scan, stop);
        scan.queries
    }

    fn new_scan(&self, place: Place, calls: bool) -> Scan {
        Scan {
            place,
            outer: SmallVec::new(),
            ctes: SmallVec::new(),
            recursive: false,
            queries: 0,
            calls,
            verb: None,
            wants_verb: false,
        }
    }

    fn run_scan(&mut self, scan: &mut Scan, stop: impl Fn(&Self, usize) -> bool) {
        while !self.at_end() && !stop(self, scan.depth()) {
            self.scan_token(scan);
        }
        if scan.queries > 1 {
            self.flag(Flags::COMPOUND_QUERY);
        }
    }

    fn scan_token(&mut self, scan: &mut Scan) {
        match self.cur.tok {
            Tok::Word => self.scan_word(scan),
            Tok::Quoted => self.scan_name(scan),
            Tok::Open => self.scan_open(scan),
            Tok::Close => self.scan_close(scan),
            Tok::Comma => self.scan_comma(scan),
            Tok::UserVar => self.scan_variable(scan),
            Tok::SysVar => self.system_variable(),
            Tok::Assign => self.scan_assign(),
            Tok::Param => {
                self.flag(Flags::PARAMETERS);
                self.bump();
            }
            // `{OJ t1 LEFT JOIN …}` and `{d '…'}`: the word says nothing.
            Tok::Brace => {
                self.bump();
                if self.cur.tok == Tok::Word {
                    self.bump();
                    self.prev.tok = Tok::Brace;
                }
            }
            _ => self.bump(),
        }
    }

    fn scan_open(&mut self, scan: &mut Scan) {
        let mut inner = 0;
        if scan.place.has(Place::TABLE_NEXT) {
            inner = Place::TABLES | Place::TABLE_NEXT | (scan.place.0 & Place::WRITES);
            scan.place.remove(Place::TABLE_NEXT);
        }
        scan.outer.push(scan.place);
        scan.place = Place(inner);
        self.bump();
    }

    fn scan_close(&mut self, scan: &mut Scan) {
        self.bump();
        let Some(place) = scan.outer.pop() else {
            return;
        };
        scan.place = place;
        let depth = scan.depth();
        scan.ctes.retain(|cte| cte.depth <= depth);
        for cte in scan
            .ctes
            .iter_mut()
            .filter(|cte| cte.depth == depth && cte.defined)
        {
            cte.visible = true;
        }
    }

    fn scan_comma(&mut self, scan: &mut Scan) {
        if scan.place.has(Place::WITH) {
            scan.place.add(Place::WITH_NEXT);
        } else if scan.place.has(Place::TABLES) {
            scan.place.add(Place::TABLE_NEXT);
        }
        self.bump();
    }

    fn scan_variable(&mut self, scan: &mut Scan) {
        let host = self.prev.end == self.cur.start
            && (matches!(self.prev.tok, Tok::Quoted | Tok::Str)
                || (self.prev.tok == Tok::Word && self.prev.id == WordId::NONE));
        if scan.place.has(Place::INTO) {
            self.flag(Flags::INTO_VARIABLE);
            self.assign_variable(self.cur);
        } else if !host {
            self.read_variable(self.cur);
        }
        self.bump();
    }

    /// `:=` behind a variable: it is assigned, not read.
    fn scan_assign(&mut self) {
        if self.prev.tok == Tok::UserVar {
            self.out.user_vars_read.pop();
            if self.out.user_vars_read.is_empty() {
                self.out.flags.remove(Flags::READS_USER_VARS);
            }
            self.assign_variable(self.prev);
        }
        self.bump();
    }

    /// `@@name`, `@@scope.name`, `@@prefix.name`.
    pub(super) fn system_variable(&mut self) {
        self.bump();
        self.flag(Flags::READS_SYSVARS);
        let mut scope = Scope::Session;
        let scopes = [
            ("global", Scope::Global),
            ("session", Scope::Session),
            ("local", Scope::Session),
        ];
        for (word, named) in scopes {
            if self.cur_eq(word) && self.next.tok == Tok::Dot {
                scope = named;
                self.bump();
                self.bump();
                break;
            }
        }
        let start = self.cur.start;
        if !self.cur.is_name() {
            return;
        }
        let last = self.cur;
        self.bump();
        let mut name = Span {
            start,
            end: last.end,
        };
        if self.cur.tok == Tok::Dot && self.next.is_name() {
            self.bump();
            name.end = self.cur.end;
            self.bump();
        }
        push(
            &mut self.out.sysvars_read,
            SysVarRef { scope, name },
            &mut self.out.flags,
        );
        self.note_sysvar(name);
    }

    /// Variables that tell of the statement before, of the last insert or of the connection.
    fn note_sysvar(&mut self, name: Span) {
        let bytes = name.of(self.text);
        let is = |word: &str| crate::ident::ident_eq(bytes, word);
        if is("last_insert_id") || is("identity") {
            self.flag(Flags::USES_LAST_INSERT_ID);
        } else if is("pseudo_thread_id") {
            self.flag(Flags::USES_CONNECTION_ID);
        } else if is("warning_count") || is("error_count") {
            self.flag(Flags::USES_WARNING_COUNT);
        }
        self.note_own_variable(name);
    }

    /// No server knows the variables of the proxy.
    pub(super) fn note_own_variable(&mut self, name: Span) {
        const PREFIX: &[u8] = b"millrace_";
        let bytes = name.of(self.text);
        let bytes = bytes.strip_prefix(b"`").unwrap_or(bytes);
        if bytes
            .get(..PREFIX.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        {
            self.flag(Flags::MILLRACE_VARIABLE);
        }
    }

    /// A word or quoted name: a table's name where one is due, else a call, a column, an alias.
    fn scan_name(&mut self, scan: &mut Scan) {
        if scan.place.has(Place::WITH_NEXT) {
            return self.scan_cte_name(scan);
        }
        if !scan.place.has(Place::TABLE_NEXT) {
            return self.scan_reference(scan);
        }
        if self.cur.is(Kw::JsonTable) && self.next.tok == Tok::Open {
            scan.place.remove(Place::TABLE_NEXT);
            return self.bump();
        }
        self.scan_table(scan);
    }

    fn scan_table(&mut self, scan: &mut Scan) {
        scan.place.remove(Place::TABLE_NEXT);
        let usage = scan.place.usage();
        let Some(name) = self.name() else {
            return self.bump();
        };
        let hidden = name.schema.is_none()
            && scan.ctes.iter().any(|cte| {
                cte.visible && crate::ident::same(cte.name.of(self.text), name.name.of(self.text))
            });
        if !hidden {
            self.add_table(name, usage);
        }
        // `FROM f(…)`: no table, then, but whatever it is may be a call.
        if self.cur.tok == Tok::Open && !hidden && usage == TableUse::Read {
            push(&mut self.out.functions, name, &mut self.out.flags);
        }
    }

    /// The name behind WITH, RECURSIVE or a comma. What is not followed by AS or a list of columns
    /// is none (WITH ROLLUP, WITH QUERY EXPANSION, …).
    fn scan_cte_name(&mut self, scan: &mut Scan) {
        scan.place.remove(Place::WITH_NEXT);
        if !self.next.is(Kw::As) && self.next.tok != Tok::Open {
            scan.place.remove(Place::WITH);
            return self.bump();
        }
        let cte = Cte {
            name: self.cur.span(),
            depth: scan.depth(),
            defined: false,
            visible: scan.recursive,
        };
        // A definition hides an outer one of the same name only once it is complete.
        scan.ctes.push(cte);
        self.bump();
    }

    /// A column, an alias, or a call.
    fn scan_reference(&mut self, scan: &mut Scan) {
        let first = self.cur;
        let before = self.prev;
        if self.next.tok != Tok::Dot {
            if self.next.tok == Tok::Open {
                return self.scan_callable(scan, first, before);
            }
            return self.bump();
        }
        let Some(name) = self.name() else {
            return self.bump();
        };
        if name.schema.is_some() && self.cur.tok == Tok::Open && scan.calls {
            push(&mut self.out.functions, name, &mut self.out.flags);
        }
        if self.mode.oracle_mode {
            let last = name.name.of(self.text);
            if crate::ident::ident_eq(last, "nextval") {
                self.flag(Flags::SEQUENCE);
            } else if crate::ident::ident_eq(last, "currval") {
                self.flag(Flags::SEQUENCE | Flags::ASKS_DRAWN);
            }
        }
    }

    /// A name before `(`.
    fn scan_callable(&mut self, scan: &mut Scan, name: Token, before: Token) {
        let quoted = name.tok == Tok::Quoted;
        match name.id.callee(self.mode, name.glued, quoted) {
            Callee::Keyword => {}
            Callee::Builtin => return self.scan_builtin(name),
            Callee::Stored if scan.calls && !is_alias_place(before) => {
                let called = NameRef {
                    schema: None,
                    name: name.span(),
                };
                push(&mut self.out.functions, called, &mut self.out.flags);
            }
            Callee::Stored => {}
        }
        self.bump();
    }

    fn scan_builtin(&mut self, name: Token) {
        self.bump();
        let mut effect = name.id.effect();
        if name.id.kw() == Kw::LastInsertId {
            effect |= match self.next.tok {
                Tok::Close => Flags::USES_LAST_INSERT_ID,
                _ => Flags::SETS_LAST_INSERT_ID,
            };
        }
        self.flag(effect);
    }

    /// An unquoted word: keywords first.
    fn scan_word(&mut self, scan: &mut Scan) {
        let due = Place::TABLE_NEXT | Place::WITH_NEXT;
        if scan.place.has(due) && !leads_to_table(self.cur.kw(), self.mode.family) {
            return self.scan_name(scan);
        }
        match self.cur.kw() {
            Kw::None => return self.scan_name(scan),
            Kw::Select => self.scan_select(scan),
            Kw::From => self.scan_from(scan),
            Kw::Join if scan.place.has(Place::TABLES) && !self.prev.is(Kw::For) => {
                scan.place.add(Place::TABLE_NEXT);
            }
            Kw::StraightJoin if scan.place.has(Place::TABLES) => {
                scan.place.add(Place::TABLE_NEXT);
            }
            Kw::Order | Kw::Group if self.prev.is(Kw::For) => {}
            // No keywords there, or not reserved: they can be aliases in a list of tables.
            Kw::Qualify | Kw::Window if self.mode.family == Family::MariaDb => {
                return self.scan_name(scan);
            }
            Kw::Where
            | Kw::Group
            | Kw::Having
            | Kw::Order
            | Kw::Limit
            | Kw::Window
            | Kw::Qualify => {
                scan.place
                    .remove(Place::TABLES | Place::TABLE_NEXT | Place::INTO);
            }
            Kw::Union | Kw::Except | Kw::Intersect => {
                scan.place = Place(scan.place.0 & Place::QUERY);
            }
            Kw::Set if !scan.place.has(Place::QUERY) => scan.place = Place(0),
            Kw::Into => self.scan_into(scan),
            Kw::For => self.scan_for(scan),
            Kw::Lock if self.next.is(Kw::In) => self.flag(Flags::LOCKING_READ),
            Kw::With => return self.scan_with(scan),
            Kw::Table if !matches!(self.prev.kw(), Kw::Create | Kw::Drop | Kw::Alter) => {
                scan.queries += 1;
                scan.place.remove(Place::WITH | Place::WRITES);
                scan.place.add(Place::TABLE_NEXT);
                self.note_verb(scan, Kw::Select);
            }
            Kw::Values if scan.wants_verb => {
                self.note_verb(scan, Kw::Select);
                return self.scan_reference(scan);
            }
            Kw::Update | Kw::Delete if scan.wants_verb && scan.depth() == 0 => {
                return self.scan_verb(scan);
            }
            Kw::Using if scan.place.has(Place::FROM_TABLES) && self.next.tok != Tok::Open => {
                scan.place.add(Place::TABLES | Place::TABLE_NEXT);
            }
            Kw::SqlCalcFoundRows => self.flag(Flags::CALC_FOUND_ROWS),
            Kw::Procedure => self.flag(Flags::PROCEDURE_CLAUSE),
            Kw::Returning if scan.depth() == 0 && self.mode.family == Family::MariaDb => {
                self.flag(Flags::RETURNING);
            }
            Kw::Next if self.next.is(Kw::Value) => self.flag(Flags::SEQUENCE),
            Kw::Previous if self.next.is(Kw::Value) => {
                self.flag(Flags::SEQUENCE | Flags::ASKS_DRAWN);
            }
            Kw::Lateral if self.mode.family == Family::MySql => {}
            Kw::Dual => scan.place.remove(Place::TABLE_NEXT),
            Kw::As if scan.place.has(Place::WITH) => {
                if let Some(cte) = scan.ctes.last_mut() {
                    cte.defined = true;
                }
            }
            word if word.is_of_the_moment() || matches!(word, Kw::Sysdate | Kw::Rownum) => {
                self.flag(Flags::NONDETERMINISTIC);
                return self.scan_name(scan);
            }
            _ => return self.scan_name(scan),
        }
        self.bump();
    }

    fn scan_select(&mut self, scan: &mut Scan) {
        scan.queries += 1;
        scan.calls = true;
        scan.place = Place(Place::QUERY);
        self.note_verb(scan, Kw::Select);
    }

    fn note_verb(&mut self, scan: &mut Scan, verb: Kw) {
        if scan.wants_verb && !scan.place.has(Place::WITH) && scan.depth() == 0 {
            scan.wants_verb = false;
            scan.verb = Some(verb);
        }
    }

    /// UPDATE or DELETE behind WITH.
    fn scan_verb(&mut self, scan: &mut Scan) {
        let verb = self.cur.kw();
        scan.wants_verb = false;
        scan.verb = Some(verb);
        self.bump();
        self.skip_modifiers();
        scan.place = if verb == Kw::Update {
            Place::update()
        } else {
            Place::delete()
        };
    }

    /// LOW_PRIORITY and its like, between a verb and a table's name.
    pub(super) fn skip_modifiers(&mut self) {
        loop {
            let modifier = match self.cur.kw() {
                Kw::LowPriority | Kw::HighPriority | Kw::Delayed | Kw::Ignore => true,
                Kw::Quick => self.next.tok != Tok::Dot,
                Kw::History => self.next.is(Kw::From),
                _ => false,
            };
            if !modifier {
                return;
            }
            self.bump();
        }
    }

    /// FROM names tables in a query and in DELETE, not in `EXTRACT(DAY FROM x)`.
    fn scan_from(&mut self, scan: &mut Scan) {
        if scan.place.has(Place::QUERY | Place::FROM_TABLES) {
            scan.place.add(Place::TABLES | Place::TABLE_NEXT);
            scan.place.remove(Place::INTO);
        }
    }

    fn scan_into(&mut self, scan: &mut Scan) {
        match self.next.kw() {
            Kw::Outfile | Kw::Dumpfile => self.flag(Flags::INTO_OUTFILE),
            _ => {
                self.flag(Flags::INTO_VARIABLE);
                scan.place.add(Place::INTO);
            }
        }
        scan.place.remove(Place::TABLES | Place::TABLE_NEXT);
    }

    fn scan_for(&mut self, scan: &mut Scan) {
        if matches!(self.next.kw(), Kw::Update | Kw::Share) {
            self.flag(Flags::LOCKING_READ);
            scan.place.remove(Place::TABLES | Place::TABLE_NEXT);
            self.bump();
        }
    }

    fn scan_with(&mut self, scan: &mut Scan) {
        self.bump();
        scan.recursive = self.eat(Kw::Recursive);
        scan.place.remove(Place::TABLES | Place::TABLE_NEXT);
        scan.place.add(Place::WITH | Place::WITH_NEXT);
        if !self.cur.is_name() {
            scan.place.remove(Place::WITH | Place::WITH_NEXT);
        }
    }
}

/// The words that may stand where a table's name is due and are none themselves.
fn leads_to_table(word: Kw, family: Family) -> bool {
    if word == Kw::Lateral {
        return family == Family::MySql;
    }
    matches!(
        word,
        Kw::Select | Kw::With | Kw::Values | Kw::Table | Kw::Dual | Kw::From | Kw::Set
    )
}

/// Behind these a name before `(` is an alias with a list of columns, or a type, not a call.
fn is_alias_place(before: Token) -> bool {
    match before.tok {
        Tok::Close | Tok::Quoted | Tok::Str | Tok::Number => true,
        Tok::Word => before.kw() == Kw::As || before.id == WordId::NONE,
        _ => false,
    }
}
