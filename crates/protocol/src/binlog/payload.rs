//! What is compressed in events: MySQL's transactions (zstd), MariaDB's rows and statements (zlib). Never
//! inflates beyond the limit that is passed in, and never trusts a length that an event promises.

use std::io::Read;

use flate2::read::ZlibDecoder;

use super::Unreadable;
use crate::packet::{Malformed, Reader};

/// Bytes of an event that may be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed<'a> {
    Plain(&'a [u8]),
    /// With the length that they should inflate to.
    Zlib {
        plain: u32,
        data: &'a [u8],
    },
}

impl<'a> Packed<'a> {
    /// MariaDB's form: a byte with 0x80, the algorithm in the next three bits (0 zlib), the length's
    /// length in the lowest three; the length, highest byte first; the data (MariaDB, log_event.cc,
    /// `binlog_buf_compress`).
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(bytes);
        let head = reader.u8()?;
        if head & 0xF0 != 0x80 {
            return Err(Unreadable::NotUnderstood);
        }
        let len = usize::from(head & 0x07);
        if !(1..=4).contains(&len) {
            return Err(Unreadable::Malformed);
        }
        let length = reader.bytes(len)?.iter();
        Ok(Self::Zlib {
            plain: length.fold(0, |value, byte| value << 8 | u32::from(*byte)),
            data: reader.rest(),
        })
    }

    /// The plain bytes: borrowed, or inflated into `buf`, which is cleared first and grows to at most
    /// `limit`.
    pub fn plain<'b>(&self, buf: &'b mut Vec<u8>, limit: usize) -> Result<&'b [u8], Unreadable>
    where
        'a: 'b,
    {
        match *self {
            Self::Plain(bytes) => Ok(bytes),
            Self::Zlib { plain, data } => {
                let plain = plain as usize;
                if plain > limit {
                    return Err(Unreadable::TooLarge);
                }
                inflate(ZlibDecoder::new(data), buf, plain)?;
                if buf.len() != plain {
                    return Err(Unreadable::Malformed);
                }
                Ok(buf)
            }
        }
    }
}

/// Reads all of `source` into `buf`, if that is at most `limit` bytes.
fn inflate(source: impl Read, buf: &mut Vec<u8>, limit: usize) -> Result<(), Unreadable> {
    buf.clear();
    let read = source.take(limit as u64 + 1).read_to_end(buf);
    if buf.len() > limit {
        buf.clear();
        return Err(Unreadable::TooLarge);
    }
    read.map(drop).map_err(|_| Unreadable::Malformed)
}

/// How a transaction is compressed (MySQL, compression/base.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Zstd,
    None,
}

/// A compressed transaction: all its events but the GTID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    pub compression: Compression,
    pub data: &'a [u8],
}

impl<'a> Payload<'a> {
    /// Fields of number, length and value: 1 the payload's size, 2 the compression, 3 the size before it, 0
    /// the end; then the payload (MySQL, codecs/binary.cpp, `Transaction_payload::decode`).
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(body);
        let (mut size, mut compression) = (None, None);
        loop {
            let field = reader.lenenc_int()?;
            if field == 0 {
                break;
            }
            let value = reader.lenenc_bytes()?;
            let number = || Reader::new(value).lenenc_int();
            match field {
                1 => size = Some(number()?),
                2 => compression = Some(number()?),
                _ => {}
            }
        }
        let size = size.and_then(|size| usize::try_from(size).ok());
        Ok(Self {
            compression: match compression.ok_or(Malformed)? {
                0 => Compression::Zstd,
                255 => Compression::None,
                _ => return Err(Unreadable::NotUnderstood),
            },
            data: reader.bytes(size.ok_or(Malformed)?)?,
        })
    }

    /// The plain events, for [`events`](super::events): borrowed, or inflated into `buf`, which is cleared
    /// first and grows to at most `limit`.
    pub fn plain<'b>(&self, buf: &'b mut Vec<u8>, limit: usize) -> Result<&'b [u8], Unreadable>
    where
        'a: 'b,
    {
        if self.compression == Compression::None {
            return Ok(self.data);
        }
        let decoder = zstd::stream::read::Decoder::with_buffer(self.data);
        inflate(decoder.map_err(|_| Malformed)?, buf, limit)?;
        Ok(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(plain: &[u8]) -> Vec<u8> {
        let data = zstd::stream::encode_all(plain, 3).unwrap();
        let mut body = vec![2, 1, 0, 1, 3, 0xFC];
        body.extend_from_slice(&(data.len() as u16).to_le_bytes());
        body.push(0);
        body.extend_from_slice(&data);
        body
    }

    #[test]
    fn a_payload_inflates_up_to_the_limit() {
        let plain = vec![7; 100_000];
        let body = payload(&plain);
        let payload = Payload::parse(&body).unwrap();
        let mut buf = Vec::new();
        assert_eq!(payload.plain(&mut buf, 100_000), Ok(&plain[..]));
        assert_eq!(payload.plain(&mut buf, 99_999), Err(Unreadable::TooLarge));
    }

    #[test]
    fn a_payload_that_is_cut_is_malformed() {
        let body = payload(&[7; 1000]);
        for len in 0..body.len() {
            assert!(Payload::parse(&body[..len]).is_err());
        }
    }

    #[test]
    fn packed_bytes_inflate_to_what_they_promise() {
        let plain = vec![3; 70_000];
        let mut encoder =
            flate2::read::ZlibEncoder::new(&plain[..], flate2::Compression::default());
        let mut data = vec![0x83, 1, 0x11, 0x70];
        encoder.read_to_end(&mut data).unwrap();
        let mut buf = Vec::new();
        let packed = Packed::parse(&data).unwrap();
        assert_eq!(packed.plain(&mut buf, 70_000), Ok(&plain[..]));
        assert_eq!(packed.plain(&mut buf, 69_999), Err(Unreadable::TooLarge));
        data[3] += 1;
        let packed = Packed::parse(&data).unwrap();
        assert_eq!(packed.plain(&mut buf, 80_000), Err(Unreadable::Malformed));
        data[3] -= 2;
        let packed = Packed::parse(&data).unwrap();
        assert!(packed.plain(&mut buf, 80_000).is_err());
    }
}
