//! Answers to operators: result sets that are sent as they are made, a bounded piece at a time,
//! OKs and errors. Knows no listing.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use millrace_backend::stream::Stream;
use millrace_protocol::ok::{ErrPacket, OkFields, encode_end, encode_ok};
use millrace_protocol::resultset::{Cell as Sent, ColumnDef, TextResult};
use millrace_protocol::types::column_type;
use millrace_protocol::{Capabilities, Status};

use crate::operators::filter::Filter;
use crate::operators::tables::Listing;

/// Bytes of an answer that are kept before they are sent.
const PIECE: usize = 32 * 1024;

/// How long a client may take for such a piece.
const SLOWEST: Duration = Duration::from_secs(30);

/// utf8mb4_general_ci.
const COLLATION: u16 = 45;

/// A column of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What it says, for the documentation; without a full stop.
    pub(crate) help: &'static str,
}

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// A whole number: BIGINT.
    Int,
    /// DOUBLE.
    Real,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Null,
    Text(Cow<'static, str>),
    Int(i64),
    Real(f64),
}

impl Cell {
    /// As it is shown; none for NULL.
    pub(crate) fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Cell::Null => None,
            Cell::Text(text) => Some(Cow::Borrowed(text)),
            Cell::Int(number) => Some(number.to_string().into()),
            Cell::Real(number) => Some(number.to_string().into()),
        }
    }

    /// A name as a client or server gave it: bytes that are mostly UTF-8.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Cell::from(String::from_utf8_lossy(bytes).into_owned())
    }

    fn sent(&self) -> Sent<'_> {
        match self {
            Cell::Null => Sent::Null,
            Cell::Text(text) => Sent::Bytes(text.as_bytes()),
            Cell::Int(number) => Sent::Int(*number),
            Cell::Real(number) => Sent::Double(*number),
        }
    }
}

impl From<&'static str> for Cell {
    fn from(text: &'static str) -> Self {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::Text(text.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Cell::Real(number)
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Self {
        Cell::from(if flag { "yes" } else { "no" })
    }
}

macro_rules! from_integers {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Cell {
            fn from(number: $kind) -> Self {
                Cell::Int(i64::try_from(number).unwrap_or(i64::MAX))
            }
        })*
    };
}

from_integers!(u16, u32, u64, usize, u128, i64);

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Null, Into::into)
    }
}

/// Why a command gets no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The client is gone, or too slow.
    Client(io::Error),
    /// An error for the client; the conversation goes on.
    Error(Refusal),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Client(error)
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Trouble::Error(refusal)
    }
}

/// An error for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) state: [u8; 5],
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: u16, state: &[u8; 5], message: impl Into<String>) -> Self {
        Refusal {
            code,
            state: *state,
            message: message.into(),
        }
    }

    /// What a statement asks for cannot be done now.
    pub(crate) fn cannot(message: impl Into<String>) -> Self {
        Refusal::new(1105, b"HY000", message)
    }

    pub(crate) fn packet(&self) -> ErrPacket<'_> {
        ErrPacket {
            code: self.code,
            state: self.state,
            message: self.message.as_bytes(),
        }
    }
}

/// One name of a result's columns.
pub(crate) fn definition(name: &str, kind: Kind) -> ColumnDef {
    match kind {
        Kind::Text => ColumnDef {
            length: 65_535,
            ..ColumnDef::text(name, COLLATION)
        },
        Kind::Int => ColumnDef::integer(name),
        Kind::Real => ColumnDef {
            kind: column_type::DOUBLE,
            decimals: 31,
            ..ColumnDef::integer(name)
        },
    }
}

/// An answer under way.
pub(crate) struct Answer<'a> {
    stream: &'a mut Stream,
    capabilities: Capabilities,
    /// Rows in the binary form, for an executed prepared statement.
    binary: bool,
    out: Vec<u8>,
    sequence: u8,
    result: TextResult,
    filter: Filter,
    rows: u64,
}

impl<'a> Answer<'a> {
    /// The first packet will be numbered `sequence`.
    pub(crate) fn new(
        stream: &'a mut Stream,
        capabilities: Capabilities,
        sequence: u8,
        binary: bool,
    ) -> Self {
        Answer {
            stream,
            capabilities,
            binary,
            out: Vec::new(),
            sequence,
            result: TextResult::new(Vec::new()),
            filter: Filter::default(),
            rows: 0,
        }
    }

    /// Begins a listing; rows that `filter` does not want are left out.
    pub(crate) fn begin_listing(&mut self, listing: &Listing, filter: Filter) {
        let columns = listing.columns.iter();
        let columns: Vec<_> = columns.map(|column| (column.name, column.kind)).collect();
        self.begin(&columns, filter);
    }

    /// Begins a result set with these columns.
    pub(crate) fn begin(&mut self, columns: &[(&str, Kind)], filter: Filter) {
        let columns = columns.iter();
        let columns = columns
            .map(|(name, kind)| definition(name, *kind))
            .collect();
        self.result = TextResult::new(columns);
        self.filter = filter;
        let end = fields();
        let (out, caps) = (&mut self.out, self.capabilities);
        self.sequence = self.result.encode_head(out, self.sequence, caps, &end);
    }

    /// Whether no further row is wanted.
    pub(crate) fn is_full(&self) -> bool {
        self.filter.limit.is_some_and(|limit| self.rows >= limit)
    }

    /// Adds a row, if it is wanted; sends what has come together when it is enough.
    pub(crate) async fn row(&mut self, row: &[Cell]) -> Result<(), Trouble> {
        if self.is_full() || !self.filter.holds(row) {
            return Ok(());
        }
        self.rows += 1;
        let cells: Vec<Sent<'_>> = row.iter().map(Cell::sent).collect();
        let (out, binary) = (&mut self.out, self.binary);
        self.sequence = self.result.encode_row(out, self.sequence, &cells, binary);
        if self.out.len() >= PIECE {
            self.flush().await?;
        }
        Ok(())
    }

    /// Whether the client is gone, as far as its socket has said so.
    pub(crate) async fn client_left(&mut self) -> bool {
        self.stream.peer_closed().await
    }

    /// Ends the result set.
    pub(crate) async fn end(mut self) -> Result<(), Trouble> {
        encode_end(&mut self.out, self.sequence, self.capabilities, &fields());
        self.flush().await
    }

    /// An OK instead of a result set.
    pub(crate) async fn ok(mut self) -> Result<(), Trouble> {
        encode_ok(&mut self.out, self.sequence, self.capabilities, &fields());
        self.flush().await
    }

    /// Packets that are made already.
    pub(crate) async fn raw(mut self, packets: &[u8]) -> Result<(), Trouble> {
        self.out.extend_from_slice(packets);
        self.flush().await
    }

    /// An error instead of what has not been sent yet.
    pub(crate) async fn refuse(mut self, refusal: &Refusal) -> Result<(), Trouble> {
        refusal.packet().encode(&mut self.out, self.sequence);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Trouble> {
        let sending = tokio::time::timeout(SLOWEST, self.stream.send(&self.out));
        let sent = sending.await;
        self.out.clear();
        match sent {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }
}

/// What every OK says.
pub(crate) fn fields() -> OkFields<'static> {
    OkFields {
        status: Status::AUTOCOMMIT,
        ..OkFields::default()
    }
}
