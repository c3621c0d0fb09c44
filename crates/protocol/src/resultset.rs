//! Small result sets: made for statements that Millrace answers itself, and read from
//! its own control queries. Never used for clients' rows in flight.

use crate::ok::OkFields;
use crate::packet::Malformed;
use crate::types::column_type;
use crate::{Capabilities, Status};

/// A column definition (MySQL manual, "Protocol::ColumnDefinition41").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnDef {
    pub schema: Vec<u8>,
    pub table: Vec<u8>,
    pub org_table: Vec<u8>,
    pub name: Vec<u8>,
    pub org_name: Vec<u8>,
    /// MariaDB's extended metadata, as it is on the wire.
    pub extended: Vec<u8>,
    pub collation: u16,
    pub length: u32,
    pub kind: u8,
    pub flags: u16,
    pub decimals: u8,
}

impl ColumnDef {
    /// A string column in `collation`, as an expression without a table has it.
    pub fn text(name: &str, collation: u16) -> Self {
        Self::expression(name, column_type::VAR_STRING, collation, 1024)
    }

    /// A signed 64-bit column; set [`flags::UNSIGNED`] for the other kind.
    pub fn integer(name: &str) -> Self {
        Self::expression(name, column_type::LONGLONG, 63, 21)
    }

    fn expression(name: &str, kind: u8, collation: u16, length: u32) -> Self {
        Self {
            schema: Vec::new(),
            table: Vec::new(),
            org_table: Vec::new(),
            name: name.as_bytes().to_vec(),
            org_name: Vec::new(),
            extended: Vec::new(),
            collation,
            length,
            kind,
            flags: 0,
            decimals: 0,
        }
    }

    /// Reads a definition's payload.
    pub fn parse(_payload: &[u8], _caps: Capabilities) -> Result<Self, Malformed> {
        Err(Malformed)
    }

    /// Appends the definition as a packet; returns the next sequence number.
    pub fn encode(&self, _out: &mut Vec<u8>, seq: u8, _caps: Capabilities) -> u8 {
        seq
    }
}

/// Column flags.
pub mod flags {
    pub const NOT_NULL: u16 = 1;
    pub const UNSIGNED: u16 = 32;
    pub const BINARY: u16 = 128;
}

/// A value to put into a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    Null,
    Bytes(&'a [u8]),
    Int(i64),
    UInt(u64),
    Double(f64),
}

/// A small result set under construction.
#[derive(Clone, Debug)]
pub struct TextResult {
    columns: Vec<ColumnDef>,
}

impl TextResult {
    pub fn new(columns: Vec<ColumnDef>) -> Self {
        Self { columns }
    }

    /// Adds a row; cells beyond the columns are ignored, missing ones are NULL.
    pub fn row(&mut self, _cells: &[Cell<'_>]) -> &mut Self {
        self
    }

    /// Appends the whole response in the text protocol for a client with `caps`, the
    /// first packet numbered `seq`; returns the next number. Status and warnings of
    /// `end` go into what ends the rows.
    pub fn encode(
        &self,
        _out: &mut Vec<u8>,
        seq: u8,
        _caps: Capabilities,
        _end: &OkFields<'_>,
    ) -> u8 {
        let _ = &self.columns;
        seq
    }

    /// As [`encode`](Self::encode), with binary rows, for a prepared statement.
    pub fn encode_binary(
        &self,
        _out: &mut Vec<u8>,
        seq: u8,
        _caps: Capabilities,
        _end: &OkFields<'_>,
    ) -> u8 {
        seq
    }

    /// Appends the answer to COM_STMT_PREPARE for a statement without parameters that
    /// has this result.
    pub fn encode_prepare(&self, _out: &mut Vec<u8>, seq: u8, _caps: Capabilities, _id: u32) -> u8 {
        seq
    }
}

/// A result read into owned values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub columns: Vec<ColumnDef>,
    pub rows: Vec<Vec<Option<Vec<u8>>>>,
    pub status: Status,
    pub warnings: u16,
}

/// What a control query answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Ok {
        affected_rows: u64,
        last_insert_id: u64,
        status: Status,
    },
    Rows(Rows),
    Err {
        code: u16,
        state: [u8; 5],
        message: Vec<u8>,
    },
}

/// Reads the first result of a complete response in the text protocol: `buf` holds its
/// packets, headers included. Returns it with the bytes used.
pub fn parse_text_rows(_buf: &[u8], _caps: Capabilities) -> Result<(Reply, usize), Malformed> {
    Err(Malformed)
}
