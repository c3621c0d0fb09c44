//! The compressed protocol over a stream: inflates what is read, deflates what is written.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use millrace_protocol::compress::{Algorithm, Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most compressed bytes kept unread, and most plain bytes gathered before they are compressed.
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
    /// Plain bytes to be compressed at the next flush.
    gathered: Vec<u8>,
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

    fn deflate(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        if std::mem::take(&mut self.answering) {
            self.encoder.set_seq(self.decoder.next_seq());
        }
        self.encoder.encode(&self.gathered, &mut self.outgoing);
        self.gathered.clear();
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
        let room = CHUNK.saturating_sub(this.gathered.len()).max(1);
        let length = buf.len().min(room);
        this.gathered.extend_from_slice(&buf[..length]);
        if this.gathered.len() >= CHUNK {
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
