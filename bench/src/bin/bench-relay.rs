//! A bare relay: copies bytes both ways between each client and one server, on one
//! current-thread runtime. It knows no protocol, so what it costs is what any proxy
//! on this runtime costs at the least.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Copies bytes between clients and servers, one server connection per client.
#[derive(Parser)]
struct Args {
    /// Where clients connect.
    #[arg(long)]
    listen: SocketAddr,
    /// A server; clients are dealt to the servers in turn.
    #[arg(long, required = true)]
    server: Vec<SocketAddr>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match serve(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-relay: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> std::io::Result<()> {
    let listener = TcpListener::bind(args.listen).await?;
    for server in args.server.iter().copied().cycle() {
        let (client, _) = listener.accept().await?;
        tokio::spawn(async move {
            // A connection that breaks concerns its two ends, which see it themselves.
            let _ = relay(client, server).await;
        });
    }
    Ok(())
}

async fn relay(mut client: TcpStream, server: SocketAddr) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
