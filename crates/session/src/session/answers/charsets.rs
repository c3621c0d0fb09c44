//! How results that Millrace makes itself name their character set. Converts nothing.

use millrace_sql::Family;

/// The default collation of each character set that results can have, and the most bytes that a
/// character takes, as both families' servers send them with the columns of SHOW WARNINGS (observed;
/// utf8mb4's differs). Without those whose text is not ASCII's bytes: there the columns' names are
/// other bytes, too.
const CHARSETS: [(&str, u16, u32); 30] = [
    ("armscii8", 32, 1),
    ("ascii", 11, 1),
    ("big5", 1, 2),
    ("binary", 63, 1),
    ("cp1250", 26, 1),
    ("cp1251", 51, 1),
    ("cp1256", 57, 1),
    ("cp1257", 59, 1),
    ("cp850", 4, 1),
    ("cp932", 95, 2),
    ("dec8", 3, 1),
    ("eucjpms", 97, 3),
    ("euckr", 19, 2),
    ("gb18030", 248, 4),
    ("gb2312", 24, 2),
    ("gbk", 28, 2),
    ("greek", 25, 1),
    ("hebrew", 16, 1),
    ("koi8r", 7, 1),
    ("latin1", 8, 1),
    ("latin2", 9, 1),
    ("latin5", 30, 1),
    ("latin7", 41, 1),
    ("sjis", 13, 2),
    ("swe7", 10, 1),
    ("tis620", 18, 1),
    ("ujis", 12, 3),
    ("utf8", 33, 3),
    ("utf8mb3", 33, 3),
    ("utf8mb4", 255, 4),
];

/// Where results are not converted (`character_set_results` is NULL): the messages' own, utf8mb3.
pub(super) const UNCONVERTED: (u16, u32) = (33, 3);

/// The collation and the bytes for each character; none where it is not known.
pub(in crate::session) fn of_results(charset: &[u8], family: Family) -> Option<(u16, u32)> {
    let known = CHARSETS
        .iter()
        .find(|(name, ..)| name.as_bytes() == charset)?;
    Some(match (known, family) {
        (("utf8mb4", ..), Family::MariaDb) => (45, 4),
        ((_, collation, width), _) => (*collation, *width),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_guessed() {
        assert_eq!(of_results(b"cp1251", Family::MySql), Some((51, 1)));
        assert_eq!(of_results(b"utf8mb4", Family::MySql), Some((255, 4)));
        assert_eq!(of_results(b"utf8mb4", Family::MariaDb), Some((45, 4)));
        assert_eq!(of_results(b"utf16", Family::MySql), None);
        assert!(CHARSETS.is_sorted_by_key(|(name, ..)| name));
    }
}
