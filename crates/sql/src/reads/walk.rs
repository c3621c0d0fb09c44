//! Goes over a text once and looks at each token for what keeps an answer from being stable. What reads clauses moves
//! through here as well, so no token is missed.

use smallvec::SmallVec;

use super::{Conditions, Unstable, Why};
use crate::lexer::{Lexer, Tok, Token};
use crate::mode::LexMode;
use crate::statement::{Flags, Kind, Span, Statement};
use crate::words::{Callee, Kw, Part, Role, WordId};
use millrace_base::Family;

/// Something in the outermost FROM.
pub(crate) struct Item {
    /// The name by which columns are qualified; none where it has none.
    pub(crate) visible: Option<Span>,
    /// The database, where the name is the table's own.
    pub(crate) schema: Option<Span>,
    /// Which of the statement's tables; none for what is no table.
    pub(crate) table: Option<u16>,
}

/// A position in a text, and what was found before it.
pub(crate) struct Walk<'t, 'o> {
    pub(crate) text: &'t [u8],
    pub(crate) mode: &'t LexMode,
    pub(crate) statement: &'t Statement,
    lexer: Lexer<'t>,
    prev: Token,
    pub(crate) cur: Token,
    pub(crate) next: Token,
    pub(crate) conditions: &'o mut Conditions,
    /// Open parentheses.
    depth: usize,
    /// Numbers and strings so far.
    pub(crate) literals: u32,
    parameters: u32,
    /// Conditions cannot be told.
    pub(crate) gave_up: bool,
    /// The outermost FROM has LEFT JOIN or RIGHT JOIN.
    pub(super) has_outer_join: bool,
    pub(crate) items: SmallVec<[Item; 4]>,
    /// A word that the classifier takes for unstable was found to be stable.
    is_excused: bool,
    /// Looks for what keeps an answer from being stable, and goes no further. Else functions and variables are
    /// passed over: what a statement writes is another question.
    judges: bool,
    unstable: Option<Unstable>,
    pub(super) computes: bool,
}

/// What [`Walk::judge`] says beside the conditions.
pub(super) struct Told {
    pub(super) unstable: Option<Unstable>,
    pub(super) parameters: u16,
    pub(super) computes: bool,
}

impl<'t, 'o> Walk<'t, 'o> {
    pub(crate) fn new(
        text: &'t [u8],
        mode: &'t LexMode,
        statement: &'t Statement,
        conditions: &'o mut Conditions,
    ) -> Self {
        let mut lexer = Lexer::new(text, mode);
        let cur = lexer.next();
        let next = lexer.next();
        let none = Token {
            tok: Tok::End,
            ..Lexer::new(b"", mode).next()
        };
        Walk {
            text,
            mode,
            statement,
            lexer,
            prev: none,
            cur,
            next,
            conditions,
            depth: 0,
            literals: 0,
            parameters: 0,
            gave_up: false,
            has_outer_join: false,
            items: SmallVec::new(),
            is_excused: false,
            judges: false,
            unstable: None,
            computes: false,
        }
    }

    pub(super) fn judge(mut self) -> Told {
        self.judges = true;
        if let Some(why) = self.foreseen() {
            self.stop_at_text(why);
            return self.told(0);
        }
        self.outermost_query();
        while !self.at_end() {
            self.bump();
        }
        if let Some(why) = self.overlooked() {
            self.stop_at_text(why);
        }
        self.finish();
        self.told(u16::try_from(self.parameters).unwrap_or(u16::MAX))
    }

    fn told(&self, parameters: u16) -> Told {
        Told {
            unstable: self.unstable,
            parameters,
            computes: self.computes,
        }
    }

    /// What is known before the text is read.
    fn foreseen(&self) -> Option<Why> {
        let flags = self.statement.flags;
        let unclear = Flags::VERSION_COMMENT | Flags::UNTERMINATED | Flags::TRUNCATED;
        if self.statement.kind != Kind::Select || self.statement.parts != 1 {
            Some(Why::NotOneSelect)
        } else if flags.intersects(unclear) || self.mode.oracle_mode {
            Some(Why::NotUnderstood)
        } else if flags.intersects(Flags::HINT_SET_VAR | Flags::SET_STATEMENT)
            || (flags.contains(Flags::COMMENT) && limits_its_time(self.text))
        {
            Some(Why::Limits)
        } else if flags.contains(Flags::SYSTEM_SCHEMA) {
            Some(Why::SystemSchema)
        } else {
            None
        }
    }

    /// What the classifier has seen and this has not. There should be none.
    fn overlooked(&self) -> Option<Why> {
        let flags = self.statement.flags;
        let harmless = Flags::PARAMETERS
            | Flags::COMPOUND_QUERY
            | Flags::COMMENT
            | Flags::MENTIONS_SESSION_TRACK;
        let excused = match self.is_excused {
            true => Flags::NONDETERMINISTIC,
            false => Flags::empty(),
        };
        if self.unstable.is_some() {
            None
        } else if !self.statement.functions.is_empty() {
            Some(Why::Function)
        } else {
            (!(harmless | excused).contains(flags)).then_some(Why::NotUnderstood)
        }
    }

    fn finish(&mut self) {
        let limit = u32::from(u16::MAX);
        if self.literals > limit || self.parameters > limit || self.unstable.is_some() {
            self.gave_up = true;
        }
        if self.gave_up {
            self.conditions.clear();
        }
        if self.has_outer_join {
            self.drop_what_null_fulfils();
        }
    }

    fn stop_at_text(&mut self, why: Why) {
        let end = self.text.len() as u32;
        self.stop(why, Span { start: 0, end });
    }

    /// Nothing more is read.
    fn stop(&mut self, why: Why, at: Span) {
        if self.unstable.is_none() {
            self.unstable = Some(Unstable { why, at });
        }
        self.cur.tok = Tok::End;
        self.next.tok = Tok::End;
        self.gave_up = true;
        // A term that is being read still counts its constants.
        self.conditions.list.clear();
    }

    pub(crate) fn at_end(&self) -> bool {
        matches!(self.cur.tok, Tok::End | Tok::Semicolon | Tok::Bad)
    }

    /// How many `?` stand before the current token.
    pub(crate) fn parameters(&self) -> u32 {
        self.parameters
    }

    /// The one of the statement's tables whose name stands there.
    pub(crate) fn table_at(&self, name: Span) -> Option<u16> {
        let tables = &self.statement.tables;
        let at = tables.iter().position(|table| table.name == name)?;
        u16::try_from(at).ok()
    }

    pub(crate) fn bytes(&self, token: Token) -> &'t [u8] {
        token.span().of(self.text)
    }

    /// The current token and the one behind it are these bytes, with nothing between.
    pub(super) fn at_pair(&self, first: u8, second: u8) -> bool {
        self.cur.end == self.next.start
            && self.bytes(self.cur) == [first]
            && self.bytes(self.next) == [second]
    }

    /// Takes the current token.
    pub(crate) fn bump(&mut self) {
        if self.at_end() {
            return;
        }
        self.look();
        if self.unstable.is_some() {
            return;
        }
        self.prev = self.cur;
        self.cur = self.next;
        self.next = self.lexer.next();
    }

    /// Takes what is in parentheses, the current token being the first of them.
    pub(crate) fn skip_group(&mut self) {
        let outside = self.depth;
        self.bump();
        self.leave_group(outside);
    }

    /// Takes all up to where `depth` parentheses are open.
    pub(super) fn leave_group(&mut self, depth: usize) {
        while self.depth > depth && !self.at_end() {
            self.bump();
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    fn look(&mut self) {
        match self.cur.tok {
            Tok::Open => self.depth += 1,
            Tok::Close => match self.depth.checked_sub(1) {
                Some(depth) => self.depth = depth,
                None => self.gave_up = true,
            },
            Tok::Number | Tok::Str => self.literals += 1,
            Tok::Param => self.parameters += 1,
            // What it binds is not known, nor where what it assigns ends.
            Tok::Brace | Tok::Assign if !self.judges => self.gave_up = true,
            _ if !self.judges => {}
            Tok::UserVar | Tok::SysVar | Tok::Assign => self.stop(Why::Variable, self.cur.span()),
            Tok::Equal | Tok::Op => self.computes = true,
            Tok::Brace => self.stop(Why::NotUnderstood, self.cur.span()),
            Tok::Word => self.look_at_word(),
            Tok::Quoted if self.next.tok == Tok::Open => self.look_at_call(),
            _ => {}
        }
    }

    fn look_at_word(&mut self) {
        if self.cur.id == WordId::NONE && self.next.tok != Tok::Open {
            return;
        }
        self.computes |= self.may_convert();
        match self.unstable_word() {
            Some(why) => self.stop(why, self.cur.span()),
            None if self.next.tok == Tok::Open => self.look_at_call(),
            None => self.look_at_set_operation(),
        }
    }

    /// A word that says something whether or not it is called.
    fn unstable_word(&self) -> Option<Why> {
        let next = self.next;
        if self.is_of_the_moment() {
            return Some(Why::Function);
        }
        match self.cur.kw() {
            Kw::Into => return Some(Why::Into),
            Kw::Procedure => return Some(Why::Procedure),
            Kw::SqlCalcFoundRows => return Some(Why::FoundRows),
            Kw::For if matches!(next.kw(), Kw::Update | Kw::Share) => return Some(Why::Locks),
            Kw::For if next.id.part() == Part::SystemTime => return Some(Why::PastRows),
            Kw::Lock if next.is(Kw::In) => return Some(Why::Locks),
            Kw::Next | Kw::Previous if next.is(Kw::Value) => return Some(Why::Sequence),
            _ => {}
        }
        match self.cur.id.part() {
            Part::SqlNoCache => Some(Why::NoCache),
            Part::Match => Some(Why::FullText),
            Part::Tablesample if next.tok == Tok::Word => Some(Why::Sample),
            Part::Examined if self.bytes(self.prev).eq_ignore_ascii_case(b"ROWS") => {
                Some(Why::Limits)
            }
            Part::Time if self.makes_time() => Some(Why::TimeOfDay),
            _ => None,
        }
    }

    /// A word that is a call without parentheses, not a column.
    pub(super) fn is_of_the_moment(&self) -> bool {
        let word = self.cur.kw();
        word.is_of_the_moment() || (matches!(word, Kw::Sysdate | Kw::Rownum) && self.is_mariadb())
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.mode.family == Family::MariaDb
    }

    /// A word that may bring values of two types together, or one value to another type.
    fn may_convert(&self) -> bool {
        let word = self.cur.id;
        match self.cur.kw() {
            Kw::All
            | Kw::And
            | Kw::As
            | Kw::By
            | Kw::Distinct
            | Kw::For
            | Kw::From
            | Kw::Group
            | Kw::Having
            | Kw::Index
            | Kw::Join
            | Kw::Key
            | Kw::Limit
            | Kw::Not
            | Kw::On
            | Kw::Or
            | Kw::Order
            | Kw::Select
            | Kw::Where => return false,
            Kw::Count => return false,
            Kw::Minus => return true,
            _ => {}
        }
        match word.part() {
            Part::Interval | Part::Natural => return true,
            Part::Max | Part::Min => return false,
            _ => {}
        }
        word.role() == Role::Opens || (word.role() == Role::Stable && self.next.tok == Tok::Open)
    }

    /// TIME is a literal's beginning, a function or a type, not a column's name.
    fn makes_time(&self) -> bool {
        let after_type = matches!(self.next.tok, Tok::Close | Tok::Open);
        matches!(self.next.tok, Tok::Open | Tok::Str)
            || (after_type && (self.prev.is(Kw::As) || self.prev.tok == Tok::Comma))
            || self.next.id.part() == Part::Path
            || self.next.is(Kw::Exists)
            || self.prev.is(Kw::Returning)
    }

    /// UNION and its like make one answer of several blocks: no term stands for the whole.
    fn look_at_set_operation(&mut self) {
        let joins = matches!(
            self.cur.kw(),
            Kw::Union | Kw::Except | Kw::Intersect | Kw::Minus
        );
        if joins && self.depth == 0 {
            self.gave_up = true;
        }
        if matches!(self.cur.kw(), Kw::Sysdate | Kw::Rownum) {
            self.is_excused = true;
        }
    }

    /// A name before `(`.
    fn look_at_call(&mut self) {
        self.look_at_set_operation();
        let name = self.cur;
        let quoted = name.tok == Tok::Quoted;
        self.computes |= quoted || name.id.role() == Role::Unlisted;
        let callee = match self.prev.tok {
            Tok::Dot => Callee::Stored,
            _ => name.id.callee(self.mode, name.glued, quoted),
        };
        let fine = match name.id.role() {
            Role::Stable if callee != Callee::Stored => true,
            Role::Opens if callee != Callee::Stored => !quoted,
            _ if self.prev.tok == Tok::Dot => false,
            _ if name.is(Kw::JsonTable) => true,
            _ if name.id.part() == Part::UnixTimestamp => self.has_arguments(),
            // A path of JSON_TABLE stands before it.
            _ if name.is(Kw::Columns) && self.prev.tok == Tok::Str => true,
            // An alias with its columns, a type.
            _ if callee != Callee::Builtin => {
                self.prev.tok == Tok::Close || self.prev.is(Kw::As) || self.begins_definition()
            }
            _ => false,
        };
        if !fine {
            return self.stop(Why::Function, name.span());
        }
        let is_database = matches!(name.kw(), Kw::Database | Kw::Schema);
        self.is_excused |= is_database || name.id.part() == Part::UnixTimestamp;
    }

    /// The parentheses behind the next token hold something.
    fn has_arguments(&self) -> bool {
        let mut ahead = self.lexer;
        ahead.next().tok != Tok::Close
    }

    /// The name of a common table expression with its columns: behind them stands `AS (`.
    fn begins_definition(&self) -> bool {
        let mut ahead = self.lexer;
        loop {
            let token = ahead.next();
            match token.tok {
                Tok::Close => return ahead.next().is(Kw::As) && ahead.next().tok == Tok::Open,
                Tok::Word | Tok::Quoted | Tok::Comma => {}
                _ => return false,
            }
        }
    }
}

/// Whether there may be an optimizer hint that ends the statement before its answer is whole.
fn limits_its_time(text: &[u8]) -> bool {
    const HINT: &[u8] = b"MAX_EXECUTION_TIME";
    let has_hints = text.windows(3).any(|window| window == b"/*+");
    has_hints
        && text
            .windows(HINT.len())
            .any(|window| window.eq_ignore_ascii_case(HINT))
}
