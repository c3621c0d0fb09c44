//! MySQL's sets: per source UUID (and tag, from 8.3 on) the intervals of transaction numbers.
//! Knows no other family.

use std::fmt;

use smallvec::SmallVec;

use super::{GtidError, number};
use crate::Family;

/// Transaction numbers `first..=last`; numbers start at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interval {
    first: u64,
    last: u64,
}

/// One source's transactions under one tag.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    uuid: [u8; 16],
    /// Lower case, at most 32 bytes; none for untagged transactions, which come first.
    tag: Option<Box<str>>,
    /// Ordered, with a gap between any two.
    intervals: SmallVec<[Interval; 1]>,
}

impl Source {
    fn key(&self) -> (&[u8; 16], Option<&str>) {
        (&self.uuid, self.tag.as_deref())
    }

    fn add(&mut self, new: Interval) {
        let list = &mut self.intervals;
        // The usual case by far: the next number, or one past the end.
        match list.last_mut() {
            Some(end) if new.first > end.last.saturating_add(1) => return list.push(new),
            Some(end) if new.first >= end.first => {
                end.last = end.last.max(new.last);
                return;
            }
            None => return list.push(new),
            Some(_) => {}
        }
        let from = list.partition_point(|old| old.last.saturating_add(1) < new.first);
        let to = list.partition_point(|old| old.first <= new.last.saturating_add(1));
        if from == to {
            return list.insert(from, new);
        }
        list[from] = Interval {
            first: list[from].first.min(new.first),
            last: list[to - 1].last.max(new.last),
        };
        list.drain(from + 1..to);
    }

    /// The interval that could hold `number`: the first that ends at or after it.
    fn at(&self, number: u64) -> Option<Interval> {
        let at = self.intervals.partition_point(|old| old.last < number);
        self.intervals.get(at).copied()
    }

    fn holds(&self, wanted: Interval) -> bool {
        self.at(wanted.first)
            .is_some_and(|own| own.first <= wanted.first && own.last >= wanted.last)
    }

    /// How many of the wanted numbers are not here.
    fn lacks(&self, wanted: Interval) -> u64 {
        let from = self
            .intervals
            .partition_point(|old| old.last < wanted.first);
        let present = self.intervals[from..]
            .iter()
            .take_while(|own| own.first <= wanted.last)
            .map(|own| own.last.min(wanted.last) - own.first.max(wanted.first) + 1)
            .sum::<u64>();
        wanted.last - wanted.first + 1 - present
    }

    fn intersect(&mut self, other: &Source) {
        let mut both: SmallVec<[Interval; 1]> = SmallVec::new();
        let (mut here, mut there) = (0, 0);
        while let (Some(own), Some(their)) = (self.intervals.get(here), other.intervals.get(there))
        {
            let (first, last) = (own.first.max(their.first), own.last.min(their.last));
            if first <= last {
                both.push(Interval { first, last });
            }
            if own.last < their.last {
                here += 1;
            } else {
                there += 1;
            }
        }
        self.intervals = both;
    }

    fn subtract(&mut self, other: &Source) {
        let mut rest: SmallVec<[Interval; 1]> = SmallVec::new();
        for own in &self.intervals {
            let mut from = own.first;
            let begins = other.intervals.partition_point(|their| their.last < from);
            for their in &other.intervals[begins..] {
                if their.first > own.last || from > own.last {
                    break;
                }
                if their.first > from {
                    rest.push(Interval {
                        first: from,
                        last: their.first - 1,
                    });
                }
                from = their.last.saturating_add(1);
            }
            if from <= own.last {
                rest.push(Interval {
                    first: from,
                    last: own.last,
                });
            }
        }
        self.intervals = rest;
    }

    /// See [`GtidSet::coalesce`](super::GtidSet::coalesce). `known`: of this source. `open_max`: so many
    /// intervals may be left beyond its end.
    fn coalesce(&mut self, intervals_max: usize, known: Option<&Source>, open_max: usize) {
        let list = &mut self.intervals;
        if list.len() <= intervals_max.max(1) {
            return;
        }
        if let Some(known) = known {
            let mut kept: SmallVec<[Interval; 1]> = SmallVec::new();
            for interval in list.iter() {
                match kept.last_mut() {
                    Some(end)
                        if known.holds(Interval {
                            first: end.last + 1,
                            last: interval.first - 1,
                        }) =>
                    {
                        end.last = interval.last;
                    }
                    _ => kept.push(*interval),
                }
            }
            *list = kept;
        }
        let end = known.and_then(|known| known.intervals.last());
        let open_from = list.partition_point(|own| end.is_some_and(|end| own.first <= end.last));
        let Some(surplus) = (list.len() - open_from).checked_sub(open_max) else {
            return;
        };
        if surplus == 0 {
            return;
        }
        let mut gaps: Vec<(u64, u64)> = list[open_from..]
            .windows(2)
            .map(|pair| (pair[1].first - pair[0].last, pair[0].last))
            .collect();
        gaps.sort_unstable();
        let mut closed: Vec<u64> = gaps[..surplus].iter().map(|(_, end)| *end).collect();
        closed.sort_unstable();
        let mut kept: SmallVec<[Interval; 1]> = SmallVec::new();
        let mut joins = false;
        for interval in list.iter() {
            match kept.last_mut() {
                Some(end) if joins => end.last = interval.last,
                _ => kept.push(*interval),
            }
            joins = closed.binary_search(&interval.last).is_ok();
        }
        *list = kept;
    }
}

/// For each interval that a set is to be bounded to, so many may be open for a while: how long it takes until
/// the servers' own sets tell.
const OPEN_GAPS: usize = 8;

/// Transactions per source and tag, ordered by both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MySqlSet {
    sources: SmallVec<[Source; 1]>,
}

impl MySqlSet {
    /// Reads `uuid:interval[:interval…][:tag:interval…],…`. Blanks and line ends may stand between
    /// items, as the server prints them; an interval whose end is below its start is empty.
    pub fn parse(text: &[u8]) -> Result<Self, GtidError> {
        let mut set = MySqlSet::default();
        for item in text.split(|byte| *byte == b',') {
            let item = item.trim_ascii();
            if !item.is_empty() {
                set.parse_item(item).ok_or(GtidError {
                    family: Family::MySql,
                })?;
            }
        }
        Ok(set)
    }

    fn parse_item(&mut self, item: &[u8]) -> Option<()> {
        let mut parts = item.split(|byte| *byte == b':').map(<[u8]>::trim_ascii);
        let uuid = uuid(parts.next()?)?;
        let mut tag: Option<Box<str>> = None;
        let mut intervals = 0;
        for part in parts {
            if part.first()?.is_ascii_digit() {
                intervals += 1;
                if let Some(interval) = interval(part)? {
                    self.source(&uuid, tag.as_deref()).add(interval);
                }
            } else {
                tag = Some(self::tag(part)?);
                intervals = 0;
            }
        }
        (intervals > 0).then_some(())
    }

    /// Adds transactions `first..=last` of a source.
    pub fn insert(&mut self, uuid: [u8; 16], first: u64, last: u64) {
        if first <= last {
            self.source(&uuid, None).add(Interval { first, last });
        }
    }

    fn find(&self, key: (&[u8; 16], Option<&str>)) -> Result<usize, usize> {
        self.sources
            .binary_search_by(|source| source.key().cmp(&key))
    }

    fn source(&mut self, uuid: &[u8; 16], tag: Option<&str>) -> &mut Source {
        let at = self.find((uuid, tag)).unwrap_or_else(|at| {
            let new = Source {
                uuid: *uuid,
                tag: tag.map(Into::into),
                intervals: SmallVec::new(),
            };
            self.sources.insert(at, new);
            at
        });
        &mut self.sources[at]
    }

    pub(super) fn union(&mut self, other: &MySqlSet) {
        for source in &other.sources {
            let own = self.source(&source.uuid, source.tag.as_deref());
            for interval in &source.intervals {
                own.add(*interval);
            }
        }
    }

    /// See [`GtidSet::is_followed_by`](super::GtidSet::is_followed_by).
    pub(super) fn is_followed_by(&self, next: &MySqlSet) -> bool {
        let [source] = &next.sources[..] else {
            return false;
        };
        let [one] = source.intervals[..] else {
            return false;
        };
        let own = self.find(source.key()).map(|at| &self.sources[at]);
        one.first == one.last
            && own.is_ok_and(|own| {
                let follows = |interval: &Interval| interval.last.checked_add(1) == Some(one.first);
                own.intervals.iter().any(follows)
            })
    }

    pub(super) fn intersect(&mut self, other: &MySqlSet) {
        self.sources
            .retain(|source| match other.find(source.key()) {
                Ok(at) => {
                    source.intersect(&other.sources[at]);
                    !source.intervals.is_empty()
                }
                Err(_) => false,
            });
    }

    /// Leaves only sources that `other` has something of.
    pub(super) fn keep_sources_of(&mut self, other: &MySqlSet) {
        self.sources
            .retain(|source| other.find(source.key()).is_ok());
    }

    pub(super) fn subtract(&mut self, other: &MySqlSet) {
        self.sources
            .retain(|source| match other.find(source.key()) {
                Ok(at) => {
                    source.subtract(&other.sources[at]);
                    !source.intervals.is_empty()
                }
                Err(_) => true,
            });
    }

    pub(super) fn contains(&self, other: &MySqlSet) -> bool {
        other.sources.iter().all(|wanted| {
            self.find(wanted.key()).is_ok_and(|at| {
                let own = &self.sources[at];
                wanted.intervals.iter().all(|interval| own.holds(*interval))
            })
        })
    }

    pub(super) fn lacks(&self, other: &MySqlSet) -> u64 {
        other.sources.iter().fold(0, |sum: u64, wanted| {
            sum.saturating_add(match self.find(wanted.key()) {
                Ok(at) => wanted
                    .intervals
                    .iter()
                    .map(|interval| self.sources[at].lacks(*interval))
                    .fold(0, u64::saturating_add),
                Err(_) => u64::MAX,
            })
        })
    }

    pub(super) fn coalesce(&mut self, intervals_max: usize, known: Option<&MySqlSet>) {
        // Where it is known what exists, some of the gaps beyond are open for good, and few for long.
        let open_max = if known.is_some() { OPEN_GAPS } else { 1 } * intervals_max.max(1);
        for source in &mut self.sources {
            if source.intervals.len() > intervals_max {
                let of = |known: &MySqlSet| known.find(source.key()).ok();
                let at = known.and_then(of);
                let known = known.zip(at).map(|(known, at)| &known.sources[at]);
                source.coalesce(intervals_max, known, open_max);
            }
        }
    }

    pub(super) fn is_wide(&self, intervals_max: usize) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| source.intervals.len() > intervals_max)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let list = if self.sources.spilled() {
            self.sources.capacity() * size_of::<Source>()
        } else {
            0
        };
        self.sources.iter().fold(list, |sum, source| {
            let intervals = if source.intervals.spilled() {
                source.intervals.capacity() * size_of::<Interval>()
            } else {
                0
            };
            sum + intervals + source.tag.as_ref().map_or(0, |tag| tag.len())
        })
    }
}

/// 32 hexadecimal digits, with dashes after 8, 12, 16 and 20 of them or without any.
fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let dashed = match text.len() {
        36 => true,
        32 => false,
        _ => return None,
    };
    let mut uuid = [0_u8; 16];
    let mut at = 0;
    for (i, byte) in uuid.iter_mut().enumerate() {
        if dashed && matches!(i, 4 | 6 | 8 | 10) {
            if text[at] != b'-' {
                return None;
            }
            at += 1;
        }
        *byte = hex(text[at])? << 4 | hex(text[at + 1])?;
        at += 2;
    }
    Some(uuid)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// A letter or underscore, then up to 31 letters, digits and underscores.
fn tag(text: &[u8]) -> Option<Box<str>> {
    let fits = text.len() <= 32
        && !text.first()?.is_ascii_digit()
        && text.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let text = fits.then(|| text.to_ascii_lowercase())?;
    String::from_utf8(text).ok().map(Into::into)
}

/// `n` or `first-last`. The outer option is none where it is neither, the inner where it is empty.
fn interval(text: &[u8]) -> Option<Option<Interval>> {
    let mut parts = text.split(|byte| *byte == b'-').map(<[u8]>::trim_ascii);
    let first = number(parts.next()?)?;
    let last = parts.next().map_or(Some(first), number)?;
    if first == 0 || last > i64::MAX as u64 || parts.next().is_some() {
        return None;
    }
    Some((first <= last).then_some(Interval { first, last }))
}

impl fmt::Display for MySqlSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before: Option<&[u8; 16]> = None;
        for source in &self.sources {
            if before != Some(&source.uuid) {
                f.write_str(if before.is_some() { "," } else { "" })?;
                write_uuid(f, &source.uuid)?;
            }
            before = Some(&source.uuid);
            if let Some(tag) = &source.tag {
                write!(f, ":{tag}")?;
            }
            for Interval { first, last } in &source.intervals {
                if first == last {
                    write!(f, ":{first}")?;
                } else {
                    write!(f, ":{first}-{last}")?;
                }
            }
        }
        Ok(())
    }
}

fn write_uuid(f: &mut fmt::Formatter<'_>, uuid: &[u8; 16]) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // By hand and in one piece: it is written with every read that waits for a position.
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (i, byte) in uuid.iter().enumerate() {
        at += usize::from(matches!(i, 4 | 6 | 8 | 10));
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 15)];
        at += 2;
    }
    f.write_str(std::str::from_utf8(&text).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::GtidSet;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const B: &str = "4e11fa47-71ca-11e1-9e33-c80aa9429562";

    fn set(text: &str) -> GtidSet {
        let text = text.replace('A', A).replace('B', B);
        GtidSet::parse_mysql(text.as_bytes()).unwrap()
    }

    fn short(set: &GtidSet) -> String {
        set.to_string().replace(A, "A").replace(B, "B")
    }

    #[test]
    fn prints_in_the_servers_syntax() {
        let table = [
            ("", ""),
            ("A:5", "A:5"),
            ("A:1-5", "A:1-5"),
            ("B:1, \nA:7-9:1-3", "A:1-3:7-9,B:1"),
            ("A:1-3:4-6:8", "A:1-6:8"),
            ("A:5-3:9", "A:9"),
            ("A:1-5:Red:1-3:5:blue:9", "A:1-5:blue:9:red:1-3:5"),
            ("A:red:1,A:2", "A:2:red:1"),
        ];
        for (text, expected) in table {
            assert_eq!(short(&set(text)), expected, "{text}");
        }
    }

    #[test]
    fn refuses_other_texts() {
        for bad in [
            "A",
            "A:",
            "A:0",
            "A:x",
            "A:1-2-3",
            "A:red",
            "A:1:red",
            "A:-1",
            "1-2-3",
            "A:1;",
            "A:9223372036854775808",
        ] {
            let text = bad.replace('A', A);
            assert!(GtidSet::parse_mysql(text.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn compares_source_by_source() {
        let table = [
            ("A:1-10", "A:10", true, 0),
            ("A:1-10", "A:11", false, 1),
            ("A:1-4:6-10", "A:5", false, 1),
            ("A:1-4:6-10", "A:3-7", false, 1),
            ("A:1-4:8-10", "A:1-20", false, 13),
            ("A:1-10", "B:1", false, u64::MAX),
            ("A:1-10,B:1-2", "A:4,B:2", true, 0),
            ("A:1-10", "A:red:1", false, u64::MAX),
            ("A:1-10:red:1-5", "A:3:red:5", true, 0),
            ("", "", true, 0),
            ("A:1", "", true, 0),
        ];
        for (has, wanted, contains, lacks) in table {
            assert_eq!(set(has).contains(&set(wanted)), contains, "{has} {wanted}");
            assert_eq!(set(has).lacks(&set(wanted)), lacks, "{has} {wanted}");
        }
    }

    #[test]
    fn coalesce_closes_the_smallest_gaps() {
        let mut required = set("A:1:3:10:1000000");
        required.coalesce(2, None);
        assert_eq!(short(&required), "A:1-10:1000000");
        required.coalesce(2, None);
        assert_eq!(short(&required), "A:1-10:1000000");
        required.coalesce(0, None);
        assert_eq!(short(&required), "A:1-1000000");
    }

    #[test]
    fn coalesce_closes_no_gap_that_stays() {
        let known = set("A:1-5:8-20:1000:2000-2004");
        let mut required = set("A:3:5:8:12:1000:2000:2003:3000:3002");
        assert!(required.is_wide(2));
        required.coalesce(2, Some(&known));
        // 6, 7 and 21 to 999 never were; beyond 2004 nobody knows yet.
        assert_eq!(short(&required), "A:3-5:8-12:1000:2000-2003:3000:3002");
        let mut required = set("A:1:3:7:9");
        required.coalesce(1, Some(&set("B:1")));
        assert_eq!(
            short(&required),
            "A:1:3:7:9",
            "nothing is known of this source"
        );
        let mut jumps = GtidSet::new(Family::MySql);
        for at in 0..100 {
            let text = format!("{A}:{}", 5000 + at * 1000);
            jumps.insert_text(text.as_bytes()).unwrap();
        }
        jumps.coalesce(8, Some(&known));
        let (mut least, kept) = (0, short(&jumps));
        for _ in kept.split(':').skip(1) {
            least += 1;
        }
        assert_eq!(least, 64, "{kept}");
    }

    #[test]
    fn a_sessions_usual_set_needs_no_heap() {
        let mut required = set("A:7");
        required.insert_text(format!("{A}:8").as_bytes()).unwrap();
        assert_eq!(short(&required), "A:7-8");
        assert_eq!(required.heap_bytes(), 0);
        assert!(size_of::<GtidSet>() <= 72);
    }

    fn model(intervals: &[(u64, u64)]) -> BTreeSet<u64> {
        intervals.iter().flat_map(|(a, n)| *a..=a + n).collect()
    }

    fn build(intervals: &[(u64, u64)]) -> MySqlSet {
        let mut set = MySqlSet::default();
        for (first, more) in intervals {
            set.insert([7; 16], *first, first + more);
        }
        set
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(
            a in prop::collection::vec((1_u64..60, 0_u64..6), 0..12),
            b in prop::collection::vec((1_u64..60, 0_u64..6), 0..6),
            limit in 1_usize..4,
        ) {
            let (own, other) = (build(&a), build(&b));
            let (m, n) = (model(&a), model(&b));
            prop_assert_eq!(own.contains(&other), n.is_subset(&m));
            if !own.is_empty() {
                prop_assert_eq!(own.lacks(&other), n.difference(&m).count() as u64);
            }
            prop_assert_eq!(&MySqlSet::parse(own.to_string().as_bytes()).unwrap(), &own);
            let mut all = own.clone();
            all.union(&other);
            let union: Vec<(u64, u64)> = m.union(&n).map(|x| (*x, 0)).collect();
            prop_assert_eq!(&all, &build(&union));
            let mut both = own.clone();
            both.intersect(&other);
            let common: Vec<(u64, u64)> = m.intersection(&n).map(|x| (*x, 0)).collect();
            prop_assert_eq!(&both, &build(&common));
            let mut rest = own.clone();
            rest.subtract(&other);
            let left: Vec<(u64, u64)> = m.difference(&n).map(|x| (*x, 0)).collect();
            prop_assert_eq!(&rest, &build(&left));
            let mut bounded = all.clone();
            bounded.coalesce(limit, None);
            prop_assert!(bounded.contains(&all));
            prop_assert!(bounded.sources.iter().all(|s| s.intervals.len() <= limit));
        }
    }
}
