//! What directions demand beyond the choice of a server: a turn, a deadline, a mirror image, another
//! text.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use millrace_backend::error::BackendError;
use millrace_backend::pool::{Lease, Pool};
use millrace_engine::request::{Main, Request, Task};
use millrace_engine::state::{self, SessionState};
use millrace_metrics::ErrorClass;
use millrace_protocol::response::{Event, Expect, Tracker};
use millrace_routing::rules::Directions;
use millrace_sql::{Access, Flags};
use millrace_topology::ServerId;
use millrace_worker::{kill_aside, run_kill};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::running::RuleActions;

/// Mirror images under way at once, of one worker; further ones are left out.
const MIRRORS_MAX: u32 = 32;

/// How long a KILL waits for a connection of the pool.
const SOON: Duration = Duration::from_millis(100);

/// A mirror image that takes longer is given up.
const MIRROR_LIMIT: Duration = Duration::from_secs(30);

/// Counts a mirror image for as long as it lives.
struct Mirror(Rc<Cell<u32>>);

impl Drop for Mirror {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Whether directions demand something before the statement is sent.
pub(super) fn demands(directions: &Directions) -> bool {
    directions.limited_by.is_some()
        || directions.time_limit.is_some()
        || directions.mirror.is_some()
}

impl Session {
    /// Waits for the statement's turn, sets its deadline and sends its mirror image.
    pub(super) async fn apply_rule_actions(
        &mut self,
        request: &Request<'_>,
        directions: &Directions,
    ) -> Result<(), Abort> {
        let mut rule_actions = RuleActions::default();
        if let Some(rule) = directions.limited_by {
            rule_actions.permit = Some(self.enter_rule(rule).await?);
        }
        if let Some(limit) = directions.time_limit {
            rule_actions.deadline = Some(self.set_deadline(limit));
        }
        if let (Some(bits), Main::Packet(packet)) = (directions.mirror, &request.main)
            && self.may_be_mirrored(request)
        {
            self.mirror(bits, packet);
        }
        self.running.rule_actions = Some(Box::new(rule_actions));
        Ok(())
    }

    async fn enter_rule(&self, number: u16) -> Result<OwnedSemaphorePermit, Abort> {
        let settings = &self.settings;
        let limit = settings.limits.get(usize::from(number)).cloned();
        let limit = limit.flatten();
        let Some(limit) = limit else {
            return Err(Abort::Ended);
        };
        let wait = settings.pool.wait_timeout;
        match tokio::time::timeout(wait, limit.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => {
                let rule = settings.rules.get(number);
                let name = rule.map_or("", |rule| &*rule.name);
                let text = format!(
                    "Millrace: as many statements as the rule `{name}` allows run already, and none \
                     ended within pool.wait_timeout ({wait:?})"
                );
                Err(ClientError::proxy(ErrorClass::Limit, 1226, b"42000", text).into())
            }
        }
    }

    /// Ends the statement on its server when its time is up.
    fn set_deadline(&mut self, limit: Duration) -> AbortHandle {
        self.handle.clear_timeout();
        let (handle, worker) = (self.handle.clone(), self.worker.clone());
        let (key, state) = (self.pool_key(), self.image.vars.state.clone());
        let task = tokio::task::spawn_local(async move {
            tokio::time::sleep(limit).await;
            handle.time_out();
            // Whatever comes of the KILL, nobody else is to meet it.
            let Some((server, thread)) = handle.target_for_kill() else {
                // It waits for a connection, and is not to run when it gets one.
                handle.interrupt();
                return;
            };
            let pool = worker.cluster.servers.of(server).pool(&key);
            let _ = tell_server(pool, handle.uid(), state, format!("KILL QUERY {thread}")).await;
        });
        task.abort_handle()
    }

    /// The statement's answer depends on nothing that only this session's connections have.
    fn may_be_mirrored(&self, request: &Request<'_>) -> bool {
        let class = request.class;
        let private = Flags::READS_USER_VARS | Flags::ASSIGNS_USER_VARS | Flags::LOCKING_READ;
        request.access == Access::Read
            && request.task == Task::Query
            && self.handle.pins().is_empty()
            && !self.image.tx.is_deferred()
            && !self.image.autocommit_off()
            && class.functions.is_empty()
            && !class.flags.intersects(private)
    }

    fn mirror(&mut self, bits: u64, packet: &[u8]) {
        let count = self.worker.mirrors.clone();
        let chosen = self.worker.cluster.with_world(|world| {
            let named = world.snapshot.servers.iter().filter(|view| {
                bits.checked_shr(u32::from(view.entry().0)).unwrap_or(0) & 1 != 0
                    && !view.gone
                    && view.health.is_usable()
            });
            named
                .map(|view| view.id)
                .min_by_key(|id: &ServerId| self.worker.cluster.servers.of(*id).outstanding())
        });
        let Some(server) = chosen.filter(|_| count.get() < MIRRORS_MAX) else {
            return;
        };
        count.set(count.get() + 1);
        let mirror = Mirror(count);
        let (pool, state) = (self.pool(server), self.image.vars.state.clone());
        let version = self.version_on(server);
        let packet = packet.to_vec();
        tokio::task::spawn_local(async move {
            let _mirror = mirror;
            if let Ok(mut lease) = pool.take(0, &state, version).await {
                let running = run_for_nothing(&mut lease, &state, &packet);
                let ran = tokio::time::timeout(MIRROR_LIMIT, running).await;
                lease.broken |= !matches!(ran, Ok(Ok(())));
                lease.give_back();
            }
        });
    }

    /// The statement's text as a rule wants it; none where it stays as it is.
    pub(in crate::session) fn rewritten(
        &self,
        directions: Option<&Directions>,
        text: &[u8],
    ) -> Option<Vec<u8>> {
        let rule = self.settings.rules.get(directions?.rewritten_by?)?;
        let rewrite = rule.then.rewrite.as_ref()?;
        match rewrite.pattern.replace_all(text, &rewrite.template[..]) {
            Cow::Owned(new) => Some(new),
            Cow::Borrowed(_) => None,
        }
    }
}

/// The error of a statement whose time was up.
pub(super) fn too_slow() -> ClientError {
    let text = "Query execution was interrupted, maximum statement execution time exceeded";
    ClientError::client(3024, b"HY000", text)
}

/// Runs a statement whose answer nobody wants.
async fn run_for_nothing(
    lease: &mut Lease,
    state: &Rc<SessionState>,
    packet: &[u8],
) -> Result<(), BackendError> {
    clear(lease).await?;
    let (mut bytes, mut steps) = (Vec::new(), Vec::new());
    let attributes = lease.has_attributes();
    state::difference(&lease.state, state, attributes, &mut bytes, &mut steps);
    bytes.extend_from_slice(packet);
    lease.send_statement(&bytes, steps.len() + 1).await?;
    for step in steps {
        lease
            .read_answer(match step {
                state::Step::Set => Expect::Query,
                state::Step::Database => Expect::Simple,
                state::Step::Option => Expect::SetOption,
            })
            .await?;
        lease.state = state.clone();
    }
    let mut tracker = Tracker::new(Expect::Query, lease.capabilities);
    loop {
        let taken = match tracker.next(&lease.buffer) {
            Event::Pass(len)
            | Event::ColumnCount { len }
            | Event::Ok { len, .. }
            | Event::Eof { len, .. }
            | Event::MarkedDefinitionsEnd { len }
            | Event::Err { len }
            | Event::Progress { len }
            | Event::PrepareOk { len, .. } => len,
            Event::NeedMore => {
                lease.fill().await?;
                continue;
            }
            Event::Done => break,
            Event::LocalInfile { .. } | Event::Malformed => {
                return Err(BackendError::Protocol("an answer that was not expected"));
            }
        };
        lease.buffer.drain(..taken);
    }
    lease.answered();
    lease.effects_noted();
    Ok(())
}

/// Saves what the session before may still ask about, and makes the connection nobody's.
async fn clear(lease: &mut Lease) -> Result<(), BackendError> {
    lease.books.leave_owner();
    if lease.books.is_missed() {
        lease.save_unread().await?;
    }
    lease.books.release();
    Ok(())
}

/// Has a server run a KILL, on a connection of the session's account. An error: it is not known
/// to have.
pub(super) async fn tell_server(
    pool: Rc<Pool>,
    uid: u64,
    state: Rc<SessionState>,
    kill: String,
) -> Result<(), BackendError> {
    let mut other = match tokio::time::timeout(SOON, pool.take_to_kill(uid, &state)).await {
        Ok(taken) => taken?,
        // All are taken, perhaps by statements like the one that is to end: one more then.
        Err(_) => return kill_aside(&pool, &kill).await,
    };
    // Until all is answered it is of no use to anybody else.
    other.broken = true;
    let telling = async {
        clear(&mut other).await?;
        other.query(&kill).await
    };
    let told = run_kill(telling).await;
    other.broken = told.is_err();
    other.give_back();
    told
}
