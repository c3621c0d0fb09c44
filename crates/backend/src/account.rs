//! An account as Millrace knows it: name and password, in memory only.

use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicBool;

use millrace_protocol::auth;

use crate::secret::Secret;

/// A name with a password that a server has accepted. A changed password makes a new one.
#[derive(Debug)]
pub struct Account {
    /// Unique within the process.
    pub id: u64,
    /// The account's name as clients send it.
    pub user: Box<[u8]>,
    /// The password.
    pub password: Secret,
    /// Its sessions ask what they drew from sequences.
    pub asks_for_draws: AtomicBool,
    /// What caching_sha2_password's fast path is checked with: SHA-256 twice. None where the password
    /// itself is not known.
    sha2: Option<[u8; 32]>,
    /// What mysql_native_password is checked with: SHA-1 twice.
    native: [u8; 20],
}

impl Account {
    /// Derives what later logins are checked with.
    pub fn new(id: u64, user: &[u8], password: Secret) -> Account {
        Account {
            id,
            user: user.into(),
            asks_for_draws: AtomicBool::new(false),
            sha2: password.password().map(auth::sha2_double_hash),
            native: password.native_hash(),
            password,
        }
    }

    /// Whether a client's caching_sha2_password answer proves this password.
    pub fn proves_sha2(&self, response: &[u8], nonce: &[u8; 20]) -> bool {
        let proves = |hash| auth::verify_sha2(response, nonce, hash).is_some();
        self.sha2.as_ref().is_some_and(proves)
    }

    /// Whether a client's mysql_native_password answer proves this password.
    pub fn proves_native(&self, response: &[u8], nonce: &[u8; 20]) -> bool {
        auth::verify_native(response, nonce, &self.native).is_some()
    }
}

impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Account {}

impl Hash for Account {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}
