//! The modes of TLS towards the servers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, ClusterSpec, Family, MONITOR, Release};
use millrace_tests::checks::Checks;
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login};

use crate::ground::{Seen, monitor_toml};

pub(crate) struct TlsCase {
    pub(crate) mode: &'static str,
    /// Whether the proxy gets the cluster's own CA; else another one, or none where it needs none.
    pub(crate) right_ca: Option<bool>,
    /// What the server is called.
    pub(crate) host: &'static str,
    /// What the session's connection to the server uses; none where there can be none.
    pub(crate) encrypted: Option<[bool; 2]>,
    /// What the log says where there can be none.
    pub(crate) why: &'static str,
}

/// For clients without and with TLS.
pub(crate) fn tls_cases(servers_have_tls: bool) -> Vec<TlsCase> {
    let case = |mode, right_ca, host, encrypted| TlsCase {
        mode,
        right_ca,
        host,
        encrypted,
        why: "",
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
pub(crate) async fn other_ca(dir: &std::path::Path) -> anyhow::Result<PathBuf> {
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

pub(crate) async fn server_tls(
    cluster: &Cluster,
    ca: Option<&PathBuf>,
    case: &TlsCase,
) -> anyhow::Result<()> {
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
    let app = APP;
    let Some(encrypted) = case.encrypted else {
        let said = checked(&cluster.dir(), &text).await?;
        ensure!(said.contains(case.why), "check says: {said}");
        let server = format!("{}:{port}", case.host);
        return unreachable_server(&mut proxy, &server, case.why).await;
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
                cipher.is_empty() != encrypted,
                "client's TLS {tls}: cipher {cipher:?}"
            );
        }
    }
    Ok(())
}

/// What `check --connect` says of a configuration.
async fn checked(dir: &std::path::Path, text: &str) -> anyhow::Result<String> {
    let path = dir.join("checked.toml");
    std::fs::write(&path, text)?;
    let mut command = tokio::process::Command::new(millrace_tests::harness::program()?);
    command.arg("check").arg(&path).arg("--connect");
    command.env("MILLRACE_MONITOR_PASSWORD", MONITOR.password);
    let output = command.kill_on_drop(true).output().await?;
    ensure!(!output.status.success(), "it calls that good");
    Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
}

/// Millrace shows a certificate of X.509 version 1 of its own as servers show theirs: to clients, and to servers.
async fn own_of_version_1(cluster: &Cluster, dir: &std::path::Path) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // Servers take only what their own authority has signed.
    let ca = cluster.tls_ca().context("no authority")?;
    let status = tokio::process::Command::new("openssl")
        .args("x509 -req -in v1.csr -CAcreateserial -days 30 -out own.pem -CA".split(' '))
        .arg(&ca)
        .arg("-CAkey")
        .arg(ca.with_file_name("ca-key.pem"))
        .current_dir(dir)
        .stderr(std::process::Stdio::null())
        .status()
        .await?;
    ensure!(status.success(), "openssl: {status}");
    let shown = format!(
        "cert = \"{}\"\nkey = \"{}\"\n",
        dir.join("own.pem").display(),
        dir.join("v1.key").display()
    );
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:{}\"\n[[server]]\naddress = \"127.0.0.1:{}\"\n{}\
         [http]\nlisten = \"127.0.0.1:{}\"\n[tls]\n{shown}[server_tls]\nmode = \"required\"\n{shown}",
        launch.port,
        cluster.primary().port,
        monitor_toml(),
        launch.http_port,
    );
    let certificate = tokio::process::Command::new("openssl")
        .args("x509 -noout -text -in own.pem".split(' '))
        .current_dir(dir)
        .output()
        .await?;
    let certificate = String::from_utf8_lossy(&certificate.stdout).into_owned();
    ensure!(certificate.contains("Version: 1"), "{certificate}");
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(Duration::from_secs(30)).await?;
    let output = tokio::process::Command::new("openssl")
        .args(["s_client", "-starttls", "mysql", "-connect"])
        .arg(format!("127.0.0.1:{}", proxy.port))
        .stdin(std::process::Stdio::null())
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        said.contains("BEGIN CERTIFICATE") && !said.contains("Cipher is (NONE)"),
        "{said}"
    );
    let app = APP;
    let login = Login::new(proxy.address(), app.user, app.password);
    let reply = Connection::open(&login).await?.query("SELECT 1").await;
    ensure!(reply.scalar().is_some(), "{:?}", reply.render());
    Ok(())
}

/// The proxy cannot use its server: it says so and lets nobody in.
pub(crate) async fn unreachable_server(
    proxy: &mut Proxy,
    server: &str,
    why: &str,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let log = loop {
        let log = proxy.log();
        let mut lines = log.lines().filter(|line| line.contains(server));
        let is_said = |line: &str| line.contains("TLS") || line.contains("certificate");
        if lines.any(|line| is_said(line) && line.contains(why)) {
            break log;
        }
        ensure!(
            Instant::now() < deadline,
            "the log does not say that TLS is what keeps {server} away: {log}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let ready = proxy.http("/readyz").await?;
    ensure!(ready.starts_with("HTTP/1.1 503"), "{ready}; log: {log}");
    let app = APP;
    let seen = Seen::of(&Login::new(proxy.address(), app.user, app.password)).await?;
    ensure!(matches!(&seen, Seen::Refused { .. }), "{seen:?}");
    ensure!(proxy.alive(), "it has ended");
    Ok(())
}

pub(crate) async fn server_tls_modes(checks: &mut Checks, cluster: &Cluster) {
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

/// Servers with a certificate of X.509 version 1, which the old manuals had people make, and servers that offer
/// only finite-field DHE.
pub(crate) async fn old_servers(release: Release) -> anyhow::Result<()> {
    let dir = std::env::temp_dir().join(format!("millrace-old-{}-{release:?}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    for arguments in [
        "req -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -keyout v1.key -out v1.csr",
        "x509 -req -in v1.csr -signkey v1.key -days 30 -out v1.pem",
    ] {
        let status = tokio::process::Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(&dir)
            .stderr(std::process::Stdio::null())
            .status()
            .await?;
        ensure!(status.success(), "openssl {arguments}: {status}");
    }
    let case = |mode, encrypted, why| TlsCase {
        mode,
        right_ca: (mode == "verify_ca").then_some(true),
        host: "127.0.0.1",
        encrypted,
        why,
    };
    let old = [
        case("preferred", Some([true, true]), ""),
        case("as_client", Some([false, true]), ""),
        case("required", Some([true, true]), ""),
        case("verify_ca", None, "X.509 version 1"),
    ];
    let certificate = vec![
        format!("--ssl-cert={}", dir.join("v1.pem").display()),
        format!("--ssl-key={}", dir.join("v1.key").display()),
    ];
    let cluster = with_arguments(release, certificate, &old).await?;
    own_of_version_1(&cluster, &dir)
        .await
        .context("a certificate of its own")?;
    drop(cluster);
    if release.family() == Family::MariaDb {
        // MySQL 9 takes no such list.
        let ciphers = [
            "--tls-version=TLSv1.2",
            "--ssl-cipher=DHE-RSA-AES256-GCM-SHA384",
        ];
        let none = [
            case("preferred", Some([false, false]), ""),
            case("required", None, "finite-field DHE"),
        ];
        let mut arguments = ciphers.map(str::to_owned).to_vec();
        arguments.extend([
            format!("--ssl-cert={}", dir.join("v1.pem").display()),
            format!("--ssl-key={}", dir.join("v1.key").display()),
        ]);
        with_arguments(release, arguments, &none).await?;
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

async fn with_arguments(
    release: Release,
    arguments: Vec<String>,
    cases: &[TlsCase],
) -> anyhow::Result<Cluster> {
    let mut spec = ClusterSpec::new(release);
    (spec.tls, spec.replicas, spec.extra_args) = (true, 0, arguments);
    let cluster = Cluster::up(spec).await?;
    let ca = cluster.tls_ca();
    for case in cases {
        let ran = server_tls(&cluster, ca.as_ref(), case).await;
        ran.with_context(|| case.mode)?;
    }
    Ok(cluster)
}
