//! How long it takes until a write that bypasses the system is seen through it. One client reads a row through the
//! system without a rest, another writes it at the primary now and then.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use serde::Serialize;
use tokio::time::sleep;

use crate::{Account, Percentiles, percentiles, print_json};

/// The last write has so long to be seen.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Seen {
    /// The system under test.
    #[arg(long)]
    server: SocketAddr,
    /// The primary, which is written to directly.
    #[arg(long)]
    primary: SocketAddr,
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Milliseconds between two writes, and up to as many again.
    #[arg(long, default_value_t = 20)]
    rest: u64,
}

#[derive(Serialize)]
struct Report {
    writes: usize,
    /// Writes that were never seen.
    unseen: usize,
    reads: u64,
    /// From the write's acknowledgement until the first answer that shows it.
    #[serde(flatten)]
    times: Percentiles,
    max_us: f64,
}

#[derive(Default)]
struct Board {
    /// Writes that were acknowledged, and not seen yet.
    pending: VecDeque<(Instant, u64)>,
    shown: u64,
    times: Vec<Duration>,
    reads: u64,
    ends: bool,
}

impl Board {
    fn acknowledged(&mut self, at: Instant, value: u64) {
        if value <= self.shown {
            // Seen before the writer knew.
            self.times.push(Duration::ZERO);
        } else {
            self.pending.push_back((at, value));
        }
    }

    fn read(&mut self, at: Instant, value: u64) {
        self.reads += 1;
        self.shown = self.shown.max(value);
        while let Some((acknowledged, written)) = self.pending.front().copied() {
            if written > value {
                break;
            }
            self.pending.pop_front();
            self.times.push(at - acknowledged);
        }
    }
}

/// Writes for some seconds. The row is there: of `bench_register (id, n)` the first.
pub(crate) async fn wait(account: &Account, how: &Seen) -> Result<()> {
    let board = RefCell::new(Board::default());
    tokio::try_join!(read(account, how, &board), write(account, how, &board))?;
    let mut board = board.into_inner();
    let writes = board.times.len() + board.pending.len();
    board.times.sort_unstable();
    let max_us = board
        .times
        .last()
        .map_or(0.0, |time| time.as_secs_f64() * 1e6);
    print_json(&Report {
        writes,
        unseen: board.pending.len(),
        reads: board.reads,
        times: percentiles(board.times),
        max_us,
    })
}

async fn read(account: &Account, how: &Seen, board: &RefCell<Board>) -> Result<()> {
    let mut conn = Conn::new(account.options(how.server)).await?;
    while !board.borrow().ends {
        let value: u64 = conn
            .query_first("SELECT n FROM bench_register WHERE id = 1")
            .await?
            .context("bench_register has no row 1")?;
        board.borrow_mut().read(Instant::now(), value);
    }
    conn.disconnect().await?;
    Ok(())
}

async fn write(account: &Account, how: &Seen, board: &RefCell<Board>) -> Result<()> {
    let mut conn = Conn::new(account.options(how.primary)).await?;
    let start: Option<u64> = conn
        .query_first("SELECT n FROM bench_register WHERE id = 1")
        .await?;
    let mut value = start.context("bench_register has no row 1")?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(how.seconds) {
        // Pauses of other lengths each, so that nothing falls into step.
        sleep(Duration::from_millis(
            how.rest + value * 7 % how.rest.max(1),
        ))
        .await;
        value += 1;
        conn.query_drop(format!(
            "UPDATE bench_register SET n = {value} WHERE id = 1"
        ))
        .await?;
        board.borrow_mut().acknowledged(Instant::now(), value);
    }
    let last = Instant::now();
    while !board.borrow().pending.is_empty() && last.elapsed() < PATIENCE {
        sleep(Duration::from_millis(5)).await;
    }
    board.borrow_mut().ends = true;
    conn.disconnect().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_timed_until_the_first_answer_that_shows_it() {
        let at = Instant::now();
        let after = |ms| at + Duration::from_millis(ms);
        let mut board = Board::default();
        board.acknowledged(at, 1);
        board.read(after(1), 0);
        board.acknowledged(after(2), 2);
        board.read(after(3), 2);
        board.acknowledged(after(4), 3);
        board.read(after(5), 4);
        board.acknowledged(after(6), 4);
        let times: Vec<u128> = board.times.iter().map(Duration::as_millis).collect();
        assert_eq!(times, [3, 1, 1, 0]);
        assert!(board.pending.is_empty());
    }
}
