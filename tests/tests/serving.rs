//! Serving: how it is started, where clients may connect, which server runs what, what limits
//! say, how it follows its servers and how it ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::{APP, Cluster, ClusterSpec, Family, MONITOR, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::harness::{self, Launch, Proxy};
use millrace_tests::wire::{Connection, Login, Target, cap};
use rustix::process::Signal;

const READY: Duration = Duration::from_secs(30);
/// The longest that following the servers may take: probes come once a second, and the machine
/// that this runs on may be slow.
const FOLLOWED: Duration = Duration::from_secs(20);

/// A read that tells which server ran it, see [`mark`].
const QUICK: &str = "SELECT port FROM app.place";
/// The same, long enough to be under way when its server goes.
const SLOW: &str = "SELECT port, SLEEP(0.1) FROM app.place";

/// Gives every server a row of its own. What a server says of itself (`@@port`) will not do: the
/// primary is asked for that.
async fn mark(cluster: &Cluster) -> anyhow::Result<()> {
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        let mysql = cluster.family() == Family::MySql;
        let locked = mysql && server.port != cluster.primary().port;
        if locked {
            control.run("SET GLOBAL super_read_only=OFF").await?;
        }
        for sql in [
            "SET sql_log_bin=0",
            "CREATE TABLE app.place (port INT)",
            "INSERT INTO app.place VALUES (@@port)",
        ] {
            control.run(sql).await?;
        }
        if locked {
            control.run("SET GLOBAL super_read_only=ON").await?;
        }
        control.close().await;
    }
    Ok(())
}

/// A configuration for the whole cluster with further lines.
fn toml(launch: &Launch, cluster: &Cluster, more: &str) -> String {
    let servers: String = cluster
        .servers()
        .iter()
        .map(|s| format!("[[server]]\naddress = \"127.0.0.1:{}\"\n", s.port))
        .collect();
    format!(
        "workers = 2\n[[listen]]\naddress = \"127.0.0.1:{}\"\n{servers}\
         [monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n{more}",
        launch.port, MONITOR.user, launch.http_port
    )
}

async fn proxy(cluster: &Cluster, more: &str) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, more);
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    wait_fit(&proxy, cluster, running_replicas(cluster)).await?;
    Ok(proxy)
}

fn running_replicas(cluster: &Cluster) -> usize {
    let replicas = cluster.replicas();
    replicas.iter().filter(|r| r.pid.is_some()).count()
}

fn app(target: Target) -> Login {
    Login::new(target, APP.user, APP.password).database("app")
}

fn tcp(port: u16) -> Target {
    Target::Tcp(format!("127.0.0.1:{port}"))
}

/// The server that runs this statement, by its port.
async fn port_of(connection: &mut Connection) -> anyhow::Result<u16> {
    let reply = connection.expect(QUICK).await?;
    Ok(reply.scalar().context("no port")?.parse()?)
}

/// The servers that run so many reads of a client.
async fn ports_of(connection: &mut Connection, times: usize) -> anyhow::Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for _ in 0..times {
        ports.insert(port_of(connection).await?);
    }
    Ok(ports)
}

fn replica_ports(cluster: &Cluster) -> BTreeSet<u16> {
    cluster.replicas().iter().map(|r| r.port).collect()
}

async fn gauge(proxy: &Proxy, name: &str, port: u16) -> anyhow::Result<Option<f64>> {
    let metrics = proxy.metrics().await?;
    let start = format!("{name}{{server=\"127.0.0.1:{port}\"}} ");
    let line = metrics.lines().find_map(|l| l.strip_prefix(&start));
    Ok(line.map(str::parse).transpose()?)
}

/// Waits until so many replicas take reads.
async fn wait_fit(proxy: &Proxy, cluster: &Cluster, replicas: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOLLOWED;
    loop {
        let mut fit = 0;
        for port in replica_ports(cluster) {
            fit += usize::from(gauge(proxy, "millrace_server_fit", port).await? == Some(1.0));
        }
        if fit == replicas {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{fit} replicas take reads instead of {replicas}; log: {}",
            proxy.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

// --- How it is started ---

async fn by_flags(cluster: &Cluster) -> anyhow::Result<()> {
    let (launch, second) = (Launch::new()?, Launch::new()?);
    let socket = launch.dir().join("sock");
    let v6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let mut args = vec![
        "--listen".to_owned(),
        format!("127.0.0.1:{}", launch.port),
        "--listen".to_owned(),
        socket.display().to_string(),
        "--monitor-user".to_owned(),
        MONITOR.user.to_owned(),
        "--http".to_owned(),
        format!("127.0.0.1:{}", launch.http_port),
    ];
    for server in cluster.servers() {
        args.extend(["--server".to_owned(), format!("127.0.0.1:{}", server.port)]);
    }
    if v6 {
        args.extend(["--listen".to_owned(), format!("[::1]:{}", second.port)]);
    } else {
        eprintln!("SKIPPED: the listener on ::1: this machine has no IPv6");
    }
    let mut proxy = launch.args(&args).spawn()?;
    proxy.wait_ready(READY).await?;
    let mut targets = vec![proxy.address(), Target::Unix(socket)];
    if v6 {
        targets.push(Target::Tcp(format!("[::1]:{}", second.port)));
    }
    for target in targets {
        let what = format!("{target:?}");
        let mut connection = Connection::open(&app(target)).await.context(what)?;
        connection
            .expect("CREATE TABLE IF NOT EXISTS by_flags (x INT)")
            .await?;
        connection.expect("INSERT INTO by_flags VALUES (1)").await?;
        connection.expect("SELECT COUNT(*) FROM by_flags").await?;
        connection.quit().await;
    }
    Ok(())
}

/// The monitor's password from a file; the environment's is wrong.
async fn monitor_password_file(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let file = launch.dir().join("monitor.password").display().to_string();
    let (listen, http) = (
        format!("127.0.0.1:{}", launch.port),
        format!("127.0.0.1:{}", launch.http_port),
    );
    let mut args = vec![
        "--listen",
        &listen,
        "--http",
        &http,
        "--monitor-user",
        MONITOR.user,
    ];
    args.extend(["--monitor-password-file", &file]);
    let servers: Vec<String> = cluster
        .servers()
        .iter()
        .map(|s| format!("127.0.0.1:{}", s.port))
        .collect();
    for server in &servers {
        args.extend(["--server", server]);
    }
    let launch = launch
        .args(&args)
        .env("MILLRACE_MONITOR_PASSWORD", "not this one")
        .file("monitor.password", &format!("{}\n", MONITOR.password));
    let mut proxy = launch.spawn()?;
    proxy.wait_ready(READY).await?;
    wait_fit(&proxy, cluster, running_replicas(cluster)).await?;
    Connection::open(&app(proxy.address())).await?.quit().await;
    Ok(())
}

/// One server and nobody to ask it for its role: it runs everything.
async fn without_monitor(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let args = [
        "--listen".to_owned(),
        format!("127.0.0.1:{}", launch.port),
        "--server".to_owned(),
        format!("127.0.0.1:{}", cluster.primary().port),
        "--http".to_owned(),
        format!("127.0.0.1:{}", launch.http_port),
    ];
    let mut proxy = launch.args(&args).spawn()?;
    proxy.wait_ready(READY).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    for sql in [
        "CREATE TABLE IF NOT EXISTS alone (x INT)",
        "INSERT INTO alone VALUES (1)",
        "SELECT * FROM alone",
        "BEGIN",
        "UPDATE alone SET x=2",
        "SELECT * FROM alone",
        "COMMIT",
        "DROP TABLE alone",
    ] {
        connection.expect(sql).await?;
    }
    ensure!(
        port_of(&mut connection).await? == cluster.primary().port,
        "another server"
    );
    Ok(())
}

/// Several servers and no monitor: it says what to do and does not start.
async fn monitor_is_missing(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let mut args = vec!["--listen".to_owned(), format!("127.0.0.1:{}", launch.port)];
    for server in cluster.servers() {
        args.extend(["--server".to_owned(), format!("127.0.0.1:{}", server.port)]);
    }
    let mut proxy = launch.args(&args).spawn()?;
    let status = proxy.ended(READY).await?;
    ensure!(!status.success(), "{status}");
    let log = proxy.log();
    ensure!(
        log.contains("--monitor-user") && log.contains("MILLRACE_MONITOR_PASSWORD"),
        "{log}"
    );
    Ok(())
}

/// A port that is taken, a folder that is not there.
async fn cannot_listen(cluster: &Cluster) -> anyhow::Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    for address in [
        format!("127.0.0.1:{port}"),
        "/no/such/folder/sock".to_owned(),
    ] {
        let launch = Launch::new()?;
        let text = toml(
            &launch,
            cluster,
            &format!("[[listen]]\naddress = \"{address}\"\n"),
        );
        let mut proxy = launch.config(&text).spawn()?;
        let status = proxy.ended(READY).await?;
        let log = proxy.log();
        ensure!(
            !status.success() && log.contains(&address),
            "{status}: {log}"
        );
    }
    Ok(())
}

/// A socket file that a killed process left behind is no obstacle; one in use is.
async fn socket_left_behind(cluster: &Cluster) -> anyhow::Result<()> {
    let folder = Launch::new()?.dir();
    std::fs::create_dir_all(&folder)?;
    let socket = folder.join("sock");
    let more = format!("[[listen]]\naddress = \"{}\"\n", socket.display());
    let mut first = proxy(cluster, &more).await?;
    first.signal(Signal::KILL);
    first.ended(READY).await?;
    ensure!(socket.exists(), "a killed process leaves its socket");
    let second = proxy(cluster, &more).await?;
    Connection::open(&app(Target::Unix(socket.clone())))
        .await?
        .quit()
        .await;
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, &more);
    let mut third = launch.config(&text).spawn()?;
    let status = third.ended(READY).await?;
    ensure!(!status.success(), "two listen on one socket: {status}");
    Connection::open(&app(Target::Unix(socket.clone())))
        .await
        .context("still served")?
        .quit()
        .await;
    drop(second);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

// --- `millrace check` ---

async fn check(text: &str) -> anyhow::Result<(bool, String)> {
    let launch = Launch::new()?;
    std::fs::create_dir_all(launch.dir())?;
    let path = launch.dir().join("checked.toml");
    std::fs::write(&path, text)?;
    let output = tokio::process::Command::new(harness::program()?)
        .arg("check")
        .arg(&path)
        .env("MILLRACE_MONITOR_PASSWORD", "x")
        .output()
        .await?;
    std::fs::remove_dir_all(launch.dir())?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(text)?))
}

#[tokio::test]
async fn check_says_what_is_wrong() -> anyhow::Result<()> {
    const GOOD: &str = "[[listen]]\naddress = \"127.0.0.1:6033\"\n\
        [[server]]\naddress = \"127.0.0.1:3306\"\n\
        [[server]]\naddress = \"127.0.0.1:3307\"\n\
        [monitor]\nuser = \"m\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n";
    let (good, text) = check(GOOD).await?;
    assert!(good, "{text}");
    // What is added, and what must be said of it; GOOD has nine lines.
    let cases: &[(&str, &[&[&str]])] = &[
        (
            "[pool]\nmax_conections = 5\n",
            &[&["max_conections", "checked.toml:11", "max_connections"]],
        ),
        ("[pol]\nmax_connections = 5\n", &[&["pol", ":10", "pool"]]),
        (
            "[pool]\nmax_connections = \"many\"\n",
            &[&["max_connections", ":11"]],
        ),
        (
            "[pool]\nwait_timeout = \"10 parsecs\"\n",
            &[&["wait_timeout", ":11"]],
        ),
        (
            "[limits]\nmax_packet = \"64 apples\"\n",
            &[&["max_packet", ":11"]],
        ),
        ("[log]\nlevel = \"lod\"\n", &[&["level", ":11"]]),
        ("[routing]\nreads = \"primary\"\n", &[&["reads", ":11"]]),
        ("[server_tls]\nmode = \"verify-ca\"\n", &[&["mode", ":11"]]),
        ("[server_tls]\nmode = \"verify_ca\"\n", &[&["ca"]]),
        (
            "[[listen]]\naddress = \"nonsense\"\n",
            &[&["address", ":11"]],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:6033\"\n",
            &[&["127.0.0.1:6033"]],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:1\"\ntarget = \"replica\"\n",
            &[&["target", ":12"]],
        ),
        (
            "[[account]]\nname = \"a\"\npassword = \"p\"\n",
            &[&["password", ":12", "password_file"]],
        ),
        (
            "[[account]]\nname = \"a\"\npassword_file = \"no-such-file\"\n",
            &[&["password_file", ":12"]],
        ),
        (
            "[[account]]\nname = \"a\"\npassword_env = \"NO_SUCH_VARIABLE_HERE\"\n",
            &[&["NO_SUCH_VARIABLE_HERE", ":12"]],
        ),
        ("[pool\n", &[&[":10"]]),
        (
            "[pool]\nmax_conections = 5\nidle_timeout = 7\n[drain]\ntimout = \"1s\"\n",
            &[
                &["max_conections", ":11"],
                &["idle_timeout", ":12"],
                &["timout", ":14", "timeout"],
            ],
        ),
    ];
    let mut failed = Vec::new();
    for (added, expected) in cases {
        let (good, text) = check(&format!("{GOOD}{added}")).await?;
        for words in *expected {
            let said = text
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)));
            if good || !said {
                failed.push(format!("{added}: {words:?} not in: {text}"));
            }
        }
    }
    let (good, text) = check("").await?;
    if good || !text.contains("listen") || !text.contains("server") {
        failed.push(format!("an empty file: {text}"));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// The file that is shipped as an example is good as it is.
#[tokio::test]
async fn shipped_file_is_good() -> anyhow::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/millrace.toml");
    let (good, text) = check(&std::fs::read_to_string(path)?).await?;
    assert!(good, "{text}");
    Ok(())
}

/// A file that is not there, and `serve` with a bad one, are errors that name it.
#[tokio::test]
async fn serve_refuses_a_bad_file() -> anyhow::Result<()> {
    let mut proxy = Launch::new()?
        .args(&["--config", "/no/such/file.toml"])
        .spawn()?;
    let status = proxy.ended(READY).await?;
    assert!(!status.success());
    assert!(
        proxy.log().contains("/no/such/file.toml"),
        "{}",
        proxy.log()
    );
    let mut proxy = Launch::new()?
        .config("[[lisen]]\naddress = \"127.0.0.1:1\"\n")
        .spawn()?;
    let status = proxy.ended(READY).await?;
    assert!(!status.success());
    let log = proxy.log();
    assert!(
        log.contains("lisen") && log.contains("`listen`") && log.contains("millrace.toml:1"),
        "{log}"
    );
    Ok(())
}

// --- What runs where ---

async fn targets(cluster: &Cluster) -> anyhow::Result<()> {
    let (for_primary, for_replicas) = (Launch::new()?.port, Launch::new()?.port);
    let more = format!(
        "[[listen]]\naddress = \"127.0.0.1:{for_primary}\"\ntarget = \"primary\"\n\
         [[listen]]\naddress = \"127.0.0.1:{for_replicas}\"\ntarget = \"replicas\"\n"
    );
    let proxy = proxy(cluster, &more).await?;
    let primary = BTreeSet::from([cluster.primary().port]);
    let replicas = replica_ports(cluster);

    let mut auto = Connection::open(&app(proxy.address())).await?;
    auto.expect("CREATE TABLE IF NOT EXISTS targets (x INT)")
        .await?;
    auto.expect("INSERT INTO targets VALUES (1)").await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let seen = ports_of(&mut auto, 20).await?;
    ensure!(
        seen.is_subset(&replicas),
        "reads of one that has written ran on {seen:?}"
    );
    let mut reader = Connection::open(&app(proxy.address())).await?;
    let seen = ports_of(&mut reader, 20).await?;
    ensure!(
        seen == replicas,
        "reads of the automatic listener ran on {seen:?}"
    );

    let mut connection = Connection::open(&app(tcp(for_primary))).await?;
    let seen = ports_of(&mut connection, 20).await?;
    ensure!(
        seen == primary,
        "reads of the primary's listener ran on {seen:?}"
    );
    connection.expect("INSERT INTO targets VALUES (2)").await?;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;

    let mut connection = Connection::open(&app(tcp(for_replicas))).await?;
    let seen = ports_of(&mut connection, 20).await?;
    ensure!(
        seen == replicas,
        "reads of the replicas' listener ran on {seen:?}"
    );
    let replica = &cluster.replicas()[0];
    let mut direct = Connection::open(&app(tcp(replica.port))).await?;
    for sql in [
        "INSERT INTO targets VALUES (3)",
        "CREATE TABLE targets_b (x INT)",
        "BEGIN",
        "UPDATE targets SET x=9",
        "SELECT * FROM targets ORDER BY x",
        "ROLLBACK",
        "SELECT * FROM targets WHERE x=1 FOR SHARE",
    ] {
        let (there, here) = (direct.query(sql).await, connection.query(sql).await);
        let (there, here) = (there.render(), here.render());
        ensure!(there == here, "{sql}: direct {there:?}, through {here:?}");
    }
    ensure!(
        replicas.contains(&port_of(&mut connection).await?),
        "after a refused write"
    );
    Ok(())
}

/// `reads = "all"`: the primary takes its share.
async fn reads_on_all(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[routing]\nreads = \"all\"\n").await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let seen = ports_of(&mut connection, 40).await?;
    let all: BTreeSet<u16> = cluster.servers().iter().map(|s| s.port).collect();
    ensure!(seen == all, "{seen:?}");
    Ok(())
}

async fn listener_tls(cluster: &Cluster) -> anyhow::Result<()> {
    let (required, off) = (Launch::new()?.port, Launch::new()?.port);
    let more = format!(
        "[[listen]]\naddress = \"127.0.0.1:{required}\"\ntls = \"required\"\n\
         [[listen]]\naddress = \"127.0.0.1:{off}\"\ntls = \"off\"\n"
    );
    let proxy = proxy(cluster, &more).await?;
    for (port, tls, good) in [
        (proxy.port, false, true),
        (proxy.port, true, true),
        (required, false, false),
        (required, true, true),
        (off, false, true),
    ] {
        let mut login = app(tcp(port));
        login.tls = tls;
        let (connection, reply) = Connection::try_open(&login).await?;
        ensure!(
            connection.is_some() == good,
            "{port} {tls}: {:?}",
            reply.render()
        );
        if let Some(err) = reply.err() {
            ensure!(err.code == 3159, "{err}");
        }
    }
    let connection = Connection::open(&app(tcp(off))).await?;
    ensure!(
        connection.greeting.capabilities & cap::SSL == 0,
        "TLS is offered"
    );
    Ok(())
}

/// What every server has executed.
async fn positions(cluster: &Cluster) -> anyhow::Result<Vec<Option<String>>> {
    let sql = match cluster.family() {
        Family::MySql => "SELECT @@gtid_executed",
        Family::MariaDb => "SELECT CONCAT_WS(' ', @@gtid_binlog_state, @@gtid_current_pos)",
    };
    let mut all = Vec::new();
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        all.push(control.value(sql).await?);
        control.close().await;
    }
    Ok(all)
}

async fn writes_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    let before = positions(cluster).await?;
    let mut proxy = proxy(cluster, "").await?;
    for tls in [false, true] {
        let mut login = app(proxy.address());
        login.tls = tls;
        let mut connection = Connection::open(&login).await?;
        for sql in [
            "SELECT 1",
            "SET @x=1",
            "BEGIN",
            "SELECT @x",
            "COMMIT",
            "SET time_zone='+02:00'",
        ] {
            connection.expect(sql).await?;
            ports_of(&mut connection, 4).await?;
        }
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.terminate(READY).await?;
    let after = positions(cluster).await?;
    ensure!(before == after, "before {before:?}, after {after:?}");
    Ok(())
}

// --- Limits ---

async fn most_clients(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[limits]\nmax_clients = 3\n").await?;
    let login = app(proxy.address());
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Connection::open(&login).await?);
    }
    let (_, reply) = Connection::try_open(&login).await?;
    let err = reply.err().context("a fourth client is in")?.clone();
    ensure!(
        err.code == 1040 && err.message.contains("max_clients"),
        "{err}"
    );
    for client in &mut clients {
        client
            .expect("SELECT 1")
            .await
            .context("the others are served")?;
    }
    clients.remove(0).quit().await;
    let deadline = Instant::now() + FOLLOWED;
    while let Err(error) = Connection::open(&login).await {
        ensure!(Instant::now() < deadline, "after one left: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn clients_per_address(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "[limits]\nclients_per_address = 2\n").await?;
    let to: SocketAddr = ([127, 0, 0, 1], proxy.port).into();
    let from = |last: u8| app(Target::TcpFrom(IpAddr::from([127, 0, 0, last]), to));
    let mut clients = Vec::new();
    for last in [1, 1, 2, 2] {
        clients.push(Connection::open(&from(last)).await?);
    }
    for last in [1, 2] {
        let (_, reply) = Connection::try_open(&from(last)).await?;
        let err = reply.err().context("a third client is in")?;
        ensure!(
            err.code == 1040 && err.message.contains("clients_per_address"),
            "{err}"
        );
    }
    clients.push(Connection::open(&from(3)).await?);
    clients.remove(0).quit().await;
    let deadline = Instant::now() + FOLLOWED;
    while let Err(error) = Connection::open(&from(1)).await {
        ensure!(Instant::now() < deadline, "after one left: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

const WAITING: &str =
    "CREATE TABLE IF NOT EXISTS waiting (id INT AUTO_INCREMENT PRIMARY KEY, n INT)";

/// An exhausted pool: the error names the option, and the client goes on.
async fn pool_exhausted(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"700ms\"\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    let mut second = Connection::open(&login).await?;
    for sql in ["BEGIN", "INSERT INTO waiting (n) VALUES (1)"] {
        holder.expect(sql).await?;
    }
    let started = Instant::now();
    let reply = second.query("INSERT INTO waiting (n) VALUES (2)").await;
    let err = reply.err().context("there was a connection")?;
    ensure!(
        err.message.contains("pool.max_connections") || err.message.contains("pool.wait_timeout"),
        "{err}"
    );
    ensure!(
        started.elapsed() >= Duration::from_millis(600),
        "{:?}",
        started.elapsed()
    );
    let read = port_of(&mut second).await?;
    ensure!(
        replica_ports(cluster).contains(&read),
        "reads need not wait for the primary's"
    );
    holder.expect("COMMIT").await?;
    second
        .expect("INSERT INTO waiting (n) VALUES (3)")
        .await
        .context("goes on")?;
    Ok(())
}

/// Those who wait are served in the order in which they came.
async fn served_in_order(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"60s\"\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(Connection::open(&login).await?);
    }
    for sql in ["BEGIN", "DELETE FROM waiting"] {
        holder.expect(sql).await?;
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let sql = format!("INSERT INTO waiting (n) VALUES ({n})");
        client
            .send(millrace_tests::wire::com::QUERY, sql.as_bytes())
            .await?;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    holder.expect("COMMIT").await?;
    for client in &mut clients {
        let expect = millrace_tests::wire::Expect::Results { binary: false };
        let reply = client.read_reply(expect).await;
        ensure!(reply.ok().is_some(), "{:?}", reply.render());
    }
    let reply = holder
        .expect("SELECT GROUP_CONCAT(n ORDER BY id) FROM waiting")
        .await?;
    ensure!(
        reply.scalar().as_deref() == Some("0,1,2,3,4,5"),
        "{:?}",
        reply.scalar()
    );
    Ok(())
}

/// A connection that one worker no longer needs serves who waits at the other.
async fn between_workers(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"20s\"\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    // New clients go to the worker that has the fewest.
    let mut first = Connection::open(&login).await?;
    let mut second = Connection::open(&login).await?;
    first.expect(WAITING).await?;
    for n in 0..3 {
        for sql in ["BEGIN", "DELETE FROM waiting"] {
            first.expect(sql).await?;
        }
        let sql = format!("INSERT INTO waiting (n) VALUES ({n})");
        second
            .send(millrace_tests::wire::com::QUERY, sql.as_bytes())
            .await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        first.expect("COMMIT").await?;
        let started = Instant::now();
        let expect = millrace_tests::wire::Expect::Results { binary: false };
        let reply = second.read_reply(expect).await;
        let (end, took) = (reply.render(), started.elapsed());
        ensure!(reply.ok().is_some(), "time {n}, after {took:?}: {end:?}");
        ensure!(took < Duration::from_secs(5), "time {n} took {took:?}");
        std::mem::swap(&mut first, &mut second);
    }
    Ok(())
}

/// A full queue refuses at once.
async fn queue_full(cluster: &Cluster) -> anyhow::Result<()> {
    let more = "[pool]\nmax_connections = 1\nwait_timeout = \"60s\"\nmax_waiting = 1\n";
    let proxy = proxy(cluster, more).await?;
    let login = app(proxy.address());
    let mut holder = Connection::open(&login).await?;
    holder.expect(WAITING).await?;
    let (mut first, mut second) = (
        Connection::open(&login).await?,
        Connection::open(&login).await?,
    );
    for sql in ["BEGIN", "DELETE FROM waiting"] {
        holder.expect(sql).await?;
    }
    let sql = "INSERT INTO waiting (n) VALUES (1)";
    first
        .send(millrace_tests::wire::com::QUERY, sql.as_bytes())
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = Instant::now();
    let reply = second.query(sql).await;
    let err = reply.err().context("a second one waited")?;
    ensure!(err.message.contains("pool.max_waiting"), "{err}");
    ensure!(
        started.elapsed() < Duration::from_secs(30),
        "{:?}",
        started.elapsed()
    );
    holder.expect("COMMIT").await?;
    let expect = millrace_tests::wire::Expect::Results { binary: false };
    let reply = first.read_reply(expect).await;
    ensure!(reply.ok().is_some(), "{:?}", reply.render());
    Ok(())
}

// --- The end ---

async fn drains(cluster: &Cluster) -> anyhow::Result<()> {
    let mut proxy = proxy(cluster, "[drain]\ntimeout = \"40s\"\n").await?;
    let login = app(proxy.address());
    let mut idle = Connection::open(&login).await?;
    let mut pinned = Connection::open(&login).await?;
    let mut running = Connection::open(&login).await?;
    let mut writing = Connection::open(&login).await?;
    idle.expect("CREATE TABLE IF NOT EXISTS drained (x INT)")
        .await?;
    idle.expect("DELETE FROM drained").await?;
    pinned.expect("CREATE TEMPORARY TABLE t (x INT)").await?;
    for sql in ["BEGIN", "INSERT INTO drained VALUES (1)"] {
        writing.expect(sql).await?;
    }
    running
        .send(
            millrace_tests::wire::com::QUERY,
            b"SELECT 'slept', SLEEP(3)",
        )
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.signal(Signal::TERM);
    let started = Instant::now();

    // New ones are refused; in the first moment maybe still let in and shown out.
    tokio::time::sleep(Duration::from_millis(500)).await;
    if let Ok((Some(_), _)) = Connection::try_open(&login).await {
        bail!("a new client was let in");
    }
    for (what, connection) in [("idle", &mut idle), ("with a temporary table", &mut pinned)] {
        connection.login.timeout = Duration::from_secs(20);
        let reply = connection
            .read_reply(millrace_tests::wire::Expect::Single)
            .await;
        let closed =
            reply.broken().is_some_and(|why| why.contains("closed")) || reply.err().is_some();
        ensure!(closed, "{what}: {:?}", reply.render());
    }
    ensure!(
        proxy.alive(),
        "it ended before its clients had: {}",
        proxy.log()
    );
    let expect = millrace_tests::wire::Expect::Results { binary: false };
    let reply = running.read_reply(expect).await;
    ensure!(
        reply.scalar().as_deref() == Some("slept"),
        "running: {:?}",
        reply.render()
    );
    for sql in [
        "INSERT INTO drained VALUES (2)",
        "SELECT COUNT(*) FROM drained",
        "COMMIT",
    ] {
        writing.expect(sql).await.context("the open transaction")?;
    }
    let status = proxy.ended(Duration::from_secs(30)).await?;
    ensure!(status.success(), "{status}; {}", proxy.log());
    ensure!(
        started.elapsed() < Duration::from_secs(40),
        "{:?}",
        started.elapsed()
    );
    let mut direct = Connection::open(&app(tcp(cluster.primary().port))).await?;
    let rows = direct.expect("SELECT COUNT(*) FROM drained").await?;
    ensure!(rows.scalar().as_deref() == Some("2"), "{:?}", rows.render());
    Ok(())
}

/// A transaction that does not end is ended, and rolled back by its server.
async fn drain_ends(cluster: &Cluster) -> anyhow::Result<()> {
    for (timeout, twice) in [("1s", false), ("300s", true)] {
        let mut proxy = proxy(cluster, &format!("[drain]\ntimeout = \"{timeout}\"\n")).await?;
        let mut writing = Connection::open(&app(proxy.address())).await?;
        writing
            .expect("CREATE TABLE IF NOT EXISTS undrained (x INT)")
            .await?;
        for sql in [
            "DELETE FROM undrained",
            "BEGIN",
            "INSERT INTO undrained VALUES (1)",
        ] {
            writing.expect(sql).await?;
        }
        proxy.signal(Signal::TERM);
        if twice {
            tokio::time::sleep(Duration::from_millis(500)).await;
            ensure!(proxy.alive(), "ended although a transaction was open");
            proxy.signal(Signal::TERM);
        }
        proxy
            .ended(Duration::from_secs(20))
            .await
            .context(timeout)?;
        let mut direct = Connection::open(&app(tcp(cluster.primary().port))).await?;
        let deadline = Instant::now() + FOLLOWED;
        loop {
            // A lock would hold it up until the transaction is gone.
            direct
                .expect("SET SESSION innodb_lock_wait_timeout=5")
                .await?;
            let rows = direct
                .expect("SELECT COUNT(*) FROM undrained FOR UPDATE")
                .await?;
            if rows.scalar().as_deref() == Some("0") {
                break;
            }
            ensure!(Instant::now() < deadline, "committed: {:?}", rows.render());
        }
    }
    Ok(())
}

/// No client, no wait.
async fn drain_of_nobody(cluster: &Cluster) -> anyhow::Result<()> {
    let mut proxy = proxy(cluster, "[drain]\ntimeout = \"300s\"\n").await?;
    Connection::open(&app(proxy.address())).await?.quit().await;
    let (status, took) = proxy.terminate(Duration::from_secs(20)).await?;
    ensure!(status.success(), "{status} after {took:?}");
    Ok(())
}

// --- Servers that come and go ---

/// Four clients read all the time; none may see an error. What they saw last is the answer.
struct Readers<'a> {
    login: &'a Login,
    sql: &'static str,
    stop: Cell<bool>,
    reads: Cell<u64>,
    recent: RefCell<Vec<u16>>,
}

impl<'a> Readers<'a> {
    fn new(login: &'a Login, sql: &'static str) -> Self {
        Self {
            login,
            sql,
            stop: Cell::new(false),
            reads: Cell::new(0),
            recent: RefCell::default(),
        }
    }

    async fn read(&self) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.login).await?;
        while !self.stop.get() {
            let reply = connection.expect(self.sql).await;
            let reply = reply.with_context(|| format!("after {} reads", self.reads.get()))?;
            let port = reply.scalar().context("no port")?.parse()?;
            self.reads.set(self.reads.get() + 1);
            self.recent.borrow_mut().push(port);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Where the reads from now on run.
    async fn next(&self, reads: usize) -> BTreeSet<u16> {
        self.recent.borrow_mut().clear();
        while self.recent.borrow().len() < reads {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.recent.borrow().iter().copied().collect()
    }

    /// Waits until reads run on just these servers.
    async fn until(&self, expected: &BTreeSet<u16>) -> anyhow::Result<()> {
        let deadline = Instant::now() + FOLLOWED;
        loop {
            let seen = self.next(60).await;
            if seen == *expected {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "reads run on {seen:?} instead of {expected:?}"
            );
        }
    }

    /// Reads while `faults` happen.
    async fn during(&self, faults: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
        let all = async {
            let faults = async {
                let outcome = faults.await;
                self.stop.set(true);
                outcome
            };
            tokio::try_join!(self.read(), self.read(), self.read(), self.read(), faults)
        };
        all.await.map(drop)
    }
}

async fn replica_goes(cluster: &Cluster, sql: &'static str, kill: bool) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let all = replica_ports(cluster);
    let gone = cluster.replicas()[0].clone();
    let others = BTreeSet::from_iter(all.iter().copied().filter(|p| *p != gone.port));
    let readers = Readers::new(&login, sql);
    readers
        .during(async {
            readers.until(&all).await?;
            if kill {
                cluster.kill(&gone.name).await?;
            } else {
                cluster.stop(&gone.name).await?;
            }
            readers.until(&others).await?;
            cluster.start(&gone.name).await?;
            readers.until(&all).await
        })
        .await
}

async fn applier_stops(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let all = replica_ports(cluster);
    let gone = cluster.replicas()[0].clone();
    let others = BTreeSet::from_iter(all.iter().copied().filter(|p| *p != gone.port));
    let readers = Readers::new(&login, QUICK);
    readers
        .during(async {
            readers.until(&all).await?;
            cluster.stop_applier(&gone.name).await?;
            readers.until(&others).await?;
            cluster.start_applier(&gone.name).await?;
            readers.until(&all).await
        })
        .await
}

/// With all replicas gone the primary serves, and the listener for replicas says why it cannot.
async fn all_replicas_go(cluster: &Cluster) -> anyhow::Result<()> {
    let for_replicas = Launch::new()?.port;
    let more =
        format!("[[listen]]\naddress = \"127.0.0.1:{for_replicas}\"\ntarget = \"replicas\"\n");
    let proxy = proxy(cluster, &more).await?;
    let login = app(proxy.address());
    let all = replica_ports(cluster);
    let primary = BTreeSet::from([cluster.primary().port]);
    let mut only = Connection::open(&app(tcp(for_replicas))).await?;
    let readers = Readers::new(&login, QUICK);
    readers
        .during(async {
            readers.until(&all).await?;
            for replica in cluster.replicas() {
                cluster.kill(&replica.name).await?;
            }
            readers.until(&primary).await?;
            let reply = only.query("SELECT 1").await;
            ensure!(reply.err().is_some(), "replicas only: {:?}", reply.render());
            let ready = proxy.http("/readyz").await?;
            ensure!(ready.starts_with("HTTP/1.1 200"), "{ready}");
            let mut writer = Connection::open(&login).await?;
            writer
                .expect("CREATE TABLE IF NOT EXISTS without_replicas (x INT)")
                .await?;
            writer
                .expect("INSERT INTO without_replicas VALUES (1)")
                .await?;
            writer.expect("SELECT * FROM without_replicas").await?;
            for replica in cluster.replicas() {
                cluster.start(&replica.name).await?;
            }
            readers.until(&all).await?;
            only.expect("SELECT 1").await?;
            Ok(())
        })
        .await
}

/// A server that is down when the proxy starts takes part once it is up.
async fn down_at_start(cluster: &Cluster) -> anyhow::Result<()> {
    let all = replica_ports(cluster);
    let gone = cluster.replicas()[1].clone();
    let others = BTreeSet::from_iter(all.iter().copied().filter(|p| *p != gone.port));
    cluster.stop(&gone.name).await?;
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let readers = Readers::new(&login, QUICK);
    readers
        .during(async {
            readers.until(&others).await?;
            cluster.start(&gone.name).await?;
            readers.until(&all).await
        })
        .await
}

/// Nothing is up when it starts: it waits, and serves once something is.
async fn nothing_at_start(cluster: &Cluster) -> anyhow::Result<()> {
    let names: Vec<String> = cluster.servers().into_iter().map(|s| s.name).collect();
    for name in &names {
        cluster.stop(name).await?;
    }
    let launch = Launch::new()?;
    let text = toml(&launch, cluster, "");
    let mut proxy = launch.config(&text).spawn()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(proxy.alive(), "it gave up: {}", proxy.log());
    let ready = proxy.http("/readyz").await?;
    ensure!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    let (connection, reply) = Connection::try_open(&app(proxy.address())).await?;
    ensure!(
        connection.is_none() && reply.err().is_some(),
        "{:?}",
        reply.render()
    );
    for name in &names {
        cluster.start(name).await?;
    }
    proxy.wait_ready(FOLLOWED).await?;
    wait_fit(&proxy, cluster, running_replicas(cluster)).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    connection
        .expect("CREATE TABLE IF NOT EXISTS at_last (x INT)")
        .await?;
    connection.expect("INSERT INTO at_last VALUES (1)").await?;
    Ok(())
}

/// A promotion by hand: writes follow, in the same session; the old primary becomes a replica.
async fn promoted(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let login = app(proxy.address());
    let mut session = Connection::open(&login).await?;
    let old = cluster.primary();
    session
        .expect("CREATE TABLE IF NOT EXISTS promoted (n INT, port INT)")
        .await?;
    session.expect("DELETE FROM promoted").await?;
    session.expect("SET @mine='still here'").await?;
    session
        .expect("INSERT INTO promoted VALUES (0, @@port)")
        .await?;
    let new = cluster.replicas()[0].clone();
    cluster.promote(&new.name).await?;
    let started = Instant::now();
    let mut errors = BTreeSet::new();
    loop {
        let reply = session
            .query("INSERT INTO promoted VALUES (1, @@port)")
            .await;
        match (reply.err(), reply.broken()) {
            (None, None) => break,
            (Some(err), _) => drop(errors.insert(err.to_string())),
            (None, Some(why)) => bail!("the session ended: {why}"),
        }
        ensure!(
            started.elapsed() < FOLLOWED,
            "no write after {FOLLOWED:?}: {errors:?}; {}",
            proxy.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!(
        "writes followed after {:.1?}, errors meanwhile: {errors:?}",
        started.elapsed()
    );
    let reply = session
        .expect("SELECT @mine, COUNT(*), MAX(port) FROM promoted")
        .await?;
    let expected = [Some("still here".to_owned()), Some("2".to_owned())];
    ensure!(reply.rows()[0][..2] == expected, "{:?}", reply.render());
    let mut control = cluster.control(&new.name).await?;
    let there = control.value("SELECT COUNT(*) FROM app.promoted").await?;
    ensure!(
        there.as_deref() == Some("2"),
        "on the new primary: {there:?}"
    );
    let readers = Readers::new(&login, QUICK);
    let replicas = replica_ports(cluster);
    ensure!(
        replicas.contains(&old.port),
        "the old primary is a replica now"
    );
    readers.during(readers.until(&replicas)).await
}

/// Brings back what a failed check left down; a server may still be on its way down.
async fn mend(cluster: &Cluster) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = try_mend(cluster).await {
        ensure!(
            Instant::now() < deadline,
            "the cluster stays broken: {error:#}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn try_mend(cluster: &Cluster) -> anyhow::Result<()> {
    for server in cluster.servers() {
        if server.pid.is_none() {
            cluster.start(&server.name).await?;
        }
    }
    for replica in cluster.replicas() {
        cluster.start_applier(&replica.name).await?;
    }
    cluster.wait_replicas_caught_up(FOLLOWED).await
}

// --- The suites ---

async fn serving(family: Family) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(family)).await?;
    let cluster = &cluster;
    mark(cluster).await?;
    let mut checks = Checks::new(format!("serving, {family}"));
    checks.run("writes nothing", writes_nothing(cluster)).await;
    checks.run("by flags", by_flags(cluster)).await;
    checks
        .run(
            "monitor's password from a file",
            monitor_password_file(cluster),
        )
        .await;
    checks
        .run("without monitor", without_monitor(cluster))
        .await;
    checks
        .run("monitor is missing", monitor_is_missing(cluster))
        .await;
    checks.run("cannot listen", cannot_listen(cluster)).await;
    checks
        .run("socket left behind", socket_left_behind(cluster))
        .await;
    checks.run("targets", targets(cluster)).await;
    checks.run("reads on all", reads_on_all(cluster)).await;
    checks.run("listener's TLS", listener_tls(cluster)).await;
    checks.run("max_clients", most_clients(cluster)).await;
    checks
        .run("clients_per_address", clients_per_address(cluster))
        .await;
    checks.run("pool exhausted", pool_exhausted(cluster)).await;
    checks
        .run("served in order", served_in_order(cluster))
        .await;
    checks
        .run("between workers", between_workers(cluster))
        .await;
    checks.run("queue full", queue_full(cluster)).await;
    checks.run("drains", drains(cluster)).await;
    checks.run("drain ends", drain_ends(cluster)).await;
    checks
        .run("drain of nobody", drain_of_nobody(cluster))
        .await;
    checks.run("applier stops", applier_stops(cluster)).await;
    mend(cluster).await?;
    checks
        .run("replica stopped", replica_goes(cluster, QUICK, false))
        .await;
    mend(cluster).await?;
    checks
        .run("replica killed", replica_goes(cluster, QUICK, true))
        .await;
    mend(cluster).await?;
    checks
        .run(
            "replica stopped, reads under way",
            replica_goes(cluster, SLOW, false),
        )
        .await;
    mend(cluster).await?;
    checks
        .run(
            "replica killed, reads under way",
            replica_goes(cluster, SLOW, true),
        )
        .await;
    mend(cluster).await?;
    checks
        .run("all replicas go", all_replicas_go(cluster))
        .await;
    mend(cluster).await?;
    checks.run("down at start", down_at_start(cluster)).await;
    mend(cluster).await?;
    checks
        .run("nothing at start", nothing_at_start(cluster))
        .await;
    mend(cluster).await?;
    checks.run("promoted", promoted(cluster)).await;
    checks.finish()
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MariaDb, "serving") {
        return Ok(());
    }
    serving(Family::MariaDb).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    if harness::direct_only() || !skip_unless(Family::MySql, "serving") {
        return Ok(());
    }
    serving(Family::MySql).await
}
