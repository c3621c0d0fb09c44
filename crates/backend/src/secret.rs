//! A password in memory: zeroed when dropped, never printed.

use std::fmt;
use zeroize::Zeroizing;

/// A password. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes over.
    pub fn new(bytes: Vec<u8>) -> Self {
        Secret(Zeroizing::new(bytes))
    }

    /// The bytes, without a closing NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// True for the empty password.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
