//! What a server's answer said besides its rows.

use millrace_protocol::ServerError;
use millrace_protocol::Status;

use crate::checksum::Sum;

/// What a server's answer said besides its rows.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The error that ended it.
    pub error: Option<Box<ServerError>>,
    /// Of the last OK.
    pub affected_rows: u64,
    /// The number that the last OK told; 0: none.
    pub insert_id: u64,
    /// How many it counted.
    pub warnings: u16,
    /// Rows that an UPDATE found, changed or not, where the OK tells.
    pub matched: Option<u64>,
    /// The last packet was an OK, not the end of rows.
    pub ended_ok: bool,
    /// The last status flags.
    pub status: Status,
    /// The answer had status flags.
    pub has_status: bool,
    /// Rows of the last result set; meaningless where there was none.
    pub rows: u64,
    /// How many results with rows there were.
    pub result_sets: u32,
    /// Session variables reported as changed, in order.
    pub variables: Vec<(Box<str>, Box<[u8]>)>,
    /// The default database reported as changed.
    pub schema: Option<Box<[u8]>>,
    /// The server says that some state changed.
    pub state_changed: bool,
    /// The end of some rows says so, without what.
    pub end_marked: bool,
    /// A position was reported.
    pub positioned: bool,
    /// It ended with an error, before which something may have been committed.
    pub committed_untold: bool,
    /// The server's number of a statement that was prepared, with columns and parameters.
    pub prepared: Option<(u32, u16, u16)>,
    /// Bytes of the answer went to the client.
    pub forwarded: bool,
    /// Of definitions and rows as the server sent them, where that was asked for.
    pub sum: Sum,
}

impl Outcome {
    /// As new, with the room that it has.
    pub fn clear(&mut self) {
        let mut variables = std::mem::take(&mut self.variables);
        variables.clear();
        *self = Outcome {
            variables,
            ..Outcome::default()
        };
    }
}
