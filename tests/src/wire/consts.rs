//! The protocol's numbers and their names. Source: the MySQL and MariaDB protocol manuals.

/// Capability flags; bits 32 and up are MariaDB's extended ones.
pub mod cap {
    pub const LONG_PASSWORD: u64 = 1;
    pub const FOUND_ROWS: u64 = 1 << 1;
    pub const LONG_FLAG: u64 = 1 << 2;
    pub const CONNECT_WITH_DB: u64 = 1 << 3;
    pub const NO_SCHEMA: u64 = 1 << 4;
    pub const COMPRESS: u64 = 1 << 5;
    pub const ODBC: u64 = 1 << 6;
    pub const LOCAL_FILES: u64 = 1 << 7;
    pub const IGNORE_SPACE: u64 = 1 << 8;
    pub const PROTOCOL_41: u64 = 1 << 9;
    pub const INTERACTIVE: u64 = 1 << 10;
    pub const SSL: u64 = 1 << 11;
    pub const TRANSACTIONS: u64 = 1 << 13;
    pub const SECURE_CONNECTION: u64 = 1 << 15;
    pub const MULTI_STATEMENTS: u64 = 1 << 16;
    pub const MULTI_RESULTS: u64 = 1 << 17;
    pub const PS_MULTI_RESULTS: u64 = 1 << 18;
    pub const PLUGIN_AUTH: u64 = 1 << 19;
    pub const CONNECT_ATTRS: u64 = 1 << 20;
    pub const PLUGIN_AUTH_LENENC: u64 = 1 << 21;
    pub const EXPIRED_PASSWORDS: u64 = 1 << 22;
    pub const SESSION_TRACK: u64 = 1 << 23;
    pub const DEPRECATE_EOF: u64 = 1 << 24;
    pub const OPTIONAL_METADATA: u64 = 1 << 25;
    pub const ZSTD: u64 = 1 << 26;
    pub const QUERY_ATTRIBUTES: u64 = 1 << 27;
    pub const MARIADB_PROGRESS: u64 = 1 << 32;
    pub const MARIADB_COM_MULTI: u64 = 1 << 33;
    pub const MARIADB_BULK: u64 = 1 << 34;
    pub const MARIADB_EXTENDED_METADATA: u64 = 1 << 35;
    pub const MARIADB_CACHE_METADATA: u64 = 1 << 36;

    /// What a current client library asks for, without compression, TLS and client options.
    pub const MODERN: u64 = LONG_PASSWORD
        | LONG_FLAG
        | PROTOCOL_41
        | TRANSACTIONS
        | SECURE_CONNECTION
        | MULTI_RESULTS
        | PS_MULTI_RESULTS
        | PLUGIN_AUTH
        | PLUGIN_AUTH_LENENC
        | SESSION_TRACK
        | DEPRECATE_EOF
        | LOCAL_FILES
        | MULTI_STATEMENTS;

    /// What a client library of the 5.5 era asks for.
    pub const LEGACY: u64 = MODERN & !(SESSION_TRACK | DEPRECATE_EOF | PLUGIN_AUTH_LENENC);

    /// Names for scripts and transcripts.
    pub const NAMES: &[(&str, u64)] = &[
        ("LONG_PASSWORD", LONG_PASSWORD),
        ("FOUND_ROWS", FOUND_ROWS),
        ("LONG_FLAG", LONG_FLAG),
        ("CONNECT_WITH_DB", CONNECT_WITH_DB),
        ("NO_SCHEMA", NO_SCHEMA),
        ("COMPRESS", COMPRESS),
        ("ODBC", ODBC),
        ("LOCAL_FILES", LOCAL_FILES),
        ("IGNORE_SPACE", IGNORE_SPACE),
        ("PROTOCOL_41", PROTOCOL_41),
        ("INTERACTIVE", INTERACTIVE),
        ("SSL", SSL),
        ("TRANSACTIONS", TRANSACTIONS),
        ("SECURE_CONNECTION", SECURE_CONNECTION),
        ("MULTI_STATEMENTS", MULTI_STATEMENTS),
        ("MULTI_RESULTS", MULTI_RESULTS),
        ("PS_MULTI_RESULTS", PS_MULTI_RESULTS),
        ("PLUGIN_AUTH", PLUGIN_AUTH),
        ("CONNECT_ATTRS", CONNECT_ATTRS),
        ("PLUGIN_AUTH_LENENC", PLUGIN_AUTH_LENENC),
        ("EXPIRED_PASSWORDS", EXPIRED_PASSWORDS),
        ("SESSION_TRACK", SESSION_TRACK),
        ("DEPRECATE_EOF", DEPRECATE_EOF),
        ("OPTIONAL_METADATA", OPTIONAL_METADATA),
        ("ZSTD", ZSTD),
        ("QUERY_ATTRIBUTES", QUERY_ATTRIBUTES),
        ("MARIADB_PROGRESS", MARIADB_PROGRESS),
        ("MARIADB_COM_MULTI", MARIADB_COM_MULTI),
        ("MARIADB_BULK", MARIADB_BULK),
        ("MARIADB_EXTENDED_METADATA", MARIADB_EXTENDED_METADATA),
        ("MARIADB_CACHE_METADATA", MARIADB_CACHE_METADATA),
    ];
}

/// Command bytes.
pub mod com {
    pub const SLEEP: u8 = 0x00;
    pub const QUIT: u8 = 0x01;
    pub const INIT_DB: u8 = 0x02;
    pub const QUERY: u8 = 0x03;
    pub const FIELD_LIST: u8 = 0x04;
    pub const STATISTICS: u8 = 0x09;
    pub const PROCESS_INFO: u8 = 0x0a;
    pub const PROCESS_KILL: u8 = 0x0c;
    pub const DEBUG: u8 = 0x0d;
    pub const PING: u8 = 0x0e;
    pub const CHANGE_USER: u8 = 0x11;
    pub const STMT_PREPARE: u8 = 0x16;
    pub const STMT_EXECUTE: u8 = 0x17;
    pub const STMT_SEND_LONG_DATA: u8 = 0x18;
    pub const STMT_CLOSE: u8 = 0x19;
    pub const STMT_RESET: u8 = 0x1a;
    pub const SET_OPTION: u8 = 0x1b;
    pub const STMT_FETCH: u8 = 0x1c;
    pub const RESET_CONNECTION: u8 = 0x1f;
    pub const STMT_BULK_EXECUTE: u8 = 0xfa;
}

/// Bits of the status field of OK and EOF packets.
pub(crate) mod status {
    pub(crate) const MORE_RESULTS: u16 = 0x0008;
    pub(crate) const CURSOR_EXISTS: u16 = 0x0040;
    pub(crate) const STATE_CHANGED: u16 = 0x4000;

    pub(crate) const NAMES: &[(&str, u64)] = &[
        ("IN_TRANS", 0x0001),
        ("AUTOCOMMIT", 0x0002),
        ("MORE_RESULTS", 0x0008),
        ("NO_GOOD_INDEX", 0x0010),
        ("NO_INDEX", 0x0020),
        ("CURSOR_EXISTS", 0x0040),
        ("LAST_ROW_SENT", 0x0080),
        ("DB_DROPPED", 0x0100),
        ("NO_BACKSLASH_ESCAPES", 0x0200),
        ("METADATA_CHANGED", 0x0400),
        ("SLOW", 0x0800),
        ("PS_OUT_PARAMS", 0x1000),
        ("IN_TRANS_READONLY", 0x2000),
        ("STATE_CHANGED", 0x4000),
        ("ANSI_QUOTES", 0x8000),
    ];
}

/// Column types.
pub(crate) mod typ {
    pub(crate) const TINY: u8 = 1;
    pub(crate) const SHORT: u8 = 2;
    pub(crate) const LONG: u8 = 3;
    pub(crate) const FLOAT: u8 = 4;
    pub(crate) const DOUBLE: u8 = 5;
    pub(crate) const NULL: u8 = 6;
    pub(crate) const TIMESTAMP: u8 = 7;
    pub(crate) const LONGLONG: u8 = 8;
    pub(crate) const INT24: u8 = 9;
    pub(crate) const DATE: u8 = 10;
    pub(crate) const TIME: u8 = 11;
    pub(crate) const DATETIME: u8 = 12;
    pub(crate) const YEAR: u8 = 13;
    pub(crate) const NEWDECIMAL: u8 = 246;
    pub(crate) const BLOB: u8 = 252;
    pub(crate) const VAR_STRING: u8 = 253;

    /// Column flag: the integer is unsigned.
    pub(crate) const UNSIGNED_FLAG: u16 = 32;
}

/// Turns bit sets into names and back.
#[derive(Debug)]
pub struct ProtocolNames;

impl ProtocolNames {
    /// The names of the set bits, joined by `|`; unknown bits as one hexadecimal number.
    pub fn flags(bits: u64, names: &[(&str, u64)]) -> String {
        let mut out: Vec<String> = Vec::new();
        let mut rest = bits;
        for (name, bit) in names {
            if bits & bit != 0 {
                out.push((*name).to_owned());
                rest &= !bit;
            }
        }
        if rest != 0 {
            out.push(format!("{rest:#x}"));
        }
        out.join("|")
    }

    /// The capability of this name.
    pub fn capability(name: &str) -> Option<u64> {
        cap::NAMES
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, bit)| *bit)
    }
}
