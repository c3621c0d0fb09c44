//! Good logins: every plugin, kind of connection, password, character set and database.

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Binaries, Family, Release, skip_unless};
use millrace_tests::wire::{Connection, Login, Target, cap};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::ground::{CATCH_UP, Ground, Seen, WAYS, Way};

/// Every plugin over every kind of connection: a first login with the server's cache cold, one
/// with the password known, one when the server has forgotten, and a wrong password after all.
pub(crate) async fn every_plugin(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        for way in WAYS {
            let name = format!("p_{}_{way:?}", &plugin[..6]).to_lowercase();
            let password = format!("right-{name}-0c6");
            ground.account(&name, plugin, &password).await?;
            let login = ground.through(&name, &password, way);
            let what = format!("{plugin} {way:?}");
            for time in ["cold", "known"] {
                let connection = ground.good(&format!("{what} {time}"), &login).await?;
                connection.quit().await;
            }
            ground.everywhere("FLUSH LOCAL PRIVILEGES").await?;
            let again = ground.good(&format!("{what} flushed"), &login).await?;
            again.quit().await;
            ground.same(&what, &login).await?;
            let wrong = ground.through(&name, &ground.secret("not-the-password-511"), way);
            let seen = ground.same(&what, &wrong).await?;
            ensure!(seen.code() == Some(1045), "{what}: {seen:?}");
        }
    }
    Ok(())
}

/// The server's cache is warm and the proxy has seen nothing yet.
pub(crate) async fn warm_server(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        for way in WAYS {
            let name = format!("w_{}_{way:?}", &plugin[..6]).to_lowercase();
            let password = format!("warm-{name}-44f");
            ground.account(&name, plugin, &password).await?;
            let login = ground.through(&name, &password, way);
            // Direct first: that is what warms it.
            let seen = ground.same(&format!("{plugin} {way:?}"), &login).await?;
            ensure!(seen.is_in(), "{plugin} {way:?}: {seen:?}");
        }
    }
    Ok(())
}

/// TLS begins in the write that asks for it: whoever reads more than the request must not lose it.
pub(crate) async fn tls_at_once(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    ground.account("at_once", plugin, "at-once-77c").await?;
    let mut login = ground.through("at_once", "at-once-77c", Way::Tls);
    login.tls_at_once = true;
    // A socket is private by itself, and may have TLS all the same.
    let mut by_socket = ground.through("at_once", "at-once-77c", Way::Socket);
    by_socket.tls = true;
    let seen = ground.same("TLS over a socket", &by_socket).await?;
    ensure!(seen.is_in(), "TLS over a socket: {seen:?}");
    for _ in 0..3 {
        let mut connection = Connection::open(&login).await?;
        let shown = connection.expect("SELECT 7").await?;
        ensure!(shown.scalar().as_deref() == Some("7"));
        connection.quit().await;
    }
    Ok(())
}

pub(crate) async fn empty_passwords(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        let name = format!("empty_{}", &plugin[..6]);
        ground.account(&name, plugin, "").await?;
        for way in WAYS {
            let what = format!("{plugin} {way:?}");
            let login = ground.through(&name, "", way);
            ground.same(&what, &login).await?;
            ground.same(&what, &login).await?;
            let wrong = ground.through(&name, &ground.secret("should-be-empty-2d0"), way);
            if way != Way::Socket {
                ground.same(&format!("{what}, a password"), &wrong).await?;
            }
        }
    }
    let seen = Seen::of(&ground.through(
        &format!("empty_{}", &ground.plugins()[0][..6]),
        "",
        Way::Plain,
    ))
    .await?;
    ensure!(seen.is_in(), "{seen:?}");
    Ok(())
}

/// A client begins with another plugin than the account's, or the server's.
pub(crate) async fn auth_switch(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        for begun in [
            "caching_sha2_password",
            "mysql_native_password",
            "sha256_password",
            "client_ed25519",
            "mysql_clear_password",
            "plugin_of_nobody",
        ] {
            let name = format!("s_{}_{}", &plugin[..6], &begun[..9]);
            let password = format!("switch-{name}-e03");
            ground.account(&name, plugin, &password).await?;
            for way in [Way::Tls, Way::Plain] {
                let mut login = ground.through(&name, &password, way);
                login.plugin = Some(begun.to_owned());
                for time in ["first", "second"] {
                    let what = format!("{plugin} begun with {begun} {way:?}, {time}");
                    ground.good(&what, &login).await?.quit().await;
                }
                login.password = ground.secret("switched-and-wrong-a71");
                let what = format!("{plugin} begun with {begun} {way:?}, wrong");
                let seen = ground.same(&what, &login).await?;
                ensure!(seen.code() == Some(1045), "{what}: {seen:?}");
            }
        }
    }
    Ok(())
}

/// Clients of the 5.1 era cannot be asked for another plugin.
pub(crate) async fn no_plugin_support(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    if plugin != "mysql_native_password" {
        // MySQL 9 has no account that such a client could log in to.
        return Ok(());
    }
    ground
        .account("old_client", plugin, "old-client-0b9")
        .await?;
    ground
        .account("npm_client", plugin, "npm-client-4c1")
        .await?;
    // Such a client cannot be asked to show its password: the servers' hash and its proof are enough.
    let before = ground
        .counter("millrace_logins_total{outcome=\"relayed\"}")
        .await?;
    for way in WAYS {
        let mut login = ground.through("old_client", "old-client-0b9", way);
        login.capabilities = cap::LEGACY & !cap::PLUGIN_AUTH;
        login.plugin = Some("mysql_native_password".to_owned());
        login.shows_password = false;
        for time in ["first", "second"] {
            let seen = ground.same(time, &login).await?;
            ensure!(seen.is_in(), "{way:?}, {time}: {seen:?}");
        }
        // The npm package mysql: it knows of plugins, and has one.
        let mut npm = ground.through("npm_client", "npm-client-4c1", way);
        npm.capabilities = cap::LEGACY;
        npm.plugin.clone_from(&login.plugin);
        (npm.names_plugin, npm.shows_password) = (false, false);
        for time in ["npm, first", "npm, second"] {
            let seen = ground.same(time, &npm).await?;
            ensure!(seen.is_in(), "{way:?}, {time}: {seen:?}");
        }
        for (user, wrong) in [("old_client", login), ("npm_client", npm)] {
            let mut wrong = wrong;
            wrong.password = ground.secret("not-this-one-77f");
            let seen = ground
                .same(&format!("{user}, {way:?}, wrong"), &wrong)
                .await?;
            ensure!(seen.code() == Some(1045), "{user}: {seen:?}");
        }
    }
    let after = ground
        .counter("millrace_logins_total{outcome=\"relayed\"}")
        .await?;
    ensure!(after <= before, "relayed {} times", after - before);
    // One that names no plugin and has the account's.
    ground
        .account("nameless", "ed25519", "nameless-1d7")
        .await?;
    let wrong = ground.secret("nameless-wrong-1d8");
    for way in WAYS {
        let mut login = ground.through("nameless", "nameless-1d7", way);
        (login.names_plugin, login.shows_password) = (false, false);
        login.plugin = Some("mysql_native_password".to_owned());
        let seen = ground.same(&format!("nameless, {way:?}"), &login).await?;
        ensure!(seen.is_in(), "nameless, {way:?}: {seen:?}");
        login.password.clone_from(&wrong);
        let seen = ground.same(&format!("nameless, {way:?}"), &login).await?;
        ensure!(seen.code() == Some(1045), "nameless, {way:?}: {seen:?}");
    }
    let last = ground
        .counter("millrace_logins_total{outcome=\"relayed\"}")
        .await?;
    ensure!(last == after + 3.0, "relayed {} times", last - after);
    Ok(())
}

pub(crate) async fn strange_passwords(ground: &Ground) -> anyhow::Result<()> {
    let long = format!("long-{}-end", "0123456789".repeat(12));
    let passwords = [
        ("utf8", "gr\u{fc}\u{df}e-\u{4f60}\u{597d}-8c1"),
        ("quotes", r#"q"uo`te$x {}%s-1f7"#),
        ("spaces", " leads and ends "),
        ("long", long.as_str()),
    ];
    for plugin in ground.plugins() {
        for (kind, password) in passwords {
            let name = format!("odd_{kind}_{}", &plugin[..6]);
            ground.account(&name, plugin, password).await?;
            for way in [Way::Plain, Way::Tls] {
                let login = ground.through(&name, password, way);
                let seen = ground.same(&format!("{name} {way:?}"), &login).await?;
                ensure!(seen.is_in(), "{name} {way:?}: {seen:?}");
            }
        }
    }
    Ok(())
}

/// The handshake's collation is the session's.
pub(crate) async fn character_sets(ground: &Ground) -> anyhow::Result<()> {
    ground
        .account("charsets", ground.plugins()[0], "charsets-31c")
        .await?;
    // latin1_swedish_ci, utf8mb3_general_ci, binary, utf8mb4_bin, cp1250, gbk; unknown ones.
    for charset in [8, 33, 63, 46, 26, 28, 0, 17] {
        let mut login = ground.through("charsets", "charsets-31c", Way::Tls);
        login.charset = charset;
        ground.same(&format!("collation {charset}"), &login).await?;
    }
    Ok(())
}

pub(crate) async fn database_at_login(ground: &Ground) -> anyhow::Result<()> {
    ground.primary(&["CREATE DATABASE nobody_may"]).await?;
    for (at, plugin) in ground.plugins().into_iter().enumerate() {
        let name = format!("db_{at}");
        let password = format!("db-login-{at}-5e5");
        ground.account(&name, plugin, &password).await?;
        for (database, code) in [
            ("app", None),
            ("nobody_may", Some(1044)),
            ("there_is_none", None),
            ("", None),
        ] {
            let login = ground
                .through(&name, &password, Way::Tls)
                .database(database);
            let seen = ground
                .same(&format!("{plugin}, {database}"), &login)
                .await?;
            ensure!(
                code.is_none() || seen.code() == code,
                "{database}: {seen:?}"
            );
        }
    }
    // One that may see that there is none.
    let admin = millrace_sandbox::ADMIN;
    ground.secret(admin.password);
    let login = ground.through(admin.user, admin.password, Way::Plain);
    let seen = ground
        .same("none", &login.clone().database("there_is_none"))
        .await?;
    ensure!(seen.code() == Some(1049), "{seen:?}");
    // Frameworks create one and log in to it at once, whatever the replicas have.
    delayed(ground, 3, async {
        let mut first = Connection::open(&login).await?;
        first.expect("CREATE DATABASE just_made").await?;
        let mut second = Connection::open(&login.clone().database("just_made")).await?;
        let reply = second.query("SELECT DATABASE()").await;
        ensure!(
            reply.scalar().as_deref() == Some("just_made"),
            "{:?}",
            reply.render()
        );
        let reply = second
            .query("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema=DATABASE()")
            .await;
        ensure!(
            reply.scalar().as_deref() == Some("0"),
            "{:?}",
            reply.render()
        );
        Ok(())
    })
    .await
}

pub(crate) async fn delayed(
    ground: &Ground,
    seconds: u32,
    what: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    for replica in ground.cluster.replicas() {
        ground.cluster.delay_applier(&replica.name, seconds).await?;
    }
    let outcome = what.await;
    for replica in ground.cluster.replicas() {
        ground.cluster.delay_applier(&replica.name, 0).await?;
    }
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    outcome
}

/// An account, or its new password, that late replicas do not have yet.
pub(crate) async fn late_replicas(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    delayed(ground, 5, async {
        ground
            .account_somewhere("late", plugin, "late-first-9d8")
            .await?;
        let login = ground
            .through("late", "late-first-9d8", Way::Tls)
            .database("app");
        for time in 0..4 {
            let mut connection = ground
                .good(&format!("new account, login {time}"), &login)
                .await?;
            for _ in 0..3 {
                connection
                    .expect("SELECT @@server_id, CURRENT_USER()")
                    .await?;
            }
            connection.quit().await;
        }
        Ok(())
    })
    .await?;
    delayed(ground, 5, async {
        ground.secret("late-second-1a2");
        let identified = ground.identified(plugin, "late-second-1a2");
        ground
            .primary(&[format!("ALTER USER 'late'@'%' {identified}")])
            .await?;
        let login = ground
            .through("late", "late-second-1a2", Way::Tls)
            .database("app");
        for time in 0..4 {
            let mut connection = ground
                .good(&format!("new password, login {time}"), &login)
                .await?;
            for _ in 0..3 {
                connection
                    .expect("SELECT @@server_id, CURRENT_USER()")
                    .await?;
            }
            connection.quit().await;
        }
        Ok(())
    })
    .await
}

/// A new account's login while the primary lets nobody in and late replicas do not know it yet.
pub(crate) async fn late_and_full(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    let cluster = &ground.cluster;
    let mut control = cluster.control(&cluster.primary().name).await?;
    let before = control.value("SELECT @@max_connections").await?;
    let before = before.context("max_connections")?;
    delayed(ground, 20, async {
        ground
            .account_somewhere("late_full", plugin, "late-full-3c1")
            .await?;
        // MariaDB's least.
        control.run("SET GLOBAL max_connections=10").await?;
        let direct = Login::new(
            Target::Tcp(format!("127.0.0.1:{}", cluster.primary().port)),
            APP.user,
            APP.password,
        );
        let mut all = Vec::new();
        while let Ok(one) = Connection::open(&direct).await {
            all.push(one);
        }
        let login = ground
            .through("late_full", "late-full-3c1", Way::Tls)
            .database("app");
        let sql = format!("SET GLOBAL max_connections={before}");
        let freeing = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(all);
            control.run(&sql).await
        };
        let (logged_in, freed) = tokio::join!(ground.good("new account, full", &login), freeing);
        freed?;
        logged_in?.quit().await;
        Ok(())
    })
    .await
}

/// A payload as a packet.
async fn packet(
    socket: &mut (impl AsyncWrite + Unpin),
    sequence: u8,
    payload: &[u8],
) -> anyhow::Result<()> {
    let mut out = u32::try_from(payload.len())?.to_le_bytes()[..3].to_vec();
    out.push(sequence);
    out.extend_from_slice(payload);
    Ok(socket.write_all(&out).await?)
}

/// The next packet's number and payload; none at the end.
async fn next_packet(
    socket: &mut (impl AsyncRead + Unpin),
) -> anyhow::Result<Option<(u8, Vec<u8>)>> {
    let mut header = [0; 4];
    if socket.read_exact(&mut header).await.is_err() {
        return Ok(None);
    }
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
    let mut payload = vec![0; usize::try_from(length)?];
    socket.read_exact(&mut payload).await?;
    Ok(Some((header[3], payload)))
}

/// What a program gets to see that speaks the protocol from before 4.1.
async fn probed(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    user: &str,
    flags: u16,
    rest: &[u8],
) -> anyhow::Result<Vec<String>> {
    next_packet(&mut socket).await?.context("no greeting")?;
    let mut response = flags.to_le_bytes().to_vec();
    response.extend_from_slice(&[0, 0, 1]);
    response.extend_from_slice(user.as_bytes());
    response.push(0);
    response.extend_from_slice(rest);
    packet(&mut socket, 1, &response).await?;
    let mut seen = Vec::new();
    let shown = |answer: &Option<(u8, Vec<u8>)>| match answer {
        Some((sequence, payload)) => {
            let text = format!("{sequence} {}", payload.escape_ascii());
            // To a server, Millrace is at its address; the client is at a socket.
            text.replace("localhost", "127.0.0.1")
        }
        None => "end".to_owned(),
    };
    let answer = next_packet(&mut socket).await?;
    seen.push(shown(&answer));
    if answer.is_some_and(|(_, payload)| payload.first() == Some(&0)) {
        packet(&mut socket, 0, &[0x0e]).await?;
        seen.push(shown(&next_packet(&mut socket).await?));
        packet(&mut socket, 0, &[1]).await?;
    }
    seen.push(shown(&next_packet(&mut socket).await?));
    Ok(seen)
}

/// HAProxy's `option mysql-check user … pre-41`, and others like it.
pub(crate) async fn probes_from_before_4_1(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    ground.account("probe", plugin, "").await?;
    ground.account("probe_pw", plugin, "probe-pw-2b2").await?;
    let mut let_in = 0;
    // For a name that it does not know MariaDB asks as for any other account, at random.
    for user in ["probe", "probe_pw"] {
        for flags in [0x8000, 0, 1, 0x2000, 0x8008] {
            for rest in [&b"\0"[..], b"\0app\0", b"\x14aaaaaaaaaaaaaaaaaaaa"] {
                let primary = ground.cluster.primary();
                let tcp = async |port| TcpStream::connect(("127.0.0.1", port)).await;
                let direct = probed(tcp(primary.port).await?, user, flags, rest).await?;
                let through = probed(tcp(ground.proxy.port).await?, user, flags, rest).await?;
                let near = UnixStream::connect(&primary.socket).await?;
                let direct_near = probed(near, user, flags, rest).await?;
                let near = UnixStream::connect(&ground.socket).await?;
                let through_near = probed(near, user, flags, rest).await?;
                let what = format!("{user} {flags:x} {}", rest.escape_ascii());
                for (direct, through) in [(&direct, &through), (&direct_near, &through_near)] {
                    ensure!(
                        direct == through,
                        "{what}: direct {direct:?}, through {through:?}"
                    );
                    let_in += usize::from(direct.len() == 3);
                }
            }
        }
    }
    // MySQL lets none in.
    ensure!(
        (let_in > 0) == (ground.family == Family::MariaDb),
        "{let_in}"
    );
    Ok(())
}

/// MariaDB's clients from 11.4 on take a certificate that nobody vouches for where the login's OK shows that
/// the other side knows the password. They do not ask for it at 127.0.0.1.
pub(crate) async fn vouched_for(ground: &Ground) -> anyhow::Result<()> {
    let what = "the certificate by the password";
    if ground.family != Family::MariaDb || !skip_unless(Release::MariaDb11_8, what) {
        return Ok(());
    }
    let client = Binaries::find(Release::MariaDb11_8)?.client;
    let client = client.context("no client")?;
    // Of those behind the first, Millrace knows no password: by what the server keeps of it.
    let mut plugins = ground.plugins().to_vec();
    if ground.release == Release::MariaDb11_8 {
        plugins.push("parsec");
        ground
            .everywhere("INSTALL PLUGIN IF NOT EXISTS parsec SONAME 'auth_parsec'")
            .await?;
    }
    for plugin in plugins {
        let user = format!("vouched_{plugin}");
        ground.account(&user, plugin, "vouched-d04").await?;
        for password in ["vouched-d04", "vouched-d05", "vouched-d04"] {
            ground.secret(password);
            let mut command = tokio::process::Command::new(&client);
            command.args(["--no-defaults", "-h127.0.0.2", "-e", "\\s", "-u", &user]);
            command.arg(format!("-P{}", ground.proxy.port));
            command.arg(format!("-p{password}"));
            let output = command.kill_on_drop(true).output().await?;
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let expected = match password {
                "vouched-d04" => "cert is OK",
                _ => "ERROR 1045 (28000)",
            };
            ensure!(said.contains(expected), "{plugin}, {password}: {said}");
        }
    }
    Ok(())
}
