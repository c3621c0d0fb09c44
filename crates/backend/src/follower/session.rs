//! One stream of a server's log, from its first event to its end, and the readings of definitions beside it. Decides
//! nothing about whether it may be served.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_topology::GtidSet;

use crate::cache::Followed;
use crate::conn::Conn;
use crate::error::BackendError;
use crate::monitor::World;
use crate::probe::followed::connect;

use super::gate::Reading;
use super::history::Candidate;
use super::primary::Target;
use super::server;
use super::state::{Over, State};
use super::stream::EventStream;
use super::transactions::{Broken, Ended};

/// Heartbeats are asked for at least so often.
const HEARTBEAT_MAX: Duration = Duration::from_millis(300);

/// How long the answers about a log may take at least.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// The log reaches what was read as a rule within moments; else it is read again after this, and after twice as long each
/// time.
const REACHED: Duration = Duration::from_secs(1);

/// The longest of these pauses.
const REACHED_MAX: Duration = Duration::from_secs(30);

/// How long a reading may take: there may be many tables.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// Where there is a sign that tables have changed without a word in the log, they are read again after this, or after so much
/// for each of them, to be no burden on the server: whichever is more. How long a reading takes says less: most of that
/// may be the server's other work.
const PAUSE_IN_DOUBT: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(10)];

/// The same without a sign.
const PAUSE: [Duration; 2] = [Duration::from_secs(60), Duration::from_millis(100)];

type Answer = (Conn, Result<Reading, BackendError>);

/// A stream, and the connection for questions.
pub(super) struct Session {
    stream: EventStream,
    /// None while it is being read on.
    conn: Option<Conn>,
    lower_names: bool,
    /// When a reading that the log has not reached is given up.
    gives_up: Option<Instant>,
    patience: Duration,
    /// When the last reading ended.
    reading_ended: Instant,
    /// Tables may be others than is known.
    has_doubts: bool,
}

impl Session {
    /// Connects, twice: for questions and for the stream.
    pub(super) async fn begin(
        state: &mut State,
        target: &Target,
        seen: &World,
    ) -> Result<Self, Over> {
        let (id, address) = (target.facts.id, &target.facts.address);
        let (options, network) = (state.options.clone(), state.network.clone());
        let mut conn = connect(id, address, &options, &network).await?.0;
        let asking = async {
            let asked = server::ask(&mut conn, target.version, target.replicates).await?;
            let log = asked.map_err(Over::Unfit)?;
            let has_place = state.history.is_last(id, &log.identity)
                && server::has_place(&mut conn, state.transactions.place()).await?;
            Ok::<_, Over>((log, has_place))
        };
        let asked = tokio::time::timeout(options.timeout.max(ASK_LIMIT), asking).await;
        let late = |_| Over::Lost("no answer about the log in time".into());
        let (log, has_place) = asked.map_err(late)??;
        let candidate = Candidate {
            id,
            identity: &log.identity,
            family: conn.family,
            executed: &log.executed,
            has_place,
        };
        let from = state.take_up(&candidate, seen);
        let heartbeat = (state.cache.max_silence() / 3).min(HEARTBEAT_MAX);
        let replica = connect(id, address, &options, &network).await?.0;
        let begun = EventStream::begin(replica, state.identity(seen), heartbeat, &from).await;
        let stream = begun.map_err(|failure| state.failed(failure))?;
        state.begin_stream(log.checksum);
        Ok(Self {
            stream,
            conn: Some(conn),
            lower_names: log.lower,
            gives_up: None,
            patience: REACHED,
            reading_ended: Instant::now(),
            has_doubts: false,
        })
    }

    /// Follows the log until it ends.
    pub(super) async fn run(mut self, state: &mut State) -> Over {
        let max_silence = state.cache.max_silence();
        let mut reading: Option<Pin<Box<dyn Future<Output = Answer>>>> = None;
        loop {
            if let Err(over) = self.take_all(state) {
                return over;
            }
            let confirms = self.confirms(state.transactions.catalogue().definitions.len());
            if Instant::now() >= confirms {
                state.gate.confirm();
            }
            if reading.is_none() {
                reading = self.begin_reading(state);
            }
            let is_read = reading.is_none() && !state.gate.waits();
            let gives_up = self
                .gives_up
                .unwrap_or_else(|| Instant::now() + REACHED_MAX);
            tokio::select! {
                filled = tokio::time::timeout(max_silence, self.stream.fill()) => match filled {
                    Ok(Ok(())) => {}
                    Ok(Err(failure)) => return state.failed(failure),
                    Err(_) => return Over::Lost(format!("nothing was heard for {max_silence:?}")),
                },
                (conn, read) = wait_for(&mut reading) => {
                    reading = None;
                    self.conn = Some(conn);
                    match read {
                        Ok(read) => self.read(state, read),
                        Err(error) => return error.into(),
                    }
                }
                () = tokio::time::sleep_until(confirms.into()), if is_read => {}
                () = tokio::time::sleep_until(gives_up.into()), if self.gives_up.is_some() => {
                    self.gives_up = None;
                    self.patience = (2 * self.patience).min(REACHED_MAX);
                    state.gate.give_up();
                }
            }
        }
    }

    /// Takes in all events that are there.
    fn take_all(&mut self, state: &mut State) -> Result<(), Over> {
        let now = Instant::now();
        let (mut events, mut bytes) = (0, 0);
        loop {
            let event = match self.stream.next() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(failure) => return Err(state.failed(failure)),
            };
            (events, bytes) = (events + 1, bytes + event.len() as u64);
            match state.transactions.take(&event) {
                Ok(None) => {}
                Ok(Some(ended)) => self.end(state, ended, now),
                Err(Broken(why)) => {
                    return Err(state.broken(why));
                }
            }
        }
        if events > 0 {
            let followed = state.cache.followed();
            Followed::add(&followed.events, events);
            Followed::add(&followed.bytes, bytes);
            if state.transactions.is_idle() {
                followed.behind_seconds.store(0, Ordering::Relaxed);
            }
            state.hear(now);
        }
        Ok(())
    }

    /// A transaction is over: the store is told of it in one hold of its lock, so that all of it is in F, or nothing.
    fn end(&mut self, state: &mut State, ended: Ended, now: Instant) {
        if ended.redefines() {
            state.gate.changed(&ended.transaction);
        }
        self.has_doubts |= ended.raises_doubts();
        let cache = state.cache.clone();
        let mut store = cache.store();
        ended.tell(&mut store, now);
        state.look_at_gate(&mut store, now);
        drop(store);
        if !state.gate.waits() {
            self.gives_up = None;
        }
        let followed = cache.followed();
        Followed::add(&followed.transactions, 1);
        let made = u64::from(state.transactions.timestamp());
        let clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let behind = clock.map_or(0, |clock| clock.as_secs().saturating_sub(made));
        followed.last_made.store(made, Ordering::Relaxed);
        followed.behind_seconds.store(behind, Ordering::Relaxed);
    }

    /// When so many tables are to be read again, if nothing says before that they have changed.
    fn confirms(&self, tables: usize) -> Instant {
        let [shortest, each] = match self.has_doubts {
            true => PAUSE_IN_DOUBT,
            false => PAUSE,
        };
        let tables = u32::try_from(tables).unwrap_or(u32::MAX);
        self.reading_ended + shortest.max(each.saturating_mul(tables))
    }

    fn begin_reading(
        &mut self,
        state: &mut State,
    ) -> Option<Pin<Box<dyn Future<Output = Answer>>>> {
        let conn = self.conn.take()?;
        let Some(needed) = state.gate.begin_reading() else {
            self.conn = Some(conn);
            return None;
        };
        Followed::add(&state.cache.followed().readings, 1);
        state.transactions.begin_reading();
        self.has_doubts = false;
        Some(Box::pin(read(conn, self.lower_names, needed)))
    }

    fn read(&mut self, state: &mut State, read: Reading) {
        self.reading_ended = Instant::now();
        self.gives_up = Some(Instant::now() + self.patience);
        state.gate.read(Some(read));
        let cache = state.cache.clone();
        state.look_at_gate(&mut cache.store(), Instant::now());
        if !state.gate.waits() {
            self.gives_up = None;
        }
    }
}

async fn read(mut conn: Conn, lower_names: bool, needed: GtidSet) -> Answer {
    let reading = server::read(&mut conn, lower_names, &needed);
    let read = match tokio::time::timeout(READ_LIMIT, reading).await {
        Ok(read) => read,
        Err(_) => Err(BackendError::Timeout(
            "a minute for the definitions of tables",
        )),
    };
    (conn, read)
}

/// Waits for a reading; without one for ever.
async fn wait_for(reading: &mut Option<Pin<Box<dyn Future<Output = Answer>>>>) -> Answer {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}
