//! Asks a server whether an account may log in now: one question answers all logins of the same
//! account and database that arrived before it was asked. So a password that was changed, or an
//! account that was locked, is noticed by every later login, at a cost that falls under load.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_backend::account::Account;
use millrace_backend::conn::Conn;
use millrace_backend::connect::{Login, open};
use millrace_backend::error::BackendError;
use millrace_backend::state::SessionState;
use millrace_protocol::Capabilities;
use millrace_sql::Family;
use tokio::sync::{Notify, oneshot};

use crate::failure::Answer;
use crate::worker::Worker;

/// One worker's questions under way.
#[derive(Default)]
pub(crate) struct Verifiers {
    lines: RefCell<HashMap<Key, Rc<Line>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    account: u64,
    user: Box<[u8]>,
    database: Box<[u8]>,
    collation: u8,
    tls: bool,
}

#[derive(Default)]
struct Line {
    /// The connection is to be closed at once.
    rests: Cell<bool>,
    waiting: RefCell<Vec<oneshot::Sender<Result<(), Answer>>>>,
    called: Notify,
}

impl Verifiers {
    /// Closes the connections that ask for an account: it is allowed too few.
    pub(crate) fn rest(&self, user: &[u8]) {
        for (key, line) in self.lines.borrow().iter() {
            if *key.user == *user {
                line.rests.set(true);
                line.called.notify_one();
            }
        }
    }
}

/// How long the connection that asks is kept when nobody logs in.
const REST: Duration = Duration::from_secs(20);

/// Answers whether the account may log in, and into the database, as the server says now.
pub(crate) async fn verify(
    worker: &Rc<Worker>,
    account: &Arc<Account>,
    database: &[u8],
    collation: u8,
    tls: bool,
) -> Result<(), Answer> {
    let key = Key {
        account: account.id,
        user: account.user.clone(),
        database: database.into(),
        collation,
        tls,
    };
    let (sender, receiver) = oneshot::channel();
    let known = worker.verifiers.lines.borrow().get(&key).cloned();
    let line = known.unwrap_or_else(|| {
        let line = Rc::new(Line::default());
        let mut lines = worker.verifiers.lines.borrow_mut();
        lines.insert(key.clone(), line.clone());
        let asking = ask(worker.clone(), line.clone(), account.clone(), key);
        tokio::task::spawn_local(asking);
        line
    });
    line.waiting.borrow_mut().push(sender);
    line.called.notify_one();
    match receiver.await {
        Ok(answer) => answer,
        Err(_) => Err(Answer::backend(BackendError::Timeout(
            "limits.login_timeout",
        ))),
    }
}

async fn ask(worker: Rc<Worker>, line: Rc<Line>, account: Arc<Account>, key: Key) {
    let mut conn = None;
    loop {
        let called = tokio::time::timeout(REST, line.called.notified()).await;
        let waiting = std::mem::take(&mut *line.waiting.borrow_mut());
        if waiting.is_empty() {
            if line.rests.take() {
                conn = None;
            }
            if called.is_err() {
                worker.verifiers.lines.borrow_mut().remove(&key);
                return;
            }
            continue;
        }
        let answer = ask_once(&worker, &mut conn, &account, &key).await;
        for waiter in waiting {
            // A client that left meanwhile does not matter.
            let _ = waiter.send(answer.clone());
        }
    }
}

async fn ask_once(
    worker: &Rc<Worker>,
    slot: &mut Option<Conn>,
    account: &Account,
    key: &Key,
) -> Result<(), Answer> {
    if let Some(mut conn) = slot.take()
        && Some(conn.server) == judge(worker)
    {
        let changed = conn
            .change_user(
                &account.user,
                &account.password,
                &key.database,
                key.collation,
            )
            .await;
        match changed {
            // MariaDB lets an account with an expired password in and then refuses its statements.
            Ok(()) if conn.family == Family::MariaDb => match conn.query("DO 0").await {
                Ok(_) => {
                    *slot = Some(conn);
                    return Ok(());
                }
                Err(BackendError::Server(error)) => return Err(Answer::server(error)),
                Err(_) => {}
            },
            Ok(()) => {
                *slot = Some(conn);
                return Ok(());
            }
            Err(BackendError::Server(error)) if error.code != 1053 => {
                return Err(Answer::server(error));
            }
            // The connection was gone: ask on a new one.
            Err(_) => {}
        }
    }
    let connected = match connect(worker, account, key).await {
        Err(BackendError::Server(error)) if matches!(error.code, 1203 | 1226) => {
            worker.make_room_for(&account.user).await;
            connect(worker, account, key).await
        }
        connected => connected,
    };
    let (conn, state) = connected.map_err(Answer::backend)?;
    worker.set_base(key.collation, &worker.states.share(state));
    *slot = Some(conn);
    Ok(())
}

/// The server whose word counts: the primary, else any that is up.
fn judge(worker: &Worker) -> Option<millrace_topology::ServerId> {
    worker.with_world(|world| {
        let snapshot = &world.snapshot;
        snapshot.primary.or_else(|| {
            let mut up = snapshot
                .servers
                .iter()
                .filter(|view| view.health.is_usable());
            up.next().map(|view| view.id)
        })
    })
}

async fn connect(
    worker: &Worker,
    account: &Account,
    key: &Key,
) -> Result<(Conn, SessionState), BackendError> {
    let judge = judge(worker).ok_or(BackendError::Limit("no server is up".to_owned()))?;
    let facts = worker.servers.of(judge).facts();
    let login = Login {
        user: &account.user,
        password: &account.password,
        database: (!key.database.is_empty()).then_some(&*key.database),
        collation: key.collation,
        capabilities: Capabilities::DEPRECATE_EOF,
        tls: key.tls,
    };
    let timeout = worker.shared.pool.connect_timeout;
    let opened = open(&facts.address, &login, &worker.shared.server_tls, timeout).await?;
    let mut conn = Conn::new(opened, judge, facts.family, None);
    let mut state = conn.set_up(&facts.track).await?;
    state.database = Box::default();
    state.multi_statements = false;
    Ok((conn, state))
}
