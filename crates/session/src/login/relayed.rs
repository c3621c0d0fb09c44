//! A login that only the server can judge: its packets are handed to and fro, and the client
//! keeps the connection for itself. No pooling and no split, but no valid login is refused.

use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_backend::conn::Conn;
use millrace_backend::connect::{
    LOGIN_PACKET_MAX, Login, MAX_PACKET, Opened, Wanted, dial, open, start_tls,
};
use millrace_backend::error::BackendError;
use millrace_backend::packet_io::{read_packet, write_packet};
use millrace_backend::pool::ServerFacts;
use millrace_backend::secret::Secret;
use millrace_backend::stream::Stream;
use millrace_backend::tls::For;
use millrace_backend::user_rows::Name;
use millrace_metrics::{LoginOutcome, PinReason, Side};
use millrace_protocol::Capabilities;
use millrace_protocol::auth::Plugin;
use millrace_protocol::handshake::{Greeting, HandshakeResponse, ServerAuthPacket};
use millrace_protocol::ok::{OkFields, OkPacket, encode_ok};

use crate::login::caller::LetIn;
use crate::error::{Answer, observed};
use crate::login::{Claim, Entrance, compressed, error_packet};
use crate::login::verify::{learn_accounts, let_in};
use crate::login::watched_commands::Commands;
use crate::worker::{Handle, Worker};
use crate::worker::written::Concealing;

/// Between two attempts, while the primary cannot be had.
const PAUSE: Duration = Duration::from_millis(100);

/// A client with a server connection of its own.
pub(crate) struct Relayed {
    worker: Rc<Worker>,
    user: Box<[u8]>,
    client: Stream,
    server: Stream,
    /// What it writes, nobody here knows of.
    _concealing: Concealing,
    /// Bytes already read from the client and from the server.
    ahead: [Vec<u8>; 2],
}

/// Relays the login. None where it failed; the client has then been told.
pub(crate) async fn log_in(mut entrance: Entrance<'_>, claim: &Claim) -> Option<Relayed> {
    match relay(&mut entrance, claim).await {
        Ok(Some((server, ahead))) => {
            entrance.worker.metrics().login(LoginOutcome::Relayed);
            let mut buffer = std::mem::take(&mut entrance.buffer);
            let client = compressed(
                entrance.stream,
                entrance.capabilities,
                &entrance.hello,
                &mut buffer,
            );
            Some(Relayed {
                worker: entrance.worker.clone(),
                user: claim.user.as_slice().into(),
                _concealing: entrance.worker.shared.written.conceal(),
                client,
                server,
                ahead: [buffer, ahead],
            })
        }
        Ok(None) => {
            entrance.worker.metrics().login(LoginOutcome::Denied);
            None
        }
        Err(answer) => {
            let denied = answer.side == Side::Client;
            entrance.worker.metrics().login(match denied {
                true => LoginOutcome::Denied,
                false => LoginOutcome::NoServer,
            });
            if denied {
                let (worker, address) = (entrance.worker, entrance.address);
                let accounts = &worker.shared.accounts;
                accounts.hold_back(address, worker.options()).await;
            }
            entrance.worker.metrics().error(answer.side, answer.class);
            let mut out = Vec::new();
            error_packet(&answer).encode(&mut out, entrance.sequence);
            let _ = entrance.stream.send(&out).await;
            None
        }
    }
}

/// Logs in with a password that has expired and gives the client the connection.
pub(crate) async fn log_in_with(
    mut entrance: Entrance<'_>,
    claim: &Claim,
    password: &Secret,
) -> Option<Relayed> {
    let worker = entrance.worker.clone();
    let own = Capabilities::SSL | Capabilities::COMPRESS | Capabilities::ZSTD_COMPRESSION;
    let login = Login {
        user: &claim.user,
        password,
        database: (!claim.database.is_empty()).then_some(&claim.database),
        collation: claim.collation,
        capabilities: (entrance.capabilities - own) | Capabilities::CAN_HANDLE_EXPIRED_PASSWORDS,
        tls: entrance.stream.is_tls(),
        whose: For::Client,
    };
    let timeout = worker.shared.pool.connect_timeout;
    let network = &worker.shared.network;
    entrance.waits.begin();
    let opened = on_primary(&worker, async |facts| {
        let opened = open(&facts.address, &login, network, timeout).await?;
        by_whom(&worker, facts, claim.name(), opened, login.tls).await
    })
    .await;
    entrance.waits.end();
    let mut out = Vec::new();
    let judged = match opened {
        Ok((opened, let_in)) => {
            let judging = entrance
                .caller
                .judge(&claim.user, Some(password), &let_in, &worker);
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
            encode_ok(&mut out, entrance.sequence, entrance.capabilities, &fields);
            Some(opened)
        }
        Err(answer) => {
            worker.metrics().error(answer.side, answer.class);
            error_packet(&answer).encode(&mut out, entrance.sequence);
            None
        }
    };
    entrance.stream.send(&out).await.ok()?;
    let opened = opened?;
    worker.metrics().login(LoginOutcome::Relayed);
    let mut buffer = std::mem::take(&mut entrance.buffer);
    let client = compressed(
        entrance.stream,
        entrance.capabilities,
        &entrance.hello,
        &mut buffer,
    );
    Some(Relayed {
        _concealing: worker.shared.written.conceal(),
        worker,
        user: claim.user.as_slice().into(),
        client,
        server: opened.stream,
        ahead: [buffer, opened.buffer],
    })
}

/// Does something with the primary, which is waited for, and tried again, as a statement would.
async fn on_primary<T>(
    worker: &Worker,
    mut with: impl AsyncFnMut(&ServerFacts) -> Result<T, BackendError>,
) -> Result<T, Answer> {
    let (begun, limit) = (Instant::now(), worker.options().failover.hold_time_max);
    loop {
        let primary = worker.cluster.with_world(|world| {
            let primary = world.snapshot.primary?;
            Some(world.facts[primary.index()].clone())
        });
        let why = match primary {
            None => worker
                .cluster
                .with_world(|world| Answer::no_primary(&world.snapshot)),
            Some(facts) => match with(&facts).await {
                Ok(done) => return Ok(done),
                Err(error) => {
                    if let Some(kind) = observed(&error) {
                        worker.shared.monitor.observe(facts.id, kind);
                    }
                    Answer::backend(error)
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
    entrance: &mut Entrance<'_>,
    claim: &Claim,
) -> Result<Option<(Stream, Vec<u8>)>, Answer> {
    let worker = entrance.worker;
    let timeout = worker.shared.pool.connect_timeout;
    entrance.waits.begin();
    on_primary(worker, async |facts| {
        learn_accounts(worker, facts, claim.name()).await
    })
    .await?;
    let dialed = on_primary(worker, async |facts| {
        let (stream, greeting, ahead) =
            dial(&facts.address, &worker.shared.network, timeout).await?;
        Ok((stream, greeting, ahead, facts.clone()))
    })
    .await;
    entrance.waits.end();
    let (stream, greeting, ahead, facts) = dialed?;
    let relayed = relay_to(entrance, claim, stream, greeting, ahead, &facts).await;
    let Some((opened, last)) = relayed.map_err(Answer::backend)? else {
        return Ok(None);
    };
    let tls = entrance.stream.is_tls();
    entrance.waits.begin();
    let asked = by_whom(worker, &facts, claim.name(), opened, tls).await;
    entrance.waits.end();
    let (opened, let_in) = asked.map_err(Answer::backend)?;
    let judging = entrance.caller.judge(&claim.user, None, &let_in, worker);
    judging.await?;
    let sent = entrance.write(&last).await;
    sent.map_err(|error| Answer::backend(error.into()))?;
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
    entrance: &mut Entrance<'_>,
    claim: &Claim,
    stream: Stream,
    greeting: Greeting,
    ahead: Vec<u8>,
    facts: &ServerFacts,
) -> Result<Option<(Opened, Vec<u8>)>, BackendError> {
    let worker = entrance.worker;
    let own = Capabilities::SSL | Capabilities::COMPRESS | Capabilities::ZSTD_COMPRESSION;
    let mut capabilities = entrance.capabilities - own;
    let (server, sequence) = start_tls(
        stream,
        &greeting,
        &mut capabilities,
        claim.collation,
        &facts.address,
        &worker.shared.network.tls,
        Wanted {
            tls: entrance.stream.is_tls(),
            whose: For::Client,
        },
    )
    .await?;
    let response = HandshakeResponse {
        capabilities,
        max_packet: MAX_PACKET,
        collation: claim.collation,
        user: claim.user.as_slice().into(),
        // A plugin that no account has: the server then names the account's own, with a nonce
        // that the client can answer.
        auth_response: Vec::new(),
        plugin: Some(b"millrace_relay".to_vec()),
        database: (!claim.database.is_empty()).then(|| claim.database.clone()),
        attributes: entrance.hello.attributes.clone(),
        zstd_level: 0,
    };
    let mut out = Vec::new();
    response.encode(&mut out, sequence);
    let mut under_way = UnderWay::new(server, ahead, capabilities);
    under_way.server.send(&out).await?;
    loop {
        let (sequence, payload) = under_way.read().await?;
        if sequence == 0 {
            return Err(BackendError::Protocol("a packet that nobody asked for"));
        }
        let last = match ServerAuthPacket::parse(&payload, capabilities)? {
            ServerAuthPacket::Ok => Some(true),
            ServerAuthPacket::Err(_) => Some(false),
            // The server only informs; its OK follows.
            ServerAuthPacket::More([millrace_protocol::auth::FAST_OK]) => {
                entrance.write(&payload).await?;
                continue;
            }
            _ => None,
        };
        if last.is_some() {
            under_way.ended = true;
        }
        if last == Some(true) {
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
            return Ok(Some((opened, payload)));
        }
        if last == Some(false) {
            let delay = worker
                .shared
                .accounts
                .failed(entrance.address, worker.options());
            tokio::time::sleep(delay).await;
            let told = entrance.as_told(claim, payload).await;
            entrance.write(&told).await?;
            return Ok(None);
        }
        entrance.write(&payload).await?;
        if last.is_some() {
            return Ok(None);
        }
        let reply = entrance.read().await?;
        under_way.answer(sequence, &reply).await?;
    }
}

/// A login under way at a server. One that breaks off is counted against Millrace's address, which the
/// server shuts out after max_connect_errors of them: so it is brought to its end, whoever has left.
struct UnderWay {
    server: Stream,
    ahead: Vec<u8>,
    capabilities: Capabilities,
    /// The number of the packet that the server waits for an answer to.
    asked: Option<u8>,
    plugin: Plugin,
    ended: bool,
}

/// So long may a server take to refuse a login that its client has left.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

impl UnderWay {
    fn new(server: Stream, ahead: Vec<u8>, capabilities: Capabilities) -> UnderWay {
        UnderWay {
            server,
            ahead,
            capabilities,
            asked: None,
            plugin: Plugin::NativePassword,
            ended: false,
        }
    }

    async fn read(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let read = read_packet(&mut self.server, &mut self.ahead, LOGIN_PACKET_MAX).await;
        match &read {
            Ok((sequence, payload)) => {
                self.asked = Some(*sequence);
                if let Ok(ServerAuthPacket::Switch(switch)) =
                    ServerAuthPacket::parse(payload, self.capabilities)
                {
                    self.plugin = Plugin::from_name(&switch.plugin);
                }
            }
            Err(_) => self.ended = true,
        }
        read
    }

    async fn answer(&mut self, sequence: u8, reply: &[u8]) -> std::io::Result<()> {
        self.asked = None;
        write_packet(&mut self.server, sequence.wrapping_add(1), reply).await
    }

    fn take(mut self) -> (Stream, Vec<u8>) {
        let server = std::mem::replace(&mut self.server, Stream::Gone);
        (server, std::mem::take(&mut self.ahead))
    }

    /// Answers with what is well-formed and wrong until the server has refused it.
    async fn fail(mut self) -> std::io::Result<()> {
        // It is not begun once more where its time runs out.
        self.ended = true;
        loop {
            if let Some(sequence) = self.asked {
                let wrong: &[u8] = match self.plugin {
                    Plugin::NativePassword => &[],
                    Plugin::Ed25519 => &[0; 64],
                    _ => &[0],
                };
                self.answer(sequence, wrong).await?;
            }
            let (_, payload) = self.read().await?;
            match ServerAuthPacket::parse(&payload, self.capabilities) {
                // The empty password was the right one.
                Ok(ServerAuthPacket::Ok) => return self.server.send(&[1, 0, 0, 0, 1]).await,
                Ok(ServerAuthPacket::Err(_)) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.ended || matches!(self.server, Stream::Gone) {
            return;
        }
        let mut rest = UnderWay::new(
            std::mem::replace(&mut self.server, Stream::Gone),
            std::mem::take(&mut self.ahead),
            self.capabilities,
        );
        (rest.asked, rest.plugin) = (self.asked, self.plugin.clone());
        tokio::task::spawn_local(tokio::time::timeout(REFUSED_WITHIN, rest.fail()));
    }
}

impl Relayed {
    /// Hands bytes to and fro until one side ends.
    pub(crate) async fn run(self: Box<Self>, handle: &Handle) {
        let this = *self;
        let _pinned = Pinned::new(this.worker);
        handle.pins.add(PinReason::RelayedLogin);
        let [from_client, from_server] = this.ahead;
        exchange(
            this.client,
            this.server,
            from_client,
            from_server,
            &this.user,
            handle,
        )
        .await;
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

/// Copies both ways until one side ends, the session is told to end, or a drain finds it silent. A client that wants
/// to be another than `user` is sent away: whether it may, a server cannot judge from here.
pub(crate) async fn exchange(
    mut client: Stream,
    mut server: Stream,
    from_client: Vec<u8>,
    from_server: Vec<u8>,
    user: &[u8],
    handle: &Handle,
) {
    let mut commands = Commands::default();
    if commands.changes_user(&from_client, user) {
        return send_away(&mut client).await;
    }
    if server.send(&from_client).await.is_err() || client.send(&from_server).await.is_err() {
        return;
    }
    let mut upward = Vec::with_capacity(16 * 1024);
    let mut downward = Vec::with_capacity(16 * 1024);
    // It is there already: what is in them is sent before the next read.
    let room = |_: &mut Vec<u8>| ();
    loop {
        enum Said {
            Client,
            Server,
            Nobody,
        }
        let said = std::future::poll_fn(|cx| {
            handle.register(cx);
            if handle.ended.get() {
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
        let limit = if handle.draining.get() {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(365 * 24 * 3600)
        };
        let sent = match tokio::time::timeout(limit, said).await {
            Ok(Ok(Said::Client)) if !upward.is_empty() => {
                if commands.changes_user(&upward, user) {
                    return send_away(&mut client).await;
                }
                server.send(&upward).await
            }
            Ok(Ok(Said::Server)) if !downward.is_empty() => {
                commands.answered();
                client.send(&downward).await
            }
            _ => return,
        };
        if sent.is_err() {
            return;
        }
        upward.clear();
        downward.clear();
    }
}

async fn send_away(client: &mut Stream) {
    let mut out = Vec::new();
    error_packet(&Answer::no_other_user()).encode(&mut out, 1);
    // It may be gone itself.
    let _ = client.send(&out).await;
}
