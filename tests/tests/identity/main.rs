//! Who gets in: accounts that ask for a host, TLS, a certificate or a Unix socket, from machines that are
//! not Millrace's. Nobody gets in through Millrace who does not get in directly.

mod random;
mod relayed;

mod leavers;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use leavers::leavers;
use millrace_sandbox::{Cluster, ClusterSpec, Family, MONITOR, Release, skip_unless};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::netns;
use millrace_tests::wire::{Certificate, Connection, Login, Target};
use relayed::relayed_changes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Addresses that the test's machine has besides its own: Millrace's to the network, and a client's.
const HERE: &str = "10.99.0.1";
const AWAY: &str = "10.99.0.2";

/// Set in a process of another user: the socket where it tries to log in.
const AS_ANOTHER: &str = "MILLRACE_TESTS_AS_ANOTHER";

/// Nobody's number in the operating system.
const NOBODY: u32 = 65_534;

fn run(program: &str, arguments: &str, dir: Option<&Path>) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    if let Some(dir) = dir {
        command.current_dir(dir);
    }
    let output = command.output().with_context(|| program.to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{program} {arguments}: {said}");
    Ok(())
}

/// A certificate of the cluster's own authority.
fn certificate(dir: &Path, name: &str) -> anyhow::Result<Certificate> {
    let file = |end: &str| dir.join(format!("{name}{end}"));
    let request = format!(
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /O=Mill/CN={name} \
         -keyout {name}-key.pem -out {name}.csr"
    );
    let sign = format!(
        "x509 -req -in {name}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 30 \
         -extfile client.ext -out {name}-cert.pem"
    );
    std::fs::write(dir.join("client.ext"), "extendedKeyUsage=clientAuth\n")?;
    run("openssl", &request, Some(dir))?;
    run("openssl", &sign, Some(dir))?;
    Ok(Certificate {
        cert: file("-cert.pem"),
        key: file("-key.pem"),
    })
}

/// A server of its own, seen from two addresses, and what stands before it.
struct Stage {
    cluster: Cluster,
    proxy: Proxy,
    socket: PathBuf,
}

/// How Millrace reaches the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Tcp,
    Socket,
    /// From an address that the server counts connect errors for; it allows few.
    Network,
}

/// `max_connect_errors` of [`Reach::Network`].
const ERRORS: usize = 5;

impl Stage {
    async fn start(
        release: impl Into<Release>,
        reach: Reach,
        monitor: bool,
    ) -> anyhow::Result<Stage> {
        Stage::start_with(release.into(), reach, monitor, "as_client", &[]).await
    }

    /// With further options of the server.
    async fn start_with(
        release: Release,
        reach: Reach,
        monitor: bool,
        mode: &str,
        options: &[&str],
    ) -> anyhow::Result<Stage> {
        let mut spec = ClusterSpec::new(release);
        spec.tls = true;
        spec.replicas = 0;
        spec.extra_args = vec!["--bind-address=0.0.0.0".to_owned()];
        spec.extra_args
            .extend(options.iter().map(ToString::to_string));
        if reach == Reach::Network {
            // Without names there is no cache of hosts, which holds their errors.
            spec.extra_args.extend([
                "--skip-name-resolve=0".to_owned(),
                format!("--max-connect-errors={ERRORS}"),
            ]);
        }
        let cluster = Cluster::up(spec).await?;
        let server = &cluster.servers()[0];
        let dir = cluster.tls_ca().context("no authority")?;
        let dir = dir.parent().context("no folder")?.to_owned();
        let own = certificate(&dir, "alice")?;
        let launch = Launch::new()?;
        let socket = launch.dir().join("sock");
        let address = match reach {
            Reach::Tcp => format!("127.0.0.1:{}", server.port),
            Reach::Socket => server.socket.display().to_string(),
            Reach::Network => format!("{HERE}:{}", server.port),
        };
        let monitor = match monitor {
            true => format!(
                "[monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n",
                MONITOR.user
            ),
            false => String::new(),
        };
        let text = format!(
            "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n\
             [[listen]]\naddress = \"{HERE}:{port}\"\n[[listen]]\naddress = \"{}\"\n\
             [[server]]\naddress = \"{address}\"\nrole = \"primary\"\n{monitor}\
             [tls]\ncert = \"{dir}/server-cert.pem\"\nkey = \"{dir}/server-key.pem\"\n\
             ca = \"{dir}/ca.pem\"\nclient_certificates = \"optional\"\n\
             [server_tls]\nmode = \"{mode}\"\nca = \"{dir}/ca.pem\"\ncert = \"{}\"\nkey = \"{}\"\n\
             [auth]\nfailure_delay = \"0s\"\n\
             [http]\nlisten = \"127.0.0.1:{}\"\n[log]\nlevel = \"debug\"\n",
            socket.display(),
            own.cert.display(),
            own.key.display(),
            launch.http_port,
            dir = dir.display(),
            port = launch.port,
        );
        let mut proxy = launch.config(&text).spawn()?;
        proxy.wait_ready(Duration::from_secs(30)).await?;
        Ok(Stage {
            cluster,
            proxy,
            socket,
        })
    }

    async fn root<S: AsRef<str>>(&self, statements: &[S]) -> anyhow::Result<()> {
        let name = self.cluster.servers()[0].name.clone();
        let mut control = self.cluster.control(&name).await?;
        for sql in statements {
            control.run(sql.as_ref()).await?;
        }
        control.close().await;
        // The monitor's word of it.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        Ok(())
    }

    /// To the server itself, or through Millrace; from an address of this machine.
    fn target(&self, from: &str, direct: bool) -> anyhow::Result<Target> {
        let port = match direct {
            true => self.cluster.servers()[0].port,
            false => self.proxy.port,
        };
        let from: IpAddr = from.parse()?;
        let to: IpAddr = if from.is_loopback() {
            from
        } else {
            HERE.parse()?
        };
        Ok(Target::TcpFrom(from, SocketAddr::new(to, port)))
    }
}

/// None: let in. Else the error's code and text, without the client's address.
async fn refusal(login: &Login) -> anyhow::Result<Option<(u16, String)>> {
    let (connection, reply) = Connection::try_open(login).await?;
    if let Some(connection) = connection.filter(|_| reply.err().is_none()) {
        connection.quit().await;
        return Ok(None);
    }
    let error = reply.err().context("neither in nor refused")?;
    Ok(Some((error.code, error.message.clone())))
}

fn created(family: Family, account: &str, password: &str, rest: &str) -> String {
    let identified = match (family, password) {
        (_, "") => String::new(),
        (Family::MySql, password) => {
            format!("IDENTIFIED WITH caching_sha2_password BY '{password}'")
        }
        (Family::MariaDb, password) => {
            format!("IDENTIFIED VIA mysql_native_password USING PASSWORD('{password}')")
        }
    };
    format!("CREATE USER {account} {identified} {rest}")
}

/// Inside the network of its own: the addresses are there.
fn addresses() -> anyhow::Result<()> {
    for address in [HERE, AWAY] {
        run("ip", &format!("addr add {address}/32 dev lo"), None)?;
    }
    // Servers keep no count of the errors of an address whose name they cannot ask for.
    let file = std::env::temp_dir().join(format!("millrace-hosts-{}", std::process::id()));
    netns::name_hosts(&file, &format!("{HERE} here.test\n{AWAY} away.test\n"))
}

async fn hosts_and_certificates(release: Release) -> anyhow::Result<()> {
    let family = release.family();
    let stage = Stage::start(release, Reach::Tcp, true).await?;
    let dir = stage.cluster.tls_ca().context("no authority")?;
    let dir = dir.parent().context("no folder")?.to_owned();
    let (alice, mallory) = (
        Certificate {
            cert: dir.join("alice-cert.pem"),
            key: dir.join("alice-key.pem"),
        },
        certificate(&dir, "mallory")?,
    );
    let accounts = [
        ("any@'%'", "right", ""),
        ("far@'10.99.0.%'", "right", ""),
        ("near@'127.0.0.1'", "right", ""),
        ("open@'127.0.0.1'", "", ""),
        ("two@'127.0.0.1'", "", ""),
        ("two@'%'", "right", ""),
        ("net@'127.0.0.0/255.0.0.0'", "right", ""),
        ("tls@'%'", "right", "REQUIRE SSL"),
        ("cert@'%'", "right", "REQUIRE X509"),
        ("subject@'%'", "right", "REQUIRE SUBJECT '/O=Mill/CN=alice'"),
        (
            "issuer@'%'",
            "right",
            "REQUIRE ISSUER '/CN=millrace-sandbox-CA'",
        ),
        ("nobody@'%'", "right", "REQUIRE ISSUER '/CN=another'"),
        ("blank@'%'", "", "REQUIRE X509"),
        // Its password has expired, and it is for others.
        ("late@'127.0.0.1'", "right", "PASSWORD EXPIRE"),
        // What is said of the row for Millrace's address is no word for clients of the other.
        ("pair@'127.0.0.1'", "right", "ACCOUNT LOCK"),
        ("pair@'10.99.0.%'", "other", ""),
    ];
    let made: Vec<String> = accounts
        .iter()
        .map(|(account, password, rest)| created(family, account, password, rest))
        .collect();
    stage.root(&made).await?;
    let callers = [
        ("plain", false, None),
        ("TLS", true, None),
        ("alice", true, Some(alice)),
        ("mallory", true, Some(mallory)),
    ];
    let (mut tried, mut let_in, mut stricter) = (0, 0, Vec::new());
    let mut names: Vec<&str> = accounts
        .iter()
        .filter_map(|(account, ..)| account.split('@').next())
        .collect();
    names.dedup();
    for name in names {
        for from in [AWAY, "127.0.0.1"] {
            for (caller, tls, certificate) in &callers {
                for password in ["right", "wrong", ""] {
                    let what = format!("{name} from {from} by {caller} with '{password}'");
                    let mut login = Login::new(stage.target(from, true)?, name, password);
                    login.tls = *tls;
                    login.certificate.clone_from(certificate);
                    let direct = refusal(&login).await.with_context(|| what.clone())?;
                    login.target = stage.target(from, false)?;
                    // Twice: what was learnt of the one must not help the next.
                    for _ in 0..2 {
                        let through = refusal(&login).await.with_context(|| what.clone())?;
                        ensure!(
                            through.is_some() || direct.is_none(),
                            "{what}: in through Millrace, directly {direct:?}"
                        );
                        let hint = " (Millrace: the servers let in '";
                        let plain = |why: &(u16, String)| {
                            let text = why.1.split(hint).next().unwrap_or_default();
                            // Whose address a server names differs.
                            (why.0, text.replace(AWAY, "127.0.0.1"))
                        };
                        let is_same = direct.as_ref().map(plain) == through.as_ref().map(plain);
                        ensure!(
                            direct.is_none() || is_same,
                            "{what}: directly {direct:?}, through Millrace {through:?}"
                        );
                        if let (None, Some(why)) = (&direct, &through) {
                            stricter.push(format!("{name} from {from}: {why:?}"));
                        }
                    }
                    tried += 1;
                    let_in += usize::from(direct.is_none());
                }
            }
        }
    }
    stricter.sort();
    stricter.dedup();
    // Accounts for other addresses than Millrace's cannot be had.
    let unexpected: Vec<_> = stricter
        .iter()
        .filter(|line| !line.starts_with("far from") && !line.starts_with("two from 10."))
        .collect();
    ensure!(
        unexpected.is_empty(),
        "refused only by Millrace: {unexpected:#?}"
    );
    println!("{release}: {tried} logins, {let_in} let in directly");
    // A session cannot become who would not get in either.
    let mut login = Login::new(stage.target(AWAY, false)?, "any", "right");
    let mut session = Connection::open(&login).await?;
    let reply = session.change_user("open", "", "", 45).await;
    ensure!(reply.err().is_some(), "COM_CHANGE_USER to open@127.0.0.1");
    login.user = "near".to_owned();
    let why = refusal(&login).await?.context("let in")?;
    ensure!(why.1.contains("[auth] hosts"), "{why:?}");
    Ok(())
}

/// Whose privileges a proxy user (`GRANT PROXY`) has, servers judge by the client's address and both accounts' hosts.
async fn proxy_users() -> anyhow::Result<()> {
    let stage = Stage::start(Family::MySql, Reach::Tcp, true).await?;
    let proxy =
        |name: &str| format!("CREATE USER {name} IDENTIFIED WITH sha256_password BY 'right'");
    stage
        .root(&[
            "SET GLOBAL check_proxy_users=1".to_owned(),
            "SET GLOBAL sha256_password_proxy_users=1".to_owned(),
            created(Family::MySql, "base@'10.99.0.%'", "other", ""),
            created(Family::MySql, "whole@'%'", "other", ""),
            created(Family::MySql, "here@'127.0.0.1'", "other", ""),
            proxy("remote@'%'"),
            proxy("pair_of@'%'"),
            proxy("at_home@'%'"),
            proxy("by_itself@'%'"),
            "GRANT PROXY ON base@'10.99.0.%' TO remote@'%'".to_owned(),
            "GRANT PROXY ON whole@'%' TO pair_of@'%'".to_owned(),
            "GRANT PROXY ON here@'127.0.0.1' TO at_home@'%'".to_owned(),
        ])
        .await?;
    let who = async |name: &str, from: &str, direct: bool| -> anyhow::Result<_> {
        let mut login = Login::new(stage.target(from, direct)?, name, "right");
        login.tls = true;
        let (connection, reply) = Connection::try_open(&login).await?;
        let Some(mut connection) = connection.filter(|_| reply.err().is_none()) else {
            let why = reply.err().context("neither in nor refused")?;
            return Ok(Err((why.code, why.message.clone())));
        };
        let reply = connection.query("SELECT CURRENT_USER()").await;
        let row = reply.rows().first().and_then(|row| row.first().cloned());
        connection.quit().await;
        Ok(Ok(row.flatten().context("no row")?))
    };
    for (name, from, directly, alike) in [
        ("remote", AWAY, "base@10.99.0.%", false),
        ("remote", "127.0.0.1", "remote@%", true),
        ("pair_of", AWAY, "whole@%", true),
        ("pair_of", "127.0.0.1", "whole@%", true),
        ("at_home", AWAY, "at_home@%", false),
        ("at_home", "127.0.0.1", "here@127.0.0.1", true),
        ("by_itself", AWAY, "by_itself@%", true),
    ] {
        let direct = who(name, from, true).await?;
        ensure!(direct == Ok(directly.to_owned()), "{name}: {direct:?}");
        for _ in 0..2 {
            match who(name, from, false).await? {
                Ok(user) => ensure!(alike && user == directly, "{name} from {from} is {user}"),
                Err((code, text)) => ensure!(
                    !alike && code == 1045 && text.contains("[auth] hosts"),
                    "{name} from {from}: {code} {text}"
                ),
            }
        }
    }
    Ok(())
}

/// A right password from an address that the account is not for is no wrong one, which would count at the server
/// (FAILED_LOGIN_ATTEMPTS) and lock out those who are there.
async fn right_and_elsewhere() -> anyhow::Result<()> {
    let stage = Stage::start(Family::MySql, Reach::Tcp, true).await?;
    let limits = "FAILED_LOGIN_ATTEMPTS 1 PASSWORD_LOCK_TIME 1";
    stage
        .root(&[created(
            Family::MySql,
            "lockable@'127.0.0.1'",
            "right",
            limits,
        )])
        .await?;
    let local = Login::new(stage.target("127.0.0.1", false)?, "lockable", "right");
    let why = refusal(&local).await?;
    ensure!(why.is_none(), "{why:?}");
    let away = Login::new(stage.target(AWAY, false)?, "lockable", "right");
    for _ in 0..4 {
        let why = refusal(&away).await?.context("let in")?;
        ensure!(why.1.contains("[auth] hosts"), "{why:?}");
    }
    let why = refusal(&local).await?;
    ensure!(why.is_none(), "locked: {why:?}");
    Ok(())
}

/// A wrong password from an address that the account is not for does not count for it either: directly, the server looks
/// at the host first, and nobody from elsewhere locks out those who are there.
async fn wrong_and_elsewhere(release: Release) -> anyhow::Result<()> {
    let family = release.family();
    let limited: &[&str] = match family {
        Family::MySql => &[],
        Family::MariaDb => &["--max-password-errors=2"],
    };
    let stage = Stage::start_with(release, Reach::Tcp, true, "as_client", limited).await?;
    let limits = match family {
        Family::MySql => "FAILED_LOGIN_ATTEMPTS 2 PASSWORD_LOCK_TIME 1",
        Family::MariaDb => "",
    };
    let accounts = ["new", "known", "twofold"];
    for name in accounts {
        let local = created(family, &format!("{name}@'127.0.0.1'"), "right", limits);
        stage.root(&[local]).await?;
    }
    let elsewhere = created(family, "twofold@'10.99.0.%'", "other", "");
    stage.root(&[elsewhere]).await?;
    let login = |name: &str, from: &str, password: &str, direct: bool| {
        let mut login = Login::new(stage.target(from, direct)?, name, password);
        login.shows_password = true;
        anyhow::Ok(login)
    };
    let why = refusal(&login("known", "127.0.0.1", "right", false)?).await?;
    ensure!(why.is_none(), "{why:?}");
    for name in accounts {
        for direct in [true, false] {
            for _ in 0..4 {
                let away = login(name, AWAY, "wrong", direct)?;
                let why = refusal(&away).await?.context("let in")?;
                // MariaDB locks `twofold@10.99.0.%`, which is its own, directly: 4150.
                ensure!([1045, 1130, 4150].contains(&why.0), "{name}: {why:?}");
            }
            let why = refusal(&login(name, "127.0.0.1", "right", direct)?).await?;
            ensure!(why.is_none(), "{name} is locked, direct {direct}: {why:?}");
        }
    }
    // From its own address it counts, as directly.
    for _ in 0..3 {
        let wrong = login("new", "127.0.0.1", "wrong", false)?;
        refusal(&wrong).await?.context("let in")?;
    }
    let why = refusal(&login("new", "127.0.0.1", "right", true)?).await?;
    ensure!(why.is_some(), "wrong passwords do not count any more");
    Ok(())
}

/// Files in the places where PAM looks for its own: it lets everybody in, as another account if its map says so.
fn maps_users() -> anyhow::Result<()> {
    let dir = std::env::temp_dir().join(format!("millrace-maps-{}", std::process::id()));
    let (services, security) = (dir.join("pam.d"), dir.join("security"));
    std::fs::create_dir_all(&services)?;
    std::fs::create_dir_all(&security)?;
    let service = "auth required pam_permit.so\nauth required pam_user_map.so\n\
                   account required pam_permit.so\n";
    std::fs::write(services.join("mapped"), service)?;
    let map = "wide: reader\nby_rows: reader\nto_far: far\nto_near: near\nwith_tls: reader\n\
               to_tls: tls_base\nwith_cert: reader\nto_cert: cert_base\ngroup: reader\n";
    std::fs::write(security.join("user_map.conf"), map)?;
    netns::replace("/etc/security", &security)?;
    netns::replace("/etc/pam.d", &services)
}

/// MariaDB's proxy users, whom PAM names: rights by the hosts of both accounts, and what their own row asks of TLS and
/// certificates (what the other asks does not count there).
async fn pam_proxy_users(release: Release) -> anyhow::Result<()> {
    let options = [
        "--plugin-load-add=auth_pam",
        "--pam-use-cleartext-plugin=ON",
    ];
    let stage = Stage::start_with(release, Reach::Tcp, true, "as_client", &options).await?;
    let dir = stage.cluster.tls_ca().context("no authority")?;
    let dir = dir.parent().context("no folder")?.to_owned();
    let alice = Certificate {
        cert: dir.join("alice-cert.pem"),
        key: dir.join("alice-key.pem"),
    };
    let by_password =
        |name: &str, rest: &str| format!("CREATE USER {name} IDENTIFIED BY 'other' {rest}");
    let by_pam = |name: &str, rest: &str| {
        format!("CREATE USER {name} IDENTIFIED VIA pam USING 'mapped' {rest}")
    };
    let proxy = |of: &str, name: &str| format!("GRANT PROXY ON {of} TO {name}");
    stage
        .root(&[
            by_password("reader@'%'", ""),
            by_password("far@'10.99.0.%'", ""),
            by_password("near@'127.0.0.1'", ""),
            by_password("tls_base@'%'", "REQUIRE SSL"),
            by_password("cert_base@'%'", "REQUIRE X509"),
            by_pam("wide@'%'", ""),
            by_pam("by_rows@'%'", ""),
            by_pam("by_rows@'10.99.0.%'", ""),
            by_pam("to_far@'%'", ""),
            by_pam("to_near@'%'", ""),
            by_pam("with_tls@'%'", "REQUIRE SSL"),
            by_pam("to_tls@'%'", ""),
            by_pam("with_cert@'%'", "REQUIRE X509"),
            by_pam("to_cert@'%'", ""),
            by_pam("''@'%'", ""),
            proxy("reader@'%'", "wide@'%'"),
            proxy("reader@'%'", "by_rows@'10.99.0.%'"),
            proxy("far@'10.99.0.%'", "to_far@'%'"),
            proxy("near@'127.0.0.1'", "to_near@'%'"),
            proxy("reader@'%'", "with_tls@'%'"),
            proxy("tls_base@'%'", "to_tls@'%'"),
            proxy("reader@'%'", "with_cert@'%'"),
            proxy("cert_base@'%'", "to_cert@'%'"),
            proxy("reader@'%'", "''@'%'"),
        ])
        .await?;
    let who = async |login: &Login| -> anyhow::Result<_> {
        let (connection, reply) = Connection::try_open(login).await?;
        let Some(mut connection) = connection.filter(|_| reply.err().is_none()) else {
            let why = reply.err().context("neither in nor refused")?;
            return Ok(Err(why.code));
        };
        let sql =
            "SELECT CONCAT_WS(' ', SUBSTRING_INDEX(USER(), '@', 1), CURRENT_USER(), @@proxy_user)";
        let reply = connection.query(sql).await;
        let row = reply.rows().first().and_then(|row| row.first().cloned());
        connection.quit().await;
        Ok(Ok(row.flatten().context("no row")?))
    };
    let (mut let_in, mut stricter) = (0, Vec::new());
    for name in [
        "wide",
        "by_rows",
        "to_far",
        "to_near",
        "with_tls",
        "to_tls",
        "with_cert",
        "to_cert",
        "group",
        "unmapped",
    ] {
        for from in [AWAY, "127.0.0.1"] {
            for (caller, tls, certificate) in [
                ("plain", false, None),
                ("TLS", true, None),
                ("alice", true, Some(&alice)),
            ] {
                let what = format!("{name} from {from} by {caller}");
                let mut login = Login::new(stage.target(from, true)?, name, "any");
                (login.tls, login.certificate) = (tls, certificate.cloned());
                let direct = who(&login).await.with_context(|| what.clone())?;
                login.target = stage.target(from, false)?;
                for _ in 0..2 {
                    let through = who(&login).await.with_context(|| what.clone())?;
                    if direct.is_ok() && through == Err(1045) {
                        stricter.push(format!("{name} from {from}"));
                    } else {
                        ensure!(
                            direct == through,
                            "{what}: directly {direct:?}, through Millrace {through:?}"
                        );
                    }
                }
                let_in += usize::from(direct.is_ok());
            }
        }
    }
    stricter.dedup();
    println!("{release}: {let_in} let in directly");
    // What is so for the client's address and not for Millrace's cannot be had.
    let expected = [
        format!("by_rows from {AWAY}"),
        format!("to_far from {AWAY}"),
    ];
    ensure!(
        stricter == expected,
        "refused only by Millrace: {stricter:?}"
    );
    Ok(())
}

/// The server's socket lets in Millrace's own user; over the network nobody is that.
async fn sockets(release: Release, monitor: bool) -> anyhow::Result<()> {
    let family = release.family();
    let stage = Stage::start(release, Reach::Socket, monitor).await?;
    let (name, other) = match family {
        Family::MySql => (
            "keeper",
            "CREATE USER keeper@localhost IDENTIFIED WITH auth_socket AS 'root'",
        ),
        Family::MariaDb => (
            "root",
            "ALTER USER root@localhost IDENTIFIED VIA unix_socket",
        ),
    };
    let mut made = vec![
        other.to_owned(),
        created(family, "near@localhost", "right", ""),
        created(family, "any@'%'", "right", ""),
    ];
    if family == Family::MySql {
        made.insert(
            0,
            "INSTALL PLUGIN auth_socket SONAME 'auth_socket.so'".to_owned(),
        );
    }
    stage.root(&made).await?;
    for round in 0..2 {
        for from in [AWAY, "127.0.0.1"] {
            for (tls, password) in [(false, ""), (false, "x"), (false, "right"), (true, "")] {
                let mut login = Login::new(stage.target(from, false)?, name, password);
                login.tls = tls;
                let why = refusal(&login).await?;
                let (code, _) = why.with_context(|| format!("{name} let in from {from}"))?;
                ensure!(matches!(code, 1045 | 1698), "{code}");
            }
            if monitor {
                let login = Login::new(stage.target(from, false)?, "near", "right");
                ensure!(
                    refusal(&login).await?.is_some(),
                    "near@localhost from {from}"
                );
            }
            let login = Login::new(stage.target(from, false)?, "any", "right");
            let why = refusal(&login).await?;
            ensure!(why.is_none(), "any from {from}: {why:?}");
        }
        // Millrace's own user over its socket is who the server would see as well.
        for (user, password) in [(name, ""), ("near", "right"), ("any", "right")] {
            let login = Login::new(Target::Unix(stage.socket.clone()), user, password);
            let why = refusal(&login).await?;
            ensure!(why.is_none(), "{user}, round {round}: {why:?}");
        }
        as_another(&stage.socket, name)?;
    }
    Ok(())
}

/// Nobody tells Millrace what accounts ask for: then its own certificate speaks for no client.
async fn unread(release: Release) -> anyhow::Result<()> {
    for mode in ["as_client", "preferred", "required", "verify_ca"] {
        let tried = unread_in(release, mode).await;
        tried.with_context(|| format!("server_tls.mode = {mode}"))?;
    }
    Ok(())
}

/// Where nobody can tell what the accounts ask for, a server sees TLS only if the client has it.
async fn unread_in(release: Release, mode: &str) -> anyhow::Result<()> {
    let family = release.family();
    let stage = Stage::start_with(release, Reach::Tcp, false, mode, &[]).await?;
    let made = [
        created(family, "cert@'%'", "right", "REQUIRE X509"),
        created(family, "tls@'%'", "right", "REQUIRE SSL"),
        created(family, "any@'%'", "right", ""),
    ];
    stage.root(&made).await?;
    let asks = matches!(mode, "required" | "verify_ca");
    for (name, plain, private) in [
        ("cert", false, false),
        ("tls", false, true),
        ("any", !asks, true),
    ] {
        // The second time, the password is known.
        for (tls, expected) in [(false, plain), (true, private), (false, plain)] {
            let mut login = Login::new(stage.target(AWAY, false)?, name, "right");
            login.tls = tls;
            let why = refusal(&login).await?;
            ensure!(why.is_none() == expected, "{name}, TLS {tls}: {why:?}");
            if let Some((_, text)) = why.filter(|_| name == "any") {
                ensure!(text.contains("[monitor]"), "{text}");
            }
        }
    }
    Ok(())
}

/// Runs this program as another user of the operating system, who must not be let in as `user`.
fn as_another(socket: &Path, user: &str) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    for dir in socket.ancestors().skip(1) {
        if dir.starts_with(std::env::temp_dir()) && dir != std::env::temp_dir() {
            run("chmod", &format!("o+x {}", dir.display()), None)?;
        }
    }
    run("chmod", &format!("o+rw {}", socket.display()), None)?;
    let copy = socket.with_file_name("another");
    std::fs::copy(program, &copy)?;
    run("chmod", &format!("755 {}", copy.display()), None)?;
    let output = Command::new("setpriv")
        .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")])
        .arg("--clear-groups")
        .arg(&copy)
        .args(["--exact", "another_user", "--nocapture"])
        .env(AS_ANOTHER, socket)
        .env("MILLRACE_TESTS_ANOTHER_NAME", user)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}{complaint}");
    ensure!(
        said.contains("refused with 1698") || said.contains("refused with 1045"),
        "{said}"
    );
    Ok(())
}

/// Nothing by itself: `sockets` runs it as another user.
#[tokio::test]
async fn another_user() -> anyhow::Result<()> {
    let (Some(socket), Ok(user)) = (
        std::env::var_os(AS_ANOTHER),
        std::env::var("MILLRACE_TESTS_ANOTHER_NAME"),
    ) else {
        return Ok(());
    };
    let login = Login::new(Target::Unix(socket.into()), &user, "");
    let (code, _) = refusal(&login).await?.context("let in")?;
    println!("refused with {code}");
    Ok(())
}

async fn all(release: Release, test: &str) -> anyhow::Result<()> {
    let family = release.family();
    if !skip_unless(release, test) || !netns::enter(test)? {
        return Ok(());
    }
    addresses()?;
    for monitor in [true, false] {
        if family == Family::MariaDb {
            let left = leavers(release, monitor).await;
            left.with_context(|| format!("leavers, monitor {monitor}"))?;
        }
    }
    relayed_changes(release)
        .await
        .context("relayed sessions that change")?;
    hosts_and_certificates(release).await?;
    if family == Family::MySql {
        proxy_users().await.context("proxy users")?;
        right_and_elsewhere()
            .await
            .context("a right password from elsewhere")?;
    }
    wrong_and_elsewhere(release)
        .await
        .context("a wrong password from elsewhere")?;
    unread(release).await?;
    for monitor in [true, false] {
        sockets(release, monitor).await?;
    }
    Ok(())
}

#[tokio::test]
async fn pam_proxies() -> anyhow::Result<()> {
    if !skip_unless(Release::MariaDb, "pam_proxies") || !netns::enter("pam_proxies")? {
        return Ok(());
    }
    addresses()?;
    maps_users()?;
    for release in [Release::MariaDb, Release::MariaDb11_8] {
        if skip_unless(release, "pam_proxies") {
            let tried = pam_proxy_users(release).await;
            tried.with_context(|| release.to_string())?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    all(Release::MariaDb, "mariadb").await
}

#[tokio::test]
async fn mariadb_11_8() -> anyhow::Result<()> {
    all(Release::MariaDb11_8, "mariadb_11_8").await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    all(Release::MySql, "mysql").await
}
