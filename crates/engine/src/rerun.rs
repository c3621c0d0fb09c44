//! Who may be sent twice: which errors of a server are not for the client because the statement can run elsewhere, and
//! what follows where the connection breaks under it.

use crate::refusals::Refusals;

/// What is known of a statement before its answer. Asked in the order of need; most need little of it.
pub trait Answering {
    /// It executes a prepared statement, for the first time on this connection.
    fn first_execution(&self) -> bool;
    /// It prepares a statement, and a server that has too many is given another pause.
    fn may_pause(&self) -> bool;
    /// The session had the connection before: something of it lives there.
    fn is_kept(&self) -> bool;
    /// That something is a transaction, which can be run again.
    fn keeps_transaction_only(&self) -> bool;
    /// It changes data, and its listener has replicas only, which all refuse it.
    fn writes_in_vain(&self) -> bool;
    /// Its transaction is read only, on a replica.
    fn is_read_only(&self) -> bool;
    /// It only reads, or changes the session only.
    fn may_repeat(&self) -> bool;
    /// It runs on a replica, and the primary may answer in its place.
    fn may_ask_primary(&self) -> bool;
    /// It may have several results.
    fn has_several_results(&self) -> bool;
    /// It is one plain statement, which a server refuses as a whole.
    fn may_retry(&self) -> bool;
    /// A server that refuses it may have run a part of it for good.
    fn may_be_half_done(&self) -> bool;
    /// With the connection, all that it did is undone.
    fn is_undone(&self) -> bool;
    /// What a plugin stops at its commit is certainly undone: no other server has heard of it.
    fn hook_undoes(&self) -> bool;
    /// It commits something.
    fn commits(&self) -> bool;
}

/// The errors that are not for the client, because the statement can run all the same.
pub fn errors_to_hold(statement: &impl Answering) -> Refusals {
    let anew = if statement.first_execution() {
        Refusals::STALE
    } else if statement.may_pause() {
        Refusals::CROWDED
    } else {
        Refusals::empty()
    };
    let kept = statement.is_kept();
    let read_only = statement.is_read_only();
    // On a listener for replicas no server would take a write: their refusal is the answer.
    let refused = match statement.writes_in_vain() && !read_only {
        true => Refusals::ENDING,
        false => Refusals::NOT_RUN | Refusals::ENDING,
    };
    let hook = || match statement.hook_undoes() {
        true => Refusals::HOOK,
        false => Refusals::empty(),
    };
    let moves = if kept && statement.keeps_transaction_only() {
        refused | hook()
    } else if !kept && statement.may_repeat() && statement.may_ask_primary() {
        let later = match statement.has_several_results() {
            true => Refusals::LACKS_LATER,
            false => Refusals::empty(),
        };
        refused | Refusals::HOOK | Refusals::LACKS | later
    } else if read_only || (!kept && statement.may_repeat()) {
        refused | Refusals::HOOK
    } else if kept || !statement.may_retry() || statement.may_be_half_done() {
        Refusals::empty()
    } else if statement.is_undone() {
        refused | hook()
    } else {
        refused & Refusals::NOT_RUN
    };
    let unproven = match statement.commits() {
        true => Refusals::UNPROVEN,
        false => Refusals::empty(),
    };
    moves | anew | unproven
}

/// A connection broke with a statement under way and nothing of its answer shown.
#[derive(Debug, Clone, Copy)]
pub struct Broken {
    /// The session had the connection before.
    pub kept: bool,
    /// All of the statement had gone out: the server may have run it.
    pub sent: bool,
    /// It only reads, or changes the session only, what its connection has lost with itself.
    pub may_repeat: bool,
    /// It opens a transaction and leaves it open: with the connection, all that it did is gone.
    pub undone: bool,
    /// Connections that broke under it before, and how many may.
    pub lost: u32,
    /// `failover.retries`.
    pub retries: u32,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterBreak {
    /// What the session had on the connection decides.
    Leave,
    /// No server has read it: another may have it.
    Unsent,
    /// Nobody can tell whether it was done.
    Unknown,
    /// It may be what ends its servers: the client is told.
    TooOften,
    /// Another may have it, unless the connection was ended on purpose: as a read that ran for so long.
    UnlessEndedRead,
    /// The same, as a part of what the session has.
    UnlessEndedSession,
}

/// The rule for [`Broken`].
pub fn after_break(broken: Broken) -> AfterBreak {
    let Broken {
        kept,
        sent,
        may_repeat,
        undone,
        lost,
        retries,
    } = broken;
    match (kept, sent) {
        (true, _) => AfterBreak::Leave,
        (false, false) => AfterBreak::Unsent,
        (false, true) if !may_repeat && !undone => AfterBreak::Unknown,
        (false, true) if lost >= retries => AfterBreak::TooOften,
        (false, true) if undone => AfterBreak::UnlessEndedSession,
        (false, true) => AfterBreak::UnlessEndedRead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read on the primary, on a connection of its pool; changed by what a case says.
    #[derive(Debug, Clone, Copy, Default)]
    struct Case {
        first_execution: bool,
        may_pause: bool,
        kept: bool,
        transaction: bool,
        in_vain: bool,
        read_only: bool,
        repeat: bool,
        ask_primary: bool,
        several: bool,
        retry: bool,
        half_done: bool,
        undone: bool,
        hook_undoes: bool,
        commits: bool,
    }

    impl Answering for Case {
        fn first_execution(&self) -> bool {
            self.first_execution
        }
        fn may_pause(&self) -> bool {
            self.may_pause
        }
        fn is_kept(&self) -> bool {
            self.kept
        }
        fn keeps_transaction_only(&self) -> bool {
            self.transaction
        }
        fn writes_in_vain(&self) -> bool {
            self.in_vain
        }
        fn is_read_only(&self) -> bool {
            self.read_only
        }
        fn may_repeat(&self) -> bool {
            self.repeat
        }
        fn may_ask_primary(&self) -> bool {
            self.ask_primary
        }
        fn has_several_results(&self) -> bool {
            self.several
        }
        fn may_retry(&self) -> bool {
            self.retry
        }
        fn may_be_half_done(&self) -> bool {
            self.half_done
        }
        fn is_undone(&self) -> bool {
            self.undone
        }
        fn hook_undoes(&self) -> bool {
            self.hook_undoes
        }
        fn commits(&self) -> bool {
            self.commits
        }
    }

    const READ: Case = Case {
        repeat: true,
        first_execution: false,
        may_pause: false,
        kept: false,
        transaction: false,
        in_vain: false,
        read_only: false,
        ask_primary: false,
        several: false,
        retry: false,
        half_done: false,
        undone: false,
        hook_undoes: false,
        commits: false,
    };
    /// A plain write outside of transactions.
    const WRITE: Case = Case {
        repeat: false,
        retry: true,
        hook_undoes: true,
        commits: true,
        ..READ
    };
    const IN_TRANSACTION: Case = Case {
        kept: true,
        transaction: true,
        commits: false,
        ..WRITE
    };

    #[test]
    fn which_errors_are_not_for_the_client() {
        let both = Refusals::NOT_RUN | Refusals::ENDING;
        let table = [
            ("a read on the primary", READ, both | Refusals::HOOK),
            (
                "a read on a replica",
                Case {
                    ask_primary: true,
                    ..READ
                },
                both | Refusals::HOOK | Refusals::LACKS,
            ),
            (
                "a CALL there",
                Case {
                    ask_primary: true,
                    several: true,
                    ..READ
                },
                both | Refusals::HOOK | Refusals::LACKS | Refusals::LACKS_LATER,
            ),
            ("a write", WRITE, Refusals::NOT_RUN | Refusals::UNPROVEN),
            (
                "a write that opens a transaction",
                Case {
                    undone: true,
                    ..WRITE
                },
                both | Refusals::HOOK | Refusals::UNPROVEN,
            ),
            (
                "the same in a group, which may have heard of it",
                Case {
                    undone: true,
                    hook_undoes: false,
                    ..WRITE
                },
                both | Refusals::UNPROVEN,
            ),
            (
                "a bulk of writes",
                Case {
                    half_done: true,
                    ..WRITE
                },
                Refusals::UNPROVEN,
            ),
            (
                "DDL",
                Case {
                    retry: false,
                    ..WRITE
                },
                Refusals::UNPROVEN,
            ),
            (
                "a write in a transaction",
                IN_TRANSACTION,
                both | Refusals::HOOK,
            ),
            (
                "the COMMIT of one",
                Case {
                    commits: true,
                    ..IN_TRANSACTION
                },
                both | Refusals::HOOK | Refusals::UNPROVEN,
            ),
            (
                "a write beside a temporary table",
                Case {
                    transaction: false,
                    ..IN_TRANSACTION
                },
                Refusals::empty(),
            ),
            (
                "a read there",
                Case { kept: true, ..READ },
                Refusals::empty(),
            ),
            (
                "a write on a listener for replicas",
                Case {
                    in_vain: true,
                    commits: false,
                    ..WRITE
                },
                Refusals::empty(),
            ),
            (
                "the first execution of a prepared read",
                Case {
                    first_execution: true,
                    ..READ
                },
                both | Refusals::HOOK | Refusals::STALE,
            ),
            (
                "a preparation",
                Case {
                    may_pause: true,
                    ..READ
                },
                both | Refusals::HOOK | Refusals::CROWDED,
            ),
        ];
        for (what, case, expected) in table {
            assert_eq!(errors_to_hold(&case), expected, "{what}");
        }
    }

    /// Whatever else is true: who had something on a connection that is no transaction is not moved, and nothing that
    /// may have been done for good is sent again for an error that leaves that open.
    #[test]
    fn nothing_is_done_twice() {
        for bits in 0..1u32 << 14 {
            let bit = |at: u32| bits >> at & 1 == 1;
            let case = Case {
                first_execution: bit(0),
                may_pause: bit(1),
                kept: bit(2),
                transaction: bit(3),
                in_vain: bit(4),
                read_only: bit(5),
                repeat: bit(6),
                ask_primary: bit(7),
                several: bit(8),
                retry: bit(9),
                half_done: bit(10),
                undone: bit(11),
                hook_undoes: bit(12),
                commits: bit(13),
            };
            let held = errors_to_hold(&case);
            if case.kept && !case.transaction && !case.read_only {
                let moves = Refusals::NOT_RUN | Refusals::ENDING | Refusals::HOOK | Refusals::LACKS;
                assert!(!held.intersects(moves), "{case:?}");
            }
            let safe = case.repeat || case.read_only || case.undone || case.kept;
            if !safe {
                assert!(!held.intersects(Refusals::ENDING), "{case:?}");
                assert!(!held.intersects(Refusals::HOOK), "{case:?}");
            }
            if case.commits {
                assert!(held.contains(Refusals::UNPROVEN), "{case:?}");
            }
            if !case.ask_primary || case.kept {
                assert!(!held.intersects(Refusals::LACKS), "{case:?}");
            }
        }
    }

    #[test]
    fn what_follows_a_break() {
        use AfterBreak::*;
        let broken = |kept, sent, may_repeat, undone, lost| {
            after_break(Broken {
                kept,
                sent,
                may_repeat,
                undone,
                lost,
                retries: 2,
            })
        };
        let table = [
            // Kept, sent, repeats, undone, lost before.
            (broken(true, true, true, false, 0), Leave),
            (broken(true, false, false, false, 9), Leave),
            (broken(false, false, false, false, 9), Unsent),
            (broken(false, true, false, false, 0), Unknown),
            (broken(false, true, false, false, 9), Unknown),
            (broken(false, true, true, false, 0), UnlessEndedRead),
            (broken(false, true, true, false, 1), UnlessEndedRead),
            (broken(false, true, true, false, 2), TooOften),
            (broken(false, true, false, true, 1), UnlessEndedSession),
            (broken(false, true, false, true, 2), TooOften),
        ];
        for (at, (is, expected)) in table.into_iter().enumerate() {
            assert_eq!(is, expected, "row {at}");
        }
    }
}
