//! Since when each server's accounts and global variables are what they are, so that a new login
//! never gets a connection that was opened before they changed. Asks nothing itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_engine::books::ByLogin;

/// Counts the changes of a server's accounts and global variables. A connection has the version
/// that was in force when its login began.
pub type Version = u64;

/// Servers count a GRANT when it begins. So long after the last one that was seen, its effects may
/// still be to come; milliseconds.
const SETTLING_MS: u64 = 10_000;

/// Nobody has looked yet.
const NEVER: u64 = u64::MAX;

/// What is known of one server. Shared by all threads.
#[derive(Debug)]
pub struct Fresh {
    version: AtomicU64,
    /// When the version last grew; milliseconds since `origin`.
    grown_ms: AtomicU64,
    /// When the last look began that found all as it was; milliseconds since `origin`.
    proven_ms: AtomicU64,
    /// Until then looks prove nothing; milliseconds since `origin`, 0 when settled.
    unsettled_until_ms: AtomicU64,
    /// `init_connect` is set, which only a new connection runs.
    init_connect: AtomicBool,
    /// A [`ByLogin`]: what a login gives that a reset takes away.
    by_login: AtomicU8,
    /// The global `autocommit` is off.
    autocommit_off: AtomicBool,
    /// How many accounts were dropped or renamed, as far as anybody looked.
    drops: AtomicU64,
    /// What the server said of that last; [`NEVER`] before anybody looked.
    drops_said: AtomicU64,
    /// Nothing proves a connection for longer than this; milliseconds.
    age_ms_max: u64,
    origin: Instant,
}

/// What a server says when it is asked whether its accounts and global variables have changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Look {
    /// Global variables, how often accounts were changed, and, where they must be read, the accounts.
    pub(crate) fingerprint: Vec<Vec<u8>>,
    /// All that matters could be read.
    pub(crate) complete: bool,
    pub(crate) init_connect: bool,
    /// What a login gives that a reset takes away.
    pub(crate) by_login: ByLogin,
    pub(crate) autocommit_off: bool,
    /// How many accounts were dropped or renamed since it was started, where it says so.
    pub(crate) drops: Option<u64>,
}

impl Fresh {
    /// For a server that nobody has looked at. A change may go unnoticed by new logins for `age_max`.
    pub fn new(age_max: Duration) -> Arc<Fresh> {
        Arc::new(Fresh {
            version: AtomicU64::new(1),
            grown_ms: AtomicU64::new(0),
            proven_ms: AtomicU64::new(0),
            unsettled_until_ms: AtomicU64::new(0),
            init_connect: AtomicBool::new(false),
            // Until a look says otherwise.
            by_login: AtomicU8::new(ByLogin::Variables as u8),
            autocommit_off: AtomicBool::new(false),
            drops: AtomicU64::new(0),
            drops_said: AtomicU64::new(NEVER),
            age_ms_max: u64::try_from(age_max.as_millis()).unwrap_or(u64::MAX),
            origin: Instant::now(),
        })
    }

    fn ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The version that a connection has whose login begins now.
    pub fn version(&self) -> Version {
        self.version.load(Ordering::Acquire)
    }

    /// The least version of the connections that a session may use which logs in now.
    pub fn for_login(&self) -> Version {
        self.for_login_at(Instant::now())
    }

    fn for_login_at(&self, now: Instant) -> Version {
        let now_ms = self.ms(now);
        let grown = self.grown_ms.load(Ordering::Acquire);
        let proven = grown.max(self.proven_ms.load(Ordering::Acquire));
        if now_ms.saturating_sub(proven) > self.age_ms_max {
            self.grow(now_ms);
        }
        self.version()
    }

    /// Accounts or global variables were changed on this server.
    pub fn changed(&self) {
        let now_ms = self.ms(Instant::now());
        self.unsettle_at(now_ms);
        self.grow(now_ms);
    }

    /// They were changed on another server, from which this one may have them soon.
    pub fn unsettle(&self) {
        self.unsettle_at(self.ms(Instant::now()));
    }

    fn unsettle_at(&self, now_ms: u64) {
        let until = now_ms.saturating_add(SETTLING_MS);
        self.unsettled_until_ms.store(until, Ordering::Release);
    }

    fn grow(&self, now_ms: u64) {
        self.version.fetch_add(1, Ordering::AcqRel);
        self.grown_ms.store(now_ms, Ordering::Release);
    }

    /// `init_connect` is set: only a new connection has what it makes.
    pub fn has_init_connect(&self) -> bool {
        self.init_connect.load(Ordering::Relaxed)
    }

    /// What a login gives that a reset takes away.
    pub fn by_login(&self) -> ByLogin {
        let known = self.by_login.load(Ordering::Relaxed);
        let all = [ByLogin::Nothing, ByLogin::ForeignKeys];
        let found = all.into_iter().find(|what| *what as u8 == known);
        found.unwrap_or(ByLogin::Variables)
    }

    /// A new connection's autocommit is off.
    pub fn is_autocommit_off(&self) -> bool {
        self.autocommit_off.load(Ordering::Relaxed)
    }

    /// No change is under way whose effects are still to come.
    pub fn is_settled(&self) -> bool {
        self.unsettled_until_ms.load(Ordering::Acquire) == 0
    }

    /// How many accounts were dropped or renamed, as far as anybody looked. Grows only.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Acquire)
    }

    /// Whether the server's count is the one that [`Fresh::drops`] has in it already.
    pub fn knows_drops(&self, said: u64) -> bool {
        self.drops_said.load(Ordering::Acquire) == said
    }

    fn note_drops(&self, said: u64) {
        let before = self.drops_said.swap(said, Ordering::AcqRel);
        let more = match before {
            NEVER => 0,
            // It was started again.
            before if said < before => said,
            before => said - before,
        };
        self.drops.fetch_add(more, Ordering::AcqRel);
    }

    /// The server was asked at `began`; `last`: what it said the last time.
    pub(crate) fn looked(&self, look: &Look, last: Option<&Look>, began: Instant) {
        self.init_connect
            .store(look.init_connect, Ordering::Relaxed);
        self.by_login.store(look.by_login as u8, Ordering::Relaxed);
        self.autocommit_off
            .store(look.autocommit_off, Ordering::Relaxed);
        if let Some(said) = look.drops {
            self.note_drops(said);
        }
        match last {
            Some(last) if last != look => return self.changed(),
            Some(_) => {}
            // What was opened before is of an unknown age.
            None => self.grow(self.ms(began)),
        }
        let (began_ms, until) = (
            self.ms(began),
            self.unsettled_until_ms.load(Ordering::Acquire),
        );
        if began_ms < until {
            return;
        }
        if until != 0 {
            // What came to be in force since the change was noticed counts from here on.
            let settled = self.unsettled_until_ms.compare_exchange(
                until,
                0,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if settled.is_err() {
                return;
            }
            self.grow(began_ms);
        }
        if look.complete {
            self.proven_ms.store(began_ms, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn complete() -> Look {
        Look {
            complete: true,
            ..Look::default()
        }
    }

    #[test]
    fn logins_are_content_with_what_was_proven_a_moment_ago() {
        let fresh = Fresh::new(SECOND);
        let start = fresh.origin;
        let opened = fresh.version();
        fresh.looked(&complete(), Some(&complete()), start + 5 * SECOND);
        let soon = start + 5 * SECOND + SECOND / 2;
        assert_eq!(fresh.for_login_at(soon), opened);
        let late = start + 7 * SECOND;
        let newer = fresh.for_login_at(late);
        assert!(newer > opened, "nobody has looked for two seconds");
        assert_eq!(fresh.for_login_at(late + SECOND / 2), newer);
        assert!(fresh.for_login_at(late + 2 * SECOND) > newer);
    }

    #[test]
    fn a_look_that_saw_too_little_proves_nothing() {
        let fresh = Fresh::new(SECOND);
        let at = fresh.origin + 5 * SECOND;
        let opened = fresh.version();
        fresh.looked(&Look::default(), Some(&Look::default()), at);
        assert!(fresh.for_login_at(at) > opened);
    }

    #[test]
    fn dropped_accounts_are_counted_over_restarts() {
        let fresh = Fresh::new(SECOND);
        for (said, drops) in [(5, 0), (5, 0), (7, 2), (0, 2), (1, 3)] {
            let look = Look {
                drops: Some(said),
                ..complete()
            };
            fresh.looked(&look, None, fresh.origin);
            assert!(fresh.knows_drops(said) && !fresh.knows_drops(said + 1));
            assert_eq!(fresh.drops(), drops, "{said}");
        }
    }

    #[test]
    fn a_change_counts_at_once_and_until_its_effects_are_certain() {
        let fresh = Fresh::new(SECOND);
        let start = fresh.origin;
        let opened = fresh.version();
        fresh.changed();
        let first = fresh.for_login_at(start);
        assert!(first > opened);
        fresh.looked(&complete(), Some(&complete()), start + 3 * SECOND);
        let second = fresh.for_login_at(start + 3 * SECOND);
        assert!(second > first, "it may not have been in force then");
        fresh.looked(&complete(), Some(&complete()), start + 11 * SECOND);
        let third = fresh.for_login_at(start + 11 * SECOND);
        assert!(third > second);
        fresh.looked(&complete(), Some(&complete()), start + 20 * SECOND);
        assert_eq!(fresh.for_login_at(start + 20 * SECOND), third);
    }
}
