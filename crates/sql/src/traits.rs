//! What a kind of statement means to a session, in one table: every kind has its row, so that a new one
//! cannot be on the wrong side of a rule that its author never saw.

use bitflags::bitflags;

use crate::statement::{Kind, Show, Statement};

bitflags! {
    /// What is true of every statement of a kind, whatever its text says beside.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Traits: u32 {
        /// One statement on rows, which is nothing but its text: SELECT, INSERT, REPLACE, UPDATE, DELETE.
        const ROWS = 1 << 0;
        /// Changes rows of the tables that it names.
        const CHANGES_ROWS = 1 << 1;
        /// May run statements that are not in its text, or not understood.
        const RUNS_OTHERS = 1 << 2;
        /// May change LAST_INSERT_ID() without its answer saying so.
        const SETS_ID_UNTOLD = 1 << 3;
        /// May generate a LAST_INSERT_ID(), and may so need the one from before.
        const GENERATES_ID = 1 << 4;
        /// May draw from a sequence by a column's default.
        const MAY_DRAW = 1 << 5;
        /// Runs, makes or closes what the session has by name: SQL-level prepared statements, user variables.
        const USES_PRIVATE = 1 << 6;
        /// Leaves nothing on its connection that keeps it.
        const LEAVES_NOTHING = 1 << 7;
        /// Uses up what SET TRANSACTION said, whether or not it reads a table.
        const OPENS_TRANSACTION = 1 << 8;
        /// Never ends a transaction.
        const STAYS_IN_TRANSACTION = 1 << 9;
        /// May be run again with its transaction on another server.
        const REPLAYABLE = 1 << 10;
        /// May be sent to another server where one has refused it as a write.
        const RETRYABLE = 1 << 11;
        /// Without tables and functions, its answer depends on nothing that others can change.
        const SEES_NOTHING = 1 << 12;
        /// MariaDB's SET STATEMENT before it sets nothing that outlives it.
        const SETS_NOTHING = 1 << 13;
        /// Its own meaning explains that the server reports changed session state.
        const CHANGES_STATE = 1 << 14;
        /// May change what a new login has: accounts, privileges, roles, global variables.
        const CHANGES_LOGINS = 1 << 15;
        /// Reads what a session must have seen, even where it names no table.
        const READS_UNNAMED = 1 << 16;
    }
}

/// SELECT and the statements that change rows.
const ON_ROWS: Traits = Traits::ROWS
    .union(Traits::LEAVES_NOTHING)
    .union(Traits::STAYS_IN_TRANSACTION)
    .union(Traits::REPLAYABLE)
    .union(Traits::RETRYABLE)
    .union(Traits::SETS_NOTHING);

/// UPDATE and DELETE, and what INSERT and REPLACE are too.
const CHANGE: Traits = ON_ROWS.union(Traits::CHANGES_ROWS);

/// INSERT and REPLACE.
const INSERT: Traits = CHANGE.union(Traits::GENERATES_ID).union(Traits::MAY_DRAW);

/// Whatever runs what is not in its text.
const OPAQUE: Traits = Traits::RUNS_OTHERS
    .union(Traits::SETS_ID_UNTOLD)
    .union(Traits::GENERATES_ID)
    .union(Traits::MAY_DRAW)
    .union(Traits::USES_PRIVATE);

/// SHOW and EXPLAIN.
const QUESTION: Traits = Traits::LEAVES_NOTHING
    .union(Traits::STAYS_IN_TRANSACTION)
    .union(Traits::REPLAYABLE)
    .union(Traits::SETS_NOTHING);

/// SAVEPOINT and its like.
const SAVEPOINT: Traits = Traits::REPLAYABLE.union(Traits::SEES_NOTHING);

impl Kind {
    /// What is true of every statement of this kind.
    #[inline]
    pub const fn traits(self) -> Traits {
        let none = Traits::empty();
        match self {
            Kind::Unknown | Kind::Multi => OPAQUE
                .union(Traits::OPENS_TRANSACTION)
                .union(Traits::READS_UNNAMED),
            Kind::Call => OPAQUE
                .union(Traits::OPENS_TRANSACTION)
                .union(Traits::SETS_NOTHING),
            Kind::Execute { .. } => OPAQUE,
            Kind::Select => ON_ROWS.union(Traits::SEES_NOTHING),
            Kind::Insert | Kind::Replace => INSERT,
            Kind::Update => CHANGE.union(Traits::MAY_DRAW),
            Kind::Delete => CHANGE,
            Kind::LoadData { .. } => Traits::SETS_ID_UNTOLD
                .union(Traits::GENERATES_ID)
                .union(Traits::MAY_DRAW)
                .union(Traits::SETS_NOTHING),
            Kind::Show(Show::Metadata | Show::Create) | Kind::Explain { .. } => {
                QUESTION.union(Traits::READS_UNNAMED)
            }
            Kind::Show(_) => QUESTION,
            Kind::Diagnostics | Kind::Ping => Traits::LEAVES_NOTHING
                .union(Traits::STAYS_IN_TRANSACTION)
                .union(Traits::REPLAYABLE)
                .union(Traits::SEES_NOTHING),
            Kind::Help | Kind::Command => Traits::LEAVES_NOTHING
                .union(Traits::REPLAYABLE)
                .union(Traits::READS_UNNAMED),
            Kind::Do => Traits::REPLAYABLE
                .union(Traits::RETRYABLE)
                .union(Traits::SEES_NOTHING)
                .union(Traits::SETS_NOTHING),
            Kind::Set => Traits::REPLAYABLE
                .union(Traits::SEES_NOTHING)
                .union(Traits::CHANGES_STATE),
            Kind::SetTransaction => Traits::SEES_NOTHING.union(Traits::CHANGES_STATE),
            Kind::SetRole => Traits::CHANGES_STATE,
            Kind::Use => Traits::LEAVES_NOTHING
                .union(Traits::REPLAYABLE)
                .union(Traits::SEES_NOTHING)
                .union(Traits::CHANGES_STATE)
                .union(Traits::READS_UNNAMED),
            Kind::Begin => Traits::OPENS_TRANSACTION
                .union(Traits::REPLAYABLE)
                .union(Traits::SEES_NOTHING)
                .union(Traits::CHANGES_STATE)
                .union(Traits::READS_UNNAMED),
            Kind::Commit => Traits::LEAVES_NOTHING
                .union(Traits::SEES_NOTHING)
                .union(Traits::CHANGES_STATE),
            Kind::Rollback => Traits::SEES_NOTHING.union(Traits::CHANGES_STATE),
            Kind::Savepoint => SAVEPOINT.union(Traits::STAYS_IN_TRANSACTION),
            Kind::ReleaseSavepoint | Kind::RollbackTo => SAVEPOINT,
            Kind::Ddl => Traits::LEAVES_NOTHING.union(Traits::SETS_NOTHING),
            Kind::Prepare => Traits::USES_PRIVATE
                .union(Traits::CHANGES_STATE)
                .union(Traits::READS_UNNAMED),
            Kind::Deallocate => Traits::USES_PRIVATE
                .union(Traits::SEES_NOTHING)
                .union(Traits::CHANGES_STATE),
            Kind::Xa(_) => Traits::OPENS_TRANSACTION,
            Kind::Account | Kind::SetDefaultRole | Kind::SetPassword | Kind::Flush { .. } => {
                Traits::CHANGES_LOGINS
            }
            Kind::Empty
            | Kind::SetResourceGroup
            | Kind::LockTables
            | Kind::UnlockTables
            | Kind::Kill
            | Kind::Handler(_)
            | Kind::Signal
            | Kind::Admin => none,
        }
    }
}

impl Statement {
    /// Whether one of these is true of its kind.
    #[inline]
    pub fn is(&self, traits: Traits) -> bool {
        self.kind.traits().intersects(traits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a statement with an unknown effect may do has to be assumed of it.
    #[test]
    fn what_is_not_understood_may_do_anything() {
        for kind in [Kind::Unknown, Kind::Multi] {
            let traits = kind.traits();
            assert!(traits.contains(OPAQUE | Traits::OPENS_TRANSACTION | Traits::READS_UNNAMED));
            let safe = Traits::ROWS
                | Traits::LEAVES_NOTHING
                | Traits::STAYS_IN_TRANSACTION
                | Traits::REPLAYABLE
                | Traits::RETRYABLE
                | Traits::SEES_NOTHING
                | Traits::SETS_NOTHING
                | Traits::CHANGES_STATE;
            assert!(!traits.intersects(safe), "{kind:?}");
        }
    }

    /// What asks the server for a sign of life ends nothing, reads nothing and leaves nothing.
    #[test]
    fn a_ping_is_as_little_as_a_question_about_messages() {
        assert_eq!(Kind::Ping.traits(), Kind::Diagnostics.traits());
        assert!(
            Kind::Ping
                .traits()
                .contains(Traits::STAYS_IN_TRANSACTION | Traits::SEES_NOTHING)
        );
        assert!(!Kind::Ping.traits().intersects(Traits::READS_UNNAMED));
    }

    #[test]
    fn traits_imply_each_other() {
        let kinds = [
            Kind::Unknown,
            Kind::Empty,
            Kind::Multi,
            Kind::Select,
            Kind::Insert,
            Kind::Replace,
            Kind::Update,
            Kind::Delete,
            Kind::LoadData { local: true },
            Kind::Call,
            Kind::Do,
            Kind::Set,
            Kind::Begin,
            Kind::Commit,
            Kind::Rollback,
            Kind::Savepoint,
            Kind::Ddl,
            Kind::Execute { immediate: false },
            Kind::Prepare,
            Kind::Help,
            Kind::Diagnostics,
        ];
        for kind in kinds {
            let traits = kind.traits();
            let implies = |this: Traits, that: Traits| {
                assert!(
                    !traits.intersects(this) || traits.contains(that),
                    "{kind:?}"
                );
            };
            implies(Traits::CHANGES_ROWS, Traits::ROWS);
            implies(
                Traits::RUNS_OTHERS,
                Traits::SETS_ID_UNTOLD | Traits::USES_PRIVATE,
            );
            implies(Traits::SETS_ID_UNTOLD, Traits::GENERATES_ID);
            implies(Traits::RETRYABLE, Traits::REPLAYABLE);
            // Code of others may do what its caller does not say.
            assert!(
                !traits.contains(Traits::RUNS_OTHERS | Traits::REPLAYABLE),
                "{kind:?}"
            );
        }
    }
}
