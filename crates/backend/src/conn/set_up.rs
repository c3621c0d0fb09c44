//! What Millrace sets on a connection of its own accord: after a login, after a reset, and when another account
//! logs in on it.

use std::rc::Rc;

use millrace_engine::state::{self, SessionState, Value};
use millrace_protocol::auth::Plugin;
use millrace_protocol::command::COM_SET_OPTION;
use millrace_protocol::handshake::ChangeUser;
use millrace_protocol::response::Expect;
use millrace_protocol::resultset::{Reply, parse_text_rows};
use millrace_sql::Family;

use crate::conn::{Conn, Row, decimal};
use crate::connect::{attributes, finish, scramble_sha2};
use crate::error::BackendError;
use crate::pool::ServerFacts;
use crate::secret::Secret;
use crate::tls::For;

/// The answers of what `frame_set_up` frames.
const SET_UP: usize = 2;

impl Conn {
    /// The SET that makes the server report what Millrace follows.
    pub fn tracking_statement(family: Family, variables: &str) -> String {
        match family {
            Family::MySql => format!(
                "SET SESSION session_track_gtids=OWN_GTID,session_track_schema=ON,\
                 session_track_state_change=ON,session_track_system_variables=_utf8mb4'{variables}'"
            ),
            Family::MariaDb => format!(
                "SET SESSION session_track_schema=ON,session_track_state_change=ON,\
                 session_track_system_variables=_utf8mb4'{variables}'"
            ),
        }
    }

    fn frame_set_up(&self, out: &mut Vec<u8>, facts: &ServerFacts) {
        let tracking = Self::tracking_statement(self.family, &facts.track);
        self.frame_query(out, tracking.as_bytes());
        self.frame_query(out, facts.begins.question.as_bytes());
    }

    async fn finish_set_up(&mut self, facts: &ServerFacts) -> Result<SessionState, BackendError> {
        self.read_answer(Expect::Query).await?;
        let bytes = self.read_answer(Expect::Query).await?;
        let (mut row, mut number) = (Row::new(), 0);
        if let Reply::Rows(rows) = parse_text_rows(&bytes, self.capabilities)?.0 {
            number = rows.columns.first().map_or(0, |column| column.collation);
            row = rows.rows.into_iter().next().unwrap_or_default();
        }
        self.login.results_number = number;
        for cell in row.iter_mut().flatten() {
            // All are in ASCII; utf16 and its like put zeros between.
            cell.retain(|byte| *byte != 0);
        }
        let names = state::CHARSETS;
        self.login.wait_timeout = row.pop().flatten().as_deref().and_then(decimal);
        let mut row = row.into_iter();
        let charsets: Vec<_> = row.by_ref().take(names.len()).collect();
        let mut state = SessionState {
            database: self.state.database.clone(),
            basis: Rc::new(facts.begins.basis(row)),
            variables: Vec::new(),
            multi_statements: self.state.multi_statements,
        };
        for (name, value) in names.into_iter().zip(charsets) {
            state.set(
                name,
                match value {
                    Some(value) => Value::Reported(value.into()),
                    None => Value::Null,
                },
            );
        }
        if let (Some(client), Some(results), Some(collation)) = (
            state.reported(names[0]),
            state.reported(names[1]),
            state.reported(names[2]),
        ) && client == results
            && collation.starts_with(client)
        {
            let set = [client, b" COLLATE ", collation].concat();
            state.set(state::NAMES, Value::Literal(set.into()));
        }
        self.books.set_tracks_for_millrace();
        Ok(state)
    }

    /// Asks for tracking and learns what the session begins with, in one round trip. Also what
    /// must follow a COM_RESET_CONNECTION.
    pub async fn set_up(&mut self, facts: &ServerFacts) -> Result<SessionState, BackendError> {
        let mut out = Vec::new();
        self.frame_set_up(&mut out, facts);
        self.send(&out, SET_UP).await?;
        self.finish_set_up(facts).await
    }

    /// COM_RESET_CONNECTION: everything but the account and the database goes. Answers the
    /// state that the server then has.
    pub async fn reset(&mut self, facts: &ServerFacts) -> Result<SessionState, BackendError> {
        let mut out = vec![1, 0, 0, 0, 0x1f];
        self.frame_set_up(&mut out, facts);
        self.send(&out, 1 + SET_UP).await?;
        self.ignores_sync_wait = true;
        self.read_answer(Expect::Simple).await?;
        self.books.reset();
        self.prepared.clear();
        let mut state = self.finish_set_up(facts).await?;
        // The database stays, but `character_set_database` is no longer its own (observed on both
        // families): it has to be chosen again.
        state.database = Box::default();
        Ok(state)
    }

    /// Nothing of what sessions did is left on the server.
    fn be_new(&mut self) {
        self.ignores_sync_wait = true;
        self.books.login();
        self.prepared.clear();
        self.one_shot = false;
        self.state = Rc::default();
    }

    /// Logs in anew on the same connection (COM_CHANGE_USER): asks the server whether the
    /// account may log in now. The session state is gone afterwards.
    pub async fn change_user(
        &mut self,
        user: &[u8],
        password: &Secret,
        database: &[u8],
        collation: u8,
    ) -> Result<(), BackendError> {
        let plugin = Plugin::from_name(&self.login.plugin);
        let mut nonce = [0; 20];
        let length = self.login.nonce.len().min(20);
        nonce[..length].copy_from_slice(&self.login.nonce[..length]);
        let auth_response = match plugin {
            Plugin::NativePassword => password.scramble_native(&nonce),
            Plugin::CachingSha2 => scramble_sha2(password, &nonce),
            _ => Vec::new(),
        };
        let command = ChangeUser {
            user: user.to_vec(),
            auth_response,
            database: database.to_vec(),
            collation: Some(u16::from(collation)),
            plugin: Some(self.login.plugin.clone().into_bytes()),
            attributes: self.login.attributes.get_or_insert_with(attributes).clone(),
        };
        let mut out = Vec::new();
        command.encode(&mut out, self.capabilities);
        self.send(&out, 1).await?;
        let nonce = self.login.nonce.clone();
        let status = finish(
            &mut self.stream,
            &mut self.buffer,
            (password, For::Client),
            plugin,
            nonce,
            self.capabilities,
        )
        .await;
        match status {
            Ok((status, _)) => {
                self.status = status;
                self.answered();
                let several = self.state.multi_statements;
                self.be_new();
                if several {
                    // The option outlives the login (observed on MySQL).
                    self.send(&[3, 0, 0, 0, COM_SET_OPTION, 1, 0], 1).await?;
                    self.read_answer(Expect::SetOption).await?;
                }
                Ok(())
            }
            Err(error) => {
                self.broken = true;
                Err(error)
            }
        }
    }
}
