//! The part of a session that can be set again on any connection, and the commands that turn
//! one connection's state into another session's. Performs no I/O.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use millrace_protocol::packet;

/// What a session has set that later statements depend on. Two sessions with equal states are
/// served alike; equal states are usually the same `Rc` (see [`States`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SessionState {
    /// The default database in the session's character set; empty for none.
    pub database: Box<[u8]>,
    /// What a new connection had when the session logged in.
    pub basis: Rc<Basis>,
    /// Session variables that differ from the basis, or from what a new connection has, with the
    /// value as the server reports it; sorted by name, names in lower case. The character set's
    /// variables are always here.
    pub variables: Vec<(Box<str>, Value)>,
    /// Whether a command may hold several statements.
    pub multi_statements: bool,
}

/// A variable's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    /// As reported by session tracking or `SELECT @@name`: no quotes.
    Reported(Box<[u8]>),
    /// As written in a SET that the server accepted: SQL text, self-contained.
    Literal(Box<[u8]>),
    /// The SQL NULL (`character_set_results` only).
    Null,
}

/// Session variables as a new connection has them: from the server's global variables and
/// `init_connect`. Only those that every account may set to whatever they were: a connection from
/// before or after a change of the globals, or to another server, is brought to these values.
#[derive(Debug, Default)]
pub struct Basis {
    /// Sorted by name; as `SELECT @@name` tells them.
    values: Vec<(Box<str>, Box<[u8]>)>,
    hash: u64,
}

impl Basis {
    /// Of names with their values.
    pub fn new(mut values: Vec<(Box<str>, Box<[u8]>)>) -> Basis {
        values.sort();
        let mut hasher = DefaultHasher::new();
        values.hash(&mut hasher);
        Basis {
            values,
            hash: hasher.finish(),
        }
    }

    /// The value of a variable, where it belongs to the basis.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self
            .values
            .binary_search_by(|(other, _)| (**other).cmp(name));
        Some(&self.values[found.ok()?].1)
    }
}

impl PartialEq for Basis {
    fn eq(&self, other: &Basis) -> bool {
        self.hash == other.hash && self.values == other.values
    }
}

impl Eq for Basis {}

impl Hash for Basis {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The variables that a server's sessions have a basis for, and what asks for their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begins {
    names: Vec<Box<str>>,
    /// Their values, after three of the character set's and before the time that the server lets a
    /// connection be idle.
    pub(crate) question: String,
}

/// What the question asks for ahead of the basis.
pub(crate) const CHARSETS: [&str; 3] = [
    "character_set_client",
    "character_set_results",
    "collation_connection",
];

impl Begins {
    /// Those of `names` for a server that has them.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Begins {
        let names: Vec<Box<str>> = names.into_iter().map(Box::from).collect();
        let basis = names.iter().map(|name| &**name);
        let columns: Vec<String> = (CHARSETS.into_iter().chain(basis))
            .chain(["wait_timeout"])
            .map(|name| format!("@@{name}"))
            .collect();
        Begins {
            question: format!("SELECT {} LIMIT 1", columns.join(",")),
            names,
        }
    }

    /// For a server of which nothing is known: what every server has.
    pub fn unknown() -> Begins {
        Begins::new([
            "autocommit",
            "group_concat_max_len",
            "innodb_lock_wait_timeout",
            "sql_mode",
            "time_zone",
        ])
    }

    /// The basis that these values make.
    pub(crate) fn basis(&self, values: impl Iterator<Item = Option<Vec<u8>>>) -> Basis {
        let named = self.names.iter().cloned().zip(values);
        let told = named.filter_map(|(name, value)| Some((name, value?.into())));
        // MySQL 8 takes no such mode from an older server.
        let mysql = self
            .names
            .iter()
            .any(|name| &**name == "max_execution_time");
        let foreign = |(name, value): &(Box<str>, Box<[u8]>)| {
            &**name == "sql_mode" && mysql && contains(value, b"NO_AUTO_CREATE_USER")
        };
        Basis::new(told.filter(|entry| !foreign(entry)).collect())
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The variables that a basis may have: statements depend on them, and every account may set them to
/// every value on either family.
pub const BASIS: &[&str] = &[
    "autocommit",
    "completion_type",
    "cte_max_recursion_depth",
    "default_week_format",
    "div_precision_increment",
    "foreign_key_checks",
    "group_concat_max_len",
    "innodb_lock_wait_timeout",
    "lc_messages",
    "lc_time_names",
    "lock_wait_timeout",
    "max_error_count",
    "max_execution_time",
    "max_recursive_iterations",
    "max_sort_length",
    "max_statement_time",
    "old_mode",
    "sql_auto_is_null",
    "sql_mode",
    "sql_notes",
    "sql_quote_show_create",
    "sql_safe_updates",
    "sql_select_limit",
    "time_zone",
    "transaction_isolation",
    "transaction_read_only",
    "tx_isolation",
    "tx_read_only",
    "unique_checks",
    "updatable_views_with_limit",
];

/// Variables beyond the basis that every account may set back to what they were.
const FREE: &[&str] = &[
    "big_tables",
    "check_constraint_checks",
    "collation_server",
    "character_set_server",
    "default_storage_engine",
    "default_tmp_storage_engine",
    "eq_range_index_dive_limit",
    "information_schema_stats_expiry",
    "interactive_timeout",
    "join_buffer_size",
    "join_cache_level",
    "long_query_time",
    "low_priority_updates",
    "max_heap_table_size",
    "max_join_size",
    "max_seeks_for_key",
    "net_read_timeout",
    "net_retry_count",
    "net_write_timeout",
    "optimizer_prune_level",
    "optimizer_search_depth",
    "optimizer_switch",
    "optimizer_use_condition_selectivity",
    "read_buffer_size",
    "read_rnd_buffer_size",
    "session_track_transaction_info",
    "sort_buffer_size",
    "sql_big_selects",
    "sql_buffer_result",
    "sql_low_priority_updates",
    "sql_warnings",
    "storage_engine",
    "system_versioning_asof",
    "timestamp",
    "tmp_memory_table_size",
    "tmp_table_size",
    "use_stat_tables",
    "wait_timeout",
    "windowing_use_high_precision",
    "wsrep_causal_reads",
    "wsrep_sync_wait",
];

/// For `session_track_system_variables`. From MariaDB 11.1 on, variables that share memory are one to the
/// tracker (observed on 11.8). A change of one is told by the first name in the list, or by the one that
/// the connection has set first: `SET last_insert_id=1` would make that the name of `last_gtid`. So
/// the names that count come before the rest.
pub const TRACKED_BY_FIRST_NAME: &str = "last_gtid,autocommit,character_set_connection,*";

/// The variables that such a server tells by the name `autocommit`: bits of one word (observed on 11.8).
pub const SWITCHES: [&str; 17] = [
    "check_constraint_checks",
    "explicit_defaults_for_timestamp",
    "foreign_key_checks",
    "profiling",
    "skip_parallel_replication",
    "skip_replication",
    "sql_auto_is_null",
    "sql_big_selects",
    "sql_buffer_result",
    "sql_if_exists",
    "sql_log_off",
    "sql_notes",
    "sql_quote_show_create",
    "sql_safe_updates",
    "sql_warnings",
    "system_versioning_insert_history",
    "unique_checks",
];

/// Whether `from` has something that may not be taken back by a SET: a variable that takes a
/// privilege, which the account may have lost, or one that goes one way only (MySQL's
/// `require_row_format`). COM_RESET_CONNECTION takes back all of them.
pub fn needs_reset(from: &SessionState, to: &SessionState) -> bool {
    from.variables.iter().any(|(name, _)| {
        let name = &**name;
        to.variable(name).is_none()
            && !CHARSET.contains(&name)
            && !BASIS.contains(&name)
            && !FREE.contains(&name)
    })
}

/// Whether two values are the same: switches are told as numbers or as words.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let switch = |value: &[u8]| match value {
        b"1" => Some(true),
        b"0" => Some(false),
        _ if value.eq_ignore_ascii_case(b"ON") => Some(true),
        _ if value.eq_ignore_ascii_case(b"OFF") => Some(false),
        _ => None,
    };
    one == other || (switch(one).is_some() && switch(one) == switch(other))
}

impl SessionState {
    /// The value of a variable that is set, or of one that the basis has.
    pub fn effective(&self, name: &str) -> Option<&[u8]> {
        match self.variable(name) {
            Some(Value::Reported(value) | Value::Literal(value)) => Some(value),
            Some(Value::Null) => None,
            None => self.basis.get(name),
        }
    }

    /// Whether a switch is known to be off.
    pub fn is_off(&self, name: &str) -> bool {
        self.effective(name)
            .is_some_and(|value| is_same(value, b"0"))
    }

    /// Whether a switch is known to be on.
    pub fn is_on(&self, name: &str) -> bool {
        self.effective(name)
            .is_some_and(|value| is_same(value, b"1"))
    }

    /// The value of a variable, where it is set.
    pub fn variable(&self, name: &str) -> Option<&Value> {
        let at = self.position(name).ok()?;
        Some(&self.variables[at].1)
    }

    /// A reported value's bytes.
    pub fn reported(&self, name: &str) -> Option<&[u8]> {
        match self.variable(name)? {
            Value::Reported(value) => Some(value),
            Value::Literal(_) | Value::Null => None,
        }
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: Value) {
        if let (Value::Reported(value) | Value::Literal(value), Some(basis)) =
            (&value, self.basis.get(name))
            && is_same(value, basis)
        {
            return self.unset(name);
        }
        match self.position(name) {
            Ok(at) => self.variables[at].1 = value,
            Err(at) => self.variables.insert(at, (name.into(), value)),
        }
    }

    /// Forgets a variable: back to the basis, or to what a new connection has.
    pub fn unset(&mut self, name: &str) {
        if let Ok(at) = self.position(name) {
            self.variables.remove(at);
        }
    }

    /// What is to be set to prepare a statement that was prepared under `self`, in a session that has `now`: what
    /// decides how it is read. What acts by itself stays as it is: to set `autocommit` commits, and others cannot be
    /// changed while a transaction is open. None where nothing of `self` has to be left out.
    pub fn to_prepare_in(&self, now: &SessionState) -> Option<SessionState> {
        let differs = |name: &&&str| self.variable(name) != now.variable(name);
        let mut differing = ACTING.iter().filter(differs).peekable();
        differing.peek()?;
        let mut state = self.clone();
        for name in differing {
            match now.variable(name) {
                Some(value) => state.set(name, value.clone()),
                None => state.unset(name),
            }
        }
        Some(state)
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.variables
            .binary_search_by(|(other, _)| (**other).cmp(name))
    }
}

/// Variables that decide about transactions and logs, not about how a text is read.
const ACTING: [&str; 24] = [
    "autocommit",
    "binlog_direct_non_transactional_updates",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_value_options",
    "binlog_rows_query_log_events",
    "completion_type",
    "gtid_domain_id",
    "gtid_next",
    "gtid_seq_no",
    "idle_transaction_timeout",
    "innodb_lock_wait_timeout",
    "lock_wait_timeout",
    "pseudo_slave_mode",
    "pseudo_thread_id",
    "server_id",
    "skip_replication",
    "sql_log_bin",
    "transaction_isolation",
    "transaction_read_only",
    "tx_isolation",
    "tx_read_only",
    "wsrep_on",
    "wsrep_sync_wait",
];

/// One worker's session states, so that equal ones share memory and compare by address.
#[derive(Debug, Default)]
pub struct States {
    known: RefCell<HashSet<Rc<SessionState>>>,
    bases: RefCell<Vec<Rc<Basis>>>,
}

impl States {
    /// The shared copy of `state`.
    pub fn share(&self, mut state: SessionState) -> Rc<SessionState> {
        self.share_basis(&mut state.basis);
        let mut known = self.known.borrow_mut();
        if let Some(shared) = known.get(&state) {
            return shared.clone();
        }
        if known.len() >= 64 && known.len().is_power_of_two() {
            known.retain(|state| Rc::strong_count(state) > 1);
        }
        let shared = Rc::new(state);
        known.insert(shared.clone());
        shared
    }

    fn share_basis(&self, basis: &mut Rc<Basis>) {
        let mut bases = self.bases.borrow_mut();
        if bases.iter().any(|known| Rc::ptr_eq(known, basis)) {
            return;
        }
        if let Some(known) = bases.iter().find(|known| *known == basis) {
            *basis = known.clone();
            return;
        }
        bases.retain(|known| Rc::strong_count(known) > 1);
        bases.push(basis.clone());
    }
}

/// Appends a text command; `attributes` says whether the connection speaks query attributes, in
/// which case the empty list stands before the text.
pub fn frame_query(out: &mut Vec<u8>, attributes: bool, text: &[u8]) {
    let mut payload = Vec::with_capacity(text.len() + 3);
    payload.push(0x03);
    if attributes {
        payload.extend_from_slice(&[0, 1]);
    }
    payload.extend_from_slice(text);
    packet::frame(out, 0, &payload);
}

/// A command of a replay, as far as its answer is read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// COM_QUERY with SET.
    Set,
    /// COM_INIT_DB.
    Database,
    /// COM_SET_OPTION.
    Option,
}

/// Appends the commands that turn `from` into `to` and names them in order. `to` has a database
/// where `from` has one: there is no command that takes it away.
pub fn difference(
    from: &SessionState,
    to: &SessionState,
    attributes: bool,
    out: &mut Vec<u8>,
    steps: &mut Vec<Step>,
) {
    let moves = from.database != to.database && !to.database.is_empty();
    // A name beyond ASCII is read in the connection's character set, so that is set first.
    for set in [assignments(from, to), late_assignment(from, to)] {
        if !set.is_empty() {
            frame_query(out, attributes, &set);
            steps.push(Step::Set);
        }
    }
    if moves {
        let mut payload = Vec::with_capacity(to.database.len() + 1);
        payload.push(0x02);
        payload.extend_from_slice(&to.database);
        packet::frame(out, 0, &payload);
        steps.push(Step::Database);
    }
    if from.multi_statements != to.multi_statements {
        let option = if to.multi_statements { 0u8 } else { 1 };
        packet::frame(out, 0, &[0x1b, option, 0]);
        steps.push(Step::Option);
    }
}

/// The pseudo-variable with the last SET NAMES, as a [`Value::Literal`] such as
/// `utf8mb4 COLLATE utf8mb4_bin`: results have that collation (observed), which no variable tells.
pub const NAMES: &str = "names";

/// The collation of results where the last SET NAMES, or the login, has chosen it.
/// `SET character_set_results=x` and SET CHARACTER SET give x its built-in default instead, whatever
/// `character_set_collations` says (observed on MariaDB 11.8): the state has x as a [`Value::Literal`] then.
pub fn results_by_names(state: &SessionState) -> Option<&[u8]> {
    let Some(Value::Literal(names)) = state.variable(NAMES) else {
        return None;
    };
    let collate = b" COLLATE ";
    let at = names
        .windows(collate.len())
        .position(|part| part == collate)?;
    let is_same = state.reported("character_set_results") == Some(&names[..at]);
    is_same.then_some(&names[at + collate.len()..])
}

/// The character set's variables hang together: setting one may change another, so they are set
/// all or none, in this order.
const CHARSET: [&str; 5] = [
    NAMES,
    "character_set_client",
    "character_set_results",
    "character_set_connection",
    "collation_connection",
];

/// MySQL's `SET foreign_key_checks = DEFAULT` and its like set OFF, whatever the default is
/// (observed on 9.7).
const DEFAULT_IS_OFF: [&str; 2] = ["foreign_key_checks", "unique_checks"];

/// MariaDB: a time, read in the `time_zone` that was in force before the whole SET (observed).
const LATE: &str = "system_versioning_asof";

/// `SET a=…, b=DEFAULT`, or nothing where the variables are alike.
fn assignments(from: &SessionState, to: &SessionState) -> Vec<u8> {
    let mut set = Vec::new();
    if CHARSET
        .iter()
        .any(|name| from.variable(name) != to.variable(name))
    {
        assign_charset(&mut set, to);
    }
    let mut add = |name: &str, value: Option<&Value>| {
        begin_assignment(&mut set, name);
        match value {
            None if to.basis.get(name).is_some() => {
                write_reported(&mut set, to.basis.get(name).unwrap_or_default());
            }
            None if DEFAULT_IS_OFF.contains(&name) => {
                set.extend_from_slice(b"@@global.");
                set.extend_from_slice(name.as_bytes());
            }
            None => set.extend_from_slice(b"DEFAULT"),
            Some(value) => write_value(&mut set, value),
        }
    };
    let others = |name: &str| !CHARSET.contains(&name) && name != LATE;
    for (name, _) in from.variables.iter().filter(|(name, _)| others(name)) {
        if to.variable(name).is_none() {
            add(name, None);
        }
    }
    for (name, value) in to.variables.iter().filter(|(name, _)| others(name)) {
        let is_there = match from.variable(name) {
            Some(held) => held == value,
            None => matches!((value, from.basis.get(name)),
                (Value::Reported(value) | Value::Literal(value), Some(held)) if is_same(value, held)),
        };
        if !is_there {
            add(name, Some(value));
        }
    }
    if from.basis != to.basis {
        for (name, value) in &to.basis.values {
            let is_set = from.variable(name).is_some() || to.variable(name).is_some();
            if !is_set && from.basis.get(name).is_some_and(|held| held != &**value) {
                add(name, None);
            }
        }
    }
    set
}

fn late_assignment(from: &SessionState, to: &SessionState) -> Vec<u8> {
    let mut set = Vec::new();
    let zones = from.effective("time_zone") != to.effective("time_zone");
    let value = to.variable(LATE);
    if from.variable(LATE) != value || (zones && value.is_some()) {
        begin_assignment(&mut set, LATE);
        match value {
            None => set.extend_from_slice(b"DEFAULT"),
            Some(value) => write_value(&mut set, value),
        }
    }
    set
}

fn begin_assignment(set: &mut Vec<u8>, name: &str) {
    set.extend_from_slice(if set.is_empty() { b"SET " } else { b"," });
    set.extend_from_slice(b"@@session.");
    set.extend_from_slice(name.as_bytes());
    set.push(b'=');
}

/// SET NAMES, where that is known, and what is otherwise than it makes it.
fn assign_charset(set: &mut Vec<u8>, to: &SessionState) {
    let mut made: [Option<&[u8]>; 5] = [None; 5];
    if let Some(Value::Literal(names)) = to.variable(NAMES) {
        set.extend_from_slice(b"SET NAMES ");
        set.extend_from_slice(names);
        let blank = names.iter().position(|byte| *byte == b' ');
        let charset = &names[..blank.unwrap_or(names.len())];
        let collation =
            blank.map(|_| &names[names.iter().rposition(|b| *b == b' ').unwrap_or(0) + 1..]);
        made = [None, Some(charset), Some(charset), Some(charset), collation];
    }
    for (name, made) in CHARSET.iter().zip(made).skip(1) {
        if let Some(value) = to.variable(name)
            && !matches!((value, made), (Value::Reported(value), Some(made)) if **value == *made)
        {
            begin_assignment(set, name);
            write_value(set, value);
        }
    }
}

/// Before a string that is read on a connection whose collation is another session's: under utf16
/// a bare literal would be no time zone and no mode (observed).
const INTRODUCER: &[u8] = b"_utf8mb4";

fn is_plain_string(text: &[u8]) -> bool {
    text.is_ascii() && text.first() == Some(&b'\'')
}

/// A value as SQL text that means the same under every `sql_mode` and character set.
fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"NULL"),
        Value::Literal(text) => {
            if is_plain_string(text) {
                out.extend_from_slice(INTRODUCER);
            }
            out.extend_from_slice(text);
        }
        Value::Reported(text) => write_reported(out, text),
    }
}

fn write_reported(out: &mut Vec<u8>, text: &[u8]) {
    if is_number(text) {
        out.extend_from_slice(text);
    } else if text.iter().all(|b| is_plain(*b)) {
        out.extend_from_slice(INTRODUCER);
        out.push(b'\'');
        out.extend_from_slice(text);
        out.push(b'\'');
    } else {
        write_hex(out, "_utf8mb4", text);
    }
}

/// `introducer x'…'`: bytes that no quoting rule can touch.
pub fn write_hex(out: &mut Vec<u8>, introducer: &str, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(introducer.as_bytes());
    out.extend_from_slice(b" x'");
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
    out.push(b'\'');
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" _-+.,:/=%@()[]#~".contains(&byte)
}

fn is_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let mut dots = 0;
    !digits.is_empty()
        && digits[0].is_ascii_digit()
        && digits.iter().all(|b| {
            dots += usize::from(*b == b'.');
            b.is_ascii_digit() || *b == b'.'
        })
        && dots <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(database: &str, variables: &[(&str, &str)]) -> SessionState {
        let mut state = SessionState {
            database: database.as_bytes().into(),
            ..SessionState::default()
        };
        for (name, value) in variables {
            state.set(name, Value::Reported(value.as_bytes().into()));
        }
        state
    }

    #[test]
    fn equal_states_are_shared() {
        let states = States::default();
        let a = states.share(state("x", &[("sql_mode", "ANSI")]));
        let b = states.share(state("x", &[("sql_mode", "ANSI")]));
        assert!(Rc::ptr_eq(&a, &b));
    }

    #[test]
    fn only_the_difference_is_set() {
        let from = state(
            "a",
            &[("sql_mode", "ANSI"), ("time_zone", "+01:00"), ("x", "1")],
        );
        let to = state(
            "a",
            &[("sql_mode", ""), ("time_zone", "+01:00"), ("y", "2.5")],
        );
        let text = assignments(&from, &to);
        assert_eq!(
            String::from_utf8_lossy(&text),
            "SET @@session.x=DEFAULT,@@session.sql_mode=_utf8mb4'',@@session.y=2.5"
        );
    }

    fn based(variables: &[(&str, &str)], basis: &[(&str, &str)]) -> SessionState {
        let values = basis
            .iter()
            .map(|(name, value)| (Box::from(*name), value.as_bytes().into()));
        let mut state = SessionState {
            basis: Rc::new(Basis::new(values.collect())),
            ..SessionState::default()
        };
        for (name, value) in variables {
            state.set(name, Value::Reported(value.as_bytes().into()));
        }
        state
    }

    #[test]
    fn what_globals_were_at_the_login_is_set_where_they_are_others() {
        let text = |from: &SessionState, to: &SessionState| {
            String::from_utf8_lossy(&assignments(from, to)).into_owned()
        };
        let before = based(
            &[("sql_mode", "ANSI")],
            &[
                ("autocommit", "1"),
                ("sql_mode", ""),
                ("time_zone", "SYSTEM"),
            ],
        );
        let after = based(
            &[],
            &[
                ("autocommit", "0"),
                ("sql_mode", ""),
                ("time_zone", "SYSTEM"),
            ],
        );
        assert_eq!(
            text(&after, &before),
            "SET @@session.sql_mode=_utf8mb4'ANSI',@@session.autocommit=1"
        );
        // DEFAULT would be what the global value is now.
        assert_eq!(
            text(&before, &after),
            "SET @@session.sql_mode=_utf8mb4'',@@session.autocommit=0"
        );
        let set = based(&[("autocommit", "OFF")], &[("autocommit", "1")]);
        let same = based(&[], &[("autocommit", "0")]);
        assert_eq!(text(&same, &set), "");
        assert!(set.is_off("autocommit") && same.is_off("autocommit"));
        let back = based(&[("autocommit", "ON")], &[("autocommit", "1")]);
        assert!(back.variables.is_empty(), "it is what it was");
    }

    #[test]
    fn what_a_set_may_not_take_back_is_reset() {
        let plain = state("", &[("sql_mode", "ANSI"), ("sort_buffer_size", "1000")]);
        let one_way = state("", &[("require_row_format", "ON")]);
        let none = SessionState::default();
        assert!(!needs_reset(&plain, &none));
        assert!(needs_reset(&one_way, &none));
        assert!(!needs_reset(&one_way, &one_way));
        assert!(!needs_reset(&none, &one_way));
    }

    #[test]
    fn results_that_were_set_apart_stay_apart() {
        let charsets = [
            ("character_set_client", "utf8mb4"),
            ("character_set_results", "utf8mb4"),
            ("collation_connection", "utf8mb4_bin"),
        ];
        let mut to = state("", &charsets);
        let names = b"utf8mb4 COLLATE utf8mb4_bin".as_slice();
        to.set(NAMES, Value::Literal(names.into()));
        let from = SessionState::default();
        let text = |set: Vec<u8>| String::from_utf8_lossy(&set).into_owned();
        assert_eq!(results_by_names(&to), Some(&b"utf8mb4_bin"[..]));
        assert_eq!(
            text(assignments(&from, &to)),
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin"
        );
        let apart = Value::Literal(b"utf8mb4".as_slice().into());
        to.set("character_set_results", apart);
        assert_eq!(results_by_names(&to), None);
        assert_eq!(
            text(assignments(&from, &to)),
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin,@@session.character_set_results=utf8mb4"
        );
    }

    #[test]
    fn names_are_set_as_they_were() {
        let mut to = state(
            "",
            &[
                ("character_set_client", "utf8mb4"),
                ("character_set_results", "latin1"),
                ("collation_connection", "utf8mb4_bin"),
                ("time_zone", "+01:00"),
                ("system_versioning_asof", "2024-01-01"),
            ],
        );
        to.set(
            NAMES,
            Value::Literal(b"utf8mb4 COLLATE utf8mb4_bin".as_slice().into()),
        );
        let from = state("", &[("unique_checks", "OFF")]);
        let text = |set: Vec<u8>| String::from_utf8_lossy(&set).into_owned();
        assert_eq!(
            text(assignments(&from, &to)),
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin,@@session.character_set_results=_utf8mb4'latin1',\
             @@session.unique_checks=@@global.unique_checks,@@session.time_zone=_utf8mb4'+01:00'"
        );
        assert_eq!(
            text(late_assignment(&from, &to)),
            "SET @@session.system_versioning_asof=_utf8mb4'2024-01-01'"
        );
    }

    #[test]
    fn awkward_values_become_hexadecimal() {
        let to = state("", &[("lc_messages", "a'b\\c")]);
        let text = assignments(&SessionState::default(), &to);
        assert_eq!(
            String::from_utf8_lossy(&text),
            "SET @@session.lc_messages=_utf8mb4 x'6127625C63'"
        );
    }

    #[test]
    fn nothing_to_do_costs_nothing() {
        let (mut out, mut steps) = (Vec::new(), Vec::new());
        let same = state("a", &[("sql_mode", "ANSI")]);
        difference(&same, &same, true, &mut out, &mut steps);
        assert!(out.is_empty() && steps.is_empty());
    }
}
