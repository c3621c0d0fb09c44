//! A client without a proxy beside the others: it writes to every server itself, all the time, so that
//! it is known for how long the servers together took no writes. No client can pause for less.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::wire::{Connection, Login};

/// Between two attempts on a server.
const PAUSE: Duration = Duration::from_millis(15);

/// The table, as an administrator makes it on the primary: a row for each server.
pub const SCHEMA: &str =
    "CREATE TABLE IF NOT EXISTS app.witness (server INT PRIMARY KEY, n INT NOT NULL)";

/// Writes to the servers until it is dropped.
#[derive(Debug)]
pub struct Witness {
    /// When a server said that a write was done, in order.
    taken: Rc<RefCell<Vec<Instant>>>,
    stop: Rc<Cell<bool>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Witness {
    /// Starts on this thread's `LocalSet`; the accounts must not be able to write to a server that is
    /// read only.
    pub fn start(servers: Vec<Login>) -> Self {
        let (taken, stop) = (Rc::default(), Rc::default());
        let tasks = (0..).zip(servers).map(|(number, login)| {
            tokio::task::spawn_local(write(number, login, Rc::clone(&taken), Rc::clone(&stop)))
        });
        let tasks = tasks.collect();
        Witness { taken, stop, tasks }
    }

    /// The longest time without a write on any server that ended after `after`.
    pub fn pause(&self, after: Instant) -> Duration {
        let taken = self.taken.borrow();
        let gaps = taken.windows(2).filter(|both| both[1] > after);
        gaps.map(|both| both[1] - both[0]).max().unwrap_or_default()
    }

    /// Lets each write that is under way end, for so long at most.
    pub async fn stop(&mut self, limit: Duration) {
        self.stop.set(true);
        let deadline = Instant::now() + limit;
        for task in &mut self.tasks {
            let left = deadline.saturating_duration_since(Instant::now());
            // What does not end is aborted with the rest.
            let _ = tokio::time::timeout(left, task).await;
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn write(number: u32, login: Login, taken: Rc<RefCell<Vec<Instant>>>, stop: Rc<Cell<bool>>) {
    let sql =
        format!("INSERT INTO app.witness VALUES ({number}, 0) ON DUPLICATE KEY UPDATE n = n + 1");
    let mut connection = None;
    while !stop.get() {
        let open = match connection.take() {
            Some(open) => Ok(open),
            None => Connection::open(&login).await,
        };
        if let Ok(mut open) = open {
            let reply = open.query(&*sql).await;
            if reply.err().is_none() && reply.broken().is_none() {
                taken.borrow_mut().push(Instant::now());
            }
            if reply.broken().is_none() {
                connection = Some(open);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
