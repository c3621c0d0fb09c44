//! Commands that are no statements: COM_PING, COM_INIT_DB, COM_SET_OPTION, and those that are passed on as they are.

use millrace_engine::request::{Request, Task};
use millrace_protocol::ok::{OkFields, encode_end};
use millrace_sql::{Access, Family, Kind};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::answers::messages::error_row;

impl Session {
    /// A command that Millrace has answered with an OK by itself leaves ROW_COUNT() as an OK without
    /// rows does, and nothing else changed.
    pub(in crate::session) fn answered_ok(&mut self) {
        self.image.last.answered_here(0);
    }

    /// Such a command, as MySQL answers it: it counts the messages of the statement before.
    pub(super) async fn answer_ok(&mut self) -> Result<(), Abort> {
        let warnings = self.count_messages().await;
        self.answered_ok();
        self.ok(OkFields {
            warnings,
            ..OkFields::default()
        })
        .await
    }

    pub(super) async fn ping_kept(&mut self, packet: &[u8]) -> Result<(), Abort> {
        if self.image.last.messages.at.is_none() || self.image.last.has_saved_messages() {
            // Whatever its server counts was Millrace's own.
            self.image.last.messages.ok_warnings = Some(self.count_messages().await);
        }
        let pinging = self.forward(Task::Ping, packet, Access::Read);
        let pinged = pinging.await;
        self.image.last.messages.ok_warnings = None;
        pinged
    }

    /// COM_SET_OPTION: multi-statements on or off.
    pub(super) async fn set_option(&mut self, option: u16) -> Result<(), Abort> {
        let on = match option {
            0 => true,
            1 => false,
            _ => return Err(ClientError::client(1047, b"08S01", "Unknown command").into()),
        };
        self.change_state(|state| state.multi_statements = on);
        // Its EOF counts as a result (observed).
        self.image.last.answered_here(-1);
        let mut out = Vec::new();
        let fields = OkFields {
            status: self.idle_status(),
            ..OkFields::default()
        };
        encode_end(&mut out, 1, self.client.capabilities, &fields);
        self.send(&out).await
    }

    /// A command that is passed on as it is.
    pub(super) async fn forward(
        &mut self,
        task: Task,
        packet: &[u8],
        access: Access,
    ) -> Result<(), Abort> {
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = task.kind();
        let request = Request::packet(task, packet, &class, access);
        let ran = self.statement(&request, b"").await;
        self.worker.lists.put_statement(class);
        ran
    }

    /// COM_INIT_DB.
    pub(super) async fn init_db(&mut self, packet: &[u8], name: &[u8]) -> Result<(), Abort> {
        // On MySQL it leaves the messages of the statement before, and adds its own (observed).
        let count = self.count_messages().await;
        if self.image.family == Family::MariaDb || self.image.last.messages.at.is_none() {
            return self.choose_database(packet, name).await;
        }
        self.image.last.messages.kept = self.image.last.saved_warnings().unwrap_or_default();
        self.image.last.messages.ok_warnings = Some(count);
        let before = self.image.last.messages.kept.len();
        self.image.last.messages.keeps = true;
        let chosen = self.choose_database(packet, name).await;
        (
            self.image.last.messages.ok_warnings,
            self.image.last.messages.keeps,
        ) = (None, false);
        if chosen.is_ok() {
            let messages = std::mem::take(&mut self.image.last.messages.kept);
            let added = u16::from(messages.len() > before);
            self.image.last.put_messages(messages, count + added);
        }
        chosen
    }

    async fn choose_database(&mut self, packet: &[u8], name: &[u8]) -> Result<(), Abort> {
        let mut class = self.worker.lists.take_statement();
        class.clear();
        class.kind = Kind::Use;
        let request = Request::packet(Task::Use, packet, &class, Access::PrimaryRead);
        let ran = match self.run_somewhere(&request).await {
            Ok(lease) => {
                if self.running.outcome.error.is_none() {
                    // In the session's own character set, which the reported name is not.
                    self.running.outcome.schema = Some(name.into());
                }
                if let Some(error) = self
                    .running
                    .outcome
                    .error
                    .as_deref()
                    .filter(|_| self.image.last.messages.keeps)
                {
                    let row = error_row(error.code, &error.message);
                    self.image.last.messages.kept.push(row);
                }
                self.conclude(lease, &request, b"").await
            }
            Err(failure) => Err(failure),
        };
        self.worker.lists.put_statement(class);
        ran
    }
}
