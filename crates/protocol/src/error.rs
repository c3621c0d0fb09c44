//! What an error packet says.

use std::fmt;

/// An error packet's content: what a client is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// The error number.
    pub code: u16,
    /// SQLSTATE, five ASCII characters.
    pub state: [u8; 5],
    /// The text, in the connection's character set.
    pub message: Vec<u8>,
}

impl ServerError {
    /// An error of Millrace's own making.
    pub fn new(code: u16, state: &[u8; 5], message: impl Into<Vec<u8>>) -> Self {
        ServerError {
            code,
            state: *state,
            message: message.into(),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}",
            self.code,
            String::from_utf8_lossy(&self.state),
            String::from_utf8_lossy(&self.message)
        )
    }
}
