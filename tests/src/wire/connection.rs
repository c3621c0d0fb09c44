//! A connection: logging in, sending commands, reading whole replies.

mod read;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, UnixStream};

use super::auth;
use super::codec::{Reader, put_lenenc, put_lenenc_bytes};
use super::consts::{cap, com, status};
use super::frame::{Compression, Frames, Io, Packet};
use super::greeting::Greeting;
use super::params::{Param, put_params};
use super::reply::{Column, ErrPacket, Event, Item, OkPacket, Reply};
use super::tls;

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Tcp(String),
    /// From this address of the machine to that one.
    TcpFrom(std::net::IpAddr, SocketAddr),
    Unix(PathBuf),
}

/// A client's certificate and its key: files in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// How to log in.
#[derive(Debug, Clone)]
pub struct Login {
    pub target: Target,
    pub user: String,
    pub password: String,
    pub database: Option<String>,
    /// What to ask for; what the server does not offer is left out.
    pub capabilities: u64,
    /// Collation id of the handshake.
    pub charset: u8,
    pub tls: bool,
    /// Sends the first of TLS in the same write as the request for it.
    pub tls_at_once: bool,
    /// What is shown of oneself over TLS.
    pub certificate: Option<Certificate>,
    /// The plugin to begin with; the server's own choice where `None`.
    pub plugin: Option<String>,
    /// Whether the login says which plugin it answers; some libraries know of plugins and name none.
    pub names_plugin: bool,
    /// Whether the client sends its password when a server asks for it on a plain connection;
    /// libraries that are told to refuse break off instead.
    pub shows_password: bool,
    /// The servers' public RSA key, PEM, where the client was given it: it asks for none.
    pub server_key: Option<Vec<u8>>,
    pub attributes: Vec<(String, String)>,
    /// Longest silence while a reply is awaited.
    pub timeout: Duration,
}

impl Login {
    /// Modern capabilities, utf8mb4, plain, no database.
    pub fn new(target: Target, user: &str, password: &str) -> Self {
        Self {
            target,
            user: user.to_owned(),
            password: password.to_owned(),
            database: None,
            capabilities: cap::MODERN,
            charset: 45,
            tls: false,
            tls_at_once: false,
            certificate: None,
            plugin: None,
            names_plugin: true,
            shows_password: true,
            server_key: None,
            attributes: Vec::new(),
            timeout: Duration::from_secs(30),
        }
    }

    /// The same login with a database.
    #[must_use]
    pub fn database(mut self, name: &str) -> Self {
        self.database = Some(name.to_owned());
        self
    }
}

/// The shape of the reply that a command has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Result sets or OKs; rows in the text or the binary format.
    Results {
        binary: bool,
    },
    /// One OK, EOF or error.
    Single,
    /// One packet of any content.
    Raw,
    /// Column definitions up to an end.
    Columns,
    Prepare,
    /// Rows of an open cursor.
    Rows,
    /// An authentication exchange up to an OK or error.
    Auth,
    Nothing,
}

/// A logged-in connection.
#[derive(Debug)]
pub struct Connection {
    pub frames: Frames,
    pub greeting: Greeting,
    pub login: Login,
    /// What both sides agreed to.
    pub capabilities: u64,
    /// The login's own last packet.
    pub login_reply: Reply,
    /// What LOAD DATA LOCAL sends, in packets of the given sizes.
    pub infile: Vec<Vec<u8>>,
    cursors: HashMap<u32, Vec<Column>>,
    /// The execution under way asked for a cursor.
    wants_cursor: bool,
}

pub(super) async fn dial(target: &Target) -> io::Result<Box<dyn Io>> {
    Ok(match target {
        Target::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Target::TcpFrom(own, address) => {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(*own, 0))?;
            let stream = socket.connect(*address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
    })
}

fn protocol_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Connection {
    /// Connects and logs in. A refused login is an error whose source is the [`ErrPacket`].
    pub async fn open(login: &Login) -> io::Result<Self> {
        let (connection, reply) = Self::try_open(login).await?;
        match (connection, reply.err()) {
            (Some(connection), None) => Ok(connection),
            (_, Some(err)) => Err(io::Error::other(err.clone())),
            (None, None) => Err(io::Error::other(
                reply.broken().unwrap_or_else(|| "no reply".to_owned()),
            )),
        }
    }

    /// Connects and logs in; the reply tells the outcome, the connection is there if it is good.
    pub async fn try_open(login: &Login) -> io::Result<(Option<Self>, Reply)> {
        let limit = login.timeout;
        match tokio::time::timeout(limit, Self::handshake(login)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn handshake(login: &Login) -> io::Result<(Option<Self>, Reply)> {
        let mut frames = Frames::new(dial(&login.target).await?);
        let first = frames.read().await?;
        if first.body.first() == Some(&0xff) {
            let err =
                ErrPacket::parse(&first.body).ok_or_else(|| protocol_error("bad error packet"))?;
            let item = Item::Err(err);
            return Ok((
                None,
                Reply {
                    events: vec![Event {
                        seq: first.seq,
                        chunks: 1,
                        item,
                    }],
                },
            ));
        }
        let greeting =
            Greeting::parse(&first.body).ok_or_else(|| protocol_error("bad greeting"))?;
        let capabilities = negotiated(login, &greeting);
        if login.tls {
            if capabilities & cap::SSL == 0 {
                return Err(protocol_error("the server offers no TLS"));
            }
            let request = response_head(login, capabilities);
            let mut ahead = Vec::new();
            frames.frame(&request, &mut ahead);
            if !login.tls_at_once {
                frames.write_framed(&std::mem::take(&mut ahead)).await?;
            }
            let seq = frames.seq;
            frames = Frames::new(
                tls::upgrade(frames.into_io(), ahead, login.certificate.as_ref()).await?,
            );
            frames.seq = seq;
        }
        let mut connection = Self::entered(frames, greeting, login.clone(), capabilities);
        connection.send_login().await?;
        let reply = connection.read_reply(Expect::Auth).await;
        let good = reply.err().is_none() && reply.broken().is_none();
        if good && capabilities & cap::ZSTD != 0 {
            connection.frames.start_compression(Compression::Zstd);
        } else if good && capabilities & cap::COMPRESS != 0 {
            connection.frames.start_compression(Compression::Zlib);
        }
        connection.login_reply = reply.clone();
        Ok((good.then_some(connection), reply))
    }

    /// A connection whose login is somebody else's affair.
    pub(super) fn entered(
        frames: Frames,
        greeting: Greeting,
        login: Login,
        capabilities: u64,
    ) -> Self {
        Self {
            frames,
            greeting,
            login,
            capabilities,
            login_reply: Reply::default(),
            infile: Vec::new(),
            cursors: HashMap::new(),
            wants_cursor: false,
        }
    }

    /// Whether a password may be sent as it is. To sha256_password a Unix socket is as open as
    /// TCP.
    fn secure(&self, plugin: &str) -> bool {
        let socket = matches!(self.login.target, Target::Unix(_));
        self.login.tls || (socket && plugin != "sha256_password")
    }

    async fn send_login(&mut self) -> io::Result<()> {
        let login = &self.login;
        let plugin = login
            .plugin
            .clone()
            .unwrap_or_else(|| self.greeting.plugin.clone());
        let answer = auth::first_answer(
            &plugin,
            login.password.as_bytes(),
            &self.greeting.scramble,
            self.secure(&plugin),
        );
        let mut out = response_head(login, self.capabilities);
        out.extend_from_slice(login.user.as_bytes());
        out.push(0);
        if self.capabilities & cap::PLUGIN_AUTH_LENENC != 0 {
            put_lenenc_bytes(&mut out, &answer);
        } else {
            out.push(answer.len() as u8);
            out.extend_from_slice(&answer);
        }
        if self.capabilities & cap::CONNECT_WITH_DB != 0 {
            out.extend_from_slice(login.database.as_deref().unwrap_or("").as_bytes());
            out.push(0);
        }
        if self.capabilities & cap::PLUGIN_AUTH != 0 && login.names_plugin {
            out.extend_from_slice(plugin.as_bytes());
            out.push(0);
        }
        if self.capabilities & cap::CONNECT_ATTRS != 0 {
            put_attributes(&mut out, &login.attributes);
        }
        if self.capabilities & cap::ZSTD != 0 {
            out.push(3);
        }
        self.frames.write(&out).await
    }

    /// Runs one statement with COM_QUERY.
    pub async fn query(&mut self, sql: impl AsRef<[u8]>) -> Reply {
        self.command(com::QUERY, sql.as_ref(), Expect::Results { binary: false })
            .await
    }

    /// Runs one statement whose failure is an error here.
    pub async fn expect(&mut self, sql: &str) -> io::Result<Reply> {
        let reply = self.query(sql).await;
        match (reply.err(), reply.broken()) {
            (Some(err), _) => Err(io::Error::other(format!("{sql}: {err}"))),
            (None, Some(why)) => Err(io::Error::other(format!("{sql}: {why}"))),
            (None, None) => Ok(reply),
        }
    }

    /// Sends a command and reads its reply.
    pub async fn command(&mut self, command: u8, body: &[u8], expect: Expect) -> Reply {
        match self.send(command, body).await {
            Ok(()) => self.read_reply(expect).await,
            Err(e) => closed(&e),
        }
    }

    /// The bytes of a command's packet, with query attributes where they were negotiated.
    fn payload(&self, command: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(body.len() + 3);
        out.push(command);
        if command == com::QUERY && self.capabilities & cap::QUERY_ATTRIBUTES != 0 {
            out.extend_from_slice(&[0, 1]);
        }
        out.extend_from_slice(body);
        out
    }

    /// Shuts the sending side: the peer reads the end, and can still answer.
    pub async fn send_no_more(&mut self) -> io::Result<()> {
        self.frames.shut().await
    }

    /// Sends a command; its reply is read later.
    pub async fn send(&mut self, command: u8, body: &[u8]) -> io::Result<()> {
        let payload = self.payload(command, body);
        self.send_payload(&payload).await
    }

    /// Sends a whole command packet as given. A server that has stopped reading counts as gone.
    pub async fn send_payload(&mut self, payload: &[u8]) -> io::Result<()> {
        self.frames.start_command();
        let limit = self.login.timeout;
        match tokio::time::timeout(limit, self.frames.write(payload)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Sends several statements in one write.
    pub async fn pipeline(&mut self, statements: &[Vec<u8>]) -> io::Result<()> {
        let mut framed = Vec::new();
        for sql in statements {
            let payload = self.payload(com::QUERY, sql);
            self.frames.start_command();
            self.frames.frame(&payload, &mut framed);
        }
        self.frames.write_framed(&framed).await
    }

    /// Runs a statement with query attributes.
    pub async fn query_with_attributes(
        &mut self,
        attributes: &[(String, Param)],
        sql: &[u8],
    ) -> Reply {
        let mut out = vec![com::QUERY];
        put_lenenc(&mut out, attributes.len() as u64);
        put_lenenc(&mut out, 1);
        if !attributes.is_empty() {
            let names: Vec<String> = attributes.iter().map(|(n, _)| n.clone()).collect();
            let params: Vec<Param> = attributes.iter().map(|(_, p)| p.clone()).collect();
            put_params(&mut out, &params, Some(&names), true);
        }
        out.extend_from_slice(sql);
        match self.send_payload(&out).await {
            Ok(()) => self.read_reply(Expect::Results { binary: false }).await,
            Err(e) => closed(&e),
        }
    }

    /// Prepares a statement.
    pub async fn prepare(&mut self, sql: &[u8]) -> Reply {
        let reply = self.command(com::STMT_PREPARE, sql, Expect::Prepare).await;
        if let Some((id, params)) = reply.statement_id() {
            // The parameters' definitions come first.
            let columns = reply.columns().into_iter().skip(params.into());
            self.cursors.insert(id, columns.cloned().collect());
        }
        reply
    }

    /// The body of COM_STMT_EXECUTE. `flags` as in the protocol: 1 opens a read-only cursor.
    pub fn execute_body(&self, id: u32, flags: u8, params: &[Param], types: bool) -> Vec<u8> {
        let mut out = id.to_le_bytes().to_vec();
        out.push(flags);
        out.extend_from_slice(&1_u32.to_le_bytes());
        if !params.is_empty() {
            put_params(&mut out, params, None, types);
        }
        out
    }

    /// Executes a prepared statement.
    pub async fn execute(&mut self, id: u32, flags: u8, params: &[Param], types: bool) -> Reply {
        let body = self.execute_body(id, flags, params, types);
        self.wants_cursor = flags != 0;
        let mut reply = self
            .command(com::STMT_EXECUTE, &body, Expect::Results { binary: true })
            .await;
        self.wants_cursor = false;
        // What a client sees that keeps definitions is the ones it has kept, right or wrong.
        reply.fill_in(self.cursor_columns(id));
        let columns: Vec<Column> = reply.columns().into_iter().cloned().collect();
        if !columns.is_empty() {
            self.cursors.insert(id, columns);
        }
        reply
    }

    /// Fetches rows from an open cursor.
    pub async fn fetch(&mut self, id: u32, rows: u32) -> Reply {
        let mut body = id.to_le_bytes().to_vec();
        body.extend_from_slice(&rows.to_le_bytes());
        self.command(com::STMT_FETCH, &body, Expect::Rows).await
    }

    /// The columns that the statement had at its last execution.
    pub fn cursor_columns(&self, id: u32) -> &[Column] {
        self.cursors.get(&id).map_or(&[], Vec::as_slice)
    }

    /// COM_CHANGE_USER, with the whole exchange.
    pub async fn change_user(
        &mut self,
        user: &str,
        password: &str,
        database: &str,
        charset: u16,
    ) -> Reply {
        let own = self.login.plugin.clone();
        let plugin = own.unwrap_or_else(|| self.greeting.plugin.clone());
        let answer = auth::first_answer(
            &plugin,
            password.as_bytes(),
            &self.greeting.scramble,
            self.secure(&plugin),
        );
        self.login.user = user.to_owned();
        self.login.password = password.to_owned();
        let mut out = user.as_bytes().to_vec();
        out.push(0);
        out.push(answer.len() as u8);
        out.extend_from_slice(&answer);
        out.extend_from_slice(database.as_bytes());
        out.push(0);
        out.extend_from_slice(&charset.to_le_bytes());
        if self.capabilities & cap::PLUGIN_AUTH != 0 && self.login.names_plugin {
            out.extend_from_slice(plugin.as_bytes());
            out.push(0);
        }
        if self.capabilities & cap::CONNECT_ATTRS != 0 {
            put_attributes(&mut out, &self.login.attributes.clone());
        }
        self.command(com::CHANGE_USER, &out, Expect::Auth).await
    }

    /// Says goodbye; the server closes.
    pub async fn quit(mut self) {
        let _ = self.send(com::QUIT, &[]).await;
    }
}

fn push(reply: &mut Reply, packet: &Packet, item: Option<Item>) {
    let item = item.unwrap_or_else(|| Item::Raw(packet.body.clone()));
    reply.events.push(Event {
        seq: packet.seq,
        chunks: packet.chunks,
        item,
    });
}

fn closed(e: &io::Error) -> Reply {
    let item = Item::Closed(e.to_string());
    Reply {
        events: vec![Event {
            seq: 0,
            chunks: 0,
            item,
        }],
    }
}

fn text_row(body: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
    let mut r = Reader::new(body);
    let mut row = Vec::new();
    while !r.is_empty() {
        if r.rest().first() == Some(&0xfb) {
            r.u8()?;
            row.push(None);
        } else {
            row.push(Some(r.lenenc_bytes()?.to_vec()));
        }
    }
    Some(row)
}

fn negotiated(login: &Login, greeting: &Greeting) -> u64 {
    let mut wanted = login.capabilities;
    if login.database.is_some() {
        wanted |= cap::CONNECT_WITH_DB;
    }
    if login.tls {
        wanted |= cap::SSL;
    }
    if !login.attributes.is_empty() {
        wanted |= cap::CONNECT_ATTRS;
    }
    // MariaDB reads the extended half only from clients that do not claim to be MySQL's.
    if wanted >> 32 != 0 {
        wanted &= !cap::LONG_PASSWORD;
    }
    wanted & greeting.capabilities
}

fn response_head(login: &Login, capabilities: u64) -> Vec<u8> {
    let mut out = (capabilities as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&0x4000_0000_u32.to_le_bytes());
    out.push(login.charset);
    out.extend_from_slice(&[0; 19]);
    out.extend_from_slice(&((capabilities >> 32) as u32).to_le_bytes());
    out
}

fn put_attributes(out: &mut Vec<u8>, attributes: &[(String, String)]) {
    let mut block = Vec::new();
    for (name, value) in attributes {
        put_lenenc_bytes(&mut block, name.as_bytes());
        put_lenenc_bytes(&mut block, value.as_bytes());
    }
    put_lenenc_bytes(out, &block);
}
