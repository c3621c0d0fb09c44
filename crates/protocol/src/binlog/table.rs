//! TABLE_MAP: which columns a table has at that point of the log. [`Layout`] is what of them rows are read with;
//! it is filled again for each TABLE_MAP, without allocating.

use super::Unreadable;
use crate::packet::{Malformed, Reader};
use crate::types::column_type as t;

/// Most columns of a table (MySQL manual, "Limits on Table Column Count and Row Size").
pub const COLUMNS_MAX: usize = 4096;

/// Types that exist in the log only (MySQL, field_types.h; MariaDB, mysql_com.h).
mod log_type {
    pub(super) const NEWDATE: u8 = 14;
    pub(super) const TIMESTAMP2: u8 = 17;
    pub(super) const DATETIME2: u8 = 18;
    pub(super) const TIME2: u8 = 19;
    pub(super) const BLOB_COMPRESSED: u8 = 140;
    pub(super) const VARCHAR_COMPRESSED: u8 = 141;
}

/// What TABLE_MAP has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableMap<'a> {
    /// What rows name the table with, up to the statement's end.
    pub id: u64,
    pub flags: u16,
    pub database: &'a [u8],
    pub table: &'a [u8],
    /// A type for each column, of `column_type` or of those that exist in the log only.
    pub kinds: &'a [u8],
    metadata: &'a [u8],
    nullable: &'a [u8],
    optional: &'a [u8],
}

impl<'a> TableMap<'a> {
    /// MySQL, rows_event.cpp, `Table_map_event`; MariaDB, log_event.cc, `Table_map_log_event`: the same.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let id = table_id(&mut reader)?;
        let flags = reader.u16()?;
        let database = name(&mut reader)?;
        let table = name(&mut reader)?;
        let kinds = reader.lenenc_bytes()?;
        if kinds.len() > COLUMNS_MAX {
            return Err(Malformed);
        }
        let metadata = reader.lenenc_bytes()?;
        Ok(Self {
            id,
            flags,
            database,
            table,
            kinds,
            metadata,
            nullable: reader.bytes(kinds.len().div_ceil(8))?,
            optional: reader.rest(),
        })
    }

    /// Whether a column may be NULL.
    pub fn is_nullable(&self, column: usize) -> bool {
        is_set(self.nullable, column)
    }
}

/// Six bytes.
pub(super) fn table_id(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    Ok(u64::from(reader.u32()?) | u64::from(reader.u16()?) << 32)
}

/// A name, its length ahead and a zero after it.
fn name<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let name = reader.lenenc_bytes()?;
    if reader.u8()? != 0 {
        return Err(Malformed);
    }
    Ok(name)
}

/// Bit `at`, counted from the lowest of the first byte. False beyond the end.
#[inline]
pub(super) fn is_set(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8)
        .is_some_and(|byte| byte & (1 << (at % 8)) != 0)
}

/// How a column's value is kept in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// An integer of so many bytes.
    Int(u8),
    /// So many bytes of something else.
    Fixed(u16),
    /// Bytes after their length, which has so many bytes.
    Prefixed(u8),
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its type, as in [`TableMap::kinds`]; ENUM and SET are told from the STRING that the log has.
    pub kind: u8,
    /// Of a number: whether it is unsigned, where the log says so (MySQL with any
    /// binlog_row_metadata; MariaDB with MINIMAL or FULL).
    pub is_unsigned: Option<bool>,
    pub(super) shape: Shape,
}

/// A table's columns, as rows are read with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    columns: Vec<Column>,
    /// How many columns of type JSON there are.
    pub(super) jsons: usize,
    primary_key: Vec<u16>,
}

impl Layout {
    /// Fills it with what `map` says.
    ///
    /// [`Unreadable::NotUnderstood`] where it has a type whose length in rows is unknown: rows of the table then
    /// cannot be taken apart.
    pub fn read(&mut self, map: &TableMap<'_>) -> Result<(), Unreadable> {
        self.columns.clear();
        self.primary_key.clear();
        let mut metadata = Reader::new(map.metadata);
        for &kind in map.kinds {
            self.columns.push(column(kind, &mut metadata)?);
        }
        if !metadata.is_empty() {
            return Err(Unreadable::Malformed);
        }
        let jsons = map.kinds.iter().filter(|&&kind| kind == t::JSON);
        self.jsons = jsons.count();
        self.read_optional(map.optional)?;
        Ok(())
    }

    /// The columns, in the table's order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The columns of the primary key, in its order; empty where the log does not tell
    /// (binlog_row_metadata is not FULL), and where it holds the beginning of a column only.
    pub fn primary_key(&self) -> &[u16] {
        &self.primary_key
    }

    /// Fields of a byte that says which, a length and a value (MySQL, rows_event.h and .cpp,
    /// `Optional_metadata_fields`; MariaDB, log_event.h, the same numbers).
    fn read_optional(&mut self, optional: &[u8]) -> Result<(), Malformed> {
        const SIGNEDNESS: u8 = 1;
        const SIMPLE_PRIMARY_KEY: u8 = 8;
        const PRIMARY_KEY_WITH_PREFIX: u8 = 9;
        let mut reader = Reader::new(optional);
        while !reader.is_empty() {
            let field = reader.u8()?;
            let value = reader.lenenc_bytes()?;
            match field {
                SIGNEDNESS => self.read_signedness(value),
                SIMPLE_PRIMARY_KEY => self.read_primary_key(value, false)?,
                PRIMARY_KEY_WITH_PREFIX => self.read_primary_key(value, true)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A bit for each column of a numeric type, from the highest of each byte on, set where it is unsigned
    /// (MySQL, rows_event.cpp, `parse_signedness`; which types, observed).
    fn read_signedness(&mut self, bits: &[u8]) {
        let numbers = self.columns.iter_mut().filter(|c| is_number(c.kind));
        for (at, column) in numbers.enumerate() {
            let byte = bits.get(at / 8);
            column.is_unsigned = byte.map(|byte| byte & (0x80 >> (at % 8)) != 0);
        }
    }

    fn read_primary_key(&mut self, value: &[u8], with_prefix: bool) -> Result<(), Malformed> {
        let mut reader = Reader::new(value);
        let mut whole = true;
        while !reader.is_empty() {
            let column = u16::try_from(reader.lenenc_int()?).map_err(|_| Malformed)?;
            if with_prefix {
                whole &= reader.lenenc_int()? == 0;
            }
            self.primary_key.push(column);
        }
        if !whole {
            self.primary_key.clear();
        }
        Ok(())
    }
}

fn is_number(kind: u8) -> bool {
    matches!(
        kind,
        t::TINY
            | t::SHORT
            | t::INT24
            | t::LONG
            | t::LONGLONG
            | t::NEWDECIMAL
            | t::FLOAT
            | t::DOUBLE
            | t::YEAR
    )
}

/// A column of this type, and the bytes of metadata that it has (MySQL, rows_event.h, "Table_map_event: column types and metadata";
/// lengths in rows: binary_log_funcs.cpp, `calc_field_size`).
fn column(kind: u8, metadata: &mut Reader<'_>) -> Result<Column, Unreadable> {
    use log_type as l;
    let shape = match kind {
        t::TINY => Shape::Int(1),
        t::SHORT => Shape::Int(2),
        t::INT24 => Shape::Int(3),
        t::LONG => Shape::Int(4),
        t::LONGLONG => Shape::Int(8),
        t::YEAR => Shape::Fixed(1),
        t::NULL => Shape::Fixed(0),
        t::DATE | l::NEWDATE => Shape::Fixed(3),
        t::FLOAT | t::DOUBLE => Shape::Fixed(u16::from(metadata.u8()?)),
        l::TIMESTAMP2 => Shape::Fixed(4 + fraction(metadata)?),
        l::DATETIME2 => Shape::Fixed(5 + fraction(metadata)?),
        l::TIME2 => Shape::Fixed(3 + fraction(metadata)?),
        t::NEWDECIMAL => Shape::Fixed(decimal(metadata)?),
        t::BIT => {
            let bits = metadata.u8()?;
            Shape::Fixed(u16::from(metadata.u8()?) + u16::from(bits > 0))
        }
        t::VARCHAR | t::VAR_STRING | l::VARCHAR_COMPRESSED => {
            Shape::Prefixed(if metadata.u16()? > 255 { 2 } else { 1 })
        }
        t::TINY_BLOB
        | t::BLOB
        | t::MEDIUM_BLOB
        | t::LONG_BLOB
        | t::GEOMETRY
        | t::JSON
        | t::VECTOR
        | l::BLOB_COMPRESSED => match metadata.u8()? {
            len @ 1..=4 => Shape::Prefixed(len),
            _ => return Err(Unreadable::Malformed),
        },
        t::STRING | t::ENUM | t::SET => return string(metadata),
        // TIME, DATETIME and TIMESTAMP of old tables: MariaDB's with fractions have the same types
        // (mysql56_temporal_format=OFF), and their length is not in the log. And what is not known.
        _ => return Err(Unreadable::NotUnderstood),
    };
    Ok(Column {
        kind,
        is_unsigned: None,
        shape,
    })
}

/// Bytes of a time's fraction: two digits a byte.
fn fraction(metadata: &mut Reader<'_>) -> Result<u16, Malformed> {
    match metadata.u8()? {
        digits @ 0..=6 => Ok(u16::from(digits).div_ceil(2)),
        _ => Err(Malformed),
    }
}

/// Nine digits take four bytes, the rest of either side what it needs (MySQL, binary_log_funcs.cpp,
/// `decimal_binary_size`).
fn decimal(metadata: &mut Reader<'_>) -> Result<u16, Malformed> {
    const BYTES: [u16; 9] = [0, 1, 1, 2, 2, 3, 3, 4, 4];
    let (precision, scale) = (usize::from(metadata.u8()?), usize::from(metadata.u8()?));
    let whole = precision.checked_sub(scale).ok_or(Malformed)?;
    let side = |digits: usize| 4 * (digits / 9) as u16 + BYTES[digits % 9];
    Ok(side(whole) + side(scale))
}

/// Two bytes: the type that the column really has, and its length; the two highest bits of a length beyond
/// 255 are in the type's, inverted (MySQL, binary_log_funcs.cpp, `max_display_length_for_field`).
fn string(metadata: &mut Reader<'_>) -> Result<Column, Unreadable> {
    let (kind, len) = (metadata.u8()?, metadata.u8()?);
    let (kind, shape) = match kind {
        t::ENUM | t::SET => (kind, Shape::Fixed(u16::from(len))),
        _ => {
            let len = (((u16::from(kind) << 4) & 0x300) ^ 0x300) + u16::from(len);
            (t::STRING, Shape::Prefixed(if len > 255 { 2 } else { 1 }))
        }
    };
    Ok(Column {
        kind,
        is_unsigned: None,
        shape,
    })
}
