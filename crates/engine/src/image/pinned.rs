//! What of a session lives on the server connection that it keeps.

use millrace_sql::lock_names;

use crate::image::measuring::Measuring;

/// What of a session's state lives on its connection, and may end before the session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// `gtid_next`, until it is AUTOMATIC again.
    GtidNext,
    /// SET ROLE, until the role is the login's again.
    Role,
}

/// Why a session's state keeps its connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct KeptFor {
    /// For what ends with the session only.
    forever: bool,
    gtid_next: bool,
    role: bool,
}

impl KeptFor {
    /// For what ends with the session only.
    pub fn hold_forever(&mut self) {
        self.forever = true;
    }

    /// Until the cause has ended.
    pub fn hold(&mut self, cause: Cause) {
        *self.of(cause) = true;
    }

    /// Whether the cause is in force.
    pub fn holds(mut self, cause: Cause) -> bool {
        *self.of(cause)
    }

    /// The cause has ended. True where it was the only one in force.
    pub fn end(&mut self, cause: Cause) -> bool {
        let held = std::mem::take(self.of(cause));
        held && *self == KeptFor::default()
    }

    fn of(&mut self, cause: Cause) -> &mut bool {
        match cause {
            Cause::GtidNext => &mut self.gtid_next,
            Cause::Role => &mut self.role,
        }
    }
}

/// What would be lost with the session's connection.
#[derive(Debug, Default)]
pub struct Pinned {
    /// Temporary tables, as named when created.
    temporary_tables: Vec<Box<[u8]>>,
    /// HANDLERs that are open.
    handlers: u32,
    kept_for: KeptFor,
    /// CURRENT_ROLE() before the first SET ROLE, where that was asked.
    login_role: Option<Option<Vec<u8>>>,
    /// The locks asked for by GET_LOCK, as SQL literals.
    locks: Vec<Box<str>>,
    /// Some lock's name is not known.
    locks_unknown: bool,
    measuring: Measuring,
}

impl Pinned {
    /// The connection is gone, or nothing lives on it.
    pub fn reset(&mut self) {
        *self = Pinned::default();
    }

    /// Why its state keeps its connection.
    pub fn kept_for(&mut self) -> &mut KeptFor {
        &mut self.kept_for
    }

    /// What its connection measures.
    #[inline]
    pub fn measuring(&mut self) -> &mut Measuring {
        &mut self.measuring
    }

    /// Whether there are temporary tables.
    #[inline]
    pub fn has_temporary_tables(&self) -> bool {
        !self.temporary_tables.is_empty()
    }

    /// A temporary table was made.
    pub fn add_temporary_table(&mut self, name: Box<[u8]>) {
        if !self.temporary_tables.contains(&name) {
            self.temporary_tables.push(name);
        }
    }

    /// A table of this name was dropped.
    pub fn drop_table(&mut self, name: &[u8]) {
        self.temporary_tables.retain(|other| **other != *name);
    }

    /// A HANDLER was opened.
    pub fn open_handler(&mut self) {
        self.handlers += 1;
    }

    /// A HANDLER was closed.
    pub fn close_handler(&mut self) {
        self.handlers = self.handlers.saturating_sub(1);
    }

    /// Whether a HANDLER is open.
    pub fn has_handlers(&self) -> bool {
        self.handlers > 0
    }

    /// GET_LOCK was called in this statement.
    pub fn add_locks_of(&mut self, text: &[u8]) {
        if !lock_names(text, &mut self.locks) {
            self.locks_unknown = true;
        }
    }

    /// A lock was asked for; its name, as a SQL literal.
    pub fn add_lock(&mut self, name: Box<str>) {
        if !self.locks.contains(&name) {
            self.locks.push(name);
        }
    }

    /// A lock may have been taken whose name is not known.
    pub fn add_unknown_lock(&mut self) {
        self.locks_unknown = true;
    }

    /// All locks were released.
    pub fn release_locks(&mut self) {
        self.locks.clear();
        self.locks_unknown = false;
    }

    /// The locks that may be held, where all their names are known and there are any.
    pub fn nameable_locks(&self) -> Option<&[Box<str>]> {
        (!self.locks_unknown && !self.locks.is_empty()).then_some(&self.locks)
    }

    /// Keeps those of [`Pinned::nameable_locks`] of which `held` says, in their order, that they are. True where none is.
    pub fn keep_locks(&mut self, mut held: impl Iterator<Item = bool>) -> bool {
        self.locks.retain(|_| held.next().unwrap_or(true));
        self.locks.is_empty()
    }

    /// Whether the role of a login is known, as there was a SET ROLE since.
    pub fn has_other_role(&self) -> bool {
        self.login_role.is_some()
    }

    /// CURRENT_ROLE() of the login, before a SET ROLE.
    pub fn leave_role(&mut self, of_login: Option<Vec<u8>>) {
        self.login_role = Some(of_login);
    }

    /// CURRENT_ROLE() of the login, where there was a SET ROLE since. It outlives a reset of the connection.
    pub fn take_role(&mut self) -> Option<Option<Vec<u8>>> {
        self.login_role.take()
    }

    /// This is CURRENT_ROLE(). True where it is the login's again.
    pub fn note_role(&mut self, role: &Option<Vec<u8>>) -> bool {
        let is_back = self.login_role.as_ref() == Some(role);
        if is_back {
            self.login_role = None;
        }
        is_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_can_be_asked_for_while_all_names_are_known() {
        let mut held = Pinned::default();
        assert_eq!(held.nameable_locks(), None);
        held.add_lock("'a'".into());
        held.add_lock("'b'".into());
        held.add_lock("'a'".into());
        assert_eq!(held.nameable_locks().map(<[_]>::len), Some(2));
        assert!(!held.keep_locks([false, true].into_iter()));
        held.add_unknown_lock();
        assert_eq!(held.nameable_locks(), None);
        held.release_locks();
        held.add_lock("'c'".into());
        assert!(held.keep_locks([false].into_iter()));
    }

    #[test]
    fn a_role_is_other_until_it_is_the_logins_again() {
        let mut held = Pinned::default();
        held.leave_role(None);
        assert!(held.has_other_role() && !held.note_role(&Some(b"r".to_vec())));
        assert!(held.note_role(&None) && !held.has_other_role());
    }

    #[test]
    fn a_cause_ends_the_pin_where_it_is_the_last() {
        let mut kept = KeptFor::default();
        kept.hold(Cause::Role);
        kept.hold(Cause::GtidNext);
        assert!(!kept.end(Cause::Role), "`gtid_next` is set");
        assert!(kept.end(Cause::GtidNext));
        assert!(!kept.end(Cause::GtidNext), "it was not in force");
        kept.hold_forever();
        kept.hold(Cause::Role);
        assert!(!kept.end(Cause::Role));
    }
}
