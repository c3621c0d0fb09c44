//! Names of schema objects, as keys: without quotes, in lower case. Knows no object.
//!
//! Routine names are always compared without regard to case by the servers, table names depend on
//! a setting. Taking both as equal in any case can only find more unsafe views.

use smallvec::SmallVec;

/// `schema`, NUL, `name`: no identifier holds a NUL.
pub(crate) type Name = Box<[u8]>;

/// A key on the stack, for as long as names usually are.
pub(crate) type Buffer = SmallVec<[u8; 128]>;

/// A key from names without quotes.
pub(crate) fn name(schema: &[u8], name: &[u8]) -> Name {
    let mut key = Buffer::new();
    push_plain(&mut key, schema);
    key.push(0);
    push_plain(&mut key, name);
    key.into_vec().into()
}

/// A key from names as a statement writes them; `database` stands in for a missing schema.
pub(crate) fn written(schema: Option<&[u8]>, name: &[u8], database: &[u8]) -> Name {
    key(schema, name, database).into_vec().into()
}

/// The same for a look-up, without an allocation.
pub(crate) fn key(schema: Option<&[u8]>, name: &[u8], database: &[u8]) -> Buffer {
    let mut key = Buffer::new();
    match schema {
        Some(schema) => push(&mut key, schema),
        None => push_plain(&mut key, database),
    }
    key.push(0);
    push(&mut key, name);
    key
}

/// A name as a body writes it, without quotes, in lower case.
pub(crate) fn plain(written: &[u8]) -> Box<[u8]> {
    let mut name = Buffer::new();
    push(&mut name, written);
    name.into_vec().into()
}

/// Takes quotes off: of a doubled one inside, one is left.
fn push(key: &mut Buffer, written: &[u8]) {
    match written {
        [quote @ (b'`' | b'"'), inner @ .., end] if quote == end => {
            let mut plain = Buffer::new();
            let mut bytes = inner.iter();
            while let Some(byte) = bytes.next() {
                if byte == quote {
                    bytes.next();
                }
                plain.push(*byte);
            }
            push_plain(key, &plain);
        }
        _ => push_plain(key, written),
    }
}

fn push_plain(key: &mut Buffer, plain: &[u8]) {
    if plain.is_ascii() {
        key.extend(plain.iter().map(u8::to_ascii_lowercase));
        return;
    }
    match std::str::from_utf8(plain) {
        Ok(text) => key.extend_from_slice(text.to_lowercase().as_bytes()),
        Err(_) => key.extend_from_slice(plain),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn has(names: &HashSet<Name>, schema: Option<&[u8]>, name: &[u8], database: &[u8]) -> bool {
        names.contains(&key(schema, name, database)[..])
    }

    #[test]
    fn finds_names_however_they_are_written() {
        let names: HashSet<Name> =
            [name(b"Shop", b"A`b"), name("caf\u{c9}".as_bytes(), b"x")].into();
        assert!(has(&names, Some(b"shop"), b"`a``B`", b""));
        assert!(has(&names, Some(b"`SHOP`"), b"\"a`b\"", b"other"));
        assert!(has(&names, None, b"`A``b`", b"SHOP"));
        assert!(has(&names, Some("caf\u{e9}".as_bytes()), b"X", b""));
        assert!(!has(&names, None, b"x", b"shop"));
        assert!(!has(&names, None, b"`", b"shop"));
    }
}
