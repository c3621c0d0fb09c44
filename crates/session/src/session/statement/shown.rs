//! What a replica or memory has shown, the primary may show a moment later: a transaction is sent to the replicas
//! before the primary itself makes it visible. A session that comes to the primary from there waits for that moment.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use millrace_backend::pool::Lease;
use millrace_backend::positions::Positions;
use millrace_backend::unshown::{Awaited, Told, Unshown};
use millrace_engine::image::reads::Ahead;
use millrace_engine::request::Request;
use millrace_routing::Candidates;
use millrace_sql::{Access, Family};
use millrace_topology::{GtidSet, ServerId, Waits};

use crate::error::{Abort, ClientError};
use crate::session::Session;

/// A primary whose commits wait for replicas keeps its readers waiting for so long; by then its own limits
/// (`rpl_semi_sync_source_timeout`, 10 s by default) have ended that.
const LIMIT: Duration = Duration::from_secs(30);

/// After this it is looked whether the primary is still the one that was asked.
const LOOK: Duration = Duration::from_millis(250);

/// So many times nobody has asked the primary: nobody will.
const UNASKED_MAX: u32 = 4;

/// A primary that takes longer is asked again after this, and each time after so much more.
const STEP: Duration = Duration::from_millis(1);

/// At most.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// How long a replica is asked for what it has shown.
const REPLICA_LIMIT: Duration = Duration::from_secs(1);

impl Session {
    /// The primary, where it comes first of all that may run the statement and may show it less than the session has been
    /// shown: then that is waited for before a connection is taken, which others may need meanwhile.
    pub(super) fn primary_to_await(
        &self,
        decided: &Result<Candidates, ClientError>,
        request: &Request<'_>,
    ) -> Option<ServerId> {
        self.image.reads.ahead?;
        let first = decided.as_ref().ok()?.first()?.server;
        let is_primary = self.worker.cluster.is_primary(first);
        (is_primary && self.looks_at_all(request)).then_some(first)
    }

    fn looks_at_all(&self, request: &Request<'_>) -> bool {
        self.looks(request) || self.looks_past_locks(request)
    }

    /// Whether the primary may show the statement less than the session has been shown elsewhere.
    pub(super) fn may_be_ahead(&self, lease: &Lease, request: &Request<'_>) -> bool {
        self.image.reads.ahead.is_some()
            && self.worker.cluster.is_primary(lease.server)
            && self.looks_at_all(request)
    }

    /// A write finds the rows as they are, and waits for those that a commit still locks. Up to READ COMMITTED it may
    /// pass over a locked row that, as it was before, is none of its own.
    fn looks_past_locks(&self, request: &Request<'_>) -> bool {
        self.image.vars.switches.passes_locks
            && request.access == Access::Write
            && !request.prepares()
    }

    /// Waits until the primary shows all that others have shown to the session. Where the primary does not tell, or is
    /// one no more, what it shows is what counts.
    pub(super) async fn await_shown(&mut self, primary: ServerId) -> Result<(), Abort> {
        let Some(ahead) = self.image.reads.ahead else {
            return Ok(());
        };
        let killed = {
            let mut waiting = pin!(tokio::time::timeout(LIMIT, self.shows_all(primary, ahead)));
            let ended = poll_fn(|cx| {
                self.handle.register(cx);
                match self.was_killed() {
                    true => Poll::Ready(true),
                    false => waiting.as_mut().poll(cx).map(|_| false),
                }
            });
            ended.await
        };
        if killed {
            return Err(self.interrupted().await);
        }
        self.image.reads.ahead = None;
        Ok(())
    }

    async fn shows_all(&self, primary: ServerId, ahead: Ahead) {
        let unshown = self.worker.shared.monitor.unshown();
        let mark = match ahead.primary == Some(primary) {
            true => ahead.mark,
            false => unshown.mark(primary),
        };
        let Some(mut found) = self.told_after(unshown, primary, mark).await else {
            return;
        };
        let is_group = self
            .worker
            .cluster
            .with_world(|world| world.snapshot.is_in_group(primary));
        let mut awaited = match is_group {
            // A member has what the group has ordered, though nobody owns it on the primary yet.
            true => {
                let mut seen = self.image.reads.position.clone();
                if let Some(shown) = self.shown_by_replica(ahead).await {
                    seen.union(&shown);
                }
                // What a replica has of its own comes to nobody.
                if let Told::Gtids { executed, .. } = &*found.told {
                    seen.keep_sources_of(executed);
                }
                Awaited::Executed(seen)
            }
            false => Awaited::all(&found.told),
        };
        let mut pause = Duration::ZERO;
        for asked in 1.. {
            if awaited.is_over(&found.told) {
                return;
            }
            if asked == 2
                && self.image.family == Family::MySql
                && let Some(mut seen) = self.shown_by_replica(ahead).await
            {
                seen.union(&self.image.reads.position);
                awaited.only(&seen);
            }
            if asked > 2 {
                pause = (pause + STEP).min(PAUSE_MAX);
                tokio::time::sleep(pause).await;
            }
            match self.told_after(unshown, primary, found.number).await {
                Some(next) => found = next,
                None => return,
            }
        }
    }

    /// What the primary says in answer to a question after `mark`; none where it is the primary no more, or nobody can
    /// ask it.
    async fn told_after(
        &self,
        unshown: &Positions<Unshown>,
        primary: ServerId,
        mark: u64,
    ) -> Option<Unshown> {
        let incarnation = self.incarnation_of(primary)?;
        let mut unasked = 0;
        while unasked < UNASKED_MAX {
            if let Some(found) = unshown.ask(primary, mark, LOOK).await {
                return Some(found).filter(|found| found.incarnation == incarnation);
            }
            if self.incarnation_of(primary) != Some(incarnation) {
                return None;
            }
            unasked += u32::from(!unshown.is_asked(primary));
        }
        None
    }

    /// Of the primary, as long as the server is one, answers, and tells how far it is.
    fn incarnation_of(&self, primary: ServerId) -> Option<u32> {
        self.worker.cluster.with_world(|world| {
            let view = world.snapshot.primary_view()?;
            let tells = matches!(view.waits, Waits::Gtids | Waits::Log);
            let is_it = view.id == primary && view.health.is_usable() && tells;
            is_it.then_some(view.incarnation)
        })
    }

    /// What the replica can have shown; empty where it was memory alone, and none where nobody can tell.
    async fn shown_by_replica(&self, ahead: Ahead) -> Option<GtidSet> {
        let Some(by) = ahead.by else {
            return Some(GtidSet::new(self.image.family));
        };
        let positions = self.worker.shared.monitor.positions();
        let told = positions.ask(by.server, by.mark, REPLICA_LIMIT).await?;
        (told.incarnation == by.incarnation).then(|| GtidSet::clone(&told.visible))
    }
}
