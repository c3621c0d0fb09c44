//! How far each server is, asked as often as sessions need to know and no oftener. One question
//! answers all sessions that have read from the server before it was asked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_metrics::PerServer;
use millrace_topology::{GtidSet, ServerId};
use tokio::sync::Notify;

/// What all servers say of how far they are; shared by all threads.
#[derive(Debug)]
pub struct Positions<A = Position> {
    servers: PerServer<Server<A>>,
    /// All answers so far.
    answers: AtomicU64,
    /// Some server is asked less often, because nothing was written for a while.
    calm: AtomicBool,
}

#[derive(Debug)]
struct Server<A> {
    /// Questions begun so far: the number of the last.
    begun: AtomicU64,
    /// The number of the last question that was answered.
    answered: AtomicU64,
    answer: Mutex<Option<A>>,
    wanted: AtomicBool,
    call: Notify,
    /// Somebody waits for the next answer.
    urgent: Notify,
    /// Something was written, after a while without.
    stir: Notify,
    answers: Notify,
}

impl<A> Default for Server<A> {
    fn default() -> Self {
        Server {
            begun: AtomicU64::default(),
            answered: AtomicU64::default(),
            answer: Mutex::new(None),
            wanted: AtomicBool::default(),
            call: Notify::default(),
            urgent: Notify::default(),
            stir: Notify::default(),
            answers: Notify::default(),
        }
    }
}

/// What a server is asked for.
pub trait Answer: Clone {
    /// The number of the question.
    fn number(&self) -> u64;
}

/// A server's answer.
#[derive(Debug, Clone)]
pub struct Position {
    /// The number of the question.
    pub number: u64,
    /// What the server had executed.
    pub executed: Arc<GtidSet>,
    /// What a session can have seen there: also what was not counted as executed yet, because a
    /// commit is shown a moment before it counts, on both families.
    pub visible: Arc<GtidSet>,
    /// It took no writes after that was read.
    pub read_only: bool,
    /// The server's incarnation then.
    pub incarnation: u32,
}

impl Answer for Position {
    fn number(&self) -> u64 {
        self.number
    }
}

impl<A: Answer> Positions<A> {
    /// For so many servers to begin with; nothing is known yet.
    pub fn new(servers: usize) -> Self {
        Positions {
            servers: PerServer::new(servers),
            answers: AtomicU64::new(0),
            calm: AtomicBool::new(false),
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

    /// What was visible on the server some time after the mark; none where that is not known yet:
    /// then it is asked.
    pub fn since(&self, server: ServerId, mark: u64) -> Option<A> {
        let known = self.server(server)?;
        let found = known.since(mark);
        if found.is_none() {
            known.want();
        }
        found
    }

    /// The same, asked at once and waited for, `limit` at most; all who wait at one moment share
    /// one question.
    pub async fn ask(&self, server: ServerId, mark: u64, limit: Duration) -> Option<A> {
        let known = self.server(server)?;
        let asking = async {
            loop {
                let answered = known.answers.notified();
                tokio::pin!(answered);
                // From here on no answer is missed.
                answered.as_mut().enable();
                if let Some(found) = known.since(mark) {
                    return found;
                }
                known.want();
                known.urgent.notify_one();
                answered.await;
            }
        };
        tokio::time::timeout(limit, asking).await.ok()
    }

    /// Whether a question to the server is under way, or its last one was answered by nobody.
    pub fn is_asked(&self, server: ServerId) -> bool {
        self.server(server).is_some_and(|server| {
            server.answered.load(Ordering::Acquire) < server.begun.load(Ordering::SeqCst)
        })
    }

    /// How many answers there were, of all servers: who sees the same number again has missed none.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Acquire)
    }

    /// The last answer, where it is newer than number `than`.
    pub fn newer(&self, server: ServerId, than: u64) -> Option<A> {
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

    /// Somebody needs to know it soon.
    pub fn urge(&self, server: ServerId) {
        if let Some(server) = self.server(server) {
            server.want();
            server.urgent.notify_one();
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

    /// Waits until somebody waits for an answer.
    pub(crate) async fn urged(&self, server: ServerId) {
        match self.server(server) {
            Some(server) => server.urgent.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Something was written: how far servers are is soon no longer what it was.
    pub fn stir(&self) {
        if self.calm.load(Ordering::Relaxed) && self.calm.swap(false, Ordering::AcqRel) {
            // Who is asking at this moment finds it afterwards.
            self.servers
                .each()
                .for_each(|server| server.stir.notify_one());
        }
    }

    /// Waits until something is written; for who asks a server less often until then.
    pub(crate) async fn stirred(&self, server: ServerId) {
        self.calm.store(true, Ordering::Release);
        match self.server(server) {
            Some(server) => server.stir.notified().await,
            None => std::future::pending().await,
        }
    }

    /// The number of a question that is about to be sent.
    pub(crate) fn begin(&self, server: ServerId) -> u64 {
        let begun = self.server(server).map(|server| &server.begun);
        begun.map_or(0, |begun| begun.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The answer to it.
    pub(crate) fn answer(&self, server: ServerId, answer: A) {
        if let Some(server) = self.server(server) {
            let number = answer.number();
            *server.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            server.answered.store(number, Ordering::Release);
            self.answers.fetch_add(1, Ordering::AcqRel);
            server.answers.notify_waiters();
        }
    }

    fn server(&self, server: ServerId) -> Option<&Server<A>> {
        self.servers.get(server.index())
    }
}

impl<A: Answer> Server<A> {
    fn since(&self, mark: u64) -> Option<A> {
        let answered = self.answered.load(Ordering::Acquire) > mark;
        answered.then(|| self.get()).flatten()
    }

    fn get(&self) -> Option<A> {
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
            visible: Arc::new(GtidSet::new(Family::MySql)),
            read_only: false,
            incarnation: 0,
        }
    }

    #[test]
    fn only_questions_begun_after_a_read_answer_for_it() {
        let positions = Positions::<Position>::new(1);
        let first = positions.begin(A);
        let mark = positions.mark(A);
        positions.answer(A, position(first));
        assert!(positions.since(A, mark).is_none(), "begun before the read");
        let second = positions.begin(A);
        assert!(positions.since(A, mark).is_none(), "not answered");
        positions.answer(A, position(second));
        assert_eq!(
            positions.since(A, mark).map(|found| found.number),
            Some(second)
        );
        assert!(positions.newer(A, second).is_none());
        assert!(positions.newer(A, first).is_some());
    }

    #[tokio::test]
    async fn who_waits_has_the_question_asked_at_once() {
        let positions = Positions::<Position>::new(1);
        let early = positions.begin(A);
        let mark = positions.mark(A);
        let asked = positions.ask(A, mark, Duration::from_secs(10));
        let answering = async {
            positions.answer(A, position(early));
            positions.urged(A).await;
            positions.called(A).await;
            let number = positions.begin(A);
            positions.answer(A, position(number));
            number
        };
        let (found, number) = tokio::join!(asked, answering);
        assert_eq!(found.map(|found| found.number), Some(number));
        let mark = positions.mark(A);
        let unanswered = positions.ask(A, mark, Duration::from_millis(10)).await;
        assert!(unanswered.is_none());
    }

    #[tokio::test]
    async fn whoever_needs_an_answer_causes_one_question() {
        let positions = Positions::<Position>::new(1);
        let mark = positions.mark(A);
        for _ in 0..3 {
            assert!(positions.since(A, mark).is_none());
        }
        positions.called(A).await;
        let again = tokio::time::timeout(std::time::Duration::from_millis(20), positions.called(A));
        assert!(again.await.is_err(), "nobody has asked again");
    }

    #[tokio::test]
    async fn what_is_written_ends_the_calm_of_every_server_once() {
        const B: ServerId = ServerId(1);
        let positions = Positions::<Position>::new(2);
        let at_once = Duration::from_millis(20);
        positions.stir();
        let unasked = tokio::time::timeout(at_once, positions.stirred(A)).await;
        assert!(unasked.is_err(), "written before the calm");
        // That was given up, as by a server that is being asked; B waits.
        let written = async { positions.stir() };
        tokio::join!(positions.stirred(B), written);
        positions.stirred(A).await;
        for server in [A, B] {
            let again = tokio::time::timeout(at_once, positions.stirred(server)).await;
            assert!(again.is_err(), "nothing was written since");
        }
    }

    #[test]
    fn servers_may_be_found_later_up_to_the_limit() {
        let positions = Positions::<Position>::new(1);
        let found = ServerId(1);
        let mark = positions.mark(found);
        let number = positions.begin(found);
        positions.answer(found, position(number));
        assert!(positions.since(found, mark).is_some());
        let beyond = ServerId(u16::MAX);
        assert!(positions.since(beyond, positions.mark(beyond)).is_none());
    }
}
