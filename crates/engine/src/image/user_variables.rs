//! A session's user variables and SQL-level prepared statements, and what it may still ask
//! about its last statement. Values only; what is sent is decided elsewhere.

use std::rc::Rc;

use millrace_protocol::resultset::ColumnDef;
use millrace_protocol::types::column_type;

use crate::state::{SessionState, write_hex};

/// Things that live on one connection under the session's own names and can be made again on
/// another.
#[derive(Debug, Default)]
pub struct Private {
    /// User variables: the name in lower case, the value as SQL text.
    pub(super) variables: Vec<Variable>,
    /// SQL-level prepared statements.
    pub statements: Vec<Named>,
    /// Changes with every change; what a connection holds is compared by it.
    pub version: u64,
}

/// A name and its value.
type Variable = (Box<[u8]>, Box<[u8]>);

/// A statement made by PREPARE.
#[derive(Debug)]
pub struct Named {
    /// As written.
    pub name: Box<[u8]>,
    /// The whole PREPARE statement.
    pub text: Box<[u8]>,
    /// What was set when it was prepared.
    pub context: Rc<SessionState>,
    /// The prepared statement's own text, unquoted: decides where EXECUTE may run.
    pub body: Box<[u8]>,
    /// A server has refused to prepare it again, or its database is gone: connections are without it until it is named.
    pub is_refused: bool,
}

impl Private {
    /// There is nothing to make again.
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.statements.is_empty()
    }

    /// Keeps a user variable's value. Servers take some names for one that are not the same bytes (`ä`, `Ä`
    /// and `a`): what was set last comes last.
    pub fn set(&mut self, name: &[u8], value: Box<[u8]>) {
        self.version += 1;
        let same = |(other, _): &Variable| **other == *name;
        match self.variables.iter().position(same) {
            Some(at) if self.only_ascii() => self.variables[at].1 = value,
            at => {
                let old = at.map(|at| self.variables.remove(at).0);
                let name = old.unwrap_or_else(|| name.into());
                self.variables.push((name, value));
            }
        }
    }

    /// A user variable's value, where it is a plain number.
    pub fn number(&self, name: &[u8]) -> Option<u64> {
        let (_, value) = self.variables.iter().find(|(other, _)| **other == *name)?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    /// Whether the names mean the same in every character set.
    pub fn only_ascii(&self) -> bool {
        self.variables.iter().all(|(name, _)| name.is_ascii())
    }

    /// The body of a SQL-level prepared statement.
    pub fn statement(&self, name: &[u8]) -> Option<&Named> {
        self.statements
            .iter()
            .find(|named| named.name.eq_ignore_ascii_case(name))
    }

    /// Notes whether a connection could prepare the statement again. True where that is new; connections that were
    /// left without it are not of this version any more.
    pub fn note_refused(&mut self, name: &[u8], is_refused: bool) -> bool {
        let mut statements = self.statements.iter_mut();
        let same = |named: &&mut Named| named.name.eq_ignore_ascii_case(name);
        let Some(named) = statements.find(same) else {
            return false;
        };
        let is_new = std::mem::replace(&mut named.is_refused, is_refused) != is_refused;
        if is_new && !is_refused {
            self.version += 1;
        }
        is_new
    }

    /// Whether connections are without this statement.
    pub fn lacks(&self, name: &[u8]) -> bool {
        self.statement(name).is_some_and(|named| named.is_refused)
    }

    /// Keeps a statement, in the place of one of the same name.
    pub fn prepare(&mut self, named: Named) {
        self.deallocate(&named.name.clone());
        self.statements.push(named);
        self.version += 1;
    }

    /// Forgets a statement.
    pub fn deallocate(&mut self, name: &[u8]) {
        let before = self.statements.len();
        self.statements
            .retain(|named| !named.name.eq_ignore_ascii_case(name));
        if self.statements.len() != before {
            self.version += 1;
        }
    }

    pub(super) fn clear(&mut self) {
        self.variables.clear();
        self.statements.clear();
        self.version += 1;
    }

    /// `SET @a=…, @b=…`, or nothing.
    pub fn assignment(&self) -> Option<Vec<u8>> {
        if self.variables.is_empty() {
            return None;
        }
        let mut text = b"SET ".to_vec();
        for (at, (name, value)) in self.variables.iter().enumerate() {
            if at > 0 {
                text.push(b',');
            }
            write_variable(&mut text, name);
            text.push(b'=');
            text.extend_from_slice(value);
        }
        Some(text)
    }
}

/// Appends `@name`, quoted.
pub fn write_variable(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(b"@`");
    for byte in name {
        if *byte == b'`' {
            out.push(b'`');
        }
        out.push(*byte);
    }
    out.push(b'`');
}

/// A variable's name as the server compares it: without quotes, in lower case.
pub fn variable_name(written: &[u8]) -> Box<[u8]> {
    let bare = match written {
        [quote @ (b'`' | b'\'' | b'"'), inner @ .., last] if quote == last => {
            let mut name = Vec::with_capacity(inner.len());
            let mut skip = false;
            for byte in inner {
                if skip {
                    skip = false;
                    continue;
                }
                skip = byte == quote;
                name.push(*byte);
            }
            name
        }
        _ => written.to_vec(),
    };
    bare.to_ascii_lowercase().into()
}

/// A value read back from the server as SQL text that gives the variable the same type again.
pub fn literal(column: &ColumnDef, value: Option<&[u8]>) -> Box<[u8]> {
    let Some(value) = value else {
        // A NULL has a type as well.
        let null: &[u8] = match column.kind {
            column_type::LONGLONG | column_type::LONG if is_unsigned(column) => {
                b"CAST(NULL AS UNSIGNED)"
            }
            column_type::LONGLONG | column_type::LONG => b"CAST(NULL AS SIGNED)",
            column_type::NEWDECIMAL => b"CAST(NULL AS DECIMAL(10,2))",
            column_type::DOUBLE | column_type::FLOAT => b"(NULL+0e0)",
            _ => b"NULL",
        };
        return null.into();
    };
    match column.kind {
        column_type::LONGLONG | column_type::LONG | column_type::NEWDECIMAL => {
            if column.kind != column_type::NEWDECIMAL && is_unsigned(column) {
                // Small numbers are signed when written bare.
                let text = [b"CAST(", value, b" AS UNSIGNED)"].concat();
                return text.into();
            }
            if column.kind == column_type::NEWDECIMAL && !value.contains(&b'.') {
                return [value, b"."].concat().into();
            }
            value.into()
        }
        column_type::DOUBLE | column_type::FLOAT => {
            if value.iter().any(|byte| matches!(byte, b'e' | b'E')) {
                value.into()
            } else {
                [value, b"e0"].concat().into()
            }
        }
        _ => value.into(),
    }
}

fn is_unsigned(column: &ColumnDef) -> bool {
    column.flags & millrace_protocol::resultset::flags::UNSIGNED != 0
}

/// NULL as a string has a character set, too.
pub fn null_string(charset: &str, collation: &str) -> Box<[u8]> {
    let text = format!("CAST(NULL AS CHAR CHARACTER SET {charset}) COLLATE {collation}");
    text.into_bytes().into()
}

/// A geometry of MariaDB's: its SRID, then WKB. Of which kind the variable was (a point, say) no value tells.
pub fn geometry(value: &[u8]) -> Option<Box<[u8]>> {
    let (srid, wkb) = value.split_first_chunk::<4>()?;
    let mut text = b"ST_GeomFromWKB(".to_vec();
    write_hex(&mut text, "_binary", wkb);
    text.extend_from_slice(format!(",{})", u32::from_le_bytes(*srid)).as_bytes());
    Some(text.into())
}

/// A string value read back as hexadecimal, with its character set and collation. None where servers would refuse it
/// (1300): a parameter of a prepared statement is not looked at, and may be no text of its character set.
pub fn string_literal(charset: &str, collation: &str, value: &[u8]) -> Option<Box<[u8]>> {
    if !may_be_written(charset, value) {
        return None;
    }
    let mut text = Vec::new();
    write_hex(&mut text, &format!("_{charset}"), value);
    if charset != "binary" {
        text.extend_from_slice(b" COLLATE ");
        text.extend_from_slice(collation.as_bytes());
    }
    Some(text.into())
}

/// Whether bytes are text of a character set for sure.
fn may_be_written(charset: &str, value: &[u8]) -> bool {
    let units = |value: &[u8]| -> Vec<u16> {
        let pairs = value.chunks_exact(2);
        pairs
            .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
            .collect()
    };
    let is_utf16 = |units: Vec<u16>| char::decode_utf16(units).all(|unit| unit.is_ok());
    match charset {
        "utf8mb4" => std::str::from_utf8(value).is_ok(),
        "utf8" | "utf8mb3" => {
            std::str::from_utf8(value).is_ok_and(|text| text.chars().all(|char| char <= '\u{ffff}'))
        }
        "ucs2" => value.len().is_multiple_of(2),
        "utf16" => value.len().is_multiple_of(2) && is_utf16(units(value)),
        "utf16le" => {
            let swapped = units(value).into_iter().map(u16::swap_bytes);
            value.len().is_multiple_of(2) && is_utf16(swapped.collect())
        }
        "utf32" => value.chunks(4).all(|four| {
            let four = <[u8; 4]>::try_from(four).map(u32::from_be_bytes);
            four.is_ok_and(|point| point <= 0x10_ffff)
        }),
        // Characters of several bytes, by rules of their own.
        "big5" | "cp932" | "eucjpms" | "euckr" | "gb18030" | "gb2312" | "gbk" | "sjis" | "ujis" => {
            value.is_ascii()
        }
        "ascii" => value.is_ascii(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_unquoted_in_lower_case() {
        assert_eq!(&*variable_name(b"Abc"), b"abc");
        assert_eq!(&*variable_name(b"`A``b`"), b"a`b");
    }

    #[test]
    fn values_keep_their_type() {
        let mut private = Private::default();
        private.set(b"a", b"1".as_slice().into());
        private.set(
            b"b",
            string_literal("utf8mb4", "utf8mb4_bin", b"x'").expect("text"),
        );
        assert_eq!(
            String::from_utf8_lossy(&private.assignment().expect("has variables")),
            "SET @`a`=1,@`b`=_utf8mb4 x'7827' COLLATE utf8mb4_bin"
        );
    }

    #[test]
    fn what_is_no_text_is_not_written() {
        for (charset, value) in [
            ("utf8mb4", &b"\x8f\0\xff"[..]),
            ("utf8mb4", b"\xed\xa0\x80"),
            ("utf8mb3", b"\xf0\x9f\x98\x80"),
            ("ucs2", b"\0"),
            ("utf16", b"\xd8\0\0a"),
            ("utf32", b"\0\x11\0\0"),
            ("gbk", b"\x81"),
            ("ascii", b"\x80"),
        ] {
            assert_eq!(string_literal(charset, "c", value), None, "{charset}");
        }
        for (charset, value) in [
            ("utf8mb4", &b"\xf0\x9f\x98\x80"[..]),
            ("utf8mb3", b"\xc3\xbc"),
            ("ucs2", b"\0a"),
            ("utf16", b"\xd8\x3d\xde\0"),
            ("utf16le", b"\x3d\xd8\0\xde"),
            ("utf32", b"\0\0\0a"),
            ("latin1", b"\x8f\0\xff"),
            ("binary", b"\x8f\0\xff"),
            ("gbk", b"text"),
        ] {
            assert!(string_literal(charset, "c", value).is_some(), "{charset}");
        }
    }
}
