//! Asks a server whether an account may log in now: one question answers all logins of the same
//! account and database that arrived before it was asked. So a password that was changed, or an
//! account that was locked, is noticed by every later login, at a cost that falls under load.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_backend::account::{Account, Proof};
use millrace_backend::conn::Conn;
use millrace_backend::connect::{Login, open};
use millrace_backend::error::BackendError;
use millrace_backend::nonce::random_nonce;
use millrace_backend::pool::ServerFacts;
use millrace_backend::secret::Secret;
use millrace_backend::tls::For;
use millrace_backend::user_rows::{Name, UserRows, Who, by_which_row, user_of};
use millrace_engine::image::first_status;
use millrace_engine::refusals::is_of_account;
use millrace_engine::state::SessionState;
use millrace_protocol::Capabilities;
use millrace_sql::Family;
use millrace_topology::ServerId;
use tokio::sync::oneshot;

use crate::error::{ClientError, observed};
use crate::login::verifiers::{Key, LetIn, Line, Waiting};
use crate::worker::Worker;
use millrace_worker::Base;

/// The connection that asks.
struct Asking {
    conn: Conn,
    let_in: Rc<LetIn>,
    /// Until then it asks although its server is not the first that should be asked: that one could
    /// not be had.
    instead: Option<Instant>,
}

/// How long the connection that asks is kept when nobody logs in.
const REST: Duration = Duration::from_secs(20);

/// Between two attempts, while no server can say.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a server is not tried again that could not be had, where another answers.
const INSTEAD: Duration = Duration::from_secs(1);

/// The longest that a server may take to let the connection in that asks, where there are others to ask.
const HUNG: Duration = Duration::from_secs(2);

/// Answers whether the account may log in, and into the database, as the server says now: by Millrace's
/// connection, so that [`Caller::judge`](crate::login::caller::Caller::judge) has to follow. Where none can say, the
/// login waits as a statement does.
pub(super) async fn verify(
    worker: &Rc<Worker>,
    account: &Arc<Account>,
    database: &[u8],
    collation: u8,
    ignore_space: bool,
    tls: bool,
) -> Result<Rc<LetIn>, ClientError> {
    let key = Key {
        account: account.id,
        user: account.user.clone(),
        database: database.into(),
        collation,
        ignore_space,
        tls,
    };
    let (sender, receiver) = oneshot::channel();
    let known = worker.service.lines.borrow().get(&key).cloned();
    let line = known.unwrap_or_else(|| {
        let line = Rc::new(Line::default());
        let mut lines = worker.service.lines.borrow_mut();
        lines.insert(key.clone(), line.clone());
        let asking = ask(worker.clone(), line.clone(), account.clone(), key);
        tokio::task::spawn_local(asking);
        line
    });
    line.waiting.borrow_mut().push(Waiting {
        since: Instant::now(),
        answer: sender,
    });
    line.called.notify_one();
    match receiver.await {
        Ok(answer) => answer,
        Err(_) => Err(ClientError::backend(BackendError::Timeout(
            "limits.login_timeout",
        ))),
    }
}

async fn ask(worker: Rc<Worker>, line: Rc<Line>, account: Arc<Account>, key: Key) {
    let mut asking = None;
    loop {
        // A password that no server took is not likely to be tried again.
        let rest = match asking {
            Some(_) => REST,
            None => Duration::ZERO,
        };
        if line.waiting.borrow().is_empty() {
            let called = tokio::time::timeout(rest, line.called.notified()).await;
            if line.waiting.borrow().is_empty() {
                if line.rests.take() {
                    asking = None;
                }
                if called.is_err() {
                    worker.service.lines.borrow_mut().remove(&key);
                    return;
                }
                continue;
            }
        }
        let waiting = std::mem::take(&mut *line.waiting.borrow_mut());
        let drops = worker.cluster.drops();
        let answer = ask_servers(&worker, &mut asking, &account, &key).await;
        if let Ok(let_in) = &answer {
            let primary = worker.cluster.primary();
            let asked = asking.as_ref().map(|asking| asking.conn.server);
            if asked.is_some() && asked == primary {
                let rows = let_in.rows.as_ref();
                let row = rows.and_then(|rows| rows.named(&let_in.current));
                account.prove(Proof {
                    current: let_in.current.clone(),
                    drops,
                    passwords: row.map(|row| row.passwords.clone()),
                });
            } else {
                account.forget_refusals();
            }
        }
        let passing = matches!(&answer, Err(why) if why.passing || why.is_full());
        for waiter in waiting {
            let limit = match &answer {
                Err(why) if why.is_full() => worker.settings().pool.wait_timeout,
                _ => worker.options().failover.hold_time,
            };
            if !passing {
                // A client that left meanwhile does not matter.
                let _ = waiter.answer.send(answer.clone());
            } else if waiter.since.elapsed() < limit {
                // Before those that have come since, if it is still there.
                if !waiter.answer.is_closed() {
                    line.waiting.borrow_mut().push(waiter);
                }
            } else if let Err(why) = &answer {
                let why = match why.is_full() {
                    true => why.clone(),
                    false => why.clone().waited(limit),
                };
                let _ = waiter.answer.send(Err(why));
            }
        }
        if passing && !line.waiting.borrow().is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Asks one server after the other until one can say.
async fn ask_servers(
    worker: &Rc<Worker>,
    slot: &mut Option<Asking>,
    account: &Account,
    key: &Key,
) -> Result<Rc<LetIn>, ClientError> {
    let (primary, judges) = worker.cluster.with_world(|world| {
        let judges: Vec<ServerId> = world.snapshot.judges().collect();
        (world.snapshot.primary, judges)
    });
    // In the primary's place, which is the first, a replica may let in, but refuse nobody: it may be late.
    let counts = |at| at == 0 || primary.is_none();
    if let Some(mut asking) = slot.take() {
        let first = judges.first() == Some(&asking.conn.server);
        let instead = asking.instead.is_some_and(|until| Instant::now() < until);
        let server = worker.cluster.servers.of(asking.conn.server);
        if (first || (instead && judges.contains(&asking.conn.server)))
            && asking.conn.login.at == server.facts().address.at
            && is_current(worker, account, key, &asking.conn)
            && let Some(answer) = ask_again(worker, &mut asking.conn, account, key).await
            && (answer.is_ok() || first || primary.is_none())
        {
            answer?;
            let let_in = asking.let_in.clone();
            *slot = Some(asking);
            return Ok(let_in);
        }
    }
    let mut why = ClientError::nobody_answers();
    for (at, judge) in judges.iter().enumerate() {
        let last = at + 1 == judges.len();
        let connected = match connect(worker, *judge, account, key, last).await {
            Err(BackendError::Server(error)) if is_of_account(&error) => {
                worker.make_room_for(&account.user).await;
                connect(worker, *judge, account, key, last).await
            }
            connected => connected,
        };
        match connected {
            Ok((conn, state, let_in)) => {
                let is_primary = worker.cluster.is_primary(*judge);
                // What another has in its place may differ from it.
                let known = worker.learnt.base(account, key.collation, key.ignore_space);
                if is_primary || known.is_none() {
                    let family = worker.cluster.family();
                    let base = Base {
                        status: first_status(family, &state, || worker.cluster.sql_mode()),
                        state: worker.states.share(state),
                        server: conn.server,
                        version: conn.login.version,
                        tells_variables: conn.login.tells_variables,
                    };
                    worker
                        .learnt
                        .set_base(account, key.collation, key.ignore_space, base);
                }
                let instead = (at > 0).then(|| Instant::now() + INSTEAD);
                let let_in = Rc::new(let_in);
                *slot = Some(Asking {
                    conn,
                    let_in: let_in.clone(),
                    instead,
                });
                return Ok(let_in);
            }
            Err(error) => {
                if let Some(kind) = observed(&error) {
                    worker.shared.monitor.observe(*judge, kind);
                }
                let answer = ClientError::backend(error);
                if counts(at) && !answer.passing && !answer.is_full() {
                    return Err(answer);
                }
                // The first is the one that matters.
                if at == 0 {
                    why = answer;
                }
            }
        }
    }
    Err(why)
}

/// Whether what sessions of the account begin with is known as it is now. Otherwise only a new
/// connection tells it: `init_connect` runs on no other.
fn is_current(worker: &Worker, account: &Account, key: &Key, conn: &Conn) -> bool {
    let facts = worker.cluster.servers.of(conn.server).facts();
    let needed = facts.fresh.for_login();
    let base = worker.learnt.base(account, key.collation, key.ignore_space);
    // The account's row may be another since.
    let same_row = conn.login.version >= needed;
    same_row && base.is_some_and(|base| base.server != conn.server || base.version >= needed)
}

/// Asks on a connection that is there. None: it was gone.
async fn ask_again(
    worker: &Worker,
    conn: &mut Conn,
    account: &Account,
    key: &Key,
) -> Option<Result<(), ClientError>> {
    let (user, password) = (&account.user, &account.password);
    let changing = async {
        conn.change_user(user, password, &key.database, key.collation)
            .await?;
        match conn.family {
            // It lets an account with an expired password in and then refuses its statements.
            Family::MariaDb => conn.query("DO 0").await.map(drop),
            Family::MySql => Ok(()),
        }
    };
    let changed = tokio::time::timeout(worker.settings().pool.connect_timeout, changing).await;
    match changed {
        Ok(Ok(())) => Some(Ok(())),
        Ok(Err(BackendError::Server(error))) if error.code != 1053 => {
            Some(Err(ClientError::server(error)))
        }
        _ => None,
    }
}

/// `last`: there is no other to ask.
async fn connect(
    worker: &Worker,
    judge: ServerId,
    account: &Account,
    key: &Key,
    last: bool,
) -> Result<(Conn, SessionState, LetIn), BackendError> {
    let facts = worker.cluster.servers.of(judge).facts();
    let login = Login {
        user: &account.user,
        password: &account.password,
        database: (!key.database.is_empty()).then_some(&*key.database),
        collation: key.collation,
        capabilities: match key.ignore_space {
            true => Capabilities::DEPRECATE_EOF | Capabilities::IGNORE_SPACE,
            false => Capabilities::DEPRECATE_EOF,
        },
        tls: key.tls,
        whose: For::Client,
    };
    learn_accounts(worker, &facts, key.name()).await?;
    let timeout = worker.settings().pool.connect_timeout;
    let timeout = if last { timeout } else { timeout.min(HUNG) };
    let version = facts.fresh.version();
    let opened = open(&facts.address, &login, &worker.shared.network, timeout).await?;
    let mut conn = Conn::new(opened, judge, facts.family, None);
    (conn.login.version, conn.login.at) = (version, facts.address.at);
    let setting_up = tokio::time::timeout(timeout, conn.set_up(&facts)).await;
    let mut state = setting_up.map_err(|_| BackendError::Timeout("pool.connect_timeout"))??;
    state.database = Box::default();
    state.multi_statements = false;
    worker
        .learnt
        .learn_collation_number(&state, conn.login.results_number);
    let let_in = let_in(worker, &facts, key.name(), &mut conn, key.tls).await?;
    Ok((conn, state, let_in))
}

/// Before the first connection on which Millrace's TLS or certificate might be taken for a client's: finds out
/// whether the accounts can be read.
pub(super) async fn learn_accounts(
    worker: &Worker,
    facts: &ServerFacts,
    name: Name<'_>,
) -> Result<(), BackendError> {
    let network = &worker.shared.network;
    if network.tls.depends_on_accounts() {
        worker.learnt.user_rows(&worker.shared, facts, name).await?;
    }
    Ok(())
}

/// By which row the server let the account in on this connection, and what the row asks of clients.
pub(super) async fn let_in(
    worker: &Worker,
    facts: &ServerFacts,
    name: Name<'_>,
    conn: &mut Conn,
    tls: bool,
) -> Result<LetIn, BackendError> {
    // What was read before the server took the password may be of the one before.
    worker.learnt.forget_user_rows(facts.id, name.user);
    let mut rows = worker.learnt.user_rows(&worker.shared, facts, name).await?;
    let (mut who, mut unproven) = (Who::default(), false);
    let mut required = None;
    if rows.is_some() {
        let timeout = worker.settings().pool.connect_timeout;
        let asked = tokio::time::timeout(timeout, by_which_row(conn)).await;
        who = asked.map_err(|_| BackendError::Timeout("pool.connect_timeout"))??;
        let current = &who.row;
        let is_there = |rows: &UserRows| rows.named(current).is_some();
        if !current.is_empty() && !rows.as_ref().is_some_and(is_there) {
            // It was made in the moment since they were read.
            worker.learnt.forget_user_rows(facts.id, name.user);
            rows = worker.learnt.user_rows(&worker.shared, facts, name).await?;
        }
        if let Some(proxied) = &who.proxied {
            let others = match facts.family {
                // It looks at what that account asks for, not at the proxy user's own (observed on 9.7).
                Family::MySql => {
                    let name = Name {
                        user: user_of(proxied),
                        collation: 45,
                    };
                    worker.learnt.user_rows(&worker.shared, facts, name).await?
                }
                // The other way round (observed on 10.11 and 11.8).
                Family::MariaDb => rows.clone(),
            };
            let asking = match facts.family {
                Family::MySql => proxied,
                Family::MariaDb => current,
            };
            let row = others.as_ref().and_then(|rows| rows.named(asking));
            required = Some(row.map(|row| row.requires.clone()));
        }
    } else {
        worker.shared.accounts.say_unread();
    }
    if rows.is_none() && facts.address.is_socket() {
        unproven = is_let_in_unproven(worker, facts, name, tls).await?;
    }
    Ok(LetIn {
        server: facts.address.clone(),
        current: who.row,
        rows,
        required,
        unproven,
    })
}

/// Whether the server lets the name in with a password that it cannot have.
async fn is_let_in_unproven(
    worker: &Worker,
    facts: &ServerFacts,
    name: Name<'_>,
    tls: bool,
) -> Result<bool, BackendError> {
    let wrong = Secret::new(random_nonce().to_vec());
    let login = Login {
        user: name.user,
        password: &wrong,
        database: None,
        collation: name.collation,
        capabilities: Capabilities::DEPRECATE_EOF,
        tls,
        whose: For::Client,
    };
    let timeout = worker.settings().pool.connect_timeout;
    match open(&facts.address, &login, &worker.shared.network, timeout).await {
        Ok(_) => Ok(true),
        // Its password has expired, which is said to who has shown the right one.
        Err(BackendError::Server(error)) => Ok(matches!(error.code, 1820 | 1862)),
        Err(error) => Err(error),
    }
}
