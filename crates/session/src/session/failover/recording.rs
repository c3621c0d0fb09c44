//! Writes down what an open transaction does, as far as it can be run again, and what is known of it
//! otherwise. Sends nothing.

use std::time::Instant;

use millrace_backend::pool::Lease;
use millrace_engine::image::last::is_about_last;
use millrace_engine::journal::{
    Answered, Executed, Journal, StatementContext, TransactionStart, Unreplayable, is_replayable,
};
use millrace_engine::outcome::Outcome;
use millrace_engine::request::{Main, Request, Task, Types};
use millrace_metrics::PinReason;
use millrace_protocol::{Status, packet};
use millrace_sql::{Access, Flags, Kind};

use crate::session::Session;

impl Session {
    /// Whether the statement's answer is to be summed up and written down.
    pub(in crate::session) fn is_recorded(&self, request: &Request<'_>) -> bool {
        let class = request.runs();
        let in_transaction = self.handle.pins().has(PinReason::Transaction)
            || self.image.tx.is_deferred()
            || self.image.autocommit_off()
            || class.kind == Kind::Begin;
        let counts = match request.task {
            Task::Query | Task::Execute | Task::Use | Task::ProcessInfo => true,
            // Nobody runs these again: they spoil the journal.
            Task::CloseCursor | Task::Kill | Task::Administer => true,
            Task::Prepare(_) | Task::Fetch | Task::Ping => false,
            Task::FieldList | Task::Statistics | Task::Replicate => false,
        };
        in_transaction
            && counts
            && !matches!(class.kind, Kind::Commit | Kind::Rollback)
            && self
                .image
                .tx
                .journal
                .as_ref()
                .is_none_or(|journal| journal.is_whole())
    }

    /// Writes down a statement of the open transaction that has been answered. What it changed on the
    /// session has not been taken in yet.
    pub(in crate::session) fn record(&mut self, lease: &Lease, request: &Request<'_>) {
        let class = request.runs();
        if class.kind == Kind::Begin && self.running.outcome.error.is_none() {
            // It commits what was open.
            self.image.tx.journal = None;
        }
        let mut journal = match self.image.tx.journal.take() {
            Some(journal) => journal,
            None => self.begin_journal(lease, Some(request)),
        };
        let needs_insert_id = self.needs_insert_id(request);
        let about = StatementContext {
            last_insert_id: lease.books.insert_id().filter(|_| needs_insert_id),
            uses_insert_id: self.uses_insert_id(request),
            last: is_about_last(class),
        };
        let replayable = match request.task {
            Task::Use => true,
            Task::CloseCursor | Task::Kill | Task::Administer => false,
            _ => is_replayable(class) && request.is_replayable_outside(),
        };
        // What it is to find would have to be set between it and the one before.
        let torn = about.last && needs_insert_id;
        let options = &self.settings.options.failover;
        let all_max = self.worker.journals_max();
        if !replayable || torn {
            journal.spoil(Unreplayable::Statement);
        } else if journal.has_room(self.length(request), Instant::now(), options, all_max) {
            self.write_down(request, about, &mut journal);
        }
        self.image.tx.journal = Some(journal);
    }

    /// The bytes that a journal has to keep of a command.
    fn length(&self, request: &Request<'_>) -> usize {
        match request.main {
            Main::Packet(packet) => packet.len(),
            Main::Execute { packet, id, .. } => {
                let statement = self.image.statements.get(id);
                let long = statement.map(|statement| &*statement.long_data);
                let long = long.unwrap_or_default().iter();
                packet.len() + long.map(|(_, data)| data.len()).sum::<usize>()
            }
        }
    }

    fn write_down(&self, request: &Request<'_>, about: StatementContext, journal: &mut Journal) {
        let executed = match request.main {
            Main::Packet(packet) => {
                journal.room().extend_from_slice(packet);
                None
            }
            Main::Execute { id, types, packet } => {
                let Some(executed) = self.write_execution(id, types, packet, journal) else {
                    return journal.spoil(Unreplayable::Statement);
                };
                Some(executed)
            }
        };
        let options = &self.settings.options.failover;
        let (state, answer) = (
            self.image.vars.state.clone(),
            Answered::of(&self.running.outcome),
        );
        journal.add(
            request.task.expect(),
            executed,
            state,
            answer,
            about,
            options,
        );
    }

    /// Whether LAST_INSERT_ID() may be part of what the statement does. That of a column's default
    /// is not (both families refuse it there).
    fn uses_insert_id(&self, request: &Request<'_>) -> bool {
        request.class.flags.contains(Flags::USES_LAST_INSERT_ID)
            || !request.class.functions.is_empty()
            || self.image.vars.switches.names_last_row
            || (request.access == Access::Write
                && self.worker.cluster.catalogue().triggers().last_insert_id)
    }

    /// The journal of the transaction that is open, or opened by `request`.
    pub(super) fn begin_journal(
        &self,
        lease: &Lease,
        request: Option<&Request<'_>>,
    ) -> Box<Journal> {
        let (text, read_only) = match self.image.tx.deferred() {
            Some(begin) => (Some(begin.text.clone()), begin.read_only),
            None => (None, false),
        };
        let known = text.is_some()
            || request.is_some_and(|request| request.class.kind == Kind::Begin)
            || (self.image.autocommit_off() && !self.handle.pins().has(PinReason::Transaction));
        let begun = TransactionStart {
            one_shot: match text {
                Some(_) => self.image.tx.next().to_vec(),
                None => Vec::new(),
            },
            text,
            read_only,
            on_primary: self.worker.cluster.is_primary(lease.server),
            state: self.image.vars.state.clone(),
            last_insert_id: match self.image.last.insert_id.at {
                None => Some(self.image.last.insert_id.value),
                Some(_) => lease.books.insert_id(),
            },
            insert_id_seen: self.image.last.insert_id.seen,
            private_version: self.image.vars.private.version,
        };
        let mut journal = self.worker.lists.take_journal(begun);
        if !known {
            // In one command with other statements, in a procedure: what it did is not written down.
            // Where no answer said that it is open, an error may have ended it.
            let open = self.image.status.contains(Status::IN_TRANS) || self.image.tx.next_waits();
            journal.begin_unseen(open);
        }
        let tx = &self.image.tx;
        if !known || tx.next_waits() || tx.savepoint_waits() {
            journal.spoil(Unreplayable::Begin);
        }
        journal
    }

    /// Writes an execution's packets: its long data, and itself with its parameters' types.
    fn write_execution(
        &self,
        id: u32,
        types: Types,
        packet: &[u8],
        journal: &mut Journal,
    ) -> Option<Executed> {
        let statement = self.image.statements.get(id)?;
        let short = packet.len() < packet::MAX_PAYLOAD;
        if !short || statement.cursor {
            return None;
        }
        self.append_long_data(id, 0, journal.room());
        if types != Types::LeftOut {
            journal.room().extend_from_slice(packet);
        } else if !self.append_with_types(id, packet, journal.room()) {
            return None;
        }
        Some(Executed {
            id,
            text: statement.text.clone(),
            context: statement.context.clone(),
        })
    }

    /// Looks, after a statement has been taken in, whether its transaction goes on.
    pub(in crate::session) fn keep_journal(&mut self, outcome: &Outcome, request: &Request<'_>) {
        let implicit = self.image.autocommit_off();
        let Some(journal) = self.image.tx.journal.as_mut() else {
            return;
        };
        if !self.handle.pins().has(PinReason::Transaction) {
            if let Some(journal) = self.image.tx.journal.take() {
                self.worker.lists.put_journal(journal);
            }
            return;
        }
        let writes = request.access == Access::Write;
        journal.note_answer(outcome, request, writes, implicit);
    }
}
