//! How far each server is, asked as often as sessions need to know and no oftener. One question
//! answers all sessions that have read from the server before it was asked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_metrics::PerServer;
use millrace_topology::{GtidSet, ServerId};
use tokio::sync::Notify;

/// All servers' positions; shared by all threads.
#[derive(Debug)]
pub struct Positions {
    servers: PerServer<Server>,
}

#[derive(Debug, Default)]
struct Server {
    /// Questions begun so far: the number of the last.
    begun: AtomicU64,
    /// The number of the last question that was answered.
    answered: AtomicU64,
    answer: Mutex<Option<Position>>,
    wanted: AtomicBool,
    call: Notify,
}

/// A server's answer.
#[derive(Debug, Clone)]
pub struct Position {
    /// The number of the question.
    pub number: u64,
    /// What the server had executed.
    pub executed: Arc<GtidSet>,
    /// The server's incarnation then.
    pub incarnation: u32,
}

/// A row is visible a moment before its transaction is counted as executed (on both families a
/// commit is shown first), so the first question after a read does not count for it.
const QUESTIONS: u64 = 2;

impl Positions {
    /// For so many servers to begin with; nothing is known yet.
    pub fn new(servers: usize) -> Self {
        Positions {
            servers: PerServer::new(servers),
        }
    }

    /// Marks this moment: whatever a session has read from the server until now is in the answer
    /// that [`Positions::since`] gives for the mark.
    pub fn mark(&self, server: ServerId) -> u64 {
        // The system calls between a question and its sending, and between an answer's receipt
        // and this, order the two.
        let begun = self.server(server).map(|server| &server.begun);
        begun.map_or(u64::MAX, |begun| begun.load(Ordering::SeqCst))
    }

    /// What the server had executed some time after the mark; none where that is not known yet:
    /// then it is asked.
    pub fn since(&self, server: ServerId, mark: u64) -> Option<Position> {
        let known = self.server(server)?;
        if known.answered.load(Ordering::Acquire) >= mark.saturating_add(QUESTIONS) {
            return known.get();
        }
        known.want();
        None
    }

    /// The last answer, where it is newer than number `than`.
    pub fn newer(&self, server: ServerId, than: u64) -> Option<Position> {
        let known = self.server(server)?;
        if known.answered.load(Ordering::Acquire) <= than {
            return None;
        }
        known.get()
    }

    /// Somebody needs to know how far the server is.
    pub fn want(&self, server: ServerId) {
        if let Some(server) = self.server(server) {
            server.want();
        }
    }

    /// Waits until somebody needs to know.
    pub(crate) async fn called(&self, server: ServerId) {
        let Some(server) = self.server(server) else {
            return std::future::pending().await;
        };
        while !server.wanted.swap(false, Ordering::AcqRel) {
            server.call.notified().await;
        }
    }

    /// The number of a question that is about to be sent.
    pub(crate) fn begin(&self, server: ServerId) -> u64 {
        let begun = self.server(server).map(|server| &server.begun);
        begun.map_or(0, |begun| begun.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The answer to it.
    pub(crate) fn answer(&self, server: ServerId, position: Position) {
        if let Some(server) = self.server(server) {
            let number = position.number;
            *server.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(position);
            server.answered.store(number, Ordering::Release);
        }
    }

    fn server(&self, server: ServerId) -> Option<&Server> {
        self.servers.get(server.index())
    }
}

impl Server {
    fn get(&self) -> Option<Position> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.clone()
    }

    fn want(&self) {
        if !self.wanted.load(Ordering::Relaxed) && !self.wanted.swap(true, Ordering::AcqRel) {
            self.call.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_topology::Family;

    use super::*;

    const A: ServerId = ServerId(0);

    fn position(number: u64) -> Position {
        Position {
            number,
            executed: Arc::new(GtidSet::new(Family::MySql)),
            incarnation: 0,
        }
    }

    #[test]
    fn only_questions_well_after_a_read_answer_for_it() {
        let positions = Positions::new(1);
        let first = positions.begin(A);
        let mark = positions.mark(A);
        positions.answer(A, position(first));
        assert!(positions.since(A, mark).is_none(), "begun before the read");
        let second = positions.begin(A);
        positions.answer(A, position(second));
        assert!(
            positions.since(A, mark).is_none(),
            "perhaps not yet counted"
        );
        let third = positions.begin(A);
        assert!(positions.since(A, mark).is_none(), "not answered");
        positions.answer(A, position(third));
        assert_eq!(
            positions.since(A, mark).map(|found| found.number),
            Some(third)
        );
        assert!(positions.newer(A, third).is_none());
        assert!(positions.newer(A, second).is_some());
    }

    #[tokio::test]
    async fn whoever_needs_an_answer_causes_one_question() {
        let positions = Positions::new(1);
        let mark = positions.mark(A);
        for _ in 0..3 {
            assert!(positions.since(A, mark).is_none());
        }
        positions.called(A).await;
        let again = tokio::time::timeout(std::time::Duration::from_millis(20), positions.called(A));
        assert!(again.await.is_err(), "nobody has asked again");
    }

    #[test]
    fn servers_may_be_found_later_up_to_the_limit() {
        let positions = Positions::new(1);
        let found = ServerId(1);
        let mark = positions.mark(found);
        for _ in 0..2 {
            let number = positions.begin(found);
            positions.answer(found, position(number));
        }
        assert!(positions.since(found, mark).is_some());
        let beyond = ServerId(u16::MAX);
        assert!(positions.since(beyond, positions.mark(beyond)).is_none());
    }
}
