//! Clients that speak another protocol than MySQL's: how they are recognised, and what they are told. Answers
//! no such protocol.

use std::time::Duration;

use millrace_backend::stream::Stream;
use millrace_protocol::ok::ErrPacket;
use millrace_protocol::packet;
use tokio::io::AsyncReadExt;

/// How long such a client is listened to after the error, so that it can read that before the
/// connection is reset; and how many bytes of it.
const LISTEN: Duration = Duration::from_secs(1);
const LISTEN_BYTES: u64 = 64 * 1024;

/// What a client speaks whose first bytes are no packet of the MySQL protocol that could answer a
/// greeting; none where they are, or where there are not enough.
pub(super) fn spoken(first: &[u8], longest: usize) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 12] = [
        (b"PROXY ", "the PROXY protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n", "the PROXY protocol"),
        (b"GET ", "HTTP"),
        (b"POST", "HTTP"),
        (b"PUT ", "HTTP"),
        (b"HEAD", "HTTP"),
        (b"OPTI", "HTTP"),
        (b"CONN", "HTTP"),
        (b"PRI ", "HTTP"),
        (b"SSH-", "SSH"),
        (b"\x16\x03", "TLS before the greeting"),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", "the PostgreSQL protocol"),
    ];
    let header = packet::header(first)?;
    // The greeting's number was 0.
    if header.seq == 1 && header.len as usize <= longest {
        return None;
    }
    // What has come of it is enough to tell.
    let begins = |known: &[u8]| first.iter().zip(known).all(|(a, b)| a == b);
    let known = KNOWN.iter().find(|(known, _)| begins(known));
    Some(known.map_or("something else", |(_, name)| *name))
}

/// Tells such a client that it is wrong here, as a server would: ER_HANDSHAKE_ERROR.
pub(super) async fn turn_away(stream: &mut Stream, spoken: &str) {
    let message = format!(
        "Bad handshake (Millrace: the client speaks {spoken}; this port takes the MySQL protocol)"
    );
    let error = ErrPacket {
        code: 1043,
        state: *b"08S01",
        message: message.as_bytes(),
    };
    let mut out = Vec::new();
    error.encode(&mut out, 2);
    let _ = stream.send(&out).await;
    // A socket that is closed with unread bytes is reset, and the error is lost with it.
    let mut rest = tokio::io::AsyncReadExt::take(stream, LISTEN_BYTES);
    let mut sink = [0; 1024];
    let listening = async { while matches!(rest.read(&mut sink).await, Ok(read) if read > 0) {} };
    let _ = tokio::time::timeout(LISTEN, listening).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_told_by_their_first_bytes() {
        for (first, expected) in [
            (
                &b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"[..],
                Some("the PROXY protocol"),
            ),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11", Some("the PROXY protocol")),
            (b"GET / HTTP/1.1\r\n", Some("HTTP")),
            (b"\x16\x03\x01\x02\x00\x01", Some("TLS before the greeting")),
            (b"\x16\x03\x01\x01\x00\x01", Some("TLS before the greeting")),
            (
                b"\0\0\0\x08\x04\xd2\x16\x2f",
                Some("the PostgreSQL protocol"),
            ),
            (b"\x01\x02\x03\x04", Some("something else")),
            (b"\x20\x00\x00\x01\x85\xa6", None),
            (b"GE", None),
        ] {
            assert_eq!(spoken(first, 64 * 1024), expected, "{first:?}");
        }
    }
}
