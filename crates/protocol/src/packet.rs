//! Frames and payload cursors: owns the four-byte header, the splitting of large
//! packets and the integer and string encodings. Knows nothing of what payloads mean.

use std::borrow::Cow;
use std::fmt;

/// Most payload bytes that one frame carries. A frame of exactly this length is
/// followed by another one (MySQL manual, "Sending more than 16 MB").
pub const MAX_PAYLOAD: usize = 0xFF_FFFF;

/// Bytes of a frame's header: three of length, one of sequence number.
pub const HEADER: usize = 4;

/// A payload that ends too early or contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed packet")
    }
}

impl std::error::Error for Malformed {}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Payload bytes of this frame, at most [`MAX_PAYLOAD`].
    pub len: u32,
    /// Sequence number, which wraps from 255 to 0.
    pub seq: u8,
}

/// The header at the start of `buf`, or `None` with fewer than four bytes.
#[inline]
pub fn header(buf: &[u8]) -> Option<Header> {
    let word = u32::from_le_bytes(*buf.first_chunk()?);
    Some(Header {
        len: word & 0xFF_FFFF,
        seq: (word >> 24) as u8,
    })
}

/// Length in bytes, headers included, of the whole logical packet at the start of
/// `buf` (joined over its continuation frames), or `None` while it is incomplete.
#[inline]
pub fn whole(buf: &[u8]) -> Option<usize> {
    let mut end = 0;
    loop {
        let len = header(buf.get(end..)?)?.len as usize;
        end += HEADER + len;
        if end > buf.len() {
            return None;
        }
        if len < MAX_PAYLOAD {
            return Some(end);
        }
    }
}

/// Bytes of payload of the logical packet at the start of `buf`, as far as its frames have told their lengths yet.
#[inline]
pub fn announced(buf: &[u8]) -> usize {
    let (mut at, mut payload) = (0, 0);
    while let Some(header) = buf.get(at..).and_then(header) {
        let len = header.len as usize;
        payload += len;
        at += HEADER + len;
        if len < MAX_PAYLOAD {
            break;
        }
    }
    payload
}

/// Numbers the packets in a buffer from 0 on.
pub fn count_anew(buf: &mut [u8]) {
    let (mut at, mut seq) = (0, 0_u8);
    while let Some(header) = buf.get(at..).and_then(header) {
        buf[at + 3] = seq;
        seq = seq.wrapping_add(1);
        at += HEADER + header.len as usize;
    }
}

/// The payload of the whole logical packet at the start of `buf`: borrowed where it is
/// one frame, else joined. Bytes that are missing are left out.
pub fn payload(buf: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = header(buf) else {
        return Cow::Borrowed(&[]);
    };
    let len = first.len as usize;
    if len < MAX_PAYLOAD {
        let end = buf.len().min(HEADER + len);
        return Cow::Borrowed(&buf[HEADER..end]);
    }
    let mut joined = Vec::with_capacity(buf.len());
    let mut rest = buf;
    while let Some(Header { len, .. }) = header(rest) {
        let len = len as usize;
        let end = rest.len().min(HEADER + len);
        joined.extend_from_slice(&rest[HEADER..end]);
        rest = &rest[end..];
        if len < MAX_PAYLOAD {
            break;
        }
    }
    Cow::Owned(joined)
}

/// Appends `payload` in frames, the first numbered `seq`, and returns the number that
/// comes next. A payload that fills its last frame gets an empty one after it.
pub fn frame(out: &mut Vec<u8>, seq: u8, payload: &[u8]) -> u8 {
    let mut seq = seq;
    let mut rest = payload;
    loop {
        let (now, later) = rest.split_at(rest.len().min(MAX_PAYLOAD));
        put_header(out, now.len(), seq);
        out.extend_from_slice(now);
        seq = seq.wrapping_add(1);
        if now.len() < MAX_PAYLOAD {
            return seq;
        }
        rest = later;
    }
}

fn put_header(out: &mut Vec<u8>, len: usize, seq: u8) {
    let word = (len as u32 & 0xFF_FFFF) | (u32::from(seq) << 24);
    out.extend_from_slice(&word.to_le_bytes());
}

/// Bytes that [`Writer::lenenc_int`] uses for `value`.
pub fn lenenc_len(value: u64) -> usize {
    match value {
        0..=250 => 1,
        251..=0xFFFF => 3,
        0x1_0000..=0xFF_FFFF => 4,
        _ => 9,
    }
}

/// Appends a length-encoded integer (MySQL manual, "Protocol::LengthEncodedInteger").
pub fn put_lenenc_int(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_le_bytes();
    match lenenc_len(value) {
        1 => out.push(bytes[0]),
        3 => {
            out.push(0xFC);
            out.extend_from_slice(&bytes[..2]);
        }
        4 => {
            out.push(0xFD);
            out.extend_from_slice(&bytes[..3]);
        }
        _ => {
            out.push(0xFE);
            out.extend_from_slice(&bytes);
        }
    }
}

/// Appends a length-encoded string.
pub fn put_lenenc_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_lenenc_int(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Builds one packet in place at the end of a buffer. Nothing is valid until
/// [`finish`](Writer::finish) has patched the header.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    seq: u8,
}

impl<'a> Writer<'a> {
    /// Starts a packet at the end of `out`, numbered `seq`.
    pub fn new(out: &'a mut Vec<u8>, seq: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        Self { out, start, seq }
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.out.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// The low three bytes of `value`.
    pub fn u24(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes()[..3])
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn lenenc_int(&mut self, value: u64) -> &mut Self {
        put_lenenc_int(self.out, value);
        self
    }

    pub fn lenenc_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        put_lenenc_bytes(self.out, bytes);
        self
    }

    /// A string ended by a zero byte. The string ends early at a zero of its own, so
    /// that it cannot shift the fields after it.
    pub fn nul_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        self.bytes(&bytes[..end]).u8(0)
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// Payload bytes written so far.
    pub fn len(&self) -> usize {
        self.out.len() - self.start - HEADER
    }

    /// Whether no payload has been written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Patches the header, splitting a payload that is too large for one frame, and
    /// returns the next sequence number.
    pub fn finish(self) -> u8 {
        let len = self.len();
        if len >= MAX_PAYLOAD {
            let payload = self.out.split_off(self.start + HEADER);
            self.out.truncate(self.start);
            return frame(self.out, self.seq, &payload);
        }
        let word = len as u32 | (u32::from(self.seq) << 24);
        self.out[self.start..self.start + HEADER].copy_from_slice(&word.to_le_bytes());
        self.seq.wrapping_add(1)
    }
}

/// Cursor over a payload. Every method fails with [`Malformed`] where the payload ends
/// too early, and then the cursor's position is unspecified.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    #[inline]
    pub fn u24(&mut self) -> Result<u32, Malformed> {
        let [a, b, c] = self.array()?;
        Ok(u32::from_le_bytes([a, b, c, 0]))
    }

    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A length-encoded integer. 0xFB (the NULL of a text row) and 0xFF are malformed.
    #[inline]
    pub fn lenenc_int(&mut self) -> Result<u64, Malformed> {
        match self.u8()? {
            small @ 0..=0xFA => Ok(u64::from(small)),
            0xFC => Ok(u64::from(self.u16()?)),
            0xFD => Ok(u64::from(self.u24()?)),
            0xFE => self.u64(),
            _ => Err(Malformed),
        }
    }

    #[inline]
    pub fn lenenc_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.lenenc_int()?;
        self.bytes(usize::try_from(len).map_err(|_| Malformed)?)
    }

    /// A string ended by a zero byte, which is consumed but not part of the result.
    pub fn nul_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&b| b == 0).ok_or(Malformed)?;
        let (head, tail) = self.rest.split_at(end);
        self.rest = &tail[1..];
        Ok(head)
    }

    /// Like [`nul_bytes`](Self::nul_bytes), but the end of the payload ends it too.
    pub fn nul_bytes_or_rest(&mut self) -> &'a [u8] {
        self.nul_bytes().unwrap_or_else(|_| self.rest())
    }

    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(head)
    }

    /// Everything that is left; the cursor is empty afterwards.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Everything that is left, not consumed.
    pub fn peek(&self) -> &'a [u8] {
        self.rest
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_announces_what_its_frames_have_told() {
        let frame = |len: usize, seq: u8| {
            let mut frame = u32::try_from(len).unwrap().to_le_bytes().to_vec();
            frame[3] = seq;
            frame.resize(HEADER + len, 0);
            frame
        };
        assert_eq!(announced(b""), 0);
        assert_eq!(announced(&frame(5, 0)[..3]), 0);
        assert_eq!(announced(&frame(5, 0)[..6]), 5);
        let two = [frame(5, 0), frame(7, 0)].concat();
        assert_eq!(announced(&two), 5, "the next packet is another");
        let long = [frame(MAX_PAYLOAD, 0), frame(9, 1)].concat();
        assert_eq!(announced(&long[..100]), MAX_PAYLOAD);
        assert_eq!(announced(&long), MAX_PAYLOAD + 9);
    }

    #[test]
    fn a_full_frame_is_followed_by_another() {
        for len in [
            0,
            1,
            MAX_PAYLOAD - 1,
            MAX_PAYLOAD,
            MAX_PAYLOAD + 1,
            2 * MAX_PAYLOAD,
        ] {
            let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut out = Vec::new();
            let next = frame(&mut out, 254, &body);
            let frames = len / MAX_PAYLOAD + 1;
            assert_eq!(next, 254u8.wrapping_add(frames as u8));
            assert_eq!(out.len(), len + frames * HEADER);
            assert_eq!(whole(&out), Some(out.len()));
            assert_eq!(whole(&out[..out.len() - 1]), None);
            assert_eq!(payload(&out), body);

            let mut built = Vec::new();
            let mut writer = Writer::new(&mut built, 254);
            writer.bytes(&body);
            assert_eq!(writer.finish(), next);
            assert!(built == out);
        }
    }

    #[test]
    fn only_the_first_packet_counts() {
        let mut out = Vec::new();
        frame(&mut out, 0, b"abc");
        frame(&mut out, 1, b"defg");
        assert_eq!(whole(&out), Some(7));
        assert_eq!(payload(&out).as_ref(), b"abc");
        assert_eq!(header(&out[7..]), Some(Header { len: 4, seq: 1 }));
    }

    #[test]
    fn integers_come_back() {
        for value in [
            0,
            250,
            251,
            255,
            0xFFFF,
            0x1_0000,
            0xFF_FFFF,
            0x100_0000,
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put_lenenc_int(&mut out, value);
            assert_eq!(out.len(), lenenc_len(value));
            let mut reader = Reader::new(&out);
            assert_eq!(reader.lenenc_int(), Ok(value));
            assert!(reader.is_empty());
            for cut in 0..out.len() {
                assert_eq!(Reader::new(&out[..cut]).lenenc_int(), Err(Malformed));
            }
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_malformed() {
        assert_eq!(Reader::new(&[5, 1, 2]).lenenc_bytes(), Err(Malformed));
        let huge = [0xFE, 255, 255, 255, 255, 255, 255, 255, 255];
        assert_eq!(Reader::new(&huge).lenenc_bytes(), Err(Malformed));
        assert_eq!(Reader::new(b"abc").nul_bytes(), Err(Malformed));
        assert_eq!(Reader::new(b"abc").nul_bytes_or_rest(), b"abc");
    }

    #[test]
    fn a_zero_in_a_name_cannot_shift_the_next_field() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, 0);
        writer.nul_bytes(b"ro\0ot").nul_bytes(b"db");
        writer.finish();
        assert_eq!(payload(&out).as_ref(), b"ro\0db\0");
    }
}
