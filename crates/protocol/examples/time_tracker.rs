//! Times how long following the response to a point select takes, all of it in one
//! buffer: `cargo run --release -p millrace-protocol --example time_tracker`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a clock and a terminal are what this is for"
)]

use std::hint::black_box;
use std::time::Instant;

use millrace_protocol::Capabilities;
use millrace_protocol::ok::OkFields;
use millrace_protocol::response::{Event, Expect, Tracker};
use millrace_protocol::resultset::{Cell, ColumnDef, TextResult};

const ROUNDS: u32 = 2_000_000;

fn main() {
    let classic = Capabilities::PROTOCOL_41;
    for (name, caps) in [
        ("DEPRECATE_EOF", classic | Capabilities::DEPRECATE_EOF),
        ("classic EOF", classic),
    ] {
        for rows in [1, 100] {
            let response = response(rows, caps);
            let start = Instant::now();
            for _ in 0..ROUNDS / rows {
                follow(black_box(&response), caps);
            }
            let ns = start.elapsed().as_nanos() / u128::from(ROUNDS / rows);
            println!("{name}, {rows} row(s), {} bytes: {ns} ns", response.len());
        }
    }
}

fn response(rows: u32, caps: Capabilities) -> Vec<u8> {
    let mut result = TextResult::new(vec![ColumnDef::text("c", 45)]);
    for _ in 0..rows {
        result.row(&[Cell::Bytes(&[b'x'; 120])]);
    }
    let mut out = Vec::new();
    result.encode(&mut out, 1, caps, &OkFields::default());
    out
}

fn follow(mut buf: &[u8], caps: Capabilities) {
    let mut tracker = Tracker::new(Expect::Query, caps);
    loop {
        match tracker.next(buf) {
            Event::Pass(len)
            | Event::ColumnCount { len }
            | Event::Ok { len, .. }
            | Event::Eof { len, .. } => buf = &buf[len..],
            other => return assert_eq!(black_box(other), Event::Done),
        }
    }
}
