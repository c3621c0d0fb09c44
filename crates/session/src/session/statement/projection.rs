//! What of its position a read needs, by the tables and keys that it names: docs/consistency.md, "By table and key".
//! For servers with GTIDs whose primary's binary log is followed; all others go by positions.

use std::borrow::Cow;
use std::sync::Arc;

use millrace_backend::cache::Cache;
use millrace_engine::request::{Request, Task};
use millrace_routing::{Consistency, Freshness};
use millrace_sql::{Access, Kind};
use millrace_topology::{GtidSet, ServerView, Waits};

use crate::session::Session;

impl Session {
    /// The log that tells what was written where, if the statement is a read that it can say something about, and some
    /// server is not known to have all that the session must see. Nothing is looked up where all have it.
    #[inline]
    fn projecting_log(&self, request: &Request<'_>) -> Option<&Arc<Cache>> {
        let log = self.worker.cached.log()?;
        (!self.image.reads.position.is_empty() && self.is_held(request)).then_some(log)
    }

    #[cold]
    fn is_held(&self, request: &Request<'_>) -> bool {
        self.settings.options.routing.freshness == Freshness::Table
            && self.is_projectable(request)
            && self.is_awaited()
    }

    /// One statement with a snapshot of its own: in a transaction the first read decides for all that follow.
    fn is_projectable(&self, request: &Request<'_>) -> bool {
        let reads = &self.image.reads;
        let level = self.level_for(request);
        let tx = &self.image.tx;
        request.access == Access::Read
            && matches!(request.task, Task::Query | Task::Execute)
            && request.inner.is_none()
            && request.class.kind == Kind::Select
            && matches!(level, Consistency::Session | Consistency::Instance)
            && !(reads.unknown || reads.stale)
            && reads.primary_position.is_none()
            && self.lease.is_none()
            && !tx.is_deferred()
            && tx.replay.is_none()
            && !self.image.autocommit_off()
            && self.handle.pins().is_empty()
    }

    /// Whether a replica that takes reads is not known to have what the session must see.
    fn is_awaited(&self) -> bool {
        let required = &self.image.reads.position;
        self.worker.cluster.with_known(|known| {
            self.worker.cluster.with_world(|world| {
                let snapshot = &world.snapshot;
                let lacks = |view: &ServerView| {
                    view.unfit.is_none()
                        && snapshot.primary != Some(view.id)
                        && view.waits == Waits::Gtids
                        && !view.executed.contains(required)
                        && !known
                            .get(view.id.index())
                            .is_some_and(|known| known.contains(required))
                };
                snapshot.servers.iter().any(lacks)
            })
        })
    }

    /// Whether the log has yet to tell of what the session must see, and is worth a short wait: the statement could go
    /// to a server at once whose tables are as they must be.
    #[inline]
    pub(super) fn awaits_log(&mut self, request: &Request<'_>) -> bool {
        let reads = &self.image.reads;
        self.worker.cached.log().is_some()
            && request.access == Access::Read
            && (!reads.position.is_empty()
                || self.worker.shared.written.counted() != reads.written_seen)
            && self.is_ahead_of_log(request)
    }

    #[cold]
    fn is_ahead_of_log(&mut self, request: &Request<'_>) -> bool {
        if self.level_for(request) == Consistency::Instance {
            self.note_all_written();
        }
        self.projecting_log(request).is_some_and(|log| {
            let (store, position) = (log.store(), &self.image.reads.position);
            position.is_comparable(store.applied()) && !store.knows(position)
        })
    }

    /// Waits for the log, for a moment.
    pub(super) async fn await_log(&mut self) {
        let worker = self.worker.clone();
        if let Some(log) = worker.cached.log() {
            log.knows(&self.image.reads.position, None).await;
        }
    }

    /// Notes what of the position the read needs. `text`: where the request does not bring it.
    #[inline]
    pub(super) fn project(&mut self, request: &Request<'_>, text: Option<&[u8]>) {
        self.forget_projected();
        if let Some(log) = self.projecting_log(request) {
            let log = log.clone();
            self.image.reads.projected = self.projected(&log, request, text);
            if self.image.reads.projected.is_some() {
                self.running.route.by_table = true;
                self.worker.metrics().read_by_table();
            }
        }
    }

    /// The statement under way is held to all of its position.
    #[inline]
    pub(super) fn forget_projected(&mut self) {
        if self.image.reads.projected.is_some() {
            self.image.reads.projected = None;
            self.running.route.by_table = false;
        }
    }

    #[cold]
    fn projected(
        &self,
        log: &Cache,
        request: &Request<'_>,
        text: Option<&[u8]>,
    ) -> Option<Box<GtidSet>> {
        let position = &self.image.reads.position;
        let text = match text {
            Some(text) => Cow::Borrowed(text),
            None => self.text_of(request)?,
        };
        let looked = self.looked(request, &text).ok()?;
        let definitions = log.store().definitions().map(|(all, _)| all.clone())?;
        let accesses = looked.shows(&definitions)?;
        let mut required = log.store().project(position, &accesses)?;
        self.worker.cluster.with_world(|world| {
            // What no replica will ever have is not to be waited for.
            if let Some(never) = &world.snapshot.unreplicated {
                required.subtract(never);
            }
        });
        // Beside what the position has, the log may have changes that nobody waits for: a server that has them is as
        // good, but none is made to wait for them.
        let will_do = position.contains(&required)
            || self.worker.cluster.with_known(|known| {
                self.worker.cluster.with_world(|world| {
                    let snapshot = &world.snapshot;
                    let mut servers = snapshot.servers.iter();
                    servers.any(|view| {
                        let known = known.get(view.id.index());
                        view.unfit.is_none()
                            && snapshot.primary != Some(view.id)
                            && known.is_some_and(|known| known.contains(&required))
                    })
                })
            });
        will_do.then(|| Box::new(required))
    }
}
