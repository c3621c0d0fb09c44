//! What a replica or memory has shown, the primary may show a moment later: a transaction is sent to the replicas
//! before the primary itself makes it visible. A session that comes to the primary from there waits for that moment.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use millrace_backend::pool::Lease;
use millrace_backend::positions::Positions;
use millrace_backend::unshown::{Awaited, Unshown};
use millrace_engine::image::reads::Ahead;
use millrace_engine::request::Request;
use millrace_sql::{Access, Family, Kind};
use millrace_topology::{GtidSet, ServerId, Waits};

use crate::error::Abort;
use crate::session::Session;

/// A primary whose commits wait for replicas keeps its readers waiting for so long; by then its own limits
/// (`rpl_semi_sync_source_timeout`, 10 s by default) have ended that.
const LIMIT: Duration = Duration::from_secs(30);

/// After this it is looked whether the primary is still the one that was asked.
const LOOK: Duration = Duration::from_millis(250);

/// So many times nobody has asked the primary: nobody will.
const UNASKED_MAX: u32 = 4;

/// How long a replica is asked for what it has shown.
const REPLICA_LIMIT: Duration = Duration::from_secs(1);

impl Session {
    /// Whether the primary may show the statement less than the session has been shown elsewhere.
    pub(super) fn may_be_ahead(&self, lease: &Lease, request: &Request<'_>) -> bool {
        self.image.reads.ahead.is_some()
            && self.worker.cluster.is_primary(lease.server)
            && (self.looks(request) || self.looks_past_locks(request))
    }

    /// A write finds the rows as they are, and waits for those that a commit still locks. Up to READ COMMITTED it may
    /// pass over a locked row that, as it was before, is none of its own.
    fn looks_past_locks(&self, request: &Request<'_>) -> bool {
        let named = ["transaction_isolation", "tx_isolation"];
        let state = &self.image.vars.state;
        // Where it is not known yet, it is the default.
        let level = named.iter().find_map(|name| state.effective(name));
        request.access == Access::Write
            && !request.prepares()
            && matches!(
                request.runs().kind,
                Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete
            )
            && matches!(level, Some(b"READ-COMMITTED" | b"READ-UNCOMMITTED"))
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
        let mut awaited = match self
            .worker
            .cluster
            .with_world(|world| world.snapshot.is_in_group(primary))
        {
            // A member has what the group has ordered, though nobody owns it on the primary yet.
            true => Awaited::Executed(self.shown_elsewhere(ahead).await),
            false => Awaited::all(&found.told),
        };
        let mut asked = 1;
        while !awaited.is_over(&found.told) {
            if asked == 2 && self.image.family == Family::MySql {
                awaited.only(&self.shown_elsewhere(ahead).await);
            }
            match self.told_after(unshown, primary, found.number).await {
                Some(next) => found = next,
                None => return,
            }
            asked += 1;
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

    /// What the session may have been shown, as far as that can be known.
    async fn shown_elsewhere(&self, ahead: Ahead) -> GtidSet {
        let mut shown = self.image.reads.position.clone();
        if let Some(by) = ahead.by {
            let positions = self.worker.shared.monitor.positions();
            let told = positions.ask(by.server, by.mark, REPLICA_LIMIT).await;
            if let Some(told) = told.filter(|told| told.incarnation == by.incarnation) {
                shown.union(&told.visible);
            }
        }
        shown
    }
}
