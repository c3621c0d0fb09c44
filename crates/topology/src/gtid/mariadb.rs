//! MariaDB's positions: per domain the last sequence number. Knows no other family.
//!
//! Within a domain a server's binary log is in the order of sequence numbers, so one number says
//! which transactions have been executed. The server that wrote it is kept for printing only.

use std::fmt;

use smallvec::SmallVec;

use super::{GtidError, number};
use crate::Family;

/// One domain's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    domain: u32,
    server: u32,
    sequence: u64,
}

/// The last sequence number per domain, ordered by domain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MariaDbSet {
    positions: SmallVec<[Position; 1]>,
}

impl MariaDbSet {
    /// Reads `domain-server-sequence,…`. Where a domain is named twice, the higher number counts.
    pub fn parse(text: &[u8]) -> Result<Self, GtidError> {
        let mut set = MariaDbSet::default();
        for item in text.split(|byte| *byte == b',') {
            let item = item.trim_ascii();
            if !item.is_empty() {
                set.add(position(item).ok_or(GtidError {
                    family: Family::MariaDb,
                })?);
            }
        }
        Ok(set)
    }

    /// Adds one identifier.
    pub fn insert(&mut self, domain: u32, server: u32, sequence: u64) {
        self.add(Position {
            domain,
            server,
            sequence,
        });
    }

    pub(super) fn union(&mut self, other: &MariaDbSet) {
        for position in &other.positions {
            self.add(*position);
        }
    }

    /// See [`GtidSet::is_followed_by`](super::GtidSet::is_followed_by).
    pub(super) fn is_followed_by(&self, next: &MariaDbSet) -> bool {
        let [next] = next.positions[..] else {
            return false;
        };
        let own = self.find(next.domain).map(|at| self.positions[at].sequence);
        own.is_ok_and(|own| own.checked_add(1) == Some(next.sequence))
    }

    pub(super) fn intersect(&mut self, other: &MariaDbSet) {
        self.positions
            .retain(|position| match other.find(position.domain) {
                Ok(at) => {
                    let their = other.positions[at];
                    if their.sequence < position.sequence {
                        *position = their;
                    }
                    true
                }
                Err(_) => false,
            });
    }

    pub(super) fn subtract(&mut self, other: &MariaDbSet) {
        self.positions
            .retain(|position| match other.find(position.domain) {
                Ok(at) => other.positions[at].sequence < position.sequence,
                Err(_) => true,
            });
    }

    /// As `contains`, but for domains of which nothing is here.
    pub(super) fn reaches(&self, other: &MariaDbSet) -> bool {
        other
            .positions
            .iter()
            .all(|wanted| match self.find(wanted.domain) {
                Ok(at) => self.positions[at].sequence >= wanted.sequence,
                Err(_) => true,
            })
    }

    /// Leaves the domains of which nothing is in `other`.
    pub(super) fn leave_out_known(&mut self, other: &MariaDbSet) {
        self.positions
            .retain(|position| other.find(position.domain).is_err());
    }

    fn add(&mut self, new: Position) {
        match self.find(new.domain) {
            Ok(at) if self.positions[at].sequence < new.sequence => self.positions[at] = new,
            Ok(_) => {}
            Err(at) => self.positions.insert(at, new),
        }
    }

    fn find(&self, domain: u32) -> Result<usize, usize> {
        self.positions
            .binary_search_by_key(&domain, |position| position.domain)
    }

    pub(super) fn contains(&self, other: &MariaDbSet) -> bool {
        other.positions.iter().all(|wanted| {
            self.find(wanted.domain)
                .is_ok_and(|at| self.positions[at].sequence >= wanted.sequence)
        })
    }

    pub(super) fn lacks(&self, other: &MariaDbSet) -> u64 {
        other.positions.iter().fold(0, |sum: u64, wanted| {
            sum.saturating_add(match self.find(wanted.domain) {
                Ok(at) => wanted.sequence.saturating_sub(self.positions[at].sequence),
                Err(_) => u64::MAX,
            })
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        if self.positions.spilled() {
            self.positions.capacity() * size_of::<Position>()
        } else {
            0
        }
    }
}

/// `domain-server-sequence`.
fn position(text: &[u8]) -> Option<Position> {
    let mut parts = text.split(|byte| *byte == b'-');
    let domain = number(parts.next()?)?.try_into().ok()?;
    let server = number(parts.next()?)?.try_into().ok()?;
    let sequence = number(parts.next()?)?;
    parts.next().is_none().then_some(Position {
        domain,
        server,
        sequence,
    })
}

impl fmt::Display for MariaDbSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, position) in self.positions.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let Position {
                domain,
                server,
                sequence,
            } = position;
            write!(f, "{comma}{domain}-{server}-{sequence}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::GtidSet;

    fn set(text: &str) -> GtidSet {
        GtidSet::parse_mariadb(text.as_bytes()).unwrap()
    }

    #[test]
    fn compares_domain_by_domain() {
        let table = [
            ("0-1-5", "0-1-5", true, 0),
            ("0-1-5", "0-2-4", true, 0),
            ("0-1-5", "0-1-7", false, 2),
            ("0-1-5,1-1-9", "1-1-9", true, 0),
            ("0-1-5", "0-1-5,1-1-1", false, u64::MAX),
            ("", "0-1-1", false, u64::MAX),
            ("0-1-5", "", true, 0),
        ];
        for (has, wanted, contains, lacks) in table {
            assert_eq!(set(has).contains(&set(wanted)), contains, "{has} {wanted}");
            assert_eq!(set(has).lacks(&set(wanted)), lacks, "{has} {wanted}");
        }
    }

    #[test]
    fn keeps_the_highest_of_each_domain() {
        let mut position = set("1-1-3");
        position.insert_text(b"0-7-2, 1-2-9").unwrap();
        position.insert_text(b"1-1-4").unwrap();
        assert_eq!(position.to_string(), "0-7-2,1-2-9");
    }

    #[test]
    fn what_both_have_is_the_lower_of_each_domain() {
        let table = [
            ("0-1-5,1-1-9", "0-2-3,1-1-12,2-1-1", "0-2-3,1-1-9"),
            ("0-1-5", "1-1-5", ""),
            ("0-1-5", "0-1-5", "0-1-5"),
            ("", "0-1-5", ""),
        ];
        for (own, other, both) in table {
            let mut found = set(own);
            found.intersect(&set(other));
            assert_eq!(found.to_string(), both, "{own} and {other}");
        }
    }

    #[test]
    fn domains_that_got_no_further_are_left_out() {
        let mut advanced = set("0-1-9,1-1-4,2-1-1");
        advanced.subtract(&set("0-1-5,1-1-4"));
        assert_eq!(advanced, set("0-1-9,2-1-1"));
        assert!(set("0-1-9").reaches(&advanced), "knows nothing of domain 2");
        assert!(!set("0-1-8,2-1-1").reaches(&advanced));
        let mut never = set("0-1-9,7-1-3");
        never.leave_out_known(&set("0-1-2"));
        assert_eq!(never, set("7-1-3"));
    }

    #[test]
    fn refuses_other_texts_and_stays_as_it_was() {
        let mut position = set("0-1-5");
        for bad in [
            "0-1",
            "0-1-5-6",
            "x-1-2",
            "0-1-",
            "4294967296-1-1",
            "0-1-18446744073709551616",
            "0-1-9,zz",
        ] {
            assert!(position.insert_text(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(position.to_string(), "0-1-5");
    }

    #[test]
    fn one_domain_needs_no_heap() {
        let mut position = set("0-1-5");
        position.insert_text(b"0-1-6").unwrap();
        assert_eq!(position.heap_bytes(), 0);
        position.insert_text(b"1-1-1").unwrap();
        assert!(position.heap_bytes() > 0);
        position.clear();
        assert_eq!(position.heap_bytes(), 0);
        assert!(position.is_empty());
    }
}
