//! Changed rows: walks their columns and gives those that are asked for. Interprets integers and bytes
//! only; copies nothing.

use super::payload::Packed;
use super::table::{COLUMNS_MAX, Column, Layout, Shape, is_set, table_id};
use super::{Unreadable, event_type as t};
use crate::packet::{Malformed, Reader};

/// What was done to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Write,
    Update,
    /// As `Update`; values of JSON columns may be differences.
    PartialUpdate,
    Delete,
}

/// An image of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

/// Flag of rows: they end the statement, and with it the numbers of tables (MySQL, rows_event.h, STMT_END_F).
pub const STATEMENT_END: u16 = 1;

/// What an event of rows has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<'a> {
    pub change: Change,
    /// The number that TABLE_MAP gave the table.
    pub table_id: u64,
    /// See [`STATEMENT_END`].
    pub flags: u16,
    /// Columns of the table.
    pub columns: usize,
    /// A bit for each column that the first image has: before an UPDATE or DELETE, after a WRITE.
    first: &'a [u8],
    /// And that the image after an UPDATE has.
    second: &'a [u8],
    /// The rows; give it, made plain, to [`Rows::images`].
    pub data: Packed<'a>,
}

impl<'a> Rows<'a> {
    /// Whether the event has the first version's fixed part, which lacks the length of what may be added to it.
    pub(super) fn is_v1(kind: u8) -> bool {
        matches!(
            kind,
            t::WRITE_ROWS_V1..=t::DELETE_ROWS_V1
                | t::WRITE_ROWS_COMPRESSED_V1..=t::DELETE_ROWS_COMPRESSED_V1
        )
    }

    /// MySQL, rows_event.cpp, `Rows_event`; MariaDB, log_event.cc, `Rows_log_event`: the same, with the rows packed in the
    /// events of 166 to 171.
    pub(super) fn parse(kind: u8, body: &'a [u8]) -> Result<Self, Unreadable> {
        let change = match kind {
            t::WRITE_ROWS_V1
            | t::WRITE_ROWS
            | t::WRITE_ROWS_COMPRESSED_V1
            | t::WRITE_ROWS_COMPRESSED => Change::Write,
            t::DELETE_ROWS_V1
            | t::DELETE_ROWS
            | t::DELETE_ROWS_COMPRESSED_V1
            | t::DELETE_ROWS_COMPRESSED => Change::Delete,
            t::PARTIAL_UPDATE_ROWS => Change::PartialUpdate,
            _ => Change::Update,
        };
        let mut reader = Reader::new(body);
        let table_id = table_id(&mut reader)?;
        let flags = reader.u16()?;
        if !Self::is_v1(kind) {
            let further = usize::from(reader.u16()?);
            reader.bytes(further.checked_sub(2).ok_or(Malformed)?)?;
        }
        let columns = reader.lenenc_int()?;
        if columns > COLUMNS_MAX as u64 {
            return Err(Unreadable::Malformed);
        }
        let columns = columns as usize;
        let bitmap = columns.div_ceil(8);
        let first = reader.bytes(bitmap)?;
        let second = match change {
            Change::Update | Change::PartialUpdate => reader.bytes(bitmap)?,
            Change::Write | Change::Delete => &[],
        };
        let rest = reader.rest();
        Ok(Self {
            change,
            table_id,
            flags,
            columns,
            first,
            second,
            data: if kind >= t::WRITE_ROWS_COMPRESSED_V1 {
                Packed::parse(rest)?
            } else {
                Packed::Plain(rest)
            },
        })
    }

    /// Whether the statement ends with these rows.
    pub fn ends_statement(&self) -> bool {
        self.flags & STATEMENT_END != 0
    }

    /// Whether every image of that side has the column. False for a side that there is none of.
    pub fn has(&self, side: Side, column: usize) -> bool {
        let bits = match (side, self.change) {
            (Side::Before, Change::Write) | (Side::After, Change::Delete) => return false,
            (Side::After, Change::Update | Change::PartialUpdate) => self.second,
            _ => self.first,
        };
        column < self.columns && is_set(bits, column)
    }

    /// The images of the rows in `data`, the plain form of [`Rows::data`]. `layout` must be that of the
    /// TABLE_MAP of this statement.
    pub fn images<'r, 'd>(
        &self,
        layout: &'r Layout,
        data: &'d [u8],
    ) -> Result<Images<'r, 'd>, Unreadable>
    where
        'a: 'r,
    {
        if layout.columns().len() != self.columns {
            return Err(Unreadable::Malformed);
        }
        Ok(Images {
            layout,
            change: self.change,
            first: self.first,
            second: self.second,
            reader: Reader::new(data),
            row: data.len(),
            side: self.first_side(),
            begun: false,
        })
    }

    fn first_side(&self) -> Side {
        match self.change {
            Change::Write => Side::After,
            _ => Side::Before,
        }
    }
}

/// A column's value in one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The image does not have the column (binlog_row_image=MINIMAL, NOBLOB).
    Absent,
    Null,
    Int(Int),
    /// Of CHAR, VARCHAR, BINARY, VARBINARY, BLOB and what is kept like them, JSON in its binary form. Of CHAR and BINARY without the
    /// spaces and zero bytes that they are filled up with (MySQL, field.cc, `Field_string::pack`).
    Bytes(&'a [u8]),
    /// As the log has it.
    Other(&'a [u8]),
}

/// An integer. Only its table knows whether it has a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int {
    /// Of its bytes, the others zero.
    bits: u64,
    /// Its bytes: 1, 2, 3, 4 or 8.
    width: u8,
}

impl Int {
    /// Of a column without a sign.
    pub fn unsigned(self) -> u64 {
        self.bits
    }

    /// Of a column with a sign.
    pub fn signed(self) -> i64 {
        let unused = 64 - 8 * u32::from(self.width);
        ((self.bits << unused) as i64) >> unused
    }

    /// Its bytes in the log.
    pub fn width(self) -> u8 {
        self.width
    }
}

/// Walks the images of rows. Each row of an UPDATE has two, the one before first.
#[derive(Clone, Debug)]
pub struct Images<'r, 'd> {
    layout: &'r Layout,
    change: Change,
    first: &'r [u8],
    second: &'r [u8],
    reader: Reader<'d>,
    /// Bytes that were left where the row begins.
    row: usize,
    /// Of the next image.
    side: Side,
    begun: bool,
}

impl<'d> Images<'_, 'd> {
    /// The next image: which side it is, and into `values` those of the columns `wanted`, which must be in
    /// ascending order and as many. None after the last.
    pub fn next(
        &mut self,
        wanted: &[u16],
        values: &mut [Value<'d>],
    ) -> Result<Option<Side>, Unreadable> {
        let side = self.side;
        let is_second = side == Side::After && self.change != Change::Write;
        if !is_second && !self.begin_row()? {
            return Ok(None);
        }
        if is_second && self.change == Change::PartialUpdate {
            skip_partial_bits(&mut self.reader, self.layout.jsons)?;
        }
        let present = if is_second { self.second } else { self.first };
        read_image(
            &mut self.reader,
            self.layout.columns(),
            present,
            wanted,
            values,
        )?;
        if matches!(self.change, Change::Update | Change::PartialUpdate) {
            self.side = match side {
                Side::Before => Side::After,
                Side::After => Side::Before,
            };
        }
        Ok(Some(side))
    }

    /// False at the end. A row has no bytes at all where the image has none of its columns
    /// (MINIMAL, and every column has its default): there is one in the event then.
    fn begin_row(&mut self) -> Result<bool, Malformed> {
        let left = self.reader.remaining();
        if !self.begun {
            self.begun = true;
            return Ok(true);
        }
        if left > 0 && left == self.row {
            return Err(Malformed);
        }
        self.row = left;
        Ok(left > 0)
    }
}

/// Options of the values, and with the first a bit for each JSON column of the table (MySQL, log_event.cc,
/// `Rows_log_event::unpack_current_row`, as it writes in `pack_row`).
fn skip_partial_bits(reader: &mut Reader<'_>, jsons: usize) -> Result<(), Unreadable> {
    const PARTIAL_JSON: u64 = 1;
    match reader.lenenc_int()? {
        0 => Ok(()),
        PARTIAL_JSON => {
            reader.bytes(jsons.div_ceil(8))?;
            Ok(())
        }
        _ => Err(Unreadable::NotUnderstood),
    }
}

/// A bit for each column that the image has, set where it is NULL; then the values of the others (MySQL,
/// rows_event.h, `Rows_event`, "row").
fn read_image<'d>(
    reader: &mut Reader<'d>,
    columns: &[Column],
    present: &[u8],
    wanted: &[u16],
    values: &mut [Value<'d>],
) -> Result<(), Malformed> {
    let nulls = reader.bytes(count(present, columns.len()).div_ceil(8))?;
    let mut wanted = wanted.iter().zip(values).peekable();
    let mut in_image = 0;
    for (at, column) in columns.iter().enumerate() {
        let value = if !is_set(present, at) {
            Value::Absent
        } else {
            in_image += 1;
            match is_set(nulls, in_image - 1) {
                true => Value::Null,
                false => read_value(reader, column.shape)?,
            }
        };
        if let Some((_, slot)) = wanted.next_if(|(column, _)| usize::from(**column) == at) {
            *slot = value;
        }
    }
    match wanted.next() {
        None => Ok(()),
        Some(_) => Err(Malformed),
    }
}

/// How many of the first `len` bits are set.
fn count(bits: &[u8], len: usize) -> usize {
    let (whole, part) = bits.split_at((len / 8).min(bits.len()));
    let mask = (1u8 << (len % 8)) - 1;
    let part = part.first().map_or(0, |byte| byte & mask);
    whole.iter().map(|byte| byte.count_ones()).sum::<u32>() as usize + part.count_ones() as usize
}

#[inline]
fn read_value<'d>(reader: &mut Reader<'d>, shape: Shape) -> Result<Value<'d>, Malformed> {
    Ok(match shape {
        Shape::Int(width) => {
            let mut bits = [0; 8];
            let bytes = reader.bytes(usize::from(width))?;
            bits[..bytes.len()].copy_from_slice(bytes);
            Value::Int(Int {
                bits: u64::from_le_bytes(bits),
                width,
            })
        }
        Shape::Fixed(len) => Value::Other(reader.bytes(usize::from(len))?),
        Shape::Prefixed(width) => {
            let len = match width {
                1 => u32::from(reader.u8()?),
                2 => u32::from(reader.u16()?),
                3 => reader.u24()?,
                _ => reader.u32()?,
            };
            Value::Bytes(reader.bytes(len as usize)?)
        }
    })
}
