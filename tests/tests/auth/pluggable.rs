//! Plugins that Millrace does not speak itself: `parsec`, and PAM with both of its clients' plugins. The servers'
//! own clients log in at the server and through Millrace, and are told the same.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use millrace_sandbox::{Binaries, Release};
use millrace_tests::netns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ground::{CATCH_UP, Ground, Way};

/// How a login of MariaDB's client ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// What the server says of the session.
    In(String),
    Refused(String),
}

/// `SELECT …` of a session, in words.
const WHO: &str = "SELECT SUBSTRING_INDEX(USER(), '@', 1), CURRENT_USER(), IFNULL(@@proxy_user, '-'), \
                   DATABASE(), (SELECT COUNT(*) FROM app.seen)";

/// A login with MariaDB's own client.
pub(crate) struct Client<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) release: Release,
    pub(crate) more: &'a [&'a str],
    /// Variables of its environment.
    pub(crate) env: Vec<(&'a str, String)>,
}

impl<'a> Client<'a> {
    /// One with nothing of its own.
    fn of(ground: &'a Ground, release: Release) -> Self {
        Client {
            ground,
            release,
            more: &[],
            env: Vec::new(),
        }
    }

    async fn log_in(
        &self,
        user: &str,
        password: &str,
        way: Way,
        direct: bool,
    ) -> anyhow::Result<Login> {
        let client = Binaries::find(self.release)?.client.context("no client")?;
        let primary = self.ground.cluster.primary();
        let mut command = tokio::process::Command::new(client);
        command.args(["--no-defaults", "-N", "-D", "app", "-e", WHO, "-u", user]);
        command.arg(format!("--password={password}"));
        match (way, direct) {
            (Way::Socket, true) => command.arg("-S").arg(&primary.socket),
            (Way::Socket, false) => command.arg("-S").arg(&self.ground.socket),
            (_, true) => command.args(["-h127.0.0.1", &format!("-P{}", primary.port)]),
            (_, false) => command.args(["-h127.0.0.1", &format!("-P{}", self.ground.proxy.port)]),
        };
        let is_new = self.release == Release::MariaDb11_8;
        match way {
            Way::Tls if is_new => command.args(["--ssl", "--disable-ssl-verify-server-cert"]),
            Way::Tls => command.arg("--ssl"),
            _ if is_new => command.arg("--skip-ssl"),
            _ => command.arg("--protocol=tcp"),
        };
        if way == Way::Socket {
            command.arg("--protocol=socket");
        }
        command.args(self.more).envs(self.env.iter().cloned());
        let output = command.kill_on_drop(true).output().await?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            return Ok(Login::In(said));
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.replace("'@'localhost'", "'@'127.0.0.1'");
        let error = said.lines().find(|line| line.starts_with("ERROR"));
        Ok(Login::Refused(error.unwrap_or(&said).to_owned()))
    }

    /// Both must end alike; answers how.
    pub(crate) async fn same(&self, user: &str, password: &str, way: Way) -> anyhow::Result<Login> {
        let direct = self.log_in(user, password, way, true).await?;
        let through = self.log_in(user, password, way, false).await?;
        let what = format!("{user}, {password:?}, {way:?}, {:?}", self.more);
        ensure!(
            direct == through,
            "{what}: direct {direct:?}, through {through:?}"
        );
        Ok(through)
    }

    async fn gets_in(&self, user: &str, password: &str, way: Way) -> anyhow::Result<String> {
        match self.same(user, password, way).await? {
            Login::In(who) => Ok(who),
            Login::Refused(why) => anyhow::bail!("{user}, {password:?}, {way:?}: {why}"),
        }
    }

    async fn is_refused(&self, user: &str, password: &str, way: Way) -> anyhow::Result<()> {
        let seen = self.same(user, password, way).await?;
        let denied = matches!(&seen, Login::Refused(why) if why.starts_with("ERROR 1045 "));
        ensure!(denied, "{user}, {password:?}, {way:?}: {seen:?}");
        Ok(())
    }
}

/// `parsec` of MariaDB 11.8: its own client, passwords right, wrong, empty and changed.
pub(crate) async fn parsec(ground: &Ground) -> anyhow::Result<()> {
    if ground.release != Release::MariaDb11_8 {
        return Ok(());
    }
    ground
        .everywhere("INSTALL PLUGIN IF NOT EXISTS parsec SONAME 'auth_parsec'")
        .await?;
    let account = |name: &str, password: &str| {
        format!("CREATE USER '{name}'@'%' IDENTIFIED VIA parsec USING PASSWORD('{password}')")
    };
    for secret in ["parsec-first-71c", "parsec-second-0a8", "parsec-wrong-f3e"] {
        ground.secret(secret);
    }
    ground
        .primary(&[
            "CREATE TABLE app.seen (n INT)".to_owned(),
            account("by_parsec", "parsec-first-71c"),
            account("by_nothing", ""),
            "GRANT SELECT ON app.* TO by_parsec@'%', by_nothing@'%'".to_owned(),
        ])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let client = Client::of(ground, Release::MariaDb11_8);
    for way in [Way::Plain, Way::Tls, Way::Socket] {
        for _ in 0..2 {
            client.gets_in("by_parsec", "parsec-first-71c", way).await?;
        }
        client
            .is_refused("by_parsec", "parsec-wrong-f3e", way)
            .await?;
        client.is_refused("by_parsec", "", way).await?;
        client.same("by_nothing", "", way).await?;
        client
            .is_refused("by_nothing", "parsec-wrong-f3e", way)
            .await?;
    }
    let changed = "SET PASSWORD FOR by_parsec@'%' = PASSWORD('parsec-second-0a8')";
    ground.primary(&[changed]).await?;
    for way in [Way::Plain, Way::Tls] {
        client
            .is_refused("by_parsec", "parsec-first-71c", way)
            .await?;
        client
            .gets_in("by_parsec", "parsec-second-0a8", way)
            .await?;
    }
    ground
        .primary(&["ALTER USER by_parsec@'%' ACCOUNT LOCK"])
        .await?;
    let seen = client
        .same("by_parsec", "parsec-second-0a8", Way::Plain)
        .await?;
    ensure!(matches!(seen, Login::Refused(_)), "locked: {seen:?}");
    ground.primary(&["DROP TABLE app.seen"]).await
}

/// Files in the places where PAM looks for its own, in this namespace.
fn users_of_the_machine(dir: &Path) -> anyhow::Result<()> {
    let services = dir.join("pam.d");
    std::fs::create_dir_all(&services)?;
    let unix = "auth required pam_unix.so nodelay\naccount required pam_unix.so\n";
    let mapped = "auth required pam_unix.so nodelay\nauth required pam_user_map.so\naccount required pam_permit.so\n";
    let anybody = "auth required pam_permit.so\naccount required pam_permit.so\n";
    for (name, text) in [("mill", unix), ("mapped", mapped), ("anybody", anybody)] {
        std::fs::write(services.join(name), text)?;
    }
    let hash = Command::new("openssl")
        .args(["passwd", "-6", "pam-right-6b2"])
        .output()?;
    let hash = String::from_utf8(hash.stdout)?;
    let add = |file: &str, lines: String| {
        let text = std::fs::read_to_string(file)?;
        let own = dir.join(file.rsplit('/').next().unwrap_or_default());
        std::fs::write(&own, text + &lines)?;
        netns::replace(file, &own)
    };
    let users = ["by_pam", "mapped_one", "mapped_two"];
    let passwd = users.map(|name| format!("{name}:x:65533:65533::/:/bin/false\n"));
    let shadow = users.map(|name| format!("{name}:{}:20000:0:99999:7:::\n", hash.trim()));
    add("/etc/passwd", passwd.concat())?;
    add("/etc/shadow", shadow.concat())?;
    let map = dir.join("user_map.conf");
    std::fs::write(&map, "mapped_one: reader\nmapped_two: reader\n")?;
    let security = dir.join("security");
    std::fs::create_dir_all(&security)?;
    std::fs::rename(&map, security.join("user_map.conf"))?;
    netns::replace("/etc/security", &security)?;
    netns::replace("/etc/pam.d", &services)
}

/// PAM that lets in and that does not, with MariaDB's two plugins of clients, and an account that PAM names.
pub(crate) async fn pam(release: Release) -> anyhow::Result<()> {
    let dir = std::env::temp_dir().join(format!("millrace-pam-{}", std::process::id()));
    users_of_the_machine(&dir)?;
    for cleartext in [false, true] {
        let cleartext = match cleartext {
            true => "--pam-use-cleartext-plugin=ON",
            false => "--pam-use-cleartext-plugin=OFF",
        };
        by_plugin(release, cleartext)
            .await
            .with_context(|| cleartext.to_owned())?;
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// A client that knows no password beforehand: whoever sits there types it when the server asks. Whether it gets in.
async fn types(port: u16, user: &str, typed: &str) -> anyhow::Result<bool> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
    packet(&mut socket).await.context("no greeting")?;
    // PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH.
    let mut login = 0x0008_8200_u32.to_le_bytes().to_vec();
    login.extend_from_slice(&0x0100_0000_u32.to_le_bytes());
    login.push(45);
    login.extend_from_slice(&[0; 23]);
    login.extend_from_slice(user.as_bytes());
    login.extend_from_slice(b"\0\0mysql_native_password\0");
    let mut answer = login;
    let mut asked = 0;
    for _ in 0..4 {
        let mut out = u32::try_from(answer.len())?.to_le_bytes()[..3].to_vec();
        out.push(asked + 1);
        out.extend_from_slice(&answer);
        socket.write_all(&out).await?;
        let (sequence, payload) = packet(&mut socket).await.context("no answer")?;
        match payload.first() {
            Some(0) => return Ok(true),
            Some(0xff) => return Ok(false),
            _ => {}
        }
        asked = sequence;
        answer = [typed.as_bytes(), b"\0"].concat();
    }
    anyhow::bail!("asked for ever")
}

async fn packet(socket: &mut TcpStream) -> anyhow::Result<(u8, Vec<u8>)> {
    let mut header = [0; 4];
    socket.read_exact(&mut header).await?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
    let mut payload = vec![0; usize::try_from(length)?];
    socket.read_exact(&mut payload).await?;
    Ok((header[3], payload))
}

/// An account has as many passwords as plugins, in whatever order; and the anonymous account has one for all names.
pub(crate) async fn second_passwords(release: Release) -> anyhow::Result<()> {
    let ground = Ground::start_with(release, &["--plugin-load-add=auth_ed25519"]).await?;
    let (one, two, wrong) = ("second-one-3c7", "second-two-8d1", "second-wrong-5a4");
    for secret in [one, two, wrong] {
        ground.secret(secret);
    }
    let ed25519 = |password: &str| format!("ed25519 USING PASSWORD('{password}')");
    let native = |password: &str| format!("mysql_native_password USING PASSWORD('{password}')");
    ground
        .primary(&[
            "CREATE TABLE app.seen (n INT)".to_owned(),
            format!(
                "CREATE USER late@'%' IDENTIFIED VIA {} OR {}",
                ed25519(one),
                native(two)
            ),
            format!(
                "CREATE USER early@'%' IDENTIFIED VIA {} OR {}",
                native(one),
                ed25519(two)
            ),
            format!("CREATE USER ''@'%' IDENTIFIED VIA {}", native(one)),
            "GRANT SELECT ON app.* TO late@'%', early@'%', ''@'%'".to_owned(),
        ])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let client = Client::of(&ground, release);
    for way in [Way::Plain, Way::Tls, Way::Socket] {
        // Each first, and after the other was learnt.
        for password in [two, one, two] {
            client.gets_in("late", password, way).await?;
            client.gets_in("early", password, way).await?;
        }
        client.gets_in("whoever", one, way).await?;
        for user in ["late", "early", "whoever"] {
            client.is_refused(user, wrong, way).await?;
        }
        client.is_refused("whoever", two, way).await?;
    }
    match release {
        Release::MariaDb11_8 => beside_parsec(&ground).await,
        _ => Ok(()),
    }
}

/// An account of `parsec` and of a password's hash, either first: each of its passwords is one.
async fn beside_parsec(ground: &Ground) -> anyhow::Result<()> {
    let (one, two, wrong) = ("second-one-3c7", "second-two-8d1", "second-wrong-5a4");
    ground
        .everywhere("INSTALL PLUGIN IF NOT EXISTS parsec SONAME 'auth_parsec'")
        .await?;
    let parsec = format!("parsec USING PASSWORD('{one}')");
    let native = format!("mysql_native_password USING PASSWORD('{two}')");
    ground
        .primary(&[
            format!("CREATE USER parsec_first@'%' IDENTIFIED VIA {parsec} OR {native}"),
            format!("CREATE USER parsec_last@'%' IDENTIFIED VIA {native} OR {parsec}"),
            "GRANT SELECT ON app.* TO parsec_first@'%', parsec_last@'%'".to_owned(),
        ])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let client = Client::of(ground, Release::MariaDb11_8);
    // Over TLS without a known CA, its client takes the server for the one that knows the first password.
    for way in [Way::Plain, Way::Socket] {
        for user in ["parsec_first", "parsec_last"] {
            for password in [one, two] {
                client.gets_in(user, password, way).await?;
            }
            client.is_refused(user, wrong, way).await?;
        }
    }
    Ok(())
}

async fn by_plugin(release: Release, cleartext: &str) -> anyhow::Result<()> {
    let ground = Ground::start_with(release, &["--plugin-load-add=auth_pam", cleartext]).await?;
    for secret in ["pam-right-6b2", "pam-wrong-9e4"] {
        ground.secret(secret);
    }
    ground
        .primary(&[
            "CREATE TABLE app.seen (n INT)",
            "CREATE USER by_pam@'%' IDENTIFIED VIA pam USING 'mill'",
            "CREATE USER anybody@'%' IDENTIFIED VIA pam USING 'anybody'",
            "CREATE USER reader@'%' IDENTIFIED BY 'reader-own-d2c'",
            "CREATE USER mapped_one@'%' IDENTIFIED VIA pam USING 'mapped'",
            "GRANT PROXY ON reader@'%' TO mapped_one@'%'",
            // As for a group: none of its members has an account of their own.
            "CREATE USER ''@'%' IDENTIFIED VIA pam USING 'mapped'",
            "GRANT PROXY ON reader@'%' TO ''@'%'",
            "GRANT SELECT ON app.* TO by_pam@'%', anybody@'%', reader@'%'",
        ])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let client = Client::of(&ground, Release::MariaDb);
    for way in [Way::Plain, Way::Tls, Way::Socket] {
        for _ in 0..2 {
            client.gets_in("by_pam", "pam-right-6b2", way).await?;
        }
        client.is_refused("by_pam", "pam-wrong-9e4", way).await?;
        // In clear text, the client leaves of its own accord.
        let seen = client.same("by_pam", "", way).await?;
        ensure!(matches!(seen, Login::Refused(_)), "{seen:?}");
        client.gets_in("anybody", "pam-wrong-9e4", way).await?;
        for mapped in ["mapped_one", "mapped_two"] {
            let who = client.gets_in(mapped, "pam-right-6b2", way).await?;
            ensure!(who.contains("reader@%"), "{who}");
            client.is_refused(mapped, "pam-wrong-9e4", way).await?;
        }
        client
            .is_refused("nobody_at_all", "pam-right-6b2", way)
            .await?;
    }
    for port in [ground.cluster.primary().port, ground.proxy.port] {
        for user in ["by_pam", "mapped_two"] {
            for (typed, right) in [("pam-right-6b2", true), ("pam-wrong-9e4", false)] {
                let is_in = types(port, user, typed).await?;
                ensure!(
                    is_in == right,
                    "{user} types {typed} at port {port}: {is_in}"
                );
            }
        }
    }
    Ok(())
}
