//! Capability flags that client and server exchange in the handshake. Owns their
//! numbers; decides nothing about which to use.

use bitflags::bitflags;

bitflags! {
    /// Capability flags. The lower half is MySQL's (MySQL manual, "Capabilities
    /// Flags"); the upper half is MariaDB's extension, which a side sends only with
    /// [`LONG_PASSWORD`](Self::LONG_PASSWORD) clear (MariaDB manual, "Connection").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u64 {
        /// Set by MySQL and its clients. MariaDB calls it CLIENT_MYSQL: clear, it says
        /// that the extended flags follow.
        const LONG_PASSWORD = 1;
        /// Affected rows count the matched rows, not the changed ones.
        const FOUND_ROWS = 1 << 1;
        const LONG_FLAG = 1 << 2;
        const CONNECT_WITH_DB = 1 << 3;
        const NO_SCHEMA = 1 << 4;
        /// Compression with zlib.
        const COMPRESS = 1 << 5;
        const ODBC = 1 << 6;
        const LOCAL_FILES = 1 << 7;
        const IGNORE_SPACE = 1 << 8;
        const PROTOCOL_41 = 1 << 9;
        const INTERACTIVE = 1 << 10;
        const SSL = 1 << 11;
        const IGNORE_SIGPIPE = 1 << 12;
        const TRANSACTIONS = 1 << 13;
        const RESERVED = 1 << 14;
        /// Authentication by a 20-byte nonce; called CLIENT_RESERVED2 today.
        const SECURE_CONNECTION = 1 << 15;
        const MULTI_STATEMENTS = 1 << 16;
        const MULTI_RESULTS = 1 << 17;
        const PS_MULTI_RESULTS = 1 << 18;
        const PLUGIN_AUTH = 1 << 19;
        const CONNECT_ATTRS = 1 << 20;
        const PLUGIN_AUTH_LENENC = 1 << 21;
        const CAN_HANDLE_EXPIRED_PASSWORDS = 1 << 22;
        const SESSION_TRACK = 1 << 23;
        const DEPRECATE_EOF = 1 << 24;
        const OPTIONAL_RESULTSET_METADATA = 1 << 25;
        const ZSTD_COMPRESSION = 1 << 26;
        const QUERY_ATTRIBUTES = 1 << 27;
        const MULTI_FACTOR = 1 << 28;
        const CAPABILITY_EXTENSION = 1 << 29;
        const SSL_VERIFY_SERVER_CERT = 1 << 30;
        const REMEMBER_OPTIONS = 1 << 31;

        /// MariaDB: progress reports as ERR packets with code 0xFFFF.
        const PROGRESS = 1 << 32;
        const COM_MULTI = 1 << 33;
        /// MariaDB: COM_STMT_BULK_EXECUTE.
        const STMT_BULK_OPERATIONS = 1 << 34;
        /// MariaDB: column definitions carry an extra string.
        const EXTENDED_METADATA = 1 << 35;
        /// MariaDB: the column count says whether definitions follow.
        const CACHE_METADATA = 1 << 36;
        /// MariaDB: a bulk execute may answer with a result per row.
        const BULK_UNIT_RESULTS = 1 << 37;

        const _ = !0;
    }
}

impl Capabilities {
    /// The half that MySQL defines.
    pub const fn basic(self) -> u32 {
        self.bits() as u32
    }

    /// The half that only MariaDB defines.
    pub fn extended(self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// Flags from both halves.
    pub fn from_halves(basic: u32, extended: u32) -> Self {
        Self::from_bits_retain(u64::from(basic) | (u64::from(extended) << 32))
    }

    /// Whether the extended half goes over the wire: bit 0 is clear.
    pub fn has_extended_half(self) -> bool {
        !self.contains(Self::LONG_PASSWORD)
    }
}
