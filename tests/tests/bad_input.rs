//! Broken clients and vanishing servers: a clear error to the one concerned, memory bounded, everyone else served.

#[path = "bad_input/vanishing_servers.rs"]
mod vanishing_servers;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::skip_unless;
use millrace_tests::cutter::{Cutter, Mode};
use millrace_tests::differential::script::Family;
use millrace_tests::differential::suite;
use millrace_tests::harness::{self, Proxy, ProxyOptions, Stage};
use millrace_tests::wire::{Connection, Expect, Item, Login, Reply, Target, cap, com};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The family for what does not depend on the family: the one that starts faster.
const FAMILY: Family = Family::MariaDb;

/// Deterministic noise.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn take(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// Seconds that a test may take less of on a slow machine.
fn scale(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

async fn stage(options: &ProxyOptions) -> anyhow::Result<Stage> {
    let stage = Stage::start(FAMILY, 2, options).await?;
    suite::prepare(&harness::admin(stage.cluster.primary().port), FAMILY, &[]).await?;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(30))
        .await?;
    Ok(stage)
}

fn login(address: &Target) -> Login {
    let mut login = Login::new(address.clone(), "t_app", "app-secret").database("base");
    login.timeout = Duration::from_secs(15);
    login
}

fn socket_address(address: &Target) -> anyhow::Result<SocketAddr> {
    let Target::Tcp(address) = address else {
        anyhow::bail!("not TCP")
    };
    Ok(address.parse()?)
}

/// A well-behaved client is served, reads and writes, within a time that says so.
async fn served(address: &Target) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut client = Connection::open(&login(address))
        .await
        .context("a good client cannot log in")?;
    let reply = client.expect("SELECT COUNT(*) FROM small").await?;
    ensure!(
        reply.scalar().as_deref() == Some("5"),
        "a good client got {:?}",
        reply.render()
    );
    client
        .expect("UPDATE d_noise.n SET v=v+1 WHERE id=1")
        .await?;
    client.quit().await;
    ensure!(
        started.elapsed() < Duration::from_secs(10),
        "served, but after {:?}",
        started.elapsed()
    );
    Ok(())
}

fn alive(stage: &mut Stage) -> anyhow::Result<()> {
    if let Some(proxy) = &mut stage.proxy {
        let log = proxy.log();
        ensure!(proxy.alive(), "millrace died; its log:\n{log}");
        ensure!(
            !log.contains("panicked"),
            "millrace panicked; its log:\n{log}"
        );
    }
    Ok(())
}

fn resident_kib(stage: &Stage) -> u64 {
    stage
        .proxy
        .as_ref()
        .and_then(|p| p.resident_kib().ok())
        .unwrap_or(0)
}

/// Reads until the other side closes or says nothing for a while.
async fn drain(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(Ok(1..)) =
        tokio::time::timeout(Duration::from_millis(50), stream.read(&mut buffer)).await
    {}
}

#[tokio::test]
async fn garbage_before_login() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "garbage before the login") {
        return Ok(());
    }
    let mut stage = stage(&ProxyOptions::default()).await?;
    let address = socket_address(&stage.address)?;
    let before = resident_kib(&stage);
    let mut bytes = Bytes(0x5eed);
    for round in 0..scale("MILLRACE_GARBAGE_ROUNDS", 300) {
        let mut stream = TcpStream::connect(address).await?;
        let n = (bytes.next() % 600) as usize;
        let mut garbage = bytes.take(n);
        if round % 3 == 0 && n > 4 {
            // A plausible header, so that the body is looked at.
            let len = (n - 4) as u32;
            garbage[..3].copy_from_slice(&len.to_le_bytes()[..3]);
            garbage[3] = 1;
        }
        if round % 2 == 0 {
            drain(&mut stream).await;
        }
        // The proxy may have closed already.
        let _ = stream.write_all(&garbage).await;
        if round % 5 == 0 {
            drain(&mut stream).await;
        }
    }
    served(&stage.address).await?;
    alive(&mut stage)?;
    let grown = resident_kib(&stage).saturating_sub(before);
    ensure!(grown < 64 * 1024, "grew by {grown} KiB");
    Ok(())
}

#[tokio::test]
async fn truncated_logins() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "truncated logins") {
        return Ok(());
    }
    let mut stage = stage(&ProxyOptions::default()).await?;
    let address = socket_address(&stage.address)?;
    let good = login_packet();
    for cut in 0..good.len() {
        let mut stream = TcpStream::connect(address).await?;
        // The whole packet announced, a part sent, then gone.
        let _ = stream.write_all(&good[..cut]).await;
        if cut % 16 == 0 {
            drain(&mut stream).await;
        }
        drop(stream);
        // A short packet that says that it is whole.
        if cut > 4 {
            let mut stream = TcpStream::connect(address).await?;
            let mut packet = good[..cut].to_vec();
            packet[..3].copy_from_slice(&((cut - 4) as u32).to_le_bytes()[..3]);
            let _ = stream.write_all(&packet).await;
            drain(&mut stream).await;
        }
    }
    served(&stage.address).await?;
    alive(&mut stage)
}

/// A login's answer with every field that a modern client sends.
fn login_packet() -> Vec<u8> {
    let mut body = 0x00bf_a20d_u32.to_le_bytes().to_vec();
    body.extend_from_slice(&0x0100_0000_u32.to_le_bytes());
    body.push(45);
    body.extend_from_slice(&[0; 23]);
    body.extend_from_slice(b"t_app\0");
    body.push(20);
    body.extend_from_slice(&[7; 20]);
    body.extend_from_slice(b"base\0mysql_native_password\0");
    body.extend_from_slice(b"\x0c\x04_pid\x06123456");
    let mut packet = (body.len() as u32).to_le_bytes()[..3].to_vec();
    packet.push(1);
    packet.extend_from_slice(&body);
    packet
}

#[tokio::test]
async fn garbage_after_login() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "garbage after the login") {
        return Ok(());
    }
    let mut stage = stage(&ProxyOptions::default()).await?;
    let before = resident_kib(&stage);
    let mut bytes = Bytes(0xfeed);
    for round in 0..scale("MILLRACE_GARBAGE_ROUNDS", 300) {
        let mut client = Connection::open(&login(&stage.address)).await?;
        client.login.timeout = Duration::from_millis(200);
        let n = 1 + (bytes.next() % 200) as usize;
        let garbage = bytes.take(n);
        match round % 4 {
            // Bytes without any frame.
            0 => drop(client.frames.write_raw(&garbage).await),
            // A frame around garbage: some command, some arguments.
            1 => {
                let mut command = garbage.clone();
                command[0] %= 0x21;
                if command[0] != com::SLEEP && command[0] != com::QUIT && command[0] != 0x08 {
                    let _ = client.command(command[0], &command[1..], Expect::Raw).await;
                }
            }
            // A wrong sequence number.
            2 => {
                let _ = client
                    .frames
                    .write_raw(b"\x09\x00\x00\x07\x03SELECT 1")
                    .await;
                let _ = client.read_reply(Expect::Raw).await;
            }
            // A frame longer than what follows, then gone.
            _ => drop(client.frames.write_raw(b"\xff\xff\x00\x00\x03SELECT").await),
        }
    }
    served(&stage.address).await?;
    alive(&mut stage)?;
    let grown = resident_kib(&stage).saturating_sub(before);
    ensure!(grown < 64 * 1024, "grew by {grown} KiB");
    Ok(())
}

/// `DO 1` with a comment, in so many bytes of payload, as frames whose numbers grow by `step`.
fn long_comment(payload: usize, step: usize) -> Vec<u8> {
    let mut command = b"\x03DO 1 /*".to_vec();
    command.resize(payload - 2, b'x');
    command.extend_from_slice(b"*/");
    let mut framed = Vec::with_capacity(payload + 20);
    for (seq, frame) in command.chunks(0xff_ffff).enumerate() {
        let length = u32::try_from(frame.len()).unwrap_or_default();
        framed.extend_from_slice(&length.to_le_bytes()[..3]);
        framed.push(u8::try_from(seq * step).unwrap_or_default());
        framed.extend_from_slice(frame);
    }
    framed
}

/// MariaDB's library counts a long command's frames on by the compressed packets that they come in: servers take that.
#[tokio::test]
async fn long_commands_of_compressed_clients() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "long compressed commands") {
        return Ok(());
    }
    let stage = stage(&ProxyOptions::default()).await?;
    let mut primary = stage.cluster.control("s1").await?;
    primary
        .run("SET GLOBAL max_allowed_packet = 64 * 1024 * 1024")
        .await?;
    primary.close().await;
    let direct = Target::Tcp(format!("127.0.0.1:{}", stage.cluster.primary().port));
    for address in [&direct, &stage.address] {
        for step in [1, 9] {
            let mut login = login(address);
            login.capabilities |= cap::COMPRESS;
            let mut client = Connection::open(&login).await?;
            client
                .frames
                .write_framed(&long_comment(34 << 20, step))
                .await?;
            let told = client.frames.read().await?;
            ensure!(
                told.body.first() == Some(&0),
                "{address:?}, frames that grow by {step}: {:?}",
                String::from_utf8_lossy(&told.body)
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn absurd_lengths() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "absurd lengths") {
        return Ok(());
    }
    let options = ProxyOptions {
        packet_max_mib: 32,
        ..ProxyOptions::default()
    };
    let mut stage = stage(&options).await?;
    let before = resident_kib(&stage);
    // A hundred clients announce 16 MiB and send nothing of it: nothing may be set aside.
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let mut client = Connection::open(&login(&stage.address)).await?;
        client
            .frames
            .write_raw(b"\xff\xff\xff\x00\x03SELECT '")
            .await?;
        waiting.push(client);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let grown = resident_kib(&stage).saturating_sub(before);
    ensure!(
        grown < 100 * 1024,
        "announced lengths alone took {grown} KiB"
    );
    drop(waiting);

    // A command over the limit: an error that says so, counted after what the client has sent. As servers judge it,
    // the limit is of the payload, and itself too long; however the bytes come.
    for (length, right) in [(48 << 20, 1153), (32 << 20, 1153), ((32 << 20) - 1, 0)] {
        for pieces in [1, 2] {
            let mut client = Connection::open(&login(&stage.address)).await?;
            let packet = long_comment(length, 1);
            let at = packet.len() - 10 * (pieces - 1);
            client.frames.write_raw(&packet[..at]).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.frames.write_raw(&packet[at..]).await?;
            let told = client.frames.read().await?;
            let frames = packet.len().div_ceil((1 << 24) + 3);
            ensure!(
                usize::from(told.seq) == frames,
                "{length} bytes in {pieces}: answered as {}, not {frames}",
                told.seq
            );
            let code = match told.body.as_slice() {
                [0xff, low, high, ..] => u16::from_le_bytes([*low, *high]),
                _ => 0,
            };
            ensure!(
                code == right,
                "{length} bytes in {pieces}: {code}, not {right}"
            );
        }
    }

    // Lengths inside packets that point outside of them.
    for body in [
        &b"\x17\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01\xfd\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff"[..],
        b"\x18\x01\x00\x00\x00\xff\xff",
        b"\x11user\x00\xff",
        b"\x04",
        b"\xfa\x01\x00\x00\x00\x80\x00\xfd",
    ] {
        let mut client = Connection::open(&login(&stage.address)).await?;
        client.login.timeout = Duration::from_millis(300);
        client.prepare(b"SELECT ?").await;
        let _ = client.send_payload(body).await;
        let _ = client.read_reply(Expect::Raw).await;
    }
    served(&stage.address).await?;
    alive(&mut stage)
}

/// A server answers a packet over its own limit and closes before it has read it: what it said is the
/// answer, at once, inside of a transaction too, and no server is thought the worse of.
async fn packets_too_long_for_the_servers_of(family: Family) -> anyhow::Result<()> {
    let mut stage = Stage::start(family, 2, &ProxyOptions::default()).await?;
    suite::prepare(&harness::admin(stage.cluster.primary().port), family, &[]).await?;
    for server in stage.cluster.servers() {
        let mut admin = Connection::open(&harness::admin(server.port)).await?;
        admin
            .expect("SET GLOBAL max_allowed_packet=1048576")
            .await?;
    }
    let mut sql = b"SELECT LENGTH('".to_vec();
    sql.resize(12 << 20, b'x');
    sql.extend_from_slice(b"')");
    for begun in [false, true, false] {
        let mut client = Connection::open(&login(&stage.address)).await?;
        if begun {
            client.expect("BEGIN").await?;
            client
                .expect("UPDATE d_noise.n SET v=-1 WHERE id=1")
                .await?;
        }
        let reply = client.query(&sql).await;
        let told = reply.err().map(|err| err.code);
        // Without Millrace the client may find that it can write no more before it reads.
        ensure!(
            told == Some(1153) || harness::direct_only() && reply.broken().is_some(),
            "{family:?}, in a transaction {begun}: {:?}",
            reply.render()
        );
        let next = client.query(b"DO 1").await;
        ensure!(next.broken().is_some(), "{:?}", next.render());
        served(&stage.address).await?;
    }
    let mut client = Connection::open(&login(&stage.address)).await?;
    let reply = client
        .expect("SELECT v>0 FROM d_noise.n WHERE id=1")
        .await?;
    ensure!(reply.scalar().as_deref() == Some("1"), "not rolled back");
    alive(&mut stage)
}

#[tokio::test]
async fn packets_too_long_for_the_servers() -> anyhow::Result<()> {
    for family in [Family::MariaDb, Family::MySql] {
        if skip_unless(family, "packets too long for the servers") {
            packets_too_long_for_the_servers_of(family).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn clients_that_stop_reading() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "clients that stop reading") {
        return Ok(());
    }
    let options = ProxyOptions {
        pool_max: 8,
        ..ProxyOptions::default()
    };
    let mut stage = stage(&options).await?;
    served(&stage.address).await?;
    let before = resident_kib(&stage);
    // Three clients ask for 200 MB each and do not read.
    let mut lazy = Vec::new();
    for _ in 0..3 {
        let mut client = Connection::open(&login(&stage.address)).await?;
        let sql = b"SELECT REPEAT('x', 2000000) FROM digits a, digits b";
        client.send(com::QUERY, sql).await?;
        lazy.push(client);
    }
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        served(&stage.address).await?;
    }
    let grown = resident_kib(&stage).saturating_sub(before);
    ensure!(grown < 96 * 1024, "unread results took {grown} KiB");
    // They read on: nothing is lost.
    let mut client = lazy.pop().context("no client")?;
    let reply = client.read_reply(Expect::Results { binary: false }).await;
    ensure!(reply.rows().len() == 100, "{} rows", reply.rows().len());
    drop((client, lazy));
    served(&stage.address).await?;
    alive(&mut stage)
}

#[tokio::test]
async fn half_open_logins() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "half-open logins") {
        return Ok(());
    }
    let wanted = scale("MILLRACE_HALF_OPEN", 10_000);
    let options = ProxyOptions {
        clients_max: 15_000,
        login_timeout: Duration::from_secs(20),
        ..ProxyOptions::default()
    };
    let mut stage = stage(&options).await?;
    let address = socket_address(&stage.address)?;
    let before = resident_kib(&stage);
    let mut open = Vec::with_capacity(wanted);
    for n in 0..wanted {
        let mut stream = TcpStream::connect(address).await?;
        if n % 2 == 0 {
            // Half of a login, never ended.
            let _ = stream.write_all(&login_packet()[..20]).await;
        }
        open.push(stream);
        if n % 1000 == 999 {
            served(&stage.address)
                .await
                .with_context(|| format!("after {n} half-open logins"))?;
        }
    }
    let grown = resident_kib(&stage).saturating_sub(before);
    eprintln!("{wanted} half-open logins took {grown} KiB");
    ensure!(
        grown < 400 * 1024,
        "{wanted} half-open logins took {grown} KiB"
    );
    served(&stage.address).await?;

    // The login's time limit ends them all.
    tokio::time::sleep(Duration::from_secs(21)).await;
    let mut buffer = [0; 1024];
    let mut ended = 0;
    for stream in open.iter_mut().step_by(97) {
        let limit = Duration::from_secs(3);
        let end = tokio::time::timeout(limit, async {
            while let Ok(1..) = stream.read(&mut buffer).await {}
        });
        ended += usize::from(end.await.is_ok());
    }
    let asked = open.len().div_ceil(97);
    ensure!(
        harness::direct_only() || ended == asked,
        "only {ended} of {asked} were ended"
    );
    drop(open);
    served(&stage.address).await?;
    alive(&mut stage)
}

#[tokio::test]
async fn too_many_clients() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "too many clients") || harness::direct_only() {
        return Ok(());
    }
    let mut stage = stage(&ProxyOptions {
        clients_max: 5,
        ..ProxyOptions::default()
    })
    .await?;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(Connection::open(&login(&stage.address)).await?);
    }
    let (client, reply) = Connection::try_open(&login(&stage.address)).await?;
    ensure!(client.is_none(), "a sixth client was let in");
    let err = reply.err().context("no error for the sixth client")?;
    ensure!(err.code == 1040, "not the standard code: {err}");
    clients.pop();
    tokio::time::sleep(Duration::from_millis(200)).await;
    served(&stage.address).await?;
    alive(&mut stage)
}

// --- Servers that vanish ---
