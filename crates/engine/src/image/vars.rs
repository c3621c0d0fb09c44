//! What a session has set: its state on any connection, its own variables, and what follows from them for
//! reading its statements.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use millrace_protocol::ok::Change;
use millrace_sql::{Charset, Family, LexMode};

use crate::image::user_variables::Private;
use crate::state::SessionState;

/// A session's variables, and what is known of them.
pub struct Vars {
    /// What a new session with the same handshake has.
    pub base: Rc<SessionState>,
    /// What the session has.
    pub state: Rc<SessionState>,
    /// What the state says that is asked for with every statement.
    pub switches: Switches,
    /// How the server reads its statements.
    pub lex: LexMode,
    /// What the client asked session tracking for.
    pub tracks: Tracks,
    /// Its user variables and SQL-level prepared statements.
    pub private: Private,
    /// COM_RESET_CONNECTION has given results the server's own collation.
    pub was_reset: bool,
    /// Variables that the last statement set to something that the server did not report.
    pub unreported: Vec<Box<str>>,
    /// User variables that stored code may have set in the statement under way.
    pub left: Vec<Box<[u8]>>,
    /// Stored code may have set session variables, and the server has not told which.
    pub untold: bool,
    /// The session has set `gtid_next` to a GTID: until its transaction ends, MySQL refuses to change what
    /// is tracked.
    pub owns_gtid: bool,
    /// Databases that others have dropped while the session was in them, or where it may do nothing any more.
    pub gone_databases: Vec<Box<[u8]>>,
}

impl Vars {
    /// As a login has them; see [`SessionImage::new`](crate::image::SessionImage::new).
    pub(super) fn new(
        family: Family,
        version: u32,
        tracked: &Arc<str>,
        base: Rc<SessionState>,
    ) -> Vars {
        Vars {
            state: base.clone(),
            base,
            switches: Switches::default(),
            lex: LexMode::new(family, version),
            tracks: Tracks::new(family, tracked),
            private: Private::default(),
            was_reset: false,
            unreported: Vec::new(),
            left: Vec::new(),
            untold: false,
            owns_gtid: false,
            gone_databases: Vec::new(),
        }
    }

    /// What goes with COM_RESET_CONNECTION beside the state, which a login's replaces.
    pub(super) fn reset(&mut self, family: Family, tracked: &Arc<str>) {
        self.private.clear();
        self.gone_databases.clear();
        self.owns_gtid = false;
        self.tracks = Tracks::new(family, tracked);
    }

    /// Takes over a state, and what follows from it. `sql_mode`: the server's, which counts where the session
    /// has not set its own; `ignore_space`: the handshake's flag.
    pub fn set(
        &mut self,
        state: Rc<SessionState>,
        sql_mode: impl Fn() -> Box<str>,
        ignore_space: bool,
        read_last: &ReadLast,
    ) {
        self.state = state;
        let state = &self.state;
        let made_for = (self.lex.family, self.lex.version);
        if let Some(read) = &*read_last.0.borrow()
            && Rc::ptr_eq(&read.state, state)
            && (read.lex.family, read.lex.version) == made_for
            && read
                .by_server
                .as_ref()
                .is_none_or(|mode| *mode == sql_mode())
        {
            (self.switches, self.lex) = (read.switches, read.lex);
            self.lex.ignore_space |= ignore_space;
            return;
        }
        let own = state.effective("sql_mode");
        let by_server = own.is_none().then(sql_mode);
        self.switches = Switches::of(state);
        let charset = state.reported("character_set_client").unwrap_or(b"utf8mb4");
        self.lex.charset = Charset::from_name(charset);
        let mode = own.or(by_server.as_deref().map(str::as_bytes));
        self.lex.set_sql_mode(mode.unwrap_or_default());
        read_last.0.replace(Some(Read {
            state: state.clone(),
            by_server,
            switches: self.switches,
            lex: self.lex,
        }));
        self.lex.ignore_space |= ignore_space;
    }

    /// Seconds for which a client may be idle, as far as the state says.
    pub fn idle_max(&self) -> Option<u64> {
        let value = self.state.reported("wait_timeout")?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }
}

/// What follows from the state that a worker's sessions took over last: those that log in begin with the same.
#[derive(Debug, Default)]
pub struct ReadLast(RefCell<Option<Read>>);

#[derive(Debug)]
struct Read {
    state: Rc<SessionState>,
    /// The server's `sql_mode`, where the state has none.
    by_server: Option<Box<str>>,
    switches: Switches,
    lex: LexMode,
}

/// What the client asked session tracking for. The servers are asked for what Millrace needs;
/// the answers are cut down to this.
#[derive(Debug, Clone)]
pub struct Tracks {
    /// Its default database (`session_track_schema`).
    pub schema: bool,
    /// That some state changed (`session_track_state_change`).
    pub state_change: bool,
    /// Its transactions' GTIDs (`session_track_gtids`).
    pub gtids: bool,
    /// The variable's value.
    pub gtids_value: Cow<'static, [u8]>,
    /// Lower-case names; `*` for all. Shared by all sessions that have not set it.
    pub variables: Arc<str>,
    /// The client has set one of them.
    pub changed: bool,
}

impl Tracks {
    /// As a login's: `by_default` is the server's list, empty where it is not known.
    pub(super) fn new(family: Family, by_default: &Arc<str>) -> Self {
        Tracks {
            schema: true,
            state_change: false,
            gtids: false,
            gtids_value: Cow::Borrowed(b"OFF"),
            // Both families' default (observed); MariaDB adds nothing to it but an order.
            variables: match family {
                _ if !by_default.is_empty() => by_default.clone(),
                Family::MySql => {
                    "time_zone,autocommit,character_set_client,character_set_results,character_set_connection".into()
                }
                Family::MariaDb => {
                    "autocommit,character_set_client,character_set_connection,character_set_results,time_zone".into()
                }
            },
            changed: false,
        }
    }

    /// Whether the client asked for this kind of news.
    #[inline]
    pub fn keeps(&self, change: &Change<'_>) -> bool {
        match change {
            Change::Schema(_) => self.schema,
            Change::StateChanged(_) => self.state_change,
            Change::Gtids(_) => self.gtids,
            Change::SystemVariable { name, .. } => self.wants(name),
            // Only sent where the client's own setting, which is restored, asks for it.
            Change::TransactionCharacteristics(_) | Change::TransactionState(_) => true,
            Change::Other(..) => false,
        }
    }

    /// Whether the client wants to hear of a variable.
    pub fn wants(&self, name: &[u8]) -> bool {
        self.variables.split(',').any(|wanted| {
            let wanted = wanted.trim();
            wanted == "*" || wanted.as_bytes().eq_ignore_ascii_case(name)
        })
    }

    /// The SET that gives a server connection the client's own settings.
    pub fn statement(&self, family: Family) -> String {
        let on = |flag: bool| if flag { "ON" } else { "OFF" };
        let mut text = format!(
            "SET SESSION session_track_schema={},session_track_state_change={},\
             session_track_system_variables=_utf8mb4'{}'",
            on(self.schema),
            on(self.state_change),
            self.variables
        );
        if family == Family::MySql {
            text.push_str(",session_track_gtids=");
            text.push_str(&String::from_utf8_lossy(&self.gtids_value));
        }
        text
    }
}

/// Variables that decide about every statement, read once when the state changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Switches {
    /// Isolation is SERIALIZABLE: reads lock.
    pub serializable: bool,
    /// Isolation is READ COMMITTED or less: a write may pass over rows that others lock.
    pub passes_locks: bool,
    /// `sql_auto_is_null` is set, to whatever.
    pub names_last_row: bool,
    /// It is on: `id IS NULL` finds the row last inserted.
    pub finds_last_row: bool,
    /// Every statement opens a transaction. MySQL's flag does not say so where the global variable is
    /// off (observed on 9.7).
    pub(super) autocommit_off: bool,
}

impl Switches {
    fn of(state: &SessionState) -> Self {
        let is_set = state.variable("sql_auto_is_null").is_some();
        let finds_last =
            state.effective("sql_auto_is_null").is_some() && !state.is_off("sql_auto_is_null");
        let named = ["transaction_isolation", "tx_isolation"];
        // Where it is not known yet, it is the default, REPEATABLE READ.
        let isolation = named.iter().find_map(|name| state.effective(name));
        Switches {
            serializable: isolation == Some(b"SERIALIZABLE"),
            passes_locks: matches!(isolation, Some(b"READ-COMMITTED" | b"READ-UNCOMMITTED")),
            names_last_row: is_set || finds_last,
            finds_last_row: finds_last,
            autocommit_off: state.is_off("autocommit"),
        }
    }
}
