//! A DNS server of a test's own: dnsmasq, in the test's namespace, with records that live for a second, and a
//! resolver's configuration as Kubernetes writes it. A relay in front of it can be slow, or lie.

use std::cell::Cell;
use std::io::Write as _;
use std::net::UdpSocket as Blocking;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, spawn_local};

use crate::netns;

/// Where dnsmasq listens.
const SERVER: &str = "127.0.0.53";
/// Where the relay does.
const RELAY: &str = "127.0.0.54";
/// The domain that short names are completed with.
const DOMAIN: &str = "test.svc.cluster.local";

/// Says that a test is skipped where there is no dnsmasq.
///
/// # Errors
/// Where that cannot be said.
pub fn skip_unless_there(test: &str) -> anyhow::Result<bool> {
    let there = Command::new("dnsmasq")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if there.is_ok_and(|status| status.success()) {
        return Ok(true);
    }
    let told = format!("SKIPPED: {test}: no dnsmasq (Debian package dnsmasq-base)\n");
    std::io::stderr().write_all(told.as_bytes())?;
    Ok(false)
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
pub enum Record<'a> {
    /// Addresses, IPv4 or IPv6; several make a headless service.
    Addresses(&'a [&'a str]),
    /// Another name.
    Cname(&'a str),
}

/// The DNS server, and which of the two is asked.
#[derive(Debug)]
pub struct Dns {
    dir: PathBuf,
    child: Option<Child>,
    records: String,
    hosts: String,
}

impl Dns {
    /// Starts it without any name, and has the namespace's resolver ask it.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn start() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("millrace-dns-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let mut dns = Dns {
            dir,
            child: None,
            records: String::new(),
            hosts: String::new(),
        };
        dns.ask(SERVER)?;
        netns::replace("/etc/resolv.conf", &dns.dir.join("resolv.conf"))?;
        dns.run()?;
        Ok(dns)
    }

    /// The resolver asks this address from now on.
    fn ask(&self, address: &str) -> anyhow::Result<()> {
        let text = format!(
            "search {DOMAIN} svc.cluster.local cluster.local\nnameserver {address}\noptions ndots:5\n"
        );
        // In place: what is mounted is this very file.
        std::fs::write(self.dir.join("resolv.conf"), text)?;
        Ok(())
    }

    /// These names, and no others.
    ///
    /// # Errors
    /// Where the server does not take them.
    pub fn set(&mut self, names: &[(&str, Record<'_>)]) -> anyhow::Result<()> {
        self.records.clear();
        self.hosts.clear();
        for (name, record) in names {
            match record {
                Record::Cname(target) => {
                    let line = format!("cname={name}.{DOMAIN},{target}.{DOMAIN},1\n");
                    self.records += &line;
                }
                Record::Addresses(addresses) => {
                    for address in *addresses {
                        self.hosts += &format!("{address} {name}.{DOMAIN}\n");
                    }
                }
            }
        }
        self.stop();
        self.run()
    }

    /// Ends it; names cannot be looked up.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again with the names that it had.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let (file, hosts) = (self.dir.join("dnsmasq.conf"), self.dir.join("hosts"));
        std::fs::write(&hosts, &self.hosts)?;
        let text = format!(
            "port=53\nlisten-address={SERVER}\nbind-interfaces\nkeep-in-foreground\nuser=root\n\
             pid-file=\nno-resolv\nno-hosts\naddn-hosts={}\nlocal-ttl=1\n\
             local=/local/\nlocal=//\n{}",
            hosts.display(),
            self.records
        );
        std::fs::write(&file, text)?;
        let child = Command::new("dnsmasq")
            .arg(format!("--conf-file={}", file.display()))
            .stderr(Stdio::null())
            .spawn()
            .context("dnsmasq")?;
        self.child = Some(child);
        self.wait_until_it_answers()
    }

    fn wait_until_it_answers(&self) -> anyhow::Result<()> {
        // A query for the root's address: any answer will do.
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01";
        let socket = Blocking::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut buffer = [0; 512];
        while Instant::now() < deadline {
            let _ = socket.send_to(query, (SERVER, 53));
            if socket.recv(&mut buffer).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        anyhow::bail!("dnsmasq does not answer")
    }

    /// It says nothing any more, and is not gone.
    ///
    /// # Errors
    /// Where there is none.
    pub fn hang(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// It answers again.
    ///
    /// # Errors
    /// Where there is none.
    pub fn go_on(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("dnsmasq does not run")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("no pid")?;
        kill_process(pid, signal)?;
        Ok(())
    }

    /// Puts a relay between the resolver and the server, for as long as it is kept.
    ///
    /// # Errors
    /// Where it cannot listen.
    pub async fn relay(&self) -> anyhow::Result<Relay> {
        let relay = Relay::start().await?;
        self.ask(RELAY)?;
        Ok(relay)
    }

    /// The resolver asks the server itself again.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn without_relay(&self) -> anyhow::Result<()> {
        self.ask(SERVER)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.go_on();
        self.stop();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What the relay does with a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// As the server answers, after this time.
    After(Duration),
    /// Not as the server does: an answer without records, with this code (RFC 1035: 0 no error, 2 server
    /// failure, 3 no such name).
    Nothing(u8),
}

/// A relay.
#[derive(Debug)]
pub struct Relay {
    task: JoinHandle<()>,
    answers: Rc<Cell<Answers>>,
}

impl Relay {
    async fn start() -> anyhow::Result<Self> {
        let socket = Rc::new(UdpSocket::bind((RELAY, 53)).await?);
        let answers = Rc::new(Cell::new(Answers::After(Duration::ZERO)));
        let how = answers.clone();
        let task = spawn_local(async move {
            let mut buffer = vec![0; 4096];
            loop {
                let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                    continue;
                };
                let (query, how, socket) = (buffer[..length].to_vec(), how.get(), socket.clone());
                spawn_local(async move {
                    if let Ok(answer) = answer(query, how).await {
                        let _ = socket.send_to(&answer, from).await;
                    }
                });
            }
        });
        Ok(Relay { task, answers })
    }

    /// From now on.
    pub fn answers(&self, answers: Answers) {
        self.answers.set(answers);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut query: Vec<u8>, how: Answers) -> anyhow::Result<Vec<u8>> {
    match how {
        Answers::After(delay) => {
            tokio::time::sleep(delay).await;
            let socket = UdpSocket::bind("127.0.0.1:0").await?;
            socket.connect((SERVER, 53)).await?;
            socket.send(&query).await?;
            let mut buffer = vec![0; 4096];
            let length = socket.recv(&mut buffer).await?;
            buffer.truncate(length);
            Ok(buffer)
        }
        Answers::Nothing(code) => {
            ensure!(query.len() >= 12, "no query");
            // A response (QR), recursion available (RA), no record of any kind beside the question.
            query[2] |= 0x80;
            query[3] = 0x80 | code;
            let end = 12 + question(&query[12..])?;
            query.truncate(end);
            query[6..12].fill(0);
            Ok(query)
        }
    }
}

/// The length of a question: its name's labels, type and class.
fn question(bytes: &[u8]) -> anyhow::Result<usize> {
    let mut at = 0;
    loop {
        let label = usize::from(*bytes.get(at).context("no name")?);
        at += 1 + label;
        if label == 0 {
            return Ok(at + 4);
        }
    }
}
