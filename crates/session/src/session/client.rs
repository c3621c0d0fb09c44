//! What a session reads from its client and sends to it.

use std::future::poll_fn;
use std::task::Poll;

use millrace_backend::stream::Stream;
use millrace_metrics::PinReason;
use millrace_protocol::ok::{OkFields, encode_ok};
use millrace_protocol::resultset::TextResult;
use millrace_protocol::{Status, packet};

use crate::error::Abort;
use crate::session::Session;

impl Session {
    /// Reads what the client has sent; 0 at its end. While there is nothing to read the session
    /// holds no buffer.
    pub(super) async fn read_client(&mut self) -> Result<usize, Abort> {
        poll_fn(|cx| {
            self.handle.register(cx);
            let working = self.handle.pins().has(PinReason::Transaction)
                || self.handle.pins().has(PinReason::Xa);
            let working = working || self.image.tx.replay.is_some();
            let idle = !working && !self.image.tx.is_deferred();
            if self.handle.is_evicted() && self.lease.is_some() && self.client.inbuf.is_empty() {
                return Poll::Ready(Err(Abort::Evicted));
            }
            if self.handle.has_ended()
                || (self.handle.is_draining() && idle && self.client.inbuf.is_empty())
            {
                return Poll::Ready(Err(Abort::Ended));
            }
            let worker = &self.worker;
            let make_room = |inbuf: &mut Vec<u8>| {
                if inbuf.capacity() == 0 {
                    *inbuf = worker.lists.take_buffer();
                } else if inbuf.capacity() - inbuf.len() < 4096 {
                    let wanted = packet::header(inbuf).map_or(0, |header| header.len as usize);
                    inbuf.reserve((wanted + 8).clamp(16 * 1024, 1 << 20));
                }
            };
            let read = (self.client.stream).poll_read_into(cx, &mut self.client.inbuf, make_room);
            if read.is_pending()
                && self.client.inbuf.is_empty()
                && self.client.inbuf.capacity() != 0
            {
                self.worker
                    .lists
                    .put_buffer(std::mem::take(&mut self.client.inbuf));
            }
            if let Poll::Ready(Ok(read)) = read {
                self.worker.metrics().received(read as u64);
                self.handle.received(read);
            }
            read.map_err(Abort::Client)
        })
        .await
    }

    /// Sends bytes to the client, what is pending first.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Abort> {
        if !self.client.pending.is_empty() {
            let pending = std::mem::take(&mut self.client.pending);
            self.client.stream.send(&pending).await?;
        }
        self.client.stream.send(bytes).await?;
        self.worker.metrics().sent(bytes.len() as u64);
        self.handle.sent(bytes.len());
        Ok(())
    }

    /// Sends what the client's socket takes without waiting and keeps the rest, so that a slow
    /// client does not hold a server connection that has nothing more to say.
    /// False, and nothing done, where the socket is not a bare one.
    pub(super) fn send_now(&mut self, bytes: &[u8]) -> Result<bool, Abort> {
        let Stream::Plain(plain) = &self.client.stream else {
            return Ok(false);
        };
        let written = if self.client.pending.is_empty() {
            plain.try_write(bytes)?
        } else {
            0
        };
        self.worker.metrics().sent(bytes.len() as u64);
        self.handle.sent(bytes.len());
        self.client.pending.extend_from_slice(&bytes[written..]);
        Ok(true)
    }

    /// Sends what is pending.
    pub(super) async fn flush(&mut self) -> Result<(), Abort> {
        if self.client.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.client.pending);
        self.client.stream.send(&pending).await?;
        Ok(())
    }

    /// An OK of Millrace's own.
    pub(super) async fn ok(&mut self, fields: OkFields<'_>) -> Result<(), Abort> {
        let mut out = Vec::new();
        let fields = OkFields {
            status: fields.status | self.idle_status(),
            ..fields
        };
        encode_ok(&mut out, 1, self.client.capabilities, &fields);
        self.send(&out).await
    }

    /// The status flags that hold between statements.
    pub(super) fn idle_status(&self) -> Status {
        let kept = Status::AUTOCOMMIT
            | Status::ANSI_QUOTES
            | Status::NO_BACKSLASH_ESCAPES
            | Status::IN_TRANS
            | Status::IN_TRANS_READONLY;
        self.image.status & kept
    }

    /// Rows of Millrace's own, in the protocol that the statement came by.
    pub(super) async fn show(&mut self, result: &TextResult, warnings: u16) -> Result<(), Abort> {
        let mut out = Vec::new();
        let end = OkFields {
            status: self.idle_status(),
            warnings,
            ..OkFields::default()
        };
        match self.running.answers_binary {
            true => result.encode_binary(&mut out, 1, self.client.capabilities, &end),
            false => result.encode(&mut out, 1, self.client.capabilities, &end),
        };
        self.send(&out).await
    }
}
