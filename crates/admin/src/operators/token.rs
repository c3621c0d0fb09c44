//! Splits an operator's statement into words, numbers, texts and symbols. Knows no statement.

/// One piece of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// A bare word: letters, digits, `_`, `$`, `.` between them, and whatever is not ASCII.
    Word(String),
    /// A name in backticks.
    Name(String),
    /// A text in single or double quotes.
    Text(String),
    /// A whole number without a sign, as it was written.
    Number(String),
    /// `@@`, `<=`, `>=`, `<>`, `!=`, or one other character.
    Symbol(&'static str),
    /// A character that no statement has.
    Other(char),
}

impl Token {
    /// Whether it is this bare word, in whatever case.
    pub(crate) fn is(&self, word: &str) -> bool {
        matches!(self, Token::Word(own) if own.eq_ignore_ascii_case(word))
    }
}

/// The symbols, the longer first.
const SYMBOLS: [&str; 21] = [
    "@@", "<=", ">=", "<>", "!=", "=", "<", ">", "(", ")", ",", ";", "*", "?", "-", "+", "/", "@",
    ":", "%", ".",
];

/// Why a statement cannot be split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unclosed(pub(crate) &'static str);

/// The pieces, comments left out.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, Unclosed> {
    let mut rest = text;
    let mut tokens = Vec::new();
    loop {
        rest = rest.trim_start();
        rest = match skip_comment(rest)? {
            Some(behind) => behind,
            None => match next(rest)? {
                Some((token, behind)) => {
                    tokens.push(token);
                    behind
                }
                None => return Ok(tokens),
            },
        };
    }
}

/// What stands behind a comment; none where there is no comment.
fn skip_comment(rest: &str) -> Result<Option<&str>, Unclosed> {
    if let Some(inside) = rest.strip_prefix("/*") {
        let end = inside.find("*/").ok_or(Unclosed("comment"))?;
        return Ok(Some(&inside[end + 2..]));
    }
    // As the servers want it, `--` needs a blank behind it.
    let dashes = rest
        .strip_prefix("--")
        .filter(|behind| behind.is_empty() || behind.starts_with(char::is_whitespace));
    if dashes.is_some() || rest.starts_with('#') {
        let end = rest.find('\n').unwrap_or(rest.len());
        return Ok(Some(&rest[end..]));
    }
    Ok(None)
}

fn next(rest: &str) -> Result<Option<(Token, &str)>, Unclosed> {
    let Some(first) = rest.chars().next() else {
        return Ok(None);
    };
    let behind = &rest[first.len_utf8()..];
    Ok(Some(match first {
        '\'' | '"' => {
            let (text, behind) = quoted(behind, first, true).ok_or(Unclosed("text"))?;
            (Token::Text(text), behind)
        }
        '`' => {
            let (name, behind) = quoted(behind, first, false).ok_or(Unclosed("name"))?;
            (Token::Name(name), behind)
        }
        _ if is_word(first) => word(rest),
        _ => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            Some(symbol) => (Token::Symbol(symbol), &rest[symbol.len()..]),
            None => (Token::Other(first), behind),
        },
    }))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$') || (!c.is_ascii() && !c.is_whitespace())
}

fn word(rest: &str) -> (Token, &str) {
    let mut end = 0;
    let mut chars = rest.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let joins = c == '.' && end > 0 && chars.peek().is_some_and(|(_, next)| is_word(*next));
        if !is_word(c) && !joins {
            break;
        }
        end = at + c.len_utf8();
    }
    let (word, behind) = rest.split_at(end);
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        (Token::Number(word.to_owned()), behind)
    } else {
        (Token::Word(word.to_owned()), behind)
    }
}

/// A text up to its closing quote, which stands for itself when doubled.
fn quoted(rest: &str, quote: char, escapes: bool) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == quote {
            let behind = &rest[at + c.len_utf8()..];
            if !behind.starts_with(quote) {
                return Some((text, behind));
            }
            chars.next();
            text.push(quote);
        } else if c == '\\' && escapes {
            let (_, escaped) = chars.next()?;
            match escaped {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                '0' => text.push('\0'),
                // For LIKE, these keep their backslash (MySQL manual, "String Literals").
                '%' | '_' => text.extend(['\\', escaped]),
                other => text.push(other),
            }
        } else {
            text.push(c);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn word(text: &str) -> Token {
        Token::Word(text.to_owned())
    }

    #[test]
    fn splits() {
        let text =
            "/* c */ Drain SERVER 'db1:3306' wait 30; -- end\n# and\n@@a.b<=`x``y` \"q\"\"\\n\"";
        let expected = [
            word("Drain"),
            word("SERVER"),
            Token::Text("db1:3306".into()),
            word("wait"),
            Token::Number("30".into()),
            Token::Symbol(";"),
            Token::Symbol("@@"),
            word("a.b"),
            Token::Symbol("<="),
            Token::Name("x`y".into()),
            Token::Text("q\"\n".into()),
        ];
        assert_eq!(tokens(text).unwrap(), expected);
        assert_eq!(tokens("'a").unwrap_err(), Unclosed("text"));
        assert_eq!(tokens("'a\\").unwrap_err(), Unclosed("text"));
        assert_eq!(tokens("/*").unwrap_err(), Unclosed("comment"));
        assert_eq!(tokens("a--b").unwrap().len(), 4);
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = tokens(&text);
        }

        #[test]
        fn never_panics_on_what_looks_like_statements(text in "[a-z0-9'\"`\\\\/*#@.<>=%_ é\n-]{0,60}") {
            let _ = tokens(&text);
        }
    }
}
