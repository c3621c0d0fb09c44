//! An account as Millrace knows it: name and password, in memory only.

use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_protocol::auth;
use millrace_topology::ServerId;

use crate::error::ServerError;
use crate::fresh::{Fresh, Version};
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
    /// What caching_sha2_password's fast path is checked with: SHA-256 twice. None where the password
    /// itself is not known.
    sha2: Option<[u8; 32]>,
    /// What mysql_native_password is checked with: SHA-1 twice.
    native: [u8; 20],
    known: Mutex<Known>,
}

/// What servers have said of an account.
#[derive(Debug, Default)]
struct Known {
    proof: Option<Proof>,
    refusals: Vec<Refusal>,
}

/// A server has taken the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The row that it opened, `user@host`. Empty where nobody asked.
    pub current: Box<[u8]>,
    /// How many accounts had been dropped on the servers before ([`Fresh::drops`]).
    pub drops: u64,
    /// The row's [`passwords`](crate::user_rows::UserRow::passwords) then; none where they cannot be read.
    pub passwords: Option<Box<[u8]>>,
}

/// A server has not taken it.
#[derive(Debug)]
struct Refusal {
    server: ServerId,
    version: Version,
    /// None: as long as nothing about the server's accounts changes.
    until: Option<Instant>,
    error: ServerError,
}

/// How long a refusal counts that a change under way may turn.
const DOUBTED: Duration = Duration::from_secs(4);

impl Account {
    /// Derives what later logins are checked with.
    pub fn new(id: u64, user: &[u8], password: Secret) -> Account {
        Account {
            id,
            user: user.into(),
            sha2: password.password().map(auth::sha2_double_hash),
            native: password.native_hash(),
            password,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The primary has taken the password.
    pub fn prove(&self, proof: Proof) {
        let mut known = self.known();
        known.proof = Some(proof);
        known.refusals.clear();
    }

    /// A server has taken it that may be behind the others.
    pub fn forget_refusals(&self) {
        self.known().refusals.clear();
    }

    /// The last proof.
    pub fn proof(&self) -> Option<Proof> {
        self.known().proof.clone()
    }

    /// A server has refused the password. `version`: of its accounts, before it was asked.
    pub fn refuse(&self, server: ServerId, version: Version, fresh: &Fresh, error: &ServerError) {
        let until = (!fresh.is_settled()).then(|| Instant::now() + DOUBTED);
        let mut known = self.known();
        known.refusals.retain(|refusal| refusal.server != server);
        known.refusals.push(Refusal {
            server,
            version,
            until,
            error: error.clone(),
        });
    }

    /// What the server said of the password, where it would say so again. Who asks it all the same uses up the
    /// account's FAILED_LOGIN_ATTEMPTS.
    pub fn refusal(&self, server: ServerId, version: Version) -> Option<ServerError> {
        let known = self.known();
        let counts = |refusal: &&Refusal| {
            refusal.server == server
                && refusal.version == version
                && refusal.until.is_none_or(|until| Instant::now() < until)
        };
        let refusal = known.refusals.iter().find(counts)?;
        Some(refusal.error.clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_until_accounts_change_or_the_password_is_taken() {
        let account = Account::new(1, b"app", Secret::new(b"x".to_vec()));
        let fresh = Fresh::new(Duration::from_secs(1));
        let error = ServerError::new(1045, b"28000", "no");
        let (here, there) = (ServerId(0), ServerId(1));
        account.refuse(here, 7, &fresh, &error);
        assert!(account.refusal(here, 7).is_some());
        assert!(account.refusal(here, 8).is_none() && account.refusal(there, 7).is_none());
        account.prove(Proof {
            current: b"app@%".as_slice().into(),
            drops: 0,
            passwords: None,
        });
        assert!(account.refusal(here, 7).is_none());
    }
}
