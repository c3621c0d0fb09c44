//! One client of the demo of the cache: it reads and now and then writes, and checks every answer. Values only grow, and
//! each row has one writer, so that it is known what a read must show at least.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Row};
use tokio::sync::watch;
use tokio::time::sleep;

use super::random::Random;
use super::schema::{ITEMS, price};

/// Rows that grow.
pub(super) const STOCK: u64 = 500;
/// Of these, the ones that are read as often as all others together.
const HOT: u64 = 50;
/// Every so many rows is written beside Millrace only.
const BESIDE_EVERY: u64 = 10;
/// Between two statements of a client, as applications have it.
const REST: Duration = Duration::from_millis(50);
/// Between two writes beside Millrace.
const BESIDE_REST: Duration = Duration::from_millis(50);
/// A write beside Millrace is to be seen within this.
const SEEN_WITHIN: Duration = Duration::from_secs(1);
/// One statement of so many is a write.
const WRITE_EVERY: u64 = 40;
const SUM_ROWS: u64 = 10;

/// What one row must show.
#[derive(Debug, Clone, Default)]
pub(super) struct Stock {
    /// When each value was acknowledged. Both only grow.
    acknowledged: Vec<(Instant, u64)>,
}

impl Stock {
    /// What a read that begins then shows at least.
    fn must(&self, begun: Instant, patience: Duration) -> u64 {
        let due = self
            .acknowledged
            .partition_point(|(at, _)| *at + patience <= begun);
        due.checked_sub(1)
            .map_or(0, |last| self.acknowledged[last].1)
    }

    pub(super) fn last(&self) -> u64 {
        self.acknowledged.last().map_or(0, |(_, value)| *value)
    }
}

/// What all clients have seen.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// By row, the first at 0.
    pub(super) stock: Vec<Stock>,
    /// How long each read took.
    pub(super) times: Vec<Duration>,
    pub(super) writes: u64,
    pub(super) written_beside: u64,
    pub(super) checked: u64,
    /// Answers that showed less than they had to.
    pub(super) stale: u64,
    /// Answers of a replica that did not have a write beside Millrace in time.
    pub(super) late: u64,
    pub(super) wrong: Vec<String>,
    pub(super) errors: Vec<String>,
}

pub(super) type Shared = Arc<Mutex<Book>>;

/// Poisoned only where a client has panicked, which the demo reports anyhow.
pub(super) fn locked(book: &Shared) -> std::sync::MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn is_beside(id: u64) -> bool {
    id.is_multiple_of(BESIDE_EVERY)
}

fn patience(id: u64) -> Duration {
    if is_beside(id) {
        SEEN_WITHIN
    } else {
        Duration::ZERO
    }
}

/// A client of Millrace, of so many. An error ends it.
pub(super) async fn live(
    number: u64,
    of: u64,
    opts: Opts,
    book: Shared,
    stop: watch::Receiver<bool>,
) {
    if let Err(error) = work(number, of, opts, &book, &stop).await {
        locked(&book)
            .errors
            .push(format!("client {number}: {error}"));
    }
}

async fn work(
    number: u64,
    of: u64,
    opts: Opts,
    book: &Shared,
    stop: &watch::Receiver<bool>,
) -> mysql_async::Result<()> {
    let mut random = Random::new(number);
    let own: Vec<u64> = (1..=STOCK)
        .filter(|id| !is_beside(*id))
        .skip(number as usize - 1)
        .step_by(of as usize)
        .collect();
    let mut conn = Conn::new(opts).await?;
    // Not all at once.
    sleep(REST.mul_f64(number as f64 / of as f64)).await;
    while !*stop.borrow() {
        if random.one_in(WRITE_EVERY) && !own.is_empty() {
            let id = own[random.within(0..own.len() as u64) as usize];
            write(&mut conn, id, book).await?;
            locked(book).writes += 1;
        } else if random.one_in(20) {
            let first = random.within(1..STOCK - SUM_ROWS + 2);
            read_sum(&mut conn, first, book).await?;
        } else if random.one_in(4) {
            read_item(&mut conn, random.within(1..ITEMS + 1), book).await?;
        } else {
            let upto = if random.one_in(2) { HOT } else { STOCK };
            read_stock(&mut conn, random.within(1..upto + 1), book).await?;
        }
        sleep(REST).await;
    }
    conn.disconnect().await
}

/// Writes at the primary what nobody else writes, and Millrace is not told.
pub(super) async fn write_beside(primary: Opts, book: Shared, stop: watch::Receiver<bool>) {
    let all = async {
        let mut conn = Conn::new(primary).await?;
        let mut random = Random::new(0);
        while !*stop.borrow() {
            let id = random.within(1..STOCK / BESIDE_EVERY + 1) * BESIDE_EVERY;
            write(&mut conn, id, &book).await?;
            locked(&book).written_beside += 1;
            sleep(BESIDE_REST).await;
        }
        conn.disconnect().await
    };
    if let Err(error) = all.await {
        locked(&book)
            .errors
            .push(format!("the writer beside Millrace: {error}"));
    }
}

async fn write(conn: &mut Conn, id: u64, book: &Shared) -> mysql_async::Result<()> {
    let index = id as usize - 1;
    let value = locked(book).stock[index].last() + 1;
    conn.query_drop(format!("UPDATE demo_stock SET n = {value} WHERE id = {id}"))
        .await?;
    locked(book).stock[index]
        .acknowledged
        .push((Instant::now(), value));
    Ok(())
}

async fn read_item(conn: &mut Conn, id: u64, book: &Shared) -> mysql_async::Result<()> {
    let sql = format!("SELECT price FROM demo_item WHERE id = {id}");
    let (value, took) = read(conn, &sql).await?;
    let mut book = locked(book);
    book.times.push(took);
    book.checked += 1;
    if value != price(id) {
        book.wrong.push(format!("item {id}: {value}"));
    }
    Ok(())
}

async fn read_stock(conn: &mut Conn, id: u64, book: &Shared) -> mysql_async::Result<()> {
    let sql = format!("SELECT n FROM demo_stock WHERE id = {id}");
    check(conn, &sql, id..id + 1, book).await
}

async fn read_sum(conn: &mut Conn, first: u64, book: &Shared) -> mysql_async::Result<()> {
    let last = first + SUM_ROWS - 1;
    let sql = format!(
        "SELECT CAST(SUM(n) AS UNSIGNED) FROM demo_stock WHERE id BETWEEN {first} AND {last}"
    );
    check(conn, &sql, first..last + 1, book).await
}

/// A read whose answer is at least what these rows come to.
async fn check(
    conn: &mut Conn,
    sql: &str,
    ids: std::ops::Range<u64>,
    book: &Shared,
) -> mysql_async::Result<()> {
    let begun = Instant::now();
    let must: u64 = {
        let book = locked(book);
        ids.clone()
            .map(|id| book.stock[id as usize - 1].must(begun, patience(id)))
            .sum()
    };
    let (value, took) = read(conn, sql).await?;
    let is_stale = value < must;
    // A replica that lags behind a write that nobody waits for is no fault of what is in memory.
    let may_lag = is_stale && ids.clone().any(is_beside) && !is_from_memory(conn).await?;
    let mut book = locked(book);
    book.times.push(took);
    book.checked += 1;
    if may_lag {
        book.late += 1;
    } else if is_stale {
        book.stale += 1;
        book.wrong
            .push(format!("stale: {sql}: {value}, at least {must} was due"));
    }
    Ok(())
}

async fn read(conn: &mut Conn, sql: &str) -> mysql_async::Result<(u64, Duration)> {
    let begun = Instant::now();
    let value: Option<u64> = conn.query_first(sql).await?;
    Ok((value.unwrap_or_default(), begun.elapsed()))
}

async fn is_from_memory(conn: &mut Conn) -> mysql_async::Result<bool> {
    let rows: Vec<Row> = conn.query("SHOW ROUTE").await?;
    Ok(rows.iter().any(|row| {
        let went_to: Option<Result<String, _>> = row.get_opt(1);
        went_to.is_some_and(|text| text.is_ok_and(|text| text.starts_with("memory")))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_due_when_its_patience_is_over() {
        let at = Instant::now();
        let stock = Stock {
            acknowledged: vec![(at, 1), (at + Duration::from_secs(3), 2)],
        };
        let after = |ms| at + Duration::from_millis(ms);
        assert_eq!(stock.must(after(0), Duration::ZERO), 1);
        assert_eq!(stock.must(after(999), SEEN_WITHIN), 0);
        assert_eq!(stock.must(after(1_000), SEEN_WITHIN), 1);
        assert_eq!(stock.must(after(4_000), SEEN_WITHIN), 2);
        assert_eq!((stock.last(), Stock::default().last()), (2, 0));
    }
}
