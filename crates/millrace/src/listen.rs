//! Listeners: accept clients and hand each to the worker with the fewest. They run on the first
//! worker's thread: with one worker, taking a client in wakes no other.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_backend::tcp::TcpOptions;
use millrace_config::{Address, Listener};
use millrace_metrics::Metrics;
use millrace_worker::{ListenerContext, ListenerTls, Message};
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tracing::{info, warn};

/// Clients that wait to be accepted; beyond it the kernel lets them try again.
const BACKLOG: i32 = 4096;

/// A bound socket with what is configured for it.
pub(crate) struct Bound {
    socket: Bindable,
    entry: ListenerContext,
}

enum Bindable {
    Tcp(Vec<Socket>),
    Unix(std::os::unix::net::UnixListener, PathBuf),
}

/// Binds a listener.
pub(crate) async fn bind(
    number: u16,
    listener: &Listener,
    tcp: &TcpOptions,
) -> anyhow::Result<Bound> {
    let socket = match &listener.address {
        Address::Tcp { host, port } => Bindable::Tcp(
            bind_tcp(host, *port, tcp)
                .await
                .with_context(|| format!("cannot listen on {}", listener.address))?,
        ),
        Address::Unix(path) => {
            let bound = bind_unix(path).await;
            Bindable::Unix(
                bound.with_context(|| format!("cannot listen on {}", path.display()))?,
                path.clone(),
            )
        }
    };
    info!(address = %listener.address, "listening");
    let tls = match (&listener.address, listener.tls) {
        // A socket is as private as TLS; who wants both may have both.
        (Address::Unix(_), ListenerTls::Required) => ListenerTls::Optional,
        (_, tls) => tls,
    };
    Ok(Bound {
        socket,
        entry: ListenerContext {
            listener: number,
            target: listener.target,
            consistency: listener.consistency,
            tls,
        },
    })
}

async fn bind_tcp(host: &str, port: u16, tcp: &TcpOptions) -> io::Result<Vec<Socket>> {
    if host == "*" {
        // One socket for both families where there is IPv6.
        return match bind_one(
            &format!("[::]:{port}").parse().map_err(io::Error::other)?,
            tcp,
        ) {
            Ok(listener) => Ok(vec![listener]),
            Err(_) => Ok(vec![bind_one(
                &format!("0.0.0.0:{port}")
                    .parse()
                    .map_err(io::Error::other)?,
                tcp,
            )?]),
        };
    }
    tokio::net::lookup_host((host, port))
        .await?
        .map(|address| bind_one(&address, tcp))
        .collect()
}

fn bind_one(address: &SocketAddr, tcp: &TcpOptions) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(*address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Accepted sockets inherit these.
    socket.set_tcp_nodelay(true)?;
    tcp.apply(&socket)?;
    socket.bind(&(*address).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// The next client's socket, ready to be handed to another runtime (a tokio listener would first
/// enter it in this one's poll), and where the client is.
async fn next_client(listener: &AsyncFd<Socket>) -> io::Result<(TcpStream, Option<SocketAddr>)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let accept = |socket: &Socket| Ok(acceptfrom_with(socket, flags)?);
    let (accepted, peer) = listener.async_io(Interest::READABLE, accept).await?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((accepted.into(), peer))
}

/// Replaces a socket file that nobody listens on any more.
async fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts on all listeners until `stop`; then none of them listens any more.
pub(crate) async fn accept(
    listeners: Vec<Bound>,
    mailboxes: Arc<Vec<UnboundedSender<Message>>>,
    metrics: Arc<Metrics>,
    stop: oneshot::Receiver<()>,
) {
    let mut tasks = tokio::task::JoinSet::new();
    let workers = Rc::new(Workers {
        mailboxes,
        metrics,
        turn: Cell::new(0),
    });
    for Bound { socket, entry } in listeners {
        match socket {
            Bindable::Tcp(sockets) => {
                for socket in sockets {
                    let workers = workers.clone();
                    let take = move |plain, peer| {
                        workers.hand(Message::Client { plain, peer, entry });
                    };
                    tasks.spawn_local(accept_tcp(socket, take));
                }
            }
            Bindable::Unix(listener, path) => {
                let workers = workers.clone();
                let take = move |plain| workers.hand(Message::UnixClient { plain, entry });
                tasks.spawn_local(accept_unix(listener, Remove(path), take));
            }
        }
    }
    // Whoever would say so may be gone: then it is time as well.
    let _ = stop.await;
    tasks.shutdown().await;
}

async fn accept_tcp(socket: Socket, take: impl Fn(TcpStream, Option<SocketAddr>)) {
    #[expect(
        deprecated,
        reason = "sound for a socket that it owns; its successor wants unsafe code, forbidden here"
    )]
    let listener = match AsyncFd::with_interest(socket, Interest::READABLE) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "cannot listen"),
    };
    loop {
        match next_client(&listener).await {
            Ok((plain, peer)) => take(plain, peer),
            Err(error) => rest(&error).await,
        }
    }
}

async fn accept_unix(
    listener: std::os::unix::net::UnixListener,
    _remove: Remove,
    take: impl Fn(std::os::unix::net::UnixStream),
) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "cannot listen"),
    };
    loop {
        let accepted = listener.accept().await;
        match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(plain) => take(plain),
            Err(error) => rest(&error).await,
        }
    }
}

/// Who takes new clients, for all listeners together.
struct Workers {
    mailboxes: Arc<Vec<UnboundedSender<Message>>>,
    metrics: Arc<Metrics>,
    /// A worker counts a client when it gets to it, so among equals each has its turn.
    turn: Cell<usize>,
}

impl Workers {
    /// Hands a client to the worker with the fewest.
    fn hand(&self, client: Message) {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        let count = self.mailboxes.len();
        let least = (0..count)
            .map(|place| (turn % count + place) % count)
            .min_by_key(|worker| self.metrics.clients_of(*worker));
        if let Some(mailbox) = least.and_then(|worker| self.mailboxes.get(worker)) {
            // A closed mailbox is a worker that ends: the client is dropped.
            let _ = mailbox.send(client);
        }
    }
}

/// Out of file descriptors or the like: accepting again at once would only burn the CPU.
async fn rest(error: &io::Error) {
    let client_left = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    );
    if !client_left {
        warn!(%error, "cannot accept a client; raise the limit of open files");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Removes a socket file in the end.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
