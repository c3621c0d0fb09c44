//! Places for connections to a server: one limit over all workers, of which none keeps more than its
//! share while sessions of another wait.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::conn::{Conn, Permit};
use crate::pool::{Pool, ServerPool};

/// How long a connection that is to be closed may take to say what its last user might ask about.
const SAVING: Duration = Duration::from_secs(10);

impl ServerPool {
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

    /// A worker keeps no more than this while others starve. Where there are fewer connections than
    /// workers, that is none: they go round.
    pub(super) fn share(&self) -> usize {
        let (limit, workers) = (self.options.max_connections, self.workers);
        if limit < workers {
            0
        } else {
            limit.div_ceil(workers)
        }
    }

    /// When the idle connection unused for longest was used, in ticks.
    pub(super) fn oldest(&self) -> Option<u64> {
        let pools = self.pools.borrow();
        let firsts = pools
            .values()
            .filter_map(|pool| pool.idle.borrow().oldest());
        firsts.min()
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

    /// Sessions of this worker wait for a place.
    pub(super) fn is_starving(&self) -> bool {
        let bit = 1u64 << (self.worker % 64);
        self.count.starving.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether sessions of this worker wait for a place, beyond which it can open no connection.
    pub(super) fn mark_starving(&self, starving: bool) {
        let bit = 1u64 << (self.worker % 64);
        let before = self.count.starving.load(Ordering::Relaxed);
        if (before & bit != 0) == starving {
            return;
        }
        if starving {
            self.count.starving.fetch_or(bit, Ordering::AcqRel);
            // Others may sit on idle connections and never look at the bit.
            (self.wake_workers)(!bit, self.facts.borrow().id);
        } else {
            self.count.starving.fetch_and(!bit, Ordering::AcqRel);
            // What others left to this worker, because it starved, is theirs now.
            if self.count.open() < self.options.max_connections {
                self.nudge_starving();
            }
        }
    }

    pub(super) fn starving_elsewhere(&self) -> u64 {
        let bit = 1u64 << (self.worker % 64);
        self.count.starving.load(Ordering::Relaxed) & !bit
    }

    pub(super) fn nudge_starving(&self) {
        let starving = self.starving_elsewhere();
        if starving != 0 {
            (self.wake_workers)(starving, self.facts.borrow().id);
        }
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

    pub(super) fn gone(&self, count: usize) {
        let (metrics, server) = self.metrics();
        (0..count).for_each(|_| metrics.connection_closed(server));
        self.open_here
            .set(self.open_here.get().saturating_sub(count));
    }

    /// Places are free: they are for those who wait here, and what these leave for others.
    pub(super) fn fill(&self) {
        self.pump();
        if self.count.open() < self.options.max_connections {
            self.nudge_starving();
        }
    }

    /// More than this worker's share, while others starve. Those who wait here have the rest.
    pub(super) fn has_too_many(&self) -> bool {
        self.starving_elsewhere() != 0 && self.open_here.get() > self.share()
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
}
