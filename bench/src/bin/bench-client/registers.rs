//! Clients that check what they read: of rows whose value only grows, each written by one client, it is known what a
//! read must show at least. Some are written through the system under test, the others directly at the primary. It
//! counts, and judges nothing but single reads.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use serde::Serialize;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::sleep;

use crate::{Account, print_json};

/// A write that nobody's client made is to be seen within this.
const SEEN_WITHIN: Duration = Duration::from_secs(1);
/// So many stale reads are told in words.
const EXAMPLES: usize = 5;

/// Who checks, and how often.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Registers {
    /// The system under test.
    #[arg(long)]
    server: SocketAddr,
    /// The primary, which some write to directly.
    #[arg(long)]
    primary: SocketAddr,
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    #[arg(long, default_value_t = 16)]
    readers: usize,
    /// Writers through the system, and as many beside it.
    #[arg(long, default_value_t = 2)]
    writers: usize,
    /// Milliseconds that a reader rests after each read.
    #[arg(long, default_value_t = 8)]
    read_rest: u64,
    /// Milliseconds that a writer rests after each write: few writes, so that they are next to none beside the load's.
    #[arg(long, default_value_t = 400)]
    write_rest: u64,
}

/// What the checks found.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Reads whose answer was looked at.
    checked: u64,
    /// Of these: of rows that are written beside the system.
    checked_beside: u64,
    /// Reads that showed less than they had to.
    stale: u64,
    /// Reads from a server that has not had a write beside the system for longer than [`SEEN_WITHIN`]: a replica that
    /// lags, and nobody's promise.
    late: u64,
    /// Acknowledged writes through the system.
    written: u64,
    /// Acknowledged writes beside it.
    written_beside: u64,
    /// The first stale reads in words.
    examples: Vec<String>,
    failed: u64,
    first_error: Option<String>,
}

impl Report {
    fn error(&mut self, error: &anyhow::Error) {
        self.failed += 1;
        self.first_error.get_or_insert_with(|| format!("{error:#}"));
    }
}

/// What one row must show.
#[derive(Debug)]
struct Register {
    id: u64,
    /// Written directly at the primary.
    beside: bool,
    /// When each value was acknowledged; both only grow.
    acknowledged: Vec<(Instant, u64)>,
    start: u64,
}

impl Register {
    /// What a read that begins then shows at least.
    fn must(&self, begun: Instant) -> u64 {
        let patience = if self.beside {
            SEEN_WITHIN
        } else {
            Duration::ZERO
        };
        let due = self
            .acknowledged
            .partition_point(|(at, _)| *at + patience <= begun);
        match due {
            0 => self.start,
            count => self.acknowledged[count - 1].1,
        }
    }

    fn last(&self) -> u64 {
        self.acknowledged
            .last()
            .map_or(self.start, |(_, value)| *value)
    }
}

struct Board {
    registers: Vec<Register>,
    report: Report,
}

impl Board {
    fn acknowledged(&mut self, index: usize, value: u64) {
        let register = &mut self.registers[index];
        register.acknowledged.push((Instant::now(), value));
        if register.beside {
            self.report.written_beside += 1;
        } else {
            self.report.written += 1;
        }
    }

    /// A read showed `value`. What was acknowledged wants `must`; the session has seen `seen`.
    fn answered(&mut self, index: usize, value: u64, must: u64, seen: u64, from_memory: bool) {
        let Register { id, beside, .. } = self.registers[index];
        let report = &mut self.report;
        report.checked += 1;
        report.checked_beside += u64::from(beside);
        if value >= must.max(seen) {
            return;
        }
        if beside && value >= seen && !from_memory {
            report.late += 1;
            return;
        }
        report.stale += 1;
        if report.examples.len() < EXAMPLES {
            let by = if beside { "beside" } else { "through" };
            let source = if from_memory { "memory" } else { "a server" };
            report.examples.push(format!(
                "row {id}, written {by} the system, was {value} out of {source}; acknowledged was {must}, and seen {seen}"
            ));
        }
    }
}

type Shared = Rc<RefCell<Board>>;

/// Checks for some seconds. The rows are there: `bench_register (id, n)`.
pub(crate) async fn check(account: &Account, how: &Registers) -> Result<()> {
    let board = Rc::new(RefCell::new(Board {
        registers: found(account, how.primary).await?,
        report: Report::default(),
    }));
    let ends = Instant::now() + Duration::from_secs(how.seconds);
    LocalSet::new()
        .run_until(async {
            let mut tasks = Vec::new();
            for number in 0..how.writers {
                for beside in [false, true] {
                    let (account, how, board) = (account.clone(), how.clone(), board.clone());
                    tasks.push(noting(board.clone(), async move {
                        write(&account, &how, &board, beside, number, ends).await
                    }));
                }
            }
            for number in 0..how.readers {
                let (account, how, board) = (account.clone(), how.clone(), board.clone());
                tasks.push(noting(board.clone(), async move {
                    read(&account, &how, &board, number, ends).await
                }));
            }
            for task in tasks {
                task.await?;
            }
            anyhow::Ok(())
        })
        .await?;
    let report = std::mem::take(&mut board.borrow_mut().report);
    print_json(&report)
}

fn noting(board: Shared, work: impl Future<Output = Result<()>> + 'static) -> JoinHandle<()> {
    spawn_local(async move {
        if let Err(error) = work.await {
            board.borrow_mut().report.error(&error);
        }
    })
}

/// The rows as the primary has them: those with even numbers are written beside the system.
async fn found(account: &Account, primary: SocketAddr) -> Result<Vec<Register>> {
    let mut conn = Conn::new(account.options(primary)).await?;
    let rows: Vec<(u64, u64)> = conn
        .query("SELECT id, n FROM bench_register ORDER BY id")
        .await?;
    conn.disconnect().await?;
    ensure!(!rows.is_empty(), "bench_register has no rows");
    Ok(rows
        .into_iter()
        .map(|(id, n)| Register {
            id,
            beside: id % 2 == 0,
            acknowledged: Vec::new(),
            start: n,
        })
        .collect())
}

/// Counts up each of its own rows in turn.
async fn write(
    account: &Account,
    how: &Registers,
    board: &Shared,
    beside: bool,
    number: usize,
    ends: Instant,
) -> Result<()> {
    let to = if beside { how.primary } else { how.server };
    let mut conn = Conn::new(account.options(to)).await?;
    let own: Vec<usize> = (0..board.borrow().registers.len())
        .filter(|index| board.borrow().registers[*index].beside == beside)
        .skip(number)
        .step_by(how.writers)
        .collect();
    for index in own.iter().cycle() {
        if Instant::now() >= ends {
            break;
        }
        let (id, value) = {
            let board = board.borrow();
            let register = &board.registers[*index];
            (register.id, register.last() + 1)
        };
        let sql = format!("UPDATE bench_register SET n = {value} WHERE id = {id}");
        conn.query_drop(sql).await?;
        board.borrow_mut().acknowledged(*index, value);
        sleep(Duration::from_millis(how.write_rest)).await;
    }
    conn.disconnect().await?;
    Ok(())
}

async fn read(
    account: &Account,
    how: &Registers,
    board: &Shared,
    number: usize,
    ends: Instant,
) -> Result<()> {
    let mut conn = Conn::new(account.options(how.server)).await?;
    let count = board.borrow().registers.len();
    let mut seen = vec![0; count];
    let mut turn = number * 7;
    while Instant::now() < ends {
        turn += 5;
        let index = turn % count;
        let id = board.borrow().registers[index].id;
        let begun = Instant::now();
        let must = board.borrow().registers[index].must(begun);
        let sql = format!("SELECT n FROM bench_register WHERE id = {id}");
        let value: u64 = conn
            .query_first(sql)
            .await?
            .with_context(|| format!("register {id} has no row"))?;
        let least = must.max(seen[index]);
        let from_memory = if value < least {
            is_from_memory(&mut conn).await?
        } else {
            false
        };
        board
            .borrow_mut()
            .answered(index, value, must, seen[index], from_memory);
        seen[index] = value.max(seen[index]);
        sleep(Duration::from_millis(how.read_rest)).await;
    }
    conn.disconnect().await?;
    Ok(())
}

/// Whether the session's last answer came out of memory. No other system says so.
async fn is_from_memory(conn: &mut Conn) -> Result<bool> {
    let Ok(rows) = conn.query::<Row, _>("SHOW ROUTE").await else {
        return Ok(false);
    };
    Ok(rows.iter().any(|row| {
        let because: Option<Result<String, _>> = row.get_opt(1);
        because.is_some_and(|text| text.is_ok_and(|text| text.starts_with("memory")))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_acknowledged_or_seen_is_stale() {
        let now = Instant::now();
        let registers = vec![register(false, now), register(true, now)];
        let mut board = Board {
            registers,
            report: Report::default(),
        };
        let counts = |board: &Board| {
            let report = &board.report;
            (report.checked, report.stale, report.late)
        };
        board.answered(0, 4, 4, 3, true);
        assert_eq!(counts(&board), (1, 0, 0));
        board.answered(0, 3, 4, 3, false);
        board.answered(1, 3, 4, 3, true);
        board.answered(1, 3, 3, 4, false);
        assert_eq!(counts(&board), (4, 3, 0));
        board.answered(1, 3, 4, 3, false);
        assert_eq!(counts(&board), (5, 3, 1));
        assert_eq!(board.report.examples.len(), 3);
    }

    fn register(beside: bool, at: Instant) -> Register {
        Register {
            id: 1,
            beside,
            acknowledged: vec![(at, 4), (at + Duration::from_secs(5), 5)],
            start: 3,
        }
    }

    #[test]
    fn a_write_through_the_system_is_due_at_once() {
        let at = Instant::now();
        let register = register(false, at);
        let must = |after| register.must(at + Duration::from_millis(after));
        assert_eq!(register.must(at - Duration::from_millis(1)), 3);
        assert_eq!((must(0), must(4_999), must(5_000)), (4, 4, 5));
    }

    #[test]
    fn a_write_beside_it_is_due_after_a_second() {
        let at = Instant::now();
        let register = register(true, at);
        let must = |after| register.must(at + Duration::from_millis(after));
        assert_eq!((must(0), must(999), must(1_000)), (3, 3, 4));
        assert_eq!((must(5_999), must(6_000)), (4, 5));
        assert_eq!(register.last(), 5);
    }
}
