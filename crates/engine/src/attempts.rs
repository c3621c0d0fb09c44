//! A statement's way from the servers that may run it to its answer: the loop that tries, tries again and waits.
//!
//! [`Attempts`] is asked what to do next, and told what came of it. Each [`Next`] names the methods that may follow it.

use std::time::Duration;

use millrace_routing::{Candidate, Candidates};

/// Between two tries of the first that waits, while the server that should run it cannot be reached and nobody says
/// that there is another.
pub const PAUSE: Duration = Duration::from_millis(50);

/// How often a statement is tried anew at once because its connection had been closed before it was read.
const ANEW_MAX: u8 = 3;

/// Why a statement was not run. The loop looks at one thing only.
pub trait Refusal {
    /// It may be otherwise in a moment, or on another server: worth a wait.
    fn is_passing(&self) -> bool;
}

/// What the session is at the moment, as far as it counts here.
pub trait Situation {
    /// A transaction that has lost its server has to be run again before the statement.
    fn has_replay(&self) -> bool;
    /// The primary may answer for a replica: no rule or listener keeps the statement from it.
    fn may_ask_primary(&self) -> bool;
    /// A connection was closed before the statement was read: there may be a better one to the same server. Asked
    /// once for each time.
    fn take_unsent(&mut self) -> bool;
    /// How long ago the statement was begun.
    fn age(&self) -> Duration;
    /// For how long it may wait for a server.
    fn wait_max(&self) -> Duration;
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<E> {
    /// Find out which servers may run it now: [`Attempts::decided`].
    Decide,
    /// Have a connection to this server and run it there: [`Attempts::refused`], unless it answers,
    /// [`Attempts::lacking`], [`Attempts::left`], [`Attempts::again`].
    Try(Candidate),
    /// A replica has refused it for the lack of something: ask the primary. Events as after `Try`, and
    /// [`Attempts::without_primary`].
    TryPrimary(E),
    /// The server has refused the session's database, perhaps: [`Attempts::forgone`] says whether the statement can
    /// do without it.
    ForgoDatabase(E),
    /// Wait among the statements that wait for a server, then [`Attempts::in_turn`]. Before that, rest for so long,
    /// where it has its place already.
    Wait {
        /// For the case that it waits in vain; none where it waits because others do.
        why: Option<E>,
        /// How long to rest first.
        rest: Option<Duration>,
    },
    /// It has waited for as long as it may.
    GiveUp(E),
    /// No server will run the transaction again.
    LoseTransaction,
    /// The client is told.
    Fail(E),
    /// There was nothing to try.
    End,
}

/// How far the loop is.
#[derive(Debug)]
enum At<E> {
    /// Before the servers are known.
    Start,
    /// Trying servers in order.
    Trying {
        candidates: Candidates,
        at: u8,
        /// The last server's word.
        refusal: Option<E>,
        /// It was a replica that may be late.
        late: bool,
    },
    /// On the primary, in place of a replica that lacked something.
    Primary,
}

/// The loop of one statement.
#[derive(Debug)]
pub struct Attempts<E> {
    at: At<E>,
    anew: u8,
    /// When it began to wait, in milliseconds after its begin; none while it has not.
    waits_since_ms: Option<u32>,
}

/// Of a length of time, milliseconds; some 50 days at most.
fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

impl<E> Default for Attempts<E> {
    fn default() -> Self {
        Attempts {
            at: At::Start,
            anew: 0,
            waits_since_ms: None,
        }
    }
}

impl<E: Refusal> Attempts<E> {
    /// Begins. `queues`: others wait that came before it.
    pub fn begin(&mut self, queues: bool, session: &mut impl Situation) -> Next<E> {
        match queues {
            true => {
                self.waits_since_ms = Some(ms(session.age()));
                Next::Wait {
                    why: None,
                    rest: None,
                }
            }
            false => Next::Decide,
        }
    }

    /// Whether it has waited.
    pub fn waits(&self) -> bool {
        self.waits_since_ms.is_some()
    }

    /// What is left of the time for which it may wait.
    pub fn rest(&self, session: &impl Situation) -> Duration {
        let waited = |since| session.age().saturating_sub(Duration::from_millis(since));
        let waited = self.waits_since_ms.map(|since| waited(since.into()));
        session
            .wait_max()
            .saturating_sub(waited.unwrap_or_default())
    }

    /// No other server is tried after the one at hand.
    pub fn is_last(&self) -> bool {
        match &self.at {
            At::Trying { candidates, at, .. } => usize::from(*at) + 1 == candidates.len(),
            At::Start | At::Primary => true,
        }
    }

    /// The servers that may run it, in order; or why there are none.
    pub fn decided(
        &mut self,
        decided: Result<Candidates, E>,
        session: &mut impl Situation,
    ) -> Next<E> {
        match decided {
            Ok(candidates) => {
                self.at = At::Trying {
                    candidates,
                    at: 0,
                    refusal: None,
                    late: false,
                };
                self.next_candidate(session)
            }
            Err(why) => self.not_yet(why, session),
        }
    }

    /// Lets `change` reorder the servers, or replace them; it is also told which of them is tried now. Answers what
    /// `change` does: whether that place is to be tried once more ([`Attempts::again`]).
    pub fn rearrange(&mut self, change: impl FnOnce(&mut Candidates, usize) -> bool) -> bool {
        match &mut self.at {
            At::Trying { candidates, at, .. } => change(candidates, (*at).into()),
            At::Start | At::Primary => false,
        }
    }

    /// The same once more: the connection did not do, or the candidates have changed.
    pub fn again(&mut self, session: &mut impl Situation) -> Next<E> {
        self.next_candidate(session)
    }

    /// The server tried last has not run it. `late`: it is a replica that may lack what its primary has.
    pub fn refused(&mut self, why: E, late: bool, session: &mut impl Situation) -> Next<E> {
        match &mut self.at {
            At::Trying {
                at,
                refusal,
                late: by_late,
                ..
            } => {
                *at += 1;
                (*refusal, *by_late) = (Some(why), late);
                self.next_candidate(session)
            }
            At::Start | At::Primary if why.is_passing() => self.not_yet(why, session),
            At::Start | At::Primary => Next::ForgoDatabase(why),
        }
    }

    /// A replica says that something is not there.
    pub fn lacking(&mut self, answer: E, session: &mut impl Situation) -> Next<E> {
        match self.at {
            At::Primary => self.refused(answer, false, session),
            At::Start | At::Trying { .. } => {
                self.at = At::Primary;
                Next::TryPrimary(answer)
            }
        }
    }

    /// There is no primary to ask: the replica's word is all there is.
    pub fn without_primary(&mut self, answer: E) -> Next<E> {
        Next::Fail(answer)
    }

    /// It had come to keep its connection, which was left: it runs elsewhere, after its transaction.
    pub fn left(&mut self, why: E, session: &mut impl Situation) -> Next<E> {
        self.not_yet(why, session)
    }

    /// It can do without a setting that the server has refused.
    pub fn without_state(&mut self) -> Next<E> {
        Next::Decide
    }

    /// Whether it can do without its database, which `why` refused.
    pub fn forgone(&mut self, forgone: bool, why: E, session: &impl Situation) -> Next<E> {
        match forgone {
            true => Next::Decide,
            false if session.has_replay() => Next::LoseTransaction,
            false => Next::Fail(why),
        }
    }

    /// It is its turn among those that wait.
    pub fn in_turn(&mut self) -> Next<E> {
        Next::Decide
    }

    fn next_candidate(&mut self, session: &mut impl Situation) -> Next<E> {
        let At::Trying {
            candidates,
            at,
            refusal,
            late,
        } = &mut self.at
        else {
            return Next::End;
        };
        if let Some(candidate) = candidates.get(usize::from(*at)) {
            return Next::Try(*candidate);
        }
        match (refusal.take(), *late) {
            (None, _) => Next::End,
            (Some(why), _) if why.is_passing() => self.not_yet(why, session),
            (Some(why), false) => Next::ForgoDatabase(why),
            (Some(why), true) if !session.has_replay() && session.may_ask_primary() => {
                self.at = At::Primary;
                Next::TryPrimary(why)
            }
            (Some(_), true) if session.has_replay() => Next::LoseTransaction,
            (Some(why), true) => Next::Fail(why),
        }
    }

    /// Not now: it is tried at once where a better connection may be had, else it waits.
    fn not_yet(&mut self, why: E, session: &mut impl Situation) -> Next<E> {
        if self.waits_since_ms.is_none() {
            self.anew += 1;
            if session.take_unsent() && self.anew <= ANEW_MAX {
                return Next::Decide;
            }
            self.waits_since_ms = Some(ms(session.age()));
            return Next::Wait {
                why: Some(why),
                rest: None,
            };
        }
        let rest = self.rest(session);
        match rest.is_zero() {
            true => Next::GiveUp(why),
            false => Next::Wait {
                why: Some(why),
                rest: Some(PAUSE.min(rest)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use millrace_topology::ServerId;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Why {
        Passing,
        Final,
    }
    use Why::{Final, Passing};

    impl Refusal for Why {
        fn is_passing(&self) -> bool {
            *self == Passing
        }
    }

    #[derive(Debug)]
    struct Session {
        replay: bool,
        ask_primary: bool,
        unsent: bool,
        age: Cell<Duration>,
    }

    const WAIT_MAX: Duration = Duration::from_secs(1);

    impl Situation for Session {
        fn has_replay(&self) -> bool {
            self.replay
        }
        fn may_ask_primary(&self) -> bool {
            self.ask_primary
        }
        fn take_unsent(&mut self) -> bool {
            std::mem::take(&mut self.unsent)
        }
        fn age(&self) -> Duration {
            self.age.get()
        }
        fn wait_max(&self) -> Duration {
            WAIT_MAX
        }
    }

    fn session() -> Session {
        Session {
            replay: false,
            ask_primary: true,
            unsent: false,
            age: Cell::default(),
        }
    }

    fn server(at: u16) -> Candidate {
        Candidate {
            server: ServerId(at),
            wait: false,
        }
    }

    fn servers(count: u16) -> Result<Candidates, Why> {
        Ok((0..count).map(server).collect())
    }

    /// A loop that is about to try the first of so many servers.
    fn trying(count: u16, session: &mut Session) -> Attempts<Why> {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.begin(false, session), Next::Decide);
        assert_eq!(
            attempts.decided(servers(count), session),
            Next::Try(server(0))
        );
        attempts
    }

    #[test]
    fn servers_are_tried_in_order_and_the_last_word_counts() {
        let mut session = session();
        let mut attempts = trying(2, &mut session);
        assert!(!attempts.is_last());
        let next = attempts.refused(Passing, false, &mut session);
        assert_eq!(next, Next::Try(server(1)));
        assert!(attempts.is_last());
        let next = attempts.refused(Final, false, &mut session);
        assert_eq!(next, Next::ForgoDatabase(Final));
        assert_eq!(attempts.forgone(false, Final, &session), Next::Fail(Final));
        assert_eq!(attempts.forgone(true, Final, &session), Next::Decide);
    }

    #[test]
    fn a_late_replica_has_not_the_last_word() {
        let mut session = session();
        let mut attempts = trying(1, &mut session);
        let next = attempts.refused(Final, true, &mut session);
        assert_eq!(next, Next::TryPrimary(Final));
        // Not twice.
        let next = attempts.lacking(Final, &mut session);
        assert_eq!(next, Next::ForgoDatabase(Final));

        session.ask_primary = false;
        let mut attempts = trying(1, &mut session);
        let next = attempts.refused(Final, true, &mut session);
        assert_eq!(next, Next::Fail(Final));

        let mut attempts = trying(3, &mut session);
        let next = attempts.lacking(Final, &mut session);
        assert_eq!(next, Next::TryPrimary(Final));
        assert_eq!(attempts.without_primary(Final), Next::Fail(Final));
    }

    #[test]
    fn a_transaction_that_no_server_runs_again_is_lost() {
        let mut session = session();
        session.replay = true;
        for late in [true, false] {
            let mut attempts = trying(1, &mut session);
            let next = match attempts.refused(Final, late, &mut session) {
                Next::ForgoDatabase(why) => attempts.forgone(false, why, &session),
                next => next,
            };
            assert_eq!(next, Next::LoseTransaction);
        }
    }

    #[test]
    fn what_was_not_read_is_tried_anew_a_few_times() {
        let mut session = session();
        let mut attempts = trying(1, &mut session);
        for _ in 0..ANEW_MAX {
            session.unsent = true;
            assert_eq!(attempts.refused(Passing, false, &mut session), Next::Decide);
            assert_eq!(
                attempts.decided(servers(1), &mut session),
                Next::Try(server(0))
            );
        }
        session.unsent = true;
        let next = attempts.refused(Passing, false, &mut session);
        let wait = Next::Wait {
            why: Some(Passing),
            rest: None,
        };
        assert_eq!(next, wait);
    }

    #[test]
    fn it_rests_between_two_tries_and_is_given_up_in_the_end() {
        let mut session = session();
        let mut attempts = Attempts::default();
        let first = Next::Wait {
            why: None,
            rest: None,
        };
        assert_eq!(attempts.begin(true, &mut session), first);
        for (age_ms, rest_ms) in [(100, 50), (900, 50), (980, 20)] {
            session.age.set(Duration::from_millis(age_ms));
            assert_eq!(attempts.in_turn(), Next::Decide);
            let next = attempts.decided(Err(Passing), &mut session);
            let wait = Next::Wait {
                why: Some(Passing),
                rest: Some(Duration::from_millis(rest_ms)),
            };
            assert_eq!(next, wait, "after {age_ms} ms");
        }
        session.age.set(WAIT_MAX);
        let next = attempts.decided(Err(Passing), &mut session);
        assert_eq!(next, Next::GiveUp(Passing));
    }

    #[test]
    fn servers_can_be_reordered_and_replaced() {
        let mut session = session();
        let mut attempts = trying(3, &mut session);
        let next = attempts.refused(Passing, false, &mut session);
        assert_eq!(next, Next::Try(server(1)));
        assert!(attempts.rearrange(|all, at| {
            all[at..].rotate_left(1);
            true
        }));
        assert_eq!(attempts.again(&mut session), Next::Try(server(2)));
        assert!(!Attempts::<Why>::default().rearrange(|_, _| true));
    }

    proptest! {
        /// Whatever servers say, a statement is tried on each at most once between two looks at them, tells the
        /// client nothing while something else is to be done, and comes to an end.
        #[test]
        fn every_statement_ends(
            events in proptest::collection::vec((0..6u8, any::<bool>(), 0..4u16), 400),
            replay in any::<bool>(),
            ask_primary in any::<bool>(),
        ) {
            let mut session = Session { replay, ask_primary, ..session() };
            let mut attempts = Attempts::default();
            let mut next = attempts.begin(false, &mut session);
            let mut tried = Vec::new();
            for (what, yes, count) in events {
                let age = session.age.get();
                let why = if yes { Passing } else { Final };
                next = match next {
                    Next::Decide => {
                        tried.clear();
                        match count {
                            0 => attempts.decided(Err(Passing), &mut session),
                            count => attempts.decided(servers(count), &mut session),
                        }
                    }
                    Next::Try(candidate) => {
                        prop_assert!(!tried.contains(&candidate.server));
                        tried.push(candidate.server);
                        session.unsent = what == 5;
                        match what {
                            0 => break,
                            1 => attempts.lacking(Final, &mut session),
                            2 => attempts.left(Passing, &mut session),
                            _ => attempts.refused(why, what == 4, &mut session),
                        }
                    }
                    Next::TryPrimary(answer) => match what {
                        0 => break,
                        1 => attempts.without_primary(answer),
                        2 => attempts.lacking(Final, &mut session),
                        _ => attempts.refused(why, false, &mut session),
                    },
                    Next::ForgoDatabase(why) => attempts.forgone(what == 0, why, &session),
                    Next::Wait { rest, .. } => {
                        prop_assert!(attempts.waits());
                        let rest = rest.unwrap_or_default().max(Duration::from_millis(20));
                        session.age.set(age + rest);
                        attempts.in_turn()
                    }
                    Next::GiveUp(_) => {
                        prop_assert!(age >= WAIT_MAX);
                        break;
                    }
                    Next::LoseTransaction => {
                        prop_assert!(replay);
                        break;
                    }
                    Next::Fail(why) => {
                        prop_assert_eq!(why, Final);
                        break;
                    }
                    Next::End => return Err(TestCaseError::fail("there was a server")),
                };
            }
            prop_assert!(session.age.get() <= WAIT_MAX + Duration::from_millis(50));
        }
    }
}
