//! Who waits for a connection to a server: in order, each for a limited time.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_engine::books::SessionUid;
use millrace_engine::state::SessionState;
use millrace_metrics::PoolWait;
use tokio::time::Instant;

use crate::error::BackendError;
use crate::fresh::Version;
use crate::pool::{CheckoutRequest, Lease, Pool, ServerPool, Waiter, Wanted};

/// As good as for ever, and no time that a clock cannot tell.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl ServerPool {
    /// Who waits for a connection is told that the server is lost, in order: it was taken for dead, or
    /// is not what it was.
    pub fn send_away(&self) {
        let waiting = std::mem::take(&mut *self.waiters.borrow_mut());
        for waiter in waiting {
            let lost = std::io::ErrorKind::ConnectionAborted;
            waiter.finish(Err(BackendError::Io(lost.into())));
        }
        self.mark_starving(false);
    }

    /// Sees to it that nobody waits for longer than `wait_timeout`. One timer for all of them, set anew
    /// when it has run out: most who wait are served soon, and a timer for each costs more than the rest.
    fn watch(&self) {
        if self.watched.replace(true) {
            return;
        }
        let me = self.me.clone();
        tokio::task::spawn_local(async move {
            while let Some(next) = me.upgrade().and_then(|server| server.expire()) {
                tokio::time::sleep_until(next).await;
                if let Some(server) = me.upgrade() {
                    let waiting = server.waiters.borrow().len();
                    server.concurrency.next_turn(waiting);
                    server.pump();
                }
            }
        });
    }

    /// Sends away those who have waited for too long. When the next will have, or the next turn begins;
    /// none: nobody waits.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let first = self.waiters.borrow().front().cloned();
            let Some(first) = first else {
                self.watched.set(false);
                return None;
            };
            if first.deadline > now {
                let turn = self.concurrency.turn_length();
                return Some(first.deadline.min(now + turn.unwrap_or(NEVER)));
            }
            self.waiters.borrow_mut().pop_front();
            let waited = self.options.wait_timeout;
            let (metrics, index) = self.metrics();
            metrics.pool_wait(index, PoolWait::TimedOut, waited);
            if let Some(error) = first.pool.limit_met() {
                first.finish(Err(BackendError::Server(error)));
                continue;
            }
            first.finish(Err(BackendError::Limit(format!(
                "no connection to {} came free within pool.wait_timeout ({waited:?}); \
                 pool.max_connections is {}{}",
                self.facts.borrow().address,
                self.options.max_connections,
                match self.is_full() {
                    true => ", and it runs as many statements as pool.concurrency lets it",
                    false => "",
                }
            ))));
        }
    }

    #[cold]
    fn too_many_wait(&self) -> BackendError {
        let (metrics, index) = self.metrics();
        metrics.pool_wait(index, PoolWait::Refused, Duration::ZERO);
        BackendError::Limit(format!(
            "pool.max_waiting ({}) statements already wait for a connection to {}",
            self.options.max_waiting,
            self.facts.borrow().address
        ))
    }
}

impl Pool {
    /// A place among those who wait for a connection, for who has found none idle, or must wait until
    /// others have ended. A small future, to be held where a statement waits.
    ///
    /// # Errors
    /// [`BackendError::Limit`] where too many wait already.
    pub fn queue(self: &Rc<Self>, wanted: &CheckoutRequest<'_>) -> Result<Waiting, BackendError> {
        self.enqueue(wanted, false)
    }

    /// The same for who cannot go elsewhere: where the server, or the account on it, may have no more
    /// connections, he waits as where the pool is full.
    ///
    /// # Errors
    /// [`BackendError::Limit`] where too many wait already.
    pub fn queue_patiently(
        self: &Rc<Self>,
        wanted: &CheckoutRequest<'_>,
    ) -> Result<Waiting, BackendError> {
        self.enqueue(wanted, true)
    }

    fn enqueue(
        self: &Rc<Self>,
        wanted: &CheckoutRequest<'_>,
        patient: bool,
    ) -> Result<Waiting, BackendError> {
        let Some(server) = self.server.upgrade() else {
            return Err(BackendError::Protocol("the server was removed"));
        };
        let begun = Instant::now();
        if server.count.waiting.fetch_add(1, Ordering::AcqRel) >= server.options.max_waiting {
            server.count.waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(server.too_many_wait());
        }
        let waiter = Rc::new(Waiter {
            pool: self.clone(),
            patient,
            wanted: Wanted::new(wanted),
            begun,
            deadline: begun + server.options.wait_timeout.min(NEVER),
            queued: Cell::new(true),
            outcome: RefCell::new(None),
            waker: RefCell::new(None),
        });
        if server.concurrency.is_full(server.waiters.borrow().len()) {
            server.concurrency.waits(begun);
        }
        let is_first = server.waiters.borrow().is_empty();
        server.waiters.borrow_mut().push_back(waiter.clone());
        if is_first || !server.futile.get() {
            server.pump();
        }
        server.watch();
        Ok(Waiting { server, waiter })
    }

    /// A connection: an idle one, a new one, or the next that comes free, in order, within
    /// `wait_timeout`.
    ///
    /// # Errors
    /// As for connecting; [`BackendError::Limit`] where too many wait already, or for too long.
    pub async fn take(
        self: &Rc<Self>,
        uid: SessionUid,
        state: &Rc<SessionState>,
        version: Version,
    ) -> Result<Lease, BackendError> {
        let Some(server) = self.server.upgrade() else {
            return Err(BackendError::Protocol("the server was removed"));
        };
        let wanted = CheckoutRequest::new(uid, state, version);
        if server.waiters.borrow().is_empty()
            && let Some(lease) = self.try_take(&wanted)
        {
            return Ok(lease);
        }
        self.queue_patiently(&wanted)?.await
    }

    /// The same for a KILL, which is to end what others wait for: an idle connection is for it
    /// although they wait for the server to have fewer statements.
    ///
    /// # Errors
    /// As for [`Pool::take`].
    pub async fn take_to_kill(
        self: &Rc<Self>,
        uid: SessionUid,
        state: &Rc<SessionState>,
    ) -> Result<Lease, BackendError> {
        if let Some(server) = self.server.upgrade()
            && server.is_full()
        {
            let (conn, lost) = self.take_quiet(&CheckoutRequest::new(uid, state, 0));
            let lease = conn.map(|conn| server.lease(conn, self, server.concurrency.begin()));
            server.closed(lost);
            if let Some(lease) = lease {
                return Ok(lease);
            }
        }
        self.take(uid, state, 0).await
    }
}

/// Waits for a connection, in order. Dropping it gives the place up, for whatever reason, and hands on
/// what may have been given to it at the last moment.
pub struct Waiting {
    server: Rc<ServerPool>,
    waiter: Rc<Waiter>,
}

impl Future for Waiting {
    type Output = Result<Lease, BackendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waiter = &*self.waiter;
        let outcome = waiter.outcome.borrow_mut().take();
        match outcome {
            Some(Ok((conn, running))) => {
                let (metrics, index) = self.server.metrics();
                metrics.pool_wait(index, PoolWait::Served, waiter.begun.elapsed());
                Poll::Ready(Ok(self.server.lease(conn, &waiter.pool, running)))
            }
            Some(Err(error)) => Poll::Ready(Err(error)),
            None => {
                let mut waker = waiter.waker.borrow_mut();
                match &mut *waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.server.count.waiting.fetch_sub(1, Ordering::AcqRel);
        let mut waiters = self.server.waiters.borrow_mut();
        if self.waiter.queued.get() {
            waiters.retain(|waiter| !Rc::ptr_eq(waiter, &self.waiter));
        }
        let empty = waiters.is_empty();
        drop(waiters);
        if empty {
            self.server.mark_starving(false);
        }
        if let Some(Ok((conn, running))) = self.waiter.outcome.borrow_mut().take() {
            self.server.end(running);
            self.server.deliver(conn, &self.waiter.pool);
        }
    }
}
