//! Identifiers of transactions and sets of them, as events and commands have them. Compares nothing.

use super::{Unreadable, Xid};
use crate::packet::{Malformed, Reader};

/// A transaction's identifier in MySQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gtid<'a> {
    /// The server_uuid of its source.
    pub source: [u8; 16],
    /// Its tag in lower case; empty for most (MySQL 8.3 and later).
    pub tag: &'a [u8],
    /// Its number, from 1 on.
    pub number: u64,
    /// Whether part of it may be logged as statements.
    pub may_have_statements: bool,
}

/// GTID: flags, source, number, and what is not needed here (MySQL, control_events.cpp, `Gtid_event`).
pub(super) fn parse(body: &[u8]) -> Result<Gtid<'_>, Malformed> {
    let mut reader = Reader::new(body);
    let flags = reader.u8()?;
    Ok(Gtid {
        source: uuid(&mut reader)?,
        tag: &[],
        number: counted(reader.u64()?)?,
        may_have_statements: flags & 1 != 0,
    })
}

fn uuid(reader: &mut Reader<'_>) -> Result<[u8; 16], Malformed> {
    reader.bytes(16)?.first_chunk().copied().ok_or(Malformed)
}

/// Transaction numbers are 1 to 2^63 - 2 (MySQL, control_events.h, MIN_GNO and GNO_END).
fn counted(number: u64) -> Result<u64, Malformed> {
    match number {
        0 | 0x7FFF_FFFF_FFFF_FFFF.. => Err(Malformed),
        _ => Ok(number),
    }
}

/// Fields of GTID_TAGGED that [`parse_tagged`] knows of (MySQL, control_events.h, `define_fields`).
const TAGGED_FIELDS: u64 = 12;

/// GTID_TAGGED: a message of MySQL's serialization library. Fields come in the order of their numbers: 0
/// flags, 1 the source, 2 the number, 3 the tag (MySQL, control_events.h, `Gtid_event::define_fields`; the
/// encoding is in libs/mysql/serialization/readme.md).
pub(super) fn parse_tagged(body: &[u8]) -> Result<Gtid<'_>, Unreadable> {
    let mut reader = Reader::new(body);
    let version = varint(&mut reader)?;
    let _size = varint(&mut reader)?;
    let last_needed = varint(&mut reader)?;
    if version != 1 || last_needed >= TAGGED_FIELDS {
        return Err(Unreadable::NotUnderstood);
    }
    field(&mut reader, 0)?;
    let flags = varint(&mut reader)?;
    field(&mut reader, 1)?;
    let mut source = [0; 16];
    for byte in &mut source {
        *byte = u8::try_from(varint(&mut reader)?).map_err(|_| Malformed)?;
    }
    field(&mut reader, 2)?;
    let number = signed(varint(&mut reader)?);
    field(&mut reader, 3)?;
    Ok(Gtid {
        source,
        tag: tag(&mut reader)?,
        number: counted(u64::try_from(number).map_err(|_| Malformed)?)?,
        may_have_statements: flags & 1 != 0,
    })
}

fn field(reader: &mut Reader<'_>, number: u64) -> Result<(), Malformed> {
    if varint(reader)? == number {
        return Ok(());
    }
    Err(Malformed)
}

/// Most bytes of a tag (MySQL manual, "GTID Format").
const TAG_MAX: u64 = 32;

fn tag<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    match varint(reader)? {
        len @ 0..=TAG_MAX => reader.bytes(len as usize),
        _ => Err(Malformed),
    }
}

/// An integer of the serialization library, 1 to 9 bytes: as many ones as it has further bytes, at the low end
/// of the first, and a zero; then the value (libs/mysql/serialization/readme.md).
fn varint(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    let first = reader.u8()?;
    let further = first.trailing_ones();
    if further == 8 {
        return reader.u64();
    }
    let mut bytes = [0; 8];
    bytes[0] = first;
    let more = reader.bytes(further as usize)?;
    bytes[1..=more.len()].copy_from_slice(more);
    Ok(u64::from_le_bytes(bytes) >> (further + 1))
}

fn put_varint(out: &mut Vec<u8>, value: u64) {
    let bits = 64 - value.leading_zeros();
    // Seven bits a byte, up to eight bytes.
    let further = bits.saturating_sub(1) / 7;
    if further >= 8 {
        out.push(0xFF);
        out.extend_from_slice(&value.to_le_bytes());
        return;
    }
    let ones = (1u64 << further) - 1;
    let word = (value << (further + 1)) | ones;
    out.extend_from_slice(&word.to_le_bytes()[..=further as usize]);
}

/// The sign is the lowest bit; negative numbers are kept less one.
fn signed(value: u64) -> i64 {
    let half = (value >> 1) as i64;
    if value & 1 == 0 { half } else { !half }
}

/// One source's, or source and tag's, transactions of an encoded set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceIntervals<'a> {
    pub source: [u8; 16],
    /// Empty without one.
    pub tag: &'a [u8],
    intervals: &'a [u8],
}

impl<'a> SourceIntervals<'a> {
    /// First and last number of each interval.
    pub fn intervals(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        self.intervals.chunks_exact(16).filter_map(|pair| {
            let mut reader = Reader::new(pair);
            let (first, after) = (reader.u64().ok()?, reader.u64().ok()?);
            Some((first, after.checked_sub(1)?))
        })
    }
}

/// What PREVIOUS_GTIDS has: a whole set.
///
/// Eight bytes of head. Its highest byte says the form: 0, and the rest is the number of sources; or 1, for a
/// set with tags, and the number is in bits 8 to 55, over a byte that is 1 again. Then, each source: 16
/// bytes, with tags the tag, eight bytes of how many intervals, and each interval's first number and the one after
/// its last (MySQL, sql/rpl_gtid_set.cc, `Gtid_set::encode`; with tags observed, too).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousGtids<'a> {
    has_tags: bool,
    sources: u64,
    rest: &'a [u8],
}

impl<'a> PreviousGtids<'a> {
    /// Reads the whole set, so that [`sources`](Self::sources) cannot fail later.
    pub fn parse(body: &'a [u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(body);
        let head = reader.u64()?;
        let set = match head >> 56 {
            0 => Self {
                has_tags: false,
                sources: head,
                rest: reader.rest(),
            },
            1 => Self {
                has_tags: true,
                sources: (head & 0x00FF_FFFF_FFFF_FFFF) >> 8,
                rest: reader.rest(),
            },
            _ => return Err(Unreadable::NotUnderstood),
        };
        let mut reader = Reader::new(set.rest);
        for _ in 0..set.sources {
            set.source(&mut reader)?;
        }
        Ok(set)
    }

    /// Each source with its intervals, in the order of the set.
    pub fn sources(&self) -> impl Iterator<Item = SourceIntervals<'a>> + use<'a> {
        let set = *self;
        let (mut reader, mut left) = (Reader::new(set.rest), set.sources);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            set.source(&mut reader).ok()
        })
    }

    fn source(&self, reader: &mut Reader<'a>) -> Result<SourceIntervals<'a>, Malformed> {
        let source = uuid(reader)?;
        let tag = if self.has_tags { tag(reader)? } else { &[] };
        let bytes = usize::try_from(reader.u64()?)
            .ok()
            .and_then(|count| count.checked_mul(16))
            .ok_or(Malformed)?;
        Ok(SourceIntervals {
            source,
            tag,
            intervals: reader.bytes(bytes)?,
        })
    }
}

/// Encodes a set of MySQL's, as COM_BINLOG_DUMP_GTID takes it: see [`PreviousGtids`] for the form.
#[derive(Clone, Debug, Default)]
pub struct SetEncoder {
    has_tags: bool,
    sources: Vec<EncodedSource>,
}

#[derive(Clone, Debug)]
struct EncodedSource {
    source: [u8; 16],
    tag: Vec<u8>,
    /// First and last number of each.
    intervals: Vec<(u64, u64)>,
}

impl SetEncoder {
    /// Adds transactions of one source, first and last number of each interval. Sources with their tags must
    /// come in ascending order, as servers write them, each once.
    pub fn source(
        &mut self,
        source: [u8; 16],
        tag: &[u8],
        intervals: impl IntoIterator<Item = (u64, u64)>,
    ) -> &mut Self {
        self.has_tags |= !tag.is_empty();
        self.sources.push(EncodedSource {
            source,
            tag: tag.to_vec(),
            intervals: intervals.into_iter().collect(),
        });
        self
    }

    /// The encoded set. Without tags in the form that servers before 8.3 know as well.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.sources.len() as u64;
        let head = match self.has_tags {
            false => count,
            true => 1 << 56 | count << 8 | 1,
        };
        let mut out = head.to_le_bytes().to_vec();
        for EncodedSource {
            source,
            tag,
            intervals,
        } in &self.sources
        {
            out.extend_from_slice(source);
            if self.has_tags {
                put_varint(&mut out, tag.len() as u64);
                out.extend_from_slice(tag);
            }
            out.extend_from_slice(&(intervals.len() as u64).to_le_bytes());
            for (first, last) in intervals {
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&last.saturating_add(1).to_le_bytes());
            }
        }
        out
    }
}

/// Flags of MariaDB's GTID (MariaDB manual, "GTID_EVENT").
pub mod mariadb_flags {
    /// No COMMIT ends it: it is one statement.
    pub const STANDALONE: u8 = 1;
    pub const GROUP_COMMIT_ID: u8 = 2;
    pub const TRANSACTIONAL: u8 = 4;
    pub const ALLOW_PARALLEL: u8 = 8;
    pub const WAITED: u8 = 16;
    pub const DDL: u8 = 32;
    /// It ends in XA PREPARE.
    pub const PREPARED_XA: u8 = 64;
    /// XA COMMIT or XA ROLLBACK of what was prepared.
    pub const COMPLETED_XA: u8 = 128;
}

/// What MariaDB's GTID event has. The identifier's server is the one in the event's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MariaDbGtid<'a> {
    pub sequence: u64,
    pub domain: u32,
    /// See [`mariadb_flags`].
    pub flags: u8,
    /// Of a transaction that is prepared, or was.
    pub xid: Option<Xid<'a>>,
}

impl<'a> MariaDbGtid<'a> {
    /// MariaDB, log_event.cc, `Gtid_log_event`: after the flags the commit's group, then the XA
    /// identifier, each where the flags say so.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        use mariadb_flags as f;
        let mut reader = Reader::new(body);
        let mut gtid = Self {
            sequence: reader.u64()?,
            domain: reader.u32()?,
            flags: reader.u8()?,
            xid: None,
        };
        if gtid.flags & f::GROUP_COMMIT_ID != 0 {
            reader.u64()?;
        }
        if gtid.flags & (f::PREPARED_XA | f::COMPLETED_XA) != 0 {
            let format_id = reader.u32()?;
            let lengths = [usize::from(reader.u8()?), usize::from(reader.u8()?)];
            gtid.xid = Some(Xid {
                format_id,
                gtrid: reader.bytes(lengths[0])?,
                bqual: reader.bytes(lengths[1])?,
            });
        }
        Ok(gtid)
    }

    /// Whether any of these flags is set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// What MariaDB's GTID_LIST has: of each domain and server the last transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GtidList<'a> {
    entries: &'a [u8],
}

impl<'a> GtidList<'a> {
    /// Four bytes: flags in the highest four bits, the number of entries in the others. Then domain, server
    /// and number of each (MariaDB, log_event.cc, `Gtid_list_log_event`).
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let count = (reader.u32()? & 0x0FFF_FFFF) as usize;
        let entries = reader.bytes(count.checked_mul(16).ok_or(Malformed)?)?;
        Ok(Self { entries })
    }

    /// Domain, server and sequence number of each.
    pub fn entries(&self) -> impl Iterator<Item = (u32, u32, u64)> + use<'a> {
        self.entries.chunks_exact(16).filter_map(|entry| {
            let mut reader = Reader::new(entry);
            let numbers = (reader.u32().ok()?, reader.u32().ok()?, reader.u64().ok()?);
            Some(numbers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(varint(&mut reader), Ok(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn sets_come_back(
            sets in prop::collection::vec(
                (any::<[u8; 16]>(), "[a-z_]{0,32}", prop::collection::vec((1..1000u64, 0..50u64), 0..4)),
                0..4,
            )
        ) {
            let mut encoder = SetEncoder::default();
            for (source, tag, intervals) in &sets {
                encoder.source(*source, tag.as_bytes(), intervals.iter().map(|(a, n)| (*a, a + n)));
            }
            let encoded = encoder.encode();
            let set = PreviousGtids::parse(&encoded).unwrap();
            let back: Vec<_> = set
                .sources()
                .map(|s| (s.source, s.tag.to_vec(), s.intervals().collect::<Vec<_>>()))
                .collect();
            let wanted: Vec<_> = sets
                .iter()
                .map(|(source, tag, intervals)| {
                    let intervals = intervals.iter().map(|(a, n)| (*a, a + n)).collect::<Vec<_>>();
                    (*source, tag.as_bytes().to_vec(), intervals)
                })
                .collect();
            prop_assert_eq!(back, wanted);
        }
    }

    /// The examples of libs/mysql/serialization/readme.md.
    #[test]
    fn varints_of_the_manual() {
        let unsigned = [0b1111_1011, 0b1111_1111, 0b0000_0111];
        assert_eq!(varint(&mut Reader::new(&unsigned)), Ok(65535));
        for (bytes, value) in [
            ([0b1111_0011, 0b1111_1111, 0b0000_1111], 65535),
            ([0b1110_1011, 0b1111_1111, 0b0000_1111], -65535),
            ([0b1111_1011, 0b1111_1111, 0b0000_1111], -65536),
        ] {
            assert_eq!(signed(varint(&mut Reader::new(&bytes)).unwrap()), value);
        }
    }
}
