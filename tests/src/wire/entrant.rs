//! A client that logs in as no library would: every field and every answer of its own choice. It says how the
//! server took each of its logins.

use std::fmt;
use std::io;
use std::time::Duration;

use super::auth;
use super::codec::put_lenenc_bytes;
use super::connection::{Certificate, Connection, Login, Target, dial};
use super::consts::{ProtocolNames, cap, com};
use super::frame::Frames;
use super::greeting::Greeting;
use super::reply::{ErrPacket, Reply};
use super::tls;

/// The longest silence of a server.
const SILENCE: Duration = Duration::from_secs(8);

/// What is made of the right proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    Right,
    /// Only its first bytes.
    Cut(usize),
    /// With more bytes behind it.
    Longer(usize),
    Empty,
    Zero,
    /// Its last byte is another.
    Spoilt,
}

impl Proof {
    fn of(&self, mut right: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Right => {}
            Self::Cut(len) => right.truncate(*len),
            Self::Longer(more) => right.extend(std::iter::repeat_n(7, *more)),
            Self::Empty => right.clear(),
            Self::Zero => right = vec![0],
            Self::Spoilt => {
                if let Some(last) = right.last_mut() {
                    *last ^= 1;
                }
            }
        }
        right
    }
}

/// Who the client says it is, and how it proves that.
#[derive(Clone)]
pub struct Claim {
    pub user: Vec<u8>,
    pub password: String,
    /// The plugin of the first proof.
    pub plugin: String,
    /// What is said of the plugin; none: the field is left out.
    pub named: Option<Vec<u8>>,
    pub first: Proof,
    /// What is made of the answers to the server's questions.
    pub later: Proof,
    /// The only plugin that the client has.
    pub only: Option<String>,
    /// Whether it shows its password under a key of the server's.
    pub shows: bool,
    pub database: Option<Vec<u8>>,
    pub charset: u16,
    /// Attributes with their length, well-formed or not; none: left out.
    pub attributes: Option<Vec<u8>>,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| {
            let shown = &bytes[..bytes.len().min(40)];
            format!("{} ({})", shown.escape_ascii(), bytes.len())
        };
        write!(
            f,
            "{} '{}' by {}, named {:?}, first {:?}, later {:?}, only {:?}, shows {}, db {:?}, charset {}, \
             attributes {:?}",
            text(&self.user),
            self.password,
            self.plugin,
            self.named.as_deref().map(text),
            self.first,
            self.later,
            self.only,
            self.shows,
            self.database.as_deref().map(text),
            self.charset,
            self.attributes.as_deref().map(text),
        )
    }
}

/// What is done once the client is in.
#[derive(Debug, Clone)]
pub enum Step {
    Change(Box<Claim>),
    Reset,
    Ping,
}

/// A login and what follows it.
#[derive(Clone)]
pub struct Attempt {
    pub target: Target,
    pub tls: bool,
    pub certificate: Option<Certificate>,
    /// Sent as they are, whatever the server offers.
    pub capabilities: u64,
    pub claim: Claim,
    /// The login's packet is sent in two pieces, the first of so many bytes.
    pub split: Option<usize>,
    /// Is added to the sequence number of the login's packet.
    pub off_by: u8,
    pub then: Vec<Step>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = ProtocolNames::flags(self.capabilities, cap::NAMES);
        writeln!(f, "{:?}", self.claim)?;
        write!(
            f,
            "    TLS {}, certificate {:?}, split {:?}, off by {}\n    {flags}",
            self.tls,
            self.certificate.as_ref().map(|own| own.cert.file_name()),
            self.split,
            self.off_by,
        )?;
        for step in &self.then {
            write!(f, "\n    then {step:?}")?;
        }
        Ok(())
    }
}

/// How the server took a login, or what came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It let the client in: what it says to each question about who that is.
    In(Vec<String>),
    Refused {
        code: u16,
        state: String,
        text: String,
    },
    /// The client broke off: it does not have the plugin, or does not show its password.
    Left(String),
    Closed,
    Silent,
    Ok,
}

impl Attempt {
    /// Plays it. The last outcome may be the end of the connection.
    ///
    /// # Errors
    /// Where the server cannot be reached.
    pub async fn play(&self) -> io::Result<Vec<Outcome>> {
        let mut seen = Vec::new();
        let mut frames = Frames::new(dial(&self.target).await?);
        let first = match tokio::time::timeout(SILENCE, frames.read()).await {
            Ok(Ok(first)) => first,
            Ok(Err(_)) => return Ok(vec![Outcome::Closed]),
            Err(_) => return Ok(vec![Outcome::Silent]),
        };
        let Some(greeting) = Greeting::parse(&first.body) else {
            return Ok(vec![refused(&first.body)]);
        };
        if self.tls {
            let mut ahead = Vec::new();
            frames.frame(&self.head(), &mut ahead);
            frames.write_framed(&ahead).await?;
            let seq = frames.seq;
            let upgraded =
                tls::upgrade(frames.into_io(), Vec::new(), self.certificate.as_ref()).await;
            let Ok(upgraded) = upgraded else {
                return Ok(vec![Outcome::Closed]);
            };
            frames = Frames::new(upgraded);
            frames.seq = seq;
        }
        frames.seq = frames.seq.wrapping_add(self.off_by);
        let mut packet = Vec::new();
        let response = self.response(&greeting);
        frames.frame(&response, &mut packet);
        let split = self.split.unwrap_or(packet.len()).min(packet.len());
        let (one, two) = packet.split_at(split);
        let mut nonce = greeting.scramble.clone();
        let sent = async {
            frames.write_raw(one).await?;
            if !two.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
                frames.write_raw(two).await?;
            }
            io::Result::Ok(())
        };
        if sent.await.is_err() {
            return Ok(vec![Outcome::Closed]);
        }
        let outcome = self.answer(&mut frames, &self.claim, &mut nonce).await;
        if outcome != Outcome::Ok {
            return Ok(vec![outcome]);
        }
        let login = Login::new(self.target.clone(), "", "");
        let capabilities = self.capabilities & greeting.capabilities;
        let mut connection = Connection::entered(frames, greeting, login, capabilities);
        seen.push(who(&mut connection).await);
        for step in &self.then {
            let outcome = self.step(&mut connection, step, &mut nonce).await;
            let ended = matches!(
                outcome,
                Outcome::Closed | Outcome::Silent | Outcome::Left(_)
            );
            seen.push(outcome);
            if ended {
                return Ok(seen);
            }
            seen.push(who(&mut connection).await);
        }
        connection.quit().await;
        Ok(seen)
    }

    async fn step(&self, connection: &mut Connection, step: &Step, nonce: &mut Vec<u8>) -> Outcome {
        connection.frames.start_command();
        let payload = match step {
            Step::Change(claim) => self.change(claim, nonce),
            Step::Reset => vec![com::RESET_CONNECTION],
            Step::Ping => vec![com::PING],
        };
        if connection.frames.write(&payload).await.is_err() {
            return Outcome::Closed;
        }
        let claim = match step {
            Step::Change(claim) => claim,
            _ => &self.claim,
        };
        self.answer(&mut connection.frames, claim, nonce).await
    }

    /// Answers what the server asks until it has decided.
    async fn answer(&self, frames: &mut Frames, claim: &Claim, nonce: &mut Vec<u8>) -> Outcome {
        let password = claim.password.as_bytes();
        let mut plugin = claim.plugin.clone();
        loop {
            let read = match tokio::time::timeout(SILENCE, frames.read()).await {
                Ok(Ok(read)) => read.body,
                Ok(Err(_)) => return Outcome::Closed,
                Err(_) => return Outcome::Silent,
            };
            let answer = match read.split_first() {
                Some((0, _)) => return Outcome::Ok,
                Some((0xff, _)) => return refused(&read),
                Some((0xfe, rest)) => {
                    let end = rest.iter().position(|byte| *byte == 0);
                    let (name, data) = rest.split_at(end.unwrap_or(rest.len()));
                    plugin = String::from_utf8_lossy(name).into_owned();
                    let data = data.get(1..).unwrap_or_default();
                    *nonce = match plugin.as_str() {
                        "client_ed25519" => data.get(..32).unwrap_or(data),
                        _ => data.strip_suffix(&[0]).unwrap_or(data),
                    }
                    .to_vec();
                    let has = match &claim.only {
                        Some(only) => *only == plugin,
                        None => PLUGINS.contains(&plugin.as_str()),
                    };
                    if !has {
                        return Outcome::Left(format!("asked for {plugin}"));
                    }
                    let right = auth::first_answer(&plugin, password, nonce, self.tls);
                    claim.later.of(right)
                }
                Some((1, [3])) => continue,
                Some((1, [4])) if self.tls => claim.later.of(auth::with_nul(password)),
                Some((1, _)) if !claim.shows => return Outcome::Left("does not show".to_owned()),
                Some((1, [4])) => vec![2],
                Some((1, pem)) => match auth::rsa(password, nonce, pem) {
                    Ok(sealed) => claim.later.of(sealed),
                    Err(_) => return Outcome::Left(format!("{plugin}: no key")),
                },
                _ => return Outcome::Left(format!("{}", read.escape_ascii())),
            };
            if frames.write(&answer).await.is_err() {
                return Outcome::Closed;
            }
        }
    }

    fn head(&self) -> Vec<u8> {
        let mut capabilities = self.capabilities;
        if self.tls {
            capabilities |= cap::SSL;
        }
        let mut out = (capabilities as u32).to_le_bytes().to_vec();
        out.extend_from_slice(&0x4000_0000_u32.to_le_bytes());
        out.push(self.claim.charset as u8);
        out.extend_from_slice(&[0; 23]);
        out
    }

    fn response(&self, greeting: &Greeting) -> Vec<u8> {
        let (claim, has) = (&self.claim, |flag| self.capabilities & flag != 0);
        let mut out = self.head();
        out.extend_from_slice(&claim.user);
        out.push(0);
        let proof = self.first_proof(claim, &greeting.scramble);
        if has(cap::PLUGIN_AUTH_LENENC) {
            put_lenenc_bytes(&mut out, &proof);
        } else if has(cap::SECURE_CONNECTION) {
            out.push(proof.len() as u8);
            out.extend_from_slice(&proof);
        } else {
            out.extend_from_slice(&proof);
            out.push(0);
        }
        if has(cap::CONNECT_WITH_DB) {
            out.extend_from_slice(claim.database.as_deref().unwrap_or_default());
            out.push(0);
        }
        self.tail(claim, &mut out);
        out
    }

    fn change(&self, claim: &Claim, nonce: &[u8]) -> Vec<u8> {
        let mut out = vec![com::CHANGE_USER];
        out.extend_from_slice(&claim.user);
        out.push(0);
        let proof = self.first_proof(claim, nonce);
        if self.capabilities & cap::SECURE_CONNECTION != 0 {
            out.push(proof.len() as u8);
            out.extend_from_slice(&proof);
        } else {
            out.extend_from_slice(&proof);
            out.push(0);
        }
        out.extend_from_slice(claim.database.as_deref().unwrap_or_default());
        out.push(0);
        out.extend_from_slice(&claim.charset.to_le_bytes());
        self.tail(claim, &mut out);
        out
    }

    fn first_proof(&self, claim: &Claim, nonce: &[u8]) -> Vec<u8> {
        let password = claim.password.as_bytes();
        let right = auth::first_answer(&claim.plugin, password, nonce, self.tls);
        claim.first.of(right)
    }

    fn tail(&self, claim: &Claim, out: &mut Vec<u8>) {
        if self.capabilities & cap::PLUGIN_AUTH != 0
            && let Some(named) = &claim.named
        {
            out.extend_from_slice(named);
            out.push(0);
        }
        if self.capabilities & cap::CONNECT_ATTRS != 0
            && let Some(attributes) = &claim.attributes
        {
            out.extend_from_slice(attributes);
        }
    }
}

/// The plugins that the client has.
const PLUGINS: [&str; 5] = [
    "mysql_native_password",
    "caching_sha2_password",
    "sha256_password",
    "client_ed25519",
    "mysql_clear_password",
];

/// What a session is asked about itself.
const QUESTIONS: [&str; 3] = [
    "SELECT HEX(CONVERT(CURRENT_USER() USING utf8mb4)), HEX(CONVERT(USER() USING utf8mb4)), @@proxy_user, DATABASE(), @@character_set_client, \
     @@collation_connection, @@character_set_results, @@autocommit, @@sql_mode",
    "SELECT CURRENT_ROLE()",
    "SHOW GRANTS",
];

async fn who(connection: &mut Connection) -> Outcome {
    let mut said = Vec::new();
    for question in QUESTIONS {
        let reply: Reply = connection.query(question).await;
        if reply.broken().is_some() {
            return Outcome::Closed;
        }
        said.push(match reply.err() {
            Some(error) => format!("{} {}", error.code, error.message),
            None => format!("{:?}", readable(reply.rows())),
        });
    }
    Outcome::In(said)
}

/// Names come in hexadecimal, whatever the character set of results.
fn readable(mut rows: Vec<Vec<Option<String>>>) -> Vec<Vec<Option<String>>> {
    for cell in rows.iter_mut().flatten().flatten() {
        let bytes: Option<Vec<u8>> = cell
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        if let Some(bytes) = bytes.filter(|bytes| bytes.contains(&b'@')) {
            *cell = String::from_utf8_lossy(&bytes).into_owned();
        }
    }
    rows
}

fn refused(packet: &[u8]) -> Outcome {
    match ErrPacket::parse(packet) {
        Some(error) => Outcome::Refused {
            code: error.code,
            state: error.state,
            text: error.message,
        },
        None => Outcome::Left(format!("{}", packet.escape_ascii())),
    }
}
