//! An answer on its way into the cache: what is collected beside what the client gets.

use std::sync::Arc;
use std::time::Instant;

use millrace_backend::cache::{Cache, EndedFill};
use millrace_cache::Token;
use millrace_topology::{GtidSet, ServerId};

/// An answer that is read for the cache. Where it is dropped before its end, nobody waits for it.
pub(in crate::session) struct Fill {
    cache: Arc<Cache>,
    token: Option<Token>,
    begun: Instant,
    /// Where it is read, and what that server had before; none where that is not known.
    source: Option<Source>,
    bytes: Vec<u8>,
    /// It has become too long.
    is_too_long: bool,
    /// It is to be served for a time, wherever it was read.
    is_timed: bool,
}

/// A server, and what it is known to have had before it was asked.
pub(in crate::session) struct Source {
    pub(in crate::session) server: ServerId,
    pub(in crate::session) incarnation: u32,
    pub(in crate::session) lower: GtidSet,
}

impl Fill {
    /// Of a place in the store.
    pub(in crate::session) fn new(cache: Arc<Cache>, token: Token) -> Fill {
        Fill {
            cache,
            token: Some(token),
            begun: Instant::now(),
            source: None,
            bytes: Vec::new(),
            is_too_long: false,
            is_timed: false,
        }
    }

    /// Of a place whose result is served for a time, whatever changes.
    pub(in crate::session) fn timed(cache: Arc<Cache>, token: Token) -> Fill {
        let mut fill = Fill::new(cache, token);
        fill.is_timed = true;
        fill
    }

    /// Nothing need be known of the server where it is read.
    pub(in crate::session) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// The statement is about to be sent to a server, perhaps not for the first time.
    pub(in crate::session) fn begin(&mut self, source: Option<Source>) {
        (self.source, self.begun) = (source, Instant::now());
        self.bytes.clear();
        self.is_too_long = false;
    }

    /// Bytes that the client gets.
    pub(in crate::session) fn add(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > self.cache.options().entry_max {
            self.is_too_long = true;
            self.bytes = Vec::new();
        }
        if !self.is_too_long {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The answer has ended, and is one to be kept. `mark`: this moment, as the server's positions count.
    pub(in crate::session) fn end(mut self, rows: u64, mark: impl FnOnce(ServerId) -> u64) {
        if self.is_too_long || self.bytes.is_empty() {
            return;
        }
        if self.is_timed {
            if let Some(token) = self.token.take() {
                let (bytes, cost) = (std::mem::take(&mut self.bytes), self.begun.elapsed());
                let mut store = self.cache.store();
                store.finish_within(token, (bytes.into(), rows), cost, Instant::now());
            }
            return;
        }
        if let Some(source) = self.source.take()
            && let Some(token) = self.token.take()
        {
            self.cache.fill_ended(EndedFill {
                token,
                server: source.server,
                incarnation: source.incarnation,
                lower: source.lower,
                mark: mark(source.server),
                bytes: std::mem::take(&mut self.bytes).into(),
                rows,
                cost: self.begun.elapsed(),
            });
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.cache.store().abandon(token);
        }
    }
}
