//! Connections on their way: opened, lent to a session, taken back, handed on or closed.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::conn::{Conn, Permit, SessionUid};
use crate::error::BackendError;
use crate::idle::Found;
use crate::pool::{Pool, PoolKey, ServerFacts, ServerPool, Wish};
use crate::state::SessionState;

/// Seconds for which no connection is opened that nobody waits for, after the server refused one.
const SPARE_AFTER: u64 = 60;

/// How long a connection that is to be closed may take to say what its last user might ask about.
const SAVING: Duration = Duration::from_secs(10);

/// A connection on loan. Dropping it closes the connection; [`Lease::give_back`] keeps it.
pub struct Lease {
    conn: Option<Box<Conn>>,
    pool: Rc<Pool>,
    server: Rc<ServerPool>,
}

impl ServerPool {
    pub(super) fn spawn_open(&self, pool: Rc<Pool>, permit: Permit) {
        self.open_here.set(self.open_here.get() + 1);
        self.connects.set(self.connects.get() + 1);
        let Some(me) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move {
            let opened = me.open_one(&pool, Some(permit)).await;
            pool.opening.set(pool.opening.get() - 1);
            match opened {
                Ok(conn) => {
                    let (metrics, server) = me.metrics();
                    metrics.connection_opened(server);
                    pool.opened.set(pool.opened.get() + 1);
                    me.deliver(conn, &pool);
                }
                Err(error) => me.failed(&pool, error),
            }
        });
    }

    /// A session has to do with a connection that another has left something on, and was here with a
    /// moment ago: both will be back, so that each is to have its own if there is room for one more.
    fn spare(&self, conn: &Conn, pool: &Rc<Pool>) {
        let tick = self.tick.get();
        let has_room = pool.opening.get() == 0
            && self.open_here.get() < self.share()
            && self.waiters.borrow().is_empty()
            && self.starving_elsewhere() == 0
            && tick >= self.spare_from.get();
        if !has_room || tick.saturating_sub(conn.used) > 1 {
            return;
        }
        if let Some(permit) = Permit::take(&self.count.open, self.options.max_connections) {
            pool.opening.set(pool.opening.get() + 1);
            self.spawn_open(pool.clone(), permit);
        }
    }

    async fn open_one(
        &self,
        pool: &Pool,
        permit: Option<Permit>,
    ) -> Result<Box<Conn>, BackendError> {
        let facts = self.facts();
        let mut conn = self.opener.open(&facts, &pool.key, permit).await?;
        conn.down = self.down.clone();
        Ok(conn)
    }

    /// An open failed: the first who waits for one like it is told.
    fn failed(&self, pool: &Rc<Pool>, error: BackendError) {
        let (metrics, server) = self.metrics();
        metrics.connection_failed(server);
        self.open_here.set(self.open_here.get().saturating_sub(1));
        self.spare_from.set(self.tick.get() + SPARE_AFTER);
        // A server that is too busy to let one more in may serve those who are in: as long as one of
        // these will come free, nobody is told.
        let slow = matches!(error, BackendError::Timeout(_)) && self.leased.get() > 0;
        let waiter = {
            let mut waiters = self.waiters.borrow_mut();
            let at = waiters
                .iter()
                .position(|waiter| Rc::ptr_eq(&waiter.pool, pool));
            at.filter(|_| !slow).and_then(|at| waiters.remove(at))
        };
        if let Some(waiter) = waiter {
            waiter.finish(Err(error));
        }
        self.fill();
    }

    /// A connection has been used: it is another worker's turn, or for those here.
    fn take_back(&self, conn: Box<Conn>, pool: &Rc<Pool>) {
        match self.has_too_many() {
            true => self.surrender(conn),
            false => self.hand_on(conn, pool),
        }
    }

    /// A connection is new, or was meant for somebody who no longer waits.
    pub(super) fn deliver(&self, conn: Box<Conn>, pool: &Rc<Pool>) {
        if self.waiters.borrow().is_empty() && self.has_too_many() {
            self.surrender(conn);
        } else {
            self.hand_on(conn, pool);
        }
    }

    /// A connection is free: to the first who waits, else into the idle list.
    fn hand_on(&self, mut conn: Box<Conn>, pool: &Rc<Pool>) {
        if self.waiters.borrow().is_empty() {
            conn.used = self.tick.get();
            pool.idle.borrow_mut().push(conn);
            return;
        }
        let taker = {
            let mut waiters = self.waiters.borrow_mut();
            let other_first = waiters.front().is_some_and(|first| {
                !Rc::ptr_eq(&first.pool, pool) && first.pool.opening.get() == 0
            });
            let like_it = waiters
                .iter()
                .position(|waiter| Rc::ptr_eq(&waiter.pool, pool));
            match like_it {
                // Somebody who needs another kind of connection has waited longer.
                _ if other_first => None,
                Some(at) => waiters.remove(at),
                None => None,
            }
        };
        match taker {
            Some(waiter) => {
                conn.leave_owner();
                waiter.finish(Ok(conn));
                // Before it has looked: others leave places to this worker as long as it starves.
                if self.waiters.borrow().is_empty() {
                    self.mark_starving(false);
                }
            }
            None if self.uncovered().is_none() => {
                conn.used = self.tick.get();
                pool.idle.borrow_mut().push(conn);
                // Whoever comes next may have the place of this one.
                self.futile.set(false);
            }
            None => self.retire(conn),
        }
    }

    /// Closes a connection that is in nobody's way; its place is free then.
    pub(super) fn retire(&self, conn: Box<Conn>) {
        self.close(conn, |server| server.closed(1));
    }

    /// Closes a connection, after what its last user may still ask about has been read.
    pub(super) fn close(&self, mut conn: Box<Conn>, then: fn(&ServerPool)) {
        conn.leave_owner();
        let Some(me) = self.me.upgrade().filter(|_| !conn.residue.is_empty()) else {
            drop(conn);
            then(self);
            return;
        };
        tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(SAVING, conn.save_residue()).await;
            drop(conn);
            then(&me);
        });
    }

    pub(super) fn lease(self: &Rc<Self>, conn: Box<Conn>, pool: &Rc<Pool>) -> Lease {
        self.leased.set(self.leased.get() + 1);
        pool.lent.set(pool.lent.get() + 1);
        let (metrics, server) = self.metrics();
        metrics.leased(server);
        Lease {
            conn: Some(conn),
            pool: pool.clone(),
            server: self.clone(),
        }
    }
}

impl Pool {
    /// An idle connection, at once: the one that can run the session's statement with the least
    /// ahead of it.
    pub fn try_take(self: &Rc<Self>, wish: &Wish<'_>) -> Option<Lease> {
        let server = self.server.upgrade()?;
        loop {
            let Found {
                mut conn,
                was_bound,
            } = self.idle.borrow_mut().take(wish)?;
            if conn.stream.is_quiet() {
                if was_bound {
                    conn.leave_owner();
                    server.spare(&conn, self);
                }
                return Some(server.lease(conn, self));
            }
            drop(conn);
            server.closed(1);
        }
    }

    /// Whether [`Pool::try_take_own`] would find one. Taking it and giving it back is no way to ask:
    /// it would go to whoever waits.
    pub fn has_own(&self, uid: SessionUid, seq: u64) -> bool {
        self.idle
            .borrow_mut()
            .iter_mut()
            .any(|conn| conn.last_user == uid && conn.last_seq == seq && conn.stream.is_quiet())
    }

    /// The idle connection that ran statement `seq` of `uid`, if nothing was run on it since.
    pub fn try_take_own(self: &Rc<Self>, uid: SessionUid, seq: u64) -> Option<Lease> {
        let server = self.server.upgrade()?;
        let mut conn = self.idle.borrow_mut().take_own(uid, seq)?;
        if conn.stream.is_quiet() {
            return Some(server.lease(conn, self));
        }
        drop(conn);
        server.closed(1);
        None
    }

    /// A connection beyond the limits, for a KILL where all others are taken. It never comes to the
    /// pool.
    ///
    /// # Errors
    /// As for connecting.
    pub async fn open_aside(&self) -> Result<Box<Conn>, BackendError> {
        let Some(server) = self.server.upgrade() else {
            return Err(BackendError::Protocol("the server was removed"));
        };
        server.open_one(self, None).await
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
    ) -> Result<Lease, BackendError> {
        let Some(server) = self.server.upgrade() else {
            return Err(BackendError::Protocol("the server was removed"));
        };
        if server.waiters.borrow().is_empty()
            && let Some(lease) = self.try_take(&Wish::new(uid, state))
        {
            return Ok(lease);
        }
        self.queue()?.await
    }
}

impl Lease {
    /// Puts the connection back for others; a broken one is closed.
    pub fn give_back(mut self) {
        let Some(mut conn) = self.conn.take() else {
            return;
        };
        let server = self.server.clone();
        if server.count.statements.is_beyond(conn.prepared.len()) && !conn.broken {
            conn.hold_at_most(server.statements_max());
        }
        if conn.broken {
            drop(conn);
            server.closed(1);
        } else {
            conn.leave_room();
            let has_database = !conn.state.database.is_empty();
            if has_database == self.pool.key.has_database || !has_database {
                server.take_back(conn, &self.pool);
            } else {
                // The session chose its first database: the connection is of the other kind now.
                let key = PoolKey {
                    has_database,
                    ..self.pool.key.clone()
                };
                server.take_back(conn, &server.pool(&key));
            }
        }
    }

    /// The pool it came from.
    pub fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    /// The facts of its server.
    pub fn server_facts(&self) -> Arc<ServerFacts> {
        self.server.facts()
    }

    /// The pools of its server.
    pub fn server(&self) -> &Rc<ServerPool> {
        &self.server
    }

    /// Removes the connection from the pools and their limits for good.
    pub fn detach(mut self) -> Option<Box<Conn>> {
        let mut conn = self.conn.take();
        if let Some(conn) = &mut conn {
            conn.release_permit();
        }
        self.server.closed(1);
        conn
    }
}

impl Deref for Lease {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.conn
            .as_ref()
            .expect("a lease holds its connection until it is given back")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Conn {
        self.conn
            .as_mut()
            .expect("a lease holds its connection until it is given back")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.leased.set(self.server.leased.get() - 1);
        self.pool.returned.set(self.pool.returned.get() + 1);
        let (metrics, server) = self.server.metrics();
        metrics.lease_ended(server);
        if self.conn.take().is_some() {
            self.server.closed(1);
        }
    }
}
