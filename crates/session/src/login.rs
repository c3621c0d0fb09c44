//! A client's way in: greeting, TLS, proof of the password, and the session's first state.
//! Passwords are checked against the servers' own accounts; none is configured here.

pub(crate) mod accounts;
pub(crate) mod admission;
pub(crate) mod caller;
pub(crate) mod old_clients;
pub(crate) mod relayed;
pub(crate) mod strangers;
pub(crate) mod verify;
pub(crate) mod watched_commands;

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_backend::account::Account;
use millrace_backend::connect::{LOG_IN_ANEW, LOGIN_PACKET_MAX};
use millrace_backend::error::ServerError;
use millrace_backend::packet_io::{read_header, read_packet, write_packet};
use millrace_backend::pool::ServerFacts;
use millrace_backend::secret::Secret;
use millrace_backend::state::SessionState;
use millrace_backend::stream::{Plain, Stream};
use millrace_backend::tls::take_in;
use millrace_backend::user_rows::{Name, UserRow, UserRows};
use millrace_metrics::{ErrorClass, LoginOutcome, Side};
use millrace_protocol::auth::{self, Plugin};
use millrace_protocol::compress::Algorithm;
use millrace_protocol::handshake::{
    AuthSwitch, ClientHello, Greeting, HandshakeResponse, encode_auth_more,
};
use millrace_protocol::ok::{Change, ErrPacket, OkFields, encode_ok, put_change};
use millrace_protocol::{Capabilities, Status};
use millrace_sql::Family;
use tracing::debug;

use crate::error::{Abort, ClientError};
use crate::image::first_status;
use crate::login::accounts::Asked;
use crate::login::admission::Admission;
use crate::login::caller::Caller;
use crate::login::strangers::{spoken, turn_away};
use crate::login::verify::verify;
use crate::session::{Identity, Session};
use crate::worker::learnt::Base;
use crate::worker::{Handle, ListenerContext, ListenerTls, Worker};

/// Before the login no packet may be longer; bytes. A response with attributes fits well.
const HELLO_MAX: usize = 64 * 1024;

/// How often a login that waits for a server looks whether its client is still there.
const LOOK: Duration = Duration::from_secs(1);

/// What Millrace can do on a client's connection, where the server can.
const SUPPORTED: Capabilities = Capabilities::LONG_PASSWORD
    .union(Capabilities::FOUND_ROWS)
    .union(Capabilities::LONG_FLAG)
    .union(Capabilities::CONNECT_WITH_DB)
    .union(Capabilities::NO_SCHEMA)
    .union(Capabilities::ODBC)
    .union(Capabilities::LOCAL_FILES)
    .union(Capabilities::IGNORE_SPACE)
    .union(Capabilities::PROTOCOL_41)
    .union(Capabilities::INTERACTIVE)
    .union(Capabilities::IGNORE_SIGPIPE)
    .union(Capabilities::TRANSACTIONS)
    .union(Capabilities::RESERVED)
    .union(Capabilities::SECURE_CONNECTION)
    .union(Capabilities::MULTI_STATEMENTS)
    .union(Capabilities::MULTI_RESULTS)
    .union(Capabilities::PS_MULTI_RESULTS)
    .union(Capabilities::PLUGIN_AUTH)
    .union(Capabilities::CONNECT_ATTRS)
    .union(Capabilities::PLUGIN_AUTH_LENENC)
    .union(Capabilities::CAN_HANDLE_EXPIRED_PASSWORDS)
    .union(Capabilities::SESSION_TRACK)
    .union(Capabilities::DEPRECATE_EOF)
    .union(Capabilities::QUERY_ATTRIBUTES)
    .union(Capabilities::STMT_BULK_OPERATIONS)
    .union(Capabilities::PROGRESS)
    .union(Capabilities::EXTENDED_METADATA)
    .union(Capabilities::CACHE_METADATA);

/// What Millrace does by itself, whatever the server can.
const OWN: Capabilities = Capabilities::COMPRESS.union(Capabilities::ZSTD_COMPRESSION);

/// Clients that break off rather than send their password under an RSA key, unless told to.
const REFUSE_RSA: [&[u8]; 3] = [b"libmysql", b"MySQL Connector/J", b"MySqlConnector"];

/// Serves a client from its first byte to its last. `peer`: none for a Unix socket.
pub(crate) fn spawn(
    worker: Rc<Worker>,
    plain: Plain,
    peer: Option<SocketAddr>,
    entry: ListenerContext,
) {
    tokio::task::spawn_local(async move {
        let admission = Admission::new(worker, peer.map(|peer| peer.ip()));
        serve(admission, plain, entry, peer).await;
    });
}

async fn serve(
    mut admission: Admission,
    plain: Plain,
    entry: ListenerContext,
    peer: Option<SocketAddr>,
) {
    let caller = Caller::new(&plain, peer);
    let worker = &admission.worker().clone();
    let socket = plain.clone();
    let mut stream = Stream::Plain(plain);
    if let Some(refusal) = refusal(worker, admission.is_refused()) {
        let mut out = Vec::new();
        error_packet(&refusal).encode_before_greeting(&mut out);
        let _ = stream.send(&out).await;
        worker.metrics().error(refusal.side, refusal.class);
        return;
    }
    let (id, uid) = admission.register();
    let handle = Rc::new(Handle {
        uid,
        peer: peer.map(|peer| (peer.ip(), peer.port())),
        connected: Cell::new(worker.tick()),
        heard: Cell::new(worker.tick()),
        ..Handle::default()
    });
    let waits = Rc::new(Waits::default());
    let login = log_in(
        worker,
        stream,
        entry,
        caller,
        id,
        handle.clone(),
        waits.clone(),
    );
    let session = within(worker, Box::pin(login), &waits).await;
    match session {
        Some(LoggedIn::Session(session)) => {
            *handle.socket.borrow_mut() = Some(socket);
            admission.enter(&handle);
            session.run().await;
        }
        Some(LoggedIn::Relayed(relayed)) => {
            admission.enter(&handle);
            Box::pin(relayed.run(&handle)).await;
        }
        None => {}
    }
}

/// Gives the client `limits.login_timeout`, in which its waits for servers do not count.
async fn within(
    worker: &Worker,
    mut login: Pin<Box<impl Future<Output = Option<LoggedIn>>>>,
    waits: &Waits,
) -> Option<LoggedIn> {
    let begun = Instant::now();
    let mut limit = worker.options().login_timeout;
    loop {
        let rest = limit.saturating_sub(begun.elapsed());
        if let Ok(entered) = tokio::time::timeout(rest, &mut login).await {
            return entered;
        }
        let extended = worker.options().login_timeout + waits.total();
        if begun.elapsed() >= extended {
            worker.metrics().login(LoginOutcome::TimedOut);
            return None;
        }
        limit = extended;
    }
}

/// How a client got in.
enum LoggedIn {
    Session(Box<Session>),
    Relayed(Box<relayed::Relayed>),
}

fn refusal(worker: &Worker, address_is_full: bool) -> Option<ClientError> {
    let options = worker.options();
    if worker.is_draining() {
        let text = "Millrace is shutting down; connect again";
        return Some(ClientError::proxy(
            ErrorClass::Connection,
            1053,
            b"08S01",
            text,
        ));
    }
    if worker.shared.registry.clients() >= options.clients_max {
        let text = format!(
            "Too many connections (Millrace: limits.max_clients is {})",
            options.clients_max
        );
        return Some(ClientError::proxy(ErrorClass::Limit, 1040, b"08004", text));
    }
    if address_is_full {
        let text = format!(
            "Too many connections (Millrace: limits.clients_per_address is {})",
            options.clients_per_address
        );
        return Some(ClientError::proxy(ErrorClass::Limit, 1040, b"08004", text));
    }
    if worker.cluster.with_world(|world| world.greeting.is_none()) {
        let text = "Millrace has not reached any server yet; look at its log";
        return Some(ClientError::proxy(
            ErrorClass::NoServer,
            1105,
            b"HY000",
            text,
        ));
    }
    None
}

pub(crate) fn error_packet(answer: &ClientError) -> ErrPacket<'_> {
    ErrPacket {
        code: answer.error.code,
        state: answer.error.state,
        message: &answer.error.message,
    }
}

/// Bytes without zeros, as a nonce wants them.
pub fn random_nonce() -> [u8; 20] {
    let mut nonce = [0; 20];
    if aws_lc_rs::rand::fill(&mut nonce).is_err() {
        // The generator cannot fail on a running system; a known nonce would be no proof.
        std::process::abort();
    }
    nonce.map(|byte| byte % 93 + 33)
}

/// A login under way: the client's stream and what it has said.
pub(crate) struct LoginExchange<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) stream: Stream,
    pub(crate) buffer: Vec<u8>,
    /// A packet that goes with the next one, in the same write.
    pub(crate) held_back: Vec<u8>,
    /// The number of the next packet to the client.
    pub(crate) sequence: u8,
    pub(crate) nonce: [u8; 20],
    /// The client has proved itself by mysql_native_password.
    pub(crate) is_native: bool,
    pub(crate) address: Option<IpAddr>,
    pub(crate) caller: Rc<Caller>,
    pub(crate) hello: HandshakeResponse,
    /// The flags agreed on.
    pub(crate) capabilities: Capabilities,
    /// How long it has waited for servers.
    pub(crate) waits: Rc<Waits>,
}

/// For how long a login has waited for servers, which is not its client's doing.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    since: Cell<Option<Instant>>,
    before: Cell<Duration>,
}

impl Waits {
    pub(crate) fn begin(&self) {
        self.since.set(Some(Instant::now()));
    }

    pub(crate) fn end(&self) {
        self.before.set(self.total());
        self.since.set(None);
    }

    fn total(&self) -> Duration {
        let now = self.since.get().map(|since| since.elapsed());
        self.before.get() + now.unwrap_or_default()
    }
}

/// How a client's proof ended.
pub(crate) enum Proof {
    /// The password is known, and a server takes it.
    Account(Arc<Account>),
    /// The password cannot be had: relay the login.
    Relay,
    /// The password is right and has expired: the client gets a connection of its own, on which
    /// it can do nothing but change it.
    Own(Secret),
    /// Not let in.
    Denied(ClientError),
}

async fn log_in(
    worker: &Rc<Worker>,
    stream: Stream,
    entry: ListenerContext,
    caller: Caller,
    id: u32,
    handle: Rc<Handle>,
    waits: Rc<Waits>,
) -> Option<LoggedIn> {
    let greeting = worker.cluster.with_world(|world| world.greeting.clone())?;
    let address = caller.address;
    let mut exchange = match greet(worker, stream, entry.tls, caller, id, &greeting).await {
        Ok(Some(exchange)) => exchange,
        Ok(None) => return None,
        Err(error) => {
            debug!(%error, "a client left before it logged in");
            worker.metrics().login(LoginOutcome::Aborted);
            return None;
        }
    };
    exchange.waits = waits;
    if !exchange
        .hello
        .capabilities
        .contains(Capabilities::PROTOCOL_41)
    {
        if old_clients::serve(exchange).await.is_err() {
            worker.metrics().login(LoginOutcome::Aborted);
        }
        return None;
    }
    let plugin = exchange.hello.plugin.clone().unwrap_or_default();
    let plugin = match &plugin[..] {
        // Clients that name none have only this one.
        [] => Plugin::NativePassword,
        name => Plugin::from_name(&String::from_utf8_lossy(name)),
    };
    let hello = &exchange.hello;
    let credentials = Credentials {
        user: hello.user.clone(),
        database: hello.database.clone().unwrap_or_default(),
        response: hello.auth_response.clone(),
        used_up: false,
        collation: hello.collation,
        plugin,
    };
    debug!(
        user = ?String::from_utf8_lossy(&credentials.user),
        address = %shown(address),
        plugin = credentials.plugin.name(),
        proof_length = credentials.response.len(),
        "login begins"
    );
    match exchange.prove(&credentials).await {
        Ok(Proof::Account(account)) => {
            worker.metrics().login(LoginOutcome::Known);
            worker.shared.accounts.succeeded(address);
            *handle.user.borrow_mut() = account.user.clone();
            let session = exchange.enter(account, entry, id, handle).await;
            session.map(|session| LoggedIn::Session(Box::new(session)))
        }
        Ok(Proof::Relay) => {
            debug!(user = ?String::from_utf8_lossy(&credentials.user), address = %shown(address), "login relayed");
            *handle.user.borrow_mut() = credentials.user.clone().into();
            let relayed = relayed::log_in(exchange, &credentials).await;
            relayed.map(|relayed| LoggedIn::Relayed(Box::new(relayed)))
        }
        Ok(Proof::Own(password)) => {
            *handle.user.borrow_mut() = credentials.user.clone().into();
            let relayed = relayed::log_in_with(exchange, &credentials, &password).await;
            relayed.map(|relayed| LoggedIn::Relayed(Box::new(relayed)))
        }
        Ok(Proof::Denied(answer)) => {
            debug!(
                user = ?String::from_utf8_lossy(&credentials.user),
                address = %shown(address),
                code = answer.error.code,
                "login refused"
            );
            worker.metrics().login(LoginOutcome::Denied);
            worker.metrics().error(answer.side, answer.class);
            // A server that could not be had says nothing against the client.
            if answer.error.code == 1045 || answer.side != Side::Proxy {
                let accounts = &worker.shared.accounts;
                accounts.hold_back(address, worker.options()).await;
            }
            let mut out = Vec::new();
            error_packet(&answer).encode(&mut out, exchange.sequence);
            let _ = exchange.stream.send(&out).await;
            None
        }
        Err(_) => {
            worker.metrics().login(LoginOutcome::Aborted);
            None
        }
    }
}

/// The primary greets without autocommit. MySQL never does (observed on 9.7).
fn is_autocommit_off(worker: &Worker) -> bool {
    worker.cluster.family() == Family::MariaDb
        && worker.cluster.with_world(|world| {
            let facts = world.snapshot.primary.map(|id| &world.facts[id.index()]);
            facts.is_some_and(|facts| facts.fresh.is_autocommit_off())
        })
}

/// Sends the greeting and reads the client's answer, through TLS where it wants that.
async fn greet<'a>(
    worker: &'a Rc<Worker>,
    mut stream: Stream,
    tls: ListenerTls,
    mut caller: Caller,
    id: u32,
    server: &Greeting,
) -> std::io::Result<Option<LoginExchange<'a>>> {
    let acceptor = worker
        .shared
        .tls
        .as_ref()
        .filter(|_| tls != ListenerTls::Off);
    let mut offered = (server.capabilities & SUPPORTED) | OWN;
    offered.set(Capabilities::SSL, acceptor.is_some());
    let greeting = Greeting {
        server_version: server.server_version.clone(),
        thread_id: id,
        nonce: random_nonce(),
        capabilities: offered,
        collation: server.collation,
        status: match is_autocommit_off(worker) {
            true => Status::empty(),
            false => Status::AUTOCOMMIT,
        },
        auth_plugin: server.auth_plugin.clone(),
    };
    let mut out = Vec::new();
    greeting.encode(&mut out, 0);
    stream.send(&out).await?;
    let mut buffer = Vec::new();
    read_header(&mut stream, &mut buffer).await?;
    if let Some(spoken) = spoken(&buffer, HELLO_MAX) {
        let strangers = &worker.shared.registry.strangers;
        strangers.log(&shown(caller.address), spoken);
        worker.metrics().login(LoginOutcome::Aborted);
        turn_away(&mut stream, spoken).await;
        return Ok(None);
    }
    let (mut sequence, mut payload) = read_packet(&mut stream, &mut buffer, HELLO_MAX).await?;
    let (mut expected, family) = (1, server.family());
    let mut hello = ClientHello::parse(&payload, offered, family);
    if let (Ok(ClientHello::SslRequest { .. }), Some(acceptor)) = (&hello, acceptor) {
        let Stream::Plain(plain) = stream else {
            return Ok(None);
        };
        // Clients may start TLS right behind their request for it.
        let ahead = std::mem::take(&mut buffer);
        let accepted = acceptor
            .accept_with(plain, |tls| take_in(tls, &ahead))
            .await?;
        caller.encrypted(accepted.get_ref().1);
        stream = Stream::Tls(Box::new(tokio_rustls::TlsStream::Server(accepted)));
        (sequence, payload) = read_packet(&mut stream, &mut buffer, HELLO_MAX).await?;
        hello = ClientHello::parse(&payload, offered, family);
        expected = 2;
    }
    if sequence != expected {
        write_packet(&mut stream, sequence.wrapping_add(1), &out_of_order()).await?;
        worker.metrics().login(LoginOutcome::Aborted);
        return Ok(None);
    }
    let hello = match hello {
        Ok(ClientHello::Response(hello)) => Ok(hello),
        Ok(ClientHello::TooOld) => old_clients::hello(worker.cluster.family(), &payload),
        _ => Err(with_state(1043, b"08S01", b"Bad handshake")),
    };
    let hello = match hello {
        Ok(hello) => hello,
        Err(refusal) => {
            write_packet(&mut stream, sequence.wrapping_add(1), &refusal).await?;
            worker.metrics().login(LoginOutcome::Aborted);
            return Ok(None);
        }
    };
    if tls == ListenerTls::Required && !stream.is_private() {
        let error = ErrPacket {
            code: 3159,
            state: *b"HY000",
            message: b"Connections using insecure transport are prohibited: use TLS.",
        };
        let mut out = Vec::new();
        error.encode(&mut out, sequence.wrapping_add(1));
        stream.send(&out).await?;
        return Ok(None);
    }
    let capabilities = hello.capabilities & (offered | Capabilities::SSL);
    Ok(Some(LoginExchange {
        worker,
        stream,
        buffer,
        held_back: Vec::new(),
        sequence: sequence.wrapping_add(1),
        nonce: greeting.nonce,
        is_native: false,
        address: caller.address,
        caller: Rc::new(caller),
        hello,
        capabilities,
        waits: Rc::default(),
    }))
}

/// What a server says to a client that has lost count of the packets.
fn out_of_order() -> Vec<u8> {
    with_state(1156, b"08S01", b"Got packets out of order")
}

/// An error packet's payload.
fn with_state(code: u16, state: &[u8; 5], message: &[u8]) -> Vec<u8> {
    let mut payload = vec![0xff];
    payload.extend_from_slice(&code.to_le_bytes());
    payload.push(b'#');
    payload.extend_from_slice(state);
    payload.extend_from_slice(message);
    payload
}

/// Who a client says it is, and its first proof.
pub(crate) struct Credentials {
    pub(crate) user: Vec<u8>,
    pub(crate) database: Vec<u8>,
    pub(crate) response: Vec<u8>,
    /// The response is to a nonce that was answered before: another is asked for.
    pub(crate) used_up: bool,
    pub(crate) collation: u8,
    pub(crate) plugin: Plugin,
}

impl Credentials {
    pub(crate) fn name(&self) -> Name<'_> {
        Name {
            user: &self.user,
            collation: self.collation,
        }
    }
}

/// What a client is asked for that it may not have.
#[derive(Debug, Clone, Copy, Hash)]
enum Question {
    /// An answer by caching_sha2_password.
    Plugin,
    /// The password itself.
    Password,
}

impl LoginExchange<'_> {
    pub(crate) async fn read(&mut self) -> std::io::Result<Vec<u8>> {
        let (sequence, payload) =
            read_packet(&mut self.stream, &mut self.buffer, LOGIN_PACKET_MAX).await?;
        if sequence != self.sequence {
            self.write(&out_of_order()).await?;
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        self.sequence = sequence.wrapping_add(1);
        Ok(payload)
    }

    pub(crate) async fn write(&mut self, payload: &[u8]) -> std::io::Result<()> {
        write_packet(&mut self.stream, self.sequence, payload).await?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    async fn more(&mut self, data: &[u8]) -> std::io::Result<()> {
        let mut out = Vec::new();
        self.sequence = encode_auth_more(&mut out, self.sequence, data);
        self.stream.send(&out).await
    }

    /// Checks the credentials against what is known, else has the client show its password and asks a
    /// server.
    pub(crate) async fn prove(&mut self, credentials: &Credentials) -> std::io::Result<Proof> {
        if self.has_no_question(credentials).await {
            return Ok(Proof::Relay);
        }
        let known = self.worker.shared.accounts.find(&credentials.user);
        if !credentials.used_up && is_empty_password(&credentials.plugin, &credentials.response) {
            return Ok(self
                .try_password(credentials, Secret::new(Vec::new()))
                .await);
        }
        let mut plugin = credentials.plugin.clone();
        let mut response = credentials.response.clone();
        let is_checked_here = matches!(plugin, Plugin::CachingSha2 | Plugin::NativePassword);
        let used_up = credentials.used_up && !self.proves_at_once(credentials, &known).await;
        if used_up || (!known.is_empty() && !is_checked_here) {
            // Once only: many clients follow no second switch.
            let is_native = used_up && self.answers_native(credentials, !known.is_empty()).await;
            if !is_native && self.lacks_sha2(credentials) {
                return Ok(Proof::Relay);
            }
            plugin = match is_native {
                true => Plugin::NativePassword,
                false => Plugin::CachingSha2,
            };
            response = self.switch_from(credentials, &plugin).await?;
            if is_empty_password(&plugin, &response) {
                return Ok(self
                    .try_password(credentials, Secret::new(Vec::new()))
                    .await);
            }
        }
        self.is_native = plugin == Plugin::NativePassword;
        if let Some(answer) = self.misshapen(credentials, &plugin, &response).await {
            return Ok(Proof::Denied(answer));
        }
        for account in known {
            let proved = match plugin {
                Plugin::NativePassword => account.proves_native(&response, &self.nonce),
                _ => account.proves_sha2(&response, &self.nonce),
            };
            if !proved {
                continue;
            }
            match self.verify(&account, credentials).await {
                Ok(()) => {
                    if plugin == Plugin::CachingSha2 {
                        let out = &mut self.held_back;
                        self.sequence = encode_auth_more(out, self.sequence, &[auth::FAST_OK]);
                    }
                    return Ok(Proof::Account(account));
                }
                Err(answer) if answer.error.code == 1045 => {
                    if answer.side == Side::Server {
                        self.worker.shared.accounts.forget(&account);
                    }
                    return Ok(Proof::Denied(answer));
                }
                Err(answer) if self.may_expire(&answer) => {
                    if plugin == Plugin::CachingSha2 {
                        self.more(&[auth::FAST_OK]).await?;
                    }
                    return Ok(Proof::Own(account.password.clone()));
                }
                Err(answer) => return Ok(Proof::Denied(answer)),
            }
        }
        let mut rows = self.rows(credentials).await;
        if plugin == Plugin::NativePassword {
            let mut key = native_key(rows.as_ref(), &response, &self.nonce);
            if key.is_none() && rows.is_some() {
                // The password may have been changed in the moment since they were read.
                self.forget_rows(credentials);
                rows = self.rows(credentials).await;
                key = native_key(rows.as_ref(), &response, &self.nonce);
            }
            let is_native = match &rows {
                Some(rows) => self.is_native(rows).await,
                None => false,
            };
            // A wrong proof is for a server to refuse.
            if let Some(key) = key.or_else(|| is_native.then(random_nonce)) {
                return Ok(self
                    .try_password(credentials, Secret::native_key(key))
                    .await);
            }
        }
        if !self.can_show_password(credentials) || rows.is_some_and(|rows| rows.are_relayed()) {
            return Ok(Proof::Relay);
        }
        self.is_native = false;
        if plugin != Plugin::CachingSha2 {
            response = self.switch_from(credentials, &Plugin::CachingSha2).await?;
        }
        if is_empty_password(&Plugin::CachingSha2, &response) {
            return Ok(self
                .try_password(credentials, Secret::new(Vec::new()))
                .await);
        }
        match self.ask_password().await {
            Ok(Some(password)) => {
                let asked = self.asked(credentials, Question::Password);
                self.worker.shared.accounts.was_asked(&asked, true);
                Ok(self.try_password(credentials, password).await)
            }
            Ok(None) => Ok(Proof::Denied(self.denied(credentials))),
            Err(error) => {
                let asked = self.asked(credentials, Question::Password);
                self.worker.shared.accounts.was_asked(&asked, false);
                Err(error)
            }
        }
    }

    /// What a server says of a proof that cannot be one, by its length (observed on both families).
    async fn misshapen(
        &self,
        credentials: &Credentials,
        plugin: &Plugin,
        response: &[u8],
    ) -> Option<ClientError> {
        match plugin {
            Plugin::NativePassword if response.len() != 20 => {
                let rows = self.rows(credentials).await?;
                let is_native = self.is_native(&rows).await;
                is_native.then(|| ClientError::client(1043, b"08S01", "Bad handshake"))
            }
            Plugin::CachingSha2 if response.len() != 32 => Some(self.denied(credentials)),
            _ => None,
        }
    }

    /// What a server says to a client whose proof is wrong.
    pub(crate) fn denied(&self, credentials: &Credentials) -> ClientError {
        self.caller.denied(&credentials.user, None, "")
    }

    /// Whether a proof by the nonce of the login is right. MariaDB's COM_CHANGE_USER takes it again, and its clients
    /// answer every switch with it (observed on 10.11 with libmariadb).
    async fn proves_at_once(&self, credentials: &Credentials, known: &[Arc<Account>]) -> bool {
        if self.worker.cluster.family() != Family::MariaDb
            || credentials.plugin != Plugin::NativePassword
        {
            return false;
        }
        let (response, nonce) = (&credentials.response, &self.nonce);
        known
            .iter()
            .any(|account| account.proves_native(response, nonce))
            || native_key(self.rows(credentials).await.as_ref(), response, nonce).is_some()
    }

    async fn is_native(&self, rows: &UserRows) -> bool {
        self.caller.is_native(rows, self.worker).await
    }

    /// Whether a client that is to prove itself anew is asked for mysql_native_password: it has no other plugin,
    /// or prefers this one, and the account's hash is enough.
    async fn answers_native(&self, credentials: &Credentials, is_known: bool) -> bool {
        if credentials.plugin != Plugin::NativePassword {
            return false;
        }
        if self.hello.plugin.as_ref().is_none_or(Vec::is_empty) {
            return true;
        }
        match self.rows(credentials).await {
            Some(rows) => self.is_native(&rows).await,
            None => is_known,
        }
    }

    /// The rows of the servers' account table for the credentials's name, where they can be read.
    async fn rows(&self, credentials: &Credentials) -> Option<UserRows> {
        let judge = self.judge()?;
        self.waits.begin();
        let read = self
            .worker
            .learnt
            .user_rows(&self.worker.shared, &judge, credentials.name())
            .await;
        self.waits.end();
        read.unwrap_or_else(|error| {
            debug!(%error, "the account's rows cannot be read");
            None
        })
    }

    fn forget_rows(&self, credentials: &Credentials) {
        if let Some(judge) = self.judge() {
            self.worker
                .learnt
                .forget_user_rows(judge.id, &credentials.user);
        }
    }

    /// The server that is asked first about logins.
    fn judge(&self) -> Option<Arc<ServerFacts>> {
        self.worker.cluster.with_world(|world| {
            let judge = world.snapshot.judges().next()?;
            Some(world.facts[judge.index()].clone())
        })
    }

    async fn verify(
        &mut self,
        account: &Arc<Account>,
        credentials: &Credentials,
    ) -> Result<(), ClientError> {
        let tls = self.stream.is_tls();
        let ignore_space = self.capabilities.contains(Capabilities::IGNORE_SPACE);
        let (database, collation) = (&credentials.database, credentials.collation);
        let worker = self.worker.clone();
        let verifying = verify(&worker, account, database, collation, ignore_space, tls);
        let mut verifying = pin!(verifying);
        self.waits.begin();
        let let_in = loop {
            match tokio::time::timeout(LOOK, &mut verifying).await {
                Ok(verified) => break verified,
                Err(_) if self.stream.peer_closed().await => {
                    break Err(ClientError::nobody_answers());
                }
                Err(_) => {}
            }
        };
        self.waits.end();
        let let_in =
            let_in.map_err(
                |answer| match answer.error.message == LOG_IN_ANEW.as_bytes() {
                    true => ClientError::server(self.denied(credentials).error.clone()),
                    false => answer,
                },
            );
        let password = Some(&account.password);
        match let_in {
            Ok(let_in) => {
                let judging = self
                    .caller
                    .judge(&credentials.user, password, &let_in, &worker);
                judging.await
            }
            Err(answer) if self.may_know(&answer, credentials).await => Err(answer),
            Err(_) => Err(self.caller.denied(&credentials.user, password, "")),
        }
    }

    /// Whether a server would tell this client so much of the account, rather than that it is not let in.
    pub(crate) async fn may_know(&self, answer: &ClientError, credentials: &Credentials) -> bool {
        if answer.side != Side::Server || answer.passing || answer.error.code == 1045 {
            return true;
        }
        match self.rows(credentials).await {
            Some(rows) => self.caller.may_enter(&rows, self.worker).await,
            None => true,
        }
    }

    /// A server's error packet, as this client is to have it.
    pub(crate) async fn as_told(&self, credentials: &Credentials, payload: Vec<u8>) -> Vec<u8> {
        let Ok(error) = ErrPacket::parse(&payload) else {
            return payload;
        };
        let error = ServerError::new(error.code, &error.state, error.message);
        if self
            .may_know(&ClientError::server(error), credentials)
            .await
        {
            return payload;
        }
        let denied = self.denied(credentials);
        with_state(denied.error.code, b"28000", &denied.error.message)
    }

    /// Whether the client will send its password when asked: privately, or under our RSA key.
    fn can_show_password(&self, credentials: &Credentials) -> bool {
        if !self.capabilities.contains(Capabilities::PLUGIN_AUTH)
            || self.hello.plugin.as_ref().is_none_or(Vec::is_empty)
            || self.lacks_sha2(credentials)
        {
            return false;
        }
        let asked = self.asked(credentials, Question::Password);
        if !self.stream.is_private() && self.worker.shared.accounts.is_mute(&asked) {
            return false;
        }
        let is_one_of = |names: &[&[u8]]| {
            let mut attributes = self.hello.attributes.iter();
            attributes.any(|(name, value)| name == b"_client_name" && names.contains(&value))
        };
        if is_one_of(&[b"MySQL Connector/J"]) && self.greeted_as_old() {
            // It misreads caching_sha2_password's packets from a server of that version.
            return false;
        }
        self.stream.is_private() || !is_one_of(&REFUSE_RSA)
    }

    /// Whether clients like this one have left when they were asked for caching_sha2_password. Some packages of
    /// MariaDB's client library come without that plugin.
    fn lacks_sha2(&self, credentials: &Credentials) -> bool {
        let asked = self.asked(credentials, Question::Plugin);
        credentials.plugin != Plugin::CachingSha2 && self.worker.shared.accounts.is_mute(&asked)
    }

    /// Has the client prove its password with another plugin, and remembers whether it can.
    async fn switch_from(
        &mut self,
        credentials: &Credentials,
        plugin: &Plugin,
    ) -> std::io::Result<Vec<u8>> {
        let switched = self.switch(plugin).await;
        if credentials.plugin != *plugin {
            let asked = self.asked(credentials, Question::Plugin);
            let accounts = &self.worker.shared.accounts;
            accounts.was_asked(&asked, switched.is_ok());
        }
        switched
    }

    /// The kind of client that this one is, as far as it shows.
    fn asked(&self, credentials: &Credentials, question: Question) -> Asked {
        let mut program = DefaultHasher::new();
        question.hash(&mut program);
        credentials.plugin.hash(&mut program);
        self.hello.capabilities.bits().hash(&mut program);
        for (name, value) in self.hello.attributes.iter() {
            if name.starts_with(b"_client_") {
                (name, value).hash(&mut program);
            }
        }
        Asked {
            user: credentials.user.clone().into(),
            address: self.address,
            program: program.finish(),
        }
    }

    /// MariaDB before 11 puts `5.5.5-` before its version, for the sake of old replicas.
    fn greeted_as_old(&self) -> bool {
        self.worker.cluster.with_world(|world| {
            let greeting = world.greeting.as_ref();
            greeting.is_some_and(|greeting| greeting.server_version.starts_with("5.5.5-"))
        })
    }

    /// Has the client prove its password with another plugin.
    async fn switch(&mut self, plugin: &Plugin) -> std::io::Result<Vec<u8>> {
        self.nonce = random_nonce();
        let switch = AuthSwitch {
            plugin: plugin.name().to_owned(),
            nonce: self.nonce.to_vec(),
        };
        let mut out = Vec::new();
        self.sequence = switch.encode(&mut out, self.sequence);
        self.stream.send(&out).await?;
        self.read().await
    }

    /// caching_sha2_password's full authentication: the client shows its password. None where
    /// what it shows cannot be read.
    async fn ask_password(&mut self) -> std::io::Result<Option<Secret>> {
        self.more(&[auth::FULL_AUTH]).await?;
        let shown = self.read().await?;
        if self.stream.is_private() {
            return Ok(without_nul(shown).map(Secret::new));
        }
        let sealed = if shown == [auth::REQUEST_PUBLIC_KEY] {
            let key = self.worker.shared.key.clone();
            self.more(key.public_pem()).await?;
            self.read().await?
        } else {
            shown
        };
        let Some(mut clear) = self.worker.shared.key.decrypt(&sealed) else {
            return Ok(None);
        };
        auth::xor_password(&mut clear, &self.nonce);
        Ok(without_nul(clear.to_vec()).map(Secret::new))
    }

    /// Whether the account's server has no question that the client would understand: it knows of no plugins, and the
    /// account is of another than mysql_native_password.
    async fn has_no_question(&self, credentials: &Credentials) -> bool {
        if self.capabilities.contains(Capabilities::PLUGIN_AUTH) {
            return false;
        }
        match self.rows(credentials).await {
            Some(rows) => {
                let lacks_native = |row: &UserRow| !row.is_native && row.native_hashes.is_empty();
                rows.iter().next().is_some() && rows.iter().all(lacks_native)
            }
            None => false,
        }
    }

    /// Lets a server judge a password that is not known yet.
    async fn try_password(&mut self, credentials: &Credentials, password: Secret) -> Proof {
        let known = self.worker.shared.accounts.find(&credentials.user);
        let same = known.iter().find(|account| account.password.is(&password));
        if let Some(account) = same {
            return match self.verify(account, credentials).await {
                Ok(()) => Proof::Account(account.clone()),
                Err(answer) if self.may_expire(&answer) => Proof::Own(password),
                Err(answer) => Proof::Denied(answer),
            };
        }
        // The connection on which it is tried stays, and asks for the logins that follow.
        let account = self
            .worker
            .shared
            .accounts
            .candidate(&credentials.user, password);
        match self.verify(&account, credentials).await {
            Ok(()) => {
                let kept = self.worker.shared.accounts.keep(account.clone());
                let ignore_space = self.capabilities.contains(Capabilities::IGNORE_SPACE);
                self.worker
                    .learnt
                    .share_base(&account, &kept, credentials.collation, ignore_space);
                Proof::Account(kept)
            }
            Err(answer) if self.may_expire(&answer) => Proof::Own(account.password.clone()),
            Err(answer) => Proof::Denied(answer),
        }
    }

    /// The password has expired, and the client may come in all the same to change it.
    fn may_expire(&self, answer: &ClientError) -> bool {
        // MariaDB lets every client in, unless disconnect_on_expired_password is set.
        match answer.error.code {
            1820 => true,
            1862 => self
                .capabilities
                .contains(Capabilities::CAN_HANDLE_EXPIRED_PASSWORDS),
            _ => false,
        }
    }

    /// What the OK says for the certificate that the client has been shown, where that can be said.
    pub(crate) fn vouch(&self, account: &Account) -> Vec<u8> {
        let by_password = self.is_native && !account.password.is_empty();
        if !by_password || !self.stream.is_tls() || self.worker.cluster.family() != Family::MariaDb
        {
            return Vec::new();
        }
        let hash = account.password.native_hash();
        auth::vouch(&hash, &self.nonce, &self.worker.shared.fingerprint)
    }

    /// The login is done: tells the client and begins the session.
    async fn enter(
        mut self,
        account: Arc<Account>,
        entry: ListenerContext,
        id: u32,
        handle: Rc<Handle>,
    ) -> Option<Session> {
        let ignore_space = self.capabilities.contains(Capabilities::IGNORE_SPACE);
        let collation = self.hello.collation;
        let base = self.worker.learnt.base(&account, collation, ignore_space)?;
        let mut out = std::mem::take(&mut self.held_back);
        let database = self.hello.database.as_deref().unwrap_or_default();
        let session = tracked_at_login(self.worker, &base, database);
        let info = self.vouch(&account);
        let base = base.state;
        let fields = OkFields {
            status: first_status(self.worker.cluster.family(), &base),
            session: &session,
            info: &info,
            ..OkFields::default()
        };
        encode_ok(&mut out, self.sequence, self.capabilities, &fields);
        self.stream.send(&out).await.ok()?;
        let tls = self.stream.is_tls();
        let mut capabilities = self.capabilities;
        if self.worker.cluster.family() == Family::MariaDb && self.hello.plugin.is_none() {
            // MariaDB takes it for one that knows of no plugins, whatever its flag says.
            capabilities.remove(Capabilities::PLUGIN_AUTH);
        }
        let stream = compressed(self.stream, capabilities, &self.hello, &mut self.buffer);
        let identity = Identity {
            account,
            collation: self.hello.collation,
            tls,
            caller: self.caller,
            nonce: self.nonce,
        };
        let database = self.hello.database.unwrap_or_default();
        Some(Session::new(
            self.worker.clone(),
            handle,
            id,
            stream,
            self.buffer,
            capabilities,
            entry,
            identity,
            base,
            database,
        ))
    }
}

/// What a login's OK says to a client that follows it: of variables, where the server does, and of the
/// default database.
fn tracked_at_login(worker: &Worker, base: &Base, database: &[u8]) -> Vec<u8> {
    let mut session = Vec::new();
    if base.tells_variables {
        let names = worker
            .cluster
            .with_world(|world| world.tracked_by_default());
        for name in names.split(',') {
            if let Some(value) = at_login(&base.state, name) {
                let name = name.as_bytes();
                put_change(&mut session, &Change::SystemVariable { name, value });
            }
        }
    }
    session.extend(tracked_schema(database));
    session
}

pub(crate) fn tracked_schema(database: &[u8]) -> Vec<u8> {
    let mut session = Vec::new();
    if !database.is_empty() {
        put_change(&mut session, &Change::Schema(database));
    }
    session
}

/// A variable of a session that has just logged in, as the server tells it; none where it is not known.
fn at_login<'a>(state: &'a SessionState, name: &str) -> Option<&'a [u8]> {
    match name {
        "autocommit" if state.is_off(name) => Some(b"OFF"),
        "autocommit" => Some(b"ON"),
        "character_set_connection" => {
            let collation = state.effective("collation_connection")?;
            collation.split(|byte| *byte == b'_').next()
        }
        // Where servers send clients is for Millrace to follow.
        "redirect_url" => Some(b""),
        _ => state.effective(name),
    }
}

/// Wraps the stream in compression where that was agreed on; the first packet after the login's
/// OK is compressed.
pub(crate) fn compressed(
    stream: Stream,
    capabilities: Capabilities,
    hello: &HandshakeResponse,
    ahead: &mut Vec<u8>,
) -> Stream {
    let algorithm = if capabilities.contains(Capabilities::COMPRESS) {
        Algorithm::Zlib
    } else if capabilities.contains(Capabilities::ZSTD_COMPRESSION) {
        Algorithm::Zstd(i32::from(hello.zstd_level.clamp(1, 22)))
    } else {
        return stream;
    };
    let ahead = std::mem::take(ahead);
    Stream::Compressed(Box::new(millrace_backend::compressed::Compressed::new(
        stream, algorithm, ahead,
    )))
}

/// `SHA1(password)`, by which a client has proved itself to an account of mysql_native_password whose
/// hash the servers keep: nobody has to show the password.
fn native_key(rows: Option<&UserRows>, response: &[u8], nonce: &[u8; 20]) -> Option<[u8; 20]> {
    let mut hashes = rows?.own().flat_map(|row| &row.native_hashes);
    hashes.find_map(|hash| auth::verify_native(response, nonce, hash))
}

/// An empty password has no proof; caching_sha2_password's clients send one zero over TLS and sockets.
fn is_empty_password(plugin: &Plugin, response: &[u8]) -> bool {
    match plugin {
        Plugin::NativePassword => response.is_empty(),
        Plugin::CachingSha2 => matches!(response, [] | [0]),
        _ => false,
    }
}

fn without_nul(mut shown: Vec<u8>) -> Option<Vec<u8>> {
    if shown.last() == Some(&0) {
        shown.pop();
    }
    Some(shown)
}

fn shown(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "a Unix socket".to_owned(), |address| address.to_string())
}

impl From<std::io::Error> for Abort {
    fn from(error: std::io::Error) -> Self {
        Abort::Client(error)
    }
}
