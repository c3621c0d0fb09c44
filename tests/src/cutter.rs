//! A forwarder between the proxy and a server that can cut, stall and swallow: for servers that
//! vanish at a chosen moment. It understands no packets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the forwarder does with bytes from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on.
    Forward,
    /// Passes on this many bytes of each connection's answers from now on, then closes it.
    CutAfter(u64),
    /// Passes no answers on and keeps connections open: a server that hangs, or a network that
    /// is cut in this direction.
    Stall,
    /// Passes nothing on to the server and keeps connections open.
    Deaf,
    /// Passes nothing on in either direction and keeps connections open. What was under way
    /// arrives when the network is whole again, as TCP would have it.
    Dark,
    /// Closes every connection, refuses new ones by closing them at once.
    Refuse,
}

/// A forwarder on a port of its own. Dropping it closes everything.
#[derive(Debug)]
pub struct Cutter {
    pub port: u16,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = self.mode.send(Mode::Refuse);
        self.task.abort();
    }
}

impl Cutter {
    /// Forwards to a server on this machine.
    pub async fn start(server_port: u16) -> std::io::Result<Self> {
        Self::start_at(([127, 0, 0, 1], 0).into(), server_port).await
    }

    /// The same, at this address.
    pub async fn start_at(address: SocketAddr, server_port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let port = listener.local_addr()?.port();
        let (mode, receiver) = watch::channel(Mode::Forward);
        let accepted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&accepted);
        let server = SocketAddr::from(([127, 0, 0, 1], server_port));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(forward(client, server, receiver.clone()));
            }
        });
        Ok(Self {
            port,
            mode,
            accepted,
            stopped: Arc::new(AtomicBool::new(false)),
            task,
        })
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// How many connections have been made.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr, mut mode: watch::Receiver<Mode>) {
    if *mode.borrow_and_update() == Mode::Refuse {
        return;
    }
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut left = budget(*mode.borrow());
    loop {
        let now = *mode.borrow();
        let stalled = matches!(now, Mode::Stall | Mode::Dark);
        let deaf = matches!(now, Mode::Deaf | Mode::Dark);
        tokio::select! {
            changed = mode.changed() => {
                let now = *mode.borrow_and_update();
                if changed.is_err() || now == Mode::Refuse {
                    return;
                }
                left = budget(now);
            }
            n = client.read(&mut up), if !deaf => {
                let Ok(n @ 1..) = n else { return };
                if server.write_all(&up[..n]).await.is_err() {
                    return;
                }
            }
            n = server.read(&mut down), if !stalled => {
                let Ok(n @ 1..) = n else { return };
                let passed = left.map_or(n, |left| n.min(left as usize));
                if client.write_all(&down[..passed]).await.is_err() {
                    return;
                }
                if let Some(left) = &mut left {
                    *left -= passed as u64;
                    if *left == 0 {
                        return;
                    }
                }
            }
        }
    }
}

fn budget(mode: Mode) -> Option<u64> {
    match mode {
        Mode::CutAfter(n) => Some(n.max(1)),
        _ => None,
    }
}
