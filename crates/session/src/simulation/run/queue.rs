//! Sessions that wait in a queue.

use super::*;

impl Run {
    pub(super) fn enter(&mut self, index: usize) {
        let session = &self.sessions[index];
        let lane = session.lane();
        let statement = HeldStatement {
            session: index as u32,
            account: b"app".as_slice().into(),
            waited: Duration::ZERO,
            bytes: 100,
            kind: "write",
            lane,
        };
        let room = self.held.count() < HELD_MAX;
        let entered = self.held.enter(statement);
        assert_eq!(entered.is_ok(), room, "as many wait as may");
        let Ok(place) = entered else {
            self.counts.no_room += 1;
            return;
        };
        let number = self.next;
        self.next += 1;
        self.queue.insert(number, (lane, false));
        self.counts.held += 1;
        // Its first look is its own.
        session.woken.0.store(true, Ordering::Relaxed);
        self.sessions[index].at = At::Queue(Waiting {
            place,
            number,
            lane,
        });
    }

    /// Looks only when it was woken, as a task does: a lost wake-up is a livelock.
    pub(super) fn in_queue(&mut self, index: usize, waiting: Waiting) {
        let age = Duration::from_millis(self.now - self.sessions[index].begun);
        let statement = Statement { age, unsent: false };
        if self.sessions[index].attempts.rest(&statement).is_zero() {
            self.counts.given_up += 1;
            self.unqueue(Some(&waiting));
            return;
        }
        let woken = self.sessions[index].woken.clone();
        if !woken.0.swap(false, Ordering::Relaxed) {
            self.sessions[index].at = At::Queue(waiting);
            return;
        }
        let waker = Waker::from(woken);
        let turn = waiting.place.poll_turn(&Context::from_waker(&waker));
        if turn.is_pending() || self.decided(index).is_none() {
            self.sessions[index].at = At::Queue(waiting);
            return;
        }
        self.in_order(&waiting);
        waiting.place.go();
        self.queue.insert(waiting.number, (waiting.lane, true));
        let next = self.sessions[index].attempts.in_turn();
        self.follow(index, next, Some(waiting));
    }

    /// All that came before it in its lane are trying, or gone.
    pub(super) fn in_order(&self, waiting: &Waiting) {
        let before = self.queue.range(..waiting.number);
        for (number, (lane, tries)) in before {
            assert!(
                *lane != waiting.lane || *tries,
                "{} leaves before {number}: {:?}",
                waiting.number,
                self.queue
            );
        }
    }

    pub(super) fn back(&mut self, index: usize, waiting: Waiting, rest: Duration) {
        waiting.place.back();
        self.queue.insert(waiting.number, (waiting.lane, false));
        self.sessions[index].at = At::Pause(waiting, self.now + rest.as_millis() as u64);
    }

    pub(super) fn unqueue(&mut self, waiting: Option<&Waiting>) {
        if let Some(waiting) = waiting {
            self.queue.remove(&waiting.number);
        }
    }
}
