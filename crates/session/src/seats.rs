//! How many of a worker's sessions read at each server lately. Sessions mostly read where they have
//! read last, so this tells better than what happens to be under way who will have more to do than
//! others. Moves nobody.

use std::cell::Cell;

use millrace_topology::ServerId;

use crate::worker::SERVERS;

/// A second's counts.
type Counts = [Cell<u32>; SERVERS];

/// Counts of this second and of the one before.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    now: Counts,
    before: Counts,
    second: Cell<u64>,
}

/// Where a session was counted last, and in which second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seat {
    server: Option<ServerId>,
    second: u64,
}

impl Seats {
    /// A session reads at a server: it counts there once in each second.
    pub(crate) fn take(&self, seat: &mut Seat, server: ServerId) {
        let taken = Seat {
            server: Some(server),
            second: self.second.get(),
        };
        if *seat != taken {
            *seat = taken;
            if let Some(count) = self.now.get(server.index()) {
                count.set(count.get() + 1);
            }
        }
    }

    /// A second has passed.
    pub(crate) fn turn(&self) {
        self.second.set(self.second.get() + 1);
        for (before, now) in self.before.iter().zip(&self.now) {
            before.set(now.take());
        }
    }

    /// The sessions that read there.
    pub(crate) fn at(&self, server: ServerId) -> u32 {
        let of = |counts: &Counts| counts.get(server.index()).map_or(0, Cell::get);
        of(&self.now).max(of(&self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_once_a_second_where_it_reads() {
        let (seats, mut one, mut other) = (Seats::default(), Seat::default(), Seat::default());
        let (first, second) = (ServerId(0), ServerId(1));
        for _ in 0..3 {
            seats.take(&mut one, first);
        }
        seats.take(&mut other, first);
        assert_eq!((seats.at(first), seats.at(second)), (2, 0));
        seats.turn();
        assert_eq!(seats.at(first), 2, "the second has just begun");
        seats.take(&mut one, first);
        seats.take(&mut other, second);
        seats.turn();
        assert_eq!((seats.at(first), seats.at(second)), (1, 1));
        seats.turn();
        assert_eq!((seats.at(first), seats.at(second)), (0, 0), "nobody reads");
        seats.take(&mut one, ServerId(u16::MAX));
        assert_eq!(
            seats.at(ServerId(u16::MAX)),
            0,
            "more servers than are counted"
        );
    }
}
