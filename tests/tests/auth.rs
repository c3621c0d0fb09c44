//! Logins with no user list: every account that may log in to the server may log in through the
//! proxy, and no other; the servers' own answers are the specification.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{Cluster, ClusterSpec, Family, MONITOR, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::harness::{self, Launch, Proxy};
use millrace_tests::wire::{Connection, Login, Reply, Target, cap};

const CATCH_UP: Duration = Duration::from_secs(20);

/// A cluster, a proxy that logs all it can, and every password that was used with it.
struct Ground {
    family: Family,
    proxy: Proxy,
    socket: PathBuf,
    cluster: Cluster,
    secrets: RefCell<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Tls,
    Socket,
}

const WAYS: [Way; 3] = [Way::Plain, Way::Tls, Way::Socket];

const FILE_SECRET: &str = "configured-by-file-7d1";
const ENV_SECRET: &str = "configured-by-env-9b4";

fn servers_toml(cluster: &Cluster) -> String {
    let servers = cluster.servers();
    let lines = servers
        .iter()
        .map(|s| format!("[[server]]\naddress = \"{}:{}\"\n", s.host, s.port));
    lines.collect()
}

fn monitor_toml() -> String {
    format!(
        "[monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n",
        MONITOR.user
    )
}

impl Ground {
    async fn start(family: Family) -> anyhow::Result<Self> {
        let mut spec = ClusterSpec::new(family);
        spec.tls = true;
        let cluster = Cluster::up(spec).await?;
        let launch = Launch::new()?;
        let socket = launch.dir().join("sock");
        let text = format!(
            "workers = 2\n[[listen]]\naddress = \"127.0.0.1:{}\"\n\
             [[listen]]\naddress = \"{}\"\n{}{}\
             [http]\nlisten = \"127.0.0.1:{}\"\n\
             [pool]\nmax_connections = 10\n\
             [auth]\nfailure_delay = \"0s\"\n\
             [[account]]\nname = \"by_file\"\npassword_file = \"by_file.password\"\n\
             [[account]]\nname = \"by_env\"\npassword_env = \"BY_ENV_PASSWORD\"\n\
             [log]\nlevel = \"trace\"\n",
            launch.port,
            socket.display(),
            servers_toml(&cluster),
            monitor_toml(),
            launch.http_port
        );
        let launch = launch
            .file("by_file.password", &format!("{FILE_SECRET}\n"))
            .env("BY_ENV_PASSWORD", ENV_SECRET)
            .env("RUST_LOG", "trace")
            .config(&text);
        let mut proxy = launch.spawn()?;
        proxy.wait_ready(Duration::from_secs(30)).await?;
        let ground = Self {
            family,
            proxy,
            socket,
            cluster,
            secrets: RefCell::default(),
        };
        for secret in [
            FILE_SECRET,
            ENV_SECRET,
            MONITOR.password,
            millrace_sandbox::APP.password,
        ] {
            ground.secret(secret);
        }
        Ok(ground)
    }

    fn secret(&self, secret: &str) -> String {
        self.secrets.borrow_mut().push(secret.to_owned());
        secret.to_owned()
    }

    /// The plugins that accounts of this family can have.
    fn plugins(&self) -> [&'static str; 2] {
        match self.family {
            Family::MySql => ["caching_sha2_password", "sha256_password"],
            Family::MariaDb => ["mysql_native_password", "ed25519"],
        }
    }

    fn identified(&self, plugin: &str, password: &str) -> String {
        match self.family {
            Family::MySql => format!("IDENTIFIED WITH {plugin} BY '{password}'"),
            Family::MariaDb => {
                format!("IDENTIFIED VIA {plugin} USING PASSWORD('{password}')")
            }
        }
    }

    /// Makes an account with everything on `app` and waits until every server has it.
    async fn account(&self, name: &str, plugin: &str, password: &str) -> anyhow::Result<()> {
        self.account_somewhere(name, plugin, password).await?;
        self.cluster.wait_replicas_caught_up(CATCH_UP).await
    }

    async fn account_somewhere(
        &self,
        name: &str,
        plugin: &str,
        password: &str,
    ) -> anyhow::Result<()> {
        if !password.is_empty() {
            self.secret(password);
        }
        let identified = self.identified(plugin, password);
        self.primary(&[
            format!("CREATE USER '{name}'@'%' {identified}"),
            format!("GRANT ALL ON app.* TO '{name}'@'%'"),
        ])
        .await
    }

    /// Runs statements as root on the primary.
    async fn primary<S: AsRef<str>>(&self, statements: &[S]) -> anyhow::Result<()> {
        let mut control = self.cluster.control(&self.cluster.primary().name).await?;
        for sql in statements {
            control.run(sql.as_ref()).await?;
        }
        control.close().await;
        Ok(())
    }

    async fn everywhere(&self, sql: &str) -> anyhow::Result<()> {
        for server in self.cluster.servers() {
            let mut control = self.cluster.control(&server.name).await?;
            control.run(sql).await?;
            control.close().await;
        }
        Ok(())
    }

    fn through(&self, user: &str, password: &str, way: Way) -> Login {
        let target = match way {
            Way::Socket => Target::Unix(self.socket.clone()),
            Way::Plain | Way::Tls => self.proxy.address(),
        };
        let mut login = Login::new(target, user, password);
        login.tls = way == Way::Tls;
        login
    }

    /// The same login at the primary.
    fn direct(&self, login: &Login) -> Login {
        let primary = self.cluster.primary();
        let target = match &login.target {
            Target::Unix(_) => Target::Unix(primary.socket),
            _ => Target::Tcp(format!("127.0.0.1:{}", primary.port)),
        };
        Login {
            target,
            ..login.clone()
        }
    }

    /// Logs in at the primary and through the proxy; both must end the same way.
    async fn same(&self, what: &str, login: &Login) -> anyhow::Result<Seen> {
        let direct = Seen::of(&self.direct(login)).await?;
        let through = Seen::of(login).await?;
        ensure!(
            direct == through,
            "{what}: direct {direct:?}, through {through:?}"
        );
        Ok(through)
    }

    /// A login through the proxy that must be good; answers who the server says it is.
    async fn good(&self, what: &str, login: &Login) -> anyhow::Result<Connection> {
        let mut connection = Connection::open(login)
            .await
            .with_context(|| what.to_owned())?;
        let reply = connection.query("SELECT CURRENT_USER()").await;
        let expected = format!("{}@%", login.user);
        ensure!(
            reply.scalar().as_deref() == Some(&expected),
            "{what}: {:?}",
            reply.render()
        );
        Ok(connection)
    }

    async fn counter(&self, line: &str) -> anyhow::Result<f64> {
        let metrics = self.proxy.metrics().await?;
        let value = metrics
            .lines()
            .find_map(|l| l.strip_prefix(line))
            .with_context(|| format!("no metric {line}"))?;
        Ok(value.trim().parse()?)
    }
}

/// How a login ended. A server calls a client at its Unix socket `localhost`, the proxy's own
/// client never; messages are compared without that.
#[derive(Debug, PartialEq)]
enum Seen {
    Refused {
        code: u16,
        state: String,
        message: String,
    },
    Broken,
    /// The account, database and character set that the server answered for.
    In(Vec<Option<String>>),
}

impl Seen {
    async fn of(login: &Login) -> anyhow::Result<Self> {
        let (connection, reply) = Connection::try_open(login).await?;
        if let Some(err) = reply.err() {
            return Ok(Self::Refused {
                code: err.code,
                state: err.state.clone(),
                message: err.message.replace("'@'localhost'", "'@'127.0.0.1'"),
            });
        }
        let Some(mut connection) = connection else {
            return Ok(Self::Broken);
        };
        let sql = "SELECT CURRENT_USER(), DATABASE(), @@character_set_client, \
                   @@collation_connection, @@character_set_results";
        let reply = connection.query(sql).await;
        if let Some(err) = reply.err() {
            anyhow::bail!("after the login: {err}");
        }
        connection.quit().await;
        Ok(Self::In(
            reply.rows().into_iter().next().unwrap_or_default(),
        ))
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    fn is_in(&self) -> bool {
        matches!(self, Self::In(_))
    }
}

/// What a client can see of a reply, without what differs from server to server.
fn answer(reply: &Reply) -> String {
    match (reply.err(), reply.broken()) {
        (Some(err), _) => err.to_string(),
        (None, Some(_)) => "broken".to_owned(),
        (None, None) => format!("{:?}", reply.rows()),
    }
}

// --- Getting in ---

/// Every plugin over every kind of connection: a first login with the server's cache cold, one
/// with the password known, one when the server has forgotten, and a wrong password after all.
async fn every_plugin(ground: &Ground) -> anyhow::Result<()> {
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
async fn warm_server(ground: &Ground) -> anyhow::Result<()> {
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

async fn empty_passwords(ground: &Ground) -> anyhow::Result<()> {
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
async fn auth_switch(ground: &Ground) -> anyhow::Result<()> {
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
async fn no_plugin_support(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
    ground
        .account("old_client", plugin, "old-client-0b9")
        .await?;
    let mut login = ground.through("old_client", "old-client-0b9", Way::Plain);
    login.capabilities = cap::LEGACY & !cap::PLUGIN_AUTH;
    login.plugin = Some("mysql_native_password".to_owned());
    ground.same("first", &login).await?;
    ground.same("second", &login).await?;
    Ok(())
}

async fn strange_passwords(ground: &Ground) -> anyhow::Result<()> {
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
async fn character_sets(ground: &Ground) -> anyhow::Result<()> {
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

async fn database_at_login(ground: &Ground) -> anyhow::Result<()> {
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

async fn delayed(
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
async fn late_replicas(ground: &Ground) -> anyhow::Result<()> {
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

// --- Not getting in ---

async fn refusals(ground: &Ground) -> anyhow::Result<()> {
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

async fn require_ssl(ground: &Ground) -> anyhow::Result<()> {
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

async fn password_changed(ground: &Ground) -> anyhow::Result<()> {
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
async fn changed_with_few_connections(ground: &Ground) -> anyhow::Result<()> {
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

async fn locked(ground: &Ground) -> anyhow::Result<()> {
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
async fn sandbox(login: &Login, statements: &[String]) -> anyhow::Result<Vec<String>> {
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

async fn expired(ground: &Ground) -> anyhow::Result<()> {
    for plugin in ground.plugins() {
        for (known, way) in [
            (false, Way::Plain),
            (true, Way::Plain),
            (false, Way::Tls),
            (true, Way::Tls),
        ] {
            let stem = format!("exp_{}_{known}_{way:?}", &plugin[..6]).to_lowercase();
            let names = [format!("{stem}_d"), format!("{stem}_t")];
            for name in &names {
                ground.account(name, plugin, "expired-11e").await?;
                let login = ground.through(name, "expired-11e", way);
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
                let mut direct = ground.direct(&ground.through(&names[0], "expired-11e", way));
                let mut through = ground.through(&names[1], "expired-11e", way);
                if aware {
                    direct.capabilities |= cap::EXPIRED_PASSWORDS;
                    through.capabilities |= cap::EXPIRED_PASSWORDS;
                }
                let direct = sandbox(&direct, &statements).await?;
                let through = sandbox(&through, &statements).await?;
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
async fn max_user_connections(ground: &Ground) -> anyhow::Result<()> {
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

// --- Another user ---

/// The same steps, each answer noted.
async fn change_user_steps(ground: &Ground, login: &Login) -> anyhow::Result<Vec<String>> {
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

async fn change_user(ground: &Ground) -> anyhow::Result<()> {
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

fn differences(what: &str, direct: &[String], through: &[String]) -> anyhow::Result<()> {
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

// --- Where the password cannot be learnt ---

/// libmysqlclient and some drivers break off rather than show their password under an RSA key
/// that they were not told to trust.
async fn refuses_to_show(ground: &Ground) -> anyhow::Result<()> {
    let plugin = ground.plugins()[0];
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
        ensure!(
            relayed >= 1.0 && pinned >= 1.0,
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
async fn configured(ground: &Ground) -> anyhow::Result<()> {
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

// --- What must not get out ---

/// Passwords in statements and everything before, in any form that a log could have them.
async fn no_secret_gets_out(ground: &Ground) -> anyhow::Result<()> {
    let admin = millrace_sandbox::ADMIN;
    let mut connection =
        Connection::open(&ground.through(admin.user, admin.password, Way::Plain)).await?;
    ground.secret("in-a-statement-3b8");
    ground.secret("in-a-wrong-statement-6f2");
    let identified = ground.identified(ground.plugins()[0], "in-a-statement-3b8");
    connection
        .expect(&format!("CREATE USER said {identified}"))
        .await?;
    connection
        .query("ALTER USER said IDENTIFID BY 'in-a-wrong-statement-6f2'")
        .await;
    connection.expect("DROP USER said").await?;
    let log = std::fs::read(ground.proxy.log_path())?;
    let log = String::from_utf8_lossy(&log);
    ensure!(log.contains("listening"), "the log is not complete: {log}");
    let metrics = ground.proxy.metrics().await?;
    let command_line = std::fs::read(format!("/proc/{}/cmdline", ground.proxy.pid()))?;
    let command_line = String::from_utf8_lossy(&command_line);
    let mut secrets = ground.secrets.borrow().clone();
    secrets.sort();
    secrets.dedup();
    ensure!(!secrets.is_empty(), "no secret was used");
    let mut found = Vec::new();
    for secret in &secrets {
        for form in forms(secret) {
            for (place, text) in [
                ("log", &*log),
                ("metrics", metrics.as_str()),
                ("command line", &*command_line),
            ] {
                if let Some(line) = text.lines().find(|line| line.contains(&form)) {
                    found.push(format!("{secret} in the {place}: {line}"));
                }
            }
        }
    }
    ensure!(
        found.is_empty(),
        "{} leaks: {}",
        found.len(),
        found.join("\n")
    );
    Ok(())
}

/// As text, as the debug form of bytes, as hexadecimal digits.
fn forms(secret: &str) -> [String; 3] {
    let bytes = secret.as_bytes();
    let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [secret.to_owned(), list.join(", "), hex]
}

// --- Guessing ---

/// Failures of one address are slowed down; other addresses, and good logins, are not.
async fn slowed_down(ground: &Ground) -> anyhow::Result<()> {
    const DELAY: Duration = Duration::from_secs(4);
    let launch = Launch::new()?;
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:{}\"\n{}{}[http]\nlisten = \"127.0.0.1:{}\"\n\
         [auth]\nfailures_free = 2\nfailure_delay = \"4s\"\nfailure_delay_max = \"4s\"\n",
        launch.port,
        servers_toml(&ground.cluster),
        monitor_toml(),
        launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(Duration::from_secs(30)).await?;
    ground
        .account("guessed", ground.plugins()[0], "guessed-right-5b")
        .await?;
    let to: SocketAddr = ([127, 0, 0, 1], proxy.port).into();
    let login = |from: [u8; 4], password: &str| {
        Login::new(Target::TcpFrom(IpAddr::from(from), to), "guessed", password)
    };
    let wrong = ground.secret("guessed-wrong-c5");
    let time = async |login: &Login| -> anyhow::Result<Duration> {
        let started = Instant::now();
        let seen = Seen::of(login).await?;
        ensure!(seen.code() == Some(1045), "{seen:?}");
        Ok(started.elapsed())
    };
    let bad = login([127, 0, 0, 1], &wrong);
    let elsewhere = login([127, 0, 0, 2], &wrong);
    let first = time(&bad).await?;
    time(&bad).await?;
    let (third, other, good) = tokio::join!(time(&bad), time(&elsewhere), async {
        let started = Instant::now();
        let seen = Seen::of(&login([127, 0, 0, 3], "guessed-right-5b")).await;
        (seen, started.elapsed())
    });
    let (third, other) = (third?, other?);
    ensure!(third >= DELAY, "the third failure took {third:?}");
    ensure!(first < DELAY, "the first failure took {first:?}");
    ensure!(other < third, "another address waited {other:?}");
    ensure!(
        good.0?.is_in() && good.1 < third,
        "a good login waited {:?}",
        good.1
    );
    // A good login from the same address is let in, and ends it.
    let started = Instant::now();
    let seen = Seen::of(&login([127, 0, 0, 1], "guessed-right-5b")).await?;
    ensure!(seen.is_in(), "{seen:?}");
    ensure!(
        started.elapsed() < DELAY,
        "the right password took {:?}",
        started.elapsed()
    );
    let after = time(&bad).await?;
    ensure!(after < DELAY, "a failure after a good login took {after:?}");
    Ok(())
}

// --- TLS towards the servers ---

struct TlsCase {
    mode: &'static str,
    /// Whether the proxy gets the cluster's own CA; else another one, or none where it needs none.
    right_ca: Option<bool>,
    /// What the server is called.
    host: &'static str,
    /// What the session's connection to the server uses; none where there can be none.
    encrypted: Option<[bool; 2]>,
}

/// For clients without and with TLS.
fn tls_cases(servers_have_tls: bool) -> Vec<TlsCase> {
    let case = |mode, right_ca, host, encrypted| TlsCase {
        mode,
        right_ca,
        host,
        encrypted,
    };
    let plain = Some([false, false]);
    let private = Some([true, true]);
    if !servers_have_tls {
        return vec![
            case("disabled", None, "127.0.0.1", plain),
            case("preferred", None, "127.0.0.1", plain),
            case("required", None, "127.0.0.1", None),
            case("verify_ca", Some(true), "127.0.0.1", None),
        ];
    }
    vec![
        case("disabled", None, "127.0.0.1", plain),
        case("preferred", None, "127.0.0.1", private),
        case("required", None, "127.0.0.1", private),
        case("as_client", None, "127.0.0.1", Some([false, true])),
        case("verify_ca", Some(true), "127.0.0.1", private),
        case("verify_ca", Some(false), "127.0.0.1", None),
        // A name that is not in the certificate.
        case("verify_ca", Some(true), "127.1", private),
        case("verify_identity", Some(true), "127.0.0.1", private),
        case("verify_identity", Some(true), "localhost", private),
        case("verify_identity", Some(true), "127.1", None),
        case("verify_identity", Some(false), "127.0.0.1", None),
    ]
}

/// A CA that signed nothing here.
async fn other_ca(dir: &std::path::Path) -> anyhow::Result<PathBuf> {
    let path = dir.join("other-ca.pem");
    if !path.exists() {
        let status = tokio::process::Command::new("openssl")
            .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=another -keyout".split(' '))
            .arg(dir.join("other-key.pem"))
            .arg("-out")
            .arg(&path)
            .stderr(std::process::Stdio::null())
            .status()
            .await?;
        ensure!(status.success(), "openssl: {status}");
    }
    Ok(path)
}

async fn server_tls(cluster: &Cluster, ca: Option<&PathBuf>, case: &TlsCase) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let port = cluster.primary().port;
    let ca = match (case.right_ca, ca) {
        (Some(true), Some(ca)) => Some(ca.clone()),
        (Some(_), _) => Some(other_ca(&cluster.dir()).await?),
        (None, _) => None,
    };
    let ca = ca.map_or_else(String::new, |ca| format!("ca = \"{}\"\n", ca.display()));
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:{}\"\n[[server]]\naddress = \"{}:{port}\"\n{}\
         [http]\nlisten = \"127.0.0.1:{}\"\n[server_tls]\nmode = \"{}\"\n{ca}",
        launch.port,
        case.host,
        monitor_toml(),
        launch.http_port,
        case.mode
    );
    let mut proxy = launch.config(&text).spawn()?;
    let app = millrace_sandbox::APP;
    let Some(encrypted) = case.encrypted else {
        return unreachable_server(&mut proxy).await;
    };
    proxy.wait_ready(Duration::from_secs(30)).await?;
    for (tls, encrypted) in [false, true].into_iter().zip(encrypted) {
        let mut login = Login::new(proxy.address(), app.user, app.password);
        login.tls = tls;
        let mut connection = Connection::open(&login).await.context("login")?;
        for sql in [
            "SHOW STATUS LIKE 'Ssl_cipher'",
            "BEGIN",
            "SHOW STATUS LIKE 'Ssl_cipher'",
        ] {
            let reply = connection.query(sql).await;
            let rows = reply.rows();
            let Some(row) = rows.first() else { continue };
            let cipher = row.get(1).cloned().flatten().unwrap_or_default();
            ensure!(
                !cipher.is_empty() == encrypted,
                "client's TLS {tls}: cipher {cipher:?}"
            );
        }
    }
    Ok(())
}

/// The proxy cannot use its server: it says so and lets nobody in.
async fn unreachable_server(proxy: &mut Proxy) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let log = loop {
        let log = proxy.log();
        let mut lines = log.lines().filter(|line| line.contains("is down"));
        if lines.any(|line| line.contains("TLS") || line.contains("certificate")) {
            break log;
        }
        ensure!(
            Instant::now() < deadline,
            "the log does not say that the server is down for TLS: {log}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let ready = proxy.http("/readyz").await?;
    ensure!(ready.starts_with("HTTP/1.1 503"), "{ready}; log: {log}");
    let app = millrace_sandbox::APP;
    let seen = Seen::of(&Login::new(proxy.address(), app.user, app.password)).await?;
    ensure!(matches!(&seen, Seen::Refused { .. }), "{seen:?}");
    ensure!(proxy.alive(), "it has ended");
    Ok(())
}

async fn server_tls_modes(checks: &mut Checks, cluster: &Cluster) {
    let ca = cluster.tls_ca();
    for case in tls_cases(ca.is_some()) {
        let name = format!(
            "server_tls {}{} as {}, servers with TLS: {}",
            case.mode,
            match case.right_ca {
                Some(true) => " with the right CA",
                Some(false) => " with another CA",
                None => "",
            },
            case.host,
            ca.is_some(),
        );
        checks
            .run(&name, server_tls(cluster, ca.as_ref(), &case))
            .await;
    }
}

// --- The suites ---

async fn accounts(family: Family) -> anyhow::Result<()> {
    let ground = Ground::start(family).await?;
    let mut checks = Checks::new(format!("auth, {family}"));
    checks.run("every plugin", every_plugin(&ground)).await;
    checks.run("a warm server", warm_server(&ground)).await;
    checks
        .run("empty passwords", empty_passwords(&ground))
        .await;
    checks.run("auth switch", auth_switch(&ground)).await;
    checks
        .run("clients without plugins", no_plugin_support(&ground))
        .await;
    checks
        .run("strange passwords", strange_passwords(&ground))
        .await;
    checks.run("character sets", character_sets(&ground)).await;
    checks
        .run("database at login", database_at_login(&ground))
        .await;
    checks.run("late replicas", late_replicas(&ground)).await;
    checks.run("refusals", refusals(&ground)).await;
    checks.run("require ssl", require_ssl(&ground)).await;
    checks
        .run("password changed", password_changed(&ground))
        .await;
    checks
        .run(
            "password changed, few connections",
            changed_with_few_connections(&ground),
        )
        .await;
    checks.run("locked", locked(&ground)).await;
    checks.run("expired", expired(&ground)).await;
    checks
        .run("max_user_connections", max_user_connections(&ground))
        .await;
    checks.run("change user", change_user(&ground)).await;
    checks
        .run("refuses to show", refuses_to_show(&ground))
        .await;
    checks.run("configured", configured(&ground)).await;
    checks.run("slowed down", slowed_down(&ground)).await;
    checks
        .run("no secret gets out", no_secret_gets_out(&ground))
        .await;
    server_tls_modes(&mut checks, &ground.cluster).await;
    drop(ground);
    if family == Family::MariaDb {
        let mut spec = ClusterSpec::new(family);
        spec.replicas = 0;
        let without = Cluster::up(spec).await?;
        server_tls_modes(&mut checks, &without).await;
    }
    checks.finish()
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MariaDb, "auth") {
        return Ok(());
    }
    accounts(Family::MariaDb).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MySql, "auth") {
        return Ok(());
    }
    accounts(Family::MySql).await
}
