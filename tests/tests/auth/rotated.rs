//! Passwords that are changed while sessions are open: directly these go on until they end.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Family};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login};

use crate::ground::{CATCH_UP, Ground, Way, answer, monitor_toml, servers_toml};

const PLENTY: Duration = Duration::from_secs(40);

/// A proxy whose pools have room for one connection: a session's own is soon another's.
async fn tight(ground: &Ground) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let text = format!(
        "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{}\"\n{}{}\
         [http]\nlisten = \"127.0.0.1:{}\"\n[pool]\nmax_connections = 1\n\
         [auth]\nfailure_delay = \"0s\"\n",
        launch.port,
        servers_toml(&ground.cluster),
        monitor_toml(),
        launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(PLENTY).await?;
    Ok(proxy)
}

/// Ends the connections of an account, as an operator does.
async fn end_connections(ground: &Ground, user: &str) -> anyhow::Result<()> {
    for server in ground.cluster.servers() {
        let mut control = ground.cluster.control(&server.name).await?;
        let threads = format!(
            "SELECT GROUP_CONCAT(ID) FROM information_schema.PROCESSLIST WHERE USER='{user}'"
        );
        let threads = control.value(&threads).await?.unwrap_or_default();
        for thread in threads.split(',').filter(|thread| !thread.is_empty()) {
            // It may just have ended.
            let _ = control.run(&format!("KILL {thread}")).await;
        }
        control.close().await;
    }
    Ok(())
}

async fn goes_on(session: &mut Connection, what: &str) -> anyhow::Result<()> {
    for sql in [
        "SELECT COUNT(*) FROM app.rotated",
        "INSERT INTO app.rotated VALUES (1)",
        "BEGIN",
        "INSERT INTO app.rotated VALUES (2)",
        "COMMIT",
        "SELECT @@server_id",
    ] {
        let ran = session.expect(sql).await;
        ran.with_context(|| format!("{what}: {sql}"))?;
    }
    Ok(())
}

async fn refused(session: &mut Connection, what: &str) -> anyhow::Result<()> {
    let reply = session.query("INSERT INTO app.rotated VALUES (3)").await;
    let code = reply.err().map(|err| err.code);
    ensure!(code == Some(1045), "{what}: {}", answer(&reply));
    Ok(())
}

async fn restart(ground: &Ground) -> anyhow::Result<()> {
    for server in ground.cluster.servers() {
        ground.cluster.stop(&server.name).await?;
        ground.cluster.start(&server.name).await?;
    }
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await
}

/// A session of the old password goes on after anybody's login with the new one, never as another account.
pub(crate) async fn sessions_go_on(ground: &Ground) -> anyhow::Result<()> {
    let mut proxy = tight(ground).await?;
    let address = proxy.address();
    for plugin in ground.plugins() {
        let name = format!("rotated_{}", &plugin[..6]);
        let account = format!("'{name}'@'%'");
        ground.account(&name, plugin, "rotated-one-3b1").await?;
        ground
            .primary(&["CREATE TABLE IF NOT EXISTS app.rotated (x INT)"])
            .await?;
        let login = |password: &str| {
            let mut login = Login::new(address.clone(), &name, &ground.secret(password));
            login.tls = false;
            login.timeout = PLENTY;
            login
        };
        let mut session = Connection::open(&login("rotated-one-3b1")).await?;
        goes_on(&mut session, "before").await?;
        let change = |password| {
            let identified = ground.identified(plugin, password);
            format!("ALTER USER {account} {identified}")
        };
        ground.primary(&[change("rotated-two-8c2")]).await?;
        ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
        goes_on(&mut session, "its connection stands").await?;
        end_connections(ground, &name).await?;
        refused(&mut session, "nobody has shown the new password").await?;
        let new = login("rotated-two-8c2");
        Connection::open(&new).await?.quit().await;
        goes_on(&mut session, "the new password is known").await?;
        // Another account takes the one connection.
        let mut other = Connection::open(&Login {
            user: APP.user.to_owned(),
            password: APP.password.to_owned(),
            ..login("")
        })
        .await?;
        for _ in 0..3 {
            other.expect("INSERT INTO app.rotated VALUES (4)").await?;
            goes_on(&mut session, "beside another account").await?;
        }
        if plugin == ground.plugins()[0] {
            restart(ground).await?;
            proxy.wait_ready(PLENTY).await?;
        }
        // As after any restart, the first statement may find that its connection is gone.
        let _ = session.query("SELECT COUNT(*) FROM app.rotated").await;
        let _ = other.query("SELECT COUNT(*) FROM app.rotated").await;
        goes_on(&mut session, "after restarts").await?;
        // Of the same name, and another account all the same.
        let identified = ground.identified(plugin, "rotated-six-4d9");
        ground
            .primary(&[
                format!("DROP USER {account}"),
                format!("CREATE USER {account} {identified}"),
                format!("GRANT ALL ON app.* TO {account}"),
            ])
            .await?;
        ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
        let anew = login("rotated-six-4d9");
        let mut owner = Connection::open(&anew).await?;
        owner.expect("INSERT INTO app.rotated VALUES (5)").await?;
        end_connections(ground, &name).await?;
        refused(&mut session, "the account was dropped and made anew").await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        refused(&mut session, "and the monitor has seen it").await?;
        owner.expect("INSERT INTO app.rotated VALUES (5)").await?;
        for connection in [session, other, owner] {
            connection.quit().await;
        }
    }
    Ok(())
}

/// Sessions of the old password do not use up the attempts that their account has.
pub(crate) async fn attempts_are_left(ground: &Ground) -> anyhow::Result<()> {
    if ground.family == Family::MariaDb {
        return Ok(());
    }
    let proxy = tight(ground).await?;
    let plugin = ground.plugins()[0];
    ground
        .account("attempts", plugin, "attempts-old-2a2")
        .await?;
    let limits = "FAILED_LOGIN_ATTEMPTS 6 PASSWORD_LOCK_TIME 1";
    ground
        .primary(&[
            format!("ALTER USER 'attempts'@'%' {limits}"),
            "CREATE TABLE IF NOT EXISTS app.rotated (x INT)".to_owned(),
        ])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let login = |password: &str| Login::new(proxy.address(), "attempts", &ground.secret(password));
    let mut session = Connection::open(&login("attempts-old-2a2")).await?;
    session.expect("SELECT 1 FROM app.rotated LIMIT 1").await?;
    let identified = ground.identified(plugin, "attempts-new-9e9");
    ground
        .primary(&[format!("ALTER USER 'attempts'@'%' {identified}")])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    end_connections(ground, "attempts").await?;
    for _ in 0..20 {
        refused(&mut session, "nobody has shown the new password").await?;
    }
    let new = Connection::open(&login("attempts-new-9e9")).await;
    new.context("the account is not locked")?.quit().await;
    goes_on(&mut session, "the new password is known").await?;
    // Wrong passwords count as they do directly.
    for _ in 0..6 {
        let (connection, reply) = Connection::try_open(&login("attempts-bad-1d1")).await?;
        ensure!(connection.is_none() || reply.err().is_some(), "let in");
    }
    let (_, reply) = Connection::try_open(&login("attempts-new-9e9")).await?;
    let code = reply.err().map(|err| err.code);
    ensure!(code == Some(3955), "{code:?}");
    Ok(())
}

/// A new password that its client does not show, to a session of another account: it is refused, but it is no guess that
/// locks the account.
pub(crate) async fn new_passwords_are_no_guesses(ground: &Ground) -> anyhow::Result<()> {
    let limit = "SET GLOBAL max_password_errors";
    if ground.family == Family::MariaDb {
        ground.everywhere(&format!("{limit}=3")).await?;
    }
    let kept = unlocked(ground).await;
    if ground.family == Family::MariaDb {
        ground.everywhere(&format!("{limit}=DEFAULT")).await?;
    }
    kept
}

async fn unlocked(ground: &Ground) -> anyhow::Result<()> {
    let plugin = match ground.family {
        Family::MySql => "caching_sha2_password",
        Family::MariaDb => "ed25519",
    };
    ground.account("renewed", plugin, "renewed-old-1f0").await?;
    if ground.family == Family::MySql {
        let limits = "FAILED_LOGIN_ATTEMPTS 3 PASSWORD_LOCK_TIME 1";
        ground
            .primary(&[format!("ALTER USER 'renewed'@'%' {limits}")])
            .await?;
    }
    let old = ground.through("renewed", "renewed-old-1f0", Way::Tls);
    ground
        .good("the old one is known", &old)
        .await?
        .quit()
        .await;
    let identified = ground.identified(plugin, "renewed-new-8d8");
    ground
        .primary(&[format!("ALTER USER 'renewed'@'%' {identified}")])
        .await?;
    let new = ground.secret("renewed-new-8d8");
    for _ in 0..5 {
        let mut app = ground.through(APP.user, APP.password, Way::Plain);
        app.attributes = vec![("_client_name".to_owned(), "shows".to_owned())];
        let mut session = Connection::open(&app).await?;
        session.login.shows_password = false;
        session.login.attributes = vec![("_client_name".to_owned(), "libmysql".to_owned())];
        let reply = session.change_user("renewed", &new, "", 45).await;
        let code = reply.err().map(|err| err.code);
        ensure!(code == Some(1045), "{}", answer(&reply));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let new = ground.through("renewed", &new, Way::Tls);
    let seen = ground.same("the account is not locked", &new).await?;
    ensure!(seen.is_in(), "{seen:?}");
    // With the new one known, wrong ones count again. A pool's connection may yet log in rightly meanwhile.
    for _ in 0..6 {
        let mut app = ground.through(APP.user, APP.password, Way::Plain);
        app.attributes = vec![("_client_name".to_owned(), "shows".to_owned())];
        let mut session = Connection::open(&app).await?;
        session.login.shows_password = false;
        session.login.attributes = vec![("_client_name".to_owned(), "libmysql".to_owned())];
        let wrong = ground.secret("renewed-but-wrong-5e5");
        let reply = session.change_user("renewed", &wrong, "", 45).await;
        ensure!(reply.err().is_some(), "{}", answer(&reply));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = ground.same("the account is locked", &new).await?;
    ensure!(matches!(seen.code(), Some(3955 | 4150)), "{seen:?}");
    Ok(())
}

/// RETAIN CURRENT PASSWORD: both passwords open the account until the old one is discarded.
pub(crate) async fn two_passwords(ground: &Ground) -> anyhow::Result<()> {
    if ground.family == Family::MariaDb {
        return Ok(());
    }
    for plugin in ground.plugins() {
        let name = format!("dual_{}", &plugin[..6]);
        ground.account(&name, plugin, "dual-first-7a7").await?;
        let first = ground.through(&name, "dual-first-7a7", Way::Tls);
        let second = ground.through(&name, &ground.secret("dual-second-3e3"), Way::Tls);
        let mut session = ground.good("before", &first).await?;
        let change = format!("ALTER USER '{name}'@'%' IDENTIFIED BY");
        let retained = format!("{change} 'dual-second-3e3' RETAIN CURRENT PASSWORD");
        ground.primary(&[retained]).await?;
        for time in ["once", "known"] {
            for login in [&first, &second] {
                let seen = ground.same(time, login).await?;
                ensure!(seen.is_in(), "{plugin}, {time}: {seen:?}");
            }
        }
        let discarded = format!("ALTER USER '{name}'@'%' DISCARD OLD PASSWORD");
        ground.primary(&[discarded]).await?;
        let seen = ground.same("discarded", &first).await?;
        ensure!(seen.code() == Some(1045), "{plugin}: {seen:?}");
        ground.good("after", &second).await?.quit().await;
        ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
        end_connections(ground, &name).await?;
        let _ = session.query("DO 0").await;
        let ran = session.expect("SELECT CURRENT_USER()").await;
        ran.with_context(|| format!("{plugin}: the session goes on"))?;
    }
    Ok(())
}

/// The old password beside a new one (RETAIN CURRENT PASSWORD), not known to Millrace: a client that does not show it
/// gets in by a login. A session that it cannot change to the account has not guessed.
pub(crate) async fn old_passwords_are_no_guesses(ground: &Ground) -> anyhow::Result<()> {
    if ground.family == Family::MariaDb {
        return Ok(());
    }
    let (old, new) = ("both-old-4e1", "both-new-7c6");
    let wrong = ground.secret("both-but-wrong-0b9");
    for secret in [old, new] {
        ground.secret(secret);
    }
    let made = [
        format!(
            "CREATE USER retained@'%' IDENTIFIED WITH caching_sha2_password BY '{old}' \
             FAILED_LOGIN_ATTEMPTS 3 PASSWORD_LOCK_TIME 1"
        ),
        format!("ALTER USER retained@'%' IDENTIFIED BY '{new}' RETAIN CURRENT PASSWORD"),
    ];
    ground.primary(&made).await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let shown = ground.through("retained", new, Way::Tls);
    Connection::open(&shown).await?.quit().await;
    // The server keeps it for clients that do not show it.
    let shows = ground.direct(&ground.through("retained", old, Way::Tls));
    Connection::open(&shows).await?.quit().await;
    let shy = |password: &str| {
        let mut login = ground.through("retained", password, Way::Plain);
        login.shows_password = false;
        login.attributes = vec![("_client_name".to_owned(), "libmysql".to_owned())];
        login
    };
    let change = async |password: &str| -> anyhow::Result<()> {
        let mut app = ground.through(APP.user, APP.password, Way::Plain);
        app.attributes = vec![("_client_name".to_owned(), "shows".to_owned())];
        let mut session = Connection::open(&app).await?;
        session.login.shows_password = false;
        session.login.attributes = shy(password).attributes;
        let reply = session.change_user("retained", password, "", 45).await;
        let code = reply.err().map(|err| err.code);
        ensure!(code == Some(1045), "{}", answer(&reply));
        Ok(())
    };
    for _ in 0..4 {
        change(old).await?;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = ground.same("the account is not locked", &shown).await?;
    ensure!(seen.is_in(), "{seen:?}");
    for _ in 0..4 {
        let seen = ground.same("by a login", &shy(old)).await?;
        ensure!(seen.is_in(), "{seen:?}");
    }
    // With both known, wrong ones count.
    let both = ground.through("retained", old, Way::Tls);
    Connection::open(&both).await?.quit().await;
    Connection::open(&shown).await?.quit().await;
    for _ in 0..6 {
        change(&wrong).await?;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = ground.same("the account is locked", &shown).await?;
    ensure!(matches!(seen.code(), Some(3955)), "{seen:?}");
    Ok(())
}

/// Clients that were given the servers' public key ask for none: Millrace has its private half.
pub(crate) async fn servers_key(ground: &Ground) -> anyhow::Result<()> {
    if ground.family == Family::MariaDb {
        return Ok(());
    }
    let datadir = ground.cluster.primary().datadir;
    let launch = Launch::new()?;
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:{}\"\n[[server]]\naddress = \"127.0.0.1:{}\"\n{}\
         [http]\nlisten = \"127.0.0.1:{}\"\n[tls]\nrsa_key = \"{}\"\n",
        launch.port,
        ground.cluster.primary().port,
        monitor_toml(),
        launch.http_port,
        datadir.join("private_key.pem").display()
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(PLENTY).await?;
    ground
        .account("keyed", ground.plugins()[0], "keyed-password-5c5")
        .await?;
    let mut login = Login::new(proxy.address(), "keyed", "keyed-password-5c5");
    let key = std::fs::read(datadir.join("public_key.pem"))?;
    (login.server_key, login.shows_password) = (Some(key), false);
    for login in [ground.direct(&login), login] {
        let mut connection = Connection::open(&login).await?;
        connection.expect("SELECT 1").await?;
    }
    Ok(())
}
