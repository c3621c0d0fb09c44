//! How a session comes by a connection to a server, and gives it back.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use millrace_backend::conn::{Conn, Row};
use millrace_backend::connect::{Login, open};
use millrace_backend::error::BackendError;
use millrace_backend::pool::{CheckoutRequest, Lease, Pool};
use millrace_backend::tls::For;
use millrace_engine::image::prepared::ClientStatement;
use millrace_engine::request::{Main, Request};
use millrace_engine::state::SessionState;
use millrace_protocol::Capabilities;
use millrace_routing::NoServer;
use millrace_sql::{Access, Kind};
use millrace_topology::ServerId;

use crate::error::{Abort, ClientError, observed};
use crate::session::Session;
use crate::session::statement::rule_actions::too_slow;

/// How long a question to a primary without a place waits before others are asked.
const BRIEF: Duration = Duration::from_secs(1);

impl Session {
    /// The idle connection that suits the request best.
    pub(super) fn take_idle(
        &self,
        server: ServerId,
        pool: &Rc<Pool>,
        state: &Rc<SessionState>,
        request: &Request<'_>,
    ) -> Option<Lease> {
        pool.try_take(&self.wanted(server, state, request))
    }

    fn wanted<'a>(
        &self,
        server: ServerId,
        state: &'a Rc<SessionState>,
        request: &Request<'_>,
    ) -> CheckoutRequest<'a> {
        let executed = self.executed_by(request);
        CheckoutRequest {
            uid: self.handle.uid(),
            state,
            version: self.version_on(server),
            own: self.may_need_its_own(),
            prepared: executed.map(|statement| statement.uid),
            unused: executed.and_then(|statement| statement.unused),
            changes: self.may_change_rows(request),
        }
    }

    /// Whether rows may change on the connection before the session gives it back.
    pub(super) fn may_change_rows(&self, request: &Request<'_>) -> bool {
        // A BEGIN that was answered here goes ahead of whatever comes next.
        let in_transaction = self.image.autocommit_off()
            || self.image.tx.replay.is_some()
            || self.image.tx.is_deferred();
        let may_begin = match (request.access, request.class.kind) {
            (Access::Read, _) => false,
            (Access::Write, _) => true,
            // Others may keep the connection, a cursor among them, or begin a transaction.
            (_, Kind::Select | Kind::Do) => matches!(request.main, Main::Execute { .. }),
            (_, Kind::Set) => !request.class.sets_user_variables_only(),
            _ => true,
        };
        may_begin || in_transaction
    }

    /// Whether something of the session may live on its last connection: user variables, messages,
    /// a number that only the server knows.
    pub(super) fn may_need_its_own(&self) -> bool {
        self.image.vars.private.version != 0
            || self.image.last.insert_id.at.is_some()
            || self.image.last.messages.at.is_some()
            || !self.image.last.found_rows.known
    }

    /// The prepared statement that a request executes.
    fn executed_by(&self, request: &Request<'_>) -> Option<&ClientStatement> {
        match request.main {
            Main::Packet(_) => None,
            Main::Execute { id, .. } => self.image.statements.get(id),
        }
    }

    /// A connection that is not there yet; none from a primary that was demoted meanwhile. An answer
    /// says why there is none; other failures end the statement. `last`: no other server is tried after
    /// this one.
    pub(super) async fn take_lease(
        &self,
        server: ServerId,
        pool: &Rc<Pool>,
        state: &Rc<SessionState>,
        request: &Request<'_>,
        last: bool,
    ) -> Result<Lease, Abort> {
        let is_primary = || self.worker.cluster.primary() == Some(server);
        let before = is_primary();
        let incarnation = || {
            self.worker.cluster.with_world(|world| {
                let view = world.snapshot.server(server);
                view.map(|view| view.incarnation)
            })
        };
        let chosen = incarnation();
        let wanted = self.wanted(server, state, request);
        let queued = match last && self.running.route.patient {
            true => pool.queue_patiently(&wanted),
            false => pool.queue(&wanted),
        };
        let taken = match queued {
            Ok(waiting) if self.running.route.brief && !last => {
                Box::pin(tokio::time::timeout(BRIEF, self.unless_killed(waiting)))
                    .await
                    .unwrap_or_else(|_| {
                        let text = "no place on the primary yet".to_owned();
                        Err(BackendError::Limit(text))
                    })
            }
            Ok(waiting) => self.unless_killed(waiting).await,
            Err(refused) => Err(refused),
        };
        match taken {
            // What it was chosen for is not true of the machine that its name means now.
            Ok(lease)
                if (before && !is_primary()) || incarnation() != chosen || !lease.is_there() =>
            {
                lease.give_back();
                Err(ClientError::no_server(NoServer::NoPrimary).into())
            }
            Ok(lease) => {
                self.running.runs_since.set(Instant::now());
                Ok(lease)
            }
            Err(_) if self.was_killed() => Err(self.interrupted().await),
            Err(error) => Err(self.unavailable(server, error).into()),
        }
    }

    /// Waits for a connection until a KILL names the session.
    pub(super) async fn unless_killed(
        &self,
        taking: impl Future<Output = Result<Lease, BackendError>>,
    ) -> Result<Lease, BackendError> {
        let mut taking = pin!(taking);
        poll_fn(|cx| {
            self.handle.register(cx);
            if self.was_killed() {
                let killed = BackendError::Limit("the statement was killed".to_owned());
                return Poll::Ready(Err(killed));
            }
            taking.as_mut().poll(cx)
        })
        .await
    }

    /// A KILL has named the session, or the statement under way.
    pub(in crate::session) fn was_killed(&self) -> bool {
        self.handle.has_ended() || self.handle.is_interrupted()
    }

    pub(in crate::session) fn unavailable(
        &self,
        server: ServerId,
        error: BackendError,
    ) -> ClientError {
        if let Some(kind) = observed(&error) {
            self.worker.shared.monitor.observe(server, kind);
        }
        ClientError::backend(error)
    }

    /// Asks a server as the session's account on a connection of its own, beside those of the pool.
    pub(in crate::session) async fn ask_beside(
        &self,
        server: ServerId,
        text: &str,
    ) -> Result<Vec<Row>, BackendError> {
        let facts = self.worker.cluster.servers.of(server).facts();
        let identity = &self.client.identity;
        let login = Login {
            user: &identity.account.user,
            password: &identity.account.password,
            database: None,
            collation: identity.collation,
            capabilities: Capabilities::DEPRECATE_EOF,
            tls: identity.tls,
            whose: For::Client,
        };
        let limit = self.settings.pool.connect_timeout;
        let opened = open(&facts.address, &login, &self.worker.shared.network, limit).await?;
        let mut conn = Conn::new(opened, server, facts.family, None);
        let asked = tokio::time::timeout(limit, conn.query(text)).await;
        asked.unwrap_or(Err(BackendError::Timeout("pool.connect_timeout")))
    }

    /// Keeps a connection after a statement.
    pub(in crate::session) fn keep(&mut self, mut lease: Lease) {
        lease.rest();
        lease.used = self.worker.tick();
        self.lease = Some(lease);
    }

    /// Gives a connection back after a statement that came to nothing.
    pub(in crate::session) fn put_back(&mut self, mut lease: Lease) {
        lease.broken |= self.handle.leave_connection() | lease.in_transaction();
        lease.give_back();
    }

    /// What becomes of a statement that was killed before a server ran it.
    pub(in crate::session) async fn interrupted(&self) -> Abort {
        if self.is_killed().await {
            return Abort::Ended;
        }
        if self.handle.clear_timeout() {
            return too_slow().into();
        }
        ClientError::client(1317, b"70100", "Query execution was interrupted").into()
    }

    /// Whether a refusal is the word of a replica, which may lack the session's database, its account or a
    /// setting of it because it is late.
    pub(super) fn may_be_late(&self, server: ServerId, why: &ClientError) -> bool {
        let primary = self.worker.cluster.primary();
        why.side == millrace_metrics::Side::Server
            && !why.is_full()
            && primary.is_some_and(|primary| primary != server)
    }

    /// A KILL is about to end the session: waits for that.
    pub(super) async fn is_killed(&self) -> bool {
        const STEP: Duration = Duration::from_millis(10);
        for _ in 0..50 {
            if self.handle.has_ended() || !self.handle.is_ending() {
                break;
            }
            tokio::time::sleep(STEP).await;
        }
        self.handle.has_ended()
    }

    /// The connection was kept from an earlier statement.
    pub(super) fn lease_is_kept(&self) -> bool {
        !self.handle.pins().is_empty()
    }

    /// The connection of a statement of this session, where it is free and unused since. The session may
    /// have chosen its first database since: its connections are of another pool from then on.
    pub(in crate::session) fn take_own(&mut self, server: ServerId, seq: u64) -> Option<Lease> {
        let uid = self.handle.uid();
        let own = self.pool(server).try_take_own(uid, seq);
        own.or_else(|| match self.image.vars.state.database.is_empty() {
            true => None,
            false => self.pool_of(server, false).try_take_own(uid, seq),
        })
    }
}
