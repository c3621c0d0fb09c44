//! Framing of the compressed protocol: seven-byte headers around zlib or zstd blocks
//! (MySQL manual, "Compression"). Sans I/O; bounds what a block may inflate to.

use std::fmt;
use std::io::Read;

use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};

use crate::packet::{HEADER, MAX_PAYLOAD, Malformed};

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Zlib,
    /// With the level, 1 to 22.
    Zstd(i32),
}

/// Payloads shorter than this go uncompressed (MIN_COMPRESS_LENGTH of both families).
pub const MIN_COMPRESS: usize = 50;

/// Bytes of a compressed frame's header: three of length on the wire, one of sequence
/// number, three of length before compression, which are zero for an uncompressed one.
pub const COMPRESSED_HEADER: usize = 7;

/// How much of the buffer for a frame in progress is kept for the next.
const KEPT: usize = 64 << 10;

/// Takes compressed frames in, gives the plain packet stream out.
pub struct Decoder {
    algorithm: Algorithm,
    /// The frame in progress, header included.
    pending: Vec<u8>,
    next_seq: u8,
    /// What has come of packets.
    packets: Packets,
}

/// Where in its packets a plain stream is.
#[derive(Debug, Default)]
struct Packets {
    /// Of the packet in progress, with the packets that it continues in: bytes that are to come.
    left: usize,
    /// Its header, as far as it has come.
    header: [u8; HEADER],
    have: usize,
    /// The packet has the greatest length: another follows that belongs to it.
    continues: bool,
}

impl Packets {
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            self.header[self.have] = bytes[0];
            self.have += 1;
            bytes = &bytes[1..];
            if self.have == HEADER {
                let [a, b, c, _] = self.header;
                self.left = u32::from_le_bytes([a, b, c, 0]) as usize;
                self.continues = self.left == MAX_PAYLOAD;
                self.have = 0;
            }
        }
    }

    /// Whether more is to come of a packet that has begun.
    fn is_within(&self) -> bool {
        self.left > 0 || self.have > 0 || self.continues
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("algorithm", &self.algorithm)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl Decoder {
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            pending: Vec::new(),
            next_seq: 0,
            packets: Packets::default(),
        }
    }

    /// Takes bytes from the front of `input` up to the end of at most one compressed
    /// frame, appends what it inflates to, and returns how many were taken. Call again
    /// with the rest until none is left; stopping in between bounds memory (one frame
    /// inflates to 16 MiB at most, and never to more than its header says).
    ///
    /// # Errors
    /// It cannot be inflated, or is another than the one that follows within a packet: servers cut off such a
    /// client, which would wait for an answer to what counts as the packet's rest.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let mut taken = self.fill(input, COMPRESSED_HEADER);
        let Some(&[a, b, c, seq, x, y, z]) = self.pending.first_chunk::<COMPRESSED_HEADER>() else {
            return Ok(taken);
        };
        let len = u32::from_le_bytes([a, b, c, 0]) as usize;
        let plain = u32::from_le_bytes([x, y, z, 0]) as usize;
        taken += self.fill(&input[taken..], COMPRESSED_HEADER + len);
        if self.packets.is_within() && seq != self.next_seq {
            return Err(Malformed);
        }
        if self.pending.len() == COMPRESSED_HEADER + len {
            self.next_seq = seq.wrapping_add(1);
            let block = &self.pending[COMPRESSED_HEADER..];
            let before = out.len();
            match plain {
                0 => out.extend_from_slice(block),
                plain => self.inflate(block, plain, out)?,
            }
            self.packets.push(&out[before..]);
            self.pending.clear();
            self.pending.shrink_to(KEPT);
        }
        Ok(taken)
    }

    /// Moves bytes of `input` into the pending frame until it holds `upto`.
    fn fill(&mut self, input: &[u8], upto: usize) -> usize {
        let wanted = upto.saturating_sub(self.pending.len()).min(input.len());
        self.pending.extend_from_slice(&input[..wanted]);
        wanted
    }

    fn inflate(&self, block: &[u8], plain: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        match self.algorithm {
            Algorithm::Zlib => inflate_from(ZlibDecoder::new(block), plain, out),
            Algorithm::Zstd(_) => {
                let decoder = zstd::stream::read::Decoder::with_buffer(block);
                inflate_from(decoder.map_err(|_| Malformed)?, plain, out)
            }
        }
    }

    /// Whether a frame has come in part.
    pub fn in_frame(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Sequence number that the next frame in either direction should carry.
    pub fn next_seq(&self) -> u8 {
        self.next_seq
    }
}

/// Appends exactly `plain` bytes from `source`, which must end there. Grows `out` by
/// what really comes, not by what a header promises.
fn inflate_from(source: impl Read, plain: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let before = out.len();
    let read = source.take(plain as u64 + 1).read_to_end(out);
    if read.is_ok() && out.len() - before == plain {
        return Ok(());
    }
    out.truncate(before);
    Err(Malformed)
}

/// Takes the plain packet stream in, gives compressed frames out.
#[derive(Debug)]
pub struct Encoder {
    algorithm: Algorithm,
    seq: u8,
}

impl Encoder {
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, seq: 0 }
    }

    /// Sets the number of the next frame: 0 for a new command, [`Decoder::next_seq`]
    /// for the answer to one.
    pub fn set_seq(&mut self, seq: u8) {
        self.seq = seq;
    }

    /// Appends `plain` in one compressed frame, or in as many as needed where it is more than 16 MiB. Some clients
    /// want each packet to lie in one frame, or its end in the next: give whole packets. A block goes
    /// uncompressed where it is short or does not get smaller.
    pub fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        for block in plain.chunks(MAX_PAYLOAD) {
            let start = out.len();
            out.extend_from_slice(&[0; COMPRESSED_HEADER]);
            let compressed = block.len() >= MIN_COMPRESS && self.deflate(block, out);
            if !compressed {
                out.truncate(start + COMPRESSED_HEADER);
                out.extend_from_slice(block);
            }
            let len = (out.len() - start - COMPRESSED_HEADER) as u32;
            let original = if compressed { block.len() as u32 } else { 0 };
            let [a, b, c, _] = len.to_le_bytes();
            let [x, y, z, _] = original.to_le_bytes();
            out[start..start + COMPRESSED_HEADER].copy_from_slice(&[a, b, c, self.seq, x, y, z]);
            self.seq = self.seq.wrapping_add(1);
        }
    }

    /// Appends the compressed block; false where it failed or gained nothing.
    fn deflate(&self, block: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let read = match self.algorithm {
            Algorithm::Zlib => ZlibEncoder::new(block, Compression::default()).read_to_end(out),
            Algorithm::Zstd(level) => zstd::stream::read::Encoder::with_buffer(block, level)
                .and_then(|mut encoder| encoder.read_to_end(out)),
        };
        read.is_ok() && out.len() - before < block.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Algorithm; 2] = [Algorithm::Zlib, Algorithm::Zstd(3)];

    fn encode(algorithm: Algorithm, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Encoder::new(algorithm).encode(plain, &mut out);
        out
    }

    fn decode(algorithm: Algorithm, wire: &[u8], piece: usize) -> Result<Vec<u8>, Malformed> {
        let mut decoder = Decoder::new(algorithm);
        let mut out = Vec::new();
        for mut piece in wire.chunks(piece) {
            while !piece.is_empty() {
                let taken = decoder.feed(piece, &mut out)?;
                piece = &piece[taken..];
            }
        }
        assert!(!decoder.in_frame());
        Ok(out)
    }

    #[test]
    fn what_goes_in_comes_out_in_any_pieces() {
        let mut noise = 12345u32;
        let plain: Vec<u8> = (0..200_000)
            .map(|at| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if at < 100_000 {
                    (noise >> 24) as u8
                } else {
                    b'x'
                }
            })
            .collect();
        for algorithm in BOTH {
            for len in [0, 1, 49, 50, 51, 4096, 65_536, plain.len()] {
                let wire = encode(algorithm, &plain[..len]);
                for piece in [1, 6, 7, 8, 1000, usize::MAX] {
                    assert!(decode(algorithm, &wire, piece).as_deref() == Ok(&plain[..len]));
                }
            }
        }
    }

    #[test]
    fn short_payloads_go_as_they_are() {
        let wire = encode(Algorithm::Zlib, b"\x01\0\0\0\x0e");
        assert_eq!(wire, b"\x05\0\0\0\0\0\0\x01\0\0\0\x0e");
    }

    #[test]
    fn a_block_may_not_inflate_to_more_or_less_than_it_says() {
        for algorithm in BOTH {
            let good = encode(algorithm, &[b'x'; 5000]);
            for lie in [1u16, 4999, 5001, 60000] {
                let mut wire = good.clone();
                wire[4..6].copy_from_slice(&lie.to_le_bytes());
                assert_eq!(decode(algorithm, &wire, 4096), Err(Malformed));
            }
        }
    }

    /// One frame as it is, without compression.
    fn frame(seq: u8, plain: &[u8]) -> Vec<u8> {
        let mut frame = vec![plain.len() as u8, 0, 0, seq, 0, 0, 0];
        frame.extend_from_slice(plain);
        frame
    }

    #[test]
    fn within_a_packet_frames_are_in_order() {
        // A packet of ten bytes, in two frames; then another command.
        let begun = [10, 0, 0, 0, 3, b'S', b'E'];
        for (seq, taken) in [(4, true), (0, false), (3, false), (5, false)] {
            let mut decoder = Decoder::new(Algorithm::Zlib);
            let mut out = Vec::new();
            decoder.feed(&frame(3, &begun), &mut out).unwrap();
            let rest = decoder.feed(&frame(seq, b"LECT  1"), &mut out);
            assert_eq!(rest.is_ok(), taken, "{seq}");
            if taken {
                let next = decoder.feed(&frame(0, b"\x01\0\0\0\x0e"), &mut out);
                assert!(next.is_ok());
            }
        }
        // The header alone is a beginning, too.
        let mut decoder = Decoder::new(Algorithm::Zlib);
        decoder
            .feed(&frame(0, &begun[..2]), &mut Vec::new())
            .unwrap();
        assert!(
            decoder
                .feed(&frame(0, &begun[2..]), &mut Vec::new())
                .is_err()
        );
    }

    #[test]
    fn the_longest_packet_goes_on_in_the_next() {
        let mut packets = Packets::default();
        let mut plain = vec![0xff, 0xff, 0xff, 0];
        plain.resize(HEADER + MAX_PAYLOAD, b'x');
        packets.push(&plain);
        assert!(packets.is_within());
        packets.push(&[0, 0, 0, 1]);
        assert!(!packets.is_within());
    }

    #[test]
    fn numbers_follow_the_command() {
        let mut encoder = Encoder::new(Algorithm::Zlib);
        let mut wire = Vec::new();
        encoder.encode(b"select", &mut wire);
        let mut decoder = Decoder::new(Algorithm::Zlib);
        decoder.feed(&wire, &mut Vec::new()).unwrap();
        assert_eq!(decoder.next_seq(), 1);
        encoder.set_seq(decoder.next_seq());
        wire.clear();
        encoder.encode(b"answer", &mut wire);
        assert_eq!(wire[3], 1);
    }
}
