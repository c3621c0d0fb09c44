//! Which servers may run a request, and in which order to try them: what the decision looks at.

use millrace_backend::pool::Pool;
use millrace_engine::request::Request;
use millrace_routing::{
    Balance, Candidate, Candidates, Consistency, Decision, Load, Options as RoutingOptions,
    SessionView, Target, Transaction as TxView, decide,
};
use millrace_sql::{Access, Kind, Statement};
use millrace_topology::{ServerId, Snapshot, Waits};

use crate::error::ClientError;
use crate::session::Session;
use crate::session::statement::without_primary::asks_server;
use millrace_worker::SERVERS;

impl Session {
    /// The servers that may run the request, in the order to try them.
    pub(in crate::session) fn candidates(
        &mut self,
        request: &Request<'_>,
    ) -> Result<Candidates, ClientError> {
        let seen = self.look_around(request);
        self.project(request, None);
        let decision = self.weigh(request, seen, |world, options, session, load| {
            decide(world, options, session, request.access, load)
        });
        match decision {
            Decision::Send { candidates, reason } => {
                // Where there was no choice, it is nobody's turn that is over.
                if reason.is_balanced() && seen.is_none() {
                    self.worker.cluster.rotate();
                }
                self.running.route.reason = Some(reason);
                Ok(candidates)
            }
            Decision::NoServer(why) => Err(ClientError::no_server(why)),
        }
    }

    /// Has servers that have a place for another connection come before one that has none. Where that is
    /// the primary, and it alone was to run the request, others may do in its place. True where another
    /// is to be tried now.
    #[cold]
    pub(super) fn is_passed_by(
        &mut self,
        request: &Request<'_>,
        pool: &Pool,
        candidates: &mut Candidates,
        at: usize,
    ) -> bool {
        if !pool.is_full() {
            return false;
        }
        let rest = at + 1..candidates.len();
        for other in rest {
            let server = candidates[other].server;
            if !self.pool(server).is_full() {
                candidates[at..].rotate_left(other - at);
                return true;
            }
        }
        let alone = candidates.len() == 1 && self.lease.is_none();
        if !alone || std::mem::replace(&mut self.running.route.passed, true) {
            return false;
        }
        let Some(access) = self.needs_elsewhere(request, true) else {
            return false;
        };
        self.running.route.instead = Some(access);
        let others = self.candidates(request);
        self.running.route.instead = None;
        let Ok(others) = others else {
            return false;
        };
        *candidates = others;
        // The primary's own word is worth a short wait.
        if asks_server(request.class) {
            candidates.insert(
                0,
                Candidate {
                    server: candidates[candidates.len() - 1].server,
                    wait: false,
                },
            );
            self.running.route.brief = true;
            return false;
        }
        true
    }

    /// The last server that was to be tried has just said that it lets nobody in: others may do in its
    /// place, or it is waited for. True where the request is to be tried once more.
    pub(super) fn looks_further(
        &mut self,
        request: &Request<'_>,
        pool: &Pool,
        candidates: &mut Candidates,
        at: usize,
    ) -> bool {
        let last = at + 1 == candidates.len();
        if !last || self.running.route.patient || self.was_killed() || !pool.is_full() {
            return false;
        }
        self.running.route.patient = true;
        self.is_passed_by(request, pool, candidates, at);
        true
    }

    /// Takes over what has become known of positions, as far as the request is a read that depends
    /// on it; answers where the session has read last, if that still binds it.
    pub(super) fn look_around(&mut self, request: &Request<'_>) -> Option<ServerId> {
        let level = self.level_for(request);
        if matches!(level, Consistency::Instance | Consistency::Global)
            && self.worker.cluster.is_applying()
        {
            // The primary has to have it, too.
            self.note_all_written();
        }
        if request.access != Access::Read || level == Consistency::Eventual || !self.has_choice() {
            return None;
        }
        self.worker.cluster.take_positions();
        if level == Consistency::Global {
            // Whatever was seen anywhere, the primary had when it was asked.
            return None;
        }
        let seen = self.resolve_last_read();
        if level == Consistency::Instance {
            // After that: what was known of the primary may be older than the last write.
            self.note_all_written();
            self.has_all_written();
            if self.image.reads.seen.is_some()
                && self.worker.cluster.waits_of_primary() == Waits::Cluster
            {
                // The node where it has read last may not have that.
                return self.resolve_last_read();
            }
        }
        seen
    }

    /// Whether a read of the session could run anywhere but on the primary: where it could not,
    /// nobody is asked how far he is, but at level `global` the primary what it has.
    fn has_choice(&self) -> bool {
        self.client.target != Target::PrimaryOnly
            && self.worker.cluster.with_world(|world| {
                let snapshot = &world.snapshot;
                snapshot.primary.is_none() || snapshot.servers.len() > 1
            })
    }

    /// Looks at all that the decision depends on.
    pub(in crate::session) fn weigh<T>(
        &self,
        request: &Request<'_>,
        seen: Option<ServerId>,
        look: impl FnOnce(&Snapshot, &RoutingOptions, &SessionView<'_>, &Load<'_>) -> T,
    ) -> T {
        let global = self.needs_primary_position(request);
        let directions = request.directions.as_ref();
        let view = SessionView {
            target: self.client.target,
            consistency: self.level_for(request),
            pinned_to: self.lease.as_ref().map(|lease| lease.server),
            transaction: match self.image.tx.deferred() {
                None if self.image.tx.replay.is_some() => self.lost_transaction(),
                None => TxView::None,
                Some(begin) if begin.read_only => TxView::ReadOnly,
                Some(_) => TxView::ReadWrite,
            },
            required: self.required(),
            seen,
            primary_lags: self.may_primary_lag(request),
            home: self.image.reads.home,
            wanted: directions.and_then(|directions| directions.wanted),
            about_server: request.access == Access::PrimaryRead
                && !self.image.vars.switches.finds_last_row
                && request
                    .inner
                    .map_or(request.class, |inner| inner.0)
                    .asks_about_server(),
            position_unknown: self.image.reads.unknown
                || self.image.reads.stale
                || (global && self.image.reads.primary_position.is_none()),
            serializable: self.image.vars.switches.serializable,
            autocommit_off: self.image.autocommit_off(),
            without_primary: self
                .running
                .route
                .instead
                .or_else(|| self.needs_without_primary(request)),
        };
        let (mut outstanding, mut response_us) = ([0; SERVERS], [0; SERVERS]);
        let measures = self.settings.options.routing.balance == Balance::Latency;
        self.worker.cluster.servers.each(|at, server| {
            if at < SERVERS {
                outstanding[at] = server.outstanding();
                if measures {
                    response_us[at] = server.response_us();
                }
            }
        });
        let behind = self.worker.cluster.behind();
        self.worker.cluster.with_known(|known| {
            let load = Load {
                outstanding: &outstanding,
                response_us: &response_us,
                known,
                behind,
                rotation: self.worker.cluster.rotation(),
            };
            let routing = &self.settings.options.routing;
            self.worker
                .cluster
                .with_world(|world| look(&world.snapshot, routing, &view, &load))
        })
    }

    /// The transaction that is to be run again.
    pub(super) fn lost_transaction(&self) -> TxView {
        let begun = self
            .image
            .tx
            .replay
            .as_ref()
            .map(|replay| replay.journal().begun());
        match begun {
            Some(begun) if begun.read_only => TxView::ReadOnly,
            _ => TxView::ReadWrite,
        }
    }

    /// A statement about the last one may run where that ran.
    pub(in crate::session) fn suits(
        &self,
        server: ServerId,
        class: &Statement,
        access: Access,
    ) -> bool {
        let primary = self.worker.cluster.primary();
        primary == Some(server)
            || (class.tables.is_empty()
                && (class.kind == Kind::Diagnostics
                    || (access <= Access::PrimaryRead && !class.names_server())))
    }
}
