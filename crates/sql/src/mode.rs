//! What a session's settings change in how its statements are read. Knows no statement.

use millrace_base::Family;

/// How a client character set's multi-byte characters can hide bytes that look like quotes,
/// backslashes or letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Charset {
    /// Trailing bytes of a character are never below 0x80, and no byte from 0x80 is a blank:
    /// utf8mb3, utf8mb4, ascii, binary, ujis, euckr, …
    #[default]
    AsciiSafe,
    /// `latin1`: as above, but the byte 0xA0 is a blank.
    Latin1,
    /// Other sets of one byte a character (cp1251, koi8r, …). Some have a blank at 0xA0, some a
    /// letter: a statement with bytes from 0x80 outside quotes is not understood.
    SingleByte,
    /// `gbk`: lead 0x81–0xFE, trail 0x40–0x7E or 0x80–0xFE.
    Gbk,
    /// `sjis` and `cp932`: lead 0x81–0x9F or 0xE0–0xFC, trail 0x40–0x7E or 0x80–0xFC.
    Sjis,
    /// `big5`: lead 0xA1–0xF9, trail 0x40–0x7E or 0xA1–0xFE.
    Big5,
    /// `gb18030`: two bytes as in GBK, or four (lead, digit, lead, digit).
    Gb18030,
}

/// Everything outside a statement's text that changes how it is read. Two sessions with equal
/// modes read the same text the same way, so it can be part of a memo's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LexMode {
    /// Whose grammar.
    pub family: Family,
    /// The server's version as `major * 10000 + minor * 100 + patch` (90704, 101119): decides
    /// which `/*!NNNNNN … */` bodies are executed.
    pub version: u32,
    /// `character_set_client`.
    pub charset: Charset,
    /// `sql_mode` has ANSI_QUOTES: `"x"` is an identifier.
    pub ansi_quotes: bool,
    /// `sql_mode` has NO_BACKSLASH_ESCAPES: `\` is an ordinary character in strings.
    pub no_backslash_escapes: bool,
    /// `sql_mode` (or the client's capability) has IGNORE_SPACE: blanks may stand between a
    /// built-in function's name and its `(`.
    pub ignore_space: bool,
    /// MariaDB's `sql_mode` has ORACLE.
    pub oracle_mode: bool,
    /// MariaDB's `sql_mode` has MSSQL: `[x]` is an identifier.
    pub bracket_quotes: bool,
}

impl LexMode {
    /// The mode of a session with the server's default settings (utf8mb4, no special `sql_mode`).
    pub fn new(family: Family, version: u32) -> Self {
        LexMode {
            family,
            version,
            charset: Charset::AsciiSafe,
            ansi_quotes: false,
            no_backslash_escapes: false,
            ignore_space: false,
            oracle_mode: false,
            bracket_quotes: false,
        }
    }

    /// Takes over those parts of a `sql_mode` value, as the server reports it
    /// (`ANSI_QUOTES,NO_BACKSLASH_ESCAPES,…`), that change how statements are read.
    pub fn set_sql_mode(&mut self, value: &[u8]) {
        self.ansi_quotes = false;
        self.no_backslash_escapes = false;
        self.ignore_space = false;
        self.oracle_mode = false;
        self.bracket_quotes = false;
        for word in value.split(|b| *b == b',') {
            self.add_sql_mode(word.trim_ascii());
        }
    }

    fn add_sql_mode(&mut self, word: &[u8]) {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let old = ["DB2", "MAXDB", "MSSQL", "ORACLE", "POSTGRESQL"];
        let combined = is("ANSI") || old.iter().any(|name| is(name));
        self.ansi_quotes |= is("ANSI_QUOTES") || combined;
        self.ignore_space |= is("IGNORE_SPACE") || combined;
        self.no_backslash_escapes |= is("NO_BACKSLASH_ESCAPES");
        let maria = self.family == Family::MariaDb;
        self.oracle_mode |= is("ORACLE") && maria;
        self.bracket_quotes |= is("MSSQL") && maria;
    }
}

impl Charset {
    /// By the character set's name, in any case. ucs2, utf16 and utf32 cannot be a client's
    /// character set.
    pub fn from_name(name: &[u8]) -> Self {
        const SINGLE: [&str; 23] = [
            "armscii8", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "dec8",
            "geostd8", "greek", "hebrew", "hp8", "keybcs2", "koi8r", "koi8u", "latin2", "latin5",
            "latin7", "macce", "macroman", "swe7", "tis620",
        ];
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("gbk") {
            Charset::Gbk
        } else if is("sjis") || is("cp932") {
            Charset::Sjis
        } else if is("big5") {
            Charset::Big5
        } else if is("gb18030") {
            Charset::Gb18030
        } else if is("latin1") {
            Charset::Latin1
        } else if SINGLE.iter().any(|single| is(single)) {
            Charset::SingleByte
        } else {
            Charset::AsciiSafe
        }
    }

    /// By a collation's number, as in the handshake and COM_CHANGE_USER. The numbers are those of
    /// both families' `information_schema.collations`; MariaDB's NOPAD collations are the older
    /// ones with 1024 added.
    pub fn from_collation_id(id: u16) -> Self {
        let id = if (1025..2048).contains(&id) {
            id - 1024
        } else {
            id
        };
        match id {
            1 | 84 => Charset::Big5,
            13 | 88 | 95 | 96 => Charset::Sjis,
            28 | 87 => Charset::Gbk,
            248..=250 => Charset::Gb18030,
            5 | 8 | 15 | 31 | 47 | 48 | 49 | 94 => Charset::Latin1,
            _ if is_single_byte(id) => Charset::SingleByte,
            _ => Charset::AsciiSafe,
        }
    }
}

/// The collations of character sets of one byte, but latin1, ascii and binary.
fn is_single_byte(id: u16) -> bool {
    matches!(
        id,
        2..=4 | 6 | 7 | 9 | 10 | 14 | 16 | 18 | 20..=23 | 25..=27 | 29 | 30 | 32 | 34 | 36..=44
            | 50..=53 | 57..=59 | 64 | 66..=75 | 77..=82 | 89 | 92 | 93 | 99
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_modes_are_taken_over() {
        let mut mode = LexMode::new(Family::MariaDb, 101119);
        mode.set_sql_mode(b"STRICT_TRANS_TABLES,ansi_quotes, NO_BACKSLASH_ESCAPES");
        assert!(mode.ansi_quotes && mode.no_backslash_escapes && !mode.ignore_space);
        mode.set_sql_mode(b"PIPES_AS_CONCAT,IGNORE_SPACE,ORACLE");
        assert!(mode.oracle_mode && mode.ignore_space && !mode.no_backslash_escapes);
        mode.set_sql_mode(b"");
        assert_eq!(mode, LexMode::new(Family::MariaDb, 101119));
    }

    #[test]
    fn character_sets_by_name_and_number() {
        assert_eq!(Charset::from_name(b"GBK"), Charset::Gbk);
        assert_eq!(Charset::from_name(b"utf8mb4"), Charset::AsciiSafe);
        assert_eq!(Charset::from_name(b"cp1251"), Charset::SingleByte);
        for (id, charset) in [
            (28, Charset::Gbk),
            (1111, Charset::Gbk),
            (95, Charset::Sjis),
            (1, Charset::Big5),
            (250, Charset::Gb18030),
            (8, Charset::Latin1),
            (1071, Charset::Latin1),
            (51, Charset::SingleByte),
            (255, Charset::AsciiSafe),
            (45, Charset::AsciiSafe),
            (33, Charset::AsciiSafe),
            (2304, Charset::AsciiSafe),
        ] {
            assert_eq!(Charset::from_collation_id(id), charset, "{id}");
        }
    }
}
