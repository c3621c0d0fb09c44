//! Positions of servers without GTIDs: binary-log coordinates. They say how far one source is, and only
//! servers that replicate from it directly can be compared by them.

use std::fmt;
use std::sync::Arc;

/// Bits of an offset. A file that has grown beyond has no coordinates.
const OFFSET_BITS: u32 = 40;

/// A place in a server's binary log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPosition {
    /// None where no server can be known to be as far.
    source: Option<Arc<Source>>,
    /// The file's number, then the offset in it: it grows with the log.
    at: u64,
}

/// Whose log it is.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    /// Its server_uuid.
    server: Box<str>,
    /// The files' name up to the number: `binlog` of `binlog.000123`.
    base: Box<str>,
}

impl LogPosition {
    /// What a server says of itself or of its source: its server_uuid, `binlog.000123`, an offset.
    pub(super) fn new(server: &str, file: &str, offset: u64) -> Option<Self> {
        let (base, number) = file.rsplit_once('.')?;
        let number = super::number(number.as_bytes())?;
        let fits = number >> (u64::BITS - OFFSET_BITS) == 0 && offset >> OFFSET_BITS == 0;
        if server.is_empty() || !fits {
            return None;
        }
        let source = Source {
            server: server.into(),
            base: base.into(),
        };
        Some(LogPosition {
            source: Some(Arc::new(source)),
            at: number << OFFSET_BITS | offset,
        })
    }

    /// Beyond all positions: where two have to be reached that cannot be compared.
    pub(super) fn nowhere() -> Self {
        LogPosition {
            source: None,
            at: u64::MAX,
        }
    }

    /// The file and the offset in it, as servers write them; none where there is no such place.
    pub fn coordinates(&self) -> Option<(String, u64)> {
        let source = self.source.as_ref()?;
        let file = self.at >> OFFSET_BITS;
        let name = format!("{}.{file:06}", source.base);
        Some((name, self.at & ((1 << OFFSET_BITS) - 1)))
    }

    /// Whether they are places in one log.
    pub(super) fn is_comparable(&self, other: &LogPosition) -> bool {
        self.source.is_some() && self.source == other.source
    }

    pub(super) fn contains(&self, other: &LogPosition) -> bool {
        self.is_comparable(other) && self.at >= other.at
    }

    /// Roughly how many transactions: the log tells bytes.
    pub(super) fn lacks(&self, other: &LogPosition) -> u64 {
        const TYPICAL: u32 = 9;
        if !self.is_comparable(other) {
            return u64::MAX;
        }
        match other.at.checked_sub(self.at) {
            None | Some(0) => 0,
            Some(bytes) => (bytes >> TYPICAL) + 1,
        }
    }

    pub(super) fn union(&mut self, other: &LogPosition) {
        match self.is_comparable(other) {
            true => self.at = self.at.max(other.at),
            false => *self = LogPosition::nowhere(),
        }
    }

    /// The lower of both.
    pub(super) fn intersect(&mut self, other: &LogPosition) {
        if self.is_comparable(other) {
            self.at = self.at.min(other.at);
        }
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.coordinates() {
            Some((file, offset)) => write!(f, "{file}:{offset}"),
            None => f.write_str("nowhere"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Family, GtidSet};

    fn at(server: &str, file: &str, offset: u64) -> GtidSet {
        GtidSet::log(server, file, offset).unwrap()
    }

    #[test]
    fn a_log_only_grows() {
        let table = [
            (("binlog.000007", 200), ("binlog.000007", 199), true),
            (("binlog.000007", 200), ("binlog.000007", 200), true),
            (("binlog.000007", 200), ("binlog.000007", 201), false),
            (("binlog.000008", 4), ("binlog.000007", 9_000_000_000), true),
            (("binlog.999999", 4), ("binlog.1000000", 4), false),
            (("other.000008", 4), ("binlog.000007", 4), false),
        ];
        for (has, wanted, contains) in table {
            let (has, wanted) = (at("a", has.0, has.1), at("a", wanted.0, wanted.1));
            assert_eq!(has.contains(&wanted), contains, "{has} {wanted}");
            assert_eq!(has.lacks(&wanted) == 0, contains, "{has} {wanted}");
        }
        assert_eq!(
            at("a", "binlog.000007", 200).to_string(),
            "binlog.000007:200"
        );
        assert_eq!(at("a", "b.x.1000007", 4).to_string(), "b.x.1000007:4");
        for (server, file) in [("", "binlog.000001"), ("a", "binlog"), ("a", "binlog.x")] {
            assert!(GtidSet::log(server, file, 4).is_none(), "{server} {file}");
        }
    }

    #[test]
    fn what_cannot_be_compared_nobody_has() {
        let (old, new) = (at("a", "binlog.000007", 200), at("b", "binlog.000002", 4));
        let mut both = old.clone();
        both.union(&new);
        for server in [&old, &new, &both] {
            assert!(!server.contains(&both), "{server}");
            assert_eq!(server.lacks(&both), u64::MAX);
        }
        let mut mixed = GtidSet::parse_mysql(b"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7").unwrap();
        mixed.union(&old);
        assert!(!mixed.contains(&old) && !old.contains(&mixed));
        let mut empty = GtidSet::new(Family::MySql);
        empty.union(&old);
        assert_eq!(empty, old);
        empty.union(&GtidSet::new(Family::MySql));
        assert_eq!(empty, old);
    }
}
