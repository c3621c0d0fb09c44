//! The compressed protocol over a stream: inflates what is read, deflates what is written.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use millrace_protocol::compress::{Algorithm, Decoder, Encoder};
use millrace_protocol::packet;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most compressed bytes kept unread, and plain bytes of whole packets that are compressed without waiting for more.
const CHUNK: usize = 16 * 1024;

/// Reads into the spare room of a buffer.
pub trait ReadInto {
    /// As [`Stream::poll_read_into`](crate::stream::Stream::poll_read_into).
    fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
        make_room: impl Fn(&mut Vec<u8>),
    ) -> Poll<io::Result<usize>>;
}

/// A stream whose bytes are compressed on the wire.
pub struct Compressed<S> {
    /// The stream underneath.
    pub inner: S,
    decoder: Decoder,
    encoder: Encoder,
    /// Compressed bytes read.
    packed: Vec<u8>,
    /// Inflated bytes not yet read; the first `taken` are gone.
    plain: Vec<u8>,
    taken: usize,
    /// Plain bytes to be compressed: at the next flush those that are whole packets, the rest with its packet's end.
    /// Clients count on a packet in one frame (the pure form of MySQL's Connector/Python does), as servers send it.
    gathered: Vec<u8>,
    /// Where the packet begins that is not whole yet.
    whole: usize,
    /// Compressed bytes to be sent; the first `sent` are gone.
    outgoing: Vec<u8>,
    sent: usize,
    /// Bytes have been read since the last write: the next frame answers them.
    answering: bool,
}

impl<S: std::fmt::Debug> std::fmt::Debug for Compressed<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressed")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S> Compressed<S> {
    /// Wraps a stream after the login. `ahead` are bytes of it that were read already.
    pub fn new(inner: S, algorithm: Algorithm, ahead: Vec<u8>) -> Self {
        Compressed {
            inner,
            decoder: Decoder::new(algorithm),
            encoder: Encoder::new(algorithm),
            packed: ahead,
            plain: Vec::new(),
            taken: 0,
            gathered: Vec::new(),
            whole: 0,
            outgoing: Vec::new(),
            sent: 0,
            answering: false,
        }
    }

    /// Whether it has read bytes that nobody has taken from it yet.
    pub(crate) fn holds_plaintext(&self) -> bool {
        self.taken < self.plain.len() || !self.packed.is_empty()
    }

    fn inflate(&mut self) -> io::Result<()> {
        let used = self
            .decoder
            .feed(&self.packed, &mut self.plain)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "bad compressed packet"))?;
        self.packed.drain(..used);
        Ok(())
    }

    /// Finds the end of the last whole packet among what is gathered.
    fn find_whole(&mut self) {
        while let Some(header) = self.gathered[self.whole..].first_chunk::<{ packet::HEADER }>() {
            let [a, b, c, _] = *header;
            let end = self.whole + packet::HEADER + u32::from_le_bytes([a, b, c, 0]) as usize;
            if end > self.gathered.len() {
                return;
            }
            self.whole = end;
        }
    }

    /// Compresses the packets that are whole.
    fn deflate(&mut self) {
        if self.whole == 0 {
            return;
        }
        if std::mem::take(&mut self.answering) {
            self.encoder.set_seq(self.decoder.next_seq());
        }
        let packets = &self.gathered[..self.whole];
        self.encoder.encode(packets, &mut self.outgoing);
        self.gathered.drain(..self.whole);
        self.gathered.shrink_to(CHUNK * 2);
        self.whole = 0;
    }
}

impl<S: AsyncWrite + Unpin> Compressed<S> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            let written =
                ready!(Pin::new(&mut self.inner).poll_write(cx, &self.outgoing[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.outgoing = Vec::new();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: ReadInto + Unpin> AsyncRead for Compressed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let left = &this.plain[this.taken..];
            if !left.is_empty() {
                let length = left.len().min(buf.remaining());
                buf.put_slice(&left[..length]);
                this.taken += length;
                if this.taken == this.plain.len() {
                    this.plain = Vec::new();
                    this.taken = 0;
                }
                this.answering = true;
                return Poll::Ready(Ok(()));
            }
            let before = this.packed.len();
            if before > 0 {
                this.inflate()?;
                if !this.plain.is_empty() || this.packed.len() < before {
                    continue;
                }
            }
            let room = |packed: &mut Vec<u8>| packed.reserve(CHUNK);
            if ready!(this.inner.poll_read_into(cx, &mut this.packed, room))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Compressed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        let length = buf.len().min(CHUNK);
        this.gathered.extend_from_slice(&buf[..length]);
        this.find_whole();
        if this.whole >= CHUNK {
            this.deflate();
        }
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.deflate();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.deflate();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// What lies in each compressed frame.
    fn frames(wire: &[u8]) -> Vec<Vec<u8>> {
        let mut decoder = Decoder::new(Algorithm::Zlib);
        let mut rest = wire;
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let mut plain = Vec::new();
            let taken = decoder.feed(rest, &mut plain).unwrap();
            rest = &rest[taken..];
            frames.push(plain);
        }
        frames
    }

    fn packet(length: usize, seq: u8) -> Vec<u8> {
        let [a, b, c, _] = (length as u32).to_le_bytes();
        let mut packet = vec![a, b, c, seq];
        packet.resize(packet::HEADER + length, seq);
        packet
    }

    /// How many packets there are; panics where the last is cut.
    fn count(mut plain: &[u8]) -> usize {
        let mut packets = 0;
        while let Some(header) = plain.first_chunk::<{ packet::HEADER }>() {
            let [a, b, c, _] = *header;
            let length = u32::from_le_bytes([a, b, c, 0]) as usize;
            plain = &plain[packet::HEADER + length..];
            packets += 1;
        }
        assert!(plain.is_empty());
        packets
    }

    #[tokio::test]
    async fn a_packet_lies_in_one_frame_however_it_comes() {
        for piece in [1_000, 16_384, 40_000, 400_000] {
            let mut stream = Compressed::new(Vec::new(), Algorithm::Zlib, Vec::new());
            let mut sent = Vec::new();
            for (seq, length) in [0, 10, 30_000, 5, 16_380, 100_000, 7]
                .into_iter()
                .enumerate()
            {
                sent.extend_from_slice(&packet(length, seq as u8));
            }
            for piece in sent.chunks(piece) {
                stream.write_all(piece).await.unwrap();
                stream.flush().await.unwrap();
            }
            assert!(stream.gathered.is_empty() && stream.gathered.capacity() <= 2 * CHUNK);
            let frames = frames(&stream.inner);
            let packets: usize = frames.iter().map(|frame| count(frame)).sum();
            assert_eq!(packets, 7, "in pieces of {piece}");
            assert_eq!(frames.concat(), sent);
        }
    }

    #[tokio::test]
    async fn the_longest_packet_takes_two_frames() {
        let mut stream = Compressed::new(Vec::new(), Algorithm::Zlib, Vec::new());
        let mut sent = packet(0xFF_FFFF, 1);
        sent.extend_from_slice(&packet(0, 2));
        stream.write_all(&sent).await.unwrap();
        stream.flush().await.unwrap();
        let frames = frames(&stream.inner);
        assert_eq!(
            frames.iter().map(Vec::len).collect::<Vec<_>>(),
            [0xFF_FFFF, 8]
        );
        assert_eq!(frames.concat(), sent);
    }
}
