//! What a statement that is for the primary needs of another server while the primary cannot be had:
//! there is none, or it has no place for one more connection. Decides nothing; `routing` does.

use std::borrow::Cow;
use std::time::Duration;

use millrace_engine::image::user_variables::variable_name;
use millrace_engine::journal::is_replayable;
use millrace_engine::request::{Main, Request, Task};
use millrace_protocol::command::Command;
use millrace_protocol::packet;
use millrace_routing::Wanted;
use millrace_sql::{Access, Flags, Kind, Scope, Statement, Target, TextSource, Traits, XaOp};

use crate::session::Session;
use crate::session::statement::fold_variables::KEEPS_CONNECTION;

/// How long after its loss the primary is waited for by what would keep its connection: a transaction
/// that may come to write, a cursor. Most changes of primary are over by then, and who has waited need
/// not move. A transaction that has begun elsewhere is run again on the primary before it writes.
const PATIENCE: Duration = Duration::from_secs(3);

impl Session {
    /// What the request needs of another server, as far as the primary cannot be had now.
    pub(in crate::session) fn needs_without_primary(
        &self,
        request: &Request<'_>,
    ) -> Option<Access> {
        if !self.worker.cluster.lacks_primary() {
            return None;
        }
        self.needs_elsewhere(request, self.worker.cluster.has_just_lost_primary(PATIENCE))
    }

    /// Whether a request that is for the primary need not wait for one for ever.
    pub(in crate::session) fn may_do_without(&self, request: &Request<'_>) -> bool {
        self.needs_elsewhere(request, false).is_some()
    }

    /// What the request needs of a server that is not the primary; none where that will not do. `patient`:
    /// what would keep its connection does not yet go there.
    pub(in crate::session) fn needs_elsewhere(
        &self,
        request: &Request<'_>,
        patient: bool,
    ) -> Option<Access> {
        if request.access == Access::Write || self.image.tx.replay.is_some() {
            return None;
        }
        let directions = request.directions.as_deref();
        if patient && directions.is_some_and(|it| it.wanted == Some(Wanted::Primary)) {
            // A rule or hint says so: it waits for its place there.
            return None;
        }
        let (class, text) = match request.inner {
            Some((class, text)) => (class, Some(Cow::Borrowed(text))),
            None => (request.class, None),
        };
        let text = || text.or_else(|| self.text_of(request)).unwrap_or_default();
        let prepares = request.prepares();
        let keeps = |class| {
            keeps_connection(class, text)
                || self.may_lose_names(class)
                || self.may_leave_next(class)
                // Its value, a parameter, may be no text of its character set.
                || (matches!(request.main, Main::Execute { .. })
                    && class.flags.contains(Flags::ASSIGNS_USER_VARS))
        };
        if !prepares && keeps(class) {
            return None;
        }
        let deferred = self.image.tx.is_deferred();
        let opens =
            !prepares && (deferred || self.image.autocommit_off()) && self.opens_transaction(class);
        let writable = opens && !self.begins_read_only();
        if writable {
            let options = &self.settings.options.failover;
            let replays = options.max_replay_statements > 0 && options.max_replay_bytes > 0;
            if !replays || !is_replayable(class) || !request.is_replayable_outside() {
                return None;
            }
        }
        if (patient && (writable || opens_cursor(request)))
            || (opens && self.image.vars.switches.serializable && reads_data(class, request.task))
        {
            return None;
        }
        Some(match reads_data(class, request.task) {
            true => Access::Read,
            false => Access::Session,
        })
    }

    /// Whether user variables that the session has may not be named any more afterwards, which keeps the
    /// connection: a SET may change the character set that names are in.
    fn may_lose_names(&self, class: &Statement) -> bool {
        class.kind == Kind::Set && !self.image.vars.private.only_ascii()
    }

    /// Whether the transaction that is put off is one that only reads.
    fn begins_read_only(&self) -> bool {
        let begin = self.image.tx.deferred();
        begin.is_some_and(|begin| begin.read_only)
    }

    pub(super) fn text_of<'a>(&'a self, request: &Request<'a>) -> Option<Cow<'a, [u8]>> {
        match request.main {
            Main::Execute { id, .. } => Some(Cow::Borrowed(&*self.image.statements.get(id)?.text)),
            Main::Packet(packet) => {
                let payload = packet::payload(packet);
                let text = match Command::parse(&payload, self.client.capabilities) {
                    Ok(Command::Query(query)) => query.text,
                    Ok(Command::StmtPrepare(text)) => text,
                    _ => return None,
                };
                Some(Cow::Owned(text.to_vec()))
            }
        }
    }
}

/// Whether the statement reads what the session's reads must see.
fn reads_data(class: &Statement, task: Task) -> bool {
    !class.tables.is_empty()
        || !class.functions.is_empty()
        || class.flags.contains(Flags::SYSTEM_SCHEMA)
        || matches!(task, Task::Prepare(_) | Task::FieldList)
        || class.is(Traits::READS_UNNAMED)
}

/// Whether it asks about the server rather than the session: the primary's answer is the best.
pub(super) fn asks_server(class: &Statement) -> bool {
    let asks = Flags::READS_SYSVARS | Flags::SHOWS_VARIABLES | Flags::SERVER_LOCAL;
    class.flags.intersects(asks) || matches!(class.kind, Kind::Show(_))
}

/// Whether something of the statement stays on its connection, so that the session could not go on
/// elsewhere, or asks about the primary's own state.
fn keeps_connection<'a>(class: &Statement, text: impl FnOnce() -> Cow<'a, [u8]>) -> bool {
    let bound = Flags::USES_CONNECTION_ID
        | Flags::USES_USER_LOCK_STATE
        | Flags::WAITS
        | Flags::SEQUENCE
        | Flags::TRUNCATED
        | Flags::TX_ONE_SHOT;
    if class.flags.intersects(bound) {
        return true;
    }
    let text = match class.kind == Kind::Set || !class.user_vars_assigned.is_empty() {
        true => text(),
        false => Cow::Borrowed(b"".as_slice()),
    };
    // What names in another character set come to is asked of the connection.
    let mut assigned = class.user_vars_assigned.iter();
    if assigned.any(|name| !name.of(&text).is_ascii()) {
        return true;
    }
    match class.kind {
        Kind::SetRole
        | Kind::Savepoint
        | Kind::ReleaseSavepoint
        | Kind::RollbackTo
        | Kind::Commit
        | Kind::Rollback
        | Kind::Kill => true,
        Kind::Begin => !class.flags.contains(Flags::TX_READ_ONLY),
        Kind::Prepare => !matches!(class.source, Some(TextSource::Literal(_))),
        Kind::Xa(op) => op != XaOp::Recover,
        Kind::Set => class
            .assignments
            .iter()
            .any(|assignment| match assignment.target {
                Target::System {
                    scope: Scope::Session,
                    name,
                } => {
                    let name = variable_name(name.of(&text));
                    KEEPS_CONNECTION
                        .iter()
                        .any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
                }
                Target::System { scope, .. } => scope != Scope::Session,
                _ => false,
            }),
        // What it assigns cannot be asked for.
        _ => class.flags.contains(Flags::ASSIGNS_USER_VARS) && class.user_vars_assigned.is_empty(),
    }
}

/// Whether an execution asks for a cursor: the lowest bits do.
fn opens_cursor(request: &Request<'_>) -> bool {
    match request.main {
        Main::Packet(_) => false,
        Main::Execute { packet, .. } => packet
            .get(packet::HEADER + 5)
            .is_some_and(|flags| flags & 7 != 0),
    }
}

#[cfg(test)]
mod tests {
    use millrace_sql::{Family, LexMode, classify};

    use super::*;

    fn both(text: &str) -> (bool, bool) {
        let mut class = Statement::default();
        classify(
            text.as_bytes(),
            &LexMode::new(Family::MySql, 90_700),
            &mut class,
        );
        let text = || Cow::Borrowed(text.as_bytes());
        (
            keeps_connection(&class, text),
            reads_data(&class, Task::Query),
        )
    }

    #[test]
    fn what_drivers_say_first_needs_no_data_and_keeps_nothing() {
        for text in [
            "SET NAMES utf8mb4",
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
            "SET autocommit=1",
            "SET time_zone='+00:00'",
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "SET sql_mode=CONCAT(@@sql_mode,',STRICT_TRANS_TABLES')",
            "SET @x = 5",
            "SELECT @@version, @@max_allowed_packet",
            "SHOW VARIABLES LIKE 'lower_case_%'",
            "SHOW SESSION STATUS LIKE 'Ssl_cipher'",
            "SHOW WARNINGS",
            "SELECT DATABASE()",
            "SELECT 1 INTO @one",
            "DEALLOCATE PREPARE s",
        ] {
            assert_eq!(both(text), (false, false), "{text}");
        }
    }

    #[test]
    fn what_reads_data_is_told() {
        for text in [
            "USE app",
            "PREPARE s FROM 'SELECT * FROM t'",
            "SELECT COUNT(*) FROM t INTO @n",
            "SHOW TABLES",
            "SHOW CREATE TABLE t",
            "SELECT * FROM information_schema.tables",
            "EXPLAIN UPDATE t SET a=1",
            "START TRANSACTION READ ONLY",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        ] {
            assert_eq!(both(text), (false, true), "{text}");
        }
    }

    #[test]
    fn what_stays_on_its_connection_waits() {
        for text in [
            "SET rand_seed1=5",
            "SET @@session.insert_id=7, NAMES utf8",
            "SET profiling=1",
            "SET @@transaction_isolation='SERIALIZABLE'",
            "SET ROLE admin",
            "SAVEPOINT a",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            "PREPARE s FROM @text",
            "SELECT IS_FREE_LOCK('a')",
            "SELECT CONNECTION_ID()",
            "SELECT WAIT_FOR_EXECUTED_GTID_SET('',1)",
            "SET @`é` = 'n'",
            "SELECT @a, @`é` := 1",
            "SELECT 1 INTO @`é`",
        ] {
            assert!(both(text).0, "{text}");
        }
    }
}
