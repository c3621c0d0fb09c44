//! Names of schema objects, as keys: without quotes, in lower case. Knows no object.
//!
//! Routine names are always compared without regard to case by the servers, table names depend on
//! a setting. Taking both as equal in any case can only find more unsafe views.

use std::collections::HashSet;

use smallvec::SmallVec;

/// `schema`, NUL, `name`: no identifier holds a NUL.
pub(crate) type Name = Box<[u8]>;

type Buffer = SmallVec<[u8; 128]>;

/// Looks names up as statements write them.
pub(crate) trait Names {
    /// Whether `schema.name` is in the set; `database` stands in for a missing schema.
    fn has(&self, schema: Option<&[u8]>, name: &[u8], database: &[u8]) -> bool;
}

impl Names for HashSet<Name> {
    fn has(&self, schema: Option<&[u8]>, name: &[u8], database: &[u8]) -> bool {
        let mut key = Buffer::new();
        match schema {
            Some(schema) => push(&mut key, schema),
            None => push_plain(&mut key, database),
        }
        key.push(0);
        push(&mut key, name);
        self.contains(&key[..])
    }
}

/// A key from names without quotes.
pub(crate) fn name(schema: &[u8], name: &[u8]) -> Name {
    let mut key = Buffer::new();
    push_plain(&mut key, schema);
    key.push(0);
    push_plain(&mut key, name);
    key.into_vec().into()
}

/// A key from names as a statement writes them.
pub(crate) fn written(schema: Option<&[u8]>, name: &[u8], database: &[u8]) -> Name {
    let mut key = Buffer::new();
    match schema {
        Some(schema) => push(&mut key, schema),
        None => push_plain(&mut key, database),
    }
    key.push(0);
    push(&mut key, name);
    key.into_vec().into()
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
    use super::*;

    #[test]
    fn finds_names_however_they_are_written() {
        let names: HashSet<Name> =
            [name(b"Shop", b"A`b"), name("caf\u{c9}".as_bytes(), b"x")].into();
        assert!(names.has(Some(b"shop"), b"`a``B`", b""));
        assert!(names.has(Some(b"`SHOP`"), b"\"a`b\"", b"other"));
        assert!(names.has(None, b"`A``b`", b"SHOP"));
        assert!(names.has(Some("caf\u{e9}".as_bytes()), b"X", b""));
        assert!(!names.has(None, b"x", b"shop"));
        assert!(!names.has(None, b"`", b"shop"));
    }
}
