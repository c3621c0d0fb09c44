//! Statements that Millrace answers itself: the beginning and end of transactions that no server
//! has seen yet, and questions about the session whose answer only Millrace knows.

use millrace_protocol::ok::{Change, OkFields, put_change};
use millrace_protocol::resultset::{Cell, ColumnDef, TextResult, flags};
use millrace_protocol::{Capabilities, Status};
use millrace_sql::{Family, Flags, Kind, Target};

use crate::failure::Failure;
use crate::lease::Request;
use crate::session::{Session, Transaction};

impl Session {
    /// Answers the statement if no server is needed. True if it did.
    pub(crate) async fn answer_locally(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
    ) -> Result<bool, Failure> {
        let class = request.class;
        if class.kind == Kind::Diagnostics {
            return self.show_saved_warnings(text).await;
        }
        if self.lease.is_some() {
            return Ok(false);
        }
        match class.kind {
            Kind::Begin if self.may_defer(class.flags) => {
                self.begin_deferred(class.flags, text).await?;
            }
            Kind::Commit | Kind::Rollback if self.may_end_here(class.flags) => {
                let mut state: &[u8] = b"";
                if !class.flags.contains(Flags::CHAIN) {
                    if self.status.contains(Status::IN_TRANS) {
                        state = b"________";
                    }
                    self.transaction = Transaction::None;
                    self.status -= Status::IN_TRANS | Status::IN_TRANS_READONLY;
                    self.one_shot.clear();
                    self.one_shot_read_only = None;
                }
                self.settle_locally();
                self.ok_in_transaction(state).await?;
            }
            Kind::SetTransaction
                if class.flags.contains(Flags::TX_ONE_SHOT)
                    && matches!(self.transaction, Transaction::None)
                    && !self.autocommit_off()
                    && !class
                        .flags
                        .contains(Flags::TX_READ_ONLY | Flags::TX_READ_WRITE) =>
            {
                self.one_shot.push(text.into());
                for assignment in &class.assignments {
                    if let Target::Transaction {
                        read_only: Some(read_only),
                        ..
                    } = assignment.target
                    {
                        self.one_shot_read_only = Some(read_only);
                    }
                }
                self.settle_locally();
                self.ok(OkFields::default()).await?;
            }
            Kind::Select => return self.answer_about_session(class.flags, text).await,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The statement counts as one: what could be asked about the one before is gone.
    fn settle_locally(&mut self) {
        self.seq += 1;
        if self.family == Family::MySql {
            self.diagnostics_at = None;
        }
        self.row_count = 0;
        self.last_server = None;
        // The connection that holds LAST_INSERT_ID() is still found by its own number.
    }

    fn may_defer(&self, flags: Flags) -> bool {
        let tells = self
            .state
            .variable("session_track_transaction_info")
            .is_some();
        let contradictory = flags.contains(Flags::TX_READ_ONLY | Flags::TX_READ_WRITE);
        !flags.contains(Flags::CONSISTENT_SNAPSHOT) && !tells && !contradictory
    }

    async fn begin_deferred(&mut self, flags: Flags, text: &[u8]) -> Result<(), Failure> {
        let read_only = flags.contains(Flags::TX_READ_ONLY)
            || (!flags.contains(Flags::TX_READ_WRITE) && self.is_read_only_by_default());
        let changed = !self.status.contains(Status::IN_TRANS);
        self.transaction = Transaction::Deferred {
            text: text.into(),
            read_only,
        };
        self.status |= Status::IN_TRANS;
        self.status.set(Status::IN_TRANS_READONLY, read_only);
        self.settle_locally();
        self.ok_in_transaction(if changed { b"T_______" } else { b"" })
            .await
    }

    /// What a transaction begins as where the statement does not say.
    fn is_read_only_by_default(&self) -> bool {
        if let Some(read_only) = self.one_shot_read_only {
            return read_only;
        }
        ["transaction_read_only", "tx_read_only"]
            .iter()
            .any(|name| {
                let value = self.state.reported(name);
                value.is_some_and(|value| value == b"1" || value.eq_ignore_ascii_case(b"ON"))
            })
    }

    /// An OK that tells a client that follows transactions what became of its own.
    async fn ok_in_transaction(&mut self, state: &[u8]) -> Result<(), Failure> {
        let mut session = Vec::new();
        let follows = self.capabilities.contains(Capabilities::SESSION_TRACK)
            && match self.state.reported("session_track_transaction_info") {
                Some(value) => value.eq_ignore_ascii_case(b"STATE"),
                // Whatever the variable says, MySQL 9 does (observed).
                None => self.family == Family::MySql && self.lex.version >= 90_000,
            };
        if follows && !state.is_empty() {
            put_change(&mut session, &Change::TransactionState(state));
        }
        self.ok(OkFields {
            session: &session,
            ..OkFields::default()
        })
        .await
    }

    fn may_end_here(&self, flags: Flags) -> bool {
        let chains = self.state.variable("completion_type").is_some();
        let unusual = Flags::RELEASE;
        !chains
            && !flags.intersects(unusual)
            && (matches!(self.transaction, Transaction::Deferred { .. })
                || (!flags.contains(Flags::CHAIN) && self.one_shot.is_empty()))
    }

    /// SHOW WARNINGS after another session has used the connection that had them.
    async fn show_saved_warnings(&mut self, text: &[u8]) -> Result<bool, Failure> {
        let words = words(text);
        let only_errors = words == "show errors";
        if words != "show warnings" && !only_errors {
            return Ok(false);
        }
        let Some((collation, width)) = self.results_collation() else {
            return Ok(false);
        };
        let (decimals, code_length) = match self.family {
            Family::MySql => (31, 5),
            Family::MariaDb => (39, 4),
        };
        let Some(warnings) = self.saved_warnings() else {
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
        for [level, code, message] in &warnings {
            if only_errors && **level != *b"Error" {
                continue;
            }
            result.row(&[Cell::Bytes(level), Cell::Bytes(code), Cell::Bytes(message)]);
        }
        self.show(&result).await?;
        Ok(true)
    }

    /// The collation that results have, and the bytes a character may take; none where it is not
    /// known.
    fn results_collation(&self) -> Option<(u16, u32)> {
        let charset = self.state.reported("character_set_results")?;
        let as_greeted = self.base.reported("character_set_results") == Some(charset);
        let (collation, width) = match charset {
            b"utf8mb4" if self.family == Family::MySql => (255, 4),
            b"utf8mb4" => (45, 4),
            b"utf8mb3" => (33, 3),
            b"latin1" => (8, 1),
            _ => return None,
        };
        let collation = if as_greeted {
            u16::from(self.identity.collation)
        } else {
            collation
        };
        Some((collation, width))
    }

    async fn answer_about_session(&mut self, class: Flags, text: &[u8]) -> Result<bool, Failure> {
        let asked = Flags::USES_ROW_COUNT | Flags::USES_FOUND_ROWS;
        if !class.intersects(asked) || text.len() > 64 {
            return Ok(false);
        }
        let (words, name) = (words(text), expression(text));
        let value = match words.as_str() {
            "select row_count()" if !self.own_is_idle() => self.row_count,
            "select found_rows()" if !self.own_is_idle() => {
                self.collect_saved();
                i64::try_from(self.found_rows).unwrap_or(i64::MAX)
            }
            _ => return Ok(false),
        };
        let mut column = ColumnDef::integer(&name);
        column.length = 21;
        column.flags = flags::NOT_NULL | flags::BINARY;
        let mut result = TextResult::new(vec![column]);
        result.row(&[Cell::Int(value)]);
        self.show(&result).await?;
        self.row_count = -1;
        Ok(true)
    }

    /// The connection of the last statement is free and unused since.
    fn own_is_idle(&mut self) -> bool {
        let Some(server) = self.last_server else {
            return false;
        };
        let (uid, seq) = (self.handle.uid, self.seq);
        match self.pool(server).try_take_own(uid, seq) {
            Some(lease) => {
                lease.give_back();
                true
            }
            None => false,
        }
    }

    async fn show(&mut self, result: &TextResult) -> Result<(), Failure> {
        let mut out = Vec::new();
        let end = OkFields {
            status: self.idle_status(),
            ..OkFields::default()
        };
        result.encode(&mut out, 1, self.capabilities, &end);
        self.send(&out).await
    }
}

/// The text with every CONNECTION_ID() replaced by the client's own number, which is the one it
/// was greeted with and may name to KILL; none where the calls are not all plain to see. A column
/// that would have been named after the call still is.
pub(crate) fn with_connection_id(text: &[u8], id: u32) -> Option<Vec<u8>> {
    const CALL: &[u8] = b"connection_id";
    let mut out = Vec::with_capacity(text.len() + 32);
    let mut replaced = false;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        match rest[0] {
            quote @ (b'\'' | b'"' | b'`') => {
                let length = quoted_length(rest, quote)?;
                out.extend_from_slice(&rest[..length]);
                at += length;
            }
            // Comments may hide or run code: left to the server.
            b'#' => return None,
            b'/' if rest.starts_with(b"/*") => return None,
            b'-' if rest.starts_with(b"--") => return None,
            byte if byte.is_ascii_alphabetic() || byte == b'_' || byte == b'@' => {
                let word = |byte: &u8| {
                    byte.is_ascii_alphanumeric() || b"_$@.".contains(byte) || *byte >= 0x80
                };
                let length = rest.iter().take_while(|byte| word(byte)).count().max(1);
                let name = &rest[..length];
                let call = name
                    .eq_ignore_ascii_case(CALL)
                    .then(|| empty_call(&rest[length..]))
                    .flatten();
                let Some(arguments) = call else {
                    out.extend_from_slice(name);
                    at += length;
                    continue;
                };
                let whole = &rest[..length + arguments];
                let named = is_column(&out, &rest[length + arguments..]);
                out.extend_from_slice(format!("CAST({id} AS UNSIGNED)").as_bytes());
                if named {
                    out.extend_from_slice(b" AS `");
                    out.extend_from_slice(whole);
                    out.push(b'`');
                }
                replaced = true;
                at += length + arguments;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    replaced.then_some(out)
}

/// The length of `()` with blanks, where the text begins so.
fn empty_call(text: &[u8]) -> Option<usize> {
    let inner = text.strip_prefix(b"(")?;
    let blanks = inner
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count();
    (inner.get(blanks) == Some(&b')')).then_some(blanks + 2)
}

/// The length of a quoted string or name; none where it does not end or holds a backslash.
fn quoted_length(text: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    loop {
        match *text.get(at)? {
            b'\\' => return None,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Whether what stands between these two is a column of a SELECT list by itself, without a name.
fn is_column(before: &[u8], after: &[u8]) -> bool {
    let before = before.trim_ascii_end();
    let starts = before.last() == Some(&b',') || before.to_ascii_lowercase().ends_with(b"select");
    let after = after.trim_ascii_start();
    let ends = after.is_empty()
        || after.starts_with(b",")
        || after.starts_with(b";")
        || after.to_ascii_lowercase().starts_with(b"from");
    let in_parentheses = before.iter().filter(|byte| **byte == b'(').count()
        > before.iter().filter(|byte| **byte == b')').count();
    let is_select = before
        .trim_ascii_start()
        .to_ascii_lowercase()
        .starts_with(b"select");
    starts && ends && is_select && !in_parentheses
}

/// The statement in lower case, with single blanks and without a `;` at the end.
fn words(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let text = text.trim().trim_end_matches(';');
    text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands after SELECT: the server names the column so.
fn expression(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.trim().trim_end_matches(';').trim();
    text.get(6..).unwrap_or("").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_number_takes_the_calls_place() {
        let substituted = |text: &str| {
            with_connection_id(text.as_bytes(), 7)
                .map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        let cases = [
            (
                "SELECT CONNECTION_ID()",
                Some("SELECT CAST(7 AS UNSIGNED) AS `CONNECTION_ID()`"),
            ),
            (
                "select connection_id( ) x",
                Some("select CAST(7 AS UNSIGNED) x"),
            ),
            ("KILL CONNECTION_ID()", Some("KILL CAST(7 AS UNSIGNED)")),
            ("SELECT 'connection_id()'", None),
            ("SELECT x.connection_id()", None),
            ("SELECT /* a */ CONNECTION_ID()", None),
            (
                "SELECT (CONNECTION_ID())",
                Some("SELECT (CAST(7 AS UNSIGNED))"),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(substituted(text).as_deref(), expected, "{text}");
        }
    }
}
