//! What a visit and a statement cost at the least: accepts a client, greets it, believes whoever it
//! says it is, has each of its queries run on whatever server connection is idle, and closes. It
//! keeps no state, reads no SQL, decides nothing and checks no password, so no proxy on this
//! runtime that logs clients in by itself costs less per connection, and none that lends server
//! connections by the statement less per statement.
//!
//! The first clients' logins are relayed to a server, which is how it comes by server
//! connections, a greeting and an OK. For measurements only: whoever comes later is let in.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;

use clap::Parser;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Lets every client in and runs its queries on connections that the first clients opened.
#[derive(Parser)]
struct Args {
    /// Where clients connect.
    #[arg(long)]
    listen: SocketAddr,
    /// A server; connections are dealt to the servers in turn.
    #[arg(long, required = true)]
    server: Vec<SocketAddr>,
}

/// Of a packet: three bytes of length and one of sequence.
const HEADER: usize = 4;
const COM_QUIT: u8 = 1;
/// First bytes of a server's packet: OK, the end of a result, more to say about a login.
const OK: u8 = 0;
const EOF: u8 = 0xfe;
const MORE: u8 = 1;
/// In the flags that a client logs in with: results end with OK alone, without an EOF after the columns.
const DEPRECATE_EOF: u32 = 1 << 24;
/// In a packet that begins with [`MORE`]: the password is right, OK follows.
const FAST_OK: u8 = 3;

/// So many clients' logins are relayed: as many server connections there are.
const CONNECTIONS: usize = 100;

/// Server connections that nobody uses, and what servers say first and last in a login.
struct Known {
    relayed: Cell<usize>,
    idle: RefCell<Vec<TcpStream>>,
    /// As many permits as are idle.
    ready: Semaphore,
    greeting: RefCell<Rc<[u8]>>,
    welcome: RefCell<Rc<[u8]>>,
}

impl Known {
    /// The connection is for others.
    fn give_back(&self, server: TcpStream) {
        self.idle.borrow_mut().push(server);
        self.ready.add_permits(1);
    }

    /// An idle connection, or the next one that is.
    async fn take(&self) -> io::Result<TcpStream> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        self.ready.acquire().await.map_err(|_| gone())?.forget();
        self.idle.borrow_mut().pop().ok_or_else(gone)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let local = tokio::task::LocalSet::new();
    match local.run_until(serve(Args::parse())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-greeter: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> io::Result<()> {
    let listener = TcpListener::bind(args.listen).await?;
    let known = Rc::new(Known {
        relayed: Cell::new(0),
        idle: RefCell::default(),
        ready: Semaphore::new(0),
        greeting: RefCell::default(),
        welcome: RefCell::default(),
    });
    for address in args.server.iter().copied().cycle() {
        let (client, _) = listener.accept().await?;
        let known = known.clone();
        tokio::task::spawn_local(async move {
            // A client that breaks off sees it itself.
            let _ = visit(client, address, &known).await;
        });
    }
    Ok(())
}

/// One client from its greeting to its COM_QUIT.
async fn visit(mut client: TcpStream, address: SocketAddr, known: &Known) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    let ends = if known.relayed.get() < CONNECTIONS {
        known.relayed.set(known.relayed.get() + 1);
        let (server, ends) = relay_login(&mut client, address, &mut buffer, known).await?;
        known.give_back(server);
        ends
    } else {
        let (greeting, welcome) = (
            known.greeting.borrow().clone(),
            known.welcome.borrow().clone(),
        );
        client.write_all(&greeting).await?;
        read_until(&mut client, &mut buffer, |packets| packets.len() == 1).await?;
        let ends = ends_of_results(&buffer);
        client.write_all(&welcome).await?;
        ends
    };
    loop {
        read_until(&mut client, &mut buffer, |packets| packets.len() == 1).await?;
        if buffer[HEADER] == COM_QUIT {
            return Ok(());
        }
        let mut server = known.take().await?;
        server.write_all(&buffer).await?;
        read_until(&mut server, &mut buffer, |packets| {
            let seen = packets.iter().filter(|packet| packet[0] == EOF).count();
            matches!(packets, [first] if first[0] != 1) || seen == ends
        })
        .await?;
        known.give_back(server);
        client.write_all(&buffer).await?;
    }
}

/// How many packets of a result begin as an EOF does, for the client whose first packet this is.
fn ends_of_results(login: &[u8]) -> usize {
    let flags = login
        .get(HEADER..HEADER + 4)
        .and_then(|flags| flags.try_into().ok());
    let flags = flags.map_or(0, u32::from_le_bytes);
    if flags & DEPRECATE_EOF == 0 { 2 } else { 1 }
}

/// The login of a client that has a server decide about it.
async fn relay_login(
    client: &mut TcpStream,
    address: SocketAddr,
    buffer: &mut Vec<u8>,
    known: &Known,
) -> io::Result<(TcpStream, usize)> {
    let mut server = TcpStream::connect(address).await?;
    server.set_nodelay(true)?;
    read_until(&mut server, buffer, |packets| packets.len() == 1).await?;
    let greeting = buffer.as_slice().into();
    client.write_all(buffer).await?;
    let mut ends = None;
    loop {
        read_until(client, buffer, |packets| packets.len() == 1).await?;
        ends = ends.or_else(|| Some(ends_of_results(buffer)));
        server.write_all(buffer).await?;
        // An asked-for key and the like are for the client to answer; "right" is followed by OK.
        read_until(
            &mut server,
            buffer,
            |packets| !matches!(packets, [only] if only.starts_with(&[MORE, FAST_OK])),
        )
        .await?;
        client.write_all(buffer).await?;
        let last = packets(buffer).and_then(|packets| packets.last().copied());
        if last.is_some_and(|last| last[0] == OK) {
            break;
        }
    }
    // The fast way, whatever way this login took: after the client's first packet.
    let mut welcome = vec![2, 0, 0, 2, MORE, FAST_OK];
    let ok = packets(buffer)
        .and_then(|packets| packets.last().copied())
        .unwrap_or_default();
    welcome.extend_from_slice(&[ok.len() as u8, 0, 0, 3]);
    welcome.extend_from_slice(ok);
    *known.greeting.borrow_mut() = greeting;
    *known.welcome.borrow_mut() = welcome.into();
    Ok((server, ends.unwrap_or(2)))
}

/// Reads whole packets until there are enough.
async fn read_until(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    enough: impl Fn(&[&[u8]]) -> bool,
) -> io::Result<()> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if packets(buffer).is_some_and(|packets| enough(&packets)) {
            return Ok(());
        }
    }
}

/// The payloads of all packets, where the last one is whole and none is empty.
fn packets(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_at_checked(HEADER) {
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        if payload.is_empty() {
            return None;
        }
        found.push(payload);
        bytes = rest;
    }
    bytes.is_empty().then_some(found)
}
