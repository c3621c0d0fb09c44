//! Messages of the statement before over what does not clear them: commands that MySQL answers with their
//! number, and errors that it adds to them. And those that Millrace told itself, while a connection is kept
//! that knows nothing of them.

use millrace_backend::error::{BackendError, ServerError};
use millrace_engine::books::Message;
use millrace_sql::Family;

use crate::error::ClientError;
use crate::session::Session;

/// The row of SHOW WARNINGS for an error.
pub(in crate::session) fn error_row(code: u16, text: &[u8]) -> Message {
    let code = code.to_string().into_bytes();
    [b"Error"[..].into(), code.into(), text.into()]
}

impl Session {
    /// How many messages an OK counts that leaves those of the statement before: MySQL counts them, where
    /// MariaDB does not (observed for COM_PING and COM_INIT_DB).
    pub(in crate::session) async fn count_messages(&mut self) -> u16 {
        if self.image.family == Family::MariaDb || self.image.last.messages.at.is_none() {
            return 0;
        }
        self.read_messages().await;
        if let Some(count) = self.image.last.messages.ok_count {
            return count;
        }
        let counts = self.image.last.saved_message_counts();
        let count = counts.map_or(0, |(warnings, _)| warnings);
        u16::try_from(count).unwrap_or(u16::MAX)
    }

    /// Has the messages of the statement before saved, where a connection still holds them.
    async fn read_messages(&mut self) {
        if self.image.last.has_saved_messages() {
            return;
        }
        if let Some(mut lease) = self.lease.take() {
            if self.image.last.messages.at == Some(lease.books.last_statement()) {
                lease.begin();
                self.save_own_diagnostics(&mut lease).await;
            }
            self.keep(lease);
        }
        if !self.image.last.has_saved_messages() {
            self.gather_answers().await;
        }
    }

    /// Has a kept connection raise the error that Millrace has just told, so that whatever asks about
    /// messages finds it there.
    pub(in crate::session) async fn raise_on_kept(&mut self, error: &ServerError) {
        /// Characters that MESSAGE_TEXT takes.
        const TEXT_MAX: usize = 128;
        let is_plain = self.image.last.messages.count == 1 && error.message.len() <= TEXT_MAX;
        let is_clean = self.lease.as_ref().is_some_and(|lease| lease.is_clean());
        if !is_plain || !is_clean || self.is_measured() {
            return;
        }
        let Some(mut lease) = self.lease.take() else {
            return;
        };
        lease.begin();
        let mut text = format!(
            "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO={},MESSAGE_TEXT=",
            error.code
        );
        text.push_str("_utf8mb4 0x");
        text.extend(error.message.iter().map(|byte| format!("{byte:02X}")));
        let raised = lease.query(&text).await;
        let told = matches!(raised, Err(BackendError::Server(_)));
        lease.broken |= !told;
        let (here, now) = (
            lease.books.last_statement(),
            (lease.server, self.image.last.seq()),
        );
        for held in [
            &mut self.image.last.insert_id.at,
            &mut self.image.last.found_rows.at,
        ] {
            if *held == Some(here) {
                *held = Some(now);
            }
        }
        lease.books.mark(self.handle.uid(), self.image.last.seq());
        lease.books.has_messages(true);
        self.image.last.messages.at = Some(now);
        self.handle.saved().keep(self.image.last.seq()).warnings = None;
        self.keep(lease);
    }

    /// The messages that the next error of Millrace's own is added to, which MySQL does where a
    /// command is refused before a statement begins (observed).
    pub(in crate::session) async fn add_to_messages(&mut self, answer: ClientError) -> ClientError {
        if self.image.family == Family::MySql && self.image.last.messages.at.is_some() {
            self.read_messages().await;
            self.image.last.messages.kept = self.image.last.saved_warnings().unwrap_or_default();
        }
        answer
    }
}
