//! A login that only the server can judge: its packets are handed to and fro, and the client
//! keeps the connection for itself. No pooling and no split, but no valid login is refused.

use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_backend::conn::Conn;
use millrace_backend::connect::{
    LOGIN_PACKET_MAX, Login, MAX_PACKET, Opened, Wanted, dial, open, start_tls,
};
use millrace_backend::error::BackendError;
use millrace_backend::packet_io::read_packet;
use millrace_backend::pool::ServerFacts;
use millrace_backend::secret::Secret;
use millrace_backend::stream::Stream;
use millrace_backend::tls::For;
use millrace_backend::user_rows::Name;
use millrace_metrics::{LoginOutcome, PinReason, Side};
use millrace_protocol::auth::Plugin;

use millrace_protocol::handshake::{ChangeUser, Greeting, HandshakeResponse, ServerAuthPacket};
use millrace_protocol::ok::{OkFields, OkPacket, encode_ok};
use millrace_protocol::{Capabilities, packet};

use crate::error::{ClientError, error_packet, observed};
use crate::login::caller::Caller;
use crate::login::credentials::{Credentials, Waits, within};
use crate::login::exchange::LoginExchange;
use crate::login::packets::{any_collation, compressed};
use crate::login::under_way::UnderWay;
use crate::login::verifiers::LetIn;
use crate::login::verify::{learn_accounts, let_in};
use crate::login::watched_commands::{Commands, Next};
use crate::worker::Worker;
use millrace_worker::Handle;
use millrace_worker::UntrackedWrite;

/// Between two attempts, while the primary cannot be had.
const PAUSE: Duration = Duration::from_millis(100);

const COMPRESSION: Capabilities = Capabilities::COMPRESS.union(Capabilities::ZSTD_COMPRESSION);

/// A client with a server connection of its own.
pub(super) struct Relayed {
    worker: Rc<Worker>,
    user: Box<[u8]>,
    caller: Rc<Caller>,
    nonce: [u8; 20],
    /// Agreed on with the client, but for compression.
    capabilities: Capabilities,
    client: Stream,
    server: Stream,
    /// What it writes, nobody here knows of.
    _untracked: UntrackedWrite,
    /// Bytes already read from the client and from the server.
    ahead: [Vec<u8>; 2],
}

/// Relays the login. None where it failed; the client has then been told.
pub(super) async fn log_in(
    mut exchange: LoginExchange<'_>,
    credentials: &Credentials,
) -> Option<Relayed> {
    match relay(&mut exchange, credentials).await {
        Ok(Some((server, ahead))) => {
            exchange.worker.metrics().login(LoginOutcome::Relayed);
            let accounts = &exchange.worker.shared.accounts;
            accounts.succeeded(exchange.address);
            let mut buffer = std::mem::take(&mut exchange.buffer);
            let client = compressed(
                exchange.stream,
                exchange.capabilities,
                &exchange.hello,
                &mut buffer,
            );
            Some(Relayed {
                worker: exchange.worker.clone(),
                user: credentials.user.as_slice().into(),
                caller: exchange.caller,
                nonce: exchange.nonce,
                capabilities: exchange.capabilities - COMPRESSION,
                _untracked: exchange.worker.shared.written.begin_untracked(),
                client,
                server,
                ahead: [buffer, ahead],
            })
        }
        Ok(None) => {
            exchange.worker.metrics().login(LoginOutcome::Denied);
            None
        }
        Err(answer) => {
            let denied = answer.side == Side::Client;
            exchange.worker.metrics().login(match denied {
                true => LoginOutcome::Denied,
                false => LoginOutcome::NoServer,
            });
            if denied {
                let (worker, address) = (exchange.worker, exchange.address);
                let accounts = &worker.shared.accounts;
                accounts.hold_back(address, &worker.options()).await;
            }
            exchange.worker.metrics().error(answer.side, answer.class);
            let mut out = Vec::new();
            error_packet(&answer).encode(&mut out, exchange.sequence);
            let _ = exchange.stream.send(&out).await;
            None
        }
    }
}

/// Logs in with a password that has expired and gives the client the connection.
pub(super) async fn log_in_with(
    mut exchange: LoginExchange<'_>,
    credentials: &Credentials,
    password: &Secret,
) -> Option<Relayed> {
    let worker = exchange.worker.clone();
    let own = Capabilities::SSL | COMPRESSION;
    let login = Login {
        user: &credentials.user,
        password,
        database: (!credentials.database.is_empty()).then_some(&credentials.database),
        collation: credentials.collation,
        // The password is all that there is to show.
        capabilities: (exchange.capabilities - own - Capabilities::MULTI_FACTOR)
            | Capabilities::CAN_HANDLE_EXPIRED_PASSWORDS,
        tls: exchange.stream.is_tls(),
        whose: For::Client,
    };
    let timeout = worker.settings().pool.connect_timeout;
    let network = &worker.shared.network;
    exchange.waits.begin();
    let opened = on_primary(&worker, async |facts| {
        let opened = open(&facts.address, &login, network, timeout).await?;
        by_whom(&worker, facts, credentials.name(), opened, login.tls).await
    })
    .await;
    exchange.waits.end();
    let mut out = Vec::new();
    let judged = match opened {
        Ok((opened, let_in)) => {
            let judging =
                exchange
                    .caller
                    .judge(&credentials.user, Some(password), &let_in, &worker);
            judging.await.map(|()| opened)
        }
        Err(answer) => Err(answer),
    };
    let opened = match judged {
        Ok(opened) => {
            let fields = OkFields {
                status: opened.status,
                ..OkFields::default()
            };
            encode_ok(&mut out, exchange.sequence, exchange.capabilities, &fields);
            Some(opened)
        }
        Err(answer) => {
            worker.metrics().error(answer.side, answer.class);
            error_packet(&answer).encode(&mut out, exchange.sequence);
            None
        }
    };
    exchange.stream.send(&out).await.ok()?;
    let opened = opened?;
    worker.metrics().login(LoginOutcome::Relayed);
    worker.shared.accounts.succeeded(exchange.address);
    let mut buffer = std::mem::take(&mut exchange.buffer);
    let client = compressed(
        exchange.stream,
        exchange.capabilities,
        &exchange.hello,
        &mut buffer,
    );
    Some(Relayed {
        _untracked: worker.shared.written.begin_untracked(),
        worker,
        user: credentials.user.as_slice().into(),
        caller: exchange.caller,
        nonce: exchange.nonce,
        capabilities: exchange.capabilities - COMPRESSION,
        client,
        server: opened.stream,
        ahead: [buffer, opened.buffer],
    })
}

/// Does something with the primary, which is waited for, and tried again, as a statement would.
async fn on_primary<T>(
    worker: &Worker,
    mut with: impl AsyncFnMut(&ServerFacts) -> Result<T, BackendError>,
) -> Result<T, ClientError> {
    let (begun, limit) = (Instant::now(), worker.options().failover.hold_time);
    loop {
        let primary = worker.cluster.with_world(|world| {
            let primary = world.snapshot.primary?;
            Some(world.facts[primary.index()].clone())
        });
        let why = match primary {
            None => worker
                .cluster
                .with_world(|world| ClientError::no_primary(&world.snapshot)),
            Some(facts) => match with(&facts).await {
                Ok(done) => return Ok(done),
                Err(error) => {
                    if let Some(kind) = observed(&error) {
                        worker.shared.monitor.observe(facts.id, kind);
                    }
                    ClientError::backend(error)
                }
            },
        };
        if !why.passing {
            return Err(why);
        }
        if begun.elapsed() >= limit {
            return Err(why.waited(limit));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn relay(
    exchange: &mut LoginExchange<'_>,
    credentials: &Credentials,
) -> Result<Option<(Stream, Vec<u8>)>, ClientError> {
    let worker = exchange.worker;
    let timeout = worker.settings().pool.connect_timeout;
    exchange.waits.begin();
    on_primary(worker, async |facts| {
        learn_accounts(worker, facts, credentials.name()).await
    })
    .await?;
    exchange.waits.end();
    if exchange.would_lock_another(credentials).await {
        return Err(exchange.denied(credentials));
    }
    exchange.waits.begin();
    let dialed = on_primary(worker, async |facts| {
        let (stream, greeting, ahead) =
            dial(&facts.address, &worker.shared.network, timeout).await?;
        Ok((stream, greeting, ahead, facts.clone()))
    })
    .await;
    exchange.waits.end();
    let (stream, greeting, ahead, facts) = dialed?;
    let relayed = relay_to(exchange, credentials, stream, greeting, ahead, &facts).await;
    let Some((opened, last, plugin)) = relayed.map_err(ClientError::backend)? else {
        return Ok(None);
    };
    let tls = exchange.stream.is_tls();
    exchange.waits.begin();
    let asked = by_whom(worker, &facts, credentials.name(), opened, tls).await;
    exchange.waits.end();
    let (opened, let_in) = asked.map_err(ClientError::backend)?;
    let judging = exchange
        .caller
        .judge(&credentials.user, None, &let_in, worker);
    judging.await?;
    let capabilities = opened.capabilities;
    let told = let_in.kept(&plugin).map(|kept| exchange.vouch_by(kept));
    let last = match told {
        Some(info) if !info.is_empty() => with_info(&last, &info, capabilities),
        _ => last,
    };
    let sent = exchange.write(&last).await;
    sent.map_err(|error| ClientError::backend(error.into()))?;
    Ok(Some((opened.stream, opened.buffer)))
}

/// Asks on a connection that has just logged in by which of the server's rows it did.
async fn by_whom(
    worker: &Worker,
    facts: &ServerFacts,
    name: Name<'_>,
    opened: Opened,
    tls: bool,
) -> Result<(Opened, LetIn), BackendError> {
    let (greeting, capabilities, status) =
        (opened.greeting.clone(), opened.capabilities, opened.status);
    let mut conn = Conn::new(opened, facts.id, facts.family, None);
    let let_in = let_in(worker, facts, name, &mut conn, tls).await?;
    let buffer = std::mem::take(&mut conn.buffer);
    let opened = Opened {
        stream: conn.into_stream(),
        greeting,
        capabilities,
        status,
        tells_variables: false,
        buffer,
    };
    Ok((opened, let_in))
}

async fn relay_to(
    exchange: &mut LoginExchange<'_>,
    credentials: &Credentials,
    stream: Stream,
    greeting: Greeting,
    ahead: Vec<u8>,
    facts: &ServerFacts,
) -> Result<Option<(Opened, Vec<u8>, Plugin)>, BackendError> {
    let worker = exchange.worker;
    let mut capabilities = exchange.capabilities - (Capabilities::SSL | COMPRESSION);
    let network = &worker.shared;
    let rows = worker.learnt.user_rows(network, facts, credentials.name());
    if exchange.caller.is_stranger_at(&facts.address) && rows.await?.is_none() {
        // The peer of the server's socket, which is Millrace, would be taken for a factor. Nobody could tell.
        capabilities -= Capabilities::MULTI_FACTOR;
    }
    let (server, sequence) = start_tls(
        stream,
        &greeting,
        &mut capabilities,
        credentials.collation,
        &facts.address,
        &worker.shared.network.tls,
        Wanted {
            tls: exchange.stream.is_tls(),
            whose: For::Client,
        },
    )
    .await?;
    let response = HandshakeResponse {
        capabilities,
        max_packet: MAX_PACKET,
        collation: credentials.collation,
        user: credentials.user.as_slice().into(),
        // A plugin that no account has: the server then names the account's own, with a nonce
        // that the client can answer.
        auth_response: Vec::new(),
        plugin: Some(b"millrace_relay".to_vec()),
        database: (!credentials.database.is_empty()).then(|| credentials.database.clone()),
        attributes: exchange.hello.attributes.clone(),
        zstd_level: 0,
    };
    let mut out = Vec::new();
    response.encode(&mut out, sequence);
    let mut under_way = UnderWay::new(server, ahead, capabilities);
    under_way.server.send(&out).await?;
    let mut ahead = None;
    loop {
        let (sequence, payload) = match ahead.take() {
            Some(packet) => packet,
            None => under_way.read().await?,
        };
        if sequence == 0 {
            return Err(BackendError::Protocol("a packet that nobody asked for"));
        }
        let mut may_be_unanswered = false;
        let last = match ServerAuthPacket::parse(&payload, capabilities)? {
            ServerAuthPacket::Ok => Some(true),
            ServerAuthPacket::Err(_) => Some(false),
            // The server only informs; its OK follows.
            ServerAuthPacket::More([millrace_protocol::auth::FAST_OK]) => {
                exchange.write(&payload).await?;
                continue;
            }
            // A device that is not registered yet is asked for nothing (observed on 9.7).
            ServerAuthPacket::NextFactor(_) => {
                may_be_unanswered = true;
                None
            }
            _ => None,
        };
        if last.is_some() {
            under_way.ended = true;
        }
        if last == Some(true) {
            let plugin = under_way.plugin.clone();
            let (stream, buffer) = under_way.take();
            let status = OkPacket::parse(&payload, capabilities)?.status;
            let opened = Opened {
                stream,
                greeting,
                capabilities,
                status,
                tells_variables: false,
                buffer,
            };
            return Ok(Some((opened, payload, plugin)));
        }
        if last == Some(false) {
            let delay = worker
                .shared
                .accounts
                .failed(exchange.address, &worker.options());
            tokio::time::sleep(delay).await;
            let told = exchange.as_told(credentials, payload).await;
            exchange.write(&told).await?;
            return Ok(None);
        }
        exchange.write(&payload).await?;
        if last.is_some() {
            return Ok(None);
        }
        let reply = match may_be_unanswered {
            true => tokio::select! {
                packet = under_way.read() => {
                    ahead = Some(packet?);
                    continue;
                }
                reply = exchange.read() => reply?,
            },
            false => exchange.read().await?,
        };
        if !under_way.is_well_formed(&reply) {
            // The server would count it against Millrace's address. It is answered otherwise when this is dropped.
            let delay = worker
                .shared
                .accounts
                .failed(exchange.address, &worker.options());
            tokio::time::sleep(delay).await;
            let mut out = Vec::new();
            let answer = exchange.denied(credentials);
            error_packet(&answer).encode(&mut out, exchange.sequence());
            exchange.stream.send(&out).await?;
            return Ok(None);
        }
        under_way.answer(sequence, &reply).await?;
    }
}

/// A login's OK, as the client is told it: it vouches for Millrace's certificate where the server's own word was for
/// the server's.
fn with_info(ok: &[u8], info: &[u8], capabilities: Capabilities) -> Vec<u8> {
    let Ok(ok) = OkPacket::parse(ok, capabilities) else {
        return ok.to_vec();
    };
    let fields = OkFields {
        affected_rows: ok.affected_rows,
        last_insert_id: ok.last_insert_id,
        status: ok.status,
        warnings: ok.warnings,
        info,
        session: ok.session,
    };
    let mut packet = Vec::new();
    encode_ok(&mut packet, 0, capabilities, &fields);
    packet.split_off(packet::HEADER)
}

impl Relayed {
    /// Hands bytes to and fro until one side ends. COM_CHANGE_USER is a login as the first was: on another connection, by
    /// whatever the server asks for, and judged by the client's own address, TLS and socket.
    pub(super) async fn run(self: Box<Self>, handle: &Handle) {
        let mut this = *self;
        let _pinned = Pinned::new(this.worker.clone());
        handle.pins().add(PinReason::RelayedLogin);
        loop {
            let [from_client, from_server] = std::mem::take(&mut this.ahead);
            let ended = exchange(this.client, this.server, from_client, from_server, handle).await;
            let Ended::ChangesUser(client, command) = ended else {
                return;
            };
            let waits = Rc::new(Waits::default());
            let login = change_user(
                this.worker.clone(),
                this.caller,
                this.nonce,
                this.capabilities,
                client,
                command,
                waits.clone(),
            );
            let Some(next) = within(&this.worker, Box::pin(login), &waits).await else {
                return;
            };
            handle.set_user(next.user.clone());
            this = next;
        }
    }
}

/// Counts a relayed client for as long as it lives.
struct Pinned(Rc<Worker>);

impl Pinned {
    fn new(worker: Rc<Worker>) -> Self {
        worker.metrics().pinned(PinReason::RelayedLogin);
        Pinned(worker)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.metrics().unpinned(PinReason::RelayedLogin);
    }
}

/// How [`exchange`] ended.
pub(crate) enum Ended {
    /// One side is gone, or was told to go.
    Gone,
    /// The client sends COM_CHANGE_USER: its stream, and what was read of that.
    ChangesUser(Stream, Vec<u8>),
}

/// Copies both ways until one side ends, the client wants to be another, the session is told to end, or a drain
/// finds it silent. Whether the client may be another, a server cannot judge from here.
pub(crate) async fn exchange(
    mut client: Stream,
    mut server: Stream,
    from_client: Vec<u8>,
    from_server: Vec<u8>,
    handle: &Handle,
) -> Ended {
    let mut commands = Commands::default();
    let mut upward = Vec::with_capacity(16 * 1024);
    let mut downward = Vec::with_capacity(16 * 1024);
    if client.send(&from_server).await.is_err() {
        return Ended::Gone;
    }
    upward.extend_from_slice(&from_client);
    // Bytes of the client that were read, and may be a command that is not for the server.
    let mut held = Vec::new();
    // It is there already: what is in them is sent before the next read.
    let room = |_: &mut Vec<u8>| ();
    loop {
        if !upward.is_empty() {
            let found = commands.next(&upward);
            held.append(&mut upward);
            let kept = match found {
                Next::ChangesUser { before } | Next::Incomplete { before } => {
                    held.split_off(held.len() - before)
                }
                Next::Other => Vec::new(),
            };
            if server.send(&held).await.is_err() {
                return Ended::Gone;
            }
            held = kept;
            if matches!(found, Next::ChangesUser { .. }) {
                // COM_QUIT: without it the server counts a client that vanished.
                let _ = server.send(&[1, 0, 0, 0, 1]).await;
                return Ended::ChangesUser(client, held);
            }
        }
        enum Said {
            Client,
            Server,
            Nobody,
        }
        let said = std::future::poll_fn(|cx| {
            handle.register(cx);
            if handle.has_ended() {
                return std::task::Poll::Ready(Ok(Said::Nobody));
            }
            if let std::task::Poll::Ready(read) = client.poll_read_into(cx, &mut upward, room) {
                return std::task::Poll::Ready(read.map(|_| Said::Client));
            }
            if let std::task::Poll::Ready(read) = server.poll_read_into(cx, &mut downward, room) {
                return std::task::Poll::Ready(read.map(|_| Said::Server));
            }
            std::task::Poll::Pending
        });
        let limit = if handle.is_draining() {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(365 * 24 * 3600)
        };
        match tokio::time::timeout(limit, said).await {
            Ok(Ok(Said::Client)) if !upward.is_empty() => {}
            Ok(Ok(Said::Server)) if !downward.is_empty() => {
                commands.answered();
                if client.send(&downward).await.is_err() {
                    return Ended::Gone;
                }
                downward.clear();
            }
            _ => return Ended::Gone,
        }
    }
}

/// A login anew. None where it failed; the client has then been told.
async fn change_user(
    worker: Rc<Worker>,
    caller: Rc<Caller>,
    nonce: [u8; 20],
    capabilities: Capabilities,
    mut client: Stream,
    mut command: Vec<u8>,
    waits: Rc<Waits>,
) -> Option<Relayed> {
    let family = worker.cluster.family();
    let read = read_packet(&mut client, &mut command, LOGIN_PACKET_MAX).await;
    let (_, payload) = read.ok()?;
    let Ok(change) = ChangeUser::parse(payload.get(1..)?, capabilities, family) else {
        let mut out = Vec::new();
        let answer = ClientError::client(1047, b"08S01", "Unknown command");
        error_packet(&answer).encode(&mut out, 1);
        // It may be gone itself.
        let _ = client.send(&out).await;
        return None;
    };
    let named = change.plugin.as_deref().unwrap_or_default();
    let credentials = Credentials {
        user: change.user,
        database: change.database,
        response: change.auth_response,
        used_up: true,
        collation: any_collation(change.collation, family),
        plugin: match named {
            [] => Plugin::NativePassword,
            name => Plugin::from_name(&String::from_utf8_lossy(name)),
        },
    };
    let hello = HandshakeResponse {
        attributes: change.attributes,
        plugin: change.plugin,
        ..HandshakeResponse::default()
    };
    let mut capabilities = capabilities;
    capabilities.set(
        Capabilities::CONNECT_WITH_DB,
        !credentials.database.is_empty(),
    );
    let mut login = LoginExchange::anew(
        &worker,
        (client, command),
        nonce,
        caller,
        hello,
        capabilities,
    );
    login.waits = waits;
    log_in(login, &credentials).await
}
