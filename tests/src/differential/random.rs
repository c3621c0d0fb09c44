//! Sessions that nobody wrote: statements drawn at random, a few clients in turn, each statement
//! direct and through the proxy. What a client sees must be the same.
//!
//! What is drawn is what session state is made of: settings, user variables, transactions, temporary
//! tables, prepared statements, locks, questions about the statement before. The words are in
//! `words.rs`; here is who runs them, and what becomes of a difference.

use anyhow::Context;

use super::normalise::{self, Meaningless};
use super::script::{Family, View};
use super::words::Words;
use crate::wire::{Connection, Expect, Login, Param, Reply, Target, cap, com};

/// What one client does at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Query(String),
    Prepare(String),
    /// Of the client's latest prepared statement, with this parameter for each of its own.
    Execute(Option<&'static str>, bool),
    Close,
    InitDb(&'static str),
    Ping,
    Reset,
    ChangeUser(usize, &'static str),
    Login(usize, Option<&'static str>),
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Query(sql) => f.write_str(sql),
            other => write!(f, ".{other:?}"),
        }
    }
}

/// Accounts that may do all that is drawn.
pub const ACCOUNTS: [(&str, &str); 2] = [("t_app", "app-secret"), ("t_other", "other-secret")];

/// Clients that take turns.
const CLIENTS: usize = 4;

/// No client waits longer for another's locks.
const IMPATIENT: &str = "SET SESSION lock_wait_timeout=1, innodb_lock_wait_timeout=1";

/// What differed.
#[derive(Debug)]
pub struct Difference {
    /// The number of the step.
    pub at: usize,
    pub client: usize,
    /// The client's own steps up to this one.
    pub steps: Vec<String>,
    pub direct: Vec<String>,
    pub through: Vec<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "step {}; the last of client {}:", self.at, self.client)?;
        for step in self.steps.iter().rev().take(40).rev() {
            writeln!(f, "    {step}")?;
        }
        let only = |ours: &[String], theirs: &[String]| -> Vec<String> {
            ours.iter()
                .filter(|line| !theirs.contains(line))
                .take(8)
                .cloned()
                .collect()
        };
        for line in only(&self.direct, &self.through) {
            writeln!(f, "  - {line}")?;
        }
        for line in only(&self.through, &self.direct) {
            writeln!(f, "  + {line}")?;
        }
        Ok(())
    }
}

/// One client on one side.
struct Client {
    target: Target,
    capabilities: u64,
    account: usize,
    connection: Option<Connection>,
    prepared: Option<(u32, u16)>,
}

impl Client {
    fn new(target: &Target, account: usize, capabilities: u64) -> Self {
        Self {
            target: target.clone(),
            capabilities,
            account,
            connection: None,
            prepared: None,
        }
    }

    async fn log_in(&mut self, account: usize, database: Option<&str>) -> anyhow::Result<Reply> {
        let (user, password) = ACCOUNTS[account];
        let mut login = Login::new(self.target.clone(), user, password);
        login.database = database.map(str::to_owned);
        login.capabilities = self.capabilities;
        self.account = account;
        self.prepared = None;
        if let Some(old) = self.connection.take() {
            old.quit().await;
        }
        let (connection, reply) = Connection::try_open(&login).await?;
        self.connection = connection;
        self.be_impatient().await;
        Ok(reply)
    }

    async fn be_impatient(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.query(IMPATIENT).await;
        }
    }

    async fn run(&mut self, step: &Step) -> anyhow::Result<Reply> {
        if let Step::Login(account, database) = step {
            return self.log_in(*account, *database).await;
        }
        let account = self.account;
        let connection = self.connection.as_mut().context("it has left")?;
        Ok(match step {
            Step::Query(sql) => connection.query(sql).await,
            Step::Prepare(sql) => {
                let reply = connection.prepare(sql.as_bytes()).await;
                if let Some(statement) = reply.statement_id() {
                    self.prepared = Some(statement);
                }
                reply
            }
            Step::Execute(value, cursor) => {
                // Without one: a number that nobody has.
                let (id, count) = self.prepared.unwrap_or((4_000_000, 0));
                let param = value.map_or_else(Param::null, Param::text);
                let params = vec![param; usize::from(count)];
                let reply = connection
                    .execute(id, u8::from(*cursor), &params, true)
                    .await;
                let open = reply.status().is_some_and(|status| status & 0x0040 != 0);
                if *cursor && open && reply.broken().is_none() {
                    connection.fetch(id, 2).await;
                    // MySQL 9.7 answers nonsense to the next execution of a statement whose
                    // cursor was reset and that it had to prepare anew (observed direct).
                    self.prepared = None;
                    connection
                        .command(com::STMT_CLOSE, &id.to_le_bytes(), Expect::Nothing)
                        .await;
                }
                reply
            }
            Step::Close => {
                if let Some((id, _)) = self.prepared.take() {
                    connection
                        .command(com::STMT_CLOSE, &id.to_le_bytes(), Expect::Nothing)
                        .await;
                }
                connection.command(com::PING, &[], Expect::Single).await
            }
            Step::InitDb(name) => {
                let name = name.as_bytes();
                connection.command(com::INIT_DB, name, Expect::Single).await
            }
            Step::Ping => connection.command(com::PING, &[], Expect::Single).await,
            Step::Reset => {
                let reply = connection
                    .command(com::RESET_CONNECTION, &[], Expect::Single)
                    .await;
                self.prepared = None;
                self.be_impatient().await;
                reply
            }
            Step::ChangeUser(other, database) => {
                let _ = account;
                let (user, password) = ACCOUNTS[*other];
                let reply = connection.change_user(user, password, database, 45).await;
                self.account = *other;
                self.prepared = None;
                self.be_impatient().await;
                reply
            }
            Step::Login(..) => unreachable!("it returned above"),
        })
    }
}

/// Both sides of all clients.
pub struct Sessions {
    family: Family,
    words: Words,
    clients: Vec<[Client; 2]>,
    /// Each client's steps since it last logged in.
    history: Vec<Vec<String>>,
    at: usize,
}

impl Sessions {
    /// Logs the clients in. The tables are there: see [`super::words::set_up`].
    ///
    /// # Errors
    /// Where a client cannot log in.
    pub async fn begin(
        family: Family,
        direct: &Target,
        through: &Target,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut sessions = Self {
            family,
            words: Words::new(family, seed),
            clients: Vec::new(),
            history: vec![Vec::new(); CLIENTS],
            at: 0,
        };
        for client in 0..CLIENTS {
            // Old and new clients share what may be shared.
            let capabilities = match client {
                3 => cap::LEGACY,
                _ => cap::MODERN,
            };
            let account = client % 2;
            sessions.clients.push([
                Client::new(direct, account, capabilities),
                Client::new(through, account, capabilities),
            ]);
            sessions.log_in(client).await?;
        }
        Ok(sessions)
    }

    async fn log_in(&mut self, client: usize) -> anyhow::Result<()> {
        self.history[client].clear();
        for side in &mut self.clients[client] {
            let reply = side.log_in(client % 2, Some("rnd1")).await?;
            anyhow::ensure!(side.connection.is_some(), "{:?}", reply.render());
        }
        Ok(())
    }

    /// One statement of one client, on both sides.
    ///
    /// # Errors
    /// Where a client cannot log in again.
    pub async fn step(&mut self) -> anyhow::Result<Option<Difference>> {
        let client = self.words.below(CLIENTS);
        let step = self.words.step();
        self.at += 1;
        self.history[client].push(step.to_string());
        let [direct, through] = &mut self.clients[client];
        let mut seen = [Vec::new(), Vec::new()];
        let mut ended = false;
        for (side, seen) in [direct, through].into_iter().zip(&mut seen) {
            let reply = side.run(&step).await?;
            ended |= reply.broken().is_some() || side.connection.is_none();
            let lines = normalise::apply(
                reply.render(),
                &View::default(),
                &[],
                &[],
                Meaningless::to(side.capabilities, &step.to_string()),
            );
            *seen = self.words.masked(&step, lines);
        }
        let [direct, through] = seen;
        let difference = (direct != through && !self.words.may_differ(&step, &direct, &through))
            .then(|| Difference {
                at: self.at,
                client,
                steps: self.history[client].clone(),
                direct: direct.clone(),
                through: through.clone(),
            });
        if direct != through || ended {
            self.log_in(client).await?;
        }
        Ok(difference)
    }

    /// What a client answers to `sql` now, direct and through: to find where a difference began.
    ///
    /// # Errors
    /// Where the client has left.
    pub async fn ask(&mut self, client: usize, sql: &str) -> anyhow::Result<[Vec<String>; 2]> {
        let [direct, through] = &mut self.clients[client];
        let step = Step::Query(sql.to_owned());
        let direct = direct.run(&step).await?.render();
        Ok([direct, through.run(&step).await?.render()])
    }

    pub fn family(&self) -> Family {
        self.family
    }
}
