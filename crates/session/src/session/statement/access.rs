//! What a statement needs and touches, with stored code looked at, and what it is counted as.

use millrace_engine::request::{Main, Request};
use millrace_engine::words;
use millrace_metrics::StatementKind;
use millrace_protocol::command::Command;
use millrace_protocol::packet;
use millrace_routing::Catalogue;
use millrace_sql::{Access, Flags, HandlerOp, Kind, Statement, classify, parts};
use millrace_topology::Waits;

use crate::session::Session;

/// Whether the request creates or changes stored code.
fn defines_code(request: &Request<'_>) -> bool {
    let class = request.runs();
    class.flags.contains(Flags::STORED_CODE) && !request.prepares()
}

/// What a statement is counted as.
pub(in crate::session) fn metric_kind(kind: Kind) -> StatementKind {
    match kind {
        Kind::Select
        | Kind::Show(_)
        | Kind::Explain { .. }
        | Kind::Help
        | Kind::Command
        | Kind::Ping
        | Kind::Diagnostics
        | Kind::Handler(HandlerOp::Read) => StatementKind::Read,
        Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete | Kind::LoadData { .. } => {
            StatementKind::Write
        }
        Kind::Ddl => StatementKind::Ddl,
        Kind::Call => StatementKind::Call,
        Kind::Begin
        | Kind::Commit
        | Kind::Rollback
        | Kind::Savepoint
        | Kind::ReleaseSavepoint
        | Kind::RollbackTo
        | Kind::Xa(_)
        | Kind::SetTransaction => StatementKind::Transaction,
        Kind::Set
        | Kind::Use
        | Kind::Prepare
        | Kind::Execute { .. }
        | Kind::Deallocate
        | Kind::SetRole => StatementKind::Session,
        _ => StatementKind::Other,
    }
}

impl Session {
    /// What a statement needs, with stored routines and views looked at.
    pub(in crate::session) fn access(&self, class: &Statement, text: &[u8]) -> Access {
        if class.functions.is_empty() && class.access == Access::Write {
            return Access::Write;
        }
        if self.worker.cluster.is_catalogue_stale() && self.names_touched(class, text) {
            return Access::Write;
        }
        let catalogue = self.worker.cluster.catalogue();
        let access = catalogue.effective_access(class, text, &self.image.vars.state.database);
        // What sets session state may come to keep its connection, and a kept one must be able
        // to take whatever comes next.
        let keeps = access == Access::Session
            || class.flags.contains(Flags::USES_CONNECTION_ID)
            || self.may_leave_next(class);
        // `id IS NULL` then finds the row last inserted, which only the primary knows.
        let finds_last = class.kind == Kind::Select && self.image.vars.switches.finds_last_row;
        if keeps || finds_last {
            access.max(Access::PrimaryRead)
        } else {
            access
        }
    }

    /// Whether the statement names stored code that DDL has touched since it was read.
    pub(in crate::session) fn names_touched(&self, class: &Statement, text: &[u8]) -> bool {
        let database = &self.image.vars.state.database;
        self.worker.cluster.names_touched(class, text, database)
    }

    /// A write is about to be sent: from now on until its outcome is known, others' reads and writes may have to
    /// reckon with it. Not while it waits for its place.
    pub(super) fn begin_write(&mut self, request: &Request<'_>) {
        if self.running.untracked.is_none() && self.may_be_untracked(request) {
            self.running.untracked = Some(self.worker.shared.written.begin_untracked());
        }
        if self.running.touching.is_none()
            && (defines_code(request) || self.may_unreplicate(request))
        {
            self.touch(request);
        }
    }

    /// Whether the request makes a table of another engine in a cluster of Galera, which does not replicate its rows.
    fn may_unreplicate(&self, request: &Request<'_>) -> bool {
        let class = request.runs();
        if !matches!(class.kind, Kind::Ddl)
            || request.prepares()
            || self.worker.cluster.waits_of_primary() != Waits::Cluster
        {
            return false;
        }
        let engine = self.image.vars.state.effective("default_storage_engine");
        let text = match request.inner {
            Some((_, text)) => Some(text.into()),
            None => self.text_of(request),
        };
        engine.is_some_and(|engine| !engine.eq_ignore_ascii_case(b"InnoDB"))
            || text.is_none_or(|text| {
                let words = words(&text);
                // LIKE and RENAME take a table's engine over.
                ["engine", " like ", "rename"]
                    .iter()
                    .any(|word| words.contains(word))
            })
    }

    /// Notes which stored code the request is about to define: what it means is not known until it was read.
    fn touch(&mut self, request: &Request<'_>) {
        let mut names = Vec::new();
        match (request.inner, &request.main) {
            (Some((inner, body)), _) => self.add_touched(inner, body, &mut names),
            (None, Main::Execute { id, .. }) => {
                if let Some(statement) = self.image.statements.get(*id) {
                    self.add_touched(&statement.class, &statement.text, &mut names);
                }
            }
            (None, Main::Packet(packet)) => {
                let payload = packet::payload(packet);
                if let Ok(Command::Query(query)) =
                    Command::parse(&payload, self.client.capabilities)
                {
                    self.add_touched(request.class, query.text, &mut names);
                }
            }
        }
        let touched = self.worker.shared.monitor.touched();
        self.running.touching = Some(touched.begin(names));
    }

    fn add_touched(&self, class: &Statement, text: &[u8], names: &mut Vec<Box<[u8]>>) {
        let database = &self.image.vars.state.database;
        if class.kind != Kind::Multi {
            names.extend(Catalogue::touched(class, text, database));
            return;
        }
        let mut part = self.worker.lists.take_statement();
        for span in parts(text, &self.image.vars.lex) {
            let text = span.of(text);
            classify(text, &self.image.vars.lex, &mut part);
            if part.flags.contains(Flags::STORED_CODE) {
                names.extend(Catalogue::touched(&part, text, database));
            }
        }
        self.worker.lists.put_statement(part);
    }
}
