//! Servers known by names that come to mean other machines, while clients work: what was judged of one machine is
//! never applied to another, and a moved name is followed.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, ClusterSpec, Family, MONITOR, skip_unless};
use millrace_tests::checks::Checks;
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::netns::{self, Hosts};
use millrace_tests::wire::{Connection, Login};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

const READY: Duration = Duration::from_secs(30);
const FOLLOWED: Duration = Duration::from_secs(20);
/// Where every machine of a test listens.
const PORT: u16 = 3306;
/// The addresses of the machines.
const MACHINES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(127, 0, 0, 11),
    Ipv4Addr::new(127, 0, 0, 12),
    Ipv4Addr::new(127, 0, 0, 13),
];

/// Gives each server of a cluster an address of its own: the first is the primary's.
struct Machines {
    tasks: Vec<JoinHandle<()>>,
}

impl Machines {
    async fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let mut tasks = Vec::new();
        for (server, address) in cluster.servers().iter().zip(MACHINES) {
            let listener = TcpListener::bind((address, PORT)).await?;
            let port = server.port;
            tasks.push(spawn_local(async move {
                while let Ok((mut client, _)) = listener.accept().await {
                    spawn_local(async move {
                        if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                            let _ = server.set_nodelay(true);
                            let _ = client.set_nodelay(true);
                            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                        }
                    });
                }
            }));
        }
        Ok(Machines { tasks })
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn proxy(names: &[&str]) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let servers: String = names
        .iter()
        .map(|name| format!("[[server]]\naddress = \"{name}:{PORT}\"\n"))
        .collect();
    let text = format!(
        "workers = 2\n[[listen]]\naddress = \"127.0.0.1:{}\"\n{servers}\
         [monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n\
         [discovery]\nmode = \"off\"\n\
         [http]\nlisten = \"127.0.0.1:{}\"\n",
        launch.port, MONITOR.user, launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    Ok(proxy)
}

fn app(proxy: &Proxy) -> Login {
    Login::new(proxy.address(), APP.user, APP.password).database("app")
}

/// How many of a session's own writes its reads miss; what servers are asked does not count.
async fn missed(client: &mut Connection, turns: u32) -> anyhow::Result<u32> {
    let mut missed = 0;
    for turn in 0..turns {
        let write = format!("REPLACE INTO app.moved VALUES (1, {turn})");
        client.expect(&write).await?;
        let read = "SELECT n, port FROM app.moved JOIN app.place ON id = 1";
        let rows = client.expect(read).await?.rows();
        let cell = |at: usize| rows.first().and_then(|row| row.get(at).cloned().flatten());
        if cell(0) != Some(turn.to_string()) {
            missed += 1;
            println!("  {turn} was missed: {:?} at {:?}", cell(0), cell(1));
        }
    }
    Ok(missed)
}

/// Waits until a read of a new session is answered by a server of this number.
async fn reads_from(proxy: &Proxy, cluster: &Cluster, at: usize) -> anyhow::Result<()> {
    let port = cluster.servers()[at].port.to_string();
    let deadline = Instant::now() + FOLLOWED;
    let mut client = Connection::open(&app(proxy)).await?;
    loop {
        let seen = client
            .expect("SELECT /* millrace: replica */ port FROM app.place")
            .await?
            .scalar();
        if seen.as_deref() == Some(&port) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "reads are answered by {seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Each server has a row of its own that says which it is.
async fn mark(cluster: &Cluster) -> anyhow::Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    control
        .run("CREATE TABLE app.moved (id INT PRIMARY KEY, n INT)")
        .await?;
    control
        .run("CREATE TABLE app.acknowledged (id INT AUTO_INCREMENT PRIMARY KEY, n INT)")
        .await?;
    control.close().await;
    cluster.wait_replicas_caught_up(FOLLOWED).await?;
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        let locked = cluster.family() == Family::MySql && server.port != cluster.primary().port;
        if locked {
            control.run("SET GLOBAL super_read_only=OFF").await?;
        }
        control.run("SET sql_log_bin=0").await?;
        control.run("CREATE TABLE app.place (port INT)").await?;
        let row = format!("INSERT INTO app.place VALUES ({})", server.port);
        control.run(&row).await?;
        if locked {
            control.run("SET GLOBAL super_read_only=ON").await?;
        }
        control.close().await;
    }
    Ok(())
}

/// The replicas' name comes to mean a machine that applies nothing: no session misses what it wrote.
async fn replica_moves(cluster: &Cluster, hosts: &Hosts) -> anyhow::Result<()> {
    let names = |replica: usize| {
        [
            ("db-w", MACHINES[0].to_string()),
            ("db-r", MACHINES[replica].to_string()),
        ]
    };
    set(hosts, &names(1))?;
    let proxy = proxy(&["db-w", "db-r"]).await?;
    reads_from(&proxy, cluster, 1).await?;
    let late = cluster.servers()[2].name.clone();
    cluster.stop_applier(&late).await?;
    let mut client = Connection::open(&app(&proxy)).await?;
    let before = missed(&mut client, 20).await?;
    set(hosts, &names(2))?;
    let begun = Instant::now();
    let mut during = 0;
    while begun.elapsed() < Duration::from_secs(6) {
        during += missed(&mut client, 10).await?;
    }
    let log = proxy.log();
    cluster.start_applier(&late).await?;
    ensure!(
        before + during == 0,
        "{before} and {during} own writes were missed"
    );
    ensure!(
        log.contains("its name no longer means this machine"),
        "the move was not seen: {log}"
    );
    reads_from(&proxy, cluster, 2).await
}

fn set(hosts: &Hosts, names: &[(&str, String)]) -> anyhow::Result<()> {
    let names: Vec<_> = names
        .iter()
        .map(|(name, address)| (*name, &**address))
        .collect();
    hosts.set(&names)
}

/// Writes without a pause until told to stop: how many were acknowledged, the errors, and the longest wait.
async fn write(
    login: Login,
    stop: Rc<std::cell::Cell<bool>>,
) -> anyhow::Result<(u32, Vec<String>, Duration)> {
    let (mut done, mut errors, mut longest) = (0, Vec::new(), Duration::ZERO);
    let mut client = Connection::open(&login).await?;
    while !stop.get() {
        let begun = Instant::now();
        let reply = client
            .query("INSERT INTO app.acknowledged (n) VALUES (1)")
            .await;
        longest = longest.max(begun.elapsed());
        match reply.err() {
            None if reply.broken().is_none() => done += 1,
            error => {
                errors.push(format!("{error:?} {:?}", reply.broken()));
                client = Connection::open(&login).await?;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    client.quit().await;
    Ok((done, errors, longest))
}

/// A managed service's switchover: the roles change, and the two names are swapped.
async fn names_are_swapped(cluster: &Cluster, hosts: &Hosts) -> anyhow::Result<()> {
    let places = |writer: usize, reader: usize| {
        [
            ("db-w", MACHINES[writer].to_string()),
            ("db-r", MACHINES[reader].to_string()),
        ]
    };
    set(hosts, &places(0, 1))?;
    let proxy = proxy(&["db-w", "db-r"]).await?;
    reads_from(&proxy, cluster, 1).await?;
    let stop = Rc::new(std::cell::Cell::new(false));
    let writers: Vec<_> = (0..8)
        .map(|_| spawn_local(write(app(&proxy), stop.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let new = cluster.servers()[1].clone();
    cluster.promote(&new.name).await?;
    set(hosts, &places(1, 0))?;
    let moved = Instant::now();
    let mut client = Connection::open(&app(&proxy)).await?;
    let mut during = 0;
    while moved.elapsed() < Duration::from_secs(8) {
        during += missed(&mut client, 5).await?;
    }
    stop.set(true);
    let (mut done, mut errors, mut longest) = (0, Vec::new(), Duration::ZERO);
    for writer in writers {
        let (some, failed, slowest) = writer.await??;
        done += some;
        errors.extend(failed);
        longest = longest.max(slowest);
    }
    println!("  {done} writes, the longest took {longest:.1?}");
    ensure!(
        errors.is_empty(),
        "{} writes failed: {:?}",
        errors.len(),
        errors.first()
    );
    ensure!(during == 0, "{during} own writes were missed");
    let mut control = cluster.control(&new.name).await?;
    let counted = control
        .value("SELECT COUNT(*) FROM app.acknowledged")
        .await?;
    control.close().await;
    ensure!(
        counted == Some(done.to_string()),
        "{done} were acknowledged, {counted:?} are there"
    );
    // A name goes on meaning the primary: what is written now is at the new one, by a new session as well.
    let mut client = Connection::open(&app(&proxy)).await?;
    client.expect("BEGIN").await?;
    client
        .expect("INSERT INTO app.acknowledged (n) VALUES (2)")
        .await?;
    let place = client.expect("SELECT port FROM app.place").await?.scalar();
    client.expect("ROLLBACK").await?;
    ensure!(
        place == Some(new.port.to_string()),
        "writes go to {place:?}"
    );
    ensure!(
        proxy
            .log()
            .contains("its name no longer means this machine"),
        "the move was not seen"
    );
    Ok(())
}

async fn all(family: Family) -> anyhow::Result<()> {
    let cluster = Cluster::up(ClusterSpec::new(family)).await?;
    let hosts = Hosts::new(&[])?;
    mark(&cluster).await?;
    let _machines = Machines::of(&cluster).await?;
    let mut checks = Checks::new(format!("names, {family}"));
    checks
        .run("a replica's name moves", replica_moves(&cluster, &hosts))
        .await;
    checks
        .run("names are swapped", names_are_swapped(&cluster, &hosts))
        .await;
    checks.finish()
}

async fn family(family: Family, test: &str) -> anyhow::Result<()> {
    if !skip_unless(family, test) || !netns::enter(test)? {
        return Ok(());
    }
    LocalSet::new()
        .run_until(all(family))
        .await
        .context("names")
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    family(Family::MariaDb, "mariadb").await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    family(Family::MySql, "mysql").await
}
