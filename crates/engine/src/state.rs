//! The part of a session that can be set again on any connection. `difference` has the commands that turn one
//! connection's state into another session's.

mod difference;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

pub use difference::{Step, difference, frame_query, write_hex};

/// What a session has set that later statements depend on. Two sessions with equal states are
/// served alike; equal states are usually the same `Rc`.
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
    /// The SQL NULL (`character_set_results` and storage engines).
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
    pub question: String,
}

/// What the question asks for ahead of the basis.
pub const CHARSETS: [&str; 3] = [
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
    pub fn basis(&self, values: impl Iterator<Item = Option<Vec<u8>>>) -> Basis {
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
    "block_encryption_mode",
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
    "max_join_size",
    "max_recursive_iterations",
    "max_sort_length",
    "max_statement_time",
    "old_mode",
    "sql_auto_is_null",
    "sql_big_selects",
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

/// To set the first sets the second, on both families (manuals, "max_join_size"): so the second is set behind it, and asked
/// for where a session has set the first.
pub const SETS_ANOTHER: [&str; 2] = ["max_join_size", "sql_big_selects"];

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
