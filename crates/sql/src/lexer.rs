//! Splits a statement's bytes into tokens as the servers' lexers do: comments, version comments,
//! strings, quoted identifiers, numbers, variables. Knows no grammar and allocates nothing.
//!
//! The rules are those of `lex_one_token` in both servers' sources, checked against MySQL 9.7 and
//! MariaDB 10.11.

use crate::mode::{Charset, LexMode};
use crate::statement::{Flags, Span};
use crate::words::{self, Kw, WordHash, WordId};
use millrace_base::Family;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tok {
    /// The end of the text.
    End,
    /// `;`
    Semicolon,
    /// An unquoted word: keyword or identifier.
    Word,
    /// An identifier in backquotes, or in double quotes under ANSI_QUOTES.
    Quoted,
    /// Any number, `0x…`, `x'…'` and `b'…'` included.
    Number,
    /// A string. `N'…'` included, an introducer is a word of its own.
    Str,
    /// MySQL's `$tag$…$tag$`.
    DollarStr,
    /// `?`
    Param,
    /// `@name`, `@'name'`, `@` alone.
    UserVar,
    /// `@@`; the name follows.
    SysVar,
    /// `:=`
    Assign,
    /// `(`
    Open,
    /// `)`
    Close,
    /// `,`
    Comma,
    /// `.`
    Dot,
    /// `=`
    Equal,
    /// `*`
    Star,
    /// `{`
    Brace,
    /// Any other operator's byte.
    Op,
    /// Something that no server accepts: unclosed quotes or comments, a NUL.
    Bad,
}

/// A token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) tok: Tok,
    /// A word before `(` that counts as standing right before it; a `;` in a version comment.
    pub(crate) glued: bool,
    /// The word's place in the table; NONE also where dots make it a plain identifier.
    pub(crate) id: WordId,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Token {
    /// The keyword; none for anything but an unquoted word.
    pub(crate) fn kw(&self) -> Kw {
        if self.tok == Tok::Word {
            self.id.kw()
        } else {
            Kw::None
        }
    }

    pub(crate) fn is(&self, kw: Kw) -> bool {
        self.tok == Tok::Word && self.id.kw() == kw
    }

    pub(crate) fn span(&self) -> Span {
        Span {
            start: self.start,
            end: self.end,
        }
    }

    /// A word or a quoted identifier.
    pub(crate) fn is_name(&self) -> bool {
        matches!(self.tok, Tok::Word | Tok::Quoted)
    }
}

/// The lexer: a position in a text, cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct Lexer<'t> {
    text: &'t [u8],
    at: usize,
    mode: &'t LexMode,
    in_version_comment: bool,
    /// The word before was followed by `.` and an identifier.
    dot_joins: bool,
    /// The token before was a dot that an identifier's byte follows.
    name_follows: bool,
    /// The last token was one of the keywords behind which MySQL reads `/*+ … */` as hints.
    hints_possible: bool,
    /// What comments and words said.
    pub(crate) notes: Flags,
    /// The body of the first `millrace:` comment.
    pub(crate) hint: Option<Span>,
}

const SPACE: u8 = 1;
const IDENT: u8 = 2;
const DIGIT: u8 = 4;
const HIGH: u8 = 8;
/// May begin what is skipped between tokens.
const BLANK: u8 = 16;

static CLASS: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b' ' | 9..=13 => SPACE | BLANK,
            b'#' | b'-' | b'/' | b'*' => BLANK,
            0xA0 => IDENT | HIGH | BLANK,
            b'0'..=b'9' => IDENT | DIGIT,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' => IDENT,
            0x80.. => IDENT | HIGH,
            _ => 0,
        };
        byte += 1;
    }
    table
}

fn class(byte: u8) -> u8 {
    CLASS[byte as usize]
}

impl<'t> Lexer<'t> {
    pub(crate) fn new(text: &'t [u8], mode: &'t LexMode) -> Self {
        Lexer {
            text,
            at: 0,
            mode,
            in_version_comment: false,
            dot_joins: false,
            name_follows: false,
            hints_possible: false,
            notes: Flags::empty(),
            hint: None,
        }
    }

    /// The byte `ahead` of the position; 0 past the end.
    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn is_digit(&self, ahead: usize) -> bool {
        class(self.peek(ahead)) & DIGIT != 0
    }

    fn is_ident(&self, ahead: usize) -> bool {
        class(self.peek(ahead)) & IDENT != 0
    }

    fn is_space(&self, ahead: usize) -> bool {
        let byte = self.peek(ahead);
        class(byte) & SPACE != 0 || (byte == 0xA0 && self.mode.charset == Charset::Latin1)
    }

    /// The next token. After [`Tok::End`] always [`Tok::End`].
    pub(crate) fn next(&mut self) -> Token {
        let Some((start, byte)) = self.skip_blanks() else {
            return self.bad(self.at);
        };
        if start >= self.text.len() {
            return self.end();
        }
        self.hints_possible = false;
        if std::mem::take(&mut self.name_follows) {
            return self.word(start, false);
        }
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => self.word_or_prefixed(start, byte),
            b'0'..=b'9' => self.number(start),
            b'$' => self.dollar(start),
            b'\'' => self.string(start, 0),
            b'"' if !self.mode.ansi_quotes => self.string(start, 0),
            b'"' | b'`' => self.quoted(start, byte),
            b'[' if self.mode.bracket_quotes => self.quoted(start, b']'),
            b'@' => self.variable(start),
            b'.' => self.dot(start),
            b':' if self.peek(1) == b'=' => self.simple(Tok::Assign, start, 2),
            b';' => self.semicolon(start),
            0 => self.bad(start),
            _ => self.simple(punctuation(byte), start, 1),
        }
    }

    fn token(&self, tok: Tok, start: usize) -> Token {
        Token {
            tok,
            glued: false,
            id: WordId::NONE,
            start: start as u32,
            end: self.at as u32,
        }
    }

    fn simple(&mut self, tok: Tok, start: usize, len: usize) -> Token {
        self.at = start + len;
        self.token(tok, start)
    }

    /// A token that no server accepts; it eats the rest of the text.
    fn bad(&mut self, start: usize) -> Token {
        self.notes |= Flags::UNTERMINATED;
        self.in_version_comment = false;
        self.at = self.text.len();
        self.token(Tok::Bad, start)
    }

    fn end(&mut self) -> Token {
        if self.in_version_comment {
            return self.bad(self.text.len());
        }
        self.at = self.text.len();
        self.token(Tok::End, self.at)
    }

    fn semicolon(&mut self, start: usize) -> Token {
        let mut token = self.simple(Tok::Semicolon, start, 1);
        token.glued = self.in_version_comment;
        token
    }

    fn dot(&mut self, start: usize) -> Token {
        if !self.dot_joins && self.is_digit(1) {
            return self.fraction(start);
        }
        self.dot_joins = false;
        self.at = start + 1;
        self.name_follows = self.is_ident(0);
        self.token(Tok::Dot, start)
    }

    /// Moves to the next token's first byte, over blanks and comments. None: an unclosed comment.
    #[inline]
    fn skip_blanks(&mut self) -> Option<(usize, u8)> {
        loop {
            let byte = self.peek(0);
            if class(byte) & BLANK == 0 {
                return Some((self.at, byte));
            }
            let blank = match byte {
                _ if class(byte) & SPACE != 0 => {
                    self.at += 1;
                    true
                }
                b'#' => self.line_comment(1),
                b'-' if self.peek(1) == b'-' => self.dashes(),
                b'/' if self.peek(1) == b'*' => self.block_comment()?,
                b'*' if self.in_version_comment && self.peek(1) == b'/' => {
                    self.in_version_comment = false;
                    self.at += 2;
                    true
                }
                0xA0 if self.is_space(0) => {
                    self.at += 1;
                    true
                }
                _ => false,
            };
            if !blank {
                return Some((self.at, byte));
            }
        }
    }

    /// `--` begins a comment only before a blank, a control character or the end.
    fn dashes(&mut self) -> bool {
        let after = self.peek(2);
        if self.is_space(2) || after < 0x20 || after == 0x7f {
            return self.line_comment(2);
        }
        false
    }

    /// Up to the line's end. A NUL ends it too, and is then read as a token.
    fn line_comment(&mut self, marker: usize) -> bool {
        let start = self.at + marker;
        let rest = self.text.get(start..).unwrap_or(&[]);
        let len = rest
            .iter()
            .position(|b| matches!(b, b'\n' | 0))
            .unwrap_or(rest.len());
        self.at = start + len;
        self.notes |= Flags::COMMENT;
        self.note_hint(start, self.at);
        true
    }

    /// A comment in `/*`: skipped, or entered where its version says so. None: unclosed.
    fn block_comment(&mut self) -> Option<bool> {
        let maria = self.mode.family == Family::MariaDb;
        let marker = match (self.peek(2), self.peek(3)) {
            (b'!', _) => 3,
            (b'M', b'!') if maria => 4,
            (b'+', _) if !maria && self.hints_possible => return self.hints(),
            _ => return self.plain_comment(self.at + 2, 0),
        };
        let digits = self.version_digits(marker);
        if digits > 0 && !self.version_runs(marker, digits) {
            return self.plain_comment(self.at + marker + digits, 1);
        }
        self.at += marker + digits;
        self.in_version_comment = true;
        self.notes |= Flags::VERSION_COMMENT;
        Some(true)
    }

    /// How many digits of version follow `/*!`: five, or six, or none. MySQL takes six only
    /// before a blank.
    fn version_digits(&self, marker: usize) -> usize {
        if !(0..5).all(|i| self.is_digit(marker + i)) {
            return 0;
        }
        let six = self.is_digit(marker + 5)
            && (self.mode.family == Family::MariaDb || self.is_space(marker + 6));
        if six { 6 } else { 5 }
    }

    /// MariaDB leaves out what is meant for MySQL 5.7 and later.
    fn version_runs(&self, marker: usize, digits: usize) -> bool {
        let version = (0..digits).fold(0, |sum, i| {
            sum * 10 + u32::from(self.peek(marker + i) - b'0')
        });
        let for_mysql = (50700..=99999).contains(&version) && marker == 3;
        version <= self.mode.version && !(self.mode.family == Family::MariaDb && for_mysql)
    }

    /// Skips a comment whose body starts at `from`; `nested` further ones may be inside.
    fn plain_comment(&mut self, from: usize, nested: usize) -> Option<bool> {
        let mut at = from;
        let mut depth = 0;
        while let Some(&byte) = self.text.get(at) {
            match (byte, self.text.get(at + 1)) {
                (b'*', Some(b'/')) if depth == 0 => {
                    self.notes |= Flags::COMMENT;
                    self.note_hint(from, at);
                    self.at = at + 2;
                    return Some(true);
                }
                (b'*', Some(b'/')) => {
                    depth -= 1;
                    at += 2;
                }
                (b'/', Some(b'*')) if depth < nested => {
                    depth += 1;
                    at += 2;
                }
                _ => at += 1,
            }
        }
        None
    }

    /// Optimizer hints. Their own lexer knows quotes, so that `*/` may stand in one; such a
    /// statement counts as not understood.
    fn hints(&mut self) -> Option<bool> {
        let from = self.at + 3;
        self.plain_comment(from, 0)?;
        let body = &self.text[from..self.at - 2];
        let odd = |quote: u8| body.iter().filter(|b| **b == quote).count() % 2 == 1;
        if odd(b'\'') || odd(b'"') || odd(b'`') {
            return None;
        }
        if body.windows(7).any(|w| w.eq_ignore_ascii_case(b"SET_VAR")) {
            self.notes |= Flags::HINT_SET_VAR;
        }
        Some(true)
    }

    fn note_hint(&mut self, start: usize, end: usize) {
        const MARK: &[u8] = b"millrace:";
        if self.hint.is_some() {
            return;
        }
        let Some(body) = self.text.get(start..end) else {
            return;
        };
        let blanks = body.iter().take_while(|b| b.is_ascii_whitespace()).count();
        if body[blanks..].len() >= MARK.len()
            && body[blanks..blanks + MARK.len()].eq_ignore_ascii_case(MARK)
        {
            let start = start + blanks + MARK.len();
            self.hint = Some(Span {
                start: start as u32,
                end: end as u32,
            });
        }
    }

    fn word_or_prefixed(&mut self, start: usize, byte: u8) -> Token {
        if self.peek(1) == b'\'' {
            match byte {
                b'n' | b'N' => return self.string(start, 1),
                b'x' | b'X' | b'b' | b'B' => return self.digits_in_quotes(start),
                _ => {}
            }
        }
        self.word(start, true)
    }

    /// An identifier from `start`; `keyword`: it may be one.
    fn word(&mut self, start: usize, keyword: bool) -> Token {
        let mut at = start;
        let mut hash = WordHash::START;
        // Nearly every word is ASCII throughout.
        for &byte in &self.text[start..] {
            if class(byte) & (IDENT | HIGH) != IDENT {
                break;
            }
            hash = hash.add(byte);
            at += 1;
        }
        let mut high = 0;
        while let Some(&byte) = self.text.get(at) {
            let kind = class(byte);
            if kind & IDENT == 0 {
                break;
            }
            if kind & HIGH != 0 {
                match self.high_in_word(at) {
                    High::Letter(len) => at += len,
                    High::Blank => break,
                    High::Unsure => return self.bad(start),
                }
                high = HIGH;
                continue;
            }
            hash = hash.add(byte);
            at += 1;
        }
        self.at = at;
        self.finish_word(start, hash, keyword && high == 0)
    }

    fn finish_word(&mut self, start: usize, hash: WordHash, keyword: bool) -> Token {
        let mut token = self.token(Tok::Word, start);
        let text = &self.text[start..self.at];
        token.glued = self.paren_follows();
        self.dot_joins = self.peek(0) == b'.' && self.is_ident(1);
        if keyword && !self.dot_joins {
            token.id = words::find_ident(text, hash);
            self.hints_possible = matches!(
                token.id.kw(),
                Kw::Select | Kw::Insert | Kw::Replace | Kw::Update | Kw::Delete
            );
        }
        if token.id == WordId::NONE {
            self.note_session_track(text);
        }
        token
    }

    /// `(` stands right behind, or behind blanks (no comments) under IGNORE_SPACE.
    fn paren_follows(&self) -> bool {
        let mut ahead = 0;
        while self.mode.ignore_space && self.is_space(ahead) {
            ahead += 1;
        }
        self.peek(ahead) == b'('
    }

    fn note_session_track(&mut self, text: &[u8]) {
        const MARK: &[u8] = b"session_track";
        if text.len() >= MARK.len() && text[..MARK.len()].eq_ignore_ascii_case(MARK) {
            self.notes |= Flags::MENTIONS_SESSION_TRACK;
        }
    }

    /// A byte from 0x80 in an unquoted word.
    fn high_in_word(&self, at: usize) -> High {
        let byte = self.text[at];
        match self.mode.charset {
            Charset::AsciiSafe => High::Letter(1),
            Charset::Latin1 if byte == 0xA0 => High::Blank,
            Charset::Latin1 => High::Letter(1),
            Charset::SingleByte => High::Unsure,
            _ => match self.char_len(at) {
                1 => High::Unsure,
                len => High::Letter(len),
            },
        }
    }

    /// The length of the character at `at`: 2 or 4 only for valid characters of those character
    /// sets whose characters can hide ASCII bytes.
    #[inline]
    fn char_len(&self, at: usize) -> usize {
        let byte = |i: usize| self.text.get(at + i).copied().unwrap_or(0);
        let (lead, trail) = (byte(0), byte(1));
        let two = match self.mode.charset {
            Charset::AsciiSafe | Charset::Latin1 | Charset::SingleByte => false,
            Charset::Gbk => {
                matches!(lead, 0x81..=0xFE) && matches!(trail, 0x40..=0x7E | 0x80..=0xFE)
            }
            Charset::Sjis => {
                matches!(lead, 0x81..=0x9F | 0xE0..=0xFC)
                    && matches!(trail, 0x40..=0x7E | 0x80..=0xFC)
            }
            Charset::Big5 => {
                matches!(lead, 0xA1..=0xF9) && matches!(trail, 0x40..=0x7E | 0xA1..=0xFE)
            }
            Charset::Gb18030 => {
                let four = matches!(trail, 0x30..=0x39)
                    && matches!(byte(2), 0x81..=0xFE)
                    && matches!(byte(3), 0x30..=0x39);
                if matches!(lead, 0x81..=0xFE) && four {
                    return 4;
                }
                matches!(lead, 0x81..=0xFE) && matches!(trail, 0x40..=0x7E | 0x80..=0xFE)
            }
        };
        1 + usize::from(two)
    }

    /// A string whose quote stands `prefix` bytes behind `start`.
    fn string(&mut self, start: usize, prefix: usize) -> Token {
        let quote = self.text[start + prefix];
        let open = start + prefix + 1;
        let mut at = open;
        while let Some(&byte) = self.text.get(at) {
            if byte == quote {
                if self.text.get(at + 1) != Some(&quote) {
                    self.at = at + 1;
                    self.note_session_track(&self.text[open..at]);
                    return self.token(Tok::Str, start);
                }
                at += 2;
            } else if byte == b'\\' && !self.mode.no_backslash_escapes {
                at += 2;
            } else if byte >= 0x80 {
                at += self.char_len(at);
            } else {
                at += 1;
            }
        }
        self.bad(start)
    }

    /// `x'…'` or `b'…'`.
    fn digits_in_quotes(&mut self, start: usize) -> Token {
        let body = &self.text[start + 2..];
        let len = body.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        if body.get(len) != Some(&b'\'') {
            return self.bad(start);
        }
        self.simple(Tok::Number, start, len + 3)
    }

    fn quoted(&mut self, start: usize, quote: u8) -> Token {
        let mut at = start + 1;
        while let Some(&byte) = self.text.get(at) {
            if byte == quote {
                if self.text.get(at + 1) != Some(&quote) {
                    self.at = at + 1;
                    return self.finish_quoted(start);
                }
                at += 2;
            } else if byte == 0 {
                break;
            } else if byte >= 0x80 {
                at += self.char_len(at);
            } else {
                at += 1;
            }
        }
        self.bad(start)
    }

    fn finish_quoted(&mut self, start: usize) -> Token {
        let mut token = self.token(Tok::Quoted, start);
        let inner = &self.text[start + 1..self.at - 1];
        let hash = inner.iter().fold(WordHash::START, |hash, b| hash.add(*b));
        if self.peek(0) == b'(' || self.is_space(0) || self.peek(0) == b'/' {
            token.id = words::find(inner, hash);
        }
        self.note_session_track(inner);
        token
    }

    /// `$` starts a dollar quote in MySQL 9 where a tag and a further `$` follow, else a word.
    fn dollar(&mut self, start: usize) -> Token {
        if self.mode.family == Family::MariaDb || self.mode.version < 80100 {
            return self.word(start, true);
        }
        let rest = &self.text[start + 1..];
        let tag_len = rest
            .iter()
            .take_while(|b| **b != b'$' && class(**b) & IDENT != 0)
            .count();
        if rest.get(tag_len) != Some(&b'$') {
            return self.word(start, true);
        }
        let tag = &self.text[start..start + tag_len + 2];
        let body = &self.text[start + tag.len()..];
        match body.windows(tag.len()).position(|window| window == tag) {
            Some(len) => self.simple(Tok::DollarStr, start, len + 2 * tag.len()),
            None => self.bad(start),
        }
    }

    fn number(&mut self, start: usize) -> Token {
        if self.peek(0) == b'0' && matches!(self.peek(1), b'x' | b'b') {
            return self.prefixed_number(start);
        }
        let digits = self.digits_from(start);
        self.at = start + digits;
        match self.peek(0) {
            b'.' => self.fraction(start),
            b'e' | b'E' if self.exponent_len(0) > 0 => {
                self.at += self.exponent_len(0);
                self.token(Tok::Number, start)
            }
            byte if class(byte) & IDENT != 0 => self.word(start, false),
            _ => self.token(Tok::Number, start),
        }
    }

    /// From the position, at `.` or at a number's start before it.
    fn fraction(&mut self, start: usize) -> Token {
        if self.mode.family == Family::MariaDb && self.peek(0) == b'.' && self.peek(1) == b'.' {
            return self.token(Tok::Number, start);
        }
        self.at += 1;
        self.at += self.digits_from(self.at);
        self.at += self.exponent_len(0);
        self.token(Tok::Number, start)
    }

    /// `0x…` and `0b…`; where other letters follow it is a word.
    fn prefixed_number(&mut self, start: usize) -> Token {
        let hex = self.peek(1) == b'x';
        let fits = |b: &u8| {
            if hex {
                b.is_ascii_hexdigit()
            } else {
                matches!(b, b'0' | b'1')
            }
        };
        let len = self.text[start + 2..]
            .iter()
            .take_while(|b| fits(b))
            .count();
        if len == 0 || self.is_ident(2 + len) {
            return self.word(start, false);
        }
        self.simple(Tok::Number, start, 2 + len)
    }

    fn digits_from(&self, from: usize) -> usize {
        let rest = self.text.get(from..).unwrap_or(&[]);
        rest.iter().take_while(|b| b.is_ascii_digit()).count()
    }

    /// The length of `e12`, `E-3`, …; 0 where there is none.
    fn exponent_len(&self, ahead: usize) -> usize {
        if !matches!(self.peek(ahead), b'e' | b'E') {
            return 0;
        }
        let sign = usize::from(matches!(self.peek(ahead + 1), b'+' | b'-'));
        match self.digits_from(self.at + ahead + 1 + sign) {
            0 => 0,
            digits => 1 + sign + digits,
        }
    }

    fn variable(&mut self, start: usize) -> Token {
        self.at = start + 1;
        match self.peek(0) {
            b'@' => self.simple(Tok::SysVar, start, 2),
            b'`' => self.quoted_variable(start, true),
            b'"' => self.quoted_variable(start, self.mode.ansi_quotes),
            b'\'' => self.quoted_variable(start, false),
            _ => {
                let rest = &self.text[self.at..];
                let part = |b: &&u8| class(**b) & IDENT != 0 || **b == b'.';
                self.at += rest.iter().take_while(part).count();
                self.token(Tok::UserVar, start)
            }
        }
    }

    fn quoted_variable(&mut self, start: usize, identifier: bool) -> Token {
        let quote = self.peek(0);
        let inner = if identifier {
            self.quoted(start + 1, quote)
        } else {
            self.string(start + 1, 0)
        };
        match inner.tok {
            Tok::Bad => inner,
            _ => self.token(Tok::UserVar, start),
        }
    }
}

enum High {
    Letter(usize),
    Blank,
    Unsure,
}

fn punctuation(byte: u8) -> Tok {
    match byte {
        b'(' => Tok::Open,
        b')' => Tok::Close,
        b',' => Tok::Comma,
        b'=' => Tok::Equal,
        b'*' => Tok::Star,
        b'{' => Tok::Brace,
        b'?' => Tok::Param,
        _ => Tok::Op,
    }
}
