//! A session whose database was dropped by another, or whose account has lost its last right in it. Directly it stays
//! there, and goes on with all that does not depend on it. A connection that is lent cannot be put there: such
//! statements run in whatever database theirs is in.

use std::rc::Rc;

use millrace_backend::error::{BackendError, ServerError};
use millrace_backend::pool::Lease;
use millrace_engine::request::{Main, Request};
use millrace_engine::state::SessionState;
use millrace_engine::words;
use millrace_metrics::Side;
use millrace_sql::{Flags, Kind, Show, Statement};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::steps::Setup;

/// ER_BAD_DB_ERROR; ER_DBACCESS_DENIED_ERROR, where the account has lost its last right there.
const REFUSED: [u16; 2] = [1049, 1044];

/// So many such databases of a session are known; statements are tried once more for each.
const KNOWN_MAX: usize = 16;

impl Session {
    /// The primary has just refused a database that the connection was to be put in: true where the statement may be
    /// tried again without it.
    pub(super) fn does_without_database(
        &mut self,
        request: &Request<'_>,
        why: &ClientError,
    ) -> bool {
        let Some(refused) = self.running.route.database_refused.take() else {
            return false;
        };
        let refusal = why.side == Side::Server && REFUSED.contains(&why.error.code);
        if !refusal || self.is_gone(&refused) || self.image.vars.gone_databases.len() >= KNOWN_MAX {
            return false;
        }
        self.image
            .vars
            .gone_databases
            .push(refused.database.clone());
        refused.database != self.image.vars.state.database || !self.needs_database(request)
    }

    /// Whether the state's database was refused before. It may have been made anew since.
    pub(in crate::session) fn is_gone(&self, state: &SessionState) -> bool {
        self.image.vars.gone_databases.contains(&state.database)
    }

    /// Whether a connection is put in a database there, and the session is in none: no command leaves a database.
    pub(super) fn chooses_database(&self, state: &SessionState) -> bool {
        self.image.vars.state.database.is_empty() && !state.database.is_empty()
    }

    /// Refuses a statement that depends on the database, where the session has dropped its own and the connection that
    /// it keeps had to be put in another's since, for a prepared statement of there.
    pub(super) fn ensure_no_database(
        &self,
        lease: &Lease,
        request: &Request<'_>,
    ) -> Result<(), Abort> {
        let executes = matches!(request.class.kind, Kind::Execute { .. })
            || matches!(request.main, Main::Execute { .. });
        let chooses = request.class.kind == Kind::Use;
        if !self.chooses_database(&lease.state)
            || executes
            || chooses
            || !self.needs_database(request)
        {
            return Ok(());
        }
        let error = ServerError::new(1046, b"3D000", "No database selected");
        Err(Abort::Error(ClientError::server(error)))
    }

    /// Puts the connection that the session keeps into its database, for a statement that depends on that: where
    /// the server refuses, the statement alone has failed, and the transaction goes on.
    pub(super) async fn enter_database(
        &mut self,
        lease: &mut Lease,
        request: &Request<'_>,
    ) -> Result<(), Abort> {
        let chooses = request.class.kind == Kind::Use;
        if !self.is_gone(&self.image.vars.state) || chooses || !self.needs_database(request) {
            return Ok(());
        }
        let before = lease.state.clone();
        let mut target = SessionState::clone(&before);
        target.database = self.image.vars.state.database.clone();
        let target = self.worker.states.share(target);
        let mut setup = Setup::default();
        self.apply_state(lease, &target, &mut setup);
        match self.run_steps(lease, &mut setup).await {
            Ok(()) => Ok(()),
            Err(error @ BackendError::Server(_)) => {
                lease.state = before;
                Err(Abort::Error(ClientError::backend(error)))
            }
            Err(error) => {
                lease.broken = true;
                Err(Abort::Fatal(ClientError::backend(error)))
            }
        }
    }

    /// The state that a connection is given for a statement, which runs where the connection is if it does not
    /// depend on a database that is gone.
    pub(in crate::session) fn placed(
        &self,
        lease: &Lease,
        target: &Rc<SessionState>,
        depends: impl FnOnce(&Session) -> bool,
    ) -> Rc<SessionState> {
        let is_there = target.database == lease.state.database;
        if is_there || !self.is_gone(target) || depends(self) {
            return target.clone();
        }
        let mut other = SessionState::clone(target);
        other.database = lease.state.database.clone();
        self.worker.states.share(other)
    }

    /// Whether what the request means depends on the database that it runs in.
    pub(super) fn needs_database(&self, request: &Request<'_>) -> bool {
        let text = match request.inner {
            Some((_, text)) => Some(text.into()),
            None => self.text_of(request),
        };
        let class = request.runs();
        text.is_none_or(|text| depends_on_database(class, &text))
    }
}

/// Whether what a statement means depends on the database that it runs in. What is not certain does.
pub(super) fn depends_on_database(class: &Statement, text: &[u8]) -> bool {
    let unqualified = class.tables.iter().any(|table| table.schema.is_none())
        || class.functions.iter().any(|name| name.schema.is_none());
    if unqualified
        || class
            .flags
            .intersects(Flags::TRUNCATED | Flags::STORED_CODE)
    {
        return true;
    }
    let words = words(text);
    match class.kind {
        Kind::Select
        | Kind::Insert
        | Kind::Replace
        | Kind::Update
        | Kind::Delete
        | Kind::Do
        | Kind::Set
        | Kind::SetTransaction
        | Kind::Kill
        | Kind::Diagnostics
        | Kind::Show(
            Show::Variables | Show::Status | Show::Processlist | Show::Grants | Show::Replica,
        ) => ["database", "schema"]
            .iter()
            .any(|word| words.contains(word)),
        Kind::Begin
        | Kind::Commit
        | Kind::Rollback
        | Kind::Savepoint
        | Kind::ReleaseSavepoint
        | Kind::RollbackTo
        | Kind::UnlockTables
        | Kind::Deallocate => false,
        Kind::Show(Show::Metadata) => words != "show databases",
        Kind::Ddl => class.tables.is_empty() && !names_database(&words),
        _ => true,
    }
}

/// Whether a statement is about a database that it names: ALTER DATABASE without a name is about the session's own.
fn names_database(words: &str) -> bool {
    const OPTIONS: [&str; 7] = [
        "character",
        "charset",
        "collate",
        "comment",
        "default",
        "encryption",
        "read",
    ];
    let mut words = words.split(' ');
    let (verb, what, next) = (words.next(), words.next(), words.next().unwrap_or_default());
    let word = next.split('=').next().unwrap_or_default();
    matches!(what, Some("database" | "schema"))
        && (matches!(verb, Some("create" | "drop")) || !OPTIONS.contains(&word))
}

#[cfg(test)]
mod tests {
    use millrace_sql::{Family, LexMode, classify};

    use super::*;

    #[test]
    fn what_depends_on_the_database() {
        let cases = [
            ("SELECT 1", false),
            ("SELECT a FROM other.t", false),
            ("SELECT a FROM t", true),
            ("SELECT a FROM other.t JOIN u", true),
            ("SELECT DATABASE()", true),
            ("SELECT schema()", true),
            ("SELECT f()", true),
            ("SELECT other.f()", false),
            ("INSERT INTO other.t VALUES (1)", false),
            ("SET @a = 1", false),
            ("SET @a = (SELECT 1 FROM t)", true),
            ("COMMIT", false),
            ("CREATE DATABASE again", false),
            ("DROP SCHEMA IF EXISTS other", false),
            ("ALTER DATABASE CHARSET=latin1", true),
            ("ALTER DATABASE CHARACTER SET latin1", true),
            ("ALTER SCHEMA COLLATE latin1_bin", true),
            ("ALTER DATABASE other CHARACTER SET latin1", false),
            ("CREATE TABLE other.t (a INT)", false),
            ("CREATE TABLE t (a INT)", true),
            ("CREATE PROCEDURE other.p() SELECT 1", true),
            ("CREATE USER u", true),
            ("SHOW TABLES", true),
            ("SHOW DATABASES", false),
            ("SHOW VARIABLES", false),
            ("CALL other.p()", true),
            ("LOCK TABLES other.t READ", true),
            ("whatever this is", true),
        ];
        for (text, depends) in cases {
            let mut class = Statement::default();
            let lex = LexMode::new(Family::MySql, 90_704);
            classify(text.as_bytes(), &lex, &mut class);
            assert_eq!(
                depends_on_database(&class, text.as_bytes()),
                depends,
                "{text}: {class:?}"
            );
        }
    }
}
