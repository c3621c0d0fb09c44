//! LAST_INSERT_ID(), FOUND_ROWS() and ROW_COUNT() of a session, on a connection that has others.

use millrace_backend::conn::number;
use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::image::last::IdBefore;
use millrace_engine::request::Request;
use millrace_sql::{Access, Flags, Kind, Statement, TableUse, Traits};

use crate::session::Session;
use crate::session::statement::steps::Setup;

impl Session {
    pub(in crate::session) fn needs_insert_id(&self, request: &Request<'_>) -> bool {
        let class = request.class;
        let flags = Flags::USES_LAST_INSERT_ID | Flags::SETS_LAST_INSERT_ID | Flags::RETURNING;
        // Lists of variables show it too. Before what is measured, all that it may need is set.
        class
            .flags
            .intersects(flags | Flags::SHOWS_VARIABLES | Flags::MEASURES)
            || !class.functions.is_empty()
            || (class.kind == Kind::Select && self.image.vars.switches.names_last_row)
            || class.is(Traits::GENERATES_ID)
            || (request.access == Access::Write
                && self.worker.cluster.catalogue().triggers().last_insert_id)
    }

    /// The statement may set LAST_INSERT_ID() but does not use it, and what it makes of it can be
    /// told from what the connection holds now: nothing has to be set before it.
    pub(super) fn keeps_insert_id(&mut self, lease: &Lease, request: &Request<'_>) -> bool {
        let class = request.class;
        let uses = Flags::USES_LAST_INSERT_ID
            | Flags::SETS_LAST_INSERT_ID
            | Flags::RETURNING
            | Flags::TRUNCATED;
        let plain = matches!(class.kind, Kind::Insert | Kind::Replace)
            && !class.flags.intersects(uses)
            && class.functions.is_empty()
            && class
                .tables
                .iter()
                .all(|table| table.usage == TableUse::Write)
            && !self.image.vars.switches.names_last_row
            && !self.worker.cluster.catalogue().triggers().last_insert_id;
        if !plain {
            return false;
        }
        self.image.last.collect_saved();
        match self.image.last.insert_id.at {
            Some(_) => {
                lease
                    .books
                    .holds(self.handle.uid(), self.image.last.insert_id.at)
                    && self.image.last.insert_id.before != IdBefore::Unknown
            }
            None => IdBefore::blank(lease.books.insert_id()) != IdBefore::Unknown,
        }
    }

    /// Whether the statement would show messages that are not this session's, or no longer: there are
    /// none for it to show.
    pub(super) fn sees_old_messages(&self, lease: &Lease, request: &Request<'_>) -> bool {
        match request.class.kind {
            Kind::Diagnostics => true,
            // One of several may ask.
            Kind::Multi => {
                lease.books.is_of(self.handle.uid())
                    && lease.books.unread().diagnostics
                    && self.image.last.messages.at.is_none()
            }
            _ => false,
        }
    }

    /// Makes FOUND_ROWS() and ROW_COUNT() on another connection what they are for the session,
    /// as far as a statement without effect can. `asked`: something else
    /// was run on this one since.
    pub(super) fn restore_counts(
        &mut self,
        lease: &Lease,
        class: &Statement,
        asked: bool,
        setup: &mut Setup,
    ) {
        const ROWS_MAX: u64 = 64;
        let uid = self.handle.uid();
        let here = Some(lease.books.last_statement());
        let mine = lease.books.is_of(uid);
        let rows_here = mine && self.image.last.found_rows.at == here && !asked;
        // What goes ahead of the statement has a count of its own.
        let count_here = mine
            && self.image.last.server() == Some(lease.server)
            && lease.books.last_seq() == self.image.last.seq()
            && setup.bytes.is_empty()
            && !asked;
        let needs_rows = class.flags.contains(Flags::USES_FOUND_ROWS) && !rows_here;
        let needs_count = class.flags.contains(Flags::USES_ROW_COUNT) && !count_here;
        if !needs_rows && !needs_count {
            return;
        }
        self.image.last.collect_saved();
        if needs_rows && self.image.last.found_rows.count <= ROWS_MAX
            || needs_count && self.image.last.row_count() < 0
        {
            let mut text = b"SELECT 1".to_vec();
            match self.image.last.found_rows.count {
                0 => text.extend_from_slice(b" LIMIT 0"),
                rows => {
                    let rows = rows.min(ROWS_MAX);
                    (1..rows).for_each(|_| text.extend_from_slice(b" UNION ALL SELECT 1"));
                    text.extend_from_slice(format!(" LIMIT {rows}").as_bytes());
                }
            }
            setup.own_query(lease, &text);
        }
        if self.image.last.row_count() == 0 {
            // On MySQL, DO would change FOUND_ROWS() (observed).
            setup.own_query(lease, b"SET @@session.sql_notes=@@session.sql_notes");
        }
    }

    /// Gives the connection the session's LAST_INSERT_ID().
    pub(super) async fn restore_insert_id(
        &mut self,
        lease: &mut Lease,
        setup: &mut Setup,
    ) -> Result<(), BackendError> {
        let uid = self.handle.uid();
        self.image.last.collect_saved();
        if let Some((server, seq)) = self.image.last.insert_id.at {
            if lease.books.holds(uid, Some((server, seq))) {
                if self.image.last.insert_id.before == IdBefore::Own {
                    return Ok(());
                }
                if !setup.bytes.is_empty() {
                    self.run_steps(lease, setup).await?;
                }
                self.read_insert_id(lease).await;
            }
            if self.image.last.insert_id.at.is_some()
                && let Some(mut own) = self.take_own(server, seq)
            {
                if own.books.unread().diagnostics || own.books.unread().found_rows {
                    // To read the number would lose them.
                    self.save_own_diagnostics(&mut own).await;
                }
                self.read_insert_id(&mut own).await;
                own.give_back();
            }
            if self.image.last.insert_id.at.take().is_some() {
                // Its connection is gone: the OK packet's number has to do. Many an OK tells none.
                if self.image.last.insert_id.seen != 0 {
                    self.image.last.insert_id.value = self.image.last.insert_id.seen;
                }
            }
        }
        if lease.books.insert_id() != Some(self.image.last.insert_id.value) {
            let text = format!(
                "SET @@session.last_insert_id={}",
                self.image.last.insert_id.value
            );
            setup.own_query(lease, text.as_bytes());
            lease.books.set_insert_id(self.image.last.insert_id.value);
        }
        Ok(())
    }

    /// Saves what this session, or the one that used the connection last, may still ask of it: what follows
    /// leaves nothing of that there.
    pub(in crate::session) async fn save_all_unread(
        &mut self,
        lease: &mut Lease,
    ) -> Result<(), BackendError> {
        let uid = self.handle.uid();
        if lease.books.is_missed_by_other(uid) {
            let mut setup = Setup::default();
            self.save_unread(lease, &mut setup);
            return self.run_steps(lease, &mut setup).await;
        }
        if !lease.books.is_of(uid) {
            return Ok(());
        }
        let (here, last) = (Some(lease.books.last_statement()), &self.image.last);
        if last.messages.at == here || last.found_rows.at == here {
            self.save_own_diagnostics(lease).await;
        }
        if self.image.last.insert_id.at == Some(lease.books.last_statement()) {
            self.read_insert_id(lease).await;
        }
        lease.books.ended();
        Ok(())
    }

    pub(super) async fn read_insert_id(&mut self, own: &mut Lease) {
        let rows = own
            .query("SELECT CAST(LAST_INSERT_ID() AS UNSIGNED) LIMIT 1")
            .await;
        let id = rows.ok().and_then(|rows| number(&rows, 0));
        match id {
            Some(id) => {
                self.image.last.insert_id.note_read(id);
                own.books.set_insert_id(id);
                own.books.read_insert_id();
            }
            None => own.broken = true,
        }
    }
}
