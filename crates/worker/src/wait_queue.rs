//! Statements that wait for a server that can run them, over all workers: in the order in which they
//! came, within limits. Knows nothing of servers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use millrace_engine::options::FailoverOptions;

/// A statement that waits, for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldStatement {
    /// The client's connection number.
    pub session: u32,
    /// The account's name.
    pub account: Box<[u8]>,
    /// How long it has waited.
    pub waited: Duration,
    /// The length of its command, in bytes.
    pub bytes: usize,
    /// What kind of statement it is: a label of the metrics.
    pub kind: &'static str,
    /// What it waits for.
    pub lane: Lane,
}

/// What a statement waits for. Those that wait for the same go in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// A primary.
    Primary,
    /// Any server with the data.
    Reader,
    /// A primary, or for lack of one any server with the data: nobody who waits for a primary only is
    /// in its way.
    Either,
}

/// So many.
const LANES: usize = 3;

impl Lane {
    /// For people.
    pub fn as_str(self) -> &'static str {
        match self {
            Lane::Primary | Lane::Either => "primary",
            Lane::Reader => "reader",
        }
    }
}

/// A limit that keeps a statement from waiting. The text names the option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Full(String);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All that wait.
#[derive(Debug)]
pub struct Held {
    statements_max: usize,
    bytes_max: usize,
    /// So that nobody takes the lock to see that nobody waits.
    count: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    bytes: usize,
    waiting: BTreeMap<u64, Waiting>,
    /// Those that do not try now, and how many do, by lane.
    idle: [BTreeSet<u64>; LANES],
    trying: [usize; LANES],
    /// The last that tried, found no connection: until one does, they try one at a time.
    failing: [bool; LANES],
}

#[derive(Debug)]
struct Waiting {
    statement: HeldStatement,
    since: Instant,
    /// It is trying now.
    trying: bool,
    waker: Option<Waker>,
}

impl Held {
    /// With the limits of `options`.
    pub fn new(options: &FailoverOptions) -> Self {
        Held {
            statements_max: options.max_held,
            bytes_max: options.max_held_bytes,
            count: AtomicUsize::new(0),
            queue: Mutex::default(),
        }
    }

    /// How many wait now.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All that wait now, in order.
    pub fn list(&self) -> Vec<HeldStatement> {
        let queue = self.lock();
        let each = queue.waiting.values().map(|waiting| HeldStatement {
            waited: waiting.since.elapsed(),
            ..waiting.statement.clone()
        });
        each.collect()
    }

    /// What is known of the servers has changed: whoever is first looks again.
    pub fn look_again(&self) {
        if self.count() > 0 {
            let mut queue = self.lock();
            queue.wake_first(Lane::Primary);
            queue.wake_first(Lane::Reader);
            queue.wake_first(Lane::Either);
        }
    }

    /// A place at the end.
    pub fn enter(self: &Arc<Self>, statement: HeldStatement) -> Result<Place, Full> {
        let mut queue = self.lock();
        if queue.waiting.len() >= self.statements_max {
            return Err(Full(format!(
                "failover.max_held ({}) statements wait already",
                self.statements_max
            )));
        }
        if queue.bytes + statement.bytes > self.bytes_max {
            return Err(Full(format!(
                "failover.max_held_bytes ({}) are taken by statements that wait already",
                self.bytes_max
            )));
        }
        let (ticket, lane) = (queue.next, statement.lane);
        queue.next += 1;
        let waiting = Waiting {
            statement,
            since: Instant::now(),
            trying: false,
            waker: None,
        };
        queue.put(ticket, waiting, &self.count);
        drop(queue);
        Ok(Place {
            held: self.clone(),
            ticket,
            lane,
            served: RefCell::new(None),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Whose turn it is.
    fn first(&self, lane: Lane) -> Option<u64> {
        let lane = lane as usize;
        if self.failing[lane] && self.trying[lane] > 0 {
            return None;
        }
        self.idle[lane].first().copied()
    }

    /// It begins to try, or has done.
    fn set_trying(&mut self, ticket: u64, trying: bool) {
        let Some(waiting) = self.waiting.get_mut(&ticket) else {
            return;
        };
        let lane = waiting.statement.lane as usize;
        match (std::mem::replace(&mut waiting.trying, trying), trying) {
            (false, true) => {
                self.idle[lane].remove(&ticket);
                self.trying[lane] += 1;
            }
            (true, false) => {
                self.trying[lane] -= 1;
                self.idle[lane].insert(ticket);
            }
            _ => {}
        }
    }

    fn put(&mut self, ticket: u64, waiting: Waiting, count: &AtomicUsize) {
        let lane = waiting.statement.lane as usize;
        self.bytes += waiting.statement.bytes;
        match waiting.trying {
            true => self.trying[lane] += 1,
            false => drop(self.idle[lane].insert(ticket)),
        }
        self.waiting.insert(ticket, waiting);
        count.store(self.waiting.len(), Ordering::Relaxed);
    }

    fn take(&mut self, ticket: u64, count: &AtomicUsize) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        let lane = waiting.statement.lane as usize;
        self.bytes -= waiting.statement.bytes;
        match waiting.trying {
            true => self.trying[lane] -= 1,
            false => drop(self.idle[lane].remove(&ticket)),
        }
        count.store(self.waiting.len(), Ordering::Relaxed);
        Some(waiting)
    }

    fn wake_first(&mut self, lane: Lane) {
        let first = self.first(lane);
        if let Some(waiting) = first.and_then(|ticket| self.waiting.get_mut(&ticket))
            && let Some(waker) = waiting.waker.take()
        {
            waker.wake();
        }
    }
}

/// A statement's place among those that wait; dropping it gives it up.
#[derive(Debug)]
pub struct Place {
    held: Arc<Held>,
    ticket: u64,
    lane: Lane,
    /// Its entry, while it has a connection.
    served: RefCell<Option<Waiting>>,
}

impl Place {
    /// Ready when it is this statement's turn to try.
    pub fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        let mut queue = self.held.lock();
        let first = queue.first(self.lane) == Some(self.ticket);
        if let Some(waiting) = queue.waiting.get_mut(&self.ticket) {
            // Also for who is first: it may find that there is nothing for it yet.
            waiting.waker = Some(cx.waker().clone());
        }
        if first {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// It tries; the next may try as well.
    pub fn go(&self) {
        let mut queue = self.held.lock();
        queue.set_trying(self.ticket, true);
        queue.wake_first(self.lane);
    }

    /// It has a connection and waits no more; so can the others.
    pub fn connected(&self) {
        let mut queue = self.held.lock();
        queue.failing[self.lane as usize] = false;
        if let Some(waiting) = queue.take(self.ticket, &self.held.count) {
            self.served.replace(Some(waiting));
        }
        queue.wake_first(self.lane);
    }

    /// It was in vain, and takes its old place.
    pub fn back(&self) {
        let mut queue = self.held.lock();
        // A connection that was had, and no answer, says nothing about the others'.
        queue.failing[self.lane as usize] = self.served.borrow().is_none();
        if let Some(waiting) = self.served.take() {
            queue.put(self.ticket, waiting, &self.held.count);
        }
        queue.set_trying(self.ticket, false);
        queue.wake_first(self.lane);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.held.lock();
        queue.take(self.ticket, &self.held.count);
        if queue.waiting.is_empty() {
            queue.failing = [false; LANES];
        }
        queue.wake_first(self.lane);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use super::*;

    fn held(statements_max: usize, bytes_max: usize) -> Arc<Held> {
        Arc::new(Held::new(&FailoverOptions {
            max_held: statements_max,
            max_held_bytes: bytes_max,
            ..FailoverOptions::default()
        }))
    }

    fn statement(session: u32, lane: Lane) -> HeldStatement {
        HeldStatement {
            session,
            account: b"app".as_slice().into(),
            waited: Duration::ZERO,
            bytes: 10,
            kind: "write",
            lane,
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn is_first(place: &Place) -> bool {
        let waker = Waker::noop();
        place.poll_turn(&Context::from_waker(waker)).is_ready()
    }

    #[test]
    fn they_go_in_the_order_in_which_they_came() {
        let held = held(10, 1000);
        let [a, b, c] = [1, 2, 3].map(|n| held.enter(statement(n, Lane::Primary)).expect("room"));
        assert_eq!([&a, &b, &c].map(is_first), [true, false, false]);
        a.go();
        assert_eq!([&a, &b, &c].map(is_first), [false, true, false]);
        drop(b);
        assert!(is_first(&c));
        drop(c);
        drop(a);
        assert_eq!(held.count(), 0);
    }

    #[test]
    fn who_was_in_vain_has_its_old_place_and_tries_alone() {
        let held = held(10, 1000);
        let [a, b] = [1, 2].map(|n| held.enter(statement(n, Lane::Primary)).expect("room"));
        a.go();
        a.back();
        assert_eq!([&a, &b].map(is_first), [true, false]);
        a.go();
        assert!(!is_first(&b), "one at a time");
        a.connected();
        assert!(is_first(&b));
        assert_eq!(held.count(), 1, "it waits no more");
        a.back();
        assert_eq!(held.count(), 2);
        assert_eq!([&a, &b].map(is_first), [true, false]);
        a.go();
        assert!(is_first(&b), "connections can be had");
    }

    #[test]
    fn who_was_in_vain_lets_the_first_try_again() {
        let held = held(10, 1000);
        let [a, b] = [1, 2].map(|n| held.enter(statement(n, Lane::Primary)).expect("room"));
        a.go();
        b.go();
        a.back();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(a.poll_turn(&Context::from_waker(&waker)).is_pending());
        b.back();
        assert!(woken.0.load(Ordering::Relaxed));
        assert_eq!([&a, &b].map(is_first), [true, false]);
    }

    #[test]
    fn readers_do_not_wait_behind_writers() {
        let held = held(10, 1000);
        let _writer = held.enter(statement(1, Lane::Primary)).expect("room");
        let reader = held.enter(statement(2, Lane::Reader)).expect("room");
        assert!(is_first(&reader));
    }

    #[test]
    fn who_leaves_wakes_the_next() {
        let held = held(10, 1000);
        let a = held.enter(statement(1, Lane::Primary)).expect("room");
        let b = held.enter(statement(2, Lane::Primary)).expect("room");
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(b.poll_turn(&Context::from_waker(&waker)).is_pending());
        drop(a);
        assert!(woken.0.load(Ordering::Relaxed));
    }

    #[test]
    fn limits_hold_and_are_named() {
        let held = held(2, 25);
        let _a = held.enter(statement(1, Lane::Primary)).expect("room");
        let b = held.enter(statement(2, Lane::Primary)).expect("room");
        let full = held.enter(statement(3, Lane::Primary)).expect_err("full");
        assert!(full.to_string().contains("failover.max_held (2)"), "{full}");
        drop(b);
        let big = HeldStatement {
            bytes: 20,
            ..statement(3, Lane::Primary)
        };
        let full = held.enter(big).expect_err("too many bytes");
        assert!(full.to_string().contains("max_held_bytes"), "{full}");
        assert_eq!(held.list().len(), 1);
    }
}
