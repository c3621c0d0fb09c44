//! Rules 1 and 5: which statements may fill, and be served.

use crate::{Never, Rule};

/// As `@@transaction_isolation` of the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// READ UNCOMMITTED.
    ReadUncommitted,
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE.
    Serializable,
}

/// A statement and the session that runs it, as far as the rules ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// The statement is a SELECT.
    pub is_select: bool,
    /// The classifier has understood it.
    pub is_understood: bool,
    /// The session has begun a transaction.
    pub in_transaction: bool,
    /// As `@@autocommit`.
    pub autocommit: bool,
    /// The session holds LOCK TABLES.
    pub tables_locked: bool,
    /// Of the statement.
    pub isolation: Isolation,
    /// FOR UPDATE, FOR SHARE, LOCK IN SHARE MODE.
    pub locks_rows: bool,
    /// INTO, of any kind.
    pub has_into: bool,
    /// User variables or system variables, read or set.
    pub uses_variables: bool,
    /// Calls nothing but functions that are known to give the same in the same session state.
    pub functions_are_stable: bool,
    /// The session may have a temporary table of a name that the statement has.
    pub temporary_table: bool,
    /// All tables are base tables of an engine and a schema whose changes the log tells.
    pub tables_are_logged: bool,
    /// SQL_NO_CACHE, a hint or a rule.
    pub forbidden: bool,
}

impl Situation {
    /// A plain SELECT of known tables in autocommit mode. Tests and callers start from it.
    pub fn plain() -> Self {
        Self {
            is_select: true,
            is_understood: true,
            in_transaction: false,
            autocommit: true,
            tables_locked: false,
            isolation: Isolation::RepeatableRead,
            locks_rows: false,
            has_into: false,
            uses_variables: false,
            functions_are_stable: true,
            temporary_table: false,
            tables_are_logged: true,
            forbidden: false,
        }
    }

    /// Whether its result may be kept, and a kept one be its answer. The first reason counts: those of the
    /// statement before those of the session.
    pub fn check(&self) -> Result<(), Never> {
        let reasons = [
            (!self.is_understood, Never::NotUnderstood),
            (!self.is_select, Never::NotASelect),
            (self.forbidden, Never::Forbidden),
            (self.locks_rows, Never::LocksRows),
            (self.has_into, Never::Into),
            (self.uses_variables, Never::Variables),
            (!self.functions_are_stable, Never::Function),
            (!self.tables_are_logged, Never::Table),
            (self.temporary_table, Never::TemporaryTable),
            (self.tables_locked, Never::TablesLocked),
            (
                self.in_transaction && !Rule::Fill.is_broken(),
                Never::InTransaction,
            ),
            (!self.autocommit, Never::NoAutocommit),
            (
                self.isolation == Isolation::ReadUncommitted,
                Never::ReadUncommitted,
            ),
            (
                self.isolation == Isolation::Serializable,
                Never::Serializable,
            ),
        ];
        match reasons.into_iter().find(|(applies, _)| *applies) {
            Some((_, reason)) => Err(reason),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_forbids_alone() {
        assert_eq!(Situation::plain().check(), Ok(()));
        type Case = (fn(&mut Situation), Never);
        let cases: [Case; 14] = [
            (|s| s.is_understood = false, Never::NotUnderstood),
            (|s| s.is_select = false, Never::NotASelect),
            (|s| s.forbidden = true, Never::Forbidden),
            (|s| s.locks_rows = true, Never::LocksRows),
            (|s| s.has_into = true, Never::Into),
            (|s| s.uses_variables = true, Never::Variables),
            (|s| s.functions_are_stable = false, Never::Function),
            (|s| s.tables_are_logged = false, Never::Table),
            (|s| s.temporary_table = true, Never::TemporaryTable),
            (|s| s.tables_locked = true, Never::TablesLocked),
            (|s| s.in_transaction = true, Never::InTransaction),
            (|s| s.autocommit = false, Never::NoAutocommit),
            (
                |s| s.isolation = Isolation::ReadUncommitted,
                Never::ReadUncommitted,
            ),
            (
                |s| s.isolation = Isolation::Serializable,
                Never::Serializable,
            ),
        ];
        for (change, reason) in cases {
            let mut situation = Situation::plain();
            change(&mut situation);
            assert_eq!(situation.check(), Err(reason));
        }
        assert_eq!(Never::ALL.len(), cases.len());
    }
}
