//! Answers to operators: result sets that are sent as they are made, a bounded piece at a time,
//! OKs and errors. Knows no listing.

use std::io;
use std::time::Duration;

use millrace_backend::stream::Stream;
use millrace_protocol::ok::{OkFields, encode_end, encode_ok};
use millrace_protocol::resultset::{Cell as Sent, ColumnDef, TextResult};
use millrace_protocol::types::column_type;
use millrace_protocol::{Capabilities, Status};

use crate::operators::cell::{Cell, Column, Kind, Refusal, Trouble};
use crate::operators::filter::Filter;

/// Bytes of an answer that are kept before they are sent.
const PIECE: usize = 32 * 1024;

/// How long a client may take for such a piece.
const SLOWEST: Duration = Duration::from_secs(30);

/// utf8mb4_general_ci.
const COLLATION: u16 = 45;

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
    pub(crate) fn begin_listing(&mut self, columns: &[Column], filter: Filter) {
        let columns: Vec<_> = columns
            .iter()
            .map(|column| (column.name, column.kind))
            .collect();
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
