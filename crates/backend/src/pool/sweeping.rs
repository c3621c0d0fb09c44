//! Connections in no use: closed when they are too old, when their server is lost or has too many, or lightened of
//! prepared statements. Lends none.

use std::rc::Rc;

use tracing::info;

use crate::conn::Conn;
use crate::pool::{PoolKey, ServerPool};

impl ServerPool {
    /// Closes what has been idle or alive for too long; to be called about once a second with
    /// a growing count of seconds.
    pub fn sweep(&self, tick: u64) {
        self.tick.set(tick);
        // Who is never asked because he was slow once is asked again some time.
        let response = self.response_us.get();
        self.response_us.set(response - response.div_ceil(16));
        let idle_max = self.options.idle_timeout.as_secs().max(1);
        let (mut lost, mut old) = (0, Vec::new());
        self.pools.borrow_mut().retain(|_, pool| {
            let mut idle = pool.idle.borrow_mut();
            let aged = |conn: &Conn| {
                // Before the server closes it; the tick is a second.
                let most = match conn.wait_timeout() {
                    Some(limit) => idle_max.min(limit.saturating_sub(2).max(1)),
                    None => idle_max,
                };
                tick.saturating_sub(conn.used) >= most
                    || conn.login.opened.elapsed() >= self.options.max_lifetime
            };
            for mut conn in idle.take_all() {
                if aged(&conn) {
                    old.push(conn);
                } else if conn.is_quiet() {
                    idle.push(conn);
                } else {
                    lost += 1;
                }
            }
            idle.len() > 0 || Rc::strong_count(pool) > 1
        });
        self.closed(lost);
        old.into_iter().for_each(|conn| self.retire(conn));
        let option = self.options.max_prepared_statements;
        self.count
            .statements
            .grow(option, std::time::Instant::now());
        self.trim_idle();
        // Within its share a worker keeps what it does not use for the moment, but not for long while
        // another's sessions wait.
        if tick.saturating_sub(self.oldest().unwrap_or(tick)) > 1 {
            self.give_room();
        }
        if !self.watched.get() {
            self.concurrency.skip_turn();
        }
        self.tell_concurrency();
        // Whoever freed a place may not have seen yet that somebody waits here.
        self.yielded.set(false);
        if !self.waiters.borrow().is_empty() {
            self.pump();
        }
    }

    /// How many prepared statements one connection may hold.
    pub fn statements_max(&self) -> usize {
        let option = self.options.max_prepared_statements;
        self.count.statements.most(option)
    }

    /// A connection has come to hold so many prepared statements.
    pub fn note_statements(&self, held: usize) {
        self.count.statements.note(held);
    }

    /// The server takes no more prepared statements (1461): connections are to hold fewer from now on.
    /// Idle ones give up the rest at once, others when they come back. False where no connection holds
    /// any.
    pub fn hold_fewer_statements(&self) -> bool {
        let (before, option) = (self.statements_max(), self.options.max_prepared_statements);
        let now = std::time::Instant::now();
        let Some(most) = self.count.statements.reduce(option, now) else {
            return false;
        };
        if most != before {
            let server = &self.facts.borrow().address;
            info!(%server, most, "the server takes no more prepared statements: connections hold fewer");
            // Other workers look after their own.
            (self.wake_workers)(!(1 << (self.worker % 64)), self.facts.borrow().id);
        }
        self.trim_idle();
        true
    }

    /// Has idle connections close the prepared statements that they have too many.
    pub fn trim_idle(&self) {
        let most = self.statements_max();
        if most >= self.options.max_prepared_statements {
            return;
        }
        for pool in self.pools.borrow().values() {
            for conn in pool.idle.borrow_mut().iter_mut() {
                conn.hold_at_most(most);
            }
        }
    }

    /// Closes all idle connections: the server went down or changed its role.
    pub fn drop_idle(&self) {
        self.retire_those(|_| true);
    }

    /// The server is taken for dead, or no more. Who waits for one of its connections to say something
    /// is told so when its task is woken.
    pub fn set_down(&self, down: bool) {
        self.down.set(down);
    }

    /// Closes an account's idle connections: it is allowed no more than it has.
    pub fn drop_account(&self, user: &[u8]) {
        self.retire_those(|key| *key.account.user == *user);
    }

    /// A server that was given up may still answer what a session asks about its last statement.
    fn retire_those(&self, chosen: impl Fn(&PoolKey) -> bool) {
        let mut gone = Vec::new();
        for pool in self.pools.borrow().values() {
            if chosen(&pool.key) {
                gone.append(&mut pool.idle.borrow_mut().take_all());
            }
        }
        gone.into_iter().for_each(|conn| self.retire(conn));
    }
}
