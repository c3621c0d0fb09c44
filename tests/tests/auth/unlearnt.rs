//! Accounts whose password no client shows, and those that are configured.

use anyhow::{Context, ensure};
use millrace_tests::wire::Connection;

use crate::ground::{ENV_SECRET, FILE_SECRET, Ground, Seen, Way};

/// libmysqlclient and some drivers break off rather than show their password under an RSA key
/// that they were not told to trust.
pub(crate) async fn refuses_to_show(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    // Over a socket it shows it.
    ground
        .account("shy_at_socket", plugin, "shy-password-b5b")
        .await?;
    let mut near = ground.through("shy_at_socket", "shy-password-b5b", Way::Socket);
    near.shows_password = false;
    near.attributes = vec![("_client_name".to_owned(), "libmysql".to_owned())];
    let relayed = "millrace_logins_total{outcome=\"relayed\"}";
    let before = ground.counter(relayed).await?;
    for _ in 0..2 {
        ground.good("over a socket", &near).await?.quit().await;
    }
    let after = ground.counter(relayed).await?;
    ensure!(after == before, "relayed over a socket");
    for name in ["_client_name", "nothing"] {
        let account = format!("shy{name}");
        ground.account(&account, plugin, "shy-password-b5b").await?;
        let mut login = ground.through(&account, "shy-password-b5b", Way::Plain);
        // Warms the server's cache.
        Connection::open(&ground.direct(&login)).await?.quit().await;
        login.shows_password = false;
        login.attributes = vec![(name.to_owned(), "libmysql".to_owned())];
        let seen = Seen::of(&ground.direct(&login)).await?;
        ensure!(seen.is_in(), "direct: {seen:?}");
        if name == "nothing" {
            // Such a client cannot be told from others before it breaks off; but once is enough.
            let _ = Connection::try_open(&login).await;
        }
        let before = ground
            .counter("millrace_logins_total{outcome=\"relayed\"}")
            .await?;
        let mut connection = Connection::open(&login).await.context("by relay")?;
        for sql in [
            "CREATE TABLE app.shy (x INT)",
            "INSERT INTO app.shy VALUES (1)",
            "SELECT * FROM app.shy",
            "DROP TABLE app.shy",
        ] {
            connection.expect(sql).await?;
        }
        let reply = connection.query("SELECT CONNECTION_ID()").await;
        ensure!(reply.scalar().is_some(), "{:?}", reply.render());
        let relayed = ground
            .counter("millrace_logins_total{outcome=\"relayed\"}")
            .await?
            - before;
        let pinned = ground
            .counter("millrace_pins{reason=\"relayed_login\"}")
            .await?;
        // Of mysql_native_password nobody needs to be shown anything.
        let needed = plugin != "mysql_native_password";
        ensure!(
            (relayed >= 1.0) == needed && (pinned >= 1.0) == needed,
            "{relayed} relayed, {pinned} pinned"
        );
        // Once somebody has shown it, nobody has to.
        let mut other = ground.through(&account, "shy-password-b5b", Way::Tls);
        other.attributes.clone_from(&login.attributes);
        ground.good("showing it", &other).await?.quit().await;
        ground.good("known", &login).await?.quit().await;
        let again = ground
            .counter("millrace_logins_total{outcome=\"relayed\"}")
            .await?
            - before;
        ensure!(
            again <= relayed,
            "{account}: relayed again although the password is known"
        );
        login.password = ground.secret("shy-and-wrong-5d5");
        let seen = Seen::of(&login).await?;
        ensure!(!seen.is_in(), "{seen:?}");
    }
    Ok(())
}

/// Accounts from the configuration need no learning, so a client never has to show the password.
pub(crate) async fn configured(ground: &Ground) -> anyhow::Result<()> {
    for (name, password) in [("by_file", FILE_SECRET), ("by_env", ENV_SECRET)] {
        for plugin in [ground.plugins()[0]] {
            ground.account(name, plugin, password).await?;
            let mut login = ground.through(name, password, Way::Plain);
            login.shows_password = false;
            ground.good("at once", &login).await?.quit().await;
            ground.everywhere("FLUSH LOCAL PRIVILEGES").await?;
            let mut connection = ground.good("with the server's cache cold", &login).await?;
            for _ in 0..4 {
                connection.expect("SELECT @@server_id").await?;
            }
            login.password = ground.secret("configured-otherwise-0f");
            let seen = Seen::of(&login).await?;
            ensure!(!seen.is_in(), "{name}, wrong: {seen:?}");
            // The servers' word still counts.
            login.password = password.to_owned();
            ground
                .primary(&[format!("ALTER USER '{name}'@'%' ACCOUNT LOCK")])
                .await?;
            let seen = Seen::of(&login).await?;
            ensure!(!seen.is_in(), "{name}, locked: {seen:?}");
        }
    }
    Ok(())
}
