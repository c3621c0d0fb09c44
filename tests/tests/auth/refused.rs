//! Logins that are refused, and accounts that change while they are in use.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{Family, MONITOR};
use millrace_tests::wire::{Connection, Login, cap};

use crate::ground::{CATCH_UP, Ground, Seen, Way, answer};

pub(crate) async fn refusals(ground: &Ground) -> anyhow::Result<()> {
    let secret = ground.secret("of-a-stranger-f60");
    for way in [Way::Plain, Way::Tls] {
        for (user, password) in [
            ("stranger", secret.as_str()),
            ("stranger", ""),
            ("", secret.as_str()),
            ("", ""),
        ] {
            for _ in 0..2 {
                let login = ground.through(user, password, way);
                let what = format!("'{user}', {} characters, {way:?}", password.len());
                let seen = ground.same(&what, &login).await?;
                ensure!(seen.code() == Some(1045), "{what}: {seen:?}");
            }
        }
        for plugin in ground.plugins() {
            let name = format!("refused_{}_{way:?}", &plugin[..6]).to_lowercase();
            ground.account(&name, plugin, "refused-right-c0d").await?;
            for password in [secret.as_str(), ""] {
                let login = ground.through(&name, password, way);
                let what = format!("{name}, {} characters", password.len());
                let seen = ground.same(&what, &login).await?;
                ensure!(seen.code() == Some(1045), "{what}: {seen:?}");
            }
            // Known to the proxy by now, and still not open to others.
            let login = ground.through(&name, "refused-right-c0d", way);
            ground.good(&name, &login).await?.quit().await;
            for password in [secret.as_str(), ""] {
                let login = ground.through(&name, password, way);
                let what = format!("known {name}, {} characters", password.len());
                let seen = ground.same(&what, &login).await?;
                ensure!(seen.code() == Some(1045), "{what}: {seen:?}");
            }
            // A failure costs the others nothing.
            ground.good(&name, &login).await?.quit().await;
        }
    }
    Ok(())
}

pub(crate) async fn require_ssl(ground: &Ground) -> anyhow::Result<()> {
    ground
        .account("needs_tls", ground.plugins()[0], "needs-tls-6a6")
        .await?;
    ground
        .primary(&["ALTER USER 'needs_tls'@'%' REQUIRE SSL"])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    for way in [Way::Plain, Way::Tls, Way::Plain] {
        let login = ground.through("needs_tls", "needs-tls-6a6", way);
        let seen = ground.same(&format!("{way:?}"), &login).await?;
        ensure!(seen.is_in() == (way == Way::Tls), "{way:?}: {seen:?}");
    }
    Ok(())
}

pub(crate) async fn password_changed(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        let name = format!("changed_{}", &plugin[..6]);
        ground.account(&name, plugin, "changed-old-3f3").await?;
        let old = ground.through(&name, "changed-old-3f3", Way::Plain);
        let new = ground.through(&name, &ground.secret("changed-new-7e7"), Way::Plain);
        let mut session = ground.good(plugin, &old).await?;
        // Connections everywhere, so that the session needs no new one.
        for _ in 0..10 {
            session.expect("SELECT @@server_id").await?;
        }
        session
            .expect("CREATE TABLE IF NOT EXISTS app.changed (x INT)")
            .await?;
        let identified = ground.identified(plugin, "changed-new-7e7");
        ground
            .primary(&[format!("ALTER USER '{name}'@'%' {identified}")])
            .await?;
        let seen = ground.same("the old one", &old).await?;
        ensure!(seen.code() == Some(1045), "{plugin}: the old one: {seen:?}");
        for sql in [
            "SELECT CURRENT_USER()",
            "INSERT INTO app.changed VALUES (1)",
            "SELECT @@server_id",
        ] {
            session
                .expect(sql)
                .await
                .with_context(|| format!("{plugin}: the session goes on"))?;
        }
        ground.good("the new one", &new).await?.quit().await;
        for sql in [
            "INSERT INTO app.changed VALUES (1)",
            "BEGIN",
            "SELECT COUNT(*) FROM app.changed",
            "COMMIT",
        ] {
            session
                .expect(sql)
                .await
                .with_context(|| format!("{plugin}: the session goes on"))?;
        }
        let seen = ground.same("the old one again", &old).await?;
        ensure!(
            seen.code() == Some(1045),
            "{plugin}: the old one again: {seen:?}"
        );
        ground.good("the new one again", &new).await?.quit().await;
    }
    Ok(())
}

/// A session of the old password goes on where it has connections only to some servers.
pub(crate) async fn changed_with_few_connections(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    ground.account("few", plugin, "few-old-d2d").await?;
    let mut session = Connection::open(&ground.through("few", "few-old-d2d", Way::Plain)).await?;
    session.expect("CREATE TABLE app.few (x INT)").await?;
    ground.secret("few-new-4c4");
    let identified = ground.identified(plugin, "few-new-4c4");
    ground
        .primary(&[format!("ALTER USER 'few'@'%' {identified}")])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    for time in 0..6 {
        let sql = "SELECT COUNT(*) FROM app.few";
        session
            .expect(sql)
            .await
            .with_context(|| format!("read {time}"))?;
        session.expect("INSERT INTO app.few VALUES (1)").await?;
    }
    Ok(())
}

pub(crate) async fn locked(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        let name = format!("locked_{}", &plugin[..6]);
        ground.account(&name, plugin, "locked-8a9").await?;
        let login = ground.through(&name, "locked-8a9", Way::Tls);
        let mut session = ground.good(plugin, &login).await?;
        for time in 0..2 {
            ground
                .primary(&[format!("ALTER USER '{name}'@'%' ACCOUNT LOCK")])
                .await?;
            let seen = ground.same(&format!("{plugin} {time}"), &login).await?;
            ensure!(!seen.is_in(), "{plugin}: {seen:?}");
            session
                .expect("SELECT CURRENT_USER()")
                .await
                .context("sessions go on")?;
            ground
                .primary(&[format!("ALTER USER '{name}'@'%' ACCOUNT UNLOCK")])
                .await?;
            ground.good("unlocked", &login).await?.quit().await;
        }
        ground.primary(&[format!("DROP USER '{name}'@'%'")]).await?;
        let seen = ground.same(&format!("{plugin}, dropped"), &login).await?;
        ensure!(seen.code() == Some(1045), "{plugin}: dropped: {seen:?}");
    }
    Ok(())
}

/// What a client whose password has expired gets to see, up to the new password and beyond.
pub(crate) async fn sandbox(login: &Login, statements: &[String]) -> anyhow::Result<Vec<String>> {
    let (connection, reply) = Connection::try_open(login).await?;
    let mut seen = vec![answer(&reply)];
    if let Some(mut connection) = connection {
        for sql in statements {
            seen.push(format!("{sql}: {}", answer(&connection.query(sql).await)));
        }
        connection.quit().await;
    }
    Ok(seen)
}

pub(crate) async fn expired(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        for (known, database, way) in [
            (false, "", Way::Plain),
            (true, "", Way::Plain),
            (true, "app", Way::Plain),
            (false, "app", Way::Tls),
            (true, "", Way::Tls),
            (false, "", Way::Socket),
            (true, "app", Way::Socket),
        ] {
            let into = |login: Login| match database {
                "" => login,
                name => login.database(name),
            };
            let stem = format!("exp_{}_{known}{database}_{way:?}", &plugin[..6]).to_lowercase();
            let names = [format!("{stem}_d"), format!("{stem}_t")];
            for name in &names {
                ground.account(name, plugin, "expired-11e").await?;
                let login = into(ground.through(name, "expired-11e", way));
                if known {
                    ground.good(&stem, &login).await?.quit().await;
                }
                ground
                    .primary(&[format!("ALTER USER '{name}'@'%' PASSWORD EXPIRE")])
                    .await?;
            }
            ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
            ground.secret("unexpired-92b");
            let renew = match ground.family {
                Family::MySql => "ALTER USER USER() IDENTIFIED BY 'unexpired-92b'",
                Family::MariaDb => "SET PASSWORD = PASSWORD('unexpired-92b')",
            };
            let statements: Vec<String> = [
                "SELECT 1",
                "INSERT INTO app.nowhere VALUES (1)",
                "BEGIN",
                renew,
                "SELECT CURRENT_USER() LIKE 'exp%'",
                "SELECT @@read_only",
            ]
            .map(str::to_owned)
            .to_vec();
            for aware in [false, true] {
                let mut direct =
                    ground.direct(&into(ground.through(&names[0], "expired-11e", way)));
                let mut through = into(ground.through(&names[1], "expired-11e", way));
                if aware {
                    direct.capabilities |= cap::EXPIRED_PASSWORDS;
                    through.capabilities |= cap::EXPIRED_PASSWORDS;
                }
                // At its socket a server names another address than Millrace's.
                let plain = |seen: &String| seen.replace("'@'localhost'", "'@'127.0.0.1'");
                let direct = sandbox(&direct, &statements).await?;
                let direct: Vec<String> = direct.iter().map(plain).collect();
                // After the first round the password is the new one: both are refused by name.
                let through: Vec<String> = sandbox(&through, &statements)
                    .await?
                    .iter()
                    .map(|seen| plain(seen).replace(&names[1], &names[0]))
                    .collect();
                ensure!(
                    direct == through,
                    "{stem}, aware {aware}: direct {direct:#?}, through {through:#?}"
                );
            }
            let login = ground.through(&names[1], "unexpired-92b", way);
            ground
                .good(&format!("{stem}, renewed"), &login)
                .await?
                .quit()
                .await;
        }
    }
    Ok(())
}

/// What works with a limit on connections directly works through the proxy, whose own
/// connections count as the account's.
pub(crate) async fn max_user_connections(ground: &Ground) -> anyhow::Result<()> {
    for limit in [1, 2] {
        let name = format!("few_connections_{limit}");
        ground
            .account(&name, ground.plugins()[0], "few-connections-e7e")
            .await?;
        ground
            .primary(&[format!(
                "ALTER USER '{name}'@'%' WITH MAX_USER_CONNECTIONS {limit}"
            )])
            .await?;
        ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
        let login = ground
            .through(&name, "few-connections-e7e", Way::Tls)
            .database("app");
        let mut clients = Vec::new();
        for n in 0..limit {
            let what = format!("limit {limit}, client {n}");
            clients.push(Connection::open(&login).await.with_context(|| what)?);
        }
        for sql in [
            "SELECT 1",
            "CREATE TABLE IF NOT EXISTS few_c (x INT)",
            "BEGIN",
            "INSERT INTO few_c VALUES (1)",
            "SELECT COUNT(*) FROM few_c",
            "COMMIT",
            "SELECT @@server_id",
        ] {
            for (n, client) in clients.iter_mut().enumerate() {
                if let Err(error) = client.expect(sql).await {
                    anyhow::bail!("limit {limit}, client {n}: {error}");
                }
            }
        }
        // One more is let in (a pooled session needs none of its own) or refused as directly.
        match Seen::of(&login).await? {
            Seen::In(_) => {}
            Seen::Refused {
                code: 1226 | 1203, ..
            } => {}
            seen => anyhow::bail!("limit {limit}: one more: {seen:?}"),
        }
        for client in clients {
            client.quit().await;
        }
        let mut last = Connection::open(&login).await.context("after they left")?;
        last.expect("INSERT INTO few_c VALUES (2)").await?;
    }
    Ok(())
}

/// Where the servers refuse the monitor's account, those come in who came in before; nobody is told a word of the
/// monitor's account.
pub(crate) async fn monitor_refused(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    for name in ["known_before", "unknown_before"] {
        ground.account(name, plugin, "before-and-after-4d").await?;
    }
    let known = ground.through("known_before", "before-and-after-4d", Way::Tls);
    let unknown = ground.through("unknown_before", "before-and-after-4d", Way::Tls);
    // Each worker asks for itself.
    for _ in 0..8 {
        Connection::open(&known).await?.quit().await;
    }
    let monitor = format!("ALTER USER '{}'@'%' ACCOUNT", MONITOR.user);
    ground.primary(&[format!("{monitor} LOCK")]).await?;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let checked = while_refused(ground, &known, &unknown).await;
    ground.primary(&[format!("{monitor} UNLOCK")]).await?;
    checked?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    ground.good("unlocked", &unknown).await?.quit().await;
    Ok(())
}

async fn while_refused(ground: &Ground, known: &Login, unknown: &Login) -> anyhow::Result<()> {
    for turn in 0..8 {
        let session = Connection::open(known).await;
        session
            .with_context(|| format!("turn {turn}"))?
            .quit()
            .await;
    }
    let mut wrong = known.clone();
    wrong.password = ground.secret("before-but-wrong-9e");
    let seen = Seen::of(&wrong).await?;
    ensure!(seen.code() == Some(1045), "{seen:?}");
    // A wrong password takes nothing away from the others.
    Connection::open(known).await?.quit().await;
    let began = Instant::now();
    let (_, reply) = Connection::try_open(unknown).await?;
    let err = reply.err().context("let in unjudged")?;
    let text = err.message.clone();
    ensure!(err.code == 1105 && text.contains("[monitor]"), "{err:?}");
    ensure!(!text.contains(MONITOR.user), "{text}");
    ensure!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    Ok(())
}
