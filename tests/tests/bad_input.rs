//! Broken clients and vanishing servers: a clear error to the one concerned, memory bounded, everyone else served.

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

/// A proxy whose servers are behind forwarders.
struct CutStage {
    /// Dropped before the servers.
    proxy: Proxy,
    address: Target,
    cutters: Vec<Cutter>,
    cluster: millrace_sandbox::Cluster,
}

async fn cut_stage(family: Family) -> anyhow::Result<CutStage> {
    let cluster = harness::cluster(family, 2).await?;
    suite::prepare(&harness::admin(cluster.primary().port), family, &[]).await?;
    cluster
        .wait_replicas_caught_up(Duration::from_secs(30))
        .await?;
    let mut cutters = Vec::new();
    for server in cluster.servers() {
        cutters.push(Cutter::start(server.port).await?);
    }
    let servers: Vec<String> = cutters
        .iter()
        .map(|c| format!("127.0.0.1:{}", c.port))
        .collect();
    // Statements that no server can run are to be answered soon.
    let options = ProxyOptions {
        extra: "[failover]\nhold_time = \"500ms\"\n".to_owned(),
        ..ProxyOptions::default()
    };
    let proxy = Proxy::start(&servers, &options).await?;
    Ok(CutStage {
        address: proxy.address(),
        proxy,
        cutters,
        cluster,
    })
}

/// An answer that is not right must be an error packet or an end, never wrong rows.
fn honest(reply: &Reply, rows: usize) -> Result<bool, String> {
    if let Some(err) = reply.err() {
        if (1000..6000).contains(&err.code) && err.state.len() == 5 && !err.message.is_empty() {
            return Ok(false);
        }
        return Err(format!("an odd error: {err}"));
    }
    if let Some(why) = reply.broken() {
        return if why.contains("timeout") {
            Err(why)
        } else {
            Ok(false)
        };
    }
    let whole = matches!(
        reply.events.last().map(|e| &e.item),
        Some(Item::Ok(_) | Item::Eof { .. })
    );
    if whole && reply.rows().len() == rows {
        return Ok(true);
    }
    Err(format!(
        "{} rows instead of {rows}, whole: {whole}",
        reply.rows().len()
    ))
}

async fn back_to_normal(stage: &CutStage) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        match served(&stage.address).await {
            Ok(()) => return Ok(()),
            Err(e) if Instant::now() > deadline => return Err(e.context("never back to normal")),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn cut_everywhere(family: Family) -> anyhow::Result<()> {
    let mut stage = cut_stage(family).await?;
    let mut outcomes = (0, 0);
    // Every early byte, where the login and the state's replay are, then coarser.
    let cuts = (1..60)
        .chain((60..200).step_by(7))
        .chain((200..4000).step_by(397));
    for cut in cuts {
        for sql in [
            "SELECT id, name FROM small ORDER BY id",
            "INSERT INTO d_noise.n (v) VALUES (1)",
        ] {
            let mut client = match Connection::try_open(&login(&stage.address)).await {
                Ok((Some(client), _)) => client,
                Ok((None, reply)) => {
                    honest(&reply, 0).map_err(|e| anyhow::anyhow!("login: {e}"))?;
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::TimedOut => {
                    anyhow::bail!("a login hangs after cut {cut}");
                }
                Err(_) => continue,
            };
            client.query("SET @a=1, time_zone='+01:00'").await;
            for cutter in &stage.cutters {
                cutter.set(Mode::CutAfter(cut));
            }
            let rows = if sql.starts_with("SELECT") { 5 } else { 0 };
            let reply = client.query(sql).await;
            match honest(&reply, rows) {
                Ok(true) => outcomes.0 += 1,
                Ok(false) => outcomes.1 += 1,
                Err(what) => {
                    anyhow::bail!("{sql} cut after {cut} bytes: {what}; {:?}", reply.render())
                }
            }
            for cutter in &stage.cutters {
                cutter.set(Mode::Forward);
            }
        }
    }
    eprintln!(
        "{family}: {} statements came through, {} ended in an error",
        outcomes.0, outcomes.1
    );
    back_to_normal(&stage).await?;
    ensure!(
        stage.proxy.alive(),
        "millrace died; its log:\n{}",
        stage.proxy.log()
    );
    ensure!(
        !stage.proxy.log().contains("panicked"),
        "{}",
        stage.proxy.log()
    );
    Ok(())
}

#[tokio::test]
async fn servers_cut_at_every_byte() -> anyhow::Result<()> {
    if harness::direct_only() {
        return Ok(());
    }
    for family in [Family::MariaDb, Family::MySql] {
        if skip_unless(family, "servers cut at every byte") {
            cut_everywhere(family).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn replicas_that_hang_or_die() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "replicas that hang or die") || harness::direct_only() {
        return Ok(());
    }
    let mut stage = cut_stage(FAMILY).await?;
    back_to_normal(&stage).await?;
    // Both replicas refuse: the primary serves reads.
    for cutter in &stage.cutters[1..] {
        cutter.set(Mode::Refuse);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    back_to_normal(&stage).await?;
    for _ in 0..20 {
        served(&stage.address).await?;
    }
    for cutter in &stage.cutters[1..] {
        cutter.set(Mode::Forward);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    served(&stage.address).await?;

    // One replica hangs: it goes out of rotation, and others are served meanwhile.
    stage.cutters[1].set(Mode::Stall);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for _ in 0..10 {
        served(&stage.address).await?;
    }
    stage.cutters[1].set(Mode::Forward);
    back_to_normal(&stage).await?;

    // A replica is killed and comes back.
    let name = stage.cluster.replicas()[0].name.clone();
    stage.cluster.kill(&name).await?;
    for _ in 0..20 {
        let mut client = Connection::open(&login(&stage.address)).await?;
        let reply = client.query("SELECT COUNT(*) FROM small").await;
        honest(&reply, 1).map_err(anyhow::Error::msg)?;
    }
    stage.cluster.start(&name).await?;
    back_to_normal(&stage).await?;
    ensure!(
        stage.proxy.alive(),
        "millrace died; its log:\n{}",
        stage.proxy.log()
    );
    Ok(())
}

#[tokio::test]
async fn primary_gone_and_back() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "the primary gone and back") || harness::direct_only() {
        return Ok(());
    }
    let mut stage = cut_stage(FAMILY).await?;
    back_to_normal(&stage).await?;
    let mut reader = Connection::open(&login(&stage.address)).await?;
    let mut writer = Connection::open(&login(&stage.address)).await?;
    let mut pinned = Connection::open(&login(&stage.address)).await?;
    pinned.expect("BEGIN").await?;
    pinned
        .expect("INSERT INTO d_noise.n (v) VALUES (5)")
        .await?;

    stage.cutters[0].set(Mode::Refuse);
    // An open transaction on it is lost: an error or an end, never an OK.
    let reply = pinned.query("COMMIT").await;
    ensure!(
        honest(&reply, 0) == Ok(false),
        "COMMIT on a dead primary: {:?}",
        reply.render()
    );
    // A write gets an error that names what is wrong, within the limits.
    let started = Instant::now();
    let reply = writer.query("INSERT INTO d_noise.n (v) VALUES (6)").await;
    ensure!(
        honest(&reply, 0) == Ok(false),
        "a write without a primary: {:?}",
        reply.render()
    );
    ensure!(
        started.elapsed() < Duration::from_secs(15),
        "after {:?}",
        started.elapsed()
    );
    // Reads go on.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let reply = reader.query("SELECT COUNT(*) FROM small").await;
    ensure!(
        honest(&reply, 1) == Ok(true),
        "a read without a primary: {:?}",
        reply.render()
    );

    stage.cutters[0].set(Mode::Forward);
    back_to_normal(&stage).await?;
    let count = stage
        .cluster
        .control("s1")
        .await?
        .value("SELECT COUNT(*) FROM d_noise.n WHERE v=5")
        .await?;
    ensure!(
        count.as_deref() == Some("0"),
        "a lost transaction left {count:?}"
    );
    ensure!(
        stage.proxy.alive(),
        "millrace died; its log:\n{}",
        stage.proxy.log()
    );
    Ok(())
}

#[tokio::test]
async fn drain_on_sigterm() -> anyhow::Result<()> {
    if !skip_unless(FAMILY, "draining") || harness::direct_only() {
        return Ok(());
    }
    let mut stage = stage(&ProxyOptions::default()).await?;
    let mut idle = Connection::open(&login(&stage.address)).await?;
    idle.expect("SELECT 1").await?;
    let mut busy = Connection::open(&login(&stage.address)).await?;
    busy.send(com::QUERY, b"SELECT SLEEP(1.5), 'done'").await?;
    let mut open = Connection::open(&login(&stage.address)).await?;
    open.expect("BEGIN").await?;
    open.expect("INSERT INTO d_noise.n (v) VALUES (77)").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;

    let mut proxy = stage.proxy.take().context("no proxy")?;
    let ending = tokio::spawn(async move { proxy.terminate(Duration::from_secs(20)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(
        Connection::open(&login(&stage.address)).await.is_err(),
        "a new client was let in"
    );
    let reply = busy.read_reply(Expect::Results { binary: false }).await;
    let row = reply.rows().pop().and_then(|mut r| r.pop()).flatten();
    ensure!(
        row.as_deref() == Some("done"),
        "a running statement: {:?}",
        reply.render()
    );
    open.expect("INSERT INTO d_noise.n (v) VALUES (78)")
        .await
        .context("an open transaction")?;
    open.expect("COMMIT").await.context("its commit")?;
    let (status, took) = ending.await??;
    ensure!(status.success(), "ended with {status}");
    ensure!(took < Duration::from_secs(10), "took {took:?}");
    let mut control = stage.cluster.control("s1").await?;
    let count = control
        .value("SELECT COUNT(*) FROM d_noise.n WHERE v IN (77, 78)")
        .await?;
    ensure!(
        count.as_deref() == Some("2"),
        "the transaction left {count:?}"
    );
    drop(idle);
    Ok(())
}
