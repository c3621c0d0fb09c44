//! KILL: finds the session that a number means, wherever it runs, and has the server judge
//! whether the killer may. Never touches another session than the one named.

use std::time::Duration;

use millrace_backend::conn::{Row, number};
use millrace_backend::error::BackendError;
use millrace_engine::request::{Request, Task};
use millrace_metrics::{ErrorClass, PinReason};
use millrace_protocol::command::ExecuteParams;
use millrace_protocol::ok::OkFields;
use millrace_sql::{Access, Family, KillTarget, Kind, Statement};
use millrace_topology::ServerId;
use tokio::sync::oneshot;

use crate::error::{Abort, ClientError, error_packet};
use crate::login::relayed::{Ended, exchange};
use crate::session::Session;
use crate::session::statement::refused::AttemptOutcome;
use millrace_worker::Message;
use millrace_worker::Running;
use millrace_worker::{Client, FIRST_ID};

/// How long a KILL waits for a place in the pool.
const BRIEF: Duration = Duration::from_millis(100);

/// The number in what CONNECTION_ID() was replaced by.
fn own_number(expression: &[u8]) -> Option<u64> {
    let number = expression
        .trim_ascii()
        .strip_prefix(b"COALESCE(CAST(")?
        .strip_suffix(b" AS UNSIGNED),CONNECTION_ID())")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// The number in a prepared statement's first parameter; none where it is sent as anything but
/// an integer.
pub(super) fn number_in(params: &ExecuteParams<'_>) -> Option<u64> {
    use millrace_protocol::types::column_type as kind;
    let width = match *params.types.first()? {
        kind::TINY => 1,
        kind::SHORT => 2,
        kind::LONG => 4,
        kind::LONGLONG => 8,
        _ => return None,
    };
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(params.values.get(..width)?);
    (params.null_bitmap.first()? & 1 == 0).then(|| u64::from_le_bytes(bytes))
}

impl Session {
    /// A prepared KILL of a client, by its number or by `parameter`; none where the server is to
    /// answer.
    pub(super) async fn kill_prepared(
        &mut self,
        class: &Statement,
        text: &[u8],
        parameter: Option<u64>,
    ) -> Option<Result<(), Abort>> {
        let (number, query) = match class.kill?.target {
            KillTarget::Connection(number) => (number, false),
            KillTarget::Query(number) => (number, true),
            KillTarget::Expression { value, query } if value.of(text).trim_ascii() == b"?" => {
                (parameter?, query)
            }
            _ => return None,
        };
        let entry = self.find(number)?;
        let id = u32::try_from(number).ok()?;
        Some(Box::pin(self.kill_client(id, &entry, query)).await)
    }

    /// The KILL statement.
    pub(super) async fn kill(&mut self, request: &Request<'_>, text: &[u8]) -> Result<(), Abort> {
        let (id, query) = match request.class.kill.map(|kill| kill.target) {
            Some(KillTarget::Connection(id)) => (id, false),
            Some(KillTarget::Query(id)) => (id, true),
            Some(KillTarget::Expression { value, query }) => match own_number(value.of(text)) {
                Some(id) => (id, query),
                None => match self.evaluate(request, value.of(text)).await? {
                    Some(id) => (id, query),
                    None => return self.statement(request, text).await,
                },
            },
            // By user, by statement: the server's own matter.
            _ => return self.statement(request, text).await,
        };
        match self.find(id) {
            Some(entry) => {
                self.kill_client(u32::try_from(id).unwrap_or(0), &entry, query)
                    .await
            }
            None => self.statement(request, text).await,
        }
    }

    /// The number that an expression stands for on the primary; none where it is no number there.
    async fn evaluate(
        &mut self,
        request: &Request<'_>,
        expression: &[u8],
    ) -> Result<Option<u64>, Abort> {
        let Ok(expression) = std::str::from_utf8(expression) else {
            return Ok(None);
        };
        let mut lease = match self.lease.take() {
            Some(lease) => lease,
            None => self.primary_lease().await?,
        };
        let prepared = self.prepare_connection(&mut lease, request).await;
        let mut rows = Err(BackendError::Protocol("not asked"));
        if prepared.is_ok() {
            rows = lease.query(&format!("SELECT ({expression}) LIMIT 1")).await;
        }
        let seq = self.image.last.count_own();
        lease.books.mark(self.handle.uid(), seq);
        self.part(lease);
        prepared?;
        Ok(rows.ok().and_then(|rows| number(&rows, 0)))
    }

    /// COM_PROCESS_KILL.
    pub(super) async fn kill_connection(&mut self, packet: &[u8], id: u64) -> Result<(), Abort> {
        // MySQL has the command no more and says so (observed on 9.7).
        let knows = self.image.family == Family::MariaDb || self.image.vars.lex.version < 90_000;
        if let Some(entry) = self.find(id).filter(|_| knows) {
            return self
                .kill_client(u32::try_from(id).unwrap_or(0), &entry, false)
                .await;
        }
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = Kind::Kill;
        let request = Request::packet(Task::Kill, packet, &class, Access::Write);
        let ran = self.statement(&request, b"").await;
        self.worker.lists.put_statement(class);
        ran
    }

    /// The client with this number; others are servers' own connections.
    fn find(&self, id: u64) -> Option<Client> {
        let id = u32::try_from(id).ok().filter(|id| *id >= FIRST_ID)?;
        self.worker.shared.registry.client(id)
    }

    async fn kill_client(&mut self, id: u32, entry: &Client, query: bool) -> Result<(), Abort> {
        if id == self.id {
            return self.kill_self(query).await;
        }
        let mailboxes = self.worker.shared.mailboxes.clone();
        let mut running = None;
        // A client that has just logged in may not be in its worker's list yet.
        for _ in 0..5 {
            let (reply, answer) = oneshot::channel();
            let ask = Message::Ask {
                uid: entry.uid,
                query,
                reply,
            };
            let _ = mailboxes[entry.worker].send(ask);
            running = answer.await.ok().flatten();
            if running.is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let Some(running) = running else {
            let text = format!("Unknown thread id: {id}");
            return Err(ClientError::client(1094, b"HY000", text).into());
        };
        match running.on {
            Some((server, thread)) => self.kill_on_server(server, thread, query).await?,
            None => self.check_right(id, &running).await?,
        }
        let _ = mailboxes[entry.worker].send(match query {
            true => Message::Interrupt(entry.uid),
            false => Message::End(entry.uid),
        });
        self.ok(OkFields::default()).await
    }

    /// As a server answers one that kills itself.
    async fn kill_self(&mut self, query: bool) -> Result<(), Abort> {
        let answer = ClientError::client(1317, b"70100", "Query execution was interrupted");
        if query {
            Err(Abort::Error(answer))
        } else {
            Err(Abort::Fatal(answer))
        }
    }

    /// KILL on the server that runs the session's statement, with the killer's own rights.
    async fn kill_on_server(
        &mut self,
        server: ServerId,
        thread: u32,
        query: bool,
    ) -> Result<(), Abort> {
        let what = if query { "QUERY" } else { "CONNECTION" };
        let killed = self.ask(server, &format!("KILL {what} {thread}")).await;
        match killed {
            Ok(_) => Ok(()),
            // The statement ended in between; its connection is not used again.
            Err(BackendError::Server(error)) if error.code == 1094 => Ok(()),
            Err(error) => Err(ClientError::backend(error).into()),
        }
    }

    /// Asks a server as the session's account. Where all places of the pool are taken, on a connection beside them: what
    /// takes the places may be what is to be killed.
    async fn ask(&mut self, server: ServerId, text: &str) -> Result<Vec<Row>, BackendError> {
        let pool = self.pool(server);
        let state = self.image.vars.state.clone();
        let taking = pool.take_to_kill(self.handle.uid(), &state);
        let Ok(Ok(mut lease)) = tokio::time::timeout(BRIEF, taking).await else {
            return Box::pin(self.ask_beside(server, text)).await;
        };
        self.save_for_last_user(&mut lease).await;
        let rows = lease.query(text).await;
        lease.books.forget_statement();
        lease.give_back();
        rows
    }

    /// An idle session has no connection for the server to judge by: the owner may end it, and
    /// who may end anybody's.
    async fn check_right(&mut self, id: u32, running: &Running) -> Result<(), Abort> {
        if running.user == self.client.identity.account.user {
            return Ok(());
        }
        // Accounts are the same on all: for lack of a primary, another says what it may.
        let judge = self
            .worker
            .cluster
            .with_world(|world| world.snapshot.judges().next());
        let Some(judge) = judge else {
            let text = "Millrace: no server answers that could judge the right to kill";
            return Err(ClientError::proxy(ErrorClass::NoServer, 1105, b"HY000", text).into());
        };
        let rows = self.ask(judge, "SHOW GRANTS").await;
        let rows = rows.map_err(ClientError::backend)?;
        let may = rows.into_iter().flatten().flatten().any(|grant| {
            let grant = String::from_utf8_lossy(&grant).to_ascii_uppercase();
            let global = grant.contains(" ON *.* ");
            global
                && [
                    "ALL PRIVILEGES",
                    "SUPER",
                    "CONNECTION_ADMIN",
                    "CONNECTION ADMIN",
                ]
                .iter()
                .any(|right| grant.contains(right))
        });
        if may {
            Ok(())
        } else {
            let text = format!("You are not owner of thread {id}");
            Err(ClientError::client(1095, b"HY000", text).into())
        }
    }

    /// Replication commands: the client gets a connection to the primary for good.
    pub(super) async fn replicate(&mut self, packet: &[u8]) -> Result<(), Abort> {
        let lease = match self.lease.take() {
            Some(lease) => lease,
            None => self.primary_lease().await?,
        };
        let mut lease = lease;
        self.handle
            .set_connection(Some((lease.server, lease.thread_id)));
        // Settings that a replica made (@source_binlog_checksum and its kin) must be there.
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = Kind::Command;
        let request = Request::packet(Task::Replicate, packet, &class, Access::PrimaryRead);
        let is_register = packet.get(4) == Some(&millrace_protocol::command::COM_REGISTER_SLAVE);
        if is_register {
            let registered = self.attempt(&mut lease, &request, false).await;
            self.worker.lists.put_statement(class);
            self.pin(PinReason::Replication);
            self.keep(lease);
            return match registered? {
                AttemptOutcome::Done => Ok(()),
                AttemptOutcome::Elsewhere(answer)
                | AttemptOutcome::Lacks(answer)
                | AttemptOutcome::Gone { why: answer, .. } => Err(Abort::Error(answer)),
            };
        }
        let prepared = self.prepare_connection(&mut lease, &request).await;
        self.worker.lists.put_statement(class);
        prepared?;
        let Some((conn, _in_use)) = lease.detach() else {
            return Err(Abort::Ended);
        };
        self.pin(PinReason::Replication);
        let client = std::mem::replace(
            &mut self.client.stream,
            millrace_backend::stream::Stream::Gone,
        );
        let handle = self.handle.clone();
        let ended = exchange(
            client,
            conn.into_stream(),
            packet.to_vec(),
            Vec::new(),
            &handle,
        )
        .await;
        if let Ended::ChangesUser(mut client, _) = ended {
            // Who reads the log stays who it is.
            let mut out = Vec::new();
            error_packet(&ClientError::no_other_user()).encode(&mut out, 1);
            // It may be gone itself.
            let _ = client.send(&out).await;
        }
        Err(Abort::Ended)
    }
}
