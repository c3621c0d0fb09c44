//! Accounts whose password is known, and addresses whose logins failed; in memory only.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use millrace_backend::account::Account;
use millrace_backend::secret::Secret;
use tracing::warn;

use crate::options::Options;

/// Passwords kept per name: the same name can stand for several accounts (by host), and a
/// password that is being changed is in use together with the old one.
const PASSWORDS_PER_NAME: usize = 4;
/// Names kept; the first to be dropped are those not used for longest.
const NAMES_MAX: usize = 10_000;
/// Addresses whose failures are remembered.
const ADDRESSES_MAX: usize = 10_000;

/// Shared by all workers; used by logins only.
#[derive(Debug, Default)]
pub struct Accounts {
    next_id: AtomicU64,
    known: Mutex<HashMap<Box<[u8]>, Name>>,
    /// Passwords that servers are asked about, or were a moment ago.
    tried: Mutex<Vec<Weak<Account>>>,
    failures: Mutex<HashMap<IpAddr, Failures>>,
    /// Whether clients of a kind show their password when they are asked, and since when that is known.
    shows: Mutex<HashMap<Asked, (bool, Instant)>>,
    /// It was said that accounts cannot be read.
    unread: AtomicBool,
}

/// Who is asked for a password: programs of one kind, for one account, from one address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The account's name.
    pub user: Box<[u8]>,
    /// None for a Unix socket.
    pub address: Option<IpAddr>,
    /// Tells programs apart: what they can and what they call themselves, hashed.
    pub program: u64,
}

/// For how long clients count as such that show their password, or do not.
const ASKED_MEMORY: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Name {
    accounts: Vec<Arc<Account>>,
    used: Instant,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Accounts {
    /// The accounts known under a name, the latest first.
    pub fn find(&self, user: &[u8]) -> Vec<Arc<Account>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get_mut(user) {
            Some(name) => {
                name.used = Instant::now();
                name.accounts.clone()
            }
            None => Vec::new(),
        }
    }

    /// Says once that the servers do not let Millrace read their accounts.
    pub fn say_unread(&self) {
        if !self.unread.swap(true, Ordering::Relaxed) {
            warn!(
                "the servers' accounts cannot be read: what they ask of hosts, TLS and certificates is \
                 judged by Millrace's own connections; see [monitor] user in docs/logins.md"
            );
        }
    }

    /// Keeps a password that the configuration gives.
    pub fn learn(&self, user: &[u8], password: Secret) -> Arc<Account> {
        self.keep(self.candidate(user, password))
    }

    /// An account whose password no server has accepted yet.
    pub fn candidate(&self, user: &[u8], password: Secret) -> Arc<Account> {
        // Clients that come at once with the same password are one account: a server is asked once.
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.retain(|account| account.strong_count() > 0);
        let same = tried
            .iter()
            .filter_map(Weak::upgrade)
            .find(|account| *account.user == *user && account.password.is(&password));
        if let Some(same) = same {
            return same;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let account = Arc::new(Account::new(id, user, password));
        tried.push(Arc::downgrade(&account));
        account
    }

    /// Keeps a password that a server accepted; answers the account that was known with it, if one was.
    pub fn keep(&self, account: Arc<Account>) -> Arc<Account> {
        let user = &*account.user;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = known.get(user)
            && let Some(same) = name
                .accounts
                .iter()
                .find(|same| same.password.is(&account.password))
        {
            if let Some(proof) = account.proof() {
                same.prove(proof);
            }
            return same.clone();
        }
        if known.len() >= NAMES_MAX && !known.contains_key(user) {
            let oldest = known.iter().min_by_key(|(_, name)| name.used);
            if let Some(oldest) = oldest.map(|(user, _)| user.clone()) {
                known.remove(&oldest);
            }
        }
        let name = known.entry(user.into()).or_insert_with(|| Name {
            accounts: Vec::new(),
            used: Instant::now(),
        });
        name.accounts.insert(0, account.clone());
        name.accounts.truncate(PASSWORDS_PER_NAME);
        account
    }

    /// A server refused the password: it is not offered again.
    pub fn forget(&self, account: &Account) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = known.get_mut(&account.user) {
            name.accounts.retain(|other| other.id != account.id);
            if name.accounts.is_empty() {
                known.remove(&account.user);
            }
        }
    }

    /// Whether a client like this refused to show its password lately.
    pub fn is_mute(&self, asked: &Asked) -> bool {
        let shows = self.shows.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shows.get(asked);
        known.is_some_and(|(shows, since)| !shows && since.elapsed() < ASKED_MEMORY)
    }

    /// A client was asked to show its password. One that broke off may have been cut off: where others like
    /// it have shown theirs, it tells nothing.
    pub fn was_asked(&self, asked: &Asked, shown: bool) {
        let mut shows = self.shows.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |(shows, since): &(bool, Instant)| *shows && since.elapsed() < ASKED_MEMORY;
        if !shown && shows.get(asked).is_some_and(is_known) {
            return;
        }
        if shows.len() >= ADDRESSES_MAX {
            shows.clear();
        }
        shows.insert(asked.clone(), (shown, Instant::now()));
    }

    /// A login of the address failed: its refusal is held back.
    pub async fn hold_back(&self, address: Option<IpAddr>, options: &Options) {
        let delay = self.failed(address, options);
        tokio::time::sleep(delay).await;
    }

    /// A login of the address failed; answers how long the refusal is to be held back.
    pub fn failed(&self, address: Option<IpAddr>, options: &Options) -> Duration {
        let Some(address) = address else {
            return Duration::ZERO;
        };
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= ADDRESSES_MAX {
            failures.retain(|_, failed| failed.last.elapsed() < options.failure_memory);
        }
        let failed = failures.entry(address).or_insert(Failures {
            count: 0,
            last: Instant::now(),
        });
        if failed.last.elapsed() >= options.failure_memory {
            failed.count = 0;
        }
        failed.last = Instant::now();
        failed.count = failed.count.saturating_add(1);
        let Some(slowed) = failed.count.checked_sub(options.failures_free + 1) else {
            return Duration::ZERO;
        };
        options
            .failure_delay
            .saturating_mul(1 << slowed.min(16))
            .min(options.failure_delay_max)
    }

    /// A login of the address succeeded.
    pub fn succeeded(&self, address: Option<IpAddr>) {
        let Some(address) = address else { return };
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if !failures.is_empty() {
            failures.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_learnt_once_and_forgotten() {
        let accounts = Accounts::default();
        let a = accounts.learn(b"app", Secret::new(b"x".to_vec()));
        let b = accounts.learn(b"app", Secret::new(b"x".to_vec()));
        assert_eq!(a.id, b.id);
        let c = accounts.learn(b"app", Secret::new(b"y".to_vec()));
        assert_eq!(accounts.find(b"app").len(), 2);
        accounts.forget(&a);
        assert_eq!(accounts.find(b"app")[0].id, c.id);
    }

    #[test]
    fn who_shows_passwords_is_not_mute_because_one_was_cut_off() {
        let accounts = Accounts::default();
        let asked = |program| Asked {
            user: b"app".as_slice().into(),
            address: Some(IpAddr::from([127, 0, 0, 9])),
            program,
        };
        accounts.was_asked(&asked(1), false);
        assert!(accounts.is_mute(&asked(1)) && !accounts.is_mute(&asked(2)));
        accounts.was_asked(&asked(1), true);
        assert!(!accounts.is_mute(&asked(1)));
        accounts.was_asked(&asked(1), false);
        assert!(!accounts.is_mute(&asked(1)));
    }

    #[test]
    fn failures_are_slowed_down_and_forgiven() {
        let (accounts, options) = (Accounts::default(), Options::default());
        let address = Some(IpAddr::from([127, 0, 0, 9]));
        let delays: Vec<_> = (0..12)
            .map(|_| accounts.failed(address, &options).as_millis())
            .collect();
        assert_eq!(delays[..6], [0, 0, 0, 100, 200, 400]);
        assert_eq!(delays[11], 5000);
        accounts.succeeded(address);
        assert_eq!(accounts.failed(address, &options), Duration::ZERO);
    }
}
