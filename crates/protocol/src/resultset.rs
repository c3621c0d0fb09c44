//! Small result sets: made for statements that Millrace answers itself, and read from
//! its own control queries. Never used for clients' rows in flight.

use std::borrow::Cow;

use crate::ok::{EOF, ERR, ErrPacket, OK, OkFields, OkPacket, encode_end, encode_eof, parse_eof};
use crate::packet::{HEADER, MAX_PAYLOAD, Malformed, Reader, Writer, header, payload, whole};
use crate::response::{METADATA_FLAG, column_count};
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
    pub fn parse(payload: &[u8], caps: Capabilities) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let _catalog = reader.lenenc_bytes()?;
        let mut name = || reader.lenenc_bytes().map(<[u8]>::to_vec);
        let (schema, table, org_table) = (name()?, name()?, name()?);
        let (name, org_name) = (name()?, name()?);
        let mut extended = Vec::new();
        if caps.contains(Capabilities::EXTENDED_METADATA) {
            extended = reader.lenenc_bytes()?.to_vec();
        }
        let _fixed_len = reader.lenenc_int()?;
        Ok(Self {
            schema,
            table,
            org_table,
            name,
            org_name,
            extended,
            collation: reader.u16()?,
            length: reader.u32()?,
            kind: reader.u8()?,
            flags: reader.u16()?,
            decimals: reader.u8()?,
        })
    }

    /// Appends the definition as a packet; returns the next sequence number.
    pub fn encode(&self, out: &mut Vec<u8>, seq: u8, caps: Capabilities) -> u8 {
        let mut writer = Writer::new(out, seq);
        writer
            .lenenc_bytes(b"def")
            .lenenc_bytes(&self.schema)
            .lenenc_bytes(&self.table)
            .lenenc_bytes(&self.org_table)
            .lenenc_bytes(&self.name)
            .lenenc_bytes(&self.org_name);
        if caps.contains(Capabilities::EXTENDED_METADATA) {
            writer.lenenc_bytes(&self.extended);
        }
        writer
            .lenenc_int(12)
            .u16(self.collation)
            .u32(self.length)
            .u8(self.kind)
            .u16(self.flags)
            .u8(self.decimals)
            .u16(0);
        writer.finish()
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

/// A value that outlives its source.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Null,
    Bytes(Vec<u8>),
    Int(i64),
    UInt(u64),
    Double(f64),
}

impl Owned {
    fn of(cell: Cell<'_>) -> Self {
        match cell {
            Cell::Null => Self::Null,
            Cell::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Cell::Int(value) => Self::Int(value),
            Cell::UInt(value) => Self::UInt(value),
            Cell::Double(value) => Self::Double(value),
        }
    }

    fn to_text(&self) -> Option<Cow<'_, [u8]>> {
        Some(match self {
            Self::Null => return None,
            Self::Bytes(bytes) => Cow::Borrowed(bytes),
            Self::Int(value) => Cow::Owned(value.to_string().into_bytes()),
            Self::UInt(value) => Cow::Owned(value.to_string().into_bytes()),
            Self::Double(value) => Cow::Owned(value.to_string().into_bytes()),
        })
    }

    /// The value as the integer that a column of an integer type carries.
    fn to_bits(&self) -> u64 {
        match *self {
            Self::Null => 0,
            Self::Int(value) => value as u64,
            Self::UInt(value) => value,
            Self::Double(value) => value as i64 as u64,
            Self::Bytes(ref bytes) => std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .unwrap_or(0) as u64,
        }
    }

    fn to_double(&self) -> f64 {
        match *self {
            Self::Double(value) => value,
            Self::Int(value) => value as f64,
            Self::UInt(value) => value as f64,
            _ => self.to_bits() as f64,
        }
    }
}

/// A small result set under construction.
#[derive(Clone, Debug)]
pub struct TextResult {
    columns: Vec<ColumnDef>,
    rows: Vec<Vec<Owned>>,
}

impl TextResult {
    pub fn new(columns: Vec<ColumnDef>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells beyond the columns are ignored, missing ones are NULL.
    pub fn row(&mut self, cells: &[Cell<'_>]) -> &mut Self {
        let mut row: Vec<Owned> = cells.iter().map(|&cell| Owned::of(cell)).collect();
        row.resize(self.columns.len(), Owned::Null);
        self.rows.push(row);
        self
    }

    /// Appends the whole response in the text protocol for a client with `caps`, the
    /// first packet numbered `seq`; returns the next number. Status and warnings of
    /// `end` go into what ends the rows.
    pub fn encode(&self, out: &mut Vec<u8>, seq: u8, caps: Capabilities, end: &OkFields<'_>) -> u8 {
        self.put(out, seq, caps, end, text_row)
    }

    /// As [`encode`](Self::encode), with binary rows, for a prepared statement.
    pub fn encode_binary(
        &self,
        out: &mut Vec<u8>,
        seq: u8,
        caps: Capabilities,
        end: &OkFields<'_>,
    ) -> u8 {
        self.put(out, seq, caps, end, |row, writer| {
            binary_row(&self.columns, row, writer);
        })
    }

    fn put(
        &self,
        out: &mut Vec<u8>,
        seq: u8,
        caps: Capabilities,
        end: &OkFields<'_>,
        put_row: impl Fn(&[Owned], &mut Writer<'_>),
    ) -> u8 {
        let mut seq = self.encode_head(out, seq, caps, end);
        for row in &self.rows {
            let mut writer = Writer::new(out, seq);
            put_row(row, &mut writer);
            seq = writer.finish();
        }
        encode_end(out, seq, caps, end)
    }

    /// Appends what comes before the rows, for a result that is sent as it is made: the rows
    /// follow with [`encode_row`](Self::encode_row), and [`encode_end`] ends them.
    pub fn encode_head(
        &self,
        out: &mut Vec<u8>,
        seq: u8,
        caps: Capabilities,
        end: &OkFields<'_>,
    ) -> u8 {
        let mut writer = Writer::new(out, seq);
        writer.lenenc_int(self.columns.len() as u64);
        if caps.intersects(METADATA_FLAG) {
            writer.u8(1);
        }
        let seq = writer.finish();
        self.put_definitions(out, seq, caps, end.status, end.warnings)
    }

    /// Appends one row, binary or as text; the result does not keep it.
    pub fn encode_row(&self, out: &mut Vec<u8>, seq: u8, cells: &[Cell<'_>], binary: bool) -> u8 {
        let mut row: Vec<Owned> = cells.iter().map(|&cell| Owned::of(cell)).collect();
        row.resize(self.columns.len(), Owned::Null);
        let mut writer = Writer::new(out, seq);
        if binary {
            binary_row(&self.columns, &row, &mut writer);
        } else {
            text_row(&row, &mut writer);
        }
        writer.finish()
    }

    fn put_definitions(
        &self,
        out: &mut Vec<u8>,
        mut seq: u8,
        caps: Capabilities,
        status: Status,
        warnings: u16,
    ) -> u8 {
        for column in &self.columns {
            seq = column.encode(out, seq, caps);
        }
        if caps.contains(Capabilities::DEPRECATE_EOF) {
            return seq;
        }
        encode_eof(out, seq, status, warnings)
    }

    /// Appends the answer to COM_STMT_PREPARE for a statement without parameters that
    /// has this result; `status` is for the EOF of clients that want one.
    pub fn encode_prepare(
        &self,
        out: &mut Vec<u8>,
        seq: u8,
        caps: Capabilities,
        id: u32,
        status: Status,
    ) -> u8 {
        let mut writer = Writer::new(out, seq);
        writer
            .u8(0)
            .u32(id)
            .u16(self.columns.len() as u16)
            .u16(0)
            .u8(0)
            .u16(0);
        if caps.contains(Capabilities::OPTIONAL_RESULTSET_METADATA) {
            writer.u8(1);
        }
        let seq = writer.finish();
        if self.columns.is_empty() {
            return seq;
        }
        self.put_definitions(out, seq, caps, status, 0)
    }
}

fn text_row(row: &[Owned], writer: &mut Writer<'_>) {
    for cell in row {
        match cell.to_text() {
            Some(text) => writer.lenenc_bytes(&text),
            None => writer.u8(NULL),
        };
    }
}

/// MySQL manual, "Binary Protocol Resultset Row": the NULL bitmap starts at bit 2.
fn binary_row(columns: &[ColumnDef], row: &[Owned], writer: &mut Writer<'_>) {
    let mut nulls = vec![0u8; (columns.len() + 9) / 8];
    for (at, cell) in row.iter().enumerate() {
        if *cell == Owned::Null {
            nulls[(at + 2) / 8] |= 1 << ((at + 2) % 8);
        }
    }
    writer.u8(0).bytes(&nulls);
    for (column, cell) in columns.iter().zip(row) {
        if *cell != Owned::Null {
            binary_cell(column.kind, cell, writer);
        }
    }
}

fn binary_cell(kind: u8, cell: &Owned, writer: &mut Writer<'_>) {
    let bits = cell.to_bits().to_le_bytes();
    match kind {
        column_type::TINY => writer.bytes(&bits[..1]),
        column_type::SHORT | column_type::YEAR => writer.bytes(&bits[..2]),
        column_type::LONG | column_type::INT24 => writer.bytes(&bits[..4]),
        column_type::LONGLONG => writer.bytes(&bits),
        column_type::DOUBLE => writer.bytes(&cell.to_double().to_le_bytes()),
        column_type::FLOAT => writer.bytes(&(cell.to_double() as f32).to_le_bytes()),
        _ => writer.lenenc_bytes(&cell.to_text().unwrap_or_default()),
    };
}

/// The NULL of a text row.
const NULL: u8 = 0xFB;

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
pub fn parse_text_rows(buf: &[u8], caps: Capabilities) -> Result<(Reply, usize), Malformed> {
    let mut packets = Packets { buf, at: 0 };
    let first = packets.next()?;
    let reply = match first.first() {
        Some(&OK) if first.len() >= 7 => parse_ok(&first, caps)?,
        Some(&ERR) => parse_err(&first)?,
        _ => read_rows(&first, &mut packets, caps)?,
    };
    Ok((reply, packets.at))
}

/// The first value of the first row of a complete response in the text protocol, in place: for
/// answers of one short value. None where there is no row, where it is NULL or longer than 250 bytes.
pub fn first_value(buf: &[u8], caps: Capabilities) -> Option<&[u8]> {
    let mut rest = buf;
    let mut next = || {
        let length = header(rest)?.len as usize;
        let payload = rest.get(HEADER..HEADER + length)?;
        rest = &rest[HEADER + length..];
        Some(payload)
    };
    let (count, defined) = column_count(next()?, caps).ok()?;
    let definitions = if defined { count } else { 0 };
    let end = u32::from(!caps.contains(Capabilities::DEPRECATE_EOF));
    for _ in 0..definitions + end {
        next()?;
    }
    let row = next()?;
    let length = *row.first()?;
    // Longer lengths, NULL, and the packets that end the rows begin with a higher byte.
    (length <= 250).then_some(())?;
    row.get(1..1 + usize::from(length))
}

fn read_rows(
    first: &[u8],
    packets: &mut Packets<'_>,
    caps: Capabilities,
) -> Result<Reply, Malformed> {
    let (count, defined) = column_count(first, caps)?;
    let mut columns = Vec::new();
    for _ in 0..if defined { count } else { 0 } {
        columns.push(ColumnDef::parse(&packets.next()?, caps)?);
    }
    if !caps.contains(Capabilities::DEPRECATE_EOF) {
        parse_eof(&packets.next()?)?;
    }
    let mut rows = Vec::new();
    loop {
        let packet = packets.next()?;
        match packet.first() {
            Some(&ERR) => return parse_err(&packet),
            Some(&EOF) if packet.len() < MAX_PAYLOAD => {
                let (status, warnings) = parse_end(&packet, caps)?;
                return Ok(Reply::Rows(Rows {
                    columns,
                    rows,
                    status,
                    warnings,
                }));
            }
            _ => rows.push(parse_row(&packet, count)?),
        }
    }
}

fn parse_ok(payload: &[u8], caps: Capabilities) -> Result<Reply, Malformed> {
    let ok = OkPacket::parse(payload, caps)?;
    Ok(Reply::Ok {
        affected_rows: ok.affected_rows,
        last_insert_id: ok.last_insert_id,
        status: ok.status,
    })
}

fn parse_err(payload: &[u8]) -> Result<Reply, Malformed> {
    let err = ErrPacket::parse(payload)?;
    Ok(Reply::Err {
        code: err.code,
        state: err.state,
        message: err.message.to_vec(),
    })
}

fn parse_end(payload: &[u8], caps: Capabilities) -> Result<(Status, u16), Malformed> {
    if caps.contains(Capabilities::DEPRECATE_EOF) && payload.len() >= 7 {
        let ok = OkPacket::parse(payload, caps)?;
        return Ok((ok.status, ok.warnings));
    }
    parse_eof(payload)
}

fn parse_row(payload: &[u8], columns: u32) -> Result<Vec<Option<Vec<u8>>>, Malformed> {
    let mut reader = Reader::new(payload);
    let mut row = Vec::new();
    for _ in 0..columns {
        if reader.peek().first() == Some(&NULL) {
            reader.u8()?;
            row.push(None);
        } else {
            row.push(Some(reader.lenenc_bytes()?.to_vec()));
        }
    }
    Ok(row)
}

/// Steps through whole packets.
struct Packets<'a> {
    buf: &'a [u8],
    at: usize,
}

impl<'a> Packets<'a> {
    fn next(&mut self) -> Result<Cow<'a, [u8]>, Malformed> {
        let rest = &self.buf[self.at..];
        let len = whole(rest).ok_or(Malformed)?;
        self.at += len;
        Ok(payload(&rest[..len]))
    }
}
