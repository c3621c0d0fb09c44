//! One operator's commands, one after the other, until the client leaves.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use millrace_backend::packet_io::read_packet;
use millrace_protocol::command::Command;
use millrace_protocol::packet;
use millrace_protocol::resultset::TextResult;
use tracing::debug;

use crate::operators::acts;
use crate::operators::answer::{Answer, definition, fields};
use crate::operators::cell::{Kind, Refusal, Trouble};
use crate::operators::chatter::{Item, Own};
use crate::operators::filter::Filter;
use crate::operators::login::Entered;
use crate::operators::sources::Sources;
use crate::operators::statement::{Statement, has_parameters, parse};
use crate::operators::tables::{self, listing};
use crate::operators::variables::{IDLE_MAX_S, PACKET_MAX};

/// Prepared statements open at once.
const PREPARED_MAX: usize = 64;

/// A client that may ask and act.
pub(crate) struct Conversation<'a> {
    sources: &'a Sources,
    entered: Entered,
    prepared: BTreeMap<u32, String>,
    next: u32,
}

impl<'a> Conversation<'a> {
    pub(crate) fn new(sources: &'a Sources, entered: Entered) -> Self {
        Conversation {
            sources,
            entered,
            prepared: BTreeMap::new(),
            next: 1,
        }
    }

    /// Until the client leaves, says nothing for hours, or breaks the protocol.
    pub(crate) async fn run(mut self) {
        let idle_max = Duration::from_secs(IDLE_MAX_S);
        loop {
            let entered = &mut self.entered;
            let reading = read_packet(&mut entered.stream, &mut entered.buffer, PACKET_MAX);
            let (sequence, payload) = match tokio::time::timeout(idle_max, reading).await {
                Ok(Ok(read)) => read,
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    let text = format!(
                        "Got a packet bigger than 'max_allowed_packet' bytes ({PACKET_MAX} here)"
                    );
                    let refusal = Refusal::new(1153, b"08S01", text);
                    let _ = self.answer(0, false).refuse(&refusal).await;
                    break;
                }
                _ => break,
            };
            let sequence = sequence.wrapping_add(1);
            match self.command(&payload, sequence).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(Trouble::Client(error)) => {
                    debug!(user = self.entered.own.user, %error, "an operator's client is gone");
                    break;
                }
                Err(Trouble::Error(refusal)) => {
                    let told = self.answer(sequence, false).refuse(&refusal).await;
                    if told.is_err() {
                        break;
                    }
                }
            }
        }
        self.entered.stream.close().await;
    }

    fn answer(&mut self, sequence: u8, binary: bool) -> Answer<'_> {
        let entered = &mut self.entered;
        Answer::new(&mut entered.stream, entered.capabilities, sequence, binary)
    }

    /// One command; false where it ends the conversation.
    async fn command(&mut self, payload: &[u8], sequence: u8) -> Result<bool, Trouble> {
        let capabilities = self.entered.capabilities;
        let Ok(command) = Command::parse(payload, capabilities) else {
            let text = "Malformed communication packet";
            return Err(Refusal::new(1835, b"HY000", text).into());
        };
        match command {
            Command::Quit => return Ok(false),
            Command::Query(query) => {
                let statement = parse(&text_of(query.text)?)?;
                self.run_statement(statement, sequence, false).await?;
            }
            Command::StmtPrepare(text) => self.prepare(text, sequence).await?,
            Command::StmtExecute(execute) => {
                let text = self.prepared.get(&execute.id).cloned();
                let text = text.ok_or_else(unknown_statement)?;
                self.run_statement(parse(&text)?, sequence, true).await?;
            }
            Command::StmtClose(id) => {
                self.prepared.remove(&id);
            }
            Command::StmtSendLongData { .. } => {}
            Command::StmtReset(id) => {
                if !self.prepared.contains_key(&id) {
                    return Err(unknown_statement().into());
                }
                self.answer(sequence, false).ok().await?;
            }
            Command::InitDb(name) => {
                let name = text_of(name)?;
                self.entered.own.database = Some(name);
                self.answer(sequence, false).ok().await?;
            }
            Command::ResetConnection => {
                self.prepared.clear();
                self.answer(sequence, false).ok().await?;
            }
            Command::Ping => self.answer(sequence, false).ok().await?,
            Command::SetOption(_) => {
                // An EOF, or what takes its place.
                self.answer(sequence, false).end().await?;
            }
            Command::ProcessKill(id) => {
                let id = u64::from(id);
                acts::kill(self.sources, &self.entered.own.user, id, false).await?;
                self.answer(sequence, false).ok().await?;
            }
            Command::Statistics => {
                let text = self.statistics();
                let mut out = Vec::new();
                packet::frame(&mut out, sequence, text.as_bytes());
                self.answer(sequence, false).raw(&out).await?;
            }
            Command::FieldList(_) => {
                // There are no tables.
                self.answer(sequence, false).end().await?;
            }
            _ => return Err(Refusal::new(1047, b"08S01", "Unknown command").into()),
        }
        Ok(true)
    }

    fn statistics(&self) -> String {
        format!(
            "Uptime: {}  Threads: {}",
            self.sources.started.elapsed().as_secs(),
            self.sources.registry.clients()
        )
    }

    async fn run_statement(
        &mut self,
        statement: Statement,
        sequence: u8,
        binary: bool,
    ) -> Result<(), Trouble> {
        let sources = self.sources;
        let by = self.entered.own.user.clone();
        match statement {
            Statement::Show { show, filter } => {
                let mut answer = self.answer(sequence, binary);
                answer.begin_listing(listing(show).columns, filter);
                match tables::rows(show, sources, &mut answer).await {
                    Ok(()) => answer.end().await,
                    // Rows may have been sent: the error takes the place of the next.
                    Err(Trouble::Error(refusal)) => answer.refuse(&refusal).await,
                    Err(trouble) => Err(trouble),
                }
            }
            Statement::Drain { server, wait_s } => {
                let answer = self.answer(sequence, binary);
                acts::drain(sources, answer, &by, &server, wait_s).await
            }
            Statement::Resume { server } => {
                let answer = self.answer(sequence, binary);
                acts::resume(sources, answer, &by, &server).await
            }
            Statement::Kill { id, query } => {
                acts::kill(sources, &by, id, query).await?;
                self.answer(sequence, binary).ok().await
            }
            Statement::FlushCache(table) => {
                tables::cache::flush(sources, table.as_ref())?;
                self.answer(sequence, binary).ok().await
            }
            Statement::Use(name) => {
                self.entered.own.database = Some(name);
                self.answer(sequence, binary).ok().await
            }
            Statement::Select(items) => {
                let own = self.entered.own.clone();
                select(self.answer(sequence, binary), &items, &own).await
            }
            Statement::Nothing(columns) => {
                let mut answer = self.answer(sequence, binary);
                answer.begin(&columns, Filter::default());
                answer.end().await
            }
            Statement::Accepted => self.answer(sequence, binary).ok().await,
        }
    }

    /// COM_STMT_PREPARE: the text is kept and read again when it is executed.
    async fn prepare(&mut self, text: &[u8], sequence: u8) -> Result<(), Trouble> {
        let text = text_of(text)?;
        if has_parameters(&text) {
            let message = "This command is not supported in the prepared statement protocol yet \
                           (Millrace: statements for operators take no parameters)";
            return Err(Refusal::new(1295, b"HY000", message).into());
        }
        let columns = columns_of(&parse(&text)?);
        if self.prepared.len() >= PREPARED_MAX {
            let message = format!(
                "Can't create more than max_prepared_stmt_count statements (current value: \
                 {PREPARED_MAX})"
            );
            return Err(Refusal::new(1461, b"42000", message).into());
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.prepared.insert(id, text);
        let (mut out, capabilities) = (Vec::new(), self.entered.capabilities);
        let result = TextResult::new(columns);
        result.encode_prepare(&mut out, sequence, capabilities, id, fields().status);
        self.answer(sequence, false).raw(&out).await
    }
}

async fn select(mut answer: Answer<'_>, items: &[Item], own: &Own) -> Result<(), Trouble> {
    let columns: Vec<(&str, Kind)> = items
        .iter()
        .map(|item| (&*item.name, item.kind()))
        .collect();
    answer.begin(&columns, Filter::default());
    let row: Vec<_> = items.iter().map(|item| item.cell(own)).collect();
    answer.row(&row).await?;
    answer.end().await
}

/// The columns that a statement will answer with; none where that is an OK.
fn columns_of(statement: &Statement) -> Vec<millrace_protocol::resultset::ColumnDef> {
    let of = |columns: &[(&str, Kind)]| {
        let columns = columns.iter();
        columns
            .map(|(name, kind)| definition(name, *kind))
            .collect()
    };
    match statement {
        Statement::Show { show, .. } => listing(*show)
            .columns
            .iter()
            .map(|column| definition(column.name, column.kind))
            .collect(),
        Statement::Drain { .. } | Statement::Resume { .. } => of(&acts::MOVED),
        Statement::Select(items) => items
            .iter()
            .map(|item| definition(&item.name, item.kind()))
            .collect(),
        Statement::Nothing(columns) => of(columns),
        Statement::Kill { .. }
        | Statement::FlushCache(_)
        | Statement::Use(_)
        | Statement::Accepted => Vec::new(),
    }
}

fn text_of(bytes: &[u8]) -> Result<String, Refusal> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned)
        .map_err(|_| Refusal::new(1300, b"HY000", "Invalid utf8mb4 character string"))
}

fn unknown_statement() -> Refusal {
    Refusal::new(1243, b"HY000", "Unknown prepared statement handler")
}
