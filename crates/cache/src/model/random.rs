//! Histories out of a seed.

use super::*;

/// Numbers that look random: quicker than a strategy, where nothing is to be made smaller.
pub(super) struct Random {
    pub(super) state: u64,
    /// Replicas are behind.
    pub(super) is_slow: bool,
}

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % end
    }

    pub(super) fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// As [`ops`] makes them.
    pub(super) fn op(&mut self) -> Op {
        let session = self.below(SESSIONS);
        let server = self.below(SERVERS);
        let skip = if self.one_in(4) { self.below(3) } else { 0 };
        let lo = self.below(KEYS.into()) as u8;
        match self.below(70) {
            0..4 => Op::Commit {
                session: session % READERS,
                writes: (0..=self.below(2))
                    .map(|_| {
                        (
                            self.below(TABLES.into()) as u8,
                            self.below(KEYS.into()) as u8,
                        )
                    })
                    .collect(),
                by_table: self.one_in(7),
                xa: self.one_in(10),
            },
            4..12 if server > 0 && self.is_slow && !self.one_in(2) => Op::Follow { count: 2 },
            4..12 => Op::Show {
                server,
                skip,
                count: 1 + self.below(5),
            },
            12..20 => Op::Execute {
                server,
                skip,
                count: 1 + self.below(7),
            },
            20..26 => Op::Follow {
                count: 1 + self.below(4),
            },
            26..28 => Op::Settle,
            28 => Op::Leave { server },
            29 => Op::Join { server },
            30..46 => Op::Read {
                session,
                query: Query {
                    table: self.below(TABLES.into()) as u8,
                    lo,
                    hi: (lo + self.below(2) as u8).min(KEYS - 1),
                    by_table: self.one_in(10),
                },
                // Readers ask a replica, so that they learn from hits what it does not have yet.
                server: if session < READERS { server / 2 } else { 1 },
            },
            46..48 => Op::Snapshot { session },
            48..63 => Op::End { session },
            63..65 => Op::BeginTransaction { session, server },
            65 | 66 => Op::EndTransaction { session },
            67 => Op::Gap {
                anew: self.one_in(3),
            },
            68 => Op::Wait {
                millis: self.below(700) as u64,
            },
            _ => Op::Flush,
        }
    }
}
