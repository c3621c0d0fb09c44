//! GSSAPI: accounts of MariaDB's plugin `gssapi`, with a Kerberos realm of the test's own. Who has a ticket, and
//! which, decides; the server's own client logs in at the server and through Millrace, and is told the same.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{Binaries, Release};
use millrace_tests::harness;

use crate::ground::{CATCH_UP, Ground, Way};
use crate::pluggable::{Client, Login};

const REALM: &str = "MILL.TEST";
/// The servers' principal.
const SERVICE: &str = "mariadb/sandbox.mill.test@MILL.TEST";

/// Where Debian's packages put programs that a user's path often lacks.
const FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/local/sbin"];

fn program(name: &str) -> Option<PathBuf> {
    let all = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    all.into_iter().find(|path| path.is_file())
}

/// What is not there of what the test needs.
fn missing() -> anyhow::Result<Option<&'static str>> {
    for (name, package) in [
        ("krb5kdc", "krb5-kdc"),
        ("kadmin.local", "krb5-admin-server"),
        ("kinit", "krb5-user"),
    ] {
        if program(name).is_none() {
            return Ok(Some(package));
        }
    }
    let server = Binaries::find(Release::MariaDb)?.server;
    let plugin = server
        .parent()
        .map(|dir| dir.join("../lib/mysql/plugin/auth_gssapi.so"));
    if !plugin.is_some_and(|file| file.is_file()) {
        return Ok(Some("mariadb-plugin-gssapi-server"));
    }
    let client = std::fs::read_dir("/usr/lib")?.flatten().any(|entry| {
        let file = "libmariadb3/plugin/auth_gssapi_client.so";
        entry.path().join(file).is_file()
    });
    Ok((!client).then_some("mariadb-plugin-gssapi-client"))
}

/// False where the test cannot be; says so, past the test runner's capture.
pub(crate) fn is_here() -> anyhow::Result<bool> {
    let Some(package) = missing()? else {
        return Ok(true);
    };
    let told = format!(
        "SKIPPED: GSSAPI: no {package} (Debian package): run scripts/install-deps.sh test\n"
    );
    std::io::stderr().write_all(told.as_bytes())?;
    Ok(false)
}

/// The variable by which Kerberos' libraries find their configuration.
pub(crate) const CONFIG: &str = "KRB5_CONFIG";

/// Where the realm's configuration is to be.
pub(crate) fn config() -> PathBuf {
    let folder = format!("millrace-kerberos-{}", std::process::id());
    std::env::temp_dir().join(folder).join("krb5.conf")
}

/// A realm with its own key distribution centre, which ends with it.
struct Realm {
    dir: PathBuf,
    centre: Option<Child>,
}

impl Drop for Realm {
    fn drop(&mut self) {
        if let Some(centre) = &mut self.centre {
            let _ = centre.kill();
            let _ = centre.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Realm {
    fn start() -> anyhow::Result<Realm> {
        let config = std::env::var_os(CONFIG).context("no configuration of Kerberos")?;
        let dir = Path::new(&config).parent().context("no folder")?.to_owned();
        std::fs::create_dir_all(&dir)?;
        let mut realm = Realm { dir, centre: None };
        let (at, port) = (realm.dir.display().to_string(), harness::free_port()?);
        let client = format!(
            "[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\nrdns = false\n\
             dns_canonicalize_hostname = false\n\
             [realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n}}\n"
        );
        std::fs::write(realm.dir.join("krb5.conf"), client)?;
        let centre = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\n{REALM} = {{\ndatabase_name = {at}/principals\nkey_stash_file = {at}/stash\n\
             acl_file = {at}/acl\n}}\n"
        );
        std::fs::write(realm.dir.join("kdc.conf"), centre)?;
        realm.run("kdb5_util", &["-P", "master", "create", "-s"], "")?;
        for (name, key) in [
            ("alice", "-pw alice-secret"),
            ("bob", "-pw bob-secret"),
            (SERVICE, "-randkey"),
        ] {
            realm.run(
                "kadmin.local",
                &["-q", &format!("addprinc {key} {name}")],
                "",
            )?;
        }
        let keytab = format!("ktadd -k {at}/keytab {SERVICE}");
        realm.run("kadmin.local", &["-q", &keytab], "")?;
        let mut centre = realm.command("krb5kdc")?;
        let centre = centre.arg("-n").stderr(Stdio::null()).spawn()?;
        realm.centre = Some(centre);
        Ok(realm)
    }

    fn command(&self, name: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(program(name).context("no such program")?);
        command
            .env("KRB5_KDC_PROFILE", self.dir.join("kdc.conf"))
            .stdout(Stdio::null());
        Ok(command)
    }

    fn run(&self, name: &str, words: &[&str], said: &str) -> anyhow::Result<()> {
        let mut command = self.command(name)?;
        let command = command
            .args(words)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        stdin.write_all(said.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name} {words:?}: {told}");
        Ok(())
    }

    /// A ticket of this user's, as `KRB5CCNAME` names it.
    async fn ticket(&self, user: &str) -> anyhow::Result<String> {
        let cache = format!(
            "FILE:{}",
            self.dir.join(format!("{user}.tickets")).display()
        );
        let password = format!("{user}-secret\n");
        // The centre has only just begun.
        for _ in 0..50 {
            if self.run("kinit", &["-c", &cache, user], &password).is_ok() {
                return Ok(cache);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.run("kinit", &["-c", &cache, user], &password)?;
        Ok(cache)
    }
}

/// Tickets of the account's own, of another's, and none.
pub(crate) async fn gssapi() -> anyhow::Result<()> {
    let realm = Realm::start()?;
    let keytab = format!("--gssapi-keytab-path={}/keytab", realm.dir.display());
    let principal = format!("--gssapi-principal-name={SERVICE}");
    let options = ["--plugin-load-add=auth_gssapi", &keytab, &principal];
    let ground = Ground::start_with(Release::MariaDb, &options).await?;
    ground
        .primary(&[
            "CREATE TABLE app.seen (n INT)",
            "CREATE USER alice@'%' IDENTIFIED VIA gssapi",
            "CREATE USER by_principal@'%' IDENTIFIED VIA gssapi USING 'alice@MILL.TEST'",
            "CREATE USER of_bob@'%' IDENTIFIED VIA gssapi USING 'bob@MILL.TEST'",
            "GRANT SELECT ON app.* TO alice@'%', by_principal@'%', of_bob@'%'",
        ])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let (alice, bob) = (realm.ticket("alice").await?, realm.ticket("bob").await?);
    let none = format!("FILE:{}/none", realm.dir.display());
    let with = |ticket: &str| Client {
        ground: &ground,
        release: Release::MariaDb,
        more: &[],
        env: vec![("KRB5CCNAME", ticket.to_owned())],
    };
    for way in [Way::Plain, Way::Tls, Way::Socket] {
        for (ticket, user, gets_in) in [
            (&alice, "alice", true),
            (&alice, "by_principal", true),
            (&alice, "of_bob", false),
            (&bob, "of_bob", true),
            (&bob, "alice", false),
            (&none, "alice", false),
            (&alice, "nobody_at_all", false),
        ] {
            let seen = with(ticket).same(user, "", way).await?;
            let is_in = matches!(seen, Login::In(_));
            ensure!(is_in == gets_in, "{user}, {ticket}, {way:?}: {seen:?}");
        }
        // A password is no ticket.
        let seen = with(&none).same("alice", "alice-secret", way).await?;
        ensure!(matches!(seen, Login::Refused(_)), "{way:?}: {seen:?}");
    }
    let relayed = "millrace_logins_total{outcome=\"relayed\"}";
    ensure!(ground.counter(relayed).await? >= 9.0, "not relayed");
    ground
        .primary(&["ALTER USER alice@'%' ACCOUNT LOCK"])
        .await?;
    let seen = with(&alice).same("alice", "", Way::Plain).await?;
    ensure!(matches!(seen, Login::Refused(_)), "locked: {seen:?}");
    Ok(())
}
