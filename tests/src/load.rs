//! Clients of three kinds that write down all they send and are told, and check every answer:
//! autocommit reads, autocommit writes, transactions. What is right in the end, [`crate::ledger`]
//! says.
//!
//! One thread: nothing happens between two looks at the [`Board`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::task::JoinHandle;

use crate::ledger::{Fate, Ledger};
use crate::wire::{Connection, ErrPacket, Login, Param, Reply};

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Reads,
    Writes,
    Transactions,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Reads, Kind::Writes, Kind::Transactions];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Reads => "reads",
            Kind::Writes => "writes",
            Kind::Transactions => "transactions",
        }
    }
}

/// How many clients of each kind.
pub const CLIENTS: [(Kind, u32); 3] = [
    (Kind::Reads, 24),
    (Kind::Writes, 20),
    (Kind::Transactions, 20),
];

/// Between two statements of a client.
const THINK: Duration = Duration::from_millis(30);
/// The same while they spare the servers ([`Board::spare`]).
const THINK_SPARING: Duration = Duration::from_millis(250);
/// Rows that never change, for reads.
const FIXED: u32 = 100;
/// Gaps that are too short to be anybody's pause are not kept.
const GAP_MIN: Duration = Duration::from_millis(20);

/// The tables, as an administrator makes them on the primary.
pub fn schema() -> Vec<String> {
    let clients: u32 = CLIENTS.iter().map(|(_, count)| count).sum();
    let list = |range: std::ops::Range<u32>, row: fn(u32) -> String| {
        range.map(row).collect::<Vec<_>>().join(",")
    };
    vec![
        "CREATE TABLE IF NOT EXISTS app.ledger (client INT, seq INT, origin INT NOT NULL, \
         at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), PRIMARY KEY (client, seq))"
            .to_owned(),
        "CREATE TABLE IF NOT EXISTS app.counters (client INT PRIMARY KEY, n INT NOT NULL)"
            .to_owned(),
        "CREATE TABLE IF NOT EXISTS app.fixed (id INT PRIMARY KEY, v VARCHAR(40) NOT NULL)"
            .to_owned(),
        format!(
            "REPLACE INTO app.fixed VALUES {}",
            list(0..FIXED, |id| format!("({id}, 'value {id}')"))
        ),
        format!(
            "REPLACE INTO app.counters VALUES {}",
            list(0..clients, |client| format!("({client}, 0)"))
        ),
        "DELETE FROM app.ledger".to_owned(),
    ]
}

/// An error that a client has seen.
#[derive(Debug, Clone)]
pub struct Seen {
    pub kind: Kind,
    /// `None` where the connection ended without a word, or nothing came in time.
    pub error: Option<ErrPacket>,
    pub text: String,
    pub at: Instant,
}

impl Seen {
    /// `1213/40001`, or what happened to the connection.
    pub fn name(&self) -> String {
        match &self.error {
            Some(error) => format!("{}/{}", error.code, error.state),
            None => self.text.split(':').next().unwrap_or_default().to_owned(),
        }
    }
}

/// A transaction that was begun.
#[derive(Debug, Clone, Copy)]
pub struct Transaction {
    /// Its first statement was sent.
    pub begun: Instant,
    /// So was its COMMIT, where it came to that.
    pub commit_sent: Option<Instant>,
    /// It was over, as far as the client knows.
    pub ended: Instant,
    pub committed: bool,
}

/// What the clients have seen.
#[derive(Debug, Default)]
pub struct Board {
    stop: Cell<bool>,
    spares: Cell<bool>,
    pub ledger: RefCell<Ledger>,
    pub errors: RefCell<Vec<Seen>>,
    /// Wrong answers: none is ever right.
    pub wrong: RefCell<Vec<String>>,
    pub transactions: RefCell<Vec<Transaction>>,
    /// Of each client: when its last answer came.
    answers: RefCell<BTreeMap<u32, (Kind, Instant)>>,
    /// Of each client: times without an answer, by when they ended.
    gaps: RefCell<BTreeMap<u32, Vec<(Instant, Duration)>>>,
    pub statements: Cell<u64>,
}

impl Board {
    /// Whether clients take their time from now on. They go on, and check all as before.
    pub fn spare(&self, spares: bool) {
        self.spares.set(spares);
    }

    fn think(&self) -> Duration {
        match self.spares.get() {
            true => THINK_SPARING,
            false => THINK,
        }
    }

    fn answer(&self, client: u32, kind: Kind) {
        let now = Instant::now();
        self.statements.set(self.statements.get() + 1);
        let before = self.answers.borrow_mut().insert(client, (kind, now));
        if let Some((_, before)) = before
            && now - before > GAP_MIN
        {
            let mut gaps = self.gaps.borrow_mut();
            gaps.entry(client).or_default().push((now, now - before));
        }
    }

    fn error(&self, kind: Kind, reply: &Reply) -> Told {
        let error = reply.err().cloned();
        let text = match (&error, reply.broken()) {
            (Some(error), _) => error.to_string(),
            (None, Some(why)) => why,
            (None, None) => return Told::Answer,
        };
        let told = match &error {
            Some(error) if error.code == 1213 => Told::Refused,
            Some(_) => Told::Error,
            None => Told::Broken,
        };
        self.saw(kind, error, text);
        told
    }

    fn saw(&self, kind: Kind, error: Option<ErrPacket>, text: String) {
        self.errors.borrow_mut().push(Seen {
            kind,
            error,
            text,
            at: Instant::now(),
        });
    }

    fn is_wrong(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    /// Clients that have had no answer since then.
    pub fn silent_since(&self, then: Instant) -> Vec<(u32, Kind)> {
        let all = self.answers.borrow();
        let missing = all.iter().filter(|(_, (_, at))| *at < then);
        missing
            .map(|(client, (kind, _))| (*client, *kind))
            .collect()
    }

    /// How many clients have had an answer at all.
    pub fn answered(&self) -> usize {
        self.answers.borrow().len()
    }

    /// Of each client of these kinds the longest time without an answer that ended after
    /// `after`, shortest first.
    pub fn pauses(&self, kinds: &[Kind], after: Instant) -> Vec<Duration> {
        let (answers, gaps) = (self.answers.borrow(), self.gaps.borrow());
        let of = answers.iter().filter(|(_, (kind, _))| kinds.contains(kind));
        let longest = of.map(|(client, _)| {
            let gaps = gaps.get(client).into_iter().flatten();
            let after = gaps.filter(|(end, _)| *end > after);
            after.map(|(_, gap)| *gap).max().unwrap_or_default()
        });
        let mut all: Vec<Duration> = longest.collect();
        all.sort_unstable();
        all
    }
}

/// How a statement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Answer,
    /// The standard retriable error: nothing was done.
    Refused,
    /// Another error.
    Error,
    /// The connection is gone.
    Broken,
}

/// The clients, at work.
#[derive(Debug)]
pub struct Load {
    pub board: Rc<Board>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts all clients on this thread's `LocalSet`, spread over the logins.
    pub fn start(logins: &[Login]) -> Self {
        let board = Rc::new(Board::default());
        let mut clients = Vec::new();
        let mut number = 0;
        for (kind, count) in CLIENTS {
            for _ in 0..count {
                let client = Client {
                    board: board.clone(),
                    login: logins[number as usize % logins.len()].clone(),
                    kind,
                    number,
                    seq: 0,
                };
                number += 1;
                clients.push(tokio::task::spawn_local(client.run()));
            }
        }
        for (number, (kind, _)) in (0..number).zip(kinds()) {
            if kind == Kind::Transactions {
                board.ledger.borrow_mut().is_atomic(number);
            }
        }
        Self { board, clients }
    }

    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Lets every client end what it does. Gives how many had not after `limit`.
    pub async fn stop(self, limit: Duration) -> (Rc<Board>, usize) {
        self.board.stop.set(true);
        let deadline = Instant::now() + limit;
        let mut late = 0;
        for client in self.clients {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut client = client;
            if tokio::time::timeout(left, &mut client).await.is_err() {
                client.abort();
                late += 1;
            }
        }
        (self.board, late)
    }
}

/// Of each client, in order.
fn kinds() -> impl Iterator<Item = (Kind, u32)> {
    CLIENTS
        .into_iter()
        .flat_map(|(kind, count)| (0..count).map(move |_| (kind, 1)))
}

fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_micros() as u64)
}

struct Client {
    board: Rc<Board>,
    login: Login,
    kind: Kind,
    number: u32,
    seq: u32,
}

/// The connection is of no more use.
struct Gone;

impl Client {
    async fn run(mut self) {
        // Not all at the same moment.
        tokio::time::sleep(Duration::from_millis(u64::from(self.number) * 7)).await;
        while !self.board.stop.get() {
            let mut connection = match Connection::open(&self.login).await {
                Ok(connection) => connection,
                Err(error) => {
                    let packet = error.get_ref().and_then(|e| e.downcast_ref::<ErrPacket>());
                    self.board
                        .saw(self.kind, packet.cloned(), format!("login: {error}"));
                    tokio::time::sleep(self.board.think()).await;
                    continue;
                }
            };
            let ended = match self.kind {
                Kind::Reads => self.read(&mut connection).await,
                Kind::Writes => self.write(&mut connection).await,
                Kind::Transactions => self.transact(&mut connection).await,
            };
            if ended.is_ok() {
                connection.quit().await;
            }
        }
    }

    /// Notes an answer or an error.
    fn told(&self, reply: &Reply) -> Told {
        let told = self.board.error(self.kind, reply);
        if told == Told::Answer {
            self.board.answer(self.number, self.kind);
        }
        told
    }

    /// Every other client reads by prepared statements.
    async fn read(&mut self, connection: &mut Connection) -> Result<(), Gone> {
        let mut statement = None;
        while !self.board.stop.get() {
            self.seq += 1;
            let id = (self.number * 31 + self.seq * 7) % FIXED;
            let reply = if self.number.is_multiple_of(2) {
                let sql = format!("SELECT id, v FROM app.fixed WHERE id = {id}");
                connection.query(&sql).await
            } else {
                let number = match statement {
                    Some(number) => number,
                    None => {
                        let sql = b"SELECT id, v FROM app.fixed WHERE id = ?";
                        let reply = connection.prepare(sql).await;
                        if self.told(&reply) == Told::Broken {
                            return Err(Gone);
                        }
                        let Some((number, _)) = reply.statement_id() else {
                            continue;
                        };
                        statement = Some(number);
                        number
                    }
                };
                connection
                    .execute(number, 0, &[Param::int(i64::from(id))], true)
                    .await
            };
            match self.told(&reply) {
                Told::Answer => {
                    let wanted = vec![vec![Some(id.to_string()), Some(format!("value {id}"))]];
                    let rows = reply.rows();
                    if rows != wanted {
                        self.board.is_wrong(format!("read {id}: {rows:?}"));
                    }
                }
                Told::Broken => return Err(Gone),
                Told::Refused | Told::Error => {}
            }
            tokio::time::sleep(self.board.think()).await;
        }
        Ok(())
    }

    fn fate(told: Told, reply: &Reply) -> Fate {
        match told {
            Told::Answer => Fate::Acknowledged,
            Told::Refused => Fate::Refused,
            // What says so was not done; what says nothing of it is not known.
            Told::Error if reply.err().is_some_and(is_refusal) => Fate::Refused,
            Told::Error | Told::Broken => Fate::Unknown,
        }
    }

    /// In turn a row of its own and one more on its counter.
    async fn write(&mut self, connection: &mut Connection) -> Result<(), Gone> {
        while !self.board.stop.get() {
            self.seq += 1;
            let client = self.number;
            let counts = self.seq.is_multiple_of(2);
            let sql = match counts {
                true => format!("UPDATE app.counters SET n = n + 1 WHERE client = {client}"),
                false => insert((client, self.seq)),
            };
            let sent_us = wall_us();
            let reply = connection.query(&sql).await;
            let told = self.told(&reply);
            let fate = Self::fate(told, &reply);
            if told == Told::Answer && reply.ok().map(|ok| ok.affected) != Some(1) {
                self.board.is_wrong(format!("{sql}: {reply:?}"));
            }
            match counts {
                true => self.board.ledger.borrow_mut().count(client, fate),
                false => {
                    let key = (client, self.seq);
                    self.board.ledger.borrow_mut().write(key, fate, sent_us);
                }
            }
            if told == Told::Broken {
                return Err(Gone);
            }
            tokio::time::sleep(self.board.think()).await;
        }
        Ok(())
    }

    async fn transact(&mut self, connection: &mut Connection) -> Result<(), Gone> {
        while !self.board.stop.get() {
            self.seq += 1;
            let begun = Instant::now();
            let sent_us = wall_us();
            let (fate, told, commit_sent) = self.transaction(connection).await;
            let key = (self.number, self.seq);
            self.board.ledger.borrow_mut().write(key, fate, sent_us);
            self.board.transactions.borrow_mut().push(Transaction {
                begun,
                commit_sent,
                ended: Instant::now(),
                committed: fate == Fate::Acknowledged,
            });
            match told {
                Told::Broken => return Err(Gone),
                // The server may not have ended it: the client does.
                Told::Error => {
                    let reply = connection.query("ROLLBACK").await;
                    if self.told(&reply) == Told::Broken {
                        return Err(Gone);
                    }
                }
                Told::Answer | Told::Refused => {}
            }
            tokio::time::sleep(self.board.think()).await;
        }
        Ok(())
    }

    /// Before its COMMIT is sent nothing of a transaction can have been done.
    async fn transaction(&self, connection: &mut Connection) -> (Fate, Told, Option<Instant>) {
        let client = self.number;
        let look = format!("SELECT n FROM app.counters WHERE client = {client} FOR UPDATE");
        let more = format!("UPDATE app.counters SET n = n + 1 WHERE client = {client}");
        let again = format!(
            "SELECT n, (SELECT COUNT(*) FROM app.ledger WHERE client = {client}) \
             FROM app.counters WHERE client = {client}"
        );
        let insert = insert((client, self.seq));
        let mut before = None;
        for sql in ["BEGIN", &look, &insert, &more, &again] {
            let reply = connection.query(sql).await;
            let told = self.told(&reply);
            if told != Told::Answer {
                return (Fate::Refused, told, None);
            }
            if *sql == *look {
                before = reply.scalar().and_then(|n| n.parse::<u64>().ok());
            }
            if *sql == *again {
                let n = before.map(|n| (n + 1).to_string());
                let rows = reply.rows();
                if rows != [vec![n.clone(), n]] {
                    self.board.is_wrong(format!(
                        "client {client} in a transaction: {before:?}, {rows:?}"
                    ));
                }
            }
            tokio::time::sleep(self.board.think()).await;
        }
        let commit_sent = Instant::now();
        let reply = connection.query("COMMIT").await;
        let told = self.told(&reply);
        (Self::fate(told, &reply), told, Some(commit_sent))
    }
}

/// Errors that promise that nothing was done: no server for it, and limits.
fn is_refusal(error: &ErrPacket) -> bool {
    matches!(error.code, 1105 | 1040 | 1290 | 1836 | 3024)
}

fn insert((client, seq): (u32, u32)) -> String {
    format!("INSERT INTO app.ledger (client, seq, origin) VALUES ({client}, {seq}, @@server_id)")
}
