//! What of a session lives on the server connection that it keeps.

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
    pub temporary_tables: Vec<Box<[u8]>>,
    /// HANDLERs that are open.
    pub handlers: u32,
    /// Why its state keeps its connection.
    pub kept_for: KeptFor,
    /// CURRENT_ROLE() before the first SET ROLE, where that was asked.
    pub login_role: Option<Option<Vec<u8>>>,
    /// The locks asked for by GET_LOCK, as SQL literals.
    pub locks: Vec<Box<str>>,
    /// Some lock's name is not known.
    pub locks_unknown: bool,
    /// What its connection measures.
    pub measuring: Measuring,
}

impl Pinned {
    /// The connection is gone, or nothing lives on it.
    pub fn reset(&mut self) {
        *self = Pinned::default();
    }
}
