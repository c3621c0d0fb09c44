//! Sessions whose logins only the server can judge, and which become others: each time they are judged as at a login.

use millrace_tests::wire::Reply;

use super::*;

const PASSWORD: &str = "relayed-secret-5c1";

/// MySQL asks for the password itself after a wrong proof, which the client does not show.
fn is_refused(reply: &Reply) -> bool {
    let breaks_off = reply.broken().is_some();
    reply.err().map_or(breaks_off, |error| error.code == 1045)
}

pub(super) async fn relayed_changes(release: Release) -> anyhow::Result<()> {
    let stage = Stage::start(release, Reach::Network, true).await?;
    let created = |account: &str| match release.family() {
        Family::MySql => {
            format!("CREATE USER {account} IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'")
        }
        Family::MariaDb => {
            format!("CREATE USER {account} IDENTIFIED VIA ed25519 USING PASSWORD('{PASSWORD}')")
        }
    };
    let here = format!("here@'{HERE}'");
    stage
        .root(&[created("first@'%'"), created("second@'%'"), created(&here)])
        .await?;
    let login = |from: &str, user: &str, direct: bool| {
        let mut login = Login::new(stage.target(from, direct)?, user, PASSWORD);
        // Its password is not to be had.
        login.shows_password = false;
        login.attributes = vec![("_client_name".to_owned(), "libmysql".to_owned())];
        anyhow::Ok(login)
    };
    // Warms MySQL's cache, by which it judges without the password.
    for user in ["first", "second", "here"] {
        let mut login = Login::new(stage.target(HERE, true)?, user, PASSWORD);
        login.shows_password = true;
        let why = refusal(&login).await?;
        ensure!(why.is_none(), "{user}: {why:?}");
    }
    let who = "SELECT CURRENT_USER()";
    for direct in [true, false] {
        let mut client = Connection::open(&login(AWAY, "first", direct)?).await?;
        for user in ["first", "second", "first"] {
            let reply = client.change_user(user, PASSWORD, "", 45).await;
            ensure!(
                reply.err().is_none(),
                "direct {direct}, {user}: {:?}",
                reply.render()
            );
            let is = client.expect(who).await?.scalar();
            ensure!(is == Some(format!("{user}@%")), "direct {direct}: {is:?}");
        }
        let reply = client.change_user("second", "wrong", "", 45).await;
        ensure!(
            is_refused(&reply),
            "direct {direct}, wrong: {:?}",
            reply.render()
        );
        let mut client = Connection::open(&login(AWAY, "first", direct)?).await?;
        let reply = client.change_user("here", PASSWORD, "", 45).await;
        ensure!(
            is_refused(&reply),
            "direct {direct}, not for its address: {:?}",
            reply.render()
        );
    }
    // The name has an account for Millrace's address, which is not the client's.
    let mut direct = Connection::open(&login(AWAY, "first", true)?).await?;
    let mut client = Connection::open(&login(AWAY, "first", false)?).await?;
    stage.root(&[created(&format!("first@'{HERE}'"))]).await?;
    let mut warm = Login::new(stage.target(HERE, true)?, "first", PASSWORD);
    warm.shows_password = true;
    refusal(&warm).await?;
    let reply = direct.change_user("first", PASSWORD, "", 45).await;
    ensure!(reply.err().is_none(), "direct: {:?}", reply.render());
    let reply = client.change_user("first", PASSWORD, "", 45).await;
    ensure!(
        is_refused(&reply),
        "it has become another's: {:?}",
        reply.render()
    );
    Ok(())
}
