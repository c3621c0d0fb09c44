//! Who waits for a connection to a server: in order, each for a limited time.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_metrics::PoolWait;
use tokio::time::Instant;

use crate::error::BackendError;
use crate::fresh::Version;
use crate::pool::{CheckoutRequest, Lease, Pool, Served, ServerPool, Waiter, Wanted};

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

    /// Serves those who wait, in order, as far as limits allow: with idle connections, and with
    /// new ones. Also called when another worker has made room.
    pub fn pump(&self) {
        loop {
            if self.is_full() {
                // Whoever ends sees to the next.
                self.futile.set(true);
                self.mark_starving(false);
                return;
            }
            let front = self.waiters.borrow().front().cloned();
            let Some(front) = front else {
                self.futile.set(false);
                self.mark_starving(false);
                return;
            };
            if self.serve(&front) {
                continue;
            }
            // One is being opened for him. What is idle is for others before it is closed to make room.
            if front.pool.opening.get() > 0 && self.serve_another() {
                continue;
            }
            let (waiting, opening) = (self.waiting_here(), self.opening_here());
            let uncovered = match self.concurrency.has_room_for(waiting, opening) {
                true => self.uncovered(),
                false => None,
            };
            let starving = match uncovered.map(|pool| (self.permit(), pool)) {
                Some((Some(permit), pool)) => {
                    pool.opening.set(pool.opening.get() + 1);
                    self.spawn_open(pool, permit, true);
                    continue;
                }
                Some((None, _)) => true,
                None => false,
            };
            if self.serve_another() {
                continue;
            }
            self.futile.set(starving && self.idle_here() == 0);
            self.mark_starving(starving);
            return;
        }
    }

    /// The first of all who wait, where a connection of this kind is for him.
    pub(super) fn first_waiting(&self, pool: &Rc<Pool>, version: Version) -> Option<Rc<Waiter>> {
        let mut waiters = self.waiters.borrow_mut();
        let first = waiters.front()?;
        let is_for_him = Rc::ptr_eq(&first.pool, pool) && first.wanted.version <= version;
        is_for_him.then(|| waiters.pop_front()).flatten()
    }

    /// Hands an idle connection to somebody who waits. False: there is none for him.
    fn serve(&self, waiter: &Rc<Waiter>) -> bool {
        let (conn, lost) = waiter.pool.take_quiet(&waiter.wanted.wanted());
        if lost > 0 {
            self.gone(lost);
            self.nudge_starving();
        }
        let Some(conn) = conn else {
            return false;
        };
        let mut waiters = self.waiters.borrow_mut();
        match waiters.front() {
            Some(front) if Rc::ptr_eq(front, waiter) => drop(waiters.pop_front()),
            _ => waiters.retain(|other| !Rc::ptr_eq(other, waiter)),
        }
        drop(waiters);
        waiter.finish(Ok((conn, self.concurrency.begin())));
        true
    }

    /// Serves the first for whom there is an idle connection, as the first of all needs one of another
    /// kind, and that takes time.
    fn serve_another(&self) -> bool {
        if self.idle_here() == 0 {
            return false;
        }
        let waiters = self.waiters.borrow();
        let mut likely = waiters.iter().filter(|waiter| waiter.is_likely());
        let next = likely.next().cloned();
        drop(waiters);
        next.is_some_and(|waiter| self.serve(&waiter))
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

    /// The kind of connection that the first waits for, for whom none is idle or being opened.
    pub(super) fn uncovered(&self) -> Option<Rc<Pool>> {
        let waiters = self.waiters.borrow();
        let covered = |pool: &Pool| match pool.is_limited() {
            // For those there is none to be had now.
            true => usize::MAX,
            false => pool.opening.get() + pool.idle.borrow().usable(),
        };
        let first = waiters.front()?;
        if covered(&first.pool) == 0 {
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
            if seen[at].1 > covered(&waiter.pool) {
                return Some(waiter.pool.clone());
            }
        }
        None
    }

    fn opening_here(&self) -> usize {
        let pools = self.pools.borrow();
        pools.values().map(|pool| pool.opening.get()).sum()
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

impl Wanted {
    fn new(wanted: &CheckoutRequest<'_>) -> Wanted {
        Wanted {
            uid: wanted.uid,
            state: wanted.state.clone(),
            version: wanted.version,
            own: wanted.own,
            prepared: wanted.prepared,
            unused: wanted.unused,
        }
    }

    fn wanted(&self) -> CheckoutRequest<'_> {
        CheckoutRequest {
            uid: self.uid,
            state: &self.state,
            version: self.version,
            own: self.own,
            prepared: self.prepared,
            unused: self.unused,
        }
    }
}

impl Waiter {
    /// There is an idle connection that will do for it.
    fn is_likely(&self) -> bool {
        let idle = self.pool.idle.borrow();
        idle.len() > 0 && (idle.len() == idle.usable() || idle.has(self.wanted.version))
    }

    /// It is out of the queue, with what it waited for or an error.
    pub(super) fn finish(&self, outcome: Result<Served, BackendError>) {
        self.queued.set(false);
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
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
