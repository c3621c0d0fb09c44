//! Connections that a server ends on purpose, while it goes on: KILL, and its time limits. What ran there is
//! not run again, and the client gets what it would have without Millrace: the error, and the end. The same
//! situations where the server is lost after all stay transparent.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, Family, ServerInfo};
use millrace_tests::wire::{Connection, Expect, Reply, Target, com};

use crate::ground::{
    app, ask, both, client, ensure_error, error_of, fail_over, metric, next, proxy, run, scalar,
    soon, table,
};

/// How long a statement is given to show up on a server.
const SHOWS: Duration = Duration::from_secs(10);

/// A client of the primary's own.
async fn direct(cluster: &Cluster) -> anyhow::Result<Connection> {
    let target = Target::Tcp(format!("127.0.0.1:{}", cluster.primary().port));
    Ok(Connection::open(&app(target)).await?)
}

/// What a server answers.
async fn ask_at(cluster: &Cluster, server: &ServerInfo, question: &str) -> anyhow::Result<String> {
    let mut control = cluster.control(&server.name).await?;
    let answer = control.value(question).await?;
    control.close().await;
    Ok(answer.unwrap_or_else(|| "NULL".to_owned()))
}

/// The thread of the one transaction on the primary that has changed something.
async fn writer(cluster: &Cluster) -> anyhow::Result<String> {
    let question = "SELECT MIN(trx_mysql_thread_id) FROM information_schema.innodb_trx \
                    WHERE trx_rows_modified > 0";
    let deadline = Instant::now() + SHOWS;
    loop {
        let id = ask(cluster, question).await?;
        if id != "NULL" {
            return Ok(id);
        }
        ensure!(
            Instant::now() < deadline,
            "no transaction has changed anything"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The server that runs a statement with this mark, and its thread there.
async fn runner(cluster: &Cluster, mark: &str) -> anyhow::Result<Option<(ServerInfo, String)>> {
    let question = format!(
        "SELECT MIN(id) FROM information_schema.processlist \
         WHERE info LIKE '%{mark}%' AND id <> CONNECTION_ID() AND command <> 'Killed'"
    );
    for server in cluster.servers() {
        let id = ask_at(cluster, &server, &question).await?;
        if id != "NULL" {
            return Ok(Some((server, id)));
        }
    }
    Ok(None)
}

/// Ends what runs with this mark, as `kill` says, once it has run for long enough to be worth that.
async fn kill_running(cluster: &Cluster, kill: &str, mark: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + SHOWS;
    loop {
        if let Some((server, id)) = runner(cluster, mark).await? {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let mut control = cluster.control(&server.name).await?;
            control.run(&format!("{kill} {id}")).await?;
            control.close().await;
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{mark} runs nowhere");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Nothing with this mark is run again.
async fn runs_nowhere(cluster: &Cluster, mark: &str) -> anyhow::Result<()> {
    for _ in 0..5 {
        if let Some((server, id)) = runner(cluster, mark).await? {
            anyhow::bail!("{mark} runs again, as {id} on {}", server.name);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The reply is what a client is told whose connection ends, and it has ended.
async fn ensure_ended(session: &mut Connection, reply: &Reply) -> anyhow::Result<()> {
    if reply.broken().is_none() {
        let (code, _, message) = error_of(reply)?;
        ensure!(matches!(code, 1158 | 4031 | 1927), "{code} {message}");
    }
    let after = session.query("SELECT 1").await;
    ensure!(after.broken().is_some(), "goes on: {:?}", after.render());
    Ok(())
}

/// What the client does, first itself at the server and then through Millrace.
async fn in_transaction(session: &mut Connection, name: &str) -> anyhow::Result<()> {
    session.expect("BEGIN").await?;
    let update = format!("UPDATE {name} SET v = v + 1 WHERE id = 1");
    session.expect(&update).await?;
    Ok(())
}

async fn one_row(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    table(cluster, &format!("{name} (id INT PRIMARY KEY, v INT)")).await?;
    run(cluster, &format!("INSERT INTO app.{name} VALUES (1, 0)")).await?;
    cluster.wait_replicas_caught_up(SHOWS).await
}

async fn value_of(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    ask(cluster, &format!("SELECT v FROM app.{name}")).await
}

/// A DBA kills the connection of an idle transaction, to be rid of its locks.
pub(crate) async fn killed_while_idle(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "killed_idle").await?;
    let proxy = proxy(cluster, "").await?;
    for through in [false, true] {
        for next in ["SELECT v FROM killed_idle", "COMMIT", "ROLLBACK"] {
            let mut session = match through {
                true => client(&proxy).await?,
                false => direct(cluster).await?,
            };
            in_transaction(&mut session, "killed_idle").await?;
            let thread = writer(cluster).await?;
            run(cluster, &format!("KILL {thread}")).await?;
            soon().await;
            run(cluster, "UPDATE app.killed_idle SET v = 100").await?;
            let reply = session.query(next).await;
            ensure_ended(&mut session, &reply)
                .await
                .with_context(|| format!("{next}, through: {through}"))?;
            let v = value_of(cluster, "killed_idle").await?;
            ensure!(v == "100", "{next}, through: {through}: {v}");
        }
    }
    // Nobody holds the row.
    run(cluster, "UPDATE app.killed_idle SET v = 101").await
}

/// The same, and the client then resets its connection or logs in as another: directly there is none any more. Where
/// the server is lost, nothing stands in the way of a new beginning.
pub(crate) async fn killed_and_reset(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "killed_reset").await?;
    let proxy = proxy(cluster, "").await?;
    for through in [false, true] {
        for changes_user in [false, true] {
            let mut session = match through {
                true => client(&proxy).await?,
                false => direct(cluster).await?,
            };
            in_transaction(&mut session, "killed_reset").await?;
            let thread = writer(cluster).await?;
            run(cluster, &format!("KILL {thread}")).await?;
            soon().await;
            let reply = begin_anew(&mut session, changes_user).await;
            ensure_ended(&mut session, &reply)
                .await
                .with_context(|| format!("other user: {changes_user}, through: {through}"))?;
        }
    }
    for changes_user in [false, true] {
        let mut session = client(&proxy).await?;
        in_transaction(&mut session, "killed_reset").await?;
        fail_over(cluster).await?;
        let reply = begin_anew(&mut session, changes_user).await;
        ensure!(reply.ok().is_some(), "lost: {:?}", reply.render());
        session.expect("SELECT 1").await?;
        crate::ground::mend(cluster).await?;
    }
    let v = value_of(cluster, "killed_reset").await?;
    ensure!(v == "0", "{v}");
    Ok(())
}

async fn begin_anew(session: &mut Connection, changes_user: bool) -> Reply {
    if changes_user {
        return session.change_user(APP.user, APP.password, "app", 45).await;
    }
    let expect = Expect::Single;
    session.command(com::RESET_CONNECTION, &[], expect).await
}

/// The same with KILL QUERY, which an idle transaction does not notice.
pub(crate) async fn query_killed_while_idle(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "query_idle").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    in_transaction(&mut session, "query_idle").await?;
    let thread = writer(cluster).await?;
    run(cluster, &format!("KILL QUERY {thread}")).await?;
    soon().await;
    session.expect("COMMIT").await?;
    let v = value_of(cluster, "query_idle").await?;
    ensure!(v == "1", "{v}");
    Ok(())
}

/// Killed inside a statement of a transaction, its first one or a later, a read or a write.
pub(crate) async fn killed_under_way(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "killed_way").await?;
    let proxy = proxy(cluster, "").await?;
    let update = "UPDATE killed_way SET v = v + 10 + SLEEP(20)";
    let read = "SELECT v, SLEEP(20) FROM killed_way";
    for through in [false, true] {
        for (first, sql) in [(true, update), (true, read), (false, update), (false, read)] {
            let mut session = match through {
                true => client(&proxy).await?,
                false => direct(cluster).await?,
            };
            match first {
                true => session.expect("BEGIN").await.map(drop)?,
                false => in_transaction(&mut session, "killed_way").await?,
            }
            let running = async { Ok(session.query(sql).await) };
            let killing = kill_running(cluster, "KILL", "SLEEP(20)");
            let (reply, ()) = both(running, killing).await?;
            ensure_ended(&mut session, &reply)
                .await
                .with_context(|| format!("{sql}, first: {first}, through: {through}"))?;
            runs_nowhere(cluster, "SLEEP(20)")
                .await
                .with_context(|| format!("{sql}, first: {first}, through: {through}"))?;
            let v = value_of(cluster, "killed_way").await?;
            ensure!(v == "0", "{sql}, first: {first}, through: {through}: {v}");
        }
    }
    run(cluster, "UPDATE app.killed_way SET v = 1").await
}

/// The same with KILL QUERY: the statement ends, the transaction stays.
pub(crate) async fn query_killed_under_way(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "query_way").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    in_transaction(&mut session, "query_way").await?;
    let sql = "UPDATE query_way SET v = v + 10 + SLEEP(20)";
    let running = async { Ok(session.query(sql).await) };
    let killing = kill_running(cluster, "KILL QUERY", "SLEEP(20)");
    let (reply, ()) = both(running, killing).await?;
    ensure_error(&reply, 1317, "70100")?;
    runs_nowhere(cluster, "SLEEP(20)").await?;
    session.expect("COMMIT").await?;
    let v = value_of(cluster, "query_way").await?;
    ensure!(v == "1", "{v}");
    Ok(())
}

/// A runaway read that is killed on one server does not move to the next.
pub(crate) async fn read_killed(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "read_killed").await?;
    let proxy = proxy(cluster, "").await?;
    let sql = "SELECT COUNT(*), MAX(v + SLEEP(20)) FROM read_killed";
    let mut session = client(&proxy).await?;
    let running = async { Ok(session.query(sql).await) };
    let killing = kill_running(cluster, "KILL", "SLEEP(20)");
    let (reply, ()) = both(running, killing).await?;
    ensure_ended(&mut session, &reply).await?;
    runs_nowhere(cluster, "SLEEP(20)").await?;
    let mut session = client(&proxy).await?;
    let running = async { Ok(session.query(sql).await) };
    let killing = kill_running(cluster, "KILL QUERY", "SLEEP(20)");
    let (reply, ()) = both(running, killing).await?;
    // MySQL ends SLEEP() alone.
    if reply.err().is_some() {
        ensure_error(&reply, 1317, "70100")?;
    }
    runs_nowhere(cluster, "SLEEP(20)").await?;
    let one = scalar(&mut session, "SELECT 1").await?;
    ensure!(one == "1", "{one}");
    Ok(())
}

/// A read that has waited for a place for long and has run for a moment is short: it is run again.
pub(crate) async fn killed_after_a_wait(cluster: &Cluster) -> anyhow::Result<()> {
    const MARK: &str = "SLEEP(0.45)";
    let proxy = proxy(cluster, "[pool]\nmax_connections = 1\n").await?;
    let (mut holder, mut waiter) = (client(&proxy).await?, client(&proxy).await?);
    let retries = "millrace_retries_total{kind=\"read\"}";
    let before = metric(&proxy, retries).await?;
    let holding = async {
        holder
            .expect("SELECT /* millrace: primary */ SLEEP(1)")
            .await
    };
    let waiting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let sql = format!("SELECT /* millrace: primary */ {MARK}");
        waiter.expect(&sql).await
    };
    let killing = async {
        let deadline = Instant::now() + SHOWS;
        loop {
            if let Some((server, id)) = runner(cluster, MARK).await? {
                let mut control = cluster.control(&server.name).await?;
                control.run(&format!("KILL {id}")).await?;
                control.close().await;
                return Ok(server.port);
            }
            ensure!(Instant::now() < deadline, "it never runs");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (held, waited, killed) = tokio::join!(holding, waiting, killing);
    held?;
    let slept = waited?.scalar();
    let on = killed.with_context(|| format!("{slept:?}"))?;
    // Where a hint says, although others had a place at once.
    ensure!(on == cluster.primary().port, "it ran on {on}");
    ensure!(slept.as_deref() == Some("0"), "{slept:?}");
    let again = metric(&proxy, retries).await? - before;
    ensure!(again == 1.0, "it was run again {again} times");
    Ok(())
}

/// Nobody can tell whether a write that was killed was done; it is not run again.
pub(crate) async fn write_killed(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "write_killed").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    let sql = "UPDATE write_killed SET v = v + 10 + SLEEP(20)";
    let running = async { Ok(session.query(sql).await) };
    let killing = kill_running(cluster, "KILL", "SLEEP(20)");
    let (reply, ()) = both(running, killing).await?;
    ensure_error(&reply, 1180, "08007")?;
    runs_nowhere(cluster, "SLEEP(20)").await?;
    let running = async { Ok(session.query(sql).await) };
    let killing = kill_running(cluster, "KILL QUERY", "SLEEP(20)");
    let (reply, ()) = both(running, killing).await?;
    ensure_error(&reply, 1317, "70100")?;
    runs_nowhere(cluster, "SLEEP(20)").await?;
    // Who has more on the connection loses it as well, and must know the same.
    session
        .expect("CREATE TEMPORARY TABLE mine (n INT)")
        .await?;
    let running = async { Ok(session.query(sql).await) };
    let killing = kill_running(cluster, "KILL", "SLEEP(20)");
    let (reply, ()) = both(running, killing).await?;
    ensure_error(&reply, 1180, "08007")?;
    let after = session.query("SELECT 1").await;
    ensure!(after.broken().is_some(), "goes on: {:?}", after.render());
    runs_nowhere(cluster, "SLEEP(20)").await?;
    let v = value_of(cluster, "write_killed").await?;
    ensure!(v == "0", "{v}");
    Ok(())
}

/// A transaction that was idle for too long is over.
pub(crate) async fn idle_for_too_long(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "too_long").await?;
    let proxy = proxy(cluster, "").await?;
    let limits: &[&str] = match cluster.family() {
        Family::MariaDb => &[
            "wait_timeout",
            "idle_transaction_timeout",
            "idle_write_transaction_timeout",
        ],
        Family::MySql => &["wait_timeout"],
    };
    for limit in limits {
        for through in [false, true] {
            let mut session = match through {
                true => client(&proxy).await?,
                false => direct(cluster).await?,
            };
            session.expect(&format!("SET SESSION {limit} = 1")).await?;
            in_transaction(&mut session, "too_long").await?;
            tokio::time::sleep(Duration::from_millis(2500)).await;
            run(cluster, "UPDATE app.too_long SET v = 100").await?;
            let reply = session.query("SELECT v FROM too_long").await;
            ensure_ended(&mut session, &reply)
                .await
                .with_context(|| format!("{limit}, through: {through}"))?;
            let v = value_of(cluster, "too_long").await?;
            ensure!(v == "100", "{limit}, through: {through}: {v}");
        }
    }
    Ok(())
}

/// A server that is killed is lost, whatever was killed on it before by hand.
pub(crate) async fn lost_after_all(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "lost_after").await?;
    let proxy = proxy(cluster, "").await?;
    let (mut idle, mut reader) = (client(&proxy).await?, client(&proxy).await?);
    in_transaction(&mut idle, "lost_after").await?;
    let reading = async {
        let reply = reader.query("SELECT @@server_id, SLEEP(2)").await;
        ensure!(reply.err().is_none(), "{:?}", reply.render());
        Ok(())
    };
    let failing = async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        fail_over(cluster).await
    };
    both(reading, failing).await?;
    idle.expect("COMMIT").await?;
    let v = value_of(cluster, "lost_after").await?;
    ensure!(v == "1", "{v}");
    Ok(())
}

/// A server that was restarted while a transaction was open has not lived on.
pub(crate) async fn restarted(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "restarted").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    in_transaction(&mut session, "restarted").await?;
    let primary = cluster.primary();
    cluster.kill(&primary.name).await?;
    cluster.start(&primary.name).await?;
    soon().await;
    session.expect("COMMIT").await?;
    let v = value_of(cluster, "restarted").await?;
    ensure!(v == "1", "{v}");
    Ok(())
}

/// In a switchover connections are killed so that they go to the new primary: the old one is demoted.
pub(crate) async fn killed_in_a_switchover(cluster: &Cluster) -> anyhow::Result<()> {
    one_row(cluster, "switched").await?;
    let proxy = proxy(cluster, "").await?;
    let mut session = client(&proxy).await?;
    in_transaction(&mut session, "switched").await?;
    let thread = writer(cluster).await?;
    let new = next(cluster)?;
    run(cluster, "SET GLOBAL read_only = 1").await?;
    run(cluster, &format!("KILL {thread}")).await?;
    let committing = async {
        session.expect("COMMIT").await?;
        Ok(())
    };
    let promoting = async {
        soon().await;
        cluster.promote(&new.name).await
    };
    both(committing, promoting).await?;
    let v = value_of(cluster, "switched").await?;
    ensure!(v == "1", "{v}");
    Ok(())
}
