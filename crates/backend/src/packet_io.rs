//! Whole packets over a stream, one at a time: for logins and control queries, never for the
//! relaying of results.

use std::io;

use millrace_protocol::packet;

use crate::stream::Stream;

/// Reads one whole packet; answers its sequence number and payload. `buf` keeps what was read
/// beyond it. Packets longer than `limit` bytes are an error.
pub async fn read_packet(
    stream: &mut Stream,
    buf: &mut Vec<u8>,
    limit: usize,
) -> io::Result<(u8, Vec<u8>)> {
    loop {
        if let Some(length) = packet::whole(buf) {
            let sequence = last_sequence(&buf[..length]);
            let payload = packet::payload(&buf[..length]).into_owned();
            buf.drain(..length);
            return Ok((sequence, payload));
        }
        if let Some(header) = packet::header(buf)
            && header.len as usize > limit
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "packet longer than allowed here",
            ));
        }
        if buf.len() > limit.saturating_add(packet::HEADER) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "packet longer than allowed here",
            ));
        }
        read_more(stream, buf).await?;
    }
}

/// Reads until a packet's header is there, if it is one.
pub async fn read_header(stream: &mut Stream, buf: &mut Vec<u8>) -> io::Result<()> {
    while buf.len() < packet::HEADER {
        read_more(stream, buf).await?;
    }
    Ok(())
}

async fn read_more(stream: &mut Stream, buf: &mut Vec<u8>) -> io::Result<()> {
    let room = |buf: &mut Vec<u8>| buf.reserve(4096);
    match std::future::poll_fn(|cx| stream.poll_read_into(cx, buf, room)).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn last_sequence(packets: &[u8]) -> u8 {
    let mut at = 0;
    let mut sequence = 0;
    while let Some(header) = packet::header(&packets[at..]) {
        sequence = header.seq;
        at += packet::HEADER + header.len as usize;
        if at >= packets.len() {
            break;
        }
    }
    sequence
}

/// Writes one payload as a packet.
pub async fn write_packet(stream: &mut Stream, sequence: u8, payload: &[u8]) -> io::Result<()> {
    let mut out = Vec::with_capacity(payload.len() + packet::HEADER);
    packet::frame(&mut out, sequence, payload);
    stream.send(&out).await
}
