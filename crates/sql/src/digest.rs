//! The normalised text of a statement and its hash. Says nothing about the statement's meaning.
//!
//! The form is that of MySQL's `STATEMENT_DIGEST_TEXT()`; it is near to it, not equal byte for
//! byte (non-reserved keywords used as names come in upper case here).

use smallvec::SmallVec;

use crate::lexer::{Lexer, Tok, Token};
use crate::mode::LexMode;
use crate::words::{Callee, Kw, WordId};

/// Writes the statement's normalised text to `out` (cleared first): literals become `?`, lists of
/// them `?, ...` or `(...)`, repeated rows of them `(...) /* , ... */`; comments go, tokens stand
/// one blank apart, keywords are in upper case, identifiers in backquotes.
///
/// Returns the text's 64-bit FNV-1a hash, which depends on nothing else and never changes.
pub fn digest(text: &[u8], mode: &LexMode, out: &mut Vec<u8>) -> u64 {
    out.clear();
    let mut writer = Writer {
        text,
        mode,
        out,
        items: SmallVec::new(),
    };
    let mut lexer = Lexer::new(text, mode);
    let mut token = lexer.next();
    loop {
        let next = lexer.next();
        match token.tok {
            Tok::End => break,
            // An introducer says nothing without its string.
            Tok::Word if next.tok == Tok::Str && writer.bytes(token).starts_with(b"_") => {
                writer.put(Class::Other, b"(_charset)");
            }
            _ => writer.token(token),
        }
        token = next;
    }
    fnv1a(writer.out)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What was written, as far as it matters for shortening what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// `?`
    Value,
    /// `?, ...`
    Values,
    /// `(?)`
    Row,
    /// `(...)`
    Rows,
    /// `-` or `+`
    Sign,
    Comma,
    Open,
    /// A name, a closing parenthesis: a sign behind it is an operator.
    Operand,
    In,
    Other,
}

#[derive(Clone, Copy)]
struct Item {
    class: Class,
    /// Where in the output it starts.
    start: usize,
}

/// As many items are remembered as a rule looks back, and then some.
const REMEMBERED: usize = 32;

struct Writer<'t, 'o> {
    text: &'t [u8],
    mode: &'t LexMode,
    out: &'o mut Vec<u8>,
    items: SmallVec<[Item; REMEMBERED]>,
}

impl<'t> Writer<'t, '_> {
    fn bytes(&self, token: Token) -> &'t [u8] {
        token.span().of(self.text)
    }

    /// The class of the item `back` from the last one.
    fn class(&self, back: usize) -> Option<Class> {
        let index = self.items.len().checked_sub(back + 1)?;
        Some(self.items[index].class)
    }

    fn put(&mut self, class: Class, text: &[u8]) {
        if self.items.len() == REMEMBERED {
            self.items.drain(..REMEMBERED / 2);
        }
        if !self.out.is_empty() {
            self.out.push(b' ');
        }
        self.items.push(Item {
            class,
            start: self.out.len(),
        });
        self.out.extend_from_slice(text);
    }

    /// Takes back the last `count` items.
    fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(item) = self.items.pop() {
                self.out.truncate(item.start.saturating_sub(1));
            }
        }
    }

    fn token(&mut self, token: Token) {
        match token.tok {
            Tok::Number | Tok::Str | Tok::DollarStr | Tok::Param => self.value(),
            Tok::Word if token.is(Kw::Null) => self.value(),
            Tok::Word => self.word(token),
            Tok::Quoted => self.name(&crate::ident::unquote_ident(self.bytes(token))),
            Tok::UserVar => self.put(Class::Operand, b"@?"),
            Tok::Comma => self.put(Class::Comma, b","),
            Tok::Open => self.put(Class::Open, b"("),
            Tok::Close => self.close(),
            Tok::Op if matches!(self.bytes(token), b"-" | b"+") => {
                self.put(Class::Sign, self.bytes(token));
            }
            // Operators of several bytes come as several tokens; they are joined again.
            Tok::Op | Tok::Equal if self.joins(token) => {
                self.out.extend_from_slice(self.bytes(token));
            }
            _ => self.put(Class::Other, self.bytes(token)),
        }
    }

    /// Whether the operator's byte stands right behind another one's.
    fn joins(&self, token: Token) -> bool {
        let before = (token.start as usize)
            .checked_sub(1)
            .map(|at| self.text[at]);
        let operator = matches!(before, Some(b'<' | b'>' | b'!' | b'=' | b'|' | b'&' | b'-'));
        let last = self.out.last().copied();
        operator && last == before && matches!(self.class(0), Some(Class::Other | Class::Sign))
    }

    fn word(&mut self, token: Token) {
        let bytes = self.bytes(token);
        let keyword = token.kw() != Kw::None
            || match token.id.callee(self.mode, token.glued, false) {
                Callee::Keyword => token.id != WordId::NONE,
                Callee::Builtin => token.glued,
                Callee::Stored => false,
            };
        if !keyword {
            return self.name(bytes);
        }
        let class = if token.is(Kw::In) {
            Class::In
        } else {
            Class::Other
        };
        self.put(class, b"");
        let start = self.out.len();
        self.out.extend_from_slice(bytes);
        self.out[start..].make_ascii_uppercase();
    }

    fn name(&mut self, name: &[u8]) {
        self.put(Class::Operand, b"`");
        for byte in name {
            self.out.push(*byte);
            if *byte == b'`' {
                self.out.push(b'`');
            }
        }
        self.out.push(b'`');
    }

    fn value(&mut self) {
        let signed = self.class(0) == Some(Class::Sign);
        let operand = matches!(
            self.class(1),
            Some(Class::Value | Class::Values | Class::Row | Class::Rows | Class::Operand)
        );
        if signed && !operand {
            self.take_back(1);
        }
        match (self.class(1), self.class(0)) {
            (Some(Class::Value | Class::Values), Some(Class::Comma)) => {
                self.take_back(2);
                self.put(Class::Values, b"?, ...");
            }
            _ => self.put(Class::Value, b"?"),
        }
    }

    fn close(&mut self) {
        let (class, text) = match (self.class(1), self.class(0)) {
            (Some(Class::Open), Some(Class::Value)) => match self.class(2) {
                Some(Class::In) => (Class::Operand, &b"(...)"[..]),
                _ => (Class::Row, &b"(?)"[..]),
            },
            (Some(Class::Open), Some(Class::Values)) => match self.class(2) {
                Some(Class::In) => (Class::Operand, &b"(...)"[..]),
                _ => (Class::Rows, &b"(...)"[..]),
            },
            _ => return self.put(Class::Operand, b")"),
        };
        self.take_back(2);
        let repeated = class != Class::Operand
            && self.class(0) == Some(Class::Comma)
            && self.class(1) == Some(class);
        if !repeated {
            return self.put(class, text);
        }
        self.take_back(1);
        const MORE: &[u8] = b" /* , ... */";
        if !self.out.ends_with(MORE) {
            self.out.extend_from_slice(MORE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Family;

    fn text(statement: &str) -> String {
        let mut out = Vec::new();
        digest(
            statement.as_bytes(),
            &LexMode::new(Family::MySql, 90704),
            &mut out,
        );
        String::from_utf8(out).expect("ASCII in, ASCII out")
    }

    /// What MySQL 9.7's STATEMENT_DIGEST_TEXT() gives for the same texts.
    #[test]
    fn same_as_mysql() {
        for (statement, want) in [
            (
                "select a.b, `c` from t as x where d in (1,2,3) and e='x' and f=-1 and g = null and \
              h in (1) or i in (null, null) limit 5, 6",
                "SELECT `a` . `b` , `c` FROM `t` AS `x` WHERE `d` IN (...) AND `e` = ? AND `f` = ? \
              AND `g` = ? AND `h` IN (...) OR `i` IN (...) LIMIT ?, ...",
            ),
            (
                "insert into t (a,b) values (1,2),(3,4),(5,6)",
                "INSERT INTO `t` ( `a` , `b` ) VALUES (...) /* , ... */",
            ),
            (
                "insert into t values (1),(2)",
                "INSERT INTO `t` VALUES (?) /* , ... */",
            ),
            ("insert into t values (1)", "INSERT INTO `t` VALUES (?)"),
            (
                "insert into t values (1, null, 2, now())",
                "INSERT INTO `t` VALUES ( ?, ... , NOW ( ) )",
            ),
            (
                "select count(*), now(), f(1), a->'$.b', a->>'$.x' from t where a <=> 1 and b != 2",
                "SELECT COUNT ( * ) , NOW ( ) , `f` (?) , `a` -> ? , `a` ->> ? FROM `t` WHERE `a` \
              <=> ? AND `b` != ?",
            ),
            (
                "select _utf8'a', N'x', x'41', 0x41, b'1', 1.5, 1e5, .5",
                "SELECT (_charset) ?, ...",
            ),
            (
                "set names utf8mb4, @a := 1",
                "SET NAMES `utf8mb4` , @? := ?",
            ),
            ("select /* c */ 1 -- x", "SELECT ?"),
            (
                "select a -1, (-1), +1, a in (-1,-2)",
                "SELECT `a` - ? , (?) , ? , `a` IN (...)",
            ),
            ("call p(1, 2, @a)", "CALL `p` ( ?, ... , @? )"),
        ] {
            assert_eq!(text(statement), want);
        }
    }

    #[test]
    fn the_hash_is_stable() {
        let mode = LexMode::new(Family::MySql, 90704);
        let mut out = Vec::new();
        let one = digest(b"SELECT  a FROM t WHERE id = 1 -- x", &mode, &mut out);
        let two = digest(b"select a from t where id=2", &mode, &mut out);
        assert_eq!(one, two);
        assert_eq!(digest(b"", &mode, &mut out), 0xcbf2_9ce4_8422_2325);
        assert_eq!(digest(b"SELECT 1", &mode, &mut out), fnv1a(b"SELECT ?"));
    }
}
