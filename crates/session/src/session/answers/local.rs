//! Statements that Millrace answers itself: the beginning and end of transactions that no server
//! has seen yet, and questions about the session whose answer only Millrace knows.

use millrace_engine::request::Request;
use millrace_engine::state::{self, Value};
use millrace_engine::{expression, words};
use millrace_protocol::ok::{Change, OkFields, put_change};
use millrace_protocol::resultset::{Cell, ColumnDef, TextResult, flags};
use millrace_protocol::{Capabilities, Status};
use millrace_sql::{Assignment, Family, Flags, Kind, Target};

use crate::error::Abort;
use crate::session::Session;
use crate::session::answers::charsets;
use crate::session::statement::route;

/// What MySQL warns of since 8.0.17 (observed).
const FOUND_ROWS_DEPRECATED: [&str; 3] = [
    "Warning",
    "1287",
    "FOUND_ROWS() is deprecated and will be removed in a future release. Consider using COUNT(*) \
     instead.",
];

impl Session {
    /// Answers the statement if no server is needed. True if it did.
    pub(in crate::session) async fn answer_locally(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
    ) -> Result<bool, Abort> {
        let class = request.class;
        if let Some(statement) = route::explained(text) {
            self.explain_route(statement).await?;
            return Ok(true);
        }
        if route::asks_for_last(text) {
            self.show_route().await?;
            return Ok(true);
        }
        if class.flags.contains(Flags::MILLRACE_VARIABLE) {
            self.own_variable(class, text).await?;
            return Ok(true);
        }
        if class.kind == Kind::Diagnostics {
            return self.show_saved_warnings(text).await;
        }
        if self.lease.is_some() || self.image.tx.replay.is_some() {
            return Ok(false);
        }
        match class.kind {
            Kind::Begin if self.may_defer(class.flags) => {
                self.begin_deferred(class.flags, text).await?;
            }
            Kind::Commit | Kind::Rollback if self.may_end_here(class.flags) => {
                let was_open = self.image.status.contains(Status::IN_TRANS);
                let mut state = was_open.then_some(&b""[..]);
                if !class.flags.contains(Flags::CHAIN) {
                    state = was_open.then_some(b"________");
                    self.image.tx.undefer();
                    self.handle.set_begun(false);
                    self.image.status -= Status::IN_TRANS | Status::IN_TRANS_READONLY;
                    self.image.tx.use_up_next();
                }
                self.image.last.note_local_answer(self.image.family);
                self.ok_in_transaction(state).await?;
            }
            Kind::SetTransaction
                if class.flags.contains(Flags::TX_ONE_SHOT)
                    && !self.image.tx.is_deferred()
                    && !self.image.autocommit_off()
                    && !class
                        .flags
                        .contains(Flags::TX_READ_ONLY | Flags::TX_READ_WRITE) =>
            {
                let said = |assignment: &Assignment| match assignment.target {
                    Target::Transaction { read_only, .. } => read_only,
                    _ => None,
                };
                let read_only = class.assignments.iter().filter_map(said).next_back();
                self.image.tx.add_next(text, read_only);
                self.image.last.note_local_answer(self.image.family);
                self.ok(OkFields::default()).await?;
            }
            Kind::Select => return self.answer_about_session(class.flags, text).await,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn may_defer(&self, flags: Flags) -> bool {
        let tells = self
            .image
            .vars
            .state
            .variable("session_track_transaction_info")
            .is_some();
        let contradictory = flags.contains(Flags::TX_READ_ONLY | Flags::TX_READ_WRITE);
        !flags.contains(Flags::CONSISTENT_SNAPSHOT) && !tells && !contradictory
    }

    async fn begin_deferred(&mut self, flags: Flags, text: &[u8]) -> Result<(), Abort> {
        let read_only = flags.contains(Flags::TX_READ_ONLY)
            || (!flags.contains(Flags::TX_READ_WRITE) && self.is_read_only_by_default());
        let changed = !self.image.status.contains(Status::IN_TRANS);
        self.image.tx.defer(text, read_only);
        self.handle.set_begun(true);
        self.image.status |= Status::IN_TRANS;
        self.image.status.set(Status::IN_TRANS_READONLY, read_only);
        self.image.last.note_local_answer(self.image.family);
        self.ok_in_transaction(Some(if changed { b"T_______" } else { b"" }))
            .await
    }

    /// What a transaction begins as where the statement does not say.
    fn is_read_only_by_default(&self) -> bool {
        if let Some(read_only) = self.image.tx.next_read_only() {
            return read_only;
        }
        ["transaction_read_only", "tx_read_only"]
            .iter()
            .any(|name| self.image.vars.state.is_on(name))
    }

    /// An OK that tells a client that follows transactions what became of its own: it looks like
    /// this now, or (nothing) as before although it is another.
    async fn ok_in_transaction(&mut self, state: Option<&[u8]>) -> Result<(), Abort> {
        let (mut session, mut status) = (Vec::new(), Status::empty());
        let follows = self
            .client
            .capabilities
            .contains(Capabilities::SESSION_TRACK)
            && match self
                .image
                .vars
                .state
                .reported("session_track_transaction_info")
            {
                Some(value) => value.eq_ignore_ascii_case(b"STATE"),
                // Whatever the variable says, MySQL 9 does (observed).
                None => self.image.family == Family::MySql && self.image.vars.lex.version >= 90_000,
            };
        if let Some(state) = state.filter(|_| follows) {
            status = Status::SESSION_STATE_CHANGED;
            if !state.is_empty() {
                put_change(&mut session, &Change::TransactionState(state));
            }
        }
        self.ok(OkFields {
            status,
            session: &session,
            ..OkFields::default()
        })
        .await
    }

    fn may_end_here(&self, flags: Flags) -> bool {
        let chains = self.image.vars.state.effective("completion_type");
        let chains = chains.is_some_and(|value| value != b"NO_CHAIN");
        let unusual = Flags::RELEASE;
        !chains
            && !flags.intersects(unusual)
            && (self.image.tx.is_deferred()
                || (!flags.contains(Flags::CHAIN) && self.image.tx.next().is_empty()))
    }

    /// SHOW WARNINGS and its like after another session has used the connection that had them.
    pub(in crate::session) async fn show_saved_warnings(
        &mut self,
        text: &[u8],
    ) -> Result<bool, Abort> {
        let Some(asked) = asked_messages(&words(text)) else {
            return Ok(false);
        };
        if asked.count {
            return self.show_message_count(asked.only_errors).await;
        }
        let Some((collation, width)) = self.results_collation() else {
            return Ok(false);
        };
        let (decimals, code_length) = match self.image.family {
            Family::MySql => (31, 5),
            Family::MariaDb => (39, 4),
        };
        let Some(warnings) = self.image.last.saved_warnings() else {
            return Ok(false);
        };
        // Metadata as the servers send it (observed).
        let mut level = ColumnDef::text("Level", collation);
        level.length = 7 * width;
        level.flags = flags::NOT_NULL;
        level.decimals = decimals;
        let mut code = ColumnDef::integer("Code");
        code.kind = millrace_protocol::types::column_type::LONG;
        code.length = code_length;
        code.flags = flags::NOT_NULL | flags::UNSIGNED | flags::BINARY;
        let mut message = ColumnDef::text("Message", collation);
        message.length = 512 * width;
        message.flags = flags::NOT_NULL;
        message.decimals = decimals;
        let mut result = TextResult::new(vec![level, code, message]);
        let wanted = warnings
            .iter()
            .filter(|[level, ..]| !asked.only_errors || **level == *b"Error");
        for [level, code, message] in wanted.skip(asked.offset).take(asked.limit) {
            result.row(&[Cell::Bytes(level), Cell::Bytes(code), Cell::Bytes(message)]);
        }
        self.image.last.answered_here(-1);
        self.image.last.messages.ok_count = Some(0);
        self.show(&result, 0).await?;
        Ok(true)
    }

    /// SHOW COUNT(*) WARNINGS or ERRORS.
    async fn show_message_count(&mut self, only_errors: bool) -> Result<bool, Abort> {
        let Some((warnings, errors)) = self.image.last.saved_message_counts() else {
            return Ok(false);
        };
        let (name, count) = match only_errors {
            true => ("@@session.error_count", errors),
            false => ("@@session.warning_count", warnings),
        };
        let mut column = ColumnDef::integer(name);
        column.flags = flags::UNSIGNED | flags::BINARY;
        let mut result = TextResult::new(vec![column]);
        if self.image.vars.state.effective("sql_select_limit") != Some(b"0") {
            result.row(&[Cell::UInt(count)]);
        }
        self.image.last.answered_here(-1);
        (
            self.image.last.found_rows.count,
            self.image.last.found_rows.known,
            self.image.last.found_rows.at,
        ) = (1, true, None);
        self.image.last.messages.ok_count = Some(0);
        self.show(&result, 0).await?;
        Ok(true)
    }

    /// The collation that results have, and the bytes a character may take; none where it is not
    /// known.
    fn results_collation(&self) -> Option<(u16, u32)> {
        let charset = match self.image.vars.state.variable("character_set_results")? {
            Value::Reported(charset) | Value::Literal(charset) => charset,
            Value::Null => return Some(charsets::UNCONVERTED),
        };
        let (by_default, width) = charsets::of_results(charset, self.image.family)?;
        let named = state::results_by_names(&self.image.vars.state);
        let number = named.and_then(|collation| self.worker.learnt.collation_number(collation));
        Some((number.unwrap_or(by_default), width))
    }

    async fn answer_about_session(&mut self, class: Flags, text: &[u8]) -> Result<bool, Abort> {
        let asked = Flags::USES_ROW_COUNT | Flags::USES_FOUND_ROWS;
        if !class.intersects(asked) || text.len() > 64 {
            return Ok(false);
        }
        let (words, name) = (words(text), expression(text));
        let last = self.image.last.last_at();
        let value = match words.as_str() {
            "select row_count()" if !self.is_idle_at(last) => self.image.last.row_count(),
            "select found_rows()" if !self.is_idle_at(self.image.last.found_rows.at) => {
                self.image.last.collect_saved();
                self.known_found_rows()?
            }
            _ => return Ok(false),
        };
        let mut column = ColumnDef::integer(&name);
        column.length = 21;
        column.flags = flags::NOT_NULL | flags::BINARY;
        let mut result = TextResult::new(vec![column]);
        result.row(&[Cell::Int(value)]);
        let deprecated = class.contains(Flags::USES_FOUND_ROWS)
            && self.image.family == Family::MySql
            && self.image.vars.lex.version >= 80_017;
        self.image.last.note_local_answer(self.image.family);
        self.image.last.answered_here(-1);
        self.image.last.found_rows.set(1);
        if deprecated {
            let message = FOUND_ROWS_DEPRECATED.map(|text| text.as_bytes().into());
            self.image.last.note_message(message);
        }
        self.show(&result, u16::from(deprecated)).await?;
        Ok(true)
    }
}

/// What a SHOW about messages asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    only_errors: bool,
    /// COUNT(*) instead of the messages.
    count: bool,
    offset: usize,
    limit: usize,
}

/// Reads `show warnings`, `show errors` with their LIMIT, and `show count(*) …`; `words` is in
/// lower case. None where it is something else.
fn asked_messages(words: &str) -> Option<Asked> {
    let rest = words.strip_prefix("show ")?;
    let counted = ["count(*) ", "count( * ) ", "count(* ) ", "count( *) "]
        .iter()
        .find_map(|count| rest.strip_prefix(count));
    let rest = counted.unwrap_or(rest);
    let (what, limit) = rest.split_once(' ').unwrap_or((rest, ""));
    let only_errors = match what {
        "errors" => true,
        "warnings" => false,
        _ => return None,
    };
    let mut asked = Asked {
        only_errors,
        count: counted.is_some(),
        offset: 0,
        limit: usize::MAX,
    };
    if limit.is_empty() {
        return Some(asked);
    }
    let numbers = limit.strip_prefix("limit ").filter(|_| !asked.count)?;
    let number = |text: &str| text.trim().parse::<usize>().ok();
    if let Some((offset, limit)) = numbers.split_once(',') {
        (asked.offset, asked.limit) = (number(offset)?, number(limit)?);
    } else if let Some((limit, offset)) = numbers.split_once(" offset ") {
        (asked.offset, asked.limit) = (number(offset)?, number(limit)?);
    } else {
        asked.limit = number(numbers)?;
    }
    Some(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_messages_are_read() {
        let asked = |text: &str| {
            asked_messages(&words(text.as_bytes()))
                .map(|asked| (asked.only_errors, asked.count, asked.offset, asked.limit))
        };
        let all = usize::MAX;
        assert_eq!(asked("SHOW WARNINGS;"), Some((false, false, 0, all)));
        assert_eq!(asked("show  errors limit 3"), Some((true, false, 0, 3)));
        assert_eq!(asked("SHOW WARNINGS LIMIT 1,2"), Some((false, false, 1, 2)));
        let offset = asked("SHOW WARNINGS LIMIT 3 OFFSET 4");
        assert_eq!(offset, Some((false, false, 4, 3)));
        assert_eq!(asked("SHOW COUNT(*) ERRORS"), Some((true, true, 0, all)));
        assert_eq!(asked("SHOW WARNINGS LIMIT x"), None);
        assert_eq!(asked("SHOW TABLES"), None);
    }
}
