//! The stream of events that a server sends to its replicas: asks for it as one, and cuts it into events. Reads none of
//! them.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use millrace_protocol::binlog::command::{
    dump_flags, encode_dump, encode_dump_gtid, encode_register, mariadb_settings, mysql_settings,
};
use millrace_protocol::binlog::gtid::SetEncoder;
use millrace_protocol::ok::ErrPacket;
use millrace_protocol::packet;
use millrace_protocol::response::Expect;
use millrace_topology::{Family, GtidSet};

use crate::conn::Conn;
use crate::connect::server_error;
use crate::error::{BackendError, ServerError};
use crate::stream::Stream;

/// Room that is made for each read; bytes.
const ROOM: usize = 64 << 10;

/// A buffer that has grown beyond is given back once it is empty; bytes.
const KEPT_MAX: usize = 1 << 20;

/// No event is longer; bytes. Servers bound them by `max_allowed_packet`, which is at most so much.
const EVENT_MAX: usize = 1 << 30;

/// The name that servers list the follower under. It has no port: nobody can connect to it.
const NAME: &str = "millrace-cache";

/// Who the follower says it is.
#[derive(Debug)]
pub(super) struct Identity {
    /// No server and no replica may have the same.
    pub(super) server_id: u32,
    /// MySQL ends an older stream of the same.
    pub(super) uuid: String,
}

impl Identity {
    /// By chance. `taken`: numbers of servers that are known. Those of servers are small as a rule; one of the highest
    /// quarter is hardly anybody's.
    pub(super) fn random(taken: &[u32]) -> Self {
        loop {
            let mut bytes = [0; 20];
            if aws_lc_rs::rand::fill(&mut bytes).is_err() {
                // The generator cannot fail on a running system.
                std::process::abort();
            }
            let number = bytes.last_chunk().copied().unwrap_or_default();
            let server_id = u32::from_le_bytes(number) | 0xC000_0000;
            if taken.contains(&server_id) {
                continue;
            }
            let digits: String = bytes[..16].iter().map(|b| format!("{b:02x}")).collect();
            let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
            return Self {
                server_id,
                uuid: format!("{a}-{b}-{c}-{d}-{e}"),
            };
        }
    }
}

/// Why the stream could not be had, or has ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// The account may not have it.
    Forbidden(ServerError),
    /// The server does not have what follows the position any more, or it never had the position.
    NotThere(ServerError),
    Lost(BackendError),
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Server(error) => error.into(),
            error => Self::Lost(error),
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        match error.code {
            // ER_SPECIFIC_ACCESS_DENIED_ERROR, ER_ACCESS_DENIED_ERROR.
            1227 | 1045 => Self::Forbidden(error),
            // ER_MASTER_FATAL_ERROR_READING_BINLOG: both families say so of all positions that they cannot serve
            // (observed on MySQL 9.7, MariaDB 10.11 and 11.8).
            1236 => Self::NotThere(error),
            _ => Self::Lost(BackendError::Server(error)),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.into())
    }
}

/// Events as they come.
#[derive(Debug)]
pub(super) struct EventStream {
    stream: Stream,
    buffer: Vec<u8>,
    /// What of the buffer was taken.
    taken: usize,
}

impl EventStream {
    /// Asks for what follows `from`. Never as a semi-synchronous replica: what it has received, nobody has kept.
    pub(super) async fn begin(
        mut conn: Conn,
        identity: &Identity,
        heartbeat: Duration,
        from: &GtidSet,
    ) -> Result<Self, Failure> {
        let text = from.to_string();
        let mut out = Vec::new();
        let settings = match conn.family {
            Family::MySql => mysql_settings(heartbeat, &identity.uuid),
            Family::MariaDb => mariadb_settings(heartbeat, &text),
        };
        conn.query(&settings).await?;
        encode_register(&mut out, identity.server_id, NAME, 0);
        conn.send(&out, 1).await?;
        conn.read_answer(Expect::Simple).await?;
        out.clear();
        match conn.family {
            Family::MySql => {
                let executed = encoded(&text).ok_or(BackendError::Protocol("a GTID set"))?;
                let flags = dump_flags::HEARTBEAT_V2;
                encode_dump_gtid(&mut out, identity.server_id, flags, &executed);
            }
            Family::MariaDb => {
                const FILE_START: u32 = 4;
                encode_dump(&mut out, identity.server_id, 0, b"", FILE_START);
            }
        }
        let mut stream = conn.into_stream();
        stream.send(&out).await?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
            taken: 0,
        })
    }

    /// Waits for more bytes. Loses nothing where it is not waited for to the end.
    pub(super) async fn fill(&mut self) -> Result<(), Failure> {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_MAX {
            self.buffer = Vec::new();
        }
        if packet::announced(&self.buffer) > EVENT_MAX {
            return Err(BackendError::Protocol("an event that is too long").into());
        }
        let (stream, buffer) = (&mut self.stream, &mut self.buffer);
        let room = |buffer: &mut Vec<u8>| buffer.reserve(ROOM);
        let polled = std::future::poll_fn(|cx| stream.poll_read_into(cx, buffer, room));
        match polled.await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }

    /// The next whole event; none where more must be waited for.
    pub(super) fn next(&mut self) -> Result<Option<Cow<'_, [u8]>>, Failure> {
        const EVENT: u8 = 0;
        const END: u8 = 0xFE;
        const ERROR: u8 = 0xFF;
        let rest = &self.buffer[self.taken..];
        let Some(len) = packet::whole(rest) else {
            return Ok(None);
        };
        self.taken += len;
        let payload = packet::payload(&rest[..len]);
        match payload.first() {
            Some(&EVENT) => Ok(Some(match payload {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[1..]),
                Cow::Owned(mut bytes) => {
                    bytes.remove(0);
                    Cow::Owned(bytes)
                }
            })),
            Some(&ERROR) => {
                let error = ErrPacket::parse(&payload).map_err(BackendError::from)?;
                Err(server_error(&error).into())
            }
            Some(&END) => Err(BackendError::Protocol("the server has ended the stream").into()),
            _ => Err(BackendError::Protocol("a packet that is no event").into()),
        }
    }
}

/// A set of MySQL's as COM_BINLOG_DUMP_GTID takes it, from its text.
fn encoded(text: &str) -> Option<Vec<u8>> {
    let mut encoder = SetEncoder::default();
    for source in text.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let (uuid, rest) = source.split_once(':')?;
        let uuid = bytes_of_uuid(uuid)?;
        let mut tag = "";
        let mut intervals = Vec::new();
        let mut add = |tag: &str, intervals: &mut Vec<(u64, u64)>| {
            if !intervals.is_empty() {
                encoder.source(uuid, tag.as_bytes(), intervals.drain(..));
            }
        };
        for part in rest.split(':').map(str::trim) {
            if !part.starts_with(|c: char| c.is_ascii_digit()) {
                add(tag, &mut intervals);
                tag = part;
                continue;
            }
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            intervals.push((first.parse().ok()?, last.parse().ok()?));
        }
        add(tag, &mut intervals);
    }
    Some(encoder.encode())
}

fn bytes_of_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| *c != '-')
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks(2).map(byte_of).collect();
    bytes.try_into().ok()
}

fn byte_of(digits: &[u32]) -> u8 {
    digits
        .iter()
        .fold(0, |byte, digit| byte << 4 | *digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_protocol::binlog::gtid::PreviousGtids;

    #[test]
    fn sets_are_encoded_as_they_are_written() {
        let text = "11111111-1111-1111-1111-111111111111:1-5:9:cat:1-3,\n\
                    21111111-1111-1111-1111-1111111111ff:7";
        let encoded = encoded(text).expect("it is a set");
        let set = PreviousGtids::parse(&encoded).expect("it is one");
        let seen: Vec<_> = set
            .sources()
            .map(|s| (s.source[15], s.tag, s.intervals().collect::<Vec<_>>()))
            .collect();
        let expected = [
            (0x11, &b""[..], vec![(1, 5), (9, 9)]),
            (0x11, b"cat", vec![(1, 3)]),
            (0xFF, b"", vec![(7, 7)]),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn an_identity_is_nobody_elses() {
        let (one, other) = (Identity::random(&[1, 2]), Identity::random(&[]));
        assert!(one.server_id >= 0xC000_0000 && one.uuid != other.uuid);
        assert_eq!(one.uuid.len(), 36);
    }
}
