//! A socket to listen on, TCP or Unix, for either protocol. Serves nothing itself.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use millrace_backend::stream::Plain;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket; its file is removed in the end.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds `host:port` (`*` for every interface), or a Unix socket at an absolute path. A
    /// socket file that nobody listens on any more is replaced.
    pub async fn bind(address: &str) -> io::Result<Self> {
        if address.starts_with('/') {
            let path = PathBuf::from(address);
            remove_stale(&path).await?;
            return Ok(Listener::Unix(UnixListener::bind(&path)?, path));
        }
        let listener = match address.strip_prefix("*:") {
            Some(port) => match TcpListener::bind(format!("[::]:{port}")).await {
                Ok(listener) => listener,
                // No IPv6 on this machine.
                Err(_) => TcpListener::bind(format!("0.0.0.0:{port}")).await?,
            },
            None => TcpListener::bind(address).await?,
        };
        Ok(Listener::Tcp(listener))
    }

    /// The next client; where it is, where it comes over TCP.
    pub(crate) async fn accept(&self) -> io::Result<(Plain, Option<SocketAddr>)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((stream.into(), Some(peer)))
            }
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((stream.into(), None))
            }
        }
    }

    /// Where it listens: the port that was really taken, or the path.
    pub fn local_address(&self) -> io::Result<String> {
        match self {
            Listener::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            Listener::Unix(_, path) => Ok(path.display().to_string()),
        }
    }
}

async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}
