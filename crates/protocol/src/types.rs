//! Column types and the lengths of binary values. Interprets no value.

use crate::packet::{Malformed, Reader};

/// Column and parameter types (MySQL manual, "field_types.h"; the same in MariaDB).
pub mod column_type {
    pub const DECIMAL: u8 = 0;
    pub const TINY: u8 = 1;
    pub const SHORT: u8 = 2;
    pub const LONG: u8 = 3;
    pub const FLOAT: u8 = 4;
    pub const DOUBLE: u8 = 5;
    pub const NULL: u8 = 6;
    pub const TIMESTAMP: u8 = 7;
    pub const LONGLONG: u8 = 8;
    pub const INT24: u8 = 9;
    pub const DATE: u8 = 10;
    pub const TIME: u8 = 11;
    pub const DATETIME: u8 = 12;
    pub const YEAR: u8 = 13;
    pub const VARCHAR: u8 = 15;
    pub const BIT: u8 = 16;
    pub const VECTOR: u8 = 242;
    pub const BOOL: u8 = 244;
    pub const JSON: u8 = 245;
    pub const NEWDECIMAL: u8 = 246;
    pub const ENUM: u8 = 247;
    pub const SET: u8 = 248;
    pub const TINY_BLOB: u8 = 249;
    pub const MEDIUM_BLOB: u8 = 250;
    pub const LONG_BLOB: u8 = 251;
    pub const BLOB: u8 = 252;
    pub const VAR_STRING: u8 = 253;
    pub const STRING: u8 = 254;
    pub const GEOMETRY: u8 = 255;
}

/// Takes one value of `kind` from `reader` and returns its bytes as they are on the
/// wire, length prefix included (MySQL manual, "Binary Protocol Value").
pub fn binary_value<'a>(reader: &mut Reader<'a>, kind: u8) -> Result<&'a [u8], Malformed> {
    use column_type as t;
    let start = reader.peek();
    match kind {
        t::NULL => {}
        t::TINY | t::BOOL => {
            reader.bytes(1)?;
        }
        t::SHORT | t::YEAR => {
            reader.bytes(2)?;
        }
        t::LONG | t::INT24 | t::FLOAT => {
            reader.bytes(4)?;
        }
        t::LONGLONG | t::DOUBLE => {
            reader.bytes(8)?;
        }
        t::DATE | t::DATETIME | t::TIMESTAMP | t::TIME => {
            let len = reader.u8()?;
            reader.bytes(usize::from(len))?;
        }
        _ => {
            reader.lenenc_bytes()?;
        }
    }
    Ok(&start[..start.len() - reader.remaining()])
}
