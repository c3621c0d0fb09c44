//! The variables that clients ask of a server, as this listener has them. Reads no statement.

use crate::operators::cell::Cell;

/// What the greeting says. The first part is what clients judge a server's abilities by.
pub(crate) const VERSION: &str = concat!("8.4.0-millrace-", env!("CARGO_PKG_VERSION"));

/// What `@@version_comment` says.
pub(crate) const COMMENT: &str = "Millrace, for operators: SHOW HELP";

/// The longest command, in bytes.
pub(crate) const PACKET_MAX: usize = 64 * 1024;

/// Seconds after which a silent client is disconnected; a server's own default.
pub(crate) const IDLE_MAX_S: u64 = 28_800;

/// The variables that clients ask for, with a server's own defaults where it has some.
pub(crate) fn variables() -> impl Iterator<Item = (&'static str, Cell)> {
    const TEXTS: &[(&str, &str)] = &[
        ("character_set_client", "utf8mb4"),
        ("character_set_connection", "utf8mb4"),
        ("character_set_database", "utf8mb4"),
        ("character_set_results", "utf8mb4"),
        ("character_set_server", "utf8mb4"),
        ("collation_connection", "utf8mb4_general_ci"),
        ("collation_database", "utf8mb4_general_ci"),
        ("collation_server", "utf8mb4_general_ci"),
        ("default_storage_engine", ""),
        ("hostname", ""),
        ("init_connect", ""),
        ("license", "Apache-2.0"),
        ("query_cache_type", "OFF"),
        ("sql_mode", ""),
        ("system_time_zone", "UTC"),
        ("time_zone", "SYSTEM"),
        ("transaction_isolation", "REPEATABLE-READ"),
        ("tx_isolation", "REPEATABLE-READ"),
        ("version", VERSION),
        ("version_comment", COMMENT),
        ("version_compile_os", "Linux"),
    ];
    const NUMBERS: &[(&str, i64)] = &[
        ("auto_increment_increment", 1),
        ("auto_increment_offset", 1),
        ("autocommit", 1),
        ("interactive_timeout", IDLE_MAX_S as i64),
        ("lower_case_table_names", 0),
        ("max_allowed_packet", PACKET_MAX as i64),
        ("net_buffer_length", 16_384),
        ("net_read_timeout", 30),
        ("net_write_timeout", 30),
        ("performance_schema", 0),
        ("protocol_version", 10),
        ("query_cache_size", 0),
        ("read_only", 0),
        ("sql_select_limit", i64::MAX),
        ("transaction_read_only", 0),
        ("tx_read_only", 0),
        ("wait_timeout", IDLE_MAX_S as i64),
    ];
    let texts = TEXTS.iter().map(|(name, text)| (*name, Cell::from(*text)));
    let numbers = NUMBERS
        .iter()
        .map(|(name, number)| (*name, Cell::Int(*number)));
    texts.chain(numbers)
}
