//! A forwarder before a server whose binary log comes late to whoever follows it: all else passes at once. So what is
//! known of a write before the log tells it has to be right by itself.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// COM_BINLOG_DUMP and COM_BINLOG_DUMP_GTID.
const DUMPS: [u8; 2] = [0x12, 0x1E];

/// A forwarder on a port of its own; connections without TLS only. Dropping it ends it.
#[derive(Debug)]
pub struct LateLog {
    pub port: u16,
    task: JoinHandle<()>,
}

impl Drop for LateLog {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LateLog {
    /// Before a server on this machine, whose log comes so much later.
    pub async fn start(server_port: u16, delay: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let server = SocketAddr::from(([127, 0, 0, 1], server_port));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else {
                    continue;
                };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (dumps, is_log) = watch::channel(false);
                tokio::spawn(requests(from_client, to_server, dumps));
                tokio::spawn(answers(from_server, to_client, is_log, delay));
            }
        });
        Ok(Self { port, task })
    }
}

/// Passes on what the client says, and looks for the command that asks for the log.
async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, dumps: watch::Sender<bool>) {
    let mut packet = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        packet.extend_from_slice(&buffer[..read]);
        while let [a, b, c, seq, rest @ ..] = &packet[..] {
            let len = usize::from(*a) | usize::from(*b) << 8 | usize::from(*c) << 16;
            if rest.len() < len {
                break;
            }
            if *seq == 0 && rest[..len].first().is_some_and(|it| DUMPS.contains(it)) {
                dumps.send_replace(true);
            }
            packet.drain(..4 + len);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

/// Passes on what the server says; where that is the log, later.
async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    is_log: watch::Receiver<bool>,
    delay: Duration,
) {
    let (late, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let wait = if *is_log.borrow() {
                delay
            } else {
                Duration::ZERO
            };
            if late
                .send((Instant::now() + wait, buffer[..read].to_vec()))
                .is_err()
            {
                break;
            }
        }
    };
    let writing = async move {
        while let Some((at, bytes)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}
