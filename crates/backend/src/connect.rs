//! Opening a connection to a server and logging in: every authentication method that servers
//! ask for, TLS as configured. Knows nothing of pools.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rsa::{OAEP_SHA1_MGF1SHA1, OaepPublicEncryptingKey, PublicEncryptingKey};
use millrace_base::Address as Written;
use millrace_protocol::auth::{self, Plugin};
use millrace_protocol::handshake::{
    Attributes, Greeting, HandshakeResponse, ServerAuthPacket, encode_ssl_request,
};
use millrace_protocol::ok::{Change, ErrPacket, OkPacket};
use millrace_protocol::{Capabilities, Status};
use tokio::net::{TcpStream, UnixStream};
use zeroize::Zeroizing;

use crate::error::{BackendError, ServerError, closed};
use crate::names::Resolver;
use crate::packet_io::{read_packet, write_packet};
use crate::questions::Questions;
use crate::secret::Secret;
use crate::stream::Stream;
use crate::tcp::TcpOptions;
use crate::tls::{For, ServerTls, ServerTlsMode};

/// No packet of a login is longer; bytes.
pub const LOGIN_PACKET_MAX: usize = 1 << 20;

/// What every server connection asks for. The flags that shape results follow the client's.
pub const BASE: Capabilities = Capabilities::PROTOCOL_41
    .union(Capabilities::SECURE_CONNECTION)
    .union(Capabilities::PLUGIN_AUTH)
    .union(Capabilities::TRANSACTIONS)
    .union(Capabilities::LONG_FLAG)
    .union(Capabilities::SESSION_TRACK);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// Host name or IP address; or the absolute path of a Unix socket.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The machine that is meant: what is known of the server is known of this one. None as long as the name
    /// says it.
    pub at: Option<IpAddr>,
    /// What the server's certificate is to name; none where that is the host.
    pub name: Option<Box<str>>,
}

impl Address {
    /// A Unix socket's path.
    pub fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }

    /// Reads what [`Address`]'s `Display` writes: `host:port`, `[v6]:port` or a path.
    pub fn parse(text: &str) -> Option<Address> {
        Some((&Written::parse(text, None).ok()?).into())
    }

    /// A server by its name, or its address.
    pub fn new(host: String, port: u16) -> Address {
        Address {
            host,
            port,
            at: None,
            name: None,
        }
    }

    /// Whether what it means can change.
    pub fn is_name(&self) -> bool {
        !self.is_socket() && self.host.parse::<IpAddr>().is_err()
    }

    /// The same server, on this machine.
    pub fn at(&self, at: Option<IpAddr>) -> Address {
        let at = at.filter(|_| self.is_name());
        Address { at, ..self.clone() }
    }
}

impl From<&Written> for Address {
    fn from(written: &Written) -> Self {
        match written {
            Written::Tcp { host, port } => Address::new(host.clone(), *port),
            Written::Unix(path) => Address::new(path.display().to_string(), 0),
        }
    }
}

impl From<&Address> for Written {
    fn from(address: &Address) -> Self {
        match address.is_socket() {
            true => Written::Unix(address.host.clone().into()),
            false => Written::Tcp {
                host: address.host.clone(),
                port: address.port,
            },
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Written::from(self).fmt(f)
    }
}

/// How to log in.
#[derive(Debug, Clone)]
pub struct Login<'a> {
    /// The account's name.
    pub user: &'a [u8],
    /// Its password.
    pub password: &'a Secret,
    /// The default database, where there is to be one.
    pub database: Option<&'a [u8]>,
    /// The collation of the handshake; decides the session's character sets.
    pub collation: u8,
    /// Flags asked for besides [`BASE`]; what the server lacks is left out.
    pub capabilities: Capabilities,
    /// Whether to use TLS on this connection, where the mode leaves it open.
    pub tls: bool,
    /// Whose account it is.
    pub whose: For,
}

/// A connection that is logged in.
#[derive(Debug)]
pub struct Opened {
    /// The stream, TLS included.
    pub stream: Stream,
    /// What the server said first.
    pub greeting: Greeting,
    /// The flags agreed on.
    pub capabilities: Capabilities,
    /// The server's status after the login.
    pub status: Status,
    /// The login's OK told what tracked variables are: MariaDB does from 11.5 on (observed on 11.8).
    pub tells_variables: bool,
    /// Bytes read and not yet looked at.
    pub buffer: Vec<u8>,
}

/// Connects without logging in: socket, greeting, nothing else.
pub async fn dial(
    address: &Address,
    network: &Network,
    timeout: Duration,
) -> Result<(Stream, Greeting, Vec<u8>), BackendError> {
    let dialing = async {
        let mut stream = Stream::Plain(if address.is_socket() {
            UnixStream::connect(&address.host).await?.into()
        } else {
            let socket = reach(address, &network.resolver, timeout).await?;
            socket.set_nodelay(true)?;
            network.tcp.apply(&socket)?;
            socket.into()
        });
        let mut buffer = Vec::new();
        let (_, payload) = read_packet(&mut stream, &mut buffer, LOGIN_PACKET_MAX).await?;
        match Greeting::parse(&payload)? {
            Ok(greeting) => Ok((stream, greeting, buffer)),
            Err(error) => Err(BackendError::Server(server_error(&error))),
        }
    };
    match tokio::time::timeout(timeout, dialing).await {
        Ok(result) => result,
        Err(_) => Err(BackendError::Timeout("pool.connect_timeout")),
    }
}

/// Connects to the machine that is meant; as long as none is, to the first that its name means and that answers.
async fn reach(address: &Address, resolver: &Resolver, timeout: Duration) -> io::Result<TcpStream> {
    let port = address.port;
    let machines = match (address.at, address.host.parse()) {
        (Some(at), _) | (None, Ok(at)) => vec![at],
        (None, Err(_)) => resolver.look_up(&address.host, timeout).await,
    };
    let mut failed = io::Error::other(format!("{UNRESOLVED} {}", address.host));
    for machine in machines {
        match TcpStream::connect((machine, port)).await {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// What an error begins with where a name does not resolve.
pub(crate) const UNRESOLVED: &str = "failed to look up";

/// Connects and logs in, within `timeout`.
pub async fn open(
    address: &Address,
    login: &Login<'_>,
    network: &Network,
    timeout: Duration,
) -> Result<Opened, BackendError> {
    let opening = async {
        let opened = open_once(address, login, network, timeout).await;
        match opened {
            Err(BackendError::Tls(_)) if network.tls.is_done_without(address) => {
                open_once(address, login, network, timeout).await
            }
            opened => opened,
        }
    };
    match tokio::time::timeout(timeout, opening).await {
        Ok(result) => result,
        Err(_) => Err(BackendError::Timeout("pool.connect_timeout")),
    }
}

async fn open_once(
    address: &Address,
    login: &Login<'_>,
    network: &Network,
    timeout: Duration,
) -> Result<Opened, BackendError> {
    let (stream, greeting, buffer) = dial(address, network, timeout).await?;
    log_in(stream, greeting, buffer, address, login, &network.tls).await
}

/// Whether the server lets an account in with this password: for a check before anything is served.
///
/// # Errors
/// When it does not, or cannot be reached.
pub async fn can_log_in(
    address: &Address,
    user: &str,
    password: &Secret,
    network: &Network,
    timeout: Duration,
) -> Result<(), BackendError> {
    let login = Login {
        user: user.as_bytes(),
        password,
        database: None,
        collation: 45,
        capabilities: Capabilities::DEPRECATE_EOF,
        tls: true,
        whose: For::Own,
    };
    open(address, &login, network, timeout).await.map(drop)
}

/// The flags to send: what is wanted, as far as the server has it.
pub fn agreed(wanted: Capabilities, greeting: &Greeting) -> Capabilities {
    (wanted | BASE) & (greeting.capabilities | BASE)
}

/// TLS for whom, and whether, where the mode leaves that open.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Whether.
    pub tls: bool,
    /// Whose account logs in.
    pub whose: For,
}

/// What a client without TLS is told where nobody can tell whether its account asks for TLS.
const UNJUDGED: &str = "server_tls.mode asks for TLS to the server, this client has none, and whether its account \
    may do without cannot be read: connect with TLS, or give [monitor] an account that may read the servers' accounts";

/// Turns the stream into TLS where the mode and the server say so. Answers the sequence number
/// of the next packet.
pub async fn start_tls(
    stream: Stream,
    greeting: &Greeting,
    capabilities: &mut Capabilities,
    collation: u8,
    address: &Address,
    tls: &ServerTls,
    wanted: Wanted,
) -> Result<(Stream, u8), BackendError> {
    let offered = greeting.capabilities.contains(Capabilities::SSL);
    let use_tls = match tls.mode {
        ServerTlsMode::Disabled => false,
        ServerTlsMode::AsClient => wanted.tls && offered,
        ServerTlsMode::Preferred => {
            offered && tls.may_encrypt(wanted.whose, wanted.tls) && !tls.is_done_without(address)
        }
        _ if offered && !tls.may_encrypt(wanted.whose, wanted.tls) => {
            return Err(BackendError::Tls(UNJUDGED.to_owned()));
        }
        _ if offered => true,
        _ => {
            return Err(BackendError::Tls(format!(
                "the server at {address} offers no TLS, and server_tls.mode requires it"
            )));
        }
    };
    if !use_tls {
        return Ok((stream, 1));
    }
    *capabilities |= Capabilities::SSL;
    let mut out = Vec::new();
    encode_ssl_request(&mut out, 1, *capabilities, MAX_PACKET, collation);
    let mut stream = stream;
    stream.send(&out).await?;
    let Stream::Plain(plain) = stream else {
        return Err(BackendError::Protocol("TLS asked for twice"));
    };
    let name = address.name.as_deref().unwrap_or(&address.host);
    let connected = match tls.connect(name, plain, wanted.whose).await {
        Err(BackendError::Tls(why)) => {
            tls.cannot_be_had(address, &why);
            return Err(BackendError::Tls(why));
        }
        connected => connected?,
    };
    Ok((
        Stream::Tls(Box::new(tokio_rustls::TlsStream::Client(connected))),
        2,
    ))
}

/// The largest packet that Millrace says it takes; bytes.
pub const MAX_PACKET: u32 = 1 << 30;

/// What a DBA finds Millrace's own connections by, in `performance_schema.session_connect_attrs`. A
/// connection serves many clients, one after the other, so it has none of theirs.
pub(crate) fn attributes() -> Attributes {
    let pid = std::process::id().to_string();
    let pairs = [
        ("program_name", "millrace"),
        ("_client_name", "millrace"),
        ("_client_version", env!("CARGO_PKG_VERSION")),
        ("_os", std::env::consts::OS),
        ("_platform", std::env::consts::ARCH),
        ("_pid", &pid),
    ];
    pairs.into_iter().collect()
}

async fn log_in(
    stream: Stream,
    greeting: Greeting,
    mut buffer: Vec<u8>,
    address: &Address,
    login: &Login<'_>,
    tls: &ServerTls,
) -> Result<Opened, BackendError> {
    let wanted = login.capabilities | Capabilities::CONNECT_ATTRS;
    let mut capabilities = agreed(wanted, &greeting);
    if login.database.is_some() {
        capabilities |= Capabilities::CONNECT_WITH_DB;
    }
    let (mut stream, sequence) = start_tls(
        stream,
        &greeting,
        &mut capabilities,
        login.collation,
        address,
        tls,
        Wanted {
            tls: login.tls,
            whose: login.whose,
        },
    )
    .await?;
    let plugin = Plugin::from_name(&greeting.auth_plugin);
    let first = first_response(&plugin, login.password, &greeting.nonce);
    let response = HandshakeResponse {
        capabilities,
        max_packet: MAX_PACKET,
        collation: login.collation,
        user: login.user.to_vec(),
        auth_response: first,
        database: login.database.map(<[u8]>::to_vec),
        plugin: Some(greeting.auth_plugin.clone().into_bytes()),
        attributes: attributes(),
        zstd_level: 0,
    };
    let mut out = Vec::new();
    response.encode(&mut out, sequence);
    stream.send(&out).await?;
    let nonce = greeting.nonce.to_vec();
    let (status, tells_variables) = finish(
        &mut stream,
        &mut buffer,
        (login.password, login.whose),
        plugin,
        nonce,
        capabilities,
    )
    .await?;
    Ok(Opened {
        stream,
        greeting,
        capabilities,
        status,
        tells_variables,
        buffer,
    })
}

/// Answers the server's questions until it says OK; gives its status, and whether it told of variables. Serves logins and COM_CHANGE_USER alike.
pub async fn finish(
    stream: &mut Stream,
    buffer: &mut Vec<u8>,
    (password, whose): (&Secret, For),
    mut plugin: Plugin,
    mut nonce: Vec<u8>,
    capabilities: Capabilities,
) -> Result<(Status, bool), BackendError> {
    let mut in_vain = false;
    loop {
        let (sequence, payload) = read_packet(stream, buffer, LOGIN_PACKET_MAX).await?;
        if sequence == 0 {
            // No answer to anything: the server has closed the connection, and says why.
            return Err(match ErrPacket::parse(&payload) {
                Ok(error) => closed(&server_error(&error)),
                Err(_) => BackendError::Protocol("a packet that nobody asked for"),
            });
        }
        let reply = match ServerAuthPacket::parse(&payload, capabilities)? {
            ServerAuthPacket::Ok => {
                let ok = OkPacket::parse(&payload, capabilities)?;
                let is_variable = |change| matches!(change, Ok(Change::SystemVariable { .. }));
                return Ok((ok.status, ok.changes().any(is_variable)));
            }
            ServerAuthPacket::Err(error) => {
                if in_vain && error.code == 1045 {
                    known(password)?;
                }
                return Err(BackendError::Server(server_error(&error)));
            }
            ServerAuthPacket::NextFactor(_) => {
                return Err(BackendError::Protocol(
                    "the account asks for a second factor, which Millrace does not have",
                ));
            }
            ServerAuthPacket::Switch(switch) => {
                plugin = Plugin::from_name(&switch.plugin);
                nonce = switch.nonce;
                // MariaDB's account may have another plugin beside, for which the hash is enough: that is asked for next.
                // And it asks strangers for any plugin that some account has: those are refused as it refuses them.
                let is_parsec = whose == For::Client
                    && matches!(&plugin, Plugin::Other(name) if name == "parsec");
                in_vain = is_parsec || (plugin == Plugin::Ed25519 && password.password().is_none());
                match (in_vain, is_parsec) {
                    (_, true) => vec![0],
                    (true, _) => vec![0; ED25519_PROOF],
                    _ => switch_response(&plugin, password, &nonce, stream.is_private())?,
                }
            }
            ServerAuthPacket::More(data) => {
                match more_response(&plugin, password, &nonce, data, stream.is_private())? {
                    Some(reply) => reply,
                    None => continue,
                }
            }
        };
        write_packet(stream, sequence.wrapping_add(1), &reply).await?;
    }
}

fn nonce20(nonce: &[u8]) -> [u8; 20] {
    let mut fixed = [0; 20];
    let length = nonce.len().min(20);
    fixed[..length].copy_from_slice(&nonce[..length]);
    fixed
}

fn first_response(plugin: &Plugin, password: &Secret, nonce: &[u8; 20]) -> Vec<u8> {
    match plugin {
        Plugin::NativePassword => password.scramble_native(nonce),
        Plugin::CachingSha2 => scramble_sha2(password, nonce),
        // Whatever else the server's default is, it will ask anew.
        _ => Vec::new(),
    }
}

/// The answer to caching_sha2_password; empty for the empty password. A wrong one where the password is
/// not known: the server may ask for another plugin.
pub(crate) fn scramble_sha2(password: &Secret, nonce: &[u8; 20]) -> Vec<u8> {
    match password.password() {
        None => vec![0; 32],
        Some([]) => Vec::new(),
        Some(bytes) => auth::scramble_sha2(bytes, nonce).to_vec(),
    }
}

/// What an account is refused with that was known by its hash alone.
pub const LOG_IN_ANEW: &str =
    "Millrace: the account's plugin is not mysql_native_password any more; log in anew";

fn known(password: &Secret) -> Result<&[u8], BackendError> {
    let unknown = || BackendError::Server(ServerError::new(1045, b"28000", LOG_IN_ANEW));
    password.password().ok_or_else(unknown)
}

/// Bytes of an answer to ed25519.
const ED25519_PROOF: usize = 64;

fn clear_text(password: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut clear = Zeroizing::new(Vec::with_capacity(password.len() + 1));
    clear.extend_from_slice(password);
    clear.push(0);
    clear
}

fn switch_response(
    plugin: &Plugin,
    password: &Secret,
    nonce: &[u8],
    private: bool,
) -> Result<Vec<u8>, BackendError> {
    if password.is_empty() && !matches!(plugin, Plugin::Ed25519 | Plugin::Sha256Password) {
        return Ok(Vec::new());
    }
    Ok(match plugin {
        Plugin::NativePassword => password.scramble_native(&nonce20(nonce)),
        Plugin::CachingSha2 => auth::scramble_sha2(known(password)?, &nonce20(nonce)).to_vec(),
        Plugin::Ed25519 => {
            let mut fixed = [0; 32];
            let length = nonce.len().min(32);
            fixed[..length].copy_from_slice(&nonce[..length]);
            auth::sign_ed25519(known(password)?, &fixed).to_vec()
        }
        Plugin::Sha256Password if password.is_empty() => vec![0],
        Plugin::Sha256Password if private => clear_text(known(password)?).to_vec(),
        Plugin::Sha256Password => vec![auth::SHA256_REQUEST_PUBLIC_KEY],
        Plugin::ClearPassword if private => clear_text(known(password)?).to_vec(),
        Plugin::ClearPassword => {
            return Err(BackendError::Tls(
                "the account needs the password in clear text, which is only sent over TLS".into(),
            ));
        }
        _ => {
            return Err(BackendError::Protocol(
                "the account uses an authentication plugin that Millrace does not have",
            ));
        }
    })
}

/// None where the server only informs (fast authentication succeeded).
fn more_response(
    plugin: &Plugin,
    password: &Secret,
    nonce: &[u8],
    data: &[u8],
    private: bool,
) -> Result<Option<Vec<u8>>, BackendError> {
    match (plugin, data) {
        (Plugin::CachingSha2, [auth::FAST_OK]) => Ok(None),
        (Plugin::CachingSha2, [auth::FULL_AUTH]) if private => {
            Ok(Some(clear_text(known(password)?).to_vec()))
        }
        (Plugin::CachingSha2, [auth::FULL_AUTH]) => Ok(Some(vec![auth::REQUEST_PUBLIC_KEY])),
        (Plugin::CachingSha2 | Plugin::Sha256Password, pem) => {
            encrypt(password, nonce, pem).map(Some)
        }
        // Whatever it asks, the answer is not the empty password. It says so itself then, as to a client.
        (Plugin::Dialog | Plugin::Other(_), _) if password.is_empty() => Ok(Some(vec![0])),
        _ => Err(BackendError::Protocol("unexpected authentication data")),
    }
}

/// The password as the RSA exchange of sha256_password and caching_sha2_password wants it:
/// NUL-terminated, XORed with the nonce, encrypted with OAEP (SHA-1) under the server's key.
fn encrypt(password: &Secret, nonce: &[u8], pem: &[u8]) -> Result<Vec<u8>, BackendError> {
    let bad = |_| BackendError::Protocol("the server's RSA key cannot be used");
    let der = crate::tls::pem_to_der(pem, "PUBLIC KEY")
        .ok_or(BackendError::Protocol("the server's RSA key is not PEM"))?;
    let key = PublicEncryptingKey::from_der(&der).map_err(|_| bad(()))?;
    let key = OaepPublicEncryptingKey::new(key).map_err(|_| bad(()))?;
    let mut clear = clear_text(known(password)?);
    auth::xor_password(&mut clear, &nonce20(nonce));
    let mut sealed = vec![0; key.ciphertext_size()];
    key.encrypt(&OAEP_SHA1_MGF1SHA1, &clear, &mut sealed, None)
        .map_err(|_| BackendError::Protocol("the password is too long for the server's RSA key"))?;
    Ok(sealed)
}

/// An error packet, owned.
pub fn server_error(error: &ErrPacket<'_>) -> ServerError {
    ServerError {
        code: error.code,
        state: error.state,
        message: error.message.to_vec(),
    }
}

/// How servers are connected to, whoever logs in.
#[derive(Debug)]
pub struct Network {
    /// TLS towards them.
    pub tls: ServerTls,
    /// When a connection of which nothing is heard is given up.
    pub tcp: TcpOptions,
    /// What looks their names up.
    pub resolver: Resolver,
    /// What the monitor's account asks at this moment.
    pub questions: Questions,
}

/// Shared by everything that opens server connections.
pub type SharedNetwork = Arc<Network>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "db1:3306",
            "[::1]:3306",
            "[fe80::1%eth0]:3306",
            "/run/mysqld/sock",
        ] {
            let address = Address::parse(text).expect("it is an address");
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(Address::parse("db1"), None);
    }
}
