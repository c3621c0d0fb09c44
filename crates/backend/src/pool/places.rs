//! Places for connections to a server: one limit over all workers, of which none keeps more than its
//! share while sessions of another wait. Counts them, and says who is short of them.

use std::sync::atomic::Ordering;

use crate::pool::ServerPool;

impl ServerPool {
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

    pub(super) fn gone(&self, count: usize) {
        let (metrics, server) = self.metrics();
        (0..count).for_each(|_| metrics.connection_closed(server));
        self.open_here
            .set(self.open_here.get().saturating_sub(count));
    }

    /// More than this worker's share, while others starve. Those who wait here have the rest.
    pub(super) fn has_too_many(&self) -> bool {
        self.starving_elsewhere() != 0 && self.open_here.get() > self.share()
    }
}
