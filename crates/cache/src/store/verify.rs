//! Hits that are read again, and compared: is an entry what the servers answer? There must be no difference, so one that
//! is found is a fault of the cache, of the log, or of rows that were written beside the log.
//!
//! An answer is compared only where rule 2 would have kept it, and once F has all that it can show. The entry must be the
//! same one still: then nothing of its tables has changed between.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use millrace_topology::GtidSet;

use super::{Finished, Store};
use crate::Cause;
use crate::entry::{State, Token};

/// Answers at most that wait for the log.
const WAITING_MAX: usize = 32;

/// What the answer's server must have had (P).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Check {
    must: GtidSet,
    base: Arc<GtidSet>,
}

/// What comparisons have found since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Answers that were compared with an entry.
    pub compared: u64,
    /// Those that differed. Must be 0.
    pub differences: u64,
    /// The statement of the last that differed, by its digest.
    pub last: Option<u64>,
}

/// An answer to be compared with an entry once F has what it can show.
#[derive(Debug)]
struct Answer {
    slot: u32,
    generation: u32,
    statement: u64,
    bytes: Arc<[u8]>,
    upper: GtidSet,
}

#[derive(Debug, Default)]
pub(super) struct Verify {
    waiting: VecDeque<Answer>,
    pub(super) verified: Verified,
}

impl Verify {
    /// Bytes on the heap.
    pub(super) fn heap(&self) -> usize {
        let answers = self.waiting.iter();
        let heap = answers.map(|answer| answer.bytes.len() + answer.upper.heap_bytes());
        self.waiting.capacity() * size_of::<Answer>() + heap.sum::<usize>()
    }
}

impl Store {
    /// What comparisons have found.
    pub fn verified(&self) -> Verified {
        self.verify.verified
    }

    /// A key's result may be served, as by [`Store::look`], but is to be read again and compared with what the
    /// server says. None where it may not, and where that could not be told of it.
    pub fn begin_check(
        &mut self,
        key: &[u8],
        required: &[&GtidSet],
        now: Instant,
    ) -> Option<Token> {
        let at = self.servable(key, required, now).ok()?;
        let slot = self.slots.get_mut(at)?;
        let State::Stored(stored) = &mut slot.state else {
            return None;
        };
        // So that any further transaction on its tables removes it.
        let is_ahead = |ahead: &GtidSet| !self.applied.contains(ahead);
        if stored.ahead.as_deref().is_some_and(is_ahead) {
            return None;
        }
        // It was of use.
        stored.hits += 1;
        let slot = &*slot;
        let mut must = GtidSet::new(self.applied.family());
        for (subject, scope) in &slot.accesses {
            self.subjects.add_changes(*subject, scope, &mut must);
        }
        let statement = slot.statement;
        self.statements.checked(statement);
        Some(Token {
            slot: at,
            generation: self.slots.generation(at),
            statement,
            check: Some(Box::new(Check {
                must,
                base: self.base.clone(),
            })),
        })
    }

    /// Takes the answer of a check.
    pub(super) fn end_check(
        &mut self,
        token: &Token,
        check: &Check,
        result: Finished<'_>,
        now: Instant,
    ) {
        let positions = [result.lower, result.upper];
        let is_told = positions.iter().all(|set| set.is_comparable(&self.applied))
            && result.lower.contains(&check.base)
            && result.lower.contains(&check.must);
        if !is_told {
            return;
        }
        if self.verify.waiting.len() >= WAITING_MAX {
            self.verify.waiting.pop_front();
        }
        self.verify.waiting.push_back(Answer {
            slot: token.slot,
            generation: token.generation,
            statement: token.statement,
            bytes: result.bytes,
            upper: result.upper.clone(),
        });
        self.compare(now);
    }

    /// Compares the answers whose time has come.
    pub(super) fn compare(&mut self, now: Instant) {
        if self.verify.waiting.is_empty() {
            return;
        }
        for answer in std::mem::take(&mut self.verify.waiting) {
            if self.slots.generation(answer.slot) != answer.generation {
                continue;
            }
            if !self.applied.contains(&answer.upper) {
                self.verify.waiting.push_back(answer);
                continue;
            }
            let slot = self.slots.get(answer.slot);
            let Some(State::Stored(stored)) = slot.map(|slot| &slot.state) else {
                continue;
            };
            self.verify.verified.compared += 1;
            if rows(&stored.bytes) != rows(&answer.bytes) {
                self.verify.verified.differences += 1;
                self.verify.verified.last = Some(answer.statement);
                // What was wrong with one may be wrong with any.
                self.drop_all(Cause::Wrong, now);
            }
        }
    }
}

/// The rows of a result set, in an order of their own: servers give them in any, unless they are told one. Before them
/// the number of columns. What the server says of itself is left out: definitions, warnings, flags.
fn rows(result: &[u8]) -> Option<Vec<&[u8]>> {
    let mut packets = Vec::new();
    let mut rest = result;
    while let Some((head, behind)) = rest.split_at_checked(4) {
        let len = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
        let (payload, behind) = behind.split_at_checked(len)?;
        packets.push(payload);
        rest = behind;
    }
    let columns = match *packets.first()? {
        [count @ 0..=250, ..] => usize::from(*count),
        [0xFC, low, high, ..] => usize::from(u16::from_le_bytes([*low, *high])),
        _ => return None,
    };
    packets.pop();
    let mut rows = packets.split_off((1 + columns).min(packets.len()));
    // The end of the definitions, where clients want it.
    if rows
        .first()
        .is_some_and(|it| it.first() == Some(&0xFE) && it.len() <= 5)
    {
        rows.remove(0);
    }
    rows.sort_unstable();
    rows.insert(0, packets.first()?);
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8], number: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes()[..3]);
        out.push(number);
        out.extend_from_slice(payload);
    }

    fn result(rows: &[&[u8]], has_eof: bool, status: u8) -> Vec<u8> {
        let eof = [0xFE, 0, 0, status, 0];
        let definition = [b"\x03def".as_slice(), &[status]].concat();
        let mut packets: Vec<&[u8]> = vec![b"\x01", &definition];
        if has_eof {
            packets.push(&eof);
        }
        packets.extend(rows);
        packets.push(&eof);
        let mut out = Vec::new();
        for (number, payload) in packets.iter().enumerate() {
            packet(payload, status.wrapping_add(number as u8), &mut out);
        }
        out
    }

    #[test]
    fn rows_are_compared_in_any_order() {
        let (a, b): (&[u8], &[u8]) = (b"\x01a", b"\x01b");
        for has_eof in [true, false] {
            let told = |rows: &[&[u8]], status| result(rows, has_eof, status);
            let one = told(&[a, b], 2);
            assert!(rows(&one).is_some());
            assert_eq!(rows(&one), rows(&told(&[b, a], 34)));
            for other in [&[a][..], &[a, a], &[a, b, b], &[]] {
                assert_ne!(rows(&one), rows(&told(other, 2)));
            }
        }
        assert_eq!(rows(&one_cut()), None);
    }

    fn one_cut() -> Vec<u8> {
        let mut whole = result(&[b"\x01a"], true, 2);
        whole.pop();
        whole
    }
}
