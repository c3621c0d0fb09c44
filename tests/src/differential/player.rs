//! Plays one case against one address and prints every reply. It compares nothing.
//!
//! Commands of a script, beside plain statements:
//! `.connect KEY=VALUE…` (user, password, db, caps, tls, charset, plugin, attrs, packet),
//! `.quit`, `.drop`, `.greeting`, `.recv`, `.sleep MS`, `.expectclosed`,
//! `.prepare NAME SQL`, `.exec NAME [cursor] [notypes] PARAM…`, `.fetch NAME N`,
//! `.longdata NAME INDEX BYTES`, `.stmtreset NAME`, `.close NAME`,
//! `.initdb`, `.fieldlist TABLE [WILD]`, `.statistics`, `.ping`, `.debug`, `.setoption 0|1`,
//! `.resetconn`, `.changeuser USER PASSWORD DB [CHARSET]`, `.kill SESSION`,
//! `.cmd HEX`, `.raw HEX` (with the packet's header), `.pipeline SQL ;; SQL…`, `.infile TEXT…` (packets for the next LOAD DATA LOCAL),
//! `.attr NAME=PARAM… ;; SQL`, `.manyprepare N SQL`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use anyhow::{Context, bail};

use super::script::{Case, Names, Step, expand, unhex, words};
use crate::wire::{Connection, Expect, Item, Login, Param, ProtocolNames, Reply, Target, cap, com};

/// How sessions log in unless their script says otherwise.
#[derive(Debug, Clone)]
pub struct Profile {
    pub user: String,
    pub password: String,
    pub capabilities: u64,
    pub tls: bool,
    /// Collation id of the handshake.
    pub charset: u8,
    /// Longest silence while a reply is awaited.
    pub timeout: Duration,
}

#[derive(Debug, Default)]
struct Session {
    connection: Option<Connection>,
    statements: HashMap<String, (u32, u16)>,
    pending: VecDeque<Expect>,
}

/// One case on one address.
#[derive(Debug)]
pub struct Player<'a> {
    case: &'a Case,
    target: Target,
    profile: Profile,
    sessions: BTreeMap<u32, Session>,
}

struct Context2<'a>(&'a str, Vec<(u32, u32)>);

impl Names for Context2<'_> {
    fn database(&self) -> String {
        self.0.to_owned()
    }

    fn connection_id(&self, session: u32) -> Option<u32> {
        self.1
            .iter()
            .find(|(s, _)| *s == session)
            .map(|(_, id)| *id)
    }
}

impl<'a> Player<'a> {
    pub fn new(case: &'a Case, target: Target, profile: Profile) -> Self {
        Self {
            case,
            target,
            profile,
            sessions: BTreeMap::new(),
        }
    }

    /// The connection id that each session was greeted with.
    pub fn connection_ids(&self) -> Vec<(u32, u32)> {
        self.sessions
            .iter()
            .filter_map(|(s, session)| {
                Some((*s, session.connection.as_ref()?.greeting.connection_id))
            })
            .collect()
    }

    /// Plays one step and returns its printed reply.
    ///
    /// # Errors
    /// A script that cannot be played: the case is wrong, not the server.
    pub async fn step(&mut self, step: &Step) -> anyhow::Result<Vec<String>> {
        let database = self.case.database();
        let names = Context2(&database, self.connection_ids());
        let mut text = expand(&step.text, &names);
        if let Some(command) = step.text.strip_prefix('.') {
            let (verb, _) = command.split_once(' ').unwrap_or((command, ""));
            let start = (verb.len() + 2).min(text.len());
            let arguments = text.split_off(start);
            return self
                .command(step, verb, &arguments)
                .await
                .with_context(|| format!("line {}", step.line));
        }
        let results = Expect::Results { binary: false };
        self.send(step, com::QUERY, &text, results).await
    }

    /// Ends every session and says whether anything was left unread. Call it once, at the end.
    pub async fn finish(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        for (number, session) in &mut self.sessions {
            let Some(mut connection) = session.connection.take() else {
                continue;
            };
            if session.pending.is_empty() {
                let reply = connection.command(com::PING, &[], Expect::Single).await;
                let lines: Vec<String> =
                    render(&reply).iter().map(|l| without_warnings(l)).collect();
                let buffered = connection.frames.buffered();
                out.push(format!(
                    "{number}> ping at the end: {} left={buffered}",
                    lines.join("; ")
                ));
            }
            connection.quit().await;
        }
        out
    }

    fn login(&self) -> Login {
        let mut login = Login::new(
            self.target.clone(),
            &self.profile.user,
            &self.profile.password,
        );
        login.capabilities = self.profile.capabilities;
        login.tls = self.profile.tls;
        login.charset = self.profile.charset;
        login.timeout = self.profile.timeout;
        login.database = Some(self.case.database());
        login
    }

    async fn open(&mut self, number: u32, login: &Login) -> anyhow::Result<Vec<String>> {
        let (connection, reply) = match Connection::try_open(login).await {
            Ok(outcome) => outcome,
            Err(e) => return Ok(vec![format!("  - cannot connect: {:?}", e.kind())]),
        };
        let mut out = Vec::new();
        if let Some(connection) = &connection {
            let agreed =
                ProtocolNames::flags(connection.capabilities & login.capabilities, cap::NAMES);
            out.push(format!("  - agreed {agreed}"));
        }
        // The number of packets in an exchange depends on what the server has cached.
        out.extend(
            render(&reply)
                .into_iter()
                .map(|line| format!("  -{}", &line[3..])),
        );
        let session = Session {
            connection,
            ..Session::default()
        };
        self.sessions.insert(number, session);
        Ok(out)
    }

    async fn session(&mut self, number: u32) -> anyhow::Result<&mut Session> {
        if !self.sessions.contains_key(&number) {
            let login = self.login();
            let lines = self.open(number, &login).await?;
            if self
                .sessions
                .get(&number)
                .is_none_or(|s| s.connection.is_none())
            {
                self.sessions.entry(number).or_default();
                bail!("session {number} cannot log in: {}", lines.join("; "));
            }
        }
        self.sessions.get_mut(&number).context("no such session")
    }

    async fn send(
        &mut self,
        step: &Step,
        command: u8,
        body: &[u8],
        expect: Expect,
    ) -> anyhow::Result<Vec<String>> {
        let mut payload = Vec::with_capacity(body.len() + 1);
        payload.push(command);
        let session = self.session(step.session).await?;
        let Some(connection) = &mut session.connection else {
            return Ok(no_session());
        };
        if command == com::QUERY && connection.capabilities & cap::QUERY_ATTRIBUTES != 0 {
            payload.extend_from_slice(&[0, 1]);
        }
        payload.extend_from_slice(body);
        // Whether writing to a closed connection fails is a matter of timing.
        if connection.send_payload(&payload).await.is_err() {
            return Ok(vec!["  0 CLOSED".to_owned()]);
        }
        if step.send_only {
            session.pending.push_back(expect);
            return Ok(Vec::new());
        }
        let mut lines = render(&connection.read_reply(expect).await);
        if command != com::QUERY && expect == Expect::Single {
            lines = lines.iter().map(|l| without_warnings(l)).collect();
        }
        Ok(lines)
    }

    async fn command(
        &mut self,
        step: &Step,
        verb: &str,
        arguments: &[u8],
    ) -> anyhow::Result<Vec<String>> {
        let list = words(arguments);
        let text = |i: usize| -> anyhow::Result<String> {
            let word = list
                .get(i)
                .with_context(|| format!(".{verb} wants {} words", i + 1))?;
            Ok(String::from_utf8(word.clone())?)
        };
        match verb {
            "connect" => {
                let login = self.parse_login(&list)?;
                self.open(step.session, &login).await
            }
            "sleep" => {
                tokio::time::sleep(Duration::from_millis(text(0)?.parse()?)).await;
                Ok(Vec::new())
            }
            "ping" => self.send(step, com::PING, &[], Expect::Single).await,
            "debug" => self.send(step, com::DEBUG, &[], Expect::Single).await,
            "statistics" => self.send(step, com::STATISTICS, &[], Expect::Raw).await,
            "initdb" => {
                self.send(step, com::INIT_DB, arguments, Expect::Single)
                    .await
            }
            "processinfo" => {
                self.send(
                    step,
                    com::PROCESS_INFO,
                    &[],
                    Expect::Results { binary: false },
                )
                .await
            }
            "resetconn" => {
                self.session(step.session).await?.statements.clear();
                self.send(step, com::RESET_CONNECTION, &[], Expect::Single)
                    .await
            }
            "setoption" => {
                let option: u16 = text(0)?.parse()?;
                self.send(step, com::SET_OPTION, &option.to_le_bytes(), Expect::Single)
                    .await
            }
            "fieldlist" => {
                let mut body = list.first().cloned().unwrap_or_default();
                body.push(0);
                body.extend_from_slice(list.get(1).map_or(&[][..], Vec::as_slice));
                self.send(step, com::FIELD_LIST, &body, Expect::Columns)
                    .await
            }
            "kill" => {
                let names = self.connection_ids();
                let victim: u32 = text(0)?.parse()?;
                let id = names
                    .iter()
                    .find(|(s, _)| *s == victim)
                    .map_or(victim, |(_, id)| *id);
                self.send(step, com::PROCESS_KILL, &id.to_le_bytes(), Expect::Single)
                    .await
            }
            "cmd" => {
                let bytes = unhex(&text(0)?).context("hexadecimal digits expected")?;
                let (command, body) = bytes.split_first().context("a command byte expected")?;
                self.send(step, *command, body, Expect::Results { binary: false })
                    .await
            }
            "prepare" | "exec" | "fetch" | "longdata" | "stmtreset" | "close" | "manyprepare" => {
                self.statement(step, verb, &list, arguments).await
            }
            _ => self.special(step, verb, &list, arguments).await,
        }
    }

    /// Commands that need the session itself.
    async fn special(
        &mut self,
        step: &Step,
        verb: &str,
        list: &[Vec<u8>],
        arguments: &[u8],
    ) -> anyhow::Result<Vec<String>> {
        let text = |i: usize| {
            String::from_utf8_lossy(list.get(i).map_or(&[][..], Vec::as_slice)).into_owned()
        };
        let session = self.session(step.session).await?;
        if verb == "drop" || verb == "quit" {
            let connection = session.connection.take();
            if let (Some(connection), "quit") = (connection, verb) {
                connection.quit().await;
            }
            return Ok(Vec::new());
        }
        let Some(connection) = &mut session.connection else {
            return Ok(no_session());
        };
        match verb {
            "greeting" => Ok(vec![connection.greeting.render()]),
            "recv" => {
                let expect = session.pending.pop_front().context("nothing was sent")?;
                Ok(render(&connection.read_reply(expect).await))
            }
            "expectclosed" => Ok(render(&connection.read_reply(Expect::Single).await)),
            "infile" => {
                connection.infile = list.to_vec();
                Ok(Vec::new())
            }
            "changeuser" => {
                let charset = text(3).parse().unwrap_or(45);
                session.statements.clear();
                let reply = connection
                    .change_user(&text(0), &text(1), &text(2), charset)
                    .await;
                Ok(render(&reply)
                    .into_iter()
                    .map(|line| format!("  -{}", &line[3..]))
                    .collect())
            }
            "pipeline" => {
                let statements = split_statements(arguments);
                connection.pipeline(&statements).await?;
                let mut out = Vec::new();
                for _ in &statements {
                    out.extend(render(
                        &connection
                            .read_reply(Expect::Results { binary: false })
                            .await,
                    ));
                }
                Ok(out)
            }
            "raw" => {
                let bytes = unhex(&text(0)).context("hexadecimal digits expected")?;
                connection.frames.start_command();
                // Whether writing to a closed connection fails is a matter of timing.
                if connection.frames.write_framed(&bytes).await.is_err() {
                    return Ok(vec!["  0 CLOSED".to_owned()]);
                }
                let expect = Expect::Results { binary: false };
                Ok(render(&connection.read_reply(expect).await))
            }
            "attr" => {
                let parts = split_statements(arguments);
                let [attributes, sql] = &parts[..] else {
                    bail!(".attr NAME=PARAM… ;; SQL")
                };
                let attributes = parse_attributes(attributes)?;
                Ok(render(
                    &connection.query_with_attributes(&attributes, sql).await,
                ))
            }
            _ => bail!("unknown command .{verb}"),
        }
    }

    async fn statement(
        &mut self,
        step: &Step,
        verb: &str,
        list: &[Vec<u8>],
        arguments: &[u8],
    ) -> anyhow::Result<Vec<String>> {
        let name = String::from_utf8_lossy(list.first().context("a name expected")?).into_owned();
        let session = self.session(step.session).await?;
        let Some(connection) = &mut session.connection else {
            return Ok(no_session());
        };
        if verb == "prepare" {
            let reply = connection.prepare(after_name(arguments, &name)).await;
            if let Some(prepared) = reply.statement_id() {
                session.statements.insert(name, prepared);
            }
            return Ok(render(&reply));
        }
        if verb == "manyprepare" {
            return many_prepare(session, &name, after_name(arguments, &name)).await;
        }
        let id = match name.strip_prefix('#') {
            Some(number) => number.parse()?,
            None => match session.statements.get(&name) {
                Some((id, _)) => *id,
                None => return Ok(vec![format!("  - {name} is not prepared")]),
            },
        };
        let word = |i: usize| {
            String::from_utf8_lossy(list.get(i).map_or(&[][..], Vec::as_slice)).into_owned()
        };
        let reply = match verb {
            "exec" => {
                let (flags, types, params) = parse_exec(&list[1..])?;
                let reply = connection.execute(id, flags, &params, types).await;
                return Ok(render(&reply));
            }
            "fetch" => {
                let columns = connection.cursor_columns(id).to_vec();
                let mut reply = connection.fetch(id, word(1).parse()?).await;
                let shown = reply.events.len();
                prepend_columns(&mut reply, columns);
                let lines = render(&reply);
                return Ok(lines[lines.len() - shown..].to_vec());
            }
            "longdata" => {
                let mut body = id.to_le_bytes().to_vec();
                body.extend_from_slice(&word(1).parse::<u16>()?.to_le_bytes());
                body.extend_from_slice(list.get(2).map_or(&[][..], Vec::as_slice));
                connection
                    .command(com::STMT_SEND_LONG_DATA, &body, Expect::Nothing)
                    .await
            }
            "stmtreset" => {
                connection
                    .command(com::STMT_RESET, &id.to_le_bytes(), Expect::Single)
                    .await
            }
            _ => {
                connection
                    .command(com::STMT_CLOSE, &id.to_le_bytes(), Expect::Nothing)
                    .await
            }
        };
        Ok(render(&reply))
    }

    fn parse_login(&self, list: &[Vec<u8>]) -> anyhow::Result<Login> {
        let mut login = self.login();
        for word in list {
            let word = String::from_utf8(word.clone())?;
            let (key, value) = word.split_once('=').unwrap_or((&word, ""));
            match key {
                "user" => value.clone_into(&mut login.user),
                "password" => value.clone_into(&mut login.password),
                "db" => login.database = (value != "-").then(|| value.to_owned()),
                "caps" => login.capabilities = parse_capabilities(value, login.capabilities)?,
                "tls" => login.tls = true,
                "charset" => login.charset = value.parse()?,
                "plugin" => login.plugin = Some(value.to_owned()),
                "attrs" => {
                    login.attributes = value
                        .split(';')
                        .filter_map(|pair| pair.split_once(':'))
                        .map(|(k, v)| (k.to_owned(), v.to_owned()))
                        .collect();
                }
                _ => bail!("unknown login option {key}"),
            }
        }
        Ok(login)
    }
}

fn after_name<'a>(arguments: &'a [u8], name: &str) -> &'a [u8] {
    arguments.get(name.len() + 1..).unwrap_or_default()
}

/// MySQL's answer to a ping, and to other commands that are not statements, repeats the number of
/// warnings of the statement before: a leftover, not a fact about the command.
fn without_warnings(line: &str) -> String {
    let words: Vec<&str> = line
        .split(' ')
        .filter(|w| !w.starts_with("warnings="))
        .collect();
    words.join(" ")
}

fn no_session() -> Vec<String> {
    vec!["  - no session".to_owned()]
}

fn render(reply: &Reply) -> Vec<String> {
    reply.render()
}

/// Gives a fetch's rows the columns that its execution announced.
fn prepend_columns(reply: &mut Reply, columns: Vec<crate::wire::Column>) {
    let heads = columns.into_iter().map(|c| crate::wire::Event {
        seq: 0,
        chunks: 0,
        item: Item::Column(Box::new(c)),
    });
    reply.events.splice(0..0, heads);
}

/// Prepares and executes a statement `count` times, keeping every handle; prints the last reply
/// of each kind and how many came out differently.
async fn many_prepare(
    session: &mut Session,
    count: &str,
    sql: &[u8],
) -> anyhow::Result<Vec<String>> {
    let Some(connection) = &mut session.connection else {
        return Ok(no_session());
    };
    let mut handles = Vec::new();
    let mut seen: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for _ in 0..count.parse::<usize>()? {
        let reply = connection.prepare(sql).await;
        handles.extend(reply.statement_id());
        *seen.entry(render(&reply)).or_default() += 1;
    }
    for (id, _) in &handles {
        let reply = connection.execute(*id, 0, &[], true).await;
        *seen.entry(render(&reply)).or_default() += 1;
    }
    for (id, _) in &handles {
        connection
            .command(com::STMT_CLOSE, &id.to_le_bytes(), Expect::Nothing)
            .await;
    }
    Ok(seen
        .into_iter()
        .map(|(lines, n)| format!("{n} times {}", lines.join("; ")))
        .collect())
}

fn parse_exec(list: &[Vec<u8>]) -> anyhow::Result<(u8, bool, Vec<Param>)> {
    let (mut flags, mut types, mut params) = (0, true, Vec::new());
    for word in list {
        match &word[..] {
            b"cursor" => flags = 1,
            b"notypes" => types = false,
            _ => params.push(Param::parse(word)?),
        }
    }
    Ok((flags, types, params))
}

fn parse_attributes(text: &[u8]) -> anyhow::Result<Vec<(String, Param)>> {
    words(text)
        .into_iter()
        .filter(|word| word != b"-")
        .map(|word| {
            let equals = word
                .iter()
                .position(|b| *b == b'=')
                .context("NAME=PARAM expected")?;
            let name = String::from_utf8(word[..equals].to_vec())?;
            Ok((name, Param::parse(&word[equals + 1..])?))
        })
        .collect()
}

/// `+NAME`, `-NAME`, `modern` and `legacy`, separated by commas.
fn parse_capabilities(text: &str, mut capabilities: u64) -> anyhow::Result<u64> {
    for word in text.split(',') {
        let named = |name: &str| {
            ProtocolNames::capability(name).with_context(|| format!("unknown capability {name}"))
        };
        match word.as_bytes().first() {
            Some(b'+') => capabilities |= named(&word[1..])?,
            Some(b'-') => capabilities &= !named(&word[1..])?,
            _ if word == "modern" => capabilities = cap::MODERN,
            _ if word == "legacy" => capabilities = cap::LEGACY,
            _ => bail!("unknown capability {word}"),
        }
    }
    Ok(capabilities)
}

fn split_statements(text: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(4).position(|w| w == b" ;; ") {
        out.push(rest[..at].to_vec());
        rest = &rest[at + 4..];
    }
    out.push(rest.to_vec());
    out
}
