//! One client of the demo of a failover: it reads, writes and runs transactions, and knows what
//! every answer must be and what was acknowledged. It goes on through errors, and counts them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};
use tokio::sync::watch;

use super::schema::{ITEMS, price};

/// Between two statements of a client, as applications have it.
const REST: Duration = Duration::from_millis(20);
/// Millrace's answer where nobody knows whether a statement was committed.
const UNKNOWN_OUTCOME: u16 = 1180;
/// The standard answer after which a transaction is to be run again.
const RETRY: u16 = 1213;

/// What a client does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    Read,
    Write,
    Transaction,
}

impl Deed {
    pub(super) const ALL: [Deed; 3] = [Deed::Read, Deed::Write, Deed::Transaction];

    pub(super) fn name(self) -> &'static str {
        match self {
            Deed::Read => "autocommit reads",
            Deed::Write => "autocommit writes",
            Deed::Transaction => "transactions",
        }
    }
}

/// What became of all deeds of one sort.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    pub(super) done: u64,
    /// The client was told to run it again, and that nothing was done.
    pub(super) retriable: u64,
    /// The client was told that nobody knows.
    pub(super) unknown: u64,
    pub(super) errors: u64,
    /// Begun before the fault, and over after it; and how many of these were done.
    pub(super) met: u64,
    pub(super) met_done: u64,
    /// Of each deed that was over after the fault: how long it took.
    pub(super) longest: Duration,
}

/// What all clients have seen.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) sums: BTreeMap<Deed, Sums>,
    /// By client: writes that were acknowledged, and of unknown outcome.
    pub(super) written: BTreeMap<u64, (u64, u64)>,
    pub(super) wrong: Vec<String>,
    pub(super) errors: Vec<String>,
    /// When the primary was killed.
    pub(super) struck: Option<Instant>,
}

pub(super) type Shared = Arc<Mutex<Book>>;

/// Poisoned only where a client has panicked, which the demo reports anyhow.
pub(super) fn locked(book: &Shared) -> std::sync::MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a deed ended.
enum End {
    Done,
    Retriable,
    Unknown,
    /// Something else; the connection is of no more use.
    Error(String),
}

fn ended(error: &Error) -> End {
    match error {
        Error::Server(server) if server.code == RETRY => End::Retriable,
        Error::Server(server) if server.code == UNKNOWN_OUTCOME => End::Unknown,
        other => End::Error(other.to_string()),
    }
}

/// Works until told to stop.
pub(super) async fn live(number: u64, opts: Opts, book: Shared, stop: watch::Receiver<bool>) {
    let mut turn = number;
    while !*stop.borrow() {
        let mut conn = match Conn::new(opts.clone()).await {
            Ok(conn) => conn,
            Err(error) => {
                note(
                    &book,
                    Deed::Read,
                    Instant::now(),
                    &End::Error(format!("login: {error}")),
                );
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        while !*stop.borrow() {
            turn += 1;
            let deed = Deed::ALL[turn as usize % Deed::ALL.len()];
            let begun = Instant::now();
            let end = match deed {
                Deed::Read => read(&mut conn, turn, &book).await,
                Deed::Write => write(&mut conn, number).await,
                Deed::Transaction => transact(&mut conn, number, &book).await,
            };
            if deed != Deed::Read {
                count(&book, number, &end);
            }
            note(&book, deed, begun, &end);
            if matches!(end, End::Error(_)) {
                break;
            }
            tokio::time::sleep(REST).await;
        }
        // A connection that is broken has no good-bye to say.
        let _ = conn.disconnect().await;
    }
}

fn count(book: &Shared, number: u64, end: &End) {
    let mut book = locked(book);
    let (done, unknown) = book.written.entry(number).or_default();
    match end {
        End::Done => *done += 1,
        End::Unknown | End::Error(_) => *unknown += 1,
        End::Retriable => {}
    }
}

fn note(book: &Shared, deed: Deed, begun: Instant, end: &End) {
    let mut book = locked(book);
    let book = &mut *book;
    let sums = book.sums.entry(deed).or_default();
    match end {
        End::Done => sums.done += 1,
        End::Retriable => sums.retriable += 1,
        End::Unknown => sums.unknown += 1,
        End::Error(text) => {
            sums.errors += 1;
            book.errors.push(format!("{}: {text}", deed.name()));
        }
    }
    if let Some(struck) = book.struck {
        sums.longest = sums.longest.max(begun.elapsed());
        if begun < struck {
            sums.met += 1;
            sums.met_done += u64::from(matches!(end, End::Done));
        }
    }
}

async fn read(conn: &mut Conn, turn: u64, book: &Shared) -> End {
    let id = turn * 31 % ITEMS + 1;
    let sql = format!("SELECT price FROM demo_item WHERE id = {id}");
    match conn.query::<u64, _>(sql).await {
        Ok(rows) => {
            if rows != [price(id)] {
                let text = format!("item {id}: {rows:?}");
                locked(book).wrong.push(text);
            }
            End::Done
        }
        Err(error) => ended(&error),
    }
}

async fn write(conn: &mut Conn, number: u64) -> End {
    let sql = format!("UPDATE demo_count SET n = n + 1 WHERE client = {number}");
    match conn.query_drop(sql).await {
        Ok(()) => End::Done,
        Err(error) => ended(&error),
    }
}

/// Before its COMMIT is sent, nothing of it can have been done.
async fn transact(conn: &mut Conn, number: u64, book: &Shared) -> End {
    match steps(conn, number, book).await {
        Ok(()) => {}
        Err(error) => {
            return match ended(&error) {
                End::Unknown => End::Retriable,
                other => other,
            };
        }
    }
    match conn.query_drop("COMMIT").await {
        Ok(()) => End::Done,
        Err(error) => ended(&error),
    }
}

async fn steps(conn: &mut Conn, number: u64, book: &Shared) -> mysql_async::Result<()> {
    let look = format!("SELECT n FROM demo_count WHERE client = {number}");
    conn.query_drop("BEGIN").await?;
    let before: Option<u64> = conn.query_first(format!("{look} FOR UPDATE")).await?;
    tokio::time::sleep(REST).await;
    conn.query_drop(format!(
        "UPDATE demo_count SET n = n + 1 WHERE client = {number}"
    ))
    .await?;
    tokio::time::sleep(REST).await;
    let after: Option<u64> = conn.query_first(look).await?;
    if after != before.map(|n| n + 1) {
        let text = format!("client {number} counts {before:?}, then {after:?}");
        locked(book).wrong.push(text);
    }
    Ok(())
}
