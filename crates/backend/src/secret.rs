//! A password in memory: zeroed when dropped, never printed.

use std::fmt;

use millrace_protocol::auth;
use zeroize::Zeroizing;

/// What an account logs in with. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Password,
    /// `SHA1(password)`, which is all that mysql_native_password needs.
    NativeKey,
}

impl Secret {
    /// Takes a password over.
    pub fn new(bytes: Vec<u8>) -> Self {
        Secret {
            bytes: Zeroizing::new(bytes),
            kind: Kind::Password,
        }
    }

    /// `SHA1(password)` of a password that nobody has shown. It opens accounts of mysql_native_password.
    pub fn native_key(key: [u8; 20]) -> Self {
        Secret {
            bytes: Zeroizing::new(key.to_vec()),
            kind: Kind::NativeKey,
        }
    }

    /// The password, without a closing NUL. None where it is not known.
    pub fn password(&self) -> Option<&[u8]> {
        (self.kind == Kind::Password).then_some(&self.bytes)
    }

    /// True for the empty password.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The same, known in the same way.
    pub fn is(&self, other: &Secret) -> bool {
        self.kind == other.kind && auth::same(&self.bytes, &other.bytes)
    }

    /// The answer to mysql_native_password; empty for the empty password.
    pub fn scramble_native(&self, nonce: &[u8; 20]) -> Vec<u8> {
        match (self.kind, <[u8; 20]>::try_from(&self.bytes[..])) {
            (Kind::NativeKey, Ok(key)) => auth::native_from_stage1(&key, nonce).to_vec(),
            _ if self.is_empty() => Vec::new(),
            _ => auth::scramble_native(&self.bytes, nonce).to_vec(),
        }
    }

    /// `SHA1(SHA1(password))`, which servers keep.
    pub fn native_hash(&self) -> [u8; 20] {
        match self.kind {
            Kind::Password => auth::native_double_hash(&self.bytes),
            Kind::NativeKey => auth::native_hash(&self.bytes),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
