//! What a session's reads must see: the level that it asks for, what it wrote and has seen, and
//! for the strictest level how far the primary is at this moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_backend::pool::Lease;
use millrace_backend::positions::Position;
use millrace_engine::expression;
use millrace_engine::image::reads::{Ahead, LastRead};
use millrace_engine::outcome::Outcome;
use millrace_engine::request::Request;
use millrace_protocol::Capabilities;
use millrace_protocol::ok::OkFields;
use millrace_protocol::resultset::{Cell as Value, ColumnDef, TextResult};
use millrace_routing::{Consistency, Reads, Target, Wanted};
use millrace_sql::{Access, Family, Flags, HandlerOp, Kind, Scope, Statement, Traits, ValueKind};
use millrace_topology::{GtidSet, ObservationKind, ServerId, ServerView, Snapshot, Waits};

use crate::error::{Abort, ClientError};
use crate::session::Session;

/// The name of the variable that holds a session's level.
const VARIABLE: &str = "millrace_consistency";

/// After so many reads one after the other on one server, each before it was known how far that one
/// is, a session asks, so that the next may run elsewhere; the next times after twice as many each,
/// up to the second.
const READS: (u32, u32) = (4, 64);

/// Where all servers are idle, a session that moves only evens out their shares, and it waits for the
/// answer: no more is asked for that than once in this time.
const AT_LEISURE: Duration = Duration::from_millis(50);

/// Where others read, as far as a session can do better.
enum Crowd {
    /// Nobody else does.
    Alone,
    /// Another server has clearly less to do.
    Here,
    /// None has.
    Elsewhere,
}

/// Why a session had better not read where it has read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum MoveReason {
    /// Others have less to do.
    Crowded,
    /// The read is not for that server; until it is known how far that one is, only the primary can
    /// have it.
    Misplaced,
}

/// Where asking was not worth it, that is looked at again after so many reads.
const TURNS: u32 = 16;

/// A server that lacks no more transactions than this has them within moments.
const NEAR: u64 = 32;

/// An answer that takes longer is of no use: for balance, or beside a primary that answers at once.
const ASK_LIMIT: Duration = Duration::from_millis(100);

/// Until a server's demotion is known to all; it is passed on at once.
const DEMOTION_LIMIT: Duration = Duration::from_millis(100);

/// A primary that takes longer to say how far it is has the read itself.
const FRONTIER_LIMIT: Duration = Duration::from_secs(1);

/// So many intervals of a source are told apart in what a session must see.
const INTERVALS_MAX: usize = 32;

/// No server's id: where this is what was seen, no replica can be known to show no less.
const NOWHERE: ServerId = ServerId(u16::MAX);

impl Session {
    /// The position that a read must have reached.
    pub(in crate::session) fn required(&self) -> &GtidSet {
        let reads = &self.image.reads;
        let told = reads.primary_position.as_deref();
        told.or(reads.projected.as_deref())
            .unwrap_or(&reads.position)
    }

    /// Notes what the statement that has just been answered let the session see.
    pub(super) fn note_seen(
        &mut self,
        lease: &Lease,
        request: &Request<'_>,
        class: &Statement,
        outcome: &Outcome,
    ) {
        if request.prepares() {
            return;
        }
        let server = lease.server;
        self.image.reads.home = Some(server);
        if outcome.positioned && !reads_after_writing(class) {
            // Whoever has the session's transaction has all that was committed before it.
            self.image.reads.seen = None;
        } else if self.level_for(request) != Consistency::Eventual && !sees_nothing(class) {
            let monitor = &self.worker.shared.monitor;
            let mark = monitor.positions().mark(server);
            let (incarnation, waits, primary) = self.worker.cluster.with_world(|world| {
                let view = world.snapshot.server(server);
                let told = view.map_or((0, Waits::Nothing), |view| (view.incarnation, view.waits));
                (told.0, told.1, world.snapshot.primary)
            });
            // The primary has shown all only where nobody else has shown anything before.
            if waits == Waits::Cluster
                && (primary != Some(server) || self.image.reads.shown_by.is_none())
            {
                self.image.reads.shown_by = Some(server);
            }
            // Of another machine than the server's name means now, no incarnation of it says anything.
            let is_there = lease.is_there();
            let incarnation = if is_there { incarnation } else { u32::MAX };
            self.image.reads.answered_by(server, mark, incarnation);
            self.note_shown(server, primary, waits);
        }
    }

    /// A server has shown something. What the primary shows, it shows from then on.
    fn note_shown(&mut self, server: ServerId, primary: Option<ServerId>, waits: Waits) {
        if primary != Some(server) && matches!(waits, Waits::Gtids | Waits::Log) {
            self.note_ahead(primary, self.image.reads.seen);
        }
    }

    /// Memory has: what is visible on a replica, or only in the log. `settled`: all servers have executed it.
    pub(in crate::session) fn note_shown_by_memory(&mut self, settled: bool) {
        if settled && self.image.family == Family::MySql {
            return;
        }
        // MariaDB's primary counts as executed what it has logged.
        let by = self.image.reads.ahead.and_then(|ahead| ahead.by);
        self.note_ahead(self.worker.cluster.primary(), by);
    }

    fn note_ahead(&mut self, primary: Option<ServerId>, by: Option<LastRead>) {
        let unshown = self.worker.shared.monitor.unshown();
        let mark = primary.map_or(0, |primary| unshown.mark(primary));
        self.image.reads.ahead = Some(Ahead { primary, mark, by });
    }

    /// The server that the session has read from last, as long as it is not known how far that one
    /// was then; once it is known, any server that is as far will do.
    pub(in crate::session) fn resolve_last_read(&mut self) -> Option<ServerId> {
        let seen = self.image.reads.seen?;
        if self.worker.cluster.waits_of(seen.server) == Waits::Cluster {
            return self.resolve_in_cluster(seen.server);
        }
        let (primary, view) = self.worker.cluster.with_world(|world| {
            let snapshot = &world.snapshot;
            let view = snapshot.server(seen.server);
            let known = view.filter(|view| view.incarnation == seen.incarnation);
            let gone = known.filter(|view| !view.health.is_usable());
            let last = gone.map(|view| view.executed.clone());
            (snapshot.primary, known.map(|_| last))
        });
        let positions = self.worker.shared.monitor.positions();
        let found = match view {
            Some(_) => positions.since(seen.server, seen.mark),
            // Other data is there now.
            None => None,
        };
        let found = found.filter(|found| found.incarnation == seen.incarnation);
        if let Some(found) = found {
            if primary == Some(seen.server) {
                self.image.reads.primary_was_at(&found.visible);
                self.leave_out_unreplicated();
            } else if self.is_elsewhere(seen.server, &found) {
                self.image.reads.position.union(&found.visible);
            } else {
                return Some(seen.server);
            }
            return self.last_read_resolved();
        }
        match view {
            Some(None) => Some(seen.server),
            // Only the primary is sure to have what was seen.
            _ if primary.is_some() && self.client.target == Target::Auto => Some(NOWHERE),
            // The primary itself is gone, and with it what it alone had; or it is not to be asked. What
            // the server was last known to have is what can be asked for.
            Some(Some(last)) => {
                self.image.reads.position.union(&last);
                self.last_read_resolved()
            }
            None => self.last_read_resolved(),
        }
    }

    /// Nodes of a cluster are not asked how far they are. A read costs nothing on the node where the session
    /// has read last, as long as that one has what the session must see. Any node, asked to wait, shows no
    /// less: so where there has to be a wait, the session is free to go where it likes.
    fn resolve_in_cluster(&mut self, node: ServerId) -> Option<ServerId> {
        let reads = self.settings.options.routing.reads;
        let stays = self.worker.cluster.with_world(|world| {
            let is_primary = world.snapshot.primary == Some(node);
            let fit = world.snapshot.server(node).is_some_and(ServerView::is_fit);
            fit && (!is_primary || reads == Reads::All) && (is_primary || self.has_own(node))
        });
        if stays {
            return Some(node);
        }
        self.require_everything();
        None
    }

    /// Whether a node is known to have what the session must see.
    fn has_own(&self, node: ServerId) -> bool {
        self.image.reads.position.is_empty() || self.has_reached(node, &self.image.reads.position)
    }

    fn has_reached(&self, node: ServerId, position: &GtidSet) -> bool {
        self.worker.cluster.with_known(|known| {
            let known = known.get(node.index());
            known.is_some_and(|known| known.contains(position))
        })
    }

    /// Whether the primary may show less than the session must see, and the statement looks: a node of a
    /// cluster shows others' writes before the one that wrote them does, and a node that has just become the
    /// primary may have yet to apply what the one before it wrote.
    pub(super) fn may_primary_lag(&self, request: &Request<'_>) -> bool {
        let moved = self.worker.shared.written.moved();
        if self.image.reads.shown_by.is_none() && moved == 0 {
            return self.worker.cluster.is_applying() && self.may_group_lag(request);
        }
        let cluster = self.worker.cluster.with_world(|world| {
            let view = world.snapshot.primary_view();
            view.filter(|view| view.waits == Waits::Cluster)
                .map(|view| view.id)
        });
        let Some(primary) = cluster else { return false };
        let unapplied = || moved != 0 && !self.has_reached(primary, &GtidSet::Cluster(moved));
        if request.access == Access::Write && !request.prepares() && unapplied() {
            // It finds its rows where they are, and may find none; nobody would notice.
            return true;
        }
        let lags = || {
            self.image
                .reads
                .shown_by
                .is_some_and(|node| node != primary)
                || (!self.required().is_empty() && unapplied())
        };
        self.looks(request) && lags()
    }

    /// The same on a group's new primary.
    #[cold]
    fn may_group_lag(&self, request: &Request<'_>) -> bool {
        let Some(primary) = self.worker.cluster.primary() else {
            return false;
        };
        // A plain write finds its rows where they are, and may find none.
        let concerned = self.looks(request)
            || (request.access == Access::Write
                && !request.prepares()
                && self.level_for(request) != Consistency::Eventual);
        let required = self.required();
        concerned && !required.is_empty() && !self.has_reached(primary, required)
    }

    /// Whether a statement that is about to run, on whatever connection, looks at what was written before
    /// it. A plain write finds the rows as they are now: it waits for those that lock them, on a primary that has
    /// applied what was written before.
    pub(super) fn looks(&self, request: &Request<'_>) -> bool {
        let class = request.runs();
        if request.prepares() || self.level_for(request) == Consistency::Eventual {
            return false;
        }
        match request.access {
            // Of a table that was named before; and CHECKSUM TABLE.
            _ if class.kind == Kind::Handler(HandlerOp::Read) => true,
            _ if class.kind == Kind::Admin && !class.flags.contains(Flags::IMPLICIT_COMMIT) => true,
            Access::Session if !class.tables.is_empty() || !class.functions.is_empty() => true,
            Access::Session => false,
            // All that follows in the transaction sees what its first statement does.
            _ if self.image.tx.is_deferred() => true,
            _ if self.image.tx.replay.is_some() => true,
            _ if class.kind == Kind::Begin => true,
            Access::Read | Access::PrimaryRead => !sees_nothing(class),
            Access::Write => class.kind == Kind::Select || reads_after_writing(class),
        }
    }

    /// In a cluster: the next read must see all that was written anywhere until now, so that it is no matter
    /// where the session has read before.
    fn require_everything(&mut self) {
        let count = self.worker.shared.written.reserve();
        self.image.reads.position.union(&GtidSet::Cluster(count));
        self.image.reads.seen = None;
    }

    fn last_read_resolved(&mut self) -> Option<ServerId> {
        self.worker
            .cluster
            .bound(&mut self.image.reads.position, INTERVALS_MAX);
        self.image.reads.seen = None;
        self.worker.cluster.want_positions();
        None
    }

    /// What the primary has and no replica will ever have is not to be waited for.
    fn leave_out_unreplicated(&mut self) {
        let position = &mut self.image.reads.position;
        self.worker.cluster.with_world(|world| {
            if let Some(never) = &world.snapshot.unreplicated {
                position.subtract(never);
            }
        });
    }

    /// Whether what may be visible on the replica can be had from another server, now or within
    /// moments. A long transaction that is being applied is no reason to leave the server.
    fn is_elsewhere(&self, replica: ServerId, found: &Position) -> bool {
        if found.executed.contains(&found.visible) {
            return true;
        }
        self.worker.cluster.with_known(|known| {
            self.worker.cluster.with_world(|world| {
                let mut others = world.snapshot.servers.iter();
                let own = others.clone().find(|view| view.id == replica);
                own.is_none_or(|view| view.unfit.is_some())
                    || others.any(|view| {
                        let known = known.get(view.id.index());
                        view.id != replica
                            && view.unfit.is_none()
                            && known.is_some_and(|known| known.contains(&found.visible))
                    })
            })
        })
    }

    /// Whether a write may be answered without its position: the protocol has no room for it at the end
    /// of rows, or there is none.
    pub(super) fn may_be_untracked(&self, request: &Request<'_>) -> bool {
        if request.access != Access::Write {
            return false;
        }
        let class = request.runs();
        let ends_with_rows = !self
            .client
            .capabilities
            .contains(Capabilities::DEPRECATE_EOF)
            && match class.kind {
                Kind::Insert | Kind::Replace | Kind::Delete => self.image.family == Family::MariaDb,
                Kind::Select | Kind::Call | Kind::Multi | Kind::Unknown | Kind::Execute { .. } => {
                    true
                }
                _ => false,
            };
        ends_with_rows
            || self.worker.cluster.with_world(|world| {
                let primary = world.snapshot.primary_view();
                primary.is_none_or(|view| view.waits == Waits::Nothing)
            })
    }

    /// Whether a read that may only run where the session has read last had better not, and why:
    /// asking how far that server is would let it run elsewhere.
    pub(super) fn wants_to_move(&self, request: &Request<'_>) -> Option<MoveReason> {
        let seen = self
            .image
            .reads
            .seen
            .filter(|_| request.access == Access::Read)?;
        if self.level_for(request) == Consistency::Eventual
            || self.client.target == Target::PrimaryOnly
        {
            return None;
        }
        let directions = request.directions.as_ref();
        let wanted = directions.and_then(|directions| directions.wanted);
        let routing = &self.settings.options.routing;
        self.worker.cluster.with_world(|world| {
            let snapshot = &world.snapshot;
            let asked = snapshot.server(seen.server).filter(|view| {
                view.waits != Waits::Nothing
                    && view.health.is_usable()
                    && view.incarnation == seen.incarnation
            });
            let view = asked?;
            let primary = snapshot.primary == Some(seen.server);
            let misplaced = view.unfit.is_some()
                || wanted.is_some_and(|wanted| {
                    // The primary may always be read.
                    wanted != Wanted::Primary && wanted.leaves_out(view.entry(), primary)
                });
            let (first, most) = READS;
            let reads = match primary && routing.reads == Reads::Replicas && wanted.is_none() {
                true => first,
                false => first.saturating_mul(1 << self.image.reads.asked).min(most),
            };
            // Where it is not worth it this time, it is not at once again.
            let turn = seen.reads >= reads && (seen.reads - reads).is_multiple_of(TURNS);
            if !misplaced && (!turn || routing.sticky) {
                return None;
            }
            // From here on it is a matter of one statement in many.
            let crowd = match primary && routing.reads == Reads::Replicas {
                true => Crowd::Here,
                false => self.crowd(seen.server, snapshot),
            };
            let others = snapshot.servers.iter();
            let mut others = others.filter(|view| view.id != seen.server && view.unfit.is_none());
            if !others.any(|view| snapshot.primary != Some(view.id) || routing.reads == Reads::All)
            {
                return None;
            }
            if misplaced {
                return Some(MoveReason::Misplaced);
            }
            let worth_it = !self.worker.cluster.is_asking_paused()
                && match crowd {
                    Crowd::Alone => self.worker.cluster.may_ask(AT_LEISURE),
                    Crowd::Here => self.worker.cluster.may_ask(Duration::ZERO),
                    Crowd::Elsewhere => false,
                };
            worth_it.then_some(MoveReason::Crowded)
        })
    }

    fn crowd(&self, server: ServerId, snapshot: &Snapshot) -> Crowd {
        let busy = |view: &ServerView| self.worker.cluster.servers.of(view.id).outstanding();
        let others = || {
            let takes_reads = |view: &&ServerView| view.id != server && view.unfit.is_none();
            snapshot.servers.iter().filter(takes_reads)
        };
        let own = snapshot.server(server).map_or(0, busy);
        let all = self.settings.options.routing.reads == Reads::All;
        let least = others()
            .filter(|view| all || snapshot.primary != Some(view.id))
            .map(busy)
            .min();
        match least {
            None => Crowd::Elsewhere,
            Some(_) if own == 0 && others().all(|view| busy(view) == 0) => Crowd::Alone,
            // By more than chance makes of statements that are dealt evenly.
            Some(least) if own > least + 3 + least / 2 => Crowd::Here,
            Some(_) => Crowd::Elsewhere,
        }
    }

    /// Asks how far the server is where the session has read last.
    pub(super) async fn ask_position_to_move(&mut self, reason: MoveReason) {
        let Some(seen) = &mut self.image.reads.seen else {
            return;
        };
        seen.reads = 0;
        self.image.reads.asked = (self.image.reads.asked + 1).min(7);
        let (server, mark) = (seen.server, seen.mark);
        if self.worker.cluster.waits_of(server) == Waits::Cluster {
            return self.require_everything();
        }
        let positions = self.worker.shared.monitor.positions();
        if reason == MoveReason::Crowded {
            // Whether another is as far must be known as well: nobody waits for the sake of balance. A
            // read that has to move waits on its server, where that is needed at all. The primary has
            // everything.
            self.worker.cluster.with_world(|world| {
                let primary = world.snapshot.primary;
                let others = world.snapshot.servers.iter().filter(|view| {
                    view.id != server && view.unfit.is_none() && primary != Some(view.id)
                });
                others.for_each(|view| positions.urge(view.id));
            });
        }
        let found = positions.ask(server, mark, ASK_LIMIT).await;
        if reason != MoveReason::Crowded {
            return;
        }
        match found {
            Some(found) => self
                .worker
                .cluster
                .note_asking(self.could_move(server, &found)),
            // The session stays where it is, and nobody asks for a while.
            None => self.worker.cluster.pause_asking(),
        }
    }

    /// Whether another server that is read has what may be visible here, or nearly.
    fn could_move(&self, server: ServerId, found: &Position) -> bool {
        self.worker.cluster.take_positions();
        let all = self.settings.options.routing.reads == Reads::All;
        self.worker.cluster.with_known(|known| {
            self.worker.cluster.with_world(|world| {
                let others = world.snapshot.servers.iter();
                let mut others = others.filter(|view| view.id != server && view.unfit.is_none());
                others.any(|view| match world.snapshot.primary == Some(view.id) {
                    true => all,
                    false => known
                        .get(view.id.index())
                        .is_some_and(|known| known.lacks(&found.visible) <= NEAR),
                })
            })
        })
    }

    /// For a read that must see all that was acknowledged anywhere: asks the primary how far it is.
    /// Where it does not say, the primary's position is not known.
    pub(super) async fn ask_frontier(&mut self) {
        let primary = self.worker.cluster.with_world(|world| {
            let primary = world.snapshot.primary_view()?;
            Some((primary.id, primary.incarnation, primary.waits))
        });
        let Some((primary, incarnation, waits)) = primary else {
            return;
        };
        let untracked = self.worker.shared.written.untracked();
        match waits {
            Waits::Nothing => return,
            // Whoever is asked to wait from now on has all.
            Waits::Cluster => {
                let all = GtidSet::Cluster(self.worker.shared.written.reserve());
                if let Some(untracked) = untracked {
                    self.worker.cluster.found(untracked, &all);
                }
                self.image.reads.primary_position = Some(Arc::new(all));
                return;
            }
            Waits::Gtids | Waits::Log => {}
        }
        if self.worker.cluster.is_applying() {
            // What it has is not all. It is waited for on the primary itself.
            self.note_all_written();
            return;
        }
        let positions = self.worker.shared.monitor.positions();
        let mark = positions.mark(primary);
        let found = positions.ask(primary, mark, FRONTIER_LIMIT).await;
        let Some(found) = found.filter(|found| found.incarnation == incarnation) else {
            return;
        };
        if found.read_only && !self.stays_primary(primary).await {
            return;
        }
        if let Some(untracked) = untracked {
            self.worker.cluster.found(untracked, &found.visible);
        }
        if waits == Waits::Log {
            // The session's own writes are in it, and what was required of another log is not comparable.
            self.image.reads.position = GtidSet::clone(&found.visible);
            self.image.reads.stale = false;
        }
        self.image.reads.primary_position = Some(found.visible);
    }

    /// What was the primary takes no writes any more, so that somebody else may: reads that must see
    /// them have to wait until it is known who. True where it is the primary all the same, because
    /// the configuration says so.
    async fn stays_primary(&self, server: ServerId) -> bool {
        let kind = ObservationKind::RefusedWrite;
        self.worker.shared.monitor.observe(server, kind);
        let begun = Instant::now();
        let is_primary = || self.worker.cluster.primary() == Some(server);
        while is_primary() && begun.elapsed() < DEMOTION_LIMIT && !self.handle.has_ended() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        is_primary()
    }

    /// Whether the statement is a read that must see all that was acknowledged anywhere, or through
    /// this process where not all of that is known by its position.
    pub(super) fn needs_primary_position(&self, request: &Request<'_>) -> bool {
        request.access == Access::Read
            && match self.level_for(request) {
                Consistency::Global => true,
                Consistency::Instance => self.worker.cluster.has_untracked(),
                Consistency::Session => self.must_ask_for_own(),
                Consistency::Eventual => false,
            }
    }

    /// Whether the session has written something, and servers without GTIDs have not said where.
    fn must_ask_for_own(&self) -> bool {
        self.image.reads.stale && self.worker.cluster.waits_of_primary() == Waits::Log
    }

    /// What was written through this process is in the session's position, its own writes among it.
    pub(super) fn has_all_written(&mut self) {
        if self.must_ask_for_own() && !self.worker.cluster.has_untracked() {
            self.image.reads.stale = false;
        }
    }

    /// Something was committed on a server that does not tell where. Noted before the client is told that it
    /// was: whoever hears of it from the client may ask for it at once.
    pub(super) fn note_untold(&mut self, server: ServerId) {
        match self.worker.cluster.waits_of(server) {
            Waits::Cluster => {
                let count = self.worker.cluster.count_write();
                self.image.reads.position.union(&GtidSet::Cluster(count));
                if self.worker.cluster.primary() != Some(server) {
                    self.worker.shared.written.has_moved();
                }
            }
            Waits::Log => {
                self.image.reads.stale = true;
                self.worker.shared.written.count_untracked();
                self.worker.shared.monitor.positions().stir();
            }
            Waits::Gtids | Waits::Nothing => return,
        }
        self.running.outcome.positioned = true;
    }

    /// What a statement is guaranteed to see: a hint or a rule counts more than the session's own
    /// level.
    pub(in crate::session) fn level_for(&self, request: &Request<'_>) -> Consistency {
        let said = request.directions.as_ref();
        let said = said.and_then(|directions| directions.consistency);
        match self.image.tx.is_deferred() {
            false => said.unwrap_or(self.image.reads.level),
            // Its first statement says what all that follow will see.
            true => said.map_or(self.image.reads.level, |said| {
                said.max(self.image.reads.level)
            }),
        }
    }

    /// Statements about variables of Millrace's own, which no server knows.
    pub(in crate::session) async fn own_variable(
        &mut self,
        class: &Statement,
        text: &[u8],
    ) -> Result<(), Abort> {
        match class.kind {
            Kind::Set => self.set_own_variable(class, text).await,
            _ => self.show_own_variable(class, text).await,
        }
    }

    async fn set_own_variable(&mut self, class: &Statement, text: &[u8]) -> Result<(), Abort> {
        let [assignment] = class.assignments[..] else {
            return Err(alone().into());
        };
        let millrace_sql::Target::System { scope, name } = assignment.target else {
            return Err(alone().into());
        };
        known(name.of(text))?;
        if scope != Scope::Session {
            let text = format!(
                "Variable '{VARIABLE}' is a SESSION variable and can't be used with SET GLOBAL"
            );
            return Err(ClientError::client(1228, b"HY000", text).into());
        }
        let value = assignment.value.of(text);
        let level = match assignment.kind {
            ValueKind::Default => Some(self.image.reads.level_given),
            _ => std::str::from_utf8(unquoted(value))
                .ok()
                .and_then(Consistency::from_name),
        };
        let Some(level) = level else {
            let value = String::from_utf8_lossy(unquoted(value)).into_owned();
            let text = format!(
                "Variable '{VARIABLE}' can't be set to the value of '{value}'; it takes eventual, \
                 session, instance and global"
            );
            return Err(ClientError::client(1231, b"42000", text).into());
        };
        if self.image.reads.level == Consistency::Eventual && self.client.target == Target::Auto {
            // What it has seen until now was not noted: only the primary is sure to have it.
            self.image.reads.seen = Some(LastRead {
                server: NOWHERE,
                mark: 0,
                incarnation: 0,
                reads: 0,
            });
        }
        self.set_level(level);
        self.ok(OkFields::default()).await
    }

    /// An empty one, with the column of the answer.
    pub(in crate::session) fn variable_table(&self, text: &[u8]) -> TextResult {
        let collation = match self.image.family {
            Family::MySql => 255,
            Family::MariaDb => 45,
        };
        let expression = expression(text);
        TextResult::new(vec![ColumnDef::text(&expression, collation)])
    }

    async fn show_own_variable(&mut self, class: &Statement, text: &[u8]) -> Result<(), Abort> {
        let [variable] = class.sysvars_read[..] else {
            return Err(alone().into());
        };
        known(variable.name.of(text))?;
        let expression = expression(text);
        let plain = class.kind == Kind::Select
            && class.tables.is_empty()
            && expression.starts_with("@@")
            && !expression
                .contains(|letter: char| letter.is_whitespace() || "(+-*/,".contains(letter));
        if !plain {
            return Err(alone().into());
        }
        let mut result = self.variable_table(text);
        result.row(&[Value::Bytes(self.image.reads.level.name().as_bytes())]);
        self.show(&result, 0).await
    }
}

fn alone() -> ClientError {
    let text = "Millrace: its own variables are set and read in a statement of their own: \
                SET @@millrace_consistency = 'global'; SELECT @@millrace_consistency";
    ClientError::client(1235, b"42000", text)
}

fn known(name: &[u8]) -> Result<(), Abort> {
    if millrace_sql::ident_eq(name, VARIABLE) {
        return Ok(());
    }
    let text = format!(
        "Unknown system variable '{}'",
        String::from_utf8_lossy(name)
    );
    Err(ClientError::client(1193, b"HY000", text).into())
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        bare => bare,
    }
}

/// Whether a statement may have read after its last write that it tells the position of.
fn reads_after_writing(class: &Statement) -> bool {
    !class.functions.is_empty() || class.is(Traits::RUNS_OTHERS)
}

/// Whether a statement's answer depends on nothing that others can change. What waits for others' writes
/// sees them.
fn sees_nothing(class: &Statement) -> bool {
    class.tables.is_empty()
        && class.functions.is_empty()
        && !class.flags.contains(Flags::WAITS)
        && class.is(Traits::SEES_NOTHING)
}
