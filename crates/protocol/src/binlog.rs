//! Binary-log events, as a source sends them to a replica: bytes in, borrowed values out. Knows
//! no socket, no catalogue and no position; what an event means for a table is its reader's.
//!
//! The parts, in the order in which a replica meets them:
//!
//! - [`command`]: what a replica says before events come, and asks for them with.
//! - [`Format`]: the state of one stream, which reads each event ([`Format::read`]).
//! - [`gtid`]: transaction identifiers of both families, and sets of them.
//! - [`query`]: statements in the log, with the settings they ran under.
//! - [`table`] and [`rows`]: which columns a table has, and the key columns of changed rows.
//! - [`payload`]: MySQL's compressed transactions, MariaDB's compressed rows and statements.
//!
//! Every length is checked against the bytes that are there, so that an event can neither panic nor make
//! the reader allocate. What is decompressed stops at a limit that is passed in.
//!
//! Sources: "MySQL" with a file is MySQL's source tree, `libs/mysql/binlog/event`; "MariaDB" with a file is
//! MariaDB's, `sql`; "MariaDB manual" is the replication protocol in its knowledge base. "Observed" is a log of a
//! real server that is kept in `tests/vectors/binlog`.

pub mod command;
mod format;
pub mod gtid;
pub mod payload;
pub mod query;
pub mod rows;
pub mod table;

use std::fmt;

pub use format::{Format, events};
use gtid::{Gtid, GtidList, MariaDbGtid, PreviousGtids};
use payload::Payload;
use query::Query;
use rows::Rows;
use table::TableMap;

use crate::packet::{Malformed, Reader};

/// Bytes of the header that each event begins with (MySQL, binlog_event.h, LOG_EVENT_HEADER_LEN).
pub const HEADER: usize = 19;

/// Bytes of the checksum that ends an event.
pub const CHECKSUM: usize = 4;

/// Numbers of events (MySQL, binlog_event.h, `Log_event_type`; MariaDB, log_event.h, from 160 on).
pub mod event_type {
    pub const QUERY: u8 = 2;
    pub const STOP: u8 = 3;
    pub const ROTATE: u8 = 4;
    pub const INTVAR: u8 = 5;
    pub const APPEND_BLOCK: u8 = 9;
    pub const DELETE_FILE: u8 = 11;
    pub const RAND: u8 = 13;
    pub const USER_VAR: u8 = 14;
    pub const FORMAT_DESCRIPTION: u8 = 15;
    pub const XID: u8 = 16;
    pub const BEGIN_LOAD_QUERY: u8 = 17;
    pub const EXECUTE_LOAD_QUERY: u8 = 18;
    pub const TABLE_MAP: u8 = 19;
    pub const WRITE_ROWS_V1: u8 = 23;
    pub const UPDATE_ROWS_V1: u8 = 24;
    pub const DELETE_ROWS_V1: u8 = 25;
    pub const INCIDENT: u8 = 26;
    pub const HEARTBEAT: u8 = 27;
    pub const IGNORABLE: u8 = 28;
    pub const ROWS_QUERY: u8 = 29;
    pub const WRITE_ROWS: u8 = 30;
    pub const UPDATE_ROWS: u8 = 31;
    pub const DELETE_ROWS: u8 = 32;
    pub const GTID: u8 = 33;
    pub const ANONYMOUS_GTID: u8 = 34;
    pub const PREVIOUS_GTIDS: u8 = 35;
    pub const TRANSACTION_CONTEXT: u8 = 36;
    pub const VIEW_CHANGE: u8 = 37;
    pub const XA_PREPARE: u8 = 38;
    pub const PARTIAL_UPDATE_ROWS: u8 = 39;
    pub const TRANSACTION_PAYLOAD: u8 = 40;
    pub const HEARTBEAT_V2: u8 = 41;
    pub const GTID_TAGGED: u8 = 42;
    pub const ANNOTATE_ROWS: u8 = 160;
    pub const BINLOG_CHECKPOINT: u8 = 161;
    pub const MARIADB_GTID: u8 = 162;
    pub const GTID_LIST: u8 = 163;
    pub const START_ENCRYPTION: u8 = 164;
    pub const QUERY_COMPRESSED: u8 = 165;
    pub const WRITE_ROWS_COMPRESSED_V1: u8 = 166;
    pub const UPDATE_ROWS_COMPRESSED_V1: u8 = 167;
    pub const DELETE_ROWS_COMPRESSED_V1: u8 = 168;
    pub const WRITE_ROWS_COMPRESSED: u8 = 169;
    pub const UPDATE_ROWS_COMPRESSED: u8 = 170;
    pub const DELETE_ROWS_COMPRESSED: u8 = 171;
}

/// Flags of an event's header (MySQL, binlog_event.h and sql/log_event.h, `LOG_EVENT_…_F`).
pub mod event_flags {
    /// Of a FORMAT_DESCRIPTION: the file is being written. Not part of the checksum.
    pub const BINLOG_IN_USE: u16 = 0x01;
    /// The statement depends on temporary tables of its connection.
    pub const THREAD_SPECIFIC: u16 = 0x04;
    /// The statement's default database plays no part.
    pub const SUPPRESS_USE: u16 = 0x08;
    /// Made by the sender, in no file.
    pub const ARTIFICIAL: u16 = 0x20;
    /// May be passed over by whoever does not know it.
    pub const IGNORABLE: u16 = 0x80;
}

/// Why an event could not be read. Whoever keeps something that the log describes must then take everything
/// for changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It ends too early or contradicts itself.
    Malformed,
    /// Its checksum is wrong.
    Checksum,
    /// It is of a version or form that is not known here.
    NotUnderstood,
    /// It decompresses to more than the limit.
    TooLarge,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "malformed binary-log event",
            Self::Checksum => "binary-log event with a wrong checksum",
            Self::NotUnderstood => "binary-log event of an unknown form",
            Self::TooLarge => "binary-log event that decompresses to more than the limit",
        })
    }
}

impl std::error::Error for Unreadable {}

impl From<Malformed> for Unreadable {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

/// An event's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// When it was made, in seconds since 1970.
    pub timestamp: u32,
    /// One of [`event_type`].
    pub kind: u8,
    /// The server that first executed it. Of MariaDB's, part of the GTID.
    pub server_id: u32,
    /// Bytes of the whole event, header and checksum included.
    pub len: u32,
    /// Where the next event begins in the sender's file, modulo 2^32; 0 for what is in no file.
    pub next_position: u32,
    /// See [`event_flags`].
    pub flags: u16,
}

impl Header {
    /// The header at the start of `event`.
    pub fn parse(event: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(event);
        Ok(Self {
            timestamp: reader.u32()?,
            kind: reader.u8()?,
            server_id: reader.u32()?,
            len: reader.u32()?,
            next_position: reader.u32()?,
            flags: reader.u16()?,
        })
    }

    /// Whether whoever does not know the event may pass over it.
    pub fn is_ignorable(&self) -> bool {
        self.flags & event_flags::IGNORABLE != 0
    }
}

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The format of what follows, which [`Format::read`] has taken over.
    FormatDescription(FormatDescription<'a>),
    /// Where the next event is.
    Rotate {
        position: u64,
        file: &'a [u8],
    },
    /// There is nothing new.
    Heartbeat {
        /// Of MariaDB's and of the first version, modulo 2^32.
        position: u64,
        file: &'a [u8],
    },
    /// What the log's earlier files hold (MySQL).
    PreviousGtids(PreviousGtids<'a>),
    /// What the log's earlier files hold (MariaDB).
    GtidList(GtidList<'a>),
    /// A transaction begins, which has this identifier.
    Gtid(Gtid<'a>),
    /// A transaction begins, which has this identifier; its server is in the event's header.
    MariaDbGtid(MariaDbGtid<'a>),
    /// A transaction begins, which has no identifier.
    AnonymousGtid,
    /// A statement, BEGIN, COMMIT or ROLLBACK, or one of XA. LOAD DATA in statement format, too.
    Query(Query<'a>),
    /// The transaction is committed.
    Xid(u64),
    /// The transaction is prepared: its rows become visible with a later XA COMMIT.
    XaPrepare(XaPrepare<'a>),
    TableMap(TableMap<'a>),
    Rows(Rows<'a>),
    /// The rest of the transaction, compressed.
    Payload(Payload<'a>),
    /// Events are missing.
    Incident {
        number: u16,
        message: &'a [u8],
    },
    /// In a file: what follows is encrypted. To a replica the server sends what follows in the clear
    /// (MariaDB, sql_repl.cc, `send_format_descriptor_event`).
    StartEncryption,
    /// An event that is known, and changes nothing: context of a statement, a comment, a note.
    Note(u8),
    /// An event that is not known, of which its sender says that it may be passed over.
    Ignorable(u8),
    /// An event that is not known: it may have changed anything.
    Unknown(u8),
}

/// What FORMAT_DESCRIPTION says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatDescription<'a> {
    /// As `version()` of the server that wrote the file.
    pub server_version: &'a [u8],
    /// Whether the events that follow end in a checksum.
    pub checksum: bool,
    /// Whether the server knows MariaDB's events.
    pub mariadb: bool,
}

/// The identifier of a prepared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XaPrepare<'a> {
    /// XA COMMIT … ONE PHASE: it is committed, not prepared.
    pub one_phase: bool,
    pub xid: Xid<'a>,
}

/// An XA transaction's identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid<'a> {
    pub format_id: u32,
    pub gtrid: &'a [u8],
    pub bqual: &'a [u8],
}

/// Most bytes of each part of an XA identifier (MySQL manual, "XA Transaction SQL Statements").
const XID_PART_MAX: usize = 64;

impl<'a> XaPrepare<'a> {
    /// MySQL, control_events.cpp, `XA_prepare_event`; MariaDB, log_event.cc, `XA_prepare_log_event`: the same.
    fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let one_phase = reader.u8()? != 0;
        let format_id = reader.u32()?;
        let lengths = [reader.u32()?, reader.u32()?];
        let mut part = |len: u32| match len as usize {
            len @ 0..=XID_PART_MAX => reader.bytes(len),
            _ => Err(Malformed),
        };
        Ok(Self {
            one_phase,
            xid: Xid {
                format_id,
                gtrid: part(lengths[0])?,
                bqual: part(lengths[1])?,
            },
        })
    }
}

/// ROTATE: eight bytes of position, then the name (MySQL, control_events.cpp, `Rotate_event`).
fn rotate(body: &[u8]) -> Result<Event<'_>, Malformed> {
    let mut reader = Reader::new(body);
    Ok(Event::Rotate {
        position: reader.u64()?,
        file: reader.rest(),
    })
}

/// The second version: fields of number, length and value, 1 the name, 2 the position, 0 the end
/// (MySQL, codecs/binary.cpp, `Heartbeat::decode`).
fn heartbeat_v2(body: &[u8]) -> Result<Event<'_>, Malformed> {
    let mut reader = Reader::new(body);
    let (mut position, mut file) = (0, &body[..0]);
    while !reader.is_empty() {
        let field = reader.lenenc_int()?;
        if field == 0 {
            break;
        }
        let value = reader.lenenc_bytes()?;
        match field {
            1 => file = value,
            2 => position = Reader::new(value).lenenc_int()?,
            _ => {}
        }
    }
    Ok(Event::Heartbeat { position, file })
}

/// MySQL, control_events.cpp, `Incident_event`.
fn incident(body: &[u8]) -> Result<Event<'_>, Malformed> {
    let mut reader = Reader::new(body);
    let number = reader.u16()?;
    let len = usize::from(reader.u8()?);
    Ok(Event::Incident {
        number,
        message: reader.bytes(len)?,
    })
}
