//! Server status flags of OK and EOF packets. Owns their numbers only.

use bitflags::bitflags;

bitflags! {
    /// Status flags (MySQL manual, "Server Status Flags"; the same in MariaDB).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Status: u16 {
        const IN_TRANS = 1;
        const AUTOCOMMIT = 1 << 1;
        /// Another result follows this one.
        const MORE_RESULTS = 1 << 3;
        const NO_GOOD_INDEX_USED = 1 << 4;
        const NO_INDEX_USED = 1 << 5;
        const CURSOR_EXISTS = 1 << 6;
        const LAST_ROW_SENT = 1 << 7;
        const DB_DROPPED = 1 << 8;
        const NO_BACKSLASH_ESCAPES = 1 << 9;
        /// A prepared statement was prepared again with other metadata.
        const METADATA_CHANGED = 1 << 10;
        const QUERY_WAS_SLOW = 1 << 11;
        /// This result set holds OUT parameters.
        const PS_OUT_PARAMS = 1 << 12;
        const IN_TRANS_READONLY = 1 << 13;
        /// Session tracking information follows in the OK packet.
        const SESSION_STATE_CHANGED = 1 << 14;
        /// MariaDB: double quotes are an identifier's.
        const ANSI_QUOTES = 1 << 15;

        const _ = !0;
    }
}
