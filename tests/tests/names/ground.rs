//! Machines with addresses of their own, the proxy in front of them, and what clients do and see meanwhile.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, Family, MONITOR};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, spawn_local};

pub(crate) const READY: Duration = Duration::from_secs(30);
pub(crate) const FOLLOWED: Duration = Duration::from_secs(20);
/// Where every machine of a test listens.
pub(crate) const PORT: u16 = 3306;
/// The addresses of the machines.
pub(crate) const MACHINES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(127, 0, 0, 11),
    Ipv4Addr::new(127, 0, 0, 12),
    Ipv4Addr::new(127, 0, 0, 13),
];

/// Gives servers addresses of their own: the first of a cluster is the primary's.
pub(crate) struct Machines {
    tasks: BTreeMap<IpAddr, JoinHandle<()>>,
}

impl Machines {
    pub(crate) async fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let tasks = BTreeMap::new();
        let mut machines = Machines { tasks };
        for (server, address) in cluster.servers().iter().zip(MACHINES) {
            machines.add(address.into(), server.port).await?;
        }
        Ok(machines)
    }

    /// The server at this port has this address as well.
    pub(crate) async fn add(&mut self, address: IpAddr, port: u16) -> anyhow::Result<()> {
        let listener = TcpListener::bind((address, PORT)).await?;
        let task = spawn_local(async move {
            // What is aborted takes its connections with it.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                connections.spawn_local(async move {
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = server.set_nodelay(true);
                        let _ = client.set_nodelay(true);
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        self.tasks.insert(address, task);
        Ok(())
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

/// A proxy for servers by these names; `more` are further lines for each of them.
pub(crate) async fn proxy(names: &[&str], more: &str) -> anyhow::Result<Proxy> {
    let launch = Launch::new()?;
    let servers: String = names
        .iter()
        .map(|name| format!("[[server]]\naddress = \"{name}:{PORT}\"\n{more}"))
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

pub(crate) fn app(proxy: &Proxy) -> Login {
    Login::new(proxy.address(), APP.user, APP.password).database("app")
}

/// How many of a session's own writes its reads miss; what servers are asked does not count.
pub(crate) async fn missed(client: &mut Connection, turns: u32) -> anyhow::Result<u32> {
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
pub(crate) async fn reads_from(proxy: &Proxy, cluster: &Cluster, at: usize) -> anyhow::Result<()> {
    let port = cluster.servers()[at].port.to_string();
    let deadline = Instant::now() + FOLLOWED;
    let mut client = Connection::open(&app(proxy)).await?;
    // However far behind it is.
    client
        .expect("SET @@millrace_consistency='eventual'")
        .await?;
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
pub(crate) async fn mark(cluster: &Cluster) -> anyhow::Result<()> {
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

/// Writes that are in the table that [`Load`] writes to, on a server.
pub(crate) async fn written(cluster: &Cluster, name: &str) -> anyhow::Result<u32> {
    let mut control = cluster.control(name).await?;
    let count = "SELECT COUNT(*) FROM app.acknowledged";
    let counted = control.value(count).await?;
    control.close().await;
    Ok(counted.context("no count")?.parse()?)
}

/// Clients that write, and one that reads what it has written.
pub(crate) struct Load {
    stop: Rc<Cell<bool>>,
    writers: Vec<JoinHandle<anyhow::Result<Wrote>>>,
    reader: JoinHandle<anyhow::Result<u32>>,
}

/// Acknowledged writes of one client, the errors that it got, and the longest that a write took.
type Wrote = (u32, Vec<String>, Duration);

/// What they saw.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Acknowledged writes.
    pub(crate) done: u32,
    pub(crate) errors: Vec<String>,
    /// The longest that a write took.
    pub(crate) longest: Duration,
    /// Own writes that a session did not see.
    pub(crate) missed: u32,
}

impl Load {
    pub(crate) fn start(proxy: &Proxy) -> Self {
        let stop = Rc::new(Cell::new(false));
        let writers = (0..8)
            .map(|_| spawn_local(write(app(proxy), stop.clone())))
            .collect();
        let (login, until) = (app(proxy), stop.clone());
        let reader = spawn_local(async move {
            let mut client = Connection::open(&login).await?;
            let mut all = 0;
            while !until.get() {
                all += missed(&mut client, 5).await?;
            }
            client.quit().await;
            Ok(all)
        });
        Load {
            stop,
            writers,
            reader,
        }
    }

    pub(crate) async fn end(self) -> anyhow::Result<Seen> {
        self.stop.set(true);
        let mut seen = Seen {
            done: 0,
            errors: Vec::new(),
            longest: Duration::ZERO,
            missed: self.reader.await?.context("the reader")?,
        };
        for writer in self.writers {
            let (some, failed, slowest) = writer.await??;
            seen.done += some;
            seen.errors.extend(failed);
            seen.longest = seen.longest.max(slowest);
        }
        println!(
            "  {} writes, the longest took {:.1?}",
            seen.done, seen.longest
        );
        Ok(seen)
    }
}

impl Seen {
    /// No client was told of anything, nothing was missed, and no write took longer than that.
    pub(crate) fn is_well(&self, longest: Duration) -> anyhow::Result<()> {
        ensure!(
            self.errors.is_empty(),
            "{} writes failed: {:?}",
            self.errors.len(),
            self.errors.first()
        );
        ensure!(self.missed == 0, "{} own writes were missed", self.missed);
        ensure!(self.longest < longest, "a write took {:.1?}", self.longest);
        Ok(())
    }
}

/// Writes until told to stop. Two of these tests run at once, and shall leave each other room.
async fn write(login: Login, stop: Rc<Cell<bool>>) -> anyhow::Result<Wrote> {
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
        tokio::time::sleep(Duration::from_millis(6)).await;
    }
    client.quit().await;
    Ok((done, errors, longest))
}
