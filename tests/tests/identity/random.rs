//! Logins that nobody wrote down: accounts of every kind, and clients that say whatever the protocol has room
//! for. Who gets in through Millrace is who gets in directly, as the same account, and who does not is told the same.
//!
//! `MILLRACE_LOGINS_STEPS`, `_SEED` and `_ENOUGH` (differences) are for long runs; `MILLRACE_LOGINS_ONLY=n` plays
//! one step of a seed.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_sandbox::{Family, skip_unless};
use millrace_tests::netns;
use millrace_tests::numbers::Numbers;
use millrace_tests::wire::{
    Attempt, Certificate, Claim, Connection, Login, Outcome, Proof, Step, cap,
};

use crate::{AWAY, HERE, Reach, Stage, addresses, certificate};

/// How many logins a run of `make test` draws for each family, and for how long at most.
const STEPS: u64 = 250;
const TIME: Duration = Duration::from_secs(20);

const RIGHT: [&str; 4] = [
    "s3cret",
    "pass word'\"\\%_",
    "pässwörd-ж-猫",
    "0123456789012345678901234567890123456789012345678901234567890123456789-long",
];

/// An account, as far as clients need to know it.
#[derive(Debug, Clone)]
struct Account {
    name: String,
    host: &'static str,
    /// What a client proves itself with.
    plugin: &'static str,
    password: String,
    /// Another password that opens it.
    second: Option<String>,
}

struct Drawn {
    accounts: Vec<Account>,
    statements: Vec<String>,
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// Draws accounts, and the statements that make them.
fn accounts(family: Family, numbers: &mut Numbers) -> Drawn {
    let mut drawn = Drawn {
        accounts: Vec::new(),
        statements: vec![
            "CREATE ROLE reader".to_owned(),
            "GRANT SELECT ON app.* TO reader".to_owned(),
        ],
    };
    if family == Family::MySql {
        drawn.statements.extend([
            "SET GLOBAL check_proxy_users=1".to_owned(),
            "SET GLOBAL sha256_password_proxy_users=1".to_owned(),
        ]);
    } else if numbers.percent(30) {
        drawn
            .statements
            .push("SET GLOBAL disconnect_on_expired_password=1".to_owned());
    }
    for at in 0..16 {
        let name = match at {
            // The anonymous account, in some.
            0 if numbers.percent(30) => String::new(),
            // Two rows of a name.
            _ if at > 2 && numbers.percent(15) => numbers.pick(&drawn.accounts).name.clone(),
            3 => "Mixed.Case".to_owned(),
            4 => "zwölf".to_owned(),
            _ => format!("u{at}"),
        };
        draw(family, numbers, &mut drawn, name);
    }
    drawn
}

fn draw(family: Family, numbers: &mut Numbers, drawn: &mut Drawn, name: String) {
    let hosts = [
        "%",
        "%",
        "%",
        "%",
        "127.0.0.1",
        "127.0.0.%",
        "10.99.0.%",
        "10.99.0.2",
    ];
    let host = *numbers.pick(&hosts);
    if drawn
        .accounts
        .iter()
        .any(|a| a.name == name && a.host == host)
    {
        return;
    }
    let account = format!("{}@{}", quoted(&name), quoted(host));
    let password = match numbers.percent(20) {
        true => String::new(),
        false => (*numbers.pick(&RIGHT)).to_owned(),
    };
    let (plugin, stored) = match family {
        Family::MySql if numbers.percent(30) => ("sha256_password", "sha256_password"),
        Family::MySql => ("caching_sha2_password", "caching_sha2_password"),
        Family::MariaDb if numbers.percent(35) => ("client_ed25519", "ed25519"),
        Family::MariaDb => ("mysql_native_password", "mysql_native_password"),
    };
    let mut second = None;
    let mut identified = match family {
        Family::MySql => format!("IDENTIFIED WITH {stored} BY {}", quoted(&password)),
        Family::MariaDb => format!(
            "IDENTIFIED VIA {stored} USING PASSWORD({})",
            quoted(&password)
        ),
    };
    if family == Family::MariaDb && numbers.percent(15) {
        let other = *numbers.pick(&["mysql_native_password", "ed25519", "unix_socket"]);
        if other == "unix_socket" {
            identified = format!("IDENTIFIED VIA unix_socket OR {}", &identified[15..]);
        } else {
            identified += &format!(" OR {other} USING PASSWORD('second')");
            second = Some("second".to_owned());
        }
    }
    let requires = *numbers.pick(&[
        "",
        "",
        "",
        "",
        "REQUIRE SSL",
        "REQUIRE X509",
        "REQUIRE SUBJECT '/O=Mill/CN=alice'",
        "REQUIRE ISSUER '/CN=millrace-sandbox-CA'",
        "REQUIRE ISSUER '/CN=another'",
        "REQUIRE CIPHER 'TLS_AES_256_GCM_SHA384'",
        "REQUIRE CIPHER 'TLS_AES_128_GCM_SHA256'",
    ]);
    let locked = match numbers.percent(8) {
        true => "ACCOUNT LOCK",
        false => "",
    };
    // MySQL has no anonymous account whose password expires.
    let expired = match numbers.percent(8) && !name.is_empty() {
        true => "PASSWORD EXPIRE",
        false => "",
    };
    let end = match family {
        Family::MySql => format!("{requires} {expired} {locked}"),
        Family::MariaDb => format!("{requires} {locked} {expired}"),
    };
    drawn
        .statements
        .push(format!("CREATE USER {account} {identified} {end}"));
    if numbers.percent(60) {
        drawn
            .statements
            .push(format!("GRANT ALL ON app.* TO {account}"));
    }
    if !name.is_empty() && numbers.percent(25) {
        drawn.statements.push(format!("GRANT reader TO {account}"));
        drawn.statements.push(match family {
            Family::MySql => format!("SET DEFAULT ROLE reader TO {account}"),
            Family::MariaDb => format!("SET DEFAULT ROLE reader FOR {account}"),
        });
    }
    if family == Family::MySql && !password.is_empty() && !name.is_empty() && numbers.percent(20) {
        drawn.statements.push(format!(
            "ALTER USER {account} IDENTIFIED BY 'second' RETAIN CURRENT PASSWORD"
        ));
        second = Some("second".to_owned());
    }
    if family == Family::MySql && plugin == "sha256_password" && numbers.percent(50) {
        let may_be_had = |other: &&Account| !other.name.is_empty() && other.name != name;
        if let Some(other) = drawn.accounts.iter().find(may_be_had) {
            let other = format!("{}@{}", quoted(&other.name), quoted(other.host));
            drawn
                .statements
                .push(format!("GRANT PROXY ON {other} TO {account}"));
        }
    }
    drawn.accounts.push(Account {
        name,
        host,
        plugin,
        password,
        second,
    });
}

/// Draws what a client says it is.
fn claim(family: Family, numbers: &mut Numbers, accounts: &[Account]) -> Claim {
    let account = numbers.pick(accounts).clone();
    let drawn = any_claim(family, numbers, accounts, &account);
    if numbers.percent(40) {
        return drawn;
    }
    // As a library would, but for its password.
    let named = Some(drawn.plugin.clone().into_bytes());
    Claim {
        user: account.name.into_bytes(),
        named: if numbers.percent(85) { named } else { None },
        first: Proof::Right,
        later: Proof::Right,
        database: drawn
            .database
            .filter(|name| name.is_ascii() && name.len() < 60),
        attributes: Some(b"\x13\x0c_client_name\x05fuzz!".to_vec()),
        ..drawn
    }
}

fn any_claim(
    family: Family,
    numbers: &mut Numbers,
    accounts: &[Account],
    account: &Account,
) -> Claim {
    let mut user = account.name.clone().into_bytes();
    match numbers.below(100) {
        0..5 => user = b"nobody".to_vec(),
        5..7 => user.clear(),
        // As it is in latin1.
        _ if account.name.contains('ö') && numbers.percent(30) => user = b"zw\xf6lf".to_vec(),
        7..9 => user.push(b' '),
        9..11 => user.make_ascii_uppercase(),
        11 => user = vec![b'x'; *numbers.pick(&[32, 33, 80, 81, 128, 129, 300, 4000])],
        12 => user.extend_from_slice(b"\0more"),
        13 => user.push(0xff),
        _ => {}
    }
    let password = match numbers.below(100) {
        0..60 => account.password.clone(),
        60..72 => account
            .second
            .clone()
            .unwrap_or_else(|| account.password.clone()),
        72..82 => "wrong".to_owned(),
        82..94 => String::new(),
        _ => numbers.pick(accounts).password.clone(),
    };
    let own = match family {
        Family::MySql => ["caching_sha2_password", "sha256_password"],
        Family::MariaDb => ["mysql_native_password", "client_ed25519"],
    };
    let plugin = match numbers.below(100) {
        0..55 => account.plugin,
        55..90 => *numbers.pick(&own),
        90..93 => "mysql_clear_password",
        _ => *numbers.pick(&["caching_sha2_password", "mysql_native_password"]),
    };
    // Clients that name none have only that one.
    let is_nameless = numbers.percent(13);
    let plugin = match is_nameless && family == Family::MariaDb {
        true => "mysql_native_password",
        false => plugin,
    };
    let named = match numbers.below(100) {
        0..60 if is_nameless => None,
        _ if is_nameless => Some(Vec::new()),
        0..93 => Some(plugin.as_bytes().to_vec()),
        93..95 => Some(b"no_such_plugin".to_vec()),
        95 => Some(vec![b'p'; 300]),
        _ => Some(numbers.pick(&own).as_bytes().to_vec()),
    };
    let database = match numbers.below(100) {
        0..50 => None,
        50..90 => Some(b"app".to_vec()),
        90..92 => Some(b"nonesuch".to_vec()),
        92..94 => Some(b"mysql".to_vec()),
        94..96 => Some(b"information_schema".to_vec()),
        96 => Some(vec![b'd'; *numbers.pick(&[64, 65, 200, 300])]),
        97 => Some(b"app ".to_vec()),
        98 => Some(b"a\xffpp".to_vec()),
        _ => Some(Vec::new()),
    };
    let charset = match numbers.below(100) {
        0..40 => 45,
        40..55 => 33,
        55..65 => 8,
        65..75 => 255,
        75..80 => 224,
        80..84 => 0,
        84..88 => 35,
        _ => numbers.below(330) as u16,
    };
    let attributes = match numbers.below(100) {
        0..60 => Some(b"\x13\x0c_client_name\x05fuzz!".to_vec()),
        60..75 => Some(b"\x00".to_vec()),
        75..85 => None,
        85..90 => Some(b"\x13\x0c_client_name\x05fu".to_vec()),
        90..95 => Some(b"\x05\x0c_client_name\x05fuzz!".to_vec()),
        _ => Some(b"\xfc\xff\xff\x01".to_vec()),
    };
    Claim {
        user,
        password,
        plugin: plugin.to_owned(),
        named,
        first: match plugin == account.plugin {
            true => proof(numbers, 80),
            // A server that asks for another plugin does not look at it.
            false => Proof::Right,
        },
        later: proof(numbers, 88),
        only: numbers.percent(12).then(|| plugin.to_owned()),
        shows: numbers.percent(75),
        database,
        charset,
        attributes,
    }
}

fn proof(numbers: &mut Numbers, right: usize) -> Proof {
    if numbers.percent(right) {
        return Proof::Right;
    }
    match numbers.below(6) {
        0 => Proof::Cut(numbers.below(40)),
        1 => Proof::Longer(1 + numbers.below(230)),
        2 | 3 => Proof::Empty,
        4 => Proof::Zero,
        _ => Proof::Spoilt,
    }
}

/// Draws a client: its target is left to the caller.
fn attempt(
    family: Family,
    numbers: &mut Numbers,
    accounts: &[Account],
    certificates: &[Certificate],
    target: millrace_tests::wire::Target,
) -> Attempt {
    let claim_drawn = claim(family, numbers, accounts);
    let mut capabilities = cap::LONG_PASSWORD
        | cap::LONG_FLAG
        | cap::PROTOCOL_41
        | cap::TRANSACTIONS
        | cap::MULTI_RESULTS;
    for (flag, often) in [
        (
            cap::SECURE_CONNECTION,
            if family == Family::MySql { 94 } else { 100 },
        ),
        (cap::PLUGIN_AUTH, 85),
        (cap::PLUGIN_AUTH_LENENC, 70),
        (cap::CONNECT_ATTRS, 60),
        (cap::EXPIRED_PASSWORDS, 50),
        (cap::SESSION_TRACK, 50),
        (cap::DEPRECATE_EOF, 50),
        (cap::FOUND_ROWS, 20),
        (cap::IGNORE_SPACE, 15),
        (cap::INTERACTIVE, 15),
        (cap::NO_SCHEMA, 10),
        (cap::ODBC, 10),
        (cap::MULTI_STATEMENTS, 40),
        (cap::PS_MULTI_RESULTS, 50),
    ] {
        if numbers.percent(often) {
            capabilities |= flag;
        }
    }
    let connects_with = match claim_drawn.database {
        Some(_) => 94,
        None => 3,
    };
    if numbers.percent(connects_with) {
        capabilities |= cap::CONNECT_WITH_DB;
    }
    let tls = numbers.percent(45);
    let certificate = (tls && numbers.percent(50)).then(|| numbers.pick(certificates).clone());
    let then = (0..numbers.below(4))
        .map(|_| match numbers.below(10) {
            0..6 => Step::Change(Box::new(claim(family, numbers, accounts))),
            6..8 => Step::Reset,
            _ => Step::Ping,
        })
        .collect();
    let mut claim = claim_drawn;
    if !tls && claim.plugin == "mysql_clear_password" {
        claim.plugin = "mysql_native_password".to_owned();
    }
    Attempt {
        target,
        tls,
        certificate,
        capabilities,
        claim,
        split: numbers.percent(20).then(|| numbers.below(120)),
        off_by: if numbers.percent(2) { 1 } else { 0 },
        then,
    }
}

/// Without what names an address.
fn plain(mut outcome: Outcome) -> Outcome {
    let clean = |text: &mut String| {
        for host in [
            HERE,
            AWAY,
            "127.0.0.1",
            "localhost",
            "here.test",
            "away.test",
        ] {
            *text = text.replace(&format!("@{host}\""), "@HOST\"");
            *text = text.replace(&format!("@'{host}'"), "@'HOST'");
        }
    };
    match &mut outcome {
        Outcome::Refused { text, .. } => clean(text),
        Outcome::In(said) => {
            for (at, text) in said.iter_mut().enumerate() {
                // Of the first answer only the second column, USER(), names the client's address.
                if at == 0 && text.contains("Some(") {
                    let mut cells: Vec<String> = text.split(", ").map(str::to_owned).collect();
                    if let Some(cell) = cells.get_mut(1) {
                        clean(cell);
                    }
                    *text = cells.join(", ");
                } else {
                    clean(text);
                }
            }
        }
        _ => {}
    }
    outcome
}

/// What is known of an attempt beside what was drawn.
struct Known<'a> {
    family: Family,
    attempt: &'a Attempt,
    /// Its client is not on Millrace's machine.
    away: bool,
    /// What was done with the account that it names first.
    statements: &'a [String],
}

impl Known<'_> {
    /// The claim of the outcome at a place: each step has its own outcome and who the client is then.
    fn claim(&self, at: usize) -> &Claim {
        let changes = self.attempt.then.iter().take(at.div_ceil(2));
        let last = changes.rev().find_map(|step| match step {
            Step::Change(claim) => Some(&**claim),
            _ => None,
        });
        last.unwrap_or(&self.attempt.claim)
    }

    /// The packet is one that servers may well read in more than one way: what matters is that it lets nobody in.
    fn is_odd(&self, at: usize) -> bool {
        let (claim, flags) = (self.claim(at), self.attempt.capabilities);
        let has = |flag| flags & flag != 0;
        !has(cap::SECURE_CONNECTION)
            || !has(cap::PLUGIN_AUTH)
            || self.attempt.off_by != 0
            || claim.user.contains(&0)
            || (claim.database.is_some() != has(cap::CONNECT_WITH_DB))
            || [claim, &self.attempt.claim]
                .iter()
                .any(|claim| claim.named.as_deref() != Some(claim.plugin.as_bytes()))
            || (has(cap::CONNECT_ATTRS)
                && claim
                    .attributes
                    .as_ref()
                    .is_none_or(|attributes| attributes.len() != 20))
    }

    /// How the two differ, where that is not known and told in the documents.
    fn difference(&self, direct: &[Outcome], through: &[Outcome]) -> Option<String> {
        for at in 0..direct.len().max(through.len()) {
            let (Some(direct), Some(through)) = (direct.get(at), through.get(at)) else {
                return Some(format!(
                    "length at {at}:\n  direct  {direct:?}\n  through {through:?}"
                ));
            };
            let (direct, through) = (plain(direct.clone()), plain(through.clone()));
            if direct == through {
                continue;
            }
            let kind = match (&direct, &through) {
                // The client's own decision: it is not asked for its password, or by another plugin.
                (Outcome::Left(_), _) | (Outcome::Refused { .. }, Outcome::Left(_)) => return None,
                (Outcome::In(one), Outcome::In(other)) => {
                    // MariaDB forgets the character set of one who was not let in as another, and leaves the role of
                    // the user before to one who has none.
                    let is_left = at > 0 && self.family == Family::MariaDb;
                    // A handshake cannot name it: its character set's usual collation is had.
                    if self.claim(at).charset > 255 && user(one) == user(other) {
                        continue;
                    }
                    let is_plain = user(one).concat().is_ascii();
                    let grants = one[1] != other[1] || one[2] == other[2] || !is_plain;
                    if is_left && grants && user(one) == user(other) {
                        continue;
                    }
                    "AS ANOTHER"
                }
                // An empty password needs no proof, whatever else the packet says.
                (Outcome::Refused { code: 1043, .. }, Outcome::In(_)) if self.is_odd(at) => {
                    return None;
                }
                // Of two proofs one is right, and Millrace has asked for the other one, or once more.
                (Outcome::Refused { .. }, Outcome::In(_)) if self.is_half_proved(at) => {
                    return None;
                }
                (_, Outcome::Refused { code: 1045, .. }) if self.is_half_proved(at) => {
                    return None;
                }
                (_, Outcome::In(_)) => "LET IN",
                // Millrace's address is not the client's; nor is its cipher.
                (_, Outcome::Refused { code: 1045, .. } | Outcome::Left(_)) if self.away => {
                    return None;
                }
                (_, Outcome::Refused { code: 1045, .. }) if self.asks_for_cipher() => return None,
                (Outcome::Ok, Outcome::Refused { code: 1044, .. })
                    if self.family == Family::MariaDb =>
                {
                    return None;
                }
                // It is judged by its own row or by the other's, which only the server knows.
                (Outcome::Refused { .. }, Outcome::Refused { code: 1045, .. })
                    if self.is_proxy() =>
                {
                    return None;
                }
                // The server makes up a plugin for a name that it does not know.
                (Outcome::Refused { code: 1698, .. }, Outcome::Refused { code: 1045, .. })
                    if !self.is_of_an_account(at) =>
                {
                    return None;
                }
                (
                    Outcome::Refused {
                        code: 1043 | 1045, ..
                    },
                    Outcome::Refused {
                        code: 1043 | 1045, ..
                    },
                ) if self.claim(at).first != Proof::Right
                    || self.claim(at).later != Proof::Right
                    || !self.claim(at).user.is_ascii() =>
                {
                    return None;
                }
                (_, Outcome::Refused { text, .. }) if text.contains("connect anew") => return None,
                (Outcome::In(_) | Outcome::Ok, _) => "refused",
                // It is refused for the one or the other of two reasons.
                (Outcome::Refused { code: 1231, .. }, _) => return None,
                (Outcome::Refused { code: 1300, .. }, Outcome::Refused { .. }) => return None,
                (_, Outcome::Refused { .. }) if self.is_odd(at) => return None,
                (Outcome::Refused { code: one, .. }, Outcome::Refused { code: two, .. })
                    if one == two =>
                {
                    "text"
                }
                _ => "error",
            };
            return Some(format!(
                "{kind} at {at}:\n  direct  {direct:?}\n  through {through:?}"
            ));
        }
        None
    }

    /// There is an account of the name.
    fn is_of_an_account(&self, at: usize) -> bool {
        let name = format!("'{}'@", String::from_utf8_lossy(&self.claim(at).user));
        self.statements.iter().any(|made| made.contains(&name))
    }

    /// It knows a password of an account that is named, but only one of its proofs says so.
    fn is_half_proved(&self, at: usize) -> bool {
        let claim = self.claim(at);
        let password = quoted(&claim.password);
        (claim.first == Proof::Right) != (claim.later == Proof::Right)
            && !claim.password.is_empty()
            && (self.statements.iter()).any(|made| made.contains(&password))
    }

    fn is_proxy(&self) -> bool {
        self.statements
            .iter()
            .any(|made| made.contains("GRANT PROXY"))
    }

    fn asks_for_cipher(&self) -> bool {
        self.statements
            .iter()
            .any(|made| made.contains("REQUIRE CIPHER"))
    }
}

/// `CURRENT_USER()` and `USER()`.
fn user(said: &[String]) -> Vec<&str> {
    said[0].split(", ").take(2).collect()
}

fn number(name: &str) -> anyhow::Result<Option<u64>> {
    let text = std::env::var(format!("MILLRACE_LOGINS_{name}")).ok();
    Ok(text.map(|text| text.parse()).transpose()?)
}

async fn random(family: Family, test: &str) -> anyhow::Result<()> {
    if !skip_unless(family, test) || !netns::enter(test)? {
        return Ok(());
    }
    addresses()?;
    let seed = number("SEED")?.unwrap_or(1);
    let (steps, only) = (number("STEPS")?, number("ONLY")?);
    let enough = number("ENOUGH")?.unwrap_or(12) as usize;
    let mut numbers = Numbers::new(seed);
    let stage = Stage::start(family, Reach::Tcp, true).await?;
    let dir = stage.cluster.tls_ca().context("no authority")?;
    let dir = dir.parent().context("no folder")?.to_owned();
    let certificates = [
        Certificate {
            cert: dir.join("alice-cert.pem"),
            key: dir.join("alice-key.pem"),
        },
        certificate(&dir, "mallory")?,
    ];
    let drawn = accounts(family, &mut numbers);
    stage.root(&drawn.statements).await?;
    // The server has each password in its cache, as if it had been up for long.
    for account in &drawn.accounts {
        for password in [Some(&account.password), account.second.as_ref()]
            .into_iter()
            .flatten()
        {
            for from in [AWAY, "127.0.0.1"] {
                let mut login = Login::new(stage.target(from, true)?, &account.name, password);
                (login.tls, login.certificate) = (true, Some(certificates[0].clone()));
                let _ = Connection::try_open(&login).await;
            }
        }
    }
    let (begun, mut step, mut let_in) = (Instant::now(), 0, 0);
    let mut found = Vec::new();
    loop {
        let over = match steps {
            Some(steps) => step >= steps,
            None => step >= STEPS || begun.elapsed() > TIME,
        };
        if over || found.len() >= enough {
            break;
        }
        step += 1;
        let from = if numbers.percent(70) {
            "127.0.0.1"
        } else {
            AWAY
        };
        let target = stage.target(from, true)?;
        let direct = attempt(family, &mut numbers, &drawn.accounts, &certificates, target);
        if only.is_some_and(|only| only != step) {
            continue;
        }
        let mut through = direct.clone();
        through.target = stage.target(from, false)?;
        let names = direct.then.iter().filter_map(|step| match step {
            Step::Change(claim) => Some(&claim.user),
            _ => None,
        });
        let names: Vec<String> = std::iter::once(&direct.claim.user)
            .chain(names)
            .map(|name| format!("'{}'@", String::from_utf8_lossy(name)))
            .collect();
        let statements: Vec<String> = drawn
            .statements
            .iter()
            .filter(|made| names.iter().any(|name| made.contains(name)))
            .cloned()
            .collect();
        let known = Known {
            family,
            attempt: &direct,
            away: from == AWAY,
            statements: &statements,
        };
        let mut why = None;
        for _ in 0..3 {
            let began = Instant::now();
            let (one, middle) = (direct.play().await?, began.elapsed());
            let other = through.play().await?;
            if began.elapsed() > Duration::from_secs(1) {
                println!(
                    "step {step}: direct {middle:?}, both {:?}: {other:?}",
                    began.elapsed()
                );
            }
            if only.is_some() {
                println!("{direct:#?}\ndirect {one:#?}\nthrough {other:#?}");
            }
            let_in += usize::from(matches!(one.first(), Some(Outcome::In(_))));
            why = known.difference(&one, &other);
            if why.is_none() {
                break;
            }
        }
        if let Some(why) = why {
            found.push(format!(
                "seed {seed}, step {step}, from {from}: {why}\n  {direct:?}\n  {statements:?}\n"
            ));
            println!("{}", found.last().map_or("", |found| found));
        }
    }
    println!("{family}: seed {seed}, {step} logins, {let_in} let in directly");
    ensure!(
        found.is_empty(),
        "{} differences:\n{}",
        found.len(),
        found.join("\n")
    );
    Ok(())
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    random(Family::MariaDb, "random::mariadb").await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    random(Family::MySql, "random::mysql").await
}
