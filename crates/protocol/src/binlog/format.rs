//! The state of one stream of events: whether they end in checksums, and how long their fixed parts are.

use super::{
    CHECKSUM, Event, FormatDescription, HEADER, Header, Unreadable, XaPrepare, event_flags,
    event_type as t, gtid, heartbeat_v2, incident, rotate,
};
use super::{payload::Payload, query::Query, rows::Rows, table::TableMap};
use crate::packet::{Malformed, Reader};

/// Bytes of the server's version in FORMAT_DESCRIPTION (MySQL, binlog_event.h, ST_SERVER_VER_LEN).
const SERVER_VERSION: usize = 50;

/// The binary log's version since MySQL 5.0 (MySQL, binlog_event.h, BINLOG_VERSION).
const BINLOG_VERSION: u16 = 4;

/// How the events of a stream are to be read. A ROTATE and a FORMAT_DESCRIPTION come first; the latter changes
/// it, and comes again with each file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    checksum: bool,
    /// Bytes of each event's fixed part, by the event's number less one.
    post_headers: Vec<u8>,
}

impl Format {
    /// Of a stream that begins. `checksum` is what was agreed on with @master_binlog_checksum: the
    /// first ROTATE has one or not, before a FORMAT_DESCRIPTION could tell.
    pub fn new(checksum: bool) -> Self {
        Self {
            checksum,
            post_headers: Vec::new(),
        }
    }

    /// Whether events end in a checksum now.
    pub fn has_checksum(&self) -> bool {
        self.checksum
    }

    /// Reads one whole event, as it is in a file; in a stream a packet has it after a zero byte. A
    /// FORMAT_DESCRIPTION takes effect.
    pub fn read<'a>(&mut self, event: &'a [u8]) -> Result<(Header, Event<'a>), Unreadable> {
        let header = whole(event)?;
        if header.kind == t::FORMAT_DESCRIPTION {
            let description = self.describe(event)?;
            return Ok((header, Event::FormatDescription(description)));
        }
        let end = match self.checksum {
            true => verified(event)?,
            false => event.len(),
        };
        let body = event.get(HEADER..end).ok_or(Unreadable::Malformed)?;
        Ok((header, self.event(&header, body)?))
    }

    /// Reads an event of a decompressed [`Payload`]: they have no checksums of their own
    /// (MySQL, payload_event_buffer_istream.cpp).
    pub fn read_inner<'a>(&self, event: &'a [u8]) -> Result<(Header, Event<'a>), Unreadable> {
        let header = whole(event)?;
        Ok((header, self.event(&header, &event[HEADER..])?))
    }

    fn event<'a>(&self, header: &Header, body: &'a [u8]) -> Result<Event<'a>, Unreadable> {
        Ok(match header.kind {
            t::TABLE_MAP => {
                self.expect_post_header(header.kind, 8)?;
                Event::TableMap(TableMap::parse(body)?)
            }
            t::WRITE_ROWS_V1..=t::DELETE_ROWS_V1
            | t::WRITE_ROWS..=t::DELETE_ROWS
            | t::PARTIAL_UPDATE_ROWS
            | t::WRITE_ROWS_COMPRESSED_V1..=t::DELETE_ROWS_COMPRESSED => {
                let post_header = if Rows::is_v1(header.kind) { 8 } else { 10 };
                self.expect_post_header(header.kind, post_header)?;
                Event::Rows(Rows::parse(header.kind, body)?)
            }
            t::QUERY | t::QUERY_COMPRESSED | t::EXECUTE_LOAD_QUERY => {
                Event::Query(Query::parse(header, self.post_header(header.kind)?, body)?)
            }
            t::GTID => Event::Gtid(gtid::parse(body)?),
            t::GTID_TAGGED => Event::Gtid(gtid::parse_tagged(body)?),
            t::ANONYMOUS_GTID => Event::AnonymousGtid,
            t::MARIADB_GTID => Event::MariaDbGtid(gtid::MariaDbGtid::parse(body)?),
            t::GTID_LIST => Event::GtidList(gtid::GtidList::parse(body)?),
            t::PREVIOUS_GTIDS => Event::PreviousGtids(gtid::PreviousGtids::parse(body)?),
            t::XID => Event::Xid(Reader::new(body).u64()?),
            t::XA_PREPARE => Event::XaPrepare(XaPrepare::parse(body)?),
            t::TRANSACTION_PAYLOAD => Event::Payload(Payload::parse(body)?),
            t::ROTATE => rotate(body)?,
            t::HEARTBEAT => Event::Heartbeat {
                position: u64::from(header.next_position),
                file: body,
            },
            t::HEARTBEAT_V2 => heartbeat_v2(body)?,
            t::INCIDENT => incident(body)?,
            t::START_ENCRYPTION => Event::StartEncryption,
            t::STOP
            | t::INTVAR
            | t::APPEND_BLOCK
            | t::DELETE_FILE
            | t::RAND
            | t::USER_VAR
            | t::BEGIN_LOAD_QUERY
            | t::IGNORABLE
            | t::ROWS_QUERY
            | t::TRANSACTION_CONTEXT
            | t::VIEW_CHANGE
            | t::ANNOTATE_ROWS
            | t::BINLOG_CHECKPOINT => Event::Note(header.kind),
            other if header.is_ignorable() => Event::Ignorable(other),
            other => Event::Unknown(other),
        })
    }

    /// Bytes of the fixed part of events of this kind. FORMAT_DESCRIPTION must have come.
    fn post_header(&self, kind: u8) -> Result<usize, Unreadable> {
        let at = usize::from(kind).wrapping_sub(1);
        let len = self.post_headers.get(at).ok_or(Unreadable::NotUnderstood)?;
        Ok(usize::from(*len))
    }

    fn expect_post_header(&self, kind: u8, len: usize) -> Result<(), Unreadable> {
        if self.post_header(kind)? == len {
            return Ok(());
        }
        Err(Unreadable::NotUnderstood)
    }

    /// MySQL, control_events.cpp, `Format_description_event`. It always ends in the checksum's algorithm and
    /// in a checksum, whether the events that follow have one or not (`event_checksum_test`).
    fn describe<'a>(&mut self, event: &'a [u8]) -> Result<FormatDescription<'a>, Unreadable> {
        let end = verified(event)?;
        let mut reader = Reader::new(event.get(HEADER..end).ok_or(Unreadable::Malformed)?);
        let version = reader.u16()?;
        let server_version = Reader::new(reader.bytes(SERVER_VERSION)?).nul_bytes_or_rest();
        let _created = reader.u32()?;
        let header_len = usize::from(reader.u8()?);
        let (algorithm, post_headers) = reader.rest().split_last().ok_or(Malformed)?;
        if version != BINLOG_VERSION || header_len != HEADER || *algorithm > 1 {
            return Err(Unreadable::NotUnderstood);
        }
        self.checksum = *algorithm == 1;
        self.post_headers.clear();
        self.post_headers.extend_from_slice(post_headers);
        Ok(FormatDescription {
            server_version,
            checksum: self.checksum,
            mariadb: post_headers.len() >= usize::from(t::MARIADB_GTID),
        })
    }
}

/// The header of an event that is as long as it says.
fn whole(event: &[u8]) -> Result<Header, Malformed> {
    let header = Header::parse(event)?;
    if header.len as usize == event.len() {
        return Ok(header);
    }
    Err(Malformed)
}

/// Where the event ends before its checksum, which is right. The flag that a file is in use changes
/// while the file is written, and counts as absent (MySQL, binlog_event.cpp, `event_checksum_test`).
fn verified(event: &[u8]) -> Result<usize, Unreadable> {
    const FLAGS: usize = HEADER - 2;
    let end = event.len() - HEADER;
    let end = end.checked_sub(CHECKSUM).ok_or(Unreadable::Malformed)? + HEADER;
    let (content, sum) = event.split_at(end);
    let mut hasher = crc32fast::Hasher::new();
    let is_in_use = content[FLAGS] & event_flags::BINLOG_IN_USE as u8 != 0;
    if is_in_use && content[4] == t::FORMAT_DESCRIPTION {
        hasher.update(&content[..FLAGS]);
        hasher.update(&[content[FLAGS] & !(event_flags::BINLOG_IN_USE as u8)]);
        hasher.update(&content[FLAGS + 1..]);
    } else {
        hasher.update(content);
    }
    if hasher.finalize().to_le_bytes() == sum {
        return Ok(end);
    }
    Err(Unreadable::Checksum)
}

/// The events that `buf` holds one after the other, as in a file after its first four bytes, or in a
/// decompressed payload. Ends after an error.
pub fn events(buf: &[u8]) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    let mut rest = buf;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let split = Header::parse(rest)
            .ok()
            .filter(|header| header.len as usize >= HEADER)
            .and_then(|header| rest.split_at_checked(header.len as usize));
        let Some((event, after)) = split else {
            rest = &[];
            return Some(Err(Malformed));
        };
        rest = after;
        Some(Ok(event))
    })
}
