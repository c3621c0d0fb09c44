//! What clients have sent, what they were told became of it, and what the servers have of it in
//! the end: finds what was lost, done twice, half done, or written to two primaries. It talks to
//! nobody.

use std::collections::BTreeMap;

/// A client and the number of one of its writes: unique over the whole run.
pub type Key = (u32, u32);

/// What a client knows of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was said to be done.
    Acknowledged,
    /// An error was given that means that nothing of it was done.
    Refused,
    /// Nobody said, or it was said that nobody knows.
    Unknown,
}

/// All that the clients of one run have written.
#[derive(Debug, Default)]
pub struct Ledger {
    writes: BTreeMap<Key, (Fate, u64)>,
    /// Of clients that count by autocommit statements: acknowledged, and of unknown outcome.
    counted: BTreeMap<u32, (u64, u64)>,
    /// Clients whose counter and rows are written in one transaction.
    atomic: Vec<u32>,
}

impl Ledger {
    /// A row that was sent at this time, in microseconds of the wall clock.
    pub fn write(&mut self, key: Key, fate: Fate, sent_us: u64) {
        self.writes.insert(key, (fate, sent_us));
    }

    /// One more on a client's counter, by a statement of its own.
    pub fn count(&mut self, client: u32, fate: Fate) {
        let (acknowledged, unknown) = self.counted.entry(client).or_default();
        match fate {
            Fate::Acknowledged => *acknowledged += 1,
            Fate::Unknown => *unknown += 1,
            Fate::Refused => {}
        }
    }

    /// This client's counter must be as high as it has rows.
    pub fn is_atomic(&mut self, client: u32) {
        self.atomic.push(client);
    }

    /// How many writes have this fate.
    pub fn fates(&self, fate: Fate) -> usize {
        self.writes.values().filter(|(of, _)| *of == fate).count()
    }
}

/// A row as a server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The server id of the server that ran the statement.
    pub origin: u32,
    /// When it began to, in microseconds of the wall clock.
    pub at_us: u64,
}

/// What one server has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub rows: BTreeMap<Key, Row>,
    pub counters: BTreeMap<u32, u64>,
}

/// What must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wrong {
    /// Acknowledged, and not there.
    Lost,
    /// Refused, or never sent, and there all the same.
    HalfDone,
    /// More often than it was sent, or on two servers each by itself.
    Twice,
    /// Two servers took writes at one time, or an old primary did after the new one had begun.
    TwoPrimaries,
    /// A server that has caught up has something else than the primary.
    Diverged,
}

/// What was found: what is wrong, and an example in words.
pub type Found = Vec<(Wrong, String)>;

/// So long may a statement by itself be under way.
const STATEMENT_US: u64 = 100_000;

/// What the primary has, against what clients were told. Where every server takes writes, what has
/// begun on one of them `may_finish` there while others go elsewhere already: then only statements
/// by themselves are held to go to one server at a time, and these but for a tenth of a second.
pub fn judge(ledger: &Ledger, primary: &Contents, may_finish: bool) -> Found {
    let mut found = Vec::new();
    for (key, (fate, _)) in &ledger.writes {
        let there = primary.rows.contains_key(key);
        match fate {
            Fate::Acknowledged if !there => found.push((Wrong::Lost, format!("write {key:?}"))),
            Fate::Refused if there => found.push((Wrong::HalfDone, format!("write {key:?}"))),
            _ => {}
        }
    }
    for key in primary.rows.keys() {
        if !ledger.writes.contains_key(key) {
            found.push((Wrong::HalfDone, format!("write {key:?} was never sent")));
        }
    }
    for (client, (acknowledged, unknown)) in &ledger.counted {
        let n = primary.counters.get(client).copied().unwrap_or(0);
        let text = format!("client {client} counts {n}: {acknowledged} told, {unknown} unknown");
        if n < *acknowledged {
            found.push((Wrong::Lost, text));
        } else if n > acknowledged + unknown {
            found.push((Wrong::Twice, text));
        }
    }
    for client in &ledger.atomic {
        let n = primary.counters.get(client).copied().unwrap_or(0);
        let rows = primary.rows.keys().filter(|(of, _)| of == client).count() as u64;
        let text = format!("client {client} counts {n} and has {rows} rows");
        match n.cmp(&rows) {
            std::cmp::Ordering::Less => found.push((Wrong::HalfDone, text)),
            std::cmp::Ordering::Greater => found.push((Wrong::Twice, text)),
            std::cmp::Ordering::Equal => {}
        }
    }
    let by_itself = |key: &Key| !may_finish || !ledger.atomic.contains(&key.0);
    let rows = primary.rows.iter().filter(|(key, _)| by_itself(key));
    let overlap_us = if may_finish { STATEMENT_US } else { 0 };
    found.extend(overlaps(rows.map(|(_, row)| *row).collect(), overlap_us));
    found
}

/// Each server takes writes in turn: its times lie before or after all of another's, with what it
/// did before another and after it in two parts. For `overlap_us` after a move what was under way
/// may still come to the server that is left.
fn overlaps(mut rows: Vec<Row>, overlap_us: u64) -> Found {
    // A server that is left and comes back within so little was never left.
    const TURN_US: u64 = 200_000;
    rows.sort_by_key(|row| row.at_us);
    let mut turns: Vec<(u32, u64)> = Vec::new();
    for row in rows {
        if turns.last().is_none_or(|(origin, _)| *origin != row.origin) {
            turns.push((row.origin, row.at_us));
        }
    }
    let mut found = Vec::new();
    // Since when servers have alternated.
    let mut mixed: Option<u64> = None;
    for turn in turns.windows(3) {
        let there_and_back =
            turn[0].0 == turn[2].0 && turn[2].1.saturating_sub(turn[1].1) < TURN_US;
        if !there_and_back {
            mixed = None;
            continue;
        }
        let since = *mixed.get_or_insert(turn[1].1);
        if turn[2].1 - since >= overlap_us {
            found.push((Wrong::TwoPrimaries, format!("in turns: {turn:?}")));
        }
    }
    found.truncate(3);
    found
}

/// What a server has that was a primary before, and has not yet followed the new one, which has
/// taken writes since `since_us`. Gives also how many writes only the old one has.
pub fn judge_old(ledger: &Ledger, old: &Contents, new: &Contents, since_us: u64) -> (Found, usize) {
    let mut found = Vec::new();
    let mut only_old = 0;
    for (key, row) in &old.rows {
        match new.rows.get(key) {
            Some(other) if other != row => {
                found.push((
                    Wrong::Twice,
                    format!("write {key:?}: {row:?} and {other:?}"),
                ));
            }
            Some(_) => {}
            None => {
                only_old += 1;
                let sent_us = ledger.writes.get(key).map_or(0, |(_, sent_us)| *sent_us);
                if sent_us > since_us {
                    found.push((Wrong::TwoPrimaries, format!("write {key:?} to an old one")));
                }
            }
        }
    }
    (found, only_old)
}

/// What a server has that has caught up.
pub fn judge_copy(name: &str, copy: &Contents, primary: &Contents) -> Found {
    if copy == primary {
        return Vec::new();
    }
    let differs = |key: &&Key| copy.rows.get(*key) != primary.rows.get(*key);
    let keys = copy.rows.keys().chain(primary.rows.keys());
    let example: Vec<_> = keys
        .filter(differs)
        .take(3)
        .map(|key| (key, copy.rows.get(key), primary.rows.get(key)))
        .collect();
    let text = format!(
        "{name} has {} rows, the primary {}; {example:?}",
        copy.rows.len(),
        primary.rows.len()
    );
    vec![(Wrong::Diverged, text)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(origin: u32, at_us: u64) -> Row {
        Row { origin, at_us }
    }

    fn contents(rows: &[(Key, Row)], counters: &[(u32, u64)]) -> Contents {
        Contents {
            rows: rows.iter().copied().collect(),
            counters: counters.iter().copied().collect(),
        }
    }

    fn kinds(found: &Found) -> Vec<Wrong> {
        found.iter().map(|(wrong, _)| *wrong).collect()
    }

    #[test]
    fn fates_and_rows_must_agree() {
        let mut ledger = Ledger::default();
        ledger.write((1, 1), Fate::Acknowledged, 10);
        ledger.write((1, 2), Fate::Refused, 20);
        ledger.write((1, 3), Fate::Unknown, 30);
        let good = contents(&[((1, 1), row(1, 11))], &[]);
        assert_eq!(judge(&ledger, &good, false), []);
        let also_good = contents(&[((1, 1), row(1, 11)), ((1, 3), row(1, 31))], &[]);
        assert_eq!(judge(&ledger, &also_good, false), []);
        assert_eq!(
            kinds(&judge(&ledger, &contents(&[], &[]), false)),
            [Wrong::Lost]
        );
        for more in [(1, 2), (7, 7)] {
            let bad = contents(&[((1, 1), row(1, 11)), (more, row(1, 12))], &[]);
            assert_eq!(kinds(&judge(&ledger, &bad, false)), [Wrong::HalfDone]);
        }
    }

    #[test]
    fn counters_tell_what_was_lost_or_done_twice() {
        let mut ledger = Ledger::default();
        ledger.count(4, Fate::Acknowledged);
        ledger.count(4, Fate::Acknowledged);
        ledger.count(4, Fate::Unknown);
        ledger.count(4, Fate::Refused);
        let wrong = |n| kinds(&judge(&ledger, &contents(&[], &[(4, n)]), false));
        assert_eq!(wrong(1), [Wrong::Lost]);
        assert_eq!(wrong(2), []);
        assert_eq!(wrong(3), []);
        assert_eq!(wrong(4), [Wrong::Twice]);
    }

    #[test]
    fn a_transaction_is_whole_or_not_at_all() {
        let mut ledger = Ledger::default();
        ledger.write((2, 1), Fate::Unknown, 10);
        ledger.is_atomic(2);
        let there = [((2, 1), row(1, 11))];
        let wrong =
            |rows: &[(Key, Row)], n| kinds(&judge(&ledger, &contents(rows, &[(2, n)]), false));
        assert_eq!(wrong(&there, 1), []);
        assert_eq!(wrong(&[], 0), []);
        assert_eq!(wrong(&there, 0), [Wrong::HalfDone]);
        assert_eq!(wrong(&[], 1), [Wrong::Twice]);
    }

    #[test]
    fn servers_take_turns() {
        let mut ledger = Ledger::default();
        let mut rows = Vec::new();
        // 1, then 2, then 1 again: two moves.
        for (seq, (origin, at_us)) in [(1, 0), (1, 1_000), (2, 2_000), (2, 900_000), (1, 950_000)]
            .into_iter()
            .enumerate()
        {
            ledger.write((1, seq as u32), Fate::Acknowledged, at_us);
            rows.push(((1, seq as u32), row(origin, at_us)));
        }
        assert_eq!(judge(&ledger, &contents(&rows, &[]), false), []);
        ledger.write((1, 9), Fate::Acknowledged, 2_500);
        rows.push(((1, 9), row(1, 2_500)));
        let found = judge(&ledger, &contents(&rows, &[]), false);
        assert!(kinds(&found).contains(&Wrong::TwoPrimaries), "{found:?}");
    }

    #[test]
    fn what_has_begun_may_finish_where_all_servers_take_writes() {
        let mixed = |us: u64| {
            let times = [0, 1_000_000, 1_000_000 + us, 1_000_000 + 2 * us, 3_000_000];
            let rows = times.iter().zip([1, 2, 1, 2, 2]);
            rows.map(|(at_us, origin)| row(origin, *at_us)).collect()
        };
        assert_eq!(overlaps(mixed(1_000), STATEMENT_US), []);
        assert!(!overlaps(mixed(1_000), 0).is_empty());
        assert!(!overlaps(mixed(90_000), STATEMENT_US).is_empty());
    }

    #[test]
    fn an_old_primary_may_have_only_what_was_sent_before() {
        let mut ledger = Ledger::default();
        ledger.write((1, 1), Fate::Unknown, 100);
        let new = contents(&[], &[]);
        let old = contents(&[((1, 1), row(1, 101))], &[]);
        assert_eq!(judge_old(&ledger, &old, &new, 150), (vec![], 1));
        let (found, _) = judge_old(&ledger, &old, &new, 50);
        assert_eq!(kinds(&found), [Wrong::TwoPrimaries]);
        let again = contents(&[((1, 1), row(2, 160))], &[]);
        let (found, only_old) = judge_old(&ledger, &old, &again, 150);
        assert_eq!((kinds(&found), only_old), (vec![Wrong::Twice], 0));
    }

    #[test]
    fn copies_are_the_same() {
        let primary = contents(&[((1, 1), row(1, 11))], &[(1, 1)]);
        assert_eq!(judge_copy("s2", &primary.clone(), &primary), []);
        let found = judge_copy("s2", &contents(&[], &[(1, 1)]), &primary);
        assert_eq!(kinds(&found), [Wrong::Diverged]);
    }
}
