//! Clients that vanish at every byte of what they send and are sent: nobody else notices.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::skip_unless;
use millrace_tests::differential::script::Family;
use millrace_tests::differential::suite;
use millrace_tests::harness::{self, ProxyOptions, Stage};
use millrace_tests::vanish::{How, Side, Vanish, Vanishing};
use millrace_tests::wire::{Connection, Expect, Item, Login, Param, Target, cap, com};

/// An answer of several of the proxy's reads.
const LONG: &str = "SELECT REPEAT('K', 30000), REPEAT('L', 30000), REPEAT('M', 10000)";

/// What a client does until it vanishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Texts,
    Prepared,
    Cursor,
    Upload,
    Long,
    ChangeUser,
    Routine,
    LongData,
    Written,
}

impl Script {
    const ALL: [Script; 9] = [
        Script::Texts,
        Script::Prepared,
        Script::Cursor,
        Script::Upload,
        Script::Long,
        Script::ChangeUser,
        Script::Routine,
        Script::LongData,
        Script::Written,
    ];

    /// Runs to its end, or until the client has vanished. Every error is the vanished client's own.
    async fn run(self, client: &mut Connection) {
        let cut = |reply: &millrace_tests::wire::Reply| reply.broken().is_some();
        match self {
            Script::Texts => {
                for sql in [
                    "SET @secret='of the vanished', sql_mode='ANSI', time_zone='+03:00'",
                    "INSERT INTO d_noise.n (v) VALUES (900), (901)",
                    "SELECT id, name, 'of the vanished' FROM small ORDER BY id",
                    "SELECT CAST('x' AS UNSIGNED)",
                    "BEGIN",
                    "UPDATE d_noise.n SET v=v+1 WHERE id=2",
                    "SELECT 'of the vanished' UNION ALL SELECT 'too'; DO 1; SELECT 7",
                    "COMMIT",
                ] {
                    let reply = client.query(sql).await;
                    if cut(&reply) {
                        return;
                    }
                }
            }
            Script::Prepared | Script::Cursor => {
                let reply = client
                    .prepare(b"SELECT id, name, 'of the vanished' FROM small ORDER BY id")
                    .await;
                let Some((id, _)) = reply.statement_id() else {
                    return;
                };
                let flags = u8::from(self == Script::Cursor);
                let reply = client.execute(id, flags, &[], false).await;
                if cut(&reply) {
                    return;
                }
                if self == Script::Cursor {
                    for _ in 0..3 {
                        if cut(&client.fetch(id, 2).await) {
                            return;
                        }
                    }
                }
                let _ = client
                    .command(com::STMT_CLOSE, &id.to_le_bytes(), Expect::Nothing)
                    .await;
                client.query("SELECT 'of the vanished'").await;
            }
            Script::Upload => {
                client.infile = vec![b"901\n902\n".to_vec(), b"903\n".to_vec()];
                let load = "LOAD DATA LOCAL INFILE 'x' INTO TABLE d_noise.n (v)";
                if cut(&client.query(load).await) {
                    return;
                }
                client.query("SELECT 'of the vanished'").await;
            }
            Script::Long => {
                client.query(LONG).await;
            }
            Script::Routine => {
                if cut(&client.query("CALL d_noise.several()").await) {
                    return;
                }
                client.query("SELECT 'of the vanished'").await;
            }
            Script::LongData => {
                let reply = client.prepare(b"SELECT ?, 'of the vanished'").await;
                let Some((id, _)) = reply.statement_id() else {
                    return;
                };
                for part in [&b"of the "[..], b"vanished"] {
                    let mut body = id.to_le_bytes().to_vec();
                    body.extend_from_slice(&[0, 0]);
                    body.extend_from_slice(part);
                    client
                        .command(com::STMT_SEND_LONG_DATA, &body, Expect::Nothing)
                        .await;
                }
                let Ok(long) = Param::parse(b"longdata") else {
                    return;
                };
                let long = [long];
                if cut(&client.execute(id, 0, &long, true).await) {
                    return;
                }
                client.query("SELECT 'of the vanished'").await;
            }
            // A replica waits for what was written.
            Script::Written => {
                for sql in [
                    "INSERT INTO d_noise.n (v) VALUES (900)",
                    "SELECT COUNT(*) >= 0, 'of the vanished' FROM d_noise.n",
                    "START TRANSACTION READ ONLY",
                    "SELECT 'of the vanished' FROM d_noise.n LIMIT 1",
                    "COMMIT",
                ] {
                    if cut(&client.query(sql).await) {
                        return;
                    }
                }
            }
            Script::ChangeUser => {
                client.query("SET @secret='of the vanished'").await;
                let reply = client
                    .change_user("t_other", "other-secret", "base", 45)
                    .await;
                if cut(&reply) {
                    return;
                }
                client
                    .command(com::RESET_CONNECTION, &[], Expect::Single)
                    .await;
                client.query("SELECT 'of the vanished'").await;
            }
        }
    }

    /// After how many bytes of one side it vanishes, of `all` that the whole takes.
    fn cuts(self, side: Side, all: u64, how: How, way: Way) -> Vec<u64> {
        let step = match (self, side) {
            // Mostly one value: around the proxy's reads, and at the answer's last bytes.
            (Script::Long, Side::Down) => 1999,
            _ if is_whole() => 1,
            _ if matches!(how, How::Silence(_)) && way != Way::Plain => 151,
            _ if matches!(how, How::Silence(_)) => 41,
            _ if how == How::Fin && way != Way::Plain => 67,
            // What is written and read is the same; only the bytes on the way are others.
            _ if way == Way::Tls => 17,
            _ if way == Way::Compressed => 3,
            _ if how == How::Fin => 5,
            _ => 1,
        };
        let ends = all.saturating_sub(40)..=all;
        let cuts = (1..=all).step_by(step);
        let mut cuts: Vec<u64> = cuts.chain(ends.step_by(step.clamp(1, 8))).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }
}

/// How the vanishing clients come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Tls,
    Compressed,
}

fn login(address: &Target) -> Login {
    let mut login = Login::new(address.clone(), "t_app", "app-secret").database("base");
    login.timeout = Duration::from_secs(20);
    login
}

fn victim(port: u16, way: Way) -> Login {
    let mut login = login(&Target::Tcp(format!("127.0.0.1:{port}")));
    match way {
        Way::Plain => {}
        Way::Tls => login.tls = true,
        Way::Compressed => login.capabilities |= cap::COMPRESS,
    }
    login
}

/// Runs a script through a forwarder; answers the bytes that passed, up and down.
async fn run(
    proxy: SocketAddr,
    way: Way,
    script: Script,
    plan: Option<Vanish>,
) -> anyhow::Result<(u64, u64)> {
    let forwarder = Vanishing::start(proxy, plan).await?;
    let passed = forwarder.passed.clone();
    if let Ok((Some(mut client), _)) = Connection::try_open(&victim(forwarder.port, way)).await {
        script.run(&mut client).await;
        if plan.is_none() {
            let counts = (passed.of(Side::Up), passed.of(Side::Down));
            client.quit().await;
            return Ok(counts);
        }
    }
    forwarder.gone().await;
    Ok((passed.of(Side::Up), passed.of(Side::Down)))
}

/// Two clients that are there all the time, and one that comes anew, get what is theirs.
struct Witnesses {
    address: Target,
    text: Connection,
    prepared: (Connection, u32),
    asked: u64,
}

impl Witnesses {
    async fn new(address: &Target) -> anyhow::Result<Self> {
        let mut text = Connection::open(&login(address)).await?;
        text.expect("SET @mine='mine'").await?;
        let mut prepared = Connection::open(&login(address)).await?;
        let id = prepared.prepare(b"SELECT CONCAT('p', ?)").await;
        let (id, _) = id.statement_id().context("not prepared")?;
        Ok(Self {
            address: address.clone(),
            text,
            prepared: (prepared, id),
            asked: 0,
        })
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        self.asked += 1;
        let n = self.asked;
        let question = format!("SELECT 'mine {n}', @mine, @secret, @@sql_mode LIKE '%ANSI%'");
        let reply = self.text.expect(&question).await?;
        let own = [Some(format!("mine {n}")), Some("mine".into()), None];
        let rows = reply.rows();
        ensure!(
            rows.len() == 1 && rows[0][..3] == own && rows[0][3].as_deref() == Some("0"),
            "{question}: {:?}",
            reply.render()
        );
        let (client, id) = &mut self.prepared;
        let param = Param::text(&n.to_string());
        let reply = client.execute(*id, 0, &[param], true).await;
        ensure!(
            reply.scalar() == Some(format!("p{n}")),
            "execution {n}: {:?}",
            reply.render()
        );
        if n.is_multiple_of(16) {
            let mut new = Connection::open(&login(&self.address))
                .await
                .context("a new client cannot log in")?;
            let reply = new.expect("SELECT @secret, DATABASE(), 5").await?;
            let expected = [None, Some("base".to_owned()), Some("5".to_owned())];
            ensure!(reply.rows() == [expected.to_vec()], "{:?}", reply.render());
            let reply = new.query("SHOW WARNINGS").await;
            ensure!(reply.rows().is_empty(), "{:?}", reply.render());
            new.quit().await;
        }
        Ok(())
    }
}

async fn vanishing(family: Family) -> anyhow::Result<()> {
    let options = ProxyOptions {
        pool_max: 1,
        workers: Some(1),
        log: "warn",
        ..ProxyOptions::default()
    };
    let mut stage = Stage::start(family, 1, &options).await?;
    suite::prepare(&harness::admin(stage.cluster.primary().port), family, &[]).await?;
    let mut control = stage.cluster.control(&stage.cluster.primary().name).await?;
    control
        .run("CREATE PROCEDURE d_noise.several() BEGIN SELECT 'of the vanished'; SELECT 2; SELECT 'too'; END")
        .await?;
    control.close().await;
    stage
        .cluster
        .wait_replicas_caught_up(Duration::from_secs(30))
        .await?;
    let Target::Tcp(address) = stage.address.clone() else {
        anyhow::bail!("not TCP");
    };
    let proxy: SocketAddr = address.parse()?;
    let mut witnesses = Witnesses::new(&stage.address).await?;
    let silence = How::Silence(Duration::from_millis(30));
    let mut vanished = 0;
    for way in [Way::Plain, Way::Tls, Way::Compressed] {
        for script in Script::ALL {
            let (up, down) = run(proxy, way, script, None).await?;
            for how in [How::Reset, How::Fin, silence] {
                for (side, all) in [(Side::Up, up), (Side::Down, down)] {
                    for after in script.cuts(side, all, how, way) {
                        let plan = Vanish { side, after, how };
                        run(proxy, way, script, Some(plan)).await?;
                        vanished += 1;
                        witnesses.look().await.with_context(|| {
                            format!("{family}, {way:?}, {script:?}, after {plan:?} of {all} bytes")
                        })?;
                    }
                }
            }
        }
    }
    eprintln!("{family}: {vanished} clients vanished");
    let proxy = stage.proxy.as_mut().context("no proxy")?;
    ensure!(proxy.alive(), "millrace died; its log:\n{}", proxy.log());
    ensure!(!proxy.log().contains("panicked"), "{}", proxy.log());
    Ok(())
}

/// Clients that close, or are reset, without having read a byte of a long answer: the pool of two
/// connections serves everybody else as before.
async fn unread(family: Family) -> anyhow::Result<()> {
    let options = ProxyOptions {
        pool_max: 2,
        workers: Some(1),
        log: "warn",
        ..ProxyOptions::default()
    };
    let stage = Stage::start(family, 0, &options).await?;
    suite::prepare(&harness::admin(stage.cluster.primary().port), family, &[]).await?;
    let mut other = Connection::open(&login(&stage.address)).await?;
    for n in 0..60 {
        let sql = match n % 3 {
            0 => "SELECT REPEAT('K', 30000)",
            1 => "SELECT 'of the vanished'",
            _ => LONG,
        };
        let mut client = Connection::open(&login(&stage.address)).await?;
        client.send(com::QUERY, sql.as_bytes()).await?;
        if n % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        drop(client);
        let mut new = Connection::open(&login(&stage.address)).await?;
        for client in [&mut other, &mut new] {
            let reply = client.query(format!("SELECT 'mine {n}'")).await;
            let is_mine = reply.scalar() == Some(format!("mine {n}"));
            let whole = !matches!(
                reply.events.last().map(|event| &event.item),
                Some(Item::Timeout | Item::Closed(_))
            );
            ensure!(is_mine && whole, "after {n}: {:?}", reply.render());
        }
    }
    Ok(())
}

/// At every byte, in every way: `make long`.
fn is_whole() -> bool {
    std::env::var_os("MILLRACE_WHOLE").is_some()
}

fn is_here(family: Family, what: &str) -> bool {
    skip_unless(family, what) && !harness::direct_only()
}

#[tokio::test]
async fn mariadb_clients_cut_at_every_byte() -> anyhow::Result<()> {
    match is_here(Family::MariaDb, "clients cut at every byte") {
        true => vanishing(Family::MariaDb).await,
        false => Ok(()),
    }
}

#[tokio::test]
async fn mysql_clients_cut_at_every_byte() -> anyhow::Result<()> {
    match is_here(Family::MySql, "clients cut at every byte") {
        true => vanishing(Family::MySql).await,
        false => Ok(()),
    }
}

#[tokio::test]
async fn mariadb_answers_that_nobody_reads() -> anyhow::Result<()> {
    match is_here(Family::MariaDb, "answers that nobody reads") {
        true => unread(Family::MariaDb).await,
        false => Ok(()),
    }
}

#[tokio::test]
async fn mysql_answers_that_nobody_reads() -> anyhow::Result<()> {
    match is_here(Family::MySql, "answers that nobody reads") {
        true => unread(Family::MySql).await,
        false => Ok(()),
    }
}
