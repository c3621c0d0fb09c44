//! What of a session lives on the server connection that it keeps.

use crate::image::measuring::Measuring;
use crate::image::pins::KeptFor;

/// What would be lost with the session's connection.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    /// Temporary tables, as named when created.
    pub(crate) temporary_tables: Vec<Box<[u8]>>,
    /// HANDLERs that are open.
    pub(crate) handlers: u32,
    /// Why its state keeps its connection.
    pub(crate) kept_for: KeptFor,
    /// CURRENT_ROLE() before the first SET ROLE, where that was asked.
    pub(crate) login_role: Option<Option<Vec<u8>>>,
    /// The locks asked for by GET_LOCK, as SQL literals.
    pub(crate) locks: Vec<Box<str>>,
    /// Some lock's name is not known.
    pub(crate) locks_unknown: bool,
    /// What its connection measures.
    pub(super) measuring: Measuring,
}

impl Pinned {
    /// The connection is gone, or nothing lives on it.
    pub(crate) fn reset(&mut self) {
        *self = Pinned::default();
    }
}
