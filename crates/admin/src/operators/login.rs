//! An operator's way in: greeting, TLS, proof of the one account's password. Knows no statement.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use millrace_backend::nonce::random_nonce;
use millrace_backend::packet_io::read_packet;
use millrace_backend::stream::{Plain, Stream};
use millrace_backend::tls::take_in;
use millrace_protocol::auth::{self, Plugin};
use millrace_protocol::handshake::{
    AuthSwitch, ClientHello, Family, Greeting, HandshakeResponse, encode_auth_more,
};
use millrace_protocol::ok::encode_ok;
use millrace_protocol::{Capabilities, Status};
use millrace_worker::ListenerTls;
use tracing::{debug, warn};

use crate::operators::answer::fields;
use crate::operators::cell::Refusal;
use crate::operators::chatter::Own;
use crate::operators::shared::{Operators, shown};
use crate::operators::variables::VERSION;

/// Before the login no packet may be longer; bytes.
const HELLO_MAX: usize = 16 * 1024;

/// What is offered. Nothing that would make answers other than plain result sets.
const OFFERED: Capabilities = Capabilities::LONG_PASSWORD
    .union(Capabilities::FOUND_ROWS)
    .union(Capabilities::LONG_FLAG)
    .union(Capabilities::CONNECT_WITH_DB)
    .union(Capabilities::NO_SCHEMA)
    .union(Capabilities::ODBC)
    .union(Capabilities::IGNORE_SPACE)
    .union(Capabilities::PROTOCOL_41)
    .union(Capabilities::INTERACTIVE)
    .union(Capabilities::IGNORE_SIGPIPE)
    .union(Capabilities::TRANSACTIONS)
    .union(Capabilities::RESERVED)
    .union(Capabilities::SECURE_CONNECTION)
    .union(Capabilities::MULTI_RESULTS)
    .union(Capabilities::PS_MULTI_RESULTS)
    .union(Capabilities::PLUGIN_AUTH)
    .union(Capabilities::CONNECT_ATTRS)
    .union(Capabilities::PLUGIN_AUTH_LENENC)
    .union(Capabilities::DEPRECATE_EOF);

/// A client that has logged in.
pub(crate) struct Entered {
    pub(crate) stream: Stream,
    /// Bytes already read from it.
    pub(crate) buffer: Vec<u8>,
    pub(crate) capabilities: Capabilities,
    pub(crate) own: Own,
}

/// A login under way.
struct Entrance<'a> {
    operators: &'a Operators,
    stream: Stream,
    buffer: Vec<u8>,
    /// The number of the next packet to the client.
    sequence: u8,
    nonce: [u8; 20],
    peer: Option<SocketAddr>,
}

/// Logs a client in. None where it is not let in, or has left.
pub(crate) async fn log_in(
    operators: &Operators,
    plain: Plain,
    peer: Option<SocketAddr>,
    id: u32,
) -> Option<Entered> {
    let mut entrance = Entrance {
        operators,
        stream: Stream::Plain(plain),
        buffer: Vec::new(),
        sequence: 0,
        nonce: random_nonce(),
        peer,
    };
    let hello = match entrance.greet(id).await {
        Ok(hello) => hello?,
        Err(error) => {
            debug!(client = %shown(peer), %error, "an operator's client left before it logged in");
            return None;
        }
    };
    match entrance.prove(&hello).await {
        Ok(true) => entrance.enter(hello, id).await.ok(),
        Ok(false) => {
            entrance.deny(&hello).await;
            None
        }
        Err(error) => {
            debug!(client = %shown(peer), %error, "an operator's client left while it logged in");
            None
        }
    }
}

impl Entrance<'_> {
    /// Sends the greeting and reads the client's answer, through TLS where it wants that.
    async fn greet(&mut self, id: u32) -> io::Result<Option<HandshakeResponse>> {
        let options = &self.operators.options;
        let is_tcp = matches!(self.stream, Stream::Plain(Plain::Tcp(_)));
        let acceptor = options
            .acceptor
            .as_ref()
            .filter(|_| is_tcp && options.tls != ListenerTls::Off);
        let mut offered = OFFERED;
        offered.set(Capabilities::SSL, acceptor.is_some());
        let greeting = Greeting {
            server_version: VERSION.to_owned(),
            thread_id: id,
            nonce: self.nonce,
            capabilities: offered,
            // utf8mb4_general_ci
            collation: 45,
            status: Status::AUTOCOMMIT,
            auth_plugin: Plugin::CachingSha2.name().to_owned(),
        };
        let mut out = Vec::new();
        greeting.encode(&mut out, 0);
        self.stream.send(&out).await?;
        let mut payload = self.read().await?;
        let mut hello = ClientHello::parse(&payload, offered, Family::MariaDb);
        if let (Ok(ClientHello::SslRequest { .. }), Some(acceptor)) = (&hello, acceptor) {
            let Stream::Plain(plain) = std::mem::replace(&mut self.stream, Stream::Gone) else {
                return Ok(None);
            };
            // Clients may start TLS right behind their request for it.
            let ahead = std::mem::take(&mut self.buffer);
            let accepted = acceptor
                .accept_with(plain, |tls| take_in(tls, &ahead))
                .await?;
            self.stream = Stream::Tls(Box::new(tokio_rustls::TlsStream::Server(accepted)));
            payload = self.read().await?;
            hello = ClientHello::parse(&payload, offered, Family::MariaDb);
        }
        let Ok(ClientHello::Response(hello)) = hello else {
            self.refuse(&Refusal::new(1043, b"08S01", "Bad handshake"))
                .await?;
            return Ok(None);
        };
        if is_tcp && options.tls == ListenerTls::Required && !self.stream.is_private() {
            let text = "Connections using insecure transport are prohibited: use TLS.";
            self.refuse(&Refusal::new(3159, b"HY000", text)).await?;
            return Ok(None);
        }
        Ok(Some(HandshakeResponse {
            capabilities: hello.capabilities & (offered | Capabilities::SSL),
            ..hello
        }))
    }

    /// Whether the client shows that it knows the account's password. The password itself never
    /// goes over the wire: its digests are known here, so the fast path always serves.
    async fn prove(&mut self, hello: &HandshakeResponse) -> io::Result<bool> {
        let named = hello.plugin.as_deref();
        let mut plugin = named.map_or(Plugin::NativePassword, |name| {
            Plugin::from_name(&String::from_utf8_lossy(name))
        });
        let mut response = hello.auth_response.clone();
        if !matches!(plugin, Plugin::CachingSha2 | Plugin::NativePassword) {
            plugin = Plugin::CachingSha2;
            response = self.switch(&plugin).await?;
        }
        let account = &self.operators.options.account;
        let is_user = auth::same(&hello.user, &account.user);
        let proved = match plugin {
            Plugin::NativePassword => account.proves_native(&response, &self.nonce),
            _ => account.proves_sha2(&response, &self.nonce),
        };
        if is_user && proved && plugin == Plugin::CachingSha2 {
            let mut out = Vec::new();
            self.sequence = encode_auth_more(&mut out, self.sequence, &[auth::FAST_OK]);
            self.stream.send(&out).await?;
        }
        Ok(is_user && proved)
    }

    /// Has the client prove its password with another plugin.
    async fn switch(&mut self, plugin: &Plugin) -> io::Result<Vec<u8>> {
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

    async fn enter(mut self, hello: HandshakeResponse, id: u32) -> io::Result<Entered> {
        self.operators.failures.succeeded(self.address());
        let user = String::from_utf8_lossy(&hello.user).into_owned();
        let host = shown(self.peer.map(|peer| peer.ip()));
        debug!(user, client = %shown(self.peer), "an operator logged in");
        let mut out = Vec::new();
        encode_ok(&mut out, self.sequence, hello.capabilities, &fields());
        self.stream.send(&out).await?;
        let database = hello.database.filter(|name| !name.is_empty());
        Ok(Entered {
            stream: self.stream,
            buffer: self.buffer,
            capabilities: hello.capabilities,
            own: Own {
                user: format!("{user}@{host}"),
                id,
                database: database.map(|name| String::from_utf8_lossy(&name).into_owned()),
            },
        })
    }

    /// Tells the client that it is not let in; the later, the more often that happened lately.
    async fn deny(&mut self, hello: &HandshakeResponse) {
        // A name is whatever the client sent: shortened, and with its oddities escaped.
        let name: String = String::from_utf8_lossy(&hello.user)
            .chars()
            .take(64)
            .collect();
        warn!(user = ?name, client = %shown(self.peer), "an operator's login was refused");
        let failures = &self.operators.failures;
        let delay = failures.failed(self.address(), &self.operators.options.slowing);
        tokio::time::sleep(delay).await;
        let host = shown(self.peer.map(|peer| peer.ip()));
        let using = if hello.auth_response.is_empty() {
            "NO"
        } else {
            "YES"
        };
        let text = format!("Access denied for user '{name}'@'{host}' (using password: {using})");
        let _ = self.refuse(&Refusal::new(1045, b"28000", text)).await;
    }

    fn address(&self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip())
    }

    async fn read(&mut self) -> io::Result<Vec<u8>> {
        let (sequence, payload) =
            read_packet(&mut self.stream, &mut self.buffer, HELLO_MAX).await?;
        self.sequence = sequence.wrapping_add(1);
        Ok(payload)
    }

    async fn refuse(&mut self, refusal: &Refusal) -> io::Result<()> {
        let mut out = Vec::new();
        refusal.packet().encode(&mut out, self.sequence);
        let sending = self.stream.send(&out);
        match tokio::time::timeout(Duration::from_secs(1), sending).await {
            Ok(sent) => sent,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
