//! The cache as threads share it: the store, the results that wait to be placed in the log, and why nothing is
//! in it.
//!
//! A result is kept only where it is known what its server had before the SELECT and what it can have shown
//! (P and Q of [`millrace_cache`]). The first is the last position that is known by then. The second is learnt after the
//! result has ended: with the next answer to the question how far the server is, which is asked once for all
//! results of that server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_cache::{Finished, Options, Store, Token, Touch};
use millrace_topology::{GtidSet, ServerId};
use tokio::sync::Notify;
use tracing::error;

use crate::monitor::{Monitor, World};

/// Results in memory, and whether the log is followed that keeps them true. One a process.
#[derive(Debug)]
pub struct Cache {
    options: CacheOptions,
    store: Mutex<Store>,
    following: Mutex<Following>,
    is_followed: AtomicBool,
    followed: Followed,
    ended: Mutex<Vec<EndedFill>>,
    has_ended: Notify,
    names: Mutex<Names>,
    texts: Mutex<HashMap<u64, Box<[u8]>>>,
    /// Something was taken in.
    taken_in: Notify,
    /// How many wait for that.
    waiters: AtomicUsize,
    /// Nobody waits before that: the log has come too late lately. Milliseconds since the beginning. For those that wait for
    /// [`LOG_LIMIT`], and for those that would wait longer.
    no_wait_before: [AtomicU64; 2],
    begun: Instant,
}

/// Numbers for bytes.
#[derive(Debug, Default)]
struct Names {
    numbers: HashMap<Box<[u8]>, u64>,
    last: u64,
    /// Of all bytes that have one.
    len: usize,
}

/// What is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Nothing.
    #[default]
    Off,
    /// Every result that can be, but for statements that rules keep out.
    Auto,
    /// Results of statements that a rule wants to be cached.
    Rules,
}

/// `[cache]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CacheOptions {
    /// What is cached.
    pub mode: Mode,
    /// Which share of hits is read again and compared, from 0 to 1.
    pub verify: f64,
    /// Within which limits.
    pub store: Options,
}

/// What the follower has counted since the process began.
#[derive(Debug, Default)]
pub struct Followed {
    /// Events that the server has sent, heartbeats among them.
    pub events: AtomicU64,
    /// Bytes of all that the server has sent.
    pub bytes: AtomicU64,
    /// Transactions that were applied.
    pub transactions: AtomicU64,
    /// Streams that were begun.
    pub streams: AtomicU64,
    /// Times that everything was dropped, because the log could not be followed on.
    pub drops: AtomicU64,
    /// Times that definitions of tables were read.
    pub readings: AtomicU64,
    /// By how many seconds the last transaction was behind its server's clock when it was applied; 0 where all was
    /// applied.
    pub behind_seconds: AtomicU64,
    /// When the last transaction was made, in seconds since 1970; 0 before the first.
    pub last_made: AtomicU64,
}

impl Followed {
    /// Adds to a counter.
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// What the follower does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Following {
    /// It has not begun yet.
    NotYet,
    /// It follows the log of the server at this address.
    Log(Box<str>),
    /// It cannot, for this reason, which says what to do.
    Off(Box<str>),
}

/// A result that was read to its end.
#[derive(Debug)]
pub struct EndedFill {
    /// Its place.
    pub token: Token,
    /// Where it was read.
    pub server: ServerId,
    /// The server's incarnation.
    pub incarnation: u32,
    /// What the server had before the SELECT was sent.
    pub lower: GtidSet,
    /// The moment of its end (`Positions::mark`).
    pub mark: u64,
    /// The packets.
    pub bytes: Arc<[u8]>,
    /// How many rows they have.
    pub rows: u64,
    /// What the server spent on it.
    pub cost: Duration,
}

/// So many results at most wait to be placed; more are not kept.
const ENDED_MAX: usize = 1024;

/// So much of a statement's text is kept for listings, in bytes.
const TEXT_MAX: usize = 1024;

/// The bytes that have a number take so much memory at most.
const NAMES_MAX: usize = 4 << 20;

/// Results that end within this time are placed together.
const GATHERED: Duration = Duration::from_millis(2);

/// A server that does not say within this time how far it is has its results dropped.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// How often it is worked out what all servers have.
const SETTLED_EVERY: Duration = Duration::from_millis(20);

/// A read waits so long for the log to tell what was written: the primary sends it as it answers the write.
const LOG_LIMIT: Duration = Duration::from_millis(3);

/// Where it has not come by then, nobody waits for so long.
const LOG_PAUSE: Duration = Duration::from_millis(100);

/// One that waits, for as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Ordering::SeqCst);
        Self(waiters)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    /// An empty cache, which serves nothing until a follower begins.
    pub fn new(options: CacheOptions) -> Self {
        Self {
            store: Mutex::new(Store::new(options.store.clone())),
            options,
            following: Mutex::new(Following::NotYet),
            is_followed: AtomicBool::new(false),
            followed: Followed::default(),
            ended: Mutex::default(),
            has_ended: Notify::new(),
            names: Mutex::default(),
            texts: Mutex::default(),
            taken_in: Notify::new(),
            waiters: AtomicUsize::new(0),
            no_wait_before: Default::default(),
            begun: Instant::now(),
        }
    }

    /// What is cached.
    pub fn mode(&self) -> Mode {
        self.options.mode
    }

    /// Which share of hits is read again and compared, from 0 to 1.
    pub fn verify(&self) -> f64 {
        self.options.verify
    }

    /// Its limits.
    pub fn options(&self) -> &Options {
        &self.options.store
    }

    /// Whether results are kept; else the log is followed for what reads must see alone.
    pub fn keeps_results(&self) -> bool {
        self.options.mode != Mode::Off
    }

    /// The log has been read on: tells those who wait for it.
    pub(crate) fn tell_waiters(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.taken_in.notify_waiters();
        }
    }

    /// Whether some server's log is followed, as far as is known: a hint to those who would ask it.
    pub fn is_followed(&self) -> bool {
        self.is_followed.load(Ordering::Relaxed)
    }

    /// A write was acknowledged: [`Store::announce`].
    pub fn announce(&self, transaction: &GtidSet, touch: &Touch, version: u64) {
        self.store().announce(transaction, touch, version);
        self.tell_waiters();
    }

    /// Waits until it is known of all of `position` what it touched ([`Store::knows`]), but not for long.
    ///
    /// That is [`LOG_LIMIT`], or `instead` of asking a server that would take so long. Where the log has not come in time, nobody
    /// waits for a while.
    pub async fn knows(&self, position: &GtidSet, instead: Option<Duration>) {
        let is_there = |store: &Store| store.knows(position);
        if is_there(&self.store()) {
            return;
        }
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let no_wait_before = &self.no_wait_before[usize::from(instead.is_some())];
        if now < no_wait_before.load(Ordering::Relaxed) {
            return;
        }
        let limit = instead.unwrap_or(LOG_LIMIT);
        let waiting = Waiting::new(&self.waiters);
        let taking = async {
            loop {
                let taken = self.taken_in.notified();
                tokio::pin!(taken);
                // From here on nothing is missed.
                taken.as_mut().enable();
                if is_there(&self.store()) {
                    return;
                }
                taken.await;
            }
        };
        let came = tokio::time::timeout(limit, taking).await.is_ok();
        drop(waiting);
        // Whoever had less time to wait says nothing of the log.
        if !came && limit >= LOG_LIMIT {
            let pause = u64::try_from(LOG_PAUSE.as_millis()).unwrap_or(u64::MAX);
            no_wait_before.store(now + pause, Ordering::Relaxed);
        }
    }

    /// For how long nothing may be heard of the log before nothing is served.
    pub fn max_silence(&self) -> Duration {
        self.options.store.max_silence
    }

    /// What the follower has counted.
    pub fn followed(&self) -> &Followed {
        &self.followed
    }

    /// The store. No caller keeps it while it waits for something.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        locked(&self.store)
    }

    /// What the follower does.
    pub fn following(&self) -> Following {
        locked(&self.following).clone()
    }

    /// The follower does something else from now on.
    pub fn set_following(&self, now: Following) {
        let is_followed = matches!(now, Following::Log(_));
        self.is_followed.store(is_followed, Ordering::Relaxed);
        *locked(&self.following) = now;
    }

    /// A number for these bytes: the same for the same bytes, and never that of others. It is another one after many
    /// others were asked for.
    pub fn name(&self, bytes: &[u8]) -> u64 {
        let mut names = locked(&self.names);
        if let Some(number) = names.numbers.get(bytes) {
            return *number;
        }
        if names.len + bytes.len() > NAMES_MAX {
            names.numbers.clear();
            names.len = 0;
        }
        names.last += 1;
        names.len += bytes.len();
        let number = names.last;
        names.numbers.insert(bytes.into(), number);
        number
    }

    /// Notes a statement's text, values left out, for listings.
    pub fn note_text(&self, digest: u64, text: &[u8]) {
        let mut texts = locked(&self.texts);
        if texts.len() < self.options.store.statements_max && !texts.contains_key(&digest) {
            texts.insert(digest, text[..text.len().min(TEXT_MAX)].into());
        }
    }

    /// A statement's text, values left out.
    pub fn text(&self, digest: u64) -> Option<Box<[u8]>> {
        locked(&self.texts).get(&digest).cloned()
    }

    /// A result was read: it is placed as soon as it is known what it can have shown.
    pub fn fill_ended(&self, fill: EndedFill) {
        let mut ended = locked(&self.ended);
        if ended.len() < ENDED_MAX {
            ended.push(fill);
            drop(ended);
            self.has_ended.notify_one();
        } else {
            drop(ended);
            self.store().abandon(fill.token);
        }
    }

    /// Places results in the log, and tells the store what all servers have, until the process ends.
    pub async fn place(self: Arc<Self>, monitor: Arc<Monitor>) {
        let (mut answers, mut differences) = (0, 0);
        loop {
            tokio::select! {
                () = self.has_ended.notified() => {
                    tokio::time::sleep(GATHERED).await;
                    self.place_ended(&monitor).await;
                }
                () = tokio::time::sleep(SETTLED_EVERY) => {}
            }
            let now = monitor.positions().answers();
            if now != answers {
                answers = now;
                self.forget_known(&monitor);
            }
            if self.options.verify > 0.0 {
                self.tell_differences(&mut differences);
            }
        }
    }

    /// A result that was not what a server answers must not go unnoticed. `told`: how many there were the last time.
    fn tell_differences(&self, told: &mut u64) {
        let verified = self.store().verified();
        if verified.differences == *told {
            return;
        }
        *told = verified.differences;
        let text = verified.last.and_then(|digest| self.text(digest));
        error!(
            differences = verified.differences,
            compared = verified.compared,
            statement = %String::from_utf8_lossy(&text.unwrap_or_default()),
            "a result in memory was not what a server answers; everything was removed from memory. Set [cache] mode \
             = \"off\" and report this, unless rows were written beside the binary log"
        );
    }

    async fn place_ended(&self, monitor: &Monitor) {
        let mut by_server: HashMap<ServerId, Vec<EndedFill>> = HashMap::new();
        for fill in std::mem::take(&mut *locked(&self.ended)) {
            by_server.entry(fill.server).or_default().push(fill);
        }
        for (server, fills) in by_server {
            let mark = fills.iter().map(|fill| fill.mark).max().unwrap_or(0);
            let told = monitor.positions().ask(server, mark, ASK_LIMIT).await;
            let mut store = self.store();
            for fill in fills {
                let told = told.as_ref();
                match told.filter(|told| told.incarnation == fill.incarnation) {
                    Some(told) => {
                        let result = Finished {
                            lower: &fill.lower,
                            upper: &told.visible,
                            bytes: fill.bytes,
                            rows: fill.rows,
                            cost: fill.cost,
                        };
                        store.finish(fill.token, result, Instant::now());
                    }
                    None => {
                        store.abandon(fill.token);
                    }
                }
            }
        }
    }

    /// What every server is known to have needs no longer be told apart. A server that is away counts, with what it had:
    /// it may come back with that.
    fn forget_known(&self, monitor: &Monitor) {
        let world = monitor.watch().borrow().clone();
        let Some(known) = common(&world, monitor) else {
            return;
        };
        self.store().forget_known(&known);
    }
}

/// What all servers are known to have.
fn common(world: &World, monitor: &Monitor) -> Option<GtidSet> {
    let servers = world.snapshot.servers.iter();
    let mut known: Option<GtidSet> = None;
    for view in servers.filter(|view| !view.gone) {
        let told = monitor.positions().newer(view.id, 0);
        let told = told.filter(|told| told.incarnation == view.incarnation);
        let has = told.map_or_else(
            || view.executed.clone(),
            |told| GtidSet::clone(&told.executed),
        );
        match &mut known {
            None => known = Some(has),
            Some(known) if known.is_comparable(&has) => known.intersect(&has),
            Some(_) => return None,
        }
    }
    known
}
