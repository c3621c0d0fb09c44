//! Clients that disturb: between two steps of a case they go through the same pool with other
//! databases, variables, prepared statements, warnings and errors, so that whatever a server
//! connection remembers is somebody else's when the case's session comes back.
//!
//! They judge nothing: the torture test does that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::script::Family;
use crate::wire::{Connection, Expect, Login, Param, com};

/// The database of the noise. It is made by the suite's set-up.
pub const DATABASE: &str = "d_noise";

/// What a disturber does in one turn; it ends without a pin.
const MENU: &[&[&str]] = &[
    &[
        "SET sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
        "SELECT 'a' || 'b'",
    ],
    &[
        "SET @a=111, @b='noise', @v=x'00ff', @x=1.5, @y=NULL",
        "SELECT @a, @b",
    ],
    &[
        "SET time_zone='+09:00', lc_time_names='de_DE', timestamp=86400",
        "SELECT NOW()",
    ],
    &["SET NAMES latin1", "SELECT 'x'"],
    &["SET NAMES gbk", "SELECT 1"],
    &[
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
        "SELECT COUNT(*) FROM n",
    ],
    &[
        "SET sql_select_limit=1, group_concat_max_len=4, sql_safe_updates=1",
        "SELECT 1 UNION SELECT 2",
    ],
    &[
        "SET foreign_key_checks=0, unique_checks=0, auto_increment_increment=7",
        "INSERT INTO n (v) VALUES (1)",
    ],
    &[
        "SET sql_select_limit=0",
        "SELECT 1",
        "INSERT INTO n (v) VALUES (4)",
        "INSERT INTO n VALUES (1, 1)",
    ],
    &["SET last_insert_id=987654321", "SELECT LAST_INSERT_ID()"],
    &[
        "INSERT INTO n (v) VALUES (2),(3)",
        "SELECT LAST_INSERT_ID(), ROW_COUNT()",
    ],
    &[
        "SET autocommit=0",
        "SELECT COUNT(*) FROM n",
        "COMMIT",
        "SET autocommit=1",
    ],
    &["BEGIN", "UPDATE n SET v=v+1 WHERE id=1", "ROLLBACK"],
    &["SELECT CAST('abc' AS SIGNED)", "SHOW WARNINGS"],
    &["SELECT nonsense FROM nowhere"],
    &["USE test", "SELECT DATABASE()", "USE d_noise"],
    &[
        "PREPARE p FROM 'SELECT ? + 1000'",
        "SET @a=5",
        "EXECUTE p USING @a",
        "DEALLOCATE PREPARE p",
    ],
    &[
        "CREATE TEMPORARY TABLE t (noise INT)",
        "INSERT INTO t VALUES (666)",
        "DROP TEMPORARY TABLE t",
    ],
    &[
        "SELECT GET_LOCK('noise {n}', 0)",
        "SELECT RELEASE_LOCK('noise {n}')",
    ],
    &[
        "SELECT SQL_CALC_FOUND_ROWS id FROM n LIMIT 1",
        "SELECT FOUND_ROWS()",
    ],
    &[
        "SET character_set_results=NULL, collation_connection=utf8mb4_bin",
        "SELECT 'z'",
    ],
    &[
        "SET character_set_results='utf16', collation_connection='utf16_general_ci'",
        "SELECT COUNT(*) FROM n",
    ],
    &["SET TRANSACTION READ ONLY", "SELECT COUNT(*) FROM n"],
    &["DELETE FROM n WHERE id > 50"],
    &[
        "SET div_precision_increment=1, sql_auto_is_null=1, sql_big_selects=0",
        "SELECT 1/3",
    ],
];

/// Running disturbers. Drop it to end them.
#[derive(Debug)]
pub struct Noise {
    turn: watch::Sender<u64>,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: u64,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Noise {
    /// Starts `clients` disturbers with these logins, taken in turn.
    pub fn start(logins: &[Login], clients: u64, family: Family) -> Self {
        let (turn, receiver) = watch::channel(0);
        let done = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..clients)
            .map(|n| {
                let login = logins[n as usize % logins.len()].clone();
                let worker = Worker {
                    login: login.database(DATABASE),
                    number: n,
                    family,
                    done: Arc::clone(&done),
                    stop: Arc::clone(&stop),
                };
                tokio::spawn(worker.run(receiver.clone()))
            })
            .collect();
        Self {
            turn,
            done,
            stop,
            clients,
            tasks,
        }
    }

    /// Lets every disturber take one turn and waits for them, but not for those that wait for a
    /// connection which the case itself holds.
    pub async fn round(&self) {
        let before = self.done.load(Ordering::Relaxed);
        self.turn.send_modify(|turn| *turn += 1);
        for _ in 0..60 {
            if self.done.load(Ordering::Relaxed) >= before + self.clients {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How many turns were taken in all.
    pub fn turns(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

struct Worker {
    login: Login,
    number: u64,
    family: Family,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    async fn run(self, mut turns: watch::Receiver<u64>) {
        let mut connection = None;
        let mut at = self.number * 7;
        while turns.changed().await.is_ok() && !self.stop.load(Ordering::Relaxed) {
            if connection.is_none() {
                connection = Connection::open(&self.login).await.ok();
            }
            if let Some(open) = &mut connection
                && !self.turn(open, at).await
            {
                connection = None;
            }
            at += 1;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the connection is still good.
    async fn turn(&self, connection: &mut Connection, at: u64) -> bool {
        let size = MENU.len() as u64 + 1;
        let Some(statements) = MENU.get((at % size) as usize) else {
            return self.binary(connection).await;
        };
        for sql in *statements {
            let sql = sql.replace("{n}", &self.number.to_string());
            if connection.query(sql).await.broken().is_some() {
                return false;
            }
        }
        true
    }

    /// Prepared statements that look like the cases' own, and now and then a fresh start.
    async fn binary(&self, connection: &mut Connection) -> bool {
        let reply = connection.prepare(b"SELECT ?").await;
        if let Some((id, _)) = reply.statement_id() {
            connection
                .execute(id, 0, &[Param::text("noise")], true)
                .await;
            connection
                .command(com::STMT_CLOSE, &id.to_le_bytes(), Expect::Nothing)
                .await;
        }
        if self.number.is_multiple_of(2) && self.family == Family::MySql {
            connection
                .command(com::RESET_CONNECTION, &[], Expect::Single)
                .await;
        }
        reply.broken().is_none()
    }
}
