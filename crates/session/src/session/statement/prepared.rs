//! A client's prepared statements on a server connection: prepared anew where the connection lacks them, with their
//! parameters' types and long data, and closed where there are too many.

use std::time::Duration;

use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::image::prepared::ClientStatement;
use millrace_engine::image::prepared::StatementUid;
use millrace_engine::refusals::CROWDED;
use millrace_engine::request::{Main, Request, Types};
use millrace_metrics::PinReason;
use millrace_protocol::command::{
    COM_STMT_PREPARE, COM_STMT_SEND_LONG_DATA, Command, execute_with_types,
};
use millrace_protocol::packet;
use millrace_protocol::response::Expect;
use millrace_sql::{Family, Flags};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::gone_database::depends_on_database;
use crate::session::statement::steps::Setup;

/// How long a server that takes no more prepared statements is given to close some, each time that it
/// says so, until the client is told.
pub(super) const PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

impl Session {
    /// The connection's number for a prepared statement that it holds.
    /// And the version of the parameter types that it was told.
    pub(in crate::session) fn held_prepared(
        &self,
        lease: &mut Lease,
        id: u32,
    ) -> Option<(u32, u32)> {
        let statement = self.image.statements.get(id)?;
        if let Some(held) = lease.prepared.get(statement.uid) {
            return Some(held);
        }
        // Whoever prepared it: those that were not executed are alike.
        let server_id = lease.prepared.rename(statement.unused?, statement.uid)?;
        Some((server_id, 0))
    }

    pub(super) fn types_version(&self, id: u32) -> u32 {
        let statement = self.image.statements.get(id);
        statement.map_or(0, ClientStatement::types_version)
    }

    /// Appends an execution with the types that its packet leaves out; false where it cannot be read.
    pub(in crate::session) fn append_with_types(
        &self,
        id: u32,
        packet: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let payload = packet::payload(packet);
        let (Some(statement), Ok(Command::StmtExecute(execute))) = (
            self.image.statements.get(id),
            Command::parse(&payload, self.client.capabilities),
        ) else {
            return false;
        };
        let count = usize::from(statement.params);
        let Ok(params) = execute.params(count, self.client.capabilities) else {
            return false;
        };
        let types = &statement.types;
        execute_with_types(out, id, &execute, &params, types, self.client.capabilities);
        true
    }

    /// A statement that others share, which the server may have read anew under other settings than those that it
    /// was prepared under: MySQL does that where a table has changed, and it then means what the text means under
    /// `sql_mode` and character sets as they are, for good (observed on 9.7; MariaDB keeps what it was prepared under).
    pub(super) fn may_mean_other(&self, lease: &Lease, request: &Request<'_>) -> bool {
        let Main::Execute { id, .. } = request.main else {
            return false;
        };
        if lease.family == Family::MariaDb {
            return false;
        }
        let Some(statement) = self.image.statements.get(id) else {
            return false;
        };
        statement.shared && !statement.means_the_same(&self.image.vars.state)
    }

    /// The connection's statement, and those that were prepared alike, are prepared anew for whoever needs them next.
    pub(super) async fn forget(&self, lease: &mut Lease, request: &Request<'_>) {
        let Main::Execute { id, .. } = request.main else {
            return;
        };
        let statement = self.image.statements.get(id);
        let alike = statement.map(|statement| [Some(statement.uid), statement.unused]);
        for uid in alike.into_iter().flatten().flatten() {
            if let Some(held) = lease.prepared.remove(uid) {
                lease.close_statement(held).await;
            }
        }
    }

    /// The connection's statement is no longer in its books; who does that closes it.
    pub(super) fn disown_prepared(&self, lease: &mut Lease, request: &Request<'_>) {
        if let Main::Execute { id, .. } = request.main
            && let Some(statement) = self.image.statements.get(id)
        {
            lease.prepared.remove(statement.uid);
        }
    }

    /// Notes which types the connection's statement has after an execution.
    pub(super) fn note_types(&self, lease: &mut Lease, request: &Request<'_>, told: u32) {
        let Main::Execute { id, types, .. } = request.main else {
            return;
        };
        let Some(statement) = self.image.statements.get(id) else {
            return;
        };
        let version = match types {
            // A bulk execution may have told others.
            Types::None if request.task.expect() == Expect::Execute => 0,
            Types::None => return,
            // Whether they were taken from a packet that was refused is not known.
            _ if self.running.outcome.error.is_some() => 0,
            Types::Sent | Types::LeftOut => statement.types_version(),
        };
        if version != told {
            lease.prepared.note_types(statement.uid, version);
        }
    }

    /// Prepares a statement on the connection; answers its number there. The inner error is the
    /// server's refusal.
    pub(in crate::session) async fn prepare_anew(
        &mut self,
        lease: &mut Lease,
        id: u32,
    ) -> Result<Result<u32, ClientError>, Abort> {
        let Some(statement) = self.image.statements.get(id) else {
            return Err(Abort::Error(ClientError::client(
                1243,
                b"HY000",
                "Unknown prepared statement handler",
            )));
        };
        let uid = statement.uid;
        let (text, context) = (statement.text.clone(), statement.context.clone());
        let reads_private = statement.class.flags.contains(Flags::READS_USER_VARS);
        let mut setup = Setup::default();
        if lease.books.is_missed_by_other(self.handle.uid()) {
            self.save_unread(lease, &mut setup);
        }
        if reads_private {
            // Their types decide the metadata.
            self.restore_private(lease, None, &mut setup);
        }
        let context = self.placed(lease, &context, |session| {
            let statement = session.image.statements.get(id);
            statement.is_none_or(|it| depends_on_database(&it.class, &it.text))
        });
        self.apply_context(lease, &context, &mut setup);
        let prepared = self.prepare_now(lease, &mut setup, &text).await;
        match prepared {
            Ok(server_id) => {
                self.hold_prepared(lease, uid, server_id).await;
                Ok(Ok(server_id))
            }
            Err(BackendError::Server(error)) => Ok(Err(ClientError::server(error))),
            Err(error) => {
                lease.broken = true;
                Ok(Err(ClientError::backend(error)))
            }
        }
    }

    /// Prepares a text after what must go ahead of it; answers the connection's number.
    pub(in crate::session) async fn prepare_now(
        &mut self,
        lease: &mut Lease,
        setup: &mut Setup,
        text: &[u8],
    ) -> Result<u32, BackendError> {
        let payload = [&[COM_STMT_PREPARE], text].concat();
        packet::frame(&mut setup.bytes, 0, &payload);
        let answers = setup.steps.len() + 1;
        lease.send(&setup.bytes, answers).await?;
        let mut failed = None;
        for step in std::mem::take(&mut setup.steps) {
            if let Err(error) = self.read_step(lease, step).await {
                lease.broken = true;
                failed = Some(error);
                break;
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut refused = 0;
        let answer = loop {
            match lease.read_answer(Expect::Prepare).await {
                Err(BackendError::Server(error))
                    if error.code == CROWDED && self.give_up_statements(lease, refused).await =>
                {
                    refused += 1;
                    setup.bytes.clear();
                    packet::frame(&mut setup.bytes, 0, &payload);
                    lease.send(&setup.bytes, 1).await?;
                }
                answer => break answer?,
            }
        };
        let id = answer.get(packet::HEADER + 1..packet::HEADER + 5);
        let id: [u8; 4] = id
            .and_then(|id| id.try_into().ok())
            .ok_or(BackendError::Protocol("malformed answer to a prepare"))?;
        Ok(u32::from_le_bytes(id))
    }

    /// Notes a statement that a client has just prepared, or closes it: the connection may have one
    /// that does as well.
    pub(in crate::session) async fn hold_new(
        &mut self,
        lease: &mut Lease,
        statement: &ClientStatement,
        server_id: u32,
    ) {
        let Some(unused) = statement.unused else {
            return self.hold_prepared(lease, statement.uid, server_id).await;
        };
        let executed = self.worker.prepared.last_executed_as(unused);
        let mut alike = [executed, Some(unused)].into_iter().flatten();
        // The other one may have been executed, which is more than this one was.
        if alike.any(|uid| lease.prepared.get(uid).is_some()) {
            return lease.close_statement(server_id).await;
        }
        self.hold_prepared(lease, unused, server_id).await;
    }

    /// Notes a statement that the connection now holds and closes what it has too many.
    pub(super) async fn hold_prepared(&mut self, lease: &mut Lease, uid: u64, server_id: u32) {
        if let Some(old) = lease.prepared.add(uid, server_id) {
            lease.close_statement(old).await;
        }
        let most = lease.server().statements_max();
        self.close_beyond(lease, most, Some(uid)).await;
        lease.server().note_statements(lease.prepared.len());
    }

    /// Closes the statements that the connection holds beyond `most`, but not `new`, and none that has
    /// an open cursor.
    async fn close_beyond(&self, lease: &mut Lease, most: usize, new: Option<StatementUid>) {
        let open: Vec<StatementUid> = match self.handle.pins().has(PinReason::Cursor) {
            true => self.image.statements.with_cursor().collect(),
            false => Vec::new(),
        };
        let may_go = |uid| Some(uid) != new && !open.contains(&uid);
        while let Some(old) = lease.prepared.pop_beyond(most, may_go) {
            lease.close_statement(old).await;
        }
    }

    /// The server takes no more prepared statements: connections give up some, this one at least
    /// one, and it is given a moment. False where that was done `refused` times in vain, or there is none
    /// to give up.
    pub(super) async fn give_up_statements(&self, lease: &mut Lease, refused: usize) -> bool {
        let server = lease.server().clone();
        let Some(pause) = PAUSES.get(refused) else {
            return false;
        };
        if !server.hold_fewer_statements() {
            return false;
        }
        let most = lease.prepared.len().saturating_sub(1);
        self.close_beyond(lease, most.min(server.statements_max()), None)
            .await;
        if !pause.is_zero() {
            tokio::time::sleep(*pause).await;
        }
        true
    }

    pub(in crate::session) fn append_long_data(&self, id: u32, server_id: u32, out: &mut Vec<u8>) {
        let Some(statement) = self.image.statements.get(id) else {
            return;
        };
        for (param, data) in &statement.long_data {
            let mut payload = vec![COM_STMT_SEND_LONG_DATA];
            payload.extend_from_slice(&server_id.to_le_bytes());
            payload.extend_from_slice(&param.to_le_bytes());
            payload.extend_from_slice(data);
            packet::frame(out, 0, &payload);
        }
    }
}
