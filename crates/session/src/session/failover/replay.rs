//! An open transaction that has lost its server: what becomes of it, and how it is run again on another,
//! each answer compared with what the client was told.

use std::rc::Rc;
use std::time::Instant;

use millrace_backend::conn::number;
use millrace_backend::error::BackendError;
use millrace_backend::failovers::FailoverCount;
use millrace_backend::pool::Lease;
use millrace_engine::ended::Stake;
use millrace_engine::journal::{Answered, Entry, Executed, Journal, Unreplayable, commits};
use millrace_engine::refusals::{Meaning, meaning};
use millrace_engine::replay::{
    IdToFind, Repeated, Replay, UNKNOWN_ID, add_written, is_outcome_unknown, put_number,
};
use millrace_engine::request::{Main, Request};
use millrace_engine::state::write_hex;
use millrace_metrics::{PinReason, ReplayFailure};
use millrace_protocol::command::Command;
use millrace_protocol::{Status, packet};
use millrace_sql::{Access, Flags, Statement, classify};
use tracing::debug;

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::relay::{Plan, RelayOutcome};
use crate::session::statement::steps::Setup;

/// Why a transaction was not run again to its end.
enum ReplayStop {
    /// This server did not let it; another may.
    Elsewhere(ClientError),
    /// No server will.
    Never(Unreplayable),
    /// The session is over, or its client gone.
    Abort(Abort),
}

impl From<BackendError> for ReplayStop {
    fn from(error: BackendError) -> Self {
        let answer = ClientError::backend(error);
        match answer.passing {
            true => ReplayStop::Elsewhere(answer),
            false => ReplayStop::Never(Unreplayable::Differs),
        }
    }
}

impl Session {
    /// The kept connection is gone, or of no more use, before the request was answered; `sent`: the
    /// server may have run it. Answers why, where it may run elsewhere, after its transaction if
    /// there is one.
    pub(in crate::session) async fn leave(
        &mut self,
        mut lease: Lease,
        request: &Request<'_>,
        why: ClientError,
        sent: bool,
    ) -> Result<ClientError, Abort> {
        let may_move = self.handle.pins().has_only(PinReason::Transaction);
        let writes = request.access == Access::Write;
        let journal = self.image.tx.journal.as_deref();
        if may_move && sent && is_outcome_unknown(journal, request, writes) {
            self.evict(lease);
            self.end_transaction();
            return Err(self.unknown_outcome());
        }
        if !may_move && sent && self.may_be_committed(request) && !why.is_told_end() {
            lease.broken = true;
            self.put_back(lease);
            self.count_unknown();
            // The session ends with what lived on its connection; nothing says that the statement was not done.
            return Err(Abort::Fatal(ClientError::unknown_outcome()));
        }
        let alive = match sent {
            true => self.running.runs_since.get(),
            false => self.last_alive(&lease),
        };
        let ended = self.was_ended(&lease, writes, Stake::Session, &why, alive);
        if let Some(told) = ended.await {
            // As without Millrace: the server has ended what the session had, and so the session.
            lease.broken = true;
            self.put_back(lease);
            return Err(Abort::Fatal(told));
        }
        if !may_move {
            lease.broken = true;
            let server = lease.server;
            self.put_back(lease);
            self.count_failed(Some(server));
            // What lived on the connection is gone, so the session cannot go on.
            return Err(Abort::Fatal(why));
        }
        self.evict(lease);
        if sent && writes {
            self.running.route.ended = Some(ClientError::unknown_outcome());
        }
        self.running.route.lost += u8::from(sent);
        if u32::from(self.running.route.lost) > self.settings.options.failover.retries {
            // It may be what ends its servers.
            return Err(self.lose_transaction(Unreplayable::NoServer));
        }
        self.resume(request)?;
        Ok(why)
    }

    /// Whether the server may have committed what the request did, or the transaction that it is in.
    fn may_be_committed(&self, request: &Request<'_>) -> bool {
        let open = self.image.status.contains(Status::IN_TRANS) || self.image.autocommit_off();
        match open {
            true => commits(request),
            false => request.access == Access::Write && !request.prepares(),
        }
    }

    /// Leaves the server of the open transaction, which is to be run again before anything else is.
    pub(in crate::session) fn evict(&mut self, mut lease: Lease) {
        // So the server rolls back.
        lease.broken = true;
        let journal = match self.image.tx.journal.take() {
            Some(journal) => journal,
            None => self.begin_journal(&lease, None),
        };
        let replay = Replay::new(journal, lease.server, &lease.books);
        self.put_back(lease);
        self.unpin(PinReason::Transaction);
        // For who lists sessions: it is in a transaction, and no server knows of it.
        self.handle.set_begun(true);
        self.image.tx.replay = Some(Box::new(replay));
    }

    /// Looks whether the transaction that has lost its server has to be run again for this request,
    /// and whether it can be.
    pub(in crate::session) fn resume(&mut self, request: &Request<'_>) -> Result<(), Abort> {
        let Some(replay) = &self.image.tx.replay else {
            return Ok(());
        };
        if replay.is_ended_by(request.class) {
            // Nothing is to be ended any more: it is only to be answered.
            self.end_transaction();
            return Ok(());
        }
        let options = &self.settings.options.failover;
        let private_version = self.image.vars.private.version;
        match replay.spoilt(Instant::now(), options, private_version) {
            Some(why) => Err(self.lose_transaction(why)),
            None => Ok(()),
        }
    }

    /// The open transaction is over, and nothing of it was done; where an earlier statement may have
    /// committed it, that is not known.
    pub(in crate::session) fn lose_transaction(&mut self, why: Unreplayable) -> Abort {
        let replay = self.image.tx.replay.as_ref();
        let committed = replay.is_some_and(|replay| replay.journal().may_be_committed());
        let server = replay.map(|replay| replay.lost().server);
        self.end_transaction();
        if committed {
            return self.unknown_outcome();
        }
        self.count_failed(server);
        self.worker.metrics().replay_failed(label(why));
        ClientError::transaction_lost(why).into()
    }

    /// Nobody can tell whether the statement under way was committed.
    pub(in crate::session) fn unknown_outcome(&self) -> Abort {
        self.count_unknown();
        ClientError::unknown_outcome().into()
    }

    /// The session is in no transaction any more.
    pub(in crate::session) fn end_transaction(&mut self) {
        self.image.tx.reset();
        self.handle.set_begun(false);
        self.unpin(PinReason::Transaction);
        self.image.status -= Status::IN_TRANS | Status::IN_TRANS_READONLY;
    }

    /// Has a connection take over from one that broke under the request: what that has left behind is
    /// looked for, and the transaction is run again. The inner error says that this server does not do.
    pub(in crate::session) async fn take_over(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<Result<(), ClientError>, Abort> {
        if let Some(ended) = self.running.route.ended.take() {
            let left = self.look_what_it_left(lease, request, &ended).await?;
            if left.is_err() {
                self.running.route.ended = Some(ended);
                return Ok(left);
            }
        }
        self.run_again(lease, request, wait).await
    }

    /// Runs the transaction again, on a connection that was just leased; the inner error says that this
    /// server does not do. `wait`: it is to wait for the session's position first.
    async fn run_again(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        wait: bool,
    ) -> Result<Result<(), ClientError>, Abort> {
        let Some(mut replay) = self.image.tx.replay.take() else {
            return Ok(Ok(()));
        };
        replay.try_anew();
        let why = match self.run_all_again(lease, &mut replay, wait).await {
            Ok(()) => {
                self.finish_replay(lease, *replay);
                return Ok(Ok(()));
            }
            Err(why) => why,
        };
        lease.broken = true;
        match why {
            ReplayStop::Elsewhere(answer) => {
                // Before that, it was a pool's connection like any other.
                if let Some(alive) = replay.begun_again()
                    && let ended = self.was_ended(
                        lease,
                        request.access == Access::Write,
                        Stake::Session,
                        &answer,
                        alive,
                    )
                    && let Some(told) = ended.await
                {
                    self.end_transaction();
                    return Err(Abort::Fatal(told));
                }
                self.image.tx.replay = Some(replay);
                Ok(Err(answer))
            }
            ReplayStop::Never(why) => Err(self.lose_transaction(why)),
            ReplayStop::Abort(failure) => {
                self.end_transaction();
                Err(failure)
            }
        }
    }

    async fn run_all_again(
        &mut self,
        lease: &mut Lease,
        replay: &mut Replay,
        wait: bool,
    ) -> Result<(), ReplayStop> {
        if replay.journal().wrote() {
            let keeps = match self.tables_written(replay.journal()) {
                Some(tables) => self.keeps_rows(lease, &tables).await?,
                None => true,
            };
            if keeps {
                return Err(ReplayStop::Never(Unreplayable::NonTransactional));
            }
        }
        loop {
            self.begin_again(lease, replay, wait).await?;
            replay.begin_again(Instant::now());
            let Some(at) = self.repeat(lease, replay).await? else {
                return Ok(());
            };
            replay.number(at);
            lease.query("ROLLBACK").await?;
        }
    }

    /// The tables that a transaction's statements change; none where they cannot be told.
    fn tables_written(&self, journal: &Journal) -> Option<Vec<Box<[u8]>>> {
        let mut names = Vec::new();
        let mut class = self.worker.lists.take_statement();
        let known = journal.entries().iter().enumerate().all(|(at, entry)| {
            let payload = packet::payload(journal.packets(at));
            let text: &[u8] = match (
                &entry.executed,
                Command::parse(&payload, self.client.capabilities),
            ) {
                (Some(executed), _) => &executed.text,
                (None, Ok(Command::Query(query))) => query.text,
                _ => return true,
            };
            classify(text, &self.image.vars.lex, &mut class);
            self.add_written(&class, text, &entry.state.database, &mut names)
        });
        self.worker.lists.put_statement(class);
        known.then_some(names)
    }

    /// Adds the tables that a statement changes; false where it may change others, because it calls
    /// functions that are not known to only read, or is too long.
    fn add_written(
        &self,
        class: &Statement,
        text: &[u8],
        database: &[u8],
        names: &mut Vec<Box<[u8]>>,
    ) -> bool {
        if class.flags.contains(Flags::TRUNCATED) {
            return false;
        }
        if !class.functions.is_empty() {
            let mut calls = class.clone();
            calls.access_if_calls_read = Access::Read;
            let catalogue = self.worker.cluster.catalogue();
            if catalogue.effective_access(&calls, text, database) == Access::Write {
                return false;
            }
        }
        add_written(class, text, names);
        true
    }

    /// Whether one of these tables keeps the rows of a statement that is rolled back: they may be there
    /// already. A view is taken for what it may hide.
    async fn keeps_rows(
        &mut self,
        lease: &mut Lease,
        tables: &[Box<[u8]>],
    ) -> Result<bool, BackendError> {
        if tables.is_empty() {
            return Ok(false);
        }
        let mut list = Vec::new();
        for name in tables {
            list.extend_from_slice(if list.is_empty() { b"" } else { b"," });
            write_hex(&mut list, "_utf8mb4", name);
        }
        let list = String::from_utf8_lossy(&list);
        let question = format!(
            "SELECT 1 FROM information_schema.TABLES WHERE LOWER(TABLE_NAME) IN ({list}) \
             AND COALESCE(ENGINE,_utf8mb4'') NOT IN \
             (SELECT ENGINE FROM information_schema.ENGINES WHERE TRANSACTIONS=_utf8mb4'YES') LIMIT 1"
        );
        // The connection may be one that this session has used before: with its LAST_INSERT_ID(), say.
        self.save_all_unread(lease).await?;
        lease.books.disown();
        let found = lease.query(&question).await.map_err(BackendError::ahead)?;
        Ok(!found.is_empty())
    }

    /// A write was ended with its server or connection, and would run again here. Looks whether all that it did
    /// there was undone; the error is what the client is told otherwise.
    async fn look_what_it_left(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
        ended: &ClientError,
    ) -> Result<Result<(), ClientError>, Abort> {
        let keeps = match self.written_by_request(request) {
            Some(tables) => self.keeps_rows(lease, &tables).await,
            None => Ok(true),
        };
        match keeps {
            Ok(false) => Ok(Ok(())),
            Ok(true) => {
                if self.image.tx.replay.is_some() {
                    self.end_transaction();
                }
                Err(Abort::Error(ended.clone()))
            }
            Err(error) => {
                lease.broken = true;
                Ok(Err(ClientError::backend(error)))
            }
        }
    }

    /// The tables that a request changes; none where they cannot be told.
    fn written_by_request(&self, request: &Request<'_>) -> Option<Vec<Box<[u8]>>> {
        let mut tables = Vec::new();
        let database = &self.image.vars.state.database;
        let known = match (request.inner, &request.main) {
            (Some((class, text)), _) => self.add_written(class, text, database, &mut tables),
            (None, Main::Execute { id, .. }) => {
                let statement = self.image.statements.get(*id)?;
                let database = &statement.context.database;
                self.add_written(&statement.class, &statement.text, database, &mut tables)
            }
            (None, Main::Packet(packet)) => {
                let payload = packet::payload(packet);
                let Ok(Command::Query(query)) = Command::parse(&payload, self.client.capabilities)
                else {
                    return None;
                };
                self.add_written(request.class, query.text, database, &mut tables)
            }
        };
        known.then_some(tables)
    }

    /// Brings the connection to where the transaction began, and begins it.
    async fn begin_again(
        &mut self,
        lease: &mut Lease,
        replay: &Replay,
        wait: bool,
    ) -> Result<(), ReplayStop> {
        let begun = replay.journal().begun();
        // The connection may be one that this session has used before: with its LAST_INSERT_ID(), say.
        self.save_all_unread(lease).await?;
        lease.books.disown();
        let uid = self.handle.uid();
        if lease
            .books
            .has_foreign_variables(uid, self.image.vars.private.version)
        {
            self.clear_foreign(lease).await?;
        }
        let mut setup = Setup::default();
        self.restore_private(lease, None, &mut setup);
        self.track_again(lease, &mut setup);
        if wait {
            self.wait_for_position(lease, &mut setup);
        }
        self.apply_state(lease, &begun.state, &mut setup);
        set_insert_id(lease, replay.id_at_begin(), &mut setup);
        for text in &begun.one_shot {
            lease.one_shot = true;
            setup.query(lease, text);
        }
        if let Some(text) = &begun.text {
            setup.query(lease, text);
        }
        Ok(self.run_steps(lease, &mut setup).await?)
    }

    /// Sends the statements and compares their answers. Answers which INSERT has to be told its number,
    /// where it generated another.
    async fn repeat(
        &mut self,
        lease: &mut Lease,
        replay: &Replay,
    ) -> Result<Option<usize>, ReplayStop> {
        for at in 0..replay.journal().entries().len() {
            let told = self.send_again(lease, replay, at).await?;
            let entry = &replay.journal().entries()[at];
            let answer = self.hear_again(lease, entry).await?;
            if let Some(id) = told {
                let id = id.to_le_bytes();
                let close = [5, 0, 0, 0, 0x19, id[0], id[1], id[2], id[3]];
                lease.send(&close, 0).await.map_err(BackendError::Io)?;
            }
            match replay.compare(at, answer) {
                Repeated::Same => {}
                Repeated::OtherNumber => return Ok(Some(at)),
                Repeated::Differs => {
                    debug!(
                        statement = at,
                        before = ?entry.answer,
                        now = ?answer,
                        "a transaction comes out differently on another server"
                    );
                    return Err(ReplayStop::Never(Unreplayable::Differs));
                }
            }
        }
        Ok(None)
    }

    /// Sends a statement again. Answers the number of a prepared statement that is to be closed after
    /// it.
    async fn send_again(
        &mut self,
        lease: &mut Lease,
        replay: &Replay,
        at: usize,
    ) -> Result<Option<u32>, ReplayStop> {
        let (entry, mut bytes) = replay.packets(at);
        // What was set before it has been set again by the statements before it; its database, where it is gone, not.
        let moved = !self.is_gone(&entry.state) && !entry.state.database.is_empty();
        self.note_reached(lease, &entry.state, moved);
        let mut closing = None;
        if let Some(executed) = &entry.executed {
            let (id, own) = self.number_of(lease, executed).await?;
            closing = own.then_some(id);
            put_number(&mut bytes, id);
        }
        let mut setup = Setup::default();
        let state = entry.state.clone();
        self.apply_state(lease, &state, &mut setup);
        if replay.is_numbered(at) {
            let text = format!("SET @@session.insert_id={}", entry.answer.insert_id);
            setup.own_query(lease, text.as_bytes());
        }
        self.give_insert_id(lease, replay, at, &mut setup).await?;
        if !setup.bytes.is_empty() {
            self.run_steps(lease, &mut setup).await?;
        }
        lease
            .send_statement(&bytes, 1)
            .await
            .map_err(BackendError::Io)?;
        lease.books.forget_insert_id();
        Ok(closing)
    }

    /// Sees to it that a statement finds the LAST_INSERT_ID() that it found before.
    async fn give_insert_id(
        &mut self,
        lease: &mut Lease,
        replay: &Replay,
        at: usize,
        setup: &mut Setup,
    ) -> Result<(), ReplayStop> {
        match replay.id_to_find(at) {
            IdToFind::Known(id) => {
                if lease.books.insert_id() != Some(id) {
                    set_insert_id(lease, id, setup);
                }
                return Ok(());
            }
            IdToFind::Any => return Ok(()),
            IdToFind::FromBefore => {}
        }
        if !setup.bytes.is_empty() {
            self.run_steps(lease, setup).await?;
        }
        let question = "SELECT CAST(LAST_INSERT_ID() AS UNSIGNED) LIMIT 1";
        let rows = lease.query(question).await.map_err(BackendError::ahead)?;
        if number(&rows, 0) != Some(UNKNOWN_ID) {
            return Ok(());
        }
        let id = replay.id_from_before(at).map_err(ReplayStop::Never)?;
        set_insert_id(lease, id, setup);
        Ok(())
    }

    /// The connection's number for a prepared statement; true where nobody else knows of it.
    async fn number_of(
        &mut self,
        lease: &mut Lease,
        executed: &Executed,
    ) -> Result<(u32, bool), ReplayStop> {
        let id = executed.id;
        let uid = match self.image.statements.get(id) {
            Some(open) if Rc::ptr_eq(&open.text, &executed.text) => Some(open.uid),
            // It was closed, and its number may be another's.
            _ => None,
        };
        if let Some(uid) = uid {
            let number = match self.held_prepared(lease, id) {
                Some((number, _)) => Ok(number),
                None => self
                    .prepare_anew(lease, id)
                    .await
                    .map_err(ReplayStop::Abort)?,
            };
            // It is told the types of this execution.
            lease.prepared.note_types(uid, 0);
            return match number {
                Ok(number) => Ok((number, false)),
                Err(answer) if answer.passing => Err(ReplayStop::Elsewhere(answer)),
                Err(_) => Err(ReplayStop::Never(Unreplayable::Differs)),
            };
        }
        let mut setup = Setup::default();
        self.apply_context(lease, &executed.context, &mut setup);
        let prepared = self.prepare_now(lease, &mut setup, &executed.text).await;
        Ok((prepared?, true))
    }

    /// Reads the answer of a statement that was sent again.
    async fn hear_again(
        &mut self,
        lease: &mut Lease,
        entry: &Entry,
    ) -> Result<Answered, ReplayStop> {
        let plan = Plan {
            discard: true,
            sums: true,
            ..Plan::default()
        };
        match self.relay(lease, entry.expect, &plan).await {
            Ok(RelayOutcome::Whole) => {}
            Ok(RelayOutcome::Held(_) | RelayOutcome::Lost | RelayOutcome::Unasked(_)) => {
                let lost = std::io::ErrorKind::ConnectionAborted;
                return Err(BackendError::Io(lost.into()).into());
            }
            Err(failure) => return Err(ReplayStop::Abort(failure)),
        }
        match &self.running.outcome.error {
            Some(error) if meaning(error) != Meaning::Own => Err(ReplayStop::Elsewhere(
                ClientError::server((**error).clone()),
            )),
            _ => Ok(Answered::of(&self.running.outcome)),
        }
    }

    /// The transaction stands where it stood: the connection takes the lost one's place.
    fn finish_replay(&mut self, lease: &mut Lease, replay: Replay) {
        let lost = replay.lost();
        lease.effects_noted();
        lease.state = self.image.vars.state.clone();
        let (uid, store) = (self.handle.uid(), &self.handle.saved());
        lease.books.replaces(uid, lost.seq, lost.unread, store);
        let (before, now) = ((lost.server, lost.seq), (lease.server, lost.seq));
        self.image.last.moved(before, now);
        self.image.tx.undefer();
        self.handle.set_begun(false);
        self.pin(PinReason::Transaction);
        self.image.tx.journal = Some(replay.into_journal());
        let failovers = self.worker.shared.monitor.failovers();
        failovers.count(FailoverCount::Replayed, Some(lost.server));
    }

    /// The session is idle, and the server of its kept connection has fallen, was demoted or drained. An
    /// open transaction leaves it, so that it holds no locks there; what else the session has there
    /// it may yet ask for.
    pub(in crate::session) fn check_role_of_kept(&mut self) {
        self.handle.clear_eviction();
        let Some(mut lease) = self.lease.take() else {
            return;
        };
        let leaves = self.handle.pins().has_only(PinReason::Transaction)
            && (self.has_lost_role(lease.server, false) || self.is_down(&mut lease));
        if leaves {
            self.evict(lease);
        } else {
            self.lease = Some(lease);
        }
    }

    /// Whether a connection has ended with its server. Why it ended otherwise, the next statement asks.
    fn is_down(&self, lease: &mut Lease) -> bool {
        let down = self.worker.cluster.with_world(|world| {
            let view = world.snapshot.server(lease.server);
            view.is_none_or(|view| !view.health.is_usable())
        });
        down && !lease.is_quiet()
    }
}

fn set_insert_id(lease: &mut Lease, id: u64, setup: &mut Setup) {
    let text = format!("SET @@session.last_insert_id={id}");
    setup.own_query(lease, text.as_bytes());
    lease.books.set_insert_id(id);
}

/// For the metrics.
fn label(why: Unreplayable) -> ReplayFailure {
    match why {
        Unreplayable::TooLarge | Unreplayable::NoRoom => ReplayFailure::TooLarge,
        Unreplayable::TooOld => ReplayFailure::TooOld,
        Unreplayable::Begin | Unreplayable::Statement | Unreplayable::NonTransactional => {
            ReplayFailure::NotReplayable
        }
        Unreplayable::Differs => ReplayFailure::Differs,
        Unreplayable::NoServer => ReplayFailure::NoServer,
    }
}
