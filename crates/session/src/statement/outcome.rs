//! What a server's answer said besides its rows.

use millrace_backend::error::ServerError;
use millrace_protocol::Status;

use crate::failover::checksum::Sum;

/// What a server's answer said besides its rows.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The error that ended it.
    pub(crate) error: Option<Box<ServerError>>,
    pub(crate) affected_rows: u64,
    pub(crate) insert_id: u64,
    pub(crate) warnings: u16,
    /// Rows that an UPDATE found, changed or not, where the OK tells.
    pub(crate) matched: Option<u64>,
    /// The last packet was an OK, not the end of rows.
    pub(crate) ended_ok: bool,
    pub(crate) status: Status,
    /// The answer had status flags.
    pub(crate) has_status: bool,
    /// Rows of the last result set; meaningless where there was none.
    pub(crate) rows: u64,
    pub(crate) result_sets: u32,
    /// Session variables reported as changed, in order.
    pub(crate) variables: Vec<(Box<str>, Box<[u8]>)>,
    /// The default database reported as changed.
    pub(crate) schema: Option<Box<[u8]>>,
    /// The server says that some state changed.
    pub(crate) state_changed: bool,
    /// The end of some rows says so, without what.
    pub(crate) end_marked: bool,
    /// A position was reported.
    pub(crate) positioned: bool,
    /// It ended with an error, before which something may have been committed.
    pub(crate) committed_untold: bool,
    /// The server's number of a statement that was prepared, with columns and parameters.
    pub(crate) prepared: Option<(u32, u16, u16)>,
    /// Bytes of the answer went to the client.
    pub(crate) forwarded: bool,
    /// Of definitions and rows as the server sent them, where that was asked for.
    pub(crate) sum: Sum,
}

impl Outcome {
    /// As new, with the room that it has.
    pub(crate) fn clear(&mut self) {
        let mut variables = std::mem::take(&mut self.variables);
        variables.clear();
        *self = Outcome {
            variables,
            ..Outcome::default()
        };
    }
}
