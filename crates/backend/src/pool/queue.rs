//! Who waits for a connection to a server: in order, each for a limited time.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millrace_metrics::PoolWait;
use tokio::time::Instant;

use crate::conn::Conn;
use crate::error::BackendError;
use crate::pool::{Lease, Pool, ServerPool};

/// As good as for ever, and no time that a clock cannot tell.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) struct Waiter {
    pub(super) pool: Rc<Pool>,
    begun: Instant,
    /// When it has waited for too long.
    deadline: Instant,
    /// It is in the queue.
    queued: Cell<bool>,
    outcome: RefCell<Option<Result<Box<Conn>, BackendError>>>,
    waker: RefCell<Option<Waker>>,
}

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

    /// Opens connections for those who wait, as far as the limit allows. Also called when
    /// another worker has made room.
    pub fn pump(&self) {
        loop {
            let Some(pool) = self.uncovered() else {
                self.futile.set(false);
                self.mark_starving(false);
                return;
            };
            let Some(permit) = self.permit() else {
                self.futile.set(self.idle_here() == 0);
                self.mark_starving(true);
                return;
            };
            pool.opening.set(pool.opening.get() + 1);
            self.spawn_open(pool, permit);
        }
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
            }
        });
    }

    /// Sends away those who have waited for too long. When the next will have; none: nobody waits.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let first = self.waiters.borrow().front().cloned();
            let Some(first) = first else {
                self.watched.set(false);
                return None;
            };
            if first.deadline > now {
                return Some(first.deadline);
            }
            self.waiters.borrow_mut().pop_front();
            let waited = self.options.wait_timeout;
            let (metrics, index) = self.metrics();
            metrics.pool_wait(index, PoolWait::TimedOut, waited);
            first.finish(Err(BackendError::Limit(format!(
                "no connection to {} came free within pool.wait_timeout ({waited:?}); \
                 pool.max_connections is {}",
                self.facts.borrow().address,
                self.options.max_connections
            ))));
        }
    }

    /// The kind of connection that the first waits for, for whom none is being opened.
    pub(super) fn uncovered(&self) -> Option<Rc<Pool>> {
        let waiters = self.waiters.borrow();
        let first = waiters.front()?;
        if first.pool.opening.get() == 0 {
            return Some(first.pool.clone());
        }
        let mut seen: Vec<(*const Pool, usize)> = Vec::new();
        for waiter in waiters.iter() {
            let kind = Rc::as_ptr(&waiter.pool);
            let at = seen.iter().position(|(other, _)| *other == kind);
            let at = at.unwrap_or_else(|| {
                seen.push((kind, 0));
                seen.len() - 1
            });
            seen[at].1 += 1;
            if seen[at].1 > waiter.pool.opening.get() {
                return Some(waiter.pool.clone());
            }
        }
        None
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

impl Waiter {
    /// It is out of the queue, with what it waited for or an error.
    pub(super) fn finish(&self, outcome: Result<Box<Conn>, BackendError>) {
        self.queued.set(false);
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Pool {
    /// A place among those who wait for a connection, for who has found none idle. A small future, to be
    /// held where a statement waits.
    ///
    /// # Errors
    /// [`BackendError::Limit`] where too many wait already.
    pub fn queue(self: &Rc<Self>) -> Result<Waiting, BackendError> {
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
            begun,
            deadline: begun + server.options.wait_timeout.min(NEVER),
            queued: Cell::new(true),
            outcome: RefCell::new(None),
            waker: RefCell::new(None),
        });
        let is_first = server.waiters.borrow().is_empty();
        server.waiters.borrow_mut().push_back(waiter.clone());
        if is_first || !server.futile.get() {
            server.pump();
        }
        server.watch();
        Ok(Waiting { server, waiter })
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
            Some(Ok(conn)) => {
                let (metrics, index) = self.server.metrics();
                metrics.pool_wait(index, PoolWait::Served, waiter.begun.elapsed());
                Poll::Ready(Ok(self.server.lease(conn, &waiter.pool)))
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
        if let Some(Ok(conn)) = self.waiter.outcome.borrow_mut().take() {
            self.server.deliver(conn, &self.waiter.pool);
        }
    }
}
