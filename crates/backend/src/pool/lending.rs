//! Connections on loan to a session, and their way back.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

use millrace_engine::books::SessionUid;
use millrace_engine::state::SessionState;

use crate::concurrency::Running;
use crate::conn::Conn;
use crate::error::BackendError;
use crate::fresh::Version;
use crate::pool::serving::caught;
use crate::pool::{CheckoutRequest, Pool, PoolKey, ServerFacts, ServerPool};

/// A connection on loan. Dropping it closes the connection; [`Lease::give_back`] keeps it.
pub struct Lease {
    conn: Option<Box<Conn>>,
    /// A statement runs on it.
    running: Option<Running>,
    pool: Rc<Pool>,
    server: Rc<ServerPool>,
}

impl ServerPool {
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

    /// What a session has after COM_RESET_CONNECTION, where one did so since the server's globals are in this version.
    pub fn state_after_reset(&self, version: Version) -> Option<Rc<SessionState>> {
        let known = self.after_reset.borrow();
        let (of, state) = known.as_ref()?;
        (*of == version).then(|| state.clone())
    }

    /// A connection was reset, and this is what it has. `version`: that of [`Fresh::for_login`] before.
    ///
    /// [`Fresh::for_login`]: crate::fresh::Fresh::for_login
    pub fn note_state_after_reset(&self, version: Version, state: Rc<SessionState>) {
        *self.after_reset.borrow_mut() = Some((version, state));
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
        } else if conn.one_shot || conn.books.lacks_login(false) {
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

    /// Closes the connection and logs in on another in its place, which nobody else gets meanwhile. What sessions may
    /// still ask about must be saved before.
    ///
    /// # Errors
    /// As for connecting; the connection is closed then, too.
    pub async fn open_anew(&mut self) -> Result<(), BackendError> {
        // The old one keeps the place until the new one is there: whoever gives up meanwhile gives the place back.
        self.hang_up();
        self.server.connects.set(self.server.connects.get() + 1);
        let (metrics, server) = self.server.metrics();
        let mut fresh = match caught(self.server.open_one(&self.pool, None)).await {
            Ok(fresh) => fresh,
            Err(error) => {
                metrics.connection_failed(server);
                return Err(error);
            }
        };
        metrics.connection_closed(server);
        metrics.connection_opened(server);
        fresh.succeed(self);
        self.conn = Some(fresh);
        Ok(())
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
