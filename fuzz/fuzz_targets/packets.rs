//! Frames, commands, OK packets, results and compressed frames read from anything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_protocol::Capabilities;
use millrace_protocol::command::{Command, encode_query, execute_with_types};
use millrace_protocol::compress::{Algorithm, Decoder};
use millrace_protocol::ok::{ErrPacket, OkPacket, rewrite_ok, status_offset};
use millrace_protocol::packet::{frame, payload, whole};
use millrace_protocol::resultset::{ColumnDef, parse_text_rows};

// The first eight bytes choose the capabilities, the ninth the number of parameters.
fuzz_target!(|data: &[u8]| {
    let Some((head, data)) = data.split_first_chunk::<9>() else {
        return;
    };
    let caps = u64::from_le_bytes([
        head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7],
    ]);
    let caps = Capabilities::from_bits_retain(caps);
    frames(data);
    command(data, usize::from(head[8]), caps);
    results(data, caps);
    compressed(data);
});

fn frames(data: &[u8]) {
    if let Some(len) = whole(data) {
        assert!(len <= data.len());
        assert!(payload(&data[..len]).len() < len);
    }
    let mut framed = Vec::new();
    frame(&mut framed, 7, data);
    assert_eq!(whole(&framed), Some(framed.len()));
    assert_eq!(payload(&framed), data);
}

fn command(data: &[u8], params: usize, caps: Capabilities) {
    let Ok(command) = Command::parse(data, caps) else {
        return;
    };
    match command {
        Command::Query(query) => {
            assert_eq!(1 + query.attributes.len() + query.text.len(), data.len());
            let mut again = Vec::new();
            encode_query(&mut again, query.text, caps);
            let again = payload(&again);
            let Ok(Command::Query(again)) = Command::parse(&again, caps) else {
                panic!("our own query cannot be read");
            };
            assert_eq!(again.text, query.text);
        }
        Command::StmtExecute(execute) => {
            let Ok(found) = execute.params(params, caps) else {
                return;
            };
            let mut again = Vec::new();
            execute_with_types(&mut again, 1, &execute, &found, found.types, caps);
            let again = payload(&again);
            let Ok(Command::StmtExecute(again)) = Command::parse(&again, caps) else {
                panic!("our own execute cannot be read");
            };
            let again = again.params(params, caps).expect("our own parameters");
            assert_eq!(again, found);
        }
        _ => {}
    }
}

fn results(data: &[u8], caps: Capabilities) {
    if let Ok((_, used)) = parse_text_rows(data, caps) {
        assert!(used <= data.len());
    }
    let _ = ColumnDef::parse(data, caps);
    let _ = ErrPacket::parse(data);
    let _ = status_offset(data, caps);
    let Ok(ok) = OkPacket::parse(data, caps) else {
        return;
    };
    let changes: Vec<_> = ok.changes().map_while(Result::ok).collect();
    let mut packet = Vec::new();
    frame(&mut packet, 1, data);
    let mut out = Vec::new();
    if rewrite_ok(&mut out, &packet, caps, caps, |_| true, |status| status).is_err() {
        return;
    }
    let again = payload(&out);
    if again[0] == 0xFE && !caps.contains(Capabilities::DEPRECATE_EOF) {
        return;
    }
    let again = OkPacket::parse(&again, caps).expect("our own OK packet");
    assert_eq!(again.info, ok.info);
    assert_eq!(again.affected_rows, ok.affected_rows);
    if caps.contains(Capabilities::SESSION_TRACK) {
        let kept: Vec<_> = again.changes().map_while(Result::ok).collect();
        assert_eq!(kept, changes);
    }
}

fn compressed(data: &[u8]) {
    for algorithm in [Algorithm::Zlib, Algorithm::Zstd(3)] {
        let mut decoder = Decoder::new(algorithm);
        let mut rest = data;
        let mut out = Vec::new();
        while !rest.is_empty() && out.len() < 1 << 20 {
            match decoder.feed(rest, &mut out) {
                Ok(taken) => {
                    assert!(taken > 0 && taken <= rest.len());
                    rest = &rest[taken..];
                }
                Err(_) => break,
            }
        }
    }
}
