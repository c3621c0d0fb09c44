//! Connections on their way: opened, lent to a session, taken back, handed on or closed.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use millrace_engine::books::SessionUid;
use millrace_engine::state::SessionState;
use tracing::error;

use crate::concurrency::Running;
use crate::conn::{Conn, Permit};
use crate::error::BackendError;
use crate::fresh::Version;
use crate::idle::Found;
use crate::pool::{CheckoutRequest, Pool, PoolKey, ServerFacts, ServerPool};

/// Seconds for which no connection is opened that nobody waits for, after the server refused one.
const SPARE_AFTER: u64 = 60;

/// A connection on loan. Dropping it closes the connection; [`Lease::give_back`] keeps it.
pub struct Lease {
    conn: Option<Box<Conn>>,
    /// A statement runs on it.
    running: Option<Running>,
    pool: Rc<Pool>,
    server: Rc<ServerPool>,
}

/// Runs a connection's opening to its end. One that panics has failed like any other: nobody waits for it for
/// ever, and its place is free.
async fn caught<T>(
    opening: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let mut opening = pin!(opening);
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| opening.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| {
            error!("opening a connection has panicked, which is a defect of Millrace");
            let what = "opening a connection has failed by a defect of Millrace; see its log";
            Poll::Ready(Err(BackendError::Protocol(what)))
        })
    })
    .await
}

impl ServerPool {
    /// Opens a connection; `awaited`: for somebody who waits for it.
    pub(super) fn spawn_open(&self, pool: Rc<Pool>, permit: Permit, awaited: bool) {
        self.open_here.set(self.open_here.get() + 1);
        self.connects.set(self.connects.get() + 1);
        let Some(me) = self.me.upgrade() else { return };
        tokio::task::spawn_local(async move {
            let opened = caught(me.open_one(&pool, Some(permit))).await;
            pool.opening.set(pool.opening.get() - 1);
            match opened {
                Ok(conn) => {
                    let (metrics, server) = me.metrics();
                    metrics.connection_opened(server);
                    pool.opened.set(pool.opened.get() + 1);
                    pool.forget_limit();
                    me.deliver(conn, &pool);
                }
                Err(error) => me.failed(&pool, error, awaited),
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
            self.spawn_open(pool.clone(), permit, false);
        }
    }

    async fn open_one(
        &self,
        pool: &Pool,
        permit: Option<Permit>,
    ) -> Result<Box<Conn>, BackendError> {
        let (facts, place) = (self.facts(), self.place.get());
        // Before the login: what changes from here on may or may not be in it.
        let version = facts.fresh.version();
        let renewed = match permit.is_some() {
            true => self.renew_one(&facts, pool, version).await,
            false => None,
        };
        let mut conn = match renewed {
            Some(conn) => conn,
            None => {
                let mut conn = self.opener.open(&facts, &pool.key, permit).await?;
                conn.login.place = place;
                if facts.fresh.sets_login_variables() {
                    conn.books.login_set_variables();
                }
                conn
            }
        };
        if !self.is_there(&conn) {
            let text = "the server's name means another machine now";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, text).into());
        }
        conn.down = self.down.clone();
        conn.used = self.tick.get();
        conn.login.version = version;
        Ok(conn)
    }

    /// Has an idle connection that is too old log in anew, in place of a new one: it keeps its own
    /// place, and the new one's is free again.
    async fn renew_one(
        &self,
        facts: &ServerFacts,
        pool: &Pool,
        version: Version,
    ) -> Option<Box<Conn>> {
        // On a cluster's node it would be deaf.
        if facts.fresh.has_init_connect() || facts.in_cluster {
            return None;
        }
        let mut conn = pool.idle.borrow_mut().take_old(version)?;
        if !conn.is_quiet() {
            drop(conn);
            self.gone(1);
            return None;
        }
        let (opened, buffers) = (conn.login.opened, conn.buffers.clone());
        let renewed = self.opener.renew(facts, &pool.key, conn).await.ok();
        // Of the two places one is left: the new one's, or the old one's.
        self.gone(1);
        let mut conn = renewed?;
        (conn.login.opened, conn.buffers) = (opened, buffers);
        Some(conn)
    }

    /// An open failed: the first who waits for one like it is told.
    fn failed(&self, pool: &Rc<Pool>, error: BackendError, awaited: bool) {
        let (metrics, server) = self.metrics();
        metrics.connection_failed(server);
        self.open_here.set(self.open_here.get().saturating_sub(1));
        self.spare_from.set(self.tick.get() + SPARE_AFTER);
        // A server that is too busy to let one more in may serve those who are in: as long as one of
        // these will come free, nobody is told.
        let slow = matches!(error, BackendError::Timeout(_)) && self.leased.get() > 0;
        if awaited && self.meet_limit(pool, &error) {
            self.fill();
            return;
        }
        let waiter = {
            let mut waiters = self.waiters.borrow_mut();
            let at = waiters
                .iter()
                .position(|waiter| Rc::ptr_eq(&waiter.pool, pool));
            at.filter(|_| awaited && !slow)
                .and_then(|at| waiters.remove(at))
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
        let is_needed = !self.waiters.borrow().is_empty() && !self.is_full();
        if !is_needed && self.has_too_many() {
            self.surrender(conn);
        } else {
            self.hand_on(conn, pool);
        }
    }

    /// A connection is free: for the first who waits, or for whoever comes. Who waits gets this one, also
    /// where others are idle: its server's thread has at hand what it needs.
    fn hand_on(&self, mut conn: Box<Conn>, pool: &Rc<Pool>) {
        conn.used = self.tick.get();
        if self.waiters.borrow().is_empty() {
            pool.idle.borrow_mut().push(conn);
            return;
        }
        let first = match self.is_full() {
            true => None,
            false => self.first_waiting(pool, conn.login.version),
        };
        match first {
            Some(first) => {
                conn.books.leave_owner();
                first.finish(Ok((conn, self.concurrency.begin())));
            }
            None => pool.idle.borrow_mut().push(conn),
        }
        self.see_to_others();
    }

    /// Something has come free. Who waits may have it.
    pub(super) fn see_to_others(&self) {
        if !self.waiters.borrow().is_empty() {
            self.pump();
        }
    }

    /// A statement has ended, or what was to run it is not needed.
    pub(super) fn end(&self, statement: Running) {
        self.concurrency.end(statement);
    }

    /// Closes a connection after its loan. Where the kernel had given it up, its idle siblings are not
    /// trusted either: each would cost a session the same time.
    fn lost(&self, conn: Box<Conn>) {
        if conn.path_lost {
            self.discard_idle();
        }
        drop(conn);
        self.closed(1);
    }

    /// Lends a connection to a statement that counts already.
    pub(super) fn lease(
        self: &Rc<Self>,
        conn: Box<Conn>,
        pool: &Rc<Pool>,
        running: Running,
    ) -> Lease {
        self.leased.set(self.leased.get() + 1);
        pool.lent.set(pool.lent.get() + 1);
        let (metrics, server) = self.metrics();
        metrics.leased(server);
        Lease {
            conn: Some(conn),
            running: Some(running),
            pool: pool.clone(),
            server: self.clone(),
        }
    }
}

impl Pool {
    /// An idle connection, at once: the one that can run the session's statement with the least
    /// ahead of it. None also where the server runs as many statements as it should.
    pub fn try_take(self: &Rc<Self>, wanted: &CheckoutRequest<'_>) -> Option<Lease> {
        let server = self.server.upgrade()?;
        if server.concurrency.is_full(server.waiters.borrow().len()) {
            return None;
        }
        let (conn, lost) = self.take_quiet(wanted);
        let lease = conn.map(|conn| server.lease(conn, self, server.concurrency.begin()));
        server.closed(lost);
        lease
    }

    /// The idle connection that suits best and is whole, and how many were found that are not.
    pub(super) fn take_quiet(
        self: &Rc<Self>,
        wanted: &CheckoutRequest<'_>,
    ) -> (Option<Box<Conn>>, usize) {
        let mut lost = 0;
        let Some(server) = self.server.upgrade() else {
            return (None, lost);
        };
        loop {
            let found = self.idle.borrow_mut().take(wanted);
            let Some(Found {
                mut conn,
                was_bound,
            }) = found
            else {
                return (None, lost);
            };
            // One that was used a moment ago costs no system call.
            let is_quiet = match server.tick.get() == conn.used {
                true => conn.is_quiet(),
                false => conn.is_quiet_now(),
            };
            if is_quiet {
                if was_bound {
                    conn.books.leave_owner();
                    server.spare(&conn, self);
                }
                return (Some(conn), lost);
            }
            lost += 1;
        }
    }

    /// Whether [`Pool::try_take_own`] would find one. Taking it and giving it back is no way to ask:
    /// it would go to whoever waits.
    pub fn has_own(&self, uid: SessionUid, seq: u64) -> bool {
        self.idle
            .borrow_mut()
            .iter_mut()
            .any(|conn| conn.books.is_at(uid, seq) && conn.is_quiet())
    }

    /// The idle connection that ran statement `seq` of `uid`, if nothing was run on it since.
    pub fn try_take_own(self: &Rc<Self>, uid: SessionUid, seq: u64) -> Option<Lease> {
        let server = self.server.upgrade()?;
        let mut conn = self.idle.borrow_mut().take_own(uid, seq)?;
        if conn.is_quiet() {
            return Some(server.lease(conn, self, server.concurrency.begin()));
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

impl Lease {
    /// It leads to the machine that its server's name means now: what is known of the server is known of that.
    pub fn is_there(&self) -> bool {
        self.server.is_there(self)
    }

    /// A statement begins on a connection that its session has kept.
    pub fn begin(&mut self) {
        let begin = || self.server.concurrency.begin_kept();
        self.running.get_or_insert_with(begin);
    }

    /// The statement has ended, and the session keeps the connection. Others may have their turn.
    pub fn rest(&mut self) {
        if let Some(statement) = self.running.take() {
            self.server.end(statement);
            self.server.see_to_others();
        }
    }

    /// Puts the connection back for others; a broken one is closed.
    pub fn give_back(mut self) {
        let Some(mut conn) = self.conn.take() else {
            return;
        };
        let server = self.server.clone();
        if let Some(statement) = self.running.take() {
            server.end(statement);
        }
        if server.count.statements.is_beyond(conn.prepared.len()) && conn.is_clean() {
            conn.hold_at_most(server.statements_max());
        }
        if !conn.is_clean() || !server.is_there(&conn) {
            server.lost(conn);
        } else if conn.one_shot {
            server.retire(conn);
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

    /// Removes the connection from the pools and their limits for good. It is counted as in use for as
    /// long as what stands beside it lives.
    pub fn detach(mut self) -> Option<(Box<Conn>, InUse)> {
        let in_use = InUse::new(&self);
        if let Some(statement) = self.running.take() {
            self.server.end(statement);
        }
        let mut conn = self.conn.take();
        if let Some(conn) = &mut conn {
            conn.release_permit();
        }
        self.server.closed(1);
        Some((conn?, in_use))
    }
}

/// Counts a connection that has left the pools, and that its server still works for.
pub struct InUse {
    pool: Rc<Pool>,
    server: Rc<ServerPool>,
}

impl InUse {
    fn new(lease: &Lease) -> Self {
        let (pool, server) = (lease.pool.clone(), lease.server.clone());
        server.leased.set(server.leased.get() + 1);
        pool.lent.set(pool.lent.get() + 1);
        let (metrics, at) = server.metrics();
        metrics.leased(at);
        InUse { pool, server }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.server.leased.set(self.server.leased.get() - 1);
        self.pool.returned.set(self.pool.returned.get() + 1);
        let (metrics, at) = self.server.metrics();
        metrics.lease_ended(at);
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
        if let Some(statement) = self.running.take() {
            self.server.end(statement);
        }
        if let Some(conn) = self.conn.take() {
            self.server.lost(conn);
        }
    }
}
