//! What a worker has learnt from servers and need not ask again: what logins begin with, accounts' rows, which
//! states servers take, how they name collations. All of it is bounded, and learnt again where it was forgotten.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_backend::account::Account;
use millrace_backend::conn::Conn;
use millrace_backend::error::BackendError;
use millrace_backend::fresh::Version;
use millrace_backend::pool::ServerFacts;
use millrace_backend::states::States;
use millrace_backend::user_rows::{Name, UserRows};
use millrace_engine::image::vars::ReadLast;
use millrace_engine::refusals::is_full;
use millrace_engine::state::{self, SessionState, Value};
use millrace_protocol::Status;
use millrace_sql::Statement;
use millrace_topology::ServerId;
use tracing::warn;

use crate::shared::Shared;

/// A name at a server, and the collation of its clients where that matters.
type NameOn = (ServerId, Box<[u8]>, u8);

/// Who reads a server's account rows; when the last one had no answer, and why.
type Reading = tokio::sync::Mutex<Option<(Instant, BackendError)>>;

/// The account rows of a name, as they were read.
struct RowsOfName {
    /// None where they cannot be read.
    rows: Option<UserRows>,
    read: Instant,
    /// They may have changed since: they only count where they cannot be read again.
    is_old: bool,
}

/// For so long rows count that cannot be read again, because the server refuses the monitor's account. Only its own
/// restrictions (hosts, REQUIRE) are then judged by old rows: the server judges the password all the same.
const OLD_ROWS: Duration = Duration::from_secs(3600);

/// How often the log is told so.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// For so many accounts and collations.
const BASES_MAX: usize = 10_000;

/// States that were proven, at most.
const PROVEN_MAX: usize = 10_000;

/// What a new connection starts with, and how new the connection was that told so.
#[derive(Debug, Clone)]
pub struct Base {
    /// What a session has right after its login.
    pub state: Rc<SessionState>,
    /// The connection's server.
    pub server: ServerId,
    /// How new the connection was.
    pub version: Version,
    /// The server tells clients the tracked variables at the login.
    pub tells_variables: bool,
    /// The status flags that a login is told.
    pub status: Status,
}

/// The variables that say which collation a character set has.
pub const COLLATION_DEFAULTS: [&str; 2] =
    ["default_collation_for_utf8mb4", "character_set_collations"];

/// What decides about the collation that a character set has where none is named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CollationKey {
    server: ServerId,
    version: Version,
    charset: Box<[u8]>,
    /// What a session has set about it.
    set: Option<Value>,
}

impl CollationKey {
    /// For the character set of a connection that SET NAMES chose; none where it was chosen otherwise,
    /// which has other defaults (observed on MySQL), or is not told.
    pub fn new(conn: &Conn, state: &SessionState, class: &Statement) -> Option<CollationKey> {
        let by_names = |assignment: &millrace_sql::Assignment| {
            matches!(assignment.target, millrace_sql::Target::Names { .. })
        };
        let character_set = |assignment: &millrace_sql::Assignment| {
            matches!(assignment.target, millrace_sql::Target::CharacterSet)
        };
        if !class.assignments.iter().any(by_names) || class.assignments.iter().any(character_set) {
            return None;
        }
        Some(CollationKey {
            server: conn.server,
            version: conn.login.version,
            charset: state.reported("character_set_connection")?.into(),
            set: COLLATION_DEFAULTS
                .iter()
                .find_map(|name| state.variable(name))
                .cloned(),
        })
    }
}

/// So many collations are kept, at most.
const COLLATIONS_MAX: usize = 1_000;

/// What was learnt.
#[derive(Default)]
pub struct Learnt {
    bases: RefCell<HashMap<(u64, u8, bool), Base>>,
    /// The servers' account rows by name, and when they were read.
    user_rows: RefCell<HashMap<NameOn, RowsOfName>>,
    told_refused: Cell<Option<Instant>>,
    /// What the state of a session means for its statements.
    pub read_last: ReadLast,
    /// Who holds it reads them.
    reading_rows: RefCell<HashMap<ServerId, Rc<Reading>>>,
    /// What the last login began with, and the base that came of: the next is likely the same.
    begun: RefCell<Option<[Rc<SessionState>; 2]>>,
    proven: RefCell<HashSet<u64>>,
    collations: RefCell<HashMap<CollationKey, Box<[u8]>>>,
    /// The numbers by which servers name collations to clients: some that are beyond 255 have the number of
    /// another (observed on MariaDB 11.8).
    collation_numbers: RefCell<HashMap<Box<[u8]>, u16>>,
}

impl Learnt {
    /// They are read anew when they are next asked for.
    pub fn forget_user_rows(&self, server: ServerId, user: &[u8]) {
        let mut known = self.user_rows.borrow_mut();
        for ((of, name, _), row) in known.iter_mut() {
            row.is_old |= *of == server && **name == *user;
        }
    }

    /// The rows of a server's account table for a name, as they were a moment ago. None where they
    /// cannot be read. Read by one at a time: logins that come at once have one connection for it, and where the
    /// server does not answer one of them, none of those that wait meanwhile.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn user_rows(
        &self,
        shared: &Shared,
        facts: &ServerFacts,
        name: Name<'_>,
    ) -> Result<Option<UserRows>, BackendError> {
        const MOMENT: Duration = Duration::from_secs(1);
        const REMEMBERED_MAX: usize = 1000;
        let collation = if name.user.is_ascii() {
            0
        } else {
            name.collation
        };
        let key = (facts.id, Box::from(name.user), collation);
        let known = || {
            let known = self.user_rows.borrow();
            let row = known.get(&key)?;
            (!row.is_old && row.read.elapsed() < MOMENT).then(|| row.rows.clone())
        };
        let old = |refused: &BackendError| {
            let known = self.user_rows.borrow();
            let row = known.get(&key)?;
            let is_refused = matches!(refused, BackendError::MonitorRefused(_));
            (is_refused && row.read.elapsed() < OLD_ROWS).then(|| row.rows.clone())
        };
        if let Some(rows) = known() {
            return Ok(rows);
        }
        let reading = {
            let mut servers = self.reading_rows.borrow_mut();
            servers.entry(facts.id).or_default().clone()
        };
        let came = Instant::now();
        let mut failed = reading.lock().await;
        if let Some(rows) = known() {
            return Ok(rows);
        }
        if let Some((at, error)) = &*failed {
            if let Some(rows) = old(error).filter(|_| at.elapsed() < MOMENT) {
                return Ok(rows);
            }
            if *at >= came {
                return Err(error.shared());
            }
        }
        let network = &shared.network;
        let rows = match shared.monitor.user_rows(facts, name, network).await {
            Ok(rows) => rows,
            Err(error) => {
                let error = match error {
                    // What is passing, and no word on the account.
                    BackendError::Server(error) if error.code == 1053 || is_full(&error) => {
                        BackendError::Server(error)
                    }
                    BackendError::Server(error) => BackendError::MonitorRefused(error),
                    other => other,
                };
                if matches!(error, BackendError::MonitorRefused(_)) {
                    self.tell_refused(facts, &error);
                }
                *failed = Some((Instant::now(), error.shared()));
                return old(&error).ok_or(error);
            }
        };
        *failed = None;
        let mut remembered = self.user_rows.borrow_mut();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        let row = RowsOfName {
            rows: rows.clone(),
            read: Instant::now(),
            is_old: false,
        };
        remembered.insert(key, row);
        Ok(rows)
    }

    fn tell_refused(&self, facts: &ServerFacts, error: &BackendError) {
        let told = self.told_refused.get();
        if told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        self.told_refused.set(Some(Instant::now()));
        warn!(
            server = %facts.address,
            %error,
            "logins are judged by accounts as they were read before, for an hour at most; correct [monitor]"
        );
    }

    /// What a new connection of this account starts with, by the handshake's collation and its flag
    /// for IGNORE_SPACE, where that is known.
    pub fn base(&self, account: &Account, collation: u8, ignore_space: bool) -> Option<Base> {
        let key = (account.id, collation, ignore_space);
        self.bases.borrow().get(&key).cloned()
    }

    /// The same account was learnt by another login first: what was found for one holds for both.
    pub fn share_base(&self, tried: &Account, kept: &Account, collation: u8, ignore_space: bool) {
        if tried.id != kept.id
            && self.base(kept, collation, ignore_space).is_none()
            && let Some(base) = self.base(tried, collation, ignore_space)
        {
            self.set_base(kept, collation, ignore_space, base);
        }
    }

    /// A login has learnt what new connections of the account start with.
    pub fn set_base(&self, account: &Account, collation: u8, ignore_space: bool, base: Base) {
        let mut bases = self.bases.borrow_mut();
        if bases.len() >= BASES_MAX {
            // They are learnt again with the next logins.
            bases.clear();
        }
        bases.insert((account.id, collation, ignore_space), base);
    }

    /// `base` with a database and the client's wish for several statements in one command.
    pub fn begun(
        &self,
        states: &States,
        base: &Rc<SessionState>,
        database: &[u8],
        multi_statements: bool,
    ) -> Rc<SessionState> {
        let mut last = self.begun.borrow_mut();
        if let Some([from, state]) = &*last
            && Rc::ptr_eq(from, base)
            && *state.database == *database
            && state.multi_statements == multi_statements
        {
            return state.clone();
        }
        let state = states.share(SessionState {
            database: database.into(),
            multi_statements,
            ..SessionState::clone(base)
        });
        *last = Some([base.clone(), state.clone()]);
        state
    }

    /// Whether this state, by its hash, was once set on its server without an error.
    pub fn is_proven(&self, proof: u64) -> bool {
        self.proven.borrow().contains(&proof)
    }

    /// These states were set without an error.
    pub fn prove(&self, proofs: Vec<u64>) {
        if proofs.is_empty() {
            return;
        }
        let mut proven = self.proven.borrow_mut();
        if proven.len() > PROVEN_MAX {
            proven.clear();
        }
        proven.extend(proofs);
    }

    /// The collation that a character set has where none is named, if that was asked for.
    pub fn collation(&self, key: &CollationKey) -> Option<Box<[u8]>> {
        self.collations.borrow().get(key).cloned()
    }

    /// By which number clients know a collation, if that was seen.
    pub fn collation_number(&self, collation: &[u8]) -> Option<u16> {
        self.collation_numbers.borrow().get(collation).copied()
    }

    /// Takes in which number the results of a session in this state have.
    pub fn learn_collation_number(&self, state: &SessionState, number: u16) {
        let Some(collation) = state::results_by_names(state).filter(|_| number != 0) else {
            return;
        };
        let mut numbers = self.collation_numbers.borrow_mut();
        if numbers.len() >= COLLATIONS_MAX {
            numbers.clear();
        }
        numbers.insert(collation.into(), number);
    }

    /// The collation was asked for.
    pub fn learn_collation(&self, key: CollationKey, collation: &[u8]) {
        let mut collations = self.collations.borrow_mut();
        if collations.len() >= COLLATIONS_MAX {
            collations.clear();
        }
        collations.insert(key, collation.into());
    }
}
