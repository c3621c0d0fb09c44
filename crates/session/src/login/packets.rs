//! What a login tells its client: errors, and what its OK says of the session; how the stream goes on.

use millrace_backend::compressed::Compressed;
use millrace_backend::stream::Stream;
use millrace_engine::state::SessionState;
use millrace_protocol::Capabilities;
use millrace_protocol::compress::Algorithm;
use millrace_protocol::handshake::HandshakeResponse;
use millrace_protocol::ok::{Change, put_change};
use millrace_sql::Family;

use crate::worker::Worker;
use millrace_worker::Base;

/// What a server says to a client that has lost count of the packets.
pub(super) fn out_of_order() -> Vec<u8> {
    with_state(1156, b"08S01", b"Got packets out of order")
}

/// An error packet's payload.
pub(super) fn with_state(code: u16, state: &[u8; 5], message: &[u8]) -> Vec<u8> {
    let mut payload = vec![0xff];
    payload.extend_from_slice(&code.to_le_bytes());
    payload.push(b'#');
    payload.extend_from_slice(state);
    payload.extend_from_slice(message);
    payload
}

/// What a login's OK says to a client that follows it: of variables, where the server does, and of the
/// default database.
pub(super) fn tracked_at_login(worker: &Worker, base: &Base, database: &[u8]) -> Vec<u8> {
    let mut session = Vec::new();
    if base.tells_variables {
        let names = worker
            .cluster
            .with_world(|world| world.tracked_by_default());
        for name in names.split(',') {
            if let Some(value) = at_login(&base.state, name) {
                let name = name.as_bytes();
                put_change(&mut session, &Change::SystemVariable { name, value });
            }
        }
    }
    session.extend(tracked_schema(database));
    session
}

pub(crate) fn tracked_schema(database: &[u8]) -> Vec<u8> {
    let mut session = Vec::new();
    if !database.is_empty() {
        put_change(&mut session, &Change::Schema(database));
    }
    session
}

/// A variable of a session that has just logged in, as the server tells it; none where it is not known.
fn at_login<'a>(state: &'a SessionState, name: &str) -> Option<&'a [u8]> {
    match name {
        "autocommit" if state.is_off(name) => Some(b"OFF"),
        "autocommit" => Some(b"ON"),
        "character_set_connection" => {
            let collation = state.effective("collation_connection")?;
            collation.split(|byte| *byte == b'_').next()
        }
        // Where servers send clients is for Millrace to follow.
        "redirect_url" => Some(b""),
        _ => state.effective(name),
    }
}

/// A collation that COM_CHANGE_USER names, or for one above 255 its character set's usual one.
pub(crate) fn any_collation(id: Option<u16>, family: Family) -> u8 {
    match (u8::try_from(id.unwrap_or_default()), family) {
        (Ok(id), _) => id,
        (Err(_), Family::MySql) => 255,
        (Err(_), Family::MariaDb) => 45,
    }
}

/// Wraps the stream in compression where that was agreed on; the first packet after the login's
/// OK is compressed.
pub(super) fn compressed(
    stream: Stream,
    capabilities: Capabilities,
    hello: &HandshakeResponse,
    ahead: &mut Vec<u8>,
) -> Stream {
    let algorithm = if capabilities.contains(Capabilities::COMPRESS) {
        Algorithm::Zlib
    } else if capabilities.contains(Capabilities::ZSTD_COMPRESSION) {
        Algorithm::Zstd(i32::from(hello.zstd_level.clamp(1, 22)))
    } else {
        return stream;
    };
    let ahead = std::mem::take(ahead);
    Stream::Compressed(Box::new(Compressed::new(stream, algorithm, ahead)))
}
