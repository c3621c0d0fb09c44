//! What a session's reads must see: the level that it asks for, what it wrote and has seen, and
//! for the strictest level how far the primary is at this moment.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_backend::pool::Pool;
use millrace_backend::positions::Position;
use millrace_backend::state::SessionState;
use millrace_protocol::ok::OkFields;
use millrace_protocol::response::Expect;
use millrace_protocol::resultset::{Cell as Value, ColumnDef, TextResult};
use millrace_routing::{Consistency, Reads};
use millrace_sql::{Access, Family, Kind, Scope, Statement, Target, ValueKind};
use millrace_topology::{GtidSet, ObservationKind, ServerId, ServerView, Snapshot};
use tokio::sync::oneshot;

use crate::failure::{Answer, Failure};
use crate::lease::Request;
use crate::relay::Outcome;
use crate::session::Session;
use crate::worker::Worker;

/// The name of the variable that holds a session's level.
const VARIABLE: &str = "millrace_consistency";

/// Where a session has read last, as long as nobody knows how far the server was then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    server: ServerId,
    /// See [`millrace_backend::positions::Positions::mark`].
    mark: u64,
    incarnation: u32,
    /// Reads there one after the other.
    reads: u32,
}

/// After so many reads one after the other on one server, each before it was known how far that one
/// is, a session asks, so that the next may run elsewhere; the next times after twice as many each,
/// up to the second.
const READS: (u32, u32) = (4, 64);

/// The same for reads on a primary that was to take none.
const READS_ON_PRIMARY_MAX: u32 = 4;

/// Where others read, as far as a session can do better.
enum Crowd {
    /// Nobody else does.
    Alone,
    /// Another server has clearly less to do.
    Here,
    /// None has.
    Elsewhere,
}

/// A worker's sessions ask for the sake of balance once in this time at most.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// An answer that takes longer is of no use for balance.
const ASK_LIMIT: Duration = Duration::from_millis(100);

/// Until a server's demotion is known to all; it is passed on at once.
const DEMOTION_LIMIT: Duration = Duration::from_millis(100);

/// No server's id: where this is what was seen, no replica can be known to show no less.
const NOWHERE: ServerId = ServerId(u16::MAX);

impl Session {
    /// The position that a read must have reached.
    pub(crate) fn required(&self) -> &GtidSet {
        self.frontier.as_deref().unwrap_or(&self.position)
    }

    /// Notes what the statement that has just been answered let the session see.
    pub(crate) fn note_seen(
        &mut self,
        server: ServerId,
        request: &Request<'_>,
        class: &Statement,
        outcome: &Outcome,
    ) {
        if request.expect == Expect::Prepare {
            return;
        }
        self.home = Some(server);
        if outcome.positioned {
            // Whoever has the session's transaction has all that was committed before it.
            self.seen = None;
        } else if self.level_for(request) != Consistency::Eventual && !sees_nothing(class) {
            let monitor = &self.worker.shared.monitor;
            let mark = monitor.positions().mark(server);
            let incarnation = self.worker.with_world(|world| {
                let view = world.snapshot.server(server);
                view.map_or(0, |view| view.incarnation)
            });
            let before = self.seen.filter(|before| before.server == server);
            self.seen = Some(Seen {
                server,
                mark,
                incarnation,
                reads: before.map_or(1, |before| before.reads.saturating_add(1)),
            });
        }
    }

    /// The server that the session has read from last, as long as it is not known how far that one
    /// was then; once it is known, any server that is as far will do.
    pub(crate) fn settle_seen(&mut self) -> Option<ServerId> {
        let seen = self.seen?;
        let (primary, incarnation, last) = self.worker.with_world(|world| {
            let snapshot = &world.snapshot;
            let view = snapshot.server(seen.server);
            let gone = view.filter(|view| !view.health.is_usable());
            (
                snapshot.primary,
                view.map(|view| view.incarnation),
                gone.map(|view| view.executed.clone()),
            )
        });
        if incarnation != Some(seen.incarnation) {
            // Other data is there now. Only the primary is sure to have what was seen.
            return Some(NOWHERE);
        }
        if let Some(last) = last {
            if primary.is_some() {
                return Some(NOWHERE);
            }
            // The primary itself is gone, and with it what it alone had. What it was last known to
            // have is what can be asked for.
            self.position.union(&last);
            self.position.coalesce(8);
            self.seen = None;
            return None;
        }
        let positions = self.worker.shared.monitor.positions();
        let found = positions.since(seen.server, seen.mark);
        match found {
            Some(found) if found.incarnation == seen.incarnation => {
                if primary == Some(seen.server) {
                    // Whatever was required before and is not here is nowhere: a transaction of
                    // some replica's own, or one that was lost with an old primary.
                    self.position = GtidSet::clone(&found.visible);
                } else if self.is_elsewhere(seen.server, &found) {
                    self.position.union(&found.visible);
                } else {
                    return Some(seen.server);
                }
                self.position.coalesce(8);
                self.seen = None;
                self.worker.want_positions();
                None
            }
            Some(_) => Some(NOWHERE),
            None => Some(seen.server),
        }
    }

    /// Whether what may be visible on the replica can be had from another server, now or within
    /// moments. A long transaction that is being applied is no reason to leave the server.
    fn is_elsewhere(&self, replica: ServerId, found: &Position) -> bool {
        if found.executed.contains(&found.visible) {
            return true;
        }
        self.worker.with_known(|known| {
            self.worker.with_world(|world| {
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

    /// Whether a read that may only run where the session has read last had better not: asking how
    /// far that server is would let it run elsewhere.
    pub(crate) fn is_stuck(&self, request: &Request<'_>) -> bool {
        let Some(seen) = self.seen.filter(|_| request.access == Access::Read) else {
            return false;
        };
        let routing = &self.worker.options().routing;
        self.worker.with_world(|world| {
            let snapshot = &world.snapshot;
            let Some(view) = snapshot.server(seen.server) else {
                return false;
            };
            if !view.health.is_usable() {
                return false;
            }
            if view.unfit.is_some() {
                return true;
            }
            let misplaced =
                snapshot.primary == Some(seen.server) && routing.reads == Reads::Replicas;
            if misplaced && snapshot.servers.len() > 1 {
                return seen.reads >= READS_ON_PRIMARY_MAX && self.worker.may_ask(ASK_INTERVAL);
            }
            let (first, most) = READS;
            seen.reads >= first.saturating_mul(1 << self.asked).min(most)
                && !routing.sticky
                && match self.crowd(seen.server, snapshot) {
                    Crowd::Alone => true,
                    Crowd::Here => self.worker.may_ask(ASK_INTERVAL),
                    Crowd::Elsewhere => false,
                }
        })
    }

    fn crowd(&self, server: ServerId, snapshot: &Snapshot) -> Crowd {
        let leased = |view: &ServerView| self.worker.servers[view.id.index()].leased();
        let others = || {
            let takes_reads = |view: &&ServerView| view.id != server && view.unfit.is_none();
            snapshot.servers.iter().filter(takes_reads)
        };
        let own = snapshot.server(server).map_or(0, leased);
        let least = others()
            .filter(|view| snapshot.primary != Some(view.id))
            .map(leased)
            .min();
        match least {
            None => Crowd::Elsewhere,
            Some(_) if own == 0 && others().all(|view| leased(view) == 0) => Crowd::Alone,
            Some(least) if own > least + 2 + least / 4 => Crowd::Here,
            Some(_) => Crowd::Elsewhere,
        }
    }

    /// Asks how far the server is where the session has read last.
    pub(crate) async fn come_loose(&mut self) {
        let Some(seen) = &mut self.seen else { return };
        seen.reads = 0;
        self.asked = (self.asked + 1).min(7);
        let (server, mark) = (seen.server, seen.mark);
        let positions = self.worker.shared.monitor.positions();
        // Without an answer the session stays where it is.
        let _ = positions.ask(server, mark, ASK_LIMIT).await;
    }

    /// For a read that must see all that was acknowledged anywhere: asks the primary how far it is.
    /// False where it does not say.
    pub(crate) async fn ask_frontier(&mut self) -> bool {
        // Without GTIDs it can say nothing.
        let primary = self.worker.with_world(|world| {
            let primary = world.snapshot.primary_view();
            primary.filter(|view| view.gtid).map(|view| view.id)
        });
        let Some(primary) = primary else {
            return false;
        };
        let hidden = self.worker.shared.written.hidden();
        let pool = self.pool(primary);
        let found = frontier(&self.worker, pool, self.handle.uid, &self.state).await;
        if matches!(found, Frontier::Demoted) {
            self.await_demotion(primary).await;
        }
        self.frontier = match found {
            Frontier::At(position) => Some(position),
            Frontier::Unknown | Frontier::Demoted => None,
        };
        if let Some(frontier) = &self.frontier {
            self.worker.found(hidden, frontier);
        }
        self.frontier.is_some()
    }

    /// What was the primary takes no writes any more, so that somebody else may: reads that must see
    /// them have to wait until it is known who.
    async fn await_demotion(&self, server: ServerId) {
        let kind = ObservationKind::RefusedWrite;
        self.worker.shared.monitor.observe(server, kind);
        let begun = Instant::now();
        let is_primary = || self.worker.with_world(|world| world.snapshot.primary) == Some(server);
        while is_primary() && begun.elapsed() < DEMOTION_LIMIT && !self.handle.ended.get() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether the statement is a read that must see all that was acknowledged anywhere, or through
    /// this process where not all of that is known by its position.
    pub(crate) fn needs_frontier(&self, request: &Request<'_>) -> bool {
        request.access == Access::Read
            && match self.level_for(request) {
                Consistency::Global => true,
                Consistency::Instance => self.worker.has_hidden(),
                Consistency::Session | Consistency::Eventual => false,
            }
    }

    /// What a statement is guaranteed to see: a hint or a rule counts more than the session's own
    /// level.
    pub(crate) fn level_for(&self, request: &Request<'_>) -> Consistency {
        let said = request.directions.as_ref();
        said.and_then(|directions| directions.consistency)
            .unwrap_or(self.level)
    }

    /// Statements about variables of Millrace's own, which no server knows.
    pub(crate) async fn own_variable(
        &mut self,
        class: &Statement,
        text: &[u8],
    ) -> Result<(), Failure> {
        match class.kind {
            Kind::Set => self.set_own_variable(class, text).await,
            _ => self.show_own_variable(class, text).await,
        }
    }

    async fn set_own_variable(&mut self, class: &Statement, text: &[u8]) -> Result<(), Failure> {
        let [assignment] = class.assignments[..] else {
            return Err(alone().into());
        };
        let Target::System { scope, name } = assignment.target else {
            return Err(alone().into());
        };
        known(name.of(text))?;
        if scope != Scope::Session {
            let text = format!(
                "Variable '{VARIABLE}' is a SESSION variable and can't be used with SET GLOBAL"
            );
            return Err(Answer::client(1228, b"HY000", text).into());
        }
        let value = assignment.value.of(text);
        let level = match assignment.kind {
            ValueKind::Default => Some(self.level_given),
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
            return Err(Answer::client(1231, b"42000", text).into());
        };
        if self.level == Consistency::Eventual {
            // What it has seen until now was not noted: only the primary is sure to have it.
            self.seen = Some(Seen {
                server: NOWHERE,
                mark: 0,
                incarnation: 0,
                reads: 0,
            });
        }
        self.level = level;
        self.ok(OkFields::default()).await
    }

    async fn show_own_variable(&mut self, class: &Statement, text: &[u8]) -> Result<(), Failure> {
        let [variable] = class.sysvars_read[..] else {
            return Err(alone().into());
        };
        known(variable.name.of(text))?;
        let expression = crate::local::expression(text);
        let plain = class.kind == Kind::Select
            && class.tables.is_empty()
            && expression.starts_with("@@")
            && !expression
                .contains(|letter: char| letter.is_whitespace() || "(+-*/,".contains(letter));
        if !plain {
            return Err(alone().into());
        }
        let collation = match self.family {
            Family::MySql => 255,
            Family::MariaDb => 45,
        };
        let mut result = TextResult::new(vec![ColumnDef::text(&expression, collation)]);
        result.row(&[Value::Bytes(self.level.name().as_bytes())]);
        self.show(&result, 0).await
    }
}

fn alone() -> Answer {
    let text = "Millrace: its own variables are set and read in a statement of their own: \
                SET @@millrace_consistency = 'global'; SELECT @@millrace_consistency";
    Answer::client(1235, b"42000", text)
}

fn known(name: &[u8]) -> Result<(), Failure> {
    if millrace_sql::ident_eq(name, VARIABLE) {
        return Ok(());
    }
    let text = format!(
        "Unknown system variable '{}'",
        String::from_utf8_lossy(name)
    );
    Err(Answer::client(1193, b"HY000", text).into())
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        bare => bare,
    }
}

/// Whether a statement's answer depends on nothing that others can change.
fn sees_nothing(class: &Statement) -> bool {
    class.tables.is_empty()
        && class.functions.is_empty()
        && matches!(
            class.kind,
            Kind::Select
                | Kind::Do
                | Kind::Set
                | Kind::Use
                | Kind::Begin
                | Kind::Commit
                | Kind::Rollback
                | Kind::Savepoint
                | Kind::ReleaseSavepoint
                | Kind::RollbackTo
                | Kind::SetTransaction
                | Kind::Diagnostics
                | Kind::Deallocate
        )
}

// --- The question to the primary -----------------------------------------------------

/// One worker's questions to the primary: those who come while one is on its way wait for the next,
/// because they may have to see what was acknowledged since.
#[derive(Default)]
pub(crate) struct Questions {
    waiting: RefCell<Vec<oneshot::Sender<Frontier>>>,
    asking: Cell<bool>,
}

/// The answer.
#[derive(Debug, Clone)]
enum Frontier {
    /// It has all that was acknowledged anywhere before it was asked.
    At(Arc<GtidSet>),
    /// It takes no writes: another may be the primary already.
    Demoted,
    /// It could not be asked.
    Unknown,
}

async fn frontier(
    worker: &Rc<Worker>,
    pool: Rc<Pool>,
    uid: u64,
    state: &Rc<SessionState>,
) -> Frontier {
    let (sender, receiver) = oneshot::channel();
    worker.questions.waiting.borrow_mut().push(sender);
    if !worker.questions.asking.replace(true) {
        let (worker, state) = (worker.clone(), state.clone());
        tokio::task::spawn_local(async move {
            loop {
                let waiting = std::mem::take(&mut *worker.questions.waiting.borrow_mut());
                if waiting.is_empty() {
                    worker.questions.asking.set(false);
                    return;
                }
                let found = ask(&pool, uid, &state).await.unwrap_or(Frontier::Unknown);
                for waiter in waiting {
                    // Who has left meanwhile does not matter.
                    let _ = waiter.send(found.clone());
                }
            }
        });
    }
    receiver.await.unwrap_or(Frontier::Unknown)
}

/// On a connection of the account that asked first; any account may ask this.
async fn ask(pool: &Rc<Pool>, uid: u64, state: &Rc<SessionState>) -> Option<Frontier> {
    let mut lease = pool.take(uid, state).await.ok()?;
    let residue = !lease.residue.is_empty();
    if lease.last_user != 0 {
        lease.leave_owner();
    }
    // Until all is answered it is of no use to anybody else.
    lease.broken = true;
    if residue {
        lease.save_residue().await.ok()?;
    }
    let family = lease.family;
    // As long as it takes writes nobody else does: whoever makes another server the primary makes
    // this one read-only before.
    let question = match family {
        Family::MySql => "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.read_only",
        Family::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos, @@GLOBAL.read_only",
    };
    let rows = lease.ask(question).await.ok()??;
    (lease.last_user, lease.last_seq) = (0, 0);
    lease.residue = Default::default();
    lease.broken = false;
    lease.give_back();
    let mut cells = rows.rows.into_iter().next()?.into_iter();
    let (mut text, read_only) = (cells.next()??, cells.next()??);
    if !matches!(&read_only[..], b"0" | b"OFF") {
        return Some(Frontier::Demoted);
    }
    text.retain(|byte| !byte.is_ascii_whitespace());
    let family = match family {
        Family::MySql => millrace_topology::Family::MySql,
        Family::MariaDb => millrace_topology::Family::MariaDb,
    };
    let position = GtidSet::parse(family, &text).ok()?;
    Some(Frontier::At(Arc::new(position)))
}
