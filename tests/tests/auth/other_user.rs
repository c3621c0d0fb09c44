//! COM_CHANGE_USER.

use anyhow::ensure;
use millrace_sandbox::Family;
use millrace_tests::wire::{Connection, Login, cap};

use crate::ground::{CATCH_UP, Ground, Way, answer};

/// The same steps, each answer noted.
pub(crate) async fn change_user_steps(
    ground: &Ground,
    login: &Login,
) -> anyhow::Result<Vec<String>> {
    let mut seen = Vec::new();
    let mut connection = Connection::open(login).await?;
    let looks = "SELECT CURRENT_USER(), DATABASE(), @x, @@collation_connection, @@autocommit, @@group_concat_max_len";
    let spoil = [
        "SET @x=5, autocommit=0, group_concat_max_len=4321",
        "CREATE TEMPORARY TABLE app.gone (x INT)",
        "INSERT INTO app.gone VALUES (1)",
    ];
    let steps: [(&str, &str, &str, u16); 7] = [
        ("turn_b", "turn-b-secret-88", "app", 8),
        ("turn_b", "turn-b-secret-88", "", 45),
        ("turn_a", "turn-a-secret-99", "test", 33),
        ("turn_a", "turn-a-secret-99", "app", 45),
        ("turn_c", "", "app", 45),
        ("turn_d", "turn-d-secret-77", "app", 45),
        ("turn_a", "turn-a-secret-99", "app", 46),
    ];
    for (user, password, database, charset) in steps {
        for sql in spoil {
            seen.push(answer(&connection.query(sql).await));
        }
        let reply = connection
            .change_user(user, password, database, charset)
            .await;
        seen.push(format!("{user} {database}: {}", answer(&reply)));
        if reply.err().is_some() {
            seen.push(answer(&connection.query("SELECT 1").await));
            connection = Connection::open(login).await?;
            continue;
        }
        for sql in [looks, "SELECT * FROM app.gone", "SELECT 1"] {
            seen.push(answer(&connection.query(sql).await));
        }
    }
    // Failures: a wrong password, nobody, no such database.
    for (user, password, database) in [
        ("turn_b", "turn-b-but-wrong-0", "app"),
        ("turn_nobody", "turn-nobody-secret-1", "app"),
        ("turn_b", "turn-b-secret-88", "there_is_none"),
        ("turn_b", "", "app"),
    ] {
        let mut connection = Connection::open(login).await?;
        connection.expect("SET @x=6").await?;
        let reply = connection.change_user(user, password, database, 45).await;
        seen.push(format!("{user} {database}: {}", answer(&reply)));
        seen.push(answer(&connection.query("SELECT CURRENT_USER(), @x").await));
    }
    for secret in ["turn-b-but-wrong-0", "turn-nobody-secret-1"] {
        ground.secret(secret);
    }
    Ok(seen)
}

pub(crate) async fn change_user(ground: &Ground) -> anyhow::Result<()> {
    let [first, second] = ground.plugins();
    for (name, plugin, password) in [
        ("turn_a", first, "turn-a-secret-99"),
        ("turn_b", first, "turn-b-secret-88"),
        ("turn_c", first, ""),
        ("turn_d", second, "turn-d-secret-77"),
    ] {
        ground.account(name, plugin, password).await?;
    }
    ground
        .primary(&["GRANT ALL ON test.* TO 'turn_a'@'%'"])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    for way in [Way::Tls, Way::Plain] {
        let login = ground
            .through("turn_a", "turn-a-secret-99", way)
            .database("app");
        let direct = change_user_steps(ground, &ground.direct(&login)).await?;
        let through = change_user_steps(ground, &login).await?;
        differences(&format!("{way:?}"), &direct, &through)?;
    }
    Ok(())
}

/// Clients that have mysql_native_password only. None of them is asked for its password.
pub(crate) async fn change_user_natively(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    if plugin != "mysql_native_password" {
        // MySQL 9 has no account that such a client could become.
        return Ok(());
    }
    for name in ["native_a", "native_b", "native_c", "native_d"] {
        let password = format!("{name}-secret-6e6");
        ground.account(name, plugin, &password).await?;
    }
    let steps = [
        ("native_b", "native_b-secret-6e6"),
        ("native_a", "native_a-secret-6e6"),
        ("native_b", "native_b-secret-6e6"),
        ("native_c", "native_c-secret-6e6"),
        ("native_c", "not-of-native-c-5f5"),
    ];
    for (what, capabilities, names_plugin, then) in [
        (
            "without plugins",
            cap::LEGACY & !cap::PLUGIN_AUTH,
            false,
            None,
        ),
        ("names none", cap::LEGACY, false, None),
        ("names none, then one", cap::LEGACY, false, Some(plugin)),
        (
            "names none, then another",
            cap::LEGACY,
            false,
            Some("client_ed25519"),
        ),
        ("names its own", cap::LEGACY, true, None),
        ("modern", cap::MODERN, true, None),
    ] {
        let mut login = ground.through("native_a", "native_a-secret-6e6", Way::Plain);
        login.capabilities = capabilities;
        login.plugin = Some(plugin.to_owned());
        (login.names_plugin, login.shows_password) = (names_plugin, false);
        let mut both = Vec::new();
        for login in [ground.direct(&login), login] {
            let mut seen = Vec::new();
            let mut connection = Connection::open(&login).await?;
            if let Some(then) = then {
                connection.login.plugin = Some(then.to_owned());
                connection.login.names_plugin = true;
            }
            for (user, password) in steps {
                ground.secret(password);
                let reply = connection.change_user(user, password, "app", 45).await;
                seen.push(answer(&reply));
                let sql = "SELECT CURRENT_USER(), DATABASE()";
                seen.push(answer(&connection.query(sql).await));
            }
            both.push(seen);
        }
        ensure!(both[0][0] == "[]", "{what}, direct: {:?}", both[0]);
        differences(what, &both[0], &both[1])?;
    }
    Ok(())
}

pub(crate) fn differences(what: &str, direct: &[String], through: &[String]) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for (at, (d, t)) in direct.iter().zip(through).enumerate() {
        if d != t {
            found.push(format!("step {at}: direct {d}, through {t}"));
        }
    }
    ensure!(found.is_empty(), "{what}: {}", found.join("; "));
    ensure!(direct.len() == through.len(), "{what}: steps are missing");
    Ok(())
}

/// A session whose login only the server could judge becomes itself and others, as directly: each time by a login anew.
pub(crate) async fn relayed_become_others(ground: &Ground) -> anyhow::Result<()> {
    let plugin = match ground.family {
        Family::MySql => "caching_sha2_password",
        Family::MariaDb => "ed25519",
    };
    let (own, other) = ("stays-secret-4a1", "becomes-secret-4a2");
    ground.account("stays", plugin, own).await?;
    ground.account("becomes", plugin, other).await?;
    let mut login = ground.through("stays", own, Way::Plain);
    let direct = ground.direct(&login);
    // Warms the server's cache.
    for (user, password) in [("stays", own), ("becomes", other)] {
        let login = ground.through(user, password, Way::Plain);
        Connection::open(&ground.direct(&login)).await?.quit().await;
    }
    login.shows_password = false;
    login.attributes = vec![("_client_name".to_owned(), "libmysql".to_owned())];
    let relayed = "millrace_logins_total{outcome=\"relayed\"}";
    let before = ground.counter(relayed).await?;
    let mut both = Vec::new();
    for login in [&direct, &login] {
        let mut connection = Connection::open(login).await?;
        let mut seen = Vec::new();
        let reply = connection.change_user("stays", own, "app", 45).await;
        seen.push(answer(&reply));
        seen.push(answer(
            &connection.query("SELECT CURRENT_USER(), DATABASE()").await,
        ));
        both.push((connection, seen));
    }
    ensure!(
        ground.counter(relayed).await? > before,
        "it was not relayed"
    );
    ensure!(both[0].1 == both[1].1, "{:?}, {:?}", both[0].1, both[1].1);
    // To another user's as well, and with a wrong password not.
    let mut seen = Vec::new();
    for (connection, _) in &mut both {
        let reply = connection.change_user("becomes", other, "app", 45).await;
        let told = [
            answer(&reply),
            answer(&connection.query("SELECT CURRENT_USER(), DATABASE()").await),
        ];
        let reply = connection
            .change_user("stays", "wrong-secret-4a3", "", 45)
            .await;
        // MySQL asks for the password itself then, which this client does not show.
        seen.push((told, reply.err().is_none() && reply.broken().is_none()));
    }
    ensure!(seen[0] == seen[1], "{:?}, {:?}", seen[0], seen[1]);
    ensure!(!seen[0].1, "let in with a wrong password: {seen:?}");
    Ok(())
}
