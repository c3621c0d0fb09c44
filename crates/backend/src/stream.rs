//! A byte stream to a client or a server: TCP or Unix socket, plain or TLS, with or without
//! protocol compression. Knows no packet beyond compression's frames.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, Shutdown};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

use crate::compressed::{Compressed, ReadInto};

/// The socket underneath. A clone is the same socket: for somebody who only looks whether the peer is
/// there.
#[derive(Debug, Clone)]
pub enum Plain {
    /// TCP, v4 or v6.
    Tcp(Arc<TcpStream>),
    /// A Unix socket.
    Unix(Arc<UnixStream>),
}

impl From<TcpStream> for Plain {
    fn from(stream: TcpStream) -> Self {
        Plain::Tcp(Arc::new(stream))
    }
}

impl From<UnixStream> for Plain {
    fn from(stream: UnixStream) -> Self {
        Plain::Unix(Arc::new(stream))
    }
}

/// A stream as the session and the pools use it.
#[derive(Debug)]
pub enum Stream {
    /// The bare socket.
    Plain(Plain),
    /// TLS over the socket.
    Tls(Box<TlsStream<Plain>>),
    /// Compressed protocol over either.
    Compressed(Box<Compressed<Stream>>),
    /// Nothing; what is left behind while a stream is being wrapped.
    Gone,
}

impl Plain {
    /// Writes what the socket takes at once; 0 where it takes nothing now.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.try_io(Interest::WRITABLE, |socket| {
            net::send(socket, bytes, SendFlags::NOSIGNAL)
        });
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }

    /// [`Stream::poll_read_into`]. The system call is made here: on its way through the C library and
    /// tokio's readers it costs three times as much.
    fn poll_read_into(
        &self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
        make_room: impl Fn(&mut Vec<u8>),
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            make_room(buf);
            let room = buf.capacity() - buf.len();
            let read = self.try_io(Interest::READABLE, |socket| {
                let (read, _) = net::recv(socket, spare_capacity(buf), RecvFlags::empty())?;
                Ok(read)
            });
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(read) if 0 < read && read < room => {
                    self.is_emptied();
                    return Poll::Ready(Ok(read));
                }
                read => return Poll::Ready(read),
            }
        }
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Plain::Tcp(stream) => stream.poll_read_ready(cx),
            Plain::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// The socket is empty now. With that said, no call is needed to find it out.
    fn is_emptied(&self) {
        let _ = self.try_io(Interest::READABLE, |_| Err::<(), _>(Errno::WOULDBLOCK));
    }

    /// Whether the peer is gone, or is given up, as far as the socket has already said; never waits.
    ///
    /// A Unix socket tells a peer that has closed it from one that only sends no more and waits for its
    /// answer. Over TCP both are a FIN, and count as gone: hardly a client does the latter.
    pub fn peer_closed(&self, cx: &mut Context<'_>) -> bool {
        let ready = match self {
            Plain::Tcp(stream) => pin!(stream.ready(Interest::READABLE)).poll(cx),
            Plain::Unix(stream) => {
                pin!(stream.ready(Interest::READABLE | Interest::WRITABLE)).poll(cx)
            }
        };
        match (ready, self) {
            (Poll::Ready(Ok(ready)), Plain::Tcp(_)) => ready.is_read_closed(),
            (Poll::Ready(Ok(ready)), Plain::Unix(_)) => ready.is_write_closed(),
            (Poll::Ready(Err(_)), _) => true,
            (Poll::Pending, _) => false,
        }
    }

    /// Runs a system call where the socket is ready for it as far as is known; where it was not,
    /// that is remembered until the system says otherwise.
    fn try_io<R>(
        &self,
        interest: Interest,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>,
    ) -> io::Result<R> {
        match self {
            Plain::Tcp(stream) => stream.try_io(interest, || Ok(call(stream.as_fd())?)),
            Plain::Unix(stream) => stream.try_io(interest, || Ok(call(stream.as_fd())?)),
        }
    }
}

impl AsyncRead for Plain {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            let most = room.len();
            let read = self.try_io(Interest::READABLE, |socket| {
                let (read, _) = net::recv(socket, &mut *room, RecvFlags::empty())?;
                Ok(read)
            });
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(read) => {
                    if 0 < read && read < most {
                        self.is_emptied();
                    }
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Plain {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match &*self {
                Plain::Tcp(stream) => ready!(stream.poll_write_ready(cx))?,
                Plain::Unix(stream) => ready!(stream.poll_write_ready(cx))?,
            }
            let written = self.try_io(Interest::WRITABLE, |socket| {
                net::send(socket, buf, SendFlags::NOSIGNAL)
            });
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = match &*self {
            Plain::Tcp(stream) => net::shutdown(stream, Shutdown::Write),
            Plain::Unix(stream) => net::shutdown(stream, Shutdown::Write),
        };
        Poll::Ready(Ok(done?))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
            Stream::Compressed(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
            Stream::Gone => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
            Stream::Compressed(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
            Stream::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            Stream::Compressed(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            Stream::Gone => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            Stream::Compressed(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            Stream::Gone => Poll::Ready(Ok(())),
        }
    }
}

impl ReadInto for Stream {
    fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
        make_room: impl Fn(&mut Vec<u8>),
    ) -> Poll<io::Result<usize>> {
        Stream::poll_read_into(self, cx, buf, make_room)
    }
}

impl Stream {
    /// Reads what there is into `buf`'s spare room. `make_room` sees to it that there is some: it is
    /// called before a read; on a bare socket, only where there may be something to read. `Ok(0)` is the peer's end of
    /// stream.
    pub fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
        make_room: impl Fn(&mut Vec<u8>),
    ) -> Poll<io::Result<usize>> {
        if let Stream::Plain(plain) = self {
            return plain.poll_read_into(cx, buf, make_room);
        }
        make_room(buf);
        // The future of `read_buf` holds nothing between polls, so it can be made anew each time.
        pin!(self.read_buf(buf)).poll(cx)
    }

    /// Writes what a bare socket takes at once; 0 where there is a layer in between.
    ///
    /// # Errors
    /// When the connection is broken.
    #[inline]
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(plain) => plain.try_write(bytes),
            _ => Ok(0),
        }
    }

    /// Writes all of `bytes` and flushes what a layer in between holds back.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Stream::Plain(plain) = self else {
            self.write_all(bytes).await?;
            return self.flush().await;
        };
        // Nearly always the socket takes it all.
        match plain.try_write(bytes)? {
            written if written == bytes.len() => Ok(()),
            written => plain.write_all(&bytes[written..]).await,
        }
    }

    /// Ends a TLS stream as TLS wants it, so that the peer can tell the end from a cut. Waits a
    /// moment at most.
    pub async fn close(&mut self) {
        if self.is_tls() {
            let _ = tokio::time::timeout(std::time::Duration::from_secs(1), self.shutdown()).await;
        }
    }

    /// [`Plain::peer_closed`].
    pub async fn peer_closed(&self) -> bool {
        let Some(plain) = self.plain() else {
            return true;
        };
        std::future::poll_fn(|cx| Poll::Ready(plain.peer_closed(cx))).await
    }

    /// The socket underneath.
    fn plain(&self) -> Option<&Plain> {
        match self {
            Stream::Plain(plain) => Some(plain),
            Stream::Tls(stream) => Some(stream.get_ref().0),
            Stream::Compressed(stream) => stream.inner.plain(),
            Stream::Gone => None,
        }
    }

    /// Sets for how long, in milliseconds, a TCP peer may take no bytes (0: the kernel's own limit), and
    /// answers what that was. None where it is no TCP, or cannot be set.
    pub fn set_user_timeout(&self, limit: u32) -> Option<u32> {
        let Some(Plain::Tcp(stream)) = self.plain() else {
            return None;
        };
        let before = net::sockopt::tcp_user_timeout(stream).ok()?;
        net::sockopt::set_tcp_user_timeout(stream, limit).ok()?;
        Some(before)
    }

    /// Whether packets come within compressed ones.
    pub fn is_compressed(&self) -> bool {
        matches!(self, Stream::Compressed(_))
    }

    /// Whether the bytes cannot be read on the way: TLS, or a Unix socket.
    pub fn is_private(&self) -> bool {
        match self {
            Stream::Plain(Plain::Tcp(_)) | Stream::Gone => false,
            Stream::Plain(Plain::Unix(_)) | Stream::Tls(_) => true,
            Stream::Compressed(stream) => stream.inner.is_private(),
        }
    }

    /// Whether the peer speaks TLS.
    pub fn is_tls(&self) -> bool {
        match self {
            Stream::Tls(_) => true,
            Stream::Compressed(stream) => stream.inner.is_tls(),
            Stream::Plain(_) | Stream::Gone => false,
        }
    }

    /// Without waiting: whether a connection that should be silent is still open and silent.
    /// Costs a system call only where the socket has something to say.
    pub fn is_quiet(&mut self) -> bool {
        if self.holds_plaintext() {
            return false;
        }
        // Any byte, a TLS alert or a server's farewell, ends the connection's use; it can still be read.
        let mut byte = [0u8; 1];
        let peeked = match self.plain() {
            Some(plain) => plain.try_io(Interest::READABLE, |socket| {
                net::recv(socket, &mut byte, RecvFlags::PEEK)
            }),
            None => return false,
        };
        matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The same, by asking the system: the poll may not have told yet what has arrived since.
    pub fn is_quiet_now(&mut self) -> bool {
        if self.holds_plaintext() {
            return false;
        }
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = match self.plain() {
            Some(Plain::Tcp(stream)) => net::recv(stream, &mut byte, flags),
            Some(Plain::Unix(stream)) => net::recv(stream, &mut byte, flags),
            None => return false,
        };
        matches!(peeked, Err(Errno::WOULDBLOCK))
    }

    /// Whether a layer in between has read bytes that nobody has taken from it yet.
    fn holds_plaintext(&mut self) -> bool {
        match self {
            Stream::Plain(_) | Stream::Gone => false,
            Stream::Tls(stream) => {
                let state = match &mut **stream {
                    TlsStream::Client(client) => client.get_mut().1.process_new_packets(),
                    TlsStream::Server(server) => server.get_mut().1.process_new_packets(),
                };
                state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
            }
            Stream::Compressed(stream) => {
                stream.holds_plaintext() || stream.inner.holds_plaintext()
            }
        }
    }

    /// Waits until a connection that should be silent has something to say, or is cut.
    pub async fn disturbed(&self) {
        let plain = match self {
            Stream::Plain(plain) => plain,
            Stream::Tls(stream) => stream.get_ref().0,
            Stream::Compressed(stream) => return Box::pin(stream.inner.disturbed()).await,
            Stream::Gone => return,
        };
        // An error is a disturbance as well.
        let _ = match plain {
            Plain::Tcp(stream) => stream.readable().await,
            Plain::Unix(stream) => stream.readable().await,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    async fn is_gone(plain: &Plain) -> bool {
        // What the system has to say of the socket is heard meanwhile.
        tokio::time::sleep(Duration::from_millis(20)).await;
        poll_fn(|cx| Poll::Ready(plain.peer_closed(cx))).await
    }

    #[tokio::test]
    async fn a_peer_that_only_sends_no_more_is_there_at_a_unix_socket() {
        let (mut peer, own) = UnixStream::pair().unwrap();
        let own = Plain::from(own);
        assert!(!is_gone(&own).await);
        peer.write_all(b"unread").await.unwrap();
        peer.shutdown().await.unwrap();
        assert!(!is_gone(&own).await);
        drop(peer);
        assert!(is_gone(&own).await);
    }

    #[tokio::test]
    async fn over_tcp_it_counts_as_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut peer = TcpStream::connect(at).await.unwrap();
        let own = Plain::from(listener.accept().await.unwrap().0);
        assert!(!is_gone(&own).await);
        peer.shutdown().await.unwrap();
        assert!(is_gone(&own).await);
    }
}
