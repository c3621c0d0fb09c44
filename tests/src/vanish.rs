//! A forwarder between a client and the proxy that has the client vanish at a chosen byte: for
//! clients that end, are reset or fall silent in the middle of anything. It understands no packets.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How a client vanishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It closes its side and still reads what comes, for a moment: FIN.
    Fin,
    /// Its socket is reset: RST.
    Reset,
    /// It neither sends nor reads for this long, and is reset then.
    Silence(Duration),
}

/// Which bytes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What the client sends.
    Up,
    /// What the client is sent.
    Down,
}

/// When and how the client vanishes: after so many bytes of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vanish {
    pub side: Side,
    pub after: u64,
    pub how: How,
}

/// Bytes that have passed, on both sides.
#[derive(Debug, Default)]
pub struct Passed {
    up: AtomicU64,
    down: AtomicU64,
}

impl Passed {
    pub fn of(&self, side: Side) -> u64 {
        match side {
            Side::Up => self.up.load(Ordering::Relaxed),
            Side::Down => self.down.load(Ordering::Relaxed),
        }
    }
}

/// A forwarder for one client. Dropping it closes everything.
#[derive(Debug)]
pub struct Vanishing {
    pub port: u16,
    pub passed: Arc<Passed>,
    task: Option<JoinHandle<()>>,
}

impl Drop for Vanishing {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Vanishing {
    /// Forwards the first client that comes to `proxy`, until it is to vanish.
    ///
    /// # Errors
    /// Where no port can be had.
    pub async fn start(proxy: SocketAddr, plan: Option<Vanish>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let passed = Arc::new(Passed::default());
        let counts = passed.clone();
        let task = tokio::spawn(async move {
            if let Ok((client, _)) = listener.accept().await {
                drop(listener);
                let _ = forward(client, proxy, plan, &counts).await;
            }
        });
        Ok(Self {
            port,
            passed,
            task: Some(task),
        })
    }

    /// Waits until the client has vanished to the proxy as well, or has left by itself.
    pub async fn gone(mut self) {
        if let Some(task) = self.task.take() {
            let _ = tokio::time::timeout(Duration::from_secs(5), task).await;
        }
    }
}

async fn forward(
    mut client: TcpStream,
    proxy: SocketAddr,
    plan: Option<Vanish>,
    passed: &Passed,
) -> io::Result<()> {
    let mut proxy = TcpStream::connect(proxy).await?;
    proxy.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let left = |side: Side| match plan {
        Some(plan) if plan.side == side => plan.after.saturating_sub(passed.of(side)),
        _ => u64::MAX,
    };
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        let (up_left, down_left) = (left(Side::Up), left(Side::Down));
        if up_left == 0 || down_left == 0 {
            break;
        }
        // No more is read than may pass: the rest stays in the socket, unread, as with a client
        // that vanishes.
        let room = |left: u64| usize::try_from(left).unwrap_or(usize::MAX).min(16 * 1024);
        tokio::select! {
            read = client.read(&mut up[..room(up_left)]) => {
                let Ok(n @ 1..) = read else { return Ok(()) };
                proxy.write_all(&up[..n]).await?;
                passed.up.fetch_add(n as u64, Ordering::Relaxed);
            }
            read = proxy.read(&mut down[..room(down_left)]) => {
                let Ok(n @ 1..) = read else { return Ok(()) };
                client.write_all(&down[..n]).await?;
                passed.down.fetch_add(n as u64, Ordering::Relaxed);
            }
        }
    }
    let Some(plan) = plan else { return Ok(()) };
    let reset = |proxy: &TcpStream| SockRef::from(proxy).set_linger(Some(Duration::ZERO));
    match plan.how {
        How::Fin => {
            proxy.shutdown().await?;
            // Whatever comes is read, so that this stays a FIN.
            let draining = async { while matches!(proxy.read(&mut down).await, Ok(1..)) {} };
            let _ = tokio::time::timeout(Duration::from_millis(300), draining).await;
        }
        How::Reset => reset(&proxy)?,
        How::Silence(time) => {
            // The client's own side is told, so that the test need not wait.
            drop(client);
            tokio::time::sleep(time).await;
            reset(&proxy)?;
        }
    }
    Ok(())
}
