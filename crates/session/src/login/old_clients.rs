//! Clients that speak the protocol from before 4.1: programs that look whether a server lets an account
//! in, such as HAProxy's `option mysql-check user … pre-41`. MariaDB lets accounts without a password in
//! by it. No statement is run for them.

use millrace_backend::packet_io::{read_packet, write_packet};
use millrace_metrics::LoginOutcome;
use millrace_protocol::Capabilities;
use millrace_protocol::auth::Plugin;
use millrace_protocol::command::{COM_PING, COM_QUIT};
use millrace_protocol::handshake::{HandshakeResponse, OldResponse};
use millrace_protocol::ok::ErrPacket;
use millrace_sql::Family;

use crate::error::error_packet;
use crate::login::credentials::Credentials;
use crate::login::exchange::LoginExchange;
use crate::login::proof::Proof;

/// No command of such a client is longer; bytes.
const COMMAND_MAX: usize = 64 * 1024;

const MYSQL: &[u8] = b"Client does not support authentication protocol requested by server; \
    consider upgrading MySQL client";
const MARIADB: &[u8] = b"Client does not support authentication protocol requested by server; \
    consider upgrading MariaDB client";

/// The error packet's payload as these clients read it: without SQLSTATE.
pub(super) fn refusal(error: &ErrPacket<'_>) -> Vec<u8> {
    let mut payload = vec![0xff];
    payload.extend_from_slice(&error.code.to_le_bytes());
    payload.extend_from_slice(error.message);
    payload
}

fn unsupported(family: Family) -> ErrPacket<'static> {
    ErrPacket {
        code: 1251,
        state: *b"08S01",
        message: match family {
            Family::MySql => MYSQL,
            Family::MariaDb => MARIADB,
        },
    }
}

/// What the client says of itself, or what it is told where that is all.
pub(super) fn hello(family: Family, payload: &[u8]) -> Result<HandshakeResponse, Vec<u8>> {
    let bad = ErrPacket {
        code: 1043,
        state: *b"08S01",
        message: b"Bad handshake",
    };
    if family == Family::MySql {
        // It knows these clients no more.
        return Err(refusal(&unsupported(family)));
    }
    let old = OldResponse::parse(payload).map_err(|_| refusal(&bad))?;
    let is_answer = old.capabilities.contains(Capabilities::SECURE_CONNECTION);
    if !is_answer && !old.auth_response.is_empty() {
        // Made as before 4.1: MariaDB no longer checks it.
        return Err(refusal(&unsupported(family)));
    }
    Ok(HandshakeResponse {
        capabilities: old.capabilities,
        user: old.user,
        auth_response: old.auth_response,
        database: old.database,
        collation: DEFAULT_COLLATION,
        ..HandshakeResponse::default()
    })
}

/// latin1_swedish_ci: what such clients have.
const DEFAULT_COLLATION: u8 = 8;

/// Tells the client whether it is let in, and serves it until it says more than that.
pub(super) async fn serve(mut exchange: LoginExchange<'_>) -> std::io::Result<()> {
    let worker = exchange.worker;
    let hello = exchange.hello.clone();
    let credentials = Credentials {
        user: hello.user,
        database: hello.database.unwrap_or_default(),
        response: hello.auth_response,
        used_up: false,
        collation: hello.collation,
        plugin: Plugin::NativePassword,
    };
    let error = match exchange.prove(&credentials).await? {
        Proof::Account(_) => None,
        Proof::Denied(answer) => {
            let (address, options) = (exchange.address, worker.options());
            worker.shared.accounts.hold_back(address, &options).await;
            Some(refusal(&error_packet(&answer)))
        }
        Proof::Relay | Proof::Own(_) => {
            Some(refusal(&error_packet(&exchange.denied(&credentials))))
        }
    };
    if let Some(error) = error {
        worker.metrics().login(LoginOutcome::Denied);
        return exchange.write(&error).await;
    }
    worker.metrics().login(LoginOutcome::Known);
    worker.shared.accounts.succeeded(exchange.address);
    let mut ok = vec![0, 0, 0];
    if hello.capabilities.contains(Capabilities::TRANSACTIONS) {
        ok.extend_from_slice(&2_u16.to_le_bytes());
    }
    exchange.write(&ok).await?;
    loop {
        let limit = worker.options().login_timeout;
        let reading = read_packet(&mut exchange.stream, &mut exchange.buffer, COMMAND_MAX);
        let Ok(read) = tokio::time::timeout(limit, reading).await else {
            return Ok(());
        };
        let (sequence, command) = read?;
        let answer = match command.first() {
            None | Some(&COM_QUIT) => return Ok(()),
            Some(&COM_PING) => &ok,
            Some(_) => &refusal(&unsupported(Family::MariaDb)),
        };
        write_packet(&mut exchange.stream, sequence.wrapping_add(1), answer).await?;
        if command.first() != Some(&COM_PING) {
            return Ok(());
        }
    }
}
