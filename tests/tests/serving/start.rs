//! Starting by flags and by file, and what keeps it from starting.

use anyhow::{Context, ensure};
use millrace_sandbox::{Cluster, MONITOR};
use millrace_tests::harness::Launch;
use millrace_tests::wire::{Connection, Target};
use rustix::process::Signal;

use crate::ground::{READY, app, port_of, proxy, running_replicas, toml, wait_fit};

pub(crate) async fn by_flags(cluster: &Cluster) -> anyhow::Result<()> {
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
pub(crate) async fn monitor_password_file(cluster: &Cluster) -> anyhow::Result<()> {
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
pub(crate) async fn without_monitor(cluster: &Cluster) -> anyhow::Result<()> {
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
    ] {
        connection.expect(sql).await?;
    }
    killed_without_monitor(cluster, &mut connection).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let kept = connection.expect("SELECT x FROM alone").await?.scalar();
    ensure!(kept.as_deref() == Some("2"), "run again: {kept:?}");
    connection.expect("DROP TABLE alone").await?;
    ensure!(
        port_of(&mut connection).await? == cluster.primary().port,
        "another server"
    );
    Ok(())
}

/// The same where the connection that was killed had the pool's only place.
pub(crate) async fn without_monitor_or_room(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let text = format!(
        "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{}\"\n\
         [[server]]\naddress = \"127.0.0.1:{}\"\nrole = \"primary\"\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n[pool]\nmax_connections = 1\n",
        launch.port,
        cluster.primary().port,
        launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    for sql in ["CREATE TABLE alone (x INT)", "INSERT INTO alone VALUES (2)"] {
        connection.expect(sql).await?;
    }
    killed_without_monitor(cluster, &mut connection).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    let kept = connection.expect("SELECT x FROM alone").await?.scalar();
    ensure!(kept.as_deref() == Some("2"), "run again: {kept:?}");
    connection.expect("DROP TABLE alone").await?;
    Ok(())
}

/// What a DBA has killed stays so, though no monitor saw the server live on.
async fn killed_without_monitor(
    cluster: &Cluster,
    connection: &mut Connection,
) -> anyhow::Result<()> {
    for sql in ["BEGIN", "UPDATE alone SET x=100"] {
        connection.expect(sql).await?;
    }
    let mut control = cluster.control(&cluster.primary().name).await?;
    let question = "SELECT MIN(trx_mysql_thread_id) FROM information_schema.innodb_trx \
                    WHERE trx_rows_modified > 0";
    let id = control.value(question).await?.context("no transaction")?;
    control.run(&format!("KILL {id}")).await?;
    control.close().await;
    // Until the server has closed it.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let reply = connection.query("UPDATE alone SET x=x+1").await;
    ensure!(reply.err().is_some(), "a killed transaction goes on");
    Ok(())
}

/// Several servers and no monitor: it says what to do and does not start.
pub(crate) async fn monitor_is_missing(cluster: &Cluster) -> anyhow::Result<()> {
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
pub(crate) async fn cannot_listen(cluster: &Cluster) -> anyhow::Result<()> {
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
pub(crate) async fn socket_left_behind(cluster: &Cluster) -> anyhow::Result<()> {
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
