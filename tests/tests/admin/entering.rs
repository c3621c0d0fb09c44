//! Who gets in, how fast guesses are answered, and what a client may take.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster};
use millrace_tests::wire::{Connection, Login, Target, cap, com};
use mysql_async::prelude::{Query, Queryable, WithParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ground::{Ground, Operator, PASSWORD, expect, value};
use crate::serving;

async fn code(login: &Login) -> anyhow::Result<Option<u16>> {
    let (connection, reply) = Connection::try_open(login).await?;
    ensure!(
        connection.is_some() || reply.err().is_some(),
        "{:?}",
        reply.render()
    );
    Ok(reply.err().map(|error| error.code))
}

pub(crate) async fn logins(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "[auth]\nfailure_delay = \"0s\"\n").await?;
    let good = ground.login();
    for plugin in [
        None,
        Some("caching_sha2_password"),
        Some("mysql_native_password"),
    ] {
        for tls in [false, true] {
            for capabilities in [cap::MODERN, cap::LEGACY] {
                let login = Login {
                    plugin: plugin.map(str::to_owned),
                    tls,
                    capabilities,
                    ..good.clone()
                };
                let said = code(&login).await?;
                ensure!(said.is_none(), "{plugin:?}, TLS {tls}: {said:?}");
                let wrong = Login {
                    password: "wrong".to_owned(),
                    ..login.clone()
                };
                ensure!(code(&wrong).await? == Some(1045), "{plugin:?}, TLS {tls}");
            }
        }
    }
    let at_once = Login {
        tls: true,
        tls_at_once: true,
        ..good.clone()
    };
    ensure!(code(&at_once).await?.is_none(), "TLS in the same write");
    for (user, password) in [
        ("admin", ""),
        ("admin", "operators' ow"),
        ("Admin", PASSWORD),
        ("admin2", PASSWORD),
        ("", PASSWORD),
        ("", ""),
        (APP.user, APP.password),
    ] {
        let login = Login {
            user: user.to_owned(),
            password: password.to_owned(),
            ..good.clone()
        };
        ensure!(
            code(&login).await? == Some(1045),
            "{user:?} with {password:?}"
        );
    }
    // The operators' account is nobody on the listener for clients.
    let elsewhere = Login {
        target: ground.proxy.address(),
        ..good
    };
    ensure!(
        code(&elsewhere).await? == Some(1045),
        "on the listener for clients"
    );
    let log = std::fs::read_to_string(ground.proxy.log_path())?;
    ensure!(
        log.contains("an operator's login was refused"),
        "not logged: {log}"
    );
    ensure!(!log.contains(PASSWORD), "the password is in the log");
    Ok(())
}

pub(crate) async fn slowed(cluster: &Cluster) -> anyhow::Result<()> {
    const DELAY: Duration = Duration::from_secs(3);
    let more = "[auth]\nfailures_free = 1\nfailure_delay = \"3s\"\nfailure_delay_max = \"3s\"\n";
    let ground = Ground::start(cluster, "", more).await?;
    let to: SocketAddr = ([127, 0, 0, 1], ground.port).into();
    let from = |address: [u8; 4], password: &str| {
        Login::new(
            Target::TcpFrom(IpAddr::from(address), to),
            "admin",
            password,
        )
    };
    let time = async |login: &Login, expected: Option<u16>| {
        let begun = Instant::now();
        ensure!(code(login).await? == expected, "{login:?}");
        anyhow::Ok(begun.elapsed())
    };
    let bad = from([127, 0, 0, 1], "guess");
    let first = time(&bad, Some(1045)).await?;
    let elsewhere = from([127, 0, 0, 2], "guess");
    let good = from([127, 0, 0, 3], PASSWORD);
    let (second, other, good) = tokio::join!(
        time(&bad, Some(1045)),
        time(&elsewhere, Some(1045)),
        time(&good, None)
    );
    let (second, other, good) = (second?, other?, good?);
    ensure!(
        first < DELAY && second >= DELAY,
        "{first:?}, then {second:?}"
    );
    ensure!(other < DELAY && good < DELAY, "others: {other:?}, {good:?}");
    Ok(())
}

pub(crate) async fn tls(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "tls = \"required\"", "").await?;
    ensure!(code(&ground.login()).await? == Some(3159), "without TLS");
    let login = Login {
        tls: true,
        ..ground.login()
    };
    ensure!(code(&login).await?.is_none(), "with TLS");
    let ground = Ground::start(cluster, "tls = \"off\"", "").await?;
    ensure!(code(&ground.login()).await?.is_none(), "TLS is off");
    Ok(())
}

pub(crate) async fn off(cluster: &Cluster) -> anyhow::Result<()> {
    // Not there unless it is asked for, on no port that the process has.
    let proxy = serving::proxy(cluster, "").await?;
    let ports = listening(proxy.pid())?;
    let mut expected = vec![proxy.port, proxy.http_port];
    expected.sort_unstable();
    ensure!(ports == expected, "{ports:?} instead of {expected:?}");
    // A Unix socket will do as well.
    let launch = millrace_tests::harness::Launch::new()?.env("MILLRACE_ADMIN_PASSWORD", PASSWORD);
    let socket = launch.dir().join("admin.sock");
    let admin = format!(
        "[admin]\nlisten = \"{}\"\npassword_env = \"MILLRACE_ADMIN_PASSWORD\"\n",
        socket.display()
    );
    let text = serving::toml(&launch, cluster, &admin);
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(serving::READY).await?;
    let login = Login::new(Target::Unix(socket), "admin", PASSWORD);
    let mut operator = Operator(Connection::open(&login).await?);
    ensure!(operator.rows("SHOW SERVERS").await?.len() == 3);
    // What it cannot listen on ends the start, and says so.
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let launch = millrace_tests::harness::Launch::new()?.env("MILLRACE_ADMIN_PASSWORD", PASSWORD);
    let address = taken.local_addr()?;
    let admin =
        format!("[admin]\nlisten = \"{address}\"\npassword_env = \"MILLRACE_ADMIN_PASSWORD\"\n");
    let text = serving::toml(&launch, cluster, &admin);
    let mut proxy = launch.config(&text).spawn()?;
    let status = proxy.ended(Duration::from_secs(20)).await?;
    ensure!(!status.success(), "{status}");
    let said = format!("cannot listen on {address} for operators");
    ensure!(proxy.log().contains(&said), "{}", proxy.log());
    Ok(())
}

/// The TCP ports that a process listens on, ascending.
fn listening(pid: u32) -> anyhow::Result<Vec<u16>> {
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        if let Ok(target) = std::fs::read_link(entry?.path())
            && let Some(inode) = target.to_string_lossy().strip_prefix("socket:[")
        {
            sockets.push(inode.trim_end_matches(']').to_owned());
        }
    }
    let mut ports = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A: LISTEN.
            if fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]) {
                let port = fields[1].rsplit(':').next().context("no port")?;
                ports.push(u16::from_str_radix(port, 16)?);
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

pub(crate) async fn limits(cluster: &Cluster) -> anyhow::Result<()> {
    let section = "max_connections = 3";
    let more = "[limits]\nlogin_timeout = \"1s\"\n";
    let ground = Ground::start(cluster, section, more).await?;
    let address = format!("127.0.0.1:{}", ground.port);
    let mut operator = ground.open().await?;
    // One that says nothing, and one that says nonsense, take their places for a moment only.
    let silent = TcpStream::connect(&address).await?;
    let second = ground.open().await?;
    ensure!(
        code(&ground.login()).await? == Some(1040),
        "a fourth client"
    );
    drop(second);
    let mut babbling = TcpStream::connect(&address).await?;
    babbling.write_all(&[0xff; 4096]).await?;
    let mut answer = Vec::new();
    let read = babbling.read_to_end(&mut answer);
    // A reset is an end as well.
    let _ = tokio::time::timeout(Duration::from_secs(10), read).await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let (_third, _fourth) = (ground.open().await?, ground.open().await?);
    drop(silent);
    // A command that is too long ends its connection, with an error that says why.
    drop((_third, _fourth));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut long = ground.open().await?;
    let reply = long
        .0
        .query("SELECT '".to_owned() + &"x".repeat(100_000) + "'")
        .await;
    let told = reply.err().map(|error| error.code);
    // Or the reset came before what was told could be read.
    ensure!(told == Some(1153) || told.is_none(), "{:?}", reply.render());
    ensure!(reply.err().is_some() || reply.broken().is_some());
    // A client that reads nothing of what it asks for holds up nobody.
    let mut lazy = ground.open().await?;
    for _ in 0..2000 {
        if tokio::time::timeout(
            Duration::from_millis(200),
            lazy.0.send(com::QUERY, b"SHOW CONFIG"),
        )
        .await
        .is_err()
        {
            break;
        }
    }
    let begun = Instant::now();
    for _ in 0..20 {
        operator.rows("SHOW SERVERS").await?;
    }
    let mut client = Connection::open(&serving::app(ground.proxy.address())).await?;
    client.expect("SELECT 1").await?;
    ensure!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let resident = ground.proxy.resident_kib()?;
    ensure!(resident < 300 * 1024, "{resident} KiB");
    Ok(())
}

/// The command line clients that are here show what there is.
pub(crate) async fn command_line(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let cache = std::env::var_os("MILLRACE_CACHE").map(PathBuf::from);
    let cache =
        cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/millrace")));
    let mysql = cache.map(|cache| cache.join("mysql/bin/mysql"));
    let mut seen = 0;
    for program in [mysql, Some(PathBuf::from("mariadb"))]
        .into_iter()
        .flatten()
    {
        let output = tokio::process::Command::new(&program)
            .args(["--no-defaults", "-h127.0.0.1", "-uadmin", "--table"])
            .arg(format!("-P{}", ground.port))
            .env("MYSQL_PWD", PASSWORD)
            .args(["-e", "SELECT @@version_comment; SHOW SERVERS; SHOW HELP"])
            .stdin(Stdio::null())
            .output()
            .await;
        let Ok(output) = output else {
            eprintln!("{} is not here", program.display());
            continue;
        };
        seen += 1;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {errors}", program.display());
        for server in cluster.servers() {
            let address = format!("| 127.0.0.1:{} |", server.port);
            ensure!(text.contains(&address), "{}: {text}", program.display());
        }
        ensure!(text.contains("Millrace, for operators"), "{text}");
    }
    ensure!(seen > 0, "no command line client is here");
    Ok(())
}

/// A driver that is not ours reads the values with their types, by text and prepared.
pub(crate) async fn driver(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "").await?;
    let options = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(ground.port)
        .user(Some("admin"))
        .pass(Some(PASSWORD))
        .prefer_socket(false);
    let mut connection = mysql_async::Conn::new(options).await?;
    let text: Vec<(u32, String, Option<u64>, f64)> = "SHOW SERVERS"
        .with(())
        .map(&mut connection, shorten)
        .await?;
    let plain: Vec<(u32, String, Option<u64>, f64)> =
        "SHOW SERVERS".map(&mut connection, shorten).await?;
    ensure!(text.len() == 3, "{text:?}");
    ensure!(text == plain, "{text:?} prepared, {plain:?} by text");
    let one: Option<i64> = connection.query_first("SELECT 1").await?;
    ensure!(one == Some(1));
    let refused = connection.exec_drop("KILL ?", (7,)).await;
    let refused = refused.err().context("parameters are taken")?;
    ensure!(refused.to_string().contains("1295"), "{refused}");
    let error = connection.query_drop("DROP DATABASE app").await;
    let error = error.err().context("it is no server")?;
    ensure!(error.to_string().contains("1064"), "{error}");
    connection.reset().await?;
    connection.ping().await?;
    connection.disconnect().await?;
    // A client with its own idea of a database, and of what it sets.
    let mut login = ground.login();
    login.database = Some("app".to_owned());
    let mut operator = Operator(Connection::open(&login).await?);
    operator.0.expect("SET NAMES utf8mb4").await?;
    let row = operator.row("SELECT DATABASE() AS d, USER() AS u").await?;
    expect(&row, &[("d", "app"), ("u", "admin@127.0.0.1")])?;
    ensure!(operator.refused("SET GLOBAL read_only = 1").await? == 1238);
    ensure!(value(&operator.row("SELECT 1 + 0").await.unwrap_or_default(), "x").is_err());
    Ok(())
}

fn shorten(row: mysql_async::Row) -> (u32, String, Option<u64>, f64) {
    let id = row.get("id").unwrap_or(u32::MAX);
    let address = row.get("address").unwrap_or_default();
    // Not of another type: the conversion of a text would fail.
    let lag = row.get::<Option<u64>, _>("lag_s").flatten();
    let response = row.get::<Option<f64>, _>("response_ms").flatten();
    (id, address, lag, response.unwrap_or(-1.0))
}

/// Whatever bytes come, before the login and after it, the others do not notice.
pub(crate) async fn nonsense(cluster: &Cluster) -> anyhow::Result<()> {
    let ground = Ground::start(cluster, "", "[auth]\nfailure_delay = \"0s\"\n").await?;
    let address = format!("127.0.0.1:{}", ground.port);
    let mut operator = ground.open().await?;
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    for _ in 0..300 {
        let mut stream = TcpStream::connect(&address).await?;
        let length = roll(200) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| roll(256) as u8).collect();
        if roll(2) == 0 {
            // A header that fits what follows: it is read as a packet.
            let header = [length as u8, 0, 0, 1];
            bytes.splice(0..0, header);
        }
        // It may be shown out before it has said all.
        let _ = stream.write_all(&bytes).await;
        if roll(3) == 0 {
            let mut answer = [0; 256];
            let reading = stream.read(&mut answer);
            let _ = tokio::time::timeout(Duration::from_millis(20), reading).await;
        }
    }
    for round in 0..120 {
        // The places of those before are free again in a moment.
        let mut inside = loop {
            match ground.open().await {
                Ok(inside) => break inside,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        inside.0.login.timeout = Duration::from_millis(200);
        for _ in 0..4 {
            let length = roll(60) as usize;
            let body: Vec<u8> = (0..length).map(|_| roll(256) as u8).collect();
            let command = if round % 2 == 0 {
                round as u8
            } else {
                roll(256) as u8
            };
            if inside.0.send(command, &body).await.is_err() {
                break;
            }
        }
        // As a statement, and prepared: words in any order.
        let words = [
            "SHOW", "SERVERS", "WHERE", "'", "=", "KILL", "LIKE", "\\", "?", "@@", "9",
        ];
        let text: Vec<&str> = (0..roll(9)).map(|_| words[roll(11) as usize]).collect();
        let _ = inside.0.query(text.join(" ")).await;
        let _ = inside.0.prepare(text.join(" ").as_bytes()).await;
    }
    ensure!(operator.rows("SHOW SERVERS").await?.len() == 3);
    let mut client = Connection::open(&serving::app(ground.proxy.address())).await?;
    client.expect("SELECT 1").await?;
    let log = std::fs::read_to_string(ground.proxy.log_path())?;
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}
