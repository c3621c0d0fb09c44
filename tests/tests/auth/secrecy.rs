//! Passwords stay inside, and guessing them is slow.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_sandbox::{APP, Family};
use millrace_tests::harness::Launch;
use millrace_tests::wire::{Connection, Login, Target};

use crate::ground::{Ground, Seen, Way, monitor_toml, servers_toml};

/// Passwords in statements and everything before, in any form that a log could have them.
pub(crate) async fn no_secret_gets_out(ground: &Ground) -> anyhow::Result<()> {
    let admin = millrace_sandbox::ADMIN;
    let mut connection =
        Connection::open(&ground.through(admin.user, admin.password, Way::Plain)).await?;
    ground.secret("in-a-statement-3b8");
    ground.secret("in-a-wrong-statement-6f2");
    let identified = ground.identified(ground.plugins()[0], "in-a-statement-3b8");
    connection
        .expect(&format!("CREATE USER said {identified}"))
        .await?;
    connection
        .query("ALTER USER said IDENTIFID BY 'in-a-wrong-statement-6f2'")
        .await;
    connection.expect("DROP USER said").await?;
    let log = std::fs::read(ground.proxy.log_path())?;
    let log = String::from_utf8_lossy(&log);
    ensure!(log.contains("listening"), "the log is not complete: {log}");
    let metrics = ground.proxy.metrics().await?;
    let command_line = std::fs::read(format!("/proc/{}/cmdline", ground.proxy.pid()))?;
    let command_line = String::from_utf8_lossy(&command_line);
    let mut secrets = ground.secrets.borrow().clone();
    secrets.sort();
    secrets.dedup();
    // Of accounts without a password.
    secrets.retain(|secret| !secret.is_empty());
    ensure!(!secrets.is_empty(), "no secret was used");
    let mut found = Vec::new();
    for secret in &secrets {
        for form in forms(secret) {
            for (place, text) in [
                ("log", &*log),
                ("metrics", metrics.as_str()),
                ("command line", &*command_line),
            ] {
                if let Some(line) = text.lines().find(|line| line.contains(&form)) {
                    found.push(format!("{secret} in the {place}: {line}"));
                }
            }
        }
    }
    ensure!(
        found.is_empty(),
        "{} leaks: {}",
        found.len(),
        found.join("\n")
    );
    Ok(())
}

/// As text, as the debug form of bytes, as hexadecimal digits.
pub(crate) fn forms(secret: &str) -> [String; 3] {
    let bytes = secret.as_bytes();
    let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [secret.to_owned(), list.join(", "), hex]
}

/// Failures of one address are slowed down; other addresses, and good logins, are not.
pub(crate) async fn slowed_down(ground: &Ground) -> anyhow::Result<()> {
    const DELAY: Duration = Duration::from_secs(4);
    let launch = Launch::new()?;
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:{}\"\n{}{}[http]\nlisten = \"127.0.0.1:{}\"\n\
         [auth]\nfailures_free = 2\nfailure_delay = \"4s\"\nfailure_delay_max = \"4s\"\n",
        launch.port,
        servers_toml(&ground.cluster),
        monitor_toml(),
        launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(Duration::from_secs(30)).await?;
    ground
        .account("guessed", ground.plugins()[0], "guessed-right-5b")
        .await?;
    let to: SocketAddr = ([127, 0, 0, 1], proxy.port).into();
    let login = |from: [u8; 4], password: &str| {
        Login::new(Target::TcpFrom(IpAddr::from(from), to), "guessed", password)
    };
    let wrong = ground.secret("guessed-wrong-c5");
    let time = async |login: &Login| -> anyhow::Result<Duration> {
        let started = Instant::now();
        let seen = Seen::of(login).await?;
        ensure!(seen.code() == Some(1045), "{seen:?}");
        Ok(started.elapsed())
    };
    let bad = login([127, 0, 0, 1], &wrong);
    let elsewhere = login([127, 0, 0, 2], &wrong);
    let first = time(&bad).await?;
    time(&bad).await?;
    let (third, other, good) = tokio::join!(time(&bad), time(&elsewhere), async {
        let started = Instant::now();
        let seen = Seen::of(&login([127, 0, 0, 3], "guessed-right-5b")).await;
        (seen, started.elapsed())
    });
    let (third, other) = (third?, other?);
    ensure!(third >= DELAY, "the third failure took {third:?}");
    ensure!(first < DELAY, "the first failure took {first:?}");
    ensure!(other < third, "another address waited {other:?}");
    ensure!(
        good.0?.is_in() && good.1 < third,
        "a good login waited {:?}",
        good.1
    );
    // A good login from the same address is let in, and ends it.
    let started = Instant::now();
    let seen = Seen::of(&login([127, 0, 0, 1], "guessed-right-5b")).await?;
    ensure!(seen.is_in(), "{seen:?}");
    ensure!(
        started.elapsed() < DELAY,
        "the right password took {:?}",
        started.elapsed()
    );
    let after = time(&bad).await?;
    ensure!(after < DELAY, "a failure after a good login took {after:?}");
    // So does one that the server alone can judge.
    let plugin = match ground.family {
        Family::MySql => "caching_sha2_password",
        Family::MariaDb => "ed25519",
    };
    ground
        .account("relayed_guess", plugin, "guessed-right-5b")
        .await?;
    let relayed = |password: &str| {
        let mut login = login([127, 0, 0, 5], password);
        (login.user, login.shows_password) = ("relayed_guess".to_owned(), false);
        login.attributes = vec![("_client_name".to_owned(), "libmysql".to_owned())];
        login
    };
    let mut shown = ground.direct(&ground.through("relayed_guess", "guessed-right-5b", Way::Tls));
    // MySQL keeps it for clients that do not show it.
    Connection::open(&shown).await?.quit().await;
    shown = relayed("guessed-right-5b");
    // MySQL refuses these only once their client has shown them: it leaves.
    let mut wrongs = relayed(&wrong);
    wrongs.shows_password = true;
    for _ in 0..2 {
        let seen = Seen::of(&wrongs).await?;
        ensure!(seen.code() == Some(1045), "{seen:?}");
    }
    let seen = Seen::of(&shown).await?;
    ensure!(seen.is_in(), "{seen:?}");
    let after = time(&wrongs).await?;
    ensure!(
        after < DELAY,
        "a failure after a good relayed login took {after:?}"
    );
    if ground.family == Family::MariaDb {
        // Its sessions outlive a COM_CHANGE_USER that fails, and could go on guessing.
        let session = login([127, 0, 0, 4], "guessed-right-5b");
        let mut session = Connection::open(&session).await?;
        let mut last = Duration::ZERO;
        for _ in 0..3 {
            let started = Instant::now();
            let reply = session.change_user("guessed", &wrong, "", 45).await;
            ensure!(
                reply.err().is_some_and(|e| e.code == 1045),
                "{:?}",
                reply.render()
            );
            last = started.elapsed();
        }
        ensure!(last >= DELAY, "the third guess took {last:?}");
    }
    Ok(())
}

/// Where a server locks an account after wrong passwords, those count that were tried through Millrace, however.
pub(crate) async fn guesses_count(ground: &Ground) -> anyhow::Result<()> {
    let limit = "SET GLOBAL max_password_errors";
    if ground.family == Family::MariaDb {
        ground.everywhere(&format!("{limit}=3")).await?;
    }
    let counted = guess(ground).await;
    if ground.family == Family::MariaDb {
        ground.everywhere(&format!("{limit}=DEFAULT")).await?;
    }
    counted
}

async fn guess(ground: &Ground) -> anyhow::Result<()> {
    let wrong = ground.secret("lock-but-wrong-77");
    for (number, plugin) in ground.plugins().into_iter().enumerate() {
        for (way, by_change, shows) in [
            ("logins", false, true),
            ("shy", false, false),
            ("changes", true, true),
            ("shychanges", true, false),
        ] {
            let mut codes = Vec::new();
            for side in ["direct", "through"] {
                let name = format!("lock_{way}{number}_{}", &side[..1]);
                ground.account(&name, plugin, "lock-right-5c").await?;
                if ground.family == Family::MySql {
                    let limits = "FAILED_LOGIN_ATTEMPTS 3 PASSWORD_LOCK_TIME 1";
                    ground
                        .primary(&[format!("ALTER USER '{name}'@'%' {limits}")])
                        .await?;
                }
                let to_side = |login: Login| match side {
                    "direct" => ground.direct(&login),
                    _ => login,
                };
                let right = ground.through(&name, "lock-right-5c", Way::Plain);
                Connection::open(&to_side(right.clone()))
                    .await?
                    .quit()
                    .await;
                for _ in 0..3 {
                    if by_change {
                        let app = ground.through(APP.user, APP.password, Way::Plain);
                        let mut session = to_side(app);
                        session.shows_password = true;
                        let mut session = Connection::open(&session).await?;
                        session.login.shows_password = shows;
                        let reply = session.change_user(&name, &wrong, "", 45).await;
                        ensure!(
                            reply.err().is_some() || reply.broken().is_some(),
                            "it changed"
                        );
                    } else {
                        let mut bad =
                            to_side(ground.through(&name, "lock-but-wrong-77", Way::Plain));
                        bad.shows_password = shows;
                        let tried = Connection::try_open(&bad).await;
                        ensure!(
                            !matches!(tried, Ok((Some(_), _))),
                            "{plugin}, {way}: let in"
                        );
                    }
                }
                // Where the client leaves, the server hears of it a moment later.
                tokio::time::sleep(Duration::from_secs(1)).await;
                let (_, reply) = Connection::try_open(&ground.direct(&right)).await?;
                codes.push(reply.err().map(|err| err.code));
            }
            ensure!(codes[0] == codes[1], "{plugin}, {way}: {codes:?}");
        }
    }
    Ok(())
}
