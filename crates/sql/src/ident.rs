//! Names and literals as they are written: comparing them and taking their quotes off. Knows no
//! statement.

use std::borrow::Cow;

/// Whether `written`, quotes included, is the name `name`; ASCII letters in any case.
pub fn ident_eq(written: &[u8], name: &str) -> bool {
    match quote_of(written) {
        None => written.eq_ignore_ascii_case(name.as_bytes()),
        Some(_) => unquote_ident(written).eq_ignore_ascii_case(name.as_bytes()),
    }
}

/// Whether two written names are the same; ASCII letters in any case.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    match (quote_of(a), quote_of(b)) {
        (None, None) => a.eq_ignore_ascii_case(b),
        _ => unquote_ident(a).eq_ignore_ascii_case(&unquote_ident(b)),
    }
}

fn quote_of(written: &[u8]) -> Option<u8> {
    match written {
        [first @ (b'`' | b'"' | b'\''), .., last] if first == last => Some(*first),
        [b'[', .., last @ b']'] => Some(*last),
        _ => None,
    }
}

/// The name without its quotes (backquotes, or double quotes under ANSI_QUOTES), doubled quotes
/// made single. What has no quotes comes back as it is.
pub fn unquote_ident(written: &[u8]) -> Cow<'_, [u8]> {
    let Some(quote) = quote_of(written) else {
        return Cow::Borrowed(written);
    };
    let inner = &written[1..written.len() - 1];
    if !inner.contains(&quote) {
        return Cow::Borrowed(inner);
    }
    let mut name = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        name.push(*byte);
        if *byte == quote {
            bytes.next();
        }
    }
    Cow::Owned(name)
}

/// The key by which a user variable is known: its name without quotes, ASCII letters lowered.
/// `written` is a span of [`Statement::user_vars_read`](crate::Statement::user_vars_read) or its
/// kin. (Beyond ASCII the servers compare with a collation that has more equal letters; treating
/// those as different names is safe where each is replayed as it was written.)
pub fn user_var_key(written: &[u8]) -> Vec<u8> {
    let mut key = match quote_of(written) {
        Some(b'\'' | b'"') => unquote_string(written, true).into_owned(),
        _ => unquote_ident(written).into_owned(),
    };
    key.make_ascii_lowercase();
    key
}

/// The value of a string literal: quotes off, doubled quotes single, backslash escapes resolved
/// where `backslash` says that they are ones. A prefix `N` is left out. What is no string comes
/// back as it is. Multi-byte characters that end in a backslash byte (gbk, sjis, big5) are not
/// known here: ask [`LexMode::charset`](crate::LexMode) first.
pub fn unquote_string(written: &[u8], backslash: bool) -> Cow<'_, [u8]> {
    let text = match written {
        [b'n' | b'N', rest @ ..] if quote_of(rest).is_some() => rest,
        _ => written,
    };
    let Some(quote) = quote_of(text) else {
        return Cow::Borrowed(written);
    };
    let inner = &text[1..text.len() - 1];
    if !inner
        .iter()
        .any(|b| *b == quote || (*b == b'\\' && backslash))
    {
        return Cow::Borrowed(inner);
    }
    let mut value = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if backslash => match bytes.next() {
                Some(escaped) => push_escaped(&mut value, escaped),
                None => value.push(b'\\'),
            },
            _ => {
                value.push(byte);
                if byte == quote {
                    bytes.next();
                }
            }
        }
    }
    Cow::Owned(value)
}

/// The escapes of both servers; `\%` and `\_` keep their backslash.
fn push_escaped(value: &mut Vec<u8>, escaped: u8) {
    let byte = match escaped {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 8,
        b'0' => 0,
        b'Z' => 26,
        b'%' | b'_' => {
            value.push(b'\\');
            escaped
        }
        other => other,
    };
    value.push(byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_quotes() {
        assert_eq!(unquote_ident(b"`a``b`").as_ref(), b"a`b");
        assert_eq!(unquote_ident(b"\"a\"").as_ref(), b"a");
        assert_eq!(unquote_ident(b"ab").as_ref(), b"ab");
        assert!(ident_eq(b"`Sys`", "sys"));
        assert!(!ident_eq(b"`Sys", "sys"));
        assert_eq!(user_var_key(b"'A b'"), b"a b");
        assert_eq!(user_var_key(b"`X`"), b"x");
    }

    #[test]
    fn strings_lose_quotes_and_escapes() {
        assert_eq!(unquote_string(b"'it''s\\n'", true).as_ref(), b"it's\n");
        assert_eq!(unquote_string(b"'a\\n'", false).as_ref(), b"a\\n");
        assert_eq!(unquote_string(b"N'x'", true).as_ref(), b"x");
        assert_eq!(unquote_string(b"'\\%\\''", true).as_ref(), b"\\%'");
    }
}
