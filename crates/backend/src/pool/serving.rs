//! Connections and places that come free, and who gets them: who waits is served in order, with idle connections and
//! with new ones. Opens what is needed, and closes what is in the way.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use millrace_engine::books::ByLogin;
use tokio::time::Instant;
use tracing::error;

use crate::concurrency::Running;
use crate::conn::{Conn, Permit};
use crate::error::BackendError;
use crate::fresh::Version;
use crate::idle::Found;
use crate::pool::limits::{Limit, PAUSES, REASON};
use crate::pool::{CheckoutRequest, Pool, ServerFacts, ServerPool, Waiter};

/// How long a connection that is to be closed may take to say what its last user might ask about.
const SAVING: Duration = Duration::from_secs(10);

/// Seconds for which no connection is opened that nobody waits for, after the server refused one.
const SPARE_AFTER: u64 = 60;

/// Runs a connection's opening to its end. One that panics has failed like any other: nobody waits for it for
/// ever, and its place is free.
pub(super) async fn caught<T>(
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

    /// There is room, or another worker is starving: gives it the place of a connection that nobody
    /// here uses. [`ServerPool::pump`] is to follow.
    pub fn give_room(&self) {
        self.yielded.set(false);
        if self.starving_elsewhere() == 0 || self.is_starving() {
            return;
        }
        if self.count.open() < self.options.max_connections || self.evict() {
            self.nudge_starving();
        }
    }

    pub(super) fn permit(&self) -> Option<Permit> {
        let limit = self.options.max_connections;
        let has_enough = self.yielded.get() || self.open_here.get() >= self.share().max(1);
        let enough = has_enough && self.starving_elsewhere() != 0;
        let free = match enough {
            true => None,
            false => Permit::take(&self.count.open, limit),
        };
        free.or_else(|| {
            self.evict()
                .then(|| Permit::take(&self.count.open, limit))
                .flatten()
        })
    }

    /// Closes one idle connection, the one unused for longest. True if there was one.
    fn evict(&self) -> bool {
        let victim = {
            let pools = self.pools.borrow();
            let mut oldest: Option<((u64, u64), Rc<Pool>)> = None;
            for pool in pools.values() {
                // Of those equally old, the same whatever the map's order.
                if let Some(age) = pool.idle.borrow().oldest().map(|used| (used, pool.serial))
                    && oldest.as_ref().is_none_or(|(oldest, _)| age < *oldest)
                {
                    oldest = Some((age, pool.clone()));
                }
            }
            oldest
        };
        let victim = victim.and_then(|(_, pool)| pool.idle.borrow_mut().take_oldest());
        let Some(conn) = victim else {
            return false;
        };
        if conn.books.is_missed() {
            self.retire(conn);
            return false;
        }
        drop(conn);
        let (metrics, server) = self.metrics();
        metrics.connection_closed(server);
        self.open_here.set(self.open_here.get() - 1);
        true
    }

    /// Closes a connection that is in nobody's way; its place is free then.
    pub(super) fn retire(&self, conn: Box<Conn>) {
        self.close(conn, |server| server.closed(1));
    }

    /// Closes a connection, after what its last user may still ask about has been read.
    fn close(&self, mut conn: Box<Conn>, then: fn(&ServerPool)) {
        conn.books.leave_owner();
        let Some(me) = self.me.upgrade().filter(|_| conn.books.is_missed()) else {
            drop(conn);
            then(self);
            return;
        };
        tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(SAVING, conn.save_unread()).await;
            drop(conn);
            then(&me);
        });
    }

    /// Closes all idle connections at once, as the way to the server may be lost to them: nothing is
    /// asked on them before.
    pub fn discard_idle(&self) {
        let mut gone = 0;
        for pool in self.pools.borrow().values() {
            gone += pool.idle.borrow_mut().take_all().len();
        }
        self.closed(gone);
    }

    /// `count` of this worker's connections are gone; their places are free.
    pub(super) fn closed(&self, count: usize) {
        if count > 0 {
            self.gone(count);
            self.fill();
        }
    }

    /// Places are free: they are for those who wait here, and what these leave for others.
    pub(super) fn fill(&self) {
        self.pump();
        if self.count.open() < self.options.max_connections {
            self.nudge_starving();
        }
    }

    /// Leaves the place of a connection to another worker.
    #[cold]
    pub(super) fn surrender(&self, conn: Box<Conn>) {
        self.yielded.set(self.share() == 0);
        self.close(conn, |server| {
            server.gone(1);
            server.nudge_starving();
            // Those who wait here have had to for others to end: now they do for a place.
            server.see_to_others();
        });
    }

    /// The server did not let a connection in. True where it has a limit: who can go elsewhere is told
    /// so, and the others wait on.
    pub(super) fn meet_limit(&self, pool: &Rc<Pool>, error: &BackendError) -> bool {
        let BackendError::Server(error) = error else {
            return false;
        };
        let Some(limit) = Limit::of(error) else {
            return false;
        };
        // One of those that the account has may come back. What else is open is not known to end.
        if limit == Limit::PerHour && pool.leased() == 0 && pool.opening() == 0 {
            return false;
        }
        let now = Instant::now();
        let before = pool.limited.borrow_mut().take();
        let again = before.is_some_and(|(until, _)| now < until + REASON);
        let pause = PAUSES[usize::from(again)];
        *pool.limited.borrow_mut() = Some((now + pause, error.clone()));
        match limit {
            Limit::Server => self.free_one(),
            Limit::Account => {
                if let Some(tell) = &*self.on_limit.borrow() {
                    tell(&pool.key.account.user);
                }
            }
            Limit::PerHour => {}
        }
        self.send_elsewhere(pool, error);
        let me = self.me.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(pause).await;
            if let Some(server) = me.upgrade() {
                server.pump();
            }
        });
        true
    }

    /// Closes an idle connection of any kind.
    fn free_one(&self) {
        let pools = self.pools.borrow();
        let idle = pools.values().find(|pool| pool.idle() > 0).cloned();
        drop(pools);
        let victim = idle.and_then(|pool| pool.idle.borrow_mut().take_oldest());
        if let Some(conn) = victim {
            self.retire(conn);
        }
    }

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

    pub(super) async fn open_one(
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
                conn.books.has_by_login(facts.fresh.by_login());
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
        let as_by_login =
            facts.fresh.has_init_connect() || facts.fresh.by_login() != ByLogin::Nothing;
        // On a cluster's node it would ignore `wsrep_sync_wait`.
        if as_by_login || facts.in_cluster {
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
    pub(super) fn take_back(&self, conn: Box<Conn>, pool: &Rc<Pool>) {
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
        // It may have been on its way to a session that did not take it. Who may still ask about it need not wait.
        conn.books.saved();
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
    pub(super) fn lost(&self, conn: Box<Conn>) {
        if conn.path_lost {
            self.discard_idle();
        }
        drop(conn);
        self.closed(1);
    }
}

impl Pool {
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
}
