//! A password read from a file or the environment. Never printed, zeroed when dropped.

use std::fmt;

use zeroize::Zeroizing;

/// Bytes that must not be seen. `Debug` shows nothing of them, not even their number.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes over.
    pub fn new(bytes: Vec<u8>) -> Self {
        Secret(Zeroizing::new(bytes))
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is the empty password.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
