//! A statement whose answer is for the cache as well: what its server is known to have before it is asked, and whether
//! the answer is one to be kept.

use std::time::Instant;

use millrace_backend::pool::Lease;
use millrace_engine::outcome::Outcome;
use millrace_protocol::Status;
use millrace_sql::{Family, Flags, Statement};
use millrace_topology::{GtidSet, Waits};

use crate::session::Session;
use crate::session::statement::fill::Source;

impl Session {
    /// The statement is about to be sent on this connection: what its server is known to have by now.
    #[cold]
    pub(super) fn read_for_cache(&mut self, lease: &Lease, waits: bool) {
        if let Some(fill) = self.running.fill.as_mut().filter(|fill| fill.is_timed()) {
            return fill.begin(None);
        }
        let required = waits.then(|| self.required().clone());
        let source = self.source(lease, required.as_ref());
        if let Some(fill) = &mut self.running.fill {
            fill.begin(source);
        }
    }

    /// What is known of the server of a connection before it is asked; none where a result of it cannot be placed.
    fn source(&self, lease: &Lease, required: Option<&GtidSet>) -> Option<Source> {
        let server = lease.server;
        if !lease.is_there() {
            return None;
        }
        let (incarnation, is_primary) = self.worker.cluster.with_world(|world| {
            let view = world.snapshot.server(server)?;
            let is_primary = world.snapshot.primary == Some(server);
            (view.waits == Waits::Gtids).then_some((view.incarnation, is_primary))
        })?;
        // MariaDB's primary has a transaction in its position before it is visible.
        if is_primary && lease.family == Family::MariaDb {
            return None;
        }
        let positions = self.worker.shared.monitor.positions();
        let known = positions.newer(server, 0);
        positions.want(server);
        let known = known.filter(|known| known.incarnation == incarnation)?;
        let mut lower = GtidSet::clone(&known.executed);
        if let Some(required) = required {
            lower.union(required);
        }
        Some(Source {
            server,
            incarnation,
            lower,
        })
    }

    /// The statement has been answered: what was read is placed, if it is all that there is to know of the answer.
    #[cold]
    pub(super) fn end_fill(&mut self, outcome: &Outcome) {
        let Some(fill) = self.running.fill.take() else {
            return;
        };
        let changes = outcome.state_changed
            || outcome.positioned
            || outcome.schema.is_some()
            || !outcome.variables.is_empty();
        let odd =
            Status::IN_TRANS | Status::MORE_RESULTS | Status::CURSOR_EXISTS | Status::PS_OUT_PARAMS;
        let is_plain = outcome.error.is_none()
            && outcome.result_sets == 1
            && outcome.warnings == 0
            && outcome.has_status
            && outcome.status.contains(Status::AUTOCOMMIT)
            && !outcome.status.intersects(odd)
            && !changes;
        if is_plain {
            let positions = self.worker.shared.monitor.positions();
            fill.end(outcome.rows, |server| positions.mark(server));
        }
    }

    /// A write that may not be in the binary log, which keeps the cache true: nobody knows what it has changed.
    pub(super) fn note_unlogged(&mut self, class: &Statement) {
        let Some(cache) = self.worker.cached.get() else {
            return;
        };
        let is_off = self.image.vars.state.is_off("sql_log_bin");
        if is_off || class.flags.contains(Flags::SET_STATEMENT) {
            cache.store().distrust(Instant::now());
        }
    }
}
