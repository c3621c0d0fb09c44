//! What a new login finds is what the servers give now, whatever pooled connections have from before.

#[path = "fresh_logins/other_row.rs"]
mod other_row;

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{ADMIN, Cluster, ClusterSpec, Family, MONITOR, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::harness::{self, Launch, Proxy};
use millrace_tests::wire::{Connection, Expect, Login, Reply, Target, cap, com};
use tokio::task::JoinSet;

const READY: Duration = Duration::from_secs(30);

/// `monitor.max_login_age`, and a moment for a slow machine.
const NOTICED: Duration = Duration::from_millis(1300);

/// The account whose privileges change.
const USER: &str = "fl_user";
const PASSWORD: &str = "fl-secret";

/// A cluster with a proxy before it.
struct Ground {
    cluster: Cluster,
    proxy: Proxy,
}

impl Ground {
    async fn new(family: Family) -> anyhow::Result<Ground> {
        let mut spec = ClusterSpec::new(family);
        spec.replicas = 1;
        let cluster = Cluster::up(spec).await?;
        let mut control = cluster.control("s1").await?;
        for sql in [
            format!("CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'"),
            "CREATE DATABASE fl".to_owned(),
            "CREATE TABLE fl.t (id INT PRIMARY KEY AUTO_INCREMENT, v INT)".to_owned(),
            "CREATE DATABASE fl2".to_owned(),
            "CREATE TABLE fl2.t (id INT PRIMARY KEY AUTO_INCREMENT, v INT)".to_owned(),
            format!("GRANT SELECT, INSERT ON fl.* TO '{USER}'@'%'"),
        ] {
            control.run(&sql).await?;
        }
        control.close().await;
        cluster.wait_replicas_caught_up(READY).await?;
        let proxy = start(&cluster, MONITOR.user, "").await?;
        Ok(Ground { cluster, proxy })
    }

    fn through(&self) -> Login {
        Login::new(tcp(self.proxy.port), USER, PASSWORD)
    }

    fn direct(&self) -> Login {
        Login::new(tcp(self.cluster.primary().port), USER, PASSWORD)
    }

    fn admin(&self) -> Login {
        Login::new(tcp(self.proxy.port), ADMIN.user, ADMIN.password)
    }

    /// Says something to the primary, past the proxy, and has the replica follow.
    async fn control(&self, sql: &str) -> anyhow::Result<()> {
        let mut control = self.cluster.control("s1").await?;
        control.run(sql).await.with_context(|| sql.to_owned())?;
        control.close().await;
        self.cluster.wait_replicas_caught_up(READY).await
    }

    /// The same to every server, where it is not replicated.
    async fn control_each(&self, sql: &str) -> anyhow::Result<()> {
        for server in self.cluster.servers() {
            let mut control = self.cluster.control(&server.name).await?;
            control.run(sql).await.with_context(|| sql.to_owned())?;
            control.close().await;
        }
        Ok(())
    }
}

async fn start(cluster: &Cluster, monitor: &str, more: &str) -> anyhow::Result<Proxy> {
    start_with(2, cluster, monitor, more).await
}

async fn start_with(
    workers: u32,
    cluster: &Cluster,
    monitor: &str,
    more: &str,
) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let servers: String = cluster
        .servers()
        .iter()
        .map(|server| format!("[[server]]\naddress = \"127.0.0.1:{}\"\n", server.port))
        .collect();
    let text = format!(
        "workers = {workers}\n[[listen]]\naddress = \"127.0.0.1:{}\"\n{servers}\
         [monitor]\nuser = \"{monitor}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n[auth]\nfailure_delay = \"0s\"\n\
         [log]\nlevel = \"debug\"\n{more}",
        launch.port, launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    // Until the replica takes reads.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(proxy)
}

fn tcp(port: u16) -> Target {
    Target::Tcp(format!("127.0.0.1:{port}"))
}

/// Some connections of the account to both servers are idle afterwards.
async fn warm(login: &Login) -> anyhow::Result<()> {
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let login = login.clone();
        clients.spawn(async move {
            let mut client = Connection::open(&login).await?;
            client.expect("SELECT SLEEP(0.1)").await?;
            client.query("DO SLEEP(0.1)").await;
            client.query("SELECT SLEEP(0.1) FROM fl.t LIMIT 1").await;
            client.quit().await;
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(())
}

/// What a new login makes of a statement: its error, or its first value.
async fn outcome(login: &Login, sql: &str) -> anyhow::Result<Result<Option<String>, u16>> {
    let mut client = Connection::open(login).await?;
    let reply = client.query(sql).await;
    let told = told(&reply);
    client.quit().await;
    told
}

fn told(reply: &Reply) -> anyhow::Result<Result<Option<String>, u16>> {
    if let Some(why) = reply.broken() {
        anyhow::bail!("the connection broke: {why}");
    }
    Ok(match reply.err() {
        Some(error) => Err(error.code),
        None => Ok(reply.scalar()),
    })
}

/// New logins through the proxy find what a new login at the server finds.
async fn as_direct(ground: &Ground, sql: &str, times: usize) -> anyhow::Result<()> {
    let expected = outcome(&ground.direct(), sql).await?;
    for turn in 0..times {
        let seen = outcome(&ground.through(), sql).await?;
        ensure!(
            seen == expected,
            "{sql}, login {turn}: {seen:?}, directly {expected:?}"
        );
    }
    Ok(())
}

const INSERT: &str = "INSERT INTO fl.t (v) VALUES (1)";
const READ: &str = "SELECT COUNT(*)>=0 FROM fl2.t";

/// Of every scope: what was taken away is gone for new logins, and what was given is there.
async fn privileges(ground: &Ground) -> anyhow::Result<()> {
    for (grant, revoke, sql) in [
        (
            format!("GRANT INSERT ON fl.* TO '{USER}'@'%'"),
            format!("REVOKE INSERT ON fl.* FROM '{USER}'@'%'"),
            INSERT,
        ),
        (
            format!("GRANT SELECT ON *.* TO '{USER}'@'%'"),
            format!("REVOKE SELECT ON *.* FROM '{USER}'@'%'"),
            READ,
        ),
        (
            format!("GRANT SELECT ON fl2.t TO '{USER}'@'%'"),
            format!("REVOKE SELECT ON fl2.t FROM '{USER}'@'%'"),
            READ,
        ),
    ] {
        for change in [&grant, &revoke, &grant, &revoke] {
            warm(&ground.through()).await?;
            ground.control(change).await?;
            tokio::time::sleep(NOTICED).await;
            as_direct(ground, sql, 6)
                .await
                .with_context(|| change.clone())?;
        }
    }
    Ok(())
}

/// What passes through this proxy counts at once.
async fn at_once(ground: &Ground) -> anyhow::Result<()> {
    let mut admin = Connection::open(&ground.admin()).await?;
    for turn in 0..10 {
        warm(&ground.through()).await?;
        let (change, allowed) = match turn % 2 {
            0 => (format!("GRANT INSERT ON *.* TO '{USER}'@'%'"), true),
            _ => (format!("REVOKE INSERT ON *.* FROM '{USER}'@'%'"), false),
        };
        admin.expect(&change).await?;
        let seen = outcome(&ground.through(), "INSERT INTO fl2.t (v) VALUES (1)").await?;
        ensure!(seen.is_ok() == allowed, "{change}: {seen:?}");
        let (size, timeout) = ((turn + 1) << 20, 1000 + turn);
        for set in [
            format!("SET GLOBAL sort_buffer_size={size}"),
            format!("SET GLOBAL wait_timeout={timeout}"),
        ] {
            admin.expect(&set).await?;
        }
        let mut client = Connection::open(&ground.through()).await?;
        let sql = "SELECT CONCAT(@@sort_buffer_size, ' ', @@wait_timeout)";
        let seen = client.expect(sql).await?.scalar();
        ensure!(seen == Some(format!("{size} {timeout}")), "{seen:?}");
        client.quit().await;
    }
    for name in ["sort_buffer_size", "wait_timeout"] {
        admin.expect(&format!("SET GLOBAL {name}=DEFAULT")).await?;
    }
    admin.quit().await;
    Ok(())
}

async fn default_roles(ground: &Ground) -> anyhow::Result<()> {
    let family = ground.cluster.family();
    let role = match family {
        Family::MySql => "'fl_role'@'%'",
        Family::MariaDb => "fl_role",
    };
    ground.control(&format!("CREATE ROLE {role}")).await?;
    ground
        .control(&format!("GRANT SELECT ON fl2.* TO {role}"))
        .await?;
    ground
        .control(&format!("GRANT {role} TO '{USER}'@'%'"))
        .await?;
    for role in [role, "NONE", role, "NONE"] {
        warm(&ground.through()).await?;
        let set = match (family, role) {
            (Family::MySql, "NONE") => format!("ALTER USER '{USER}'@'%' DEFAULT ROLE NONE"),
            (Family::MySql, role) => format!("SET DEFAULT ROLE {role} TO '{USER}'@'%'"),
            (Family::MariaDb, role) => format!("SET DEFAULT ROLE {role} FOR '{USER}'@'%'"),
        };
        ground.control(&set).await?;
        tokio::time::sleep(NOTICED).await;
        as_direct(ground, "SELECT CURRENT_ROLE()", 6)
            .await
            .with_context(|| set.clone())?;
        as_direct(ground, READ, 6).await.with_context(|| set)?;
    }
    Ok(())
}

/// The monitor may not read the accounts, or there is none: connections prove themselves.
async fn unread_accounts(ground: &Ground) -> anyhow::Result<()> {
    if ground.cluster.family() == Family::MySql {
        // There the server counts the changes for everybody.
        return Ok(());
    }
    let rights = "BINLOG MONITOR, REPLICA MONITOR";
    for sql in [
        format!(
            "CREATE USER fl_monitor@'%' IDENTIFIED BY '{}'",
            MONITOR.password
        ),
        format!("GRANT {rights} ON *.* TO fl_monitor@'%'"),
    ] {
        ground.control(&sql).await?;
    }
    let proxy = start(&ground.cluster, "fl_monitor", "").await?;
    let login = Login::new(tcp(proxy.port), USER, PASSWORD);
    for role in ["fl_role", "NONE", "fl_role", "NONE"] {
        warm(&login).await?;
        ground
            .control(&format!("SET DEFAULT ROLE {role} FOR '{USER}'@'%'"))
            .await?;
        tokio::time::sleep(NOTICED).await;
        let expected = outcome(&ground.direct(), READ).await?;
        for turn in 0..6 {
            let seen = outcome(&login, READ).await?;
            ensure!(
                seen == expected,
                "{role}, login {turn}: {seen:?}, directly {expected:?}"
            );
        }
    }
    Ok(())
}

/// What SET GLOBAL changes: what it is set to, and a statement that shows it.
const GLOBALS: [(&str, &str, &str); 7] = [
    (
        "time_zone",
        "'+05:00'",
        "SELECT FROM_UNIXTIME(0) FROM fl.t LIMIT 1",
    ),
    ("sql_mode", "'ANSI_QUOTES'", "SELECT @@sql_mode"),
    (
        "group_concat_max_len",
        "4444",
        "SELECT @@group_concat_max_len",
    ),
    (
        "innodb_lock_wait_timeout",
        "7",
        "SELECT @@innodb_lock_wait_timeout",
    ),
    (
        "max_join_size",
        "4444",
        "SELECT CONCAT_WS(',', @@max_join_size, @@sql_big_selects)",
    ),
    // Not among those that are set on every connection.
    ("sort_buffer_size", "99328", "SELECT @@sort_buffer_size"),
    (
        "init_connect",
        "'SET group_concat_max_len=4321'",
        "SELECT @@group_concat_max_len",
    ),
];

/// A new login has the global values of now; a session that is open keeps its own.
async fn globals(ground: &Ground) -> anyhow::Result<()> {
    let isolation = match ground.cluster.family() {
        Family::MySql => "transaction_isolation",
        Family::MariaDb => "tx_isolation",
    };
    let isolation_shown = format!("SELECT @@{isolation}");
    let isolation = (isolation, "'READ-COMMITTED'", isolation_shown.as_str());
    let encryption = (
        "block_encryption_mode",
        "'aes-256-ecb'",
        "SELECT HEX(AES_ENCRYPT('a', 'b')) FROM fl.t LIMIT 1",
    );
    let has_encryption = ground.cluster.family() == Family::MySql;
    let more = [isolation]
        .into_iter()
        .chain(has_encryption.then_some(encryption));
    for (name, value, shown) in GLOBALS.into_iter().chain(more) {
        let mut control = ground.cluster.control("s1").await?;
        let before = control.value(&format!("SELECT @@GLOBAL.{name}")).await?;
        control.close().await;
        let before = before.unwrap_or_default();
        let before = match before.parse::<u64>() {
            Ok(_) => before,
            Err(_) => format!("'{before}'"),
        };
        warm(&ground.through()).await?;
        let mut open = Connection::open(&ground.through()).await?;
        let kept = open.expect(shown).await?.scalar();
        ground
            .control_each(&format!("SET GLOBAL {name}={value}"))
            .await?;
        tokio::time::sleep(NOTICED).await;
        as_direct(ground, shown, 4).await.context(name)?;
        let mut later = Connection::open(&ground.through()).await?;
        let changed = later.expect(shown).await?.scalar();
        ensure!(changed != kept, "{name} is {kept:?} before and after");
        ground
            .control_each(&format!("SET GLOBAL {name}={before}"))
            .await?;
        tokio::time::sleep(NOTICED).await;
        as_direct(ground, shown, 4).await.context(name)?;
        // What is not set on every connection stays as long as one from before is there.
        if name != "sort_buffer_size" {
            for _ in 0..4 {
                for (client, expected) in [(&mut open, &kept), (&mut later, &changed)] {
                    let seen = client.expect(shown).await?.scalar();
                    ensure!(
                        seen == *expected,
                        "{name}: an open session has {seen:?} instead of {expected:?}"
                    );
                }
            }
        }
        open.quit().await;
        later.quit().await;
    }
    Ok(())
}

/// User variables that `init_connect` sets are there for every session, whatever others had on its connections.
async fn login_variables(ground: &Ground) -> anyhow::Result<()> {
    ground
        .control_each("SET GLOBAL init_connect='SET @fl_login=''set'', @fl_more=1'")
        .await?;
    tokio::time::sleep(NOTICED).await;
    let checked = with_login_variables(ground).await;
    ground.control_each("SET GLOBAL init_connect=''").await?;
    checked
}

async fn with_login_variables(ground: &Ground) -> anyhow::Result<()> {
    let asked = "SELECT CONCAT_WS(',', @fl_login, @fl_more, IFNULL(@fl_own, 'none'))";
    as_direct(ground, asked, 4).await?;
    let mut sessions = Vec::new();
    for number in 0..6 {
        let mut session = Connection::open(&ground.through()).await?;
        session.expect(&format!("SET @fl_own={number}")).await?;
        sessions.push(session);
    }
    for turn in 0..4 {
        for (number, session) in sessions.iter_mut().enumerate() {
            let seen = session.expect(asked).await?.scalar();
            let expected = format!("set,1,{number}");
            ensure!(
                seen.as_deref() == Some(expected.as_str()),
                "turn {turn}, session {number}: {seen:?}"
            );
            session.expect("DO 1").await?;
        }
        let mut fresh = Connection::open(&ground.through()).await?;
        let seen = fresh.expect(asked).await?.scalar();
        ensure!(
            seen.as_deref() == Some("set,1,none"),
            "turn {turn}, a new session: {seen:?}"
        );
        fresh.quit().await;
    }
    Ok(())
}

/// Where MySQL itself keeps foreign keys (`innodb_native_foreign_keys=OFF`, the default), a connection that was reset
/// leaves them to InnoDB, and REPLACE of a parent's row takes its children with it. No session meets such a connection.
async fn foreign_keys(ground: &Ground) -> anyhow::Result<()> {
    let mut control = ground.cluster.control("s1").await?;
    let asked = "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'";
    let has = control.value(asked).await?.is_some();
    control.close().await;
    if !has {
        return Ok(());
    }
    let proxy = start_with(
        1,
        &ground.cluster,
        MONITOR.user,
        "[pool]\nmax_connections = 1\n",
    )
    .await?;
    let through = Login::new(tcp(proxy.port), ADMIN.user, ADMIN.password);
    let mut first = Connection::open(&through).await?;
    for sql in [
        "CREATE TABLE fl.parent (id INT PRIMARY KEY)",
        "CREATE TABLE fl.child (id INT PRIMARY KEY, parent INT, \
         FOREIGN KEY (parent) REFERENCES fl.parent (id) ON DELETE CASCADE)",
        "INSERT INTO fl.parent VALUES (1)",
        "INSERT INTO fl.child VALUES (1, 1)",
    ] {
        first.expect(sql).await?;
    }
    let mut second = Connection::open(&through).await?;
    for turn in 0..12 {
        // What each leaves has to be taken back for the other.
        first.expect("SET @fl_mine=1, sql_mode=''").await?;
        second
            .expect("SELECT @fl_mine, @@sql_mode FROM fl.t LIMIT 1")
            .await?;
        second.expect("SET @fl_other=2").await?;
        match turn % 3 {
            0 => drop(
                second
                    .command(com::RESET_CONNECTION, b"", Expect::Single)
                    .await,
            ),
            1 => drop(second.change_user(ADMIN.user, ADMIN.password, "", 45).await),
            _ => {}
        }
        for session in [&mut first, &mut second] {
            session.expect("DO @fl_mine").await?;
            // The first statement of a transaction opens it on whatever connection it gets.
            for sql in OPENINGS[turn % OPENINGS.len()] {
                session.query(sql).await;
            }
            session.expect("REPLACE INTO fl.parent VALUES (1)").await?;
            session.expect("COMMIT").await?;
            let left = session.expect(LEFT).await?;
            ensure!(
                left.scalar().as_deref() == Some("1"),
                "turn {turn}: REPLACE of the parent took its child along"
            );
        }
    }
    Ok(())
}

/// On the primary: what a replica makes of such a row is its own affair.
const LEFT: &str = "SELECT /* millrace: primary */ COUNT(*) FROM fl.child";

/// What may stand before a write, on the same connection.
const OPENINGS: [&[&str]; 6] = [
    &[],
    &["BEGIN", "SELECT * FROM fl.parent"],
    &["START TRANSACTION", "DO 1"],
    &["BEGIN", "SELECT nothing FROM fl.parent"],
    &["BEGIN", "SET @fl_new=1", "SELECT @fl_new"],
    &["BEGIN", "SHOW TABLES FROM fl"],
];

/// Clients escape strings by what the status flags say of `sql_mode`: a login, a reset, another user and a ping tell
/// it as directly.
async fn escapes(ground: &Ground) -> anyhow::Result<()> {
    let mut control = ground.cluster.control("s1").await?;
    let before = control.value("SELECT @@GLOBAL.sql_mode").await?;
    control.close().await;
    let mut checked = Ok(());
    for mode in [
        "NO_BACKSLASH_ESCAPES",
        "ANSI_QUOTES",
        "ANSI,NO_BACKSLASH_ESCAPES",
        "",
    ] {
        ground
            .control_each(&format!("SET GLOBAL sql_mode='{mode}'"))
            .await?;
        tokio::time::sleep(NOTICED).await;
        if let Err(error) = escapes_alike(ground).await {
            checked = Err(error.context(format!("sql_mode={mode}")));
        }
    }
    let before = before.unwrap_or_default();
    ground
        .control_each(&format!("SET GLOBAL sql_mode='{before}'"))
        .await?;
    tokio::time::sleep(NOTICED).await;
    checked
}

async fn escapes_alike(ground: &Ground) -> anyhow::Result<()> {
    let mut told = Vec::new();
    for login in [ground.direct(), ground.through()] {
        let mut client = Connection::open(&login).await?;
        let mut all = vec![client.login_reply.status()];
        for command in [com::PING, com::RESET_CONNECTION] {
            all.push(client.command(command, b"", Expect::Single).await.status());
        }
        all.push(client.change_user(USER, PASSWORD, "", 45).await.status());
        all.push(client.expect("SET @fl_any=1").await?.status());
        client.quit().await;
        // Whether there is news of the session beside them is not asked here.
        let flags = |status: Option<u16>| status.map(|status| status & !SESSION_STATE_CHANGED);
        told.push(all.into_iter().map(flags).collect::<Vec<_>>());
    }
    ensure!(
        told[0] == told[1],
        "direct {:x?}, through {:x?}",
        told[0],
        told[1]
    );
    Ok(())
}

const SESSION_STATE_CHANGED: u16 = 1 << 14;

const AUTOCOMMIT: u16 = 2;

/// Where the servers' global autocommit is off, a client is told so, and what it commits stays.
async fn autocommit_off(ground: &Ground) -> anyhow::Result<()> {
    warm(&ground.through()).await?;
    ground
        .control(&format!(
            "GRANT SELECT, INSERT, DELETE ON fl.* TO '{USER}'@'%'"
        ))
        .await?;
    ground.control_each("SET GLOBAL autocommit=0").await?;
    tokio::time::sleep(NOTICED).await;
    let checked = without_autocommit(ground).await;
    ground.control_each("SET GLOBAL autocommit=1").await?;
    checked?;
    tokio::time::sleep(NOTICED).await;
    as_direct(ground, "SELECT @@autocommit", 4).await
}

async fn without_autocommit(ground: &Ground) -> anyhow::Result<()> {
    let rows = "SELECT COUNT(*) FROM fl.t";
    for turn in 0..4 {
        let mut status = Vec::new();
        for login in [ground.direct(), ground.through()] {
            let mut client = Connection::open(&login).await?;
            status.push((
                client.greeting.status & AUTOCOMMIT,
                client
                    .login_reply
                    .status()
                    .map(|status| status & AUTOCOMMIT),
                client.expect("SELECT @@autocommit").await?.status(),
            ));
            // A read opens the transaction that the write goes on with.
            client.expect(rows).await?;
            client.expect(INSERT).await?;
            client.expect("COMMIT").await?;
            client.expect(INSERT).await?;
            client.quit().await;
        }
        ensure!(status[0] == status[1], "turn {turn}: {status:?}");
        // As a driver does that sees it off and wants it on.
        let mut client = Connection::open(&ground.through()).await?;
        let before = client.expect(rows).await?.scalar();
        client.expect("SET autocommit=1").await?;
        client.expect(INSERT).await?;
        client.quit().await;
        let mut control = ground.cluster.control("s1").await?;
        let after = control.value(rows).await?;
        let number = |value: Option<String>| value.and_then(|value| value.parse::<u64>().ok());
        ensure!(
            number(after) == number(before).map(|rows| rows + 1),
            "what was committed is there, and nothing else"
        );
        control.close().await;
    }
    Ok(())
}

/// What an account set by a privilege that it has lost is an error for nobody.
async fn lost_privilege(ground: &Ground) -> anyhow::Result<()> {
    if ground.cluster.family() == Family::MariaDb {
        return Ok(());
    }
    ground
        .control(&format!(
            "GRANT SESSION_VARIABLES_ADMIN ON *.* TO '{USER}'@'%'"
        ))
        .await?;
    tokio::time::sleep(NOTICED).await;
    let mut client = Connection::open(&ground.through()).await?;
    client.expect("SET sql_require_primary_key=1").await?;
    client.expect("SELECT 1 FROM fl.t LIMIT 1").await?;
    ground
        .control(&format!(
            "REVOKE SESSION_VARIABLES_ADMIN ON *.* FROM '{USER}'@'%'"
        ))
        .await?;
    tokio::time::sleep(NOTICED).await;
    for _ in 0..6 {
        let mut other = Connection::open(&ground.through()).await?;
        other.expect("SET time_zone='+01:00'").await?;
        other.expect(INSERT).await?;
        other.expect("SELECT COUNT(*) FROM fl.t").await?;
        let seen = other.expect("SELECT @@sql_require_primary_key").await?;
        ensure!(seen.scalar().as_deref() == Some("0"), "{seen:?}");
        client.expect(INSERT).await?;
        client.expect("SELECT COUNT(*) FROM fl.t").await?;
        other.quit().await;
    }
    client.quit().await;
    Ok(())
}

/// Whoever did not ask for several statements in one text is protected from them, also on a connection
/// that logged in anew after another's use.
async fn several_statements(ground: &Ground) -> anyhow::Result<()> {
    let one = "[pool]\nmax_connections = 1\n";
    let proxy = start_with(1, &ground.cluster, MONITOR.user, one).await?;
    let several = Login::new(tcp(proxy.port), USER, PASSWORD);
    let mut single = several.clone();
    single.capabilities &= !cap::MULTI_STATEMENTS;
    let text = "SELECT /* millrace: primary */ 1 FROM fl.t; SELECT 2";
    for round in 0..3 {
        let mut client = Connection::open(&several).await?;
        let seen = client.query(text).await;
        ensure!(seen.err().is_none(), "{round}: {seen:?}");
        client.quit().await;
        ground
            .control(&format!("GRANT SELECT ON fl.* TO '{USER}'@'%'"))
            .await?;
        tokio::time::sleep(NOTICED).await;
        let mut client = Connection::open(&single).await?;
        let seen = client.query(text).await;
        let code = seen.err().map(|error| error.code);
        ensure!(code == Some(1064), "{round}: {seen:?}");
        client.expect("SELECT /* millrace: primary */ 3").await?;
        client.quit().await;
    }
    Ok(())
}

/// What SET TRANSACTION says for the next transaction waits on its connection until one is opened, which
/// a read of a table without transactions does not do.
async fn next_transaction(ground: &Ground) -> anyhow::Result<()> {
    ground
        .control("CREATE TABLE fl.plain (a INT) ENGINE=MyISAM")
        .await?;
    let one = "[pool]\nmax_connections = 1\n";
    let proxy = start_with(1, &ground.cluster, MONITOR.user, one).await?;
    let login = Login::new(tcp(proxy.port), ADMIN.user, ADMIN.password);
    for said in [
        "SET TRANSACTION READ ONLY",
        "SET @@transaction_read_only=1",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
    ] {
        if said.contains("@@") && ground.cluster.family() == Family::MariaDb {
            // Its name since 11.1.
            continue;
        }
        for read in [
            "SELECT /* millrace: primary */ * FROM fl.plain",
            "SELECT /* millrace: primary */ COUNT(*) FROM information_schema.TABLES",
        ] {
            let mut client = Connection::open(&login).await?;
            client.expect(said).await?;
            client.expect(read).await?;
            client.quit().await;
            let mut other = Connection::open(&login).await?;
            let inserted = other.query(INSERT).await;
            ensure!(inserted.err().is_none(), "{said}; {read}: {inserted:?}");
            other.quit().await;
        }
    }
    Ok(())
}

async fn fresh_logins(family: Family) -> anyhow::Result<()> {
    let ground = &Ground::new(family).await?;
    let mut checks = Checks::new(format!("fresh logins, {family}"));
    checks.run("privileges", privileges(ground)).await;
    checks.run("at once", at_once(ground)).await;
    checks.run("globals", globals(ground)).await;
    checks
        .run("several statements", several_statements(ground))
        .await;
    checks
        .run("next transaction", next_transaction(ground))
        .await;
    checks.run("login variables", login_variables(ground)).await;
    checks.run("foreign keys", foreign_keys(ground)).await;
    checks.run("escapes", escapes(ground)).await;
    checks.run("autocommit off", autocommit_off(ground)).await;
    checks.run("lost privilege", lost_privilege(ground)).await;
    checks.run("default roles", default_roles(ground)).await;
    checks
        .run("another row on a replica", other_row::of_a_replica(ground))
        .await;
    checks
        .run(
            "accounts that the monitor may not read",
            unread_accounts(ground),
        )
        .await;
    checks.finish()
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MySql, "fresh logins") {
        return Ok(());
    }
    fresh_logins(Family::MySql).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MariaDb, "fresh logins") {
        return Ok(());
    }
    fresh_logins(Family::MariaDb).await
}
