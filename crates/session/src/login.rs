//! A client's way in: greeting, TLS, proof of the password, and the session's first state.
//! Passwords are checked against the servers' own accounts; none is configured here.

pub(crate) mod caller;
pub(crate) mod credentials;
pub(crate) mod exchange;
mod old_clients;
pub(crate) mod packets;
pub(crate) mod proof;
mod questions;
pub(crate) mod relayed;
pub(crate) mod strangers;
mod under_way;
pub(crate) mod verifiers;
mod verify;
mod watched_commands;

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use millrace_backend::nonce::random_nonce;
use millrace_backend::packet_io::{read_header, read_packet, write_packet};
use millrace_backend::stream::{Plain, Stream};
use millrace_backend::tls::take_in;
use millrace_metrics::{ErrorClass, LoginOutcome, Side};
use millrace_protocol::auth::Plugin;
use millrace_protocol::handshake::{ClientHello, Greeting};
use millrace_protocol::ok::ErrPacket;
use millrace_protocol::{Capabilities, Status};
use millrace_sql::Family;
use tracing::debug;

use crate::error::{ClientError, error_packet};
use crate::login::caller::Caller;

use crate::login::credentials::{Credentials, Waits, within};
use crate::login::exchange::LoginExchange;
use crate::login::packets::{out_of_order, with_state};
use crate::login::proof::Proof;
use crate::login::strangers::{spoken, turn_away};
use crate::login::verifiers::Verifiers;
use crate::session::Session;
use crate::worker::Worker;
use millrace_worker::Admission;
use millrace_worker::{ClientService, NewClient};
use millrace_worker::{Handle, ListenerContext, ListenerTls};

/// Before the login no packet may be longer; bytes. A response with attributes fits well.
const HELLO_MAX: usize = 64 * 1024;

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
    .union(Capabilities::MULTI_FACTOR)
    .union(Capabilities::STMT_BULK_OPERATIONS)
    .union(Capabilities::PROGRESS)
    .union(Capabilities::EXTENDED_METADATA)
    .union(Capabilities::CACHE_METADATA);

/// What Millrace does by itself, whatever the server can.
const OWN: Capabilities = Capabilities::COMPRESS.union(Capabilities::ZSTD_COMPRESSION);

impl ClientService for Verifiers {
    /// Serves a client from its first byte to its last.
    fn begin(worker: &Rc<Worker>, client: NewClient) {
        let worker = worker.clone();
        tokio::task::spawn_local(async move {
            let NewClient {
                stream,
                peer,
                entry,
            } = client;
            let admission = Admission::new(worker, peer.map(|peer| peer.ip()));
            serve(admission, stream, entry, peer).await;
        });
    }

    fn close_unused(&self, user: &[u8]) {
        Verifiers::close_unused(self, user);
    }
}

async fn serve(
    mut admission: Admission<Verifiers>,
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
    let handle = Rc::new(Handle::new(
        uid,
        peer.map(|peer| (peer.ip(), peer.port())),
        worker.tick(),
    ));
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
            handle.watch_socket(socket);
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
    if worker.shared.registry.clients() >= options.max_clients {
        let text = format!(
            "Too many connections (Millrace: limits.max_clients is {})",
            options.max_clients
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
            handle.set_user(account.user.clone());
            let session = exchange.enter(account, entry, id, handle).await;
            session.map(|session| LoggedIn::Session(Box::new(session)))
        }
        Ok(Proof::Relay) => {
            debug!(user = ?String::from_utf8_lossy(&credentials.user), address = %shown(address), "login relayed");
            handle.set_user(credentials.user.clone().into());
            let relayed = relayed::log_in(exchange, &credentials).await;
            relayed.map(|relayed| LoggedIn::Relayed(Box::new(relayed)))
        }
        Ok(Proof::Own(password)) => {
            handle.set_user(credentials.user.clone().into());
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
                accounts.hold_back(address, &worker.options()).await;
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
        was_wrong: false,
        is_native: false,
        address: caller.address,
        caller: Rc::new(caller),
        hello,
        capabilities,
        waits: Rc::default(),
    }))
}

fn shown(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "a Unix socket".to_owned(), |address| address.to_string())
}
