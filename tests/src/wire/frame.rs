//! Packets on a byte stream, plain or compressed. It owns the buffers and the sequence numbers and
//! knows nothing of what packets mean.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest body that one physical packet carries; a longer one is split.
const CHUNK_MAX: usize = 0xff_ffff;

/// Bytes kept plain inside a compressed packet below this length, as both servers do.
const COMPRESS_MIN: usize = 50;

/// Any bidirectional stream.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Compression method of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Zlib,
    Zstd,
}

/// One logical packet: the bodies of its physical ones joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Sequence number of the first physical packet.
    pub seq: u8,
    /// How many physical packets it came in.
    pub chunks: usize,
    pub body: Vec<u8>,
}

/// A framed stream.
pub struct Frames {
    io: Box<dyn Io>,
    plain: Vec<u8>,
    taken: usize,
    packed: Vec<u8>,
    compression: Option<Compression>,
    compressed_seq: u8,
    /// The sequence number of the next packet written.
    pub seq: u8,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames")
            .field("buffered", &(self.plain.len() - self.taken))
            .field("compression", &self.compression)
            .field("seq", &self.seq)
            .finish()
    }
}

impl Frames {
    pub(crate) fn new(io: Box<dyn Io>) -> Self {
        Self {
            io,
            plain: Vec::new(),
            taken: 0,
            packed: Vec::new(),
            compression: None,
            compressed_seq: 0,
            seq: 0,
        }
    }

    /// Gives the stream away, for an upgrade to TLS. Nothing may be buffered.
    pub(crate) fn into_io(self) -> Box<dyn Io> {
        debug_assert_eq!(
            self.plain.len(),
            self.taken,
            "bytes read before the upgrade"
        );
        self.io
    }

    pub(crate) async fn shut(&mut self) -> io::Result<()> {
        self.io.shutdown().await
    }

    pub(crate) fn start_compression(&mut self, compression: Compression) {
        self.compression = Some(compression);
    }

    /// Both sequences start over with each command.
    pub(crate) fn start_command(&mut self) {
        self.seq = 0;
        self.compressed_seq = 0;
    }

    /// How many bytes have been received and not yet read as packets.
    pub fn buffered(&self) -> usize {
        self.plain.len() - self.taken + self.packed.len()
    }

    async fn fill(&mut self) -> io::Result<()> {
        if self.taken == self.plain.len() {
            self.plain.clear();
            self.taken = 0;
        } else if self.taken > 1 << 20 {
            self.plain.drain(..self.taken);
            self.taken = 0;
        }
        let target = if self.compression.is_some() {
            &mut self.packed
        } else {
            &mut self.plain
        };
        target.reserve(16 * 1024);
        if self.io.read_buf(target).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.unpack()
    }

    /// Moves every complete compressed packet's content to the plain buffer.
    fn unpack(&mut self) -> io::Result<()> {
        let Some(compression) = self.compression else {
            return Ok(());
        };
        loop {
            let Some(header) = self.packed.first_chunk::<7>() else {
                return Ok(());
            };
            let len =
                usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
            let full =
                usize::from(header[4]) | usize::from(header[5]) << 8 | usize::from(header[6]) << 16;
            self.compressed_seq = header[3].wrapping_add(1);
            let Some(body) = self.packed.get(7..7 + len) else {
                return Ok(());
            };
            if full == 0 {
                self.plain.extend_from_slice(body);
            } else {
                let before = self.plain.len();
                match compression {
                    Compression::Zlib => {
                        flate2::read::ZlibDecoder::new(body).read_to_end(&mut self.plain)?;
                    }
                    Compression::Zstd => {
                        zstd::stream::copy_decode(body, &mut self.plain)?;
                    }
                }
                if self.plain.len() - before != full {
                    return Err(io::Error::other("compressed packet of the wrong length"));
                }
            }
            self.packed.drain(..7 + len);
        }
    }

    async fn need(&mut self, n: usize) -> io::Result<()> {
        while self.plain.len() - self.taken < n {
            self.fill().await?;
        }
        Ok(())
    }

    /// Reads one logical packet. Safe to drop and call again: bytes stay in the buffer until a
    /// physical packet is complete, except between the parts of a packet over 16 MiB.
    pub async fn read(&mut self) -> io::Result<Packet> {
        let mut packet = Packet {
            seq: 0,
            chunks: 0,
            body: Vec::new(),
        };
        loop {
            self.need(4).await?;
            let h = &self.plain[self.taken..self.taken + 4];
            let len = usize::from(h[0]) | usize::from(h[1]) << 8 | usize::from(h[2]) << 16;
            let seq = h[3];
            self.need(4 + len).await?;
            let start = self.taken + 4;
            packet
                .body
                .extend_from_slice(&self.plain[start..start + len]);
            self.taken = start + len;
            if packet.chunks == 0 {
                packet.seq = seq;
            }
            packet.chunks += 1;
            self.seq = seq.wrapping_add(1);
            if len < CHUNK_MAX {
                return Ok(packet);
            }
        }
    }

    /// Frames a body, split where needed, and appends it to `out`.
    pub fn frame(&mut self, body: &[u8], out: &mut Vec<u8>) {
        let mut rest = body;
        loop {
            let (head, tail) = rest.split_at(rest.len().min(CHUNK_MAX));
            out.extend_from_slice(&(head.len() as u32).to_le_bytes()[..3]);
            out.push(self.seq);
            self.seq = self.seq.wrapping_add(1);
            out.extend_from_slice(head);
            rest = tail;
            if head.len() < CHUNK_MAX {
                return;
            }
        }
    }

    /// Writes one logical packet.
    pub async fn write(&mut self, body: &[u8]) -> io::Result<()> {
        let mut out = Vec::with_capacity(body.len() + 4);
        self.frame(body, &mut out);
        self.write_framed(&out).await
    }

    /// Writes bytes that are framed already.
    pub async fn write_framed(&mut self, framed: &[u8]) -> io::Result<()> {
        let Some(compression) = self.compression else {
            self.io.write_all(framed).await?;
            return self.io.flush().await;
        };
        for piece in framed.chunks(CHUNK_MAX) {
            let packed = pack(compression, piece)?;
            let (body, full) = match &packed {
                Some(packed) => (packed.as_slice(), piece.len()),
                None => (piece, 0),
            };
            let mut header = Vec::with_capacity(7);
            header.extend_from_slice(&(body.len() as u32).to_le_bytes()[..3]);
            header.push(self.compressed_seq);
            header.extend_from_slice(&(full as u32).to_le_bytes()[..3]);
            self.compressed_seq = self.compressed_seq.wrapping_add(1);
            self.io.write_all(&header).await?;
            self.io.write_all(body).await?;
        }
        self.io.flush().await
    }

    /// Writes bytes as they are, below compression: for bad input.
    pub async fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes).await?;
        self.io.flush().await
    }
}

/// `None` where the piece is sent as it is.
fn pack(compression: Compression, piece: &[u8]) -> io::Result<Option<Vec<u8>>> {
    if piece.len() < COMPRESS_MIN {
        return Ok(None);
    }
    let packed = match compression {
        Compression::Zlib => {
            let mut encoder =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(piece)?;
            encoder.finish()?
        }
        Compression::Zstd => zstd::stream::encode_all(piece, 3)?,
    };
    Ok((packed.len() < piece.len()).then_some(packed))
}
